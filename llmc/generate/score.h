/*
Scores of given texts: the loss of each token of a file (--perplexity), and the answers to questions (--hellaswag).
dev/reference/evaluate.py computes the same in PyTorch.

The windows of --perplexity: inputs w*S .. w*S+T-1 of the file's tokens, w = 0, 1, .. up to the end, for windows of T tokens and
a stride S. The target of an input is the token after it. A target is scored in the first window that has it, so that each token
but the file's first is scored once, in every window but the first with at least T-S tokens before it.
*/
#ifndef LLMC_GENERATE_SCORE_H
#define LLMC_GENERATE_SCORE_H

#include "model.h"
#include "llmc/base/json.h"
#include "llmc/files/dataloader.h"
#include "llmc/files/evalloader.h"
#include "llmc/text/stream.h"

typedef struct {
    const int* tokens; // (num_tokens) of the file
    size_t num_tokens;
    int T, stride;
    size_t windows;
} ScoreWindows;

// The windows that num_tokens tokens have, two at least.
static inline ScoreWindows score_windows(const int* tokens, size_t num_tokens, int T, int stride) {
    ScoreWindows w = {tokens, num_tokens, T, stride, 1};
    if ((size_t)T > num_tokens - 1) { w.T = (int)(num_tokens - 1); }
    if (w.stride > w.T) { w.stride = w.T; }
    size_t left = num_tokens - 1 - (size_t)w.T;
    w.windows += left / (size_t)w.stride + (left % (size_t)w.stride > 0);
    return w;
}

// Fills inputs and targets (T) with a window, and zeros after the end; returns how many there are. Those from *first on are
// scored here.
static inline int score_window_fill(const ScoreWindows* w, size_t window, int* inputs, int* targets, int* first) {
    size_t begin = window * (size_t)w->stride, left = w->num_tokens - 1 - begin;
    int count = left < (size_t)w->T ? (int)left : w->T;
    for (int t = 0; t < w->T; t++) {
        inputs[t] = t < count ? w->tokens[begin + (size_t)t] : 0;
        targets[t] = t < count ? w->tokens[begin + (size_t)t + 1] : 0;
    }
    *first = window == 0 ? 0 : w->T - w->stride;
    return count;
}

// The sum of the losses of all tokens but the first, in nats, in their order.
static inline double score_sum_(const GenerateModel* m, const ScoreWindows* w, int B) {
    size_t T = (size_t)w->T;
    int *inputs = (int*)malloc_check(2 * (size_t)B * T * sizeof(int)), *targets = inputs + (size_t)B * T;
    int *first = (int*)malloc_check(2 * (size_t)B * sizeof(int)), *count = first + B;
    double sum = 0.0;
    for (size_t done = 0; done < w->windows;) {
        int rows = 0;
        float mean;
        for (; rows < B && done < w->windows; rows++, done++) {
            size_t at = (size_t)rows * T;
            count[rows] = score_window_fill(w, done, inputs + at, targets + at, &first[rows]);
        }
        check(gpt2_validate(m->model, &mean, inputs, targets, rows, w->T));
        const float* losses = gpt2_info(m->model)->losses;
        for (int i = 0; i < rows; i++) {
            for (int t = first[i]; t < count[i]; t++) { sum += (double)losses[(size_t)i * T + (size_t)t]; }
        }
        if (!m->options->quiet) { progress_update(stderr, "perplexity", done, w->windows); }
    }
    progress_end();
    free(first);
    free(inputs);
    return sum;
}

// The tokens of a file: of a .bin as they are, of any other through the tokenizer. The caller frees list->ids.
static inline void score_read_(GenerateModel* m, TokenList* list, const char* path) {
    memset(list, 0, sizeof(*list));
    if (ends_with(path, ".bin")) {
        check(token_file_load(&list->ids, &list->count, path, m->config.vocab_size));
        int V = dataloader_vocab_size(path);
        if (V != 0 && V != m->config.vocab_size) {
            print_warning("%s has tokens from a vocabulary of %d, the model's has %d; did its tokenizer make them?",
                          path, V, m->config.vocab_size);
        }
    } else {
        TextBuffer text = {NULL, 0, 0};
        FILE* file = fopen_check(path, "rb");
        text_read(&text, file, path);
        fclose(file);
        check(tokenizer_encode_prompt(&m->tokenizer, (const char*)text.bytes, text.count, list));
        text_free(&text);
    }
    if (list->count < 2) {
        fatal("--perplexity %s: the file has %zu token%s; at least two are needed", path, list->count,
              list->count == 1 ? "" : "s");
    }
}

// T of the windows, and how many are scored at a time.
static inline ScoreWindows score_shape_(const GenerateModel* m, const TokenList* list, int* B) {
    const Options* o = m->options;
    int T = m->context;
    int stride = o->stride > 0 ? o->stride : (T + 1) / 2;
    if (stride > T) {
        fatal("--stride %d: windows have %d tokens, and no token may be left out; choose %d or less", stride, T, T);
    }
    ScoreWindows w = score_windows(list->ids, list->count, T, stride);
    if (!o->quiet && w.windows > 1 && m->remark[0] != '\0') { print_note("windows of %d tokens%s", T, m->remark); }
    int batch = (CLI_TRAINER == (int)FOR_GPU ? 8192 : 1024) / w.T; // tokens enough to fill the machine
    *B = generate_batch(m, w.windows, batch < 1 ? 1 : batch, w.T, 1);
    return w;
}

static inline void generate_perplexity(GenerateModel* m) {
    const char* path = m->options->perplexity;
    TokenList list;
    int B;
    size_t bytes = 0, n;
    score_read_(m, &list, path);
    ScoreWindows w = score_shape_(m, &list, &B);
    check(gpt2_allocate(m->model, B, w.T, 0));
    double begin = wall_seconds(), sum = score_sum_(m, &w, B), seconds = wall_seconds() - begin;
    for (size_t i = 1; i < list.count; i++) {
        tokenizer_decode(&m->tokenizer, list.ids[i], &n);
        bytes += n;
    }
    size_t scored = list.count - 1;
    double loss = sum / (double)scored, bits = bytes > 0 ? sum / log(2.0) / (double)bytes : 0.0;
    if (!isfinite(loss)) { fatal("--perplexity %s: the loss is %g; the model's weights are unusable", path, loss); }
    if (m->options->json) {
        printf("{\"file\": ");
        json_write_text(stdout, path, strlen(path));
        printf(", \"tokens\": %zu, \"loss\": %.9g, \"perplexity\": ", scored, loss);
        json_write_number(stdout, exp(loss)); // beyond a loss of 709 no double holds it
        if (bytes > 0) { printf(", \"bytes\": %zu, \"bits_per_byte\": %.9g", bytes, bits); }
        printf(", \"window\": %d, \"stride\": %d, \"seconds\": %.3f}\n", w.T, w.stride, seconds);
    } else {
        printf("%s: %zu tokens scored, windows of %d, stride %d\n", path, scored, w.T, w.stride);
        printf("loss %.6f nats per token, perplexity %.4f", loss, exp(loss));
        if (bytes > 0) { printf(", %.6f bits per byte", bits); }
        printf("\n");
    }
    if (!m->options->quiet) { fprintf(stderr, "%.1f s, %.0f tokens/s\n", seconds, (double)scored / seconds); }
    token_list_free(&list);
}

// ----------------------------------------------------------------------------
// HellaSwag

// Opens the questions, for as many rows of as many tokens as they need.
static inline void hellaswag_open_(GenerateModel* m, EvalLoader* e) {
    const char* path = m->options->hellaswag;
    evalloader_open(e, path, EVAL_ENDINGS, EVAL_EXAMPLE_MARK);
    size_t longest = evalloader_longest(e);
    int examples = e->num_examples;
    if (longest > (size_t)m->context) {
        fatal("--hellaswag %s: a row has %zu tokens, the context is %d%s", path, longest, m->context, m->remark);
    }
    if (e->largest_token >= m->config.vocab_size) {
        fatal("--hellaswag %s: the file holds token %d, which is not below the model's vocabulary of %d", path,
              e->largest_token, m->config.vocab_size);
    }
    evalloader_close(e);
    size_t all = size_mul(EVAL_ENDINGS, (size_t)examples);
    int B = generate_batch(m, all, CLI_TRAINER == (int)FOR_GPU ? 64 : 8, (int)longest, 1);
    evalloader_open(e, path, B < EVAL_ENDINGS ? (int)EVAL_ENDINGS : B, (int)longest);
}

// The model's answer is the ending, of four, with the lowest mean loss per token, as in the trainer.
static inline void generate_hellaswag(GenerateModel* m) {
    EvalLoader e;
    int correct = 0;
    float loss;
    hellaswag_open_(m, &e);
    check(gpt2_allocate(m->model, (int)e.B, (int)e.T, 0));
    double begin = wall_seconds();
    for (int i = 0; i < e.num_batches; i++) {
        evalloader_fill(&e, i);
        check(gpt2_validate(m->model, &loss, e.inputs, e.targets, (int)e.B, (int)e.T));
        correct += evalloader_score(&e, gpt2_info(m->model)->losses);
        if (!m->options->quiet) { progress_update(stderr, "HellaSwag", (size_t)i + 1, (size_t)e.num_batches); }
    }
    progress_end();
    double accuracy = (double)correct / (double)e.num_examples, seconds = wall_seconds() - begin;
    if (m->options->json) {
        printf("{\"file\": ");
        json_write_text(stdout, e.path, strlen(e.path));
        printf(", \"examples\": %d, \"correct\": %d, \"accuracy\": %.9g, \"seconds\": %.3f}\n", e.num_examples, correct,
               accuracy, seconds);
    } else {
        printf("HellaSwag: %d/%d = %f\n", correct, e.num_examples, accuracy);
    }
    evalloader_close(&e);
}

#endif
