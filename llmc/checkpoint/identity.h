/*
The identity of a run: its settings and its data as text, a line each, and their digests. Checkpoints hold the text, so that a
resumed run can report what differs.

    <effect> <name> <value>
    result --seed 42
    data training-data 3 files, 30000000 tokens, digest 1b2f0c6d9a4e7351

`effect` says how another value affects a resumed run. The digests exclude the free lines, and nothing here depends on time,
place or chance: equal runs have equal identities, also where one was killed and resumed, or writes more often.
*/
#ifndef LLMC_CHECKPOINT_IDENTITY_H
#define LLMC_CHECKPOINT_IDENTITY_H

#include <glob.h>
#include <inttypes.h>

#include "llmc/run/flags.h"
#include "llmc/base/digest.h"
#include "llmc/base/file_identity.h"
#include "llmc/base/status.h"

typedef enum {
    IDENTITY_FREE,   // no effect on the result
    IDENTITY_RESULT, // changes the resulting weights
    IDENTITY_DATA,   // as IDENTITY_RESULT, by changing the data
    IDENTITY_FIXED   // must not change: the checkpoint cannot be resumed
} IdentityEffect;

static const char* const identity_effects[] = {"free", "result", "data", "fixed"};

typedef struct {
    uint64_t run;            // of settings and data when the run began; a resumed run keeps it. 0: not known
    uint64_t settings, data; // digests of the lines `result` and `fixed`, and of the lines `data`
    char* text;              // (text_bytes) lines, and a NUL after them
    size_t text_bytes;
} RunIdentity;

static inline void run_identity_free(RunIdentity* id) {
    free(id->text);
    memset(id, 0, sizeof(*id));
}

// ----------------------------------------------------------------------------
// Writing

// Appends a line. Control characters of the value become '?'.
#if defined(__GNUC__)
__attribute__((format(printf, 4, 5)))
#endif
static inline void
run_identity_line(RunIdentity* id, IdentityEffect effect, const char* name, const char* format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    size_t head = strlen(identity_effects[effect]) + strlen(name) + 2; // with a space after each
    size_t length = head + (size_t)vsnprintf(NULL, 0, format, args);
    id->text = (char*)realloc(id->text, id->text_bytes + length + 2);
    if (id->text == NULL) { fatal("out of memory: no room for the settings of the run"); }
    char* line = id->text + id->text_bytes;
    snprintf(line, head + 1, "%s %s ", identity_effects[effect], name);
    vsnprintf(line + head, length - head + 1, format, again);
    va_end(again);
    va_end(args);
    mask_controls(line, length);
    strcpy(line + length, "\n");
    id->text_bytes += length + 1;
}

// The effect of a flag; -1 if another line of the identity covers it in more detail.
static inline int identity_effect_(const CliFlag* f) {
    static const struct {
        size_t offset;
        int effect;
    } others[] = {
        {offsetof(Options, train_data), -1},         // the data themselves, at any path
        {offsetof(Options, model), -1},              // the sizes, and where the initial weights are from
        {offsetof(Options, vocab_size), -1},         // one of the sizes
        {offsetof(Options, max_steps), -1},          // -1 resolves to a number of steps
        {offsetof(Options, batch), IDENTITY_FIXED},  // the position in the data is in samples of B*T
        {offsetof(Options, time), IDENTITY_FIXED},   //
        {offsetof(Options, overfit), IDENTITY_FIXED} // has no position in the data to resume from
    };
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (others[i].offset == f->offset) { return others[i].effect; }
    }
    return f->effect == CLI_RESULT ? IDENTITY_RESULT : -1;
}

// Appends the flags of this trainer that change the result. What is "auto", or -1 for all, has been resolved before.
static inline void run_identity_flags(RunIdentity* id, const Options* options) {
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        int effect = identity_effect_(f);
        char number[64];
        if (!(f->who & CLI_TRAINER) || effect < 0) { continue; }
        run_identity_line(id, (IdentityEffect)effect, f->long_name, "%s", cli_value_(options, f, number));
    }
}

// Appends the order of gradients' sums (gradient_tree.h): the tree of a run depends on the odd part of its number of processes.
static inline void run_identity_sum_order(RunIdentity* id, const char* order, int processes) {
    int parts = processes;
    while (parts > 1 && parts % 2 == 0) { parts /= 2; }
    if (strcmp(order, "tree") != 0) {
        run_identity_line(id, IDENTITY_RESULT, "sum-order", "%s, %d process%s", order, processes,
                          processes == 1 ? "" : "es");
    } else if (parts > 1) {
        run_identity_line(id, IDENTITY_RESULT, "sum-order", "%s of %d parts", order, parts);
    } else {
        run_identity_line(id, IDENTITY_RESULT, "sum-order", "%s", order);
    }
}

// Appends a line on token files, in the order in which the loader reads them.
static inline Status run_identity_files(RunIdentity* id, IdentityEffect effect, const char* name, const glob_t* paths,
                                        size_t tokens) {
    Digest digest = digest_begin();
    status_clear();
    for (size_t i = 0; i < paths->gl_pathc; i++) { TRY(identity_file(&digest, paths->gl_pathv[i])); }
    run_identity_line(id, effect, name, "%zu file%s, %zu tokens, digest %016" PRIx64, paths->gl_pathc,
                      paths->gl_pathc == 1 ? "" : "s", tokens, digest_end(digest));
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Reading

typedef struct {
    int effect; // -1: the line is none of ours
    const char *name, *value;
    size_t name_length, value_length;
    int is_default; // 1: the text has no such line, and the value is the flag's default
} IdentityLine;

// Takes the next line off a text, which need not be ours, nor end with a NUL.
static inline IdentityLine identity_next_line_(const char** text, const char* end) {
    IdentityLine line;
    memset(&line, 0, sizeof(line));
    const char* begin = *text;
    const char* stop = (const char*)memchr(begin, '\n', (size_t)(end - begin));
    if (stop == NULL) { stop = end; }
    *text = stop < end ? stop + 1 : end;
    line.effect = -1;
    const char* space = (const char*)memchr(begin, ' ', (size_t)(stop - begin));
    if (space == NULL) { return line; }
    const char* second = (const char*)memchr(space + 1, ' ', (size_t)(stop - space - 1));
    if (second == NULL) { return line; }
    for (int i = 0; i <= IDENTITY_FIXED; i++) {
        size_t length = (size_t)(space - begin);
        if (strlen(identity_effects[i]) == length && memcmp(identity_effects[i], begin, length) == 0) {
            line.effect = i;
        }
    }
    line.name = space + 1, line.name_length = (size_t)(second - space - 1);
    line.value = second + 1, line.value_length = (size_t)(stop - second - 1);
    return line;
}

// The line of that name; effect -1 if there is none.
static inline IdentityLine identity_find_(const char* text, size_t bytes, const char* name, size_t length) {
    const char* end = text + bytes;
    IdentityLine line;
    memset(&line, 0, sizeof(line));
    while (text < end) {
        line = identity_next_line_(&text, end);
        if (line.effect >= 0 && line.name_length == length && memcmp(line.name, name, length) == 0) { return line; }
    }
    line.effect = -1;
    return line;
}

// Copies the value of a line to `value`; returns 0, and "", where the text has no such line.
static inline int run_identity_value(const char* text, size_t bytes, const char* name, char* value, size_t size) {
    IdentityLine line = identity_find_(text, bytes, name, strlen(name));
    int length = line.effect >= 0 ? (int)line.value_length : 0;
    snprintf(value, size, "%.*s", length, line.effect >= 0 ? line.value : "");
    return line.effect >= 0;
}

// The lines as "name value", for processes to compare; the caller frees the text. NULL if there is no memory.
static inline char* run_identity_settings(const RunIdentity* id) {
    char* text = (char*)calloc(id->text_bytes + 1, 1);
    const char *p = id->text, *end = id->text + id->text_bytes;
    size_t at = 0;
    while (text != NULL && p < end) {
        IdentityLine line = identity_next_line_(&p, end);
        if (line.effect < 0) { continue; }
        size_t length = (size_t)(p - line.name); // with the end of the line
        memcpy(text + at, line.name, length);
        at += length;
    }
    return text;
}

// Completes an identity whose lines are all there: computes its digests and, from them, the run's id.
static inline void run_identity_complete(RunIdentity* id) {
    Digest settings = digest_begin(), data = digest_begin(), run = digest_begin();
    const char* text = id->text;
    const char* end = id->text + id->text_bytes;
    while (text < end) {
        const char* begin = text;
        IdentityLine line = identity_next_line_(&text, end);
        Digest* d = line.effect == IDENTITY_DATA ? &data : &settings;
        uint64_t words[128] = {0}; // the line, up to 1 KiB of it, filled with zeros to whole words
        size_t length = (size_t)(text - begin) < sizeof(words) ? (size_t)(text - begin) : sizeof(words);
        if (line.effect == IDENTITY_FREE) { continue; }
        memcpy(words, begin, length);
        digest_update(d, words, (length + 7) / 8 * 8);
    }
    id->settings = digest_end(settings);
    id->data = digest_end(data);
    digest_update(&run, &id->settings, sizeof(id->settings));
    digest_update(&run, &id->data, sizeof(id->data));
    id->run = digest_end(run);
}

// ----------------------------------------------------------------------------
// Comparing

typedef struct {
    int differences; // all of them
    int changing;    // those that change the result, `fixed` ones among them
    int fixed;       // those that no flag can allow
} IdentityDifferences;

// The flag of the trainers, this or the other, that a line is about; NULL if it is about none.
static inline const CliFlag* identity_flag_(IdentityLine line) {
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const char* name = cli_flags[i].long_name;
        if (strlen(name) == line.name_length && memcmp(name, line.name, line.name_length) == 0) {
            return &cli_flags[i];
        }
    }
    return NULL;
}

// The line of a checkpoint that has none, as it is older than the flag, which then had its default. `number` holds the value.
static inline IdentityLine identity_default_(IdentityLine now, char number[64]) {
    const Options defaults = cli_defaults();
    const CliFlag* f = identity_flag_(now);
    int is_order = now.name_length == 9 && memcmp(now.name, "sum-order", 9) == 0; // --sum-order, with processes
    IdentityLine line = now;
    line.is_default = 1;
    line.effect = is_order || (f != NULL && identity_effect_(f) >= 0) ? now.effect : -1;
    line.value = is_order ? defaults.sum_order : line.effect >= 0 ? cli_value_(&defaults, f, number) : "";
    line.value_length = strlen(line.value);
    return line;
}

static inline int identity_same_(IdentityLine a, IdentityLine b) {
    return a.effect >= 0 && b.effect >= 0 && a.value_length == b.value_length &&
           memcmp(a.value, b.value, b.value_length) == 0;
}

// A flag that no trainer of this version has: a newer one has trained with it.
static inline int identity_is_newer_(IdentityLine line) {
    return line.name_length > 2 && memcmp(line.name, "--", 2) == 0 && identity_flag_(line) == NULL;
}

static inline void identity_print_(FILE* out, IdentityDifferences* d, IdentityLine before, IdentityLine now) {
    static const char* const remarks[] = {"the run goes on", "changes the result", "changes the result",
                                          "cannot change"};
    int known = before.effect >= 0 && now.effect >= 0; // the line is missing in files of some versions
    int effect = known && now.effect > before.effect ? now.effect : before.effect;
    if (!known && !(now.effect < 0 && identity_is_newer_(before))) { effect = IDENTITY_FREE; }
    IdentityLine any = before.effect >= 0 ? before : now;
    char note[2400];
    d->differences++;
    d->changing += effect != IDENTITY_FREE;
    d->fixed += effect == IDENTITY_FIXED;
    int head = snprintf(note, sizeof(note), "%.*s: ", (int)(any.name_length < 200 ? any.name_length : 200), any.name);
    int before_length = (int)(before.value_length < 1000 ? before.value_length : 1000);
    int now_length = (int)(now.value_length < 1000 ? now.value_length : 1000);
    char* rest = note + head;
    size_t size = sizeof(note) - (size_t)head;
    if (known) {
        snprintf(rest, size, "the checkpoint has %.*s%s, this run %.*s (%s)", before_length, before.value,
                 before.is_default ? " by default" : "", now_length, now.value, remarks[effect]);
    } else if (now.effect >= 0) {
        snprintf(rest, size, "the checkpoint does not say, this run has %.*s", now_length, now.value);
    } else {
        snprintf(rest, size, "the checkpoint has %.*s, this trainer has no such setting (%s)", before_length,
                 before.value, remarks[effect]);
    }
    mask_controls(note, strlen(note)); // the text is a file's: it must not steer a terminal
    fprintf(out, "note: %s\n", note);
}

// Compares the settings of a checkpoint with those of this run; prints a note for each difference, with both values. Whether
// another number of steps matters depends on the schedule: the caller compares --max-steps.
static inline IdentityDifferences run_identity_compare(FILE* out, const char* text, size_t bytes,
                                                       const RunIdentity* id) {
    IdentityDifferences d = {0, 0, 0};
    const char *p = id->text, *end = id->text + id->text_bytes;
    while (p < end) {
        IdentityLine now = identity_next_line_(&p, end);
        IdentityLine before = identity_find_(text, bytes, now.name, now.name_length);
        char number[64];
        if (before.effect < 0) { before = identity_default_(now, number); }
        int steps = identity_flag_(now) == &cli_flags[CLI_INDEX_max_steps];
        if (!steps && !identity_same_(before, now)) { identity_print_(out, &d, before, now); }
    }
    for (p = text, end = text + bytes; p < end;) {
        IdentityLine before = identity_next_line_(&p, end);
        if (before.effect < 0) { continue; }
        IdentityLine now = identity_find_(id->text, id->text_bytes, before.name, before.name_length);
        if (now.effect < 0) { identity_print_(out, &d, before, now); }
    }
    return d;
}

#endif
