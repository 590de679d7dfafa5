/*
Causal self-attention on the CPU, fused and tiled: FlashAttention-2 (Dao, 2023), forward and backward.

    qkv, dqkv   (B,T,3,NH,HS)   a token's row holds q, then k, then v of every head
    out, dout   (B,T,NH,HS)
    l, m        (B,NH,T)        of row i: m_i = max_j s_ij,  l_i = sum_j exp(s_ij - m_i)
    starts      (B,T)           where the document of token i begins: at most i, and never less than that of i - 1;
                                NULL: a row is one document

    s_ij = q_i.k_j / sqrt(HS)  for starts_i <= j <= i,    P_ij = exp(s_ij - m_i) / l_i,    out_i = sum_j P_ij v_j

No (T,T) tensor exists: scores are held in a tile of ATTENTION_BLOCK queries by ATTENTION_BLOCK keys, and the backward
pass computes them again from qkv, l and m. Tiles above the diagonal are skipped, and those before their queries' documents.
*/
#ifndef LLMC_CPU_ATTENTION_H
#define LLMC_CPU_ATTENTION_H

#include "vector.h"

// A tile is stored transposed, keys in rows and queries along the vector lanes. So the maximum and the sum over keys are
// elementwise operations on vectors, without a reduction across lanes. K, V, dO and Q are read as they are stored; only
// the query block is transposed, once for all of its key blocks.
enum {
    ATTENTION_BLOCK = 64,   // queries, and keys, of a tile
    ATTENTION_MAX_HS = 128, // largest head size
    ATTENTION_VECTORS = 2,  // width of the register tiles: 2 vectors divide every head size and the block
    ATTENTION_LANES = ATTENTION_VECTORS * LANES,
    BLOCK_VECTORS = ATTENTION_BLOCK / LANES,
    ATTENTION_SCORES = ATTENTION_BLOCK * ATTENTION_BLOCK, // floats of a tile of scores, and of 64 rows of HS numbers
    ATTENTION_ROWS = ATTENTION_BLOCK * ATTENTION_MAX_HS
};
_Static_assert(3 * ATTENTION_ROWS + 2 * ATTENTION_SCORES <= CPU_SCRATCH_FLOATS, "the tiles fit a thread's scratch");

// c (rows, cols) = base + a (rows, K) b (K, cols), where a(r,k) = a[r * a_row + k * a_k]; base may be NULL or c. cols
// is a multiple of ATTENTION_LANES.
static inline void attention_gemm(float* c, const float* base, size_t ldc, const float* a, size_t a_row, size_t a_k,
                                  const float* b, size_t ldb, size_t rows, size_t cols, size_t K) {
    for (size_t i = 0; i < rows; i += TILE_ROWS) {
        for (size_t j = 0; j < cols; j += ATTENTION_LANES) {
            size_t at = i * ldc + j;
            register_tile(c + at, base ? base + at : NULL, ldc, NULL, a + i * a_row, a_row, a_k, b + j, ldb, K,
                          (int)(rows - i), ATTENTION_VECTORS);
        }
    }
}

// xT (HS, ATTENTION_BLOCK) = scale * the first `rows` rows of x (rows, HS), which are ld apart; lanes past them are 0.
static inline void attention_transpose(float* xT, const float* x, size_t ld, size_t rows, size_t HS, float scale) {
    for (size_t i = 0; i < ATTENTION_BLOCK; i += LANES) {
        for (size_t d = 0; d < HS; d += LANES) {
            vec square[LANES];
            for (size_t r = 0; r < LANES; r++) {
                square[r] = vec_set(0.0f);
                if (i + r < rows) { square[r] = vec_load(x + (i + r) * ld + d) * scale; }
            }
            vec_transpose(square);
            for (size_t r = 0; r < LANES; r++) { vec_store(xT + (d + r) * ATTENTION_BLOCK + i, square[r]); }
        }
    }
}

// Row j of a diagonal tile: masks the queries before key j.
static inline void attention_mask(float* row, size_t j, float masked) {
    for (size_t i = 0; i < j; i++) { row[i] = masked; }
}

// Masks the queries whose documents begin behind a key. starts (rows): those of the tile's queries.
static inline void attention_mask_documents(float* tile, const int* starts, size_t j0, size_t rows, size_t keys,
                                            float masked) {
    if ((size_t)starts[rows - 1] <= j0) { return; }
    for (size_t j = 0, within = 0; j < keys; j++) {
        while (within < rows && (size_t)starts[within] <= j0 + j) { within++; }
        for (size_t i = within; i < rows; i++) { tile[j * ATTENTION_BLOCK + i] = masked; }
    }
}

// The first key block that queries from i0 on use
static inline size_t attention_first_block(const int* starts, size_t i0) {
    return starts != NULL ? (size_t)starts[i0] / ATTENTION_BLOCK * ATTENTION_BLOCK : 0;
}

// One block of queries, from i0 on, against all keys of their documents up to its diagonal. q, k, v: (T,HS), rows ld apart;
// out: rows ld_out apart.
static inline void attention_forward_block(float* out, float* l, float* m, const float* q, const float* k,
                                           const float* v, const int* starts, size_t i0, size_t T, size_t HS, size_t ld,
                                           size_t ld_out) {
    // A masked score. Finite, as the first blocks may have no key of a query's document: the scores of its own outweigh these.
    const float outside = -1e30f;
    float* QT = cpu_scratch();        // (HS, queries), times 1/sqrt(HS)
    float* ST = QT + ATTENTION_ROWS;  // (keys, queries): scores, then exp(s - m)
    float* O = ST + ATTENTION_SCORES; // (queries, HS), not yet divided by l
    float rescale[ATTENTION_BLOCK] ALIGNED;
    vec m_i[BLOCK_VECTORS], l_i[BLOCK_VECTORS];
    size_t rows = T - i0 < ATTENTION_BLOCK ? T - i0 : ATTENTION_BLOCK;

    attention_transpose(QT, q + i0 * ld, ld, rows, HS, 1.0f / sqrtf((float)HS));
    memset(O, 0, ATTENTION_BLOCK * HS * sizeof(float));
    for (int x = 0; x < BLOCK_VECTORS; x++) { m_i[x] = vec_set(-INFINITY), l_i[x] = vec_set(0.0f); }

    const size_t first = attention_first_block(starts, i0);
    for (size_t j0 = first; j0 <= i0; j0 += ATTENTION_BLOCK) { // key blocks, the diagonal last
        int diagonal = j0 == i0;
        size_t keys = diagonal ? rows : ATTENTION_BLOCK;
        // S^T = K Q^T
        attention_gemm(ST, NULL, ATTENTION_BLOCK, k + j0 * ld, ld, 1, QT, ATTENTION_BLOCK, keys, ATTENTION_BLOCK, HS);
        for (size_t j = 0; diagonal && j < keys; j++) { attention_mask(ST + j * ATTENTION_BLOCK, j, -INFINITY); }
        if (starts != NULL) { attention_mask_documents(ST, starts + i0, j0, rows, keys, outside); }
        for (size_t x = 0; x < BLOCK_VECTORS; x++) { // m <- max(m, S);  S <- exp(S - m);  l <- l exp(m_old - m) + sum S
            float* s = ST + x * LANES;
            vec largest = m_i[x], sum = vec_set(0.0f);
            for (size_t j = 0; j < keys; j++) { largest = vec_max(vec_load(s + j * ATTENTION_BLOCK), largest); }
            for (size_t j = 0; j < keys; j++) {
                vec p = vec_exp(vec_load(s + j * ATTENTION_BLOCK) - largest);
                vec_store(s + j * ATTENTION_BLOCK, p);
                sum += p;
            }
            vec shrink = vec_exp(m_i[x] - largest); // 0 at the first block, where m is -inf
            vec_store(rescale + x * LANES, shrink);
            l_i[x] = l_i[x] * shrink + sum;
            m_i[x] = largest;
        }
        // O <- O exp(m_old - m) + P V
        for (size_t i = 0; j0 > first && i < rows; i++) {
            for (size_t d = 0; d < HS; d++) { O[i * HS + d] *= rescale[i]; }
        }
        attention_gemm(O, O, HS, ST, 1, ATTENTION_BLOCK, v + j0 * ld, ld, rows, HS, keys);
    }

    for (size_t x = 0; x * LANES < rows; x++) {
        vec_store_first(l + i0 + x * LANES, l_i[x], rows - x * LANES);
        vec_store_first(m + i0 + x * LANES, m_i[x], rows - x * LANES);
    }
    for (size_t i = 0; i < rows; i++) {
        float inverse = 1.0f / l[i0 + i];
        for (size_t d = 0; d < HS; d++) { out[(i0 + i) * ld_out + d] = O[i * HS + d] * inverse; }
    }
}

static inline void attention_forward(float* out, float* l, float* m, const float* qkv, const int* starts, size_t B,
                                     size_t T, size_t NH, size_t HS) {
    size_t C = NH * HS, blocks = CEIL_DIV(T, (size_t)ATTENTION_BLOCK);
#pragma omp parallel for collapse(3) schedule(dynamic)
    for (size_t b = 0; b < B; b++) {
        for (size_t h = 0; h < NH; h++) {
            for (size_t i = 0; i < blocks; i++) { // longest rows first: dynamic scheduling balances better
                const float* q = qkv + b * T * 3 * C + h * HS;
                size_t i0 = (blocks - 1 - i) * ATTENTION_BLOCK, row = (b * NH + h) * T;
                attention_forward_block(out + b * T * C + h * HS, l + row, m + row, q, q + C, q + 2 * C,
                                        starts != NULL ? starts + b * T : NULL, i0, T, HS, 3 * C, C);
            }
        }
    }
}

// One block of queries against all keys of their documents up to its diagonal:
//
//     dP_ij = dout_i.v_j,    D_i = dout_i.out_i = sum_j P_ij dP_ij,    dS_ij = P_ij (dP_ij - D_i)
//     dv_j += sum_i P_ij dout_i,    dk_j += sum_i dS_ij q_i / sqrt(HS),    dq_i = sum_j dS_ij k_j / sqrt(HS)
//
// dq, dk, dv have the strides of q, k, v; dout those of out. Query blocks are processed with i0 ascending: so a key block
// is first used by the diagonal tile, which writes its dk and dv; later tiles add to them.
static inline void attention_backward_block(float* dq, float* dk, float* dv, const float* dout, const float* q,
                                            const float* k, const float* v, const float* out, const float* l,
                                            const float* m, const int* starts, size_t i0, size_t T, size_t HS,
                                            size_t ld, size_t ld_out) {
    float* QT = cpu_scratch();          // (HS, queries), times 1/sqrt(HS)
    float* dOT = QT + ATTENTION_ROWS;   // (HS, queries)
    float* PT = dOT + ATTENTION_ROWS;   // (keys, queries)
    float* dST = PT + ATTENTION_SCORES; // (keys, queries): dP, then dS / sqrt(HS)
    float* dQ = dST + ATTENTION_SCORES; // (queries, HS)
    float D[ATTENTION_BLOCK] ALIGNED = {0}, m_i[ATTENTION_BLOCK] ALIGNED = {0},
                             l_inverse[ATTENTION_BLOCK] ALIGNED = {0};
    size_t rows = T - i0 < ATTENTION_BLOCK ? T - i0 : ATTENTION_BLOCK;
    float scale = 1.0f / sqrtf((float)HS);
    const float *q_i = q + i0 * ld, *dout_i = dout + i0 * ld_out, *out_i = out + i0 * ld_out;

    attention_transpose(QT, q_i, ld, rows, HS, scale);
    attention_transpose(dOT, dout_i, ld_out, rows, HS, 1.0f);
    memset(dQ, 0, ATTENTION_BLOCK * HS * sizeof(float));
    for (size_t i = 0; i < rows; i++) {
        float dot = 0.0f;
#pragma omp simd reduction(+ : dot)
        for (size_t d = 0; d < HS; d++) { dot += dout_i[i * ld_out + d] * out_i[i * ld_out + d]; }
        D[i] = dot, m_i[i] = m[i0 + i], l_inverse[i] = 1.0f / l[i0 + i];
    }

    for (size_t j0 = attention_first_block(starts, i0); j0 <= i0; j0 += ATTENTION_BLOCK) {
        int diagonal = j0 == i0;
        size_t keys = diagonal ? rows : ATTENTION_BLOCK;
        const float *k_j = k + j0 * ld, *v_j = v + j0 * ld;
        float *dk_j = dk + j0 * ld, *dv_j = dv + j0 * ld;
        // S^T = K Q^T,  dP^T = V dO^T
        attention_gemm(PT, NULL, ATTENTION_BLOCK, k_j, ld, 1, QT, ATTENTION_BLOCK, keys, ATTENTION_BLOCK, HS);
        attention_gemm(dST, NULL, ATTENTION_BLOCK, v_j, ld, 1, dOT, ATTENTION_BLOCK, keys, ATTENTION_BLOCK, HS);
        if (starts != NULL) { attention_mask_documents(PT, starts + i0, j0, rows, keys, -INFINITY); }
        for (size_t j = 0; j < keys; j++) { // P = exp(S - m) / l,  dS = P (dP - D)
            float *p_j = PT + j * ATTENTION_BLOCK, *ds_j = dST + j * ATTENTION_BLOCK;
            if (diagonal) { attention_mask(p_j, j, -INFINITY); }
            for (size_t x = 0; x < ATTENTION_BLOCK; x += LANES) {
                vec p = vec_exp(vec_load(p_j + x) - vec_load(m_i + x)) * vec_load(l_inverse + x);
                vec_store(p_j + x, p);
                vec_store(ds_j + x, p * (vec_load(ds_j + x) - vec_load(D + x)) * scale);
            }
        }
        // dV += P^T dO,  dK += dS^T Q,  dQ += dS K
        attention_gemm(dv_j, diagonal ? NULL : dv_j, ld, PT, ATTENTION_BLOCK, 1, dout_i, ld_out, keys, HS, rows);
        attention_gemm(dk_j, diagonal ? NULL : dk_j, ld, dST, ATTENTION_BLOCK, 1, q_i, ld, keys, HS, rows);
        attention_gemm(dQ, dQ, HS, dST, 1, ATTENTION_BLOCK, k_j, ld, rows, HS, keys);
    }
    for (size_t i = 0; i < rows; i++) { memcpy(dq + (i0 + i) * ld, dQ + i * HS, HS * sizeof(float)); }
}

// Heads in parallel: all query blocks of a head add to its dk and dv, so one thread does them, in order.
static inline void attention_backward(float* dqkv, const float* dout, const float* qkv, const float* out,
                                      const float* l, const float* m, const int* starts, size_t B, size_t T, size_t NH,
                                      size_t HS) {
    size_t C = NH * HS;
#pragma omp parallel for collapse(2) schedule(dynamic)
    for (size_t b = 0; b < B; b++) {
        for (size_t h = 0; h < NH; h++) {
            size_t at = b * T * 3 * C + h * HS, at_out = b * T * C + h * HS, row = (b * NH + h) * T;
            const float* q = qkv + at;
            float* dq = dqkv + at;
            for (size_t i0 = 0; i0 < T; i0 += ATTENTION_BLOCK) {
                attention_backward_block(dq, dq + C, dq + 2 * C, dout + at_out, q, q + C, q + 2 * C, out + at_out,
                                         l + row, m + row, starts != NULL ? starts + b * T : NULL, i0, T, HS, 3 * C, C);
            }
        }
    }
}

#endif
