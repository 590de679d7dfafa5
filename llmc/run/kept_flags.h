/*
The flags of a run, which -y 1 takes where they are not typed: all but those of COMMAND, which say where and how a command
runs. The run's folder has them, as its last command gave them, in

    main.flags    lines "<effect> <flag> <value>", as checkpoint/identity.h's

and a checkpoint has those that its bits depend on, as they were used: "auto" and -1 have become numbers there.
*/
#ifndef LLMC_RUN_KEPT_FLAGS_H
#define LLMC_RUN_KEPT_FLAGS_H

#include "settings.h"
#include "llmc/base/atomic_file.h"

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
    int failed = ferror(file);
    fclose(file);
    return failed ? status_fail("cannot read %s", path) : STATUS_OK;
}

static inline Status run_flags_write(const RunIdentity* lines, const char* folder) {
    char path[1024];
    AtomicFile file;
    snprintf(path, sizeof(path), "%.960s/main.flags", folder);
    TRY(atomic_open(&file, path));
    TRY(atomic_write(&file, lines->text, lines->text_bytes));
    return atomic_commit(&file);
}

static char* run_flags_texts_; // that flags point to, each with the one before it at its beginning

// A copy of a value, which lasts as long as the program.
static inline const char* run_flags_text_(IdentityLine line) {
    const size_t before = sizeof(run_flags_texts_);
    char* block = (char*)calloc_check(before + line.value_length + 1, 1);
    memcpy(block, &run_flags_texts_, before);
    run_flags_texts_ = block;
    memcpy(block + before, line.value, line.value_length);
    return block + before;
}

// Sets the flags of the trainers `who` that are not typed to the values of the lines. A value that its flag cannot have ends
// the program with one line that names the file.
static inline void run_flags_take(Options* o, const RunIdentity* lines, int who, const char* file) {
    const char *p = lines->text, *end = p + lines->text_bytes;
    while (p < end) {
        IdentityLine line = run_identity_next_line(&p, end);
        const CliFlag* f = line.effect >= 0 ? run_identity_flag(line) : NULL;
        if (f == NULL || !(f->who & who) || f->effect == CLI_COMMAND || o->typed[f - cli_flags]) { continue; }
        char name[1200];
        snprintf(name, sizeof(name), "%s: %s", file, f->long_name);
        cli_set(o, f, name, run_flags_text_(line));
    }
}

// Prints a word, quoted for a shell where it must be.
static inline void run_flags_quote_(FILE* out, const char* word) {
    size_t plain = strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./:,@%+=-");
    if (word[0] != '\0' && word[plain] == '\0') {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (; *word != '\0'; word++) { *word == '\'' ? fputs("'\\''", out) : fputc(*word, out); }
    fputc('\'', out);
}

// " -b 8 -t 64", which the caller frees: the flags of the trainers `who` that have another value than their default, but for
// those that are typed.
static inline char* run_flags_words(const Options* o, int who) {
    char *text = NULL, number[64];
    size_t bytes;
    FILE* out = open_memstream(&text, &bytes);
    for (int i = 0; out != NULL && i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        if (!(f->who & who) || f->effect == CLI_COMMAND || o->typed[i]) { continue; }
        if (!cli_differs(o, &cli_default_options, f)) { continue; }
        fprintf(out, " %s ", f->short_name ? f->short_name : f->long_name);
        run_flags_quote_(out, cli_value(o, f, number));
    }
    if (out == NULL || fclose(out) != 0) { fatal("out of memory: no room for the flags of the run"); }
    mask_controls(text, bytes); // a file's text must not steer a terminal
    return text;
}

// "./train_gpt2 -o log -y 1 -b 8 -t 64": the command that goes on with a run of these lines, those of main.flags and of its
// checkpoint, as a shell reads it. The caller frees it.
static inline char* run_flags_command(const char* folder, const RunIdentity* lines, const RunIdentity* checkpoint) {
    Options o = cli_defaults();
    char *text = NULL, program[64];
    size_t bytes;
    run_flags_take(&o, lines, FOR_BOTH, folder);
    run_flags_take(&o, checkpoint, FOR_BOTH, folder);
    if (!run_identity_value(lines->text, lines->text_bytes, "program", program, sizeof(program))) {
        snprintf(program, sizeof(program), "%s", CLI_PROGRAM);
    }
    FILE* out = open_memstream(&text, &bytes);
    if (out == NULL) { fatal("out of memory: no room for the command of the run"); }
    fprintf(out, "./%s -o ", program);
    run_flags_quote_(out, folder);
    char* words = run_flags_words(&o, FOR_BOTH);
    fprintf(out, " -y 1%s", words);
    free(words);
    if (fclose(out) != 0) { fatal("out of memory: no room for the command of the run"); }
    return text;
}

#endif
