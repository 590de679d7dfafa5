/*
The identity of a run: its settings and its data as text, a line each, and their digests. Checkpoints hold the text, so that a
resumed run can report what differs.

    <effect> <name> <value>
    result --seed 42
    data training-data 3 files, 30000000 tokens, digest 1b2f0c6d9a4e7351

`effect` says how another value affects a resumed run. The digests exclude the free lines, and nothing here depends on time,
place or chance: equal runs have equal identities, also where one was killed and resumed, or writes more often. run/settings.h
has the lines of the trainers' flags, and compares.
*/
#ifndef LLMC_CHECKPOINT_IDENTITY_H
#define LLMC_CHECKPOINT_IDENTITY_H

#include <glob.h>
#include <inttypes.h>

#include "llmc/base/checked_file.h"
#include "llmc/base/utils.h"

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
PRINTF_LIKE(4, 5)
static inline void run_identity_line(RunIdentity* id, IdentityEffect effect, const char* name, const char* format,
                                     ...) {
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
static inline IdentityLine run_identity_next_line(const char** text, const char* end) {
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
static inline IdentityLine run_identity_find(const char* text, size_t bytes, const char* name, size_t length) {
    const char* end = text + bytes;
    IdentityLine line;
    memset(&line, 0, sizeof(line));
    while (text < end) {
        line = run_identity_next_line(&text, end);
        if (line.effect >= 0 && line.name_length == length && memcmp(line.name, name, length) == 0) { return line; }
    }
    line.effect = -1;
    return line;
}

// Copies the value of a line to `value`; returns 0, and "", where the text has no such line.
static inline int run_identity_value(const char* text, size_t bytes, const char* name, char* value, size_t size) {
    IdentityLine line = run_identity_find(text, bytes, name, strlen(name));
    int length = line.effect >= 0 ? (int)line.value_length : 0;
    snprintf(value, size, "%.*s", length, line.effect >= 0 ? line.value : "");
    return line.effect >= 0;
}

// Completes an identity whose lines are all there: computes its digests and, from them, the run's id.
static inline void run_identity_complete(RunIdentity* id) {
    Digest settings = digest_begin(), data = digest_begin(), run = digest_begin();
    const char* text = id->text;
    const char* end = id->text + id->text_bytes;
    while (text < end) {
        const char* begin = text;
        IdentityLine line = run_identity_next_line(&text, end);
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

#endif
