/*
The names of the files that are being written, for a signal handler that ends the program: it unlinks them, so that nothing half
written remains. atomic_file.h adds a name before it creates the file, and removes it when the file has been renamed or deleted.
Thread-safe: a slot goes from free to taken to named and back, by atomic operations alone.
*/
#ifndef LLMC_BASE_TEMPORARY_FILES_H
#define LLMC_BASE_TEMPORARY_FILES_H

#include <string.h>
#include <unistd.h>

enum { TEMPORARY_FILES = 16, TEMPORARY_PATH = 1024 + 8 }; // at once; bytes of a path
enum { TEMPORARY_FREE, TEMPORARY_TAKEN, TEMPORARY_NAMED };

static struct {
    int state;
    char path[TEMPORARY_PATH];
} temporary_files[TEMPORARY_FILES];

// Adds a path; returns its slot, or -1 if all are taken or the path is too long: then it would not be unlinked.
static inline int temporary_add(const char* path) {
    size_t length = strlen(path);
    for (int i = 0; i < TEMPORARY_FILES && length < TEMPORARY_PATH; i++) {
        int expected = TEMPORARY_FREE;
        if (__atomic_compare_exchange_n(&temporary_files[i].state, &expected, TEMPORARY_TAKEN, 0, __ATOMIC_ACQUIRE,
                                        __ATOMIC_RELAXED)) {
            memcpy(temporary_files[i].path, path, length + 1);
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

// Unlinks all of them; async-signal-safe. A thread that still writes one writes to an unlinked file.
static inline void temporary_unlink_all(void) {
    for (int i = 0; i < TEMPORARY_FILES; i++) {
        if (__atomic_load_n(&temporary_files[i].state, __ATOMIC_ACQUIRE) == TEMPORARY_NAMED) {
            unlink(temporary_files[i].path);
        }
    }
}

#endif
