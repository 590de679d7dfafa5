/*
What a model refuses (gpt2_model.h): each wrong call returns an error that names the fault, changes nothing, and leaves
the process, and on the GPU its CUDA context, as whole as before: the same logits come out afterwards. Part of
reference_test.h.
*/
#ifndef REFERENCE_ERRORS_H
#define REFERENCE_ERRORS_H

#include "dev/test/fixtures/debug_state.h"
#include "llmc/model/gpt2_model.h"
#include "dev/test/fixtures/worst.h"

// One row: what was checked, and whether it holds.
static inline void reference_row(const char* name, const char* numbers, int ok);

// The call failed, and its message holds `words`.
static inline void reference_refused(const char* name, Status status, const char* words) {
    int ok = status != STATUS_OK && strstr(status_message(), words) != NULL;
    reference_row(name, "refused", ok);
    if (!ok) { printf("    expected an error with '%s', but: %s\n", words, status_message()); }
}

static inline void reference_allowed(const char* name, Status status) {
    reference_row(name, "", status == STATUS_OK);
    if (status != STATUS_OK) { printf("    %s\n", status_message()); }
}

// The logits of a row of the state's first T tokens, in a model allocated for 1 x T: its bits, as a sum.
static inline uint64_t reference_row_bits(GPT2* model, const DebugState* state, float* row, int V) {
    uint64_t sum = 0;
    check(gpt2_forward(model, state->x, 1, state->T));
    check(gpt2_get_logits(model, row, state->T - 1));
    for (int v = 0; v < V; v++) {
        uint32_t bits;
        memcpy(&bits, &row[v], sizeof(bits));
        sum = sum * 31 + bits;
    }
    return sum;
}

// Batches and tokens that do not suit a model allocated for 1 x T
static inline void reference_check_batches(GPT2* model, const DebugState* state, int V) {
    int T = state->T, *x = (int*)malloc_check((size_t)T * sizeof(int));
    float loss, *row = (float*)malloc_check((size_t)V * sizeof(float));
    memcpy(x, state->x, (size_t)T * sizeof(int));
    reference_refused("T x 1 for 1 x T", gpt2_forward(model, x, T, 1), "does not fit a model allocated for 1 x");
    reference_refused("2 x T", gpt2_forward(model, x, 2, T), "does not fit");
    reference_refused("1 x (T+1)", gpt2_forward(model, x, 1, T + 1), "does not fit");
    reference_refused("0 x T", gpt2_forward(model, x, 0, T), "does not fit");
    reference_refused("-1 x -T", gpt2_forward(model, x, -1, -T), "does not fit");
    x[T - 1] = V;
    reference_refused("input V", gpt2_forward(model, x, 1, T), "vocabulary");
    reference_refused("target V", gpt2_validate(model, &loss, state->x, x, 1, T), "vocabulary");
    reference_refused("target V, training", gpt2_backward(model, state->x, x, 1, 0), "vocabulary");
    x[T - 1] = -1;
    reference_refused("input -1", gpt2_forward(model, x, 1, T), "token -1");
    x[0] = V; // with the inputs of a batch that would do
    reference_refused("target V, 1 x (T-1)", gpt2_validate(model, &loss, state->x, x, 1, T - 1), "vocabulary");
    reference_allowed("the batch before them is there", gpt2_get_logits(model, row, T - 1));
    free(x);
    free(row);
}

// More memory than any machine has: a batch of 2^30 tokens, the most that GEMMs take, with 2^20 logits each.
static inline void reference_check_no_memory(GPT2Settings settings) {
    const int T = 1024, V = 1 << 20;
    GPT2Config config = {T, V, gpt2_pad_vocab(V), 1, 1, 64, 0};
    GPT2* model;
    check(gpt2_create(&model, config, settings));
    reference_refused("too large a batch", gpt2_allocate(model, (1 << 30) / T, T, 1), "activations");
    gpt2_free(model);
}

// config and params are those of a model in which the state's tokens make sense.
static inline void reference_check_errors(GPT2Settings settings, GPT2Config config, const float* params,
                                          const DebugState* state) {
    GPT2* model;
    GPT2Config odd = config;
    int V = config.vocab_size, T = state->T;
    float norm, *row = (float*)malloc_check((size_t)V * sizeof(float));
    odd.num_heads = 7;
    odd.channels = 7 * 33;
    reference_refused("heads of 33", gpt2_create(&model, odd, settings), "head size 33");
    reference_row("no model after an error", "", model == NULL);
    gpt2_free(model);

    check(gpt2_create(&model, config, settings));
    check(gpt2_set_parameters(model, params));
    reference_refused("forward, no memory", gpt2_forward(model, state->x, 1, T), "does not fit");
    reference_refused("a row too long", gpt2_allocate(model, 1, config.max_seq_len + 1, 1), "context");
    reference_refused("no row", gpt2_allocate(model, 0, T, 1), "context");
    check(gpt2_allocate(model, 1, T, 0));
    reference_refused("allocated twice", gpt2_allocate(model, 1, T, 0), "already");
    reference_refused("logits, no batch", gpt2_get_logits(model, row, 0), "row 0");
    uint64_t bits = reference_row_bits(model, state, row, V);
    reference_refused("untrained backward", gpt2_backward(model, state->x, state->y, 1, 0), "training");
    reference_refused("untrained norm", gpt2_grad_norm(model, &norm), "training");
    reference_refused("untrained update", gpt2_update(model, 1e-3f, 0.9f, 0.9f, 1e-8f, 0, 0, 1), "training");
    reference_refused("logits of row T", gpt2_get_logits(model, row, T), "row");
    gpt2_free(model);

    check(gpt2_create(&model, config, settings));
    check(gpt2_allocate(model, 1, T, 1));
    check(gpt2_set_parameters(model, params));
    reference_refused("backward first", gpt2_backward(model, state->x, state->y, 1, 0), "before gpt2_forward");
    size_t bytes = gpt2_block_bytes(model, GPT2_MOMENTS1);
    reference_refused("past a block", gpt2_copy_out(model, row, GPT2_MOMENTS1, bytes - 1, 2), "block");
    volatile size_t too_many = SIZE_MAX - 3; // seen by the compiler, it would be an error of its own
    reference_refused("past SIZE_MAX", gpt2_copy_in(model, GPT2_MOMENTS1, row, 4, too_many), "block");
    reference_row("same logits to train", "", reference_row_bits(model, state, row, V) == bits);
    reference_refused("micro-step 2 of 2", gpt2_backward(model, state->x, state->y, 2, 2), "micro-step");
    reference_check_batches(model, state, V);
    reference_check_no_memory(settings);
    reference_row("same logits after errors", "", reference_row_bits(model, state, row, V) == bits);
    reference_allowed("a step after errors", gpt2_backward(model, state->x, state->y, 1, 0));
    reference_refused("logits after backward", gpt2_get_logits(model, row, T - 1), "before gpt2_backward");
    reference_refused("backward twice", gpt2_backward(model, state->x, state->y, 1, 0), "no gpt2_forward before it");
    reference_allowed("its end", gpt2_synchronize(model));
    float loss;
    check(gpt2_validate(model, &loss, state->x, state->y, 1, T)); // a forward pass, too
    reference_allowed("logits after validation", gpt2_get_logits(model, row, T - 1));
    reference_allowed("backward after validation", gpt2_backward(model, state->x, state->y, 1, 0));
    reference_row("same logits after a step", "", reference_row_bits(model, state, row, V) == bits);
    gpt2_free(model);
    free(row);
}

#endif
