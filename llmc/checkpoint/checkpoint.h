/*
Checkpoints of a training run, in llm.c's files: in the output directory, for step N,

    model_N.bin          the weights (see model_file.h)
    state_N_00000.bin    the optimizer's moments, master weights, the position in the data: what a resumed run needs
    DONE_N               empty, written last: the checkpoint is whole

(N as %08d.) Files appear under their names only when they are complete. Both hold checksums (checked_file.h), the step, the
run's id and the digest of the weights, so that damaged or renamed files, or files of two runs, are refused. After its header
a state file holds: first moments, second moments, master weights where there are any, the order of the data where it is
shuffled (dataloader.h), two OutlierDetectors, with --fp8 the scales of operands, and the run's settings as text. A number that
is not finite is neither written nor read. Nothing here ends the program: a failed save must not end a run, nor a damaged
checkpoint a resume. Of a run's processes rank 0 alone sees the files (checkpoint/shards.h), the same for any number of them.
*/
#ifndef LLMC_CHECKPOINT_CHECKPOINT_H
#define LLMC_CHECKPOINT_CHECKPOINT_H

#include <float.h>
#include <math.h>

#include "identity.h"
#include "shards.h"
#include "llmc/base/atomic_file.h"
#include "llmc/base/checked_file.h"
#include "llmc/files/dataloader.h"
#include "llmc/files/model_file.h"
#include "llmc/model/finite_check.h"
#include "llmc/model/gpt2_model.h"

// ----------------------------------------------------------------------------
// Outliers of the loss or of the gradient norm: the z-score of each value within the window of the last 128, the value itself
// included:  z = (x - mean) / standard deviation

enum { OUTLIER_WINDOW = 128 };

typedef struct {
    double window[OUTLIER_WINDOW]; // a ring
    int count;                     // values in it
    int index;                     // the oldest value, once it is full
} OutlierDetector;

static inline void outlier_init(OutlierDetector* d) {
    d->count = 0;
    d->index = 0;
}

// 1 if this is a detector that outlier_update() can have made: one from a file must not index beyond its window, and
// its values are those of losses and norms, which are floats.
static inline int outlier_valid(const OutlierDetector* d) {
    if (d->count < 0 || d->count > OUTLIER_WINDOW || d->index < 0 || d->index >= OUTLIER_WINDOW) { return 0; }
    if (d->count < OUTLIER_WINDOW && d->index != 0) { return 0; }
    for (int i = 0; i < d->count; i++) {
        if (!(fabs(d->window[i]) <= (double)FLT_MAX)) { return 0; } // NaN too
    }
    return 1;
}

// Adds x to the window and returns its z-score; NaN until the window is full, 0 if all its values are equal. For an x
// that is not finite it returns INFINITY and leaves the window unchanged.
static inline double outlier_update(OutlierDetector* d, double x) {
    if (!isfinite(x)) { return INFINITY; }
    int full = d->count == OUTLIER_WINDOW;
    d->window[full ? d->index : d->count] = x;
    if (!full) {
        d->count++;
        return NAN;
    }
    d->index = (d->index + 1) % OUTLIER_WINDOW;
    // Both sums are recomputed: 128 additions are negligible beside a training step, and running sums would drift.
    double mean = 0.0, variance = 0.0;
    for (int i = 0; i < OUTLIER_WINDOW; i++) { mean += d->window[i] / OUTLIER_WINDOW; }
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        double off = d->window[i] - mean;
        variance += off * off / OUTLIER_WINDOW;
    }
    return variance > 0.0 ? (x - mean) / sqrt(variance) : 0.0;
}

// ----------------------------------------------------------------------------
// The state file

enum { STATE_MAGIC = 20240527, STATE_VERSION = 1 };

// int32 positions in the state file's header. llm.c has all of them down to STATE_SAMPLE; the others it leaves 0, and so
// did older versions of this program those after STATE_MODEL.
enum {
    STATE_NUM_PROCESSES = 2,
    STATE_RANK = 3,
    STATE_MASTER_WEIGHTS = 4,
    STATE_SHUFFLE = 5,
    STATE_STEP = 10,
    STATE_RNG = 20,             // 64 bit; our stochastic rounding depends on the step alone, so these two are the step
    STATE_RNG_LAST = 22,        // 64 bit
    STATE_SHARD = 30,           // 64 bit
    STATE_SAMPLE = 32,          // 64 bit
    STATE_BATCH = 34,           // B, or 0
    STATE_TIME = 35,            // T, or 0
    STATE_OUTLIERS = 36,        // 1: two OutlierDetectors stand after the order of the data
    STATE_MODEL = 38,           // 64 bit; the digest in the header of the model file that belongs to it, or 0
    STATE_RUN = 40,             // 64 bit; the run's id, or 0
    STATE_SETTINGS = 42,        // bytes of the settings' text at the end of the file, or 0
    STATE_SETTINGS_DIGEST = 44, // 64 bit; of the settings that a result depends on, or 0
    STATE_DATA_DIGEST = 46,     // 64 bit; of the training data, or 0
    STATE_NAMES = 48,           // 1, of an older version: the order of the data ends with 64 bits for each of its files
    STATE_MUON = 49,            // 1: --optimizer muon, second moments only of what AdamW updates
    STATE_SCALES = 50           // how many scales of fp8 operands there are, 0 without --fp8
};

enum { MODEL_RUN = 12 }; // 64 bit; the run's id, in the header of the model file

typedef struct {
    OutlierDetector loss, grad_norm;
} Outliers;

// What a checkpoint holds beside the model's blocks: copies, so that a thread may write them while training goes on.
typedef struct {
    int step;
    DataLoaderState loader;
    Outliers outliers;
    float* scales; // (num_scales) of fp8 operands
    int num_scales;
    RunIdentity identity; // its text is the run's own, and outlives every save
} RunState;

static inline void run_state_free(RunState* s) {
    dataloader_state_free(&s->loader);
    free(s->scales);
    s->scales = NULL, s->num_scales = 0;
}

static inline void run_state_allocate_scales_(RunState* s, int count) {
    s->scales = (float*)calloc_check((size_t)count, sizeof(float));
    s->num_scales = count;
}

// Copies the scales of fp8 operands, of which a model without them has 0.
static inline Status run_state_take_scales(RunState* s, GPT2* model) {
    run_state_allocate_scales_(s, gpt2_num_scales(model));
    return gpt2_get_scales(model, s->scales);
}

// ----------------------------------------------------------------------------
// The files of a step

typedef struct {
    char model[1024], state[1024], done[1024];
} CheckpointPaths;

// The files' paths; empty ones, which no file has, where the directory's is longer than 960 bytes: run_folder.h refuses it.
static inline CheckpointPaths checkpoint_paths(const char* directory, int step) {
    CheckpointPaths p;
    memset(&p, 0, sizeof(p));
    if (strlen(directory) > 960) { return p; }
    snprintf(p.model, sizeof(p.model), "%.960s/model_%08d.bin", directory, step);
    snprintf(p.state, sizeof(p.state), "%.960s/state_%08d_00000.bin", directory, step);
    snprintf(p.done, sizeof(p.done), "%.960s/DONE_%08d", directory, step);
    return p;
}

static inline void checkpoint_delete(const char* directory, int step) {
    CheckpointPaths paths = checkpoint_paths(directory, step);
    remove(paths.done); // first: without it the other files are no checkpoint
    remove(paths.model);
    remove(paths.state);
}

// ----------------------------------------------------------------------------
// Writing

enum { CHECKPOINT_NAME = 1024 + 32 };

// "<path>: second moments", in `name`
static inline const char* checkpoint_block_name_(char name[CHECKPOINT_NAME], const char* path, GPT2Block block) {
    static const char* const blocks[] = {"weights", "gradients", "first moments", "second moments", "master weights"};
    snprintf(name, CHECKPOINT_NAME, "%s: %s", path, blocks[block]);
    return name;
}

// Asks the kernel to begin bringing to the disk what was written: else a checkpoint of many GB would lie in memory until the
// commit, and all of its way to the disk would be waited for there. A hint, whose failure is the commit's to tell.
static inline void checkpoint_write_behind_(CheckedWriter* file) {
    const size_t every = (size_t)32 << 20, at = file->body.at;
    if (at < every || at % every >= (size_t)CHECKPOINT_BUFFER) { return; }
    fflush(file->file.file);
    (void)sync_file_range(fileno(file->file.file), 0, 0, SYNC_FILE_RANGE_WRITE);
}

// Writes a block and looks at every number of it.
NOINLINE Status checkpoint_write_block_(CheckedWriter* file, CheckpointSource* from, GPT2Block block) {
    const GPT2Info* info = gpt2_info(from->model);
    size_t bytes = gpt2_block_bytes(from->model, block);
    char name[CHECKPOINT_NAME];
    FiniteCheck check;
    finite_check_begin(&check, info->config, gpt2_element(info, block),
                       checkpoint_block_name_(name, file->file.path, block));
    if (block == GPT2_MOMENTS2) { layout_second_moments(check.table, info->config, info->settings.muon); }
    for (size_t i = 0; i < bytes; i += CHECKPOINT_BUFFER) {
        size_t n = shards_piece(bytes - i);
        if (__atomic_load_n(&from->give_up, __ATOMIC_RELAXED)) { return status_fail("given up for a newer one"); }
        TRY(shards_read(from, block, i, n));
        from->not_finite = finite_check_update(&check, from->buffer, n) != STATUS_OK;
        if (from->not_finite) { return STATUS_ERROR; }
        TRY(checked_write(file, from->buffer, n));
        checkpoint_write_behind_(file);
    }
    return STATUS_OK;
}

// Writes the weights as they are, in the training precision, but for checked_commit; *contents ties the state to them.
static inline Status checkpoint_write_model(CheckedWriter* file, CheckpointSource* from, const RunState* run,
                                            const char* path, uint64_t* contents) {
    const GPT2Info* info = gpt2_info(from->model);
    int version = info->weight_bytes == 4 ? MODEL_VERSION_FP32 : MODEL_VERSION_BF16;
    TRY(model_file_create(file, path, info->config, version));
    TRY(checkpoint_write_block_(file, from, GPT2_WEIGHTS));
    *contents = model_file_complete(file, run->step);
    memcpy(&file->header[MODEL_RUN], &run->identity.run, sizeof(run->identity.run));
    return STATUS_OK;
}

static inline void checkpoint_state_header_(int32_t* header, const GPT2* model, const RunState* run,
                                            uint64_t contents) {
    int64_t rng = run->step, shard = (int64_t)run->loader.shard, sample = (int64_t)run->loader.sample;
    memset(header, 0, HEADER_BYTES);
    header[0] = STATE_MAGIC;
    header[1] = STATE_VERSION;
    header[STATE_NUM_PROCESSES] = 1;
    header[STATE_RANK] = 0;
    header[STATE_MASTER_WEIGHTS] = gpt2_block_bytes(model, GPT2_MASTER_WEIGHTS) > 0;
    header[STATE_MUON] = gpt2_info(model)->settings.muon;
    header[STATE_SHUFFLE] = run->loader.shuffled;
    header[STATE_STEP] = run->step;
    memcpy(&header[STATE_RNG], &rng, sizeof(rng));
    memcpy(&header[STATE_RNG_LAST], &rng, sizeof(rng));
    memcpy(&header[STATE_SHARD], &shard, sizeof(shard));
    memcpy(&header[STATE_SAMPLE], &sample, sizeof(sample));
    header[STATE_BATCH] = gpt2_info(model)->B;
    header[STATE_TIME] = gpt2_info(model)->T;
    header[STATE_OUTLIERS] = 1;
    header[STATE_SCALES] = run->num_scales;
    header[STATE_SETTINGS] = (int32_t)run->identity.text_bytes;
    memcpy(&header[STATE_MODEL], &contents, sizeof(contents));
    memcpy(&header[STATE_RUN], &run->identity.run, sizeof(run->identity.run));
    memcpy(&header[STATE_SETTINGS_DIGEST], &run->identity.settings, sizeof(run->identity.settings));
    memcpy(&header[STATE_DATA_DIGEST], &run->identity.data, sizeof(run->identity.data));
}

// Writes the state, but for checked_commit.
static inline Status checkpoint_write_state(CheckedWriter* file, CheckpointSource* from, const RunState* run,
                                            uint64_t contents, const char* path) {
    static const GPT2Block blocks[] = {GPT2_MOMENTS1, GPT2_MOMENTS2, GPT2_MASTER_WEIGHTS};
    int32_t header[HEADER_INTS];
    checkpoint_state_header_(header, from->model, run, contents);
    size_t settings = (size_t)header[STATE_SETTINGS], scales = (size_t)run->num_scales * sizeof(float);
    size_t bytes = dataloader_state_bytes(&run->loader) + sizeof(run->outliers) + scales + settings;
    for (int i = 0; i < 3; i++) { bytes += gpt2_block_bytes(from->model, blocks[i]); }
    TRY(checked_create(file, path, header, bytes));
    for (int i = 0; i < 3; i++) { TRY(checkpoint_write_block_(file, from, blocks[i])); }
    TRY(dataloader_state_write(&run->loader, file));
    TRY(checked_write(file, &run->outliers, sizeof(run->outliers)));
    TRY(checked_write(file, run->scales, scales));
    return checked_write(file, run->identity.text, settings);
}

// The output directory may have been deleted since the run began.
static inline Status checkpoint_make_directory_(const char* directory) {
    if (mkdir(directory, 0755) == 0) { return atomic_sync_directory(directory); }
    if (errno == EEXIST) { return STATUS_OK; }
    return status_fail("cannot create directory %s: %s", directory, strerror(errno));
}

// Both files are written before the first is put in place, so a full disk leaves what was there, also a checkpoint of this
// step. The model's way to the disk goes on while the state is written.
static inline Status checkpoint_write_files_(CheckpointSource* from, const RunState* run, const CheckpointPaths* paths,
                                             CheckedWriter* model, CheckedWriter* state, int* in_place) {
    uint64_t contents;
    AtomicFile done;
    TRY(checkpoint_write_model(model, from, run, paths->model, &contents));
    TRY(checkpoint_write_state(state, from, run, contents, paths->state));
    *in_place = 1;
    remove(paths->done); // an older checkpoint of this step is no longer whole once the first of its files is replaced
    TRY(checked_commit(state)); // first: a kill leaves no model by itself, which run_folder_clean would keep
    TRY(checked_commit(model));
    TRY(atomic_open(&done, paths->done));
    return atomic_commit(&done);
}

// Writes the checkpoint of a step, in rank 0, while the other processes are in shards_serve; shards_end is the caller's. After
// an error nothing new is left in the directory, and `from` says whether a number was not finite.
NOINLINE Status checkpoint_write(CheckpointSource* from, const RunState* run, const char* directory) {
    CheckpointPaths paths = checkpoint_paths(directory, run->step);
    CheckedWriter model, state;
    int in_place = 0;
    memset(&model, 0, sizeof(model));
    memset(&state, 0, sizeof(state));
    status_clear();
    from->not_finite = 0;
    TRY(checkpoint_make_directory_(directory));
    Status result = checkpoint_write_files_(from, run, &paths, &model, &state, &in_place);
    if (result == STATUS_OK) { return STATUS_OK; }
    checked_abandon(&model);
    checked_abandon(&state);
    if (in_place) { checkpoint_delete(directory, run->step); }
    return result;
}

// ----------------------------------------------------------------------------
// Reading. Messages name the file, and say where it was written by a run of other settings.

// A word of the header that is 0 or 1
static inline Status checkpoint_flag_(const CheckedReader* file, int position) {
    int value = file->header[position];
    if (value == 0 || value == 1) { return STATUS_OK; }
    return status_fail("%s: header word %d is %d, not 0 or 1; it is corrupt", file->path, position, value);
}

static inline uint64_t checkpoint_word64_(const CheckedReader* file, int position) {
    uint64_t value;
    memcpy(&value, &file->header[position], sizeof(value));
    return value;
}

// A word of the header that is 64 bit and a position in the data
static inline Status checkpoint_position_(const CheckedReader* file, int position, size_t* result) {
    *result = (size_t)checkpoint_word64_(file, position);
    if (*result <= INT64_MAX) { return STATUS_OK; }
    return status_fail("%s: header word %d, a position in the data, is %lld; it is corrupt", file->path, position,
                       (long long)*result);
}

// Opens a state file and checks the words of its header, each by itself.
static inline Status checkpoint_open_state_(CheckedReader* file, const char* path) {
    TRY(checked_open(file, path, STATE_MAGIC, "training state"));
    if (file->header[1] != STATE_VERSION) {
        return status_fail("%s: state version %d is not supported: 1 is", path, (int)file->header[1]);
    }
    if (file->header[STATE_NUM_PROCESSES] != 1 || file->header[STATE_RANK] != 0) {
        return status_fail("%s is the state of process %d of %d; this trainer resumes runs of one process", path,
                           (int)file->header[STATE_RANK], (int)file->header[STATE_NUM_PROCESSES]);
    }
    TRY(checkpoint_flag_(file, STATE_SHUFFLE));
    TRY(checkpoint_flag_(file, STATE_MASTER_WEIGHTS));
    TRY(checkpoint_flag_(file, STATE_MUON));
    TRY(checkpoint_flag_(file, STATE_OUTLIERS));
    TRY(checkpoint_flag_(file, STATE_NAMES));
    int scales = file->header[STATE_SCALES];
    if (scales < 0 || (size_t)scales > file->body_bytes / sizeof(float)) {
        return status_fail("%s: header word %d says %d scales; it is corrupt", path, STATE_SCALES, scales);
    }
    int settings = file->header[STATE_SETTINGS];
    if (settings >= 0 && (size_t)settings <= file->body_bytes) { return STATUS_OK; }
    return status_fail("%s: header word %d says %d bytes of settings; it is corrupt", path, STATE_SETTINGS, settings);
}

// The two files of a checkpoint belong together, and to the step in their names; 0: the model does not say it.
static inline Status checkpoint_check_pair_(const CheckedReader* state, const ModelReader* model, int step) {
    int of_state = state->header[STATE_STEP], of_model = model->header.step;
    if (of_state != step || (of_model != 0 && of_model != step)) {
        return status_fail("%s holds step %d, its name says step %d; give it back its own name",
                           of_state != step ? state->path : model->file.path, of_state != step ? of_state : of_model,
                           step);
    }
    if (checkpoint_word64_(state, STATE_MODEL) != model->header.digest ||
        checkpoint_word64_(state, STATE_RUN) != checkpoint_word64_(&model->file, MODEL_RUN)) {
        return status_fail("%s was not written together with %s; put back both files of one checkpoint", state->path,
                           model->file.path);
    }
    return STATUS_OK;
}

// Reads the next bytes of a block, and looks at each number.
static inline Status checkpoint_read_numbers_(CheckedReader* file, FiniteCheck* check, char* buffer, size_t bytes) {
    TRY(checked_read(file, buffer, bytes));
    return finite_check_update(check, buffer, bytes) == STATUS_OK ? STATUS_OK : model_file_not_finite(file);
}

// Reads the next block of the file, of `count` floats. It goes to the block of the model, where there is a model that has it,
// in every process; those that have no file (NULL) receive it.
static inline Status checkpoint_read_block_(GPT2* model, GPT2Block block, GPT2Config config, size_t count,
                                            CheckedReader* file) {
    size_t bytes = size_mul(count, sizeof(float)), most = shards_piece(bytes);
    int wanted = model != NULL && gpt2_block_bytes(model, block) > 0;
    size_t scratch = wanted && gpt2_is_sharded(gpt2_info(model), block) ? most : 0;
    char* buffer = (char*)malloc_check(most + scratch);
    Status result = STATUS_OK;
    char name[CHECKPOINT_NAME];
    FiniteCheck check;
    finite_check_begin(&check, config, sizeof(float), checkpoint_block_name_(name, file ? file->path : "", block));
    int muon = block == GPT2_MOMENTS2 && file != NULL && file->header[STATE_MUON];
    if (muon) { layout_second_moments(check.table, config, 1); }
    for (size_t i = 0; result == STATUS_OK && i < bytes; i += CHECKPOINT_BUFFER) {
        size_t n = shards_piece(bytes - i);
        if (file != NULL) { result = checkpoint_read_numbers_(file, &check, buffer, n); }
        if (result == STATUS_OK && wanted) { result = shards_spread(model, block, buffer, buffer + most, i, n); }
        if (result == STATUS_OK && wanted) { result = gpt2_copy_in(model, block, buffer, i, n); }
    }
    free(buffer);
    return result;
}

static inline Status checkpoint_read_outliers_(Outliers* outliers, CheckedReader* file) {
    outlier_init(&outliers->loss);
    outlier_init(&outliers->grad_norm);
    if (!file->header[STATE_OUTLIERS]) { return STATUS_OK; }
    TRY(checked_read(file, outliers, sizeof(*outliers)));
    if (outlier_valid(&outliers->loss) && outlier_valid(&outliers->grad_norm)) { return STATUS_OK; }
    return status_fail("%s: its outlier detectors are corrupt; resume from another checkpoint", file->path);
}

// Scales are powers of two, or all 0 before the first update.
static inline Status checkpoint_read_scales_(RunState* run, CheckedReader* file) {
    run_state_allocate_scales_(run, file->header[STATE_SCALES]);
    TRY(checked_read(file, run->scales, (size_t)run->num_scales * sizeof(float)));
    for (int i = 0; i < run->num_scales; i++) {
        int exponent, is_power = frexpf(run->scales[i], &exponent) == 0.5f;
        if ((run->scales[0] == 0 && run->scales[i] == 0) || (run->scales[0] != 0 && is_power)) { continue; }
        return status_fail("%s: scale %d is %g, no power of two; the file is corrupt", file->path, i,
                           (double)run->scales[i]);
    }
    return STATUS_OK;
}

// Reads all of an open state file: of a model of so many parameters, into `model` unless that is NULL. Also after an error
// run_state_free frees what it took.
static inline Status checkpoint_read_state_(GPT2* model, RunState* run, GPT2Config config, size_t parameters,
                                            CheckedReader* file) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t shard, sample, has_master = (size_t)file->header[STATE_MASTER_WEIGHTS];
    size_t second = file->header[STATE_MUON] ? layout_second_moments(table, config, 1) : parameters;
    size_t least = size_mul(sizeof(float), size_add(size_mul(1 + has_master, parameters), second));
    least = size_add(least, (size_t)file->header[STATE_OUTLIERS] * sizeof(run->outliers));
    least = size_add(least, (size_t)file->header[STATE_SCALES] * sizeof(float));
    if (file->body_bytes < size_add(least, (size_t)file->header[STATE_SETTINGS])) {
        return status_fail("%s has %zu bytes, the state of this model has at least %zu; it is truncated or another "
                           "model's",
                           file->path, file->body_bytes + HEADER_BYTES, size_add(least, HEADER_BYTES));
    }
    TRY(checkpoint_position_(file, STATE_SHARD, &shard));
    TRY(checkpoint_position_(file, STATE_SAMPLE, &sample));
    TRY(checkpoint_read_block_(model, GPT2_MOMENTS1, config, parameters, file));
    TRY(checkpoint_read_block_(model, GPT2_MOMENTS2, config, second, file));
    if (has_master) { TRY(checkpoint_read_block_(model, GPT2_MASTER_WEIGHTS, config, parameters, file)); }
    TRY(dataloader_state_read(&run->loader, file, file->header[STATE_SHUFFLE], shard, sample,
                              file->header[STATE_NAMES]));
    TRY(checkpoint_read_outliers_(&run->outliers, file));
    TRY(checkpoint_read_scales_(run, file));
    TRY(checked_skip(file, (size_t)file->header[STATE_SETTINGS]));
    return checked_end(file);
}

// The settings of the run that wrote the state are this run's, as far as its moments and its position in the data need it.
static inline Status checkpoint_check_settings_(const CheckedReader* file, const GPT2* model) {
    const GPT2Info* info = gpt2_info(model);
    int B = file->header[STATE_BATCH], T = file->header[STATE_TIME];
    if ((B != 0 || T != 0) && (B != info->B || T != info->T)) {
        return status_fail("%s was written with -b %d -t %d; resume with the same", file->path, B, T);
    }
    if (file->header[STATE_MUON] != info->settings.muon) {
        return status_fail("%s was written with --optimizer %s; resume with the same", file->path,
                           info->settings.muon ? "adamw" : "muon");
    }
    int no_master = !file->header[STATE_MASTER_WEIGHTS] && gpt2_block_bytes(model, GPT2_MASTER_WEIGHTS) > 0;
    if (no_master && file->header[STATE_SETTINGS] == 0) { // else the caller has compared -w
        return status_fail("%s has no master weights; resume with -w 0", file->path);
    }
    return STATUS_OK;
}

// Opens both files of a checkpoint. After an error nothing is open.
static inline Status checkpoint_open_(CheckedReader* state, ModelReader* model, const CheckpointPaths* paths,
                                      int step) {
    if (checkpoint_open_state_(state, paths->state) == STATUS_OK) {
        if (model_reader_open(model, paths->model) == STATUS_OK) {
            if (checkpoint_check_pair_(state, model, step) == STATUS_OK) { return STATUS_OK; }
            model_reader_close(model);
        }
    }
    checked_close(state);
    return STATUS_ERROR;
}

// Reads both files of a checkpoint to their ends: every checksum, every number, and whether they belong together.
NOINLINE Status checkpoint_verify(const char* directory, int step) {
    CheckpointPaths paths = checkpoint_paths(directory, step);
    CheckedReader state;
    ModelReader model;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    RunState run;
    memset(&run, 0, sizeof(run));
    TRY(checkpoint_open_(&state, &model, &paths, step));
    Status result = model_reader_verify(&model);
    if (result == STATUS_OK) {
        size_t parameters = gpt2_parameters(table, model.header.config);
        result = checkpoint_read_state_(NULL, &run, model.header.config, parameters, &state);
    }
    checked_close(&state);
    model_reader_close(&model);
    run_state_free(&run);
    return result;
}

// Rank 0 of the processes: all of the files that is brought back. Blocks go to the other processes as they are read.
NOINLINE Status checkpoint_read_at_root_(GPT2* model, DataLoader* loader, RunState* run, const CheckpointPaths* paths,
                                         int step) {
    CheckedReader state;
    ModelReader weights;
    const GPT2Info* info = gpt2_info(model);
    TRY(checkpoint_open_(&state, &weights, paths, step));
    model_reader_close(&weights);
    Status result = checkpoint_check_settings_(&state, model);
    if (result == STATUS_OK) {
        result = comm_broadcast(shards_comm(model), &state.header[STATE_MASTER_WEIGHTS], sizeof(int32_t), 0);
    }
    if (result == STATUS_OK) {
        result = checkpoint_read_state_(model, run, info->config, info->num_parameters, &state);
    }
    if (result == STATUS_OK) { result = dataloader_begin_other_data(loader, &run->loader); }
    if (result == STATUS_OK) { result = dataloader_set_state(loader, &run->loader, paths->state); }
    checked_close(&state);
    return result;
}

// The other processes: the blocks that their model and the file have.
static inline Status checkpoint_receive_blocks_(GPT2* model) {
    const GPT2Info* info = gpt2_info(model);
    int32_t has_master = 0;
    TRY(comm_broadcast(shards_comm(model), &has_master, sizeof(has_master), 0));
    for (int block = GPT2_MOMENTS1; block <= (int)(has_master ? GPT2_MASTER_WEIGHTS : GPT2_MOMENTS2); block++) {
        if (gpt2_block_bytes(model, (GPT2Block)block) == 0) { continue; }
        size_t count = gpt2_block_bytes(model, (GPT2Block)block) / sizeof(float);
        TRY(checkpoint_read_block_(model, (GPT2Block)block, info->config, count, NULL));
    }
    return STATUS_OK;
}

// Rank 0's position in the data, and its outlier detectors, in every process.
static inline Status checkpoint_spread_run_(Comm* comm, RunState* run) {
    DataLoaderState* l = &run->loader;
    int *shards = l->shard_order, *samples = l->sample_order, scales = run->num_scales;
    TRY(comm_broadcast(comm, &scales, sizeof(scales), 0));
    if (comm_rank(comm) != 0) { run_state_allocate_scales_(run, scales); }
    TRY(comm_broadcast(comm, run->scales, (size_t)scales * sizeof(float), 0));
    TRY(comm_broadcast(comm, &run->outliers, sizeof(run->outliers), 0));
    TRY(comm_broadcast(comm, l, sizeof(*l), 0));
    l->shard_order = shards, l->sample_order = samples;
    if (!l->shuffled) { return STATUS_OK; }
    if (comm_rank(comm) != 0) {
        l->shard_order = dataloader_state_copy_(NULL, l->num_shards);
        l->sample_order = dataloader_state_copy_(NULL, l->num_samples);
    }
    TRY(comm_broadcast(comm, l->shard_order, l->num_shards * sizeof(int), 0));
    return comm_broadcast(comm, l->sample_order, l->num_samples * sizeof(int), 0);
}

// Brings back what checkpoint_write() wrote at `step`, but for the weights, which the model was built with, and the settings.
// Master weights that the run did not keep (-w 0) remain what gpt2_set_parameters made them, the weights in fp32.
// Called by all processes; rank 0 reads the files. After an error model, loader and outliers may hold part of it, and the
// others wait until this process ends.
NOINLINE Status checkpoint_read_files(GPT2* model, DataLoader* loader, Outliers* outliers, const CheckpointPaths* paths,
                                      int step) {
    Comm* comm = shards_comm(model);
    RunState run;
    memset(&run, 0, sizeof(run));
    status_clear();
    Status result = comm_rank(comm) == 0 ? checkpoint_read_at_root_(model, loader, &run, paths, step)
                                         : checkpoint_receive_blocks_(model);
    if (result == STATUS_OK) { result = checkpoint_spread_run_(comm, &run); }
    if (result == STATUS_OK && comm_rank(comm) != 0) {
        result = dataloader_set_state(loader, &run.loader, paths->state);
    }
    if (result == STATUS_OK && run.num_scales == gpt2_num_scales(model)) {
        result = gpt2_set_scales(model, run.scales);
    }
    if (result == STATUS_OK) { *outliers = run.outliers; }
    run_state_free(&run);
    return result;
}

NOINLINE Status checkpoint_read(GPT2* model, DataLoader* loader, Outliers* outliers, const char* directory, int step) {
    CheckpointPaths paths = checkpoint_paths(directory, step);
    return checkpoint_read_files(model, loader, outliers, &paths, step);
}

// What run wrote the checkpoint, with what settings: all 0 if it does not say. run_identity_free frees it. The header is
// verified here, the text by checkpoint_verify.
static inline Status checkpoint_read_identity(RunIdentity* identity, const char* directory, int step) {
    CheckpointPaths paths = checkpoint_paths(directory, step);
    CheckedReader file;
    memset(identity, 0, sizeof(*identity));
    Status result = checkpoint_open_state_(&file, paths.state);
    size_t bytes = result == STATUS_OK ? (size_t)file.header[STATE_SETTINGS] : 0;
    if (result == STATUS_OK) {
        identity->run = checkpoint_word64_(&file, STATE_RUN);
        identity->settings = checkpoint_word64_(&file, STATE_SETTINGS_DIGEST);
        identity->data = checkpoint_word64_(&file, STATE_DATA_DIGEST);
        identity->text = (char*)calloc_check(bytes + 1, 1);
        identity->text_bytes = bytes;
        size_t at = HEADER_BYTES + file.body_bytes - bytes;
        result = read_at(fileno(file.file), paths.state, at, identity->text, bytes);
    }
    checked_close(&file);
    return result;
}

#endif
