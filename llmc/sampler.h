/*
Sampling a token from logits: temperature, top-k, and the small random number generator behind it.
*/
#ifndef LLMC_SAMPLER_H
#define LLMC_SAMPLER_H

#include <math.h>
#include <stddef.h>

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

// The k-th largest logit, 1 <= k <= V. A heap with the smallest on top holds the k largest seen: heap[i] <= its children
// heap[2i+1], heap[2i+2]. heap is (k).
static inline float sample_kth_largest(const float* logits /* (V) */, int V, size_t k, float* heap) {
    size_t filled = 0;
    for (int i = 0; i < V; i++) {
        float x = isnan(logits[i]) ? -INFINITY : logits[i];
        size_t hole;
        if (filled < k) { // grow: move the parents that are larger down, from the end
            for (hole = filled++; hole > 0 && heap[(hole - 1) / 2] > x; hole = (hole - 1) / 2) {
                heap[hole] = heap[(hole - 1) / 2];
            }
        } else { // replace the smallest: move the smaller children up, from the top
            if (!(x > heap[0])) { continue; }
            for (hole = 0; 2 * hole + 1 < k;) {
                size_t child = 2 * hole + 1;
                if (child + 1 < k && heap[child + 1] < heap[child]) { child++; }
                if (heap[child] >= x) { break; }
                heap[hole] = heap[child];
                hole = child;
            }
        }
        heap[hole] = x;
    }
    return heap[0];
}

// Draws an index from softmax(logits / temperature) over the top_k largest logits: the first i at which the cumulated
// probability exceeds `coin`, uniform in [0, 1). temperature 0: the largest logit; top_k 0: all logits. Among logits
// that tie for the k-th place the first ones are in. scratch is (V).
static inline int sample_logits(const float* logits /* (V) */, int V, float temperature, int top_k, float coin,
                                float* scratch) {
    int largest = sample_argmax(logits, V);
    if (!(temperature > 0.0f) || !isfinite(logits[largest])) { return largest; }
    float threshold = -INFINITY; // logits above it are in, and the first `ties` of those equal to it
    int ties = V;
    if (top_k > 0 && top_k < V) {
        threshold = sample_kth_largest(logits, V, (size_t)top_k, scratch);
        ties = top_k;
        for (int i = 0; i < V; i++) { ties -= logits[i] > threshold; }
    }
    double norm = 0.0; // sum_i exp((x_i - max x) / temperature)
    for (int i = 0; i < V; i++) {
        int in = logits[i] > threshold || (logits[i] == threshold && ties-- > 0);
        scratch[i] = in ? expf((logits[i] - logits[largest]) / temperature) : 0.0f;
        norm += scratch[i];
    }
    double point = (double)coin * norm, cumulated = 0.0;
    for (int i = 0; i < V; i++) {
        cumulated += scratch[i];
        if (point < cumulated) { return i; }
    }
    return largest; // only where coin is not below 1
}

#endif
