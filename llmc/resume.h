/*
Where a run begins, and whether it may: the folder's newest whole checkpoint, its settings and data against those of this
run, and a folder that holds another run. The order of a start, in which nothing is changed before nothing can fail:

    run_start_open()      locks the folder; finds and verifies the checkpoint; refuses a folder that is in use
    run_start_describe()  the identity of this run
    run_start_compare()   says every difference to the checkpoint; refuses those that change the result
    ...                   the model is built and the checkpoint read
    run_start_begin()     creates or clears the folder, removes what a killed run left

All of them end with one line where the run is refused.
*/
#ifndef LLMC_RESUME_H
#define LLMC_RESUME_H

#include "checkpoint.h"
#include "dataloader.h"
#include "logger.h"
#include "progress.h"
#include "run_folder.h"
#include "run_identity.h"
#include "schedulers.h"

typedef struct {
    RunFolder folder;
    RunFolderScan scan;
    int step;             // of the checkpoint that the run goes on from; -1: it begins
    RunIdentity identity; // of this run
    RunIdentity before;   // of the run that wrote the checkpoint; all 0 where it does not say
    uint64_t log;         // the id in main.log; 0 where it does not say
} RunStart;

// ----------------------------------------------------------------------------
// Finding

// A new run in a folder that holds one. `why` says what -y 1 would do.
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
    fatal("-o %s holds a run (%s): %s, --overwrite removes it, or name another folder", s->folder.path, what, why);
}

// Refuses a folder that cannot be created or written to, before a model is built for it.
static inline void run_start_check_folder_(const char* folder) {
    char path[1024];
    struct stat st;
    snprintf(path, sizeof(path), "%s", folder);
    while (stat(path, &st) != 0 && errno == ENOENT && strcmp(path, ".") != 0) { // what it would be created in
        char* slash = strrchr(path, '/');
        if (slash == path) { slash++; }
        slash != NULL ? (void)(*slash = '\0') : (void)strcpy(path, ".");
    }
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode)) {
        fatal("-o %s: %s is not a directory; name another folder", folder, path);
    }
    if (access(path, W_OK | X_OK) != 0) {
        fatal("-o %s: cannot write to %s: %s; name another folder", folder, path, strerror(errno));
    }
}

static char run_start_verifying_[64]; // what is under way
static inline void run_start_report_(size_t done, size_t total) { progress_update(run_start_verifying_, done, total); }

// Verifies a checkpoint; where that takes some seconds, says so.
static inline Status run_start_verify_(const char* directory, int step) {
    CheckpointPaths paths = checkpoint_paths(directory, step);
    snprintf(run_start_verifying_, sizeof(run_start_verifying_), "verifying checkpoint %d", step);
    progress_begin(run_start_verifying_, 3.0);
    Status status = checkpoint_verify_files(&paths, step, run_start_report_);
    progress_end();
    return status;
}

// Locks and looks at the output directory, if there is one, and finds the checkpoint that -y 1 goes on from.
static inline void run_start_open(RunStart* s, const Options* o) {
    memset(s, 0, sizeof(*s));
    s->step = -1;
    s->folder.lock = -1;
    if (o->output_dir == NULL) { return; }
    if (o->plan) { // writes nothing, and may look on where a run is at work
        snprintf(s->folder.path, sizeof(s->folder.path), "%s", o->output_dir);
    } else {
        run_start_check_folder_(o->output_dir);
        check(run_folder_lock(&s->folder, o->output_dir));
    }
    check(run_folder_scan(&s->scan, o->output_dir));
    s->log = logger_read_run(o->output_dir);
    if (o->resume) { s->step = run_folder_newest(&s->folder, &s->scan, run_start_verify_); }
    if (s->step >= 0) { check(checkpoint_read_identity(&s->before, o->output_dir, s->step)); }
    if (s->step >= 0 || o->overwrite) { return; }
    if (s->folder.num_damaged > 0) {
        fatal("-o %s: no checkpoint is whole: %s; --overwrite begins anew, or name another folder", o->output_dir,
              s->folder.damage);
    }
    if (!o->resume) { run_start_refuse_used_(s, "-y 1 goes on with it"); }
    if (run_folder_apart(&s->scan) >= 0) {
        char why[96];
        snprintf(why, sizeof(why), "files of checkpoint %d are missing; put them back", run_folder_apart(&s->scan));
        run_start_refuse_used_(s, why);
    }
}

// B of the checkpoint, or 0: what -b auto is for a run that resumes.
static inline int run_start_batch(const RunStart* s) {
    char value[32];
    run_identity_value(s->before.text, s->before.text_bytes, "--batch", value, sizeof(value));
    return atoi(value);
}

// ----------------------------------------------------------------------------
// This run

// 1 where the learning rate of a step depends on how many steps there are.
static inline int run_start_steps_matter_(const Options* o) {
    return strcmp(o->scheduler, "constant") != 0 && o->final_fraction != 1.0;
}

// Appends sizes and origin of the initial weights that -e names, also where a checkpoint's are taken instead: `config` is the
// checkpoint's then. A .bin that is gone by then is what it was.
static inline void run_start_describe_model_(RunStart* s, const Options* o, GPT2Config config) {
    char origin[128] = "new";
    int is_file = strlen(o->model) >= 4 && strcmp(o->model + strlen(o->model) - 4, ".bin") == 0;
    if (!is_file && s->step >= 0) {
        config = gpt2_config_from_descriptor(o->model, o->vocab_size ? o->vocab_size : config.vocab_size);
    } else if (is_file && (s->step < 0 || file_exists(o->model))) {
        Digest digest = digest_begin();
        status_clear();
        check(identity_file(&digest, o->model));
        snprintf(origin, sizeof(origin), "file, digest %016" PRIx64, digest_end(digest));
    } else if (is_file) {
        printf("note: -e %s: no such file; the checkpoint's weights are taken, whatever it held\n", o->model);
        run_identity_value(s->before.text, s->before.text_bytes, "initial-weights", origin, sizeof(origin));
    }
    run_identity_line(&s->identity, IDENTITY_RESULT, "initial-weights", "%s", origin);
    run_identity_line(&s->identity, IDENTITY_FIXED, "model", "V %d, Vp %d, L %d, NH %d, C %d, maxT %d",
                      config.vocab_size, config.padded_vocab_size, config.num_layers, config.num_heads, config.channels,
                      config.max_seq_len);
}

// Fills the identity of this run. `config` is the model's, `numerics` what gpt2_numerics says.
static inline void run_start_describe(RunStart* s, const Options* o, GPT2Config config, const GPT2Numerics* numerics,
                                      const DataLoader* train, const DataLoader* val, int num_steps) {
    RunIdentity* id = &s->identity;
    run_identity_line(id, IDENTITY_FREE, "format", "1");
    run_identity_flags(id, o);
    run_identity_line(id, run_start_steps_matter_(o) ? IDENTITY_RESULT : IDENTITY_FREE, "--max-steps", "%d", num_steps);
    if (o->gelu_fusion > 0) { // else -r does not change a bit
        run_identity_line(id, IDENTITY_RESULT, "--recompute", "%d", o->recompute);
    }
    run_start_describe_model_(s, o, config);
    run_identity_line(id, IDENTITY_RESULT, "precision", "%s", numerics->precision);
    run_identity_line(id, IDENTITY_RESULT, "gemm", "%s", numerics->gemm);
    run_identity_line(id, IDENTITY_RESULT, "attention", "%s", numerics->attention);
    run_identity_line(id, IDENTITY_FREE, "device", "%s", numerics->device);
    check(run_identity_files(id, IDENTITY_DATA, "training-data", &train->paths, dataloader_tokens(train)));
    check(run_identity_files(id, IDENTITY_FREE, "validation-data", &val->paths, dataloader_tokens(val)));
    run_identity_complete(id);
    if (s->before.run != 0) { id->run = s->before.run; }
}

// Says what a resumed run does otherwise than the checkpoint's, and refuses what changes the result; a run that begins in a
// folder with a log refuses one of another run.
static inline void run_start_compare(RunStart* s, const Options* o) {
    if (s->step < 0) {
        int own_log = s->scan.log_has_lines && s->log == s->identity.run;
        if (o->resume && !o->overwrite && !own_log) {
            run_start_refuse_used_(s, "its settings or data are others, or not known");
        }
        return;
    }
    IdentityDifferences d = {0, 0, 0};
    if (s->before.text_bytes == 0) {
        printf("note: checkpoint %d does not hold the settings of its run: nothing was compared\n", s->step);
    } else {
        d = run_identity_compare(stdout, s->before.text, s->before.text_bytes, &s->identity);
    }
    if (s->log != 0 && s->before.run != 0 && s->log != s->before.run) {
        printf("note: main.log: the checkpoint's run is %" PRIu64 ", the log's %" PRIu64 "\n", s->before.run, s->log);
        d.changing++;
    }
    if (d.fixed > 0) {
        fatal(
            "-y 1: checkpoint %d in %s cannot be resumed with %d of these settings (see the notes above); give its own",
            s->step, o->output_dir, d.fixed);
    }
    if (d.changing > 0 && !o->resume_anyway) {
        fatal(
            "-y 1: %d of these settings (see the notes above) change the result of the run in %s at step %d; give its "
            "own, or say --resume-anyway",
            d.changing, o->output_dir, s->step);
    }
}

// ----------------------------------------------------------------------------
// The first changes on the disk

// Creates the folder, or makes it this run's: with --overwrite another run's files go, else what a killed run has left.
static inline void run_start_begin(RunStart* s, const Options* o) {
    if (o->output_dir == NULL) { return; }
    if (!s->scan.exists) {
        create_directory(o->output_dir);
        check(run_folder_lock(&s->folder, o->output_dir));
        check(run_folder_scan(&s->scan, o->output_dir)); // another run may have been faster
        if (!o->overwrite) { run_start_refuse_used_(s, "it has just begun"); }
    }
    status_clear();
    check(s->step < 0 && o->overwrite ? run_folder_clear(&s->scan) : run_folder_clean(&s->scan, s->step));
    if (s->step >= 0) { // the run may have been killed between its last checkpoint and the deletion of the one too many
        check(run_folder_keep(&s->folder, o->checkpoints_keep, o->checkpoint_major, s->step));
    }
    run_folder_scan_free(&s->scan);
}

static inline void run_start_close(RunStart* s) {
    run_folder_scan_free(&s->scan);
    run_folder_unlock(&s->folder);
    run_identity_free(&s->identity);
    run_identity_free(&s->before);
}

#endif
