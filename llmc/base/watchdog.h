/*
Warns when a step takes 20 times as long as usual, and at least 5 s: once while it hangs, once when it ends. A thread checks
every 50 ms; the steps themselves only record when they began.

    watchdog_start(&w);
    for each step { watchdog_begin(&w, step, wall_seconds()); ...; watchdog_end(&w, wall_seconds()); }
    watchdog_stop(&w);

The usual time is the median of the last 32 steps. The first step warms up and does not count; before 3 others there is none.
*/
#ifndef LLMC_BASE_WATCHDOG_H
#define LLMC_BASE_WATCHDOG_H

#include <math.h>

#include "utils.h"

enum { WATCHDOG_WINDOW = 32, WATCHDOG_LEAST_STEPS = 3, WATCHDOG_FACTOR = 20, WATCHDOG_LOOKS_US = 50000 };

typedef struct {
    int started; // 0: there is no watchdog
    int has_thread;
    pthread_t thread;
    pthread_mutex_t mutex; // guards the rest
    double least_seconds;
    double seconds[WATCHDOG_WINDOW]; // of the last steps, a ring
    int count;                       // steps in it, ever
    int warm;                        // 1: the first step has ended
    int step;                        // the current one, or -1
    double began;                    // when it began, in seconds
    double usual;                    // the median of those before, 0: not known yet
    double limit;                    // seconds until the step is reported
    int said;                        // 1: it was
    int ending;
} Watchdog;

// The median of the last steps, of which there is one at least; of an even number, the upper of the two.
static inline double watchdog_median_(const Watchdog* w) {
    double sorted[WATCHDOG_WINDOW] = {0};
    int n = w->count < WATCHDOG_WINDOW ? w->count : WATCHDOG_WINDOW;
    for (int i = 0; i < n; i++) {
        int j = i;
        for (; j > 0 && sorted[j - 1] > w->seconds[i]; j--) { sorted[j] = sorted[j - 1]; }
        sorted[j] = w->seconds[i];
    }
    return sorted[n / 2];
}

// Warns once if the current step hangs.
static inline void watchdog_look_(Watchdog* w, double now) {
    if (w->step < 0 || w->said || !(now - w->began > w->limit)) { return; }
    w->said = 1;
    print_warning("step %d has taken %.1f s so far, %.0f times the usual %.3g s; waiting", w->step, now - w->began,
                  (now - w->began) / w->usual, w->usual);
}

static inline void* watchdog_thread_(void* watchdog) {
    Watchdog* w = (Watchdog*)watchdog;
    for (int ending = 0; !ending;) {
        usleep(WATCHDOG_LOOKS_US);
        pthread_mutex_lock(&w->mutex);
        watchdog_look_(w, wall_seconds());
        ending = w->ending;
        pthread_mutex_unlock(&w->mutex);
    }
    return NULL;
}

// Starts the watchdog. If no thread can be created, a hanging step is reported when it ends. Without this call the functions
// below do nothing: only one of several processes has a watchdog.
static inline void watchdog_start(Watchdog* w) {
    memset(w, 0, sizeof(*w));
    w->least_seconds = 5.0;
    w->step = -1;
    w->started = 1;
    pthread_mutex_init(&w->mutex, NULL);
    w->has_thread = thread_start(&w->thread, watchdog_thread_, w);
}

static inline void watchdog_begin(Watchdog* w, int step, double now) {
    if (!w->started) { return; }
    pthread_mutex_lock(&w->mutex);
    w->step = step;
    w->began = now;
    w->said = 0;
    w->usual = w->count >= WATCHDOG_LEAST_STEPS ? watchdog_median_(w) : 0.0;
    w->limit = w->usual > 0.0 ? fmax(WATCHDOG_FACTOR * w->usual, w->least_seconds) : (double)INFINITY;
    pthread_mutex_unlock(&w->mutex);
}

// To be called at the end of a step; warns if it took too long.
static inline void watchdog_end(Watchdog* w, double now) {
    if (!w->started) { return; }
    pthread_mutex_lock(&w->mutex);
    double seconds = now - w->began;
    if (seconds > w->limit) {
        print_warning("step %d took %.1f s, %.0f times the usual %.3g s", w->step, seconds, seconds / w->usual,
                      w->usual);
    }
    if (w->warm) { w->seconds[w->count++ % WATCHDOG_WINDOW] = seconds; }
    w->warm = 1;
    w->step = -1;
    pthread_mutex_unlock(&w->mutex);
}

// Ends the thread; steps that hang from here on are reported when they end.
static inline void watchdog_stop(Watchdog* w) {
    if (!w->has_thread) { return; }
    pthread_mutex_lock(&w->mutex);
    w->ending = 1;
    pthread_mutex_unlock(&w->mutex);
    pthread_join(w->thread, NULL);
    w->has_thread = 0;
}

#endif
