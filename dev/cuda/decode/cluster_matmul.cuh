/*
The linear layers of decoding on Hopper for four rows and more, while all CTAs run at once and a sum has one split: the sums of
decode/matmul.cuh in the same order, so the same bits, by the warps of decode/batch_matmul.cuh. There each CTA reads its 32 rows
of inp from L2 for itself, half a line at a time; here the CTAs of a cluster, which multiply the same rows with different tiles
of W, bring a part of them each, whole lines, by TMA multicast into the shared memory of all.

A folded LayerNorm (decode/folded_norm.cuh): each CTA of a cluster computes the statistics of half of the rows, for both.
*/
#ifndef LLMC_DECODE_CLUSTER_MATMUL_CUH
#define LLMC_DECODE_CLUSTER_MATMUL_CUH

#include "batch_matmul.cuh"

constexpr int CLUSTER_CTAS = 2; // clusters of four leave some SMs without a CTA
// From a row of inp in shared memory to the next: neighbours on different banks
__host__ __device__ inline int cluster_row_bytes(int C) {
    int bytes = C * (int)sizeof(floatX);
    return bytes + (bytes % 128 == 0 ? 64 : 0);
}

#if !defined(PRECISION_FP32)

// Shared memory before the rows
struct ClusterFront {
    hopper::Mbarrier rows_full, statistics_full; // all rows are there; the statistics that the other CTA sends are
    alignas(16) RowStatistics statistics[BatchTile<2>::rows];
};
constexpr int CLUSTER_FRONT = CEIL_DIV(sizeof(ClusterFront), 128) * 128;

// The statistics of rows rank, rank + 2, ... of the cluster's `valid` ones, to the front of both CTAs. moments (valid,C/8). By
// warps 0 .. CLUSTER_STATISTICS_WARPS - 1, four rows each.
constexpr int CLUSTER_STATISTICS_WARPS = DECODE_WARPS / 2;
__device__ inline void cluster_statistics(ClusterFront& front, const float2* moments, int C, int valid, int rank,
                                          int warp, int lane) {
    const int vectors = C / x128::size, row = (4 * warp + lane / 8) * CLUSTER_CTAS + rank;
    const float2* from = moments + min(row, valid - 1) * vectors;
    float2 of_row[DECODE_QUARTER_VECTORS];
#pragma unroll
    for (int i = 0; i < DECODE_QUARTER_VECTORS; i++) {
        const int k = 8 * i + lane % 8;
        of_row[i] = make_float2(0.0f, 0.0f);
        if (k < vectors) { of_row[i] = __ldcg(from + k); }
    }
    const RowStatistics x = decode_quarter_statistics(of_row, C, lane);
    if (row >= valid || lane % 8 != 0) { return; }
    front.statistics[row] = x;
    hopper::st_async(reinterpret_cast<float2*>(&front.statistics[row]), make_float2(x.mean, x.rstd),
                     front.statistics_full, rank ^ 1);
}

template <int CHUNKS, bool EXACT, bool FOLDED> __global__ void __launch_bounds__(DECODE_THREADS, CHUNKS == 4 ? 1 : 2)
    decode_cluster_kernel(DecodeLinear p, int tiles) {
#if defined(HOPPER_DEVICE_CODE)
    typedef BatchTile<2> Tile;
    // The next kernel starts behind the wait of this one: its loads would delay those of the rows. Not of four chunks, where
    // a CTA fills its SM: 355M would be 1% slower.
    constexpr bool LATE = CHUNKS <= 3;
    extern __shared__ int4 decode_shared[];
    const int thread = threadIdx.x, lane = thread % WARP_SIZE;
    const int warp = __shfl_sync(0xffffffffu, thread / WARP_SIZE, 0); // the same in all lanes, for the compiler, too
    const int rank = (int)hopper::cluster_ctarank(), cluster = blockIdx.x / CLUSTER_CTAS;
    const int row_tiles = CEIL_DIV(p.M, Tile::rows), m0 = cluster % row_tiles * Tile::rows;
    const int valid = min(Tile::rows, p.M - m0); // rows; others are multiplied as they stand there, and not stored
    const int first = (cluster / row_tiles * CLUSTER_CTAS + rank) * tiles; // where no tile is left, it brings rows
    const int end = min(first + tiles, CEIL_DIV(p.OC, 8)), count = end - first;

    // shared memory: the front, the rows, W of each warp, where its sums go, too
    const int C = BatchWarp<2, CHUNKS, EXACT, 1>::channels(p), C_bytes = C * (int)sizeof(floatX);
    const int row_bytes = cluster_row_bytes(C);
    ClusterFront& front = *reinterpret_cast<ClusterFront*>(decode_shared);
    char* rows = reinterpret_cast<char*>(decode_shared) + CLUSTER_FRONT;
    char* sums = rows + Tile::rows * row_bytes;
    char *warp_sums = sums + warp * Tile::segment_bytes(CHUNKS), *weights = warp_sums + lane * 16;

    if (!LATE && !p.next_reads_early) { launch_dependents(); }
    if (thread == 0) {
        front.rows_full.init(1);
        if (FOLDED) { front.statistics_full.init(1); }
        hopper::fence_mbarrier_init();
        front.rows_full.expect_tx(valid * C_bytes);
        // the rows of the other parity
        if (FOLDED) { front.statistics_full.expect_tx((valid + rank) / CLUSTER_CTAS * (int)sizeof(RowStatistics)); }
    }
    __syncwarp();
    hopper::barrier_cluster_arrive_relaxed();
    BatchWarp<2, CHUNKS, EXACT, 1> w(p, 1, 0, thread);
    w.load_weights(p, weights, first, count);
    BatchPairs<2, FOLDED> pairs(p, m0, thread);
    pairs.load_bias(p, first, end);
    hopper::barrier_cluster_wait(); // the other CTAs' barriers are there

    wait_for_previous();
    if (LATE || p.next_reads_early) { launch_dependents(); }
    constexpr int share = Tile::rows / CLUSTER_CTAS / DECODE_WARPS; // of each warp: a copy is issued lane by lane
    const int row = (rank * DECODE_WARPS + warp) * share + lane;
    if (lane < share && row < valid) {
        hopper::cp_async_bulk_multicast(hopper::shared_address(rows + row * row_bytes), p.inp + (size_t)(m0 + row) * C,
                                        C_bytes, front.rows_full, (1 << CLUSTER_CTAS) - 1);
    }
    __syncwarp();
    pairs.load_old(p, end);
    if (p.positions != NULL && pairs.row_valid) { pairs.row_valid = p.positions[pairs.row] >= 0; }
    if (FOLDED && warp < CLUSTER_STATISTICS_WARPS) { // while the rows are on their way
        const float2* moments = p.moments + (size_t)m0 * (C / x128::size);
        cluster_statistics(front, moments, C, valid, rank, warp, lane);
    }
    mma::cp_async_wait_group<0>();
    front.rows_full.wait(0);
    w.read_rows(rows, row_bytes);
#pragma unroll 1
    for (int n = 0; n < count; n += Tile::at_once) { w.multiply(warp_sums, weights, n, count); }
    __syncthreads();
    if (FOLDED) {
        front.statistics_full.wait(0); // by all warps: the CTA stays until what the other one sends is there
        pairs.statistics = front.statistics[pairs.tile_row];
    }
    batch_finish<2, CHUNKS>(p, pairs, sums, NULL, count, end, 1, 0);
#endif
}

// ----------------------------------------------------------------------------
// The launcher

// A round of tiles for each CTA, of all SMs if it can be
static inline BatchTiling cluster_tiling(LaunchGpu gpu, const DecodeLinear& p) {
    BatchTiling t = {};
    int row_tiles = CEIL_DIV(p.M, BatchTile<2>::rows), columns = CEIL_DIV(p.OC, 8);
    int groups = gpu.sms / CLUSTER_CTAS / row_tiles * CLUSTER_CTAS;
    t.MT = 2, t.threads = DECODE_THREADS, t.splits = 1;
    t.tiles = CEIL_DIV(columns, groups > 1 ? groups : 1);
    t.tiles = t.tiles < BatchTile<2>::G ? t.tiles : BatchTile<2>::G;
    t.shared = CLUSTER_FRONT + (size_t)BatchTile<2>::rows * cluster_row_bytes(p.C) +
               (size_t)DECODE_WARPS * batch_round_bytes(t.tiles, batch_chunks_of_kernel(p.C));
    // A layer that adds to x (attproj) is launched while attention's CTAs still run. With more than half of an SM's shared
    // memory each, no two of its CTAs share an SM that became free early.
    const size_t more_than_half = gpu.shared_limit / 2 + 1024;
    if (p.epilogue == DECODE_RESIDUAL && t.shared < more_than_half) { t.shared = more_than_half; }
    t.blocks = (unsigned)CEIL_DIV(columns, t.tiles * CLUSTER_CTAS) * CLUSTER_CTAS * (unsigned)row_tiles;
    return t;
}

// Whether the kernel serves a layer: all of its CTAs must run at once
static inline bool decode_cluster_serves(LaunchGpu gpu, const DecodeLinear& p) {
    if (p.norm_sums != NULL && p.moments == NULL) { return false; }
    if (!gpu.hopper || p.M < BATCH_MIN_ROWS || p.C % DECODE_CHUNK != 0 || decode_splits(p.C) > 1) { return false; }
    if (p.stride % 2 != 0 || (p.bias != NULL && p.OC % 2 != 0)) { return false; }
    BatchTiling t = cluster_tiling(gpu, p);
    return t.blocks <= (unsigned)gpu.sms && t.shared <= gpu.shared_limit;
}
static inline DecodeBatchKernel cluster_kernel(int C, bool folded) {
    if (batch_exact(C)) {
        return folded ? decode_cluster_kernel<3, true, true> : decode_cluster_kernel<3, true, false>;
    }
    if (batch_chunks_of_kernel(C) > 3) { return decode_cluster_kernel<4, false, false>; }
    return folded ? decode_cluster_kernel<3, false, true> : decode_cluster_kernel<3, false, false>;
}

#endif

#endif
