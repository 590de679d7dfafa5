/*
Softmax and cross entropy over the vocabulary, forward and backward in one kernel: the logits of a row are read twice,
the second time from L2, and their gradients overwrite them. Probabilities are never stored.
*/
#ifndef LLMC_CUDA_CLASSIFIER_CUH
#define LLMC_CUDA_CLASSIFIER_CUH

#include "common.cuh"

constexpr int CLASSIFIER_THREADS = 1024;

// The online softmax statistics of some numbers x: the running maximum m, and l = sum of exp(x - m).
struct OnlineSum {
    float m, l;

    template <int N> __device__ void add(const float (&x)[N]) {
        float largest = m;
        for (int k = 0; k < N; k++) { largest = fmaxf(largest, x[k]); }
        l *= ex2_approx_ftz((m - largest) * LOG2_E);
        m = largest;
        for (int k = 0; k < N; k++) { l += ex2_approx_ftz(fmaf(x[k], LOG2_E, -m * LOG2_E)); }
    }
};

// The maximum of x over the CLASSIFIER_THREADS of the thread block, in every thread. The caller puts a barrier between two
// calls.
__device__ inline float classifier_max(float x) {
    __shared__ float maxima[WARP_SIZE];
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    float warp_m = warp_max(x);
    if (lane == 0) { maxima[warp] = warp_m; }
    __syncthreads();
    return warp_max(maxima[lane]); // CLASSIFIER_THREADS / 32 == 32 warps
}

// By a thread block, the logits x (Vp) of a row, whose maximum is m and whose exp(x - m) sum to l over the first V columns,
// become their gradient: dx_v = (p_v - [v = target]) * gradient_scale; the padding gets 0.
__device__ inline void classifier_gradient(floatX* x, int target, float m, float l, float gradient_scale, int V,
                                           int Vp) {
    constexpr int K = x128::size;
    int whole = V / K * K; // vectors before this column hold no padding
    float factor = gradient_scale / l, offset = -m * LOG2_E;
#pragma unroll 2
    for (int i = threadIdx.x * K; i < Vp; i += CLASSIFIER_THREADS * K) {
        x128 v = load128(x + i);
        float d[K];
        for (int k = 0; k < K; k++) { d[k] = ex2_approx_ftz(fmaf((float)v[k], LOG2_E, offset)) * factor; }
        if (target / K == i / K || i >= whole) { // the vector that holds the target, and those with padding
            for (int k = 0; k < K; k++) { d[k] = i + k >= V ? 0.0f : i + k == target ? d[k] - gradient_scale : d[k]; }
        }
        for (int k = 0; k < K; k++) { v[k] = (floatX)d[k]; }
        store128_stream(x + i, v);
    }
}

// losses[row] += the cross entropy of its logits x (V), by a thread block. Returns their statistics, in every thread.
template <class T>
__device__ inline OnlineSum classifier_loss(float* losses, const T* x, const int* targets, size_t row, int V) {
    constexpr int K = Vec128<T>::size;
    int whole = V / K * K; // vectors before this column hold no padding

    OnlineSum mine = {-INFINITY, 0.0f};
#pragma unroll 2
    for (int i = threadIdx.x * K; i < whole; i += CLASSIFIER_THREADS * K) {
        Vec128<T> v = load128(x + i);
        float f[K];
        for (int k = 0; k < K; k++) { f[k] = (float)v[k]; }
        mine.add(f);
    }
    if (whole + threadIdx.x < V) { // the remainder, one number per thread
        float f[1] = {(float)x[whole + threadIdx.x]};
        mine.add(f);
    }
    float m = classifier_max(mine.m);
    float l = block_sum(mine.l * ex2_approx_ftz((mine.m - m) * LOG2_E));

    if (threadIdx.x == 0) { losses[row] += m + logf(l) - (float)x[targets[row]]; }
    return {m, l};
}

// One row, by a thread block; see fused_classifier below.
__device__ inline void classifier_row(floatX* logits, float* losses, const int* targets, float gradient_scale,
                                      size_t row, int V, int Vp) {
    floatX* x = logits + row * Vp;
    const OnlineSum sum = classifier_loss(losses, x, targets, row, V);
    __syncthreads(); // the target's logit has been read before a thread overwrites it
    classifier_gradient(x, targets[row], sum.m, sum.l, gradient_scale, V, Vp);
}

// One thread block per row
static __global__ void __launch_bounds__(CLASSIFIER_THREADS, 2)
    fused_classifier_kernel(floatX* logits, float* losses, const int* targets, float gradient_scale, int V, int Vp) {
    size_t row = gridDim.x - 1 - blockIdx.x; // the rows that the GEMM wrote last are still in L2
    classifier_row(logits, losses, targets, gradient_scale, row, V, Vp);
}
static __global__ void __launch_bounds__(CLASSIFIER_THREADS, 2)
    classifier_losses_kernel(float* losses, const float* logits, const int* targets, int V, int Vp) {
    size_t row = gridDim.x - 1 - blockIdx.x;
    classifier_loss(losses, logits + row * Vp, targets, row, V);
}

// losses (N) += the cross entropy of each row in nats. logits (N, Vp), of which the first V of a row are used, are overwritten
// with d(loss * gradient_scale)/dlogits, 0 in the padding; targets (N).
static inline void fused_classifier(floatX* logits, float* losses, const int* targets, float gradient_scale, int N,
                                    int V, int Vp, cudaStream_t stream) {
    fused_classifier_kernel<<<N, CLASSIFIER_THREADS, 0, stream>>>(logits, losses, targets, gradient_scale, V, Vp);
    cuda_try(cudaGetLastError());
}

// The first half of it: losses (N) += as above, and of each row what its gradient is computed from: exp2(x log2 e + s.x) s.y is
// gradient_scale times the probability of a logit x.
__device__ inline void classifier_row_statistics(float2* statistics, float* losses, const floatX* logits,
                                                 const int* targets, float gradient_scale, size_t row, int V, int Vp) {
    const OnlineSum sum = classifier_loss(losses, logits + row * Vp, targets, row, V);
    if (threadIdx.x == 0) { statistics[row] = make_float2(-sum.m * LOG2_E, gradient_scale / sum.l); }
}
static __global__ void __launch_bounds__(CLASSIFIER_THREADS, 2)
    classifier_statistics_kernel(float2* statistics, float* losses, const floatX* logits, const int* targets,
                                 float gradient_scale, int V, int Vp) {
    const size_t row = gridDim.x - 1 - blockIdx.x;
    classifier_row_statistics(statistics, losses, logits, targets, gradient_scale, row, V, Vp);
}
static inline void classifier_statistics(float2* statistics, float* losses, const floatX* logits, const int* targets,
                                         float gradient_scale, int N, int V, int Vp, cudaStream_t stream) {
    classifier_statistics_kernel<<<N, CLASSIFIER_THREADS, 0, stream>>>(statistics, losses, logits, targets,
                                                                       gradient_scale, V, Vp);
    cuda_try(cudaGetLastError());
}

// The losses alone, of logits in fp32
static inline void classifier_losses(float* losses, const float* logits, const int* targets, int N, int V, int Vp,
                                     cudaStream_t stream) {
    classifier_losses_kernel<<<N, CLASSIFIER_THREADS, 0, stream>>>(losses, logits, targets, V, Vp);
    cuda_try(cudaGetLastError());
}

// out (N, C) = factors (N) x, each row times its factor; out may be x. One warp per row.
static __global__ void __launch_bounds__(256)
    scale_rows_kernel(floatX* out, const floatX* x, const float* factors, int N, int C) {
    int row = blockIdx.x * (256 / WARP_SIZE) + threadIdx.x / WARP_SIZE;
    if (row >= N) { return; }
    float factor = factors[row];
    for (int c = threadIdx.x % WARP_SIZE * x128::size; c < C; c += WARP_SIZE * x128::size) {
        x128 v = load128(x + (size_t)row * C + c);
        for (int k = 0; k < x128::size; k++) { v[k] = (floatX)((float)v[k] * factor); }
        store128(out + (size_t)row * C + c, v);
    }
}

static inline void scale_rows(floatX* out, const floatX* x, const float* factors, int N, int C, cudaStream_t stream) {
    scale_rows_kernel<<<CEIL_DIV(N, 256 / WARP_SIZE), 256, 0, stream>>>(out, x, factors, N, C);
    cuda_try(cudaGetLastError());
}

// *sum = the sum of losses (n), by one thread block, so in a fixed order
static __global__ void __launch_bounds__(1024) sum_losses_kernel(float* sum, const float* losses, size_t n) {
    float mine = 0.0f;
    for (size_t i = threadIdx.x; i < n; i += 1024) { mine += losses[i]; }
    mine = block_sum(mine);
    if (threadIdx.x == 0) { *sum = mine; }
}

static inline void sum_losses(float* sum, const float* losses, size_t n, cudaStream_t stream) {
    sum_losses_kernel<<<1, 1024, 0, stream>>>(sum, losses, n);
    cuda_try(cudaGetLastError());
}

#endif
