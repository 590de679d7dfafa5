/*
What a trainer's model offers: GPT-2 in memory, its passes and its optimizer. Declared here once; a program has one
implementation, train_gpt2.c or train_gpt2.cu. trainer.h, checkpoint.h and the tests are built on this file alone.

    GPT2* model;
    check(gpt2_create(&model, config, gpt2_default_settings()));
    check(gpt2_allocate(model, B, T, 1));
    check(gpt2_set_parameters(model, params));
    for each step { for each micro-step { gpt2_forward(); gpt2_backward(); }  gpt2_grad_norm();  gpt2_update(); }
    gpt2_free(model);

A function that returns a Status begins with status_clear(). On STATUS_ERROR status_message() says what was wrong; the
process and the CUDA context remain usable, the model can be freed, and a refused argument changes nothing.
*/
#ifndef LLMC_MODEL_GPT2_MODEL_H
#define LLMC_MODEL_GPT2_MODEL_H

#include "gpt2.h"
#include "gradient_tree.h"
#include "parameter_layout.h"
#include "llmc/base/host.h"
#include "llmc/base/utils.h"
#include "llmc/base/terminal.h"

typedef struct GPT2 GPT2;
typedef struct Comm Comm; // comm.h

// ----------------------------------------------------------------------------
// The memory that a run takes, row by row, known before any of it is allocated. gpt2_plan() fills the rows of the model, which
// gpt2_create and gpt2_allocate then allocate by these rows; the trainer adds its own. A row is bytes of the GPU's memory or of
// the host's. What CUDA's context takes is in no row: it is there before a run asks how much is free.

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
    X(FP8, "fp8 weights, operands")                                                                                    \
    X(MUON, "orthogonalisation")                                                                                       \
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

// ----------------------------------------------------------------------------
// A model

// How a model computes. The CPU trainer has no master weights, no tf32 and no GELU in epilogues.
typedef struct {
    int recompute;      // what the backward pass recomputes instead of keeping: 0 nothing, 1 GELU, 2 also LayerNorm
    int master_weights; // 1: updates act on an fp32 copy of bf16 weights; 0: on the weights, with stochastic rounding
    int muon;           // 1: Muon updates the matrices of the layers, AdamW the rest; 0: AdamW all
    float momentum;     // Muon's
    int tf32;           // 1: fp32 GEMMs may use tf32 tensor cores
    int gelu_fusion;    // GELU in cuBLASLt's epilogues: 0 never, 1 forward, 2 forward and backward
    int micro_steps;    // maximum of micro-steps per step in this process; gradient buffers are sized for it
    Comm* comm;         // the processes that train this model together; NULL: this one alone
    int zero;           // 1: a process has the moments and master weights of its shard only (ZeRO-1); 0: it has all
    int sum_any;      // 1: gradients are summed in any order; 0: in that of gradient_tree.h, the same bits for any 2^n
    int copy_engines; // 1: copy engines exchange data between GPUs of one machine, where possible; 0: NCCL's kernels
    int fp8;          // 1: the GEMMs of training have 8-bit operands
    int graphs;       // 1: on one GPU, passes over full batches are CUDA graphs from the second on (pass_graph.cuh)
    int documents;    // attention stays within documents: 0 never, 1 in gpt2_forward, 2 in gpt2_validate too
    int positions;    // 1: and positions are counted from a document's start; 0: from the row's
    int separator;    // the token with which a document begins
} GPT2Settings;

static inline GPT2Settings gpt2_default_settings(void) {
    GPT2Settings s;
    s.recompute = 1, s.master_weights = 1, s.tf32 = 1, s.gelu_fusion = 0;
    s.muon = 0, s.momentum = 0.95f;
    s.micro_steps = 1, s.comm = NULL, s.zero = 1, s.sum_any = 0, s.copy_engines = 1, s.graphs = 1;
    s.fp8 = 0;
    s.documents = s.positions = s.separator = 0;
    return s;
}

// What the tensors of the last batch hold.
typedef enum {
    PASS_NONE,     // nothing
    PASS_FORWARD,  // activations and logits
    PASS_EVALUATE, // the same, of gpt2_evaluate
    PASS_VALIDATE, // and losses
    PASS_BACKWARD  // activations, losses, and gradients in place of the logits
} LastPass;

// Of the 8-bit numbers of a step, as far as they are counted: how many became 0, and how many were cut off
typedef struct {
    unsigned long long counted, zeros, cut;
} GPT2Codes;

// The state of a model that its users may read.
typedef struct {
    GPT2Config config;
    GPT2Settings settings;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t num_parameters;
    size_t weight_bytes;    // of one weight: 4 in fp32, 2 in bf16
    size_t memory_bytes;    // that the model has allocated; on the GPU, of device memory
    int rank, size;         // of this process, among those that train the model
    int copy_engines;       // 1: copy engines exchange data between the GPUs
    int sharded;            // 1: moments and master weights are those of this process's shard only
    size_t elements;        // of weights and of gradients, with the padding between tensors (parameter_layout.h)
    size_t shard_elements;  // of first moments, and of master weights: the same number, or a shard's
    size_t second_elements; // of second moments: without those of what Muon updates, which has none
    int B, T;               // rows of the largest batch, and tokens of its longest row; 0 before gpt2_allocate
    int last_B, last_T;     // of the last forward pass
    LastPass last_pass;
    int training;    // 1: the model has gradients and moments
    int queues;      // 1: passes and updates are asynchronous: the call only enqueues them
    float mean_loss; // nats: of the last step, over all processes; after its gpt2_grad_norm
    float grad_norm; // of its gradients; likewise
    float* losses;   // (B,T) nats, on the host: of the last gpt2_validate
    // Weights, of all processes, that the last gpt2_update left as they were because their new value was not finite; after
    // gpt2_wait_update.
    unsigned long long non_finite_weights;
    int saturated_steps; // fp8: for how many steps in a row, up to the last gpt2_update, a tensor has saturated; likewise
    GPT2Codes codes;     // fp8: of the last step, in this process, but for the gradient of the logits; likewise
} GPT2Info;

// The blocks of memory that have an element for each parameter. In memory they are in the order of parameter_layout.h; the
// functions below use table order.
typedef enum {
    GPT2_WEIGHTS,       // weight_bytes each
    GPT2_GRADIENTS,     // fp32, and so are the rest
    GPT2_MOMENTS1,      // AdamW's first moments, and Muon's momentum
    GPT2_MOMENTS2,      // AdamW's second moments, of the tensors that AdamW updates
    GPT2_MASTER_WEIGHTS // only where bf16 weights are trained with settings.master_weights
} GPT2Block;

// ----------------------------------------------------------------------------
// Planning: nothing is allocated, and no GPU is needed

// The memory of a model with these settings, allocated for B rows of T tokens: the rows by which gpt2_create and gpt2_allocate
// allocate, and overheads. With B and T 0, gpt2_create alone. `training` as for gpt2_allocate; snapshot 1: with a copy in host
// memory from which checkpoints are written. Sizes that no model can have are an error.
Status gpt2_plan(GPT2Plan* plan, GPT2Config config, GPT2Settings settings, int B, int T, int training, int snapshot);

// The memory of this machine. An error if this trainer needs a GPU and finds none that it supports; the host's memory is
// filled in all the same.
Status gpt2_available_memory(GPT2Memory* memory);

// The properties of this build and machine that determine the bits of a run, as they are named in a run's identity; "": none.
typedef struct {
    char precision[32], gemm[384], attention[128];
    char gemm_library[128]; // with its version, which chooses the algorithm
    char compiler[128];     // with its version, which chooses the multiply-adds that are fused
    char device[256], compute_capability[16], sms[16];
    // for those who read it, and no part of the identity
    char machine[320]; // the device, with its number of threads or SMs
    char cuda[64];     // versions of driver and runtime; "": no GPU
} GPT2Numerics;

// For batches of B rows of T tokens. Errors as in gpt2_available_memory, and where no variant of attention serves the shape.
Status gpt2_numerics(GPT2Numerics* n, GPT2Config config, GPT2Settings settings, int B, int T);

// ----------------------------------------------------------------------------
// Building and freeing

// Creates a model with memory for its weights, which are not set yet. On an error *model is NULL.
Status gpt2_create(GPT2** model, GPT2Config config, GPT2Settings settings);

// Allocates activations for batches of up to B rows of up to T tokens and, with `training`, gradients, zeroed moments and the
// master weights, which gpt2_set_parameters fills afterwards. Called once for a model; after an error, call gpt2_free.
Status gpt2_allocate(GPT2* model, int B, int T, int training);

// Frees a model that gpt2_create has returned, in whatever state; NULL is allowed.
void gpt2_free(GPT2* model);

// Valid, and kept up to date, until gpt2_free.
const GPT2Info* gpt2_info(const GPT2* model);

// The order of the parameters in memory, and which shard each is in. Valid until gpt2_free.
const ParameterLayout* gpt2_layout(const GPT2* model);

// ----------------------------------------------------------------------------
// Parameters, gradients, moments

// Sets the weights from num_parameters floats on the host, in table order: casts them to the training precision and fills the
// master weights, if any; the padding rows of wte, V to Vp-1, become zero whatever is given.
Status gpt2_set_parameters(GPT2* model, const float* params);

// The size of a block, of all shards together; 0 if the model has no such block.
size_t gpt2_block_bytes(const GPT2* model, GPT2Block block);

// Copy bytes offset .. offset+bytes-1 of a block, whole numbers, without a cast, to the host and back. Of a sharded block only
// the elements of this process's shard are copied; the others are left unchanged, in `host` and in the model. The gradients are
// those of the subtree of the last micro-step; after the last one, with several processes, the shard's are sums over all of
// them (with zero 0, all are).
Status gpt2_copy_out(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes);
Status gpt2_copy_in(GPT2* model, GPT2Block block, const void* host, size_t offset, size_t bytes);

// With settings.fp8 the scales of operands, which follow from one step and serve the next; 0 before the first gpt2_update. How
// many there are, 0 without fp8, and copies to the host and back. All processes have the same.
int gpt2_num_scales(const GPT2* model);
Status gpt2_get_scales(GPT2* model, float* scales);
Status gpt2_set_scales(GPT2* model, const float* scales);

// ----------------------------------------------------------------------------
// Passes. inputs and targets (B,T) are tokens on the host. The GPU reads them in stream order: they must not change until
// the second next gpt2_forward has returned.

// The forward pass of a batch up to the final LayerNorm, with B and T at most as allocated.
Status gpt2_forward(GPT2* model, const int* inputs, int B, int T);

// The same for a batch from which nothing is learnt: in the training precision, where gpt2_forward may be in fp8.
Status gpt2_evaluate(GPT2* model, const int* inputs, int B, int T);

// Copies row t of the last forward pass's logits, t in [0, B*T), to the host: its first V elements. Refused after
// gpt2_backward, which replaces them by their gradient, and in fp8 after gpt2_forward. The weights must still be those of the
// pass. Logits are not rounded to the training precision.
Status gpt2_get_logits(GPT2* model, float* logits, int t);

// A forward pass and the batch's losses, from logits in fp32, which are in gpt2_info()->losses; *loss is their mean in nats.
Status gpt2_validate(GPT2* model, float* loss, const int* inputs, const int* targets, int B, int T);

// The gradients of the batch of the last gpt2_forward, whose inputs are given again, added up over this process's
// grad_accum_steps micro-steps (settings.micro_steps at most) and scaled to the mean over all processes. The first
// micro-step (0) overwrites what was there; the last one adds the other processes' to those of this process's shard. Refused
// a second time without another gpt2_forward, whose activations it overwrites.
Status gpt2_backward(GPT2* model, const int* inputs, const int* targets, int grad_accum_steps, int micro_step);

// 1: from the next gpt2_backward on nothing is exchanged: gradients, loss and norm are those of this process's own
// micro-steps, for finding a fault in them. 0, the default: of all processes.
void gpt2_set_local(GPT2* model, int local);

// After the last micro-step: *norm is the Euclidean norm of all gradients, and gpt2_info()->mean_loss the loss of the step.
// With NULL it waits for neither: gpt2_update needs neither on the host, and gpt2_wait_update returns after both are known.
Status gpt2_grad_norm(GPT2* model, float* norm);

// One step of AdamW (adamw.cuh, cpu/numbers.h) or, of the matrices of the layers with settings.muon, of Muon (muon.cuh,
// cpu/muon.h), `step` counting from 1; weight decay on matrices only; gradients whose norm
// (gpt2_grad_norm) exceeds grad_clip are scaled down to it; 0: no clipping. A process updates its shard, and receives the other
// shards' weights from their processes. Where the loss of the step (gpt2_backward) or the norm of its gradients
// (gpt2_grad_norm) is not finite, all weights and moments are left unchanged; on the GPU without the host. A single weight
// whose new value or second moment is not finite is left unchanged with its moments, and counted in
// gpt2_info()->non_finite_weights. Muon's momentum goes on even so; one of it that is not finite keeps all of its matrix.
Status gpt2_update(GPT2* model, float learning_rate, float beta1, float beta2, float epsilon, float weight_decay,
                   float grad_clip, int step);

// Waits for the last gpt2_update, but not for anything called after it; reports errors up to then. Afterwards gpt2_info() has
// mean_loss, grad_norm and non_finite_weights of its step.
Status gpt2_wait_update(GPT2* model);

// Waits until all work of the functions above is done, and reports its errors.
Status gpt2_synchronize(GPT2* model);

// ----------------------------------------------------------------------------
// Finding faults. Both wait for all work so far, and then read the results.

// The first number that is not finite, in the order of computation: weights; activations of the last forward pass, layer by
// layer; losses; gradients from the last layer to the first; moments. text, of `size` bytes, names its tensor: "weights:
// qkvw, layer 2", "forward: fch of layer 3", "backward: gradient of fcw, layer 3"; "" if every number is finite.
Status gpt2_find_non_finite(GPT2* model, char* text, size_t size);

// *digest = a 64-bit sum over the bits and positions of all gradients in this process's memory, in any order: equal
// gradients have equal digests, and a change of one of them always changes it.
Status gpt2_gradient_digest(GPT2* model, uint64_t* digest);

// ----------------------------------------------------------------------------
// Snapshot: a copy of weights, moments and master weights from which a checkpoint is written while training continues.

// Allocates its memory on the host, page-locked in the GPU trainer, after gpt2_allocate with `training`. After an error there
// is none, and the model is unchanged. Called once for a model.
Status gpt2_allocate_snapshot(GPT2* model);

// Takes a snapshot, after all work so far; no gpt2_read_snapshot may run meanwhile. On return training may continue.
Status gpt2_take_snapshot(GPT2* model);

// Copies bytes offset .. offset+bytes-1 of a block (not the gradients) from the snapshot to the host, as gpt2_copy_out does.
// One other thread may call this while the model trains; errors are recorded in that thread.
Status gpt2_read_snapshot(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes);

// ----------------------------------------------------------------------------
// The machine. train_gpt2.c answers for one without a GPU.

// Starts the threads of the CPU trainer's kernels; an error if their stacks are too small, or there is no memory for their
// scratch. Called once, after processes were forked and before a model computes.
Status gpt2_prepare_threads(void);

// Host memory for batches, page-locked in the GPU trainer. NULL if there is not enough; gpt2_host_free frees it.
void* gpt2_host_alloc(size_t bytes);
void gpt2_host_free(void* memory);

// Adds the rows of --doctor on the hardware: devices, and a GEMM and attention against fp64.
void gpt2_doctor(Doctor* doctor);

// How many GPUs this process sees; 0 in the CPU trainer, which needs none.
int gpt2_num_devices(void);

// Selects this process's GPU, in all of its threads; the default is 0. Called before any other function here.
void gpt2_use_device(int device);

// The dense peak of this process's GPU in the training precision, in FLOP/s (gpu_peaks.h); 0 where it is not known, and on
// the CPU
double gpt2_peak_flops(const GPT2* model);

// Prints a line about the GPU's clocks, power and temperature; nothing on the CPU.
void gpt2_log_device(const GPT2* model);

// NVTX ranges on a profiler's timeline (Nsight Systems); an error of the GPU names the last one. They nest, and cost almost
// nothing without a profiler.
void gpt2_range_begin(const char* name);
void gpt2_range_end(void);

// ----------------------------------------------------------------------------
// Checks that every implementation makes

// Refuses sizes of a batch that no model of this context length can be allocated for.
static inline Status gpt2_check_sizes(GPT2Config config, int B, int T) {
    if (B < 1 || T < 1 || T > config.max_seq_len) {
        return status_fail("a batch of %d x %d tokens does not fit a context of %d", B, T, config.max_seq_len);
    }
    if (B > INT_MAX / T) { return status_fail("%d x %d tokens are 2^31 or more; use a smaller batch", B, T); }
    return STATUS_OK;
}

// Refuses a batch larger than what was allocated, in B or in T: scratch is sized for both.
static inline Status gpt2_check_batch(const GPT2Info* info, int B, int T) {
    if (B >= 1 && B <= info->B && T >= 1 && T <= info->T) { return STATUS_OK; }
    return status_fail("a batch of %d x %d tokens does not fit a model allocated for %d x %d", B, T, info->B, info->T);
}

// Refuses tokens outside of the vocabulary.
static inline Status gpt2_check_tokens(const GPT2Info* info, const int* tokens, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= info->config.vocab_size) {
            return status_fail("token %d in a batch is outside of the model's vocabulary of %d", tokens[i],
                               info->config.vocab_size);
        }
    }
    return STATUS_OK;
}

// Refuses a row of logits that the last forward pass did not compute, or that a backward pass has replaced.
static inline Status gpt2_check_row(const GPT2Info* info, int t) {
    int rows = info->last_B * info->last_T;
    if (t < 0 || t >= rows) { return status_fail("logits of row %d, after a forward pass of %d rows", t, rows); }
    if (info->settings.fp8 && info->last_pass == PASS_FORWARD) {
        return status_fail(
            "a training pass in fp8 does not keep what the logits are computed from; call gpt2_evaluate");
    }
    if (info->last_pass != PASS_BACKWARD) { return STATUS_OK; }
    return status_fail("the logits' gradient has replaced them; call gpt2_get_logits before gpt2_backward");
}

// Refuses a model without memory for gradients and moments.
static inline Status gpt2_check_training(const GPT2Info* info) {
    return info->training ? STATUS_OK : status_fail("this model was not allocated for training");
}

// Refuses a backward pass before any forward pass or after one of the same batch, whose activations it has overwritten, a
// micro-step outside of its step, and a step that needs more gradient buffers than there are.
static inline Status gpt2_check_backward(const GPT2Info* info, int grad_accum_steps, int micro_step) {
    TRY(gpt2_check_training(info));
    if (info->last_pass == PASS_NONE) { return status_fail("gpt2_backward before gpt2_forward"); }
    int evaluated = info->last_pass == PASS_EVALUATE || (info->settings.fp8 && info->last_pass == PASS_VALIDATE);
    if (info->last_pass == PASS_BACKWARD || evaluated) {
        return status_fail("gpt2_backward with no gpt2_forward before it");
    }
    if (micro_step < 0 || micro_step >= grad_accum_steps) {
        return status_fail("micro-step %d of %d", micro_step, grad_accum_steps);
    }
    int most = info->settings.micro_steps;
    int buffers = info->settings.sum_any || gradient_buffers(grad_accum_steps, 0) <= gradient_buffers(most, 0);
    if (grad_accum_steps <= most && buffers) { return STATUS_OK; }
    return status_fail("a step of %d micro-steps, of a model made for %d (GPT2Settings.micro_steps)", grad_accum_steps,
                       most);
}

// Bytes of a number of a block
static inline size_t gpt2_element(const GPT2Info* info, GPT2Block block) {
    return block == GPT2_WEIGHTS ? info->weight_bytes : sizeof(float);
}

// 1 if a process has only its shard of a block.
static inline int gpt2_is_sharded(const GPT2Info* info, GPT2Block block) {
    return info->sharded && block != GPT2_WEIGHTS && block != GPT2_GRADIENTS;
}

// Where a run of the layout is in a block's memory
static inline size_t gpt2_run_offset(const GPT2Info* info, GPT2Block block, LayoutRun run) {
    return gpt2_is_sharded(info, block) ? run.shard_offset : block == GPT2_MOMENTS2 ? run.second : run.offset;
}

#endif
