/*
The linear layers of decoding for four rows and more, in 16 bit from sm_90 on: the sums of decode/matmul.cuh in the same order,
so the same bits, with less latency from the previous kernel's end to the result. decode/linear.cuh has the launcher.

A CTA computes 16 MT rows and some tiles of 8 columns of out; a warp multiplies one segment of C of 32 rows. Its part of inp is
loaded from L2 into registers, as MMA operands. W is prefetched into shared memory before griddepcontrol.wait. A round is G
tiles, whose sums over segments are added through shared memory together.
- MT = 2: one round. A lane copies (cp.async) and reads its own 16 bytes of W, so no barrier is needed; the sums overwrite the
  warp's W, which leaves shared memory for a co-resident CTA of the next kernel.
- MT = 4, for many rows or columns: 16 warps, two for each segment, with W of two or three rounds in flight. While a round is
  multiplied, the sums of the previous one are added: one barrier a round. Up to 226 KB of shared memory.

If C has several splits, they are a cluster: each CTA stores its sums in the shared memory of the CTA that adds them.
*/
#ifndef LLMC_DECODE_BATCH_MATMUL_CUH
#define LLMC_DECODE_BATCH_MATMUL_CUH

#include <cooperative_groups.h>

#include "matmul.cuh"
#if !defined(PRECISION_FP32)
#include "llmc/cuda/hopper.cuh"
#endif

// Rows of inp, which the kernels here do not normalise. A step of fewer sequences is mostly one kernel (decode/step.cuh).
constexpr int BATCH_MIN_ROWS = 4;
constexpr int BATCH_MAX_CHUNKS = 4; // of a segment

// How a layer is cut: row tiles, groups of `tiles` tiles of columns, and splits
struct BatchTiling {
    int MT, threads, tiles, splits;
    size_t shared; // bytes
    unsigned blocks;
};

template <int MT> struct BatchTile {
    static constexpr int rows = 16 * MT, halves = MT / 2, threads = DECODE_THREADS * halves;
    static constexpr int G = MT == 4 ? 2 : 6,
                         at_once = MT == 4 ? 2 : 3; // tiles of a round; that a warp multiplies at once
    // Rounds that have a place for W
    __host__ __device__ static constexpr int ring(int chunks) { return MT != 4 ? 1 : chunks > 3 ? 3 : 4; }
    static constexpr int buffers = MT == 4 ? 2 : 0;     // of sums, beside W
    static constexpr int group = 2, groups = G / group; // tiles of which each thread has one pair of outputs
    static constexpr int tile_sums = (rows * 8 + 32 / group) * (int)sizeof(float);
    // Bytes of W: of a tile in a segment, and from a segment's tile to its next one. MT = 2: a tile's segments lie together.
    __host__ __device__ static constexpr int segment_bytes(int chunks) { return chunks * 512; }
    __host__ __device__ static constexpr int tile_bytes(int chunks) {
        return (MT == 4 ? 1 : DECODE_WARPS) * segment_bytes(chunks);
    }
    // Where a segment's sums of a tile are, tiles of a group on different banks; and from there to the next segment's
    template <int CHUNKS> __host__ __device__ static constexpr int sums_of(int tile) {
        return MT == 4 ? tile * tile_sums : tile * tile_bytes(CHUNKS) + tile % 2 * 64; // in the place of its W
    }
    template <int CHUNKS> __host__ __device__ static constexpr int sums_step() {
        return MT == 4 ? G * tile_sums : segment_bytes(CHUNKS);
    }
};
// The chunks that a kernel is compiled for
static inline int batch_chunks_of_kernel(int C) { return decode_most_chunks(C) <= 3 ? 3 : 4; }
// Whether every segment has three: those of 768 channels and four times as many
static inline bool batch_exact(int C) { return C == 3 * DECODE_CHUNK * DECODE_WARPS * decode_splits(C); }
// Bytes of shared memory: W of a segment's round; sums of all segments where they do not take its place; totals of the splits
__host__ __device__ inline int batch_round_bytes(int tiles, int chunks) { return tiles * chunks * 512; }
template <int MT> __host__ __device__ constexpr int batch_sums_bytes() { // of a buffer
    return MT == 4 ? DECODE_WARPS * BatchTile<MT>::G * BatchTile<MT>::tile_sums : 0;
}
template <int MT> __host__ __device__ inline int batch_totals(int splits) { // of a round
    return CEIL_DIV(BatchTile<MT>::groups, splits) * splits * BatchTile<MT>::threads;
}
template <int MT> static inline size_t batch_shared_bytes(int C, int tiles) {
    typedef BatchTile<MT> Tile;
    int round = tiles < Tile::G ? tiles : Tile::G, splits = decode_splits(C), chunks = batch_chunks_of_kernel(C);
    size_t W = (size_t)DECODE_WARPS * Tile::ring(chunks) * batch_round_bytes(round, chunks);
    size_t totals = splits == 1 ? 0 : (size_t)batch_totals<MT>(splits) * (MT == 4 ? 2 : 1) * sizeof(float2);
    size_t barrier = splits == 1 ? 0 : 16; // of totals, MT = 2
    return W + Tile::buffers * batch_sums_bytes<MT>() + totals + barrier;
}

#if !defined(PRECISION_FP32)

// EXACT: every segment has CHUNKS chunks
template <int MT, int CHUNKS, bool EXACT> struct BatchWarp {
    typedef BatchTile<MT> Tile;
    uint4 x[4][CHUNKS]; // rows 8 i + r of the warp's 32, columns 8 q .. 8 q + 7 of chunk u
    int segment, half;  // of C, and of the CTA's rows
    int begin, chunks;  // of the segment
    int eights;         // of rows that are there; EXACT: the others are not loaded
    int r, q;           // lane 4 r + q

    __device__ BatchWarp(const DecodeLinear& p, int splits, int rank, int thread) {
        segment = thread / WARP_SIZE % DECODE_WARPS, half = thread / DECODE_THREADS;
        r = thread % WARP_SIZE / 4, q = thread % 4;
        if (EXACT) {
            begin = (rank * DECODE_WARPS + segment) * CHUNKS, chunks = CHUNKS;
            return;
        }
        begin = decode_segment(p.C, splits, rank * DECODE_WARPS + segment);
        chunks = decode_segment(p.C, splits, rank * DECODE_WARPS + segment + 1) - begin;
    }
    __device__ bool has(int u) const { return EXACT || u < chunks; }
    __device__ void load_rows(const DecodeLinear& p, int m0) {
        eights = CEIL_DIV(p.M - m0 - 32 * half, 8);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int m = min(m0 + 32 * half + 8 * i + r, p.M - 1);
            const floatX* row = p.inp + (size_t)m * p.C + begin * DECODE_CHUNK + 8 * q;
#pragma unroll
            for (int u = 0; u < CHUNKS; u++) {
                x[i][u] = make_uint4(0, 0, 0, 0);
                if (EXACT ? i < eights : has(u)) {
                    x[i][u] = __ldcg(reinterpret_cast<const uint4*>(row + u * DECODE_CHUNK));
                }
            }
        }
    }
    // Tiles first .. first+count-1 of W, to the lane's places, 512 bytes apart: a half has every other one
    __device__ void load_weights(const DecodeLinear& p, char* to, int first, int count) const {
        for (int n = half; n < count; n += Tile::halves) {
            int o = min((first + n) * 8 + r, p.OC - 1);
            const floatX* row = p.weight + (size_t)o * p.C + begin * DECODE_CHUNK + 8 * q;
#pragma unroll
            for (int u = 0; u < CHUNKS; u++) {
                if (!has(u)) { break; }
                mma::cp_async_16((uint32_t)__cvta_generic_to_shared(to + n * Tile::tile_bytes(CHUNKS) + u * 512),
                                 row + u * DECODE_CHUNK, 16);
            }
        }
        mma::cp_async_commit_group();
    }
    // Tiles first .. first+at_once-1 of a round of `count`, from the lane's places, to the segment's sums
    __device__ void multiply(char* sums, const char* w, int first, int count) const {
        float d[Tile::at_once][2][4] = {};
#pragma unroll
        for (int u = 0; u < CHUNKS; u++) {
            if (!has(u)) { break; }
#pragma unroll
            for (int n = 0; n < Tile::at_once; n++) {
                const uint4 b =
                    *reinterpret_cast<const uint4*>(w + min(first + n, count - 1) * Tile::tile_bytes(CHUNKS) + u * 512);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint4 low = x[2 * i][u], high = x[2 * i + 1][u];
                    const uint32_t k0[4] = {low.x, high.x, low.y, high.y};
                    mma::mma_m16n8k16(d[n][i], k0, b.x, b.y);
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const uint4 low = x[2 * i][u], high = x[2 * i + 1][u];
                    const uint32_t k16[4] = {low.z, high.z, low.w, high.w};
                    mma::mma_m16n8k16(d[n][i], k16, b.z, b.w);
                }
            }
        }
        __syncwarp(); // MT = 2: the tiles' W has been read: sums may take its place
#pragma unroll
        for (int n = 0; n < Tile::at_once; n++) {
            if (first + n >= count) { break; }
            char* to = sums + Tile::template sums_of<CHUNKS>(first + n) + (32 * half + r) * 32 + 8 * q;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (EXACT && i >= eights) { break; }
                *reinterpret_cast<float2*>(to + 8 * i * 32) =
                    make_float2(d[n][i / 2][i % 2 * 2], d[n][i / 2][i % 2 * 2 + 1]);
            }
        }
    }
};

// A thread's pairs of outputs of a round: a row, and two columns in each group of tiles
template <int MT> struct BatchPairs {
    typedef BatchTile<MT> Tile;
    int tile_row, column, row, o; // o: of the first group
    bool row_valid;
    uint32_t bias[Tile::groups], old[Tile::groups];
    float largest = NAN; // MT = 4: of the outputs so far, and its column
    int token = 0;

    __device__ BatchPairs(const DecodeLinear& p, int m0, int thread) {
        tile_row = thread / (4 * Tile::group), column = thread % (4 * Tile::group) * 2;
        row = m0 + tile_row, row_valid = row < p.M;
    }
    __device__ int o_of(int g) const { return o + g * 8 * Tile::group; }
    __device__ bool valid(const DecodeLinear& p, int g, int end) const {
        return row_valid && o_of(g) < min(p.OC, end * 8);
    }
    __device__ const floatX* out(const DecodeLinear& p, int g) const {
        return p.out + (size_t)row * p.stride + o_of(g);
    }
    // The round that begins with tile `first`, of a CTA whose tiles end before `end`
    __device__ void load_bias(const DecodeLinear& p, int first, int end) {
        o = first * 8 + column;
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            bias[g] = ld_global_cg_if(p.bias != NULL && valid(p, g, end), p.bias + o_of(g));
        }
    }
    __device__ void load_old(const DecodeLinear& p, int end) {
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            old[g] = ld_global_cg_if(p.epilogue == DECODE_RESIDUAL && valid(p, g, end), out(p, g));
        }
    }
    // Adds the warps' segments in order, for a round of `count` tiles; all loads are issued before the first addition
    template <int CHUNKS> __device__ void add(float2 (&sum)[Tile::groups], const char* sums, int count) const {
        float2 x[Tile::groups][DECODE_WARPS];
        const int tile = column / 8;
        sums += tile_row * 32 + column % 8 * 4;
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            if (g * Tile::group >= count) { break; }
            const char* from = sums + Tile::template sums_of<CHUNKS>(g * Tile::group);
            from += g * Tile::group + tile < count ? Tile::template sums_of<CHUNKS>(tile) : 0;
#pragma unroll
            for (int s = 0; s < DECODE_WARPS; s++) {
                x[g][s] = *reinterpret_cast<const float2*>(from + s * Tile::template sums_step<CHUNKS>());
            }
        }
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            float low[DECODE_WARPS], high[DECODE_WARPS];
#pragma unroll
            for (int s = 0; s < DECODE_WARPS; s++) { low[s] = x[g][s].x, high[s] = x[g][s].y; }
            sum[g] = make_float2(decode_split_sum(low), decode_split_sum(high));
        }
    }
    __device__ void keep_largest(float y, int o) {
        if (y > largest || largest != largest) { largest = y, token = o; }
    }
    // In fp32, of a layer without a bias; with MT = 4 keeps the largest
    __device__ void store_logits(const DecodeLinear& p, const float2 (&sum)[Tile::groups],
                                 const bool (&write)[Tile::groups]) {
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            if (!write[g]) { continue; }
            const bool both = o_of(g) + 1 < p.OC;
            float* to = p.logits + (size_t)row * p.stride + o_of(g);
            if (both) { *reinterpret_cast<float2*>(to) = sum[g]; }
            if (!both) { to[0] = sum[g].x; }
            if (MT == 4) { keep_largest(sum[g].x, o_of(g)); }
            if (MT == 4 && both) { keep_largest(sum[g].y, o_of(g) + 1); }
        }
    }
    // Rounded where the training's forward pass rounds; write[g]: whether group g is stored
    __device__ void store(const DecodeLinear& p, const float2 (&sum)[Tile::groups], const bool (&write)[Tile::groups]) {
        floatX z[Tile::groups][2];
        if (p.logits != NULL) {
            store_logits(p, sum, write);
            return;
        }
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            const float2 b = mma::float2_of(bias[g]);
            z[g][0] = (floatX)(sum[g].x + b.x), z[g][1] = (floatX)(sum[g].y + b.y);
        }
        if (p.epilogue == DECODE_GELU) {
#pragma unroll
            for (int i = 0; i < 2 * Tile::groups; i++) {
                floatX& y = z[i / 2][i % 2];
                y = (floatX)gelu((float)y, gelu_sigma((float)y));
            }
        }
        if (p.epilogue == DECODE_RESIDUAL) {
#pragma unroll
            for (int g = 0; g < Tile::groups; g++) {
                const float2 before = mma::float2_of(old[g]);
                z[g][0] = (floatX)(before.x + (float)z[g][0]), z[g][1] = (floatX)(before.y + (float)z[g][1]);
            }
        }
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            if (!write[g]) { continue; }
            floatX* to = p.out + (size_t)row * p.stride + o_of(g);
            if (o_of(g) + 1 < p.OC) {
                *reinterpret_cast<uint32_t*>(to) = mma::cvt_rn_x2((float)z[g][0], (float)z[g][1]);
            } else {
                to[0] = z[g][0];
            }
        }
    }
    // The row's largest one of this CTA, to memory. A thread without outputs has NaN of column 0, which is below all numbers.
    __device__ void store_key(const DecodeLinear& p) const {
        unsigned long long key = logit_key(largest, token);
        for (int offset = 2 * Tile::group; offset > 0; offset /= 2) {
            key = max(key, __shfl_xor_sync(0xffffffffu, key, offset));
        }
        if (row_valid && column == 0) { atomicMax(&p.row_keys[row], key); }
    }
};

// How many groups of a round of `count` tiles the CTA of a rank adds; splits: a power of two
template <int MT> __device__ inline int batch_groups_of(int rank, int splits, int count) {
    const int groups = CEIL_DIV(count, BatchTile<MT>::group);
    int n = 0;
#pragma unroll
    for (int g = 0; g < BatchTile<MT>::groups; g++) { n += g < groups && (g & (splits - 1)) == rank; }
    return n;
}

// Adds the segments' sums of a round of `count` tiles that ends before tile `end`, and the splits' totals: with MT = 2 they are
// sent to the barrier totals_full of the CTA that adds them, which spares all of them the fences of a cluster's barrier.
template <int MT, int CHUNKS>
__device__ inline void batch_finish(const DecodeLinear& p, BatchPairs<MT>& pairs, const char* sums, float2* totals,
                                    int count, int end, int splits, int rank, hopper::Mbarrier* totals_full = NULL) {
    typedef BatchTile<MT> Tile;
    float2 sum[Tile::groups];
    bool write[Tile::groups];
    pairs.template add<CHUNKS>(sum, sums, count);
#pragma unroll
    for (int g = 0; g < Tile::groups; g++) { write[g] = (g & (splits - 1)) == rank && pairs.valid(p, g, end); }
#ifdef DEPENDENT_LAUNCH_CODE
    if (splits > 1) {
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) { // group g is added by the CTA of rank g % splits
            if (g * Tile::group >= count) { break; }
            float2* to = totals + ((g & -splits) + rank) * Tile::threads + threadIdx.x;
            if (MT == 2) {
                hopper::st_async(to, sum[g], *totals_full, g & (splits - 1));
            } else {
                *cooperative_groups::this_cluster().map_shared_rank(to, g & (splits - 1)) = sum[g];
            }
        }
        if (MT == 4) {
            cooperative_groups::this_cluster().sync(); // all totals are there
        } else if (batch_groups_of<MT>(rank, splits, count) > 0) {
            totals_full->wait(0);
        }
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            if (!write[g]) { continue; }
            const float2* from = totals + (g & -splits) * Tile::threads + threadIdx.x;
            sum[g] = from[0];
#pragma unroll 4
            for (int split = 1; split < splits; split++) {
                sum[g].x += from[split * Tile::threads].x, sum[g].y += from[split * Tile::threads].y;
            }
        }
    }
#endif
    pairs.store(p, sum, write);
}

// Which rows and tiles a CTA has
template <int MT> struct BatchPart {
    int splits, rank, m0, first, end;
    __device__ BatchPart(const DecodeLinear& p, int tiles) : splits(decode_splits(p.C)) {
        rank = blockIdx.x & (splits - 1);
        const int block = blockIdx.x / splits, row_tiles = CEIL_DIV(p.M, BatchTile<MT>::rows);
        m0 = block % row_tiles * BatchTile<MT>::rows;
        first = block / row_tiles * tiles, end = min(first + tiles, CEIL_DIV(p.OC, 8));
    }
};

template <int CHUNKS, bool EXACT> __global__ void __launch_bounds__(DECODE_THREADS, CHUNKS == 4 ? 1 : 2)
    decode_batch_kernel(DecodeLinear p, int tiles) {
#ifdef DEPENDENT_LAUNCH_CODE
    typedef BatchTile<2> Tile;
    extern __shared__ int4 decode_shared[];
    const BatchPart<2> part(p, tiles);
    const int thread = threadIdx.x, lane = thread % WARP_SIZE, count = part.end - part.first;
    if (!p.next_reads_early) { launch_dependents(); }

    // shared memory: W of each warp, where its sums go, too; totals of the splits, and the barrier that counts their bytes
    char* sums = reinterpret_cast<char*>(decode_shared);
    float2* totals = reinterpret_cast<float2*>(sums + DECODE_WARPS * batch_round_bytes(tiles, CHUNKS));
    hopper::Mbarrier* totals_full = reinterpret_cast<hopper::Mbarrier*>(totals + batch_totals<2>(part.splits));
    if (part.splits > 1) {
        if (thread == 0) {
            const int groups = batch_groups_of<2>(part.rank, part.splits, count);
            totals_full->init(1);
            hopper::fence_mbarrier_init();
            totals_full->expect_tx(groups * part.splits * Tile::threads * (int)sizeof(float2));
        }
        __syncwarp();
        hopper::barrier_cluster_arrive_relaxed(); // a release would wait for earlier memory accesses
    }
    BatchWarp<2, CHUNKS, EXACT> w(p, part.splits, part.rank, thread);
    char *warp_sums = sums + w.segment * Tile::segment_bytes(CHUNKS), *weights = warp_sums + lane * 16;
    w.load_weights(p, weights, part.first, count);
    BatchPairs<2> pairs(p, part.m0, thread);
    pairs.load_bias(p, part.first, part.end);
    if (part.splits > 1) { hopper::barrier_cluster_wait(); } // its CTAs are there

    wait_for_previous();
    if (p.next_reads_early) { launch_dependents(); }
    w.load_rows(p, part.m0);
    if (p.positions != NULL && pairs.row_valid) { pairs.row_valid = p.positions[pairs.row] >= 0; }
    mma::cp_async_wait_group<0>();
#pragma unroll 1
    for (int n = 0; n < count; n += Tile::at_once) { w.multiply(warp_sums, weights, n, count); }
    pairs.load_old(p, part.end);
    __syncthreads();
    batch_finish<2, CHUNKS>(p, pairs, sums, totals, count, part.end, part.splits, part.rank, totals_full);
#endif
}

template <int CHUNKS, bool EXACT> __global__ void __launch_bounds__(BatchTile<4>::threads, 1)
    decode_wide_kernel(DecodeLinear p, int tiles) {
#ifdef DEPENDENT_LAUNCH_CODE
    typedef BatchTile<4> Tile;
    constexpr int RING = Tile::ring(CHUNKS);
    extern __shared__ int4 decode_shared[];
    const BatchPart<4> part(p, tiles);
    const int thread = threadIdx.x, lane = thread % WARP_SIZE, rounds = CEIL_DIV(part.end - part.first, Tile::G);
    if (!p.next_reads_early) { launch_dependents(); }

    // shared memory: the ring of W of each segment, two buffers of sums, and of totals of the splits
    const int round_bytes = batch_round_bytes(min(tiles, Tile::G), CHUNKS);
    char* ring = reinterpret_cast<char*>(decode_shared);
    char* sums = ring + DECODE_WARPS * RING * round_bytes;
    float2* totals = reinterpret_cast<float2*>(sums + Tile::buffers * batch_sums_bytes<4>());
    constexpr int sums_bytes = Tile::G * Tile::tile_sums; // of a segment

    BatchWarp<4, CHUNKS, EXACT> w(p, part.splits, part.rank, thread);
    ring += w.segment * RING * round_bytes + lane * 16;
    const auto first_of = [&](int round) { return part.first + round * Tile::G; };
    const auto count_of = [&](int round) { return min(Tile::G, part.end - first_of(round)); };
    const auto load = [&](int round) {
        w.load_weights(p, ring + round % RING * round_bytes, first_of(round), count_of(round));
    };
    for (int round = 0; round < RING - 1; round++) { load(round); }
    BatchPairs<4> pairs(p, part.m0, thread);
    if (part.splits > 1) { cooperative_groups::this_cluster().sync(); } // its CTAs are there

    wait_for_previous();
    if (p.next_reads_early) { launch_dependents(); }
    w.load_rows(p, part.m0);
    if (p.positions != NULL && pairs.row_valid) { pairs.row_valid = p.positions[pairs.row] >= 0; }
#pragma unroll 1
    for (int round = 0; round <= rounds; round++) {
        mma::cp_async_wait_group<RING - 2>();
        __syncthreads(); // W of this round is there, and the sums of the one before; what went before has been read
        load(round + RING - 1);
        if (round > 0) {
            pairs.load_bias(p, first_of(round - 1), part.end);
            pairs.load_old(p, part.end);
        }
        if (round < rounds) {
            w.multiply(sums + round % 2 * batch_sums_bytes<4>() + w.segment * sums_bytes,
                       ring + round % RING * round_bytes, 0, count_of(round));
        }
        if (round > 0) {
            const int buffer = (round - 1) % 2;
            batch_finish<4, CHUNKS>(p, pairs, sums + buffer * batch_sums_bytes<4>(),
                                    totals + buffer * batch_totals<4>(part.splits), count_of(round - 1), part.end,
                                    part.splits, part.rank);
        }
    }
    if (p.row_keys != NULL && part.splits == 1) { pairs.store_key(p); }
#endif
}

// ----------------------------------------------------------------------------
// The launcher

typedef void (*DecodeBatchKernel)(DecodeLinear p, int tiles);

static inline DecodeBatchKernel batch_kernel(int MT, int C) {
    if (batch_exact(C)) { return MT == 4 ? decode_wide_kernel<3, true> : decode_batch_kernel<3, true>; }
    if (batch_chunks_of_kernel(C) == 3) {
        return MT == 4 ? decode_wide_kernel<3, false> : decode_batch_kernel<3, false>;
    }
    return MT == 4 ? decode_wide_kernel<4, false> : decode_batch_kernel<4, false>;
}

template <int MT> static inline BatchTiling batch_tiling_of(DeviceCode gpu, const DecodeLinear& p, int most) {
    BatchTiling t = {};
    int row_tiles = CEIL_DIV(p.M, 16 * MT), columns = CEIL_DIV(p.OC, 8);
    t.MT = MT, t.threads = BatchTile<MT>::threads, t.splits = decode_splits(p.C);
    int groups = gpu.sms / (row_tiles * t.splits);
    t.tiles = CEIL_DIV(columns, groups > 1 ? groups : 1);
    t.tiles = t.tiles < most ? t.tiles : most;
    t.shared = batch_shared_bytes<MT>(p.C, t.tiles);
    t.blocks = (unsigned)CEIL_DIV(columns, t.tiles) * (unsigned)row_tiles * (unsigned)t.splits;
    return t;
}

// One round where that takes few CTAs, else many
static inline BatchTiling batch_tiling(DeviceCode gpu, const DecodeLinear& p) {
    BatchTiling t = batch_tiling_of<2>(gpu, p, BatchTile<2>::G);
    return t.blocks <= 4 * (unsigned)gpu.sms ? t : batch_tiling_of<4>(gpu, p, INT_MAX);
}

// Whether the kernels here serve a layer: their shared memory fits sm_90's 227 KB, not always the 99 KB of sm_120
static inline bool decode_batch_serves(DeviceCode gpu, const DecodeLinear& p) {
    return gpu.sm_90 && p.M >= BATCH_MIN_ROWS && p.C % DECODE_CHUNK == 0 &&
           decode_most_chunks(p.C) <= BATCH_MAX_CHUNKS && p.stride % 2 == 0 && (p.bias == NULL || p.OC % 2 == 0) &&
           batch_tiling(gpu, p).shared <= gpu.shared_limit;
}
#else
static inline BatchTiling batch_tiling(DeviceCode, const DecodeLinear&) { return {}; }
static inline bool decode_batch_serves(DeviceCode, const DecodeLinear&) { return false; }
static inline void (*batch_kernel(int, int))(DecodeLinear p, int tiles) { return NULL; }
#endif

#endif
