/*
Warpgroup 0 of attention_backward_wgmma.cu: four threads of four warps. Two producers, which load by TMA, and two dQ writers.
*/
#ifndef WGMMA_BACKWARD_WRITERS_CUH
#define WGMMA_BACKWARD_WRITERS_CUH

#include "wgmma_backward_tiles.cuh"

namespace wgmma {

// Key block n of this CTA, which a producer has taken: for the other roles of this warpgroup.
template <class C> __device__ inline KeyBlock receive_key_block(typename C::Shared& s, uint32_t n) {
    s.work_full[n % 2].wait(n / 2 % 2);
    const KeyBlock block = posted_key_block<C>(s, n);
    s.work_empty[n % 2].arrive();
    return block;
}
// TMA loads of a tile (rows, HS) of `head` in batch row b, from token `row` on. in_parts: `map` has parts of heads for heads.
// once: no other CTA reads it, so that L2 may drop it first.
template <bool once, bool in_parts, int boxes, int box_elements> __device__ inline void
load_tile(floatX (&tile)[boxes][box_elements], const CUtensorMap* map, int head, int row, int b, Mbarrier& full) {
#pragma unroll
    for (int x = 0; x < boxes; x++) {
        const int channel = in_parts ? 0 : x * 64, h = in_parts ? head * boxes + x : head;
#pragma unroll
        for (int r = 0; r < box_elements / 64; r += 64) {
            const uint32_t box = shared_address(tile[x]) + r * 128;
            if (once) {
                cp_async_bulk_tensor(box, map, channel, h, row + r, b, full, createpolicy_evict_first());
            } else {
                cp_async_bulk_tensor(box, map, channel, h, row + r, b, full);
            }
        }
    }
}

// A producer thread. loads_qk: takes the work items, loads K, Q and lse; otherwise loads V, dO and -D. kv: qkv in parts of
// heads.
template <class C, bool loads_qk> __device__ inline void produce(typename C::Shared& s, const CUtensorMap* qkv,
                                                                 const CUtensorMap* kv, const CUtensorMap* dout,
                                                                 const CUtensorMap* out, const BackwardProblem& p,
                                                                 const BackwardScratch& scratch) {
    // The statistics kernel has ended: lse, its rows of minus_D and all counts are there. The other roles begin with a work
    // item from here, and need no wait of their own.
    griddepcontrol_wait();
    uint32_t t = 0; // step, over all work items
    for (uint32_t n = 0;; n++) {
        KeyBlock block(make_int2(0, 0));
        if (loads_qk) {
            s.work_empty[n % 2].wait(n / 2 % 2 ^ 1);
            block = KeyBlock(KeyBlock(atomicAdd(scratch.work_counter, 1), p).packed());
            s.key_block[n % 2] = block.packed();
            if constexpr (C::documents) {
                if (!block.none()) {
                    block.document_steps = __ldcg(scratch.steps + (int64_t)block.b(p) * p.key_blocks + block.j);
                }
                s.steps[n % 2] = block.document_steps;
            }
            s.work_full[n % 2].arrive();
        } else {
            block = receive_key_block<C>(s, n);
        }
        if (block.none()) { break; }
        const int h = block.h(p), b = block.b(p), steps = block.steps<C>(p);
        for (int i = 0; i < steps; i++, t++) {
            int row = block.j * C::Bc + block.query_offset<C>(i, p) * C::Br;
            Mbarrier& full = (loads_qk ? s.Q_full : s.dO_full)[t % 2];
            (loads_qk ? s.Q_empty : s.dO_empty)[t % 2].wait(t / 2 % 2 ^ 1);
            // Where the consumers compute D: of the first step from O; of the others other key blocks have computed it.
            const bool computed = !loads_qk && C::computes_D && !block.reversed, from_O = computed && i == 0;
            constexpr int start_bytes = loads_qk ? 4 * C::shared_starts : 0;
            const int* starts = scratch.starts + (int64_t)b * p.padded_T + row;
            if constexpr (start_bytes > 0) { s.all_starts[t % 2] = starts; }
            full.expect_tx(C::Br * (C::boxes * C::box_row + (from_O ? 0 : 4)) + start_bytes);
            load_tile<false, false>((loads_qk ? s.Q : s.dO)[t % 2], loads_qk ? qkv : dout, h, row, b, full);
            if constexpr (!loads_qk && C::computes_D) {
                if (from_O) {
                    s.O_empty.wait(n % 2 ^ 1);
                    s.O_full.expect_tx(C::Br * C::boxes * C::box_row);
                    load_tile<true, false>(s.O, out, h, row, b, s.O_full);
                } else if (computed) {
                    while (ld_acquire_gpu(scratch.D_ready + (int64_t)block.head * p.key_blocks + row / C::Bc) == 0) {}
                    fence_proxy_async_global(); // -D was written by the generic proxy, and is read by TMA
                }
            }
            if (!from_O) {
                cp_async_bulk(shared_address((loads_qk ? s.lse : s.minus_D)[t % 2]),
                              (loads_qk ? scratch.lse : scratch.minus_D) + (int64_t)block.head * p.padded_T + row,
                              C::Br * 4, full);
            }
            if constexpr (start_bytes > 0) {
                cp_async_bulk(shared_address(s.starts[t % 2]), starts + C::Br - C::shared_starts, start_bytes, full);
            }
            if (i == 0) { // K and V after the first Q and dO, whose stages are free earlier
                constexpr int stages = loads_qk ? 2 : C::v_stages;
                (loads_qk ? s.K_empty : s.V_empty)[n % stages].wait(n / stages % 2 ^ 1);
                Mbarrier& full = (loads_qk ? s.K_full : s.V_full)[n % stages];
                full.expect_tx(C::Bc * C::boxes * C::box_row);
                load_tile<true, true>((loads_qk ? s.K : s.V)[n % stages], kv, (loads_qk ? 1 : 2) * p.NH.d + h,
                                      block.j * C::Bc, b, full);
            }
        }
    }
}

// The dQ writer thread of consumer w, or, with rotating_dq, of every other step: adds dQ tiles to the accumulators in scratch,
// or stores the complete ones to dqkv; without rotating_dq it also stores w's rows of dK and dV at the end of a key block.
// Keeps CTAs in the order of the chain: a contribution is written once dq_counts says that those before it have been, and
// released by a count of one more. dq: dqkv in parts of heads.
template <class C> __device__ inline void write_dq(typename C::Shared& s, const CUtensorMap* dqkv,
                                                   const CUtensorMap* dq, const BackwardProblem& p,
                                                   const BackwardScratch& scratch, int w) {
    // Of a dQ tile: a tile has 12 KB of accumulators or more, so an int counts those of any memory, in fewer registers.
    typedef typename std::conditional<C::documents, int, int64_t>::type Index;
    const uint32_t dQ = shared_address(s.dQ[w]);
    uint32_t t = 0; // step, over all work items
    for (uint32_t n = 0;; n++) {
        const KeyBlock block = receive_key_block<C>(s, n);
        if (block.none()) { break; }
        const int h = block.h(p), b = block.b(p), steps = block.steps<C>(p);
        int added = 0;
        bool ready = false; // the consumer has been told that s.dQ[w] is free
        Index count = -1;   // of the last step: released after dK and dV have been issued
        auto chain_at = [&](int offset) {
            int first = 0;
            if constexpr (C::documents) { // the query block's first query sees the first key block
                first = __ldcg(scratch.starts + (int64_t)b * p.padded_T + block.j * C::Bc + offset * C::Br) / C::Bc;
            }
            return DqChain(block.j, block.reversed, offset / C::steps_per_block, first);
        };
        // What the consumer must know before it is told that s.dQ[w] is ready; dq_source is set later where it is to be read
        auto post = [&](const DqChain& chain) { s.dq_last[w] = chain.last(), s.dq_source[w] = nullptr; };
        for (int i = 0; i < steps; i++, t++) {
            if (C::rotating_dq && t % 2 != (uint32_t)w) { continue; }
            const int offset = block.query_offset<C>(i, p);
            const DqChain chain = chain_at(offset);
            const Index dq_tile =
                (Index)((int64_t)block.head * p.padded_T / C::Br + block.j * C::steps_per_block + offset) *
                    C::dq_tiles +
                (C::rotating_dq ? 0 : w);
            auto wait_count = [&](int which, int n) { // until accumulator `which` holds n key blocks
                while (ld_acquire_gpu(scratch.dq_counts + which * p.dq_tiles + dq_tile) < n) {}
                fence_proxy_async_global(); // the count was read by the generic proxy, the accumulator is read by TMA
            };
            auto accumulator = [&](int which) {
                return scratch.dq_accumulators + (which * p.dq_tiles + dq_tile) * C::dq_elements;
            };
            auto wait_dQ = [&] { // until the consumer has stored its dQ tile, which TMA is to read
                s.dQ_full[w].wait(C::dq_use(t) % 2);
                fence_proxy_async();
            };
            if (C::posts_chain && !ready) { post(chain); }
            if (chain.reads()) {
                wait_count(chain.read_accumulator(), chain.read_count());
                s.dq_source[w] = accumulator(chain.read_accumulator());
                s.dQ_ready[w].expect_tx(C::dq_bytes);
                cp_async_bulk(dQ, accumulator(chain.read_accumulator()), C::dq_bytes, s.dQ_ready[w]);
            } else if (!ready) {
                s.dQ_ready[w].arrive();
            }
            ready = false;
            if (chain.last()) {
                wait_dQ();
                int row = block.j * C::Bc + offset * C::Br;
                const int queries = C::HS == 64 && !C::rotating_dq ? w * 64 : 0, part = C::HS == 64 ? 0 : w;
                cp_async_bulk_tensor(dq, 0, h * C::parts + part, row + queries, b, dQ, createpolicy_evict_first());
                cp_async_bulk_commit_group();
                if (C::rotating_dq || i + 1 < steps) { cp_async_bulk_wait_group_read<0>(); }
                continue;
            }
            const int into = chain.accumulator(), before = chain.accumulator_count();
            if (before > 0) { wait_count(into, before); }
            wait_dQ();
            if (before > 0) {
                cp_reduce_async_bulk_add(accumulator(into), dQ, C::dq_bytes);
            } else {
                cp_async_bulk(accumulator(into), dQ, C::dq_bytes);
            }
            cp_async_bulk_commit_group();
            if (C::rotating_dq) {
                cp_async_bulk_wait_group<0>();
                fence_proxy_async_global();
                st_release_gpu(scratch.dq_counts + into * p.dq_tiles + dq_tile, before + 1);
            } else if (i + 1 < steps) {
                const DqChain next = chain_at(block.query_offset<C>(i + 1, p));
                if (!next.reads()) { // s.dQ[w] is free once TMA has read it; the count needs the write to have ended
                    cp_async_bulk_wait_group_read<0>();
                    if (C::posts_chain) { post(next); }
                    s.dQ_ready[w].arrive();
                    ready = true;
                }
                cp_async_bulk_wait_group<0>();
                fence_proxy_async_global();
                st_release_gpu(scratch.dq_counts + into * p.dq_tiles + dq_tile, before + 1);
            } else {
                count = (Index)(into * p.dq_tiles + dq_tile), added = before + 1;
            }
        }
        if (C::rotating_dq) { continue; }
        s.dKV_full[w].wait(n % 2);
        fence_proxy_async();
        auto store = [&](const void* tile, int head) { // of dqkv: the consumer's 64 rows
#pragma unroll
            for (int x = 0; x < C::boxes; x++) {
                cp_async_bulk_tensor(dqkv, x * 64, head, block.j * C::Bc + w * 64, b,
                                     shared_address(tile) + (x * C::Bc + w * 64) * C::box_row,
                                     createpolicy_evict_first());
            }
            cp_async_bulk_commit_group();
        };
        store(s.dS, 2 * p.NH.d + h); // dV, whose buffer is needed first
        store(s.K[n % 2], p.NH.d + h);
        cp_async_bulk_wait_group_read<1>();
        s.dKV_empty.arrive();
        if (count >= 0) { // the reduce-add of the last step had the time until here
            cp_async_bulk_wait_group<2>();
            fence_proxy_async_global();
            st_release_gpu(scratch.dq_counts + count, added);
        }
        cp_async_bulk_wait_group_read<0>();
        s.K_empty[n % 2].arrive();
    }
    cp_async_bulk_wait_group<0>();
}

} // namespace wgmma

#endif
