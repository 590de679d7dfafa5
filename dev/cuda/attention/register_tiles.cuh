/*
Matrix multiplications of tiles on CUDA cores: each thread holds a tile of the result in registers, and operands come from
shared memory as 16-byte vectors, each of which serves a row or a column of the thread's tile.

A warp is 4 × 8 threads. It owns 4 TM consecutive rows of a result: a thread has rows row + 4r for r < TM. In A B^T, whose
columns are rows of B, a thread has columns col + 8c; in A B it has four neighbouring columns at a time, 4 col + 32 c + (0..3).
Both let a warp read B without bank conflicts. No other warp has its rows, so statistics and exchanged tiles stay in the warp.
*/
#ifndef REGISTER_TILES_CUH
#define REGISTER_TILES_CUH

#include <cuda_pipeline.h>

#include "attention.h"

namespace flash2 {

constexpr int WARPS = 4, THREADS = WARPS * WARP_SIZE; // of a CTA

// Row strides, in floats, of a tile with `width` columns in shared memory, padded against bank conflicts: operands of A B^T are
// read down a column, 8 rows of 16 bytes at a time; exchanged tiles are written 4 rows of 8 columns at a time.
__host__ __device__ constexpr int operand_stride(int width) { return width + 4; }
__host__ __device__ constexpr int exchange_stride(int width) { return width + 8; }

// A thread's position in the 4 × 8 of its warp. Neighbouring lanes share a row, lanes 2 apart a column, so that the hardware
// serves the 16-byte loads of two quarters of a warp in one pass.
struct ThreadPosition {
    int warp, row, col;
    __device__ ThreadPosition() {
        int lane = threadIdx.x % WARP_SIZE;
        warp = threadIdx.x / WARP_SIZE;
        row = (lane >> 1 & 1) | (lane >> 3 & 2);
        col = (lane & 1) | (lane >> 1 & 6);
    }
};

// Over the 8 threads that share a row
__device__ inline float row_max(float x) {
#pragma unroll
    for (int mask : {1, 4, 8}) { x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, mask)); }
    return x;
}
__device__ inline float row_sum(float x) {
#pragma unroll
    for (int mask : {1, 4, 8}) { x += __shfl_xor_sync(0xffffffffu, x, mask); }
    return x;
}

__device__ inline float4 read4(const float* p) { return *reinterpret_cast<const float4*>(p); }

// C[r][c] += sum_d A[row + 4r][d] B[col + 8c][d]; A and B are DEPTH wide in shared memory.
template <int DEPTH, int TM, int TN>
__device__ inline void multiply_abt(float (&C)[TM][TN], const float* A, const float* B, ThreadPosition at) {
    constexpr int stride = operand_stride(DEPTH);
    A += at.row * stride, B += at.col * stride;
#pragma unroll(TM* TN < 64 ? 2 : 1)
    for (int d = 0; d < DEPTH; d += 4) {
        float4 b[TN];
#pragma unroll
        for (int c = 0; c < TN; c++) { b[c] = read4(B + 8 * c * stride + d); }
#pragma unroll
        for (int r = 0; r < TM; r++) {
            float4 a = read4(A + 4 * r * stride + d);
#pragma unroll
            for (int c = 0; c < TN; c++) {
                C[r][c] = fmaf(a.x, b[c].x, C[r][c]);
                C[r][c] = fmaf(a.y, b[c].y, C[r][c]);
                C[r][c] = fmaf(a.z, b[c].z, C[r][c]);
                C[r][c] = fmaf(a.w, b[c].w, C[r][c]);
            }
        }
    }
}

// C[r][4c + n] += sum_k A[row + 4r][k] B[k][4 col + 32 c + n]; A is an exchanged tile DEPTH wide, B has 32 VECTORS columns.
template <int DEPTH, int TM, int COLUMNS>
__device__ inline void multiply_ab(float (&C)[TM][COLUMNS], const float* A, const float* B, ThreadPosition at) {
    constexpr int stride_a = exchange_stride(DEPTH), stride_b = operand_stride(8 * COLUMNS);
    A += at.row * stride_a, B += 4 * at.col;
#pragma unroll(TM* COLUMNS <= 64 ? 2 : 1)
    for (int k = 0; k < DEPTH; k += 4) {
        alignas(16) float a[TM][4];
#pragma unroll
        for (int r = 0; r < TM; r++) { *reinterpret_cast<float4*>(a[r]) = read4(A + 4 * r * stride_a + k); }
#pragma unroll
        for (int kk = 0; kk < 4; kk++) {
#pragma unroll
            for (int c = 0; c < COLUMNS; c += 4) {
                float4 b = read4(B + (k + kk) * stride_b + 8 * c);
#pragma unroll
                for (int r = 0; r < TM; r++) {
                    C[r][c] = fmaf(a[r][kk], b.x, C[r][c]);
                    C[r][c + 1] = fmaf(a[r][kk], b.y, C[r][c + 1]);
                    C[r][c + 2] = fmaf(a[r][kk], b.z, C[r][c + 2]);
                    C[r][c + 3] = fmaf(a[r][kk], b.w, C[r][c + 3]);
                }
            }
        }
    }
}

// Writes a thread's tile of A B^T to an exchanged tile, for the threads that share its rows: operand A of the next
// multiplication. The warp reads it after __syncwarp().
template <int TM, int TN> __device__ inline void exchange(float* tile, const float (&C)[TM][TN], ThreadPosition at) {
    constexpr int stride = exchange_stride(8 * TN);
#pragma unroll
    for (int r = 0; r < TM; r++) {
#pragma unroll
        for (int c = 0; c < TN; c++) { tile[(at.row + 4 * r) * stride + at.col + 8 * c] = C[r][c]; }
    }
}

// Begins to copy ROWS rows of WIDTH numbers to shared memory as floats, with zeros from row `limit` on. fp32 goes by
// cp.async, which finish_loads() waits for; 16-bit numbers are converted on the way and are there on return.
template <int ROWS, int WIDTH>
__device__ inline void load_tile(float* tile, const floatX* rows, int row_stride, int limit) {
    constexpr int vectors = WIDTH / x128::size, stride = operand_stride(WIDTH);
    constexpr int pass = THREADS / vectors; // rows at a time; where 24 vectors do not divide the threads, some idle
    constexpr bool even = THREADS % vectors == 0 && ROWS % pass == 0;
    const int row0 = threadIdx.x / vectors, d = threadIdx.x % vectors * x128::size;
    const floatX* from = rows + (int64_t)row0 * row_stride + d;
    float* to = tile + row0 * stride + d;
#pragma unroll(sizeof(floatX) == 4 ? 8 : 2) // 16-bit loads hold registers until they are converted
    for (int n = 0; n < CEIL_DIV(ROWS, pass); n++, from += (int64_t)pass * row_stride) {
        const int row = row0 + n * pass;
        if (!even && (row0 >= pass || row >= ROWS)) { break; }
#if defined(PRECISION_FP32)
        __pipeline_memcpy_async(to + n * pass * stride, from, 16,
                                row < limit ? 0 : 16); // from the limit on nothing is read
#else
        alignas(16) float x[x128::size] = {};
        if (row < limit) { to_floats(x, load128(from)); }
#pragma unroll
        for (int i = 0; i < x128::size; i += 4) {
            *reinterpret_cast<float4*>(to + n * pass * stride + i) = read4(x + i);
        }
#endif
    }
    __pipeline_commit();
}
__device__ inline void finish_loads() { __pipeline_wait_prior(0); }

// Stores a thread's tile of A B, row r times scale(r), to rows of global memory, up to row `limit`.
template <int TM, int COLUMNS, class Scale> __device__ inline void
store_tile(floatX* rows, int64_t row_stride, const float (&C)[TM][COLUMNS], Scale scale, ThreadPosition at, int limit) {
#pragma unroll
    for (int r = 0; r < TM; r++) {
        const int row = at.row + 4 * r;
        if (row >= limit) { continue; }
#pragma unroll
        for (int c = 0; c < COLUMNS; c += 4) {
            alignas(4 * sizeof(floatX)) floatX x[4];
#pragma unroll
            for (int n = 0; n < 4; n++) { x[n] = (floatX)(C[r][c + n] * scale(r)); }
            typedef typename std::conditional<sizeof(floatX) == 4, float4, uint2>::type Word;
            *reinterpret_cast<Word*>(rows + row * row_stride + 4 * at.col + 8 * c) = *reinterpret_cast<Word*>(x);
        }
    }
}

} // namespace flash2

#endif
