// llmc/trainer_open.h: a model file that is replaced while a trainer starts is refused. Other claims on a run:
// test_training.sh.
#include "train_gpt2.c"

#include "unit.h"

static const char *path, *replacement; // the model's file, and what becomes of it while memory is allocated

static Status allocate_and_replace(GPT2* model, int B, int T, int training) {
    if (rename(replacement, path) != 0) { fatal("cannot rename %s: %s", replacement, strerror(errno)); }
    return gpt2_allocate(model, B, T, training);
}
#define gpt2_allocate allocate_and_replace
#include "llmc/trainer.h"
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
    trainer_note_unchecked_(&t, "model.bin");
}

static void files_without_checksums_are_noted(void) {
    static const char* end = " (made by another program or an older version): damage would go unnoticed\n";
    char line[512];
    for (int every = 0; every < 2; every++) {
        if (unit_fork()) {
            print_unchecked(every);
            _exit(0);
        }
        UnitChild child = unit_wait();
        snprintf(line, sizeof(line), "note: no checksums in %s%s%s%s",
                 every ? "model.bin, 3 of 3 files of train_*.bin, " : "", "val.bin",
                 every ? ", gpt2_tokenizer.bin" : "", end);
        if (!CHECK(strcmp(child.text, line) == 0)) { printf("    is %s    expected %s", child.text, line); }
    }
}

int main(void) {
    path = unit_path("model.bin"), replacement = unit_path("other.bin");
    static const char* others[] = {"gpt2:l1c32h1t16", "gpt2:l3c32h1t16", "gpt2:l2c64h1t16", "gpt2:l2c64h2t8"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        write_model(path, "gpt2:l2c64h2t16", 1);
        write_model(replacement, others[i], 1);
        CHECK_FATAL("model.bin|has changed", build());
    }
    write_model(path, "gpt2:l2c64h2t16", 1);
    write_model(replacement, "gpt2:l2c64h2t16", 2); // a model of the same sizes is as good
    CHECK_ENDS_WELL(build());
    files_without_checksums_are_noted();
    return unit_end();
}
