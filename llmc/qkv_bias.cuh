/*
The gradient of the bias of q, k and v without a pass over theirs: each row of P adds up to 1 and each row of dS to 0, so the
column sums of what attention's backward pass writes are, of a head with sum over j <= i,

    dq  sums of the partial sums that this pass leaves (dev/cuda/attention.cuh)
    dk  sum_j sum_i dS_ij q_i = sum_i q_i sum_j dS_ij = 0: a bias of k moves all scores of a row alike, and softmax not at all
    dv  sum_j sum_i P_ij dO_i = sum_i dO_i = W^T sum_i dresidual_i, where dO = dresidual W is attproj's input gradient
*/
#ifndef LLMC_QKV_BIAS_CUH
#define LLMC_QKV_BIAS_CUH

#include "column_sum.cuh"
#include "cuda_common.cuh"

constexpr int QKV_BIAS_COLUMNS = 8, QKV_BIAS_THREADS = 1024; // of a thread block; 32 bytes of each row of fp32

// Block row 0: dbias of q; 1: of v.
static __global__ void __launch_bounds__(QKV_BIAS_THREADS)
    qkv_bias_backward_kernel(float* dbias, const float* dq_sums, const floatX* weight, const float* dresidual_sum,
                             int rows, int C) {
    constexpr int row_threads = QKV_BIAS_THREADS / QKV_BIAS_COLUMNS, warps = QKV_BIAS_THREADS / WARP_SIZE;
    __shared__ float sums[QKV_BIAS_COLUMNS][warps];
    const int x = threadIdx.x % QKV_BIAS_COLUMNS, c = blockIdx.x * QKV_BIAS_COLUMNS + x;
    const int first = threadIdx.x / QKV_BIAS_COLUMNS, warp = threadIdx.x / WARP_SIZE;
    float sum = 0.0f;
    if (c < C && blockIdx.y == 0) {
        sum = sum_rows(dq_sums + c, first, rows, row_threads, C);
    } else if (c < C) {
#pragma unroll 8
        for (int o = first; o < C; o += row_threads) { sum += dresidual_sum[o] * (float)weight[(size_t)o * C + c]; }
    }
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset >= QKV_BIAS_COLUMNS; offset /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if (threadIdx.x % WARP_SIZE < QKV_BIAS_COLUMNS) { sums[x][warp] = sum; }
    __syncthreads();
    if (threadIdx.x >= QKV_BIAS_COLUMNS || c >= C) { return; }
    for (int w = 1; w < warps; w++) { sum += sums[x][w]; }
    dbias[blockIdx.y * 2 * C + c] += sum;
}

// dbias (3C), fp32, += the column sums of dq, dk and dv; nothing is added to those of dk, which are 0. dq_sums (rows, C) add up
// to the column sums of dq; weight (C, C) is attproj's, and dresidual_sum (C) the column sums of the gradient of its output.
static inline void qkv_bias_backward(float* dbias, const float* dq_sums, const floatX* weight,
                                     const float* dresidual_sum, int rows, int C, cudaStream_t stream) {
    dim3 grid(CEIL_DIV(C, QKV_BIAS_COLUMNS), 2);
    qkv_bias_backward_kernel<<<grid, QKV_BIAS_THREADS, 0, stream>>>(dbias, dq_sums, weight, dresidual_sum, rows, C);
    cuda_try(cudaGetLastError());
}

#endif
