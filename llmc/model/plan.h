/*
The memory that a run takes, row by row, known before any of it is allocated. gpt2_plan() (gpt2_model.h) fills the rows of
the model, which gpt2_create and gpt2_allocate then allocate by these rows; the trainer adds its own.

A row is bytes of the GPU's memory or of the host's. What CUDA's context takes is in no row: it is there before a run asks how
much is free.
*/
#ifndef LLMC_MODEL_PLAN_H
#define LLMC_MODEL_PLAN_H

#include "gpt2.h"

typedef enum { PLAN_DEVICE, PLAN_HOST } PlanMemory;

// X(id, name), the first five in the order of GPT2Block. Rows that a run does not have take 0 bytes.
#define PLAN_ROWS(X)                                                                                                   \
    X(WEIGHTS, "weights")                                                                                              \
    X(GRADIENTS, "gradients")                                                                                          \
    X(MOMENTS1, "first moments")                                                                                       \
    X(MOMENTS2, "second moments")                                                                                      \
    X(MASTER_WEIGHTS, "master weights")                                                                                \
    X(GRADIENT_TREE, "gradients, tree sums")                                                                           \
    X(RECEIVED, "gradients received")                                                                                  \
    X(BLOCK_SUMS, "sums of blocks")                                                                                    \
    X(ACTIVATIONS, "activations")                                                                                      \
    X(BATCH, "a batch")                                                                                                \
    X(SORTED, "a batch, sorted")                                                                                       \
    X(SCALARS, "results")                                                                                              \
    X(WORKSPACE, "cuBLASLt workspace")                                                                                 \
    X(LIBRARIES, "kernels, libraries")                                                                                 \
    X(GRAPHS, "CUDA graphs")                                                                                           \
    X(NCCL, "NCCL")                                                                                                    \
    X(SNAPSHOT, "snapshot")                                                                                            \
    X(KV_CACHE, "KV cache")                                                                                            \
    X(DECODER, "decoder")                                                                                              \
    X(HOST_SORTED, "a batch, sorted")                                                                                  \
    X(HOST_RESULTS, "results")                                                                                         \
    X(HOST_LOSSES, "losses")                                                                                           \
    X(HOST_DECODER, "decoder")                                                                                         \
    X(HOST_WEIGHTS, "weights while loading")                                                                           \
    X(HOST_LOADERS, "batches from files")                                                                              \
    X(HOST_FILES, "buffers of files")                                                                                  \
    X(HOST_PROCESS, "program, libraries")

// Advice if a row does not fit in memory: in training, in decoding
#define PLAN_LESS_TO_TRAIN                                                                                             \
    "use a smaller batch (-b, with -d for accumulation), a smaller model (-e), or more recomputation (-r 2)"
#define PLAN_LESS_TO_DECODE "use fewer sequences at a time, or shorter ones"

#define PLAN_ID_(id, name) PLAN_##id,
typedef enum { PLAN_ROWS(PLAN_ID_) NUM_PLAN_ROWS } PlanRowId;

typedef struct {
    const char* name;
    PlanMemory memory;
    size_t bytes; // SIZE_MAX: overflow
} PlanRow;

typedef struct {
    PlanRow rows[NUM_PLAN_ROWS];
    GPT2Activation activations[NUM_ACTIVATION_TENSORS]; // what the row `activations` consists of
    size_t checkpoint_bytes;                            // weights, moments and master weights in a checkpoint's files
} GPT2Plan;

// Memory available to a run on this machine
typedef struct {
    int has_device;
    size_t device_free;     // of the GPU, after this process's CUDA context
    size_t host_free;       // host memory still available
    const char* host_limit; // where that comes from, such as "the cgroup's limit"
} GPT2Memory;

static inline void plan_clear(GPT2Plan* plan) {
    memset(plan, 0, sizeof(*plan));
#define PLAN_NAME_(id, text) plan->rows[PLAN_##id].name = text;
    PLAN_ROWS(PLAN_NAME_)
#undef PLAN_NAME_
}

static inline void plan_set(GPT2Plan* plan, PlanRowId id, PlanMemory memory, size_t bytes) {
    plan->rows[id].memory = memory;
    plan->rows[id].bytes = bytes;
}

// The bytes of a kind of memory that a run takes; SIZE_MAX on overflow. The buffer from which weights are loaded is freed
// before a snapshot is allocated: of the two, only the larger counts.
static inline size_t plan_bytes(const GPT2Plan* plan, PlanMemory memory) {
    const PlanRow *loaded = &plan->rows[PLAN_HOST_WEIGHTS], *snapshot = &plan->rows[PLAN_SNAPSHOT];
    const PlanRow* smaller = loaded->bytes < snapshot->bytes ? loaded : snapshot;
    size_t sum = 0;
    for (int i = 0; i < NUM_PLAN_ROWS; i++) {
        const PlanRow* r = &plan->rows[i];
        if (r->memory != memory || r == smaller) { continue; }
        sum = size_add(sum, r->bytes);
    }
    return sum;
}

// 1 if the run's device memory fits; also 1 without a GPU.
static inline int plan_fits_device(const GPT2Plan* plan, const GPT2Memory* memory) {
    size_t bytes = plan_bytes(plan, PLAN_DEVICE);
    return !memory->has_device || (bytes != SIZE_MAX && bytes <= memory->device_free);
}

static inline int plan_fits_host(const GPT2Plan* plan, const GPT2Memory* memory) {
    size_t bytes = plan_bytes(plan, PLAN_HOST);
    return bytes != SIZE_MAX && bytes <= memory->host_free;
}

static inline int plan_fits(const GPT2Plan* plan, const GPT2Memory* memory) {
    return plan_fits_device(plan, memory) && plan_fits_host(plan, memory);
}

#endif
