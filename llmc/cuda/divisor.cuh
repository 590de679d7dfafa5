/*
Division by a number that is known when a kernel is launched, not when it is compiled: a multiplication and a shift, where the
compiler's division takes some 25 dependent instructions.

With 2^(shift-1) < d <= 2^shift and factor = floor(2^32 (2^shift - d) / d) + 1, the multiplier 2^32 + factor is
2^(32+shift) / d, rounded up so little that n / d = floor(n (2^32 + factor) / 2^(32+shift)) for every n below 2^32.
Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994), theorem 4.2.
*/
#ifndef LLMC_CUDA_DIVISOR_CUH
#define LLMC_CUDA_DIVISOR_CUH

#include <stdint.h>

struct Divisor {
    int d; // at least 1
    uint32_t factor;
    int shift;

    __host__ __device__ Divisor(int d = 1) : d(d), shift(0) {
        while (1ll << shift < d) { shift++; }
        factor = (uint32_t)((((1ull << shift) - (uint32_t)d) << 32) / (uint32_t)d + 1);
    }
    // n / d and n % d, for n >= 0. n and `high` are below 2^31, so that their sum does not overflow.
    __host__ __device__ int quotient(int n) const {
        uint32_t high = (uint32_t)((uint64_t)(uint32_t)n * factor >> 32);
        return (int)((high + (uint32_t)n) >> shift);
    }
    __host__ __device__ int remainder(int n) const { return n - quotient(n) * d; }
};

#endif
