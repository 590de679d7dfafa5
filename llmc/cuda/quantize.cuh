/*
Tensors in e4m3 (e4m3.cuh), each with one scale that is known before: codes in the order of the tensor, and of its
transpose in the same read. An 8-bit GEMM reads both of its operands along K: the rows of an activation in the forward pass, its
columns in a weight gradient. Along K, in each group of 16 numbers, i and i + 8 are neighbours, at 2 i and 2 i + 1 (code_at).
That is how wgmma's threads hold them, so that an epilogue need not sort. A GEMM whose operands both have this order adds the
same products.

Where the largest magnitude of a row is near its usual one, int8 rounds it less than e4m3: rows of LayerNorm's output and of the
weights that they meet, each with a scale of its own. Columns are in e4m3 there, too.

A source says what the numbers are: a tensor, or what is computed from one on the way, so that it is not stored in 16 bits. The
largest magnitude is collected as the bits of a float, by an integer atomicMax: the order does not matter, and NaN is larger
than every number. Numbers that are not finite become NaN, where saturating would hide them. All dimensions are multiples of 16.
*/
#ifndef LLMC_CUDA_QUANTIZE_CUH
#define LLMC_CUDA_QUANTIZE_CUH

#include "classifier.cuh"
#include "common.cuh"
#include "e4m3.cuh"
#include "gelu.cuh"
#include "layernorm.cuh"

constexpr int QUANTIZE_ROWS = 128, QUANTIZE_COLUMNS = 64, QUANTIZE_THREADS = 256; // of a block's tile
constexpr int MOST_QUANTIZE_ROWS = 65535 * QUANTIZE_ROWS;                         // the most that a grid has in y

__host__ __device__ constexpr int code_at(int i) { return (i & ~15) + (i & 7) * 2 + (i >> 3 & 1); }

// At most half of e4m3's smallest number, up or down: as good as random, it is made of x's lowest 16 bits; 0 where these are.
// With it small numbers, rounded, are right on average. Of a row's gradients of logits most are below half of the smallest
// number, beside a target's near 1: if all became 0, tokens that never occur would keep too much probability.
__device__ inline float dither_of(float x) {
    constexpr float SMALLEST = 0x1p-9f;
    constexpr uint32_t MIDDLE = 0x3b400000; // 1.5 SMALLEST; the bits below are its mantissa
    return __uint_as_float((__float_as_uint(x) << 7 & 0x7fffff) ^ MIDDLE) - 1.5f * SMALLEST;
}

// The codes of x and of y in bits 0-7 and 8-15, for inverse = 1 / scale, a power of two. x - x is NaN where x is not finite.
template <bool DITHERS = false> __device__ inline uint32_t code_pair(float x, float y, float inverse) {
    float2 added = {x - x, y - y};
    if (DITHERS) { added = {added.x + dither_of(x), added.y + dither_of(y)}; }
    const float2 scaled = {fmaf(x, inverse, added.x), fmaf(y, inverse, added.y)};
    return __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3);
}

// int8: a row's numbers are its scale times their codes; the scale is at least 1/127 of their largest magnitude. Of zeros the
// scale is 0, and the codes say nothing; where that magnitude is not finite, neither do they, and no product is finite.
// The codes nearest to x and y, ties to even, in bits 0-7 and 8-15. Behind the point of 1.5 2^23 a float's lowest bits are the
// integer's.
__device__ inline uint32_t int8_pair(float x, float y, float inverse) {
    const uint32_t low = __float_as_uint(fmaf(x, inverse, 0x1.8p23f)),
                   high = __float_as_uint(fmaf(y, inverse, 0x1.8p23f));
    return __byte_perm(low, high, 0x0040) & 0xffff;
}

// Of codes: how many there are, how many are 0, and how many are the largest, to which numbers beyond the scale are cut off
struct CodeCounts {
    unsigned long long codes, zeros, largest;
};
// Whether a tile's codes are counted: those of 128 rows of every 4096
__device__ inline bool is_counted(int row) { return row / QUANTIZE_ROWS % 32 == 0; }

// *counts += those of the warp's words of four codes, as far as they are `inside` of the tensor
__device__ inline void warp_count_codes(CodeCounts* counts, const uint32_t (&words)[8], bool inside) {
    constexpr uint32_t LARGEST = 0x7e7e7e7e;
    unsigned zeros = 0, largest = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t magnitudes = words[i] & 0x7f7f7f7f;
        zeros += __popc(__vcmpeq4(magnitudes, 0)), largest += __popc(__vcmpeq4(magnitudes, LARGEST));
    }
    const unsigned threads = __popc(__ballot_sync(0xffffffffu, inside));
    zeros = __reduce_add_sync(0xffffffffu, inside ? zeros / 8 : 0);
    largest = __reduce_add_sync(0xffffffffu, inside ? largest / 8 : 0);
    if (threadIdx.x % WARP_SIZE != 0) { return; }
    atomicAdd(&counts->codes, (unsigned long long)(threads * 32));
    atomicAdd(&counts->zeros, (unsigned long long)zeros), atomicAdd(&counts->largest, (unsigned long long)largest);
}

// Those of x.x, y.x, x.y and y.y, which are finite
__device__ inline uint32_t four_codes(float2 x, float2 y, float inverse) {
    const float2 first = {x.x * inverse, y.x * inverse}, second = {x.y * inverse, y.y * inverse};
    const uint32_t low = __nv_cvt_float2_to_fp8x2(first, __NV_SATFINITE, __NV_E4M3);
    return low | (uint32_t)__nv_cvt_float2_to_fp8x2(second, __NV_SATFINITE, __NV_E4M3) << 16;
}

__device__ inline float larger_magnitude(float largest, float x) { return max_nan(largest, fabsf(x)); }

// *amax = the largest of it and of `largest` over the warp, as bits. known: what *amax was, so that most warps write nothing;
// the caller loads it (__ldcg) where it can wait for it.
__device__ inline void warp_collect_amax(unsigned* amax, unsigned known, float largest) {
    const unsigned bits = __reduce_max_sync(0xffffffffu, __float_as_uint(largest));
    if (threadIdx.x % WARP_SIZE == 0 && bits > known) { atomicMax(amax, bits); }
}
__device__ inline void warp_collect_amax(unsigned* amax, float largest) {
    warp_collect_amax(amax, __ldcg(amax), largest);
}

// ----------------------------------------------------------------------------
// Sources of (R,C) numbers: load() gives those of columns c to c+7 of row r.

// v = p[0..7]
__device__ inline void load_8(float (&v)[8], const floatX* p) {
    float x[x128::size];
#pragma unroll
    for (int k = 0; k < 8; k++) {
        if (k % x128::size == 0) { unpack(x, load128(p + k)); }
        v[k] = x[k % x128::size];
    }
}

// A tensor, or those of a QuantizeBatch
struct StoredSource {
    const floatX* x;
    size_t stride = 0;
    __device__ void load(float (&v)[8], int r, int c, int C) const {
        load_8(v, x + blockIdx.z * stride + (size_t)r * C + c);
    }
};

// LayerNorm of x, whose mean and rstd (R) are known
struct LayerNormSource {
    const floatX* x;
    const float *mean, *rstd;
    const floatX *weight, *bias; // (C)
    __device__ void load(float (&v)[8], int r, int c, int C) const {
        float w[8], b[8];
        load_8(v, x + (size_t)r * C + c), load_8(w, weight + c), load_8(b, bias + c);
        const float mu = mean[r], s = rstd[r];
#pragma unroll
        for (int k = 0; k < 8; k++) { v[k] = (v[k] - mu) * s * w[k] + b[k]; }
    }
};

// Sources whose rows are in int8; row_scale() is that of row r. LayerNorm's are known before (layernorm.cuh).
struct Int8LayerNormSource : LayerNormSource {
    const float* scales; // (R)
    __device__ float row_scale(int r) const { return scales[r]; }
};
// Of the next tensor of a QuantizeBatch, scales begin scales_stride elements later. int8_scales() makes them.
struct Int8StoredSource : StoredSource {
    const nv_bfloat16* scales; // (R)
    size_t scales_stride = 0;
    __device__ float row_scale(int r) const { return scales[blockIdx.z * scales_stride + r]; }
};
template <class Source> constexpr bool int8_rows = false;
template <> constexpr bool int8_rows<Int8LayerNormSource> = true;
template <> constexpr bool int8_rows<Int8StoredSource> = true;

// gelu(pre)
struct GeluSource {
    const floatX* pre;
    __device__ void load(float (&v)[8], int r, int c, int C) const {
        load_8(v, pre + (size_t)r * C + c);
#pragma unroll
        for (int k = 0; k < 8; k++) { v[k] = gelu(v[k], gelu_sigma(v[k])); }
    }
};

// d gelu'(pre). Of gelu(pre), too, the codes of the transpose are written, to act_columns (C,R), with a scale of its own.
struct GeluGradientSource {
    const floatX *d, *pre;
    uint8_t* act_columns;
    const float* act_scale;
    __device__ void load(float (&v)[8], float (&act)[8], int r, int c, int C) const {
        float x[8];
        load_8(v, d + (size_t)r * C + c), load_8(x, pre + (size_t)r * C + c);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            const float sigma = gelu_sigma(x[k]);
            v[k] *= gelu_derivative(x[k], sigma), act[k] = gelu(x[k], sigma);
        }
    }
};
template <class Source> constexpr bool has_act = false;
template <> constexpr bool has_act<GeluGradientSource> = true;

// The gradient of logits (R,Vp) with these statistics (classifier.cuh): gradient_scale (p - [c = target]), 0 from column V on
struct LogitGradientSource {
    const floatX* logits;
    const float2* statistics; // (R)
    const int* targets;       // (R)
    float gradient_scale;
    int V;
    __device__ void load(float (&v)[8], int r, int c, int Vp) const {
        load_8(v, logits + (size_t)r * Vp + c);
        const float2 s = statistics[r];
        const int target = targets[r] - c;
#pragma unroll
        for (int k = 0; k < 8; k++) {
            v[k] = ex2_approx_ftz(fmaf(v[k], LOG2_E, s.x)) * s.y - (k == target ? gradient_scale : 0.0f);
            v[k] = c + k < V ? v[k] : 0.0f;
        }
    }
};
template <class Source> constexpr bool dithers = false;
template <> constexpr bool dithers<LogitGradientSource> = true;

// ----------------------------------------------------------------------------
// Quantising

// A tile of codes by columns: a word has those of four rows.
typedef uint32_t QuantizeTile[QUANTIZE_COLUMNS][QUANTIZE_ROWS / 4 + 1];

// words[j] and words[j + 1], byte k = a pair's two codes
__device__ inline void put_pair(uint32_t (&words)[8], int j, int k, uint32_t pair) {
    words[j] = __byte_perm(words[j], pair, 0x3210 + ((4 - k) << 4 * k));
    words[j + 1] = __byte_perm(words[j + 1], pair, 0x3210 + ((5 - k) << 4 * k));
}

// columns (C,R) = the tile from this row and column on, 16 bytes at a time
__device__ inline void store_columns(uint8_t* columns, const QuantizeTile& tile, int first_row, int first_column, int R,
                                     int C) {
    for (int i = threadIdx.x; i < QUANTIZE_COLUMNS * 8; i += QUANTIZE_THREADS) {
        const int c = i / 8, word = i % 8 * 4, row = first_row + i % 8 * 16;
        if (first_column + c >= C || row >= R) { continue; }
        const uint4 codes = make_uint4(tile[c][word], tile[c][word + 1], tile[c][word + 2], tile[c][word + 3]);
        *reinterpret_cast<uint4*>(columns + (size_t)(first_column + c) * R + row) = codes;
    }
}

// Tensors of one shape, `stride` elements apart, as their codes are; their scales and magnitudes are so many places apart.
struct QuantizeBatch {
    int count = 1;
    size_t stride = 0;
    int places = 0;
};

// Blocks of an SM, as many as the registers allow without spilling
template <class Source> constexpr int quantize_blocks = sizeof(floatX) == 4 ? 2 : has_act<Source> ? 3 : 4;

// A thread has eight columns of four rows, those whose codes are neighbours in a column; all of them within R or none: R is a
// multiple of 16.
// partial: row y of it (gridDim.y, C) = the column sums of the numbers in this block's rows; or NULL. Only where has_act.
template <bool COLUMNS, class Source>
static __global__ void __launch_bounds__(QUANTIZE_THREADS, quantize_blocks<Source>)
    quantize_kernel(uint8_t* rows, uint8_t* columns, unsigned* amax, float* partial, const Source source,
                    const float* scale, int R, int C, QuantizeBatch batch, CodeCounts* counts) {
    constexpr bool ACT = has_act<Source>, INT8 = int8_rows<Source>;
    __shared__ QuantizeTile tiles[COLUMNS ? 1 + ACT : 1];
    __shared__ float sums[ACT ? QUANTIZE_ROWS / 4 : 1][QUANTIZE_COLUMNS + 1];
    const int eighth = threadIdx.x % 8, quad = threadIdx.x / 8;
    const int first_row = blockIdx.y * QUANTIZE_ROWS, first_column = blockIdx.x * QUANTIZE_COLUMNS;
    const int row = first_row + quad / 4 * 16 + quad % 4 * 2, column = first_column + eighth * 8;
    const auto row_of = [=](int k) { return row + k / 2 + k % 2 * 8; };
    const float inverse = 1.0f / scale[blockIdx.z * batch.places * (sizeof(E4m3Scale) / sizeof(float))];
    uint32_t codes[4][2] = {}, words[8] = {}, act_words[8] = {};
    float sum[8] = {}, largest = 0, act_inverse = 0;
    if constexpr (ACT) { act_inverse = 1.0f / *source.act_scale; }
    if (row < R && column < C) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            float v[8], act[8], row_inverse = 0;
            if constexpr (INT8) { row_inverse = 1.0f / source.row_scale(row_of(k)); }
            if constexpr (ACT) {
                source.load(v, act, row_of(k), column, C);
            } else {
                source.load(v, row_of(k), column, C);
            }
#pragma unroll
            for (int j = 0; j < 8; j += 2) {
                const uint32_t pair = code_pair<dithers<Source>>(v[j], v[j + 1], inverse);
                largest = larger_magnitude(larger_magnitude(largest, v[j]), v[j + 1]);
                codes[k][j / 4] |= (INT8 ? int8_pair(v[j], v[j + 1], row_inverse) : pair) << j % 4 * 8;
                if (COLUMNS) { put_pair(words, j, k, pair); }
                if (ACT) {
                    put_pair(act_words, j, k, code_pair(act[j], act[j + 1], act_inverse));
                    sum[j] += v[j], sum[j + 1] += v[j + 1];
                }
            }
        }
    }
    // of 16 columns, the thread with the first eight stores 0 to 3 and 8 to 11, its neighbour the others
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const bool second = eighth % 2;
        const uint32_t got = __shfl_xor_sync(0xffffffffu, second ? codes[k][0] : codes[k][1], 1);
        const uint32_t low = second ? got : codes[k][0], high = second ? codes[k][1] : got;
        if (row < R && column < C) {
            *reinterpret_cast<uint2*>(rows + blockIdx.z * batch.stride + (size_t)row_of(k) * C + column) =
                make_uint2(__byte_perm(low, high, 0x5140), __byte_perm(low, high, 0x7362));
        }
    }
    if (amax) { warp_collect_amax(amax, largest); }
    if (counts && is_counted(first_row)) {
        const uint32_t in_rows[8] = {codes[0][0], codes[0][1], codes[1][0], codes[1][1],
                                     codes[2][0], codes[2][1], codes[3][0], codes[3][1]};
        warp_count_codes(counts, INT8 ? static_cast<const uint32_t(&)[8]>(words) : in_rows, row < R && column < C);
    }
    if constexpr (COLUMNS) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
            tiles[0][eighth * 8 + j][quad] = words[j];
            if constexpr (ACT) { tiles[ACT][eighth * 8 + j][quad] = act_words[j], sums[quad][eighth * 8 + j] = sum[j]; }
        }
        __syncthreads();
        store_columns(columns + blockIdx.z * batch.stride, tiles[0], first_row, first_column, R, C);
        if constexpr (ACT) {
            store_columns(source.act_columns, tiles[ACT], first_row, first_column, R, C);
            const int c = threadIdx.x;
            if (partial && c < QUANTIZE_COLUMNS && first_column + c < C) {
                float total = 0;
                for (int q = 0; q < QUANTIZE_ROWS / 4; q++) { total += sums[q][c]; }
                partial[(size_t)blockIdx.y * C + first_column + c] = total;
            }
        }
    }
}

// Bytes of scratch for column sums of (R,C)
static inline size_t quantize_scratch_bytes(int R, int C) {
    return sizeof(float) * CEIL_DIV(R, QUANTIZE_ROWS) * (size_t)C;
}

// rows (R,C) and columns (C,R), unless that is NULL, = the codes of a source's numbers / *scale. Where int8_rows, rows have
// scales of the source, and columns is given. *amax = the largest of it and of the numbers' magnitudes, or not where amax is
// NULL. sums (C), only where has_act, += the sums over rows; scratch as above. *counts, if given, += those of some e4m3 codes.
template <class Source> static inline void quantize(uint8_t* rows, uint8_t* columns, unsigned* amax,
                                                    const Source& source, const float* scale, int R, int C,
                                                    cudaStream_t stream, float* sums = NULL, float* scratch = NULL,
                                                    QuantizeBatch batch = QuantizeBatch(), CodeCounts* counts = NULL) {
    const dim3 grid(CEIL_DIV(C, QUANTIZE_COLUMNS), CEIL_DIV(R, QUANTIZE_ROWS), batch.count);
    auto kernel = quantize_kernel<true, Source>;
    if constexpr (!int8_rows<Source>) {
        if (!columns) { kernel = quantize_kernel<false, Source>; }
    }
    kernel<<<grid, QUANTIZE_THREADS, 0, stream>>>(rows, columns, amax, sums ? scratch : NULL, source, scale, R, C,
                                                  batch, counts);
    cuda_try(cudaGetLastError());
    if (sums) { column_sum_partials(sums, scratch, (int)grid.y, C, C, stream); }
}

static __global__ void __launch_bounds__(QUANTIZE_THREADS)
    amax_kernel(unsigned* amax, const floatX* x, size_t n, QuantizeBatch batch) {
    float largest = 0;
    for (size_t i = ((size_t)blockIdx.x * QUANTIZE_THREADS + threadIdx.x) * 8; i < n;
         i += (size_t)gridDim.x * QUANTIZE_THREADS * 8) {
        float v[8];
        load_8(v, x + blockIdx.y * batch.stride + i);
#pragma unroll
        for (int k = 0; k < 8; k++) { largest = larger_magnitude(largest, v[k]); }
    }
    warp_collect_amax(amax + blockIdx.y * batch.places, largest);
}

// *amax = the largest of it and of the magnitudes of x (n)
static inline void collect_amax(unsigned* amax, const floatX* x, size_t n, cudaStream_t stream,
                                QuantizeBatch batch = QuantizeBatch()) {
    const size_t blocks = CEIL_DIV(n, (size_t)QUANTIZE_THREADS * 8), most = 1024;
    const dim3 grid((unsigned)(blocks < most ? blocks : most), batch.count);
    amax_kernel<<<grid, QUANTIZE_THREADS, 0, stream>>>(amax, x, n, batch);
    cuda_try(cudaGetLastError());
}

// A warp for each row of C numbers: scales = 1/127 of its largest magnitude, rounded up
static __global__ void __launch_bounds__(QUANTIZE_THREADS)
    int8_scales_kernel(nv_bfloat16* scales, size_t scales_stride, unsigned* amax, const floatX* x, int R, int C,
                       QuantizeBatch batch) {
    const int row = (int)blockIdx.x * (QUANTIZE_THREADS / WARP_SIZE) + threadIdx.x / WARP_SIZE,
              lane = threadIdx.x % WARP_SIZE;
    if (row >= R) { return; }
    float largest = 0;
    for (int c = lane * 8; c < C; c += WARP_SIZE * 8) {
        float v[8];
        load_8(v, x + blockIdx.y * batch.stride + (size_t)row * C + c);
#pragma unroll
        for (int k = 0; k < 8; k++) { largest = larger_magnitude(largest, v[k]); }
    }
    largest = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(largest)));
    if (lane == 0) { scales[blockIdx.y * scales_stride + row] = __float2bfloat16_ru(largest / INT8_LARGEST); }
    warp_collect_amax(amax + blockIdx.y * batch.places, largest);
}

// The scales (R) in int8 of the rows of x (R,C), and *amax as collect_amax() has it. Those of the next tensor of a batch begin
// scales_stride elements later.
static inline void int8_scales(nv_bfloat16* scales, size_t scales_stride, unsigned* amax, const floatX* x, int R, int C,
                               cudaStream_t stream, QuantizeBatch batch = QuantizeBatch()) {
    const dim3 grid(CEIL_DIV(R, QUANTIZE_THREADS / WARP_SIZE), batch.count);
    int8_scales_kernel<<<grid, QUANTIZE_THREADS, 0, stream>>>(scales, scales_stride, amax, x, R, C, batch);
    cuda_try(cudaGetLastError());
}

// A step of training, on the device
struct QuantizedStep {
    const float *loss, *norm; // where one of them is not finite, no weight has changed, and no scale does
    const CodeCounts* counts; // of each tensor
    CodeCounts* total;        // += these
    int* longest; // = the largest of it and of how many steps in a row a tensor's numbers were beyond its scale
};

static __global__ void scales_kernel(E4m3Scale* scales, const float* amax, int sets, int count, float headroom,
                                     QuantizedStep step) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= count) { return; }
    E4m3Scale* s = &scales[i];
    if (!step.loss || (isfinite(*step.loss) && isfinite(*step.norm))) {
        float largest = 0;
        for (int set = 0; set < sets; set++) { largest = larger_magnitude(largest, amax[(size_t)set * count + i]); }
        const float scale = e4m3_scale(largest * headroom);
        const bool beyond = s->value != 0 && largest > E4M3_LARGEST * s->value;
        s->saturated = beyond && isfinite(scale) ? s->saturated + 1 : 0;
        s->value = isfinite(scale) ? scale : s->value == 0 ? 1 : s->value;
    }
    if (!step.loss) { return; }
    const CodeCounts n = step.counts[i];
    atomicAdd(&step.total->codes, n.codes), atomicAdd(&step.total->zeros, n.zeros);
    atomicAdd(&step.total->largest, n.largest), atomicMax(step.longest, s->saturated);
}

// scales (count) = those with which headroom times the largest of amax (sets, count) does not saturate. One whose largest is
// not finite stays or, if it is 0, becomes 1. Weights have no step.
static inline void scales_of(E4m3Scale* scales, const float* amax, int sets, int count, float headroom,
                             cudaStream_t stream, QuantizedStep step = QuantizedStep()) {
    scales_kernel<<<CEIL_DIV(count, 256), 256, 0, stream>>>(scales, amax, sets, count, headroom, step);
    cuda_try(cudaGetLastError());
}

#endif
