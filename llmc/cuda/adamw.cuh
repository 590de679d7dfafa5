/*
AdamW (Loshchilov and Hutter 2019) on fp32 moments and, where there are any, fp32 master weights.
*/
#ifndef LLMC_CUDA_ADAMW_CUH
#define LLMC_CUDA_ADAMW_CUH

#include <math.h>

#include "common.cuh"
#include "ptx.cuh"
#include "llmc/model/host_device.h"

typedef struct {
    float learning_rate, beta1, beta2, epsilon;
    float m_scale, v_scale; // 1 / (1 - beta^step), of the first and of the second moment
    float grad_clip;        // gradients of a larger norm are scaled down to it; 0: none are
    unsigned int seed;      // of stochastic rounding, different in each step
} AdamW;

static inline AdamW adamw_step(float learning_rate, float beta1, float beta2, float epsilon, float grad_clip,
                               int step) {
    AdamW a = {learning_rate, beta1, beta2, epsilon, 0.0f, 0.0f, grad_clip, (unsigned int)step};
    a.m_scale = (float)(1.0 / (1.0 - pow((double)beta1, (double)step)));
    a.v_scale = (float)(1.0 / (1.0 - pow((double)beta2, (double)step)));
    return a;
}

// A 32-bit hash of a position and a seed: the random bits of stochastic rounding.
__device__ inline unsigned int hash32(size_t offset, unsigned int seed) {
    unsigned int x = (unsigned int)offset ^ (seed + (unsigned int)(offset >> 32) * 0x632be59bu) * 0x9e3779b9u;
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

// Rounds up or down at random so that the expectation is x. Without it, and without master weights, updates smaller than
// half a unit in the last place would be lost.
__device__ inline void round_stochastic(__nv_bfloat16* out, float x, unsigned int random) {
    unsigned int bits = __float_as_uint(x);
    if ((bits & 0x7f800000u) != 0x7f800000u) { bits += random & 0xffffu; }
    *out = __ushort_as_bfloat16((unsigned short)(bits >> 16));
}
__device__ inline void round_stochastic(float* out, float x, unsigned int) { *out = x; }

// What guards an update, on the device: the step's loss and gradient norm (which clipping reads, too), and a counter of the
// weights whose new value is not finite.
typedef struct {
    const float *loss, *norm;
    unsigned long long* non_finite;
} UpdateGuard;

// The part of a bucket of parameters that a process owns (parameter_layout.h). params and grads are at the part's offset in the
// whole memory, the others in the shard's; all are aligned to 4 elements, and n is a multiple of 4.
typedef struct {
    floatX* params;     // (n)
    const float* grads; // (n)
    float* m;           // (n) AdamW's first moments
    float* v;           // (n) AdamW's second moments
    float* master;      // (n) fp32 weights, or NULL
    size_t n, decay_n;  // weight decay acts on the first decay_n elements; it may be more than n
    size_t offset;      // of the first element in the whole memory: random bits follow from it, whoever owns the part
} AdamWPart;

constexpr int ADAMW_PARTS = 48; // per launch: they are kernel parameters, at most 4 KB
constexpr int ADAMW_THREADS = 256;

// What one launch updates: all parts have masters, or none. Thread block i works on the first part whose blocks_end is more
// than i.
typedef struct {
    AdamWPart part[ADAMW_PARTS];
    unsigned blocks_end[ADAMW_PARTS];
    int count;
} AdamWParts;

// Adds a part unless it is empty. parts->count must be less than ADAMW_PARTS.
static inline void adamw_add(AdamWParts* parts, AdamWPart part) {
    if (part.n == 0) { return; }
    unsigned begin = parts->count > 0 ? parts->blocks_end[parts->count - 1] : 0;
    parts->blocks_end[parts->count] = begin + (unsigned)CEIL_DIV(part.n, (size_t)(ADAMW_THREADS * f128::size));
    parts->part[parts->count++] = part;
}

// The weights of one thread: as many as an f128 has moments
struct alignas(f128::size * sizeof(floatX)) AdamWWeights {
    floatX data[f128::size];
};

//   m = β1 m + (1-β1) g;  v = β2 v + (1-β2) g²;  w -= lr (m̂ / (√v̂ + ε) + decay w)
// All loads are issued before the first branch on them, so the guard's add no latency. Every fma is written out: the bits do
// not depend on the compiler's contraction. Square root and reciprocal have relative errors of at most 2^-23; correctly rounded
// they would take most of the instructions. A root that is flushed to 0 is negligible beside ε.
template <bool MASTERS> __global__ void __launch_bounds__(ADAMW_THREADS)
    adamw_kernel(const __grid_constant__ AdamWParts parts, float weight_decay, AdamW a, UpdateGuard guard) {
    int part = 0;
    unsigned block = blockIdx.x;
    while (part + 8 < parts.count && block >= parts.blocks_end[part + 7]) { part += 8; }
    while (block >= parts.blocks_end[part]) { part++; }
    block -= part > 0 ? parts.blocks_end[part - 1] : 0;
    const AdamWPart& p = parts.part[part];
    size_t i = ((size_t)block * ADAMW_THREADS + threadIdx.x) * f128::size;
    if (i >= p.n) { return; }
    float loss = *guard.loss, norm = *guard.norm;
    f128 grads = load128(p.grads + i), m = load128(p.m + i), v = load128(p.v + i), w;
    AdamWWeights rounded;
    if (MASTERS) {
        w = load128(p.master + i);
    } else {
        rounded = *reinterpret_cast<const AdamWWeights*>(p.params + i);
        for (int k = 0; k < f128::size; k++) { w[k] = (float)rounded.data[k]; }
    }
    const float grad_scale = grad_clip_scale(norm, a.grad_clip);
    const int decayed = i < p.decay_n ? (int)min(p.decay_n - i, (size_t)f128::size) : 0; // of the thread's weights
    // m needs no test: if it is not finite, neither is the weight.
    auto finite = [&](int k) { return isfinite((float)rounded.data[k]) & isfinite(v[k]); };
    bool step_is_finite = isfinite(loss) & isfinite(norm), all_finite = true;
#pragma unroll
    for (int k = 0; k < f128::size; k++) {
        const float g = grads[k] * grad_scale, decay = k < decayed ? weight_decay : 0.0f;
        m[k] = fmaf(a.beta1, m[k], (1.0f - a.beta1) * g);
        v[k] = fmaf(a.beta2, v[k], (1.0f - a.beta2) * g * g);
        const float update = m[k] * a.m_scale * rcp_approx_ftz(sqrt_approx_ftz(v[k] * a.v_scale) + a.epsilon);
        w[k] = fmaf(-a.learning_rate, fmaf(decay, w[k], update), w[k]);
        if (MASTERS) {
            rounded.data[k] = (floatX)w[k];
        } else {
            round_stochastic(&rounded.data[k], w[k], hash32(p.offset + i + k, a.seed));
        }
        all_finite &= finite(k);
    }
    if (!step_is_finite) { return; }
    if (all_finite) {
        store128(p.m + i, m);
        store128(p.v + i, v);
        if (MASTERS) { store128(p.master + i, w); }
        *reinterpret_cast<AdamWWeights*>(p.params + i) = rounded;
        return;
    }
#pragma unroll
    for (int k = 0; k < f128::size; k++) {
        if (!finite(k)) {
            atomicAdd(guard.non_finite, 1ull);
            continue;
        }
        p.m[i + k] = m[k];
        p.v[i + k] = v[k];
        if (MASTERS) { p.master[i + k] = w[k]; }
        p.params[i + k] = rounded.data[k];
    }
}

// One step for the given parts. Where the guard's loss or norm is not finite, nothing changes. A weight whose new value or
// second moment is not finite keeps its old state and is counted.
static inline void adamw_update(const AdamWParts& parts, float weight_decay, AdamW a, UpdateGuard guard,
                                cudaStream_t stream) {
    if (parts.count == 0) { return; }
    auto kernel = parts.part[0].master ? adamw_kernel<true> : adamw_kernel<false>;
    kernel<<<parts.blocks_end[parts.count - 1], ADAMW_THREADS, 0, stream>>>(parts, weight_decay, a, guard);
    cuda_try(cudaGetLastError());
}

// out (n) = in (n), rounded to nearest
__global__ void cast_from_fp32_kernel(floatX* out, const float* in, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { out[i] = (floatX)in[i]; }
}
static inline void cast_from_fp32(floatX* out, const float* in, size_t n, cudaStream_t stream) {
    cast_from_fp32_kernel<<<(unsigned)CEIL_DIV(n, (size_t)256), 256, 0, stream>>>(out, in, n);
    cuda_try(cudaGetLastError());
}

#endif
