/*
llmc/base/rand.h draws what PyTorch's CPU generator draws. The expected numbers were printed by

    torch.manual_seed(137)
    [torch.randint(0, 2**24, [1]).item() for _ in range(3)]     # one word each, modulo 2^24
    torch.rand(5)
    torch.zeros(8).normal_()                                    # draws 16 words, which are passed over here
    torch.zeros(16).normal_()
    torch.zeros(37).normal_(1.0, 0.5)
    torch.randint(0, 2**24, [1])
*/
#include "llmc/base/rand.h"

#include <float.h>

#include "dev/test/fixtures/unit.h"

static const unsigned torch_words[3] = {10496734, 9619750, 11194957};
static const float torch_uniform[5] = {0.746163547f, 0.0149679184f, 0.146198928f, 0.197529674f, 0.217536986f};
static const float torch_normal_16[16] = {-0.0656950325f, 0.21808295f,  -0.465361655f, -0.331084102f,
                                          2.54854822f,    0.104253799f, -0.406265795f, 0.551644921f,
                                          -0.291376501f,  0.343138069f, -1.11867046f,  -0.183053285f,
                                          -2.31531596f,   0.396198779f, 0.938341618f,  0.935154319f};
static const float torch_normal_37[37] = {
    1.22430944f,  1.34600151f,  0.0932246447f, 1.25153184f,   0.62208426f,  1.21569085f,  -0.746459484f, 1.51833355f,
    0.312969983f, 1.29729486f,  0.407483757f,  1.56458879f,   1.43421173f,  0.963576972f, 1.25223672f,   1.54978561f,
    1.36535382f,  2.5587244f,   1.28671551f,   1.48416746f,   0.971629024f, 1.6078248f,   0.477798522f,  1.57177162f,
    1.45291471f,  1.23337829f,  1.08417678f,   0.826741755f,  0.869793177f, 1.52226925f,  0.946466744f,  0.612249613f,
    0.554860294f, 0.522225797f, 0.960740924f,  0.0119549036f, 0.965559125f};
static const unsigned torch_word_after = 13966835;

// The integers are the same, and so are the uniform floats, which are multiples of 2^-24. From 16 elements on PyTorch
// takes log, sin and cos in fp32 from vector code of its own. With eps = 2^-24 and r the radius, at most
// sqrt(-2 log 2^-24) = 5.77: the angle, up to 2 pi, is rounded three times in all (3 * 2 pi eps), sin and cos differ by
// 2 eps, r by 4 eps r, the products by 2 eps r. That is r (18.9 + 2 + 4 + 2) eps <= 9.3e-6, times the deviation.
static void draws_what_pytorch_draws(void) {
    const double bound = 5.77 * 26.9 * 0x1p-24;
    mt19937_state rng;
    float x[37];
    manual_seed(&rng, 137);
    for (int i = 0; i < 3; i++) { CHECK(randint32(&rng) % (1u << 24) == torch_words[i]); }
    uniform_(x, 5, 0.0f, 1.0f, &rng);
    for (int i = 0; i < 5; i++) { CHECK(x[i] == torch_uniform[i]); }
    for (int i = 0; i < 16; i++) { randint32(&rng); }
    normal_(x, 16, 0.0f, 1.0f, &rng);
    for (int i = 0; i < 16; i++) { CHECK_NEAR(x[i], torch_normal_16[i], bound); }
    normal_(x, 37, 1.0f, 0.5f, &rng);
    for (int i = 0; i < 37; i++) {
        CHECK_NEAR(x[i], torch_normal_37[i], 0.5 * bound + 0x1p-23);
    } // and the sum's rounding
    CHECK(randint32(&rng) % (1u << 24) == torch_word_after);
}

// The C++ standard gives the 10000th number of mt19937 with its default seed.
static void is_the_mersenne_twister(void) {
    mt19937_state rng;
    manual_seed(&rng, 5489);
    unsigned x = 0;
    for (int i = 0; i < 10000; i++) { x = randint32(&rng); }
    CHECK(x == 4123659995u);
}

// Moments of n draws, each within 5 standard errors: a false alarm in two million, and the seed is fixed.
static void distributions_have_their_moments(void) {
    enum { N = 100000 };
    float* x = (float*)malloc_check(N * sizeof(float));
    mt19937_state rng;
    manual_seed(&rng, 1);
    double mean = 0.0, square = 0.0, low = 10.0, high = -10.0;
    uniform_(x, N, -2.0f, 4.0f, &rng);
    for (int i = 0; i < N; i++) {
        mean += x[i] / N;
        low = fmin(low, x[i]), high = fmax(high, x[i]);
    }
    CHECK_NEAR(mean, 1.0, 5.0 * 6.0 / sqrt(12.0 * N));
    CHECK(low >= -2.0 && low < -1.99 && high < 4.0 && high > 3.99);
    normal_(x, N, 3.0f, 2.0f, &rng);
    mean = 0.0;
    for (int i = 0; i < N; i++) { mean += x[i] / N; }
    for (int i = 0; i < N; i++) { square += (x[i] - mean) * (x[i] - mean) / N; }
    CHECK_NEAR(mean, 3.0, 5.0 * 2.0 / sqrt(N));
    CHECK_NEAR(square, 4.0, 5.0 * 4.0 * sqrt(2.0 / N));
    free(x);
}

static void permutations_are_llmc_s(void) {
    static const int expected[10] = {1, 3, 9, 7, 6, 0, 8, 4, 5, 2}; // llm.c, seed 42
    int p[10];
    mt19937_state rng;
    manual_seed(&rng, 42);
    init_identity_permutation(p, 10);
    random_permutation(p, 10, &rng);
    CHECK(memcmp(p, expected, sizeof(p)) == 0);
    mt19937_state before = rng;
    random_permutation(p, 1, &rng);
    random_permutation(p, 0, &rng);
    CHECK(memcmp(&before, &rng, sizeof(rng)) == 0); // nothing to shuffle, nothing drawn
}

// State files hold the struct.
static void layout_is_the_file_format_s(void) {
    CHECK(sizeof(mt19937_state) == 2520);
    CHECK(offsetof(mt19937_state, left_) == 8);
    CHECK(offsetof(mt19937_state, next_) == 12);
    CHECK(offsetof(mt19937_state, state_) == 16);
    CHECK(offsetof(mt19937_state, MATRIX_A) == 2512);
}

static void only_reachable_states_are_valid(void) {
    mt19937_state rng;
    manual_seed(&rng, 3);
    int valid = mt19937_valid(&rng);
    for (int i = 0; i < 2000; i++) {
        randint32(&rng);
        valid = valid && mt19937_valid(&rng);
    }
    CHECK(valid);
    mt19937_state bad = rng;
    bad.next_ = MT_WORDS + 1;
    CHECK(!mt19937_valid(&bad));
    bad = rng;
    bad.left_ += 1;
    CHECK(!mt19937_valid(&bad));
    bad = rng;
    bad.left_ = -5;
    CHECK(!mt19937_valid(&bad));
}

int main(void) {
    draws_what_pytorch_draws();
    is_the_mersenne_twister();
    distributions_have_their_moments();
    permutations_are_llmc_s();
    layout_is_the_file_format_s();
    only_reachable_states_are_valid();
    return unit_end();
}
