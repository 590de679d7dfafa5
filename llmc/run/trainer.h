/*
A training run, on the CPU or on the GPU: everything is built on the functions of gpt2_model.h, which train_gpt2.c or
train_gpt2.cu defines. Their main is the training loop:

    open { evaluate, sample, checkpoint, gradients, update, report } close

Each acts at its scheduled steps, in all processes of a run. Step N is the state after N updates, so that the loop evaluates,
samples and saves once more than it updates. A signal (signals.h) ends it after the checkpoint that it requests.
*/
#ifndef LLMC_RUN_TRAINER_H
#define LLMC_RUN_TRAINER_H

#include "doctor.h"
#include "evaluate.h"
#include "open.h"
#include "step.h"
#include "llmc/base/process_start.h"

// Parses the command line, starts the processes of the run, and does everything before its first step. --doctor and --plan end
// the program here.
static inline Trainer* trainer_start(int argc, char** argv) {
    static Trainer trainer;
    process_start(argv);
    trainer.options = cli_parse(argc, argv);
    recipe_check(&trainer.options);
    if (trainer.options.doctor) { exit(run_doctor(&trainer.options)); }
    signal(SIGPIPE, SIG_IGN); // a reader of stdout that goes does not end the run: stdout_flush says so
    trainer.launch = launch_processes(&trainer.options);
    signals_install();
    const char* log = trainer.options.log_json;
    if (log != NULL && strcmp(log, "-") == 0 && trainer.launch.rank == 0) { step_log_take_stdout(&trainer.log); }
    trainer.comm = comm_start(&trainer.launch, &trainer.options);
    trainer_open(&trainer);
    return &trainer;
}

// Waits for the last save. The run has not ended well where that could not be written.
static inline void trainer_close_writer_(Trainer* t) {
    trainer_end_save_(t, 1);
    CheckpointResult last = checkpoint_writer_close(&t->writer);
    if (!run_folder_is_ours(&t->start.folder)) { t->saved_step = -1; } // what is there is another run's
    if (last != CHECKPOINT_FAILED || t->exit_code != EXIT_SUCCESS) { return; }
    t->exit_code = EXIT_NOT_SAVED;
    snprintf(t->failure, sizeof(t->failure), "the last checkpoint was not written");
}

// The last line of main.jsonl
static inline void trainer_close_log_(Trainer* t) {
    if (step_log_begin(&t->log, t->log.step)) {
        step_log_text(&t->log, "event", "end");
        step_log_number(&t->log, "exit_code", t->exit_code);
        if (t->failure[0] != '\0') { step_log_text(&t->log, "message", t->failure); }
        step_log_end(&t->log);
    }
    step_log_close(&t->log);
}

// Frees everything; returns the program's exit code.
static inline int trainer_close(Trainer* t) {
    trainer_keep_line(t);
    if (t->timed_steps > 0) { printf("total average iteration time: %f ms\n", t->seconds / t->timed_steps * 1e3); }
    if (t->options.output_dir != NULL) { trainer_close_writer_(t); }
    if (comm_rank(t->comm) == 0) { run_plan_close(&t->plan); }
    logger_close(&t->logger);
    trainer_close_log_(t);
    watchdog_stop(&t->watchdog);
    train_step_free(&t->step);
    dataloader_close(&t->train);
    dataloader_close(&t->val);
    if (t->options.hellaswag) { evalloader_close(&t->hellaswag); }
    if (trainer_has_tokenizer(t)) { tokenizer_free(&t->tokenizer); }
    gpt2_free(t->model);
    run_start_close(&t->start);
    stdout_flush(&t->stdout_failed);
    trainer_say_failure_(t);
    comm_close(t->comm);
    return t->exit_code;
}

#endif
