/*
The gradients of one step, summed over its micro-steps, and how to compute them again from the same batches: to compare both
bit for bit, or to find the first number that is not finite. For that the loader is put back to where the step began; a step
that needs neither pays for a copy of the loader's position.

    train_step_begin(&s);                          // remembers where the loader stands
    Status status = train_step_compute(&s, &r);    // an error: of the data. train_step_rewind puts the loader back.
*/
#ifndef LLMC_TRAIN_STEP_H
#define LLMC_TRAIN_STEP_H

#include <math.h>

#include "dataloader_state.h"
#include "gpt2_model.h"

typedef struct {
    GPT2* model;
    DataLoader* loader;
    int accumulation;      // micro-steps
    DataLoaderState begin; // where the loader stood
} TrainStep;

typedef struct {
    float loss; // nats: the mean of the step's tokens; NaN has no sign, so that logs of equal runs are equal
    float norm; // of the gradients
} StepResult;

static inline int step_is_finite(StepResult r) { return isfinite(r.loss) && isfinite(r.norm); }

// 1 where the loader's orders are those of the copy: they change with a new shard or epoch, and then the generator with them.
static inline int train_step_same_orders_(const TrainStep* s) {
    const DataLoader* d = s->loader;
    return d->should_shuffle && s->begin.shuffled && s->begin.shard == d->current_shard_idx &&
           s->begin.num_samples == d->shard_num_samples &&
           memcmp(&s->begin.rng, &d->shuffle_rng, sizeof(d->shuffle_rng)) == 0;
}

// Remembers where the loader stands; orders of many samples are not copied at every step.
static inline void train_step_begin(TrainStep* s) {
    if (train_step_same_orders_(s)) {
        s->begin.sample = s->loader->current_sample_idx;
        return;
    }
    dataloader_state_free(&s->begin);
    check(dataloader_get_state(s->loader, &s->begin));
}

// Puts the loader back to where train_step_begin found it, whether its files can be read or not.
static inline void train_step_rewind(TrainStep* s) { dataloader_set_position(s->loader, &s->begin); }

// Takes the loader's next batch through forward and backward pass.
static inline Status train_step_micro_(TrainStep* s, int micro) {
    const int *inputs, *targets;
    TRY(dataloader_next(s->loader, &inputs, &targets));
    check(gpt2_forward(s->model, inputs, (int)s->loader->B, (int)s->loader->T));
    check(gpt2_backward(s->model, inputs, targets, s->accumulation, micro));
    return STATUS_OK;
}

// The loss and the gradient norm that the micro-steps have left.
static inline StepResult train_step_result_(TrainStep* s) {
    StepResult r;
    r.loss = gpt2_info(s->model)->mean_loss;
    check(gpt2_grad_norm(s->model, &r.norm));
    r.loss = isnan(r.loss) ? (float)NAN : r.loss;
    r.norm = isnan(r.norm) ? (float)NAN : r.norm;
    return r;
}

// An error is one of the data, here and below; one of the model ends the program.
static inline Status train_step_compute(TrainStep* s, StepResult* r) {
    for (int micro = 0; micro < s->accumulation; micro++) { TRY(train_step_micro_(s, micro)); }
    *r = train_step_result_(s);
    return STATUS_OK;
}

// Computes the step again, from the same batches. *same is 1 where loss, norm and every gradient have the bits that they had;
// else 0, and text says what differs.
static inline Status train_step_verify(TrainStep* s, StepResult first, int* same, char* text, size_t size) {
    uint64_t digests[2];
    StepResult second;
    check(gpt2_gradient_digest(s->model, &digests[0]));
    train_step_rewind(s);
    TRY(train_step_compute(s, &second));
    check(gpt2_gradient_digest(s->model, &digests[1]));
    snprintf(text, size, "loss %.9g and %.9g, gradient norm %.9g and %.9g, gradients' digest %016llx and %016llx",
             first.loss, second.loss, first.norm, second.norm, (unsigned long long)digests[0],
             (unsigned long long)digests[1]);
    *same = memcmp(&first, &second, sizeof(first)) == 0 && digests[0] == digests[1];
    return STATUS_OK;
}

// Computes the step again until the first number that is not finite, and names it and its micro-step in text. *again is 0
// where everything is finite this time, which a machine that computes rightly does not do. The loader ends behind the step.
static inline Status train_step_find_non_finite(TrainStep* s, int* again, char* text, size_t size) {
    const int *inputs, *targets;
    *again = 1;
    train_step_rewind(s);
    for (int micro = 0; micro < s->accumulation; micro++) {
        TRY(train_step_micro_(s, micro));
        check(gpt2_find_non_finite(s->model, text, size));
        if (text[0] == '\0') { continue; }
        size_t length = strlen(text);
        snprintf(text + length, size - length, ", micro-step %d of %d", micro + 1, s->accumulation);
        for (int rest = micro + 1; rest < s->accumulation; rest++) {
            TRY(dataloader_next(s->loader, &inputs, &targets));
        }
        return STATUS_OK;
    }
    StepResult r = train_step_result_(s);
    snprintf(text, size, "%s",
             isfinite(r.loss) ? "backward: the norm of gradients that are all finite"
                              : "forward: the mean of losses that are all finite");
    *again = !step_is_finite(r);
    return STATUS_OK;
}

#endif
