/*
A training run, on the CPU or on the GPU: everything is built on the functions of gpt2_model.h, which train_gpt2.c or
train_gpt2.cu defines. trainer_main, at the end, is the training loop:

    open { evaluate, sample, checkpoint, step } close

Each of the four does its work at the steps where it is due. Step N is the state after N updates, so the loop has one
more round than there are updates. A signal (signals.h) ends the loop after the checkpoint that it asks for.
*/
#ifndef LLMC_TRAINER_H
#define LLMC_TRAINER_H

#include <float.h>

#include "checkpoint_writer.h"
#include "cli.h"
#include "dataloader.h"
#include "evalloader.h"
#include "gpt2_model.h"
#include "model_file.h"
#include "logger.h"
#include "outlier_detector.h"
#include "progress.h"
#include "resume.h"
#include "run_doctor.h"
#include "run_plan.h"
#include "sampler.h"
#include "schedulers.h"
#include "signals.h"
#include "table.h"
#include "tokenizer.h"
#include "train_step.h"
#include "watchdog.h"

enum { GPT2_VOCAB_SIZE = 50257 };

// How a run ends. EXIT_SUCCESS also where SIGTERM or SIGINT stopped it; EXIT_FAILURE: what the user asked for is wrong.
enum { EXIT_NOT_FINITE = 3, EXIT_NOT_SAVED = 4, EXIT_CORRUPTION = 5 };

typedef struct {
    Options options;
    RunPlan plan;
    StepTimes times;
    GPT2* model;
    DataLoader train, val;
    EvalLoader hellaswag;
    Tokenizer tokenizer;
    RunStart start; // the folder, the identity of the run, and what it goes on from
    Logger logger;
    LearningRateScheduler schedule;
    Outliers outliers;
    Outliers outliers_before; // the step under way
    TrainStep step;           // its gradients
    Watchdog watchdog;
    CheckpointWriter writer;   // open where there is an -o
    int first_step, num_steps; // steps first_step .. num_steps-1 are trained
    int resumed;               // 1: first_step is a checkpoint that was read
    int unchecked_model;       // 1: the weights came from a file without checksums
    int val_batches;
    int accumulation;         // micro-steps of a step
    double gemm_flops;        // FLOP/s of a large GEMM on this machine, measured: the denominator of MFU
    double seconds;           // of all steps but the first
    double rate;              // tokens/s, exponentially averaged
    int timed_steps;          // steps that `seconds` is the sum of
    int skips;                // updates that were not finite and were skipped, one after the other
    int warned_of_loss;       // 1: that it blows up
    int warned_of_evaluation; // 1: that a loss of validation or HellaSwag is not finite
    int saved_step;           // of the newest whole checkpoint that this run has written or read, or -1
    int stdout_failed;        // 1: it was said that stdout cannot be written
    int ended;                // 1: no step follows
    int exit_code;
    char failure[STATUS_BYTES]; // what it ends with; "" where nothing is wrong
} Trainer;

// ----------------------------------------------------------------------------
// Opening

static inline int ends_with(const char* text, const char* end) {
    size_t n = strlen(text), k = strlen(end);
    return n >= k && strcmp(text + n - k, end) == 0;
}

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

// The tokens of a step, which B and T must divide
static inline void trainer_check_batch_(Options* o) {
    long long tokens = (long long)o->batch * o->time;
    if (tokens > INT_MAX) { fatal("-b %d times -t %d is more than 2^31 tokens; lower one", o->batch, o->time); }
    if (o->total_batch == -1) { o->total_batch = (int)tokens; }
    if (o->total_batch < 1 || o->total_batch % tokens != 0) {
        fatal("-d %d is not a multiple of -b %d times -t %d = %lld tokens", o->total_batch, o->batch, o->time, tokens);
    }
}

// Checks the options against each other; cli_parse has checked each flag by itself.
static inline void trainer_check_options(Options* o) {
    if (o->batch != CLI_AUTO) { trainer_check_batch_(o); }
    if (o->resume && o->output_dir == NULL) { fatal("-y 1 needs -o, the directory of the run to go on with"); }
    if (o->checkpoints_keep > 0 && o->checkpoint_every == 0) {
        printf("note: -nk %d without -n, the steps between checkpoints: there are none to keep\n", o->checkpoints_keep);
    }
    if (o->checkpoint_every > 0 && o->output_dir == NULL) {
        printf("note: -n %d without -o, the directory to write to: no checkpoints\n", o->checkpoint_every);
        o->checkpoint_every = 0;
    }
    if (o->overwrite && o->output_dir == NULL) {
        printf("note: --overwrite without -o: there is nothing to replace\n");
    }
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

// The sizes of the model: a .bin file's, or those that a descriptor names.
static inline GPT2Config trainer_config(const Options* o, const char* source) {
    if (!ends_with(source, ".bin")) {
        int vocab_size = o->vocab_size ? o->vocab_size : dataloader_vocab_size(o->train_data);
        return gpt2_config_from_descriptor(source, vocab_size ? vocab_size : GPT2_VOCAB_SIZE);
    }
    if (!file_exists(source)) {
        fatal("-e %s: no such file; name a .bin that exists, or start a new model, such as -e d12", source);
    }
    ModelHeader header;
    check(gpt2_read_model_header(source, &header));
    return header.config;
}

// The model's settings, from the flags.
static inline GPT2Settings trainer_settings(const Options* o) {
    GPT2Settings s;
    s.recompute = o->recompute;
    s.master_weights = o->master_weights;
    s.tf32 = o->tf32;
    s.gelu_fusion = o->gelu_fusion;
    return s;
}

// The model, with the weights of a .bin file or, where the source is a descriptor, new ones. The GEMM is measured while there
// is room.
static inline void trainer_build_model(Trainer* t, GPT2Config config, const char* source) {
    Options* o = &t->options;
    check(gpt2_create(&t->model, config, trainer_settings(o)));
    check(gpt2_measure_gemm(t->model, &t->gemm_flops));
    check(gpt2_allocate(t->model, o->batch, o->time, 1));
    float* params;
    if (ends_with(source, ".bin")) {
        ModelHeader loaded;
        check(gpt2_load_parameters(&params, source, &loaded));
        if (memcmp(&loaded.config, &config, sizeof(config)) != 0) {
            fatal("%s has changed while this run began: it holds a model of other sizes now; start again", source);
        }
        t->unchecked_model = !loaded.has_checksums;
    } else {
        params = (float*)malloc_check(gpt2_info(t->model)->num_parameters * sizeof(float));
        gpt2_init_parameters(params, config, (unsigned int)o->seed);
    }
    check(gpt2_set_parameters(t->model, params));
    free(params);
}

static inline void trainer_print(const Trainer* t, const char* source) {
    const Options* o = &t->options;
    const GPT2Info* info = gpt2_info(t->model);
    GPT2Config c = info->config;
    cli_print(o);
    gpt2_print_device(t->model);
    print_table_row("measured GEMM", "%.4g TFLOP/s; MFU: model FLOP/s over this", t->gemm_flops * 1e-12);
    print_table_line();
    print_table_row("run", "%" PRIu64, t->start.identity.run); // as in main.log
    print_table_row("weights from", "%s", source);
    print_table_row("context maxT", "%d", c.max_seq_len);
    print_table_row("vocabulary V (Vp)", "%d (%d)", c.vocab_size, c.padded_vocab_size);
    print_table_row("layers L", "%d", c.num_layers);
    print_table_row("heads NH", "%d", c.num_heads);
    print_table_row("channels C", "%d", c.channels);
    print_table_row("parameters", "%zu", info->num_parameters);
    print_table_row("memory", "%.0f MiB", (double)info->memory_bytes / (1 << 20));
    run_plan_print_peaks(&t->plan);
    print_table_row("snapshot", "%s", gpt2_snapshot_place(t->model));
    print_table_row("training tokens", "%zu", dataloader_tokens(&t->train));
    print_table_row("validation tokens", "%zu", dataloader_tokens(&t->val));
    print_table_row("steps", "%d", t->num_steps);
    print_table_row("validation batches", "%d", t->val_batches);
    print_table_row("micro-steps of a step", "%d", t->accumulation);
    print_table_line();
    if (o->time < c.max_seq_len) {
        printf("note: -t %d is shorter than the model's context of %d: position embeddings beyond stay untrained\n",
               o->time, c.max_seq_len);
    }
    fflush(stdout);
}

// Adds "<unchecked> of <files> files of <name>", or the name of the one that there is, to a list.
static inline void trainer_list_unchecked_(char* list, size_t size, const char* name, size_t unchecked, size_t files) {
    size_t at = strlen(list);
    if (unchecked == 0) { return; }
    at += (size_t)snprintf(list + at, size - at, "%s", at > 0 ? ", " : "");
    if (files > 1 && at < size) {
        at += (size_t)snprintf(list + at, size - at, "%zu of %zu files of ", unchecked, files);
    }
    if (at < size) { snprintf(list + at, size - at, "%s", name); }
}

// Says once which files have no checksums.
static inline void trainer_note_unchecked_(const Trainer* t, const char* source) {
    const Options* o = &t->options;
    char list[4096] = "";
    trainer_list_unchecked_(list, sizeof(list), source, (size_t)t->unchecked_model, 1);
    trainer_list_unchecked_(list, sizeof(list), o->train_data, t->train.num_unchecked, t->train.num_shards);
    if (strcmp(o->train_data, o->val_data) != 0) {
        trainer_list_unchecked_(list, sizeof(list), o->val_data, t->val.num_unchecked, t->val.num_shards);
    }
    trainer_list_unchecked_(list, sizeof(list), o->hellaswag_data, (size_t)t->hellaswag.unchecked, 1);
    trainer_list_unchecked_(list, sizeof(list), o->tokenizer, (size_t)t->tokenizer.unchecked, 1);
    if (list[0] == '\0') { return; }
    printf("note: no checksums in %s (made by another program or an older version): damage would go unnoticed\n", list);
}

// B of the checkpoint that the run goes on from; 0 where there is none, or it does not say.
static inline int trainer_resumed_batch_(const Trainer* t, const char* state_path) {
    int32_t header[HEADER_INTS] = {0};
    if (!t->resumed || run_start_batch(&t->start) > 0) { return t->resumed ? run_start_batch(&t->start) : 0; }
    FILE* file = fopen(state_path, "rb");
    int whole = file != NULL && fread(header, sizeof(header), 1, file) == 1 && header[0] == STATE_MAGIC;
    if (file != NULL) { fclose(file); }
    return whole && header[STATE_BATCH] > 0 && header[STATE_BATCH] <= 1 << 20 ? header[STATE_BATCH] : 0;
}

// Chooses what is auto, and refuses sizes that do not fit.
static inline void trainer_plan_(Trainer* t, GPT2Config config, const char* state_path) {
    Options* o = &t->options;
    if (o->time > config.max_seq_len) {
        fatal("-t %d is longer than the model's context of %d; name a longer one, such as -e d12t%d", o->time,
              config.max_seq_len, o->time);
    }
    run_plan_open(&t->plan, o, config, trainer_settings(o), trainer_resumed_batch_(t, state_path));
    trainer_check_batch_(o);
    if (!o->plan) { run_plan_check(&t->plan, o); }
}

// A run that ends with an error still finishes the save that is under way.
static CheckpointWriter* trainer_writer_;
static inline void trainer_finish_save_(void) { checkpoint_writer_wait(trainer_writer_); }

// What writes the checkpoints. Without -n they are those that a signal asks for, which need no snapshot.
static inline void trainer_open_writer_(Trainer* t) {
    const Options* o = &t->options;
    CheckpointWriterSettings s;
    s.folder = &t->start.folder;
    s.keep = o->checkpoints_keep, s.major = o->checkpoint_major;
    s.in_background = t->plan.snapshot;
    s.newest = t->start.step;
    if (run_plan_snapshots(o) && !t->plan.snapshot) {
        printf("note: no memory for a snapshot: training waits while a checkpoint is written\n");
    }
    checkpoint_writer_open(&t->writer, t->model, s);
    trainer_writer_ = &t->writer;
    atexit(trainer_finish_save_);
}

// Opens what is read while the model trains, and works out the steps: all that needs the model's sizes, but no model.
static inline void trainer_open_data_(Trainer* t, GPT2Config config) {
    const Options* o = &t->options;
    HostAlloc memory = {o->plan ? NULL : gpt2_host_alloc, o->plan ? NULL : gpt2_host_free};
    int V = config.vocab_size;
    dataloader_open(&t->train, o->train_data, o->batch, o->time, 0, 1, !o->overfit, (unsigned int)o->seed, V, memory);
    dataloader_open(&t->val, o->val_data, o->batch, o->time, 0, 1, 0, 0, V, memory);
    trainer_check_data_(t);
    if (o->hellaswag) {
        evalloader_open(&t->hellaswag, o->hellaswag_data, o->batch, o->time, 0, 1);
        evalloader_check_vocab(&t->hellaswag, V);
    }
    if (o->sample_every > 0) { tokenizer_load(&t->tokenizer, o->tokenizer, V); }
    t->accumulation = o->total_batch / (o->batch * o->time);
    t->num_steps = o->max_steps >= 0 ? o->max_steps : (int)(dataloader_tokens(&t->train) / (size_t)o->total_batch);
    size_t val_batches = dataloader_batches(&t->val);
    t->val_batches = o->val_steps >= 0 && (size_t)o->val_steps < val_batches ? o->val_steps : (int)val_batches;
    if (t->first_step > t->num_steps) {
        fatal("-x %d: the checkpoint in %s is already at step %d", t->num_steps, o->output_dir, t->first_step);
    }
    t->schedule.type = o->scheduler;
    t->schedule.learning_rate = (float)o->learning_rate;
    t->schedule.warmup_steps = o->warmup;
    t->schedule.num_steps = t->num_steps;
    t->schedule.final_fraction = (float)o->final_fraction;
    trainer_check_steps_(t);
}

// Prints what was planned, and ends the program.
#if defined(__GNUC__)
__attribute__((noreturn, unused))
#endif
static void
trainer_print_plan_(const Trainer* t) {
    RunShape shape;
    shape.train_tokens = dataloader_tokens(&t->train), shape.val_tokens = dataloader_tokens(&t->val);
    shape.first_step = t->first_step, shape.num_steps = t->num_steps;
    shape.accumulation = t->accumulation, shape.val_batches = t->val_batches;
    exit(run_plan_print(&t->plan, &t->options, &shape));
}

// The folder that is locked, for the end of the program wherever that is
static RunFolder* trainer_locked_;
static inline void trainer_unlock_(void) { run_folder_unlock(trainer_locked_); }

// Everything before the first step. Ends with one line where something is wrong. Nothing is allocated before all that can be
// checked without a model has been checked, and nothing is written before the model stands.
static inline void trainer_open(Trainer* t, Options options) {
    memset(t, 0, sizeof(*t));
    Options* o = &t->options;
    GPT2Numerics numerics;
    *o = options;
    signals_install();
    trainer_check_options(o);
    run_start_open(&t->start, o);
    trainer_locked_ = &t->start.folder;
    atexit(trainer_unlock_);
    t->resumed = t->start.step >= 0;
    t->first_step = t->resumed ? t->start.step : 0;
    CheckpointPaths paths = checkpoint_paths(o->output_dir ? o->output_dir : "", t->first_step);
    const char* source = t->resumed ? paths.model : o->model;
    GPT2Config config = trainer_config(o, source);
    trainer_plan_(t, config, paths.state);
    trainer_open_data_(t, config);
    if (o->plan) { trainer_print_plan_(t); }
    check(gpt2_numerics(&numerics, config, trainer_settings(o), o->batch, o->time));
    run_start_describe(&t->start, o, config, &numerics, &t->train, &t->val, t->num_steps);
    run_start_compare(&t->start, o);

    trainer_build_model(t, config, source);
    if (o->output_dir != NULL) { trainer_open_writer_(t); }
    outlier_init(&t->outliers.loss);
    outlier_init(&t->outliers.grad_norm);
    if (t->resumed) { check(checkpoint_read(t->model, &t->train, &t->outliers, o->output_dir, t->first_step)); }
    run_start_begin(&t->start, o);
    logger_open(&t->logger, o->output_dir, t->resumed ? t->first_step : -1, t->start.identity.run);
    trainer_print(t, source);
    trainer_note_unchecked_(t, source);
    t->step.model = t->model, t->step.loader = &t->train, t->step.accumulation = t->accumulation;
    t->saved_step = t->resumed ? t->first_step : -1;
    watchdog_start(&t->watchdog);
    signals_begin_steps();
}

// ----------------------------------------------------------------------------
// Saving, and ending a run that went wrong

// The step of the next checkpoint after `step`, or -1
static inline int trainer_next_checkpoint_(const Trainer* t, int step) {
    int every = t->options.checkpoint_every;
    if (every == 0 || step == t->num_steps) { return -1; }
    return every < t->num_steps - step / every * every ? (step / every + 1) * every : t->num_steps;
}

// Says what has become of the save that was under way, if it has ended; with `wait`, when it has.
static inline void trainer_end_save_(Trainer* t, int wait) {
    CheckpointResult result = wait ? checkpoint_writer_wait(&t->writer) : checkpoint_writer_poll(&t->writer);
    t->saved_step = t->writer.settings.newest;
    if (result != CHECKPOINT_NOT_FINITE || t->ended) { return; }
    t->ended = 1;
    t->exit_code = EXIT_NOT_FINITE;
    snprintf(t->failure, sizeof(t->failure), "%s", t->writer.message);
}

// Starts a save; the last one of a run is waited for.
static inline void trainer_save_(Trainer* t, int step, int last) {
    gpt2_range_begin("checkpoint");
    check(checkpoint_writer_save(&t->writer, &t->train, &t->outliers, &t->start.identity, step,
                                 last ? -1 : trainer_next_checkpoint_(t, step)));
    trainer_end_save_(t, last);
    gpt2_range_end();
}

// Ends the run with an exit code and, once it is closed, one line on what was wrong. With `save` the weights are good and the
// loader stands where `step` begins: then that is saved, so that nothing is lost.
#if defined(__GNUC__)
__attribute__((format(printf, 5, 6)))
#endif
static inline void
trainer_fail_(Trainer* t, int step, int save, int exit_code, const char* format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(t->failure, sizeof(t->failure), format, args);
    va_end(args);
    t->ended = 1;
    t->exit_code = exit_code;
    if (t->options.output_dir == NULL) { return; }
    trainer_end_save_(t, 1);
    t->writer.settings.keep = 0; // which of the older ones is a better beginning is not for -nk to say
    if (save && step > 0 && step != t->saved_step) { trainer_save_(t, step, 1); }
}

// What the run has failed of, and which checkpoint is whole. Nothing where it went well.
static inline void trainer_say_failure_(const Trainer* t) {
    if (t->failure[0] == '\0') { return; }
    // a folder may have been deleted
    if (t->saved_step >= 0 && file_exists(checkpoint_paths(t->options.output_dir, t->saved_step).done)) {
        print_error("%s; checkpoint %08d in %s is whole", t->failure, t->saved_step, t->options.output_dir);
    } else {
        print_error("%s; there is no checkpoint", t->failure);
    }
}

// ----------------------------------------------------------------------------
// Evaluating, sampling, checkpoints

// 1 where `step` is a multiple of `every`, or the run's last; with `every` 0, only the last.
static inline int trainer_due(const Trainer* t, int step, int every) {
    return step == t->num_steps || (every > 0 && step % every == 0);
}

// A loss of validation or HellaSwag that is not finite, whose batch was the last: ends the run, or with --non-finite skip is
// said once.
static inline void trainer_evaluation_not_finite_(Trainer* t, int step, const char* what, float loss) {
    char found[256];
    if (t->warned_of_evaluation) { return; }
    check(gpt2_find_non_finite(t->model, found, sizeof(found)));
    const char* first = found[0] ? found : "forward: the mean of losses that are all finite";
    if (strcmp(t->options.non_finite, "stop") == 0) {
        int good = strncmp(found, "weights", 7) != 0;
        trainer_fail_(t, step, good, EXIT_NOT_FINITE, "after step %d/%d: the loss of %s is %g; first not finite: %s",
                      step, t->num_steps, what, (double)loss, first);
        return;
    }
    print_warning("after step %d/%d: the loss of %s is %g; first not finite: %s; the run goes on (--non-finite skip)",
                  step, t->num_steps, what, (double)loss, first);
    t->warned_of_evaluation = 1;
}

static inline void trainer_validate(Trainer* t, int step) {
    const Options* o = &t->options;
    const int *inputs, *targets;
    double sum = 0.0;
    gpt2_range_begin("validate");
    Status status = dataloader_reset(&t->val);
    for (int i = 0; status == STATUS_OK && i < t->val_batches && isfinite(sum) && !signals_stop(); i++) {
        float loss;
        status = dataloader_next(&t->val, &inputs, &targets);
        if (status != STATUS_OK) { break; }
        check(gpt2_validate(t->model, &loss, inputs, targets, o->batch, o->time));
        sum += loss;
        progress_update("validation", (size_t)i + 1, (size_t)t->val_batches);
    }
    progress_end();
    gpt2_range_end();
    if (status != STATUS_OK) {
        trainer_fail_(t, step, 1, EXIT_FAILURE, "the validation after step %d/%d: its batches cannot be read: %s", step,
                      t->num_steps, status_message());
        return;
    }
    // cut short, it has no result: the run that resumes here does it again
    if (signals_stop()) { return; }
    float loss = isnan(sum) ? (float)NAN : (float)(sum / t->val_batches); // NaN without a sign
    printf("val loss %f\n", loss);
    logger_val(&t->logger, step, loss);
    if (!isfinite(loss)) { trainer_evaluation_not_finite_(t, step, "validation", loss); }
}

// HellaSwag (Zellers et al. 2019): the model's answer is the ending, of four, with the lowest mean loss per token.
static inline void trainer_hellaswag(Trainer* t, int step) {
    const Options* o = &t->options;
    int correct = 0;
    gpt2_range_begin("HellaSwag");
    evalloader_reset(&t->hellaswag);
    for (int i = 0; i < t->hellaswag.num_batches && !signals_stop(); i++) {
        evalloader_next(&t->hellaswag);
        float loss; // of the whole batch; the score needs each token's
        check(gpt2_validate(t->model, &loss, t->hellaswag.inputs, t->hellaswag.targets, o->batch, o->time));
        correct += evalloader_score(&t->hellaswag, gpt2_info(t->model)->losses);
        if (!isfinite(loss)) { trainer_evaluation_not_finite_(t, step, "HellaSwag", loss); }
        if (t->ended) { break; }
        progress_update("HellaSwag", (size_t)i + 1, (size_t)t->hellaswag.num_batches);
    }
    progress_end();
    gpt2_range_end();
    if (signals_stop() || t->ended) { return; }
    float accuracy = (float)correct / (float)t->hellaswag.num_examples;
    printf("HellaSwag: %d/%d = %f\n", correct, t->hellaswag.num_examples, accuracy);
    logger_eval(&t->logger, step, accuracy);
}

static inline void trainer_evaluate(Trainer* t, int step) {
    if (!trainer_due(t, step, t->options.val_every) || signals_stop()) { return; }
    if (t->val_batches > 0) { trainer_validate(t, step); }
    if (t->options.hellaswag && step > 0 && !t->ended) { trainer_hellaswag(t, step); }
}

// Prints text that the model generates from an end-of-text token.
static inline void trainer_sample(Trainer* t, int step) {
    const Options* o = &t->options;
    if (o->sample_every == 0 || step == 0 || !trainer_due(t, step, o->sample_every)) { return; }
    if (t->ended || signals_stop()) { return; }
    int V = gpt2_info(t->model)->config.vocab_size, T = o->time;
    int length = o->sample_tokens < T ? o->sample_tokens : T;
    int* tokens = (int*)malloc_check((size_t)T * sizeof(int));
    float* logits = (float*)malloc_check(2 * (size_t)V * sizeof(float)); // the second half is scratch
    unsigned long long rng = (unsigned long long)o->sample_seed;
    for (int i = 0; i < T; i++) { tokens[i] = t->tokenizer.eot_token; }
    gpt2_range_begin("sample");
    printf("generating:\n---\n");
    for (int n = 1; n < length && !signals_stop(); n++) {
        int window = 64; // forward on the next power of two of tokens: few shapes to plan GEMMs for
        while (window < n) { window *= 2; }
        check(gpt2_forward(t->model, tokens, 1, window < T ? window : T));
        check(gpt2_get_logits(t->model, logits, n - 1));
        float coin = random_f32(&rng);
        tokens[n] = sample_logits(logits, V, (float)o->temperature, o->top_k, coin, logits + V);
        tokenizer_print(stdout, &t->tokenizer, tokens[n]);
        fflush(stdout);
    }
    printf("\n---\n");
    gpt2_range_end();
    free(logits);
    free(tokens);
}

// Ends the run, and says where it can go on.
static inline void trainer_stop_(Trainer* t, int step, int number) {
    const Options* o = &t->options;
    t->ended = 1;
    if (step == t->first_step) {
        printf("stopped by %s before the first step: nothing to save\n", signals_name(number));
    } else if (o->output_dir == NULL) {
        printf("stopped by %s after step %d/%d; nothing is saved: there is no -o\n", signals_name(number), step,
               t->num_steps);
    } else if (t->writer.result != CHECKPOINT_SAVED) {
        printf("stopped by %s after step %d/%d, which is not saved\n", signals_name(number), step, t->num_steps);
    } else {
        printf("stopped by %s after step %d/%d; the same command with -y 1 goes on from there\n", signals_name(number),
               step, t->num_steps);
    }
}

// Saves where a checkpoint is due, and where a signal asks for one. Says what has become of the last one.
static inline void trainer_checkpoint(Trainer* t, int step) {
    const Options* o = &t->options;
    int stop = signals_stop(), trained = step > t->first_step; // else it is a new model, or was just read
    if (t->ended) { return; }
    int asked = trained && (stop || signals_take_save());
    int due = trained && o->checkpoint_every > 0 && trainer_due(t, step, o->checkpoint_every);
    if (o->output_dir != NULL) {
        trainer_end_save_(t, 0);
        if (stop && asked) { checkpoint_writer_give_up(&t->writer); }
        if (asked || due) { trainer_save_(t, step, stop || step == t->num_steps); }
    }
    if (asked && !stop && o->output_dir == NULL) { printf("note: SIGUSR1, but there is no -o: nothing is saved\n"); }
    if (stop) { trainer_stop_(t, step, stop); }
}

// ----------------------------------------------------------------------------
// Training

// FLOPs of a token, forward and backward, of which MFU is computed: 6 per parameter that is in a GEMM (all but the position
// embedding), and per layer 2 T C for the forward of causal attention and 4 T C for its backward.
static inline double flops_per_token(const GPT2Info* info, int T) {
    GPT2Config c = info->config;
    double multiplied = (double)info->num_parameters - (double)c.max_seq_len * c.channels;
    return 6.0 * multiplied + 6.0 * (double)c.num_layers * (double)T * (double)c.channels;
}

// " (+1.23z)"; empty where there is no z-score: while the detector's window fills, and of what is not finite.
static inline const char* format_z(char* text, size_t size, float z) {
    text[0] = '\0';
    if (isfinite(z)) { snprintf(text, size, " (%+.2fz)", (double)z); }
    return text;
}

static inline void trainer_report(Trainer* t, int step, StepResult result, float loss_z, float norm_z,
                                  float learning_rate, double seconds) {
    const Options* o = &t->options;
    double rate = o->total_batch / seconds;
    int done = step - t->first_step; // steps before this one
    t->seconds += done > 0 ? seconds : 0.0;
    t->timed_steps += done > 0;
    if (done > 0) { step_times_add(&t->times, seconds); }
    t->rate = done < 2 ? rate : 0.95 * t->rate + 0.05 * rate; // the first step warms up and does not count
    float loss = result.loss, norm = result.norm;
    double mfu = flops_per_token(gpt2_info(t->model), o->time) * rate / t->gemm_flops;
    char left[32], of_loss[32], of_norm[32];
    format_duration(left, sizeof(left), (double)(t->num_steps - step - 1) * o->total_batch / t->rate);
    printf("step %4d/%d | loss %7.6f%s | norm %6.4f%s | lr %.2e | %.2f ms | %.1f%% MFU | %.0f tok/s | %s left\n",
           step + 1, t->num_steps, loss, format_z(of_loss, sizeof(of_loss), loss_z), norm,
           format_z(of_norm, sizeof(of_norm), norm_z), learning_rate, seconds * 1e3, 100.0 * mfu, t->rate, left);
    stdout_flush(&t->stdout_failed);
    if (o->log_gpu_every > 0 && (step + 1) % o->log_gpu_every == 0) { gpt2_log_device(t->model); }
    logger_train(&t->logger, step, loss, learning_rate, norm);
}

// A loss that is worse than guessing, by a nat, and half as much again as the smallest of the last 128: said once.
static inline void trainer_watch_loss_(Trainer* t, int step, double smallest, float loss) {
    double guessing = log((double)gpt2_info(t->model)->config.vocab_size);
    if (t->warned_of_loss || !((double)loss > guessing + 1.0 && (double)loss > 1.5 * smallest)) { return; }
    print_warning("step %d/%d: the loss of %.3f is above ln V = %.3f, that of guessing, and %.1f times the smallest of "
                  "the last %d steps: the run diverges; a lower -l, a longer -u or a smaller --grad-clip may hold it",
                  step + 1, t->num_steps, (double)loss, guessing, (double)loss / smallest, (int)OUTLIER_WINDOW);
    t->warned_of_loss = 1;
}

// Ends the run before a step whose batches cannot be read, as status_message() says. `what` the step was known to be.
static inline void trainer_no_data_(Trainer* t, int step, int exit_code, const char* what) {
    t->outliers = t->outliers_before;
    train_step_rewind(&t->step);
    trainer_fail_(t, step, 1, exit_code, "%s: its batches cannot be read: %s", what, status_message());
}

// The same of a step of which nothing else is known.
static inline void trainer_no_batch_(Trainer* t, int step) {
    char what[64];
    snprintf(what, sizeof(what), "step %d/%d", step + 1, t->num_steps);
    trainer_no_data_(t, step, EXIT_FAILURE, what);
}

// A loss or a gradient norm that is not finite: there is no update, but the step counts. Ends the run, or with --non-finite
// skip goes on, --max-skips times in a row. Weights that are not finite themselves end it in any case.
static inline void trainer_not_finite_(Trainer* t, int step, StepResult r) {
    const Options* o = &t->options;
    char found[256], what[128];
    int again, loss_is = !isfinite(r.loss), skip = strcmp(o->non_finite, "skip") == 0;
    snprintf(what, sizeof(what), "step %d/%d: the %s is %g", step + 1, t->num_steps, loss_is ? "loss" : "gradient norm",
             (double)(loss_is ? r.loss : r.norm));
    if (train_step_find_non_finite(&t->step, &again, found, sizeof(found)) != STATUS_OK) {
        trainer_no_data_(t, step, EXIT_NOT_FINITE, what);
        return;
    }
    if (!again) {
        trainer_fail_(t, step, 0, EXIT_CORRUPTION,
                      "%s, but finite when computed again from the same batches: silent data corruption; test this "
                      "machine before it trains on",
                      what);
        return;
    }
    if (strncmp(found, "weights", 7) == 0) {
        trainer_fail_(t, step, 0, EXIT_NOT_FINITE, "%s; first not finite: %s", what, found);
        return;
    }
    if (skip && ++t->skips <= o->max_skips) {
        printf("skipping the update: %s; first not finite: %s\n", what, found);
        return;
    }
    train_step_rewind(&t->step);
    t->outliers = t->outliers_before;
    if (skip) {
        trainer_fail_(t, step, 1, EXIT_NOT_FINITE, "%s, after --max-skips %d skipped steps; first not finite: %s", what,
                      o->max_skips, found);
    } else {
        trainer_fail_(t, step, 1, EXIT_NOT_FINITE,
                      "%s; first not finite: %s; the step changed no weight, and --non-finite skip would go on", what,
                      found);
    }
}

// Every --verify-every steps computes the step again. Where it comes out otherwise, ends the run before the update.
static inline void trainer_verify_(Trainer* t, int step, StepResult r) {
    const Options* o = &t->options;
    char text[256];
    int same = 0;
    if (o->verify_every == 0 || (step + 1) % o->verify_every != 0) { return; }
    if (train_step_verify(&t->step, r, &same, text, sizeof(text)) != STATUS_OK) {
        trainer_no_batch_(t, step);
        return;
    }
    if (same) { return; }
    trainer_fail_(t, step, 0, EXIT_CORRUPTION,
                  "step %d/%d: computed twice from the same batches it differs: %s: silent "
                  "data corruption; test this machine before it trains on",
                  step + 1, t->num_steps, text);
}

// AdamW, with the gradients clipped to a norm of --grad-clip, unless loss or norm are outliers that -sl or -sg skip.
static inline void trainer_update_(Trainer* t, int step, float norm, float loss_z, float norm_z, float learning_rate) {
    const Options* o = &t->options;
    float clip = (float)o->grad_clip;
    float grad_scale = clip > 0.0f && norm > clip ? clip / norm : 1.0f;
    if (o->skip_loss_z > 0.0 && loss_z > o->skip_loss_z) {
        printf("skipping the update: the loss has a z-score of %f\n", loss_z);
    } else if (o->skip_grad_z > 0.0 && norm_z > o->skip_grad_z) {
        printf("skipping the update: the gradient norm has a z-score of %f\n", norm_z);
    } else {
        check(gpt2_update(t->model, learning_rate, (float)o->beta1, (float)o->beta2, (float)o->epsilon,
                          (float)o->weight_decay, grad_scale, step + 1));
        check(gpt2_synchronize(t->model));
        unsigned long long wrong = gpt2_info(t->model)->non_finite_weights;
        if (wrong == 0) { return; }
        trainer_fail_(t, step, 0, EXIT_NOT_FINITE,
                      "step %d/%d: the update made %llu weights or moments that are not "
                      "finite, which kept their old values",
                      step + 1, t->num_steps, wrong);
    }
}

// The gradients of a step. An error is one of the data.
static inline Status trainer_compute_(Trainer* t, StepResult* result) {
    t->outliers_before = t->outliers;
    train_step_begin(&t->step);
    if (t->options.overfit) {
        TRY(dataloader_reset(&t->train));
        train_step_begin(&t->step);
    }
    return train_step_compute(&t->step, result);
}

// One step: the mean gradient of total_batch tokens in micro-steps, then AdamW.
static inline void trainer_step(Trainer* t, int step) {
    if (step == t->num_steps || t->ended) { return; }
    gpt2_range_begin("step");
    double start = wall_seconds();
    watchdog_begin(&t->watchdog, step + 1, start);
    float learning_rate = get_learning_rate(&t->schedule, step);
    StepResult result;
    if (trainer_compute_(t, &result) != STATUS_OK) {
        trainer_no_batch_(t, step);
        gpt2_range_end();
        watchdog_end(&t->watchdog, wall_seconds());
        return;
    }
    double smallest = outlier_smallest(&t->outliers.loss);
    float loss_z = (float)outlier_update(&t->outliers.loss, result.loss);
    float norm_z = (float)outlier_update(&t->outliers.grad_norm, result.norm);
    if (!step_is_finite(result)) {
        trainer_not_finite_(t, step, result);
    } else {
        t->skips = 0;
        trainer_watch_loss_(t, step, smallest, result.loss);
        trainer_verify_(t, step, result);
        if (!t->ended) { trainer_update_(t, step, result.norm, loss_z, norm_z, learning_rate); }
    }
    gpt2_range_end();
    double end = wall_seconds();
    watchdog_end(&t->watchdog, end);
    trainer_report(t, step, result, loss_z, norm_z, learning_rate, end - start);
}

// Waits for the last save. The run has not ended well where that could not be written.
static inline void trainer_close_writer_(Trainer* t) {
    trainer_end_save_(t, 1);
    CheckpointResult last = checkpoint_writer_close(&t->writer);
    if (last != CHECKPOINT_FAILED || t->exit_code != EXIT_SUCCESS) { return; }
    t->exit_code = EXIT_NOT_SAVED;
    snprintf(t->failure, sizeof(t->failure), "the last checkpoint was not written");
}

// Frees everything; returns the program's exit code.
static inline int trainer_close(Trainer* t) {
    if (t->timed_steps > 0) { printf("total average iteration time: %f ms\n", t->seconds / t->timed_steps * 1e3); }
    if (t->options.output_dir != NULL) { trainer_close_writer_(t); }
    run_plan_close(&t->plan, &t->options, &t->times);
    logger_close(&t->logger);
    watchdog_stop(&t->watchdog);
    dataloader_state_free(&t->step.begin);
    dataloader_close(&t->train);
    dataloader_close(&t->val);
    if (t->options.hellaswag) { evalloader_close(&t->hellaswag); }
    if (t->options.sample_every > 0) { tokenizer_free(&t->tokenizer); }
    gpt2_free(t->model);
    run_start_close(&t->start);
    stdout_flush(&t->stdout_failed);
    trainer_say_failure_(t);
    return t->exit_code;
}

// ----------------------------------------------------------------------------
// The program

static inline int trainer_main(int argc, char** argv) {
    static Trainer trainer;
    keep_standard_files();
    Options options = cli_parse(argc, argv);
    if (options.doctor) { return run_doctor(&options); }
    signal(SIGPIPE, SIG_IGN); // a reader of stdout that goes does not end the run: stdout_flush says so
    signal(SIGXFSZ, SIG_IGN); // nor does a file that grows beyond the user's limit
    trainer_open(&trainer, options);
    for (int step = trainer.first_step; step <= trainer.num_steps && !trainer.ended; step++) {
        trainer_evaluate(&trainer, step);
        trainer_sample(&trainer, step);
        trainer_checkpoint(&trainer, step);
        trainer_step(&trainer, step);
    }
    return trainer_close(&trainer);
}

#endif
