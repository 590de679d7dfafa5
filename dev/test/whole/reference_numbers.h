/*
What a trainer does about numbers that are not finite, and how it shows its state (gpt2_model.h): a step whose loss or norm
is not finite changes nothing, nor does a weight whose new value is not; the search names the tensor; the digest changes
with every bit; a snapshot stays what it was while the model trains; padding and unused positions stay zero. Part of
reference_test.h.
*/
#ifndef REFERENCE_NUMBERS_H
#define REFERENCE_NUMBERS_H

#include "dev/test/fixtures/debug_state.h"
#include "llmc/model/gpt2_model.h"
#include "llmc/model/host_device.h"
#include "llmc/base/utils.h"
#include "dev/test/fixtures/parameters.h"

static inline void reference_row(const char* name, const char* numbers, int ok);
static inline void reference_refused(const char* name, Status status, const char* words);
static inline GPT2* reference_model(GPT2Settings settings, GPT2Config config, const float* params,
                                    const DebugState* state);

// Another loss of the step than the one that gpt2_backward has computed, where gpt2_grad_norm and gpt2_update read it
static inline void reference_set_loss(GPT2* model, float loss) {
#ifdef __CUDACC__
    check(device_copy(&model->scalars->loss, &loss, sizeof(loss), cudaMemcpyHostToDevice));
#else
    model->info.mean_loss = model->micro_losses[0] = loss;
#endif
}

// ----------------------------------------------------------------------------
// Parts of a step

static inline void reference_gradients(GPT2* model, const DebugState* state) {
    check(gpt2_forward(model, state->x, state->B, state->T));
    check(gpt2_backward(model, state->x, state->y, 1, 0));
}

// The rest of it: the norm, unclipped AdamW with weight decay, and the end of all work. Returns how many weights were kept.
static inline unsigned long long reference_update(GPT2* model, int step) {
    float norm;
    check(gpt2_grad_norm(model, &norm));
    check(gpt2_update(model, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.0f, step));
    check(gpt2_synchronize(model));
    return gpt2_info(model)->non_finite_weights;
}

// All blocks but the gradients, one after the other; the caller frees them.
static inline char* reference_state(GPT2* model, size_t* bytes) {
    *bytes = 0;
    for (int b = 0; b <= GPT2_MASTER_WEIGHTS; b++) { *bytes += gpt2_block_bytes(model, (GPT2Block)b); }
    *bytes -= gpt2_block_bytes(model, GPT2_GRADIENTS);
    char *state = (char*)malloc_check(*bytes), *p = state;
    for (int b = 0; b <= GPT2_MASTER_WEIGHTS; b++) {
        size_t size = b == GPT2_GRADIENTS ? 0 : gpt2_block_bytes(model, (GPT2Block)b);
        check(gpt2_copy_out(model, p, (GPT2Block)b, 0, size));
        p += size;
    }
    return state;
}

// 1 where the model's weights, moments and masters are these, bit by bit.
static inline int reference_state_is(GPT2* model, const char* expected) {
    size_t bytes;
    char* state = reference_state(model, &bytes);
    int same = memcmp(state, expected, bytes) == 0;
    free(state);
    return same;
}

static inline void reference_poke(GPT2* model, GPT2Block block, size_t element, float value) {
    check(gpt2_copy_in(model, block, &value, element * sizeof(float), sizeof(float)));
}
static inline float reference_peek(GPT2* model, GPT2Block block, size_t element) {
    float value;
    check(gpt2_copy_out(model, &value, block, element * sizeof(float), sizeof(float)));
    return value;
}

// The weights that AdamW updates: fp32
static inline GPT2Block reference_trained(GPT2* model) {
    return gpt2_block_bytes(model, GPT2_MASTER_WEIGHTS) ? GPT2_MASTER_WEIGHTS : GPT2_WEIGHTS;
}

// The first element of a tensor, and of its last layer.
static inline size_t reference_begin(const GPT2Info* info, const char* name) {
    size_t offset = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; offset += info->table[i++].count) {
        if (strcmp(info->table[i].name, name) == 0) { return offset; }
    }
    fatal("no tensor %s", name);
}
static inline size_t reference_offset(const GPT2Info* info, const char* name) {
    size_t offset = reference_begin(info, name);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const GPT2Parameter* p = &info->table[i];
        if (strcmp(p->name, name) == 0) { offset += (p->layers - 1) * p->rows * p->cols; }
    }
    return offset;
}

// ----------------------------------------------------------------------------
// The conditional update

// Steps with a loss or gradient that is not finite, between two that are: those two lead to the same bits as without.
static inline void reference_check_bad_steps(GPT2Settings settings, GPT2Config config, const float* params,
                                             const DebugState* state) {
    static const struct {
        const char* name;
        float loss, gradient; // 0: as computed
    } bad[] = {{"a loss that is NaN", NAN, 0},
               {"an infinite loss", INFINITY, 0},
               {"a gradient that is NaN", 0, NAN},
               {"an infinite gradient", 0, -INFINITY}};
    size_t bytes;
    GPT2* good = reference_model(settings, config, params, state);
    reference_gradients(good, state);
    reference_update(good, 1);
    char* first = reference_state(good, &bytes);
    reference_gradients(good, state);
    reference_row("a finite step keeps no weight", "", reference_update(good, 2) == 0);
    char* second = reference_state(good, &bytes);
    gpt2_free(good);

    GPT2* model = reference_model(settings, config, params, state);
    reference_gradients(model, state);
    reference_update(model, 1);
    for (int i = 0; i < 4; i++) {
        char name[64];
        reference_gradients(model, state);
        if (!(bad[i].loss == 0)) { reference_set_loss(model, bad[i].loss); }
        if (!(bad[i].gradient == 0)) {
            reference_poke(model, GPT2_GRADIENTS, gpt2_info(model)->num_parameters / 2, bad[i].gradient);
        }
        unsigned long long kept = reference_update(model, 2);
        snprintf(name, sizeof(name), "%s", bad[i].name);
        reference_row(name, "no update", kept == 0 && reference_state_is(model, first));
    }
    reference_gradients(model, state);
    reference_update(model, 2);
    reference_row("the next step is as without them", "", reference_state_is(model, second));
    gpt2_free(model);
    free(first), free(second);
}

// One weight with a second moment that overflows: it stays, and is counted in each step; all others move as without it.
static inline void reference_check_bad_weight(GPT2Settings settings, GPT2Config config, const float* params,
                                              const DebugState* state) {
    GPT2 *good = reference_model(settings, config, params, state),
         *model = reference_model(settings, config, params, state);
    GPT2Block trained = reference_trained(model);
    size_t n = gpt2_info(model)->num_parameters, k = n / 3, bytes = n * sizeof(float), others = 0;
    float *a = (float*)malloc_check(bytes), *b = (float*)malloc_check(bytes);
    float start = reference_peek(model, trained, k);
    reference_poke(model, GPT2_MOMENTS2, k, INFINITY);
    int counted = 1;
    for (int step = 1; step <= 2; step++) {
        check(gpt2_set_parameters(good, params)); // gradients of the same weights
        reference_gradients(good, state);
        reference_update(good, 1);
    }
    for (int step = 1; step <= 2; step++) {
        check(gpt2_set_parameters(model, params));
        reference_gradients(model, state);
        counted = counted && reference_update(model, 1) == 1;
    }
    reference_row("a bad weight is counted", "", counted);
    const GPT2Block blocks[] = {trained, GPT2_MOMENTS1, GPT2_MOMENTS2};
    for (int i = 0; i < 3; i++) {
        check(gpt2_copy_out(good, a, blocks[i], 0, bytes));
        check(gpt2_copy_out(model, b, blocks[i], 0, bytes));
        a[k] = b[k];
        others += memcmp(a, b, bytes) != 0;
    }
    int stays = reference_peek(model, trained, k) == start && reference_peek(model, GPT2_MOMENTS1, k) == 0.0f &&
                isinf(reference_peek(model, GPT2_MOMENTS2, k));
    reference_row("it stays, with its moments", "", stays);
    reference_row("the others move as without it", "", others == 0);
    reference_poke(model, GPT2_MOMENTS2, k, 0.0f);
    reference_gradients(model, state);
    reference_row("the count begins anew", "", reference_update(model, 2) == 0);
    free(a), free(b);
    gpt2_free(good), gpt2_free(model);
}

// ----------------------------------------------------------------------------
// The search and the digest

// What is found begins with `before` and is the last layer's, where there are several.
static inline void reference_check_found(GPT2* model, const char* before, const char* link) {
    char text[128] = "unwritten", expected[128], name[160];
    int L = gpt2_info(model)->config.num_layers;
    snprintf(expected, sizeof(expected), "%s", before);
    if (link != NULL && L > 1) { snprintf(expected, sizeof(expected), "%s%s %d", before, link, L - 1); }
    if (strstr(before, "forward: fch") && L == 1) { snprintf(expected, sizeof(expected), "%s%s 0", before, link); }
    check(gpt2_find_non_finite(model, text, sizeof(text)));
    snprintf(name, sizeof(name), "found: %s", before[0] ? before : "nothing");
    reference_row(name, "", strcmp(text, expected) == 0);
    if (strcmp(text, expected) != 0) { printf("    found '%s', expected '%s'\n", text, expected); }
}

// A row of weights as large as there are: finite in every precision, but a product with it is not.
static inline void reference_poke_row(GPT2* model, size_t element, size_t count) {
    size_t size = gpt2_info(model)->weight_bytes;
    for (size_t i = 0; i < count; i++) {
        float value = 3.3e38f;
        uint16_t half = float_to_bf16(value);
        check(gpt2_copy_in(model, GPT2_WEIGHTS, size == 2 ? (void*)&half : (void*)&value, (element + i) * size, size));
    }
}

// Faults are planted from the end of a step to its beginning: each hides those planted before it.
static inline void reference_check_search(GPT2Settings settings, GPT2Config config, const float* params,
                                          const DebugState* state) {
    GPT2* model = reference_model(settings, config, params, state);
    const GPT2Info* info = gpt2_info(model);
    float norm, nan[2] = {NAN, NAN};
    reference_check_found(model, "", NULL); // before any pass
    reference_gradients(model, state);
    reference_update(model, 1);
    reference_check_found(model, "", NULL);
    reference_poke(model, GPT2_MOMENTS2, reference_offset(info, "lnfb"), INFINITY);
    reference_check_found(model, "update: second moment of lnfb", NULL);
    reference_poke(model, GPT2_MOMENTS1, reference_offset(info, "fcb"), -INFINITY);
    reference_check_found(model, "update: first moment of fcb", ", layer");
    for (size_t i = 0; i < 2; i++) { reference_poke(model, GPT2_GRADIENTS, i, 3e38f); }
    check(gpt2_grad_norm(model, &norm));
    reference_check_found(model, "backward: norm of the gradients, each of which is finite", NULL);
    reference_poke(model, GPT2_GRADIENTS, 3, NAN); // wte's is complete last
    reference_check_found(model, "backward: gradient of wte", NULL);
    reference_poke(model, GPT2_GRADIENTS, reference_begin(info, "ln1w"),
                   NAN); // the first layer's come after the last's
    reference_poke(model, GPT2_GRADIENTS, reference_offset(info, "qkvb"), NAN);
    reference_check_found(model, "backward: gradient of qkvb", ", layer");
    reference_poke(model, GPT2_GRADIENTS, reference_offset(info, "fcw") + 7, INFINITY);
    reference_check_found(model, "backward: gradient of fcw", ", layer");
    reference_set_loss(model, NAN);
    reference_check_found(model, "forward: loss of the step", NULL);
    reference_poke_row(model, reference_offset(info, "fcw"), (size_t)config.channels);
    check(gpt2_forward(model, state->x, state->B, state->T));
    reference_check_found(model, "forward: fch", " of layer");
    if (gpt2_block_bytes(model, GPT2_MASTER_WEIGHTS) > 0) {
        reference_poke(model, GPT2_MASTER_WEIGHTS, reference_offset(info, "lnfw"), NAN);
        reference_check_found(model, "weights: master of lnfw", NULL);
    }
    size_t last = (reference_offset(info, "attprojw") + 1) * info->weight_bytes;
    check(
        gpt2_copy_in(model, GPT2_WEIGHTS, nan, last, sizeof(nan))); // all bits of a NaN's upper half are an exponent's
    reference_check_found(model, "weights: attprojw", ", layer");
    gpt2_free(model);
}

// The digest is host_device.h's sum, and another one after a change of any bit.
static inline void reference_check_digest(GPT2Settings settings, GPT2Config config, const float* params,
                                          const DebugState* state) {
    GPT2* model = reference_model(settings, config, params, state);
    const ParameterLayout* layout = gpt2_layout(model);
    size_t n = gpt2_info(model)->num_parameters;
    float* grads = (float*)malloc_check(n * sizeof(float));
    uint32_t* words = (uint32_t*)calloc_check(layout->elements, sizeof(uint32_t)); // as they lie in memory, gaps too
    uint64_t sum = 0, first, again, changed;
    reference_gradients(model, state);
    check(gpt2_gradient_digest(model, &first));
    check(gpt2_get_gradients(model, grads));
    for (size_t i = 0, count; i < n; i += count) {
        LayoutRun run = layout_run(layout, 0, i, n - i);
        count = run.count;
        memcpy(words + run.offset, grads + i, count * sizeof(float));
    }
    for (size_t i = 0; i < layout->elements; i++) { sum += digest_mix(i, words[i]); }
    free(words);
    reference_row("digest of the gradients", "", first == sum);
    reference_gradients(model, state);
    check(gpt2_gradient_digest(model, &again));
    reference_row("the same from a second pass", "", again == first);
    int differ = 1;
    for (unsigned bit = 0; bit < 64; bit++) {
        size_t at = bit == 0 ? 0 : bit == 1 ? n - 1 : (size_t)bit * 2654435761u % n;
        uint32_t word;
        memcpy(&word, &grads[at], sizeof(word));
        word ^= 1u << bit % 32;
        check(gpt2_copy_in(model, GPT2_GRADIENTS, &word, at * sizeof(word), sizeof(word)));
        check(gpt2_gradient_digest(model, &changed));
        differ = differ && changed != first;
        check(gpt2_copy_in(model, GPT2_GRADIENTS, &grads[at], at * sizeof(float), sizeof(float)));
    }
    reference_row("another after a flipped bit", "", differ);
    free(grads);
    gpt2_free(model);
}

// ----------------------------------------------------------------------------
// The snapshot

typedef struct {
    GPT2* model;
    const char* expected;
    int rounds, same;
} ReferenceReader;

// Reads the whole snapshot again and again, in pieces that do not divide a block.
static inline void* reference_read_snapshots(void* argument) {
    ReferenceReader* r = (ReferenceReader*)argument;
    char piece[9972];
    const size_t PIECE = sizeof(piece);
    r->same = 1;
    for (int round = 0; round < r->rounds; round++) {
        const char* expected = r->expected;
        for (int b = 0; b <= GPT2_MASTER_WEIGHTS; b++) {
            size_t bytes = b == GPT2_GRADIENTS ? 0 : gpt2_block_bytes(r->model, (GPT2Block)b);
            for (size_t at = 0; at < bytes; at += PIECE) {
                size_t size = bytes - at < PIECE ? bytes - at : PIECE;
                Status status = gpt2_read_snapshot(r->model, piece, (GPT2Block)b, at, size);
                r->same = r->same && status == STATUS_OK && memcmp(piece, expected + at, size) == 0;
            }
            expected += bytes;
        }
    }
    return NULL;
}

// Each snapshot is the state at its moment, read by another thread while the model trains on.
static inline void reference_check_snapshot(GPT2Settings settings, GPT2Config config, const float* params,
                                            const DebugState* state) {
    GPT2* model = reference_model(settings, config, params, state);
    size_t bytes, before = gpt2_info(model)->memory_bytes;
    char word[4];
    GPT2Plan plan;
    reference_refused("taken before allocated", gpt2_take_snapshot(model), "before gpt2_allocate_snapshot");
    check(gpt2_plan(&plan, config, settings, gpt2_info(model)->B, gpt2_info(model)->T, 1, 1));
    check(gpt2_allocate_snapshot(model));
    size_t more = gpt2_info(model)->memory_bytes - before; // memory_bytes are those of the device
    reference_row("its memory", "", more == (GPT2_MEMORY == PLAN_HOST ? plan.rows[PLAN_SNAPSHOT].bytes : 0));
    reference_refused("allocated twice", gpt2_allocate_snapshot(model), "already");
    reference_refused("read before taken", gpt2_read_snapshot(model, word, GPT2_WEIGHTS, 0, 4), "no snapshot");
    int same = 1;
    for (int round = 0; round < 2; round++) {
        pthread_t thread;
        for (int step = 0; step < 2; step++) {
            reference_gradients(model, state);
            reference_update(model, 5 * round + step + 1);
        }
        check(gpt2_take_snapshot(model)); // the next step begins at once
        char* expected = NULL;
        if (round == 0) {
            expected = reference_state(model, &bytes);
        } else { // nothing waits between the last update and the next step: the same state from another model
            GPT2* twin = reference_model(settings, config, params, state);
            for (int step = 0; step < 7; step++) {
                reference_gradients(twin, state);
                reference_update(twin, step + 1);
            }
            expected = reference_state(twin, &bytes);
            gpt2_free(twin);
        }
        ReferenceReader reader = {model, expected, 3, 0};
        if (!thread_start(&thread, reference_read_snapshots, &reader)) { fatal("no thread"); }
        for (int step = 2; step < 5; step++) {
            reference_gradients(model, state);
            reference_update(model, 5 * round + step + 1);
        }
        pthread_join(thread, NULL);
        same = same && reader.same && !reference_state_is(model, expected);
        reference_read_snapshots(&reader); // once more, now that the weights are others for certain
        same = same && reader.same;
        free(expected);
    }
    reference_row("read by a thread while training", "", same);
    reference_refused("gradients of a snapshot", gpt2_read_snapshot(model, word, GPT2_GRADIENTS, 0, 4), "no snapshot");
    size_t end = gpt2_block_bytes(model, GPT2_MOMENTS1);
    reference_refused("past its block", gpt2_read_snapshot(model, word, GPT2_MOMENTS1, end - 2, 4), "block");
    reference_refused("within a number", gpt2_read_snapshot(model, word, GPT2_MOMENTS1, 2, 4), "whose numbers have");
    gpt2_free(model);
}

// ----------------------------------------------------------------------------
// Padding

static inline int reference_zero(const float* x, size_t begin, size_t end) {
    for (size_t i = begin; i < end; i++) {
        if (x[i] != 0.0f) { return 0; }
    }
    return 1;
}

// Padding rows of wte, given with other numbers than zero, NaN among them, become zero and stay so, with their moments; so do
// the moments of positions that no batch has.
static inline void reference_check_padding(GPT2Settings settings, GPT2Config config, const float* params,
                                           const DebugState* state) {
    GPT2* model = reference_model(settings, config, params, state);
    size_t n = gpt2_info(model)->num_parameters, bytes = n * sizeof(float), C = (size_t)config.channels;
    size_t begin = (size_t)config.vocab_size * C, end = (size_t)config.padded_vocab_size * C; // of the padding
    int T = state->T - 1;
    size_t unused = end + (size_t)T * C, wpe_end = end + (size_t)config.max_seq_len * C;
    float* host = (float*)malloc_check(bytes);
    memcpy(host, params, bytes);
    for (size_t i = begin; i < end; i++) { host[i] = i % 3 ? 1.0f : NAN; }
    check(gpt2_set_parameters(model, host));
    for (int step = 1; step <= 4; step++) {
        check(gpt2_forward(model, state->x, 1, T));
        check(gpt2_backward(model, state->x, state->y, 1, 0));
        reference_update(model, step);
    }
    check(gpt2_get_parameters(model, host));
    int zero = reference_zero(host, begin, end), moved = memcmp(host, params, begin * sizeof(float)) != 0;
    if (gpt2_block_bytes(model, GPT2_MASTER_WEIGHTS) > 0) {
        check(gpt2_copy_out(model, host, GPT2_MASTER_WEIGHTS, 0, bytes));
        zero = zero && reference_zero(host, begin, end);
    }
    reference_row("padding rows are zero", "", zero && moved);
    const GPT2Block moments[] = {GPT2_MOMENTS1, GPT2_MOMENTS2};
    for (int i = 0; i < 2; i++) {
        check(gpt2_copy_out(model, host, moments[i], 0, bytes));
        zero = reference_zero(host, begin, end) && reference_zero(host, unused, wpe_end);
        int used = !reference_zero(host, 0, begin) && !reference_zero(host, end, unused);
        reference_row(i == 0 ? "first moments of unused rows" : "second moments of unused rows", "", zero && used);
    }
    free(host);
    gpt2_free(model);
}

// The search looks at what each dump's attention leaves; the rest is the same for every shape, and done on the small ones.
static inline void reference_check_numbers(GPT2Settings settings, GPT2Config config, const float* params,
                                           const DebugState* state) {
    reference_check_search(settings, config, params, state);
    if (state->T > 256 || config.channels > 256) { return; }
    reference_check_bad_steps(settings, config, params, state);
    reference_check_bad_weight(settings, config, params, state);
    reference_check_digest(settings, config, params, state);
    reference_check_snapshot(settings, config, params, state);
    reference_check_padding(settings, config, params, state);
}

#endif
