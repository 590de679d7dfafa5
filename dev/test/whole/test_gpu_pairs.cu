/*
The GPU trainer with every pair of attention variants that can train in its precision, forward and backward, and with every
variant of the matmul groups, on the committed dumps: logits, loss and gradients are PyTorch's, and a second pass gives the same
bits; of GEMMs with their neighbours so does every recompute setting. And a run's identity names the variants of its GEMMs. See
dev/test/whole/reference_test.h.
*/
#include "train_gpt2.cu"
// The variants that no rule of attention/choice.h names in this precision, by their files; the others come with attention.cu's
// object.
#include "build/other_variants.h"
#include "reference_test.h"

#include <vector>

#define FORWARD_VARIANT(v) {#v, v::forward_configs},
#define BACKWARD_VARIANT(v) {#v, v::backward_configs},
static constexpr AttentionForwardVariant other_forward_variants[] = {OTHER_FORWARD_VARIANTS(FORWARD_VARIANT)};
static constexpr AttentionBackwardVariant other_backward_variants[] = {OTHER_BACKWARD_VARIANTS(BACKWARD_VARIANT)};

// Those of either list that can train. A variant whose forward needs a scratch cannot: cublas, in 16 bit flash1.
template <class Variant, size_t N>
static std::vector<const Variant*> all(const Variant (&others)[N], const Variants<Variant>& named) {
    std::vector<const Variant*> variants;
    for (const Variant& v : others) {
        if (v.first->launch) { variants.push_back(&v); }
    }
    for (const Variant& v : named) { variants.push_back(&v); }
    return variants;
}

static void check_pairs(const char* dump) {
    char model_path[256], state_path[256], label[64];
    snprintf(model_path, sizeof(model_path), "%s.bin", dump);
    snprintf(state_path, sizeof(state_path), "%s_debug_state.bin", dump);
    ModelHeader header;
    float* params;
    check(gpt2_load_parameters(&params, model_path, &header));
    GPT2Config config = header.config;
    DebugState state = debug_state_read(state_path, config);
    ReferencePrecision precision = gpu_precision();
    ReferenceTolerances tolerances = reference_tolerances(precision, config, &state);
    if (!precision.rounds_sums) { reference_read_measured(&tolerances, state_path, "bf16"); }
    int HS = config.channels / config.num_heads;
    printf("%s: batch %d x %d, head size %d\n", dump, state.B, state.T, HS);
    for (const AttentionForwardVariant* f : all(other_forward_variants, attention_forward_variants)) {
        for (const AttentionBackwardVariant* b : all(other_backward_variants, attention_backward_variants)) {
            GPT2Settings settings = gpt2_default_settings();
            settings.tf32 = 0;
            if (!attention_config(*f, nullptr, HS, SIZE_MAX) || !attention_config(*b, nullptr, HS, SIZE_MAX)) {
                continue;
            } // wgmma's backward has no heads of 32
            attention_force(f, b);
            snprintf(label, sizeof(label), "%s, %s", f->name, b->name);
            reference_check_settings(settings, label, config, params, &state, &tolerances);
        }
    }
    attention_force(nullptr, nullptr);
    for (const MatmulVariant& v : matmul_variants) {
        GPT2Settings settings = gpt2_default_settings();
        settings.tf32 = 0;
        if (v.begin()->fp8) { continue; } // test_gpu_fp8.cu
        matmul_force(v.name);
        snprintf(label, sizeof(label), "GEMMs of %s", v.name);
        reference_check_settings(settings, label, config, params, &state, &tolerances);
        if (strcmp(v.name, "cublaslt_epilogue") == 0) { continue; } // its gelu is not that of a recomputed one
        const ReferenceBits kept = reference_run(settings, 0, config, params, &state, NULL);
        reference_check_micro_steps(settings, config, params, &state, &tolerances, kept);
        for (int recompute = 1; recompute <= 2; recompute++) {
            snprintf(label, sizeof(label), "GEMMs of %s, recompute %d", v.name, recompute);
            reference_check_bits(label, reference_run(settings, recompute, config, params, &state, NULL), kept);
        }
    }
    matmul_force(nullptr);
    debug_state_free(&state);
    free(params);
}

// A run's identity names every GEMM that another variant than the library's baseline serves, and the baseline for none: at one
// sequence of 64 tokens, where no rule of matmul/choice.h names another.
static void check_names(const char* variant, const char* expected) {
    const GPT2Config config = {1024, 50257, 50304, 12, 12, 768, 0};
    char text[sizeof(((GPT2Numerics*)NULL)->gemm)];
    matmul_force(variant);
    gpt2_describe_gemms(text, sizeof(text), 90, config, gpt2_default_settings(), 1, 64);
    matmul_force(nullptr);
    const bool same = strcmp(text, expected) == 0;
    same ? reference_passed++ : reference_failed++;
    if (!same) { printf("the GEMMs of %s are named \"%s\", not \"%s\"\n", variant, text, expected); }
}

int main(void) {
    check_names("cublaslt", "cuBLASLt");
#if !defined(PRECISION_FP32)
    check_names("softmax_wgmma", "cuBLASLt; classifier: softmax_wgmma");
    check_names("wgmma", "cuBLASLt; attproj, fc, fcproj, input of fcproj: wgmma");
#endif
    for (const char* dump : reference_dumps) { check_pairs(dump); }
    printf("%d passed, %d failed\n", reference_passed, reference_failed);
    return reference_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
