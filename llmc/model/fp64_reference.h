/*
A GEMM and causal attention in fp64 on the host, forward and backward, written as their equations: the reference of --doctor,
for small shapes.
*/
#ifndef LLMC_MODEL_FP64_REFERENCE_H
#define LLMC_MODEL_FP64_REFERENCE_H

#include <math.h>

#include "llmc/base/utils.h"

// x.y
static inline double fp64_dot_(const float* x, const float* y, size_t n) {
    double sum = 0.0;
    for (size_t d = 0; d < n; d++) { sum += (double)x[d] * (double)y[d]; }
    return sum;
}

// out (N, OC) = inp (N, C) W^T, W (OC, C)
static inline void fp64_gemm(double* out, const float* inp, const float* weight, size_t N, size_t C, size_t OC) {
    for (size_t i = 0; i < N; i++) {
        for (size_t o = 0; o < OC; o++) { out[i * OC + o] = fp64_dot_(inp + i * C, weight + o * C, C); }
    }
}

// One head of one sequence: q, k, v are rows of `stride` numbers, out and dout of NH * HS; dq, dk and dv are added to.
// P_ij = softmax_j(q_i.k_j / sqrt(HS)),  o_i = sum_j P_ij v_j,  dS_ij = P_ij (do_i.v_j - sum_j P_ij do_i.v_j) / sqrt(HS)
static inline void fp64_attention_head_(double* out, double* dq, const float* q, const float* dout, size_t T, size_t NH,
                                        size_t HS) {
    size_t stride = 3 * NH * HS, C = NH * HS;
    const float *k = q + C, *v = k + C;
    double *dk = dq + C, *dv = dk + C, scale = 1.0 / sqrt((double)HS);
    double* P = (double*)malloc_check(2 * T * sizeof(double));
    double* dP = P + T;
    for (size_t i = 0; i < T; i++) {
        double maximum = -INFINITY, sum = 0.0, D = 0.0;
        for (size_t j = 0; j <= i; j++) {
            P[j] = fp64_dot_(q + i * stride, k + j * stride, HS) * scale;
            dP[j] = fp64_dot_(dout + i * C, v + j * stride, HS);
            maximum = P[j] > maximum ? P[j] : maximum;
        }
        for (size_t j = 0; j <= i; j++) { sum += P[j] = exp(P[j] - maximum); }
        for (size_t j = 0; j <= i; j++) { P[j] /= sum, D += P[j] * dP[j]; }
        for (size_t j = 0; j <= i; j++) {
            double dS = P[j] * (dP[j] - D) * scale;
            for (size_t d = 0; d < HS; d++) {
                out[i * C + d] += P[j] * (double)v[j * stride + d];
                dv[j * stride + d] += P[j] * (double)dout[i * C + d];
                dq[i * stride + d] += dS * (double)k[j * stride + d];
                dk[j * stride + d] += dS * (double)q[i * stride + d];
            }
        }
    }
    free(P);
}

// out (B,T,NH,HS) and dqkv (B,T,3,NH,HS) from qkv (B,T,3,NH,HS) and dout (B,T,NH,HS)
static inline void fp64_attention(double* out, double* dqkv, const float* qkv, const float* dout, size_t B, size_t T,
                                  size_t NH, size_t HS) {
    memset(out, 0, B * T * NH * HS * sizeof(double));
    memset(dqkv, 0, B * T * 3 * NH * HS * sizeof(double));
    for (size_t b = 0; b < B; b++) {
        for (size_t h = 0; h < NH; h++) {
            size_t at = b * T * NH * HS + h * HS, qkv_at = b * T * 3 * NH * HS + h * HS;
            fp64_attention_head_(out + at, dqkv + qkv_at, qkv + qkv_at, dout + at, T, NH, HS);
        }
    }
}

// |x - reference| / |reference|, in the Euclidean norm; NaN where x holds a NaN
static inline double fp64_error(const float* x, const double* reference, size_t n) {
    double error = 0.0, sum = 0.0;
    for (size_t i = 0; i < n; i++) {
        error += ((double)x[i] - reference[i]) * ((double)x[i] - reference[i]);
        sum += reference[i] * reference[i];
    }
    return sqrt(error / sum);
}

#endif
