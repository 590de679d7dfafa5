/*
The CPU trainer: GPT-2 in fp32, C11 and OpenMP. It is the readable reference of train_gpt2.cu, and trains where there is no GPU.

This file is the model: forward, backward, update, the training loop, and then what they rest on: exchange between processes,
memory, copies. llmc/model/gpt2_model.h documents its functions; those that it shares with the GPU trainer are in gpt2_common.h
beside it. The kernels are in llmc/cpu. No two threads add to the same number, and gradients are added in the order of
llmc/model/gradient_tree.h: so the same seed gives the same bits for any number of threads and, where it is a power of two, of
processes. The parts of the loop are in llmc/run, which the GPU trainer shares, too.
*/
#include <sys/mman.h>

#include "llmc/model/gpt2_model.h"
#include "llmc/comm/comm.h"
#include "llmc/cpu/layers.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/attention.h"
#include "llmc/cpu/doctor.h"
#include "llmc/cpu/muon.h"
#include "llmc/cpu/numbers.h"

typedef float floatX; // the training precision
#define GPT2_MEMORY PLAN_HOST
#define GPT2_IN_PLACE 0

GPT2_DECLARE_PARAMETERS(ParameterTensors, floatX);
GPT2_DECLARE_PARAMETERS(GradientTensors, float);
GPT2_DECLARE_ACTIVATIONS(ActivationTensors, floatX);

// The arguments of an exchange, (size) each by rank; NULL with one process
typedef struct {
    CommBlock *sent, *received;
    const float** pieces; // of a sum
} Exchange;

struct GPT2 {
    GPT2Info info;
    GPT2Plan plan; // the sizes of what is allocated
    int local;     // gpt2_set_local
    Exchange exchange;
    // in the order of parameter_layout.h: weights and gradients (elements), moments (shard_elements)
    ParameterLayout layout;
    float* params_memory;
    float* m_memory;      // AdamW's first moments, Muon's momentum
    float* v_memory;      // AdamW's second moments (second_elements)
    float* muon_memory;   // Muon's scratch, or NULL
    void* master_weights; // NULL: fp32 weights are their own
    // gradients: buffers of the gradient tree, (elements) each. The first is apart; with one micro-step there are no others.
    float* grads_memory;
    float* tree_memory;
    GradientLeaf leaf;   // of the last micro-step (gradient_tree.h)
    float* received;     // (size - 1, the largest part of a bucket): the other processes' pieces of this one's part
    double* block_sums;  // (elements / LAYOUT_BLOCK) sums of squares
    float* micro_losses; // (size * micro_steps) mean losses of the micro-batches of a step
    int micro_steps;     // of this step, in this process
    // activations of a batch of at most B rows of T tokens
    ActivationTensors acts;
    void* acts_memory;
    int* starts;          // (B,T) where the documents of a batch begin; NULL: rows are one document
    const int* documents; // starts, or NULL where the last forward pass did not heed them
    // copies of the weights and of both moments after a step; NULL without checkpoints in the background
    void* snapshot;
    int snapshot_taken;
};

#include "llmc/model/gpt2_common.h"

// Defined below, under "Exchange between processes"
static Status gpt2_exchange_gradients(GPT2* model);
static Status gpt2_gather(GPT2* model, float* memory);

// ----------------------------------------------------------------------------
// Forward

// What counts positions, of the last forward pass: its documents, or NULL for rows
static const int* gpt2_positions(const GPT2* model) { return model->info.settings.positions ? model->documents : NULL; }

// The logits (B,T,Vp) stay in acts.output.
static Status gpt2_forward_pass(GPT2* model, const int* inputs, int B_, int T_, int by_documents) {
    GPT2Config c = model->info.config;
    ActivationTensors a = model->acts;
    ParameterTensors p = gpt2_layer_parameters(model, 0);
    size_t B = (size_t)B_, T = (size_t)T_, BT = B * T, C = (size_t)c.channels, NH = (size_t)c.num_heads;
    status_clear();
    TRY(gpt2_check_batch(&model->info, B_, T_));
    TRY(gpt2_check_tokens(&model->info, inputs, BT));
    model->info.last_B = B_, model->info.last_T = T_;
    model->info.last_pass = PASS_FORWARD;

    model->documents = by_documents ? model->starts : NULL;
    if (by_documents) { document_starts(model->starts, inputs, model->info.settings.separator, B, T); }
    encoder_forward(a.encoded, inputs, gpt2_positions(model), p.wte, p.wpe, B, T, C);
    for (int i = 0; i < c.num_layers; i++) {
        ParameterTensors w = gpt2_layer_parameters(model, i);
        ActivationTensors y = gpt2_layer_activations(model, i);
        const float* inp = gpt2_layer_input(model, i);
        // residual2 = inp + attproj(attention(ln1(inp)))
        layernorm_forward(y.ln1, y.ln1_mean, y.ln1_rstd, inp, w.ln1w, w.ln1b, BT, C);
        matmul_forward(y.qkv, NULL, y.ln1, w.qkvw, w.qkvb, BT, C, 3 * C);
        attention_forward(y.atty, y.l, y.m, y.qkv, model->documents, B, T, NH, C / NH);
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

Status gpt2_forward(GPT2* model, const int* inputs, int B, int T) {
    return gpt2_forward_pass(model, inputs, B, T, model->info.settings.documents >= 1);
}

Status gpt2_evaluate(GPT2* model, const int* inputs, int B, int T) { return gpt2_forward(model, inputs, B, T); }

Status gpt2_get_logits(GPT2* model, float* logits, int t) {
    size_t V = (size_t)model->info.config.vocab_size, Vp = (size_t)model->info.config.padded_vocab_size;
    status_clear();
    TRY(gpt2_check_row(&model->info, t));
    memcpy(logits, model->acts.output + (size_t)t * Vp, V * sizeof(float));
    return STATUS_OK;
}

// The mean of the losses (B,T) of the last batch.
static double gpt2_mean_loss(const GPT2* model) {
    size_t BT = (size_t)model->info.last_B * (size_t)model->info.last_T;
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
    TRY(gpt2_forward_pass(model, inputs, B, T, model->info.settings.documents >= 2));
    classifier(model->acts.losses, model->acts.output, targets, 0.0f, 0, BT, (size_t)c.vocab_size,
               (size_t)c.padded_vocab_size);
    model->info.last_pass = PASS_VALIDATE;
    *loss = (float)gpt2_mean_loss(model);
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Backward

// Turns acts.dresidual from the gradient of a layer's output into the gradient of its input. The gradients of the layer's
// parameters overwrite those in the leaf's buffer or, where it accumulates, are added to them.
static void gpt2_backward_layer(GPT2* model, int i, size_t B, size_t T) {
    int accumulate = model->leaf.accumulate;
    size_t BT = B * T, C = (size_t)model->info.config.channels, NH = (size_t)model->info.config.num_heads;
    float *dresidual = model->acts.dresidual, *dbtc = model->acts.dbtc, *dbt4c = model->acts.dbt4c;
    ParameterTensors w = gpt2_layer_parameters(model, i);
    GradientTensors g = gpt2_layer_gradients(model, i);
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
    attention_backward(dqkv, dbtc, y.qkv, y.atty, y.l, y.m, model->documents, B, T, NH, C / NH);
    if (model->info.settings.recompute >= 2) {
        layernorm_forward(y.ln1, y.ln1_mean, y.ln1_rstd, inp, w.ln1w, w.ln1b, BT, C);
    }
    matmul_backward_weight(g.qkvw, g.qkvb, dqkv, y.ln1, accumulate, BT, C, 3 * C);
    matmul_backward_input(dbtc, dqkv, w.qkvw, BT, C, 3 * C);
    layernorm_backward(dresidual, g.ln1w, g.ln1b, dbtc, inp, w.ln1w, y.ln1_mean, y.ln1_rstd, 1, accumulate, BT, C);
}

// The gradients of the last forward pass's batch, after the classifier has overwritten the logits by their gradients
static void gpt2_backward_pass(GPT2* model, const int* inputs) {
    GPT2Config c = model->info.config;
    ActivationTensors a = model->acts;
    ParameterTensors p = gpt2_layer_parameters(model, 0);
    GradientTensors g = gpt2_layer_gradients(model, 0);
    int accumulate = model->leaf.accumulate;
    size_t B = (size_t)model->info.last_B, T = (size_t)model->info.last_T, BT = B * T, C = (size_t)c.channels;
    size_t Vp = (size_t)c.padded_vocab_size;
    matmul_backward_weight(g.wte, NULL, a.output, a.lnf, accumulate, BT, C, Vp);
    matmul_backward_input(a.dbtc, a.output, p.wte, BT, C, Vp);
    const float* last = gpt2_layer_input(model, c.num_layers); // the last layer's output
    layernorm_backward(a.dresidual, g.lnfw, g.lnfb, a.dbtc, last, p.lnfw, a.lnf_mean, a.lnf_rstd, 0, accumulate, BT, C);
    for (int i = c.num_layers - 1; i >= 0; i--) { gpt2_backward_layer(model, i, B, T); }
    if (!accumulate) { memset(g.wpe, 0, (size_t)c.max_seq_len * C * sizeof(float)); }
    encoder_backward(g.wte, g.wpe, a.dresidual, inputs, gpt2_positions(model), B, T, C);
}

// buffer[first] += (buffer[first+1] + (.. + buffer[last]))
static void gpt2_add_buffers(GPT2* model, int first, int last) {
    const size_t n = model->layout.elements;
#pragma omp parallel for schedule(dynamic)
    for (size_t begin = 0; begin < n; begin += LAYOUT_BLOCK) { // blocks that stay in the cache between the additions
        for (int b = last; b > first; b--) {
            float* sum = gpt2_gradients(model, b - 1) + begin;
            const float* right = gpt2_gradients(model, b) + begin;
            for (size_t i = 0; i < LAYOUT_BLOCK; i++) { sum[i] += right[i]; }
        }
    }
}

Status gpt2_backward(GPT2* model, const int* inputs, const int* targets, int grad_accum_steps, int micro_step) {
    GPT2Info* info = &model->info;
    ActivationTensors a = model->acts;
    size_t BT = (size_t)model->info.last_B * (size_t)model->info.last_T;
    status_clear();
    TRY(gpt2_check_backward(info, grad_accum_steps, micro_step));
    TRY(gpt2_check_tokens(info, inputs, BT));
    TRY(gpt2_check_tokens(info, targets, BT));
    if (micro_step == 0) { info->mean_loss = info->grad_norm = 0.0f; } // of the step before

    float micro_batches = (float)grad_accum_steps * (float)info->size;
    float dloss = 1.0f / ((float)BT * micro_batches); // the loss is a mean over tokens and micro-batches
    classifier(a.losses, a.output, targets, dloss, 1, BT, (size_t)info->config.vocab_size,
               (size_t)info->config.padded_vocab_size);
    model->info.last_pass = PASS_BACKWARD;
    model->micro_steps = grad_accum_steps;
    model->micro_losses[info->rank * grad_accum_steps + micro_step] = (float)gpt2_mean_loss(model);
    model->leaf = gpt2_leaf(info->settings, grad_accum_steps, micro_step);
    gpt2_backward_pass(model, inputs);
    gpt2_add_buffers(model, model->leaf.first, model->leaf.buffer);
    return micro_step == grad_accum_steps - 1 ? gpt2_exchange_gradients(model) : STATUS_OK;
}

// ----------------------------------------------------------------------------
// Update

// The loss of the step: gathers the losses of all processes' micro-batches, and adds them up in their order.
static Status gpt2_sum_losses(GPT2* model) {
    size_t own = (size_t)model->micro_steps, all = own * (size_t)model->info.size;
    size_t first = own * (size_t)model->info.rank;
    double sum = 0.0;
    for (size_t i = 0; i < all; i++) {
        if (i < first || i >= first + own) { model->micro_losses[i] = 0.0f; }
    }
    if (gpt2_shares(model)) {
        TRY(comm_tensor_merge(model->info.settings.comm, model->micro_losses, all, COMM_FLOAT, NULL));
        own = all;
    }
    for (size_t i = 0; i < all; i++) { sum += (double)model->micro_losses[i]; }
    model->info.mean_loss = own > 0 ? (float)(sum / (double)own) : 0.0f;
    return STATUS_OK;
}

// Sums the squares of each block, then the blocks in their order: the same bits for any number of processes.
Status gpt2_grad_norm(GPT2* model, float* norm) {
    size_t blocks = model->layout.elements / LAYOUT_BLOCK;
    double sum = 0.0;
    status_clear();
    TRY(gpt2_check_training(&model->info));
    TRY(gpt2_sum_losses(model));
    memset(model->block_sums, 0, blocks * sizeof(double));
    for (int i = 0; i < model->layout.num_buckets; i++) {
        size_t begin = model->layout.buckets[i].begin, count = model->layout.buckets[i].count;
        if (gpt2_shares(model)) { layout_shard_part(&model->layout, i, model->info.rank, &begin, &count); }
        square_blocks(model->block_sums + begin / LAYOUT_BLOCK, model->grads_memory + begin, count / LAYOUT_BLOCK);
    }
    if (gpt2_shares(model)) {
        TRY(comm_tensor_merge(model->info.settings.comm, model->block_sums, blocks, COMM_DOUBLE, NULL));
    }
    for (size_t i = 0; i < blocks; i++) { sum += model->block_sums[i]; }
    model->info.grad_norm = (float)sqrt(sum);
    if (norm != NULL) { *norm = model->info.grad_norm; }
    return STATUS_OK;
}

// Muon on the matrices of a bucket that this process owns; `momentum` is their offset in m_memory. Returns how many weights
// stayed as they were.
static size_t gpt2_muon(GPT2* model, const LayoutBucket* b, size_t momentum, float learning_rate, float weight_decay,
                        float grad_scale) {
    const GPT2Parameter* p = &model->info.table[b->tensor];
    size_t matrices = (size_t)layout_matrices(b->tensor), rows = p->rows / matrices, count = rows * p->cols, kept = 0;
    for (size_t i = 0; i < matrices; i++) {
        kept +=
            muon_update(model->params_memory + b->begin + i * count, model->m_memory + momentum + i * count,
                        model->grads_memory + b->begin + i * count, rows, p->cols, learning_rate,
                        model->info.settings.momentum, weight_decay, grad_scale, model->muon_memory, model->block_sums);
    }
    return kept;
}

Status gpt2_update(GPT2* model, float learning_rate, float beta1, float beta2, float epsilon, float weight_decay,
                   float grad_clip, int step) {
    uint64_t kept = 0; // weights that stay as they were
    float grad_scale = grad_clip_scale(model->info.grad_norm, grad_clip);
    status_clear();
    TRY(gpt2_check_training(&model->info));
    model->info.non_finite_weights = 0;
    int finite = isfinite(model->info.mean_loss) && isfinite(model->info.grad_norm);
    if (!finite) { return STATUS_OK; } // there is no update
    for (int i = 0; i < model->layout.num_buckets; i++) {
        const LayoutBucket* b = &model->layout.buckets[i];
        size_t begin = b->begin, count = b->count, moments = b->begin, second = b->begin - b->without;
        if (model->info.sharded) {
            layout_shard_part(&model->layout, i, model->info.rank, &begin, &count);
            moments = second = b->shard_begin;
        }
        if (b->tensor >= 0) {
            kept += count > 0 ? gpt2_muon(model, b, moments, learning_rate, weight_decay, grad_scale) : 0;
            continue;
        }
        size_t decay_end = b->begin + b->decay_end, decays = decay_end > begin ? decay_end - begin : 0;
        kept += adamw_update(model->params_memory + begin, model->m_memory + moments, model->v_memory + second,
                             model->grads_memory + begin, count, decays, learning_rate, beta1, beta2, epsilon,
                             weight_decay, grad_scale, step);
    }
    if (model->info.sharded) {
        TRY(gpt2_gather(model, model->params_memory));
        TRY(comm_tensor_merge(model->info.settings.comm, &kept, 1, COMM_UINT64, NULL));
    }
    model->info.non_finite_weights = kept;
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// The program

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "llmc/run/trainer.h"

// Step N is the state after N updates: the last one is evaluated and saved, and updates nothing.
int main(int argc, char** argv) {
    Trainer* t = trainer_start(argc, argv);
    for (int step = t->first_step; step <= t->num_steps && !t->ended; step++) {
        trainer_evaluate(t, step);   // the validation loss, and HellaSwag
        trainer_sample(t, step);     // some text
        trainer_checkpoint(t, step); // if one is due, or a signal asks for it
        if (step == t->num_steps || t->ended || !trainer_gradients(t, step)) { break; }
        trainer_update(t, step);
        trainer_report(t, step);
    }
    return trainer_close(t);
}
#endif

// ----------------------------------------------------------------------------
// Exchange between processes

// Bytes `begin` .. `begin`+`count` of floats, as a block to or from a rank
static CommBlock comm_block(int rank, float* memory, size_t begin, size_t count) {
    CommBlock b = {rank, memory + begin, count * sizeof(float)};
    return b;
}

// Reduce-scatter of a bucket: this process's part becomes the sum over all processes, in the order of the gradient tree.
static Status gpt2_sum_part(GPT2* model, int bucket) {
    const ParameterLayout* l = &model->layout;
    Exchange* x = &model->exchange;
    int rank = model->info.rank, size = model->info.size;
    size_t own, own_count, begin, count;
    layout_shard_part(l, bucket, rank, &own, &own_count);
    for (int r = 0; r < size; r++) { // what goes to itself lies there already
        float* piece = model->received + (size_t)(r - (r > rank)) * l->buckets[bucket].per_rank;
        if (r == rank) { piece = model->grads_memory + own; }
        layout_shard_part(l, bucket, r, &begin, &count);
        x->sent[r] = comm_block(r, model->grads_memory, begin, count);
        x->received[r] = comm_block(r, piece, 0, own_count);
        x->pieces[r] = piece;
    }
    TRY(comm_tensor_exchange(model->info.settings.comm, x->sent, size, x->received, size, NULL));
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < own_count; i += LAYOUT_BLOCK) {
        gradient_tree_sum_range(model->grads_memory + own, x->pieces, size, i, i + LAYOUT_BLOCK);
    }
    return STATUS_OK;
}

// All-gather of the shards of weights or gradients, bucket by bucket
static Status gpt2_gather(GPT2* model, float* memory) {
    const ParameterLayout* l = &model->layout;
    Exchange* x = &model->exchange;
    int size = model->info.size;
    size_t own, own_count, begin, count;
    for (int i = 0; i < l->num_buckets; i++) {
        layout_shard_part(l, i, model->info.rank, &own, &own_count);
        for (int r = 0; r < size; r++) {
            layout_shard_part(l, i, r, &begin, &count);
            x->sent[r] = comm_block(r, memory, own, own_count);
            x->received[r] = comm_block(r, memory, begin, count);
        }
        TRY(comm_tensor_exchange(model->info.settings.comm, x->sent, size, x->received, size, NULL));
    }
    return STATUS_OK;
}

// After the last micro-step: the gradients of this process's shard become sums over all processes; with zero 0 all do.
static Status gpt2_exchange_gradients(GPT2* model) {
    if (!gpt2_shares(model)) { return STATUS_OK; }
    for (int i = model->layout.num_buckets - 1; i >= 0; i--) { TRY(gpt2_sum_part(model, i)); }
    return model->info.sharded ? STATUS_OK : gpt2_gather(model, model->grads_memory);
}

// ----------------------------------------------------------------------------
// Building and freeing

static Status gpt2_plan_rows(GPT2Plan* plan, GPT2Config config, GPT2Settings settings, const ParameterLayout* layout,
                             int B, int T, int training) {
    // what a process takes beside its tensors, rounded up: code, libraries, and the threads' stacks and scratch
    plan_set(plan, PLAN_HOST_PROCESS, PLAN_HOST, (size_t)(4 + cpu_threads()) << 20);
    if (B == 0) { return STATUS_OK; }
    size_t activations =
        gpt2_activations(plan->activations, config, B, T, settings.recompute, training ? 1 : 0, sizeof(float), 0);
    plan_set(plan, PLAN_ACTIVATIONS, PLAN_HOST, activations);
    plan_set(plan, PLAN_BATCH, PLAN_HOST,
             settings.documents ? size_mul(size_mul((size_t)B, (size_t)T), sizeof(int)) : 0);
    if (!training) { return STATUS_OK; }
    size_t n = layout->elements, part = layout_largest_part(layout);
    size_t losses = size_mul((size_t)settings.micro_steps, (size_t)layout->size); // of all processes' micro-batches
    size_t further = settings.sum_any ? 0 : (size_t)gradient_buffers(settings.micro_steps, GPT2_IN_PLACE) - 1;
    plan_set(plan, PLAN_GRADIENT_TREE, PLAN_HOST, size_mul(n * sizeof(float), further));
    plan_set(plan, PLAN_RECEIVED, PLAN_HOST, size_mul((size_t)layout->size - 1, part * sizeof(float)));
    size_t C = (size_t)config.channels, muon = settings.muon ? muon_scratch(4 * C, C) : 0;
    plan_set(plan, PLAN_MUON, PLAN_HOST, muon * sizeof(float));
    plan_set(plan, PLAN_BLOCK_SUMS, PLAN_HOST, n / LAYOUT_BLOCK * sizeof(double) + losses * sizeof(float));
    return STATUS_OK;
}

Status gpt2_available_memory(GPT2Memory* memory) {
    HostMemory host = host_memory("");
    memset(memory, 0, sizeof(*memory));
    status_clear();
    memory->host_free = host.available, memory->host_limit = host.limit;
    return STATUS_OK;
}

// Memory for tensors: zeroed, and committed when touched. In huge pages where the system has them, because a GEMM reads rows
// that are pages apart. NULL, with the error recorded, where there is not enough, and after an error.
static void* tensor_alloc(size_t bytes, const char* what, const char* advice) {
    if (status_now() != STATUS_OK) { return NULL; }
    void* p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        status_fail("%s: %.1f MiB of memory asked for, more than there is; %s", what, (double)bytes / (1 << 20),
                    advice);
        return NULL;
    }
#ifdef MADV_HUGEPAGE
    madvise(p, bytes, MADV_HUGEPAGE); // a hint, which may be refused
#endif
    return p;
}

static void tensor_free(void* p, size_t bytes) {
    if (p != NULL) { munmap(p, bytes); }
}

// A row of the plan; NULL if it has no bytes, and after an error.
static void* row_alloc(GPT2* model, PlanRowId row) {
    size_t bytes = model->plan.rows[row].bytes;
    void* p = bytes > 0 ? tensor_alloc(bytes, model->plan.rows[row].name, PLAN_LESS_TO_TRAIN) : NULL;
    model->info.memory_bytes += p != NULL ? bytes : 0;
    return p;
}
static float* zeros_alloc(GPT2* model, PlanRowId row) { return (float*)row_alloc(model, row); }
static void row_free(GPT2* model, PlanRowId row, void* p) { tensor_free(p, model->plan.rows[row].bytes); }

static Status gpt2_build(GPT2* model) {
    model->params_memory = (float*)row_alloc(model, PLAN_WEIGHTS);
    return status_now();
}

static void exchange_create(Exchange* x, size_t size) {
    x->sent = (CommBlock*)calloc_check(size, 2 * sizeof(CommBlock) + sizeof(float*));
    x->received = x->sent + size;
    x->pieces = (const float**)(x->received + size);
}

static Status gpt2_allocate_rest(GPT2* model, int B, int T, int training) {
    (void)B, (void)T;
    model->starts = (int*)row_alloc(model, PLAN_BATCH);
    model->received = zeros_alloc(model, PLAN_RECEIVED);
    model->muon_memory = (float*)row_alloc(model, PLAN_MUON);
    model->block_sums = (double*)row_alloc(model, PLAN_BLOCK_SUMS);
    TRY(status_now());
    model->info.losses = model->acts.losses;
    if (training) { model->micro_losses = (float*)(void*)(model->block_sums + model->layout.elements / LAYOUT_BLOCK); }
    exchange_create(&model->exchange, (size_t)model->info.size);
    return STATUS_OK;
}

void gpt2_free(GPT2* model) {
    if (model == NULL) { return; }
    row_free(model, PLAN_WEIGHTS, model->params_memory);
    row_free(model, PLAN_GRADIENTS, model->grads_memory);
    row_free(model, PLAN_GRADIENT_TREE, model->tree_memory);
    row_free(model, PLAN_RECEIVED, model->received);
    row_free(model, PLAN_BLOCK_SUMS, model->block_sums);
    row_free(model, PLAN_MUON, model->muon_memory);
    row_free(model, PLAN_MOMENTS1, model->m_memory);
    row_free(model, PLAN_MOMENTS2, model->v_memory);
    row_free(model, PLAN_ACTIVATIONS, model->acts_memory);
    row_free(model, PLAN_BATCH, model->starts);
    row_free(model, PLAN_SNAPSHOT, model->snapshot);
    layout_free(&model->layout);
    free(model->exchange.sent); // and the rest
    free(model);
}

// ----------------------------------------------------------------------------
// Parameters, gradients, moments

static Status copy_host_in(char* memory, char* host, size_t bytes) {
    memcpy(memory, host, bytes);
    return STATUS_OK;
}

Status gpt2_copy_out(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes) {
    status_clear();
    return gpt2_copy_runs(model, block, gpt2_block(model, block), (char*)host, offset, bytes, copy_host_out);
}

Status gpt2_copy_in(GPT2* model, GPT2Block block, const void* host, size_t offset, size_t bytes) {
    status_clear();
    return gpt2_copy_runs(model, block, gpt2_block(model, block), (char*)(uintptr_t)host, offset, bytes, copy_host_in);
}

Status gpt2_set_parameters(GPT2* model, const float* params) {
    GPT2Config c = model->info.config;
    size_t V = (size_t)c.vocab_size, Vp = (size_t)c.padded_vocab_size, C = (size_t)c.channels;
    TRY(gpt2_copy_in(model, GPT2_WEIGHTS, params, 0, gpt2_block_bytes(model, GPT2_WEIGHTS)));
    float* wte = model->params_memory + layout_offset(&model->layout, PARAMETER_wte, 0);
    memset(wte + V * C, 0, (Vp - V) * C * sizeof(float));
    return STATUS_OK;
}

static void snapshot_copy(GPT2* model, void* to, const void* from, size_t bytes) {
    (void)model;
    memcpy(to, from, bytes);
}

// ----------------------------------------------------------------------------
// Finding faults

static int gpt2_scan(GPT2* model, const void* data, size_t count, size_t element) {
    (void)model, (void)element; // all numbers are floats
    return !all_finite((const float*)data, count);
}

Status gpt2_find_non_finite(GPT2* model, char* text, size_t size) {
    status_clear();
    gpt2_search(model, &model->info.mean_loss, &model->info.grad_norm, text, size);
    return STATUS_OK;
}

Status gpt2_gradient_digest(GPT2* model, uint64_t* digest) {
    status_clear();
    TRY(gpt2_check_training(&model->info));
    *digest = float_digest(model->grads_memory, model->layout.elements);
    return STATUS_OK;
}

// Every function has finished when it returns.
Status gpt2_synchronize(GPT2* model) {
    (void)model;
    return STATUS_OK;
}
Status gpt2_wait_update(GPT2* model) { return gpt2_synchronize(model); }

// ----------------------------------------------------------------------------
// The machine

Status gpt2_prepare_threads(void) {
    status_clear();
    return cpu_threads_prepare();
}

void* gpt2_host_alloc(size_t bytes) { return malloc(bytes); }
void gpt2_host_free(void* memory) { free(memory); }

double gpt2_peak_flops(const GPT2* model) {
    (void)model;
    return 0.0;
}

#if defined(__clang__)
#define COMPILER "clang", __clang_major__, __clang_minor__, __clang_patchlevel__
#else
#define COMPILER "GCC", __GNUC__, __GNUC_MINOR__, __GNUC_PATCHLEVEL__
#endif
#if defined(__FMA__) || defined(__aarch64__)
#define MULTIPLY_ADD "fused multiply-add"
#else
#define MULTIPLY_ADD "no fused multiply-add"
#endif

Status gpt2_numerics(GPT2Numerics* n, GPT2Config config, GPT2Settings settings, int B, int T) {
    (void)config, (void)settings, (void)B, (void)T;
    memset(n, 0, sizeof(*n));
    strcpy(n->precision, "fp32");
    strcpy(n->gemm, "our own");
    strcpy(n->attention, "flash2 forward, flash2 backward");
    snprintf(n->compiler, sizeof(n->compiler), "%s %d.%d.%d, " MULTIPLY_ADD, COMPILER);
    snprintf(n->device, sizeof(n->device), "CPU, vectors of %d floats", LANES);
    snprintf(n->machine, sizeof(n->machine), "CPU, %d threads, vectors of %d floats", cpu_threads(), LANES);
    return STATUS_OK;
}

void gpt2_doctor(Doctor* doctor) { cpu_doctor(doctor, gpt2_prepare_threads()); }

// Functions that only the GPU trainer needs
void gpt2_log_device(const GPT2* model) { (void)model; }
int gpt2_num_devices(void) { return 0; }
void gpt2_use_device(int device) { (void)device; }
void gpt2_range_begin(const char* name) { (void)name; }
void gpt2_range_end(void) {}
int gpt2_num_scales(const GPT2* model) { return (void)model, 0; }
Status gpt2_get_scales(GPT2* model, float* scales) { return (void)model, (void)scales, STATUS_OK; }
Status gpt2_set_scales(GPT2* model, const float* scales) { return (void)model, (void)scales, STATUS_OK; }
