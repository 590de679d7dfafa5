/*
Opening a file that is read by its size, or more than once: it must be a regular one. And what a file is that came in the place
of another.
*/
#ifndef LLMC_BASE_REGULAR_FILE_H
#define LLMC_BASE_REGULAR_FILE_H

#include <strings.h>

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

// Reads n bytes of an open file, from byte `at` on. Any thread may.
static inline Status read_at(int fd, const char* path, size_t at, void* dst, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, (char*)dst + done, n - done, (off_t)(at + done));
        if (got < 0 && errno == EINTR) { continue; }
        if (got <= 0) {
            return status_fail("cannot read %s, bytes %zu to %zu: %s", path, at, at + n - 1,
                               got < 0 ? strerror(errno) : "it has become shorter since it was opened");
        }
        done += (size_t)got;
    }
    return STATUS_OK;
}

// What a file is, by its first bytes, and what to do about it; NULL if they are none of those that come in a file's place.
static inline const char* foreign_file(const char* s, size_t bytes) {
    static const char* const pages[] = {"<!doctype html", "<html", "<?xml"};
    static const char pointer[] = "version https://git-lfs";
    const size_t n = sizeof(pointer) - 1;
    while (bytes > 0 && strchr(" \r\n\t", *s) != NULL && *s != '\0') { s++, bytes--; }
    if (bytes >= n && memcmp(s, pointer, n) == 0) {
        return "a Git LFS pointer, not the file itself; git lfs pull fetches it";
    }
    for (size_t i = 0; i < sizeof(pages) / sizeof(pages[0]); i++) {
        if (bytes < strlen(pages[i]) || strncasecmp(s, pages[i], strlen(pages[i])) != 0) { continue; }
        return "a web page, such as a download that failed leaves; download the file itself";
    }
    // torch.save's zip; or a pickle's protocol and first opcode, which also the length of a safetensors' header may be like
    int zip = bytes > 8 && memcmp(s, "PK\3\4", 4) == 0;
    int pickle = bytes > 8 && s[0] == '\x80' && s[1] >= 2 && s[1] <= 5 && strchr("}](c\x8a\x95", s[2]) && s[8] != '{';
    if (!zip && !(pickle && s[2] != '\0')) { return NULL; }
    return "a pickle, as torch.save writes; load it with PyTorch or transformers and save it as safetensors";
}

// Fails if an open file is another than was meant: a Git LFS pointer, a web page, a pickle.
static inline Status refuse_foreign_file(int fd, const char* path) {
    char head[64];
    ssize_t n = pread(fd, head, sizeof(head), 0);
    const char* what = n > 0 ? foreign_file(head, (size_t)n) : NULL;
    return what == NULL ? STATUS_OK : status_fail("%s is %s", path, what);
}

#endif
