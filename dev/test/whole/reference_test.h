/*
The trainer against PyTorch: what test_gpt2.c and test_gpt2.cu have in common. Included after a trainer, which it runs on the
batch of a debug state:

    logits, loss, every gradient by name, and the losses of ten AdamW steps are PyTorch's, within tolerances
    so are the loss of a validation, and loss and gradients of the batch in two micro-steps
    what ten steps of Muon change is what they change in PyTorch, tensor by tensor
    AdamW on given gradients is that of fp64, tensor by tensor, within the rounding of fp32
    two runs give the same bits, and so does every recompute setting
    wrong calls are refused, and leave everything as it was (reference_errors.h)
    numbers that are not finite stay out of the weights and are found; digest, snapshot, padding (reference_numbers.h)

A tensor's error is ||x - reference|| / ||reference||, a loss's is in nats. Prints a row for each check and ends in
'N passed, N failed'.
*/
#ifndef REFERENCE_TEST_H
#define REFERENCE_TEST_H

#include "dev/test/fixtures/debug_state.h"
#include "llmc/model/gpt2_model.h"
#include "llmc/files/weights_file.h"
#include "reference_errors.h"
#include "reference_numbers.h"

// The committed dumps: <name>.bin and <name>_debug_state.bin, see dev/reference/README.md
static const char* const reference_dumps[] = {"dev/reference/tiny", "dev/reference/tiny_heads",
                                              "dev/reference/long_hs64", "dev/reference/long_hs128"};

// How a trainer rounds; its tolerances follow.
typedef struct {
    double unit_roundoff; // of the training precision: 2^-24 for fp32, 2^-8 for bf16
    int rounds_sums;      // 1: sums are rounded at each addition, as in fp32; 0: they are kept wider than tensors
    int gelu_fusions;     // the trainer's settings gelu_fusion are 0 to this
} ReferencePrecision;

typedef struct {
    char name[32];
    double error;
} ReferenceMeasured;

#ifdef __CUDACC__
static inline ReferencePrecision gpu_precision(void) {
#if defined(PRECISION_FP32)
    return {0x1p-24, 1, 2};
#else
    return {0x1p-8, 0, 2}; // GEMMs add in fp32
#endif
}
#endif

typedef struct {
    double logits, gradients; // relative errors
    double loss;              // nats
    // what bf16 was measured to err by, for the checks of these names; none: the tolerances above
    ReferenceMeasured measured[64];
    int num_measured;
} ReferenceTolerances;

// In bf16 the small dumps come with measured errors: dev/reference/rounding.py runs the model of PyTorch with our rounding and
// writes, for each check, the root mean square of its error over several batches. Three times as much is allowed. For other
// dumps, and in fp32, tolerances are derived:
//
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
    memset(&tolerances, 0, sizeof(tolerances));
    tolerances.logits = 3.0 * once * sqrt(roundings);
    size_t n = (size_t)state->B * (size_t)state->T * (size_t)config.vocab_size;
    double squares = 0.0;
    for (size_t i = 0; i < n; i++) { squares += (double)state->logits[i] * (double)state->logits[i]; }
    tolerances.loss = sqrt(2.0) * tolerances.logits * sqrt(squares / (double)n);
    tolerances.gradients = 3.0 * once * sqrt(2.0 * roundings);
    return tolerances;
}

// Reads <dump>_<precision>_errors.csv, which stands beside <dump>_debug_state.bin, where there is one: lines of name,error.
static inline void reference_read_measured(ReferenceTolerances* tolerances, const char* state_path,
                                           const char* precision) {
    const char* end = strstr(state_path, "_debug_state.bin");
    char path[1024], line[128];
    if (end == NULL || end - state_path > 900) { return; }
    snprintf(path, sizeof(path), "%.*s_%s_errors.csv", (int)(end - state_path), state_path, precision);
    FILE* file = fopen(path, "r");
    if (file == NULL) { return; }
    while (fgets(line, sizeof(line), file) != NULL) {
        ReferenceMeasured m;
        if (line[0] == '#') { continue; }
        if (tolerances->num_measured == 64 || sscanf(line, "%31[^,],%lf", m.name, &m.error) != 2 || !(m.error > 0.0)) {
            fatal("%s: not a line of name,error: %s", path, line);
        }
        tolerances->measured[tolerances->num_measured++] = m;
    }
    fclose(file);
}

// The tolerance of a check: three times the error that was measured for it, or else the derived one.
static inline double reference_tolerance(const ReferenceTolerances* tolerances, const char* name, double derived) {
    for (int i = 0; i < tolerances->num_measured; i++) {
        if (strcmp(tolerances->measured[i].name, name) == 0) { return 3.0 * tolerances->measured[i].error; }
    }
    if (tolerances->num_measured > 0) { fatal("the measured errors of bf16 lack a line for %s", name); }
    return derived;
}

// ----------------------------------------------------------------------------
// Checks

static int reference_passed, reference_failed;

// One row: what was checked, its numbers (empty where it has none), and whether it holds.
static inline void reference_row(const char* name, const char* numbers, int ok) {
    printf("%-32s %23s   %s\n", name, numbers, ok ? "ok" : "FAILED");
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

// The relative error of the logits of the last forward pass.
static inline double reference_logits_error(GPT2* model, const DebugState* state) {
    ReferenceError error = {0, 0};
    size_t V = (size_t)gpt2_info(model)->config.vocab_size;
    float* row = (float*)malloc_check(V * sizeof(float));
    for (int t = 0; t < state->B * state->T; t++) {
        check(gpt2_get_logits(model, row, t));
        reference_add(&error, row, state->logits + (size_t)t * V, V);
    }
    free(row);
    return reference_relative(error);
}

// One row for each tensor, or with `label` one for all of them: the largest error, in units of its tolerance.
static inline void reference_check_gradients(const GPT2Info* info, const float* grads, const DebugState* state,
                                             const ReferenceTolerances* tolerances, const char* label) {
    size_t offset = 0;
    double worst = 0.0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        char name[64];
        ReferenceError error = {0, 0};
        reference_add(&error, grads + offset, state->gradients + offset, info->table[i].count);
        snprintf(name, sizeof(name), "gradient of %s", info->table[i].name);
        double relative = reference_relative(error);
        double tolerance = reference_tolerance(tolerances, name, tolerances->gradients);
        if (label == NULL) { reference_check(name, relative, tolerance); }
        worst = worse(worst, relative / tolerance);
        offset += info->table[i].count;
    }
    if (label != NULL) { reference_check(label, worst, 1.0); }
}

// ----------------------------------------------------------------------------
// Runs

enum { REFERENCE_STEPS = 2 }; // after so many steps the parameters' bits are taken

typedef struct {
    uint64_t loss, gradients, parameters; // bits, the last after REFERENCE_STEPS
} ReferenceBits;

// A model with these parameters, for training on batches of the state's size.
static inline GPT2* reference_model(GPT2Settings settings, GPT2Config config, const float* params,
                                    const DebugState* state) {
    GPT2* model;
    settings.micro_steps = 2; // at most
    check(gpt2_create(&model, config, settings));
    check(gpt2_allocate(model, state->B, state->T, 1));
    check(gpt2_set_parameters(model, params));
    return model;
}

// Trains a few steps on the state's batch, from `params`. With tolerances, checks against the state on the way.
static inline ReferenceBits reference_run(GPT2Settings settings, int recompute, GPT2Config config, const float* params,
                                          const DebugState* state, const ReferenceTolerances* tolerances) {
    ReferenceBits bits = {0, 0, 0};
    settings.recompute = recompute;
    GPT2* model = reference_model(settings, config, params, state);
    const GPT2Info* info = gpt2_info(model);
    size_t n = info->num_parameters;
    float* host = (float*)malloc_check(n * sizeof(float));

    double allowed = 0; // of a step's loss: errors last from update to update, so as much as of any loss before it
    int steps = tolerances && state->num_losses > REFERENCE_STEPS ? state->num_losses : REFERENCE_STEPS;
    for (int step = 0; step < steps; step++) {
        check(gpt2_forward(model, state->x, state->B, state->T));
        if (step == 0 && tolerances) {
            reference_check("logits", reference_logits_error(model, state),
                            reference_tolerance(tolerances, "logits", tolerances->logits));
        }
        float norm;
        check(gpt2_backward(model, state->x, state->y, 1, 0));
        check(gpt2_grad_norm(model, &norm));
        if (step == 0) {
            check(gpt2_get_gradients(model, host));
            bits.gradients = reference_bits(host, n);
            bits.loss = reference_bits(&info->mean_loss, 1);
            if (tolerances) {
                reference_check("loss", fabs((double)info->mean_loss - (double)state->loss),
                                reference_tolerance(tolerances, "loss", tolerances->loss));
                reference_check_gradients(info, host, state, tolerances, NULL);
            }
        }
        if (tolerances && step < state->num_losses) {
            // The updates err as much as the gradients, so the fall of the loss that they have caused does too.
            double reference = state->losses[step], fall = fabs((double)state->losses[0] - reference);
            char name[64];
            snprintf(name, sizeof(name), "loss before step %d", step + 1);
            allowed =
                fmax(allowed, reference_tolerance(tolerances, name, tolerances->loss + tolerances->gradients * fall));
            reference_check(name, fabs((double)info->mean_loss - reference), allowed);
        }
        check(gpt2_update(model, state->learning_rate, state->beta1, state->beta2, state->epsilon, state->weight_decay,
                          state->grad_clip, step + 1));
        if (step + 1 == REFERENCE_STEPS) {
            check(gpt2_get_parameters(model, host));
            bits.parameters = reference_bits(host, n);
        }
    }
    free(host);
    gpt2_free(model);
    return bits;
}

// The loss as a validation computes it, then loss and gradients of the same batch in two micro-steps of half its rows. After
// these the whole batch gives the gradients of the first run again, bit by bit: nothing of the old ones is left.
static inline void reference_check_micro_steps(GPT2Settings settings, GPT2Config config, const float* params,
                                               const DebugState* state, const ReferenceTolerances* tolerances,
                                               ReferenceBits first) {
    GPT2* model = reference_model(settings, config, params, state);
    const GPT2Info* info = gpt2_info(model);
    float loss, norm, *grads = (float*)malloc_check(info->num_parameters * sizeof(float));
    double loss_tolerance = reference_tolerance(tolerances, "loss", tolerances->loss);
    check(gpt2_validate(model, &loss, state->x, state->y, state->B, state->T));
    reference_check("validation loss", fabs((double)loss - (double)state->loss), loss_tolerance);
    int half = state->B / 2;
    for (int micro = 0; micro < 2 && state->B % 2 == 0; micro++) {
        size_t begin = (size_t)micro * (size_t)half * (size_t)state->T;
        check(gpt2_forward(model, state->x + begin, half, state->T));
        check(gpt2_backward(model, state->x + begin, state->y + begin, 2, micro));
    }
    if (state->B % 2 == 0) {
        check(gpt2_get_gradients(model, grads));
        check(gpt2_grad_norm(model, &norm));
        reference_check("micro-steps: loss", fabs((double)info->mean_loss - (double)state->loss), loss_tolerance);
        reference_check_gradients(info, grads, state, tolerances, "micro-steps: worst gradient");
    }
    for (int again = 0; again < 2; again++) {
        check(gpt2_forward(model, state->x, state->B, state->T));
        check(gpt2_backward(model, state->x, state->y, 1, 0));
    }
    check(gpt2_get_gradients(model, grads));
    reference_check_same("gradients are not added to", reference_bits(grads, info->num_parameters), first.gradients);
    free(grads);
    gpt2_free(model);
}

// Logits, loss and gradients with other settings or kernels, and the same bits from a second pass.
static inline void reference_check_settings(GPT2Settings settings, const char* label, GPT2Config config,
                                            const float* params, const DebugState* state,
                                            const ReferenceTolerances* tolerances) {
    GPT2* model = reference_model(settings, config, params, state);
    const GPT2Info* info = gpt2_info(model);
    float norm, *grads = (float*)malloc_check(info->num_parameters * sizeof(float));
    char name[96];
    check(gpt2_forward(model, state->x, state->B, state->T));
    snprintf(name, sizeof(name), "%s: logits", label);
    reference_check(name, reference_logits_error(model, state),
                    reference_tolerance(tolerances, "logits", tolerances->logits));
    check(gpt2_backward(model, state->x, state->y, 1, 0));
    check(gpt2_grad_norm(model, &norm));
    check(gpt2_get_gradients(model, grads));
    snprintf(name, sizeof(name), "%s: loss", label);
    reference_check(name, fabs((double)info->mean_loss - (double)state->loss),
                    reference_tolerance(tolerances, "loss", tolerances->loss));
    snprintf(name, sizeof(name), "%s: worst gradient", label);
    reference_check_gradients(info, grads, state, tolerances, name);
    uint64_t bits = reference_bits(grads, info->num_parameters);
    check(gpt2_forward(model, state->x, state->B, state->T));
    check(gpt2_backward(model, state->x, state->y, 1, 0));
    check(gpt2_get_gradients(model, grads));
    snprintf(name, sizeof(name), "%s: gradients again", label);
    reference_check_same(name, reference_bits(grads, info->num_parameters), bits);
    free(grads);
    gpt2_free(model);
}

// ----------------------------------------------------------------------------
// Muon

enum { MUON_MAGIC = 20261127, MUON_VERSION = 1 };

// Newton-Schulz steps raise small singular values, and what errors there are in them.
static const double MUON_FACTOR = 30.0;

// <dump>_muon.bin beside <dump>_debug_state.bin; 0 where there is none. Format: dev/reference/formats.py.
static inline int reference_open_muon(CheckedReader* file, const char* state_path) {
    const char* end = strstr(state_path, "_debug_state.bin");
    char path[1024];
    if (end == NULL || end - state_path > 900) { return 0; }
    snprintf(path, sizeof(path), "%.*s_muon.bin", (int)(end - state_path), state_path);
    if (access(path, F_OK) != 0) { return 0; }
    check(checked_open(file, path, MUON_MAGIC, "changes by Muon"));
    if (file->header[1] != MUON_VERSION || file->header[2] < 1 || file->header[3] < 1) { fatal("%s is corrupt", path); }
    return 1;
}

// What the steps change in samples of each tensor, but for the keys' bias: its gradient is zero, and its change an accident of
// rounding.
static inline void reference_check_muon(GPT2Settings settings, GPT2Config config, const float* params,
                                        const DebugState* state, const char* state_path,
                                        const ReferenceTolerances* tolerances) {
    CheckedReader file;
    if (!reference_open_muon(&file, state_path)) { return; }
    settings.muon = 1;
    GPT2* model = reference_model(settings, config, params, state);
    const GPT2Info* info = gpt2_info(model);
    float norm, *after = (float*)malloc_check(info->num_parameters * sizeof(float));
    for (int step = 0; step < file.header[2]; step++) {
        check(gpt2_forward(model, state->x, state->B, state->T));
        check(gpt2_backward(model, state->x, state->y, 1, 0));
        check(gpt2_grad_norm(model, &norm));
        check(gpt2_update(model, state->learning_rate, state->beta1, state->beta2, state->epsilon, state->weight_decay,
                          state->grad_clip, step + 1));
    }
    GPT2Block trained = gpt2_block_bytes(model, GPT2_MASTER_WEIGHTS) ? GPT2_MASTER_WEIGHTS : GPT2_WEIGHTS;
    check(gpt2_copy_out(model, after, trained, 0, info->num_parameters * sizeof(float)));
    size_t offset = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        char name[64];
        ReferenceError error = {0, 0};
        size_t n = info->table[i].count, samples = (size_t)file.header[3] < n ? (size_t)file.header[3] : n;
        for (size_t k = 0; k < samples; k++) {
            float reference, at = params[offset + k * n / samples];
            check(checked_read(&file, &reference, sizeof(reference)));
            float change = after[offset + k * n / samples] - at;
            int third = (int)(k * n / samples % info->table[i].rows * 3 / info->table[i].rows);
            if (i != (int)PARAMETER_qkvb || third != 1) { reference_add(&error, &change, &reference, 1); }
        }
        snprintf(name, sizeof(name), "Muon: change of %s", info->table[i].name);
        double tolerance = reference_tolerance(tolerances, name, MUON_FACTOR * tolerances->gradients);
        if (!layout_is_muon(gpt2_layout(model), i)) { tolerance *= 2.0; } // AdamW follows the sign of small gradients
        reference_check(name, reference_relative(error), tolerance);
        offset += n;
    }
    check(checked_end(&file));
    checked_close(&file);
    free(after);
    gpt2_free(model);
}

// ----------------------------------------------------------------------------
// AdamW on given gradients

// Gradients from 1 down to 1e-9, where the epsilon of 1e-8 is more than the root of the second moment.
static inline void reference_random_gradients(float* grads, size_t n, uint32_t seed) {
    static const float sizes[10] = {1.0f, 0.1f, 1e-2f, 1e-3f, 1e-4f, 1e-5f, 1e-6f, 1e-7f, 1e-8f, 1e-9f};
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        grads[i] = sizes[i % 10] * ((float)(seed >> 8) / 8388608.0f - 1.0f);
    }
}

// Weights w, and moments m and v, (n) each, after a step of AdamW in fp64. Gradients count times `scale`.
static inline void reference_adamw(double* w, double* m, double* v, const float* grads, size_t n, double rate,
                                   double beta1, double beta2, double epsilon, double decay, double scale, int step) {
    double correction1 = 1.0 - pow(beta1, step), correction2 = 1.0 - pow(beta2, step);
    for (size_t i = 0; i < n; i++) {
        double g = scale * (double)grads[i];
        m[i] = beta1 * m[i] + (1.0 - beta1) * g;
        v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
        w[i] -= rate * (m[i] / correction1 / (sqrt(v[i] / correction2) + epsilon) + decay * w[i]);
    }
}

// Three steps on random gradients against fp64. The error of a tensor is relative to how far it moved. fp32 rounds a weight
// at each step, by up to 2^-24 of it, and an update in about 30 operations; no factor is needed beside these worst cases.
static inline void reference_check_adamw(GPT2Settings settings, GPT2Config config, const float* params,
                                         const DebugState* state) {
    enum { STEPS = 3 };
    static const char matrices[] = " wte wpe qkvw attprojw fcw fcprojw "; // weight decay acts on these
    const float rate = 1e-2f, beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f, decay = 0.1f, clip = 1.0f;
    const double eps = ldexp(1.0, -24);
    GPT2* model = reference_model(settings, config, params, state);
    const GPT2Info* info = gpt2_info(model);
    size_t n = info->num_parameters, bytes = n * sizeof(float);
    GPT2Block trained = gpt2_block_bytes(model, GPT2_MASTER_WEIGHTS) ? GPT2_MASTER_WEIGHTS : GPT2_WEIGHTS;
    float *grads = (float*)malloc_check(bytes), *weights = (float*)malloc_check(bytes), norm = 0.0f;
    float *start = (float*)malloc_check(bytes), *cast = (float*)malloc_check(bytes);
    double* memory = (double*)calloc_check(3 * n, sizeof(double));
    double *w = memory, *m = memory + n, *v = memory + 2 * n, norm_error = 0.0;
    check(gpt2_copy_out(model, start, trained, 0, bytes));
    for (size_t i = 0; i < n; i++) { w[i] = (double)start[i]; }
    for (int step = 1; step <= STEPS; step++) {
        double squares = 0.0;
        reference_random_gradients(grads, n, (uint32_t)step);
        for (size_t i = 0; i < n; i++) { squares += (double)grads[i] * (double)grads[i]; }
        check(gpt2_copy_in(model, GPT2_GRADIENTS, grads, 0, bytes));
        check(gpt2_grad_norm(model, &norm));
        double off = fabs((double)norm / sqrt(squares) - 1.0);
        if (!(off <= norm_error)) { norm_error = off; } // fmax would drop a NaN
        float scale = clip / norm;
        check(gpt2_update(model, rate, beta1, beta2, epsilon, decay, clip, step));
        for (size_t i = 0, offset = 0; i < NUM_PARAMETER_TENSORS; offset += info->table[i++].count) {
            char name[16];
            snprintf(name, sizeof(name), " %s ", info->table[i].name);
            reference_adamw(w + offset, m + offset, v + offset, grads + offset, info->table[i].count, (double)rate,
                            (double)beta1, (double)beta2, (double)epsilon, strstr(matrices, name) ? (double)decay : 0.0,
                            (double)scale, step);
        }
    }
    reference_check("norm of given gradients", norm_error, 64 * eps); // squares and partial sums, a tree
    check(gpt2_copy_out(model, weights, trained, 0, bytes));
    for (size_t i = 0, offset = 0; i < NUM_PARAMETER_TENSORS; offset += info->table[i++].count) {
        double error = 0.0, moved = 0.0, size = 0.0;
        char name[64];
        for (size_t j = offset; j < offset + info->table[i].count; j++) {
            error += pow((double)weights[j] - w[j], 2);
            moved += pow(w[j] - (double)start[j], 2);
            size += w[j] * w[j];
        }
        snprintf(name, sizeof(name), "AdamW of %s", info->table[i].name);
        reference_check(name, sqrt(error / moved), STEPS * eps * sqrt(size / moved) + 30 * eps);
    }
    if (trained == GPT2_MASTER_WEIGHTS) { // the weights that the next pass reads are these, rounded to nearest
        check(gpt2_get_parameters(model, cast));
        for (size_t i = 0; i < n; i++) { weights[i] = bf16_to_float(float_to_bf16(weights[i])); }
        reference_check_same("weights are the masters, cast", reference_bits(cast, n), reference_bits(weights, n));
    }
    free(grads), free(weights), free(start), free(cast), free(memory);
    gpt2_free(model);
}

static inline void reference_check_bits(const char* what, ReferenceBits bits, ReferenceBits expected) {
    char name[64];
    snprintf(name, sizeof(name), "%s: gradients", what);
    reference_check_same(name, bits.loss ^ bits.gradients, expected.loss ^ expected.gradients);
    snprintf(name, sizeof(name), "%s: weights", what);
    reference_check_same(name, bits.parameters, expected.parameters);
}

// All checks of one dump.
static inline void reference_dump(const char* model_path, const char* state_path, GPT2Settings settings,
                                  ReferencePrecision precision) {
    GPT2Config config;
    float* params;
    int unchecked;
    check(weights_load(&params, model_path, &config, &unchecked));
    DebugState state = debug_state_read(state_path, config);
    if (state.num_losses == 0) { // llm.c's files: PyTorch's steps are not in them, determinism is tested all the same
        state.learning_rate = 1e-4f, state.beta1 = 0.9f, state.beta2 = 0.95f, state.epsilon = 1e-8f;
        state.weight_decay = 0.1f, state.grad_clip = 1.0f;
    }
    ReferenceTolerances tolerances = reference_tolerances(precision, config, &state);
    if (!precision.rounds_sums) { reference_read_measured(&tolerances, state_path, "bf16"); }

    printf("%s, %s: batch %d x %d\n", model_path, state_path, state.B, state.T);
    printf("%-32s %11s %11s\n", "check", "error", "tolerance");
    ReferenceBits first = reference_run(settings, 0, config, params, &state, &tolerances);
    reference_check_micro_steps(settings, config, params, &state, &tolerances, first);
    reference_check_muon(settings, config, params, &state, state_path, &tolerances);
    reference_check_adamw(settings, config, params, &state);
    for (int fusion = 1; fusion <= precision.gelu_fusions; fusion++) {
        GPT2Settings fused = settings;
        char label[32];
        fused.gelu_fusion = fusion;
        snprintf(label, sizeof(label), "GELU fusion %d", fusion);
        reference_check_settings(fused, label, config, params, &state, &tolerances);
    }
    reference_check_bits("run again", reference_run(settings, 0, config, params, &state, NULL), first);
    reference_check_bits("recompute 1", reference_run(settings, 1, config, params, &state, NULL), first);
    reference_check_bits("recompute 2", reference_run(settings, 2, config, params, &state, NULL), first);
    reference_check_errors(settings, config, params, &state);
    reference_check_numbers(settings, config, params, &state);
    debug_state_free(&state);
    free(params);
}

// The whole test; what main returns. `settings` are the model's, but for recompute.
static inline int reference_main(int argc, char** argv, GPT2Settings settings, ReferencePrecision precision) {
    if (argc != 1 && argc != 3) {
        fatal("usage: %s [MODEL debug_state.bin], MODEL a .bin or .safetensors file or a folder; without arguments, "
              "all committed dumps",
              argv[0]);
    }
    if (argc == 3) { reference_dump(argv[1], argv[2], settings, precision); }
    for (size_t i = 0; argc == 1 && i < sizeof(reference_dumps) / sizeof(reference_dumps[0]); i++) {
        char model_path[256], state_path[256];
        snprintf(model_path, sizeof(model_path), "%s.bin", reference_dumps[i]);
        snprintf(state_path, sizeof(state_path), "%s_debug_state.bin", reference_dumps[i]);
        reference_dump(model_path, state_path, settings, precision);
    }
    printf("%d passed, %d failed\n", reference_passed, reference_failed);
    return reference_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
