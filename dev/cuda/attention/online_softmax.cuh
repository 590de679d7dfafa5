/*
The online softmax of FlashAttention-2 (Dao 2023, section 3.1) for a row of an mma or wgmma accumulator, which four lanes
share. The tensor-core variants keep a row's maximum m while no score exceeds it by more than a threshold, so that O is
rescaled rarely; `sum` is the sum of P = exp(scale S - m) over the lane's columns.
*/
#ifndef ONLINE_SOFTMAX_CUH
#define ONLINE_SOFTMAX_CUH

#include "llmc/cuda/common.cuh"

// How much a score may exceed m: P stays below 2^8, and m within 8 of the row's maximum, as the contract wants it.
constexpr float RESCALE_THRESHOLD = 8 / LOG2_E;

// P is rounded to 16 bit. Relative to the row's maximum its largest element is 1, which is exact; relative to an older maximum
// it has a rounding error, and out would be less accurate than with the newest maximum at every key block. A head's first rows,
// where out is largest, compensate for that. So many of them also multiply V by P's rounding error:
__host__ __device__ constexpr int two_part_rows(int T) { return T <= 1024 ? 128 : T <= 4096 ? 192 : 256; }
// Rows below this adopt every new maximum.
__host__ __device__ inline int newest_maximum_rows(int T) { return two_part_rows(T) + 64; }

// m = max(m, the row's maximum of scale S), where `maximum` is that of the lane's S. Multiplies sum by exp(old m - m) and
// returns this factor, which O must be multiplied by.
__device__ inline float adopt_row_maximum(float& m, float& sum, float maximum, float scale) {
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 2));
    float old = m;
    m = fmaxf(old, scale * maximum);
    float factor = ex2_approx_ftz(__fmul_rn(old, LOG2_E) - __fmul_rn(m, LOG2_E));
    sum *= factor;
    return factor;
}

// Returns P = exp(scale s - m) and adds it to sum. Computed as 2^(scale log2(e) s + shift), with shift = -m log2(e) rounded
// before the fma as in backward, which therefore gets the same P.
__device__ inline float exp_score(float s, float scale, float shift, float& sum) {
    float P = ex2_approx_ftz(fmaf(s, scale * LOG2_E, shift));
    sum += P;
    return P;
}

// The sum over the row's four lanes: l.
__device__ inline float row_sum_of_quad(float sum) {
    float x = sum + __shfl_xor_sync(0xffffffffu, sum, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
}

#endif
