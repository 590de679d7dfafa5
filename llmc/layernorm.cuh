/*
LayerNorm (Ba, Kiros, Hinton 2016): y = (x - mean) * rstd * w + b over the channels, rstd = 1/sqrt(variance + 1e-5).

Forward is fused with the residual addition before it. Backward is fused with what reads the same rows: it adds to the
gradient of the residual stream in place, and sums over its columns for the gradients of w, of b, and of the bias of the
GEMM whose output was added to the residual stream. Any number of channels; wide rows take a slower path.
*/
#ifndef LLMC_LAYERNORM_CUH
#define LLMC_LAYERNORM_CUH

#include "column_sum.cuh"
#include "cuda_common.cuh"

constexpr float LAYERNORM_EPSILON = 1e-5f;
constexpr int LAYERNORM_WARPS = 4; // rows of a forward block

// residual (N, C) = a + b; out (N, C) = layernorm(residual); mean, rstd (N). One warp per row, which the lanes keep in
// registers, V vectors each; with V 0, for wider rows, they read it again. Without b, a is normalised and nothing is written
// to residual.
template <int V> __global__ void __launch_bounds__(LAYERNORM_WARPS * 32)
    residual_layernorm_forward_kernel(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                      const floatX* b, const floatX* weight, const floatX* bias, int N, int C) {
    constexpr int K = x128::size;
    const int lane = threadIdx.x % WARP_SIZE, vectors = V > 0 ? V : CEIL_DIV(C, WARP_SIZE * K);
    const size_t row = (size_t)blockIdx.x * LAYERNORM_WARPS + threadIdx.x / WARP_SIZE;
    if (row >= N) { return; }
    x128 v[V > 0 ? V : 1] = {};
    auto channel = [&](int n) { return (n * WARP_SIZE + lane) * K; };
    auto vector = [&](int n) { return V > 0 ? v[V > 0 ? n : 0] : load128((b ? residual : a) + row * C + channel(n)); };
#pragma unroll
    for (int n = 0; n < V; n++) { // all of them, before one is waited for
        if (channel(n) < C) { v[n] = load128(a + row * C + channel(n)); }
    }
#pragma unroll
    for (int n = 0; n < vectors && b != NULL; n++) {
        const size_t at = row * C + channel(n);
        if (channel(n) >= C) { break; }
        x128 x = V > 0 ? v[V > 0 ? n : 0] : load128(a + at), y = load128(b + at);
        for (int k = 0; k < K; k++) { x[k] = (floatX)((float)x[k] + (float)y[k]); }
        store128(residual + at, x);
        if constexpr (V > 0) { v[n] = x; }
    }
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < vectors; n++) {
        if (channel(n) >= C) { break; }
        const x128 x = vector(n);
        for (int k = 0; k < K; k++) { sum += (float)x[k]; }
    }
    const float mu = warp_sum(sum) / C;
    float squares = 0.0f;
#pragma unroll
    for (int n = 0; n < vectors; n++) {
        if (channel(n) >= C) { break; }
        const x128 x = vector(n);
        for (int k = 0; k < K; k++) { squares += ((float)x[k] - mu) * ((float)x[k] - mu); }
    }
    const float s = rsqrtf(warp_sum(squares) / C + LAYERNORM_EPSILON);
#pragma unroll
    for (int n = 0; n < vectors; n++) {
        const int c = channel(n);
        if (c >= C) { break; }
        x128 x = vector(n), w = load128(weight + c), d = load128(bias + c), y;
        for (int k = 0; k < K; k++) { y[k] = (floatX)(((float)x[k] - mu) * s * (float)w[k] + (float)d[k]); }
        store128(out + row * C + c, y);
    }
    if (lane == 0) {
        mean[row] = mu;
        rstd[row] = s;
    }
}

// residual (N, C) = a + b and out (N, C) = layernorm(residual) with its mean and rstd (N). b NULL: out = layernorm(a).
static inline void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                              const floatX* b, const floatX* weight, const floatX* bias, int N, int C,
                                              cudaStream_t stream) {
    auto launch = [&](auto kernel) {
        kernel<<<CEIL_DIV(N, LAYERNORM_WARPS), LAYERNORM_WARPS * 32, 0, stream>>>(residual, out, mean, rstd, a, b,
                                                                                  weight, bias, N, C);
    };
    switch (CEIL_DIV(C, WARP_SIZE * x128::size)) { // of GPT-2's models 3, 4, 5, 7 in 16 bit
    case 1:
    case 2:
        launch(residual_layernorm_forward_kernel<2>);
        break;
    case 3:
        launch(residual_layernorm_forward_kernel<3>);
        break;
    case 4:
        launch(residual_layernorm_forward_kernel<4>);
        break;
    case 5:
        launch(residual_layernorm_forward_kernel<5>);
        break;
    case 6:
    case 7:
        launch(residual_layernorm_forward_kernel<7>);
        break;
    case 8:
        launch(residual_layernorm_forward_kernel<8>);
        break;
    default:
        launch(residual_layernorm_forward_kernel<0>);
    }
    cuda_try(cudaGetLastError());
}

static inline void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                                     const floatX* bias, int N, int C, cudaStream_t stream) {
    residual_layernorm_forward(NULL, out, mean, rstd, inp, NULL, weight, bias, N, C, stream);
}

// Sums p and q over the block for R rows at once; every thread gets all sums. shared: 2 * R * 32 floats, others than in the
// block's last call.
template <int R> __device__ inline void block_sum_pairs(float (&p)[R], float (&q)[R], float* shared) {
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, warps = blockDim.x / WARP_SIZE;
    for (int r = 0; r < R; r++) {
        p[r] = warp_sum(p[r]);
        q[r] = warp_sum(q[r]);
        if (lane == 0) {
            shared[(2 * r) * WARP_SIZE + warp] = p[r];
            shared[(2 * r + 1) * WARP_SIZE + warp] = q[r];
        }
    }
    __syncthreads();
    for (int r = 0; r < R; r++) {
        p[r] = q[r] = 0.0f;
        for (int w = 0; w < warps; w++) {
            p[r] += shared[(2 * r) * WARP_SIZE + w];
            q[r] += shared[(2 * r + 1) * WARP_SIZE + w];
        }
    }
}

constexpr int LAYERNORM_STAGES = 3; // turns of rows in shared memory

// Backward, for rows of at most LAYERNORM_MAX_THREADS vectors of 16 bytes: each thread owns one vector of channels in all
// rows of its block, so the column sums stay in registers. A block takes R rows at once to hide the latency of their sums, and
// copies those of the next turns to shared memory meanwhile: a thread its own vectors, so that nobody waits for another.
//
//   xhat = (x - mean) rstd;  g = dout w;  dx = (g - mean_c(g) - xhat mean_c(g xhat)) rstd;  dresidual += dx
//
// Row y of partial (gridDim.x, 3, C): the sums over this block's rows of dout xhat (dw), dout (db), and new dresidual.
template <int R, int MAX_THREADS> __global__ void __launch_bounds__(MAX_THREADS)
    layernorm_backward_kernel(floatX* dresidual, float* partial, const floatX* dout, const floatX* inp,
                              const floatX* weight, const float* mean, const float* rstd, int N, int C, int overwrite) {
    constexpr int K = x128::size, AHEAD = LAYERNORM_STAGES - 1;
    extern __shared__ int4 layernorm_ring[]; // (LAYERNORM_STAGES, R, 3, blockDim.x)
    __shared__ float shared[2][2 * R * WARP_SIZE];
    const int c = threadIdx.x * K;
    const bool active = c < C;
    const size_t rows_of_turn = (size_t)gridDim.x * R;
    const float inverse_C = 1.0f / C;
    float w[K], dw[K] = {}, db[K] = {}, ds[K] = {}, next_mu[R], next_s[R];
    for (int k = 0; k < K; k++) { w[k] = active ? (float)weight[c + k] : 0.0f; }

    // The thread's vectors of dout, inp and dresidual in row r of a stage; zeros where there is none
    auto vector = [&](int stage, int r, int which) {
        return reinterpret_cast<x128*>(layernorm_ring + ((stage * R + r) * 3 + which) * blockDim.x + threadIdx.x);
    };
    auto copy_rows = [&](size_t first, int stage) {
        for (int r = 0; r < R; r++) {
            const bool live = active && first + r < N;
            const size_t at = live ? (first + r) * C + c : 0;
            const int bytes = live ? sizeof(x128) : 0;
            cp_async_16((uint32_t)__cvta_generic_to_shared(vector(stage, r, 0)), dout + at, bytes);
            cp_async_16((uint32_t)__cvta_generic_to_shared(vector(stage, r, 1)), inp + at, bytes);
            cp_async_16((uint32_t)__cvta_generic_to_shared(vector(stage, r, 2)), dresidual + at, overwrite ? 0 : bytes);
        }
        cp_async_commit_group();
    };
    auto load_statistics = [&](size_t first) {
        for (int r = 0; r < R; r++) {
            next_mu[r] = first + r < N ? mean[first + r] : 0.0f;
            next_s[r] = first + r < N ? rstd[first + r] : 0.0f;
        }
    };
    const size_t begin = (size_t)blockIdx.x * R;
    for (int turn = 0; turn < AHEAD; turn++) { copy_rows(begin + turn * rows_of_turn, turn); }
    load_statistics(begin);

    int stage = 0, odd = 0;
    for (size_t first = begin; first < N; first += rows_of_turn) {
        x128 d[R], x[R];
        float mu[R], s[R], sum_g[R], sum_gx[R];
        cp_async_wait_group<AHEAD - 1>();
        // this thread is done with the rows of that stage
        copy_rows(first + AHEAD * rows_of_turn, (stage + AHEAD) % LAYERNORM_STAGES);
        for (int r = 0; r < R; r++) {
            mu[r] = next_mu[r], s[r] = next_s[r];
            d[r] = *vector(stage, r, 0), x[r] = *vector(stage, r, 1);
            sum_g[r] = sum_gx[r] = 0.0f;
            for (int k = 0; k < K; k++) {
                float g = (float)d[r][k] * w[k], xhat = ((float)x[r][k] - mu[r]) * s[r];
                sum_g[r] += g;
                sum_gx[r] += g * xhat;
            }
        }
        load_statistics(first + rows_of_turn);
        block_sum_pairs<R>(sum_g, sum_gx, shared[odd]);
        for (int r = 0; r < R; r++) {
            if (!active || first + r >= N) { continue; }
            const float mean_g = sum_g[r] * inverse_C, mean_gx = sum_gx[r] * inverse_C;
            x128 residual = *vector(stage, r, 2);
            for (int k = 0; k < K; k++) {
                float xhat = ((float)x[r][k] - mu[r]) * s[r];
                float dx = ((float)d[r][k] * w[k] - mean_g - xhat * mean_gx) * s[r];
                residual[k] = (floatX)((float)residual[k] + dx);
                dw[k] += (float)d[r][k] * xhat;
                db[k] += (float)d[r][k];
                ds[k] += (float)residual[k];
            }
            store128(dresidual + (first + r) * C + c, residual);
        }
        stage = (stage + 1) % LAYERNORM_STAGES, odd ^= 1;
    }
    if (!active) { return; }
    float* mine = partial + (size_t)blockIdx.x * 3 * C + c;
    for (int k = 0; k < K; k++) {
        mine[k] = dw[k];
        mine[C + k] = db[k];
        mine[2 * C + k] = ds[k];
    }
}

// The same for wider rows: a thread owns several vectors of channels, reads them twice, and accumulates their column sums
// in its block's row of partial, once per R rows.
template <int R> __global__ void __launch_bounds__(512)
    layernorm_backward_wide_kernel(floatX* dresidual, float* partial, const floatX* dout, const floatX* inp,
                                   const floatX* weight, const float* mean, const float* rstd, int N, int C,
                                   int overwrite) {
    constexpr int K = x128::size;
    __shared__ float shared[2][2 * R * WARP_SIZE];
    float* mine = partial + (size_t)blockIdx.x * 3 * C;
    const size_t start = (size_t)blockIdx.x * R;
    int odd = 0;

    for (size_t first = start; first < N; first += (size_t)gridDim.x * R, odd ^= 1) {
        float mu[R], s[R], sum_g[R] = {}, sum_gx[R] = {};
        for (int r = 0; r < R; r++) {
            mu[r] = first + r < N ? mean[first + r] : 0.0f;
            s[r] = first + r < N ? rstd[first + r] : 0.0f;
        }
        for (int c = threadIdx.x * K; c < C; c += blockDim.x * K) {
            x128 w = load128(weight + c);
            for (int r = 0; r < R; r++) {
                if (first + r >= N) { break; }
                x128 d = load128(dout + (first + r) * C + c), x = load128(inp + (first + r) * C + c);
                for (int k = 0; k < K; k++) {
                    float g = (float)d[k] * (float)w[k], xhat = ((float)x[k] - mu[r]) * s[r];
                    sum_g[r] += g;
                    sum_gx[r] += g * xhat;
                }
            }
        }
        block_sum_pairs<R>(sum_g, sum_gx, shared[odd]);
        for (int c = threadIdx.x * K; c < C; c += blockDim.x * K) {
            x128 w = load128(weight + c);
            float dw[K] = {}, db[K] = {}, ds[K] = {};
            for (int r = 0; r < R; r++) {
                size_t i = (first + r) * C + c;
                if (first + r >= N) { break; }
                x128 d = load128(dout + i), x = load128(inp + i),
                     residual = overwrite ? x128{} : load128(dresidual + i);
                for (int k = 0; k < K; k++) {
                    float xhat = ((float)x[k] - mu[r]) * s[r];
                    float dx = ((float)d[k] * (float)w[k] - sum_g[r] / C - xhat * (sum_gx[r] / C)) * s[r];
                    residual[k] = (floatX)((float)residual[k] + dx);
                    dw[k] += (float)d[k] * xhat;
                    db[k] += (float)d[k];
                    ds[k] += (float)residual[k];
                }
                store128(dresidual + i, residual);
            }
            for (int k = 0; k < K; k++) { // the block's first rows write, the others add
                mine[c + k] = (first == start ? 0.0f : mine[c + k]) + dw[k];
                mine[C + c + k] = (first == start ? 0.0f : mine[C + c + k]) + db[k];
                mine[2 * C + c + k] = (first == start ? 0.0f : mine[2 * C + c + k]) + ds[k];
            }
        }
    }
}

constexpr int LAYERNORM_MAX_THREADS = 640; // of layernorm_backward_kernel: 5120 channels in 16 bit, 2560 in fp32

static inline size_t layernorm_backward_scratch_bytes(int C) { return 3 * column_sum_scratch_bytes(C); }

// dresidual (N, C) += the gradient of layernorm's input (= with overwrite); dweight, dbias (C), fp32, +=.
// dresidual_sum (C), fp32, or NULL: += the column sums of the new dresidual, which is the gradient of the bias of the
// GEMM whose output was added to the residual stream. sum (C), fp32, or NULL: = these column sums alone. dout, inp (N, C);
// mean, rstd (N) from forward. C is a multiple of x128::size.
static inline void layernorm_backward(floatX* dresidual, float* dweight, float* dbias, float* dresidual_sum, float* sum,
                                      const floatX* dout, const floatX* inp, const floatX* weight, const float* mean,
                                      const float* rstd, float* scratch, int N, int C, int overwrite,
                                      cudaStream_t stream) {
    int threads = CEIL_DIV(C / x128::size, 32) * 32, R = 1, stages = LAYERNORM_STAGES;
    auto kernel = layernorm_backward_kernel<1, LAYERNORM_MAX_THREADS>;
    if (threads <= 256) { // enough registers for two rows
        kernel = layernorm_backward_kernel<2, 256>;
        R = 2;
    } else if (threads > LAYERNORM_MAX_THREADS) {
        kernel = layernorm_backward_wide_kernel<4>;
        threads = 512;
        R = 4, stages = 0;
    }
    const int shared = stages * R * 3 * threads * (int)sizeof(x128); // at most 90 KiB
    cuda_try(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    int blocks = resident_blocks(kernel, threads, shared);
    if (blocks > CEIL_DIV(N, R)) { blocks = CEIL_DIV(N, R); }
    if (blocks > COLUMN_SUM_BLOCKS) { blocks = COLUMN_SUM_BLOCKS; }
    kernel<<<blocks, threads, shared, stream>>>(dresidual, scratch, dout, inp, weight, mean, rstd, N, C, overwrite);
    cuda_try(cudaGetLastError());
    const ColumnSums sums = {{dweight, dbias, dresidual_sum}, {NULL, NULL, sum}};
    column_sum_partials(sums, dresidual_sum != NULL ? 3 : 2, scratch, blocks, C, 3 * C, stream);
}

#endif
