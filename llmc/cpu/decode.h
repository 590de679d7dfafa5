/*
The linear layer and the attention of the CPU decoder, for any number of rows: from one token to all of a prompt's.

Each number is summed in one order, which depends on the model's sizes and on the row's position in its sequence alone: not
on how many rows are computed together, which these are, or how many threads there are. So a token's numbers have the same
bits whether it is prefilled or decoded, alone or in a batch.

For few rows the time is that of reading the weights, once for all of them. For many rows the linear layer is a GEMM whose
operands lie as its tiles read them, along the channels: nothing is packed.
*/
#ifndef LLMC_CPU_DECODE_H
#define LLMC_CPU_DECODE_H

#include "attention.h"
#include "layers.h"

// ----------------------------------------------------------------------------
// The linear layer

enum {
    LINEAR_OUTS = 48,  // maximum of a task's outputs: their weights stay in the L2 cache for all rows
    LINEAR_LEAST = 24, // minimum; every number of columns below divides it
    LINEAR_ROWS = 4,
    LINEAR_COLS = 8,
    LINEAR_ALONE = 1 << 14 // multiply-adds below which one thread is faster than starting several
};

// Columns of a tile of so many rows: the most accumulators that leave registers for the operands
#if defined(__AVX512F__) || defined(__aarch64__)
#define LINEAR_COLS_OF(rows) ((rows) == 4 ? 6 : 8)
#else
#define LINEAR_COLS_OF(rows) ((rows) == 4 ? 3 : (rows) == 3 ? 4 : (rows) == 2 ? 6 : 8)
#endif

// A linear layer: out = f(inp weight^T + bias + residual), f the identity or GELU
typedef struct {
    float* out;            // (rows,OC); with out_rows, row r is row out_rows[r] of a larger matrix
    const int* out_rows;   // (rows) or NULL
    const float* residual; // (rows,OC) or NULL; may be out
    const float* inp;      // (rows,C), C a multiple of LANES
    const float* weight;   // (OC,C)
    const float* bias;     // (OC) or NULL
    int gelu;
    size_t rows, C, OC;
} Linear;

// x in a register: GCC loads an operand again for each use rather than hold it, and a tile is then bound by its loads.
ALWAYS_INLINE vec vec_held(vec x) {
#if defined(__AVX512F__)
    __asm__("" : "+v"(x));
#elif defined(__SSE2__)
    __asm__("" : "+x"(x));
#elif defined(__aarch64__)
    __asm__("" : "+w"(x));
#endif
    return x;
}

// sums(r,o) = sum_k inp(r,k) weight(o,k)  for r < rows and the `cols` outputs o = 0, step, 2 step, ..: lane i of an accumulator
// sums the k = i (mod LANES), and the lanes are added as vec_sum_halves says. inp, weight: rows of C. Outputs from `outs` on,
// which the layer does not have, repeat the last one.
ALWAYS_INLINE void linear_tile_(float* sums, const float* inp, const float* weight, size_t C, size_t outs, size_t step,
                                const int rows, const int cols) {
    vec sum[LINEAR_ROWS][LINEAR_COLS];
    const float* w[LINEAR_COLS];
#pragma GCC unroll 8
    for (int i = 0; i < cols; i++) {
        w[i] = weight + ((size_t)i * step < outs ? (size_t)i * step : outs - 1) * C;
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) { sum[r][i] = (vec){0}; }
    }
    for (size_t k = 0; k < C; k += LANES) {
        vec w_k[LINEAR_COLS];
#pragma GCC unroll 8
        for (int i = 0; i < cols; i++) { w_k[i] = rows > 1 ? vec_held(vec_load(w[i] + k)) : vec_load(w[i] + k); }
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            vec x = vec_held(vec_load(inp + (size_t)r * C + k));
#pragma GCC unroll 8
            for (int i = 0; i < cols; i++) { sum[r][i] += x * w_k[i]; }
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++) {
#pragma GCC unroll 8
        for (int i = 0; i < cols; i++) { sums[(size_t)r * LINEAR_OUTS + (size_t)i * step] = vec_sum_halves(sum[r][i]); }
    }
}

// sums (rows, LINEAR_OUTS): the first `outs` columns, of a task that may have `task` of them. `rows` is a constant in every
// call. A tile's columns are strided, and the next tile has the columns after them: so each stream through memory is
// sequential.
ALWAYS_INLINE void linear_tiles_(float* sums, const float* inp, const float* weight, size_t C, size_t outs, size_t task,
                                 const int rows) {
    const size_t step = task / LINEAR_COLS_OF(rows);
    for (size_t o = 0; o < step && o < outs; o++) {
        linear_tile_(sums + o, inp, weight + o * C, C, outs - o, step, rows, LINEAR_COLS_OF(rows));
    }
}

// Bias, residual, GELU and the store of row r, outputs first .. first+outs-1
static inline void linear_finish_(const Linear* x, const float* sums, size_t r, size_t first, size_t outs) {
    size_t out_row = x->out_rows ? (size_t)x->out_rows[r] : r;
    for (size_t o = 0; o < outs; o += LANES) {
        size_t left = outs - o, at = first + o;
        vec y = vec_load(sums + o);
        if (x->bias != NULL) { y += vec_load_first(x->bias + at, left, 0.0f); }
        if (x->residual != NULL) { y += vec_load_first(x->residual + r * x->OC + at, left, 0.0f); }
        if (x->gelu) { y = y * gelu_sigmoid(y); }
        vec_store_first(x->out + out_row * x->OC + at, y, left);
    }
}

// Outputs first .. first+task-1 of all rows
static inline void linear_task_(const Linear* x, size_t first, size_t task) {
    float sums[LINEAR_ROWS * LINEAR_OUTS] ALIGNED = {0};
    size_t outs = x->OC - first < task ? x->OC - first : task, C = x->C;
    const float* weight = x->weight + first * C;
    for (size_t r = 0; r < x->rows; r += LINEAR_ROWS) {
        const float* inp = x->inp + r * C;
        size_t rows = x->rows - r < LINEAR_ROWS ? x->rows - r : LINEAR_ROWS;
        if (rows == 4) {
            linear_tiles_(sums, inp, weight, C, outs, task, 4);
        } else if (rows == 3) {
            linear_tiles_(sums, inp, weight, C, outs, task, 3);
        } else if (rows == 2) {
            linear_tiles_(sums, inp, weight, C, outs, task, 2);
        } else {
            linear_tiles_(sums, inp, weight, C, outs, task, 1);
        }
        for (size_t i = 0; i < rows; i++) { linear_finish_(x, sums + i * LINEAR_OUTS, r + i, first, outs); }
    }
}

static inline void linear_forward(Linear x) {
    const size_t threads = (size_t)cpu_threads();
    const size_t task = x.OC < 4 * threads * LINEAR_OUTS ? LINEAR_LEAST : LINEAR_OUTS; // enough for all threads
#pragma omp parallel for schedule(dynamic) if (x.rows * x.C * x.OC > LINEAR_ALONE)
    for (size_t first = 0; first < x.OC; first += task) { linear_task_(&x, first, task); }
}

// ----------------------------------------------------------------------------
// Attention over the cache
//
//     k   (NH, blocks, HS, ATTENTION_BLOCK)   a block of keys is transposed: a score's vector lanes are keys
//     v   (NH, blocks, ATTENTION_BLOCK, HS)
//
// of one sequence and layer, which has blocks * ATTENTION_BLOCK positions.

typedef struct {
    float *k, *v;
    size_t blocks;
} KeyValues;

// The keys and values of the token at `position`; qkv (3,NH,HS) is its row.
static inline void cache_store(KeyValues c, const float* qkv, size_t position, size_t NH, size_t HS) {
    size_t block = position / ATTENTION_BLOCK, j = position % ATTENTION_BLOCK, size = HS * ATTENTION_BLOCK;
    for (size_t h = 0; h < NH; h++) {
        const float *k = qkv + (NH + h) * HS, *v = qkv + (2 * NH + h) * HS;
        float *k_block = c.k + (h * c.blocks + block) * size, *v_block = c.v + (h * c.blocks + block) * size;
        for (size_t d = 0; d < HS; d++) { k_block[d * ATTENTION_BLOCK + j] = k[d]; }
        memcpy(v_block + j * HS, v, HS * sizeof(float));
    }
}

// A row's scores of a block of keys, of which it attends to the first `seen`: s <- exp(s - m), m and l as in cpu/attention.h.
// Returns exp(m_old - m), the factor for the sums so far. With seen = 0 nothing changes.
static inline float attention_row_softmax(float* s, float* l, float* m, size_t seen) {
    vec largest = vec_set(*m), sum = vec_set(0.0f);
    for (size_t j = seen; j < ATTENTION_BLOCK; j++) { s[j] = -INFINITY; }
    for (size_t j = 0; j < ATTENTION_BLOCK; j += LANES) { largest = vec_max(vec_load(s + j), largest); }
    vec m_new = vec_set(vec_largest(largest)), shrink = vec_exp(vec_set(*m) - m_new);
    for (size_t j = 0; j < ATTENTION_BLOCK; j += LANES) {
        vec p = vec_exp(vec_load(s + j) - m_new);
        vec_store(s + j, p);
        sum += p;
    }
    *l = *l * shrink[0] + vec_sum_halves(sum);
    *m = m_new[0];
    return shrink[0];
}

// c (cols) = base + a (K) b (K,cols), `vectors` vectors of c: as register_tile, but b is read once, as it lies.
ALWAYS_INLINE void attention_row_tile_(float* c, const float* base, const float* a, const float* b, size_t cols,
                                       size_t K, const int vectors) {
    vec sum[8];
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) { sum[v] = (vec){0}; }
    for (size_t k = 0; k < K; k++) {
#pragma GCC unroll 8
        for (int v = 0; v < vectors; v++) { sum[v] += a[k] * vec_load(b + k * cols + (size_t)v * LANES); }
    }
#pragma GCC unroll 8
    for (int v = 0; v < vectors; v++) {
        if (base != NULL) { sum[v] += vec_load(base + (size_t)v * LANES); }
        vec_store(c + (size_t)v * LANES, sum[v]);
    }
}

// c (rows,cols) = base + a (rows,K) b (K,cols), rows lda apart in a. One row, as in decoding, is bound by reading b; it has
// the sums of attention_gemm.
static inline void attention_product_(float* c, const float* base, const float* a, size_t lda, const float* b,
                                      size_t rows, size_t cols, size_t K) {
    if (rows > 1) {
        attention_gemm(c, base, cols, a, lda, 1, b, cols, rows, cols, K);
        return;
    }
    for (size_t j = 0; j < cols;) {
        const float* base_j = base ? base + j : NULL;
        if (cols - j >= 8 * LANES) {
            attention_row_tile_(c + j, base_j, a, b + j, cols, K, 8);
            j += 8 * LANES;
        } else if (cols - j >= 4 * LANES) {
            attention_row_tile_(c + j, base_j, a, b + j, cols, K, 4);
            j += 4 * LANES;
        } else {
            attention_row_tile_(c + j, base_j, a, b + j, cols, K, 2);
            j += 2 * LANES;
        }
    }
}

// Head h of `rows` <= TILE_ROWS consecutive tokens, the first at `position`. qkv (rows,3,NH,HS), out (rows,NH,HS).
static inline void attention_rows(float* out, const float* qkv, KeyValues c, size_t h, size_t position, size_t rows,
                                  size_t NH, size_t HS) {
    float Q[TILE_ROWS * ATTENTION_MAX_HS] ALIGNED; // times 1/sqrt(HS)
    float S[TILE_ROWS * ATTENTION_BLOCK] ALIGNED;  // scores, then exp(s - m)
    float O[TILE_ROWS * ATTENTION_MAX_HS] ALIGNED; // not yet divided by l
    float l[TILE_ROWS] = {0}, m[TILE_ROWS], scale = 1.0f / sqrtf((float)HS);
    for (size_t r = 0; r < rows; r++) {
        const float* q = qkv + (r * 3 * NH + h) * HS;
        for (size_t d = 0; d < HS; d++) { Q[r * HS + d] = q[d] * scale; }
        m[r] = -INFINITY;
    }
    memset(O, 0, rows * HS * sizeof(float));
    for (size_t j0 = 0; j0 < position + rows; j0 += ATTENTION_BLOCK) {
        size_t at = (h * c.blocks * ATTENTION_BLOCK + j0) * HS, keys = position + rows - j0;
        keys = keys < ATTENTION_BLOCK ? keys : ATTENTION_BLOCK;
        attention_product_(S, NULL, Q, HS, c.k + at, rows, ATTENTION_BLOCK, HS);
        for (size_t r = 0; r < rows; r++) {
            size_t seen = position + r + 1 > j0 ? position + r + 1 - j0 : 0;
            float shrink = attention_row_softmax(S + r * ATTENTION_BLOCK, &l[r], &m[r], seen);
            for (size_t d = 0; d < HS; d++) { O[r * HS + d] *= shrink; }
        }
        attention_product_(O, O, S, ATTENTION_BLOCK, c.v + at, rows, HS, keys); // O <- O + P V
    }
    for (size_t r = 0; r < rows; r++) {
        for (size_t d = 0; d < HS; d++) { out[(r * NH + h) * HS + d] = O[r * HS + d] / l[r]; }
    }
}

#endif
