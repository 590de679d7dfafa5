/*
Muon (model/muon.h) on the CPU, in fp32.
*/
#ifndef LLMC_CPU_MUON_H
#define LLMC_CPU_MUON_H

#include "matmul.h"
#include "numbers.h"
#include "llmc/model/muon.h"

// Floats of scratch for a matrix of so many rows and columns
static inline size_t muon_scratch(size_t rows, size_t cols) {
    size_t least = rows < cols ? rows : cols;
    return 2 * size_round_up(rows * cols, LAYOUT_BLOCK) + 2 * least * least;
}

// X = X / (‖X‖ + epsilon), of n floats with zeros up to a whole number of blocks. sums has a double for each block.
static inline void muon_normalise_(float* x, size_t n, double* sums) {
    double sum = 0.0;
    square_blocks(sums, x, CEIL_DIV(n, LAYOUT_BLOCK));
    for (size_t i = 0; i < CEIL_DIV(n, LAYOUT_BLOCK); i++) { sum += sums[i]; }
    float factor = 1.0f / ((float)sqrt(sum) + MUON_EPSILON);
#pragma omp parallel for simd schedule(dynamic, 1 << 14)
    for (size_t i = 0; i < n; i++) { x[i] *= factor; }
}

// The Newton-Schulz steps for X (m,n), m at most n. y is scratch like x, a and b of (m,m). Returns the result: x or y.
static inline float* muon_orthogonalise_(float* x, float* y, float* a, float* b, size_t m, size_t n) {
    for (int step = 0; step < MUON_STEPS; step++) {
        matmul_forward(a, NULL, x, x, NULL, m, n, m); // X Xᵀ
        matmul_forward(b, NULL, a, a, NULL, m, m, m); // A is symmetric
#pragma omp parallel for schedule(dynamic, 16)
        for (size_t i = 0; i < m; i++) {
            for (size_t j = 0; j < m; j++) { b[i * m + j] = MUON_B * a[i * m + j] + MUON_C * b[i * m + j]; }
            b[i * m + i] += MUON_A;
        }
        matmul_backward_input(y, b, x, m, n, m);
        float* result = y;
        y = x, x = result;
    }
    return x;
}

// One step for a matrix params (rows, cols) with its momentum and gradients. scratch has muon_scratch floats, sums a double for
// each LAYOUT_BLOCK elements. Returns how many weights stayed as they were because the new value is not finite.
static inline size_t muon_update(float* params, float* momentum, const float* grads, size_t rows, size_t cols, float lr,
                                 float mu, float weight_decay, float grad_scale, float* scratch, double* sums) {
    size_t m = rows < cols ? rows : cols, count = rows * cols, blocks = size_round_up(count, LAYOUT_BLOCK), kept = 0;
    float *x = scratch, *y = x + blocks, *a = y + blocks, *b = a + m * m;
    int tall = rows > cols;
    memset(x + count, 0, (blocks - count) * sizeof(float));
#pragma omp parallel for schedule(dynamic, 16)
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            size_t i = r * cols + c;
            float g = (1.0f - mu) * (grad_scale * grads[i]), moment = mu * momentum[i] + g;
            momentum[i] = fabsf(moment) <= FLT_MAX ? moment : momentum[i];
            x[tall ? c * rows + r : i] = mu * moment + g;
        }
    }
    muon_normalise_(x, count, sums);
    x = muon_orthogonalise_(x, y, a, b, m, count / m);
    float scale = muon_scale(rows, cols);
#pragma omp parallel for schedule(dynamic, 16) reduction(+ : kept)
    for (size_t r = 0; r < rows; r++) {
        for (size_t c = 0; c < cols; c++) {
            size_t i = r * cols + c;
            float param = params[i] - lr * (scale * x[tall ? c * rows + r : i] + weight_decay * params[i]);
            int finite = fabsf(param) <= FLT_MAX;
            params[i] = finite ? param : params[i];
            kept += !finite;
        }
    }
    return kept;
}

#endif
