/*
The gradients of one step, summed over its micro-steps, and how to compute them again from the same batches: to compare both
bit for bit, or to find the first number that is not finite. For that, the loader is reset to the beginning of the step; other
steps only pay for a copy of the loader's position.

    train_step_begin(&s);                          // saves the loader's position
    Status status = train_step_compute(&s, &r);    // an error: of the data. train_step_rewind resets the loader.

In a run of several processes, all call the same functions, which return the same in all. They agree on errors between the last
backward pass and the norm (agree() of comm.h); until then, a process that cannot read its data continues with another batch.
*/
#ifndef LLMC_RUN_GRADIENTS_H
#define LLMC_RUN_GRADIENTS_H

#include <math.h>

#include "llmc/comm/comm.h"
#include "llmc/files/dataloader.h"
#include "llmc/model/gpt2_model.h"

typedef struct {
    GPT2* model;
    DataLoader* loader;
    int accumulation;      // micro-steps of this process
    Agreement* agreement;  // of all processes
    DataLoaderState begin; // the loader's position at the beginning of the step
    int* stand_in;         // (B*T) used in place of a batch that cannot be read; NULL before the first
    // the next step's first batch
    int ahead;                   // 1: it was read, and its forward pass issued
    DataLoaderState next;        // the loader's position before it
    const int *inputs, *targets; // (B*T)
} TrainStep;

typedef struct {
    float loss; // nats: the mean of the step's tokens; NaN has no sign, so that logs of equal runs are equal
    float norm; // of the gradients
} StepResult;

static inline int step_is_finite(StepResult r) { return isfinite(r.loss) && isfinite(r.norm); }

// Saves the loader's position: the one before the batch that train_step_ahead has read, if it has.
static inline void train_step_begin(TrainStep* s) {
    dataloader_state_free(&s->begin);
    if (!s->ahead) {
        dataloader_get_state(s->loader, &s->begin);
        return;
    }
    s->begin = s->next;
    memset(&s->next, 0, sizeof(s->next));
}

// Resets the loader to its position at train_step_begin, even if its files cannot be read.
static inline void train_step_rewind(TrainStep* s) {
    dataloader_set_position(s->loader, &s->begin);
    s->ahead = 0;
}

// Returns the next step's first batch, if it was read, to the loader, which is then between two steps.
static inline void train_step_give_back(TrainStep* s) {
    if (s->ahead) { dataloader_set_position(s->loader, &s->next); }
    s->ahead = 0;
}

static inline void train_step_free(TrainStep* s) {
    dataloader_state_free(&s->begin);
    dataloader_state_free(&s->next);
    free(s->stand_in);
    s->stand_in = NULL;
}

static inline void train_step_forward_(TrainStep* s, const int* inputs) {
    check(gpt2_forward(s->model, inputs, (int)s->loader->B, (int)s->loader->T));
}
static inline void train_step_backward_(TrainStep* s, const int* inputs, const int* targets, int micro) {
    check(gpt2_backward(s->model, inputs, targets, s->accumulation, micro));
}

// Forward and backward pass of the loader's next batch; train_step_ahead may have issued the first one's forward pass.
static inline Status train_step_micro_(TrainStep* s, int micro) {
    if (!s->ahead) {
        TRY(dataloader_next(s->loader, &s->inputs, &s->targets));
        train_step_forward_(s, s->inputs);
    }
    s->ahead = 0;
    train_step_backward_(s, s->inputs, s->targets, micro);
    return STATUS_OK;
}

// Issues the forward pass of the next step's first batch before the result of this step is known, so that the GPU stays busy
// while the host reads that:
//
//     train_step_gradients(&s);  gpt2_grad_norm(model, NULL);  gpt2_update(model, ..);  train_step_ahead(&s);
//     StepResult r = train_step_update_result(&s);
//
// If the batch cannot be read, the next step reports it.
static inline void train_step_ahead(TrainStep* s) {
    dataloader_state_free(&s->next);
    dataloader_get_state(s->loader, &s->next);
    s->ahead = 1;
    if (dataloader_next(s->loader, &s->inputs, &s->targets) == STATUS_OK) {
        train_step_forward_(s, s->inputs);
    } else {
        train_step_give_back(s);
        status_clear();
    }
}

// Completes the step without data: the other processes wait for this one's part of the sums.
static inline void train_step_stand_in_(TrainStep* s, int micro) {
    if (comm_size(s->agreement->comm) == 1) { return; }
    if (s->stand_in == NULL) { s->stand_in = (int*)calloc_check(s->loader->B * s->loader->T, sizeof(int)); }
    char message[STATUS_BYTES]; // which the passes would clear
    snprintf(message, sizeof(message), "%s", status_message());
    for (; micro < s->accumulation; micro++) {
        train_step_forward_(s, s->stand_in);
        train_step_backward_(s, s->stand_in, s->stand_in, micro);
    }
    status_clear();
    status_fail("%s", message);
}

// Returns the model's loss and gradient norm, and records them for the comparison with the other processes.
static inline StepResult train_step_take_(TrainStep* s) {
    const GPT2Info* info = gpt2_info(s->model);
    StepResult r;
    r.loss = isnan(info->mean_loss) ? (float)NAN : info->mean_loss;
    r.norm = isnan(info->grad_norm) ? (float)NAN : info->grad_norm;
    s->agreement->result[0] = r.loss, s->agreement->result[1] = r.norm;
    return r;
}

// The result of the gradients, before an update; and the result after gpt2_update.
static inline StepResult train_step_result(TrainStep* s) {
    float norm;
    check(gpt2_grad_norm(s->model, &norm));
    return train_step_take_(s);
}
static inline StepResult train_step_update_result(TrainStep* s) {
    check(gpt2_wait_update(s->model));
    return train_step_take_(s);
}

// Runs all micro-steps. An error is one of the data, here and below; an error of the model ends the program.
static inline Status train_step_gradients(TrainStep* s) {
    Status status = STATUS_OK;
    for (int micro = 0; status == STATUS_OK && micro < s->accumulation; micro++) {
        status = train_step_micro_(s, micro);
        if (status != STATUS_OK) { train_step_stand_in_(s, micro); }
    }
    return agree(s->agreement, status);
}

static inline Status train_step_compute(TrainStep* s, StepResult* r) {
    TRY(train_step_gradients(s));
    *r = train_step_result(s);
    return STATUS_OK;
}

enum { STEP_TEXT = 320 };

// The lowest rank that has a text, or -1; that text is copied to all, behind "rank N: " where there are several.
static inline int train_step_lowest(TrainStep* s, char* text, size_t size) {
    Comm* comm = s->agreement->comm;
    int rank, length = (int)strlen(text);
    char own[STEP_TEXT];
    snprintf(own, sizeof(own), "%s", text);
    if (comm_size(comm) > 1) { snprintf(text, size, "rank %d: %.280s", comm_rank(comm), own); }
    check(comm_lowest(comm, &rank, length > 0, text, size));
    return rank;
}

// Recomputes the step from the same batches. `text` becomes "" if loss, norm and every gradient have the same bits; else what
// differs in the lowest rank in which they do not.
static inline Status train_step_verify(TrainStep* s, StepResult first, char* text, size_t size) {
    uint64_t before, again;
    StepResult second;
    check(gpt2_gradient_digest(s->model, &before));
    train_step_rewind(s);
    TRY(train_step_compute(s, &second));
    check(gpt2_gradient_digest(s->model, &again));
    text[0] = '\0';
    if (memcmp(&first, &second, sizeof(first)) != 0 || before != again) {
        snprintf(text, size, "loss %.9g and %.9g, gradient norm %.9g and %.9g, gradients' digest %016llx and %016llx",
                 first.loss, second.loss, first.norm, second.norm, (unsigned long long)before,
                 (unsigned long long)again);
    }
    if (train_step_lowest(s, text, size) < 0) { text[0] = '\0'; }
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// The first number that is not finite

typedef struct {
    int again;            // 0: everything is finite this time, so the first computation was wrong or not deterministic
    int weights;          // 1: it is one of the weights
    char text[STEP_TEXT]; // its process, where there are several, its tensor and micro-step
} NonFinite;

// Recomputes this process's micro-steps until the first number that is not finite; leaves the loader at the end of the step.
static inline Status train_step_find_own_(TrainStep* s, NonFinite* f) {
    Comm* comm = s->agreement->comm;
    const int *inputs, *targets;
    for (int micro = 0; micro < s->accumulation; micro++) {
        if (f->text[0] != '\0') {
            TRY(dataloader_next(s->loader, &inputs, &targets));
            continue;
        }
        TRY(train_step_micro_(s, micro));
        check(gpt2_find_non_finite(s->model, f->text, sizeof(f->text)));
        size_t n = strlen(f->text);
        if (n == 0) { continue; }
        snprintf(f->text + n, sizeof(f->text) - n, ", micro-step %d of %d",
                 comm_rank(comm) * s->accumulation + micro + 1, comm_size(comm) * s->accumulation);
    }
    return STATUS_OK;
}

// For all processes together: the sums over them may not be finite although each one's numbers are.
static inline Status train_step_find_in_sums_(TrainStep* s, NonFinite* f) {
    StepResult r;
    train_step_rewind(s);
    TRY(train_step_compute(s, &r));
    f->again = !step_is_finite(r);
    check(gpt2_find_non_finite(s->model, f->text, sizeof(f->text)));
    if (train_step_lowest(s, f->text, sizeof(f->text)) >= 0) { return STATUS_OK; }
    snprintf(f->text, sizeof(f->text), "%s",
             isfinite(r.loss) ? "backward: the norm of gradients that are all finite"
                              : "forward: the mean of losses that are all finite");
    return STATUS_OK;
}

// Recomputes the step until the first number that is not finite, and returns its place, in the lowest rank that has one.
static inline Status train_step_find_non_finite(TrainStep* s, NonFinite* f) {
    Comm* comm = s->agreement->comm;
    memset(f, 0, sizeof(*f));
    train_step_rewind(s);
    gpt2_set_local(s->model, comm_size(comm) > 1);
    Status status = train_step_find_own_(s, f);
    gpt2_set_local(s->model, 0);
    TRY(agree(s->agreement, status));
    if (train_step_lowest(s, f->text, sizeof(f->text)) < 0) { return train_step_find_in_sums_(s, f); }
    f->weights = strstr(f->text, "weights: ") != NULL;
    f->again = 1;
    return STATUS_OK;
}

#endif
