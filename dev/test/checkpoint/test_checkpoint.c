/*
llmc/checkpoint/checkpoint.h: what a checkpoint brings back, which are refused, and what a failed write leaves.
*/
#include "dev/test/fixtures/file_calls.h" // before the headers whose calls it records

#include "llmc/checkpoint/checkpoint.h"

#include <signal.h>

#include "checkpoint_fixture.h"
#include "dev/test/fixtures/model_verify.h"

#include <sys/resource.h>

static const char* state_path(void) { return unit_path("state_00000012_00000.bin"); }
static const char* model_path(void) { return unit_path("model_00000012.bin"); }
static const char* done_path(void) { return unit_path("DONE_00000012"); }

static CheckpointSource source_of(GPT2* model) {
    static char buffer[CHECKPOINT_BUFFER];
    return checkpoint_source(model, buffer);
}

// Writes a checkpoint of `step` after five batches; the result is of checkpoint_write.
static Status write_step(GPT2* model, int shuffle, int step, int* not_finite) {
    DataLoader d;
    RunState run;
    const int *inputs, *targets;
    CheckpointSource source = source_of(model);
    open_loader(&d, shuffle);
    for (int i = 0; i < 5; i++) { check(dataloader_next(&d, &inputs, &targets)); }
    dataloader_get_state(&d, &run.loader);
    dataloader_close(&d);
    run.step = step;
    run.outliers = make_outliers();
    check(run_state_take_scales(&run, model));
    run.identity = identity;
    Status result = checkpoint_write(&source, &run, folder());
    run_state_free(&run);
    if (not_finite != NULL) { *not_finite = source.not_finite; }
    return result;
}

static void write_one(int master_weights, int shuffle) {
    GPT2 model = make_model(master_weights, 1.0f);
    check(write_step(&model, shuffle, STEP, NULL));
    free_model(&model);
}

// Reads the state of step 12 into a model and a loader as they are when a program has just started.
static void read_one(int master_weights, int shuffle, int B) {
    GPT2 model = make_model(master_weights, -1.0f);
    DataLoader d;
    Outliers outliers;
    model.info.B = B;
    open_loader(&d, shuffle);
    check(checkpoint_read(&model, &d, &outliers, folder(), STEP));
    dataloader_close(&d);
    free_model(&model);
}

static int same_numbers(const float* a, const float* b, size_t n) { return memcmp(a, b, n * sizeof(float)) == 0; }

static void everything_comes_back(int saved_master, int master, int shuffle) {
    write_one(saved_master, shuffle);
    GPT2 saved = make_model(1, 1.0f), before = make_model(1, -1.0f), model = make_model(master, -1.0f);
    size_t n = model.info.num_parameters;
    DataLoader whole, d;
    const int *x[2], *y[2];
    static Outliers outliers; // with all of these on the stack the frame would be too large
    Outliers expected = make_outliers();
    open_loader(&whole, shuffle);
    open_loader(&d, shuffle);
    for (int i = 0; i < 5; i++) { check(dataloader_next(&whole, &x[0], &y[0])); }
    memset(&outliers, 0xff, sizeof(outliers));
    check(checkpoint_read(&model, &d, &outliers, folder(), STEP));
    for (int i = GPT2_MOMENTS1; i <= GPT2_MASTER_WEIGHTS; i++) {
        const GPT2* from = i == GPT2_MASTER_WEIGHTS && !saved_master ? &before : &saved; // none came: they stay
        if (model.blocks[i]) { CHECK(same_numbers(model.blocks[i], from->blocks[i], n)); }
    }
    CHECK(memcmp(&outliers, &expected, sizeof(outliers)) == 0);
    int same = 1;
    for (int i = 0; i < 20; i++) {
        check(dataloader_next(&whole, &x[0], &y[0]));
        check(dataloader_next(&d, &x[1], &y[1]));
        same = same && memcmp(x[0], x[1], 9 * sizeof(int)) == 0;
    }
    CHECK(same);
    ModelHeader header;
    float* params;
    check(gpt2_load_parameters(&params, unit_path("model_00000012.bin"), &header));
    CHECK(same_numbers(params, saved.blocks[GPT2_WEIGHTS], n));
    free(params);
    dataloader_close(&whole);
    dataloader_close(&d);
    free_model(&saved);
    free_model(&before);
    free_model(&model);
}

static void other_settings_are_refused(void) {
    write_one(0, 1);
    CHECK_FATAL("state_00000012_00000.bin|-b 2 -t 4", read_one(0, 1, 4));
    CHECK_FATAL("state_00000012_00000.bin|-a 0", read_one(0, 0, 2));
    CHECK_ENDS_WELL(read_one(1, 1, 2)); // -w was compared with the settings
    unit_unseal(state_path());
    unit_patch(state_path(), 4 * STATE_NUM_PROCESSES, 8);
    CHECK_FATAL("state_00000012_00000.bin|process 0 of 8", read_one(0, 1, 2));
    unit_patch(state_path(), 4, 2);
    CHECK_FATAL("state_00000012_00000.bin|version 2", read_one(0, 1, 2));
    unit_patch(state_path(), 0, 0);
    CHECK_FATAL("state_00000012_00000.bin|magic number", read_one(0, 1, 2));
}

// Every length that is not the file's, with checksums and without
static void damaged_states_are_refused(void) {
    size_t size;
    for (int stripped = 0; stripped < 2; stripped++) {
        write_one(1, 1);
        if (stripped) { unit_unseal(state_path()); }
        char* state = unit_read(state_path(), &size);
        for (size_t cut = 0; cut < size; cut += size / 37 + 1) {
            unit_truncate(state_path(), cut);
            CHECK_FATAL("state_00000012_00000.bin", read_one(1, 1, 2));
            unit_write(state_path(), state, size);
        }
        unit_truncate(state_path(), size - 1);
        CHECK_FATAL("state_00000012_00000.bin|truncated", read_one(1, 1, 2));
        unit_write(state_path(), state, size);
        unit_truncate(state_path(), size + 1);
        CHECK_FATAL("state_00000012_00000.bin|trailing bytes", read_one(1, 1, 2));
        free(state);
    }
}

// Some flips in every part of both files: checkpoint_verify sees each, and so does the reading of the state.
static void flipped_bits_are_refused(void) {
    size_t size;
    const char* paths[] = {model_path(), state_path()};
    write_one(1, 1);
    CHECK(checkpoint_verify(folder(), STEP) == STATUS_OK);
    for (int file = 0; file < 2; file++) {
        char* data = unit_read(paths[file], &size);
        int seen = 0, tried = 0;
        for (size_t at = 0; at < size; at += size / 97 + 1, tried++) {
            data[at] ^= (char)(1 << (tried % 8));
            unit_write(paths[file], data, size);
            seen += checkpoint_verify(folder(), STEP) != STATUS_OK && strstr(status_message(), paths[file]) != NULL;
            data[at] ^= (char)(1 << (tried % 8));
        }
        CHECK(seen == tried);
        data[size / 2] ^= 4;
        unit_write(paths[file], data, size);
        CHECK(checkpoint_verify(folder(), STEP) != STATUS_OK && strstr(status_message(), "bytes") != NULL);
        if (file == 1) { CHECK_FATAL("state_00000012_00000.bin|bytes|checksum", read_one(1, 1, 2)); }
        data[size / 2] ^= 4;
        unit_write(paths[file], data, size);
        free(data);
    }
    CHECK(checkpoint_verify(folder(), STEP) == STATUS_OK);
}

// Puts a number of 32 bits of the state file to another value, which ends with one line that holds the words.
static void check_word(const char* state, size_t size, size_t offset, int32_t value, const char* words) {
    unit_write(state_path(), state, size);
    unit_patch(state_path(), offset, (uint16_t)value);
    unit_patch(state_path(), offset + 2, (uint16_t)((uint32_t)value >> 16));
    CHECK_FATAL(words, read_one(1, 1, 2));
    CHECK(checkpoint_verify(folder(), STEP) != STATUS_OK || strstr(words, "-b") != NULL ||
          strstr(words, "token file") || strstr(words, "sample"));
}

// Where the numbers stand is the files' format: a build that moves one reads no older run.
static void positions_are_the_format(void) {
    static const int format[][2] = {
        {2, STATE_NUM_PROCESSES}, {3, STATE_RANK},   {4, STATE_MASTER_WEIGHTS}, {5, STATE_SHUFFLE},
        {10, STATE_STEP},         {20, STATE_RNG},   {22, STATE_RNG_LAST},      {30, STATE_SHARD},
        {32, STATE_SAMPLE},       {34, STATE_BATCH}, {35, STATE_TIME},          {36, STATE_OUTLIERS},
        {38, STATE_MODEL},        {40, STATE_RUN},   {42, STATE_SETTINGS},      {44, STATE_SETTINGS_DIGEST},
        {46, STATE_DATA_DIGEST},  {48, STATE_NAMES}, {8, MODEL_STEP},           {10, MODEL_DIGEST},
        {12, MODEL_RUN}};
    for (size_t i = 0; i < sizeof(format) / sizeof(format[0]); i++) { CHECK(format[i][0] == format[i][1]); }
    CHECK(STATE_MAGIC == 20240527 && STATE_VERSION == 1 && MODEL_MAGIC == 20240326);
    CHECK(MODEL_VERSION_FP32 == 3 && MODEL_VERSION_BF16 == 5);
}

static void damaged_headers_are_refused(void) {
    static const struct {
        int word;
        int32_t value;
        const char* words;
    } patches[] = {
        {STATE_RANK, 1, "process 1 of 1"},
        {STATE_RANK, -1, "process -1 of 1"},
        {STATE_NUM_PROCESSES, 0, "process 0 of 0"},
        {STATE_MASTER_WEIGHTS, 2, "word 4 is 2, not 0 or 1"},
        {STATE_MASTER_WEIGHTS, -1, "word 4 is -1, not 0 or 1"},
        {STATE_SHUFFLE, 2, "word 5 is 2, not 0 or 1"},
        {STATE_OUTLIERS, 2, "word 36 is 2, not 0 or 1"},
        {STATE_OUTLIERS, 0, "trailing bytes"},
        {STATE_SETTINGS, -1, "-1 bytes of settings"},
        {STATE_SETTINGS, INT32_MAX, "2147483647 bytes of settings"},
        {STATE_SETTINGS, 1, "trailing bytes"},
        {STATE_RUN, 1, "together with"},
        {STATE_RUN + 1, 1, "together with"},
        {STATE_BATCH, 0, "-b 0 -t 4"},
        {STATE_BATCH, -2, "-b -2 -t 4"},
        {STATE_TIME, INT32_MIN, "-b 2 -t -2147483648"},
        {STATE_STEP, -12, "holds step -12|name says step 12"},
        {STATE_SHARD, 1, "token file 1"},
        {STATE_SHARD + 1, INT32_MIN, "word 30, a position|is -9223372036854775808"},
        {STATE_SAMPLE, 13, "sample 13"},
        {STATE_SAMPLE + 1, -1, "word 32, a position|corrupt"},
        {STATE_SAMPLE + 1, 1, "sample 4294967301"},
    };
    size_t size;
    write_one(1, 1);
    unit_unseal(state_path());
    char* state = unit_read(state_path(), &size);
    for (size_t i = 0; i < sizeof(patches) / sizeof(patches[0]); i++) {
        char words[128];
        snprintf(words, sizeof(words), "state_00000012_00000.bin|%s", patches[i].words);
        check_word(state, size, 4 * (size_t)patches[i].word, patches[i].value, words);
    }
    free(state);
}

// Every bit of both detectors' counts and indices: what is accepted still counts as a detector should.
static void damaged_outlier_detectors_are_refused(void) {
    size_t size;
    write_one(1, 1);
    unit_unseal(state_path());
    char* state = unit_read(state_path(), &size);
    for (int detector = 0; detector < 2; detector++) {
        size_t count = size - identity.text_bytes - sizeof(Outliers) + (size_t)detector * sizeof(OutlierDetector) +
                       128 * sizeof(double);
        for (int bit = 0; bit < 32; bit++) {
            int32_t flipped = (int32_t)(128u ^ (1u << bit)); // the window is full, and the oldest value the 72nd
            check_word(state, size, count, flipped, "state_00000012_00000.bin|outlier detectors|corrupt");
            flipped = (int32_t)(72u ^ (1u << bit));
            if (flipped >= 0 && flipped < 128) { continue; } // another index, but one of the window
            check_word(state, size, count + 4, flipped, "state_00000012_00000.bin|outlier detectors|corrupt");
        }
        check_word(state, size, count - 4, 0x7ff80000, "state_00000012_00000.bin|outlier detectors|corrupt"); // NaN
        check_word(state, size, count - 4, 0x7ff00000, "state_00000012_00000.bin|outlier detectors|corrupt");
        check_word(state, size, count - 4, 0x7fe00000, "state_00000012_00000.bin|outlier detectors|corrupt");
    }
    free(state);
}

// Scales of fp8 operands come back; a run that has none, or another number, leaves them as they are.
static void scales_come_back(void) {
    GPT2 saved = make_model(1, 1.0f);
    saved.num_scales = 3, saved.scales[0] = 0x1p-60f, saved.scales[1] = 1, saved.scales[2] = 0x1p40f;
    check(write_step(&saved, 1, STEP, NULL));
    for (int count = 0; count <= 4; count++) {
        GPT2 model = make_model(1, -1.0f);
        DataLoader d;
        Outliers outliers;
        model.num_scales = count, model.scales[0] = model.scales[1] = model.scales[2] = -5;
        open_loader(&d, 1);
        check(checkpoint_read(&model, &d, &outliers, folder(), STEP));
        for (int i = 0; i < 3; i++) { CHECK(model.scales[i] == (count == 3 ? saved.scales[i] : -5)); }
        dataloader_close(&d);
        free_model(&model);
    }
    size_t size;
    unit_unseal(state_path());
    char* state = unit_read(state_path(), &size);
    size_t first = size - identity.text_bytes - 3 * sizeof(float);
    for (size_t i = 0; i < 3; i++) {
        static const int32_t words[] = {0, 0x3fc00000, 0x7f800000, 0x7fc00000,
                                        -0x40800000}; // 0, 1.5, infinity, NaN, -1
        for (int w = 0; w < 5; w++) {
            check_word(state, size, first + 4 * i, words[w], "state_00000012_00000.bin|scale|corrupt");
        }
    }
    check_word(state, size, 4 * STATE_SCALES, -1, "state_00000012_00000.bin|scales|corrupt");
    check_word(state, size, 4 * STATE_SCALES, 1 << 30, "state_00000012_00000.bin|scales|corrupt");
    free(state);
    free_model(&saved);
}

// ----------------------------------------------------------------------------
// Files that do not belong together

static void read_as_step(int step) {
    GPT2 model = make_model(1, -1.0f);
    DataLoader d;
    Outliers outliers;
    open_loader(&d, 1);
    check(checkpoint_read(&model, &d, &outliers, folder(), step));
    dataloader_close(&d);
    free_model(&model);
}

static void renamed_files_are_refused(void) {
    const char *state_13 = unit_path("state_00000013_00000.bin"), *model_13 = unit_path("model_00000013.bin");
    write_one(1, 1);
    CHECK_ENDS_WELL(read_as_step(STEP));
    rename(state_path(), state_13);
    rename(model_path(), model_13);
    CHECK_FATAL("state_00000013_00000.bin|holds step 12|name says step 13", read_as_step(13));
    unit_unseal(state_13);
    unit_patch(state_13, 4 * STATE_STEP, 13);
    CHECK_FATAL("model_00000013.bin|holds step 12|name says step 13", read_as_step(13));
    CHECK_FATAL("state_00000012_00000.bin|No such file", read_as_step(12));
    rename(state_13, state_path());
    CHECK_FATAL("model_00000012.bin|No such file", read_as_step(12));
}

static void a_model_and_a_state_of_two_runs_are_refused(void) {
    size_t size;
    write_one(1, 1);
    char* state = unit_read(state_path(), &size);
    GPT2 other = make_model(1, 2.0f); // other weights
    check(write_step(&other, 1, STEP, NULL));
    unit_write(state_path(), state, size);
    CHECK_FATAL("state_00000012_00000.bin|together with|model_00000012.bin", read_as_step(STEP));
    CHECK(checkpoint_verify(folder(), STEP) != STATUS_OK);
    free(state);
    write_one(1, 1);
    unit_unseal(model_path());
    CHECK_ENDS_WELL(read_as_step(STEP));
    unit_patch(model_path(), 4 * MODEL_RUN, 1); // the same weights of another run
    CHECK_FATAL("state_00000012_00000.bin|together with|model_00000012.bin", read_as_step(STEP));
    for (size_t i = 0; i < 2 * (MODEL_RUN + 2 - MODEL_STEP); i++) {
        unit_patch(model_path(), 4 * MODEL_STEP + 2 * i, 0);
    }
    CHECK_FATAL("state_00000012_00000.bin|together with|model_00000012.bin", read_as_step(STEP));
    // as the version before the last wrote both, and as llm.c does
    unit_unseal(state_path());
    for (size_t i = 0; i < 4; i++) { unit_patch(state_path(), 4 * STATE_MODEL + 2 * i, 0); }
    CHECK_FATAL("state_00000012_00000.bin|together with|model_00000012.bin", read_as_step(STEP));
    for (size_t i = 0; i < 4; i++) { unit_patch(state_path(), 4 * STATE_RUN + 2 * i, 0); }
    CHECK_ENDS_WELL(read_as_step(STEP));
    free_model(&other);
}

// Puts both files back to what the version before this one wrote: no checksums, nothing after STATE_MODEL, and a digest of
// the weights' bytes where now their checksums identify them. Returns the size of the state.
static size_t as_the_version_before(void) {
    size_t bytes;
    unit_unseal(state_path());
    unit_unseal(model_path());
    char* model = unit_read(model_path(), &bytes);
    Digest weights = digest_begin();
    digest_update(&weights, model + HEADER_BYTES, bytes - HEADER_BYTES);
    uint64_t digest = digest_end(weights);
    free(model);
    for (size_t i = 0; i < 4; i++) {
        unit_patch(model_path(), 4 * MODEL_DIGEST + 2 * i, (uint16_t)(digest >> (16 * i)));
        unit_patch(state_path(), 4 * STATE_MODEL + 2 * i, (uint16_t)(digest >> (16 * i)));
        unit_patch(model_path(), 4 * MODEL_RUN + 2 * i, 0);
    }
    for (size_t i = 0; i < 16; i++) { unit_patch(state_path(), 4 * STATE_RUN + 2 * i, 0); }
    free(unit_read(state_path(), &bytes));
    unit_truncate(state_path(), bytes - identity.text_bytes);
    return bytes - identity.text_bytes;
}

// llm.c writes neither batch nor outliers, nor a digest.
static void older_states_are_read(void) {
    RunIdentity id;
    write_one(1, 1);
    size_t size = as_the_version_before();
    CHECK_ENDS_WELL(read_one(1, 1, 2));
    CHECK(checkpoint_verify(folder(), STEP) == STATUS_OK);
    CHECK(checkpoint_read_identity(&id, folder(), STEP) == STATUS_OK);
    CHECK(id.run == 0 && id.settings == 0 && id.data == 0 && id.text_bytes == 0 && id.text[0] == '\0');
    run_identity_free(&id);
    for (size_t i = 0; i < 4; i++) {
        unit_patch(model_path(), 4 * MODEL_DIGEST + 2 * i, 0);
        unit_patch(state_path(), 4 * STATE_MODEL + 2 * i, 0);
    }
    unit_patch(state_path(), 4 * STATE_BATCH, 0);
    unit_patch(state_path(), 4 * STATE_TIME, 0);
    unit_patch(state_path(), 4 * STATE_OUTLIERS, 0);
    unit_truncate(state_path(), size - sizeof(Outliers));
    CHECK_ENDS_WELL(read_one(1, 1, 2));
    CHECK(checkpoint_verify(folder(), STEP) == STATUS_OK);
    write_one(0, 1);
    as_the_version_before(); // no settings to compare -w with
    CHECK_FATAL("state_00000012_00000.bin|no master weights|-w 0", read_one(1, 1, 2));
    CHECK_ENDS_WELL(read_one(0, 1, 2));
}

static void the_identity_comes_back(void) {
    RunIdentity id;
    write_one(1, 1);
    CHECK(checkpoint_read_identity(&id, folder(), STEP) == STATUS_OK);
    CHECK(id.run == identity.run && id.settings == identity.settings && id.data == identity.data);
    CHECK(id.text_bytes == identity.text_bytes && strcmp(id.text, identity.text) == 0);
    run_identity_free(&id);
    CHECK(checkpoint_read_identity(&id, folder(), 13) != STATUS_OK);
}

// ----------------------------------------------------------------------------
// Numbers that are not finite

static int message_has(const char* word) { return strstr(status_message(), word) != NULL; }

static void numbers_that_are_not_finite_are_not_written(void) {
    static const char* names[] = {"weights", "gradients", "first moments", "second moments", "master weights"};
    static const float values[] = {NAN, INFINITY, -INFINITY};
    unit_clean();
    for (int block = 0; block <= GPT2_MASTER_WEIGHTS; block++) {
        if (block == GPT2_GRADIENTS) { continue; }
        GPT2 model = make_model(1, 1.0f);
        int not_finite = 0;
        size_t offset = model.info.table[0].count + model.info.table[1].count + 5; // ln1w
        model.blocks[block][offset] = values[block % 3];
        CHECK(write_step(&model, 1, STEP, &not_finite) != STATUS_OK && not_finite);
        CHECK(message_has(names[block]) && message_has("ln1w, element 5"));
        CHECK(!file_exists(model_path()) && !file_exists(state_path()) && !file_exists(done_path()));
        CHECK(!file_exists(unit_path("model_00000012.bin.tmp")) &&
              !file_exists(unit_path("state_00000012_00000.bin.tmp")));
        free_model(&model);
    }
}

static void numbers_that_are_not_finite_are_not_read(void) {
    GPT2 model = make_model(0, 0.0f);
    const size_t bytes = sizeof(float) * model.info.num_parameters;
    free_model(&model);
    write_one(1, 1);
    unit_unseal(state_path());
    unit_patch(state_path(), HEADER_BYTES + bytes + 4 * 128 * 32 + 2, 0x7f80); // the first number of wpe
    CHECK_FATAL("state_00000012_00000.bin|second moments|wpe, element 0 is", read_one(1, 1, 2));
    CHECK(checkpoint_verify(folder(), STEP) != STATUS_OK && message_has("second moments: wpe, element 0 is"));
    write_one(1, 1);
    unit_patch(model_path(), HEADER_BYTES + bytes - 2, 0xffc0);
    CHECK(checkpoint_verify(folder(), STEP) != STATUS_OK && message_has("checksum")); // damage, then
    unit_seal(model_path());
    CHECK(checkpoint_verify(folder(), STEP) != STATUS_OK && message_has("model_00000012.bin: lnfb, element 31"));
}

// ----------------------------------------------------------------------------
// Writes that fail. Step 12 is whole before, and after; nothing of step 13 is left.

static int nothing_of_step_13(void) {
    int entries = 0;
    DIR* dir = opendir(folder());
    for (struct dirent* entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        entries += strstr(entry->d_name, "00000013") != NULL || strstr(entry->d_name, ".tmp") != NULL;
    }
    if (dir != NULL) { closedir(dir); }
    return entries == 0;
}

// In a process of its own, whose files may have so many bytes; or descriptors, where those are limited
static void write_13_within(int resource, rlim_t limit) {
    struct rlimit r = {limit, limit};
    GPT2 model = make_model(1, 1.0f);
    signal(SIGXFSZ, SIG_IGN);
    if (setrlimit(resource, &r) != 0) { fatal("no limit could be set"); }
    check(write_step(&model, 1, 13, NULL));
}

static void a_full_disk_keeps_the_last_checkpoint(void) {
    size_t model_bytes, state_bytes;
    unit_clean();
    write_one(1, 1);
    free(unit_read(model_path(), &model_bytes));
    free(unit_read(state_path(), &state_bytes));
    for (int i = 0; i <= 20; i++) {
        size_t limit = (state_bytes - 1) * (size_t)i / 20;
        CHECK_FATAL("cannot write|00000013", write_13_within(RLIMIT_FSIZE, limit));
        CHECK(nothing_of_step_13() && checkpoint_verify(folder(), STEP) == STATUS_OK && file_exists(done_path()));
    }
    CHECK_FATAL("cannot write|state_00000013", write_13_within(RLIMIT_FSIZE, model_bytes));
    CHECK_ENDS_WELL(write_13_within(RLIMIT_FSIZE, state_bytes));
    CHECK(checkpoint_verify(folder(), 13) == STATUS_OK && file_exists(unit_path("DONE_00000013")));
    checkpoint_delete(folder(), 13);
    CHECK(nothing_of_step_13());
}

static void a_write_that_fails_keeps_the_last_checkpoint(void) {
    static const char* files[] = {"model_00000013.bin.tmp", "state_00000013_00000.bin.tmp"};
    GPT2 model = make_model(1, 1.0f);
    for (int i = 0; i < 2; i++) { // ENOSPC, from the first byte that reaches the disk
        CHECK(symlink("/dev/full", unit_path(files[i])) == 0);
        CHECK(write_step(&model, 1, 13, NULL) != STATUS_OK && message_has(files[i]) && message_has("No space left"));
        CHECK(nothing_of_step_13() && checkpoint_verify(folder(), STEP) == STATUS_OK && file_exists(done_path()));
    }
    static const char* names[] = {"model_00000013.bin", "state_00000013_00000.bin", "DONE_00000013.tmp"};
    for (int i = 0; i < 3; i++) { // a file that cannot be opened, or not get its name
        create_directory(unit_path(names[i]));
        CHECK(write_step(&model, 1, 13, NULL) != STATUS_OK && message_has(names[i]) && message_has("Is a directory"));
        rmdir(unit_path(names[i]));
        CHECK(nothing_of_step_13() && checkpoint_verify(folder(), STEP) == STATUS_OK && file_exists(done_path()));
    }
    CHECK_FATAL("cannot open|00000013|Too many open files", write_13_within(RLIMIT_NOFILE, 4));
    CHECK(nothing_of_step_13() && checkpoint_verify(folder(), STEP) == STATUS_OK);
    free_model(&model);
}

// What was whole under this step's name stays so until the new files are on the disk, and is none once one is in place.
static void an_older_checkpoint_of_the_step(void) {
    GPT2 other = make_model(1, 2.0f);
    unit_clean();
    write_one(1, 1);
    CHECK(symlink("/dev/full", unit_path("state_00000012_00000.bin.tmp")) == 0);
    CHECK(write_step(&other, 1, STEP, NULL) != STATUS_OK);
    CHECK(file_exists(done_path()) && checkpoint_verify(folder(), STEP) == STATUS_OK);
    CHECK(remove(state_path()) == 0);
    create_directory(state_path());
    CHECK(write_step(&other, 1, STEP, NULL) != STATUS_OK);
    CHECK(!file_exists(done_path()));
    rmdir(state_path());
    free_model(&other);
}

static void a_directory_that_was_deleted_is_made_again(void) {
    GPT2 model = make_model(1, 1.0f);
    RunState run;
    CheckpointSource source = source_of(&model);
    memset(&run, 0, sizeof(run));
    run.step = 13;
    char deleted[600];
    snprintf(deleted, sizeof(deleted), "%s/deleted", folder());
    CHECK(checkpoint_write(&source, &run, deleted) == STATUS_OK);
    CHECK(checkpoint_verify(deleted, 13) == STATUS_OK);
    checkpoint_delete(deleted, 13);
    CHECK(rmdir(deleted) == 0); // nothing else was in it
    snprintf(deleted, sizeof(deleted), "%s/deleted/too", folder());
    CHECK(checkpoint_write(&source, &run, deleted) != STATUS_OK && message_has("deleted/too|cannot create") == 0);
    CHECK(message_has("deleted/too") && message_has("No such file"));
    snprintf(deleted, sizeof(deleted), "%s", unit_path("tokens.bin"));
    CHECK(checkpoint_write(&source, &run, deleted) != STATUS_OK && message_has("Not a directory"));
    free_model(&model);
}

// ----------------------------------------------------------------------------

// The processor time of this process so far, in seconds, the kernel's included: other work on the machine is not in it.
static double processor_seconds(void) {
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)(r.ru_utime.tv_sec + r.ru_stime.tv_sec) + 1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

// The best of seven times; without a model's path, of the checkpoint.
static void print_speed(const char* name, const char* model, double bytes) {
    double least = 1e9;
    ModelHeader header;
    for (int round = 0; round < 7; round++) {
        double start = processor_seconds();
        check(model ? model_file_verify(model, &header) : checkpoint_verify(folder(), STEP));
        double seconds = processor_seconds() - start;
        least = seconds < least ? seconds : least;
    }
    printf("%s,%zu,%.2f\n", name, CHECKED_PIECE, bytes / least * 1e-9);
}

// test_checkpoint --speed: lines for dev/bench/checksum_speed.csv; a checkpoint of GPT-2 124M, 2 GB, which the page cache
// holds, is read on one core and everything in it verified.
static int print_speeds(void) {
    static const GPT2Config gpt2 = {1024, 50257, 50304, 12, 12, 768, 0};
    GPT2 model = make_model_of(gpt2, 1, 1.0f);
    double bytes = 4.0 * (double)model.info.num_parameters;
    const char* bf16 = unit_path("bf16.bin");
    check(write_step(&model, 1, STEP, NULL));
    memset(model.blocks[GPT2_MOMENTS1], 0, (size_t)bytes);
    check(model_file_write(bf16, gpt2, MODEL_VERSION_BF16, 0, model.blocks[GPT2_MOMENTS1]));
    free_model(&model);
    printf("implementation,piece_bytes,GB/s\n");
    print_speed("model_file_verify of fp32", model_path(), bytes);
    print_speed("model_file_verify of bf16", bf16, bytes / 2);
    print_speed("checkpoint_verify", NULL, 4.0 * bytes);
    unit_clean();
    rmdir(unit_folder);
    return EXIT_SUCCESS;
}

// DONE says that both files are on the disk: an older one of this step goes before the first of them is replaced, and it is the
// last to come. The state is the first: a model by itself is no kill's.
static void done_comes_when_all_is_on_the_disk(void) {
    static const char after[] = "remove DONE_00000012, "
                                "fsync state_00000012_00000.bin.tmp, close state_00000012_00000.bin.tmp, "
                                "rename state_00000012_00000.bin.tmp to state_00000012_00000.bin, fsync its folder, "
                                "fsync model_00000012.bin.tmp, close model_00000012.bin.tmp, "
                                "rename model_00000012.bin.tmp to model_00000012.bin, fsync its folder, "
                                "fsync DONE_00000012.tmp, close DONE_00000012.tmp, "
                                "rename DONE_00000012.tmp to DONE_00000012, fsync its folder";
    for (int again = 0; again < 2; again++) {
        file_calls_begin();
        write_one(1, 1);
        CHECK(file_calls_are(after));
    }
}

static void a_path_that_is_too_long_names_no_file(void) {
    char name[1000];
    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    CHECK(checkpoint_paths(name, 1).model[0] == '\0' && checkpoint_paths(name, 1).done[0] == '\0');
    CHECK(checkpoint_verify(name, 1) == STATUS_ERROR);
    status_clear();
    name[960] = '\0';
    CHECK(strlen(checkpoint_paths(name, 1).state) > 960);
}

int main(int argc, char** argv) {
    if (argc == 2 && strcmp(argv[1], "--speed") == 0) { return print_speeds(); }
    everything_comes_back(1, 1, 1);
    everything_comes_back(1, 0, 1);
    everything_comes_back(0, 0, 0);
    everything_comes_back(0, 1, 1);
    other_settings_are_refused();
    damaged_states_are_refused();
    positions_are_the_format();
    damaged_headers_are_refused();
    damaged_outlier_detectors_are_refused();
    scales_come_back();
    renamed_files_are_refused();
    a_model_and_a_state_of_two_runs_are_refused();
    older_states_are_read();
    the_identity_comes_back();
    flipped_bits_are_refused();
    numbers_that_are_not_finite_are_not_written();
    numbers_that_are_not_finite_are_not_read();
    a_full_disk_keeps_the_last_checkpoint();
    a_write_that_fails_keeps_the_last_checkpoint();
    an_older_checkpoint_of_the_step();
    a_directory_that_was_deleted_is_made_again();
    a_path_that_is_too_long_names_no_file();
    done_comes_when_all_is_on_the_disk();
    return unit_end();
}
