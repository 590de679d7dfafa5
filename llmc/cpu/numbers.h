/*
Operations of the CPU trainer on all elements of a tensor: check that each is finite, digest, copy.
*/
#ifndef LLMC_CPU_NUMBERS_H
#define LLMC_CPU_NUMBERS_H

#include <math.h>
#include <string.h>

#ifdef __SSE2__
#include <emmintrin.h>
#endif

#include "vector.h"
#include "llmc/model/gradient_digest.h"

typedef union { // clang does not make vectors of a loop that looks at bits by memcpy
    float number;
    uint32_t bits;
} FloatBits;

// 1 if each of n floats is finite: no exponent has all its bits set.
static inline int all_finite(const float* x, size_t n) {
    unsigned bad = 0;
#pragma omp parallel for simd schedule(dynamic, 1 << 14) reduction(| : bad) if (n > 1 << 16)
    for (size_t i = 0; i < n; i++) {
        FloatBits word = {x[i]};
        bad |= (word.bits & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

// The digest of n floats: gradient_digest.h
static inline uint64_t float_digest(const float* x, size_t n) {
    uint64_t sum = 0;
#pragma omp parallel for simd schedule(dynamic, 1 << 14) reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        FloatBits word = {x[i]};
        sum += digest_mix(i, word.bits);
    }
    return sum;
}

// memcpy by non-temporal stores, where the machine has them: they do not read the lines that they overwrite. `to` and `from` do
// not overlap; what is not a whole, aligned line of 64 bytes is copied by memcpy.
static inline void copy_stream_(char* to, const char* from, size_t bytes) {
    size_t done = 0;
#ifdef __SSE2__
    if ((uintptr_t)to % 64 == 0) {
        for (; done + 64 <= bytes; done += 64) {
            for (size_t i = done; i < done + 64; i += 16) {
                _mm_stream_si128((__m128i*)(void*)(to + i), _mm_loadu_si128((const __m128i*)(const void*)(from + i)));
            }
        }
        _mm_sfence(); // other threads see these stores in order with later ones
    }
#endif
    memcpy(to + done, from + done, bytes - done);
}

// memcpy by all threads
static inline void parallel_copy(void* to, const void* from, size_t bytes) {
    enum { COPY_BLOCK = 1 << 20 };
#pragma omp parallel for schedule(dynamic)
    for (size_t i = 0; i < bytes; i += COPY_BLOCK) {
        copy_stream_((char*)to + i, (const char*)from + i, bytes - i < COPY_BLOCK ? bytes - i : COPY_BLOCK);
    }
}

#endif
