/*
Training in fp8 (dev/cuda/matmul/fp8.cuh) on one GPU: quantising against its definition; loss and gradients of the committed
dump against PyTorch, within what the same rounding does there (dev/reference/rounding.py); the first step, which has no scales
yet, against bf16; the same bits again, and from scales that were saved; scales that follow the largest magnitudes; numbers
that are not finite. Needs a GPU that has fp8.
*/
#include "train_gpt2.cu"
#include "dev/test/whole/reference_test.h"

#include <vector>

template <class T> struct OnDevice {
    T* data;
    size_t n;
    explicit OnDevice(size_t n_) : n(n_) {
        cuda_check(cudaMalloc(&data, n * sizeof(T)));
        cuda_check(cudaMemset(data, 0xff, n * sizeof(T)));
    }
    ~OnDevice() { cudaFree(data); }
    void set(const std::vector<T>& x) { cuda_check(cudaMemcpy(data, x.data(), n * sizeof(T), cudaMemcpyHostToDevice)); }
    std::vector<T> get() const {
        std::vector<T> x(n);
        cuda_check(cudaMemcpy(x.data(), data, n * sizeof(T), cudaMemcpyDeviceToHost));
        return x;
    }
};

// The code of x, but of what is not finite NaN's; the sign of 0 is not looked at.
static bool is_code_of(uint8_t code, float x, float scale) {
    const uint8_t expected = isfinite(x) ? e4m3_of(x / scale) : 0x7f;
    return code == expected || (expected == 0x7f && (code & 0x7f) == 0x7f) || (x == 0 && (code & 0x7f) == 0);
}

// Where the code of number i of (R,C) is, in rows and in columns
static size_t in_rows(size_t i, int C) { return i / C * C + code_at((int)(i % C)); }
static size_t in_columns(size_t i, int R, int C) { return i % C * R + code_at((int)(i / C)); }

// Counts are of 128 rows of every 4096, in the codes (R,C)
static void check_counts(const char* name, const std::vector<CodeCounts>& found, const std::vector<uint8_t>& rows,
                         int C) {
    CodeCounts expected = {};
    for (size_t i = 0; i < rows.size() / C * C; i++) {
        const int magnitude = rows[i] & 0x7f;
        if (i / C % 4096 < 128) {
            expected.codes++, expected.zeros += magnitude == 0, expected.largest += magnitude == 0x7e;
        }
    }
    const CodeCounts n = found[0];
    reference_row(name, "counts",
                  n.codes == expected.codes && n.zeros == expected.zeros && n.largest == expected.largest);
}

// Codes of x (R,C), alone and with those of its transpose, between bytes that stay as they were; the largest magnitude.
static void check_quantize(int R, int C, float scale, float special) {
    const size_t n = (size_t)R * C, guard = 64;
    std::vector<floatX> x(n);
    float largest = 0.25f; // there before
    uint32_t seed = 7;
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (floatX)(ldexpf((float)(seed >> 8) / 8388608.0f - 1.0f, (int)(seed >> 3 & 15) - 8));
    }
    x[n - 1] = (floatX)special;
    for (floatX v : x) { largest = fmaxf(largest, fabsf((float)v)); }
    if (!isfinite(special)) { largest = fabsf(special); }
    OnDevice<floatX> from(n);
    OnDevice<uint8_t> rows(n + guard), columns(n + guard);
    OnDevice<float> scales(1);
    OnDevice<CodeCounts> counts(1);
    from.set(x), scales.set({scale}), counts.set({{0, 0, 0}});
    char name[64];
    snprintf(name, sizeof(name), "quantize %d x %d, %g", R, C, (double)special);
    bool right = true, kept = true, magnitude = true;
    for (bool both : {false, true}) {
        OnDevice<unsigned> amax(1);
        amax.set({0x3e800000}); // 0.25
        cuda_check(cudaMemset(rows.data, 0xaa, rows.n));
        cuda_check(cudaMemset(columns.data, 0xaa, columns.n));
        quantize(rows.data, both ? columns.data : NULL, both ? NULL : amax.data, StoredSource{from.data}, scales.data,
                 R, C, 0, NULL, NULL, QuantizeBatch(), both ? counts.data : NULL);
        check(status_now());
        const std::vector<uint8_t> r = rows.get(), c = columns.get();
        if (both) { check_counts(name, counts.get(), {r.begin(), r.begin() + n}, C); }
        for (size_t i = 0; i < n; i++) {
            right = right && is_code_of(r[in_rows(i, C)], (float)x[i], scale);
            const size_t at = in_columns(i, R, C);
            right = right && (both ? is_code_of(c[at], (float)x[i], scale) : c[at] == 0xaa);
        }
        for (size_t i = n; i < n + guard; i++) { kept = kept && r[i] == 0xaa && c[i] == 0xaa; }
        const float got = __builtin_bit_cast(float, amax.get()[0]), expected = both ? 0.25f : largest;
        magnitude = magnitude && (isnan(expected) ? isnan(got) : got == expected);
        if (both) { continue; }
        amax.set({0x3e800000});
        collect_amax(amax.data, from.data, n, 0);
        const float alone = __builtin_bit_cast(float, amax.get()[0]);
        magnitude = magnitude && (isnan(expected) ? isnan(alone) : alone == expected);
    }
    reference_row(name, "codes", right);
    reference_row(name, "bytes behind", kept);
    reference_row(name, "largest", magnitude);
}

// ----------------------------------------------------------------------------
// Sources, against fp64: a code is the nearest or, where fp32 may round to the other side of the middle, the next one.

static std::vector<floatX> random_numbers(size_t n, float size, uint32_t seed) {
    std::vector<floatX> x(n);
    for (floatX& v : x) {
        seed = seed * 1664525u + 1013904223u;
        v = (floatX)(size * ((float)(seed >> 8) / 8388608.0f - 1.0f));
    }
    return x;
}
template <class T> static OnDevice<T>* on_device(const std::vector<T>& x) {
    OnDevice<T>* d = new OnDevice<T>(x.size());
    d->set(x);
    return d;
}

// error: of `expected`, beside that of fp32
static bool is_near(uint8_t code, double expected, float scale, double error = 0) {
    const double size = fabs(expected) / scale;
    const double spacing = ldexp(scale, (int)floor(log2(fmax(size, 0x1p-6))) - 3);
    const double clamped = size > 448 ? copysign(448 * scale, expected) : expected;
    return fabs(scale * e4m3_value(code) - clamped) <= 0.5 * spacing + 1e-5 * (fabs(clamped) + scale) + error;
}

// Codes in both orders, the largest magnitude, and with `sums` what is added to the column sums
template <class Source> static void check_source(const char* name, const Source& source,
                                                 const std::vector<double>& expected, int R, int C, float scale,
                                                 bool sums) {
    const double smallest = 0x1p-9 * scale, dither = dithers<Source> ? smallest / 2 : 0;
    OnDevice<uint8_t> rows((size_t)R * C), columns((size_t)R * C);
    OnDevice<unsigned> amax(1);
    OnDevice<float> scales(1), sum(C), scratch(quantize_scratch_bytes(R, C) / sizeof(float));
    amax.set({0}), scales.set({scale}), sum.set(std::vector<float>(C, 0.5f));
    quantize(rows.data, columns.data, amax.data, source, scales.data, R, C, 0, sums ? sum.data : NULL, scratch.data);
    check(status_now());
    const std::vector<uint8_t> r = rows.get(), c = columns.get();
    const std::vector<float> total = sum.get();
    size_t wrong = 0;
    double largest = 0, small = 0, rounded = 0; // small: sum of those that nearest would make 0; and of their codes
    for (size_t i = 0; i < r.size(); i++) {
        const uint8_t code = r[in_rows(i, C)];
        wrong += !is_near(code, expected[i], scale, dither) || code != c[in_columns(i, R, C)];
        wrong += expected[i] == 0 && (code & 0x7f) != 0;
        largest = fmax(largest, fabs(expected[i]));
        if (fabs(expected[i]) < smallest / 2) { small += expected[i], rounded += scale * e4m3_value(code); }
    }
    if (dithers<Source>) { // each becomes 0 or the smallest: their sum's variance is at most small * smallest
        const bool near = fabs(rounded - small) < 4 * sqrt(small * smallest);
        reference_row(name, "small ones are right on average", small > 400 * smallest && near);
    }
    const float got = __builtin_bit_cast(float, amax.get()[0]);
    reference_row(name, "codes", wrong == 0);
    reference_row(name, "largest", fabs(got - largest) <= 1e-5 * largest);
    size_t off = 0;
    for (int k = 0; k < C && sums; k++) {
        double exact = 0.5, size = 0.5;
        for (int i = 0; i < R; i++) { exact += expected[(size_t)i * C + k], size += fabs(expected[(size_t)i * C + k]); }
        off += !(fabs(total[k] - exact) <= 1e-5 * size);
    }
    if (sums) { reference_row(name, "column sums", off == 0); }
}

// Rows in int8, each with such a scale, beside the codes in columns, which are e4m3 with one scale
static void check_int8_rows(const char* name, const uint8_t* rows, const uint8_t* columns, float scale,
                            const std::vector<double>& expected, const std::vector<float>& row_scales, int R, int C) {
    size_t off = 0, wrong = 0;
    for (size_t i = 0; i < (size_t)R * C; i++) {
        const double code = (int8_t)rows[in_rows(i, C)], exact = expected[i] / row_scales[i / C];
        off += !(fabs(code - exact) <= 0.5 + 1e-3);
        wrong += !is_near(columns[in_columns(i, R, C)], expected[i], scale);
    }
    reference_row(name, "rows", off == 0);
    reference_row(name, "columns", wrong == 0);
}

// Of two tensors of a batch: the scales of rows, rounded up to bf16; magnitudes; codes
static void check_int8_weights(const OnDevice<floatX>& x, const std::vector<double>& numbers, int R, int C) {
    const int rows = 128, stride = rows * C;
    OnDevice<nv_bfloat16> scales((size_t)2 * R);
    OnDevice<unsigned> amax(2);
    OnDevice<float> e4m3_scales(8); // at 0 and 4, as in an array of E4m3Scale
    OnDevice<uint8_t> codes((size_t)R * C), columns((size_t)R * C);
    amax.set({0, 0}), e4m3_scales.set({0x1p-6f, 0, 0, 0, 0x1p-5f, 0, 0, 0});
    const QuantizeBatch batch = {2, (size_t)stride, 1};
    int8_scales(scales.data, R, amax.data, x.data, rows, C, 0, batch);
    quantize(codes.data, columns.data, NULL, Int8StoredSource{{x.data, (size_t)stride}, scales.data, (size_t)R},
             e4m3_scales.data, rows, C, 0, NULL, NULL, batch);
    check(status_now());
    const std::vector<uint8_t> r = codes.get(), c = columns.get();
    const std::vector<nv_bfloat16> s = scales.get();
    const std::vector<unsigned> largest = amax.get();
    for (int second : {0, 1}) {
        const std::vector<double> its(numbers.begin() + second * stride, numbers.begin() + (second + 1) * stride);
        std::vector<float> found(rows);
        size_t off = 0;
        double most = 0;
        for (int i = 0; i < rows; i++) {
            double of_row = 0;
            for (int k = 0; k < C; k++) { of_row = fmax(of_row, fabs(its[(size_t)i * C + k])); }
            found[i] = (float)s[second * R + i];
            off += !(found[i] * 127 >= of_row * (1 - 1e-6) && found[i] * 127 <= of_row * (1 + 0x1p-6));
            most = fmax(most, of_row);
        }
        reference_row("weights in int8", "scales", off == 0);
        reference_row("weights in int8", "largest", __builtin_bit_cast(float, largest[second]) == (float)most);
        check_int8_rows("weights in int8", &r[second * stride], &c[second * stride], second ? 0x1p-5f : 0x1p-6f, its,
                        found, rows, C);
    }
}

static double gelu_of(double x) { return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }
static double gelu_slope(double x) {
    const double u = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x), t = tanh(u);
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
}

static void check_sources(void) {
    const int R = 272, C = 208, V = 200;
    const size_t n = (size_t)R * C;
    const std::vector<floatX> x = random_numbers(n, 4, 1), d = random_numbers(n, 0.01f, 2), w = random_numbers(C, 1, 3),
                              b = random_numbers(C, 1, 4);
    std::vector<float> mean(R), rstd(R), losses(R, 0.25f);
    std::vector<int> targets(R);
    for (int i = 0; i < R; i++) { mean[i] = 0.01f * i - 1, rstd[i] = 0.2f + 0.001f * i, targets[i] = i * 7 % V; }
    OnDevice<floatX>*dx = on_device(x), *dd = on_device(d), *dw = on_device(w), *db = on_device(b);
    OnDevice<float>*dmean = on_device(mean), *drstd = on_device(rstd), *dlosses = on_device(losses);
    OnDevice<int>* dtargets = on_device(targets);
    OnDevice<float2> statistics(R);
    std::vector<double> expected(n);

    for (size_t i = 0; i < n; i++) {
        expected[i] =
            ((double)(float)x[i] - mean[i / C]) * rstd[i / C] * (double)(float)w[i % C] + (double)(float)b[i % C];
    }
    check_source("LayerNorm", LayerNormSource{dx->data, dmean->data, drstd->data, dw->data, db->data}, expected, R, C,
                 0x1p-6f, false);
    std::vector<float> row_scales(R, 0.0f);
    for (size_t i = 0; i < n; i++) { row_scales[i / C] = fmaxf(row_scales[i / C], (float)fabs(expected[i]) / 127); }
    OnDevice<float>*drow_scales = on_device(row_scales), *scale = on_device(std::vector<float>{0x1p-6f});
    OnDevice<uint8_t> rows(n), columns(n);
    quantize(rows.data, columns.data, NULL,
             Int8LayerNormSource{{dx->data, dmean->data, drstd->data, dw->data, db->data}, drow_scales->data},
             scale->data, R, C, 0);
    check(status_now());
    check_int8_rows("LayerNorm in int8", rows.get().data(), columns.get().data(), 0x1p-6f, expected, row_scales, R, C);
    delete drow_scales, delete scale;
    for (size_t i = 0; i < n; i++) { expected[i] = (float)x[i]; }
    check_int8_weights(*dx, expected, R, C);
    check_source("stored", StoredSource{dx->data}, expected, R, C, 0x1p-6f, false);
    for (size_t i = 0; i < n; i++) { expected[i] = gelu_of((float)x[i]); }
    check_source("GELU", GeluSource{dx->data}, expected, R, C, 0x1p-6f, false);
    for (size_t i = 0; i < n; i++) { expected[i] = (double)(float)d[i] * gelu_slope((float)x[i]); }
    const float act_scale = 0x1p-6f;
    OnDevice<uint8_t> act_columns(n);
    OnDevice<float>* dact_scale = on_device(std::vector<float>{act_scale});
    check_source("GELU's gradient", GeluGradientSource{dd->data, dx->data, act_columns.data, dact_scale->data},
                 expected, R, C, 0x1p-15f, true);
    const std::vector<uint8_t> act = act_columns.get();
    size_t wrong = 0;
    for (size_t i = 0; i < n; i++) { wrong += !is_near(act[in_columns(i, R, C)], gelu_of((float)x[i]), act_scale); }
    reference_row("GELU's gradient", "columns of GELU", wrong == 0);

    const float gradient_scale = 1.0f / 4096;
    classifier_statistics(statistics.data, dlosses->data, dx->data, dtargets->data, gradient_scale, R, V, C, 0);
    const std::vector<float> loss = dlosses->get();
    size_t off = 0;
    for (int i = 0; i < R; i++) {
        double sum = 0;
        for (int v = 0; v < V; v++) { sum += exp((double)(float)x[(size_t)i * C + v]); }
        for (int v = 0; v < C; v++) {
            const double p = v < V ? exp((double)(float)x[(size_t)i * C + v]) / sum : 0;
            expected[(size_t)i * C + v] = gradient_scale * (p - (v == targets[i]));
        }
        off += !(fabs(loss[i] - 0.25 - (log(sum) - (double)(float)x[(size_t)i * C + targets[i]])) < 1e-4);
    }
    reference_row("gradient of logits", "losses", off == 0);
    // with a scale of which many are below the smallest number
    check_source("gradient of logits",
                 LogitGradientSource{dx->data, statistics.data, dtargets->data, gradient_scale, V}, expected, R, C,
                 32 * e4m3_scale(gradient_scale), false);
    delete dact_scale, delete dx, delete dd, delete dw, delete db, delete dmean, delete drstd, delete dlosses,
        delete dtargets;
}

// The fused GEMMs of the MLP against fp64: pre, codes in both orders, magnitudes, dbias. Tensor cores keep 14 bits of what they
// add: 34 cuts for 32 products, each of at most 2^-13 of the largest number, which is about the root of the products' squares
// (PROTOCOL.md). Directions are random here, so the cuts add as squares; four times that is allowed.
static double cuts_of(int C) { return 4 * sqrt(34.0 * C / 32) * 0x1p-13; }
// So many int8 codes, at most this large
static std::vector<uint8_t> random_int8(size_t n, int most, uint32_t seed) {
    std::vector<uint8_t> codes(n);
    for (uint8_t& code : codes) {
        seed = seed * 1664525u + 1013904223u;
        code = (uint8_t)((int)(seed >> 8) % (2 * most + 1) - most);
    }
    return codes;
}
static std::vector<double> decoded(const std::vector<uint8_t>& codes) {
    std::vector<double> x;
    for (uint8_t code : codes) { x.push_back(e4m3_value(code)); }
    return x;
}
static void check_fused(int R, int C) {
    const int N = 4 * C;
    const size_t n = (size_t)R * N;
    const double cuts = cuts_of(C);
    std::vector<uint8_t> a((size_t)R * C), b((size_t)N * C);
    uint32_t seed = 3;
    for (std::vector<uint8_t>* codes : {&a, &b}) {
        for (uint8_t& code : *codes) {
            seed = seed * 1664525u + 1013904223u;
            code = e4m3_of((float)(seed >> 8) / 8388608.0f - 1.0f);
        }
    }
    std::vector<floatX> bias = random_numbers(N, 1, 5);
    std::vector<uint8_t> a8 = random_int8((size_t)R * C, 127, 8), b8 = random_int8((size_t)N * C, 16, 9);
    std::vector<float> row_scales(R);
    std::vector<nv_bfloat16> b_row_scales(N);
    for (int j = 0; j < N; j++) { b_row_scales[j] = (nv_bfloat16)(0.02f + 0.01f * (float)(j % 2)); }
    // a column whose pre is below 8 by 2.5 times the row's largest, and would be 8 in rows beyond R
    for (int i = 0; i < R; i++) { a8[(size_t)i * C] = 127, row_scales[i] = 8e-4f * (float)(1 + i % 3); }
    memset(&b8[(size_t)(N - 2) * C], 0, C);
    b8[(size_t)(N - 2) * C] = (uint8_t)-127, bias[N - 2] = (floatX)8.0f;
    // of zeros the codes are those of 0 times infinity
    row_scales[R / 2] = 0, memset(&a8[(size_t)(R / 2) * C], 0xff, C);
    const float a_scale = 0.25f, b_scale = 0.125f, act_scale = 0x1p-6f, dpre_scale = 0x1p-7f;
    const std::vector<double> x_a = decoded(a), x_b = decoded(b);
    std::vector<double> z(n), size(n); // a b^T, and the root of the sum of its terms' squares
    for (size_t i = 0; i < n; i++) {
        double sum = 0, squares = 0;
        for (int k = 0; k < C; k++) {
            const double x = x_a[i / N * C + k] * x_b[i % N * C + k];
            sum += x, squares += x * x;
        }
        z[i] = a_scale * b_scale * sum, size[i] = a_scale * b_scale * sqrt(squares);
    }
    OnDevice<uint8_t>*da = on_device(a), *db = on_device(b), *da8 = on_device(a8), *db8 = on_device(b8);
    OnDevice<float>*scales = on_device(std::vector<float>{a_scale, 0, 0, 0, b_scale, 0, 0, 0, act_scale, dpre_scale}),
    *drow_scales = on_device(row_scales);
    OnDevice<nv_bfloat16>* db_row_scales = on_device(b_row_scales);
    OnDevice<floatX>* dbias_in = on_device(bias);
    OnDevice<floatX> pre(n);
    OnDevice<uint8_t> rows(n), columns(n), act_columns(n);
    OnDevice<unsigned> amax(2);
    OnDevice<float> dbias(N), scratch(quantize_scratch_bytes(R, N) / sizeof(float));
    OnDevice<CodeCounts> counts(1);
    counts.set({{0, 0, 0}});
    amax.set({0, 0}), dbias.set(std::vector<float>(N, 0.5f));
    MatmulTensors t = {};
    t.a = da8->data, t.b = db8->data, t.a_row_scales = drow_scales->data, t.b_row_scales = db_row_scales->data;
    t.bias = dbias_in->data, t.pre = pre.data;
    check(fp8_fc(&t, {rows.data, NULL, NULL, scales->data + 8, NULL, amax.data, counts.data}, {R, C, N, 0}, 0));
    OnDevice<floatX> out(n);
    t.out = out.data;
    check(fp8_qkv(&t, {R, C, N, 0}, 0));
    const std::vector<floatX> x = pre.get(), of_qkv = out.get();
    std::vector<uint8_t> codes = rows.get();
    size_t off = 0, qkv_off = 0, wrong = 0;
    float largest = 0;
    for (size_t i = 0; i < n; i++) {
        double sum = 0; // int8 is added exactly
        for (int k = 0; k < C; k++) { sum += (int8_t)a8[i / N * C + k] * (int8_t)b8[i % N * C + k]; }
        sum *= (double)row_scales[i / N] * (double)(float)b_row_scales[i % N];
        const double expected = sum + (double)(float)bias[i % N];
        const double error = ldexp(fabs(expected), -8) + 1e-6 * (fabs(sum) + 1);
        off += !(fabs((float)x[i] - expected) <= error), qkv_off += !(fabs((float)of_qkv[i] - expected) <= error);
        wrong += !is_near(codes[in_rows(i, N)], gelu_of((float)x[i]), act_scale);
        largest = fmaxf(largest, fabsf((float)gelu_of((float)x[i])));
    }
    char name[64];
    snprintf(name, sizeof(name), "fused fc %d x %d", R, C);
    check_counts(name, counts.get(), codes, N);
    reference_row(name, "pre", off == 0);
    reference_row("qkv", name, qkv_off == 0);
    reference_row(name, "codes", wrong == 0);
    reference_row(name, "largest", fabsf(__builtin_bit_cast(float, amax.get()[0]) - largest) <= 1e-5f * largest);

    t.a = da->data, t.b = db->data, t.a_scale = scales->data, t.b_scale = scales->data + 4;
    t.bias = NULL, t.dbias = dbias.data;
    counts.set({{0, 0, 0}});
    check(fp8_dgelu(
        &t, {rows.data, columns.data, act_columns.data, scales->data + 9, scales->data + 8, amax.data + 1, counts.data},
        {R, N, C, 0}, scratch.data, 0));
    codes = rows.get();
    const std::vector<uint8_t> dpre_columns = columns.get(), act = act_columns.get();
    const std::vector<float> total = dbias.get();
    std::vector<double> sums(N, 0.5), allowed(N, 1e-3);
    size_t other = 0, wrong_act = 0;
    double most = 0;
    off = wrong = 0;
    for (size_t i = 0; i < n; i++) {
        const size_t at = in_columns(i, R, N);
        const double slope = gelu_slope((float)x[i]), expected = z[i] * slope, error = cuts * size[i] * fabs(slope);
        const uint8_t code = codes[in_rows(i, N)];
        wrong += !is_near(code, expected, dpre_scale, error + 1e-5 * fabs(z[i])); // near 0, slope is a difference
        other += code != dpre_columns[at];
        wrong_act += !is_near(act[at], gelu_of((float)x[i]), act_scale);
        sums[i % N] += expected, allowed[i % N] += error;
        most = fmax(most, fabs(expected));
    }
    for (int j = 0; j < N; j++) { off += !(fabs(total[j] - sums[j]) <= allowed[j]); }
    snprintf(name, sizeof(name), "fused dgelu %d x %d", R, C);
    reference_row(name, "codes", wrong == 0);
    check_counts(name, counts.get(), codes, N);
    reference_row(name, "columns", other == 0);
    reference_row(name, "columns of GELU", wrong_act == 0);
    reference_row(name, "dbias", off == 0);
    reference_row(name, "largest", fabs(__builtin_bit_cast(float, amax.get()[1]) - most) <= 0.01 * most);

    bias[N - 1] = (floatX)INFINITY;
    dbias_in->set(bias), t.bias = dbias_in->data;
    t.a = da8->data, t.b = db8->data;
    check(fp8_fc(&t, {rows.data, NULL, NULL, scales->data + 8, NULL, amax.data, NULL}, {R, C, N, 0}, 0));
    codes = rows.get();
    bool hidden = false;
    for (size_t i = N - 1; i < n; i += N) { hidden = hidden || (codes[in_rows(i, N)] & 0x7f) != 0x7f; }
    reference_row("fused fc", "infinity is not hidden", !hidden);
    row_scales[0] = NAN, drow_scales->set(row_scales), bias[N - 1] = (floatX)0.0f, dbias_in->set(bias);
    check(fp8_fc(&t, {rows.data, NULL, NULL, scales->data + 8, NULL, amax.data, NULL}, {R, C, N, 0}, 0));
    codes = rows.get();
    bool nan = true;
    for (int j = 0; j < N; j++) { nan = nan && (codes[j] & 0x7f) == 0x7f; }
    reference_row("fused fc", "a row that is not finite", nan);
    delete da, delete db, delete da8, delete db8, delete scales, delete drow_scales, delete db_row_scales,
        delete dbias_in;
}

// The fused classifier: logits within the bound above; losses and statistics are those of the logits as stored, also where sums
// of e^logit leave fp32's range. Padding gets no gradient (LogitGradientSource).
static void check_classifier(int R, int C, int V, float a_largest) {
    const int Vp = size_round_up(V, 64);
    const float gradient_scale = 0x1p-19f;
    const std::vector<uint8_t> a = random_int8((size_t)R * C, 127, 3), b = random_int8((size_t)Vp * C, 127, 4);
    std::vector<float> row_scales(R);
    std::vector<nv_bfloat16> b_row_scales(Vp);
    for (int v = 0; v < Vp; v++) { b_row_scales[v] = (nv_bfloat16)(0.001f * (float)(1 - v % 5 / 8.0)); }
    std::vector<int> targets(R);
    for (int i = 0; i < R; i++) { targets[i] = i * 7 % V, row_scales[i] = a_largest / 127 * (float)(1 + i % 4) / 4; }
    const MatmulSizes s = {R, C, Vp, V};
    OnDevice<uint8_t>*da = on_device(a), *db = on_device(b);
    OnDevice<float>* drow_scales = on_device(row_scales);
    OnDevice<nv_bfloat16>* db_row_scales = on_device(b_row_scales);
    OnDevice<int>* dtargets = on_device(targets);
    OnDevice<float>* losses = on_device(std::vector<float>(R, 0.25f));
    OnDevice<floatX> logits((size_t)R * Vp);
    OnDevice<float2> statistics(R);
    OnDevice<float> scratch(fp8_classifier_scratch_bytes(s) / sizeof(float));
    MatmulTensors t = {};
    t.a = da->data, t.b = db->data, t.a_row_scales = drow_scales->data, t.b_row_scales = db_row_scales->data;
    t.logits = logits.data, t.losses = losses->data, t.targets = dtargets->data, t.gradient_scale = gradient_scale;
    check(fp8_classifier(&t, statistics.data, s, scratch.data, 0));
    const std::vector<floatX> found = logits.get();
    const std::vector<float2> of_row = statistics.get();
    const std::vector<float> loss = losses->get();
    size_t wrong_logits = 0, wrong_losses = 0, wrong_statistics = 0;
    for (int i = 0; i < R; i++) {
        const floatX* row = &found[(size_t)i * Vp];
        double largest = -INFINITY, sum = 0;
        for (int v = 0; v < V; v++) {
            double z = 0;
            for (int k = 0; k < C; k++) { z += (int8_t)a[(size_t)i * C + k] * (int8_t)b[(size_t)v * C + k]; }
            z *= (double)row_scales[i] * (double)(float)b_row_scales[v];
            wrong_logits += !(fabs((float)row[v] - z) <= 1.001 * ldexp(fabs(z), -8));
            largest = fmax(largest, (float)row[v]);
        }
        for (int v = 0; v < V; v++) { sum += exp((float)row[v] - largest); }
        const double expected = 0.25 + largest + log(sum) - (double)(float)row[targets[i]];
        wrong_losses += !(fabs(loss[i] - expected) <= 1e-4 + 1e-6 * (fabs(expected) + fabs(largest)));
        for (int v = 0; v < V; v++) {
            const double p = exp((float)row[v] - largest) / sum;
            const double got = exp2((float)row[v] * M_LOG2E + of_row[i].x) * of_row[i].y / gradient_scale;
            wrong_statistics += !(fabs(got - p) <= 1e-4 * p + 1e-30);
        }
    }
    char name[64];
    snprintf(name, sizeof(name), "fused classifier %d x %d x %d, %g", R, C, V, (double)a_largest);
    reference_row(name, "logits", wrong_logits == 0);
    reference_row(name, "losses", wrong_losses == 0);
    reference_row(name, "statistics", wrong_statistics == 0);
    delete da, delete db, delete drow_scales, delete db_row_scales, delete dtargets, delete losses;
}

// Of two processes' magnitudes the larger, with headroom; 1 of zeros; what is not finite leaves a scale, or makes it 1 where
// there is none.
static void check_scales(void) {
    const float largest = 448;
    OnDevice<E4m3Scale> scales(7);
    OnDevice<float> amax(14);
    const float half = 0.5f; // below what 448 needs
    scales.set({{0, 3}, {8, 3}, {8, 3}, {8, 3}, {0, 3}, {8, 3}, {half, 3}});
    OnDevice<int> longest(1);
    amax.set({largest, 1, 0, NAN, NAN, 3, largest, 1, 2 * largest, 0, 1, 1, INFINITY, 1});
    OnDevice<CodeCounts> counts(7), total(1);
    counts.set(std::vector<CodeCounts>(7, {100, 10, 1})), total.set({{0, 0, 0}});
    OnDevice<float> result(2);
    const float expected[] = {2, 4, 1, 8, 1, 8, 2};
    const std::vector<E4m3Scale> before = scales.get();
    const QuantizedStep step = {result.data, result.data + 1, counts.data, total.data, longest.data};
    for (float norm : {INFINITY, 1.0f}) { // of a step that changes no weight, and of one that does
        const bool applied = isfinite(norm);
        result.set({1, norm}), longest.set({2});
        scales_of(scales.data, amax.data, 2, 7, 2, 0, step);
        check(status_now());
        const std::vector<E4m3Scale> now = scales.get();
        bool right = true, saturated = true;
        for (int i = 0; i < 7; i++) {
            right = right && now[i].value == (applied ? expected[i] : before[i].value);
            saturated = saturated && now[i].saturated == (!applied ? 3 : i == 6 ? 4 : 0);
        }
        reference_row("scales of two processes", applied ? "" : "of a step not applied", right);
        reference_row("the tensor that saturated", "", saturated && longest.get()[0] == (applied ? 4 : 3));
    }
    const CodeCounts n = total.get()[0];
    reference_row("counts of all tensors", "twice", n.codes == 1400 && n.zeros == 140 && n.largest == 14);
}

// ----------------------------------------------------------------------------
// A model

struct Run {
    GPT2* model;
    const DebugState* state;
    std::vector<float> gradients;
    float loss, norm;

    Run(GPT2Settings settings, GPT2Config config, const float* params, const DebugState* s)
        : model(reference_model(settings, config, params, s)), state(s) {}
    ~Run() { gpt2_free(model); }
    void pass(void) {
        const GPT2Info* info = gpt2_info(model);
        gradients.resize(info->num_parameters);
        check(gpt2_forward(model, state->x, state->B, state->T));
        check(gpt2_backward(model, state->x, state->y, 1, 0));
        check(gpt2_grad_norm(model, &norm));
        check(gpt2_get_gradients(model, gradients.data()));
        loss = info->mean_loss;
    }
    // With a learning rate of 0: the weights stay, and the next pass has scales.
    void update(float rate) { check(gpt2_update(model, rate, 0.9f, 0.95f, 1e-8f, 0, 0, 1)); }
    uint64_t bits(void) const { return reference_bits(gradients.data(), gradients.size()); }
    std::vector<float> masters(void) const {
        std::vector<float> w(gpt2_info(model)->num_parameters);
        check(gpt2_copy_out(model, w.data(), GPT2_MASTER_WEIGHTS, 0, w.size() * sizeof(float)));
        return w;
    }
    std::vector<float> scales(void) const {
        std::vector<float> s(gpt2_num_scales(model));
        check(gpt2_get_scales(model, s.data()));
        return s;
    }
};

// A tensor may err 1.5 times as much as PyTorch with the same rounding, and by half of it at least: bf16 a tenth.
static void check_errors(const Run& run, const DebugState* state, const ReferenceTolerances* tolerances) {
    const GPT2Info* info = gpt2_info(run.model);
    size_t offset = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; offset += info->table[i++].count) {
        char name[64], least[80];
        ReferenceError error = {0, 0};
        reference_add(&error, run.gradients.data() + offset, state->gradients + offset, info->table[i].count);
        snprintf(name, sizeof(name), "gradient of %s", info->table[i].name);
        const double expected = reference_tolerance(tolerances, name, 0) / 3, relative = reference_relative(error);
        reference_check(name, relative, 1.5 * expected);
        snprintf(least, sizeof(least), "%s is of fp8", name);
        reference_row(least, "", relative >= 0.5 * expected);
    }
    reference_check("loss", fabs((double)run.loss - (double)state->loss), reference_tolerance(tolerances, "loss", 0));
}

static GPT2Settings fp8_settings(void) {
    GPT2Settings settings = gpt2_default_settings();
    settings.fp8 = 1;
    return settings;
}

// fused: on Hopper, with the kernels that serve there; 0: with those of other GPUs
static void check_dump(const char* dump, int fused) {
    char model_path[512], state_path[512];
    snprintf(model_path, sizeof(model_path), "%s.bin", dump);
    snprintf(state_path, sizeof(state_path), "%s_debug_state.bin", dump);
    GPT2Config config;
    float* params;
    int unchecked;
    check(weights_load(&params, model_path, &config, &unchecked));
    DebugState state = debug_state_read(state_path, config);
    ReferenceTolerances tolerances = {};
    reference_read_measured(&tolerances, state_path, fused ? "int8" : "fp8");

    GPT2Settings bf16 = gpt2_default_settings();
    bf16.recompute = 0;
    Run plain(bf16, config, params, &state), run(fp8_settings(), config, params, &state);
    run.model->fp8.fused = fused;
    plain.pass();
    run.pass();
    reference_row("no scales before an update", "", run.scales()[0] == 0);
    reference_check_same("the first step is bf16's", run.bits(), plain.bits());
    // After a first step that is not finite there are none either.
    const floatX infinite = (floatX)INFINITY, first = (floatX)params[0];
    check(gpt2_copy_in(run.model, GPT2_WEIGHTS, &infinite, 0, sizeof(floatX)));
    run.pass();
    run.update(0);
    check(gpt2_copy_in(run.model, GPT2_WEIGHTS, &first, 0, sizeof(floatX)));
    run.pass();
    reference_check_same("and after one that was not finite", run.bits(), plain.bits());
    reference_row("still no scales", "", run.scales()[0] == 0);
    run.update(0);
    run.pass();
    check_errors(run, &state, &tolerances);
    const uint64_t bits = run.bits();
    const std::vector<float> scales = run.scales();
    run.pass();
    reference_check_same("again", run.bits(), bits);
    float loss, loss_of_bf16; // of another batch: nothing of this one's first pass, which was bf16's, may be left
    check(gpt2_validate(run.model, &loss, state.y, state.x, state.B, state.T));
    check(gpt2_validate(plain.model, &loss_of_bf16, state.y, state.x, state.B, state.T));
    reference_row("validation is bf16's", "", loss == loss_of_bf16);
    reference_row("and no pass of training", "",
                  gpt2_backward(run.model, state.x, state.y, 1, 0) == STATUS_ERROR &&
                      strstr(status_message(), "no gpt2_forward before it"));
    check(gpt2_forward(run.model, state.x, state.B, state.T));
    float logits;
    reference_row("nor logits of one", "",
                  gpt2_get_logits(run.model, &logits, 0) == STATUS_ERROR && strstr(status_message(), "gpt2_evaluate"));
    run.pass();
    reference_check_same("after a validation", run.bits(), bits);
    run.update(0); // from the magnitudes that fp8's operands have
    size_t near = 0;
    const std::vector<float> next = run.scales();
    for (size_t i = 0; i < scales.size(); i++) { near += next[i] / scales[i] >= 0.5f && next[i] / scales[i] <= 2; }
    reference_row("scales stay near", "", near == scales.size());

    Run resumed(fp8_settings(), config, params, &state);
    resumed.model->fp8.fused = fused;
    check(gpt2_set_scales(resumed.model, scales.data()));
    const size_t lnf = (size_t)state.B * state.T * config.channels * sizeof(floatX);
    cuda_check(cudaMemset(resumed.model->acts.lnf, 0xff, lnf)); // NaN, where no pass of fp8 has a tensor
    resumed.pass();
    reference_check_same("from saved scales", resumed.bits(), bits);
    char found[256];
    check(gpt2_find_non_finite(resumed.model, found, sizeof(found)));
    reference_row("all numbers are finite", found, found[0] == '\0');
    std::vector<float> stale = scales;
    for (float& s : stale) { s *= 1 / 64.0f; }
    check(gpt2_set_scales(resumed.model, stale.data()));
    resumed.pass();
    reference_row("other scales, other bits", "", resumed.bits() != bits && isfinite(resumed.loss));
    resumed.update(0);
    check(gpt2_synchronize(resumed.model));
    reference_row("saturated, they recover", "", resumed.scales()[0] >= scales[0] / 2);
    reference_row("which is said", "", gpt2_info(resumed.model)->saturated_steps == 1);
    for (int step = 0; step < 6; step++) {
        resumed.pass();
        resumed.update(0);
    }
    check(gpt2_synchronize(resumed.model));
    reference_row("until it ends", "", gpt2_info(resumed.model)->saturated_steps == 0);
    const unsigned long long counted = gpt2_info(resumed.model)->codes.counted;
    resumed.pass();
    resumed.update(0);
    check(gpt2_synchronize(resumed.model));
    reference_row("counts are of one step", "", counted > 0 && gpt2_info(resumed.model)->codes.counted == counted);

    // A weight that is not finite, in each GEMM: the loss or the norm is not finite either, and the update changes nothing.
    for (int tensor : {PARAMETER_qkvw, PARAMETER_fcprojw, PARAMETER_wte}) {
        Run broken(fp8_settings(), config, params, &state);
        broken.pass();
        broken.update(0);
        size_t offset = 0;
        for (int i = 0; i < tensor; i++) { offset += gpt2_info(broken.model)->table[i].count; }
        check(gpt2_copy_in(broken.model, GPT2_WEIGHTS, &infinite, offset * sizeof(floatX), sizeof(floatX)));
        broken.pass();
        reference_row(gpt2_info(broken.model)->table[tensor].name, "infinite",
                      !isfinite(broken.loss) || !isfinite(broken.norm));
        const std::vector<float> scales_before = broken.scales(), weights_before = broken.masters();
        broken.update(1);
        reference_row(gpt2_info(broken.model)->table[tensor].name, "scales stay", broken.scales() == scales_before);
        reference_row(gpt2_info(broken.model)->table[tensor].name, "weights stay", broken.masters() == weights_before);
    }
    debug_state_free(&state);
    free(params);
}

// A batch whose classifier goes by four pieces and has its operands in the logits' buffer, beside bf16. Gradients may err twice
// as much as the worst of tiny_heads_fp8_errors.csv.
static void check_pieces(void) {
    const GPT2Config config = {1024, 1024, 1024, 2, 2, 64, 0};
    DebugState state = {};
    state.B = 32, state.T = 1024;
    const size_t BT = (size_t)state.B * state.T;
    std::vector<int32_t> tokens(BT + 1);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    std::vector<float> params(gpt2_parameters(table, config));
    uint32_t seed = 5;
    for (int32_t& t : tokens) { seed = seed * 1664525u + 1013904223u, t = (int32_t)(seed >> 24) * 4; }
    gpt2_init_parameters(params.data(), config, 3);
    state.x = tokens.data(), state.y = tokens.data() + 1;
    const Fp8Memory memory = fp8_memory(config, params.size(), BT);
    reference_row("four pieces", "in the logits", memory.in_logits && fp8_classifier_rows(BT) * 4 == (int)BT);

    Run plain(gpt2_default_settings(), config, params.data(), &state),
        run(fp8_settings(), config, params.data(), &state);
    plain.pass();
    run.pass();
    run.update(0);
    run.pass();
    reference_check("loss of four pieces", fabs((double)run.loss - (double)plain.loss), 0.002);
    const GPT2Info* info = gpt2_info(run.model);
    size_t offset = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; offset += info->table[i++].count) {
        char name[64];
        ReferenceError error = {0, 0};
        reference_add(&error, run.gradients.data() + offset, plain.gradients.data() + offset, info->table[i].count);
        snprintf(name, sizeof(name), "gradient of %s", info->table[i].name);
        reference_check(name, reference_relative(error), 0.25);
    }
}

static void check_refused(void) {
    GPT2Plan plan;
    const GPT2Config config = {64, 512, 512, 2, 2, 64, 0};
    const Status odd = gpt2_plan(&plan, config, fp8_settings(), 1, 24, 1, 0);
    reference_row("a batch of 24 tokens", "refused", odd == STATUS_ERROR && strstr(status_message(), "--fp8"));
    reference_row("of 64", "planned", gpt2_plan(&plan, config, fp8_settings(), 2, 32, 1, 0) == STATUS_OK);
}

int main(void) {
    DeviceCode code;
    check(device_code(&code));
    if (code.capability < 89) {
        printf("skipped: fp8 needs compute capability 8.9, this GPU has %d.%d\n", code.capability / 10,
               code.capability % 10);
        return EXIT_SUCCESS;
    }
    check_quantize(16, 16, 1, 2);
    check_quantize(128, 64, 0.5f, -3);
    check_quantize(144, 80, 0x1p-9f, 700);
    check_quantize(272, 208, 0x1p-4f, NAN);
    check_quantize(4240, 16, 0x1p-4f, 1);
    check_quantize(400, 144, 4, INFINITY);
    check_sources();
    check_scales();
    check_refused();
    if (code.capability == 90) {
        check_fused(272, 224);
        check_fused(16, 64);
        check_fused(400, 512);
        for (float scale : {0.25f, 40.0f, 64.0f, 1024.0f}) { check_classifier(272, 208, 1000, scale); }
        check_classifier(16, 64, 65, 1);
        check_fused(17168, 64); // more tiles than an H200 has consumers
        check_classifier(8464, 64, 1000, 0.25f);
        check_dump("dev/reference/tiny_heads", 1);
    }
    check_dump("dev/reference/tiny_heads", 0);
    check_pieces();
    printf("%d passed, %d failed\n", reference_passed, reference_failed);
    return reference_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
