/*
The contract of attention's third direction, decode: one new token of each sequence against the KV cache.

A variant attention_decode_<variant>.cu is, inside `namespace <variant>`, its kernels, a launcher for each configuration, and
the table `decode_configs`, best first for each head size. decode.cuh launches split, in fp32 naive. The file ends with

    #if __INCLUDE_LEVEL__ == 0 // the program, not an include
    int main(int argc, char** argv) { return variant_main(argc, argv, <variant>::decode_configs); }
    #endif
*/
#ifndef ATTENTION_DECODE_H
#define ATTENTION_DECODE_H

#include "dev/cuda/attention/attention.h"

#include <assert.h>

// The contract.
//
//     decode(out, k_cache, v_cache, qkv, lengths, scratch, B, T, NH, HS, max_length, stream)
//
//     out                (B,NH,HS)   floatX
//     k_cache, v_cache   (B,NH,T,HS) floatX   rows 0 .. lengths[b] - 1 are read, row lengths[b] is written
//     qkv                (B,3,NH,HS) floatX   q, then k, then v of every head of the new token
//     lengths            (B)         int, on the device: tokens of the sequence that are in the cache before this one
//
// The new token's k and v are stored at position lengths[b], and its q attends to all lengths[b] + 1 tokens:
//     out = sum_j P_j v_j,  P_j = exp(s_j) / sum_i exp(s_i),  s_j = q.k_j / sqrt(HS),  j <= lengths[b].
// A sequence with lengths[b] < 0 is skipped: nothing of it is read or written. Nothing else is written either, and the contents
// of the cache after the new token do not matter.
//
// With dependent launches (llmc/cuda/dependent_launch.cuh), lengths and the cached rows may be read before the wait for qkv:
// the kernel that writes qkv must call launch_dependents() only after its own wait for the kernels that wrote them.
//
// max_length <= T bounds lengths[b] + 1 in this launch. The grid depends on B, NH, max_length and the GPU alone, so that a CUDA
// graph can be replayed while the lengths grow up to that bound; a small bound saves thread blocks without work.
//
// The bits of out's row b depend on q, the keys, the values and the length of that row alone: not on B, T, max_length, what the
// other rows are, or when thread blocks run.
//
// Scratch begins with a counter for each of the B*NH heads (unsigned), 0 before the first launch; every launch leaves them 0.
// The initial contents of the rest do not matter. One scratch serves launches of one shape (B,T,NH,HS), one after the other.
//
// attention_decode_unsupported() says which sizes are served; HS is 32, 64, 96 or 128. Finite inputs give finite outputs, with
// scores of magnitude 1e4, too. A launcher allocates nothing, synchronises nothing, keeps no state and records errors as
// attention.h says. All tensors are aligned to 16 bytes, scratch to 256.

typedef void (*AttentionDecode)(floatX* out, floatX* k_cache, floatX* v_cache, const floatX* qkv, const int* lengths,
                                void* scratch, int B, int T, int NH, int HS, int max_length, cudaStream_t stream);

// One way to launch a variant. A head size has one configuration for all B, T and max_length, because another has other bits.
struct AttentionDecodeConfig {
    static constexpr const char* operation = "attention_decode_";
    const char* name;    // as the bench prints it and --config names it; no comma: a CSV field
    int HS;              // the head size it serves; 0: every one of the contract
    size_t shared_bytes; // shared memory of a thread block
    AttentionDecode launch;
    AttentionScratchBytes scratch_bytes; // at least the counters; SIZE_MAX if the size does not fit
};

// Why the contract does not serve these sizes, for the end of an error message; nullptr if it does. Any ints are valid.
static inline const char* attention_decode_unsupported(int B, int T, int NH, int HS, int max_length) {
    if (B < 1 || T < 1 || NH < 1) { return "batch, cache length and number of heads must be at least 1"; }
    if (HS != 32 && HS != 64 && HS != 96 && HS != 128) { return "the head size must be 32, 64, 96 or 128"; }
    if (max_length < 1 || max_length > T) { return "max_length must be at least 1 and at most the cache length"; }
    // A variant's grid may have sequences, or heads, as its second or third dimension.
    if (B > 65535 || NH > 65535) { return "batch and number of heads must be at most 65535"; }
    // Positions are rounded up to whole chunks with an int.
    if (T > 1 << 30) { return "the cache length must be at most 2^30"; }
    return nullptr;
}

// ----------------------------------------------------------------------------
// Addresses. 64-bit: B*NH*T*HS passes 2^31 for a large batch.

// Offset of (b, h, t = 0, 0) in (B,NH,T,HS). A token further: HS.
__host__ __device__ inline int64_t cache_offset(int b, int h, int T, int NH, int HS) {
    return ((int64_t)b * NH + h) * T * HS;
}
// Offset of (b, which, h, 0) in (B,3,NH,HS), with which = 0 for q, 1 for k, 2 for v.
__host__ __device__ inline int64_t new_token_offset(int b, int which, int h, int NH, int HS) {
    return qkv_offset(b, which, h, 1, NH, HS);
}

// Bytes of the counters that scratch begins with
__host__ __device__ inline size_t decode_counter_bytes(int B, int NH) {
    return CEIL_DIV((size_t)B * NH * sizeof(unsigned), (size_t)256) * 256;
}

#endif
