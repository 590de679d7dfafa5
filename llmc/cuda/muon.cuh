/*
Muon (model/muon.h) on the GPU: a step for several matrices of one shape at a time. Three elementwise kernels move as many bytes
as AdamW's one; the Newton-Schulz steps between them are batched GEMMs of cuBLASLt on floatX with fp32 accumulation.

The bits of a matrix do not depend on which others are in its batch: a GEMM's algorithm is that for a full batch, whose size
follows from the model alone; where that is of several matrices, it does not split K.
*/
#ifndef LLMC_CUDA_MUON_CUH
#define LLMC_CUDA_MUON_CUH

#include "adamw.cuh"
#include "global_norm.cuh"
#include "matmul.cuh"
#include "llmc/model/muon.h"
#include "llmc/model/parameter_layout.h"

// A matrix of a layer; all pointers are aligned to 4 elements.
typedef struct {
    floatX* params;
    const float* grads;
    float* momentum;
    float* master; // fp32 weights, or NULL
    size_t offset; // of the first element in the whole memory: random bits follow from it
} MuonMatrix;

constexpr int MUON_MATRICES = 48, MUON_THREADS = 256; // matrices of a launch are kernel parameters
constexpr size_t MUON_SCRATCH = (size_t)160 << 20;    // bytes, unless four of the largest matrices take more

typedef struct {
    MuonMatrix matrix[MUON_MATRICES];
    int count;
} MuonMatrices;

// Bytes of scratch for a matrix (rows, cols): X and its successor, A and B, and the sums of squares of blocks of X
static inline size_t muon_matrix_bytes(size_t rows, size_t cols) {
    const size_t m = rows < cols ? rows : cols, sums = CEIL_DIV(rows * cols, (size_t)LAYOUT_BLOCK);
    return size_round_up((2 * rows * cols + 2 * m * m) * sizeof(floatX) + sums * sizeof(float), 256);
}

// Bytes of scratch for a model with C channels. The GEMMs of three of 1558M's largest matrices leave a third of the SMs idle.
static inline size_t muon_scratch_bytes(size_t C) {
    const size_t four = 4 * muon_matrix_bytes(4 * C, C);
    return four > MUON_SCRATCH ? four : MUON_SCRATCH;
}

// Matrices (rows, cols) of a full batch; one of the two is C
static inline int muon_batch(size_t rows, size_t cols) {
    const size_t fit = muon_scratch_bytes(rows < cols ? rows : cols) / muon_matrix_bytes(rows, cols);
    return fit < MUON_MATRICES ? (int)fit : MUON_MATRICES;
}

// Calls act(i) for this thread's elements i .. i+3 of block blockIdx.x of a matrix of n.
template <class Act> __device__ inline void muon_for_elements(size_t n, const Act& act) {
    const size_t begin = (size_t)blockIdx.x * LAYOUT_BLOCK, end = min(begin + LAYOUT_BLOCK, n);
    for (size_t i = begin + threadIdx.x * f128::size; i < end; i += MUON_THREADS * f128::size) { act(i); }
}

// momentum, and x (matrices, n) = u; sums (matrices, blocks): of the squares of u. Where the guard's loss or norm is not
// finite, the momentum stays as it is.
__global__ void __launch_bounds__(MUON_THREADS)
    muon_momentum_kernel(floatX* x, float* sums, const __grid_constant__ MuonMatrices matrices, size_t n, float mu,
                         float grad_clip, UpdateGuard guard) {
    const MuonMatrix& p = matrices.matrix[blockIdx.y];
    const float norm = *guard.norm, grad_scale = grad_clip_scale(norm, grad_clip);
    const bool step_is_finite = isfinite(*guard.loss) & isfinite(norm);
    float sum = 0.0f;
    muon_for_elements(n, [&](size_t i) {
        const f128 grads = load128(p.grads + i);
        f128 momentum = load128(p.momentum + i);
        AdamWWeights u;
#pragma unroll
        for (int k = 0; k < f128::size; k++) {
            const float g = (1.0f - mu) * (grads[k] * grad_scale), m = fmaf(mu, momentum[k], g);
            u.data[k] = (floatX)fmaf(mu, m, g);
            sum = fmaf((float)u.data[k], (float)u.data[k], sum);
            momentum[k] = isfinite(m) ? m : momentum[k];
        }
        *reinterpret_cast<AdamWWeights*>(x + blockIdx.y * n + i) = u;
        if (step_is_finite) { store128(p.momentum + i, momentum); }
    });
    sum = block_sum(sum);
    if (threadIdx.x == 0) { sums[blockIdx.y * gridDim.x + blockIdx.x] = sum; }
}

// x (matrices, n) = x / (the matrix's norm + epsilon)
__global__ void __launch_bounds__(MUON_THREADS) muon_normalise_kernel(floatX* x, const float* sums, size_t n) {
    __shared__ float factor;
    const double sum = ordered_sum(sums + blockIdx.y * gridDim.x, gridDim.x);
    if (threadIdx.x == 0) { factor = 1.0f / ((float)sqrt(sum) + MUON_EPSILON); }
    __syncthreads();
    muon_for_elements(n, [&](size_t i) {
        AdamWWeights* u = reinterpret_cast<AdamWWeights*>(x + blockIdx.y * n + i);
        AdamWWeights v = *u;
#pragma unroll
        for (int k = 0; k < f128::size; k++) { v.data[k] = (floatX)((float)v.data[k] * factor); }
        *u = v;
    });
}

// w -= lr (scale x + decay w). A weight whose new value is not finite stays as it is, and is counted.
template <bool MASTERS> __global__ void __launch_bounds__(MUON_THREADS)
    muon_apply_kernel(const floatX* x, const __grid_constant__ MuonMatrices matrices, size_t n, float scale,
                      float weight_decay, AdamW a, UpdateGuard guard) {
    const MuonMatrix& p = matrices.matrix[blockIdx.y];
    if (!(isfinite(*guard.loss) & isfinite(*guard.norm))) { return; }
    muon_for_elements(n, [&](size_t i) {
        const AdamWWeights o = *reinterpret_cast<const AdamWWeights*>(x + blockIdx.y * n + i),
                           before = *reinterpret_cast<const AdamWWeights*>(p.params + i);
        AdamWWeights after;
        f128 w;
        if (MASTERS) { w = load128(p.master + i); }
#pragma unroll
        for (int k = 0; k < f128::size; k++) {
            const float old = MASTERS ? w[k] : (float)before.data[k];
            const float value = fmaf(-a.learning_rate, fmaf(weight_decay, old, scale * (float)o.data[k]), old);
            if (MASTERS) {
                after.data[k] = (floatX)value;
            } else {
                round_stochastic(&after.data[k], value, hash32(p.offset + i + k, a.seed));
            }
            const bool finite = isfinite((float)after.data[k]);
            w[k] = finite ? value : old;
            after.data[k] = finite ? after.data[k] : before.data[k];
            if (!finite) { atomicAdd(guard.non_finite, 1ull); }
        }
        if (MASTERS) { store128(p.master + i, w); }
        *reinterpret_cast<AdamWWeights*>(p.params + i) = after;
    });
}

// The Newton-Schulz steps for `count` matrices x (rows, cols), one after the other; y is scratch like x, a and b of squares of
// the shorter side. Returns the result: x or y. cuBLASLt's matrices are column-major: x is its (cols, rows).
static inline floatX* muon_orthogonalise(Matmul* mm, floatX* x, floatX* y, floatX* a, floatX* b, size_t rows,
                                         size_t cols, int count) {
    const bool tall = rows > cols;
    const int m = (int)(tall ? cols : rows), n = (int)(tall ? rows : cols), batch = muon_batch(rows, cols);
    const cublasLtEpilogue_t none = CUBLASLT_EPILOGUE_DEFAULT;
    const cudaDataType_t type = CudaType<floatX>::value;
    const MatmulShape gram = matmul_shape(m, m, n, !tall, tall, none, type, batch),
                      polynomial = matmul_shape(m, m, m, 0, 0, none, type, batch),
                      next = matmul_shape(tall ? m : n, tall ? n : m, m, 0, 0, none, type, batch);
    for (int step = 0; step < MUON_STEPS; step++) {
        matmul_batch(mm, a, x, x, gram, count, 1.0f, NULL, 0.0f);                      // A = X Xᵀ
        matmul_batch(mm, b, a, a, polynomial, count, MUON_C, a, MUON_B);               // B = c A² + b A
        matmul_batch(mm, y, tall ? b : x, tall ? x : b, next, count, 1.0f, x, MUON_A); // X = B X + a X
        floatX* result = y;
        y = x, x = result;
    }
    return x;
}

// One step for at most muon_batch() matrices (rows, cols); all have masters, or none. a: of the step, for what Muon has in
// common with AdamW. scratch: muon_scratch_bytes().
static inline void muon_update(Matmul* mm, const MuonMatrices& matrices, size_t rows, size_t cols, float mu,
                               float weight_decay, AdamW a, UpdateGuard guard, void* scratch) {
    const size_t n = rows * cols, m = rows < cols ? rows : cols, count = matrices.count;
    const dim3 grid((unsigned)CEIL_DIV(n, (size_t)LAYOUT_BLOCK), (unsigned)count);
    floatX *x = (floatX*)scratch, *y = x + count * n, *A = y + count * n, *B = A + count * m * m;
    float* sums = (float*)(B + count * m * m);
    if (count == 0) { return; }
    muon_momentum_kernel<<<grid, MUON_THREADS, 0, mm->stream>>>(x, sums, matrices, n, mu, a.grad_clip, guard);
    muon_normalise_kernel<<<grid, MUON_THREADS, 0, mm->stream>>>(x, sums, n);
    x = muon_orthogonalise(mm, x, y, A, B, rows, cols, (int)count);
    auto apply = matrices.matrix[0].master ? muon_apply_kernel<true> : muon_apply_kernel<false>;
    apply<<<grid, MUON_THREADS, 0, mm->stream>>>(x, matrices, n, muon_scale(rows, cols), weight_decay, a, guard);
    cuda_try(cudaGetLastError());
}

#endif
