// The variants of matmul that train, with their kernels, and LayerNorm: an object of the programs that train or generate.
#include "matmul.cuh"
#include "build/matmul_variants.h" // those of matmul/choice.h's rules: MATMUL_VARIANTS(X)

#ifndef PRECISION_FP32
#include "wgmma_fp8.cuh"
#else
static Status fp8_in_fp32(void) { return status_fail("fp8 is of bf16 builds; this one is fp32"); }
Status fp8_qkv(const MatmulTensors*, MatmulSizes, cudaStream_t) { return fp8_in_fp32(); }
Status fp8_fc(const MatmulTensors*, const Fp8Outputs&, MatmulSizes, cudaStream_t) { return fp8_in_fp32(); }
size_t fp8_classifier_scratch_bytes(MatmulSizes) { return 0; }
Status fp8_classifier(const MatmulTensors*, float2*, MatmulSizes, void*, cudaStream_t) { return fp8_in_fp32(); }
Status fp8_dgelu(const MatmulTensors*, const Fp8Outputs&, MatmulSizes, void*, cudaStream_t) { return fp8_in_fp32(); }
#endif

#define MATMUL_VARIANT(v) {#v, v::matmul_configs},
static constexpr MatmulVariant matmul_table[] = {MATMUL_VARIANTS(MATMUL_VARIANT)};
#undef MATMUL_VARIANT
constexpr Variants<MatmulVariant> matmul_variants(matmul_table);

// Compile-time check: this program holds the configurations that the rules of its precision name.
constexpr bool matmul_holds(const MatmulRule& r) {
    for (const MatmulVariant& v : matmul_table) {
        if (!same_text(r.variant, v.name)) { continue; }
        for (const MatmulConfig& c : v) {
            if (r.group == -1 || r.group == c.group) { return true; }
        }
    }
    return false;
}
constexpr bool matmul_rules_hold() {
    for (const MatmulRule& r : matmul_rules) {
        if ((sizeof(floatX) < sizeof(float) || r.group == -1) && !matmul_holds(r)) { return false; }
    }
    return true;
}
static_assert(matmul_rules_hold(), "matmul/choice.h names a configuration that a variant's matmul_configs do not have");
