/*
llmc/checkpoint/writer.h: a save in the background holds what the model was when it began, in the same files as a save that
training waits for; one that fails keeps the last whole checkpoint, and is told; a kill at any moment leaves a whole one.
Also built with -fsanitize=thread (make check-tsan-test_checkpoint_writer).
*/
#include "llmc/checkpoint/writer.h"

#include <sys/resource.h>

#include "checkpoint_fixture.h"
#include "llmc/base/signals.h"

enum { SNAPSHOT_READS_MS = 20 };

static RunFolder run_folder;
static DataLoader loader;
static Outliers outliers;

static void pause_ms(long ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

static void slow(void) { pause_ms(SNAPSHOT_READS_MS); }

static void open_writer(CheckpointWriter* w, GPT2* model, int in_background, int keep, int newest) {
    CheckpointWriterSettings s = {&run_folder, keep, 0, in_background, newest};
    checkpoint_writer_open(w, model, s);
}

static void save(CheckpointWriter* w, int step) {
    checkpoint_writer_save(w, &loader, &outliers, &identity, step, step + 10);
}

// The path of a file of a step; good for the next three calls
static const char* file_of(const char* format, int step) {
    static char paths[4][400];
    static int next;
    char name[64], *path = paths[next++ % 4];
    snprintf(name, sizeof(name), format, step);
    snprintf(path, sizeof(paths[0]), "%s/%s", folder(), name);
    return path;
}

static int whole(int step) {
    return file_exists(file_of("DONE_%08d", step)) && checkpoint_verify(folder(), step) == STATUS_OK;
}

static void add_to_model(GPT2* model, float x) {
    for (int i = 0; i <= GPT2_MASTER_WEIGHTS; i++) {
        for (size_t j = 0; model->blocks[i] != NULL && j < model->info.num_parameters; j++) {
            model->blocks[i][j] += x;
        }
    }
}

// Training changes all that is being saved, while it is being saved.
static void the_files_are_those_of_a_save_that_training_waits_for(void) {
    CheckpointWriter w;
    const int *inputs, *targets;
    GPT2 model = make_model(1, 1.0f);
    DataLoader before = loader;
    open_writer(&w, &model, 0, 0, -1);
    save(&w, 10);
    CHECK(checkpoint_writer_close(&w) == CHECKPOINT_SAVED && whole(10));
    const char *model_copy = unit_path("model.copy"), *state_copy = unit_path("state.copy");
    rename(file_of("model_%08d.bin", 10), model_copy);
    rename(file_of("state_%08d_00000.bin", 10), state_copy);

    model.reading = slow;
    open_writer(&w, &model, 1, 0, -1);
    save(&w, 10);
    CHECK(checkpoint_writer_poll(&w) == CHECKPOINT_WRITING);
    add_to_model(&model, 1000.0f);
    check(dataloader_next(&loader, &inputs, &targets));
    outlier_update(&outliers.loss, 1e6);
    CHECK(checkpoint_writer_wait(&w) == CHECKPOINT_SAVED && whole(10));
    CHECK(unit_same_files(model_copy, file_of("model_%08d.bin", 10)));
    CHECK(unit_same_files(state_copy, file_of("state_%08d_00000.bin", 10)));
    CHECK(before.current_sample_idx + 1 == loader.current_sample_idx);

    save(&w, 20); // the next one has it all
    CHECK(checkpoint_writer_close(&w) == CHECKPOINT_SAVED && whole(20));
    CHECK(!unit_same_files(model_copy, file_of("model_%08d.bin", 20)));
    checkpoint_delete(folder(), 10);
    checkpoint_delete(folder(), 20);
    free_model(&model);
}

static void the_next_save_waits_for_the_last(void) {
    CheckpointWriter w;
    GPT2 model = make_model(1, 1.0f);
    model.reading = slow;
    open_writer(&w, &model, 1, 2, -1);
    for (int step = 10; step <= 50; step += 10) {
        save(&w, step);
        CHECK(w.step == step && checkpoint_writer_poll(&w) == CHECKPOINT_WRITING);
        CHECK(step == 10 || whole(step - 10));
    }
    for (int i = 0; i < 5000 && checkpoint_writer_poll(&w) == CHECKPOINT_WRITING; i++) { pause_ms(1); }
    CHECK(!w.has_thread && w.result == CHECKPOINT_SAVED && w.seconds >= 1e-3 * 4 * SNAPSHOT_READS_MS);
    CHECK(checkpoint_writer_close(&w) == CHECKPOINT_SAVED);
    CHECK(whole(50) && whole(40)); // -nk 2
    CHECK(!file_exists(file_of("DONE_%08d", 30)) && !file_exists(file_of("model_%08d.bin", 30)));
    checkpoint_delete(folder(), 40);
    checkpoint_delete(folder(), 50);
    free_model(&model);
}

// A save that is given up leaves nothing of its step, and the one before it; the run's first is waited for.
static void a_save_is_given_up_for_a_newer_one(void) {
    CheckpointWriter w;
    GPT2 model = make_model(1, 1.0f);
    model.reading = slow;
    open_writer(&w, &model, 1, 0, -1);
    save(&w, 10);
    checkpoint_writer_give_up(&w);
    CHECK(checkpoint_writer_wait(&w) == CHECKPOINT_SAVED && whole(10));
    checkpoint_writer_give_up(&w); // nothing is under way
    CHECK(w.result == CHECKPOINT_SAVED);
    save(&w, 20);
    checkpoint_writer_give_up(&w);
    CHECK(w.result == CHECKPOINT_GIVEN_UP && !w.has_thread && whole(10));
    CHECK(!file_exists(file_of("DONE_%08d", 20)) && !file_exists(file_of("model_%08d.bin", 20)));
    CHECK(!file_exists(file_of("model_%08d.bin.tmp", 20)) && !file_exists(file_of("state_%08d_00000.bin.tmp", 20)));
    save(&w, 21);
    CHECK(checkpoint_writer_close(&w) == CHECKPOINT_SAVED && whole(21) && whole(10));
    checkpoint_delete(folder(), 10);
    checkpoint_delete(folder(), 21);
    free_model(&model);
}

static void without_memory_for_a_snapshot_the_trainer_writes(void) {
    CheckpointWriter w;
    GPT2 model = make_model(1, 1.0f);
    model.no_snapshot = 1;
    open_writer(&w, &model, 1, 0, -1);
    save(&w, 10);
    CHECK(!w.has_thread && checkpoint_writer_poll(&w) == CHECKPOINT_SAVED && whole(10));
    CHECK(checkpoint_writer_close(&w) == CHECKPOINT_SAVED);
    checkpoint_delete(folder(), 10);
    free_model(&model);
}

static void a_folder_that_is_gone_comes_back(void) {
    CheckpointWriter w;
    GPT2 model = make_model(1, 1.0f);
    RunFolder own = run_folder;
    snprintf(run_folder.path, sizeof(run_folder.path), "%s/gone", folder());
    open_writer(&w, &model, 1, 0, -1);
    save(&w, 10);
    CHECK(checkpoint_writer_wait(&w) == CHECKPOINT_SAVED);
    checkpoint_delete(run_folder.path, 10);
    CHECK(rmdir(run_folder.path) == 0);
    unit_write(run_folder.path, "", 0); // and something else is there
    save(&w, 20);
    CHECK(checkpoint_writer_wait(&w) == CHECKPOINT_FAILED && strstr(w.message, "Not a directory") != NULL);
    remove(run_folder.path);
    save(&w, 30);
    CHECK(checkpoint_writer_close(&w) == CHECKPOINT_SAVED && checkpoint_verify(run_folder.path, 30) == STATUS_OK);
    checkpoint_delete(run_folder.path, 30);
    CHECK(rmdir(run_folder.path) == 0);
    run_folder = own;
    free_model(&model);
}

static void a_number_that_is_not_finite_ends_the_run(void) {
    for (int in_background = 0; in_background < 2; in_background++) {
        CheckpointWriter w;
        GPT2 model = make_model(1, 1.0f);
        open_writer(&w, &model, in_background, 0, -1);
        model.blocks[GPT2_MOMENTS2][3] = NAN;
        save(&w, 10);
        CHECK(checkpoint_writer_wait(&w) == CHECKPOINT_NOT_FINITE && !file_exists(file_of("state_%08d_00000.bin", 10)));
        CHECK(strstr(w.message, "second moments: wte, element 3 is nan") != NULL);
        CHECK(checkpoint_writer_close(&w) == CHECKPOINT_NOT_FINITE);
        free_model(&model);
    }
}

#ifndef __SANITIZE_THREAD__
// Saves step 10, then, with files of up to so many bytes, step 20; then without a limit step 30. The exit code says what
// became of the three: a digit for each.
static void save_three(int in_background, rlim_t limit) {
    CheckpointWriter w;
    struct rlimit r = {limit, RLIM_INFINITY}, none = {RLIM_INFINITY, RLIM_INFINITY};
    GPT2 model = make_model(1, 1.0f);
    signals_install(); // as in a run: a write beyond the limit fails, and does not end the program
    open_writer(&w, &model, in_background, 1, -1);
    save(&w, 10);
    int first = checkpoint_writer_wait(&w);
    setrlimit(RLIMIT_FSIZE, &r);
    save(&w, 20);
    int second = checkpoint_writer_wait(&w), kept = whole(10) && !file_exists(file_of("DONE_%08d", 20));
    setrlimit(RLIMIT_FSIZE, &none);
    save(&w, 30);
    int third = checkpoint_writer_close(&w);
    free_model(&model);
    _exit(first == CHECKPOINT_SAVED && second == CHECKPOINT_FAILED && kept && third == CHECKPOINT_SAVED ? 7 : 8);
}

static void a_failed_save_is_told_and_tried_again(void) {
    for (int in_background = 0; in_background < 2; in_background++) {
        for (rlim_t limit = 0; limit < 200000; limit += 39000) {
            if (unit_fork()) { save_three(in_background, limit); }
            UnitChild child = unit_wait();
            CHECK(child.exit_code == 7 && strstr(child.text, "warning: checkpoint 00000020 was not written: cannot "));
            CHECK(strstr(child.text, "00000010; trying again at step 30") != NULL && strstr(child.text, "too large"));
            CHECK(whole(30) && !file_exists(file_of("DONE_%08d", 10)) && !file_exists(file_of("model_%08d.bin", 20)));
            checkpoint_delete(folder(), 30);
        }
    }
}

// Saves again and again, until it is killed.
static void save_for_ever(void) {
    CheckpointWriter w;
    GPT2 model = make_model(1, 1.0f);
    open_writer(&w, &model, 1, 2, 10);
    for (int step = 20;; step += 10) { save(&w, step); }
}

// The newest checkpoint that looks whole is whole, and all others that do.
static void a_kill_at_any_moment_leaves_a_whole_checkpoint(void) {
    CheckpointWriter w;
    GPT2 model = make_model(1, 1.0f);
    int kills = 40, whole_ones = 0, moved = 0;
    for (int i = 0; i < kills; i++) {
        RunFolderScan scan;
        open_writer(&w, &model, 0, 0, -1);
        save(&w, 10);
        checkpoint_writer_close(&w);
        if (unit_fork()) { save_for_ever(); }
        pause_ms(2 + 53 * i % 97);
        kill(unit_pid, SIGKILL);
        unit_wait();
        check(run_folder_scan(&scan, folder()));
        int newest = run_folder_next(&scan, INT_MAX), good = newest >= 10;
        for (int step = newest; step >= 0; step = run_folder_next(&scan, step)) { good = good && whole(step); }
        whole_ones += good;
        moved += newest > 10;
        for (size_t j = 0; j < scan.num_files; j++) { remove(file_of(scan.files[j].name, 0)); }
        run_folder_scan_free(&scan);
    }
    CHECK(whole_ones == kills);
    CHECK(moved > 0);
    free_model(&model);
}
#endif

int main(void) {
    snprintf(run_folder.path, sizeof(run_folder.path), "%s", folder());
    run_folder.lock = -1;
    outliers = make_outliers();
    open_loader(&loader, 1);
#ifndef __SANITIZE_THREAD__
    dup2(open("/dev/null", O_WRONLY), STDERR_FILENO); // the warnings of what is meant to fail
#endif
    the_files_are_those_of_a_save_that_training_waits_for();
    the_next_save_waits_for_the_last();
    a_save_is_given_up_for_a_newer_one();
    without_memory_for_a_snapshot_the_trainer_writes();
    a_folder_that_is_gone_comes_back();
    a_number_that_is_not_finite_ends_the_run();
#ifndef __SANITIZE_THREAD__ // it follows no thread of a forked process
    a_failed_save_is_told_and_tried_again();
    a_kill_at_any_moment_leaves_a_whole_checkpoint();
#endif
    dataloader_close(&loader);
    return unit_end();
}
