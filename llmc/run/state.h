/*
The state of a training run, its checkpoints, and how it ends. trainer.h has the loop.

Each of several processes has a Trainer, and runs the same steps. Only rank 0 prints, logs, samples and accesses the folder: the
others' stdout is /dev/null.
*/
#ifndef LLMC_RUN_STATE_H
#define LLMC_RUN_STATE_H

#include "flags.h"
#include "gradients.h"
#include "launch.h"
#include "logger.h"
#include "plan.h"
#include "resume.h"
#include "schedulers.h"
#include "llmc/base/signals.h"
#include "llmc/base/terminal.h"
#include "llmc/base/watchdog.h"
#include "llmc/checkpoint/writer.h"
#include "llmc/files/dataloader.h"
#include "llmc/files/evalloader.h"
#include "llmc/files/hugging_face_tokenizer.h"
#include "llmc/model/gpt2_model.h"

// Exit codes of a run. EXIT_SUCCESS also after a signal that ends the run; EXIT_FAILURE: the request was invalid.
enum { EXIT_NOT_FINITE = 3, EXIT_NOT_SAVED = 4, EXIT_CORRUPTION = 5 };

typedef struct {
    Options options;
    Launch launch;       // which process of the run this is
    Comm* comm;          // all of them; NULL: this one alone
    Agreement agreement; // of all of them
    RunPlan plan;
    GPT2* model;
    DataLoader train, val;
    EvalLoader hellaswag;
    Tokenizer tokenizer;
    char tokenizer_path[1024];
    RunStart start; // the folder, the run's identity, and the checkpoint to resume from
    Logger logger;
    StepLog log;    // --log-json
    int terminal;   // 1: steps are shown in one line, which is overwritten
    char line[512]; // of the last step, if it is not printed yet; else ""
    double shown;   // when the terminal's line was written last
    LearningRateScheduler schedule;
    Outliers outliers;
    Outliers outliers_before; // the current step
    TrainStep step;           // its gradients
    double begun;             // when it began
    float learning_rate;
    StepResult result;
    float loss_z, norm_z;
    Watchdog watchdog;
    CheckpointWriter writer;   // open where there is an -o
    int first_step, num_steps; // steps first_step .. num_steps-1 are trained
    int resumed;               // 1: first_step is a checkpoint that was read
    int unchecked_model;       // 1: the weights came from a file without checksums
    int val_batches;
    int accumulation;         // micro-steps of a step in this process
    double peak_flops;        // of each process's GPU, by its datasheet: the denominator of MFU; 0: not known
    double seconds;           // of all steps but the first
    double rate;              // tokens/s, exponentially averaged
    int timed_steps;          // steps that `seconds` is the sum of
    int skipped;              // 1: the current step has not updated the weights
    int skips;                // consecutive updates that were not finite and were skipped
    int warned_of_validation; // 1: printed the warning that the loss of a validation is not finite
    int saved_step;           // of the newest whole checkpoint that this run has written or read, or -1
    int logged_save;          // the step of the newest save that the log tells of, or -1
    int stdout_failed;        // 1: it was said that stdout cannot be written
    int ended;                // 1: no step follows
    int exit_code;
    char failure[STATUS_BYTES]; // the error that ends the run, or ""
} Trainer;

// On a terminal: prints the last step's line permanently, before other output.
static inline void trainer_keep_line(Trainer* t) {
    terminal_line_clear();
    fputs(t->line, stdout);
    t->line[0] = '\0';
}

// 1 if `step` is a multiple of `every`, or the run's last; with `every` 0, only the last.
static inline int trainer_due(const Trainer* t, int step, int every) {
    return step == t->num_steps || (every > 0 && step % every == 0);
}

// ----------------------------------------------------------------------------
// Checkpoints, those that are due and those that a signal requests; and the end of a failed run

// The step of the next checkpoint after `step`, or -1
static inline int trainer_next_checkpoint_(const Trainer* t, int step) {
    int every = t->options.checkpoint_every;
    if (every == 0 || step == t->num_steps) { return -1; }
    return every < t->num_steps - step / every * every ? (step / every + 1) * every : t->num_steps;
}

// Writes a finished save's line of main.jsonl.
static inline void trainer_log_save_(Trainer* t, CheckpointResult result) {
    const CheckpointWriter* w = &t->writer;
    if (result == CHECKPOINT_NONE || result == CHECKPOINT_WRITING || w->step == t->logged_save) { return; }
    t->logged_save = w->step;
    if (!step_log_begin(&t->log, w->step)) { return; }
    step_log_text(&t->log, "event", "checkpoint");
    step_log_flag(&t->log, "saved", result == CHECKPOINT_SAVED);
    if (result == CHECKPOINT_SAVED) {
        step_log_text(&t->log, "path", checkpoint_paths(w->settings.folder->path, w->step).model);
        step_log_number(&t->log, "seconds", w->seconds);
    } else if (w->message[0] != '\0') {
        step_log_text(&t->log, "message", w->message);
    }
    step_log_end(&t->log);
}

// Reports the result of the save in progress, if it has ended; with `wait`, waits for it first. A save that found numbers that
// are not finite ends the run; with several processes only after all have waited, so that all know.
static inline void trainer_end_save_(Trainer* t, int wait) {
    CheckpointResult result = wait ? checkpoint_writer_wait(&t->writer) : checkpoint_writer_poll(&t->writer);
    t->saved_step = t->writer.settings.newest;
    trainer_log_save_(t, result);
    if (result != CHECKPOINT_NOT_FINITE || t->ended || (!wait && comm_size(t->comm) > 1)) { return; }
    t->ended = 1;
    t->exit_code = EXIT_NOT_FINITE;
    snprintf(t->failure, sizeof(t->failure), "%s", t->writer.message);
}

// Starts a save; waits for it if it is the run's last.
static inline void trainer_save_(Trainer* t, int step, int last) {
    gpt2_range_begin("checkpoint");
    train_step_give_back(&t->step);
    checkpoint_writer_save(&t->writer, &t->train, &t->outliers, &t->start.identity, step,
                           last ? -1 : trainer_next_checkpoint_(t, step));
    trainer_end_save_(t, last);
    gpt2_range_end();
}

// Ends the run with an exit code and, after closing it, one line with the reason. `save`: the weights are valid and the loader
// is at the beginning of `step`, so that state is saved.
PRINTF_LIKE(5, 6)
static inline void trainer_fail_(Trainer* t, int step, int save, int exit_code, const char* format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(t->failure, sizeof(t->failure), format, args);
    va_end(args);
    t->ended = 1;
    t->exit_code = exit_code;
    if (t->options.output_dir == NULL) { return; }
    trainer_end_save_(t, 1);
    t->writer.settings.keep = 0; // keep all older ones: the user decides which to resume from
    if (save && step > 0 && step != t->saved_step) { trainer_save_(t, step, 1); }
}

// Ends the run without saving, and returns 1, if the processes' loss and norm of the step before `step` differ.
static inline int trainer_differs_(Trainer* t, int step) {
    if (t->agreement.difference[0] == '\0' || t->ended) { return 0; }
    trainer_fail_(
        t, step, 0, EXIT_CORRUPTION,
        "step %d/%d: %s, which should be equal: silent data corruption; test these machines before they train on", step,
        t->num_steps, t->agreement.difference);
    return 1;
}

// Prints why the run failed, if it did, and its newest complete checkpoint. All processes fail for the same reason; rank 0
// prints it.
static inline void trainer_say_failure_(const Trainer* t) {
    if (t->failure[0] == '\0' || comm_rank(t->comm) != 0) { return; }
    // a folder may have been deleted
    if (t->saved_step >= 0 && file_exists(checkpoint_paths(t->options.output_dir, t->saved_step).done)) {
        print_error("%s; checkpoint %08d in %s is complete", t->failure, t->saved_step, t->options.output_dir);
    } else {
        print_error("%s; there is no checkpoint", t->failure);
    }
}

// Ends the run after a signal, and prints how to resume it.
static inline void trainer_stop_(Trainer* t, int step, int number) {
    const Options* o = &t->options;
    t->ended = 1;
    trainer_keep_line(t);
    if (step == t->first_step) {
        printf("stopped by %s before the first step: nothing to save\n", signals_name(number));
        return;
    }
    printf("stopped by %s after step %d/%d", signals_name(number), step, t->num_steps);
    if (o->output_dir == NULL) {
        printf("; nothing is saved: there is no -o\n");
    } else if (t->writer.result != CHECKPOINT_SAVED) {
        printf(", which is not saved\n");
    } else {
        printf("; -o %s -y 1 continues from there\n", o->output_dir);
    }
}

// Saves if a checkpoint is scheduled or a signal requests one. Reports the result of the previous one.
static inline void trainer_checkpoint(Trainer* t, int step) {
    const Options* o = &t->options;
    int stop = agreement_stop(&t->agreement),
        trained = step > t->first_step; // else the model is new, or was just read
    if (t->ended) { return; }
    int asked = trained && (stop || agreement_take_save(&t->agreement));
    int due = trained && o->checkpoint_every > 0 && trainer_due(t, step, o->checkpoint_every);
    if (asked || due) {
        check(agree(&t->agreement, STATUS_OK)); // on the result of the last step
        if (trainer_differs_(t, step)) { return; }
    }
    if (o->output_dir != NULL) {
        if (stop && asked) { checkpoint_writer_give_up(&t->writer); }
        trainer_end_save_(t, asked || due);
        if (t->ended) { return; }
        if (asked || due) { trainer_save_(t, step, stop || step == t->num_steps); }
    }
    if (asked && !stop && o->output_dir == NULL) {
        trainer_keep_line(t);
        printf("note: SIGUSR1, but there is no -o: nothing is saved\n");
    }
    if (stop) { trainer_stop_(t, step, stop); }
}

#endif
