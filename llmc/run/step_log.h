/*
main.jsonl in the run's folder, and --log-json: a run as JSON lines, for plot_run.py and other programs. A line is an object and
is written whole; a number that is not finite is null. Every object has a "time", in seconds since 1970, and a "step", which
counts as in main.log:

    {"time":..., "step":0, "event":"start", "run":"<id>", "program":..., "steps":..., "settings":{"--seed":"42", ...}}
    {"time":..., "step":0, "loss":..., "norm":..., "lr":..., "ms":..., "tokens_per_second":..., "mfu":..., "memory":..., ...}
    {"time":..., "step":20, "validation":...} or "hellaswag"     {"time":..., "step":20, "event":"sample", "text":...}
    {"time":..., "step":20, "event":"checkpoint", "saved":true, "path":...}
    {"time":..., "step":40, "event":"end", "exit_code":0}

A file is appended to. A resumed run logs "event":"resume" with the checkpoint's step: earlier lines of that and later steps
belong to steps that are repeated. A full disk is treated as in logger.h. Only rank 0 has a log.
*/
#ifndef LLMC_RUN_STEP_LOG_H
#define LLMC_RUN_STEP_LOG_H

#include <time.h>

#include "logger.h"
#include "llmc/base/json.h"
#include "llmc/checkpoint/identity.h"

typedef struct {
    Logger out; // --log-json's
    Logger own; // the folder's
    int step;   // of the newest line
    FILE* line; // into `text`: the line that is being made
    char* text; // (bytes)
    size_t bytes;
} StepLog;

// ----------------------------------------------------------------------------
// Opening

// Uses the process's stdout for the log: printed text goes to stderr from here on.
static inline void step_log_take_stdout(StepLog* log) {
    fflush(stdout);
    log->out.fd = fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
    if (log->out.fd < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
        fatal("--log-json -: cannot take stdout: %s", strerror(errno));
    }
}

// Removes an incomplete last line. Leaves a file alone that does not begin and end like a log. `flag` and `way` are of errors:
// what names the file, if not the folder, and what to do.
static inline void step_log_mend_(const char* flag, const char* path, const char* way) {
    struct stat st;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) { return; }
    if (fd < 0 || fstat(fd, &st) != 0) { fatal("%scannot open %s: %s", flag, path, strerror(errno)); }
    off_t line = st.st_size, at = st.st_size; // where the last line begins
    char c = '\n', first = '{', begin = '{';
    if (S_ISREG(st.st_mode) && st.st_size > 0 && pread(fd, &c, 1, st.st_size - 1) != 1) { c = '\0'; }
    if (c != '\n') {
        for (c = '\0'; at > 0 && st.st_size - at < (1 << 20) && pread(fd, &c, 1, at - 1) == 1 && c != '\n'; at--) {}
        line = at;
        if ((at > 0 && c != '\n') || pread(fd, &first, 1, line) != 1) { first = '\0'; }
    }
    if (S_ISREG(st.st_mode) && st.st_size > 0 && pread(fd, &begin, 1, 0) != 1) { begin = '\0'; }
    if (first != '{' || begin != '{') { fatal("%s%s: the file is no log of lines; %s", flag, path, way); }
    if (line != st.st_size && ftruncate(fd, line) != 0) { fatal("%scannot write %s: %s", flag, path, strerror(errno)); }
    close(fd);
}

// Opens <dir>/main.jsonl: of a new run empty, of one that resumes as it is, but for an incomplete last line. With dir NULL
// there is none.
static inline void step_log_open_own(StepLog* log, const char* dir, int resumed) {
    struct stat st;
    if (dir == NULL) { return; }
    log->own.active = 1;
    snprintf(log->own.path, sizeof(log->own.path), "%s/main.jsonl", dir); // logger_open has seen that the name fits
    if (stat(log->own.path, &st) == 0 && !S_ISREG(st.st_mode)) {
        fatal("cannot write %s: %s; move it away", log->own.path, regular_file_fault(&st));
    }
    if (resumed) { step_log_mend_("", log->own.path, "move it away"); }
    FILE* file = fopen_check(log->own.path, resumed ? "a" : "w");
    if (fclose(file) != 0) { fatal("cannot write %s: %s", log->own.path, strerror(errno)); }
}

// Opens the log of --log-json; NULL: there is none. "-" has been taken by step_log_take_stdout.
static inline void step_log_open(StepLog* log, const char* path) {
    if (path == NULL) { return; }
    log->out.active = 1;
    snprintf(log->out.path, sizeof(log->out.path), "%s", log->out.fd ? "the log on stdout" : path);
    if (log->out.fd) { return; }
    if (strlen(path) >= sizeof(log->out.path)) { fatal("--log-json: the name is too long: %s", path); }
    step_log_mend_("--log-json: ", path, "name another");
    int error = logger_append_(&log->out, "", 0);
    if (error != 0) { fatal("--log-json: cannot write %s: %s", path, strerror(error)); }
}

static inline void step_log_close(StepLog* log) {
    logger_close(&log->own);
    logger_close(&log->out);
    if (log->out.fd) { close(log->out.fd); }
}

// ----------------------------------------------------------------------------
// A line: step_log_begin, its members, step_log_end. Where there is no log, step_log_begin returns 0, and nothing follows.

static inline int step_log_begin(StepLog* log, int step) {
    struct timespec now;
    if (!log->out.active && !log->own.active) { return 0; }
    log->line = open_memstream(&log->text, &log->bytes);
    if (log->line == NULL) { return 0; }
    clock_gettime(CLOCK_REALTIME, &now);
    log->step = step;
    fprintf(log->line, "{\"time\":%lld.%03ld,\"step\":%d", (long long)now.tv_sec, now.tv_nsec / 1000000, step);
    return 1;
}

static inline void step_log_number(StepLog* log, const char* name, double value) {
    fprintf(log->line, ",\"%s\":", name);
    json_write_number(log->line, value);
}

static inline void step_log_flag(StepLog* log, const char* name, int value) {
    fprintf(log->line, ",\"%s\":%s", name, value ? "true" : "false");
}

static inline void step_log_text(StepLog* log, const char* name, const char* text) {
    fprintf(log->line, ",\"%s\":", name);
    json_write_text(log->line, text, strlen(text));
}

static inline void step_log_end(StepLog* log) {
    fputs("}\n", log->line);
    int whole = fclose(log->line) == 0;
    if (whole && log->out.active) { logger_write(&log->out, log->text, log->bytes); }
    if (whole && log->own.active) { logger_write(&log->own, log->text, log->bytes); }
    free(log->text);
    log->line = NULL, log->text = NULL;
}

// The settings of a run, and what it reads
static inline void step_log_settings(StepLog* log, const RunIdentity* id) {
    const char *p = id->text, *end = id->text + id->text_bytes;
    int count = 0;
    fputs(",\"settings\":{", log->line);
    while (p < end) {
        IdentityLine line = run_identity_next_line(&p, end);
        if (line.effect < 0) { continue; }
        if (count++ > 0) { fputc(',', log->line); }
        json_write_text(log->line, line.name, (size_t)line.name_length);
        fputc(':', log->line);
        json_write_text(log->line, line.value, (size_t)line.value_length);
    }
    fputc('}', log->line);
}

#endif
