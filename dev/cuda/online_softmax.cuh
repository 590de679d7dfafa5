/*
The online softmax of FlashAttention-2 (Dao 2023, section 3.1) for a row of an mma or wgmma accumulator, which four lanes
share. The tensor-core variants keep a row's maximum m while no score exceeds it by more than a threshold, so that O is
rescaled seldom; sum is that of P = exp(scale S - m) over the lane's columns.
*/
#ifndef ONLINE_SOFTMAX_CUH
#define ONLINE_SOFTMAX_CUH

#include "llmc/cuda_common.cuh"

// How much a score may exceed m: P stays below 2^8, and m within 8 of the row's maximum, as the contract wants it.
constexpr float RESCALE_THRESHOLD = 8 / LOG2_E;

// P is rounded to 16 bit. Against the row's maximum its largest term is 1, without an error; against an older maximum it has
// one, and out would be less exact than with the newest maximum at every key block. A head's first rows, where out is largest,
// make up for that: so many of them multiply V by P's rounding error, too,
__host__ __device__ constexpr int two_part_rows(int T) { return T <= 1024 ? 128 : T <= 4096 ? 192 : 256; }
// and the rows up to here take every new maximum.
__host__ __device__ inline int newest_maximum_rows(int T) { return two_part_rows(T) + 64; }

// Sets m to the row's maximum, if that is larger; `maximum` is that of the lane's scores S. Returns exp(old m - m), by which
// sum has been multiplied, and O is to be.
__device__ inline float adopt_row_maximum(float& m, float& sum, float maximum, float scale) {
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, 2));
    float old = m;
    m = fmaxf(old, scale * maximum);
    float factor = ex2_approx_ftz(__fmul_rn(old, LOG2_E) - __fmul_rn(m, LOG2_E));
    sum *= factor;
    return factor;
}

// P = exp(scale s - m), which is added to sum. Computed as 2^(scale log2(e) s + shift) with shift = -m log2(e), rounded before
// the fma, as backward computes it: so P is the same there.
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
