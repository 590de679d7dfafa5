/*
main.log, the record of a run that scripts and plots read, in llm.c's lines, but for the learning rate, which
has seven significant digits here and six decimals there:
  s:<step> trl:<training loss> lr:<learning rate> norm:<gradient norm>
  s:<step> tel:<validation loss>
  s:<step> eval:<accuracy>
The file is opened for each line and closed again, so that a crash loses none.
*/
#ifndef LLMC_LOGGER_H
#define LLMC_LOGGER_H

#include "atomic_file.h"
#include "utils.h"

typedef struct {
    char path[1024];
    int active; // 0: nothing is written
} Logger;

// Rewrites the log without what a crashed run wrote after its last checkpoint: lines of step `resume_step` and later,
// which the resumed run writes again, and a last line that was cut short.
static inline void logger_rewind_(const char* path, int resume_step) {
    FILE* old = fopen_check(path, "rb");
    AtomicFile kept;
    check(atomic_open(&kept, path));
    char* line = NULL;
    size_t capacity = 0;
    ssize_t length;
    while ((length = getline(&line, &capacity, old)) > 0) {
        int step;
        int whole = line[length - 1] == '\n';
        if (whole && (sscanf(line, "s:%d ", &step) != 1 || step < resume_step)) {
            check(atomic_write(&kept, line, (size_t)length));
        }
    }
    free(line);
    fclose(old);
    check(atomic_commit(&kept));
}

// Opens <dir>/main.log; with dir NULL the logger is silent. resume_step < 0: a new run, the log starts empty. Otherwise
// the run continues at that step: the lines of earlier steps are kept.
static inline void logger_open(Logger* logger, const char* dir, int resume_step) {
    memset(logger, 0, sizeof(*logger));
    if (dir == NULL) { return; }
    int length = snprintf(logger->path, sizeof(logger->path), "%s/main.log", dir);
    if (length >= (int)sizeof(logger->path)) {
        fatal("the output directory's name is too long for a log file: %s", dir);
    }
    logger->active = 1;
    if (resume_step >= 0 && file_exists(logger->path)) {
        logger_rewind_(logger->path, resume_step);
    } else {
        fclose(fopen_check(logger->path, "w"));
    }
}

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void
logger_line_(const Logger* logger, const char* format, ...) {
    if (!logger->active) { return; }
    FILE* file = fopen_check(logger->path, "a");
    va_list args;
    va_start(args, format);
    int written = vfprintf(file, format, args);
    va_end(args);
    if (fclose(file) != 0 || written < 0) { fatal("cannot write %s: %s", logger->path, strerror(errno)); }
}

static inline void logger_train(const Logger* logger, int step, float loss, float learning_rate, float norm) {
    logger_line_(logger, "s:%d trl:%.6f lr:%.6e norm:%.4f\n", step, (double)loss, (double)learning_rate, (double)norm);
}

static inline void logger_val(const Logger* logger, int step, float loss) {
    logger_line_(logger, "s:%d tel:%.6f\n", step, (double)loss);
}

static inline void logger_eval(const Logger* logger, int step, float accuracy) {
    logger_line_(logger, "s:%d eval:%.4f\n", step, (double)accuracy);
}

#endif
