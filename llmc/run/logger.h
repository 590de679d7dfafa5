/*
main.log, the record of a run that scripts and plots read, in llm.c's lines, but for the learning rate, which
has seven significant digits here and six decimals there:
  s:0 run:<the run's id>
  s:<step> trl:<training loss> lr:<learning rate> norm:<gradient norm>
  s:<step> tel:<validation loss>
  s:<step> eval:<accuracy>
The file is opened for each line and closed again, so that a crash loses none. A full disk does not end a run, nor does a folder
that was deleted: lines that cannot be written are kept, and written when there is space, or the folder is the run's, again.
*/
#ifndef LLMC_RUN_LOGGER_H
#define LLMC_RUN_LOGGER_H

#include <inttypes.h>
#include <time.h>

#include "llmc/base/atomic_file.h"
#include "llmc/base/json.h"
#include "llmc/base/utils.h"
#include "llmc/checkpoint/identity.h"
#include "llmc/files/run_folder.h"

enum { LOGGER_LINE = 256, LOGGER_PENDING = 1 << 20 }; // bytes of the longest line, and of all that wait
enum { LOGGER_NOT_OURS = -1 };                        // an error beside those of errno

typedef struct {
    char path[1024];
    int fd;                  // that lines go to; 0: `path` is opened for each
    int active;              // 0: nothing is written
    uint64_t run;            // the id in the first line; 0: there is none
    char* pending;           // lines that wait to be written, or NULL
    size_t pending_bytes;    //
    size_t lost;             // lines for which there was no room among them
    int error;               // of the last write; 0: it went well
    off_t size;              // bytes of the file after the last one that did
    int renewed;             // 1: it has become shorter since: it was deleted
    const RunFolder* folder; // that the file is in; NULL: of no run
} Logger;

// ----------------------------------------------------------------------------
// Opening

static inline int logger_format_run_(char* line, size_t size, uint64_t run) {
    return run ? snprintf(line, size, "s:0 run:%" PRIu64 "\n", run) : 0;
}

// 1 if the line is the one of the run's id.
static inline int logger_parse_run_(const char* line, uint64_t* run) {
    return sscanf(line, "s:0 run:%" SCNu64, run) == 1;
}

// The id of the run that wrote <dir>/main.log, which is its first line; 0 if there is no such file, or it does not say.
static inline uint64_t logger_read_run(const char* dir) {
    char path[1024], line[LOGGER_LINE] = "";
    uint64_t run = 0;
    snprintf(path, sizeof(path), "%s/main.log", dir);
    FILE* file;
    struct stat st;
    if (fopen_regular(&file, &st, path) != STATUS_OK) { status_clear(); }
    int found = file != NULL && fgets(line, sizeof(line), file) != NULL && logger_parse_run_(line, &run);
    if (file != NULL) { fclose(file); }
    return found ? run : 0;
}

// Rewrites the log without what a crashed run wrote after its last checkpoint: lines of step `resume_step` and later,
// which the resumed run writes again, and a last line that was cut short.
static inline void logger_rewind_(const Logger* logger, int resume_step) {
    FILE* old;
    struct stat st;
    AtomicFile kept;
    char* line = NULL;
    char first[LOGGER_LINE] = "";
    size_t capacity = 0;
    ssize_t length;
    uint64_t run;
    check(fopen_regular(&old, &st, logger->path));
    check(atomic_open(&kept, logger->path));
    check(atomic_write(&kept, first, (size_t)logger_format_run_(first, sizeof(first), logger->run)));
    while ((length = getline(&line, &capacity, old)) > 0) {
        int step;
        int whole = line[length - 1] == '\n';
        if (whole && logger->run != 0 && logger_parse_run_(line, &run)) { continue; }
        if (whole && (sscanf(line, "s:%d ", &step) != 1 || step < resume_step)) {
            check(atomic_write(&kept, line, (size_t)length));
        }
    }
    free(line);
    fclose(old);
    check(atomic_commit(&kept));
}

// Names a log of a run's folder, which must be a regular file: a pipe would be waited for, at each line.
static inline void logger_name_(Logger* logger, const char* dir, const char* name) {
    struct stat st;
    if (snprintf(logger->path, sizeof(logger->path), "%s/%s", dir, name) >= (int)sizeof(logger->path)) {
        fatal("the output directory's name is too long for a log file: %s", dir);
    }
    if (stat(logger->path, &st) == 0 && !S_ISREG(st.st_mode)) {
        fatal("cannot write %s: %s; move it away", logger->path, regular_file_fault(&st));
    }
    logger->active = 1;
}

// Opens <dir>/main.log; with dir NULL the logger is silent. resume_step < 0: a new run, the log starts with the run's id
// alone. Otherwise the run continues at that step: the lines of earlier steps are kept. A log that cannot be written ends
// the program here: later it does not.
static inline void logger_open(Logger* logger, const char* dir, int resume_step, uint64_t run) {
    char line[LOGGER_LINE] = "";
    memset(logger, 0, sizeof(*logger));
    if (dir == NULL) { return; }
    logger_name_(logger, dir, "main.log");
    logger->run = run;
    if (resume_step >= 0 && file_exists(logger->path)) {
        logger_rewind_(logger, resume_step);
        return;
    }
    size_t bytes = (size_t)logger_format_run_(line, sizeof(line), run);
    FILE* file = fopen_check(logger->path, "w");
    fwrite_check(line, 1, bytes, file, logger->path);
    if (fclose(file) != 0) { fatal("cannot write %s: %s", logger->path, strerror(errno)); }
}

// ----------------------------------------------------------------------------
// Writing

// Appends to the file all or nothing. Returns 0, or an error.
static inline int logger_append_(Logger* logger, const char* text, size_t bytes) {
    char first[LOGGER_LINE] = "";
    struct stat st;
    if (logger->folder != NULL && !run_folder_is_ours(logger->folder)) { return LOGGER_NOT_OURS; }
    int fd = logger->fd ? logger->fd : open(logger->path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    if (fd < 0) { return errno; }
    if (fstat(fd, &st) != 0) { st.st_size = 0; }
    errno = 0;
    size_t head = st.st_size == 0 ? (size_t)logger_format_run_(first, sizeof(first), logger->run) : 0;
    int ok = write(fd, first, head) == (ssize_t)head && write(fd, text, bytes) == (ssize_t)bytes;
    int error = ok ? 0 : errno ? errno : ENOSPC; // a write that was cut short says why when it is tried again
    if (!ok && (ftruncate(fd, st.st_size) != 0 || lseek(fd, st.st_size, SEEK_SET) < 0)) {
        /* no regular file: there is nothing to take back */
    }
    if (logger->fd == 0 && close(fd) != 0 && ok) { error = errno; }
    if (error == 0) {
        logger->renewed = st.st_size < logger->size;
        logger->size = logger->folder != NULL ? st.st_size + (off_t)(head + bytes) : 0;
    }
    return error;
}

// Keeps a line for later.
static inline void logger_keep_(Logger* logger, const char* line, size_t bytes) {
    if (logger->pending == NULL) { logger->pending = (char*)malloc(LOGGER_PENDING); }
    if (logger->pending == NULL || bytes > LOGGER_PENDING - logger->pending_bytes || logger->lost > 0) {
        logger->lost++; // and all after it: main.log has no gaps but at the end of what was kept
        return;
    }
    memcpy(logger->pending + logger->pending_bytes, line, bytes);
    logger->pending_bytes += bytes;
}

static inline const char* logger_reason_(int error) {
    return error == LOGGER_NOT_OURS ? "its folder is gone, or another run's" : strerror(error);
}

// Records the result of a write; prints a warning when writes begin to fail, and a note when they succeed again.
static inline void logger_note_(Logger* logger, int error) {
    if (error != 0 && logger->error == 0) {
        print_warning("cannot write %s: %s; the run continues and keeps its lines", logger->path,
                      logger_reason_(error));
    }
    if (error == 0 && logger->renewed) {
        print_warning("%s was deleted and begins anew; its earlier lines are missing", logger->path);
    } else if (error == 0 && logger->error != 0) {
        print_warning("%s can be written again; %zu lines from the meantime are missing", logger->path, logger->lost);
    }
    logger->error = error;
}

// Tries to write what waits, after writing has failed.
static inline void logger_retry_(Logger* logger) {
    if (logger->error == 0) { return; }
    logger_note_(logger, logger_append_(logger, logger->pending, logger->pending_bytes));
    if (logger->error == 0) { logger->pending_bytes = 0, logger->lost = 0; }
}

// Writes a whole line, or keeps it for later.
static inline void logger_write(Logger* logger, const char* line, size_t bytes) {
    logger_retry_(logger);
    if (logger->error == 0) { logger_note_(logger, logger_append_(logger, line, bytes)); }
    if (logger->error != 0) { logger_keep_(logger, line, bytes); }
}

PRINTF_LIKE(2, 3) static inline void logger_line_(Logger* logger, const char* format, ...) {
    char line[LOGGER_LINE] = "";
    if (!logger->active) { return; }
    va_list args;
    va_start(args, format);
    int length = vsnprintf(line, sizeof(line), format, args);
    va_end(args);
    logger_write(logger, line, length < LOGGER_LINE ? (size_t)length : LOGGER_LINE - 1);
}

static inline void logger_train(Logger* logger, int step, float loss, float learning_rate, float norm) {
    logger_line_(logger, "s:%d trl:%.6f lr:%.6e norm:%.4f\n", step, (double)loss, (double)learning_rate, (double)norm);
}

static inline void logger_val(Logger* logger, int step, float loss) {
    logger_line_(logger, "s:%d tel:%.6f\n", step, (double)loss);
}

static inline void logger_eval(Logger* logger, int step, float accuracy) {
    logger_line_(logger, "s:%d eval:%.4f\n", step, (double)accuracy);
}

// Tries a last time to write pending lines, and reports what main.log lacks.
static inline void logger_close(Logger* logger) {
    if (logger->active) { logger_retry_(logger); }
    if (logger->active && logger->error != 0) {
        size_t lines = logger->lost;
        for (size_t i = 0; i < logger->pending_bytes; i++) { lines += logger->pending[i] == '\n'; }
        print_warning("cannot write %s: %s; its last %zu lines are missing", logger->path,
                      logger_reason_(logger->error), lines);
    }
    free(logger->pending);
    logger->pending = NULL, logger->pending_bytes = 0, logger->active = 0;
}

// ----------------------------------------------------------------------------
// stdout, which may be a file on a full disk, or a pipe whose reader has gone

// Flushes stdout. The first failure is reported on stderr, and the run continues. Returns 1 if stdout has failed, now or
// before. SIGPIPE must be ignored, or it ends the program first.
static inline int stdout_flush(int* failed) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) { return *failed; }
    if (!*failed) {
        print_warning("cannot write stdout: %s; the run continues without it", strerror(errno ? errno : EIO));
    }
    clearerr(stdout);
    *failed = 1;
    return 1;
}

// ----------------------------------------------------------------------------
// main.jsonl in the run's folder, and --log-json: a run as JSON lines, for plot_run.py and other programs. A line is an object
// and is written whole; a number that is not finite is null. Every object has a "time", in seconds since 1970, and a "step",
// which counts as in main.log:
//
//     {"time":..., "step":0, "event":"start", "run":"<id>", "program":..., "steps":..., "settings":{"--seed":"42", ...}}
//     {"time":..., "step":0, "loss":..., "norm":..., "lr":..., "ms":..., "tokens_per_second":..., "mfu":..., "memory":..., ...}
//     {"time":..., "step":20, "validation":...} or "hellaswag"     {"time":..., "step":20, "event":"sample", "text":...}
//     {"time":..., "step":20, "event":"checkpoint", "saved":true, "path":...}
//     {"time":..., "step":40, "event":"end", "exit_code":0}
//
// A file is appended to. A resumed run logs "event":"resume" with the checkpoint's step: earlier lines of that and later steps
// belong to steps that are repeated. A full disk is treated as above. Only rank 0 has a log.

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

enum { STEP_LOG_LAST_LINE = 1 << 20 }; // bytes: no line of a log is as long

// Removes an incomplete last line. Leaves a file alone in which a line does not begin like a log's, or is too long. `flag` and
// `way` are of errors: what names the file, if not the folder, and what to do.
static inline void step_log_mend_(const char* flag, const char* path, const char* way) {
    char* line = NULL;
    size_t capacity = 0;
    off_t whole = 0; // bytes of complete lines
    struct stat st;
    int is_log = 1;
    ssize_t length;
    FILE* file = fopen(path, "r+");
    if (file == NULL && errno == ENOENT) { return; }
    if (file == NULL || fstat(fileno(file), &st) != 0) { fatal("%scannot open %s: %s", flag, path, strerror(errno)); }
    if (S_ISFIFO(st.st_mode)) {
        fatal("%s%s: it is a named pipe, whose reader a run would wait for; %s", flag, path, way);
    }
    while (S_ISREG(st.st_mode) && is_log && (length = getline(&line, &capacity, file)) > 0) {
        is_log = strncmp(line, "{\"time\":", length < 8 ? (size_t)length : 8) == 0;
        if (line[length - 1] == '\n') { whole += length; }
    }
    free(line);
    if (ferror(file)) { fatal("%scannot read %s: %s", flag, path, strerror(errno)); }
    if (!is_log || (S_ISREG(st.st_mode) && st.st_size - whole > STEP_LOG_LAST_LINE)) {
        fatal("%s%s: this is not a log of JSON lines; %s", flag, path, way);
    }
    if (S_ISREG(st.st_mode) && whole < st.st_size && ftruncate(fileno(file), whole) != 0) {
        fatal("%scannot write %s: %s", flag, path, strerror(errno));
    }
    fclose(file);
}

// Opens <dir>/main.jsonl: empty for a new run; a resumed run keeps it, without an incomplete last line. With dir NULL there is
// none.
static inline void step_log_open_own(StepLog* log, const char* dir, int resumed) {
    if (dir == NULL) { return; }
    logger_name_(&log->own, dir, "main.jsonl");
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
