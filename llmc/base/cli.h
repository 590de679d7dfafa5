/*
The command line of a program: one table of flags generates the struct of options, its defaults, the parser, the checks, the
--help text and the table of settings that a run prints first. run/flags.h and generate/flags.h have such tables. A flag has
a short name, a long name or both. A flag and its value are two words, or one with '='. A toggle without a value is 1. An
unknown flag is refused with the name that is nearest to it.
*/
#ifndef LLMC_BASE_CLI_H
#define LLMC_BASE_CLI_H

#include <limits.h>
#include <math.h>
#include <stddef.h>

#include "terminal.h"
#include "utils.h"

#define FLASHGPT_VERSION "0.2.0" // CITATION.cff and CHANGELOG.md name it too

typedef const char* cli_text; // NULL: not given
typedef int cli_whole;
typedef double cli_number;
typedef int cli_toggle; // 0 or 1
typedef struct {
    const char** items;
    int count;
} cli_texts; // of a flag that may be given again and again, in their order: any text, also an empty one

enum { CLI_AUTO = INT_MIN, CLI_ALL = INT_MIN }; // what a whole number is that was given as "auto" or "all"

// Which build of the program has the flag. FOR_GPU_NOTED: the CPU's takes it too, and notes that it has no effect.
enum { FOR_BOTH = 3, FOR_CPU = 1, FOR_GPU = 2, CLI_NOTED = 4, FOR_GPU_NOTED = 6 };
#ifdef __CUDACC__
enum { CLI_TRAINER = FOR_GPU };
#else
enum { CLI_TRAINER = FOR_CPU };
#endif

// Would a run that resumes with another value compute other weights? RESULT: it would, and the flag is held against the
// checkpoint's. FREE: it would not. COMMAND: it would not, and the flag says where or how this command runs, so -y 1 does not
// take it from the run.
enum { CLI_FREE = 0, CLI_RESULT = 1, CLI_COMMAND = 2 };

// ----------------------------------------------------------------------------
// A table of flags, at run time

typedef enum { CLI_text, CLI_whole, CLI_number, CLI_toggle, CLI_texts } CliType;

typedef struct {
    const char *short_name, *long_name;
    CliType type;
    double smallest, largest;
    const char* choices;
    int who, effect;
    const char* help;
    const char* default_text; // as --help shows it
    size_t offset, size;      // of the member in Options
} CliFlag;

// A heading of --help, before the flag at this offset
typedef struct {
    size_t offset;
    const char* heading;
} CliGroup;

typedef struct {
    const char *name, *model;    // of the program, and its default of -e
    const char *of_cpu, *of_gpu; // error text for a flag that only the other build has: "flag --x is the ..."
    const char* example;         // flags and values of a usual command line
    const CliFlag* flags;
    int num_flags;
    const CliGroup* groups;
    int num_groups;
    const void* defaults; // Options
} CliProgram;

// The value of a flag as --help shows it
static inline const char* cli_value_text_(const CliFlag* f) {
    static const char* const texts[] = {"<text>", "<int>", "<number>", "[0|1]", "<text>"}; // by type
    if (f->type != CLI_whole || f->choices == NULL) { return texts[f->type]; }
    return strcmp(f->choices, "all") == 0 ? "<int>|all" : "<int>|auto";
}

// 1 if a text need not be one of the choices.
static inline int cli_any_text_(const CliFlag* f) { return f->choices == NULL || strcmp(f->choices, "-") == 0; }

// The default of a flag as --help shows it; NULL: there is none worth a word.
static inline const char* cli_default_text_(const CliProgram* p, const CliFlag* f) {
    if (strcmp(f->default_text, f->type == CLI_toggle ? "0" : "NULL") == 0) { return NULL; }
    return strcmp(f->default_text, "CLI_MODEL") == 0  ? p->model
           : strcmp(f->default_text, "CLI_AUTO") == 0 ? "auto"
                                                      : f->default_text;
}

// A flag and what it does: one line, or two where they are longer than 120 columns.
static inline void cli_help_line_(const CliProgram* p, const CliFlag* f, FILE* out) {
    char flag[128], words[1024];
    const char *choices = f->type == CLI_text && !cli_any_text_(f) ? f->choices : "",
               *otherwise = cli_default_text_(p, f);
    snprintf(flag, sizeof(flag), "  %-3s %s %s", f->short_name ? f->short_name : "", f->long_name, cli_value_text_(f));
    snprintf(words, sizeof(words), "%s%s%s%s%s%s", f->help, choices[0] ? ": " : "", choices,
             otherwise ? " (default " : "", otherwise ? otherwise : "", otherwise ? ")" : "");
    int is_short = strlen(flag) <= 34 && strlen(words) <= 120 - 35;
    fprintf(out, is_short ? "%-34s %s\n" : "%s\n        %s\n", flag, words);
}

// Prints the usage text of this build of a program to `out`.
static inline void cli_help(const CliProgram* p, FILE* out) {
    const char* heading = NULL; // one that waits for a flag of this build
    fprintf(out, "Usage: ./%s [flag value]...\nFor example: ./%s %s\n", p->name, p->name, p->example);
    for (int i = 0; i < p->num_flags; i++) {
        const CliFlag* f = &p->flags[i];
        for (int g = 0; g < p->num_groups; g++) {
            if (p->groups[g].offset == f->offset) { heading = p->groups[g].heading; }
        }
        if (!(f->who & CLI_TRAINER)) { continue; }
        if (heading != NULL) { fprintf(out, "\n%s\n", heading); }
        heading = NULL;
        cli_help_line_(p, f, out);
    }
    fprintf(out, "      --help, --version            prints this text, or only the version\n");
}

// How far a mistyped word is from a name: Levenshtein's distance, the fewest characters that are inserted, deleted or replaced,
// by rows of the usual table; 1 where the name begins with it; the largest number where one of them is long.
static inline size_t cli_distance_(const char* word, size_t length, const char* name) {
    size_t row[64], n = strlen(name);
    if (length > 3 && strncmp(word, name, length) == 0) { return 1; } // beyond dashes and one letter
    if (n >= 64 || length >= 64) { return (size_t)-1; }
    for (size_t j = 0; j <= n; j++) { row[j] = j; }
    for (size_t i = 1; i <= length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= n; j++) {
            size_t replaced = diagonal + (word[i - 1] != name[j - 1]);
            size_t other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1; // deleted or inserted
            diagonal = row[j];
            row[j] = replaced < other ? replaced : other;
        }
    }
    return row[n];
}

// Finds the flag that `word` (up to `length` characters of it) names; ends the program with one line if there is none,
// which offers the nearest name, unless a third of the word would have to change.
static inline const CliFlag* cli_find_(const CliProgram* p, const char* word, size_t length) {
    const char* nearest = NULL;
    size_t fewest = length / 3 + 1;
    for (int i = -1; i < p->num_flags; i++) {
        const CliFlag* f = i < 0 ? NULL : &p->flags[i];
        const char* names[2] = {f ? f->short_name : "--help", f ? f->long_name : "--version"};
        for (int k = 0; k < 2; k++) {
            if (names[k] == NULL) { continue; }
            size_t distance = f == NULL || f->who & CLI_TRAINER ? cli_distance_(word, length, names[k]) : fewest;
            if (distance < fewest) { fewest = distance, nearest = names[k]; }
            if (f == NULL || strlen(names[k]) != length || strncmp(names[k], word, length) != 0) { continue; }
            if (!(f->who & (CLI_TRAINER | CLI_NOTED))) {
                fatal("flag %s is the %s", names[k], f->who == FOR_CPU ? p->of_cpu : p->of_gpu);
            }
            return f;
        }
    }
    fatal("unknown flag %.*s; %s%s%s./%s --help lists all flags", (int)length, word, nearest ? "did you mean " : "",
          nearest ? nearest : "", nearest ? "? " : "", p->name);
}

// Checks a text; returns it.
static inline cli_text cli_text_(const CliFlag* f, const char* name, const char* value) {
    if (is_listed(f->choices, '|', value)) { return value; }
    if (!cli_any_text_(f)) { fatal("%s %s: must be one of %s", name, value, f->choices); }
    if (value[0] == '\0') { fatal("%s '': the value is empty; give one, or leave the flag out", name); }
    if (value[0] == '-') { // -o -n 20: the value was forgotten
        fatal("%s %s: the value looks like a flag; give %s a value, or write ./%s where that is its name", name, value,
              name, value);
    }
    return value;
}

// Appends a text to a list, which lasts as long as the program.
static inline void cli_append_(cli_texts* list, const char* value) {
    list->items = (const char**)realloc(list->items, ((size_t)list->count + 1) * sizeof(char*));
    if (list->items == NULL) { fatal("out of memory for the command line"); }
    list->items[list->count++] = value;
}

// Sets a flag, which messages call `name`, to a value as it is typed; one that it cannot have ends the program with one line. A
// text must last as long as the options.
static inline void cli_set(void* options, const CliFlag* f, const char* name, const char* value) {
    void* member = (char*)options + f->offset;
    if (f->type == CLI_texts) {
        cli_append_((cli_texts*)member, value);
        return;
    }
    if (f->type == CLI_text) {
        *(cli_text*)member = cli_text_(f, name, value);
        return;
    }
    if (f->type == CLI_toggle) {
        if (!is_listed("0|1", '|', value)) { fatal("%s %s: must be 0 or 1, or go without a value", name, value); }
        *(cli_toggle*)member = value[0] == '1';
        return;
    }
    if (f->type == CLI_whole && is_listed(f->choices, '|', value)) {
        *(cli_whole*)member = CLI_AUTO;
        return;
    }
    char* end;
    errno = 0;
    double number = f->type == CLI_whole ? (double)strtoll(value, &end, 10) : strtod(value, &end);
    int too_large = errno == ERANGE && fabs(number) > 1.0; // a limit below says so
    if (end == value || *end != '\0' || (!too_large && (errno == ERANGE || !isfinite(number)))) {
        fatal("%s %s: must be a %s%s%s", name, value, f->type == CLI_whole ? "whole number" : "number",
              f->choices != NULL ? ", or " : "", f->choices != NULL ? f->choices : "");
    }
    if (number < f->smallest) { fatal("%s %s: must be at least %.10g", name, value, f->smallest); }
    if (number > f->largest) { fatal("%s %s: must be at most %.10g", name, value, f->largest); }
    if (f->type == CLI_whole) {
        *(cli_whole*)member = (int)number;
    } else {
        *(cli_number*)member = number;
    }
}

// Reads the command line into options, which hold the defaults, and marks the flags that are given. --help prints the
// version and the usage text, --version the version alone; both exit with 0. Anything wrong ends with one line on stderr and
// exit code 1.
static inline void cli_parse_(void* options, unsigned char* typed, const CliProgram* p, int argc, char** argv) {
    for (int i = 1; i < argc; i++) {
        int is_help = strcmp(argv[i], "--help") == 0;
        if (is_help || strcmp(argv[i], "--version") == 0) {
            puts("flashgpt " FLASHGPT_VERSION);
            if (is_help) { cli_help(p, stdout); }
            if (fflush(stdout) != 0 && errno != EPIPE) { fatal("cannot write to stdout: %s", strerror(errno)); }
            exit(EXIT_SUCCESS);
        }
        if (argv[i][0] != '-') { fatal("%s: a flag was expected; ./%s --help lists them", argv[i], p->name); }
        const char* equals = strncmp(argv[i], "--", 2) == 0 ? strchr(argv[i], '=') : NULL;
        const CliFlag* flag = cli_find_(p, argv[i], equals ? (size_t)(equals - argv[i]) : strlen(argv[i]));
        const char* value = equals ? equals + 1 : argv[i + 1]; // argv[argc] is NULL
        int bare = flag->type == CLI_toggle && equals == NULL && (value == NULL || value[0] == '-');
        if (value == NULL && !bare) { fatal("flag %s needs a value; ./%s --help lists all flags", argv[i], p->name); }
        cli_set(options, flag, equals ? flag->long_name : argv[i], bare ? "1" : value);
        typed[flag - p->flags] = 1;
        i += equals == NULL && !bare;
    }
}

// Refuses a flag's file that cannot be read; NULL: the flag is not given. `way` is what to do, "" where that is plain.
static inline void cli_check_file(const char* flag, cli_text path, const char* way) {
    if (path != NULL && access(path, R_OK) != 0) { fatal("%s %s: %s%s", flag, path, strerror(errno), way); }
}

// The shortest decimal that is read back as the same number
static inline const char* cli_number_text_(char* text, size_t size, double number) {
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, size, "%.*g", digits, number);
        if (strtod(text, NULL) == number) { break; }
    }
    return text;
}

// The value of a flag as it can be typed, in `number` unless it is a text; "" for a text that is not given. Of texts that may
// be given again and again, how many there are.
static inline const char* cli_value(const void* options, const CliFlag* f, char number[64]) {
    const void* member = (const char*)options + f->offset;
    if (f->type == CLI_text) { return *(const cli_text*)member ? *(const cli_text*)member : ""; }
    if (f->type == CLI_number) { return cli_number_text_(number, 64, *(const cli_number*)member); }
    if (f->type == CLI_texts) {
        snprintf(number, 64, "%d given", ((const cli_texts*)member)->count);
        return number;
    }
    if (f->choices != NULL && *(const cli_whole*)member == CLI_AUTO) { return f->choices; }
    snprintf(number, 64, "%d", *(const cli_whole*)member); // toggles are int too
    return number;
}

// 1 if the options hold another value for a flag than the defaults do.
static inline int cli_differs(const void* options, const void* defaults, const CliFlag* f) {
    char numbers[2][64];
    return strcmp(cli_value(options, f, numbers[0]), cli_value(defaults, f, numbers[1])) != 0;
}

// ----------------------------------------------------------------------------
// The settings of a run, as the table that it prints first

// Prints the flags that differ from their defaults and those named in `always`, such as "--model|--batch"; NULL: all.
static inline void cli_print(const CliProgram* p, const void* options, const char* always) {
    char number[64];
    int others = 0;
    print_table_line();
    print_table_row("flag", "value");
    print_table_line();
    for (int i = 0; i < p->num_flags; i++) {
        const CliFlag* f = &p->flags[i];
        if (!(f->who & CLI_TRAINER)) { continue; }
        if (always == NULL || is_listed(always, '|', f->long_name) || cli_differs(options, p->defaults, f)) {
            const char* value = cli_value(options, f, number);
            print_table_row(f->long_name + 2, "%s", value[0] != '\0' ? value : "-");
        } else {
            others++;
        }
    }
    if (others > 0) { print_table_row("other flags", "%d at their defaults; --all-flags lists them", others); }
    print_table_line();
}

// ----------------------------------------------------------------------------
// From the table

#define CLI_NO_(...)
#define CLI_GROUP_(member, heading) {offsetof(Options, member), heading},
#define CLI_MEMBER_(member, s, l, type, ...) cli_##type member;
#define CLI_INDEX_(member, ...) CLI_INDEX_##member,
// clang-format off
#define CLI_ROW_(member, s, l, type, value, min, max, choices, who, effect, help)                                      \
    {s, l, CLI_##type, min, max, choices, who, CLI_##effect, help, #value, offsetof(Options, member),                  \
     sizeof(cli_##type)},
#define CLI_DEFAULT_(member, s, l, type, value, ...) CLI_DEFAULT_##type##_(value),
#define CLI_DEFAULT_text_(value) value
#define CLI_DEFAULT_whole_(value) value
#define CLI_DEFAULT_number_(value) value
#define CLI_DEFAULT_toggle_(value) value
#define CLI_DEFAULT_texts_(value) {value, 0}

// Declares Options, cli_defaults(), cli_parse() and cli_program, for a program with this name and these flags. FLAGS(X, G) is a
// table of
//     X(member, short name, long name, type, default, smallest, largest, choices, who, effect, help)
//     G(member, heading)    of the flags from this one on, in --help
// `type` is text, whole, number, toggle or texts. `choices` lists the words a text may be, separated by '|'; NULL if any
// text will do, and "-" where - alone will, too. A whole number may also be the word that is its choice, "auto" or "all".
// `effect` is FREE, RESULT or COMMAND. A default of CLI_MODEL is shown as that macro's text. of_cpu, of_gpu, example: see
// CliProgram.
#define CLI_DECLARE(FLAGS, name, of_cpu, of_gpu, example)                                                              \
    enum { FLAGS(CLI_INDEX_, CLI_NO_) NUM_CLI_FLAGS };                                                                 \
    typedef struct {                                                                                                   \
        FLAGS(CLI_MEMBER_, CLI_NO_)                                                                                    \
        unsigned char typed[NUM_CLI_FLAGS]; /* 1: on the command line */                                               \
    } Options;                                                                                                         \
    static const CliFlag cli_flags[] = {FLAGS(CLI_ROW_, CLI_NO_)};                                                     \
    static const CliGroup cli_groups[] = {FLAGS(CLI_NO_, CLI_GROUP_)};                                                 \
    static const Options cli_default_options = {FLAGS(CLI_DEFAULT_, CLI_NO_){0}};                                      \
    static const CliProgram cli_program = {name, CLI_MODEL, of_cpu, of_gpu, example, cli_flags, NUM_CLI_FLAGS,         \
        cli_groups, sizeof(cli_groups) / sizeof(cli_groups[0]), &cli_default_options};                                 \
    __attribute__((unused)) static inline Options cli_defaults(void) { return cli_default_options; }                   \
    static inline Options cli_parse(int argc, char** argv) {                                                           \
        Options o = cli_default_options;                                                                               \
        cli_parse_(&o, o.typed, &cli_program, argc, argv);                                                             \
        return o;                                                                                                      \
    }
// clang-format on

#endif
