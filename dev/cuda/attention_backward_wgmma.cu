/*
The backward pass of FlashAttention on Hopper: one kernel with five products, and dQ in an order that never changes.

With P = exp(S - m)/l recomputed and D = rowsum(dO o O):  dV = P^T dO,  dP = dO V^T,  dS = P o (dP - D),
dQ = dS K / sqrt(HS),  dK = dS^T Q / sqrt(HS).  A block of threads has 128 keys and walks over the queries that see them;
each of its two consumer warpgroups has 64 of the keys. Against mma:
- S^T = K Q^T and dP^T = V dO^T are transposed, so that P^T and dS^T are operands A of dV and dK where they are, in the
  registers of S. Only dS passes through shared memory, for dQ = dS K wants all keys. dP begins at -D.
- dQ of 128 keys is added, in fp32, to what the other key blocks have left in scratch: TMA adds, a thread of
  its own tells the next block by a flag, and nobody computes meanwhile. The order is that in which the blocks were taken;
  so the bits are the same always, and no block waits for one that has not begun. See KeyBlock and DqChain.
- There are two such sums, for the even and the odd in that order, so that an addition has the time of two steps. The
  first to come stores and the last converts, into dqkv: nothing is cleared before, nothing converted after. A sum that
  has been read for the last time is discarded, so that L2 does not write it to memory.
- Most heads take their key blocks from the last, with the fewest queries, to the first, each from the diagonal on: each
  finds the sum of the one before it a step ahead. The last heads go the other way round, and so end evenly.
- With long rows of HS = 64 dQ of a step is found in the next one, and the warpgroups take turns at the tensor cores.
What remains in front is a kernel for D and log(l) + m, which this one starts beside (programmatic dependent launch).

The climb is told in README.md, section "The climb of wgmma".

What binds, by the profiler's counters of one launch at 4,16384,12,64, at step 4 of the climb: the busiest pipe, which by
count is the tensor cores, 59%, shared memory 73%, L2 62%, issue 33%, at 1.79 GHz; launch after launch the power limit
lowers the clock to about 1.6 GHz. At 64,1024,12,64 and step 3, L2 81% and DRAM 43%; a launch now reads .44 GB and writes
.33 GB there, where the tensors alone are .40 and .30 (it wrote .63 before sums were discarded), and the kernel in front
takes 7% of the time. A consumer waits most for loads of statistics behind the products' own traffic, and for two fences
towards TMA, 6% each.

Papers: Dao, FlashAttention-2 (2023), algorithm 2; Shah et al., FlashAttention-3 (2024), section 3 and appendix B.
*/
#include "attention.h"
#include "llmc/hopper.cuh"
#include "llmc/mma.cuh"

namespace wgmma {

using namespace hopper;

// A configuration: head size, and whether dQ is found one step late, the warpgroups taking turns.
template <int HS_, bool DELAYED_DQ> struct BackwardTiles {
    static constexpr int HS = HS_;
    static constexpr bool delayed_dq = DELAYED_DQ;
    static constexpr int warpgroups = 2, Bc = 64 * warpgroups;        // keys of a block, 64 for each consumer warpgroup
    static constexpr int threads = (warpgroups + 1) * WARPGROUP_SIZE; // the first warpgroup moves data
    static constexpr int producer_registers = 40, consumer_registers = 232; // 168 each when the kernel starts
    static_assert(producer_registers + warpgroups * consumer_registers <= 3 * 168, "");
    // dQ of a warpgroup: 64 queries, or at HS = 128 all 64 of the step and 64 of the channels
    static constexpr int dq_elements = 64 * 64, dq_bytes = dq_elements * sizeof(float);
    static constexpr int Br = warpgroups * dq_elements / HS; // queries of a step
    static constexpr int steps_per_block = Bc / Br;          // steps that a key block's own queries take
    static constexpr int boxes = HS / 64, box_row = 128; // tiles lie in boxes of 64 channels, whose rows are 128 bytes
    // So many heads take their blocks by turns that what a head's blocks share, Q, dO and the sums, comes to this in all
    static constexpr int group_bytes = HS == 64 ? 14 << 20 : 2 << 20;
    static constexpr float scale = mma::inverse_sqrt(HS);

    struct Shared {
        floatX K[2][boxes][Bc * 64], V[boxes][Bc * 64]; // of a block. K: later dK
        floatX Q[2][boxes][Br * 64], dO[2][boxes][Br * 64];
        floatX dS[2][Br / 64][Bc * 64]; // transposed: rows are keys. Later dV
        alignas(1024) float dQ[warpgroups][dq_elements];
        float lse[2][Br], minus_D[2][Br];
        Mbarrier K_full[2], K_empty[2], V_full, V_empty;
        Mbarrier Q_full[2], Q_empty[2], dO_full[2], dO_empty[2];
        Mbarrier dS_full[2], dS_empty[2];
        Mbarrier dQ_full[warpgroups], dQ_empty[warpgroups], dKV_full[warpgroups], dKV_empty;
        Mbarrier work_full[2], work_empty[2];
        int work_item[2];
        const float* dq_source[warpgroups]; // the accumulator whose copy is in dQ
    };
    static constexpr size_t shared_bytes = sizeof(Shared);
};

constexpr int padded_rows = 128; // scratch has a multiple of so many rows for each head

// What the kernels leave for each other in scratch. A dQ tile is the part of a query block's dQ that one warpgroup computes.
struct BackwardScratch {
    float*
        dq_accumulators; // (2, dq_tiles, dq_elements): sums of dQ, elements in the order of the warpgroup's registers
    float* lse;          // (heads, padded T): log2(l) + m LOG2_E; infinity past T, where P is so 0
    float* minus_D;      // (heads, padded T): -rowsum(dO o O). Both permuted: statistics_row()
    int* dq_counts;      // (2, dq_tiles): how many key blocks the accumulator holds
    int* work_counter;   // how many work items have been taken
};
// The sizes of a launch. A work item is a key block of a head; the order of work items is KeyBlock's.
struct BackwardProblem {
    int T, NH, heads, padded_T;
    int key_blocks, query_blocks, work_items; // key blocks and query blocks of a head, key blocks of all heads
    int group_heads, group_items;             // heads whose key blocks are interleaved, and their key blocks
    int reversed_heads, first_reversed_head, first_reversed_item; // the last heads, whose order is reversed
    int64_t dq_tiles;                                             // of all heads: warpgroups * query blocks
};

// Where a row's statistics are, among those of 16 rows: the four that a thread needs, for columns 2 (lane % 4) + {0, 1}
// and those 8 further, follow each other.
__host__ __device__ inline int statistics_row(int row) { return row % 8 / 2 * 4 + row / 8 * 2 + row % 2; }

// A block of 128 keys of a head, and the order of its steps. Blocks are taken by work_item.
struct KeyBlock {
    int head, j;
    bool reversed; // the heads that take the first keys first, and the last queries first
    __host__ __device__ KeyBlock(int work_item, const BackwardProblem& p) {
        reversed = work_item >= p.first_reversed_item;
        int group = work_item / p.group_items * p.group_heads;
        int first = reversed ? p.first_reversed_head : group;
        int heads = reversed ? p.reversed_heads : min(p.group_heads, p.first_reversed_head - group);
        int n = work_item - first * p.key_blocks;
        j = reversed ? n / heads : p.key_blocks - 1 - n / heads;
        head = first + n % heads;
    }
    template <class C> __host__ __device__ int steps(const BackwardProblem& p) const {
        return p.query_blocks - j * C::steps_per_block;
    }
    // The query block of step i, relative to the one that holds the key block's first key
    template <class C> __host__ __device__ int query_offset(int i, const BackwardProblem& p) const {
        return reversed ? steps<C>(p) - 1 - i : i;
    }
};

// dQ of a query block is a sum over key blocks j = 0 .. jq, where jq holds the diagonal; they add to it one after the other,
// in the order of the work counter. DqChain is the position of key block j in that chain, with jq - j = `behind`.
// There are two accumulators in scratch, 0 and 1, which alternate along the chain, so that an addition may take the time of
// two steps. The last but one reads accumulator 1 into its own dQ and adds both to accumulator 0; the last one reads
// accumulator 0, which completes dQ. (dev/cuda/README.md has the table.)
struct DqChain {
    int before, after; // key blocks in the chain before and after this one
    __host__ __device__ DqChain(int j, bool reversed, int behind)
        : before(reversed ? j : behind), after(reversed ? behind : j) {}
    __host__ __device__ bool last() const { return after == 0; }
    // The accumulator that this block's dQ is added to, unless it is the last, and how many blocks it holds by then.
    __host__ __device__ int accumulator() const { return after == 1 ? 0 : after % 2; }
    __host__ __device__ int accumulator_count() const { return after == 1 ? (before + 1) / 2 : before / 2; }
    // Whether an accumulator is read into this block's dQ, which one, and how many blocks it holds by then.
    __host__ __device__ bool reads() const { return after < 2 && before > after; }
    __host__ __device__ int read_accumulator() const { return after; }
    __host__ __device__ int read_count() const { return after == 1 ? before / 2 : before / 2 + 1; }
};

// ----------------------------------------------------------------------------
// The first warpgroup: four threads that move data

template <class C> __device__ inline int receive_work_item(typename C::Shared& s, uint32_t n) {
    s.work_full[n % 2].wait(n / 2 % 2);
    int work_item = s.work_item[n % 2];
    s.work_empty[n % 2].arrive();
    return work_item;
}
// `rows` rows of a head, from `row` on
template <int boxes, int rows> __device__ inline void
load_tile(floatX (&tile)[boxes][rows * 64], const CUtensorMap* map, int head, int row, int b, Mbarrier& full) {
#pragma unroll
    for (int x = 0; x < boxes; x++) {
#pragma unroll
        for (int r = 0; r < rows; r += 64) {
            cp_async_bulk_tensor(shared_address(tile[x]) + r * 128, map, x * 64, head, row + r, b, full);
        }
    }
}

// One thread takes the work items and loads K, Q and lse, another V, dO and -D.
template <class C, bool loads_qk> __device__ inline void produce(typename C::Shared& s, const CUtensorMap* qkv,
                                                                 const CUtensorMap* dout, const BackwardProblem& p,
                                                                 const BackwardScratch& scratch) {
    griddepcontrol_wait();
    uint32_t t = 0; // steps so far
    for (uint32_t n = 0;; n++) {
        int work_item;
        if (loads_qk) {
            s.work_empty[n % 2].wait(n / 2 % 2 ^ 1);
            work_item = atomicAdd(scratch.work_counter, 1);
            s.work_item[n % 2] = work_item;
            s.work_full[n % 2].arrive();
        } else {
            work_item = receive_work_item<C>(s, n);
        }
        if (work_item >= p.work_items) { break; }
        const KeyBlock block(work_item, p);
        const int h = block.head % p.NH, b = block.head / p.NH, steps = block.steps<C>(p);
        for (int i = 0; i < steps; i++, t++) {
            int row = block.j * C::Bc + block.query_offset<C>(i, p) * C::Br;
            Mbarrier& full = (loads_qk ? s.Q_full : s.dO_full)[t % 2];
            (loads_qk ? s.Q_empty : s.dO_empty)[t % 2].wait(t / 2 % 2 ^ 1);
            full.expect_tx(C::Br * (C::HS * 2 + 4));
            load_tile<C::boxes, C::Br>((loads_qk ? s.Q : s.dO)[t % 2], loads_qk ? qkv : dout, h, row, b, full);
            cp_async_bulk(shared_address((loads_qk ? s.lse : s.minus_D)[t % 2]),
                          (loads_qk ? scratch.lse : scratch.minus_D) + (int64_t)block.head * p.padded_T + row,
                          C::Br * 4, full);
            if (i == 0) { // behind the first queries: these need not wait for the last block
                if (loads_qk) {
                    s.K_empty[n % 2].wait(n / 2 % 2 ^ 1);
                } else {
                    s.V_empty.wait(n % 2 ^ 1);
                }
                Mbarrier& full = loads_qk ? s.K_full[n % 2] : s.V_full;
                full.expect_tx(C::Bc * C::HS * 2);
                load_tile<C::boxes, C::Bc>(loads_qk ? s.K[n % 2] : s.V, qkv, (loads_qk ? 1 : 2) * p.NH + h,
                                           block.j * C::Bc, b, full);
            }
        }
    }
}

// A thread for each consumer w brings its dQ to the others' sum, or the complete one to dqkv, and stores dK and dV.
template <class C> __device__ inline void write_dq(typename C::Shared& s, const CUtensorMap* dqkv,
                                                   const BackwardProblem& p, const BackwardScratch& scratch, int w) {
    const uint32_t dQ = shared_address(s.dQ[w]);
    uint32_t t = 0; // steps so far
    for (uint32_t n = 0;; n++) {
        int work_item = receive_work_item<C>(s, n);
        if (work_item >= p.work_items) { break; }
        const KeyBlock block(work_item, p);
        const int h = block.head % p.NH, b = block.head / p.NH, steps = block.steps<C>(p);
        bool ready = false;              // the consumer has been told that s.dQ is free
        int *count = nullptr, added = 0; // of the last step
        for (int i = 0; i < steps; i++, t++) {
            const int offset = block.query_offset<C>(i, p);
            const DqChain chain(block.j, block.reversed, offset / C::steps_per_block);
            const int64_t dq_tile =
                ((int64_t)block.head * p.padded_T / C::Br + block.j * C::steps_per_block + offset) * C::warpgroups + w;
            auto wait_count = [&](int which, int n) { // until accumulator `which` holds n key blocks
                while (ld_acquire(scratch.dq_counts + which * p.dq_tiles + dq_tile) < n) {}
                fence_proxy_async_global();
            };
            auto accumulator = [&](int which) {
                return scratch.dq_accumulators + (which * p.dq_tiles + dq_tile) * C::dq_elements;
            };
            if (chain.reads()) {
                wait_count(chain.read_accumulator(), chain.read_count());
                s.dq_source[w] = accumulator(chain.read_accumulator());
                s.dQ_empty[w].expect_tx(C::dq_bytes);
                cp_async_bulk(dQ, accumulator(chain.read_accumulator()), C::dq_bytes, s.dQ_empty[w]);
            } else if (!ready) {
                s.dQ_empty[w].arrive();
            }
            ready = false;
            if (chain.last()) {
                s.dQ_full[w].wait(t % 2);
                int row = block.j * C::Bc + offset * C::Br;
                cp_async_bulk_tensor(dqkv, C::HS == 64 ? 0 : w * 64, h, C::HS == 64 ? row + w * 64 : row, b, dQ);
                cp_async_bulk_commit_group();
                if (i + 1 < steps) { cp_async_bulk_wait_group_read<0>(); }
                continue;
            }
            const int into = chain.accumulator(), before = chain.accumulator_count();
            if (before > 0) { wait_count(into, before); }
            s.dQ_full[w].wait(t % 2);
            if (before > 0) {
                cp_reduce_async_bulk_add(accumulator(into), dQ, C::dq_bytes);
            } else {
                cp_async_bulk(accumulator(into), dQ, C::dq_bytes);
            }
            cp_async_bulk_commit_group();
            if (i + 1 < steps) {
                const DqChain next(block.j, block.reversed, block.query_offset<C>(i + 1, p) / C::steps_per_block);
                if (!next.reads()) { // the consumer need not wait until the sum is there
                    cp_async_bulk_wait_group_read<0>();
                    s.dQ_empty[w].arrive();
                    ready = true;
                }
                cp_async_bulk_wait_group<0>();
                fence_proxy_async_global();
                st_release(scratch.dq_counts + into * p.dq_tiles + dq_tile, before + 1);
            } else {
                count = scratch.dq_counts + into * p.dq_tiles + dq_tile;
                added = before + 1;
            }
        }
        s.dKV_full[w].wait(n % 2);
#pragma unroll
        for (int x = 0; x < C::boxes; x++) {
            const uint32_t box = x * C::Bc * C::box_row, rows = w * 64 * C::box_row;
            const int key = block.j * C::Bc + w * 64;
            cp_async_bulk_tensor(dqkv, x * 64, p.NH + h, key, b, shared_address(s.K[n % 2]) + box + rows);
            cp_async_bulk_tensor(dqkv, x * 64, 2 * p.NH + h, key, b, shared_address(s.dS) + box + rows);
        }
        cp_async_bulk_commit_group();
        if (count) { // dQ of the last step has had the time until here
            cp_async_bulk_wait_group<1>();
            fence_proxy_async_global();
            st_release(count, added);
        }
        cp_async_bulk_wait_group_read<0>();
        s.dKV_empty.arrive();
        s.K_empty[n % 2].arrive();
    }
    cp_async_bulk_wait_group<0>();
}

// ----------------------------------------------------------------------------
// The consumers

// Warpgroup w, which has 64 of the block's keys. S and dP are transposed: their rows are keys, their columns queries.
template <class C> struct BackwardConsumer {
    static constexpr int HS = C::HS, Br = C::Br, Bc = C::Bc, N = Br / 16;
    typedef float Scores[Br / 2];
    typename C::Shared& s;
    const int w;
    uint32_t n = 0, t = 0; // blocks and steps so far: step t uses stage t % 2 for the (t / 2)th time
    float dK[HS / 2], dV[HS / 2];

    __device__ BackwardConsumer(typename C::Shared& s, int w) : s(s), w(w) {}

    static __device__ uint32_t lane() { return (uint32_t)mma::mov_tid_x() % WARP_SIZE; }
    static __device__ uint32_t warp() { return (uint32_t)mma::mov_tid_x() % WARPGROUP_SIZE / WARP_SIZE; }
    __device__ void arrive(Mbarrier& barrier) { barrier.arrive_warp(lane()); }
    // While one warpgroup has its turn at the tensor cores, the other finds P and dS.
    __device__ void pingpong_sync() {
        if (C::delayed_dq) { bar_sync(3 + w, 2 * WARPGROUP_SIZE); }
    }
    __device__ void pingpong_arrive() {
        if (C::delayed_dq) { bar_arrive(3 + (w ^ 1), 2 * WARPGROUP_SIZE); }
    }

    // Begins x (64 keys, Br queries) = A B^T, or +=, with the warpgroup's rows of A, K or V, and B, Q or dO.
    template <bool accumulate> __device__ void issue_transposed(Scores& x, const void* A, const void* B) {
        uint64_t a = tile_descriptor_k_major(uniform(shared_address(A) + w * 64 * C::box_row));
        uint64_t b = tile_descriptor_k_major(uniform(shared_address(B)));
        fence_operand(x);
        wgmma_fence();
#pragma unroll
        for (int i = 0; i < HS / 16; i++) { // 16 channels are 32 bytes, 64 a box
            wgmma_mma_async(x, a + i / 4 * (Bc * C::box_row / 16) + i % 4 * 2,
                            b + i / 4 * (Br * C::box_row / 16) + i % 4 * 2, accumulate || i > 0);
        }
        wgmma_commit_group();
        fence_operand(x);
    }
    __device__ void issue_S(Scores& S) { // S^T = K Q^T
        s.Q_full[t % 2].wait(t / 2 % 2);
        issue_transposed<false>(S, s.K[n % 2], s.Q[t % 2]);
    }
    __device__ void init_dP(Scores& dP, uint32_t t) { // dP^T = -D, of step t
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
    __device__ void issue_dP(Scores& dP) { issue_transposed<true>(dP, s.V, s.dO[t % 2]); } // dP^T += V dO^T

    // Begins x (64 keys, HS) += A B with A in registers, four of every eight from `part` on, and B, Q or dO.
    template <int part> __device__ void issue_gradient(float (&x)[HS / 2], const Scores& A, const void* B) {
        uint64_t b = tile_descriptor_n_major(uniform(shared_address(B)), Br * C::box_row);
        fence_operand(x);
        wgmma_fence();
#pragma unroll
        for (int k = 0; k < N; k++) {
            const uint32_t a[4] = {__float_as_uint(A[8 * k + part]), __float_as_uint(A[8 * k + part + 1]),
                                   __float_as_uint(A[8 * k + part + 2]), __float_as_uint(A[8 * k + part + 3])};
            wgmma_mma_async(x, a, b + k * (16 * C::box_row / 16));
        }
        fence_operand(x);
    }
    __device__ void issue_gradients(const Scores& PdS) {
        issue_gradient<0>(dV, PdS, s.dO[t % 2]); // dV += P^T dO
        issue_gradient<4>(dK, PdS, s.Q[t % 2]);  // dK += dS^T Q
        wgmma_commit_group();
    }
    __device__ void finish_gradients() {
        fence_operand(dV);
        fence_operand(dK);
        arrive(s.Q_empty[t % 2]);
        arrive(s.dO_empty[t % 2]);
        t++;
    }
    // Begins dQ = dS K of step t with all keys of the block, for 64 queries, or at HS = 128 for 64 channels.
    __device__ void issue_dQ(float (&dQ)[32], uint32_t t) {
        s.dS_full[t % 2].wait(t / 2 % 2);
        uint64_t a = tile_descriptor_n_major(uniform(shared_address(s.dS[t % 2][HS == 64 ? w : 0])), 0);
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
    // Hands dQ over to the thread that brings it to the sum, or to dqkv, and adds what that thread has fetched.
    __device__ void finish_dQ(float (&dQ)[32], uint32_t t, const DqChain& chain) {
        fence_operand(dQ);
        arrive(s.dS_empty[t % 2]);
        s.dQ_empty[w].wait(t % 2);
        float4* part = reinterpret_cast<float4*>(s.dQ[w]) + (uint32_t)mma::mov_tid_x() % WARPGROUP_SIZE;
        if (chain.reads()) {
            static_assert(C::dq_bytes == WARPGROUP_SIZE * 128, ""); // the sum has been read for the last time
            discard_l2(s.dq_source[w] + (uint32_t)mma::mov_tid_x() % WARPGROUP_SIZE * 32);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                float4 x = part[i * WARPGROUP_SIZE];
                dQ[4 * i] += x.x, dQ[4 * i + 1] += x.y, dQ[4 * i + 2] += x.z, dQ[4 * i + 3] += x.w;
            }
        }
        if (chain.last()) {
            if (chain.reads()) { bar_sync(1 + w, WARPGROUP_SIZE); }
            store_tile(shared_address(s.dQ[w]), 0, dQ, C::scale);
        } else {
#pragma unroll
            for (int i = 0; i < 8; i++) {
                part[i * WARPGROUP_SIZE] = make_float4(dQ[4 * i], dQ[4 * i + 1], dQ[4 * i + 2], dQ[4 * i + 3]);
            }
        }
        fence_proxy_async();
        arrive(s.dQ_full[w]);
    }

    // P = exp(S - m)/l and dS = P o (dP - D), rounded, as the operands A that begin_gradients() takes from the registers
    // of S; dS in shared memory for both warpgroups. `hidden`: how far the strip's first key is behind the first query.
    __device__ void compute_P_dS(Scores& S, Scores& dP, int hidden) {
        constexpr int ahead = C::delayed_dq ? 2 : 4; // loads under way
        const float4* lse = reinterpret_cast<const float4*>(s.lse[t % 2]) + lane() % 4;
        float4 next[ahead];
#pragma unroll
        for (int k = 0; k < ahead; k++) { next[k] = lse[4 * k]; }
        wgmma_wait_group<1>();
        fence_operand(S);
        if (hidden > -64) { mask_transposed(S, hidden); }
#pragma unroll
        for (int k = 0; k < N; k++) {
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
        for (int k = 0; k < N; k++) {
            float P[8], dS[8];
#pragma unroll
            for (int i = 0; i < 8; i++) { P[i] = S[8 * k + i], dS[i] = P[i] * dP[8 * k + i]; }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                S[8 * k + i] = __uint_as_float(mma::cvt_rn_x2(P[2 * i], P[2 * i + 1]));
                S[8 * k + 4 + i] = __uint_as_float(mma::cvt_rn_x2(dS[2 * i], dS[2 * i + 1]));
            }
        }
        s.dS_empty[t % 2].wait(t / 2 % 2 ^ 1);
        uint32_t dS[N][4];
#pragma unroll
        for (int i = 0; i < 4 * N; i++) { dS[i / 4][i % 4] = __float_as_uint(S[i / 4 * 8 + 4 + i % 4]); }
        store_fragments(shared_address(s.dS[t % 2]) + w * 64 * C::box_row, Bc * C::box_row, dS);
        fence_proxy_async();
        arrive(s.dS_full[t % 2]);
    }
    // -inf where the key is behind the query
    __device__ void mask_transposed(Scores& S, int hidden) {
        int row = hidden + (int)(warp() * 16 + lane() / 4) - (int)(lane() % 4 * 2);
#pragma unroll
        for (int i = 0; i < Br / 2; i++) {
            if (row + i / 2 % 2 * 8 > i / 4 * 8 + i % 2) { S[i] = -INFINITY; }
        }
    }
    // The warp's 16 rows of a 64-row strip, as operands A of 16 columns each, into boxes of 64 columns
    template <int K> __device__ void store_fragments(uint32_t strip, int box_bytes, const uint32_t (&x)[K][4]) {
        uint32_t row = strip + (warp() * 16 + lane() % 16) * C::box_row;
#pragma unroll
        for (int k = 0; k < K; k++) {
            uint32_t chunk = (k % 4 * 2 + lane() / 16) ^ lane() % 8;
            mma::stmatrix_x4(row + k / 4 * box_bytes + chunk * 16, x[k][0], x[k][1], x[k][2], x[k][3]);
        }
    }
    // An accumulator, scaled and rounded
    template <int M> __device__ void store_tile(uint32_t strip, int box_bytes, const float (&x)[M], float scale) {
        uint32_t rounded[M / 8][4];
#pragma unroll
        for (int i = 0; i < M / 2; i++) {
            rounded[i / 4][i % 4] = mma::cvt_rn_x2(scale * x[2 * i], scale * x[2 * i + 1]);
        }
        store_fragments(strip, box_bytes, rounded);
    }

    __device__ void run(const BackwardProblem& p) {
        if (w == 1) { pingpong_arrive(); } // the first turn
        for (;; n++) {
            const int work_item = __shfl_sync(0xffffffffu, lane() == 0 ? receive_work_item<C>(s, n) : 0, 0);
            if (work_item >= p.work_items) { break; }
            const KeyBlock block(work_item, p);
            const int sign = block.reversed ? -1 : 1; // from a step's queries to those of the next
            const int left = block.steps<C>(p) - 1, first = block.reversed ? left : 0;
            const int last = left - first;
            auto chain = [&](int offset) { return DqChain(block.j, sign < 0, offset / C::steps_per_block); };
            Scores S;
            {
                Scores dP;
                pingpong_sync();
                s.K_full[n % 2].wait(n / 2 % 2);
                init_dP(dP, t);
                issue_S(S);
                s.V_full.wait(n % 2);
                issue_dP(dP);
                pingpong_arrive();
                s.dKV_empty.wait(n % 2 ^ 1);
                compute_P_dS(S, dP, w * 64 - first * Br);
            }
#pragma unroll
            for (int i = 0; i < HS / 2; i++) { dK[i] = 0, dV[i] = 0; }
            int offset = first;
#pragma unroll 1
            for (; offset != last; offset += sign) {
                Scores dP;
                if (C::delayed_dq) {
                    pingpong_sync();
                    if (offset != first) {
                        float dQ[32];
                        issue_dQ(dQ, t - 1);
                        issue_gradients(S);
                        wgmma_wait_group<1>();
                        finish_dQ(dQ, t - 1, chain(offset - sign));
                    } else {
                        issue_gradients(S);
                    }
                    wgmma_wait_group<0>();
                    finish_gradients();
                    issue_S(S);
                    pingpong_arrive();
                } else {
                    issue_gradients(S);
                    wgmma_wait_group<0>();
                    finish_gradients();
                    issue_S(S);
                    float dQ[32];
                    issue_dQ(dQ, t - 1);
                    wgmma_wait_group<0>();
                    fence_operand(S);
                    finish_dQ(dQ, t - 1, chain(offset));
                }
                init_dP(dP, t);
                issue_dP(dP);
                compute_P_dS(S, dP, w * 64 - (offset + sign) * Br);
            }
            arrive(s.V_empty);
            pingpong_sync();
            if (C::delayed_dq && offset != first) {
                float dQ[32];
                issue_dQ(dQ, t - 1);
                issue_gradients(S);
                wgmma_wait_group<1>();
                finish_dQ(dQ, t - 1, chain(offset - sign));
            } else {
                issue_gradients(S);
            }
            float dQ[32];
            issue_dQ(dQ, t);
            pingpong_arrive();
            wgmma_wait_group<0>();
            finish_gradients();
            finish_dQ(dQ, t - 1, chain(offset));
            s.dS_empty[(t - 1) % 2].wait((t - 1) / 2 % 2); // the other warpgroup has dQ, too
            const uint32_t rows = w * 64 * C::box_row;
            store_tile(shared_address(s.dS) + rows, Bc * C::box_row, dV, 1);
            store_tile(shared_address(s.K[n % 2]) + rows, Bc * C::box_row, dK, C::scale);
            fence_proxy_async();
            arrive(s.dKV_full[w]);
        }
    }
};

// dqkv, qkv (B,T,3,NH,HS) and dout (B,T,NH,HS) by descriptors
template <class C> __global__ void __launch_bounds__(C::threads, 1)
    attention_backward_kernel(const __grid_constant__ CUtensorMap dqkv, const __grid_constant__ CUtensorMap dout,
                              const __grid_constant__ CUtensorMap qkv, const __grid_constant__ BackwardScratch scratch,
                              const __grid_constant__ BackwardProblem p) {
#if defined(HOPPER_DEVICE_CODE)
    extern __shared__ __align__(1024) char shared[];
    typename C::Shared& s = *reinterpret_cast<typename C::Shared*>(shared);
    constexpr int warps = 4 * C::warpgroups; // of the consumers
    constexpr int each = 4 * WARP_ARRIVALS, all = C::warpgroups * each;
    if (threadIdx.x == 0) {
        s.V_full.init(1), s.V_empty.init(all), s.dKV_empty.init(C::warpgroups);
        for (int n = 0; n < 2; n++) {
            s.K_full[n].init(1), s.K_empty[n].init(C::warpgroups);
            s.Q_full[n].init(1), s.Q_empty[n].init(all), s.dO_full[n].init(1), s.dO_empty[n].init(all);
            s.dS_full[n].init(all), s.dS_empty[n].init(all);
            s.work_full[n].init(1), s.work_empty[n].init(1 + C::warpgroups + warps);
        }
        for (int w = 0; w < C::warpgroups; w++) {
            s.dQ_full[w].init(each), s.dQ_empty[w].init(1), s.dKV_full[w].init(each);
        }
        fence_mbarrier_init();
    }
    __syncthreads();
    int warpgroup = uniform(threadIdx.x / WARPGROUP_SIZE);
    if (warpgroup == 0) {
        setmaxnreg_dec<C::producer_registers>();
        int warp = threadIdx.x / WARP_SIZE;
        if (threadIdx.x % WARP_SIZE == 0) {
            if (warp == 0) { produce<C, true>(s, &qkv, &dout, p, scratch); }
            if (warp == 1) { produce<C, false>(s, &qkv, &dout, p, scratch); }
            if (warp > 1) { write_dq<C>(s, &dqkv, p, scratch, warp - 2); }
        }
    } else {
        setmaxnreg_inc<C::consumer_registers>();
        BackwardConsumer<C>(s, warpgroup - 1).run(p);
    }
#endif
}

// The statistics of 128 rows of a head, and their flags at 0. dout, out (B,T,NH,HS); l, m (B,NH,T)
template <int HS> __global__ void __launch_bounds__(256)
    attention_backward_statistics_kernel(const __grid_constant__ BackwardScratch scratch, const floatX* dout,
                                         const floatX* out, const float* l, const float* m, int T, int NH,
                                         int counts_per_block) {
#if defined(HOPPER_DEVICE_CODE)
    griddepcontrol_launch_dependents();
    constexpr int lanes = HS / x128::size, rows = 256 / lanes, passes = padded_rows / rows; // lanes of a row
    const int blocks = CEIL_DIV(T, padded_rows), head = blockIdx.x / blocks, first = blockIdx.x % blocks * padded_rows;
    const int64_t base = out_offset(head / NH, head % NH, T, NH, HS) + threadIdx.x % lanes * x128::size;
    x128 x[passes], y[passes];
#pragma unroll
    for (int i = 0; i < passes; i++) {
        int t = first + i * rows + threadIdx.x / lanes;
        int64_t at = base + (int64_t)min(t, T - 1) * NH * HS;
        x[i] = load128(dout + at);
        y[i] = load128(out + at);
    }
    float* lse = scratch.lse + (int64_t)blockIdx.x * padded_rows;
    float* minus_D = scratch.minus_D + (int64_t)blockIdx.x * padded_rows;
    if (threadIdx.x < padded_rows) {
        int r = threadIdx.x, t = first + r;
        int64_t at = (int64_t)head * T + min(t, T - 1);
        float sum = __fmul_rn(m[at], LOG2_E) + mma::lg2_approx(l[at]); // as forward rounded it
        lse[r / 16 * 16 + statistics_row(r % 16)] = t < T ? sum : INFINITY;
    } else if (threadIdx.x < padded_rows + counts_per_block) {
        scratch.dq_counts[(int64_t)blockIdx.x * counts_per_block + threadIdx.x - padded_rows] = 0;
    } else if (blockIdx.x == 0 && threadIdx.x == 255) {
        *scratch.work_counter = 0;
    }
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

// Two fp32 copies of dq, two statistics of a row, and for 64 rows (or at HS = 128 for 32) a flag of either copy
inline size_t backward_scratch_bytes(int B, int T, int NH, int HS) {
    size_t rows = (size_t)B * NH * CEIL_DIV(T, padded_rows) * padded_rows;
    return rows * (2 * HS + 2) * sizeof(float) + rows * HS / (64 * 64) * 2 * sizeof(int) + sizeof(int);
}

// The work of a launch, and the order in which so many SMs take it up
template <class C> BackwardProblem backward_problem(int B, int T, int NH, int num_sms) {
    BackwardProblem p;
    p.T = T, p.NH = NH, p.heads = B * NH;
    p.key_blocks = CEIL_DIV(T, padded_rows), p.query_blocks = CEIL_DIV(T, C::Br);
    p.padded_T = p.key_blocks * padded_rows;
    p.work_items = p.heads * p.key_blocks;
    p.dq_tiles = (int64_t)p.heads * p.padded_T / C::Br * C::warpgroups;
    p.group_heads = max(1, (int)(C::group_bytes / ((int64_t)T * C::HS * 8)));
    p.group_items = p.group_heads * p.key_blocks;
    p.reversed_heads = min(p.heads, CEIL_DIV(2 * num_sms, p.key_blocks));
    p.first_reversed_head = p.heads - p.reversed_heads, p.first_reversed_item = p.first_reversed_head * p.key_blocks;
    return p;
}

template <class C> void launch_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                        const float* l, const float* m, void* scratch, int B, int T, int NH, int HS,
                                        cudaStream_t stream) {
    int num_sms;
    CUtensorMap qkv_map, dqkv_map, dout_map;
    if (hopper_num_sms(&num_sms) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&qkv_map, qkv, B, T, 3 * NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&dqkv_map, dqkv, B, T, 3 * NH, HS) != STATUS_OK) { return; }
    if (tensor_map_of_heads(&dout_map, dout, B, T, NH, HS) != STATUS_OK) { return; }
    auto kernel = attention_backward_kernel<C>;
    const auto shared = cudaFuncAttributeMaxDynamicSharedMemorySize;
    if (cuda_try(cudaFuncSetAttribute(kernel, shared, (int)C::shared_bytes)) != STATUS_OK) { return; }
    const BackwardProblem p = backward_problem<C>(B, T, NH, num_sms);

    BackwardScratch parts;
    const int64_t rows = (int64_t)p.heads * p.padded_T;
    parts.dq_accumulators = (float*)scratch;
    parts.lse = parts.dq_accumulators + 2 * rows * HS;
    parts.minus_D = parts.lse + rows;
    parts.dq_counts = (int*)(parts.minus_D + rows);
    parts.work_counter = parts.dq_counts + 2 * p.dq_tiles;

    attention_backward_statistics_kernel<C::HS>
        <<<p.work_items, 256, 0, stream>>>(parts, dout, out, l, m, T, NH, 2 * C::steps_per_block * C::warpgroups);
    if (cuda_try(cudaGetLastError()) != STATUS_OK) { return; }
    cudaLaunchAttribute early; // its blocks may start before the statistics are there, and wait
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t launch = {};
    launch.gridDim = dim3(min(p.work_items, num_sms));
    launch.blockDim = dim3(C::threads);
    launch.dynamicSmemBytes = C::shared_bytes;
    launch.stream = stream;
    launch.attrs = &early;
    launch.numAttrs = 1;
    cuda_try(cudaLaunchKernelEx(&launch, kernel, dqkv_map, dout_map, qkv_map, parts, p));
}

// A table row, named after the queries of a step and the keys of a block.
template <class C> constexpr AttentionBackwardConfig backward_config(const char* name) {
    return {name, C::HS, C::shared_bytes, launch_backward<C>, backward_scratch_bytes};
}
static constexpr AttentionBackwardConfig backward_configs[] = {
    backward_config<BackwardTiles<64, false>>("128x128"),
    backward_config<BackwardTiles<64, true>>("128x128 delayed-dQ"),
    backward_config<BackwardTiles<128, false>>("64x128"),
    backward_config<BackwardTiles<128, true>>("64x128 delayed-dQ"),
};

} // namespace wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "attention_bench.h"
int main(int argc, char** argv) { return attention_backward_main(argc, argv, "wgmma", wgmma::backward_configs, 90); }
#endif
