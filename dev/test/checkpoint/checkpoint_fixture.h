/*
A run to be saved, for the tests of checkpoint.h and checkpoint/writer.h: a small model of known numbers, a loader, outlier
detectors and an identity, in the test's own folder.
*/
#ifndef CHECKPOINT_FIXTURE_H
#define CHECKPOINT_FIXTURE_H

#include "llmc/checkpoint/checkpoint.h"

#include "dev/test/fixtures/model_stub.h"
#include "dev/test/fixtures/unit.h"

enum { STEP = 12, V = 100 };

static float* numbers(size_t n, float first) {
    float* p = (float*)malloc_check(n * sizeof(float));
    for (size_t i = 0; i < n; i++) { p[i] = first + (float)i; }
    return p;
}

static inline GPT2 make_model_of(GPT2Config config, int master_weights, float first) {
    GPT2 model;
    memset(&model, 0, sizeof(model));
    model.info.config = config;
    model.info.num_parameters = gpt2_parameters(model.info.table, config);
    model.info.weight_bytes = sizeof(float);
    model.info.B = 2, model.info.T = 4;
    size_t n = model.info.num_parameters;
    model.blocks[GPT2_WEIGHTS] = numbers(n, first);
    model.blocks[GPT2_MOMENTS1] = numbers(n, first + 0.25f);
    model.blocks[GPT2_MOMENTS2] = numbers(n, first + 0.5f);
    model.blocks[GPT2_MASTER_WEIGHTS] = master_weights ? numbers(n, first + 0.75f) : NULL;
    return model;
}

static inline GPT2 make_model(int master_weights, float first) {
    static const GPT2Config small = {8, V, 128, 1, 1, 32, 0};
    return make_model_of(small, master_weights, first);
}

static inline void free_model(GPT2* model) {
    for (int i = 0; i <= GPT2_MASTER_WEIGHTS; i++) {
        free(model->blocks[i]);
        free(model->snapshot[i]);
    }
}

static inline void open_loader(DataLoader* d, int shuffle) {
    const HostAlloc host_memory = {NULL, NULL};
    uint16_t tokens[101];
    for (int i = 0; i <= 100; i++) { tokens[i] = (uint16_t)(i % V); }
    const char* path = unit_path("tokens.bin");
    if (!file_exists(path)) {
        unit_write_format(path, TOKENS_MAGIC_16, TOKENS_VERSION_16, 101, V, tokens, sizeof(tokens));
    }
    dataloader_open(d, path, 2, 4, shuffle, 42, V, host_memory);
}

static inline Outliers make_outliers(void) {
    Outliers o;
    memset(&o, 0, sizeof(o));
    for (int i = 0; i < 200; i++) {
        outlier_update(&o.loss, 5.0 - 0.01 * i);
        outlier_update(&o.grad_norm, i % 7);
    }
    return o;
}

static inline const char* folder(void) {
    unit_path("tokens.bin"); // makes the directory
    return unit_folder;
}

static char settings_text[] = "result --seed 42\ndata training-data 1 file, 101 tokens\n";
static const RunIdentity identity = {0x1122334455667788u, 0x99aabbccddeeff01u, 0x23456789abcdef01u, settings_text,
                                     sizeof(settings_text) - 1};

#endif
