/*
mma's backward as one kernel of five GEMMs, for heads of 128 and GPUs with 227 KB of shared memory per thread block; the
equations are in attention_backward_mma.cu. A CTA owns 128 keys and iterates over the query blocks that attend to them. Warps
work in pairs that share 32 keys; in iteration n, between two barriers,
    all warps    dQ = dS K, a tile of 32 x 32 each                           of the query block of step n - 2
    S warps      S^T = K Q^T,  dV += P^T dO;  P to shared memory, in fp32    of step n
    dP warps     dP^T = V dO^T,  dK += dS^T Q;  dS to shared memory          of step n - 1
- A warp with one accumulator (dV or dK) instead of two has registers for 32 keys, not 16: a fragment of Q or dO feeds four mma,
  not two. K and V stay in registers, as operand A.
- dQ is added to fp32 accumulators in scratch, in the order in which CTAs took the key blocks from the work counter: the same
  bits always, and a CTA waits only for CTAs that started before it.
Paper: Dao, FlashAttention-2 (2023), algorithm 2.
*/
#ifndef MMA_BACKWARD_PAIRS_CUH
#define MMA_BACKWARD_PAIRS_CUH

#include "attention.h"
#include "key_blocks.cuh"
#include "mma_tiles.cuh"

#include <type_traits>

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

// mov_tid_x() with the assumption that it is not negative: / and % compile to a shift and a mask.
__device__ inline int thread_index() {
    const int x = mov_tid_x();
    __builtin_assume(x >= 0);
    return x;
}

// A CTA's key block, and pointers to its head in the tensors and in scratch. In shared memory, because registers are short.
struct PairItem {
    int2 packed;                     // KeyBlock
    const RowStatistics* statistics; // points to query 0, as do q, dO and dq
    const floatX *q, *dO;
    floatX* dq;    // in dqkv
    float* dq_sum; // of query block 0
    int* count;    // of query block 0
};

// A configuration: head size and pairs of warps.
template <int HS_, int PAIRS> struct PairTiles {
    static constexpr int HS = HS_, M = 2, pairs = PAIRS, warps = 2 * PAIRS, threads = warps * WARP_SIZE;
    static constexpr int pair_keys = 16 * M, Bc = pairs * pair_keys; // keys of a pair and of a block
    static constexpr int Br = 64, step = 16;        // queries of a block, and those that a warp takes at a time
    static constexpr int steps_per_block = Bc / Br; // query blocks with the positions of a key block
    static constexpr int q_rows = 32, q_columns = Br * HS / q_rows / warps; // the tile of dQ that a warp computes
    static constexpr float scale = inverse_sqrt(HS);

    // Shared memory: K, P of two steps (at first V, in the end dV and dK), dS of two steps, Q, dO and statistics of three,
    // PairItem
    static constexpr int k_bytes = Bc * HS * 2, q_bytes = Br * HS * 2, row_bytes = Br * sizeof(RowStatistics);
    static constexpr int pair_bytes = pair_keys * Br * 4, p_bytes = pairs * pair_bytes, ds_bytes = Bc * Br * 2;
    static constexpr int P = k_bytes, dS = P + 2 * p_bytes, stages = dS + 2 * ds_bytes;
    static constexpr int dO = q_bytes, rows = 2 * q_bytes, stage_bytes = rows + row_bytes; // in a stage
    static constexpr int item = stages + 3 * stage_bytes;
    static constexpr size_t shared_bytes = item + sizeof(PairItem);
    static_assert(padded_rows % Bc == 0 && Bc % Br == 0 && row_bytes % 128 == 0, "");
    static_assert(q_columns == 32 && HS % 64 == 0, "a warp's columns of dQ lie in half of a 128-byte row");
    static_assert(pair_bytes == pair_keys * HS * 2, "dV and dK are staged in the buffer of the pair's P");
};

// Scratch, and the sizes of a launch.
struct PairScratch {
    float* dq;                 // (heads, query blocks, Br * HS) elements in the order of the warps' registers
    RowStatistics* statistics; // (heads, padded T)
    int* counts;               // (heads, query blocks): how many key blocks have added their part of dQ
    int* work_counter;
};
struct PairProblem : KeyBlockOrder { // query blocks of whole key blocks
    int T;
};

// The preprocessing kernel: {lse, -D} of 128 rows of a head, D = rowsum(dO o O); zeroes their counts and the work counter.
// dout, out (B,T,NH,HS); l, m (B,NH,T). HS / 8 lanes read a row.
template <class C> __global__ void __launch_bounds__(256)
    attention_backward_statistics_kernel(const __grid_constant__ PairScratch scratch, const floatX* dout,
                                         const floatX* out, const float* l, const float* m, int T, int NH) {
    constexpr int lanes = C::HS / 8, rows = 256 / lanes, passes = padded_rows / rows, counts = padded_rows / C::Br;
    const int blocks = CEIL_DIV(T, padded_rows), head = blockIdx.x / blocks, first = blockIdx.x % blocks * padded_rows;
    const int64_t base = out_offset(head / NH, head % NH, T, NH, C::HS) + threadIdx.x % lanes * 8;
    if (threadIdx.x < counts) { scratch.counts[(int64_t)blockIdx.x * counts + threadIdx.x] = 0; }
    if (blockIdx.x == 0 && threadIdx.x == 0) { *scratch.work_counter = 0; }
    uint4 x[passes], y[passes];
#pragma unroll
    for (int i = 0; i < passes; i++) {
        const int t = min(first + i * rows + (int)threadIdx.x / lanes, T - 1);
        x[i] = *reinterpret_cast<const uint4*>(dout + base + (int64_t)t * NH * C::HS);
        y[i] = *reinterpret_cast<const uint4*>(out + base + (int64_t)t * NH * C::HS);
    }
#pragma unroll
    for (int i = 0; i < passes; i++) {
        float sum = dot_x2(x[i].x, y[i].x, dot_x2(x[i].y, y[i].y, dot_x2(x[i].z, y[i].z, dot_x2(x[i].w, y[i].w, 0))));
#pragma unroll
        for (int offset = lanes / 2; offset > 0; offset /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, offset); }
        const int t = first + i * rows + threadIdx.x / lanes;
        const int64_t at = (int64_t)head * T + min(t, T - 1);
        if (threadIdx.x % lanes == 0) {
            scratch.statistics[statistics_offset(head, t, T)] = {row_lse(l[at], m[at], t < T), -sum};
        }
    }
}

// An S warp: dV += P^T dO for its keys and `step` queries; query_minus_key: the lane's first query less its first key. P is
// stored to `shared_P` in fp32.
template <class C, bool masked>
__device__ inline void value_step(float (&dV)[C::M][C::HS / 8][4], const uint32_t (&K)[C::HS / 16][C::M][4],
                                  uint32_t Q_b, uint32_t dO_a, const RowStatistics* rows, float4* shared_P,
                                  int query_minus_key) {
    constexpr int M = C::M, N = C::step / 8;
    float S[M][N][4];
    fill(S, 0.0f);
    mma_abt<C::HS>(S, K, Q_b); // S^T = K Q^T
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float4 two = *reinterpret_cast<const float4*>(rows + 8 * n); // {lse, -D} of the lane's two queries
#pragma unroll
        for (int i = 0; i < M; i++) {
#pragma unroll
            for (int e = 0; e < 4; e++) { // P = exp(S - m) / l
                S[i][n][e] = ex2_approx_ftz(fmaf(S[i][n][e], C::scale * LOG2_E, -(e % 2 ? two.z : two.x)));
                if (masked && 16 * i + e / 2 * 8 - 8 * n - e % 2 > query_minus_key) { S[i][n][e] = 0; }
            }
            shared_P[(n * M + i) * WARP_SIZE] = make_float4(S[i][n][0], S[i][n][1], S[i][n][2], S[i][n][3]);
        }
    }
#pragma unroll
    for (int k = 0; k < N / 2; k++) { // dV += P^T dO
        uint32_t P[M][4];
        round_a(P, S, k);
        mma_ab_step<C::HS>(dV, P, dO_a + k * 16 * Tile<C::HS>::row_bytes);
    }
}
// A dP warp: dK += dS^T Q for the same queries a step later. dS is stored to a tile with rows of Br queries, from `chunk` on.
template <class C> __device__ inline void key_pair_step(float (&dK)[C::M][C::HS / 8][4],
                                                        const uint32_t (&V)[C::HS / 16][C::M][4], uint32_t dO_b,
                                                        uint32_t Q_a, const RowStatistics* rows, const float4* shared_P,
                                                        uint32_t dS_tile, int chunk, int lane) {
    constexpr int M = C::M, N = C::step / 8;
    float dP[M][N][4];
    fill(dP, 0.0f);
    mma_abt<C::HS>(dP, V, dO_b); // dP^T = V dO^T
#pragma unroll
    for (int n = 0; n < N; n++) { // dS = P o (dP - D)
        const float4 two = *reinterpret_cast<const float4*>(rows + 8 * n);
#pragma unroll
        for (int i = 0; i < M; i++) {
            const float4 P = shared_P[(n * M + i) * WARP_SIZE];
            dP[i][n][0] = P.x * (dP[i][n][0] + two.y);
            dP[i][n][1] = P.y * (dP[i][n][1] + two.w);
            dP[i][n][2] = P.z * (dP[i][n][2] + two.y);
            dP[i][n][3] = P.w * (dP[i][n][3] + two.w);
        }
    }
#pragma unroll
    for (int k = 0; k < N / 2; k++) { // dK += dS^T Q
        uint32_t dS[M][4];
        round_a(dS, dP, k);
        store_a<C::Br>(dS_tile, dS, chunk + 2 * k, lane);
        mma_ab_step<C::HS>(dK, dS, Q_a + k * 16 * Tile<C::HS>::row_bytes);
    }
}

// A warp's tile of dQ (q_rows, q_columns) = dS K, over all keys of the block. dS carries lane_b, K lane_a.
template <class C>
__device__ inline void query_tile(float (&dQ)[C::q_rows / 16][C::q_columns / 8][4], uint32_t dS, uint32_t K) {
#pragma unroll
    for (int k = 0; k < C::Bc / 16; k++) {
        uint32_t a[C::q_rows / 16][4];
#pragma unroll
        for (int i = 0; i < C::q_rows / 16; i++) { ldmatrix_x4_trans(a[i], Tile<C::Br>::at(dS, k * 16, 2 * i)); }
#pragma unroll
        for (int n = 0; n < C::q_columns / 8; n += 2) {
            uint32_t b[4];
            ldmatrix_x4_trans(b, Tile<C::HS>::at(K, k * 16, n));
#pragma unroll
            for (int i = 0; i < C::q_rows / 16; i++) {
                mma_m16n8k16(dQ[i][n], a[i], b[0], b[1]);
                mma_m16n8k16(dQ[i][n + 1], a[i], b[2], b[3]);
            }
        }
    }
}
// Transposes a 4 x 4 matrix of words within groups of four lanes; lane q holds row q.
__device__ inline void transpose_quad(uint32_t (&x)[4], int lane) {
#pragma unroll
    for (int d = 1; d <= 2; d *= 2) {
        const bool upper = lane & d;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & d) { continue; }
            const uint32_t received = __shfl_xor_sync(0xffffffffu, upper ? x[i] : x[i + d], d);
            upper ? x[i] = received : x[i + d] = received;
        }
    }
}
// Adds a tile of dQ to its sum in scratch or, if it is the first, stores it. The elements are in the order of the lanes'
// registers.
template <class C>
__device__ inline void add_query_tile(const float (&dQ)[C::q_rows / 16][C::q_columns / 8][4], float4* sum, bool first) {
    constexpr int N = C::q_columns / 8;
    if (first) {
#pragma unroll
        for (int i = 0; i < C::q_rows / 16 * N; i++) {
            const float(&x)[4] = dQ[i / N][i % N];
            __stcg(sum + i * WARP_SIZE, make_float4(x[0], x[1], x[2], x[3]));
        }
    } else {
#pragma unroll
        for (int i = 0; i < C::q_rows / 16 * N; i++) { red_add_f32_v4(sum + i * WARP_SIZE, dQ[i / N][i % N]); }
    }
}
// Loads the sum of all parts but the last, which is accumulated onto it.
template <class C>
__device__ inline void load_query_tile(float (&dQ)[C::q_rows / 16][C::q_columns / 8][4], const float4* sum) {
    constexpr int N = C::q_columns / 8;
#pragma unroll
    for (int i = 0; i < C::q_rows / 16 * N; i++) {
        const float4 x = __ldcg(sum + i * WARP_SIZE);
        dQ[i / N][i % N][0] = x.x, dQ[i / N][i % N][1] = x.y, dQ[i / N][i % N][2] = x.z, dQ[i / N][i % N][3] = x.w;
    }
}
// Stores a complete tile of dQ, scaled, to the first `valid` rows at dq.
template <class C> __device__ inline void store_query_tile(const float (&dQ)[C::q_rows / 16][C::q_columns / 8][4],
                                                           floatX* dq, uint32_t stride, int valid, int lane) {
    static_assert(C::q_columns == 32, "four words of a lane are 8 channels");
    dq += (uint64_t)(uint32_t)(lane / 4) * stride + lane % 4 * 8;
#pragma unroll
    for (int i = 0; i < C::q_rows / 8; i++) { // 8 rows
        uint32_t x[4];
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const float(&y)[4] = dQ[i / 2][n];
            x[n] = cvt_rn_x2(C::scale * y[i % 2 * 2], C::scale * y[i % 2 * 2 + 1]);
        }
        transpose_quad(x, lane);
        if (i * 8 + lane / 4 < valid) { *reinterpret_cast<uint4*>(dq) = make_uint4(x[0], x[1], x[2], x[3]); }
        dq += (uint64_t)stride * 8;
    }
}

// dqkv (B,T,3,NH,HS) from dout (B,T,NH,HS), qkv and the statistics in scratch. One CTA per key block.
template <class C> __global__ void __launch_bounds__(C::threads, 1)
    attention_backward_pairs_kernel(floatX* dqkv, const floatX* dout, const floatX* qkv,
                                    const __grid_constant__ PairScratch scratch,
                                    const __grid_constant__ PairProblem p) {
    constexpr int HS = C::HS, M = C::M, Br = C::Br, Bc = C::Bc, step = C::step, row_bytes = Tile<HS>::row_bytes;
    extern __shared__ __align__(1024) char shared[];
    PairItem& item = *reinterpret_cast<PairItem*>(shared + C::item);
    const int T = p.T, NH = p.NH.d;
    if (threadIdx.x == 0) {
        const KeyBlock block(atomicAdd(scratch.work_counter, 1), p);
        const int b = block.b(p), h = block.h(p);
        item.packed = block.packed();
        item.statistics = scratch.statistics + statistics_offset(block.head, 0, T);
        item.q = qkv + qkv_offset(b, 0, h, T, NH, HS);
        item.dO = dout + out_offset(b, h, T, NH, HS);
        item.dq = dqkv + qkv_offset(b, 0, h, T, NH, HS);
        item.dq_sum = scratch.dq + (int64_t)block.head * p.query_blocks * (Br * HS);
        item.count = scratch.counts + (int64_t)block.head * p.query_blocks;
    }
    __syncthreads();
    const KeyBlock block(item.packed);
    const int j0 = block.j * Bc, steps = block.template steps<C>(p), stride = 3 * NH * HS;
    auto pair = [] { return thread_index() / WARP_SIZE % C::pairs; };
    auto first_key = [&] { return block.j * Bc + pair() * C::pair_keys; }; // of the pair
    const bool S_warp = threadIdx.x / WARP_SIZE < C::pairs;
    const uint32_t base = (uint32_t)__cvta_generic_to_shared(shared);
    // The query block of step n, and the distance of its diagonal key block from this one.
    const int first = block.j * C::steps_per_block + block.template query_offset<C>(0, p),
              sign = block.reversed ? -1 : 1;
    auto query_block = [&](int n) { return first + sign * n; };
    auto behind = [&](int n) { return (block.reversed ? steps - 1 - n : n) / C::steps_per_block; };
    auto load_queries = [&](int n) {
        const int i = query_block(n), thread = thread_index();
        const uint32_t stage = base + C::stages + n % 3 * C::stage_bytes;
        load_tile<HS, Br, C::threads>(stage, item.q + (int64_t)i * Br * stride, stride, T - i * Br);
        load_tile<HS, Br, C::threads>(stage + C::dO, item.dO + (int64_t)i * Br * NH * HS, NH * HS, T - i * Br);
        if (thread < C::row_bytes / 16) {
            cp_async_16(stage + C::rows + thread * 16, item.statistics + i * Br + thread * 2, 16);
        }
        cp_async_commit_group();
    };
    const floatX* k = item.q + NH * HS + (int64_t)j0 * stride;
    load_tile<HS, Bc, C::threads>(base, k, stride, T - j0);
    load_tile<HS, Bc, C::threads>(base + C::P, k + NH * HS, stride, T - j0); // V, in the buffer of P
    load_queries(0);
    cp_async_wait_group<0>();
    __syncthreads();
    uint32_t KV[HS / 16][M][4]; // an S warp's keys, a dP warp's values
#pragma unroll
    for (int i = 0; i < HS / 16; i++) {
        load_a<HS>(KV[i],
                   base + (S_warp ? 0 : C::P) + pair() * C::pair_keys * row_bytes +
                       Tile<HS>::lane_a(thread_index() % WARP_SIZE),
                   i);
    }
    float sum[M][HS / 8][4]; // dV of an S warp, dK of a dP warp
    fill(sum, 0.0f);

    // The order of the additions to dQ: one thread waits until all key blocks before this one have added their part of step n;
    // another publishes that this one has, after a barrier behind all warps' additions.
    auto wait_turn = [&](int n) {
        const int before = block.before(behind(n));
        if (before > 0 && thread_index() == (C::pairs + 1) * WARP_SIZE) {
            while (ld_acquire_gpu(item.count + query_block(n)) < before) {}
        }
    };
    auto end_turn = [&](int n) {
        if (thread_index() == C::pairs * WARP_SIZE) {
            st_release_gpu(item.count + query_block(n), block.before(behind(n)) + 1);
        }
    };
    // Step n in shared memory: the lane's statistics, and P of the pair
    auto rows_of = [&](int n, int lane) {
        return reinterpret_cast<const RowStatistics*>(shared + C::stages + n % 3 * C::stage_bytes + C::rows) +
               lane % 4 * 2;
    };
    auto P_of = [&](int n, int lane) {
        return reinterpret_cast<float4*>(shared + C::P + n % 2 * C::p_bytes + pair() * C::pair_bytes) + lane;
    };
    constexpr int P_query = C::pair_keys * 4 / 16; // float4 of a query of a pair's P

#pragma unroll 1
    for (int n = 0; n < steps + 2; n++) {
        if (n >= 2) { wait_turn(n - 2); }
        cp_async_wait_group<0>();
        __syncthreads(); // ready: the loads of step n, P of step n - 1, dS of step n - 2; all other buffers are free
        if (n >= 3) { end_turn(n - 3); }
        if (n + 1 < steps) { load_queries(n + 1); }
        if (n >= 2) {                                 // dQ
            constexpr int across = HS / C::q_columns; // tiles of dQ side by side
            auto row = [](int thread) { return thread / WARP_SIZE / across * C::q_rows; };
            auto channel = [](int thread) { return thread / WARP_SIZE % across * C::q_columns; };
            const int thread = thread_index(), lane = thread % WARP_SIZE, i = query_block(n - 2);
            const uint32_t dS = (base + C::dS + n % 2 * C::ds_bytes + Tile<Br>::lane_b(lane)) ^ (row(thread) / 8 * 16);
            const uint32_t K =
                ((base + Tile<HS>::lane_a(lane)) ^ (channel(thread) / 8 % 8 * 16)) + channel(thread) / 64 * 128;
            const int64_t tile = (int64_t)i * C::warps + thread / WARP_SIZE;
            float4* dq_sum =
                reinterpret_cast<float4*>(item.dq_sum + tile * (C::q_rows * C::q_columns)) + thread % WARP_SIZE;
            const bool is_first = block.before(behind(n - 2)) == 0, is_last = block.after(behind(n - 2)) == 0;
            float dQ[C::q_rows / 16][C::q_columns / 8][4];
            if (is_last && !is_first) {
                load_query_tile<C>(dQ, dq_sum);
            } else {
                fill(dQ, 0.0f);
            }
            query_tile<C>(dQ, dS, K);
            if (is_last) {
                const int same = thread_index(); // read again, so that no registers hold addresses meanwhile
                store_query_tile<C>(dQ, item.dq + (int64_t)(i * Br + row(same)) * stride + channel(same), stride,
                                    T - i * Br - row(same), same % WARP_SIZE);
            } else {
                add_query_tile<C>(dQ, dq_sum, is_first);
            }
        }
        if (S_warp && n < steps) {
            const uint32_t stage = base + C::stages + n % 3 * C::stage_bytes;
            const int query_minus_key = query_block(n) * Br - first_key(); // the pair's first
            const int lane = thread_index() % WARP_SIZE;
            auto do_step = [&](auto masked, int s) {
                value_step<C, masked.value>(sum, KV, stage + s * row_bytes + Tile<HS>::lane_b(lane),
                                            stage + s * row_bytes + C::dO + Tile<HS>::lane_a(lane),
                                            rows_of(n, lane) + s, P_of(n, lane) + s * P_query,
                                            query_minus_key + s + lane % 4 * 2 - lane / 4);
            };
            if (query_minus_key + 1 >= C::pair_keys) {
#pragma unroll
                for (int s = 0; s < Br; s += step) { do_step(std::false_type(), s); }
            } else { // from the first queries that see a key of the pair
#pragma unroll 1
                for (int s = max(0, -query_minus_key); s < Br; s += step) { do_step(std::true_type(), s); }
            }
        }
        if (!S_warp && n >= 1 && n <= steps) {
            const uint32_t stage = base + C::stages + (n - 1) % 3 * C::stage_bytes;
            const uint32_t dS = base + C::dS + (n - 1) % 2 * C::ds_bytes + pair() * C::pair_keys * Tile<Br>::row_bytes;
            const int skipped = max(0, first_key() - query_block(n - 1) * Br); // queries before all of the pair's keys
            auto do_step = [&](int s) {
                const int lane = thread_index() % WARP_SIZE;
                key_pair_step<C>(sum, KV, stage + s * row_bytes + C::dO + Tile<HS>::lane_b(lane),
                                 stage + s * row_bytes + Tile<HS>::lane_a(lane), rows_of(n - 1, lane) + s,
                                 P_of(n - 1, lane) + s * P_query, dS, s / 8, lane);
            };
            if (skipped == 0) {
#pragma unroll
                for (int s = 0; s < Br; s += step) { do_step(s); }
            } else {
#pragma unroll 1
                for (int s = 0; s < Br; s += step) {
                    const uint32_t zeros[M][4] = {};
                    s < skipped ? store_a<Br>(dS, zeros, s / 8, thread_index() % WARP_SIZE) : do_step(s);
                }
            }
        }
    }
    __syncthreads();
    end_turn(steps - 1);
    if (!S_warp) { multiply(sum, C::scale); }
    const int lane = thread_index() % WARP_SIZE, column = first_key();
    const uint32_t tile = base + C::P + (S_warp ? 0 : C::p_bytes) + pair() * C::pair_bytes;
    floatX* destination = item.dq + (S_warp ? 2 : 1) * NH * HS + (int64_t)column * stride;
    store_rows<HS>(destination, tile, sum, stride, T - column, lane);
}

// ----------------------------------------------------------------------------
// Launch

// Bytes of scratch: an fp32 accumulator of dQ and two statistics of each row, a count of each query block, the work counter
static inline size_t pairs_scratch_bytes(int B, int T, int NH, int HS) {
    const size_t rows = (size_t)B * NH * CEIL_DIV(T, padded_rows) * padded_rows;
    return rows * (HS * sizeof(float) + sizeof(RowStatistics)) + (rows / 64 + 1) * sizeof(int);
}

template <class C> void launch_pairs(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                     const float* l, const float* m, void* scratch, int B, int T, int NH, int HS,
                                     cudaStream_t stream) {
    int device, num_sms;
    if (cuda_try(cudaGetDevice(&device)) != STATUS_OK) { return; }
    if (cuda_try(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device)) != STATUS_OK) { return; }
    auto kernel = attention_backward_pairs_kernel<C>;
    const auto shared = cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (cuda_try(cudaFuncSetAttribute(kernel, shared, (int)C::shared_bytes)) != STATUS_OK) { return; }
    const int heads = B * NH, blocks = CEIL_DIV(T, padded_rows);
    const int64_t rows = (int64_t)heads * blocks * padded_rows, group_bytes = 2 << 20; // as wgmma's at heads of 128
    const int key_blocks = CEIL_DIV(T, C::Bc), group_heads = max(1, (int)(group_bytes / ((int64_t)T * HS * 8)));
    const PairProblem p = {{B, NH, key_blocks, blocks * padded_rows / C::Br, group_heads, num_sms}, T};
    PairScratch parts;
    parts.dq = (float*)scratch;
    parts.statistics = (RowStatistics*)(parts.dq + rows * HS);
    parts.counts = (int*)(parts.statistics + rows);
    parts.work_counter = parts.counts + rows / C::Br;
    attention_backward_statistics_kernel<C><<<heads * blocks, 256, 0, stream>>>(parts, dout, out, l, m, T, NH);
    if (cuda_try(cudaGetLastError()) != STATUS_OK) { return; }
    kernel<<<p.work_items, C::threads, C::shared_bytes, stream>>>(dqkv, dout, qkv, parts, p);
    cuda_try(cudaGetLastError());
}
template <class C> constexpr AttentionBackwardConfig pairs_config(const char* name) {
    return {name, C::HS, C::shared_bytes, launch_pairs<C>, pairs_scratch_bytes};
}

} // namespace mma

#endif
