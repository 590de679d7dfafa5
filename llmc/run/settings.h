/*
The flags of a run as lines "<effect> <flag> <value>", which are checkpoint/identity.h's: how those of a checkpoint differ from
those of the run that resumes it, and which of them -y 1 takes where they are not typed: all but those of COMMAND, which say
where and how a command runs. The run's folder has them, as its last command gave them, in main.flags, and a checkpoint has
those that its bits depend on, as they were used: "auto" and -1 have become numbers there.
*/
#ifndef LLMC_RUN_SETTINGS_H
#define LLMC_RUN_SETTINGS_H

#include "flags.h"
#include "llmc/base/atomic_file.h"
#include "llmc/checkpoint/identity.h"

// The effect of a flag; -1 if another line of the identity covers it in more detail.
static inline int identity_effect_(const CliFlag* f) {
    switch (f - cli_flags) {
    case CLI_INDEX_train_data: // the data themselves, at any path
    case CLI_INDEX_model:      // the sizes, and where the initial weights are from
    case CLI_INDEX_vocab_size: // one of the sizes
    case CLI_INDEX_max_steps:  // -1 resolves to a number of steps
        return -1;
    case CLI_INDEX_batch: // the position in the data is in samples of B*T
    case CLI_INDEX_time:
    case CLI_INDEX_optimizer: // its moments are the checkpoint's
    case CLI_INDEX_overfit:   // has no position in the data to resume from
        return IDENTITY_FIXED;
    default:
        return f->effect == CLI_RESULT ? IDENTITY_RESULT : -1;
    }
}

// Appends the flags of this trainer that change the result, or, for main.flags, all that -y 1 takes from a run. In an identity,
// what is "auto", or -1 for all, has been resolved before.
static inline void run_identity_flags(RunIdentity* id, const Options* options, int all) {
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        int result = f->effect == CLI_RESULT ? IDENTITY_RESULT : IDENTITY_FREE;
        int effect = !all ? identity_effect_(f) : f->effect == CLI_COMMAND ? -1 : result;
        char number[64];
        if (!(f->who & CLI_TRAINER) || effect < 0) { continue; }
        run_identity_line(id, (IdentityEffect)effect, f->long_name, "%s", cli_value(options, f, number));
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

// ----------------------------------------------------------------------------
// Comparing

typedef struct {
    int differences; // all of them
    int changing;    // those that change the result, `fixed` ones among them
    int fixed;       // those that no flag can allow
} IdentityDifferences;

// The flag of the trainers, this or the other, that a line is about; NULL if it is about none.
static inline const CliFlag* run_identity_flag(IdentityLine line) {
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
    const Options* defaults = &cli_default_options;
    const CliFlag* f = run_identity_flag(now);
    int is_order = now.name_length == 9 && memcmp(now.name, "sum-order", 9) == 0; // --sum-order, with processes
    IdentityLine line = now;
    line.is_default = 1;
    line.effect = is_order || (f != NULL && identity_effect_(f) >= 0) ? now.effect : -1;
    line.value = is_order ? defaults->sum_order : line.effect >= 0 ? cli_value(defaults, f, number) : "";
    line.value_length = strlen(line.value);
    return line;
}

static inline int identity_same_(IdentityLine a, IdentityLine b) {
    return a.effect >= 0 && b.effect >= 0 && a.value_length == b.value_length &&
           memcmp(a.value, b.value, b.value_length) == 0;
}

// A flag that no trainer of this version has: a newer one has trained with it.
static inline int identity_is_newer_(IdentityLine line) {
    return line.name_length > 2 && memcmp(line.name, "--", 2) == 0 && run_identity_flag(line) == NULL;
}

static inline void identity_print_(FILE* out, IdentityDifferences* d, IdentityLine before, IdentityLine now) {
    static const char* const remarks[] = {"the run continues", "changes the result", "changes the result",
                                          "cannot change"};
    int effect = now.effect > before.effect ? now.effect : before.effect;
    if (before.effect < 0 || (now.effect < 0 && !identity_is_newer_(before))) { // missing in files of some versions
        effect = IDENTITY_FREE;
    }
    IdentityLine any = before.effect >= 0 ? before : now;
    char note[2400];
    d->differences++;
    d->changing += effect != IDENTITY_FREE;
    d->fixed += effect == IDENTITY_FIXED;
    if (before.effect < 0) { before.value = "none", before.value_length = 4, before.is_default = 0; }
    if (now.effect < 0) { now.value = "none", now.value_length = 4; }
    snprintf(note, sizeof(note), "%.*s: the checkpoint has %.*s%s, this run %.*s (%s)",
             (int)(any.name_length < 200 ? any.name_length : 200), any.name,
             (int)(before.value_length < 1000 ? before.value_length : 1000), before.value,
             before.is_default ? " by default" : "", (int)(now.value_length < 1000 ? now.value_length : 1000),
             now.value, remarks[effect]);
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
        IdentityLine now = run_identity_next_line(&p, end);
        IdentityLine before = run_identity_find(text, bytes, now.name, now.name_length);
        char number[64];
        if (before.effect < 0) { before = identity_default_(now, number); }
        int steps = run_identity_flag(now) == &cli_flags[CLI_INDEX_max_steps];
        if (!steps && !identity_same_(before, now)) { identity_print_(out, &d, before, now); }
    }
    for (p = text, end = text + bytes; p < end;) {
        IdentityLine before = run_identity_next_line(&p, end);
        if (before.effect < 0) { continue; }
        IdentityLine now = run_identity_find(id->text, id->text_bytes, before.name, before.name_length);
        if (now.effect < 0) { identity_print_(out, &d, before, now); }
    }
    return d;
}

// ----------------------------------------------------------------------------
// main.flags

// The flags of this command as lines; run_identity_free frees them.
static inline RunIdentity run_flags_lines(const Options* o) {
    RunIdentity lines;
    memset(&lines, 0, sizeof(lines));
    run_identity_line(&lines, IDENTITY_FREE, "program", "%s", CLI_PROGRAM);
    run_identity_flags(&lines, o, 1);
    return lines;
}

// Reads main.flags; no lines where the folder has none, as one of an older version.
static inline Status run_flags_read(RunIdentity* lines, const char* folder) {
    char path[1024];
    struct stat st;
    FILE* file;
    memset(lines, 0, sizeof(*lines));
    snprintf(path, sizeof(path), "%.960s/main.flags", folder);
    if (stat(path, &st) != 0 && errno == ENOENT) { return STATUS_OK; }
    TRY(fopen_regular(&file, &st, path));
    size_t bytes = (size_t)st.st_size;
    lines->text = (char*)calloc_check(bytes + 1, 1);
    lines->text_bytes = fread(lines->text, 1, bytes, file);
    int failed = ferror(file), damaged = lines->text_bytes > 0 && lines->text[lines->text_bytes - 1] != '\n';
    fclose(file);
    for (const char *p = lines->text, *end = p + lines->text_bytes; p < end;) {
        damaged |= run_identity_next_line(&p, end).effect < 0;
    }
    if (failed) { return status_fail("cannot read %s", path); }
    return damaged ? status_fail("%s is damaged; remove it, and type the flags of the run once", path) : STATUS_OK;
}

static char* run_flags_texts_; // that flags point to, each with the one before it at its beginning

// A copy of a value, which lasts as long as the program. It is a file's, and must not steer a terminal.
static inline const char* run_flags_text_(IdentityLine line) {
    const size_t before = sizeof(run_flags_texts_);
    char* block = (char*)calloc_check(before + line.value_length + 1, 1);
    memcpy(block, &run_flags_texts_, before);
    run_flags_texts_ = block;
    memcpy(block + before, line.value, line.value_length);
    mask_controls(block + before, line.value_length);
    return block + before;
}

// Sets the flags of this trainer that are not typed to the values of the lines. A value that its flag cannot have ends
// the program with one line that names the file.
static inline void run_flags_take(Options* o, const RunIdentity* lines, const char* file) {
    const char *p = lines->text, *end = p + lines->text_bytes;
    while (p < end) {
        IdentityLine line = run_identity_next_line(&p, end);
        const CliFlag* f = line.effect >= 0 ? run_identity_flag(line) : NULL;
        if (f == NULL || !(f->who & CLI_TRAINER) || f->effect == CLI_COMMAND || o->typed[f - cli_flags]) { continue; }
        char name[1200];
        snprintf(name, sizeof(name), "%s: %s", file, f->long_name);
        cli_set(o, f, name, run_flags_text_(line));
    }
}

// Notes the flags that are taken from the run, those that are not typed and have another value than their default.
static inline void run_flags_note(FILE* out, const Options* o, const char* folder) {
    char number[64];
    int count = 0;
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        if (!(f->who & CLI_TRAINER) || f->effect == CLI_COMMAND || o->typed[i]) { continue; }
        if (!cli_differs(o, &cli_default_options, f)) { continue; }
        if (count++ == 0) { fprintf(out, "note: -y 1 takes from the run in %s:", folder); }
        fprintf(out, " %s %s", f->short_name ? f->short_name : f->long_name, cli_value(o, f, number));
    }
    if (count > 0) { fputc('\n', out); }
}

#endif
