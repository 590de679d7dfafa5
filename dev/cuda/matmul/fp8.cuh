/*
The matmul groups of a training step in e4m3 (llmc/cuda/e4m3.cuh): operands are quantised before the GEMM that reads them first.

Each operand has one scale. A weight's follows from its numbers, once an update. That of an activation or of a gradient is
delayed: it follows from the largest magnitude in the step before, over all micro-batches and processes, and holds for a whole
step; HEADROOM is how much larger the tensor may be in the next one. The first step has no scales: it is `cold`, its GEMMs are
those of 16 bits, and only the magnitudes are collected.

The four linear layers of a transformer block are known by their sizes; as block number `layers` counts the classifier, which
is one.
*/
#ifndef MATMUL_FP8_CUH
#define MATMUL_FP8_CUH

#include "matmul.h"
#include "llmc/cuda/quantize.cuh"

constexpr int FP8_LINEARS = 4; // qkv, attproj, fc, fcproj
constexpr int FP8_DELAYED =
    2 * FP8_LINEARS; // delayed scales of a block: of the linears' inputs, of their outputs' gradients
constexpr float FP8_HEADROOM = 2;

struct Fp8 {
    int layers;           // of the model; scales and magnitudes have a block more
    int cold;             // 1: there are no scales yet
    float* scales;        // (layers + 1, 8) delayed
    unsigned* amax;       // (layers + 1, 8) of the step so far
    float* weight_scales; // (layers + 1, 4)
    unsigned* weight_amax;
    const floatX* params; // the model's weights
    uint8_t *weights,
        *weight_columns; // their codes, of a matrix and of its transpose at the place that it has in params
    uint8_t *inp, *dout, *dout_columns; // codes of operands
    int layer;                          // of the next group
    int dout_of;                        // the scale of what dout holds; -1: nothing
};

static inline size_t fp8_delayed(int layers) { return (size_t)FP8_DELAYED * (layers + 1); }

// A block's linear layer of these sizes
static inline int fp8_linear(const Fp8* f, int IN, int OUT) {
    return f->layer == f->layers ? 0 : OUT == 3 * IN ? 0 : OUT == IN ? 1 : OUT == 4 * IN ? 2 : 3;
}

// Quantises the weights (OUT,IN) of a linear layer of block f->layer; their magnitudes are collected before, by collect = true
// and scales_of().
static inline void fp8_weight(Fp8* f, bool collect, const floatX* weight, int IN, int OUT, cudaStream_t stream) {
    const int i = f->layer * FP8_LINEARS + fp8_linear(f, IN, OUT);
    const size_t at = (size_t)(weight - f->params);
    if (collect) {
        collect_amax(&f->weight_amax[i], weight, (size_t)OUT * IN, stream);
    } else {
        quantize(f->weights + at, f->weight_columns + at, NULL, weight, &f->weight_scales[i], OUT, IN, stream);
    }
}

// Replaces inp, weight and dout of a group by its operands a and b. Where it is cold, only their magnitudes are collected.
static inline void fp8_operands(Fp8* f, MatmulGroup group, MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    const int linear = fp8_linear(f, s.IN, s.OUT), inp = f->layer * FP8_DELAYED + linear, dout = inp + FP8_LINEARS;
    const size_t at = t->weight ? (size_t)(t->weight - f->params) : 0;
    if (t->weight) { t->b_scale = &f->weight_scales[f->layer * FP8_LINEARS + linear]; }
    if (t->inp && group != MATMUL_WEIGHT) { // forward
        f->dout_of = -1;
        if (f->cold) { return collect_amax(&f->amax[inp], t->inp, (size_t)s.R * s.IN, stream); }
        quantize(f->inp, NULL, &f->amax[inp], t->inp, &f->scales[inp], s.R, s.IN, stream);
        t->a = f->inp, t->a_scale = &f->scales[inp], t->b = f->weights + at;
        return;
    }
    if (f->dout_of != dout) {
        f->dout_of = dout;
        if (f->cold) { return collect_amax(&f->amax[dout], t->dout, (size_t)s.R * s.OUT, stream); }
        quantize(f->dout, f->dout_columns, &f->amax[dout], t->dout, &f->scales[dout], s.R, s.OUT, stream);
    }
    if (f->cold) { return; }
    t->a_scale = &f->scales[dout];
    if (group != MATMUL_WEIGHT) {
        t->a = f->dout, t->b = f->weight_columns + at;
        return;
    }
    quantize(NULL, f->inp, NULL, t->inp, &f->scales[inp], s.R, s.IN, stream);
    t->a = f->dout_columns, t->b = f->inp, t->b_scale = &f->scales[inp];
}

// After a step whose magnitudes are amax (sets, layers + 1, 8), one set for each process: the scales of the next one.
static inline void fp8_next_scales(Fp8* f, const float* amax, int sets, cudaStream_t stream) {
    scales_of(f->scales, amax, sets, (int)fp8_delayed(f->layers), FP8_HEADROOM, stream);
    f->cold = 0;
}

#endif
