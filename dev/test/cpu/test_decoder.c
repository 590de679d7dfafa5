/*
The CPU decoder (llmc/model/gpt2_decoder.h): its logits are those of gpt2_forward within rounding, at every position, and its
greedy tokens the same; a sequence's tokens, and the bits of its logits, do not depend on what is decoded beside it, on how
its tokens came, or on the number of threads; wrong calls are refused and change nothing.
*/
#include "generate_gpt2.c"

#include "dev/test/fixtures/unit.h"

// ----------------------------------------------------------------------------
// Random models and tokens

static unsigned long long random_state = 1;

static int random_int(int from, int to) { return from + (int)(random_u32(&random_state) % (unsigned)(to - from + 1)); }

static void random_tokens(int* tokens, int count, int V) {
    for (int i = 0; i < count; i++) { tokens[i] = random_int(0, V - 1); }
}

// Weights with which every part matters: matrices keep the variance of what they multiply, so that scores spread by about 1
// and attention is no average; biases and gains are no 0 and 1.
static void random_parameters(float* params, GPT2Config config) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    gpt2_parameters(table, config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; params += table[i++].count) {
        float spread = table[i].cols > 1 ? sqrtf(3.0f / (float)table[i].cols) : 0.3f;
        spread = i == PARAMETER_wte || i == PARAMETER_wpe ? 1.0f : spread;
        for (size_t k = 0; k < table[i].count; k++) {
            float x = spread * (2.0f * random_f32(&random_state) - 1.0f);
            params[k] = table[i].init == INIT_ONE ? 1.0f + x : x;
        }
    }
}

// The logits (V) after a sequence's last token
static void logits_of(const GPT2Decoder* d, int slot, float* logits) {
    size_t V = (size_t)d->config.vocab_size;
    memcpy(logits, d->logits + (size_t)slot * V, V * sizeof(float));
}

// A model with room for gpt2_forward of one sequence of T tokens
static GPT2* random_model(const char* descriptor, int V, int T) {
    GPT2Config config = gpt2_config_from_descriptor(descriptor, V);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    float* params = (float*)malloc_check(gpt2_parameters(table, config) * sizeof(float));
    GPT2* model;
    random_parameters(params, config);
    check(gpt2_create(&model, config, gpt2_default_settings()));
    check(gpt2_allocate(model, 1, T, 0));
    check(gpt2_set_parameters(model, params));
    free(params);
    return model;
}

static GPT2Decoder* new_decoder(GPT2* model, int B, int T) {
    GPT2Decoder* d;
    check(gpt2_decoder_create(&d, model, B, T));
    return d;
}

static void prefill(GPT2Decoder* d, int slot, const int* tokens, int count) {
    DecoderPrompt prompt = {slot, tokens, count, sampler_greedy(), 0};
    check(gpt2_decoder_prefill(d, &prompt, 1));
}

// ----------------------------------------------------------------------------
// Against gpt2_forward

// reference_test.h derives how far fp32 logits may be from exact ones, relative in norm: 3 u/sqrt(6) sqrt(4C) for a tensor
// whose sums are rounded, in quadrature over 16 tensors a layer and 4 more. Here both sides are rounded: sqrt(2) times that.
static double logit_tolerance(GPT2Config c) {
    return sqrt(2.0) * 3.0 * ldexp(1, -24) / sqrt(6.0) * sqrt(4.0 * c.channels) * sqrt(16.0 * c.num_layers + 4.0);
}

// The error of the decoder's logits against row t of the last gpt2_forward, relative in norm
static double logit_error(GPT2* model, GPT2Decoder* d, int slot, int t) {
    size_t V = (size_t)gpt2_info(model)->config.vocab_size;
    float *x = (float*)malloc_check(2 * V * sizeof(float)), *expected = x + V;
    double difference = 0.0, norm = 0.0;
    logits_of(d, slot, x);
    check(gpt2_get_logits(model, expected, t));
    for (size_t i = 0; i < V; i++) {
        difference += ((double)x[i] - (double)expected[i]) * ((double)x[i] - (double)expected[i]);
        norm += (double)expected[i] * (double)expected[i];
    }
    free(x);
    return sqrt(difference / norm);
}

// Logits after the first `prompt` tokens of a sequence, and after every `step` more
static void logits_are_those_of_forward(GPT2* model, int T, int prompt, int step) {
    const GPT2Config config = gpt2_info(model)->config;
    int* tokens = (int*)malloc_check((size_t)T * sizeof(int));
    double worst = 0.0;
    random_tokens(tokens, T, config.vocab_size);
    check(gpt2_forward(model, tokens, 1, T));
    GPT2Decoder* d = new_decoder(model, 2, T);
    for (int length = prompt; length <= T; length += step) {
        prefill(d, 1, tokens, length);
        double error = logit_error(model, d, 1, length - 1);
        worst = worse(worst, error);
        CHECK(d->sequences[1].length == length && d->sequences[0].length == 0);
    }
    if (!CHECK(worst <= logit_tolerance(config))) {
        printf("    C=%d NH=%d prompt %d, steps of %d: error %.3g, tolerance %.3g\n", config.channels, config.num_heads,
               prompt, step, worst, logit_tolerance(config));
    }
    gpt2_decoder_free(d);
    free(tokens);
}

// Prompts of several lengths, decoded together until they are full: each token is the likeliest of gpt2_forward's.
static void greedy_tokens_are_those_of_forward(GPT2* model, int B, int T) {
    const int V = gpt2_info(model)->config.vocab_size;
    int* tokens = (int*)malloc_check((size_t)B * (size_t)(T + 1) * sizeof(int)); // (B,T+1)
    int* next = (int*)malloc_check((size_t)B * sizeof(int));
    float* logits = (float*)malloc_check((size_t)V * sizeof(float));
    DecoderPrompt* prompts = (DecoderPrompt*)calloc_check((size_t)B, sizeof(DecoderPrompt));
    GPT2Decoder* d = new_decoder(model, B, T);
    int right = 0, wanted = 0, active = B;
    random_tokens(tokens, B * (T + 1), V);
    for (int b = 0; b < B; b++) {
        int count = B == 1 ? 1 : 1 + (T - 1) * b / (B - 1); // 1 to T
        DecoderPrompt prompt = {b, tokens + b * (T + 1), count, sampler_greedy(), 0};
        prompts[b] = prompt;
    }
    check(gpt2_decoder_prefill(d, prompts, B));
    for (int round = 0; active > 0 && round <= T; round++) {
        check(gpt2_decoder_next(d, next));
        active = 0;
        for (int b = 0; b < B; b++) {
            int at = prompts[b].count + round;
            if (at <= T) { tokens[b * (T + 1) + at] = next[b]; }
            CHECK(at <= T ? next[b] >= 0 && next[b] < V : next[b] == -1); // T tokens, and one more, which is not kept
            CHECK(d->sequences[b].length == (at < T ? at + 1 : T));
            active += at < T;
        }
    }
    for (int b = 0; b < B; b++) {
        check(gpt2_forward(model, tokens + b * (T + 1), 1, T));
        for (int t = prompts[b].count - 1; t < T; t++) {
            check(gpt2_get_logits(model, logits, t));
            wanted++;
            right += sample_argmax(logits, V) == tokens[b * (T + 1) + t + 1];
        }
    }
    CHECK(right == wanted && wanted >= T);
    gpt2_decoder_free(d);
    free(tokens), free(next), free(logits), free(prompts);
}

static void test_against_forward(void) {
    static const struct {
        const char* descriptor; // head sizes 64, 32, 96, 128
        int V, T;
    } shapes[] = {{"gpt2:l2c128h2t150", 307, 150},
                  {"gpt2:l3c96h3t70", 50, 70},
                  {"gpt2:l1c192h2t64", 1, 20},
                  {"gpt2:l2c128h1t129", 129, 129}};
    for (int i = 0; i < 4; i++) {
        GPT2* model = random_model(shapes[i].descriptor, shapes[i].V, shapes[i].T);
        int T = shapes[i].T;
        logits_are_those_of_forward(model, T, 1, 1);
        logits_are_those_of_forward(model, T, T, 1);
        logits_are_those_of_forward(model, T, T / 2, 1);
        logits_are_those_of_forward(model, T, 3, 17);
        greedy_tokens_are_those_of_forward(model, 1, T);
        greedy_tokens_are_those_of_forward(model, 5, T);
        gpt2_free(model);
    }
}

// ----------------------------------------------------------------------------
// Nothing depends on what is beside

// What a slot has been through: its prompt, then tokens that were sampled
typedef struct {
    int prompt, count; // tokens
    int tokens[64];
    SamplerSettings sampler;
    uint64_t sample;
    int active;
} Script;

static SamplerSettings random_sampler(void) {
    SamplerSettings s = {random_int(0, 3) ? 1.5f : 0.0f, random_int(0, 1) * 20, random_int(0, 1) ? 0.9f : 1.0f,
                         random_int(0, 1) ? 1.3f : 1.0f, (uint64_t)random_int(0, 5)};
    return s;
}

static void begin_some(GPT2Decoder* d, Script* scripts, int B, int T, int V) {
    DecoderPrompt prompts[8];
    int n = 0;
    for (int b = B - 1; b >= 0; b--) {
        if (random_int(0, 2) > 0) { continue; }
        Script* s = &scripts[b];
        s->prompt = s->count = random_int(1, random_int(1, T));
        s->sampler = random_sampler(), s->sample = (uint64_t)random_int(0, 100), s->active = 1;
        random_tokens(s->tokens, s->count, V);
        DecoderPrompt p = {b, s->tokens, s->count, s->sampler, s->sample};
        prompts[n++] = p;
    }
    if (n > 0) { check(gpt2_decoder_prefill(d, prompts, n)); }
}

static void next_of_all(GPT2Decoder* d, Script* scripts, int B, int T, int V) {
    int next[8];
    check(gpt2_decoder_next(d, next));
    for (int b = 0; b < B; b++) {
        Script* s = &scripts[b];
        CHECK(s->active ? next[b] >= 0 && next[b] < V : next[b] == -1);
        if (!s->active) { continue; }
        if (s->count < T) {
            s->tokens[s->count++] = next[b];
        } else {
            s->active = 0;
        }
    }
}

static void stop_one(GPT2Decoder* d, Script* scripts, int B) {
    int b = random_int(0, B - 1);
    gpt2_decoder_stop(d, b);
    scripts[b].active = 0;
}

// The slot's script alone, token by token: the same tokens, and the same bits of its logits. And all its tokens as a prompt.
static void check_alone(GPT2* model, GPT2Decoder* d, const Script* s, int slot, int T) {
    size_t V = (size_t)gpt2_info(model)->config.vocab_size;
    float *logits = (float*)malloc_check(2 * V * sizeof(float)), *alone = logits + V;
    GPT2Decoder* one = new_decoder(model, 1, T);
    DecoderPrompt prompt = {0, s->tokens, s->prompt, s->sampler, s->sample};
    int right = 1, next;
    check(gpt2_decoder_prefill(one, &prompt, 1));
    for (int i = s->prompt; i < s->count; i++) {
        check(gpt2_decoder_next(one, &next));
        right = right && next == s->tokens[i];
    }
    CHECK(right);
    logits_of(d, slot, logits);
    logits_of(one, 0, alone);
    CHECK(memcmp(logits, alone, V * sizeof(float)) == 0);
    prefill(one, 0, s->tokens, s->count);
    logits_of(one, 0, alone);
    CHECK(memcmp(logits, alone, V * sizeof(float)) == 0);
    CHECK(d->sequences[slot].length == s->count);
    gpt2_decoder_free(one);
    free(logits);
}

static void test_independence(const char* descriptor, int rounds) {
    enum { T = 40, V = 61, MOST = 6 };
    GPT2* model = random_model(descriptor, V, 1);
    for (int round = 0; round < rounds; round++) {
        Script scripts[MOST];
        int B = random_int(1, MOST);
        GPT2Decoder* d = new_decoder(model, B, T);
        memset(scripts, 0, sizeof(scripts));
        for (int i = 0; i < 40; i++) {
            int what = random_int(0, 9);
            if (what == 0 || i == 0) { begin_some(d, scripts, B, T, V); }
            if (what == 1) { stop_one(d, scripts, B); }
            if (what >= 2) { next_of_all(d, scripts, B, T, V); }
        }
        for (int b = 0; b < B; b++) {
            if (scripts[b].count > 0) { check_alone(model, d, &scripts[b], b, T); }
        }
        gpt2_decoder_free(d);
    }
    gpt2_free(model);
}

// More tokens than a pass has rows, with three threads: the same bits as each prompt alone, with one
static void test_long_prompts(void) {
    enum { T = DECODER_ROWS + 37, V = 40 };
    GPT2* model = random_model("gpt2:l1c32h1t400", V, 1);
    int tokens[3 * T];
    float logits[V], other[V];
    random_tokens(tokens, 3 * T, V);
    DecoderPrompt prompts[3];
    for (int b = 0; b < 3; b++) {
        DecoderPrompt p = {b, tokens + b * T, T - b, sampler_greedy(), 0};
        prompts[b] = p;
    }
    GPT2Decoder *together = new_decoder(model, 3, T), *alone = new_decoder(model, 1, T);
    use_threads(3);
    check(gpt2_decoder_prefill(together, prompts, 3));
    use_threads(1);
    for (int b = 0; b < 3; b++) {
        prefill(alone, 0, prompts[b].tokens, prompts[b].count);
        logits_of(together, b, logits);
        logits_of(alone, 0, other);
        CHECK(memcmp(logits, other, sizeof(logits)) == 0);
    }
    gpt2_decoder_free(together), gpt2_decoder_free(alone);
    gpt2_free(model);
}

// ----------------------------------------------------------------------------
// Wrong calls

static int refused(Status status, const char* words) {
    int right = status == STATUS_ERROR && strstr(status_message(), words) != NULL;
    if (!right) { printf("    expected an error with '%s', not '%s'\n", words, status_message()); }
    return right;
}

static void test_errors(void) {
    enum { T = 8, V = 20 };
    GPT2* model = random_model("gpt2:l1c32h1t10", V, 1);
    GPT2Decoder* d = NULL;
    int tokens[T + 1] = {1, 2, 3, 4, 5, 6, 7, 8, 9}, bad[1] = {V}, next[2];
    float logits[V], before[V];
    CHECK(refused(gpt2_decoder_create(&d, model, 1, 11), "context of 10") && d == NULL);
    CHECK(refused(gpt2_decoder_create(&d, model, 0, 5), "0 x 5") && d == NULL);
    d = new_decoder(model, 2, T);
    DecoderPrompt good = {0, tokens, 3, sampler_greedy(), 0}, p = good;
    check(gpt2_decoder_next(d, next));
    CHECK(next[0] == -1 && next[1] == -1);
    check(gpt2_decoder_prefill(d, &good, 1));
    logits_of(d, 0, before);
    p.tokens = bad, p.count = 1, CHECK(refused(gpt2_decoder_prefill(d, &p, 1), "token 20"));
    CHECK(d->sequences[0].length == 3);
    logits_of(d, 0, logits);
    CHECK(memcmp(logits, before, sizeof(before)) == 0); // as it was
    gpt2_decoder_free(d), gpt2_decoder_free(NULL);
    gpt2_free(model);
}

// What is planned is what there is: as many bytes as a decoder takes; and where there are none, an error says so.
static void test_memory(void) {
    GPT2Plan plan;
    GPT2Config config = gpt2_config_from_descriptor("gpt2:l3c64h2t1000", 500);
    plan_clear(&plan);
    check(gpt2_decoder_plan(&plan, config, 7, 1000));
    CHECK(plan.rows[PLAN_KV_CACHE].bytes ==
          (size_t)3 * 7 * 2 * 1024 * 64 * sizeof(float)); // 1024: whole blocks of keys
    size_t rows = (size_t)DECODER_ROWS * 10 * 64 * sizeof(float), logits = (size_t)7 * 3 * 500 * sizeof(float);
    CHECK_NEAR((double)plan.rows[PLAN_DECODER].bytes, (double)(rows + logits + 7 * 1000 * sizeof(int)), 20e3);
    CHECK(plan_bytes(&plan, PLAN_HOST) == plan.rows[PLAN_KV_CACHE].bytes + plan.rows[PLAN_DECODER].bytes);
    CHECK(refused(gpt2_decoder_plan(&plan, config, 1, 1001), "context of 1000"));
    GPT2* model = random_model("gpt2:l300c32h1t32768", 10, 1); // 165 TB of keys and values, more than addresses
    GPT2Decoder* d;
    CHECK(refused(gpt2_decoder_create(&d, model, 65535, 32768), "KV cache") && d == NULL);
    gpt2_free(model);
}

int main(void) {
    use_threads(1); // quicker for small models; the claims hold for any number
    test_against_forward();
    test_independence("gpt2:l2c64h2t64", 12);
    test_independence("gpt2:l1c128h1t64", 6);
    test_long_prompts();
    test_errors();
    test_memory();
    return unit_end();
}
