// dev/cuda/matmul/fp8.cuh, what needs no GPU: where codes and scales lie, the rows of the classifier at a time, which linear
// layer has which sizes, which batches are refused.
#include "dev/cuda/matmul/fp8.cuh"
#include "dev/test/fixtures/unit.h"

#include <utility>

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
    const size_t delayed = sizeof(float) * fp8_delayed(layers), of_weights = sizeof(float) * FP8_LINEARS * (layers + 1);
    const size_t dout = std::max(3 * C * tokens, rows * Vp), fch = 4 * C * tokens;
    const Fp8Memory m = fp8_memory(config, elements, tokens);
    CHECK(apart({{m.scales, delayed},
                 {m.amax, delayed},
                 {m.weight_scales, of_weights},
                 {m.weight_amax, of_weights},
                 {m.statistics, rows * sizeof(float2)},
                 {m.weights, elements},
                 {m.weight_columns, elements}},
                m.own));
    const size_t room = in_logits ? tokens * Vp * sizeof(floatX) - m.logits : m.bytes - m.own;
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
    for (size_t tokens : {1, 24, 1030, 2060}) {
        CHECK(fp8_check(tokens) == STATUS_ERROR && strstr(status_message(), "multiples of 16 tokens") != NULL);
        status_clear();
    }
    for (size_t tokens : {16, 80, 65536}) { CHECK(fp8_check(tokens) == STATUS_OK); }
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
    return unit_end();
}
