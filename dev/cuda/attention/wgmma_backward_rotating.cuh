/*
Three consumers, which compute dQ of the steps in rotation, a step later: together they keep the tensor cores busy, and none
waits for GEMMs of the others. attention/PROTOCOL.md has the timeline.
*/
#ifndef WGMMA_BACKWARD_ROTATING_CUH
#define WGMMA_BACKWARD_ROTATING_CUH

#include "wgmma_backward_consumer.cuh"

namespace wgmma {

// All of dQ of step t of work item n.
template <class C> __device__ inline void BackwardConsumer<C>::compute_dQ(uint32_t t, uint32_t n) {
    DqTile dQ;
    issue_dQ(dQ, t, n);
    wgmma_wait_group<0>();
    finish_dQ(dQ, t, PostedChain<C>{s, C::dq_buffer(t, w)});
}
// As compute_P_dS(), in one loop, which takes fewer registers: the other two consumers have GEMMs under way meanwhile.
template <class C> __device__ inline void
BackwardConsumer<C>::compute_P_dS_at_once(Scores& S, const Scores& dP, int key_minus_query, int first_key) {
    const float4* lse = reinterpret_cast<const float4*>(s.lse[t % 2]) + lane() % 4;
    float4 next = lse[0];
    wgmma_wait_group<0>();
    fence_operand(S);
    fence_operand(const_cast<Scores&>(dP));
    if (key_minus_query > -64) { mask_transposed(S, key_minus_query); }
    mask_documents(S, first_key);
    s.dS_empty[t % 2].wait(t / 2 % 2 ^ 1);
    const uint32_t row = shared_address(s.dS[t % 2]) + (w * 64 + warp() * 16 + lane() % 16) * C::box_row;
#pragma unroll
    for (int k = 0; k < N; k++) {
        const float4 u = next;
        if (k + 1 < N) { next = lse[4 * (k + 1)]; }
        const float x[4] = {u.x, u.y, u.z, u.w};
        float P[8];
        uint32_t dS[4];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            P[i] = ex2_approx_ftz(fmaf(S[8 * k + i], C::scale * LOG2_E, -x[i / 4 * 2 + i % 2]));
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            S[8 * k + i] = __uint_as_float(mma::cvt_rn_x2(P[2 * i], P[2 * i + 1]));
            dS[i] = mma::cvt_rn_x2(P[2 * i] * dP[8 * k + 2 * i], P[2 * i + 1] * dP[8 * k + 2 * i + 1]);
            S[8 * k + 4 + i] = __uint_as_float(dS[i]);
        }
        const uint32_t chunk = (k * 2 + lane() / 16) ^ lane() % 8;
        mma::stmatrix_x4(row + chunk * 16, dS[0], dS[1], dS[2], dS[3]);
    }
    arrive(s.dS_full[t % 2]);
}
// A step whose scores are all above the diagonal, or of keys of other documents: dS = 0, for dQ.
template <class C> __device__ inline void BackwardConsumer<C>::skip_step() {
    s.Q_full[t % 2].wait(t / 2 % 2);
    s.dO_full[t % 2].wait(t / 2 % 2);
    s.dS_empty[t % 2].wait(t / 2 % 2 ^ 1);
    const uint32_t zero[N][4] = {};
    store_fragments(shared_address(s.dS[t % 2]) + w * 64 * C::box_row, Bc * C::box_row, zero);
    arrive(s.dS_full[t % 2]);
}
// The step at query offset `offset`: dV and dK.
template <class C> __device__ inline void BackwardConsumer<C>::compute_step(int offset, int first_key) {
    Scores S, dP;
    init_dP(dP, t);
    issue_S(S);
    issue_dP(dP, t);
    compute_P_dS_at_once(S, dP, (w - offset) * 64, first_key);
    issue_gradients(S);
    wgmma_wait_group<0>();
}

template <class C>
__device__ inline void BackwardConsumer<C>::run_rotating(const CUtensorMap* dqkv, const BackwardProblem& p) {
    const bool storer = mma::mov_tid_x() % WARPGROUP_SIZE == 0; // stores dV and dK of the consumer
    const uint32_t rows = w * 64 * C::box_row;
    int turn = 0; // the consumer that computes the next dQ
    for (;; n++) {
        s.work_full[n % 2].wait(n / 2 % 2);
        const KeyBlock block = posted_key_block<C>(s, n);
        if (block.none()) { break; }
        const int end = block.steps<C>(p) - 1, first = block.reversed ? end : 0, last = end - first;
        const int sign = block.reversed ? -1 : 1;
#pragma unroll
        for (int i = 0; i < HS / 2; i++) { dK[i] = 0, dV[i] = 0; }
        s.K_full[n % 2].wait(n / 2 % 2);
        s.V_full[n % 2].wait(n / 2 % 2);
#pragma unroll 1
        for (int offset = first;; offset += sign) {
            const bool begins = offset == first && n > 0; // the last dQ of the work item before is still to come
            if (begins) {
                if (storer) {
                    cp_async_bulk_wait_group_read<0>();
                    s.V_empty[(n - 1) % 2].arrive();
                }
                bar_sync(C::BAR_OUTPUT + w, WARPGROUP_SIZE); // dK has left s.dS
            }
            const int first_key = C::documents ? KeyBlock(s.key_block[n % 2]).j * Bc + w * 64 : 0;
            if (offset < w || sees_no_key(first_key)) {
                skip_step();
            } else {
                compute_step(offset, first_key);
            }
            finish_gradients(); // t++
            if (offset != first || n > 0) {
                if (turn == w) {
                    compute_dQ(t - 2, begins ? n - 1 : n);
                    if (begins) { arrive(s.K_empty[(n - 1) % 2]); }
                }
                turn = turn + 1 < C::warpgroups ? turn + 1 : 0;
            }
            if (offset == last) { break; }
        }
        // dV and dK go where V, and dS of step t - 2, have been: that one's dQ may be another consumer's. At t = 1 the
        // parity is 1, which a new barrier passes at once.
        store_tile(shared_address(s.V[n % 2]) + rows, Bc * C::box_row, dV, 1);
        s.dS_empty[t % 2].wait((t - 2) / 2 % 2);
        store_tile(shared_address(s.dS[t % 2]) + rows, Bc * C::box_row, dK, C::scale);
        fence_proxy_async();
        bar_sync(C::BAR_OUTPUT + w, WARPGROUP_SIZE);
        if (storer) {
            const KeyBlock block(s.key_block[n % 2]); // read again: it would take registers meanwhile
            const int key = block.j * Bc + w * 64, h = block.h(p), b = block.b(p);
            cp_async_bulk_tensor(dqkv, 0, 2 * p.NH.d + h, key, b, shared_address(s.V[n % 2]) + rows,
                                 createpolicy_evict_first());
            cp_async_bulk_tensor(dqkv, 0, p.NH.d + h, key, b, shared_address(s.dS[t % 2]) + rows,
                                 createpolicy_evict_first());
            cp_async_bulk_commit_group();
        }
        arrive(s.work_empty[n % 2]);
    }
    if (n > 0 && turn == w) { compute_dQ(t - 1, n - 1); } // the last dQ of all
    if (storer) { cp_async_bulk_wait_group<0>(); }
}

} // namespace wgmma

#endif
