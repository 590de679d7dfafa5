/*
What the unit tests are written with. A test program checks the claims of one header of llmc:

    int main(void) {
        CHECK(answer() == 42);
        CHECK_NEAR(mean, 0.5, 1e-6);                          // a value that is NaN fails
        CHECK_FATAL("a.bin|truncated", load("a.bin"));        // ends with one line that names these, and exit code 1
        return unit_end();                                    // 'N passed, N failed'; 1 where any failed
    }

unit_path("name") is a file in a directory of the program's own, which unit_end() removes.
*/
#ifndef UNIT_H
#define UNIT_H

#include <dirent.h>
#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#endif
#include <sys/wait.h>

#include "llmc/base/checked_file.h"
#include "llmc/base/utils.h"
#include "worst.h"

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/lsan_interface.h>
#endif

static int unit_passed, unit_failed;
static char unit_folder[256];

static inline int unit_check(int ok, const char* claim, const char* file, int line) {
    ok ? unit_passed++ : unit_failed++;
    if (!ok) { printf("%s:%d: not so: %s\n", file, line, claim); }
    return ok;
}

#define CHECK(...) unit_check((__VA_ARGS__) != 0, #__VA_ARGS__, __FILE__, __LINE__)

static inline void unit_check_near(double value, double expected, double tolerance, const char* claim, const char* file,
                                   int line) {
    if (!unit_check(fabs(value - expected) <= tolerance, claim, file, line)) {
        printf("    is %.9g, expected %.9g within %.3g\n", value, expected, tolerance);
    }
}

#define CHECK_NEAR(value, expected, tolerance)                                                                         \
    unit_check_near(value, expected, tolerance, #value " is " #expected, __FILE__, __LINE__)

// The threads of the OpenMP loops that follow; builds without OpenMP have one.
static inline void use_threads(int threads) {
#ifdef _OPENMP
    omp_set_num_threads(threads);
#else
    (void)threads;
#endif
}

// ----------------------------------------------------------------------------
// Errors of users: the code runs in a child process, whose end and whose stderr are looked at.

typedef struct {
    int exit_code; // -1 where a signal ended it
    size_t length;
    char text[4096]; // what it wrote on stderr
} UnitChild;

static int unit_pipe[2];
static pid_t unit_pid;

// Returns 1 in the child. Its stdout goes nowhere. It inherits memory that it will not free: that is no leak.
static inline int unit_fork(void) {
    fflush(NULL);
    if (pipe(unit_pipe) != 0 || (unit_pid = fork()) < 0) { fatal("cannot start a child: %s", strerror(errno)); }
    if (unit_pid != 0) { return 0; }
#if defined(__SANITIZE_ADDRESS__)
    __lsan_disable();
#endif
    dup2(unit_pipe[1], STDERR_FILENO);
    if (freopen("/dev/null", "w", stdout) == NULL) { _exit(99); }
    close(unit_pipe[0]);
    close(unit_pipe[1]);
    return 1;
}

static inline UnitChild unit_wait(void) {
    UnitChild child;
    memset(&child, 0, sizeof(child));
    close(unit_pipe[1]);
    FILE* end = fdopen(unit_pipe[0], "r");
    if (end == NULL) { fatal("cannot read from a child: %s", strerror(errno)); }
    child.length = fread(child.text, 1, sizeof(child.text) - 1, end);
    fclose(end);
    int status = 0;
    waitpid(unit_pid, &status, 0);
    child.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return child;
}

// 1 where the child ended as a user's error should: exit code 1, and one line that begins with "error: ".
static inline int unit_is_user_error(const UnitChild* child) {
    const char* end = strchr(child->text, '\n');
    return child->exit_code == 1 && strncmp(child->text, "error: ", 7) == 0 && end == child->text + child->length - 1;
}

static inline void unit_check_fatal(const char* words, const char* claim, const char* file, int line) {
    UnitChild child = unit_wait();
    int ok = unit_is_user_error(&child);
    char list[1024];
    snprintf(list, sizeof(list), "%s", words);
    for (char* word = strtok(list, "|"); word != NULL; word = strtok(NULL, "|")) {
        ok = ok && strstr(child.text, word) != NULL;
    }
    if (!unit_check(ok, claim, file, line)) {
        printf("    expected one line that names %s; exit code %d and: %s\n", words, child.exit_code, child.text);
    }
}

// The statement ends with exit code 1 and one line on stderr that holds each of the words, which '|' separates.
#define CHECK_FATAL(words, ...)                                                                                        \
    do {                                                                                                               \
        if (unit_fork()) {                                                                                             \
            __VA_ARGS__;                                                                                               \
            _exit(0);                                                                                                  \
        }                                                                                                              \
        unit_check_fatal(words, #__VA_ARGS__, __FILE__, __LINE__);                                                     \
    } while (0)

// The statement, in a process of its own, ends as `expected` says of unit_child.
#define UNIT_CHECK_CHILD_(expected, claim, ...)                                                                        \
    do {                                                                                                               \
        if (unit_fork()) {                                                                                             \
            __VA_ARGS__;                                                                                               \
            _exit(0);                                                                                                  \
        }                                                                                                              \
        UnitChild unit_child = unit_wait();                                                                            \
        if (!unit_check(expected, claim, __FILE__, __LINE__)) {                                                        \
            printf("    exit code %d and: %s\n", unit_child.exit_code, unit_child.text);                               \
        }                                                                                                              \
    } while (0)

// The statement ends without an error.
#define CHECK_ENDS_WELL(...) UNIT_CHECK_CHILD_(unit_child.exit_code == 0, #__VA_ARGS__, __VA_ARGS__)

// The statement ends either well or as a user's error, never in a crash.
#define CHECK_NO_CRASH(...)                                                                                            \
    UNIT_CHECK_CHILD_(unit_child.exit_code == 0 || unit_is_user_error(&unit_child), #__VA_ARGS__, __VA_ARGS__)

// ----------------------------------------------------------------------------
// Files

// The path of a file in this program's own directory; it stays good. A program has up to 64 names.
static inline const char* unit_path(const char* name) {
    static char paths[64][512];
    char path[512];
    if (unit_folder[0] == '\0') {
        const char* parent = getenv("TMPDIR");
        snprintf(unit_folder, sizeof(unit_folder), "%s/unit_XXXXXX", parent && parent[0] ? parent : "/tmp");
        if (mkdtemp(unit_folder) == NULL) { fatal("cannot create %s: %s", unit_folder, strerror(errno)); }
    }
    snprintf(path, sizeof(path), "%s/%s", unit_folder, name);
    for (int i = 0; i < 64; i++) {
        if (paths[i][0] == '\0') { strcpy(paths[i], path); }
        if (strcmp(paths[i], path) == 0) { return paths[i]; }
    }
    fatal("more than 64 names of files");
}

// Moves to a byte of a file.
static inline void unit_seek(FILE* file, int64_t offset, const char* path) {
    if (fseeko(file, (off_t)offset, SEEK_SET) != 0) { fatal("cannot seek in %s: %s", path, strerror(errno)); }
}

static inline void unit_write(const char* path, const void* data, size_t bytes) {
    FILE* file = fopen_check(path, "wb");
    fwrite_check(data, 1, bytes, file, path);
    fclose(file);
}

// Writes a file of the project's kind: the header's first four numbers, then the body.
static inline void unit_write_format(const char* path, int h0, int h1, int h2, int h3, const void* body, size_t bytes) {
    int32_t header[HEADER_INTS] = {h0, h1, h2, h3};
    FILE* file = fopen_check(path, "wb");
    fwrite_check(header, sizeof(header), 1, file, path);
    fwrite_check(body, 1, bytes, file, path);
    fclose(file);
}

// Reads a whole file and ends it with a NUL; the caller frees it.
static inline char* unit_read(const char* path, size_t* bytes) {
    struct stat st;
    FILE* file = fopen_check(path, "rb");
    if (fstat(fileno(file), &st) != 0) { fatal("cannot stat %s: %s", path, strerror(errno)); }
    *bytes = (size_t)st.st_size;
    char* data = (char*)malloc_check(*bytes + 1);
    if (fread(data, 1, *bytes, file) != *bytes) { fatal("cannot read %s", path); }
    data[*bytes] = '\0';
    fclose(file);
    return data;
}

// 1 where the file holds exactly this text.
static inline int unit_file_is(const char* path, const char* text) {
    size_t bytes;
    char* data = unit_read(path, &bytes);
    int same = bytes == strlen(text) && memcmp(data, text, bytes) == 0;
    if (!same) { printf("    %s holds:\n%s", path, data); }
    free(data);
    return same;
}

// 1 where two files hold the same from byte `from` on.
static inline int unit_same_from(const char* a, const char* b, size_t from) {
    size_t bytes[2];
    char *x = unit_read(a, &bytes[0]), *y = unit_read(b, &bytes[1]);
    int same = bytes[0] == bytes[1] && bytes[0] > from && memcmp(x + from, y + from, bytes[0] - from) == 0;
    free(x);
    free(y);
    return same;
}
static inline int unit_same_files(const char* a, const char* b) { return unit_same_from(a, b, 0); }

static inline void unit_truncate(const char* path, size_t bytes) {
    if (truncate(path, (off_t)bytes) != 0) { fatal("cannot truncate %s: %s", path, strerror(errno)); }
}

// Puts one 16-bit word of a file to another value.
static inline void unit_patch(const char* path, size_t offset, uint16_t value) {
    FILE* file = fopen_check(path, "r+b");
    unit_seek(file, (int64_t)offset, path);
    fwrite_check(&value, sizeof(value), 1, file, path);
    fclose(file);
}

// Gives a file that was patched the checksums of what it holds now (of a header alone, those of an empty body), so that the
// checks behind the checksums are reached.
static inline void unit_seal(const char* path) {
    size_t bytes;
    char* data = unit_read(path, &bytes);
    int32_t header[HEADER_INTS];
    CheckedWriter w;
    memcpy(header, data, sizeof(header));
    check(checked_create(&w, path, header, bytes - HEADER_BYTES));
    check(checked_write(&w, data + HEADER_BYTES, bytes - HEADER_BYTES));
    check(checked_commit(&w));
    free(data);
}

// Takes a file's checksums away: it is then as llm.c, or an older version, would have written it.
static inline void unit_unseal(const char* path) {
    static const int32_t nothing[HEADER_INTS - CHECKED_AT] = {0};
    FILE* file = fopen_check(path, "r+b");
    unit_seek(file, 4 * CHECKED_AT, path);
    fwrite_check(nothing, sizeof(nothing), 1, file, path);
    fclose(file);
}

// Flips one bit of a file.
static inline void unit_flip(const char* path, size_t bit) {
    FILE* file = fopen_check(path, "r+b");
    unit_seek(file, (int64_t)(bit / 8), path);
    int byte = fgetc(file) ^ 1 << bit % 8;
    unit_seek(file, (int64_t)(bit / 8), path);
    fputc(byte, file);
    fclose(file);
}

// Removes the files of the program's directory.
static inline void unit_clean(void) {
    DIR* dir = unit_folder[0] ? opendir(unit_folder) : NULL;
    for (struct dirent* entry; dir != NULL && (entry = readdir(dir)) != NULL;) {
        if (entry->d_name[0] != '.') { unlinkat(dirfd(dir), entry->d_name, 0); }
    }
    if (dir != NULL) { closedir(dir); }
}

// Removes the directory and prints the count of passed and failed claims; returns what main should return.
static inline int unit_end(void) {
    unit_clean();
    if (unit_folder[0] && rmdir(unit_folder) != 0) { printf("cannot remove %s\n", unit_folder); }
    printf("%d passed, %d failed\n", unit_passed, unit_failed);
    return unit_failed ? EXIT_FAILURE : EXIT_SUCCESS;
}

#endif
