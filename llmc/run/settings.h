/*
The settings of a run in its identity: which of the trainers' flags have a line there, and how those of a checkpoint differ from
those of the run that resumes it.
*/
#ifndef LLMC_RUN_SETTINGS_H
#define LLMC_RUN_SETTINGS_H

#include "flags.h"
#include "llmc/checkpoint/identity.h"

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

#endif
