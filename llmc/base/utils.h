/*
Helpers for every C and CUDA file of the project: errors that name the file and the fault, allocation and files that either
succeed or end the program with one line, threads. Files are written through atomic_file.h.

User errors (a flag, a file, a value) end in fatal(): one line on stderr, exit code 1.
*/
#ifndef LLMC_BASE_UTILS_H
#define LLMC_BASE_UTILS_H

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "utf8.h"

#ifdef __cplusplus
#define RESTRICT __restrict__
#else
#define RESTRICT restrict
#endif

// For functions with large buffers: a caller into which several are inlined would have a frame with room for all of them.
#define NOINLINE static __attribute__((noinline, unused))

// For functions that take a format of printf as argument number `text`, and its values from number `first` on.
#define PRINTF_LIKE(text, first) __attribute__((format(printf, text, first), unused))

#define CEIL_DIV(n, d) (((n) + (d)-1) / (d))

// The descriptor, plus 1, of a terminal whose last line is being overwritten (terminal.h); 0: of none. Atomic.
static int terminal_line_open_;

// Takes that line away, before anything else is printed. Async-signal-safe.
static inline void terminal_line_clear(void) {
    int fd = __atomic_exchange_n(&terminal_line_open_, 0, __ATOMIC_RELAXED) - 1;
    if (fd >= 0 && write(fd, "\r\033[K", 4) < 0) { return; } // nobody looks on
}

// Additions to error lines in a run of several processes (comm.h); all zeros in a single process.
typedef struct {
    char process[32];                                        // "rank 3": lines begin with it; "": there is one process
    void (*failing)(void* context, char* text, size_t size); // fatal() calls it first; it may change the text
    void* context;
    int state; // 0; ERROR_SAID; ERROR_ENDING
} ErrorLine;

// ERROR_SAID: a line with the reason was printed. ERROR_ENDING: another thread ends the process, and prints the line if needed.
enum { ERROR_SAID = 1, ERROR_ENDING = 2, ERROR_BYTES = 4000 };

// The line that this process ends with: one object for the whole program
#ifdef __cplusplus
inline ErrorLine error_line;
#else
static ErrorLine error_line;
#endif

// Prints "<kind>: <message>" to stderr, in one write, without stdio, whose locks another thread may hold forever. Control
// characters in names and texts become '?', so that it is one line and free of terminal escapes.
static inline void say_line(const char* kind, const char* message) {
    char line[ERROR_BYTES + 64];
    const char* process = error_line.process;
    int length = snprintf(line, sizeof(line), "%s: %s%s%s\n", kind, process, process[0] ? ": " : "", message);
    mask_controls(line, (size_t)length - 1);
    terminal_line_clear();
    if (write(STDERR_FILENO, line, (size_t)length) < 0) { return; } // nobody listens
}

// The message, cut after 4 KB.
static inline void format_message_(char* message, const char* format, va_list args) {
    int length = vsnprintf(message, ERROR_BYTES, format, args);
    if (length >= ERROR_BYTES) { strcpy(message + ERROR_BYTES - 4, "..."); }
}

// From here on this process's lines begin with "error: <name>: ", "warning: <name>: ".
static inline void set_process_name(const char* name) {
    snprintf(error_line.process, sizeof(error_line.process), "%s", name);
}

// fatal() calls the hook with its message, which the hook may change, before it prints it. NULL: no hook.
static inline void set_fatal_hook(void (*hook)(void* context, char* text, size_t size), void* context) {
    error_line.context = context;
    __atomic_store_n(&error_line.failing, hook, __ATOMIC_RELEASE);
}

// Acquires the right to print why the process ends; never returns if another thread already ends it.
static inline void claim_error_line_(void) {
    int expected = 0;
    if (!__atomic_compare_exchange_n(&error_line.state, &expected, ERROR_SAID, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
        while (expected == ERROR_ENDING) { pause(); }
    }
}

PRINTF_LIKE(2, 3) static void print_line_(const char* kind, const char* format, ...) {
    char message[ERROR_BYTES];
    va_list args;
    va_start(args, format);
    format_message_(message, format, args);
    va_end(args);
    fflush(stdout);
    say_line(kind, message);
}

// For errors after which the run continues.
#define print_warning(...) print_line_("warning", __VA_ARGS__)

// For what a user should know that is no error. On stderr, as in most processes of a run stdout goes nowhere.
#define print_note(...) print_line_("note", __VA_ARGS__)

// For errors that end the run later: the caller returns from main with its own exit code.
#define print_error(...) (claim_error_line_(), print_line_("error", __VA_ARGS__))

// The note on utf8_mark
static inline void note_mark_dropped(const char* name) { print_note("%s: its byte order mark is dropped", name); }

// Prints the error and exits with code 1. With a hook, in a run of several processes, it skips exit handlers: libraries'
// threads may still use what exit() would destroy.
PRINTF_LIKE(1, 2) __attribute__((noreturn)) static void fatal(const char* format, ...) {
    char message[ERROR_BYTES];
    va_list args;
    va_start(args, format);
    format_message_(message, format, args);
    va_end(args);
    void (*hook)(void*, char*, size_t) = __atomic_load_n(&error_line.failing, __ATOMIC_ACQUIRE);
    if (hook != NULL) { hook(error_line.context, message, sizeof(message)); }
    claim_error_line_();
    fflush(stdout);
    say_line("error", message);
    if (hook != NULL) { _exit(EXIT_FAILURE); }
    exit(EXIT_FAILURE);
}

// ----------------------------------------------------------------------------
// How a library reports an error. The model (gpt2_model.h) and libattention never end the process: their functions return a
// Status, and status_message() says what went wrong, in one line. Programs end, through check(). The first error of a thread
// stays until status_clear(), as with cudaGetLastError: so a sequence of launches can run to its end and be judged once.
//
//     Status gpt2_forward(...) {
//         status_clear();
//         TRY(gpt2_check_batch(...));        // returns where this failed
//         layernorm_forward(...);            // a launcher; records a failed launch by cuda_try()
//         return status_now();
//     }
//     check(gpt2_forward(...));              // in a program: ends with the message and exit code 1

typedef enum { STATUS_OK = 0, STATUS_ERROR = 1 } Status;

enum { STATUS_BYTES = 2048 }; // of a message: room for two paths

#ifdef __cplusplus
// One for all objects of a program: a variant and its bench are two.
inline thread_local char status_text_[STATUS_BYTES];
#else
static _Thread_local char status_text_[STATUS_BYTES];
#endif

// Forgets this thread's error.
static inline void status_clear(void) { status_text_[0] = '\0'; }

// STATUS_ERROR where an error has been recorded since status_clear().
static inline Status status_now(void) { return status_text_[0] ? STATUS_ERROR : STATUS_OK; }

// The error message, or "" without an error. Valid until this thread's next status_clear().
static inline const char* status_message(void) { return status_text_; }

// Records an error, unless one is recorded already; returns STATUS_ERROR.
PRINTF_LIKE(1, 2) static Status status_fail(const char* format, ...) {
    if (status_text_[0] == '\0') {
        va_list args;
        va_start(args, format);
        vsnprintf(status_text_, sizeof(status_text_), format, args);
        va_end(args);
    }
    return STATUS_ERROR;
}

// Returns from the calling function where `call` failed.
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != STATUS_OK) { return STATUS_ERROR; }                                                              \
    } while (0)

// For programs: ends with the message and exit code 1 if a library's function failed.
static inline void check(Status status) {
    if (status != STATUS_OK) { fatal("%s", status_message()); }
}

// ----------------------------------------------------------------------------
// Sizes from files and flags, with saturating arithmetic. SIZE_MAX means overflow: it stays SIZE_MAX in further sums and
// products (except by 0), no file is as long, and malloc_check() refuses it.

// a * b
static inline size_t size_mul(size_t a, size_t b) { return b != 0 && a > SIZE_MAX / b ? SIZE_MAX : a * b; }

// a + b
static inline size_t size_add(size_t a, size_t b) { return a > SIZE_MAX - b ? SIZE_MAX : a + b; }

// a rounded up to a multiple of `unit`
static inline size_t size_round_up(size_t a, size_t unit) {
    size_t rest = a % unit;
    return a == SIZE_MAX || rest == 0 ? a : size_add(a, unit - rest);
}

// The largest vocabulary of a model, of a token file and of --vocab-size
enum { MAX_VOCAB_SIZE = 1 << 24 };

// ----------------------------------------------------------------------------
// Memory

static inline void* malloc_check(size_t bytes) {
    void* p = bytes > PTRDIFF_MAX ? NULL : malloc(bytes ? bytes : 1); // size_mul's SIZE_MAX is no size
    if (p == NULL) { fatal("out of memory: %zu bytes of host memory asked for", bytes); }
    return p;
}

static inline void* calloc_check(size_t count, size_t size) {
    void* p = calloc(count ? count : 1, size);
    if (p == NULL) { fatal("out of memory: %zu bytes of host memory asked for", size_mul(count, size)); }
    return p;
}

// ----------------------------------------------------------------------------
// Files. All sizes are 64 bit. Every function names the file in its error.

static inline FILE* fopen_check(const char* path, const char* mode) {
    FILE* f = fopen(path, mode);
    if (f == NULL) { fatal("cannot open %s: %s", path, strerror(errno)); }
    return f;
}

static inline void fwrite_check(const void* src, size_t size, size_t count, FILE* f, const char* path) {
    if (fwrite(src, size, count, f) != count) { fatal("cannot write %s: %s", path, strerror(errno)); }
}

static inline int file_exists(const char* path) { return access(path, F_OK) == 0; }
// 1 if there is something of that name, also a link to nothing.
static inline int name_exists(const char* path) {
    struct stat st;
    return lstat(path, &st) == 0;
}
// 1 if the file certainly does not exist; 0 without permission to look: opening it reports that.
static inline int file_missing(const char* path) {
    return access(path, F_OK) != 0 && (errno == ENOENT || errno == ENOTDIR);
}

static inline int folder_exists(const char* path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

// 1 if two names are those of the same file or folder.
static inline int same_file(const char* a, const char* b) {
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

// Shortens a path to its longest part that exists, or to ".".
static inline void existing_folder(char* path) {
    while (!file_exists(path) && strcmp(path, ".") != 0) {
        char* slash = strrchr(path, '/');
        if (slash == NULL) { strcpy(path, "."); }
        if (slash != NULL) { slash[slash == path] = '\0'; }
    }
}

// Free bytes of the file system that holds `folder`, or will hold it; SIZE_MAX if it does not say
static inline size_t disk_free(const char* folder) {
    char path[1024];
    struct statvfs disk;
    snprintf(path, sizeof(path), "%s", folder);
    existing_folder(path);
    if (statvfs(path, &disk) != 0 || disk.f_blocks == 0) { return SIZE_MAX; }
    return size_mul((size_t)disk.f_bavail, (size_t)disk.f_frsize);
}

// 1 if a name ends in `end`.
static inline int ends_with(const char* name, const char* end) {
    size_t n = strlen(name), k = strlen(end);
    return n >= k && strcmp(name + n - k, end) == 0;
}

// 1 if a word is one of the words of a list, which the separator separates; 0 without a list.
static inline int is_listed(const char* list, char separator, const char* word) {
    size_t length = strlen(word);
    for (const char *one = list, *end; one != NULL; one = end != NULL ? end + 1 : NULL) {
        end = strchr(one, separator);
        if ((end != NULL ? (size_t)(end - one) : strlen(one)) == length && strncmp(one, word, length) == 0) {
            return 1;
        }
    }
    return 0;
}

// To be called first. If stdin, stdout or stderr is closed, occupies its descriptor with an unusable one: otherwise a file that
// the program opens, perhaps a checkpoint, would get it, and output would go into that file.
static inline void keep_standard_files(void) {
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) >= 0) { continue; }
        if (open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY) != fd) { return; }
    }
}

// Creates a directory and its missing parents.
static inline void create_directory(const char* path) {
    char above[1024];
    const char* slash = path[0] != '\0' ? strchr(path + 1, '/') : NULL;
    for (; slash != NULL; slash = strchr(slash + 1, '/')) {
        snprintf(above, sizeof(above), "%.*s", (int)(slash - path), path);
        if (mkdir(above, 0755) != 0 && errno != EEXIST) {
            fatal("cannot create directory %s: %s", above, strerror(errno));
        }
    }
    if (mkdir(path, 0755) == 0) { return; }
    if (errno == EEXIST && folder_exists(path)) { return; }
    fatal("cannot create directory %s: %s", path, strerror(errno));
}

// ----------------------------------------------------------------------------
// The 256-int32 header that every file of the project begins with: [0] magic, [1] version, the rest by format; see
// checked_file.h.

enum { HEADER_INTS = 256, HEADER_BYTES = 1024 };

// ----------------------------------------------------------------------------
// Time and threads

static inline double wall_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// Returns 1 if the thread was started.
static inline int thread_start(pthread_t* thread, void* (*run)(void* context), void* context) {
    return pthread_create(thread, NULL, run, context) == 0;
}

#endif
