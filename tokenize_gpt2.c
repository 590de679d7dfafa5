/*
Text to token ids and back.

    ./tokenize_gpt2 encode < text > ids                   # numbers, with spaces between them
    ./tokenize_gpt2 encode a.txt b.txt --output x.bin     # a token file for the trainers; --endoftext 1 leads each text
    ./tokenize_gpt2 decode x.bin > text                   # the reverse, of token files and of numbers
    ./tokenize_gpt2 serve                                 # many texts, for a program: see serve()

Any bytes are encoded, also such as are not UTF-8, and decode to themselves, but a byte order mark is dropped. Texts of any
length pass in pieces; what needs memory is a word without end, and four bytes a token of a token file, until its size is
known. Files appear whole or not at all.
*/
#include <inttypes.h>

#include "llmc/base/atomic_file.h"
#include "llmc/base/checked_file.h"
#include "llmc/base/cli.h"
#include "llmc/base/cpu_check.h"
#include "llmc/files/dataloader.h" // the magic numbers of token files
#include "llmc/base/process_start.h"
#include "llmc/base/signals.h"
#include "llmc/text/tokenizer.h"

#define CLI_MODEL ""
// clang-format off
#define TOKENIZE_FLAGS(X, G)                                                                                           \
    G(tokenizer, "Flags")                                                                                              \
    X(tokenizer, NULL, "--tokenizer", text, "gpt2_tokenizer.bin", 0, 0, NULL, FOR_BOTH, FREE,                          \
      "a tokenizer file, a folder with tokenizer.json, or vocab.json and merges.txt, or the word bytes: each byte is a token")            \
    X(output, "-o", "--output", text, NULL, 0, 0, NULL, FOR_BOTH, FREE,                                                \
      "a file instead of standard output; encode writes a token file where its name ends in .bin, else numbers")       \
    X(endoftext, NULL, "--endoftext", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                           \
      "encode: <|endoftext|> before each text; decode: leave it out")                                                  \
    X(allow_special, NULL, "--allow-special", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                   \
      "encode: <|endoftext|> in a text is the token; without it, it is text like any other")                           \
    X(broken_utf8, NULL, "--broken-utf8", text, "keep", 0, 0, "keep|replace|refuse", FOR_BOTH, FREE,                   \
      "encode: what becomes of bytes that are not UTF-8; replace puts U+FFFD, as Python and tiktoken do")
// clang-format on
CLI_DECLARE(TOKENIZE_FLAGS, "tokenize_gpt2", "", "", "encode a.txt b.txt --endoftext --output tokens.bin")

enum { BUFFER_BYTES = 1 << 20 };

// ----------------------------------------------------------------------------
// Where bytes go: standard output, or a file that appears when it is whole

typedef struct {
    int is_file;
    AtomicFile file;
} Output;

static void output_open(Output* o, const char* path) {
    o->is_file = path != NULL;
    if (!o->is_file) { return; }
    check(atomic_check(path));
    check(atomic_open(&o->file, path));
}

static void output_write(Output* o, const void* data, size_t bytes) {
    if (o->is_file) {
        check(atomic_write(&o->file, data, bytes));
    } else if (fwrite(data, 1, bytes, stdout) != bytes) {
        fatal("cannot write standard output: %s", strerror(errno));
    }
}

static void output_close(Output* o) {
    if (o->is_file) {
        check(atomic_commit(&o->file));
    } else if (fflush(stdout) != 0) {
        fatal("cannot write standard output: %s", strerror(errno));
    }
}

// ----------------------------------------------------------------------------
// Where bytes come from

typedef struct {
    FILE* file;
    const char* name;
} Input;

static Input input_open(const char* path) {
    struct stat st;
    if (path == NULL || strcmp(path, "-") == 0) { return (Input){stdin, "standard input"}; }
    Input input = {fopen_check(path, "rb"), path};
    if (fstat(fileno(input.file), &st) == 0 && S_ISDIR(st.st_mode)) {
        fatal("%s is a folder; name files, or let dev/data/text.py read it", path);
    }
    return input;
}

// Reads up to `bytes`; fewer only at the end.
static size_t input_read(Input* in, void* data, size_t bytes) {
    size_t n = fread(data, 1, bytes, in->file);
    if (n < bytes && ferror(in->file)) { fatal("cannot read %s: %s", in->name, strerror(errno)); }
    return n;
}

static void input_close(Input* in) {
    if (in->file != stdin) { fclose(in->file); }
}

// ----------------------------------------------------------------------------
// Encoding

// Bytes that wait to be encoded
typedef struct {
    char* data;
    size_t count, capacity;
} Text;

// Makes room for so many more bytes; it doubles, so that a word of any length is copied in linear time.
static char* text_reserve(Text* t, size_t more) {
    if (t->capacity - t->count < more) {
        t->capacity = 2 * t->capacity + more;
        t->data = (char*)realloc(t->data, t->capacity);
        if (t->data == NULL) { fatal("out of memory: %zu bytes without a point to cut at", t->capacity); }
    }
    return t->data + t->count;
}

typedef struct {
    const Options* options;
    Tokenizer tokenizer;
    TokenList ids; // those that are not written yet
    Output output;
    int is_token_file;
    uint64_t numbers; // that are written
    uint64_t met;     // <|endoftext|> in the texts
    size_t begun;     // bytes of one at the end of what has been read
} Encoder;

// Appends the bytes to the text with what is no UTF-8 replaced, a sequence that begins well and breaks off by one character.
// Returns how many bytes are done; up to three at the end wait for what follows, unless it is the end.
static size_t append_replaced(Text* out, const unsigned char* s, size_t n, int is_end) {
    char* to = text_reserve(out, 3 * n);
    size_t at = 0;
    while (at < n) {
        int left = n - at < 4 ? (int)(n - at) : 4, good = 1;
        size_t length = utf8_character((const char*)s + at, n - at);
        while (length == 0 && good <= left && utf8_length(s + at, good) > 0) { good++; } // it is broken at `good`
        if (length == 0 && good > left && !is_end) { break; }
        memcpy(to, length > 0 ? (const char*)s + at : "\xef\xbf\xbd", length > 0 ? length : 3);
        to += length > 0 ? length : 3;
        at += length > 0 ? length : good > 1 ? (size_t)good - 1 : 1;
    }
    out->count = (size_t)(to - out->data);
    return at;
}

// Ends the program with one line if the bytes, which begin at `offset` of the input, are not UTF-8. Returns as append_replaced.
static size_t check_utf8(const Input* in, uint64_t offset, const unsigned char* s, size_t n, int is_end) {
    size_t at = 0;
    while (at < n) {
        size_t length = utf8_character((const char*)s + at, n - at);
        int left = n - at < 4 ? (int)(n - at) : 4;
        if (length == 0 && !is_end && left < 4 && utf8_length(s + at, left) > 0) { break; }
        if (length == 0) {
            fatal("%s: byte %" PRIu64
                  " (0x%02x) is not UTF-8; convert the text, or let --broken-utf8 keep or replace it",
                  in->name, offset + at, (unsigned)s[at]);
        }
        at += length;
    }
    return at;
}

// Writes the ids as numbers, sixteen a line, and forgets them.
static void write_numbers(Encoder* e) {
    char text[1 << 13];
    size_t n = 0;
    for (size_t i = 0; i < e->ids.count; i++) {
        char digits[12] = {0};
        int length = 0;
        if (e->numbers > 0) { text[n++] = e->numbers % 16 == 0 ? '\n' : ' '; }
        for (int id = e->ids.ids[i]; id > 0 || length == 0; id /= 10) { digits[length++] = (char)('0' + id % 10); }
        while (length > 0) { text[n++] = digits[--length]; }
        e->numbers++;
        if (n > sizeof(text) - 16) {
            output_write(&e->output, text, n);
            n = 0;
        }
    }
    output_write(&e->output, text, n);
    e->ids.count = 0;
}

// Counts <|endoftext|> in bytes that follow those before. Its first character is in it only once.
static void count_endoftext(Encoder* e, const unsigned char* s, size_t n) {
    size_t length;
    const unsigned char* name = tokenizer_decode(&e->tokenizer, e->tokenizer.eot_token, &length);
    for (size_t i = 0; i < n; i++) {
        e->begun = s[i] == name[e->begun] ? e->begun + 1 : s[i] == name[0];
        if (e->begun < length) { continue; }
        e->met++;
        e->begun = 0;
    }
}

// Encodes the beginning of the text that is certain, at the end all, and keeps the rest.
static void encode_text(Encoder* e, Text* text, int is_end) {
    size_t used = 0;
    check((e->options->allow_special ? tokenizer_encode_special_part : tokenizer_encode_part)(
        &e->tokenizer, text->data, text->count, is_end, &e->ids, &used));
    memmove(text->data, text->data + used, text->count - used);
    text->count -= used;
    if (!e->is_token_file) { write_numbers(e); }
}

static void encode_input(Encoder* e, Input* in) {
    static unsigned char raw[BUFFER_BYTES + 4];
    const char* broken = e->options->broken_utf8;
    Text text = {0};
    size_t waiting = 0, enough = 0; // bytes of `raw` that begin a character; bytes of text that are worth a trial
    uint64_t offset = 0;
    for (int is_end = 0; !is_end;) {
        size_t n = input_read(in, raw + waiting, BUFFER_BYTES);
        is_end = n < BUFFER_BYTES;
        size_t mark = offset == 0 && waiting == 0 ? utf8_mark(raw, n) : 0;
        if (mark > 0) {
            note_mark_dropped(in->name);
            memmove(raw, raw + mark, n -= mark);
            offset = mark;
        }
        count_endoftext(e, raw + waiting, n);
        n += waiting;
        size_t used = n;
        if (strcmp(broken, "replace") == 0) {
            used = append_replaced(&text, raw, n, is_end);
        } else {
            if (strcmp(broken, "refuse") == 0) { used = check_utf8(in, offset, raw, n, is_end); }
            memcpy(text_reserve(&text, used + 1), raw, used);
            text.count += used;
        }
        waiting = n - used;
        memmove(raw, raw + used, waiting);
        offset += used;
        if (text.count < enough && !is_end) { continue; }
        encode_text(e, &text, is_end);
        enough = 2 * text.count; // rescan an unfinished word only when it has doubled
    }
    free(text.data);
}

// Ids as a token file holds them: uint16, or uint32 where the vocabulary does not fit; in place. Returns the bytes.
static size_t pack_ids(TokenList* ids, int vocab_size) {
    if (vocab_size > 1 << 16) { return ids->count * sizeof(uint32_t); }
    unsigned char* packed = (unsigned char*)ids->ids;
    for (size_t i = 0; i < ids->count; i++) {
        uint16_t id = (uint16_t)ids->ids[i];
        memcpy(packed + 2 * i, &id, sizeof(id));
    }
    return ids->count * sizeof(uint16_t);
}

static void write_token_file(Encoder* e, const char* path) {
    int vocab_size = e->tokenizer.vocab_size, wide = vocab_size > 1 << 16;
    if (e->ids.count == 0) { fatal("%s would hold no tokens: the text is empty", path); }
    if (e->ids.count > INT32_MAX) {
        fatal("%s would hold %zu tokens, and a file holds fewer than 2^31; dev/data/text.py writes several", path,
              e->ids.count);
    }
    int32_t header[HEADER_INTS] = {wide ? TOKENS_MAGIC_32 : TOKENS_MAGIC_16,
                                   wide ? TOKENS_VERSION_32 : TOKENS_VERSION_16, (int32_t)e->ids.count, vocab_size};
    CheckedWriter file;
    size_t bytes = pack_ids(&e->ids, vocab_size);
    check(checked_create(&file, path, header, bytes));
    check(checked_write(&file, e->ids.ids, bytes));
    check(checked_commit(&file));
    printf("%s: %d tokens\n", path, header[2]);
}

// `files` (count) are texts; where there are none, standard input is one.
static void encode(Encoder* e, char** files, int count) {
    const char* path = e->options->output;
    e->is_token_file = path != NULL && ends_with(path, ".bin");
    output_open(&e->output, e->is_token_file ? NULL : path);
    if (e->is_token_file) { check(atomic_check(path)); } // it is written when all tokens are known
    for (int i = 0; i < (count > 0 ? count : 1); i++) {
        Input in = input_open(count > 0 ? files[i] : NULL);
        if (e->options->endoftext) {
            token_list_reserve(&e->ids, 1);
            e->ids.ids[e->ids.count++] = e->tokenizer.eot_token;
        }
        e->begun = 0;
        encode_input(e, &in);
        input_close(&in);
    }
    if (e->met > 0 && !e->options->allow_special && e->tokenizer.special.count > 0) {
        fprintf(stderr,
                "note: <|endoftext|> occurs %" PRIu64 " time%s, encoded as text; --allow-special makes it the token\n",
                e->met, e->met == 1 ? "" : "s");
    }
    if (e->is_token_file) { write_token_file(e, path); }
    if (e->numbers > 0) { output_write(&e->output, "\n", 1); }
    output_close(&e->output);
}

// ----------------------------------------------------------------------------
// Decoding

static void decode_id(Encoder* e, const Input* in, uint64_t id, uint64_t index) {
    size_t length;
    const unsigned char* bytes =
        id < (uint64_t)e->tokenizer.vocab_size ? tokenizer_decode(&e->tokenizer, (int)id, &length) : NULL;
    if (bytes == NULL) {
        fatal("%s: token %" PRIu64 ", number %" PRIu64 " from 0 on, is not in the vocabulary of %d tokens", in->name,
              id, index, e->tokenizer.vocab_size);
    }
    if (e->options->endoftext && (int)id == e->tokenizer.eot_token) { return; }
    output_write(&e->output, bytes, length);
}

// A token file; it is closed before its last bytes have been verified only where that ends the program.
static void decode_token_file(Encoder* e, const Input* in) {
    static unsigned char body[BUFFER_BYTES];
    CheckedReader file;
    check(checked_open_either(&file, in->name, TOKENS_MAGIC_16, TOKENS_MAGIC_32, "token file"));
    size_t width = file.header[0] == TOKENS_MAGIC_32 ? 4 : 2, count = (size_t)file.header[2];
    if (file.header[1] != (width == 4 ? TOKENS_VERSION_32 : TOKENS_VERSION_16)) {
        fatal("%s: version %d of token files is not supported", in->name, (int)file.header[1]);
    }
    if (file.header[2] < 0 || file.body_bytes != count * width) {
        fatal("%s holds %zu bytes of tokens, its header says %d tokens; it is corrupt", in->name, file.body_bytes,
              (int)file.header[2]);
    }
    if (file.header[3] != 0 && file.header[3] != e->tokenizer.vocab_size) {
        fatal("%s is of a vocabulary of %d tokens, the tokenizer has %d; --tokenizer names another", in->name,
              (int)file.header[3], e->tokenizer.vocab_size);
    }
    for (size_t at = 0; at < count;) {
        size_t n = count - at < BUFFER_BYTES / width ? count - at : BUFFER_BYTES / width;
        check(checked_read(&file, body, n * width));
        for (size_t i = 0; i < n; i++) {
            uint32_t id = 0; // little-endian, as the files are
            memcpy(&id, body + i * width, width);
            decode_id(e, in, id, at + i);
        }
        at += n;
    }
    checked_close(&file);
}

// Numbers, with white space between them
static void decode_numbers(Encoder* e, Input* in) {
    static unsigned char text[BUFFER_BYTES];
    uint64_t id = 0, index = 0, offset = 0;
    int digits = 0;
    for (size_t n = 1; n > 0; offset += n) {
        n = input_read(in, text, BUFFER_BYTES);
        for (size_t i = 0; i < n; i++) {
            int is_space = text[i] == ' ' || (text[i] >= '\t' && text[i] <= '\r');
            if (text[i] >= '0' && text[i] <= '9' && digits < 10) {
                id = 10 * id + (uint64_t)(text[i] - '0');
                digits++;
            } else if (!is_space) {
                fatal("%s: byte %" PRIu64 " is no digit of a token; decode reads numbers with white space between "
                      "them, and token files by their names",
                      in->name, offset + i);
            } else if (digits > 0) {
                decode_id(e, in, id, index++);
                id = 0, digits = 0;
            }
        }
    }
    if (digits > 0) { decode_id(e, in, id, index); }
}

// 1 if the input is a token file. A pipe, of which nothing can be read twice, is none.
static int is_token_file(Input* in) {
    struct stat st;
    int32_t magic = 0;
    if (in->file == stdin || fstat(fileno(in->file), &st) != 0 || !S_ISREG(st.st_mode)) { return 0; }
    int has_magic = fread(&magic, sizeof(magic), 1, in->file) == 1;
    rewind(in->file);
    return has_magic && (magic == TOKENS_MAGIC_16 || magic == TOKENS_MAGIC_32);
}

static void decode(Encoder* e, char** files, int count) {
    output_open(&e->output, e->options->output);
    for (int i = 0; i < (count > 0 ? count : 1); i++) {
        Input in = input_open(count > 0 ? files[i] : NULL);
        if (is_token_file(&in)) {
            decode_token_file(e, &in);
        } else {
            decode_numbers(e, &in);
        }
        input_close(&in);
    }
    output_close(&e->output);
}

// ----------------------------------------------------------------------------
// For a program at the other ends of the pipes, such as dev/data/data_common.py. It writes a text's bytes as uint32, then
// the text; it gets the number of tokens as uint32, then the tokens as a token file holds them. And so on, until it closes
// the pipe; signals to a group of processes do not end the service earlier. The numbers are this machine's.

static void serve(Encoder* e) {
    Input in = {stdin, "standard input"};
    uint32_t bytes, count;
    Text text = {0};
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    output_open(&e->output, NULL);
    for (size_t n; (n = input_read(&in, &bytes, sizeof(bytes))) > 0;) {
        text.count = 0;
        char* data = text_reserve(&text, (size_t)bytes + 1);
        if (n < sizeof(bytes) || input_read(&in, data, bytes) < bytes) { fatal("standard input ends inside a text"); }
        e->ids.count = 0;
        check(tokenizer_encode(&e->tokenizer, data, bytes, &e->ids));
        count = (uint32_t)e->ids.count;
        output_write(&e->output, &count, sizeof(count));
        output_write(&e->output, e->ids.ids, pack_ids(&e->ids, e->tokenizer.vocab_size));
        output_close(&e->output);
    }
    free(text.data);
}

// ----------------------------------------------------------------------------

static void load_tokenizer(Tokenizer* t, const char* path) {
    int is_bytes = strcmp(path, "bytes") == 0;
    if (!is_bytes && file_missing(path)) {
        fatal("there is no tokenizer %s: python3 dev/data/tokenizer.py writes GPT-2's; --tokenizer names another",
              path);
    }
    tokenizer_load(t, path, is_bytes ? BYTE_VOCAB_SIZE : 0);
    check(tokenizer_prepare_encode(t));
}

// Ends the program with one line if --output is one of the files that are read, or the tokenizer, whatever its name is there.
static void check_output(const Options* o, char** files, int count) {
    struct stat out, in;
    if (o->output == NULL || stat(o->output, &out) != 0) { return; }
    for (int i = -1; i < (count > 0 ? count : 1); i++) {
        const char* name = i < 0 ? o->tokenizer : count > 0 ? files[i] : "-";
        int is_stdin = i >= 0 && strcmp(name, "-") == 0;
        if ((is_stdin ? fstat(STDIN_FILENO, &in) : stat(name, &in)) != 0) { continue; }
        if (in.st_dev != out.st_dev || in.st_ino != out.st_ino) { continue; }
        fatal("--output %s is %s, which is read; name another file", o->output, is_stdin ? "standard input" : name);
    }
}

// Parts a command line's flags, with their values, from its files; argv[0] stays with the flags. Both arrays have argc + 1
// entries. Returns how many flags and values there are.
static int part_arguments(int argc, char** argv, char** flags, char** files, int* num_files) {
    int n = 0;
    for (int i = 0; i < argc; i++) {
        const char* next = i + 1 < argc ? argv[i + 1] : "";
        if (i > 0 && (argv[i][0] != '-' || argv[i][1] == '\0')) {
            files[(*num_files)++] = argv[i];
            continue;
        }
        flags[n++] = argv[i];
        int is_toggle = strcmp(argv[i], "--endoftext") == 0 || strcmp(argv[i], "--allow-special") == 0;
        int has_value = is_toggle ? strcmp(next, "0") == 0 || strcmp(next, "1") == 0 : strchr(argv[i], '=') == NULL;
        if (i > 0 && has_value && i + 1 < argc) { flags[n++] = argv[++i]; }
    }
    flags[n] = NULL;
    return n;
}

int main(int argc, char** argv) {
    process_start(argv);
    atexit(temporary_unlink_all); // fatal() leaves nothing half written
    signals_install_quit();
    const char* command = argc < 2 ? "nothing" : argv[1];
    int is_encode = strcmp(command, "encode") == 0, is_decode = strcmp(command, "decode") == 0, num_files = 0;
    if (strcmp(command, "--help") == 0) {
        printf("./tokenize_gpt2 encode|decode [FILE]... [flag value]...    without a FILE: standard input\n\n");
    } else if (is_encode || is_decode || strcmp(command, "serve") == 0) {
        argc--, argv++;
    } else if (strcmp(command, "--version") != 0) {
        fatal("%s: encode, decode or serve was expected; ./tokenize_gpt2 --help says more", command);
    }
    char** flags = (char**)calloc_check((size_t)argc + 1, sizeof(char*));
    char** files = (char**)calloc_check((size_t)argc + 1, sizeof(char*));
    Options options = cli_parse(part_arguments(argc, argv, flags, files, &num_files), flags);
    Encoder e = {.options = &options};
    check_output(&options, files, num_files);
    load_tokenizer(&e.tokenizer, options.tokenizer);
    if (options.allow_special && e.tokenizer.special.count == 0) {
        fatal("--allow-special: where tokens are bytes, <|endoftext|> is none");
    }
    if (is_encode) {
        encode(&e, files, num_files);
    } else if (is_decode) {
        decode(&e, files, num_files);
    } else {
        serve(&e);
    }
    token_list_free(&e.ids);
    tokenizer_free(&e.tokenizer);
    free(flags);
    free(files);
    return EXIT_SUCCESS;
}
