// llmc/trainer.h: a model file that is replaced while a trainer starts is refused. Other claims on a run: test_training.sh.
#define TESTING
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
    t.options.batch = 1, t.options.time = 8;
    trainer_build_model(&t, path);
    gpt2_free(t.model);
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
    return unit_end();
}
