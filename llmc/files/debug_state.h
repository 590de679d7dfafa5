/*
Debug states: PyTorch's results for one batch, the reference for the trainers. llm.c's format, which
dev/reference/write_reference.py writes:

    header      magic 20240327, version 2, B, T, number of step losses; then, as fp32 bits, the settings of the steps
    x, y        (B,T) int32      inputs and targets
    logits      (B,T,V) fp32     without the padding of the vocabulary
    loss        fp32
    gradients   fp32             of all parameters in table order
    losses      fp32             before each of ten AdamW steps on the same batch; llm.c's files have none

Checksums, where the file has them, are verified (checked_file.h).
*/
#ifndef LLMC_FILES_DEBUG_STATE_H
#define LLMC_FILES_DEBUG_STATE_H

#include <math.h>

#include "llmc/base/checked_file.h"
#include "llmc/model/gpt2.h"

enum { DEBUG_STATE_MAGIC = 20240327, DEBUG_STATE_VERSION = 2, DEBUG_STATE_MAX_STEPS = 1000 };

typedef struct {
    int B, T;
    int32_t *x, *y; // (B,T)
    float* logits;  // (B,T,V)
    float loss;
    float* gradients; // (num_parameters)
    int num_losses;   // 0: no steps in the file
    float* losses;    // (num_losses)
    float learning_rate, beta1, beta2, epsilon, weight_decay, grad_clip;
} DebugState;

static inline void* debug_state_tensor_(size_t count, CheckedReader* file) {
    void* p = malloc_check(size_mul(count, sizeof(float)));
    check(checked_read(file, p, count * sizeof(float)));
    return p;
}

static inline void debug_state_check_tokens_(const int32_t* tokens, size_t count, int vocab_size, const char* path) {
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= vocab_size) {
            fatal("%s: token %d is outside of the model's vocabulary of %d", path, (int)tokens[i], vocab_size);
        }
    }
}

// Reads the state that belongs to a model of this configuration; ends the program with one line if the file is another kind, is
// damaged, or belongs to another model. debug_state_free() frees it.
static inline DebugState debug_state_read(const char* path, GPT2Config config) {
    DebugState s;
    CheckedReader file;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t num_parameters = gpt2_parameters(table, config);
    check(checked_open(&file, path, DEBUG_STATE_MAGIC, "debug state"));
    const int32_t* header = file.header;
    if (header[1] != DEBUG_STATE_VERSION) {
        fatal("%s: debug state version %d is not supported: %d is", path, (int)header[1], DEBUG_STATE_VERSION);
    }
    s.B = header[2], s.T = header[3], s.num_losses = header[4];
    if (s.B < 1 || s.B > (1 << 20) || s.T < 1 || s.T > config.max_seq_len) {
        fatal("%s: a batch of %d x %d tokens does not suit a model with a context of %d", path, s.B, s.T,
              config.max_seq_len);
    }
    if (s.num_losses < 0 || s.num_losses > DEBUG_STATE_MAX_STEPS) {
        fatal("%s: %d step losses; 0 to %d are possible", path, s.num_losses, DEBUG_STATE_MAX_STEPS);
    }
    float* settings[] = {&s.learning_rate, &s.beta1, &s.beta2, &s.epsilon, &s.weight_decay, &s.grad_clip};
    for (int i = 0; i < 6; i++) {
        memcpy(settings[i], &header[5 + i], sizeof(float));
        if (!isfinite(*settings[i])) { fatal("%s: setting %d of its steps is not finite; it is corrupt", path, i); }
    }

    size_t BT = size_mul((size_t)s.B, (size_t)s.T), V = (size_t)config.vocab_size, steps = (size_t)s.num_losses;
    size_t numbers = size_add(size_mul(BT, V + 2), size_add(num_parameters, 1 + steps)); // x and y, logits, the rest
    size_t expected = size_add(HEADER_BYTES, size_mul(numbers, sizeof(float)));
    size_t size = HEADER_BYTES + file.body_bytes;
    if (size != expected) {
        fatal("%s has %zu bytes, but for this model and its batch of %d x %d tokens it should have %zu; the file is "
              "truncated, corrupt or another model's",
              path, size, s.B, s.T, expected);
    }
    s.x = (int32_t*)debug_state_tensor_(BT, &file);
    s.y = (int32_t*)debug_state_tensor_(BT, &file);
    s.logits = (float*)debug_state_tensor_(BT * V, &file);
    check(checked_read(&file, &s.loss, sizeof(float)));
    s.gradients = (float*)debug_state_tensor_(num_parameters, &file);
    s.losses = (float*)debug_state_tensor_(steps, &file);
    check(checked_end(&file));
    checked_close(&file);
    debug_state_check_tokens_(s.x, BT, config.vocab_size, path);
    debug_state_check_tokens_(s.y, BT, config.vocab_size, path);
    return s;
}

static inline void debug_state_free(DebugState* s) {
    free(s->x);
    free(s->y);
    free(s->logits);
    free(s->gradients);
    free(s->losses);
    memset(s, 0, sizeof(*s));
}

#endif
