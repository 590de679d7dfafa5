// llmc/run/settings.h: what -y 1 takes from a run, what stays this command's, and what is said of it.
#include "llmc/run/settings.h"

#include "dev/test/fixtures/unit.h"
#include "llmc/files/run_folder.h"

static RunIdentity lines_of(const char* text) {
    RunIdentity lines;
    memset(&lines, 0, sizeof(lines));
    lines.text_bytes = strlen(text);
    lines.text = (char*)malloc_check(lines.text_bytes + 1);
    strcpy(lines.text, text);
    return lines;
}

static Options taken(Options o, const char* text) {
    RunIdentity lines = lines_of(text);
    run_flags_take(&o, &lines, "log/main.flags");
    run_identity_free(&lines);
    return o;
}

// A flag of the run comes back, whatever it is, but those of the command.
static void every_flag_comes_back_but_the_command_s(void) {
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        Options run = cli_defaults(), o = cli_defaults();
        char number[64], other[64];
        void* member = (char*)&run + f->offset;
        if (!(f->who & CLI_TRAINER)) { continue; }
        if (f->type == CLI_text) {
            *(cli_text*)member =
                f->choices == NULL || strcmp(f->choices, "-") == 0 ? "a file" : strchr(f->choices, '|') + 1;
            if (strchr(*(cli_text*)member, '|') != NULL) { *(cli_text*)member = strrchr(f->choices, '|') + 1; }
        } else if (f->type == CLI_number) {
            *(cli_number*)member = f->smallest + (f->largest - f->smallest) / 3.0;
        } else {
            *(cli_whole*)member = *(cli_whole*)member == (int)f->largest ? (int)f->smallest : (int)f->largest;
        }
        RunIdentity lines = run_flags_lines(&run);
        run_flags_take(&o, &lines, "log/main.flags");
        int same = f->effect == CLI_COMMAND ? strstr(lines.text, f->long_name) == NULL
                                            : strcmp(cli_value(&o, f, number), cli_value(&run, f, other)) == 0;
        if (!CHECK(same)) { printf("    %s\n", f->long_name); }
        o = cli_defaults();
        o.typed[i] = 1; // what is typed stays
        run_flags_take(&o, &lines, "log/main.flags");
        Options defaults = cli_defaults();
        const char *kept = cli_value(&o, f, number), *given = cli_value(&defaults, f, other);
        if (!CHECK(kept == given || strcmp(kept, given) == 0)) { printf("    %s\n", f->long_name); }
        run_identity_free(&lines);
    }
}

static void lines_are_taken_with_care(void) {
    Options o =
        taken(cli_defaults(), "result --seed 7\nfree --resume 1\nfree --output-dir x\nfree --plan 1\nfree --zzz 1\n"
                              "nonsense\n\nresult sum-order any\nresult --batch 8");
    CHECK(o.seed == 7 && o.batch == 8 && !o.resume && !o.plan && o.output_dir == NULL &&
          strcmp(o.sum_order, "tree") == 0);
    o = taken(cli_defaults(), "free --recompute auto\nresult --batch auto\nresult --recompute 1\nresult --batch 16\n");
    CHECK(o.recompute == 1 && o.batch == 16); // of two the last one counts
    o = taken(cli_defaults(), "free --tokenizer two words.bin\n");
    CHECK(strcmp(o.tokenizer, "two words.bin") == 0);
    o = taken(cli_defaults(), "result --master-weights 0\nresult --tf32 0\n"); // the GPU trainer's
    int is_gpu = (CLI_TRAINER & FOR_GPU) != 0;
    CHECK(o.master_weights == !is_gpu && o.tf32 == !is_gpu);
    CHECK_FATAL("log/main.flags: --seed|whole number", taken(cli_defaults(), "result --seed x\n"));
    CHECK_FATAL("log/main.flags: --scheduler|must be one of", taken(cli_defaults(), "result --scheduler up\n"));
    CHECK_FATAL("log/main.flags: --batch|at most", taken(cli_defaults(), "result --batch 99999999\n"));
}

static int is_noted(const Options* o, const char* expected) {
    char* text = NULL;
    size_t bytes;
    FILE* out = open_memstream(&text, &bytes);
    run_flags_note(out, o, "log");
    fclose(out);
    int same = strcmp(text, expected) == 0;
    free(text);
    return same;
}

// Damaged text, of any length, is read without a crash: what it has of no flag is left out.
static void any_bytes_are_read(void) {
    unsigned state = 1;
    for (int trial = 0; trial < 2000; trial++) {
        RunIdentity lines = {.text_bytes = (size_t)trial % 64};
        lines.text = (char*)malloc_check(lines.text_bytes); // no byte more: a sanitizer sees what reads beyond
        for (size_t i = 0; i < lines.text_bytes; i++) {
            lines.text[i] = "free \n --sed 1"[(state = state * 1103515245u + 12345u) / 65536 % 14];
        }
        Options o = cli_defaults();
        run_flags_take(&o, &lines, "log/main.flags");
        CHECK(is_noted(&o, ""));
        run_identity_free(&lines);
    }
    Options o = taken(cli_defaults(), "free --tokenizer \033[2J");
    CHECK(is_noted(&o, "note: -y 1 takes from the run in log: --tokenizer ?[2J\n"));
}

static void what_is_taken_is_said(void) {
    Options o = cli_defaults();
    CHECK(is_noted(&o, ""));
    o.seed = 7, o.batch = 8, o.learning_rate = 0.1, o.resume = 1, o.output_dir = "log", o.plan = 1;
    o.typed[CLI_INDEX_seed] = 1; // not taken
    CHECK(is_noted(&o, "note: -y 1 takes from the run in log: -b 8 -l 0.1\n"));
}

static void the_file_comes_back(void) {
    RunIdentity lines = lines_of("result --seed 7\n"), read;
    const char* path = unit_path("main.flags"); // makes the folder
    CHECK(run_flags_read(&read, unit_folder) == STATUS_OK && read.text == NULL && read.text_bytes == 0);
    RunFolder folder = {.lock = -1, .slot = -1};
    snprintf(folder.path, sizeof(folder.path), "%s", unit_folder);
    folder.flags = lines.text, folder.flags_bytes = lines.text_bytes;
    CHECK(run_folder_write_flags(&folder) == STATUS_OK);
    CHECK(run_flags_read(&read, unit_folder) == STATUS_OK && read.text_bytes == lines.text_bytes);
    CHECK(read.text != NULL && strcmp(read.text, lines.text) == 0);
    run_identity_free(&read);
    remove(path);
    CHECK(mkdir(path, 0755) == 0);
    status_clear();
    CHECK(run_flags_read(&read, unit_folder) != STATUS_OK && strstr(status_message(), "main.flags") != NULL);
    rmdir(path);
    run_identity_free(&lines);
}

int main(void) {
    every_flag_comes_back_but_the_command_s();
    lines_are_taken_with_care();
    any_bytes_are_read();
    what_is_taken_is_said();
    the_file_comes_back();
    return unit_end();
}
