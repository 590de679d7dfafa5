/*
The CPU decoder, timed: a model with initial weights continues B prompts, greedily. Compiled and run by cpu_decode.sh.

    cpu_decode bandwidth                  prints the GB/s at which all threads read memory, round by round
    cpu_decode d12 B prompt new rounds    prints, for each round, the milliseconds to the first token, the rate of the others,
                                          and the GB/s at which they read weights and cache, each once for a step
    cpu_decode llama2 model.bin tokenizer.bin   writes files of llama2.c's formats: a model of d12's sizes, random weights
*/
#include "generate_gpt2.c"

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// ----------------------------------------------------------------------------
// The bandwidth of reading: each thread adds up pieces of an array that no cache holds, four streams at a time

enum { BANDWIDTH_PIECE = 1 << 16, BANDWIDTH_STREAMS = 4 };

static float read_piece(const float* x) {
    vec sum[BANDWIDTH_STREAMS] = {{0}};
    const size_t stream = BANDWIDTH_PIECE / BANDWIDTH_STREAMS;
    for (size_t i = 0; i < stream; i += LANES) {
        for (size_t s = 0; s < BANDWIDTH_STREAMS; s++) { sum[s] += vec_load(x + s * stream + i); }
    }
    return vec_sum(sum[0] + sum[1] + sum[2] + sum[3]);
}

static void measure_bandwidth(void) {
    const size_t n = (size_t)1 << 28;
    float *x = (float*)tensor_alloc(n * sizeof(float), "the array to read", "free 1 GiB"), total = 0.0f;
    check(status_now());
#pragma omp parallel for
    for (size_t i = 0; i < n; i++) { x[i] = 1.0f; }
    for (int round = 0; round < 10; round++) {
        double begin = seconds_now();
#pragma omp parallel for schedule(dynamic) reduction(+ : total)
        for (size_t i = 0; i < n; i += BANDWIDTH_PIECE) { total += read_piece(x + i); }
        printf("gb_per_s %.2f\n", (double)(n * sizeof(float)) / (seconds_now() - begin) * 1e-9);
    }
    if (!(total > 0.0f)) { fatal("the array does not hold what was written"); } // and so it must be read
}

// ----------------------------------------------------------------------------
// Decoding

static GPT2* new_model(const char* descriptor) {
    GPT2Config config = gpt2_config_from_descriptor(descriptor, 50257);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    float* params = (float*)malloc_check(gpt2_parameters(table, config) * sizeof(float));
    GPT2* model;
    gpt2_init_parameters(params, config, 42);
    check(gpt2_create(&model, config, gpt2_default_settings()));
    check(gpt2_set_parameters(model, params));
    free(params);
    return model;
}

// What a step reads: every weight but the position embedding and wte's padding, and the keys and values of B sequences of so
// many tokens.
static double step_bytes(GPT2Config c, int B, double tokens) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t weights = gpt2_parameters(table, c) - table[PARAMETER_wpe].count;
    weights -= (size_t)(c.padded_vocab_size - c.vocab_size) * (size_t)c.channels;
    return 4.0 * ((double)weights + 2.0 * c.num_layers * c.channels * B * tokens);
}

// A step computes the logits of the next token, which the next call samples: the first token is there before the first step.
static void decode(GPT2* model, int B, int prompt, int new_tokens) {
    GPT2Config config = gpt2_info(model)->config;
    DecoderPrompt* prompts = (DecoderPrompt*)calloc_check((size_t)B, sizeof(DecoderPrompt));
    int *tokens = (int*)malloc_check((size_t)prompt * sizeof(int)), *next = (int*)malloc_check((size_t)B * sizeof(int));
    double times[2] = {0.0, 0.0}, token_sum = 0.0, steps = new_tokens - 1;
    GPT2Decoder* d;
    check(gpt2_decoder_create(&d, model, B, prompt + new_tokens));
    for (int i = 0; i < prompt; i++) { tokens[i] = (int)((unsigned)i * 2654435761u % 50257u); }
    for (int b = 0; b < B; b++) {
        DecoderPrompt p = {b, tokens, prompt, sampler_greedy(), 0};
        prompts[b] = p;
    }
    double begin = seconds_now();
    check(gpt2_decoder_prefill(d, prompts, B));
    times[0] = seconds_now() - begin;
    for (int i = 0; i < new_tokens; i++) {
        begin = seconds_now();
        check(gpt2_decoder_next(d, next));
        times[1] += i < new_tokens - 1 ? seconds_now() - begin : 0.0;
        for (int b = 0; b < B; b++) { token_sum += next[b]; }
    }
    printf("first_ms %.2f tokens_per_s %.2f token_sum %.0f gb_per_s %.2f\n", 1e3 * times[0], steps * B / times[1],
           token_sum, step_bytes(config, B, prompt + 0.5 * new_tokens) * steps / times[1] * 1e-9);
    gpt2_decoder_free(d);
    free(prompts), free(tokens), free(next);
}

// ----------------------------------------------------------------------------
// llama2.c's files: as many weights as d12 has, since its MLP has three matrices of 2048 where GPT-2's has two of 3072

enum { LLAMA_C = 768, LLAMA_HIDDEN = 2048, LLAMA_L = 12, LLAMA_NH = 12, LLAMA_V = 50257, LLAMA_T = 1024 };

static void write_llama2(const char* model_path, const char* tokenizer_path) {
    const int header[7] = {LLAMA_C, LLAMA_HIDDEN, LLAMA_L, LLAMA_NH, LLAMA_NH, LLAMA_V, LLAMA_T};
    const size_t C = LLAMA_C, layer = 2 * C + 4 * C * C + 3 * C * LLAMA_HIDDEN, wte = LLAMA_V * C;
    const size_t count = wte + LLAMA_L * layer + C + LLAMA_T * (C / LLAMA_NH);
    const int word[2] = {0, 1}, longest = 1; // a score of 0.0, a length
    float* weights = (float*)malloc_check(count * sizeof(float));
    mt19937_state rng;
    manual_seed(&rng, 42);
    normal_(weights, count, 0.0f, 0.02f, &rng);
    memset(weights + C, 0, C * sizeof(float)); // token 1 ends a sequence: its logit is 0, never the largest
    FILE* file = fopen_check(model_path, "wb");
    fwrite_check(header, sizeof(header), 1, file, model_path);
    fwrite_check(weights, sizeof(float), count, file, model_path);
    fclose(file);
    file = fopen_check(tokenizer_path, "wb");
    fwrite_check(&longest, sizeof(longest), 1, file, tokenizer_path);
    for (int i = 0; i < LLAMA_V; i++) {
        fwrite_check(word, sizeof(word), 1, file, tokenizer_path);
        fwrite_check("x", 1, 1, file, tokenizer_path);
    }
    fclose(file);
    free(weights);
}

int main(int argc, char** argv) {
    if (argc == 2 && strcmp(argv[1], "bandwidth") == 0) {
        measure_bandwidth();
    } else if (argc == 4 && strcmp(argv[1], "llama2") == 0) {
        write_llama2(argv[2], argv[3]);
    } else if (argc == 6) {
        GPT2* model = new_model(argv[1]);
        int B = atoi(argv[2]), prompt = atoi(argv[3]), new_tokens = atoi(argv[4]);
        for (int round = 0; round < atoi(argv[5]); round++) { decode(model, B, prompt, new_tokens); }
        gpt2_free(model);
    } else {
        fatal("usage: %s bandwidth | llama2 model.bin tokenizer.bin | model B prompt new rounds", argv[0]);
    }
    return 0;
}
