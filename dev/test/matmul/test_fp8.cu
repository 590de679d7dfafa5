// dev/cuda/matmul/fp8.cuh without a GPU: where codes and scales lie, the rows of the classifier at a time, which linear
// layer has which sizes, which batches are refused. And a step whose kernels only write down what they were given: each GEMM
// reads the codes of its own operands, of this step, and their scales; each magnitude is collected once a micro-batch.
#include "llmc/cuda/quantize.cuh"

#include <map>
#include <utility>
#include <vector>

// What is in a buffer of codes: of whose numbers, as they were when they were quantised, with which scale, rows or columns
struct Codes {
    const void* of;
    int version;
    const void* scale;
    bool columns;
    bool operator==(const Codes& c) const {
        return of == c.of && version == c.version && scale == c.scale && columns == c.columns;
    }
};
static std::map<const void*, Codes> contents;
static std::map<const void*, int> versions; // of tensors: how often they have been written
static std::map<const unsigned*, int> collected;
static std::map<const unsigned*, const CodeCounts*> counted; // with which magnitude

static const void* tensor_of(const StoredSource& s) { return s.x; }
static const void* tensor_of(const LayerNormSource& s) { return s.x; }
static const void* tensor_of(const GeluSource& s) { return s.pre; }
static const void* tensor_of(const GeluGradientSource& s) { return s.d; }
static const void* tensor_of(const LogitGradientSource& s) { return s.logits; }
template <class Source> static void write_down(uint8_t* rows, uint8_t* columns, unsigned* amax, const Source& source,
                                               const float* scale, int, int, cudaStream_t, float* = NULL, float* = NULL,
                                               QuantizeBatch batch = QuantizeBatch(), CodeCounts* counts = NULL) {
    const void* x = tensor_of(source);
    for (int i = 0; i < batch.count; i++) {
        const void* of = (const floatX*)x + i * batch.stride;
        const float* its = scale + 4 * i * batch.places;
        const void* of_rows = its;
        if constexpr (std::is_same_v<Source, Int8LayerNormSource>) { of_rows = source.scales; }
        if constexpr (std::is_same_v<Source, Int8StoredSource>) { of_rows = source.scales + i * source.scales_stride; }
        if (rows) { contents[rows + i * batch.stride] = {of, versions[of], of_rows, false}; }
        if (columns) { contents[columns + i * batch.stride] = {of, versions[of], its, true}; }
    }
    if constexpr (has_act<Source>) {
        contents[source.act_columns] = {source.pre, versions[source.pre], source.act_scale, true};
    }
    if (amax) { collected[amax]++; }
    if (counts) { counted[amax] = counts; }
}
static void count_amax(unsigned* amax, const floatX*, size_t, cudaStream_t, QuantizeBatch = QuantizeBatch()) {
    collected[amax]++;
}
static void find_scales(nv_bfloat16* scales, size_t scales_stride, unsigned* amax, const floatX* x, int, int,
                        cudaStream_t, QuantizeBatch batch = QuantizeBatch()) {
    for (int i = 0; i < batch.count; i++) {
        contents[scales + i * scales_stride] = {x + i * batch.stride, 0, NULL, false};
    }
    collected[amax]++;
}
#define int8_scales(...) find_scales(__VA_ARGS__)
#define quantize write_down
#define collect_amax count_amax
#define classifier_statistics(...) (void)0
#include "dev/cuda/matmul/fp8.cuh"
#undef int8_scales
#undef quantize
#undef collect_amax
#undef classifier_statistics
Status fp8_qkv(const MatmulTensors*, MatmulSizes, cudaStream_t) { return STATUS_OK; }
Status fp8_fc(const MatmulTensors* t, const Fp8Outputs& out, MatmulSizes, cudaStream_t) {
    contents[out.rows] = {t->pre, versions[t->pre], out.scale, false};
    collected[out.amax]++;
    counted[out.amax] = out.counts;
    return STATUS_OK;
}
Status fp8_classifier(const MatmulTensors*, float2*, MatmulSizes, void*, cudaStream_t) { return STATUS_OK; }
Status fp8_dgelu(const MatmulTensors* t, const Fp8Outputs& out, MatmulSizes, void*, cudaStream_t) {
    const void* dpre = t->dpre;
    contents[out.rows] = {dpre, versions[dpre], out.scale, false};
    contents[out.columns] = {dpre, versions[dpre], out.scale, true};
    contents[out.act_columns] = {t->pre, versions[t->pre], out.act_scale, true};
    collected[out.amax]++;
    counted[out.amax] = out.counts;
    return STATUS_OK;
}
#include "dev/test/fixtures/unit.h"

static void rows_of_the_classifier_divide_a_batch(void) {
    for (size_t tokens = 16; tokens <= (1 << 18); tokens += tokens < 32768 ? 16 : 4096) {
        const size_t rows = fp8_classifier_rows(tokens);
        CHECK(rows > 0 && tokens % rows == 0 && rows % 16 == 0);
        CHECK(rows <= 8192 || rows % 32 == 16 || tokens % 32 == 16);
        CHECK(rows == tokens ? tokens % 32 == 16 : rows <= tokens / 2);
    }
    CHECK(fp8_classifier_rows(65536) == 8192 && fp8_classifier_rows(80) == 80);
}

// Regions [begin, end) follow each other, aligned, and end at `end` at most.
static bool apart(std::initializer_list<std::pair<size_t, size_t>> regions, size_t end) {
    size_t at = 0;
    for (const auto& [begin, bytes] : regions) {
        if (begin < at || begin % 256 != 0) { return false; }
        at = begin + bytes;
    }
    return at <= end;
}

static void regions_do_not_overlap(int C, int Vp, int layers, size_t tokens, bool in_logits) {
    const GPT2Config config = {1024, Vp, Vp, layers, C / 64, C, 0};
    const size_t elements = (size_t)Vp * C + 12 * (size_t)layers * C * C + 1000, rows = fp8_classifier_rows(tokens);
    const size_t delayed = fp8_delayed(layers), of_weights = FP8_LINEARS * (size_t)(layers + 1),
                 scale = sizeof(E4m3Scale);
    const size_t dout = std::max(3 * C * tokens, rows * Vp), fch = 4 * C * tokens;
    const Fp8Memory m = fp8_memory(config, elements, tokens);
    CHECK(apart({{m.scales, delayed * scale},
                 {m.weight_scales, of_weights * scale},
                 {m.amax, delayed * sizeof(unsigned)},
                 {m.weight_amax, of_weights * sizeof(unsigned)},
                 {m.counts, delayed * sizeof(CodeCounts)},
                 {m.statistics, rows * sizeof(float2)},
                 {m.ln_row_scales, tokens * sizeof(float)},
                 {m.weight_row_scales, (7 * C * (size_t)layers + Vp) * sizeof(nv_bfloat16)},
                 {m.weights, elements},
                 {m.weight_columns, elements},
                 {m.inp_columns, (size_t)layers * 3 * m.kept}},
                m.own));
    const size_t room = in_logits ? tokens * Vp * sizeof(floatX) - m.logits : m.bytes - m.own;
    CHECK(m.kept >= C * tokens && m.kept % 256 == 0);
    CHECK(m.in_logits == in_logits && m.logits >= rows * Vp * sizeof(floatX) && (!in_logits || m.bytes == m.own));
    CHECK(apart({{m.inp, fch}, {m.dfch, fch}, {m.dfch_columns, fch}, {m.dout, dout}, {m.dout_columns, dout}}, room));
}

static void layers_are_known_by_their_sizes(void) {
    Fp8 f = {};
    f.layers = 12;
    for (int C = 32; C <= 1600; C += 32) {
        CHECK(fp8_linear(&f, 3, C, 3 * C) == FP8_QKV && fp8_linear(&f, 3, C, C) == FP8_ATTPROJ);
        CHECK(fp8_linear(&f, 3, C, 4 * C) == FP8_FC && fp8_linear(&f, 3, 4 * C, C) == FP8_FCPROJ);
        for (int Vp : {C, 3 * C, 4 * C, 50304}) { CHECK(fp8_linear(&f, 12, C, Vp) == FP8_CLASSIFIER); }
    }
}

static void other_batches_are_refused(void) {
    for (int tokens : {1, 24, 1030, 2060, MOST_QUANTIZE_ROWS + 16}) {
        CHECK(fp8_check(tokens) == STATUS_ERROR && strstr(status_message(), "multiples of 16 tokens") != NULL);
        status_clear();
    }
    for (int tokens : {16, 80, 65536, MOST_QUANTIZE_ROWS}) { CHECK(fp8_check(tokens) == STATUS_OK); }
}

// ----------------------------------------------------------------------------
// A step of a model of two layers, in the order of train_gpt2.cu

enum { LAYERS = 2, CHANNELS = 64, VOCAB = 256, TOKENS = 128 };

static struct {
    floatX params[VOCAB * CHANNELS + LAYERS * 12 * CHANNELS * CHANNELS];
    floatX x[LAYERS + 1], residual2[LAYERS], atty[LAYERS], fch[LAYERS]; // their addresses stand for tensors
    floatX dresidual, dbt4c, dbtc, logits, act, ln;
    float dweight;
    uint8_t weights[sizeof(params) / sizeof(floatX)], weight_columns[sizeof(weights)], codes[5], kept[LAYERS * 3];
    E4m3Scale scales[(LAYERS + 1) * FP8_DELAYED], weight_scales[(LAYERS + 1) * FP8_LINEARS];
    float statistics[1], ln_row_scales[TOKENS];
    nv_bfloat16 weight_row_scales[LAYERS * 7 * CHANNELS + VOCAB];
    unsigned amax[(LAYERS + 1) * FP8_DELAYED], weight_amax[(LAYERS + 1) * FP8_LINEARS];
    CodeCounts counts[(LAYERS + 1) * FP8_DELAYED];
    Fp8Inputs inputs[LAYERS + 1];
} m;
static Fp8 fp8;
static int gemms;

static const floatX* weight_of(int layer, int linear) {
    static const int before[] = {0, 3, 4, 8}; // in units of C^2
    const floatX* first = m.params + VOCAB * CHANNELS + layer * 12 * CHANNELS * CHANNELS;
    return layer == LAYERS ? m.params : first + before[linear] * CHANNELS * CHANNELS;
}
static MatmulSizes sizes_of(int layer, int linear, int rows) {
    static const int in[] = {1, 1, 1, 4}, out[] = {3, 1, 4, 1};
    if (layer == LAYERS) { return {rows, CHANNELS, VOCAB, VOCAB}; }
    return {rows, in[linear] * CHANNELS, out[linear] * CHANNELS, 0};
}
// The tensor that a linear layer's input is computed from
static const void* source_of(int layer, int linear) {
    if (layer == LAYERS) { return &m.x[LAYERS]; }
    const void* sources[] = {&m.x[layer], &m.atty[layer], &m.residual2[layer], &m.fch[layer]};
    return sources[linear];
}

// Launches a group: its GEMM must read a and b as they should be now.
static void launch(int layer, int linear, MatmulGroup group, MatmulTensors t, const void* dout, int rows, int row) {
    const MatmulSizes s = sizes_of(layer, linear, rows);
    const int inp = layer * FP8_DELAYED + linear, weight = layer * FP8_LINEARS + linear;
    if (group != MATMUL_WEIGHT) { t.weight = weight_of(layer, linear); }
    const MatmulGroup launched = fp8_before(&fp8, layer, row, group, &t, s, 0);
    if (fp8.cold) {
        CHECK(launched == group && !t.a && !t.b);
    } else {
        const void* x = source_of(layer, linear);
        if (layer == LAYERS) { x = (const floatX*)x + row * CHANNELS; }
        const bool is_weight = group == MATMUL_WEIGHT;
        const bool int8 = fp8.fused && !dout && (layer == LAYERS || linear == FP8_QKV || linear == FP8_FC);
        const void* row_scales = m.weight_row_scales + (layer * 7 + (linear == FP8_FC ? 3 : 0)) * CHANNELS;
        const Codes of_inp = {x, versions[x], int8 ? m.ln_row_scales + row : &m.scales[inp].value, is_weight};
        const Codes of_dout = {dout, versions[dout], &m.scales[inp + FP8_LINEARS].value, is_weight};
        const Codes of_weight = {weight_of(layer, linear), 0, int8 ? row_scales : &m.weight_scales[weight].value,
                                 dout != NULL};
        CHECK(contents[t.a] == (dout ? of_dout : of_inp) && contents[t.b] == (is_weight ? of_inp : of_weight));
        CHECK((int8 ? t.a_row_scales : t.a_scale) == contents[t.a].scale);
        CHECK((int8 ? (const void*)t.b_row_scales : t.b_scale) == contents[t.b].scale);
        CHECK(!int8 || contents[t.b_row_scales].of == weight_of(layer, linear));
        CHECK(int8 || ((uintptr_t)t.a_scale % 16 == 0 && (uintptr_t)t.b_scale % 16 == 0)); // cuBLASLt refuses others
        CHECK(group != MATMUL_RESIDUAL || t.ln_row_scales == (fp8.fused ? m.ln_row_scales : NULL));
        CHECK(launched == (is_weight                  ? MATMUL_WEIGHT
                           : dout                     ? MATMUL_INPUT
                           : group == MATMUL_RESIDUAL ? group
                                                      : MATMUL_QKV));
        CHECK(is_weight || (dout ? t.dinp != NULL : group == MATMUL_RESIDUAL ? !t.ln : t.out != NULL));
        gemms++;
    }
    for (const void* written : {t.dpre, t.logits, group == MATMUL_FC ? t.pre : NULL}) {
        if (written) { versions[written]++; }
    }
    if (!fp8_launch_fused(&fp8, layer, group, &t, s, NULL, 0)) { fp8_after(&fp8, layer, group, &t, s, NULL, 0); }
}

static void forward(void) {
    for (int i = 0; i < LAYERS; i++) {
        MatmulTensors t = {};
        t.inp = &m.ln, t.out = &m.dbtc;
        launch(i, FP8_QKV, MATMUL_QKV, t, NULL, TOKENS, 0);
        t = {}, t.inp = &m.atty[i], t.residual = &m.residual2[i], t.ln = &m.ln;
        versions[&m.atty[i]]++;
        launch(i, FP8_ATTPROJ, MATMUL_RESIDUAL, t, NULL, TOKENS, 0);
        t = {}, t.inp = &m.ln, t.pre = &m.fch[i], t.act = &m.act;
        versions[&m.residual2[i]]++;
        launch(i, FP8_FC, MATMUL_FC, t, NULL, TOKENS, 0);
        t = {}, t.inp = &m.act, t.residual = &m.x[i + 1], t.ln = &m.ln;
        launch(i, FP8_FCPROJ, MATMUL_RESIDUAL, t, NULL, TOKENS, 0);
        versions[&m.x[i + 1]]++;
    }
}

static void backward(void) {
    const int rows = fp8_classifier_rows(TOKENS);
    for (int row = 0; row < TOKENS; row += rows) {
        MatmulTensors t = {};
        t.inp = &m.ln, t.logits = &m.logits;
        launch(LAYERS, 0, MATMUL_CLASSIFIER, t, NULL, rows, row);
        t = {}, t.dout = &m.logits, t.inp = &m.ln, t.dweight = &m.dweight;
        launch(LAYERS, 0, MATMUL_WEIGHT, t, &m.logits, rows, row);
        t = {}, t.dout = &m.logits, t.dinp = &m.dbtc;
        launch(LAYERS, 0, MATMUL_INPUT, t, &m.logits, rows, row);
    }
    versions[&m.dresidual]++;
    for (int i = LAYERS - 1; i >= 0; i--) {
        MatmulTensors dgelu = {}, weight = {}, input = {};
        dgelu.dout = &m.dresidual, dgelu.dpre = &m.dbt4c, dgelu.pre = &m.fch[i];
        weight.dweight = &m.dweight, weight.inp = &m.ln, input.dinp = &m.dbtc;
        launch(i, FP8_FCPROJ, MATMUL_DGELU, dgelu, &m.dresidual, TOKENS, 0);
        weight.dout = &m.dresidual;
        launch(i, FP8_FCPROJ, MATMUL_WEIGHT, weight, &m.dresidual, TOKENS, 0);
        weight.dout = input.dout = &m.dbt4c;
        launch(i, FP8_FC, MATMUL_WEIGHT, weight, &m.dbt4c, TOKENS, 0);
        launch(i, FP8_FC, MATMUL_INPUT, input, &m.dbt4c, TOKENS, 0);
        versions[&m.dresidual]++; // LayerNorm's backward
        weight.dout = input.dout = &m.dresidual, weight.inp = &m.atty[i];
        launch(i, FP8_ATTPROJ, MATMUL_WEIGHT, weight, &m.dresidual, TOKENS, 0);
        launch(i, FP8_ATTPROJ, MATMUL_INPUT, input, &m.dresidual, TOKENS, 0);
        versions[&m.dbt4c]++; // attention's backward
        weight.dout = input.dout = &m.dbt4c, weight.inp = &m.ln;
        launch(i, FP8_QKV, MATMUL_WEIGHT, weight, &m.dbt4c, TOKENS, 0);
        launch(i, FP8_QKV, MATMUL_INPUT, input, &m.dbt4c, TOKENS, 0);
        versions[&m.dresidual]++;
    }
}

// Each delayed tensor's magnitude once; those of the classifier in each of its pieces
static bool magnitudes_are_collected(int micro_batches) {
    const int pieces = TOKENS / fp8_classifier_rows(TOKENS);
    size_t tensors = 0;
    for (int i = 0; i <= LAYERS; i++) {
        for (int k = 0; k < FP8_DELAYED; k++) {
            const bool classifier = i == LAYERS, is_used = !classifier || k % FP8_LINEARS == 0;
            const auto found = collected.find(&m.amax[i * FP8_DELAYED + k]);
            const int times = found == collected.end() ? 0 : found->second;
            if (times != (!is_used ? 0 : classifier ? pieces * micro_batches : micro_batches)) { return false; }
            tensors += times > 0;
        }
    }
    return tensors == collected.size();
}

static void a_step_reads_its_own_operands(int fused) {
    contents.clear(), collected.clear(), counted.clear();
    gemms = 0;
    for (int i = 0; i < LAYERS; i++) {
        m.inputs[i] = {{&m.x[i], m.statistics, m.statistics, NULL, NULL},
                       {&m.residual2[i], m.statistics, m.statistics, NULL, NULL},
                       {&m.fch[i]}};
    }
    m.inputs[LAYERS].qkv = {&m.x[LAYERS], m.statistics, m.statistics, NULL, NULL};
    fp8.layers = LAYERS, fp8.cold = 1, fp8.fused = fused, fp8.dout_of = -1;
    fp8.ln_row_scales = m.ln_row_scales, fp8.weight_row_scales = m.weight_row_scales;
    fp8.scales = m.scales, fp8.amax = m.amax, fp8.counts = m.counts, fp8.weight_scales = m.weight_scales,
    fp8.weight_amax = m.weight_amax;
    fp8.params = m.params, fp8.weights = m.weights, fp8.weight_columns = m.weight_columns, fp8.inputs = m.inputs;
    fp8.inp = &m.codes[0], fp8.dout = &m.codes[1], fp8.dout_columns = &m.codes[2], fp8.dfch = &m.codes[3];
    fp8.dfch_columns = &m.codes[4], fp8.inp_columns = m.kept, fp8.kept_bytes = 1;
    forward(), backward(), forward(), backward();
    CHECK(magnitudes_are_collected(2) && contents.empty() && gemms == 0);
    fp8.cold = 0;
    collected.clear();
    const MatmulSizes classifier = sizes_of(LAYERS, 0, 1);
    for (bool collect : {true, false}) {
        for (int linear = 0; linear < FP8_LINEARS; linear++) {
            const MatmulSizes s = sizes_of(0, linear, 1);
            const size_t stride = weight_of(1, 0) - weight_of(0, 0);
            fp8_weights(&fp8, 0, LAYERS, stride, collect, weight_of(0, linear), s.IN, s.OUT, 0);
        }
        fp8_weights(&fp8, LAYERS, 1, 0, collect, m.params, classifier.IN, classifier.OUT, 0);
        CHECK(collected.size() == (collect ? FP8_LINEARS + 1 : 0));
        collected.clear();
    }
    CHECK(contents.size() == 2 * (LAYERS * FP8_LINEARS + 1) + (fused ? 2 * LAYERS + 1 : 0)); // and scales in int8
    for (int micro = 0; micro < 3; micro++) { forward(), backward(); }
    CHECK(magnitudes_are_collected(3) && gemms == 3 * (12 * LAYERS + 3 * 2));
    CHECK(counted.size() == collected.size() - 1); // but for the gradient of the logits
    for (const auto& [amax, counts] : counted) { CHECK(counts - m.counts == amax - m.amax); }
}

int main(void) {
    rows_of_the_classifier_divide_a_batch();
    regions_do_not_overlap(768, 50304, 12, 65536, true);
    regions_do_not_overlap(1600, 50304, 48, 32768, true);
    regions_do_not_overlap(1600, 50304, 48, 8192, false);
    regions_do_not_overlap(64, 128, 1, 80, false);
    regions_do_not_overlap(768, 256, 12, 4096, false);
    layers_are_known_by_their_sizes();
    other_batches_are_refused();
    a_step_reads_its_own_operands(0);
    a_step_reads_its_own_operands(1); // on Hopper
    return unit_end();
}
