/*
What the variants of the matmul groups are checked against: random inputs of two kinds, the GEMMs in fp64 on the GPU, and for
each output the correct value and the error that a correct kernel may make, which test_matmul_tolerance.cu checks on the CPU.

The GEMM of a group is computed for some rows of its result, a random one of each of up to REFERENCE_ROWS parts: all rows in the
sweep's small shapes, a sample in the raced ones to keep them affordable. What a kernel computes from an output that it stores
(LayerNorm, GELU, column sums) is checked against fp64 of that output as stored, in all rows.
*/
#ifndef MATMUL_REFERENCE_H
#define MATMUL_REFERENCE_H

#include <math.h>

#include "matmul.h"
#include "dev/cuda/bench/random.cuh"
#include "llmc/cuda/e4m3.cuh"

constexpr double UNIT_ROUNDOFF = sizeof(floatX) == 4 ? 0x1p-24 : 0x1p-8;

constexpr int REFERENCE_ROWS = 1024;
constexpr int REFERENCE_THREADS = 256;

// ----------------------------------------------------------------------------
// How far from fp64 a correct kernel of the matmul competition may be: a first-order model of rounding, carried along with each
// number (Bounded). test_matmul_tolerance.cu holds it against emulated tensor cores and against faults.
//
// An fp32 sum of K terms x_k. s^2 = sum_k x_k^2 is what the sum of terms of random signs is like; the partial sums on the way
// to z are then 3 s + |z|/2 on average at most, also where z is the largest of 10^8 elements. Tensor cores add 16 terms at a
// time (8 on sm_80) and truncate: a partial sum loses 2^-24 of itself on average each time, always towards zero, so K/8 2^-24
// of the path altogether; terms aligned within one addition, and additions rounded to nearest, are off to either side, which
// grows with sqrt(K) alone. An error that grows faster is a fault. What is stored in floatX is off by u = 2^-8 (bf16) or
// 2^-24 of itself. Independent roundings that are summed add as squares: uniform ones of at most t_k stay below
// 4 sqrt(sum_k t_k^2), 6.9 standard deviations.

#define MATMUL_BOTH __host__ __device__ inline

constexpr double FP32_ROUNDOFF = 0x1p-24;
constexpr double SIGMAS = 4; // times the root of the summed squares of the terms' bounds: 6.9 standard deviations
constexpr double TANH_ERROR = 0x1.1p-11; // that of tanh.approx, 2^-10.9, which cuBLASLt's epilogues may use

// The value in fp64, and the largest error of a correct kernel. A check fails on !(|x - value| <= error), so that NaN fails.
struct Bounded {
    double value, error;
};
MATMUL_BOTH Bounded exact(double x) { return {x, 0}; }
MATMUL_BOTH Bounded operator+(Bounded a, Bounded b) { // in fp32
    const double value = a.value + b.value, error = a.error + b.error;
    return {value, error + FP32_ROUNDOFF * (fabs(value) + error)};
}
MATMUL_BOTH Bounded operator*(Bounded a, Bounded b) { // rounded next
    return {a.value * b.value, fabs(a.value) * b.error + a.error * (fabs(b.value) + b.error)};
}
// x after rounding to a precision of unit roundoff u; or what a kernel may round to it or not
MATMUL_BOTH Bounded rounded(double u, Bounded x) { return {x.value, x.error + u * (fabs(x.value) + x.error)}; }

// The magnitude of the partial sums of z, whose terms' squares sum to `squares`
MATMUL_BOTH double sum_path(double z, double squares) { return 3 * sqrt(squares) + fabs(z) / 2; }
// z, a sum of K terms that tensor cores accumulate in fp32
MATMUL_BOTH Bounded gemm_sum(double K, double z, double squares) {
    return {z, FP32_ROUNDOFF * (K / 8 + 8 * sqrt(K)) * sum_path(z, squares)};
}

// The same of e4m3 operands, whose products of 4 by 4 bits are exact. With each instruction Hopper aligns 32 products and the
// accumulator to the largest of them, and cuts each of the 33, and their sum, to 14 bits: by up to 2^-13 of it, towards
// zero (DeepSeek-V3, 3.5.2; SageAttention2, for the accumulator, on Ada, too). Without fast accumulation the library adds the
// accumulator to a sum in fp32 and begins anew; after how many products cuBLASLt does not say, and CUTLASS does after 128. So
// the largest is about the sum of an interval, and 34 K/32 cuts of random directions add as squares. Those of the accumulator
// and of the sum always make it smaller: half a cut each on average, of partial sums that grow to the interval's share of z.
// The products' do too where these have one sign, that is where their mean nears their root mean square.
constexpr double E4M3_CUT = 0x1p-13, E4M3_STEP = 32, E4M3_INTERVAL = 128;
MATMUL_BOTH Bounded e4m3_gemm_sum(double K, double z, double squares, double interval) {
    const double products = fmin(K, interval), steps = ceil(products / E4M3_STEP), cuts = E4M3_STEP + 2;
    const double largest = sqrt(squares * products / K) + fabs(z) * products / K;
    const double one_sign = squares > 0 ? fmin(1.0, 4 * fabs(z) / sqrt(K * squares)) : 0;
    const double random = SIGMAS * sqrt(cuts * ceil(K / E4M3_STEP)) * largest,
                 systematic = (2 + one_sign * E4M3_STEP) / 2 * (steps + 1) / 2 * fabs(z);
    return {z, gemm_sum(K, z, squares).error + E4M3_CUT * (random + systematic)};
}

// ----------------------------------------------------------------------------
// Outputs, stored in a precision of unit roundoff u. GELU is the tanh approximation.

MATMUL_BOTH double gelu_tanh(double x) { return tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)); }
MATMUL_BOTH double gelu_slope(double x) { return 0.7978845608028654 * (1 + 3 * 0.044715 * x * x); }
// gelu(pre); |gelu'| is at most 1.13.
MATMUL_BOTH Bounded gelu_of(double u, Bounded pre) {
    const double x = pre.value;
    return rounded(u, {x / 2 * (1 + gelu_tanh(x)), 1.13 * pre.error + fabs(x) * TANH_ERROR / 2});
}
// gelu'(pre), not stored; |gelu''| is at most 0.8.
MATMUL_BOTH Bounded gelu_derivative_of(Bounded pre) {
    const double x = pre.value, t = gelu_tanh(x), slope = gelu_slope(x);
    const double error = TANH_ERROR * (0.5 + fabs(x * t) * slope) + 8 * FP32_ROUNDOFF * (1 + fabs(x));
    return {(1 + t) / 2 + x / 2 * (1 - t * t) * slope, error + 0.8 * pre.error};
}
// z times gelu', both of which may be rounded first
MATMUL_BOTH Bounded dpre_of(double u, Bounded z, Bounded derivative) {
    return rounded(u, rounded(u, z) * rounded(u, derivative));
}
// skip + (z + bias), where z + bias may be rounded first
MATMUL_BOTH Bounded residual_of(double u, Bounded z, double bias, double skip) {
    return rounded(u, rounded(u, z + exact(bias)) + exact(skip));
}

// A column's sum, of a stored tensor or of the fp32 numbers before they were rounded to it, added in fp32 to `before`. Kernels
// sum in any order, rounding to nearest.
struct Column {
    double sum, squares; // of the terms, and of their squares
    double term_squares; // sum of the squared errors of the terms
};
MATMUL_BOTH Bounded column_of(Column c, double rows, double before) {
    const double sum_error = 8 * FP32_ROUNDOFF * sqrt(rows) * sum_path(c.sum, c.squares);
    return Bounded{c.sum, sum_error + SIGMAS * sqrt(c.term_squares)} + exact(before);
}

// LayerNorm of a row of C channels, from the stored row or the fp32 numbers before they were rounded to it
struct Norm {
    Bounded mean, rstd;
};
// From the sums of x, x^2, (x - mean)^2 and ((x - mean) x)^2
MATMUL_BOTH Norm norm_of(double u, int C, double sum, double squares, double centred_squares, double product_squares) {
    const double mean = sum / C, variance = centred_squares / C, rstd = 1 / sqrt(variance + 1e-5);
    const double moved = SIGMAS * u * sqrt(squares), turned = SIGMAS * u * sqrt(product_squares);
    // d rstd / rstd = -rstd^2 sum_c (x_c - mean) dx_c / C; sums of C terms; rsqrt to two units in the last place
    const double fp32 = FP32_ROUNDOFF * (C / 8.0 + 8 * sqrt((double)C) + 8);
    return {{mean, (moved + gemm_sum(C, sum, squares).error) / C}, {rstd, rstd * (turned / C * rstd * rstd + fp32)}};
}
// (x - mean) rstd weight + bias
MATMUL_BOTH Bounded normalised(double u, Norm n, double x, double weight, double bias) {
    const double centred = x - n.mean.value, scale = n.rstd.value * weight;
    const double moved = fabs(scale) * (u * fabs(x) + n.mean.error) + fabs(centred * weight) * n.rstd.error;
    const double fp32 = 4 * FP32_ROUNDOFF * (fabs(scale) * (fabs(x) + fabs(n.mean.value)) + fabs(bias));
    return rounded(u, {centred * scale + bias, moved + fp32});
}

// Cross entropy of a row of logits z, which may be rounded before they are used
struct Softmax {
    double maximum, sum; // max of z, sum of exp(z - maximum)
    double error;        // sum_v p_v times the error of z_v
};
// The relative error of exp(z - maximum) by ex2.approx: 2^-22, and the rounding of its argument
MATMUL_BOTH double exp_error(double below_maximum) { return 4 * FP32_ROUNDOFF * (2 + below_maximum); }
// log(sum exp z) - z_target, added to `before`
MATMUL_BOTH Bounded loss_of(Softmax s, Bounded target, double before) {
    const double lse = s.maximum + log(s.sum);
    const double fp32 = exp_error(16) + 64 * FP32_ROUNDOFF * (1 + fabs(s.maximum) + fabs(lse));
    return Bounded{lse - target.value, s.error + target.error + fp32} + exact(before);
}
// scale (p_v - [v = target])
MATMUL_BOTH Bounded dlogit_of(double u, Softmax s, Bounded z, bool is_target, double scale) {
    const double probability = exp(z.value - s.maximum) / s.sum;
    const double relative = expm1(z.error + s.error + 2 * exp_error(s.maximum - z.value));
    const double error = probability * relative + 4 * FP32_ROUNDOFF * (is_target ? 1 : probability);
    return rounded(u, {scale * (probability - is_target), fabs(scale) * error});
}

// ----------------------------------------------------------------------------
// Inputs

// ordinary: N(0,1). outliers: some channels have a mean of 8, like GPT-2's activations, so that sums over rows do not cancel.
enum Pattern { ORDINARY, OUTLIERS, NUM_PATTERNS };
static const char* const pattern_names[NUM_PATTERNS] = {"ordinary", "outlier channels"};

// The distribution of a tensor's elements. SCALED: N(0, 1/K), so that a sum of K products has variance 1
enum Fill { NORMAL, WITH_OUTLIERS, SCALED, WIDE, TARGETS };

struct FillOf {
    Fill fill;
    Pattern pattern;
    int64_t columns; // of the tensor
    float scale;     // of SCALED
    int vocab_size;  // of TARGETS
    uint64_t seed;
};
__device__ inline float fill_at(const FillOf& f, int64_t i) {
    const float x = normal_at(f.seed, i);
    switch (f.fill) {
    case SCALED:
        return x * f.scale;
    case WIDE: // covers the whole curved range of GELU and its derivative
        return 2 * x;
    case WITH_OUTLIERS:
        return f.pattern == OUTLIERS && i % f.columns % 97 == 5 ? x + 8 : x;
    case TARGETS: // any column of the vocabulary, often the first and the last
        return i % 7 == 3 ? 0 : i % 5 == 2 ? f.vocab_size - 1 : (float)(mix(f.seed ^ mix(i)) % (uint64_t)f.vocab_size);
    default:
        return x;
    }
}
template <class T> __global__ void fill_tensor(T* x, int64_t elements, FillOf f) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < elements;
         i += (int64_t)gridDim.x * blockDim.x) {
        x[i] = (T)fill_at(f, i);
    }
}

// *bits = max(*bits, those of the largest |x|): positive floats order as their bits, and NaN follows them
__global__ void largest_magnitude(unsigned* bits, const floatX* x, int64_t elements) {
    unsigned largest = 0;
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < elements;
         i += (int64_t)gridDim.x * blockDim.x) {
        largest = max(largest, __float_as_uint(fabsf((float)x[i])));
    }
    atomicMax(bits, largest);
}
// codes = e4m3 of x (rows, columns) / *scale or, transposed, of x^T, with the scale of x's largest magnitude
__global__ void quantise(uint8_t* codes, float* scale, const unsigned* largest_bits, const floatX* x, int64_t rows,
                         int64_t columns, bool transposed) {
    const float s = e4m3_scale(__uint_as_float(*largest_bits));
    if (blockIdx.x == 0 && threadIdx.x == 0) { *scale = s; }
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < rows * columns;
         i += (int64_t)gridDim.x * blockDim.x) {
        codes[transposed ? i % columns * rows + i / columns : i] = e4m3_of((float)x[i] / s);
    }
}

// ----------------------------------------------------------------------------
// GEMMs in fp64

// Sampled rows, ascending: a random one of each `part` of n; all of them if a part is a row
struct Sample {
    int n, part, count;
    explicit Sample(int n, int part = 1) : n(n), part(part), count(CEIL_DIV(n, part)) {}
    __host__ __device__ int64_t operator[](int64_t i) const {
        if (part == 1) { return i; }
        const int first = (int)i * part, size = n - first < part ? n - first : part;
        return first + (int)((uint32_t)mix(i) % (uint32_t)size);
    }
};

// Element (i, k) of a matrix, of its i-th sampled row, with a row stride of `row` elements and a column stride of `column`
struct Operand {
    const floatX* x;
    int64_t row, column;
    Sample rows;
    const uint8_t* codes = nullptr; // if it is in e4m3, instead of x; with its scale
    const float* scale = nullptr;
    __device__ double at(int64_t i, int64_t k) const {
        const int64_t n = rows[i] * row + k * column;
        return codes ? (double)*scale * e4m3_value(codes[n]) : (double)(float)x[n];
    }
};

// d(i,j) = sum_k A(i,k) B(j,k), d (A.rows, B.rows), with the error of an fp32 sum or, of codes, of one in which tensor cores
// begin anew after `interval` products. Tiles of 64x64, 4x4 elements a thread.
__global__ void __launch_bounds__(REFERENCE_THREADS)
    reference_gemm(Bounded* d, Operand A, Operand B, int64_t K, int interval) {
    constexpr int TILE = 64, STEP = 8;
    __shared__ double a[STEP][TILE + 1], b[STEP][TILE + 1];
    const int64_t i0 = (int64_t)blockIdx.x * TILE, j0 = (int64_t)blockIdx.y * TILE;
    const int ti = threadIdx.x / 16, tj = threadIdx.x % 16;
    double sum[4][4] = {}, squares[4][4] = {};
    auto load = [&](double(&s)[STEP][TILE + 1], const Operand& X, int64_t first, int64_t k0) {
        for (int n = threadIdx.x; n < TILE * STEP; n += REFERENCE_THREADS) {
            const int i = X
            .column == 1 ? n / STEP : n % TILE, k = X
            .column == 1 ? n % STEP : n / TILE;
            s[k][i] = first + i < X
            .rows.count&& k0 + k < K ? X
            .at(first + i, k0 + k) : 0;
        }
    };
    for (int64_t k0 = 0; k0 < K; k0 += STEP) {
        __syncthreads();
        load(a, A, i0, k0);
        load(b, B, j0, k0);
        __syncthreads();
        for (int k = 0; k < STEP; k++) {
#pragma unroll
            for (int m = 0; m < 4; m++) {
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    const double x = a[k][ti + 16 * m] * b[k][tj + 16 * n];
                    sum[m][n] += x;
                    squares[m][n] += x * x;
                }
            }
        }
    }
#pragma unroll
    for (int m = 0; m < 4; m++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
            const int64_t i = i0 + ti + 16 * m, j = j0 + tj + 16 * n;
            if (i >= A.rows.count || j >= B.rows.count) { continue; }
            d[i * B.rows.count + j] = A.codes ? e4m3_gemm_sum((double)K, sum[m][n], squares[m][n], interval)
                                              : gemm_sum((double)K, sum[m][n], squares[m][n]);
        }
    }
}

// ----------------------------------------------------------------------------
// Sums over rows, a thread block each, and over columns

// norms (rows) of the stored x (rows, C)
__global__ void __launch_bounds__(REFERENCE_THREADS) reference_norms(Norm* norms, const floatX* x, int C) {
    const floatX* row = x + (int64_t)blockIdx.x * C;
    double sum = 0, squares = 0, centred_squares = 0, product_squares = 0;
    for (int c = threadIdx.x; c < C; c += REFERENCE_THREADS) {
        const double v = (double)(float)row[c];
        sum += v, squares += v * v;
    }
    sum = reference_sum(sum), squares = reference_sum(squares);
    for (int c = threadIdx.x; c < C; c += REFERENCE_THREADS) {
        const double v = (double)(float)row[c], centred = v - sum / C;
        centred_squares += centred * centred, product_squares += centred * v * centred * v;
    }
    centred_squares = reference_sum(centred_squares), product_squares = reference_sum(product_squares);
    if (threadIdx.x == 0) {
        norms[blockIdx.x] = norm_of(UNIT_ROUNDOFF, C, sum, squares, centred_squares, product_squares);
    }
}

// softmax (z's rows) of the first V of Vp logits
__global__ void __launch_bounds__(REFERENCE_THREADS)
    reference_softmax(Softmax* softmax, const Bounded* z, int V, int Vp) {
    const Bounded* row = z + (int64_t)blockIdx.x * Vp;
    double maximum = -INFINITY, sum = 0, error = 0;
    for (int v = threadIdx.x; v < V; v += REFERENCE_THREADS) { maximum = fmax(maximum, row[v].value); }
    maximum = reference_max(maximum);
    for (int v = threadIdx.x; v < V; v += REFERENCE_THREADS) {
        const double p = exp(row[v].value - maximum);
        sum += p, error += p * rounded(UNIT_ROUNDOFF, row[v]).error;
    }
    sum = reference_sum(sum), error = reference_sum(error);
    if (threadIdx.x == 0) { softmax[blockIdx.x] = {maximum, sum, error / sum}; }
}

// sums (n) over the rows of x (rows, n), which a kernel may have summed before they were rounded to floatX. A thread block per
// 32 columns.
__global__ void __launch_bounds__(REFERENCE_THREADS) reference_columns(Column* sums, const floatX* x, int rows, int n) {
    __shared__ Column partial[REFERENCE_THREADS];
    const int column = blockIdx.x * 32 + threadIdx.x % 32;
    Column c = {};
    for (int64_t row = threadIdx.x / 32; row < rows && column < n; row += REFERENCE_THREADS / 32) {
        const double v = (double)(float)x[row * n + column];
        c.sum += v, c.squares += v * v;
    }
    partial[threadIdx.x] = c;
    __syncthreads();
    if (threadIdx.x >= 32 || column >= n) { return; }
    for (int k = threadIdx.x + 32; k < REFERENCE_THREADS; k += 32) {
        c.sum += partial[k].sum, c.squares += partial[k].squares;
    }
    c.term_squares = UNIT_ROUNDOFF * UNIT_ROUNDOFF * c.squares;
    sums[column] = c;
}

// ----------------------------------------------------------------------------
// The expected value of each output

enum class Want { // what an output is
    LINEAR,       // z + bias, of groups that have one
    FP32,         // z in fp32
    RESIDUAL,
    MEAN,
    RSTD,
    LN,
    GELU,           // of the stored pre
    GELU_OF_LINEAR, // act, if fc does not store z + bias
    DERIVATIVE,     // gelu'(z + bias)
    DPRE,
    COLUMN_SUM, // the columns are rows of the output
    LOSS,
    DLOGIT
};

struct Expected {
    MatmulTensors t;      // of the launch
    int rows, vocab_size; // of the case
    const Bounded* z;     // (samples, N): the GEMM
    int N;
    const Norm* norms;      // (rows), of the stored residual
    const Softmax* softmax; // (samples), of z
    const Column* sums;     // (columns)
    const float* before;    // what an output that is added to held before

    static __device__ double number(const floatX* x, int64_t n) { return (double)(float)x[n]; }
    // The element (row, column), which is of the i-th sampled row
    __device__ Bounded value(Want want, int64_t i, int64_t row, int64_t column) const {
        const double u = UNIT_ROUNDOFF;
        const int64_t n = row * N + column;
        const auto sum = [&] { return z[i * N + column]; };
        const auto linear = [&] { return rounded(u, sum() + exact(t.bias ? number(t.bias, column) : 0)); };
        switch (want) {
        case Want::LINEAR:
            return linear();
        case Want::FP32:
            return sum() + exact(0);
        case Want::RESIDUAL:
            return residual_of(u, sum(), number(t.bias, column), number(t.skip, n));
        case Want::MEAN:
            return norms[row].mean;
        case Want::RSTD:
            return norms[row].rstd;
        case Want::LN:
            return normalised(u, norms[row], number(t.residual, n), number(t.ln_weight, column),
                              number(t.ln_bias, column));
        case Want::GELU: // a kernel may use the fp32 number before it was rounded to pre
            return gelu_of(u, rounded(u, exact(number(t.pre, n))));
        case Want::GELU_OF_LINEAR:
            return gelu_of(u, linear());
        case Want::DERIVATIVE:
            return rounded(u, gelu_derivative_of(linear()));
        case Want::DPRE:
            return dpre_of(u, sum(),
                           t.derivative ? exact(number(t.derivative, n)) : gelu_derivative_of(exact(number(t.pre, n))));
        case Want::COLUMN_SUM:
            return column_of(sums[row], rows, (double)before[row]);
        case Want::LOSS: // of logits that a kernel may round
            return loss_of(softmax[i], rounded(u, z[i * N + t.targets[row]]), (double)before[row]);
        default: // DLOGIT
            if (column >= vocab_size) { return {0, 0}; }
            return dlogit_of(u, softmax[i], rounded(u, sum()), t.targets[row] == column, (double)t.gradient_scale);
        }
    }
};

// ----------------------------------------------------------------------------
// Comparing

struct Difference {
    unsigned long long not_finite; // elements: not finite, or not written
    double error2, reference2;     // sums of squares
    unsigned long long worst; // high word: largest error / tolerance, as a float's bits; low word: the element's index
};
// An output (., columns) at the sampled rows, each times its factor unless factors is nullptr
template <class T> struct Output {
    const T* x;
    int columns;
    Sample rows;
    const float* factors;
    __device__ double at(int64_t row, int64_t column) const {
        return (double)(float)x[row * columns + column] * (factors ? (double)factors[row] : 1);
    }
};
template <class T> __global__ void __launch_bounds__(REFERENCE_THREADS)
    compare_elements(Difference* difference, Output<T> output, const __grid_constant__ Expected expected, Want want) {
    double error2 = 0, reference2 = 0;
    unsigned long long not_finite = 0, worst = 0;
    const int64_t elements = (int64_t)output.rows.count * output.columns;
    for (int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; n < elements;
         n += (int64_t)gridDim.x * blockDim.x) {
        const int64_t i = n / output.columns, column = n % output.columns, row = output.rows[i];
        const Bounded bounded = expected.value(want, i, row, column);
        const double got = output.at(row, column), error = fabs(got - bounded.value);
        // NaN counts as the largest; an error of 0 passes a tolerance of 0
        const double ratio = error <= 1e30 * bounded.error ? error * (1 / bounded.error) : 1e30;
        const float over = error == 0 ? 0 : (float)ratio;
        if (!isfinite(got)) { not_finite++; }
        error2 += error * error, reference2 += bounded.value * bounded.value;
        const unsigned long long bits = (unsigned long long)__float_as_uint(over) << 32 | (unsigned)n;
        worst = bits > worst ? bits : worst; // positive floats order as their bits
    }
    error2 = reference_sum(error2), reference2 = reference_sum(reference2);
    atomicMax(&difference->worst, worst);
    if (not_finite) { atomicAdd(&difference->not_finite, not_finite); }
    if (threadIdx.x == 0) {
        atomicAdd(&difference->error2, error2);
        atomicAdd(&difference->reference2, reference2);
    }
}
// *count += the number of elements of `sum` that differ in bits from before + overwritten
__global__ void count_other_sums(unsigned long long* count, const float* sum, const float* before,
                                 const float* overwritten, int64_t n) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        if (__float_as_uint(sum[i]) != __float_as_uint(before[i] + overwritten[i])) { atomicAdd(count, 1ull); }
    }
}

#endif
