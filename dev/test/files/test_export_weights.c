// llmc/files/export_weights.h: targets by their names, read -> write -> read, and what is never overwritten.
#include <sys/resource.h>

#include "llmc/files/export_weights.h"

#include "dev/test/fixtures/unit.h"

static const GPT2Config CONFIG = {16, 61, 128, 2, 2, 128, 0}; // context, V, Vp, layers, heads, channels, trained length

static size_t count_weights(void) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    return gpt2_parameters(table, CONFIG);
}

// Initial weights; with `bf16`, such as a checkpoint in bf16 has.
static float* make_weights(int bf16) {
    size_t n = count_weights();
    float* params = (float*)malloc_check(n * sizeof(float));
    gpt2_init_parameters(params, CONFIG, 7);
    for (size_t i = 0; i < n; i++) {
        float moved = params[i] + (i % 97 == 0 ? 1.0f : 0.0f);
        params[i] = params[i] == 0.0f ? 0.0f : bf16 ? bf16_to_float(float_to_bf16(moved)) : moved;
    }
    return params;
}

static Status export_to(const char* target, const float* params, const char* dtype) {
    return export_weights(target, params, CONFIG, dtype, NULL);
}

// The same in the place of a file
static Status export_anew(const char* target, const float* params, const char* dtype) {
    remove(target);
    return export_to(target, params, dtype);
}

// 1 where the export is refused, with all of the words, which '|' separates, and nothing stands under a temporary name.
static int refused(const char* target, const char* words) {
    char list[512], temporary[1024];
    float* params = make_weights(0);
    int found = export_to(target, params, "auto") == STATUS_ERROR;
    snprintf(list, sizeof(list), "%s", words);
    for (char* word = strtok(list, "|"); word != NULL; word = strtok(NULL, "|")) {
        found = found && strstr(status_message(), word) != NULL;
    }
    snprintf(temporary, sizeof(temporary), "%s.tmp", target);
    found = found && !file_exists(temporary);
    if (!found) { printf("    %s\n", status_message()); }
    status_clear();
    free(params);
    return found;
}

// ----------------------------------------------------------------------------
// Bits

// 1 where what is read from the path is these weights, bit for bit, of this configuration.
static int reads_as(const char* path, const float* params) {
    GPT2Config config;
    float* found = NULL;
    int unchecked;
    if (weights_load(&found, path, &config, &unchecked) != STATUS_OK) {
        printf("    %s\n", status_message());
        return 0;
    }
    int same =
        memcmp(&config, &CONFIG, sizeof(config)) == 0 && memcmp(found, params, count_weights() * sizeof(float)) == 0;
    free(found);
    return same;
}

static int same_files(const char* a, const char* b) {
    size_t n, m;
    char *x = unit_read(a, &n), *y = unit_read(b, &m);
    int same = n == m && memcmp(x, y, n) == 0;
    free(x);
    free(y);
    return same;
}

// A checkpoint, an export of it, and a checkpoint again: of the same bits, and of the same bytes from the first export on.
static void read_write_read_is_the_same_bits(int bf16) {
    float* params = make_weights(bf16);
    const char *first = unit_path("first.bin"), *second = unit_path("second.bin"), *file = unit_path("m.safetensors");
    const char* again = unit_path("again.safetensors");
    CHECK(export_anew(first, params, "auto") == STATUS_OK && reads_as(first, params));
    ModelHeader header;
    check(gpt2_read_model_header(first, &header));
    CHECK(header.version == (bf16 ? MODEL_VERSION_BF16 : MODEL_VERSION_FP32));
    CHECK(export_anew(file, params, "auto") == STATUS_OK && reads_as(file, params));
    CHECK(export_to(unit_path("folder"), params, "auto") == STATUS_OK && reads_as(unit_path("folder"), params));
    GPT2Config config;
    float* found;
    int unchecked;
    check(weights_load(&found, file, &config, &unchecked));
    CHECK(export_anew(again, found, "auto") == STATUS_OK && same_files(file, again));
    CHECK(export_anew(second, found, "auto") == STATUS_OK && same_files(first, second));
    export_remove_(unit_path("folder"));
    free(found);
    free(params);
}

// The trained length is in every export but a lone .safetensors, whose folder has another config.json here, or none.
static void an_export_keeps_the_trained_length(void) {
    const char* const targets[] = {unit_path("short.bin"), unit_path("short"), unit_path("short.safetensors")};
    const int lengths[] = {5, 5, 0};
    float *params = make_weights(0), *found;
    GPT2Config config = CONFIG, sizes;
    int unchecked;
    config.trained_len = 5;
    for (int i = 0; i < 3; i++) {
        check(export_weights(targets[i], params, config, "auto", NULL));
        check(weights_read_config(targets[i], &sizes));
        CHECK(sizes.trained_len == lengths[i] && sizes.max_seq_len == CONFIG.max_seq_len);
        check(weights_load(&found, targets[i], &sizes, &unchecked));
        CHECK(sizes.trained_len == lengths[i]);
        free(found);
    }
    export_remove_(targets[1]);
    free(params);
}

// What is cast is what the type rounds to.
static void a_type_that_is_asked_for_is_written(void) {
    float *params = make_weights(0), *rounded = make_weights(0);
    const char* path = unit_path("cast.bin");
    for (size_t i = 0; i < count_weights(); i++) { rounded[i] = bf16_to_float(float_to_bf16(params[i])); }
    CHECK(export_anew(path, params, "bf16") == STATUS_OK && reads_as(path, rounded));
    CHECK(export_anew(path, rounded, "fp32") == STATUS_OK && reads_as(path, rounded));
    ModelHeader header;
    check(gpt2_read_model_header(path, &header));
    CHECK(header.version == MODEL_VERSION_FP32);
    free(rounded);
    free(params);
}

// ----------------------------------------------------------------------------
// Refusals

static void nothing_is_overwritten(void) {
    float* params = make_weights(0);
    const char *file = unit_path("kept.bin"), *folder = unit_path("kept");
    unit_write(file, "mine", 4);
    CHECK(refused(file, "kept.bin is there already|remove it"));
    CHECK(unit_file_is(file, "mine"));
    check(export_to(folder, params, "fp32"));
    CHECK(refused(folder, "kept is there already|remove it") && reads_as(folder, params));
    CHECK(symlink("nothing", unit_path("link")) == 0); // which leads nowhere
    CHECK(refused(unit_path("link"), "link is there already") && !file_exists(unit_path("nothing")));
    CHECK(refused(".", ". is there already"));
    remove(unit_path("link"));
    export_remove_(folder);
    free(params);
}

static void names_that_cannot_be_are_refused(void) {
    char longest[1024];
    memset(longest, 'x', sizeof(longest));
    longest[1000] = '\0';
    CHECK(refused(longest, "longer than 900"));
    CHECK(refused(unit_path("a/b"), "a/b.tmp|No such file"));
    CHECK(refused(unit_path("a/b.bin"), "a/b.bin.tmp|No such file"));
}

// A folder of that name would surprise whoever expects a file; a '/' says that it is meant.
static void formats_that_are_not_written_are_refused(void) {
    static const char* const others[] = {"m.pt", "m.gguf", "m.BIN", "m.safetensor", "m.safetensors.h5", "gpt2.v1"};
    static const char* const folders[] = {"gpt2.v1/", "gpt2-0.5", ".hidden", "m.", "gpt2.5"};
    float* params = make_weights(0);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        CHECK(refused(unit_path(others[i]), "unknown format; name a file .bin (llm.c) or .safetensors, or a folder"));
        CHECK(!file_exists(unit_path(others[i])));
    }
    for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++) {
        CHECK(export_to(unit_path(folders[i]), params, "auto") == STATUS_OK && folder_exists(unit_path(folders[i])));
        export_remove_(unit_path(folders[i]));
    }
    free(params);
}

static void a_folder_may_end_in_a_slash(void) {
    float* params = make_weights(0);
    char slashes[1024];
    snprintf(slashes, sizeof(slashes), "%s//", unit_path("new"));
    CHECK(export_to(slashes, params, "auto") == STATUS_OK && reads_as(unit_path("new"), params));
    export_remove_(unit_path("new"));
    free(params);
}

// What an export at work has, or a killed one has left, is not touched.
static void another_export_is_not_disturbed(void) {
    float* first = make_weights(0);
    mkdir(unit_path("both.tmp"), 0755);
    unit_write(unit_path("both.tmp/model.safetensors.tmp"), "half", 4);
    CHECK(export_to(unit_path("both"), first, "auto") == STATUS_ERROR);
    CHECK(strstr(status_message(),
                 "both.tmp is there: another export is running, or was killed; wait, or remove that folder") != NULL);
    CHECK(unit_file_is(unit_path("both.tmp/model.safetensors.tmp"), "half") && !file_exists(unit_path("both")));
    status_clear();
    unlink(unit_path("both.tmp/model.safetensors.tmp"));
    rmdir(unit_path("both.tmp"));
    // one that found nothing at its start, and ends after the other
    CHECK(export_to(unit_path("both"), first, "auto") == STATUS_OK);
    CHECK(export_folder_(unit_path("both"), first, CONFIG, WEIGHTS_BF16, NULL) == STATUS_ERROR);
    CHECK(strstr(status_message(), "cannot rename") != NULL && !file_exists(unit_path("both.tmp")));
    CHECK(reads_as(unit_path("both"), first));
    status_clear();
    export_remove_(unit_path("both"));
    free(first);
}

// Fails as on a full disk: no file may have more than 50,000 bytes.
static void export_with_little_room(const char* target, const float* params) {
    struct rlimit limit = {50000, 50000};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    check(export_to(target, params, "fp32"));
}

static void a_write_that_fails_leaves_nothing(void) {
    float* params = make_weights(0);
    const char *folder = unit_path("full"), *file = unit_path("full.bin");
    CHECK_FATAL("cannot write|model.safetensors", export_with_little_room(folder, params));
    CHECK_FATAL("cannot write|full.bin", export_with_little_room(file, params));
    CHECK(!file_exists(unit_path("full")) && !file_exists(unit_path("full.bin")));
    CHECK(!file_exists(unit_path("full.tmp")) && !file_exists(unit_path("full.bin.tmp")));
    free(params);
}

static void a_tokenizer_that_is_no_bpe_is_refused(void) {
    float* params = make_weights(0);
    Tokenizer t;
    memset(&t, 0, sizeof(t));
    t.ready = 1, t.vocab_size = 2, t.eot_token = 1;
    t.bytes = (unsigned char*)malloc_check(2);
    t.offsets = (size_t*)calloc_check(3, sizeof(size_t));
    memcpy(t.bytes, "ab", 2);
    t.offsets[1] = 1, t.offsets[2] = 2;
    const char* folder = unit_path("tokens");
    CHECK(export_weights(folder, params, CONFIG, "auto", &t) == STATUS_ERROR);
    CHECK(strstr(status_message(), "no token is the byte 0x00") != NULL);
    CHECK(!file_exists(folder) && !file_exists(unit_path("tokens.tmp")));
    status_clear();
    tokenizer_free(&t);
    free(params);
}

int main(void) {
    read_write_read_is_the_same_bits(0);
    read_write_read_is_the_same_bits(1);
    a_type_that_is_asked_for_is_written();
    an_export_keeps_the_trained_length();
    nothing_is_overwritten();
    names_that_cannot_be_are_refused();
    formats_that_are_not_written_are_refused();
    a_folder_may_end_in_a_slash();
    another_export_is_not_disturbed();
    a_write_that_fails_leaves_nothing();
    a_tokenizer_that_is_no_bpe_is_refused();
    return unit_end();
}
