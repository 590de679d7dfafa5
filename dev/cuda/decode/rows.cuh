/*
The decoder's kernels on rows of channels other than GEMMs: embedding, LayerNorm, and the copies of a prompt's rows into the
caches; and the keys of logits. A row's bits depend on the row alone: all kernels that normalise one sum it in the same order.
*/
#ifndef LLMC_DECODE_ROWS_CUH
#define LLMC_DECODE_ROWS_CUH

#include "llmc/cuda/common.cuh"
#include "llmc/cuda/dependent_launch.cuh"
#include "llmc/model/host_device.h"
#include "llmc/model/sampler.h"

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
    unpack(x, v);
    return decode_vector_sum(x);
}
__device__ inline float decode_row_squares(const x128& v, float mean) {
    float x[x128::size];
    unpack(x, v);
#pragma unroll
    for (int k = 0; k < x128::size; k++) { x[k] = __fmul_rn(x[k] - mean, x[k] - mean); }
    return decode_vector_sum(x);
}
__device__ inline float decode_row_rstd(float squares, int C) {
    return rsqrtf(__fdiv_rn(squares, (float)C) + LAYERNORM_EPSILON);
}
__device__ inline x128 decode_row_normalised(const x128& v, float mean, float rstd, const x128& w, const x128& b) {
    float x[x128::size], g[x128::size], h[x128::size];
    unpack(x, v), unpack(g, w), unpack(h, b);
#pragma unroll
    for (int k = 0; k < x128::size; k++) { x[k] = fmaf(__fmul_rn(x[k] - mean, rstd), g[k], h[k]); }
    return pack(x);
}

// out (C) = wte[token] + wpe[position], by a thread block
__device__ inline void embed_row(floatX* out, const floatX* wte, const floatX* wpe, int token, int position, int C) {
    for (int c = (int)threadIdx.x * x128::size; c < C; c += (int)blockDim.x * x128::size) {
        x128 a = load128(wte + (size_t)token * C + c), b = load128(wpe + (size_t)position * C + c), sum;
        for (int k = 0; k < x128::size; k++) { sum[k] = (floatX)((float)a[k] + (float)b[k]); }
        store128(out + c, sum);
    }
}

// ----------------------------------------------------------------------------

// out (N,C) = (x - mean) * rstd * weight + bias for each row x of inp. A warp per row, of which a lane holds at most VECTORS
// vectors of 16 bytes; VECTORS = 0: longer rows, read three times. A lane adds up its vectors one after the other.
template <int VECTORS> __global__ void __launch_bounds__(DECODE_NORM_MOST_WARPS* WARP_SIZE)
    decode_layernorm_kernel(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int N, int C) {
    constexpr int K = x128::size, HELD = VECTORS == 0 ? 1 : VECTORS;
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const int row = blockIdx.x * (blockDim.x / WARP_SIZE) + warp;
    const auto column = [&](int i) { return (i * WARP_SIZE + lane) * K; };
    x128 w[HELD], b[HELD];
    int4 v[HELD] = {};
    float x[HELD][K], y[K], g[K], h[K], sum = 0.0f, squares = 0.0f;
    launch_dependents();
#pragma unroll
    for (int i = 0; i < VECTORS; i++) {
        if (column(i) < C) { w[i] = load128(weight + column(i)), b[i] = load128(bias + column(i)); }
    }
    wait_for_previous();
    if (row >= N) { return; }
    inp += (size_t)row * C, out += (size_t)row * C;
    if constexpr (VECTORS == 0) {
        for (int i = 0; column(i) < C; i++) { sum += decode_row_sum(load128(inp + column(i))); }
        const float mean = __fdiv_rn(warp_sum(sum), (float)C);
        for (int i = 0; column(i) < C; i++) { squares += decode_row_squares(load128(inp + column(i)), mean); }
        const float rstd = decode_row_rstd(warp_sum(squares), C);
        for (int i = 0; column(i) < C; i++) {
            const int c = column(i);
            store128(out + c,
                     decode_row_normalised(load128(inp + c), mean, rstd, load128(weight + c), load128(bias + c)));
        }
    } else {
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            if (column(i) < C) { v[i] = __ldcg(reinterpret_cast<const int4*>(inp + column(i))); }
        }
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            unpack(x[i], reinterpret_cast<const x128&>(v[i])), unpack(y, reinterpret_cast<const x128&>(v[i]));
            if (column(i) < C) { sum += decode_vector_sum(y); }
        }
        const float mean = __fdiv_rn(warp_sum(sum), (float)C);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
#pragma unroll
            for (int k = 0; k < K; k++) {
                x[i][k] -= mean;
                y[k] = __fmul_rn(x[i][k], x[i][k]);
            }
            if (column(i) < C) { squares += decode_vector_sum(y); }
        }
        const float rstd = decode_row_rstd(warp_sum(squares), C);
#pragma unroll
        for (int i = 0; i < VECTORS; i++) {
            if (column(i) >= C) { continue; }
            unpack(g, w[i]), unpack(h, b[i]);
#pragma unroll
            for (int k = 0; k < K; k++) { y[k] = fmaf(__fmul_rn(x[i][k], rstd), g[k], h[k]); }
            store128(out + column(i), pack(y));
        }
    }
}

// out (N,C) = layernorm(inp)
static inline void decode_layernorm(DeviceCode gpu, floatX* out, const floatX* inp, const floatX* weight,
                                    const floatX* bias, int N, int C, cudaStream_t stream) {
    int vectors = CEIL_DIV(C, WARP_SIZE * x128::size);
    int warps = N >= DECODE_NORM_MANY_ROWS ? DECODE_NORM_MOST_WARPS : DECODE_NORM_WARPS;
    auto kernel = vectors <= 3   ? decode_layernorm_kernel<3>
                  : vectors <= 4 ? decode_layernorm_kernel<4>
                  : vectors <= 7 ? decode_layernorm_kernel<7>
                                 : decode_layernorm_kernel<0>;
    launch_dependent(gpu, kernel, (unsigned)CEIL_DIV(N, warps), warps * WARP_SIZE, 0, 1, stream, out, inp, weight, bias,
                     N, C);
}

// A logit as an unsigned integer, in the order in which sample_argmax prefers them: the largest key of a row, which can be
// found in parts, is that of the token which sample_argmax returns; 0 is below all keys. token_of_key(): that token, of V
__host__ __device__ inline unsigned long long logit_key(float y, int token) {
    y += 0.0f; // -0 becomes 0
    return (unsigned long long)(y == y ? sample_key(y) : 0) << 32 | (0xffffffffu - (unsigned)token);
}
__host__ __device__ inline int token_of_key(unsigned long long key, int V) {
    return key >> 32 == 0 ? V - 1 : (int)(0xffffffffu - (unsigned)key);
}

// A row of a prompt: its token, and its slot and position in the caches
struct PromptRow {
    int token, slot, position;
};

// out (N,C) = wte[token] + wpe[position] for each of rows (N)
static __global__ void prompt_embed_kernel(floatX* out, const PromptRow* rows, const floatX* wte, const floatX* wpe,
                                           int C) {
    launch_dependents();
    wait_for_previous();
    PromptRow row = rows[blockIdx.x];
    embed_row(out + (size_t)blockIdx.x * C, wte, wpe, row.token, row.position, C);
}
// Copies k and v of qkv (N,3,NH,HS) into the caches (B,NH,T,HS).
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

// Where a prompt ends in slot b: x (B,C) = the prompt's last row of inp, positions (B) = its position, row_keys (B) = 0 (no
// logits yet). Other slots get position -1, and later kernels skip them. inp (N,C); last (B): that row, or -1
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

#endif
