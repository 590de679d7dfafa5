/*
Softmax and cross entropy on the CPU, fused: computes the losses from the logits and, in the same pass, overwrites the
logits with their gradients.

    loss = log sum_v exp(x_v) - x_target,    dx_v = dloss (exp(x_v) / sum - [v = target])

logits (BT,Vp), of which V columns are vocabulary and the rest padding; targets, losses (BT).
*/
#ifndef LLMC_CPU_CLASSIFIER_H
#define LLMC_CPU_CLASSIFIER_H

#include <math.h>

#include "vector.h"

// The vector of x that begins at v; -inf past V, which exp makes 0.
ALWAYS_INLINE vec classifier_load(const float* x, size_t v, size_t V) {
    return V - v >= LANES ? vec_load(x + v) : vec_load_first(x + v, V - v, -INFINITY);
}

// With `backward`, logits become their gradients for a gradient dloss of each loss; the padding's are 0. Without,
// logits stay as they are.
static inline void classifier(float* losses, float* logits, const int* targets, float dloss, int backward, size_t BT,
                              size_t V, size_t Vp) {
#pragma omp parallel for schedule(dynamic)
    for (size_t bt = 0; bt < BT; bt++) {
        float* x = logits + bt * Vp;
        size_t target = (size_t)targets[bt];
        vec largest = vec_set(-INFINITY), sums = vec_set(0.0f);
        for (size_t v = 0; v < V; v += LANES) { largest = vec_max(classifier_load(x, v, V), largest); }
        float max = vec_largest(largest), x_target = x[target];
        for (size_t v = 0; v < V; v += LANES) { // Vp is a multiple of LANES: the last vector may run into the padding
            vec e = vec_exp(classifier_load(x, v, V) - max);
            sums += e;
            if (backward) { vec_store(x + v, e); }
        }
        float sum = vec_sum(sums);
        losses[bt] = logf(sum) + max - x_target;
        if (backward) {
            float scale = dloss / sum;
            for (size_t v = 0; v < V; v++) { x[v] *= scale; }
            for (size_t v = V; v < Vp; v++) { x[v] = 0.0f; }
            x[target] -= dloss;
        }
    }
}

#endif
