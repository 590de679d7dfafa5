/*
A file that is written whole or not at all: bytes go to <path>.tmp; commit flushes them to the disk, renames, and flushes the
directory. A crash in between leaves the old file, or none, never half of one. A file system that has no fsync, of files or of
directories, is noted once, and its files are written without.

    AtomicFile file;
    TRY(atomic_open(&file, path));
    TRY(atomic_write(&file, data, bytes));
    TRY(atomic_commit(&file));

Every failure removes the .tmp file, so nothing is left to clean up, and later calls fail, too; a caller that stops halfway
calls atomic_abandon(). Each thread may write a file.
*/
#ifndef LLMC_BASE_ATOMIC_FILE_H
#define LLMC_BASE_ATOMIC_FILE_H

#include <poll.h>
#include <signal.h>

#include "regular_file.h"
#include "utils.h"

// ----------------------------------------------------------------------------
// The files that are being written, for a signal handler that ends the program: it unlinks them, so that nothing half written
// remains. A file that another process has put under such a name stays: the folder may have been deleted and made anew.
// Thread-safe: a slot goes from free to taken to named and back, by atomic operations alone.

enum { TEMPORARY_FILES = 16, TEMPORARY_PATH = 1024 + 8 }; // at once; bytes of a path
enum { TEMPORARY_FREE, TEMPORARY_TAKEN, TEMPORARY_NAMED };

static struct {
    int state;
    dev_t device;
    ino_t number;
    char path[TEMPORARY_PATH];
} temporary_files[TEMPORARY_FILES];
static int temporary_ending;  // 1: the process ends
static int temporary_opening; // threads between temporary_begin and temporary_end

// Before a file is created and added: 0 if none may be, because the process ends. Blocks signals, whose handlers would wait for
// this thread.
static inline int temporary_begin(sigset_t* mask) {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, mask);
    __atomic_add_fetch(&temporary_opening, 1, __ATOMIC_SEQ_CST);
    if (!__atomic_load_n(&temporary_ending, __ATOMIC_SEQ_CST)) { return 1; }
    errno = ECANCELED;
    return 0;
}

static inline void temporary_end(const sigset_t* mask) {
    int error = errno;
    __atomic_sub_fetch(&temporary_opening, 1, __ATOMIC_SEQ_CST);
    pthread_sigmask(SIG_SETMASK, mask, NULL);
    errno = error;
}

// Adds the file of this path; returns its slot, or -1 if all are taken or the path is too long: then it would not be unlinked.
static inline int temporary_add(const char* path) {
    size_t length = strlen(path);
    struct stat st;
    if (stat(path, &st) != 0) { return -1; }
    for (int i = 0; i < TEMPORARY_FILES && length < TEMPORARY_PATH; i++) {
        int expected = TEMPORARY_FREE;
        if (__atomic_compare_exchange_n(&temporary_files[i].state, &expected, TEMPORARY_TAKEN, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            memcpy(temporary_files[i].path, path, length + 1);
            temporary_files[i].device = st.st_dev, temporary_files[i].number = st.st_ino;
            __atomic_store_n(&temporary_files[i].state, TEMPORARY_NAMED, __ATOMIC_RELEASE);
            return i;
        }
    }
    return -1;
}

// Takes back what temporary_add returned.
static inline void temporary_remove(int slot) {
    if (slot >= 0) { __atomic_store_n(&temporary_files[slot].state, TEMPORARY_FREE, __ATOMIC_RELEASE); }
}

// Unlinks all of them, when the process ends; async-signal-safe. A thread that still writes one writes to an unlinked file; one
// that creates one is waited for, a second at most.
static inline void temporary_unlink_all(void) {
    __atomic_store_n(&temporary_ending, 1, __ATOMIC_SEQ_CST);
    for (int ms = 0; ms < 1000 && __atomic_load_n(&temporary_opening, __ATOMIC_SEQ_CST) > 0; ms++) { poll(NULL, 0, 1); }
    for (int i = 0; i < TEMPORARY_FILES; i++) {
        struct stat st;
        if (__atomic_load_n(&temporary_files[i].state, __ATOMIC_ACQUIRE) == TEMPORARY_NAMED &&
            stat(temporary_files[i].path, &st) == 0 && st.st_dev == temporary_files[i].device &&
            st.st_ino == temporary_files[i].number) {
            unlink(temporary_files[i].path);
        }
    }
}

// ----------------------------------------------------------------------------

typedef struct {
    FILE* file; // NULL: committed, abandoned, or failed
    int slot;   // of the temporary file's name
    char path[1024];
    char temporary[1024 + 8];
} AtomicFile;

// Closes and removes the .tmp file; what stood under `path` before stays.
static inline void atomic_abandon(AtomicFile* a) {
    if (a->file == NULL) { return; }
    fclose(a->file);
    remove(a->temporary);
    temporary_remove(a->slot);
    a->file = NULL;
}

// Gives up the file, for the reason that errno says.
static inline Status atomic_fail_(AtomicFile* a, const char* what) {
    status_fail("cannot %s %s: %s", what, a->temporary, strerror(errno));
    atomic_abandon(a);
    return STATUS_ERROR;
}

// Fails where the file takes no more.
static inline Status atomic_usable_(AtomicFile* a) {
    if (a->file != NULL) { return STATUS_OK; }
    errno = EBADF;
    return atomic_fail_(a, "write");
}

// Opens <path>.tmp; the path has up to 1023 bytes. Begins with status_clear().
static inline Status atomic_open(AtomicFile* a, const char* path) {
    sigset_t mask;
    status_clear();
    memset(a, 0, sizeof(*a));
    if (strlen(path) >= sizeof(a->path)) {
        return status_fail("path is longer than %zu bytes: %s", sizeof(a->path) - 1, path);
    }
    strcpy(a->path, path);
    snprintf(a->temporary, sizeof(a->temporary), "%s.tmp", path);
    a->file = temporary_begin(&mask) ? fopen(a->temporary, "wb") : NULL;
    a->slot = a->file != NULL ? temporary_add(a->temporary) : -1;
    temporary_end(&mask);
    if (a->file != NULL) { return STATUS_OK; }
    return atomic_fail_(a, "open");
}

// Fails if no file can be written under this name: a folder, a pipe or a device has it, or its folder is not there or not
// to be written to. For what is written much later.
static inline Status atomic_check(const char* path) {
    AtomicFile file;
    struct stat st;
    status_clear();
    if (stat(path, &st) == 0 && !S_ISREG(st.st_mode)) {
        return status_fail("cannot write %s: %s", path, regular_file_fault(&st));
    }
    TRY(atomic_open(&file, path));
    atomic_abandon(&file);
    return STATUS_OK;
}

static inline Status atomic_write(AtomicFile* a, const void* src, size_t bytes) {
    TRY(atomic_usable_(a));
    return fwrite(src, 1, bytes, a->file) == bytes ? STATUS_OK : atomic_fail_(a, "write");
}

// Writes over bytes that were written before, at `offset` of the file; what follows goes on at its end.
static inline Status atomic_overwrite(AtomicFile* a, size_t offset, const void* src, size_t bytes) {
    TRY(atomic_usable_(a));
    if (fseeko(a->file, (off_t)offset, SEEK_SET) != 0) { return atomic_fail_(a, "write"); }
    TRY(atomic_write(a, src, bytes));
    return fseeko(a->file, 0, SEEK_END) == 0 ? STATUS_OK : atomic_fail_(a, "write");
}

// 1 for an error by which a file system says that it does not have a call; a call that failed has others.
static inline int atomic_not_supported(int error) { return error == EINVAL || error == EOPNOTSUPP || error == ENOSYS; }

// Says once in a program that a file system has no fsync of `what`.
static inline void atomic_note_(int* noted, const char* path, const char* what, const char* risk) {
    if (__atomic_exchange_n(noted, 1, __ATOMIC_RELAXED)) { return; }
    print_note("the file system of %s has no fsync of %s (%s): a power failure may %s", path, what, strerror(errno),
               risk);
}

// Brings an open file's bytes onto the disk, where its file system can; 0, or -1 and errno.
static inline int atomic_sync_file(int fd, const char* path) {
    static int noted;
    if (fsync(fd) == 0) { return 0; }
    if (!atomic_not_supported(errno)) { return -1; }
    atomic_note_(&noted, path, "files", "damage the files that were written last");
    return 0;
}

// Brings the new name onto the disk too, where the file system can. A directory is opened for reading alone, which some refuse
// (EACCES) or do not take for fsync (EBADF).
static inline Status atomic_sync_directory(const char* path) {
    static int noted;
    char directory[1024];
    const char* slash = strrchr(path, '/');
    snprintf(directory, sizeof(directory), "%.*s", slash == NULL ? 1 : (int)(slash - path) + 1, slash ? path : ".");
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int error = fd < 0 || fsync(fd) != 0 ? errno : 0;
    if (fd >= 0) { close(fd); }
    if (error == 0) { return STATUS_OK; }
    errno = error;
    if (!atomic_not_supported(error) && error != EBADF && error != EACCES) {
        return status_fail("cannot write %s: %s", directory, strerror(error));
    }
    atomic_note_(&noted, directory, "directories", "lose the files that were written last");
    return STATUS_OK;
}

// Brings the file onto the disk, then under its name. It is closed before: some file systems upload a file when it is closed,
// and rename no open one.
static inline Status atomic_commit(AtomicFile* a) {
    TRY(atomic_usable_(a));
    if (fflush(a->file) != 0) { return atomic_fail_(a, "write"); }
    if (ferror(a->file)) { // what was printed to it by stdio, some time before
        errno = EIO;
        return atomic_fail_(a, "write");
    }
    if (atomic_sync_file(fileno(a->file), a->temporary) != 0) { return atomic_fail_(a, "write"); }
    const char* failed = fclose(a->file) != 0 ? "write" : rename(a->temporary, a->path) != 0 ? "rename" : NULL;
    a->file = NULL;
    if (failed != NULL) {
        atomic_fail_(a, failed);
        remove(a->temporary);
    }
    temporary_remove(a->slot);
    return failed != NULL ? STATUS_ERROR : atomic_sync_directory(a->path);
}

// Fails if files cannot be saved in a folder: writes one of so many bytes as a checkpoint is written, and removes it.
static inline Status atomic_probe(const char* folder, size_t bytes) {
    static const char data[1 << 20] = {0};
    char path[1024];
    struct timespec now;
    AtomicFile file;
    clock_gettime(CLOCK_REALTIME, &now); // processes of other machines may have this one's id
    snprintf(path, sizeof(path), "%.960s/probe_%ld_%ld", folder, (long)getpid(), now.tv_nsec);
    TRY(atomic_open(&file, path));
    for (size_t at = 0, n; at < bytes; at += n) {
        n = bytes - at < sizeof(data) ? bytes - at : sizeof(data);
        TRY(atomic_write(&file, data, n));
    }
    TRY(atomic_overwrite(&file, 0, data, 1)); // as a header, whose checksums are known last
    Status status = atomic_commit(&file);
    remove(path);
    return status;
}

#endif
