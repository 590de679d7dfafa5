// llmc/files/model_file.h: casts between fp32, bf16 and fp16, against what the formats are.
#include "llmc/files/model_file.h"

#include "dev/test/fixtures/unit.h"

// The value of 16 bits with so many of exponent and mantissa, by the formats' definition
static double value_of(uint16_t x, int exponent_bits, int mantissa_bits) {
    int exponent = x >> mantissa_bits & ((1 << exponent_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    double mantissa = x & ((1 << mantissa_bits) - 1), sign = x & 0x8000 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) { return mantissa > 0 ? NAN : sign * INFINITY; }
    if (exponent == 0) { return sign * ldexp(mantissa, 1 - bias - mantissa_bits); }
    return sign * ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
}

static int same(double a, double b) { return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b)); }

static void every_number_of_16_bits_is_itself(void) {
    int wrong = 0;
    for (int i = 0; i < 1 << 16; i++) {
        uint16_t x = (uint16_t)i;
        float half = fp16_to_float(x), brain = bf16_to_float(x);
        wrong += !same((double)half, value_of(x, 5, 10)) || !same((double)brain, value_of(x, 8, 7));
        wrong += !isnan(brain) && float_to_bf16(brain) != x;
        wrong += isnan(brain) && !isnan(bf16_to_float(float_to_bf16(brain)));
    }
    CHECK(wrong == 0);
}

// Between neighbours: half way goes to the one whose last bit is 0, anything less or more to the nearer one.
static void casts_round_to_nearest_even(void) {
    int wrong = 0;
    for (int i = 1; i < 0x7f7f; i++) { // of bf16; half of the least number is not normal in fp32 either, but a number
        float below = bf16_to_float((uint16_t)i), above = bf16_to_float((uint16_t)(i + 1));
        float half = below / 2 + above / 2;
        if (i < 0x100) { continue; } // there halves are not exact
        wrong += float_to_bf16(half) != (uint16_t)(i + (i & 1));
        wrong += float_to_bf16(nextafterf(half, 0.0f)) != (uint16_t)i;
        wrong += float_to_bf16(-nextafterf(half, INFINITY)) != (uint16_t)(0x8000 | (i + 1));
    }
    CHECK(wrong == 0);
}

static void weights_may_have_any_alignment(void) {
    const float weights[4] = {1.0f, 65520.0f, -3.3e38f, INFINITY};
    const uint16_t words[4] = {0x3f80, 0x4780, 0xff78, 0x7f80};
    char bytes[17];
    cast_weights(bytes + 1, WEIGHTS_FP32, weights, 4);
    CHECK(memcmp(bytes + 1, weights, 16) == 0);
    cast_weights(bytes + 1, WEIGHTS_BF16, weights, 4);
    CHECK(memcmp(bytes + 1, words, 8) == 0);
}

static void auto_loses_nothing(void) {
    CHECK(weight_type_of("auto", (const float[]){1.0f, -0.25f, 0x1p100f}, 3) == WEIGHTS_BF16);
    CHECK(weight_type_of("auto", (const float[]){1.0f, 1.0009765625f}, 2) == WEIGHTS_FP32);
    CHECK(weight_type_of("auto", (const float[]){0.1f}, 1) == WEIGHTS_FP32);
    CHECK(weight_type_of("bf16", (const float[]){0.1f}, 1) == WEIGHTS_BF16);
    CHECK(weight_type_of("fp32", (const float[]){1.0f}, 1) == WEIGHTS_FP32);
}

int main(void) {
    every_number_of_16_bits_is_itself();
    casts_round_to_nearest_even();
    weights_may_have_any_alignment();
    auto_loses_nothing();
    return unit_end();
}
