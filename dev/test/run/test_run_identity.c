// checkpoint/identity.h and run/settings.h: equal runs have equal identities, any other setting or data another one, and every
// difference between a checkpoint and a run is said.
#include "llmc/run/settings.h"

#include "dev/test/fixtures/unit.h"

static RunIdentity of_flags(const Options* o) {
    RunIdentity id;
    memset(&id, 0, sizeof(id));
    run_identity_flags(&id, o, 0);
    run_identity_complete(&id);
    return id;
}

// An identity of two lines
static RunIdentity of_two(IdentityEffect effect, const char* value, const char* data) {
    RunIdentity id;
    memset(&id, 0, sizeof(id));
    run_identity_line(&id, effect, "--thing", "%s", value);
    run_identity_line(&id, IDENTITY_DATA, "training-data", "%s", data);
    run_identity_complete(&id);
    return id;
}

static int same(RunIdentity a, RunIdentity b) {
    int equal = a.run == b.run && a.settings == b.settings && a.data == b.data;
    run_identity_free(&a);
    run_identity_free(&b);
    return equal;
}

// The notes on the differences, which the caller counts
static char notes[4096];
static IdentityDifferences differences(const char* text, size_t bytes, const RunIdentity* id) {
    memset(notes, 0, sizeof(notes));
    FILE* out = fmemopen(notes, sizeof(notes) - 1, "w");
    IdentityDifferences d = run_identity_compare(out, text, bytes, id);
    fclose(out);
    return d;
}

static int they_are(IdentityDifferences d, int differences, int changing, int fixed) {
    int so = d.differences == differences && d.changing == changing && d.fixed == fixed;
    if (!so) { printf("    %d differences, %d changing, %d fixed:\n%s", d.differences, d.changing, d.fixed, notes); }
    return so;
}

// What each flag of the trainer does to a run, each of them in one list
static const char* const change_the_result[] = {
    "--total-batch",  "--scheduler", "--learning-rate", "--warmup",      "--final-fraction",
    "--weight-decay", "--grad-clip", "--beta1",         "--beta2",       "--epsilon",
    "--seed",         "--tf32",      "--skip-loss-z",   "--skip-grad-z", "--master-weights",
    "--gelu-fusion",  "--momentum",  "--documents",     "--positions",   "--fp8"};
static const char* const cannot_change[] = {"--batch", "--time", "--optimizer", "--overfit"};
static const char* const have_a_line_of_their_own[] = {"--train-data", "--model", "--vocab-size", "--max-steps"};
static const char* const are_the_commands[] = {
    "--output-dir", "--log-json",      "--resume",          "--resume-anyway",   "--overwrite",
    "--plan",       "--recipe",        "--doctor",          "--all-flags",       "--gpus",
    "--processes",  "--num-processes", "--process-rank",    "--gpus-per-node",   "--init-method",
    "--server-ip",  "--fs-path",       "--rendezvous-port", "--connect-timeout", "--fault-timeout"};
static const char* const change_nothing[] = {
    "--val-data",    "--tokenizer",  "--checkpoint-every", "--checkpoints-keep", "--checkpoint-major",
    "--async-save",  "--val-every",  "--val-steps",        "--sample-every",     "--sample-tokens",
    "--temperature", "--top-k",      "--sample-seed",      "--hellaswag",        "--hellaswag-data",
    "--recompute",   "--non-finite", "--max-skips",        "--verify-every",     "--zero",
    "--sum-order",   "--exchange",   "--cuda-graphs",      "--log-gpu-every"};

static int is_in(const char* name, const char* const* list, size_t n) {
    int count = 0;
    for (size_t i = 0; i < n; i++) { count += strcmp(name, list[i]) == 0; }
    return count;
}
#define IS_IN(name, list) is_in(name, list, sizeof(list) / sizeof((list)[0]))

// A flag changes the run's id where it changes the result, and is said then.
static void every_flag_that_changes_the_result(void) {
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        Options a = cli_defaults(), b = cli_defaults();
        void* member = (char*)&b + f->offset;
        int fixed = IS_IN(f->long_name, cannot_change), changing = fixed + IS_IN(f->long_name, change_the_result);
        int own_line = IS_IN(f->long_name, have_a_line_of_their_own), command = IS_IN(f->long_name, are_the_commands);
        int harmless = IS_IN(f->long_name, change_nothing) + own_line + command;
        if (!CHECK(changing + harmless == 1)) { printf("    %s: is it in one list above?\n", f->long_name); }
        CHECK(f->effect == (changing || own_line ? CLI_RESULT : command ? CLI_COMMAND : CLI_FREE));
        if (!(f->who & CLI_TRAINER)) { continue; }
        if (f->type == CLI_text) {
            *(cli_text*)member = "another";
        } else if (f->type == CLI_number) {
            *(cli_number*)member = nextafter(*(cli_number*)member, 2.0); // the last bit counts
        } else {
            *(cli_whole*)member += 1;
        }
        RunIdentity first = of_flags(&a), second = of_flags(&b);
        IdentityDifferences d = differences(first.text, first.text_bytes, &second);
        int ok = !changing ? first.run == second.run && they_are(d, 0, 0, 0)
                           : first.run != second.run && they_are(d, 1, 1, fixed) && strstr(notes, f->long_name) != NULL;
        if (!CHECK(ok)) { printf("    %s\n", f->long_name); }
        run_identity_free(&first);
        run_identity_free(&second);
    }
}

static void digests_take_what_matters(void) {
    CHECK(same(of_two(IDENTITY_RESULT, "1", "a"), of_two(IDENTITY_RESULT, "1", "a")));
    CHECK(same(of_two(IDENTITY_FREE, "1", "a"), of_two(IDENTITY_FREE, "2", "a")));
    CHECK(!same(of_two(IDENTITY_RESULT, "1", "a"), of_two(IDENTITY_RESULT, "2", "a")));
    CHECK(!same(of_two(IDENTITY_FIXED, "1", "a"), of_two(IDENTITY_FIXED, "2", "a")));
    CHECK(!same(of_two(IDENTITY_FREE, "1", "a"), of_two(IDENTITY_FREE, "1", "b")));
    RunIdentity a = of_two(IDENTITY_RESULT, "1", "a"), b = of_two(IDENTITY_RESULT, "1", "b");
    CHECK(a.settings == b.settings && a.data != b.data && a.run != b.run && a.run != 0);
    CHECK(strcmp(a.text, "result --thing 1\ndata training-data a\n") == 0 && strlen(a.text) == a.text_bytes);
    run_identity_free(&a);
    run_identity_free(&b);
}

static void differences_are_said_with_both_values(void) {
    Options o = cli_defaults();
    o.seed = 42, o.learning_rate = 3e-4, o.batch = 4;
    RunIdentity checkpoint = of_flags(&o);
    o.seed = 43, o.learning_rate = 6e-4, o.batch = 8;
    RunIdentity run = of_flags(&o);
    IdentityDifferences d = differences(checkpoint.text, checkpoint.text_bytes, &run);
    CHECK(they_are(d, 3, 3, 1));
    CHECK(strstr(notes, "note: --seed: the checkpoint has 42, this run 43 (changes the result)\n"));
    CHECK(strstr(notes, "note: --learning-rate: the checkpoint has 0.0003, this run 0.0006 (changes the result)\n"));
    CHECK(strstr(notes, "note: --batch: the checkpoint has 4, this run 8 (cannot change)\n"));
    CHECK(they_are(differences(run.text, run.text_bytes, &run), 0, 0, 0) && notes[0] == '\0');
    run_identity_free(&checkpoint);
    run_identity_free(&run);

    checkpoint = of_two(IDENTITY_FREE, "1", "a"), run = of_two(IDENTITY_FREE, "2", "a");
    CHECK(they_are(differences(checkpoint.text, checkpoint.text_bytes, &run), 1, 0, 0));
    CHECK(strstr(notes, "the checkpoint has 1, this run 2 (the run continues)"));
    run_identity_free(&run);
    run = of_two(IDENTITY_RESULT, "2", "a"); // harmless to the one, not to the other
    CHECK(they_are(differences(checkpoint.text, checkpoint.text_bytes, &run), 1, 1, 0));
    run_identity_free(&checkpoint);
    run_identity_free(&run);
}

// What an older version has no word for is said, and no reason to refuse. A flag that this version does not have is one: a
// newer one has trained with it.
static void settings_of_one_side_alone(void) {
    static const char text[] = "data training-data a\nresult old 5\nnonsense\nbad line here\n\nresult --cut";
    RunIdentity run = of_two(IDENTITY_RESULT, "1", "a");
    CHECK(they_are(differences(text, sizeof(text) - 1, &run), 2, 0, 0));
    CHECK(strstr(notes, "--thing: the checkpoint has none, this run 1 (the run continues)\n"));
    CHECK(strstr(notes, "old: the checkpoint has 5, this run none (the run continues)\n"));
    static const char newer[] = "data training-data a\nresult --thing 1\nresult --newer 5\nfree --harmless 6\n"
                                "fixed --newest 7\nresult --tf32 0\nresult --zero-sum 1";
    CHECK(they_are(differences(newer, sizeof(newer) - 1, &run), 5, 3,
                   1)); // the GPU trainer has --tf32, and another device
    CHECK(strstr(notes, "--newer: the checkpoint has 5, this run none (changes the result)\n"));
    CHECK(strstr(notes, "--newest: the checkpoint has 7, this run none (cannot change)\n"));
    CHECK(strstr(notes, "--harmless: the checkpoint has 6, this run none (the run continues)\n"));
    CHECK(strstr(notes, "--tf32: the checkpoint has 0, this run none (the run continues)\n"));
    CHECK(they_are(differences("", 0, &run), 2, 0, 0));
    static const char escape[] = "result --thing \033[2J\n";
    differences(escape, sizeof(escape) - 1, &run);
    CHECK(strstr(notes, "the checkpoint has ?[2J") && !strchr(notes, '\033'));
    char value[32];
    CHECK(run_identity_value(text, sizeof(text) - 1, "old", value, sizeof(value)) && strcmp(value, "5") == 0);
    CHECK(!run_identity_value(text, sizeof(text) - 1, "ol", value, sizeof(value)) && value[0] == '\0');
    run_identity_free(&run);
}

// A checkpoint without a flag's line is older than the flag: it counts as the default, and another value as any other one.
static void a_flag_that_a_checkpoint_lacks_has_its_default(void) {
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        int fixed = IS_IN(f->long_name, cannot_change), changing = fixed + IS_IN(f->long_name, change_the_result);
        char text[64], value[200], number[64];
        if (!(f->who & CLI_TRAINER) || !changing) { continue; }
        Options o = cli_defaults();
        void* member = (char*)&o + f->offset;
        RunIdentity old = of_flags(&o), run = of_flags(&o);
        snprintf(text, sizeof(text), "%s %s ", fixed ? "fixed" : "result", f->long_name);
        char* line = strstr(old.text, text); // and takes it out
        char* next = line ? strchr(line, '\n') + 1 : old.text;
        if (!CHECK(line != NULL)) { continue; }
        memmove(line, next, strlen(next) + 1);
        old.text_bytes = strlen(old.text);
        CHECK(they_are(differences(old.text, old.text_bytes, &run), 0, 0, 0));
        run_identity_free(&run);
        snprintf(value, sizeof(value), "%s: the checkpoint has %s by default, this run ", f->long_name,
                 cli_value(&o, f, number));
        if (f->type == CLI_text) {
            *(cli_text*)member = "another";
        } else if (f->type == CLI_number) {
            *(cli_number*)member += 0.5;
        } else {
            *(cli_whole*)member += 1;
        }
        run = of_flags(&o);
        int said = they_are(differences(old.text, old.text_bytes, &run), 1, 1, fixed) && strstr(notes, value) != NULL;
        if (!CHECK(said)) { printf("    %s\n%s", value, notes); }
        run_identity_free(&old);
        run_identity_free(&run);
    }
    RunIdentity run;
    memset(&run, 0, sizeof(run));
    run_identity_line(&run, IDENTITY_RESULT, "sum-order", "%s", "tree"); // --sum-order's
    CHECK(they_are(differences("", 0, &run), 0, 0, 0));
    run_identity_free(&run);
    run_identity_line(&run, IDENTITY_RESULT, "sum-order", "%s", "any, 2 processes");
    CHECK(they_are(differences("", 0, &run), 1, 1, 0));
    run_identity_free(&run);
}

// A line is as long as its value, and of what follows the first KiB no digest depends.
static void long_values_are_kept(void) {
    char path[3000], value[sizeof(path)];
    memset(path, 'p', sizeof(path) - 1);
    path[sizeof(path) - 1] = '\0';
    RunIdentity id = of_two(IDENTITY_RESULT, path, "a");
    CHECK(run_identity_value(id.text, id.text_bytes, "--thing", value, sizeof(value)) && strcmp(value, path) == 0);
    CHECK(run_identity_value(id.text, id.text_bytes, "training-data", value, sizeof(value)) && strcmp(value, "a") == 0);
    run_identity_free(&id);
}

// A damaged text, of any length, is compared without a crash: there is a note for each difference, and where none is found
// the text has both lines of the run.
static void any_bytes_are_compared(void) {
    RunIdentity run = of_two(IDENTITY_RESULT, "1", "a");
    unsigned state = 1;
    for (int trial = 0; trial < 2000; trial++) {
        size_t bytes = (size_t)trial % 64;
        char* exact = (char*)malloc_check(bytes); // no byte more: a sanitizer sees what reads beyond
        for (size_t i = 0; i < bytes; i++) {
            exact[i] = "data result\n 1a"[(state = state * 1103515245u + 12345u) / 65536 % 15];
        }
        IdentityDifferences d = differences(exact, bytes, &run);
        int said = 0;
        for (const char* p = notes; (p = strstr(p, "note: ")) != NULL; p++) { said++; }
        CHECK(d.differences == said && said >= 2 && d.changing <= said && d.fixed == 0); // it has neither name
        free(exact);
    }
    run_identity_free(&run);
}

static uint64_t digest_of(const char* path) {
    Digest d = digest_begin();
    status_clear();
    CHECK(identity_file(&d, path) == STATUS_OK);
    return digest_end(d);
}

// A file is told by its contents, wherever it lies.
static void files_are_told_by_their_contents(void) {
    enum { BYTES = 100000 };
    char* body = (char*)calloc_check(BYTES, 1);
    const char *a = unit_path("a.bin"), *b = unit_path("b.bin");
    unit_write_format(a, 20240520, 1, BYTES / 2, 256, body, BYTES);
    unit_write_format(b, 20240520, 1, BYTES / 2, 256, body, BYTES);
    uint64_t digest = digest_of(a);
    CHECK(digest_of(b) == digest);
    size_t places[] = {8, 12, HEADER_BYTES, HEADER_BYTES + BYTES - 2}; // tokens, vocabulary, first, last
    for (size_t i = 0; i < 4; i++) {
        unit_write_format(b, 20240520, 1, BYTES / 2, 256, body, BYTES);
        unit_patch(b, places[i], 7);
        if (!CHECK(digest_of(b) != digest)) { printf("    byte %zu\n", places[i]); }
    }
    unit_write_format(b, 20240520, 1, BYTES / 2, 256, body, BYTES - 2);
    CHECK(digest_of(b) != digest);
    unit_write_format(b, 20240520, 1, BYTES / 2, 256, body, BYTES);
    unit_patch(b, 4 * CHECKED_AT, CHECKED_MARK & 0xffff); // checksums: the header says all
    unit_patch(b, 4 * CHECKED_AT + 2, CHECKED_MARK >> 16);
    digest = digest_of(b);
    unit_patch(b, 4 * 127, 5);
    CHECK(digest_of(b) != digest);
    unit_write(b, "", 0);
    digest_of(b);
    Digest d = digest_begin();
    CHECK(identity_file(&d, unit_path("none.bin")) != STATUS_OK && strstr(status_message(), "none.bin"));
    free(body);
    remove(b);
    glob_t paths;
    char pattern[512];
    snprintf(pattern, sizeof(pattern), "%s/*.bin", unit_folder);
    RunIdentity id;
    memset(&id, 0, sizeof(id));
    CHECK(glob(pattern, 0, NULL, &paths) == 0);
    CHECK(run_identity_files(&id, IDENTITY_DATA, "training-data", &paths, BYTES / 2) == STATUS_OK);
    CHECK(strncmp(id.text, "data training-data 1 file, 50000 tokens, digest ", 48) == 0);
    globfree(&paths);
    run_identity_free(&id);
}

static void numbers_are_short_and_exact(void) {
    char text[64];
    const double numbers[] = {3e-4, 0.1, 1.0 / 3.0, 1e-8, 2147483647.0, 5e-324};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        CHECK(strtod(cli_number_text_(text, sizeof(text), numbers[i]), NULL) == numbers[i]);
    }
    CHECK(strcmp(cli_number_text_(text, sizeof(text), 3e-4), "0.0003") == 0);
}

static int sum_order_is(const char* order, int processes, const char* line) {
    RunIdentity id;
    memset(&id, 0, sizeof(id));
    run_identity_sum_order(&id, order, processes);
    int same = strcmp(id.text, line) == 0;
    if (!same) { printf("    %d processes: %s", processes, id.text); }
    run_identity_free(&id);
    return same;
}

// Gradients are summed alike by any number of processes that is another's times a power of two.
static void the_order_of_sums_is_a_line(void) {
    for (int size = 1; size <= 64; size *= 2) { CHECK(sum_order_is("tree", size, "result sum-order tree\n")); }
    for (int size = 3; size <= 48; size *= 2) {
        CHECK(sum_order_is("tree", size, "result sum-order tree of 3 parts\n"));
    }
    CHECK(sum_order_is("tree", 5, "result sum-order tree of 5 parts\n"));
    CHECK(sum_order_is("any", 4, "result sum-order any, 4 processes\n"));
    CHECK(sum_order_is("any", 1, "result sum-order any, 1 process\n"));
}

int main(void) {
    every_flag_that_changes_the_result();
    digests_take_what_matters();
    differences_are_said_with_both_values();
    settings_of_one_side_alone();
    a_flag_that_a_checkpoint_lacks_has_its_default();
    long_values_are_kept();
    any_bytes_are_compared();
    files_are_told_by_their_contents();
    numbers_are_short_and_exact();
    the_order_of_sums_is_a_line();
    return unit_end();
}
