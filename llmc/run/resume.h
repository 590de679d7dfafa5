/*
Starting or resuming a run: finds the folder's newest whole checkpoint, takes the flags that are not typed from it, compares its
settings and data with those of this run, and refuses a folder that holds another run. Nothing on the disk is changed before
all that can fail has succeeded:

    run_start_open()      locks the folder; finds and verifies the checkpoint; refuses a folder that is in use; takes flags
    run_start_describe()  the identity of this run
    run_start_compare()   prints every difference to the checkpoint; refuses those that change the result
    ...                   the model is built and the checkpoint read
    run_start_begin()     creates or clears the folder, removes what a killed run left

All of them end with one line where the run is refused, and all processes of a run call them. Rank 0 alone looks at the
folder, or at any file of weights; the others receive what they need, and end where rank 0 does.
*/
#ifndef LLMC_RUN_RESUME_H
#define LLMC_RUN_RESUME_H

#include "logger.h"
#include "schedulers.h"
#include "settings.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/files/dataloader.h"
#include "llmc/files/run_folder.h"
#include "llmc/files/weights_file.h"

typedef struct {
    Comm* comm;
    RunFolder folder;     // rank 0; the others have none
    RunFolderScan scan;   // rank 0; of before this run
    int step;             // of the checkpoint to resume from; -1: a new run
    RunIdentity identity; // of this run
    RunIdentity before;   // of the run that wrote the checkpoint; all 0 if the checkpoint has none
    RunIdentity flags;    // main.flags: of the run before, then of this one
    uint64_t log;         // rank 0: the id in main.log; 0 if it does not say
} RunStart;

// ----------------------------------------------------------------------------
// Rank 0 and the others

// Broadcasts rank 0's data (bytes). If rank 0 has ended with an error, the others end too.
static inline void run_start_share_(const RunStart* s, void* data, size_t bytes) {
    check(comm_broadcast(s->comm, data, bytes, 0));
}

// Waits for all processes: none continues if one has failed.
static inline void run_start_wait_(const RunStart* s) { check(comm_barrier(s->comm)); }

// ----------------------------------------------------------------------------
// Finding

// Refuses a new run in a folder that holds another. `why`: what -y 1 would do.
static inline void run_start_refuse_used_(const RunStart* s, const char* why) {
    const RunFolderScan* scan = &s->scan;
    char what[128] = "";
    int step = run_folder_next(scan, INT_MAX);
    if (!run_folder_has_checkpoints(scan) && !scan->log_has_lines) { return; }
    if (step >= 0) {
        snprintf(what, sizeof(what), "checkpoint %d", step);
    } else if (run_folder_has_checkpoints(scan)) {
        snprintf(what, sizeof(what), "parts of a checkpoint");
    }
    if (scan->log_has_lines) { strcat(what, what[0] ? ", main.log" : "main.log"); }
    fatal("-o %s holds a run (%s): %s; --overwrite removes it, or name another folder", s->folder.path, what, why);
}

// Refuses a folder that cannot be created, or in which nothing can be saved, before a model is built for it.
static inline void run_start_check_folder_(const char* folder) {
    char path[1024];
    struct stat st;
    snprintf(path, sizeof(path), "%s", folder);
    existing_folder(path);
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        fatal("-o %s: %s is not a directory; name another folder", folder, path);
    }
    if (atomic_probe(path, 1) != STATUS_OK) {
        fatal("-o %s: no checkpoint could be saved there: %s; name another folder", folder, status_message());
    }
}

// Refuses weights that --overwrite would remove before the first save.
static inline void run_start_check_source_(const RunFolderScan* scan, const char* model) {
    WeightsSource source;
    char path[1024 + 64];
    if (!weights_is_file(model) || weights_find(&source, model) != STATUS_OK) { return; } // which is refused later
    for (size_t i = 0; i < scan->num_files; i++) {
        snprintf(path, sizeof(path), "%s/%s", scan->path, scan->files[i].name);
        if (!same_file(source.path, path)) { continue; }
        fatal("-e %s: --overwrite removes %s; name another -o, or -y 1", model, path);
    }
}

// Rank 0: locks and scans the output directory, if there is one, and finds the checkpoint that -y 1 resumes from.
NOINLINE void run_start_find_(RunStart* s, const Options* o) {
    if (o->plan) { // writes nothing, so it needs no lock: a run may be active there
        snprintf(s->folder.path, sizeof(s->folder.path), "%s", o->output_dir);
    } else {
        run_start_check_folder_(o->output_dir);
        check(run_folder_lock(&s->folder, o->output_dir));
    }
    check(run_folder_scan(&s->scan, o->output_dir));
    s->log = logger_read_run(o->output_dir);
    if (o->resume) {
        check(run_flags_read(&s->flags, o->output_dir));
        s->step = run_folder_newest(&s->folder, &s->scan, checkpoint_verify);
    }
    if (s->step >= 0) { check(checkpoint_read_identity(&s->before, o->output_dir, s->step)); }
    if (s->step >= 0 && s->flags.text_bytes == 0) {
        printf("note: -y 1: %s/main.flags is missing or empty: flags that are neither typed nor in the checkpoint (-i, "
               "-j, -n, -v, -s, ...) have their defaults\n",
               o->output_dir);
    }
    if (o->overwrite) { run_start_check_source_(&s->scan, o->model); }
    if (s->step >= 0 || o->overwrite) { return; }
    if (s->folder.num_damaged > 0) {
        fatal("-o %s: no checkpoint is complete: %s; --overwrite without -y 1 begins anew, or name another folder",
              o->output_dir, s->folder.damage);
    }
    if (!o->resume) { run_start_refuse_used_(s, "-y 1 continues it"); }
    if (run_folder_apart(&s->scan) >= 0) {
        char why[96];
        snprintf(why, sizeof(why), "files of checkpoint %d are missing; put them back", run_folder_apart(&s->scan));
        run_start_refuse_used_(s, why);
    }
    if (o->resume) { printf("note: -y 1: %s has no checkpoint; this run begins at step 0\n", o->output_dir); }
}

// Broadcasts rank 0's lines.
static inline void run_start_share_lines_(const RunStart* s, RunIdentity* id) {
    char* text = id->text;
    run_start_share_(s, id, sizeof(*id));
    id->text = comm_rank(s->comm) == 0 ? text : id->text != NULL ? (char*)calloc_check(id->text_bytes + 1, 1) : NULL;
    if (id->text != NULL) { run_start_share_(s, id->text, id->text_bytes + 1); }
}

// Takes the flags of main.flags, then those of the checkpoint, as they were used.
static inline void run_start_take_(const RunStart* s, Options* o) {
    char file[1024];
    snprintf(file, sizeof(file), "%.960s/main.flags", o->output_dir);
    run_flags_take(o, &s->flags, file);
    run_flags_take(o, &s->before, o->output_dir);
}

// Rank 0: refuses a typed flag that no resumed run can change, before another check suggests a way around it.
static inline void run_start_check_fixed_(const RunStart* s, const Options* o) {
    char before[64], number[64];
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        const char *name = f->short_name ? f->short_name : f->long_name, *now = cli_value(o, f, number);
        if (!o->typed[i] || identity_effect_(f) != IDENTITY_FIXED || strcmp(now, "auto") == 0) { continue; }
        int known = run_identity_value(s->before.text, s->before.text_bytes, f->long_name, before, sizeof(before));
        if (!known || strcmp(before, now) == 0) { continue; }
        fatal("-y 1: checkpoint %d in %s was trained with %s %s, and a resumed run cannot change to %s; leave %s out",
              s->step, o->output_dir, name, before, now, name);
    }
}

// Sets the flags that are not typed to those of the run that goes on. Which ones are typed, rank 0 says: their values are the
// same in all processes. It is the first to take them, and so the one to say what cannot be taken.
// A recipe sets nothing beside them.
static inline void run_start_take_flags_(RunStart* s, Options* o) {
    int root = comm_rank(s->comm) == 0;
    if (root) { run_start_check_fixed_(s, o); }
    if (root) { run_start_take_(s, o); }
    run_start_share_(s, o->typed, sizeof(o->typed));
    if (!root) { run_start_take_(s, o); }
    if (root) { run_flags_note(stdout, o, o->output_dir); }
    if (o->recipe == NULL || s->before.text_bytes + s->flags.text_bytes == 0) { return; }
    if (root) { printf("note: --recipe %s: the run in %s keeps its own settings\n", o->recipe, o->output_dir); }
    o->recipe = NULL;
}

// Finds the checkpoint to resume from, and takes its flags. On return rank 0 holds the folder's lock.
static inline void run_start_open(RunStart* s, Options* o, Comm* comm) {
    memset(s, 0, sizeof(*s));
    s->comm = comm;
    s->step = -1;
    s->folder.lock = -1;
    if (o->output_dir == NULL) { return; }
    if (o->resume && o->overwrite) {
        fatal("-y 1 continues the run in -o %s, and --overwrite removes it; leave one of them out", o->output_dir);
    }
    if (comm_rank(comm) == 0) { run_start_find_(s, o); }
    run_start_share_(s, &s->step, sizeof(s->step));
    run_start_share_lines_(s, &s->before);
    run_start_share_lines_(s, &s->flags);
    if (s->step >= 0 || s->flags.text != NULL) { run_start_take_flags_(s, o); }
}

// Rank 0, of a run that continues: token files that its main.flags names by a relative path must be there, seen from the
// directory of this command.
static inline void run_start_check_data(const RunStart* s, const Options* o) {
    if (comm_rank(s->comm) > 0 || s->flags.text_bytes == 0) { return; }
    const int needed[] = {!o->overfit, o->overfit || o->val_steps != 0};
    for (int i = CLI_INDEX_train_data; i <= CLI_INDEX_val_data; i++) {
        const char *path = cli_value(o, &cli_flags[i], NULL), *flag = cli_flags[i].short_name;
        glob_t paths;
        if (!needed[i] || o->typed[i] || path[0] == '/') { continue; }
        if (token_file_glob(&paths, path) != 0) {
            fatal("no token file matches %s, which is %s of the run in %s, relative to the directory where it was last "
                  "started; start there, or give %s",
                  path, flag, o->output_dir, flag);
        }
        globfree(&paths);
    }
}

// What main.flags will hold
static inline void run_start_keep_flags(RunStart* s, const Options* o) {
    run_identity_free(&s->flags);
    s->flags = run_flags_lines(o);
}

// ----------------------------------------------------------------------------
// Files of weights

// 1 if -e names weights, 0 if it describes a new model; rank 0 decides, as a folder may exist only on its machine.
static inline int run_start_is_file(const RunStart* s, const char* name) {
    int is_file = comm_rank(s->comm) == 0 ? weights_is_file(name) : 0;
    run_start_share_(s, &is_file, sizeof(is_file));
    return is_file;
}

// The sizes of the model whose weights a file or folder holds.
static inline GPT2Config run_start_config(const RunStart* s, const char* path) {
    GPT2Config config;
    memset(&config, 0, sizeof(config));
    if (comm_rank(s->comm) == 0) {
        if (file_missing(path)) {
            fatal("-e %s: no such file; name " WEIGHTS_HELP ", or start a new model, such as -e d12", path);
        }
        check(weights_read_config(path, &config));
    }
    run_start_share_(s, &config, sizeof(config));
    return config;
}

// The weights of a file or folder, in fp32, which the caller frees. *unchecked is 1 if the files have no checksums.
static inline float* run_start_load(const RunStart* s, const char* path, GPT2Config config, int* unchecked) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    float* params = NULL;
    if (comm_rank(s->comm) == 0) {
        GPT2Config found;
        check(weights_load(&params, path, &found, unchecked));
        if (memcmp(&found, &config, sizeof(config)) != 0) {
            fatal("%s changed while this run was starting: its model has another size now; start again", path);
        }
    }
    size_t bytes = gpt2_parameters(table, config) * sizeof(float); // bytes read
    if (params == NULL) { params = (float*)malloc_check(bytes); }
    run_start_share_(s, unchecked, sizeof(*unchecked));
    run_start_share_(s, params, bytes);
    return params;
}

// ----------------------------------------------------------------------------
// This run

static inline LearningRateScheduler run_start_schedule(const Options* o, int num_steps) {
    LearningRateScheduler s = {o->scheduler, (float)o->learning_rate, o->warmup, num_steps, (float)o->final_fraction};
    return s;
}

// 1 if the learning rate of a step depends on the total number of steps.
static inline int run_start_steps_matter_(const Options* o) {
    return strcmp(o->scheduler, "constant") != 0 && o->final_fraction != 1.0;
}

// Rank 0: the origin of the initial weights. If their files are gone when the run resumes, the checkpoint's record is used.
static inline void run_start_origin_(const RunStart* s, const char* path, char* origin, size_t size) {
    if (s->step >= 0 && !file_exists(path)) {
        printf("note: -e %s: no such file; the run continues from the checkpoint, without comparing it\n", path);
        run_identity_value(s->before.text, s->before.text_bytes, "initial-weights", origin, size);
        return;
    }
    Digest digest = digest_begin();
    status_clear();
    check(weights_identity(&digest, path));
    snprintf(origin, size, "file, digest %016" PRIx64, digest_end(digest));
}

// Appends sizes and origin of the initial weights that -e names, even if the weights come from a checkpoint, whose `config` is
// given then. Where nothing names them, they are the checkpoint's.
static inline void run_start_describe_model_(RunStart* s, const Options* o, GPT2Config config) {
    char origin[128] = "new";
    int named = s->step < 0 || o->typed[CLI_INDEX_model];
    int is_file = named && run_start_is_file(s, o->model);
    if (!named) { run_identity_value(s->before.text, s->before.text_bytes, "initial-weights", origin, sizeof(origin)); }
    if (is_file && comm_rank(s->comm) == 0) { run_start_origin_(s, o->model, origin, sizeof(origin)); }
    if (is_file) { run_start_share_(s, origin, sizeof(origin)); }
    if (named && !is_file && s->step >= 0) { // a size without a context may have meant 1024: the checkpoint's serves
        config = gpt2_config_for_rows(o->model, config.vocab_size, config.max_seq_len);
    }
    run_identity_line(&s->identity, IDENTITY_RESULT, "initial-weights", "%s", origin);
    run_identity_line(&s->identity, IDENTITY_FIXED, "model", "V %d, Vp %d, L %d, NH %d, C %d, maxT %d",
                      config.vocab_size, config.padded_vocab_size, config.num_layers, config.num_heads, config.channels,
                      config.max_seq_len);
}

// Appends what in this build and machine determines the bits of a run.
static inline void run_start_describe_numerics_(RunIdentity* id, const GPT2Numerics* n) {
    const struct {
        const char *name, *value;
    } lines[] = {{"precision", n->precision},
                 {"gemm", n->gemm},
                 {"gemm-library", n->gemm_library},
                 {"attention", n->attention},
                 {"compiler", n->compiler},
                 {"device", n->device},
                 {"compute-capability", n->compute_capability},
                 {"SMs", n->sms}};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        if (lines[i].value[0]) { run_identity_line(id, IDENTITY_RESULT, lines[i].name, "%s", lines[i].value); }
    }
}

// Fills in the identity of this run. `config` is the model's, `numerics` is from gpt2_numerics; `separator` is the token with
// which a document begins, the tokenizer's.
static inline void run_start_describe(RunStart* s, const Options* o, GPT2Config config, const GPT2Numerics* numerics,
                                      const DataLoader* train, const DataLoader* val, int num_steps, int separator) {
    RunIdentity* id = &s->identity;
    run_identity_line(id, IDENTITY_FREE, "format", "1");
    run_identity_flags(id, o, 0);
    run_identity_line(id, run_start_steps_matter_(o) ? IDENTITY_RESULT : IDENTITY_FREE, "--max-steps", "%d", num_steps);
    if (o->gelu_fusion > 0) { // else -r does not change a bit
        run_identity_line(id, IDENTITY_RESULT, "--recompute", "%d", o->recompute);
    }
    if (o->documents) { run_identity_line(id, IDENTITY_RESULT, "documents-begin-with", "token %d", separator); }
    run_identity_sum_order(id, o->sum_order, comm_size(s->comm));
    run_start_describe_model_(s, o, config);
    run_start_describe_numerics_(id, numerics);
    check(run_identity_files(id, IDENTITY_DATA, "training-data", &train->paths, train->num_tokens));
    if (o->val_steps != 0) {
        check(run_identity_files(id, IDENTITY_FREE, "validation-data", &val->paths, val->num_tokens));
    }
    run_identity_complete(id);
    if (s->before.run != 0) { id->run = s->before.run; }
}

// Compares the number of steps. Another one changes the result where it changes the learning rate of a step that is done.
static inline void run_start_compare_steps_(const RunStart* s, const Options* o, IdentityDifferences* d) {
    char before[32], now[32];
    int known = run_identity_value(s->before.text, s->before.text_bytes, "--max-steps", before, sizeof(before));
    run_identity_value(s->identity.text, s->identity.text_bytes, "--max-steps", now, sizeof(now));
    if (!known || strcmp(before, now) == 0) { return; }
    LearningRateScheduler was = run_start_schedule(o, atoi(before)), is = run_start_schedule(o, atoi(now));
    int step = s->step - 1; // the last one whose rate differs
    while (step >= 0 && get_learning_rate(&was, step) == get_learning_rate(&is, step)) { step--; }
    d->differences++;
    d->changing += step >= 0;
    printf("note: --max-steps: the checkpoint has %s, this run %s ", before, now);
    if (step < 0) {
        printf("(the run continues: the learning rates of its steps so far are the same)\n");
    } else {
        printf("(changes the result: step %d had the learning rate %.4g, and has %.4g in a run of %s steps)\n",
               step + 1, (double)get_learning_rate(&was, step), (double)get_learning_rate(&is, step), now);
    }
}

// Rank 0: prints the differences of a resumed run to the checkpoint's, and refuses those that change the result; a new run
// refuses a folder with another run's log.
static inline void run_start_compare_before_(RunStart* s, const Options* o) {
    if (s->step < 0) {
        int own_log = s->scan.log_has_lines && s->log == s->identity.run;
        if (o->resume && !own_log) { run_start_refuse_used_(s, "its settings or data are others, or not known"); }
        if (o->resume && own_log) { printf("note: -y 1: main.log in %s is replaced\n", o->output_dir); }
        return;
    }
    IdentityDifferences d = {0, 0, 0};
    if (s->before.text_bytes == 0) {
        printf("note: checkpoint %d does not record the settings of its run, so nothing was compared\n", s->step);
    } else {
        d = run_identity_compare(stdout, s->before.text, s->before.text_bytes, &s->identity);
        run_start_compare_steps_(s, o, &d);
    }
    if (s->log != 0 && s->before.run != 0 && s->log != s->before.run) {
        printf("note: main.log: the checkpoint's run is %" PRIu64 ", the log's %" PRIu64 "\n", s->before.run, s->log);
        d.changing++;
    }
    if (d.fixed > 0) {
        fatal(
            "-y 1: checkpoint %d in %s cannot be resumed with %d of these settings (see the notes above); leave their "
            "flags out to take the run's own",
            s->step, o->output_dir, d.fixed);
    }
    if (d.changing > 0 && !o->resume_anyway) {
        fatal("-y 1: %d of these settings (see the notes above) change the result of the run in %s at step %d; leave "
              "their flags out to take the run's own, put changed files back, or say --resume-anyway",
              d.changing, o->output_dir, s->step);
    }
}

// Compares this run with the other processes' settings, data and devices, and with the checkpoint's.
static inline void run_start_compare(RunStart* s, const Options* o) {
    status_clear();
    check(comm_compare(s->comm, s->identity.text));
    if (comm_rank(s->comm) == 0) { run_start_compare_before_(s, o); }
    run_start_wait_(s);
}

// ----------------------------------------------------------------------------
// The first changes on the disk

// Rank 0: creates or clears the folder.
static inline void run_start_begin_folder_(RunStart* s, const Options* o) {
    if (!s->scan.exists) {
        create_directory(o->output_dir);
        check(run_folder_lock(&s->folder, o->output_dir));
        check(run_folder_scan(&s->scan, o->output_dir)); // another run may have written there since
        if (!o->overwrite) { run_start_refuse_used_(s, "it has just begun"); }
    }
    if (s->folder.lock < 0) {
        printf("note: the file system of %s has no locks: nothing keeps a second run out\n", o->output_dir);
    }
    status_clear();
    check(s->step < 0 && o->overwrite ? run_folder_clear(&s->scan) : run_folder_clean(&s->scan, s->step));
    if (s->step >= 0) { // the run may have been killed between its last checkpoint and the deletion of the one too many
        check(run_folder_keep(&s->folder, o->checkpoints_keep, o->checkpoint_major, s->step));
    }
    s->folder.flags = s->flags.text, s->folder.flags_bytes = s->flags.text_bytes;
    check(run_folder_write_flags(&s->folder));
}

// Creates the folder, or clears it: of another run's files with --overwrite, else of a killed run's leftovers. Changes nothing
// before all processes have arrived here.
static inline void run_start_begin(RunStart* s, const Options* o) {
    run_start_wait_(s);
    if (o->output_dir != NULL && comm_rank(s->comm) == 0) { run_start_begin_folder_(s, o); }
    run_start_wait_(s);
}

static inline void run_start_close(RunStart* s) {
    run_folder_scan_free(&s->scan);
    run_folder_unlock(&s->folder);
    run_identity_free(&s->identity);
    run_identity_free(&s->before);
    run_identity_free(&s->flags);
}

#endif
