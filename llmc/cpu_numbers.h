/*
What the CPU trainer does with all numbers of a tensor at a time: look whether each is finite, digest, copy.
*/
#ifndef LLMC_CPU_NUMBERS_H
#define LLMC_CPU_NUMBERS_H

#include <math.h>
#include <string.h>

#include "cpu_vector.h"
#include "gradient_digest.h"

// 1 where each of n floats is finite: no exponent has all its bits set.
static inline int all_finite(const float* x, size_t n) {
    unsigned bad = 0;
#pragma omp parallel for simd reduction(| : bad) if (n > 1 << 16)
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, &x[i], sizeof(word));
        bad |= (word & 0x7f800000u) == 0x7f800000u;
    }
    return !bad;
}

// The digest of n floats: gradient_digest.h
static inline uint64_t float_digest(const float* x, size_t n) {
    uint64_t sum = 0;
#pragma omp parallel for simd reduction(+ : sum)
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, &x[i], sizeof(word));
        sum += digest_mix(i, word);
    }
    return sum;
}

// memcpy by all threads, a part each
static inline void parallel_copy(void* to, const void* from, size_t bytes) {
#pragma omp parallel
    {
#ifdef _OPENMP
        size_t thread = (size_t)omp_get_thread_num(), threads = (size_t)omp_get_num_threads();
#else
        size_t thread = 0, threads = 1;
#endif
        size_t part = size_round_up(CEIL_DIV(bytes, threads), 4096), begin = part * thread;
        if (begin < bytes) {
            memcpy((char*)to + begin, (const char*)from + begin, bytes - begin < part ? bytes - begin : part);
        }
    }
}

#endif
