/*
Detects outliers of the loss or of the gradient norm: the z-score of each value within the window of the last 128, the value
itself included:  z = (x - mean) / standard deviation.
*/
#ifndef LLMC_CHECKPOINT_OUTLIER_DETECTOR_H
#define LLMC_CHECKPOINT_OUTLIER_DETECTOR_H

#include <float.h>
#include <math.h>

enum { OUTLIER_WINDOW = 128 };

typedef struct {
    double window[OUTLIER_WINDOW]; // a ring
    int count;                     // values in it
    int index;                     // the oldest value, once it is full
} OutlierDetector;

static inline void outlier_init(OutlierDetector* d) {
    d->count = 0;
    d->index = 0;
}

// 1 if this is a detector that outlier_update() can have made: one from a file must not index beyond its window, and
// its values are those of losses and norms, which are floats.
static inline int outlier_valid(const OutlierDetector* d) {
    if (d->count < 0 || d->count > OUTLIER_WINDOW || d->index < 0 || d->index >= OUTLIER_WINDOW) { return 0; }
    if (d->count < OUTLIER_WINDOW && d->index != 0) { return 0; }
    for (int i = 0; i < d->count; i++) {
        if (!(fabs(d->window[i]) <= (double)FLT_MAX)) { return 0; } // NaN too
    }
    return 1;
}

// Adds x to the window and returns its z-score; NaN until the window is full, 0 if all its values are equal. For an x
// that is not finite it returns INFINITY and leaves the window unchanged.
static inline double outlier_update(OutlierDetector* d, double x) {
    if (!isfinite(x)) { return INFINITY; }
    int full = d->count == OUTLIER_WINDOW;
    d->window[full ? d->index : d->count] = x;
    if (!full) {
        d->count++;
        return NAN;
    }
    d->index = (d->index + 1) % OUTLIER_WINDOW;
    // Both sums are recomputed: 128 additions are negligible beside a training step, and running sums would drift.
    double mean = 0.0, variance = 0.0;
    for (int i = 0; i < OUTLIER_WINDOW; i++) { mean += d->window[i] / OUTLIER_WINDOW; }
    for (int i = 0; i < OUTLIER_WINDOW; i++) {
        double off = d->window[i] - mean;
        variance += off * off / OUTLIER_WINDOW;
    }
    return variance > 0.0 ? (x - mean) / sqrt(variance) : 0.0;
}

#endif
