/*
What the variants of decode are compared with: random caches and new tokens of three kinds, decode in fp64 on the GPU, and the
error that a correct kernel may make in each row. A kernel passes when no row's error is more than twice the model:

    ||out - ref||^2 <= 4 (sum_j c^2 P_j^2 |v_j|^2 + c^2 |ref|^2 + u^2 |ref|^2),   c^2 = e^2 (n + HS) + (e (sqrt(HS) + 4) a)^2

for a row of n keys, with a = max_j sum_d |q_d k_jd| / sqrt(HS), u the unit roundoff of the training precision, which only the
result is rounded to, and e that of fp32 sums: attention/reference.h's model of out, without the rounding of P that tensor cores
need. Rounding the result is off by u |ref| at most, half of what is allowed.
*/
#ifndef DECODE_REFERENCE_H
#define DECODE_REFERENCE_H

#include "attention_decode.h"
#include "dev/cuda/attention/reference.h"

// Elements of out (B,NH,HS), where T is the caches'; qkv has 3 times as many, a cache s.elements()
__host__ __device__ inline int64_t out_elements(Shape s) { return (int64_t)s.heads() * s.HS; }

// The number of tokens in the cache of sequence b, by b modulo 7: as many as fit, inactive (-1), a multiple of 64, none, any
// number, one less than a multiple of 64, a multiple of 256.
static inline int decode_length(Shape s, int b) {
    const int longest = s.T - 1, any = (int)((b * 2654435761u + 40503u * s.T) % (unsigned)s.T);
    const int kinds[] = {longest, -1, any / 64 * 64, 0, any, any / 64 * 64 + 63, longest / 256 * 256};
    return b % 7 == 5 && kinds[5] > longest ? any : kinds[b % 7];
}

// Element d of the q, k or v (which = 0, 1, 2) at position j of a head, by pattern as in attention/reference.h. The new token's
// q is at position `length`.
__device__ inline float decode_input(Shape s, int64_t head, int j, int which, int d, Pattern pattern, uint64_t seed) {
    const uint64_t row = (uint64_t)head * s.T + j;
    if (d == 0 && which < 2 && pattern == HUGE_SCORES) {
        const bool negative = which == 1 && uniform_at(seed + 1, row) < 0.5f;
        return (negative ? -100.0f : 100.0f) * sqrtf(sqrtf((float)s.HS));
    }
    if (d == 0 && which < 2 && pattern == RISING_SCORES) {
        return which == 0 ? 8.0f : j / 4.0f * sqrtf((float)s.HS) / 8.0f;
    }
    return normal_at(seed, (row * 3 + which) * s.HS + d);
}

// Fills k_cache and v_cache (B,NH,T,HS) up to the new token, and leaves the rest
__global__ void fill_caches(floatX* k_cache, floatX* v_cache, const int* lengths, Shape s, Pattern pattern,
                            uint64_t seed) {
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < s.elements();
         n += (int64_t)gridDim.x * blockDim.x) {
        const int d = (int)(n % s.HS), j = (int)(n / s.HS % s.T);
        const int64_t head = n / s.HS / s.T;
        if (j >= lengths[head / s.NH]) { continue; }
        k_cache[n] = (floatX)decode_input(s, head, j, 1, d, pattern, seed);
        v_cache[n] = (floatX)decode_input(s, head, j, 2, d, pattern, seed);
    }
}
// Fills qkv (B,3,NH,HS) and, if `store`, the rows of the caches that a kernel must write
__global__ void fill_new_tokens(floatX* qkv, floatX* k_cache, floatX* v_cache, const int* lengths, Shape s,
                                Pattern pattern, uint64_t seed, bool store) {
    const int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= 3 * out_elements(s)) { return; }
    const int d = (int)(n % s.HS), h = (int)(n / s.HS % s.NH), which = (int)(n / s.HS / s.NH % 3);
    const int b = (int)(n / s.HS / s.NH / 3), length = lengths[b] < 0 ? 0 : lengths[b];
    const floatX x = (floatX)decode_input(s, (int64_t)b * s.NH + h, length, which, d, pattern, seed);
    qkv[n] = x;
    if (!store || lengths[b] < 0 || which == 0) { return; }
    (which == 1 ? k_cache : v_cache)[cache_offset(b, h, s.T, s.NH, s.HS) + (int64_t)length * s.HS + d] = x;
}

// out (B,NH,HS) in fp64 and the error model's squared error of each head (B,NH), from caches that hold the new token. A thread
// block per head.
__global__ void __launch_bounds__(REFERENCE_THREADS)
    decode_reference(double* out, double* noise, const floatX* k_cache, const floatX* v_cache, const floatX* qkv,
                     const int* lengths, Shape s) {
    __shared__ double q[128], P[REFERENCE_THREADS];
    const int h = blockIdx.x, b = blockIdx.y, tid = threadIdx.x, HS = s.HS, keys = lengths[b] + 1;
    const int64_t head = (int64_t)b * s.NH + h;
    const floatX *k = k_cache + cache_offset(b, h, s.T, s.NH, HS), *v = v_cache + cache_offset(b, h, s.T, s.NH, HS);
    if (tid < HS) { q[tid] = (double)(float)qkv[new_token_offset(b, 0, h, s.NH, HS) + tid] * rsqrt((double)HS); }
    __syncthreads();
    double maximum = -INFINITY, magnitude = 0;
    for (int j = tid; j < keys; j += REFERENCE_THREADS) {
        const Dot dot = reference_dot(q, k + (int64_t)j * HS, HS);
        maximum = fmax(maximum, dot.sum);
        magnitude = fmax(magnitude, dot.magnitude);
    }
    maximum = reference_max(maximum);
    magnitude = reference_max(magnitude);

    double l = 0, P2v2 = 0, sum = 0; // sum: of channel d = tid
    for (int j0 = 0; j0 < keys; j0 += REFERENCE_THREADS) {
        const int j = j0 + tid, here = min(REFERENCE_THREADS, keys - j0);
        if (j < keys) {
            P[tid] = exp(reference_dot(q, k + (int64_t)j * HS, HS).sum - maximum);
            l += P[tid];
            P2v2 += P[tid] * P[tid] * reference_dot(q, v + (int64_t)j * HS, HS).square;
        }
        __syncthreads();
        for (int n = 0; n < here && tid < HS; n++) { sum += P[n] * (double)(float)v[(int64_t)(j0 + n) * HS + tid]; }
        __syncthreads();
    }
    l = reference_sum(l), P2v2 = reference_sum(P2v2);
    const double mean = keys > 0 ? sum * (1 / l) : 0; // on sm_80 an fp64 division would need too many registers
    if (tid < HS) { out[head * HS + tid] = mean; }
    const double out2 = reference_sum(tid < HS ? mean * mean : 0);
    const double score_error = SUM_ROUNDOFF * (sqrt((double)HS) + 4) * magnitude;
    const double c2 = SUM_ROUNDOFF * SUM_ROUNDOFF * (keys + HS) + score_error * score_error;
    if (tid == 0 && keys > 0) {
        noise[head] = c2 * (P2v2 * (1 / (l * l)) + out2) + UNIT_ROUNDOFF * UNIT_ROUNDOFF * out2;
    }
}

struct DecodeDifference {
    unsigned long long not_finite,
        touched;               // elements: not finite or not written; written for an inactive sequence
    double error2, reference2; // sums of squares
    unsigned long long worst;  // bits of a double: the largest error / tolerance of a row
};

// Whether x is as buffer_poison() leaves it: all bits set
__device__ inline bool is_poison(const floatX& x) {
    const unsigned char* bytes = reinterpret_cast<const unsigned char*>(&x);
    for (size_t n = 0; n < sizeof(x); n++) {
        if (bytes[n] != 0xff) { return false; }
    }
    return true;
}
// A warp per head
__global__ void compare_decode(DecodeDifference* difference, const floatX* out, const double* reference,
                               const double* noise, const int* lengths, Shape s) {
    const int64_t head = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (head >= s.heads()) { return; }
    const bool active = lengths[head / s.NH] >= 0;
    double error2 = 0, reference2 = 0;
    for (int d = threadIdx.x % 32; d < s.HS; d += 32) {
        const double got = (double)(float)out[head * s.HS + d], want = reference[head * s.HS + d];
        if (!active && !is_poison(out[head * s.HS + d])) { atomicAdd(&difference->touched, 1ull); }
        if (active && !isfinite(got)) { atomicAdd(&difference->not_finite, 1ull); }
        error2 += (got - want) * (got - want);
        reference2 += want * want;
    }
    for (int offset = 16; offset > 0; offset /= 2) {
        error2 += __shfl_xor_sync(0xffffffffu, error2, offset);
        reference2 += __shfl_xor_sync(0xffffffffu, reference2, offset);
    }
    if (threadIdx.x % 32 != 0 || !active) { return; }
    const double worst = sqrt(error2 * (1 / noise[head])) / 2;
    atomicAdd(&difference->error2, error2);
    atomicAdd(&difference->reference2, reference2);
    // NaN counts as the largest; positive doubles order as their bits
    atomicMax(&difference->worst, (unsigned long long)__double_as_longlong(worst <= 1e30 ? worst : INFINITY));
}

#endif
