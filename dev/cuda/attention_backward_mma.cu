/*
FlashAttention-2 backward on tensor cores, as two kernels without a reduction between CTAs.

    P = exp(S - m)/l    D = rowsum(dO o O)    dV = P^T dO    dP = dO V^T    dS = P o (dP - D)
    dQ = dS K / sqrt(HS)    dK = dS^T Q / sqrt(HS)

dV and dK sum over queries, dQ over keys. A single kernel must pass dS between warps through shared memory, and accumulate dQ in
global memory in an enforced order, for the same bits every time (see wgmma). Here instead:
1. The query kernel gives a warp 16 M query rows; S, dP and dS stay in registers, and dS is operand A of dQ += dS K. It also
   computes D, once, and leaves log(l) + m and D in scratch for the second kernel.
2. The key kernel gives a warp 16 M keys and computes the transposes S^T = K Q^T and dP^T = V dO^T, so that P^T and dS^T in
   registers are operand A of dV += P^T dO and dK += dS^T Q.
That is 7 GEMMs instead of 5, but no fp32 copy of dQ, no memset, no cast kernel, no atomics, no waiting between CTAs.
Paper: Dao, FlashAttention-2 (2023), algorithm 2.
*/
#include "attention/attention.h"
#include "attention/mma_tiles.cuh"

namespace mma {

// The statistics of a query row: P = 2^(scale LOG2_E s - lse), dS = P (dP + minus_d).
struct alignas(8) RowStatistics {
    float lse;     // log2(l) + m LOG2_E; infinity for rows past T, so that their P is 0
    float minus_d; // -rowsum(dO o O)
};
// Rounded as forward does it, so that P is the same.
__device__ inline float row_lse(float l, float m, bool exists) {
    return exists ? __fmul_rn(m, LOG2_E) + lg2_approx(l) : INFINITY;
}
constexpr int padded_rows = 128; // rows of a head in scratch are padded to a multiple of this
// The index of row t of a head in scratch, t < padded T. Blocks are counted in 32 bits to save a register.
__host__ __device__ inline int64_t statistics_offset(int head, int t, int T) {
    return (int64_t)(head * CEIL_DIV(T, padded_rows) + t / padded_rows) * padded_rows + t % padded_rows;
}

// Configuration of the query kernel: warps, rows of a warp / 16, keys of a block and of a step, CTAs per SM.
template <int HS_, int WARPS, int M_, int BC, int STEP, int CTAS, bool DOCUMENTS = false> struct QueryTiles {
    typedef QueryTiles<HS_, WARPS, M_, BC, STEP, 2, true> WithDocuments; // which takes more registers
    static constexpr bool documents = DOCUMENTS;                         // rows have `starts`
    static constexpr int HS = HS_, M = M_, Bc = BC, step = STEP, threads = WARPS * 32, ctas = CTAS;
    static constexpr int Br = WARPS * M * 16;
    static constexpr float scale = inverse_sqrt(HS);
    typedef WarpRows<HS, M, HS * M <= 128> Rows; // of Q and of dO, in registers if both take at most 64 of them
    static constexpr int q_bytes = Br * HS * 2, kv_bytes = Bc * HS * 2;
    static constexpr size_t shared_bytes = 2 * q_bytes + 2 * 2 * kv_bytes; // Q (later dQ), dO, two stages of K and V
    static_assert(q_bytes <= 2 * kv_bytes, "O passes through the second stage");
    static_assert(padded_rows % Br == 0 && Bc % step == 0, "");
};
// Of the key kernel: warps, keys of a warp / 16, queries of a block and of a step, CTAs per SM.
template <int HS_, int WARPS, int M_, int BR, int STEP, int CTAS, bool DOCUMENTS = false> struct KeyTiles {
    typedef KeyTiles<HS_, WARPS, M_, BR, HS_ == 128 ? 32 : STEP, 2, true> WithDocuments;
    static constexpr bool documents = DOCUMENTS;
    static constexpr int HS = HS_, M = M_, Br = BR, step = STEP, threads = WARPS * 32, ctas = CTAS;
    static constexpr int Bc = WARPS * M * 16;
    static constexpr float scale = inverse_sqrt(HS);
    static constexpr int q_bytes = Br * HS * 2, kv_bytes = Bc * HS * 2, row_bytes = Br * sizeof(RowStatistics);
    // K (later dK), V (later dV), two stages of Q, dO and the rows' statistics
    static constexpr size_t shared_bytes = 2 * kv_bytes + 2 * (2 * q_bytes + row_bytes);
    static_assert(padded_rows % Br == 0 && Br % step == 0 && Bc % Br == 0 && row_bytes % 128 == 0, "");
};

// ----------------------------------------------------------------------------
// dQ

// (log(l) + m) log2(e) of the lane's rows; `row` is the warp's first.
template <int M> __device__ inline void load_logsums(RowStatistics (&rows)[M][2], const float* l, const float* m,
                                                     int row, int T, int lane) {
    for_each_row<M>([&](int i, int h) {
        int t = row + 16 * i + 8 * h + lane / 4, at = min(t, T - 1);
        rows[i][h].lse = row_lse(l[at], m[at], t < T);
    });
}

// -D = -rowsum(dO o O) of the lane's rows. dO and O are tile addresses with lane_a.
template <int HS, int M> __device__ inline void row_dots(RowStatistics (&rows)[M][2], uint32_t dO, uint32_t O) {
    float D[M][2] = {};
#pragma unroll
    for (int k = 0; k < HS / 16; k++) {
        uint32_t x[M][4], y[M][4];
        load_a<HS>(x, dO, k);
        load_a<HS>(y, O, k);
#pragma unroll
        for (int i = 0; i < M; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) { D[i][e % 2] = dot_x2(x[i][e], y[i][e], D[i][e % 2]); }
        }
    }
    for_each_row<M>([&](int i, int h) { // the four lanes of a quad share a row
        D[i][h] += __shfl_xor_sync(0xffffffffu, D[i][h], 1);
        rows[i][h].minus_d = -(D[i][h] + __shfl_xor_sync(0xffffffffu, D[i][h], 2));
    });
}

// A warp's rows against `step` keys: dQ += (P o (dO V^T - D)) K. K_b, V_b carry lane_b, K_a carries lane_a; the lane's
// first score is (row, column). masked: near the diagonal, or before some row's document. starts (T), with documents.
template <class C, bool masked>
__device__ inline void query_step(float (&dQ)[C::M][C::HS / 8][4], const typename C::Rows& Q,
                                  const typename C::Rows& dO, const RowStatistics (&rows)[C::M][2], uint32_t K_b,
                                  uint32_t V_b, uint32_t K_a, int row, int column, const int* starts, int T) {
    constexpr int M = C::M, N = C::step / 8;
    float S[M][N][4], dP[M][N][4];
    fill(S, 0.0f);
    mma_abt(S, Q, K_b); // S = Q K^T
    if constexpr (masked && C::documents) { mask_documents(S, row, column, starts, T); }
    for_each(dP, [&](float& x, int i, int, int e) { x = rows[i][e / 2].minus_d; });
    mma_abt(dP, dO, V_b);                             // dP - D = dO V^T - D
    for_each(dP, [&](float& x, int i, int n, int e) { // dS = P o (dP - D)
        float P = ex2_approx_ftz(fmaf(S[i][n][e], C::scale * LOG2_E, -rows[i][e / 2].lse));
        if (masked && column + 8 * n + e % 2 > row + 16 * i + e / 2 * 8) { P = 0; }
        x *= P;
    });
#pragma unroll
    for (int k = 0; k < N / 2; k++) { // dQ += dS K
        uint32_t dS[M][4];
        round_a(dS, dP, k);
        mma_ab_step<C::HS>(dQ, dS, K_a + k * 16 * Tile<C::HS>::row_bytes);
    }
}

// dqkv (B,T,3,NH,HS), the q part; statistics (B,NH,T padded); dout, out (B,T,NH,HS); l, m (B,NH,T)
template <class C> __global__ void __launch_bounds__(C::threads, C::ctas)
    attention_backward_query_kernel(floatX* dqkv, RowStatistics* statistics, const floatX* dout, const floatX* qkv,
                                    const floatX* out, const float* l, const float* m, const int* starts, int T, int NH,
                                    int heads, Divisor group) {
    constexpr int HS = C::HS, M = C::M, Br = C::Br, Bc = C::Bc, warp_rows = 16 * M;
    extern __shared__ __align__(1024) char shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    AttentionTask task(mov_ctaid(), group);
    if (task.head >= heads) { return; }
    int b = task.head / NH, h = task.head % NH, stride = 3 * NH * HS;
    int i0 = (CEIL_DIV(T, Br) - 1 - task.block) * Br; // long rows first
    int last = (min(i0 + Br, T) - 1) / Bc;
    int row = i0 + warp * warp_rows; // the warp's first
    if constexpr (C::documents) { starts += (int64_t)b * T; }
    const int first = C::documents ? starts[i0] / Bc : 0; // key block
    int64_t q_offset = qkv_offset(b, 0, h, T, NH, HS) + (int64_t)i0 * stride;
    int64_t o_offset = out_offset(b, h, T, NH, HS) + (int64_t)i0 * NH * HS;
    const floatX* k = qkv + qkv_offset(b, 1, h, T, NH, HS);

    uint32_t q_tile = (uint32_t)__cvta_generic_to_shared(shared), do_tile = q_tile + C::q_bytes;
    uint32_t kv_tiles = do_tile + C::q_bytes, o_tile = kv_tiles + 2 * C::kv_bytes; // O in stage 1
    int warp_offset = warp * warp_rows * Tile<HS>::row_bytes;
    auto load_kv = [&](int j) {
        uint32_t tile = kv_tiles + (j - first) % 2 * 2 * C::kv_bytes;
        const floatX* k_block = k + (int64_t)j * Bc * stride;
        load_tile<HS, Bc, C::threads>(tile, k_block, stride, T - j * Bc);
        load_tile<HS, Bc, C::threads>(tile + C::kv_bytes, k_block + NH * HS, stride, T - j * Bc);
        cp_async_commit_group();
    };
    load_tile<HS, Br, C::threads>(do_tile, dout + o_offset, NH * HS, T - i0);
    load_tile<HS, Br, C::threads>(o_tile, out + o_offset, NH * HS, T - i0);
    load_tile<HS, Br, C::threads>(q_tile, qkv + q_offset, stride, T - i0);
    load_kv(first);
    RowStatistics rows[M][2];
    load_logsums(rows, l + (int64_t)task.head * T, m + (int64_t)task.head * T, row, T,
                 lane); // while the copies are in flight
    cp_async_wait_group<0>();
    __syncthreads();

    typename C::Rows Q{q_tile + warp_offset + Tile<HS>::lane_a(lane)}, dO{Q.address + C::q_bytes};
    Q.load();
    dO.load();
    row_dots<HS>(rows, dO.address, o_tile + warp_offset + Tile<HS>::lane_a(lane));
    for_each_row<M>([&](int i, int h) {
        int t = row + 16 * i + 8 * h + lane / 4;
        if (lane % 4 == 0) { statistics[statistics_offset(task.head, t, T)] = rows[i][h]; }
    });

    float dQ[M][HS / 8][4];
    fill(dQ, 0.0f);
    for (int j = first; j <= last; j++) { // key blocks, diagonal last
        cp_async_wait_group<0>();
        __syncthreads(); // block j has arrived, and all warps have finished with block j - 1, or with O
        if (j < last) { load_kv(j + 1); }
        uint32_t tile = kv_tiles + (j - first) % 2 * 2 * C::kv_bytes;
        uint32_t K_b = tile + Tile<HS>::lane_b(lane), K_a = tile + Tile<HS>::lane_a(lane);
        int end = min((j + 1) * Bc, row + warp_rows); // keys past the warp's rows are masked for all of them
#pragma unroll 1
        for (int column = j * Bc; column < end; column += C::step) {
            int lane_row = row + lane / 4, lane_column = column + lane % 4 * 2;
            bool seen = true, whole = column + C::step <= row + 1;
            if constexpr (C::documents) {
                seen = column + C::step > starts[min(row, T - 1)];
                whole = whole && column >= starts[min(row + warp_rows, T) - 1];
            }
            if (seen && whole) {
                query_step<C, false>(dQ, Q, dO, rows, K_b, K_b + C::kv_bytes, K_a, lane_row, lane_column, starts, T);
            } else if (seen) {
                query_step<C, true>(dQ, Q, dO, rows, K_b, K_b + C::kv_bytes, K_a, lane_row, lane_column, starts, T);
            }
            K_b += C::step * Tile<HS>::row_bytes, K_a += C::step * Tile<HS>::row_bytes;
        }
    }

    multiply(dQ, C::scale);
    AttentionTask same(mov_ctaid(), group); // recomputed, so that no registers hold it during the loop
    floatX* dq = dqkv + qkv_offset(same.head / NH, 0, same.head % NH, T, NH, HS) + (int64_t)row * stride;
    store_rows<HS>(dq, q_tile + warp_offset, dQ, stride, T - row, lane);
}

// ----------------------------------------------------------------------------
// dK, dV

// A warp's keys against `step` queries: dV += P^T dO, dK += (P o (dO V^T - D))^T Q. K, V and Q_a carry lane_a, Q_b carries
// lane_b; dO is q_bytes after Q. The lane's first score is at (column, row), its first query's statistics are at `rows`.
// starts (T), with documents.
template <class C, bool masked> __device__ inline void key_step(float (&dK)[C::M][C::HS / 8][4],
                                                                float (&dV)[C::M][C::HS / 8][4], uint32_t K, uint32_t V,
                                                                uint32_t Q_b, uint32_t Q_a, const RowStatistics* rows,
                                                                int row, int column, const int* starts, int T) {
    constexpr int M = C::M, N = C::step / 8;
    float S[M][N][4], dP[M][N][4];
    fill(S, 0.0f);
    mma_abt(S, WarpRows<C::HS, M, false>{K}, Q_b); // S^T = K Q^T
#pragma unroll
    for (int n = 0; n < N; n++) {
        float4 two = *reinterpret_cast<const float4*>(rows + 8 * n); // {lse, -D} of the lane's two queries
#pragma unroll
        for (int i = 0; i < M; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) { // P = exp(S - m) / l
                S[i][n][e] = ex2_approx_ftz(fmaf(S[i][n][e], C::scale * LOG2_E, -(e % 2 ? two.z : two.x)));
                if (masked && column + 16 * i + e / 2 * 8 > row + 8 * n + e % 2) { S[i][n][e] = 0; }
            }
        }
    }
    if constexpr (masked && C::documents) { // P = 0 before the queries' documents
#pragma unroll
        for (int n = 0; n < 2 * N; n++) {
            const int start = starts[min(row + n / 2 * 8 + n % 2, T - 1)] - column;
#pragma unroll
            for (int i = 0; i < 2 * M; i++) {
                if (8 * i < start) { S[i / 2][n / 2][i % 2 * 2 + n % 2] = 0; }
            }
        }
    }
    fill(dP, 0.0f);
    mma_abt(dP, WarpRows<C::HS, M, false>{V}, Q_b + C::q_bytes); // dP^T = V dO^T
#pragma unroll
    for (int n = 0; n < N; n++) { // dP -= D; dP = -D before the GEMM, as in the query kernel, would spill here
        float4 two = *reinterpret_cast<const float4*>(rows + 8 * n);
#pragma unroll
        for (int i = 0; i < M; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) { dP[i][n][e] += e % 2 ? two.w : two.y; }
        }
    }
#pragma unroll
    for (int k = 0; k < N / 2; k++) { // dV += P^T dO
        uint32_t P[M][4];
        round_a(P, S, k);
        mma_ab_step<C::HS>(dV, P, Q_a + C::q_bytes + k * 16 * Tile<C::HS>::row_bytes);
    }
#pragma unroll
    for (int k = 0; k < N / 2; k++) { // dK += dS^T Q
        uint32_t dS[M][4];
#pragma unroll
        for (int i = 0; i < M; i++) {
#pragma unroll
            for (int e = 0; e < 8; e++) { dP[i][2 * k + e / 4][e % 4] *= S[i][2 * k + e / 4][e % 4]; }
        }
        round_a(dS, dP, k);
        mma_ab_step<C::HS>(dK, dS, Q_a + k * 16 * Tile<C::HS>::row_bytes);
    }
}

// dqkv (B,T,3,NH,HS), the k and v parts; dout (B,T,NH,HS); statistics (B,NH,T padded)
template <class C> __global__ void __launch_bounds__(C::threads, C::ctas)
    attention_backward_key_kernel(floatX* dqkv, const floatX* dout, const floatX* qkv, const RowStatistics* statistics,
                                  const int* starts, int T, int NH, int heads, Divisor group) {
    constexpr int HS = C::HS, M = C::M, Br = C::Br, Bc = C::Bc, warp_keys = 16 * M;
    extern __shared__ __align__(1024) char shared[];
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    AttentionTask task(mov_ctaid(), group);
    if (task.head >= heads) { return; }
    int b = task.head / NH, h = task.head % NH, stride = 3 * NH * HS;
    int j0 = task.block * Bc;           // longest first: the first keys have the most queries
    int column = j0 + warp * warp_keys; // the warp's first
    const floatX* q = qkv + qkv_offset(b, 0, h, T, NH, HS);
    const floatX* dO = dout + out_offset(b, h, T, NH, HS);
    int64_t k_offset = qkv_offset(b, 1, h, T, NH, HS) + (int64_t)j0 * stride;

    constexpr int stage_bytes = 2 * C::q_bytes + C::row_bytes;
    uint32_t k_tile = (uint32_t)__cvta_generic_to_shared(shared), stages = k_tile + 2 * C::kv_bytes;
    auto load_queries = [&](int i) {
        uint32_t tile = stages + i % 2 * stage_bytes;
        load_tile<HS, Br, C::threads>(tile, q + (int64_t)i * Br * stride, stride, T - i * Br);
        load_tile<HS, Br, C::threads>(tile + C::q_bytes, dO + (int64_t)i * Br * NH * HS, NH * HS, T - i * Br);
        if (threadIdx.x < C::row_bytes / 16) {
            const RowStatistics* rows = statistics + statistics_offset(task.head, i * Br, T);
            cp_async_16(tile + 2 * C::q_bytes + threadIdx.x * 16, rows + threadIdx.x * 2, 16);
        }
        cp_async_commit_group();
    };
    int first = j0 / Br, end = CEIL_DIV(T, Br);
    if constexpr (C::documents) {
        starts += (int64_t)b * T;
        end = CEIL_DIV(document_end(starts, T, min(j0 + Bc, T) - 1), Br);
    }
    load_tile<HS, Bc, C::threads>(k_tile, qkv + k_offset, stride, T - j0);
    load_tile<HS, Bc, C::threads>(k_tile + C::kv_bytes, qkv + k_offset + NH * HS, stride, T - j0);
    load_queries(first);

    uint32_t k_rows = k_tile + warp * warp_keys * Tile<HS>::row_bytes, v_rows = k_rows + C::kv_bytes; // the warp's own
    float dK[M][HS / 8][4], dV[M][HS / 8][4];
    fill(dK, 0.0f);
    fill(dV, 0.0f);
    for (int i = first; i < end; i++) { // query blocks, diagonal first
        cp_async_wait_group<0>();
        __syncthreads(); // block i has arrived, and all warps have finished with block i - 1
        if (i + 1 < end) { load_queries(i + 1); }
        int stage = i % 2 * stage_bytes, tile = stages + stage;
#pragma unroll 1
        for (int s = 0; s < Br; s += C::step) {
            int row = i * Br + s;
            if (row + C::step <= column) { continue; } // queries before all of the warp's keys
            int lane = mov_tid_x() % 32;
            uint32_t K = k_rows + Tile<HS>::lane_a(lane), V = K + C::kv_bytes;
            uint32_t Q_b = tile + s * Tile<HS>::row_bytes + Tile<HS>::lane_b(lane);
            uint32_t Q_a = tile + s * Tile<HS>::row_bytes + Tile<HS>::lane_a(lane);
            const RowStatistics* rows =
                reinterpret_cast<const RowStatistics*>(shared + 2 * C::kv_bytes + stage + 2 * C::q_bytes) + s +
                lane % 4 * 2;
            int lane_row = row + lane % 4 * 2, lane_column = column + lane / 4;
            bool whole = row + 1 >= column + warp_keys;
            if constexpr (C::documents) {
                if (starts[min(row, T - 1)] >= column + warp_keys) { break; } // documents behind the warp's keys
                whole = whole && starts[min(row + C::step, T) - 1] <= column;
            }
            if (whole) {
                key_step<C, false>(dK, dV, K, V, Q_b, Q_a, rows, lane_row, lane_column, starts, T);
            } else {
                key_step<C, true>(dK, dV, K, V, Q_b, Q_a, rows, lane_row, lane_column, starts, T);
            }
        }
    }

    multiply(dK, C::scale);
    AttentionTask same(mov_ctaid(), group); // recomputed, so that no registers hold it during the loop
    floatX* dk = dqkv + qkv_offset(same.head / NH, 1, same.head % NH, T, NH, HS) + (int64_t)column * stride;
    store_rows<HS>(dk, k_rows, dK, stride, T - column, lane);
    store_rows<HS>(dk + NH * HS, v_rows, dV, stride, T - column, lane);
}

// ----------------------------------------------------------------------------
// Launch

static inline size_t backward_scratch_bytes(int B, int T, int NH, int) {
    return statistics_offset(B * NH, 0, T) * sizeof(RowStatistics);
}

template <class Q, class K> void launch_backward_kernels(floatX* dqkv, const floatX* dout, const floatX* qkv,
                                                         const floatX* out, const float* l, const float* m,
                                                         const int* starts, void* scratch, int B, int T, int NH, int HS,
                                                         cudaStream_t stream) {
    static_assert(Q::Br % K::Br == 0, "the query kernel leaves statistics for every row that the key kernel reads");
    int heads = B * NH;
    int64_t reread_bytes = (int64_t)T * HS * 2 * sizeof(floatX); // K and V in the first, Q and dO in the second
    RowStatistics* statistics = (RowStatistics*)scratch;
    AttentionGrid query_grid, key_grid;
    if (attention_grid(&query_grid, CEIL_DIV(T, Q::Br), heads, reread_bytes) != STATUS_OK) { return; }
    if (attention_grid(&key_grid, CEIL_DIV(T, K::Bc), heads, reread_bytes) != STATUS_OK) { return; }
    attention_launch(attention_backward_query_kernel<Q>, query_grid.size, Q::threads, Q::shared_bytes, stream, dqkv,
                     statistics, dout, qkv, out, l, m, starts, T, NH, heads, query_grid.group);
    attention_launch(attention_backward_key_kernel<K>, key_grid.size, K::threads, K::shared_bytes, stream, dqkv, dout,
                     qkv, statistics, starts, T, NH, heads, key_grid.group);
}
template <class Q, class K> void launch_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                                 const float* l, const float* m, void* scratch, int B, int T, int NH,
                                                 int HS, cudaStream_t stream) {
    launch_backward_kernels<Q, K>(dqkv, dout, qkv, out, l, m, nullptr, scratch, B, T, NH, HS, stream);
}

// A row of the table; names are rows of a block x keys of a stage in the query kernel, then keys of a block x queries of a
// stage in the key kernel.
template <class Q, class K> constexpr AttentionBackwardConfig backward_config(const char* name) {
    constexpr size_t shared_bytes = std::max(Q::shared_bytes, K::shared_bytes);
    static_assert(shared_bytes <= 99 << 10, "so much shared memory has every GPU from 8.0 on");
    return {name,
            Q::HS,
            shared_bytes,
            launch_backward<Q, K>,
            backward_scratch_bytes,
            nullptr,
            nullptr,
            launch_backward_kernels<typename Q::WithDocuments, typename K::WithDocuments>};
}
static constexpr AttentionBackwardConfig backward_configs[] = {
    backward_config<QueryTiles<32, 4, 2, 64, 32, 3>, KeyTiles<32, 4, 2, 128, 32, 3>>("128x64 128x128"),
    backward_config<QueryTiles<64, 4, 2, 128, 32, 2>, KeyTiles<64, 4, 2, 128, 32, 2>>("128x128 128x128"),
    backward_config<QueryTiles<96, 4, 2, 64, 32, 2>, KeyTiles<96, 4, 1, 64, 64, 2>>("128x64 64x64"),
    backward_config<QueryTiles<128, 4, 1, 64, 32, 2>, KeyTiles<128, 4, 1, 64, 64, 2>>("64x64 64x64"),
};

} // namespace mma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, mma::backward_configs, 80); }
#endif
