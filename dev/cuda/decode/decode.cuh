/*
The decode that programs generate with: the launcher of the configuration that serves a head size, split's or, in fp32, naive's.
The contract is attention_decode.h's.

The choice depends on precision and head size, never on B, T or max_length: another configuration adds in another order, and a
sequence's bits must not depend on what else is in the batch. What serves fits the shared memory of every GPU from sm_80 on.

Launchers record errors and return (llmc/base/utils.h): a head size that nothing serves, misaligned tensors, a failed launch.
*/
#ifndef DECODE_CUH
#define DECODE_CUH

#include "attention_decode.h"
#include "dev/cuda/bench/variants.cuh"

extern const Variants<AttentionDecodeConfig> attention_decode_configs;

#if defined(DECODE_KERNELS) && defined(PRECISION_FP32)
#include "attention_decode_naive.cu"
constexpr Variants<AttentionDecodeConfig> attention_decode_configs(naive::decode_configs);
#elif defined(DECODE_KERNELS)
#include "attention_decode_split.cu"
constexpr Variants<AttentionDecodeConfig> attention_decode_configs(split::decode_configs);
#endif

// The configuration that serves the sizes; nullptr and an error if none does. Needs no GPU.
static inline const AttentionDecodeConfig* attention_decode_choice(int B, int T, int NH, int HS) {
    const char* why = attention_decode_unsupported(B, T, NH, HS, T);
    if (why) {
        status_fail("decode of batch %d, cache length %d, %d heads of %d: %s", B, T, NH, HS, why);
        return nullptr;
    }
    return attention_config(attention_decode_configs, nullptr, HS, SIZE_MAX);
}

// Bytes of scratch, which the caller aligns to 256 and fills with zeros once; SIZE_MAX if the size does not fit, 0 and an
// error where nothing serves.
static inline size_t attention_decode_scratch_bytes(int B, int T, int NH, int HS) {
    const AttentionDecodeConfig* config = attention_decode_choice(B, T, NH, HS);
    return config ? config->scratch_bytes(B, T, NH, HS) : 0;
}

// out (B,NH,HS) from qkv (B,3,NH,HS) and the caches (B,NH,T,HS), which take the new token's k and v at position lengths[b]
static inline void attention_decode(floatX* out, floatX* k_cache, floatX* v_cache, const floatX* qkv,
                                    const int* lengths, void* scratch, int B, int T, int NH, int HS, int max_length,
                                    cudaStream_t stream) {
    const AttentionDecodeConfig* config = attention_decode_choice(B, T, NH, HS);
    if (!config) { return; }
    if (max_length < 1 || max_length > T) {
        status_fail("decode: max_length %d must be 1 to %d, the cache length", max_length, T);
        return;
    }
    const uintptr_t tensors = (uintptr_t)out | (uintptr_t)k_cache | (uintptr_t)v_cache | (uintptr_t)qkv;
    if (tensors % 16 != 0 || (uintptr_t)scratch % 256 != 0) {
        status_fail("decode: out, qkv and the caches must be aligned to 16 bytes, scratch to 256");
        return;
    }
    config->launch(out, k_cache, v_cache, qkv, lengths, scratch, B, T, NH, HS, max_length, stream);
}

#endif
