/*
One step of a run: trainer_gradients, trainer_update with its checks, and trainer_report, the line that is printed. Results
that are not finite, or that differ when they are recomputed, end the run before the update. With an asynchronous model the next
step is enqueued before the host has read the result of this one, so that the device does not wait for the host.
*/
#ifndef LLMC_RUN_STEP_H
#define LLMC_RUN_STEP_H

#include "state.h"
#include "llmc/base/terminal.h"
#include "llmc/model/gpu_peaks.h"

// Ends the run before a step whose batches cannot be read; the reason is status_message(). `known`: what else is of the step.
static inline void trainer_no_data_(Trainer* t, int step, int exit_code, const char* known) {
    t->outliers = t->outliers_before;
    train_step_rewind(&t->step);
    trainer_fail_(t, step, 1, exit_code, "step %d/%d%s: its batches cannot be read: %s", step + 1, t->num_steps, known,
                  status_message());
}

// Handles a loss or gradient norm that is not finite: the step counts, but does not update. Ends the run or, with --non-finite
// skip, continues, at most --max-skips times in a row. Weights that are not finite end it in any case.
static inline void trainer_not_finite_(Trainer* t, int step) {
    const Options* o = &t->options;
    StepResult r = t->result;
    NonFinite f;
    char what[128];
    int loss_is = !isfinite(r.loss), skip = strcmp(o->non_finite, "skip") == 0;
    snprintf(what, sizeof(what), "step %d/%d: the %s is %g", step + 1, t->num_steps, loss_is ? "loss" : "gradient norm",
             (double)(loss_is ? r.loss : r.norm));
    if (train_step_find_non_finite(&t->step, &f) != STATUS_OK) {
        trainer_no_data_(t, step, EXIT_NOT_FINITE, strchr(what, ':'));
        return;
    }
    if (!f.again) {
        trainer_fail_(t, step, 0, EXIT_CORRUPTION,
                      "%s, but finite when computed again from the same batches: silent data corruption; test this "
                      "machine before it trains on",
                      what);
        return;
    }
    if (f.weights) {
        trainer_fail_(t, step, 0, EXIT_NOT_FINITE, "%s; first not finite: %s", what, f.text);
        return;
    }
    if (skip && ++t->skips <= o->max_skips) {
        terminal_line_clear();
        printf("skipping the update: %s; first not finite: %s\n", what, f.text);
        return;
    }
    train_step_rewind(&t->step);
    t->outliers = t->outliers_before;
    char why[80] = "the step changed no weight, and --non-finite skip would continue";
    if (skip) { snprintf(why, sizeof(why), "after --max-skips %d skipped steps", o->max_skips); }
    trainer_fail_(t, step, 1, EXIT_NOT_FINITE, "%s; first not finite: %s; %s", what, f.text, why);
}

static inline int trainer_verifies_(const Trainer* t, int step) {
    return t->options.verify_every > 0 && (step + 1) % t->options.verify_every == 0;
}

// Recomputes the step every --verify-every steps. If the results differ, ends the run before the update.
static inline void trainer_verify_(Trainer* t, int step) {
    char text[STEP_TEXT];
    if (!trainer_verifies_(t, step)) { return; }
    if (train_step_verify(&t->step, t->result, text, sizeof(text)) != STATUS_OK) {
        trainer_no_data_(t, step, EXIT_FAILURE, "");
        return;
    }
    if (text[0] == '\0') { return; }
    trainer_fail_(t, step, 0, EXIT_CORRUPTION,
                  "step %d/%d: computed twice from the same batches it differs: %s: silent "
                  "data corruption; test this machine before it trains on",
                  step + 1, t->num_steps, text);
}

// Returns 1 and prints a note if loss or norm are outliers that -sl or -sg skip.
static inline int trainer_skips_(const Trainer* t) {
    const Options* o = &t->options;
    int skip_loss = o->skip_loss_z > 0.0 && t->loss_z > o->skip_loss_z;
    if (!skip_loss && !(o->skip_grad_z > 0.0 && t->norm_z > o->skip_grad_z)) { return 0; }
    terminal_line_clear();
    printf("skipping the update: the %s has a z-score of %f\n", skip_loss ? "loss" : "gradient norm",
           skip_loss ? t->loss_z : t->norm_z);
    return 1;
}

// The optimizer's step, with the gradients clipped to a norm of --grad-clip. Does nothing if loss or norm is not finite.
static inline void trainer_optimizer_(Trainer* t, int step) {
    const Options* o = &t->options;
    check(gpt2_update(t->model, t->learning_rate, (float)o->beta1, (float)o->beta2, (float)o->epsilon,
                      (float)o->weight_decay, (float)o->grad_clip, step + 1));
}

static inline double trainer_percent_(unsigned long long some, unsigned long long all) {
    return all > 0 ? 100.0 * (double)some / (double)all : 0;
}

// Before a validation, says what fp8's scales lost in the step before it.
static inline void trainer_say_codes_(const Trainer* t, int step) {
    const GPT2Codes codes = gpt2_info(t->model)->codes;
    if (codes.counted == 0 || t->val_batches == 0 || !trainer_due(t, step + 1, t->options.val_every)) { return; }
    terminal_line_clear();
    printf("note: fp8: of the numbers of step %d, %.3g%% became 0 and %.3g%% were cut off\n", step + 1,
           trainer_percent_(codes.zeros, codes.counted), trainer_percent_(codes.cut, codes.counted));
}

// Ends the run if a completed update has left weights unchanged. Says where fp8's scales do not follow, every ten steps.
static inline void trainer_check_update_(Trainer* t, int step) {
    unsigned long long wrong = gpt2_info(t->model)->non_finite_weights;
    int saturated = gpt2_info(t->model)->saturated_steps;
    t->skipped = 0;
    trainer_say_codes_(t, step);
    if (saturated > 0 && saturated % 10 == 0) {
        terminal_line_clear();
        printf("warning: fp8: a tensor has had numbers beyond its scale in %d steps in a row; they were cut off\n",
               saturated);
    }
    if (wrong == 0) { return; }
    trainer_fail_(t, step, 0, EXIT_NOT_FINITE,
                  "step %d/%d: the update made %llu weights or moments that are not "
                  "finite, which kept their old values",
                  step + 1, t->num_steps, wrong);
}

// 1 if the host decides whether to update, by the step's loss and norm, or after recomputing it.
static inline int trainer_decides_(const Trainer* t, int step) {
    return t->options.skip_loss_z > 0.0 || t->options.skip_grad_z > 0.0 || trainer_verifies_(t, step);
}

// 1 if nothing is scheduled before this step, so that it can begin before the result of the last one is known.
static inline int trainer_follows_(const Trainer* t, int step) {
    const Options* o = &t->options;
    if (!gpt2_info(t->model)->queues || o->overfit || step == t->num_steps) { return 0; }
    return !trainer_due(t, step, o->val_every) && !trainer_due(t, step, o->sample_every) &&
           !trainer_due(t, step, o->checkpoint_every);
}

// Enqueues the update after the gradients and, if nothing is due in between, the next step's first forward pass.
static inline void trainer_queue_(Trainer* t, int step) {
    check(gpt2_grad_norm(t->model, NULL));
    trainer_optimizer_(t, step);
    if (trainer_follows_(t, step + 1)) { train_step_ahead(&t->step); }
}

// Computes the gradients of a step. An error is one of the data.
static inline Status trainer_compute_(Trainer* t) {
    t->outliers_before = t->outliers;
    train_step_begin(&t->step);
    if (t->options.overfit) {
        TRY(dataloader_reset(&t->train));
        train_step_begin(&t->step);
    }
    return train_step_gradients(&t->step);
}

// Begins a step: forward and backward passes of its micro-steps, the mean gradient of total_batch tokens. Returns 0 where the
// run ends instead: a batch cannot be read, or the processes' results of the previous step differ.
static inline int trainer_gradients(Trainer* t, int step) {
    gpt2_range_begin("step");
    t->begun = wall_seconds();
    watchdog_begin(&t->watchdog, step + 1, t->begun);
    t->learning_rate = get_learning_rate(&t->schedule, step);
    Status data = trainer_compute_(t);
    if (data == STATUS_OK && t->agreement.difference[0] == '\0') { return 1; }
    if (data == STATUS_OK) {
        t->outliers = t->outliers_before;
        train_step_rewind(&t->step);
        trainer_differs_(t, step);
    } else {
        trainer_no_data_(t, step, EXIT_FAILURE, "");
    }
    gpt2_range_end();
    watchdog_end(&t->watchdog, wall_seconds());
    return 0;
}

// Updates, skips the update, or ends the run, as the gradients require. If the host does not decide, the update is enqueued
// before the step's result is known; it does nothing if loss or norm is not finite.
static inline void trainer_update(Trainer* t, int step) {
    int decides = trainer_decides_(t, step);
    if (!decides) { trainer_queue_(t, step); }
    t->result = decides ? train_step_result(&t->step) : train_step_update_result(&t->step);
    t->loss_z = (float)outlier_update(&t->outliers.loss, (double)t->result.loss);
    t->norm_z = (float)outlier_update(&t->outliers.grad_norm, (double)t->result.norm);
    t->skipped = 1;
    if (!step_is_finite(t->result)) {
        trainer_not_finite_(t, step);
        return;
    }
    t->skips = 0;
    if (decides) {
        trainer_verify_(t, step);
        if (t->ended || trainer_skips_(t)) { return; }
        trainer_optimizer_(t, step);
        check(gpt2_wait_update(t->model));
    }
    trainer_check_update_(t, step);
}

// ----------------------------------------------------------------------------
// The report

// FLOPs of a token, forward and backward, of which MFU is computed: 6 per parameter that is in a GEMM (all but the position
// embedding), and per layer 2 T C for the forward of causal attention and 4 T C for its backward.
static inline double flops_per_token(const GPT2Info* info, int T) {
    GPT2Config c = info->config;
    double multiplied = (double)info->num_parameters - (double)c.max_seq_len * c.channels;
    return 6.0 * multiplied + 6.0 * (double)c.num_layers * (double)T * (double)c.channels;
}

// " (+1.23z)"; empty without a z-score: while the detector's window fills, and for values that are not finite.
static inline const char* format_z(char* text, size_t size, float z) {
    text[0] = '\0';
    if (isfinite(z)) { snprintf(text, size, " (%+.2fz)", (double)z); }
    return text;
}

// Writes the step's line of main.jsonl
static inline void trainer_log_step_(Trainer* t, int step, double seconds, double mfu) {
    StepLog* log = &t->log;
    if (!step_log_begin(log, step)) { return; }
    step_log_number(log, "loss", (double)t->result.loss);
    step_log_number(log, "norm", (double)t->result.norm);
    step_log_number(log, "lr", (double)t->learning_rate);
    step_log_number(log, "ms", 1e3 * seconds);
    step_log_number(log, "tokens_per_second", t->options.total_batch / seconds);
    if (isfinite(mfu)) { step_log_number(log, "mfu", mfu); }
    step_log_number(log, "memory", (double)gpt2_info(t->model)->memory_bytes);
    step_log_number(log, "loss_z", (double)t->loss_z);
    step_log_number(log, "norm_z", (double)t->norm_z);
    step_log_flag(log, "finite", step_is_finite(t->result));
    step_log_flag(log, "skipped", t->skipped);
    step_log_end(log);
}

// Shows a step on a terminal, in one line that the next one overwrites, at most ten times a second.
static inline void trainer_show_step_(Trainer* t, int step, double mfu, const char* left) {
    char line[512], of_peak[32];
    double now = wall_seconds();
    size_t columns = (size_t)terminal_columns();
    if (now - t->shown < PROGRESS_TERMINAL_SECONDS && step + 1 < t->num_steps) { return; }
    t->shown = now;
    snprintf(line, sizeof(line), "step %d/%d | loss %.4f | norm %.3f | %.0f tok/s | %s left%s | %.0f MiB", step + 1,
             t->num_steps, (double)t->result.loss, (double)t->result.norm, t->rate, left,
             format_mfu(of_peak, sizeof(of_peak), mfu), (double)gpt2_info(t->model)->memory_bytes / (1 << 20));
    if (columns <= sizeof(line)) { line[columns - 1] = '\0'; }
    terminal_line_show(stdout, line);
}

// Ends the step: its line on stdout, in main.log and in main.jsonl.
static inline void trainer_report(Trainer* t, int step) {
    const Options* o = &t->options;
    double end = wall_seconds(), seconds = end - t->begun, rate = o->total_batch / seconds;
    gpt2_range_end();
    watchdog_end(&t->watchdog, end);
    int done = step - t->first_step; // steps before this one
    t->seconds += done > 0 ? seconds : 0.0;
    t->timed_steps += done > 0;
    t->rate = done < 2 ? rate : 0.95 * t->rate + 0.05 * rate; // the first step warms up and does not count
    float loss = t->result.loss, norm = t->result.norm;
    double mfu = mfu_of(flops_per_token(gpt2_info(t->model), o->time) * rate, t->peak_flops, comm_size(t->comm));
    char left[32], of_loss[32], of_norm[32], of_peak[32];
    double seconds_left = (double)(t->num_steps - step - 1) * o->total_batch / t->rate;
    format_duration(left, sizeof(left), done > 0 || seconds_left <= 0.0 ? seconds_left : (double)NAN);
    snprintf(t->line, sizeof(t->line),
             "step %4d/%d | loss %7.6f%s | norm %6.4f%s | lr %.2e | %.2f ms%s | %.0f tok/s | %s left\n", step + 1,
             t->num_steps, loss, format_z(of_loss, sizeof(of_loss), t->loss_z), norm,
             format_z(of_norm, sizeof(of_norm), t->norm_z), t->learning_rate, seconds * 1e3,
             format_mfu(of_peak, sizeof(of_peak), mfu), t->rate, left);
    if (t->terminal) {
        trainer_show_step_(t, step, mfu, left);
    } else {
        trainer_keep_line(t);
    }
    stdout_flush(&t->stdout_failed);
    if (o->log_gpu_every > 0 && comm_rank(t->comm) == 0 && (step + 1) % o->log_gpu_every == 0) {
        if (t->terminal) { trainer_keep_line(t); }
        gpt2_log_device(t->model);
    }
    logger_train(&t->logger, step, loss, t->learning_rate, norm);
    trainer_log_step_(t, step, seconds, mfu);
}

#endif
