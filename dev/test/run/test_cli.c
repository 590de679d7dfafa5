/*
llmc/base/cli.h, run/flags.h: every flag of the table, by each of its names, with values that fit and values that do not. As it
stands the program tests the CPU trainer's command line; test_cli_gpu.c makes it the GPU trainer's.
*/
#include "llmc/run/flags.h"

#include "dev/test/fixtures/unit.h"

#define MAX_WORDS 64

// Reads a command line of words, as the shell hands them over.
static Options parse(int n, const char** words) {
    char* argv[MAX_WORDS + 2] = {(char*)(uintptr_t)CLI_PROGRAM};
    for (int i = 0; i < n; i++) { argv[i + 1] = (char*)(uintptr_t)words[i]; } // cli_parse does not write to them
    return cli_parse(n + 1, argv);
}
#define PARSE(...) parse((int)(sizeof((const char*[]){__VA_ARGS__}) / sizeof(char*)), (const char*[]){__VA_ARGS__})

static int is_mine(const CliFlag* f) { return (f->who & CLI_TRAINER) != 0; }

// 1 where the options hold this value for the flag.
static int has_value(const Options* options, const CliFlag* f, double number, const char* text) {
    const void* member = (const char*)options + f->offset;
    if (f->type == CLI_text) { return strcmp(*(const cli_text*)member, text) == 0; }
    return f->type == CLI_number ? *(const cli_number*)member == number : *(const cli_whole*)member == (int)number;
}

// A flag takes the value by its short name, by its long name, and by its long name with '='.
static void takes(const CliFlag* f, const char* text) {
    char with_equals[256];
    double number = f->type == CLI_text                           ? 0.0
                    : f->choices && strcmp(text, f->choices) == 0 ? CLI_AUTO
                                                                  : strtod(text, NULL);
    snprintf(with_equals, sizeof(with_equals), "%s=%s", f->long_name, text);
    Options options[3] = {PARSE(f->long_name, text), PARSE(with_equals), cli_defaults()};
    if (f->short_name) { options[2] = PARSE(f->short_name, text); }
    for (int i = 0; i < 3 - (f->short_name == NULL); i++) {
        if (!CHECK(has_value(&options[i], f, number, text))) { printf("    %s %s\n", f->long_name, text); }
    }
}

// It refuses the value with one line that names the flag, the value and what was expected.
static void refuses(const CliFlag* f, const char* text, const char* reason) {
    char words[256];
    if (f->short_name) {
        snprintf(words, sizeof(words), "%s %s|%s", f->short_name, text, reason);
        CHECK_FATAL(words, PARSE(f->short_name, text));
    }
    snprintf(words, sizeof(words), "%s %s|%s", f->long_name, text, reason);
    CHECK_FATAL(words, PARSE(f->long_name, text));
}

static void numbers_stay_in_their_range(const CliFlag* f) {
    double between =
        f->type == CLI_whole ? floor(0.5 * f->smallest + 0.5 * f->largest) : f->smallest + 0.25 * f->largest;
    double values[3] = {f->smallest, f->largest, between};
    char text[64];
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof(text), "%.17g", values[i]);
        if (f->type == CLI_whole) { snprintf(text, sizeof(text), "%.0f", values[i]); }
        takes(f, text);
    }
    snprintf(text, sizeof(text), "%.10g", f->smallest - 1.0);
    refuses(f, text, "must be at least");
    snprintf(text, sizeof(text), "%.10g", f->largest + 1.0);
    refuses(f, text, "must be at most");
    const char* kind = f->type == CLI_whole ? "must be a whole number" : "must be a number";
    refuses(f, "abc", kind);
    refuses(f, "12abc", kind);
    refuses(f, "", kind);
    refuses(f, "nan", kind);
    refuses(f, "99999999999999999999999999", "must be at most");
    refuses(f, "-99999999999999999999999999", "must be at least");
    if (f->type == CLI_whole) { refuses(f, "1.5", kind); }
    if (f->type == CLI_number) {
        refuses(f, "1e999", "must be at most");
        refuses(f, "1e-999", kind);
    }
    if (f->choices != NULL) {
        int all = strcmp(f->choices, "all") == 0;
        takes(f, f->choices);
        refuses(f, all ? "alls" : "autos", all ? "must be a whole number, or all" : "must be a whole number, or auto");
        refuses(f, all ? "auto" : "all", kind);
    } else {
        refuses(f, "auto", kind);
        refuses(f, "all", kind);
    }
}

// A toggle has its default without its flag, is 1 with the flag alone, and 0 or 1 as the word after it says.
static void toggles_may_go_without_a_value(const CliFlag* f) {
    Options options = parse(0, NULL);
    CHECK(has_value(&options, f, atoi(f->default_text), ""));
    options = PARSE(f->long_name);
    CHECK(has_value(&options, f, 1, ""));
    options = PARSE(f->long_name, "-b", "17");
    CHECK(has_value(&options, f, 1, "") && options.batch == 17);
    options = PARSE(f->long_name, f->long_name, "0", "-b", "17");
    CHECK(has_value(&options, f, 0, "") && options.batch == 17);
    takes(f, "0");
    takes(f, "1");
    const char* wrong[] = {"2", "", "yes", "01"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) { refuses(f, wrong[i], "must be 0 or 1"); }
    char words[64];
    snprintf(words, sizeof(words), "%s=", f->long_name);
    CHECK_FATAL("must be 0 or 1", PARSE(words));
}

static void texts_are_among_their_choices(const CliFlag* f) {
    if (cli_any_text_(f)) {
        takes(f, "some/*.bin");
        takes(f, "./-n");
        refuses(f, "", "is empty");
        refuses(f, "-n", "looks like a flag");
        refuses(f, "--seed", "looks like a flag");
        f->choices == NULL ? refuses(f, "-", "looks like a flag") : takes(f, "-");
        return;
    }
    char list[256];
    snprintf(list, sizeof(list), "%s", f->choices);
    for (char *word = list, *next; word != NULL; word = next) {
        next = strchr(word, '|');
        if (next) { *next++ = '\0'; }
        takes(f, word);
    }
    refuses(f, "nonsense", "must be one of");
    refuses(f, "", "must be one of");
    refuses(f, f->choices, "must be one of"); // all of them at once are none
}

static void every_flag_keeps_its_promise(void) {
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        char other[32];
        const char* names[2] = {f->short_name, f->long_name};
        snprintf(other, sizeof(other), "%s|trainer", f->long_name);
        if (f->who == FOR_GPU_NOTED && !is_mine(f)) {
            takes(f, f->type == CLI_text ? "nccl" : "1");
        } else if (!is_mine(f)) {
            CHECK_FATAL(other, PARSE(f->long_name, "1"));
        } else if (f->type == CLI_text) {
            texts_are_among_their_choices(f);
        } else if (f->type == CLI_toggle) {
            toggles_may_go_without_a_value(f);
        } else {
            numbers_stay_in_their_range(f);
        }
        for (int k = 0; k < 2 && is_mine(f); k++) {
            if (names[k] == NULL || f->type == CLI_toggle) { continue; }
            char words[64];
            snprintf(words, sizeof(words), "%s|needs a value", names[k]);
            CHECK_FATAL(words, PARSE(names[k]));
        }
    }
}

// The next number beyond each end of a range is outside of it, whether the end is 0, -1 or 1.17e-38.
static void ranges_end_where_they_say(void) {
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        char text[64];
        if (!is_mine(f) || f->type != CLI_number) { continue; }
        snprintf(text, sizeof(text), "%.17g", nextafter(f->smallest, -INFINITY));
        if (strstr(text, "e-324") == NULL) {
            refuses(f, text, "must be at least");
        } // else strtod calls it out of range
        snprintf(text, sizeof(text), "%.17g", nextafter(f->largest, INFINITY));
        refuses(f, text, "must be at most");
        refuses(f, "inf", "must be a number");
        refuses(f, "-inf", "must be a number");
    }
}

static void numbers_are_decimal(void) {
    Options o = PARSE("-x", "010", "-l", "010");
    CHECK(o.max_steps == 10 && o.learning_rate == 10.0);
    o = PARSE("-x", "0000000000000000000019");
    CHECK(o.max_steps == 19);
    static const char* const others[] = {"0x10", "0b10", "0o10", "1e2", "1_000", "1,000",
                                         "a",    "10h",  "1 0",  "10 ", "10.0"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        char words[64];
        snprintf(words, sizeof(words), "-x %s|must be a whole number", others[i]);
        CHECK_FATAL(words, PARSE("-x", others[i]));
    }
}

static void no_two_flags_share_a_name(void) {
    int distinct = 1;
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        for (int j = 0; j < i; j++) {
            const char *a = cli_flags[i].short_name, *b = cli_flags[j].short_name;
            distinct = distinct && strcmp(cli_flags[i].long_name, cli_flags[j].long_name) != 0;
            distinct = distinct && (a == NULL || b == NULL || strcmp(a, b) != 0);
        }
    }
    CHECK(distinct);
}

static void unknown_words_are_refused(void) {
    CHECK_FATAL("unknown flag -zz|--help", PARSE("-zz", "1"));
    CHECK_FATAL("unknown flag --batches|--help", PARSE("--batches", "1"));
    CHECK_FATAL("unknown flag --batc|--help", PARSE("--batc", "1")); // no abbreviations
    CHECK_FATAL("unknown flag --batc|--help", PARSE("--batc=1"));
    CHECK_FATAL("unknown flag -|--help", PARSE("-", "1"));
    CHECK_FATAL("unknown flag --|--help", PARSE("--"));
    CHECK_FATAL("unknown flag -b=4|--help", PARSE("-b=4")); // '=' is the long names'
    CHECK_FATAL("unknown flag --learning-rat; did you mean --learning-rate? ./", PARSE("--learning-rat", "1"));
    CHECK_FATAL("unknown flag --ouptut-dir; did you mean --output-dir? ./", PARSE("--ouptut-dir=x"));
    CHECK_FATAL("unknown flag --learning; did you mean --learning-rate? ./", PARSE("--learning", "1")); // as it begins
    CHECK_FATAL("unknown flag -batch; did you mean --batch? ./", PARSE("-batch", "1"));
    CHECK_FATAL("unknown flag --hepl; did you mean --help? ./", PARSE("--hepl"));
    CHECK_FATAL("unknown flag -lf; did you mean -l? ./", PARSE("-lf", "10"));
    CHECK_FATAL("unknown flag -h1; did you mean -h? ./", PARSE("-h1"));
    CHECK_FATAL("unknown flag --frobnicate; ./", PARSE("--frobnicate", "1")); // none is near
    CHECK_FATAL("unknown flag -Q; ./", PARSE("-Q", "1"));                     // every letter is as near
    CHECK_FATAL(CLI_TRAINER & FOR_GPU ? "unknown flag --cuda-graph; did you mean --cuda-graphs? ./"
                                      : "unknown flag --cuda-graph; ./", // the other trainer's
                PARSE("--cuda-graph", "1"));
    CHECK_FATAL("data.bin|a flag was expected", PARSE("data.bin"));
    CHECK_FATAL("8|a flag was expected", PARSE("-b", "4", "8"));
    CHECK_FATAL("-b -t|whole number", PARSE("-b", "-t", "64"));
    CHECK_FATAL(CLI_TRAINER & FOR_GPU ? "--processes|CPU trainer's|--gpus" : "--gpus|GPU trainer's|./train_gpt2cu",
                PARSE(CLI_TRAINER & FOR_GPU ? "--processes" : "--gpus", "2"));
}

// AdamW divides by sqrt(v) + epsilon, and v is 0 where there is no gradient: epsilon must not be 0 in fp32.
static void epsilon_is_not_0_in_fp32(void) {
    CHECK_FATAL("--epsilon 0|must be at least 1.175494351e-38", PARSE("--epsilon", "0"));
    CHECK_FATAL("--epsilon 1e-46|must be at least", PARSE("--epsilon=1e-46"));
    Options o = PARSE("--epsilon", "1.2e-38");
    CHECK((float)o.epsilon > 0.0f);
}

static void defaults_are_llmc_s(void) {
    Options o = parse(0, NULL);
    CHECK(o.batch == 4 && o.time == 1024 && o.total_batch == -1 && o.max_steps == -1);
    CHECK(strcmp(o.scheduler, "cosine") == 0 && o.learning_rate == 3e-4 && o.warmup == 0 && o.final_fraction == 1.0);
    CHECK(o.weight_decay == 0.0 && o.skip_loss_z == 0.0 && o.skip_grad_z == 0.0);
    CHECK(o.val_every == 20 && o.val_steps == 20 && o.sample_every == 20 && o.sample_tokens == 64);
    CHECK(o.checkpoint_every == 0 && o.checkpoints_keep == 0 && o.checkpoint_major == 0 && o.resume == 0);
    CHECK(o.hellaswag == 0 && o.overfit == 0 && o.output_dir == NULL);
    CHECK(strcmp(o.train_data, "dev/data/tinyshakespeare/tiny_shakespeare_train.bin") == 0);
}

// Ours where llm.c has no such flag, or another default: what is safe, and what memory allows.
static void other_defaults_are_safe(void) {
    Options o = parse(0, NULL);
    CHECK(o.recompute == CLI_AUTO);
    CHECK(strcmp(o.non_finite, "stop") == 0 && o.max_skips == 10 && o.verify_every == 0);
    CHECK(o.zero == 1 && strcmp(o.sum_order, "tree") == 0 && o.connect_timeout == 300.0 && o.fault_timeout == 30.0);
    CHECK(o.gpus == 0 && o.processes == 0 && o.num_processes == 0 && o.process_rank == -1 && o.gpus_per_node == 0);
    CHECK(o.init_method == NULL && o.server_ip == NULL && o.fs_path == NULL && o.rendezvous_port == 0);
    CHECK(!o.resume_anyway && !o.overwrite && !o.plan && !o.doctor);
}

// What decides on the weights of a resumed run is held against the checkpoint; where and what a run writes is not.
static void effects_are_told(void) {
    static const struct {
        const char* name;
        int effect;
    } expected[] = {{"--seed", CLI_RESULT},           {"--model", CLI_RESULT},      {"--train-data", CLI_RESULT},
                    {"--total-batch", CLI_RESULT},    {"--max-steps", CLI_RESULT},  {"--learning-rate", CLI_RESULT},
                    {"--skip-loss-z", CLI_RESULT},    {"--overfit", CLI_RESULT},    {"--master-weights", CLI_RESULT},
                    {"--output-dir", CLI_COMMAND},    {"--resume", CLI_COMMAND},    {"--recompute", CLI_FREE},
                    {"--checkpoint-every", CLI_FREE}, {"--verify-every", CLI_FREE}, {"--val-data", CLI_FREE},
                    {"--gpus", CLI_COMMAND},          {"--processes", CLI_COMMAND}, {"--zero", CLI_FREE},
                    {"--num-processes", CLI_COMMAND}, {"--server-ip", CLI_COMMAND}, {"--sum-order", CLI_FREE}};
    int found = 0, right = 0, known = 1;
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        known = known && cli_flags[i].effect >= CLI_FREE && cli_flags[i].effect <= CLI_COMMAND;
        for (size_t k = 0; k < sizeof(expected) / sizeof(expected[0]); k++) {
            if (strcmp(cli_flags[i].long_name, expected[k].name) != 0) { continue; }
            found++;
            right += cli_flags[i].effect == expected[k].effect;
        }
    }
    CHECK(known && found == sizeof(expected) / sizeof(expected[0]) && right == found);
}

// Which flags are given, also where their values are the defaults'; and what is typed gives the same value again.
static void typed_flags_are_marked(void) {
    Options o = PARSE("-b", "4", "--seed=42", "--overwrite", "-l", "0.1", "-k", "wsd");
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        int given = i == CLI_INDEX_batch || i == CLI_INDEX_seed || i == CLI_INDEX_overwrite ||
                    i == CLI_INDEX_learning_rate || i == CLI_INDEX_scheduler;
        if (!CHECK(o.typed[i] == given)) { printf("    %s\n", cli_flags[i].long_name); }
    }
    char number[64];
    CHECK(strcmp(cli_value(&o, &cli_flags[CLI_INDEX_batch], number), "4") == 0);
    CHECK(strcmp(cli_value(&o, &cli_flags[CLI_INDEX_learning_rate], number), "0.1") == 0);
    CHECK(strcmp(cli_value(&o, &cli_flags[CLI_INDEX_scheduler], number), "wsd") == 0);
    CHECK(strcmp(cli_value(&o, &cli_flags[CLI_INDEX_overwrite], number), "1") == 0);
    CHECK(strcmp(cli_value(&o, &cli_flags[CLI_INDEX_recompute], number), "auto") == 0);
    CHECK(cli_value(&o, &cli_flags[CLI_INDEX_output_dir], number)[0] == '\0');
}

// A command line once its recipe is set: with so many steps, < 0 for the settings that do not depend on them.
static Options with_recipe(Options o, int num_steps) {
    recipe_check(&o);
    recipe_set(&o, -1);
    if (num_steps >= 0) { recipe_set(&o, num_steps); }
    return o;
}
static int schedule_is(Options o, double rate, int warmup) {
    return CHECK(o.learning_rate == rate && o.warmup == warmup) ||
           !printf("    -l %g -u %d\n", o.learning_rate, o.warmup);
}

// docs/recipe.md has the rates: the square root of a step's tokens fits those that were tuned, up to 65,536.
static void recipes_set_what_is_not_typed(void) {
    Options o = with_recipe(PARSE("--recipe", "muon", "-d", "32768"), -1);
    CHECK(strcmp(o.optimizer, "muon") == 0 && o.momentum == 0.9 && o.final_fraction == 0.0 && o.weight_decay == 0.1);
    CHECK(strcmp(o.scheduler, "cosine") == 0 && !o.typed[CLI_INDEX_weight_decay] && schedule_is(o, 3e-4, 0));
    schedule_is(with_recipe(o, 1536), 2.5e-3, 153);
    schedule_is(with_recipe(PARSE("--recipe", "muon", "-d", "65536"), 768), 3.54e-3, 76);
    schedule_is(with_recipe(PARSE("--recipe", "muon", "-d", "16384"), 9), 1.77e-3, 0);
    o = with_recipe(PARSE("--recipe", "adamw", "-d", "16384"), 3072);
    CHECK(strcmp(o.optimizer, "adamw") == 0 && o.momentum == 0.95 && o.final_fraction == 0.0 && o.weight_decay == 0.1);
    schedule_is(o, 1e-3, 921);
    schedule_is(with_recipe(PARSE("--recipe=adamw", "-d", "524288"), INT_MAX), 2e-3, INT_MAX / 10 * 3 + 2);
    o = with_recipe(PARSE("--recipe", "muon", "-d", "512", "--optimizer", "muon", "--momentum", "0.95", "-q", "1", "-c",
                          "0", "-k", "wsd"),
                    50);
    CHECK(o.momentum == 0.95 && o.final_fraction == 1.0 && o.weight_decay == 0.0 && strcmp(o.scheduler, "wsd") == 0);
    schedule_is(with_recipe(PARSE("--recipe", "muon", "-d", "512", "-l", "3e-4", "-u", "0"), 50), 3e-4, 0);
    o = with_recipe(PARSE("--recipe", "adamw", "-d", "16384", "-k", "constant"), 50); // which has no warm-up and no end
    CHECK(schedule_is(o, 1e-3, 0) && o.final_fraction == 1.0 && o.weight_decay == 0.1);
    o = with_recipe(PARSE("-d", "32768"), 1536);
    CHECK(schedule_is(o, 3e-4, 0) && strcmp(o.optimizer, "adamw") == 0 && o.final_fraction == 1.0);
    CHECK_FATAL("--recipe muon contradicts --optimizer adamw; say --recipe adamw, or leave one of them out",
                with_recipe(PARSE("--recipe", "muon", "--optimizer", "adamw"), -1));
    CHECK_FATAL("--recipe sgd: must be one of adamw|muon", PARSE("--recipe", "sgd"));
}

// The flags of llm.c's reproduction of GPT-2 124M; the last of two values counts.
static void llmc_s_command_lines_work(void) {
    Options o =
        PARSE("-i", "fineweb_train_*.bin", "-j", "fineweb_val_*.bin", "-o", "log124M", "-v", "250", "-s", "20000", "-g",
              "144", "-h", "1", "-b", "64", "-t", "1024", "-d", "524288", "-r", "0", "-c", "0.1", "-l", "0.0006", "-q",
              "0.0", "-u", "700", "-n", "5000", "-y", "1", "-e", "d12", "-x", "-1", "-b", "32");
    CHECK(strcmp(o.train_data, "fineweb_train_*.bin") == 0 && strcmp(o.val_data, "fineweb_val_*.bin") == 0);
    CHECK(strcmp(o.output_dir, "log124M") == 0 && strcmp(o.model, "d12") == 0);
    CHECK(o.val_every == 250 && o.sample_every == 20000 && o.sample_tokens == 144 && o.hellaswag == 1);
    CHECK(o.batch == 32 && o.time == 1024 && o.total_batch == 524288 && o.recompute == 0 && o.max_steps == -1);
    CHECK(o.weight_decay == 0.1 && o.learning_rate == 0.0006 && o.final_fraction == 0.0 && o.warmup == 700);
    CHECK(o.checkpoint_every == 5000 && o.resume == 1);
    o = PARSE("-pn", "16", "-pr", "3", "-pg", "8", "-pi", "tcp", "-ps", "10.0.0.7", "-pf", "/shared", "-z", "0");
    CHECK(o.num_processes == 16 && o.process_rank == 3 && o.gpus_per_node == 8 && o.zero == 0);
    CHECK(strcmp(o.init_method, "tcp") == 0 && strcmp(o.server_ip, "10.0.0.7") == 0 &&
          strcmp(o.fs_path, "/shared") == 0);
    o = PARSE("-z", "3");
    CHECK(o.zero == 3);
    o = PARSE("-f", "1", "-w", "1", "-ge", "0", "-lg", "100"); // which the CPU trainer takes and notes
    CHECK(o.tf32 == 1 && o.master_weights == 1 && o.gelu_fusion == 0 && o.log_gpu_every == 100);
    if (CLI_TRAINER & FOR_GPU) {
        o = PARSE("--gpus", "all");
        CHECK(o.gpus == CLI_ALL);
        CHECK(o.cuda_graphs == 1);
        o = PARSE("-f", "0", "-w", "0", "-ge", "2", "-lg", "10", "--cuda-graphs", "0");
        CHECK(o.tf32 == 0 && o.master_weights == 0 && o.gelu_fusion == 2 && o.log_gpu_every == 10);
        CHECK(o.cuda_graphs == 0);
    }
}

// What a function prints on stdout
static char* printed(void (*print)(void)) {
    const char* path = unit_path("printed.txt");
    fflush(stdout);
    int saved = dup(STDOUT_FILENO);
    FILE* file = fopen_check(path, "w");
    dup2(fileno(file), STDOUT_FILENO);
    print();
    fflush(stdout);
    dup2(saved, STDOUT_FILENO);
    close(saved);
    fclose(file);
    size_t bytes;
    return unit_read(path, &bytes);
}

static void print_help(void) { cli_help(&cli_program, stdout); }
static void print_settings(void) {
    Options o = PARSE("-b", "17", "-l", "0.125", "-o", "somewhere", "--overwrite");
    cli_print(&cli_program, &o, NULL);
}

static void help_and_settings_list_the_flags_of_this_trainer(void) {
    char *help = printed(print_help), *settings = printed(print_settings);
    int listed = 1;
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        char flag[64], row[64];
        snprintf(flag, sizeof(flag), " %s %s", f->long_name, cli_value_text_(f));
        snprintf(row, sizeof(row), "| %-21s |", f->long_name + 2);
        const char* found = strstr(help, flag);
        const int is_there = found != NULL && strchr("\n ", found[strlen(flag)]) != NULL;
        listed = listed && is_there == is_mine(f) && (strstr(settings, row) != NULL) == is_mine(f);
    }
    CHECK(listed);
    CHECK(
        strstr(help,
               "  -b  --batch <int>|auto\n        B, rows of a micro-batch; auto: the largest that fits in memory and "
               "divides -d, without -d a power of two up to 64 (default 4)\n") != NULL);
    CHECK(strstr(
        help,
        "\n      --overwrite [0|1]            a new run may replace the checkpoints and the log of another one\n"));
    CHECK(strstr(help, " --zero <int>") != NULL && strstr(help, " --async-save [0|1]\n") != NULL);
    CHECK(strstr(help, "from a snapshot in memory; 0: it waits (default 1)\n") != NULL);
    CHECK(strstr(help, "(default auto)") != NULL && strstr(help, "CLI_AUTO") == NULL);
    CHECK((strstr(help, " --gpus <int>|all") != NULL) == ((CLI_TRAINER & FOR_GPU) != 0));
    CHECK(strstr(help, "cosine|linear|constant|wsd") != NULL && strstr(help, "--help") != NULL);
    CHECK(strstr(settings, "| batch                 | 17  ") != NULL);
    CHECK(strstr(settings, "| learning-rate         | 0.125  ") != NULL);
    CHECK(strstr(settings, "| output-dir            | somewhere  ") != NULL);
    CHECK(strstr(settings, "| overwrite             | 1  ") != NULL);
    CHECK(strstr(settings, "| recompute             | auto  ") != NULL);
    CHECK(strstr(settings, "other flags") == NULL);
    free(help);
    free(settings);
    if (unit_fork()) {
        PARSE("-b", "8", "--help", "--nonsense"); // --help ends the program well, whatever follows
        _exit(7);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0 && child.length == 0);
}

// --help begins with the version, which is all that --version prints.
static void help_begins_with_the_version(void) {
    const char line[] = "flashgpt " FLASHGPT_VERSION "\n";
    const char* flags[] = {"--help", "--version"};
    for (int i = 0; i < 2; i++) {
        if (unit_fork()) {
            dup2(STDERR_FILENO, STDOUT_FILENO); // the parent reads it
            PARSE("-b", "8", flags[i]);
            _exit(7);
        }
        UnitChild child = unit_wait();
        CHECK(strncmp(child.text, line, strlen(line)) == 0);
        CHECK(i == 0 ? strstr(child.text, "Usage: ./") == child.text + strlen(line) : child.exit_code == 0);
        CHECK((child.length == strlen(line)) == (i == 1));
    }
}

// Every flag stands under a heading, each heading before its flag; and the example is a command line.
static void help_has_groups_and_an_example(void) {
    char* help = printed(print_help);
    const char* last = help;
    CHECK(cli_groups[0].offset == cli_flags[0].offset); // none without a heading
    CHECK(strstr(help, "\n\nBatch and length\n  -b  --batch <int>|auto\n") != NULL);
    CHECK(strstr(help, CLI_TRAINER & FOR_GPU ? "\n\nSeveral processes\n      --gpus "
                                             : "\n\nSeveral processes\n      --processes ") != NULL);
    for (size_t g = 0; g < sizeof(cli_groups) / sizeof(cli_groups[0]); g++) {
        char heading[64];
        snprintf(heading, sizeof(heading), "\n\n%s\n  ", cli_groups[g].heading);
        const char* here = strstr(last, heading);
        if (!CHECK(here != NULL && strstr(here + 1, heading) == NULL)) { printf("    %s\n", heading); }
        last = here ? here : last;
    }
    free(help);

    char words[256] = TRAINER_EXAMPLE, *argv[MAX_WORDS] = {words};
    int argc = 1;
    for (char* word = strtok(words, " "); word != NULL; word = strtok(NULL, " ")) { argv[argc++] = word; }
    Options o = cli_parse(argc, argv);
    CHECK(argc > 10 && o.output_dir != NULL && o.checkpoint_every > 0 && o.max_steps > 0 && o.time <= 1024);
    CHECK(o.total_batch == -1 || o.total_batch % (o.batch * o.time) == 0);
}

static void print_few(void) {
    Options o = PARSE("-l", "0.125", "-x", "-1", "--overwrite", "--async-save", "0", "--beta1", "0.9");
    cli_print(&cli_program, &o, "--model|--batch");
}
static void print_fewest(void) {
    Options o = parse(0, NULL);
    cli_print(&cli_program, &o, "--batch");
}

// A run begins with what is always printed and what is not as by default, in the table's order, and says how many are not.
static void settings_are_those_that_differ(void) {
    char *few = printed(print_few), *fewest = printed(print_fewest), rows[1024] = "", count[128];
    int mine = 0;
    for (int i = 0; i < NUM_CLI_FLAGS; i++) { mine += is_mine(&cli_flags[i]); }
    for (char* line = strtok(few, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        char name[32], value[64];
        if (sscanf(line, "| %21[^|] | %49[^|]", name, value) != 2) { continue; }
        name[strcspn(name, " ")] = '\0', value[strcspn(value, " ")] = '\0';
        snprintf(rows + strlen(rows), sizeof(rows) - strlen(rows), "%s=%s ", name, value);
    }
    snprintf(count, sizeof(count), "other=%d ", mine - 5);
    CHECK(strncmp(rows, "flag=value model=gpt2_124M", 26) == 0);
    CHECK(strstr(rows, ".bin async-save=0 batch=4 learning-rate=0.125 overwrite=1 other=") != NULL);
    if (!CHECK(strstr(rows, count) != NULL)) { printf("    %s\n", rows); }
    snprintf(count, sizeof(count), "| other flags           | %d at their defaults; --all-flags lists them ", mine - 1);
    CHECK(strstr(fewest, count) != NULL);
    free(few);
    free(fewest);
}

int main(void) {
    every_flag_keeps_its_promise();
    ranges_end_where_they_say();
    numbers_are_decimal();
    no_two_flags_share_a_name();
    unknown_words_are_refused();
    epsilon_is_not_0_in_fp32();
    defaults_are_llmc_s();
    other_defaults_are_safe();
    effects_are_told();
    typed_flags_are_marked();
    recipes_set_what_is_not_typed();
    llmc_s_command_lines_work();
    help_and_settings_list_the_flags_of_this_trainer();
    help_begins_with_the_version();
    help_has_groups_and_an_example();
    settings_are_those_that_differ();
    return unit_end();
}
