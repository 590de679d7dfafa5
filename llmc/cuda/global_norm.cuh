/*
The Euclidean norm of all gradients, and the mean of a step's losses, in a fixed order of additions that does not depend on the
number of processes. Blocks of LAYOUT_BLOCK elements of the memory of gradients are fixed (parameter_layout.h); each has a
partial sum of squares, which the process that owns it computes. All partial sums are then added up by one thread block, in
fp64.

And checks of all elements of a tensor: whether each is finite, and a digest of their bits. Both combine their results with
integer atomics, whose order does not matter.
*/
#ifndef LLMC_CUDA_GLOBAL_NORM_CUH
#define LLMC_CUDA_GLOBAL_NORM_CUH

#include "common.cuh"
#include "llmc/model/host_device.h"
#include "llmc/model/parameter_layout.h"

// The sum of x over all threads of the block, in thread 0. blockDim.x is a multiple of 32, at most 1024.
__device__ inline double block_sum_fp64(double x) {
    __shared__ double partial[WARP_SIZE];
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, warps = blockDim.x / WARP_SIZE;
    for (int i = WARP_SIZE / 2; i > 0; i /= 2) { x += __shfl_xor_sync(0xffffffffu, x, i); }
    if (lane == 0) { partial[warp] = x; }
    __syncthreads();
    x = warp == 0 && lane < warps ? partial[lane] : 0.0;
    for (int i = WARP_SIZE / 2; i > 0; i /= 2) { x += __shfl_xor_sync(0xffffffffu, x, i); }
    return x;
}

// The sum of x (n), in thread 0 of the only thread block; each thread has four accumulators.
__device__ inline double ordered_sum(const float* x, size_t n) {
    double sum[4] = {};
    size_t i = threadIdx.x, step = blockDim.x;
    for (; i + 3 * step < n; i += 4 * step) {
        for (int k = 0; k < 4; k++) { sum[k] += (double)x[i + k * step]; }
    }
    for (; i < n; i += step) { sum[0] += (double)x[i]; }
    return block_sum_fp64((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// One thread block per LAYOUT_BLOCK elements of x (n); elements past n count as 0.
__global__ void __launch_bounds__(512) block_squares_kernel(float* partials, const float* x, size_t n) {
    size_t begin = (size_t)blockIdx.x * LAYOUT_BLOCK;
    float sum = 0.0f;
#pragma unroll
    for (int k = 0; k < LAYOUT_BLOCK / (512 * f128::size); k++) {
        size_t i = begin + ((size_t)k * 512 + threadIdx.x) * f128::size;
        if (i + f128::size <= n) {
            f128 v = load128(x + i);
            sum += (v[0] * v[0] + v[1] * v[1]) + (v[2] * v[2] + v[3] * v[3]);
        } else {
            for (; i < n; i++) { sum += x[i] * x[i]; }
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) { partials[blockIdx.x] = sum; }
}

// partials (n / LAYOUT_BLOCK, rounded up): the sums of squares of blocks of x (n). x must begin at a block of the memory of
// gradients, and partials points to that block's element.
static inline void block_squares(float* partials, const float* x, size_t n, cudaStream_t stream) {
    if (n == 0) { return; }
    block_squares_kernel<<<(unsigned)CEIL_DIV(n, (size_t)LAYOUT_BLOCK), 512, 0, stream>>>(partials, x, n);
    cuda_try(cudaGetLastError());
}

__global__ void __launch_bounds__(1024) norm_of_blocks_kernel(float* norm, const float* partials, size_t num_blocks) {
    double sum = ordered_sum(partials, num_blocks);
    if (threadIdx.x == 0) { *norm = (float)sqrt(sum); }
}

// *norm, on the device, = the square root of the sum of partials (num_blocks)
static inline void norm_of_blocks(float* norm, const float* partials, size_t num_blocks, cudaStream_t stream) {
    norm_of_blocks_kernel<<<1, 1024, 0, stream>>>(norm, partials, num_blocks);
    cuda_try(cudaGetLastError());
}

__global__ void __launch_bounds__(1024) losses_mean_kernel(float* mean, const float* losses, size_t n, float scale) {
    double sum = ordered_sum(losses, n);
    if (threadIdx.x == 0) { *mean = (float)(sum * (double)scale); }
}

// *mean, on the device, = scale times the sum of losses (n), one for each micro-batch of the step, each a sum over its tokens
static inline void losses_mean(float* mean, const float* losses, size_t n, float scale, cudaStream_t stream) {
    losses_mean_kernel<<<1, 1024, 0, stream>>>(mean, losses, n, scale);
    cuda_try(cudaGetLastError());
}

// ----------------------------------------------------------------------------
// Checks of all elements

constexpr int NON_FINITE_BLOCKS = 1024, NON_FINITE_THREADS = 512;

static inline unsigned non_finite_grid(size_t n) {
    size_t blocks = CEIL_DIV(n, (size_t)NON_FINITE_THREADS);
    return (unsigned)(blocks < NON_FINITE_BLOCKS ? blocks : NON_FINITE_BLOCKS);
}

template <class T> __global__ void __launch_bounds__(NON_FINITE_THREADS)
    find_non_finite_kernel(unsigned* first, unsigned index, const T* x, size_t n) {
    int found = 0;
    size_t stride = (size_t)gridDim.x * NON_FINITE_THREADS;
    for (size_t i = (size_t)blockIdx.x * NON_FINITE_THREADS + threadIdx.x; i < n; i += stride) {
        found |= !isfinite((float)x[i]);
    }
    if (__syncthreads_or(found) && threadIdx.x == 0) { atomicMin(first, index); }
}

// *first, on the device, = min(*first, index) if an element of x (n) is not finite.
template <class T>
static inline void find_non_finite(unsigned* first, unsigned index, const T* x, size_t n, cudaStream_t stream) {
    find_non_finite_kernel<<<non_finite_grid(n), NON_FINITE_THREADS, 0, stream>>>(first, index, x, n);
    cuda_try(cudaGetLastError());
}

__global__ void __launch_bounds__(NON_FINITE_THREADS)
    digest_kernel(unsigned long long* digest, const uint32_t* words, size_t n) {
    __shared__ unsigned long long total;
    if (threadIdx.x == 0) { total = 0; }
    __syncthreads();
    unsigned long long sum = 0;
    size_t stride = (size_t)gridDim.x * NON_FINITE_THREADS;
    for (size_t i = (size_t)blockIdx.x * NON_FINITE_THREADS + threadIdx.x; i < n; i += stride) {
        sum += digest_mix(i, words[i]);
    }
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, offset); }
    if (threadIdx.x % WARP_SIZE == 0) { atomicAdd(&total, sum); }
    __syncthreads();
    if (threadIdx.x == 0) { atomicAdd(digest, total); }
}

// *digest, on the device, += the digest (host_device.h) of the 32-bit words of x (n).
static inline void add_digest(unsigned long long* digest, const float* x, size_t n, cudaStream_t stream) {
    digest_kernel<<<non_finite_grid(n), NON_FINITE_THREADS, 0, stream>>>(digest, (const uint32_t*)x, n);
    cuda_try(cudaGetLastError());
}

#endif
