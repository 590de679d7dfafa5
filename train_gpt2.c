/*
The CPU trainer: GPT-2 in fp32, C11 and OpenMP. It is the readable reference of train_gpt2.cu, and what trains where
there is no GPU.

This file is the model: llmc/gpt2_model.h says what each of its functions does. The kernels are in llmc/cpu_*.h, one
header per layer. No two threads add to one number, so the same seed gives the same bits, whatever the number of threads.
The training loop is trainer_main in llmc/trainer.h, which the GPU trainer shares.
*/
#include <sys/mman.h>

#include "llmc/gpt2_model.h"
#include "llmc/cpu_matmul.h"
#include "llmc/cpu_encoder.h"
#include "llmc/cpu_layernorm.h"
#include "llmc/cpu_attention.h"
#include "llmc/cpu_gelu.h"
#include "llmc/cpu_classifier.h"
#include "llmc/cpu_adamw.h"
#include "llmc/cpu_numbers.h"
#include "llmc/fp64_reference.h"
#include "llmc/table.h"
#include "llmc/tensor_search.h"

GPT2_DECLARE_PARAMETERS(ParameterTensors, float);
GPT2_DECLARE_ACTIVATIONS(ActivationTensors, float);

struct GPT2 {
    GPT2Info info;
    GPT2Plan plan; // the sizes of what is allocated
    // (num_parameters) each, in table order
    ParameterTensors params;
    float* params_memory;
    ParameterTensors grads;
    float* grads_memory;
    float* m_memory; // AdamW's first moments
    float* v_memory; // AdamW's second moments
    // activations of a batch of at most B rows of T tokens
    ActivationTensors acts;
    void* acts_memory;
    int last_B, last_T; // of the last forward pass
    LastPass last_pass;
    float norm; // of the step's gradients, 0 before gpt2_grad_norm
    // weights, moments and moments again at one moment; NULL where none is asked for
    void* snapshot;
    int snapshot_taken;
};

// ----------------------------------------------------------------------------
// Building and freeing

// gpt2_measure_gemm: three matrices, of which only the result is written and so takes memory
enum { MEASURED_GEMM = 1024, MEASURED_GEMM_BYTES = 3 * MEASURED_GEMM * MEASURED_GEMM * 4 };

// What a process of this program takes beside its tensors: code, libraries, the threads' stacks and scratch.
// dev/test/test_plan.c holds it against a process: 3.4 MiB with one thread, 4.2 with two, 8.2 with eight.
static size_t process_bytes(void) { return ((size_t)2816 << 10) + (size_t)cpu_threads() * (768 << 10); }

Status gpt2_plan(GPT2Plan* plan, GPT2Config config, GPT2Settings settings, int B, int T, int training, int snapshot) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    plan_clear(plan);
    status_clear();
    TRY(gpt2_config_status(config, "the model"));
    size_t bytes = gpt2_parameters(table, config) * sizeof(float);
    plan_set(plan, PLAN_WEIGHTS, PLAN_HOST, PLAN_LOADING | PLAN_TRAINING, bytes);
    plan_set(plan, PLAN_HOST_GEMM, PLAN_HOST, PLAN_MEASURING, MEASURED_GEMM_BYTES / 3);
    plan_set(plan, PLAN_HOST_WEIGHTS, PLAN_HOST, PLAN_LOADING, bytes);
    plan_set(plan, PLAN_HOST_PROCESS, PLAN_HOST, PLAN_ALWAYS, process_bytes());
    if (B == 0 && T == 0) { return STATUS_OK; }
    TRY(gpt2_check_sizes(config, B, T));
    size_t activations =
        gpt2_activations(plan->activations, config, B, T, settings.recompute, training ? 1 : 0, sizeof(float), 0);
    plan_set(plan, PLAN_ACTIVATIONS, PLAN_HOST, PLAN_TRAINING, activations);
    if (!training) { return STATUS_OK; }
    plan_set(plan, PLAN_GRADIENTS, PLAN_HOST, PLAN_TRAINING, bytes);
    plan_set(plan, PLAN_MOMENTS1, PLAN_HOST, PLAN_TRAINING, bytes);
    plan_set(plan, PLAN_MOMENTS2, PLAN_HOST, PLAN_TRAINING, bytes);
    if (snapshot) { plan_set(plan, PLAN_HOST_SNAPSHOT, PLAN_HOST, PLAN_TRAINING, size_mul(3, bytes)); }
    return STATUS_OK;
}

Status gpt2_available_memory(GPT2Memory* memory) {
    HostMemory host = host_memory("");
    memset(memory, 0, sizeof(*memory));
    status_clear();
    memory->host_free = host.available, memory->host_total = host.total, memory->host_limit = host.limit;
    return STATUS_OK;
}

// Memory for tensors: zeroed, and taken from the system only where it is touched. In huge pages where the system has
// them: a GEMM reads rows that lie pages apart. NULL, with the error recorded, where there is none, and after an error.
static void* tensor_alloc(size_t bytes, const char* what) {
    if (status_now() != STATUS_OK) { return NULL; }
    void* p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        status_fail("%s: %.1f MiB of memory asked for, more than there is; use a smaller batch (-b, with -d for "
                    "accumulation), a smaller model (-e), or more recomputation (-r 2)",
                    what, (double)bytes / (1 << 20));
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE); // advice: nothing is wrong where it is refused
#endif
    return p;
}

static void tensor_free(void* p, size_t bytes) {
    if (p != NULL) { munmap(p, bytes); }
}

// A row of the plan; NULL where it has no bytes, and after an error.
static void* row_alloc(GPT2* model, PlanRowId row) {
    size_t bytes = model->plan.rows[row].bytes;
    void* p = bytes > 0 ? tensor_alloc(bytes, model->plan.rows[row].name) : NULL;
    model->info.memory_bytes += p != NULL ? bytes : 0;
    return p;
}
static void row_free(GPT2* model, PlanRowId row, void* p) { tensor_free(p, model->plan.rows[row].bytes); }

Status gpt2_create(GPT2** result, GPT2Config config, GPT2Settings settings) {
    status_clear();
    *result = NULL;
    TRY(gpt2_config_status(config, "the model"));
    GPT2* model = (GPT2*)calloc(1, sizeof(GPT2));
    if (model == NULL) { return status_fail("no memory for a model"); }
    GPT2Info* info = &model->info;
    info->config = config;
    info->settings = settings;
    info->num_parameters = gpt2_parameters(info->table, config);
    info->weight_bytes = sizeof(float);
    gpt2_plan(&model->plan, config, settings, 0, 0, 0, 0);
    model->params_memory = (float*)row_alloc(model, PLAN_WEIGHTS);
    if (model->params_memory == NULL) {
        gpt2_free(model);
        return STATUS_ERROR;
    }
    gpt2_point_parameters(&model->params, info->table, model->params_memory, sizeof(float));
    *result = model;
    return STATUS_OK;
}

Status gpt2_allocate(GPT2* model, int B, int T, int training) {
    GPT2Info* info = &model->info;
    status_clear();
    TRY(gpt2_check_allocation(info, B, T));
    TRY(gpt2_plan(&model->plan, info->config, info->settings, B, T, training, 0));
    model->acts_memory = row_alloc(model, PLAN_ACTIVATIONS);
    model->grads_memory = (float*)row_alloc(model, PLAN_GRADIENTS);
    model->m_memory = (float*)row_alloc(model, PLAN_MOMENTS1);
    model->v_memory = (float*)row_alloc(model, PLAN_MOMENTS2);
    TRY(status_now());
    gpt2_point_activations(&model->acts, model->plan.activations, model->acts_memory);
    if (training) { gpt2_point_parameters(&model->grads, info->table, model->grads_memory, sizeof(float)); }
    info->B = B;
    info->T = T;
    info->training = training;
    info->losses = model->acts.losses;
    return STATUS_OK;
}

void gpt2_free(GPT2* model) {
    if (model == NULL) { return; }
    row_free(model, PLAN_WEIGHTS, model->params_memory);
    row_free(model, PLAN_GRADIENTS, model->grads_memory);
    row_free(model, PLAN_MOMENTS1, model->m_memory);
    row_free(model, PLAN_MOMENTS2, model->v_memory);
    row_free(model, PLAN_ACTIVATIONS, model->acts_memory);
    tensor_free(model->snapshot, gpt2_snapshot_bytes(&model->info));
    free(model);
}

const GPT2Info* gpt2_info(const GPT2* model) { return &model->info; }

// ----------------------------------------------------------------------------
// Parameters, gradients, moments

// A block's memory; NULL where the model has none.
static char* gpt2_block(const GPT2* model, GPT2Block block) {
    float* memory = block == GPT2_WEIGHTS     ? model->params_memory
                    : block == GPT2_GRADIENTS ? model->grads_memory
                    : block == GPT2_MOMENTS1  ? model->m_memory
                    : block == GPT2_MOMENTS2  ? model->v_memory
                                              : NULL; // fp32 weights are their own master
    return (char*)memory;
}

size_t gpt2_block_bytes(const GPT2* model, GPT2Block block) {
    return gpt2_block(model, block) ? model->info.num_parameters * sizeof(float) : 0;
}

Status gpt2_copy_out(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes) {
    status_clear();
    TRY(gpt2_check_block(gpt2_block_bytes(model, block), offset, bytes));
    if (bytes > 0) { memcpy(host, gpt2_block(model, block) + offset, bytes); }
    return STATUS_OK;
}

Status gpt2_copy_in(GPT2* model, GPT2Block block, const void* host, size_t offset, size_t bytes) {
    status_clear();
    TRY(gpt2_check_block(gpt2_block_bytes(model, block), offset, bytes));
    if (bytes > 0) { memcpy(gpt2_block(model, block) + offset, host, bytes); }
    return STATUS_OK;
}

Status gpt2_set_parameters(GPT2* model, const float* params) {
    GPT2Config c = model->info.config;
    size_t V = (size_t)c.vocab_size, Vp = (size_t)c.padded_vocab_size, C = (size_t)c.channels;
    TRY(gpt2_copy_in(model, GPT2_WEIGHTS, params, 0, gpt2_block_bytes(model, GPT2_WEIGHTS)));
    memset(model->params.wte + V * C, 0, (Vp - V) * C * sizeof(float));
    return STATUS_OK;
}

Status gpt2_get_parameters(GPT2* model, float* params) {
    return gpt2_copy_out(model, params, GPT2_WEIGHTS, 0, gpt2_block_bytes(model, GPT2_WEIGHTS));
}

// ----------------------------------------------------------------------------
// Snapshot

Status gpt2_allocate_snapshot(GPT2* model) {
    GPT2Info* info = &model->info;
    size_t bytes = gpt2_snapshot_bytes(info);
    status_clear();
    TRY(gpt2_check_training(info));
    if (model->snapshot != NULL) { return status_fail("gpt2_allocate_snapshot: this model has its snapshot already"); }
    model->snapshot = tensor_alloc(bytes, "a snapshot");
    if (model->snapshot == NULL) { return STATUS_ERROR; }
    info->memory_bytes += bytes;
    for (int i = 0; i < 3; i++) { // touches its pages, which the first snapshot would have to wait for
        parallel_copy((char*)model->snapshot + i * (ptrdiff_t)(bytes / 3), model->m_memory, bytes / 3);
    }
    return STATUS_OK;
}

// A block's place in the snapshot
static char* gpt2_snapshot_block(const GPT2* model, GPT2Block block) {
    static const int place[] = {[GPT2_WEIGHTS] = 0, [GPT2_MOMENTS1] = 1, [GPT2_MOMENTS2] = 2};
    return (char*)model->snapshot + (size_t)place[block] * gpt2_block_bytes(model, block);
}

// The copy is all that a step waits for: all threads make it, on pages that are there.
Status gpt2_take_snapshot(GPT2* model) {
    static const GPT2Block blocks[] = {GPT2_WEIGHTS, GPT2_MOMENTS1, GPT2_MOMENTS2};
    status_clear();
    if (model->snapshot == NULL) { return status_fail("gpt2_take_snapshot before gpt2_allocate_snapshot"); }
    for (int i = 0; i < 3; i++) {
        parallel_copy(gpt2_snapshot_block(model, blocks[i]), gpt2_block(model, blocks[i]),
                      gpt2_block_bytes(model, blocks[i]));
    }
    model->snapshot_taken = 1;
    return STATUS_OK;
}

Status gpt2_read_snapshot(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes) {
    status_clear();
    TRY(gpt2_check_snapshot(model->snapshot_taken, block, gpt2_block_bytes(model, block), offset, bytes));
    if (bytes > 0) { memcpy(host, gpt2_snapshot_block(model, block) + offset, bytes); }
    return STATUS_OK;
}

const char* gpt2_snapshot_place(const GPT2* model) { return model->snapshot == NULL ? "none" : "host"; }

// ----------------------------------------------------------------------------
// One layer's slice of the tables

// Its parameters, or their gradients
static ParameterTensors gpt2_layer_parameters(const GPT2* model, const ParameterTensors* whole, int layer) {
    ParameterTensors w;
    gpt2_slice_parameters(&w, whole, model->info.table, (size_t)layer, sizeof(float));
    return w;
}
static ActivationTensors gpt2_layer_activations(const GPT2* model, int layer) {
    ActivationTensors y;
    gpt2_slice_activations(&y, &model->acts, model->plan.activations, (size_t)layer, sizeof(float));
    return y;
}
// (B,T,C) the residual stream that enters a layer
static float* gpt2_layer_input(const GPT2* model, int layer) {
    return layer == 0 ? model->acts.encoded : gpt2_layer_activations(model, layer - 1).residual3;
}

// ----------------------------------------------------------------------------
// Forward

// The logits (B,T,Vp) stay in acts.output.
Status gpt2_forward(GPT2* model, const int* inputs, int B_, int T_) {
    GPT2Config c = model->info.config;
    ActivationTensors a = model->acts;
    ParameterTensors p = model->params;
    size_t B = (size_t)B_, T = (size_t)T_, BT = B * T, C = (size_t)c.channels, NH = (size_t)c.num_heads;
    status_clear();
    TRY(gpt2_check_batch(&model->info, B_, T_));
    TRY(gpt2_check_tokens(&model->info, inputs, BT));
    model->last_B = B_, model->last_T = T_;
    model->last_pass = PASS_FORWARD;

    encoder_forward(a.encoded, inputs, p.wte, p.wpe, B, T, C);
    for (int i = 0; i < c.num_layers; i++) {
        ParameterTensors w = gpt2_layer_parameters(model, &p, i);
        ActivationTensors y = gpt2_layer_activations(model, i);
        const float* inp = gpt2_layer_input(model, i);
        // residual2 = inp + attproj(attention(ln1(inp)))
        layernorm_forward(y.ln1, y.ln1_mean, y.ln1_rstd, inp, w.ln1w, w.ln1b, BT, C);
        matmul_forward(y.qkv, NULL, y.ln1, w.qkvw, w.qkvb, BT, C, 3 * C);
        attention_forward(y.atty, y.l, y.m, y.qkv, B, T, NH, C / NH);
        matmul_forward(y.residual2, inp, y.atty, w.attprojw, w.attprojb, BT, C, C);
        // residual3 = residual2 + fcproj(gelu(fc(ln2(residual2))))
        layernorm_forward(y.ln2, y.ln2_mean, y.ln2_rstd, y.residual2, w.ln2w, w.ln2b, BT, C);
        matmul_forward(y.fch, NULL, y.ln2, w.fcw, w.fcb, BT, C, 4 * C);
        gelu_forward(y.fch_gelu, y.fch, BT * 4 * C);
        matmul_forward(y.residual3, y.residual2, y.fch_gelu, w.fcprojw, w.fcprojb, BT, 4 * C, C);
    }
    const float* last = gpt2_layer_input(model, c.num_layers); // the last layer's output
    layernorm_forward(a.lnf, a.lnf_mean, a.lnf_rstd, last, p.lnfw, p.lnfb, BT, C);
    matmul_forward(a.output, NULL, a.lnf, p.wte, NULL, BT, C, (size_t)c.padded_vocab_size);
    return STATUS_OK;
}

Status gpt2_get_logits(GPT2* model, float* logits, int t) {
    size_t V = (size_t)model->info.config.vocab_size, Vp = (size_t)model->info.config.padded_vocab_size;
    status_clear();
    TRY(gpt2_check_row(t, model->last_B, model->last_T));
    memcpy(logits, model->acts.output + (size_t)t * Vp, V * sizeof(float));
    return STATUS_OK;
}

// The mean of the losses (B,T) of the last batch.
static double gpt2_mean_loss(const GPT2* model) {
    size_t BT = (size_t)model->last_B * (size_t)model->last_T;
    double sum = 0.0;
    for (size_t i = 0; i < BT; i++) { sum += (double)model->acts.losses[i]; }
    return sum / (double)BT;
}

Status gpt2_validate(GPT2* model, float* loss, const int* inputs, const int* targets, int B, int T) {
    GPT2Config c = model->info.config;
    size_t BT = (size_t)B * (size_t)T;
    status_clear();
    TRY(gpt2_check_batch(&model->info, B, T)); // and the targets: a forward pass replaces the batch before it
    TRY(gpt2_check_tokens(&model->info, targets, BT));
    TRY(gpt2_forward(model, inputs, B, T));
    classifier(model->acts.losses, model->acts.output, targets, 0.0f, 0, BT, (size_t)c.vocab_size,
               (size_t)c.padded_vocab_size);
    model->last_pass = PASS_VALIDATE;
    *loss = (float)gpt2_mean_loss(model);
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Backward

// Turns acts.dresidual from the gradient of a layer's output into the gradient of its input. The gradients of the
// layer's parameters are written, or with `accumulate` added to.
static void gpt2_backward_layer(GPT2* model, int i, size_t B, size_t T, int accumulate) {
    size_t BT = B * T, C = (size_t)model->info.config.channels, NH = (size_t)model->info.config.num_heads;
    float *dresidual = model->acts.dresidual, *dbtc = model->acts.dbtc, *dbt4c = model->acts.dbt4c;
    ParameterTensors w = gpt2_layer_parameters(model, &model->params, i);
    ParameterTensors g = gpt2_layer_parameters(model, &model->grads, i);
    ActivationTensors y = gpt2_layer_activations(model, i);
    const float* inp = gpt2_layer_input(model, i);

    // MLP: fcproj, GELU, fc, ln2
    if (model->info.settings.recompute >= 1) { gelu_forward(y.fch_gelu, y.fch, BT * 4 * C); }
    matmul_backward_weight(g.fcprojw, g.fcprojb, dresidual, y.fch_gelu, accumulate, BT, 4 * C, C);
    matmul_backward_input(dbt4c, dresidual, w.fcprojw, BT, 4 * C, C);
    gelu_backward(dbt4c, y.fch, BT * 4 * C);
    if (model->info.settings.recompute >= 2) {
        layernorm_forward(y.ln2, y.ln2_mean, y.ln2_rstd, y.residual2, w.ln2w, w.ln2b, BT, C);
    }
    matmul_backward_weight(g.fcw, g.fcb, dbt4c, y.ln2, accumulate, BT, C, 4 * C);
    matmul_backward_input(dbtc, dbt4c, w.fcw, BT, C, 4 * C);
    layernorm_backward(dresidual, g.ln2w, g.ln2b, dbtc, y.residual2, w.ln2w, y.ln2_mean, y.ln2_rstd, 1, accumulate, BT,
                       C);

    // attention: attproj, attention, qkv, ln1; dqkv (B,T,3,NH,HS) takes the first three quarters of dbt4c
    float* dqkv = dbt4c;
    matmul_backward_weight(g.attprojw, g.attprojb, dresidual, y.atty, accumulate, BT, C, C);
    matmul_backward_input(dbtc, dresidual, w.attprojw, BT, C, C);
    attention_backward(dqkv, dbtc, y.qkv, y.atty, y.l, y.m, B, T, NH, C / NH);
    if (model->info.settings.recompute >= 2) {
        layernorm_forward(y.ln1, y.ln1_mean, y.ln1_rstd, inp, w.ln1w, w.ln1b, BT, C);
    }
    matmul_backward_weight(g.qkvw, g.qkvb, dqkv, y.ln1, accumulate, BT, C, 3 * C);
    matmul_backward_input(dbtc, dqkv, w.qkvw, BT, C, 3 * C);
    layernorm_backward(dresidual, g.ln1w, g.ln1b, dbtc, inp, w.ln1w, y.ln1_mean, y.ln1_rstd, 1, accumulate, BT, C);
}

Status gpt2_backward(GPT2* model, const int* inputs, const int* targets, int grad_accum_steps, int micro_step) {
    GPT2Config c = model->info.config;
    ActivationTensors a = model->acts;
    ParameterTensors g = model->grads;
    size_t B = (size_t)model->last_B, T = (size_t)model->last_T, BT = B * T, C = (size_t)c.channels;
    size_t Vp = (size_t)c.padded_vocab_size;
    int accumulate = micro_step > 0;
    status_clear();
    TRY(gpt2_check_backward(&model->info, BT, grad_accum_steps, micro_step));
    TRY(gpt2_check_tokens(&model->info, inputs, BT));
    TRY(gpt2_check_tokens(&model->info, targets, BT));

    float dloss = 1.0f / ((float)BT * (float)grad_accum_steps); // the loss is a mean over tokens and micro-steps
    classifier(a.losses, a.output, targets, dloss, 1, BT, (size_t)c.vocab_size, Vp);
    model->last_pass = PASS_BACKWARD;
    model->norm = 0.0f;
    float before = accumulate ? model->info.mean_loss : 0.0f; // of earlier micro-steps
    model->info.mean_loss = before + (float)(gpt2_mean_loss(model) / grad_accum_steps);

    matmul_backward_weight(g.wte, NULL, a.output, a.lnf, accumulate, BT, C, Vp);
    matmul_backward_input(a.dbtc, a.output, model->params.wte, BT, C, Vp);
    const float* last = gpt2_layer_input(model, c.num_layers); // the last layer's output
    layernorm_backward(a.dresidual, g.lnfw, g.lnfb, a.dbtc, last, model->params.lnfw, a.lnf_mean, a.lnf_rstd, 0,
                       accumulate, BT, C);
    for (int i = c.num_layers - 1; i >= 0; i--) { gpt2_backward_layer(model, i, B, T, accumulate); }
    if (!accumulate) { memset(g.wpe, 0, (size_t)c.max_seq_len * C * sizeof(float)); }
    encoder_backward(g.wte, g.wpe, a.dresidual, inputs, B, T, C);
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Update

Status gpt2_grad_norm(GPT2* model, float* norm) {
    status_clear();
    TRY(gpt2_check_training(&model->info));
    *norm = model->norm = (float)vector_norm(model->grads_memory, model->info.num_parameters);
    return STATUS_OK;
}

Status gpt2_update(GPT2* model, float learning_rate, float beta1, float beta2, float epsilon, float weight_decay,
                   float grad_scale, int step) {
    size_t offset = 0;
    status_clear();
    TRY(gpt2_check_training(&model->info));
    model->info.non_finite_weights = 0;
    if (!isfinite(model->info.mean_loss) || !isfinite(model->norm)) { return STATUS_OK; } // the step has no update
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const GPT2Parameter* p = &model->info.table[i];
        model->info.non_finite_weights +=
            adamw_update(model->params_memory + offset, model->m_memory + offset, model->v_memory + offset,
                         model->grads_memory + offset, p->count, learning_rate, beta1, beta2, epsilon,
                         p->decay ? weight_decay : 0.0f, grad_scale, step);
        offset += p->count;
    }
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Finding faults

static void gpt2_scan(void* first, const void* data, size_t count, size_t element, unsigned index) {
    (void)element; // all numbers are floats
    if (index < *(unsigned*)first && !all_finite((const float*)data, count)) { *(unsigned*)first = index; }
}

Status gpt2_find_non_finite(GPT2* model, char* text, size_t size) {
    unsigned first = UINT_MAX;
    TensorSearch s = {.info = &model->info,
                      .acts_table = model->plan.activations,
                      .acts_memory = model->acts_memory,
                      .tokens = (size_t)model->last_B * (size_t)model->last_T,
                      .last_pass = model->last_pass,
                      .loss = &model->info.mean_loss,
                      .norm = &model->norm,
                      .scan = gpt2_scan,
                      .context = &first};
    status_clear();
    for (int i = 0; i <= GPT2_MASTER_WEIGHTS; i++) { s.blocks[i] = gpt2_block(model, (GPT2Block)i); }
    tensor_search(&s);
    text[0] = '\0';
    if (first != UINT_MAX) { tensor_search_name(&s, first, text, size); }
    return STATUS_OK;
}

Status gpt2_gradient_digest(GPT2* model, uint64_t* digest) {
    status_clear();
    TRY(gpt2_check_training(&model->info));
    *digest = float_digest(model->grads_memory, model->info.num_parameters);
    return STATUS_OK;
}

// Every function has finished when it returns.
Status gpt2_synchronize(GPT2* model) {
    (void)model;
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// The machine

void* gpt2_host_alloc(size_t bytes) { return malloc(bytes); }
void gpt2_host_free(void* memory) { free(memory); }

// The fastest of a few GEMMs of 1024^3.
Status gpt2_measure_gemm(GPT2* model, double* flops) {
    (void)model;
    const size_t n = MEASURED_GEMM;
    status_clear();
    float* memory = (float*)tensor_alloc(MEASURED_GEMM_BYTES, "the GEMM to measure");
    TRY(status_now());
    double best = 0.0;
    for (int round = 0; round < 5; round++) {
        double start = wall_seconds();
        matmul_forward(memory, NULL, memory + n * n, memory + 2 * n * n, NULL, n, n, n);
        double rate = 2.0 * (double)(n * n * n) / (wall_seconds() - start);
        best = rate > best ? rate : best;
    }
    tensor_free(memory, MEASURED_GEMM_BYTES);
    *flops = best;
    return STATUS_OK;
}

#ifdef USE_CBLAS
static const char* const gemm_name = "CBLAS";
#else
static const char* const gemm_name = "our own";
#endif

Status gpt2_numerics(GPT2Numerics* n, GPT2Config config, GPT2Settings settings, int B, int T) {
    (void)config, (void)settings, (void)B, (void)T;
    memset(n, 0, sizeof(*n));
    strcpy(n->precision, "fp32");
    strcpy(n->gemm, gemm_name);
    strcpy(n->attention, "flash2 forward, flash2 backward");
    snprintf(n->device, sizeof(n->device), "CPU, vectors of %d floats", LANES);
    return STATUS_OK;
}

// A GEMM of (N,C) by (OC,C), and attention of (B,T) tokens, from random numbers
static double gemm_error(size_t N, size_t C, size_t OC) {
    float* inp = (float*)malloc_check((N * C + OC * C + N * OC) * sizeof(float));
    double* reference = (double*)malloc_check(N * OC * sizeof(double));
    float *weight = inp + N * C, *out = weight + OC * C;
    doctor_numbers(inp, N * C + OC * C, 1);
    fp64_gemm(reference, inp, weight, N, C, OC);
    matmul_forward(out, NULL, inp, weight, NULL, N, C, OC);
    double error = fp64_error(out, reference, N * OC);
    free(reference);
    free(inp);
    return error;
}
static void attention_errors(double errors[2], size_t B, size_t T, size_t NH, size_t HS) {
    size_t n = B * T * NH * HS, rows = B * NH * T;
    float* qkv = (float*)malloc_check((8 * n + 2 * rows) * sizeof(float));
    double* reference = (double*)malloc_check(4 * n * sizeof(double));
    float *dout = qkv + 3 * n, *out = dout + n, *dqkv = out + n, *l = dqkv + 3 * n, *m = l + rows;
    doctor_numbers(qkv, 4 * n, 2);
    fp64_attention(reference, reference + n, qkv, dout, B, T, NH, HS);
    attention_forward(out, l, m, qkv, B, T, NH, HS);
    attention_backward(dqkv, dout, qkv, out, l, m, B, T, NH, HS);
    errors[0] = fp64_error(out, reference, n);
    errors[1] = fp64_error(dqkv, reference + n, 3 * n);
    free(reference);
    free(qkv);
}

void gpt2_doctor(Doctor* doctor) {
    static const char mend[] = "this processor or compiler computes wrongly: run make test, try another compiler";
    static const char* const names[] = {"GEMM against fp64", "attention", "its gradient"};
    const double tolerance = 1e-5; // sums of up to 200 products in fp32; a wrong kernel is off by a tenth and more
    double errors[3] = {gemm_error(128, 192, 256), 0.0, 0.0};
    attention_errors(errors + 1, 2, 160, 2, 64);
    doctor_row(doctor, DOCTOR_OK, "processor", NULL, "CPU, %d threads, vectors of %d floats", cpu_threads(), LANES);
    for (int i = 0; i < 3; i++) {
        doctor_row(doctor, errors[i] <= tolerance ? DOCTOR_OK : DOCTOR_FAULT, names[i], mend,
                   "off by %.1e of the result, %.0e allowed", errors[i], tolerance);
    }
}

void gpt2_print_device(const GPT2* model) {
    (void)model;
    print_table_row("device", "CPU, %d threads, vectors of %d floats", cpu_threads(), LANES);
    print_table_row("GEMM", "%s", gemm_name);
    print_table_row("precision", "fp32");
    print_table_row("attention", "flash2");
}

// The GPU trainer's alone
void gpt2_log_device(const GPT2* model) { (void)model; }
void gpt2_range_begin(const char* name) { (void)name; }
void gpt2_range_end(void) {}

#ifndef TESTING
#include "llmc/trainer.h"

int main(int argc, char** argv) { return trainer_main(argc, argv); }
#endif
