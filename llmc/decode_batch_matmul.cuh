/*
The linear layers of decoding for more than 16 rows, in 16 bit from sm_90 on: the sums of decode_matmul.cuh in the same order,
so the same bits, with a shorter way from the kernel before to the result. Also the launcher for any number of rows.

A CTA has 16 MT rows of inp and some tiles of 8 columns of out; a warp multiplies a segment of C. Its part of inp goes from L2
straight into registers, as MMA operands. Its part of W waits in shared memory, of which a lane writes (cp.async) and reads its
own 16 bytes, so that nobody waits for a barrier, and is asked for before the kernel waits for the one that computes inp. A
round is G tiles; the segments' sums of all of them are added through shared memory at once.
- MT = 2: one round. The sums take the place of the warp's W, so that the next kernel's CTA finds room beside this one.
- MT = 4: rounds follow each other, with W of some of them on the way: for many rows or columns. Up to 211 KB of shared memory.

The splits of a C that has several are a cluster: each CTA stores its sums in the shared memory of the one that adds them.
*/
#ifndef LLMC_DECODE_BATCH_MATMUL_CUH
#define LLMC_DECODE_BATCH_MATMUL_CUH

#include "decode_matmul.cuh"

// Rows of inp, which is normalised before; fewer are one tile of decode_matmul.cuh
constexpr int BATCH_MIN_ROWS = DECODE_NORM_ROWS + 1;
constexpr int BATCH_MAX_CHUNKS = 4; // of a segment

// How a layer is cut: row tiles, groups of `tiles` tiles of columns, and splits
struct BatchTiling {
    int MT, tiles, splits;
    size_t shared; // bytes
    unsigned blocks;
};

template <int MT> struct BatchTile {
    static constexpr int rows = 16 * MT, G = MT == 4 ? 3 : 6; // tiles of a round
    static constexpr int at_once = 3;                         // of them that a warp holds in registers
    static constexpr int ring = MT == 4 ? 3 : 1;              // rounds whose W is on the way
    static constexpr int group = 4 / MT, groups = G / group;  // tiles of 256 pairs of outputs, one for each thread
    // Where a warp's sums of a tile are, in bytes: tiles of a group on different banks
    static constexpr int tile_sums = (rows * 8 + 32 / group) * (int)sizeof(float);
    template <int CHUNKS> __host__ __device__ static constexpr int sums_of(int tile) {
        return MT == 4 ? tile * tile_sums : tile * CHUNKS * 512 + tile % 2 * 64; // in the place of its W
    }
};
static inline int batch_chunks(int C) { return CEIL_DIV(C / DECODE_CHUNK, DECODE_WARPS * decode_splits(C)); }
// The chunks that a kernel is compiled for
static inline int batch_chunks_of_kernel(int C) { return batch_chunks(C) <= 3 ? 3 : 4; }
// Bytes of shared memory: W of a warp's round; sums of all warps where they do not take its place; totals of the splits
__host__ __device__ inline int batch_round_bytes(int tiles, int chunks) { return tiles * chunks * 512; }
template <int MT> __host__ __device__ inline int batch_sums_bytes() {
    typedef BatchTile<MT> Tile;
    return MT == 4 ? DECODE_WARPS * Tile::G * Tile::tile_sums : 0;
}
template <int MT> static inline size_t batch_shared_bytes(int C, int tiles) {
    typedef BatchTile<MT> Tile;
    int round = tiles < Tile::G ? tiles : Tile::G, rounds = CEIL_DIV(tiles, round), splits = decode_splits(C);
    size_t W = (size_t)DECODE_WARPS * (rounds < Tile::ring ? rounds : Tile::ring) *
               batch_round_bytes(round, batch_chunks_of_kernel(C));
    size_t totals = splits == 1 ? 0 : (size_t)CEIL_DIV(Tile::groups, splits) * splits * DECODE_THREADS * sizeof(float2);
    return W + batch_sums_bytes<MT>() + totals;
}

#if !defined(PRECISION_FP32)

template <int MT, int CHUNKS> struct BatchWarp {
    typedef BatchTile<MT> Tile;
    uint4 x[2 * MT][CHUNKS]; // rows 8 i + r, columns 8 q .. 8 q + 7 of chunk u
    int begin, chunks, r, q; // the warp's segment of C; lane 4 r + q

    __device__ void load_rows(const DecodeLinear& p, int m0) {
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            const floatX* row = p.inp + (size_t)min(m0 + 8 * i + r, p.M - 1) * p.C + begin * DECODE_CHUNK + 8 * q;
#pragma unroll
            for (int u = 0; u < CHUNKS; u++) {
                x[i][u] = make_uint4(0, 0, 0, 0);
                if (u < chunks) { x[i][u] = __ldcg(reinterpret_cast<const uint4*>(row + u * DECODE_CHUNK)); }
            }
        }
    }
    // Tiles first .. first+count-1 of W, to the lane's places, 512 bytes apart
    __device__ void load_weights(const DecodeLinear& p, char* to, int first, int count) const {
        for (int n = 0; n < count; n++) {
            int o = min((first + n) * 8 + r, p.OC - 1);
            const floatX* row = p.weight + (size_t)o * p.C + begin * DECODE_CHUNK + 8 * q;
#pragma unroll
            for (int u = 0; u < CHUNKS; u++) {
                if (u >= chunks) { break; }
                mma::cp_async_16((uint32_t)__cvta_generic_to_shared(to + (n * CHUNKS + u) * 512),
                                 row + u * DECODE_CHUNK, 16);
            }
        }
        mma::cp_async_commit_group();
    }
    // Tiles first .. first+at_once-1 of a round of `count`, from the lane's places, to the warp's sums
    __device__ void multiply(char* sums, const char* w, int first, int count) const {
        float d[Tile::at_once][MT][4] = {};
#pragma unroll
        for (int u = 0; u < CHUNKS; u++) {
            if (u >= chunks) { break; }
#pragma unroll
            for (int n = 0; n < Tile::at_once; n++) {
                const uint4 b = *reinterpret_cast<const uint4*>(w + (min(first + n, count - 1) * CHUNKS + u) * 512);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    const uint4 low = x[2 * i][u], high = x[2 * i + 1][u];
                    const uint32_t k0[4] = {low.x, high.x, low.y, high.y};
                    mma::mma_m16n8k16(d[n][i], k0, b.x, b.y);
                }
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    const uint4 low = x[2 * i][u], high = x[2 * i + 1][u];
                    const uint32_t k16[4] = {low.z, high.z, low.w, high.w};
                    mma::mma_m16n8k16(d[n][i], k16, b.z, b.w);
                }
            }
        }
        __syncwarp(); // the tiles' W has been read: sums may take its place
#pragma unroll
        for (int n = 0; n < Tile::at_once; n++) {
            if (first + n >= count) { break; }
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) {
                *reinterpret_cast<float2*>(sums + Tile::template sums_of<CHUNKS>(first + n) + (8 * i + r) * 32 +
                                           8 * q) = make_float2(d[n][i / 2][i % 2 * 2], d[n][i / 2][i % 2 * 2 + 1]);
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
            bias[g] = 0;
            if (p.bias != NULL && valid(p, g, end)) { bias[g] = *reinterpret_cast<const uint32_t*>(p.bias + o_of(g)); }
        }
    }
    __device__ void load_old(const DecodeLinear& p, int end) {
#pragma unroll
        for (int g = 0; g < Tile::groups; g++) {
            old[g] = 0;
            if (p.epilogue == DECODE_RESIDUAL && valid(p, g, end)) {
                old[g] = __ldcg(reinterpret_cast<const uint32_t*>(out(p, g)));
            }
        }
    }
    // Sum of the warps' segments, in their order
    template <int CHUNKS> __device__ float2 sum(const char* sums, int warp_bytes, int g) const {
        sums += Tile::template sums_of<CHUNKS>(g * Tile::group + column / 8) + tile_row * 32 + column % 8 * 4;
        float2 x[DECODE_WARPS], sum;
#pragma unroll
        for (int s = 0; s < DECODE_WARPS; s++) { x[s] = *reinterpret_cast<const float2*>(sums + s * warp_bytes); }
        sum = x[0];
#pragma unroll
        for (int s = 1; s < DECODE_WARPS; s++) { sum.x += x[s].x, sum.y += x[s].y; }
        return sum;
    }
    // Rounded where the training's forward pass rounds
    __device__ void store(const DecodeLinear& p, int g, float2 sum) const {
        const float2 b = mma::float2_of(bias[g]), before = mma::float2_of(old[g]);
        floatX z[2] = {(floatX)(sum.x + b.x), (floatX)(sum.y + b.y)};
        if (p.epilogue == DECODE_GELU) {
            z[0] = (floatX)gelu((float)z[0], gelu_sigma((float)z[0]));
            z[1] = (floatX)gelu((float)z[1], gelu_sigma((float)z[1]));
        }
        if (p.epilogue == DECODE_RESIDUAL) {
            z[0] = (floatX)(before.x + (float)z[0]), z[1] = (floatX)(before.y + (float)z[1]);
        }
        floatX* to = p.out + (size_t)row * p.stride + o_of(g);
        if (o_of(g) + 1 < p.OC) {
            *reinterpret_cast<uint32_t*>(to) = mma::cvt_rn_x2((float)z[0], (float)z[1]);
        } else {
            to[0] = z[0];
        }
    }
};

template <int MT, int CHUNKS> __global__ void __launch_bounds__(DECODE_THREADS, MT == 4 || CHUNKS == 4 ? 1 : 2)
    decode_batch_kernel(DecodeLinear p, int tiles) {
#ifdef DEPENDENT_LAUNCH_CODE
    typedef BatchTile<MT> Tile;
    namespace cg = cooperative_groups;
    extern __shared__ int4 decode_shared[];
    const int thread = threadIdx.x, warp = thread / WARP_SIZE, lane = thread % WARP_SIZE;
    const int splits = decode_splits(p.C), rank = blockIdx.x & (splits - 1), block = blockIdx.x / splits;
    const int row_tiles = CEIL_DIV(p.M, Tile::rows), m0 = block % row_tiles * Tile::rows;
    const int first = block / row_tiles * tiles, end = min(first + tiles, CEIL_DIV(p.OC, 8));

    if (!p.next_reads_early) { launch_dependents(); }

    // shared memory: W of each warp (ring), sums, totals of the splits
    const int round_bytes = batch_round_bytes(min(tiles, Tile::G), CHUNKS);
    const int warp_bytes = min(CEIL_DIV(tiles, Tile::G), Tile::ring) * round_bytes;
    char* ring = reinterpret_cast<char*>(decode_shared);
    char* sums = MT == 4 ? ring + DECODE_WARPS * warp_bytes : ring;
    const int sums_bytes = MT == 4 ? Tile::G * Tile::tile_sums : warp_bytes; // of a warp
    float2* totals = reinterpret_cast<float2*>(ring + DECODE_WARPS * warp_bytes + batch_sums_bytes<MT>());
    ring += warp * warp_bytes + lane * 16;

    BatchWarp<MT, CHUNKS> w;
    w.r = lane / 4, w.q = lane % 4;
    w.begin = decode_segment(p.C, splits, rank * DECODE_WARPS + warp);
    w.chunks = decode_segment(p.C, splits, rank * DECODE_WARPS + warp + 1) - w.begin;
#pragma unroll
    for (int i = 0; i < Tile::ring; i++) {
        w.load_weights(p, ring + i * round_bytes, first + i * Tile::G, min(Tile::G, end - first - i * Tile::G));
    }
    BatchPairs<MT> pairs(p, m0, thread);
    pairs.load_bias(p, first, end);
    if (splits > 1) { cg::this_cluster().sync(); } // its CTAs are there

    wait_for_previous();
    if (p.next_reads_early) { launch_dependents(); }
    w.load_rows(p, m0);
    if (p.positions != NULL && pairs.row_valid) { pairs.row_valid = p.positions[pairs.row] >= 0; }

    for (int at = first, slot = 0; at < end; at += Tile::G) {
        const int count = min(Tile::G, end - at);
        mma::cp_async_wait_group<Tile::ring - 1>();
        if (MT == 4 && at > first) { __syncthreads(); } // the sums before have been read
#pragma unroll 1
        for (int n = 0; n < count; n += Tile::at_once) {
            w.multiply(sums + warp * sums_bytes, ring + slot * round_bytes, n, count);
        }
        pairs.load_old(p, end);
        if (MT == 4) {
            const int next = at + Tile::ring * Tile::G;
            w.load_weights(p, ring + slot * round_bytes, next, min(Tile::G, end - next));
            slot = slot + 1 == Tile::ring ? 0 : slot + 1;
        }
        __syncthreads();
        if (splits == 1) {
#pragma unroll
            for (int g = 0; g < Tile::groups; g++) {
                if (pairs.valid(p, g, end)) { pairs.store(p, g, pairs.template sum<CHUNKS>(sums, sums_bytes, g)); }
            }
        } else { // group g is added by the CTA of rank g % splits
            cg::cluster_group cluster = cg::this_cluster();
            if (at > first) { cluster.sync(); } // the totals before have been read
#pragma unroll
            for (int g = 0; g < Tile::groups; g++) {
                if (g * Tile::group >= count) { break; }
                float2* to = cluster.map_shared_rank(totals, g % splits);
                to[(g / splits * splits + rank) * DECODE_THREADS + thread] =
                    pairs.template sum<CHUNKS>(sums, sums_bytes, g);
            }
            cluster.sync(); // all totals are there
#pragma unroll
            for (int g = 0; g < Tile::groups; g++) {
                if (g % splits != rank || !pairs.valid(p, g, end)) { continue; }
                const float2* from = totals + g / splits * splits * DECODE_THREADS + thread;
                float2 sum = from[0];
                for (int split = 1; split < splits; split++) {
                    sum.x += from[split * DECODE_THREADS].x, sum.y += from[split * DECODE_THREADS].y;
                }
                pairs.store(p, g, sum);
            }
        }
        if (MT == 4) { pairs.load_bias(p, at + Tile::G, end); }
    }
#endif
}

// ----------------------------------------------------------------------------
// The launcher

typedef void (*DecodeBatchKernel)(DecodeLinear p, int tiles);

template <int MT> static inline DecodeBatchKernel batch_kernel(int chunks) {
    return chunks == 3 ? decode_batch_kernel<MT, 3> : decode_batch_kernel<MT, 4>;
}

template <int MT> static inline BatchTiling batch_tiling_of(LaunchGpu gpu, const DecodeLinear& p, int most) {
    BatchTiling t = {};
    int row_tiles = CEIL_DIV(p.M, 16 * MT), columns = CEIL_DIV(p.OC, 8);
    t.MT = MT, t.splits = decode_splits(p.C);
    int groups = gpu.sms / (row_tiles * t.splits);
    t.tiles = CEIL_DIV(columns, groups > 1 ? groups : 1);
    t.tiles = t.tiles < most ? t.tiles : most;
    t.shared = batch_shared_bytes<MT>(p.C, t.tiles);
    t.blocks = (unsigned)CEIL_DIV(columns, t.tiles) * (unsigned)row_tiles * (unsigned)t.splits;
    return t;
}

// One round where that takes few CTAs, else many
static inline BatchTiling batch_tiling(LaunchGpu gpu, const DecodeLinear& p) {
    BatchTiling t = batch_tiling_of<2>(gpu, p, BatchTile<2>::G);
    return t.blocks <= 4 * (unsigned)gpu.sms ? t : batch_tiling_of<4>(gpu, p, INT_MAX);
}

// Whether the kernels here serve a layer: their shared memory fits sm_90's 227 KB, not always the 99 KB of sm_120
static inline bool decode_batch_serves(LaunchGpu gpu, const DecodeLinear& p) {
    return gpu.dependent && p.M >= BATCH_MIN_ROWS && p.C % DECODE_CHUNK == 0 && batch_chunks(p.C) <= BATCH_MAX_CHUNKS &&
           p.stride % 2 == 0 && (p.bias == NULL || p.OC % 2 == 0) && batch_tiling(gpu, p).shared <= gpu.shared_limit;
}
#endif // !PRECISION_FP32

// inp, and out where it is a residual stream, as DecodeLinear says. normed (M,C): where the normalised input goes if a CTA does
// not normalise it by itself.
static inline void decode_linear(LaunchGpu gpu, DecodeLinear p, floatX* normed, cudaStream_t stream) {
    if (p.norm_weight != NULL && p.M > DECODE_NORM_ROWS) {
        decode_layernorm(gpu, normed, p.inp, p.norm_weight, p.norm_bias, p.M, p.C, stream);
        p.inp = normed, p.norm_weight = p.norm_bias = NULL;
    }
#if !defined(PRECISION_FP32)
    if (decode_batch_serves(gpu, p)) {
        BatchTiling t = batch_tiling(gpu, p);
        int chunks = batch_chunks_of_kernel(p.C);
        launch_dependent(gpu, t.MT == 4 ? batch_kernel<4>(chunks) : batch_kernel<2>(chunks), t.blocks, DECODE_THREADS,
                         t.shared, t.splits, stream, p, t.tiles);
        return;
    }
#endif
    decode_linear_tiled(gpu, p, decode_tiling(gpu, p.M, p.C, p.OC, p.norm_weight != NULL), stream);
}

#endif
