/*
Fuzzing: damaged files of every format, model descriptors and command lines, given to their readers. Whatever the bytes,
a reader accepts them and its result can be used, or it ends with one line that names the file. A crash, a report of a
sanitizer, a second line, memory out of proportion to the file, or ten seconds without an end is a fault; so is a file with
checksums that is accepted with a flipped bit.

    fuzz                    the corpus, flipped bits, then new inputs for FUZZ_SECONDS (60) or FUZZ_INPUTS of each format
    fuzz flips              the flipped bits alone
    fuzz FORMAT             one format
    fuzz FORMAT INPUT...    single inputs: a file, or the number that a fault was reported with
    fuzz seeds FOLDER       writes the inputs that the others are made from, for other fuzzers

Inputs are made from sound ones, by a generator that depends on the format and the input's number alone. The corpus,
dev/test/files/fuzz_corpus.txt, lists as text those that found a fault. With -DFUZZ_LIBFUZZER it is a target of libFuzzer.
*/
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <float.h>
#include <glob.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ----------------------------------------------------------------------------
// What the readers call instead of the C library: exit() comes back to the driver, which then frees and closes what the
// reader left.

enum { LARGEST_INPUT = 1 << 19, MAX_LEFT = 256 };
#ifndef FUZZ_MEMORY
#define FUZZ_MEMORY (64 << 10) // what a reader may ask for beside eight times its input
#endif

static jmp_buf fuzz_back;
static int fuzz_reading;          // 1 while a reader runs
static void* fuzz_left[MAX_LEFT]; // memory and files that it holds; NULL: a free place
static int fuzz_is_file[MAX_LEFT];
static size_t fuzz_asked;   // bytes of memory that it has asked for
static size_t fuzz_allowed; // and may ask for
static FILE *fuzz_stderr, *fuzz_stdout;
static char fuzz_message[8192]; // what it wrote on stderr
static char fuzz_folder[256];

static void fuzz_fault(const char* what) {
    dprintf(STDERR_FILENO, "fuzz: %s\n", what);
    abort();
}

static void* fuzz_keep(void* p, int is_file) {
    for (int i = 0; p != NULL && i < MAX_LEFT; i++) {
        if (fuzz_left[i] == NULL) {
            fuzz_left[i] = p, fuzz_is_file[i] = is_file;
            return p;
        }
    }
    if (p != NULL) { fuzz_fault("a reader holds more files and memory than the driver has places for"); }
    return NULL;
}

static void fuzz_forget(const void* p) {
    for (int i = 0; p != NULL && i < MAX_LEFT; i++) {
        if (fuzz_left[i] == p) {
            fuzz_left[i] = NULL;
            return;
        }
    }
}

static _Noreturn void fuzz_exit(int code) {
    if (!fuzz_reading) { (exit)(code); }
    longjmp(fuzz_back, code == 0 ? 2 : 1);
}

static void* fuzz_malloc(size_t bytes) {
    fuzz_asked = bytes > SIZE_MAX - fuzz_asked ? SIZE_MAX : fuzz_asked + bytes;
    if (fuzz_reading && fuzz_asked > fuzz_allowed) {
        fuzz_fault("a reader asks for more memory than its input explains");
    }
    return fuzz_reading ? fuzz_keep((malloc)(bytes), 0) : (malloc)(bytes);
}

static void* fuzz_calloc(size_t count, size_t size) {
    if (size != 0 && count > SIZE_MAX / size) { return NULL; }
    void* p = fuzz_malloc(count * size);
    return p == NULL ? NULL : memset(p, 0, count * size);
}

static void fuzz_free(void* p) {
    fuzz_forget(p);
    (free)(p);
}

static FILE* fuzz_fopen(const char* path, const char* mode) {
    FILE* file = (fopen)(path, mode);
    return fuzz_reading ? (FILE*)fuzz_keep(file, 1) : file;
}

static int fuzz_fclose(FILE* file) {
    fuzz_forget(file);
    return (fclose)(file);
}

static ssize_t fuzz_write_bytes(int fd, const void* bytes, size_t count) {
    if (fd != STDERR_FILENO) { return (write)(fd, bytes, count); }
    return (ssize_t)fwrite(bytes, 1, count, fuzz_stderr);
}

#undef stderr
#undef stdout
#define stderr fuzz_stderr
#define stdout fuzz_stdout
#define exit(code) fuzz_exit(code)
#define malloc(bytes) fuzz_malloc(bytes)
#define calloc(count, size) fuzz_calloc(count, size)
#define free(p) fuzz_free(p)
#define fopen(path, mode) fuzz_fopen(path, mode)
#define fclose(file) fuzz_fclose(file)
#define write(fd, bytes, count) fuzz_write_bytes(fd, bytes, count)

#include "llmc/checkpoint/checkpoint.h"
#include "llmc/run/flags.h"
#include "dev/test/fixtures/debug_state.h"
#include "llmc/files/evalloader.h"
#include "llmc/text/tokenizer.h"
#include "llmc/run/trainer.h"
#include "llmc/files/weights_file.h"

#undef exit
#undef malloc
#undef calloc
#undef free
#undef fopen
#undef fclose
#undef write
#undef stderr
#undef stdout

#include "dev/test/fixtures/model_stub.h"

// ----------------------------------------------------------------------------
// The formats: how a sound input is written, and how one is read and used

enum { SMALL_V = 12, STEP = 12, STATE_NUMBERS = 16 };
static const GPT2Config small_config = {4, SMALL_V, 128, 1, 1, 32, 0};
static const HostAlloc ordinary_memory = {NULL, NULL};

// How an input is changed
typedef enum {
    OF_WORDS,
    OF_TEXT /* likewise, without checksums */,
    OF_JSON,
    OF_JSON_HEADER /* a length, JSON, and data */
} Kind;

typedef struct {
    const char* name;
    const char* file;                          // in the driver's folder; NULL: the input is a text
    int seeds;                                 // sound inputs, by number
    void (*write)(int seed, const char* path); // writes one
    void (*read)(const char* path);            // reads and uses one
    const char* texts[12];                     // the sound inputs, where they are texts
    Kind kind;
} Format;

// The path of a file in the driver's folder; it stays good for seven more calls.
static const char* in_folder(const char* name) {
    static char paths[8][512];
    static int next;
    char* path = paths[next++ % 8];
    snprintf(path, sizeof(paths[0]), "%s/%s", fuzz_folder, name);
    return path;
}

// (Not O_TRUNC: some file systems bring a file that was emptied and written again to the disk at once.)
static void write_input(const char* path, const uint8_t* data, size_t size) {
    int fd = open(path, O_WRONLY | O_CREAT, 0644);
    if (fd < 0 || write(fd, data, size) != (ssize_t)size || ftruncate(fd, (off_t)size) != 0 || close(fd) != 0) {
        fprintf(stderr, "fuzz: cannot write %s: %s\n", path, strerror(errno));
        _exit(3);
    }
}

static void write_format(const char* path, const int32_t* numbers, int n, const void* body, size_t bytes) {
    int32_t header[HEADER_INTS] = {0};
    memcpy(header, numbers, (size_t)n * sizeof(int32_t));
    FILE* file = fopen_check(path, "wb");
    fwrite_check(header, sizeof(header), 1, file, path);
    fwrite_check(body, 1, bytes, file, path);
    fclose(file);
}

// n numbers in every block; the training precision is fp32
static GPT2 make_model(float* numbers, size_t n, int master_weights) {
    GPT2 model;
    memset(&model, 0, sizeof(model));
    model.info.config = small_config;
    model.info.num_parameters = n;
    model.info.weight_bytes = sizeof(float);
    model.info.B = 2, model.info.T = 4;
    for (int i = 0; i < GPT2_MASTER_WEIGHTS + master_weights; i++) { model.blocks[i] = numbers; }
    return model;
}

// Models: fp32 as a run writes it, bf16 without step and digest
static void write_model(int seed, const char* path) {
    static float params[LARGEST_INPUT / 4];
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t n = gpt2_parameters(table, small_config);
    for (size_t i = 0; i < n; i++) { params[i] = (float)i / 64.0f; }
    if (seed == 0) {
        check(model_file_write(path, small_config, MODEL_VERSION_FP32, STEP, params));
        return;
    }
    int32_t header[HEADER_INTS];
    gpt2_model_header_words(header, small_config, MODEL_VERSION_BF16);
    write_format(path, header, HEADER_INTS, params, n * sizeof(uint16_t));
}

static void read_model(const char* path) {
    ModelHeader header;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    float *params, sum = 0.0f;
    check(gpt2_load_parameters(&params, path, &header));
    size_t n = gpt2_parameters(table, header.config);
    for (size_t i = 0; i < n; i++) { sum += params[i]; }
    if (sum == 12345.0f) { fprintf(fuzz_stdout, "%f\n", sum); }
    fuzz_free(params);
}

static void write_debug_state(int seed, const char* path) {
    static int32_t body[LARGEST_INPUT / 4];
    const float settings[6] = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    int32_t header[11] = {DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, 2, 3, seed == 0 ? 4 : 0};
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t numbers = 2 * 6 + 6 * SMALL_V + 1 + gpt2_parameters(table, small_config) + (size_t)header[4];
    memcpy(&header[5], settings, sizeof(settings));
    for (size_t i = 0; i < numbers; i++) { body[i] = (int32_t)(i % SMALL_V); }
    write_format(path, header, 11, body, 4 * numbers);
}

static void read_debug_state(const char* path) {
    DebugState s = debug_state_read(path, small_config);
    size_t tokens = (size_t)s.B * (size_t)s.T;
    float sum = s.loss;
    for (size_t i = 0; i < tokens; i++) { sum += s.logits[i * SMALL_V + (size_t)s.x[i]] + (float)s.y[i]; }
    for (int i = 0; i < s.num_losses; i++) { sum += s.losses[i]; }
    if (sum == 12345.0f) { fprintf(fuzz_stdout, "%f\n", sum); }
    fuzz_free(s.x), fuzz_free(s.y), fuzz_free(s.logits), fuzz_free(s.gradients), fuzz_free(s.losses);
}

static void write_tokens_16(int seed, const char* path) {
    const int32_t header[4] = {TOKENS_MAGIC_16, TOKENS_VERSION_16, 61, seed == 0 ? SMALL_V : 0};
    uint16_t tokens[61];
    for (int i = 0; i < 61; i++) { tokens[i] = (uint16_t)(i % SMALL_V); }
    write_format(path, header, 4, tokens, sizeof(tokens));
}

static void write_tokens_32(int seed, const char* path) {
    const int32_t header[4] = {TOKENS_MAGIC_32, TOKENS_VERSION_32, 61, seed == 0 ? 128256 : 0};
    uint32_t tokens[61];
    for (int i = 0; i < 61; i++) { tokens[i] = (uint32_t)(i * 800); }
    write_format(path, header, 4, tokens, sizeof(tokens));
}

static void open_loader(DataLoader* d, const char* path, int shuffle, int vocab_size) {
    dataloader_open(d, path, 2, 4, shuffle, 42, vocab_size, ordinary_memory);
}

static void use_batches(DataLoader* d, int n, int vocab_size) {
    const int *x, *y;
    for (int i = 0; i < n; i++) {
        check(dataloader_next(d, &x, &y));
        for (int k = 0; k < 8; k++) {
            if (x[k] < 0 || y[k] < 0 || (vocab_size > 0 && (x[k] >= vocab_size || y[k] >= vocab_size))) {
                fuzz_fault("a token outside of the vocabulary");
            }
        }
    }
}

// As the trainer does with a new model: the vocabulary comes from the file.
static void read_tokens(const char* path) {
    int vocab_size = dataloader_vocab_size(path);
    GPT2Config config = gpt2_config_from_descriptor("gpt2:l1c32h1", vocab_size ? vocab_size : 50257);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        DataLoader d;
        open_loader(&d, path, shuffle, config.vocab_size);
        use_batches(&d, 20, config.vocab_size);
        dataloader_close(&d);
    }
}

static void write_evaluation(int seed, const char* path) {
    uint16_t words[512];
    size_t at = 0;
    int examples = seed == 0 ? 3 : 1;
    for (int i = 0; i < examples; i++) {
        size_t begin = at;
        words[at] = EVAL_EXAMPLE_MARK, words[at + 2] = (uint16_t)i, words[at + 3] = (uint16_t)(i % 4),
        words[at + 4] = 4;
        at += 5;
        for (int part = 0; part <= 4; part++) {
            int n = 1 + (part + i) % 5;
            words[at++] = (uint16_t)n;
            for (int k = 0; k < n; k++) { words[at++] = (uint16_t)((part + k) % SMALL_V); }
        }
        words[begin + 1] = (uint16_t)(2 * (at - begin));
    }
    const int32_t header[4] = {EVAL_MAGIC, 1, examples, 100};
    write_format(path, header, 4, words, 2 * at);
}

static void read_evaluation(const char* path) {
    EvalLoader e;
    float losses[8 * 16] = {1.0f};
    evalloader_open(&e, path, 8, 16);
    evalloader_check_vocab(&e, SMALL_V);
    for (int i = 0; i <= e.num_batches; i++) {
        evalloader_fill(&e, i);
        int correct = evalloader_score(&e, losses);
        for (int k = 0; k < 8 * 16; k++) {
            if (e.inputs[k] < 0 || e.inputs[k] >= SMALL_V || e.targets[k] < 0 || e.targets[k] >= SMALL_V) {
                fuzz_fault("a token outside of the vocabulary");
            }
        }
        if (correct < 0 || correct > e.examples) { fuzz_fault("more right answers than examples"); }
    }
    evalloader_close(&e);
}

static void write_tokenizer(int seed, const char* path) {
    static const char body[] = "\1a\2bc\3\xe2\x82\xac\2\xe2\x82\2\xac!\1\n\4\x1b[2J\2\xff\xfe\1 \3\0xy\5hello\1z";
    const int32_t header[4] = {TOKENIZER_MAGIC, 1 + seed, SMALL_V, seed == 0 ? 0 : 3};
    write_format(path, header, 4, body, sizeof(body) - 1);
}

static void read_tokenizer(const char* path) {
    Tokenizer t;
    tokenizer_load(&t, path, SMALL_V);
    for (int i = -1; i <= 2 * SMALL_V; i++) { tokenizer_print(fuzz_stdout, &t, i <= SMALL_V ? i : i - SMALL_V); }
    tokenizer_print(fuzz_stdout, &t, t.eot_token);
    if (tokenizer_prepare_encode(&t) == STATUS_OK) { fuzz_fault("twelve tokens encode every byte"); }
    tokenizer_free(&t);
}

// A vocabulary of the bytes and a few merges, in the order of their ids: as a tokenizer file, as vocab.json, as merges.txt
enum { TEXT_V = 256 + 8 + 1 };
static const char* const merges[] = {"t h", "th e", "i n", "in g", "\xc4\xa0 the", "\xc3\xa2 \xc4\xa4", "e e", "1 1"};

static void write_text_tokenizer(int seed, const char* path) {
    (void)seed;
    static const char* const tokens[] = {"th", "the", "in", "ing", " the", "\xe2\x82", "ee", "11", "<|endoftext|>"};
    const int32_t header[4] = {TOKENIZER_MAGIC, 2, TEXT_V, TEXT_V - 1};
    char body[1024];
    size_t at = 0;
    for (int i = 0; i < TEXT_V; i++) {
        size_t n = i < 256 ? 1 : strlen(tokens[i - 256]);
        body[at++] = (char)n;
        body[at] = (char)i;
        if (i >= 256) { memcpy(body + at, tokens[i - 256], n); }
        at += n;
    }
    write_format(path, header, 4, body, at);
}

static void write_vocab(int seed, const char* path) {
    FILE* file = fopen_check(path, "wb");
    for (int i = 0; i < 256; i++) {
        char text[4];
        size_t n = utf8_encode(text, vocab_character((unsigned char)i));
        fprintf(file, i == 0 ? "{\"" : ", \"");
        if (i == '"' || i == '\\') { fputc('\\', file); }
        fprintf(file, "%.*s\": %d", (int)n, text, i);
    }
    for (int i = 0; i < 8 && seed == 0; i++) {
        size_t left = strcspn(merges[i], " ");
        fprintf(file, ", \"%.*s%s\": %d", (int)left, merges[i], merges[i] + left + 1, 256 + i);
    }
    fprintf(file, ", \"%s\": %d}\n", seed == 0 ? "<|endoftext|>" : "</s>", seed == 0 ? TEXT_V - 1 : 256);
    fclose(file);
}

// The same as tokenizer.json: merges as texts or as pairs, ids in the order of merges or not
static void write_tokenizer_json(int seed, const char* path) {
    FILE* file = fopen_check(path, "wb");
    fprintf(file, "{\"added_tokens\": [{\"id\": %d, \"content\": \"<|endoftext|>\", \"lstrip\": false}", TEXT_V - 1);
    if (seed != 0) { fprintf(file, ", {\"id\": %d, \"content\": \"<x>\", \"special\": true}", TEXT_V); }
    fprintf(file,
            "], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}, ");
    fprintf(file, "\"model\": {\"type\": \"BPE\", \"dropout\": null, \"vocab\": ");
    for (int i = 0; i < TEXT_V - 1; i++) {
        char text[4];
        size_t left = i < 256 ? 0 : strcspn(merges[i - 256], " "),
               n = utf8_encode(text, vocab_character((unsigned char)i));
        fprintf(file, i == 0 ? "{\"" : ", \"");
        if (i == '"' || i == '\\') { fputc('\\', file); }
        if (i < 256) { fprintf(file, "%.*s", (int)n, text); }
        if (i >= 256) { fprintf(file, "%.*s%s", (int)left, merges[i - 256], merges[i - 256] + left + 1); }
        fprintf(file, "\": %d", seed == 0 ? i : TEXT_V - 2 - i);
    }
    fprintf(file, "}, \"merges\": [");
    for (int i = 0; i < 8; i++) {
        int left = (int)strcspn(merges[i], " ");
        fprintf(file, i == 0 ? "" : ", ");
        fprintf(file, seed == 0 ? "\"%.*s %s\"" : "[\"%.*s\", \"%s\"]", left, merges[i], merges[i] + left + 1);
    }
    fprintf(file, "]}}\n");
    fclose(file);
}

static void write_merges(int seed, const char* path) {
    FILE* file = fopen_check(path, "wb");
    if (seed == 0) { fprintf(file, "#version: 0.2\n"); }
    for (int i = 0; i < 8; i++) { fprintf(file, seed == 0 ? "%s\n" : "%s\r\n", merges[i]); }
    fclose(file);
}

static void write_text(int seed, const char* path) {
    static const char* const texts[] = {
        "the thing, isn't in the 1111 \xe2\x82\xac\n\n  there\t'll  ",
        "\xe4\xbd\xa0\xe5\xa5\xbd\xc2\xa0\xe3\x80\x80 \xf0\x9f\x98\x80 e\xcc\x81 \xd9\xa1\xd9\xa2"};
    FILE* file = fopen_check(path, "wb");
    for (int i = 0; i < (seed == 2 ? 200 : 1); i++) { fputs(seed == 2 ? "theingee" : texts[seed], file); }
    fclose(file);
}

enum { ENCODER_MEMORY = 16 << 20 }; // the cache, and vocab.json with its nodes; a text of n bytes takes up to 200 n

// A file that the input's reader needs too
static const char* write_beside(const char* name, void (*write)(int seed, const char* path)) {
    fuzz_reading = 0;
    write(0, in_folder(name));
    fuzz_reading = 1;
    return in_folder(name);
}

// Encodes a text: the bytes of its tokens are the text.
static void use_encoder(Tokenizer* t, const char* text, size_t bytes) {
    TokenList whole = {0}, prompt = {0};
    size_t at = 0;
    check(tokenizer_encode(t, text, bytes, &whole));
    check(tokenizer_encode_prompt(t, text, bytes, &prompt));
    for (size_t i = 0; i < whole.count; i++) {
        size_t n = 0;
        const unsigned char* s = tokenizer_decode(t, whole.ids[i], &n);
        if (s == NULL || at + n > bytes || memcmp(s, text + at, n) != 0) { fuzz_fault("a text does not come back"); }
        at += n;
    }
    if (at != bytes) { fuzz_fault("a text does not come back whole"); }
}

static void read_text(const char* path) {
    static char text[LARGEST_INPUT];
    Tokenizer t;
    FILE* file = (fopen)(path, "rb");
    size_t bytes = file == NULL ? 0 : fread(text, 1, sizeof(text), file);
    if (file != NULL) { (fclose)(file); }
    fuzz_allowed += ENCODER_MEMORY + 200 * bytes;
    tokenizer_load(&t, write_beside("text_tokenizer.bin", write_text_tokenizer), TEXT_V);
    use_encoder(&t, text, bytes);
}

static void use_folder(void) {
    static const char text[] = "the thing isn't 11 \xe2\x82\xac\xff";
    Tokenizer t;
    fuzz_allowed += ENCODER_MEMORY;
    tokenizer_load(&t, fuzz_folder, 0);
    tokenizer_print(fuzz_stdout, &t, t.eot_token);
    if (tokenizer_prepare_encode(&t) == STATUS_OK) { use_encoder(&t, text, sizeof(text)); }
    status_clear();
}

static void read_tokenizer_json(const char* path) {
    (void)path;
    use_folder();
}

static void read_vocab(const char* path) {
    (void)path;
    unlink(in_folder("merges.txt"));
    unlink(in_folder("tokenizer.json"));
    use_folder();
}

static void read_merges(const char* path) {
    (void)path;
    write_beside("vocab.json", write_vocab);
    unlink(in_folder("tokenizer.json"));
    use_folder();
}

static void remove_checksums(const char* path) {
    static const int32_t nothing[HEADER_INTS - CHECKED_AT];
    FILE* file = fopen_check(path, "r+b");
    if (fseek(file, 4 * CHECKED_AT, SEEK_SET) != 0) { fatal("cannot seek in %s: %s", path, strerror(errno)); }
    fwrite_check(nothing, sizeof(nothing), 1, file, path);
    fclose(file);
}

// States of step 12: shuffled with master weights and full windows; neither, with empty ones; with a model that does not say
// what it is; and, alone, with checksums and settings. Beside them lie the model and two token files that they belong to.
static void write_state(int seed, const char* path) {
    static char text[] = "result --seed 42\nfree -v 20\n", buffer[CHECKPOINT_BUFFER];
    float numbers[STATE_NUMBERS] = {0};
    GPT2 model = make_model(numbers, STATE_NUMBERS, seed == 0);
    CheckpointSource source = checkpoint_source(&model, buffer);
    CheckedWriter file;
    ModelHeader header;
    RunState run;
    DataLoader d;
    const char* model_path = in_folder(seed == 2 ? "older_model.bin" : "model_00000012.bin");
    memset(&run, 0, sizeof(run));
    run.step = STEP;
    if (seed == 3) { run.identity.text = text, run.identity.text_bytes = strlen(text); }
    for (int i = 0; i < (seed == 0 ? 200 : 5); i++) {
        outlier_update(&run.outliers.loss, 5.0 - 0.01 * i);
        outlier_update(&run.outliers.grad_norm, i % 7);
    }
    write_tokens_16(0, in_folder("data_0.bin"));
    write_tokens_16(0, in_folder("data_1.bin"));
    write_model(seed == 2, model_path);
    check(gpt2_read_model_header(model_path, &header));
    open_loader(&d, in_folder("data_?.bin"), seed == 0 || seed == 3, SMALL_V);
    use_batches(&d, 5, SMALL_V);
    dataloader_get_state(&d, &run.loader);
    dataloader_close(&d);
    check(checkpoint_write_state(&file, &source, &run, header.digest, path));
    check(checked_commit(&file));
    if (seed < 3) { remove_checksums(path); }
    run_state_free(&run);
}

// The trainer's flags, and the model beside it, are those that the state names, so that as much as possible is reached.
static void read_state(const char* path) {
    float numbers[STATE_NUMBERS] = {0};
    int32_t header[HEADER_INTS] = {0};
    Outliers outliers;
    DataLoader d;
    FILE* file = (fopen)(path, "rb");
    if (file != NULL && fread(header, 1, sizeof(header), file) == 0) { header[0] = 0; }
    if (file != NULL) { (fclose)(file); }
    int shuffle = header[STATE_SHUFFLE] & 1, master = header[STATE_MASTER_WEIGHTS] & 1, digest = header[STATE_MODEL];
    GPT2 model = make_model(numbers, STATE_NUMBERS, master);
    outlier_init(&outliers.loss);
    outlier_init(&outliers.grad_norm);
    open_loader(&d, in_folder("data_?.bin"), shuffle, SMALL_V);
    CheckpointPaths paths = checkpoint_paths("", STEP);
    snprintf(paths.state, sizeof(paths.state), "%s", path);
    snprintf(paths.model, sizeof(paths.model), "%s", in_folder(digest == 0 ? "older_model.bin" : "model_00000012.bin"));
    d.other_data = header[STATE_SAMPLE] & 1; // as with --resume-anyway
    check(checkpoint_read_files(&model, &d, &outliers, &paths, STEP));
    for (int i = 0; i < 300; i++) {
        outlier_update(&outliers.loss, i);
        outlier_update(&outliers.grad_norm, -i);
    }
    use_batches(&d, 30, SMALL_V);
    dataloader_close(&d);
}

// ----------------------------------------------------------------------------
// Hugging Face's files. Readers put those that stand beside an input right, which other formats change.

static void write_config_json(int seed, const char* path) {
    static const char* const texts[] = {
        "{\"n_head\":1}", "{\"model_type\":\"gpt2\",\"n_layer\":1,\"n_head\":1,\"n_embd\":32,\"n_positions\":4,"
                          "\"vocab_size\":12,\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05,"
                          "\"n_inner\":null,\"scale_attn_weights\":true,\"tie_word_embeddings\":true}"};
    write_input(path, (const uint8_t*)texts[seed], strlen(texts[seed]));
}

// Tensors first to last of 16 and, of `more`, a mask and the head
static void write_safetensors_of(const char* path, const char* type, const char* prefix, int first, int last,
                                 int more) {
    static uint8_t data[LARGEST_INPUT]; // numbers that are finite in any type
    SafetensorsWriter w;
    const size_t mask[4] = {1, 1, 4, 4}, head[2] = {SMALL_V, 32};
    size_t element = strcmp(type, "F32") == 0 ? 4 : 2;
    char name[128];
    memset(data, 0x11, sizeof(data));
    check(safetensors_create(&w, path));
    for (int i = first; i <= last; i++) {
        HuggingFaceTensor t = hugging_face_tensor(small_config, i, 0);
        snprintf(name, sizeof(name), "%s%s", prefix, t.name);
        check(
            safetensors_declare(&w, name, type, t.dims, t.shape, element * t.shape[0] * (t.dims > 1 ? t.shape[1] : 1)));
    }
    snprintf(name, sizeof(name), "%sh.0.attn.bias", prefix);
    if (more) { check(safetensors_declare(&w, name, type, 4, mask, element * 16)); }
    if (more) { check(safetensors_declare(&w, HUGGING_FACE_HEAD, type, 2, head, element * SMALL_V * 32)); }
    check(safetensors_begin(&w));
    check(atomic_write(&w.file, data, w.data_bytes));
    check(atomic_commit(&w.file));
}

static void write_safetensors(int seed, const char* path) {
    static const char* const types[] = {"F32", "BF16", "F16"};
    write_safetensors_of(path, types[seed], seed == 1 ? HUGGING_FACE_PREFIX : "", 0, NUM_PARAMETER_TENSORS - 1,
                         seed > 0);
}

// A file beside the input explains memory too.
static void allow_file(const char* name) {
    struct stat st;
    if (stat(in_folder(name), &st) == 0) { fuzz_allowed += 8 * (size_t)st.st_size; }
}

static void use_weights(const char* path) {
    GPT2Config config;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    float *params, sum = 0.0f;
    int unchecked;
    check(weights_load(&params, path, &config, &unchecked));
    size_t n = gpt2_parameters(table, config);
    for (size_t i = 0; i < n; i++) { sum += params[i]; }
    if (!(sum < INFINITY)) { fuzz_fault("a weight that is not finite"); }
    fuzz_free(params);
}

static void read_safetensors(const char* path) {
    write_config_json(0, in_folder("config.json"));
    use_weights(path);
}

static void read_config_json(const char* path) {
    (void)path;
    allow_file("sound.safetensors");
    use_weights(in_folder("sound.safetensors"));
}

// ----------------------------------------------------------------------------
// Texts. Here `path` is the text itself.

// Every value is looked at, and strings are written again.
static void read_json(const char* text) {
    Json json;
    size_t whole, nodes = 0, all = 0;
    double number;
    check(json_parse(&json, "text", text, strlen(text)));
    for (const JsonNode *n = json.nodes, *end = n + n->next; n < end; n++, nodes++) {
        if (n->next <= nodes || n->next > json.nodes->next) { fuzz_fault("a node of JSON leads nowhere"); }
        if (n->type == JSON_STRING && json_string(&json, n)[n->bytes] != '\0') {
            fuzz_fault("a string without an end");
        }
        if (n->type == JSON_NUMBER) {
            all += (size_t)json_whole(&json, n, SIZE_MAX, &whole) + (size_t)json_number(&json, n, &number);
        }
        if (n->type == JSON_STRING) { json_write_text(fuzz_stdout, json_string(&json, n), n->bytes); }
        for (const JsonNode* k = n->type < JSON_ARRAY ? NULL : json_first(&json, n); k != NULL;
             k = json_next(&json, n, k)) {
            all++;
        }
    }
    if (all > 2 * nodes) { fuzz_fault("more members than nodes"); }
    json_free(&json); // a function of the header: it frees through the driver
}

// Sizes as long double, which counts far beyond 64 bits: the tables say the same, or SIZE_MAX.
static void check_size(size_t size, long double expected) {
    int good = expected < 18446744073709551615.0L ? fabsl((long double)size - expected) <= expected * 1e-15L
                                                  : size == SIZE_MAX;
    if (!good) { fuzz_fault("the table of a model's sizes has wrapped around"); }
}

static void read_descriptor(const char* text) {
    GPT2Config c = gpt2_config_from_descriptor(text, 50257);
    GPT2Parameter parameters[NUM_PARAMETER_TENSORS];
    GPT2Activation activations[NUM_ACTIVATION_TENSORS];
    long double C = c.channels, L = c.num_layers, rows = (long double)c.padded_vocab_size + c.max_seq_len;
    check_size(gpt2_parameters(parameters, c), rows * C + L * (12 * C * C + 13 * C) + 2 * C);
    gpt2_activations(activations, c, 1 << 15, 1 << 16, 0, 1, 4, 0);
}

// One argument a line
static void read_command_line(const char* text) {
    char copy[4096], *argv[64] = {copy};
    int argc = 1;
    snprintf(copy, sizeof(copy), "train_gpt2\n%s", text);
    for (char* c = copy; *c != '\0' && argc < 63; c++) {
        if (*c == '\n') { *c = '\0', argv[argc++] = c + 1; }
    }
    Options options = cli_parse(argc, argv);
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        const void* member = (const char*)&options + f->offset;
        if (f->type == CLI_text) { continue; }
        double value = f->type == CLI_number ? *(const cli_number*)member : *(const cli_whole*)member;
        if (f->type == CLI_whole && f->choices != NULL && value == CLI_AUTO) { continue; }
        if (!(value >= f->smallest && value <= f->largest)) { fuzz_fault("a flag's value is outside of its bounds"); }
    }
    cli_print(&cli_program, &options, NULL);
    trainer_check_options(&options, 1);
}

static const Format formats[] = {
    {"model", "model.bin", 2, write_model, read_model, {NULL}, OF_WORDS},
    {"state", "state_00000012_00000.bin", 4, write_state, read_state, {NULL}, OF_WORDS},
    {"debug-state", "debug_state.bin", 2, write_debug_state, read_debug_state, {NULL}, OF_WORDS},
    {"tokens-16", "tokens_16.bin", 2, write_tokens_16, read_tokens, {NULL}, OF_WORDS},
    {"tokens-32", "tokens_32.bin", 2, write_tokens_32, read_tokens, {NULL}, OF_WORDS},
    {"evaluation", "evaluation.bin", 2, write_evaluation, read_evaluation, {NULL}, OF_WORDS},
    {"tokenizer", "tokenizer.bin", 2, write_tokenizer, read_tokenizer, {NULL}, OF_WORDS},
    {"text", "text.txt", 3, write_text, read_text, {NULL}, OF_TEXT},
    {"vocab", "vocab.json", 2, write_vocab, read_vocab, {NULL}, OF_JSON},
    {"tokenizer-json", "tokenizer.json", 3, write_tokenizer_json, read_tokenizer_json, {NULL}, OF_JSON},
    {"merges", "merges.txt", 2, write_merges, read_merges, {NULL}, OF_TEXT},
    {"descriptor",
     NULL,
     6,
     NULL,
     read_descriptor,
     {"d12", "gpt2:d48t4096", "gpt3:c768", "gpt2:l4c128h4t64", "gpt3:h2c64l1", "l1000000c999936h7812"},
     OF_WORDS},
    {"command-line",
     NULL,
     5,
     NULL,
     read_command_line,
     {"-b\n4\n-t\n64\n-d\n512\n-l\n2e-3\n-u\n5\n-q\n0.1\n-x\n40", "--model=d12t64\n-k\ncosine\n--epsilon\n1e-8",
      "-o\nout\n-y\n1\n-n\n20\n-nk\n1\n-nm\n100", "--help", "-h\n1\n-sl\n2.5\n-sg\n3\n-m\n-1\n-v\n0\n--seed=7"},
     OF_WORDS},
    {"safetensors", "model_12.safetensors", 3, write_safetensors, read_safetensors, {NULL}, OF_JSON_HEADER},
    {"config", "config.json", 2, write_config_json, read_config_json, {NULL}, OF_JSON},
    {"json",
     NULL,
     5,
     NULL,
     read_json,
     {"{\"a\":[1,-2.5e-3,true,false,null],\"b\":{\"\":\"x\"},\"c\":\"\\u00e9\\ud83d\\ude00\\n\\\"\"}",
      "[[[[{\"k\":[{}]}]]]]", "\"\xc3\xa9\xf0\x9f\x98\x80\"", " 123456789012345678901234567890 ",
      "{\"wte.weight\":{\"dtype\":\"F32\",\"shape\":[12,32],\"data_offsets\":[0,1536]}}"},
     OF_JSON},
};
enum { NUM_FORMATS = sizeof(formats) / sizeof(formats[0]) };

// ----------------------------------------------------------------------------
// One input

static void clean_up(void) {
    for (int i = 0; i < MAX_LEFT; i++) {
        if (fuzz_left[i] != NULL) { fuzz_is_file[i] ? (void)fclose(fuzz_left[i]) : free(fuzz_left[i]); }
        fuzz_left[i] = NULL;
    }
}

// The message is one line, and names a file of ours where the input is one.
static void check_message(const Format* format) {
    fflush(fuzz_stderr);
    const char* end = strchr(fuzz_message, '\n');
    if (strncmp(fuzz_message, "error: ", 7) != 0 || end == NULL || end[1] != '\0') {
        fuzz_fault("an error that is not one line");
    }
    if (format->file != NULL && strstr(fuzz_message, fuzz_folder) == NULL) {
        fuzz_fault("an error that names no file");
    }
}

// Returns 1 where the reader accepted the input, 0 where it refused it. A fault ends the process.
static int run_input(const Format* format, const uint8_t* data, size_t size) {
    static char text[LARGEST_INPUT + 1];
    static char path[512];
    memset(fuzz_message, 0, sizeof(fuzz_message));
    rewind(fuzz_stderr);
    memcpy(text, data, size);
    text[size] = '\0';
    snprintf(path, sizeof(path), "%s", format->file ? in_folder(format->file) : "");
    if (format->file != NULL) { write_input(path, data, size); }
    fuzz_asked = 0;
    fuzz_allowed = FUZZ_MEMORY + 8 * size;
    alarm(10);
    fuzz_reading = 1;
    volatile int accepted = 1;
    int back = setjmp(fuzz_back);
    if (back == 0) {
        format->read(format->file ? path : text);
    } else {
        accepted = 0;
    }
    fuzz_reading = 0;
    alarm(0);
    if (back == 1) { check_message(format); }
    clean_up();
    return accepted;
}

// ----------------------------------------------------------------------------
// Making inputs

static uint64_t rng_state;

static uint64_t next_random(void) { // SplitMix64
    uint64_t z = (rng_state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
static size_t below(size_t n) { return n == 0 ? 0 : (size_t)(next_random() % n); }

typedef struct {
    uint8_t data[LARGEST_INPUT];
    size_t size;
} Input;

enum { MAX_SEEDS = 64 };
static Input* seeds[NUM_FORMATS][MAX_SEEDS]; // the sound ones, then the corpus
static int num_seeds[NUM_FORMATS];

// A place in the file: half of them among the first 64 words of the header, a quarter in the last 2200 bytes
static size_t place(const Input* input, size_t unit) {
    size_t from = 0, n = input->size;
    size_t where = below(4);
    if (where < 2) { n = n < 256 ? n : 256; }
    if (where == 2 && n > 2200) { from = n - 2200, n = 2200; }
    return from + below(n / unit) * unit;
}

static void put(Input* input, size_t at, const void* value, size_t bytes) {
    if (at + bytes <= input->size) { memcpy(input->data + at, value, bytes); }
}

static int32_t interesting(void) {
    static const int32_t values[] = {0,     1,       2,          3,          4,         7,         127,
                                     128,   129,     255,        256,        65535,     65536,     1 << 20,
                                     50257, 1 << 24, 0x1fffffff, 0x3fffffff, 1 << 30,   INT32_MAX, INT32_MAX - 1,
                                     -1,    -2,      INT32_MIN,  -65536,     536870912, 16777216,  2147433329};
    return values[below(sizeof(values) / sizeof(values[0]))];
}

static void mutate_file(Input* input) {
    static const double doubles[] = {NAN, INFINITY, -INFINITY, 1e308, -1e308, 1e39, 0.0, 5e-324};
    int32_t word = interesting(), old = 0;
    uint16_t half = (uint16_t)interesting();
    size_t at = place(input, 4), from = below(input->size), n;
    switch (below(11)) {
    case 0:
        input->data[place(input, 1) % LARGEST_INPUT] ^= (uint8_t)(1u << below(8));
        break;
    case 1:
        input->data[place(input, 1) % LARGEST_INPUT] = (uint8_t)next_random();
        break;
    case 2:
    case 3:
    case 4:
        put(input, at, &word, 4);
        break;
    case 5:
        put(input, place(input, 2), &half, 2);
        break;
    case 6:
        put(input, place(input, 8), &doubles[below(8)], 8);
        break;
    case 7: // a small step up or down
        memcpy(&old, input->data + at, 4);
        old = (int32_t)((uint32_t)old + (uint32_t)below(9) - 4u);
        put(input, at, &old, 4);
        break;
    case 8:
        input->size = below(2) ? below(input->size + 1) : input->size - below(input->size < 9 ? 1 : 9);
        break;
    case 9: // longer by a few bytes, or by a piece of itself
        n = below(2) ? below(9) : below(input->size + 1);
        n = n < input->size ? n : input->size;
        if (n > LARGEST_INPUT - input->size) { n = LARGEST_INPUT - input->size; }
        memmove(input->data + input->size, input->data + below(input->size - n + 1), n);
        input->size += n;
        break;
    default: // a piece of itself elsewhere
        n = below(input->size < 64 ? input->size : 64);
        at = below(input->size - n + 1), from = from + n <= input->size ? from : 0;
        memmove(input->data + at, input->data + from, n);
    }
}

static void mutate_text(Input* input) {
    static const char* words[] = {"d",          "gpt2:",
                                  "gpt3:",      "t",
                                  "h",          "l",
                                  "c",          "\n",
                                  "-",          "=",
                                  "--model",    "-b",
                                  "-d",         "-1",
                                  "0",          "1e9",
                                  "nan",        "inf",
                                  " ",          "1000000",
                                  "4294967296", "99999999999999999999",
                                  "2147483647", "-2147483648",
                                  "0x10",       "1e-400",
                                  "--seed=",    "-pn",
                                  "-k",         "\x1b[2J",
                                  "\xff",       "%s%n",
                                  "--",         "9223372036854775807"};
    const char* word = words[below(sizeof(words) / sizeof(words[0]))];
    size_t at = below(input->size + 1), n = strlen(word), cut = below(input->size - at < 8 ? input->size - at + 1 : 8);
    switch (below(3)) {
    case 0: // without a piece
        memmove(input->data + at, input->data + at + cut, input->size - at - cut);
        input->size -= cut;
        break;
    case 1: // with a word more
        if (input->size + n > 2000) { break; }
        memmove(input->data + at + n, input->data + at, input->size - at);
        memcpy(input->data + at, word, n);
        input->size += n;
        break;
    default:
        if (at < input->size) { input->data[at] = (uint8_t)(below(4) ? ' ' + below(95) : next_random()); }
    }
}

// Changes a text of JSON.
static void mutate_json(Input* input) {
    // clang-format off
    static const char* const words[] = {
        "{", "}", "[", "]", ",", ":", "\"", "\\", "\\u", "\\ud800", "\\u0000", "null", "true", "1e400", "-1", "0",
        "1.0", "4294967296", "18446744073709551615", "18446744073709551616", "9223372036854775807", "F32", "F16",
        "BF16", "F64", "I8", "BOOL", "\"__metadata__\":{},", "\"dtype\"", "\"shape\"", "\"data_offsets\"", "wte.weight",
        "transformer.", "h.1.", "lm_head.weight", "../", "a.safetensors", "\xff", "\xe2\x82", "[[[[[[[[[[[[[[[[", " ",
        "\n"};
    // clang-format on
    const char* word = words[below(sizeof(words) / sizeof(words[0]))];
    char number[32];
    size_t at = below(input->size + 1), n = strlen(word), left = input->size - at,
           cut = below(left < 24 ? left + 1 : 24);
    switch (below(6)) {
    case 0: // without a piece
        memmove(input->data + at, input->data + at + cut, left - cut);
        input->size -= cut;
        return;
    case 1: // a byte
        if (left > 0) { input->data[at] = (uint8_t)(below(4) ? ' ' + below(95) : next_random()); }
        return;
    case 2: // a piece of itself
        cut = below(left < 200 ? left + 1 : 200);
        if (input->size + cut > LARGEST_INPUT / 2) { return; }
        memmove(input->data + at + cut, input->data + at, left); // stands twice
        input->size += cut;
        return;
    case 3:
    case 4: // the next number becomes another
        while (at < input->size && !isdigit(input->data[at])) { at++; }
        for (cut = 0; at + cut < input->size && isdigit(input->data[at + cut]);) { cut++; }
        snprintf(number, sizeof(number), "%lld", (long long)interesting() + (below(2) ? (1LL << 32) : 0));
        word = below(2) ? number : word;
        n = strlen(word);
        memmove(input->data + at, input->data + at + cut, input->size - at - cut);
        input->size -= cut;
        break;
    default:
        break;
    }
    if (input->size + n > LARGEST_INPUT / 2) { return; }
    memmove(input->data + at + n, input->data + at, input->size - at);
    memcpy(input->data + at, word, n);
    input->size += n;
}

// Changes the header of a safetensors file, which keeps its length right, or any bytes of the file.
static void mutate_json_header(Input* input) {
    static Input header;
    uint64_t length = UINT64_MAX;
    if (input->size >= 8) { memcpy(&length, input->data, 8); }
    if (input->size < 8 || length > input->size - 8 || below(6) == 0) {
        if (input->size > 0) { mutate_file(input); }
        return;
    }
    size_t rest = input->size - 8 - (size_t)length;
    header.size = (size_t)length;
    memcpy(header.data, input->data + 8, header.size);
    mutate_json(&header);
    if (8 + header.size + rest > LARGEST_INPUT) { return; }
    memmove(input->data + 8 + header.size, input->data + 8 + length, rest);
    memcpy(input->data + 8, header.data, header.size);
    length = header.size;
    memcpy(input->data, &length, 8);
    input->size = 8 + header.size + rest;
}

static void mutate(const Format* format, Input* input) {
    if (format->kind == OF_JSON) {
        mutate_json(input);
    } else if (format->kind == OF_JSON_HEADER) {
        mutate_json_header(input);
    } else {
        format->file && input->size > 0 ? mutate_file(input) : mutate_text(input);
    }
}

// Gives an input the checksums of what it holds, so that the checks behind them are reached.
static void seal(Input* input) {
    int32_t header[HEADER_INTS];
    uint32_t sum;
    if (input->size < HEADER_BYTES) { return; }
    CheckedBody body = checked_body_(input->size - HEADER_BYTES);
    memcpy(header, input->data, sizeof(header));
    memset(header + CHECKED_AT, 0, sizeof(header) - 4 * CHECKED_AT);
    while (body.at < body.body_bytes) {
        const uint8_t* piece = input->data + HEADER_BYTES + body.at;
        int block = checked_pass_(&body, piece, checked_piece_(&body, body.body_bytes - body.at), &sum);
        if (block >= 0) { memcpy(&header[CHECKED_SUMS + block], &sum, sizeof(sum)); }
    }
    header[CHECKED_AT] = CHECKED_MARK;
    header[CHECKED_BLOCK_LOG2] = body.block_log2;
    header[CHECKED_BLOCKS] = checked_num_blocks(body.body_bytes);
    sum = checked_header_sum(header);
    memcpy(&header[CHECKED_HEADER], &sum, sizeof(sum));
    memcpy(input->data, header, sizeof(header));
}

static int is_sealed(const Input* input) {
    int32_t mark = 0;
    if (input->size >= HEADER_BYTES) { memcpy(&mark, input->data + 4 * CHECKED_AT, sizeof(mark)); }
    return mark == CHECKED_MARK;
}

// Input number i of a format: a seed as it is for the first numbers, then a few changes to a seed. Of files with checksums
// three quarters get those of what they hold then.
static void make_input(int format, uint64_t i, Input* input) {
    rng_state = i * 0x9e3779b97f4a7c15u + (uint64_t)format * 0xd1342543de82ef95u;
    size_t all = (size_t)num_seeds[format], sound = (size_t)formats[format].seeds;
    const Input* seed = seeds[format][i < all ? i : below(below(2) ? all : sound)];
    memcpy(input->data, seed->data, seed->size);
    input->size = seed->size;
    if (i < all) { return; }
    for (size_t k = 1 + below(formats[format].file ? 4 : 2); k > 0; k--) { mutate(&formats[format], input); }
    if (formats[format].file && is_sealed(seed) && below(4) > 0) { seal(input); }
}

static void load_input(const char* path, Input* input) {
    int fd = open(path, O_RDONLY);
    ssize_t n = fd < 0 ? -1 : read(fd, input->data, LARGEST_INPUT);
    if (n < 0) {
        fprintf(stderr, "fuzz: cannot read %s: %s\n", path, strerror(errno));
        exit(EXIT_FAILURE);
    }
    close(fd);
    input->size = (size_t)n;
}

static Input* add_seed(int format) {
    if (num_seeds[format] == MAX_SEEDS) { fuzz_fault("too many seeds"); }
    Input** place_of_seed = &seeds[format][num_seeds[format]++];
    *place_of_seed = (Input*)malloc(sizeof(Input));
    if (*place_of_seed == NULL) { fuzz_fault("no memory for seeds"); }
    (*place_of_seed)->size = 0;
    return *place_of_seed;
}

static void make_seeds(void) {
    write_safetensors(0, in_folder("sound.safetensors")); // what config.json stands beside
    for (int f = 0; f < NUM_FORMATS; f++) {
        for (int i = 0; i < formats[f].seeds; i++) {
            Input* input = add_seed(f);
            if (formats[f].file != NULL) {
                char path[512];
                snprintf(path, sizeof(path), "%s", in_folder(formats[f].file));
                formats[f].write(i, path);
                load_input(path, input);
            } else {
                input->size = strlen(formats[f].texts[i]);
                memcpy(input->data, formats[f].texts[i], input->size);
            }
        }
    }
}

// ----------------------------------------------------------------------------
// The corpus: lines of   format seed outcome [change...]   where a change to the seed is

//     12=ff00      these bytes at offset 12; -8=...: 8 bytes before the end
//     length=1024  cut, or filled with zeros
//     text=...     instead of the seed, to the end of the line; \n is a new line

typedef struct {
    int format, accepted, line;
    Input* input;
} CorpusEntry;

static CorpusEntry corpus[256];
static int corpus_size;

static int find_format(const char* name) {
    for (int f = 0; f < NUM_FORMATS; f++) {
        if (strcmp(formats[f].name, name) == 0) { return f; }
    }
    fprintf(stderr, "fuzz: no format is called %s\n", name);
    exit(EXIT_FAILURE);
}

static void change_input(Input* input, const char* change) {
    char* value;
    if (strncmp(change, "length=", 7) == 0) {
        size_t size = (size_t)strtoul(change + 7, NULL, 10);
        if (size > LARGEST_INPUT) { fuzz_fault("the corpus has too long an input"); }
        if (size > input->size) { memset(input->data + input->size, 0, size - input->size); }
        input->size = size;
        return;
    }
    long offset = strtol(change, &value, 10);
    size_t at = offset < 0 ? input->size - (size_t)-offset : (size_t)offset;
    for (value++; isxdigit((unsigned char)value[0]) && isxdigit((unsigned char)value[1]); value += 2) {
        char digits[3] = {value[0], value[1], '\0'};
        uint8_t byte = (uint8_t)strtoul(digits, NULL, 16);
        put(input, at++, &byte, 1);
    }
}

static void change_text(Input* input, const char* text) {
    input->size = 0;
    for (; *text != '\0' && *text != '\n'; text++) {
        int newline = text[0] == '\\' && text[1] == 'n';
        input->data[input->size++] = newline ? '\n' : (uint8_t)*text;
        text += newline;
    }
}

static void load_corpus(const char* path) {
    char line[2048], format[32], outcome[32];
    FILE* file = fopen(path, "r");
    if (file == NULL) {
        fprintf(stderr, "fuzz: cannot open %s: run it in the project's folder\n", path);
        exit(EXIT_FAILURE);
    }
    for (int number = 1; fgets(line, sizeof(line), file) != NULL; number++) {
        int seed = 0, end = 0;
        if (line[0] == '#' || sscanf(line, "%31s %d %31s%n", format, &seed, outcome, &end) != 3) { continue; }
        int f = find_format(format);
        CorpusEntry* entry = &corpus[corpus_size++];
        if (corpus_size == 256 || seed < 0 || seed >= formats[f].seeds) { fuzz_fault("a line of the corpus is wrong"); }
        Input* input = add_seed(f);
        *input = *seeds[f][seed];
        char* text = strstr(line, "text=");
        if (text != NULL) {
            change_text(input, text + 5);
        } else {
            for (char* change = strtok(line + end, " \n"); change && change[0] != '#'; change = strtok(NULL, " \n")) {
                change_input(input, change);
            }
        }
        entry->format = f, entry->accepted = strcmp(outcome, "accepted") == 0, entry->line = number,
        entry->input = input;
    }
    fclose(file);
}

// ----------------------------------------------------------------------------
// Many inputs: a process for each batch of them, so that a fault ends only that

typedef struct {
    uint64_t next; // the input under way
    uint64_t accepted, refused;
} Counts;

static Counts* progress; // shared with the children
static const char* reports = "build/fuzz_faults";

// Runs a function in a process of its own; returns what was wrong with its end, or NULL.
static const char* in_child(void (*work)(int format, uint64_t from, uint64_t to), int format, uint64_t from,
                            uint64_t to) {
    static char what[64];
    int status;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        fuzz_stderr = fmemopen(fuzz_message, sizeof(fuzz_message), "w");
        fuzz_stdout = fopen("/dev/null", "w");
        if (fuzz_stderr == NULL || fuzz_stdout == NULL || freopen("/dev/null", "w", stdout) == NULL) { _exit(3); }
        work(format, from, to);
        _exit(0);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid) {
        fprintf(stderr, "fuzz: cannot run a child: %s\n", strerror(errno));
        exit(EXIT_FAILURE);
    }
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) { return NULL; }
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) { return "did not end within ten seconds"; }
    snprintf(what, sizeof(what), "ended with %s %d", WIFSIGNALED(status) ? "signal" : "exit code",
             WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    return what;
}

static void run_batch(int format, uint64_t from, uint64_t to) {
    static Input input;
    for (uint64_t i = from; i < to; i++) {
        progress->next = i;
        make_input(format, i, &input);
        run_input(&formats[format], input.data, input.size) ? progress->accepted++ : progress->refused++;
    }
}

static void run_corpus_entry(int format, uint64_t from, uint64_t to) {
    (void)format, (void)to;
    const CorpusEntry* entry = &corpus[from];
    int accepted = run_input(&formats[entry->format], entry->input->data, entry->input->size);
    if (accepted != entry->accepted) {
        dprintf(STDERR_FILENO, "%s", fuzz_message);
        fuzz_fault(accepted ? "was accepted" : "was refused");
    }
}

// Runs the lines of the corpus and returns how many there are.
static int run_corpus(int only, int* all_faults) {
    int faults = 0, runs = 0;
    for (int i = 0; i < corpus_size; i++) {
        if (only >= 0 && corpus[i].format != only) { continue; }
        const char* fault = in_child(run_corpus_entry, corpus[i].format, (uint64_t)i, 0);
        if (fault != NULL) {
            printf("FAULT: line %d of the corpus (%s) %s\n", corpus[i].line, formats[corpus[i].format].name, fault);
        }
        faults += fault != NULL;
        runs++;
    }
    printf("corpus        %10d inputs, %d faults\n", runs, faults);
    *all_faults += faults;
    return runs;
}

// Inputs of one format until the time or the number is used up; returns the number of faults.
static int run_format(int format, double seconds, uint64_t inputs) {
    enum { BATCH = 500, MOST_FAULTS = 10 };
    static Input input;
    int faults = 0;
    double end = wall_seconds() + seconds;
    memset(progress, 0, sizeof(*progress));
    for (uint64_t i = 0; inputs ? i < inputs : wall_seconds() < end;) {
        uint64_t to = inputs && i + BATCH > inputs ? inputs : i + BATCH;
        const char* fault = in_child(run_batch, format, i, to);
        i = fault ? progress->next + 1 : to;
        if (fault == NULL) { continue; }
        char path[512];
        make_input(format, progress->next, &input);
        mkdir("build", 0755), mkdir(reports, 0755);
        snprintf(path, sizeof(path), "%s/%s_%llu", reports, formats[format].name, (unsigned long long)progress->next);
        write_input(path, input.data, input.size);
        printf("FAULT: %s input %llu %s; kept as %s\n", formats[format].name, (unsigned long long)progress->next, fault,
               path);
        if (++faults == MOST_FAULTS) { break; }
    }
    printf("%-13s %10llu inputs, %llu accepted, %llu refused, %d faults\n", formats[format].name,
           (unsigned long long)(progress->accepted + progress->refused + (uint64_t)faults),
           (unsigned long long)progress->accepted, (unsigned long long)progress->refused, faults);
    return faults;
}

// Sound files with checksums, each with one bit flipped: half of the bits are the header's, as many of the body.
static void run_flipped(int format, uint64_t from, uint64_t to) {
    static Input sound, input;
    sound = *seeds[format][0];
    seal(&sound);
    if (!run_input(&formats[format], sound.data, sound.size)) {
        dprintf(STDERR_FILENO, "%s", fuzz_message);
        fuzz_fault("a sound file with checksums was refused");
    }
    rng_state = (uint64_t)format;
    for (uint64_t i = from; i < to; i++) {
        size_t first = i % 2 == 0 ? 0 : HEADER_BYTES, bytes = i % 2 == 0 ? HEADER_BYTES : sound.size - HEADER_BYTES;
        size_t bit = 8 * first + below(8 * bytes);
        progress->next = bit;
        input = sound;
        input.data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (run_input(&formats[format], input.data, input.size)) { fuzz_fault("a flipped bit was accepted"); }
        progress->refused++;
    }
}

// All formats of files with checksums; returns how many there are.
static int run_flips(int only, int* all_faults) {
    enum { FLIPS = 1500 };
    int faults = 0, runs = 0;
    memset(progress, 0, sizeof(*progress));
    for (int f = 0; f < NUM_FORMATS; f++) {
        if (formats[f].file == NULL || formats[f].kind != OF_WORDS || (only >= 0 && only != f)) { continue; }
        const char* fault = in_child(run_flipped, f, 0, FLIPS);
        if (fault != NULL) {
            printf("FAULT: %s with bit %llu flipped %s\n", formats[f].name, (unsigned long long)progress->next, fault);
        }
        faults += fault != NULL;
        runs++;
    }
    printf("flipped bits  %10llu inputs, %llu refused, %d faults\n",
           (unsigned long long)FLIPS * (unsigned long long)runs, (unsigned long long)progress->refused, faults);
    *all_faults += faults;
    return runs;
}

// A single input, from a file or by its number
static int run_single(int format, const char* which) {
    static Input input;
    char* end;
    uint64_t i = strtoull(which, &end, 10);
    if (*end == '\0') {
        const char* fault = in_child(run_batch, format, i, i + 1);
        printf("%s input %s: %s\n", formats[format].name, which, fault ? fault : "no fault");
        return fault != NULL;
    }
    CorpusEntry* entry = &corpus[corpus_size];
    load_input(which, &input);
    entry->format = format, entry->input = &input, entry->accepted = 1;
    const char* fault = in_child(run_corpus_entry, format, (uint64_t)corpus_size, 0);
    printf("%s: %s\n", which, fault ? fault : "accepted");
    return fault != NULL;
}

static void open_folder(void) {
    const char* parent = getenv("TMPDIR");
    snprintf(fuzz_folder, sizeof(fuzz_folder), "%s/fuzz_XXXXXX", parent && parent[0] ? parent : "/tmp");
    fuzz_stderr = stderr, fuzz_stdout = stdout;
    if (mkdtemp(fuzz_folder) == NULL) {
        fprintf(stderr, "fuzz: cannot create %s: %s\n", fuzz_folder, strerror(errno));
        exit(EXIT_FAILURE);
    }
}

static void remove_folder(void) {
    DIR* dir = opendir(fuzz_folder);
    for (struct dirent* entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] != '.') { unlinkat(dirfd(dir), entry->d_name, 0); }
    }
    if (dir != NULL) { closedir(dir); }
    rmdir(fuzz_folder);
}

static void write_seeds(const char* folder) {
    char path[1024];
    mkdir(folder, 0755);
    for (int f = 0; f < NUM_FORMATS; f++) {
        for (int i = 0; i < num_seeds[f]; i++) {
            snprintf(path, sizeof(path), "%s/%s_%d", folder, formats[f].name, i);
            write_input(path, seeds[f][i]->data, seeds[f][i]->size);
        }
    }
}

// A sanitizer's report ends the process like a crash. What a refused input leaves is no leak.
const char* __asan_default_options(void);
const char* __asan_default_options(void) { return "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1"; }

#ifdef FUZZ_LIBFUZZER
// The format is named by the environment's FUZZ_FORMAT.
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static int format = -1;
    if (format < 0) {
        const char* name = getenv("FUZZ_FORMAT");
        format = find_format(name ? name : "model");
        open_folder();
        make_seeds(); // the files that a state belongs to, too
        atexit(remove_folder);
        fuzz_stderr = fmemopen(fuzz_message, sizeof(fuzz_message), "w");
        fuzz_stdout = fopen("/dev/null", "w");
    }
    if (size <= LARGEST_INPUT) { run_input(&formats[format], data, size); }
    return 0;
}
#else
int main(int argc, char** argv) {
    const char *seconds_text = getenv("FUZZ_SECONDS"), *inputs_text = getenv("FUZZ_INPUTS");
    double seconds = seconds_text ? atof(seconds_text) : 60.0;
    uint64_t inputs = inputs_text ? strtoull(inputs_text, NULL, 10) : 0;
    int faults = 0, runs = 0; // lines of the corpus, and formats
    progress = (Counts*)mmap(NULL, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED) { fuzz_fault("no shared memory"); }
    open_folder();
    make_seeds();
    load_corpus("dev/test/files/fuzz_corpus.txt");
    if (argc == 3 && strcmp(argv[1], "seeds") == 0) {
        write_seeds(argv[2]);
    } else if (argc == 2 && strcmp(argv[1], "flips") == 0) {
        runs = run_flips(-1, &faults);
    } else if (argc > 2) {
        for (int i = 2; i < argc; i++, runs++) { faults += run_single(find_format(argv[1]), argv[i]); }
    } else {
        int only = argc == 2 ? find_format(argv[1]) : -1;
        runs = run_corpus(only, &faults);
        runs += run_flips(only, &faults);
        for (int f = 0; f < NUM_FORMATS; f++) {
            if (only >= 0 && only != f) { continue; }
            faults += run_format(f, only < 0 ? seconds / NUM_FORMATS : seconds, inputs);
            runs++;
        }
    }
    remove_folder();
    printf("%d passed, %d failed\n", runs > faults ? runs - faults : 0, faults);
    return faults ? EXIT_FAILURE : EXIT_SUCCESS;
}
#endif
