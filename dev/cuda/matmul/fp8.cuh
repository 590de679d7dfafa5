/*
The matmul groups of a training step in 8 bits (llmc/cuda/quantize.cuh): operands are quantised where they are computed, not
stored in 16 bits first, or before the GEMM that reads them. An input's columns, for its weight gradient, are written with its
rows and kept; those of fcproj's, the largest, are computed again with the gradient of fc's output, which reads that tensor.

An operand in e4m3 has one scale. A weight's follows from its numbers, once an update. That of an activation or of a gradient
is delayed: it follows from the largest magnitude in the step before, over all micro-batches and processes, and holds for a
whole step; HEADROOM is how much larger the tensor may be in the next one. Up to the first finite step there are no scales: it
is `cold`, its GEMMs are those of 16 bits, and only the magnitudes are collected.

On Hopper the forward GEMMs that read LayerNorm's output (qkv, fc, the classifier) are of int8, which rounds that less. Each of
its rows has a scale, which LayerNorm's kernel finds, and so has each row of the weights. Columns are in e4m3 there, too.

The four linear layers of a transformer block are known by their sizes; the classifier counts as block number `layers`.
*/
#ifndef MATMUL_FP8_CUH
#define MATMUL_FP8_CUH

#include "matmul.h"
#include "llmc/cuda/device_code.cuh"
#include "llmc/cuda/quantize.cuh"
#include "llmc/model/gpt2.h"

enum { FP8_QKV, FP8_ATTPROJ, FP8_FC, FP8_FCPROJ, FP8_LINEARS, FP8_CLASSIFIER = 0 };
constexpr int FP8_DELAYED = 2 * FP8_LINEARS; // delayed scales of a block: the linears' inputs, their outputs' gradients
constexpr float FP8_HEADROOM = 2;

// What the inputs of a block's linear layers are computed from
struct Fp8Inputs {
    LayerNormSource qkv, fc; // of block `layers`: qkv is the classifier's
    GeluSource fcproj;
};

struct Fp8 {
    int layers;               // of the model; what follows has a block more
    int cold;                 // 1: there are no scales yet
    int fused;                // 1: qkv, fc, dgelu and the classifier are those of wgmma_fp8.cuh
    E4m3Scale* scales;        // (layers + 1, 8) delayed
    E4m3Scale* weight_scales; // (layers + 1, 4)
    unsigned* amax;           // (layers + 1, 8) of the step so far
    unsigned* weight_amax;    // (layers + 1, 4)
    CodeCounts* counts;       // (layers + 1, 8); follows the magnitudes: one memset zeroes all
    float* ln_row_scales;     // (tokens) of LayerNorm's latest output in int8
    // of weights in int8: of a layer's rows of qkv (3C) and of fc (4C), then of the next one's; of the classifier's (Vp)
    nv_bfloat16* weight_row_scales;
    const floatX* params;    // the model's weights
    uint8_t* weights;        // their codes: a matrix's at the place that it has in params
    uint8_t* weight_columns; // those of its transpose
    uint8_t* inp_columns;    // (layers, 3, kept_bytes) of the inputs (tokens,C) of the linears but fcproj
    size_t kept_bytes;
    const Fp8Inputs* inputs; // (layers + 1)
    // operands of the next GEMMs
    uint8_t* inp;                 // an input; backward: fcproj's, in columns
    uint8_t *dout, *dout_columns; // an output's gradient, but fc's
    uint8_t *dfch, *dfch_columns; // fc's, computed while fcproj's is still needed
    // before: dfch is fcproj's input, if `fused`; dfch_columns is the classifier's input, until the blocks' backward pass
    float2* statistics; // of the classifier's rows
    int dout_of;        // of the gradient whose codes dout holds: its scale's index; -1: none
};

static inline size_t fp8_delayed(int layers) { return (size_t)FP8_DELAYED * (layers + 1); }

// ----------------------------------------------------------------------------
// qkv, fc, dgelu and the classifier on Hopper, of 8-bit operands: the kernels of wgmma_fp8.cuh, compiled in matmul.cu. Of all
// but dgelu both operands are in int8.
static inline int fp8_fuses(int capability) { return capability == 90; }

// Where they write codes, and the scales of these: of act (R,4C) in rows, or of dpre (R,4C) in both and of act in columns
struct Fp8Outputs {
    uint8_t *rows, *columns, *act_columns;
    const float *scale, *act_scale;
    unsigned* amax;            // largest magnitude of the tensor that rows has the codes of
    CodeCounts* counts = NULL; // of rows, if given
};
// out (R,OUT)
Status fp8_qkv(const MatmulTensors* t, MatmulSizes s, cudaStream_t stream);
// pre (R,OUT) and the codes of gelu(pre)
Status fp8_fc(const MatmulTensors* t, const Fp8Outputs& out, MatmulSizes s, cudaStream_t stream);
// logits (R,OUT), and what classifier_statistics() computes of them; losses likewise. scratch: fp8_classifier_scratch_bytes(s)
size_t fp8_classifier_scratch_bytes(MatmulSizes s);
Status fp8_classifier(const MatmulTensors* t, float2* statistics, MatmulSizes s, void* scratch, cudaStream_t stream);
// The codes of dpre and of gelu(pre); dbias += column sums of dpre. scratch: quantize_scratch_bytes(R, IN)
Status fp8_dgelu(const MatmulTensors* t, const Fp8Outputs& out, MatmulSizes s, void* scratch, cudaStream_t stream);

// ----------------------------------------------------------------------------
// Memory

// Why fp8 does not train in micro-batches of so many tokens: all dimensions of cuBLASLt's 8-bit GEMMs are multiples of 16, as
// channels always are, and quantize()'s grid has an end.
static inline Status fp8_check(size_t tokens) {
    DeviceCode code;
    if (sizeof(floatX) == 4) { return status_fail("--fp8 is of bf16 builds; this one is fp32"); }
    if (device_code(&code) == STATUS_OK && code.capability < 89) {
        return status_fail("--fp8 needs a GPU of compute capability 8.9 or newer; this one has %d.%d",
                           code.capability / 10, code.capability % 10);
    }
    status_clear();
    if (tokens % 16 == 0 && tokens <= MOST_QUANTIZE_ROWS) { return STATUS_OK; }
    return status_fail("--fp8 needs micro-batches (-b times -t) in multiples of 16 tokens up to %d, not %zu",
                       MOST_QUANTIZE_ROWS, tokens);
}

// Rows of the classifier at a time: half of a batch where that is possible, and at most 8192 where that divides it. Fewer leave
// room for operands in the logits' buffer.
static inline int fp8_classifier_rows(size_t tokens) {
    size_t rows = tokens % 32 == 0 ? tokens / 2 : tokens;
    while (rows > 8192 && rows % 32 == 0) { rows /= 2; }
    return (int)rows;
}

// Places, in bytes from the beginning of fp8's memory or, of operands, of theirs
struct Fp8Memory {
    size_t scales, amax, counts, weight_scales, weight_amax, statistics, ln_row_scales, weight_row_scales, weights;
    size_t weight_columns, inp_columns, own;
    size_t kept; // bytes of an input's columns
    size_t inp, dfch, dfch_columns, dout, dout_columns;
    size_t logits; // bytes of the logits' buffer before the operands
    int in_logits; // 1: the operands have room there; 0: they follow `own`
    size_t bytes;  // of fp8's memory
};
static inline Fp8Memory fp8_memory(GPT2Config config, size_t elements, size_t tokens) {
    const size_t C = config.channels, Vp = config.padded_vocab_size, rows = fp8_classifier_rows(tokens);
    const size_t small = size_round_up(fp8_delayed(config.num_layers) * sizeof(E4m3Scale), 256); // scales, magnitudes
    const size_t codes = size_round_up(elements, 256), fch = size_round_up(4 * C * tokens, 256);
    const size_t dout = size_round_up(3 * C * tokens > rows * Vp ? 3 * C * tokens : rows * Vp, 256);
    Fp8Memory m;
    m.scales = 0, m.weight_scales = small, m.amax = 2 * small, m.weight_amax = 3 * small, m.counts = 4 * small;
    m.statistics = m.counts + size_round_up(fp8_delayed(config.num_layers) * sizeof(CodeCounts), 256);
    m.ln_row_scales = m.statistics + size_round_up(rows * sizeof(float2), 256);
    m.weight_row_scales = m.ln_row_scales + size_round_up(tokens * sizeof(float), 256);
    m.weights = m.weight_row_scales + size_round_up((7 * C * config.num_layers + Vp) * sizeof(nv_bfloat16), 256);
    m.weight_columns = m.weights + codes, m.inp_columns = m.weight_columns + codes;
    m.kept = size_round_up(C * tokens, 256), m.own = m.inp_columns + config.num_layers * FP8_FCPROJ * m.kept;
    m.inp = 0, m.dfch = fch, m.dfch_columns = 2 * fch, m.dout = 3 * fch, m.dout_columns = m.dout + dout;
    m.logits = size_round_up(rows * Vp * sizeof(floatX), 256);
    m.in_logits = m.logits + m.dout_columns + dout <= tokens * Vp * sizeof(floatX);
    m.bytes = m.own + (m.in_logits ? 0 : m.dout_columns + dout);
    return m;
}

// memory: zeros; logits: (tokens, Vp) floatX; inputs (layers + 1) and params stay where they are.
static inline void fp8_create(Fp8* f, Fp8Memory m, void* memory, void* logits, const floatX* params,
                              const Fp8Inputs* inputs, int layers, int capability) {
    uint8_t *own = (uint8_t*)memory, *operands = m.in_logits ? (uint8_t*)logits + m.logits : own + m.own;
    *f = {};
    f->layers = layers, f->cold = 1, f->dout_of = -1;
    f->fused = fp8_fuses(capability);
    f->scales = (E4m3Scale*)(own + m.scales), f->amax = (unsigned*)(own + m.amax);
    f->counts = (CodeCounts*)(own + m.counts);
    f->weight_scales = (E4m3Scale*)(own + m.weight_scales), f->weight_amax = (unsigned*)(own + m.weight_amax);
    f->statistics = (float2*)(own + m.statistics);
    f->ln_row_scales = (float*)(own + m.ln_row_scales);
    f->weight_row_scales = (nv_bfloat16*)(own + m.weight_row_scales);
    f->params = params, f->weights = own + m.weights, f->weight_columns = own + m.weight_columns;
    f->inp_columns = own + m.inp_columns, f->kept_bytes = m.kept;
    f->inputs = inputs;
    f->inp = operands + m.inp, f->dfch = operands + m.dfch, f->dfch_columns = operands + m.dfch_columns;
    f->dout = operands + m.dout, f->dout_columns = operands + m.dout_columns;
}

// ----------------------------------------------------------------------------
// Operands

// A block's linear layer of these sizes
static inline int fp8_linear(const Fp8* f, int layer, int IN, int OUT) {
    return layer == f->layers ? FP8_CLASSIFIER
           : OUT == 3 * IN    ? FP8_QKV
           : OUT == IN        ? FP8_ATTPROJ
           : OUT == 4 * IN    ? FP8_FC
                              : FP8_FCPROJ;
}

// Whether its input, LayerNorm's output, and its weights are in int8 in the forward pass. The classifier is, too.
static inline bool fp8_in_int8(const Fp8* f, int linear) {
    static_assert(FP8_CLASSIFIER == FP8_QKV, "which is in int8, too");
    return f->fused && (linear == FP8_QKV || linear == FP8_FC);
}
// The scales of its weights' rows then. C: its channels
static inline nv_bfloat16* fp8_weight_row_scales(const Fp8* f, int layer, int linear, int C) {
    return f->weight_row_scales + (size_t)7 * C * layer + (linear == FP8_FC ? 3 * C : 0);
}
// What LayerNorm writes beside mean and rstd
static inline float* fp8_ln_row_scales(const Fp8* f) { return f->fused && !f->cold ? f->ln_row_scales : NULL; }

// Quantises the weights (OUT,IN) of a linear layer of `blocks` blocks from block `layer` on, `stride` elements apart; their
// magnitudes are collected before, by collect = true and scales_of().
static inline void fp8_weights(Fp8* f, int layer, int blocks, size_t stride, bool collect, const floatX* weight, int IN,
                               int OUT, cudaStream_t stream) {
    const int linear = fp8_linear(f, layer, IN, OUT), i = layer * FP8_LINEARS + linear;
    const size_t at = (size_t)(weight - f->params);
    const QuantizeBatch batch = {blocks, stride, FP8_LINEARS};
    const bool int8 = fp8_in_int8(f, linear);
    nv_bfloat16* row_scales = int8 ? fp8_weight_row_scales(f, layer, linear, IN) : NULL;
    const size_t scales_stride = (size_t)7 * IN;
    auto quantize_source = [&](const auto& source) {
        quantize(f->weights + at, f->weight_columns + at, NULL, source, &f->weight_scales[i].value, OUT, IN, stream,
                 NULL, NULL, batch);
    };
    if (collect && int8) {
        int8_scales(row_scales, scales_stride, &f->weight_amax[i], weight, OUT, IN, stream, batch);
    } else if (collect) {
        collect_amax(&f->weight_amax[i], weight, (size_t)OUT * IN, stream, batch);
    } else if (int8) {
        quantize_source(Int8StoredSource{{weight, stride}, row_scales, scales_stride});
    } else {
        quantize_source(StoredSource{weight, stride});
    }
}

// The columns of a linear layer's input. The classifier's are of the rows that it is computed for, in what is free until the
// blocks' backward pass.
static inline uint8_t* fp8_inp_columns(const Fp8* f, int layer, int linear) {
    return layer == f->layers     ? f->dfch_columns
           : linear == FP8_FCPROJ ? f->inp
                                  : f->inp_columns + (layer * FP8_FCPROJ + linear) * f->kept_bytes;
}

// The codes of a linear layer's input (R,C), in f->inp and in its columns, from row `row` on; stored: the tensor, for attproj.
static inline void fp8_input(Fp8* f, int layer, int row, int linear, const floatX* stored, int R, int C,
                             cudaStream_t stream) {
    const int i = layer * FP8_DELAYED + linear;
    const Fp8Inputs* inputs = &f->inputs[layer];
    uint8_t* columns = fp8_inp_columns(f, layer, linear);
    auto quantize_source = [&](const auto& source) {
        quantize(f->inp, columns != f->inp ? columns : NULL, &f->amax[i], source, &f->scales[i].value, R, C, stream,
                 NULL, NULL, QuantizeBatch(), &f->counts[i]);
    };
    if (linear == FP8_ATTPROJ && layer < f->layers) { return quantize_source(StoredSource{stored}); }
    if (linear == FP8_FCPROJ) { return quantize_source(inputs->fcproj); }
    LayerNormSource norm = linear == FP8_FC ? inputs->fc : inputs->qkv;
    norm.x += (size_t)row * C, norm.mean += row, norm.rstd += row;
    if (fp8_in_int8(f, linear)) { return quantize_source(Int8LayerNormSource{norm, f->ln_row_scales + row}); }
    quantize_source(norm);
}

// Only the magnitudes
static inline void fp8_collect(Fp8* f, int layer, int linear, const MatmulTensors* t, MatmulSizes s,
                               cudaStream_t stream) {
    const int inp = layer * FP8_DELAYED + linear, dout = inp + FP8_LINEARS;
    if (!t->dout) {
        f->dout_of = -1;
        collect_amax(&f->amax[inp], t->inp, (size_t)s.R * s.IN, stream);
    } else if (f->dout_of != dout) {
        f->dout_of = dout;
        collect_amax(&f->amax[dout], t->dout, (size_t)s.R * s.OUT, stream);
    }
}

// Before a group's GEMM: replaces inp, weight and dout by the operands a and b, and the outputs that fp8 computes otherwise.
// Returns the group to launch: a GEMM without what fp8_after() does.
static inline MatmulGroup fp8_before(Fp8* f, int layer, int row, MatmulGroup group, MatmulTensors* t, MatmulSizes s,
                                     cudaStream_t stream) {
    const int linear = fp8_linear(f, layer, s.IN, s.OUT), inp = layer * FP8_DELAYED + linear, dout = inp + FP8_LINEARS;
    if (f->cold) {
        fp8_collect(f, layer, linear, t, s, stream);
        return group;
    }
    const size_t at = t->weight ? (size_t)(t->weight - f->params) : 0;
    t->b_scale = &f->weight_scales[layer * FP8_LINEARS + linear].value;
    if (!t->dout) { // forward; by_fc: its epilogue has quantised fcproj's input
        const bool by_fc = f->fused && linear == FP8_FCPROJ;
        f->dout_of = -1;
        if (!by_fc) { fp8_input(f, layer, row, linear, t->inp, s.R, s.IN, stream); }
        t->a = by_fc ? f->dfch : f->inp, t->a_scale = &f->scales[inp].value, t->b = f->weights + at;
        t->ln = NULL, t->ln_row_scales = fp8_ln_row_scales(f);
        if (fp8_in_int8(f, linear)) {
            t->a_row_scales = f->ln_row_scales + row, t->b_row_scales = fp8_weight_row_scales(f, layer, linear, s.IN);
        }
        if (group == MATMUL_FC) { t->out = t->pre; }
        if (group == MATMUL_CLASSIFIER) { t->out = t->logits; }
        return group == MATMUL_RESIDUAL ? group : MATMUL_QKV;
    }
    const bool of_fc = linear == FP8_FC;
    if (!of_fc && f->dout_of != dout) {
        f->dout_of = dout;
        const StoredSource source = {t->dout};
        quantize(f->dout, f->dout_columns, &f->amax[dout], source, &f->scales[dout].value, s.R, s.OUT, stream, NULL,
                 NULL, QuantizeBatch(), &f->counts[dout]);
    }
    t->a_scale = &f->scales[dout].value;
    if (group == MATMUL_WEIGHT) {
        t->a = of_fc ? f->dfch_columns : f->dout_columns;
        t->b = fp8_inp_columns(f, layer, linear), t->b_scale = &f->scales[inp].value;
        return group;
    }
    t->a = of_fc ? f->dfch : f->dout, t->b = f->weight_columns + at;
    if (group == MATMUL_DGELU) { t->dinp = t->dpre; }
    return MATMUL_INPUT;
}

// The codes of the gradient of the logits, which are not counted: that many are 0 is no loss with dither.
static inline void fp8_quantize_logits(Fp8* f, int layer, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    const int dlogits = layer * FP8_DELAYED + FP8_LINEARS;
    const LogitGradientSource source = {t->logits, f->statistics, t->targets, t->gradient_scale, s.vocab_size};
    quantize(f->dout, f->dout_columns, &f->amax[dlogits], source, &f->scales[dlogits].value, s.R, s.OUT, stream);
    f->dout_of = dlogits;
}

// In place of the GEMM, where that is fused; returns whether it is. In the forward pass dfch is free for fcproj's input.
static inline bool fp8_launch_fused(Fp8* f, int layer, MatmulGroup group, const MatmulTensors* t, MatmulSizes s,
                                    void* scratch, cudaStream_t stream) {
    const int act = layer * FP8_DELAYED + FP8_FCPROJ, dfch = layer * FP8_DELAYED + FP8_LINEARS + FP8_FC;
    const float *act_scale = &f->scales[act].value, *scale = &f->scales[dfch].value;
    if (f->cold || !f->fused) { return false; }
    if (group == MATMUL_QKV) {
        fp8_qkv(t, s, stream);
        return true;
    }
    if (group == MATMUL_FC) {
        fp8_fc(t, {f->dfch, NULL, NULL, act_scale, NULL, &f->amax[act], &f->counts[act]}, s, stream);
        return true;
    }
    if (group == MATMUL_CLASSIFIER) {
        fp8_classifier(t, f->statistics, s, scratch, stream);
        fp8_quantize_logits(f, layer, t, s, stream);
        return true;
    }
    if (group != MATMUL_DGELU) { return false; }
    uint8_t* act_columns = fp8_inp_columns(f, layer, FP8_FCPROJ);
    fp8_dgelu(t, {f->dfch, f->dfch_columns, act_columns, scale, act_scale, &f->amax[dfch], &f->counts[dfch]}, s,
              scratch, stream);
    return true;
}

// After it: the gradients of fc's output and of the logits are quantised where they are computed.
static inline void fp8_after(Fp8* f, int layer, MatmulGroup group, const MatmulTensors* t, MatmulSizes s, void* scratch,
                             cudaStream_t stream) {
    if (f->cold) { return; }
    if (group == MATMUL_DGELU) {
        const int act = layer * FP8_DELAYED + FP8_FCPROJ, dfch = layer * FP8_DELAYED + FP8_LINEARS + FP8_FC;
        const GeluGradientSource source = {t->dpre, t->pre, fp8_inp_columns(f, layer, FP8_FCPROJ),
                                           &f->scales[act].value};
        quantize(f->dfch, f->dfch_columns, &f->amax[dfch], source, &f->scales[dfch].value, s.R, s.IN, stream, t->dbias,
                 (float*)scratch, QuantizeBatch(), &f->counts[dfch]);
    }
    if (group == MATMUL_CLASSIFIER) {
        classifier_statistics(f->statistics, t->losses, t->logits, t->targets, t->gradient_scale, s.R, s.vocab_size,
                              s.OUT, stream);
        fp8_quantize_logits(f, layer, t, s, stream);
    }
}

// Before a step: no magnitudes, no counts
static inline void fp8_clear(Fp8* f, cudaStream_t stream) {
    const size_t bytes = (size_t)((char*)(f->counts + fp8_delayed(f->layers)) - (char*)f->amax);
    cuda_try(cudaMemsetAsync(f->amax, 0, bytes, stream));
}

// After a step whose magnitudes are amax (sets, layers + 1, 8), one set for each process: the scales of the next one
static inline void fp8_next_scales(Fp8* f, const float* amax, int sets, QuantizedStep step, cudaStream_t stream) {
    step.counts = f->counts;
    scales_of(f->scales, amax, sets, (int)fp8_delayed(f->layers), FP8_HEADROOM, stream, step);
}

#endif
