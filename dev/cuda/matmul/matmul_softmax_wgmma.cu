/*
Cross entropy without a pass over the logits: softmax is normalised after the GEMMs that use its gradient. With the target's
logit x_t as offset, the GEMM's epilogue stores e_v = 2^-24 exp(x_v - x_t) and adds up l = sum_v e_v. Then for each row

    loss = log(l / e_t);   dlogits = (gradient_scale / l) (e - l [v = t])

The bracket differs from e in one element; the factor depends on the row alone and scales rows of dinp and of inp instead.
x_t is computed before the GEMM, a dot product of length IN. e_v underflows 70 nats below the target, where p_v is below 1e-30.
Where l exceeds 2^88, at a loss of 77 nats and more, the row is recomputed as in classifier.cuh: any logits are served.

    target_logits_kernel     x_t
    the GEMM                 e, and partial sums of l
    finish_rows_kernel       l, loss, factor, e_t - l
    overflowed_rows_kernel   rows with l >= 2^88, almost never any
*/
#ifndef MATMUL_SOFTMAX_WGMMA_CU
#define MATMUL_SOFTMAX_WGMMA_CU

#include "matmul.h"
#include "wgmma_matmul.cuh"

#include "llmc/cuda/classifier.cuh"

namespace softmax_wgmma {

using namespace wgmma;

constexpr float LARGEST_SUM = 0x1p88f;
constexpr int FINISH_SLICES = 8, FINISH_THREADS = WARP_SIZE * FINISH_SLICES;

// The dot product of two rows of n numbers, n a multiple of 8, by a warp; in every lane.
__device__ inline float warp_dot(const floatX* x, const floatX* y, int n) {
    float sum = 0;
    for (int i = threadIdx.x % WARP_SIZE * x128::size; i < n; i += WARP_SIZE * x128::size) {
        const x128 a = load128(x + i), b = load128(y + i);
        for (int k = 0; k < x128::size; k++) { sum = fmaf((float)a[k], (float)b[k], sum); }
    }
    return warp_sum(sum);
}

// target_logits (R) = inp[r] . weight[targets[r]]; a warp for each row.
static __global__ void __launch_bounds__(256)
    target_logits_kernel(float* target_logits, const floatX* inp, const floatX* weight, const int* targets, int R,
                         int IN) {
    const int row = blockIdx.x * (256 / WARP_SIZE) + threadIdx.x / WARP_SIZE;
    if (row >= R) { return; }
    const float x = warp_dot(inp + (int64_t)row * IN, weight + (int64_t)targets[row] * IN, IN);
    if (threadIdx.x % WARP_SIZE == 0) { target_logits[row] = x; }
}

// sums (tiles, R): its first row becomes l. Then loss, logits_scale and the target's element. A thread block takes 32 rows, a
// lane each; warp n sums the tiles n, n + 8, ...
static __global__ void __launch_bounds__(FINISH_THREADS)
    finish_rows_kernel(float* sums, float* losses, float* logits_scale, floatX* logits, const float* target_logits,
                       const int* targets, float gradient_scale, int tiles, int R, int OUT) {
    __shared__ float partial[FINISH_SLICES][WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE, slice = threadIdx.x / WARP_SIZE, row = blockIdx.x * WARP_SIZE + lane;
    float l = 0;
#pragma unroll 8
    for (int tile = slice; tile < tiles && row < R; tile += FINISH_SLICES) { l += sums[(int64_t)tile * R + row]; }
    partial[slice][lane] = l;
    __syncthreads();
    if (slice > 0 || row >= R) { return; }
    for (int n = 1; n < FINISH_SLICES; n++) { l += partial[n][lane]; }
    sums[row] = l;
    if (l >= LARGEST_SUM) { return; } // left to overflowed_rows_kernel
    const float x = target_logits[row], e = ex2_approx_ftz(fmaf(x, LOG2_E, target_offset(x)));
    losses[row] += logf(l / e);
    logits_scale[row] = gradient_scale / l;
    logits[(int64_t)row * OUT + targets[row]] = (floatX)(e - l);
}

// Recomputes the logits and the gradient of rows whose l is too large. A thread block tests as many rows as it has threads.
static __global__ void __launch_bounds__(CLASSIFIER_THREADS)
    overflowed_rows_kernel(floatX* logits, float* losses, float* logits_scale, const float* sums, const floatX* inp,
                           const floatX* weight, const int* targets, float gradient_scale, int R, int IN, int V,
                           int OUT) {
#if defined(HOPPER_DEVICE_CODE) // elsewhere its registers spill
    const int first = blockIdx.x * CLASSIFIER_THREADS, mine = first + threadIdx.x;
    if (!__syncthreads_or(mine < R && sums[mine] >= LARGEST_SUM)) { return; }
    for (int row = first; row < min(R, first + CLASSIFIER_THREADS); row++) {
        if (!(sums[row] >= LARGEST_SUM)) { continue; }
        floatX* const x = logits + (int64_t)row * OUT;
        for (int v = threadIdx.x / WARP_SIZE; v < V; v += CLASSIFIER_THREADS / WARP_SIZE) {
            const float logit = warp_dot(inp + (int64_t)row * IN, weight + (int64_t)v * IN, IN);
            if (threadIdx.x % WARP_SIZE == 0) { x[v] = (floatX)logit; }
        }
        __syncthreads();
        classifier_row(logits, losses, targets, gradient_scale, row, V, OUT);
        if (threadIdx.x == 0) { logits_scale[row] = 1; }
        __syncthreads();
    }
#endif
}

// Scratch: sums (tiles, R), of tiles of 128 columns or more, and target_logits (R).
static inline size_t classifier_scratch_bytes(MatmulSizes s) {
    return sizeof(float) * s.R * ((size_t)CEIL_DIV(s.OUT, 128) + 1);
}

static void classifier(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    typedef MatmulTiles<PingPong128x192x2, false, ExponentialSums> C;
    const int R = s.R, IN = s.IN, OUT = s.OUT, V = s.vocab_size, tiles = CEIL_DIV(OUT, C::T::BN);
    float *const sums = (float*)context->scratch, *const target_logits = sums + (size_t)tiles * R;
    const float scale = t->gradient_scale;
    target_logits_kernel<<<CEIL_DIV(R, 256 / WARP_SIZE), 256, 0, stream>>>(target_logits, t->inp, t->weight, t->targets,
                                                                           R, IN);
    const Gemm gemm = {{R, OUT, IN}, t->inp, t->weight, t->logits, nullptr, nullptr};
    EpilogueInput in = {};
    in.target_logits = target_logits, in.row_sums = sums, in.classes = V;
    if (launch_gemm<C>(gemm, in, stream) != STATUS_OK) { return; }
    finish_rows_kernel<<<CEIL_DIV(R, WARP_SIZE), FINISH_THREADS, 0, stream>>>(
        sums, t->losses, t->logits_scale, t->logits, target_logits, t->targets, scale, tiles, R, OUT);
    overflowed_rows_kernel<<<CEIL_DIV(R, CLASSIFIER_THREADS), CLASSIFIER_THREADS, 0, stream>>>(
        t->logits, t->losses, t->logits_scale, sums, t->inp, t->weight, t->targets, scale, R, IN, V, OUT);
    cuda_try(cudaGetLastError());
}

// Tiles are counted by an int.
static const char* unsupported(MatmulSizes s) {
    return (s.R / 64.0 + 1) * (s.OUT / 128.0 + 1) > 1e9 ? "its tensors have too many tiles for an int" : nullptr;
}

static constexpr MatmulConfig matmul_configs[] = {
    {"128x192 ping-pong cluster 2", MATMUL_CLASSIFIER, unsupported, classifier_scratch_bytes, classifier, true},
};

} // namespace softmax_wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, softmax_wgmma::matmul_configs, 90); }
#endif

#endif
