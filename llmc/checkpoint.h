/*
Checkpoints of a training run, in llm.c's files: in the output directory, for step N,

    model_N.bin          the weights (see gpt2.h)
    state_N_00000.bin    AdamW's moments, master weights, the position in the data: what a resumed run needs
    DONE_N               empty, written last: the checkpoint is whole

(N as %08d.) Files appear under their names only when they are complete. Included by the trainers after their GPT2.
*/
#ifndef LLMC_CHECKPOINT_H
#define LLMC_CHECKPOINT_H

#include <dirent.h>

#include "dataloader.h"
#include "gpt2.h"
#include "model_file.h"
#include "outlier_detector.h"

enum { STATE_MAGIC = 20240527, STATE_VERSION = 1 };

// int32 positions in the state file's header. llm.c has all of them but the last three, which it leaves 0.
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
    STATE_OUTLIERS = 36  // 1: two OutlierDetectors stand at the end of the file
};

typedef struct {
    OutlierDetector loss, grad_norm;
} Outliers;

// Moves `bytes` of a tensor to or from a file through a buffer of the host.
static const size_t CHECKPOINT_BUFFER = 32 << 20;

static inline void checkpoint_write_tensor_(AtomicFile* file, const void* tensor, size_t bytes) {
    char* buffer = (char*)malloc_check(CHECKPOINT_BUFFER);
    for (size_t i = 0; i < bytes; i += CHECKPOINT_BUFFER) {
        size_t n = bytes - i < CHECKPOINT_BUFFER ? bytes - i : CHECKPOINT_BUFFER;
        gpt2_copy_out(buffer, (const char*)tensor + i, n);
        atomic_write(file, buffer, n);
    }
    free(buffer);
}

static inline void checkpoint_read_tensor_(void* tensor, size_t bytes, FILE* file, const char* path) {
    char* buffer = (char*)malloc_check(CHECKPOINT_BUFFER);
    for (size_t i = 0; i < bytes; i += CHECKPOINT_BUFFER) {
        size_t n = bytes - i < CHECKPOINT_BUFFER ? bytes - i : CHECKPOINT_BUFFER;
        fread_check(buffer, 1, n, file, path);
        gpt2_copy_in((char*)tensor + i, buffer, n);
    }
    free(buffer);
}

// The weights as they are, in the training precision.
static inline void checkpoint_write_model(GPT2* model, const char* path) {
    AtomicFile file = atomic_open(path);
    gpt2_write_model_header(&file, model->config, GPT2_MODEL_VERSION);
    checkpoint_write_tensor_(&file, model->params_memory, model->num_parameters * sizeof(gpt2_real));
    atomic_commit(&file);
}

static inline void checkpoint_write_state(GPT2* model, const DataLoader* loader, const Outliers* outliers, int step,
                                          const char* path) {
    int32_t header[HEADER_INTS] = {0};
    int64_t rng = step, shard = (int64_t)loader->current_shard_idx, sample = (int64_t)loader->current_sample_idx;
    size_t bytes = model->num_parameters * sizeof(float);
    header[0] = STATE_MAGIC;
    header[1] = STATE_VERSION;
    header[STATE_NUM_PROCESSES] = 1;
    header[STATE_RANK] = 0;
    header[STATE_MASTER_WEIGHTS] = model->master_weights != NULL;
    header[STATE_SHUFFLE] = loader->should_shuffle;
    header[STATE_STEP] = step;
    memcpy(&header[STATE_RNG], &rng, sizeof(rng));
    memcpy(&header[STATE_RNG_LAST], &rng, sizeof(rng));
    memcpy(&header[STATE_SHARD], &shard, sizeof(shard));
    memcpy(&header[STATE_SAMPLE], &sample, sizeof(sample));
    header[STATE_BATCH] = model->B;
    header[STATE_TIME] = model->T;
    header[STATE_OUTLIERS] = 1;
    AtomicFile file = atomic_open(path);
    atomic_write(&file, header, sizeof(header));
    checkpoint_write_tensor_(&file, model->m_memory, bytes);
    checkpoint_write_tensor_(&file, model->v_memory, bytes);
    if (model->master_weights != NULL) { checkpoint_write_tensor_(&file, model->master_weights, bytes); }
    if (loader->should_shuffle) { dataloader_write_state(loader, &file); }
    atomic_write(&file, outliers, sizeof(*outliers));
    atomic_commit(&file);
}

// Brings back what checkpoint_write_state wrote; returns the step. Ends with one line where the file is damaged or was
// written by a run of other settings.
static inline int checkpoint_read_state(GPT2* model, DataLoader* loader, Outliers* outliers, const char* path) {
    int32_t header[HEADER_INTS];
    int64_t shard, sample;
    size_t bytes = model->num_parameters * sizeof(float);
    FILE* file = fopen_check(path, "rb");
    read_header(header, file, path, STATE_MAGIC, "training state");
    if (header[1] != STATE_VERSION) { fatal("%s: version %d is not supported: 1 is", path, (int)header[1]); }
    if (header[STATE_NUM_PROCESSES] != 1) {
        fatal("%s was written by a run of %d processes; this trainer resumes runs of one", path,
              (int)header[STATE_NUM_PROCESSES]);
    }
    if (header[STATE_BATCH] != 0 && (header[STATE_BATCH] != model->B || header[STATE_TIME] != model->T)) {
        fatal("%s was written with -b %d -t %d; resume with the same", path, (int)header[STATE_BATCH],
              (int)header[STATE_TIME]);
    }
    if (header[STATE_SHUFFLE] != loader->should_shuffle) {
        fatal("%s was written with -a %d; resume with the same", path, !header[STATE_SHUFFLE]);
    }
    if (!header[STATE_MASTER_WEIGHTS] && model->master_weights != NULL) {
        fatal("%s has no master weights; resume with -w 0", path);
    }
    checkpoint_read_tensor_(model->m_memory, bytes, file, path);
    checkpoint_read_tensor_(model->v_memory, bytes, file, path);
    if (model->master_weights != NULL) {
        checkpoint_read_tensor_(model->master_weights, bytes, file, path);
    } else if (header[STATE_MASTER_WEIGHTS]) {
        fseek_check(file, (int64_t)(HEADER_BYTES + 3 * bytes), path);
    }
    memcpy(&shard, &header[STATE_SHARD], sizeof(shard));
    memcpy(&sample, &header[STATE_SAMPLE], sizeof(sample));
    dataloader_read_state(loader, file, path, (size_t)shard, (size_t)sample);
    if (header[STATE_OUTLIERS]) { fread_check(outliers, sizeof(*outliers), 1, file, path); }
    if (fgetc(file) != EOF) { fatal("%s goes on behind its end: it is another model's, or corrupt", path); }
    fclose(file);
    return header[STATE_STEP];
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

// The newest whole checkpoint in the directory, or -1.
static inline int checkpoint_newest(const char* directory) {
    int newest = -1;
    DIR* dir = opendir(directory);
    if (dir == NULL) { return -1; }
    for (struct dirent* entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        int step;
        char rest;
        if (sscanf(entry->d_name, "DONE_%8d%c", &step, &rest) == 1 && step > newest) { newest = step; }
    }
    closedir(dir);
    return newest;
}

static inline void checkpoint_write(GPT2* model, const DataLoader* loader, const Outliers* outliers,
                                    const char* directory, int step) {
    CheckpointPaths paths = checkpoint_paths(directory, step);
    remove(paths.done); // an older run's files of this step are no longer whole once the first of them is replaced
    checkpoint_write_model(model, paths.model);
    checkpoint_write_state(model, loader, outliers, step, paths.state);
    AtomicFile done = atomic_open(paths.done);
    atomic_commit(&done);
}

static inline void checkpoint_delete(const char* directory, int step) {
    CheckpointPaths paths = checkpoint_paths(directory, step);
    remove(paths.done); // first: what is left is not a checkpoint
    remove(paths.model);
    remove(paths.state);
}

#endif
