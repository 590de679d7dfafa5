// llmc/model/sampler.h: which token a coin chooses.
#include "llmc/model/sampler.h"

#include "dev/test/fixtures/unit.h"

static float scratch[1000];

// The token of a coin without top-p and penalty
static int sample_logits(const float* logits, int V, float temperature, int top_k, float coin) {
    SamplerSettings s = {temperature, top_k, 1.0f, 1.0f, 0};
    return sample_token(logits, V, &s, NULL, 0, coin, scratch);
}

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
    CHECK(sample_logits(logits, 6, 0.0f, 0, 0.99f) == 1); // the first of the equal
    CHECK(sample_logits(logits, 6, 1.0f, 1, 0.99f) == 1); // top-1 is the same
    float begins_with_nan[3] = {NAN, -7.0f, -8.0f};
    CHECK(sample_logits(begins_with_nan, 3, 0.0f, 0, 0.5f) == 1);
    float single[1] = {-2.0f};
    CHECK(sample_logits(single, 1, 1.0f, 0, 0.5f) == 0);
}

// Coins (i + 1/2) / N fall into an interval of length p either floor(pN) or ceil(pN) times. The probabilities carry the
// error of sampler_exp and its argument, below 1e-6: less than one coin of 10000.
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
        int token = sample_logits(logits, V, temperature, top_k, ((float)i + 0.5f) / N);
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
        int token = sample_logits(logits, V, 1.0f, 0, coin);
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
    float logits[V], sorted[V];
    unsigned long long state = 5;
    for (int round = 0; round < 4; round++) { // the later the round, the more of them are equal; half are negative
        for (int i = 0; i < V; i++) {
            logits[i] = (float)(random_u32(&state) % (1000000u >> (6 * round))) - (float)(500000u >> (6 * round));
        }
        memcpy(sorted, logits, sizeof(sorted));
        qsort(sorted, V, sizeof(float), compare_floats);
        int same = 1;
        for (int k = 1; k <= V; k++) {
            float threshold;
            int ties, above = 0;
            sample_largest(&threshold, &ties, logits, V, 1, k);
            for (int i = 0; i < V; i++) { above += logits[i] > threshold; }
            same = same && threshold == sorted[k - 1] && above + ties == k;
        }
        CHECK(same);
    }
    float threshold, zeros[3] = {0.0f, -0.0f, -1.0f}; // both zeros tie
    int ties;
    sample_largest(&threshold, &ties, zeros, 3, 1, 2.0);
    CHECK(threshold == 0.0f && ties == 2);
}

static void extreme_logits_are_safe(void) {
    float huge[4] = {-1e4f, 1e4f, 9999.0f, -INFINITY};
    CHECK(sample_logits(huge, 4, 1.0f, 0, 0.1f) == 1);
    CHECK(sample_logits(huge, 4, 1.0f, 0, 0.9f) == 2); // exp(0) : exp(-1) is 73% : 27%
    float impossible[3] = {-INFINITY, 0.0f, NAN};
    for (int i = 0; i < 10; i++) {
        CHECK(sample_logits(impossible, 3, 1.0f, 0, (float)i / 10.0f) == 1);
        CHECK(sample_logits(impossible, 3, 1.0f, 2, (float)i / 10.0f) == 1);
    }
    float certain[3] = {0.0f, INFINITY, 3.0f};
    CHECK(sample_logits(certain, 3, 1.0f, 0, 0.1f) == 1);
    float nothing[3] = {NAN, NAN, NAN};
    int token = sample_logits(nothing, 3, 1.0f, 2, 0.5f);
    CHECK(token >= 0 && token < 3);
    float first_nan[4] = {NAN, 0.0f, -0.5f, -1.0f};
    CHECK(sample_logits(first_nan, 4, 1.0f, 2, 0.99f) == 2); // NaN takes no place among the top k
    float flat[3] = {0.0f, 0.0f, 0.0f};
    CHECK(sample_logits(flat, 3, 1e-30f, 0, 0.99f) == 2); // a small temperature divides no 0 by 0
    CHECK(sample_logits(huge, 4, 1e-30f, 0, 0.99f) == 1);
    CHECK(sample_logits(flat, 3, 1.0f, 0, 0x1.fffffep-1f) == 2); // the largest coin below 1
    CHECK(sample_logits(flat, 3, 1.0f, 1000, 0.99f) == 2);       // top-k beyond V is all
}

// ----------------------------------------------------------------------------
// Coins, top-p and the penalty

static void coins_are_functions_of_their_arguments(void) {
    CHECK(mix64(0x9e3779b97f4a7c15u) == 0xe220a8397b1dcdafu); // SplitMix64's first number from seed 0
    CHECK(sampler_coin(0, 0, 0) == 0x1.1c13a8p-3f && sampler_coin(1337, 2, 3) == 0x1.7042dp-2f); // on the GPU too
    enum { N = 1 << 16, BINS = 64 };
    for (int argument = 0; argument < 3; argument++) { // each by itself makes uniform numbers
        int counts[BINS] = {0}, inside = 1, repeated = 0;
        double chi_squared = 0.0, correlation = 0.0;
        float before = 0.5f;
        for (uint64_t i = 0; i < N; i++) {
            float coin = sampler_coin(argument == 0 ? i : 42, argument == 1 ? i : 7, argument == 2 ? i : 1000);
            inside = inside && coin >= 0.0f && coin < 1.0f;
            counts[(int)(coin * BINS)]++;
            repeated += coin == before;
            correlation += ((double)coin - 0.5) * ((double)before - 0.5) * 12.0 / N;
            before = coin;
        }
        for (int b = 0; b < BINS; b++) { chi_squared += pow(counts[b] - N / BINS, 2) / (N / BINS); }
        CHECK(inside && repeated <= 1);
        CHECK(chi_squared < 63 + 6 * sqrt(2 * 63)); // 6 standard deviations of 63 degrees of freedom
        CHECK(fabs(correlation) < 6 / sqrt((double)N));
    }
    int distinct = 1; // no argument stands in for another
    for (uint64_t a = 0; a < 8; a++) {
        for (uint64_t b = 0; b < 8; b++) {
            distinct = distinct && (a == b || sampler_coin(a, b, 0) != sampler_coin(b, a, 0));
            distinct = distinct && (a == b || sampler_coin(0, a, b) != sampler_coin(0, b, a));
        }
    }
    CHECK(distinct);
}

// Samples of prompts of other tokens, another order or another length, and samples that have slid: each has coins of its own.
static void samples_have_coins_of_their_own(void) {
    enum { N = 12, PROMPTS = 5 };
    static const int tokens[PROMPTS][3] = {{0, 0, 0}, {1, 2, 3}, {2, 1, 3}, {1, 2, 3}, {0, 0, 0}};
    static const size_t counts[PROMPTS] = {1, 3, 3, 2, 2};
    uint64_t ids[PROMPTS * N * N];
    int distinct = 1;
    for (uint64_t i = 0; i < PROMPTS * N * N; i++) {
        uint64_t prompt = i / (N * N);
        ids[i] = sampler_sample_id(tokens[prompt], counts[prompt], i / N % N, i % N);
        for (uint64_t k = 0; k < i; k++) { distinct = distinct && ids[i] != ids[k]; }
    }
    CHECK(distinct);
}

enum { REFERENCE_V = 300 };

static const double* sorted_by;
static int more_probable(const void* a, const void* b) {
    int i = *(const int*)a, j = *(const int*)b;
    if (sorted_by[i] != sorted_by[j]) { return sorted_by[i] > sorted_by[j] ? -1 : 1; }
    return i - j;
}

// The definition, word for word, in fp64 and by sorting. p (V) are the tokens' probabilities. Returns how close top-p was to
// one token more or less: there, rounding may decide.
static double reference_probabilities(double* p, const float* logits, int V, const SamplerSettings* s, const int* seen,
                                      int num_seen) {
    double x[REFERENCE_V], largest = -INFINITY, sum = 0.0, cumulated = 0.0, closest = 1.0;
    int order[REFERENCE_V] = {0}, was_seen[REFERENCE_V] = {0}, kept = V;
    for (int i = 0; i < num_seen; i++) { was_seen[seen[i]] = 1; }
    for (int i = 0; i < V; i++) {
        x[i] = (double)logits[i];
        if (was_seen[i]) {
            x[i] = logits[i] > 0 ? x[i] / (double)s->repetition_penalty : x[i] * (double)s->repetition_penalty;
        }
        x[i] = (double)(float)x[i]; // so that what ties in fp32 ties here
        largest = x[i] > largest ? x[i] : largest;
        order[i] = i;
    }
    sorted_by = x;
    qsort(order, (size_t)V, sizeof(int), more_probable);
    if (s->top_k > 0 && s->top_k < V) { kept = s->top_k; }
    for (int i = 0; i < V; i++) {
        p[order[i]] = i < kept ? exp((x[order[i]] - largest) / (double)s->temperature) : 0.0;
        sum += p[order[i]];
    }
    int in_nucleus = 0;
    for (int i = 0; i < kept && s->top_p < 1.0f; i++) {
        if (in_nucleus == 0 || cumulated < (double)s->top_p * sum) { in_nucleus = i + 1; }
        cumulated += p[order[i]];
        closest = fmin(closest, fabs(cumulated / sum - (double)s->top_p));
    }
    kept = s->top_p < 1.0f ? in_nucleus : kept;
    sum = 0.0;
    for (int i = 0; i < V; i++) { sum += i < kept ? p[order[i]] : 0.0; }
    for (int i = 0; i < V; i++) { p[order[i]] = i < kept ? p[order[i]] / sum : 0.0; }
    return closest;
}

static float one_of(unsigned long long* state, const float* values, int n) {
    return values[random_u32(state) % (unsigned)n];
}

// Weights carry an error of 1e-6 and the sums of 300 of them no more: coins that are further from a boundary choose the same.
static void tokens_are_the_definition_s(void) {
    static const float temperatures[] = {0.3f, 0.8f, 1.0f, 2.5f}, top_ps[] = {1.0f, 0.95f, 0.5f, 0.1f, 0.0f},
                       penalties[] = {1.0f, 1.3f, 0.7f, 3.0f};
    unsigned long long state = 11;
    int differ = 0, undecided = 0, tied = 0;
    for (int round = 0; round < 3000; round++) {
        float logits[REFERENCE_V];
        double p[REFERENCE_V], cumulated = 0.0, distance = 1.0;
        int V = 1 + (int)(random_u32(&state) % REFERENCE_V), seen[20], num_seen = (int)(random_u32(&state) % 20);
        SamplerSettings s = {one_of(&state, temperatures, 4), (int)(random_u32(&state) % 3 * (random_u32(&state) % 40)),
                             one_of(&state, top_ps, 5), one_of(&state, penalties, 4), 0};
        int ties = round % 3 == 0; // logits of few values
        for (int i = 0; i < V; i++) {
            float x = 10.0f * random_f32(&state) - 5.0f;
            logits[i] = ties ? rintf(x) : x;
        }
        for (int i = 0; i < num_seen; i++) { seen[i] = (int)(random_u32(&state) % (unsigned)V); }
        float coin = random_f32(&state);
        double closest = reference_probabilities(p, logits, V, &s, seen, num_seen);
        int token = sample_token(logits, V, &s, seen, num_seen, coin, scratch), expected = 0;
        for (int i = 0; i < V; i++) {
            if (cumulated <= (double)coin) { expected = p[i] > 0.0 ? i : expected; }
            cumulated += p[i];
            distance = fmin(distance, fabs(cumulated - (double)coin));
        }
        tied += ties;
        if (closest < 1e-5 || distance < 1e-5) {
            undecided++;
        } else {
            differ += token != expected;
        }
    }
    CHECK(differ == 0);
    CHECK(undecided < 100 && tied == 1000);
}

static void tokens_come_as_often_as_they_are_probable(void) {
    enum { N = 40000, V = 12 };
    float logits[V] = {0.5f, -1.0f, 2.0f, 0.5f, 1.0f, -3.0f, 0.5f, 1.5f, 2.0f, -0.5f, 0.0f, 1.0f};
    static const int seen[] = {2, 7, 2, 1, 2};
    SamplerSettings s = {0.7f, 9, 0.9f, 1.5f, 99};
    double p[REFERENCE_V];
    int counts[V] = {0}, good = 1;
    reference_probabilities(p, logits, V, &s, seen, 5);
    for (uint64_t i = 0; i < N; i++) {
        counts[sample_token(logits, V, &s, seen, 5, sampler_coin(s.seed, i / 100, i % 100), scratch)]++;
    }
    for (int i = 0; i < V; i++) { good = good && fabs(counts[i] - N * p[i]) <= 5 * sqrt(N * p[i] * (1 - p[i])); }
    CHECK(good); // 5 standard deviations
}

static void the_penalty_applies_once(void) {
    SamplerSettings s = sampler_greedy();
    float two[3] = {2.0f, 3.0f, -1.0f};
    CHECK(sample_token(two, 3, &s, NULL, 0, 0.9f, scratch) == 1);
    s.repetition_penalty = 2.0f; // greedy too: 3 becomes 1.5, however often it was there
    CHECK(sample_token(two, 3, &s, (const int[]){1, 1, 1}, 3, 0.9f, scratch) == 0);
    CHECK(sample_token(two, 3, &s, (const int[]){0, 1}, 2, 0.9f, scratch) == 1);
}

static void extreme_logits_of_tokens_are_safe(void) {
    const float extreme[5] = {-INFINITY, NAN, 1e4f, 9999.0f, -1e38f};
    int good = 1;
    for (int i = 0; i < 100; i++) {
        SamplerSettings s = {0.01f + (float)(i % 7), i % 4, (float)(i % 5) / 4.0f, i % 2 ? 1.2f : 0.5f, 0};
        int token = sample_token(extreme, 5, &s, (const int[]){0, 1, 4}, 3, (float)i / 100.0f, scratch);
        good = good && (token == 2 || token == 3);
    }
    CHECK(good);
    SamplerSettings s = {1.0f, 0, 0.0f, 1.0f, 0};
    float flat[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    CHECK(sample_token(flat, 4, &s, NULL, 0, 0x1.fffffep-1f, scratch) ==
          0); // top_p 0 leaves the first of the likeliest
    s.top_p = 0.5f;
    CHECK(sample_token(flat, 4, &s, NULL, 0, 0x1.fffffep-1f, scratch) == 1); // two of four
    s.top_p = 0.51f;
    CHECK(sample_token(flat, 4, &s, NULL, 0, 0x1.fffffep-1f, scratch) == 2);
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
    coins_are_functions_of_their_arguments();
    samples_have_coins_of_their_own();
    tokens_are_the_definition_s();
    tokens_come_as_often_as_they_are_probable();
    the_penalty_applies_once();
    extreme_logits_of_tokens_are_safe();
    return unit_end();
}
