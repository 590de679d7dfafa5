/*
GELU, the tanh approximation of GPT-2 (Hendrycks and Gimpel 2016): gelu(x) = x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))).
*/
#ifndef LLMC_CUDA_GELU_CUH
#define LLMC_CUDA_GELU_CUH

#include "column_sum.cuh"
#include "common.cuh"

// With u = √(2/π) (x + 0.044715 x³): (1 + tanh(u))/2 = σ(2u), the logistic function. It has no cancellation where tanh is
// close to -1, and takes two instructions of the SFU: σ(y) = 1 / (1 + 2^(-y log2 e)).
constexpr float GELU_SLOPE = 0.7978845608028654f, GELU_CUBIC = 0.044715f; // √(2/π) and the factor of x³

// Divided by scale, a power of two
__device__ inline float gelu_sigma(float x, float scale = 1.0f) {
    constexpr float SLOPE = -2.0f * LOG2_E * GELU_SLOPE; // of -2u log2 e
    const float e = ex2_approx_ftz(x * fmaf(SLOPE * GELU_CUBIC, x * x, SLOPE));
    return rcp_approx_ftz(fmaf(e, scale, scale));
}
// gelu(x) = x σ(2u);  gelu'(x) = σ + 2u' gelu(x) (1 - σ),  with u' = √(2/π) (1 + 3·0.044715 x²): three instructions more
__device__ inline float gelu(float x, float sigma) { return x * sigma; }
__device__ inline float gelu_derivative(float x, float sigma) {
    const float slope = fmaf(6.0f * GELU_SLOPE * GELU_CUBIC, x * x, 2.0f * GELU_SLOPE);
    const float value = gelu(x, sigma);
    return fmaf(slope, fmaf(-value, sigma, value), sigma);
}

static __global__ void gelu_forward_kernel(floatX* out, const floatX* inp, size_t n) {
    size_t i = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * x128::size;
    if (i >= n) { return; }
    x128 x = load128_stream(inp + i), y;
    for (int k = 0; k < x128::size; k++) { y[k] = (floatX)gelu((float)x[k], gelu_sigma((float)x[k])); }
    store128(out + i, y); // not streaming: the next GEMM reads it from L2
}

// out (n) = gelu(inp); n is a multiple of x128::size.
static inline void gelu_forward(floatX* out, const floatX* inp, size_t n, cudaStream_t stream) {
    gelu_forward_kernel<<<(unsigned)CEIL_DIV(n, (size_t)256 * x128::size), 256, 0, stream>>>(out, inp, n);
    cuda_try(cudaGetLastError());
}

// d (rows, n), in place: d *= gelu'(inp). Row y of partial (gridDim.y, n): column sums over this block's rows.
// Where out is not NULL, gelu(inp) is written to it again. Blocks and threads as in column_sum_kernel.
static __global__ void __launch_bounds__(COLUMN_SUM_WARPS* WARP_SIZE)
    gelu_backward_kernel(floatX* d, floatX* out, float* partial, const floatX* inp, int rows, int n) {
    int column = blockIdx.x * COLUMN_SUM_WIDTH + threadIdx.x % WARP_SIZE * x128::size;
    int first = blockIdx.y * COLUMN_SUM_WARPS + threadIdx.x / WARP_SIZE;
    float sum[x128::size] = {};
    for (int row = first; row < rows && column < n; row += gridDim.y * COLUMN_SUM_WARPS) {
        size_t i = (size_t)row * n + column;
        x128 x = load128_stream(inp + i), g = load128(d + i), y;
        for (int k = 0; k < x128::size; k++) {
            float sigma = gelu_sigma((float)x[k]);
            y[k] = (floatX)gelu((float)x[k], sigma);
            g[k] = (floatX)((float)g[k] * gelu_derivative((float)x[k], sigma));
            sum[k] += (float)g[k];
        }
        store128(d + i, g);
        if (out != NULL) { store128(out + i, y); }
    }
    store_column_sums<false>(partial + (size_t)blockIdx.y * n, sum, blockIdx.x, n);
}

// d (rows, n) *= gelu'(inp), in place; dbias (n), fp32, += the column sums of the result. out (rows, n) or NULL: where
// gelu(inp) was not kept, it is computed again in the same pass. scratch: column_sum_scratch_bytes(n).
static inline void gelu_backward(floatX* d, float* dbias, floatX* out, const floatX* inp, float* scratch, int rows,
                                 int n, cudaStream_t stream) {
    dim3 grid = column_sum_grid(gelu_backward_kernel, rows, n);
    gelu_backward_kernel<<<grid, COLUMN_SUM_WARPS * WARP_SIZE, 0, stream>>>(d, out, scratch, inp, rows, n);
    cuda_try(cudaGetLastError());
    column_sum_partials(dbias, scratch, grid.y, n, n, stream);
}

#endif
