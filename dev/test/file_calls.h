/*
The calls that bring a file onto the disk, recorded in order and failing on demand. Included before the headers under test,
whose calls then go through it:

    #include "file_calls.h"
    #include "llmc/base/atomic_file.h"
    file_calls_begin();                    // forgets all calls and faults
    file_faults.rename = ENOSYS;           // every rename fails
    ...
    CHECK(file_calls_are("fsync a.tmp, close a.tmp, rename a.tmp to a, fsync its folder"));

Only files whose names end in .tmp are recorded, and folders.
*/
#ifndef FILE_CALLS_H
#define FILE_CALLS_H

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

static struct {
    char text[2048];   // the calls
    char folder[1024]; // of the file that was renamed last
    uint64_t synced;   // digest of what the file held that was flushed last
} file_calls;

// The errno of each call that fails; 0: it succeeds.
static struct {
    int sync_file, sync_folder, open_folder, close, rename, link, seek;
    int no_blocks; // 1: statvfs does not know how large the file system is
} file_faults;

static inline void file_calls_begin(void) {
    memset(&file_calls, 0, sizeof(file_calls));
    memset(&file_faults, 0, sizeof(file_faults));
}

static inline int file_calls_are(const char* text) {
    int same = strcmp(file_calls.text, text) == 0;
    if (!same) { printf("    expected %s\n    but were %s\n", text, file_calls.text); }
    return same;
}

// The digest of a file
static inline uint64_t file_digest(const char* path) {
    uint64_t digest = 0xcbf29ce484222325u;
    char data[4096];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    for (ssize_t n; fd >= 0 && (n = read(fd, data, sizeof(data))) > 0;) {
        for (ssize_t i = 0; i < n; i++) { digest = (digest ^ (unsigned char)data[i]) * 0x100000001b3u; }
    }
    if (fd >= 0) { close(fd); }
    return digest;
}

// Adds a call to the record; returns -1 where it has to fail.
static inline int file_call_(int fault, const char* call, const char* path, const char* to) {
    size_t at = strlen(file_calls.text);
    const char *slash = strrchr(path, '/'), *name = slash != NULL ? slash + 1 : path;
    snprintf(file_calls.text + at, sizeof(file_calls.text) - at, "%s%s %s%s", at > 0 ? ", " : "", call, name, to);
    errno = fault;
    return fault != 0 ? -1 : 0;
}

static inline int file_is_temporary_(const char* path) {
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".tmp") == 0;
}

static inline void file_name_(char path[1024], int fd) {
    char link[64];
    snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
    ssize_t n = readlink(link, path, 1023);
    path[n > 0 ? n : 0] = '\0';
}

static inline int file_call_fsync(int fd) {
    struct stat st;
    char path[1024];
    file_name_(path, fd);
    if (fstat(fd, &st) == 0 && S_ISDIR(st.st_mode)) {
        int own = strcmp(path, file_calls.folder) == 0;
        return file_call_(file_faults.sync_folder, "fsync", own ? "its folder" : path, "") != 0 ? -1 : fsync(fd);
    }
    file_calls.synced = file_digest(path);
    return file_call_(file_faults.sync_file, "fsync", path, "") != 0 ? -1 : fsync(fd);
}

static inline int file_call_fclose(FILE* file) {
    char path[1024];
    file_name_(path, fileno(file));
    int closed = fclose(file);
    return file_is_temporary_(path) && file_call_(file_faults.close, "close", path, "") != 0 ? EOF : closed;
}

static inline int file_call_rename(const char* from, const char* to) {
    char above[1024];
    const char* slash = strrchr(to, '/');
    snprintf(above, sizeof(above), "%.*s.", slash != NULL ? (int)(slash - to) + 1 : 0, to);
    char* folder = realpath(above, NULL);
    snprintf(file_calls.folder, sizeof(file_calls.folder), "%s", folder != NULL ? folder : "");
    free(folder);
    snprintf(above, sizeof(above), " to %s", slash != NULL ? slash + 1 : to);
    return file_call_(file_faults.rename, "rename", from, above) != 0 ? -1 : rename(from, to);
}

static inline int file_call_remove(const char* path) {
    file_call_(0, "remove", path, "");
    return remove(path);
}

static inline int file_call_open(const char* path, int flags, mode_t mode) {
    errno = file_faults.open_folder;
    return (flags & O_DIRECTORY) && errno != 0 ? -1 : open(path, flags, mode);
}

static inline int file_call_link(const char* from, const char* to) {
    errno = file_faults.link;
    return errno != 0 ? -1 : link(from, to);
}

static inline int file_call_fseeko(FILE* file, off_t offset, int whence) {
    errno = file_faults.seek;
    return errno != 0 ? -1 : fseeko(file, offset, whence);
}

static inline int file_call_statvfs(const char* path, struct statvfs* disk) {
    int result = statvfs(path, disk);
    if (file_faults.no_blocks) { disk->f_blocks = disk->f_bfree = disk->f_bavail = 0; }
    return result;
}

#define fsync(fd) file_call_fsync(fd)
#define fclose(file) file_call_fclose(file)
#define rename(from, to) file_call_rename(from, to)
#define remove(path) file_call_remove(path)
#define open(...) FILE_CALL_OPEN_(__VA_ARGS__, 0, 0)
#define FILE_CALL_OPEN_(path, flags, mode, ...) file_call_open(path, flags, mode)
#define link(from, to) file_call_link(from, to)
#define fseeko(file, offset, whence) file_call_fseeko(file, offset, whence)
#define statvfs(path, disk) file_call_statvfs(path, disk)

#endif
