/*
Evaluation between two steps: the validation loss, HellaSwag, a sample. Several processes share the batches of an evaluation,
batch i being process i % size's, and combine the results in the order of the batches: they are those of one process.
*/
#ifndef LLMC_RUN_EVALUATE_H
#define LLMC_RUN_EVALUATE_H

#include "state.h"
#include "llmc/base/terminal.h"
#include "llmc/base/signals.h"
#include "llmc/model/sampler.h"

// Ends the run on a validation loss that is not finite or, with --non-finite skip, warns once. `found`: the place of the first
// number that is not finite, in the processes that have one.
static inline void trainer_validation_not_finite_(Trainer* t, int step, float loss, char* found, size_t size) {
    int rank = train_step_lowest(&t->step, found, size);
    const char* first = rank >= 0 ? found : "forward: the mean of losses that are all finite";
    if (strcmp(t->options.non_finite, "stop") == 0) {
        int good = strstr(first, "weights: ") == NULL;
        trainer_fail_(t, step, good, EXIT_NOT_FINITE,
                      "after step %d/%d: the loss of validation is %g; first not finite: %s", step, t->num_steps,
                      (double)loss, first);
        return;
    }
    if (!t->warned_of_validation && comm_rank(t->comm) == 0) {
        print_warning("after step %d/%d: the loss of validation is %g; first not finite: %s; the run continues "
                      "(--non-finite skip)",
                      step, t->num_steps, (double)loss, first);
    }
    t->warned_of_validation = 1;
}

// The mean of all losses (batches) of a validation, added in the order of the batches: batch i is process i % size's.
static inline float trainer_mean_loss_(const Trainer* t, const float* own) {
    int n = comm_size(t->comm), each = CEIL_DIV(t->val_batches, n);
    double sum = 0.0;
    float* all = (float*)calloc_check((size_t)n * (size_t)each, sizeof(float));
    memcpy(all + (size_t)comm_rank(t->comm) * (size_t)each, own, (size_t)each * sizeof(float));
    check(comm_gather(t->comm, all, (size_t)each * sizeof(float)));
    for (int i = 0; i < t->val_batches && isfinite(sum); i++) {
        sum += (double)all[(size_t)(i % n) * (size_t)each + (size_t)(i / n)];
    }
    free(all);
    return isnan(sum) ? (float)NAN : (float)(sum / t->val_batches);
}

// Fills this process's losses, one for each of its batches, up to a signal or one that is not finite, of which `found` becomes
// the place.
static inline Status trainer_val_losses_(Trainer* t, float* losses, char* found, size_t size) {
    const Options* o = &t->options;
    const int *inputs, *targets;
    int n = comm_size(t->comm);
    TRY(dataloader_reset(&t->val));
    for (int i = comm_rank(t->comm); i < t->val_batches && !signals_stop(); i += n) {
        float* loss = &losses[i / n];
        TRY(dataloader_next(&t->val, &inputs, &targets));
        check(gpt2_validate(t->model, loss, inputs, targets, o->batch, o->time));
        if (!isfinite(*loss)) {
            check(gpt2_find_non_finite(t->model, found, size));
            break;
        }
        progress_update(stdout, "validation", (size_t)i + 1, (size_t)t->val_batches);
    }
    return STATUS_OK;
}

// Writes a line of main.jsonl with one number.
static inline void trainer_log_number_(Trainer* t, int step, const char* name, double value) {
    if (!step_log_begin(&t->log, step)) { return; }
    step_log_number(&t->log, name, value);
    step_log_end(&t->log);
}

static inline void trainer_validate(Trainer* t, int step) {
    char found[STEP_TEXT] = "";
    float* losses = (float*)calloc_check((size_t)t->val_batches, sizeof(float));
    gpt2_range_begin("validate");
    Status status = agree(&t->agreement, trainer_val_losses_(t, losses, found, sizeof(found)));
    progress_end();
    if (status != STATUS_OK) {
        trainer_fail_(t, step, 1, EXIT_FAILURE, "the validation after step %d/%d: its batches cannot be read: %s", step,
                      t->num_steps, status_message());
    } else if (!agreement_stop(&t->agreement)) { // interrupted, it has no result: a resumed run repeats it
        float loss = trainer_mean_loss_(t, losses);
        printf("val loss %f\n", loss);
        logger_val(&t->logger, step, loss);
        trainer_log_number_(t, step, "validation", (double)loss);
        if (!isfinite(loss)) { trainer_validation_not_finite_(t, step, loss, found, sizeof(found)); }
    }
    gpt2_range_end();
    free(losses);
}

// The number of this process's examples that the model answers correctly; batch i belongs to process i % size.
static inline int trainer_correct_answers_(Trainer* t) {
    const Options* o = &t->options;
    EvalLoader* e = &t->hellaswag;
    int correct = 0, n = comm_size(t->comm);
    for (int i = comm_rank(t->comm); i < e->num_batches && !signals_stop(); i += n) {
        evalloader_fill(e, i);
        float loss; // of the whole batch; the score needs each token's
        check(gpt2_validate(t->model, &loss, e->inputs, e->targets, o->batch, o->time));
        correct += evalloader_score(e, gpt2_info(t->model)->losses);
        progress_update(stdout, "HellaSwag", (size_t)i + 1, (size_t)e->num_batches);
    }
    return correct;
}

// HellaSwag (Zellers et al. 2019): the model's answer is the ending, of four, with the lowest mean loss per token.
static inline void trainer_hellaswag(Trainer* t, int step) {
    gpt2_range_begin("HellaSwag");
    int correct = trainer_correct_answers_(t);
    progress_end();
    check(agree(&t->agreement, STATUS_OK));
    if (!agreement_stop(&t->agreement)) {
        check(comm_sum(t->comm, &correct));
        float accuracy = (float)correct / (float)t->hellaswag.num_examples;
        printf("HellaSwag: %d/%d = %f\n", correct, t->hellaswag.num_examples, accuracy);
        logger_eval(&t->logger, step, accuracy);
        trainer_log_number_(t, step, "hellaswag", (double)accuracy);
    }
    gpt2_range_end();
}

static inline void trainer_evaluate(Trainer* t, int step) {
    if (!trainer_due(t, step, t->options.val_every) || agreement_stop(&t->agreement)) { return; }
    trainer_keep_line(t);
    if (t->val_batches > 0) { trainer_validate(t, step); }
    int goes_on = step > 0 && !t->ended && !agreement_stop(&t->agreement);
    if (t->options.hellaswag && goes_on) { trainer_hellaswag(t, step); }
}

// Prints text that the model generates from an end-of-text token, in rank 0 only.
static inline void trainer_sample(Trainer* t, int step) {
    const Options* o = &t->options;
    if (comm_rank(t->comm) != 0 || o->sample_every == 0 || step == 0 || !trainer_due(t, step, o->sample_every)) {
        return;
    }
    if (t->ended || agreement_stop(&t->agreement)) { return; }
    int V = gpt2_info(t->model)->config.vocab_size, T = o->time;
    int length = o->sample_tokens < T ? o->sample_tokens : T;
    int* tokens = (int*)malloc_check((size_t)T * sizeof(int));
    float* logits = (float*)malloc_check(2 * (size_t)V * sizeof(float)); // the second half is scratch
    SamplerSettings sampler = {(float)o->temperature, o->top_k, 1.0f, 1.0f, 0};
    unsigned long long rng = (unsigned long long)o->sample_seed;
    char* text = NULL;
    size_t bytes = 0, shown = 0;
    FILE* copy = open_memstream(&text, &bytes);
    if (copy == NULL) { fatal("out of memory: cannot keep a sample"); }
    for (int i = 0; i < T; i++) { tokens[i] = t->tokenizer.eot_token; }
    gpt2_range_begin("sample");
    trainer_keep_line(t);
    printf("generating:\n---\n");
    for (int n = 1; n < length && !signals_stop(); n++) {
        int window = 64; // forward on the next power of two of tokens: few shapes to plan GEMMs for
        while (window < n) { window *= 2; }
        check(gpt2_evaluate(t->model, tokens, 1, window < T ? window : T));
        check(gpt2_get_logits(t->model, logits, n - 1));
        float coin = random_f32(&rng);
        tokens[n] = sample_token(logits, V, &sampler, NULL, 0, coin, logits + V);
        tokenizer_print(copy, &t->tokenizer, tokens[n]);
        fflush(copy);
        fwrite(text + shown, 1, bytes - shown, stdout);
        shown = bytes;
        fflush(stdout);
    }
    printf("\n---\n");
    fclose(copy);
    if (step_log_begin(&t->log, step)) {
        step_log_text(&t->log, "event", "sample");
        step_log_text(&t->log, "text", text);
        step_log_end(&t->log);
    }
    free(text);
    gpt2_range_end();
    free(logits);
    free(tokens);
}

#endif
