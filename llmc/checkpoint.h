/*
Checkpoints of a training run, in llm.c's files: in the output directory, for step N,

    model_N.bin          the weights (see model_file.h)
    state_N_00000.bin    AdamW's moments, master weights, the position in the data: what a resumed run needs
    DONE_N               empty, written last: the checkpoint is whole

(N as %08d.) Files appear under their names only when they are complete. Both files hold the step and the digest of the
weights, so that renamed files, or files of two runs, are refused.
*/
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H

#include <dirent.h>

#include "atomic_file.h"
#include "dataloader.h"
#include "gpt2_model.h"
#include "model_file.h"
#include "outlier_detector.h"

enum { STATE_MAGIC = 20240527, STATE_VERSION = 1 };

// int32 positions in the state file's header. llm.c has all of them but the last four, which it leaves 0.
enum {
    STATE_NUM_PROCESSES = 2,
    STATE_RANK = 3,
    STATE_MASTER_WEIGHTS = 4,
    STATE_SHUFFLE = 5,
    STATE_STEP = 10,
    STATE_RNG = 20,      // 64 bit; our stochastic rounding depends on the step alone, so these two are the step
    STATE_RNG_LAST = 22, // 64 bit
    STATE_SHARD = 30,    // 64 bit
    STATE_SAMPLE = 32,   // 64 bit
    STATE_BATCH = 34,    // B, or 0
    STATE_TIME = 35,     // T, or 0
    STATE_OUTLIERS = 36, // 1: two OutlierDetectors stand at the end of the file
    STATE_MODEL = 38     // 64 bit; the digest in the header of the model file that belongs to it, or 0
};

typedef struct {
    OutlierDetector loss, grad_norm;
} Outliers;

// Writes a block of the model to a file, or fills it from there, through a buffer on the host.
static const size_t CHECKPOINT_BUFFER = 32 << 20;

static inline void checkpoint_write_block_(AtomicFile* file, GPT2* model, GPT2Block block) {
    size_t bytes = gpt2_block_bytes(model, block);
    char* buffer = (char*)malloc_check(bytes < CHECKPOINT_BUFFER ? bytes : CHECKPOINT_BUFFER);
    for (size_t i = 0; i < bytes; i += CHECKPOINT_BUFFER) {
        size_t n = bytes - i < CHECKPOINT_BUFFER ? bytes - i : CHECKPOINT_BUFFER;
        check(gpt2_copy_out(model, buffer, block, i, n));
        check(atomic_write(file, buffer, n));
    }
    free(buffer);
}

static inline void checkpoint_read_block_(GPT2* model, GPT2Block block, FILE* file, const char* path) {
    size_t bytes = gpt2_block_bytes(model, block);
    char* buffer = (char*)malloc_check(bytes < CHECKPOINT_BUFFER ? bytes : CHECKPOINT_BUFFER);
    for (size_t i = 0; i < bytes; i += CHECKPOINT_BUFFER) {
        size_t n = bytes - i < CHECKPOINT_BUFFER ? bytes - i : CHECKPOINT_BUFFER;
        fread_check(buffer, 1, n, file, path);
        check(gpt2_copy_in(model, block, buffer, i, n));
    }
    free(buffer);
}

// Writes the weights as they are, in the training precision; returns what ties the state to them.
static inline uint64_t checkpoint_write_model(GPT2* model, int step, const char* path) {
    CheckedWriter file;
    const GPT2Info* info = gpt2_info(model);
    size_t bytes = gpt2_block_bytes(model, GPT2_WEIGHTS);
    int version = info->weight_bytes == 4 ? MODEL_VERSION_FP32 : MODEL_VERSION_BF16;
    char* buffer = (char*)malloc_check(bytes < CHECKPOINT_BUFFER ? bytes : CHECKPOINT_BUFFER);
    check(model_file_create(&file, path, info->config, version));
    for (size_t i = 0; i < bytes; i += CHECKPOINT_BUFFER) {
        size_t n = bytes - i < CHECKPOINT_BUFFER ? bytes - i : CHECKPOINT_BUFFER;
        check(gpt2_copy_out(model, buffer, GPT2_WEIGHTS, i, n));
        check(checked_write(&file, buffer, n));
    }
    free(buffer);
    uint64_t contents = model_file_complete(&file, step);
    check(checked_commit(&file));
    return contents;
}

static inline void checkpoint_write_state(GPT2* model, const DataLoader* loader, const Outliers* outliers, int step,
                                          uint64_t model_digest, const char* path) {
    int32_t header[HEADER_INTS] = {0};
    int64_t rng = step, shard = (int64_t)loader->current_shard_idx, sample = (int64_t)loader->current_sample_idx;
    header[0] = STATE_MAGIC;
    header[1] = STATE_VERSION;
    header[STATE_NUM_PROCESSES] = 1;
    header[STATE_RANK] = 0;
    header[STATE_MASTER_WEIGHTS] = gpt2_block_bytes(model, GPT2_MASTER_WEIGHTS) > 0;
    header[STATE_SHUFFLE] = loader->should_shuffle;
    header[STATE_STEP] = step;
    memcpy(&header[STATE_RNG], &rng, sizeof(rng));
    memcpy(&header[STATE_RNG_LAST], &rng, sizeof(rng));
    memcpy(&header[STATE_SHARD], &shard, sizeof(shard));
    memcpy(&header[STATE_SAMPLE], &sample, sizeof(sample));
    header[STATE_BATCH] = gpt2_info(model)->B;
    header[STATE_TIME] = gpt2_info(model)->T;
    header[STATE_OUTLIERS] = 1;
    memcpy(&header[STATE_MODEL], &model_digest, sizeof(model_digest));
    AtomicFile file;
    check(atomic_open(&file, path));
    check(atomic_write(&file, header, sizeof(header)));
    checkpoint_write_block_(&file, model, GPT2_MOMENTS1);
    checkpoint_write_block_(&file, model, GPT2_MOMENTS2);
    checkpoint_write_block_(&file, model, GPT2_MASTER_WEIGHTS);
    if (loader->should_shuffle) { dataloader_write_state(loader, &file); }
    check(atomic_write(&file, outliers, sizeof(*outliers)));
    check(atomic_commit(&file));
}

// ----------------------------------------------------------------------------
// Reading. Every function ends with one line where the file is damaged or was written by a run of other settings.

// A word of the header that is 0 or 1
static inline int checkpoint_flag_(const int32_t* header, int position, const char* path) {
    int value = header[position];
    if (value != 0 && value != 1) {
        fatal("%s: header word %d is %d, not 0 or 1; it is corrupt", path, position, value);
    }
    return value;
}

// A word of the header that is 64 bit and a position in the data
static inline size_t checkpoint_position_(const int32_t* header, int position, const char* path) {
    int64_t value;
    memcpy(&value, &header[position], sizeof(value));
    if (value < 0) {
        fatal("%s: header word %d, a position in the data, is %lld; it is corrupt", path, position, (long long)value);
    }
    return (size_t)value;
}

// The two files of a checkpoint belong together, and to the step in their names.
static inline void checkpoint_check_pair_(const int32_t* header, int step, const char* path, const char* model_path) {
    uint64_t digest;
    memcpy(&digest, &header[STATE_MODEL], sizeof(digest));
    ModelHeader model;
    check(gpt2_read_model_header(model_path, &model));
    if (header[STATE_STEP] != step) {
        fatal("%s holds step %d, its name says step %d; give it back its own name", path, (int)header[STATE_STEP],
              step);
    }
    if (model.step != 0 && model.step != step) {
        fatal("%s holds step %d, its name says step %d; give it back its own name", model_path, model.step, step);
    }
    if (digest != model.digest) {
        fatal("%s was not written together with %s; put back both files of one checkpoint", path, model_path);
    }
}

// The settings of the run that wrote the state are this run's.
static inline void checkpoint_check_settings_(const int32_t* header, const GPT2* model, const DataLoader* loader,
                                              const char* path) {
    const GPT2Info* info = gpt2_info(model);
    int B = header[STATE_BATCH], T = header[STATE_TIME];
    if (header[STATE_NUM_PROCESSES] != 1 || header[STATE_RANK] != 0) {
        fatal("%s is the state of process %d of %d; this trainer resumes runs of one process", path,
              (int)header[STATE_RANK], (int)header[STATE_NUM_PROCESSES]);
    }
    if ((B != 0 || T != 0) && (B != info->B || T != info->T)) {
        fatal("%s was written with -b %d -t %d; resume with the same", path, B, T);
    }
    if (checkpoint_flag_(header, STATE_SHUFFLE, path) != loader->should_shuffle) {
        fatal("%s was written with -a %d; resume with the same", path, !header[STATE_SHUFFLE]);
    }
    if (!checkpoint_flag_(header, STATE_MASTER_WEIGHTS, path) && gpt2_block_bytes(model, GPT2_MASTER_WEIGHTS) > 0) {
        fatal("%s has no master weights; resume with -w 0", path);
    }
}

static inline void checkpoint_read_outliers_(Outliers* outliers, FILE* file, const char* path) {
    fread_check(outliers, sizeof(*outliers), 1, file, path);
    if (!outlier_valid(&outliers->loss) || !outlier_valid(&outliers->grad_norm)) {
        fatal("%s: its outlier detectors (the last %zu bytes) are corrupt; resume from another checkpoint", path,
              sizeof(*outliers));
    }
}

// Brings back what checkpoint_write() wrote at `step`, but for the weights.
static inline void checkpoint_read_state(GPT2* model, DataLoader* loader, Outliers* outliers, int step,
                                         const char* path, const char* model_path) {
    int32_t header[HEADER_INTS];
    size_t bytes = gpt2_info(model)->num_parameters * sizeof(float);
    FILE* file = fopen_check(path, "rb");
    read_header(header, file, path, STATE_MAGIC, "training state");
    if (header[1] != STATE_VERSION) { fatal("%s: state version %d is not supported: 1 is", path, (int)header[1]); }
    checkpoint_check_pair_(header, step, path, model_path);
    checkpoint_check_settings_(header, model, loader, path);
    int has_outliers = checkpoint_flag_(header, STATE_OUTLIERS, path);
    size_t tensors = header[STATE_MASTER_WEIGHTS] ? 3 : 2;
    size_t least = HEADER_BYTES + tensors * bytes + (has_outliers ? sizeof(*outliers) : 0);
    if ((uint64_t)file_size(file, path) < (uint64_t)least) {
        fatal("%s has %lld bytes, the state of this model has at least %zu; it is truncated or another model's", path,
              (long long)file_size(file, path), least);
    }
    checkpoint_read_block_(model, GPT2_MOMENTS1, file, path);
    checkpoint_read_block_(model, GPT2_MOMENTS2, file, path);
    checkpoint_read_block_(model, GPT2_MASTER_WEIGHTS, file, path);
    fseek_check(file, (int64_t)(HEADER_BYTES + tensors * bytes), path); // past master weights that are not wanted
    dataloader_read_state(loader, file, path, checkpoint_position_(header, STATE_SHARD, path),
                          checkpoint_position_(header, STATE_SAMPLE, path));
    if (has_outliers) { checkpoint_read_outliers_(outliers, file, path); }
    if (fgetc(file) != EOF) { fatal("%s has trailing bytes: it is another model's, or corrupt", path); }
    fclose(file);
}

// ----------------------------------------------------------------------------
// The files of a step

typedef struct {
    char model[1024], state[1024], done[1024];
} CheckpointPaths;

static inline CheckpointPaths checkpoint_paths(const char* directory, int step) {
    CheckpointPaths p;
    if (strlen(directory) > 960) { fatal("-o: the path is longer than 960 bytes: %s", directory); }
    snprintf(p.model, sizeof(p.model), "%s/model_%08d.bin", directory, step);
    snprintf(p.state, sizeof(p.state), "%s/state_%08d_00000.bin", directory, step);
    snprintf(p.done, sizeof(p.done), "%s/DONE_%08d", directory, step);
    return p;
}

// The newest whole checkpoint in the directory, or -1. A directory that exists and cannot be read ends the program: to a run
// that resumes it would look empty, and the run would begin again and empty main.log.
static inline int checkpoint_newest(const char* directory) {
    int newest = -1;
    struct dirent* entry;
    DIR* dir = opendir(directory);
    if (dir == NULL && errno == ENOENT) { return -1; }
    while (dir != NULL && (errno = 0, entry = readdir(dir)) != NULL) {
        int step;
        char rest;
        if (sscanf(entry->d_name, "DONE_%8d%c", &step, &rest) == 1 && step > newest) { newest = step; }
    }
    if (dir == NULL || errno != 0) { fatal("cannot read the directory %s: %s", directory, strerror(errno)); }
    closedir(dir);
    return newest;
}

static inline void checkpoint_write(GPT2* model, const DataLoader* loader, const Outliers* outliers,
                                    const char* directory, int step) {
    CheckpointPaths paths = checkpoint_paths(directory, step);
    remove(paths.done); // an older run's files of this step are no longer whole once the first of them is replaced
    uint64_t digest = checkpoint_write_model(model, step, paths.model);
    checkpoint_write_state(model, loader, outliers, step, digest, paths.state);
    AtomicFile done;
    check(atomic_open(&done, paths.done));
    check(atomic_commit(&done));
}

// Brings back the checkpoint of a step, but for its weights, which the model was built with.
static inline void checkpoint_read(GPT2* model, DataLoader* loader, Outliers* outliers, const char* directory,
                                   int step) {
    CheckpointPaths paths = checkpoint_paths(directory, step);
    checkpoint_read_state(model, loader, outliers, step, paths.state, paths.model);
}

static inline void checkpoint_delete(const char* directory, int step) {
    CheckpointPaths paths = checkpoint_paths(directory, step);
    remove(paths.done); // first: what is left is not a checkpoint
    remove(paths.model);
    remove(paths.state);
}

#endif
