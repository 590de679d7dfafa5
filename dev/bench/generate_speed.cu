// How fast the GPU decoder is, with random weights: generate_speed d12 BATCH [PROMPT NEW ROUNDS]. Greedy; every sequence has a
// prompt of its own of PROMPT tokens, and NEW tokens follow. One line of CSV: the best and the median round. Time to the first
// token is that of gpt2_decoder_prefill and of the first gpt2_decoder_next; tokens/s are of the whole, prompts included, as
// generate() is timed.
#include "generate_gpt2.cu"

#include <time.h>

#include <algorithm>
#include <vector>

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// One round: *first seconds to the first token, *whole to the last one
static void generate_round(GPT2* model, GPT2Decoder* d, int B, int prompt, int count, double* first, double* whole) {
    std::vector<int> tokens((size_t)B * prompt), next((size_t)B);
    std::vector<DecoderPrompt> prompts((size_t)B);
    unsigned long long state = 1;
    for (int& t : tokens) { t = (int)(random_u32(&state) % (unsigned)gpt2_info(model)->config.vocab_size); }
    for (int b = 0; b < B; b++) {
        prompts[b] = {b, &tokens[(size_t)b * prompt], prompt, sampler_greedy(), (uint64_t)b};
    }
    double start = seconds();
    check(gpt2_decoder_prefill(d, prompts.data(), B));
    check(gpt2_decoder_next(d, next.data()));
    *first = seconds() - start;
    for (int i = 1; i < count; i++) { check(gpt2_decoder_next(d, next.data())); }
    *whole = seconds() - start;
    check(gpt2_synchronize(model)); // the logits after the last token, which nobody waits for
}

int main(int argc, char** argv) {
    if (argc < 3) { fatal("usage: generate_speed d12 BATCH [PROMPT NEW ROUNDS]"); }
    int B = atoi(argv[2]), prompt = argc > 3 ? atoi(argv[3]) : 64, count = argc > 4 ? atoi(argv[4]) : 192;
    int rounds = argc > 5 ? atoi(argv[5]) : 5;
    if (B < 1 || prompt < 1 || count < 1 || rounds < 1) { fatal("generate_speed: numbers must be 1 or more"); }
    GPT2Config config = gpt2_config_from_descriptor(argv[1], 50257);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    GPT2* model;
    GPT2Decoder* d;
    std::vector<float> params(gpt2_parameters(table, config)), first((size_t)rounds), whole((size_t)rounds);
    unsigned long long state = 1;
    for (float& w : params) { w = 0.04f * (random_f32(&state) - 0.5f); }
    check(gpt2_create(&model, config, gpt2_default_settings()));
    check(gpt2_set_parameters(model, params.data()));
    check(gpt2_decoder_create(&d, model, B, prompt + count));
    for (int i = -1; i < rounds; i++) { // the first one makes the graphs
        double f, w;
        generate_round(model, d, B, prompt, count, &f, &w);
        if (i >= 0) { first[i] = (float)f, whole[i] = (float)w; }
    }
    std::sort(first.begin(), first.end());
    std::sort(whole.begin(), whole.end());
    double tokens = (double)B * count, steps = whole[rounds / 2] - first[rounds / 2];
    printf("flashgpt,%s,%d,%d,%d,%.1f,%.1f,%.3f,%.2f\n", argv[1], B, prompt, count, tokens / whole[rounds / 2],
           tokens / whole[0], 1e3 * first[rounds / 2], count > 1 ? 1e6 * steps / (count - 1) : 0.0);
    gpt2_decoder_free(d);
    gpt2_free(model);
    return 0;
}
