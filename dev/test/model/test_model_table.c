// llmc/model/gpt2.h: the tables of parameters and activations, model descriptors, initial weights and checkpoint files.
#include "llmc/model/gpt2.h"
#include "llmc/files/model_file.h"

#include "dev/test/fixtures/model_verify.h"
#include "dev/test/fixtures/unit.h"

GPT2_DECLARE_ACTIVATIONS(Activations, float);

static GPT2Config sizes(int maxT, int V, int L, int NH, int C) {
    GPT2Config c = {maxT, V, gpt2_pad_vocab(V), L, NH, C, 0};
    return c;
}

static int is_config(GPT2Config c, int maxT, int V, int Vp, int L, int NH, int C) {
    return c.max_seq_len == maxT && c.vocab_size == V && c.padded_vocab_size == Vp && c.num_layers == L &&
           c.num_heads == NH && c.channels == C;
}

// ----------------------------------------------------------------------------
// Parameters

static size_t count_parameters(const char* descriptor) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    return gpt2_parameters(table, gpt2_config_from_descriptor(descriptor, 50257));
}

// Vp C + maxT C, per layer 12 C^2 + 13 C, and the last LayerNorm's 2 C
static void models_have_their_number_of_parameters(void) {
    CHECK(count_parameters("d12") == 124475904);
    CHECK(count_parameters("d12") == 50304ul * 768 + 1024 * 768 + 12 * (12ul * 768 * 768 + 13 * 768) + 2 * 768);
    CHECK(count_parameters("d24") == 50304ul * 1024 + 1024 * 1024 + 24 * (12ul * 1024 * 1024 + 13 * 1024) + 2 * 1024);
    CHECK(count_parameters("d48") == 50304ul * 1600 + 1024 * 1600 + 48 * (12ul * 1600 * 1600 + 13 * 1600) + 2 * 1600);
    CHECK(count_parameters("gpt3:c768") == 124475904 + 1024 * 768);
    CHECK(count_parameters("gpt3:c12288") / 1000000000 == 174); // beyond 2^32
}

static void the_table_is_llmc_s(void) {
    static const struct {
        const char* name;
        size_t layers, rows, cols;
    } expected[NUM_PARAMETER_TENSORS] = {
        {"wte", 1, 384, 96},     {"wpe", 1, 40, 96},    {"ln1w", 2, 96, 1},      {"ln1b", 2, 96, 1},
        {"qkvw", 2, 288, 96},    {"qkvb", 2, 288, 1},   {"attprojw", 2, 96, 96}, {"attprojb", 2, 96, 1},
        {"ln2w", 2, 96, 1},      {"ln2b", 2, 96, 1},    {"fcw", 2, 384, 96},     {"fcb", 2, 384, 1},
        {"fcprojw", 2, 96, 384}, {"fcprojb", 2, 96, 1}, {"lnfw", 1, 96, 1},      {"lnfb", 1, 96, 1},
    };
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t total = gpt2_parameters(table, sizes(40, 300, 2, 3, 96)), sum = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const GPT2Parameter* t = &table[i];
        CHECK(strcmp(t->name, expected[i].name) == 0);
        CHECK(t->layers == expected[i].layers && t->rows == expected[i].rows && t->cols == expected[i].cols);
        CHECK(t->count == t->layers * t->rows * t->cols);
        int matrix = t->init == INIT_NORMAL || t->init == INIT_RESIDUAL; // only these decay
        CHECK(t->decay == matrix && matrix == (t->cols > 1));
        CHECK((t->init == INIT_RESIDUAL) == (strstr(t->name, "projw") != NULL));
        CHECK((t->init == INIT_ONE) == (t->name[0] == 'l' && t->name[strlen(t->name) - 1] == 'w'));
        sum += t->count;
    }
    CHECK(total == sum);
}

// ----------------------------------------------------------------------------
// Descriptors

static void descriptors_name_models(void) {
    CHECK(is_config(gpt2_config_from_descriptor("d6", 50257), 1024, 50257, 50304, 6, 6, 384));
    CHECK(is_config(gpt2_config_from_descriptor("d12", 50257), 1024, 50257, 50304, 12, 12, 768));
    CHECK(is_config(gpt2_config_from_descriptor("gpt2:d12", 256), 1024, 256, 256, 12, 12, 768));
    CHECK(is_config(gpt2_config_from_descriptor("d24", 257), 1024, 257, 384, 24, 16, 1024));
    CHECK(is_config(gpt2_config_from_descriptor("d36", 50257), 1024, 50257, 50304, 36, 20, 1280));
    CHECK(is_config(gpt2_config_from_descriptor("d48", 50257), 1024, 50257, 50304, 48, 25, 1600));
    CHECK(is_config(gpt2_config_from_descriptor("gpt3:c768", 50257), 2048, 50257, 50304, 12, 12, 768));
    CHECK(is_config(gpt2_config_from_descriptor("gpt3:c1536", 50257), 2048, 50257, 50304, 24, 16, 1536));
    CHECK(is_config(gpt2_config_from_descriptor("gpt3:c12288t4096", 50257), 4096, 50257, 50304, 96, 96, 12288));
    CHECK(is_config(gpt2_config_from_descriptor("gpt2:l4c128h4", 50257), 1024, 50257, 50304, 4, 4, 128));
    CHECK(is_config(gpt2_config_from_descriptor("l4c128h4t64", 1), 64, 1, 128, 4, 4, 128));
    CHECK(is_config(gpt2_config_from_descriptor("gpt3:h2c64l1", 50257), 2048, 50257, 50304, 1, 2, 64));
    CHECK(is_config(gpt2_config_from_descriptor("d12t4096", 50257), 4096, 50257, 50304, 12, 12, 768));
}

static void a_descriptor_without_a_context_has_that_of_the_rows(void) {
    CHECK(is_config(gpt2_config_for_rows("d12", 50257, 256), 256, 50257, 50304, 12, 12, 768));
    CHECK(is_config(gpt2_config_for_rows("gpt2:d6", 50257, 2048), 2048, 50257, 50304, 6, 6, 384));
    CHECK(is_config(gpt2_config_for_rows("gpt3:c768", 50257, 1024), 1024, 50257, 50304, 12, 12, 768));
    CHECK(is_config(gpt2_config_for_rows("gpt2:l4c128h4t64", 256, 32), 64, 256, 256, 4, 4, 128));
}

static void bad_descriptors_are_refused(void) {
    static const char* bad[] = {"",
                                "d",
                                "12",
                                "d12d12",
                                "d0",
                                "d-12",
                                "d+12",
                                "d 12",
                                "d12 ",
                                "d12t",
                                "d12t0",
                                "x12",
                                "gpt2:",
                                "gpt2:d",
                                "gpt4:d12",
                                "gpt3:d12",
                                "c768",
                                "l4c128",
                                "l4c128h4d12",
                                "d12c768",
                                "t1024",
                                "d1e1",
                                "d12,",
                                "gpt3:",
                                "l4c128h4l4",
                                "D12",
                                "d1000001",
                                "gpt3:c",
                                "d99999999999999999999999"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        char words[128];
        snprintf(words, sizeof(words), "error: %s is no file or folder of weights|use d6, d12", bad[i]);
        CHECK_FATAL(words, gpt2_config_from_descriptor(bad[i], 50257));
    }
    CHECK_FATAL("d13|no model of size 13", gpt2_config_from_descriptor("d13", 50257));
    CHECK_FATAL("gpt3:c700|no model of size 700", gpt2_config_from_descriptor("gpt3:c700", 50257));
    CHECK_FATAL("l4c130h4|130 channels|4 heads", gpt2_config_from_descriptor("l4c130h4", 50257));
    CHECK_FATAL("l4c100h4|head size 25|32, 64, 96 or 128", gpt2_config_from_descriptor("l4c100h4", 50257));
    // as published; the message names one that serves
    CHECK_FATAL("gpt3:c2560|head size 80|gpt2:l32c2560h20", gpt2_config_from_descriptor("gpt3:c2560", 50257));
    CHECK_FATAL("l1000000c1000000h15625|more parameters", gpt2_config_from_descriptor("l1000000c1000000h15625", 50257));
    CHECK_FATAL("d12|vocabulary 2147483647", gpt2_config_from_descriptor("d12", INT32_MAX)); // no int when padded
    CHECK_FATAL("d12|vocabulary 16777217", gpt2_config_from_descriptor("d12", MAX_VOCAB_SIZE + 1));
    CHECK_FATAL("d12|vocabulary 0", gpt2_config_from_descriptor("d12", 0));
}

// Every model that the help text offers by size can be had, but for the one whose heads have a size of 80.
static void all_sizes_of_the_tables_are_models(void) {
    char descriptor[32];
    for (size_t i = 0; i < sizeof(gpt2_by_depth) / sizeof(GPT2Size); i++) {
        snprintf(descriptor, sizeof(descriptor), "d%d", gpt2_by_depth[i].key);
        CHECK(gpt2_config_from_descriptor(descriptor, 50257).num_layers == gpt2_by_depth[i].key);
    }
    for (size_t i = 0; i < sizeof(gpt3_by_channels) / sizeof(GPT2Size); i++) {
        if (gpt3_by_channels[i].key == 2560) { continue; }
        snprintf(descriptor, sizeof(descriptor), "gpt3:c%d", gpt3_by_channels[i].key);
        CHECK(gpt2_config_from_descriptor(descriptor, 50257).channels == gpt3_by_channels[i].key);
    }
}

// ----------------------------------------------------------------------------
// Initial weights

// Sums over the tensors that PyTorch drew with one generator of seed 42, in the order of the rows, as zeros(..).normal_():
// V = 100, C = 64, L = 2, maxT = 16, std 0.02, and 0.02 / sqrt(2 L) for the projections.
static const struct {
    int tensor, layer;
    double first, last, sum, absolute_sum;
} torch_draws[10] = {
    {0, 0, 0.0385383032, -0.0166300815, 1.60231608, 102.827391},      // wte, its rows 0..V-1
    {1, 0, -0.00855679438, 0.00266457396, -0.486723107, 16.4549996},  // wpe
    {4, 0, 0.0350697599, -0.00227965321, 2.35767562, 196.41279},      // qkvw
    {6, 0, -0.00280677876, -0.00261443132, -0.113041865, 33.0255063}, // attprojw
    {10, 0, 0.0273068715, -0.0157222021, -2.88151413, 263.886397},    // fcw
    {12, 0, 0.0161479581, -0.00292112352, 1.14417136, 130.71292},     // fcprojw
    {4, 1, 0.00035115506, -0.0242861211, -2.95040248, 198.557132},
    {6, 1, -0.0116726672, -0.0101967389, -0.0194877127, 32.891015},
    {10, 1, -0.0138693899, 0.0246224143, 2.67432228, 263.944764},
    {12, 1, 0.0102326525, -0.00310102035, -0.243532319, 130.474839},
};

// One number differs by at most 9.3e-6 deviations (test_rand.c derives that), a sum by as much for each of its numbers.
static void initial_weights_are_pytorch_s(void) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    GPT2Config config = sizes(16, 100, 2, 2, 64);
    size_t total = gpt2_parameters(table, config);
    float* params = (float*)malloc_check(total * sizeof(float));
    memset(params, 0xff, total * sizeof(float)); // NaN
    gpt2_init_parameters(params, config, 42);
    for (int k = 0; k < 10; k++) {
        const float* p = params;
        for (int i = 0; i < torch_draws[k].tensor; i++) { p += table[i].count; }
        const GPT2Parameter* t = &table[torch_draws[k].tensor];
        size_t n = torch_draws[k].tensor == 0 ? 100 * 64 : t->rows * t->cols;
        double sum = 0.0, absolute_sum = 0.0, bound = 9.3e-6 * (t->init == INIT_RESIDUAL ? 0.01 : 0.02);
        p += (size_t)torch_draws[k].layer * n;
        for (size_t i = 0; i < n; i++) { sum += p[i], absolute_sum += fabs((double)p[i]); }
        CHECK_NEAR(p[0], torch_draws[k].first, bound);
        CHECK_NEAR(p[n - 1], torch_draws[k].last, bound);
        CHECK_NEAR(sum, torch_draws[k].sum, bound * (double)n);
        CHECK_NEAR(absolute_sum, torch_draws[k].absolute_sum, bound * (double)n);
    }
    const float* p = params;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; p += table[i++].count) {
        size_t from = i == 0 ? 100 * 64 : 0; // the rest of wte is padding
        float value = table[i].init == INIT_ONE ? 1.0f : 0.0f;
        int same = 1;
        if (i != 0 && table[i].decay) { continue; }
        for (size_t j = from; j < table[i].count; j++) { same = same && p[j] == value; }
        CHECK(same);
    }
    free(params);
}

// ----------------------------------------------------------------------------
// Activations

static size_t activation_bytes(GPT2Config config, int B, int T, int recompute, size_t training, size_t real_size) {
    GPT2Activation table[NUM_ACTIVATION_TENSORS];
    return gpt2_activations(table, config, B, T, recompute, training, real_size, 0);
}

// 124M, B = 4, T = 1024: each tensor's bytes, written out; all are multiples of 256 here.
static void activations_take_what_they_must(void) {
    const size_t BT = 4 * 1024, C = 768, L = 12, NH = 12, Vp = 50304;
    GPT2Config d12 = gpt2_config_from_descriptor("d12", 50257);
    for (size_t real = 2; real <= 4; real += 2) {
        size_t per_layer = real * BT * (C + 3 * C + C + C + C + 4 * C + 4 * C + C) + 4 * BT * (4 + 2 * NH);
        size_t once = real * BT * (C + C + Vp) + 4 * BT * 3;
        size_t gradients = real * BT * (C + C + 4 * C);
        CHECK(activation_bytes(d12, 4, 1024, 0, 0, real) == L * per_layer + once);
        CHECK(activation_bytes(d12, 4, 1024, 0, 1, real) == L * per_layer + once + gradients);
        size_t gelu = (L - 1) * real * BT * 4 * C, layernorms = (L - 1) * real * BT * 2 * C;
        CHECK(activation_bytes(d12, 4, 1024, 1, 1, real) == L * per_layer + once + gradients - gelu);
        CHECK(activation_bytes(d12, 4, 1024, 2, 1, real) == L * per_layer + once + gradients - gelu - layernorms);
    }
    // Nothing grows with the square of T, or overflows 32 bits.
    size_t at_1024 = activation_bytes(d12, 4, 1024, 0, 1, 2);
    CHECK(activation_bytes(d12, 4, 2048, 0, 1, 2) == 2 * at_1024);
    CHECK(activation_bytes(d12, 1024, 1024, 0, 1, 2) == 256 * at_1024);
}

static void activations_are_aligned_and_apart(void) {
    GPT2Config config = sizes(5, 100, 2, 2, 64);
    for (size_t training = 0; training < 2; training++) {
        GPT2Activation table[NUM_ACTIVATION_TENSORS];
        Activations a;
        size_t scratch = training ? 1001 : 0, end = 0, used = 0;
        size_t total = gpt2_activations(table, config, 1, 5, 0, training, sizeof(float), scratch);
        char* memory = (char*)aligned_alloc(256, total);
        gpt2_point_activations(&a, table, memory);
        char* pointers[NUM_ACTIVATION_TENSORS];
        memcpy(pointers, &a, sizeof(pointers));
        CHECK(sizeof(a) == sizeof(pointers));
        int apart = 1;
        for (int i = 0; i < NUM_ACTIVATION_TENSORS; i++) {
            size_t bytes = table[i].layers * table[i].count * 4;
            if (bytes == 0) {
                apart = apart && pointers[i] == NULL && !training;
                continue;
            }
            size_t begin = (size_t)(pointers[i] - memory);
            apart =
                apart && begin % 256 == 0 && begin >= end && table[i].bytes >= bytes && table[i].bytes < bytes + 256;
            end = begin + table[i].bytes;
            used++;
        }
        CHECK(apart && end == total);
        CHECK(used == (training ? NUM_ACTIVATION_TENSORS : NUM_ACTIVATION_TENSORS - 4));
        CHECK((a.dresidual != NULL) == (training == 1) && (a.scratch != NULL) == (training == 1));
        CHECK((char*)a.encoded == memory && a.l != NULL && a.m != NULL);
        free(memory);
    }
}

// ----------------------------------------------------------------------------
// bf16

static void bf16_rounds_to_the_nearest_even(void) {
    int round_trip = 1, nan_stays = 1;
    for (unsigned x = 0; x < 65536; x++) {
        float y = bf16_to_float((uint16_t)x);
        if (isnan(y)) {
            nan_stays = nan_stays && isnan(bf16_to_float(float_to_bf16(y)));
        } else {
            round_trip = round_trip && float_to_bf16(y) == x;
        }
    }
    CHECK(round_trip);
    CHECK(nan_stays);
    CHECK(bf16_to_float(float_to_bf16(1.0f + 0x1p-8f)) == 1.0f);               // half way: to the even 1
    CHECK(bf16_to_float(float_to_bf16(1.0f + 3 * 0x1p-8f)) == 1.0f + 0x1p-6f); // half way: to the even one above
    CHECK(bf16_to_float(float_to_bf16(1.0f + 0x1.01p-8f)) == 1.0f + 0x1p-7f);  // a little more
    CHECK(bf16_to_float(float_to_bf16(-1.0f - 0x1.01p-8f)) == -1.0f - 0x1p-7f);
    CHECK(bf16_to_float(float_to_bf16(0x1.ffp127f)) == INFINITY); // beyond the largest
    CHECK(isnan(bf16_to_float(float_to_bf16(NAN))));
    uint32_t bits = 0x7f800001u; // a NaN whose upper half alone would be infinity
    float nan;
    memcpy(&nan, &bits, sizeof(nan));
    CHECK(isnan(bf16_to_float(float_to_bf16(nan))));
}

// ----------------------------------------------------------------------------
// Checkpoint files

static const GPT2Config small = {8, 100, 128, 1, 1, 32, 0};

// Writes the small model's file as llm.c does, without checksums, with parameter i = i / 64, in fp32 or bf16.
static const char* write_model(const char* name, int version) {
    static float floats[40000];
    static uint16_t halves[40000];
    int32_t header[HEADER_INTS];
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t n = gpt2_parameters(table, small);
    const char* path = unit_path(name);
    for (size_t i = 0; i < n; i++) { floats[i] = (float)i / 64.0f, halves[i] = float_to_bf16((float)i / 64.0f); }
    gpt2_model_header_words(header, small, version);
    FILE* file = fopen_check(path, "wb");
    fwrite_check(header, sizeof(header), 1, file, path);
    version == MODEL_VERSION_FP32 ? fwrite_check(floats, 4, n, file, path) : fwrite_check(halves, 2, n, file, path);
    fclose(file);
    return path;
}

static void load(const char* path) {
    ModelHeader header;
    float* params;
    check(gpt2_load_parameters(&params, path, &header));
    free(params);
}

// A model that was trained on shorter rows than it has positions says so; files of before, and llm.c's, say 0.
static void a_file_has_the_trained_length(void) {
    static float weights[40000];
    const int lengths[] = {0, 1, 5, 8};
    const char* path = unit_path("trained.bin");
    ModelHeader header;
    for (int i = 0; i < 4; i++) {
        GPT2Config config = small;
        config.trained_len = lengths[i];
        check(model_file_write(path, config, MODEL_VERSION_FP32, 1, weights));
        check(gpt2_read_model_header(path, &header));
        CHECK(header.config.trained_len == lengths[i]);
        CHECK(gpt2_trained_length(header.config) == (lengths[i] == 0 ? 8 : lengths[i]));
    }
}

static void a_trained_length_that_cannot_be_is_refused(void) {
    static float weights[40000];
    const int lengths[] = {-1, 9, INT_MAX};
    for (int i = 0; i < 3; i++) {
        GPT2Config config = small;
        config.trained_len = lengths[i];
        check(model_file_write(unit_path("bad.bin"), config, MODEL_VERSION_FP32, 1, weights));
        CHECK_FATAL("bad.bin: a trained length of |tokens is not between 1 and the context of 8",
                    load(unit_path("bad.bin")));
    }
}

static void verify(const char* path) {
    ModelHeader header;
    check(model_file_verify(path, &header));
}

static void checkpoints_come_back(void) {
    static const int versions[2] = {MODEL_VERSION_FP32, MODEL_VERSION_BF16};
    for (int k = 0; k < 2; k++) {
        GPT2Parameter table[NUM_PARAMETER_TENSORS];
        ModelHeader header;
        float* params;
        size_t n = gpt2_parameters(table, small);
        check(gpt2_load_parameters(&params, write_model("model.bin", versions[k]), &header));
        CHECK(is_config(header.config, 8, 100, 128, 1, 1, 32));
        int same = 1;
        for (size_t i = 0; i < n; i++) {
            float x = (float)i / 64.0f;
            same = same && params[i] == (k == 0 ? x : bf16_to_float(float_to_bf16(x)));
        }
        CHECK(same);
        free(params);
    }
}

static void read_sizes(const char* path) {
    ModelHeader header;
    check(gpt2_read_model_header(path, &header));
}

// Sizes of which four bytes a parameter are a multiple of 2^64: a file of nothing but the header has the length that a
// product which wraps around expects. The first claims 2^62 parameters.
static void sizes_that_wrap_around_are_refused(void) {
    static const int32_t sizes[][6] = {
        {2147433329, 50257, 1, 16777216, 536870912, 50304}, // maxT, V, L, NH, C, Vp
        {2147483505, 1, 1, 16777216, 536870912, 128},
        {2147483566, 1, 16, 33554432, 1073741824, 2147483520},
        {1073741822, 1, 536870912, 16777216, 536870912, 536870912},
    };
    const char* path = unit_path("bad.bin");
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        int32_t header[HEADER_INTS] = {MODEL_MAGIC, MODEL_VERSION_FP32};
        memcpy(&header[2], sizes[i], sizeof(sizes[i]));
        uint64_t C = (uint64_t)header[6], L = (uint64_t)header[4], rows = (uint64_t)header[7] + (uint64_t)header[2];
        CHECK(4 * (rows * C + L * (12 * C * C + 13 * C) + 2 * C) == 0);
        unit_write(path, header, sizeof(header));
        CHECK_FATAL("bad.bin", read_sizes(path));
    }
}

static void broken_checkpoints_are_refused(void) {
    const char* path = write_model("bad.bin", MODEL_VERSION_BF16);
    size_t size;
    free(unit_read(path, &size));
    for (size_t cut = 0; cut < size; cut += cut < HEADER_BYTES ? 256 : 4999) {
        unit_truncate(write_model("bad.bin", MODEL_VERSION_BF16), cut);
        CHECK_FATAL("bad.bin|truncated", load(path));
    }
    unit_truncate(write_model("bad.bin", MODEL_VERSION_BF16), size - 2);
    CHECK_FATAL("bad.bin|truncated", read_sizes(path));                  // the header alone tells
    unit_truncate(write_model("bad.bin", MODEL_VERSION_BF16), size + 2); // longer than it should be
    CHECK_FATAL("bad.bin|bytes|corrupt", load(path));
    write_model("bad.bin", MODEL_VERSION_FP32);
    unit_patch(path, 4, 5); // says bf16, is fp32
    CHECK_FATAL("bad.bin|bytes|corrupt", load(path));
    unit_patch(path, 4, 1);
    CHECK_FATAL("bad.bin|version 1", load(path));
    unit_patch(path, 0, 1234);
    CHECK_FATAL("bad.bin|magic number|20240326", load(path));
    CHECK_FATAL("missing.bin|No such file", load(unit_path("missing.bin")));
    static const struct {
        size_t word;
        uint16_t value;
        const char* words;
    } patches[] = {
        {2, 0, "bad.bin|context 0"}, {3, 129, "bad.bin|padded vocabulary 128|129"}, {4, 0, "bad.bin|layers 0"},
        {4, 2, "bad.bin|bytes"},     {5, 3, "bad.bin|32 channels|3 heads"},         {5, 2, "bad.bin|head size 16"},
        {6, 64, "bad.bin|bytes"},    {7, 100, "bad.bin|padded vocabulary 100|128"},
    };
    for (size_t i = 0; i < sizeof(patches) / sizeof(patches[0]); i++) {
        unit_patch(write_model("bad.bin", MODEL_VERSION_FP32), 4 * patches[i].word, patches[i].value);
        CHECK_FATAL(patches[i].words, load(path));
    }
    sizes_that_wrap_around_are_refused();
    for (size_t at = 8; at < 32; at += 2) { // any half of any size at its extremes
        unit_patch(write_model("bad.bin", MODEL_VERSION_FP32), at, 0x7fff);
        CHECK_NO_CRASH(load(path));
        unit_patch(path, at, 0xffff);
        CHECK_NO_CRASH(load(path));
    }
}

// Files of this project say where they are damaged.
static void damage_is_noticed_by_its_checksum(void) {
    const char* path = write_model("model.bin", MODEL_VERSION_BF16);
    unit_seal(path);
    size_t size;
    free(unit_read(path, &size));
    CHECK_ENDS_WELL(load(path));
    static const struct {
        size_t byte;
        const char* words;
    } places[] = {{5, "model.bin|header (bytes 0 to 1023)"},
                  {HEADER_BYTES, "model.bin: bytes 1024 to 35263 do not"},
                  {35263, "model.bin: bytes 1024 to 35263 do not"}};
    for (int i = 0; i < 3; i++) {
        unit_flip(path, 8 * places[i].byte + 6);
        CHECK_FATAL(places[i].words, load(path));
        CHECK_FATAL(places[i].words, verify(path));
        unit_flip(path, 8 * places[i].byte + 6);
    }
    CHECK_ENDS_WELL(verify(path));
}

static void weights_that_are_not_finite_are_refused(void) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t qkvw = 0;
    gpt2_parameters(table, small);
    for (int i = 0; i < 4; i++) { qkvw += table[i].count; }
    for (int sealed = 0; sealed < 2; sealed++) {
        const char* path = write_model("nan.bin", MODEL_VERSION_BF16);
        unit_patch(path, HEADER_BYTES + 2 * (qkvw + 77), 0x7fc0);
        if (sealed) { unit_seal(path); }
        CHECK_FATAL("nan.bin: qkvw, element 77 is nan", load(path));
        CHECK_FATAL("nan.bin: qkvw, element 77 is nan", verify(path));
        path = write_model("nan.bin", MODEL_VERSION_FP32);
        unit_patch(path, HEADER_BYTES + 2, 0xff80);
        if (sealed) { unit_seal(path); }
        CHECK_FATAL("nan.bin: wte, element 0 is -inf", load(path));
        CHECK_FATAL("nan.bin: wte, element 0 is -inf", verify(path));
        unit_flip(path, 8 * HEADER_BYTES + 3); // damage goes first: the number may be its work
        if (sealed) { CHECK_FATAL("nan.bin: bytes 1024", load(path)); }
    }
}

// Equal weights are known by equal numbers, whatever the step; other weights by others.
static void contents_are_identified(void) {
    static float weights[2][20000] = {{1.0f}, {1.0f}};
    ModelHeader h[4];
    const char* path = unit_path("contents.bin");
    weights[1][10000] = 1e-30f;
    for (int i = 0; i < 4; i++) {
        check(model_file_write(path, small, i < 3 ? MODEL_VERSION_FP32 : MODEL_VERSION_BF16, 7 + i, weights[i == 2]));
        CHECK(model_file_verify(path, &h[i]) == STATUS_OK);
        CHECK(h[i].step == 7 + i && h[i].digest != 0 && h[i].has_checksums);
    }
    CHECK(h[0].digest == h[1].digest && h[0].digest != h[2].digest && h[0].digest != h[3].digest);
}

int main(void) {
    models_have_their_number_of_parameters();
    the_table_is_llmc_s();
    descriptors_name_models();
    a_descriptor_without_a_context_has_that_of_the_rows();
    a_file_has_the_trained_length();
    a_trained_length_that_cannot_be_is_refused();
    bad_descriptors_are_refused();
    all_sizes_of_the_tables_are_models();
    initial_weights_are_pytorch_s();
    activations_take_what_they_must();
    activations_are_aligned_and_apart();
    bf16_rounds_to_the_nearest_even();
    checkpoints_come_back();
    broken_checkpoints_are_refused();
    damage_is_noticed_by_its_checksum();
    weights_that_are_not_finite_are_refused();
    contents_are_identified();
    return unit_end();
}
