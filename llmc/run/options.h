/*
Checks a run's options against each other, and against what the data holds. What can only be a mistake ends with one line;
what is odd is noted.
*/
#ifndef LLMC_RUN_OPTIONS_H
#define LLMC_RUN_OPTIONS_H

#include <float.h>

#include "state.h"

// Checks AdamW's settings and the schedule's: what can only be a mistake is refused, what is odd is noted.
static inline void trainer_check_optimizer_(const Options* o) {
    if (o->learning_rate != 0.0 && o->learning_rate < (double)FLT_MIN) {
        fatal("-l %g: fp32 holds no rate below %g; raise it, or say -l 0 to leave the weights as they are",
              o->learning_rate, (double)FLT_MIN);
    }
    if (o->learning_rate * o->weight_decay >= 1.0) {
        fatal("-l %g times -c %g is 1 or more: weight decay alone would take away every weight in one step; lower one",
              o->learning_rate, o->weight_decay);
    }
    if (o->grad_clip != 0.0 && o->grad_clip < (double)FLT_MIN) {
        fatal("--grad-clip %g: fp32 holds no norm below %g; raise it, or say --grad-clip 0 for no clipping",
              o->grad_clip, (double)FLT_MIN);
    }
    if (o->learning_rate > 0.1) {
        printf("note: -l %g: AdamW may change every weight by about that much in a step; usual rates are below 0.01\n",
               o->learning_rate);
    }
    if (o->grad_clip != 0.0 && o->grad_clip <= o->epsilon) {
        printf("note: --grad-clip %g is not above --epsilon %g, which then shrinks every update\n", o->grad_clip,
               o->epsilon);
    }
    if (o->beta1 > o->beta2) {
        printf("note: --beta1 %g is above --beta2 %g: the first moment would forget more slowly than the second; are "
               "they swapped?\n",
               o->beta1, o->beta2);
    }
    if (strcmp(o->scheduler, "constant") == 0 && o->warmup > 0) {
        printf("note: -u %d has no effect: -k constant has no warm-up\n", o->warmup);
    }
    if (strcmp(o->scheduler, "constant") == 0 && o->final_fraction != 1.0) {
        printf("note: -q %g has no effect: -k constant does not decay\n", o->final_fraction);
    }
}

// Computes the tokens of a step that -d -1 stands for, and checks those that -d names.
static inline void trainer_check_batch_(Options* o, int processes) {
    long long all = (long long)o->batch * o->time * processes;
    if (o->total_batch == -1 && all <= INT_MAX) { o->total_batch = (int)all; }
    run_plan_check_total(o->total_batch, o->batch, o->time, processes);
}

// Follows llm.c's command lines where nothing is lost: its CPU trainer has no flags, and -z 2 and 3 are no stages of its own.
static inline void trainer_note_llmc_(Options* o) {
    const Options* defaults = &cli_default_options;
    char value[64];
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        if ((f->who & CLI_TRAINER) || !cli_differs(o, defaults, f)) { continue; }
        printf("note: %s %s has no effect on the CPU\n", f->short_name ? f->short_name : f->long_name,
               cli_value(o, f, value));
        memcpy((char*)o + f->offset, (const char*)defaults + f->offset, f->size);
    }
    if (o->zero > 1) {
        printf("note: -z %d: there is no stage %d of ZeRO; as with -z 1, whose bits are the same\n", o->zero, o->zero);
        o->zero = 1;
    }
}

// Says that a run without -o keeps nothing, and which flags have no effect there. A plan keeps nothing anyway.
static inline void trainer_note_unkept_(Options* o) {
    char every[32] = "";
    if (o->checkpoint_every > 0) { snprintf(every, sizeof(every), "-n %d ", o->checkpoint_every); }
    if (!o->plan || every[0] != '\0' || o->overwrite) {
        printf("note: %s%swithout -o FOLDER: nothing of this run is kept, no checkpoint and no main.log\n", every,
               o->overwrite ? "--overwrite " : "");
    }
    o->checkpoint_every = 0;
}

// Checks the options against each other; cli_parse has checked each flag by itself.
static inline void trainer_check_options(Options* o, int processes) {
    if (o->batch != CLI_AUTO) { trainer_check_batch_(o, processes); }
    const char* log = o->log_json == NULL         ? ""
                      : strrchr(o->log_json, '/') ? strrchr(o->log_json, '/') + 1
                                                  : o->log_json;
    if (strcmp(log, "main.log") == 0 || strcmp(log, "main.jsonl") == 0) {
        fatal("--log-json %s: a run's own log has that name; choose another", o->log_json);
    }
    if (o->resume && o->output_dir == NULL) { fatal("-y 1 needs -o, the directory of the run to continue"); }
    if (o->checkpoints_keep > 0 && o->checkpoint_every == 0) {
        printf("note: -nk %d without -n, the steps between checkpoints: there are none to keep\n", o->checkpoints_keep);
    }
    if (o->output_dir == NULL) { trainer_note_unkept_(o); }
    trainer_note_llmc_(o);
    if (o->resume_anyway && !o->resume) { printf("note: --resume-anyway without -y 1: the run begins anew\n"); }
    if (o->max_skips != cli_defaults().max_skips && strcmp(o->non_finite, "skip") != 0) {
        printf("note: --max-skips %d has no effect without --non-finite skip\n", o->max_skips);
    }
    if (o->sample_every > 0 && o->sample_tokens > o->time) {
        printf("note: -g %d is above -t %d: samples end after %d tokens\n", o->sample_tokens, o->time, o->time);
    }
    trainer_check_optimizer_(o);
    if (o->overfit) { o->train_data = o->val_data; }
}

// Refuses patterns of which one takes in files of the other, where there are validations. The same files for both, which
// nobody names by mistake, are noted.
static inline void trainer_check_data_(const Trainer* t) {
    const Options* o = &t->options;
    const char* file = NULL;
    if (o->overfit || o->val_steps == 0) { return; }
    size_t shared = dataloader_shared_files(&t->train, &t->val, &file);
    if (shared == 0) { return; }
    if (shared < t->train.num_shards) {
        fatal("-i %s takes in %s, a file of the validation data; narrow it, or say -m 0 for no validation",
              o->train_data, file);
    }
    if (shared < t->val.num_shards) {
        fatal("-j %s takes in %s, a file of the training data; narrow it, or say -m 0 for no validation", o->val_data,
              file);
    }
    printf("note: -i %s and -j %s are the same data: the validation loss says nothing about other text\n",
           o->train_data, o->val_data);
}

// Checks the options against what the data holds and the number of steps that follows.
static inline void trainer_check_steps_(const Trainer* t) {
    const Options* o = &t->options;
    if (t->num_steps == 0 && o->max_steps == -1) {
        fatal("-d %d is more than the %zu tokens of -i %s: one epoch (-x -1) has no step; lower -d, or name the steps "
              "with -x",
              o->total_batch, dataloader_tokens(&t->train), o->train_data);
    }
    if (o->val_steps > t->val_batches) {
        printf("note: -m %d: the validation data has %d batches of -b %d times -t %d; a validation takes each once\n",
               o->val_steps, t->val_batches, o->batch, o->time);
    }
    int every = o->verify_every, trains = t->first_step < t->num_steps;
    if (trains && every > 0 && t->first_step / every == t->num_steps / every) {
        printf("note: --verify-every %d: none of the steps %d to %d is a multiple of it, so none is computed twice\n",
               every, t->first_step + 1, t->num_steps);
    }
    if (o->warmup > t->num_steps && t->num_steps > 0 && strcmp(o->scheduler, "constant") != 0) {
        printf("note: -u %d is above the run's %d steps: the learning rate ends at %.3g, on its way to -l %g\n",
               o->warmup, t->num_steps, (double)get_learning_rate(&t->schedule, t->num_steps - 1), o->learning_rate);
    }
}

#endif
