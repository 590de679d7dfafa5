/*
Sampling a token from logits with a coin. The trainer's samples draw their coins from llm.c's sequence of random numbers; the
decoder's (gpt2_decoder.h) depend on seed, sample and position alone, so that a sample does not depend on others in the batch.
The GPU's decoder implements the same definition.
*/
#ifndef LLMC_MODEL_SAMPLER_H
#define LLMC_MODEL_SAMPLER_H

#include <math.h>

#include "host_device.h"
#include "llmc/base/utils.h"

// xorshift64* (Marsaglia 2003; Vigna 2016). The state must not be 0, or it stays 0.
static inline unsigned int random_u32(unsigned long long* state) {
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return (unsigned int)((*state * 0x2545f4914f6cdd1dull) >> 32);
}

// Uniform in [0, 1), 24 bits
static inline float random_f32(unsigned long long* state) {
    return (float)(random_u32(state) >> 8) * (1.0f / 16777216.0f);
}

// The index of the largest logit, the first where several are equal; NaN is never the largest.
static inline int sample_argmax(const float* logits /* (V) */, int V) {
    int best = 0;
    for (int i = 1; i < V; i++) {
        if (logits[i] > logits[best] || isnan(logits[best])) { best = i; }
    }
    return best;
}

// How a sequence's tokens are chosen.
typedef struct {
    float temperature;        // of the softmax; 0: always the likeliest token
    int top_k;                // among the k likeliest tokens; 0: all
    float top_p;              // among the fewest of the likeliest whose probabilities reach p together; 1: all
    float repetition_penalty; // divides logits of tokens that were there, or multiplies negative ones; 1: none
    uint64_t seed;
} SamplerSettings;

static inline SamplerSettings sampler_greedy(void) {
    SamplerSettings s = {0.0f, 0, 1.0f, 1.0f, 0};
    return s;
}

// Whether sample_token takes the largest logit, without a penalty
HOST_DEVICE static inline int sampler_is_greedy(const SamplerSettings* s) {
    return !(s->temperature > 0.0f) && s->repetition_penalty == 1.0f;
}

// A hash of three numbers: for any two of them fixed, a bijection in the third.
HOST_DEVICE static inline uint64_t sampler_hash_(uint64_t a, uint64_t b, uint64_t c) {
    uint64_t x = mix64(a + 0x9e3779b97f4a7c15u); // odd constant: the golden ratio
    x = mix64((x ^ b) + 0x9e3779b97f4a7c15u);
    return mix64((x ^ c) + 0x9e3779b97f4a7c15u);
}

// The identifier of a sample's coins: a hash of its prompt's tokens, its number among the prompt's samples, and how often its
// context was full and it continued from its last half. Among 2^24 samples two have the same with a probability of 2^-17.
static inline uint64_t sampler_sample_id(const int* prompt, size_t count, uint64_t sample, uint64_t slides) {
    uint64_t digest = count;
    for (size_t i = 0; i < count; i++) { digest = sampler_hash_(digest, (uint64_t)prompt[i], i); }
    return sampler_hash_(digest, sample, slides);
}

// The coin for the token at `position` of a sample: uniform in [0, 1), 24 bits. A function of its arguments alone.
HOST_DEVICE static inline float sampler_coin(uint64_t seed, uint64_t sample, uint64_t position) {
    return (float)(sampler_hash_(seed, sample, position) >> 40) * (1.0f / 16777216.0f);
}

// The logit of a token that was there before (Keskar et al. 2019).
HOST_DEVICE static inline float sampler_penalise(float logit, float penalty) {
    return logit > 0.0f ? logit / penalty : logit * penalty;
}

// exp(x) for x <= 0, of the same bits on CPU and GPU: exp(x) = 2^n exp(r) with |r| <= ln 2 / 2, in fused multiply-adds alone.
// The relative error is below 2^-22; 0 if the result would not be a normal number.
HOST_DEVICE static inline float sampler_exp(float x) {
    if (!(x > -87.0f)) { return 0.0f; }
    float n = rintf(x * 1.44269504f); // log2 e
    float r = fmaf(n, -0.693359375f, x), y = 1.0f / 5040.0f, scale;
    r = fmaf(n, 2.12194440e-4f, r); // ln 2 = 0.693359375 - 2.12194440e-4
    y = fmaf(y, r, 1.0f / 720.0f);
    y = fmaf(y, r, 1.0f / 120.0f);
    y = fmaf(y, r, 1.0f / 24.0f);
    y = fmaf(y, r, 1.0f / 6.0f);
    y = fmaf(y, r, 0.5f);
    y = fmaf(y, r, 1.0f);
    y = fmaf(y, r, 1.0f);
    uint32_t bits = (uint32_t)((int)n + 127) << 23;
    memcpy(&scale, &bits, sizeof(scale));
    return y * scale;
}

// An unsigned integer with the order of the floats; NaN counts as -inf. x is not -0.
HOST_DEVICE static inline unsigned sample_key(float x) {
    unsigned bits;
    if (x != x) { return 0x007fffffu; }
    memcpy(&bits, &x, sizeof(bits));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The fewest of the largest x (V) whose weights reach `target` together: those above *threshold, and the first *ties of those
// equal to it. An x weighs one where `counted`, else itself, and is not negative. Three histograms of keys, of 11, 11 and 10
// bits, find the threshold's key from the highest bits to the lowest.
static inline void sample_largest(float* threshold, int* ties, const float* x, int V, int counted, double target) {
    static const int shifts[3] = {21, 10, 0}, widths[3] = {11, 11, 10};
    uint32_t found = 0, known = 0; // bits of the threshold's key; which of them are known
    double above = 0.0;            // the weight of what is larger
    double* sums = (double*)malloc_check(sizeof(*sums) << 11);
    for (int pass = 0; pass < 3; pass++) {
        double before = above;
        uint32_t mask = (1u << widths[pass]) - 1, bin = 0;
        memset(sums, 0, sizeof(*sums) << 11);
        for (int i = 0; i < V; i++) {
            uint32_t key = sample_key(x[i] + 0.0f); // -0 becomes 0
            if (((key ^ found) & known) == 0) { sums[key >> shifts[pass] & mask] += counted ? 1.0 : (double)x[i]; }
        }
        for (uint32_t i = mask + 1; i-- > 0;) { // the first that reaches the target, else the last that has weight
            if (!(sums[i] > 0.0)) { continue; }
            bin = i, above = before, before += sums[i];
            if (before >= target) { break; }
        }
        found |= bin << shifts[pass], known |= mask << shifts[pass];
    }
    free(sums);
    found = found >> 31 ? found & 0x7fffffffu : ~found;
    memcpy(threshold, &found, sizeof(found));
    double each = counted ? 1.0 : (double)*threshold;
    for (*ties = 1; *ties < V && above + *ties * each < target;) { ++*ties; }
}

// Sets to 0 all weights but those above the threshold and the first `ties` of those equal to it; returns the sum of the rest.
static inline double sampler_keep_(float* weights, int V, float threshold, int ties) {
    double sum = 0.0;
    for (int i = 0; i < V; i++) {
        int in = weights[i] > threshold || (weights[i] == threshold && ties-- > 0);
        weights[i] = in ? weights[i] : 0.0f;
        sum += (double)weights[i];
    }
    return sum;
}

// Draws a token; `coin` is uniform in [0, 1). Steps: the penalty, once for each token in seen (num_seen); the temperature;
// top-k: the top_k largest logits; top-p: the fewest of the largest probabilities whose sum reaches top_p; then the first
// token, by index, at which the cumulative probability of the rest exceeds the coin. Of equal logits, and of equal
// probabilities, those with the lowest indices are kept. scratch is (V).
static inline int sample_token(const float* logits /* (V) */, int V, const SamplerSettings* s, const int* seen,
                               int num_seen, float coin, float* scratch) {
    float* x = scratch; // logits, then weights
    float threshold = -INFINITY;
    int ties = V;
    memcpy(x, logits, (size_t)V * sizeof(float));
    for (int i = 0; i < num_seen && s->repetition_penalty != 1.0f; i++) {
        x[seen[i]] = sampler_penalise(logits[seen[i]], s->repetition_penalty);
    }
    int largest = sample_argmax(x, V);
    float top = x[largest];
    if (!(s->temperature > 0.0f) || !isfinite(top)) { return largest; }
    if (s->top_k > 0 && s->top_k < V) { sample_largest(&threshold, &ties, x, V, 1, s->top_k); }
    double norm = 0.0; // sum_i exp((x_i - max x) / temperature)
    for (int i = 0; i < V; i++) {
        int in = x[i] > threshold || (x[i] == threshold && ties-- > 0);
        x[i] = in ? sampler_exp((x[i] - top) / s->temperature) : 0.0f;
        norm += (double)x[i];
    }
    if (s->top_p < 1.0f) {
        sample_largest(&threshold, &ties, x, V, 0, (double)s->top_p * norm);
        norm = sampler_keep_(x, V, threshold, ties);
    }
    double point = (double)coin * norm, cumulated = 0.0;
    for (int i = 0; i < V; i++) {
        cumulated += (double)x[i];
        if (point < cumulated) { return i; }
    }
    return largest; // only where coin is not below 1
}

#endif
