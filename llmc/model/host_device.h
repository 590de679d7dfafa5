/*
Numbers that the host and the kernels compute by one function, so that both get the same bits: LayerNorm's epsilon, the factor
of gradient clipping, hashes.
*/
#ifndef LLMC_MODEL_HOST_DEVICE_H
#define LLMC_MODEL_HOST_DEVICE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define HOST_DEVICE __host__ __device__
#else
#define HOST_DEVICE
#endif

// What GPT-2 adds to the variance of a row in LayerNorm
#define LAYERNORM_EPSILON 1e-5f

// Clipping by the global norm (Pascanu et al. 2013): what the gradients are multiplied by; 1 if `clip` is 0.
HOST_DEVICE static inline float grad_clip_scale(float norm, float clip) {
    return clip > 0.0f && norm > clip ? clip / norm : 1.0f;
}

// The finaliser of SplitMix64 (Steele, Lea, Flood 2014): a bijection in which every bit of the result depends on all of x.
HOST_DEVICE static inline uint64_t mix64(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// A digest of an array of 32-bit words is the sum, modulo 2^64, of a mix of each word with its index: it does not depend on the
// order in which they are added, and a word that changes always changes it. Indices below 2^32 have a number of their own with
// every word; those above share it with a distant one.
HOST_DEVICE static inline uint64_t digest_mix(uint64_t index, uint32_t word) {
    return mix64((index << 32 | word) + (index >> 32) * 0x9e3779b97f4a7c15u + 0x9e3779b97f4a7c15u);
}

#endif
