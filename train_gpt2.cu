/*
The GPU trainer: GPT-2 in bf16 (fp32 master weights, fp32 gradients) or, with PRECISION=FP32, in fp32.

This file is the model: llmc/gpt2_model.h says what each of its functions does. GEMMs are cuBLASLt's; attention is the
variant that dev/cuda/attention.cuh names; everything else is in llmc/, one header per idea. Nothing adds with atomics,
so the same seed gives the same bits. The training loop is trainer_main in llmc/trainer.h, which the CPU trainer shares.
*/
#include "llmc/gpt2_model.h"
#include "llmc/cuda_common.cuh"
#include "llmc/matmul.cuh"
#include "llmc/encoder.cuh"
#include "llmc/layernorm.cuh"
#include "dev/cuda/attention.cuh"
#include "dev/cuda/doctor.cuh"
#include "llmc/gelu.cuh"
#include "llmc/classifier.cuh"
#include "llmc/adamw.cuh"
#include "llmc/global_norm.cuh"
#include "llmc/gpu_info.cuh"
#include "llmc/non_finite.cuh"
#include "llmc/nvtx.cuh"
#include "llmc/snapshot.cuh"
#include "llmc/table.h"
#include "llmc/tensor_search.h"

#if defined(PRECISION_FP16)
#error "the trainer is built with PRECISION=BF16 or PRECISION=FP32: GPT-2's file formats have no fp16"
#endif

GPT2_DECLARE_PARAMETERS(ParameterTensors, floatX);
GPT2_DECLARE_PARAMETERS(GradientTensors, float);
GPT2_DECLARE_ACTIVATIONS(ActivationTensors, floatX);

// Single numbers, on the device and page-locked on the host
struct Scalars {
    float loss; // of the step: a sum over its tokens; 0 before its last gpt2_backward
    float norm; // of its gradients; 0 before gpt2_grad_norm
    unsigned long long non_finite_weights, digest;
    unsigned first_non_finite;
};

struct GPT2 {
    GPT2Info info;
    GPT2Plan plan; // the sizes of what is allocated
    // (num_parameters), on the device
    ParameterTensors params;
    floatX* params_memory;
    GradientTensors grads;
    float* grads_memory;
    float* m_memory;       // AdamW's first moments
    float* v_memory;       // AdamW's second moments
    float* master_weights; // fp32 copy of the weights, or NULL
    // activations of a batch of at most B rows of T tokens
    ActivationTensors acts;
    void* acts_memory;
    int last_B, last_T; // of the last forward pass
    LastPass last_pass;
    // a batch on the device, and its positions sorted by token on both sides
    int *inputs, *targets;
    TokenOrder sorted, sorted_host;
    int* token_counts;
    cudaEvent_t batch_copied; // the host's buffers may be written again
    // results
    Scalars *scalars, *scalars_host;
    floatX* logits_row; // (V), page-locked on the host
    Snapshot snapshot;
    // the GPU
    cudaDeviceProp device;
    cudaStream_t stream;
    Matmul matmul;
};

// ----------------------------------------------------------------------------
// Planning

// What CUDA takes beside our own memory: before the first allocation, after it (kernels are loaded as they are first
// launched), and on the host: measured on an H200 with driver 580 and CUDA 13. A run's last lines show what they miss.
constexpr size_t CONTEXT_BYTES = (size_t)622 << 20, LIBRARIES_BYTES = (size_t)12 << 20;
constexpr size_t HOST_PROCESS_BYTES = (size_t)360 << 20;

// What the backward kernels need for a batch of B rows of T tokens, the largest of them. An error where no variant of
// attention serves. Without a GPU, what they would on one of compute capability 9.0.
static size_t gpt2_scratch_bytes(GPT2Config config, int B, int T) {
    int C = config.channels, NH = config.num_heads;
    AttentionGpu gpu;
    if (attention_gpu(&gpu) != STATUS_OK) {
        status_clear();
        gpu = {90, SIZE_MAX};
    }
    size_t sizes[] = {column_sum_scratch_bytes(4 * C), layernorm_backward_scratch_bytes(C), global_norm_scratch_bytes(),
                      attention_backward_scratch_bytes_on(gpu, B, T, NH, C / NH)};
    size_t largest = 0;
    for (size_t bytes : sizes) { largest = bytes > largest ? bytes : largest; }
    return largest;
}

// The rows of gpt2_create
static void gpt2_plan_weights(GPT2Plan* plan, GPT2Config config, GPT2Settings settings) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t n = gpt2_parameters(table, config);
    int has_fp32 =
        sizeof(floatX) == 4 || settings.master_weights; // memory of the model that fp32 weights are loaded into
    plan_set(plan, PLAN_CONTEXT, PLAN_DEVICE, PLAN_ALWAYS, CONTEXT_BYTES);
    plan_set(plan, PLAN_LIBRARIES, PLAN_DEVICE, PLAN_ALWAYS, LIBRARIES_BYTES);
    plan_set(plan, PLAN_WORKSPACE, PLAN_DEVICE, PLAN_ALWAYS, MATMUL_WORKSPACE);
    plan_set(plan, PLAN_WEIGHTS, PLAN_DEVICE, PLAN_ALWAYS, n * sizeof(floatX));
    plan_set(plan, PLAN_GEMM, PLAN_DEVICE, PLAN_MEASURING, MATMUL_MEASURE_BYTES);
    plan_set(plan, PLAN_HOST_GEMM, PLAN_HOST, PLAN_MEASURING, MATMUL_MEASURE_BYTES / 3);
    plan_set(plan, PLAN_CAST, PLAN_DEVICE, PLAN_LOADING, has_fp32 ? 0 : n * sizeof(float));
    plan_set(plan, PLAN_SCALARS, PLAN_DEVICE, PLAN_ALWAYS, sizeof(Scalars));
    plan_set(plan, PLAN_HOST_RESULTS, PLAN_HOST, PLAN_ALWAYS, sizeof(Scalars) + config.vocab_size * sizeof(floatX));
    plan_set(plan, PLAN_HOST_PROCESS, PLAN_HOST, PLAN_ALWAYS, HOST_PROCESS_BYTES);
    plan_set(plan, PLAN_HOST_WEIGHTS, PLAN_HOST, PLAN_LOADING, n * sizeof(float));
}

// The rows of training beside the activations. A batch is sorted into buckets, one for each token that occurs and one more,
// and an order of all its tokens.
static void gpt2_plan_training(GPT2Plan* plan, GPT2Config config, GPT2Settings settings, size_t BT, int snapshot) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t n = gpt2_parameters(table, config), V = config.vocab_size;
    size_t buckets = (BT < V ? BT : V) + 1, sorted = buckets * sizeof(int2) + BT * sizeof(int);
    size_t masters = settings.master_weights && sizeof(floatX) < 4 ? n * sizeof(float) : 0; // fp32 is its own master
    plan_set(plan, PLAN_GRADIENTS, PLAN_DEVICE, PLAN_LOADING | PLAN_TRAINING, n * sizeof(float));
    plan_set(plan, PLAN_MOMENTS1, PLAN_DEVICE, PLAN_LOADING | PLAN_TRAINING, n * sizeof(float));
    plan_set(plan, PLAN_MOMENTS2, PLAN_DEVICE, PLAN_LOADING | PLAN_TRAINING, n * sizeof(float));
    plan_set(plan, PLAN_MASTER_WEIGHTS, PLAN_DEVICE, PLAN_LOADING | PLAN_TRAINING, masters);
    plan_set(plan, PLAN_SORTED, PLAN_DEVICE, PLAN_LOADING | PLAN_TRAINING, sorted);
    plan_set(plan, PLAN_HOST_SORTED, PLAN_HOST, PLAN_LOADING | PLAN_TRAINING, sorted);
    if (snapshot) {
        plan_set(plan, PLAN_HOST_SNAPSHOT, PLAN_HOST, PLAN_TRAINING,
                 n * (sizeof(floatX) + 2 * sizeof(float)) + masters);
    }
}

Status gpt2_plan(GPT2Plan* plan, GPT2Config config, GPT2Settings settings, int B, int T, int training, int snapshot) {
    plan_clear(plan);
    status_clear();
    TRY(gpt2_config_status(config, "the model"));
    gpt2_plan_weights(plan, config, settings);
    if (B == 0 && T == 0) { return STATUS_OK; }
    TRY(gpt2_check_sizes(config, B, T));
    const char* fault = attention_unsupported(B, T, config.num_heads, config.channels / config.num_heads);
    if (fault != NULL) { return status_fail("attention: %s", fault); }
    size_t BT = (size_t)B * T, scratch = training ? gpt2_scratch_bytes(config, B, T) : 0;
    TRY(status_now());
    size_t activations = gpt2_activations(plan->activations, config, B, T, settings.recompute, training ? 1 : 0,
                                          sizeof(floatX), scratch);
    plan_set(plan, PLAN_ACTIVATIONS, PLAN_DEVICE, PLAN_LOADING | PLAN_TRAINING, activations);
    plan_set(plan, PLAN_BATCH, PLAN_DEVICE, PLAN_LOADING | PLAN_TRAINING, 2 * BT * sizeof(int));
    plan_set(plan, PLAN_HOST_LOSSES, PLAN_HOST, PLAN_LOADING | PLAN_TRAINING, BT * sizeof(float));
    if (training) { gpt2_plan_training(plan, config, settings, BT, snapshot); }
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Building and freeing. After an error nothing more is allocated, and nothing is launched.

static void* device_alloc(GPT2* model, size_t bytes, const char* what) {
    void* p = NULL;
    if (status_now() != STATUS_OK) { return NULL; }
    cudaError_t error = cudaMalloc(&p, bytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        (void)cudaGetLastError(); // or the check after the next launch would report it
        cudaMemGetInfo(&available, &total);
        status_fail(
            "%s: %.1f MiB of GPU memory asked for, %.1f MiB free; use a smaller batch (-b, with -d for accumulation), "
            "a smaller model (-e), or more recomputation (-r 2)",
            what, (double)bytes / (1 << 20), (double)available / (1 << 20));
        return NULL;
    }
    if (cuda_try(error) != STATUS_OK) { return NULL; }
    model->info.memory_bytes += bytes;
    return p;
}

// Page-locked memory on the host
static void* pinned_alloc(size_t bytes) {
    void* p = NULL;
    if (status_now() != STATUS_OK) { return NULL; }
    return cuda_try(cudaMallocHost(&p, bytes)) == STATUS_OK ? p : NULL;
}

// A row of the plan; NULL where it has no bytes, and after an error.
static void* row_alloc(GPT2* model, PlanRowId id) {
    const PlanRow* row = &model->plan.rows[id];
    if (row->bytes == 0) { return NULL; }
    return row->memory == PLAN_DEVICE ? device_alloc(model, row->bytes, row->name) : pinned_alloc(row->bytes);
}

// Selects the GPU; an error where there is none that this build runs on.
static Status gpt2_find_gpu(cudaDeviceProp* device) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        return status_fail("no usable GPU: %s; ./train_gpt2 trains on the CPU", cudaGetErrorString(error));
    }
    TRY(cuda_try(cudaSetDevice(0)));
    TRY(cuda_try(cudaGetDeviceProperties(device, 0)));
    if (device->major < 8) {
        return status_fail("%s has compute capability %d.%d; this trainer needs 8.0 or newer", device->name,
                           device->major, device->minor);
    }
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, cast_to_fp32_kernel) != cudaSuccess) {
        return status_fail("this build has no code for %s (compute capability %d.%d); run make clean and make "
                           "train_gpt2cu here",
                           device->name, device->major, device->minor);
    }
    return STATUS_OK;
}

// gpt2_create, into a model that is all zeros
static Status gpt2_build(GPT2* model, GPT2Config config, GPT2Settings settings) {
    GPT2Info* info = &model->info;
    TRY(gpt2_config_status(config, "the model"));
    TRY(gpt2_find_gpu(&model->device));
    TRY(cuda_try(cudaStreamCreateWithFlags(&model->stream, cudaStreamNonBlocking)));
    info->config = config;
    info->settings = settings;
    info->num_parameters = gpt2_parameters(info->table, config);
    info->weight_bytes = sizeof(floatX);
    TRY(gpt2_plan(&model->plan, config, settings, 0, 0, 0, 0));
    TRY(matmul_create(&model->matmul, settings.tf32, model->stream));
    info->memory_bytes = model->plan.rows[PLAN_WORKSPACE].bytes;
    model->params_memory = (floatX*)row_alloc(model, PLAN_WEIGHTS);
    model->scalars = (Scalars*)row_alloc(model, PLAN_SCALARS);
    model->scalars_host = (Scalars*)row_alloc(model, PLAN_HOST_RESULTS);
    TRY(status_now());
    model->logits_row = (floatX*)(model->scalars_host + 1);
    gpt2_point_parameters(&model->params, info->table, model->params_memory, sizeof(floatX));
    memset(model->scalars_host, 0, sizeof(Scalars));
    TRY(cuda_try(cudaMemset(model->scalars, 0, sizeof(Scalars))));
    return cuda_try(cudaEventCreateWithFlags(&model->batch_copied, cudaEventDisableTiming));
}

Status gpt2_create(GPT2** result, GPT2Config config, GPT2Settings settings) {
    status_clear();
    *result = NULL;
    GPT2* model = (GPT2*)calloc(1, sizeof(GPT2));
    if (model == NULL) { return status_fail("no memory for a model"); }
    if (gpt2_build(model, config, settings) != STATUS_OK) {
        gpt2_free(model);
        return STATUS_ERROR;
    }
    *result = model;
    return STATUS_OK;
}

// What training needs beside the activations; BT is the number of tokens of a batch.
static Status gpt2_allocate_training(GPT2* model, size_t BT) {
    GPT2Info* info = &model->info;
    size_t n = info->num_parameters, V = info->config.vocab_size;
    size_t buckets = model->plan.rows[PLAN_SORTED].bytes - BT * sizeof(int); // in bytes; the order comes after them
    model->sorted_host.buckets = (int2*)row_alloc(model, PLAN_HOST_SORTED);
    model->sorted.buckets = (int2*)row_alloc(model, PLAN_SORTED);
    model->grads_memory = (float*)row_alloc(model, PLAN_GRADIENTS);
    model->m_memory = (float*)row_alloc(model, PLAN_MOMENTS1);
    model->v_memory = (float*)row_alloc(model, PLAN_MOMENTS2);
    model->master_weights = (float*)row_alloc(model, PLAN_MASTER_WEIGHTS);
    TRY(status_now());
    model->token_counts = (int*)malloc(V * sizeof(int));
    if (model->token_counts == NULL) { return status_fail("no memory to sort tokens"); }
    model->sorted_host.order = (int*)((char*)model->sorted_host.buckets + buckets);
    model->sorted.order = (int*)((char*)model->sorted.buckets + buckets);
    gpt2_point_parameters(&model->grads, info->table, model->grads_memory, sizeof(float));
    TRY(cuda_try(cudaMemset(model->grads_memory, 0, n * sizeof(float))));
    TRY(cuda_try(cudaMemset(model->m_memory, 0, n * sizeof(float))));
    TRY(cuda_try(cudaMemset(model->v_memory, 0, n * sizeof(float))));
    return cuda_try(cudaDeviceSynchronize());
}

Status gpt2_allocate(GPT2* model, int B, int T, int training) {
    GPT2Info* info = &model->info;
    GPT2Config c = info->config;
    status_clear();
    TRY(gpt2_check_allocation(info, B, T));
    TRY(gpt2_plan(&model->plan, c, info->settings, B, T, training, 0));
    size_t BT = (size_t)B * T;
    attention_forward_name(B, T, c.num_heads, c.channels / c.num_heads); // an error where no variant serves
    model->acts_memory = row_alloc(model, PLAN_ACTIVATIONS);
    model->inputs = (int*)row_alloc(model, PLAN_BATCH);
    info->losses = (float*)row_alloc(model, PLAN_HOST_LOSSES);
    TRY(status_now());
    gpt2_point_activations(&model->acts, model->plan.activations, model->acts_memory);
    model->targets = model->inputs + BT;
    if (training) { TRY(gpt2_allocate_training(model, BT)); }
    info->B = B;
    info->T = T;
    info->training = training;
    return STATUS_OK;
}

Status gpt2_available_memory(GPT2Memory* memory) {
    HostMemory host = host_memory("");
    cudaDeviceProp device;
    memset(memory, 0, sizeof(*memory));
    status_clear();
    memory->host_free = host.available, memory->host_total = host.total, memory->host_limit = host.limit;
    TRY(gpt2_find_gpu(&device));
    TRY(cuda_try(cudaMemGetInfo(&memory->device_free, &memory->device_total)));
    memory->has_device = 1;
    return STATUS_OK;
}

// Frees whatever is there; errors of work that is still under way belong to the functions that launched it.
void gpt2_free(GPT2* model) {
    if (model == NULL) { return; }
    if (model->stream != NULL) { cudaDeviceSynchronize(); }
    void* on_device[] = {model->params_memory, model->grads_memory,   model->m_memory,
                         model->v_memory,      model->master_weights, model->acts_memory,
                         model->inputs,        model->sorted.buckets, model->scalars};
    void* on_host[] = {model->info.losses, model->sorted_host.buckets, model->scalars_host};
    for (void* p : on_device) {
        if (p != NULL) { cudaFree(p); }
    }
    for (void* p : on_host) {
        if (p != NULL) { cudaFreeHost(p); }
    }
    free(model->token_counts);
    snapshot_free(&model->snapshot);
    matmul_destroy(&model->matmul);
    if (model->batch_copied != NULL) { cudaEventDestroy(model->batch_copied); }
    if (model->stream != NULL) { cudaStreamDestroy(model->stream); }
    (void)cudaGetLastError(); // or this thread's next model would report it
    free(model);
}

const GPT2Info* gpt2_info(const GPT2* model) { return &model->info; }

// ----------------------------------------------------------------------------
// Parameters, gradients, moments

// A block's memory; NULL where the model has none.
static char* gpt2_block(const GPT2* model, GPT2Block block) {
    switch (block) {
    case GPT2_WEIGHTS:
        return (char*)model->params_memory;
    case GPT2_GRADIENTS:
        return (char*)model->grads_memory;
    case GPT2_MOMENTS1:
        return (char*)model->m_memory;
    case GPT2_MOMENTS2:
        return (char*)model->v_memory;
    case GPT2_MASTER_WEIGHTS:
        return (char*)model->master_weights;
    }
    return NULL;
}

size_t gpt2_block_bytes(const GPT2* model, GPT2Block block) {
    if (gpt2_block(model, block) == NULL) { return 0; }
    return model->info.num_parameters * (block == GPT2_WEIGHTS ? sizeof(floatX) : sizeof(float));
}

// After all work in all streams, and finished on return
static Status device_copy(void* to, const void* from, size_t bytes, cudaMemcpyKind direction) {
    TRY(cuda_try(cudaDeviceSynchronize()));
    TRY(cuda_try(cudaMemcpy(to, from, bytes, direction)));
    return cuda_try(cudaDeviceSynchronize()); // from pageable memory the copy may still be under way
}

Status gpt2_copy_out(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes) {
    status_clear();
    TRY(gpt2_check_block(gpt2_block_bytes(model, block), offset, bytes));
    return device_copy(host, gpt2_block(model, block) + offset, bytes, cudaMemcpyDeviceToHost);
}

Status gpt2_copy_in(GPT2* model, GPT2Block block, const void* host, size_t offset, size_t bytes) {
    status_clear();
    TRY(gpt2_check_block(gpt2_block_bytes(model, block), offset, bytes));
    return device_copy(gpt2_block(model, block) + offset, host, bytes, cudaMemcpyHostToDevice);
}

// An fp32 block on the device for casts: the master weights, or temporary memory, which cast_block_free frees.
static float* cast_block(GPT2* model, int use_master_weights) {
    if (use_master_weights && model->master_weights != NULL) { return model->master_weights; }
    size_t held = model->info.memory_bytes;
    float* block = (float*)device_alloc(model, model->info.num_parameters * sizeof(float), "parameters in fp32");
    model->info.memory_bytes = held; // temporary memory is not counted
    return block;
}
static void cast_block_free(GPT2* model, float* block) {
    if (block != model->master_weights) { cuda_try(cudaFree(block)); }
}

// num_parameters floats to the device, with zeros in the padding rows of wte.
static Status load_parameters(GPT2* model, float* fp32, const float* params) {
    GPT2Config c = model->info.config;
    size_t V = c.vocab_size, Vp = c.padded_vocab_size, C = c.channels; // wte comes first
    TRY(device_copy(fp32, params, model->info.num_parameters * sizeof(float), cudaMemcpyHostToDevice));
    cuda_try(cudaMemsetAsync(fp32 + V * C, 0, (Vp - V) * C * sizeof(float), model->stream));
    return cuda_try(cudaDeviceSynchronize());
}

Status gpt2_set_parameters(GPT2* model, const float* params) {
    status_clear();
    if (sizeof(floatX) == sizeof(float)) { return load_parameters(model, (float*)model->params_memory, params); }
    float* fp32 = cast_block(model, 1);
    TRY(status_now());
    if (load_parameters(model, fp32, params) == STATUS_OK) {
        cast_from_fp32(model->params_memory, fp32, model->info.num_parameters, model->stream);
        cuda_try(cudaDeviceSynchronize());
    }
    cast_block_free(model, fp32);
    return status_now();
}

Status gpt2_get_parameters(GPT2* model, float* params) {
    size_t n = model->info.num_parameters;
    status_clear();
    if (sizeof(floatX) == sizeof(float)) {
        return device_copy(params, model->params_memory, n * sizeof(float), cudaMemcpyDeviceToHost);
    }
    float* fp32 = cast_block(model, 0);
    TRY(status_now());
    cast_to_fp32(fp32, model->params_memory, n, model->stream);
    device_copy(params, fp32, n * sizeof(float), cudaMemcpyDeviceToHost);
    cast_block_free(model, fp32);
    return status_now();
}

// The single numbers from the device, copied in the order of the stream.
static Status gpt2_read_scalars(GPT2* model) {
    cuda_try(
        cudaMemcpyAsync(model->scalars_host, model->scalars, sizeof(Scalars), cudaMemcpyDeviceToHost, model->stream));
    cuda_try(cudaStreamSynchronize(model->stream));
    return status_now();
}

// ----------------------------------------------------------------------------
// Snapshot

Status gpt2_allocate_snapshot(GPT2* model) {
    enum { BLOCKS = GPT2_MASTER_WEIGHTS + 1 };
    const void* blocks[BLOCKS];
    size_t sizes[BLOCKS], available = 0, total = 0, bytes = gpt2_snapshot_bytes(&model->info);
    status_clear();
    TRY(gpt2_check_training(&model->info));
    if (model->snapshot.memory != NULL) {
        return status_fail("gpt2_allocate_snapshot: this model has its snapshot already");
    }
    for (int i = 0; i < BLOCKS; i++) {
        blocks[i] = gpt2_block(model, (GPT2Block)i);
        sizes[i] = i == GPT2_GRADIENTS ? 0 : gpt2_block_bytes(model, (GPT2Block)i);
    }
    TRY(cuda_try(cudaMemGetInfo(&available, &total)));
    if (gpt2_snapshot_room(bytes, available, total)) {
        if (snapshot_allocate(&model->snapshot, blocks, sizes, BLOCKS, 1) == STATUS_OK) {
            model->info.memory_bytes += bytes;
            return STATUS_OK;
        }
        status_clear(); // something else has taken the memory meanwhile
    }
    return snapshot_allocate(&model->snapshot, blocks, sizes, BLOCKS, 0);
}

Status gpt2_take_snapshot(GPT2* model) {
    status_clear();
    if (model->snapshot.memory == NULL) { return status_fail("gpt2_take_snapshot before gpt2_allocate_snapshot"); }
    NvtxRange range("snapshot");
    return snapshot_take(&model->snapshot, model->stream);
}

Status gpt2_read_snapshot(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes) {
    status_clear();
    TRY(gpt2_check_snapshot(model->snapshot.taken, block, gpt2_block_bytes(model, block), offset, bytes));
    return snapshot_read(&model->snapshot, host, block, offset, bytes);
}

const char* gpt2_snapshot_place(const GPT2* model) {
    return model->snapshot.memory == NULL ? "none" : model->snapshot.on_gpu ? "GPU" : "host";
}

// ----------------------------------------------------------------------------
// One layer's slice of the tables

static ParameterTensors gpt2_layer_parameters(const GPT2* model, int layer) {
    ParameterTensors w;
    gpt2_slice_parameters(&w, &model->params, model->info.table, layer, sizeof(floatX));
    return w;
}
static GradientTensors gpt2_layer_gradients(const GPT2* model, int layer) {
    GradientTensors g;
    gpt2_slice_parameters(&g, &model->grads, model->info.table, layer, sizeof(float));
    return g;
}
static ActivationTensors gpt2_layer_activations(const GPT2* model, int layer) {
    ActivationTensors y;
    gpt2_slice_activations(&y, &model->acts, model->plan.activations, layer, sizeof(floatX));
    return y;
}
// (B,T,C) the residual stream that enters a layer
static floatX* gpt2_layer_input(const GPT2* model, int layer) {
    return layer == 0 ? model->acts.encoded : gpt2_layer_activations(model, layer - 1).residual3;
}

// ----------------------------------------------------------------------------
// Forward

// Copies a batch's tokens to the device in the order of the stream. Forward waits for the previous batch's copy, so the
// host's buffer is free once the second next forward pass has begun: the loader has three.
static void gpt2_load_batch(GPT2* model, int* device, const int* host, size_t BT) {
    cuda_try(cudaMemcpyAsync(device, host, BT * sizeof(int), cudaMemcpyHostToDevice, model->stream));
}

// The logits (B,T,Vp) stay in acts.output.
Status gpt2_forward(GPT2* model, const int* inputs, int B, int T) {
    GPT2Config c = model->info.config;
    ActivationTensors a = model->acts;
    ParameterTensors p = model->params;
    int L = c.num_layers, C = c.channels, NH = c.num_heads, HS = C / NH;
    size_t BT = (size_t)B * T;
    cudaStream_t stream = model->stream;
    Matmul* mm = &model->matmul;
    status_clear();
    TRY(gpt2_check_batch(&model->info, B, T));
    TRY(gpt2_check_tokens(&model->info, inputs, BT));
    NvtxRange range("forward");
    model->last_B = B, model->last_T = T;
    model->last_pass = PASS_FORWARD;
    TRY(cuda_try(cudaEventSynchronize(model->batch_copied))); // the host is at most one batch ahead of the GPU
    gpt2_load_batch(model, model->inputs, inputs, BT);
    cuda_try(cudaEventRecord(model->batch_copied, stream));

    encoder_forward(a.encoded, model->inputs, p.wte, p.wpe, B, T, C, stream);
    ParameterTensors w = gpt2_layer_parameters(model, 0);
    ActivationTensors y = gpt2_layer_activations(model, 0);
    floatX* branch = a.lnf; // (B,T,C) added to the residual stream by the next LayerNorm; at the end lnf overwrites it
    layernorm_forward(y.ln1, y.ln1_mean, y.ln1_rstd, a.encoded, w.ln1w, w.ln1b, BT, C, stream);
    for (int i = 0; i < L; i++) {
        NvtxRange layer_range("forward layer", i);
        // residual2 = inp + attproj(attention(ln1(inp)))
        matmul_forward(mm, y.qkv, y.ln1, w.qkvw, w.qkvb, BT, C, 3 * C);
        attention_forward(y.atty, y.l, y.m, y.qkv, B, T, NH, HS, stream);
        matmul_forward(mm, branch, y.atty, w.attprojw, w.attprojb, BT, C, C);
        residual_layernorm_forward(y.residual2, y.ln2, y.ln2_mean, y.ln2_rstd, gpt2_layer_input(model, i), branch,
                                   w.ln2w, w.ln2b, BT, C, stream);
        // residual3 = residual2 + fcproj(gelu(fc(ln2(residual2))))
        if (model->info.settings.gelu_fusion >= 1) {
            matmul_gelu_forward(mm, y.fch_gelu, y.fch, y.ln2, w.fcw, w.fcb, BT, C, 4 * C);
        } else {
            matmul_forward(mm, y.fch, y.ln2, w.fcw, w.fcb, BT, C, 4 * C);
            gelu_forward(y.fch_gelu, y.fch, BT * 4 * C, stream);
        }
        matmul_forward(mm, branch, y.fch_gelu, w.fcprojw, w.fcprojb, BT, 4 * C, C);
        // The LayerNorm that comes next adds it: the next layer's first, or the final one.
        if (i + 1 == L) {
            residual_layernorm_forward(y.residual3, a.lnf, a.lnf_mean, a.lnf_rstd, y.residual2, branch, p.lnfw, p.lnfb,
                                       BT, C, stream);
            break;
        }
        ActivationTensors below = y;
        w = gpt2_layer_parameters(model, i + 1);
        y = gpt2_layer_activations(model, i + 1);
        residual_layernorm_forward(below.residual3, y.ln1, y.ln1_mean, y.ln1_rstd, below.residual2, branch, w.ln1w,
                                   w.ln1b, BT, C, stream);
    }
    NvtxRange logits_range("logits");
    matmul_forward(mm, a.output, a.lnf, p.wte, NULL, BT, C, c.padded_vocab_size);
    return status_now();
}

Status gpt2_get_logits(GPT2* model, float* logits, int t) {
    size_t V = model->info.config.vocab_size, Vp = model->info.config.padded_vocab_size;
    status_clear();
    TRY(gpt2_check_row(t, model->last_B, model->last_T));
    TRY(device_copy(model->logits_row, model->acts.output + t * Vp, V * sizeof(floatX), cudaMemcpyDeviceToHost));
    for (size_t v = 0; v < V; v++) { logits[v] = (float)model->logits_row[v]; }
    return STATUS_OK;
}

Status gpt2_validate(GPT2* model, float* loss, const int* inputs, const int* targets, int B, int T) {
    GPT2Info* info = &model->info;
    size_t BT = (size_t)B * T;
    cudaStream_t stream = model->stream;
    status_clear();
    TRY(gpt2_check_batch(info, B, T)); // and the targets: a forward pass replaces the batch before it
    TRY(gpt2_check_tokens(info, targets, BT));
    TRY(gpt2_forward(model, inputs, B, T));
    model->last_pass = PASS_VALIDATE;
    gpt2_load_batch(model, model->targets, targets, BT);
    cuda_try(cudaMemsetAsync(model->acts.losses, 0, BT * sizeof(float), stream));
    fused_classifier(model->acts.output, model->acts.losses, model->targets, 0.0f, BT, info->config.vocab_size,
                     info->config.padded_vocab_size, 0, stream);
    cuda_try(cudaMemcpyAsync(info->losses, model->acts.losses, BT * sizeof(float), cudaMemcpyDeviceToHost, stream));
    TRY(cuda_try(cudaStreamSynchronize(stream)));
    double sum = 0.0;
    for (size_t i = 0; i < BT; i++) { sum += info->losses[i]; }
    *loss = (float)(sum / (double)BT);
    return status_now();
}

// ----------------------------------------------------------------------------
// Backward

// Turns acts.dresidual from the gradient of a layer's output into the gradient of its input, and adds to the gradients of
// the layer's parameters; but fcprojb's is added where dresidual was written, by the LayerNorm backward of the layer above.
static void gpt2_backward_layer(GPT2* model, int i, int B, int T) {
    NvtxRange range("backward layer", i);
    ActivationTensors y = gpt2_layer_activations(model, i);
    ParameterTensors w = gpt2_layer_parameters(model, i);
    GradientTensors g = gpt2_layer_gradients(model, i);
    int C = model->info.config.channels, NH = model->info.config.num_heads, BT = B * T;
    int recompute = model->info.settings.recompute;
    cudaStream_t stream = model->stream;
    Matmul* mm = &model->matmul;
    const floatX* inp = gpt2_layer_input(model, i);

    // MLP: fcproj, GELU, fc, ln2. With gelu_fusion 2 the epilogue of the first GEMM multiplies by gelu'.
    floatX* pre_gelu = model->info.settings.gelu_fusion >= 2 ? y.fch : NULL;
    matmul_backward_input(mm, y.dbt4c, y.dresidual, w.fcprojw, pre_gelu, BT, 4 * C, C);
    if (pre_gelu != NULL) {
        column_sum(g.fcb, y.dbt4c, y.scratch, BT, 4 * C, stream);
        if (recompute >= 1) { gelu_forward(y.fch_gelu, y.fch, (size_t)BT * 4 * C, stream); }
    } else {
        floatX* gelu_again = recompute >= 1 ? y.fch_gelu : NULL;
        gelu_backward(y.dbt4c, g.fcb, gelu_again, y.fch, y.scratch, BT, 4 * C, stream);
    }
    matmul_backward_weight(mm, g.fcprojw, y.dresidual, y.fch_gelu, BT, 4 * C, C);
    matmul_backward_input(mm, y.dbtc, y.dbt4c, w.fcw, NULL, BT, C, 4 * C);
    if (recompute >= 2) {
        layernorm_forward(y.ln2, y.ln2_mean, y.ln2_rstd, y.residual2, w.ln2w, w.ln2b, BT, C, stream);
    }
    matmul_backward_weight(mm, g.fcw, y.dbt4c, y.ln2, BT, C, 4 * C);
    layernorm_backward(y.dresidual, g.ln2w, g.ln2b, g.attprojb, y.dbtc, y.residual2, w.ln2w, y.ln2_mean, y.ln2_rstd,
                       y.scratch, BT, C, 0, stream);

    // attention: attproj, attention, qkv, ln1; dqkv (B,T,3,NH,HS) takes the first three quarters of dbt4c
    floatX* dqkv = y.dbt4c;
    matmul_backward_input(mm, y.dbtc, y.dresidual, w.attprojw, NULL, BT, C, C);
    matmul_backward_weight(mm, g.attprojw, y.dresidual, y.atty, BT, C, C);
    attention_backward(dqkv, y.dbtc, y.qkv, y.atty, y.l, y.m, y.scratch, B, T, NH, C / NH, stream);
    column_sum(g.qkvb, dqkv, y.scratch, BT, 3 * C, stream);
    matmul_backward_input(mm, y.dbtc, dqkv, w.qkvw, NULL, BT, C, 3 * C);
    if (recompute >= 2) { layernorm_forward(y.ln1, y.ln1_mean, y.ln1_rstd, inp, w.ln1w, w.ln1b, BT, C, stream); }
    matmul_backward_weight(mm, g.qkvw, dqkv, y.ln1, BT, C, 3 * C);
    float* fcprojb_below = i > 0 ? gpt2_layer_gradients(model, i - 1).fcprojb : NULL;
    layernorm_backward(y.dresidual, g.ln1w, g.ln1b, fcprojb_below, y.dbtc, inp, w.ln1w, y.ln1_mean, y.ln1_rstd,
                       y.scratch, BT, C, 0, stream);
}

Status gpt2_backward(GPT2* model, const int* inputs, const int* targets, int grad_accum_steps, int micro_step) {
    GPT2Info* info = &model->info;
    ActivationTensors a = model->acts;
    GradientTensors g = model->grads;
    int B = model->last_B, T = model->last_T, BT = B * T, L = info->config.num_layers, C = info->config.channels;
    int V = info->config.vocab_size, Vp = info->config.padded_vocab_size;
    cudaStream_t stream = model->stream;
    Matmul* mm = &model->matmul;
    status_clear();
    TRY(gpt2_check_backward(info, BT, grad_accum_steps, micro_step));
    TRY(gpt2_check_tokens(info, inputs, BT));
    TRY(gpt2_check_tokens(info, targets, BT));
    size_t scratch_bytes = gpt2_scratch_bytes(info->config, B, T); // a smaller batch may have another configuration
    TRY(status_now());
    if (scratch_bytes > model->plan.activations[NUM_ACTIVATION_TENSORS - 1].bytes) { // the table's last
        return status_fail("the scratch of a model allocated for %d x %d tokens is too small for a batch of %d x %d",
                           info->B, info->T, B, T);
    }
    NvtxRange range("backward");
    model->last_pass = PASS_BACKWARD;
    if (micro_step == 0) {
        cuda_try(cudaMemsetAsync(model->scalars, 0, 2 * sizeof(float), stream)); // loss and norm of the step before
        cuda_try(cudaMemsetAsync(model->grads_memory, 0, info->num_parameters * sizeof(float), stream));
        cuda_try(cudaMemsetAsync(a.losses, 0, (size_t)BT * sizeof(float), stream));
    }
    gpt2_load_batch(model, model->targets, targets, BT);
    float scale = 1.0f / ((float)BT * (float)grad_accum_steps); // the loss is a mean over tokens and micro-steps
    fused_classifier(a.output, a.losses, model->targets, scale, BT, V, Vp, 1, stream);
    matmul_backward_input(mm, a.dbtc, a.output, model->params.wte, NULL, BT, C, Vp);
    matmul_backward_weight(mm, g.wte, a.output, a.lnf, BT, C, Vp);
    const floatX* last = gpt2_layer_input(model, L); // the last layer's output
    layernorm_backward(a.dresidual, g.lnfw, g.lnfb, gpt2_layer_gradients(model, L - 1).fcprojb, a.dbtc, last,
                       model->params.lnfw, a.lnf_mean, a.lnf_rstd, a.scratch, BT, C, 1, stream);
    for (int i = L - 1; i >= 0; i--) { gpt2_backward_layer(model, i, B, T); }

    NvtxRange embedding_range("backward embedding");
    // The host sorts while the GPU works. The arrays that it sorts into are free: this batch's copy is behind those of the
    // previous micro-step in the stream, and is waited for.
    TRY(cuda_try(cudaEventSynchronize(model->batch_copied)));
    sort_tokens(&model->sorted_host, model->token_counts, inputs, BT, V);
    model->sorted.unique = model->sorted_host.unique;
    size_t buckets_bytes = (model->sorted.unique + 1) * sizeof(int2);
    cuda_try(cudaMemcpyAsync(model->sorted.buckets, model->sorted_host.buckets, buckets_bytes, cudaMemcpyHostToDevice,
                             stream));
    cuda_try(cudaMemcpyAsync(model->sorted.order, model->sorted_host.order, (size_t)BT * sizeof(int),
                             cudaMemcpyHostToDevice, stream));
    encoder_backward(g.wte, g.wpe, a.dresidual, model->sorted, B, T, C, stream);

    if (micro_step == grad_accum_steps - 1) {
        sum_losses(&model->scalars->loss, a.losses, BT, stream);
        TRY(gpt2_read_scalars(model));
        info->mean_loss = model->scalars_host->loss * scale;
    }
    return status_now();
}

// ----------------------------------------------------------------------------
// Update

Status gpt2_grad_norm(GPT2* model, float* norm) {
    status_clear();
    TRY(gpt2_check_training(&model->info));
    NvtxRange range("gradient norm");
    global_norm(&model->scalars->norm, model->grads_memory, model->acts.scratch, model->info.num_parameters,
                model->stream);
    TRY(gpt2_read_scalars(model));
    *norm = model->scalars_host->norm;
    return STATUS_OK;
}

Status gpt2_update(GPT2* model, float learning_rate, float beta1, float beta2, float epsilon, float weight_decay,
                   float grad_scale, int step) {
    status_clear();
    TRY(gpt2_check_training(&model->info));
    NvtxRange range("update");
    AdamW adamw = adamw_step(learning_rate, beta1, beta2, epsilon, grad_scale, step);
    unsigned long long* non_finite = &model->scalars->non_finite_weights;
    UpdateGuard guard = {&model->scalars->loss, &model->scalars->norm, non_finite};
    size_t offset = 0;
    cuda_try(cudaMemsetAsync(non_finite, 0, sizeof(*non_finite), model->stream));
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const GPT2Parameter* p = &model->info.table[i];
        float* master = model->master_weights ? model->master_weights + offset : NULL;
        adamw_update(model->params_memory + offset, master, model->grads_memory + offset, model->m_memory + offset,
                     model->v_memory + offset, p->count, p->decay ? weight_decay : 0.0f, adamw, guard, model->stream);
        adamw.seed += 0x632be5abu; // other random bits for every tensor
        offset += p->count;
    }
    cuda_try(cudaMemcpyAsync(&model->scalars_host->non_finite_weights, non_finite, sizeof(*non_finite),
                             cudaMemcpyDeviceToHost, model->stream)); // gpt2_synchronize waits for it
    return status_now();
}

Status gpt2_synchronize(GPT2* model) {
    status_clear();
    TRY(cuda_try(cudaStreamSynchronize(model->stream)));
    model->info.non_finite_weights = model->scalars_host->non_finite_weights;
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Finding faults

static void gpt2_scan(void* context, const void* data, size_t count, size_t element, unsigned index) {
    GPT2* model = (GPT2*)context;
    unsigned* first = &model->scalars->first_non_finite;
    if (element == sizeof(float)) {
        find_non_finite(first, index, (const float*)data, count, model->stream);
    } else {
        find_non_finite(first, index, (const floatX*)data, count, model->stream);
    }
}

Status gpt2_find_non_finite(GPT2* model, char* text, size_t size) {
    TensorSearch s = {};
    status_clear();
    s.info = &model->info, s.acts_table = model->plan.activations, s.acts_memory = model->acts_memory;
    s.tokens = (size_t)model->last_B * model->last_T, s.last_pass = model->last_pass;
    s.loss = &model->scalars->loss, s.norm = &model->scalars->norm;
    s.scan = gpt2_scan, s.context = model;
    for (int i = 0; i <= GPT2_MASTER_WEIGHTS; i++) { s.blocks[i] = gpt2_block(model, (GPT2Block)i); }
    text[0] = '\0';
    cuda_try(cudaMemsetAsync(&model->scalars->first_non_finite, 0xff, sizeof(unsigned), model->stream));
    tensor_search(&s);
    TRY(gpt2_read_scalars(model));
    unsigned first = model->scalars_host->first_non_finite;
    if (first != UINT_MAX) { tensor_search_name(&s, first, text, size); }
    return STATUS_OK;
}

Status gpt2_gradient_digest(GPT2* model, uint64_t* digest) {
    status_clear();
    TRY(gpt2_check_training(&model->info));
    NvtxRange range("digest");
    cuda_try(cudaMemsetAsync(&model->scalars->digest, 0, sizeof(model->scalars->digest), model->stream));
    add_digest(&model->scalars->digest, model->grads_memory, model->info.num_parameters, model->stream);
    TRY(gpt2_read_scalars(model));
    *digest = model->scalars_host->digest;
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// The machine

void* gpt2_host_alloc(size_t bytes) {
    status_clear();
    return pinned_alloc(bytes);
}
void gpt2_host_free(void* memory) { cudaFreeHost(memory); }

Status gpt2_measure_gemm(GPT2* model, double* flops) {
    status_clear();
    return matmul_measure(&model->matmul, flops);
}

Status gpt2_numerics(GPT2Numerics* n, GPT2Config config, GPT2Settings settings, int B, int T) {
    int NH = config.num_heads, HS = config.channels / NH;
    cudaDeviceProp device;
    memset(n, 0, sizeof(*n));
    status_clear();
    TRY(gpt2_find_gpu(&device));
    snprintf(n->precision, sizeof(n->precision), "%s", sizeof(floatX) == 4 && settings.tf32 ? "tf32" : PRECISION_NAME);
    strcpy(n->gemm, "cuBLASLt");
    snprintf(n->attention, sizeof(n->attention), "%s forward, %s backward", attention_forward_name(B, T, NH, HS),
             attention_backward_name(B, T, NH, HS));
    snprintf(n->device, sizeof(n->device), "%s", device.name);
    return status_now();
}

void gpt2_doctor(Doctor* doctor) {
    cudaDeviceProp device;
    status_clear();
    if (gpt2_find_gpu(&device) == STATUS_OK) {
        gpu_doctor(doctor, &device);
    } else {
        doctor_row(doctor, DOCTOR_FAULT, "GPU", "install NVIDIA's driver, or run ./train_gpt2, which needs no GPU",
                   "%s", status_message());
    }
}

void gpt2_print_device(const GPT2* model) {
    int driver = 0, runtime = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    print_table_row("device", "%s, %d SMs", model->device.name, model->device.multiProcessorCount);
    print_table_row("CUDA", "driver %d.%d, runtime %d.%d", driver / 1000, driver % 1000 / 10, runtime / 1000,
                    runtime % 1000 / 10);
    print_table_row("precision", "%s", model->matmul.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? "tf32" : PRECISION_NAME);
    const GPT2Info* info = &model->info;
    int B = info->B, T = info->T, NH = info->config.num_heads, HS = info->config.channels / NH;
    print_table_row("attention", "%s forward, %s backward", attention_forward_name(B, T, NH, HS),
                    attention_backward_name(B, T, NH, HS));
}

void gpt2_log_device(const GPT2*) { gpu_info_print(); }
void gpt2_range_begin(const char* name) { nvtx_begin(name); }
void gpt2_range_end(void) { nvtx_end(); }

#ifndef TESTING
#include "llmc/trainer.h"

int main(int argc, char** argv) { return trainer_main(argc, argv); }
#endif
