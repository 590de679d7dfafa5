/*
The linear layers of decoding: out (M,OC) = inp (M,C) W^T + bias, for a few rows: bound by the bytes of W. From sm_90
on, in 16 bit, decode/batch_matmul.cuh and decode/cluster_matmul.cuh serve four rows and more, decode/warpgroup_matmul.cuh GPT-2
124M's layers, decode/head_matmul.cuh those of many columns; decode/linear.cuh launches.

A warp multiplies 8 NT rows of W, the n8 operand of mma.sync m16n8k16, with 16 MT rows of inp, the m16 operand. Lane (r, q)
loads 16 bytes of row r of W, straight into registers, where they are elements 8q .. 8q+7 of a chunk of 32: the sum over k may
take them in any order if both operands do. So a load of W is two MMAs' operand, and DEPTH loads a lane are in flight, the first
of them before the kernel waits for the one that computes inp.

The order of a sum depends on C alone. C is cut into 8 P segments, P = decode_splits(C); a segment is one warp's and adds chunk
by chunk; the 8 segments of a split are added in order, then the P splits. A CTA has all splits or, for many rows, one, and the
P CTAs of a cluster add theirs through distributed shared memory. So a row's bits do not depend on M, or on the tiles. In fp32
the same with fused multiply-adds.
*/
#ifndef LLMC_DECODE_MATMUL_CUH
#define LLMC_DECODE_MATMUL_CUH

#include <cooperative_groups.h>

#include "folded_norm.cuh"
#include "rows.cuh"
#include "llmc/cuda/dependent_launch.cuh"
#include "llmc/cuda/gelu.cuh"
#if !defined(PRECISION_FP32)
#include "llmc/cuda/mma.cuh"
#endif

constexpr int DECODE_WARPS = 8, DECODE_THREADS = 32 * DECODE_WARPS;
constexpr int DECODE_MAX_SPLITS = 8;      // CTAs of a cluster
constexpr int DECODE_SPLIT_COLUMNS = 800; // a split has at most so many columns, while there are clusters enough
constexpr int DECODE_NORM_ROWS = 16;      // up to so many rows a CTA of the kernel below normalises inp

// The epilogue of y = inp W^T + bias
enum DecodeEpilogue {
    DECODE_STORE,   // out = y
    DECODE_GELU,    // out = gelu(y)
    DECODE_RESIDUAL // out += y
};

struct DecodeLinear {
    floatX* out;          // (M,stride)
    float* logits;        // (M,stride): in its place, y in fp32, of DECODE_STORE without a bias; or NULL
    const floatX* inp;    // (M,C)
    const floatX* weight; // (OC,C)
    const floatX* bias;   // (OC), or NULL
    const floatX *norm_weight, *norm_bias; // (C): inp is normalised first (layernorm.cuh); or NULL
    // Where LayerNorm is folded (decode/folded_norm.cuh; not with DECODE_RESIDUAL) weight is F, and norm_sums are s and t (OC);
    // else NULL. moments (M,C/8) of inp's vectors, or NULL. statistics (M): scratch of decode_linear
    const float2 *norm_sums, *moments;
    RowStatistics* statistics;
    float2* out_moments;  // (M,OC/8): of what DECODE_RESIDUAL stores, if decode_linear says so; or NULL
    const int* positions; // (M): rows where it is negative are not written; or NULL
    int M, C, OC, stride; // C a multiple of 32
    DecodeEpilogue epilogue;
    int next_reads_early; // 1: before its wait the next kernel reads what older ones than this wrote: let it start after ours
    // (M): each row's largest logit_key, or NULL; with logits. A kernel that does so raises what is there; the others leave it.
    unsigned long long* row_keys;
};

// ----------------------------------------------------------------------------
// Which part of the sums is whose

__host__ __device__ inline int decode_splits(int C) {
    int splits = 1;
    while (splits < DECODE_MAX_SPLITS && C > DECODE_SPLIT_COLUMNS * splits) { splits *= 2; }
    return splits;
}
// Whether this build can fold a LayerNorm into linear layers of C inputs; below, whether it does on this GPU. With a larger C a
// row is cut into splits, or (C = 800) the kernels have too few registers.
static inline int decode_norm_foldable(int C) {
    return sizeof(floatX) == 2 && C % DECODE_CHUNK == 0 && C <= DECODE_FOLDED_VECTORS * WARP_SIZE * x128::size;
}
static inline int decode_folds_norm(LaunchGpu gpu, int C) { return gpu.hopper && decode_norm_foldable(C); }
// The first chunk of a segment; segment DECODE_WARPS * splits has none, and begins at the end.
__host__ __device__ inline int decode_segment(int C, int splits, int segment) {
#ifdef __CUDA_ARCH__
    int log2_segments = __ffs(DECODE_WARPS * splits) - 1; // a power of two
#else
    int log2_segments = __builtin_ffs(DECODE_WARPS * splits) - 1;
#endif
    return (int)((int64_t)(C / DECODE_CHUNK) * segment >> log2_segments);
}

// How a launch is cut into thread blocks: of `rows` rows of inp and 8 NT rows of W each, with all splits or, in clusters, one.
struct DecodeTiling {
    int MT, NT, rows, clustered;
    size_t shared; // bytes
    unsigned blocks;
};

// Rows of the input in shared memory: (chunks of the CTA, these, 32). In wide tiles a constant, so that addresses are; what no
// row of inp is copied to is multiplied, too, and thrown away.
__host__ __device__ inline int decode_input_rows(int MT, int rows) { return MT == 1 ? rows : 16 * MT; }
// Sums of the segments: (segments of the CTA, rows, 8 NT). Where each warp has one segment, they take the place of the input.
__host__ __device__ inline size_t decode_shared_input(int C, int splits, int clustered, int rows) {
    int chunks = C / DECODE_CHUNK;
    if (clustered) { chunks = CEIL_DIV(chunks, splits); }
    return (size_t)chunks * DECODE_CHUNK * rows * sizeof(floatX);
}
__host__ __device__ inline size_t decode_shared_sums(int segments, int rows, int NT) {
    return (size_t)segments * rows * 8 * NT * sizeof(float);
}
static inline size_t decode_shared_bytes(int C, int MT, int rows, int NT, int clustered, int norm) {
    int splits = decode_splits(C), per_cta = clustered ? 1 : splits;
    size_t input = decode_shared_input(C, splits, clustered, decode_input_rows(MT, rows));
    size_t sums = decode_shared_sums(DECODE_WARPS * per_cta, rows, NT);
    size_t totals = clustered ? decode_shared_sums(1, rows, NT) : 0;
    size_t norms = norm ? 2 * (size_t)C * sizeof(floatX) : 0;
    size_t both = per_cta == 1 ? (input > sums ? input : sums) : input + sums;
    return norms + totals + both;
}

// Small tiles where a matrix is small, so that all SMs read; large ones where that costs no SM.
static inline DecodeTiling decode_tiling(LaunchGpu gpu, int M, int C, int OC, int norm) {
    DecodeTiling t = {};
    int one_segment =
        decode_splits(C) == 1 || gpu.dependent; // a warp of a CTA has one: only then there is room for wide tiles
    t.MT = M <= 16 || !one_segment ? 1 : M <= 32 ? 2 : 4;
    t.NT = t.MT == 4 ? 3 : t.MT == 2 ? 2 : CEIL_DIV(OC, 8) <= 264 ? 1 : CEIL_DIV(OC, 16) <= 264 ? 2 : 4;
    t.clustered = t.MT > 1 && decode_splits(C) > 1;
    t.rows = M < 16 * t.MT ? M : 16 * t.MT;
    while ((t.shared = decode_shared_bytes(C, t.MT, t.rows, t.NT, t.clustered, norm)) > gpu.shared_limit) {
        if (t.rows == 1 && t.NT == 1) { break; } // the launcher refuses it
        t.NT = t.rows == 1 ? t.NT / 2 : t.NT;
        t.rows = CEIL_DIV(t.rows, 2);
        if (t.rows <= 8 * t.MT && t.MT > 1) { t.MT /= 2, t.NT = 2; }
    }
    t.blocks = (unsigned)CEIL_DIV(OC, 8 * t.NT) * (unsigned)CEIL_DIV(M, t.rows);
    if (t.clustered) { t.blocks *= (unsigned)decode_splits(C); }
    return t;
}

// ----------------------------------------------------------------------------
// A warp's part: acc (rows 16 MT, columns 8 NT) += chunk of inp (rows, 32) * chunk of W (8 NT, 32)^T. Lane (r, q) has rows r
// and r+8 of each 16, and columns 2q and 2q+1 of each 8. Rows behind the last one are multiplied, too, and not stored.

template <int MT, int NT> struct DecodeSums {
    float d[MT][NT][4];

    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < MT * NT * 4; i++) { d[i / (NT * 4)][i / 4 % NT][i % 4] = 0.0f; }
    }
    // to sums (rows, 8 NT)
    __device__ void store(float* sums, int rows, int lane) const {
        int r = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < 2 * MT; i++) {
            if (8 * i + r >= rows) { continue; }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float2 pair = make_float2(d[i / 2][n][i % 2 * 2], d[i / 2][n][i % 2 * 2 + 1]);
                *reinterpret_cast<float2*>(sums + (8 * i + r) * 8 * NT + 8 * n + 2 * q) = pair;
            }
        }
    }
};

#if defined(PRECISION_FP32)
template <int MT, int NT> struct DecodeWeights {
    static constexpr int DEPTH = 1; // nothing is held in registers
    const float* row[NT][2];        // rows 2q and 2q+1 of each 8

    __device__ void point(const DecodeLinear& p, int o0, int lane) {
#pragma unroll
        for (int i = 0; i < 2 * NT; i++) {
            int o = min(o0 + 8 * (i / 2) + 2 * (lane % 4) + i % 2, p.OC - 1);
            row[i / 2][i % 2] = p.weight + (size_t)o * p.C;
        }
    }
    __device__ void load(const DecodeLinear&, int, int) {}
    __device__ void multiply(DecodeSums<MT, NT>& acc, int, const floatX* inp, int chunk, int rows, int lane) const {
        int r = lane / 4;
        for (int k = 0; k < DECODE_CHUNK; k++) {
            float x[2 * MT];
#pragma unroll
            for (int i = 0; i < 2 * MT; i++) { x[i] = inp[min(8 * i + r, rows - 1) * DECODE_CHUNK + k]; }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float w0 = row[n][0][chunk * DECODE_CHUNK + k], w1 = row[n][1][chunk * DECODE_CHUNK + k];
#pragma unroll
                for (int i = 0; i < 2 * MT; i++) {
                    float(&d)[4] = acc.d[i / 2][n];
                    d[i % 2 * 2] = fmaf(x[i], w0, d[i % 2 * 2]);
                    d[i % 2 * 2 + 1] = fmaf(x[i], w1, d[i % 2 * 2 + 1]);
                }
            }
        }
    }
};
#else
template <int MT, int NT> struct DecodeWeights {
    static constexpr int DEPTH = NT == 1 ? 12 : NT == 2 ? 6 : 3; // chunks in flight
    int row, column;                                             // the lane's in the first tile and chunk
    uint4 w[DEPTH][NT];

    __device__ void point(const DecodeLinear&, int o0, int lane) { row = o0 + lane / 4, column = lane % 4 * 8; }
    // Prefetches a chunk into registers u.
    __device__ void load(const DecodeLinear& p, int u, int chunk) {
#pragma unroll
        for (int n = 0; n < NT; n++) {
            w[u][n] = ld_global_nc_no_allocate(p.weight + (size_t)min(row + 8 * n, p.OC - 1) * p.C +
                                               chunk * DECODE_CHUNK + column);
        }
    }
    __device__ void multiply(DecodeSums<MT, NT>& acc, int u, const floatX* inp, int, int rows, int lane) const {
        int r = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < MT; i++) {
            int low = MT > 1 ? 16 * i + r : min(r, rows - 1), high = MT > 1 ? low + 8 : min(8 + r, rows - 1);
            uint4 x = *reinterpret_cast<const uint4*>(inp + low * DECODE_CHUNK + q * 8);
            uint4 y = *reinterpret_cast<const uint4*>(inp + high * DECODE_CHUNK + q * 8);
            const uint32_t first[4] = {x.x, y.x, x.y, y.y}, second[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
            for (int n = 0; n < NT; n++) {
                mma::mma_m16n8k16(acc.d[i][n], first, w[u][n].x, w[u][n].y);
                mma::mma_m16n8k16(acc.d[i][n], second, w[u][n].z, w[u][n].w);
            }
        }
    }
};
#endif

// ----------------------------------------------------------------------------
// A thread block's part

// Which rows, columns and segments a thread block has
struct DecodePart {
    int m0, rows, o0;            // rows m0 .. m0+rows-1 of inp; columns of out from o0 on
    int input_rows;              // in shared memory
    int splits, rank;            // rank: which split, in a cluster
    int segments, first_segment; // of the CTA, all of its warps
    int first_chunk;

    template <int MT, int NT> __device__ static DecodePart of(const DecodeLinear& p, int rows, int clustered) {
        DecodePart x;
        int block = blockIdx.x, row_tiles = CEIL_DIV(p.M, rows);
        x.splits = decode_splits(p.C);
        x.rank = clustered ? block % x.splits : 0;
        block /= clustered ? x.splits : 1;
        x.m0 = block % row_tiles * rows;
        x.rows = min(rows, p.M - x.m0);
        x.input_rows = decode_input_rows(MT, x.rows);
        x.o0 = block / row_tiles * 8 * NT;
        x.segments = DECODE_WARPS * (clustered ? 1 : x.splits);
        x.first_segment = DECODE_WARPS * x.rank;
        x.first_chunk = decode_segment(p.C, x.splits, x.first_segment);
        return x;
    }
};

// The warp's chunks of inp, to shared memory (chunks, rows, 32)
__device__ inline void load_input(floatX* shared, const DecodeLinear& p, const DecodePart& part, int begin, int end,
                                  int lane) {
    constexpr int K = x128::size, VECTORS = DECODE_CHUNK / K;
    const floatX* from = p.inp + (size_t)part.m0 * p.C;
    for (int chunk = begin; chunk < end; chunk++) {
        floatX* to = shared + (size_t)(chunk - part.first_chunk) * part.input_rows * DECODE_CHUNK;
        for (int i = lane; i < part.rows * VECTORS; i += WARP_SIZE) {
            const floatX* vector = from + (size_t)(i / VECTORS) * p.C + chunk * DECODE_CHUNK + i % VECTORS * K;
#if defined(PRECISION_FP32)
            store128(to + i * K, load128(vector));
#else
            mma::cp_async_16((uint32_t)__cvta_generic_to_shared(to + i * K), vector, 16);
#endif
        }
    }
#if !defined(PRECISION_FP32)
    mma::cp_async_commit_group();
    mma::cp_async_wait_group<0>();
#endif
    __syncwarp();
}

// The elements of out that a thread finishes: COUNT at most, from `first` on, each `step` further; and what they need
template <int MT, int NT> struct DecodeOutput {
    static constexpr int COUNT = CEIL_DIV(16 * MT * 8 * NT, DECODE_THREADS);
    int first, step;
    float old[COUNT], bias[COUNT];
    bool write[COUNT];

    __device__ int element(int e) const { return first + e * step; } // of (rows, 8 NT)
    __device__ static size_t offset(const DecodeLinear& p, const DecodePart& part, int i) {
        return (size_t)(part.m0 + i / (8 * NT)) * p.stride + part.o0 + i % (8 * NT);
    }
    __device__ void load_bias(const DecodeLinear& p, const DecodePart& part) {
#pragma unroll
        for (int e = 0; e < COUNT; e++) {
            int i = element(e), o = part.o0 + i % (8 * NT);
            write[e] = i < part.rows * 8 * NT && o < p.OC;
            bias[e] = write[e] && p.bias != NULL ? (float)p.bias[o] : 0.0f;
        }
    }
    __device__ void load_old(const DecodeLinear& p, const DecodePart& part) {
#pragma unroll
        for (int e = 0; e < COUNT; e++) {
            int i = element(e);
            old[e] = write[e] && p.epilogue == DECODE_RESIDUAL ? (float)p.out[offset(p, part, i)] : 0.0f;
            if (write[e] && p.positions != NULL) { write[e] = p.positions[part.m0 + i / (8 * NT)] >= 0; }
        }
    }
    // Rounded where the training's forward pass rounds
    __device__ void store(const DecodeLinear& p, const DecodePart& part, int e, float sum) const {
        if (!write[e]) { return; }
        if (p.logits != NULL) {
            p.logits[offset(p, part, element(e))] = sum;
            return;
        }
        const size_t row = part.m0 + element(e) / (8 * NT), o = part.o0 + element(e) % (8 * NT);
        floatX y =
            (floatX)(p.norm_sums == NULL ? sum + bias[e] : decode_unfold(sum, p.statistics[row], p.norm_sums[o]));
        if (p.epilogue == DECODE_GELU) { y = (floatX)gelu((float)y, gelu_sigma((float)y)); }
        if (p.epilogue == DECODE_RESIDUAL) { y = (floatX)(old[e] + (float)y); }
        p.out[offset(p, part, element(e))] = y;
    }
};

// The sum of a split's segments, sums (8, n), of element i
__device__ inline float decode_split_sum(const float* sums, int n, int i) {
    float x[DECODE_WARPS], sum;
#pragma unroll
    for (int s = 0; s < DECODE_WARPS; s++) { x[s] = sums[s * n + i]; }
    sum = x[0];
#pragma unroll
    for (int s = 1; s < DECODE_WARPS; s++) { sum += x[s]; }
    return sum;
}

// Adds the totals (rows, 8 NT) of the cluster's CTAs, split by split.
template <int MT, int NT> __device__ inline void decode_finish_cluster(const DecodeLinear& p, const DecodePart& part,
                                                                       float* totals,
                                                                       const DecodeOutput<MT, NT>& output) {
#ifdef DEPENDENT_LAUNCH_CODE
    namespace cg = cooperative_groups;
    cg::cluster_group cluster = cg::this_cluster();
    cluster.sync(); // all totals are there
#pragma unroll
    for (int e = 0; e < output.COUNT; e++) {
        int i = output.element(e);
        if (i >= part.rows * 8 * NT) { break; }
        float sum = cluster.map_shared_rank(totals, 0)[i];
        for (int split = 1; split < part.splits; split++) { sum += cluster.map_shared_rank(totals, split)[i]; }
        output.store(p, part, e, sum);
    }
    cluster.sync(); // nobody reads the others' any more
#endif
}

// The warp's chunks begin .. end-1, of segments first .. first+count-1. Where these are several, each goes to sums (segments of
// the CTA, rows, 8 NT) as it ends; one stays in acc.
template <int MT, int NT>
__device__ inline void decode_multiply(DecodeSums<MT, NT>& acc, DecodeWeights<MT, NT>& weights, float* sums,
                                       const floatX* input, const DecodeLinear& p, const DecodePart& part, int first,
                                       int count, int begin, int end, int lane) {
    constexpr int DEPTH = DecodeWeights<MT, NT>::DEPTH;
    int segment = first, boundary = MT == 1 && count > 1 ? decode_segment(p.C, part.splits, segment + 1) : -1;
    for (int base = begin; base < end; base += DEPTH) {
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            int chunk = base + u;
            if (chunk >= end) { continue; }
            const floatX* rows = input + (size_t)(chunk - part.first_chunk) * part.input_rows * DECODE_CHUNK;
            weights.multiply(acc, u, rows, chunk, part.rows, lane);
            if (chunk + DEPTH < end) { weights.load(p, u, chunk + DEPTH); }
            if (MT == 1 && chunk + 1 == boundary) {
                acc.store(sums + (size_t)(segment - part.first_segment) * part.rows * 8 * NT, part.rows, lane);
                acc.clear();
                boundary = decode_segment(p.C, part.splits, ++segment + 1);
            }
        }
    }
}

template <int MT, int NT, bool NORM> __global__ void __launch_bounds__(DECODE_THREADS, 2)
    decode_linear_kernel(DecodeLinear p, int cta_rows, int clustered) {
    extern __shared__ int4 decode_shared[];
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const DecodePart part = DecodePart::of<MT, NT>(p, cta_rows, clustered);
    if (!p.next_reads_early) { launch_dependents(); }

    // the warp's segments; prefetches its first DEPTH chunks of W
    int count = part.segments / DECODE_WARPS, first = part.first_segment + warp * count;
    int begin = decode_segment(p.C, part.splits, first), end = decode_segment(p.C, part.splits, first + count);
    DecodeWeights<MT, NT> weights;
    weights.point(p, part.o0, lane);
#pragma unroll
    for (int u = 0; u < DecodeWeights<MT, NT>::DEPTH; u++) {
        if (begin + u < end) { weights.load(p, u, begin + u); }
    }
    // shared memory: LayerNorm's weight and bias, totals of a cluster's CTA, input, sums
    floatX* norm = reinterpret_cast<floatX*>(decode_shared);
    float* totals = reinterpret_cast<float*>(norm + (NORM ? 2 * (size_t)p.C : 0));
    floatX* input = reinterpret_cast<floatX*>(totals + (clustered ? part.rows * 8 * NT : 0));
    size_t input_bytes = count == 1 ? 0 : decode_shared_input(p.C, part.splits, clustered, part.input_rows);
    float* sums = reinterpret_cast<float*>(reinterpret_cast<char*>(input) + input_bytes);
    if (NORM) {
        for (int c = threadIdx.x * x128::size; c < p.C; c += DECODE_THREADS * x128::size) {
            store128(norm + c, load128(p.norm_weight + c));
            store128(norm + p.C + c, load128(p.norm_bias + c));
        }
        __syncthreads();
    }
    DecodeOutput<MT, NT> output;
    output.first = part.rank * DECODE_THREADS + threadIdx.x;
    output.step = DECODE_THREADS * (clustered ? part.splits : 1);
    if (MT == 1) { // early where registers allow it
        output.load_bias(p, part);
    } else if (p.bias != NULL && threadIdx.x < 8 * NT && part.o0 + (int)threadIdx.x < p.OC) {
        prefetch_global_l2(p.bias + part.o0 + threadIdx.x);
    }
    wait_for_previous();
    if (p.next_reads_early) { launch_dependents(); }
    if (MT == 1) { output.load_old(p, part); }
    if (NORM) {
#pragma unroll 1
        for (int row = warp; row < part.rows; row += DECODE_WARPS) {
            floatX* staged = input + row * DECODE_CHUNK;
            size_t stride = (size_t)part.input_rows * DECODE_CHUNK;
            normalise_row(staged, stride, staged, stride, p.inp + (size_t)(part.m0 + row) * p.C, norm, norm + p.C, p.C,
                          lane);
        }
        __syncthreads();
    } else {
        load_input(input, p, part, begin, end, lane);
    }
    DecodeSums<MT, NT> acc;
    acc.clear();
    decode_multiply(acc, weights, sums, input, p, part, first, count, begin, end, lane);
    if (MT > 1) { output.load_bias(p, part), output.load_old(p, part); }
    if (count == 1) {
        __syncthreads(); // the sums take the input's place
        acc.store(sums + (size_t)warp * part.rows * 8 * NT, part.rows, lane);
    }
    __syncthreads();

    int n = part.rows * 8 * NT;
    if (clustered) {
        for (int i = threadIdx.x; i < n; i += DECODE_THREADS) { totals[i] = decode_split_sum(sums, n, i); }
        decode_finish_cluster(p, part, totals, output);
        return;
    }
#pragma unroll
    for (int e = 0; e < output.COUNT; e++) {
        int i = output.element(e);
        if (i >= n) { break; }
        float sum = decode_split_sum(sums, n, i);
#pragma unroll 1
        for (int split = 1; split < part.splits; split++) {
            sum += decode_split_sum(sums + (size_t)split * DECODE_WARPS * n, n, i);
        }
        output.store(p, part, e, sum);
    }
}

// ----------------------------------------------------------------------------
// The launcher

#ifdef DECODE_KERNELS
typedef void (*DecodeLinearKernel)(DecodeLinear p, int cta_rows, int clustered);

static inline DecodeLinearKernel decode_linear_choice(DecodeTiling t, int norm) {
    if (t.MT == 4) { return decode_linear_kernel<4, 3, false>; }
    if (t.MT == 2) { return decode_linear_kernel<2, 2, false>; }
    if (t.NT == 1) { return norm ? decode_linear_kernel<1, 1, true> : decode_linear_kernel<1, 1, false>; }
    if (t.NT == 2) { return norm ? decode_linear_kernel<1, 2, true> : decode_linear_kernel<1, 2, false>; }
    return norm ? decode_linear_kernel<1, 4, true> : decode_linear_kernel<1, 4, false>;
}

// The tiling is a parameter for the tests' sake: all give the same bits.
static inline void decode_linear_tiled(LaunchGpu gpu, const DecodeLinear& p, DecodeTiling t, cudaStream_t stream) {
    if (p.C % DECODE_CHUNK != 0 || t.shared > gpu.shared_limit) {
        status_fail("decode: a linear layer of %d inputs; they must be a multiple of %d, and fit %zu bytes", p.C,
                    DECODE_CHUNK, gpu.shared_limit);
        return;
    }
    int norm = p.norm_weight != NULL;
    launch_dependent(gpu, decode_linear_choice(t, norm), t.blocks, DECODE_THREADS, t.shared,
                     t.clustered ? decode_splits(p.C) : 1, stream, p, t.rows, t.clustered);
}
#endif

#endif
