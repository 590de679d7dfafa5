/*
Opening a file that is read by its size, or more than once: it must be a regular one.
*/
#ifndef LLMC_REGULAR_FILE_H
#define LLMC_REGULAR_FILE_H

#include "status.h"
#include "utils.h"

// Why what stat() has found is no regular file; NULL if it is one.
static inline const char* regular_file_fault(const struct stat* st) {
    if (S_ISDIR(st->st_mode)) { return strerror(EISDIR); }
    return S_ISREG(st->st_mode) ? NULL : "it is a pipe or a device, not a file";
}

// Opens a file for reading. A pipe, to which nobody may ever write, is refused and not waited for. The caller closes *fd; on an
// error it is -1.
static inline Status open_regular(int* fd, struct stat* st, const char* path) {
    *fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (*fd < 0) { return status_fail("cannot open %s: %s", path, strerror(errno)); }
    const char* fault = fstat(*fd, st) != 0 ? strerror(errno) : regular_file_fault(st);
    if (fault == NULL) { return STATUS_OK; }
    close(*fd);
    *fd = -1;
    return status_fail("cannot open %s: %s", path, fault);
}

// The same for stdio. The caller closes *file; on an error it is NULL.
static inline Status fopen_regular(FILE** file, struct stat* st, const char* path) {
    int fd;
    *file = NULL;
    TRY(open_regular(&fd, st, path));
    *file = fdopen(fd, "rb");
    if (*file != NULL) { return STATUS_OK; }
    close(fd);
    return status_fail("cannot open %s: %s", path, strerror(errno));
}

#endif
