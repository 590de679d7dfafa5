/*
What a program shows on a terminal: a line that is overwritten repeatedly, and erased before anything else is printed; how far
long work has come; and the losses of a run as a small curve. No colours are used, and the terminal's settings are not changed.

In a file, the progress of work is a line every 30 seconds, so none for shorter work, unless progress_begin asks for the first
one sooner.
*/
#ifndef LLMC_BASE_TERMINAL_H
#define LLMC_BASE_TERMINAL_H

#include <math.h>
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

// 1 if the user's locale is UTF-8.
static inline int terminal_is_utf8(void) {
    static const char* const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char* locale = getenv(names[i]);
        if (locale == NULL || locale[0] == '\0') { continue; }
        return strcasestr(locale, "utf-8") != NULL || strcasestr(locale, "utf8") != NULL;
    }
    return 0;
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
    double wait;   // seconds to a file's first line; 0: as to every other
} Progress;

static const double PROGRESS_TERMINAL_SECONDS = 0.1, PROGRESS_FILE_SECONDS = 30.0;

// Begins work of which a file, too, has a line after `wait` seconds.
static inline void progress_start(Progress* p, double now, const char* what, double wait) {
    memset(p, 0, sizeof(*p));
    snprintf(p->what, sizeof(p->what), "%s", what);
    p->start = p->shown = now;
    p->wait = wait;
}

// Shows on `out` that `done` of `total` are done at time `now`, if the last line is old enough. A new name starts new work.
static inline void progress_show(Progress* p, FILE* out, int terminal, double now, const char* what, size_t done,
                                 size_t total) {
    if (strncmp(p->what, what, sizeof(p->what) - 1) != 0) {
        progress_start(p, now, what, 0.0);
        p->first = done;
    }
    double wait = terminal ? PROGRESS_TERMINAL_SECONDS : p->wait > 0.0 ? p->wait : PROGRESS_FILE_SECONDS;
    if (now - p->shown < wait || total == 0) { return; }
    p->shown = now;
    p->wait = 0.0;
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

// The program's own progress line, on stdout
static Progress progress_of_program;

static inline void progress_begin(const char* what, double wait) {
    progress_start(&progress_of_program, wall_seconds(), what, wait);
}

static inline void progress_update(const char* what, size_t done, size_t total) {
    progress_show(&progress_of_program, stdout, terminal_can_rewrite(), wall_seconds(), what, done, total);
}

static inline void progress_end(void) { progress_finish(&progress_of_program); }

// ----------------------------------------------------------------------------
// The losses of a run: four lines of Braille, whose characters are 2 x 4 dots. A curve keeps the means of up to 512 spans of
// steps; when they are full, neighbours are merged in pairs.

enum { CURVE_SPANS = 512, CURVE_LINES = 4, CURVE_MOST_COLUMNS = 64 };

typedef struct {
    double sums[CURVE_SPANS]; // of the finite losses of each span
    int counts[CURVE_SPANS];  // how many there are
    int span;                 // steps of a span, a power of two; 0: none has come
    int steps;
} LossCurve;

static inline void curve_add(LossCurve* c, float loss) {
    if (c->span == 0) { c->span = 1; }
    if (c->steps == CURVE_SPANS * c->span) {
        for (int i = 0; i < CURVE_SPANS / 2; i++) {
            c->sums[i] = c->sums[2 * i] + c->sums[2 * i + 1];
            c->counts[i] = c->counts[2 * i] + c->counts[2 * i + 1];
        }
        memset(c->sums + CURVE_SPANS / 2, 0, sizeof(c->sums) / 2);
        memset(c->counts + CURVE_SPANS / 2, 0, sizeof(c->counts) / 2);
        c->span *= 2;
    }
    int i = c->steps++ / c->span;
    if (isfinite(loss)) { c->sums[i] += (double)loss, c->counts[i]++; }
}

// The mean loss of part x of n, or NAN
static inline double curve_part_(const LossCurve* c, int x, int n) {
    int spans = (c->steps + c->span - 1) / c->span, count = 0;
    int first = (int)((long long)spans * x / n), end = (int)((long long)spans * (x + 1) / n);
    double sum = 0.0;
    for (int i = first; i < (end > first ? end : first + 1); i++) { sum += c->sums[i], count += c->counts[i]; }
    return count > 0 ? sum / count : (double)NAN;
}

// 1 if the curve passes through a dot: through rows[x] (-1: a gap), and from there up to the row before or down to it.
static inline int curve_has_dot_(const int* rows, int x, int row) {
    int to = rows[x], from = x > 0 && rows[x - 1] >= 0 ? rows[x - 1] : to;
    return row == to || (to >= 0 && ((row > from && row < to) || (row < from && row > to)));
}

// Prints the curve of the steps from first_step on, the largest loss on top, on a terminal of so many columns whose locale is
// UTF-8; nothing where there is none to see.
static inline void curve_print(FILE* out, const LossCurve* c, int first_step, int columns) {
    static const unsigned bits[8] = {0x01, 0x08, 0x02, 0x10, 0x04, 0x20, 0x40, 0x80};
    int rows[2 * CURVE_MOST_COLUMNS], width = columns - 12 < CURVE_MOST_COLUMNS ? columns - 12 : CURVE_MOST_COLUMNS;
    double least = (double)INFINITY, most = -(double)INFINITY;
    if (c->steps < 2 || width < 8 || !terminal_is_utf8()) { return; }
    for (int x = 0; x < 2 * width; x++) {
        double loss = curve_part_(c, x, 2 * width);
        least = fmin(least, loss), most = fmax(most, loss); // of NAN and a number the number
    }
    if (!isfinite(least)) { return; }
    for (int x = 0; x < 2 * width; x++) {
        double loss = curve_part_(c, x, 2 * width), range = most > least ? most - least : 1.0;
        rows[x] = isnan(loss) ? -1 : (int)lrint((most - loss) / range * (4 * CURVE_LINES - 1));
    }
    for (int line = 0; line < CURVE_LINES; line++) {
        char label[32] = "";
        if (line == 0) { snprintf(label, sizeof(label), "%.4f", most); }
        if (line == CURVE_LINES - 1) { snprintf(label, sizeof(label), "%.4f", least); }
        fprintf(out, "%9.9s |", label);
        for (int column = 0; column < width; column++) {
            unsigned braille = 0;
            for (int dot = 0; dot < 8; dot++) {
                if (curve_has_dot_(rows, 2 * column + dot % 2, 4 * line + dot / 2)) { braille |= bits[dot]; }
            }
            fprintf(out, "\xe2%c%c", (int)(0xa0 | braille >> 6), (int)(0x80 | (braille & 0x3f))); // U+2800 + braille
        }
        fputc('\n', out);
    }
    fprintf(out, "%9s  loss of steps %d to %d\n", "", first_step + 1, first_step + c->steps);
}

#endif
