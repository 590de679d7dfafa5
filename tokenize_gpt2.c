/*
Text to token ids and back.

    ./tokenize_gpt2 encode < text > ids                   # numbers, with spaces between them
    ./tokenize_gpt2 encode a.txt b.txt --output x.bin     # a token file for the trainers; --endoftext 1 leads each text
    ./tokenize_gpt2 decode x.bin > text                   # the reverse, of token files and of numbers
    ./tokenize_gpt2 serve                                 # many texts, for a program: see serve()

Any bytes are encoded, also such as are not UTF-8, and decode to themselves, but a byte order mark is dropped. Memory is needed
for a text, and for four bytes a token. Files appear whole or not at all.
*/
#include <inttypes.h>

#include "llmc/base/atomic_file.h"
#include "llmc/base/cli.h"
#include "llmc/base/process_start.h"
#include "llmc/base/signals.h"
#include "llmc/files/dataloader.h" // token files
#include "llmc/text/stream.h"
#include "llmc/text/tokenizer.h"

#define CLI_MODEL ""
// clang-format off
#define TOKENIZE_FLAGS(X, G)                                                                                           \
    G(tokenizer, "Flags")                                                                                              \
    X(tokenizer, NULL, "--tokenizer", text, "gpt2_tokenizer.bin", 0, 0, NULL, FOR_BOTH, FREE,                          \
      "a tokenizer file, a folder with tokenizer.json, or vocab.json and merges.txt, or the word bytes: each byte is a token")            \
    X(output, "-o", "--output", text, NULL, 0, 0, NULL, FOR_BOTH, FREE,                                                \
      "a file, replaced if it exists, instead of standard output; encode writes a token file where its name ends in .bin, else numbers") \
    X(endoftext, NULL, "--endoftext", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                           \
      "encode: <|endoftext|> before each text; decode: leave it out")                                                  \
    X(allow_special, NULL, "--allow-special", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                   \
      "encode: <|endoftext|> in a text is the token; without it, it is text like any other")
// clang-format on
CLI_DECLARE(TOKENIZE_FLAGS, "tokenize_gpt2", "", "", "encode a.txt b.txt --endoftext --output tokens.bin")

enum { BUFFER_BYTES = 1 << 20 };

// ----------------------------------------------------------------------------
// Where bytes go: standard output, or a file that appears when it is whole

typedef struct {
    FILE* out;
    const char* name;
    AtomicFile file; // where `out` is not standard output
} Output;

static void output_open(Output* o, const char* path) {
    o->out = stdout, o->name = "standard output";
    if (path == NULL) { return; }
    check(atomic_check(path));
    check(atomic_open(&o->file, path));
    o->out = o->file.file, o->name = o->file.temporary;
}

static void output_check(const Output* o, int ok) {
    if (!ok) { fatal("cannot write %s: %s", o->name, strerror(errno)); }
}

static void output_write(Output* o, const void* data, size_t bytes) {
    output_check(o, fwrite(data, 1, bytes, o->out) == bytes);
}

static void output_close(Output* o) {
    output_check(o, fflush(o->out) == 0);
    if (o->out != stdout) { check(atomic_commit(&o->file)); }
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

typedef struct {
    const Options* options;
    Tokenizer tokenizer;
    TokenList ids; // those that are not written yet
    Output output;
    int is_token_file;
    uint64_t numbers; // that are written
    int met;          // 1: <|endoftext|> is in the texts
} Encoder;

// Writes the ids as numbers, sixteen a line, and forgets them.
static void write_numbers(Encoder* e) {
    FILE* out = e->output.out;
    for (size_t i = 0; i < e->ids.count; i++, e->numbers++) {
        fprintf(out, "%s%d", e->numbers == 0 ? "" : e->numbers % 16 == 0 ? "\n" : " ", e->ids.ids[i]);
    }
    output_check(&e->output, !ferror(out));
    e->ids.count = 0;
}

static void encode_input(Encoder* e, const Input* in) {
    TextBuffer text = {NULL, 0, 0};
    size_t length;
    const unsigned char* name = tokenizer_decode(&e->tokenizer, e->tokenizer.eot_token, &length);
    text_read(&text, in->file, in->name);
    const char* bytes = (const char*)text.bytes;
    e->met = e->met || memmem(bytes, text.count, name, length) != NULL;
    check((e->options->allow_special ? tokenizer_encode_prompt : tokenizer_encode)(&e->tokenizer, bytes, text.count,
                                                                                   &e->ids));
    text_free(&text);
    if (!e->is_token_file) { write_numbers(e); }
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
        encode_input(e, &in);
        input_close(&in);
    }
    if (e->met && !e->options->allow_special && e->tokenizer.special.count > 0) {
        print_note("<|endoftext|> occurs, encoded as text; --allow-special makes it the token");
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
    static int ids[BUFFER_BYTES / 2];
    CheckedReader file;
    TokenFile t;
    check(token_file_begin(&t, &file, in->name));
    if (t.vocab_size != 0 && t.vocab_size != e->tokenizer.vocab_size) {
        fatal("%s is of a vocabulary of %d tokens, the tokenizer has %d; --tokenizer names another", in->name,
              t.vocab_size, e->tokenizer.vocab_size);
    }
    for (size_t at = 0, n; at < t.num_tokens; at += n) {
        n = t.num_tokens - at < BUFFER_BYTES / t.token_bytes ? t.num_tokens - at : BUFFER_BYTES / t.token_bytes;
        check(checked_read(&file, body, n * t.token_bytes));
        token_file_cast(ids, body, &t, n, UINT32_MAX);
        for (size_t i = 0; i < n; i++) { decode_id(e, in, (uint32_t)ids[i], at + i); }
    }
    checked_close(&file);
}

// Numbers, with white space between them
static void decode_numbers(Encoder* e, Input* in) {
    char digits[20]; // more are no token
    uint64_t index = 0;
    int found;
    for (; (found = fscanf(in->file, " %19[0-9]", digits)) == 1; index++) {
        decode_id(e, in, strtoull(digits, NULL, 10), index);
    }
    if (ferror(in->file)) { fatal("cannot read %s: %s", in->name, strerror(errno)); }
    if (found != EOF) {
        fatal("%s: expected a number after %" PRIu64
              " tokens; decode reads token files that are named, and numbers between white space",
              in->name, index);
    }
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
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    output_open(&e->output, NULL);
    for (size_t n; (n = input_read(&in, &bytes, sizeof(bytes))) > 0;) {
        char* data = (char*)malloc_check((size_t)bytes);
        if (n < sizeof(bytes) || input_read(&in, data, bytes) < bytes) { fatal("standard input ends inside a text"); }
        e->ids.count = 0;
        check(tokenizer_encode(&e->tokenizer, data, bytes, &e->ids));
        free(data);
        count = (uint32_t)e->ids.count;
        output_write(&e->output, &count, sizeof(count));
        output_write(&e->output, e->ids.ids, pack_ids(&e->ids, e->tokenizer.vocab_size));
        output_close(&e->output);
    }
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
    for (int i = -1; o->output != NULL && i < (count > 0 ? count : 1); i++) {
        const char* name = i < 0 ? o->tokenizer : count > 0 ? files[i] : "-";
        int is_stdin = i >= 0 && strcmp(name, "-") == 0;
        if (stat(o->output, &out) != 0 || (is_stdin ? fstat(STDIN_FILENO, &in) : stat(name, &in)) != 0) { continue; }
        if (in.st_dev != out.st_dev || in.st_ino != out.st_ino) { continue; }
        fatal("--output %s is %s, which is read; name another file", o->output, is_stdin ? "standard input" : name);
    }
}

int main(int argc, char** argv) {
    process_start(argv);
    atexit(temporary_unlink_all); // fatal() leaves nothing half written
    signals_install_quit();
    const char* command = argc < 2 ? "no command" : argv[1];
    int is_encode = strcmp(command, "encode") == 0, is_decode = strcmp(command, "decode") == 0, num_files = 0;
    if (strcmp(command, "--help") == 0) {
        printf("./tokenize_gpt2 encode|decode [FILE]... [flag value]...    without a FILE: standard input\n\n");
    } else if (is_encode || is_decode || strcmp(command, "serve") == 0) {
        argc--, argv++;
    } else if (strcmp(command, "--version") != 0) {
        fatal("%s: encode or decode was expected; ./tokenize_gpt2 --help says more", command);
    }
    char** files = argv + 1; // those before the first flag
    while (num_files + 1 < argc && (files[num_files][0] != '-' || files[num_files][1] == '\0')) { num_files++; }
    Options options = cli_parse(argc - num_files, argv + num_files);
    Encoder e = {.options = &options};
    check_output(&options, files, num_files);
    load_tokenizer(&e.tokenizer, options.tokenizer);
    if (options.allow_special && e.tokenizer.special.count == 0) {
        fatal("--allow-special: where tokens are bytes, <|endoftext|> is none");
    }
    if (is_decode && options.endoftext && e.tokenizer.special.count == 0) {
        fatal("--endoftext: where tokens are bytes, a newline is it, of which texts have their own; leave it out");
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
    return EXIT_SUCCESS;
}
