/*
The CPU trainer: GPT-2 in fp32, C11 and OpenMP. It is the readable reference of train_gpt2.cu, and what trains where
there is no GPU.

The kernels are in llmc/cpu_*.h, one header per layer. None of them lets two threads add to one number, so the same seed
gives the same bits, whatever the number of threads. main, at the end, is the training loop; its steps are in
llmc/trainer.h, which the GPU trainer shares.
*/
#include <sys/mman.h>

#include "llmc/gpt2.h"
#include "llmc/model_file.h"
#include "llmc/cli.h"
#include "llmc/cpu_matmul.h"
#include "llmc/cpu_encoder.h"
#include "llmc/cpu_layernorm.h"
#include "llmc/cpu_attention.h"
#include "llmc/cpu_gelu.h"
#include "llmc/cpu_classifier.h"
#include "llmc/cpu_adamw.h"
#include "llmc/dataloader.h" // HostAlloc

typedef float gpt2_real;
typedef float gpt2_stat;
GPT2_DECLARE_PARAMETERS(ParameterTensors, float);
GPT2_DECLARE_ACTIVATIONS(ActivationTensors);

enum { GPT2_MODEL_VERSION = MODEL_VERSION_FP32 };

typedef struct {
    GPT2Config config;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t num_parameters;
    // (num_parameters) each, in table order
    ParameterTensors params;
    float* params_memory;
    ParameterTensors grads;
    float* grads_memory;
    float* m_memory;       // AdamW's first moments
    float* v_memory;       // AdamW's second moments
    float* master_weights; // NULL: fp32 weights are their own master
    // activations of a batch of at most B*T tokens
    GPT2Activation acts_table[NUM_ACTIVATION_TENSORS];
    ActivationTensors acts;
    void* acts_memory;
    size_t acts_bytes;
    int B, T;
    int last_B, last_T; // of the last forward pass
    int recompute;
    // results
    float mean_loss;    // of the last step, after its last micro-step
    float* losses_host; // (B,T), of the last validation
} GPT2;

// ----------------------------------------------------------------------------
// Building and freeing

// Memory for tensors: zeroed, and taken from the system only where it is touched. In huge pages where the system has
// them: a product walks over rows that lie pages apart.
void* tensor_alloc(size_t bytes, const char* what) {
    void* p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        fatal("%s: %.1f MiB of memory asked for, more than there is; use a smaller batch (-b, with -d for "
              "accumulation), a smaller model (-e), or more recomputation (-r 2)",
              what, (double)bytes / (1 << 20));
    }
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE); // advice: nothing is wrong where it is refused
#endif
    return p;
}

void tensor_free(void* p, size_t bytes) {
    if (p != NULL) { munmap(p, bytes); }
}

// Host <-> the model's memory, which on the CPU is the host's.
void gpt2_copy_out(void* host, const void* tensor, size_t bytes) { memcpy(host, tensor, bytes); }
void gpt2_copy_in(void* tensor, const void* host, size_t bytes) { memcpy(tensor, host, bytes); }

// A model with room for its parameters, which are not set yet.
void gpt2_create(GPT2* model, GPT2Config config, const Options* options) {
    memset(model, 0, sizeof(*model));
    model->config = config;
    model->num_parameters = gpt2_parameters(model->table, config);
    model->recompute = options->recompute;
    model->params_memory = (float*)tensor_alloc(model->num_parameters * sizeof(float), "parameters");
    gpt2_point_parameters(&model->params, model->table, model->params_memory, sizeof(float));
}

// Activations for a batch of B rows of T tokens and, for training, gradients and AdamW's memory, zeroed.
void gpt2_allocate(GPT2* model, int B, int T, int training) {
    size_t bytes = model->num_parameters * sizeof(float);
    model->B = B;
    model->T = T;
    model->acts_bytes =
        gpt2_activations(model->acts_table, model->config, B, T, model->recompute, training ? 1 : 0, sizeof(float), 0);
    model->acts_memory = tensor_alloc(model->acts_bytes, "activations");
    gpt2_point_activations(&model->acts, model->acts_table, model->acts_memory);
    model->losses_host = model->acts.losses;
    if (!training) { return; }
    model->grads_memory = (float*)tensor_alloc(bytes, "gradients");
    model->m_memory = (float*)tensor_alloc(bytes, "first moments");
    model->v_memory = (float*)tensor_alloc(bytes, "second moments");
    gpt2_point_parameters(&model->grads, model->table, model->grads_memory, sizeof(float));
}

// What the model holds, in bytes.
size_t gpt2_memory_bytes(const GPT2* model) {
    return model->num_parameters * sizeof(float) * (model->grads_memory ? 4 : 1) + model->acts_bytes;
}

void gpt2_free(GPT2* model) {
    size_t bytes = model->num_parameters * sizeof(float);
    tensor_free(model->params_memory, bytes);
    tensor_free(model->grads_memory, bytes);
    tensor_free(model->m_memory, bytes);
    tensor_free(model->v_memory, bytes);
    tensor_free(model->acts_memory, model->acts_bytes);
    memset(model, 0, sizeof(*model));
}

// The parameters and gradients from and to blocks of the caller, in table order.
void gpt2_set_parameters(GPT2* model, const float* params) {
    memcpy(model->params_memory, params, model->num_parameters * sizeof(float));
}
void gpt2_get_parameters(GPT2* model, float* params) {
    memcpy(params, model->params_memory, model->num_parameters * sizeof(float));
}
void gpt2_get_gradients(GPT2* model, float* grads) {
    memcpy(grads, model->grads_memory, model->num_parameters * sizeof(float));
}

// ----------------------------------------------------------------------------
// One layer's slice of the tables

// Its parameters, or their gradients
ParameterTensors gpt2_layer_parameters(const GPT2* model, const ParameterTensors* whole, int layer) {
    ParameterTensors w;
    gpt2_slice_parameters(&w, whole, model->table, (size_t)layer, sizeof(float));
    return w;
}
ActivationTensors gpt2_layer_activations(const GPT2* model, int layer) {
    ActivationTensors y;
    gpt2_slice_activations(&y, &model->acts, model->acts_table, (size_t)layer, sizeof(float));
    return y;
}
// (B,T,C) the residual stream that enters a layer
float* gpt2_layer_input(const GPT2* model, int layer) {
    return layer == 0 ? model->acts.encoded : gpt2_layer_activations(model, layer - 1).residual3;
}

// ----------------------------------------------------------------------------
// Forward

// Ends with one line where a batch does not fit the model or holds a token that the vocabulary does not.
void gpt2_check_batch(const GPT2* model, const int* tokens, int B, int T) {
    if ((size_t)B * (size_t)T > (size_t)model->B * (size_t)model->T || T > model->config.max_seq_len) {
        fatal("a batch of %d x %d tokens does not fit a model made for %d x %d and a context of %d", B, T, model->B,
              model->T, model->config.max_seq_len);
    }
    for (size_t i = 0; i < (size_t)B * (size_t)T; i++) {
        if (tokens[i] < 0 || tokens[i] >= model->config.vocab_size) {
            fatal("token %d in a batch is outside of the model's vocabulary of %d", tokens[i],
                  model->config.vocab_size);
        }
    }
}

// inputs (B,T). Leaves the logits (B,T,Vp) in acts.output. B*T is at most what was allocated.
void gpt2_forward(GPT2* model, const int* inputs, int B_, int T_) {
    GPT2Config c = model->config;
    ActivationTensors a = model->acts;
    ParameterTensors p = model->params;
    size_t B = (size_t)B_, T = (size_t)T_, BT = B * T, C = (size_t)c.channels, NH = (size_t)c.num_heads;
    gpt2_check_batch(model, inputs, B_, T_);
    model->last_B = B_, model->last_T = T_;

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
    const float* last = gpt2_layer_input(model, c.num_layers); // what leaves the last layer
    layernorm_forward(a.lnf, a.lnf_mean, a.lnf_rstd, last, p.lnfw, p.lnfb, BT, C);
    matmul_forward(a.output, NULL, a.lnf, p.wte, NULL, BT, C, (size_t)c.padded_vocab_size);
}

// Row t of the last forward pass's logits, the first V of it.
void gpt2_get_logits(GPT2* model, float* logits, int t) {
    size_t V = (size_t)model->config.vocab_size, Vp = (size_t)model->config.padded_vocab_size;
    memcpy(logits, model->acts.output + (size_t)t * Vp, V * sizeof(float));
}

// The mean of the losses (B,T) of the last batch.
double gpt2_mean_loss(const GPT2* model) {
    size_t BT = (size_t)model->last_B * (size_t)model->last_T;
    double sum = 0.0;
    for (size_t i = 0; i < BT; i++) { sum += (double)model->acts.losses[i]; }
    return sum / (double)BT;
}

// The mean loss of a batch in nats; the loss of each token in losses_host (B,T).
float gpt2_validate(GPT2* model, const int* inputs, const int* targets, int B, int T) {
    GPT2Config c = model->config;
    gpt2_check_batch(model, targets, B, T);
    gpt2_forward(model, inputs, B, T);
    classifier(model->acts.losses, model->acts.output, targets, 0.0f, 0, (size_t)B * (size_t)T, (size_t)c.vocab_size,
               (size_t)c.padded_vocab_size);
    return (float)gpt2_mean_loss(model);
}

// ----------------------------------------------------------------------------
// Backward

// From the gradient of a layer's output in acts.dresidual to the gradient of its input there. The parameters' gradients
// are added to what is there where `accumulate`.
void gpt2_backward_layer(GPT2* model, int i, size_t B, size_t T, int accumulate) {
    size_t BT = B * T, C = (size_t)model->config.channels, NH = (size_t)model->config.num_heads;
    float *dresidual = model->acts.dresidual, *dbtc = model->acts.dbtc, *dbt4c = model->acts.dbt4c;
    ParameterTensors w = gpt2_layer_parameters(model, &model->params, i);
    ParameterTensors g = gpt2_layer_parameters(model, &model->grads, i);
    ActivationTensors y = gpt2_layer_activations(model, i);
    const float* inp = gpt2_layer_input(model, i);

    // MLP: fcproj, GELU, fc, ln2
    if (model->recompute >= 1) { gelu_forward(y.fch_gelu, y.fch, BT * 4 * C); }
    matmul_backward_weight(g.fcprojw, g.fcprojb, dresidual, y.fch_gelu, accumulate, BT, 4 * C, C);
    matmul_backward_input(dbt4c, dresidual, w.fcprojw, BT, 4 * C, C);
    gelu_backward(dbt4c, y.fch, BT * 4 * C);
    if (model->recompute >= 2) { layernorm_forward(y.ln2, y.ln2_mean, y.ln2_rstd, y.residual2, w.ln2w, w.ln2b, BT, C); }
    matmul_backward_weight(g.fcw, g.fcb, dbt4c, y.ln2, accumulate, BT, C, 4 * C);
    matmul_backward_input(dbtc, dbt4c, w.fcw, BT, C, 4 * C);
    layernorm_backward(dresidual, g.ln2w, g.ln2b, dbtc, y.residual2, w.ln2w, y.ln2_mean, y.ln2_rstd, 1, accumulate, BT,
                       C);

    // attention: attproj, attention, qkv, ln1; dqkv (B,T,3,NH,HS) takes the first three quarters of dbt4c
    float* dqkv = dbt4c;
    matmul_backward_weight(g.attprojw, g.attprojb, dresidual, y.atty, accumulate, BT, C, C);
    matmul_backward_input(dbtc, dresidual, w.attprojw, BT, C, C);
    attention_backward(dqkv, dbtc, y.qkv, y.atty, y.l, y.m, B, T, NH, C / NH);
    if (model->recompute >= 2) { layernorm_forward(y.ln1, y.ln1_mean, y.ln1_rstd, inp, w.ln1w, w.ln1b, BT, C); }
    matmul_backward_weight(g.qkvw, g.qkvb, dqkv, y.ln1, accumulate, BT, C, 3 * C);
    matmul_backward_input(dbtc, dqkv, w.qkvw, BT, C, 3 * C);
    layernorm_backward(dresidual, g.ln1w, g.ln1b, dbtc, inp, w.ln1w, y.ln1_mean, y.ln1_rstd, 1, accumulate, BT, C);
}

// The gradients of the batch of the last gpt2_forward, added up over grad_accum_steps micro-steps and scaled to their
// mean. The first micro-step writes them, the others add. After the last one mean_loss is the loss of the whole step.
void gpt2_backward(GPT2* model, const int* inputs, const int* targets, int grad_accum_steps, int micro_step) {
    GPT2Config c = model->config;
    ActivationTensors a = model->acts;
    ParameterTensors g = model->grads;
    size_t B = (size_t)model->last_B, T = (size_t)model->last_T, BT = B * T, C = (size_t)c.channels;
    size_t Vp = (size_t)c.padded_vocab_size;
    int accumulate = micro_step > 0;
    gpt2_check_batch(model, targets, model->last_B, model->last_T);

    float dloss = 1.0f / ((float)BT * (float)grad_accum_steps); // the loss is a mean over tokens and micro-steps
    classifier(a.losses, a.output, targets, dloss, 1, BT, (size_t)c.vocab_size, Vp);
    model->mean_loss = (accumulate ? model->mean_loss : 0.0f) + (float)(gpt2_mean_loss(model) / grad_accum_steps);

    matmul_backward_weight(g.wte, NULL, a.output, a.lnf, accumulate, BT, C, Vp);
    matmul_backward_input(a.dbtc, a.output, model->params.wte, BT, C, Vp);
    const float* last = gpt2_layer_input(model, c.num_layers); // what leaves the last layer
    layernorm_backward(a.dresidual, g.lnfw, g.lnfb, a.dbtc, last, model->params.lnfw, a.lnf_mean, a.lnf_rstd, 0,
                       accumulate, BT, C);
    for (int i = c.num_layers - 1; i >= 0; i--) { gpt2_backward_layer(model, i, B, T, accumulate); }
    if (!accumulate) { memset(g.wpe, 0, (size_t)c.max_seq_len * C * sizeof(float)); }
    encoder_backward(g.wte, g.wpe, a.dresidual, inputs, B, T, C);
}

// ----------------------------------------------------------------------------
// Update

float gpt2_grad_norm(GPT2* model) { return (float)vector_norm(model->grads_memory, model->num_parameters); }

// One AdamW step, `step` counting from 1; decay on matrices only; the gradients count times grad_scale.
void gpt2_update(GPT2* model, float learning_rate, float beta1, float beta2, float epsilon, float weight_decay,
                 float grad_scale, int step) {
    size_t offset = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const GPT2Parameter* p = &model->table[i];
        adamw_update(model->params_memory + offset, model->m_memory + offset, model->v_memory + offset,
                     model->grads_memory + offset, p->count, learning_rate, beta1, beta2, epsilon,
                     p->decay ? weight_decay : 0.0f, grad_scale, step);
        offset += p->count;
    }
}

void gpt2_synchronize(GPT2* model) { (void)model; } // every function has finished when it returns

// ----------------------------------------------------------------------------
// What a run asks of the machine

HostAlloc gpt2_host_alloc(void) {
    HostAlloc ordinary = {NULL, NULL};
    return ordinary;
}

// FLOP/s of the fastest of a few runs of a large product: what a step is measured against.
double gpt2_measure_peak(GPT2* model) {
    (void)model;
    const size_t n = 1024;
    float* memory = (float*)tensor_alloc(3 * n * n * sizeof(float), "a product");
    double best = 0.0;
    for (int round = 0; round < 5; round++) {
        double start = wall_seconds();
        matmul_forward(memory, NULL, memory + n * n, memory + 2 * n * n, NULL, n, n, n);
        double rate = 2.0 * (double)(n * n * n) / (wall_seconds() - start);
        best = rate > best ? rate : best;
    }
    tensor_free(memory, 3 * n * n * sizeof(float));
    return best;
}

void gpt2_print_device(const GPT2* model) {
    (void)model;
    print_table_row("device", "CPU, %d threads, vectors of %d floats", cpu_threads(), LANES);
#ifdef USE_CBLAS
    print_table_row("products", "CBLAS");
#else
    print_table_row("products", "our own");
#endif
    print_table_row("precision", "fp32");
    print_table_row("attention", "flash2");
}

void gpt2_log_device(const GPT2* model) { (void)model; } // -lg is the GPU trainer's

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
