/*
The trainer against PyTorch: what test_gpt2.c and test_gpt2.cu have in common. Included after a trainer, which it runs
on the batch of a debug state:

    logits, loss, every gradient by name, and the losses of ten AdamW steps are PyTorch's, within tolerances
    so are the loss of a validation, and loss and gradients of the batch in two micro-steps
    two runs give the same bits, and so does every recompute setting
    wrong calls are refused, and leave everything as it was (reference_errors.h)

A tensor's error is ||x - reference|| / ||reference||, a loss's is in nats. Prints a row for each check and ends in
'N passed, N failed'.
*/
#ifndef REFERENCE_TEST_H
#define REFERENCE_TEST_H

#include "llmc/debug_state.h"
#include "llmc/gpt2_model.h"
#include "llmc/model_file.h"
#include "reference_errors.h"

#define REFERENCE_MODEL "dev/reference/tiny.bin"
#define REFERENCE_STATE "dev/reference/tiny_debug_state.bin"

// How a trainer rounds; its tolerances follow.
typedef struct {
    double unit_roundoff; // of the training precision: 2^-24 for fp32, 2^-8 for bf16
    int rounds_sums;      // 1: sums are rounded at each addition, as in fp32; 0: they are kept wider than tensors
} ReferencePrecision;

typedef struct {
    double logits, gradients; // relative errors
    double loss;              // nats
} ReferenceTolerances;

// Rounding to nearest with unit roundoff u errs by u/sqrt(6) in the mean square (uniformly within half a unit in the
// last place, which is u to 2u of the number). A tensor that is rounded once per element has that relative error in
// norm. If a sum of K terms is itself rounded at each addition, the errors of its partial sums add up like a random
// walk: sqrt(K) times as much; the longest sums of a layer have K = 4C.
//
// From the tokens to the logits a layer rounds sixteen tensors: eleven activations (ln1, qkv, P, atty, attproj,
// residual2, ln2, fch, gelu, fcproj, residual3), four weights and the sum in a softmax; the embedding, lnf, wte and
// logits make four more. The errors are independent: they add in quadrature. Gradients have been through as many
// roundings on their way forward, and as many again backward. The factor 3 stands for what this leaves out: how much a
// layer amplifies the error of its input, and that a gradient can be smaller than the terms which it is the sum of.
//
// The loss of a token changes by (p - y).d where its logits change by d, p the probabilities and y the target as a
// unit vector. The length of p - y is at most sqrt(2) and the elements of d are independent, so the change is at most
// sqrt(2) times one of them; the mean over tokens may share it, since they share the rounded weights.
static inline ReferenceTolerances reference_tolerances(ReferencePrecision precision, GPT2Config config,
                                                       const DebugState* state) {
    double once = precision.unit_roundoff / sqrt(6.0) * (precision.rounds_sums ? sqrt(4.0 * config.channels) : 1.0);
    double roundings = 16.0 * config.num_layers + 4.0;
    ReferenceTolerances tolerances;
    tolerances.logits = 3.0 * once * sqrt(roundings);
    size_t n = (size_t)state->B * (size_t)state->T * (size_t)config.vocab_size;
    double squares = 0.0;
    for (size_t i = 0; i < n; i++) { squares += (double)state->logits[i] * (double)state->logits[i]; }
    tolerances.loss = sqrt(2.0) * tolerances.logits * sqrt(squares / (double)n);
    tolerances.gradients = 3.0 * once * sqrt(2.0 * roundings);
    return tolerances;
}

// ----------------------------------------------------------------------------
// Checks

static int reference_passed, reference_failed;

// One row: what was checked, its numbers (empty where it has none), and whether it holds.
static inline void reference_row(const char* name, const char* numbers, int ok) {
    printf("%-24s %23s   %s\n", name, numbers, ok ? "ok" : "FAILED");
    ok ? reference_passed++ : reference_failed++;
}

static inline void reference_check(const char* name, double error, double tolerance) {
    char numbers[64];
    snprintf(numbers, sizeof(numbers), "%11.3e %11.3e", error, tolerance);
    reference_row(name, numbers, error <= tolerance); // NaN fails
}

static inline void reference_check_same(const char* name, uint64_t bits, uint64_t expected) {
    reference_row(name, "", bits == expected);
}

// Sums of squares of x - reference and of reference, over as many calls as a tensor has pieces.
typedef struct {
    double difference, reference;
} ReferenceError;

static inline void reference_add(ReferenceError* e, const float* x, const float* reference, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double d = (double)x[i] - (double)reference[i];
        e->difference += d * d;
        e->reference += (double)reference[i] * (double)reference[i];
    }
}

// ||x - reference|| / ||reference||; where the reference is zero, x must be too.
static inline double reference_relative(ReferenceError e) {
    return e.reference > 0 ? sqrt(e.difference / e.reference) : e.difference == 0 ? 0.0 : (double)INFINITY;
}

// A checksum (FNV-1a) of the bits of n floats.
static inline uint64_t reference_bits(const float* x, size_t n) {
    uint64_t hash = 0xcbf29ce484222325u;
    for (size_t i = 0; i < n; i++) {
        uint32_t word;
        memcpy(&word, &x[i], sizeof(word));
        hash = (hash ^ word) * 0x100000001b3u;
    }
    return hash;
}

static inline void reference_check_logits(GPT2* model, const DebugState* state, double tolerance) {
    ReferenceError error = {0, 0};
    size_t V = (size_t)gpt2_info(model)->config.vocab_size;
    float* row = (float*)malloc_check(V * sizeof(float));
    for (int t = 0; t < state->B * state->T; t++) {
        check(gpt2_get_logits(model, row, t));
        reference_add(&error, row, state->logits + (size_t)t * V, V);
    }
    free(row);
    reference_check("logits", reference_relative(error), tolerance);
}

static inline void reference_check_gradients(GPT2* model, const float* grads, const DebugState* state,
                                             double tolerance) {
    const GPT2Parameter* table = gpt2_info(model)->table;
    size_t offset = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        char name[64];
        ReferenceError error = {0, 0};
        reference_add(&error, grads + offset, state->gradients + offset, table[i].count);
        snprintf(name, sizeof(name), "gradient of %s", table[i].name);
        reference_check(name, reference_relative(error), tolerance);
        offset += table[i].count;
    }
}

// ----------------------------------------------------------------------------
// Runs

enum { REFERENCE_STEPS = 2 }; // after so many steps the parameters' bits are taken

typedef struct {
    uint64_t loss, gradients, parameters; // bits, the last after REFERENCE_STEPS
} ReferenceBits;

// Trains a few steps on the state's batch, from `params`. With tolerances, checks against the state on the way.
static inline ReferenceBits reference_run(GPT2Settings settings, int recompute, GPT2Config config, const float* params,
                                          const DebugState* state, const ReferenceTolerances* tolerances) {
    GPT2* model;
    ReferenceBits bits = {0, 0, 0};
    settings.recompute = recompute;
    check(gpt2_create(&model, config, settings));
    check(gpt2_allocate(model, state->B, state->T, 1));
    check(gpt2_set_parameters(model, params));
    const GPT2Info* info = gpt2_info(model);
    size_t n = info->num_parameters;
    float* host = (float*)malloc_check(n * sizeof(float));

    int steps = tolerances && state->num_losses > REFERENCE_STEPS ? state->num_losses : REFERENCE_STEPS;
    for (int step = 0; step < steps; step++) {
        check(gpt2_forward(model, state->x, state->B, state->T));
        if (step == 0 && tolerances) { reference_check_logits(model, state, tolerances->logits); }
        check(gpt2_backward(model, state->x, state->y, 1, 0));
        if (step == 0) {
            check(gpt2_get_gradients(model, host));
            bits.gradients = reference_bits(host, n);
            bits.loss = reference_bits(&info->mean_loss, 1);
            if (tolerances) {
                reference_check("loss", fabs((double)info->mean_loss - (double)state->loss), tolerances->loss);
                reference_check_gradients(model, host, state, tolerances->gradients);
            }
        }
        if (tolerances && step < state->num_losses) {
            // The updates err as much as the gradients, so the fall of the loss that they have caused does too.
            double reference = state->losses[step], fall = fabs((double)state->losses[0] - reference);
            char name[64];
            snprintf(name, sizeof(name), "loss before step %d", step + 1);
            reference_check(name, fabs((double)info->mean_loss - reference),
                            tolerances->loss + tolerances->gradients * fall);
        }
        float norm;
        check(gpt2_grad_norm(model, &norm));
        float scale = state->grad_clip > 0 && norm > state->grad_clip ? state->grad_clip / norm : 1.0f;
        check(gpt2_update(model, state->learning_rate, state->beta1, state->beta2, state->epsilon, state->weight_decay,
                          scale, step + 1));
        if (step + 1 == REFERENCE_STEPS) {
            check(gpt2_get_parameters(model, host));
            bits.parameters = reference_bits(host, n);
        }
    }
    free(host);
    gpt2_free(model);
    return bits;
}

// The loss as a validation computes it, then loss and gradients of the same batch in two micro-steps of half its rows.
static inline void reference_check_micro_steps(GPT2Settings settings, GPT2Config config, const float* params,
                                               const DebugState* state, const ReferenceTolerances* tolerances) {
    GPT2* model;
    int half = state->B / 2;
    check(gpt2_create(&model, config, settings));
    check(gpt2_allocate(model, state->B, state->T, 1));
    check(gpt2_set_parameters(model, params));
    const GPT2Info* info = gpt2_info(model);
    float loss;
    check(gpt2_validate(model, &loss, state->x, state->y, state->B, state->T));
    reference_check("validation loss", fabs((double)loss - (double)state->loss), tolerances->loss);
    if (state->B % 2 == 0) {
        for (int micro = 0; micro < 2; micro++) {
            size_t first = (size_t)micro * (size_t)half * (size_t)state->T;
            check(gpt2_forward(model, state->x + first, half, state->T));
            check(gpt2_backward(model, state->x + first, state->y + first, 2, micro));
        }
        float* grads = (float*)malloc_check(info->num_parameters * sizeof(float));
        ReferenceError error = {0, 0};
        check(gpt2_get_gradients(model, grads));
        reference_add(&error, grads, state->gradients, info->num_parameters);
        reference_check("micro-steps: loss", fabs((double)info->mean_loss - (double)state->loss), tolerances->loss);
        reference_check("micro-steps: gradients", reference_relative(error), tolerances->gradients);
        free(grads);
    }
    gpt2_free(model);
}

static inline void reference_check_bits(const char* what, ReferenceBits bits, ReferenceBits expected) {
    char name[64];
    snprintf(name, sizeof(name), "%s: gradients", what);
    reference_check_same(name, bits.loss ^ bits.gradients, expected.loss ^ expected.gradients);
    snprintf(name, sizeof(name), "%s: weights", what);
    reference_check_same(name, bits.parameters, expected.parameters);
}

// The whole test; what main returns. `settings` are the model's, but for recompute.
static inline int reference_main(int argc, char** argv, GPT2Settings settings, ReferencePrecision precision) {
    if (argc != 1 && argc != 3) {
        fatal("usage: %s [model.bin debug_state.bin]; without arguments %s and %s", argv[0], REFERENCE_MODEL,
              REFERENCE_STATE);
    }
    const char* model_path = argc == 3 ? argv[1] : REFERENCE_MODEL;
    const char* state_path = argc == 3 ? argv[2] : REFERENCE_STATE;
    GPT2Config config;
    float* params = gpt2_load_parameters(model_path, &config);
    DebugState state = debug_state_read(state_path, config);
    if (state.num_losses == 0) { // llm.c's files: PyTorch's steps are not in them, determinism is tested all the same
        state.learning_rate = 1e-4f, state.beta1 = 0.9f, state.beta2 = 0.95f, state.epsilon = 1e-8f;
        state.weight_decay = 0.1f, state.grad_clip = 1.0f;
    }
    ReferenceTolerances tolerances = reference_tolerances(precision, config, &state);

    printf("%s, %s: batch %d x %d\n", model_path, state_path, state.B, state.T);
    printf("%-24s %11s %11s\n", "check", "error", "tolerance");
    ReferenceBits first = reference_run(settings, 0, config, params, &state, &tolerances);
    reference_check_micro_steps(settings, config, params, &state, &tolerances);
    reference_check_bits("run again", reference_run(settings, 0, config, params, &state, NULL), first);
    reference_check_bits("recompute 1", reference_run(settings, 1, config, params, &state, NULL), first);
    reference_check_bits("recompute 2", reference_run(settings, 2, config, params, &state, NULL), first);
    reference_check_errors(settings, config, params, &state);
    debug_state_free(&state);
    free(params);
    printf("%d passed, %d failed\n", reference_passed, reference_failed);
    return reference_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
