/*
e4m3, the 8-bit operands of fp8 GEMMs, one code a byte: a sign, 4 bits of exponent with a bias of 7, 3 of mantissa. The largest
number is 448, the smallest 2^-9; there is no infinity, and all bits set but the sign is NaN (Micikevicius et al., FP8 Formats
for Deep Learning, 2022). A tensor has one scale, and its numbers are scale times its codes' values.

A scale is a power of two, so that neither dividing by it nor multiplying by it rounds: a gradient that accumulates has the bits
of overwriting and adding, whatever the order in which an epilogue multiplies and adds. That takes at most one of e4m3's 17
binades.
*/
#ifndef LLMC_CUDA_E4M3_CUH
#define LLMC_CUDA_E4M3_CUH

#include <cuda_fp8.h>
#include <float.h>
#include <math.h>
#include <stdint.h>

constexpr float E4M3_LARGEST = 448;

// One of an array of scales: cuBLASLt refuses (NOT_SUPPORTED) a scale whose address is no multiple of 16.
struct alignas(16) E4m3Scale {
    float value;
    int saturated; // steps in a row in which a number was beyond it
};

// The code nearest to x, ties to even; what is larger than the largest becomes the largest, NaN stays NaN.
__host__ __device__ inline uint8_t e4m3_of(float x) { return __nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3); }

__host__ __device__ inline double e4m3_value(uint8_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const double magnitude = (code & 0x7f) == 0x7f ? (double)NAN
                             : exponent == 0       ? ldexp((double)mantissa, -9)
                                                   : ldexp((double)(8 + mantissa), exponent - 10);
    return code & 0x80 ? -magnitude : magnitude;
}

// The scale of a tensor whose largest magnitude is amax: the smallest power of two from 2^-60 to 2^60 with which nothing
// saturates; 1 of zeros. NaN if the tensor has a number that is not finite: with that scale all of its products are NaN.
__host__ __device__ inline float e4m3_scale(float amax) {
    int exponent;
    if (!(amax <= FLT_MAX)) { return NAN; }
    if (amax == 0) { return 1; }
    const float mantissa = frexpf(amax, &exponent); // amax = mantissa 2^exponent, mantissa from .5 to below 1
    exponent -= mantissa <= E4M3_LARGEST / 512 ? 9 : 8;
    return ldexpf(1, exponent < -60 ? -60 : exponent > 60 ? 60 : exponent);
}

#endif
