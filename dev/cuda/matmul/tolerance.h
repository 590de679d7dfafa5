/*
How far from fp64 a correct kernel of the matmul competition may be: a first-order model of rounding, in plain C, so that
dev/test/matmul/test_matmul_tolerance.c holds it against emulated tensor cores and against faults without a GPU.

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

#ifdef __CUDACC__
#define MATMUL_BOTH __host__ __device__ static inline
#else
#define MATMUL_BOTH static inline
#endif

// The value in fp64, and the largest error of a correct kernel. A check fails on !(|x - value| <= error), so that NaN fails.
typedef struct {
    double value, error;
} MatmulBounded;

#define MATMUL_FP32_ROUNDOFF 0x1p-24
#define MATMUL_SIGMAS 4.0 // times the root of the summed squares of the terms' bounds: 6.9 standard deviations

typedef double MatmulPrecision; // the unit roundoff of the training precision

// The magnitude of the partial sums of z, whose terms' squares sum to `squares`
MATMUL_BOTH double matmul_path(double z, double squares) { return 3 * sqrt(squares) + fabs(z) / 2; }

// The error of z, a sum of K terms that tensor cores accumulate in fp32
MATMUL_BOTH double matmul_sum_error(double K, double z, double squares) {
    return MATMUL_FP32_ROUNDOFF * (K / 8 + 8 * sqrt(K)) * matmul_path(z, squares);
}

// x after rounding to the training precision
MATMUL_BOTH MatmulBounded matmul_rounded(MatmulPrecision p, MatmulBounded x) {
    MatmulBounded r = {x.value, x.error + p * (fabs(x.value) + x.error)};
    return r;
}
// The error of an intermediate, which a kernel may or may not round to the training precision
MATMUL_BOTH double matmul_intermediate_error(MatmulPrecision p, MatmulBounded x) { return matmul_rounded(p, x).error; }

// a + b in fp32, where b is exact
MATMUL_BOTH MatmulBounded matmul_plus(MatmulBounded a, double b) {
    MatmulBounded r = {a.value + b, a.error + MATMUL_FP32_ROUNDOFF * (fabs(a.value + b) + a.error)};
    return r;
}

// ----------------------------------------------------------------------------
// GELU, the tanh approximation. The errors of value and derivative allow for a tanh error of 2^-10.9, that of tanh.approx,
// which cuBLASLt's epilogues may use.

#define MATMUL_TANH_ERROR 0x1.1p-11

MATMUL_BOTH double matmul_gelu_slope(double x) { return 0.7978845608028654 * (1 + 3 * 0.044715 * x * x); }
MATMUL_BOTH double matmul_gelu_tanh(double x) { return tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)); }

// gelu(pre); |gelu'| is at most 1.13.
MATMUL_BOTH MatmulBounded matmul_gelu_of(MatmulPrecision p, MatmulBounded pre) {
    const double x = pre.value;
    MatmulBounded r = {x / 2 * (1 + matmul_gelu_tanh(x)), 1.13 * pre.error + fabs(x) * MATMUL_TANH_ERROR / 2};
    return matmul_rounded(p, r);
}
// gelu(x) of a stored x; a kernel may use the fp32 number before it was rounded to x
MATMUL_BOTH MatmulBounded matmul_gelu(MatmulPrecision p, double x) {
    const MatmulBounded pre = {x, p * fabs(x)};
    return matmul_gelu_of(p, pre);
}
// gelu'(x) of the stored x
MATMUL_BOTH MatmulBounded matmul_gelu_derivative(double x) {
    const double t = matmul_gelu_tanh(x), slope = matmul_gelu_slope(x);
    MatmulBounded r = {(1 + t) / 2 + x / 2 * (1 - t * t) * slope,
                       MATMUL_TANH_ERROR * (0.5 + fabs(x * t) * slope) + 8 * MATMUL_FP32_ROUNDOFF * (1 + fabs(x))};
    return r;
}

// gelu'(pre), stored; |gelu''| is at most 0.8.
MATMUL_BOTH MatmulBounded matmul_derivative_of(MatmulPrecision p, MatmulBounded pre) {
    MatmulBounded r = matmul_gelu_derivative(pre.value);
    r.error += 0.8 * pre.error;
    return matmul_rounded(p, r);
}

// dpre = z derivative, where z may be rounded first
MATMUL_BOTH MatmulBounded matmul_times(MatmulPrecision p, MatmulBounded z, MatmulBounded derivative) {
    const double z_error = matmul_intermediate_error(p, z);
    MatmulBounded r = {z.value * derivative.value,
                       fabs(derivative.value) * z_error + derivative.error * (fabs(z.value) + z_error)};
    return matmul_rounded(p, r);
}
// dpre = z gelu'(pre), where z and the derivative may be rounded first
MATMUL_BOTH MatmulBounded matmul_dgelu(MatmulPrecision p, MatmulBounded z, double pre) {
    MatmulBounded derivative = matmul_gelu_derivative(pre);
    derivative.error = matmul_intermediate_error(p, derivative);
    return matmul_times(p, z, derivative);
}

// residual = skip + (z + bias), where z + bias may be rounded first
MATMUL_BOTH MatmulBounded matmul_residual(MatmulPrecision p, MatmulBounded z, double bias, double skip) {
    MatmulBounded branch = matmul_plus(z, bias);
    branch.error = matmul_intermediate_error(p, branch);
    return matmul_rounded(p, matmul_plus(branch, skip));
}

// ----------------------------------------------------------------------------
// Column sums of a stored tensor, or of the fp32 numbers before they were rounded to it, added in fp32 to `before`. Kernels
// sum in any order, rounding to nearest.

typedef struct {
    double sum, squares; // of the terms, and of their squares
    double term_squares; // sum of the squared errors of the terms
} MatmulColumn;

MATMUL_BOTH MatmulBounded matmul_column(MatmulColumn c, double rows, double before) {
    const double sum_error = 8 * MATMUL_FP32_ROUNDOFF * sqrt(rows) * matmul_path(c.sum, c.squares);
    MatmulBounded r = {c.sum, sum_error + MATMUL_SIGMAS * sqrt(c.term_squares)};
    return matmul_plus(r, before);
}

// ----------------------------------------------------------------------------
// LayerNorm of a row of C channels, from the stored row or the fp32 numbers before they were rounded to it

typedef struct {
    MatmulBounded mean, rstd;
} MatmulNorm;

// From the sums of x, x^2, (x - mean)^2 and ((x - mean) x)^2
MATMUL_BOTH MatmulNorm matmul_norm(MatmulPrecision p, int C, double sum, double squares, double centred_squares,
                                   double product_squares) {
    const double mean = sum / C, variance = centred_squares / C, rstd = 1 / sqrt(variance + 1e-5);
    const double moved = MATMUL_SIGMAS * p * sqrt(squares), turned = MATMUL_SIGMAS * p * sqrt(product_squares);
    // d rstd / rstd = -rstd^2 sum_c (x_c - mean) dx_c / C; sums of C terms; rsqrt to two units in the last place
    const double fp32 = MATMUL_FP32_ROUNDOFF * (C / 8.0 + 8 * sqrt((double)C) + 8);
    MatmulNorm n = {{mean, (moved + matmul_sum_error(C, sum, squares)) / C},
                    {rstd, rstd * (turned / C * rstd * rstd + fp32)}};
    return n;
}

// (x - mean) rstd weight + bias
MATMUL_BOTH MatmulBounded matmul_normalised(MatmulPrecision p, MatmulNorm n, double x, double weight, double bias) {
    const double centred = x - n.mean.value, scale = n.rstd.value * weight;
    const double moved = fabs(scale) * (p * fabs(x) + n.mean.error) + fabs(centred * weight) * n.rstd.error;
    const double fp32 = 4 * MATMUL_FP32_ROUNDOFF * (fabs(scale) * (fabs(x) + fabs(n.mean.value)) + fabs(bias));
    MatmulBounded r = {centred * scale + bias, moved + fp32};
    return matmul_rounded(p, r);
}

// ----------------------------------------------------------------------------
// Cross entropy of a row of logits z, which may be rounded before they are used

typedef struct {
    double maximum, sum; // max of z, sum of exp(z - maximum)
    double error;        // sum_v p_v times the error of z_v
} MatmulSoftmax;

// The relative error of exp(z - maximum) by ex2.approx: 2^-22, and the rounding of its argument
MATMUL_BOTH double matmul_exp_error(double below_maximum) { return 4 * MATMUL_FP32_ROUNDOFF * (2 + below_maximum); }

// losses + log(sum exp z) - z_target
MATMUL_BOTH MatmulBounded matmul_loss(MatmulSoftmax s, MatmulBounded target, double before) {
    const double lse = s.maximum + log(s.sum);
    const double fp32 = matmul_exp_error(16) + 64 * MATMUL_FP32_ROUNDOFF * (1 + fabs(s.maximum) + fabs(lse));
    MatmulBounded r = {lse - target.value, s.error + target.error + fp32};
    return matmul_plus(r, before);
}
// gradient_scale (p_v - [v = target])
MATMUL_BOTH MatmulBounded matmul_dlogit(MatmulPrecision p, MatmulSoftmax s, MatmulBounded z, int is_target,
                                        double scale) {
    const double probability = exp(z.value - s.maximum) / s.sum;
    const double relative = expm1(z.error + s.error + 2 * matmul_exp_error(s.maximum - z.value));
    MatmulBounded r = {scale * (probability - is_target),
                       fabs(scale) * (probability * relative + 4 * MATMUL_FP32_ROUNDOFF)};
    if (!is_target) { r.error = fabs(scale) * probability * (relative + 4 * MATMUL_FP32_ROUNDOFF); }
    return matmul_rounded(p, r);
}

#endif
