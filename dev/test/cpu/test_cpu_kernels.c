// The CPU kernels (llmc/cpu_*.h) against the equations in their head comments, computed in fp64.
//
// Sizes are such that no dimension is a multiple of a tile. Errors are relative in norm, ||x - expected|| /
// ||expected||. A sum of K fp32 terms errs by about sqrt(K) 2^-24 (see reference_test.h); the longest here have K =
// 400, 1.2e-6, and pass through at most three sums and an exponential: 1e-5 leaves room for both and catches any
// wrong term.
#include "llmc/cpu/attention.h"
#include "llmc/cpu/layers.h"
#include "llmc/cpu/matmul.h"
#include "llmc/cpu/muon.h"
#include "llmc/cpu/numbers.h"
#include "dev/test/fixtures/unit.h"

static const double TOLERANCE = 1e-5;

// n numbers in [-scale, scale), the same for the same seed; the caller frees them.
static float* numbers(size_t n, float scale, unsigned seed) {
    float* x = (float*)malloc_check(n * sizeof(float));
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = scale * ((float)(seed >> 8) / 8388608.0f - 1.0f);
    }
    return x;
}

// n NaNs: what a kernel does not write shows.
static float* unwritten(size_t n) {
    float* x = (float*)malloc_check(n * sizeof(float));
    for (size_t i = 0; i < n; i++) { x[i] = NAN; }
    return x;
}

static double relative_error(const float* x, const double* expected, size_t n) {
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < n; i++) {
        difference += ((double)x[i] - expected[i]) * ((double)x[i] - expected[i]);
        norm += expected[i] * expected[i];
    }
    return sqrt(difference / norm);
}

// ----------------------------------------------------------------------------

static void test_exp(void) {
    double worst = 0.0;
    for (float x = -86.9f; x < 87.9f; x += 0.0137f) {
        double expected = exp((double)x), error = fabs((double)vec_exp(vec_set(x))[LANES - 1] - expected) / expected;
        worst = worse(worst, error);
    }
    CHECK(worst <= 2 * ldexp(1, -24)); // one unit in the last place is 2^-24 to 2^-23 of the number
    CHECK(vec_exp(vec_set(0.0f))[0] == 1.0f);
    CHECK(vec_exp(vec_set(-INFINITY))[0] == 0.0f);
    CHECK(vec_exp(vec_set(-1e9f))[0] == 0.0f);
    CHECK(isfinite(vec_exp(vec_set(1e9f))[0]));
    CHECK(isnan(vec_exp(vec_set(NAN))[0]));
}

static void test_transpose(void) {
    vec row[LANES];
    for (int i = 0; i < LANES; i++) {
        for (int j = 0; j < LANES; j++) { row[i][j] = (float)(i * LANES + j); }
    }
    vec_transpose(row);
    int right = 0;
    for (int i = 0; i < LANES; i++) {
        for (int j = 0; j < LANES; j++) { right += row[i][j] == (float)(j * LANES + i); }
    }
    CHECK(right == LANES * LANES);
}

// out = residual + inp weight^T + bias, and its gradients
static void test_matmul(size_t BT, size_t C, size_t OC) {
    float *inp = numbers(BT * C, 1, 1), *weight = numbers(OC * C, 1, 2), *bias = numbers(OC, 1, 3);
    float *residual = numbers(BT * OC, 1, 4), *dout = numbers(BT * OC, 1, 5);
    float *dweight = numbers(OC * C, 1, 6), *dbias = numbers(OC, 1, 7);
    float *out = unwritten(BT * OC), *dinp = unwritten(BT * C);
    double* expected = (double*)calloc_check(BT * OC + BT * C + OC * C + OC, sizeof(double));
    double *e_dinp = expected + BT * OC, *e_dweight = e_dinp + BT * C, *e_dbias = e_dweight + OC * C;
    for (size_t i = 0; i < OC * C; i++) { e_dweight[i] = (double)dweight[i]; }
    for (size_t o = 0; o < OC; o++) { e_dbias[o] = (double)dbias[o]; }
    for (size_t t = 0; t < BT; t++) {
        for (size_t o = 0; o < OC; o++) {
            double sum = (double)residual[t * OC + o] + (double)bias[o], d = (double)dout[t * OC + o];
            for (size_t c = 0; c < C; c++) {
                sum += (double)inp[t * C + c] * (double)weight[o * C + c];
                e_dinp[t * C + c] += d * (double)weight[o * C + c];
                e_dweight[o * C + c] += d * (double)inp[t * C + c];
            }
            expected[t * OC + o] = sum;
            e_dbias[o] += d;
        }
    }
    for (int threads = 1; threads <= 3; threads++) { // the second and third run must repeat the first's bits
        float *out_again = unwritten(BT * OC), *dinp_again = unwritten(BT * C);
        float *dweight_again = numbers(OC * C, 1, 6), *dbias_again = numbers(OC, 1, 7);
        use_threads(threads);
        matmul_forward(out_again, residual, inp, weight, bias, BT, C, OC);
        matmul_backward_input(dinp_again, dout, weight, BT, C, OC);
        matmul_backward_weight(dweight_again, dbias_again, dout, inp, 1, BT, C, OC);
        if (threads == 1) {
            memcpy(out, out_again, BT * OC * sizeof(float));
            memcpy(dinp, dinp_again, BT * C * sizeof(float));
            memcpy(dweight, dweight_again, OC * C * sizeof(float));
            memcpy(dbias, dbias_again, OC * sizeof(float));
        }
        CHECK(memcmp(out, out_again, BT * OC * sizeof(float)) == 0);
        CHECK(memcmp(dinp, dinp_again, BT * C * sizeof(float)) == 0);
        CHECK(memcmp(dweight, dweight_again, OC * C * sizeof(float)) == 0);
        CHECK(memcmp(dbias, dbias_again, OC * sizeof(float)) == 0);
        free(out_again), free(dinp_again), free(dweight_again), free(dbias_again);
    }
    CHECK(relative_error(out, expected, BT * OC) <= TOLERANCE);
    CHECK(relative_error(dinp, e_dinp, BT * C) <= TOLERANCE);
    CHECK(relative_error(dweight, e_dweight, OC * C) <= TOLERANCE);
    CHECK(relative_error(dbias, e_dbias, OC) <= TOLERANCE);

    // without bias and residual, and gradients written rather than added to
    matmul_forward(out, NULL, inp, weight, NULL, BT, C, OC);
    for (size_t i = 0; i < BT * OC; i++) { expected[i] -= (double)residual[i] + (double)bias[i % OC]; }
    CHECK(relative_error(out, expected, BT * OC) <= TOLERANCE);
    float *old_weight = numbers(OC * C, 1, 6), *old_bias = numbers(OC, 1, 7);
    for (size_t i = 0; i < OC * C; i++) { dweight[i] = NAN, e_dweight[i] -= (double)old_weight[i]; }
    for (size_t o = 0; o < OC; o++) { dbias[o] = NAN, e_dbias[o] -= (double)old_bias[o]; }
    matmul_backward_weight(dweight, dbias, dout, inp, 0, BT, C, OC);
    CHECK(relative_error(dweight, e_dweight, OC * C) <= TOLERANCE);
    CHECK(relative_error(dbias, e_dbias, OC) <= TOLERANCE);
    free(inp), free(weight), free(bias), free(residual), free(dout), free(dweight), free(dbias), free(out), free(dinp);
    free(expected), free(old_weight), free(old_bias);
}

// ----------------------------------------------------------------------------

typedef struct {
    double *out, *dqkv, *l, *m;
} AttentionReference;

// One head, in fp64, with the whole (T,T) matrix. q, k, v: rows 3C apart; out, dout: rows C apart. starts (T), or NULL
static void attention_reference(AttentionReference r, const float* qkv, const float* dout, const int* starts, size_t T,
                                size_t C, size_t HS) {
    const float *q = qkv, *k = qkv + C, *v = qkv + 2 * C;
    double *P = (double*)calloc_check(T, sizeof(double)), *dP = (double*)calloc_check(T, sizeof(double));
    double scale = 1.0 / sqrt((double)HS);
    for (size_t i = 0; i < T; i++) {
        double max = -INFINITY, sum = 0.0, D = 0.0;
        const size_t first = starts != NULL ? (size_t)starts[i] : 0;
        for (size_t j = first; j <= i; j++) {
            double s = 0.0;
            for (size_t d = 0; d < HS; d++) { s += (double)q[i * 3 * C + d] * (double)k[j * 3 * C + d]; }
            P[j] = s * scale;
            max = P[j] > max ? P[j] : max;
        }
        for (size_t j = first; j <= i; j++) { sum += P[j] = exp(P[j] - max); }
        r.l[i] = sum, r.m[i] = max;
        for (size_t j = first; j <= i; j++) {
            P[j] /= sum;
            dP[j] = 0.0;
            for (size_t d = 0; d < HS; d++) {
                r.out[i * C + d] += P[j] * (double)v[j * 3 * C + d];
                dP[j] += (double)dout[i * C + d] * (double)v[j * 3 * C + d];
                r.dqkv[j * 3 * C + 2 * C + d] += P[j] * (double)dout[i * C + d];
            }
            D += P[j] * dP[j];
        }
        for (size_t j = first; j <= i; j++) {
            double dS = P[j] * (dP[j] - D) * scale;
            for (size_t d = 0; d < HS; d++) {
                r.dqkv[i * 3 * C + d] += dS * (double)k[j * 3 * C + d];
                r.dqkv[j * 3 * C + C + d] += dS * (double)q[i * 3 * C + d];
            }
        }
    }
    free(P), free(dP);
}

// `scale` is the size of q, k and v. Large ones make scores of +-1e4, where softmax is a step function; then an fp32
// score errs by 1e4 2^-24 = 6e-4, and so may a probability: `tolerance`. starts (B,T), or NULL
static void test_attention(size_t B, size_t T, size_t NH, size_t HS, const int* starts, float scale, double tolerance) {
    size_t C = NH * HS, n = B * T * C;
    float *qkv = numbers(3 * n, scale, 1), *dout = numbers(n, 1, 2);
    float *out = unwritten(n), *l = unwritten(B * NH * T), *m = unwritten(B * NH * T), *dqkv = unwritten(3 * n);
    double* memory = (double*)calloc_check(4 * n + 2 * B * NH * T, sizeof(double));
    double *e_out = memory, *e_dqkv = memory + n, *e_l = e_dqkv + 3 * n, *e_m = e_l + B * NH * T;
    for (size_t b = 0; b < B; b++) {
        for (size_t h = 0; h < NH; h++) {
            size_t at = b * T * C + h * HS, at_qkv = 3 * b * T * C + h * HS, row = (b * NH + h) * T;
            AttentionReference r = {e_out + at, e_dqkv + at_qkv, e_l + row, e_m + row};
            attention_reference(r, qkv + at_qkv, dout + at, starts ? starts + b * T : NULL, T, C, HS);
        }
    }
    for (int threads = 1; threads <= 3; threads += 2) {
        float *out_again = unwritten(n), *dqkv_again = unwritten(3 * n);
        use_threads(threads);
        attention_forward(out_again, l, m, qkv, starts, B, T, NH, HS);
        attention_backward(dqkv_again, dout, qkv, out_again, l, m, starts, B, T, NH, HS);
        if (threads == 1) {
            memcpy(out, out_again, n * sizeof(float));
            memcpy(dqkv, dqkv_again, 3 * n * sizeof(float));
        }
        CHECK(memcmp(out, out_again, n * sizeof(float)) == 0);
        CHECK(memcmp(dqkv, dqkv_again, 3 * n * sizeof(float)) == 0);
        free(out_again), free(dqkv_again);
    }
    CHECK(relative_error(out, e_out, n) <= tolerance);
    CHECK(relative_error(l, e_l, B * NH * T) <= tolerance);
    CHECK(relative_error(m, e_m, B * NH * T) <= TOLERANCE);
    if (scale <= 10.0f) {
        CHECK(relative_error(dqkv, e_dqkv, 3 * n) <= tolerance);
    } else { // a step function: dS is the difference of numbers that are equal but for rounding
        size_t finite = 0;
        for (size_t i = 0; i < 3 * n; i++) { finite += isfinite(dqkv[i]) != 0; }
        CHECK(finite == 3 * n);
    }
    free(qkv), free(dout), free(out), free(l), free(m), free(dqkv), free(memory);
}

// starts (T) of documents of these lengths, again and again
static void starts_of(int* starts, int T, const int* lengths, int n) {
    for (int at = 0, d = 0, begin; at < T; d++) {
        for (begin = at; at < T && at < begin + lengths[d % n]; at++) { starts[at] = begin; }
    }
}

// Boundaries at every offset of a tile, documents within one and over several
static void test_attention_documents(void) {
    enum { T = 300, LISTS = 9 };
    static const int lengths[LISTS][5] = {{1},   {2},      {63},        {64}, {65}, {1, 2, 63, 64, 65},
                                          {300}, {299, 1}, {37, 150, 5}};
    static const int counts[LISTS] = {1, 1, 1, 1, 1, 5, 1, 2, 3};
    for (int k = 0; k < LISTS; k++) {
        int starts[2 * T], other = (k + 1) % LISTS;
        starts_of(starts, T, lengths[k], counts[k]);
        starts_of(starts + T, T, lengths[other], counts[other]);
        test_attention(2, T, 2, k % 2 ? 32 : 96, starts, 2, TOLERANCE);
    }
    int starts[131];
    starts_of(starts, 131, lengths[8], 3);
    test_attention(1, 131, 1, 64, starts, 60, 1e-3); // scores up to 1e4
}

// The middle one of three documents has the same bits whatever stands in the others, and a row of one document those of no
// documents.
static void test_documents_do_not_leak(void) {
    enum { T = 300, HS = 64, BEGIN = 100, END = 230 };
    static const int three[] = {BEGIN, END - BEGIN, T - END}, one[] = {T};
    int starts[T];
    float *out[2], *l[2], *m[2], *dqkv[2];
    for (int run = 0; run < 4; run++) {
        float *qkv = numbers(3 * T * HS, 2, 1), *dout = numbers(T * HS, 1, 2);
        float *other = numbers(3 * T * HS, 9, 3), *dother = numbers(T * HS, 9, 4);
        for (int t = 0; t < T; t++) {
            if (run != 1 || (t >= BEGIN && t < END)) { continue; }
            memcpy(qkv + t * 3 * HS, other + t * 3 * HS, 3 * HS * sizeof(float));
            memcpy(dout + t * HS, dother + t * HS, HS * sizeof(float));
        }
        starts_of(starts, T, run < 2 ? three : one, run < 2 ? 3 : 1);
        const int* given = run == 3 ? NULL : starts;
        int at = run % 2;
        out[at] = unwritten(T * HS), l[at] = unwritten(T), m[at] = unwritten(T), dqkv[at] = unwritten(3 * T * HS);
        attention_forward(out[at], l[at], m[at], qkv, given, 1, T, 1, HS);
        attention_backward(dqkv[at], dout, qkv, out[at], l[at], m[at], given, 1, T, 1, HS);
        free(qkv), free(dout), free(other), free(dother);
        if (at == 0) { continue; }
        size_t begin = run == 1 ? BEGIN : 0, n = run == 1 ? END - BEGIN : T, f = sizeof(float);
        CHECK(memcmp(out[0] + begin * HS, out[1] + begin * HS, n * HS * f) == 0);
        CHECK(memcmp(l[0] + begin, l[1] + begin, n * f) == 0 && memcmp(m[0] + begin, m[1] + begin, n * f) == 0);
        CHECK(memcmp(dqkv[0] + begin * 3 * HS, dqkv[1] + begin * 3 * HS, n * 3 * HS * f) == 0);
        CHECK(run == 3 || memcmp(out[0], out[1], T * HS * f) != 0);
        for (int i = 0; i < 2; i++) { free(out[i]), free(l[i]), free(m[i]), free(dqkv[i]); }
    }
}

// ----------------------------------------------------------------------------

// Rows have deviations of 1 and of 1e-3, where the epsilon counts.
static void test_layernorm(size_t BT, size_t C) {
    float *inp = numbers(BT * C, 2, 1), *weight = numbers(C, 1, 2), *bias = numbers(C, 1, 3),
          *dout = numbers(BT * C, 1, 4);
    float *out = unwritten(BT * C), *mean = unwritten(BT), *rstd = unwritten(BT), *dinp = numbers(BT * C, 1, 5);
    float *dweight = unwritten(C), *dbias = unwritten(C);
    double* memory = (double*)calloc_check(2 * BT * C + 2 * C, sizeof(double));
    double *e_out = memory, *e_dinp = memory + BT * C, *e_dweight = e_dinp + BT * C, *e_dbias = e_dweight + C;
    for (size_t i = 0; i < BT * C; i++) { inp[i] *= i / C % 2 ? 1e-3f : 1.0f; }
    for (size_t t = 0; t < BT; t++) {
        double mu = 0.0, variance = 0.0, mean_g = 0.0, mean_gn = 0.0;
        for (size_t c = 0; c < C; c++) { mu += (double)inp[t * C + c] / (double)C; }
        for (size_t c = 0; c < C; c++) { variance += pow((double)inp[t * C + c] - mu, 2) / (double)C; }
        double r = 1.0 / sqrt(variance + 1e-5);
        for (size_t c = 0; c < C; c++) {
            double n = ((double)inp[t * C + c] - mu) * r, dy = (double)dout[t * C + c], g = dy * (double)weight[c];
            e_out[t * C + c] = n * (double)weight[c] + (double)bias[c];
            mean_g += g / (double)C;
            mean_gn += g * n / (double)C;
            e_dweight[c] += dy * n;
            e_dbias[c] += dy;
        }
        for (size_t c = 0; c < C; c++) {
            double n = ((double)inp[t * C + c] - mu) * r, g = (double)dout[t * C + c] * (double)weight[c];
            e_dinp[t * C + c] = (double)dinp[t * C + c] + r * (g - mean_g - n * mean_gn);
        }
    }
    layernorm_forward(out, mean, rstd, inp, weight, bias, BT, C);
    layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, 1, 0, BT, C);
    CHECK(relative_error(out, e_out, BT * C) <= TOLERANCE);
    CHECK(relative_error(dinp, e_dinp, BT * C) <= TOLERANCE);
    CHECK(relative_error(dweight, e_dweight, C) <= TOLERANCE);
    CHECK(relative_error(dbias, e_dbias, C) <= TOLERANCE);
    layernorm_backward(dinp, dweight, dbias, dout, inp, weight, mean, rstd, 0, 1, BT, C); // adds the same once more
    for (size_t c = 0; c < C; c++) { e_dweight[c] *= 2, e_dbias[c] *= 2; }
    CHECK(relative_error(dweight, e_dweight, C) <= TOLERANCE);
    CHECK(relative_error(dbias, e_dbias, C) <= TOLERANCE);
    free(inp), free(weight), free(bias), free(dout), free(out), free(mean), free(rstd), free(dinp), free(dweight);
    free(dbias), free(memory);
}

static double gelu(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }

static void test_gelu(size_t n) {
    float *x = numbers(n, 8, 1), *y = unwritten(n), *d = numbers(n, 1, 2);
    double *e_y = (double*)malloc_check(n * sizeof(double)), *e_d = (double*)malloc_check(n * sizeof(double));
    const double h = 1e-5; // the central difference errs by h^2 gelu''' / 6 < 1e-10, and by rounding: 1e-15 / h
    for (size_t i = 0; i < n; i++) {
        e_y[i] = gelu((double)x[i]);
        e_d[i] = (double)d[i] * (gelu((double)x[i] + h) - gelu((double)x[i] - h)) / (2 * h);
    }
    gelu_forward(y, x, n);
    gelu_backward(d, x, n);
    CHECK(relative_error(y, e_y, n) <= TOLERANCE);
    CHECK(relative_error(d, e_d, n) <= TOLERANCE);
    free(x), free(y), free(d), free(e_y), free(e_d);
}

static void test_classifier(size_t BT, size_t V, size_t Vp) {
    float *logits = numbers(BT * Vp, 10, 1), *losses = unwritten(BT), *before = numbers(BT * Vp, 10, 1);
    int* targets = (int*)malloc_check(BT * sizeof(int));
    double *e_losses = (double*)calloc_check(BT, sizeof(double)), *e_d = (double*)calloc_check(BT * Vp, sizeof(double));
    for (size_t t = 0; t < BT; t++) {
        double sum = exp((double)logits[t * Vp]);
        targets[t] = (int)(t * 7919 % V);
        for (size_t v = 1; v < V; v++) { sum += exp((double)logits[t * Vp + v]); }
        e_losses[t] = log(sum) - (double)logits[t * Vp + (size_t)targets[t]];
        for (size_t v = 0; v < V; v++) {
            e_d[t * Vp + v] = 0.125 * (exp((double)logits[t * Vp + v]) / sum - ((int)v == targets[t]));
        }
    }
    classifier(losses, logits, targets, 0.0f, 0, BT, V, Vp);
    CHECK(relative_error(losses, e_losses, BT) <= TOLERANCE);
    CHECK(memcmp(logits, before, BT * Vp * sizeof(float)) == 0);
    classifier(losses, logits, targets, 0.125f, 1, BT, V, Vp);
    CHECK(relative_error(losses, e_losses, BT) <= TOLERANCE);
    CHECK(relative_error(logits, e_d, BT * Vp) <= TOLERANCE);
    size_t zeros = 0;
    for (size_t t = 0; t < BT; t++) {
        for (size_t v = V; v < Vp; v++) { zeros += logits[t * Vp + v] == 0.0f; }
    }
    CHECK(zeros == BT * (Vp - V));
    before[V - 1] = NAN;
    classifier(losses, before, targets, 0.0f, 0, BT, V, Vp);
    CHECK(isnan(losses[0]));
    CHECK(BT == 1 || isfinite(losses[1]));
    free(logits), free(losses), free(before), free(targets), free(e_losses), free(e_d);
}

// A token that occurs twice adds up.
static void test_encoder(int by_documents) {
    enum { B = 2, T = 3, C = 70, V = 5 };
    int tokens[B * T] = {1, 4, 1, 1, 0, 2}, starts[B * T], position[B * T] = {0, 1, 2, 0, 1, 2};
    const int e_starts[B * T] = {0, 1, 1, 0, 0, 0};
    document_starts(starts, tokens, 4, B, T);
    CHECK(memcmp(starts, e_starts, sizeof(starts)) == 0);
    for (int bt = 0; by_documents && bt < B * T; bt++) { position[bt] -= e_starts[bt]; }
    const int* given = by_documents ? starts : NULL;
    float *wte = numbers(V * C, 1, 1), *wpe = numbers(T * C, 1, 2), *dout = numbers(B * T * C, 1, 3);
    float *out = unwritten(B * T * C), *dwte = numbers(V * C, 1, 4), *dwpe = numbers(T * C, 1, 5);
    double e_out[B * T * C], e_dwte[V * C], e_dwpe[T * C];
    for (int i = 0; i < V * C; i++) { e_dwte[i] = (double)dwte[i]; }
    for (int i = 0; i < T * C; i++) { e_dwpe[i] = (double)dwpe[i]; }
    for (int bt = 0; bt < B * T; bt++) {
        for (int c = 0; c < C; c++) {
            e_out[bt * C + c] = (double)wte[tokens[bt] * C + c] + (double)wpe[position[bt] * C + c];
            e_dwte[tokens[bt] * C + c] += (double)dout[bt * C + c];
            e_dwpe[position[bt] * C + c] += (double)dout[bt * C + c];
        }
    }
    encoder_forward(out, tokens, given, wte, wpe, B, T, C);
    encoder_backward(dwte, dwpe, dout, tokens, given, B, T, C);
    CHECK(relative_error(out, e_out, B * T * C) <= TOLERANCE);
    CHECK(relative_error(dwte, e_dwte, V * C) <= TOLERANCE);
    CHECK(relative_error(dwpe, e_dwpe, T * C) <= TOLERANCE);
    free(wte), free(wpe), free(dout), free(out), free(dwte), free(dwpe);
}

static void test_adamw(size_t n) {
    const double lr = 0.01, beta1 = 0.9, beta2 = 0.95, eps = 1e-8, decay = 0.1, scale = 0.5;
    float *params = numbers(n, 1, 1), *m = (float*)calloc_check(n, sizeof(float)),
          *v = (float*)calloc_check(n, sizeof(float));
    double* e = (double*)calloc_check(3 * n, sizeof(double));
    for (size_t i = 0; i < n; i++) { e[i] = (double)params[i]; }
    for (int t = 1; t <= 3; t++) {
        float* grads = numbers(n, 1, 10 + (unsigned)t);
        for (size_t i = 0; i < n; i += 2) { grads[i] *= 1e-8f; } // as small as eps
        for (size_t i = 0; i < n; i++) {
            double g = scale * (double)grads[i], *em = e + n + i, *ev = e + 2 * n + i;
            *em = beta1 * *em + (1 - beta1) * g;
            *ev = beta2 * *ev + (1 - beta2) * g * g;
            e[i] -= lr * (*em / (1 - pow(beta1, t)) / (sqrt(*ev / (1 - pow(beta2, t))) + eps) + decay * e[i]);
        }
        CHECK(adamw_update(params, m, v, grads, n, n, (float)lr, (float)beta1, (float)beta2, (float)eps, (float)decay,
                           (float)scale, t) == 0);
        free(grads);
    }
    CHECK(relative_error(params, e, n) <= TOLERANCE);
    CHECK(relative_error(m, e + n, n) <= TOLERANCE);
    CHECK(relative_error(v, e + 2 * n, n) <= TOLERANCE);
    free(params), free(m), free(v), free(e);
}

// X = X / ||X||, and five Newton-Schulz steps, for X (rows, cols), in fp64; always from the left, whatever the shape.
static void orthogonalise_fp64(double* x, size_t rows, size_t cols) {
    double norm = 0.0, *a = (double*)calloc_check(2 * rows * rows + rows, sizeof(double)), *b = a + rows * rows,
           *column = b + rows * rows;
    for (size_t i = 0; i < rows * cols; i++) { norm += x[i] * x[i]; }
    for (size_t i = 0; i < rows * cols; i++) { x[i] /= sqrt(norm) + 1e-7; }
    for (int step = 0; step < 5; step++) {
        for (size_t i = 0; i < rows * rows; i++) {
            a[i] = 0.0;
            for (size_t k = 0; k < cols; k++) { a[i] += x[i / rows * cols + k] * x[i % rows * cols + k]; }
        }
        for (size_t i = 0; i < rows * rows; i++) {
            b[i] = (i / rows == i % rows ? 3.4445 : 0.0) - 4.7750 * a[i];
            for (size_t k = 0; k < rows; k++) { b[i] += 2.0315 * a[i / rows * rows + k] * a[k * rows + i % rows]; }
        }
        for (size_t j = 0; j < cols; j++) {
            for (size_t i = 0; i < rows; i++) { column[i] = x[i * cols + j]; }
            for (size_t i = 0; i < rows; i++) {
                x[i * cols + j] = 0.0;
                for (size_t k = 0; k < rows; k++) { x[i * cols + j] += b[i * rows + k] * column[k]; }
            }
        }
    }
    free(a);
}

// Three steps against fp64. The steps stretch singular values that differ little, so the tolerance is wider than elsewhere.
static void test_muon(size_t rows, size_t cols) {
    const double lr = 0.01, mu = 0.9, decay = 0.1, scale = 0.5;
    size_t n = rows * cols;
    float *params = numbers(n, 1, 1), *momentum = (float*)calloc_check(n, sizeof(float));
    float* scratch = unwritten(muon_scratch(rows, cols));
    double *e = (double*)calloc_check(3 * n + n / LAYOUT_BLOCK + 1, sizeof(double)), *em = e + n, *x = em + n,
           *sums = x + n;
    for (size_t i = 0; i < n; i++) { e[i] = (double)params[i]; }
    for (int t = 1; t <= 3; t++) {
        float* grads = numbers(n, 1, 20 + (unsigned)t);
        for (size_t i = 0; i < n; i++) {
            double g = scale * (double)grads[i];
            em[i] = mu * em[i] + (1.0 - mu) * g;
            x[i] = mu * em[i] + (1.0 - mu) * g;
        }
        orthogonalise_fp64(x, rows, cols);
        double root = 0.2 * sqrt((double)(rows > cols ? rows : cols));
        for (size_t i = 0; i < n; i++) { e[i] -= lr * (root * x[i] + decay * e[i]); }
        CHECK(muon_update(params, momentum, grads, rows, cols, (float)lr, (float)mu, (float)decay, (float)scale,
                          scratch, sums) == 0);
        free(grads);
    }
    CHECK(relative_error(momentum, em, n) <= TOLERANCE);
    CHECK(relative_error(params, e, n) <= 10 * TOLERANCE);
    free(params), free(momentum), free(scratch), free(e);
}

// A matrix with a gradient that is not finite stays as it is, and every weight of it is counted; one without gradients decays.
static void test_muon_keeps(void) {
    enum { ROWS = 48, COLS = 32, N = ROWS * COLS };
    float *params = numbers(N, 1, 1), *before = numbers(N, 1, 1), *momentum = (float*)calloc_check(N, sizeof(float)),
          *grads = numbers(N, 1, 2), *scratch = unwritten(muon_scratch(ROWS, COLS));
    double sums[1];
    grads[77] = INFINITY;
    CHECK(muon_update(params, momentum, grads, ROWS, COLS, 0.1f, 0.9f, 0.1f, 1.0f, scratch, sums) == N);
    CHECK(memcmp(params, before, N * sizeof(float)) == 0 && momentum[77] == 0.0f && momentum[78] != 0.0f);
    memset(grads, 0, N * sizeof(float)), memset(momentum, 0, N * sizeof(float));
    CHECK(muon_update(params, momentum, grads, ROWS, COLS, 0.1f, 0.9f, 0.5f, 1.0f, scratch, sums) == 0);
    int decays = 1;
    for (size_t i = 0; i < N; i++) { decays &= fabsf(params[i] - 0.95f * before[i]) <= 1e-6f; }
    CHECK(decays);
    free(params), free(before), free(momentum), free(grads), free(scratch);
}

// What makes a new weight, or its second moment, not finite: gradient, moments and weight before. The last gives a second
// moment that is infinite and a weight that is not.
static const float bad_updates[][4] = {
    {NAN, 0, 0, 1}, {INFINITY, 0, 0, 1}, {-INFINITY, 0, 0, 1}, {0, NAN, 0, 1},        {0, 0, INFINITY, 1},
    {0, 0, -1, 1},  {0, 0, 0, NAN},      {0, 0, 0, -INFINITY}, {-1, 0, 0, 3.402e38f}, {1e25f, 0, 0, 1}};

// Every seventh weight, the first and the last among them, has a bad update: it stays, with its moments. The others get the
// bits that they get without.
static void test_adamw_keeps(size_t n, float lr) {
    enum { BAD = sizeof(bad_updates) / sizeof(bad_updates[0]) };
    float *good[4], *some[4];
    for (unsigned k = 0; k < 4; k++) { // gradients, moments, weights
        good[k] = numbers(n, 1, k + 1), some[k] = numbers(n, 1, k + 1);
        for (size_t i = 0; i < n; i++) { good[k][i] = some[k][i] = k == 2 ? fabsf(good[k][i]) : good[k][i]; }
        for (size_t i = 0; i < n; i += 7) { some[k][i] = bad_updates[i / 7 % BAD][k]; }
    }
    CHECK(adamw_update(good[3], good[1], good[2], good[0], n, n, lr, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1) == 0);
    CHECK(adamw_update(some[3], some[1], some[2], some[0], n, n, lr, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, 1) == (n + 6) / 7);
    int stay = 1, same = 1;
    for (size_t i = 0; i < n; i++) {
        for (int k = 1; k < 4; k++) {
            const float* expected = i % 7 == 0 ? &bad_updates[i / 7 % BAD][k] : &good[k][i];
            int equal = memcmp(&some[k][i], expected, sizeof(float)) == 0;
            *(i % 7 == 0 ? &stay : &same) &= equal;
        }
    }
    CHECK(stay);
    CHECK(same);
    for (int k = 0; k < 4; k++) { free(good[k]), free(some[k]); }
}

// One number that is not finite among n, wherever it is, and none
static void test_all_finite(size_t n) {
    const float bad[] = {NAN, INFINITY, -INFINITY}, fine[] = {3.4e38f, -3.4e38f, 1e-45f, -0.0f};
    float* x = numbers(n, 1, 1);
    int finite = 1, found = 1;
    for (size_t i = 0; i < n; i += n / 100 + 1) {
        float before = x[i];
        for (int k = 0; k < 4; k++) { x[i] = fine[k], finite &= all_finite(x, n); }
        for (int k = 0; k < 3; k++) { x[i] = bad[k], found &= !all_finite(x, n); }
        x[i] = before;
    }
    x[n - 1] = NAN;
    CHECK(finite && found && !all_finite(x, n) && all_finite(x, n - 1) && all_finite(x, 0));
    free(x);
}

// The same for any number of threads, and another one after any change of one word
static void test_digest(size_t n) {
    float* x = numbers(n, 1, 1);
    uint64_t digests[2];
    for (int threads = 1; threads <= 2; threads++) {
        use_threads(threads);
        digests[threads - 1] = float_digest(x, n);
    }
    CHECK(digests[0] == digests[1]);
    int differ = 1;
    for (size_t i = 0; i < n; i += n / 50 + 1) {
        for (unsigned bit = 0; bit < 32; bit++) {
            uint32_t word;
            memcpy(&word, &x[i], sizeof(word));
            uint32_t changed = word ^ 1u << bit;
            memcpy(&x[i], &changed, sizeof(word));
            differ &= float_digest(x, n) != digests[0];
            memcpy(&x[i], &word, sizeof(word));
        }
    }
    CHECK(differ && float_digest(x, n) == digests[0]);
    if (n > 1) { // words that change places
        float first = x[0];
        x[0] = x[n - 1], x[n - 1] = first;
        CHECK(float_digest(x, n) != digests[0]);
    }
    CHECK(digest_mix(1, 0) != digest_mix((uint64_t)1 << 32 | 1, 0)); // indices beyond 2^32 are not those below
    free(x);
}

static void test_square_blocks(size_t blocks) {
    float* x = numbers(blocks * LAYOUT_BLOCK, 1, 1);
    double* sums[2];
    for (int threads = 1; threads <= 2; threads++) {
        use_threads(threads);
        sums[threads - 1] = (double*)malloc_check(blocks * sizeof(double));
        square_blocks(sums[threads - 1], x, blocks);
    }
    for (size_t b = 0; b < blocks; b++) {
        double sum = 0.0;
        for (size_t i = b * LAYOUT_BLOCK; i < (b + 1) * LAYOUT_BLOCK; i++) { sum += (double)x[i] * (double)x[i]; }
        CHECK_NEAR(sums[0][b], sum, 1e-12 * sum);
        CHECK(sums[0][b] == sums[1][b]);
    }
    x[blocks * LAYOUT_BLOCK - 1] = NAN;
    square_blocks(sums[0], x, blocks);
    CHECK(isnan(sums[0][blocks - 1]) && (blocks == 1 || sums[0][blocks - 2] == sums[1][blocks - 2]));
    free(sums[0]), free(sums[1]), free(x);
}

int main(void) {
    test_exp();
    test_transpose();
    test_matmul(1, 32, 96);
    test_matmul(37, 80, 112);
    test_matmul(130, 400, 80); // 400: more than one step over K forward
    test_matmul(401, 48, 64);  // and in the gradient of the weight
    const size_t head_sizes[] = {32, 64, 96, 128}, lengths[] = {1, 5, 64, 131};
    for (int i = 0; i < 4; i++) {
        for (int j = 0; j < 4; j++) { test_attention(2, lengths[j], 2, head_sizes[i], NULL, 2, TOLERANCE); }
    }
    test_attention(1, 131, 1, 64, NULL, 60, 1e-3); // scores up to 1e4
    test_attention_documents();
    test_documents_do_not_leak();
    test_layernorm(5, 33);
    test_layernorm(67, 96);
    test_gelu(1);
    test_gelu(1003);
    test_classifier(1, 3, 128);
    test_classifier(9, 251, 256);
    test_encoder(0);
    test_encoder(1);
    test_adamw(1001);
    test_muon(96, 32);
    test_muon(48, 48);
    test_muon(32, 80);
    test_muon_keeps();
    test_adamw_keeps(1001, 1e36f);
    test_adamw_keeps(3, 1e36f);
    for (int threads = 1; threads <= 2; threads++) {
        use_threads(threads);
        test_all_finite(1);
        test_all_finite(200001);
    }
    test_digest(1);
    test_digest(100001);
    test_square_blocks(1);
    test_square_blocks(25);
    return unit_end();
}
