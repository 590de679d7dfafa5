/*
One training step (forward, backward, update) of a CPU trainer, timed. Compiled twice by cpu_step.sh, with TRAINER
naming our train_gpt2.c or llm.c's (and LLMC defined), which both run from the same weights:

    cpu_step new d12 model.bin         (ours only) writes a model with initial weights
    cpu_step model.bin B T steps       prints the loss, the milliseconds of each step, and the peak memory in MiB
*/
#define TESTING // leaves out the main of llm.c
#include TRAINER
#ifndef LLMC
#include "llmc/files/model_file.h"
#include "llmc/base/process_start.h"
#endif

#include <sys/resource.h>

static double seconds_now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#ifdef LLMC

static GPT2 model;

static void open_model(const char* path, int B, int T) {
    (void)B, (void)T;
    gpt2_build_from_checkpoint(&model, path);
}

static float train_step(int* inputs, int* targets, int B, int T, int step) {
    gpt2_forward(&model, inputs, targets, (size_t)B, (size_t)T);
    gpt2_zero_grad(&model);
    gpt2_backward(&model);
    gpt2_update(&model, 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, step);
    return model.mean_loss;
}

#else

static GPT2* model;

static void new_model(const char* descriptor, const char* path) {
    GPT2Config config = gpt2_config_from_descriptor(descriptor, 50257);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t n = gpt2_parameters(table, config);
    float* params = (float*)malloc_check(n * sizeof(float));
    gpt2_init_parameters(params, config, 42);
    check(model_file_write(path, config, MODEL_VERSION_FP32, 0, params));
    free(params);
}

static void open_model(const char* path, int B, int T) {
    ModelHeader header;
    float* params;
    check(gpt2_load_parameters(&params, path, &header));
    check(gpt2_create(&model, header.config, gpt2_default_settings()));
    check(gpt2_allocate(model, B, T, 1));
    check(gpt2_set_parameters(model, params));
    free(params);
}

// As the trainer does it: with the norm of the gradients, by which they are clipped; llm.c's has no clipping.
static float train_step(int* inputs, int* targets, int B, int T, int step) {
    float norm;
    check(gpt2_forward(model, inputs, B, T));
    check(gpt2_backward(model, inputs, targets, 1, 0));
    check(gpt2_grad_norm(model, &norm));
    check(gpt2_update(model, 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, step));
    return gpt2_info(model)->mean_loss;
}

#endif

int main(int argc, char** argv) {
#ifndef LLMC
    process_start(argv);
    if (argc == 4 && strcmp(argv[1], "new") == 0) {
        new_model(argv[2], argv[3]);
        return 0;
    }
#endif
    if (argc != 5) {
        fprintf(stderr, "error: usage: %s model.bin B T steps\n", argv[0]);
        return EXIT_FAILURE;
    }
    int B = atoi(argv[2]), T = atoi(argv[3]), steps = atoi(argv[4]);
    int* tokens = malloc((size_t)(B * T + 1) * sizeof(int));
    unsigned state = 1;
    for (int i = 0; i <= B * T; i++) {
        state = state * 1664525u + 1013904223u;
        tokens[i] = (int)((state >> 8) % 50257);
    }
    open_model(argv[1], B, T);
    for (int step = 1; step <= steps; step++) {
        double start = seconds_now();
        float loss = train_step(tokens, tokens + 1, B, T, step);
        printf("step %d loss %f ms %.1f\n", step, loss, 1e3 * (seconds_now() - start));
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("peak_mib %.0f\n", (double)usage.ru_maxrss / 1024);
    free(tokens);
    return 0;
}
