// llmc/run/schedulers.h: the learning rate of every step.
#include "llmc/run/schedulers.h"

#include "dev/test/fixtures/unit.h"

static LearningRateScheduler schedule(const char* type, float rate, int warmup, int steps, float final_fraction) {
    LearningRateScheduler s = {type, rate, warmup, steps, final_fraction};
    return s;
}

// llm.c's rates for a largest rate of 3e-4, 7 steps of warm-up, 100 steps, a final fraction of 0.1. The few roundings on
// the way, each half a unit of the largest rate (eps/2 = 2^-24), may fall differently: 6 of them.
static void rates_are_llmc_s(void) {
    static const char* types[4] = {"cosine", "linear", "constant", "wsd"};
    static const int steps[9] = {0, 6, 7, 40, 79, 80, 81, 99, 100};
    static const float expected[4][9] = {
        {4.28571439e-05f, 3.00000014e-04f, 3.00000014e-04f, 2.24453222e-04f, 6.25676621e-05f, 5.9656144e-05f,
         5.68648429e-05f, 3.00770225e-05f, 3.00000011e-05f},
        {4.28571439e-05f, 3.00000014e-04f, 3.00000014e-04f, 2.04193551e-04f, 9.09677474e-05f, 8.80645093e-05f,
         8.51612858e-05f, 3.29032191e-05f, 2.99999956e-05f},
        {3.00000014e-04f, 3.00000014e-04f, 3.00000014e-04f, 3.00000014e-04f, 3.00000014e-04f, 3.00000014e-04f,
         3.00000014e-04f, 3.00000014e-04f, 3.00000014e-04f},
        {4.28571475e-05f, 3.00000014e-04f, 3.00000014e-04f, 3.00000014e-04f, 3.00000014e-04f, 3.00000014e-04f,
         2.3962617e-04f, 3.68365618e-05f, 3.00000011e-05f},
    };
    for (int k = 0; k < 4; k++) {
        LearningRateScheduler s = schedule(types[k], 3e-4f, 7, 100, 0.1f);
        for (int i = 0; i < 9; i++) { CHECK_NEAR(get_learning_rate(&s, steps[i]), expected[k][i], 6 * 3e-4 * 0x1p-24); }
    }
}

static void warm_up_climbs_in_equal_steps(void) {
    static const char* types[3] = {"cosine", "linear", "wsd"};
    for (int k = 0; k < 3; k++) {
        LearningRateScheduler s = schedule(types[k], 1.0f, 8, 100, 0.0f);
        for (int step = 0; step < 8; step++) { CHECK(get_learning_rate(&s, step) == (float)(step + 1) / 8.0f); }
        CHECK(get_learning_rate(&s, 8) == 1.0f);
    }
}

// After the warm-up no rate is above the one before, and none leaves [final, largest].
static void rates_fall_to_the_final_fraction_and_stay(void) {
    static const char* types[3] = {"cosine", "linear", "wsd"};
    for (int k = 0; k < 3; k++) {
        LearningRateScheduler s = schedule(types[k], 1.0f, 10, 1000, 0.25f);
        int falls = 1, stays = 1;
        for (int step = 11; step <= 1000; step++) {
            float rate = get_learning_rate(&s, step);
            falls = falls && rate <= get_learning_rate(&s, step - 1) && rate >= 0.25f && rate <= 1.0f;
        }
        for (int step = 1000; step < 3000; step += 7) { stays = stays && get_learning_rate(&s, step) == 0.25f; }
        CHECK(falls);
        CHECK(stays);
    }
    LearningRateScheduler wsd = schedule("wsd", 1.0f, 10, 1000, 0.0f);
    CHECK(get_learning_rate(&wsd, 800) == 1.0f);
    CHECK_NEAR(get_learning_rate(&wsd, 850), 0.5, 0x1p-23); // 1 - sqrt(50/200)
    LearningRateScheduler cosine = schedule("cosine", 1.0f, 0, 1000, 0.0f);
    CHECK(get_learning_rate(&cosine, 0) == 1.0f);
    CHECK_NEAR(get_learning_rate(&cosine, 500), 0.5, 0x1p-23);
}

static void odd_lengths_are_no_error(void) {
    static const char* types[4] = {"cosine", "linear", "constant", "wsd"};
    static const int sizes[][2] = {{0, 0}, {0, 1}, {5, 0}, {5, 5}, {50, 10}, {10, 11}}; // warm-up, steps
    for (int k = 0; k < 4; k++) {
        int good = 1;
        for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
            LearningRateScheduler s = schedule(types[k], 2.0f, sizes[i][0], sizes[i][1], 0.5f);
            for (int step = 0; step < 100; step++) {
                float rate = get_learning_rate(&s, step);
                good = good && rate > 0.0f && rate <= 2.0f; // NaN is neither
                int over = step >= sizes[i][0] && step >= sizes[i][1] && k != 2;
                good = good && (!over || rate == 1.0f); // the final fraction, though there was nothing to decay in
            }
        }
        CHECK(good);
    }
}

int main(void) {
    rates_are_llmc_s();
    warm_up_climbs_in_equal_steps();
    rates_fall_to_the_final_fraction_and_stay();
    odd_lengths_are_no_error();
    return unit_end();
}
