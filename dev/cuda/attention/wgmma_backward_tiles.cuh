/*
What the roles of attention_backward_wgmma.cu share: tiles, shared memory and barriers of a configuration, scratch, and the
order in which key blocks add to dQ.
*/
#ifndef WGMMA_BACKWARD_TILES_CUH
#define WGMMA_BACKWARD_TILES_CUH

#include "attention.h"
#include "llmc/cuda/hopper.cuh"
#include "llmc/cuda/mma.cuh"

namespace wgmma {

using namespace hopper;

// A configuration. CONSUMERS: warpgroups with 64 keys of a block each. Two compute a tile of each step's dQ each. Three take
// the steps in rotation, and dQ a step later, be it in the next key block: a block of 192 keys loads Q and dO, and adds to dQ,
// two thirds as often, and three consumers keep the tensor cores busy without waiting for each other's GEMMs.
template <int HS_, int CONSUMERS, bool DOCUMENTS = false> struct BackwardTiles {
    typedef BackwardTiles<HS_, CONSUMERS, true> WithDocuments;
    typedef BackwardTiles<HS_, CONSUMERS, false> WithoutDocuments;
    static constexpr bool documents = DOCUMENTS; // rows have `starts`
    static constexpr int HS = HS_;
    static constexpr bool rotating_dq = CONSUMERS == 3;
    // D of a key block's own queries is computed by its consumers; of the heads whose order is reversed, and of all where there
    // is no room for a tile of O, by the statistics kernel.
    static constexpr bool computes_D = HS == 64 && !rotating_dq;
    static constexpr int warpgroups = CONSUMERS, Bc = 64 * warpgroups; // keys of a block, 64 for each consumer
    static constexpr int writers = 2;                                  // dQ writers
    static constexpr int threads = (warpgroups + 1) * WARPGROUP_SIZE;  // warpgroup 0: producers and dQ writers
    // setmaxnreg; the kernel starts with as many registers for each thread as divide an SM's evenly.
    static constexpr bool writers_need_more = documents && !rotating_dq;
    static constexpr int producer_registers = rotating_dq ? 32 : writers_need_more ? 56 : 40;
    static constexpr int consumer_registers = rotating_dq ? 160 : writers_need_more ? 224 : 232;
    static_assert(producer_registers + warpgroups * consumer_registers <= (warpgroups + 1) * (65536 / threads / 8 * 8),
                  "");
    // Whether the dQ writer tells the consumer what the chain asks of its dQ tile
    static constexpr bool posts_chain = rotating_dq || documents;
    // The dQ tile that a warpgroup computes: of 64 queries. HS = 64: half of the queries of a step, all channels; HS = 96 and
    // 128: all queries of a step, half of the channels.
    static constexpr int dq_channels = HS == 64 ? 64 : HS / 2, parts = HS / dq_channels;
    static constexpr int dq_elements = 64 * dq_channels, dq_bytes = dq_elements * sizeof(float);
    // A TMA box is 64 rows of 64 channels, of 128 bytes; of K and V, and of dQ, a part of a head: at HS = 96 a quarter is 0.
    static constexpr int boxes = CEIL_DIV(HS, 64), box_row = 128;
    static_assert(boxes == parts, "");
    static constexpr int dq_tiles = rotating_dq ? 1 : warpgroups; // of a step
    static constexpr int Br = dq_tiles * dq_elements / HS;        // queries of a step
    // The last starts of a step, which come to shared memory with its queries: all, or, where there is no room for them, those
    // that tell whether consumers must read all in scratch.
    static constexpr int shared_starts = !documents ? 0 : computes_D ? 4 : Br;
    static constexpr int v_stages = rotating_dq ? 2 : 1;
    // Slices of 16 channels (a wgmma's K extent): in a box; and of K and V, operand A of S and dP, those kept in registers
    static constexpr int box_slices = dq_channels / 16;
    static constexpr int k_slices = HS == 96 ? (documents ? 2 : 3) : 0;
    static constexpr int v_slices = HS == 96 ? 6 : HS == 128 && !documents ? 2 : 0;
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
        int starts[2][shared_starts];                             // likewise
        const int* all_starts[documents ? 2 : 0];                 // of the step, in scratch
        // Barriers; attention/PROTOCOL.md has the table of who arrives and who waits.
        Mbarrier K_full[2], K_empty[2], V_full[v_stages], V_empty[v_stages];
        Mbarrier Q_full[2], Q_empty[2], dO_full[2], dO_empty[2];
        Mbarrier dS_full[2], dS_empty[2];
        Mbarrier dQ_full[writers], dQ_ready[writers], dKV_full[writers], dKV_empty;
        Mbarrier O_full, O_empty, work_full[2], work_empty[2];
        int2 key_block[2]; // KeyBlock::packed() of the work items that a producer has taken, for all roles
        const float* dq_source[writers]; // the accumulator in scratch whose copy is in dQ; posts_chain: or nullptr
        bool dq_last[writers];           // posts_chain: whether dQ is complete then
        int steps[documents ? 2 : 0];    // of the work items in key_block
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
    int* starts;       // with documents (B, padded T): permuted by statistics_row(); past T that of the last token
    int* steps;        // with documents (B, key_blocks): of a key block
    float* dq_sums;    // not in scratch: an output (dq_sum_rows(), NH * HS), or NULL
};

// ----------------------------------------------------------------------------
// The order in which CTAs take key blocks from the work counter. A CTA that adds its part of dQ behind those taken before it
// then sums in a fixed order, waits only for CTAs that run, and finds them ahead of it.
//
// Heads come in groups of group_heads, whose key blocks are interleaved: for every j all heads of the group. j descends and
// each key block begins at its own diagonal: so key block j + 1, which is taken before j, reaches every query block a step or
// more earlier, and its dQ has been added when j needs it. In a reversed group j ascends, longest first, and query blocks
// descend from the last. The last group, from first_reversed_head on, is reversed, so that all CTAs end at about the same
// time. Alternating groups are a wave each, every other one reversed: a CTA that had a short key block takes a long one next.

// The sizes of a launch, and the order that follows from them. A work item is a key block of a head.
struct BackwardProblem {
    int heads, key_blocks, query_blocks, work_items; // key blocks and query blocks of a head, key blocks of all heads
    bool alternating;                                // groups are a wave each; those with odd numbers are reversed
    int first_reversed_head, first_reversed_item;    // of the last group, which is reversed
    // Heads whose key blocks are interleaved: of a group, of the last but one, of the last.
    Divisor group_heads, last_heads, reversed_heads;
    Divisor group_items, NH; // key blocks of a group
    int T, padded_T;
    int64_t dq_tiles; // of all heads
};
template <class C> BackwardProblem backward_problem(int B, int T, int NH, int num_sms) {
    BackwardProblem p;
    p.T = T, p.padded_T = CEIL_DIV(T, padded_rows) * padded_rows, p.heads = B * NH, p.NH = NH;
    p.key_blocks = CEIL_DIV(T, C::Bc), p.query_blocks = CEIL_DIV(T, C::Br), p.work_items = p.heads * p.key_blocks;
    p.dq_tiles = (int64_t)p.heads * p.padded_T / C::Br * C::dq_tiles;
    // Groups alternate if there are heads for at least two waves, and if a wave of whole heads leaves at most 1/32 of the SMs
    // idle. Not with computes_D, where reversed heads before the last group would have no D; heads of 128 gain nothing by it,
    // and for those of 96 it was not tried.
    const int wave = num_sms / p.key_blocks;
    p.alternating = C::rotating_dq && p.heads >= 2 * wave && num_sms % p.key_blocks <= num_sms / 32;
    int group_heads = max(1, (int)(C::group_bytes / ((int64_t)T * C::HS * 8))),
        last = CEIL_DIV(2 * num_sms, p.key_blocks);
    if (p.alternating) { // the last group is one wave if the number of waves is even, else the rest and up to three waves
        const int rest = p.heads % (2 * wave);
        group_heads = wave;
        last = rest == 0 ? wave : min(3 * wave + rest, p.heads - wave);
    }
    p.first_reversed_head = p.heads - min(p.heads, last);
    p.first_reversed_item = p.first_reversed_head * p.key_blocks;
    p.group_heads = group_heads, p.group_items = group_heads * p.key_blocks;
    p.last_heads = max(1, p.first_reversed_head % group_heads), p.reversed_heads = p.heads - p.first_reversed_head;
    return p;
}

// A work item's head and key block.
struct KeyBlock {
    int head, j;
    bool reversed;          // j ascends from item to item, and query blocks are visited from the last to the diagonal
    int document_steps = 0; // with documents: as store_document_steps() computes them
    __host__ __device__ KeyBlock(int work_item, const BackwardProblem& p) {
        head = -1, j = 0, reversed = false;
        if (work_item >= p.work_items) { return; }
        const bool last = work_item >= p.first_reversed_item;
        const int group = p.group_items.quotient(work_item),
                  first = last ? p.first_reversed_head : group * p.group_heads.d;
        const bool whole = first + p.group_heads.d <= p.first_reversed_head;
        const Divisor& heads = last ? p.reversed_heads : whole ? p.group_heads : p.last_heads;
        reversed = last || (p.alternating && group % 2 == 1);
        int n = work_item - first * p.key_blocks, k = heads.quotient(n);
        j = reversed ? k : p.key_blocks - 1 - k;
        head = first + n - k * heads.d;
    }
    // Head and j as one thread of a CTA has found them, for the others.
    __host__ __device__ explicit KeyBlock(int2 packed)
        : head(packed.x), j(packed.y < 0 ? ~packed.y : packed.y), reversed(packed.y < 0) {}
    __host__ __device__ int2 packed() const { return make_int2(head, reversed ? ~j : j); }
    __host__ __device__ bool none() const { return head < 0; } // no work item is left
    __host__ __device__ int b(const BackwardProblem& p) const { return p.NH.quotient(head); }
    __host__ __device__ int h(const BackwardProblem& p) const { return p.NH.remainder(head); }
    // The number of steps: query blocks from the diagonal to the last row or, with documents, to the last query that sees a key
    // of the block. A key block has C::steps_per_block of its own.
    template <class C> __host__ __device__ int steps(const BackwardProblem& p) const {
        if (C::documents) { return document_steps; }
        return p.query_blocks - j * C::steps_per_block;
    }
    // The query block of step i, counted from the one that holds the key block's first key.
    template <class C> __host__ __device__ int query_offset(int i, const BackwardProblem& p) const {
        return reversed ? steps<C>(p) - 1 - i : i;
    }
};

// Key block n of a CTA, which its producer of Q has posted.
template <class C> __device__ inline KeyBlock posted_key_block(const typename C::Shared& s, uint32_t n) {
    KeyBlock block(s.key_block[n % 2]);
    if constexpr (C::documents) { block.document_steps = s.steps[n % 2]; }
    return block;
}

// Query t's share of the steps (key_blocks) of a row's key blocks: it is the last to see those from the first block of its
// document up to that of query t + 1's, if this is another. start, next_start: of the documents of t and t + 1.
template <class C> __host__ __device__ inline void store_document_steps(int* steps, int t, int start, int next_start,
                                                                        const BackwardProblem& p) {
    const int end = t + 1 < p.T ? next_start / C::Bc : p.key_blocks;
    for (int j = start / C::Bc; j < end; j++) { steps[j] = t / C::Br + 1 - j * C::steps_per_block; }
}

// The position of a query's statistics among those of 16 queries: rows 2c, 2c + 1, 2c + 8 and 2c + 9, which a thread with
// lane % 4 = c needs for the columns of its wgmma accumulator, become neighbours, one float4.
__host__ __device__ inline int statistics_row(int row) { return row % 8 / 2 * 4 + row / 8 * 2 + row % 2; }

// The position of key block j in the chain of those that contribute to the dQ of a query block, in the order of the work
// counter: dQ = sum of dS_j K_j over j = first .. jq, where key block jq holds the diagonal and behind = jq - j; first is 0 or,
// with documents, the first key block that one of the queries sees.
// Two accumulators in scratch alternate along the chain, so that a reduce-add may take the time of two steps. The first
// contribution to an accumulator is stored, the others are added. The last but one adds accumulator 1 to its own dQ and both
// to accumulator 0; the last one adds accumulator 0 to its own dQ, which completes it. attention/PROTOCOL.md has the table.
struct DqChain {
    int before, after; // number of key blocks in the chain before and after j
    __host__ __device__ DqChain(int j, bool reversed, int behind, int first = 0)
        : before(reversed ? j - first : behind), after(reversed ? behind : j - first) {}
    __host__ __device__ bool last() const { return after == 0; }
    // The accumulator that j's contribution goes to (not where j is last), and how many contributions it must hold by then.
    __host__ __device__ int accumulator() const { return after == 1 ? 0 : after % 2; }
    __host__ __device__ int accumulator_count() const { return after == 1 ? (before + 1) / 2 : before / 2; }
    // Whether an accumulator is added to j's own dQ, which one, and how many contributions it must hold by then.
    __host__ __device__ bool reads() const { return after < 2 && before > after; }
    __host__ __device__ int read_accumulator() const { return after; }
    __host__ __device__ int read_count() const { return after == 1 ? before / 2 : before / 2 + 1; }
};

} // namespace wgmma

#endif
