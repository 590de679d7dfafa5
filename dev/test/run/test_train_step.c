// llmc/run/gradients.h: a step that is computed again sees the same batches, wherever it lies in shards and epochs, and the
// steps after it go on as if nothing had been. The model is a stand-in that only looks at its tokens.
#include "llmc/model/gpt2_model.h"

struct GPT2 {
    GPT2Info info;
    uint64_t digest; // of all tokens since the first micro-step
    int bad_micro;   // this micro-step has a number that is not finite, or -1
    int last_micro;
    uint64_t forwarded; // the digest of the tokens of the last forward pass
    int wrong;          // backward passes of other tokens
};

const GPT2Info* gpt2_info(const GPT2* model) { return &model->info; }
static uint64_t digest_of(const int* tokens) {
    uint64_t digest = 0;
    for (int i = 0; i < 8; i++) { digest = digest * 1000003 + (uint64_t)tokens[i]; }
    return digest;
}
Status gpt2_forward(GPT2* model, const int* inputs, int B, int T) {
    (void)B, (void)T;
    model->forwarded = digest_of(inputs);
    return STATUS_OK;
}
Status gpt2_backward(GPT2* model, const int* inputs, const int* targets, int grad_accum_steps, int micro_step) {
    (void)grad_accum_steps;
    if (micro_step == 0) { model->digest = 0; }
    model->wrong += model->forwarded != digest_of(inputs);
    for (int i = 0; i < 8; i++) { model->digest = model->digest * 1000003 + (uint64_t)(inputs[i] * 7 + targets[i]); }
    model->last_micro = micro_step;
    model->info.mean_loss = micro_step == model->bad_micro ? NAN : (float)(model->digest % 1000);
    return STATUS_OK;
}
Status gpt2_grad_norm(GPT2* model, float* norm) {
    model->info.grad_norm = 1.0f + (float)(model->digest % 777);
    if (norm != NULL) { *norm = model->info.grad_norm; }
    return STATUS_OK;
}
Status gpt2_wait_update(GPT2* model) {
    (void)model;
    return STATUS_OK;
}
Status gpt2_gradient_digest(GPT2* model, uint64_t* digest) {
    *digest = model->digest;
    return STATUS_OK;
}
Status gpt2_find_non_finite(GPT2* model, char* text, size_t size) {
    snprintf(text, size, "%s", model->last_micro == model->bad_micro ? "forward: encoded" : "");
    return STATUS_OK;
}

void gpt2_set_local(GPT2* model, int local) { (void)model, (void)local; }

#include "llmc/run/gradients.h"
#include "dev/test/fixtures/unit.h"

static Agreement alone; // of one process

enum { B = 2, T = 4, ACCUMULATION = 3, STEPS = 60 };

static void write_shards(int shards) {
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof(name), "shard%d.bin", i);
        if (i >= shards) {
            remove(unit_path(name));
            continue;
        }
        uint16_t tokens[120]; // 5, 9 and 13 samples
        int count = (5 + 4 * i) * B * T + 1;
        for (int k = 0; k < count; k++) { tokens[k] = (uint16_t)(100 * i + k); }
        unit_write_format(unit_path(name), TOKENS_MAGIC_16, TOKENS_VERSION_16, count, 0, tokens, (size_t)count * 2);
    }
}

static TrainStep step_of(GPT2* model, DataLoader* loader) {
    TrainStep s;
    memset(&s, 0, sizeof(s));
    s.model = model, s.loader = loader, s.accumulation = ACCUMULATION, s.agreement = &alone;
    return s;
}

static DataLoader open_loader(int shuffle) {
    DataLoader d;
    HostAlloc memory = {NULL, NULL};
    dataloader_open(&d, unit_path("shard*.bin"), B, T, shuffle, 42, 0, memory);
    return d;
}

// Steps of which each is computed `again` times more, by verifying or by searching; their digests are those of a run without.
static void steps_go_on(int shards, int shuffle) {
    write_shards(shards);
    uint64_t expected[STEPS] = {0};
    int same = 1, verified = 1, found = 1;
    for (int run = 0; run < 3; run++) {
        GPT2 model;
        memset(&model, 0, sizeof(model));
        model.bad_micro = -1;
        DataLoader d = open_loader(shuffle);
        TrainStep s = step_of(&model, &d);
        for (int step = 0; step < STEPS; step++) {
            char text[256];
            train_step_begin(&s);
            StepResult r;
            check(train_step_compute(&s, &r));
            if (run == 0) { expected[step] = model.digest; }
            same = same && model.digest == expected[step];
            if (run == 1) {
                check(train_step_verify(&s, r, text, sizeof(text)));
                verified = verified && text[0] == '\0';
            }
            if (run == 1) { same = same && model.digest == expected[step]; }
            if (run == 2) {
                model.bad_micro = step % ACCUMULATION;
                char name[64];
                snprintf(name, sizeof(name), "forward: encoded, micro-step %d of %d", model.bad_micro + 1,
                         ACCUMULATION);
                NonFinite f;
                check(train_step_find_non_finite(&s, &f));
                found = found && f.again && !f.weights && strcmp(f.text, name) == 0;
                model.bad_micro = -1;
            }
        }
        train_step_free(&s);
        dataloader_close(&d);
    }
    CHECK(same);
    CHECK(verified);
    CHECK(found);
}

static int same_again(TrainStep* s, StepResult first, char* text, size_t size) {
    check(train_step_verify(s, first, text, size));
    return text[0] == '\0';
}

// What a machine that computes wrongly does: other bits the second time, or finite numbers.
static void differences_are_told(void) {
    char text[256];
    GPT2 model;
    memset(&model, 0, sizeof(model));
    model.bad_micro = -1;
    DataLoader d = open_loader(1);
    TrainStep s = step_of(&model, &d);
    StepResult r, other;
    NonFinite f;
    train_step_begin(&s);
    check(train_step_compute(&s, &r));
    CHECK(same_again(&s, r, text, sizeof(text)));
    other = r, other.loss = nextafterf(r.loss, 1e9f);
    CHECK(!same_again(&s, other, text, sizeof(text)));
    other = r, other.norm = nextafterf(r.norm, 0.0f);
    CHECK(!same_again(&s, other, text, sizeof(text)));
    model.digest ^= 1; // of the first time
    uint64_t first = model.digest;
    CHECK(!same_again(&s, r, text, sizeof(text)));
    char words[96];
    snprintf(words, sizeof(words), "gradients' digest %016llx and %016llx", (unsigned long long)first,
             (unsigned long long)model.digest);
    CHECK(strstr(text, words) != NULL);
    CHECK(train_step_find_non_finite(&s, &f) == STATUS_OK && !f.again);
    train_step_free(&s);
    dataloader_close(&d);
}

static int same_position(const DataLoader* d, const DataLoaderState* s) {
    return d->current_shard_idx == s->shard && d->current_sample_idx == s->sample &&
           (s->shuffled ? d->order_length : d->shard_num_samples) == s->num_samples &&
           (!s->shuffled || (memcmp(&d->shuffle_rng, &s->rng, sizeof(s->rng)) == 0 &&
                             memcmp(d->shard_indices, s->shard_order, s->num_shards * sizeof(int)) == 0 &&
                             memcmp(d->intra_shard_indices, s->sample_order, s->num_samples * sizeof(int)) == 0));
}

static void truncate_shards(void) {
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof(name), "shard%d.bin", i);
        unit_truncate(unit_path(name), HEADER_BYTES + 6);
    }
}

// A model and another one that should have the same steps, each with its loader
typedef struct {
    GPT2 whole, model;
    DataLoader reference, d;
    TrainStep expected, s;
} Pair;
static void pair_open(Pair* p, int shuffle) {
    memset(p, 0, sizeof(*p));
    p->whole.bad_micro = p->model.bad_micro = -1;
    p->reference = open_loader(shuffle), p->d = open_loader(shuffle);
    p->expected = step_of(&p->whole, &p->reference), p->s = step_of(&p->model, &p->d);
}
static void pair_close(Pair* p) {
    train_step_free(&p->s);
    train_step_free(&p->expected);
    dataloader_close(&p->d);
    dataloader_close(&p->reference);
}

// Token files that are cut off before step `bad`: a step that cannot read them is taken back to its beginning, however far it
// had come, and is computed when they are whole again. `ahead`: steps begin ahead of the last one's end, and the files are
// cut off after that or (2) while that is tried, which then did not begin the step. Returns how often it did not.
static int a_step_without_data_is_taken_back(int shuffle, int bad, int ahead) {
    write_shards(3);
    static Pair p; // too large for a stack
    StepResult r;
    pair_open(&p, shuffle);
    int failed = 0, same = 1, not_begun = 0;
    for (int step = 0; step < STEPS; step++) {
        train_step_begin(&p.expected);
        check(train_step_compute(&p.expected, &r));
        if (step == bad && ahead < 2) { truncate_shards(); }
        train_step_begin(&p.s);
        if (train_step_compute(&p.s, &r) != STATUS_OK) {
            failed += strstr(status_message(), "shard") != NULL;
            train_step_rewind(&p.s);
            same = same && same_position(&p.d, &p.expected.begin);
            CHECK(ahead == 2 || train_step_compute(&p.s, &r) == STATUS_ERROR); // they are not whole yet
            train_step_rewind(&p.s);
            write_shards(3);
            check(train_step_compute(&p.s, &r));
        }
        same = same && p.model.digest == p.whole.digest;
        if (!ahead) { continue; }
        if (step == bad - 1 && ahead == 2) { truncate_shards(); }
        train_step_ahead(&p.s);
        not_begun += !p.s.ahead;
        CHECK(status_now() == STATUS_OK);
        if (step == bad - 1 && ahead == 2) { write_shards(3); }
    }
    CHECK((failed == 1 || (ahead == 2 && failed == 0)) && same);
    pair_close(&p);
    return not_begun;
}

// Steps whose first batch was taken before the step before was judged: by rights, given back, and forgotten as that step is
// computed again. The loader that is given back stands where it would.
static void steps_begin_ahead(int shards, int shuffle) {
    write_shards(shards);
    static Pair p; // too large for a stack
    StepResult r;
    NonFinite f;
    pair_open(&p, shuffle);
    int same = 1, stands = 1, found = 1;
    for (int step = 0; step < STEPS; step++) {
        train_step_begin(&p.expected);
        check(train_step_compute(&p.expected, &r));
        train_step_begin(&p.s);
        check(train_step_gradients(&p.s));
        train_step_ahead(&p.s);
        same = same && p.model.digest == p.whole.digest && p.s.ahead;
        if (step % 5 == 2) {
            train_step_give_back(&p.s);
            train_step_begin(&p.expected); // of the next step
            stands = stands && same_position(&p.d, &p.expected.begin);
        }
        if (step % 7 == 3) {
            p.model.bad_micro = step % ACCUMULATION;
            check(train_step_find_non_finite(&p.s, &f));
            found = found && f.again && strstr(f.text, "forward: encoded, micro-step ") != NULL;
            p.model.bad_micro = -1;
        }
        same = same && (step % 7 != 3 || !p.s.ahead);
    }
    CHECK(same);
    CHECK(stands);
    CHECK(found);
    CHECK(p.model.wrong == 0);
    pair_close(&p);
}

int main(void) {
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        steps_go_on(1, shuffle);
        steps_go_on(3, shuffle);
        steps_begin_ahead(1, shuffle);
        steps_begin_ahead(3, shuffle);
    }
    differences_are_told();
    int not_begun = 0;
    for (int bad = 0; bad < 20; bad++) {
        CHECK(a_step_without_data_is_taken_back(bad % 2, bad, 0) == 0);
        CHECK(a_step_without_data_is_taken_back(bad % 2, bad, 1) == 0);
        not_begun += a_step_without_data_is_taken_back(bad % 2, bad + 1, 2);
    }
    CHECK(not_begun > 0);
    return unit_end();
}
