/*
The GPU trainer: GPT-2 in bf16 (fp32 master weights, fp32 gradients) or, with PRECISION=FP32, in fp32.

Products are cuBLASLt's; everything else is in llmc/, one header per idea; attention is the winning variant of
dev/cuda. Nothing adds with atomics, so the same seed gives the same bits. main, at the end, is the training loop; its
steps are in llmc/trainer.h, which the CPU trainer shares.
*/
#include "llmc/gpt2.h"
#include "llmc/model_file.h"
#include "llmc/cli.h"
#include "llmc/cuda_common.cuh"
#include "llmc/matmul.cuh"
#include "llmc/encoder.cuh"
#include "llmc/layernorm.cuh"
#include "dev/cuda/attention.cuh"
#include "llmc/gelu.cuh"
#include "llmc/classifier.cuh"
#include "llmc/adamw.cuh"
#include "llmc/global_norm.cuh"
#include "llmc/gpu_info.cuh"
#include "llmc/dataloader.h" // HostAlloc

typedef floatX gpt2_real;
typedef float gpt2_stat;
GPT2_DECLARE_PARAMETERS(ParameterTensors, floatX);
GPT2_DECLARE_PARAMETERS(GradientTensors, float);
GPT2_DECLARE_ACTIVATIONS(ActivationTensors);

#if defined(PRECISION_FP32)
enum { GPT2_MODEL_VERSION = MODEL_VERSION_FP32 };
#elif defined(PRECISION_BF16)
enum { GPT2_MODEL_VERSION = MODEL_VERSION_BF16 };
#else
#error "the trainer is built with PRECISION=BF16 or PRECISION=FP32: GPT-2's file formats have no fp16"
#endif

typedef struct {
    GPT2Config config;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t num_parameters;
    // (num_parameters), on the device
    ParameterTensors params;
    floatX* params_memory;
    GradientTensors grads;
    float* grads_memory;
    float* m_memory;       // AdamW's first moments
    float* v_memory;       // AdamW's second moments
    float* master_weights; // fp32 copy of the weights, or NULL
    // activations of a batch of at most B*T tokens
    GPT2Activation acts_table[NUM_ACTIVATION_TENSORS];
    ActivationTensors acts;
    void* acts_memory;
    size_t acts_bytes;
    int B, T;
    int last_B, last_T; // of the last forward pass
    // settings
    int recompute, gelu_fusion, use_master_weights;
    // a batch on the device, and its positions sorted by token on both sides
    int *inputs, *targets;
    TokenOrder sorted, sorted_host;
    int* token_counts;
    cudaEvent_t batch_copied; // the host's buffers may be written again
    // results
    float mean_loss;    // of the last step, after its last micro-step
    float* losses_host; // (B,T), of the last validation
    float* scalar;      // one float on the device
    float* scalar_host; // and pinned on the host
    // the GPU
    cudaDeviceProp device;
    cudaStream_t stream;
    Matmul matmul;
} GPT2;

// ----------------------------------------------------------------------------
// Building and freeing

void* device_alloc(size_t bytes, const char* what) {
    void* p;
    cudaError_t error = cudaMalloc(&p, bytes);
    if (error == cudaErrorMemoryAllocation) {
        size_t available = 0, total = 0;
        cudaMemGetInfo(&available, &total);
        fatal(
            "%s: %.1f MiB of GPU memory asked for, %.1f MiB free; use a smaller batch (-b, with -d for accumulation), "
            "a smaller model (-e), or more recomputation (-r 2)",
            what, (double)bytes / (1 << 20), (double)available / (1 << 20));
    }
    cuda_check(error);
    return p;
}

void* pinned_alloc(size_t bytes) {
    void* p;
    cuda_check(cudaMallocHost(&p, bytes));
    return p;
}
void pinned_free(void* p) { cuda_check(cudaFreeHost(p)); }

// Host <-> device, after all work in all streams, and finished on return.
void gpt2_copy_out(void* host, const void* tensor, size_t bytes) {
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemcpy(host, tensor, bytes, cudaMemcpyDeviceToHost));
}
void gpt2_copy_in(void* tensor, const void* host, size_t bytes) {
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemcpy(tensor, host, bytes, cudaMemcpyHostToDevice));
    cuda_check(cudaDeviceSynchronize()); // from pageable memory the copy may still be under way
}

// Finds the GPU. Ends with one line where there is none that this build runs on.
void gpt2_find_gpu(GPT2* model) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        fatal("no usable GPU: %s; ./train_gpt2 trains on the CPU", cudaGetErrorString(error));
    }
    cuda_check(cudaSetDevice(0));
    cuda_check(cudaGetDeviceProperties(&model->device, 0));
    if (model->device.major < 8) {
        fatal("%s has compute capability %d.%d; this trainer needs 8.0 or newer", model->device.name,
              model->device.major, model->device.minor);
    }
    cudaFuncAttributes attributes;
    if (cudaFuncGetAttributes(&attributes, cast_to_fp32_kernel) != cudaSuccess) {
        fatal("this build has no code for %s (compute capability %d.%d); run make clean and make train_gpt2cu here",
              model->device.name, model->device.major, model->device.minor);
    }
    cuda_check(cudaStreamCreateWithFlags(&model->stream, cudaStreamNonBlocking));
}

// A model with room for its parameters, which are not set yet.
void gpt2_create(GPT2* model, GPT2Config config, const Options* options) {
    memset(model, 0, sizeof(*model));
    gpt2_find_gpu(model);
    model->config = config;
    model->num_parameters = gpt2_parameters(model->table, config);
    model->recompute = options->recompute;
    model->use_master_weights = options->master_weights && sizeof(floatX) < 4; // fp32 weights are their own master
    model->gelu_fusion = options->gelu_fusion;
    // Fused GELU gains nothing worth having on an H200 (124M, B=64, T=1024, flash2, means of 5 steps: 277.5 ms against
    // 278.6, with -r 1 280.2 against 279.0), and differs from the recomputed one in the last bit: so it is asked for, never chosen.
    if (model->gelu_fusion < 0) { model->gelu_fusion = 0; }
    matmul_create(&model->matmul, options->tf32, model->stream);
    size_t bytes = model->num_parameters * sizeof(floatX);
    model->params_memory = (floatX*)device_alloc(bytes, "parameters");
    gpt2_point_parameters(&model->params, model->table, model->params_memory, sizeof(floatX));
    model->scalar = (float*)device_alloc(sizeof(float), "a float");
    model->scalar_host = (float*)pinned_alloc(sizeof(float));
    cuda_check(cudaEventCreateWithFlags(&model->batch_copied, cudaEventDisableTiming));
}

size_t gpt2_scratch_bytes(const GPT2* model, int B, int T) {
    int C = model->config.channels, NH = model->config.num_heads;
    size_t sizes[] = {column_sum_scratch_bytes(4 * C), layernorm_backward_scratch_bytes(C), global_norm_scratch_bytes(),
                      attention_backward_scratch_bytes(B, T, NH, C / NH)};
    size_t largest = 0;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        if (sizes[i] > largest) { largest = sizes[i]; }
    }
    return largest;
}

// Activations for a batch of B rows of T tokens and, for training, gradients, AdamW's zeroed moments and the master
// weights, which gpt2_set_parameters fills: it comes after this.
void gpt2_allocate(GPT2* model, int B, int T, int training) {
    size_t BT = (size_t)B * T, n = model->num_parameters, V = model->config.vocab_size;
    if (BT > INT_MAX) { fatal("B*T = %zu tokens are more than a batch may have (%d): lower -b or -t", BT, INT_MAX); }
    const char* fault =
        attention_unsupported(B, T, model->config.num_heads, model->config.channels / model->config.num_heads);
    if (fault != NULL) { fatal("attention: %s", fault); }
    model->B = B;
    model->T = T;
    size_t scratch = training ? gpt2_scratch_bytes(model, B, T) : 0;
    model->acts_bytes = gpt2_activations(model->acts_table, model->config, B, T, model->recompute, training ? 1 : 0,
                                         sizeof(floatX), scratch);
    model->acts_memory = device_alloc(model->acts_bytes, "activations");
    gpt2_point_activations(&model->acts, model->acts_table, model->acts_memory);
    model->inputs = (int*)device_alloc(2 * BT * sizeof(int), "a batch");
    model->targets = model->inputs + BT;
    model->losses_host = (float*)pinned_alloc(BT * sizeof(float));
    if (!training) { return; }

    size_t buckets = (BT < V ? BT : V) + 1;
    model->sorted_host.buckets = (int2*)pinned_alloc(buckets * sizeof(int2) + BT * sizeof(int));
    model->sorted_host.order = (int*)(model->sorted_host.buckets + buckets);
    model->sorted.buckets = (int2*)device_alloc(buckets * sizeof(int2) + BT * sizeof(int), "sorted tokens");
    model->sorted.order = (int*)(model->sorted.buckets + buckets);
    model->token_counts = (int*)malloc_check(V * sizeof(int));
    model->grads_memory = (float*)device_alloc(n * sizeof(float), "gradients");
    model->m_memory = (float*)device_alloc(n * sizeof(float), "first moments");
    model->v_memory = (float*)device_alloc(n * sizeof(float), "second moments");
    gpt2_point_parameters(&model->grads, model->table, model->grads_memory, sizeof(float));
    cuda_check(cudaMemset(model->m_memory, 0, n * sizeof(float)));
    cuda_check(cudaMemset(model->v_memory, 0, n * sizeof(float)));
    if (model->use_master_weights) {
        model->master_weights = (float*)device_alloc(n * sizeof(float), "master weights");
    }
    cuda_check(cudaDeviceSynchronize());
}

// What the model holds on the GPU, in bytes.
size_t gpt2_memory_bytes(const GPT2* model) {
    size_t per_parameter =
        sizeof(floatX) + (model->grads_memory ? 3 * sizeof(float) : 0) + (model->master_weights ? sizeof(float) : 0);
    return model->num_parameters * per_parameter + model->acts_bytes + MATMUL_WORKSPACE;
}

void gpt2_free(GPT2* model) {
    cuda_check(cudaDeviceSynchronize());
    void* on_device[] = {model->params_memory, model->grads_memory,   model->m_memory,
                         model->v_memory,      model->master_weights, model->acts_memory,
                         model->inputs,        model->sorted.buckets, model->scalar};
    for (size_t i = 0; i < sizeof(on_device) / sizeof(on_device[0]); i++) { cuda_check(cudaFree(on_device[i])); }
    cuda_check(cudaFreeHost(model->losses_host));
    cuda_check(cudaFreeHost(model->sorted_host.buckets));
    cuda_check(cudaFreeHost(model->scalar_host));
    free(model->token_counts);
    matmul_destroy(&model->matmul);
    cuda_check(cudaEventDestroy(model->batch_copied));
    cuda_check(cudaStreamDestroy(model->stream));
    memset(model, 0, sizeof(*model));
}

// The parameters from an fp32 host block in table order: rounded to the training precision; master weights keep fp32.
void gpt2_set_parameters(GPT2* model, const float* params) {
    size_t n = model->num_parameters;
    float* wide = model->master_weights ? model->master_weights : (float*)device_alloc(n * sizeof(float), "parameters");
    gpt2_copy_in(wide, params, n * sizeof(float));
    cast_from_fp32_kernel<<<(unsigned)CEIL_DIV(n, (size_t)256), 256, 0, model->stream>>>(model->params_memory, wide, n);
    cuda_check(cudaGetLastError());
    cuda_check(cudaDeviceSynchronize());
    if (wide != model->master_weights) { cuda_check(cudaFree(wide)); }
}

// The parameters as an fp32 host block in table order.
void gpt2_get_parameters(GPT2* model, float* params) {
    size_t n = model->num_parameters;
    float* wide = (float*)device_alloc(n * sizeof(float), "parameters");
    cast_to_fp32_kernel<<<(unsigned)CEIL_DIV(n, (size_t)256), 256, 0, model->stream>>>(wide, model->params_memory, n);
    cuda_check(cudaGetLastError());
    gpt2_copy_out(params, wide, n * sizeof(float));
    cuda_check(cudaFree(wide));
}

void gpt2_get_gradients(GPT2* model, float* grads) {
    gpt2_copy_out(grads, model->grads_memory, model->num_parameters * sizeof(float));
}

// One float from the device, when the stream has come to it.
float gpt2_read_scalar(GPT2* model, const float* scalar) {
    cuda_check(cudaMemcpyAsync(model->scalar_host, scalar, sizeof(float), cudaMemcpyDeviceToHost, model->stream));
    cuda_check(cudaStreamSynchronize(model->stream));
    return *model->scalar_host;
}

// ----------------------------------------------------------------------------
// One layer's slice of the tables

ParameterTensors gpt2_layer_parameters(const GPT2* model, int layer) {
    ParameterTensors w;
    gpt2_slice_parameters(&w, &model->params, model->table, layer, sizeof(floatX));
    return w;
}
GradientTensors gpt2_layer_gradients(const GPT2* model, int layer) {
    GradientTensors g;
    gpt2_slice_parameters(&g, &model->grads, model->table, layer, sizeof(float));
    return g;
}
ActivationTensors gpt2_layer_activations(const GPT2* model, int layer) {
    ActivationTensors y;
    gpt2_slice_activations(&y, &model->acts, model->acts_table, layer, sizeof(floatX));
    return y;
}
// (B,T,C) the residual stream that enters a layer
floatX* gpt2_layer_input(const GPT2* model, int layer) {
    return layer == 0 ? model->acts.encoded : gpt2_layer_activations(model, layer - 1).residual3;
}

// ----------------------------------------------------------------------------
// Forward

// Copies a batch's tokens to the device in the order of the stream. The host's buffer must stay as it is until the
// second next forward pass has begun, which is what the loader's three buffers promise.
void gpt2_load_batch(GPT2* model, int* device, const int* host, size_t BT) {
    cuda_check(cudaMemcpyAsync(device, host, BT * sizeof(int), cudaMemcpyHostToDevice, model->stream));
}

// inputs (B,T), tokens on the host. Leaves the logits (B,T,Vp) in acts.output. B*T is at most what was allocated.
void gpt2_forward(GPT2* model, const int* inputs, int B, int T) {
    GPT2Config c = model->config;
    ActivationTensors a = model->acts;
    ParameterTensors p = model->params;
    int L = c.num_layers, C = c.channels, NH = c.num_heads, HS = C / NH;
    size_t BT = (size_t)B * T;
    cudaStream_t stream = model->stream;
    Matmul* mm = &model->matmul;
    if (BT > (size_t)model->B * model->T || T > c.max_seq_len) {
        fatal("a batch of %d x %d tokens does not fit a model made for %d x %d and a context of %d", B, T, model->B,
              model->T, c.max_seq_len);
    }
    model->last_B = B, model->last_T = T;
    cuda_check(cudaEventSynchronize(model->batch_copied)); // keeps the host at most one batch ahead of the GPU
    gpt2_load_batch(model, model->inputs, inputs, BT);
    cuda_check(cudaEventRecord(model->batch_copied, stream));

    encoder_forward(a.encoded, model->inputs, p.wte, p.wpe, B, T, C, stream);
    ParameterTensors w = gpt2_layer_parameters(model, 0);
    ActivationTensors y = gpt2_layer_activations(model, 0);
    floatX* product = a.lnf; // (B,T,C), free until the end, when each of its rows is read before it is written
    layernorm_forward(y.ln1, y.ln1_mean, y.ln1_rstd, a.encoded, w.ln1w, w.ln1b, BT, C, stream);
    for (int i = 0; i < L; i++) {
        // residual2 = inp + attproj(attention(ln1(inp)))
        matmul_forward(mm, y.qkv, y.ln1, w.qkvw, w.qkvb, BT, C, 3 * C);
        attention_forward(y.atty, y.l, y.m, y.qkv, B, T, NH, HS, stream);
        matmul_forward(mm, product, y.atty, w.attprojw, w.attprojb, BT, C, C);
        residual_layernorm_forward(y.residual2, y.ln2, y.ln2_mean, y.ln2_rstd, gpt2_layer_input(model, i), product,
                                   w.ln2w, w.ln2b, BT, C, stream);
        // residual3 = residual2 + fcproj(gelu(fc(ln2(residual2))))
        if (model->gelu_fusion >= 1) {
            matmul_gelu_forward(mm, y.fch_gelu, y.fch, y.ln2, w.fcw, w.fcb, BT, C, 4 * C);
        } else {
            matmul_forward(mm, y.fch, y.ln2, w.fcw, w.fcb, BT, C, 4 * C);
            gelu_forward(y.fch_gelu, y.fch, BT * 4 * C, stream);
        }
        matmul_forward(mm, product, y.fch_gelu, w.fcprojw, w.fcprojb, BT, 4 * C, C);
        // the addition goes with the LayerNorm that comes next: the next layer's first, or the final one
        if (i + 1 == L) {
            residual_layernorm_forward(y.residual3, a.lnf, a.lnf_mean, a.lnf_rstd, y.residual2, product, p.lnfw, p.lnfb,
                                       BT, C, stream);
            break;
        }
        ActivationTensors below = y;
        w = gpt2_layer_parameters(model, i + 1);
        y = gpt2_layer_activations(model, i + 1);
        residual_layernorm_forward(below.residual3, y.ln1, y.ln1_mean, y.ln1_rstd, below.residual2, product, w.ln1w,
                                   w.ln1b, BT, C, stream);
    }
    matmul_forward(mm, a.output, a.lnf, p.wte, NULL, BT, C, c.padded_vocab_size);
}

// Row t of the last forward pass's logits, the first V of it, to the host.
void gpt2_get_logits(GPT2* model, float* logits, int t) {
    size_t V = model->config.vocab_size, Vp = model->config.padded_vocab_size;
    floatX* row = (floatX*)malloc_check(V * sizeof(floatX));
    gpt2_copy_out(row, model->acts.output + t * Vp, V * sizeof(floatX));
    for (size_t v = 0; v < V; v++) { logits[v] = (float)row[v]; }
    free(row);
}

// The mean loss of a batch in nats; the loss of each token in losses_host (B,T).
float gpt2_validate(GPT2* model, const int* inputs, const int* targets, int B, int T) {
    GPT2Config c = model->config;
    size_t BT = (size_t)B * T;
    gpt2_forward(model, inputs, B, T);
    gpt2_load_batch(model, model->targets, targets, BT);
    cuda_check(cudaMemsetAsync(model->acts.losses, 0, BT * sizeof(float), model->stream));
    fused_classifier(model->acts.output, model->acts.losses, model->targets, 0.0f, BT, c.vocab_size,
                     c.padded_vocab_size, 0, model->stream);
    cuda_check(cudaMemcpyAsync(model->losses_host, model->acts.losses, BT * sizeof(float), cudaMemcpyDeviceToHost,
                               model->stream));
    cuda_check(cudaStreamSynchronize(model->stream));
    double sum = 0.0;
    for (size_t i = 0; i < BT; i++) { sum += model->losses_host[i]; }
    return (float)(sum / (double)BT);
}

// ----------------------------------------------------------------------------
// Backward

// From the gradient of a layer's output in acts.dresidual to the gradient of its input there.
// fcprojb's gradient is taken where dresidual was written: by the LayerNorm backward of the layer above.
void gpt2_backward_layer(GPT2* model, int i, int B, int T) {
    ActivationTensors y = gpt2_layer_activations(model, i);
    ParameterTensors w = gpt2_layer_parameters(model, i);
    GradientTensors g = gpt2_layer_gradients(model, i);
    int C = model->config.channels, NH = model->config.num_heads, BT = B * T;
    cudaStream_t stream = model->stream;
    Matmul* mm = &model->matmul;
    const floatX* inp = gpt2_layer_input(model, i);

    // MLP: fcproj, GELU, fc, ln2. gelu_fusion 2 multiplies by gelu' inside the product.
    floatX* pre_gelu = model->gelu_fusion >= 2 ? y.fch : NULL;
    matmul_backward_input(mm, y.dbt4c, y.dresidual, w.fcprojw, pre_gelu, BT, 4 * C, C);
    if (pre_gelu != NULL) {
        column_sum(g.fcb, y.dbt4c, y.scratch, BT, 4 * C, stream);
        if (model->recompute >= 1) { gelu_forward(y.fch_gelu, y.fch, (size_t)BT * 4 * C, stream); }
    } else {
        floatX* gelu_again = model->recompute >= 1 ? y.fch_gelu : NULL;
        gelu_backward(y.dbt4c, g.fcb, gelu_again, y.fch, y.scratch, BT, 4 * C, stream);
    }
    matmul_backward_weight(mm, g.fcprojw, y.dresidual, y.fch_gelu, BT, 4 * C, C);
    matmul_backward_input(mm, y.dbtc, y.dbt4c, w.fcw, NULL, BT, C, 4 * C);
    if (model->recompute >= 2) {
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
    if (model->recompute >= 2) { layernorm_forward(y.ln1, y.ln1_mean, y.ln1_rstd, inp, w.ln1w, w.ln1b, BT, C, stream); }
    matmul_backward_weight(mm, g.qkvw, dqkv, y.ln1, BT, C, 3 * C);
    float* fcprojb_below = i > 0 ? gpt2_layer_gradients(model, i - 1).fcprojb : NULL;
    layernorm_backward(y.dresidual, g.ln1w, g.ln1b, fcprojb_below, y.dbtc, inp, w.ln1w, y.ln1_mean, y.ln1_rstd,
                       y.scratch, BT, C, 0, stream);
}

// The gradients of the batch of the last gpt2_forward, added up over grad_accum_steps micro-steps and scaled to their
// mean. After the last micro-step mean_loss is the loss of the whole step.
void gpt2_backward(GPT2* model, const int* inputs, const int* targets, int grad_accum_steps, int micro_step) {
    GPT2Config c = model->config;
    ActivationTensors a = model->acts;
    GradientTensors g = model->grads;
    int B = model->last_B, T = model->last_T, BT = B * T, L = c.num_layers, C = c.channels, Vp = c.padded_vocab_size;
    cudaStream_t stream = model->stream;
    Matmul* mm = &model->matmul;
    if (micro_step == 0) {
        cuda_check(cudaMemsetAsync(model->grads_memory, 0, model->num_parameters * sizeof(float), stream));
        cuda_check(cudaMemsetAsync(a.losses, 0, (size_t)BT * sizeof(float), stream));
    }
    gpt2_load_batch(model, model->targets, targets, BT);
    float scale = 1.0f / ((float)BT * (float)grad_accum_steps); // the loss is a mean over tokens and micro-steps
    fused_classifier(a.output, a.losses, model->targets, scale, BT, c.vocab_size, Vp, 1, stream);
    matmul_backward_input(mm, a.dbtc, a.output, model->params.wte, NULL, BT, C, Vp);
    matmul_backward_weight(mm, g.wte, a.output, a.lnf, BT, C, Vp);
    const floatX* last = gpt2_layer_input(model, L); // what leaves the last layer
    layernorm_backward(a.dresidual, g.lnfw, g.lnfb, gpt2_layer_gradients(model, L - 1).fcprojb, a.dbtc, last,
                       model->params.lnfw, a.lnf_mean, a.lnf_rstd, a.scratch, BT, C, 1, stream);
    for (int i = L - 1; i >= 0; i--) { gpt2_backward_layer(model, i, B, T); }

    // The host sorts while the GPU works. Its arrays are free again: the last step ended in a synchronisation, or the
    // previous micro-step's copy is waited for.
    cuda_check(cudaEventSynchronize(model->batch_copied));
    sort_tokens(&model->sorted_host, model->token_counts, inputs, BT, c.vocab_size);
    model->sorted.unique = model->sorted_host.unique;
    size_t buckets_bytes = (model->sorted.unique + 1) * sizeof(int2);
    cuda_check(cudaMemcpyAsync(model->sorted.buckets, model->sorted_host.buckets, buckets_bytes, cudaMemcpyHostToDevice,
                               stream));
    cuda_check(cudaMemcpyAsync(model->sorted.order, model->sorted_host.order, (size_t)BT * sizeof(int),
                               cudaMemcpyHostToDevice, stream));
    encoder_backward(g.wte, g.wpe, a.dresidual, model->sorted, B, T, C, stream);

    if (micro_step == grad_accum_steps - 1) {
        sum_losses(model->scalar, a.losses, BT, stream);
        model->mean_loss = gpt2_read_scalar(model, model->scalar) * scale;
    }
}

// ----------------------------------------------------------------------------
// Update

float gpt2_grad_norm(GPT2* model) {
    global_norm(model->scalar, model->grads_memory, model->acts.scratch, model->num_parameters, model->stream);
    return gpt2_read_scalar(model, model->scalar);
}

// One AdamW step, `step` counting from 1; decay on matrices only; the gradients count times grad_scale.
void gpt2_update(GPT2* model, float learning_rate, float beta1, float beta2, float epsilon, float weight_decay,
                 float grad_scale, int step) {
    AdamW adamw = adamw_step(learning_rate, beta1, beta2, epsilon, grad_scale, step);
    size_t offset = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const GPT2Parameter* p = &model->table[i];
        float* master = model->master_weights ? model->master_weights + offset : NULL;
        adamw_update(model->params_memory + offset, master, model->grads_memory + offset, model->m_memory + offset,
                     model->v_memory + offset, p->count, p->decay ? weight_decay : 0.0f, adamw, model->stream);
        adamw.seed += 0x632be5abu; // other random bits for every tensor
        offset += p->count;
    }
}

void gpt2_synchronize(GPT2* model) { cuda_check(cudaStreamSynchronize(model->stream)); }

// ----------------------------------------------------------------------------
// What a run asks of the machine

HostAlloc gpt2_host_alloc(void) {
    HostAlloc pinned = {pinned_alloc, pinned_free};
    return pinned;
}

double gpt2_measure_peak(GPT2* model) { return matmul_measure_peak(&model->matmul); }

void gpt2_print_device(const GPT2* model) {
    int driver = 0, runtime = 0;
    cuda_check(cudaDriverGetVersion(&driver));
    cuda_check(cudaRuntimeGetVersion(&runtime));
    print_table_row("device", "%s, %d SMs", model->device.name, model->device.multiProcessorCount);
    print_table_row("CUDA", "driver %d.%d, runtime %d.%d", driver / 1000, driver % 1000 / 10, runtime / 1000,
                    runtime % 1000 / 10);
    print_table_row("precision", "%s", model->matmul.compute == CUBLAS_COMPUTE_32F_FAST_TF32 ? "tf32" : PRECISION_NAME);
    int HS = model->config.channels / model->config.num_heads;
    print_table_row("attention", "%s forward, %s backward", attention_forward_name(HS), attention_backward_name(HS));
}

void gpt2_log_device(const GPT2*) { gpu_info_print(); }

#ifndef TESTING
#include "llmc/trainer.h"

int main(int argc, char** argv) {
    static Trainer trainer;
    trainer_open(&trainer, cli_parse(argc, argv));
    for (int step = trainer.first_step; step <= trainer.num_steps; step++) {
        trainer_evaluate(&trainer, step);
        trainer_sample(&trainer, step);
        trainer_checkpoint(&trainer, step);
        trainer_step(&trainer, step);
    }
    trainer_close(&trainer);
    return 0;
}
#endif
