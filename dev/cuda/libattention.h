/*
libattention: causal self-attention forward and backward on an NVIDIA GPU, for callers with raw device pointers. Needs
compute capability 8.0 or newer; link with -lattention. On 9.0 its fastest kernels need a build for sm_90a: one for sm_90 is
served by those of older GPUs.
*/
#ifndef LIBATTENTION_H
#define LIBATTENTION_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
Shapes, row-major, with B sequences of T tokens and NH heads of HS channels:

    qkv, dqkv   (B,T,3,NH,HS) bf16     a token's row holds q, then k, then v of every head
    out, dout   (B,T,NH,HS)   bf16
    l, m        (B,NH,T)      float    m_i: the largest score that the kernel used, of the row or at most 8 below it;
                                       l_i = sum_j exp(s_ij - m_i), with s_ij = q_i.k_j / sqrt(HS) for j <= i
    starts      (B,T)         int      where the document of token i begins: at most i, and not before that of token i - 1

HS is 32, 64, 96 or 128; B, T and NH are at least 1. Every element of an output is written, and nothing else is. The same
inputs give the same bits.

Pointers are to memory that the current device reads and writes: its own, managed, or pinned host memory; scratch is memory
of the device itself. qkv, dqkv, out and dout are aligned to 16 bytes, l, m and starts to 4, scratch to 256. Functions launch
kernels on `stream` (a cudaStream_t or CUstream of the current device; NULL is the default stream) and return without
waiting for them. They allocate nothing and synchronise nothing; they may be captured in a CUDA graph, and run on several
streams and threads at once, each backward with its own scratch.

Errors: functions return 0 if all kernels were launched, else 1; then none or only some of them were, and
attention_error() gives the reason. Unsupported arguments are such an error, and leave the process, its CUDA context and
its pending CUDA errors as they were. The library cannot check that the tensors are as large as the sizes say, what is
in starts, or that the stream exists.
*/

// Bytes of scratch that attention_backward needs on the current device; 0 on error.
size_t attention_scratch_bytes(int B, int T, int NH, int HS);

// Computes out, l and m from qkv.
int attention_forward(void* out, float* l, float* m, const void* qkv, int B, int T, int NH, int HS, void* stream);

// Computes dqkv from dout and the forward's qkv, out, l and m. scratch: attention_scratch_bytes() bytes of device memory,
// uninitialised.
int attention_backward(void* dqkv, const void* dout, const void* qkv, const void* out, const float* l, const float* m,
                       void* scratch, int B, int T, int NH, int HS, void* stream);

// The same for rows of several documents: query i sees keys starts_i .. i instead of 0 .. i. What is in other documents, if it
// is finite, changes no bit.
int attention_forward_documents(void* out, float* l, float* m, const void* qkv, const int* starts, int B, int T, int NH,
                                int HS, void* stream);
int attention_backward_documents(void* dqkv, const void* dout, const void* qkv, const void* out, const float* l,
                                 const float* m, const int* starts, void* scratch, int B, int T, int NH, int HS,
                                 void* stream);

// Why this thread's last call of those above failed, in one line; "" if it did not. Valid until its next call.
const char* attention_error(void);

#ifdef __cplusplus
}
#endif

#endif
