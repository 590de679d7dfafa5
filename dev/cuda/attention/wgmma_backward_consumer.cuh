/*
The GEMMs of a consumer of attention_backward_wgmma.cu, and how it hands over dQ. What a consumer does in which order stands
in wgmma_backward_pair.cuh and wgmma_backward_rotating.cuh.
*/
#ifndef WGMMA_BACKWARD_CONSUMER_CUH
#define WGMMA_BACKWARD_CONSUMER_CUH

#include "wgmma_backward_tiles.cuh"

namespace wgmma {

// What finish_dQ() asks, as the dQ writer has found it, once s.dQ_ready says so.
template <class C> struct PostedChain {
    const typename C::Shared& s;
    uint32_t buffer;
    __device__ bool reads() const { return s.dq_source[buffer] != nullptr; }
    __device__ bool last() const { return s.dq_last[buffer]; }
};

// Consumer warpgroup w, which owns keys 64 w .. 64 w + 63 of the block. Scores are transposed: S^T, dP^T and dS^T are
// (64 keys, Br queries), dK and dV (64 keys, HS), all wgmma accumulators.
template <class C> struct BackwardConsumer {
    static constexpr int HS = C::HS, Br = C::Br, Bc = C::Bc, N = Br / 16;
    typedef float Scores[Br / 2];
    static constexpr bool V_in_registers = C::v_slices == HS / 16; // all of it
    typedef float DqTile[C::dq_channels / 2];                      // (64, dq_channels)
    typename C::Shared& s;
    const int w;
    uint32_t n = 0, t = 0; // work item and step: step t uses stage t % 2, whose barriers are in phase t / 2
    float dK[HS / 2], dV[HS / 2];
    uint32_t K[C::k_slices][4], V[C::v_slices][4]; // fragments of the warpgroup's 64 rows

    __device__ BackwardConsumer(typename C::Shared& s, int w) : s(s), w(w) {}

    static __device__ uint32_t lane() { return (uint32_t)mma::mov_tid_x() % WARP_SIZE; }
    static __device__ uint32_t warp() { return (uint32_t)mma::mov_tid_x() % WARPGROUP_SIZE / WARP_SIZE; }
    __device__ void arrive(Mbarrier& barrier) { barrier.arrive_warp(lane()); }

    // The scores of consumer 1's keys with the first 64 queries of the key block are above the diagonal: with HS = 64 half of
    // its first step, with HS = 128 all of it. `skip` is for them.

    // Issues x (64, Br) = A B^T, or x += A B^T: the warpgroup's 64 rows of A (Bc, HS), which is K or V in boxes of dq_channels,
    // its first slices in registers; B (Br, HS), Q or dO.
    template <bool accumulate, bool skip, int slices>
    __device__ void issue_transposed(Scores& x, const void* A, const uint32_t (*fragments)[4], const void* B) {
        uint64_t a = tile_descriptor_k_major(uniform(shared_address(A) + w * 64 * C::box_row));
        uint64_t b = tile_descriptor_k_major(uniform(shared_address(B)) + (skip ? 64 * C::box_row : 0));
        constexpr int columns = Br - (skip ? 64 : 0);
        fence_operand(x);
        wgmma_fence();
        if constexpr (columns > 0) {
            auto& y = reinterpret_cast<float(&)[columns / 2]>(x[(Br - columns) / 2]);
#pragma unroll
            for (int i = 0; i < HS / 16; i++) { // 16 channels are 32 bytes
                const uint64_t slice = b + i / 4 * (Br * C::box_row / 16) + i % 4 * 2;
                if constexpr (slices > 0) {
                    if (i < slices) {
                        wgmma_mma_async(y, fragments[i], slice, accumulate || i > 0);
                        continue;
                    }
                }
                wgmma_mma_async(y, a + i / C::box_slices * (Bc * C::box_row / 16) + i % C::box_slices * 2, slice,
                                accumulate || i > 0);
            }
        }
        wgmma_commit_group();
        fence_operand(x);
    }
    // Issues S^T = K Q^T of step t.
    template <bool skip = false> __device__ void issue_S(Scores& S) {
        s.Q_full[t % 2].wait(t / 2 % 2);
        issue_transposed<false, skip, C::k_slices>(S, s.K[n % 2], K, s.Q[t % 2]);
    }
    // dP^T = -D, the initial value of its accumulator: so dP - D costs no addition.
    __device__ void init_dP(Scores& dP, uint32_t t) {
        s.dO_full[t % 2].wait(t / 2 % 2);
        const float4* minus_D = reinterpret_cast<const float4*>(s.minus_D[t % 2]) + lane() % 4;
#pragma unroll
        for (int k = 0; k < N; k++) {
            const float4 u = minus_D[4 * k];
            const float x[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
            for (int i = 0; i < 8; i++) { dP[8 * k + i] = x[i / 4 * 2 + i % 2]; }
        }
        fence_operand(dP);
    }
    // Issues dP^T += V dO^T of step t.
    template <bool skip = false> __device__ void issue_dP(Scores& dP, uint32_t t) {
        issue_transposed<true, skip, C::v_slices>(dP, s.V[n % C::v_stages], V, s.dO[t % 2]);
    }
    // The first slices of the warpgroup's rows of K or V to registers.
    template <int slices> __device__ void load_slices(uint32_t (*fragments)[4], const void* tile) {
        const uint32_t row = shared_address(tile) + (w * 64 + warp() * 16 + lane() % 16) * C::box_row;
#pragma unroll
        for (int i = 0; i < slices; i++) {
            const uint32_t chunk = (i % C::box_slices * 2 + lane() / 16) ^ lane() % 8;
            mma::ldmatrix_x4(fragments[i], row + i / C::box_slices * (Bc * C::box_row) + chunk * 16);
        }
    }

    // Issues x (64, HS) += A B: A (64, Br) in registers, of every eight words of `A` the four from `part` on (0: P^T,
    // 4: dS^T; see compute_P_dS()); B (Br, HS), dO or Q.
    template <int part, bool skip> __device__ void issue_gradient(float (&x)[HS / 2], const Scores& A, const void* B) {
        uint64_t b = tile_descriptor_n_major(uniform(shared_address(B)), Br * C::box_row);
        fence_operand(x);
        wgmma_fence();
#pragma unroll
        for (int k = skip ? 4 : 0; k < N; k++) {
            const uint32_t a[4] = {__float_as_uint(A[8 * k + part]), __float_as_uint(A[8 * k + part + 1]),
                                   __float_as_uint(A[8 * k + part + 2]), __float_as_uint(A[8 * k + part + 3])};
            wgmma_mma_async(x, a, b + k * (16 * C::box_row / 16));
        }
        fence_operand(x);
    }
    // Issues dV += P^T dO and dK += dS^T Q of step t.
    template <bool skip = false> __device__ void issue_gradients(const Scores& PdS) {
        issue_gradient<0, skip>(dV, PdS, s.dO[t % 2]);
        issue_gradient<4, skip>(dK, PdS, s.Q[t % 2]);
        wgmma_commit_group();
    }
    // After the wait for these GEMMs: releases Q and dO, and goes to the next step.
    __device__ void finish_gradients() {
        fence_operand(dV);
        fence_operand(dK);
        arrive(s.Q_empty[t % 2]);
        arrive(s.dO_empty[t % 2]);
        t++;
    }
    // Issues this warpgroup's dQ tile = dS K of step t of work item n, over all Bc keys of the block: all of the step's with
    // rotating_dq; else, with HS = 64, queries 64 w .. 64 w + 63 of the step, or its 64 queries, part w of the channels.
    __device__ void issue_dQ(DqTile& dQ, uint32_t t, uint32_t n) {
        s.dS_full[t % 2].wait(t / 2 % 2);
        fence_proxy_async(); // here nothing of this thread is under way that it would wait for, as behind the stores of dS
        uint64_t a =
            tile_descriptor_n_major(uniform(shared_address(s.dS[t % 2][HS == 64 && !C::rotating_dq ? w : 0])), 0);
        uint64_t b = tile_descriptor_n_major(uniform(shared_address(s.K[n % 2][HS == 64 ? 0 : w])), 0);
        fence_operand(dQ);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < Bc / 16; i++) {
            wgmma_mma_async_mn_major(dQ, a + i * (16 * C::box_row / 16), b + i * (16 * C::box_row / 16), i > 0);
        }
        wgmma_commit_group();
        fence_operand(dQ);
    }
    // After the wait for issue_dQ(): hands the dQ tile of step t to the dQ writer, in s.dQ; first adds the accumulator that the
    // writer has loaded there, where the chain (DqChain or PostedChain) says so. A complete dQ is scaled and rounded to 16 bit.
    template <class Chain> __device__ void finish_dQ(DqTile& dQ, uint32_t t, const Chain& chain) {
        const uint32_t buffer = C::dq_buffer(t, w);
        fence_operand(dQ);
        arrive(s.dS_empty[t % 2]);
        s.dQ_ready[buffer].wait(C::dq_use(t) % 2);
        float4* part = reinterpret_cast<float4*>(s.dQ[buffer]) + (uint32_t)mma::mov_tid_x() % WARPGROUP_SIZE;
        if (chain.reads()) {
            // Nobody reads the accumulator in scratch again: L2 need not write it back. A thread discards 128 bytes.
            static_assert(C::dq_bytes <= WARPGROUP_SIZE * 128 && C::dq_bytes % (WARP_SIZE * 128) == 0, "");
            if (warp() < C::dq_bytes / (WARP_SIZE * 128)) {
                discard_l2(s.dq_source[buffer] + (uint32_t)mma::mov_tid_x() % WARPGROUP_SIZE * 32);
            }
#pragma unroll
            for (int i = 0; i < C::dq_channels / 8; i++) {
                float4 x = part[i * WARPGROUP_SIZE];
                dQ[4 * i] += x.x, dQ[4 * i + 1] += x.y, dQ[4 * i + 2] += x.z, dQ[4 * i + 3] += x.w;
            }
        }
        if (chain.last()) {
            if (chain.reads()) { bar_sync(C::BAR_DQ_READ + w, WARPGROUP_SIZE); } // other threads' parts are overwritten
            store_tile(shared_address(s.dQ[buffer]), 0, dQ, C::scale);
        } else {
#pragma unroll
            for (int i = 0; i < C::dq_channels / 8; i++) {
                part[i * WARPGROUP_SIZE] = make_float4(dQ[4 * i], dQ[4 * i + 1], dQ[4 * i + 2], dQ[4 * i + 3]);
            }
        }
        arrive(s.dQ_full[buffer]);
    }

    // S^T = -inf where the key is after the query.
    __device__ void mask_transposed(Scores& S, int key_minus_query) {
        int row = key_minus_query + (int)(warp() * 16 + lane() / 4) - (int)(lane() % 4 * 2);
#pragma unroll
        for (int i = 0; i < Br / 2; i++) {
            if (row + i / 2 % 2 * 8 > i / 4 * 8 + i % 2) { S[i] = -INFINITY; }
        }
    }
    // Whether none of the warpgroup's keys, from first_key on, is in the documents of the queries of step t
    __device__ bool sees_no_key(int first_key) {
        if constexpr (C::documents) {
            s.Q_full[t % 2].wait(t / 2 % 2);
            return first_key + 64 <= s.starts[t % 2][0];
        }
        return false;
    }
    // S^T = -inf where the key is before the query's document.
    __device__ void mask_documents(Scores& S, int first_key) {
        if constexpr (C::documents) {
            const int last_start = s.starts[t % 2][C::shared_starts - 1];
            if (first_key >= last_start) { return; } // the last query's document has all keys
            const int key = first_key + (int)(warp() * 16 + lane() / 4);
            const int* starts = C::shared_starts == Br ? s.starts[t % 2] : s.all_starts[t % 2];
            const int2* of_thread = reinterpret_cast<const int2*>(starts) + lane() % 4 * 2;
#pragma unroll
            for (int i = 0; i < Br / 2; i += 4) {
                const int2* next = of_thread + i / 8 * 8 + i / 4 % 2;
                const int2 x = C::shared_starts == Br ? *next : __ldcg(next);
                if (key < x.x) { S[i] = -INFINITY; }
                if (key < x.y) { S[i + 1] = -INFINITY; }
                if (key + 8 < x.x) { S[i + 2] = -INFINITY; }
                if (key + 8 < x.y) { S[i + 3] = -INFINITY; }
            }
        }
    }
    // Stores the warp's 16 of the warpgroup's 64 rows at `strip`, in fragments of 16 columns (operand A of mma.m16n8k16), to a
    // tile in shared memory with boxes of 64 columns and TMA's 128-byte swizzle: 16-byte chunk c of row r is at c ^ (r % 8).
    template <int K> __device__ void store_fragments(uint32_t strip, int box_bytes, const uint32_t (&x)[K][4]) {
        uint32_t row = strip + (warp() * 16 + lane() % 16) * C::box_row;
#pragma unroll
        for (int k = 0; k < K; k++) {
            uint32_t chunk = (k % 4 * 2 + lane() / 16) ^ lane() % 8;
            mma::stmatrix_x4(row + k / 4 * box_bytes + chunk * 16, x[k][0], x[k][1], x[k][2], x[k][3]);
        }
    }
    // Stores a wgmma accumulator (64, M * 2), times `scale`, rounded to 16 bit, likewise.
    template <int M> __device__ void store_tile(uint32_t strip, int box_bytes, const float (&x)[M], float scale) {
        uint32_t rounded[M / 8][4];
#pragma unroll
        for (int i = 0; i < M / 2; i++) {
            rounded[i / 4][i % 4] = mma::cvt_rn_x2(scale * x[2 * i], scale * x[2 * i + 1]);
        }
        store_fragments(strip, box_bytes, rounded);
    }

    // The two algorithms. With two consumers, which compute a tile of each step's dQ each: wgmma_backward_pair.cuh.
    __device__ void run(const BackwardProblem& p, const BackwardScratch& scratch);
    // With rotating_dq: wgmma_backward_rotating.cuh.
    __device__ void run_rotating(const CUtensorMap* dqkv, const BackwardProblem& p);

    __device__ void compute_D(const KeyBlock& block, const BackwardProblem& p, const BackwardScratch& scratch);
    __device__ void store_dq_sums(const DqTile& dQ, const DqChain& chain, const KeyBlock& block, int offset,
                                  const BackwardProblem& p, const BackwardScratch& scratch);
    template <bool skip = false, bool first = false>
    __device__ void compute_P_dS(Scores& S, Scores& dP, int key_minus_query, int first_key);
    template <bool skip, bool computes_D> __device__ void
    first_step(Scores& S, int first, const KeyBlock& block, const BackwardProblem& p, const BackwardScratch& scratch);
    __device__ void compute_dQ(uint32_t t, uint32_t n);
    __device__ void compute_P_dS_at_once(Scores& S, const Scores& dP, int key_minus_query, int first_key);
    __device__ void skip_step();
    __device__ void compute_step(int offset, int first_key);
};

} // namespace wgmma

#endif
