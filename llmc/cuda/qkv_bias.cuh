/*
The gradients of the biases of q, k and v without a pass over dqkv. Each row of P sums to 1 and each row of dS to 0, so the
column sums of dqkv are, for a head, with sums over j <= i:

    dq  the sum of dq_sums, partial sums that attention's backward pass writes (dev/cuda/attention/attention.cuh)
    dk  sum_j sum_i dS_ij q_i = sum_i q_i sum_j dS_ij = 0: a bias of k shifts all scores of a row alike; softmax is unchanged
    dv  sum_j sum_i P_ij dO_i = sum_i dO_i = W^T sum_i dresidual_i, where dO = dresidual W is attproj's input gradient
*/
#ifndef LLMC_CUDA_QKV_BIAS_CUH
#define LLMC_CUDA_QKV_BIAS_CUH

#include "common.cuh"

// The sum of x[row * stride] over rows first, first + step, ..., in this order; 16 loads are in flight.
__device__ inline float sum_rows(const float* x, int first, int rows, int step, size_t stride) {
    constexpr int ahead = 16;
    float sum = 0.0f;
    for (int row = first; row < rows; row += ahead * step) {
        float v[ahead];
#pragma unroll
        for (int i = 0; i < ahead; i++) { v[i] = row + i * step < rows ? x[(row + i * step) * stride] : 0.0f; }
#pragma unroll
        for (int i = 0; i < ahead; i++) { sum += v[i]; }
    }
    return sum;
}

constexpr int QKV_BIAS_WARPS = 32, QKV_BIAS_THREADS = QKV_BIAS_WARPS * WARP_SIZE;
constexpr int QKV_BIAS_LANES = 8; // threads that share a row: each has one column of q, or one vector of columns of v

// dbias[first + c] += the sum of v over the threads with the same threadIdx.x % QKV_BIAS_LANES, N columns of each, below C.
template <int N> __device__ inline void add_block_columns(float* dbias, const float (&v)[N], int first, int C) {
    __shared__ float sums[QKV_BIAS_WARPS][QKV_BIAS_LANES * N + 1];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
#pragma unroll
    for (int i = 0; i < N; i++) {
        float sum = v[i];
#pragma unroll
        for (int offset = WARP_SIZE / 2; offset >= QKV_BIAS_LANES; offset /= 2) {
            sum += __shfl_xor_sync(0xffffffffu, sum, offset);
        }
        if (lane < QKV_BIAS_LANES) { sums[warp][lane * N + i] = sum; }
    }
    __syncthreads();
    for (int i = warp; i < QKV_BIAS_LANES * N && first + i < C; i += QKV_BIAS_WARPS) {
        const float sum = warp_sum(sums[lane][i]);
        if (lane == 0) { dbias[first + i] += sum; }
    }
}

// The first blocks take q's columns, the others v's. __launch_bounds__ of one block per SM leaves registers for all loads in
// flight.
static __global__ void __launch_bounds__(QKV_BIAS_THREADS, 1)
    qkv_bias_backward_kernel(float* dbias, const float* dq_sums, const floatX* weight, const float* dresidual_sum,
                             int rows, int C) {
    constexpr int K = x128::size, row_threads = QKV_BIAS_THREADS / QKV_BIAS_LANES, ahead = 8;
    const int q_blocks = CEIL_DIV(C, QKV_BIAS_LANES), x = threadIdx.x % QKV_BIAS_LANES;
    const int begin = threadIdx.x / QKV_BIAS_LANES; // the thread's first row
    if (blockIdx.x < q_blocks) {
        const int first = blockIdx.x * QKV_BIAS_LANES;
        const float sum[1] = {first + x < C ? sum_rows(dq_sums + first + x, begin, rows, row_threads, C) : 0.0f};
        add_block_columns(dbias, sum, first, C);
        return;
    }
    const int first = (blockIdx.x - q_blocks) * QKV_BIAS_LANES * K, c = first + x * K;
    float sum[K] = {};
    for (int o = begin; o < C && c < C; o += ahead * row_threads) {
        x128 w[ahead] = {};
        float s[ahead];
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            const int row = o + i * row_threads;
            if (row < C) { w[i] = load128(weight + (size_t)row * C + c); }
            s[i] = row < C ? dresidual_sum[row] : 0.0f;
        }
#pragma unroll
        for (int i = 0; i < ahead; i++) {
            float x[K];
            unpack(x, w[i]);
#pragma unroll
            for (int k = 0; k < K; k++) { sum[k] = fmaf(s[i], x[k], sum[k]); }
        }
    }
    add_block_columns(dbias + 2 * C, sum, first, C);
}

// dbias (3C), fp32, += the column sums of dq, dk and dv; nothing is added to those of dk, which are 0. dq_sums (rows, C) add up
// to the column sums of dq; weight (C, C) is attproj's, and dresidual_sum (C) the column sums of the gradient of its output. C
// is a multiple of x128::size.
static inline void qkv_bias_backward(float* dbias, const float* dq_sums, const floatX* weight,
                                     const float* dresidual_sum, int rows, int C, cudaStream_t stream) {
    const int blocks = CEIL_DIV(C, QKV_BIAS_LANES) + CEIL_DIV(C, QKV_BIAS_LANES * x128::size);
    qkv_bias_backward_kernel<<<blocks, QKV_BIAS_THREADS, 0, stream>>>(dbias, dq_sums, weight, dresidual_sum, rows, C);
    cuda_try(cudaGetLastError());
}

#endif
