/*
The embedding: out[b,t] = wte[token[b,t]] + wpe[position], and its gradients. A position is that in the row or, with starts,
in the document.

dwte sums over all positions of the same token. To add in a fixed order without atomics, the host sorts the positions by token
(a counting sort, microseconds for a batch); each thread block then sums the positions of one token.
*/
#ifndef LLMC_CUDA_ENCODER_CUH
#define LLMC_CUDA_ENCODER_CUH

#include <string.h>

#include "column_sum.cuh"
#include "common.cuh"

// starts (B,T): where the document of each token begins. A separator is the first token of a document; a row begins one. A
// thread block takes a row, whose starts are a running maximum.
constexpr int DOCUMENT_THREADS = 256;
__global__ void __launch_bounds__(DOCUMENT_THREADS)
    document_starts_kernel(int* starts, const int* tokens, int separator, int T) {
    __shared__ int of_warp[DOCUMENT_THREADS / WARP_SIZE];
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const size_t row = (size_t)blockIdx.x * T;
    int before = 0; // of the tokens before these DOCUMENT_THREADS
    for (int first = 0; first < T; first += DOCUMENT_THREADS) {
        const int t = first + threadIdx.x;
        int start = t < T && tokens[row + t] == separator ? t : 0;
        for (int n = 1; n < WARP_SIZE; n *= 2) {
            const int other = __shfl_up_sync(0xffffffffu, start, n);
            if (lane >= n) { start = max(start, other); }
        }
        if (lane == WARP_SIZE - 1) { of_warp[warp] = start; }
        __syncthreads();
        start = max(start, before);
        for (int w = 0; w < DOCUMENT_THREADS / WARP_SIZE; w++) {
            if (w < warp) { start = max(start, of_warp[w]); }
            before = max(before, of_warp[w]);
        }
        if (t < T) { starts[row + t] = start; }
        __syncthreads(); // of_warp has been read
    }
}
static inline void document_starts(int* starts, const int* tokens, int separator, int B, int T, cudaStream_t stream) {
    document_starts_kernel<<<B, DOCUMENT_THREADS, 0, stream>>>(starts, tokens, separator, T);
    cuda_try(cudaGetLastError());
}

__global__ void encoder_forward_kernel(floatX* out, const int* tokens, const int* starts, const floatX* wte,
                                       const floatX* wpe, size_t BT, int T, int C) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (i >= BT * C) { return; }
    size_t bt = i / C;
    int c = i % C;
    size_t position = bt % T - (starts ? starts[bt] : 0);
    x128 a = load128(wte + (size_t)tokens[bt] * C + c), b = load128(wpe + position * C + c), sum;
    for (int k = 0; k < x128::size; k++) { sum[k] = (floatX)((float)a[k] + (float)b[k]); }
    store128(out + i, sum);
}

// out (B,T,C); tokens (B,T); starts (B,T), or NULL: positions are in the row; wte (Vp,C); wpe (maxT,C)
static inline void encoder_forward(floatX* out, const int* tokens, const int* starts, const floatX* wte,
                                   const floatX* wpe, int B, int T, int C, cudaStream_t stream) {
    size_t BT = (size_t)B * T, vectors = BT * C / x128::size;
    encoder_forward_kernel<<<(unsigned)CEIL_DIV(vectors, (size_t)256), 256, 0, stream>>>(out, tokens, starts, wte, wpe,
                                                                                         BT, T, C);
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

// The positions (BT) of tokens (BT) in their documents, on the host: sort_tokens() sorts them, too.
static inline void document_positions(int* positions, const int* tokens, int separator, int BT, int T) {
    for (int i = 0; i < BT; i++) { positions[i] = i % T == 0 || tokens[i] == separator ? 0 : positions[i - 1] + 1; }
}

// dwte (Vp,C), dwpe (maxT,C), fp32, +=; dout (B,T,C). `sorted` holds device copies of sort_tokens' arrays, `positions` those of
// document_positions(), or unique = 0: positions are in the row.
static inline void encoder_backward(float* dwte, float* dwpe, const floatX* dout, TokenOrder sorted,
                                    TokenOrder positions, int B, int T, int C, cudaStream_t stream) {
    size_t vectors = (size_t)T * C / x128::size;
    if (positions.unique > 0) {
        dim3 grid(positions.unique, CEIL_DIV(C, COLUMN_SUM_WIDTH));
        encoder_backward_wte_kernel<<<grid, COLUMN_SUM_WARPS * WARP_SIZE, 0, stream>>>(dwpe, dout, positions.buckets,
                                                                                       positions.order, C);
    } else {
        encoder_backward_wpe_kernel<<<(unsigned)CEIL_DIV(vectors, (size_t)256), 256, 0, stream>>>(dwpe, dout, B, T, C);
    }
    cuda_try(cudaGetLastError());
    dim3 grid(sorted.unique, CEIL_DIV(C, COLUMN_SUM_WIDTH));
    encoder_backward_wte_kernel<<<grid, COLUMN_SUM_WARPS * WARP_SIZE, 0, stream>>>(dwte, dout, sorted.buckets,
                                                                                   sorted.order, C);
    cuda_try(cudaGetLastError());
}

#endif
