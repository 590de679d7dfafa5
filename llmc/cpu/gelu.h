/*
GELU on the CPU, in the tanh form that GPT-2 uses (Hendrycks and Gimpel 2016):

    gelu(x) = x/2 (1 + tanh u),    u = sqrt(2/pi) (x + 0.044715 x^3)

Since (1 + tanh u)/2 = 1/(1 + exp(-2u)) = s, gelu(x) = x s, without the cancellation of 1 + tanh u for negative u; and
its derivative is s + x s (1 - s) 2u'.
*/
#ifndef LLMC_CPU_GELU_H
#define LLMC_CPU_GELU_H

#include "vector.h"

#define GELU_TWO_SQRT_2_OVER_PI 1.59576912f // 2 sqrt(2/pi)

ALWAYS_INLINE vec gelu_sigmoid(vec x) {
    vec two_u = GELU_TWO_SQRT_2_OVER_PI * x * (1.0f + 0.044715f * (x * x));
    return 1.0f / (1.0f + vec_exp(-two_u));
}

// out = gelu(inp), n elements
static inline void gelu_forward(float* out, const float* inp, size_t n) {
#pragma omp parallel for schedule(dynamic, 1024)
    for (size_t i = 0; i < n; i += LANES) {
        size_t lanes = n - i < LANES ? n - i : LANES;
        vec x = lanes == LANES ? vec_load(inp + i) : vec_load_first(inp + i, lanes, 0.0f);
        vec y = x * gelu_sigmoid(x);
        if (lanes == LANES) {
            vec_store(out + i, y);
        } else {
            vec_store_first(out + i, y, lanes);
        }
    }
}

// d <- d gelu'(inp), in place, n elements
static inline void gelu_backward(float* d, const float* inp, size_t n) {
#pragma omp parallel for schedule(dynamic, 1024)
    for (size_t i = 0; i < n; i += LANES) {
        size_t lanes = n - i < LANES ? n - i : LANES;
        vec x = lanes == LANES ? vec_load(inp + i) : vec_load_first(inp + i, lanes, 0.0f);
        vec dy = lanes == LANES ? vec_load(d + i) : vec_load_first(d + i, lanes, 0.0f);
        vec s = gelu_sigmoid(x);
        vec two_du = GELU_TWO_SQRT_2_OVER_PI * (1.0f + 3 * 0.044715f * (x * x));
        vec dx = dy * (s + x * s * (1.0f - s) * two_du);
        if (lanes == LANES) {
            vec_store(d + i, dx);
        } else {
            vec_store_first(d + i, dx, lanes);
        }
    }
}

#endif
