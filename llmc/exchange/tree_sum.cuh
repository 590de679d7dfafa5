/*
Sums of gradients in the order of the gradient tree (gradient_tree.h): the pieces of N processes, and the accumulation
buffers of one. The order does not depend on the number of thread blocks: each element is summed by one thread.

    tree_sum    gradient_tree_sum_range: N = 2^a o, o odd: the pieces of each 2^a consecutive ranks by a perfect binary tree,
                then the o sums one after the other
    carry_add   the additions that follow a leaf: x0 + (x1 + (x2 + ..))

Both are memory-bound. tree_sum runs beside backward passes, so its grid fills only a part of the GPU.
*/
#ifndef LLMC_EXCHANGE_TREE_SUM_CUH
#define LLMC_EXCHANGE_TREE_SUM_CUH

#include "llmc/cuda/common.cuh"
#include "llmc/model/gradient_tree.h"

constexpr int TREE_SUM_THREADS = 256;
constexpr int TREE_SUM_BLOCKS = 264;               // two per SM of an H100 or H200
constexpr int CARRY_ADD_MAX = GRADIENT_TREE_DEPTH; // buffers

__device__ inline float add_numbers(float a, float b) { return a + b; }
__device__ inline f128 add_numbers(f128 a, f128 b) {
    for (int k = 0; k < f128::size; k++) { a[k] += b[k]; }
    return a;
}

static inline unsigned tree_sum_grid(size_t vectors) {
    size_t blocks = CEIL_DIV(vectors, (size_t)TREE_SUM_THREADS);
    return (unsigned)(blocks < TREE_SUM_BLOCKS ? blocks : TREE_SUM_BLOCKS);
}

// ----------------------------------------------------------------------------
// The pieces of N processes

// Rank r's piece: at received + (r < rank ? r : r - 1) * stride, or at `own` for this process.
struct TreePieces {
    const float *own, *received;
    size_t stride;
    int rank, N;

    __device__ const float* operator[](int r) const {
        return r == rank ? own : received + (size_t)(r < rank ? r : r - 1) * stride;
    }
};

// The sum of the pieces at element i; V is a float or a vector of them. G ranks are loaded together and added by a tree. LEVELS
// > 0: `ranks` ranks are G 2^n of them, added by a binary counter whose digit l holds the sum of 2^l groups. Each `ranks` ranks
// give one sum; these are added one after the other.
template <int G, int LEVELS, class V> __device__ inline V tree_sum_at(const TreePieces& pieces, int ranks, size_t i) {
    V total, counter[LEVELS > 0 ? LEVELS : 1];
    for (int first = 0; first < pieces.N; first += G) {
        V sum[G];
#pragma unroll
        for (int g = 0; g < G; g++) { sum[g] = *reinterpret_cast<const V*>(pieces[first + g] + i); }
#pragma unroll
        for (int width = 1; width < G; width *= 2) {
#pragma unroll
            for (int g = 0; g < G; g += 2 * width) { sum[g] = add_numbers(sum[g], sum[g + width]); }
        }
        int in_part = first & (ranks - 1), group = in_part / G; // ranks is a power of two
        bool carry = true;
#pragma unroll
        for (int l = 0; l < LEVELS; l++) {
            if (carry && (group >> l & 1)) {
                sum[0] = add_numbers(counter[l], sum[0]);
            } else if (carry) {
                counter[l] = sum[0], carry = false;
            }
        }
        if (in_part == ranks - G) { // the last group of `ranks` ranks: the carry has passed every digit
            total = first < ranks ? sum[0] : add_numbers(total, sum[0]);
        }
    }
    return total;
}

template <int G, int LEVELS> __global__ void __launch_bounds__(TREE_SUM_THREADS)
    tree_sum_kernel(float* out, TreePieces pieces, int ranks, size_t n) {
    size_t vectors = n / f128::size, thread = (size_t)blockIdx.x * TREE_SUM_THREADS + threadIdx.x;
    for (size_t v = thread; v < vectors; v += (size_t)gridDim.x * TREE_SUM_THREADS) {
        store128(out + v * f128::size, tree_sum_at<G, LEVELS, f128>(pieces, ranks, v * f128::size));
    }
    size_t i = vectors * f128::size + thread;
    if (i < n) { out[i] = tree_sum_at<G, LEVELS, float>(pieces, ranks, i); }
}

// out (n) = the sum of the pieces (n) of N processes in tree order. own is the piece of this process, `rank`; those of the
// others stand in `received` (N - 1, stride), in the order of ranks. out may be own. Each begins at a multiple of 16 bytes.
static inline void tree_sum(float* out, const float* own, const float* received, size_t stride, int rank, int N,
                            size_t n, cudaStream_t stream) {
    if (n == 0) { return; }
    TreePieces pieces = {own, received, stride, rank, N};
    int ranks = gradient_tree_power_(N); // 2^a
    unsigned grid = tree_sum_grid(CEIL_DIV(n, f128::size));
    auto kernel = ranks == 1   ? tree_sum_kernel<1, 0>
                  : ranks == 2 ? tree_sum_kernel<2, 0>
                  : ranks == 4 ? tree_sum_kernel<4, 0>
                  : ranks == 8 ? tree_sum_kernel<8, 0>
                               : tree_sum_kernel<8, 10>;
    kernel<<<grid, TREE_SUM_THREADS, 0, stream>>>(out, pieces, ranks, n);
    cuda_try(cudaGetLastError());
}

// ----------------------------------------------------------------------------
// The accumulation buffers of one process

struct CarryBuffers {
    const float* x[CARRY_ADD_MAX];
};

template <class V> __device__ inline V carry_add_at(const CarryBuffers& b, int count, size_t i) {
    V sum = *reinterpret_cast<const V*>(b.x[count - 1] + i);
#pragma unroll 4
    for (int k = count - 2; k >= 0; k--) { sum = add_numbers(*reinterpret_cast<const V*>(b.x[k] + i), sum); }
    return sum;
}

__global__ void __launch_bounds__(TREE_SUM_THREADS) carry_add_kernel(float* out, CarryBuffers b, int count, size_t n) {
    size_t vectors = n / f128::size, thread = (size_t)blockIdx.x * TREE_SUM_THREADS + threadIdx.x;
    if (thread < vectors) { store128(out + thread * f128::size, carry_add_at<f128>(b, count, thread * f128::size)); }
    size_t i = vectors * f128::size + thread;
    if (i < n) { out[i] = carry_add_at<float>(b, count, i); }
}

// out (n) = x[0] + (x[1] + (.. + x[count - 1])), each (n) and aligned to 16 bytes; out may be one of them. count = 2 adds a
// leaf, 1 copies. The compute stream waits for it, so the grid fills the GPU.
static inline void carry_add(float* out, const float* const* x, int count, size_t n, cudaStream_t stream) {
    CarryBuffers b = {};
    if (n == 0) { return; }
    for (int i = 0; i < count; i++) { b.x[i] = x[i]; }
    unsigned grid = (unsigned)CEIL_DIV(CEIL_DIV(n, f128::size), (size_t)TREE_SUM_THREADS);
    carry_add_kernel<<<grid, TREE_SUM_THREADS, 0, stream>>>(out, b, count, n);
    cuda_try(cudaGetLastError());
}

#endif
