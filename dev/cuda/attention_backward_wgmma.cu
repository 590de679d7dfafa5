/*
FlashAttention backward on Hopper: one kernel, five GEMMs a tile, and dQ summed in a fixed order.

    S = Q K^T / sqrt(HS)    P = exp(S - m) / l      dP = dO V^T              D = rowsum(dO o O)    dS = P o (dP - D)
    dV = P^T dO             dK = dS^T Q / sqrt(HS)  dQ = dS K / sqrt(HS)

A CTA owns a block of 128 or 192 keys and loops over the query blocks that attend to them. Against mma (2 kernels, 7 GEMMs):
- S^T = K Q^T and dP^T = V dO^T by wgmma; so P^T and dS^T are operand A of dV and dK in the registers that they are computed
  in. Only dS passes through shared memory, because dQ = dS K needs the keys of all warpgroups.
- dQ is added to fp32 accumulators in scratch by TMA reduce-add, in the order in which CTAs took the key blocks from the
  work counter (DqChain): the same bits always, and a CTA waits only for work that was taken before its own.
- D of a key block's own queries is computed by its consumers: dout is read once. Masked 64 x 64 scores are skipped.
Roles: two producer threads, two dQ writer threads, two or three consumer warpgroups. attention/PROTOCOL.md draws them:
timeline, dQ chain, barriers. Papers: Dao, FlashAttention-2 (2023), algorithm 2; Shah et al., FlashAttention-3 (2024).
*/
#include "attention/attention.h"
#include "attention/key_blocks.cuh"
#include "llmc/cuda/hopper.cuh"
#include "llmc/cuda/mma.cuh"
#include "bench/wgmma_columns.cuh"

namespace wgmma {

using namespace hopper;

// A configuration. CONSUMERS: warpgroups with 64 keys of a block each. Two compute a tile of each step's dQ each. Three take
// the steps in rotation, and dQ a step later, be it in the next key block: a block of 192 keys loads Q and dO, and adds to dQ,
// two thirds as often, and three consumers keep the tensor cores busy without waiting for each other's GEMMs.
template <int HS_, int CONSUMERS> struct BackwardTiles {
    static constexpr int HS = HS_;
    static constexpr bool rotating_dq = CONSUMERS == 3;
    // D of a key block's own queries is computed by its consumers; of the heads whose order is reversed, and of all where there
    // is no room for a tile of O, by the statistics kernel.
    static constexpr bool computes_D = HS == 64 && !rotating_dq;
    static constexpr int warpgroups = CONSUMERS, Bc = 64 * warpgroups; // keys of a block, 64 for each consumer
    static constexpr int writers = 2;                                  // dQ writers
    static constexpr int threads = (warpgroups + 1) * WARPGROUP_SIZE;  // warpgroup 0: producers and dQ writers
    // setmaxnreg; the kernel starts with as many registers for each thread as divide an SM's evenly.
    static constexpr int producer_registers = rotating_dq ? 32 : 40, consumer_registers = rotating_dq ? 160 : 232;
    static_assert(producer_registers + warpgroups * consumer_registers <= (warpgroups + 1) * (65536 / threads / 8 * 8),
                  "");
    // The dQ tile that a warpgroup computes: of 64 queries. HS = 64: half of the queries of a step, all channels; HS = 96 and
    // 128: all queries of a step, half of the channels.
    static constexpr int dq_channels = HS == 64 ? 64 : HS / 2, parts = HS / dq_channels;
    static constexpr int dq_elements = 64 * dq_channels, dq_bytes = dq_elements * sizeof(float);
    // A TMA box is 64 rows of 64 channels, of 128 bytes; of K and V, and of dQ, a part of a head: at HS = 96 a quarter is 0.
    static constexpr int boxes = CEIL_DIV(HS, 64), box_row = 128;
    static_assert(boxes == parts, "");
    static constexpr int dq_tiles = rotating_dq ? 1 : warpgroups; // of a step
    static constexpr int Br = dq_tiles * dq_elements / HS;        // queries of a step
    static constexpr int v_stages = rotating_dq ? 2 : 1;
    // Slices of 16 channels (a wgmma's K extent): in a box; and of K and V, operand A of S and dP, those kept in registers
    static constexpr int box_slices = dq_channels / 16;
    static constexpr int k_slices = HS == 96 ? 3 : 0, v_slices = HS == 96 ? 6 : HS == 128 ? 2 : 0;
    static constexpr int steps_per_block = Bc / Br; // query blocks that a key block's own positions have
    static_assert(!rotating_dq || HS == 64, "dK is in a stage of dS");
    // The buffer of consumer w's dQ tile of step t, and which use of it that is: a buffer for each tile of a step, or for every
    // other step.
    static __device__ uint32_t dq_buffer(uint32_t t, int w) { return rotating_dq ? t % 2 : w; }
    static __device__ uint32_t dq_use(uint32_t t) { return rotating_dq ? t / 2 : t; }
    // Heads whose key blocks are interleaved re-read Q and dO and update dQ accumulators, which should stay in L2: together
    // they may have so many bytes, counted as 8 for each of T * HS elements of a head. Tuned on an H200 (dev/LOG.md).
    static constexpr int group_bytes = HS == 64 ? 14 << 20 : 2 << 20;
    static constexpr float scale = mma::inverse_sqrt(HS);

    struct Shared {
        // Tiles in boxes of 64 columns, swizzled by TMA. [2]: two stages; K and V of work item n, the others of step t % 2.
        // At the end of a key block dV is in dS and dK in K; with rotating_dq dV is in V and dK in dS.
        floatX K[2][boxes][Bc * 64], V[v_stages][boxes][Bc * 64]; // (Bc, HS)
        floatX Q[2][boxes][Br * 64], dO[2][boxes][Br * 64];       // (Br, HS)
        floatX dS[2][Br / 64][Bc * 64];                           // dS^T (Bc, Br)
        floatX O[boxes][computes_D ? Br * 64 : 0];                // (Br, HS), of the first step
        alignas(1024) float dQ[writers][dq_elements];             // dQ tiles: fp32, or the final 16-bit one
        float lse[2][Br], minus_D[2][Br];                         // (Br), as statistics_row() permutes them
        // Barriers; attention/PROTOCOL.md has the table of who arrives and who waits.
        Mbarrier K_full[2], K_empty[2], V_full[v_stages], V_empty[v_stages];
        Mbarrier Q_full[2], Q_empty[2], dO_full[2], dO_empty[2];
        Mbarrier dS_full[2], dS_empty[2];
        Mbarrier dQ_full[writers], dQ_ready[writers], dKV_full[writers], dKV_empty;
        Mbarrier O_full, O_empty, work_full[2], work_empty[2];
        int2 key_block[2]; // KeyBlock::packed() of the work items that a producer has taken, for all roles
        const float* dq_source[writers]; // the accumulator in scratch whose copy is in dQ; rotating_dq: or nullptr
        bool dq_last[writers];           // rotating_dq: whether dQ is complete then
    };
    static constexpr size_t shared_bytes = sizeof(Shared);

    // Named barriers (bar.sync; id 0 is __syncthreads). Consumer w uses id + w.
    enum NamedBarrier {
        BAR_DQ_READ = 1, // 128 threads of consumer w: all have read the accumulator in s.dQ
        BAR_OUTPUT =
            BAR_DQ_READ + warpgroups,   // 128 threads of consumer w: dV and dK are in shared memory, or have left it
        BAR_D = BAR_OUTPUT + warpgroups // 256: both consumers have stored their rows of -D
    };
};

constexpr int padded_rows = 128; // scratch has a multiple of so many rows for each head

// Scratch. A dQ tile is the part of a query block's dQ that one warpgroup computes.
struct BackwardScratch {
    float* dq_accumulators; // (2, dq_tiles, dq_elements), elements in the order of the warpgroup's registers
    float* lse;     // (heads, padded T): log2(l) + m log2(e), permuted by statistics_row(); inf past T, so that P = 0
    float* minus_D; // (heads, padded T): -rowsum(dO o O), permuted likewise
    int* dq_counts; // (2, dq_tiles): how many key blocks have been added to the accumulator
    int* D_ready;   // (heads, key_blocks): 1 once the consumers of this key block have stored -D of its queries
    int* work_counter; // how many work items have been taken
    float* dq_sums;    // not in scratch: an output (dq_sum_rows(), NH * HS), or NULL
};
// The sizes of a launch.
struct BackwardProblem : KeyBlockOrder {
    int T, padded_T;
    int64_t dq_tiles; // of all heads
};

// The position of a query's statistics among those of 16 queries: rows 2c, 2c + 1, 2c + 8 and 2c + 9, which a thread with
// lane % 4 = c needs for the columns of its wgmma accumulator, become neighbours, one float4.
__host__ __device__ inline int statistics_row(int row) { return row % 8 / 2 * 4 + row / 8 * 2 + row % 2; }

// The position of key block j in the chain of those that contribute to the dQ of a query block, in the order of the work
// counter: dQ = sum of dS_j K_j over j = 0 .. jq, where key block jq holds the diagonal and behind = jq - j.
// Two accumulators in scratch alternate along the chain, so that a reduce-add may take the time of two steps. The first
// contribution to an accumulator is stored, the others are added. The last but one adds accumulator 1 to its own dQ and both
// to accumulator 0; the last one adds accumulator 0 to its own dQ, which completes it. attention/PROTOCOL.md has the table.
struct DqChain {
    int before, after; // number of key blocks in the chain before and after j
    __host__ __device__ DqChain(int j, bool reversed, int behind)
        : before(reversed ? j : behind), after(reversed ? behind : j) {}
    __host__ __device__ bool last() const { return after == 0; }
    // The accumulator that j's contribution goes to (not where j is last), and how many contributions it must hold by then.
    __host__ __device__ int accumulator() const { return after == 1 ? 0 : after % 2; }
    __host__ __device__ int accumulator_count() const { return after == 1 ? (before + 1) / 2 : before / 2; }
    // Whether an accumulator is added to j's own dQ, which one, and how many contributions it must hold by then.
    __host__ __device__ bool reads() const { return after < 2 && before > after; }
    __host__ __device__ int read_accumulator() const { return after; }
    __host__ __device__ int read_count() const { return after == 1 ? before / 2 : before / 2 + 1; }
};

// ----------------------------------------------------------------------------
// Warpgroup 0: four threads of four warps. Two producers and a dQ writer for each consumer.

// Key block n of this CTA, packed, which a producer has taken: for all other roles.
template <class C> __device__ inline int2 receive_key_block(typename C::Shared& s, uint32_t n) {
    s.work_full[n % 2].wait(n / 2 % 2);
    int2 packed = s.key_block[n % 2];
    s.work_empty[n % 2].arrive();
    return packed;
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
        int2 packed;
        if (loads_qk) {
            s.work_empty[n % 2].wait(n / 2 % 2 ^ 1);
            packed = KeyBlock(atomicAdd(scratch.work_counter, 1), p).packed();
            s.key_block[n % 2] = packed;
            s.work_full[n % 2].arrive();
        } else {
            packed = receive_key_block<C>(s, n);
        }
        const KeyBlock block(packed);
        if (block.none()) { break; }
        const int h = block.h(p), b = block.b(p), steps = block.steps<C>(p);
        for (int i = 0; i < steps; i++, t++) {
            int row = block.j * C::Bc + block.query_offset<C>(i, p) * C::Br;
            Mbarrier& full = (loads_qk ? s.Q_full : s.dO_full)[t % 2];
            (loads_qk ? s.Q_empty : s.dO_empty)[t % 2].wait(t / 2 % 2 ^ 1);
            // Where the consumers compute D: of the first step from O; of the others other key blocks have computed it.
            const bool computed = !loads_qk && C::computes_D && !block.reversed, from_O = computed && i == 0;
            full.expect_tx(C::Br * (C::boxes * C::box_row + (from_O ? 0 : 4)));
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
    const uint32_t dQ = shared_address(s.dQ[w]);
    uint32_t t = 0; // step, over all work items
    for (uint32_t n = 0;; n++) {
        const KeyBlock block(receive_key_block<C>(s, n));
        if (block.none()) { break; }
        const int h = block.h(p), b = block.b(p), steps = block.steps<C>(p);
        bool ready = false;              // the consumer has been told that s.dQ[w] is free
        int *count = nullptr, added = 0; // of the last step: released after dK and dV have been issued
        for (int i = 0; i < steps; i++, t++) {
            if (C::rotating_dq && t % 2 != (uint32_t)w) { continue; }
            const int offset = block.query_offset<C>(i, p);
            const DqChain chain(block.j, block.reversed, offset / C::steps_per_block);
            const int64_t dq_tile =
                ((int64_t)block.head * p.padded_T / C::Br + block.j * C::steps_per_block + offset) * C::dq_tiles +
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
            if constexpr (C::rotating_dq) { s.dq_last[w] = chain.last(), s.dq_source[w] = nullptr; }
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
                const DqChain next(block.j, block.reversed, block.query_offset<C>(i + 1, p) / C::steps_per_block);
                if (!next.reads()) { // s.dQ[w] is free once TMA has read it; the count needs the write to have ended
                    cp_async_bulk_wait_group_read<0>();
                    s.dQ_ready[w].arrive();
                    ready = true;
                }
                cp_async_bulk_wait_group<0>();
                fence_proxy_async_global();
                st_release_gpu(scratch.dq_counts + into * p.dq_tiles + dq_tile, before + 1);
            } else {
                count = scratch.dq_counts + into * p.dq_tiles + dq_tile;
                added = before + 1;
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
        if (count) { // the reduce-add of the last step had the time until here
            cp_async_bulk_wait_group<2>();
            fence_proxy_async_global();
            st_release_gpu(count, added);
        }
        cp_async_bulk_wait_group_read<0>();
        s.K_empty[n % 2].arrive();
    }
    cp_async_bulk_wait_group<0>();
}

// ----------------------------------------------------------------------------
// The consumers

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
    // -D = -rowsum(dO o O) of the key block's own queries, two threads a row: to shared memory for its first step, and to
    // scratch for the key blocks before it.
    __device__ void compute_D(const KeyBlock& block, const BackwardProblem& p, const BackwardScratch& scratch) {
        s.dO_full[t % 2].wait(t / 2 % 2);
        s.O_full.wait(n % 2);
        const int thread = w * WARPGROUP_SIZE + mma::mov_tid_x() % WARPGROUP_SIZE, r = thread / 2;
        float sum = 0;
#pragma unroll
        for (int i = 0; i < HS / 16; i++) { // TMA's 128-byte swizzle: 16-byte chunk c of row r is at c ^ (r % 8)
            const int chunk = r * 8 + ((thread % 2 * (HS / 16) + i) ^ r % 8);
            const x128 x = reinterpret_cast<const x128*>(s.dO[t % 2])[chunk],
                       y = reinterpret_cast<const x128*>(s.O)[chunk];
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

    // After finish_dQ(), where dQ is complete and its column sums are asked for: those over each warp's 16 queries. Not with
    // rotating_dq.
    __device__ void store_dq_sums(const DqTile& dQ, const DqChain& chain, const KeyBlock& block, int offset,
                                  const BackwardProblem& p, const BackwardScratch& scratch) {
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
    template <bool skip = false, bool first = false>
    __device__ void compute_P_dS(Scores& S, Scores& dP, int key_minus_query) {
        constexpr int ahead = skip ? 2 : 4; // loads of lse in flight; each takes 4 registers
        constexpr int begin = skip ? 4 : 0; // before it P and dS are 0
        const float4* lse = reinterpret_cast<const float4*>(s.lse[t % 2]) + lane() % 4;
        float4 next[ahead];
#pragma unroll
        for (int k = begin; k < min(begin + ahead, N); k++) { next[k % ahead] = lse[4 * k]; }
        wgmma_wait_group<1>(); // S is there; dP may be under way
        fence_operand(S);
        if (key_minus_query > -64) { mask_transposed(S, key_minus_query); }
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
    // S^T = -inf where the key is after the query.
    __device__ void mask_transposed(Scores& S, int key_minus_query) {
        int row = key_minus_query + (int)(warp() * 16 + lane() / 4) - (int)(lane() % 4 * 2);
#pragma unroll
        for (int i = 0; i < Br / 2; i++) {
            if (row + i / 2 % 2 * 8 > i / 4 * 8 + i % 2) { S[i] = -INFINITY; }
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

    // P and dS of a key block's first step, at the query offset `first`.
    template <bool skip, bool computes_D> __device__ void
    first_step(Scores& S, int first, const KeyBlock& block, const BackwardProblem& p, const BackwardScratch& scratch) {
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
        compute_P_dS<skip, true>(S, dP, skip ? 64 : w * 64 - first * Br);
    }

    // Works off the CTA's key blocks: dK, dV and the dQ tiles of consumer w. attention/PROTOCOL.md has the timeline of a block.
    __device__ void run(const BackwardProblem& p, const BackwardScratch& scratch) {
        for (;; n++) {
            s.work_full[n % 2].wait(n / 2 % 2);
            const KeyBlock block(s.key_block[n % 2]);
            arrive(s.work_empty[n % 2]);
            if (block.none()) { break; }
            // Query offsets of the first and the last step, and the change from a step to the next.
            const int end = block.steps<C>(p) - 1, first = block.reversed ? end : 0, last = end - first;
            const int sign = block.reversed ? -1 : 1;
            auto chain = [&](int offset) { return DqChain(block.j, sign < 0, offset / C::steps_per_block); };
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
                finish_dQ(dQ, t - 1, chain(offset));
                store_dq_sums(dQ, chain(offset), block, offset, p, scratch);
                init_dP(dP, t);
                issue_dP(dP, t);
                compute_P_dS(S, dP, w * 64 - (offset + sign) * Br);
            }
            if (!V_in_registers) { arrive(s.V_empty[0]); } // the block's last dP has been computed
            issue_gradients(S);
            DqTile dQ;
            issue_dQ(dQ, t, n);
            wgmma_wait_group<0>();
            finish_gradients(); // t++
            finish_dQ(dQ, t - 1, chain(offset));
            store_dq_sums(dQ, chain(offset), block, offset, p, scratch);
            s.dS_empty[(t - 1) % 2].wait((t - 1) / 2 % 2); // the other consumer, too, has done with dS and K
            const uint32_t rows = w * 64 * C::box_row;
            store_tile(shared_address(s.dS) + rows, Bc * C::box_row, dV, 1);
            store_tile(shared_address(s.K[n % 2]) + rows, Bc * C::box_row, dK, C::scale);
            arrive(s.dKV_full[w]);
        }
    }

    // The same with rotating_dq.

    // What finish_dQ() asks, as the dQ writer has found it, once s.dQ_ready says so.
    struct PostedChain {
        const typename C::Shared& s;
        uint32_t buffer;
        __device__ bool reads() const { return s.dq_source[buffer] != nullptr; }
        __device__ bool last() const { return s.dq_last[buffer]; }
    };
    // All of dQ of step t of work item n.
    __device__ void compute_dQ(uint32_t t, uint32_t n) {
        DqTile dQ;
        issue_dQ(dQ, t, n);
        wgmma_wait_group<0>();
        finish_dQ(dQ, t, PostedChain{s, C::dq_buffer(t, w)});
    }
    // As compute_P_dS(), in one loop, which takes fewer registers: the other two consumers have GEMMs under way meanwhile.
    __device__ void compute_P_dS_at_once(Scores& S, const Scores& dP, int key_minus_query) {
        const float4* lse = reinterpret_cast<const float4*>(s.lse[t % 2]) + lane() % 4;
        float4 next = lse[0];
        wgmma_wait_group<0>();
        fence_operand(S);
        fence_operand(const_cast<Scores&>(dP));
        if (key_minus_query > -64) { mask_transposed(S, key_minus_query); }
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
    // A step whose scores are all above the diagonal: dS = 0, for dQ.
    __device__ void skip_step() {
        s.Q_full[t % 2].wait(t / 2 % 2);
        s.dO_full[t % 2].wait(t / 2 % 2);
        s.dS_empty[t % 2].wait(t / 2 % 2 ^ 1);
        const uint32_t zero[N][4] = {};
        store_fragments(shared_address(s.dS[t % 2]) + w * 64 * C::box_row, Bc * C::box_row, zero);
        arrive(s.dS_full[t % 2]);
    }
    // The step at query offset `offset`: dV and dK.
    __device__ void compute_step(int offset) {
        Scores S, dP;
        init_dP(dP, t);
        issue_S(S);
        issue_dP(dP, t);
        compute_P_dS_at_once(S, dP, (w - offset) * 64);
        issue_gradients(S);
        wgmma_wait_group<0>();
    }

    __device__ void run_rotating(const CUtensorMap* dqkv, const BackwardProblem& p) {
        const bool storer = mma::mov_tid_x() % WARPGROUP_SIZE == 0; // stores dV and dK of the consumer
        const uint32_t rows = w * 64 * C::box_row;
        int turn = 0; // the consumer that computes the next dQ
        for (;; n++) {
            s.work_full[n % 2].wait(n / 2 % 2);
            const KeyBlock block(s.key_block[n % 2]);
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
                if (offset < w) {
                    skip_step();
                } else {
                    compute_step(offset);
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
};

// dqkv and qkv (B,T,3,NH,HS), dout and out (B,T,NH,HS) as TMA descriptors; dq and kv: dqkv and qkv again, in parts of heads,
// (B,T,3,NH * parts,dq_channels). One persistent CTA per SM.
template <class C> __global__ void __launch_bounds__(C::threads, 1)
    attention_backward_kernel(const __grid_constant__ CUtensorMap dqkv, const __grid_constant__ CUtensorMap dout,
                              const __grid_constant__ CUtensorMap qkv, const __grid_constant__ CUtensorMap out,
                              const __grid_constant__ CUtensorMap dq, const __grid_constant__ CUtensorMap kv,
                              const __grid_constant__ BackwardScratch scratch,
                              const __grid_constant__ BackwardProblem p) {
#if defined(HOPPER_DEVICE_CODE)
    extern __shared__ __align__(1024) char shared[];
    typename C::Shared& s = *reinterpret_cast<typename C::Shared*>(shared);
    // Arrivals that end a phase: of one consumer's 4 warps; of all consumers' warps; of all readers of a work item.
    constexpr int consumer = 4 * WARP_ARRIVALS, consumers = C::warpgroups * consumer;
    constexpr int work_readers = 1 + C::writers + consumers; // producer, dQ writers, consumer warps
    if (threadIdx.x == 0) {
        s.O_full.init(1), s.O_empty.init(consumers);
        s.dKV_empty.init(C::writers);
        for (int n = 0; n < C::v_stages; n++) {
            s.V_full[n].init(1), s.V_empty[n].init(C::rotating_dq ? C::warpgroups : consumers);
        }
        for (int n = 0; n < 2; n++) {
            s.K_full[n].init(1), s.K_empty[n].init(C::rotating_dq ? consumer : C::writers);
            s.Q_full[n].init(1), s.Q_empty[n].init(consumers), s.dO_full[n].init(1), s.dO_empty[n].init(consumers);
            s.dS_full[n].init(consumers), s.dS_empty[n].init(C::rotating_dq ? consumer : consumers);
            s.work_full[n].init(1), s.work_empty[n].init(work_readers);
        }
        for (int w = 0; w < C::writers; w++) {
            s.dQ_full[w].init(consumer), s.dQ_ready[w].init(1), s.dKV_full[w].init(consumer);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    int warpgroup = uniform(threadIdx.x / WARPGROUP_SIZE);
    if (warpgroup == 0) {
        setmaxnreg_dec<C::producer_registers>();
        int warp = threadIdx.x / WARP_SIZE;
        if (threadIdx.x % WARP_SIZE == 0) {
            if (warp == 0) { produce<C, true>(s, &qkv, &kv, &dout, &out, p, scratch); }
            if (warp == 1) { produce<C, false>(s, &qkv, &kv, &dout, &out, p, scratch); }
            if (warp > 1) { write_dq<C>(s, &dqkv, &dq, p, scratch, warp - 2); }
        }
    } else {
        setmaxnreg_inc<C::consumer_registers>();
        BackwardConsumer<C> consumer(s, warpgroup - 1);
        if constexpr (C::rotating_dq) {
            consumer.run_rotating(&dqkv, p);
        } else {
            consumer.run(p, scratch);
        }
    }
#endif
}

// The kernel in front.

// Stores lse = log2(l) + m log2(e) of a row of all heads' padded rows; inf past T.
__device__ inline void store_lse(float* lse, int64_t row, const float* l, const float* m, int T, int padded_T) {
    const int t = row % padded_T;
    const int64_t at = row / padded_T * T + min(t, T - 1);
    const float sum = __fmul_rn(m[at], LOG2_E) + mma::lg2_approx(l[at]); // rounded as in forward: P is the same
    lse[row / 16 * 16 + statistics_row(row % 16)] = t < T ? sum : INFINITY;
}
constexpr int lse_rows = 1024; // that a CTA takes where it computes no D
// lse of all rows, -D = -rowsum(dO o O) from row first_D_row (of all heads' padded rows) on, and all counts at 0. The first
// lse_ctas CTAs take lse_rows rows each, which get no D; the others 128 rows, from the last to the first, so that L2 holds
// dout of the first heads at the end. dout, out (B,T,NH,HS); l, m (B,NH,T). HS / 8 lanes read a row of dout and out, 16 bytes
// each; at HS = 96 four more do nothing.
template <int HS> __global__ void __launch_bounds__(256)
    attention_backward_statistics_kernel(const __grid_constant__ BackwardScratch scratch, const floatX* dout,
                                         const floatX* out, const float* l, const float* m, int T, int NH,
                                         int counts_per_block, unsigned lse_ctas, int64_t first_D_row) {
#if defined(HOPPER_DEVICE_CODE)
    griddepcontrol_launch_dependents();
    const int blocks = CEIL_DIV(T, padded_rows), padded_T = blocks * padded_rows;
    const bool only_lse = blockIdx.x < lse_ctas;
    const int64_t first_row =
        only_lse ? (int64_t)blockIdx.x * lse_rows : first_D_row + (int64_t)(gridDim.x - 1 - blockIdx.x) * padded_rows;
    const int64_t last_row = only_lse ? min(first_row + lse_rows, first_D_row) : first_row + padded_rows;
    const int64_t counts = last_row / padded_rows * counts_per_block;
    for (int64_t n = first_row / padded_rows * counts_per_block + threadIdx.x; n < counts; n += 256) {
        scratch.dq_counts[n] = 0;
    }
    if (blockIdx.x == 0 && threadIdx.x == 255) { *scratch.work_counter = 0; }
    if (only_lse) {
#pragma unroll
        for (int i = 0; i < lse_rows / 256; i++) {
            const int64_t row = first_row + i * 256 + threadIdx.x;
            if (row < last_row) { store_lse(scratch.lse, row, l, m, T, padded_T); }
        }
        return;
    }
    constexpr int lanes = HS == 96 ? 16 : HS / x128::size; // of a row
    constexpr int rows = 256 / lanes, passes = padded_rows / rows;
    const int head = first_row / padded_T, first = first_row % padded_T;
    const int64_t base = out_offset(head / NH, head % NH, T, NH, HS) + threadIdx.x % lanes * x128::size;
    x128 x[passes], y[passes];
#pragma unroll
    for (int i = 0; i < passes; i++) {
        int t = first + i * rows + threadIdx.x / lanes;
        int64_t at = base + (int64_t)min(t, T - 1) * NH * HS;
        if (HS == 96 && threadIdx.x % lanes >= HS / x128::size) { // its sum is 0
            x[i] = y[i] = {};
            continue;
        }
        x[i] = load128(dout + at);
        y[i] = load128_stream(out + at);
    }
    float* minus_D = scratch.minus_D + first_row;
    if (threadIdx.x < padded_rows) { store_lse(scratch.lse, first_row + threadIdx.x, l, m, T, padded_T); }
#pragma unroll
    for (int i = 0; i < passes; i++) {
        float sum = 0;
#pragma unroll
        for (int k = 0; k < x128::size; k++) { sum = fmaf((float)x[i][k], (float)y[i][k], sum); }
#pragma unroll
        for (int offset = lanes / 2; offset > 0; offset /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, offset); }
        int r = i * rows + threadIdx.x / lanes;
        if (threadIdx.x % lanes == 0) { minus_D[r / 16 * 16 + statistics_row(r % 16)] = first + r < T ? -sum : 0; }
    }
#endif
}

// ----------------------------------------------------------------------------
// Launchers

// Bytes of scratch: two fp32 accumulators of dQ, two statistics of each row, two counts of each dQ tile (64 queries by at most
// 64 channels), one of each 128 rows, and the work counter.
inline size_t backward_scratch_bytes(int B, int T, int NH, int HS) {
    const size_t rows = (size_t)B * NH * CEIL_DIV(T, padded_rows) * padded_rows;
    const size_t dq_tiles = rows / 64 * CEIL_DIV(HS, 64);
    return rows * (2 * HS + 2) * sizeof(float) + (dq_tiles * 2 + rows / padded_rows + 1) * sizeof(int);
}

template <class C> BackwardProblem backward_problem(int B, int T, int NH, int num_sms) {
    const int key_blocks = CEIL_DIV(T, C::Bc), padded_T = CEIL_DIV(T, padded_rows) * padded_rows;
    const int group_heads = max(1, (int)(C::group_bytes / ((int64_t)T * C::HS * 8)));
    // Not with computes_D, where reversed heads before the last group would have no D; heads of 128 gain nothing by it, and for
    // those of 96 it was not tried.
    const bool may_alternate = C::rotating_dq;
    return {KeyBlockOrder(B, NH, key_blocks, CEIL_DIV(T, C::Br), group_heads, num_sms, may_alternate), T, padded_T,
            (int64_t)B * NH * padded_T / C::Br * C::dq_tiles};
}

template <class C> void launch_backward_with_sums(floatX* dqkv, float* dq_sums, const floatX* dout, const floatX* qkv,
                                                  const floatX* out, const float* l, const float* m, void* scratch,
                                                  int B, int T, int NH, int HS, cudaStream_t stream) {
    int num_sms;
    CUtensorMap qkv_map, dqkv_map, dout_map, out_map, dq_map, kv_map;
    if (hopper_num_sms(&num_sms) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&qkv_map, qkv, B, T, 3 * NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&dqkv_map, dqkv, B, T, 3 * NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&dout_map, dout, B, T, NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&out_map, out, B, T, NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&dq_map, dqkv, B, T, 3 * NH * C::parts, C::dq_channels) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&kv_map, qkv, B, T, 3 * NH * C::parts, C::dq_channels) != STATUS_OK) { return; }
    auto kernel = attention_backward_kernel<C>;
    const auto shared = cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (cuda_try(cudaFuncSetAttribute(kernel, shared, (int)C::shared_bytes)) != STATUS_OK) { return; }
    const BackwardProblem p = backward_problem<C>(B, T, NH, num_sms);

    BackwardScratch parts;
    const int64_t rows = (int64_t)p.heads * p.padded_T;
    parts.dq_accumulators = (float*)scratch;
    parts.lse = parts.dq_accumulators + 2 * p.dq_tiles * C::dq_elements;
    parts.minus_D = parts.lse + rows;
    parts.dq_counts = (int*)(parts.minus_D + rows);
    parts.D_ready = parts.dq_counts + 2 * p.dq_tiles;
    parts.work_counter = parts.D_ready + p.work_items;
    parts.dq_sums = dq_sums;

    const int64_t first_D_row = C::computes_D ? (int64_t)p.first_reversed_head * p.padded_T : 0;
    const int lse_ctas = (int)CEIL_DIV(first_D_row, (int64_t)lse_rows);
    const int D_ctas = (int)((rows - first_D_row) / padded_rows);
    const int counts = 2 * (padded_rows / C::Br) * C::dq_tiles + 1; // of 128 rows
    attention_backward_statistics_kernel<C::HS>
        <<<lse_ctas + D_ctas, 256, 0, stream>>>(parts, dout, out, l, m, T, NH, counts, lse_ctas, first_D_row);
    if (cuda_try(cudaGetLastError()) != STATUS_OK) { return; }
    cudaLaunchAttribute early; // programmatic dependent launch: CTAs start before the statistics kernel has ended
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(min(p.work_items, num_sms));
    launch.blockDim = dim3(C::threads);
    launch.dynamicSmemBytes = C::shared_bytes;
    launch.stream = stream;
    launch.attrs = &early;
    launch.numAttrs = 1;
    cuda_try(cudaLaunchKernelEx(&launch, kernel, dqkv_map, dout_map, qkv_map, out_map, dq_map, kv_map, parts, p));
}

template <class C> void launch_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                        const float* l, const float* m, void* scratch, int B, int T, int NH, int HS,
                                        cudaStream_t stream) {
    launch_backward_with_sums<C>(dqkv, nullptr, dout, qkv, out, l, m, scratch, B, T, NH, HS, stream);
}

// The rows of dq_sums: one for each 16 queries, up to the end of the last query block.
template <class C> int dq_sum_rows(int B, int T) { return B * CEIL_DIV(T, C::Br) * (C::Br / 16); }

// A row of the table of configurations; names are queries of a step x keys of a block.
template <class C> constexpr AttentionBackwardConfig backward_config(const char* name) {
    return {name,
            C::HS,
            C::shared_bytes,
            launch_backward<C>,
            backward_scratch_bytes,
            C::rotating_dq ? nullptr : launch_backward_with_sums<C>,
            C::rotating_dq ? nullptr : dq_sum_rows<C>};
}
static constexpr AttentionBackwardConfig backward_configs[] = {
    backward_config<BackwardTiles<64, 2>>("128x128"),
    backward_config<BackwardTiles<64, 3>>("64x192"),
    backward_config<BackwardTiles<96, 2>>("64x128"),
    backward_config<BackwardTiles<128, 2>>("64x128"),
};

} // namespace wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "attention/bench.h"
int main(int argc, char** argv) { return attention_backward_main(argc, argv, wgmma::backward_configs, 90); }
#endif
