// The GPU kernels of llmc/*.cuh against the equations in their head comments, computed in fp64. Needs a GPU.
//
// A kernel reads tensors of the training precision, computes in fp32, and rounds what it stores to nearest. So an output is
// the fp64 result within `bound`, the error of fp32 arithmetic, then rounded: it lies between round(expected - bound) and
// round(expected + bound). That is as sharp in bf16 as in fp32: of 1000 outputs that a wrong constant moves by 1e-4, it moves
// about 15 over the edge between two bf16 numbers, and none of those passes.
//
// The bounds: an operation of fp32 errs by at most EPS = 2^-24 of its result, a sum of K terms by K EPS sum |terms|, in any
// order; ex2.approx and rsqrtf by 4 EPS. What is added up for an element is written beside its bound.
//
// Outputs begin as NaN, or with numbers that are to be added to; tensors stand between guards; scratch memory begins as NaN;
// every kernel runs twice and must give the same bits. Rows and batches are odd; channels are multiples of a 16-byte vector.
#include "dev/cuda/attention/attention.cuh"
#include "dev/cuda/matmul/matmul.cuh"
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/classifier.cuh"
#include "llmc/cuda/column_sum.cuh"
#include "llmc/cuda/encoder.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/global_norm.cuh"
#include "llmc/cuda/layernorm.cuh"
#include "llmc/cuda/matmul.cuh"
#include "llmc/cuda/muon.cuh"
#include "llmc/cuda/nvtx.cuh"
#include "llmc/cuda/qkv_bias.cuh"
#include "llmc/exchange/tree_sum.cuh"
#include "dev/test/fixtures/unit.h"

#include <functional>
#include <memory>
#include <vector>

typedef std::vector<double> Numbers;
static const double EPS = 0x1p-24;
static const double UNIT_ROUNDOFF = sizeof(floatX) == 4 ? 0x1p-24 : 0x1p-8; // of the training precision
static const int K = x128::size;                                            // channels come in multiples of it

template <class T> static double rounded(double x) { return (double)(float)(T)(float)x; }

// n numbers in [-scale, scale), exact in the training precision, the same for the same seed.
static Numbers numbers(size_t n, double scale, unsigned seed) {
    Numbers x(n);
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = rounded<floatX>(scale * ((double)(seed >> 8) / 8388608.0 - 1.0));
    }
    return x;
}

// A tensor on the GPU between guards that nothing may touch.
static const size_t GUARD = 256; // bytes
template <class T> struct Tensor {
    size_t n;
    char* memory;
    T* data;

    explicit Tensor(size_t n_) : n(n_) { // of NaN
        cuda_check(cudaMalloc(&memory, bytes() + 2 * GUARD));
        cuda_check(cudaMemset(memory, 0xff, bytes() + 2 * GUARD));
        data = reinterpret_cast<T*>(memory + GUARD);
    }
    explicit Tensor(const Numbers& x) : Tensor(x.size()) { write(x); }
    Tensor(const Tensor&) = delete;
    ~Tensor() {
        CHECK(guards_are_whole());
        cuda_check(cudaFree(memory));
    }
    size_t bytes() const { return n * sizeof(T); }
    void poison() { cuda_check(cudaMemset(data, 0xff, bytes())); }
    void write(const Numbers& x) {
        std::vector<T> host(n);
        for (size_t i = 0; i < n; i++) { host[i] = (T)(float)x[i]; }
        cuda_check(cudaMemcpy(data, host.data(), bytes(), cudaMemcpyHostToDevice));
    }
    Numbers read() const {
        std::vector<T> host(n);
        cuda_check(cudaMemcpy(host.data(), data, bytes(), cudaMemcpyDeviceToHost));
        Numbers x(n);
        for (size_t i = 0; i < n; i++) { x[i] = (double)(float)host[i]; }
        return x;
    }
    std::vector<char> bits() const {
        std::vector<char> host(bytes());
        cuda_check(cudaMemcpy(host.data(), data, bytes(), cudaMemcpyDeviceToHost));
        return host;
    }
    bool guards_are_whole() const {
        std::vector<char> host(bytes() + 2 * GUARD);
        cuda_check(cudaMemcpy(host.data(), memory, host.size(), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < GUARD; i++) {
            if (host[i] != (char)0xff || host[GUARD + bytes() + i] != (char)0xff) { return false; }
        }
        return true;
    }
};
typedef Tensor<floatX> TensorX;
typedef Tensor<float> TensorF;

static Tensor<int>* integers(const std::vector<int>& x) {
    Tensor<int>* t = new Tensor<int>(x.size());
    cuda_check(cudaMemcpy(t->data, x.data(), t->bytes(), cudaMemcpyHostToDevice));
    return t;
}

static void wait_for_gpu(void) {
    check(status_now());
    cuda_check(cudaDeviceSynchronize());
}

// One claim: every element of x is expected within bound, rounded to T.
template <class T>
static void check_rounded(const char* what, const Tensor<T>& x, const Numbers& expected, const Numbers& bound) {
    Numbers got = x.read();
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < got.size(); i++) {
        double low = rounded<T>(expected[i] - bound[i]), high = rounded<T>(expected[i] + bound[i]);
        if (!(low <= got[i] && got[i] <= high) && wrong++ == 0) { first = i; }
    }
    if (!unit_check(wrong == 0 && got.size() == expected.size(), what, __FILE__, __LINE__)) {
        printf("    %zu of %zu are wrong; element %zu is %.9g, expected %.9g within %.3g\n", wrong, got.size(), first,
               got[first], expected[first], bound[first]);
    }
}

template <class T> static void check_same_bits(const char* what, const Tensor<T>& x, const std::vector<char>& bits) {
    unit_check(x.bits() == bits, what, __FILE__, __LINE__);
}

// ----------------------------------------------------------------------------

// The keys (BT) sorted, as a TokenOrder on the device; the last arguments hold its arrays.
static TokenOrder order_on_device(const std::vector<int>& keys, int most, std::unique_ptr<Tensor<int2>>& d_buckets,
                                  std::unique_ptr<Tensor<int>>& d_order) {
    const size_t BT = keys.size();
    std::vector<int2> buckets(BT + 1);
    std::vector<int> order(BT), counts((size_t)most);
    TokenOrder sorted = {buckets.data(), order.data(), 0};
    sort_tokens(&sorted, counts.data(), keys.data(), (int)BT, most);
    bool ascending = true;
    for (int u = 0; u < sorted.unique; u++) {
        for (int i = buckets[u].y; i < buckets[u + 1].y; i++) {
            ascending = ascending && keys[order[i]] == buckets[u].x && (i == buckets[u].y || order[i] > order[i - 1]);
        }
    }
    CHECK(ascending && buckets[0].y == 0 && buckets[sorted.unique].y == (int)BT);
    d_buckets.reset(new Tensor<int2>(buckets.size()));
    cuda_check(cudaMemcpy(d_buckets->data, buckets.data(), d_buckets->bytes(), cudaMemcpyHostToDevice));
    d_order.reset(integers(order));
    return {d_buckets->data, d_order->data, sorted.unique};
}

// by_documents: positions are counted from the last token 3
static void test_encoder(int B, int T, int C, int V, bool by_documents = false) {
    size_t BT = (size_t)B * T;
    std::vector<int> tokens(BT), starts(BT), positions(BT);
    for (size_t i = 0; i < BT; i++) { tokens[i] = (int)(i * i * 7 % (size_t)V); } // some occur often, some never
    for (size_t i = 0; i < BT; i++) {
        const int t = (int)(i % T);
        starts[i] = t == 0 ? 0 : by_documents && tokens[i] == 3 ? t : starts[i - 1];
        positions[i] = t - starts[i];
    }
    Numbers wte = numbers((size_t)V * C, 1, 1), wpe = numbers((size_t)(T + 3) * C, 1, 2), dout = numbers(BT * C, 1, 3);
    Numbers dwte = numbers((size_t)V * C, 1, 4), dwpe = numbers((size_t)(T + 3) * C, 1, 5), sum_wte(dwte.size()),
            sum_wpe(dwpe.size()), count_wte(dwte.size()), count_wpe(dwpe.size()), out(BT * C), bound(BT * C);
    for (size_t i = 0; i < dwte.size(); i++) { sum_wte[i] = fabs(dwte[i]); }
    for (size_t i = 0; i < dwpe.size(); i++) { sum_wpe[i] = fabs(dwpe[i]); }
    TensorF d_dwte(dwte), d_dwpe(dwpe), d_dwte_again(dwte), d_dwpe_again(dwpe);
    for (size_t bt = 0; bt < BT; bt++) {
        for (int c = 0; c < C; c++) {
            size_t i = bt * C + c, w = (size_t)tokens[bt] * C + c, p = (size_t)positions[bt] * C + c;
            out[i] = wte[w] + wpe[p];
            bound[i] = EPS * fabs(out[i]);
            dwte[w] += dout[i], sum_wte[w] += fabs(dout[i]), count_wte[w]++;
            dwpe[p] += dout[i], sum_wpe[p] += fabs(dout[i]), count_wpe[p]++;
        }
    }
    for (size_t i = 0; i < dwte.size(); i++) { sum_wte[i] *= EPS * count_wte[i]; } // none: must not change at all
    for (size_t i = 0; i < dwpe.size(); i++) { sum_wpe[i] *= EPS * count_wpe[i]; }

    Tensor<int>* d_tokens = integers(tokens);
    TensorX d_out(BT * C), d_wte(wte), d_wpe(wpe), d_dout(dout);
    Tensor<int> d_starts(BT);
    if (by_documents) {
        document_starts(d_starts.data, d_tokens->data, 3, B, T, 0);
        std::vector<int> found(BT);
        cuda_check(cudaMemcpy(found.data(), d_starts.data, BT * sizeof(int), cudaMemcpyDeviceToHost));
        CHECK(found == starts);
        document_positions(found.data(), tokens.data(), 3, (int)BT, T);
        CHECK(found == positions);
    }
    encoder_forward(d_out.data, d_tokens->data, by_documents ? d_starts.data : NULL, d_wte.data, d_wpe.data, B, T, C,
                    0);
    wait_for_gpu();
    check_rounded("embedding", d_out, out, bound);

    std::unique_ptr<Tensor<int2>> buckets, position_buckets;
    std::unique_ptr<Tensor<int>> order, position_order;
    const TokenOrder by_token = order_on_device(tokens, V, buckets, order);
    TokenOrder by_position = {NULL, NULL, 0};
    if (by_documents) { by_position = order_on_device(positions, T, position_buckets, position_order); }
    encoder_backward(d_dwte.data, d_dwpe.data, d_dout.data, by_token, by_position, B, T, C, 0);
    encoder_backward(d_dwte_again.data, d_dwpe_again.data, d_dout.data, by_token, by_position, B, T, C, 0);
    wait_for_gpu();
    check_rounded("gradient of wte", d_dwte, dwte, sum_wte);
    check_rounded("gradient of wpe", d_dwpe, dwpe, sum_wpe);
    check_same_bits("gradient of wte again", d_dwte_again, d_dwte.bits());
    check_same_bits("gradient of wpe again", d_dwpe_again, d_dwpe.bits());
    delete d_tokens;
}

// ----------------------------------------------------------------------------

// Rows of several sizes: variances from 1 to 1e-6, where the epsilon of 1e-5 counts.
static Numbers rows_of_sizes(size_t N, size_t C, unsigned seed) {
    Numbers x = numbers(N * C, 1.7, seed);
    for (size_t n = 0; n < N; n++) {
        for (size_t c = 0; c < C; c++) {
            x[n * C + c] = rounded<floatX>((x[n * C + c] + 0.3) * pow(10.0, -(double)(n % 4)));
        }
    }
    return x;
}

static void test_layernorm_forward(size_t N, size_t C, bool with_residual) {
    Numbers a = rows_of_sizes(N, C, 1), b = rows_of_sizes(N, C, 2), w = numbers(C, 1.5, 3), bias = numbers(C, 1, 4);
    TensorX d_a(a), d_b(b), d_w(w), d_bias(bias), d_residual(N * C), d_out(N * C), d_out_again(N * C);
    TensorF d_mean(N), d_rstd(N), d_scales(N);
    for (TensorX* out : {&d_out, &d_out_again}) {
        float* int8_scales = out == &d_out ? d_scales.data : NULL;
        if (with_residual) {
            residual_layernorm_forward(d_residual.data, out->data, d_mean.data, d_rstd.data, d_a.data, d_b.data,
                                       d_w.data, d_bias.data, (int)N, (int)C, 0, int8_scales);
        } else {
            layernorm_forward(out->data, d_mean.data, d_rstd.data, d_a.data, d_w.data, d_bias.data, (int)N, (int)C, 0,
                              int8_scales);
        }
        wait_for_gpu();
    }
    Numbers x = a, sum(N * C), bound(N * C);
    if (with_residual) { // what is normalised is the sum as it was stored
        for (size_t i = 0; i < N * C; i++) { sum[i] = a[i] + b[i], bound[i] = EPS * fabs(sum[i]); }
        check_rounded("residual", d_residual, sum, bound);
        x = d_residual.read();
    }
    Numbers mean(N), rstd(N), mean_bound(N), rstd_bound(N), out(N * C), scales(N), scales_bound(N);
    for (size_t n = 0; n < N; n++) {
        double mu = 0.0, size = 0.0, variance = 0.0, sums = (double)C / 32 + 16; // a lane's terms, and a tree
        for (size_t c = 0; c < C; c++) { mu += x[n * C + c] / C, size += fabs(x[n * C + c]) / C; }
        for (size_t c = 0; c < C; c++) { variance += pow(x[n * C + c] - mu, 2) / C; }
        double s = 1 / sqrt(variance + 1e-5), mu_error = sums * EPS * size;
        // (x - mu)^2 errs by 2 |x - mu| (EPS |x| + the error of mu), on average by 2 sigma of it
        double variance_error = sums * EPS * variance + 2 * sqrt(variance) * (mu_error + EPS * size);
        double s_error = s * (0.5 * variance_error * s * s + 6 * EPS);
        mean[n] = mu, mean_bound[n] = mu_error, rstd[n] = s, rstd_bound[n] = s_error;
        for (size_t c = 0; c < C; c++) {
            size_t i = n * C + c;
            double n_hat = (x[i] - mu) * s;
            out[i] = n_hat * w[c] + bias[c];
            double n_error = s * (mu_error + EPS * fabs(x[i])) + fabs(x[i] - mu) * s_error + 2 * EPS * fabs(n_hat);
            bound[i] = fabs(w[c]) * n_error + EPS * (fabs(n_hat * w[c]) + fabs(bias[c]) + fabs(out[i]));
            scales[n] = fmax(scales[n], fabs(out[i]) / 127), scales_bound[n] = fmax(scales_bound[n], bound[i] / 127);
        }
    }
    check_rounded("layernorm's mean", d_mean, mean, mean_bound);
    check_rounded("layernorm's rstd", d_rstd, rstd, rstd_bound);
    check_rounded("layernorm's scales", d_scales, scales, scales_bound);
    check_rounded("layernorm", d_out, out, bound);
    check_same_bits("layernorm again", d_out_again, d_out.bits());
}

static void test_layernorm_backward(size_t N, size_t C, int overwrite, bool with_sum) {
    Numbers inp = rows_of_sizes(N, C, 1), w = numbers(C, 1.5, 2), dout = numbers(N * C, 1, 3),
            before = numbers(N * C, 1, 4);
    Numbers start_w = numbers(C, 1, 5), start_b = numbers(C, 1, 6), start_s = numbers(C, 1, 7), mean(N), rstd(N);
    for (size_t n = 0; n < N; n++) {
        double mu = 0.0, variance = 0.0;
        for (size_t c = 0; c < C; c++) { mu += inp[n * C + c] / C; }
        for (size_t c = 0; c < C; c++) { variance += pow(inp[n * C + c] - mu, 2) / C; }
        mean[n] = rounded<float>(mu), rstd[n] = rounded<float>(1 / sqrt(variance + 1e-5)); // given to the kernel
    }
    TensorX d_inp(inp), d_w(w), d_dout(dout), d_residual(N * C);
    TensorF d_mean(mean), d_rstd(rstd), dw(C), db(C), ds(C), scratch(layernorm_backward_scratch_bytes((int)C) / 4);
    TensorF sum(C);
    std::vector<char> bits;
    for (int run = 0; run < 2; run++) {
        overwrite ? d_residual.poison() : d_residual.write(before);
        dw.write(start_w), db.write(start_b), ds.write(start_s), scratch.poison();
        layernorm_backward(d_residual.data, dw.data, db.data, with_sum ? ds.data : NULL, with_sum ? sum.data : NULL,
                           d_dout.data, d_inp.data, d_w.data, d_mean.data, d_rstd.data, scratch.data, (int)N, (int)C,
                           overwrite, 0);
        wait_for_gpu();
        std::vector<char> now = d_residual.bits(), more = dw.bits();
        now.insert(now.end(), more.begin(), more.end());
        if (run == 0) { bits = now; }
        CHECK(now == bits);
    }
    Numbers after = d_residual.read(), e(N * C), bound(N * C), e_w = start_w, e_b = start_b, e_s = start_s;
    Numbers size_w(C), size_b(C), size_s(C);
    for (size_t c = 0; c < C; c++) {
        size_w[c] = fabs(start_w[c]), size_b[c] = fabs(start_b[c]), size_s[c] = fabs(start_s[c]);
    }
    for (size_t n = 0; n < N; n++) {
        double mean_g = 0.0, mean_gx = 0.0, size_g = 0.0, size_gx = 0.0, sums = (double)C / 32 + 32;
        for (size_t c = 0; c < C; c++) {
            double g = dout[n * C + c] * w[c], x_hat = (inp[n * C + c] - mean[n]) * rstd[n];
            double x_size = (fabs(inp[n * C + c]) + fabs(mean[n])) * rstd[n];
            mean_g += g / C, mean_gx += g * x_hat / C, size_g += fabs(g) / C, size_gx += fabs(g) * x_size / C;
        }
        for (size_t c = 0; c < C; c++) {
            size_t i = n * C + c;
            double g = dout[i] * w[c], x_hat = (inp[i] - mean[n]) * rstd[n];
            double x_size = (fabs(inp[i]) + fabs(mean[n])) * rstd[n], old = overwrite ? 0.0 : before[i];
            e[i] = old + rstd[n] * (g - mean_g - x_hat * mean_gx);
            bound[i] = EPS * (fabs(old) + fabs(e[i]) +
                              rstd[n] * (6 * fabs(g) + (sums + 6) * size_g + x_size * (sums + 10) * size_gx));
            e_w[c] += dout[i] * x_hat, size_w[c] += fabs(dout[i]) * x_size;
            e_b[c] += dout[i], size_b[c] += fabs(dout[i]);
            e_s[c] += after[i], size_s[c] += fabs(after[i]); // of what was stored
        }
    }
    for (size_t c = 0; c < C; c++) {
        size_w[c] *= EPS * (N + 8.0), size_b[c] *= EPS * (N + 1.0), size_s[c] *= EPS * (N + 1.0);
    }
    check_rounded("gradient of layernorm's input", d_residual, e, bound);
    check_rounded("gradient of layernorm's weight", dw, e_w, size_w);
    check_rounded("gradient of layernorm's bias", db, e_b, size_b);
    if (with_sum) {
        check_rounded("column sums of the residual's gradient", ds, e_s, size_s);
        for (size_t c = 0; c < C; c++) { e_s[c] -= start_s[c]; }
        check_rounded("these sums alone", sum, e_s, size_s);
    } else {
        check_rounded("no column sums", ds, start_s, Numbers(C));
    }
}

// ----------------------------------------------------------------------------

// gelu(x) = x σ(y), y = 2 √(2/π) (x + 0.044715 x³); gelu'(x) = σ + x y' σ (1 - σ). σ errs by the error of 2^(-y log2 e), which
// is |y| times that of y, four operations; where y < -80 or so it becomes 0.
struct Gelu {
    double y, slope, sigma, value, derivative, value_bound, derivative_bound;
    explicit Gelu(double x) {
        const double k = 2 * sqrt(2 / M_PI);
        y = k * (x + 0.044715 * x * x * x), slope = k * (1 + 3 * 0.044715 * x * x);
        sigma = 1 / (1 + exp(-y)), value = x * sigma, derivative = sigma + x * slope * sigma * (1 - sigma);
        double sigma_error = sigma * EPS * (8 + 8 * fabs(y) * (1 - sigma)) + 1e-36;
        value_bound = fabs(x) * sigma_error + EPS * fabs(value);
        derivative_bound = sigma_error + fabs(x * slope) * (sigma_error + sigma * (EPS + sigma_error)) +
                           6 * EPS * fabs(x * slope * sigma * (1 - sigma));
    }
};

static Numbers gelu_inputs(size_t n) {
    Numbers x = numbers(n, 4, 1);
    const double special[] = {0.0, 1e-6, -1e-6, 40.0, -40.0, -12.0, 1e4, -1e4};
    for (size_t i = 0; i < sizeof(special) / sizeof(special[0]) && i < n; i++) {
        x[n - 1 - i] = rounded<floatX>(special[i]);
    }
    return x;
}

static void test_gelu(int rows, int n) {
    size_t size = (size_t)rows * n;
    Numbers x = gelu_inputs(size), d = numbers(size, 1, 2), start = numbers((size_t)n, 1, 3), e(size), bound(size);
    TensorX d_x(x), d_out(size), d_again(size), d_d(size);
    for (size_t i = 0; i < size; i++) {
        Gelu g(x[i]);
        e[i] = g.value, bound[i] = g.value_bound;
    }
    gelu_forward(d_out.data, d_x.data, size, 0);
    wait_for_gpu();
    check_rounded("gelu", d_out, e, bound);

    TensorF dbias((size_t)n), scratch(column_sum_scratch_bytes(n) / 4);
    std::vector<char> bits;
    for (int run = 0; run < 2; run++) {
        d_d.write(d), dbias.write(start), scratch.poison();
        gelu_backward(d_d.data, dbias.data, run == 0 ? d_again.data : NULL, d_x.data, scratch.data, rows, n, 0);
        wait_for_gpu();
        std::vector<char> now = d_d.bits(), more = dbias.bits();
        now.insert(now.end(), more.begin(), more.end());
        if (run == 0) { bits = now; }
        CHECK(now == bits);
    }
    check_same_bits("gelu computed again", d_again, d_out.bits());
    Numbers after = d_d.read(), e_bias = start, size_bias((size_t)n);
    for (int c = 0; c < n; c++) { size_bias[c] = fabs(start[c]); }
    for (size_t i = 0; i < size; i++) {
        Gelu g(x[i]);
        e[i] = d[i] * g.derivative, bound[i] = fabs(d[i]) * g.derivative_bound + EPS * fabs(e[i]);
        e_bias[i % n] += after[i], size_bias[i % n] += fabs(after[i]);
    }
    for (int c = 0; c < n; c++) { size_bias[c] *= EPS * (rows + 1.0); }
    check_rounded("gradient of gelu", d_d, e, bound);
    check_rounded("gradient of the bias before gelu", dbias, e_bias, size_bias);
}

static void test_column_sum(int rows, int n) {
    Numbers x = numbers((size_t)rows * n, 1, 1), e = numbers((size_t)n, 1, 2), bound((size_t)n);
    TensorX d_x(x);
    TensorF sum(e), again(e), scratch(column_sum_scratch_bytes(n) / 4);
    for (int c = 0; c < n; c++) { bound[c] = fabs(e[c]); }
    for (size_t i = 0; i < x.size(); i++) { e[i % n] += x[i], bound[i % n] += fabs(x[i]); }
    for (int c = 0; c < n; c++) { bound[c] *= EPS * (rows + 1.0); }
    column_sum(sum.data, d_x.data, scratch.data, rows, n, 0);
    column_sum(again.data, d_x.data, scratch.data, rows, n, 0);
    wait_for_gpu();
    check_rounded("column sums", sum, e, bound);
    check_same_bits("column sums again", again, sum.bits());
}

// The bias of q, k and v: sums of dq's partial sums, nothing for k, and W^T s for v.
static void test_qkv_bias(int rows, int C) {
    Numbers partial = numbers((size_t)rows * C, 1, 1), w = numbers((size_t)C * C, 1, 2), s = numbers(C, 1, 3),
            start = numbers(3 * (size_t)C, 1, 4), e = start, bound(3 * (size_t)C);
    for (int c = 0; c < C; c++) {
        double size_q = fabs(start[c]), size_v = fabs(start[2 * C + c]);
        for (int r = 0; r < rows; r++) {
            const double x = partial[(size_t)r * C + c];
            e[c] += x, size_q += fabs(x);
        }
        for (int o = 0; o < C; o++) {
            const double x = s[o] * w[(size_t)o * C + c];
            e[2 * C + c] += x, size_v += fabs(x);
        }
        bound[c] = EPS * (rows + 1.0) * size_q, bound[2 * C + c] = EPS * (C + 2.0) * size_v;
    }
    TensorF d_partial(partial), d_s(s), dbias(start), again(start);
    TensorX d_w(w);
    for (TensorF* x : {&dbias, &again}) { qkv_bias_backward(x->data, d_partial.data, d_w.data, d_s.data, rows, C, 0); }
    wait_for_gpu();
    check_rounded("gradient of qkv's bias", dbias, e, bound);
    check_same_bits("gradient of qkv's bias again", again, dbias.bits());
}

// The column sums of dQ that attention's backward pass leaves, against those of the dQ that it stores: each of these errs by
// its rounding. dQ, dK and dV are those of a pass without sums.
static void test_dq_sums(int B, int T, int NH, int HS) {
    const size_t C = (size_t)NH * HS, BT = (size_t)B * T;
    TensorX qkv(numbers(BT * 3 * C, 2, 1)), dout(numbers(BT * C, 1, 2)), out(BT * C), dqkv(BT * 3 * C),
        plain(BT * 3 * C);
    TensorF l(BT * NH), m(BT * NH), scratch(attention_backward_scratch_bytes(B, T, NH, HS) / 4);
    TensorF sums(attention_dq_sum_rows(B, T, NH, HS) * C);
    attention_forward(out.data, l.data, m.data, qkv.data, B, T, NH, HS, 0);
    attention_backward(plain.data, dout.data, qkv.data, out.data, l.data, m.data, scratch.data, B, T, NH, HS, 0);
    std::vector<char> bits;
    size_t rows = 0;
    for (int run = 0; run < 2; run++) {
        sums.poison(), dqkv.poison(), scratch.poison();
        rows = attention_backward_with_sums(dqkv.data, sums.data, dout.data, qkv.data, out.data, l.data, m.data,
                                            scratch.data, B, T, NH, HS, 0);
        wait_for_gpu();
        if (run == 0) { bits = sums.bits(); }
    }
    check_same_bits("sums of dQ again", sums, bits);
    check_same_bits("dQ, dK and dV beside their sums", dqkv, plain.bits());
    CHECK(rows > 0 && rows * C <= sums.n);
    const Numbers dq = dqkv.read(), partial = sums.read();
    size_t wrong = 0;
    for (size_t c = 0; c < C; c++) {
        double sum = 0, expected = 0, size = 0;
        for (size_t r = 0; r < rows; r++) { sum += partial[r * C + c]; }
        for (size_t t = 0; t < BT; t++) { expected += dq[t * 3 * C + c], size += fabs(dq[t * 3 * C + c]); }
        if (!(fabs(sum - expected) <= (UNIT_ROUNDOFF + EPS * (double)BT) * size)) { wrong++; }
    }
    CHECK(wrong == 0);
}

// ----------------------------------------------------------------------------

static void test_classifier(size_t N, size_t V, size_t Vp, double scale) {
    Numbers x = numbers(N * Vp, scale, 1), start = numbers(N, 1, 2), e(N * Vp), bound(N * Vp), loss(N), loss_bound(N);
    std::vector<int> targets(N);
    const double factor = rounded<float>(1.0 / 37);
    for (size_t n = 0; n < N; n++) {
        const double* row = &x[n * Vp];
        double m = row[0], l = 0.0;
        int t = targets[n] = n == 0 ? 0 : n == 1 ? (int)V - 1 : (int)(n * 7919 % V);
        for (size_t v = 0; v < V; v++) { m = fmax(m, row[v]); }
        for (size_t v = 0; v < V; v++) { l += exp(row[v] - m); }
        // 2^(x log2 e - m log2 e): the exponent errs by 3 EPS (|x| + |m|) log2 e, the sum by its length and rescalings
        double power = 4 * EPS * (fabs(m) + scale) + 4 * EPS, sum = 3 * power + EPS * ((double)V / 256 + 40);
        loss[n] = start[n] + m + log(l) - row[t];
        loss_bound[n] = sum + EPS * (2 * fabs(log(l)) + 3 * fabs(m) + fabs(row[t]) + fabs(start[n]) + fabs(loss[n]));
        for (size_t v = 0; v < V; v++) {
            double p = exp(row[v] - m) / l;
            e[n * Vp + v] = factor * (p - ((int)v == t));
            bound[n * Vp + v] = factor * (p * (power + sum + 4 * EPS) + ((int)v == t ? 2 * EPS : 0.0)) + 1e-37;
        }
    }
    Tensor<int>* d_targets = integers(targets);
    TensorX d_x(x);
    TensorF losses(start), x_fp32(x);
    std::vector<char> logits = x_fp32.bits(), gradients, with_gradients;
    classifier_losses(losses.data, x_fp32.data, d_targets->data, (int)N, (int)V, (int)Vp, 0);
    wait_for_gpu();
    check_rounded("losses alone", losses, loss, loss_bound);
    check_same_bits("logits of losses alone", x_fp32, logits);
    for (int run = 0; run < 2; run++) {
        d_x.write(x), losses.write(start);
        fused_classifier(d_x.data, losses.data, d_targets->data, (float)factor, (int)N, (int)V, (int)Vp, 0);
        wait_for_gpu();
        if (run == 0) { gradients = d_x.bits(), with_gradients = losses.bits(); }
        check_same_bits("gradients of the logits again", d_x, gradients);
        check_same_bits("losses with gradients again", losses, with_gradients);
    }
    check_rounded("losses with gradients", losses, loss, loss_bound);
    check_rounded("gradients of the logits", d_x, e, bound); // of the padding: 0 within 0
    delete d_targets;
}

static void test_scale_rows(size_t N, size_t C) {
    Numbers x = numbers(N * C, 1, 1), factors = numbers(N, 1, 2), e(N * C), bound(N * C);
    for (size_t i = 0; i < N * C; i++) { e[i] = factors[i / C] * x[i], bound[i] = EPS * fabs(e[i]); }
    TensorX d_x(x), d_out(N * C);
    TensorF d_factors(factors);
    scale_rows(d_out.data, d_x.data, d_factors.data, (int)N, (int)C, 0);
    scale_rows(d_x.data, d_x.data, d_factors.data, (int)N, (int)C, 0);
    wait_for_gpu();
    check_rounded("rows times their factors", d_out, e, bound);
    check_same_bits("rows times their factors in place", d_x, d_out.bits());
}

static void test_sum_losses(size_t n) {
    Numbers x = numbers(n, 1, 1);
    double sum = 0.0, size = 0.0;
    for (double v : x) { sum += v, size += fabs(v); }
    TensorF d_x(x), d_sum(1), again(1);
    sum_losses(d_sum.data, d_x.data, n, 0);
    sum_losses(again.data, d_x.data, n, 0);
    wait_for_gpu();
    check_rounded("sum of losses", d_sum, {sum}, {EPS * ((double)n / 1024 + 12) * size});
    check_same_bits("sum of losses again", again, d_sum.bits());
}

// ----------------------------------------------------------------------------
// Sums whose order does not depend on the number of processes

// Rows of fp32 numbers of many sizes: almost any other order of additions gives other bits.
static Numbers uneven_numbers(size_t n, unsigned seed) {
    Numbers x = numbers(n, 1, seed);
    for (size_t i = 0; i < n; i++) { x[i] = rounded<float>((x[i] + 1e-3) * pow(7.0, (double)(i * 31 % 11) - 5)); }
    return x;
}
static std::vector<float> floats(const Numbers& x) { return std::vector<float>(x.begin(), x.end()); }
static std::vector<char> bits_of(const std::vector<float>& x) {
    return std::vector<char>((const char*)x.data(), (const char*)(x.data() + x.size()));
}

// The sum of N pieces has the bits of the host's, whichever of them is this process's own, beside it and in place.
static void test_tree_sum(int N, size_t n) {
    size_t stride = CEIL_DIV(n, (size_t)64) * 64, others = (size_t)(N - 1) * stride;
    std::vector<std::vector<float>> pieces;
    std::vector<const float*> pointers;
    for (int r = 0; r < N; r++) { pieces.push_back(floats(uneven_numbers(n, 100 + (unsigned)r))); }
    for (auto& piece : pieces) { pointers.push_back(piece.data()); }
    std::vector<float> expected(n);
    gradient_tree_sum_range(expected.data(), pointers.data(), N, 0, n);
    TensorF own(n), received(others > 0 ? others : 1), out(n);
    for (int rank : {0, N / 2, N - 1}) {
        std::vector<float> host(received.n, NAN);
        for (int r = 0; r < N; r++) {
            if (r != rank) { std::copy(pieces[r].begin(), pieces[r].end(), &host[(r < rank ? r : r - 1) * stride]); }
        }
        cuda_check(cudaMemcpy(received.data, host.data(), received.bytes(), cudaMemcpyHostToDevice));
        cuda_check(cudaMemcpy(own.data, pieces[rank].data(), own.bytes(), cudaMemcpyHostToDevice));
        out.poison();
        tree_sum(out.data, own.data, received.data, stride, rank, N, n, 0);
        tree_sum(own.data, own.data, received.data, stride, rank, N, n, 0);
        wait_for_gpu();
        check_same_bits("sum of the pieces", out, bits_of(expected));
        check_same_bits("sum of the pieces in place", own, bits_of(expected));
    }
}

// x0 + (x1 + (.. + x[count-1])), into a buffer of its own, the first and the last
static void test_carry_add(int count, size_t n) {
    std::vector<std::vector<float>> hosts;
    for (int k = 0; k < count; k++) { hosts.push_back(floats(uneven_numbers(n, 200 + (unsigned)k))); }
    std::vector<float> expected = hosts[count - 1];
    for (int k = count - 2; k >= 0; k--) {
        for (size_t i = 0; i < n; i++) { expected[i] = hosts[k][i] + expected[i]; }
    }
    for (int into : {-1, 0, count - 1}) {
        std::vector<TensorF*> buffers;
        std::vector<const float*> pointers;
        TensorF out(n);
        for (auto& host : hosts) {
            buffers.push_back(new TensorF(n));
            pointers.push_back(buffers.back()->data);
            cuda_check(cudaMemcpy(buffers.back()->data, host.data(), n * sizeof(float), cudaMemcpyHostToDevice));
        }
        TensorF* result = into < 0 ? &out : buffers[into];
        carry_add(result->data, pointers.data(), count, n, 0);
        wait_for_gpu();
        check_same_bits("sum of the buffers", *result, bits_of(expected));
        for (int k = 0; k < count; k++) {
            if (k != into) { check_same_bits("a buffer", *buffers[k], bits_of(hosts[k])); }
            delete buffers[k];
        }
    }
}

// All leaves of a process by gradient_tree.h's plan, on the device, have the bits of the tree on the host.
static void test_leaves(int K, int in_place, size_t n) {
    std::vector<std::vector<float>> leaves;
    std::vector<const float*> pointers;
    for (int i = 0; i < K; i++) { leaves.push_back(floats(uneven_numbers(n, 300 + (unsigned)i))); }
    for (auto& leaf : leaves) { pointers.push_back(leaf.data()); }
    int num_buffers = gradient_buffers(K, in_place), groups = gradient_tree_power_(K), chain = K / groups;
    std::vector<TensorF*> buffers;
    for (int b = 0; b < num_buffers; b++) { buffers.push_back(new TensorF(n)); }
    TensorF scratch(n);
    for (int i = 0; i < K; i++) {
        GradientLeaf leaf = gradient_leaf(K, in_place, i);
        TensorF* t = leaf.accumulate ? &scratch : buffers[leaf.buffer];
        cuda_check(cudaMemcpy(t->data, leaves[i].data(), t->bytes(), cudaMemcpyHostToDevice));
        const float* added[2] = {buffers[leaf.buffer]->data, scratch.data};
        if (leaf.accumulate) { carry_add(buffers[leaf.buffer]->data, added, 2, n, 0); }
        std::vector<const float*> carried;
        for (int b = leaf.first; b <= leaf.buffer; b++) { carried.push_back(buffers[b]->data); }
        if (carried.size() > 1) { carry_add(buffers[leaf.first]->data, carried.data(), (int)carried.size(), n, 0); }
        wait_for_gpu();
    }
    std::vector<std::vector<float>> sums((size_t)groups); // chains, then the perfect tree over them
    for (int g = 0; g < groups; g++) {
        sums[g] = leaves[g * chain];
        for (int q = 1; q < chain; q++) {
            for (size_t i = 0; i < n; i++) { sums[g][i] += leaves[g * chain + q][i]; }
        }
    }
    for (int width = 1; width < groups; width *= 2) {
        for (int g = 0; g < groups; g += 2 * width) {
            for (size_t i = 0; i < n; i++) { sums[g][i] += sums[g + width][i]; }
        }
    }
    check_same_bits("sum of the leaves", *buffers[0], bits_of(sums[0]));
    for (TensorF* b : buffers) { delete b; }
}

// The norm of n elements: the same bits in one piece and in parts, each of whole blocks, and what fp64 says.
static void test_norm_of_blocks(size_t n) {
    Numbers x = uneven_numbers(n, 1);
    size_t blocks = CEIL_DIV(n, (size_t)LAYOUT_BLOCK);
    double squares = 0.0;
    for (double v : x) { squares += v * v; }
    TensorF d_x(x), whole(blocks), parts(blocks), norm(1), norm_of_parts(1);
    block_squares(whole.data, d_x.data, n, 0);
    norm_of_blocks(norm.data, whole.data, blocks, 0);
    for (size_t b = 0, step = 1; b < blocks; b += step++) { // parts of 1, 2, 3, .. blocks
        size_t begin = b * LAYOUT_BLOCK, count = n - begin < step * LAYOUT_BLOCK ? n - begin : step * LAYOUT_BLOCK;
        block_squares(parts.data + b, d_x.data + begin, count, 0);
    }
    norm_of_blocks(norm_of_parts.data, parts.data, blocks, 0);
    wait_for_gpu();
    Numbers got = whole.read(), expected(blocks), bound(blocks);
    for (size_t i = 0; i < n; i++) { expected[i / LAYOUT_BLOCK] += x[i] * x[i]; }
    for (size_t b = 0; b < blocks; b++) { bound[b] = 32 * EPS * expected[b]; } // 4 chained sums of 4, and 9 levels
    check_rounded("sums of squares of blocks", whole, expected, bound);
    check_same_bits("sums of squares of blocks, in parts", parts, whole.bits());
    check_rounded("norm of blocks", norm, {sqrt(squares)}, {18 * EPS * sqrt(squares)});
    check_same_bits("norm of parts", norm_of_parts, norm.bits());
}

// A number that is not finite makes the norm and the mean so.
static void test_losses_mean(size_t n) {
    Numbers x = uneven_numbers(n, 1);
    double sum = 0.0, size = 0.0;
    for (double v : x) { sum += v / 3, size += fabs(v) / 3; }
    TensorF d_x(x), mean(1), again(1);
    float third = 1.0f / 3;
    losses_mean(mean.data, d_x.data, n, third, 0);
    losses_mean(again.data, d_x.data, n, third, 0);
    wait_for_gpu();
    check_rounded("mean of losses", mean, {sum * third * 3}, {1e-12 * size});
    check_same_bits("mean of losses again", again, mean.bits());
    for (double bad : {(double)NAN, (double)INFINITY}) {
        x[n / 2] = bad;
        d_x.write(x);
        losses_mean(mean.data, d_x.data, n, third, 0);
        block_squares(again.data, d_x.data, n < LAYOUT_BLOCK ? n : (size_t)LAYOUT_BLOCK, 0);
        wait_for_gpu();
        CHECK(!isfinite(mean.read()[0]) && (n / 2 >= LAYOUT_BLOCK || !isfinite(again.read()[0])));
    }
}

// ----------------------------------------------------------------------------

// AdamW in fp64, with the size of what is added up beside each number: an error is a small multiple of EPS times it.
struct AdamReference {
    Numbers w, m, v, size_m, bound_w, bound_m, bound_v;
    explicit AdamReference(const Numbers& weights)
        : w(weights), m(w.size()), v(w.size()), size_m(w.size()), bound_w(w.size()), bound_m(w.size()),
          bound_v(w.size()) {}

    void step(const Numbers& grads, AdamW a, double decay, int t) {
        double c1 = 1 - pow(a.beta1, t), c2 = 1 - pow(a.beta2, t);
        for (size_t i = 0; i < w.size(); i++) {
            double g = grads[i] * grad_clip_scale(1.0f, a.grad_clip); // the norm of the tests' guards
            m[i] = a.beta1 * m[i] + (1.0 - a.beta1) * g;
            v[i] = a.beta2 * v[i] + (1.0 - a.beta2) * g * g;
            size_m[i] = a.beta1 * size_m[i] + (1.0 - a.beta1) * fabs(g);
            bound_m[i] = (3.0 * t + 2) * EPS * size_m[i], bound_v[i] = (4.0 * t + 4) * EPS * v[i] + 1e-44;
            double root = sqrt(v[i] / c2) + a.epsilon, update = m[i] / c1 / root + decay * w[i];
            double error = (bound_m[i] + 8 * EPS * size_m[i]) / c1 / root + fabs(m[i]) / c1 / root * (2 * t + 8) * EPS +
                           3 * EPS * fabs(decay * w[i]);
            bound_w[i] = bound_w[i] + a.learning_rate * (error + EPS * fabs(update)) + EPS * fabs(w[i]);
            w[i] -= a.learning_rate * update;
        }
    }
};

// Gradients of all sizes: from 1 down to 1e-9, where the epsilon of 1e-8 is more than the root.
static Numbers gradients_of_sizes(size_t n, unsigned seed) {
    Numbers g = numbers(n, 1, seed);
    for (size_t i = 0; i < n; i++) { g[i] = rounded<float>(g[i] * pow(10.0, -(double)(i % 10))); }
    return g;
}

// A step's loss and gradient norm, and the count of weights that were left as they were.
struct Guard {
    TensorF loss, norm;
    Tensor<unsigned long long> count;
    Guard(double loss_, double norm_) : loss(Numbers{loss_}), norm(Numbers{norm_}), count(1) {
        cuda_check(cudaMemset(count.data, 0, count.bytes()));
    }
    UpdateGuard get() const { return {loss.data, norm.data, count.data}; }
    unsigned long long counted() const {
        unsigned long long host = 0;
        cuda_check(cudaMemcpy(&host, count.data, sizeof(host), cudaMemcpyDeviceToHost));
        return host;
    }
};

// A step of one part
static void adamw_step_of(AdamWPart part, float weight_decay, AdamW a, const Guard& guard) {
    AdamWParts parts = {};
    adamw_add(&parts, part);
    adamw_update(parts, weight_decay, a, guard.get(), 0);
}

static void test_adamw(size_t n, bool with_master) {
    Guard guard(1, 1);
    Numbers start = numbers(n, 1, 1);
    AdamReference reference(start);
    TensorX params(start);
    TensorF master(start), m(Numbers(n, 0.0)), v(Numbers(n, 0.0));
    for (int t = 1; t <= 4; t++) {
        AdamW a = adamw_step(0.01f, 0.9f, 0.95f, 1e-8f, 0.5f, t);
        Numbers grads = gradients_of_sizes(n, 10 + (unsigned)t);
        TensorF d_grads(grads);
        if (!with_master) { // steps go on from the rounded weights
            reference.w = params.read();
            reference.bound_w.assign(n, 0.0);
        }
        reference.step(grads, a, 0.1, t);
        adamw_step_of({params.data, d_grads.data, m.data, v.data, with_master ? master.data : NULL, n, n, 0}, 0.1f, a,
                      guard);
        wait_for_gpu();
        check_rounded("first moments", m, reference.m, reference.bound_m);
        check_rounded("second moments", v, reference.v, reference.bound_v);
        if (with_master) {
            check_rounded("master weights", master, reference.w, reference.bound_w);
            check_rounded("weights", params, master.read(), Numbers(n)); // rounded to nearest
        } else if (sizeof(floatX) == 4) {
            check_rounded("weights", params, reference.w, reference.bound_w);
        }
    }
    CHECK(guard.counted() == 0);
}

// Parts that several processes own, each with its shard's moments and masters, get the bits of the whole; weight decay ends
// within a part; where there are no masters the random bits follow from the offset, also beyond 2^32.
static void test_adamw_parts(size_t n, bool with_master, size_t offset) {
    Guard guard(1, 1);
    Numbers start = numbers(n, 1, 1);
    TensorF grads(gradients_of_sizes(n, 2)), m(Numbers(n, 0.01)), v(Numbers(n, 0.02)), master(start);
    TensorF m_parts(Numbers(n, 0.01)), v_parts(Numbers(n, 0.02)), master_parts(start);
    TensorX params(start), params_parts(start);
    AdamW a = adamw_step(0.01f, 0.9f, 0.95f, 1e-8f, 0.5f, 7);
    size_t decayed = n * 5 / 9;
    AdamWPart whole = {params.data, grads.data, m.data, v.data, with_master ? master.data : NULL, n, decayed, offset};
    adamw_step_of(whole, 0.1f, a, guard);
    AdamWParts parts = {};
    for (size_t begin = 0, count = 4; begin < n; begin += count, count = 2 * count + 4) {
        count = begin + count < n ? count : n - begin;
        AdamWPart part = {params_parts.data + begin,
                          grads.data + begin,
                          m_parts.data + begin,
                          v_parts.data + begin,
                          with_master ? master_parts.data + begin : NULL,
                          count,
                          decayed > begin ? decayed - begin : 0,
                          offset + begin};
        adamw_add(&parts, part);
        part.n = 0; // as where another process has all of a bucket
        adamw_add(&parts, part);
    }
    CHECK(parts.count > 9); // the search for a block's part has strides of eight
    adamw_update(parts, 0.1f, a, guard.get(), 0);
    wait_for_gpu();
    check_same_bits("weights of parts", params_parts, params.bits());
    check_same_bits("first moments of parts", m_parts, m.bits());
    check_same_bits("second moments of parts", v_parts, v.bits());
    check_same_bits("master weights of parts", master_parts, master.bits());
    AdamReference reference(start), undecayed(start);
    for (size_t i = 0; i < n; i++) {
        reference.m[i] = undecayed.m[i] = rounded<float>(0.01), reference.v[i] = undecayed.v[i] = rounded<float>(0.02);
        reference.size_m[i] = undecayed.size_m[i] = 0.01;
    }
    reference.step(grads.read(), a, 0.1, 7), undecayed.step(grads.read(), a, 0.0, 7);
    for (size_t i = decayed; i < n; i++) { reference.w[i] = undecayed.w[i]; }
    if (with_master) { check_rounded("decay of a part", master, reference.w, reference.bound_w); }
    CHECK(guard.counted() == 0);
}

// Gradients are clipped by the norm on the device: the same bits as those that the host scales.
static void test_adamw_clips(size_t n, float norm, float clip) {
    Guard given(1, norm), guard(1, 1);
    Numbers start = numbers(n, 1, 1), grads = gradients_of_sizes(n, 2), scaled(n);
    float scale = clip > 0 && norm > clip ? clip / norm : 1.0f;
    for (size_t i = 0; i < n; i++) { scaled[i] = rounded<float>((double)(float)grads[i] * (double)scale); }
    TensorF d_grads(grads), d_scaled(scaled), m(Numbers(n, 0.01)), v(Numbers(n, 0.02)), master(start);
    TensorF m_scaled(Numbers(n, 0.01)), v_scaled(Numbers(n, 0.02)), master_scaled(start);
    TensorX params(start), params_scaled(start);
    adamw_step_of({params.data, d_grads.data, m.data, v.data, master.data, n, n, 0}, 0.1f,
                  adamw_step(0.01f, 0.9f, 0.95f, 1e-8f, clip, 3), given);
    adamw_step_of({params_scaled.data, d_scaled.data, m_scaled.data, v_scaled.data, master_scaled.data, n, n, 0}, 0.1f,
                  adamw_step(0.01f, 0.9f, 0.95f, 1e-8f, 0.0f, 3), guard);
    wait_for_gpu();
    check_same_bits("clipped: first moments", m, m_scaled.bits());
    check_same_bits("clipped: second moments", v, v_scaled.bits());
    check_same_bits("clipped: master weights", master, master_scaled.bits());
    check_same_bits("clipped: weights", params, params_scaled.bits());
}

// The Newton-Schulz steps in fp64, rounded where the GPU stores a matrix: of u (rows, cols) with rows <= cols
static Numbers orthogonalised(Numbers x, size_t rows, size_t cols) {
    double squares = 0.0;
    auto round = [](double v) { return rounded<floatX>(v); };
    for (double& v : x) { v = round(v), squares += v * v; }
    for (double& v : x) { v = round(v / (sqrt(squares) + 1e-7)); }
    for (int step = 0; step < 5; step++) {
        Numbers a(rows * rows), b(rows * rows), y(rows * cols);
        for (size_t i = 0; i < rows * rows; i++) {
            for (size_t k = 0; k < cols; k++) { a[i] += x[i / rows * cols + k] * x[i % rows * cols + k]; }
            a[i] = round(a[i]);
        }
        for (size_t i = 0; i < rows * rows; i++) {
            for (size_t k = 0; k < rows; k++) { b[i] += a[i / rows * rows + k] * a[k * rows + i % rows]; }
            b[i] = round(2.0315 * b[i] - 4.7750 * a[i]);
        }
        for (size_t i = 0; i < rows * cols; i++) {
            for (size_t k = 0; k < rows; k++) { y[i] += b[i / cols * rows + k] * x[k * cols + i % cols]; }
            y[i] = round(y[i] + 3.4445 * x[i]);
        }
        x = y;
    }
    return x;
}
static Numbers transposed(const Numbers& x, size_t rows, size_t cols) {
    Numbers t(x.size());
    for (size_t i = 0; i < x.size(); i++) { t[i % cols * rows + i / cols] = x[i]; }
    return t;
}

// A matrix with its state
struct MuonTensors {
    TensorX params;
    TensorF grads, momentum, master;
    MuonTensors(size_t n, unsigned seed)
        : params(numbers(n, 1, seed)), grads(numbers(n, 1, seed + 1)), momentum(numbers(n, 1, seed + 2)),
          master(numbers(n, 1, seed)) {}
    MuonMatrix get(bool with_master) {
        return {params.data, grads.data, momentum.data, with_master ? master.data : NULL, 5};
    }
};

// Steps of a batch of matrices against fp64; each alone gets the bits that it gets in the batch.
static void test_muon(Matmul* mm, size_t rows, size_t cols, bool with_master) {
    const size_t n = rows * cols, scratch_bytes = 3 * muon_matrix_bytes(rows, cols);
    const double mu = 0.95f, decay = 0.1f, clip = 0.5, scale = 0.2 * sqrt((double)(rows > cols ? rows : cols));
    const AdamW a = adamw_step(0.02f, 0.9f, 0.95f, 1e-8f, (float)clip, 1);
    Guard guard(1, 1);
    Tensor<char> scratch(scratch_bytes);
    MuonTensors *batch[3], *alone[3];
    MuonMatrices matrices = {};
    for (unsigned k = 0; k < 3; k++) {
        batch[k] = new MuonTensors(n, 10 * k + 1), alone[k] = new MuonTensors(n, 10 * k + 1);
        matrices.matrix[matrices.count++] = batch[k]->get(with_master);
    }
    muon_update(mm, matrices, rows, cols, (float)mu, (float)decay, a, guard.get(), scratch.data);
    for (unsigned k = 0; k < 3; k++) {
        MuonMatrices one = {{alone[k]->get(with_master)}, 1};
        muon_update(mm, one, rows, cols, (float)mu, (float)decay, a, guard.get(), scratch.data);
        wait_for_gpu();
        const Numbers grads = batch[k]->grads.read(), before = numbers(n, 1, 10 * k + 1),
                      moment = numbers(n, 1, 10 * k + 3);
        Numbers expected(n), bound(n), u(n);
        for (size_t i = 0; i < n; i++) {
            const double g = (1 - mu) * grads[i] * clip;
            expected[i] = mu * moment[i] + g, bound[i] = 4 * EPS * (mu * fabs(moment[i]) + fabs(g));
            u[i] = mu * expected[i] + g;
        }
        check_rounded("momentum", batch[k]->momentum, expected, bound);
        const Numbers o = rows <= cols ? orthogonalised(u, rows, cols)
                                       : transposed(orthogonalised(transposed(u, rows, cols), cols, rows), cols, rows);
        const Numbers after = with_master ? batch[k]->master.read() : batch[k]->params.read();
        double error = 0.0, size = 0.0;
        for (size_t i = 0; i < n; i++) { // without masters, a weight is rounded up or down
            const double change = -0.02f * (scale * o[i] + decay * before[i]), off = after[i] - before[i] - change,
                         rounding = with_master ? 0.0 : 2 * UNIT_ROUNDOFF * fabs(after[i]);
            error += pow(fmax(fabs(off) - rounding, 0.0), 2), size += change * change;
        }
        const double tolerance = sizeof(floatX) == 4 ? 1e-4 : 0.02; // of roundings that fall to the other side
        if (!CHECK(sqrt(error / size) <= tolerance)) {
            printf("    %zu x %zu: %.1e\n", rows, cols, sqrt(error / size));
        }
        check_same_bits("momentum of a matrix alone", alone[k]->momentum, batch[k]->momentum.bits());
        check_same_bits("weights of a matrix alone", alone[k]->params, batch[k]->params.bits());
        check_same_bits("masters of a matrix alone", alone[k]->master, batch[k]->master.bits());
        if (with_master) { check_rounded("weights", batch[k]->params, after, Numbers(n)); }
    }
    CHECK(guard.counted() == 0);
    for (unsigned k = 0; k < 3; k++) { delete batch[k], delete alone[k]; }
}

// Nothing changes after a step whose loss or norm is not finite; a matrix with a momentum that is not finite stays as it is,
// and each of its weights is counted.
static void test_muon_guard(Matmul* mm, size_t rows, size_t cols) {
    const size_t n = rows * cols;
    const AdamW a = adamw_step(0.02f, 0.9f, 0.95f, 1e-8f, 1.0f, 1);
    MuonTensors t(n, 1), before(n, 1);
    Tensor<char> scratch(muon_matrix_bytes(rows, cols));
    MuonMatrices one = {{t.get(true)}, 1};
    for (double bad : {(double)NAN, (double)INFINITY}) {
        for (int which : {0, 1}) {
            Guard guard(which ? 1 : bad, which ? bad : 1);
            muon_update(mm, one, rows, cols, 0.95f, 0.1f, a, guard.get(), scratch.data);
            wait_for_gpu();
            CHECK(guard.counted() == 0);
        }
    }
    check_same_bits("momentum after a bad step", t.momentum, before.momentum.bits());
    check_same_bits("masters after a bad step", t.master, before.master.bits());
    Numbers moments = before.momentum.read();
    moments[n / 3] = INFINITY;
    t.momentum.write(moments);
    Guard guard(1, 1);
    muon_update(mm, one, rows, cols, 0.95f, 0.1f, a, guard.get(), scratch.data);
    wait_for_gpu();
    if (!CHECK(guard.counted() == n)) { printf("    %llu of %zu\n", guard.counted(), n); }
    CHECK(isinf(t.momentum.read()[n / 3]) && t.momentum.read()[n - 1] != moments[n - 1]);
    check_same_bits("weights with a bad momentum", t.params, before.params.bits());
    check_same_bits("masters with a bad momentum", t.master, before.master.bits());
}

#if defined(PRECISION_BF16)
// The random bits of an element: others than those of 2^32 elements before it, and than those of the step before.
static void test_random_bits_of_elements(size_t n) {
    Guard guard(1, 1);
    Numbers start = numbers(n, 1, 1), rounded_to[3];
    TensorF grads(gradients_of_sizes(n, 2));
    for (int k = 0; k < 3; k++) {
        TensorX params(start);
        TensorF m(Numbers(n, 0.01)), v(Numbers(n, 0.02));
        AdamW a = adamw_step(0.01f, 0.9f, 0.95f, 1e-8f, 0.5f, 7);
        AdamWPart part = {params.data, grads.data, m.data, v.data, NULL, n, n, (size_t)k << 32};
        adamw_step_of(part, 0.1f, a, guard);
        wait_for_gpu();
        rounded_to[k] = params.read();
    }
    for (int k = 1; k < 3; k++) {
        size_t differ = 0;
        for (size_t i = 0; i < n; i++) { differ += rounded_to[k][i] != rounded_to[k - 1][i]; }
        CHECK(differ > n / 10); // a third, for independent roundings of a uniform fraction
    }
}
#endif

// A gradient, moments and a weight whose update is not finite. Those of the fourth and fifth row have an infinite second moment
// and a finite weight; the last two leave fp32 or, from a master weight, only bf16.
static const double LARGEST = sizeof(floatX) == 4 ? 0x1.fffffep127 : 0x1.fep127;
static const double BAD_UPDATES[][4] = {{NAN, 0, 0, 1},       {INFINITY, 0, 0, 1}, {0, -INFINITY, 0, 1},
                                        {0, 0, INFINITY, 1},  {1e25, 0, 0, 1},     {0, 0, 0, NAN},
                                        {0, 0, 0, -INFINITY}, {-1, 0, 0, LARGEST}, {1, 0, 0, -LARGEST}};
static const size_t NUM_BAD = sizeof(BAD_UPDATES) / sizeof(BAD_UPDATES[0]);

// Gradient, moments, weights and masters before or after a step
struct AdamTensors {
    TensorF grads, m, v, master;
    TensorX params;
    AdamTensors(const Numbers& g, const Numbers& m_, const Numbers& v_, const Numbers& w)
        : grads(g), m(m_), v(v_), master(w), params(w) {}
    void step(bool with_master, const Guard& guard) {
        AdamW a = adamw_step(with_master ? 1e36f : 3e36f, 0.9f, 0.95f, 1e-8f, 0.0f, 1);
        adamw_step_of({params.data, grads.data, m.data, v.data, with_master ? master.data : NULL, m.n, 0, 0}, 0.0f, a,
                      guard);
        wait_for_gpu();
    }
    std::vector<std::vector<char>> bits() const { return {m.bits(), v.bits(), master.bits(), params.bits()}; }
};

// Every seventh weight has a bad update: it stays, with its moments, and is counted; the others get the bits that they get
// without. Where the step's loss or norm is not finite, nothing changes and nothing is counted.
static void test_adamw_guard(size_t n, bool with_master) {
    Numbers g = numbers(n, 1, 1), m = numbers(n, 1, 2), v = numbers(n, 1, 3), w = numbers(n, 1, 4);
    for (size_t i = 0; i < n; i++) { v[i] = 0.5 + fabs(v[i]) / 2; } // updates of at most 10 times the rate
    AdamTensors good(g, m, v, w);
    for (size_t i = 0; i < n; i += 7) {
        const double* bad = BAD_UPDATES[i / 7 % NUM_BAD];
        g[i] = bad[0], m[i] = bad[1], v[i] = bad[2], w[i] = bad[3];
    }
    AdamTensors some(g, m, v, w);
    std::vector<std::vector<char>> start = some.bits();
    const double not_finite[] = {NAN, INFINITY, -INFINITY};
    for (double x : not_finite) {
        Guard loss(x, 1), norm(1, x);
        some.step(with_master, loss), some.step(with_master, norm);
        CHECK(loss.counted() == 0 && norm.counted() == 0 && some.bits() == start);
    }
    Guard guard(11, 3.4e38), other(0, 0);
    good.step(with_master, other), some.step(with_master, guard);
    CHECK(other.counted() == 0);
    CHECK(guard.counted() == (n + 6) / 7);
    std::vector<std::vector<char>> without = good.bits(), with = some.bits();
    size_t moved = 0, changed = 0;
    for (size_t k = 0; k < with.size(); k++) {
        size_t size = with[k].size() / n; // bytes of an element
        for (size_t i = 0; i < n; i++) {
            const std::vector<char>& expected = i % 7 == 0 ? start[k] : without[k];
            bool same = memcmp(&with[k][i * size], &expected[i * size], size) == 0;
            i % 7 == 0 ? moved += !same : changed += !same;
        }
    }
    CHECK(moved == 0);
    CHECK(changed == 0);
}

// ----------------------------------------------------------------------------

// A number that is not finite is found wherever it is, and the least index is kept.
template <class T> static void test_find_non_finite(size_t n) {
    Numbers x = numbers(n, 1, 1);
    x[0] = LARGEST, x[n / 3] = -LARGEST, x[n / 2] = 1e-40;
    Tensor<T> d_x(x);
    Tensor<unsigned> first(1);
    auto found = [&](unsigned index) {
        unsigned host = 0;
        find_non_finite(first.data, index, d_x.data, n, 0);
        wait_for_gpu();
        cuda_check(cudaMemcpy(&host, first.data, sizeof(host), cudaMemcpyDeviceToHost));
        return host;
    };
    CHECK(found(3) == UINT_MAX); // 0xff, as a tensor begins
    for (size_t i : {(size_t)0, n / 2, n - 1}) {
        for (double bad : {(double)NAN, (double)INFINITY, -(double)INFINITY}) {
            Numbers y = x;
            y[i] = bad;
            d_x.write(y), first.poison();
            CHECK(found(7) == 7 && found(9) == 7 && found(2) == 2);
        }
    }
}

// The sum that a plain loop gives, and another after any change of one word
static void test_digest(size_t n) {
    Numbers x = numbers(n, 1, 1);
    TensorF d_x(x);
    Tensor<unsigned long long> sum(1);
    auto digest = [&]() {
        unsigned long long host = 0;
        cuda_check(cudaMemset(sum.data, 0, sizeof(host)));
        add_digest(sum.data, d_x.data, n, 0);
        wait_for_gpu();
        cuda_check(cudaMemcpy(&host, sum.data, sizeof(host), cudaMemcpyDeviceToHost));
        return host;
    };
    std::vector<char> bits = d_x.bits();
    std::vector<uint32_t> words(n);
    memcpy(words.data(), bits.data(), bits.size());
    unsigned long long expected = 0;
    for (size_t i = 0; i < n; i++) { expected += digest_mix(i, words[i]); }
    CHECK(digest() == expected && digest() == expected);
    bool differ = true;
    for (unsigned k = 0; k < 320; k++) {
        size_t i = k < 32 ? 0 : k < 64 ? n - 1 : (size_t)k * 2654435761u % n;
        uint32_t word = words[i] ^ 1u << k % 32;
        cuda_check(cudaMemcpy(d_x.data + i, &word, sizeof(word), cudaMemcpyHostToDevice));
        differ = differ && digest() != expected;
        cuda_check(cudaMemcpy(d_x.data + i, &words[i], sizeof(word), cudaMemcpyHostToDevice));
    }
    CHECK(differ && digest() == expected);
}

// ----------------------------------------------------------------------------

__global__ void illegal_address_kernel(int* p) { *p = 1; }

// A failed kernel is noticed at the next wait; its message names the range that was begun last. It takes the CUDA context with
// it: in a child process, before this one uses the GPU.
static void test_kernel_error(void) {
    if (unit_fork()) {
        status_clear();
        {
            NvtxRange range("backward layer", 3);
            illegal_address_kernel<<<1, 1>>>((int*)8);
        }
        cuda_try(cudaDeviceSynchronize());
        fprintf(stderr, "%s\n", status_message());
        _exit(7);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 7 && strstr(child.text, "cudaDeviceSynchronize() returned cudaErrorIllegalAddress"));
    CHECK(strstr(child.text, "in or before: backward layer 3") && strstr(child.text, "CUDA_LAUNCH_BLOCKING=1"));
    if (unit_fork()) {
        status_clear();
        NvtxRange range("forward layer", 2);
        illegal_address_kernel<<<1, 2048>>>(NULL);
        cuda_try(cudaGetLastError());
        fprintf(stderr, "%s\n", status_message());
        _exit(7);
    }
    child = unit_wait();
    CHECK(child.exit_code == 7 && strstr(child.text, "test_gpu_kernels.cu:") &&
          strstr(child.text, "; in: forward layer 2"));
}

#if defined(PRECISION_BF16)
// Without master weights, a weight becomes one of its two neighbours in bf16, at random, and its own value on average: the
// mean of n errors of one unit in the last place, each of a variance of at most 1/4, stays within 5 deviations of 0.
static void test_stochastic_rounding(size_t n) {
    Guard guard(1, 1);
    Numbers start = numbers(n, 1, 1), grads = gradients_of_sizes(n, 2), rounded_to[2];
    TensorF d_grads(grads);
    for (int t = 1; t <= 2; t++) { // another step, other random numbers
        AdamW a = adamw_step(1e-3f, 0.9f, 0.95f, 1e-8f, 1.0f, 1);
        a.seed = (unsigned)t;
        AdamReference reference(start);
        reference.step(grads, a, 0.1, 1);
        TensorX params(start);
        TensorF m(Numbers(n, 0.0)), v(Numbers(n, 0.0));
        adamw_step_of({params.data, d_grads.data, m.data, v.data, NULL, n, n, 0}, 0.1f, a, guard);
        wait_for_gpu();
        Numbers got = rounded_to[t - 1] = params.read();
        double sum = 0.0;
        size_t outside = 0;
        for (size_t i = 0; i < n; i++) {
            double ulp = ldexp(1.0, ilogb(reference.w[i] == 0 ? 1.0 : reference.w[i]) - 7),
                   error = (got[i] - reference.w[i]) / ulp;
            sum += copysign(1.0, reference.w[i]) * error; // away from zero: rounding towards it is a bias, too
            outside += !(fabs(error) <= 1.0 + reference.bound_w[i] / ulp);
        }
        CHECK(outside == 0);
        CHECK_NEAR(sum / n, 0.0, 5 * 0.5 / sqrt((double)n));
    }
    size_t differ = 0;
    for (size_t i = 0; i < n; i++) { differ += rounded_to[0][i] != rounded_to[1][i]; }
    CHECK(differ > n / 10); // two independent roundings of a uniform fraction differ for a third
    CHECK(adamw_step(1, 1, 1, 1, 1, 1).seed != adamw_step(1, 1, 1, 1, 1, 2).seed);
}
#endif

static void test_cast(size_t n) {
    Numbers x = gradients_of_sizes(n, 1);
    TensorF wide(x);
    TensorX cast(n);
    cast_from_fp32(cast.data, wide.data, n, 0);
    wait_for_gpu();
    check_rounded("cast from fp32", cast, x, Numbers(n));
}

// ----------------------------------------------------------------------------

// c (M,N) = sum over k of a(i,k) b(k,j), and the sizes of the sums.
typedef std::function<double(size_t, size_t)> Element;
static void multiply(Numbers* c, Numbers* size, size_t M, size_t N, size_t inner, Element a, Element b) {
    c->assign(M * N, 0.0), size->assign(M * N, 0.0);
    for (size_t i = 0; i < M; i++) {
        for (size_t k = 0; k < inner; k++) {
            double x = a(i, k);
            for (size_t j = 0; j < N; j++) {
                double term = x * b(k, j);
                (*c)[i * N + j] += term, (*size)[i * N + j] += fabs(term);
            }
        }
    }
}

// Tensor cores may truncate where they add: 2 EPS a term.
static void test_matmul(Matmul* mm, size_t BT, size_t C, size_t OC) {
    Numbers inp = numbers(BT * C, 1, 1), w = numbers(OC * C, 1, 2), bias = numbers(OC, 1, 3),
            dout = numbers(BT * OC, 1, 4);
    Numbers pre = numbers(BT * C, 3, 5), start = numbers(OC * C, 1, 6), e, size;
    TensorX d_inp(inp), d_w(w), d_bias(bias), d_dout(dout), d_pre(pre), out(BT * OC), again(BT * OC), gelu(BT * OC),
        dinp(BT * C);
    TensorF dw(start), dw_again(start);
    auto row = [C](const Numbers& x) { return [&x, C](size_t i, size_t k) { return x[i * C + k]; }; };
    auto bound_by = [&](double terms) {
        Numbers bound(size.size());
        for (size_t i = 0; i < bound.size(); i++) { bound[i] = 2 * EPS * terms * size[i]; }
        return bound;
    };
    multiply(&e, &size, BT, OC, C, row(inp), [&](size_t k, size_t j) { return w[j * C + k]; });
    matmul_forward(mm, out.data, d_inp.data, d_w.data, NULL, (int)BT, (int)C, (int)OC);
    matmul_forward(mm, again.data, d_inp.data, d_w.data, NULL, (int)BT, (int)C, (int)OC);
    wait_for_gpu();
    check_rounded("matmul", out, e, bound_by((double)C));
    check_same_bits("matmul again", again, out.bits());
    for (size_t i = 0; i < e.size(); i++) { e[i] += bias[i % OC], size[i] += fabs(bias[i % OC]); }
    out.poison();
    matmul_forward(mm, out.data, d_inp.data, d_w.data, d_bias.data, (int)BT, (int)C, (int)OC);
    wait_for_gpu();
    check_rounded("matmul with bias", out, e, bound_by(C + 1.0));
    out.poison();
    matmul_gelu_forward(mm, gelu.data, out.data, d_inp.data, d_w.data, d_bias.data, (int)BT, (int)C, (int)OC);
    wait_for_gpu();
    check_rounded("matmul before its gelu", out, e, bound_by(C + 1.0));
    Numbers value = e, bound = bound_by(C + 1.0); // cuBLASLt's tanh may be the approximate one, which errs by 2^-10.987
    for (size_t i = 0; i < e.size(); i++) {
        value[i] = Gelu(e[i]).value;
        bound[i] = 1.13 * (bound[i] + UNIT_ROUNDOFF * fabs(e[i])) + 0.5 * fabs(e[i]) * 0x1p-10;
    }
    check_rounded("matmul's gelu", gelu, value, bound);

    multiply(
        &e, &size, BT, C, OC, [&](size_t i, size_t k) { return dout[i * OC + k]; }, row(w));
    matmul_backward_input(mm, dinp.data, d_dout.data, d_w.data, NULL, (int)BT, (int)C, (int)OC);
    wait_for_gpu();
    check_rounded("gradient of matmul's input", dinp, e, bound_by((double)OC));
    bound = bound_by((double)OC);
    for (size_t i = 0; i < e.size(); i++) {
        Gelu g(pre[i]);
        bound[i] = 1.13 * bound[i] + fabs(e[i]) * (UNIT_ROUNDOFF + 0x1p-8);
        e[i] *= g.derivative;
    }
    dinp.poison();
    matmul_backward_input(mm, dinp.data, d_dout.data, d_w.data, d_pre.data, (int)BT, (int)C, (int)OC);
    wait_for_gpu();
    check_rounded("gradient of matmul's input times gelu'", dinp, e, bound);

    multiply(
        &e, &size, OC, C, BT, [&](size_t i, size_t k) { return dout[k * OC + i]; },
        [&](size_t k, size_t j) { return inp[k * C + j]; });
    TensorF dw_alone(OC * C);
    matmul_backward_weight(mm, dw_alone.data, d_dout.data, d_inp.data, 0, (int)BT, (int)C, (int)OC);
    wait_for_gpu();
    check_rounded("gradient of matmul's weight, written", dw_alone, e, bound_by((double)BT));
    for (size_t i = 0; i < e.size(); i++) { e[i] += start[i], size[i] += fabs(start[i]); }
    matmul_backward_weight(mm, dw.data, d_dout.data, d_inp.data, 1, (int)BT, (int)C, (int)OC);
    matmul_backward_weight(mm, dw_again.data, d_dout.data, d_inp.data, 1, (int)BT, (int)C, (int)OC);
    wait_for_gpu();
    check_rounded("gradient of matmul's weight", dw, e, bound_by(BT + 1.0));
    check_same_bits("gradient of matmul's weight again", dw_again, dw.bits());
}

// ----------------------------------------------------------------------------

__global__ void fill_kernel(floatX* x, size_t n, unsigned seed) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        x[i] = (floatX)((float)(int)hash32(i, seed) * 0x1p-31f);
    }
}
__global__ void fill_fp32_kernel(float* x, size_t n, unsigned seed) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        x[i] = (float)(int)hash32(i, seed) * 0x1p-29f;
    }
}
__global__ void differences_kernel(unsigned long long* count, const float* a, const float* b, size_t n) {
    size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += stride) {
        if (__float_as_uint(a[i]) != __float_as_uint(b[i])) { atomicAdd(count, 1ull); }
    }
}

// A weight gradient that is added in place has the bits of one that overwrites, added afterwards: so a leaf of the gradient
// tree may be added to its neighbour by the GEMM itself. cuBLASLt may split K.
static void test_accumulation(Matmul* mm, size_t BT, size_t C, size_t OC) {
    size_t available = 0, total = 0, n = OC * C, needed = BT * (C + OC) * sizeof(floatX) + 3 * n * sizeof(float);
    cuda_check(cudaMemGetInfo(&available, &total));
    if (needed + ((size_t)1 << 30) > available) {
        printf("accumulation of %zu x %zu x %zu: skipped, %zu MiB of GPU memory are too much\n", BT, C, OC,
               needed >> 20);
        return;
    }
    floatX *inp, *dout;
    float *sum, *leaf, *start;
    unsigned long long *count, host[2] = {0, 0};
    cuda_check(cudaMalloc(&inp, BT * C * sizeof(floatX)));
    cuda_check(cudaMalloc(&dout, BT * OC * sizeof(floatX)));
    for (float** p : {&sum, &leaf, &start}) { cuda_check(cudaMalloc(p, n * sizeof(float))); }
    cuda_check(cudaMalloc(&count, sizeof(host)));
    cuda_check(cudaMemset(count, 0, sizeof(host)));
    fill_kernel<<<1024, 256>>>(inp, BT * C, 1);
    fill_kernel<<<1024, 256>>>(dout, BT * OC, 2);
    fill_fp32_kernel<<<1024, 256>>>(start, n, 3);
    cuda_check(cudaMemset(leaf, 0xff, n * sizeof(float)));
    cuda_check(cudaMemcpy(sum, start, n * sizeof(float), cudaMemcpyDeviceToDevice));
    matmul_backward_weight(mm, sum, dout, inp, 1, (int)BT, (int)C, (int)OC);
    matmul_backward_weight(mm, leaf, dout, inp, 0, (int)BT, (int)C, (int)OC);
    differences_kernel<<<1024, 256>>>(count + 1, leaf, start, n); // the GEMM has computed something
    const float* both[2] = {start, leaf};
    carry_add(leaf, both, 2, n, 0);
    differences_kernel<<<1024, 256>>>(count, sum, leaf, n);
    wait_for_gpu();
    cuda_check(cudaMemcpy(host, count, sizeof(host), cudaMemcpyDeviceToHost));
    if (!CHECK(host[0] == 0 && host[1] > n - n / 100 - 1)) {
        printf("    %zu x %zu x %zu: %llu of %zu sums in place have other bits\n", BT, C, OC, host[0], n);
    }
    for (void* p : {(void*)inp, (void*)dout, (void*)sum, (void*)leaf, (void*)start, (void*)count}) {
        cuda_check(cudaFree(p));
    }
}

// The weight gradients of a model with C channels and Vp rows of wte, for BT tokens
static void test_accumulation_of_model(Matmul* mm, size_t BT, size_t C, size_t Vp) {
    for (size_t OC : {C, 3 * C, 4 * C, Vp}) { test_accumulation(mm, BT, C, OC); }
    test_accumulation(mm, BT, 4 * C, C);
}

// ----------------------------------------------------------------------------

// ||x - y|| <= 4 UNIT_ROUNDOFF ||y||: each was rounded twice.
template <class T> static void check_close(const char* what, const Tensor<T>& x, const Tensor<T>& y) {
    const Numbers a = x.read(), b = y.read();
    double difference = 0, size = 0;
    for (size_t i = 0; i < a.size(); i++) { difference += (a[i] - b[i]) * (a[i] - b[i]), size += b[i] * b[i]; }
    if (!unit_check(size > 0 && sqrt(difference) <= 4 * UNIT_ROUNDOFF * sqrt(size), what, __FILE__, __LINE__)) {
        printf("    the relative error is %.3g\n", sqrt(difference / size));
    }
}

static int gpu_capability(void) {
    DeviceCode code;
    check(device_code(&code));
    return code.capability;
}

// Whether the plan made last has the table's algorithm.
static bool is_taken(const Matmul* mm, const MatmulAlgorithm* a) {
    const cublasLtMatmulAlgo_t* algorithm = &mm->plans[mm->num_plans - 1].algorithm;
    return matmul_algorithm_setting(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID) == a->tile &&
           matmul_algorithm_cluster(algorithm) == a->cluster &&
           matmul_algorithm_setting(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION) == a->custom;
}

// GEMMs of as many rows as llmc/cuda/matmul_algorithms.h speaks of, against the same in parts, which have the library's choice.
// On the table's GPUs its algorithms are taken.
static void test_tuned(Matmul* mm, const MatmulAlgorithm* a) {
    const int part = MATMUL_ALGORITHM_ROWS - 3, R = 2 * MATMUL_ALGORITHM_ROWS;
    const int IN = a->transpose_a ? a->k : a->m, OUT = a->k == 0 ? a->n : a->transpose_a ? a->m : a->k;
    TensorX inp((size_t)R * IN), dout((size_t)R * OUT), weight((size_t)OUT * IN), bias(OUT);
    TensorX &x = a->transpose_a ? inp : dout, out((size_t)R * a->m), parts((size_t)R * a->m);
    TensorF dweight((size_t)OUT * IN), sum((size_t)OUT * IN);
    unsigned seed = 1;
    for (TensorX* t : {&inp, &dout, &weight, &bias}) { fill_kernel<<<1024, 256>>>(t->data, t->n, seed++); }
    auto multiply_rows = [&](TensorX& d, float* dw, int first, int rows) {
        if (a->k == 0) {
            matmul_backward_weight(mm, dw, dout.data + (size_t)first * OUT, inp.data + (size_t)first * IN, first > 0,
                                   rows, IN, OUT);
        } else if (a->transpose_a) {
            matmul_forward(mm, d.data + (size_t)first * OUT, x.data + (size_t)first * IN, weight.data, bias.data, rows,
                           IN, OUT);
        } else {
            matmul_backward_input(mm, d.data + (size_t)first * IN, x.data + (size_t)first * OUT, weight.data, NULL,
                                  rows, IN, OUT);
        }
    };
    multiply_rows(out, dweight.data, 0, R);
    if (gpu_capability() != 90) {
        printf("an algorithm for compute capability 9.0: skipped on this GPU\n");
    } else if (!CHECK(is_taken(mm, a))) {
        const cublasLtMatmulAlgo_t* taken = &mm->plans[mm->num_plans - 1].algorithm;
        printf("    %d x %d x %d, transpose_a %d: algorithm %d, tile %d, cluster %d, custom option %d, %d splits\n",
               a->m, a->n, a->k, a->transpose_a, matmul_algorithm_setting(taken, CUBLASLT_ALGO_CONFIG_ID),
               matmul_algorithm_setting(taken, CUBLASLT_ALGO_CONFIG_TILE_ID), matmul_algorithm_cluster(taken),
               matmul_algorithm_setting(taken, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
               matmul_algorithm_setting(taken, CUBLASLT_ALGO_CONFIG_SPLITK_NUM));
    }
    for (int first = 0; first < R; first += part) { multiply_rows(parts, sum.data, first, std::min(part, R - first)); }
    wait_for_gpu();
    if (a->k == 0) {
        check_close("a tuned weight gradient", dweight, sum);
    } else {
        check_close("a tuned GEMM", out, parts);
    }
}

// fc that keeps the derivative, and dgelu that multiplies by it: the bits of those that know pre, which dpre and dbias are of.
static void test_kept_derivative(MatmulGroups* g, int R, int C, const TensorX& inp, const TensorX& weight,
                                 const TensorX& bias, const TensorX& dout, const TensorX& pre, const TensorX& act,
                                 const TensorX& dpre, const TensorF& dbias) {
    const size_t large = pre.n;
    TensorX derivative(large), alone(Numbers(large, 1)), again(large), dpre_again(large);
    TensorF dbias_again(4 * C), sums(4 * C), scratch(column_sum_scratch_bytes(4 * C) / sizeof(float));
    for (TensorF* x : {&dbias_again, &sums}) { cuda_check(cudaMemset(x->data, 0, x->bytes())); }
    matmul_fc(g, nullptr, nullptr, derivative.data, again.data, inp.data, weight.data, bias.data, R, C);
    gelu_backward(alone.data, sums.data, nullptr, pre.data, scratch.data, R, 4 * C, 0); // 1 gelu'(pre)
    matmul_dgelu(g, nullptr, dpre_again.data, nullptr, dbias_again.data, dout.data, weight.data, nullptr,
                 derivative.data, R, C);
    wait_for_gpu();
    check_same_bits("fc's gelu beside the derivative", again, act.bits());
    check_same_bits("fc's derivative of gelu", derivative, alone.bits());
    check_same_bits("dpre of the derivative", dpre_again, dpre.bits());
    check_same_bits("dbias of the derivative", dbias_again, dbias.bits());
}

// The MLP's groups as they train against the baseline, and gelu(pre) of fc and dgelu against the kernel alone, bit for bit.
static void test_mlp_groups(Matmul* mm, int R, int C) {
    const size_t n = (size_t)R * C, large = 4 * n, weights = (size_t)4 * C * C;
    const int capability = gpu_capability();
    TensorX inp(n), weight(weights), bias(4 * C), dout(n), pre(large), act(large), again(large), dpre(large);
    TensorX base_pre(large), base_act(large), base_dpre(large), alone(large);
    TensorF dbias(4 * C), base_dbias(4 * C);
    unsigned seed = 1;
    for (TensorX* x : {&inp, &weight, &bias, &dout}) { fill_kernel<<<1024, 256>>>(x->data, x->n, seed++); }
    for (TensorF* x : {&dbias, &base_dbias}) { cuda_check(cudaMemset(x->data, 0, x->bytes())); }
    const MatmulSizes sizes = {R, 4 * C, C, 0};
    size_t bytes = matmul_scratch_bytes_on(capability, nullptr, MATMUL_DGELU, sizes);
    bytes = std::max(bytes, matmul_scratch_bytes_on(capability, "cublaslt", MATMUL_DGELU, sizes));
    TensorF scratch(bytes / sizeof(float));
    MatmulGroups g = {{mm, scratch.data}, capability, 0, NULL, 0, 0};
    matmul_fc(&g, nullptr, pre.data, nullptr, act.data, inp.data, weight.data, bias.data, R, C);
    matmul_fc(&g, "cublaslt", base_pre.data, nullptr, base_act.data, inp.data, weight.data, bias.data, R, C);
    gelu_forward(alone.data, pre.data, large, 0);
    wait_for_gpu();
    check_same_bits("fc's gelu", act, alone.bits());
    check_close("fc's pre", pre, base_pre);
    scratch.poison();
    matmul_dgelu(&g, nullptr, dpre.data, again.data, dbias.data, dout.data, weight.data, pre.data, nullptr, R, C);
    wait_for_gpu();
    check_same_bits("gelu again", again, alone.bits());
    scratch.poison();
    matmul_dgelu(&g, "cublaslt", base_dpre.data, base_act.data, base_dbias.data, dout.data, weight.data, pre.data,
                 nullptr, R, C);
    wait_for_gpu();
    check_close("dpre", dpre, base_dpre);
    check_close("dbias", dbias, base_dbias);
    dpre.poison();
    cuda_check(cudaMemset(dbias.data, 0, dbias.bytes()));
    matmul_dgelu(&g, nullptr, base_dpre.data, nullptr, dbias.data, dout.data, weight.data, pre.data, nullptr, R, C);
    matmul_dgelu(&g, nullptr, dpre.data, again.data, base_dbias.data, dout.data, weight.data, pre.data, nullptr, R, C);
    wait_for_gpu();
    check_same_bits("dpre without gelu", dpre, base_dpre.bits());
    if (matmul_has_derivative(&g, nullptr, nullptr, R, C)) {
        test_kept_derivative(&g, R, C, inp, weight, bias, dout, pre, act, dpre, dbias);
    }
}

// A row of the unnormalised softmax: what is expected of its loss, and how far a loss and an exponential may be off
struct SoftmaxRow {
    double m, l, loss, relative, loss_bound;
};
// x (V) logits, of sums whose terms add up to `terms` at most in magnitude. Past 77 nats they are rounded to floatX.
static SoftmaxRow softmax_row(const double* x, int V, int target, int C, double terms) {
    SoftmaxRow r = {x[0], 0, 0, 0, 0};
    double largest = 0;
    for (int v = 0; v < V; v++) { r.m = fmax(r.m, x[v]), largest = fmax(largest, fabs(x[v])); }
    for (int v = 0; v < V; v++) { r.l += exp(x[v] - r.m); }
    r.loss = r.m + log(r.l) - x[target];
    const double error =
        2 * C * EPS * terms + 8 * EPS * (largest + 40) + (r.loss > 75 ? 2 * UNIT_ROUNDOFF * largest : 0);
    r.relative = expm1(2 * error + EPS * (V + 40.0));
    r.loss_bound = 2 * error + EPS * (V + 40.0 + 2 * r.loss);
    return r;
}

// The classifier whose softmax is normalised behind the GEMMs, of logits of a standard deviation of `size`: targets that are
// nearly certain, and ones that underflow beside the others, or those beside them; a row that is not finite.
static void test_unnormalised_softmax(Matmul* mm, int R, int C, int V, int Vp, double size) {
    const MatmulSizes s = {R, C, Vp, V};
    const MatmulConfig* config = matmul_config_of("softmax_wgmma", MATMUL_CLASSIFIER, s);
    if (!CHECK(config != nullptr)) { return; }
    const double factor = rounded<float>(1.0 / 37), spread = 3 * size / sqrt((double)C); // uniform, as is inp
    Numbers inp = numbers((size_t)R * C, 1, 1), weight = numbers((size_t)Vp * C, spread, 2), start = numbers(R, 1, 3);
    Numbers x((size_t)R * V);
    std::vector<int> targets(R);
    for (int r = 0; r < R; r++) {
        double* row = &x[(size_t)r * V];
        int largest = 0, least = 0;
        for (int v = 0; v < V; v++) {
            for (int c = 0; c < C; c++) { row[v] += inp[(size_t)r * C + c] * weight[(size_t)v * C + c]; }
            largest = row[v] > row[largest] ? v : largest, least = row[v] < row[least] ? v : least;
        }
        targets[r] = r % 3 == 0 ? largest : r % 3 == 1 ? least : (r * 7919) % V;
    }
    inp[(size_t)R * C - 1] = NAN;
    Tensor<int>* d_targets = integers(targets);
    TensorX d_inp(inp), d_weight(weight), logits((size_t)R * Vp);
    TensorF losses(start), scale(R), scratch(config->scratch_bytes(s) / sizeof(float));
    MatmulContext context = {mm, scratch.data};
    MatmulTensors t = {};
    t.inp = d_inp.data, t.weight = d_weight.data, t.targets = d_targets->data, t.gradient_scale = (float)factor;
    t.logits = logits.data, t.logits_scale = scale.data, t.losses = losses.data;
    std::vector<char> bits[3];
    for (int run = 0; run < 2; run++) {
        losses.write(start), logits.poison(), scale.poison(), scratch.poison();
        config->launch(&context, &t, s, 0);
        wait_for_gpu();
        if (run == 0) { bits[0] = logits.bits(), bits[1] = scale.bits(), bits[2] = losses.bits(); }
    }
    check_same_bits("unnormalised softmax again", logits, bits[0]);
    check_same_bits("its factors again", scale, bits[1]);
    check_same_bits("its losses again", losses, bits[2]);
    const Numbers d = logits.read(), f = scale.read(), loss = losses.read();
    int wrong = 0, wrong_losses = 0, past_range = 0;
    for (int r = 0; r < R - 1; r++) {
        const SoftmaxRow row = softmax_row(&x[(size_t)r * V], V, targets[r], C, C * spread);
        past_range += row.loss > 80;
        wrong_losses += !(fabs(loss[r] - start[r] - row.loss) <= row.loss_bound + EPS * (1 + row.loss));
        for (int v = 0; v < Vp; v++) {
            const double p = v < V ? exp(x[(size_t)r * V + v] - row.m) / row.l : 0,
                         e = factor * (p - (v == targets[r]));
            // what is flushed to zero is below e^-59 of the row's largest
            const double bound = factor * (p * row.relative + (v < V ? 0x1p-85 + EPS * 4 * (v == targets[r]) : 0));
            const double most = bound + UNIT_ROUNDOFF * (fabs(e) + bound);
            wrong += !(fabs(d[(size_t)r * Vp + v] * f[r] - e) <= most);
        }
    }
    CHECK(wrong == 0);
    CHECK(wrong_losses == 0);
    CHECK(isnan(loss[R - 1]));
    CHECK((past_range > 0) == (size > 20)); // rows that are computed again are there, where they should be
    delete d_targets;
}

int main(void) {
    unsetenv("CUDA_LAUNCH_BLOCKING");
    test_kernel_error(); // before the first CUDA call
    for (int C : {K, 5 * K, 33 * K, 768}) { test_encoder(3, 37, C, 251); }
    for (int T : {1, 37, 255, 256, 257, 1029}) { test_encoder(3, T, 2 * K, T < 100 ? 4 : 251, true); }
    test_encoder(1, 1, K, 1);
    test_encoder(2, 1029, 2 * K, 7); // hundreds of positions of a token
    for (size_t C : {K, 5 * K, 33 * K, 64, 512, 768, 1024, 1280, 1600, 4096, 12288}) {
        test_layernorm_forward(67, C, false);
        test_layernorm_forward(5, C, true);
    }
    test_layernorm_forward(1, 768, true);
    for (size_t C : {K, 5 * K, 33 * K, 64, 768, 1024, 1280, 1600, 2048, 2560, 640 * K}) {
        test_layernorm_backward(67, C, 0, true);
        test_layernorm_backward(1, C, 1, false);
    }
    test_layernorm_backward(4099, 64, 1, true);  // more rows than blocks
    test_layernorm_backward(8209, 768, 0, true); // many turns of each
    test_layernorm_backward(4099, 1600, 0, true);
    test_layernorm_backward(2203, 2560, 0, true);
    test_layernorm_backward(2203, 640 * K, 0, true);
    test_gelu(1, K);
    test_gelu(67, 33 * K);
    test_gelu(2051, 3072);
    test_column_sum(1, K);
    test_column_sum(2051, 33 * K);
    for (int C : {K, 33 * K, 768, 1600}) { test_qkv_bias(1, C), test_qkv_bias(1111, C); }
    // the last rows: of a tile of 64, of one of 128; and where T > 1024 serves 64x192
    for (int HS : {32, 64, 96, 128}) {
        test_dq_sums(2, 1, 1, HS), test_dq_sums(3, 65, 2, HS), test_dq_sums(2, 328, 3, HS),
            test_dq_sums(1, 1100, 2, HS);
    }
    test_dq_sums(40, 256, 12, 64); // heads in both orders
    test_classifier(1, 1, 128, 1);
    test_classifier(3, 123, 128, 5);
    test_classifier(37, 251, 256, 10);
    test_classifier(5, 50257, 50304, 10);
    test_classifier(2, 300, 384, 80); // one logit takes all
    test_scale_rows(133, 768);
    test_scale_rows(3, 8);
    for (size_t n : {1, 31, 1025, 20001, 1100001}) { test_sum_losses(n); }
    for (size_t n : {(size_t)1, (size_t)LAYOUT_BLOCK, (size_t)LAYOUT_BLOCK + 3, (size_t)4500001}) {
        test_norm_of_blocks(n);
    }
    for (size_t n : {1, 7, 1000, 40001}) { test_losses_mean(n); }
    for (int N : {1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 16, 20, 24, 32, 40, 48, 64}) {
        test_tree_sum(N, N < 10 ? 70003 : 515);
    }
    for (size_t n : {1, 3, 4, 262144 + 5}) { test_tree_sum(2, n), test_tree_sum(4, n); }
    for (int N : {1000, 2048, 4095, 4096}) { test_tree_sum(N, 37); }
    for (int count = 1; count <= 7; count++) { test_carry_add(count, 4099); }
    test_carry_add(CARRY_ADD_MAX, 67);
    for (int K : {1, 2, 3, 4, 5, 6, 8, 12, 16, 24, 40}) { test_leaves(K, 0, 131), test_leaves(K, 1, 131); }
    for (size_t offset : {(size_t)0, (size_t)0xfffffff0, (size_t)5 << 32}) {
        test_adamw_parts(20012, true, offset);
        test_adamw_parts(20012, false, offset);
    }
    for (size_t n : {4, 1004}) {
        test_adamw(n, true);
        test_adamw(n, false);
    }
    for (float norm : {0.3f, 1.0f, 1.1f, 7e12f}) {
        test_adamw_clips(1004, norm, 1.0f), test_adamw_clips(1004, norm, 0.0f);
    }
    for (size_t n : {1, 1001}) { test_cast(n); }
    for (size_t n : {(size_t)4, 4 * 7 * NUM_BAD, (size_t)1004, (size_t)100004}) {
        test_adamw_guard(n, true);
        test_adamw_guard(n, false);
    }
    for (size_t n : {5, 511, 513, 600001}) {
        test_find_non_finite<float>(n);
        test_find_non_finite<floatX>(n);
        test_digest(n);
    }
#if defined(PRECISION_BF16)
    test_stochastic_rounding(100004);
    test_random_bits_of_elements(100004);
#endif
    static Matmul mm; // too large for a stack
    matmul_create(&mm, 0, 0);
    test_matmul(&mm, 37, 64, 3 * 64);
    test_matmul(&mm, 131, 40, 128);
    test_matmul(&mm, 1, 768, 8);
    if (sizeof(floatX) == 2 && gpu_capability() == 90) {
        test_unnormalised_softmax(&mm, 37, 64, 251, 256, 1);
        test_unnormalised_softmax(&mm, 1100, 72, 300, 384, 8);
        test_unnormalised_softmax(&mm, 1100, 72, 300, 384, 60);
    }
    for (bool with_master : {true, false}) {
        test_muon(&mm, 64, 64, with_master);
        test_muon(&mm, 256, 64, with_master);
        test_muon(&mm, 64, 160, with_master);
    }
    test_muon_guard(&mm, 64, 256);
    for (int C : {64, 768, 1600}) { test_mlp_groups(&mm, 133, C); } // what no race has measured: the baseline
    test_mlp_groups(&mm, 8253, 768);
    for (const MatmulAlgorithm& a : matmul_algorithms) { // which 16-bit GEMMs take
        if (sizeof(floatX) == 2) { test_tuned(&mm, &a); }
    }
    matmul_destroy(&mm);
    for (int tf32 : {0, 1}) { // with tf32, a build in bf16 is the same again
        if (tf32 && sizeof(floatX) < 4) { continue; }
        matmul_create(&mm, tf32, 0);
        for (size_t BT : {1024, 8192, 32768, 65536}) { test_accumulation_of_model(&mm, BT, 768, 50304); } // 124M
        test_accumulation_of_model(&mm, 32 * 1024, 1024, 50304);                                          // 355M
        test_accumulation_of_model(&mm, 16 * 1024, 1280, 50304);                                          // 774M
        test_accumulation_of_model(&mm, 8 * 1024, 1600, 50304);                                           // 1558M
        for (size_t C : {32, 48, 64, 128, 192, 256}) { // those of the tests
            for (size_t BT : {32, 64, 96, 128, 256, 1024, 16384}) { test_accumulation_of_model(&mm, BT, C, 384); }
        }
        matmul_destroy(&mm);
    }
    return unit_end();
}
