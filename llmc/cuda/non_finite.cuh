/*
Checks of all elements of a tensor on the GPU: whether each is finite, and a digest of their bits. Both combine their results
with integer atomics, whose order does not matter.
*/
#ifndef LLMC_CUDA_NON_FINITE_CUH
#define LLMC_CUDA_NON_FINITE_CUH

#include "common.cuh"
#include "llmc/model/gradient_digest.h"

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

// *digest, on the device, += the digest (gradient_digest.h) of the 32-bit words of x (n).
static inline void add_digest(unsigned long long* digest, const float* x, size_t n, cudaStream_t stream) {
    digest_kernel<<<non_finite_grid(n), NON_FINITE_THREADS, 0, stream>>>(digest, (const uint32_t*)x, n);
    cuda_try(cudaGetLastError());
}

#endif
