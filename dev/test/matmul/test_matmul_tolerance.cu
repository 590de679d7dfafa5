// How far from fp64 a kernel of the matmul competition may be (dev/cuda/matmul/reference.h): sums as tensor cores make them,
// and the neighbours of a GEMM in fp32, stay within it and come near it; faults do not stay within it. Needs no GPU.
#include "dev/cuda/matmul/choice.h"
#include "dev/cuda/matmul/reference.h"
#include "llmc/base/rand.h"
#include "dev/test/fixtures/unit.h"

static const double bf16 = 0x1p-8, fp32 = 0x1p-24;

static double round_to(double x, double u) { // to nearest, ties to even: u = 2^-8 has 8 bits
    int exponent;
    double mantissa = frexp(x, &exponent); // .5 .. 1
    return x == 0 ? 0 : ldexp(rint(mantissa / u), exponent) * u;
}
static double truncated(double x, int below) {
    return ldexp(trunc(ldexp(x, -below)), below);
} // to a multiple of 2^below

// accumulator + the sum of n products as a Hopper tensor core adds: every term is aligned to the largest, of which `aligned`
// bits are kept, and cut off there; so is the sum, to `bits`. Of 16-bit operands these are two more than fp32 has, and fp32's.
static double tensor_core_add(double accumulator, const double* products, int n, int aligned, int bits) {
    int largest, exponent;
    double most = fabs(accumulator), sum;
    for (int k = 0; k < n; k++) { most = fmax(most, fabs(products[k])); }
    if (most == 0) { return 0; }
    frexp(most, &largest);
    sum = truncated(accumulator, largest - aligned);
    for (int k = 0; k < n; k++) { sum += truncated(products[k], largest - aligned); }
    if (sum == 0) { return 0; }
    frexp(sum, &exponent);
    return truncated(sum, exponent - bits);
}

static mt19937_state generator;
static void fill(double* x, int n, double mean, double u) { // N(mean, 1), rounded
    float batch[16];
    for (int i = 0; i < n; i++) {
        if (i % 16 == 0) { normal_(batch, 16, (float)mean, 1.0f, &generator); }
        x[i] = round_to((double)batch[i % 16], u);
    }
}
// 0 where it is exact, also of a bound that allows nothing else
static double ratio_of(double got, Bounded want) { return got == want.value ? 0 : fabs(got - want.value) / want.error; }

// ----------------------------------------------------------------------------
// Sums

enum { LONGEST = 65536 };
static double a[LONGEST], b[LONGEST], products[LONGEST];

// a.b of K numbers of N(mean, 1) in fp64, and as tensor cores of `width` products make it; width 0: by fp32 FMAs
typedef struct {
    double z, squares, got;
} Sum;
static Sum random_sum(int K, int width, double mean, double u = bf16) {
    Sum s = {0, 0, 0};
    float fused = 0;
    fill(a, K, mean, u), fill(b, K, mean, u);
    for (int k = 0; k < K; k++) {
        products[k] = a[k] * b[k];
        s.z += products[k], s.squares += products[k] * products[k];
        fused = fmaf((float)a[k], (float)b[k], fused);
    }
    for (int k = 0; width > 0 && k < K; k += width) {
        s.got = tensor_core_add(s.got, products + k, K - k < width ? K - k : width, 26, 24);
    }
    if (width == 0) { s.got = (double)fused; }
    return s;
}

static void sums_are_within(void) {
    const int lengths[] = {8, 64, 768, 3072, LONGEST}, widths[] = {16, 8, 0};
    const double means[] = {0, 0.5};
    for (int l = 0; l < 5; l++) {
        for (int w = 0; w < 3; w++) {
            for (int m = 0; m < 2; m++) {
                const int K = lengths[l];
                double worst = 0;
                for (int n = 0; n < 400000 / (K + 400); n++) {
                    Sum s = random_sum(K, widths[w], means[m]);
                    worst = worse(worst, fabs(s.got - s.z) / gemm_sum(K, s.z, s.squares).error);
                }
                if (!CHECK(worst <= 1)) { printf("    K %d, %d at a time: %.3g times\n", K, widths[w], worst); }
                if (widths[w] == 8) { CHECK(worst > 0.01); } // what the model is for
            }
        }
    }
}

// The same of e4m3 operands: 32 products at a time, to 14 bits, and every `interval` of them to a sum in fp32
static const double e4m3 = 0x1p-4;
static Sum e4m3_added(Sum s, int K, int interval) {
    float promoted = 0;
    double accumulator = 0;
    for (int k = 0; k < K; k += 32) {
        accumulator = tensor_core_add(accumulator, products + k, K - k < 32 ? K - k : 32, 14, 14);
        if ((k + 32) % interval == 0 || k + 32 >= K) { promoted += (float)accumulator, accumulator = 0; }
    }
    s.got = (double)promoted;
    return s;
}
static Sum e4m3_sum(int K, int interval, double mean) { return e4m3_added(random_sum(K, 0, mean, e4m3), K, interval); }
// The worst error over what is allowed, of at least 400000 products; the bound is of sums of `assumed` products
static double worst_e4m3_sum(int K, int interval, double mean, int assumed = (int)E4M3_INTERVAL) {
    double worst = 0;
    for (int n = 0; n < 400000 / (K + 400) + 6; n++) {
        Sum s = e4m3_sum(K, interval, mean);
        worst = worse(worst, fabs(s.got - s.z) / e4m3_gemm_sum(K, s.z, s.squares, assumed).error);
    }
    return worst;
}

// Within it also where the library begins anew after 512 products only; not where it never does, as with fast accumulation,
// unless that is what the bound is of.
static void e4m3_sums_are_within(void) {
    const int lengths[] = {16, 64, 768, 3072, LONGEST};
    const double means[] = {0, 0.5, 8};
    for (int l = 0; l < 5; l++) {
        const int K = lengths[l];
        for (int m = 0; m < 3; m++) {
            CHECK(worst_e4m3_sum(K, 128, means[m]) <= 1);
            CHECK(worst_e4m3_sum(K, 512, means[m]) <= 1);
            CHECK(worst_e4m3_sum(K, LONGEST, means[m], K) <= 1);
        }
        CHECK(K < 3072 || worst_e4m3_sum(K, LONGEST, 8) > 3);
    }
    CHECK(worst_e4m3_sum(768, 128, 0) > 0.02 && worst_e4m3_sum(768, 512, 8) > 0.2); // what the model is for
    CHECK(worst_e4m3_sum(3072, LONGEST, 0, 3072) > 0.02 && worst_e4m3_sum(3072, LONGEST, 8, 3072) > 0.2);
}

// What fast accumulation loses, squared, and what quantising the operands, of N(0,1), has lost before: sums over 300 results
static void fast_accumulation_loses_less_than_quantising(void) {
    const int lengths[] = {768, 3072, 6400}; // C and 4C of 124M, 4C of 1558M
    for (int l = 0; l < 3; l++) {
        const int K = lengths[l];
        double added = 0, quantised = 0;
        for (int n = 0; n < 300; n++) {
            double exact = 0;
            Sum s = {0, 0, 0};
            fill(a, K, 0, 0x1p-40), fill(b, K, 0, 0x1p-40);
            for (int k = 0; k < K; k++) {
                exact += a[k] * b[k];
                products[k] = round_to(a[k], e4m3) * round_to(b[k], e4m3), s.z += products[k];
            }
            s = e4m3_added(s, K, LONGEST);
            added += (s.got - s.z) * (s.got - s.z), quantised += (s.z - exact) * (s.z - exact);
        }
        const double ratio = sqrt(added / quantised); // .01, .03, .05
        if (!CHECK(e4m3_accumulates_fast(0, K) && ratio < 0.06)) { printf("    K %d: %.3g\n", K, ratio); }
    }
    CHECK(!e4m3_accumulates_fast(0, 50304) && !e4m3_accumulates_fast(1, 768));
}

// Of a sum of K products: the share of outputs at which leaving out products from .. to - 1 is refused
typedef Bounded (*SumBound)(double K, double z, double squares);
static Bounded e4m3_slow_sum(double K, double z, double squares) { return e4m3_gemm_sum(K, z, squares, E4M3_INTERVAL); }
static Bounded e4m3_fast_sum(double K, double z, double squares) { return e4m3_gemm_sum(K, z, squares, K); }
static double refused_without(int K, int from, int to, double p, int outputs, SumBound bound = gemm_sum) {
    int refused = 0;
    for (int n = 0; n < outputs; n++) {
        Sum s = bound == gemm_sum ? random_sum(K, 16, 0) : e4m3_sum(K, bound == e4m3_fast_sum ? LONGEST : 128, 0);
        Bounded want = bound(K, s.z, s.squares);
        for (int k = from; k < to; k++) { s.got -= products[k]; }
        refused += !(ratio_of(round_to(s.got, p), rounded(p, want)) <= 1);
    }
    return (double)refused / outputs;
}
static void products_left_out_are_refused(void) {
    CHECK(refused_without(3072, 0, 0, bf16, 100) == 0);
    CHECK(refused_without(3072, 1024, 1024 + 64, bf16, 100) > 0.9); // a k-block
    CHECK(refused_without(768, 767, 768, bf16, 400) > 0.25);        // one product, behind the last whole block
    CHECK(refused_without(LONGEST, 4096, 4096 + 64, fp32, 30) > 0.9);
    CHECK(refused_without(LONGEST, 1, 2, fp32, 60) > 0.25); // one row of a weight gradient
    CHECK(refused_without(3072, 1024, 1024 + 64, bf16, 100, e4m3_slow_sum) > 0.8);
    CHECK(refused_without(768, 767, 768, bf16, 200, e4m3_slow_sum) > 0.25);
    CHECK(refused_without(3072, 1024, 1024 + 64, bf16, 100, e4m3_fast_sum) > 0.5);
    CHECK(refused_without(768, 767, 768, bf16, 200, e4m3_fast_sum) > 0.1);
    CHECK(refused_without(LONGEST, 4096, 4096 + 64, fp32, 60, e4m3_slow_sum) > 0.5);
}

// ----------------------------------------------------------------------------
// Neighbours, in fp32 from a z that is right

enum { C = 768, ROWS = 200 };
static double row[C], other[C], weight[C], bias[C];

// residual, with and without rounding in between
static void residual(void) {
    double worst = 0;
    int no_bias = 0, next_row = 0;
    fill(row, C, 0, fp32), fill(bias, C, 0, bf16), fill(weight, C, 0, bf16), fill(other, C, 8, bf16);
    for (int c = 0; c < C; c++) {
        Bounded want = residual_of(bf16, Bounded{row[c], 0}, bias[c], other[c]);
        double branch = row[c] + bias[c];
        worst = worse(worst, ratio_of(round_to(branch + other[c], bf16), want));
        worst = worse(worst, ratio_of(round_to(round_to(branch, bf16) + other[c], bf16), want));
        no_bias += !(ratio_of(round_to(row[c] + other[c], bf16), want) <= 1);
        next_row += !(ratio_of(round_to(branch + other[(c + 1) % C], bf16), want) <= 1);
    }
    CHECK(worst <= 1 && worst > 0.5);
    CHECK(no_bias > C / 2 && next_row > C / 2);
}

static void gelu(void) {
    double worst = 0, three_times = 0;
    int squared = 0, sigmoid = 0, other = 0;
    for (int n = -600; n <= 600; n++) {
        const double x = n / 75.0, z = 1.7, pre = round_to(x, bf16), t = gelu_tanh(pre);
        const double approximate = t + copysign(0x1p-10 * 0x1.02p-1, x); // 2^-10.987
        Bounded want = gelu_of(bf16, rounded(bf16, exact(pre))), derivative = gelu_derivative_of(exact(pre));
        Bounded dgelu = dpre_of(bf16, Bounded{z, 0}, gelu_derivative_of(exact(pre)));
        worst = worse(worst, ratio_of(round_to(x / 2 * (1 + gelu_tanh(x)), bf16), want));
        worst = worse(worst, ratio_of(round_to(pre / 2 * (1 + approximate), bf16), want));
        const double slope = gelu_slope(pre);
        const double d = (1 + approximate) / 2 + pre / 2 * (1 - approximate * approximate) * slope;
        worst = worse(worst, ratio_of(d, derivative));
        worst = worse(worst, ratio_of(round_to(round_to(z, bf16) * d, bf16), dgelu));
        // three roundings, each of almost half a unit: that of near, of the derivative and of what they make
        const double near = 1.0117, three = round_to(round_to(near, bf16) * round_to(d, bf16), bf16);
        three_times =
            worse(three_times, ratio_of(three, dpre_of(bf16, Bounded{near, 0}, gelu_derivative_of(exact(pre)))));
        // of a sum that is not stored: the kernel's is rounded, the reference knows x
        const Bounded sum = rounded(bf16, Bounded{x, 0});
        worst = worse(worst, ratio_of(round_to(d, bf16), rounded(bf16, gelu_derivative_of(sum))));
        worst = worse(worst, ratio_of(round_to(pre / 2 * (1 + approximate), bf16), gelu_of(bf16, sum)));
        other += !(ratio_of(round_to(d, bf16), rounded(bf16, gelu_derivative_of(sum + exact(0.1)))) <= 1);
        squared += !(ratio_of(z * ((1 + t) / 2 + pre / 2 * (1 - t) * slope), dgelu) <= 1);
        sigmoid += !(ratio_of(pre / (1 + exp(-1.702 * pre)), want) <= 1);
    }
    CHECK(worst <= 1 && worst > 0.5);
    CHECK(three_times <= 1 && three_times > 0.5);
    CHECK(squared > 200 && sigmoid > 200 && other > 200);
    CHECK_NEAR(gelu_of(fp32, rounded(fp32, exact(1))).value, 0.8411919906, 1e-9);
    CHECK_NEAR(gelu_derivative_of(exact(1)).value, 1.0829640839, 1e-9);
}

// mean and rstd of a row, in fp64
static void norm(double* mean, double* rstd, const double* x) {
    double sum = 0, squares = 0;
    for (int c = 0; c < C; c++) { sum += x[c]; }
    *mean = sum / C;
    for (int c = 0; c < C; c++) { squares += (x[c] - *mean) * (x[c] - *mean); }
    *rstd = 1 / sqrt(squares / C + 1e-5);
}
static Norm norm_of_row(const double* x) {
    double mean, rstd, squares = 0, centred_squares = 0, product_squares = 0;
    norm(&mean, &rstd, x);
    for (int c = 0; c < C; c++) {
        const double centred = x[c] - mean;
        squares += x[c] * x[c], centred_squares += centred * centred,
            product_squares += centred * x[c] * centred * x[c];
    }
    return norm_of(bf16, C, C * mean, squares, centred_squares, product_squares);
}

static void layernorm_forward(void) {
    double worst = 0;
    int twice = 0, no_bias = 0;
    fill(weight, C, 0, bf16), fill(bias, C, 0, bf16);
    for (int n = 0; n < ROWS; n++) {
        double mean, rstd;
        fill(row, C, 0.3, fp32); // before it is rounded
        for (int c = 0; c < C; c++) { row[c] += c % 97 == 5 ? 8 : 0, other[c] = round_to(row[c], bf16); }
        const Norm want = norm_of_row(other);
        for (int stored = 0; stored < 2; stored++) { // from what is stored, or from what was rounded to it
            const double* x = stored ? other : row;
            norm(&mean, &rstd, x);
            worst = worse(worst, worse(ratio_of(mean, want.mean), ratio_of(rstd, want.rstd)));
            for (int c = 0; c < C; c++) {
                Bounded y = normalised(bf16, want, other[c], weight[c], bias[c]);
                worst = worse(worst, ratio_of(round_to((x[c] - mean) * rstd * weight[c] + bias[c], bf16), y));
                no_bias += !(ratio_of(round_to((x[c] - mean) * rstd * weight[c], bf16), y) <= 1);
            }
        }
        twice += !(ratio_of(mean + row[0] / C, want.mean) <= 1); // one column twice
    }
    CHECK(worst <= 1 && worst > 0.1);
    CHECK(no_bias > ROWS * C && twice > ROWS / 4);
}

// Summed as stored in bf16 and before; `mean` of the column
static void column_sums(int rows, double mean) {
    const double before = 0.7;
    double worst = 0;
    int left_out = 0, in_bf16 = 0;
    for (int n = 0; n < 20; n++) {
        Column stored = {0, 0, 0}, unmoved = {0, 0, 0};
        double fused = 0; // of the numbers before rounding
        float sum = 0;
        fill(a, rows, mean, fp32);
        for (int k = 0; k < rows; k++) {
            const double x = round_to(a[k], bf16);
            stored.sum += x, stored.squares += x * x, sum += (float)x, fused += a[k];
        }
        unmoved = stored, stored.term_squares = bf16 * bf16 * stored.squares;
        Bounded want = column_of(stored, rows, before), tight = column_of(unmoved, rows, before);
        worst = worse(worst, worse(ratio_of(fused + before, want), ratio_of((double)sum + before, tight)));
        left_out += !(ratio_of(stored.sum - round_to(a[n], bf16) + before, tight) <= 1);
        in_bf16 += !(ratio_of(round_to(stored.sum, bf16) + before, tight) <= 1); // a bias gradient in bf16
    }
    CHECK(worst <= 1 && worst > 0.003);
    CHECK(left_out >= 10 && in_bf16 >= 10);
}

static void classifier(void) {
    const double scale = 0.5;
    double worst = 0;
    int not_scaled = 0, not_subtracted = 0, padding = 0;
    for (int n = 0; n < ROWS; n++) {
        const int target = n * 3 % C;
        Softmax s = {-INFINITY, 0, 0};
        double sum[2] = {0, 0}, loss, with_padding;
        fill(row, C, 0, fp32);
        for (int c = 0; c < C; c++) { row[c] *= 3, s.maximum = fmax(s.maximum, row[c]); }
        for (int c = 0; c < C; c++) {
            const double p = exp(row[c] - s.maximum);
            s.sum += p, s.error += p * rounded(bf16, Bounded{row[c], 0}).error;
            sum[0] += exp(row[c]), sum[1] += exp(round_to(row[c], bf16));
        }
        s.error /= s.sum;
        for (int r = 0; r < 2; r++) { // logits as they are, and rounded
            Bounded z = {row[target], rounded(bf16, Bounded{row[target], 0}).error};
            Bounded want = loss_of(s, z, 0.25);
            loss = log(sum[r]) - (r ? round_to(row[target], bf16) : row[target]) + 0.25;
            with_padding = loss + log(1 + 0.1); // 47 columns of 0 beside 50257 of N(0,1) weigh less; here 77 of 768
            worst = worse(worst, ratio_of(loss, want));
            padding += !(ratio_of(with_padding, want) <= 1);
            for (int c = 0; c < C; c++) {
                Bounded logit = {row[c], rounded(bf16, Bounded{row[c], 0}).error};
                Bounded d = dlogit_of(bf16, s, logit, c == target, scale);
                const double p = exp(r ? round_to(row[c], bf16) : row[c]) / sum[r];
                worst = worse(worst, ratio_of(round_to(scale * (p - (c == target)), bf16), d));
                not_scaled += !(ratio_of(round_to(p - (c == target), bf16), d) <= 1);
                not_subtracted += c == target && !(ratio_of(round_to(scale * p, bf16), d) <= 1);
            }
        }
    }
    CHECK(worst <= 1 && worst > 0.3);
    CHECK(not_scaled > 2 * ROWS * C * 9 / 10 && not_subtracted == 2 * ROWS && padding > ROWS);
}

int main(void) {
    manual_seed(&generator, 42);
    sums_are_within();
    e4m3_sums_are_within();
    fast_accumulation_loses_less_than_quantising();
    products_left_out_are_refused();
    residual();
    gelu();
    layernorm_forward();
    column_sums(LONGEST, 0);
    column_sums(1024, 8);
    classifier();
    return unit_end();
}
