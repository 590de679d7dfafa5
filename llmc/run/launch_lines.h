/*
Filters what the processes of a machine write to stderr, in the process that started them: equal lines of several processes are
printed once, and for a failed process its own error, or the signal that killed it, rather than the errors that others report.

    "error: rank 1: X"           printed, and not again when another process writes X
    "error: rank 1: rank 2: X"   delayed by a second: replaced by rank 2's own error, or the signal that killed it
    any other line               printed, and not again when another process writes it within 5 s
*/
#ifndef LLMC_RUN_LAUNCH_LINES_H
#define LLMC_RUN_LAUNCH_LINES_H

#include <signal.h>

#include "llmc/base/utils.h"

enum { LAUNCH_LINES = 64, LAUNCH_LINE_BYTES = 4200 };
#define LAUNCH_HOLD_SECONDS 1.0
#define LAUNCH_SAME_SECONDS 5.0

typedef struct {
    char text[LAUNCH_LINE_BYTES]; // as it is printed, without its newline
    const char* cause;            // in `text`: what must be equal
    int is_error;
    int about; // the process of this machine that it tells of, or -1
    int held;  // 1: not printed yet
    double time;
    unsigned char* said; // (count) 1 if a process has said it
} LaunchLine;

typedef struct {
    int first_rank, count; // of the processes of this machine
    int fd;                // that the lines go to
    int next;              // the oldest of `lines`
    unsigned char* named;  // (count) 1 if a line has said why this process has failed
    LaunchLine lines[LAUNCH_LINES];
} LaunchLines;

static inline LaunchLines* launch_lines_open(int first_rank, int count, int fd) {
    LaunchLines* s = (LaunchLines*)calloc_check(1, sizeof(*s));
    s->first_rank = first_rank;
    s->count = count;
    s->fd = fd;
    s->named = (unsigned char*)calloc_check((size_t)count, LAUNCH_LINES + 1);
    for (int i = 0; i < LAUNCH_LINES; i++) { s->lines[i].said = s->named + (size_t)count * (size_t)(i + 1); }
    return s;
}

static inline void launch_lines_print_(const LaunchLines* s, const char* text) {
    char line[LAUNCH_LINE_BYTES + 1];
    int length = snprintf(line, sizeof(line), "%s\n", text);
    for (int done = 0; done < length;) {
        ssize_t n = write(s->fd, line + done, (size_t)(length - done));
        if (n < 0 && errno != EINTR) { return; } // nobody listens
        done += n > 0 ? (int)n : 0;
    }
}

// Prints a line that was held.
static inline void launch_lines_release_(LaunchLines* s, LaunchLine* line) {
    if (!line->held) { return; }
    line->held = 0;
    launch_lines_print_(s, line->text);
    if (line->about >= 0) { s->named[line->about] = 1; }
}

// The process has printed why it failed, or its end was reported: drops the other processes' lines about it.
static inline void launch_lines_name_(LaunchLines* s, int process) {
    s->named[process] = 1;
    for (int i = 0; i < LAUNCH_LINES; i++) {
        if (s->lines[i].about == process) { s->lines[i].held = 0; }
    }
}

// Reads "rank R" and what follows it; returns what follows, or NULL if the text does not begin so.
static inline const char* launch_lines_rank_(const char* text, int* rank) {
    char* end;
    if (strncmp(text, "rank ", 5) != 0 || text[5] < '0' || text[5] > '9') { return NULL; }
    *rank = (int)strtol(text + 5, &end, 10);
    return *end == ':' && end[1] == ' ' ? end + 2 : end;
}

// Takes a line apart.
static inline void launch_lines_read_(const LaunchLines* s, LaunchLine* line, int process, const char* text) {
    int rank = -1, other = -1, own = s->first_rank + process;
    line->about = -1;
    line->is_error = strncmp(text, "error: ", 7) == 0;
    snprintf(line->text, sizeof(line->text), "%.4180s", text);
    size_t kind = strncmp(text, "warning: ", 9) == 0 ? 9 : strncmp(text, "note: ", 6) == 0 ? 6 : 0;
    char* message = line->text + (line->is_error ? 7 : kind);
    line->cause = message;
    const char* rest = message == line->text ? NULL : launch_lines_rank_(message, &rank);
    if (rest == NULL) { return; }
    const char* further = rank == own ? launch_lines_rank_(rest, &other) : NULL;
    if (further != NULL && other != own) { // "rank 1: rank 2: X" is said as "rank 2: X"
        memmove(message, rest, strlen(rest) + 1);
        rest = launch_lines_rank_(message, &rank);
    }
    line->cause = rest;
    if (line->is_error && rank != own && rank >= s->first_rank && rank < s->first_rank + s->count) {
        line->about = rank - s->first_rank;
    }
}

// Prints what has been held long enough; `all`: whatever is held.
static inline void launch_lines_tick(LaunchLines* s, double now, int all) {
    for (int i = 0; i < LAUNCH_LINES; i++) {
        LaunchLine* line = &s->lines[(s->next + i) % LAUNCH_LINES];
        if (line->held && (all || now >= line->time + LAUNCH_HOLD_SECONDS)) { launch_lines_release_(s, line); }
    }
}

// A process has written this line.
static inline void launch_lines_add(LaunchLines* s, int process, const char* text, double now) {
    LaunchLine* line = &s->lines[s->next];
    launch_lines_release_(s, line);
    unsigned char* said = line->said;
    launch_lines_read_(s, line, process, text);
    for (int i = 1; i < LAUNCH_LINES; i++) {
        LaunchLine* other = &s->lines[(s->next + i) % LAUNCH_LINES];
        if (other->cause == NULL || other->is_error != line->is_error || strcmp(other->cause, line->cause) != 0 ||
            other->said[process] || (!line->is_error && now > other->time + LAUNCH_SAME_SECONDS)) {
            continue;
        }
        other->said[process] = 1;
        if (other->about == process) { launch_lines_release_(s, other); }
        line->cause = NULL; // the entry stays free
        return;
    }
    memset(said, 0, (size_t)s->count);
    said[process] = 1;
    line->time = now;
    s->next = (s->next + 1) % LAUNCH_LINES;
    if (line->about >= 0) {
        line->held = !s->named[line->about];
        return;
    }
    if (line->is_error) { launch_lines_name_(s, process); }
    line->held = 1;
    launch_lines_release_(s, line);
}

// Reports that a signal has killed the process, unless a line has given the reason.
static inline void launch_lines_killed(LaunchLines* s, int process, int signal_number) {
    char text[128];
    static const struct {
        int number;
        const char* name;
    } names[] = {{SIGKILL, "SIGKILL"}, {SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"},   {SIGABRT, "SIGABRT"},
                 {SIGFPE, "SIGFPE"},   {SIGILL, "SIGILL"},   {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"},
                 {SIGHUP, "SIGHUP"},   {SIGXCPU, "SIGXCPU"}};
    const char* name = strsignal(signal_number);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (names[i].number == signal_number) { name = names[i].name; }
    }
    if (s->named[process]) { return; }
    launch_lines_name_(s, process);
    snprintf(text, sizeof(text), "error: rank %d was killed by signal %d (%s)", s->first_rank + process, signal_number,
             name ? name : "unknown");
    launch_lines_print_(s, text);
}

static inline void launch_lines_close(LaunchLines* s) {
    launch_lines_tick(s, 0.0, 1);
    free(s->named);
    free(s);
}

#endif
