/*
LayerNorm (Ba, Kiros, Hinton 2016): y = (x - mean) * rstd * w + b over the channels, rstd = 1/sqrt(variance + 1e-5).

Forward is fused with the residual addition before it. Backward is fused with what reads the same rows: it adds to the
gradient of the residual stream in place, and sums over its columns for the gradients of w, of b, and of the bias of the
GEMM whose output was added to the residual stream. layernorm_kernels.cuh has the kernels.
*/
#ifndef LLMC_CUDA_LAYERNORM_CUH
#define LLMC_CUDA_LAYERNORM_CUH

#include "column_sum.cuh"
#include "common.cuh"

constexpr float INT8_LARGEST = 127;

// residual (N, C) = a + b and out (N, C) = layernorm(residual) with its mean and rstd (N). b NULL: out = layernorm(a). out
// NULL: it is not written. int8_scales (N), if given, = 1/127 of the largest magnitude of each row of out before it is rounded.
void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                const floatX* b, const floatX* weight, const floatX* bias, int N, int C,
                                cudaStream_t stream, float* int8_scales = NULL);

static inline void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                                     const floatX* bias, int N, int C, cudaStream_t stream, float* int8_scales = NULL) {
    residual_layernorm_forward(NULL, out, mean, rstd, inp, NULL, weight, bias, N, C, stream, int8_scales);
}

constexpr int LAYERNORM_MOST_CHANNELS = 640 * x128::size; // of backward: 5120 in 16 bit, 2560 in fp32

static inline Status layernorm_check(int C) {
    if (C <= LAYERNORM_MOST_CHANNELS) { return STATUS_OK; }
    return status_fail("LayerNorm of %d channels: a GPU trains at most %d in " PRECISION_NAME, C,
                       LAYERNORM_MOST_CHANNELS);
}

// Records an error for more channels than that.
static inline size_t layernorm_backward_scratch_bytes(int C) {
    layernorm_check(C);
    return 3 * column_sum_scratch_bytes(C);
}

// dresidual (N, C) += the gradient of layernorm's input (= with overwrite); dweight, dbias (C), fp32, +=.
// dresidual_sum (C), fp32, or NULL: += the column sums of the new dresidual, which is the gradient of the bias of the
// GEMM whose output was added to the residual stream. sum (C), fp32, or NULL: = these column sums alone. dout, inp (N, C);
// mean, rstd (N) from forward. C is a multiple of x128::size.
void layernorm_backward(floatX* dresidual, float* dweight, float* dbias, float* dresidual_sum, float* sum,
                        const floatX* dout, const floatX* inp, const floatX* weight, const float* mean,
                        const float* rstd, float* scratch, int N, int C, int overwrite, cudaStream_t stream);

#endif
