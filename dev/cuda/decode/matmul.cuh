/*
The linear layers of decoding: out (M,OC) = inp (M,C) W^T + bias, for a few rows: bound by the bytes of W. The kernel here
serves every GPU, precision and size; decode/batch_matmul.cuh four rows and more from sm_90 on. decode/linear.cuh launches.

A warp multiplies 8 NT rows of W, the n8 operand of mma.sync m16n8k16, with 16 rows of inp, the m16 operand. Lane (r, q)
loads 16 bytes of row r of W, straight into registers, where they are elements 8q .. 8q+7 of a chunk of 32: the sum over k may
take them in any order if both operands do. So a load of W is two MMAs' operand, and DEPTH loads a lane are in flight, the first
of them before the kernel waits for the one that computes inp.

The order of a sum depends on C alone. C is cut into 8 P segments, P = decode_splits(C); a segment is one warp's and adds chunk
by chunk. Of the 8 segments of a split the first four are added in order, then the others, then the two halves; then the P
splits in order. So a row's bits do not depend on M, or on the tiles. In fp32 the same with fused multiply-adds.
*/
#ifndef LLMC_DECODE_MATMUL_CUH
#define LLMC_DECODE_MATMUL_CUH

#include "rows.cuh"
#include "llmc/cuda/dependent_launch.cuh"
#include "llmc/cuda/gelu.cuh"
#if !defined(PRECISION_FP32)
#include "llmc/cuda/mma.cuh"
#endif

constexpr int DECODE_WARPS = 8, DECODE_THREADS = 32 * DECODE_WARPS;
constexpr int DECODE_MAX_SPLITS = 8;      // CTAs of a cluster in decode/batch_matmul.cuh
constexpr int DECODE_SPLIT_COLUMNS = 800; // a split has at most so many columns, while there are clusters enough

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
    const int* positions;                  // (M): rows where it is negative are not written; or NULL
    int M, C, OC, stride;                  // C a multiple of 32
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
// The first chunk of a segment; segment DECODE_WARPS * splits has none, and begins at the end.
__host__ __device__ inline int decode_segment(int C, int splits, int segment) {
#ifdef __CUDA_ARCH__
    int log2_segments = __ffs(DECODE_WARPS * splits) - 1; // a power of two
#else
    int log2_segments = __builtin_ffs(DECODE_WARPS * splits) - 1;
#endif
    return (int)((int64_t)(C / DECODE_CHUNK) * segment >> log2_segments);
}

// Chunks of the longest segment
__host__ __device__ inline int decode_most_chunks(int C) {
    return CEIL_DIV(C / DECODE_CHUNK, DECODE_WARPS * decode_splits(C));
}

// The sum of a split from those of its segments
__device__ inline float decode_split_sum(const float (&x)[DECODE_WARPS]) {
    float first = x[0], second = x[DECODE_WARPS / 2];
#pragma unroll
    for (int s = 1; s < DECODE_WARPS / 2; s++) { first += x[s], second += x[DECODE_WARPS / 2 + s]; }
    return first + second;
}

// How a launch is cut into thread blocks: of `rows` rows of inp, up to 16, and 8 NT rows of W each
struct DecodeTiling {
    int NT, rows;
    size_t shared; // bytes
    unsigned blocks;
};

// Input: (chunks, rows, 32). Sums of the segments: (segments, rows, 8 NT). Where each warp has one segment, they take the place
// of the input.
static inline size_t decode_shared_bytes(int C, int rows, int NT) {
    const int splits = decode_splits(C);
    size_t input = (size_t)C * rows * sizeof(floatX);
    size_t sums = (size_t)DECODE_WARPS * splits * rows * 8 * NT * sizeof(float);
    return splits > 1 ? input + sums : input > sums ? input : sums;
}

// Narrow tiles where a matrix is small, so that all SMs read; wide ones where that costs no SM.
static inline DecodeTiling decode_tiling(DeviceCode gpu, int M, int C, int OC) {
    DecodeTiling t = {};
    t.NT = CEIL_DIV(OC, 8) <= 264 ? 1 : CEIL_DIV(OC, 16) <= 264 ? 2 : 4;
    t.rows = M < 16 ? M : 16;
    while ((t.shared = decode_shared_bytes(C, t.rows, t.NT)) > gpu.shared_limit) {
        if (t.rows == 1 && t.NT == 1) { break; } // the launcher refuses it
        t.NT = t.rows == 1 ? t.NT / 2 : t.NT;
        t.rows = CEIL_DIV(t.rows, 2);
    }
    t.blocks = (unsigned)CEIL_DIV(OC, 8 * t.NT) * (unsigned)CEIL_DIV(M, t.rows);
    return t;
}

// ----------------------------------------------------------------------------
// A warp's part: acc (16 rows, columns 8 NT) += chunk of inp (rows, 32) * chunk of W (8 NT, 32)^T. Lane (r, q) has rows r
// and r+8, and columns 2q and 2q+1 of each 8. Rows behind the last one are multiplied, too, and not stored.

template <int NT> struct DecodeSums {
    float d[NT][4];

    __device__ void clear() {
#pragma unroll
        for (int i = 0; i < NT * 4; i++) { d[i / 4][i % 4] = 0.0f; }
    }
    // to sums (rows, 8 NT)
    __device__ void store(float* sums, int rows, int lane) const {
        int r = lane / 4, q = lane % 4;
#pragma unroll
        for (int i = 0; i < 2; i++) {
            if (8 * i + r >= rows) { continue; }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float2 pair = make_float2(d[n][2 * i], d[n][2 * i + 1]);
                *reinterpret_cast<float2*>(sums + (8 * i + r) * 8 * NT + 8 * n + 2 * q) = pair;
            }
        }
    }
};

#if defined(PRECISION_FP32)
template <int NT> struct DecodeWeights {
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
    __device__ void multiply(DecodeSums<NT>& acc, int, const floatX* inp, int chunk, int rows, int lane) const {
        int r = lane / 4;
        for (int k = 0; k < DECODE_CHUNK; k++) {
            float x[2];
#pragma unroll
            for (int i = 0; i < 2; i++) { x[i] = inp[min(8 * i + r, rows - 1) * DECODE_CHUNK + k]; }
#pragma unroll
            for (int n = 0; n < NT; n++) {
                float w0 = row[n][0][chunk * DECODE_CHUNK + k], w1 = row[n][1][chunk * DECODE_CHUNK + k];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float(&d)[4] = acc.d[n];
                    d[2 * i] = fmaf(x[i], w0, d[2 * i]);
                    d[2 * i + 1] = fmaf(x[i], w1, d[2 * i + 1]);
                }
            }
        }
    }
};
#else
template <int NT> struct DecodeWeights {
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
    __device__ void multiply(DecodeSums<NT>& acc, int u, const floatX* inp, int, int rows, int lane) const {
        int r = lane / 4, q = lane % 4;
        uint4 x = *reinterpret_cast<const uint4*>(inp + min(r, rows - 1) * DECODE_CHUNK + q * 8);
        uint4 y = *reinterpret_cast<const uint4*>(inp + min(8 + r, rows - 1) * DECODE_CHUNK + q * 8);
        const uint32_t first[4] = {x.x, y.x, x.y, y.y}, second[4] = {x.z, y.z, x.w, y.w};
#pragma unroll
        for (int n = 0; n < NT; n++) {
            mma::mma_m16n8k16(acc.d[n], first, w[u][n].x, w[u][n].y);
            mma::mma_m16n8k16(acc.d[n], second, w[u][n].z, w[u][n].w);
        }
    }
};
#endif

// ----------------------------------------------------------------------------
// A thread block's part

// Which rows, columns and segments a thread block has
struct DecodePart {
    int m0, rows, o0;     // rows m0 .. m0+rows-1 of inp; columns of out from o0 on
    int splits, segments; // segments: of all warps

    template <int NT> __device__ static DecodePart of(const DecodeLinear& p, int rows) {
        DecodePart x;
        const int block = blockIdx.x, row_tiles = CEIL_DIV(p.M, rows);
        x.splits = decode_splits(p.C), x.segments = DECODE_WARPS * x.splits;
        x.m0 = block % row_tiles * rows;
        x.rows = min(rows, p.M - x.m0);
        x.o0 = block / row_tiles * 8 * NT;
        return x;
    }
};

// The warp's chunks of inp, to shared memory (chunks, rows, 32)
__device__ inline void load_input(floatX* shared, const DecodeLinear& p, const DecodePart& part, int begin, int end,
                                  int lane) {
    constexpr int K = x128::size, VECTORS = DECODE_CHUNK / K;
    const floatX* from = p.inp + (size_t)part.m0 * p.C;
    for (int chunk = begin; chunk < end; chunk++) {
        floatX* to = shared + (size_t)chunk * part.rows * DECODE_CHUNK;
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

// The elements of out that a thread finishes: COUNT at most; and what they need
template <int NT> struct DecodeOutput {
    static constexpr int COUNT = CEIL_DIV(16 * 8 * NT, DECODE_THREADS);
    float old[COUNT], bias[COUNT];
    bool write[COUNT];

    __device__ int element(int e) const { return threadIdx.x + e * DECODE_THREADS; } // of (rows, 8 NT)
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
        floatX y = (floatX)(sum + bias[e]);
        if (p.epilogue == DECODE_GELU) { y = (floatX)gelu((float)y, gelu_sigma((float)y)); }
        if (p.epilogue == DECODE_RESIDUAL) { y = (floatX)(old[e] + (float)y); }
        p.out[offset(p, part, element(e))] = y;
    }
};

// The sum of element i from those of its segments, sums (8 splits, n)
__device__ inline float decode_sum(const float* sums, int splits, int n, int i) {
    float total = 0.0f;
#pragma unroll 1
    for (int split = 0; split < splits; split++, sums += DECODE_WARPS * n) {
        float x[DECODE_WARPS];
#pragma unroll
        for (int s = 0; s < DECODE_WARPS; s++) { x[s] = sums[s * n + i]; }
        total += decode_split_sum(x);
    }
    return total;
}

// The warp's chunks begin .. end-1, of segments first .. first+count-1. Where these are several, each goes to sums (segments,
// rows, 8 NT) as it ends; one stays in acc.
template <int NT> __device__ inline void decode_multiply(DecodeSums<NT>& acc, DecodeWeights<NT>& weights, float* sums,
                                                         const floatX* input, const DecodeLinear& p,
                                                         const DecodePart& part, int first, int count, int begin,
                                                         int end, int lane) {
    constexpr int DEPTH = DecodeWeights<NT>::DEPTH;
    int segment = first, boundary = count > 1 ? decode_segment(p.C, part.splits, segment + 1) : -1;
    for (int base = begin; base < end; base += DEPTH) {
#pragma unroll
        for (int u = 0; u < DEPTH; u++) {
            int chunk = base + u;
            if (chunk >= end) { continue; }
            const floatX* rows = input + (size_t)chunk * part.rows * DECODE_CHUNK;
            weights.multiply(acc, u, rows, chunk, part.rows, lane);
            if (chunk + DEPTH < end) { weights.load(p, u, chunk + DEPTH); }
            if (chunk + 1 == boundary) {
                acc.store(sums + (size_t)segment * part.rows * 8 * NT, part.rows, lane);
                acc.clear();
                boundary = decode_segment(p.C, part.splits, ++segment + 1);
            }
        }
    }
}

template <int NT> __global__ void __launch_bounds__(DECODE_THREADS, 2)
    decode_linear_kernel(DecodeLinear p, int cta_rows) {
    extern __shared__ int4 decode_shared[];
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const DecodePart part = DecodePart::of<NT>(p, cta_rows);
    if (!p.next_reads_early) { launch_dependents(); }

    // the warp's segments; prefetches its first DEPTH chunks of W
    int count = part.segments / DECODE_WARPS, first = warp * count;
    int begin = decode_segment(p.C, part.splits, first), end = decode_segment(p.C, part.splits, first + count);
    DecodeWeights<NT> weights;
    weights.point(p, part.o0, lane);
#pragma unroll
    for (int u = 0; u < DecodeWeights<NT>::DEPTH; u++) {
        if (begin + u < end) { weights.load(p, u, begin + u); }
    }
    // shared memory: input, sums
    floatX* input = reinterpret_cast<floatX*>(decode_shared);
    float* sums = reinterpret_cast<float*>(input + (count == 1 ? 0 : (size_t)p.C * part.rows));
    DecodeOutput<NT> output;
    output.load_bias(p, part);
    wait_for_previous();
    if (p.next_reads_early) { launch_dependents(); }
    output.load_old(p, part);
    load_input(input, p, part, begin, end, lane);
    DecodeSums<NT> acc;
    acc.clear();
    decode_multiply(acc, weights, sums, input, p, part, first, count, begin, end, lane);
    if (count == 1) {
        __syncthreads(); // the sums take the input's place
        acc.store(sums + (size_t)warp * part.rows * 8 * NT, part.rows, lane);
    }
    __syncthreads();

    const int n = part.rows * 8 * NT;
#pragma unroll
    for (int e = 0; e < output.COUNT; e++) {
        const int i = output.element(e);
        if (i < n) { output.store(p, part, e, decode_sum(sums, part.splits, n, i)); }
    }
}

// ----------------------------------------------------------------------------
// The launcher

#ifdef DECODE_KERNELS
// All tilings give the same bits. inp is normalised already.
static inline void decode_linear_tiled(DeviceCode gpu, const DecodeLinear& p, cudaStream_t stream) {
    const DecodeTiling t = decode_tiling(gpu, p.M, p.C, p.OC);
    if (p.C % DECODE_CHUNK != 0 || t.shared > gpu.shared_limit) {
        status_fail("decode: a linear layer of %d inputs; they must be a multiple of %d, and fit %zu bytes", p.C,
                    DECODE_CHUNK, gpu.shared_limit);
        return;
    }
    auto kernel = t.NT == 1 ? decode_linear_kernel<1> : t.NT == 2 ? decode_linear_kernel<2> : decode_linear_kernel<4>;
    launch_dependent(gpu, kernel, t.blocks, DECODE_THREADS, t.shared, 1, stream, p, t.rows);
}
#endif

#endif
