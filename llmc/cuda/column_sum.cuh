/*
Sums over the rows of a tensor: the gradient of every bias and every LayerNorm weight. In two steps, so that the order of
additions is fixed: each thread block of a kernel writes the sum of its rows to one row of `partial`, then
column_sum_partials adds those rows to the gradient.
*/
#ifndef LLMC_CUDA_COLUMN_SUM_CUH
#define LLMC_CUDA_COLUMN_SUM_CUH

#include "common.cuh"

// Rows of partial sums that a kernel may write: enough thread blocks to fill any GPU.
constexpr int COLUMN_SUM_BLOCKS = 1024;

// Up to three gradients (n), fp32, whose partial sums are side by side in a row
struct ColumnSums {
    float* grad[3];
    float* sum[3]; // (n) or NULL: receives the sum without the old value of grad
};

// grad[y] (n) += sum of the rows of columns y n .. y n + n-1 of partial (rows, stride); a block sums 32 columns.
static __global__ void column_sum_partials_kernel(const __grid_constant__ ColumnSums to, const float* partial, int rows,
                                                  int n, size_t stride) {
    __shared__ float sums[32][33];
    float* grad = to.grad[blockIdx.y];
    partial += (size_t)blockIdx.y * n;
    int column = blockIdx.x * 32 + threadIdx.x;
    float sum = 0.0f;
    if (column < n) {
        for (int row = threadIdx.y; row < rows; row += 32) { sum += partial[row * stride + column]; }
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    sum = warp_sum(sums[threadIdx.x][threadIdx.y]); // warp y sums column y of the block
    column = blockIdx.x * 32 + threadIdx.y;
    if (threadIdx.x != 0 || column >= n) { return; }
    grad[column] += sum;
    if (to.sum[blockIdx.y]) { to.sum[blockIdx.y][column] = sum; }
}

// The same for the first `count` gradients, in one launch; or for one.
static inline void column_sum_partials(ColumnSums to, int count, const float* partial, int rows, int n, size_t stride,
                                       cudaStream_t stream) {
    dim3 grid(CEIL_DIV(n, 32), count);
    column_sum_partials_kernel<<<grid, dim3(32, 32), 0, stream>>>(to, partial, rows, n, stride);
    cuda_try(cudaGetLastError());
}
static inline void column_sum_partials(float* grad, const float* partial, int rows, int n, size_t stride,
                                       cudaStream_t stream) {
    column_sum_partials({{grad, NULL, NULL}, {}}, 1, partial, rows, n, stride, stream);
}

// How the column-sum kernels divide a tensor (rows, n): a thread block has 8 warps; each lane owns one 16-byte vector of
// columns; the warps of all blocks with the same blockIdx.x take the rows round-robin.
constexpr int COLUMN_SUM_WARPS = 8;
constexpr int COLUMN_SUM_WIDTH = WARP_SIZE * x128::size; // columns of a block

// A grid that fills the GPU once, with at most COLUMN_SUM_BLOCKS rows of partial sums.
template <class Kernel> static inline dim3 column_sum_grid(Kernel* kernel, int rows, int n) {
    int x = CEIL_DIV(n, COLUMN_SUM_WIDTH), enough = CEIL_DIV(rows, COLUMN_SUM_WARPS);
    int y = resident_blocks(kernel, COLUMN_SUM_WARPS * WARP_SIZE) / x;
    if (y > enough) { y = enough; }
    if (y > COLUMN_SUM_BLOCKS) { y = COLUMN_SUM_BLOCKS; }
    return dim3(x, y > 1 ? y : 1);
}

// row (n) = or, with ADD, += the sum of `sum` over the warps of the thread block, in columns from block * COLUMN_SUM_WIDTH on.
template <bool ADD>
__device__ inline void store_column_sums(float* row, const float (&sum)[x128::size], int block, int n) {
    __shared__ float sums[COLUMN_SUM_WARPS][COLUMN_SUM_WIDTH];
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    for (int k = 0; k < x128::size; k++) { sums[warp][k * WARP_SIZE + lane] = sum[k]; }
    __syncthreads();
    for (int i = threadIdx.x; i < COLUMN_SUM_WIDTH; i += blockDim.x) {
        float total = 0.0f;
        for (int w = 0; w < COLUMN_SUM_WARPS; w++) { total += sums[w][i]; }
        int column = block * COLUMN_SUM_WIDTH + i % WARP_SIZE * x128::size + i / WARP_SIZE;
        if (column < n) { row[column] = ADD ? row[column] + total : total; }
    }
}

// partial (gridDim.y, n): row y is the sum of this block's rows of x (rows, n), which are `stride` elements apart.
static __global__ void __launch_bounds__(COLUMN_SUM_WARPS* WARP_SIZE)
    column_sum_kernel(float* partial, const floatX* x, int rows, int n, size_t stride) {
    int column = blockIdx.x * COLUMN_SUM_WIDTH + threadIdx.x % WARP_SIZE * x128::size;
    int first = blockIdx.y * COLUMN_SUM_WARPS + threadIdx.x / WARP_SIZE;
    float sum[x128::size] = {};
    for (int row = first; row < rows && column < n; row += gridDim.y * COLUMN_SUM_WARPS) {
        x128 v = load128(x + row * stride + column);
        for (int k = 0; k < x128::size; k++) { sum[k] += (float)v[k]; }
    }
    store_column_sums<false>(partial + (size_t)blockIdx.y * n, sum, blockIdx.x, n);
}

static inline size_t column_sum_scratch_bytes(int n) { return sizeof(float) * (size_t)COLUMN_SUM_BLOCKS * n; }

// The first of the two steps: rows of partial (rows returned, n) add up to the sum over the rows of x (rows, n), which are
// `stride` elements apart. n and stride are multiples of x128::size; partial is as large as the function above says.
static inline int column_sum_rows(float* partial, const floatX* x, int rows, int n, size_t stride,
                                  cudaStream_t stream) {
    dim3 grid = column_sum_grid(column_sum_kernel, rows, n);
    column_sum_kernel<<<grid, COLUMN_SUM_WARPS * WARP_SIZE, 0, stream>>>(partial, x, rows, n, stride);
    cuda_try(cudaGetLastError());
    return grid.y;
}
// grad (n), fp32, += sum over the rows of x (rows, n). n is a multiple of x128::size; scratch from the function above.
static inline void column_sum(float* grad, const floatX* x, float* scratch, int rows, int n, cudaStream_t stream) {
    const int partials = column_sum_rows(scratch, x, rows, n, n, stream);
    column_sum_partials(grad, scratch, partials, n, n, stream);
}

#endif
