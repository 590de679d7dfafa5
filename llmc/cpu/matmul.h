/*
GEMM on the CPU: the linear layers, forward and backward.

One GEMM serves all three, since packing brings either operand into the order that the register tile reads:

    c (M,N) = base + bias + a (M,K) b (K,N)

c is cut into blocks, one task of one thread each. A task loops over K in steps of BLOCK_K. In each step it packs its rows
of a into panels of TILE_ROWS rows, which stay in the second-level cache. Then it packs b, one panel of TILE_COLS columns
at a time, and multiplies that panel by every panel of a while it is in the first-level cache (Goto and van de Geijn,
"Anatomy of High-Performance Matrix Multiplication", 2008). The sum of an element of c has one order, whatever the blocks
and the number of threads: same inputs, same bits.
*/
#ifndef LLMC_CPU_MATMUL_H
#define LLMC_CPU_MATMUL_H

#include "vector.h"

enum {
    TILE_COLS = TILE_VECTORS * LANES,
    BLOCK_K = 384,
    BLOCK_ROWS = 64 * TILE_ROWS, // the packed rows of a are 768 KiB with AVX-512
    BLOCK_COLS = 16 * TILE_COLS,
    PANEL = BLOCK_K * TILE_ROWS + 16, // floats of a panel of a; the 16 keep panels from mapping to the same cache sets
    PACKED_A = BLOCK_ROWS / TILE_ROWS * PANEL
};
_Static_assert(PACKED_A + BLOCK_K * TILE_COLS <= CPU_SCRATCH_FLOATS, "the packed operands fit a thread's scratch");

// An operand of a GEMM: element (r,k) of a, or (k,j) of b, is data[outer * outer_stride + k * k_stride], where outer is the
// index that is not summed over. One of the strides is 1.
typedef struct {
    const float* data;
    size_t outer_stride, k_stride;
} MatmulOperand;

// Packs `count` rows of a, or columns of b, from `first` on, and `depth` steps from k0 on, into panels of `width` of
// them, (depth, width) each and `panel` floats apart. The last panel is filled up with zeros.
ALWAYS_INLINE void matmul_pack(float* packed, size_t panel, const size_t width, MatmulOperand x, size_t first,
                               size_t count, size_t k0, size_t depth) {
    const float* source = x.data + first * x.outer_stride + k0 * x.k_stride;
    size_t last = count / width * width, done = 0;
    if (last < count) { memset(packed + last / width * panel, 0, depth * width * sizeof(float)); }
    if (x.outer_stride == 1) { // rows are contiguous: copy a panel's width of them at each step
        for (size_t k = 0; k < depth; k++) {
            const float* from = source + k * x.k_stride;
            float* to = packed + k * width;
            for (size_t i = 0; i < last; i += width, to += panel) { memcpy(to, from + i, width * sizeof(float)); }
            if (last < count) { memcpy(to, from + last, (count - last) * sizeof(float)); }
        }
        return;
    }
    const size_t piece = width < LANES ? width : LANES; // of a transposed vector that belongs to one panel
    size_t whole_k = depth / LANES * LANES;
    for (; done + LANES <= count; done += LANES) { // steps are contiguous: transpose squares of LANES rows and steps
        for (size_t k = 0; k < whole_k; k += LANES) {
            vec square[LANES];
            for (size_t i = 0; i < LANES; i++) { square[i] = vec_load(source + (done + i) * x.outer_stride + k); }
            vec_transpose(square);
            for (size_t i = 0; i < LANES; i += piece) {
                float* to = packed + (done + i) / width * panel + (done + i) % width + k * width;
                for (size_t j = 0; j < LANES; j++) {
                    memcpy(to + j * width, (const float*)&square[j] + i, piece * sizeof(float));
                }
            }
        }
    }
    for (size_t i = 0; i < count; i++) { // the remainder of rows and of steps, one by one
        float* to = packed + i / width * panel + i % width;
        for (size_t k = i < done ? whole_k : 0; k < depth; k++) { to[k * width] = source[i * x.outer_stride + k]; }
    }
}

// One tile of c, `height` x `width`, from a panel of a and a panel of b. `width` is a multiple of LANES. base and bias point to
// the tile's part of them.
static inline void matmul_tile(float* c, const float* base, size_t ldc, const float* bias, const float* panel_a,
                               const float* panel_b, size_t depth, int height, size_t width) {
    if (width == 3 * LANES) {
        register_tile(c, base, ldc, bias, panel_a, 1, TILE_ROWS, panel_b, TILE_COLS, depth, height, 3);
    } else if (width == 2 * LANES) {
        register_tile(c, base, ldc, bias, panel_a, 1, TILE_ROWS, panel_b, TILE_COLS, depth, height, 2);
    } else {
        register_tile(c, base, ldc, bias, panel_a, 1, TILE_ROWS, panel_b, TILE_COLS, depth, height, 1);
    }
}

// The block of c that begins at (row, col): rows x cols of it, over the whole of K.
static inline void matmul_block(float* c, const float* base, const float* bias, MatmulOperand a, MatmulOperand b,
                                size_t N, size_t K, size_t row, size_t col, size_t rows, size_t cols) {
    float* packed_a = cpu_scratch();       // (panels, depth, TILE_ROWS)
    float* packed_b = packed_a + PACKED_A; // (depth, TILE_COLS)
    for (size_t k0 = 0; k0 < K; k0 += BLOCK_K) {
        size_t depth = K - k0 < BLOCK_K ? K - k0 : BLOCK_K;
        const float* addend = k0 == 0 ? base : c; // later steps add to the sums of earlier ones
        const float* first_bias = k0 == 0 ? bias : NULL;
        matmul_pack(packed_a, PANEL, TILE_ROWS, a, row, rows, k0, depth);
        for (size_t j = col; j < col + cols; j += TILE_COLS) {
            size_t width = col + cols - j < TILE_COLS ? col + cols - j : TILE_COLS;
            matmul_pack(packed_b, 0, TILE_COLS, b, j, width, k0, depth);
            for (size_t i = 0; i < rows; i += TILE_ROWS) {
                size_t at = (row + i) * N + j;
                int height = (int)(rows - i < TILE_ROWS ? rows - i : TILE_ROWS);
                matmul_tile(c + at, addend ? addend + at : NULL, N, first_bias ? first_bias + j : NULL,
                            packed_a + i / TILE_ROWS * PANEL, packed_b, depth, height, width);
            }
        }
    }
}

// c (M,N) = base (M,N) + bias (N) + a (M,K) b (K,N). base and bias may be NULL; base may be c. N is a multiple of LANES.
static inline void matmul(float* c, const float* base, const float* bias, MatmulOperand a, MatmulOperand b, size_t M,
                          size_t N, size_t K) {
    // Blocks as large as the caches allow, but at least two per thread where the GEMM is large enough.
    size_t block_rows = BLOCK_ROWS, block_cols = BLOCK_COLS, wanted = 2 * (size_t)cpu_threads();
    while (block_cols > 2 * TILE_COLS && CEIL_DIV(M, block_rows) * CEIL_DIV(N, block_cols) < wanted) {
        block_cols /= 2;
    }
    while (block_rows > 2 * TILE_ROWS && CEIL_DIV(M, block_rows) * CEIL_DIV(N, block_cols) < wanted) {
        block_rows /= 2;
    }
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (size_t row = 0; row < M; row += block_rows) {
        for (size_t col = 0; col < N; col += block_cols) {
            size_t rows = M - row < block_rows ? M - row : block_rows;
            size_t cols = N - col < block_cols ? N - col : block_cols;
            matmul_block(c, base, bias, a, b, N, K, row, col, rows, cols);
        }
    }
}

// ----------------------------------------------------------------------------
// The linear layer. inp (BT,C), weight (OC,C), bias (OC), out (BT,OC).

// out = residual + inp weight^T + bias; bias and residual (BT,OC) may be NULL.
static inline void matmul_forward(float* out, const float* residual, const float* inp, const float* weight,
                                  const float* bias, size_t BT, size_t C, size_t OC) {
    MatmulOperand a = {inp, C, 1}, b = {weight, C, 1};
    matmul(out, residual, bias, a, b, BT, OC, C);
}

// dinp (BT,C) = dout (BT,OC) weight
static inline void matmul_backward_input(float* dinp, const float* dout, const float* weight, size_t BT, size_t C,
                                         size_t OC) {
    MatmulOperand a = {dout, OC, 1}, b = {weight, 1, C};
    matmul(dinp, NULL, NULL, a, b, BT, C, OC);
}

// dweight (OC,C) = dout^T inp,  dbias (OC) = sum over rows of dout; added to what is there where `accumulate`.
// dbias may be NULL.
static inline void matmul_backward_weight(float* dweight, float* dbias, const float* dout, const float* inp,
                                          int accumulate, size_t BT, size_t C, size_t OC) {
    MatmulOperand a = {dout, 1, OC}, b = {inp, 1, C};
    matmul(dweight, accumulate ? dweight : NULL, NULL, a, b, OC, C, BT);
    if (dbias == NULL) { return; }
    enum { COLUMNS = 64 }; // a thread sums 64 columns over all rows, in order: no races
#pragma omp parallel for schedule(dynamic)
    for (size_t first = 0; first < OC; first += COLUMNS) {
        size_t count = OC - first < COLUMNS ? OC - first : COLUMNS;
        float sum[COLUMNS] = {0};
        for (size_t bt = 0; bt < BT; bt++) {
#pragma omp simd
            for (size_t o = 0; o < count; o++) { sum[o] += dout[bt * OC + first + o]; }
        }
        for (size_t o = 0; o < count; o++) { dbias[first + o] = (accumulate ? dbias[first + o] : 0.0f) + sum[o]; }
    }
}

#endif
