/*
The state of a training run, and how it ends. trainer.h has the loop.

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
#include "llmc/base/terminal.h"
#include "llmc/base/watchdog.h"
#include "llmc/checkpoint/outlier_detector.h"
#include "llmc/checkpoint/writer.h"
#include "llmc/comm/agreement.h"
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
    int device;          // index of the GPU
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

#endif
