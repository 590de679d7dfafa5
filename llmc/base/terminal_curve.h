/*
The losses of a run as a small curve of text: four lines of Braille, whose characters are 2 x 4 dots, or of ASCII. A curve keeps
the means of up to 512 spans of steps; when they are full, neighbours are merged in pairs.
*/
#ifndef LLMC_BASE_TERMINAL_CURVE_H
#define LLMC_BASE_TERMINAL_CURVE_H

#include <math.h>
#include <stdio.h>
#include <string.h>

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

// Dots: bit x of rows[y], the largest loss at y = 0. Neighbours are joined.
typedef struct {
    unsigned char dot[4 * CURVE_LINES][2 * CURVE_MOST_COLUMNS];
    double least, most;
} CurveDots;

static inline void curve_draw_(CurveDots* d, const LossCurve* c, int width, int height) {
    int before = -1;
    memset(d->dot, 0, sizeof(d->dot));
    d->least = (double)INFINITY, d->most = -(double)INFINITY;
    for (int x = 0; x < width; x++) {
        double loss = curve_part_(c, x, width);
        d->least = fmin(d->least, loss), d->most = fmax(d->most, loss); // of NAN and a number the number
    }
    double range = d->most > d->least ? d->most - d->least : 1.0;
    for (int x = 0; x < width; x++) {
        double loss = curve_part_(c, x, width);
        if (isnan(loss)) {
            before = -1;
            continue;
        }
        int y = (int)lrint((d->most - loss) / range * (height - 1)), from = before < 0 ? y : before;
        for (int i = from < y ? from + 1 : from > y ? y : y; i <= (from > y ? from - 1 : y); i++) { d->dot[i][x] = 1; }
        before = y;
    }
}

// The character of a cell of the curve
static inline void curve_print_cell_(FILE* out, const CurveDots* d, int line, int column, int utf8) {
    static const unsigned char bits[4][2] = {{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}};
    unsigned braille = 0;
    if (!utf8) { // one dot wide and two high
        int upper = d->dot[2 * line][column], lower = d->dot[2 * line + 1][column];
        fputc(upper && lower ? '|' : upper ? '\'' : lower ? '.' : ' ', out);
        return;
    }
    for (int y = 0; y < 4; y++) {
        for (int x = 0; x < 2; x++) { braille |= d->dot[4 * line + y][2 * column + x] ? bits[y][x] : 0u; }
    }
    fprintf(out, "\xe2%c%c", (int)(0xa0 | braille >> 6), (int)(0x80 | (braille & 0x3f))); // U+2800 + braille
}

// Prints the curve of the steps from first_step on, on a terminal of so many columns; nothing where there is none to see.
static inline void curve_print(FILE* out, const LossCurve* c, int first_step, int columns, int utf8) {
    CurveDots d;
    int width = columns - 12 < CURVE_MOST_COLUMNS ? columns - 12 : CURVE_MOST_COLUMNS;
    if (c->steps < 2 || width < 8) { return; }
    curve_draw_(&d, c, utf8 ? 2 * width : width, utf8 ? 4 * CURVE_LINES : 2 * CURVE_LINES);
    if (!isfinite(d.least)) { return; }
    for (int line = 0; line < CURVE_LINES; line++) {
        char label[32] = "";
        if (line == 0) { snprintf(label, sizeof(label), "%.4f", d.most); }
        if (line == CURVE_LINES - 1) { snprintf(label, sizeof(label), "%.4f", d.least); }
        fprintf(out, "%9.9s |", label);
        for (int i = 0; i < width; i++) { curve_print_cell_(out, &d, line, i, utf8); }
        fputc('\n', out);
    }
    fprintf(out, "%9s  loss of steps %d to %d\n", "", first_step + 1, first_step + c->steps);
}

#endif
