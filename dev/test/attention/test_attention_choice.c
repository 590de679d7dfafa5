// Which attention serves what: the rules of dev/cuda/attention/choice.h over GPUs, precisions and shapes, and the sizes
// that the contract refuses. Needs no GPU.
#include "dev/cuda/attention/choice.h"
#include "dev/test/fixtures/unit.h"

// "variant config" of a shape, with "-" for the first configuration that fits
static const char* served_by(AttentionDirection d, const char* variant, int fp32, int capability, int B, int T, int NH,
                             int HS) {
    static char text[64];
    const AttentionRule* r = attention_rule(d, variant, fp32, capability, B, T, NH, HS);
    snprintf(text, sizeof(text), "%s %s", r ? r->variant : "none", r && r->config ? r->config : "-");
    return text;
}
#define SERVES(expected, ...) CHECK(strcmp(served_by(__VA_ARGS__), expected) == 0)

static void test_rules(void) {
    const AttentionDirection F = ATTENTION_FORWARD_PASS, B = ATTENTION_BACKWARD_PASS;
    // every GPU from 8.0 on has a variant for every head size of the contract, in every precision
    const int capabilities[] = {80, 86, 89, 90, 100, 120}, head_sizes[] = {32, 64, 96, 128};
    for (int n = 0; n < 6; n++) {
        for (int h = 0; h < 4; h++) {
            for (int fp32 = 0; fp32 < 2; fp32++) {
                CHECK(attention_rule(F, NULL, fp32, capabilities[n], 4, 1024, 12, head_sizes[h]) != NULL);
                CHECK(attention_rule(B, NULL, fp32, capabilities[n], 4, 1024, 12, head_sizes[h]) != NULL);
            }
        }
    }
    // wgmma exists on 9.0 alone, backward not for heads of 32; 16-bit tensor cores before 8.0 are not served
    SERVES("wgmma -", F, NULL, 0, 90, 64, 1024, 12, 64);
    SERVES("wgmma -", B, NULL, 0, 90, 16, 1024, 16, 128);
    SERVES("wgmma -", F, NULL, 0, 90, 64, 1024, 12, 96);
    SERVES("wgmma -", B, NULL, 0, 90, 64, 4096, 12, 96);
    SERVES("wgmma 192x64", F, NULL, 0, 90, 4, 4096, 16, 96);
    SERVES("wgmma -", F, NULL, 0, 90, 64, 1024, 12, 32);
    SERVES("mma -", B, NULL, 0, 90, 64, 1024, 12, 32);
    SERVES("mma -", F, NULL, 0, 89, 64, 1024, 12, 96);
    SERVES("mma -", F, NULL, 0, 89, 64, 1024, 12, 64);
    SERVES("mma -", B, NULL, 0, 100, 64, 1024, 12, 64);
    SERVES("none -", F, NULL, 0, 75, 64, 1024, 12, 64);
    SERVES("flash2 -", F, NULL, 1, 75, 64, 1024, 12, 64);
    SERVES("flash2 -", B, NULL, 1, 90, 64, 1024, 12, 64);
    // by length of the rows, at HS = 64: forward for few long ones; backward from 1025 rows on
    SERVES("wgmma -", F, NULL, 0, 90, 6, 4096, 12, 64);
    SERVES("wgmma 192x128", F, NULL, 0, 90, 1, 8192, 12, 64);
    SERVES("wgmma -", F, NULL, 0, 90, 4, 8192, 12, 64);
    SERVES("wgmma -", F, NULL, 0, 90, 4, 16384, 48, 64);
    SERVES("wgmma -", B, NULL, 0, 90, 64, 1024, 12, 64);
    SERVES("wgmma 64x192", B, NULL, 0, 90, 16, 1025, 12, 64);
    SERVES("wgmma 64x192", B, NULL, 0, 90, 6, 4096, 12, 64);
    SERVES("wgmma -", B, NULL, 0, 90, 4, 4096, 16, 128);
    // by name: only the rules of that variant, and none for one without rules
    SERVES("mma -", F, "mma", 0, 90, 64, 1024, 12, 64);
    SERVES("none -", F, "naive", 0, 90, 64, 1024, 12, 64);
    SERVES("none -", B, "wgmma", 0, 90, 64, 1024, 12, 32);
    SERVES("none -", B, "wgmma", 1, 90, 64, 1024, 12, 64);
}

static void test_sizes(void) {
    CHECK(attention_unsupported(1, 1, 1, 32) == NULL);
    CHECK(attention_unsupported(1024, 1024, 12, 64) == NULL); // B*T*3*C passes 2^31
    CHECK(attention_unsupported(4, 16384, 48, 64) == NULL);
    CHECK(attention_unsupported(1, 1 << 20, 1, 128) == NULL);
    for (int HS = -1; HS <= 160; HS++) {
        CHECK((attention_unsupported(1, 1, 1, HS) == NULL) == (HS == 32 || HS == 64 || HS == 96 || HS == 128));
    }
    // any int, without overflow: the sanitized build of this test sees it
    const int ints[] = {INT_MIN, -1, 0, INT_MAX, INT_MAX - 1, 1 << 30};
    for (int n = 0; n < 6; n++) {
        CHECK(ints[n] > 0 || attention_unsupported(ints[n], 1, 1, 64) != NULL);
        CHECK(attention_unsupported(1, ints[n], 1, 64) == NULL ? ints[n] == 1 << 30 : ints[n] != 1 << 30);
        CHECK(attention_unsupported(1, 1, ints[n], 64) != NULL);
        CHECK(attention_unsupported(ints[n], ints[n], ints[n], 64) != NULL);
        CHECK(attention_unsupported(1, 1, 1, ints[n]) != NULL);
        for (int m = 0; m < 6; m++) { CHECK(attention_unsupported(ints[n], ints[m], 12, 64) != NULL); }
    }
    CHECK(attention_unsupported(INT_MAX, 16, 1, 64) == NULL);
    CHECK(attention_unsupported(INT_MAX, 17, 1, 64) != NULL);
}

int main(void) {
    test_rules();
    test_sizes();
    return unit_end();
}
