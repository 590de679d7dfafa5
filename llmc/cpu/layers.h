/*
The small layers on the CPU, forward and backward: embedding, LayerNorm, GELU, and softmax with cross entropy. The linear layers
are in matmul.h, attention in attention.h.
*/
#ifndef LLMC_CPU_LAYERS_H
#define LLMC_CPU_LAYERS_H

#include "vector.h"
#include "llmc/model/host_device.h"

// ----------------------------------------------------------------------------
// The embedding: out (B,T,C) = wte[token] + wpe[position]. tokens (B,T), wte (Vp,C), wpe (maxT,C). A position is that in the
// row or, with starts (B,T), in the document.

// starts (B,T): where the document of each token begins. A separator is the first token of a document; a row begins one.
static inline void document_starts(int* starts, const int* tokens, int separator, size_t B, size_t T) {
    for (size_t bt = 0, start = 0; bt < B * T; bt++) {
        start = bt % T == 0 || tokens[bt] == separator ? bt % T : start;
        starts[bt] = (int)start;
    }
}

static inline size_t encoder_position(const int* starts, size_t bt, size_t T) {
    return bt % T - (starts != NULL ? (size_t)starts[bt] : 0);
}

static inline void encoder_forward(float* out, const int* tokens, const int* starts, const float* wte, const float* wpe,
                                   size_t B, size_t T, size_t C) {
#pragma omp parallel for schedule(dynamic, 4)
    for (size_t bt = 0; bt < B * T; bt++) {
        const float *token = wte + (size_t)tokens[bt] * C, *position = wpe + encoder_position(starts, bt, T) * C;
        for (size_t c = 0; c < C; c++) { out[bt * C + c] = token[c] + position[c]; }
    }
}

// dwte[token] += dout,  dwpe[position] += dout. A thread owns 64 channels and adds all tokens in order: no races, and the
// sums do not depend on the number of threads.
static inline void encoder_backward(float* dwte, float* dwpe, const float* dout, const int* tokens, const int* starts,
                                    size_t B, size_t T, size_t C) {
    enum { COLUMNS = 64 };
#pragma omp parallel for schedule(dynamic)
    for (size_t first = 0; first < C; first += COLUMNS) {
        size_t end = C - first < COLUMNS ? C : first + COLUMNS;
        for (size_t bt = 0; bt < B * T; bt++) {
            float *token = dwte + (size_t)tokens[bt] * C, *position = dwpe + encoder_position(starts, bt, T) * C;
            for (size_t c = first; c < end; c++) { token[c] += dout[bt * C + c]; }
            for (size_t c = first; c < end; c++) { position[c] += dout[bt * C + c]; }
        }
    }
}

// ----------------------------------------------------------------------------
// LayerNorm (Ba, Kiros, Hinton 2016): each row of C channels is normalised to mean 0 and variance 1, then scaled and shifted.
// inp, out (BT,C); weight, bias (C); mean, rstd (BT), kept for the backward pass.

// One row:  n = (x - mean) rstd,  rstd = 1 / sqrt(var + epsilon),  out = n weight + bias
static inline void layernorm_row(float* out, float* mean, float* rstd, const float* x, const float* weight,
                                 const float* bias, size_t C) {
    float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (size_t c = 0; c < C; c++) { sum += x[c]; }
    float mu = sum / (float)C;
#pragma omp simd reduction(+ : squares)
    for (size_t c = 0; c < C; c++) { squares += (x[c] - mu) * (x[c] - mu); }
    float r = 1.0f / sqrtf(squares / (float)C + LAYERNORM_EPSILON);
    for (size_t c = 0; c < C; c++) { out[c] = (x[c] - mu) * r * weight[c] + bias[c]; }
    *mean = mu;
    *rstd = r;
}

static inline void layernorm_forward(float* out, float* mean, float* rstd, const float* inp, const float* weight,
                                     const float* bias, size_t BT, size_t C) {
#pragma omp parallel for schedule(dynamic, 4)
    for (size_t bt = 0; bt < BT; bt++) {
        layernorm_row(out + bt * C, mean + bt, rstd + bt, inp + bt * C, weight, bias, C);
    }
}

// With g = dout weight:  dinp = rstd (g - mean(g) - n mean(g n)),  dweight = sum over rows of dout n,  dbias of dout.
// dinp is added to where `accumulate_input`, dweight and dbias where `accumulate`.
static inline void layernorm_backward(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                                      const float* weight, const float* mean, const float* rstd, int accumulate_input,
                                      int accumulate, size_t BT, size_t C) {
#pragma omp parallel for schedule(dynamic, 4)
    for (size_t bt = 0; bt < BT; bt++) {
        const float *x = inp + bt * C, *dy = dout + bt * C;
        float mu = mean[bt], r = rstd[bt], sum_g = 0.0f, sum_gn = 0.0f;
#pragma omp simd reduction(+ : sum_g, sum_gn)
        for (size_t c = 0; c < C; c++) {
            float g = dy[c] * weight[c];
            sum_g += g;
            sum_gn += g * ((x[c] - mu) * r);
        }
        float mean_g = sum_g / (float)C, mean_gn = sum_gn / (float)C;
        float* dx = dinp + bt * C;
        for (size_t c = 0; c < C; c++) {
            float n = (x[c] - mu) * r;
            float d = r * (dy[c] * weight[c] - mean_g - n * mean_gn);
            dx[c] = accumulate_input ? dx[c] + d : d;
        }
    }
    enum { COLUMNS = 64 }; // a thread sums 64 columns over all rows, in order: no races
#pragma omp parallel for schedule(dynamic)
    for (size_t first = 0; first < C; first += COLUMNS) {
        size_t count = C - first < COLUMNS ? C - first : COLUMNS;
        float sum_n[COLUMNS] = {0}, sum[COLUMNS] = {0};
        for (size_t bt = 0; bt < BT; bt++) {
            const float *x = inp + bt * C + first, *dy = dout + bt * C + first;
            float mu = mean[bt], r = rstd[bt];
#pragma omp simd
            for (size_t c = 0; c < count; c++) {
                sum_n[c] += dy[c] * ((x[c] - mu) * r);
                sum[c] += dy[c];
            }
        }
        for (size_t c = 0; c < count; c++) {
            dweight[first + c] = (accumulate ? dweight[first + c] : 0.0f) + sum_n[c];
            dbias[first + c] = (accumulate ? dbias[first + c] : 0.0f) + sum[c];
        }
    }
}

// ----------------------------------------------------------------------------
// GELU, in the tanh form that GPT-2 uses (Hendrycks and Gimpel 2016):
//
//     gelu(x) = x/2 (1 + tanh u),    u = sqrt(2/pi) (x + 0.044715 x^3)
//
// Since (1 + tanh u)/2 = 1/(1 + exp(-2u)) = s, gelu(x) = x s, without the cancellation of 1 + tanh u for negative u; and its
// derivative is s + x s (1 - s) 2u'.

#define GELU_TWO_SQRT_2_OVER_PI 1.59576912f // 2 sqrt(2/pi)

ALWAYS_INLINE vec gelu_sigmoid(vec x) {
    vec two_u = GELU_TWO_SQRT_2_OVER_PI * x * (1.0f + 0.044715f * (x * x));
    return 1.0f / (1.0f + vec_exp(-two_u));
}

// out = gelu(inp), n elements
static inline void gelu_forward(float* out, const float* inp, size_t n) {
#pragma omp parallel for schedule(dynamic, 1024)
    for (size_t i = 0; i < n; i += LANES) {
        vec x = vec_load_first(inp + i, n - i, 0.0f);
        vec_store_first(out + i, x * gelu_sigmoid(x), n - i);
    }
}

// d <- d gelu'(inp), in place, n elements
static inline void gelu_backward(float* d, const float* inp, size_t n) {
#pragma omp parallel for schedule(dynamic, 1024)
    for (size_t i = 0; i < n; i += LANES) {
        vec x = vec_load_first(inp + i, n - i, 0.0f), dy = vec_load_first(d + i, n - i, 0.0f);
        vec s = gelu_sigmoid(x);
        vec two_du = GELU_TWO_SQRT_2_OVER_PI * (1.0f + 3 * 0.044715f * (x * x));
        vec_store_first(d + i, dy * (s + x * s * (1.0f - s) * two_du), n - i);
    }
}

// ----------------------------------------------------------------------------
// Softmax and cross entropy, fused: computes the losses from the logits and, in the same pass, overwrites the logits with their
// gradients.
//
//     loss = log sum_v exp(x_v) - x_target,    dx_v = dloss (exp(x_v) / sum - [v = target])
//
// logits (BT,Vp), of which V columns are vocabulary and the rest padding; targets, losses (BT).

// With `backward`, logits become their gradients for a gradient dloss of each loss; the padding's are 0. Without,
// logits stay as they are.
static inline void classifier(float* losses, float* logits, const int* targets, float dloss, int backward, size_t BT,
                              size_t V, size_t Vp) {
#pragma omp parallel for schedule(dynamic)
    for (size_t bt = 0; bt < BT; bt++) {
        float* x = logits + bt * Vp;
        size_t target = (size_t)targets[bt];
        vec largest = vec_set(-INFINITY), sums = vec_set(0.0f);
        for (size_t v = 0; v < V; v += LANES) { largest = vec_max(vec_load_first(x + v, V - v, -INFINITY), largest); }
        float max = vec_largest(largest), x_target = x[target];
        for (size_t v = 0; v < V; v += LANES) { // Vp is a multiple of LANES: the last vector may run into the padding
            vec e = vec_exp(vec_load_first(x + v, V - v, -INFINITY) - max);
            sums += e;
            if (backward) { vec_store(x + v, e); }
        }
        float sum = vec_sum(sums);
        losses[bt] = logf(sum) + max - x_target;
        if (backward) {
            float scale = dloss / sum;
            for (size_t v = 0; v < V; v++) { x[v] *= scale; }
            for (size_t v = V; v < Vp; v++) { x[v] = 0.0f; }
            x[target] -= dloss;
        }
    }
}

#endif
