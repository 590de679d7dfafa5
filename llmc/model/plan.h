/*
The memory that a run takes, row by row, known before any of it is allocated. gpt2_plan() (gpt2_model.h) fills the rows of
the model, which gpt2_create and gpt2_allocate then allocate by these rows; the trainer adds its own.

A row is bytes of the GPU's memory or of the host's, allocated in one or both of the two successive phases of a run: loading the
weights, training. A run needs the larger of the two sums.
*/
#ifndef LLMC_MODEL_PLAN_H
#define LLMC_MODEL_PLAN_H

#include "gpt2.h"

typedef enum { PLAN_DEVICE, PLAN_HOST } PlanMemory;
enum { PLAN_LOADING = 1, PLAN_TRAINING = 2, PLAN_ALWAYS = 3 };

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
    X(CAST, "weights in fp32")                                                                                         \
    X(CONTEXT, "CUDA context")                                                                                         \
    X(LIBRARIES, "kernels, libraries")                                                                                 \
    X(GRAPHS, "CUDA graphs")                                                                                           \
    X(NCCL, "NCCL")                                                                                                    \
    X(SNAPSHOT, "snapshot")                                                                                            \
    X(KV_CACHE, "KV cache")                                                                                            \
    X(DECODER, "decoder")                                                                                              \
    X(HOST_SORTED, "a batch, sorted")                                                                                  \
    X(HOST_RESULTS, "results")                                                                                         \
    X(HOST_LOSSES, "losses")                                                                                           \
    X(HOST_SNAPSHOT, "snapshot")                                                                                       \
    X(HOST_DECODER, "decoder")                                                                                         \
    X(HOST_WEIGHTS, "weights in fp32")                                                                                 \
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
    int phases;   // 0: a row that this run does not have
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
    size_t device_free,
        device_total;             // of the GPU; device_free excludes this process's CUDA context
    size_t host_free, host_total; // host memory still available, and in total
    const char* host_limit;       // where they come from, such as "the cgroup's limit"
} GPT2Memory;

static inline void plan_clear(GPT2Plan* plan) {
    memset(plan, 0, sizeof(*plan));
#define PLAN_NAME_(id, text) plan->rows[PLAN_##id].name = text;
    PLAN_ROWS(PLAN_NAME_)
#undef PLAN_NAME_
}

static inline void plan_set(GPT2Plan* plan, PlanRowId id, PlanMemory memory, int phases, size_t bytes) {
    plan->rows[id].memory = memory;
    plan->rows[id].phases = phases;
    plan->rows[id].bytes = bytes;
}

// The bytes of a kind of memory that are held in a phase
static inline size_t plan_phase(const GPT2Plan* plan, PlanMemory memory, int phase) {
    size_t sum = 0;
    for (int i = 0; i < NUM_PLAN_ROWS; i++) {
        const PlanRow* r = &plan->rows[i];
        if (r->memory == memory && (r->phases & phase)) { sum = size_add(sum, r->bytes); }
    }
    return sum;
}

// The peak of a kind of memory over the phases, in bytes; SIZE_MAX on overflow.
static inline size_t plan_peak(const GPT2Plan* plan, PlanMemory memory) {
    size_t peak = 0;
    for (int phase = PLAN_LOADING; phase <= PLAN_TRAINING; phase *= 2) {
        size_t sum = plan_phase(plan, memory, phase);
        peak = sum > peak ? sum : peak;
    }
    return peak;
}

// The GPU memory that a run holds after its first step, as the decrease of cudaMemGetInfo's free memory: without the CUDA
// context, which exists before the first call.
static inline size_t plan_device_held(const GPT2Plan* plan) {
    size_t all = plan_phase(plan, PLAN_DEVICE, PLAN_TRAINING);
    return all == SIZE_MAX ? all : all - plan->rows[PLAN_CONTEXT].bytes;
}

// 1 if the run's device memory fits, besides the existing context; also 1 without a GPU.
static inline int plan_fits_device(const GPT2Plan* plan, const GPT2Memory* memory) {
    size_t peak = plan_peak(plan, PLAN_DEVICE);
    return !memory->has_device || (peak != SIZE_MAX && peak - plan->rows[PLAN_CONTEXT].bytes <= memory->device_free);
}

static inline int plan_fits_host(const GPT2Plan* plan, const GPT2Memory* memory) {
    size_t peak = plan_peak(plan, PLAN_HOST);
    return peak != SIZE_MAX && peak <= memory->host_free;
}

static inline int plan_fits(const GPT2Plan* plan, const GPT2Memory* memory) {
    return plan_fits_device(plan, memory) && plan_fits_host(plan, memory);
}

#endif
