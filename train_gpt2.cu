/*
The GPU trainer: GPT-2 in bf16 (fp32 master weights, fp32 gradients) or, with PRECISION=FP32, in fp32.

This file is the model: forward, backward, update, the training loop, and then what they rest on: memory and copies.
llmc/model/gpt2_model.h documents its functions; those that it shares with the CPU trainer are in gpt2_common.h. Attention and
the GEMM groups are the variants that dev/cuda/attention/attention.cuh and dev/cuda/matmul/matmul.cuh choose; everything else is
in llmc/. No floating-point sum uses atomics in an open order, so the same seed gives the same bits.
Several processes, each with a GPU, share the model through llmc/exchange/buckets.cuh. The parts of the loop are in llmc/run,
which the CPU trainer shares, too.
*/
#include "llmc/model/gpt2_model.h"
#include "llmc/cuda/common.cuh"
#include "llmc/cuda/matmul.cuh"
#include "llmc/cuda/encoder.cuh"
#include "llmc/cuda/layernorm.cuh"
#include "dev/cuda/attention/attention.cuh"
#include "dev/cuda/doctor.cuh"
#include "dev/cuda/matmul/matmul.cuh"
#include "llmc/cuda/classifier.cuh"
#include "llmc/cuda/adamw.cuh"
#include "llmc/exchange/buckets.cuh"
#include "llmc/exchange/comm_nccl.cuh"
#include "llmc/cuda/global_norm.cuh"
#include "llmc/model/gpu_peaks.h"
#include "llmc/cuda/muon.cuh"
#include "llmc/cuda/nvtx.cuh"
#include "llmc/cuda/pass_graph.cuh"
#include "llmc/cuda/qkv_bias.cuh"

// The function that opens the CommDevice of several processes; tests have their own.
#ifndef GPT2_OPEN_DEVICE
#define GPT2_OPEN_DEVICE nccl_open
#endif

#define GPT2_MEMORY PLAN_DEVICE
#define GPT2_IN_PLACE 1

GPT2_DECLARE_PARAMETERS(ParameterTensors, floatX);
GPT2_DECLARE_PARAMETERS(GradientTensors, float);
GPT2_DECLARE_ACTIVATIONS(ActivationTensors, floatX);

// Single numbers, on the device and page-locked on the host
struct Scalars {
    float loss; // of the step, in nats; 0 before its last gpt2_backward or, with several processes, gpt2_grad_norm
    float norm; // of the step's gradients; 0 before gpt2_grad_norm
    unsigned long long non_finite_weights, digest;
    unsigned first_non_finite;
    // fp8
    int saturated_steps;
    CodeCounts codes; // of the step, in this process
};

struct GPT2 {
    GPT2Info info;
    GPT2Plan plan; // the sizes of all allocations
    ParameterLayout layout;
    // (info.elements), on the device
    ParameterTensors params; // those of layer 0
    floatX* params_memory;
    float* grads_memory; // the step's sums: buffer 0 of the gradient tree
    // the gradient buffers of the micro-steps
    GradientLeaf leaf;     // of the last backward pass (gradient_tree.h)
    GradientTensors grads; // those of layer 0, in the leaf's buffer
    float* tree_memory;    // (buffers - 1, info.elements) all buffers but buffer 0
    float* wte_memory;     // wte's gradients of a leaf that is added to others; or NULL
    // (info.shard_elements)
    float* m_memory;       // AdamW's first moments, Muon's momentum
    float* v_memory;       // AdamW's second moments (info.second_elements)
    float* master_weights; // fp32 copy of the weights, or NULL
    void* muon_scratch;    // or NULL
    // the norm and the loss of a step
    float* block_sums;   // (blocks) sums of squares, followed by the losses of all processes' micro-batches
    float* micro_losses; // (micro_steps) losses of this process's micro-batches, each a sum over tokens
    int micro_steps;     // of the last step, in this process
    float loss_scale;    // the step's mean loss = loss_scale * the sum of them
    // several processes
    BucketExchange exchange;
    int local; // gpt2_set_local
    // activations of a batch of at most B rows of T tokens
    ActivationTensors acts;
    void* acts_memory;
    // a batch on the device, and its positions sorted by token on both sides
    int *inputs, *targets;
    TokenOrder sorted, sorted_host;
    TokenOrder positions, positions_host; // the same by position in the document; unique = 0: positions are in the row
    int *token_counts, *token_positions;  // on the host: (V or T) counts, (B,T) positions
    int* starts;                          // (B,T) where the documents of a batch begin; NULL: rows are one document
    const int* documents;                 // starts, or NULL where the last forward pass did not heed them
    cudaEvent_t batch_copied;             // then the host may overwrite its buffers
    cudaEvent_t updated;                  // then scalars_host has the results of the last update
    // results
    Scalars *scalars, *scalars_host;
    float* logits_row; // (Vp), on the device
    void* snapshot;    // copies of the blocks after a step, page-locked on the host, or NULL
    int snapshot_taken;
    // the GPU
    cudaDeviceProp device;
    cudaStream_t stream;
    Matmul matmul;
    PassGraphs graphs; // of passes over full batches
    // fp8
    Fp8 fp8;
    void* fp8_memory;      // scales, codes of weights and, where acts.output has no room for them, of operands; or NULL
    Fp8Inputs* fp8_inputs; // (L + 1), on the host
    int fp8_begins;        // 1: the next gpt2_forward is a step's first
    int fp8_blocks;        // the first so many blocks' weights have this step's codes
};

#include "llmc/model/gpt2_common.h"

// Defined below, under "Parameters, gradients, moments" and "Planning"
static Status device_copy(void* to, const void* from, size_t bytes, cudaMemcpyKind direction);
static size_t gpt2_scratch_bytes(GPT2Config config, GPT2Settings settings, int B, int T);

// The stream of all of the model's work, for generate_gpt2.cu
cudaStream_t gpt2_stream(const GPT2* model) { return model->stream; }

// The variants that -ge asks for by name; NULL: those of matmul/choice.h
static const char* gpt2_fc_variant(GPT2Settings settings) {
    return settings.gelu_fusion >= 1 ? "cublaslt_epilogue" : NULL;
}
static const char* gpt2_dgelu_variant(GPT2Settings settings) {
    return settings.gelu_fusion >= 2 ? "cublaslt_epilogue" : NULL;
}

// The compute capability by which the tables of variants choose on the selected GPU, 90 for 9.0; 0 and an error without one
static int gpt2_capability(void) {
    DeviceCode code;
    device_code(&code);
    return code.capability;
}

// The context of the GEMM groups of a layer
static MatmulGroups gpt2_groups(GPT2* model, void* scratch, int fp8, int layer) {
    return {{&model->matmul, scratch}, gpt2_capability(), model->stream, fp8 ? &model->fp8 : NULL, layer, 0};
}

// ----------------------------------------------------------------------------
// Forward

// Copies a batch's tokens to the device in stream order. Forward waits for the previous batch's copy, so a host buffer is free
// once the second next forward pass has begun: the loader has three.
static void gpt2_load_batch(GPT2* model, int* device, const int* host, size_t BT) {
    cuda_try(cudaMemcpyAsync(device, host, BT * sizeof(int), cudaMemcpyHostToDevice, model->stream));
}

// Runs launch() on the model's stream for the last forward pass's batch, as a graph if possible: not with several processes,
// whose passes wait for the exchange stream, nor for batches of other sizes, which are rare.
template <class Launch> static Status gpt2_run_pass(GPT2* model, PassKey key, const Launch& launch) {
    const GPT2Info* info = &model->info;
    const int cold = model->fp8_memory != NULL && model->fp8.cold; // the pass is another one from the next step on
    if (info->settings.graphs && !cold && info->size == 1 && info->last_B == info->B && info->last_T == info->T) {
        return pass_graph_run(&model->graphs, key, model->stream, launch);
    }
    launch();
    return status_now();
}

// What fc stores in fch for dgelu: the derivative of GELU if act is kept, too, else the pre-activation.
struct KeptByFc {
    floatX *pre, *derivative; // one of them is NULL
};
static KeptByFc gpt2_kept_by_fc(const GPT2* model, const MatmulGroups* groups, floatX* fch, int BT) {
    const GPT2Settings settings = model->info.settings;
    const int C = model->info.config.channels;
    const bool derivative =
        settings.recompute == 0 && !settings.fp8 &&
        matmul_has_derivative(groups, gpt2_fc_variant(settings), gpt2_dgelu_variant(settings), BT, C);
    return derivative ? KeptByFc{NULL, fch} : KeptByFc{fch, NULL};
}

// Makes the model's stream wait for the weights that all processes have updated.
static void gpt2_wait_weights(GPT2* model) {
    for (int layer = -1; layer < model->info.config.num_layers; layer++) {
        exchange_wait_weights(&model->exchange, layer);
    }
}

// A linear layer's weights (OUT,IN), in the first of the blocks that are quantised together
struct Fp8Weights {
    const floatX* weight;
    int IN, OUT;
};
// The magnitudes, scales and codes of the weights of some linear layers, in `blocks` blocks from block `first` on
static void gpt2_fp8_weights(GPT2* model, int first, int blocks, std::initializer_list<Fp8Weights> linears) {
    Fp8* f = &model->fp8;
    const int at = first * FP8_LINEARS, count = blocks * FP8_LINEARS;
    const size_t stride = model->layout.layer_stride;
    for (bool collect : {true, false}) {
        for (const Fp8Weights& w : linears) {
            fp8_weights(f, first, blocks, stride, collect, w.weight, w.IN, w.OUT, model->stream);
        }
        if (!collect) { continue; }
        scales_of(f->weight_scales + at, (float*)f->weight_amax + at, 1, count, 1, model->stream);
    }
}

// In fp8, before block `block`, unless this step has them: the codes of the weights of the group of blocks that gpt2_update
// gathers together and that begins there, as many as come before it; in one process, whose passes are graphs, of all.
static void gpt2_fp8_blocks(GPT2* model, int block) {
    const int L = model->info.config.num_layers, C = model->info.config.channels;
    if (block < model->fp8_blocks) { return; }
    const int end = model->info.size == 1 || 2 * block > L ? L : block == 0 ? 1 : 2 * block;
    const ParameterTensors w = gpt2_layer_parameters(model, block);
    for (int i = block; i < end; i++) { exchange_wait_weights(&model->exchange, i); }
    gpt2_fp8_weights(model, block, end - block,
                     {{w.qkvw, C, 3 * C}, {w.attprojw, C, C}, {w.fcw, C, 4 * C}, {w.fcprojw, 4 * C, C}});
    model->fp8_blocks = end;
}

// Before a step's first forward pass in fp8: no magnitudes and no counts yet; the codes of the classifier's weights
static void gpt2_begin_fp8(GPT2* model) {
    Fp8* f = &model->fp8;
    const GPT2Config c = model->info.config;
    exchange_wait_weights(&model->exchange, -1);
    fp8_clear(f, model->stream);
    gpt2_fp8_weights(model, f->layers, 1, {{model->params.wte, c.channels, c.padded_vocab_size}});
    model->fp8_begins = 0, model->fp8_blocks = 0;
    if (model->info.size == 1) { gpt2_fp8_blocks(model, 0); }
}

// What counts positions, of the last forward pass: its documents, or NULL for rows
static const int* gpt2_positions(const GPT2* model) { return model->info.settings.positions ? model->documents : NULL; }

// From the tokens on the device to lnf, from which the functions below and gpt2_backward compute the logits
static void gpt2_forward_layers(GPT2* model, int B, int T, int fp8) {
    GPT2Config c = model->info.config;
    ActivationTensors a = model->acts;
    ParameterTensors p = model->params;
    int L = c.num_layers, C = c.channels, NH = c.num_heads, HS = C / NH;
    size_t BT = (size_t)B * T;
    cudaStream_t stream = model->stream;
    exchange_wait_weights(&model->exchange, -1);
    encoder_forward(a.encoded, model->inputs, gpt2_positions(model), p.wte, p.wpe, B, T, C, stream);
    exchange_wait_weights(&model->exchange, 0);
    ParameterTensors w = gpt2_layer_parameters(model, 0);
    ActivationTensors y = gpt2_layer_activations(model, 0);
    MatmulGroups groups = gpt2_groups(model, a.lnf, fp8, 0); // lnf (B,T,C) is written last: until then it is scratch
    floatX* ln1 = fp8 && !model->fp8.cold ? NULL : y.ln1;    // in fp8 it is computed where it is quantised
    layernorm_forward(ln1, y.ln1_mean, y.ln1_rstd, a.encoded, w.ln1w, w.ln1b, BT, C, stream,
                      fp8 ? fp8_ln_row_scales(&model->fp8) : NULL);
    for (int i = 0; i < L; i++) {
        NvtxRange layer_range("forward layer", i);
        groups.layer = i;
        if (fp8) { gpt2_fp8_blocks(model, i); }
        // residual2 = inp + attproj(attention(ln1(inp)));  ln2 of it
        matmul_qkv(&groups, y.qkv, y.ln1, w.qkvw, w.qkvb, BT, C);
        attention_forward_documents(y.atty, y.l, y.m, y.qkv, model->documents, B, T, NH, HS, stream);
        matmul_residual(&groups, y.residual2, y.ln2, y.ln2_mean, y.ln2_rstd, gpt2_layer_input(model, i), y.atty,
                        w.attprojw, w.attprojb, w.ln2w, w.ln2b, BT, C, C);
        // residual3 = residual2 + fcproj(gelu(fc(ln2)));  the next layer's ln1 of it, or the final LayerNorm
        const KeptByFc kept = gpt2_kept_by_fc(model, &groups, y.fch, BT);
        matmul_fc(&groups, gpt2_fc_variant(model->info.settings), kept.pre, kept.derivative, y.fch_gelu, y.ln2, w.fcw,
                  w.fcb, BT, C);
        if (i + 1 == L) {
            matmul_residual(&groups, y.residual3, a.lnf, a.lnf_mean, a.lnf_rstd, y.residual2, y.fch_gelu, w.fcprojw,
                            w.fcprojb, p.lnfw, p.lnfb, BT, 4 * C, C);
            break;
        }
        ActivationTensors below = y;
        ParameterTensors next = gpt2_layer_parameters(model, i + 1);
        y = gpt2_layer_activations(model, i + 1);
        exchange_wait_weights(&model->exchange, i + 1);
        matmul_residual(&groups, below.residual3, y.ln1, y.ln1_mean, y.ln1_rstd, below.residual2, below.fch_gelu,
                        w.fcprojw, w.fcprojb, next.ln1w, next.ln1b, BT, 4 * C, C);
        w = next;
    }
}

// A pass with documents has other kernels, and so a graph of its own: its number for PassKey
static int gpt2_pass_of_documents(const GPT2* model, LastPass pass) { return pass + (model->documents ? 16 : 0); }

// fp8 is for training: PASS_FORWARD, but not PASS_EVALUATE.
static Status gpt2_forward_pass(GPT2* model, LastPass pass, const int* inputs, int B, int T, int by_documents) {
    size_t BT = (size_t)B * T;
    status_clear();
    TRY(gpt2_check_batch(&model->info, B, T));
    TRY(gpt2_check_tokens(&model->info, inputs, BT));
    NvtxRange range("forward");
    const int fp8 = model->fp8_memory != NULL && pass == PASS_FORWARD;
    if (fp8 && (B != model->info.B || T != model->info.T)) {
        return status_fail("a model allocated for %d x %d tokens cannot train on %d x %d in fp8", model->info.B,
                           model->info.T, B, T);
    }
    model->info.last_B = B, model->info.last_T = T;
    model->info.last_pass = pass;
    TRY(cuda_try(cudaEventSynchronize(model->batch_copied))); // the host is at most one batch ahead of the GPU
    gpt2_load_batch(model, model->inputs, inputs, BT);
    cuda_try(cudaEventRecord(model->batch_copied, model->stream));
    if (fp8 && model->fp8_begins) { gpt2_begin_fp8(model); }
    model->documents = by_documents ? model->starts : NULL;
    if (by_documents) {
        document_starts(model->starts, model->inputs, model->info.settings.separator, B, T, model->stream);
    }
    return gpt2_run_pass(model, {gpt2_pass_of_documents(model, fp8 ? PASS_FORWARD : PASS_EVALUATE), {0, 0, 0}, 0},
                         [&] { gpt2_forward_layers(model, B, T, fp8); });
}

Status gpt2_forward(GPT2* model, const int* inputs, int B, int T) {
    return gpt2_forward_pass(model, PASS_FORWARD, inputs, B, T, model->info.settings.documents >= 1);
}

Status gpt2_evaluate(GPT2* model, const int* inputs, int B, int T) {
    return gpt2_forward_pass(model, PASS_EVALUATE, inputs, B, T, model->info.settings.documents >= 1);
}

Status gpt2_get_logits(GPT2* model, float* logits, int t) {
    GPT2Config c = model->info.config;
    status_clear();
    TRY(gpt2_check_row(&model->info, t));
    NvtxRange range("logits");
    matmul_logits(&model->matmul, model->logits_row, model->acts.lnf + (size_t)t * c.channels, model->params.wte, 1,
                  c.channels, c.padded_vocab_size);
    TRY(status_now());
    return device_copy(logits, model->logits_row, c.vocab_size * sizeof(float), cudaMemcpyDeviceToHost);
}

constexpr int EVALUATION_ROWS = 1024; // of fp32 logits at a time

// acts.losses += the losses of the last forward pass's batch, for the targets on the device. From logits in fp32: those in bf16
// are rounded by up to 2^-9 of themselves. Some rows at a time, in acts.output, or of a batch of one token, which has no room
// for a row in fp32, in logits_row.
static void gpt2_losses(GPT2* model) {
    const GPT2Info* info = &model->info;
    ActivationTensors a = model->acts;
    const int BT = model->info.last_B * model->info.last_T, C = info->config.channels,
              Vp = info->config.padded_vocab_size;
    const size_t room = (size_t)info->B * info->T * sizeof(floatX) / sizeof(float); // rows
    const int rows = room > EVALUATION_ROWS ? EVALUATION_ROWS : room > 0 ? (int)room : 1;
    float* logits = room > 0 ? (float*)a.output : model->logits_row;
    NvtxRange range("losses");
    for (int row = 0; row < BT; row += rows) {
        const int n = BT - row < rows ? BT - row : rows;
        matmul_logits(&model->matmul, logits, a.lnf + (size_t)row * C, model->params.wte, n, C, Vp);
        classifier_losses(a.losses + row, logits, model->targets + row, n, info->config.vocab_size, Vp, model->stream);
    }
}

Status gpt2_validate(GPT2* model, float* loss, const int* inputs, const int* targets, int B, int T) {
    GPT2Info* info = &model->info;
    size_t BT = (size_t)B * T;
    cudaStream_t stream = model->stream;
    status_clear();
    TRY(gpt2_check_batch(info, B, T)); // and the targets: a forward pass replaces the batch before it
    TRY(gpt2_check_tokens(info, targets, BT));
    TRY(gpt2_forward_pass(model, PASS_EVALUATE, inputs, B, T, info->settings.documents >= 2));
    model->info.last_pass = PASS_VALIDATE;
    gpt2_load_batch(model, model->targets, targets, BT);
    cuda_try(cudaMemsetAsync(model->acts.losses, 0, BT * sizeof(float), stream));
    gpt2_losses(model);
    cuda_try(cudaMemcpyAsync(info->losses, model->acts.losses, BT * sizeof(float), cudaMemcpyDeviceToHost, stream));
    TRY(cuda_try(cudaStreamSynchronize(stream)));
    double sum = 0.0;
    for (size_t i = 0; i < BT; i++) { sum += info->losses[i]; }
    *loss = (float)(sum / (double)BT);
    return status_now();
}

// ----------------------------------------------------------------------------
// Backward

// Bytes of the factors of the logits' gradient, with which scratch begins; the classifier's own scratch follows.
static size_t gpt2_factors_bytes(size_t BT) { return size_round_up(BT * sizeof(float), 256); }

// The beginning of scratch in a layer, before the scratch of its kernels: the inputs of qkv_bias_backward. At 0 the column sums
// of the gradient of attproj's output, at dq_sums the partial sums of dQ.
struct QkvBiasSums {
    size_t dq_sums, end; // in bytes
};
static QkvBiasSums gpt2_qkv_bias_sums(int B, int T, int NH, int C, const DeviceCode* gpu = NULL) {
    const size_t rows = attention_dq_sum_rows(B, T, NH, C / NH, gpu), dq_sums = size_round_up(C * sizeof(float), 256);
    return {dq_sums, size_round_up(dq_sums + rows * C * sizeof(float), 256)};
}

// Gradients of vectors, and of wpe, are always added to the leaf's buffer: so for a leaf that overwrites they are zeroed first.
// Its GEMMs overwrite. In a layer the vectors are stored after the matrices, ln1w first.
static void gpt2_clear_vectors(GPT2* model) {
    const ParameterLayout* l = &model->layout;
    float* buffer = gpt2_gradients(model, model->leaf.buffer);
    size_t begin, count, vectors = layout_offset(l, PARAMETER_ln1w, 0);
    layout_group_range(l, 0, &begin, &count);
    cuda_try(cudaMemset2DAsync(buffer + vectors, l->layer_stride * sizeof(float), 0,
                               (begin + count - vectors) * sizeof(float), l->config.num_layers, model->stream));
    layout_group_range(l, LAYOUT_REST, &begin, &count);
    cuda_try(cudaMemsetAsync(buffer + begin, 0, count * sizeof(float), model->stream));
}

// After the last kernel that writes a group's gradients: adds up the buffers of the leaf's subtrees and, in the last
// micro-step, starts the exchange with the other processes, which overlaps with the rest of the pass.
static void gpt2_finish_gradients(GPT2* model, int group, int last) {
    const float* x[GRADIENT_TREE_DEPTH + 1];
    size_t begin, count;
    int n = 0;
    layout_group_range(&model->layout, group, &begin, &count);
    for (int b = model->leaf.first; b <= model->leaf.buffer; b++) { x[n++] = gpt2_gradients(model, b) + begin; }
    if (group == LAYOUT_WTE && model->leaf.accumulate && model->wte_memory != NULL) { x[n++] = model->wte_memory; }
    if (n > 1) { carry_add(gpt2_gradients(model, model->leaf.first) + begin, x, n, count, model->stream); }
    if (last && gpt2_shares(model)) {
        exchange_gradients(&model->exchange, model->grads_memory, group, !model->info.settings.zero);
    }
}

// Turns acts.dresidual from the gradient of a layer's output into the gradient of its input, and computes the gradients of
// the layer's parameters; but fcprojb's is computed by the LayerNorm backward of the layer above, which writes dresidual.
// Weight gradients come before input gradients: the next kernel reads the latter, from L2.
static void gpt2_backward_layer(GPT2* model, int i, int B, int T) {
    NvtxRange range("backward layer", i);
    ActivationTensors y = gpt2_layer_activations(model, i);
    ParameterTensors w = gpt2_layer_parameters(model, i);
    GradientTensors g = gpt2_layer_gradients(model, i);
    int C = model->info.config.channels, NH = model->info.config.num_heads, BT = B * T;
    int fp8 = model->info.settings.fp8, recompute = model->info.settings.recompute, accumulate = model->leaf.accumulate;
    int ln = recompute >= 2 && !(fp8 && !model->fp8.cold); // 1: ln1 and ln2 are needed, and recomputed
    cudaStream_t stream = model->stream;
    const QkvBiasSums sums = gpt2_qkv_bias_sums(B, T, NH, C);
    float *dresidual_sum = (float*)y.scratch, *dq_sums = (float*)((char*)y.scratch + sums.dq_sums);
    void* scratch = (char*)y.scratch + sums.end;
    MatmulGroups groups = gpt2_groups(model, scratch, fp8, i);
    const floatX* inp = gpt2_layer_input(model, i);

    // MLP: fcproj and GELU, fc, ln2
    const KeptByFc kept = gpt2_kept_by_fc(model, &groups, y.fch, BT);
    matmul_dgelu(&groups, gpt2_dgelu_variant(model->info.settings), y.dbt4c, recompute >= 1 ? y.fch_gelu : NULL, g.fcb,
                 y.dresidual, w.fcprojw, kept.pre, kept.derivative, BT, C);
    if (ln) { layernorm_forward(y.ln2, y.ln2_mean, y.ln2_rstd, y.residual2, w.ln2w, w.ln2b, BT, C, stream); }
    matmul_weight(&groups, g.fcprojw, y.dresidual, y.fch_gelu, accumulate, BT, 4 * C, C);
    matmul_weight(&groups, g.fcw, y.dbt4c, y.ln2, accumulate, BT, C, 4 * C);
    matmul_input(&groups, y.dbtc, y.dbt4c, w.fcw, BT, C, 4 * C);
    layernorm_backward(y.dresidual, g.ln2w, g.ln2b, g.attprojb, dresidual_sum, y.dbtc, y.residual2, w.ln2w, y.ln2_mean,
                       y.ln2_rstd, (float*)scratch, BT, C, 0, stream);

    // attention: attproj, attention, qkv, ln1; dqkv (B,T,3,NH,HS) takes the first three quarters of dbt4c
    floatX* dqkv = y.dbt4c;
    matmul_weight(&groups, g.attprojw, y.dresidual, y.atty, accumulate, BT, C, C);
    matmul_input(&groups, y.dbtc, y.dresidual, w.attprojw, BT, C, C);
    const int dq_rows = attention_backward_documents_with_sums(dqkv, dq_sums, y.dbtc, y.qkv, y.atty, y.l, y.m,
                                                               model->documents, scratch, B, T, NH, C / NH, stream);
    qkv_bias_backward(g.qkvb, dq_sums, w.attprojw, dresidual_sum, dq_rows, C, stream);
    if (ln) { layernorm_forward(y.ln1, y.ln1_mean, y.ln1_rstd, inp, w.ln1w, w.ln1b, BT, C, stream); }
    matmul_weight(&groups, g.qkvw, dqkv, y.ln1, accumulate, BT, C, 3 * C);
    matmul_input(&groups, y.dbtc, dqkv, w.qkvw, BT, C, 3 * C);
    float* fcprojb_below = i > 0 ? gpt2_layer_gradients(model, i - 1).fcprojb : NULL;
    layernorm_backward(y.dresidual, g.ln1w, g.ln1b, fcprojb_below, NULL, y.dbtc, inp, w.ln1w, y.ln1_mean, y.ln1_rstd,
                       (float*)scratch, BT, C, 0, stream);
}

// Adds the gradients of both embeddings. The host sorts the tokens while the GPU works. The previous micro-step's copies of the
// sorted arrays are complete: this batch's copy, which is waited for, is behind them in the stream.
static Status gpt2_backward_embedding(GPT2* model, float* dwte, const int* inputs, int B, int T) {
    NvtxRange range("backward embedding");
    const GPT2Info* info = &model->info;
    int BT = B * T;
    TRY(cuda_try(cudaEventSynchronize(model->batch_copied)));
    auto sort = [&](TokenOrder* device, TokenOrder* host, const int* keys, int most) {
        sort_tokens(host, model->token_counts, keys, BT, most);
        device->unique = host->unique;
        cuda_try(cudaMemcpyAsync(device->buckets, host->buckets, (host->unique + 1) * sizeof(int2),
                                 cudaMemcpyHostToDevice, model->stream));
        cuda_try(cudaMemcpyAsync(device->order, host->order, (size_t)BT * sizeof(int), cudaMemcpyHostToDevice,
                                 model->stream));
    };
    sort(&model->sorted, &model->sorted_host, inputs, info->config.vocab_size);
    model->positions.unique = 0;
    if (gpt2_positions(model) != NULL) {
        document_positions(model->token_positions, inputs, info->settings.separator, BT, T);
        sort(&model->positions, &model->positions_host, model->token_positions, T);
    }
    encoder_backward(dwte, model->grads.wpe, model->acts.dresidual, model->sorted, model->positions, B, T,
                     info->config.channels, model->stream);
    return status_now();
}

// From lnf: the losses, the gradient of lnf in acts.dbtc, and that of wte. Where the classifier leaves the rows of dlogits
// without their factors, these are applied to the rows of dlogits wte and, for dlogits^T lnf, to the rows of lnf.
static void gpt2_backward_logits(GPT2* model, float* dwte, int accumulate, float gradient_scale, int BT) {
    GPT2Config c = model->info.config;
    ActivationTensors a = model->acts;
    int C = c.channels, Vp = c.padded_vocab_size;
    float* factors = (float*)a.scratch; // (B,T)
    MatmulGroups groups = gpt2_groups(model, (char*)a.scratch + gpt2_factors_bytes(BT), 0, 0);
    bool scaled = matmul_classifier(&groups, a.output, factors, a.losses, a.lnf, model->params.wte, model->targets,
                                    gradient_scale, BT, C, c.vocab_size, Vp);
    floatX* inp = scaled ? a.dresidual : a.lnf; // dresidual is unused until LayerNorm's backward
    if (scaled) { scale_rows(inp, a.lnf, factors, BT, C, model->stream); }
    matmul_backward_weight(&model->matmul, dwte, a.output, inp, accumulate, BT, C, Vp);
    matmul_backward_input(&model->matmul, a.dbtc, a.output, model->params.wte, NULL, BT, C, Vp);
    if (scaled) { scale_rows(a.dbtc, a.dbtc, factors, BT, C, model->stream); }
}

// The same in fp8, some rows at a time, which leaves room in acts.output for the operands.
static void gpt2_backward_logits_fp8(GPT2* model, float* dwte, int accumulate, float gradient_scale, int BT) {
    const GPT2Config c = model->info.config;
    const ActivationTensors a = model->acts;
    const int C = c.channels, Vp = c.padded_vocab_size, rows = fp8_classifier_rows(BT);
    MatmulGroups groups = gpt2_groups(model, a.scratch, 1, c.num_layers);
    for (int row = 0; row < BT; row += rows) {
        const size_t at = (size_t)row * C;
        groups.row = row;
        matmul_classifier(&groups, a.output, NULL, a.losses + row, a.lnf + at, model->params.wte, model->targets + row,
                          gradient_scale, rows, C, c.vocab_size, Vp);
        matmul_weight(&groups, dwte, a.output, a.lnf + at, accumulate || row > 0, rows, C, Vp);
        matmul_input(&groups, a.dbtc + at, a.output, model->params.wte, rows, C, Vp);
    }
}

// Sums the micro-batch's losses; after the last one sets loss_scale and, with one process, computes the step's loss.
static void gpt2_sum_losses(GPT2* model, int grad_accum_steps, int micro_step) {
    size_t BT = (size_t)model->info.last_B * model->info.last_T;
    sum_losses(&model->micro_losses[micro_step], model->acts.losses, BT, model->stream);
    if (micro_step < grad_accum_steps - 1) { return; }
    int processes = gpt2_shares(model) ? model->info.size : 1;
    model->micro_steps = grad_accum_steps;
    model->loss_scale = (float)(1.0 / ((double)BT * (double)grad_accum_steps * (double)processes));
    if (processes > 1) { return; }
    losses_mean(&model->scalars->loss, model->micro_losses, grad_accum_steps, model->loss_scale, model->stream);
}

// The backward pass from the targets on the device to the gradient of the first layer's input, in acts.dresidual. last: the
// last micro-step. dwte = or, with `accumulate`, += the classifier's gradient of wte.
static void gpt2_backward_layers(GPT2* model, float* dwte, int accumulate, float scale, int B, int T, int last) {
    ActivationTensors a = model->acts;
    GradientTensors g = model->grads;
    int BT = B * T, L = model->info.config.num_layers, C = model->info.config.channels;
    const auto backward_logits = model->info.settings.fp8 ? gpt2_backward_logits_fp8 : gpt2_backward_logits;
    backward_logits(model, dwte, accumulate, scale, BT);
    const floatX* last_residual = gpt2_layer_input(model, L); // the last layer's output
    layernorm_backward(a.dresidual, g.lnfw, g.lnfb, gpt2_layer_gradients(model, L - 1).fcprojb, NULL, a.dbtc,
                       last_residual, model->params.lnfw, a.lnf_mean, a.lnf_rstd, a.scratch, BT, C, 1, model->stream);
    for (int i = L - 1; i >= 0; i--) {
        gpt2_backward_layer(model, i, B, T);
        gpt2_finish_gradients(model, i, last);
    }
}

Status gpt2_backward(GPT2* model, const int* inputs, const int* targets, int grad_accum_steps, int micro_step) {
    GPT2Info* info = &model->info;
    int B = model->info.last_B, T = model->info.last_T, BT = B * T, last = micro_step == grad_accum_steps - 1;
    cudaStream_t stream = model->stream;
    status_clear();
    TRY(gpt2_check_backward(info, grad_accum_steps, micro_step));
    TRY(gpt2_check_tokens(info, inputs, BT));
    TRY(gpt2_check_tokens(info, targets, BT));
    size_t scratch = gpt2_scratch_bytes(info->config, info->settings, B, T); // a smaller batch may need more of it
    TRY(status_now());
    if (scratch > model->plan.activations[ACTIVATION_scratch].bytes) {
        return status_fail("the scratch of a model for %d x %d tokens is too small for %d x %d", info->B, info->T, B,
                           T);
    }
    NvtxRange range("backward");
    model->info.last_pass = PASS_BACKWARD;
    if (micro_step == 0) {
        cuda_try(cudaMemsetAsync(model->scalars, 0, 2 * sizeof(float), stream)); // loss and norm
    }
    model->leaf = gpt2_leaf(info->settings, grad_accum_steps, micro_step);
    layout_point(&model->grads, &model->layout, gpt2_gradients(model, model->leaf.buffer), sizeof(float), 0);
    if (!model->leaf.accumulate) { gpt2_clear_vectors(model); }
    cuda_try(cudaMemsetAsync(model->acts.losses, 0, (size_t)BT * sizeof(float), stream));
    gpt2_load_batch(model, model->targets, targets, BT);
    // the loss is a mean over tokens and micro-batches; their number is exact in fp64, however it is divided among processes
    float scale = (float)(1.0 / ((double)BT * (double)grad_accum_steps * (double)info->size));
    // wte has two gradients, of the classifier and of the embedding, which together are one leaf
    int apart = model->leaf.accumulate && model->wte_memory != NULL;
    float* dwte = apart ? model->wte_memory : model->grads.wte;
    TRY(gpt2_run_pass(model, {gpt2_pass_of_documents(model, PASS_BACKWARD), model->leaf, scale},
                      [&] { gpt2_backward_layers(model, dwte, model->leaf.accumulate && !apart, scale, B, T, last); }));
    gpt2_sum_losses(model, grad_accum_steps, micro_step);
    TRY(gpt2_backward_embedding(model, dwte, inputs, B, T));
    gpt2_finish_gradients(model, LAYOUT_REST, last);
    gpt2_finish_gradients(model, LAYOUT_WTE, last);
    if (last && gpt2_shares(model)) { exchange_gradients_end(&model->exchange); }
    if (last) { model->fp8_begins = 1; }
    return status_now();
}

// ----------------------------------------------------------------------------
// Update

// Copies the scalars from the device in stream order; readers must wait for the copy.
static void gpt2_copy_scalars(GPT2* model) {
    cuda_try(
        cudaMemcpyAsync(model->scalars_host, model->scalars, sizeof(Scalars), cudaMemcpyDeviceToHost, model->stream));
}

// Takes over the scalars after a wait. An error if a process has failed: then the wait may have ended without them.
static Status gpt2_take_scalars(GPT2* model) {
    TRY(status_now());
    TRY(comm_health(model->info.settings.comm));
    model->info.mean_loss = model->scalars_host->loss;
    model->info.grad_norm = model->scalars_host->norm;
    model->info.non_finite_weights = model->scalars_host->non_finite_weights;
    model->info.saturated_steps = model->scalars_host->saturated_steps;
    const CodeCounts n = model->scalars_host->codes;
    model->info.codes = {n.codes, n.zeros, n.largest};
    return STATUS_OK;
}

static Status gpt2_read_scalars(GPT2* model) {
    gpt2_copy_scalars(model);
    cuda_try(cudaStreamSynchronize(model->stream));
    return gpt2_take_scalars(model);
}

// The largest magnitudes of fp8's operands in all processes (size, fp8_delayed), behind the sums of blocks
static float* gpt2_all_amax(const GPT2* model) { return model->block_sums + model->info.elements / LAYOUT_BLOCK; }
static size_t gpt2_num_scales_of(GPT2Config config, GPT2Settings settings) {
    return settings.fp8 ? fp8_delayed(config.num_layers) : 0;
}

// All-reduces the sums of squares of all blocks, the magnitudes of fp8's operands and the losses of all micro-batches, of which
// this process has some; then computes the step's loss.
static void gpt2_merge_sums(GPT2* model) {
    const GPT2Info* info = &model->info;
    const ParameterLayout* l = &model->layout;
    size_t begin, count, blocks = info->elements / LAYOUT_BLOCK, own = model->micro_steps, losses = own * info->size;
    const size_t scales = gpt2_num_scales_of(info->config, info->settings), amax = scales * info->size;
    cuda_try(cudaMemsetAsync(model->block_sums, 0, (blocks + amax + losses) * sizeof(float), model->stream));
    for (int b = 0; b < l->num_buckets && info->sharded; b++) {
        layout_shard_part(l, b, info->rank, &begin, &count);
        block_squares(model->block_sums + begin / LAYOUT_BLOCK, model->grads_memory + begin, count, model->stream);
    }
    if (!info->sharded) { block_squares(model->block_sums, model->grads_memory, info->elements, model->stream); }
    float *all_amax = gpt2_all_amax(model), *all_losses = all_amax + amax;
    cuda_try(cudaMemcpyAsync(all_losses + info->rank * own, model->micro_losses, own * sizeof(float),
                             cudaMemcpyDeviceToDevice, model->stream));
    if (scales > 0) {
        cuda_try(cudaMemcpyAsync(all_amax + info->rank * scales, model->fp8.amax, scales * sizeof(float),
                                 cudaMemcpyDeviceToDevice, model->stream));
    }
    exchange_merge(&model->exchange, info->sharded ? model->block_sums : all_amax,
                   (info->sharded ? blocks : 0) + amax + losses, COMM_FLOAT);
    losses_mean(&model->scalars->loss, all_losses, losses, model->loss_scale, model->stream);
}

Status gpt2_grad_norm(GPT2* model, float* norm) {
    GPT2Info* info = &model->info;
    size_t blocks = info->elements / LAYOUT_BLOCK;
    status_clear();
    TRY(gpt2_check_training(info));
    NvtxRange range("gradient norm");
    if (gpt2_shares(model)) {
        gpt2_merge_sums(model);
    } else {
        block_squares(model->block_sums, model->grads_memory, info->elements, model->stream);
    }
    norm_of_blocks(&model->scalars->norm, model->block_sums, blocks, model->stream);
    if (norm == NULL) { return status_now(); }
    TRY(gpt2_read_scalars(model));
    *norm = info->grad_norm;
    return STATUS_OK;
}

// The part of a bucket that this process updates.
static AdamWPart gpt2_adamw_part(const GPT2* model, int b) {
    const LayoutBucket* bucket = &model->layout.buckets[b];
    size_t begin = bucket->begin, count = bucket->count, moments = begin, decay_end = begin + bucket->decay_end;
    size_t second = begin - bucket->without;
    if (model->info.sharded) {
        layout_shard_part(&model->layout, b, model->info.rank, &begin, &count);
        moments = second = bucket->shard_begin;
    }
    float* master = model->master_weights ? model->master_weights + moments : NULL;
    return {model->params_memory + begin,
            model->grads_memory + begin,
            model->m_memory + moments,
            model->v_memory + second,
            master,
            count,
            decay_end > begin ? decay_end - begin : 0,
            begin};
}

// AdamW on buckets first .. end-1, except Muon's, in as few launches as possible
static void gpt2_update_buckets(GPT2* model, int first, int end, float weight_decay, AdamW adamw, UpdateGuard guard) {
    for (int b = first; b < end;) {
        AdamWParts parts = {};
        for (; b < end && parts.count < ADAMW_PARTS; b++) {
            if (model->layout.buckets[b].tensor < 0) { adamw_add(&parts, gpt2_adamw_part(model, b)); }
        }
        adamw_update(parts, weight_decay, adamw, guard, model->stream);
    }
}

// Muon on the matrices of all layers that this process owns
static void gpt2_update_matrices(GPT2* model, float weight_decay, AdamW adamw, UpdateGuard guard) {
    const ParameterLayout* l = &model->layout;
    const float momentum = model->info.settings.momentum;
    for (int t = 0; t < NUM_PARAMETER_TENSORS; t++) {
        if (!layout_is_muon(l, t)) { continue; }
        const int pieces = layout_matrices(t);
        const size_t rows = l->table[t].rows / pieces, cols = l->table[t].cols;
        MuonMatrices matrices = {};
        for (int b = 0; b < l->num_buckets; b++) {
            const LayoutBucket* bucket = &l->buckets[b];
            if (bucket->tensor != t || (model->info.sharded && bucket->owner != model->info.rank)) { continue; }
            const size_t moments = model->info.sharded ? bucket->shard_begin : bucket->begin;
            for (int i = 0; i < pieces; i++) {
                const size_t at = bucket->begin + i * rows * cols, own = moments + i * rows * cols;
                if (matrices.count == muon_batch(rows, cols)) {
                    muon_update(&model->matmul, matrices, rows, cols, momentum, weight_decay, adamw, guard,
                                model->muon_scratch);
                    matrices.count = 0;
                }
                matrices.matrix[matrices.count++] = {model->params_memory + at, model->grads_memory + at,
                                                     model->m_memory + own,
                                                     model->master_weights ? model->master_weights + own : NULL, at};
            }
        }
        muon_update(&model->matmul, matrices, rows, cols, momentum, weight_decay, adamw, guard, model->muon_scratch);
    }
}

// After a cold step's update: waits for its loss and norm. If both are finite, the next step has scales.
static Status gpt2_leave_cold(GPT2* model) {
    TRY(gpt2_read_scalars(model));
    model->fp8.cold = !isfinite(model->info.mean_loss) || !isfinite(model->info.grad_norm);
    return STATUS_OK;
}

// With sharded updates, the weights that the forward pass needs first are gathered while the rest is still being updated; the
// count of non-finite weights, which the host waits for, comes before the other gathers. These are few, each of twice as many
// layers as the one before: the host must issue all of them before it can launch the next forward pass.
Status gpt2_update(GPT2* model, float learning_rate, float beta1, float beta2, float epsilon, float weight_decay,
                   float grad_clip, int step) {
    status_clear();
    TRY(gpt2_check_training(&model->info));
    NvtxRange range("update");
    int L = model->info.config.num_layers, gather = model->info.sharded && gpt2_shares(model);
    int layers, first_of_layers = layout_buckets_of(&model->layout, 0, &layers), all = model->layout.num_buckets;
    int first = gather ? first_of_layers : all; // of the buckets of the second launch
    BucketExchange* exchange = &model->exchange;
    AdamW adamw = adamw_step(learning_rate, beta1, beta2, epsilon, grad_clip, step);
    unsigned long long* non_finite = &model->scalars->non_finite_weights;
    UpdateGuard guard = {&model->scalars->loss, &model->scalars->norm, non_finite};
    gpt2_wait_weights(model);
    cuda_try(cudaMemsetAsync(non_finite, 0, sizeof(*non_finite), model->stream));
    gpt2_update_buckets(model, 0, first, weight_decay, adamw, guard);
    if (gather) { exchange_weights(exchange, model->params_memory, sizeof(floatX), -1, 0); }
    gpt2_update_buckets(model, first, all, weight_decay, adamw, guard);
    gpt2_update_matrices(model, weight_decay, adamw, guard);
    if (model->info.settings.fp8) {
        const int shares = gpt2_shares(model);
        int* longest = &model->scalars->saturated_steps;
        cuda_try(cudaMemsetAsync(longest, 0, sizeof(*longest), model->stream));
        CodeCounts* codes = &model->scalars->codes;
        cuda_try(cudaMemsetAsync(codes, 0, sizeof(*codes), model->stream));
        fp8_next_scales(&model->fp8, shares ? gpt2_all_amax(model) : (float*)model->fp8.amax,
                        shares ? model->info.size : 1, {guard.loss, guard.norm, NULL, codes, longest}, model->stream);
    }
    if (gather) { exchange_merge(exchange, non_finite, 1, COMM_UINT64); }
    gpt2_copy_scalars(model);
    cuda_try(cudaEventRecord(model->updated, model->stream));
    for (int i = 0, end = 1; i < L && gather; i = end, end *= 2) {
        exchange_weights(exchange, model->params_memory, sizeof(floatX), i, end < L ? end : L);
    }
    if (model->info.settings.fp8 && model->fp8.cold) { TRY(gpt2_leave_cold(model)); }
    return status_now();
}

Status gpt2_wait_update(GPT2* model) {
    status_clear();
    cuda_try(cudaEventSynchronize(model->updated));
    return gpt2_take_scalars(model);
}

Status gpt2_synchronize(GPT2* model) {
    status_clear();
    cuda_try(cudaStreamSynchronize(model->stream));
    return gpt2_take_scalars(model);
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
// Planning

// Memory that CUDA takes beside the allocations here: on the GPU for kernels (loaded at their first launch, when the buffer in
// which weights are cast is freed), and on the host. Rounded up; the last lines of a run show how far off they are.
constexpr size_t LIBRARIES_BYTES = (size_t)20 << 20, HOST_PROCESS_BYTES = (size_t)376 << 20;
constexpr size_t NCCL_BYTES = (size_t)1 << 30; // nccl_exchange measured 484 MiB with 16 CTAs on two GPUs
// Per layer of a pass that is a CUDA graph: fp32 takes nearly as much, bf16 two thirds. Graphs share pieces of 2 MB.
constexpr size_t FORWARD_GRAPH_BYTES = (size_t)32 << 10, BACKWARD_GRAPH_BYTES = (size_t)72 << 10;
constexpr size_t CAST_ELEMENTS = (size_t)4 << 20; // weights that are cast at a time
constexpr size_t SCALARS_BYTES = 256;             // a row of logits follows, aligned as cuBLASLt likes it
static_assert(sizeof(Scalars) <= SCALARS_BYTES, "");

// A GEMM group of the passes, for which dev/cuda/matmul/matmul.cuh chooses a variant
struct ModelGemm {
    const char* name;
    MatmulGroup group;
    MatmulSizes sizes;
    const char* variant; // NULL: that of matmul/choice.h
    int backward;
};
enum { MODEL_GEMMS = 13 };

// All of them, for R rows of tokens, in the order of a layer's passes
static void gpt2_gemms(ModelGemm gemms[MODEL_GEMMS], GPT2Config config, GPT2Settings settings, int R) {
    const int C = config.channels;
    const MatmulSizes qkv = {R, C, 3 * C, 0}, attproj = {R, C, C, 0}, fc = {R, C, 4 * C, 0}, fcproj = {R, 4 * C, C, 0};
    const MatmulSizes classifier = {R, C, config.padded_vocab_size, config.vocab_size};
    const ModelGemm all[MODEL_GEMMS] = {{"qkv", MATMUL_QKV, qkv, NULL, 0},
                                        {"attproj", MATMUL_RESIDUAL, attproj, NULL, 0},
                                        {"fc", MATMUL_FC, fc, gpt2_fc_variant(settings), 0},
                                        {"fcproj", MATMUL_RESIDUAL, fcproj, NULL, 0},
                                        {"classifier", MATMUL_CLASSIFIER, classifier, NULL, 1},
                                        {"input of fcproj", MATMUL_DGELU, fcproj, gpt2_dgelu_variant(settings), 1},
                                        {"weight of fcproj", MATMUL_WEIGHT, fcproj, NULL, 1},
                                        {"input of fc", MATMUL_INPUT, fc, NULL, 1},
                                        {"weight of fc", MATMUL_WEIGHT, fc, NULL, 1},
                                        {"input of attproj", MATMUL_INPUT, attproj, NULL, 1},
                                        {"weight of attproj", MATMUL_WEIGHT, attproj, NULL, 1},
                                        {"input of qkv", MATMUL_INPUT, qkv, NULL, 1},
                                        {"weight of qkv", MATMUL_WEIGHT, qkv, NULL, 1}};
    memcpy(gemms, all, sizeof(all));
}

// Bytes of scratch for a batch of B rows of T tokens: the maximum over the backward kernels. An error if no variant
// serves. Without a GPU: for compute capability 9.0.
static size_t gpt2_scratch_bytes(GPT2Config config, GPT2Settings settings, int B, int T) {
    int C = config.channels, NH = config.num_heads, R = B * T;
    ModelGemm gemms[MODEL_GEMMS];
    DeviceCode gpu;
    if (device_code(&gpu) != STATUS_OK) {
        status_clear();
        gpu = {90, 1, 1, 132, SIZE_MAX};
    }
    size_t sizes[] = {layernorm_backward_scratch_bytes(C), attention_backward_scratch_bytes(B, T, NH, C / NH, &gpu)};
    size_t layer = sizes[0] > sizes[1] ? sizes[0] : sizes[1], classifier = 0;
    gpt2_gemms(gemms, config, settings, R);
    for (const ModelGemm& g : gemms) {
        size_t bytes = g.backward ? matmul_scratch_bytes_on(gpu.capability, g.variant, g.group, g.sizes) : 0;
        if (g.group == MATMUL_CLASSIFIER) { classifier = size_add(bytes, gpt2_factors_bytes(R)); }
        layer = bytes > layer && g.group != MATMUL_CLASSIFIER ? bytes : layer;
    }
    const size_t sums = quantize_scratch_bytes(R, 4 * C), partial = column_sum_scratch_bytes(4 * C);
    const size_t dgelu = !settings.fp8 ? 0 : sums > partial ? sums : partial;
    const MatmulSizes logits = {fp8_classifier_rows(R), C, config.padded_vocab_size, config.vocab_size};
    layer = dgelu > layer ? dgelu : layer;
    if (settings.fp8) { layer = std::max(layer, fp8_classifier_scratch_bytes(logits)); }
    layer = size_add(layer, gpt2_qkv_bias_sums(B, T, NH, C, &gpu).end);
    return layer > classifier ? layer : classifier;
}

// 1 if some micro-steps' gradients are accumulated in place. wte's gradient has two parts, of a GEMM and of the embedding:
// they must be summed first, in a buffer of their own.
static int gpt2_has_wte_leaf(GPT2Settings settings) { return settings.micro_steps > 1 && !settings.sum_any; }

// The rows of the buffers for sums of gradients, and for a checkpoint that is loaded
static void gpt2_plan_gradients(GPT2Plan* plan, GPT2Settings settings, const ParameterLayout* layout) {
    size_t n = layout->elements, wte, at;
    size_t micro_steps = (size_t)settings.micro_steps, losses = (size_t)(layout->size + 1) * micro_steps;
    size_t amax = gpt2_num_scales_of(layout->config, settings) * (size_t)layout->size;
    layout_group_range(layout, LAYOUT_WTE, &at, &wte);
    size_t buffers = settings.sum_any ? 1 : (size_t)gradient_buffers(settings.micro_steps, GPT2_IN_PLACE);
    size_t tree = size_add(size_mul(buffers - 1, n), gpt2_has_wte_leaf(settings) ? wte : 0);
    plan_set(plan, PLAN_GRADIENT_TREE, PLAN_DEVICE, size_mul(tree, sizeof(float)));
    plan_set(plan, PLAN_RECEIVED, PLAN_DEVICE, exchange_received_bytes(layout, settings.sum_any));
    plan_set(plan, PLAN_BLOCK_SUMS, PLAN_DEVICE, (n / LAYOUT_BLOCK + amax + losses) * sizeof(float));
    plan_set(plan, PLAN_HOST_WEIGHTS, PLAN_HOST, n * sizeof(float));
}

// The rows of a batch sorted by token: buckets, one for each token that occurs and one more, and the order of all positions.
// With documents the same by position, of which a row has T.
struct SortedSizes {
    size_t buckets, position_buckets, orders; // in bytes
};
static SortedSizes gpt2_sorted_sizes(GPT2Config config, GPT2Settings settings, size_t BT, int T) {
    size_t V = config.vocab_size, by_position = settings.documents && settings.positions ? 1 : 0;
    return {((BT < V ? BT : V) + 1) * sizeof(int2), by_position * (T + 1) * sizeof(int2),
            (1 + by_position) * BT * sizeof(int)};
}
static void gpt2_plan_sorted(GPT2Plan* plan, GPT2Config config, GPT2Settings settings, size_t BT, int T) {
    const SortedSizes sizes = gpt2_sorted_sizes(config, settings, BT, T);
    size_t sorted = sizes.buckets + sizes.position_buckets + sizes.orders;
    plan_set(plan, PLAN_SORTED, PLAN_DEVICE, sorted);
    plan_set(plan, PLAN_HOST_SORTED, PLAN_HOST, sorted);
}

// Bytes of the graphs of full batches: one for the forward pass, and one for the backward pass of each kind of leaf
static size_t gpt2_graph_bytes(GPT2Config config, GPT2Settings settings, int processes) {
    GradientLeaf kinds[MAX_PASS_GRAPHS - 1];
    int count = 0;
    if (!settings.graphs || processes > 1) { return 0; }
    for (int i = 0; i < settings.micro_steps && count < MAX_PASS_GRAPHS - 1; i++) {
        const GradientLeaf leaf = gpt2_leaf(settings, settings.micro_steps, i);
        int known = 0;
        while (known < count && !(kinds[known] == leaf)) { known++; }
        if (known == count) { kinds[count++] = leaf; }
    }
    // of training; of evaluation, not in fp8; of validation without documents
    const size_t forward = (1 + (settings.fp8 != 0) + (settings.documents == 1)) * FORWARD_GRAPH_BYTES;
    const size_t layer = forward + count * BACKWARD_GRAPH_BYTES;
    return size_round_up(config.num_layers * (settings.fp8 ? 2 * layer : layer), (size_t)2 << 20);
}

static Status gpt2_plan_rows(GPT2Plan* plan, GPT2Config config, GPT2Settings settings, const ParameterLayout* layout,
                             int B, int T, int training) {
    plan_set(plan, PLAN_LIBRARIES, PLAN_DEVICE, LIBRARIES_BYTES);
    plan_set(plan, PLAN_WORKSPACE, PLAN_DEVICE, MATMUL_WORKSPACE);
    plan_set(plan, PLAN_NCCL, PLAN_DEVICE, layout->size > 1 ? NCCL_BYTES : 0);
    plan_set(plan, PLAN_SCALARS, PLAN_DEVICE, SCALARS_BYTES + config.padded_vocab_size * sizeof(float));
    plan_set(plan, PLAN_HOST_RESULTS, PLAN_HOST, sizeof(Scalars));
    plan_set(plan, PLAN_HOST_PROCESS, PLAN_HOST, HOST_PROCESS_BYTES);
    if (B == 0) { return STATUS_OK; }
    const char* fault = attention_unsupported(B, T, config.num_heads, config.channels / config.num_heads);
    if (fault != NULL) { return status_fail("attention: %s", fault); }
    size_t BT = (size_t)B * T, scratch = training ? gpt2_scratch_bytes(config, settings, B, T) : 0;
    TRY(status_now());
    size_t activations = gpt2_activations(plan->activations, config, B, T, settings.recompute, training ? 1 : 0,
                                          sizeof(floatX), scratch);
    plan_set(plan, PLAN_ACTIVATIONS, PLAN_DEVICE, activations);
    plan_set(plan, PLAN_BATCH, PLAN_DEVICE, (settings.documents ? 3 : 2) * BT * sizeof(int));
    plan_set(plan, PLAN_HOST_LOSSES, PLAN_HOST, BT * sizeof(float));
    if (!training) { return STATUS_OK; }
    gpt2_plan_gradients(plan, settings, layout);
    if (settings.fp8) {
        TRY(fp8_check(BT));
        plan_set(plan, PLAN_FP8, PLAN_DEVICE, fp8_memory(config, layout->elements, BT).bytes);
    }
    plan_set(plan, PLAN_MUON, PLAN_DEVICE, settings.muon ? muon_scratch_bytes(config.channels) : 0);
    plan_set(plan, PLAN_GRAPHS, PLAN_DEVICE, gpt2_graph_bytes(config, settings, layout->size));
    gpt2_plan_sorted(plan, config, settings, BT, T);
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Building and freeing. After an error nothing more is allocated, and nothing is launched.

// Device memory. NULL, with the error recorded, where there is not enough, and after an error.
static void* tensor_alloc(size_t bytes, const char* what, const char* advice) {
    void* p = NULL;
    if (status_now() != STATUS_OK) { return NULL; }
    cudaError_t error = cudaMalloc(&p, bytes);
    if (error != cudaErrorMemoryAllocation) { return cuda_try(error) == STATUS_OK ? p : NULL; }
    size_t available = 0, total = 0;
    (void)cudaGetLastError(); // or the check after the next launch would report it
    cudaMemGetInfo(&available, &total);
    status_fail("%s: %.1f MiB of GPU memory asked for, %.1f MiB free; %s", what, (double)bytes / (1 << 20),
                (double)available / (1 << 20), advice);
    return NULL;
}

// Page-locked memory on the host
static void* pinned_alloc(size_t bytes) {
    void* p = NULL;
    if (status_now() != STATUS_OK) { return NULL; }
    return cuda_try(cudaMallocHost(&p, bytes)) == STATUS_OK ? p : NULL;
}

static void* row_alloc(GPT2* model, PlanRowId id) {
    const PlanRow* row = &model->plan.rows[id];
    if (row->bytes == 0) { return NULL; }
    if (row->memory == PLAN_HOST) { return pinned_alloc(row->bytes); }
    void* p = tensor_alloc(row->bytes, row->name, PLAN_LESS_TO_TRAIN);
    model->info.memory_bytes += p != NULL ? row->bytes : 0;
    return p;
}

static float* zeros_alloc(GPT2* model, PlanRowId id) {
    void* p = row_alloc(model, id);
    if (p != NULL) { cuda_try(cudaMemset(p, 0, model->plan.rows[id].bytes)); }
    return (float*)p;
}

static int gpt2_device; // of this process

int gpt2_num_devices(void) {
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void gpt2_use_device(int device) { gpt2_device = device; }
Status gpt2_prepare_threads(void) { return STATUS_OK; } // the GPU computes

// Selects the GPU; an error if there is none that this build runs on.
static Status gpt2_find_gpu(cudaDeviceProp* device) {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        return status_fail("no usable GPU: %s; on the CPU run ./train_gpt2 and ./generate_gpt2",
                           cudaGetErrorString(error));
    }
    TRY(cuda_try(cudaSetDevice(gpt2_device)));
    TRY(cuda_try(cudaGetDeviceProperties(device, gpt2_device)));
    if (device->major < 8) {
        return status_fail("%s has compute capability %d.%d; this trainer needs 8.0 or newer", device->name,
                           device->major, device->minor);
    }
    DeviceCode code;
    return device_code(&code);
}

// Connects the model to those of the other processes.
static Status gpt2_join(GPT2* model) {
    GPT2Settings settings = model->info.settings;
    CommDevice device = {};
    if (model->info.size == 1) { return STATUS_OK; }
    TRY(GPT2_OPEN_DEVICE(&device, settings.comm, gpt2_device));
    comm_use_device(settings.comm, device);
    return exchange_create(&model->exchange, settings.comm, &model->layout, model->stream, settings.sum_any);
}

static Status gpt2_build(GPT2* model) {
    GPT2Info* info = &model->info;
    TRY(gpt2_find_gpu(&model->device));
    TRY(cuda_try(cudaStreamCreateWithFlags(&model->stream, cudaStreamNonBlocking)));
    info->queues = 1;
    TRY(matmul_create(&model->matmul, info->settings.tf32, model->stream));
    info->memory_bytes = model->plan.rows[PLAN_WORKSPACE].bytes;
    model->params_memory = (floatX*)zeros_alloc(model, PLAN_WEIGHTS); // also between the tensors
    model->scalars = (Scalars*)zeros_alloc(model, PLAN_SCALARS);
    model->scalars_host = (Scalars*)row_alloc(model, PLAN_HOST_RESULTS);
    TRY(status_now());
    model->logits_row = (float*)((char*)model->scalars + SCALARS_BYTES);
    layout_point(&model->params, &model->layout, model->params_memory, sizeof(floatX), 0);
    memset(model->scalars_host, 0, sizeof(Scalars));
    TRY(cuda_try(cudaEventCreateWithFlags(&model->batch_copied, cudaEventDisableTiming)));
    TRY(cuda_try(cudaEventCreateWithFlags(&model->updated, cudaEventDisableTiming)));
    return gpt2_join(model);
}

// A lower bound, in seconds, of a layer's backward pass over BT tokens: twice the 24 C^2 FLOPs a token of the forward pass's
// GEMMs, at the tensor cores' peak
static double gpt2_layer_seconds(const GPT2* model, size_t BT) {
    int kilohertz = 0, major = model->device.major;
    int flops_per_clock = major >= 10 ? 8192 : major == 9 ? 4096 : 2048; // per SM, of the fastest GPUs of each
    double C = model->info.config.channels;
    cuda_try(cudaDeviceGetAttribute(&kilohertz, cudaDevAttrClockRate, gpt2_device));
    if (model->info.settings.fp8) { flops_per_clock *= 2; }
    return 48.0 * C * C * (double)BT / (1e3 * kilohertz * flops_per_clock * model->device.multiProcessorCount);
}

// Where the inputs of the linear layers come from: fixed places
static void gpt2_point_fp8_inputs(GPT2* model) {
    const int L = model->info.config.num_layers;
    model->fp8_inputs = (Fp8Inputs*)calloc_check(L + 1, sizeof(Fp8Inputs));
    for (int i = 0; i < L; i++) {
        const ActivationTensors y = gpt2_layer_activations(model, i);
        const ParameterTensors w = gpt2_layer_parameters(model, i);
        model->fp8_inputs[i] = {{gpt2_layer_input(model, i), y.ln1_mean, y.ln1_rstd, w.ln1w, w.ln1b},
                                {y.residual2, y.ln2_mean, y.ln2_rstd, w.ln2w, w.ln2b},
                                {y.fch}};
    }
    const ActivationTensors a = model->acts;
    model->fp8_inputs[L].qkv = {gpt2_layer_input(model, L), a.lnf_mean, a.lnf_rstd, model->params.lnfw,
                                model->params.lnfb};
}

static Status gpt2_allocate_fp8(GPT2* model, size_t BT) {
    model->fp8_memory = zeros_alloc(model, PLAN_FP8);
    TRY(status_now());
    gpt2_point_fp8_inputs(model);
    model->fp8_begins = 1;
    fp8_create(&model->fp8, fp8_memory(model->info.config, model->info.elements, BT), model->fp8_memory,
               model->acts.output, model->params_memory, model->fp8_inputs, model->info.config.num_layers,
               gpt2_capability());
    return STATUS_OK;
}

// Allocates what training needs beside blocks and activations, for batches of BT tokens in rows of T.
static Status gpt2_allocate_training(GPT2* model, size_t BT, int T) {
    GPT2Info* info = &model->info;
    size_t all_losses = (size_t)info->size * (size_t)info->settings.micro_steps;
    const SortedSizes sizes = gpt2_sorted_sizes(info->config, info->settings, BT, T);
    const size_t counts = std::max(info->config.vocab_size, T);
    model->sorted_host.buckets = (int2*)row_alloc(model, PLAN_HOST_SORTED);
    model->sorted.buckets = (int2*)row_alloc(model, PLAN_SORTED);
    model->exchange.received = zeros_alloc(model, PLAN_RECEIVED);
    model->block_sums = zeros_alloc(model, PLAN_BLOCK_SUMS);
    model->muon_scratch = row_alloc(model, PLAN_MUON);
    TRY(status_now());
    model->token_counts = (int*)malloc_check((counts + BT) * sizeof(int));
    model->token_positions = model->token_counts + counts;
    for (int on_host = 0; on_host < 2; on_host++) { // both kinds of buckets, then both orders
        TokenOrder *sorted = on_host ? &model->sorted_host : &model->sorted,
                   *positions = on_host ? &model->positions_host : &model->positions;
        positions->buckets = (int2*)((char*)sorted->buckets + sizes.buckets);
        sorted->order = (int*)((char*)positions->buckets + sizes.position_buckets);
        positions->order = sorted->order + BT;
    }
    if (gpt2_has_wte_leaf(info->settings)) {
        model->wte_memory = gpt2_gradients(model, gradient_buffers(info->settings.micro_steps, GPT2_IN_PLACE));
    }
    model->micro_losses =
        gpt2_all_amax(model) + gpt2_num_scales_of(info->config, info->settings) * info->size + all_losses;
    if (info->settings.fp8) { TRY(gpt2_allocate_fp8(model, BT)); }
    layout_point(&model->grads, &model->layout, model->grads_memory, sizeof(float), 0);
    TRY(cuda_try(cudaDeviceSynchronize()));
    if (info->size == 1 || !info->settings.copy_engines || info->settings.sum_any) { return STATUS_OK; }
    TRY(exchange_open_peers(&model->exchange, model->grads_memory, model->params_memory,
                            gpt2_layer_seconds(model, BT)));
    info->copy_engines = model->exchange.peers.open;
    return STATUS_OK;
}

static Status gpt2_allocate_rest(GPT2* model, int B, int T, int training) {
    const GPT2Config c = model->info.config;
    attention_forward_name(B, T, c.num_heads, c.channels / c.num_heads); // an error if no variant serves
    model->inputs = (int*)row_alloc(model, PLAN_BATCH);
    model->info.losses = (float*)row_alloc(model, PLAN_HOST_LOSSES);
    TRY(status_now());
    model->targets = model->inputs + (size_t)B * T;
    if (model->info.settings.documents) { model->starts = model->targets + (size_t)B * T; }
    return training ? gpt2_allocate_training(model, (size_t)B * T, T) : STATUS_OK;
}

Status gpt2_available_memory(GPT2Memory* memory) {
    HostMemory host = host_memory("");
    cudaDeviceProp device;
    size_t total;
    memset(memory, 0, sizeof(*memory));
    status_clear();
    memory->host_free = host.available, memory->host_limit = host.limit;
    TRY(gpt2_find_gpu(&device));
    TRY(cuda_try(cudaMemGetInfo(&memory->device_free, &total)));
    memory->has_device = 1;
    return STATUS_OK;
}

// Frees what has been allocated; errors of pending work belong to the functions that launched it.
void gpt2_free(GPT2* model) {
    if (model == NULL) { return; }
    if (model->stream != NULL) { cudaDeviceSynchronize(); }
    peer_close(&model->exchange.peers);
    void* on_device[] = {model->params_memory, model->grads_memory, model->tree_memory, model->exchange.received,
                         model->block_sums,    model->m_memory,     model->v_memory,    model->master_weights,
                         model->acts_memory,   model->inputs,       model->scalars,     model->sorted.buckets,
                         model->muon_scratch,  model->fp8_memory};
    void* on_host[] = {model->info.losses, model->sorted_host.buckets, model->scalars_host, model->snapshot};
    for (void* p : on_device) { cudaFree(p); }
    for (void* p : on_host) { cudaFreeHost(p); }
    exchange_free(&model->exchange);
    layout_free(&model->layout);
    free(model->token_counts);
    free(model->fp8_inputs);
    pass_graphs_free(&model->graphs);
    matmul_destroy(&model->matmul);
    if (model->batch_copied != NULL) { cudaEventDestroy(model->batch_copied); }
    if (model->updated != NULL) { cudaEventDestroy(model->updated); }
    if (model->stream != NULL) { cudaStreamDestroy(model->stream); }
    (void)cudaGetLastError(); // or this thread's next model would report it
    free(model);
}

// ----------------------------------------------------------------------------
// Parameters, gradients, moments

// A copy after all work in all streams, finished on return
static Status device_copy(void* to, const void* from, size_t bytes, cudaMemcpyKind direction) {
    TRY(cuda_try(cudaDeviceSynchronize()));
    TRY(cuda_try(cudaMemcpy(to, from, bytes, direction)));
    return cuda_try(cudaDeviceSynchronize()); // a copy from pageable memory may still be in flight
}

static Status copy_device_out(char* memory, char* host, size_t bytes) {
    return cuda_try(cudaMemcpy(host, memory, bytes, cudaMemcpyDeviceToHost));
}
static Status copy_device_in(char* memory, char* host, size_t bytes) {
    return cuda_try(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice));
}

static Status gpt2_copy(const GPT2* model, GPT2Block block, char* host, size_t offset, size_t bytes, GPT2Copy copy) {
    TRY(cuda_try(cudaDeviceSynchronize()));
    TRY(gpt2_copy_runs(model, block, gpt2_block(model, block), host, offset, bytes, copy));
    return cuda_try(cudaDeviceSynchronize()); // copies from pageable memory may still be in flight
}

Status gpt2_copy_out(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes) {
    status_clear();
    return gpt2_copy(model, block, (char*)host, offset, bytes, copy_device_out);
}

Status gpt2_copy_in(GPT2* model, GPT2Block block, const void* host, size_t offset, size_t bytes) {
    status_clear();
    return gpt2_copy(model, block, (char*)host, offset, bytes, copy_device_in);
}

static void snapshot_copy(GPT2* model, void* to, const void* from, size_t bytes) {
    gpt2_wait_weights(model);
    cuda_try(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToHost, model->stream));
}

// Sets a run of the weights, and their master weights, from `staging`, fp32 on the device.
static void load_run(GPT2* model, LayoutRun run, const float* staging) {
    const GPT2Info* info = &model->info;
    if (sizeof(floatX) < sizeof(float)) {
        cast_from_fp32(model->params_memory + run.offset, staging, run.count, model->stream);
    } else {
        cuda_try(cudaMemcpyAsync(model->params_memory + run.offset, staging, run.count * sizeof(float),
                                 cudaMemcpyDeviceToDevice, model->stream));
    }
    if (model->master_weights == NULL || (info->sharded && run.rank != info->rank)) { return; }
    float* master = model->master_weights + (info->sharded ? run.shard_offset : run.offset);
    cuda_try(cudaMemcpyAsync(master, staging, run.count * sizeof(float), cudaMemcpyDeviceToDevice, model->stream));
}

// Piece by piece, through a fp32 staging buffer on the device. The padding rows of wte, which is the first tensor, become zero.
Status gpt2_set_parameters(GPT2* model, const float* params) {
    GPT2Config c = model->info.config;
    size_t C = c.channels, padding = c.vocab_size * C, padding_end = c.padded_vocab_size * C;
    status_clear();
    float* staging = (float*)tensor_alloc(CAST_ELEMENTS * sizeof(float), "parameters in fp32", PLAN_LESS_TO_TRAIN);
    TRY(status_now());
    cuda_try(cudaDeviceSynchronize());
    for (size_t i = 0, n = model->info.num_parameters, most; i < n && status_now() == STATUS_OK; i += most) {
        size_t end = i < padding ? padding : i < padding_end ? padding_end : n;
        LayoutRun run = layout_run(&model->layout, 0, i, end - i < CAST_ELEMENTS ? end - i : CAST_ELEMENTS);
        most = run.count;
        if (i >= padding && i < padding_end) {
            cuda_try(cudaMemsetAsync(staging, 0, run.count * sizeof(float), model->stream));
        } else {
            cuda_try(
                cudaMemcpyAsync(staging, params + i, run.count * sizeof(float), cudaMemcpyHostToDevice, model->stream));
        }
        load_run(model, run, staging);
    }
    cuda_try(cudaDeviceSynchronize());
    cuda_try(cudaFree(staging));
    return status_now();
}

// ----------------------------------------------------------------------------
// Scales

int gpt2_num_scales(const GPT2* model) { return (int)gpt2_num_scales_of(model->info.config, model->info.settings); }

// As device_copy, between scales that lie `to_stride` and `from_stride` bytes apart
static Status gpt2_copy_scales(void* to, size_t to_stride, const void* from, size_t from_stride, int count) {
    TRY(cuda_try(cudaDeviceSynchronize()));
    TRY(cuda_try(cudaMemcpy2D(to, to_stride, from, from_stride, sizeof(float), (size_t)count, cudaMemcpyDefault)));
    return cuda_try(cudaDeviceSynchronize());
}

Status gpt2_get_scales(GPT2* model, float* scales) {
    status_clear();
    if (gpt2_num_scales(model) == 0) { return STATUS_OK; }
    return gpt2_copy_scales(scales, sizeof(float), model->fp8.scales, sizeof(E4m3Scale), gpt2_num_scales(model));
}

Status gpt2_set_scales(GPT2* model, const float* scales) {
    status_clear();
    if (gpt2_num_scales(model) == 0) { return STATUS_OK; }
    model->fp8.cold = scales[0] == 0;
    return gpt2_copy_scales(model->fp8.scales, sizeof(E4m3Scale), scales, sizeof(float), gpt2_num_scales(model));
}

// ----------------------------------------------------------------------------
// Finding faults

static int gpt2_scan(GPT2* model, const void* data, size_t count, size_t element) {
    unsigned* first = &model->scalars->first_non_finite;
    cuda_try(cudaMemsetAsync(first, 0xff, sizeof(unsigned), model->stream));
    if (element == sizeof(float)) {
        find_non_finite(first, 0, (const float*)data, count, model->stream);
    } else {
        find_non_finite(first, 0, (const floatX*)data, count, model->stream);
    }
    return gpt2_read_scalars(model) != STATUS_OK || model->scalars_host->first_non_finite == 0;
}

Status gpt2_find_non_finite(GPT2* model, char* text, size_t size) {
    status_clear();
    gpt2_wait_weights(model);
    if (model->info.last_pass != PASS_NONE && model->info.last_pass != PASS_BACKWARD) { // the logits, too
        matmul_forward(&model->matmul, model->acts.output, model->acts.lnf, model->params.wte, NULL,
                       model->info.last_B * model->info.last_T, model->info.config.channels,
                       model->info.config.padded_vocab_size);
    }
    gpt2_search(model, &model->scalars->loss, &model->scalars->norm, text, size);
    return status_now();
}

Status gpt2_gradient_digest(GPT2* model, uint64_t* digest) {
    status_clear();
    TRY(gpt2_check_training(&model->info));
    NvtxRange range("digest");
    cuda_try(cudaMemsetAsync(&model->scalars->digest, 0, sizeof(model->scalars->digest), model->stream));
    add_digest(&model->scalars->digest, model->grads_memory, model->info.elements, model->stream);
    TRY(gpt2_read_scalars(model));
    *digest = model->scalars_host->digest;
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// The machine

void* gpt2_host_alloc(size_t bytes) {
    status_clear();
    if (cuda_try(cudaSetDevice(gpt2_device)) != STATUS_OK) { return NULL; }
    return pinned_alloc(bytes);
}
void gpt2_host_free(void* memory) { cudaFreeHost(memory); }

// tf32 where an fp32 build multiplies in it: with NVIDIA_TF32_OVERRIDE=0 cuBLAS does not, whatever it is asked for.
static const char* gpt2_precision(GPT2Settings settings) {
    if (settings.fp8) { return "fp8"; }
    const char* forced = getenv("NVIDIA_TF32_OVERRIDE");
    int tf32 = settings.tf32 && (forced == NULL || strcmp(forced, "0") != 0);
    return sizeof(floatX) == 4 && tf32 ? "tf32" : PRECISION_NAME;
}

double gpt2_peak_flops(const GPT2* model) {
    return gpu_peak_flops(model->device.name, gpt2_precision(model->info.settings));
}

// text: "cuBLASLt; fc, input of fcproj: wgmma; classifier: softmax_wgmma", the library and the GEMMs that other variants serve
// on a GPU of this compute capability, in passes over B rows of T tokens; in fp8 those of a step that has scales
static void gpt2_describe_gemms(char* text, size_t size, int capability, GPT2Config config, GPT2Settings settings,
                                int B, int T) {
    ModelGemm gemms[MODEL_GEMMS];
    if (settings.fp8) {
        snprintf(text, size, "cublaslt_fp8%s",
                 fp8_fuses(capability) ? "; qkv, fc, input of fcproj, classifier: wgmma_fp8" : "");
        return;
    }
    gpt2_gemms(gemms, config, settings, B * T);
    size_t length = (size_t)snprintf(text, size, "cuBLASLt");
    for (const MatmulVariant& v : matmul_variants) {
        const char* separator = "; ";
        if (strcmp(v.name, "cublaslt") == 0) { continue; }
        for (const ModelGemm& g : gemms) {
            if (strcmp(matmul_choice_name_on(capability, g.variant, g.group, g.sizes), v.name) != 0) { continue; }
            length += (size_t)snprintf(text + length, size - length, "%s%s", separator, g.name);
            separator = ", ";
        }
        if (strcmp(separator, ", ") == 0) { length += (size_t)snprintf(text + length, size - length, ": %s", v.name); }
    }
}

Status gpt2_numerics(GPT2Numerics* n, GPT2Config config, GPT2Settings settings, int B, int T) {
    int NH = config.num_heads, HS = config.channels / NH, driver = 0, runtime = 0;
    cudaDeviceProp device;
    memset(n, 0, sizeof(*n));
    status_clear();
    TRY(gpt2_find_gpu(&device));
    snprintf(n->precision, sizeof(n->precision), "%s", gpt2_precision(settings));
    gpt2_describe_gemms(n->gemm, sizeof(n->gemm), gpt2_capability(), config, settings, B, T);
    snprintf(n->attention, sizeof(n->attention), "%s forward, %s backward", attention_forward_name(B, T, NH, HS),
             attention_backward_name(B, T, NH, HS));
    const size_t cublaslt = cublasLtGetVersion(); // 130002 is 13.0.2
    snprintf(n->gemm_library, sizeof(n->gemm_library), "cuBLASLt %zu.%zu.%zu", cublaslt / 10000, cublaslt / 100 % 100,
             cublaslt % 100);
    snprintf(n->compiler, sizeof(n->compiler), "nvcc %d.%d.%d", __CUDACC_VER_MAJOR__, __CUDACC_VER_MINOR__,
             __CUDACC_VER_BUILD__);
    snprintf(n->device, sizeof(n->device), "%s", device.name);
    snprintf(n->compute_capability, sizeof(n->compute_capability), "%d.%d", device.major, device.minor);
    snprintf(n->sms, sizeof(n->sms), "%d", device.multiProcessorCount);
    snprintf(n->machine, sizeof(n->machine), "%s, %d SMs", device.name, device.multiProcessorCount);
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    snprintf(n->cuda, sizeof(n->cuda), "driver %d.%d, runtime %d.%d", driver / 1000, driver % 1000 / 10, runtime / 1000,
             runtime % 1000 / 10);
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

void gpt2_log_device(const GPT2*) { gpu_info_print(); }
void gpt2_range_begin(const char* name) { nvtx_begin(name); }
void gpt2_range_end(void) { nvtx_end(); }
