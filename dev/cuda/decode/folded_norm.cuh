/*
LayerNorm folded into the linear layer that follows it, in decoding, in 16 bit on Hopper. With LayerNorm's weight w and bias b,
    out = norm(x) W^T + bias = rstd x F^T - rstd mean s + t,
    F_oc = w_c W_oc,    s_o = sum_c F_oc,    t_o = bias_o + sum_c b_c W_oc
F, s and t are computed once per decoder. F is rounded to 16 bit, where norm(x) would be; s is the sum of the rounded F, so a
row's mean cancels. x needs no statistics to be multiplied, so the GEMM starts before they are there. In steps of several
kernels most that write x also write the moments (decode/rows.cuh) of its vectors of 8 elements, from which the next kernel
computes the statistics while x is still being loaded; where there are none, decode_rows_statistics computes them.

A row's bits depend on the row alone: all kernels compute the statistics in the order of decode_row_statistics, and the epilogue
by decode_unfold.
*/
#ifndef LLMC_DECODE_FOLDED_NORM_CUH
#define LLMC_DECODE_FOLDED_NORM_CUH

#include "rows.cuh"
#if !defined(PRECISION_FP32)
#include "llmc/cuda/mma.cuh"
#endif

// Vectors of 16 bytes that a lane has of a row, at most: 768 channels in 16 bit
constexpr int DECODE_FOLDED_VECTORS = 3;

// ----------------------------------------------------------------------------
// A row's statistics

struct RowStatistics {
    float mean, rstd;
};

// One output of the equation above, from sum = (x w) W^T
__device__ inline float decode_unfold(float sum, RowStatistics row, float2 st) {
    return fmaf(row.rstd, fmaf(-row.mean, st.x, sum), st.y);
}

#if !defined(PRECISION_FP32)
// A row's statistics from the sums, over its vectors, of differences and of squared deviations from the first one's mean
__device__ inline RowStatistics decode_statistics_of(float first, float sum, float squares, int C) {
    const float inverse_C = __fdiv_rn(1.0f, (float)C);
    const float total = __fmul_rn(sum, (float)x128::size), difference = __fmul_rn(total, inverse_C);
    const float variance = __fmul_rn(fmaf(-total, difference, squares), inverse_C);
    return {__fadd_rn(first, difference), rsqrtf(__fadd_rn(variance, LAYERNORM_EPSILON))};
}

// The statistics of ROWS rows (C), by a warp; a lane has the moments of vectors lane, lane + 32, ... (N at most). The moments
// are merged by the formula of Chan, Golub and LeVeque, with deviations from the first vector's mean: one pass, and the error
// does not grow with the mean, as C (first - mean)^2 is at most C / 8 times the row's squared deviations.
template <int ROWS, int N> __device__ inline void
decode_row_statistics(RowStatistics (&statistics)[ROWS], const float2 (&moments)[ROWS][N], int C, int lane) {
    constexpr float K = x128::size;
    float first[ROWS], sum[ROWS], squares[ROWS]; // sums of differences, and of squared deviations, from `first`
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        first[r] = __fmul_rn(__shfl_sync(0xffffffffu, moments[r][0].x, 0), 1.0f / K), sum[r] = squares[r] = 0.0f;
#pragma unroll
        for (int i = 0; i < N; i++) {
            const float d = fmaf(moments[r][i].x, 1.0f / K, -first[r]);
            if ((i * WARP_SIZE + lane) * x128::size < C) {
                sum[r] = __fadd_rn(sum[r], d);
                squares[r] = __fadd_rn(squares[r], fmaf(__fmul_rn(d, K), d, moments[r][i].y));
            }
        }
    }
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) {
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            sum[r] = __fadd_rn(sum[r], __shfl_xor_sync(0xffffffffu, sum[r], offset));
            squares[r] = __fadd_rn(squares[r], __shfl_xor_sync(0xffffffffu, squares[r], offset));
        }
    }
#pragma unroll
    for (int r = 0; r < ROWS; r++) { statistics[r] = decode_statistics_of(first[r], sum[r], squares[r], C); }
}

// The same of four rows at once, the same bits: lanes 8 i .. 8 i + 7 have row i, each every eighth vector from lane % 8 on. A
// lane adds what lanes of the function above add until their last three exchanges.
constexpr int DECODE_QUARTER_VECTORS = 4 * DECODE_FOLDED_VECTORS;
__device__ inline RowStatistics decode_quarter_statistics(const float2 (&moments)[DECODE_QUARTER_VECTORS], int C,
                                                          int lane) {
    constexpr float K = x128::size;
    constexpr int EIGHT = WARP_SIZE / 4;
    const float first = __fmul_rn(__shfl_sync(0xffffffffu, moments[0].x, lane / EIGHT * EIGHT), 1.0f / K);
    float sum[4] = {}, squares[4] = {};
#pragma unroll
    for (int i = 0; i < DECODE_QUARTER_VECTORS; i++) {
        const float d = fmaf(moments[i].x, 1.0f / K, -first);
        if ((i * EIGHT + lane % EIGHT) * x128::size >= C) { continue; }
        sum[i % 4] = __fadd_rn(sum[i % 4], d);
        squares[i % 4] = __fadd_rn(squares[i % 4], fmaf(__fmul_rn(d, K), d, moments[i].y));
    }
    float x = __fadd_rn(__fadd_rn(sum[0], sum[2]), __fadd_rn(sum[1], sum[3]));
    float y = __fadd_rn(__fadd_rn(squares[0], squares[2]), __fadd_rn(squares[1], squares[3]));
#pragma unroll
    for (int offset = EIGHT / 2; offset > 0; offset /= 2) {
        x = __fadd_rn(x, __shfl_xor_sync(0xffffffffu, x, offset));
        y = __fadd_rn(y, __shfl_xor_sync(0xffffffffu, y, offset));
    }
    return decode_statistics_of(first, x, y, C);
}

// Stores the moments of a vector of which each lane of a quad has two elements: its first lane, to `to`, if `store`. By all
// lanes of a warp
__device__ inline void decode_store_moments(float2* to, uint32_t pair, bool store) {
    const uint4 v = make_uint4(pair, __shfl_xor_sync(0xffffffffu, pair, 1), __shfl_xor_sync(0xffffffffu, pair, 2),
                               __shfl_xor_sync(0xffffffffu, pair, 3));
    const float2 moments = decode_vector_moments(v); // the order of additions is right in the first lane only
    if (store && threadIdx.x % 4 == 0) { *to = moments; }
}

// The statistics (M) of the rows of inp (M,C): for kernels that do not have whole rows; a warp a row
static __global__ void __launch_bounds__(DECODE_NORM_WARPS* WARP_SIZE)
    decode_statistics_kernel(RowStatistics* statistics, const floatX* inp, int M, int C) {
    const int lane = threadIdx.x % WARP_SIZE, row = blockIdx.x * DECODE_NORM_WARPS + threadIdx.x / WARP_SIZE;
    launch_dependents();
    wait_for_previous();
    if (row >= M) { return; }
    float2 moments[1][DECODE_FOLDED_VECTORS];
#pragma unroll
    for (int i = 0; i < DECODE_FOLDED_VECTORS; i++) {
        const int c = (i * WARP_SIZE + lane) * x128::size;
        moments[0][i] = make_float2(0.0f, 0.0f);
        if (c >= C) { continue; }
        moments[0][i] = decode_vector_moments(*reinterpret_cast<const uint4*>(inp + (size_t)row * C + c));
    }
    RowStatistics x[1];
    decode_row_statistics(x, moments, C, lane);
    if (lane == 0) { statistics[row] = x[0]; }
}
static inline void decode_rows_statistics(LaunchGpu gpu, RowStatistics* statistics, const floatX* inp, int M, int C,
                                          cudaStream_t stream) {
    launch_dependent(gpu, decode_statistics_kernel, (unsigned)CEIL_DIV(M, DECODE_NORM_WARPS),
                     DECODE_NORM_WARPS * WARP_SIZE, 0, 1, stream, statistics, inp, M, C);
}
#endif

// ----------------------------------------------------------------------------
// F, s and t

static __global__ void decode_fold_norm_kernel(floatX* folded, float2* st, const floatX* weight, const floatX* bias,
                                               const floatX* norm_weight, const floatX* norm_bias, int C, int OC) {
    const int o = (int)(blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE, lane = threadIdx.x % WARP_SIZE;
    if (o >= OC) { return; }
    float s = 0.0f, t = 0.0f;
    for (int c = lane * x128::size; c < C; c += WARP_SIZE * x128::size) {
        const x128 W = load128(weight + (size_t)o * C + c), w = load128(norm_weight + c), b = load128(norm_bias + c);
        x128 F;
        for (int k = 0; k < x128::size; k++) {
            F.data[k] = (floatX)((float)w.data[k] * (float)W.data[k]);
            s += (float)F.data[k], t = fmaf((float)b.data[k], (float)W.data[k], t);
        }
        store128(folded + (size_t)o * C + c, F);
    }
    s = warp_sum(s), t = warp_sum(t);
    if (lane == 0) { st[o] = make_float2(s, t + (float)bias[o]); }
}
// folded (OC,C) = F and st (OC) = {s, t} of a layer: weight (OC,C), bias (OC), LayerNorm's weight and bias (C)
static inline void decode_fold_norm(floatX* folded, float2* st, const floatX* weight, const floatX* bias,
                                    const floatX* norm_weight, const floatX* norm_bias, int C, int OC,
                                    cudaStream_t stream) {
    constexpr int WARPS = 8;
    decode_fold_norm_kernel<<<(unsigned)CEIL_DIV(OC, WARPS), WARPS * WARP_SIZE, 0, stream>>>(
        folded, st, weight, bias, norm_weight, norm_bias, C, OC);
    cuda_try(cudaGetLastError());
}

#endif
