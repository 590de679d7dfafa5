/*
The kernels of layernorm.cuh and their launchers, which the variants of matmul include: they are compiled once for all programs
of a precision, in matmul.cu's object.
*/
#ifndef LLMC_CUDA_LAYERNORM_KERNELS_CUH
#define LLMC_CUDA_LAYERNORM_KERNELS_CUH

#include <limits.h>

#include "layernorm.cuh"
#include "ptx.cuh"
#include "llmc/model/host_device.h"

constexpr int LAYERNORM_WARPS = 4; // rows of a forward thread block: a warp each

// residual (N, C) = a + b; out (N, C), or NULL, = layernorm(residual); mean, rstd (N); int8_scales (N) or NULL, as in
// layernorm.cuh. b NULL: out = layernorm(a), residual is not written. One warp per row, held in registers, V vectors a lane;
// V = 0, for wider rows, loads it again for each pass. Thread blocks take the last rows first: the kernel that wrote a wrote
// them last, and they are still in L2.
template <int V> __global__ void __launch_bounds__(LAYERNORM_WARPS * 32)
    residual_layernorm_forward_kernel(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                      const floatX* b, const floatX* weight, const floatX* bias, int N, int C,
                                      float* int8_scales) {
    constexpr int K = x128::size;
    const int lane = threadIdx.x % WARP_SIZE, vectors = V > 0 ? V : CEIL_DIV(C, WARP_SIZE * K);
    const size_t row = (size_t)(gridDim.x - 1 - blockIdx.x) * LAYERNORM_WARPS + threadIdx.x / WARP_SIZE;
    if (row >= N) { return; }
    x128 v[V > 0 ? V : 1] = {};
    auto channel = [&](int n) { return (n * WARP_SIZE + lane) * K; };
    auto vector = [&](int n) { return V > 0 ? v[V > 0 ? n : 0] : load128((b ? residual : a) + row * C + channel(n)); };
#pragma unroll
    for (int n = 0; n < V; n++) { // all loads are issued before the first use
        if (channel(n) < C) { v[n] = load128(a + row * C + channel(n)); }
    }
#pragma unroll
    for (int n = 0; n < vectors && b != NULL; n++) {
        const size_t at = row * C + channel(n);
        if (channel(n) >= C) { break; }
        float x[K], y[K];
        unpack(x, V > 0 ? v[V > 0 ? n : 0] : load128(a + at)), unpack(y, load128(b + at));
        for (int k = 0; k < K; k++) { x[k] += y[k]; }
        const x128 rounded = pack(x);
        store128(residual + at, rounded);
        if constexpr (V > 0) { v[n] = rounded; }
    }
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < vectors; n++) {
        if (channel(n) >= C) { break; }
        float x[K];
        unpack(x, vector(n));
        for (int k = 0; k < K; k++) { sum += x[k]; }
    }
    const float mu = warp_sum(sum) / C;
    float squares = 0.0f;
#pragma unroll
    for (int n = 0; n < vectors; n++) {
        if (channel(n) >= C) { break; }
        float x[K];
        unpack(x, vector(n));
        for (int k = 0; k < K; k++) { squares += (x[k] - mu) * (x[k] - mu); }
    }
    const float s = rsqrtf(warp_sum(squares) / C + LAYERNORM_EPSILON);
    float largest = 0.0f;
#pragma unroll
    for (int n = 0; n < vectors && (out || int8_scales); n++) {
        const int c = channel(n);
        if (c >= C) { break; }
        float x[K], w[K], d[K];
        unpack(x, vector(n)), unpack(w, load128(weight + c)), unpack(d, load128(bias + c));
        for (int k = 0; k < K; k++) {
            x[k] = (x[k] - mu) * s * w[k] + d[k];
            largest = max_nan(largest, fabsf(x[k]));
        }
        if (out) { store128(out + row * C + c, pack(x)); }
    }
    // as integers: the order of magnitudes is that of their bits, and NaN is above all
    const unsigned of_row = int8_scales ? __reduce_max_sync(0xffffffffu, __float_as_uint(largest)) : 0;
    if (lane == 0) {
        mean[row] = mu;
        rstd[row] = s;
        if (int8_scales) { int8_scales[row] = __uint_as_float(of_row) / INT8_LARGEST; }
    }
}

void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                const floatX* b, const floatX* weight, const floatX* bias, int N, int C,
                                cudaStream_t stream, float* int8_scales) {
    // By the vectors that a lane holds at most: GPT-2's models have 3, 4, 5 and 7 in 16 bit.
    static const struct {
        int vectors;
        decltype(&residual_layernorm_forward_kernel<0>) kernel;
    } kernels[] = {{2, residual_layernorm_forward_kernel<2>},      {3, residual_layernorm_forward_kernel<3>},
                   {4, residual_layernorm_forward_kernel<4>},      {5, residual_layernorm_forward_kernel<5>},
                   {7, residual_layernorm_forward_kernel<7>},      {8, residual_layernorm_forward_kernel<8>},
                   {INT_MAX, residual_layernorm_forward_kernel<0>}};
    int n = 0;
    while (kernels[n].vectors < CEIL_DIV(C, WARP_SIZE * x128::size)) { n++; }
    kernels[n].kernel<<<CEIL_DIV(N, LAYERNORM_WARPS), LAYERNORM_WARPS * 32, 0, stream>>>(
        residual, out, mean, rstd, a, b, weight, bias, N, C, int8_scales);
    cuda_try(cudaGetLastError());
}

constexpr int LAYERNORM_STAGES = 3; // of the cp.async pipeline: R rows each

// Sums of M values over a warp, M a power of two: a butterfly whose steps halve the values that a lane keeps. The lane gets the
// sum of value lane * M / 32.
template <int M> __device__ inline float warp_sums(float (&v)[M]) {
    const int lane = threadIdx.x % WARP_SIZE;
    int offset = WARP_SIZE / 2;
#pragma unroll
    for (int half = M / 2; half > 0; half /= 2, offset /= 2) {
        const bool high = lane & offset;
#pragma unroll
        for (int i = 0; i < half; i++) {
            const float keep = high ? v[half + i] : v[i], give = high ? v[i] : v[half + i];
            v[i] = keep + __shfl_xor_sync(0xffffffffu, give, offset);
        }
    }
    for (; offset > 0; offset /= 2) { v[0] += __shfl_xor_sync(0xffffffffu, v[0], offset); }
    return v[0];
}
// Sums of M values over a thread block of at most MAX_WARPS warps; every thread gets all of them. shared: block_sums_floats()
// floats, zeros before the first call; consecutive calls take different ones, so that one barrier a call is enough.
template <int M, int MAX_WARPS> __host__ __device__ constexpr int block_sums_floats() {
    return CEIL_DIV(MAX_WARPS * M, WARP_SIZE) * WARP_SIZE;
}
template <int M, int MAX_WARPS> __device__ inline void block_sums(float (&v)[M], float* shared) {
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const float of_warp = warp_sums<M>(v);
    if (lane % (WARP_SIZE / M) == 0) { shared[warp * M + lane / (WARP_SIZE / M)] = of_warp; }
    __syncthreads();
    float sum = 0.0f; // of value lane % M
#pragma unroll
    for (int i = 0; i < block_sums_floats<M, MAX_WARPS>(); i += WARP_SIZE) { sum += shared[i + lane]; }
#pragma unroll
    for (int offset = WARP_SIZE / 2; offset >= M; offset /= 2) { sum += __shfl_xor_sync(0xffffffffu, sum, offset); }
#pragma unroll
    for (int i = 0; i < M; i++) { v[i] = __shfl_sync(0xffffffffu, sum, i); }
}

// Backward, for rows of at most THREADS vectors of 16 bytes: each thread owns one vector of channels in all rows of its block,
// so the column sums stay in registers. A block takes R rows at once to hide the latency of the block reductions, and
// prefetches the rows of later iterations by cp.async: a thread copies only the vectors that it reads, so the ring needs no
// barrier. The last rows come first: those of dout that were written last are still in L2.
//
//   xhat = (x - mean) rstd;  g = dout w;  dx = (g - mean_c(g) - xhat mean_c(g xhat)) rstd;  dresidual += dx
//
// partial (gridDim.x, 3, C): sums over each block's rows of dout xhat (dw), of dout (db), and of the new dresidual.
template <int R, int THREADS, int BLOCKS> __global__ void __launch_bounds__(THREADS, BLOCKS)
    layernorm_backward_kernel(floatX* dresidual, float* partial, const floatX* dout, const floatX* inp,
                              const floatX* weight, const float* mean, const float* rstd, int N, int C, int overwrite) {
    constexpr int K = x128::size, AHEAD = LAYERNORM_STAGES - 1;
    constexpr int floats = block_sums_floats<2 * R, THREADS / WARP_SIZE>();
    extern __shared__ x128 layernorm_ring[]; // (LAYERNORM_STAGES, R, 3, THREADS): dout, inp and dresidual of a row
    __shared__ float shared[2][floats];
    const int c = threadIdx.x * K, rows_of_turn = gridDim.x * R;
    const bool active = c < C;
    const float inverse_C = 1.0f / C;
    float w[K] = {}, dw[K] = {}, db[K] = {}, ds[K] = {}, next_mu[R], next_s[R];
    if (active) { unpack(w, load128(weight + c)); }
    for (int i = threadIdx.x; i < 2 * floats; i += THREADS) { shared[0][i] = 0.0f; }
    __syncthreads();

    constexpr int stage_vectors = R * 3 * THREADS;
    x128* const ring =
        layernorm_ring + threadIdx.x; // the thread's own vectors, THREADS apart; zeros where there is no row
    int copy_row = blockIdx.x * R;    // first row of the next iteration to prefetch; rows are counted from the last one
    auto row = [&](int i) { return (size_t)(N - 1 - i); };
    auto copy_rows = [&](int stage) {
        x128* const to = ring + stage * stage_vectors;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const bool live = active && copy_row + r < N;
            const size_t at = live ? row(copy_row + r) * C + c : 0;
            const int bytes = live ? sizeof(x128) : 0;
            cp_async_16((uint32_t)__cvta_generic_to_shared(to + (r * 3) * THREADS), dout + at, bytes);
            cp_async_16((uint32_t)__cvta_generic_to_shared(to + (r * 3 + 1) * THREADS), inp + at, bytes);
            cp_async_16((uint32_t)__cvta_generic_to_shared(to + (r * 3 + 2) * THREADS), dresidual + at,
                        overwrite ? 0 : bytes);
        }
        cp_async_commit_group();
        copy_row += rows_of_turn;
    };
    auto load_statistics = [&](int first) {
#pragma unroll
        for (int r = 0; r < R; r++) {
            next_mu[r] = first + r < N ? mean[row(first + r)] : 0.0f;
            next_s[r] = first + r < N ? rstd[row(first + r)] : 0.0f;
        }
    };
    for (int turn = 0; turn < AHEAD; turn++) { copy_rows(turn); }
    load_statistics(blockIdx.x * R);

    int stage = 0, odd = 0;
    for (int first = blockIdx.x * R; first < N; first += rows_of_turn) {
        const x128* const from = ring + stage * stage_vectors;
        x128 dout_vector[R], inp_vector[R];
        float mu[R], s[R], sums[2 * R]; // of g and of g xhat, row by row
        cp_async_wait_group<AHEAD - 1>();
        copy_rows(stage == 0 ? AHEAD : stage - 1); // the stage of the previous iteration, which this thread has read
#pragma unroll
        for (int r = 0; r < R; r++) {
            float d[K], x[K], sum_g = 0.0f, sum_gx = 0.0f;
            mu[r] = next_mu[r], s[r] = next_s[r];
            dout_vector[r] = from[(r * 3) * THREADS], inp_vector[r] = from[(r * 3 + 1) * THREADS];
            unpack(d, dout_vector[r]), unpack(x, inp_vector[r]);
#pragma unroll
            for (int k = 0; k < K; k++) {
                const float g = d[k] * w[k];
                sum_g += g;
                sum_gx = fmaf(g, x[k] - mu[r], sum_gx);
            }
            sums[2 * r] = sum_g, sums[2 * r + 1] = sum_gx * s[r];
        }
        load_statistics(first + rows_of_turn);
        block_sums<2 * R, THREADS / WARP_SIZE>(sums, shared[odd]);
#pragma unroll
        for (int r = 0; r < R; r++) {
            if (!active || first + r >= N) { continue; }
            const float mean_g = sums[2 * r] * inverse_C, mean_gx = sums[2 * r + 1] * inverse_C;
            float d[K], x[K], residual[K];
            unpack(d, dout_vector[r]), unpack(x, inp_vector[r]), unpack(residual, from[(r * 3 + 2) * THREADS]);
#pragma unroll
            for (int k = 0; k < K; k++) {
                const float xhat = (x[k] - mu[r]) * s[r], dx = fmaf(-xhat, mean_gx, fmaf(d[k], w[k], -mean_g));
                residual[k] = fmaf(dx, s[r], residual[k]);
                dw[k] = fmaf(d[k], xhat, dw[k]);
                db[k] += d[k];
            }
            const x128 rounded = pack(residual);
            store128(dresidual + row(first + r) * C + c, rounded);
            unpack(residual, rounded);
#pragma unroll
            for (int k = 0; k < K; k++) { ds[k] += residual[k]; }
        }
        stage = stage == AHEAD ? 0 : stage + 1, odd ^= 1;
    }
    if (!active) { return; }
    float* mine = partial + (size_t)blockIdx.x * 3 * C + c;
    for (int k = 0; k < K; k++) {
        mine[k] = dw[k];
        mine[C + k] = db[k];
        mine[2 * C + k] = ds[k];
    }
}

void layernorm_backward(floatX* dresidual, float* dweight, float* dbias, float* dresidual_sum, float* sum,
                        const floatX* dout, const floatX* inp, const floatX* weight, const float* mean,
                        const float* rstd, float* scratch, int N, int C, int overwrite, cudaStream_t stream) {
    // By the threads of a row, whole warps: GPT-2's models have 3, 4, 5 and 7 in 16 bit. The fewest thread blocks per SM that
    // hide the latency: with more of them DRAM is slower (dev/LOG.md).
    static const struct {
        int threads, rows;
        decltype(&layernorm_backward_kernel<2, 96, 5>) kernel;
    } kernels[] = {{96, 2, layernorm_backward_kernel<2, 96, 5>},   {128, 2, layernorm_backward_kernel<2, 128, 4>},
                   {160, 2, layernorm_backward_kernel<2, 160, 3>}, {224, 2, layernorm_backward_kernel<2, 224, 2>},
                   {256, 2, layernorm_backward_kernel<2, 256, 2>}, {640, 1, layernorm_backward_kernel<1, 640, 1>}};
    if (layernorm_check(C) != STATUS_OK) { return; }
    int n = 0;
    while (kernels[n].threads * x128::size < C) { n++; }
    const int threads = kernels[n].threads, R = kernels[n].rows;
    const auto kernel = kernels[n].kernel;
    const int shared = LAYERNORM_STAGES * R * 3 * threads * (int)sizeof(x128); // at most 90 KiB
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
