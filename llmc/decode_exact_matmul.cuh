/*
The linear layers of decoding for more than 16 rows and C = 3072 (GPT-2 124M's fcproj: four splits, whose segments all have
three chunks), while all CTAs run at once. The sums of decode_matmul.cuh in the same order, so the same bits.

A CTA has one split of 16 MT rows of inp and NT tiles of 8 columns of out; each warp multiplies one segment of C of all of them.
A lane loads its part of inp from L2 into registers, as MMA operands, and its own 16 bytes of W by cp.async into shared memory
before the wait for the previous kernel: the MMAs need no data of other warps. Unlike decode_batch_matmul.cuh:
- A fragment of the accumulators is stored and read as 16 bytes a lane, without bank conflicts, over the W that it came from.
- Split s sends its sum of fragment f, 16 bytes a lane, by st.async to split f % 4 of the cluster, which adds the four sums in
  order and stores the outputs. An mbarrier there counts the bytes: no fence, and no barrier of the cluster after the MMAs.
*/
#ifndef LLMC_DECODE_EXACT_MATMUL_CUH
#define LLMC_DECODE_EXACT_MATMUL_CUH

#include "decode_batch_matmul.cuh"
#include "decode_fragment.cuh"

constexpr int EXACT_MIN_ROWS = 17;                // of fewer, the tiles here would leave SMs without a CTA
constexpr int EXACT_CHUNKS = 3, EXACT_SPLITS = 4; // of a segment; of C

// How a CTA is cut. A fragment is 16 rows and 8 columns of out, 16 bytes a lane: row tile i and column tile n have number
// n MT + i.
template <int MT_, int NT_> struct ExactTile {
    static constexpr int MT = MT_, NT = NT_, SPLITS = EXACT_SPLITS;
    static constexpr int C = EXACT_CHUNKS * DECODE_CHUNK * DECODE_WARPS * SPLITS;
    static constexpr int rows = 16 * MT, columns = 8 * NT, fragments = MT * NT;
    static constexpr int at_once = MT == 1 ? NT : 3; // column tiles whose accumulators fit a warp's registers
    static constexpr int fragment_bytes = WARP_SIZE * 16;

    // Shared memory. W (segments, NT, chunks, lanes), and over it the segments' sums; then, of the splits, their sums of the
    // fragments that this CTA finishes (SPLITS, split_fragments, lanes), and the barrier that counts these bytes
    static constexpr int tile_bytes = EXACT_CHUNKS * fragment_bytes, segment_bytes = NT * tile_bytes;
    __host__ __device__ static constexpr int sums_of(int fragment) {
        return fragment / MT * tile_bytes + fragment % MT * fragment_bytes;
    }
    static constexpr int totals = DECODE_WARPS * segment_bytes, split_fragments = CEIL_DIV(fragments, SPLITS);
    __host__ __device__ static constexpr int total_of(int split, int fragment) {
        return totals + (split * split_fragments + fragment / SPLITS) * fragment_bytes;
    }
    static constexpr int barrier = totals + SPLITS * split_fragments * fragment_bytes, shared = barrier + 16;

    // Fragments that the CTA of a split finishes, at most one a warp
    __host__ __device__ static constexpr int finished_by(int split) {
        return (fragments - split + SPLITS - 1) / SPLITS;
    }
    static_assert(MT <= EXACT_CHUNKS && NT % at_once == 0 && at_once % 3 == 0 && split_fragments <= DECODE_WARPS, "");
};

#if !defined(PRECISION_FP32)

static_assert(EXACT_MIN_ROWS > DECODE_NORM_ROWS, "decode_linear normalises the input of so many rows before");

// Fragment f; one that is none of the CTA's is outside of out
template <class T>
__device__ inline DecodeFragment exact_fragment(const DecodeLinear& p, int m0, int o0, int f, int lane) {
    DecodeFragment x;
    x.row = f < T::fragments ? m0 + f % T::MT * 16 + lane / 4 : p.M;
    x.o = o0 + f / T::MT * 8 + lane % 4 * 2;
    return x;
}

template <int MT, int NT> __global__ void __launch_bounds__(DECODE_THREADS, 2) decode_exact_kernel(DecodeLinear p) {
#ifdef DEPENDENT_LAUNCH_CODE
    typedef ExactTile<MT, NT> T;
    constexpr int SPLITS = EXACT_SPLITS;
    extern __shared__ int4 decode_shared[];
    char* shared = reinterpret_cast<char*>(decode_shared);
    const int thread = threadIdx.x, lane = thread % WARP_SIZE, warp = thread / WARP_SIZE, r = lane / 4, q = lane % 4;
    const int split = blockIdx.x % SPLITS, block = blockIdx.x / SPLITS, row_tiles = CEIL_DIV(p.M, T::rows);
    const int m0 = block % row_tiles * T::rows, o0 = block / row_tiles * T::columns;
    const int begin = (split * DECODE_WARPS + warp) * EXACT_CHUNKS * DECODE_CHUNK + 8 * q; // the lane's columns of inp

    hopper::Mbarrier* totals_full = reinterpret_cast<hopper::Mbarrier*>(shared + T::barrier);
    if (thread == 0) {
        totals_full->init(1);
        hopper::fence_mbarrier_init();
        totals_full->expect_tx(T::finished_by(split) * SPLITS * T::fragment_bytes);
    }
    __syncwarp();
    hopper::barrier_cluster_arrive_relaxed();                 // a release would wait for earlier memory accesses
    char* own = shared + warp * T::segment_bytes + lane * 16; // W of the warp's segment, and its sums
#pragma unroll
    for (int n = 0; n < NT; n++) {
        const floatX* row = p.weight + (size_t)min(o0 + 8 * n + r, p.OC - 1) * T::C + begin;
#pragma unroll
        for (int u = 0; u < EXACT_CHUNKS; u++) {
            mma::cp_async_16(hopper::shared_address(own + n * T::tile_bytes + u * T::fragment_bytes),
                             row + u * DECODE_CHUNK, 16);
        }
    }
    mma::cp_async_commit_group();
    DecodeFragment output = exact_fragment<T>(p, m0, o0, warp * SPLITS + split, lane);
    output.load_bias(p);
    hopper::barrier_cluster_wait(); // all CTAs of the cluster run, and their barriers are initialised

    wait_for_previous();
    launch_dependents();           // not before: its loads would delay those of inp
    uint4 x[2 * MT][EXACT_CHUNKS]; // rows 8 i + r; columns 8 q .. 8 q + 7 of chunk u
#pragma unroll
    for (int i = 0; i < 2 * MT; i++) {
        const floatX* row = p.inp + (size_t)min(m0 + 8 * i + r, p.M - 1) * T::C + begin;
#pragma unroll
        for (int u = 0; u < EXACT_CHUNKS; u++) {
            x[i][u] = __ldcg(reinterpret_cast<const uint4*>(row + u * DECODE_CHUNK));
        }
    }
    output.load_old(p, p.epilogue);
    output.load_positions(p);
    __syncthreads(); // keeps ptxas from sinking some of these loads below the first MMAs
    // The four registers of an A operand must be consecutive: copied once, as ptxas would do it for each MMA if it saw the copy
    const uint32_t zero = (uint32_t)p.M >> 31;
    uint32_t a[EXACT_CHUNKS][MT][2][4];
    mma::cp_async_wait_group<0>();
#pragma unroll
    for (int first = 0; first < NT; first += T::at_once) {
        float d[T::at_once][MT][4] = {};
#pragma unroll
        for (int u = 0; u < EXACT_CHUNKS; u++) {
#pragma unroll
            for (int i = 0; first == 0 && i < MT; i++) {
                const uint4 low = x[2 * i][u], high = x[2 * i + 1][u];
                const uint32_t k[8] = {low.x, high.x, low.y, high.y, low.z, high.z, low.w, high.w};
#pragma unroll
                for (int j = 0; j < 8; j++) { a[u][i][j / 4][j % 4] = or_b32(k[j], zero); }
            }
#pragma unroll
            for (int group = 0; group < T::at_once; group += 3) {
                uint4 b[3];
#pragma unroll
                for (int n = 0; n < 3; n++) {
                    b[n] = *reinterpret_cast<const uint4*>(own + (first + group + n) * T::tile_bytes +
                                                           u * T::fragment_bytes);
                }
#pragma unroll
                for (int n = 0; n < 3 * MT; n++) {
                    mma::mma_m16n8k16(d[group + n / MT][n % MT], a[u][n % MT][0], b[n / MT].x, b[n / MT].y);
                }
#pragma unroll
                for (int n = 0; n < 3 * MT; n++) {
                    mma::mma_m16n8k16(d[group + n / MT][n % MT], a[u][n % MT][1], b[n / MT].z, b[n / MT].w);
                }
            }
        }
#pragma unroll
        for (int n = 0; n < T::at_once * MT; n++) { // over 16 bytes of W that only this lane has read, and has used
            const float(&s)[4] = d[n / MT][n % MT];
            *reinterpret_cast<float4*>(own + T::sums_of(first * MT + n)) = make_float4(s[0], s[1], s[2], s[3]);
        }
        if (first + T::at_once < NT) { __syncwarp(); } // or ptxas multiplies all column tiles at once, and spills
    }
    // what depends on these is computed again, not kept in registers
    asm volatile("" : "+r"(output.row), "+r"(output.o));
    __syncthreads();
#pragma unroll
    for (int i = 0; i < CEIL_DIV(T::fragments, DECODE_WARPS); i++) {
        const int f = warp + i * DECODE_WARPS;
        if (f >= T::fragments) { break; }
        const float4 sum = fragment_sum<DECODE_WARPS>(shared + T::sums_of(f) + lane * 16, T::segment_bytes);
        char* to = shared + T::total_of(split, f) + lane * 16;
        hopper::st_async(reinterpret_cast<float4*>(to), sum, *totals_full, f % SPLITS);
    }
    totals_full->wait(0); // by all warps: the CTA stays until what others send to it is there
    const int f = warp * SPLITS + split;
    if (f >= T::fragments) { return; }
    const char* from = shared + T::total_of(0, f) + lane * 16;
    output.store_sum(p, p.epilogue, fragment_sum<SPLITS>(from, T::split_fragments * T::fragment_bytes));
#endif
}

// ----------------------------------------------------------------------------
// The launcher

typedef void (*DecodeExactKernel)(DecodeLinear p);
struct ExactTiling {
    DecodeExactKernel kernel; // NULL: others serve the layer
    int MT, NT;
    size_t shared; // bytes
    unsigned blocks;
};

// Whether all CTAs of a tiling run at once. GPCs have 16 or 18 SMs: clusters of four leave two of the latter idle.
template <int MT, int NT> static inline bool exact_tiling_is(ExactTiling* t, LaunchGpu gpu, const DecodeLinear& p) {
    typedef ExactTile<MT, NT> T;
    const unsigned tiles = (unsigned)CEIL_DIV(p.OC, T::columns) * (unsigned)CEIL_DIV(p.M, T::rows);
    *t = {decode_exact_kernel<MT, NT>, MT, NT, T::shared, tiles * EXACT_SPLITS};
    return t->blocks <= (unsigned)(gpu.sms / 16 * 16) && t->shared <= gpu.shared_limit;
}
// The smallest tiles whose CTAs run at once, or a kernel of NULL
static inline ExactTiling exact_tiling(LaunchGpu gpu, const DecodeLinear& p) {
    ExactTiling t;
    if (!gpu.dependent || p.M < EXACT_MIN_ROWS || !batch_exact(p.C) || decode_splits(p.C) != EXACT_SPLITS) {
        return {};
    }
    if (p.norm_sums != NULL || p.stride % 2 != 0 || p.OC % 2 != 0) { return {}; }
    bool served =
        exact_tiling_is<1, 6>(&t, gpu, p) || exact_tiling_is<1, 9>(&t, gpu, p) || exact_tiling_is<2, 6>(&t, gpu, p);
    return served ? t : ExactTiling{};
}
#endif

#endif
