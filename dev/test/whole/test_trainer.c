// llmc/run/open.h: a model file that is replaced while a trainer starts is refused, and so is a -d that
// cannot be, with one that can. Other claims on a run: test_training.sh.
#include "train_gpt2.c"

#include "dev/test/fixtures/unit.h"

static const char *path, *replacement; // the model's file, and what becomes of it while memory is allocated

static Status allocate_and_replace(GPT2* model, int B, int T, int training) {
    if (rename(replacement, path) != 0) { fatal("cannot rename %s: %s", replacement, strerror(errno)); }
    return gpt2_allocate(model, B, T, training);
}
#define gpt2_allocate allocate_and_replace
#include "llmc/run/trainer.h"
#undef gpt2_allocate

static void write_model(const char* to, const char* descriptor, unsigned seed) {
    GPT2Config config = gpt2_config_from_descriptor(descriptor, 100);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t n = gpt2_parameters(table, config);
    float* params = (float*)malloc_check(n * sizeof(float));
    gpt2_init_parameters(params, config, seed);
    check(model_file_write(to, config, MODEL_VERSION_FP32, 0, params));
    free(params);
}

static void build(void) {
    static Trainer t;
    t.options = cli_defaults();
    t.options.batch = 1, t.options.time = 8, t.options.recompute = 1;
    trainer_build_model(&t, trainer_config(&t, path), path);
    gpt2_free(t.model);
}

// One line names every file without checksums, and of a pattern how many.
static void print_unchecked(int every) {
    static Trainer t;
    memset(&t, 0, sizeof(t));
    t.options = cli_defaults();
    t.options.train_data = "train_*.bin", t.options.val_data = "val.bin";
    t.train.num_shards = 3, t.train.num_unchecked = every ? 3 : 0;
    t.val.num_shards = 1, t.val.num_unchecked = 1;
    t.unchecked_model = every;
    t.tokenizer.unchecked = every;
    strcpy(t.tokenizer_path, "gpt2_tokenizer.bin");
    dup2(STDERR_FILENO, STDOUT_FILENO);
    setvbuf(stdout, NULL, _IOLBF, 0);
    trainer_note_all_unchecked_(&t, "model.bin");
}

static void files_without_checksums_are_noted(void) {
    static const char* const names[2] = {"val.bin\0", "model.bin\0"
                                                      "3 of 3 files of train_*.bin\0"
                                                      "val.bin\0"
                                                      "gpt2_tokenizer.bin\0"};
    for (int every = 0; every < 2; every++) {
        char lines[1024] = "";
        if (unit_fork()) {
            print_unchecked(every);
            _exit(0);
        }
        UnitChild child = unit_wait();
        for (const char* name = names[every]; name[0] != '\0'; name += strlen(name) + 1) {
            size_t n = strlen(lines);
            snprintf(lines + n, sizeof(lines) - n,
                     "note: no checksums in %s (made by another program or an older version): damage would go "
                     "unnoticed\n",
                     name);
        }
        if (!CHECK(strcmp(child.text, lines) == 0)) { printf("    is %s    expected %s", child.text, lines); }
    }
}

// 1 where the -d is taken, by itself or with -b auto (B 0); else `named` is the one that the error names, 0 if it names none.
static int total_is_taken(int d, int B, int T, int processes, int* named) {
    if (unit_fork()) {
        Options o = cli_defaults();
        o.batch = B, o.time = T, o.total_batch = d;
        B > 0 ? trainer_check_batch_(&o, processes) : run_plan_check_total(d, B, T, processes);
        _exit(o.total_batch < 1 || o.total_batch % ((B ? B : 1) * T * processes) != 0 ? 7 : 0);
    }
    UnitChild child = unit_wait();
    const char* names = strstr(child.text, "; -d ");
    *named = names ? atoi(names + 5) : 0;
    CHECK(child.exit_code == 0 || unit_is_user_error(&child));
    return child.exit_code == 0;
}

// Whatever the -d and the number of processes, the one that is named instead is taken, and none is nearer above it.
static void a_total_batch_that_cannot_be_names_one_that_can(void) {
    static const int totals[] = {0, 1, 100, 511, 512, 513, 1000, 98304, 100000, INT_MAX},
                     processes[] = {1, 2, 3, 8, 24};
    for (size_t i = 0; i < sizeof(totals) / sizeof(totals[0]); i++) {
        for (size_t k = 0; k < sizeof(processes) / sizeof(processes[0]); k++) {
            for (int B = 0; B <= 4; B += 4) {
                int d = totals[i], P = processes[k], unit = (B ? B : 1) * 128 * P, named, none;
                int taken = total_is_taken(d, B, 128, P, &named);
                int right = taken ? named == 0 && d > 0 && d % unit == 0
                                  : named > 0 && total_is_taken(named, B, 128, P, &none) && named - d <= unit &&
                                        (named > d || d > INT_MAX - unit);
                if (!CHECK(right)) { printf("    -d %d, -b %d, %d processes: -d %d\n", d, B, P, named); }
            }
        }
    }
    int none;
    CHECK(total_is_taken(-1, 4, 128, 3, &none)); // a micro-batch of each
    CHECK(!total_is_taken(-1, 1 << 16, 1 << 14, 3, &none) && none == 0);
    CHECK(!total_is_taken(1 << 30, 1 << 16, 1 << 14, 3, &none) && none == 0); // none is as large
    CHECK_FATAL("-d 1000 is not a multiple of -b 4 times -t 128 times 3 processes = 1536 tokens; -d 1536 is",
                run_plan_check_total(1000, 4, 128, 3));
    CHECK_FATAL("-d 1000 is not a multiple of -t 128 = 128 tokens; -d 1024 is", run_plan_check_total(1000, 0, 128, 1));
}

int main(void) {
    path = unit_path("model.bin"), replacement = unit_path("other.bin");
    static const char* others[] = {"gpt2:l1c32h1t16", "gpt2:l3c32h1t16", "gpt2:l2c64h1t16", "gpt2:l2c64h2t8"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        write_model(path, "gpt2:l2c64h2t16", 1);
        write_model(replacement, others[i], 1);
        CHECK_FATAL("model.bin|changed while this run was starting", build());
    }
    write_model(path, "gpt2:l2c64h2t16", 1);
    write_model(replacement, "gpt2:l2c64h2t16", 2); // a model of the same sizes is as good
    CHECK_ENDS_WELL(build());
    files_without_checksums_are_noted();
    a_total_batch_that_cannot_be_names_one_that_can();
    return unit_end();
}
