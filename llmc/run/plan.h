/*
Planning a run's memory and disk before anything is allocated: the choice of -b auto and -r auto, the refusal of a run that
does not fit, and the table that --plan prints.

    run_plan_open     chooses B and r, and fills the rows of memory
    run_plan_check    ends the program with one line if the run does not fit
    run_plan_print_*  rows and notes of --plan
    run_plan_close    prints the plan's error

-b auto is the largest B that fits and divides the tokens of -d that a process has, or without -d the largest power of two that
fits, up to 64. -r auto is the least of 0, 1, 2 that fits. Where both are auto, B is chosen for -r 1 (for 2 if no B fits 1),
then r for that B. A twentieth of the memory stays free of what is chosen here.
*/
#ifndef LLMC_RUN_PLAN_H
#define LLMC_RUN_PLAN_H

#include "flags.h"
#include "llmc/base/terminal.h"
#include "llmc/checkpoint/checkpoint.h"
#include "llmc/comm/comm.h"
#include "llmc/files/dataloader.h"
#include "llmc/model/gpt2_model.h"

enum { AUTO_BATCH_MOST = 64 }; // without -d; more rows make no step faster that has 64

typedef struct {
    GPT2Plan plan;
    GPT2Memory memory;
    GPT2Config config;
    GPT2Settings settings;
    char no_gpu[STATUS_BYTES];         // why no GPU is usable, if this trainer needs one
    size_t fewest_tokens, most_tokens; // of the run's token files
    size_t evaluation_bytes;           // of HellaSwag's file
    int snapshot; // 1: memory suffices for a snapshot, from which checkpoints are written in the background
} RunPlan;

// ----------------------------------------------------------------------------
// The rows of a run

// Reads the headers of the token files.
static inline void run_plan_tokens_(RunPlan* p, const char* pattern) {
    glob_t paths = token_file_paths(pattern);
    for (size_t i = 0; i < paths.gl_pathc; i++) {
        TokenFile file;
        check(token_file_open(&file, paths.gl_pathv[i]));
        p->fewest_tokens = file.num_tokens < p->fewest_tokens ? file.num_tokens : p->fewest_tokens;
        p->most_tokens = file.num_tokens > p->most_tokens ? file.num_tokens : p->most_tokens;
        fclose(file.file);
    }
    globfree(&paths);
}

static inline int run_plan_saves_(const Options* o) { return o->output_dir != NULL && o->checkpoint_every > 0; }

// The order of a shard's shuffled rows
static inline size_t run_plan_order_bytes_(const RunPlan* p, const Options* o) {
    return p->most_tokens / (size_t)o->time * sizeof(int);
}

// Adds the run's memory besides the model: batches of both loaders, the order of a shard and its copy in a checkpoint,
// HellaSwag, a checkpoint's buffer.
static inline void run_plan_add_rows_(RunPlan* p, const Options* o, int B) {
    size_t BT = size_mul((size_t)B, (size_t)o->time);
    size_t batch = size_mul(2 * sizeof(int), BT); // inputs and targets
    size_t loaders = size_mul(2 * DATALOADER_BATCHES + (o->hellaswag ? 2 : 0), batch);
    size_t order = run_plan_order_bytes_(p, o), files = run_plan_saves_(o) ? size_add(CHECKPOINT_BUFFER, order) : 0;
    loaders = size_add(loaders, order);
    plan_set(&p->plan, PLAN_HOST_LOADERS, PLAN_HOST, size_add(loaders, p->evaluation_bytes));
    plan_set(&p->plan, PLAN_HOST_FILES, PLAN_HOST, files);
}

// Micro-steps of a step of -d tokens, in each process, with a B; 1 if -d is not given, or B not chosen yet.
static inline int run_plan_micro_steps(const Options* o, int B, int processes) {
    size_t tokens = B > 0 ? size_mul((size_t)B, (size_t)o->time) : 0,
           all = o->total_batch > 0 ? (size_t)o->total_batch / (size_t)processes : 0;
    return tokens > 0 && all > tokens ? (int)(all / tokens) : 1;
}

// The least, and the largest, of a number in all processes: their GPUs may have different memory free.
static inline int run_plan_least_(Comm* comm, int number) {
    check(comm_min(comm, &number));
    return number;
}
static inline int run_plan_most_(Comm* comm, int number) { return -run_plan_least_(comm, -number); }

// Plans for a B and an r. Returns 1 if it fits and leaves `percent_free` of the memory; invalid sizes count as a plan that
// does not fit, with the error in status_message().
static inline int run_plan_try_(RunPlan* p, const Options* o, int B, int recompute, int snapshot, size_t percent_free) {
    GPT2Memory memory = p->memory;
    memory.device_free -= memory.device_free / 100 * percent_free;
    memory.host_free -= memory.host_free / 100 * percent_free;
    p->settings.recompute = recompute;
    p->settings.micro_steps = run_plan_micro_steps(o, B, comm_size(p->settings.comm));
    if (gpt2_plan(&p->plan, p->config, p->settings, B, o->time, 1, snapshot) != STATUS_OK) { return 0; }
    run_plan_add_rows_(p, o, B);
    return plan_fits(&p->plan, &memory);
}

// 1 if a snapshot is needed: checkpoints are written in the background.
static inline int run_plan_snapshots(const Options* o) { return run_plan_saves_(o) && o->async_save; }

static inline void run_plan_note_snapshot(const RunPlan* p, const Options* o) {
    if (run_plan_snapshots(o) && !p->snapshot) {
        printf("note: no memory for a snapshot: training waits while a checkpoint is written\n");
    }
}

// ----------------------------------------------------------------------------
// The choice

enum { AUTO_PERCENT_FREE = 5 };

// Refuses a -d that is no multiple of the tokens of a micro-batch in all processes, and names the next that is, or the one
// before where that is too large. B 0: it is still to be chosen.
static inline void run_plan_check_total(int d, int B, int T, int processes) {
    long long tokens = (long long)(B > 0 ? B : 1) * T * processes, next = (d / tokens + 1) * tokens;
    char rows[32] = "", each[32] = "", what[96];
    if (d > 0 && d % tokens == 0) { return; }
    if (B > 0) { snprintf(rows, sizeof(rows), "-b %d times ", B); }
    if (processes > 1) { snprintf(each, sizeof(each), " times %d processes", processes); }
    snprintf(what, sizeof(what), "%s-t %d%s", rows, T, each);
    if (tokens > INT_MAX) { fatal("%s is more than 2^31 tokens; lower one", what); }
    fatal("-d %d is not a multiple of %s = %lld tokens; -d %lld is", d, what, tokens,
          next <= INT_MAX ? next : next - tokens);
}

// The largest B that fits with an r and divides the tokens of a step; 0 if none does.
static inline int run_plan_largest_batch_(RunPlan* p, const Options* o, int recompute, int snapshot) {
    size_t limit = (p->fewest_tokens - 1) / (size_t)o->time; // rows that every token file can fill
    if (limit > (size_t)(INT_MAX / o->time)) { limit = (size_t)(INT_MAX / o->time); }
    if (limit > 1 << 20) { limit = 1 << 20; } // the largest -b
    int given = o->total_batch > 0, processes = comm_size(p->settings.comm);
    int rows = given ? o->total_batch / o->time / processes : AUTO_BATCH_MOST;
    for (int B = rows < (int)limit ? rows : (int)limit; B >= 1; B--) {
        int divides = given ? rows % B == 0 : (B & (B - 1)) == 0;
        if (divides && run_plan_try_(p, o, B, recompute, snapshot, AUTO_PERCENT_FREE)) { return B; }
    }
    return 0;
}

static inline int run_plan_auto_batch_(RunPlan* p, const Options* o) {
    int first = o->recompute == CLI_AUTO ? 1 : o->recompute;
    int last = o->recompute == CLI_AUTO && p->settings.gelu_fusion == 0 ? 2 : first;
    if (o->total_batch != -1) { run_plan_check_total(o->total_batch, 0, o->time, comm_size(p->settings.comm)); }
    for (int snapshot = run_plan_snapshots(o); snapshot >= 0; snapshot--) {
        for (int r = first; r <= last; r++) {
            int B = run_plan_largest_batch_(p, o, r, snapshot);
            if (B > 0) { return B; }
        }
    }
    return 1; // run_plan_check says what is missing
}

// With GELU in cuBLASLt's epilogues the bits depend on r: then auto is 1 everywhere.
static inline int run_plan_auto_recompute_(RunPlan* p, const Options* o) {
    if (p->settings.gelu_fusion > 0) { return 1; }
    for (int snapshot = run_plan_snapshots(o); snapshot >= 0; snapshot--) {
        for (int r = 0; r <= 2; r++) {
            if (run_plan_try_(p, o, o->batch, r, snapshot, AUTO_PERCENT_FREE)) { return r; }
        }
    }
    return 2;
}

// Chooses the options that are auto, the same in all processes, and plans for this one. local_size: processes that share
// this machine's memory. resumed_batch: the B of the checkpoint from which the run resumes, or 0.
static inline void run_plan_open(RunPlan* p, Options* o, GPT2Config config, GPT2Settings settings, int local_size,
                                 int resumed_batch) {
    struct stat file;
    memset(p, 0, sizeof(*p));
    p->config = config, p->settings = settings;
    p->fewest_tokens = SIZE_MAX;
    run_plan_tokens_(p, o->train_data);
    if (o->val_steps != 0) { run_plan_tokens_(p, o->val_data); }
    if (p->fewest_tokens == 0) { p->fewest_tokens = 1; } // such a file is refused when it is opened
    p->evaluation_bytes = o->hellaswag && stat(o->hellaswag_data, &file) == 0 ? (size_t)file.st_size : 0;
    if (gpt2_available_memory(&p->memory) != STATUS_OK) {
        snprintf(p->no_gpu, sizeof(p->no_gpu), "%s", status_message());
        if (!o->plan) { fatal("%s", p->no_gpu); }
    }
    p->memory.host_free /= (size_t)local_size;
    if (settings.fp8) { o->recompute = 2; } // its GEMMs read nothing that would be kept
    if (o->batch == CLI_AUTO && resumed_batch > 0) { o->batch = resumed_batch; }
    if (o->batch == CLI_AUTO) { o->batch = run_plan_least_(settings.comm, run_plan_auto_batch_(p, o)); }
    if (o->recompute == CLI_AUTO) { o->recompute = run_plan_most_(settings.comm, run_plan_auto_recompute_(p, o)); }
    p->snapshot = run_plan_snapshots(o) && run_plan_try_(p, o, o->batch, o->recompute, 1, 0);
    p->snapshot = run_plan_least_(settings.comm, p->snapshot);
    if (!p->snapshot) { run_plan_try_(p, o, o->batch, o->recompute, 0, 0); }
    check(status_now()); // sizes that no model can have
}

// ----------------------------------------------------------------------------
// The refusal

static inline double plan_gib(size_t bytes) { return (double)bytes / (1 << 30); }
static inline double plan_mib(size_t bytes) { return (double)bytes / (1 << 20); }

// Which flags would make the run fit
static inline void run_plan_advice_(const RunPlan* p, const Options* o, char* text, size_t size) {
    RunPlan other = *p;
    int most = p->settings.gelu_fusion > 0 ? o->recompute : 2;
    if (run_plan_try_(&other, o, o->batch, most, 0, 0)) {
        snprintf(text, size, "-r %d fits", most);
        return;
    }
    int B = run_plan_largest_batch_(&other, o, most, 0);
    if (B > 0) {
        snprintf(text, size, "-b %d -r %d fits, with -d %d for the same step", B, most, o->total_batch);
    } else {
        snprintf(text, size, "no -b fits: take a smaller model (-e) or a shorter -t");
    }
}

// Ends the program with one line if the run does not fit.
static inline void run_plan_check(const RunPlan* p, const Options* o) {
    char advice[160];
    int on_device = !plan_fits_device(&p->plan, &p->memory);
    if (plan_fits(&p->plan, &p->memory)) { return; }
    size_t needed = plan_bytes(&p->plan, on_device ? PLAN_DEVICE : PLAN_HOST);
    size_t available = on_device ? p->memory.device_free : p->memory.host_free;
    run_plan_advice_(p, o, advice, sizeof(advice));
    fatal("-e %s with -b %d -t %d -r %d needs %.2f GiB of %s memory, %.2f GiB are available (%s); %s; --plan shows the "
          "rows",
          o->model, o->batch, o->time, o->recompute, plan_gib(needed), on_device ? "GPU" : "host", plan_gib(available),
          on_device ? "what other processes leave" : p->memory.host_limit, advice);
}

// ----------------------------------------------------------------------------
// The table of --plan

static inline void run_plan_print_row_(const char* name, size_t bytes, const char* note) {
    print_table_row(name, "%12.1f MiB%s%s", plan_mib(bytes), note[0] ? "   " : "", note);
}

// The rows of a kind of memory, with its peak and, where that is known, the memory available
static inline void run_plan_print_memory_(const RunPlan* p, PlanMemory memory, const char* kind, size_t available,
                                          const char* note) {
    char name[64];
    snprintf(name, sizeof(name), "%s memory", kind);
    print_table_row(name, "%s", "");
    print_table_line();
    for (int i = 0; i < NUM_PLAN_ROWS; i++) {
        const PlanRow* r = &p->plan.rows[i];
        if (r->memory != memory || r->bytes == 0) { continue; }
        run_plan_print_row_(r->name, r->bytes, "");
        for (int a = 0; i == PLAN_ACTIVATIONS && a < NUM_ACTIVATION_TENSORS; a++) {
            snprintf(name, sizeof(name), "  %s", p->plan.activations[a].name);
            if (p->plan.activations[a].bytes > 0) { run_plan_print_row_(name, p->plan.activations[a].bytes, ""); }
        }
    }
    print_table_line();
    snprintf(name, sizeof(name), "%s peak", kind);
    run_plan_print_row_(name, plan_bytes(&p->plan, memory), "");
    snprintf(name, sizeof(name), "%s available", kind);
    if (available > 0) { run_plan_print_row_(name, available, note); }
    print_table_line();
}

static inline void run_plan_print_memories(const RunPlan* p) {
    const GPT2Memory* m = &p->memory;
    if (plan_bytes(&p->plan, PLAN_DEVICE) > 0) {
        run_plan_print_memory_(p, PLAN_DEVICE, "GPU", m->has_device ? m->device_free : 0,
                               plan_fits_device(&p->plan, m) ? "" : "too little");
    }
    run_plan_print_memory_(p, PLAN_HOST, "host", m->host_free,
                           plan_fits_host(&p->plan, m) ? m->host_limit : "too little");
}

// The largest number of checkpoints on the disk: those kept by -nk and -nm, and the one being written
static inline size_t run_plan_checkpoints_(const Options* o, int first_step, int num_steps) {
    if (!run_plan_saves_(o)) { return 0; }
    int every = o->checkpoint_every, apart = o->checkpoint_major;
    size_t written = (size_t)(num_steps / every - first_step / every + (num_steps % every != 0));
    size_t major = apart > 0 ? (size_t)(num_steps / apart - first_step / apart) : 0;
    size_t kept = (size_t)o->checkpoints_keep + 1 + major;
    return o->checkpoints_keep > 0 && kept < written ? kept : written;
}

static inline size_t run_plan_checkpoint_bytes_(const RunPlan* p, const Options* o) {
    return size_add(p->plan.checkpoint_bytes, run_plan_order_bytes_(p, o));
}

// Of a new run whose folder has no checkpoints yet
static inline void run_plan_note_disk(const RunPlan* p, const Options* o, int num_steps) {
    size_t count = run_plan_checkpoints_(o, 0, num_steps), all = size_mul(count, run_plan_checkpoint_bytes_(p, o));
    size_t available = disk_free(o->output_dir);
    if (all <= available) { return; }
    printf(
        "note: the checkpoints, %zu at a time, take %.0f MiB, and the disk of %s has %.0f left; -n and -nk make them "
        "fewer\n",
        count, plan_mib(all), o->output_dir, plan_mib(available));
}

// Returns 1 if the disk has room for the checkpoints.
static inline int run_plan_print_disk(const RunPlan* p, const Options* o, int first_step, int num_steps) {
    size_t count = run_plan_checkpoints_(o, first_step, num_steps), bytes = run_plan_checkpoint_bytes_(p, o);
    run_plan_print_row_("a checkpoint", bytes, "");
    if (count == 0) { return 1; }
    size_t all = size_mul(count, bytes), available = disk_free(o->output_dir);
    char note[64];
    snprintf(note, sizeof(note), "%zu at a time", count);
    run_plan_print_row_("checkpoints", all, note);
    if (available == SIZE_MAX) {
        print_table_row("disk available", "not known");
    } else {
        run_plan_print_row_("disk available", available, all <= available ? "" : "too little");
    }
    return all <= available;
}

// Prints what the table does not show; returns 1 if memory and disk can hold the run.
static inline int run_plan_print_notes(const RunPlan* p, const Options* o, int disk) {
    int fits = plan_fits(&p->plan, &p->memory);
    if (p->no_gpu[0] != '\0') { printf("note: %s; what a GPU has free is not known\n", p->no_gpu); }
    run_plan_note_snapshot(p, o);
    if (!fits) {
        char advice[160];
        run_plan_advice_(p, o, advice, sizeof(advice));
        printf("note: the run does not fit into memory: %s\n", advice);
    }
    if (!disk) { printf("note: the checkpoints do not fit onto the disk of %s\n", o->output_dir); }
    return fits && disk;
}

// The rows on memory of the table that a run prints first
static inline void run_plan_print_peaks(const RunPlan* p) {
    double device = plan_mib(plan_bytes(&p->plan, PLAN_DEVICE)), host = plan_mib(plan_bytes(&p->plan, PLAN_HOST));
    if (device > 0.0) {
        print_table_row("GPU memory", "%.0f MiB planned, %.0f available", device, plan_mib(p->memory.device_free));
    }
    print_table_row("host memory", "%.0f MiB planned, %.0f available", host, plan_mib(p->memory.host_free));
}

// At the end of a run, while its model is still there: what was planned and what was taken
static inline void run_plan_close(const RunPlan* p) {
    GPT2Memory now;
    size_t peak = host_memory_peak();
    if (p->memory.has_device && gpt2_available_memory(&now) == STATUS_OK) {
        printf("GPU memory: %.0f MiB planned, %.0f MiB used\n", plan_mib(plan_bytes(&p->plan, PLAN_DEVICE)),
               plan_mib(p->memory.device_free > now.device_free ? p->memory.device_free - now.device_free : 0));
    }
    if (peak > 0) {
        printf("host memory: %.0f MiB planned, %.0f MiB used\n", plan_mib(plan_bytes(&p->plan, PLAN_HOST)),
               plan_mib(peak));
    }
}

#endif
