/*
What a program shows: on a terminal a line that is overwritten repeatedly, and erased before anything else is printed; how far
long work has come; tables. No colours are used, and the terminal's settings are not changed.

In a file, the progress of work is a line every 30 seconds, so none for shorter work.
*/
#ifndef LLMC_BASE_TERMINAL_H
#define LLMC_BASE_TERMINAL_H

#include <sys/ioctl.h>

#include "utils.h"

// 1 if a file descriptor is a terminal that can write over a line.
static inline int terminal_is_able(int fd) {
    const char* term = getenv("TERM");
    return term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0 && isatty(fd);
}

// 1 if stdout is one.
static inline int terminal_can_rewrite(void) { return terminal_is_able(STDOUT_FILENO); }

// Shows a line in place of what it was. It must be shorter than the terminal is wide. utils.h's terminal_line_clear takes it
// away, as warnings, errors and signal handlers do.
static inline void terminal_line_show(FILE* out, const char* text) {
    fprintf(out, "\r%s\033[K", text);
    fflush(out);
    __atomic_store_n(&terminal_line_open_, fileno(out) + 1, __ATOMIC_RELAXED);
}

// The columns of stdout, 80 where it does not say
static inline int terminal_columns(void) {
    struct winsize size;
    memset(&size, 0, sizeof(size));
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// ----------------------------------------------------------------------------
// Progress of long work

// Formats a duration: 12s, 3m20s, 1h02m, 2d03h.
static inline char* format_duration(char* buf, size_t n, double seconds) {
    if (!(seconds >= 0.0 && seconds < 1e9)) { // no time, or more than 30 years
        snprintf(buf, n, "?");
        return buf;
    }
    long long s = (long long)(seconds + 0.5);
    if (s < 60) {
        snprintf(buf, n, "%llds", s);
    } else if (s < 3600) {
        snprintf(buf, n, "%lldm%02llds", s / 60, s % 60);
    } else if (s < 86400) {
        snprintf(buf, n, "%lldh%02lldm", s / 3600, s / 60 % 60);
    } else {
        snprintf(buf, n, "%lldd%02lldh", s / 86400, s / 3600 % 24);
    }
    return buf;
}

typedef struct {
    char what[64]; // is under way; "": nothing
    double start;  // when it began, in seconds
    size_t first;  // what was done by then
    double shown;  // when the last line was written
} Progress;

static const double PROGRESS_TERMINAL_SECONDS = 0.1, PROGRESS_FILE_SECONDS = 30.0;

// Shows on `out` that `done` of `total` are done at time `now`, if the last line is old enough. A new name starts new work.
static inline void progress_show(Progress* p, FILE* out, int terminal, double now, const char* what, size_t done,
                                 size_t total) {
    if (strncmp(p->what, what, sizeof(p->what) - 1) != 0) {
        snprintf(p->what, sizeof(p->what), "%s", what);
        p->start = p->shown = now;
        p->first = done;
    }
    if (now - p->shown < (terminal ? PROGRESS_TERMINAL_SECONDS : PROGRESS_FILE_SECONDS) || total == 0) { return; }
    p->shown = now;
    char line[128], left[32] = "?";
    if (done > p->first) {
        double rest = done < total ? (double)(total - done) : 0.0;
        format_duration(left, sizeof(left), (now - p->start) * rest / (double)(done - p->first));
    }
    snprintf(line, sizeof(line), "%s %5.1f%%, %s left", p->what, 100.0 * (double)done / (double)total, left);
    if (terminal) {
        terminal_line_show(out, line);
    } else {
        fprintf(out, "%s\n", line);
        fflush(out);
    }
}

// Ends the work: the terminal's line goes away, for what the caller prints in its place.
static inline void progress_finish(Progress* p) {
    terminal_line_clear();
    p->what[0] = '\0';
}

// The program's own progress line
static Progress progress_of_program;

static inline void progress_update(FILE* out, const char* what, size_t done, size_t total) {
    progress_show(&progress_of_program, out, terminal_is_able(fileno(out)), wall_seconds(), what, done, total);
}

static inline void progress_end(void) { progress_finish(&progress_of_program); }

// ----------------------------------------------------------------------------
// The tables of two columns that a run prints first: flags and their values, the machine, the model, the data; and that of
// --doctor, with a row for each requirement of a run

// A rule between groups of rows.
static inline void print_table_line(void) {
    printf("+-----------------------+----------------------------------------------------+\n");
}

// A row: a name, and a value by a format of printf.
PRINTF_LIKE(2, 3) static inline void print_table_row(const char* name, const char* format, ...) {
    char value[512];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    printf("| %-21s | %-50s |\n", name, value);
}

// ----------------------------------------------------------------------------
// --doctor: a row has `ok`, or `NOT OK` and below it how to fix that. What is missing but not essential is a row with `-`, also
// with its fix.

typedef enum { DOCTOR_OK, DOCTOR_ABSENT, DOCTOR_FAULT } DoctorResult;

typedef struct {
    int rows, faults; // faults: rows that are not ok
} Doctor;

// A row. `fix` is what to do where it is not ok; NULL if there is nothing to do.
PRINTF_LIKE(5, 6)
static inline void doctor_row(Doctor* d, DoctorResult result, const char* name, const char* fix, const char* format,
                              ...) {
    static const char* const words[] = {"ok    ", "-     ", "NOT OK"};
    char value[3000];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    d->rows++;
    d->faults += result == DOCTOR_FAULT;
    print_table_row(name, "%s  %s", words[result], value);
    if (result != DOCTOR_OK && fix != NULL) { print_table_row("", "        -> %s", fix); }
    fflush(stdout);
}

// Fills x with n numbers of a fixed sequence, multiples of 1/64 in [-1, 1), which bf16 holds exactly.
static inline void doctor_numbers(float* x, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)((int)(seed >> 25) - 64) / 64.0f;
    }
}

#endif
