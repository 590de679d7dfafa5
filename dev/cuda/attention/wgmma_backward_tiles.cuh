/*
What the roles of attention_backward_wgmma.cu share: tiles, shared memory and barriers of a configuration, scratch, and the
order in which key blocks add to dQ.
*/
#ifndef WGMMA_BACKWARD_TILES_CUH
#define WGMMA_BACKWARD_TILES_CUH

#include "key_blocks.cuh"
#include "dev/cuda/attention/attention.h"
#include "llmc/cuda/hopper.cuh"
#include "llmc/cuda/mma.cuh"

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

} // namespace wgmma

#endif
