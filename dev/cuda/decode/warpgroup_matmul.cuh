/*
The linear layers of decoding on Hopper for up to 64 rows and C = 768, or 3072 in four splits: GPT-2 124M's. The sums of
decode/matmul.cuh in the same order by wgmma, which adds 16 products as mma.sync does: the same bits.

A CTA has all rows, NT tiles of 8 columns of out, and 768 channels; each of two warpgroups multiplies four segments of C. A
segment's sum stays in registers, so only two partial sums meet in shared memory. The rows arrive by TMA in lines of 128
bytes, for all CTAs of a cluster at once, and are operand A, in registers. W is operand B, in shared memory before the wait
for the previous kernel. Splits are a cluster, in which each CTA finishes a part of the rows.

In the other kernels an MMA takes half of each 16 bytes of inp that four lanes have of a chunk. For the same sums the words of W
are transposed within a chunk: first the four first words of 16 bytes, then the four second ones, and so on.

A layer leaves a third of the SMs or more to the next one, whose W comes meanwhile: CTAs have an SM of their own each. Where
that is too few SMs, the CTAs that have one ask L2 for the W of those that start later.
*/
#ifndef LLMC_DECODE_WARPGROUP_MATMUL_CUH
#define LLMC_DECODE_WARPGROUP_MATMUL_CUH

#include "batch_matmul.cuh"
#include "fragment.cuh"

constexpr int WARPGROUP_MAX_ROWS = 64;
// Column tiles of a CTA: as measured for OC = 768, 2304 and 3072
constexpr int WARPGROUP_FOLDED_TILES = 5, WARPGROUP_ATTPROJ_TILES = 2, WARPGROUP_FCPROJ_TILES = 4;

// How a CTA is cut
template <int NT_, int SPLITS_> struct WarpgroupTile {
    // CTAs of a cluster: splits, or those that share the rows; four of them find room together later than two
    static constexpr int NT = NT_, SPLITS = SPLITS_, CTAS = SPLITS > 1 ? SPLITS : NT <= WARPGROUP_ATTPROJ_TILES ? 4 : 2;
    static constexpr int rows = WARPGROUP_MAX_ROWS, columns = 8 * NT;
    static constexpr int segment = 3, chunks = segment * DECODE_WARPS, C = chunks * DECODE_CHUNK; // of a split
    static constexpr int line = 2 * DECODE_CHUNK, lines = C / line; // elements of 128 bytes, the width of a TMA box
    static constexpr int groups = 2, segments = DECODE_WARPS / groups, group_lines = lines / groups;
    static constexpr int loaders = 4 * groups, helpers = 4; // warps: the two warpgroups; those that bring rows
    static constexpr int threads = (loaders + helpers) * WARP_SIZE;
    static constexpr int half = SPLITS == 1 ? CEIL_DIV(NT, 2) : 1; // fragments that a warp stores, at most

    // Shared memory: W (lines, columns, 128 bytes), and over it partial sums (groups, NT, 128), 16 bytes each; rows (lines,
    // rows, 128 bytes); sums of splits (NT, SPLITS, lanes), 16 bytes each; the front. W and rows are swizzled as TMA does.
    static constexpr int line_bytes = columns * 128, rows_line_bytes = rows * 128, fragment_bytes = WARP_SIZE * 16;
    static constexpr int rows_at = lines * line_bytes, totals_at = rows_at + lines * rows_line_bytes;
    static constexpr int front_at = totals_at + (SPLITS == 1 ? 0 : NT * SPLITS * fragment_bytes);
    // W: column tile n of chunk u; in there, word j of the 16 bytes that lane 4 r + q multiplies
    __host__ __device__ static constexpr int weights(int u, int n) { return u / 2 * line_bytes + n * 1024; }
    __host__ __device__ static constexpr int word(int u, int r, int q, int j) {
        return r * 128 + ((u % 2 * 4 + j) ^ r) * 16 + q * 4;
    }
    // Rows: which of eight is row r of operand A, and where there the 16 bytes of lane 4 r + q are in chunk u's line. Any order
    // will do; in this one 8 lanes read from all banks.
    __host__ __device__ static constexpr int row(int r) { return r / 2 + r % 2 * 4; }
    __host__ __device__ static constexpr int operand(int u, int r, int q) {
        return row(r) * 128 + ((u % 2 * 4 + q) ^ row(r)) * 16;
    }
    // Rows of a TMA box, whole eights of the swizzle: more, outside of the tensor, take time, too
    __host__ __device__ static constexpr int box_rows(int M) { return CEIL_DIV(M, 8) * 8; }
    __host__ __device__ static constexpr int partial(int group, int n) { return (group * NT + n) * 128 * 16; }
    static_assert(NT <= loaders && 2 * NT * 128 * 16 <= rows_at, "");
};

// Behind the sums
template <class T> struct WarpgroupFront {
    uint64_t line_full[T::lines], statistics_full, totals_full; // hopper::Mbarrier
    alignas(16) float2 norm_sums[T::columns];
    RowStatistics statistics[T::rows];
};
template <class T> constexpr size_t warpgroup_shared() { return T::front_at + sizeof(WarpgroupFront<T>); }

#if !defined(PRECISION_FP32)

// W to shared memory. o0, k0: the CTA's first column and channel. By the loaders: warp w brings chunks w, w + 8, w + 16
template <class T>
__device__ inline void warpgroup_load_weights(const DecodeLinear& p, char* shared, int o0, int k0, int warp, int lane) {
    constexpr int STEPS = T::chunks / T::loaders;
    static_assert(T::loaders % 2 == 0, "chunks of a warp have the same places in their lines");
    const int r = lane / 4, q = lane % 4;
    const floatX* from = p.weight + k0 + warp * DECODE_CHUNK + 8 * q;
    uint4 w[T::NT][STEPS];
#pragma unroll
    for (int n = 0; n < T::NT; n++) {
        const floatX* tile = from + (size_t)(min(o0 + 8 * n, p.OC - 8) + r) * (T::C * T::SPLITS);
#pragma unroll
        for (int i = 0; i < STEPS; i++) { w[n][i] = ld_global_nc_no_allocate(tile + i * T::loaders * DECODE_CHUNK); }
    }
    char* to[4];
#pragma unroll
    for (int j = 0; j < 4; j++) { to[j] = shared + T::weights(warp, 0) + T::word(warp, r, q, j); }
#pragma unroll
    for (int n = 0; n < T::NT; n++) {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const uint32_t words[4] = {w[n][i].x, w[n][i].y, w[n][i].z, w[n][i].w};
#pragma unroll
            for (int j = 0; j < 4; j++) {
                *reinterpret_cast<uint32_t*>(to[j] + T::weights(i * T::loaders, n)) = words[j];
            }
        }
    }
    hopper::fence_proxy_async();
}

// The W of the CTAs `early`, 2 early, ... further on, which start when CTAs of the layer before have ended, into L2. By helpers
template <class T>
__device__ inline void warpgroup_prefetch_weights(const DecodeLinear& p, int early, int warp, int lane) {
    if ((int)blockIdx.x >= early) { return; }
    for (int block = blockIdx.x + early; block < (int)gridDim.x; block += early) {
        const int o0 = block / T::SPLITS * T::columns, k0 = block % T::SPLITS * T::C;
        for (int i = warp * WARP_SIZE + lane; i < T::columns && o0 + i < p.OC; i += T::helpers * WARP_SIZE) {
            hopper::cp_async_bulk_prefetch_l2(p.weight + (size_t)(o0 + i) * (T::C * T::SPLITS) + k0,
                                              T::C * (int)sizeof(floatX));
        }
    }
}

// The rows, to all CTAs of a cluster without splits, by a thread of each helper. Lines alternate between the warpgroups.
template <class T> __device__ inline void
warpgroup_bring_rows(const CUtensorMap* map, char* rows, hopper::Mbarrier* line_full, int k0, int rank, int warp) {
#pragma unroll 1
    for (int i = warp; i < T::lines; i += T::helpers) {
        const int line = i % T::groups * T::group_lines + i / T::groups;
        const uint32_t to = hopper::shared_address(rows + line * T::rows_line_bytes);
        hopper::Mbarrier& full = line_full[line];
        if (T::SPLITS > 1) {
            hopper::cp_async_bulk_tensor(to, map, k0 + line * T::line, 0, full);
        } else if (i / T::groups % T::CTAS == rank) {
            hopper::cp_async_bulk_tensor_multicast(to, map, line * T::line, 0, full, (1 << T::CTAS) - 1);
        }
    }
}

// The statistics of rows rank, rank + CTAS, ... of the `valid` ones, to all CTAs of the cluster. By the helpers
template <class T> __device__ inline void warpgroup_statistics(WarpgroupFront<T>& front, const float2* moments,
                                                               int valid, int rank, int warp, int lane) {
    constexpr int vectors = T::C / x128::size, times = T::rows / T::CTAS / T::helpers / 4; // four rows at a time
    const int first = (warp * times * 4 + lane / 8) * T::CTAS + rank;
    float2 of_rows[times][DECODE_QUARTER_VECTORS];
#pragma unroll
    for (int k = 0; k < times; k++) {
        const float2* from = moments + min(first + 4 * T::CTAS * k, valid - 1) * vectors + lane % 8;
#pragma unroll
        for (int i = 0; i < DECODE_QUARTER_VECTORS; i++) { of_rows[k][i] = __ldcg(from + 8 * i); }
    }
#pragma unroll
    for (int k = 0; k < times; k++) {
        const RowStatistics x = decode_quarter_statistics(of_rows[k], T::C, lane);
        const int row = first + 4 * T::CTAS * k, to = lane % 8;
        if (row < valid && to < T::CTAS) {
            hopper::st_async(reinterpret_cast<float2*>(&front.statistics[row]), make_float2(x.mean, x.rstd),
                             reinterpret_cast<hopper::Mbarrier&>(front.statistics_full), to);
        }
    }
}

// d: the sums of the warpgroup's segments
template <class T> __device__ inline void warpgroup_multiply(float (&d)[T::segments][4 * T::NT], const char* shared,
                                                             hopper::Mbarrier* line_full, int group, int warp,
                                                             int lane) {
    const int r = lane / 4, q = lane % 4;
    const char* rows = shared + T::rows_at + group * T::group_lines * T::rows_line_bytes + 16 * warp * 128;
    const char* of_chunk[2] = {rows + T::operand(0, r, q), rows + T::operand(1, r, q)}; // a line's two
    const uint64_t W =
        hopper::tile_descriptor_k_major(hopper::shared_address(shared + group * T::group_lines * T::line_bytes));
    uint32_t a[2][2 * T::segment][4];
#pragma unroll
    for (int s = 0; s < T::segments; s++) {
#pragma unroll
        for (int u = 0; u < T::segment; u++) {
            const int chunk = T::segment * s + u;
            if (chunk % 2 == 0) { line_full[group * T::group_lines + chunk / 2].wait(0); }
            const char* at = of_chunk[chunk % 2] + chunk / 2 * T::rows_line_bytes;
            const uint4 x = *reinterpret_cast<const uint4*>(at), y = *reinterpret_cast<const uint4*>(at + 8 * 128);
            const uint32_t k[8] = {x.x, y.x, x.y, y.y, x.z, y.z, x.w, y.w};
#pragma unroll
            for (int j = 0; j < 8; j++) { a[s % 2][2 * u + j / 4][j % 4] = k[j]; }
        }
        hopper::fence_operand(d[s]);
        hopper::wgmma_fence();
#pragma unroll
        for (int k = 0; k < 2 * T::segment; k++) {
            const int step = 2 * T::segment * s + k; // of 16 channels: 32 bytes
            hopper::wgmma_mma_async(d[s], a[s % 2][k], W + (step / 4 * T::line_bytes + step % 4 * 32) / 16, k > 0);
        }
        hopper::wgmma_commit_group();
        if (s > 0) { hopper::wgmma_wait_group<1>(); } // the operands of the segment before are free
    }
    hopper::wgmma_wait_group<0>();
#pragma unroll
    for (int s = 0; s < T::segments; s++) { hopper::fence_operand(d[s]); }
}

// The segments' sums in order: warpgroup 0's to warpgroup 1, in shared memory over W, which adds its own: the totals, in its
// d[0]. Named barriers 2 and 3
template <class T>
__device__ inline void warpgroup_add(float (&d)[T::segments][4 * T::NT], char* shared, int group, int place) {
    float4* sums = reinterpret_cast<float4*>(shared + T::partial(0, 0)) + place;
    constexpr int threads = T::loaders * WARP_SIZE;
    if (group == 0) {
#pragma unroll
        for (int i = 0; i < 4 * T::NT; i++) {
#pragma unroll
            for (int s = 1; s < T::segments; s++) { d[0][i] += d[s][i]; }
        }
    }
    hopper::bar_sync(2, threads); // all of W has been read
#pragma unroll
    for (int n = 0; n < T::NT && group == 0; n++) {
        sums[n * 128] = make_float4(d[0][4 * n], d[0][4 * n + 1], d[0][4 * n + 2], d[0][4 * n + 3]);
    }
    hopper::bar_sync(3, threads);
    if (group == 0) { return; }
#pragma unroll
    for (int n = 0; n < T::NT; n++) {
        const float4 x = sums[n * 128];
        const float before[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
        for (int e = 0; e < 4; e++) {
            float sum = before[e];
#pragma unroll
            for (int s = 0; s < T::segments; s++) { sum += d[s][4 * n + e]; }
            d[0][4 * n + e] = sum;
        }
    }
}

// Totals of column tiles half .. NT - 1 back to warpgroup 0, which stores them. Named barrier 4
template <class T> __device__ inline void warpgroup_halve(float (&d)[4 * T::NT], char* shared, int group, int place) {
    float4* sums = reinterpret_cast<float4*>(shared + T::partial(1, 0)) + place;
    constexpr int threads = T::loaders * WARP_SIZE;
    if (group == 1) {
#pragma unroll
        for (int n = T::half; n < T::NT; n++) {
            sums[n * 128] = make_float4(d[4 * n], d[4 * n + 1], d[4 * n + 2], d[4 * n + 3]);
        }
        hopper::bar_arrive(4, threads);
        return;
    }
    hopper::bar_sync(4, threads);
#pragma unroll
    for (int n = T::half; n < T::NT; n++) {
        const float4 x = sums[n * 128];
        const int to = 4 * (n - T::half);
        d[to] = x.x, d[to + 1] = x.y, d[to + 2] = x.z, d[to + 3] = x.w;
    }
}

// DECODE_RESIDUAL: a layer without LayerNorm; the others have a folded one
template <int NT, int SPLITS, DecodeEpilogue EPILOGUE>
__global__ void __launch_bounds__(WarpgroupTile<NT, SPLITS>::threads, 1)
    decode_warpgroup_kernel(DecodeLinear p, const __grid_constant__ CUtensorMap inp_map, int early) {
#if defined(HOPPER_DEVICE_CODE)
    typedef WarpgroupTile<NT, SPLITS> T;
    constexpr bool FOLDED = EPILOGUE != DECODE_RESIDUAL;
    extern __shared__ __align__(1024) int4 decode_aligned_shared[];
    char* shared = reinterpret_cast<char*>(decode_aligned_shared);
    WarpgroupFront<T>& front = *reinterpret_cast<WarpgroupFront<T>*>(shared + T::front_at);
    hopper::Mbarrier* line_full = reinterpret_cast<hopper::Mbarrier*>(front.line_full);
    hopper::Mbarrier& statistics_full = reinterpret_cast<hopper::Mbarrier&>(front.statistics_full);
    hopper::Mbarrier& totals_full = reinterpret_cast<hopper::Mbarrier&>(front.totals_full);
    const int thread = threadIdx.x, lane = thread % WARP_SIZE, r = lane / 4, q = lane % 4;
    const int warp = __shfl_sync(0xffffffffu, thread / WARP_SIZE, 0), group = warp / 4, row_warp = warp % 4;
    const int rank = (int)hopper::cluster_ctarank();
    const int o0 = (SPLITS == 1 ? blockIdx.x : blockIdx.x / SPLITS) * T::columns, k0 = SPLITS == 1 ? 0 : rank * T::C;

    if (thread == 0) {
#pragma unroll
        for (int i = 0; i < T::lines; i++) { line_full[i].init(1); }
        statistics_full.init(1), totals_full.init(1);
        hopper::fence_mbarrier_init();
#pragma unroll
        for (int i = 0; i < T::lines; i++) { line_full[i].expect_tx(T::box_rows(p.M) * 128); }
        if (FOLDED) { statistics_full.expect_tx(p.M * (int)sizeof(RowStatistics)); }
        if (SPLITS > 1) { totals_full.expect_tx(NT * SPLITS * T::fragment_bytes); }
    }
    __syncwarp();
    hopper::barrier_cluster_arrive_relaxed();

    if (warp >= T::loaders) {
        const int helper = warp - T::loaders;
        warpgroup_prefetch_weights<T>(p, early, helper, lane);
        hopper::barrier_cluster_wait(); // the other CTAs' barriers are there
        wait_for_previous();
        launch_dependents(); // not before: its loads would delay those of the rows
        if (lane == 0) { warpgroup_bring_rows<T>(&inp_map, shared + T::rows_at, line_full, k0, rank, helper); }
        __syncwarp();
        if constexpr (FOLDED) { warpgroup_statistics<T>(front, p.moments, p.M, rank, helper, lane); }
        return;
    }

    for (int i = thread; FOLDED && i < T::columns; i += T::loaders * WARP_SIZE) {
        front.norm_sums[i] = p.norm_sums[min(o0 + i, p.OC - 1)];
    }
    warpgroup_load_weights<T>(p, shared, o0, k0, warp, lane);
    // What the warp stores: column tiles n0, n0 + 1, ... of its 16 rows; or, of the rows that this split finishes, one tile
    const int n0 = SPLITS > 1 ? warp : group == 1 ? 0 : T::half, end = SPLITS > 1 || group == 0 ? NT : T::half;
    DecodeFragment out[T::half];
#pragma unroll
    for (int k = 0; k < T::half; k++) {
        out[k].row = 16 * (SPLITS > 1 ? rank : row_warp) + T::row(r);
        out[k].o = n0 + k < end ? o0 + 8 * (n0 + k) + 2 * q : p.OC;
        if (!FOLDED) { out[k].load_bias(p); }
    }
    hopper::bar_sync(1, T::loaders * WARP_SIZE); // W is there
    hopper::barrier_cluster_wait();

    wait_for_previous();
    launch_dependents();
    out[0].load_positions(p);
#pragma unroll
    for (int k = 0; k < T::half; k++) {
        out[k].load_old(p, EPILOGUE);
        out[k].positions[0] = out[0].positions[0], out[k].positions[1] = out[0].positions[1];
    }
    float d[T::segments][4 * NT];
    warpgroup_multiply<T>(d, shared, line_full, group, row_warp, lane);
    warpgroup_add<T>(d, shared, group, thread % 128);
    if constexpr (SPLITS > 1) { // split i finishes the rows of warp i
        if (group == 1) {
#pragma unroll
            for (int n = 0; n < NT; n++) {
                char* to = shared + T::totals_at + (n * SPLITS + rank) * T::fragment_bytes + lane * 16;
                hopper::st_async(reinterpret_cast<float4*>(to),
                                 make_float4(d[0][4 * n], d[0][4 * n + 1], d[0][4 * n + 2], d[0][4 * n + 3]),
                                 totals_full, row_warp);
            }
        }
        totals_full.wait(0); // by all warps: the CTA stays until what others send to it is there
        if (warp >= NT) { return; }
        const char* from = shared + T::totals_at + warp * SPLITS * T::fragment_bytes + lane * 16;
        out[0].store_sum(p, EPILOGUE, fragment_sum<SPLITS>(from, T::fragment_bytes));
    } else {
        warpgroup_halve<T>(d[0], shared, group, thread % 128);
        RowStatistics row[2];
        if (FOLDED) {
            statistics_full.wait(0);
            const RowStatistics* first = &front.statistics[16 * row_warp + T::row(r)];
            row[0] = first[0], row[1] = first[8];
        }
#pragma unroll
        for (int k = 0; k < T::half; k++) {
            if (n0 + k >= end) { break; }
            const float* x = d[0] + 4 * k;
            if (!FOLDED) {
                out[k].store_sum(p, EPILOGUE, make_float4(x[0], x[1], x[2], x[3]));
                continue;
            }
            const float2* st = &front.norm_sums[8 * (n0 + k) + 2 * q];
            uint32_t z[2];
#pragma unroll
            for (int h = 0; h < 2; h++) {
                z[h] =
                    mma::cvt_rn_x2(decode_unfold(x[2 * h], row[h], st[0]), decode_unfold(x[2 * h + 1], row[h], st[1]));
            }
            out[k].store(p, EPILOGUE, z);
        }
    }
#endif
}

// ----------------------------------------------------------------------------
// The launcher

typedef void (*DecodeWarpgroupKernel)(DecodeLinear p, const CUtensorMap inp_map, int early);
struct WarpgroupTiling {
    DecodeWarpgroupKernel kernel; // NULL: others serve the layer
    int columns, box_rows, cluster, threads;
    size_t shared; // bytes
    unsigned blocks;
    int early; // CTAs that find an SM while the layer before has its own; from 0 on
};

// Of a layer with OC columns
template <int NT, int SPLITS> static inline unsigned warpgroup_blocks(int OC) {
    typedef WarpgroupTile<NT, SPLITS> T;
    return (unsigned)CEIL_DIV(OC, T::columns * T::CTAS / SPLITS) * T::CTAS;
}
// before: CTAs of the layer before, or 0
template <int NT, int SPLITS, DecodeEpilogue EPILOGUE>
static inline WarpgroupTiling warpgroup_tiling_of(LaunchGpu gpu, const DecodeLinear& p, unsigned before) {
    typedef WarpgroupTile<NT, SPLITS> T;
    const unsigned blocks = warpgroup_blocks<NT, SPLITS>(p.OC);
    // All CTAs run at once. GPCs have 16 or 18 SMs: clusters of four leave two of the latter idle.
    const int room = T::CTAS == 2 ? gpu.sms / 2 * 2 : gpu.sms / 16 * 16;
    if (blocks > (unsigned)room || warpgroup_shared<T>() > gpu.shared_limit) { return {}; }
    WarpgroupTiling t = {};
    t.kernel = decode_warpgroup_kernel<NT, SPLITS, EPILOGUE>, t.columns = T::columns, t.box_rows = T::box_rows(p.M);
    t.cluster = T::CTAS, t.threads = T::threads, t.shared = warpgroup_shared<T>(), t.blocks = blocks;
    t.early = (gpu.sms - (int)before) / T::CTAS * T::CTAS;
    return t;
}
static inline WarpgroupTiling warpgroup_tiling(LaunchGpu gpu, const DecodeLinear& p) {
    if (!gpu.hopper || p.M < BATCH_MIN_ROWS || p.M > WARPGROUP_MAX_ROWS || !batch_exact(p.C)) { return {}; }
    if (p.stride % 2 != 0 || p.OC % 8 != 0 || p.logits != NULL) { return {}; }
    const int splits = decode_splits(p.C);
    constexpr int FOLDED = WARPGROUP_FOLDED_TILES, ATTPROJ = WARPGROUP_ATTPROJ_TILES, FCPROJ = WARPGROUP_FCPROJ_TILES;
    const unsigned fc = warpgroup_blocks<FOLDED, 1>(p.C), fcproj = warpgroup_blocks<FCPROJ, 4>(p.C);
    if (p.epilogue == DECODE_RESIDUAL) {
        if (p.norm_weight != NULL) { return {}; }
        return splits == 1   ? warpgroup_tiling_of<ATTPROJ, 1, DECODE_RESIDUAL>(gpu, p, 0)
               : splits == 4 ? warpgroup_tiling_of<FCPROJ, 4, DECODE_RESIDUAL>(gpu, p, fc)
                             : WarpgroupTiling{};
    }
    if (splits != 1 || p.norm_sums == NULL || p.moments == NULL) { return {}; }
    return p.epilogue == DECODE_GELU ? warpgroup_tiling_of<FOLDED, 1, DECODE_GELU>(gpu, p, 0)
                                     : warpgroup_tiling_of<FOLDED, 1, DECODE_STORE>(gpu, p, fcproj);
}
static inline void warpgroup_launch(LaunchGpu gpu, const WarpgroupTiling& t, const DecodeLinear& p,
                                    cudaStream_t stream) {
    CUtensorMap inp_map;
    if (hopper::tensor_map_of_matrix(&inp_map, p.inp, p.M, p.C, t.box_rows) != STATUS_OK) { return; }
    launch_dependent(gpu, t.kernel, t.blocks, t.threads, t.shared, t.cluster, stream, p, inp_map, t.early);
}
#endif

#endif
