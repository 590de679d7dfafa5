/*
The linear layers of decoding on Hopper for four rows and more, while all CTAs run at once and a sum has one split: the sums of
decode_matmul.cuh in the same order, so the same bits, by the warps of decode_batch_matmul.cuh. There each CTA reads its 32 rows
of inp from L2 for itself, half a line at a time; here the CTAs of a cluster, which multiply the same rows with different tiles
of W, bring a part of them each, whole lines, by TMA multicast into the shared memory of all.
*/
#ifndef LLMC_DECODE_CLUSTER_MATMUL_CUH
#define LLMC_DECODE_CLUSTER_MATMUL_CUH

#include "decode_batch_matmul.cuh"

constexpr int CLUSTER_CTAS = 2;    // clusters of four leave some SMs without a CTA
constexpr int CLUSTER_FRONT = 128; // bytes of shared memory before the rows, for their barrier

// From a row of inp in shared memory to the next: neighbours on different banks
__host__ __device__ inline int cluster_row_bytes(int C) {
    int bytes = C * (int)sizeof(floatX);
    return bytes + (bytes % 128 == 0 ? 64 : 0);
}

#if !defined(PRECISION_FP32)

template <int CHUNKS, bool EXACT> __global__ void __launch_bounds__(DECODE_THREADS, CHUNKS == 4 ? 1 : 2)
    decode_cluster_kernel(DecodeLinear p, int tiles) {
#if defined(HOPPER_DEVICE_CODE)
    typedef BatchTile<2> Tile;
    extern __shared__ int4 decode_shared[];
    const int thread = threadIdx.x, warp = thread / WARP_SIZE, lane = thread % WARP_SIZE;
    const int rank = (int)hopper::cluster_ctarank(), cluster = blockIdx.x / CLUSTER_CTAS;
    const int row_tiles = CEIL_DIV(p.M, Tile::rows), m0 = cluster % row_tiles * Tile::rows;
    const int valid = min(Tile::rows, p.M - m0); // rows; others are multiplied as they stand there, and not stored
    const int first = (cluster / row_tiles * CLUSTER_CTAS + rank) * tiles; // where no tile is left, it brings rows
    const int end = min(first + tiles, CEIL_DIV(p.OC, 8)), count = end - first;

    // shared memory: the barrier, the rows, W of each warp, where its sums go, too
    const int C_bytes = p.C * (int)sizeof(floatX), row_bytes = cluster_row_bytes(p.C);
    hopper::Mbarrier& full = *reinterpret_cast<hopper::Mbarrier*>(decode_shared);
    char* rows = reinterpret_cast<char*>(decode_shared) + CLUSTER_FRONT;
    char* sums = rows + Tile::rows * row_bytes;
    char *warp_sums = sums + warp * Tile::segment_bytes(CHUNKS), *weights = warp_sums + lane * 16;

    if (!p.next_reads_early) { launch_dependents(); }
    if (thread == 0) {
        full.init(1);
        hopper::fence_mbarrier_init();
        full.expect_tx(valid * C_bytes);
    }
    __syncwarp();
    hopper::barrier_cluster_arrive_relaxed();
    BatchWarp<2, CHUNKS, EXACT, 1> w(p, 1, 0, thread);
    w.load_weights(p, weights, first, count);
    BatchPairs<2> pairs(p, m0, thread);
    pairs.load_bias(p, first, end);
    hopper::barrier_cluster_wait(); // the other CTAs' barriers are there

    wait_for_previous();
    if (p.next_reads_early) { launch_dependents(); }
    constexpr int share = Tile::rows / CLUSTER_CTAS / DECODE_WARPS; // of each warp: a copy is issued lane by lane
    const int row = (rank * DECODE_WARPS + warp) * share + lane;
    if (lane < share && row < valid) {
        hopper::cp_async_bulk_multicast(hopper::shared_address(rows + row * row_bytes),
                                        p.inp + (size_t)(m0 + row) * p.C, C_bytes, full, (1 << CLUSTER_CTAS) - 1);
    }
    __syncwarp();
    pairs.load_old(p, end);
    if (p.positions != NULL && pairs.row_valid) { pairs.row_valid = p.positions[pairs.row] >= 0; }
    mma::cp_async_wait_group<0>();
    full.wait(0);
    w.read_rows(rows, row_bytes);
#pragma unroll 1
    for (int n = 0; n < count; n += Tile::at_once) { w.multiply(warp_sums, weights, n, count); }
    __syncthreads();
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
    t.blocks = (unsigned)CEIL_DIV(columns, t.tiles * CLUSTER_CTAS) * CLUSTER_CTAS * (unsigned)row_tiles;
    return t;
}

// Whether the kernel serves a layer: all of its CTAs must run at once
static inline bool decode_cluster_serves(LaunchGpu gpu, const DecodeLinear& p) {
    if (!gpu.hopper || p.M < BATCH_MIN_ROWS || p.C % DECODE_CHUNK != 0 || decode_splits(p.C) > 1) { return false; }
    if (p.stride % 2 != 0 || (p.bias != NULL && p.OC % 2 != 0)) { return false; }
    BatchTiling t = cluster_tiling(gpu, p);
    return t.blocks <= (unsigned)gpu.sms && t.shared <= gpu.shared_limit;
}
static inline DecodeBatchKernel cluster_kernel(int C) {
    if (batch_exact(C)) { return decode_cluster_kernel<3, true>; }
    return batch_chunks_of_kernel(C) == 3 ? decode_cluster_kernel<3, false> : decode_cluster_kernel<4, false>;
}

#endif

#endif
