// dev/test/fixtures/debug_state.h: what was written is read, and a damaged file ends with one line that names it and its fault.
#include "dev/test/fixtures/debug_state.h"
#include "dev/test/fixtures/unit.h"

enum { B = 2, T = 3, V = 5, STEPS = 4 };

static GPT2Config small_config(void) {
    GPT2Config c = {4, V, 128, 1, 1, 32, 0}; // context, V, Vp, layers, heads, channels, trained length
    return c;
}

// Writes a state whose n-th number of four bytes after the header is n, but for the tokens; returns the file's length.
static size_t write_state(const char* path, int magic, int version, int b, int t, int steps, int token) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    int32_t header[HEADER_INTS] = {magic, version, b, t, steps};
    float settings[6] = {1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f};
    memcpy(&header[5], settings, sizeof(settings));
    size_t tokens = 2 * B * T, count = tokens + B * T * V + 1 + gpt2_parameters(table, small_config()) + STEPS;
    FILE* file = fopen_check(path, "wb");
    fwrite_check(header, sizeof(header), 1, file, path);
    for (size_t i = 0; i < count; i++) {
        int32_t x = i == tokens - 1 ? token : (int32_t)(i % V);
        float y = (float)i;
        fwrite_check(i < tokens ? (void*)&x : (void*)&y, 4, 1, file, path);
    }
    fclose(file);
    return HEADER_BYTES + 4 * count;
}

static void test_reading(void) {
    const char* path = unit_path("state.bin");
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t n = gpt2_parameters(table, small_config()), logits = 2 * B * T, loss = logits + B * T * V;
    write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, B, T, STEPS, 4);
    DebugState s = debug_state_read(path, small_config());
    CHECK(s.B == B && s.T == T && s.num_losses == STEPS);
    CHECK(s.x[0] == 0 && s.x[1] == 1 && s.y[0] == B * T % V && s.y[B * T - 1] == 4);
    CHECK(s.logits[0] == (float)logits && s.loss == (float)loss);
    CHECK(s.gradients[0] == (float)(loss + 1) && s.gradients[n - 1] == (float)(loss + n));
    CHECK(s.losses[0] == (float)(loss + n + 1) && s.losses[STEPS - 1] == (float)(loss + n + STEPS));
    CHECK(s.learning_rate == 1e-3f && s.beta1 == 0.9f && s.beta2 == 0.95f && s.epsilon == 1e-8f);
    CHECK(s.weight_decay == 0.1f && s.grad_clip == 1.0f);
    debug_state_free(&s);
}

static void test_without_steps(void) { // as llm.c's files are: they end after the gradients
    const char* path = unit_path("state.bin");
    size_t bytes = write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, B, T, 0, 4);
    CHECK_FATAL("state.bin|bytes", debug_state_read(path, small_config()));
    unit_truncate(path, bytes - 4 * STEPS);
    DebugState s = debug_state_read(path, small_config());
    CHECK(s.num_losses == 0 && s.y[B * T - 1] == 4);
    debug_state_free(&s);
}

static void test_damage(void) {
    const char* path = unit_path("state.bin");
    GPT2Config other = small_config();
    other.channels = 64;
    CHECK_FATAL("missing.bin|cannot open", debug_state_read("missing.bin", small_config()));
    write_state(path, 20240520, DEBUG_STATE_VERSION, B, T, STEPS, 4);
    CHECK_FATAL("state.bin|20240520|debug state", debug_state_read(path, small_config()));
    write_state(path, DEBUG_STATE_MAGIC, 1, B, T, STEPS, 4);
    CHECK_FATAL("state.bin|version 1", debug_state_read(path, small_config()));
    write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, B, 5, STEPS, 4);
    CHECK_FATAL("state.bin|context of 4", debug_state_read(path, small_config()));
    write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, 0, T, STEPS, 4);
    CHECK_FATAL("state.bin|0 x 3", debug_state_read(path, small_config()));
    write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, B, T, -1, 4);
    CHECK_FATAL("state.bin|-1 step losses", debug_state_read(path, small_config()));
    write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, B, T, STEPS, V);
    CHECK_FATAL("state.bin|token 5|vocabulary of 5", debug_state_read(path, small_config()));
    write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, B, T, STEPS, -1);
    CHECK_FATAL("state.bin|token -1", debug_state_read(path, small_config()));
    write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, (1 << 20) + 1, T, STEPS, 4);
    CHECK_FATAL("state.bin|1048577 x 3", debug_state_read(path, small_config()));
    for (int i = 0; i < 6; i++) { // a setting that is not a number
        write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, B, T, STEPS, 4);
        unit_patch(path, 4 * (5 + (size_t)i) + 2, i % 2 ? 0x7fc0 : 0xff80);
        CHECK_FATAL("state.bin|setting|not finite", debug_state_read(path, small_config()));
    }
    size_t bytes = write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, B, T, STEPS, 4);
    CHECK_FATAL("state.bin|another model", debug_state_read(path, other));
    unit_truncate(path, bytes - 1);
    CHECK_FATAL("state.bin|truncated", debug_state_read(path, small_config()));
    unit_truncate(path, 100);
    CHECK_FATAL("state.bin|truncated", debug_state_read(path, small_config()));
}

static void test_checksums(void) {
    const char* path = unit_path("state.bin");
    write_state(path, DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, B, T, STEPS, 4);
    unit_seal(path);
    DebugState s = debug_state_read(path, small_config());
    debug_state_free(&s);
    unit_flip(path, 8 * (HEADER_BYTES + 4 * 2 * B * T)); // a logit
    CHECK_FATAL("state.bin: bytes 1024 to", debug_state_read(path, small_config()));
}

// 4 (2 B T + B T V + n) is 2^64 more than its true value would be, and the file as long as the rest of that.
static void test_sizes_that_wrap_around(void) {
    const char* path = unit_path("state.bin");
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    GPT2Config config = small_config();
    size_t n = gpt2_parameters(table, config);
    int b = 1 << 20, v = 1 << 24;
    config.max_seq_len = 1 << 18; // B T V = 2^62
    size_t positions = (size_t)(config.max_seq_len - small_config().max_seq_len) * 32;
    size_t wrapped = HEADER_BYTES + 4 * (((size_t)1 << 39) + 1 + n + positions);
    int32_t header[HEADER_INTS] = {DEBUG_STATE_MAGIC, DEBUG_STATE_VERSION, b, config.max_seq_len, 0};
    unit_write(path, header, sizeof(header));
    config.vocab_size = v;        // the table sees the padded vocabulary only
    unit_truncate(path, wrapped); // sparse
    CHECK_FATAL("state.bin|another model", debug_state_read(path, config));
}

int main(void) {
    test_sizes_that_wrap_around();
    test_reading();
    test_without_steps();
    test_damage();
    test_checksums();
    return unit_end();
}
