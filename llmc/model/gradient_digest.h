/*
A digest of an array of 32-bit words that does not depend on the order in which they are added: the sum, modulo 2^64, of
a mix of each word with its index. Threads sum what they like; the result is the same.

The mix is the finaliser of splitmix64 (Steele, Lea and Flood, OOPSLA 2014), which maps 64-bit numbers one to one: a word
that changes always changes the sum.
*/
#ifndef LLMC_MODEL_GRADIENT_DIGEST_H
#define LLMC_MODEL_GRADIENT_DIGEST_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
__host__ __device__
#endif
    static inline uint64_t
    digest_mix(uint64_t index, uint32_t word) {
    // indices below 2^32 have a number of their own with every word; those above share it with a distant one
    uint64_t x = (index << 32 | word) + (index >> 32) * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

#endif
