/*
Learning rate schedules. Every one but `constant` warms up linearly to the learning rate; then
  cosine    half a cosine down to the final fraction of it
  linear    a straight line down to it
  wsd       warm-up, stable, decay: constant until 80% of the steps, then 1 - sqrt (Hägele et al. 2024, arXiv 2405.18392)
  constant  always the learning rate, from the first step on
*/
#ifndef LLMC_RUN_SCHEDULERS_H
#define LLMC_RUN_SCHEDULERS_H

#include <math.h>

#include "llmc/base/utils.h"

typedef struct {
    const char* type;
    float learning_rate; // the largest
    int warmup_steps;
    int num_steps;        // of the whole run
    float final_fraction; // the last learning rate, as a fraction of the largest
} LearningRateScheduler;

// The fraction of the steps from `start` to `end` that are done: 0 up to start, 1 from end on
static inline float schedule_progress(int step, int start, int end) {
    if (step >= end) { return 1.0f; }
    return step <= start ? 0.0f : (float)(step - start) / (float)(end - start);
}

// The learning rate of a step, counted from 0; the first step of a warm-up over n steps already has 1/n of it.
static inline float get_learning_rate(const LearningRateScheduler* s, int step) {
    float largest = s->learning_rate, smallest = s->learning_rate * s->final_fraction;
    if (strcmp(s->type, "constant") == 0) { return largest; }
    if (step < s->warmup_steps) { return largest * (float)(step + 1) / (float)s->warmup_steps; }
    if (strcmp(s->type, "wsd") == 0) {
        int decay_start = (int)(0.8f * (float)s->num_steps);
        if (step < decay_start) { return largest; }
        float done = schedule_progress(step, decay_start, s->num_steps);
        return smallest + (1.0f - sqrtf(done)) * (largest - smallest);
    }
    float done = schedule_progress(step, s->warmup_steps, s->num_steps);
    if (strcmp(s->type, "linear") == 0) { return largest - done * (largest - smallest); }
    return smallest + 0.5f * (1.0f + cosf((float)(3.14159265358979323846 * (double)done))) * (largest - smallest);
}

#endif
