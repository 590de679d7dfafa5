// llmc/files/run_folder.h: what it finds in a folder, which checkpoint it takes, what it removes, and that one run is in it.
#include "llmc/files/run_folder.h"

#include <signal.h>

#include "dev/test/fixtures/unit.h"

static const char* folder(void) {
    unit_path("main.log"); // makes the directory
    return unit_folder;
}

static void put(const char* name) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder(), name);
    unit_write(path, "x\n", 2);
}

static int there(const char* name) {
    char path[512];
    snprintf(path, sizeof(path), "%s/%s", folder(), name);
    return file_exists(path);
}

static void put_checkpoint(int step) {
    char name[64];
    snprintf(name, sizeof(name), "model_%08d.bin", step);
    put(name);
    snprintf(name, sizeof(name), "state_%08d_00000.bin", step);
    put(name);
    snprintf(name, sizeof(name), "DONE_%08d", step);
    put(name);
}

// The files of a run that are there, of which 3 make a checkpoint
static int count(void) {
    RunFolderScan scan;
    check(run_folder_scan(&scan, folder()));
    int n = (int)scan.num_files;
    run_folder_scan_free(&scan);
    return n;
}

static int has_checkpoint(int step) {
    RunFolderScan scan;
    check(run_folder_scan(&scan, folder()));
    int found = folder_complete_(&scan, step);
    run_folder_scan_free(&scan);
    return found;
}

// The numbers of the whole checkpoints, newest first: "40 30"
static const char* checkpoints(void) {
    static char text[256];
    RunFolderScan scan;
    text[0] = '\0';
    check(run_folder_scan(&scan, folder()));
    for (int step = run_folder_next(&scan, INT_MAX); step >= 0; step = run_folder_next(&scan, step)) {
        snprintf(text + strlen(text), sizeof(text) - strlen(text), "%s%d", text[0] ? " " : "", step);
    }
    run_folder_scan_free(&scan);
    return text;
}

static int checkpoints_are(const char* expected) {
    int same = strcmp(checkpoints(), expected) == 0;
    if (!same) { printf("    checkpoints %s, expected %s\n", checkpoints(), expected); }
    return same;
}

// ----------------------------------------------------------------------------

static void names_are_a_runs_or_not(void) {
    static const char* const ours[] = {"model_00000020.bin",
                                       "state_00000020_00000.bin",
                                       "DONE_00000020",
                                       "DONE_123456789",
                                       "state_2147483647_00007.bin",
                                       "main.log",
                                       "main.jsonl",
                                       "model_00000020.bin.tmp",
                                       "state_00000020_00000.bin.tmp",
                                       "DONE_00000020.tmp",
                                       "model_2147483647.bin.tmp",
                                       "main.log.tmp",
                                       "main.flags",
                                       "main.flags.tmp"};
    static const char* const others[] = {"model.bin",
                                         "model_20.bin",
                                         "model_0000020.bin",
                                         "model_00000020.bin.old",
                                         "DONE_0000002x",
                                         "DONE_00000020x",
                                         "DONE_+0000020",
                                         "DONE_-0000020",
                                         ".tmp",
                                         "DONE_2147483648",
                                         "DONE_99999999999999999",
                                         "DONE_000000020",
                                         "DONE_",
                                         "state_00000020.bin",
                                         "state_00000020_0.bin",
                                         "state_00000020_000000.bin",
                                         "my main.log",
                                         "main.log2",
                                         "main.flags2",
                                         "main.json",
                                         "main.jsonl2",
                                         "notes.tmp",
                                         "xmodel_00000020.bin",
                                         "model_00000020bin",
                                         "model_00000020.safetensors",
                                         "lock"};
    FolderFile file;
    for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
        if (!CHECK(folder_parse_(&file, ours[i]))) { printf("    %s\n", ours[i]); }
    }
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (!CHECK(!folder_parse_(&file, others[i]))) { printf("    %s\n", others[i]); }
    }
    CHECK(folder_parse_(&file, "DONE_123456789") && file.step == 123456789 && file.kind == FOLDER_DONE);
    CHECK(folder_parse_(&file, "state_00000020_00000.bin.tmp") && file.kind == FOLDER_TEMPORARY);
}

static void folders_that_are_none(void) {
    RunFolderScan scan;
    CHECK(run_folder_scan(&scan, "no/such/place") == STATUS_OK && !scan.exists && scan.num_files == 0);
    put("main.log");
    CHECK(run_folder_scan(&scan, unit_path("main.log")) != STATUS_OK &&
          strstr(status_message(), "cannot read the directory"));
    char long_name[2000];
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    CHECK(run_folder_scan(&scan, long_name) != STATUS_OK && strstr(status_message(), "longer than 680"));
    unit_clean();
}

// A log with the run's id alone is of a run that ended before its first step.
static void a_log_of_no_step_is_no_run(void) {
    static const struct {
        const char* text;
        int has_lines;
    } logs[] = {{"", 0},
                {"s:0 run:7022395793321658704\n", 0},
                {"s:0 run:7022395793321658704\ns:0 tel:5.5\n", 1},
                {"s:0 tel:5.5\n", 1}, // llm.c's
                {"s:20 run:7\n", 1},
                {"x", 1}};
    for (size_t i = 0; i < sizeof(logs) / sizeof(logs[0]); i++) {
        RunFolderScan scan;
        unit_write(unit_path("main.log"), logs[i].text, strlen(logs[i].text));
        check(run_folder_scan(&scan, folder()));
        if (!CHECK(scan.log_has_lines == logs[i].has_lines)) { printf("    %s\n", logs[i].text); }
        run_folder_scan_free(&scan);
    }
    unit_clean();
}

static int damaged[4]; // steps that `verify` refuses

static Status verify(const char* path, int step) {
    for (int i = 0; i < 4; i++) {
        if (damaged[i] == step) { return status_fail("%s/model_%08d.bin: block 3 is damaged", path, step); }
    }
    return STATUS_OK;
}

// The newest whole checkpoint, and what is said on the way
static int newest(RunFolder* f, const char* said) {
    RunFolderScan scan;
    int out = dup(STDOUT_FILENO);
    const char* path = unit_path("said");
    fflush(stdout);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || dup2(fd, STDOUT_FILENO) < 0) { fatal("cannot write %s", path); }
    close(fd);
    check(run_folder_scan(&scan, folder()));
    int step = run_folder_newest(f, &scan, verify);
    run_folder_scan_free(&scan);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    close(out);
    CHECK(unit_file_is(path, said));
    remove(path);
    return step;
}

static void the_newest_whole_checkpoint_is_taken(void) {
    RunFolder f = {.lock = -1, .slot = -1};
    char said[1200];
    CHECK(newest(&f, "") == -1);
    put_checkpoint(100), put_checkpoint(90), put_checkpoint(20);
    CHECK(newest(&f, "") == 100);
    put_checkpoint(123456789); // more than 8 digits
    CHECK(newest(&f, "") == 123456789);
    put("DONE_00000110"), put("model_00000110.bin");            // no state
    put("model_00000120.bin"), put("state_00000120_00000.bin"); // no DONE, and older
    CHECK(newest(&f, "") == 123456789);
    damaged[0] = 123456789, damaged[1] = 100;
    snprintf(said, sizeof(said),
             "note: skipped checkpoint 123456789: %s/model_123456789.bin: block 3 is damaged\n"
             "note: skipped checkpoint 100: %s/model_00000100.bin: block 3 is damaged\n"
             "note: skipped checkpoint 110: %s/state_00000110_00000.bin is not there\n"
             "note: checkpoint 120 is whole, though there is no DONE_00000120\n",
             folder(), folder(), folder());
    CHECK(newest(&f, said) == 120);
    CHECK(f.num_damaged == 2 && strstr(f.damage, "model_123456789.bin"));
    CHECK(has_checkpoint(100) && has_checkpoint(123456789)); // they are left alone
    free(f.damaged);
    memset(damaged, 0, sizeof(damaged));
    unit_clean();
}

// A kill just before DONE, or a copy without empty files
static void a_checkpoint_that_lacks_its_DONE_alone_is_taken(void) {
    RunFolder f = {.lock = -1, .slot = -1};
    RunFolderScan scan;
    const char* said = "note: checkpoint 120 is whole, though there is no DONE_00000120\n";
    put_checkpoint(100), put("model_00000120.bin"), put("state_00000120_00000.bin");
    put("model_00000140.bin"), put("state_00000140_00000.bin"), damaged[0] = 140;
    CHECK(newest(&f, said) == 120 && !there("DONE_00000120")); // nothing is written yet
    check(run_folder_scan(&scan, folder()));
    CHECK(run_folder_newest(&f, &scan, verify) == 120);
    check(run_folder_clean(&scan, 120));
    run_folder_scan_free(&scan);
    CHECK(checkpoints_are("120 100") && count() == 6); // what a kill left of 140 is gone
    put_checkpoint(130), put("model_00000125.bin"), put("state_00000125_00000.bin");
    damaged[0] = 0;
    CHECK(newest(&f, "") == 130); // 125 is older, and goes
    unit_clean();
}

// A checkpoint whose files cannot be opened, for want of permission or of a disk that a link leads to, may be whole: a run that
// passed it over would replace it.
static void what_cannot_be_opened_is_not_passed_over(void) {
    RunFolder f = {.lock = -1, .slot = -1};
    put_checkpoint(20), put_checkpoint(40);
    damaged[0] = 40;
    remove(unit_path("state_00000040_00000.bin"));
    CHECK(symlink("/no/such/disk", unit_path("state_00000040_00000.bin")) == 0);
    CHECK_FATAL("state_00000040_00000.bin|No such file or directory", newest(&f, ""));
    damaged[0] = 0;
    unit_clean();
}

static void what_a_killed_run_left_goes(void) {
    RunFolderScan scan;
    put_checkpoint(20), put_checkpoint(40), put_checkpoint(60);
    put("main.log"), put("notes.txt"), put("my.tmp");
    put("model_00000080.bin.tmp"), put("state_00000080_00000.bin"); // killed while it wrote 80
    put("DONE_00000050");                                           // stray
    put("state_00000010_00000.bin");                                // killed while it deleted 10
    put("model_00000030.bin"), put("model_00000070.bin");           // kept by somebody, for their weights
    check(run_folder_scan(&scan, folder()));
    check(run_folder_clean(&scan, 40)); // 60 was passed over
    run_folder_scan_free(&scan);
    CHECK(checkpoints_are("60 40 20"));
    CHECK(count() == 3 * 3 + 1 + 2 && there("notes.txt") && there("my.tmp") && there("main.log"));
    CHECK(there("model_00000030.bin") && there("model_00000070.bin"));
    check(run_folder_scan(&scan, folder()));
    check(run_folder_clear(&scan)); // --overwrite
    run_folder_scan_free(&scan);
    CHECK(count() == 0 && there("notes.txt") && there("my.tmp"));
    unit_clean();
    put("state_00000020_00000.bin"), put("main.log"); // killed while it wrote its first
    check(run_folder_scan(&scan, folder()));
    check(run_folder_clean(&scan, -1));
    run_folder_scan_free(&scan);
    CHECK(count() == 1 && there("main.log"));
    unit_clean();
}

// A checkpoint of which somebody has taken a file away is not what a kill leaves: there is no DONE then. What is left stays.
static void what_somebody_took_apart_stays(void) {
    RunFolderScan scan;
    put_checkpoint(20), put_checkpoint(40), put_checkpoint(60);
    remove(unit_path("state_00000040_00000.bin")); // for room
    remove(unit_path("model_00000060.bin"));       // moved
    check(run_folder_scan(&scan, folder()));
    CHECK(run_folder_apart(&scan) == 60);
    check(run_folder_clean(&scan, 20));
    run_folder_scan_free(&scan);
    CHECK(count() == 3 + 2 + 2 && there("model_00000040.bin") && there("state_00000060_00000.bin"));
    put_checkpoint(60), put_checkpoint(80);
    check(run_folder_scan(&scan, folder()));
    CHECK(run_folder_apart(&scan) == 40); // newer ones are whole
    run_folder_scan_free(&scan);
    put_checkpoint(40);
    check(run_folder_scan(&scan, folder()));
    CHECK(run_folder_apart(&scan) == -1);
    run_folder_scan_free(&scan);
    unit_clean();
}

static void put_checkpoints(int last, int every) {
    unit_clean();
    for (int step = every; step <= last; step += every) { put_checkpoint(step); }
}

static void keeping_counts_what_is_there(void) {
    int bad[] = {40, 70};
    RunFolder f = {.lock = -1, .slot = -1};
    snprintf(f.path, sizeof(f.path), "%s", folder());
    put_checkpoints(100, 10);
    CHECK(run_folder_keep(&f, 0, 0, 100) == STATUS_OK && checkpoints_are("100 90 80 70 60 50 40 30 20 10"));
    CHECK(run_folder_keep(&f, 3, 40, 100) == STATUS_OK && checkpoints_are("100 90 80 40"));
    CHECK(count() == 12); // no file of the others is left
    CHECK(run_folder_keep(&f, 3, 40, 100) == STATUS_OK && checkpoints_are("100 90 80 40"));
    CHECK(run_folder_keep(&f, 1, 0, 100) == STATUS_OK && checkpoints_are("100"));
    put_checkpoints(100, 10); // step 55 is written after 60..100 were passed over: those stay for now
    put_checkpoint(55);
    CHECK(run_folder_keep(&f, 2, 0, 55) == STATUS_OK && checkpoints_are("100 90 80 70 60 55 50"));
    put_checkpoints(100, 10); // damaged ones neither count nor stay, once a newer one is whole
    f.damaged = bad, f.num_damaged = 2;
    CHECK(run_folder_keep(&f, 3, 0, 50) == STATUS_OK && checkpoints_are("100 90 80 70 60 50 30 20"));
    CHECK(run_folder_keep(&f, 3, 0, 80) == STATUS_OK && checkpoints_are("100 90 80 60 50"));
    put_checkpoints(100, 10); // a damaged one that the run has written anew is whole, and counts
    CHECK(run_folder_keep(&f, 0, 0, 70) == STATUS_OK && run_folder_keep(&f, 2, 0, 80) == STATUS_OK);
    CHECK(checkpoints_are("100 90 80 70"));
    unit_clean();
    put("DONE_00000010"), put_checkpoint(20), put_checkpoint(30); // a stray DONE is no checkpoint
    f.num_damaged = 0;
    CHECK(run_folder_keep(&f, 2, 0, 30) == STATUS_OK && checkpoints_are("30 20"));
    snprintf(f.path, sizeof(f.path), "no/such/place");
    CHECK(run_folder_keep(&f, 1, 0, 30) == STATUS_OK); // a folder that is gone is no reason to end
    unit_clean();
}

// A child that takes the lock, says so, and waits until it is killed
static pid_t child_with_lock(void) {
    int channel[2];
    char byte;
    if (pipe(channel) != 0) { fatal("cannot make a pipe"); }
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        RunFolder f;
        byte = run_folder_lock(&f, folder()) == STATUS_OK ? 'y' : 'n';
        if (write(channel[1], &byte, 1) != 1) { _exit(1); }
        pause();
        _exit(0);
    }
    CHECK(read(channel[0], &byte, 1) == 1 && byte == 'y');
    close(channel[0]), close(channel[1]);
    return pid;
}

static void one_run_at_a_time(void) {
    RunFolder f, second;
    char holder[64], host[200] = "";
    pid_t child = child_with_lock();
    gethostname(host, sizeof(host) - 1);
    snprintf(holder, sizeof(holder), "process %d ", (int)child);
    CHECK(run_folder_lock(&f, folder()) != STATUS_OK);
    CHECK(strstr(status_message(), holder) && strstr(status_message(), host) && strstr(status_message(), folder()));
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(there("main.lock"));
    CHECK(run_folder_lock(&f, folder()) == STATUS_OK && f.lock >= 0); // the kernel has released it
    CHECK(run_folder_lock(&second, folder()) != STATUS_OK);           // also within a process
    run_folder_unlock(&f);
    CHECK(!there("main.lock"));
    run_folder_unlock(&second); // has none: removes nothing
    CHECK(run_folder_lock(&f, folder()) == STATUS_OK);
    run_folder_unlock(&f);
    CHECK(run_folder_lock(&f, "no/such/place") == STATUS_OK && f.lock < 0); // there is nothing to lock yet
    put("main.log");
    CHECK(run_folder_lock(&f, unit_path("main.log")) != STATUS_OK && strstr(status_message(), "main.log/main.lock"));
    unit_clean();
}

// What a killed run has left is taken, also half written. A run whose lock file somebody has removed does not remove the next
// run's.
static void others_locks_stay(void) {
    static const char* const left[] = {"", "12345", "12345 host\n"};
    const char* path = unit_path("main.lock");
    RunFolder f, second;
    for (size_t i = 0; i < sizeof(left) / sizeof(left[0]); i++) {
        unit_write(path, left[i], strlen(left[i]));
        CHECK(run_folder_lock(&f, folder()) == STATUS_OK && f.lock >= 0);
        run_folder_unlock(&f);
    }
    CHECK(run_folder_lock(&f, folder()) == STATUS_OK);
    remove(path);
    CHECK(run_folder_lock(&second, folder()) == STATUS_OK);
    run_folder_unlock(&f);
    CHECK(there("main.lock"));
    run_folder_unlock(&second);
    CHECK(!there("main.lock"));
    unit_clean();
}

// Whoever empties the folder of an active run: the run has its lock and its flags again at the next save.
static void a_deleted_folder_is_held_again(void) {
    RunFolder f, second;
    struct stat kept;
    CHECK(run_folder_lock(&f, folder()) == STATUS_OK && run_folder_hold(&f) == STATUS_OK); // it has no flags yet
    f.flags = "free -n 4\n", f.flags_bytes = 10;
    CHECK(run_folder_write_flags(&f) == STATUS_OK && run_folder_is_ours(&f));
    remove(unit_path("main.lock")), remove(unit_path("main.flags"));
    CHECK(!run_folder_is_ours(&f));
    CHECK(run_folder_hold(&f) == STATUS_OK && run_folder_is_ours(&f) &&
          unit_file_is(unit_path("main.flags"), "free -n 4\n"));
    CHECK(run_folder_lock(&second, folder()) != STATUS_OK);
    remove(unit_path("main.flags"));
    CHECK(run_folder_hold(&f) == STATUS_OK && there("main.flags"));
    put_checkpoint(10);
    remove(unit_path("main.lock")); // alone: the flags show whose folder it is
    CHECK(run_folder_is_ours(&f) && run_folder_hold(&f) == STATUS_OK && there("main.lock"));
    CHECK(stat(unit_path("main.flags"), &kept) == 0 && rename(unit_path("main.flags"), unit_path("kept")) == 0);
    remove(unit_path("main.lock"));
    unit_write(unit_path("main.flags"), "free -n 4\n", 10); // as of a second run of the same flags, which has ended
    CHECK(!run_folder_is_ours(&f) && run_folder_hold(&f) != STATUS_OK && strstr(status_message(), "of another run"));
    CHECK(!there("main.lock"));
    const struct timespec times[] = {kept.st_atim, kept.st_mtim}; // a copy that keeps times: from another disk
    CHECK(utimensat(AT_FDCWD, unit_path("main.flags"), times, 0) == 0 && run_folder_hold(&f) == STATUS_OK);
    remove(unit_path("main.lock")), remove(unit_path("main.flags"));
    CHECK(run_folder_lock(&second, folder()) == STATUS_OK && run_folder_hold(&f) != STATUS_OK);
    CHECK(strstr(status_message(), "is using it") && !there("main.flags"));
    run_folder_unlock(&f);
    CHECK(there("main.lock"));
    run_folder_unlock(&second);
    unit_clean();
}

int main(void) {
    names_are_a_runs_or_not();
    folders_that_are_none();
    a_log_of_no_step_is_no_run();
    the_newest_whole_checkpoint_is_taken();
    a_checkpoint_that_lacks_its_DONE_alone_is_taken();
    what_cannot_be_opened_is_not_passed_over();
    what_a_killed_run_left_goes();
    what_somebody_took_apart_stays();
    keeping_counts_what_is_there();
    one_run_at_a_time();
    others_locks_stay();
    a_deleted_folder_is_held_again();
    return unit_end();
}
