// e4m3 and its scales (llmc/cuda/e4m3.cuh): all codes, the midpoints between them, random numbers against the nearest of
// all codes, what saturates and what is no number; scales of every binade; shapes that fp8 GEMMs refuse. Needs no GPU.
#include "llmc/cuda/e4m3.cuh"
#include "dev/cuda/matmul/choice.h"
#include "llmc/base/rand.h"
#include "dev/test/fixtures/unit.h"

enum { LARGEST_CODE = 0x7e, NAN_CODE = 0x7f };
static double table[NAN_CODE]; // the values of the codes from 0 up, counted as spacings: no exponent is taken apart

static void make_table(void) {
    double value = 0, spacing = 0x1p-9;
    for (int code = 0; code < NAN_CODE; code++) {
        table[code] = value;
        value += spacing;
        if (code >= 15 && code % 8 == 7) { spacing *= 2; }
    }
    CHECK(table[1] == 0.001953125 && table[7] == 0.013671875 && table[8] == 0.015625); // as in OCP's OFP8, table 1
    CHECK(table[0x38] == 1 && table[LARGEST_CODE] == 448);
}

static void codes_have_their_values(void) {
    for (int code = 0; code < NAN_CODE; code++) {
        for (int sign = 0; sign <= 0x80; sign += 0x80) {
            const double value = sign ? -table[code] : table[code];
            CHECK(e4m3_value((uint8_t)(code | sign)) == value);
            CHECK(signbit(e4m3_value((uint8_t)(code | sign))) == (sign != 0));
            CHECK(e4m3_of((float)value) == (code | sign)); // -0 is 0x80
        }
    }
    CHECK(isnan(e4m3_value(NAN_CODE)) && isnan(e4m3_value(NAN_CODE | 0x80)));
}

// To nearest; a number in the middle goes to the code that ends in 0.
static void numbers_round_to_nearest_even(void) {
    for (int code = 0; code < LARGEST_CODE; code++) {
        const float middle = (float)(table[code] + table[code + 1]) / 2;
        const int even = code + code % 2;
        CHECK(e4m3_of(middle) == even && e4m3_of(-middle) == (even | 0x80));
        CHECK(e4m3_of(nextafterf(middle, 0)) == code && e4m3_of(nextafterf(middle, INFINITY)) == code + 1);
    }
    mt19937_state generator;
    float x[16];
    int wrong = 0;
    manual_seed(&generator, 42);
    for (int n = 0; n < 2000; n++) {
        normal_(x, 16, 0, ldexpf(1, n % 20 - 11), &generator);
        for (float number : x) {
            int nearest = 0;
            for (int code = 1; code < NAN_CODE; code++) {
                if (fabs(table[code] - fabs(number)) < fabs(table[nearest] - fabs(number))) { nearest = code; }
            }
            wrong += (e4m3_of(number) & 0x7f) != nearest || (e4m3_of(number) >= 0x80) != (number < 0);
        }
    }
    CHECK(wrong == 0);
}

static void large_numbers_saturate(void) {
    for (float x : {448.0f, 448.1f, 464.0f, 465.0f, 480.0f, 512.0f, 1e30f, FLT_MAX, INFINITY}) {
        CHECK(e4m3_of(x) == LARGEST_CODE && e4m3_of(-x) == (LARGEST_CODE | 0x80));
    }
    for (float x : {0.0f, 1e-30f, FLT_MIN / 2, 0x1p-10f}) { CHECK(e4m3_of(x) == 0 && e4m3_of(-x) == 0x80); }
    CHECK((e4m3_of(NAN) & 0x7f) == NAN_CODE);
}

// The smallest power of two with which amax does not saturate
static void scales_fit(void) {
    for (int exponent = -50; exponent <= 67; exponent++) {
        for (float mantissa : {1.0f, 1.5f, 1.75f, nextafterf(1.75f, 2), 1.99f}) {
            const float amax = ldexpf(mantissa, exponent), scale = e4m3_scale(amax);
            int two;
            CHECK(frexpf(scale, &two) == 0.5f);
            CHECK(amax / scale <= 448 && amax / scale > 224);
        }
    }
    CHECK(e4m3_scale(448) == 1 && e4m3_scale(nextafterf(448, 500)) == 2 && e4m3_scale(224) == 0.5f);
    CHECK(e4m3_scale(0) == 1);
    CHECK(e4m3_scale(FLT_MIN) == 0x1p-60f && e4m3_scale(FLT_MIN / 4) == 0x1p-60f && e4m3_scale(FLT_MAX) == 0x1p60f);
    CHECK(isnan(e4m3_scale(NAN)) && isnan(e4m3_scale(INFINITY)));
    CHECK((e4m3_of(1 / e4m3_scale(NAN)) & 0x7f) == NAN_CODE); // so that all of the tensor is
}

static void shapes_that_are_refused(void) {
    const MatmulSizes served = {33, 768, 50304, 0}, narrow = {64, 776, 768, 0}, wide = {64, 768, 2056, 0};
    CHECK(!e4m3_channels_unsupported(served) && e4m3_channels_unsupported(narrow) && e4m3_channels_unsupported(wide));
    const MatmulSizes rows = {48, 768, 2056, 0}, odd = {40, 768, 2048, 0}, columns = {48, 776, 2048, 0};
    CHECK(!e4m3_weight_unsupported(rows) && e4m3_weight_unsupported(odd) && e4m3_weight_unsupported(columns));
    CHECK(strstr(e4m3_channels_unsupported(narrow), "multiples of 16") != NULL);
}

int main(void) {
    make_table();
    codes_have_their_values();
    numbers_round_to_nearest_even();
    large_numbers_saturate();
    scales_fit();
    shapes_that_are_refused();
    return unit_end();
}
