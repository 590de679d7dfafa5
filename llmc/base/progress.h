/*
Progress of long work. On a terminal, one line that is overwritten; in a file, a line every 30 seconds, so none for shorter
work, unless progress_begin asks for the first one sooner.
*/
#ifndef LLMC_BASE_PROGRESS_H
#define LLMC_BASE_PROGRESS_H

#include "utils.h"

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
    int active;       // work is under way
    char what[64];    // which
    double start;     // when it began, in seconds
    size_t first;     // what was done by then
    double shown;     // when the last line was written
    double wait;      // seconds to a file's first line; 0: as to every other
    int line_is_open; // the terminal's last line is not ended yet
} Progress;

static const double PROGRESS_TERMINAL_SECONDS = 0.1, PROGRESS_FILE_SECONDS = 30.0;

// Begins work of which a file, too, has a line after `wait` seconds.
static inline void progress_start(Progress* p, double now, const char* what, double wait) {
    memset(p, 0, sizeof(*p));
    p->active = 1;
    snprintf(p->what, sizeof(p->what), "%s", what);
    p->start = p->shown = now;
    p->wait = wait;
}

// Shows on `out` that `done` of `total` are done at time `now`, if the last line is old enough. A new name starts new work.
static inline void progress_show(Progress* p, FILE* out, int terminal, double now, const char* what, size_t done,
                                 size_t total) {
    if (!p->active || strncmp(p->what, what, sizeof(p->what) - 1) != 0) {
        progress_start(p, now, what, 0.0);
        p->first = done;
    }
    double wait = terminal ? PROGRESS_TERMINAL_SECONDS : p->wait > 0.0 ? p->wait : PROGRESS_FILE_SECONDS;
    if (now - p->shown < wait || total == 0) { return; }
    p->shown = now;
    p->wait = 0.0;
    double percent = 100.0 * (double)done / (double)total;
    char left[32] = "?";
    if (done > p->first) {
        double rest = done < total ? (double)(total - done) : 0.0;
        format_duration(left, sizeof(left), (now - p->start) * rest / (double)(done - p->first));
    }
    fprintf(out, terminal ? "\r%s %5.1f%%, %s left\033[K" : "%s %5.1f%%, %s left\n", p->what, percent, left);
    fflush(out);
    p->line_is_open = terminal;
}

// Ends the work: the terminal's line goes away, for what the caller prints in its place.
static inline void progress_finish(Progress* p, FILE* out) {
    if (p->line_is_open) {
        fputs("\r\033[K", out);
        fflush(out);
    }
    p->active = 0;
    p->line_is_open = 0;
}

// The program's own progress line, on stdout
static Progress progress_of_program;

static inline void progress_begin(const char* what, double wait) {
    progress_start(&progress_of_program, wall_seconds(), what, wait);
}

static inline void progress_update(const char* what, size_t done, size_t total) {
    progress_show(&progress_of_program, stdout, terminal_can_rewrite(), wall_seconds(), what, done, total);
}

static inline void progress_end(void) { progress_finish(&progress_of_program, stdout); }

#endif
