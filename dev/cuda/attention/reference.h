/*
What the variants are checked against: random inputs of four kinds, attention and its gradients in fp64 on the GPU, and the
error that a correct kernel may make, by a first-order model of rounding, not a guessed tolerance (below, "The error model"). A
kernel passes when its error is at most twice the model.
*/
#ifndef ATTENTION_REFERENCE_H
#define ATTENTION_REFERENCE_H

#include "attention.h"
#include "documents.h"

#include <math.h>

struct Shape {
    int B, T, NH, HS;
    int documents = NO_DOCUMENTS; // how long: DocumentLengths, or a length
    __host__ __device__ int heads() const { return B * NH; }
    __host__ __device__ int64_t rows() const { return (int64_t)B * NH * T; }
    __host__ __device__ int64_t elements() const { return rows() * HS; } // of out; qkv has 3 times as many
};

enum Pattern { ORDINARY, HUGE_SCORES, RISING_SCORES, FALLING_SCORES, NUM_PATTERNS };
static const char* const pattern_names[NUM_PATTERNS] = {"ordinary", "scores of +-1e4", "maximum last", "maximum first"};

// Heads beyond the first `distinct` repeat their inputs, so that the reference of a large shape stays affordable while
// every element of every head is still checked. Odd, so that it is no multiple of the number of heads.
static inline int distinct_heads(Shape s) {
    const double budget = 8e9; // multiply-adds of one GEMM: about half a second for all of the reference on an H200
    double per_head = 0.5 * s.T * s.T * s.HS;
    if (s.heads() * per_head <= budget) { return s.heads(); }
    int heads = (int)(budget / per_head) | 1;
    return heads < 3 ? 3 : heads;
}

// ----------------------------------------------------------------------------
// Inputs

// qkv (B,T,3,NH,HS) and dout (B,T,NH,HS): N(0,1), with channel 0 of q and k set by the pattern.
__global__ void fill_inputs(floatX* qkv, floatX* dout, Shape s, int distinct, Pattern pattern, uint64_t seed) {
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (n >= 4 * s.elements()) { return; }
    int d = (int)(n % s.HS), h = (int)(n / s.HS % s.NH), which = (int)(n / s.HS / s.NH % 4);
    int64_t token = n / s.HS / s.NH / 4;
    int b = (int)(token / s.T), t = (int)(token % s.T), head = (b * s.NH + h) % distinct;
    uint64_t row = (uint64_t)head * s.T + t;
    float x = normal_at(seed, (row * 4 + which) * s.HS + d);
    if (d == 0 && which < 2 && pattern == HUGE_SCORES) { // q_0 k_0 = +-1e4 sqrt(HS), the sign by key
        bool negative = which == 1 && uniform_at(seed + 1, row) < 0.5f;
        x = (negative ? -100.0f : 100.0f) * sqrtf(sqrtf((float)s.HS));
    }
    // q_0 k_0 / sqrt(HS) rises (or falls) by 1/4 a key, so that every key tile raises the maximum of a kernel that begins with
    // the first (or the last) key: in odd heads through 0, in even heads up to -16, so that no score is positive
    if (d == 0 && which < 2 && (pattern == RISING_SCORES || pattern == FALLING_SCORES)) {
        const int rank = pattern == RISING_SCORES ? t : s.T - t, zero = head % 2 == 1 ? s.T / 2 : s.T + 64;
        x = which == 0 ? 8.0f : (rank - zero) / 4.0f * sqrtf((float)s.HS) / 8.0f;
    }
    if (which < 3) {
        qkv[qkv_offset(b, which, h, s.T, s.NH, s.HS) + (int64_t)t * 3 * s.NH * s.HS + d] = (floatX)x;
    } else {
        dout[out_offset(b, h, s.T, s.NH, s.HS) + (int64_t)t * s.NH * s.HS + d] = (floatX)x;
    }
}

// ----------------------------------------------------------------------------
// The error model, summed in fp64 beside the reference. Let u be the unit roundoff of the training precision, e that of fp32
// accumulation, and a_i = max_j sum_d |q_id k_jd| / sqrt(HS).
//     score       s_ij is off by  e (sqrt(HS) + 4) a_i    a sum of HS products; scaling, subtraction of m_i and exp
//     weight      P_ij is off by  c_i P_ij                c_i^2 = u^2 + e^2 (T + HS) + (the error of the score)^2
//     gradient    dS_ij is off by c_i P_ij (|dP_ij| + |D_i|), by the error of dP_ij itself, e |dO_i| |v_j| P_ij, and by
//                 u sqrt(sum_d (dO_id O_id)^2) P_ij, what rounding `out` does to D_i, the same for the whole row
//     m + log(l)  is off by the errors of the scores as P averages them, sqrt(sum_j P_ij^2) times that of one, by
//                 e sqrt(keys) / 2 for the sum, and by e (HS/32 a_i + |m_i| + |m_i + log(l_i)| + 2) where all keys err
//                 alike: tensor cores truncate HS/16 times, m and m log2(e) are rounded once, exp2 is good to 2 e
// Independent errors add as squares through the matrix multiplications that follow: out_i = sum_j P_ij v_j is off by
// sqrt(sum_j c_i^2 P_ij^2 |v_j|^2), and so on for dq, dk and dv; storing the result adds u times its norm. So the model holds
// at T = 1 (where dq and dk are zero) and at scores of 1e4 (where fp32 itself resolves a score only to about 1e-3), and is near
// u |ref| for ordinary inputs.
//
// For l and m the largest error of all rows counts. Twice the model is six standard deviations there: an addition rounded to
// nearest is off by at most e/sqrt(12) of the partial sum, so n additions to an evenly growing sum by e sqrt(n)/6; among ten
// million rows the worst is off by 5.4 standard deviations. (dev/LOG.md: how close correct and faulty kernels come.) An error
// that grows with the number of tiles is a fault.

// ----------------------------------------------------------------------------
// Attention in fp64

enum Tensor { OUT, DQ, DK, DV, NUM_TENSORS };
static const char* const tensor_names[NUM_TENSORS] = {"out", "dq", "dk", "dv"};

struct RowStatistics {
    double maximum, lse; // of the scores: their maximum and log(sum(exp))
    double D;            // sum_d dO_id O_id
    double m_error;      // what a correct kernel's m may be off by, beside the 8 of the contract
    double lse_error;    // likewise m + log(l)
};
struct Reference {
    Shape shape;
    int distinct;
    double scale;           // 1 / sqrt(HS)
    int* starts = nullptr;  // (B,T), where the shape has documents
    double* x[NUM_TENSORS]; // (distinct,T,HS) each
    RowStatistics* rows;    // (distinct,T)
    double* noise;          // NUM_TENSORS squared errors of the model, without the rounding of the result
};

// The first key that query i of a head sees
__device__ inline int first_key(const Reference& r, int head, int i) {
    return r.starts ? r.starts[(int64_t)(head / r.shape.NH) * r.shape.T + i] : 0;
}

// Unit roundoffs: of the training precision, and of fp32 sums (a whole unit in the last place: tensor cores truncate).
constexpr double UNIT_ROUNDOFF = sizeof(floatX) == 4 ? 0x1p-24 : 0x1p-9, SUM_ROUNDOFF = 0x1p-23;
constexpr int REFERENCE_THREADS = 128; // one for each channel at least

// x.y, sum |x y| and |y|^2 of a vector in shared memory and a row in global memory, HS long
struct Dot {
    double sum, magnitude, square;
};
__device__ inline Dot reference_dot(const double* x, const floatX* y, int HS) {
    Dot dot = {0, 0, 0};
#pragma unroll 1
    for (int d = 0; d < HS; d += x128::size) {
        x128 v = load128(y + d);
        for (int k = 0; k < x128::size; k++) {
            double term = x[d + k] * (double)(float)v[k];
            dot.sum += term;
            dot.magnitude += fabs(term);
            dot.square += (double)(float)v[k] * (double)(float)v[k];
        }
    }
    return dot;
}

// The rows of one head in the packed tensors
struct HeadRows {
    const floatX *q, *k, *v, *dout;
    int64_t qkv_stride, out_stride;
};
__device__ inline HeadRows head_rows(const floatX* qkv, const floatX* dout, Shape s, int head) {
    int b = head / s.NH, h = head % s.NH;
    return {qkv + qkv_offset(b, 0, h, s.T, s.NH, s.HS),
            qkv + qkv_offset(b, 1, h, s.T, s.NH, s.HS),
            qkv + qkv_offset(b, 2, h, s.T, s.NH, s.HS),
            dout + out_offset(b, h, s.T, s.NH, s.HS),
            (int64_t)3 * s.NH * s.HS,
            (int64_t)s.NH * s.HS};
}

// One block for each query row i: out_i, dq_i, the row's statistics, and the model's errors of out, dq and dv.
//     dq_i = sum_j P_ij (dP_ij - D_i) k_j / sqrt(HS),  D_i = dO_i.O_i = sum_j P_ij dP_ij
__global__ void __launch_bounds__(REFERENCE_THREADS)
    reference_rows(Reference r, const floatX* qkv, const floatX* dout) {
    __shared__ double q[128], g[128], P[REFERENCE_THREADS], PdP[REFERENCE_THREADS];
    const Shape s = r.shape;
    const int head = blockIdx.x / s.T, i = blockIdx.x % s.T, HS = s.HS, tid = threadIdx.x;
    const int first = first_key(r, head, i);
    const HeadRows x = head_rows(qkv, dout, s, head);
    if (tid < HS) {
        q[tid] = (double)(float)x.q[i * x.qkv_stride + tid] * r.scale;
        g[tid] = (double)(float)x.dout[i * x.out_stride + tid];
    }
    __syncthreads();

    double maximum = -INFINITY, l = 0, magnitude = 0; // of the keys j = first + tid, first + tid + 128, ...
    for (int j = first + tid; j <= i; j += REFERENCE_THREADS) {
        Dot dot = reference_dot(q, x.k + j * x.qkv_stride, HS);
        double larger = fmax(maximum, dot.sum);
        l = l * exp(maximum - larger) + exp(dot.sum - larger);
        maximum = larger;
        magnitude = fmax(magnitude, dot.magnitude);
    }
    double row_maximum = reference_max(maximum);
    double lse = row_maximum + log(reference_sum(l == 0 ? 0 : l * exp(maximum - row_maximum)));
    magnitude = reference_max(magnitude);

    double out = 0, PdPk = 0, Pk = 0;                                    // of channel d = tid
    double P2 = 0, P2k2 = 0, P2v2 = 0, P2v2k2 = 0, PdP2 = 0, PdP2k2 = 0; // sums of squares, of keys
    for (int j0 = first; j0 <= i; j0 += REFERENCE_THREADS) {
        int j = j0 + tid;
        if (j <= i) {
            Dot score = reference_dot(q, x.k + j * x.qkv_stride, HS), dP = reference_dot(g, x.v + j * x.qkv_stride, HS);
            double p = exp(score.sum - lse), p2 = p * p;
            P[tid] = p;
            PdP[tid] = p * dP.sum;
            P2 += p2;
            P2k2 += p2 * score.square;
            P2v2 += p2 * dP.square;
            P2v2k2 += p2 * dP.square * score.square;
            PdP2 += p2 * dP.sum * dP.sum;
            PdP2k2 += p2 * dP.sum * dP.sum * score.square;
        }
        __syncthreads();
        int keys = min(REFERENCE_THREADS, i + 1 - j0);
        for (int n = 0; n < keys && tid < HS; n++) {
            double k = (double)(float)x.k[(j0 + n) * x.qkv_stride + tid];
            double v = (double)(float)x.v[(j0 + n) * x.qkv_stride + tid];
            out += P[n] * v;
            PdPk += PdP[n] * k;
            Pk += P[n] * k;
        }
        __syncthreads();
    }
    double gO = tid < HS ? g[tid] * out : 0;
    double D = reference_sum(gO), gO2 = reference_sum(gO * gO), g2 = reference_sum(tid < HS ? g[tid] * g[tid] : 0);
    double dq = (PdPk - D * Pk) * r.scale;
    if (tid < HS) {
        int64_t at = ((int64_t)head * s.T + i) * HS + tid;
        r.x[OUT][at] = out;
        r.x[DQ][at] = dq;
    }

    double score_error = SUM_ROUNDOFF * (sqrt((double)HS) + 4) * magnitude;
    double sum_error2 = SUM_ROUNDOFF * SUM_ROUNDOFF * (s.T + HS);
    double c2 = UNIT_ROUNDOFF * UNIT_ROUNDOFF + sum_error2 + score_error * score_error;
    double D_error2 = (UNIT_ROUNDOFF * UNIT_ROUNDOFF + sum_error2) * gO2;
    double dP_error2 = 2 * SUM_ROUNDOFF * SUM_ROUNDOFF * g2; // of dP_ij, over |v_j|^2
    double out2 = reference_sum(tid < HS ? out * out : 0), dq2 = reference_sum(tid < HS ? dq * dq : 0);
    double Pk2 = reference_sum(tid < HS ? Pk * Pk : 0);
    P2 = reference_sum(P2), P2k2 = reference_sum(P2k2), P2v2 = reference_sum(P2v2), P2v2k2 = reference_sum(P2v2k2);
    PdP2 = reference_sum(PdP2), PdP2k2 = reference_sum(PdP2k2);
    if (tid == 0) {
        // (|dP| + |D|)^2 <= 2 (dP^2 + D^2)
        double dS2k2 = 2 * c2 * (PdP2k2 + D * D * P2k2) + dP_error2 * P2v2k2;
        double dS2 = 2 * c2 * (PdP2 + D * D * P2) + dP_error2 * P2v2;
        double q2 = 0;
        for (int d = 0; d < HS; d++) { q2 += q[d] * q[d]; } // q is scaled already
        atomicAdd(&r.noise[OUT], c2 * (P2v2 + out2));
        atomicAdd(&r.noise[DQ], (dS2k2 + D_error2 * Pk2) * r.scale * r.scale + c2 * dq2);
        atomicAdd(&r.noise[DK], (dS2 + D_error2 * P2) * q2);
        atomicAdd(&r.noise[DV], c2 * P2 * g2);
        double sum2 = SUM_ROUNDOFF * SUM_ROUNDOFF * (i - first + 1) / 4;
        double shared = SUM_ROUNDOFF * (s.HS / 32.0 * magnitude + fabs(row_maximum) + fabs(lse) + 2);
        double lse_error = sqrt(score_error * score_error * P2 + sum2) + shared;
        r.rows[(int64_t)head * s.T + i] = {row_maximum, lse, D, score_error + shared, lse_error};
    }
}

// One block for each key row j: dk_j = sum_i dS_ij q_i / sqrt(HS) and dv_j = sum_i P_ij dO_i, over the queries i that see it.
__global__ void __launch_bounds__(REFERENCE_THREADS)
    reference_columns(Reference r, const floatX* qkv, const floatX* dout) {
    __shared__ double k[128], v[128], P[REFERENCE_THREADS], dS[REFERENCE_THREADS];
    const Shape s = r.shape;
    const int head = blockIdx.x / s.T, j = blockIdx.x % s.T, HS = s.HS, tid = threadIdx.x;
    const HeadRows x = head_rows(qkv, dout, s, head);
    if (tid < HS) {
        k[tid] = (double)(float)x.k[j * x.qkv_stride + tid] * r.scale;
        v[tid] = (double)(float)x.v[j * x.qkv_stride + tid];
    }
    __syncthreads();
    double dk = 0, dv = 0; // of channel d = tid
    const int end = r.starts ? document_end(r.starts + (int64_t)(head / s.NH) * s.T, s.T, j) : s.T; // of the queries
    for (int i0 = j; i0 < end; i0 += REFERENCE_THREADS) {
        int i = i0 + tid;
        if (i < end) {
            const RowStatistics& row = r.rows[(int64_t)head * s.T + i];
            dS[tid] = reference_dot(v, x.dout + i * x.out_stride, HS).sum - row.D;
            P[tid] = exp(reference_dot(k, x.q + i * x.qkv_stride, HS).sum - row.lse);
            dS[tid] *= P[tid];
        }
        __syncthreads();
        int rows = min(REFERENCE_THREADS, end - i0);
        for (int n = 0; n < rows && tid < HS; n++) {
            dk += dS[n] * (double)(float)x.q[(i0 + n) * x.qkv_stride + tid];
            dv += P[n] * (double)(float)x.dout[(i0 + n) * x.out_stride + tid];
        }
        __syncthreads();
    }
    if (tid < HS) {
        int64_t at = ((int64_t)head * s.T + j) * HS + tid;
        r.x[DK][at] = dk * r.scale;
        r.x[DV][at] = dv;
    }
}

static inline Reference reference_allocate(Shape s) {
    Reference r;
    r.shape = s;
    r.scale = 1 / sqrt((double)s.HS);
    r.distinct = distinct_heads(s) < s.heads() ? distinct_heads(s) : s.heads();
    size_t rows = (size_t)r.distinct * s.T;
    for (int n = 0; n < NUM_TENSORS; n++) { cuda_check(cudaMalloc(&r.x[n], rows * s.HS * sizeof(double))); }
    cuda_check(cudaMalloc(&r.rows, rows * sizeof(RowStatistics)));
    cuda_check(cudaMalloc(&r.noise, NUM_TENSORS * sizeof(double)));
    if (s.documents != NO_DOCUMENTS) { // where heads repeat the first ones, so do rows of documents
        const int rows_apart = r.distinct < s.heads() ? 1 : s.B;
        const std::vector<int> starts = document_starts(s.documents, rows_apart, s.T);
        const size_t row = (size_t)s.T * sizeof(int);
        cuda_check(cudaMalloc(&r.starts, s.B * row));
        for (int b = 0; b < s.B; b++) {
            const int* from = starts.data() + (size_t)(b % rows_apart) * s.T;
            cuda_check(cudaMemcpy(r.starts + (size_t)b * s.T, from, row, cudaMemcpyHostToDevice));
        }
    }
    return r;
}
static inline void reference_free(Reference* r) {
    for (int n = 0; n < NUM_TENSORS; n++) { cuda_check(cudaFree(r->x[n])); }
    cuda_check(cudaFree(r->rows));
    cuda_check(cudaFree(r->noise));
    cuda_check(cudaFree(r->starts));
}
// columns: dk and dv too
static inline void reference_compute(Reference* r, const floatX* qkv, const floatX* dout, bool columns) {
    unsigned blocks = (unsigned)(r->distinct * r->shape.T);
    cuda_check(cudaMemset(r->noise, 0, NUM_TENSORS * sizeof(double)));
    reference_rows<<<blocks, REFERENCE_THREADS>>>(*r, qkv, dout);
    if (columns) { reference_columns<<<blocks, REFERENCE_THREADS>>>(*r, qkv, dout); }
    cuda_check(cudaGetLastError());
}

// The inputs of backward: out, l and m as a correct forward may leave them, with m up to 8 below the maximum.
__global__ void reference_forward_outputs(floatX* out, float* l, float* m, Reference r, uint64_t seed) {
    const Shape s = r.shape;
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; // over (B,NH,T,HS)
    if (n >= s.elements()) { return; }
    int d = (int)(n % s.HS), t = (int)(n / s.HS % s.T), head = (int)(n / s.HS / s.T);
    int64_t row = (int64_t)(head % r.distinct) * s.T + t;
    out[out_offset(head / s.NH, head % s.NH, s.T, s.NH, s.HS) + (int64_t)t * s.NH * s.HS + d] =
        (floatX)(float)r.x[OUT][row * s.HS + d];
    if (d == 0) {
        float used = (float)(r.rows[row].maximum - 7.5 * uniform_at(seed, (uint64_t)row));
        m[n / s.HS] = used;
        l[n / s.HS] = (float)exp(r.rows[row].lse - used);
    }
}

// ----------------------------------------------------------------------------
// Comparison

struct Difference {
    double error2[NUM_TENSORS], reference2[NUM_TENSORS]; // sums of squares over all heads
    unsigned long long not_finite;                       // elements, a tensor left unwritten included
    unsigned worst_lse; // float bits: the largest error of m + log(l) over what is allowed, or inf where m is off
};

// Tensor `which` of x, packed with `group` slots a token: 1 in out, 3 in dqkv, of which this is number `slot`.
__global__ void compare_tensor(Difference* difference, Tensor which, const floatX* x, int group, int slot,
                               Reference r) {
    const Shape s = r.shape;
    double error2 = 0, reference2 = 0;
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < s.elements(); n += gridDim.x * blockDim.x) {
        int d = (int)(n % s.HS), h = (int)(n / s.HS % s.NH);
        int64_t token = n / s.HS / s.NH;
        int t = (int)(token % s.T), head = ((int)(token / s.T) * s.NH + h) % r.distinct;
        double got = (double)(float)x[((token * group + slot) * s.NH + h) * s.HS + d];
        double want = r.x[which][((int64_t)head * s.T + t) * s.HS + d];
        if (!isfinite(got)) { atomicAdd(&difference->not_finite, 1ull); }
        error2 += (got - want) * (got - want);
        reference2 += want * want;
    }
    error2 = reference_sum(error2), reference2 = reference_sum(reference2);
    if (threadIdx.x == 0) {
        atomicAdd(&difference->error2[which], error2);
        atomicAdd(&difference->reference2[which], reference2);
    }
}

__global__ void compare_statistics(Difference* difference, const float* l, const float* m, Reference r) {
    int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; // over (B,NH,T)
    if (n >= r.shape.rows()) { return; }
    int64_t head = n / r.shape.T % r.distinct;
    RowStatistics row = r.rows[head * r.shape.T + n % r.shape.T];
    if (!isfinite(l[n]) || !isfinite(m[n])) { atomicAdd(&difference->not_finite, 1ull); }
    double off = fabs(m[n] + log((double)l[n]) - row.lse) / (2 * row.lse_error);
    bool near_maximum = m[n] <= row.maximum + 2 * row.m_error && m[n] >= row.maximum - 8 - 2 * row.m_error;
    // not a number, too, is the largest of all
    atomicMax(&difference->worst_lse, __float_as_uint(near_maximum && off <= 1e30 ? (float)off : INFINITY));
}

#endif
