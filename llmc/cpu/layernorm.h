/*
LayerNorm on the CPU (Ba, Kiros, Hinton 2016): each row of C channels is normalised to mean 0 and variance 1, then scaled
and shifted. inp, out (BT,C); weight, bias (C); mean, rstd (BT), kept for the backward pass.
*/
#ifndef LLMC_CPU_LAYERNORM_H
#define LLMC_CPU_LAYERNORM_H

#include <math.h>

#include "vector.h"
#include "llmc/model/layernorm_epsilon.h"

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

#endif
