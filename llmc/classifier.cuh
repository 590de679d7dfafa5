/*
Softmax and cross entropy over the vocabulary, forward and backward in one kernel: the logits of a row are read twice,
the second time from L2, and their gradients overwrite them. Probabilities are never stored.
*/
#ifndef LLMC_CLASSIFIER_CUH
#define LLMC_CLASSIFIER_CUH

#include "cuda_common.cuh"

constexpr int CLASSIFIER_THREADS = 1024;

// One block a row; what it computes stands at fused_classifier below.
template <bool WRITE_GRADIENT> __global__ void __launch_bounds__(CLASSIFIER_THREADS)
    fused_classifier_kernel(floatX* logits, float* losses, const int* targets, float gradient_scale, int V, int Vp) {
    constexpr int K = x128::size;
    size_t row = gridDim.x - 1 - blockIdx.x; // the rows that the product wrote last are still in L2
    floatX* x = logits + row * Vp;
    int target = targets[row];

    // m = max_v x_v and l = sum_v exp(x_v - m), online
    float m = -INFINITY, l = 0.0f;
    for (int i = threadIdx.x * K; i < V; i += CLASSIFIER_THREADS * K) {
        x128 v = load128(x + i);
        float largest = -INFINITY;
        for (int k = 0; k < K; k++) { largest = i + k < V ? fmaxf(largest, (float)v[k]) : largest; }
        if (largest > m) {
            l *= expf(m - largest);
            m = largest;
        }
        for (int k = 0; k < K; k++) { l += i + k < V ? expf((float)v[k] - m) : 0.0f; }
    }
    __shared__ float maxima[WARP_SIZE];
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    float warp_m = warp_max(m);
    if (lane == 0) { maxima[warp] = warp_m; }
    __syncthreads();
    float row_m = warp_max(maxima[lane]); // CLASSIFIER_THREADS / 32 == 32 warps
    float row_l = block_sum(m == -INFINITY ? 0.0f : l * expf(m - row_m));

    float target_logit = (float)x[target];
    __syncthreads(); // every thread has read it before any overwrites it
    if (threadIdx.x == 0) { losses[row] += row_m + logf(row_l) - target_logit; }
    if (!WRITE_GRADIENT) { return; }
    // dx_v = (p_v - [v = target]) * gradient_scale; the padding gets 0
    float scale = 1.0f / row_l;
    for (int i = threadIdx.x * K; i < Vp; i += CLASSIFIER_THREADS * K) {
        x128 v = load128(x + i), d;
        for (int k = 0; k < K; k++) {
            float p = expf((float)v[k] - row_m) * scale;
            d[k] = (floatX)(i + k < V ? (p - (i + k == target ? 1.0f : 0.0f)) * gradient_scale : 0.0f);
        }
        store128_stream(x + i, d);
    }
}

// losses (N) += the cross entropy of each row in nats. logits (N, Vp), the first V of a row count; targets (N).
// With write_gradient, logits become d(loss * gradient_scale)/dlogits.
static inline void fused_classifier(floatX* logits, float* losses, const int* targets, float gradient_scale, int N,
                                    int V, int Vp, int write_gradient, cudaStream_t stream) {
    auto kernel = write_gradient ? fused_classifier_kernel<true> : fused_classifier_kernel<false>;
    kernel<<<N, CLASSIFIER_THREADS, 0, stream>>>(logits, losses, targets, gradient_scale, V, Vp);
    cuda_check(cudaGetLastError());
}

// *sum = the sum of losses (n), by one block and so in a fixed order
__global__ void __launch_bounds__(1024) sum_losses_kernel(float* sum, const float* losses, size_t n) {
    float mine = 0.0f;
    for (size_t i = threadIdx.x; i < n; i += 1024) { mine += losses[i]; }
    mine = block_sum(mine);
    if (threadIdx.x == 0) { *sum = mine; }
}

static inline void sum_losses(float* sum, const float* losses, size_t n, cudaStream_t stream) {
    sum_losses_kernel<<<1, 1024, 0, stream>>>(sum, losses, n);
    cuda_check(cudaGetLastError());
}

#endif
