/*
How far from fp64 a correct kernel of the matmul competition may be: a first-order model of rounding, carried along with each
number (Bounded). dev/test/matmul/test_matmul_tolerance.cu holds it against emulated tensor cores and against faults on the CPU.

An fp32 sum of K terms x_k. s^2 = sum_k x_k^2 is what the sum of terms of random signs is like; the partial sums on the way
to z are then 3 s + |z|/2 on average at most, also where z is the largest of 10^8 elements. Tensor cores add 16 terms at a
time (8 on sm_80) and truncate: a partial sum loses 2^-24 of itself on average each time, always towards zero, so K/8 2^-24
of the path altogether; terms aligned within one addition, and additions rounded to nearest, are off to either side, which
grows with sqrt(K) alone. An error that grows faster is a fault. What is stored in floatX is off by u = 2^-8 (bf16) or
2^-24 of itself. Independent roundings that are summed add as squares: uniform ones of at most t_k stay below
4 sqrt(sum_k t_k^2), 6.9 standard deviations.
*/
#ifndef MATMUL_TOLERANCE_H
#define MATMUL_TOLERANCE_H

#include <math.h>

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

#endif
