// llmc/debug_state.h: what is read from PyTorch's debug states, and which are refused.
#include "llmc/debug_state.h"

#include "unit.h"

enum { B = 2, T = 3, V = 5, STEPS = 4 };
static const GPT2Config tiny = {8, V, 128, 1, 1, 32};

// Numbers of the body, in the order of the file
static size_t body_count(int steps) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    return 2 * B * T + B * T * V + 1 + gpt2_parameters(table, tiny) + (size_t)steps;
}

// Writes a state whose tokens are i modulo V and whose other numbers are their positions in the body.
static const char* write_state(const char* name, int version, int b, int t, int steps) {
    size_t n = body_count(steps);
    const char* path = unit_path(name);
    int32_t header[HEADER_INTS] = {DEBUG_STATE_MAGIC, version, b, t, steps};
    const float settings[6] = {1e-4f, 0.9f, 0.999f, 1e-8f, 0.01f, 1.0f};
    memcpy(&header[5], settings, sizeof(settings));
    FILE* file = fopen_check(path, "wb");
    fwrite_check(header, sizeof(header), 1, file, path);
    for (size_t i = 0; i < n; i++) {
        int32_t token = (int32_t)(i % V);
        float number = (float)i;
        fwrite_check(i < 2 * B * T ? (void*)&token : (void*)&number, 4, 1, file, path);
    }
    fclose(file);
    return path;
}

static void load(const char* path) {
    DebugState s = debug_state_read(path, tiny);
    debug_state_free(&s);
}

static void every_part_is_where_it_belongs(int steps) {
    DebugState s = debug_state_read(write_state("state.bin", 2, B, T, steps), tiny);
    size_t BT = B * T, logits = 2 * BT, loss = logits + BT * V, gradients = loss + 1, end = body_count(steps);
    CHECK(s.B == B && s.T == T && s.num_losses == steps);
    CHECK(s.x[0] == 0 && s.x[BT - 1] == (int)(BT - 1) % V && s.y[0] == (int)BT % V &&
          s.y[BT - 1] == (int)(2 * BT - 1) % V);
    CHECK(s.logits[0] == (float)logits && s.logits[BT * V - 1] == (float)(loss - 1));
    CHECK(s.loss == (float)loss);
    CHECK(s.gradients[0] == (float)gradients &&
          s.gradients[end - (size_t)steps - gradients - 1] == (float)(end - (size_t)steps - 1));
    if (steps > 0) { CHECK(s.losses[0] == (float)(end - (size_t)steps) && s.losses[steps - 1] == (float)(end - 1)); }
    CHECK(s.learning_rate == 1e-4f && s.beta1 == 0.9f && s.beta2 == 0.999f && s.epsilon == 1e-8f);
    CHECK(s.weight_decay == 0.01f && s.grad_clip == 1.0f);
    debug_state_free(&s);
}

static void bad_states_are_refused(void) {
    const char* bad = unit_path("bad.bin");
    size_t size = HEADER_BYTES + 4 * body_count(STEPS);
    CHECK_FATAL("missing.bin|No such file", load(unit_path("missing.bin")));
    CHECK_FATAL("bad.bin|version 1", load(write_state("bad.bin", 1, B, T, STEPS)));
    CHECK_FATAL("bad.bin|0 x 3", load(write_state("bad.bin", 2, 0, T, STEPS)));
    CHECK_FATAL("bad.bin|2 x 9|context of 8", load(write_state("bad.bin", 2, B, 9, STEPS)));
    CHECK_FATAL("bad.bin|bytes|3 x 3", load(write_state("bad.bin", 2, 3, T, STEPS)));
    CHECK_FATAL("bad.bin|bytes", load(write_state("bad.bin", 2, 1 << 20, T, STEPS)));
    write_state("bad.bin", 2, B, T, STEPS);
    unit_patch(bad, 16 + 2, 0xffff); // a negative number of steps
    CHECK_FATAL("bad.bin|step losses", load(bad));
    write_state("bad.bin", 2, B, T, STEPS);
    unit_patch(bad, 0, 1);
    CHECK_FATAL("bad.bin|magic number|20240327", load(bad));
    static const size_t cuts[] = {0, 100, HEADER_BYTES - 1, HEADER_BYTES, HEADER_BYTES + 40, 5000};
    for (size_t i = 0; i < sizeof(cuts) / sizeof(cuts[0]); i++) {
        unit_truncate(write_state("bad.bin", 2, B, T, STEPS), cuts[i]);
        CHECK_FATAL("bad.bin|truncated", load(bad));
    }
    unit_truncate(write_state("bad.bin", 2, B, T, STEPS), size - 4);
    CHECK_FATAL("bad.bin|truncated", load(bad));
    unit_truncate(write_state("bad.bin", 2, B, T, STEPS), size + 4);
    CHECK_FATAL("bad.bin|bytes", load(bad));
}

static void tokens_must_be_in_the_vocabulary(void) {
    static const size_t places[2] = {0, 2 * B * T - 1}; // the first input, the last target
    for (int i = 0; i < 2; i++) {
        size_t at = HEADER_BYTES + 4 * places[i];
        unit_patch(write_state("bad.bin", 2, B, T, STEPS), at, V);
        CHECK_FATAL("bad.bin|token 5|vocabulary of 5", load(unit_path("bad.bin")));
        unit_patch(write_state("bad.bin", 2, B, T, STEPS), at + 2, 0xffff);
        CHECK_FATAL("bad.bin|token -|vocabulary of 5", load(unit_path("bad.bin")));
    }
}

int main(void) {
    every_part_is_where_it_belongs(STEPS);
    every_part_is_where_it_belongs(0); // llm.c's states have no steps
    bad_states_are_refused();
    tokens_must_be_in_the_vocabulary();
    return unit_end();
}
