/*
llmc/checkpoint/shards.h and what is built on it, in several processes: the files are those of one process, whoever wrote
them; any number of processes reads them; and whatever goes wrong in a save, in any of the processes, leaves the last
checkpoint, and all of them know. Also built with -fsanitize=thread (make check-tsan-test_checkpoint_shards).
*/
#define CHECKPOINT_BUFFER ((size_t)1 << 20)
#include "llmc/checkpoint/writer.h"

#include <sys/resource.h>

#include "checkpoint_fixture.h"
#include "dev/test/fixtures/comm_processes.h"
#include "llmc/base/signals.h"

static const GPT2Config config = {32, V, 128, 3, 3, 96, 0}; // blocks of two pieces; every process has numbers of each

// What the processes do, set before they begin
static int zero = 1, in_background = 1, fault_rank = -1, master_saved = 1;
static void (*fault)(void); // of fault_rank, in its second save

static RunFolder run_folder;
static DataLoader loader;
static Outliers outliers;
static GPT2 model;
static CheckpointWriter writer;

static const char* file_of(const char* format, int step) {
    char name[64];
    snprintf(name, sizeof(name), format, step);
    return unit_path(name);
}
static const char* model_file(int step) { return file_of("model_%08d.bin", step); }
static const char* state_file(int step) { return file_of("state_%08d_00000.bin", step); }
static int whole(int step) {
    return file_exists(file_of("DONE_%08d", step)) && checkpoint_verify(folder(), step) == STATUS_OK;
}
static int nothing_of(int step) {
    return !file_exists(file_of("DONE_%08d", step)) && !file_exists(model_file(step)) &&
           !file_exists(state_file(step)) && !file_exists(file_of("model_%08d.bin.tmp", step)) &&
           !file_exists(file_of("state_%08d_00000.bin.tmp", step));
}

// All but the headers, which hold the step.
static int same_bodies(const char* a, const char* b) { return unit_same_from(a, b, HEADER_BYTES); }

// A process's model: the numbers of other shards are not there.
static void open_model(Comm* c, float first, int master) {
    model = make_model_of(config, master, first);
    model.info.settings.comm = c, model.info.settings.zero = zero;
    model.info.sharded = comm_size(c) > 1 && zero;
    check(layout_create(&model.layout, config, comm_size(c), 0));
    LayoutRun run;
    for (size_t i = 0, n = model.info.num_parameters; model.info.sharded && i < n; i += run.count) {
        run = layout_run(&model.layout, 0, i, n - i);
        for (size_t k = i; run.rank != comm_rank(c) && k < i + run.count; k++) {
            for (int b = GPT2_MOMENTS1; b <= (int)GPT2_MOMENTS2 + master; b++) { model.blocks[b][k] = NAN; }
        }
    }
}

static void finish_save(void) { checkpoint_writer_wait(&writer); }

static void open_all(Comm* c) {
    static RunFolder none = {.path = "/nonexistent", .lock = -1}; // only rank 0 touches the folder
    CheckpointWriterSettings s = {comm_rank(c) == 0 ? &run_folder : &none, 0, 0, in_background, -1};
    open_model(c, 1.0f, master_saved);
    checkpoint_writer_open(&writer, &model, s);
    atexit(finish_save); // as trainers do
}

static void close_all(void) {
    checkpoint_writer_close(&writer);
    memset(&writer, 0, sizeof(writer));
    layout_free(&model.layout);
    free_model(&model);
}

static void save(int step) { checkpoint_writer_save(&writer, &loader, &outliers, &identity, step, step + 10); }

static void train(float x) {
    for (int b = 0; b <= (int)GPT2_MASTER_WEIGHTS; b++) {
        for (size_t i = 0; model.blocks[b] != NULL && i < model.info.num_parameters; i++) { model.blocks[b][i] += x; }
    }
}

static void pause_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

// ----------------------------------------------------------------------------
// Saves that go well

// Saves, goes on training, and saves again.
static void saves_twice(Comm* c) {
    open_all(c);
    if (comm_rank(c) == fault_rank) { model.no_snapshot = 1, writer.settings.in_background = 0; }
    save(10);
    train(1000.0f);
    while (checkpoint_writer_poll(&writer) == CHECKPOINT_WRITING) { pause_ms(1); }
    CLAIM(writer.result == CHECKPOINT_SAVED && writer.settings.newest == 10 && writer.message[0] == '\0');
    save(20);
    CLAIM(checkpoint_writer_wait(&writer) == CHECKPOINT_SAVED && writer.settings.newest == 20);
    close_all();
}

static const char *model_10, *state_10, *model_20, *state_20; // as one process writes them

static void one_process_writes_them(void) {
    run(1, saves_twice, NULL);
    CHECK(all_ended_well(1) && whole(10) && whole(20));
    model_10 = unit_path("model.10"), state_10 = unit_path("state.10");
    model_20 = unit_path("model.20"), state_20 = unit_path("state.20");
    rename(model_file(10), model_10);
    rename(state_file(10), state_10);
    rename(model_file(20), model_20);
    rename(state_file(20), state_20);
    CHECK(!unit_same_files(state_10, state_20));
    checkpoint_delete(folder(), 10);
    checkpoint_delete(folder(), 20);
}

static int files_are_those_of_one_process(int size) {
    run(size, saves_twice, NULL);
    int ok = all_ended_well(size) && whole(10) && whole(20);
    ok = ok && unit_same_files(model_10, model_file(10)) && unit_same_files(state_10, state_file(10));
    ok = ok && unit_same_files(model_20, model_file(20)) && unit_same_files(state_20, state_file(20));
    checkpoint_delete(folder(), 10);
    checkpoint_delete(folder(), 20);
    return ok;
}

static void the_files_do_not_depend_on_the_number_of_processes(void) {
    for (int size = 2; size <= 4; size++) { CHECK(files_are_those_of_one_process(size)); }
    in_background = 0;
    CHECK(files_are_those_of_one_process(3));
    in_background = 1, zero = 0;
    CHECK(files_are_those_of_one_process(2));
    zero = 1;
    for (fault_rank = 0; fault_rank < 2; fault_rank++) {
        CHECK(files_are_those_of_one_process(3));
    } // no snapshot there
    fault_rank = -1;
}

// ----------------------------------------------------------------------------
// Reading

// Own numbers are the files', and no others have come.
static int own_numbers_are(const GPT2* saved) {
    LayoutRun run;
    int good = 1;
    for (size_t i = 0, n = model.info.num_parameters; i < n; i += run.count) {
        run = layout_run(&model.layout, 0, i, n - i);
        int own = !model.info.sharded || run.rank == comm_rank(model.info.settings.comm);
        for (int b = GPT2_MOMENTS1; b <= (int)GPT2_MASTER_WEIGHTS; b++) {
            for (size_t k = i; k < i + run.count; k++) {
                good = good && (own ? model.blocks[b][k] == saved->blocks[b][k] : isnan(model.blocks[b][k]));
            }
        }
    }
    return good;
}

static void reads(Comm* c) {
    DataLoader d;
    Outliers o;
    static RunState now, then; // on the stack the two would fill a frame
    static GPT2 saved, before;
    saved = make_model_of(config, 1, 1.0f), before = make_model_of(config, 1, -5.0f);
    if (!master_saved) { saved.blocks[GPT2_MASTER_WEIGHTS] = before.blocks[GPT2_MASTER_WEIGHTS]; } // they stay
    open_loader(&d, 1);
    open_model(c, -5.0f, 1);
    memset(&o, 0xff, sizeof(o));
    check(checkpoint_read(&model, &d, &o, folder(), 10));
    CLAIM(own_numbers_are(&saved));
    CLAIM(memcmp(&o, &outliers, sizeof(o)) == 0);
    dataloader_get_state(&d, &now.loader);
    dataloader_get_state(&loader, &then.loader);
    CLAIM(now.loader.sample == then.loader.sample && now.loader.num_samples == then.loader.num_samples);
    CLAIM(memcmp(now.loader.sample_order, then.loader.sample_order, now.loader.num_samples * sizeof(int)) == 0);
    CLAIM(memcmp(&now.loader.rng, &then.loader.rng, sizeof(now.loader.rng)) == 0);
}

static void any_number_of_processes_reads_them(void) {
    run(4, saves_twice, NULL);
    CHECK(all_ended_well(4) && whole(10));
    for (int size = 1; size <= 4; size++) {
        run(size, reads, NULL);
        CHECK(all_ended_well(size));
    }
    zero = 0;
    run(2, reads, NULL);
    CHECK(all_ended_well(2));
    zero = 1;
}

// A run that did not keep master weights, -w 0, begins to: each process keeps those that its model was built with.
static void master_weights_that_no_file_has_stay(void) {
    checkpoint_delete(folder(), 10), checkpoint_delete(folder(), 20);
    master_saved = 0;
    run(1, saves_twice, NULL);
    CHECK(all_ended_well(1) && whole(10));
    for (zero = 0; zero <= 1; zero++) {
        for (int size = 1; size <= 3; size++) {
            run(size, reads, NULL);
            CHECK(all_ended_well(size));
        }
    }
    zero = 1, master_saved = 1;
    checkpoint_delete(folder(), 10), checkpoint_delete(folder(), 20);
    run(4, saves_twice, NULL);
    CHECK(all_ended_well(4) && whole(10));
}

// Rank 0 says what is wrong; the others end.
static void a_damaged_checkpoint_ends_all(void) {
    size_t size;
    char* data = unit_read(state_file(10), &size);
    unit_patch(state_file(10), size / 2, 0x1234);
    run(3, reads, NULL);
    CHECK(ended_saying(0, 1, "checksum"));
    CHECK(ended_saying(1, 1, "rank 0: ") && ended_saying(2, 1, "rank 0: "));
    free(data);
    checkpoint_delete(folder(), 10);
    checkpoint_delete(folder(), 20);
}

// ----------------------------------------------------------------------------
// Saves that do not

static void expect(CheckpointResult result, const char* words) {
    if (writer.result == result && strstr(writer.message, words) != NULL) { return; }
    fatal("result %d, expected %d: %s", (int)writer.result, (int)result, writer.message);
}

// The first save is whole; the second fails; the third goes well.
static void saves_around(Comm* c, void (*break_it)(Comm* c), void (*mend_it)(Comm* c), CheckpointResult result,
                         const char* words) {
    open_all(c);
    save(10);
    CLAIM(checkpoint_writer_wait(&writer) == CHECKPOINT_SAVED);
    break_it(c);
    save(20);
    checkpoint_writer_wait(&writer);
    expect(result, words);
    CLAIM(writer.settings.newest == 10);
    mend_it(c);
    save(30);
    CLAIM(checkpoint_writer_wait(&writer) == CHECKPOINT_SAVED && writer.settings.newest == 30);
    close_all();
}

static void limit(rlim_t bytes) {
    struct rlimit r = {bytes, RLIM_INFINITY};
    setrlimit(RLIMIT_FSIZE, &r);
}
static void fill_the_disk(Comm* c) {
    signals_install(); // as in a run: a write beyond the limit fails, and does not end the program
    if (comm_rank(c) == 0) { limit((rlim_t)2 << 20); } // in the state, in the middle of its second block
}
static void clear_the_disk(Comm* c) {
    if (comm_rank(c) == 0) { limit(RLIM_INFINITY); }
}
static void with_a_full_disk(Comm* c) {
    saves_around(c, fill_the_disk, clear_the_disk, CHECKPOINT_FAILED, "too large");
}

// The answers of the others, which have been asked, do not become the next save's.
static void lose_the_first_gpu(Comm* c) { model.reads_fail = comm_rank(c) == 0 ? 2 : 0; }
static void find_the_gpu(Comm* c) {
    (void)c;
    model.reads_fail = 0;
}
static void with_the_first_gpu_lost(Comm* c) {
    saves_around(c, lose_the_first_gpu, find_the_gpu, CHECKPOINT_FAILED, "the GPU is gone");
}

// A number of the last process's shard
static size_t number_of(int rank) {
    for (size_t i = model.info.num_parameters; i-- > 0;) {
        if (layout_run(&model.layout, 0, i, 1).rank == rank) { return i; }
    }
    fatal("rank %d has no numbers", rank);
}
static void set_nan(Comm* c) {
    int last = comm_size(c) - 1;
    if (comm_rank(c) == last) { model.blocks[GPT2_MOMENTS2][number_of(last)] = NAN; }
}
static void unset_nan(Comm* c) {
    int last = comm_size(c) - 1;
    size_t i = number_of(last);
    if (comm_rank(c) == last) { model.blocks[GPT2_MOMENTS2][i] = 1.5f + (float)i; } // as numbers() has it
}
static void with_a_nan(Comm* c) { saves_around(c, set_nan, unset_nan, CHECKPOINT_NOT_FINITE, "second moments: "); }

static void check_around(int size, void (*body)(Comm* c), const char* warning) {
    for (in_background = 0; in_background < 2; in_background++) {
        run(size, body, NULL);
        CHECK(ended_saying(0, 0, warning));
        for (int rank = 1; rank < size; rank++) { CHECK(ended_saying(rank, 0, "")); }
        CHECK(whole(10) && nothing_of(20) && whole(30));
        CHECK(unit_same_files(model_10, model_file(10)) && unit_same_files(state_10, state_file(10)));
        CHECK(same_bodies(model_10, model_file(30)) && same_bodies(state_10, state_file(30)));
        checkpoint_delete(folder(), 10);
        checkpoint_delete(folder(), 30);
    }
    in_background = 1;
}

static void a_failed_save_is_known_to_all(void) {
    check_around(4, with_a_full_disk, "checkpoint 00000020 was not written: cannot ");
    check_around(3, with_the_first_gpu_lost, "checkpoint 00000020 was not written: the GPU is gone");
    check_around(2, with_a_nan, "is nan; no run can continue from it");
}

static int slow_reads;
static void slow(void) {
    __atomic_add_fetch(&slow_reads, 1, __ATOMIC_RELAXED);
    pause_ms(20);
}

// In the middle of the moments, while the others answer
static void gives_up(Comm* c) {
    open_all(c);
    save(10);
    CLAIM(checkpoint_writer_wait(&writer) == CHECKPOINT_SAVED);
    model.reading = slow;
    save(20);
    while (__atomic_load_n(&slow_reads, __ATOMIC_RELAXED) < (comm_rank(c) == 0 ? 4 : 2)) { pause_ms(1); }
    checkpoint_writer_give_up(&writer);
    CLAIM(checkpoint_writer_wait(&writer) == CHECKPOINT_GIVEN_UP && writer.settings.newest == 10);
    save(21);
    CLAIM(checkpoint_writer_wait(&writer) == CHECKPOINT_SAVED && writer.settings.newest == 21);
    close_all();
}

static void a_save_is_given_up_in_all(void) {
    run(3, gives_up, NULL);
    CHECK(all_ended_well(3) && whole(10) && nothing_of(20) && whole(21));
    CHECK(same_bodies(model_10, model_file(21)) && same_bodies(state_10, state_file(21)));
    checkpoint_delete(folder(), 10);
    checkpoint_delete(folder(), 21);
}

// ----------------------------------------------------------------------------
// A process that is killed

static int reads_left;
static void die_while_reading(void) {
    if (reads_left-- == 0) { raise(SIGKILL); }
}

static void is_killed(void) { model.reading = die_while_reading; }
static void loses_its_gpu(void) { model.reads_fail = 1; }

// Trains, that is, meets the others, for ever.
static void fails_while_saving(Comm* c) {
    open_all(c);
    save(10);
    CLAIM(checkpoint_writer_wait(&writer) == CHECKPOINT_SAVED);
    if (comm_rank(c) == fault_rank) { fault(); }
    save(20);
    for (;;) { check(comm_barrier(c)); }
}

static void a_lost_gpu_of_another_ends_all(void) {
    fault = loses_its_gpu, fault_rank = 2;
    for (in_background = 0; in_background < 2; in_background++) {
        run(3, fails_while_saving, NULL);
        for (int rank = 0; rank < 3; rank++) { CHECK(ended_saying(rank, 1, "the GPU is gone")); }
        CHECK(whole(10) && nothing_of(20));
        checkpoint_delete(folder(), 10);
    }
    in_background = 1;
}

static void a_kill_in_mid_save_leaves_the_last_one(void) {
    fault = is_killed;
    for (fault_rank = 0; fault_rank < 3; fault_rank++) {
        char words[64];
        reads_left = 3 + fault_rank;
        snprintf(words, sizeof(words), "rank %d died without an error message", fault_rank);
        run(3, fails_while_saving, NULL);
        for (int rank = 0; rank < 3; rank++) {
            CHECK(rank == fault_rank ? processes[rank].exit_code == -SIGKILL : ended_saying(rank, 1, words));
        }
        CHECK(whole(10) && !file_exists(file_of("DONE_%08d", 20)) && !file_exists(model_file(20)));
        CHECK(fault_rank == 0 || nothing_of(20)); // of rank 0 its half-written file stays, for the next start
        checkpoint_delete(folder(), 10);
        remove(file_of("model_%08d.bin.tmp", 20));
        remove(file_of("state_%08d_00000.bin.tmp", 20));
    }
    fault_rank = -1;
}

int main(void) {
    const int *inputs, *targets;
    snprintf(run_folder.path, sizeof(run_folder.path), "%s", folder());
    run_folder.lock = -1;
    outliers = make_outliers();
    open_loader(&loader, 1);
    for (int i = 0; i < 5; i++) { check(dataloader_next(&loader, &inputs, &targets)); }
    one_process_writes_them();
    the_files_do_not_depend_on_the_number_of_processes();
    any_number_of_processes_reads_them();
    master_weights_that_no_file_has_stay();
    a_damaged_checkpoint_ends_all();
    a_failed_save_is_known_to_all();
    a_save_is_given_up_in_all();
    a_lost_gpu_of_another_ends_all();
    a_kill_in_mid_save_leaves_the_last_one();
    dataloader_close(&loader);
    return unit_end();
}
