/*
What the CPU trainer does with all elements of its parameters: AdamW, the sums of squares for the norm of the gradients, the
check that each is finite, a digest.
*/
#ifndef LLMC_CPU_NUMBERS_H
#define LLMC_CPU_NUMBERS_H

#include <float.h>

#include "vector.h"
#include "llmc/model/host_device.h"
#include "llmc/model/parameter_layout.h"

// One step of AdamW (Loshchilov and Hutter 2019) for n parameters; weight decay acts on the first `decays` of them. m and v are
// their first and second moments, t counts steps from 1. Returns how many stayed as they were, with their moments, because the
// new value or second moment is not finite.
//
//     g = grad_scale grad,   m = beta1 m + (1 - beta1) g,   v = beta2 v + (1 - beta2) g^2
//     param -= lr (m / (1 - beta1^t) / (sqrt(v / (1 - beta2^t)) + eps) + weight_decay param)
static inline size_t adamw_update(float* params, float* m, float* v, const float* grads, size_t n, size_t decays,
                                  float lr, float beta1, float beta2, float eps, float weight_decay, float grad_scale,
                                  int t) {
    float m_scale = (float)(1.0 / (1.0 - pow((double)beta1, t)));
    float v_scale = (float)(1.0 / (1.0 - pow((double)beta2, t)));
    size_t kept = 0;
#pragma omp parallel for simd schedule(dynamic, 1 << 14) reduction(+ : kept)
    for (size_t i = 0; i < n; i++) {
        float g = grad_scale * grads[i];
        float m_i = beta1 * m[i] + (1.0f - beta1) * g;
        float v_i = beta2 * v[i] + (1.0f - beta2) * g * g;
        float decay = i < decays ? weight_decay : 0.0f;
        float param = params[i] - lr * (m_i * m_scale / (sqrtf(v_i * v_scale) + eps) + decay * params[i]);
        int finite = fabsf(param) <= FLT_MAX && v_i <= FLT_MAX; // if the first moment is not finite, nor is the weight
        m[i] = finite ? m_i : m[i];
        v[i] = finite ? v_i : v[i];
        params[i] = finite ? param : params[i];
        kept += finite ? 0 : 1;
    }
    return kept;
}

// sums[b] = the sum of x^2 over block b of LAYOUT_BLOCK elements, in fp64. The same bits for any number of threads.
static inline void square_blocks(double* sums, const float* x, size_t blocks) {
#pragma omp parallel for schedule(dynamic)
    for (size_t b = 0; b < blocks; b++) {
        const float* block = x + b * LAYOUT_BLOCK;
        double sum = 0.0;
#pragma omp simd reduction(+ : sum)
        for (size_t i = 0; i < LAYOUT_BLOCK; i++) { sum += (double)block[i] * (double)block[i]; }
        sums[b] = sum;
    }
}

typedef union { // clang does not make vectors of a loop that looks at bits by memcpy
    float number;
    uint32_t bits;
} FloatBits;

// 1 if each of n floats is finite: no exponent has all its bits set.
static inline int all_finite(const float* x, size_t n) {
    unsigned bad = 0;
#pragma omp parallel for simd schedule(dynamic, 1 << 14) reduction(| : bad) if (n > 1 << 16)
    for (size_t i = 0; i < n; i++) {
        FloatBits word = {x[i]};
        bad |= (word.bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

// The digest of n floats: host_device.h
static inline uint64_t float_digest(const float* x, size_t n) {
    uint64_t sum = 0;
#pragma omp parallel for simd schedule(dynamic, 1 << 14) reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        FloatBits word = {x[i]};
        sum += digest_mix(i, word.bits);
    }
    return sum;
}

#endif
