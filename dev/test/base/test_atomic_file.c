// llmc/base/atomic_file.h: files that are whole or not at all, and failures that leave no .tmp file and end no program.
#include "dev/test/fixtures/file_calls.h" // before the header whose calls it records

#include "llmc/base/atomic_file.h"

#include "dev/test/fixtures/unit.h"

static int says(Status status, const char* words) {
    int ok = status == STATUS_ERROR && strstr(status_message(), words) != NULL;
    if (!ok) { printf("    expected %s in: %s\n", words, status_message()); }
    return ok;
}

static void files_are_whole_or_not_at_all(void) {
    const char *path = unit_path("state.bin"), *temporary = unit_path("state.bin.tmp");
    AtomicFile file;
    unit_write(path, "old", 3);
    CHECK(atomic_open(&file, path) == STATUS_OK);
    CHECK(atomic_write(&file, "new and ", 8) == STATUS_OK);
    fflush(file.file);
    CHECK(unit_file_is(path, "old")); // the old one until the very end
    CHECK(atomic_write(&file, "longer", 6) == STATUS_OK);
    CHECK(atomic_overwrite(&file, 4, "AND", 3) == STATUS_OK && atomic_write(&file, ".", 1) == STATUS_OK);
    CHECK(atomic_commit(&file) == STATUS_OK);
    CHECK(unit_file_is(path, "new AND longer."));
    CHECK(!file_exists(temporary));
    CHECK(says(atomic_write(&file, "x", 1), "cannot write")); // it is committed
    status_clear();
    CHECK(says(atomic_commit(&file), "state.bin.tmp"));
}

static void abandoning_keeps_what_was_there(void) {
    const char* path = unit_path("state.bin");
    AtomicFile file;
    unit_write(path, "old", 3);
    CHECK(atomic_open(&file, path) == STATUS_OK && atomic_write(&file, "new", 3) == STATUS_OK);
    atomic_abandon(&file);
    atomic_abandon(&file); // again does nothing
    CHECK(unit_file_is(path, "old") && !file_exists(unit_path("state.bin.tmp")));
}

static void opening_names_the_file_and_the_fault(void) {
    AtomicFile file;
    char long_path[2000];
    CHECK(says(atomic_open(&file, "no/such/folder/x"), "cannot open no/such/folder/x.tmp: No such file"));
    CHECK(says(atomic_write(&file, "x", 1), "cannot open no/such/folder/x.tmp: No such file"));
    memset(long_path, 'x', sizeof(long_path) - 1);
    long_path[sizeof(long_path) - 1] = '\0';
    CHECK(says(atomic_open(&file, long_path), "longer than 1023 bytes: xxxx"));
    long_path[1023] = '\0'; // one that fits but for what the file system allows a name
    CHECK(says(atomic_open(&file, long_path), "xxxx.tmp: File name too long"));
}

static void a_failed_rename_leaves_nothing(void) {
    const char *path = unit_path("folder"), *temporary = unit_path("folder.tmp");
    AtomicFile file;
    create_directory(path); // a directory is in the way
    CHECK(atomic_open(&file, path) == STATUS_OK && atomic_write(&file, "x", 1) == STATUS_OK);
    CHECK(file_exists(temporary));
    CHECK(says(atomic_commit(&file), "cannot rename") && strstr(status_message(), "folder.tmp"));
    CHECK(!file_exists(temporary));
    rmdir(path);
}

// What a rename would refuse, or replace by a file, can be known before.
static void names_that_no_file_can_have_are_refused(void) {
    const char *folder = unit_path("folder"), *pipe_name = unit_path("pipe"), *path = unit_path("kept");
    create_directory(folder);
    CHECK(says(atomic_check(folder), "folder: Is a directory"));
    CHECK(mkfifo(pipe_name, 0644) == 0 && says(atomic_check(pipe_name), "pipe: it is a pipe or a device, not a file"));
    CHECK(says(atomic_check("no/such/folder/x"), "cannot open no/such/folder/x.tmp: No such file"));
    unit_write(path, "old", 3);
    CHECK(atomic_check(path) == STATUS_OK && unit_file_is(path, "old") && atomic_check(unit_path("new")) == STATUS_OK);
    CHECK(!file_exists(unit_path("new")) && !file_exists(unit_path("new.tmp")) && !file_exists(unit_path("kept.tmp")));
    rmdir(folder);
}

// /dev/full is a disk without space; the .tmp file is a link to it.
static void a_full_disk_is_noticed(void) {
    const char *path = unit_path("model.bin"), *temporary = unit_path("model.bin.tmp");
    static char large[1 << 20];
    AtomicFile file;
    for (int small = 0; small < 2; small++) { // small: the buffer hides it until the commit
        unit_write(path, "old", 3);
        if (symlink("/dev/full", temporary) != 0) { fatal("cannot link %s: %s", temporary, strerror(errno)); }
        CHECK(atomic_open(&file, path) == STATUS_OK);
        Status written = atomic_write(&file, large, small ? 1 : sizeof(large));
        CHECK(small ? written == STATUS_OK : says(written, "model.bin.tmp: No space left on device"));
        CHECK(says(atomic_commit(&file), "model.bin.tmp: No space left on device"));
        CHECK(!file_exists(temporary) && unit_file_is(path, "old"));
        status_clear();
        CHECK(says(atomic_write(&file, large, 1), "cannot write") && says(atomic_commit(&file), "cannot write"));
    }
}

static Status write_text(const char* path, const char* text) {
    AtomicFile file;
    TRY(atomic_open(&file, path));
    TRY(atomic_write(&file, text, strlen(text)));
    return atomic_commit(&file);
}

// A power failure at any moment leaves the old file or the new one: its bytes are on the disk before its name is, and the name
// before the commit has succeeded.
static void bytes_reach_the_disk_before_the_name(void) {
    const char* path = unit_path("state.bin");
    file_calls_begin();
    CHECK(write_text(path, "new") == STATUS_OK);
    CHECK(file_calls_are(
        "fsync state.bin.tmp, close state.bin.tmp, rename state.bin.tmp to state.bin, fsync its folder"));
    CHECK(unit_file_is(path, "new") && file_calls.synced == file_digest(path)); // nothing was in a buffer any more
}

static int is_one_note(const UnitChild* child, const char* words) {
    const char* end = strchr(child->text, '\n');
    int ok = child->exit_code == 0 && strncmp(child->text, "note: ", 6) == 0 && strstr(child->text, words) != NULL &&
             end == child->text + child->length - 1;
    if (!ok) { printf("    exit code %d and: %s\n", child->exit_code, child->text); }
    return ok;
}

// What a file system does not have is noted once, and the file is there.
static void a_missing_fsync_is_passed_over(void) {
    static const int errors[] = {EINVAL, ENOTSUP, EOPNOTSUPP, ENOSYS, EBADF, EACCES};
    int* const faults[] = {&file_faults.sync_folder, &file_faults.open_folder, &file_faults.sync_file};
    const char* path = unit_path("state.bin");
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < (k == 2 ? 4 : 6); i++) { // a file is open for writing
            remove(path);
            file_calls_begin();
            *faults[k] = errors[i];
            if (unit_fork()) {
                int written = write_text(path, "old") == STATUS_OK && write_text(path, "new") == STATUS_OK;
                _exit(!written);
            }
            UnitChild child = unit_wait();
            CHECK(is_one_note(&child, k == 2 ? "has no fsync of files (" : "has no fsync of directories ("));
            CHECK(strstr(child.text, strerror(errors[i])) != NULL && strstr(child.text, unit_folder) != NULL);
            CHECK(unit_file_is(path, "new"));
        }
    }
    file_calls_begin();
}

static void a_failed_call_is_no_missing_one(void) {
    static const int errors[] = {EIO, ENOSPC, EDQUOT, EROFS};
    int* const faults[] = {&file_faults.sync_folder, &file_faults.open_folder, &file_faults.sync_file,
                           &file_faults.close, &file_faults.rename};
    const char* path = unit_path("state.bin");
    for (int k = 0; k < 5; k++) {
        for (int i = 0; i < 4; i++) {
            remove(path);
            file_calls_begin();
            *faults[k] = errors[i];
            CHECK(says(write_text(path, "new"), strerror(errors[i])) &&
                  says(STATUS_ERROR, k == 4 ? "rename" : "write"));
            CHECK(!file_exists(unit_path("state.bin.tmp")) && file_exists(path) == (k < 2));
            CHECK(temporary_files[0].state == TEMPORARY_FREE);
        }
    }
    file_calls_begin();
    file_faults.sync_file = EBADF; // nor is it for a file, which is open for writing
    CHECK(says(write_text(path, "new"), strerror(EBADF)));
    file_calls_begin();
}

// What can never be saved is known before a run begins; what was tried leaves nothing.
static void a_probe_tells_what_saving_would(void) {
    static const int errors[] = {ENOSYS, EPERM, EXDEV, EOPNOTSUPP};
    const char* folder = unit_path("probed");
    create_directory(folder);
    file_calls_begin();
    CHECK(atomic_probe(folder, 3 << 20) == STATUS_OK && strstr(file_calls.text, "fsync probe_") != NULL);
    for (int i = 0; i < 4; i++) {
        file_calls_begin();
        file_faults.rename = errors[i];
        CHECK(says(atomic_probe(folder, 1), strerror(errors[i])) && says(STATUS_ERROR, "cannot rename"));
    }
    file_calls_begin();
    file_faults.sync_folder = EIO;
    CHECK(says(atomic_probe(folder, 1), strerror(EIO)));
    file_calls_begin();
    file_faults.seek = ESPIPE; // a store that takes bytes in order only: no checkpoint's header could be completed
    CHECK(says(atomic_probe(folder, 1), strerror(ESPIPE)));
    file_calls_begin();
    CHECK(says(atomic_probe("no/such/folder", 1), "cannot open no/such/folder/probe_"));
    CHECK(rmdir(folder) == 0); // nothing is left
}

static int threads_stop, threads_made;

// Creates a file and gives it up, again and again.
static void* creates_files(void* path) {
    while (!__atomic_load_n(&threads_stop, __ATOMIC_RELAXED)) {
        AtomicFile file;
        if (atomic_open(&file, (const char*)path) != STATUS_OK) { continue; }
        atomic_abandon(&file);
        __atomic_store_n(&threads_made, 1, __ATOMIC_RELAXED);
    }
    return NULL;
}

static int slow_began;

// Creates a file, slowly.
static void* creates_slowly(void* path) {
    sigset_t mask;
    CHECK(temporary_begin(&mask));
    __atomic_store_n(&slow_began, 1, __ATOMIC_RELEASE);
    poll(NULL, 0, 100);
    unit_write((const char*)path, "x", 1);
    CHECK(temporary_add((const char*)path) >= 0);
    temporary_end(&mask);
    return NULL;
}

static void the_end_waits_for_a_file_that_is_created(void) {
    const char* path = unit_path("slow.bin.tmp");
    pthread_t thread;
    CHECK(thread_start(&thread, creates_slowly, (void*)path));
    while (!__atomic_load_n(&slow_began, __ATOMIC_ACQUIRE)) { poll(NULL, 0, 1); }
    temporary_unlink_all();
    CHECK(temporary_opening == 0);
    pthread_join(thread, NULL);
    CHECK(!file_exists(path));
    temporary_ending = 0;
}

// In a folder that was deleted, another run may have begun, with files of the same names.
static void the_end_leaves_the_files_of_others(void) {
    const char *path = unit_path("main.lock"), *aside = unit_path("aside");
    unit_write(path, "ours", 4);
    int slot = temporary_add(path);
    CHECK(slot >= 0 && rename(path, aside) == 0);
    unit_write(path, "another's", 9);
    temporary_unlink_all();
    CHECK(file_exists(path));
    CHECK(rename(aside, path) == 0);
    temporary_unlink_all();
    CHECK(!file_exists(path));
    temporary_remove(slot);
    temporary_ending = 0;
}

// A thread may be about to create a file when another has ended the run: the process is gone before it can remove it.
static void no_file_comes_once_the_process_ends(void) {
    const char* temporary = unit_path("late.bin.tmp");
    AtomicFile file;
    pthread_t thread;
    int seen = 0;
    CHECK(thread_start(&thread, creates_files, (void*)unit_path("late.bin")));
    while (!__atomic_load_n(&threads_made, __ATOMIC_RELAXED)) { poll(NULL, 0, 1); }
    temporary_unlink_all();
    for (double end = wall_seconds() + 0.2; wall_seconds() < end;) { seen += file_exists(temporary); }
    CHECK(seen == 0);
    __atomic_store_n(&threads_stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
    CHECK(says(atomic_open(&file, unit_path("late.bin")), "cannot open") && !file_exists(temporary));
}

int main(void) {
    files_are_whole_or_not_at_all();
    abandoning_keeps_what_was_there();
    opening_names_the_file_and_the_fault();
    a_failed_rename_leaves_nothing();
    names_that_no_file_can_have_are_refused();
    a_full_disk_is_noticed();
    bytes_reach_the_disk_before_the_name();
    a_missing_fsync_is_passed_over();
    a_failed_call_is_no_missing_one();
    a_probe_tells_what_saving_would();
    the_end_waits_for_a_file_that_is_created();
    the_end_leaves_the_files_of_others();
    no_file_comes_once_the_process_ends(); // the last: no file can be made from here on
    return unit_end();
}
