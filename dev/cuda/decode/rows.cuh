/*
The decoder's kernels on rows of channels other than GEMMs: embedding, LayerNorm, and the copies of a prompt's rows into the
caches. A row's bits depend on the row alone: every kernel that normalises one sums it in the order of normalise_row; a folded
LayerNorm has another order, also one for all kernels (decode/folded_norm.cuh).
*/
#ifndef LLMC_DECODE_ROWS_CUH
#define LLMC_DECODE_ROWS_CUH

#include "llmc/cuda/common.cuh"
#include "llmc/cuda/dependent_launch.cuh"
#include "llmc/model/host_device.h"

constexpr int DECODE_CHUNK = 32;     // columns that a warp multiplies at a time (decode/matmul.cuh)
constexpr int DECODE_NORM_WARPS = 1; // rows of a thread block of decode_layernorm: small blocks fit beside others
constexpr int DECODE_NORM_MANY_ROWS = 256,
              DECODE_NORM_MOST_WARPS = 4; // of prompts: so many blocks take longer to start

// The sum of a vector, as a binary tree
__device__ inline float decode_vector_sum(float (&x)[x128::size]) {
#pragma unroll
    for (int n = x128::size / 2; n > 0; n /= 2) {
#pragma unroll
        for (int k = 0; k < n; k++) { x[k] += x[k + n]; }
    }
    return x[0];
}

__device__ inline float decode_row_sum(const x128& v) {
    float x[x128::size];
    for (int k = 0; k < x128::size; k++) { x[k] = (float)v.data[k]; }
    return decode_vector_sum(x);
}
__device__ inline float decode_row_squares(const x128& v, float mean) {
    float x[x128::size];
    for (int k = 0; k < x128::size; k++) {
        float d = (float)v.data[k] - mean;
        x[k] = __fmul_rn(d, d);
    }
    return decode_vector_sum(x);
}
// Moments of a vector of 16 bytes: its sum, and the sum of its squared deviations from its own mean
__device__ inline float2 decode_vector_moments(const uint4& v) {
    float x[x128::size], y[x128::size];
    unpack(x, reinterpret_cast<const x128&>(v));
#pragma unroll
    for (int k = 0; k < x128::size; k++) { y[k] = x[k]; }
    const float sum = decode_vector_sum(y), mean = __fmul_rn(sum, 1.0f / x128::size);
#pragma unroll
    for (int k = 0; k < x128::size; k++) { y[k] = __fmul_rn(x[k] - mean, x[k] - mean); }
    return make_float2(sum, decode_vector_sum(y));
}
__device__ inline float decode_row_rstd(float squares, int C) {
    return rsqrtf(__fdiv_rn(squares, (float)C) + LAYERNORM_EPSILON);
}
__device__ inline x128 decode_row_normalised(const x128& v, float mean, float rstd, const x128& w, const x128& b) {
    x128 y;
    for (int k = 0; k < x128::size; k++) {
        y[k] = (floatX)fmaf(__fmul_rn((float)v.data[k] - mean, rstd), (float)w.data[k], (float)b.data[k]);
    }
    return y;
}

// y = (x - mean) * rstd * weight + bias of one row (C), by a warp. staged: scratch for the row, in chunks of 32 columns,
// `stride` elements apart; out: likewise, `out_stride` apart; it may be staged. A lane adds up its vectors of 16 bytes one
// after the other, each as a binary tree.
__device__ inline void normalise_row(floatX* out, size_t out_stride, floatX* staged, size_t stride, const floatX* x,
                                     const floatX* weight, const floatX* bias, int C, int lane) {
    constexpr int K = x128::size;
    float sum = 0.0f, squares = 0.0f;
    for (int first = lane * K; first < C; first += 4 * WARP_SIZE * K) { // four loads in flight
        x128 v[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int c = first + i * WARP_SIZE * K;
            if (c < C) { v[i] = load128(x + c); }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int c = first + i * WARP_SIZE * K;
            if (c >= C) { continue; }
            sum += decode_row_sum(v[i]);
            // a lane reads only what it has written itself
            store128(staged + c / DECODE_CHUNK * stride + c % DECODE_CHUNK, v[i]);
        }
    }
    float mean = __fdiv_rn(warp_sum(sum), (float)C);
#pragma unroll 1
    for (int c = lane * K; c < C; c += WARP_SIZE * K) {
        squares += decode_row_squares(load128(staged + c / DECODE_CHUNK * stride + c % DECODE_CHUNK), mean);
    }
    float rstd = decode_row_rstd(warp_sum(squares), C);
#pragma unroll 1
    for (int c = lane * K; c < C; c += WARP_SIZE * K) {
        x128 v = load128(staged + c / DECODE_CHUNK * stride + c % DECODE_CHUNK);
        store128(out + c / DECODE_CHUNK * out_stride + c % DECODE_CHUNK,
                 decode_row_normalised(v, mean, rstd, load128(weight + c), load128(bias + c)));
    }
}

// A row (C) in a warp's registers, at most VECTORS vectors of 16 bytes a lane: the same bits as normalise_row
template <int VECTORS> struct DecodeNormRow {
    static constexpr int K = x128::size;
    int C, lane;
    x128 w[VECTORS], b[VECTORS];
    float x[VECTORS][K], rstd;

    __device__ DecodeNormRow(int C, int lane) : C(C), lane(lane) {}
    __device__ int column(int i) const { return (i * WARP_SIZE + lane) * K; }
    __device__ bool has(int i) const { return column(i) < C; }
    __device__ void load_weights(const floatX* weight, const floatX* bias) {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            if (has(i)) { w[i] = load128(weight + column(i)), b[i] = load128(bias + column(i)); }
        }
    }
    __device__ void load(const floatX* row) {
        int4 v[VECTORS] = {};
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            if (has(i)) { v[i] = __ldcg(reinterpret_cast<const int4*>(row + column(i))); }
        }
#pragma unroll
        for (int i = 0; i < VECTORS; i++) { unpack(x[i], reinterpret_cast<const x128&>(v[i])); }
    }
    // x -= mean; sets rstd
    __device__ void reduce() {
        float sum = 0.0f, squares = 0.0f, y[K];
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
#pragma unroll
            for (int k = 0; k < K; k++) { y[k] = x[i][k]; }
            if (has(i)) { sum += decode_vector_sum(y); }
        }
        const float mean = __fdiv_rn(warp_sum(sum), (float)C);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                x[i][k] -= mean;
                y[k] = __fmul_rn(x[i][k], x[i][k]);
            }
            if (has(i)) { squares += decode_vector_sum(y); }
        }
        rstd = decode_row_rstd(warp_sum(squares), C);
    }
    __device__ x128 normalised(int i) const {
        float y[K], g[K], h[K];
        unpack(g, w[i]), unpack(h, b[i]);
#pragma unroll
        for (int k = 0; k < K; k++) { y[k] = fmaf(__fmul_rn(x[i][k], rstd), g[k], h[k]); }
        return pack(y);
    }
};

// out (C) = wte[token] + wpe[position], and the moments of its vectors, unless that is NULL; by a thread block
__device__ inline void embed_row(floatX* out, float2* moments, const floatX* wte, const floatX* wpe, int token,
                                 int position, int C) {
    for (int c = (int)threadIdx.x * x128::size; c < C; c += (int)blockDim.x * x128::size) {
        x128 a = load128(wte + (size_t)token * C + c), b = load128(wpe + (size_t)position * C + c), sum;
        for (int k = 0; k < x128::size; k++) { sum[k] = (floatX)((float)a[k] + (float)b[k]); }
        store128(out + c, sum);
        if (moments != NULL) { moments[c / x128::size] = decode_vector_moments(reinterpret_cast<const uint4&>(sum)); }
    }
}

// ----------------------------------------------------------------------------

// One warp per row, held in registers: at most VECTORS vectors of 16 bytes a lane; VECTORS = 0: longer rows, in shared memory
template <int VECTORS> __global__ void __launch_bounds__(DECODE_NORM_MOST_WARPS* WARP_SIZE)
    decode_layernorm_kernel(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int N, int C) {
    extern __shared__ int4 decode_norm_rows[];
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    int row = blockIdx.x * (blockDim.x / WARP_SIZE) + warp;
    launch_dependents();
    if constexpr (VECTORS == 0) {
        wait_for_previous();
        if (row >= N) { return; }
        floatX* staged = reinterpret_cast<floatX*>(decode_norm_rows) + (size_t)warp * C;
        normalise_row(out + (size_t)row * C, DECODE_CHUNK, staged, DECODE_CHUNK, inp + (size_t)row * C, weight, bias, C,
                      lane);
    } else {
        DecodeNormRow<VECTORS> x(C, lane);
        x.load_weights(weight, bias);
        wait_for_previous();
        if (row >= N) { return; }
        x.load(inp + (size_t)row * C);
        x.reduce();
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            if (x.has(i)) { store128(out + (size_t)row * C + x.column(i), x.normalised(i)); }
        }
    }
}

// out (N,C) = layernorm(inp)
static inline void decode_layernorm(LaunchGpu gpu, floatX* out, const floatX* inp, const floatX* weight,
                                    const floatX* bias, int N, int C, cudaStream_t stream) {
    int vectors = CEIL_DIV(C, WARP_SIZE * x128::size);
    int warps = N >= DECODE_NORM_MANY_ROWS && vectors <= 7 ? DECODE_NORM_MOST_WARPS : DECODE_NORM_WARPS;
    size_t shared = vectors <= 7 ? 0 : (size_t)warps * C * sizeof(floatX);
    auto kernel = vectors <= 3   ? decode_layernorm_kernel<3>
                  : vectors <= 4 ? decode_layernorm_kernel<4>
                  : vectors <= 7 ? decode_layernorm_kernel<7>
                                 : decode_layernorm_kernel<0>;
    launch_dependent(gpu, kernel, (unsigned)CEIL_DIV(N, warps), warps * WARP_SIZE, shared, 1, stream, out, inp, weight,
                     bias, N, C);
}

// A row of a prompt: its token, and its slot and position in the caches
struct PromptRow {
    int token, slot, position;
};

static __global__ void prompt_embed_kernel(floatX* out, float2* moments, const PromptRow* rows, const floatX* wte,
                                           const floatX* wpe, int C) {
    launch_dependents();
    wait_for_previous();
    PromptRow row = rows[blockIdx.x];
    if (moments != NULL) { moments += (size_t)blockIdx.x * (C / x128::size); }
    embed_row(out + (size_t)blockIdx.x * C, moments, wte, wpe, row.token, row.position, C);
}
// out (N,C) = wte[token] + wpe[position] for each of rows (N)
static inline void prompt_embed(LaunchGpu gpu, floatX* out, float2* moments, const PromptRow* rows, const floatX* wte,
                                const floatX* wpe, int N, int C, cudaStream_t stream) {
    launch_dependent(gpu, prompt_embed_kernel, (unsigned)N, 128, 0, 1, stream, out, moments, rows, wte, wpe, C);
}

static __global__ void prompt_cache_kernel(floatX* k_cache, floatX* v_cache, const floatX* qkv, const PromptRow* rows,
                                           int T, int NH, int HS) {
    launch_dependents();
    wait_for_previous();
    PromptRow row = rows[blockIdx.x];
    int C = NH * HS;
    for (int i = (int)threadIdx.x * x128::size; i < 2 * C; i += (int)blockDim.x * x128::size) {
        int h = i % C / HS, d = i % HS;
        floatX* cache = (i < C ? k_cache : v_cache) + (((size_t)row.slot * NH + h) * T + row.position) * HS + d;
        store128(cache, load128(qkv + (size_t)blockIdx.x * 3 * C + C + i));
    }
}
// Copies k and v of qkv (N,3,NH,HS) into the caches (B,NH,T,HS).
static inline void prompt_cache(LaunchGpu gpu, floatX* k_cache, floatX* v_cache, const floatX* qkv,
                                const PromptRow* rows, int N, int T, int NH, int HS, cudaStream_t stream) {
    launch_dependent(gpu, prompt_cache_kernel, (unsigned)N, 128, 0, 1, stream, k_cache, v_cache, qkv, rows, T, NH, HS);
}

// Where a prompt ends in slot b: x (B,C) = the prompt's last row of inp, positions (B) = its position, row_keys (B) = 0 (no
// logits yet). Other slots get position -1, and later kernels skip them.
static __global__ void prompt_last_kernel(floatX* x, int* positions, unsigned long long* row_keys, const floatX* inp,
                                          const int* last, const PromptRow* rows, int C) {
    launch_dependents();
    wait_for_previous();
    int b = blockIdx.x, row = last[b];
    if (threadIdx.x == 0) { positions[b] = row < 0 ? -1 : rows[row].position; }
    if (threadIdx.x == 0 && row >= 0) { row_keys[b] = 0; }
    for (int c = (int)threadIdx.x * x128::size; row >= 0 && c < C; c += (int)blockDim.x * x128::size) {
        store128(x + (size_t)b * C + c, load128(inp + (size_t)row * C + c));
    }
}
// inp (N,C); last (B): the row in which slot b's prompt ends, or -1
static inline void prompt_last(LaunchGpu gpu, floatX* x, int* positions, unsigned long long* row_keys,
                               const floatX* inp, const int* last, const PromptRow* rows, int B, int C,
                               cudaStream_t stream) {
    launch_dependent(gpu, prompt_last_kernel, (unsigned)B, 128, 0, 1, stream, x, positions, row_keys, inp, last, rows,
                     C);
}

#endif
