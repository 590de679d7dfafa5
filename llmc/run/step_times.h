/*
The time of a step in earlier runs, for --plan: one line for each machine, model and batch in a small text file in the user's
cache folder ($XDG_CACHE_HOME or ~/.cache, flashgpt/step_times). Nothing else depends on it; errors of reading or writing it are
ignored.

    <milliseconds of a step, the median> <steps it is of> <key>
*/
#ifndef LLMC_RUN_STEP_TIMES_H
#define LLMC_RUN_STEP_TIMES_H

#include "llmc/base/atomic_file.h"

enum { STEP_TIMES_LEAST = 20, STEP_TIMES_LINES = 200, STEP_TIMES_LINE = 512 };
#define STEP_TIMES_MOST ((size_t)1024)

// The last steps of a run
typedef struct {
    float seconds[STEP_TIMES_MOST];
    size_t count; // of all that were added
} StepTimes;

static inline void step_times_add(StepTimes* t, double seconds) {
    t->seconds[t->count++ % STEP_TIMES_MOST] = (float)seconds;
}

static inline int step_times_compare_(const void* a, const void* b) {
    float x, y;
    memcpy(&x, a, sizeof(x));
    memcpy(&y, b, sizeof(y));
    return (x > y) - (x < y);
}

// In milliseconds. It sorts the steps: nothing is added after it.
static inline double step_times_median(StepTimes* t) {
    size_t n = t->count < STEP_TIMES_MOST ? t->count : STEP_TIMES_MOST;
    if (n == 0) { return 0.0; }
    qsort(t->seconds, n, sizeof(float), step_times_compare_);
    return 1e3 * (double)t->seconds[n / 2];
}

// ----------------------------------------------------------------------------
// The file

// Returns 0 if there is no cache folder. `create`: makes the folders that are missing.
static inline int step_times_path_(char* path, size_t size, int create) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    char folder[800];
    if (cache != NULL && cache[0] == '/' && strlen(cache) < 700) {
        snprintf(folder, sizeof(folder), "%.700s", cache);
    } else if (home != NULL && home[0] == '/' && strlen(home) < 700) {
        snprintf(folder, sizeof(folder), "%.700s/.cache", home);
    } else {
        return 0;
    }
    if (create) { mkdir(folder, 0700); }
    snprintf(path, size, "%s/flashgpt", folder);
    if (create) { mkdir(path, 0755); }
    snprintf(path, size, "%s/flashgpt/step_times", folder);
    return 1;
}

// Reads a key's entry; returns 0 if there is none.
static inline int step_times_read(const char* key, double* milliseconds, int* steps) {
    char path[1000], line[STEP_TIMES_LINE];
    int found = 0, at;
    FILE* file = step_times_path_(path, sizeof(path), 0) ? fopen(path, "r") : NULL;
    while (file != NULL && !found && fgets(line, sizeof(line), file) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        found = sscanf(line, "%lf %d %n", milliseconds, steps, &at) == 2 && strcmp(line + at, key) == 0 &&
                *milliseconds > 0.0 && *steps > 0;
    }
    if (file != NULL) { fclose(file); }
    return found;
}

// Appends to `text` the lines of the file that are of other keys, all but one of STEP_TIMES_LINES at most; returns its length.
static inline size_t step_times_others_(char* text, size_t length, const char* path, const char* key) {
    char line[STEP_TIMES_LINE];
    FILE* file = fopen(path, "r");
    for (int i = 1; i < STEP_TIMES_LINES && file != NULL && fgets(line, sizeof(line), file) != NULL; i++) {
        double milliseconds;
        int steps, at = 0;
        size_t bytes = strlen(line);
        if (bytes == 0) { continue; } // it begins with a NUL
        int whole = sscanf(line, "%lf %d %n", &milliseconds, &steps, &at) == 2 && at > 0 && line[bytes - 1] == '\n';
        line[bytes - 1] = '\0';
        if (!whole || strcmp(line + at, key) == 0) { continue; }
        line[bytes - 1] = '\n';
        memcpy(text + length, line, bytes);
        length += bytes;
    }
    if (file != NULL) { fclose(file); }
    return length;
}

// Replaces a key's entry with a run's median, unless the run has fewer than 20 steps.
static inline void step_times_write(const char* key, StepTimes* times) {
    char path[1000];
    AtomicFile file;
    if (times->count < STEP_TIMES_LEAST || strlen(key) > STEP_TIMES_LINE - 64) { return; }
    char* text = (char*)malloc((size_t)STEP_TIMES_LINES * STEP_TIMES_LINE);
    if (text != NULL && step_times_path_(path, sizeof(path), 1)) {
        int first = snprintf(text, STEP_TIMES_LINE, "%.4f %zu %s\n", step_times_median(times), times->count, key);
        size_t length = step_times_others_(text, (size_t)first, path, key);
        if (atomic_open(&file, path) == STATUS_OK) {
            atomic_write(&file, text, length);
            atomic_commit(&file);
        }
        status_clear();
    }
    free(text);
}

#endif
