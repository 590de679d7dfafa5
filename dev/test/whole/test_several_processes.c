/*
The CPU trainer's model in several processes, over the loopback: weights, moments, losses and norms have the bits of a
reference that adds the gradients of single micro-batches by the definition of the tree, in one process, whatever the number
of processes and of micro-steps, with shards (zero 1) and without.
*/
#include "train_gpt2.c"

#include "dev/test/fixtures/comm_processes.h"
#include "dev/test/fixtures/parameters.h"

#include "llmc/base/rand.h"

enum { B = 2, T = 16, STEPS = 3, MOST_MICRO_BATCHES = 24 };
static const uint32_t NOT_WRITTEN = 0x7fc0dead; // a NaN that nothing computes

static GPT2Config config;
static size_t n; // parameters

// What a process has at the end. Of a sharded block it writes its shard.
typedef struct {
    float *weights, *m, *v;
    float losses[STEPS], norms[STEPS];
} Result;
static Result *reference, *results; // results (MOST); in memory that all processes share

static struct {
    int micro_batches; // of a step, over all processes
    int zero, sum_any;
    int muon;
} run_now;

// Second moments: with Muon the matrices of the layers have none.
static size_t second_moments(void) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    return layout_second_moments(table, config, run_now.muon);
}

static float* shared_floats(size_t count) {
    void* p = mmap(NULL, count * sizeof(float), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) { fatal("no shared memory"); }
    return (float*)p;
}

static void results_clear(Result* r) {
    float* blocks[] = {r->weights, r->m, r->v};
    for (int b = 0; b < 3; b++) {
        for (size_t i = 0; i < n; i++) { memcpy(&blocks[b][i], &NOT_WRITTEN, sizeof(float)); }
    }
    memset(r->losses, 0xff, sizeof(r->losses));
    memset(r->norms, 0xff, sizeof(r->norms));
}

static int same_floats(const float* a, const float* b, size_t count) {
    return memcmp(a, b, count * sizeof(float)) == 0;
}

// ----------------------------------------------------------------------------
// A step

// Micro-batch `index` of a step: (B,T) inputs and targets
static void draw_batch(int* inputs, int* targets, int step, int index) {
    mt19937_state rng;
    manual_seed(&rng, (unsigned)(1000 * step + index));
    for (int i = 0; i < B * T; i++) {
        inputs[i] = (int)(randint32(&rng) % (unsigned)config.vocab_size);
        targets[i] = (int)(randint32(&rng) % (unsigned)config.vocab_size);
    }
}

static GPT2* new_model(Comm* c, int micro_steps) {
    GPT2* model;
    GPT2Settings settings = gpt2_default_settings();
    settings.comm = c, settings.zero = run_now.zero, settings.sum_any = run_now.sum_any;
    settings.micro_steps = micro_steps, settings.muon = run_now.muon;
    float* params = (float*)malloc_check(n * sizeof(float));
    gpt2_init_parameters(params, config, 42);
    check(gpt2_create(&model, config, settings));
    check(gpt2_allocate(model, B, T, 1));
    check(gpt2_set_parameters(model, params));
    free(params);
    return model;
}

// This process's micro-batches of a step
static void compute_gradients(GPT2* model, int step) {
    int inputs[B * T], targets[B * T], K = run_now.micro_batches / model->info.size;
    for (int i = 0; i < K; i++) {
        draw_batch(inputs, targets, step, model->info.rank * K + i);
        check(gpt2_forward(model, inputs, B, T));
        check(gpt2_backward(model, inputs, targets, K, i));
    }
}

static void update(GPT2* model, Result* r, int step) {
    check(gpt2_grad_norm(model, &r->norms[step]));
    r->losses[step] = model->info.mean_loss;
    check(gpt2_update(model, 1e-2f, 0.9f, 0.95f, 1e-8f, 0.5f, 1.0f, step + 1));
    check(gpt2_synchronize(model));
}

static void take_result(GPT2* model, Result* r) {
    size_t bytes = n * sizeof(float);
    check(gpt2_copy_out(model, r->weights, GPT2_WEIGHTS, 0, bytes));
    check(gpt2_copy_out(model, r->m, GPT2_MOMENTS1, 0, bytes));
    check(gpt2_copy_out(model, r->v, GPT2_MOMENTS2, 0, second_moments() * sizeof(float)));
}

static void train(Comm* c) {
    GPT2* model = new_model(c, run_now.micro_batches / comm_size(c));
    Result* r = &results[comm_rank(c)];
    for (int step = 0; step < STEPS; step++) {
        compute_gradients(model, step);
        update(model, r, step);
        CLAIM(model->info.non_finite_weights == 0);
    }
    take_result(model, r);
    gpt2_free(model);
}

// ----------------------------------------------------------------------------
// The reference: gradients of single micro-batches, added by the definition of the tree

static float* leaves; // (MOST_MICRO_BATCHES, n)

static float chain(int first, int count, size_t i) {
    float sum = leaves[(size_t)first * n + i];
    for (int k = 1; k < count; k++) { sum += leaves[(size_t)(first + k) * n + i]; }
    return sum;
}
static float tree(int first, int count, size_t i) {
    if (count % 2 == 1) { return chain(first, count, i); }
    float left = tree(first, count / 2, i);
    return left + tree(first + count / 2, count / 2, i);
}

static void add_by_definition(int micro_batches, int parts) {
    GPT2* model = new_model(NULL, micro_batches);
    float* sums = (float*)malloc_check(n * sizeof(float));
    leaves = (float*)malloc_check(MOST_MICRO_BATCHES * n * sizeof(float));
    int inputs[B * T], targets[B * T], part = micro_batches / parts;
    for (int step = 0; step < STEPS; step++) {
        float losses[MOST_MICRO_BATCHES] = {0};
        for (int leaf = 0; leaf < micro_batches; leaf++) { // the first micro-step overwrites
            draw_batch(inputs, targets, step, leaf);
            check(gpt2_forward(model, inputs, B, T));
            check(gpt2_backward(model, inputs, targets, micro_batches, 0));
            check(gpt2_get_gradients(model, leaves + (size_t)leaf * n));
            losses[leaf] = (float)gpt2_mean_loss(model);
        }
        for (size_t i = 0; i < n; i++) {
            sums[i] = tree(0, part, i);
            for (int p = 1; p < parts; p++) { sums[i] += tree(p * part, part, i); }
        }
        model->leaf.first = 0;
        check(gpt2_copy_in(model, GPT2_GRADIENTS, sums, 0, n * sizeof(float)));
        memcpy(model->micro_losses, losses, (size_t)micro_batches * sizeof(float));
        update(model, reference, step);
    }
    take_result(model, reference);
    free(sums);
    free(leaves);
    gpt2_free(model);
}

// In a process of its own: once OpenMP has threads, a fork of this process would wait for them for ever.
static void train_reference(int micro_batches, int parts) {
    run_now.micro_batches = micro_batches, run_now.zero = 1, run_now.sum_any = 0;
    if (unit_fork()) {
        add_by_definition(micro_batches, parts);
        _exit(0);
    }
    CHECK(unit_wait().exit_code == 0);
}

// ----------------------------------------------------------------------------
// The same bits

// 1 where each moment has been written by exactly one of the processes, and has the reference's bits.
static int shards_are(float* const* moments, int size, const float* expected, size_t count) {
    int ok = 1;
    for (size_t i = 0; i < count && ok; i++) {
        int writers = 0;
        for (int r = 0; r < size; r++) {
            if (memcmp(&moments[r][i], &NOT_WRITTEN, sizeof(float)) == 0) { continue; }
            writers++;
            ok = ok && same_floats(&moments[r][i], &expected[i], 1);
        }
        ok = ok && writers == 1;
    }
    return ok;
}

static void check_run(int size, int micro_batches, int zero) {
    float *m[MOST], *v[MOST];
    run_now.micro_batches = micro_batches, run_now.zero = zero, run_now.sum_any = 0;
    for (int r = 0; r < size; r++) {
        results_clear(&results[r]);
        m[r] = results[r].m, v[r] = results[r].v;
    }
    run(size, train, NULL);
    int ok = CHECK(all_ended_well(size));
    for (int r = 0; r < size; r++) {
        ok = CHECK(same_floats(results[r].losses, reference->losses, STEPS)) && ok;
        ok = CHECK(same_floats(results[r].norms, reference->norms, STEPS)) && ok;
        ok = CHECK(same_floats(results[r].weights, reference->weights, n)) && ok;
        if (zero) { continue; }
        ok = CHECK(same_floats(m[r], reference->m, n) && same_floats(v[r], reference->v, second_moments())) && ok;
    }
    if (zero) { ok = CHECK(shards_are(m, size, reference->m, n)) && ok; }
    if (zero) { ok = CHECK(shards_are(v, size, reference->v, second_moments())) && ok; }
    if (!ok) {
        printf("    %d processes, %d micro-batches, zero %d, muon %d\n", size, micro_batches, zero, run_now.muon);
    }
}

static void any_power_of_two_has_the_same_bits(void) {
    static const int micro_batches[] = {4, 12, 16}; // 12: groups of three
    train_reference(1, 1);
    check_run(1, 1, 1);
    for (int i = 0; i < 3; i++) {
        train_reference(micro_batches[i], 1);
        for (int size = 1; size <= 4; size *= 2) {
            for (int zero = 0; zero < 2; zero++) { check_run(size, micro_batches[i], zero); }
        }
    }
}

// With Muon a process computes whole matrices, so any number of processes has the bits of one.
static void muon_has_the_same_bits(void) {
    Result adamw = {.weights = (float*)malloc_check(n * sizeof(float))};
    train_reference(4, 1);
    memcpy(adamw.weights, reference->weights, n * sizeof(float));
    run_now.muon = 1;
    train_reference(4, 1);
    CHECK(!same_floats(adamw.weights, reference->weights, n));
    for (int size = 1; size <= 4; size *= 2) {
        for (int zero = 0; zero < 2; zero++) { check_run(size, 4, zero); }
    }
    train_reference(6, 3);
    check_run(3, 6, 1);
    run_now.muon = 0;
    free(adamw.weights);
}

static void other_numbers_have_the_order_of_their_parts(void) {
    train_reference(12, 3);
    for (int zero = 0; zero < 2; zero++) { check_run(3, 12, zero); }
    train_reference(10, 5);
    check_run(5, 10, 1);
}

// The data must be able to tell one order from another.
static void another_order_has_other_bits(void) {
    Result tree_of_one = {.weights = (float*)malloc_check(n * sizeof(float))};
    train_reference(12, 1);
    memcpy(tree_of_one.weights, reference->weights, n * sizeof(float));
    train_reference(12, 3);
    CHECK(!same_floats(tree_of_one.weights, reference->weights, n));
    free(tree_of_one.weights);
}

// In any order: nearly the same, in one buffer. AdamW's first steps are signs where a gradient is near 0: moments show it.
static void any_order_is_near(void) {
    train_reference(12, 1);
    run_now.zero = 1, run_now.sum_any = 1;
    for (int r = 0; r < 2; r++) { results_clear(&results[r]); }
    run(2, train, NULL);
    CHECK(all_ended_well(2));
    for (int step = 0; step < STEPS; step++) {
        CHECK_NEAR(results[1].losses[step], reference->losses[step], 1e-5);
        CHECK_NEAR(results[1].norms[step], reference->norms[step], 1e-4 * (double)reference->norms[step]);
    }
}

// ----------------------------------------------------------------------------
// Faults and their traces

// A loss that is not finite in one process: no process updates, and the next step is as if there had been none.
static void bad_loss(Comm* c) {
    Result* r = &results[comm_rank(c)];
    GPT2* model = new_model(c, run_now.micro_batches / comm_size(c));
    for (int step = 0; step < STEPS; step++) {
        compute_gradients(model, step);
        if (comm_rank(c) == 1) { model->micro_losses[model->micro_steps] = NAN; }
        update(model, r, step);
        CLAIM(isnan(r->losses[step]) && isfinite(r->norms[step]) && model->info.non_finite_weights == 0);
        compute_gradients(model, step);
        update(model, r, step);
    }
    take_result(model, r);
    gpt2_free(model);
}

static void a_bad_loss_of_one_stops_the_update_of_all(void) {
    train_reference(4, 1);
    run_now.zero = 1;
    for (int r = 0; r < 2; r++) { results_clear(&results[r]); }
    run(2, bad_loss, NULL);
    CHECK(all_ended_well(2));
    CHECK(same_floats(results[0].weights, reference->weights, n) &&
          same_floats(results[1].weights, reference->weights, n));
}

// A gradient of one process that is not finite is one of the sum, whoever's shard it is in.
static void bad_gradient(Comm* c) {
    float norm, nan = NAN;
    GPT2* model = new_model(c, 1);
    compute_gradients(model, 0);
    check(gpt2_grad_norm(model, &norm));
    CLAIM(isfinite(norm));
    if (comm_rank(c) == 2) { check(gpt2_copy_in(model, GPT2_WEIGHTS, &nan, n / 2 * sizeof(float), sizeof(nan))); }
    compute_gradients(model, 0);
    check(gpt2_grad_norm(model, &norm));
    CLAIM(isnan(norm) && isnan(model->info.mean_loss));
    gpt2_free(model);
}

// Weights that are kept, in shards of several processes, are counted by all.
static void kept_weights(Comm* c) {
    const size_t elements[] = {0, 70000, n / 2, n - 100, n - 1}; // in wte, twice; a layer; a vector; lnfb
    float huge = 3e38f, weight, after, moment;
    Result ignored;
    GPT2* model = new_model(c, run_now.micro_batches / comm_size(c));
    compute_gradients(model, 0);
    for (int i = 0; i < 5; i++) {
        check(gpt2_copy_in(model, GPT2_MOMENTS1, &huge, elements[i] * sizeof(float), sizeof(float)));
    }
    check(gpt2_copy_out(model, &weight, GPT2_WEIGHTS, elements[2] * sizeof(float), sizeof(float)));
    update(model, &ignored, 0);
    CLAIM(model->info.non_finite_weights == 5);
    check(gpt2_copy_out(model, &after, GPT2_WEIGHTS, elements[2] * sizeof(float), sizeof(float)));
    CLAIM(same_floats(&weight, &after, 1));
    for (int i = 0; i < 5; i++) {
        memcpy(&moment, &NOT_WRITTEN, sizeof(moment));
        check(gpt2_copy_out(model, &moment, GPT2_MOMENTS1, elements[i] * sizeof(float), sizeof(float)));
        int own = !model->info.sharded || layout_run(gpt2_layout(model), 0, elements[i], 1).rank == comm_rank(c);
        CLAIM(own ? same_floats(&moment, &huge, 1) : memcmp(&moment, &NOT_WRITTEN, sizeof(moment)) == 0);
    }
    compute_gradients(model, 1);
    model->micro_losses[model->info.rank * model->micro_steps] = NAN;
    update(model, &ignored, 1);
    CLAIM(model->info.non_finite_weights == 0); // no update, and none of the step before
    gpt2_free(model);
}

// The search looks through a process's shard, all of it, and names tensor and layer.
static void search(Comm* c) {
    char text[256], expected[256];
    float norm, nan = NAN, zero = 0.0f;
    GPT2* model = new_model(c, 1);
    size_t offset = 0;
    compute_gradients(model, 0);
    check(gpt2_grad_norm(model, &norm));
    check(gpt2_find_non_finite(model, text, sizeof(text)));
    CLAIM(text[0] == '\0');
    for (int i = 0; i < NUM_PARAMETER_TENSORS; offset += model->info.table[i++].count) {
        const GPT2Parameter* p = &model->info.table[i];
        size_t at = offset + p->count - 1;
        check(gpt2_copy_in(model, GPT2_MOMENTS2, &nan, at * sizeof(float), sizeof(nan)));
        check(gpt2_find_non_finite(model, text, sizeof(text)));
        int length = snprintf(expected, sizeof(expected), "update: second moment of %s", p->name);
        if (p->layers > 1) {
            snprintf(expected + length, sizeof(expected) - (size_t)length, ", layer %zu", p->layers - 1);
        }
        int own = layout_run(gpt2_layout(model), 0, at, 1).rank == comm_rank(c);
        CLAIM(strcmp(text, own ? expected : "") == 0);
        check(gpt2_copy_in(model, GPT2_MOMENTS2, &zero, at * sizeof(float), sizeof(zero)));
    }
    gpt2_free(model);
}

// With gpt2_set_local a process computes a step by itself, while the others do something else.
static void local_step(Comm* c) {
    float norm, loss = 0.0f;
    GPT2* model = new_model(c, 2);
    if (comm_rank(c) == 1) {
        gpt2_set_local(model, 1);
        compute_gradients(model, 0);
        check(gpt2_grad_norm(model, &norm));
        for (int i = 0; i < 2; i++) { loss += model->micro_losses[2 + i] / 2.0f; }
        CLAIM(fabsf(model->info.mean_loss - loss) < 1e-6f && isfinite(norm) && norm > 0.0f);
        gpt2_set_local(model, 0);
    }
    check(comm_barrier(c));
    compute_gradients(model, 0);
    update(model, &results[comm_rank(c)], 0);
    gpt2_free(model);
}

// A snapshot of a shard is what copies were at its moment, and leaves the other shards' numbers alone.
static void snapshot(Comm* c) {
    static const GPT2Block blocks[] = {GPT2_WEIGHTS, GPT2_MOMENTS1, GPT2_MOMENTS2};
    Result* r = &results[comm_rank(c)];
    GPT2* model = new_model(c, run_now.micro_batches / comm_size(c));
    float *copies = r->weights, *read = (float*)malloc_check(n * sizeof(float));
    compute_gradients(model, 0);
    update(model, r, 0);
    check(gpt2_allocate_snapshot(model));
    check(gpt2_take_snapshot(model));
    for (int b = 0; b < 3; b++) {
        for (size_t i = 0; i < n; i++) { memcpy(&copies[i], &NOT_WRITTEN, sizeof(float)); }
        size_t bytes = gpt2_block_bytes(model, blocks[b]);
        memcpy(read, copies, n * sizeof(float));
        check(gpt2_copy_out(model, copies, blocks[b], 0, bytes));
        for (size_t at = 0; at < bytes; at += 9972) { // numbers in two parts
            check(gpt2_read_snapshot(model, (char*)read + at, blocks[b], at, bytes - at < 9972 ? bytes - at : 9972));
        }
        CLAIM(same_floats(read, copies, n));
        compute_gradients(model, 1); // the model goes on; the next block is compared with the snapshot's moment
        update(model, r, 1);
        check(gpt2_take_snapshot(model));
    }
    free(read);
    gpt2_free(model);
}

static void run_well(int size, Body body, int micro_batches, int zero) {
    run_now.micro_batches = micro_batches, run_now.zero = zero, run_now.sum_any = 0;
    run(size, body, NULL);
    CHECK(all_ended_well(size));
}

// A step that needs more than was allocated is refused, and nothing is changed.
static void steps_without_room_are_refused(void) {
    int inputs[B * T], targets[B * T];
    run_now.sum_any = 0;
    GPT2* model = new_model(NULL, 4);
    draw_batch(inputs, targets, 0, 0);
    check(gpt2_forward(model, inputs, B, T));
    CHECK(gpt2_backward(model, inputs, targets, 5, 0) == STATUS_ERROR && strstr(status_message(), "made for 4"));
    CHECK(gpt2_backward(model, inputs, targets, 8, 0) == STATUS_ERROR && gpt2_backward(model, inputs, targets, 4, 4));
    CHECK(gpt2_backward(model, inputs, targets, 3, 0) == STATUS_OK);
    gpt2_free(model);
}

int main(void) {
    use_threads(1); // processes enough
    config = gpt2_config_from_descriptor("gpt2:l2c96h3t32", 1000);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    n = gpt2_parameters(table, config);
    results = (Result*)(void*)shared_floats((MOST + 1) * sizeof(Result) / sizeof(float));
    reference = &results[MOST];
    for (int r = 0; r <= MOST; r++) {
        results[r].weights = shared_floats(n), results[r].m = shared_floats(n), results[r].v = shared_floats(n);
    }
    any_power_of_two_has_the_same_bits();
    muon_has_the_same_bits();
    other_numbers_have_the_order_of_their_parts();
    another_order_has_other_bits();
    any_order_is_near();
    a_bad_loss_of_one_stops_the_update_of_all();
    run_well(3, bad_gradient, 3, 1);
    for (int zero = 0; zero < 2; zero++) { run_well(4, kept_weights, 4, zero); }
    run_well(4, search, 4, 1);
    run_well(2, local_step, 4, 1);
    for (int i = 0; i < 4; i++) {
        run_now.muon = i / 2;
        run_well(3, snapshot, 6, i % 2);
    }
    run_now.muon = 0;
    steps_without_room_are_refused(); // last: in this process
    return unit_end();
}
