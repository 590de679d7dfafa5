/*
The contract of the attention variants: shapes, signatures, and what a variant declares.

A variant attention_<direction>_<variant>.cu is, inside `namespace <variant>`, its kernels, a launcher for each
configuration, and the table `forward_configs` or `backward_configs`. attention/choice.h chooses an entry; where it has no row
for the variant, the first entry that serves the head size and fits the GPU is taken. The file ends with

    #if __INCLUDE_LEVEL__ == 0 // the program, not an include
    int main(int argc, char** argv) { return variant_main(argc, argv, <variant>::forward_configs); }
    #endif
*/
#ifndef ATTENTION_H
#define ATTENTION_H

#include <algorithm>

#include "choice.h"
#include "dev/cuda/bench/variants.cuh"
#include "llmc/cuda/device_code.cuh"

// The contract.
//
//     forward (out, l, m, qkv, B, T, NH, HS, stream)
//     backward(dqkv, dout, qkv, out, l, m, scratch, B, T, NH, HS, stream)
//
//     qkv, dqkv   (B,T,3,NH,HS) floatX    a token's row holds q, then k, then v of every head
//     out, dout   (B,T,NH,HS)   floatX
//     l, m        (B,NH,T)      float
//     starts      (B,T)         int       launch_documents alone: where the document of token i begins: at most i, and never
//                                         less than that of i - 1; query i sees keys starts_i .. i
//
// With scores s_ij = q_i.k_j / sqrt(HS) for j <= i, m_i is the maximum that the kernel used (the row's maximum, or at most
// 8 below it) and l_i = sum_j exp(s_ij - m_i). So P_ij = exp(s_ij - m_i) / l_i, and backward needs nothing else.
//
// B, T, NH >= 1 and HS of 32, 64, 96 or 128: the caller checks this by attention_unsupported(), launchers do not. Every element
// of the outputs is written; nothing else is. Finite inputs give finite outputs, also with scores of magnitude 1e4. A launcher
// allocates nothing, synchronises nothing and keeps no state; it is safe inside a CUDA graph, and on several streams at once
// with a scratch for each. The initial contents of scratch do not matter.
//
// A launcher that cannot launch records why by status_fail() or cuda_try() (llmc/base/utils.h) and returns; it neither throws
// nor exits. qkv, dqkv, out and dout are aligned to 16 bytes, scratch to 256.

// Whether a row has more than one document: its last token is in the first one only if all are. For the threads of a warp,
// together.
__device__ inline bool several_documents(const int* starts, int B, int T) {
    int last_start = 0;
    for (int b = threadIdx.x % WARP_SIZE; b < B; b += WARP_SIZE) { last_start |= starts[(int64_t)b * T + T - 1]; }
    return __any_sync(0xffffffffu, last_start);
}

typedef void (*AttentionForward)(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                                 cudaStream_t stream);
// For variants whose forward needs scratch, such as a T×T tensor. They can be raced, but not used in training: the trainer has
// no scratch for forward.
typedef void (*AttentionForwardWithScratch)(floatX* out, float* l, float* m, const floatX* qkv, void* scratch, int B,
                                            int T, int NH, int HS, cudaStream_t stream);
typedef void (*AttentionBackward)(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                  const float* l, const float* m, void* scratch, int B, int T, int NH, int HS,
                                  cudaStream_t stream);
typedef size_t (*AttentionScratchBytes)(int B, int T, int NH, int HS);
// With documents. A row of one document has the bits of the launchers above; and the numbers in a document, whatever they are
// while finite, change no bit of another one.
typedef void (*AttentionForwardDocuments)(floatX* out, float* l, float* m, const floatX* qkv, const int* starts, int B,
                                          int T, int NH, int HS, cudaStream_t stream);
typedef void (*AttentionBackwardDocuments)(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                           const float* l, const float* m, const int* starts, void* scratch, int B,
                                           int T, int NH, int HS, cudaStream_t stream);
// For variants that sum dQ over its rows while it is in registers: also writes dq_sums (rows, NH*HS), fp32. Its rows add up to
// the column sums of dQ before rounding.
typedef void (*AttentionBackwardWithSums)(floatX* dqkv, float* dq_sums, const floatX* dout, const floatX* qkv,
                                          const floatX* out, const float* l, const float* m, void* scratch, int B,
                                          int T, int NH, int HS, cudaStream_t stream);
typedef int (*AttentionSumRows)(int B, int T);

// One way to launch a variant. A table lists them best first for each head size.
struct AttentionForwardConfig {
    static constexpr const char* operation = "attention_forward_"; // with which the variants' files begin
    const char* name;        // as the bench prints it and --config names it, such as "64x64"; no comma: a CSV field
    int HS;                  // the head size it serves; 0: every one of the contract
    size_t shared_bytes;     // shared memory of a thread block
    AttentionForward launch; // nullptr if forward needs a scratch: then launch_with_scratch
    AttentionForwardWithScratch launch_with_scratch = nullptr;
    AttentionScratchBytes scratch_bytes = nullptr; // of launch_with_scratch; the caller aligns scratch to 256 bytes
    AttentionForwardDocuments launch_documents = nullptr; // not every configuration has it
};
struct AttentionBackwardConfig {
    static constexpr const char* operation = "attention_backward_";
    const char* name;
    int HS;
    size_t shared_bytes;
    AttentionBackward launch;
    AttentionScratchBytes scratch_bytes;                   // may be 0; the caller aligns scratch to 256 bytes
    AttentionBackwardWithSums launch_with_sums = nullptr;  // not every variant has it
    AttentionSumRows sum_rows = nullptr;                   // of dq_sums
    AttentionBackwardDocuments launch_documents = nullptr; // scratch is that of launch
};

// The first configuration of a variant's table that serves the head size and fits the GPU, and is called `name` unless
// that is nullptr; nullptr if there is none.
template <class Config> constexpr const Config* attention_config(const Variants<Config>& configs, const char* name,
                                                                 int HS, size_t shared_limit) {
    for (const Config& c : configs) {
        if (name && !same_text(c.name, name)) { continue; }
        if ((c.HS == 0 || c.HS == HS) && c.shared_bytes <= shared_limit) { return &c; }
    }
    return nullptr;
}
typedef Variant<AttentionForwardConfig> AttentionForwardVariant;
typedef Variant<AttentionBackwardConfig> AttentionBackwardVariant;

// Launches a kernel with so many bytes of dynamic shared memory; records an error if it cannot.
template <class... Parameters, class... Arguments>
static inline void attention_launch(void (*kernel)(Parameters...), dim3 blocks, int threads, size_t shared_bytes,
                                    cudaStream_t stream, Arguments... arguments) {
    const auto shared = cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (cuda_try(cudaFuncSetAttribute(kernel, shared, (int)shared_bytes)) != STATUS_OK) { return; }
    kernel<<<blocks, threads, shared_bytes, stream>>>(arguments...);
    cuda_try(cudaGetLastError());
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

// One more than the last query that sees key `key`: of the document that holds it. starts (T), a row's.
__host__ __device__ inline int document_end(const int* starts, int T, int key) {
    int end = T;
    for (int seen = key; end - seen > 1;) { // query `seen` sees the key, query `end` does not, or is past the row
        const int middle = seen + (end - seen) / 2;
        (starts[middle] <= key ? seen : end) = middle;
    }
    return end;
}

// One 16-byte vector of the training precision as floats.
__device__ inline void to_floats(float* x, const x128& v) {
#pragma unroll
    for (int i = 0; i < x128::size; i++) { x[i] = (float)v[i]; }
}

#endif
