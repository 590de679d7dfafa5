// llmc/files/export_weights.h: targets by their names, read -> write -> read, and what is never overwritten.
#include <sys/resource.h>

#include "dev/test/fixtures/file_calls.h"
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

static Status export_to(const char* target, const float* params, const char* dtype, int overwrite) {
    return export_weights(target, params, CONFIG, dtype, NULL, overwrite);
}

// 1 where the export is refused, with all of the words, which '|' separates, and nothing stands under a temporary name.
static int refused(const char* target, const char* dtype, int overwrite, const char* words) {
    char list[512], temporary[1024];
    float* params = make_weights(0);
    int found = export_to(target, params, dtype, overwrite) == STATUS_ERROR;
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
    CHECK(export_to(first, params, "auto", 1) == STATUS_OK && reads_as(first, params));
    ModelHeader header;
    check(gpt2_read_model_header(first, &header));
    CHECK(header.version == (bf16 ? MODEL_VERSION_BF16 : MODEL_VERSION_FP32));
    CHECK(export_to(file, params, "auto", 1) == STATUS_OK && reads_as(file, params));
    CHECK(export_to(unit_path("folder"), params, "auto", 0) == STATUS_OK && reads_as(unit_path("folder"), params));
    GPT2Config config;
    float* found;
    int unchecked;
    check(weights_load(&found, file, &config, &unchecked));
    CHECK(export_to(again, found, "auto", 1) == STATUS_OK && same_files(file, again));
    CHECK(export_to(second, found, "auto", 1) == STATUS_OK && same_files(first, second));
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
        check(export_weights(targets[i], params, config, "auto", NULL, 0));
        check(weights_read_config(targets[i], &sizes));
        CHECK(sizes.trained_len == lengths[i] && sizes.max_seq_len == CONFIG.max_seq_len);
        check(weights_load(&found, targets[i], &sizes, &unchecked));
        CHECK(sizes.trained_len == lengths[i]);
        free(found);
    }
    export_remove_(targets[1]);
    free(params);
}

// What is cast is what the type rounds to; fp16 that loses nothing is written to llm.c's file in fp32.
static void a_type_that_is_asked_for_is_written(void) {
    float *params = make_weights(0), *rounded = make_weights(0);
    const char* path = unit_path("cast.bin");
    for (size_t i = 0; i < count_weights(); i++) { rounded[i] = bf16_to_float(float_to_bf16(params[i])); }
    CHECK(export_to(path, params, "bf16", 1) == STATUS_OK && reads_as(path, rounded));
    CHECK(export_to(path, rounded, "fp32", 1) == STATUS_OK && reads_as(path, rounded));
    ModelHeader header;
    check(gpt2_read_model_header(path, &header));
    CHECK(header.version == MODEL_VERSION_FP32);
    for (size_t i = 0; i < count_weights(); i++) { rounded[i] = fp16_to_float(float_to_fp16(params[i])); }
    path = unit_path("half.safetensors");
    CHECK(export_to(path, params, "fp16", 1) == STATUS_OK && reads_as(path, rounded));
    path = unit_path("half.bin");
    CHECK(export_to(path, rounded, "auto", 1) == STATUS_OK && reads_as(path, rounded));
    params[5] = 3.4e38f;
    CHECK(export_to(path, params, "bf16", 1) == STATUS_ERROR && strstr(status_message(), "too large") != NULL);
    CHECK(reads_as(path, rounded) && !file_exists(unit_path("half.bin.tmp")));
    status_clear();
    free(rounded);
    free(params);
}

// ----------------------------------------------------------------------------
// Refusals

static void nothing_is_overwritten_unless_it_is_asked_for(void) {
    float* params = make_weights(0);
    const char *file = unit_path("kept.bin"), *folder = unit_path("kept");
    unit_write(file, "mine", 4);
    CHECK(refused(file, "auto", 0, "kept.bin|--overwrite"));
    CHECK(unit_file_is(file, "mine"));
    CHECK(export_to(file, params, "auto", 1) == STATUS_OK && reads_as(file, params));
    check(export_to(folder, params, "fp32", 0));
    CHECK(refused(folder, "bf16", 0, "kept|not empty|--overwrite"));
    params[0] += 1.0f;
    CHECK(export_to(folder, params, "fp32", 1) == STATUS_OK && reads_as(folder, params));
    CHECK(!file_exists(unit_path("kept.tmp")));
    // a file that no export wrote
    unit_write(unit_path("kept/notes.txt"), "mine", 4);
    CHECK(refused(folder, "auto", 1, "kept|notes.txt|another folder"));
    CHECK(unit_file_is(unit_path("kept/notes.txt"), "mine") && reads_as(folder, params));
    remove(unit_path("kept/notes.txt"));
    export_remove_(folder);
    free(params);
}

static void names_that_cannot_be_are_refused(void) {
    char longest[1024];
    memset(longest, 'x', sizeof(longest));
    longest[1000] = '\0';
    CHECK(refused("", "auto", 0, "--export|no name"));
    CHECK(refused(longest, "auto", 0, "longer than 900"));
    CHECK(refused(unit_path("a/b"), "auto", 0, "a/b.tmp|No such file"));
    CHECK(refused(unit_path("a.bin"), "fp16", 0, "a.bin|fp16"));
    CHECK(refused(unit_path("a"), "int8", 0, "int8|auto, fp32, bf16 or fp16"));
    mkdir(unit_path("folder.bin"), 0755);
    CHECK(refused(unit_path("folder.bin"), "auto", 1, "is a folder"));
    rmdir(unit_path("folder.bin"));
    unit_write(unit_path("file"), "mine", 4);
    CHECK(refused(unit_path("file"), "auto", 1, "is a file") && unit_file_is(unit_path("file"), "mine"));
}

// ----------------------------------------------------------------------------
// Folders

static void folders_have_many_names(void) {
    float* params = make_weights(0);
    char slashes[1024];
    mkdir(unit_path("empty"), 0755);
    snprintf(slashes, sizeof(slashes), "%s//", unit_path("empty"));
    CHECK(export_to(slashes, params, "auto", 0) == STATUS_OK && reads_as(unit_path("empty"), params));
    params[1] += 1.0f;
    CHECK(symlink("empty", unit_path("link")) == 0);
    CHECK(export_to(unit_path("link"), params, "auto", 1) == STATUS_OK && reads_as(unit_path("empty"), params));
    struct stat st;
    CHECK(lstat(unit_path("link"), &st) == 0 && S_ISLNK(st.st_mode) && !file_exists(unit_path("link.tmp")));
    remove(unit_path("link"));
    export_remove_(unit_path("empty"));
    free(params);
}

static void folders_that_cannot_be_replaced_are_refused(void) {
    float* params = make_weights(0);
    char before[1024], here[1024];
    mkdir(unit_path("here"), 0755);
    snprintf(here, sizeof(here), "%s", unit_path("here"));
    CHECK(getcwd(before, sizeof(before)) != NULL && chdir(here) == 0);
    CHECK(refused(".", "auto", 0, "the folder that you are in|name a folder in it"));
    CHECK(refused(here, "auto", 1, "here|the folder that you are in"));
    CHECK(chdir(before) == 0);
    // links that lead nowhere
    CHECK(symlink("nothing", unit_path("link")) == 0 && symlink("nothing", unit_path("link.bin")) == 0);
    CHECK(refused(unit_path("link"), "auto", 1, "link|stays as it is"));
    CHECK(refused(unit_path("link.bin"), "auto", 0, "link.bin|--overwrite"));
    CHECK(!file_exists(unit_path("nothing")) && remove(unit_path("link")) == 0 && remove(unit_path("link.bin")) == 0);
    rmdir(here);
    free(params);
}

static void a_folder_that_may_not_be_changed_is_refused(void) {
    float* params = make_weights(0);
    CHECK(export_to(unit_path("foreign"), params, "auto", 0) == STATUS_OK);
    CHECK(chmod(unit_path("foreign"), 0555) == 0 && chmod(unit_path("."), 0777) == 0);
    if (unit_fork()) {
        if (geteuid() == 0 && setuid(65534) != 0) { _exit(2); } // root may change anything
        _exit(!refused(unit_path("foreign"), "auto", 1, "foreign|Permission denied"));
    }
    CHECK(unit_wait().exit_code == 0);
    CHECK(chmod(unit_path("."), 0700) == 0 && chmod(unit_path("foreign"), 0755) == 0);
    export_remove_(unit_path("foreign"));
    export_remove_(unit_path("foreign.tmp"));
    free(params);
}

static void a_folder_keeps_its_permissions(void) {
    float* params = make_weights(0);
    struct stat st;
    mkdir(unit_path("mine"), 0700);
    for (int overwrite = 0; overwrite <= 1; overwrite++) {
        CHECK(export_to(unit_path("mine"), params, "auto", overwrite) == STATUS_OK);
        CHECK(stat(unit_path("mine"), &st) == 0 && (st.st_mode & 0777) == 0700);
    }
    export_remove_(unit_path("mine"));
    free(params);
}

// What an export at work has, or a killed one has left, is not touched.
static void another_export_is_not_disturbed(void) {
    float *first = make_weights(0), *second = make_weights(0);
    char late[1024];
    second[0] = 7.0f;
    mkdir(unit_path("both.tmp"), 0755);
    unit_write(unit_path("both.tmp/model.safetensors.tmp"), "half", 4);
    CHECK(export_to(unit_path("both"), first, "auto", 0) == STATUS_ERROR);
    CHECK(strstr(status_message(),
                 "both.tmp is there: another export is running, or was killed; wait, or remove that folder") != NULL);
    CHECK(unit_file_is(unit_path("both.tmp/model.safetensors.tmp"), "half") && !file_exists(unit_path("both")));
    status_clear();
    export_remove_(unit_path("both.tmp"));
    CHECK(export_to(unit_path("both"), first, "auto", 0) == STATUS_OK);
    // one that found nothing at its start, and ends after the other
    CHECK(export_to(unit_path("late"), second, "auto", 0) == STATUS_OK);
    snprintf(late, sizeof(late), "%s", unit_path("late"));
    CHECK(export_rename_(late, unit_path("both"), 0) == STATUS_ERROR && reads_as(unit_path("both"), first));
    status_clear();
    CHECK(export_rename_(late, unit_path("both"), 1) == STATUS_OK && reads_as(unit_path("both"), second));
    export_remove_(unit_path("both"));
    free(first);
    free(second);
}

// Fails as on a full disk: no file may have more than 50,000 bytes.
static void export_with_little_room(const char* target, const float* params) {
    struct rlimit limit = {50000, 50000};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    check(export_to(target, params, "fp32", 1));
}

static void a_write_that_fails_leaves_what_was_there(void) {
    float *params = make_weights(0), *other = make_weights(1);
    const char *folder = unit_path("full"), *file = unit_path("full.bin");
    check(export_to(folder, params, "fp32", 0));
    check(export_to(file, params, "fp32", 0));
    CHECK_FATAL("cannot write|model.safetensors", export_with_little_room(folder, other));
    CHECK_FATAL("cannot write|full.bin", export_with_little_room(file, other));
    CHECK(reads_as(folder, params) && reads_as(file, params));
    CHECK(!file_exists(unit_path("full.tmp")) && !file_exists(unit_path("full.bin.tmp")));
    export_remove_(folder);
    free(other);
    free(params);
}

static void a_file_system_that_cannot_exchange_folders_keeps_both(void) {
    float* params = make_weights(0);
    const char* folder = unit_path("exchange");
    CHECK(export_to(folder, params, "auto", 0) == STATUS_OK);
    file_calls_begin();
    file_faults.exchange = EINVAL;
    CHECK(refused(folder, "auto", 1, "exchange.tmp|in the place of|remove that first"));
    file_faults.exchange = 0;
    CHECK(reads_as(folder, params));
    CHECK(export_to(folder, params, "auto", 1) == STATUS_OK && reads_as(folder, params));
    export_remove_(folder);
    free(params);
}

static void a_tokenizer_that_is_no_bpe_is_said(void) {
    float* params = make_weights(0);
    Tokenizer t;
    memset(&t, 0, sizeof(t));
    t.ready = 1, t.vocab_size = 2, t.eot_token = 1;
    t.bytes = (unsigned char*)malloc_check(2);
    t.offsets = (size_t*)calloc_check(3, sizeof(size_t));
    memcpy(t.bytes, "ab", 2);
    t.offsets[1] = 1, t.offsets[2] = 2;
    const char* folder = unit_path("tokens");
    UNIT_CHECK_CHILD_(unit_child.exit_code == 0 && strstr(unit_child.text, "warning: ") == unit_child.text &&
                          strstr(unit_child.text, "no tokenizer") != NULL &&
                          strstr(unit_child.text, ".tmp") == NULL, // the folder's name is another then
                      "a warning", check(export_weights(folder, params, CONFIG, "auto", &t, 0)));
    CHECK(reads_as(folder, params) && !file_exists(unit_path("tokens/vocab.json")));
    export_remove_(folder);
    tokenizer_free(&t);
    free(params);
}

int main(void) {
    read_write_read_is_the_same_bits(0);
    read_write_read_is_the_same_bits(1);
    a_type_that_is_asked_for_is_written();
    an_export_keeps_the_trained_length();
    nothing_is_overwritten_unless_it_is_asked_for();
    names_that_cannot_be_are_refused();
    folders_have_many_names();
    folders_that_cannot_be_replaced_are_refused();
    a_folder_that_may_not_be_changed_is_refused();
    a_folder_keeps_its_permissions();
    another_export_is_not_disturbed();
    a_write_that_fails_leaves_what_was_there();
    a_file_system_that_cannot_exchange_folders_keeps_both();
    a_tokenizer_that_is_no_bpe_is_said();
    return unit_end();
}
