/*
Saves checkpoints in the background: a snapshot of the model (gpt2_take_snapshot) and a thread that writes it.

    trainer   step N  | wait for the last save, take the snapshot | step N+1 | step N+2, poll: "wrote checkpoint N" | ...
    thread                                                        | write model_N, state_N, DONE_N, delete old ones |

The thread accesses only the snapshot and copies, which the trainer does not touch until it has joined the thread. It does not
print or end the program: checkpoint_writer_poll reports the result of a save, between two steps, in the trainer's thread. A
save that fails leaves the last whole checkpoint, and the run continues. Without memory for a snapshot the trainer's thread
writes the save from the model itself.

In a run of several processes all of them save at the same steps. Rank 0 writes and reports; the threads of the others send it
their shards (checkpoint/shards.h) and receive the result: after checkpoint_writer_wait, or where it was that rank's first poll
to see it, the result, the message and settings.newest are the same everywhere.
*/
#ifndef LLMC_CHECKPOINT_WRITER_H
#define LLMC_CHECKPOINT_WRITER_H

#include <pthread.h>

#include "checkpoint.h"
#include "llmc/files/run_folder.h"

typedef enum {
    CHECKPOINT_NONE,       // none was due yet
    CHECKPOINT_SAVED,      // it is on the disk
    CHECKPOINT_FAILED,     // it could not be written; the last whole one is still there
    CHECKPOINT_NOT_FINITE, // the model holds a number that is not finite: it cannot be trained on
    CHECKPOINT_GIVEN_UP,   // a newer one took its place
    CHECKPOINT_WRITING     // its thread is under way
} CheckpointResult;

typedef struct {
    RunFolder* folder; // of the run; the writer's until checkpoint_writer_close
    int keep, major;   // keep the newest `keep` checkpoints (0: all) and those at multiples of `major` (0: none)
    int in_background; // 0: the trainer's thread writes
    int newest;        // the step of the checkpoint that the run resumed from, or -1
} CheckpointWriterSettings;

typedef struct {
    CheckpointWriterSettings settings;
    CheckpointSource source;
    Comm* comm;                 // of the model
    RunState run;               // copy for the save in progress
    CheckpointResult result;    // of the last save
    int step, next_step;        // of the last save, and of the next scheduled one, or -1
    double stalled, seconds;    // of the last save: how long training waited, and the time to write
    double waited;              // for the previous save; counts in the next one's `stalled`
    char message[STATUS_BYTES]; // why the last save failed
    // the thread
    pthread_t thread;
    int has_thread;
    int done; // atomic
} CheckpointWriter;

// 1 if a save reads this process's model: rank 0 writes all weights, the others send their shards.
static inline int checkpoint_writer_reads_(const CheckpointWriter* w) {
    return comm_rank(w->comm) == 0 || gpt2_info(w->source.model)->sharded;
}

// Called after gpt2_allocate. Allocates the snapshot; where there is not enough memory, the caller's thread writes the saves.
// `model` must stay valid until checkpoint_writer_close.
static inline void checkpoint_writer_open(CheckpointWriter* w, GPT2* model, CheckpointWriterSettings settings) {
    memset(w, 0, sizeof(*w));
    w->settings = settings;
    w->comm = shards_comm(model);
    w->source = checkpoint_source(model, (char*)malloc_check(CHECKPOINT_BUFFER));
    if (comm_size(w->comm) > 1 && comm_rank(w->comm) == 0) {
        w->source.packed = (char*)malloc_check(CHECKPOINT_BUFFER);
    }
    int wanted = w->settings.in_background && checkpoint_writer_reads_(w);
    if (wanted && gpt2_allocate_snapshot(model) != STATUS_OK) {
        printf("note: no memory for a snapshot: training waits while a checkpoint is written\n");
        w->settings.in_background = 0;
    }
}

// ----------------------------------------------------------------------------
// The thread

// Rank 0: writes the checkpoint of w->run, then deletes those beyond -nk, and sends the others the result.
static inline void checkpoint_writer_write_files_(CheckpointWriter* w) {
    const CheckpointWriterSettings* s = &w->settings;
    ShardsEnd end;
    Status status = checkpoint_make_directory_(s->folder->path);
    if (status == STATUS_OK) { status = run_folder_hold(s->folder); }
    if (status == STATUS_OK) { status = checkpoint_write(&w->source, &w->run, s->folder->path); }
    w->result = w->source.not_finite                                    ? CHECKPOINT_NOT_FINITE
                : __atomic_load_n(&w->source.give_up, __ATOMIC_RELAXED) ? CHECKPOINT_GIVEN_UP
                                                                        : CHECKPOINT_FAILED;
    if (status == STATUS_OK) {
        w->result = CHECKPOINT_SAVED;
        status = run_folder_keep(s->folder, s->keep, s->major, w->step);
    }
    snprintf(w->message, sizeof(w->message), "%s", status == STATUS_OK ? "" : status_message());
    status_clear();
    end.result = w->result;
    memcpy(end.message, w->message, sizeof(end.message));
    shards_end(&w->source, &end);
}

// The others: answer rank 0's requests.
static inline void checkpoint_writer_serve_(CheckpointWriter* w) {
    ShardsEnd end;
    memset(&end, 0, sizeof(end));
    end.result = CHECKPOINT_FAILED;
    if (shards_serve(&w->source, &end) != STATUS_OK) {
        snprintf(end.message, sizeof(end.message), "%s", status_message());
        status_clear();
    }
    w->result = (CheckpointResult)end.result;
    memcpy(w->message, end.message, sizeof(w->message));
}

// A process's part in a save, in the thread: accesses only what the trainer does not touch until it has joined.
static inline void checkpoint_writer_write_(CheckpointWriter* w) {
    double start = wall_seconds();
    comm_rank(w->comm) == 0 ? checkpoint_writer_write_files_(w) : checkpoint_writer_serve_(w);
    w->seconds = wall_seconds() - start;
}

static inline void* checkpoint_writer_thread_(void* writer) {
    CheckpointWriter* w = (CheckpointWriter*)writer;
    checkpoint_writer_write_(w);
    __atomic_store_n(&w->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

// ----------------------------------------------------------------------------
// The trainer's side

static inline void checkpoint_writer_warn_(const CheckpointWriter* w) {
    const char* directory = w->settings.folder->path;
    int newest = w->settings.newest;
    char still[1200] = "", again[64] = "";
    int ours = run_folder_is_ours(w->settings.folder);
    if (newest >= 0 && ours && file_exists(checkpoint_paths(directory, newest).done)) {
        snprintf(still, sizeof(still), "; %s still has checkpoint %08d", directory, newest);
    }
    if (w->result == CHECKPOINT_FAILED && w->next_step >= 0) {
        snprintf(again, sizeof(again), "; trying again at step %d", w->next_step);
    }
    fprintf(stderr, "warning: checkpoint %08d was not written: %s%s%s\n", w->step, w->message, still, again);
}

// Prints the result of the last save; rank 0 alone does.
static inline void checkpoint_writer_report_(CheckpointWriter* w, double beside) {
    if (w->result == CHECKPOINT_SAVED) { w->settings.newest = w->step; }
    if (comm_rank(w->comm) != 0) { return; }
    terminal_line_clear();
    if (w->result == CHECKPOINT_GIVEN_UP) {
        printf("checkpoint %08d is given up for a newer one\n", w->step);
        return;
    }
    fflush(stdout);
    if (w->result != CHECKPOINT_SAVED) {
        if (comm_health(w->comm) == STATUS_OK) {
            checkpoint_writer_warn_(w);
        } // else the run ends with a line of its own
        status_clear();
        return;
    }
    printf("wrote checkpoint %08d to %s (%.3f s, and %.3f s beside training)\n", w->step, w->settings.folder->path,
           w->stalled, beside);
    fflush(stdout);
    if (w->message[0] != '\0') { fprintf(stderr, "warning: after checkpoint %08d: %s\n", w->step, w->message); }
}

// Waits until no save is in progress; returns the result of the last one, and prints it once. The same in all processes.
static inline CheckpointResult checkpoint_writer_wait(CheckpointWriter* w) {
    if (!w->has_thread) { return w->result; }
    double start = wall_seconds();
    pthread_join(w->thread, NULL);
    w->has_thread = 0;
    w->waited = wall_seconds() - start;
    run_state_free(&w->run);
    checkpoint_writer_report_(w, w->seconds);
    return w->result;
}

// Cancels the save in progress in favour of a newer one that must be on the disk within a grace period: two saves in sequence
// may take too long. The first save of a run is waited for, because there is no other checkpoint yet. Called by all processes;
// rank 0 cancels the save and notifies the others.
static inline void checkpoint_writer_give_up(CheckpointWriter* w) {
    if (!w->has_thread || w->settings.newest < 0) { return; }
    __atomic_store_n(&w->source.give_up, 1, __ATOMIC_RELAXED);
    checkpoint_writer_wait(w);
    w->source.give_up = 0;
}

// checkpoint_writer_wait without waiting: CHECKPOINT_WRITING while the thread is running. Costs nothing between two steps.
// One process may see the end of a save a step before another: collective actions must not depend on it, unless the processes
// have agreed on it and then wait.
static inline CheckpointResult checkpoint_writer_poll(CheckpointWriter* w) {
    if (!w->has_thread) { return w->result; }
    return __atomic_load_n(&w->done, __ATOMIC_ACQUIRE) ? checkpoint_writer_wait(w) : CHECKPOINT_WRITING;
}

// Takes the snapshot and starts the thread; returns 0 if the caller has to write.
static inline int checkpoint_writer_start_(CheckpointWriter* w) {
    w->source.read = gpt2_copy_out;
    if (!w->settings.in_background) { return 0; }
    if (checkpoint_writer_reads_(w) && gpt2_take_snapshot(w->source.model) != STATUS_OK) { return 0; }
    w->source.read = gpt2_read_snapshot;
    w->done = 0;
    w->has_thread = thread_start(&w->thread, checkpoint_writer_thread_, w);
    return w->has_thread;
}

// Saves the model after all work so far, and the loader's position; waits for the last save first. next_step, or -1, is when
// the next one is due, for the message of a failure. The identity must outlive the save. checkpoint_writer_poll and
// checkpoint_writer_wait return the result of writing. Called by all processes.
static inline void checkpoint_writer_save(CheckpointWriter* w, const DataLoader* loader, const Outliers* outliers,
                                          const RunIdentity* identity, int step, int next_step) {
    checkpoint_writer_wait(w);
    double start = wall_seconds() - w->waited;
    w->waited = 0.0;
    status_clear();
    if (comm_rank(w->comm) == 0) {
        dataloader_get_state(loader, &w->run.loader);
        check(run_state_take_scales(&w->run, w->source.model));
    }
    w->run.outliers = *outliers;
    w->run.identity = *identity;
    w->run.step = w->step = step;
    w->next_step = next_step;
    int in_background = checkpoint_writer_start_(w);
    if (!in_background) { checkpoint_writer_write_(w); }
    w->stalled = wall_seconds() - start;
    if (in_background) { return; }
    run_state_free(&w->run);
    checkpoint_writer_report_(w, 0.0);
}

// Waits for the last save; returns its result.
static inline CheckpointResult checkpoint_writer_close(CheckpointWriter* w) {
    CheckpointResult result = checkpoint_writer_wait(w);
    free(w->source.packed);
    free(w->source.buffer);
    memset(w, 0, sizeof(*w));
    return result;
}

#endif
