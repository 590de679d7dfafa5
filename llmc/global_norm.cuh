/*
The Euclidean norm of all gradients, in a fixed order of additions: each thread block sums a fixed part, then one block
sums the partial sums.
*/
#ifndef LLMC_GLOBAL_NORM_CUH
#define LLMC_GLOBAL_NORM_CUH

#include "cuda_common.cuh"

constexpr int GLOBAL_NORM_BLOCKS = 1024;

static inline size_t global_norm_scratch_bytes(void) { return sizeof(float) * GLOBAL_NORM_BLOCKS; }

__global__ void __launch_bounds__(512) squares_kernel(float* partial, const float* x, size_t n) {
    float sum = 0.0f;
    for (size_t i = (size_t)blockIdx.x * 512 + threadIdx.x; i < n; i += (size_t)GLOBAL_NORM_BLOCKS * 512) {
        sum += x[i] * x[i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) { partial[blockIdx.x] = sum; }
}

__global__ void __launch_bounds__(GLOBAL_NORM_BLOCKS) norm_kernel(float* norm, const float* partial) {
    float sum = block_sum(partial[threadIdx.x]);
    if (threadIdx.x == 0) { *norm = sqrtf(sum); }
}

// *norm, on the device, = ‖x‖ for x (n)
static inline void global_norm(float* norm, const float* x, float* scratch, size_t n, cudaStream_t stream) {
    squares_kernel<<<GLOBAL_NORM_BLOCKS, 512, 0, stream>>>(scratch, x, n);
    norm_kernel<<<1, GLOBAL_NORM_BLOCKS, 0, stream>>>(norm, scratch);
    cuda_try(cudaGetLastError());
}

#endif
