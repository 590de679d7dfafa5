/*
The command line of the trainers: one table of flags, from which follow the struct of options, its defaults, the parser,
the checks, the --help text and the table of settings that a run prints first. Short names are llm.c's, so that its
command lines work unchanged; every flag has a long name too. A flag and its value are two words, or one with '='. A toggle
may go without a value, which is 1 then.
*/
#ifndef LLMC_CLI_H
#define LLMC_CLI_H

#include <float.h>
#include <limits.h>
#include <math.h>
#include <stddef.h>

#include "table.h"
#include "utils.h"

typedef const char* cli_text; // NULL: not given
typedef int cli_whole;
typedef double cli_number;
typedef int cli_toggle; // 0 or 1

enum { CLI_AUTO = INT_MIN }; // what a whole number is that was given as "auto"

// Which trainer has the flag
enum { FOR_BOTH = 3, FOR_CPU = 1, FOR_GPU = 2 };
#ifdef __CUDACC__
enum { CLI_TRAINER = FOR_GPU };
#define CLI_PROGRAM "train_gpt2cu"
#define CLI_MODEL "gpt2_124M_bf16.bin"
#else
enum { CLI_TRAINER = FOR_CPU };
#define CLI_PROGRAM "train_gpt2"
#define CLI_MODEL "gpt2_124M.bin"
#endif

// Would a run that resumes with another value compute other weights? Only such flags are held against the checkpoint's.
enum { CLI_FREE = 0, CLI_RESULT = 1 };

// X(member, short name, long name, type, default, smallest, largest, choices, who, effect, help)
// `choices` lists the words a text may be, separated by '|'; NULL where any text will do. A whole number may also be "auto"
// where that is its choice. `effect` is FREE or RESULT.
// clang-format off
#define CLI_FLAGS(X)                                                                                                   \
    X(train_data, "-i", "--train-data", text, "dev/data/tinyshakespeare/tiny_shakespeare_train.bin", 0, 0, NULL, FOR_BOTH, RESULT, \
      "training tokens: a file or a quoted glob pattern")                                                              \
    X(val_data, "-j", "--val-data", text, "dev/data/tinyshakespeare/tiny_shakespeare_val.bin", 0, 0, NULL, FOR_BOTH, FREE, \
      "validation tokens: a file or a quoted glob pattern")                                                            \
    X(model, "-e", "--model", text, CLI_MODEL, 0, 0, NULL, FOR_BOTH, RESULT,                                           \
      "a .bin checkpoint, or a new model: d12, gpt3:c768, gpt2:l4c128h4, each with t<context> appended if wanted")     \
    X(tokenizer, NULL, "--tokenizer", text, "gpt2_tokenizer.bin", 0, 0, NULL, FOR_BOTH, FREE,                          \
      "token texts for samples; models with a vocabulary of 256 are bytes and need none")                              \
    X(vocab_size, NULL, "--vocab-size", whole, 0, 0, 1 << 24, NULL, FOR_BOTH, RESULT,                                  \
      "vocabulary of a new model; 0: what the token files say, else 50257")                                            \
    X(output_dir, "-o", "--output-dir", text, NULL, 0, 0, NULL, FOR_BOTH, FREE,                                        \
      "directory of main.log and checkpoints")                                                                         \
    X(checkpoint_every, "-n", "--checkpoint-every", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, FREE,                        \
      "steps between checkpoints; 0: none")                                                                            \
    X(checkpoints_keep, "-nk", "--checkpoints-keep", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, FREE,                       \
      "how many checkpoints to keep; 0: all")                                                                          \
    X(checkpoint_major, "-nm", "--checkpoint-major", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, FREE,                       \
      "checkpoints at multiples of this step are never deleted; 0: no such")                                           \
    X(async_save, NULL, "--async-save", whole, 1, 0, 1, NULL, FOR_BOTH, FREE,                                          \
      "1: training goes on while a checkpoint is written, from a snapshot in memory; 0: it waits")                     \
    X(resume, "-y", "--resume", whole, 0, 0, 1, NULL, FOR_BOTH, FREE,                                                  \
      "1: go on from the newest checkpoint in the output directory, if there is one")                                  \
    X(batch, "-b", "--batch", whole, 4, 1, 1 << 20, "auto", FOR_BOTH, RESULT,                                          \
      "B, rows of a micro-batch; auto: the largest that fits in memory and divides -d, without -d a power of two up to 64") \
    X(time, "-t", "--time", whole, 1024, 1, 1 << 20, NULL, FOR_BOTH, RESULT,                                           \
      "T, tokens of a row")                                                                                            \
    X(total_batch, "-d", "--total-batch", whole, -1, -1, INT_MAX, NULL, FOR_BOTH, RESULT,                              \
      "tokens of a step, a multiple of B*T: the micro-batches' gradients are accumulated; -1: B*T")                    \
    X(max_steps, "-x", "--max-steps", whole, -1, -1, INT_MAX, NULL, FOR_BOTH, RESULT,                                  \
      "steps to train; -1: one epoch")                                                                                 \
    X(scheduler, "-k", "--scheduler", text, "cosine", 0, 0, "cosine|linear|constant|wsd", FOR_BOTH, RESULT,            \
      "learning rate schedule")                                                                                        \
    X(learning_rate, "-l", "--learning-rate", number, 3e-4, 0, 1e3, NULL, FOR_BOTH, RESULT,                            \
      "largest learning rate")                                                                                         \
    X(warmup, "-u", "--warmup", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, RESULT,                                          \
      "steps of linear warm-up")                                                                                       \
    X(final_fraction, "-q", "--final-fraction", number, 1.0, 0, 1, NULL, FOR_BOTH, RESULT,                             \
      "learning rate at the end, as a fraction of the largest")                                                        \
    X(weight_decay, "-c", "--weight-decay", number, 0.0, 0, 1e3, NULL, FOR_BOTH, RESULT,                               \
      "AdamW's, on matrices only")                                                                                     \
    X(grad_clip, NULL, "--grad-clip", number, 1.0, 0, 1e9, NULL, FOR_BOTH, RESULT,                                     \
      "largest gradient norm; 0: no clipping")                                                                         \
    X(beta1, NULL, "--beta1", number, 0.9, 0, 0.999999, NULL, FOR_BOTH, RESULT,                                        \
      "AdamW's decay of the first moment")                                                                             \
    X(beta2, NULL, "--beta2", number, 0.95, 0, 0.999999, NULL, FOR_BOTH, RESULT,                                       \
      "AdamW's decay of the second moment")                                                                            \
    X(epsilon, NULL, "--epsilon", number, 1e-8, FLT_MIN, 1, NULL, FOR_BOTH, RESULT,                                    \
      "AdamW's term in the denominator; with 0, weights without a gradient would become NaN")                          \
    X(seed, NULL, "--seed", whole, 42, 0, INT_MAX, NULL, FOR_BOTH, RESULT,                                             \
      "of the initial weights and the shuffling")                                                                      \
    X(skip_loss_z, "-sl", "--skip-loss-z", number, 0.0, 0, 1e9, NULL, FOR_BOTH, RESULT,                                \
      "skip the update where the loss is an outlier of more than this z-score; 0: never")                              \
    X(skip_grad_z, "-sg", "--skip-grad-z", number, 0.0, 0, 1e9, NULL, FOR_BOTH, RESULT,                                \
      "the same for the gradient norm")                                                                                \
    X(val_every, "-v", "--val-every", whole, 20, 0, INT_MAX, NULL, FOR_BOTH, FREE,                                     \
      "steps between validations; 0: only at the end")                                                                 \
    X(val_steps, "-m", "--val-steps", whole, 20, -1, INT_MAX, NULL, FOR_BOTH, FREE,                                    \
      "batches of a validation; -1: the whole set")                                                                    \
    X(sample_every, "-s", "--sample-every", whole, 20, 0, INT_MAX, NULL, FOR_BOTH, FREE,                               \
      "steps between samples; 0: none")                                                                                \
    X(sample_tokens, "-g", "--sample-tokens", whole, 64, 1, 1 << 20, NULL, FOR_BOTH, FREE,                             \
      "tokens of a sample")                                                                                            \
    X(temperature, NULL, "--temperature", number, 1.0, 0, 100, NULL, FOR_BOTH, FREE,                                   \
      "of sampling; 0: always the likeliest token")                                                                    \
    X(top_k, NULL, "--top-k", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, FREE,                                              \
      "sample among the k likeliest tokens; 0: all")                                                                   \
    X(sample_seed, NULL, "--sample-seed", whole, 1337, 1, INT_MAX, NULL, FOR_BOTH, FREE,                               \
      "of sampling")                                                                                                   \
    X(hellaswag, "-h", "--hellaswag", whole, 0, 0, 1, NULL, FOR_BOTH, FREE,                                            \
      "1: HellaSwag accuracy with every validation")                                                                   \
    X(hellaswag_data, NULL, "--hellaswag-data", text, "dev/data/hellaswag/hellaswag_val.bin", 0, 0, NULL, FOR_BOTH, FREE, \
      "HellaSwag's questions, as dev/data/hellaswag.py writes them")                                                   \
    X(overfit, "-a", "--overfit", whole, 0, 0, 1, NULL, FOR_BOTH, RESULT,                                              \
      "1: train on one batch of the validation data again and again, for debugging")                                   \
    X(recompute, "-r", "--recompute", whole, CLI_AUTO, 0, 2, "auto", FOR_BOTH, FREE,                                   \
      "what the backward pass computes again instead of keeping: 0 nothing, 1 GELU, 2 GELU and LayerNorm; auto: the least that memory allows, where -b auto has taken the B that fits -r 1") \
    X(non_finite, NULL, "--non-finite", text, "stop", 0, 0, "stop|skip", FOR_BOTH, FREE,                               \
      "what a step does whose loss or gradient norm is not finite: end the run with exit code 3, or skip the update")  \
    X(max_skips, NULL, "--max-skips", whole, 10, 0, INT_MAX, NULL, FOR_BOTH, FREE,                                     \
      "updates that --non-finite skip may skip one after the other")                                                   \
    X(verify_every, NULL, "--verify-every", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, FREE,                                \
      "steps between those that are computed twice and compared bit for bit; 0: never")                                \
    X(resume_anyway, NULL, "--resume-anyway", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                   \
      "go on although settings or data differ from those of the checkpoint")                                           \
    X(overwrite, NULL, "--overwrite", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                           \
      "a new run may replace the checkpoints and the log of another one")                                              \
    X(plan, NULL, "--plan", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                                     \
      "print the memory, steps and tokens that the run needs, and do not train")                                       \
    X(doctor, NULL, "--doctor", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                                 \
      "print whether this machine has what a run needs, and do not train")                                             \
    X(tf32, "-f", "--tf32", whole, 1, 0, 1, NULL, FOR_GPU, RESULT,                                                     \
      "1: tf32 GEMMs in an fp32 build")                                                                                \
    X(master_weights, "-w", "--master-weights", whole, 1, 0, 1, NULL, FOR_GPU, RESULT,                                 \
      "1: AdamW works on an fp32 copy of the weights; 0: on the weights, with stochastic rounding")                    \
    X(gelu_fusion, "-ge", "--gelu-fusion", whole, 0, 0, 2, NULL, FOR_GPU, RESULT,                                      \
      "GELU in cuBLASLt's epilogues: 0 none, 1 forward, 2 forward and backward. With 1 and 2, -r changes bits")        \
    X(log_gpu_every, "-lg", "--log-gpu-every", whole, -1, -1, INT_MAX, NULL, FOR_GPU, FREE,                            \
      "steps between lines on the GPU's clocks, power and temperature; -1: none")
// clang-format on

typedef struct {
#define CLI_MEMBER_(member, s, l, type, ...) cli_##type member;
    CLI_FLAGS(CLI_MEMBER_)
#undef CLI_MEMBER_
} Options;

// ----------------------------------------------------------------------------
// The table at run time

typedef enum { CLI_text, CLI_whole, CLI_number, CLI_toggle } CliType;

typedef struct {
    const char *short_name, *long_name;
    CliType type;
    double smallest, largest;
    const char* choices;
    int who, effect;
    const char* help;
    const char* default_text; // as --help shows it
    size_t offset;            // of the member in Options
} CliFlag;

#define CLI_ROW_(member, s, l, type, value, min, max, choices, who, effect, help)                                      \
    {s, l, CLI_##type, min, max, choices, who, CLI_##effect, help, #value, offsetof(Options, member)},
static const CliFlag cli_flags[] = {CLI_FLAGS(CLI_ROW_)};
enum { NUM_CLI_FLAGS = sizeof(cli_flags) / sizeof(cli_flags[0]) };

static inline Options cli_defaults(void) {
    Options o;
#define CLI_DEFAULT_(member, s, l, type, value, ...) o.member = value;
    CLI_FLAGS(CLI_DEFAULT_)
#undef CLI_DEFAULT_
    return o;
}

// What --help shows for the value of a flag
static inline const char* cli_value_text_(const CliFlag* f) {
    switch (f->type) {
    case CLI_text:
        return "<text>";
    case CLI_whole:
        return f->choices ? "<int>|auto" : "<int>";
    case CLI_number:
        return "<number>";
    case CLI_toggle:
        return "<0|1>";
    }
    return "";
}

// Prints the usage text of this trainer to `out`.
static inline void cli_help(FILE* out) {
    fprintf(out, "Usage: ./%s [flag value]...\n\n", CLI_PROGRAM);
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        if (!(f->who & CLI_TRAINER)) { continue; }
        const char* shown = f->offset == offsetof(Options, model)      ? CLI_MODEL
                            : strcmp(f->default_text, "CLI_AUTO") == 0 ? "auto"
                                                                       : f->default_text;
        fprintf(out, "  %-3s %s %s\n        %s", f->short_name ? f->short_name : "", f->long_name, cli_value_text_(f),
                f->help);
        if (f->type == CLI_text && f->choices) { fprintf(out, ": %s", f->choices); }
        if (f->type != CLI_toggle && strcmp(shown, "NULL") != 0) { fprintf(out, " (default %s)", shown); }
        fputc('\n', out);
    }
    fprintf(out, "      --help\n        this text\n");
}

// Finds the flag that `word` (up to `length` characters of it) names; ends with one line where there is none.
static inline const CliFlag* cli_find_(const char* word, size_t length) {
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        const char* names[2] = {f->short_name, f->long_name};
        for (int k = 0; k < 2; k++) {
            if (names[k] == NULL || strlen(names[k]) != length || strncmp(names[k], word, length) != 0) { continue; }
            if (!(f->who & CLI_TRAINER)) {
                fatal("flag %s is the GPU trainer's; leave it out, or run ./train_gpt2cu", names[k]);
            }
            return f;
        }
    }
    static const char* of_several[] = {"-z", "-pn", "-pr", "-pg", "-pi", "-ps", "-pf"}; // llm.c's, for several GPUs
    for (size_t i = 0; i < sizeof(of_several) / sizeof(of_several[0]); i++) {
        if (strlen(of_several[i]) == length && strncmp(of_several[i], word, length) == 0) {
            fatal("%s: this build trains on one GPU; leave out -z, -pn, -pr, -pg, -pi, -ps and -pf", of_several[i]);
        }
    }
    fatal("unknown flag %.*s; ./%s --help lists all flags", (int)length, word, CLI_PROGRAM);
}

// 1 where `word` is one of the choices, which are separated by '|'.
static inline int cli_is_choice_(const char* choices, const char* word) {
    size_t length = strlen(word);
    for (const char* c = choices; c != NULL; c = strchr(c, '|') ? strchr(c, '|') + 1 : NULL) {
        if (strcspn(c, "|") == length && strncmp(c, word, length) == 0) { return 1; }
    }
    return 0;
}

// Checks a text; returns it.
static inline cli_text cli_text_(const CliFlag* f, const char* name, const char* value) {
    if (f->choices != NULL && !cli_is_choice_(f->choices, value)) {
        fatal("%s %s: must be one of %s", name, value, f->choices);
    }
    if (value[0] == '\0') { fatal("%s '': the value is empty; name a file, or leave the flag out", name); }
    if (value[0] == '-') { // -o -n 20: the value was forgotten
        fatal("%s %s: the value looks like a flag; give %s a value, or write ./%s where that is its name", name, value,
              name, value);
    }
    return value;
}

static inline void cli_set_(Options* options, const CliFlag* f, const char* name, const char* value) {
    void* member = (char*)options + f->offset;
    if (f->type == CLI_text) {
        *(cli_text*)member = cli_text_(f, name, value);
        return;
    }
    if (f->type == CLI_toggle) {
        if (!cli_is_choice_("0|1", value)) { fatal("%s %s: must be 0 or 1, or go without a value", name, value); }
        *(cli_toggle*)member = value[0] == '1';
        return;
    }
    if (f->type == CLI_whole && f->choices != NULL && cli_is_choice_(f->choices, value)) {
        *(cli_whole*)member = CLI_AUTO;
        return;
    }
    char* end;
    errno = 0;
    double number = f->type == CLI_whole ? (double)strtoll(value, &end, 10) : strtod(value, &end);
    if (end == value || *end != '\0' || errno == ERANGE || !isfinite(number)) {
        fatal("%s %s: must be a %s%s", name, value, f->type == CLI_whole ? "whole number" : "number",
              f->type == CLI_whole && f->choices != NULL ? ", or auto" : "");
    }
    if (number < f->smallest) { fatal("%s %s: must be at least %.10g", name, value, f->smallest); }
    if (number > f->largest) { fatal("%s %s: must be at most %.10g", name, value, f->largest); }
    if (f->type == CLI_whole) {
        *(cli_whole*)member = (int)number;
    } else {
        *(cli_number*)member = number;
    }
}

// Reads the command line into Options. --help prints the usage text and exits with 0; anything wrong ends with one
// line on stderr and exit code 1.
static inline Options cli_parse(int argc, char** argv) {
    Options options = cli_defaults();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0) {
            cli_help(stdout);
            exit(EXIT_SUCCESS);
        }
        if (argv[i][0] != '-') { fatal("%s: a flag was expected; ./%s --help lists them", argv[i], CLI_PROGRAM); }
        const char* equals = strncmp(argv[i], "--", 2) == 0 ? strchr(argv[i], '=') : NULL;
        const CliFlag* flag = cli_find_(argv[i], equals ? (size_t)(equals - argv[i]) : strlen(argv[i]));
        const char* value = equals ? equals + 1 : argv[i + 1]; // argv[argc] is NULL
        int bare = flag->type == CLI_toggle && equals == NULL && (value == NULL || value[0] == '-');
        if (value == NULL && !bare) {
            fatal("flag %s needs a value; ./%s --help lists all flags", argv[i], CLI_PROGRAM);
        }
        cli_set_(&options, flag, equals ? flag->long_name : argv[i], bare ? "1" : value);
        i += equals == NULL && !bare;
    }
    return options;
}

// ----------------------------------------------------------------------------
// The settings of a run, as the table that it prints first

static inline void cli_print(const Options* options) {
    print_table_line();
    print_table_row("flag", "value");
    print_table_line();
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        const void* member = (const char*)options + f->offset;
        if (!(f->who & CLI_TRAINER)) { continue; }
        const char* name = f->long_name + 2;
        if (f->type == CLI_text) {
            print_table_row(name, "%s", *(const cli_text*)member ? *(const cli_text*)member : "-");
        } else if (f->type == CLI_whole && *(const cli_whole*)member == CLI_AUTO) {
            print_table_row(name, "auto");
        } else if (f->type != CLI_number) {
            print_table_row(name, "%d", *(const cli_whole*)member); // toggles are int too
        } else {
            print_table_row(name, "%g", *(const cli_number*)member);
        }
    }
    print_table_line();
}

#endif
