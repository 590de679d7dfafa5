/*
The embedding on the CPU: out (B,T,C) = wte[token] + wpe[position]. tokens (B,T), wte (Vp,C), wpe (maxT,C).
*/
#ifndef LLMC_CPU_ENCODER_H
#define LLMC_CPU_ENCODER_H

#include "vector.h"

static inline void encoder_forward(float* out, const int* tokens, const float* wte, const float* wpe, size_t B,
                                   size_t T, size_t C) {
#pragma omp parallel for schedule(dynamic, 4)
    for (size_t bt = 0; bt < B * T; bt++) {
        const float *token = wte + (size_t)tokens[bt] * C, *position = wpe + bt % T * C;
        for (size_t c = 0; c < C; c++) { out[bt * C + c] = token[c] + position[c]; }
    }
}

// dwte[token] += dout,  dwpe[position] += dout. A thread owns 64 channels and adds all tokens in order: no races, and the
// sums do not depend on the number of threads.
static inline void encoder_backward(float* dwte, float* dwpe, const float* dout, const int* tokens, size_t B, size_t T,
                                    size_t C) {
    enum { COLUMNS = 64 };
#pragma omp parallel for schedule(dynamic)
    for (size_t first = 0; first < C; first += COLUMNS) {
        size_t end = C - first < COLUMNS ? C : first + COLUMNS;
        for (size_t bt = 0; bt < B * T; bt++) {
            float *token = dwte + (size_t)tokens[bt] * C, *position = dwpe + bt % T * C;
            for (size_t c = first; c < end; c++) { token[c] += dout[bt * C + c]; }
            for (size_t c = first; c < end; c++) { position[c] += dout[bt * C + c]; }
        }
    }
}

#endif
