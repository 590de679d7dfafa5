/*
The embedding: out[b,t] = wte[token[b,t]] + wpe[t], and its gradients.

dwte sums over all positions of the same token. To add in a fixed order without atomics, the host sorts the positions by token
(a counting sort, microseconds for a batch); each thread block then sums the positions of one token.
*/
#ifndef LLMC_CUDA_ENCODER_CUH
#define LLMC_CUDA_ENCODER_CUH

#include <string.h>

#include "column_sum.cuh"
#include "common.cuh"

__global__ void encoder_forward_kernel(floatX* out, const int* tokens, const floatX* wte, const floatX* wpe, size_t BT,
                                       int T, int C) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (i >= BT * C) { return; }
    size_t bt = i / C;
    int c = i % C;
    x128 a = load128(wte + (size_t)tokens[bt] * C + c), b = load128(wpe + (bt % T) * C + c), sum;
    for (int k = 0; k < x128::size; k++) { sum[k] = (floatX)((float)a[k] + (float)b[k]); }
    store128(out + i, sum);
}

// out (B,T,C); tokens (B,T); wte (Vp,C); wpe (maxT,C)
static inline void encoder_forward(floatX* out, const int* tokens, const floatX* wte, const floatX* wpe, int B, int T,
                                   int C, cudaStream_t stream) {
    size_t BT = (size_t)B * T, vectors = BT * C / x128::size;
    encoder_forward_kernel<<<(unsigned)CEIL_DIV(vectors, (size_t)256), 256, 0, stream>>>(out, tokens, wte, wpe, BT, T,
                                                                                         C);
    cuda_try(cudaGetLastError());
}

// dwpe (maxT,C), fp32: dwpe[t] += sum_b dout[b,t]
__global__ void encoder_backward_wpe_kernel(float* dwpe, const floatX* dout, int B, int T, int C) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (i >= (size_t)T * C) { return; }
    float sum[x128::size] = {};
    for (int b = 0; b < B; b++) {
        x128 d = load128(dout + (size_t)b * T * C + i);
        for (int k = 0; k < x128::size; k++) { sum[k] += (float)d[k]; }
    }
    for (int k = 0; k < x128::size; k++) { dwpe[i + k] += sum[k]; }
}

// dwte[token] += sum of dout over the token's positions. A thread block sums token blockIdx.x for the 32 vectors of channels
// blockIdx.y; its warps take the positions order[start .. end-1] round-robin. buckets: as in TokenOrder.
__global__ void __launch_bounds__(COLUMN_SUM_WARPS* WARP_SIZE, 4)
    encoder_backward_wte_kernel(float* dwte, const floatX* dout, const int2* buckets, const int* order, int C) {
    int start = buckets[blockIdx.x].y, end = buckets[blockIdx.x + 1].y;
    int column = blockIdx.y * COLUMN_SUM_WIDTH + threadIdx.x % WARP_SIZE * x128::size;
    float sum[x128::size] = {};
    if (column < C) {
#pragma unroll 4
        for (int i = start + threadIdx.x / WARP_SIZE; i < end; i += COLUMN_SUM_WARPS) {
            x128 d = load128(dout + (size_t)order[i] * C + column);
            for (int k = 0; k < x128::size; k++) { sum[k] += (float)d[k]; }
        }
    }
    store_column_sums<true>(dwte + (size_t)buckets[blockIdx.x].x * C, sum, blockIdx.y, C);
}

// The positions of a batch sorted by token: what encoder_backward reads. On the host the arrays are page-locked.
struct TokenOrder {
    int2* buckets; // (unique + 1): token and start in `order`; the last one's start is BT
    int* order;    // (BT): positions b*T+t, by token, ascending within one
    int unique;
};

// Sorts tokens (BT), all in [0, V), into `sorted`, whose arrays have room for min(BT, V) + 1 and BT elements. counts (V)
// is scratch.
static inline void sort_tokens(TokenOrder* sorted, int* counts, const int* tokens, int BT, int V) {
    memset(counts, 0, sizeof(int) * V);
    for (int i = 0; i < BT; i++) { counts[tokens[i]]++; }
    int start = 0;
    sorted->unique = 0;
    for (int v = 0; v < V; v++) {
        if (counts[v] == 0) { continue; }
        sorted->buckets[sorted->unique].x = v;
        sorted->buckets[sorted->unique++].y = start;
        int count = counts[v];
        counts[v] = start; // from here on: where the token's next position goes
        start += count;
    }
    sorted->buckets[sorted->unique].x = -1;
    sorted->buckets[sorted->unique].y = BT;
    for (int i = 0; i < BT; i++) { sorted->order[counts[tokens[i]]++] = i; }
}

// dwte (Vp,C), dwpe (maxT,C), fp32, +=; dout (B,T,C). `sorted` holds device copies of sort_tokens' arrays.
static inline void encoder_backward(float* dwte, float* dwpe, const floatX* dout, TokenOrder sorted, int B, int T,
                                    int C, cudaStream_t stream) {
    size_t vectors = (size_t)T * C / x128::size;
    encoder_backward_wpe_kernel<<<(unsigned)CEIL_DIV(vectors, (size_t)256), 256, 0, stream>>>(dwpe, dout, B, T, C);
    cuda_try(cudaGetLastError());
    dim3 grid(sorted.unique, CEIL_DIV(C, COLUMN_SUM_WIDTH));
    encoder_backward_wte_kernel<<<grid, COLUMN_SUM_WARPS * WARP_SIZE, 0, stream>>>(dwte, dout, sorted.buckets,
                                                                                   sorted.order, C);
    cuda_try(cudaGetLastError());
}

#endif
