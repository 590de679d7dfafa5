// The detectors of llmc/checkpoint/checkpoint.h: how unlike the last 128 values a value is.
#include "llmc/checkpoint/checkpoint.h"

#include "llmc/base/rand.h"
#include "dev/test/fixtures/unit.h"

// The z-score of x[last] within x[last-127..last], from the definition
static double z_score(const double* x, int last) {
    double mean = 0.0, variance = 0.0;
    for (int i = last - 127; i <= last; i++) { mean += x[i] / 128; }
    for (int i = last - 127; i <= last; i++) { variance += (x[i] - mean) * (x[i] - mean) / 128; }
    return (x[last] - mean) / sqrt(variance);
}

// Values like a loss that falls from 11 to 3. Sums of 128 numbers in double: errors of 128 eps relative to values that
// stand at most 100 deviations from 0, so 100 * 128 * 2^-52 < 1e-11 in z.
static void scores_are_the_definition_s(void) {
    double x[1000];
    OutlierDetector d;
    mt19937_state rng;
    manual_seed(&rng, 8);
    outlier_init(&d);
    int early = 0;
    for (int i = 0; i < 1000; i++) {
        x[i] = 3.0 + 8.0 * exp(-i / 100.0) + 0.5 * (double)randfloat32(&rng);
        double z = outlier_update(&d, x[i]);
        if (i < 128) {
            early += isnan(z) != 0; // no score until the window is full
        } else {
            CHECK_NEAR(z, z_score(x, i), 1e-11);
        }
    }
    CHECK(early == 128);
}

static void a_jump_is_an_outlier_and_equal_values_are_none(void) {
    OutlierDetector d;
    outlier_init(&d);
    for (int i = 0; i < 128; i++) { outlier_update(&d, 2.5); }
    CHECK(outlier_update(&d, 2.5) == 0.0);
    CHECK_NEAR(outlier_update(&d, 100.0), sqrt(127.0), 1e-9);      // the most that one of 128 can have
    CHECK_NEAR(outlier_update(&d, 2.5), -sqrt(1.0 / 127.0), 1e-9); // and the others' share of it
    for (int i = 0; i < 126; i++) { outlier_update(&d, 2.5); }
    CHECK(outlier_update(&d, 2.5) == 0.0); // the jump has left the window
}

static void infinite_values_stay_out(void) {
    OutlierDetector d;
    outlier_init(&d);
    CHECK(outlier_update(&d, NAN) == INFINITY);
    for (int i = 0; i < 128; i++) { outlier_update(&d, i % 2); }
    CHECK(outlier_update(&d, NAN) == INFINITY);
    CHECK(outlier_update(&d, INFINITY) == INFINITY);
    CHECK(outlier_update(&d, -INFINITY) == INFINITY);
    CHECK(outlier_update(&d, 0.0) == -1.0); // half the window is 0, half 1
}

static void only_what_updates_can_make_is_valid(void) {
    OutlierDetector d;
    memset(&d, 0xff, sizeof(d)); // NaN in the window
    outlier_init(&d);
    int valid = outlier_valid(&d);
    for (int i = 0; i < 300; i++) {
        outlier_update(&d, i % 2 ? -3e38 : 3e38);
        valid = valid && outlier_valid(&d);
    }
    CHECK(valid);
    static const struct {
        int count, index;
    } bad[] = {{-1, 0}, {129, 0}, {INT32_MAX, 0}, {INT32_MIN, 0},   {128, -1},       {128, 128},
               {5, 3},  {0, 1},   {127, 127},     {128, INT32_MIN}, {128, INT32_MAX}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        OutlierDetector broken = d;
        broken.count = bad[i].count, broken.index = bad[i].index;
        CHECK(!outlier_valid(&broken));
    }
    static const double values[] = {NAN, INFINITY, -INFINITY, 1e39, -1e39};
    for (size_t i = 0; i < sizeof(values) / sizeof(values[0]); i++) {
        OutlierDetector broken = d;
        broken.window[127] = values[i];
        CHECK(!outlier_valid(&broken));
        broken.count = 127, broken.index = 0; // what is beyond the count does not matter
        CHECK(outlier_valid(&broken));
    }
}

int main(void) {
    only_what_updates_can_make_is_valid();
    scores_are_the_definition_s();
    a_jump_is_an_outlier_and_equal_values_are_none();
    infinite_values_stay_out();
    return unit_end();
}
