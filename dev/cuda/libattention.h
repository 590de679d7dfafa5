/*
libattention: causal self-attention forward and backward on an NVIDIA GPU, for callers with raw device pointers. Needs
compute capability 8.0 or newer; link with -lattention.
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

HS is 32, 64, 96 or 128; B, T and NH are at least 1. Every element of an output is written, and nothing else is. The same
inputs give the same bits.

Pointers are of memory that the current device reads and writes: its own, managed, or pinned on the host. qkv, dqkv, out
and dout are aligned to 16 bytes, l and m to 4, scratch to 256. Functions launch kernels on `stream` (a cudaStream_t or
CUstream of the current device; NULL is the default stream) and return without waiting for them. They allocate nothing
and synchronise nothing; they may be captured in a CUDA graph, and run on several streams and threads at once, each
backward with a scratch of its own.

Errors: functions return 0 when the kernels were launched, else 1, and nothing was launched then, or not all of it.
attention_error() says why. Arguments that are not served are such an error: the process, its CUDA context and its
pending CUDA errors stay as they were. What no library can know remains the caller's word: that the tensors are as large
as the sizes say, and that the stream exists.
*/

// Bytes of scratch that attention_backward needs on the current device; 0 on error.
size_t attention_scratch_bytes(int B, int T, int NH, int HS);

// out, l and m from qkv.
int attention_forward(void* out, float* l, float* m, const void* qkv, int B, int T, int NH, int HS, void* stream);

// dqkv from dout, and from what forward read and wrote. scratch holds attention_scratch_bytes() bytes of anything.
int attention_backward(void* dqkv, const void* dout, const void* qkv, const void* out, const float* l, const float* m,
                       void* scratch, int B, int T, int NH, int HS, void* stream);

// Why this thread's last call of the three above failed, in one line; "" where it did not. Valid until its next call.
const char* attention_error(void);

#ifdef __cplusplus
}
#endif

#endif
