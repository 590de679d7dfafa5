// Which variant serves which group of the matmul competition: the rules of dev/cuda/matmul/choice.h over GPUs, precisions and
// sizes, and the sizes that the contract refuses. Needs no GPU.
#include "dev/cuda/matmul/choice.h"
#include "dev/test/fixtures/unit.h"

#include <limits.h>

static MatmulSizes sizes(int R, int IN, int OUT, int vocab_size) {
    MatmulSizes s = {R, IN, OUT, vocab_size};
    return s;
}

// Every GPU and every group has a variant in every precision, whatever the sizes are that the contract serves.
static void everything_is_served(void) {
    const int capabilities[] = {70, 80, 89, 90, 100, 120}, rows[] = {1, 130, 65536};
    for (int group = 0; group < NUM_MATMUL_GROUPS; group++) {
        for (int n = 0; n < 6; n++) {
            for (int r = 0; r < 3; r++) {
                const MatmulSizes s = sizes(rows[r], 768, 768, 0);
                const char* in_fp32 = matmul_rule((MatmulGroup)group, 1, capabilities[n], s)->variant;
                const char* in_16_bit = matmul_rule((MatmulGroup)group, 0, capabilities[n], s)->variant;
                CHECK(strcmp(in_fp32, "cublaslt") == 0); // our GEMM is Hopper's, and has 16-bit operands
                CHECK(capabilities[n] == 90 || strcmp(in_16_bit, "cublaslt") == 0);
            }
        }
    }
}

static int serves(const char* variant, MatmulGroup group, int fp32, int capability, int R, int IN, int OUT) {
    return strcmp(matmul_rule(group, fp32, capability, sizes(R, IN, OUT, 0))->variant, variant) == 0;
}

// On Hopper the fused groups that won train, at the sizes that raced; elsewhere the baseline does.
static void winners_train(void) {
    const int channels[] = {768, 1024, 1280, 1600};
    for (int n = 0; n < 4; n++) {
        const int C = channels[n];
        CHECK(serves("wgmma", MATMUL_FC, 0, 90, 65536, C, 4 * C));
        CHECK(serves("wgmma", MATMUL_DGELU, 0, 90, 8192, 4 * C, C));
        CHECK(serves(C == 768 ? "wgmma" : "cublaslt_epilogue", MATMUL_RESIDUAL, 0, 90, 8192, C, C));
        CHECK(serves(C == 768 ? "wgmma" : "cublaslt_epilogue", MATMUL_RESIDUAL, 0, 90, 8192, 4 * C, C));
        CHECK(serves("softmax_wgmma", MATMUL_CLASSIFIER, 0, 90, 8192, C, 50304));
        CHECK(serves("cublaslt", MATMUL_CLASSIFIER, 1, 90, 8192, C, 50304));
        CHECK(serves("cublaslt", MATMUL_WEIGHT, 0, 90, 65536, C, 4 * C));
        CHECK(serves("cublaslt", MATMUL_FC, 1, 90, 65536, C, 4 * C)); // fp32
        CHECK(serves("cublaslt", MATMUL_FC, 0, 80, 65536, C, 4 * C));
        CHECK(serves("cublaslt", MATMUL_FC, 0, 100, 65536, C, 4 * C));
        CHECK(serves("cublaslt", MATMUL_FC, 0, 90, 8191, C, 4 * C));
    }
    CHECK(serves("cublaslt_epilogue", MATMUL_RESIDUAL, 0, 90, 8192, 768, 1024));
    CHECK(serves("cublaslt", MATMUL_RESIDUAL, 0, 90, 8191, 768, 768));
    CHECK(serves("cublaslt", MATMUL_WEIGHT, 0, 90, 65536, 768, 3 * 768));
    CHECK(serves("cublaslt", MATMUL_WEIGHT, 0, 90, 8192, 1600, 3 * 1600));
    CHECK(serves("cublaslt", MATMUL_WEIGHT, 0, 90, 65536, 768, 4 * 768));
    CHECK(serves("cublaslt", MATMUL_DGELU, 0, 90, 65536, 4 * 760, 760));
    CHECK(serves("cublaslt", MATMUL_DGELU, 0, 90, 65536, 4 * 1608, 1608));
}

static void groups_have_names(void) {
    CHECK(strcmp(matmul_group_names[MATMUL_QKV], "qkv") == 0);
    CHECK(strcmp(matmul_group_names[MATMUL_WEIGHT], "weight") == 0);
    for (int group = 0; group < NUM_MATMUL_GROUPS; group++) {
        CHECK(strchr(matmul_group_names[group], ',') == NULL && matmul_group_formulas[group][0] != '\0'); // a CSV field
    }
}

static void refused_sizes(void) {
    CHECK(matmul_unsupported(MATMUL_QKV, sizes(1, 8, 8, 0)) == NULL);
    CHECK(matmul_unsupported(MATMUL_INPUT, sizes(1 << 30, 1 << 24, 1 << 24, 0)) == NULL); // more than 2^31 elements
    CHECK(matmul_unsupported(MATMUL_QKV, sizes(0, 8, 8, 0)) != NULL);
    CHECK(matmul_unsupported(MATMUL_QKV, sizes(1, 12, 8, 0)) != NULL);
    CHECK(matmul_unsupported(MATMUL_QKV, sizes(1, 8, 12, 0)) != NULL);
    CHECK(matmul_unsupported(MATMUL_CLASSIFIER, sizes(4, 768, 50304, 50257)) == NULL);
    CHECK(matmul_unsupported(MATMUL_CLASSIFIER, sizes(4, 768, 50304, 50304)) == NULL);
    CHECK(matmul_unsupported(MATMUL_CLASSIFIER, sizes(4, 768, 50304, 50305)) != NULL);
    CHECK(matmul_unsupported(MATMUL_CLASSIFIER, sizes(4, 768, 50304, 0)) != NULL);
    const int ints[] = {INT_MIN, -8, 0, INT_MAX, INT_MAX - 7};
    for (int n = 0; n < 5; n++) {
        for (int group = 0; group < NUM_MATMUL_GROUPS; group++) {
            CHECK(matmul_unsupported((MatmulGroup)group, sizes(ints[n], 8, 8, 8)) != NULL);
            CHECK(matmul_unsupported((MatmulGroup)group, sizes(8, ints[n], 8, 8)) != NULL);
            CHECK(matmul_unsupported((MatmulGroup)group, sizes(8, 8, ints[n], 8)) != NULL);
        }
    }
}

int main(void) {
    everything_is_served();
    winners_train();
    groups_have_names();
    refused_sizes();
    return unit_end();
}
