/*
A file that is written whole or not at all: bytes go to <path>.tmp; commit flushes them to the disk, renames, and flushes the
directory. A crash in between leaves the old file, or none, never half of one.

    AtomicFile file;
    TRY(atomic_open(&file, path));
    TRY(atomic_write(&file, data, bytes));
    TRY(atomic_commit(&file));

Every failure removes the .tmp file, so nothing is left to clean up; a caller that stops halfway calls atomic_abandon(). The
first error sticks: later calls fail with the same message. Each thread may write a file.
*/
#ifndef LLMC_ATOMIC_FILE_H
#define LLMC_ATOMIC_FILE_H

#include "regular_file.h"
#include "status.h"
#include "temporary_files.h"
#include "utils.h"

typedef struct {
    FILE* file;       // NULL: committed, abandoned, or failed
    int error;        // errno of the first failure, or 0
    const char* what; // "write", "rename": what failed
    int slot;         // in temporary_files.h
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

// Remembers the first failure, with errno, and gives up the file.
static inline Status atomic_fail_(AtomicFile* a, const char* what) {
    if (a->error == 0) { a->error = errno ? errno : EIO, a->what = what; }
    atomic_abandon(a);
    return status_fail("cannot %s %s: %s", a->what, a->temporary, strerror(a->error));
}

// 1 if the file can take more.
static inline int atomic_usable_(AtomicFile* a) {
    if (a->file == NULL && a->error == 0) { a->error = EBADF, a->what = "write"; } // committed or abandoned
    return a->file != NULL;
}

// Opens <path>.tmp; the path has up to 1023 bytes. Begins with status_clear().
static inline Status atomic_open(AtomicFile* a, const char* path) {
    status_clear();
    memset(a, 0, sizeof(*a));
    if (strlen(path) >= sizeof(a->path)) {
        a->error = ENAMETOOLONG, a->what = "open";
        return status_fail("path is longer than %zu bytes: %s", sizeof(a->path) - 1, path);
    }
    strcpy(a->path, path);
    snprintf(a->temporary, sizeof(a->temporary), "%s.tmp", path);
    a->slot = temporary_add(a->temporary);
    a->file = fopen(a->temporary, "wb");
    if (a->file != NULL) { return STATUS_OK; }
    temporary_remove(a->slot);
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
    if (!atomic_usable_(a)) { return atomic_fail_(a, "write"); }
    return fwrite(src, 1, bytes, a->file) == bytes ? STATUS_OK : atomic_fail_(a, "write");
}

// Writes over bytes that were written before, at `offset` of the file; what follows goes on at its end.
static inline Status atomic_overwrite(AtomicFile* a, size_t offset, const void* src, size_t bytes) {
    if (!atomic_usable_(a) || fseeko(a->file, (off_t)offset, SEEK_SET) != 0) { return atomic_fail_(a, "write"); }
    TRY(atomic_write(a, src, bytes));
    return fseeko(a->file, 0, SEEK_END) == 0 ? STATUS_OK : atomic_fail_(a, "write");
}

// Brings the new name onto the disk too. Some file systems cannot do that for a directory (EINVAL): then there is nothing
// to wait for.
static inline Status atomic_sync_directory_(const char* path) {
    char directory[1024 + 2];
    const char* slash = strrchr(path, '/');
    size_t length = slash == NULL ? 0 : (size_t)(slash - path) + 1;
    memcpy(directory, path, length);
    strcpy(directory + length, ".");
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) { return status_fail("cannot open %s: %s", directory, strerror(errno)); }
    int error = fsync(fd) != 0 && errno != EINVAL ? errno : 0;
    close(fd);
    return error == 0 ? STATUS_OK : status_fail("cannot write %s: %s", directory, strerror(error));
}

// Brings the file onto the disk, then under its name.
static inline Status atomic_commit(AtomicFile* a) {
    if (!atomic_usable_(a)) { return atomic_fail_(a, "write"); }
    if (fflush(a->file) != 0) { return atomic_fail_(a, "write"); }
    if (ferror(a->file)) { // what was printed to it by stdio, some time before
        errno = EIO;
        return atomic_fail_(a, "write");
    }
    if (fsync(fileno(a->file)) != 0) { return atomic_fail_(a, "write"); }
    // named before it is closed: until then a failure is atomic_fail_'s to clean up, and after fsync closing says nothing new
    if (rename(a->temporary, a->path) != 0) { return atomic_fail_(a, "rename"); }
    temporary_remove(a->slot);
    fclose(a->file);
    a->file = NULL;
    return atomic_sync_directory_(a->path);
}

#endif
