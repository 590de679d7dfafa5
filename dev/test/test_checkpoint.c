/*
llmc/checkpoint.h: what a checkpoint brings back, which one is the newest, and which are refused.
*/
#include "llmc/checkpoint.h"

#include "model_stub.h"
#include "unit.h"

enum { STEP = 12, V = 100 };

static float* numbers(size_t n, float first) {
    float* p = (float*)malloc_check(n * sizeof(float));
    for (size_t i = 0; i < n; i++) { p[i] = first + (float)i; }
    return p;
}

static GPT2 make_model(int master_weights, float first) {
    static const GPT2Config small = {8, V, 128, 1, 1, 32};
    GPT2 model;
    memset(&model, 0, sizeof(model));
    model.info.config = small;
    model.info.num_parameters = gpt2_parameters(model.info.table, small);
    model.info.weight_bytes = sizeof(float);
    model.info.B = 2, model.info.T = 4;
    size_t n = model.info.num_parameters;
    model.blocks[GPT2_WEIGHTS] = numbers(n, first);
    model.blocks[GPT2_MOMENTS1] = numbers(n, first + 0.25f);
    model.blocks[GPT2_MOMENTS2] = numbers(n, first + 0.5f);
    model.blocks[GPT2_MASTER_WEIGHTS] = master_weights ? numbers(n, first + 0.75f) : NULL;
    return model;
}

static void free_model(GPT2* model) {
    for (int i = 0; i <= GPT2_MASTER_WEIGHTS; i++) { free(model->blocks[i]); }
}

static void open_loader(DataLoader* d, int shuffle) {
    const HostAlloc host_memory = {NULL, NULL};
    uint16_t tokens[101];
    for (int i = 0; i <= 100; i++) { tokens[i] = (uint16_t)(i % V); }
    const char* path = unit_path("tokens.bin");
    if (!file_exists(path)) {
        unit_write_format(path, TOKENS_MAGIC_16, TOKENS_VERSION_16, 101, V, tokens, sizeof(tokens));
    }
    dataloader_open(d, path, 2, 4, 0, 1, shuffle, 42, V, host_memory);
}

static Outliers make_outliers(void) {
    Outliers o;
    memset(&o, 0, sizeof(o));
    for (int i = 0; i < 200; i++) {
        outlier_update(&o.loss, 5.0 - 0.01 * i);
        outlier_update(&o.grad_norm, i % 7);
    }
    return o;
}

static const char* state_path(void) { return unit_path("state_00000012_00000.bin"); }
static const char* folder(void) {
    unit_path("tokens.bin"); // makes the directory
    return unit_folder;
}

// Writes a checkpoint of step 12 after five batches.
static void write_one(int master_weights, int shuffle) {
    GPT2 model = make_model(master_weights, 1.0f);
    DataLoader d;
    const int *inputs, *targets;
    Outliers outliers = make_outliers();
    open_loader(&d, shuffle);
    for (int i = 0; i < 5; i++) { dataloader_next(&d, &inputs, &targets); }
    checkpoint_write(&model, &d, &outliers, folder(), STEP);
    dataloader_close(&d);
    free_model(&model);
}

// Reads the state of step 12 into a model and a loader as they are when a program has just started.
static void read_one(int master_weights, int shuffle, int B) {
    GPT2 model = make_model(master_weights, -1.0f);
    DataLoader d;
    Outliers outliers;
    model.info.B = B;
    open_loader(&d, shuffle);
    checkpoint_read(&model, &d, &outliers, folder(), STEP);
    dataloader_close(&d);
    free_model(&model);
}

static int same_numbers(const float* a, const float* b, size_t n) { return memcmp(a, b, n * sizeof(float)) == 0; }

static void everything_comes_back(int saved_master, int master, int shuffle) {
    write_one(saved_master, shuffle);
    GPT2 saved = make_model(1, 1.0f), model = make_model(master, -1.0f);
    size_t n = model.info.num_parameters;
    DataLoader whole, d;
    const int *x[2], *y[2];
    Outliers outliers, expected = make_outliers();
    open_loader(&whole, shuffle);
    open_loader(&d, shuffle);
    for (int i = 0; i < 5; i++) { dataloader_next(&whole, &x[0], &y[0]); }
    memset(&outliers, 0xff, sizeof(outliers));
    checkpoint_read(&model, &d, &outliers, folder(), STEP);
    for (int i = GPT2_MOMENTS1; i <= GPT2_MASTER_WEIGHTS; i++) {
        if (model.blocks[i]) { CHECK(same_numbers(model.blocks[i], saved.blocks[i], n)); }
    }
    CHECK(memcmp(&outliers, &expected, sizeof(outliers)) == 0);
    int same = 1;
    for (int i = 0; i < 20; i++) {
        dataloader_next(&whole, &x[0], &y[0]);
        dataloader_next(&d, &x[1], &y[1]);
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
    free_model(&model);
}

static void other_settings_are_refused(void) {
    write_one(0, 1);
    CHECK_FATAL("state_00000012_00000.bin|-b 2 -t 4", read_one(0, 1, 4));
    CHECK_FATAL("state_00000012_00000.bin|-a 0", read_one(0, 0, 2));
    CHECK_FATAL("state_00000012_00000.bin|no master weights|-w 0", read_one(1, 1, 2));
    unit_patch(state_path(), 4 * STATE_NUM_PROCESSES, 8);
    CHECK_FATAL("state_00000012_00000.bin|process 0 of 8", read_one(0, 1, 2));
    unit_patch(state_path(), 4, 2);
    CHECK_FATAL("state_00000012_00000.bin|version 2", read_one(0, 1, 2));
    unit_patch(state_path(), 0, 0);
    CHECK_FATAL("state_00000012_00000.bin|magic number", read_one(0, 1, 2));
}

static void damaged_states_are_refused(void) {
    size_t size;
    write_one(1, 1);
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
    CHECK_FATAL("state_00000012_00000.bin|trailing bytes|another model's", read_one(1, 1, 2));
    free(state);
}

// Puts a number of 32 bits of the state file to another value, which ends with one line that holds the words.
static void check_word(const char* state, size_t size, size_t offset, int32_t value, const char* words) {
    unit_write(state_path(), state, size);
    unit_patch(state_path(), offset, (uint16_t)value);
    unit_patch(state_path(), offset + 2, (uint16_t)((uint32_t)value >> 16));
    CHECK_FATAL(words, read_one(1, 1, 2));
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
    char* state = unit_read(state_path(), &size);
    for (int detector = 0; detector < 2; detector++) {
        size_t count = size - sizeof(Outliers) + (size_t)detector * sizeof(OutlierDetector) + 128 * sizeof(double);
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

// ----------------------------------------------------------------------------
// Files that do not belong together

static const char* model_path(void) { return unit_path("model_00000012.bin"); }

static void read_as_step(int step) {
    GPT2 model = make_model(1, -1.0f);
    DataLoader d;
    Outliers outliers;
    open_loader(&d, 1);
    checkpoint_read(&model, &d, &outliers, folder(), step);
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
    unit_patch(state_13, 4 * STATE_STEP, 13);
    CHECK_FATAL("model_00000013.bin|holds step 12|name says step 13", read_as_step(13));
    CHECK_FATAL("state_00000012_00000.bin|No such file", read_as_step(12));
    rename(state_13, state_path());
    CHECK_FATAL("model_00000012.bin|No such file", read_as_step(12));
}

static void a_model_and_a_state_of_two_runs_are_refused(void) {
    size_t size;
    write_one(1, 1);
    char* model = unit_read(model_path(), &size);
    unit_write(unit_path("other.bin"), model, size);
    GPT2 other = make_model(1, 2.0f);
    checkpoint_write_model(&other, STEP, model_path());
    CHECK_FATAL("state_00000012_00000.bin|together with|model_00000012.bin", read_as_step(STEP));
    check(model_file_write(model_path(), other.info.config, MODEL_VERSION_FP32, 0, other.blocks[GPT2_WEIGHTS]));
    unit_unseal(model_path()); // one that does not say what it is
    for (size_t i = 0; i < 4; i++) { unit_patch(model_path(), 4 * MODEL_DIGEST + 2 * i, 0); }
    CHECK_FATAL("state_00000012_00000.bin|together with|model_00000012.bin", read_as_step(STEP));
    // as the version before wrote both, and as llm.c does
    for (size_t i = 0; i < 4; i++) { unit_patch(state_path(), 4 * STATE_MODEL + 2 * i, 0); }
    CHECK_ENDS_WELL(read_as_step(STEP));
    unit_write(model_path(), model, size);
    CHECK_FATAL("state_00000012_00000.bin|together with|model_00000012.bin", read_as_step(STEP));
    free_model(&other);
    free(model);
}

// llm.c writes neither batch nor outliers.
static void llmc_s_states_are_read(void) {
    size_t size;
    write_one(1, 1);
    unit_patch(state_path(), 4 * STATE_BATCH, 0);
    unit_patch(state_path(), 4 * STATE_TIME, 0);
    unit_patch(state_path(), 4 * STATE_OUTLIERS, 0);
    free(unit_read(state_path(), &size));
    unit_truncate(state_path(), size - sizeof(Outliers));
    CHECK_ENDS_WELL(read_one(1, 1, 2));
}

static void the_newest_whole_checkpoint_is_found(void) {
    static const char* others[] = {"DONE_00000099.tmp", "DONE_",         "DONE_x",   "DONE",
                                   "XDONE_00000077",    "DONE_0000007x", "main.log", "model_00000055.bin",
                                   "DONE_00000003",     "DONE_00000011"};
    CHECK(checkpoint_newest("no/such/folder") == -1);
    write_one(0, 0);
    CHECK_FATAL("cannot read the directory|tokens.bin", checkpoint_newest(unit_path("tokens.bin")));
    unit_clean();
    CHECK(checkpoint_newest(folder()) == -1);
    write_one(0, 0);
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) { unit_write(unit_path(others[i]), "", 0); }
    CHECK(checkpoint_newest(folder()) == STEP);
    checkpoint_delete(folder(), STEP);
    CHECK(checkpoint_newest(folder()) == 11);
    CHECK(!file_exists(state_path()) && !file_exists(unit_path("model_00000012.bin")));
    CHECK(!file_exists(unit_path("DONE_00000012")));
}

// A crash while a checkpoint is written over an older one of the same step leaves no DONE file.
static void a_half_written_checkpoint_is_none(void) {
    unit_clean();
    write_one(0, 0);
    CHECK(checkpoint_newest(folder()) == STEP);
    create_directory(unit_path("state_00000012_00000.bin.tmp")); // the second file cannot be written
    CHECK_FATAL("state_00000012_00000.bin.tmp|Is a directory", write_one(0, 0));
    rmdir(unit_path("state_00000012_00000.bin.tmp"));
    CHECK(checkpoint_newest(folder()) == -1);
}

int main(void) {
    everything_comes_back(1, 1, 1);
    everything_comes_back(1, 0, 1);
    everything_comes_back(0, 0, 0);
    other_settings_are_refused();
    damaged_states_are_refused();
    damaged_headers_are_refused();
    damaged_outlier_detectors_are_refused();
    renamed_files_are_refused();
    a_model_and_a_state_of_two_runs_are_refused();
    llmc_s_states_are_read();
    the_newest_whole_checkpoint_is_found();
    a_half_written_checkpoint_is_none();
    char long_name[1000];
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    CHECK_FATAL("-o|longer than 960|xxxx", checkpoint_paths(long_name, 1));
    return unit_end();
}
