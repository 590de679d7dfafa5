/*
Two consumers, which compute a tile of each step's dQ each: while it is multiplied, so is S of the next step, and while dP is,
they exponentiate. attention/PROTOCOL.md has the timeline.
*/
#ifndef WGMMA_BACKWARD_PAIR_CUH
#define WGMMA_BACKWARD_PAIR_CUH

#include "wgmma_backward_consumer.cuh"

namespace wgmma {

// -D = -rowsum(dO o O) of the key block's own queries, two threads a row: to shared memory for its first step, and to
// scratch for the key blocks before it.
template <class C> __device__ inline void
BackwardConsumer<C>::compute_D(const KeyBlock& block, const BackwardProblem& p, const BackwardScratch& scratch) {
    s.dO_full[t % 2].wait(t / 2 % 2);
    s.O_full.wait(n % 2);
    const int thread = w * WARPGROUP_SIZE + mma::mov_tid_x() % WARPGROUP_SIZE, r = thread / 2;
    float sum = 0;
#pragma unroll
    for (int i = 0; i < HS / 16; i++) { // TMA's 128-byte swizzle: 16-byte chunk c of row r is at c ^ (r % 8)
        const int chunk = r * 8 + ((thread % 2 * (HS / 16) + i) ^ r % 8);
        const x128 x = reinterpret_cast<const x128*>(s.dO[t % 2])[chunk], y = reinterpret_cast<const x128*>(s.O)[chunk];
#pragma unroll
        for (int k = 0; k < x128::size; k++) { sum = fmaf((float)x[k], (float)y[k], sum); }
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    const int at = r / 16 * 16 + statistics_row(r % 16);
    if (thread % 2 == 0) {
        s.minus_D[t % 2][at] = -sum;
        scratch.minus_D[(int64_t)block.head * p.padded_T + block.j * Bc + at] = -sum;
        fence_proxy_async_global();
    }
    bar_sync(C::BAR_D, 2 * WARPGROUP_SIZE);
    if (thread == 0) { st_release_gpu(scratch.D_ready + (int64_t)block.head * p.key_blocks + block.j, 1); }
    arrive(s.O_empty);
}
// After finish_dQ(), where dQ is complete and its column sums are asked for: those over each warp's 16 queries. Not with
// rotating_dq.
template <class C> __device__ inline void BackwardConsumer<C>::store_dq_sums(const DqTile& dQ, const DqChain& chain,
                                                                             const KeyBlock& block, int offset,
                                                                             const BackwardProblem& p,
                                                                             const BackwardScratch& scratch) {
    if (!chain.last() || !scratch.dq_sums) { return; }
    float v[16] = {};
#pragma unroll
    for (int i = 0; i < C::dq_channels / 4; i++) {
        v[i] = C::scale * (dQ[i / 2 * 4 + i % 2] + dQ[i / 2 * 4 + 2 + i % 2]);
    }
    const float2 sums = sum_columns(v, lane());
    const int query = block.j * Bc + offset * Br + (HS == 64 ? w * 64 : 0) + warp() * 16;
    const int64_t row = (int64_t)block.b(p) * p.query_blocks * (Br / 16) + query / 16;
    const int column = kept_column(lane(), 0), channel = (HS == 64 ? 0 : w * C::dq_channels) + column;
    if (column >= C::dq_channels) { return; }
    *reinterpret_cast<float2*>(scratch.dq_sums + (row * p.NH.d + block.h(p)) * HS + channel) = sums;
}

// After the issue of S and dP of step t: P = 2^(scale log2(e) S - lse) and dS = P o dP (dP begins at -D), rounded to
// 16 bit, into the registers of S: of every eight, four words are P and four dS, as issue_gradient() takes them. dS also
// goes to shared memory for dQ. key_minus_query: the warpgroup's first key less the first query, for the causal mask.
// first: of a key block; s.dS may still hold dV of the last one.
template <class C> template <bool skip, bool first>
__device__ inline void BackwardConsumer<C>::compute_P_dS(Scores& S, Scores& dP, int key_minus_query, int first_key) {
    constexpr int ahead = skip ? 2 : 4; // loads of lse in flight; each takes 4 registers
    constexpr int begin = skip ? 4 : 0; // before it P and dS are 0
    const float4* lse = reinterpret_cast<const float4*>(s.lse[t % 2]) + lane() % 4;
    float4 next[ahead];
#pragma unroll
    for (int k = begin; k < min(begin + ahead, N); k++) { next[k % ahead] = lse[4 * k]; }
    wgmma_wait_group<1>(); // S is there; dP may be under way
    fence_operand(S);
    if (key_minus_query > -64) { mask_transposed(S, key_minus_query); }
    mask_documents(S, first_key);
#pragma unroll
    for (int k = begin; k < N; k++) {
        const float4 u = next[k % ahead];
        if (k + ahead < N) { next[k % ahead] = lse[4 * (k + ahead)]; }
        const float x[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
        for (int i = 0; i < 8; i++) {
            S[8 * k + i] = ex2_approx_ftz(fmaf(S[8 * k + i], C::scale * LOG2_E, -x[i / 4 * 2 + i % 2]));
        }
    }
    wgmma_wait_group<0>();
    fence_operand(dP);
#pragma unroll
    for (int i = 0; i < 8 * begin; i++) { S[i] = 0; }
#pragma unroll
    for (int k = begin; k < N; k++) {
        float P[8], dS[8];
#pragma unroll
        for (int i = 0; i < 8; i++) { P[i] = S[8 * k + i], dS[i] = P[i] * dP[8 * k + i]; }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            S[8 * k + i] = __uint_as_float(mma::cvt_rn_x2(P[2 * i], P[2 * i + 1]));
            S[8 * k + 4 + i] = __uint_as_float(mma::cvt_rn_x2(dS[2 * i], dS[2 * i + 1]));
        }
    }
    if (first) { s.dKV_empty.wait(n % 2 ^ 1); }
    s.dS_empty[t % 2].wait(t / 2 % 2 ^ 1);
    uint32_t dS[N][4];
#pragma unroll
    for (int i = 0; i < 4 * N; i++) { dS[i / 4][i % 4] = __float_as_uint(S[i / 4 * 8 + 4 + i % 4]); }
    store_fragments(shared_address(s.dS[t % 2]) + w * 64 * C::box_row, Bc * C::box_row, dS);
    arrive(s.dS_full[t % 2]);
}
// P and dS of a key block's first step, at the query offset `first`.
template <class C> template <bool skip, bool computes_D>
__device__ inline void BackwardConsumer<C>::first_step(Scores& S, int first, const KeyBlock& block,
                                                       const BackwardProblem& p, const BackwardScratch& scratch) {
    Scores dP;
    if constexpr (computes_D) { compute_D(block, p, scratch); }
    s.K_full[n % 2].wait(n / 2 % 2);
    init_dP(dP, t);
    load_slices<C::k_slices>(K, s.K[n % 2]);
    issue_S<skip>(S);
    s.V_full[0].wait(n % 2);
    load_slices<C::v_slices>(V, s.V[0]);
    if (V_in_registers) { arrive(s.V_empty[0]); }
    issue_dP<skip>(dP, t);
    compute_P_dS<skip, true>(S, dP, skip ? 64 : w * 64 - first * Br, block.j * Bc + w * 64);
}

// Works off the CTA's key blocks: dK, dV and the dQ tiles of consumer w. attention/PROTOCOL.md has the timeline of a block.
template <class C>
__device__ inline void BackwardConsumer<C>::run(const BackwardProblem& p, const BackwardScratch& scratch) {
    for (;; n++) {
        s.work_full[n % 2].wait(n / 2 % 2);
        const KeyBlock block = posted_key_block<C>(s, n);
        arrive(s.work_empty[n % 2]);
        if (block.none()) { break; }
        // Query offsets of the first and the last step, and the change from a step to the next.
        const int end = block.steps<C>(p) - 1, first = block.reversed ? end : 0, last = end - first;
        const int sign = block.reversed ? -1 : 1;
        auto chain = [&](int offset) { return DqChain(block.j, sign < 0, offset / C::steps_per_block); };
        auto finish_step = [&](DqTile& dQ, int offset) { // after t++
            if constexpr (C::posts_chain) {
                finish_dQ(dQ, t - 1, PostedChain<C>{s, C::dq_buffer(t - 1, w)});
            } else {
                finish_dQ(dQ, t - 1, chain(offset));
                store_dq_sums(dQ, chain(offset), block, offset, p, scratch);
            }
        };
        Scores S; // of step t; after compute_P_dS(): P and dS
        if (block.reversed) {
            first_step<false, false>(S, first, block, p, scratch);
        } else if (w == 0) {
            first_step<false, C::computes_D>(S, 0, block, p, scratch);
        } else {
            first_step<true, C::computes_D>(S, 0, block, p, scratch);
        }
#pragma unroll
        for (int i = 0; i < HS / 2; i++) { dK[i] = 0, dV[i] = 0; }
        int offset = first; // of step t
#pragma unroll 1
        for (; offset != last; offset += sign) { // ends step t, begins step t + 1
            Scores dP;
            if (w == 1 && offset == 0) {
                issue_gradients<true>(S);
            } else {
                issue_gradients(S);
            }
            wgmma_wait_group<0>();
            finish_gradients(); // t++
            issue_S(S);
            DqTile dQ;
            issue_dQ(dQ, t - 1, n);
            wgmma_wait_group<0>();
            fence_operand(S);
            finish_step(dQ, offset);
            init_dP(dP, t);
            issue_dP(dP, t);
            compute_P_dS(S, dP, w * 64 - (offset + sign) * Br, block.j * Bc + w * 64);
        }
        if (!V_in_registers) { arrive(s.V_empty[0]); } // the block's last dP has been computed
        issue_gradients(S);
        DqTile dQ;
        issue_dQ(dQ, t, n);
        wgmma_wait_group<0>();
        finish_gradients(); // t++
        finish_step(dQ, offset);
        s.dS_empty[(t - 1) % 2].wait((t - 1) / 2 % 2); // the other consumer, too, has done with dS and K
        const uint32_t rows = w * 64 * C::box_row;
        store_tile(shared_address(s.dS) + rows, Bc * C::box_row, dV, 1);
        store_tile(shared_address(s.K[n % 2]) + rows, Bc * C::box_row, dK, C::scale);
        arrive(s.dKV_full[w]);
    }
}

} // namespace wgmma

#endif
