// llmc/sampler.h: which token a coin chooses.
#include "llmc/sampler.h"

#include "unit.h"

static float scratch[1000];

static void random_numbers_are_llmc_s(void) {
    unsigned long long state = 1337;
    CHECK(random_u32(&state) == 989205090u);
    CHECK(random_u32(&state) == 818269915u);
    CHECK(random_u32(&state) == 1335155955u);
    CHECK(random_u32(&state) == 3876892996u);
    CHECK(random_f32(&state) == 0.684917867f);
    int inside = 1;
    for (int i = 0; i < 100000; i++) {
        float x = random_f32(&state);
        inside = inside && x >= 0.0f && x < 1.0f;
    }
    CHECK(inside);
}

static void without_temperature_the_largest_wins(void) {
    float logits[6] = {1.0f, 5.0f, -3.0f, 5.0f, NAN, 4.0f};
    CHECK(sample_logits(logits, 6, 0.0f, 0, 0.99f, scratch) == 1); // the first of the equal
    CHECK(sample_logits(logits, 6, 1.0f, 1, 0.99f, scratch) == 1); // top-1 is the same
    float begins_with_nan[3] = {NAN, -7.0f, -8.0f};
    CHECK(sample_logits(begins_with_nan, 3, 0.0f, 0, 0.5f, scratch) == 1);
    float single[1] = {-2.0f};
    CHECK(sample_logits(single, 1, 1.0f, 0, 0.5f, scratch) == 0);
}

// Coins (i + 1/2) / N fall into an interval of length p either floor(pN) or ceil(pN) times. The probabilities carry the
// error of expf and its argument, below 1e-6: less than one coin of 10000.
static void coins_choose_in_proportion(const float* logits, int V, float temperature, int top_k) {
    enum { N = 10000 };
    double weight[8] = {0}, norm = 0.0;
    int counts[8] = {0};
    for (int i = 0; i < V; i++) {
        int rank = 0; // how many come before it
        for (int j = 0; j < V; j++) { rank += logits[j] > logits[i] || (j < i && logits[j] == logits[i]); }
        if (top_k == 0 || rank < top_k) { weight[i] = exp((double)logits[i] / temperature); }
        norm += weight[i];
    }
    int last = -1, ordered = 1;
    for (int i = 0; i < N; i++) {
        int token = sample_logits(logits, V, temperature, top_k, ((float)i + 0.5f) / N, scratch);
        ordered = ordered && token >= last;
        last = token;
        counts[token]++;
    }
    CHECK(ordered); // a larger coin never chooses an earlier token
    for (int i = 0; i < V; i++) {
        CHECK_NEAR(counts[i], N * weight[i] / norm, 2.0);
        if (weight[i] == 0.0) { CHECK(counts[i] == 0); }
    }
}

// llm.c takes exp of the logits as they are and cumulates in fp32. V additions of relative error eps/2 each, twice, move
// its boundaries by less than V eps of the whole: coins that are further from a boundary must choose the same token.
static int llmc_sample_softmax(const float* logits, int n, float coin) {
    double norm = 0;
    for (int i = 0; i < n; i++) { norm += expf(logits[i]); }
    coin *= (float)norm;
    float cumulated = 0.0f;
    for (int i = 0; i < n; i++) {
        cumulated += expf(logits[i]);
        if (coin < cumulated) { return i; }
    }
    return n - 1;
}

static void choices_are_llmc_s(void) {
    enum { V = 1000 };
    static float logits[V];
    unsigned long long state = 99;
    int differ = 0, off_boundary = 0;
    for (int round = 0; round < 200; round++) {
        double norm = 0.0, below = 0.0;
        for (int i = 0; i < V; i++) {
            logits[i] = 12.0f * random_f32(&state) - 6.0f;
            norm += exp((double)logits[i]);
        }
        float coin = random_f32(&state);
        int token = sample_logits(logits, V, 1.0f, 0, coin, scratch);
        int theirs = llmc_sample_softmax(logits, V, coin);
        if (token == theirs) { continue; }
        differ++;
        for (int i = 0; i < (token > theirs ? token : theirs); i++) { below += exp((double)logits[i]); }
        off_boundary += !(fabs((double)coin - below / norm) <= V * 0x1p-23 && abs(token - theirs) == 1);
    }
    CHECK(differ <= 5);
    CHECK(off_boundary == 0);
}

static int compare_floats(const void* a, const void* b) {
    float x = *(const float*)a, y = *(const float*)b;
    return (x < y) - (x > y); // the largest first
}

static void kth_largest_is_the_sorted_one(void) {
    enum { V = 257 };
    float logits[V], sorted[V], heap[V] = {0};
    unsigned long long state = 5;
    for (int round = 0; round < 4; round++) { // the later the round, the more of them are equal
        for (int i = 0; i < V; i++) { logits[i] = (float)(random_u32(&state) % (1000000u >> (6 * round))); }
        memcpy(sorted, logits, sizeof(sorted));
        qsort(sorted, V, sizeof(float), compare_floats);
        int same = 1;
        for (int k = 1; k <= V; k++) { same = same && sample_kth_largest(logits, V, k, heap) == sorted[k - 1]; }
        CHECK(same);
    }
}

static void extreme_logits_are_safe(void) {
    float huge[4] = {-1e4f, 1e4f, 9999.0f, -INFINITY};
    CHECK(sample_logits(huge, 4, 1.0f, 0, 0.1f, scratch) == 1);
    CHECK(sample_logits(huge, 4, 1.0f, 0, 0.9f, scratch) == 2); // exp(0) : exp(-1) is 73% : 27%
    float impossible[3] = {-INFINITY, 0.0f, NAN};
    for (int i = 0; i < 10; i++) {
        CHECK(sample_logits(impossible, 3, 1.0f, 0, (float)i / 10.0f, scratch) == 1);
        CHECK(sample_logits(impossible, 3, 1.0f, 2, (float)i / 10.0f, scratch) == 1);
    }
    float certain[3] = {0.0f, INFINITY, 3.0f};
    CHECK(sample_logits(certain, 3, 1.0f, 0, 0.1f, scratch) == 1);
    float nothing[3] = {NAN, NAN, NAN};
    int token = sample_logits(nothing, 3, 1.0f, 2, 0.5f, scratch);
    CHECK(token >= 0 && token < 3);
    float first_nan[4] = {NAN, 0.0f, -0.5f, -1.0f};
    CHECK(sample_logits(first_nan, 4, 1.0f, 2, 0.99f, scratch) == 2); // NaN takes no place among the top k
    float flat[3] = {0.0f, 0.0f, 0.0f};
    CHECK(sample_logits(flat, 3, 1e-30f, 0, 0.99f, scratch) == 2); // a small temperature divides no 0 by 0
    CHECK(sample_logits(huge, 4, 1e-30f, 0, 0.99f, scratch) == 1);
    CHECK(sample_logits(flat, 3, 1.0f, 0, 0x1.fffffep-1f, scratch) == 2); // the largest coin below 1
    CHECK(sample_logits(flat, 3, 1.0f, 1000, 0.99f, scratch) == 2);       // top-k beyond V is all
}

int main(void) {
    const float logits[8] = {0.5f, -1.0f, 2.0f, 0.5f, 1.0f, -3.0f, 0.5f, 1.5f}; // three tie for the fourth place
    random_numbers_are_llmc_s();
    without_temperature_the_largest_wins();
    coins_choose_in_proportion(logits, 8, 1.0f, 0);
    coins_choose_in_proportion(logits, 8, 0.5f, 0);
    coins_choose_in_proportion(logits, 8, 3.0f, 0);
    for (int k = 1; k <= 8; k++) { coins_choose_in_proportion(logits, 8, 0.8f, k); }
    choices_are_llmc_s();
    kth_largest_is_the_sorted_one();
    extreme_logits_are_safe();
    return unit_end();
}
