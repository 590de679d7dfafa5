// The GPU decoder (generate_gpt2.cu, llmc/decode_*.cuh): linear layers against fp64, with the same bits for a row alone and in
// any batch; the sampler against sample_token, token by token; and the decoder against gpt2_forward: logits within rounding at
// every position, greedy tokens the same, a sequence's bits the same whatever stands beside it. Needs a GPU.
//
// Bounds of the linear layers: an operation of fp32 errs by EPS = 2^-24 of its result, tensor cores by twice that, as they cut
// off; so a sum of C products is within 2 C EPS sum |terms|, and what is stored between its bounds rounded to the training
// precision. Bounds of logits: a tensor whose elements are rounded with unit roundoff u has a relative error, in norm, of
// u/sqrt(6) on average; 10 of them a layer and 3 more add in quadrature; both sides are rounded (sqrt 2); 3 times that is
// refused. In fp32, where sums err more than their rounding, sqrt(4C) times that.
#include "generate_gpt2.cu"

#include "dev/test/fixtures/parameters.h"
#include "dev/test/fixtures/unit.h"

#include <time.h>

#include <algorithm>
#include <iterator>
#include <vector>

static const double EPS = 0x1p-24;
static const double UNIT_ROUNDOFF = sizeof(floatX) == 4 ? 0x1p-24 : 0x1p-8;

static unsigned long long random_state = 1;
static float random_number(float scale) { return scale * (2.0f * random_f32(&random_state) - 1.0f); }
static int random_int(int n) { return (int)(random_u32(&random_state) % (unsigned)n); }

typedef std::vector<floatX> Numbers;
static Numbers numbers(size_t n, float scale, float offset = 0.0f) {
    Numbers x(n);
    for (floatX& y : x) { y = (floatX)(offset + random_number(scale)); }
    return x;
}
template <class T> static T* on_device(const std::vector<T>& x) {
    T* p = NULL;
    cuda_check(cudaMalloc(&p, x.size() * sizeof(T)));
    cuda_check(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <class T> static std::vector<T> on_host(const T* p, size_t n) {
    std::vector<T> x(n);
    cuda_check(cudaDeviceSynchronize());
    cuda_check(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return x;
}
template <class T> static bool same_bits(const T* x, const T* y, size_t n) { return memcmp(x, y, n * sizeof(T)) == 0; }

// ----------------------------------------------------------------------------
// Linear layers

enum { MAX_ROWS = 256 };

struct Layer {
    int C, OC;
    DecodeEpilogue epilogue;
    bool norm;
    Numbers inp, weight, bias, norm_weight, norm_bias, old;
    floatX *d_inp, *d_weight, *d_bias, *d_norm_weight, *d_norm_bias, *d_out, *d_normed;
};

static Layer new_layer(int C, int OC, DecodeEpilogue epilogue, bool norm) {
    Layer l = {};
    l.C = C, l.OC = OC, l.epilogue = epilogue, l.norm = norm;
    l.inp = numbers((size_t)MAX_ROWS * C, 1.7f, 0.3f), l.weight = numbers((size_t)OC * C, 1.7f / sqrtf((float)C));
    l.bias = numbers((size_t)OC, 1.0f), l.old = numbers((size_t)MAX_ROWS * OC, 1.0f);
    l.norm_weight = numbers((size_t)C, 0.5f, 1.0f), l.norm_bias = numbers((size_t)C, 0.5f);
    l.d_inp = on_device(l.inp), l.d_weight = on_device(l.weight), l.d_bias = on_device(l.bias);
    l.d_norm_weight = on_device(l.norm_weight), l.d_norm_bias = on_device(l.norm_bias);
    l.d_out = on_device(l.old), l.d_normed = on_device(l.inp);
    return l;
}
static void free_layer(Layer& l) {
    for (floatX* p : {l.d_inp, l.d_weight, l.d_bias, l.d_norm_weight, l.d_norm_bias, l.d_out, l.d_normed}) {
        cuda_check(cudaFree(p));
    }
}

// Rows first .. first+M-1 of the layer's output; rows of positions that are negative stay what they were
typedef void (*Linear)(DeviceCode gpu, DecodeLinear p, floatX* normed, cudaStream_t stream);
static Numbers run_layer(const Layer& l, int first, int M, const int* positions = NULL, Linear linear = decode_linear) {
    DeviceCode gpu;
    check(device_code(&gpu));
    cuda_check(cudaMemcpy(l.d_out, l.old.data() + (size_t)first * l.OC, (size_t)M * l.OC * sizeof(floatX),
                          cudaMemcpyHostToDevice));
    DecodeLinear p = {};
    p.out = l.d_out, p.inp = l.d_inp + (size_t)first * l.C, p.weight = l.d_weight, p.bias = l.d_bias;
    if (l.norm) { p.norm_weight = l.d_norm_weight, p.norm_bias = l.d_norm_bias; }
    p.positions = positions, p.M = M, p.C = l.C, p.OC = l.OC, p.stride = l.OC, p.epilogue = l.epilogue;
    status_clear();
    linear(gpu, p, l.d_normed, 0);
    check(status_now());
    return on_host(l.d_out, (size_t)M * l.OC);
}

// inp (C) as the layer multiplies it: normalised in fp64 and rounded, with a bound on what fp32 may add. terms: the sum of what
// is added up to an element
static void input_row(const Layer& l, int row, std::vector<double>& x, std::vector<double>& terms, double* bound) {
    double mean = 0.0, variance = 0.0;
    x.resize((size_t)l.C), terms.resize((size_t)l.C);
    for (int c = 0; c < l.C; c++) { mean += x[c] = (double)(float)l.inp[(size_t)row * l.C + c]; }
    *bound = 0.0;
    for (int c = 0; c < l.C; c++) { terms[c] = fabs(x[c]); }
    if (!l.norm) { return; }
    mean /= l.C;
    for (double y : x) { variance += (y - mean) * (y - mean) / l.C; }
    for (int c = 0; c < l.C; c++) {
        double rstd = 1.0 / sqrt(variance + 1e-5), w = (double)(float)l.norm_weight[c],
               b = (double)(float)l.norm_bias[c];
        x[c] = (double)(float)(floatX)(float)((x[c] - mean) * rstd * w + b), terms[c] = fabs(x[c]);
    }
    *bound = 2 * UNIT_ROUNDOFF + 64 * EPS; // an element may be rounded to the other side; mean and rstd
}

// Elements of the output against fp64: `count` of them, all over the rows and columns
static void check_layer(const Layer& l, const Numbers& out, int count) {
    std::vector<double> x, of_element;
    int wrong = 0;
    for (int i = 0; i < count; i++) {
        int row = (int)((size_t)i * 7919 % MAX_ROWS), o = i < l.OC ? l.OC - 1 - i : random_int(l.OC);
        double sum = 0.0, terms = 0.0, element_bound;
        input_row(l, row, x, of_element, &element_bound);
        for (int c = 0; c < l.C; c++) {
            double w = (double)(float)l.weight[(size_t)o * l.C + c];
            sum += x[c] * w, terms += of_element[c] * fabs(w);
        }
        double bias = (double)(float)l.bias[o], y = sum + bias;
        double bound =
            (2.0 * l.C * EPS + element_bound / sqrt((double)l.C) * 4) * terms + 2 * EPS * (fabs(bias) + fabs(y));
        bound += UNIT_ROUNDOFF * fabs(y); // rounded
        if (l.epilogue == DECODE_GELU) {
            y = 0.5 * y * (1.0 + tanh(sqrt(2.0 / M_PI) * (y + 0.044715 * y * y * y)));
            bound = 1.2 * bound + (UNIT_ROUNDOFF + 32 * EPS) * fabs(y) + 8 * EPS; // |gelu'| < 1.2
        }
        if (l.epilogue == DECODE_RESIDUAL) {
            y += (double)(float)l.old[(size_t)row * l.OC + o];
            bound += UNIT_ROUNDOFF * fabs(y);
        }
        wrong += !(fabs((double)(float)out[(size_t)row * l.OC + o] - y) <= bound);
    }
    if (!unit_check(wrong == 0, "a linear layer is its equation", __FILE__, __LINE__)) {
        printf("    C=%d OC=%d epilogue %d norm %d: %d of %d are wrong\n", l.C, l.OC, l.epilogue, l.norm, wrong, count);
    }
}

// All rows against fp64, and fewer of them, which must have the same bits
static Numbers test_rows(const Layer& l, Linear linear) {
    Numbers all = run_layer(l, 0, MAX_ROWS, NULL, linear);
    check_layer(l, all, 200);
    bool same = true;
    for (int M :
         {1, 2, 3, 4, 5, 8, 15, 16, 17, 31, 33, 48, 57, 64, 65, 100, 129}) { // alone, and in tiles of every kind
        int first = random_int(MAX_ROWS - M + 1);
        Numbers some = run_layer(l, first, M, NULL, linear);
        if (!same_bits(some.data(), all.data() + (size_t)first * l.OC, some.size())) {
            printf("    C=%d OC=%d norm %d: %d rows from %d on have other bits\n", l.C, l.OC, l.norm, M, first);
            same = false;
        }
    }
    CHECK(same);
    return all;
}

// The kernel of GPUs before sm_90
static void linear_of_any_gpu(DeviceCode gpu, DecodeLinear p, floatX* normed, cudaStream_t stream) {
    gpu.sm_90 = 0;
    decode_linear(gpu, p, normed, stream);
}

static void test_layer(int C, int OC, DecodeEpilogue epilogue, bool norm) {
    Layer l = new_layer(C, OC, epilogue, norm);
    Numbers all = test_rows(l, decode_linear), of_any_gpu = run_layer(l, 0, MAX_ROWS, NULL, linear_of_any_gpu);
    bool same = same_bits(of_any_gpu.data(), all.data(), all.size());
    CHECK(same && "both kernels give the same bits");
    for (int M : {7, 20, 50}) { // in one tile of rows, and in several
        std::vector<int> positions(M);
        for (int b = 0; b < M; b++) { positions[b] = b % 3 == 1 ? -1 : b; }
        int* d_positions = on_device(positions);
        Numbers some = run_layer(l, 0, M, d_positions);
        for (int b = 0; b < M; b++) {
            const floatX* expected = positions[b] < 0 ? l.old.data() : all.data();
            same = same && same_bits(&some[(size_t)b * OC], expected + (size_t)b * OC, (size_t)OC);
        }
        cuda_check(cudaFree(d_positions));
    }
    CHECK(same && "slots that take no part are not written");
    free_layer(l);
}

// The same as on a GPU of so few SMs that CTAs have several tiles, one after the other
static void test_several_tiles(int C, int OC, DecodeEpilogue epilogue, bool norm) {
    Layer l = new_layer(C, OC, epilogue, norm);
    Numbers all = run_layer(l, 0, MAX_ROWS);
    Numbers several = test_rows(l, [](DeviceCode gpu, DecodeLinear p, floatX* normed, cudaStream_t stream) {
        gpu.sms = 16;
        decode_linear(gpu, p, normed, stream);
    });
    CHECK(same_bits(several.data(), all.data(), all.size()));
    free_layer(l);
}

// Of prompts, in tiles of 128 columns, and as on a GPU of so few SMs that some of M rows have wide tiles: the same bits
static void test_prompt_layer(int C, int OC, DecodeEpilogue epilogue, bool norm) {
    DeviceCode gpu;
    check(device_code(&gpu));
    if (!prompt_gemm_serves(gpu)) { return; }
    Layer l = new_layer(C, OC, epilogue, norm);
    Numbers all = test_rows(
        l, [](DeviceCode g, DecodeLinear p, floatX* normed, cudaStream_t s) { prompt_linear(g, p, normed, s); });
    Numbers wide = test_rows(l, [](DeviceCode g, DecodeLinear p, floatX* normed, cudaStream_t s) {
        g.sms = CEIL_DIV(p.OC, 192) * (p.M > 128 ? 2 : 1);
        prompt_linear(g, p, normed, s);
    });
    CHECK(same_bits(wide.data(), all.data(), all.size()));
    free_layer(l);
}

// A classifier of odd OC, on so few SMs that CTAs have several tiles: logits have the bits of rows alone by the other kernel,
// rows without a position and the padding stay, and each row's key is that of its largest logit, or 0. Columns o and o + period
// are the same.
static void test_head(int sms, int C, int OC, int period, int repeats = 1) {
    DeviceCode gpu;
    check(device_code(&gpu));
    const int stride = OC + 3;
    const bool batches = gpu.sm_90 && sizeof(floatX) == 2 && decode_splits(C) == 1; // others leave the keys
    Layer l = new_layer(C, OC, DECODE_STORE, true);
    for (size_t e = (size_t)period * C; e < l.weight.size(); e++) { l.weight[e] = l.weight[e - (size_t)period * C]; }
    cuda_check(cudaMemcpy(l.d_weight, l.weight.data(), l.weight.size() * sizeof(floatX), cudaMemcpyHostToDevice));
    const std::vector<float> before((size_t)MAX_ROWS * stride, -77.0f);
    float* d_out = on_device(before);
    DecodeLinear p = {};
    p.logits = d_out, p.weight = l.d_weight, p.norm_weight = l.d_norm_weight, p.norm_bias = l.d_norm_bias;
    p.C = C, p.OC = OC, p.stride = stride, p.epilogue = DECODE_STORE;
    const int rows_of[] = {1, 4, 16, 17, 32, 33, 48, 49, 63, 64, 100};
    int wrong = 0;
    for (int i = 0; i < repeats * (int)std::size(rows_of); i++) {
        const int M = rows_of[i % std::size(rows_of)];
        const int first = random_int(MAX_ROWS - M + 1);
        std::vector<int> positions((size_t)M);
        for (int b = 0; b < M; b++) { positions[(size_t)b] = b % 5 == 3 ? -1 : b; }
        int* d_positions = on_device(positions);
        unsigned long long* d_keys = on_device(std::vector<unsigned long long>((size_t)M));
        std::vector<float> alone;
        for (int b = 0; b < M; b += 2) { // two rows at a time, by another kernel
            p.inp = l.d_inp + (size_t)(first + b) * C, p.M = std::min(2, M - b), p.positions = NULL, p.row_keys = NULL;
            linear_of_any_gpu(gpu, p, l.d_normed, 0);
            const std::vector<float> rows = on_host(d_out, (size_t)p.M * stride);
            alone.insert(alone.end(), rows.begin(), rows.end());
        }
        cuda_check(cudaMemcpy(d_out, before.data(), before.size() * sizeof(float), cudaMemcpyHostToDevice));
        p.inp = l.d_inp + (size_t)first * C, p.M = M, p.positions = d_positions, p.row_keys = d_keys;
        DeviceCode few = gpu;
        few.sms = sms;
        status_clear();
        decode_linear(few, p, l.d_normed, 0);
        check(status_now());
        const std::vector<float> out = on_host(d_out, (size_t)MAX_ROWS * stride);
        const std::vector<unsigned long long> keys = on_host(d_keys, (size_t)M);
        for (int b = 0; b < MAX_ROWS; b++) {
            const bool active = b < M && positions[(size_t)b] >= 0;
            const float* row = &out[(size_t)b * stride];
            wrong += !same_bits(row, active ? &alone[(size_t)b * stride] : before.data(), (size_t)OC);
            wrong += !same_bits(row + OC, before.data(), (size_t)(stride - OC));
            unsigned long long key = 0;
            for (int o = 0; o < OC && active; o++) { key = std::max(key, logit_key(row[o], o)); }
            wrong += b < M && keys[(size_t)b] != (batches && M >= BATCH_MIN_ROWS ? key : 0);
        }
        cuda_check(cudaFree(d_positions));
        cuda_check(cudaFree(d_keys));
    }
    CHECK(wrong == 0 && "the head's logits and keys are those of rows alone");
    cuda_check(cudaFree(d_out));
    free_layer(l);
}

// ----------------------------------------------------------------------------
// The sampler

// One step of `settings` for each row of logits (B,V), against sample_token on the host; greedy: by the kernel of steps whose
// sequences are all greedy, as `settings` are
static void test_sampler(int V, float spread, const std::vector<SamplerSettings>& settings, bool greedy = false) {
    int B = (int)settings.size(), Vp = CEIL_DIV(V, 128) * 128, C = 32, T = 8, words = CEIL_DIV(V, 32), wrong = 0;
    std::vector<float> logits((size_t)B * Vp);
    Numbers embedding = numbers((size_t)Vp * C, 1.0f);
    for (float& y : logits) { y = random_number(spread); }
    std::vector<unsigned> seen((size_t)B * words);
    std::vector<std::vector<int>> seen_list((size_t)B);
    std::vector<DecodeSlot> slots((size_t)B);
    std::vector<unsigned long long> keys((size_t)B);
    for (int b = 0; b < B; b++) {
        for (int v = 0; v < V; v++) {
            if (b % 4 == 3) { logits[(size_t)b * Vp + v] = (float)(v % 3); } // many ties
            if (v % 5 != b % 5) { continue; }
            seen[(size_t)b * words + v / 32] |= 1u << v % 32;
            seen_list[b].push_back(v);
        }
        for (int v = V; v < Vp; v++) { logits[(size_t)b * Vp + v] = 1e9f; } // padding must not be drawn
        for (int v = 0; v < V && (greedy || b % 2); v++) {                  // the others look for it
            keys[b] = std::max(keys[b], logit_key(logits[(size_t)b * Vp + v], v));
        }
        slots[b] = {settings[b], (uint64_t)b, b % T, b % 7 != 6};
    }
    DecodeBegin p = {};
    unsigned long long* word;
    cuda_check(cudaMallocHost(&word, B * sizeof(*word)));
    floatX* d_embedding = on_device(embedding);
    p.slots = on_device(slots), p.positions = on_device(std::vector<int>(B)), p.seen = on_device(seen);
    p.logits = on_device(logits), p.scratch = on_device(std::vector<float>((size_t)B * Vp));
    p.x = on_device(Numbers((size_t)B * C)), p.wte = d_embedding, p.wpe = d_embedding;
    p.step = on_device(std::vector<unsigned>(B)), p.word = word, p.row_keys = on_device(keys);
    p.T = T, p.V = V, p.Vp = Vp, p.C = C, p.words = words;
    if (greedy) {
        decode_greedy_kernel<<<B, GREEDY_THREADS>>>(p);
    } else {
        decode_sample_kernel<<<B, SAMPLE_THREADS>>>(p);
    }
    cuda_check(cudaGetLastError());
    cuda_check(cudaDeviceSynchronize());
    std::vector<float> row((size_t)V), scratch(2 * (size_t)V);
    std::vector<int> positions = on_host(p.positions, B);
    Numbers x = on_host(p.x, (size_t)B * C);
    for (int b = 0; b < B; b++) {
        int token = -1;
        for (int v = 0; v < V; v++) { row[v] = logits[(size_t)b * Vp + v]; }
        if (slots[b].active) {
            float coin = sampler_coin(settings[b].seed, (uint64_t)b, (uint64_t)slots[b].length);
            token = sample_token(row.data(), V, &settings[b], seen_list[b].data(), (int)seen_list[b].size(), coin,
                                 scratch.data());
        }
        bool right = word[b] == sampled_word(1, token) && positions[b] == (token < 0 ? -1 : slots[b].length);
        for (int c = 0; c < C && token >= 0; c++) {
            float sum = (float)embedding[(size_t)token * C + c] + (float)embedding[(size_t)slots[b].length * C + c];
            right = right && (float)x[(size_t)b * C + c] == (float)(floatX)sum;
        }
        if (right || wrong++ > 3) { continue; }
        printf("    V=%d slot %d: token %d, expected %d; temperature %g top_k %d top_p %g penalty %g\n", V, b,
               (int)(unsigned)word[b], token, settings[b].temperature, settings[b].top_k, settings[b].top_p,
               settings[b].repetition_penalty);
    }
    CHECK(wrong == 0 && "tokens are sample_token's");
    for (void* memory : {(void*)p.slots, (void*)p.positions, (void*)p.seen, (void*)p.logits, (void*)p.scratch,
                         (void*)p.x, (void*)p.step, (void*)p.row_keys, (void*)d_embedding}) {
        cuda_check(cudaFree(memory));
    }
    cuda_check(cudaFreeHost(word));
}

static void test_samplers(int V) {
    std::vector<SamplerSettings> settings;
    for (float temperature : {0.0f, 0.7f, 1.0f, 3.0f}) {
        for (int top_k : {0, 1, 7, V / 2, V + 5}) {
            for (float top_p : {0.0f, 0.3f, 0.9f, 1.0f}) {
                for (float penalty : {1.0f, 1.3f}) {
                    settings.push_back({temperature, top_k, top_p, penalty, (uint64_t)settings.size() / 3});
                }
            }
        }
    }
    test_sampler(V, 4.0f, settings);
    test_sampler(V, 30.0f, settings);
    test_sampler(V, 4.0f, std::vector<SamplerSettings>(50, sampler_greedy()), true);
}

// ----------------------------------------------------------------------------
// The decoder

// Weights with which every part matters: matrices keep the variance of what they multiply, biases and gains are no 0 and 1.
static GPT2* random_model(const char* descriptor, int V, int T) {
    GPT2Config config = gpt2_config_from_descriptor(descriptor, V);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    std::vector<float> params(gpt2_parameters(table, config));
    size_t at = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        float spread = table[i].cols > 1 ? sqrtf(3.0f / (float)table[i].cols) : 0.3f;
        spread = i == PARAMETER_wte || i == PARAMETER_wpe ? 1.0f : spread;
        for (size_t k = 0; k < table[i].count; k++) {
            params[at++] = random_number(spread) + (table[i].init == INIT_ONE ? 1.0f : 0.0f);
        }
    }
    GPT2Settings settings = gpt2_default_settings();
    settings.tf32 = 0;
    GPT2* model;
    check(gpt2_create(&model, config, settings));
    check(gpt2_allocate(model, 1, T, 0));
    check(gpt2_set_parameters(model, params.data()));
    return model;
}

static double logit_tolerance(GPT2Config c) {
    double sums = sizeof(floatX) == 4 ? sqrt(4.0 * c.channels) : 1.0;
    return sqrt(2.0) * 3.0 * UNIT_ROUNDOFF / sqrt(6.0) * sqrt(10.0 * c.num_layers + 3.0) * sums;
}

static std::vector<int> random_tokens(int n, int V) {
    std::vector<int> tokens((size_t)n);
    for (int& t : tokens) { t = random_int(V); }
    return tokens;
}

// Losses and logits of a batch whose logits are large, against fp64 from lnf and wte as they are stored. A logit errs by
// 2 C EPS sum |terms|, a loss by as much at its target and in its sum, and by what its exponentials and their sum err.
// `refused` counts the losses that logits rounded to the training precision would have put outside of this.
static void evaluation_takes_fp32(const char* descriptor, int V, int T, int tokens) {
    GPT2* model = random_model(descriptor, V, T);
    const size_t C = (size_t)model->info.config.channels;
    std::vector<float> params(model->info.num_parameters), row((size_t)V);
    check(gpt2_get_parameters(model, params.data()));
    for (size_t i = 0; i < (size_t)V * C; i++) { params[i] = (float)(floatX)(params[i] * 8.0f); } // wte
    check(gpt2_set_parameters(model, params.data()));
    const std::vector<int> inputs = random_tokens(tokens, V), targets = random_tokens(tokens, V);
    float mean;
    check(gpt2_validate(model, &mean, inputs.data(), targets.data(), 1, tokens));
    const Numbers lnf = on_host(model->acts.lnf, (size_t)tokens * C);
    int wrong = 0, refused = 0;
    double sum = 0.0;
    for (int t = 0; t < tokens; t++) {
        std::vector<double> x((size_t)V), rounded((size_t)V);
        double worst = 0.0, largest = -INFINITY, size = 0.0, l = 0.0, l_rounded = 0.0;
        check(gpt2_get_logits(model, row.data(), t));
        for (int v = 0; v < V; v++) {
            double terms = 0.0;
            for (size_t c = 0; c < C; c++) {
                const double term = (double)(float)lnf[(size_t)t * C + c] * (double)params[(size_t)v * C + c];
                x[v] += term, terms += fabs(term);
            }
            const double bound = 2.0 * (double)C * EPS * terms;
            wrong += !(fabs((double)row[v] - x[v]) <= bound);
            rounded[v] = (double)(float)(floatX)(float)x[v];
            worst = fmax(worst, bound), largest = fmax(largest, x[v]), size = fmax(size, fabs(x[v]));
        }
        for (int v = 0; v < V; v++) { l += exp(x[v] - largest), l_rounded += exp(rounded[v] - largest); }
        const double expected = largest + log(l) - x[targets[t]], found = model->info.losses[t];
        const double bound = 2.0 * worst + EPS * (V + 40.0 + 16.0 * size);
        wrong += !(fabs(found - expected) <= bound);
        refused += !(fabs(largest + log(l_rounded) - rounded[targets[t]] - expected) <= bound);
        sum += found;
    }
    wrong += !(fabs(mean - sum / tokens) <= 2 * EPS * fabs(mean));
    if (!CHECK(wrong == 0 && (sizeof(floatX) == 4 || tokens == 1 || 2 * refused > tokens))) {
        printf("    %s, %d tokens: %d wrong, %d losses of rounded logits refused\n", descriptor, tokens, wrong,
               refused);
    }
    gpt2_free(model);
}

static GPT2Decoder* new_decoder(GPT2* model, int B, int T) {
    GPT2Decoder* d;
    check(gpt2_decoder_create(&d, model, B, T));
    return d;
}
static std::vector<float> logits_of(GPT2Decoder* d, int slot) {
    std::vector<float> x((size_t)d->config.vocab_size);
    const float* logits = d->logits + (size_t)slot * (size_t)d->config.padded_vocab_size;
    check(cuda_try(cudaMemcpyAsync(x.data(), logits, x.size() * sizeof(float), cudaMemcpyDeviceToHost, d->stream)));
    check(cuda_try(cudaStreamSynchronize(d->stream)));
    return x;
}

// Greedy text of a random prompt until the sequence is full: logits and tokens of every position against gpt2_forward, across
// all bounds of graphs; the last token comes from a full sequence.
static void decoder_is_forward(const char* descriptor, int V, int T, int prompt) {
    GPT2* model = random_model(descriptor, V, T);
    GPT2Decoder* d = new_decoder(model, 3, T);
    double tolerance = logit_tolerance(model->info.config), worst = 0.0;
    std::vector<int> tokens = random_tokens(prompt, V), next(3);
    std::vector<std::vector<float>> logits;
    DecoderPrompt p = {1, tokens.data(), prompt, sampler_greedy(), 0};
    check(gpt2_decoder_prefill(d, &p, 1));
    while ((int)tokens.size() < T + 1) {
        logits.push_back(logits_of(d, 1));
        check(gpt2_decoder_next(d, next.data()));
        CHECK(next[0] == -1 && next[2] == -1 && next[1] == sample_argmax(logits.back().data(), V));
        tokens.push_back(next[1]);
        CHECK(d->sequences[1].length == (tokens.size() <= (size_t)T ? (int)tokens.size() : T));
    }
    check(gpt2_decoder_next(d, next.data()));
    CHECK(next[1] == -1); // full
    check(gpt2_forward(model, tokens.data(), 1, T));
    std::vector<float> expected((size_t)V);
    int other = 0;
    for (size_t i = 0; i < logits.size(); i++) {
        double difference = 0.0, norm = 0.0;
        int t = prompt - 1 + (int)i, best;
        check(gpt2_get_logits(model, expected.data(), t));
        for (int v = 0; v < V; v++) {
            difference += pow((double)logits[i][v] - (double)expected[v], 2), norm += pow((double)expected[v], 2);
        }
        worst = worse(worst, sqrt(difference / norm));
        best = sample_argmax(expected.data(), V);
        double margin = 4 * tolerance * sqrt(norm / V); // nearer ones are one for this precision
        other += !(expected[tokens[t + 1]] >= expected[best] - margin);
    }
    if (!CHECK(worst <= tolerance && other == 0)) {
        printf("    %s prompt %d of %d: error %.3g, tolerance %.3g; %d tokens are others\n", descriptor, prompt, T,
               worst, tolerance, other);
    }
    gpt2_decoder_free(d);
    gpt2_free(model);
}

// A sequence with a prompt of so many tokens alone, and among others of other lengths that come and go
static void sequence_is_alone(GPT2* model, int B, int T, int prompt, SamplerSettings settings) {
    int V = model->info.config.vocab_size, steps = 40, slot = B / 2;
    std::vector<int> tokens = random_tokens(T, V), next((size_t)B), alone;
    std::vector<float> logits;
    for (int round = 0; round < 2; round++) {
        GPT2Decoder* d = new_decoder(model, round == 0 ? 1 : B, T);
        std::vector<DecoderPrompt> prompts;
        for (int b = 0; b < B && round == 1; b++) {
            if (b != slot && b % 5 != 4) {
                prompts.push_back({b, tokens.data() + b % 7, 1 + b * 3 % (T / 2), settings, (uint64_t)b});
            }
        }
        prompts.push_back({round == 0 ? 0 : slot, tokens.data() + 3, prompt, settings, 7});
        check(gpt2_decoder_prefill(d, prompts.data(), (int)prompts.size()));
        for (int i = 0; i < steps; i++) {
            check(gpt2_decoder_next(d, next.data()));
            int token = next[round == 0 ? 0 : slot];
            if (round == 0) { alone.push_back(token); }
            if (!unit_check(token == alone[i], "a sample does not depend on the batch", __FILE__, __LINE__)) {
                printf("    batch of %d, token %d\n", B, i);
                break;
            }
            if (round == 1 && i == 10) { gpt2_decoder_stop(d, (slot + 1) % B); }
        }
        std::vector<float> x = logits_of(d, round == 0 ? 0 : slot);
        if (round == 0) { logits = x; }
        CHECK(same_bits(x.data(), logits.data(), x.size()));
        gpt2_decoder_free(d);
    }
}

// A stop acts on its slot alone. Sampled tokens give the logits of gpt2_forward.
static void slots_stop(GPT2* model, int T, SamplerSettings settings) {
    int V = model->info.config.vocab_size;
    std::vector<int> tokens = random_tokens(T, V), next(2), first;
    GPT2Decoder* d = new_decoder(model, 2, T);
    for (int stops = 0; stops < 2; stops++) {
        DecoderPrompt prompts[] = {{0, tokens.data(), 5, settings, 0}, {1, tokens.data(), 20, settings, 1}};
        check(gpt2_decoder_prefill(d, prompts, 2));
        std::vector<int> text;
        for (int i = 0; i < 12; i++) {
            if (stops && i == 4) { gpt2_decoder_stop(d, 1); }
            std::vector<float> before = logits_of(d, 1);
            check(gpt2_decoder_next(d, next.data()));
            std::vector<float> after = logits_of(d, 1);
            text.push_back(next[0]);
            if (!stops || i < 4) { continue; }
            CHECK(next[0] >= 0 && next[1] == -1 && d->sequences[1].length == 24);
            CHECK(same_bits(before.data(), after.data(), before.size()));
        }
        if (stops == 0) { first = text; }
        CHECK(text == first);
    }
    DecoderPrompt prompt = {0, tokens.data(), 3, settings, 0};
    check(gpt2_decoder_prefill(d, &prompt, 1));
    for (int t = 3; t < T; t++) {
        check(gpt2_decoder_next(d, next.data()));
        tokens[(size_t)t] = next[0];
    }
    check(gpt2_forward(model, tokens.data(), 1, T));
    std::vector<float> x = logits_of(d, 0), expected((size_t)V);
    check(gpt2_get_logits(model, expected.data(), T - 1));
    double difference = 0.0, norm = 0.0;
    for (int v = 0; v < V; v++) {
        difference += pow((double)x[v] - expected[v], 2), norm += pow((double)expected[v], 2);
    }
    CHECK_NEAR(sqrt(difference / norm), 0.0, logit_tolerance(model->info.config));
    // what is refused changes nothing
    prompt.tokens = &V, prompt.count = 1;
    CHECK(gpt2_decoder_prefill(d, &prompt, 1) == STATUS_ERROR && d->sequences[0].length == T);
    gpt2_decoder_free(d);
}

// A greedy sequence and a sampled one, each alone, and beside each other while the sampled one comes and goes.
static void greedy_beside_sampled(GPT2* model, int T) {
    const SamplerSettings settings[] = {sampler_greedy(), {0.8f, 50, 0.95f, 1.1f, 42}};
    std::vector<int> tokens = random_tokens(20, model->info.config.vocab_size), next(2), alone[2], together[2];
    for (int i = 0; i < 2; i++) {
        GPT2Decoder* d = new_decoder(model, 1, T);
        DecoderPrompt prompt = {0, tokens.data() + i, 9 + i, settings[i], (uint64_t)i};
        check(gpt2_decoder_prefill(d, &prompt, 1));
        for (int step = 0; step < 24; step++) {
            check(gpt2_decoder_next(d, next.data()));
            alone[i].push_back(next[0]);
        }
        gpt2_decoder_free(d);
    }
    GPT2Decoder* d = new_decoder(model, 2, T);
    DecoderPrompt prompts[] = {{0, tokens.data(), 9, settings[0], 0}, {1, tokens.data() + 1, 10, settings[1], 1}};
    check(gpt2_decoder_prefill(d, prompts, 2));
    for (int step = 0; step < 24; step++) {
        if (step == 6) { gpt2_decoder_stop(d, 1); }
        if (step == 14) { check(gpt2_decoder_prefill(d, &prompts[1], 1)); }
        check(gpt2_decoder_next(d, next.data()));
        for (int i = 0; i < 2; i++) {
            if (next[i] >= 0) { together[i].push_back(next[i]); }
        }
    }
    std::vector<int> begun_twice(alone[1].begin(), alone[1].begin() + 6);
    begun_twice.insert(begun_twice.end(), alone[1].begin(), alone[1].begin() + 10);
    CHECK(together[0] == alone[0] && together[1] == begun_twice);
    gpt2_decoder_free(d);
}

// All tokens but one have the same embedding, of elements between 8 and 16, and that one an element that is larger by 1/16,
// the last bit of bf16. So all logits are some C 12, and its logit is larger by 1/16 or so: in bf16 they are one, in fp32 they
// are not. Greedy steps, samples from the largest alone, and the trainer's logits take it.
static void near_ties_are_told_apart(const char* descriptor, int V, int T, const std::vector<int>& batches) {
    GPT2* model = random_model(descriptor, V, T);
    const size_t C = (size_t)model->info.config.channels;
    const int best = V - 3;
    std::vector<float> params(model->info.num_parameters), expected((size_t)V);
    check(gpt2_get_parameters(model, params.data()));
    for (size_t c = 0; c < C; c++) {
        const float x = c == 1 ? 15.0f : (random_int(2) ? 1.0f : -1.0f) * (float)(floatX)(12.0f + random_number(3.9f));
        for (size_t v = 0; v < (size_t)V; v++) { params[v * C + c] = x; }
    }
    params[(size_t)best * C + 1] += 0.0625f;
    check(gpt2_set_parameters(model, params.data()));
    const std::vector<int> tokens = random_tokens(5, best);
    check(gpt2_forward(model, tokens.data(), 1, 5));
    check(gpt2_get_logits(model, expected.data(), 4));
    CHECK(sample_argmax(expected.data(), V) == best);
    CHECK(sizeof(floatX) == 4 || (float)(floatX)expected[best] == (float)(floatX)expected[0]);
    for (int B : batches) {
        GPT2Decoder* d = new_decoder(model, B, T);
        std::vector<DecoderPrompt> prompts;
        std::vector<int> next((size_t)B);
        int wrong = 0;
        for (int b = 0; b < B; b++) {
            const SamplerSettings one = {1.0f, 1, 1.0f, 1.0f, 42};
            prompts.push_back({b, tokens.data(), 5, b % 2 ? one : sampler_greedy(), (uint64_t)b});
        }
        check(gpt2_decoder_prefill(d, prompts.data(), B));
        for (int step = 0; step < 4; step++) {
            if (step == 2) { // greedy ones alone: by the keys of a step
                for (int b = 1; b < B; b += 2) { gpt2_decoder_stop(d, b); }
            }
            check(gpt2_decoder_next(d, next.data()));
            for (int b = 0; b < B; b++) { wrong += next[(size_t)b] != (b % 2 && step >= 2 ? -1 : best); }
        }
        if (!CHECK(wrong == 0)) { printf("    %s, batch of %d: %d tokens\n", descriptor, B, wrong); }
        gpt2_decoder_free(d);
    }
    gpt2_free(model);
}

// Models on streams of their own generate at the same time: steps in one kernel, each of which needs all SMs, do not wait for
// each other for ever, and each model's text is what it is alone.
static void decoders_at_once(SamplerSettings settings) {
    constexpr int N = 3, T = 96, V = 777;
    GPT2* models[N];
    GPT2Decoder* decoders[N];
    std::vector<int> alone[N], together[N], tokens = random_tokens(20, V);
    for (int i = 0; i < N; i++) { models[i] = random_model("gpt2:l2c768h12t96", V, T); }
    auto begin = [&](int i) {
        decoders[i] = new_decoder(models[i], 1, T);
        DecoderPrompt prompt = {0, tokens.data() + i, 9 + i, settings, (uint64_t)i};
        check(gpt2_decoder_prefill(decoders[i], &prompt, 1));
    };
    auto go_on = [&](int i, std::vector<int>& text) {
        int next;
        check(gpt2_decoder_next(decoders[i], &next)); // returns while the step is computed
        text.push_back(next);
    };
    for (int i = 0; i < N; i++) {
        begin(i);
        for (int step = 0; step < 60; step++) { go_on(i, alone[i]); }
        gpt2_decoder_free(decoders[i]);
    }
    for (int i = 0; i < N; i++) { begin(i); }
    for (int step = 0; step < 60; step++) {
        for (int i = 0; i < N; i++) { go_on(i, together[i]); }
    }
    for (int i = 0; i < N; i++) {
        CHECK(together[i] == alone[i]);
        gpt2_decoder_free(decoders[i]);
        gpt2_free(models[i]);
    }
}

// `head SECONDS`: the head alone, again and again, for gpu_load.sh. A fault of its ring showed only beside other programs on
// the GPU, and then in one of 400 launches.
int main(int argc, char** argv) {
    if (gpt2_num_devices() == 0) {
        printf("skipped: no GPU\n");
        return 0;
    }
    if (argc == 3 && strcmp(argv[1], "head") == 0) {
        const time_t end = time(NULL) + atoi(argv[2]);
        do { test_head(8, 768, 1601, 1601, 50), test_head(16, 1600, 2999, 288, 50); } while (time(NULL) < end);
        return unit_end();
    }
    const int sizes[][2] = {{768, 2304},  {768, 768},   {768, 3072}, {3072, 768}, {1600, 4800}, {6400, 1600},
                            {1024, 3072}, {5120, 1280}, {32, 40},    {96, 7},     {224, 97},    {800, 96},
                            {832, 100},   {2048, 50},   {5120, 24},  {640, 1920}};
    for (const int* s : sizes) {
        test_layer(s[0], s[1], DECODE_STORE, true);
        test_layer(s[0], s[1], s[0] % 64 == 0 ? DECODE_RESIDUAL : DECODE_GELU, false);
    }
    test_layer(768, 3072, DECODE_GELU, true);
    test_several_tiles(3072, 146, DECODE_GELU, false);
    test_several_tiles(3072, 768, DECODE_RESIDUAL, false);
    test_several_tiles(768, 3072, DECODE_GELU, true);
    test_several_tiles(1280, 640, DECODE_STORE, true);
    test_several_tiles(6400, 400, DECODE_RESIDUAL, false);
    test_head(8, 768, 1601, 1601);
    test_head(3, 768, 2999, 288); // 16 tiles each, with ties
    test_head(16, 1024, 1601, 1601);
    test_head(16, 1600, 1601, 288);
    test_prompt_layer(768, 2304, DECODE_STORE, true);
    test_prompt_layer(3072, 768, DECODE_RESIDUAL, false);
    test_prompt_layer(96, 288, DECODE_STORE, true);
    test_prompt_layer(416, 1664, DECODE_GELU, true);
    evaluation_takes_fp32("gpt2:l1c64h1t100", 777, 100, 100); // in two chunks, in fp32 one
    evaluation_takes_fp32("gpt2:l1c64h1t99", 50257, 99, 33);
    evaluation_takes_fp32("gpt2:l1c192h3t1", 500, 1, 1); // a row in fp32 is larger than acts.output
    test_samplers(33);
    test_samplers(1000);
    test_samplers(50257);
    decoder_is_forward("gpt2:l2c128h2t160", 1000, 160, 1);
    decoder_is_forward("gpt2:l3c192h3t100", 500, 100, 30);
    decoder_is_forward("gpt2:l1c768h6t300", 777, 300, 290);
    // a step in one kernel (decode/step.cuh; not C = 800): every head size, one split of a sum over C and two, segments of 3
    // chunks and of 4, chunks of keys that are merged
    decoder_is_forward("gpt2:l3c832h13t300", 1000, 300, 250);
    decoder_is_forward("gpt2:l2c576h6t140", 500, 140, 120);
    decoder_is_forward("gpt2:l2c416h13t80", 300, 80, 3);
    decoder_is_forward("gpt2:l2c800h25t70", 300, 70, 5);
    decoder_is_forward("gpt2:l2c1600h25t70", 300, 70, 60);
    const SamplerSettings drawn = {0.8f, 50, 0.95f, 1.1f, 42};
    GPT2* model = random_model("gpt2:l2c128h4t96", 1003, 96);
    for (int B : {2, 5, 17, 40, 70}) { sequence_is_alone(model, B, 96, B % 2 ? 9 : 25, drawn); }
    for (int B : {17, 40}) { sequence_is_alone(model, B, 96, B, sampler_greedy()); }
    for (SamplerSettings settings : {sampler_greedy(), SamplerSettings{1.0f, 0, 1.0f, 1.0f, 1}}) {
        slots_stop(model, 96, settings);
    }
    greedy_beside_sampled(model, 96);
    gpt2_free(model);
    // wide tiles in a graph: kernels whose layers ask for more shared memory, and for different amounts, and clusters
    model = random_model("gpt2:l2c768h12t96", 777, 96);
    for (int B : {2, 5, 8, 9, 40}) { sequence_is_alone(model, B, 96, B % 2 ? 9 : 25, drawn); }
    for (int B : {20, 70, 260}) { sequence_is_alone(model, B, 96, 5, sampler_greedy()); } // 260: fc in wide tiles
    for (SamplerSettings settings : {sampler_greedy(), SamplerSettings{1.0f, 0, 1.0f, 1.0f, 1}}) {
        slots_stop(model, 96, settings);
    }
    greedy_beside_sampled(model, 96);
    gpt2_free(model);
    // the head in wide tiles, which find the largest logits
    model = random_model("gpt2:l1c128h2t60", 20011, 60);
    for (int B : {17, 40, 70}) { sequence_is_alone(model, B, 60, 5, sampler_greedy()); }
    gpt2_free(model);
    model = random_model("gpt2:l1c768h12t60", 17011, 60); // and of 124M
    for (int B : {5, 64}) { sequence_is_alone(model, B, 60, 5, sampler_greedy()); }
    gpt2_free(model);
    near_ties_are_told_apart("gpt2:l1c128h2t60", 1003, 60, {1, 2, 5, 40, 70});
    near_ties_are_told_apart("gpt2:l1c128h2t60", 20011, 60, {17, 40});
    near_ties_are_told_apart("gpt2:l1c768h12t60", 17011, 60, {1, 5, 64});
    decoders_at_once(sampler_greedy());
    decoders_at_once({1.0f, 0, 1.0f, 1.0f, 1});
    return unit_end();
}
