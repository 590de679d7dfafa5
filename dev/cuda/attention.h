/*
The contract of the attention variants: shapes, signatures, and what a variant declares.

    forward (out, l, m, qkv, B, T, NH, HS, stream)
    backward(dqkv, dout, qkv, out, l, m, scratch, B, T, NH, HS, stream)

    qkv, dqkv   (B,T,3,NH,HS) floatX    a token's row holds q, then k, then v of every head
    out, dout   (B,T,NH,HS)   floatX
    l, m        (B,NH,T)      float

With scores s_ij = q_i.k_j / sqrt(HS) for j <= i, m_i is the maximum that the kernel used (the row's maximum, or at most
8 below it) and l_i = sum_j exp(s_ij - m_i). So P_ij = exp(s_ij - m_i) / l_i, and backward needs nothing else.

B, T, NH >= 1 and HS of 32, 64, 96 or 128; attention_unsupported() says so, and launchers rely on its having been asked.
Every element of the outputs is written; nothing else is. Finite inputs give finite outputs, with scores up to 1e4 in
magnitude too. A launcher allocates nothing, synchronises nothing and keeps no state; it is safe inside a CUDA graph, and
on several streams at once with a scratch for each. Scratch holds anything when a kernel starts.

A variant attention_<direction>_<variant>.cu is, inside `namespace <variant>`, its kernels, a launcher for each
configuration, the table `forward_configs` or `backward_configs`, and attention_forward(), or attention_backward() and
attention_backward_scratch_bytes(), which run the first entry of the table that serves the head size and fits the GPU.
It ends with

    #if __INCLUDE_LEVEL__ == 0 // the program, not an include
    #include "attention_bench.h"
    int main(int argc, char** argv) { return attention_forward_main(argc, argv, "<variant>", <variant>::forward_configs); }
    #endif
*/
#ifndef ATTENTION_H
#define ATTENTION_H

#include "llmc/cuda_common.cuh"

typedef void (*AttentionForward)(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                                 cudaStream_t stream);
// For variants that keep more in device memory than their outputs, such as a T×T tensor: forward too has a scratch.
// They race, but do not train: the trainer keeps none for forward.
typedef void (*AttentionForwardWithScratch)(floatX* out, float* l, float* m, const floatX* qkv, void* scratch, int B,
                                            int T, int NH, int HS, cudaStream_t stream);
typedef void (*AttentionBackward)(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                  const float* l, const float* m, void* scratch, int B, int T, int NH, int HS,
                                  cudaStream_t stream);
typedef size_t (*AttentionScratchBytes)(int B, int T, int NH, int HS);

// One way to launch a variant. A table lists them best first for each head size.
struct AttentionForwardConfig {
    const char* name;        // as the bench prints it and --config names it, such as "64x64"; no comma: a CSV field
    int HS;                  // the head size it serves; 0: every one of the contract
    size_t shared_bytes;     // shared memory of a block
    AttentionForward launch; // nullptr where forward needs a scratch: then launch_with_scratch
    AttentionForwardWithScratch launch_with_scratch = nullptr;
    AttentionScratchBytes scratch_bytes = nullptr; // of launch_with_scratch; the caller aligns scratch to 256 bytes
};
struct AttentionBackwardConfig {
    const char* name;
    int HS;
    size_t shared_bytes;
    AttentionBackward launch;
    AttentionScratchBytes scratch_bytes; // may be 0; the caller aligns scratch to 256 bytes
};

// What the contract does not serve, as half a sentence, or nullptr where it serves the sizes.
static inline const char* attention_unsupported(int B, int T, int NH, int HS) {
    if (B < 1 || T < 1 || NH < 1) { return "batch, sequence length and number of heads must be at least 1"; }
    if (HS != 32 && HS != 64 && HS != 96 && HS != 128) { return "the head size must be 32, 64, 96 or 128"; }
    // Blocks are counted in one grid dimension, by the smallest tile in use: 16 rows of one head.
    if ((int64_t)B * NH * CEIL_DIV(T, 16) > INT32_MAX) { return "batch x heads x sequence length is too large"; }
    return nullptr;
}

// The first configuration of the table that serves the head size and fits the current GPU.
template <class Config, size_t N> static inline const Config& attention_config(const Config (&configs)[N], int HS) {
    int device, shared_limit;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    for (const Config& c : configs) {
        if ((c.HS == 0 || c.HS == HS) && c.shared_bytes <= (size_t)shared_limit) { return c; }
    }
    fatal("attention: no configuration serves head size %d with the %d bytes of shared memory of this GPU", HS,
          shared_limit);
}

// ----------------------------------------------------------------------------
// Addresses in the packed tensors. 64-bit: B*T*3*NH*HS passes 2^31 for a large batch.

// Offset of (b, t = 0, which, h, 0) in (B,T,3,NH,HS), with which = 0 for q, 1 for k, 2 for v. A token further: 3*NH*HS.
__host__ __device__ inline int64_t qkv_offset(int b, int which, int h, int T, int NH, int HS) {
    return ((int64_t)b * T * 3 + which) * NH * HS + (int64_t)h * HS;
}
// Offset of (b, t = 0, h, 0) in (B,T,NH,HS). A token further: NH*HS.
__host__ __device__ inline int64_t out_offset(int b, int h, int T, int NH, int HS) {
    return (int64_t)b * T * NH * HS + (int64_t)h * HS;
}

// One 16-byte vector of the training precision to and from floats.
__device__ inline void to_floats(float* x, const x128& v) {
#pragma unroll
    for (int i = 0; i < x128::size; i++) { x[i] = (float)v[i]; }
}
__device__ inline x128 from_floats(const float* x) {
    x128 v;
#pragma unroll
    for (int i = 0; i < x128::size; i++) { v[i] = (floatX)x[i]; }
    return v;
}

#endif
