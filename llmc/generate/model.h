/*
The model of a run of generate_gpt2: its weights, wherever they come from, its tokenizer, and what there is of memory.
*/
#ifndef LLMC_GENERATE_MODEL_H
#define LLMC_GENERATE_MODEL_H

#include "flags.h"
#include "llmc/base/terminal.h"
#include "llmc/files/export_weights.h"
#include "llmc/files/weights_file.h"
#include "llmc/model/gpt2_decoder.h"
#include "llmc/text/tokenizer.h"

typedef struct {
    const Options* options;
    GPT2Config config;
    float* params; // (parameters) in fp32, in table order; NULL once the model has them
    GPT2* model;
    Tokenizer tokenizer;
    int context;     // T
    char remark[96]; // on T, where it is the trained length alone that limits it; else ""
    double load_seconds;
} GenerateModel;

// The tokenizer's path: --tokenizer, or the model's folder if it has one, or the project's file.
static inline const char* generate_tokenizer_path_(const Options* o, char* text, size_t size) {
    return o->tokenizer != NULL ? o->tokenizer : tokenizer_of_model(o->model, text, size);
}

// Reads weights and tokenizer. Ends the program with one line if one is missing or they do not match; the tokenizer may be
// missing if no text will be encoded.
static inline void generate_model_read(GenerateModel* m, const Options* o, int encodes) {
    char path[1200];
    int unchecked = 0;
    double begin = wall_seconds();
    memset(m, 0, sizeof(*m));
    m->options = o;
    if (weights_is_descriptor(o->model)) {
        fatal("-e %s: that describes a new model, without weights; name " WEIGHTS_HELP "; ./train_gpt2 trains one",
              o->model);
    }
    check(weights_load_intact(&m->params, o->model, &m->config, &unchecked));
    m->load_seconds = wall_seconds() - begin;
    int is_bytes = m->config.vocab_size == BYTE_VOCAB_SIZE, is_export = o->export_to != NULL;
    int is_file = is_export && export_is_one_file(o->export_to); // which has no tokenizer
    const char* tokenizer = generate_tokenizer_path_(o, path, sizeof(path));
    if (o->tokenizer != NULL && (is_bytes || is_file)) {
        print_warning("--tokenizer %s is not read: %s", tokenizer,
                      is_bytes ? "the 256 tokens of this model are bytes" : "an export to one file has no tokenizer");
    }
    if (encodes && !is_bytes && file_missing(tokenizer)) {
        fatal("text needs a tokenizer, and there is no %s; python3 dev/data/tokenizer.py writes GPT-2's, "
              "--tokenizer names another",
              tokenizer);
    }
    if (is_file || (is_export && !is_bytes && file_missing(tokenizer))) { return; }
    (encodes ? tokenizer_load : tokenizer_load_to_decode)(&m->tokenizer, tokenizer, m->config.vocab_size);
    m->load_seconds = wall_seconds() - begin;
}

// T: --context or, by default, what the model was trained on
static inline void generate_set_context(GenerateModel* m) {
    int asked = m->options->context, trained = gpt2_trained_length(m->config), most = m->config.max_seq_len;
    m->context = asked > 0 ? asked : trained;
    m->remark[0] = '\0';
    if (asked > most) {
        fatal("--context %d: the model has positions for %d tokens; choose %d or less", asked, most, most);
    }
    if (asked > trained) {
        print_note("--context %d: the model was trained on %d tokens; its positions beyond are untrained", asked,
                   trained);
    }
    if (asked == 0 && trained < most) {
        snprintf(m->remark, sizeof(m->remark), " (the model's trained length; --context allows up to %d)", most);
    }
}

// Builds the model, and frees the weights that it was built from.
static inline void generate_model_build(GenerateModel* m) {
    double begin = wall_seconds();
    check(gpt2_prepare_threads());
    check(gpt2_create(&m->model, m->config, gpt2_default_settings()));
    check(gpt2_set_parameters(m->model, m->params));
    free(m->params);
    m->params = NULL;
    m->load_seconds += wall_seconds() - begin;
}

static inline void generate_model_free(GenerateModel* m) {
    gpt2_free(m->model);
    free(m->params);
    tokenizer_free(&m->tokenizer);
}

// What a decoder for B sequences of T tokens or, with `scoring`, forward passes of such batches take beside the model.
static inline GPT2Plan generate_plan(const GenerateModel* m, int B, int T, int scoring) {
    static const PlanRowId there[] = {PLAN_WEIGHTS, PLAN_SCALARS, PLAN_WORKSPACE, PLAN_HOST_RESULTS, PLAN_HOST_PROCESS};
    GPT2Plan plan;
    check(gpt2_plan(&plan, m->config, gpt2_default_settings(), scoring ? B : 0, scoring ? T : 0, 0, 0));
    if (!scoring) { check(gpt2_decoder_plan(&plan, m->config, B, T)); }
    for (size_t i = 0; i < sizeof(there) / sizeof(there[0]); i++) { plan.rows[there[i]].bytes = 0; }
    return plan;
}

// B, at most `all`: --batch, or where that is auto the largest power of two, up to `most`, of which the memory is there.
static inline int generate_batch(const GenerateModel* m, size_t all, int most, int T, int scoring) {
    int is_auto = m->options->batch == CLI_AUTO, limit = is_auto ? most : m->options->batch;
    int B = all < (size_t)limit ? (int)all : limit;
    GPT2Memory memory;
    while (is_auto && (B & (B - 1)) != 0) { B &= B - 1; }
    for (;; B /= 2) {
        GPT2Plan plan = generate_plan(m, B, T, scoring);
        int fits = gpt2_available_memory(&memory) != STATUS_OK || plan_fits(&plan, &memory);
        if (fits || (is_auto && B == 1)) { return B; }
        if (is_auto) { continue; }
        size_t host = plan_bytes(&plan, PLAN_HOST), gpu = plan_bytes(&plan, PLAN_DEVICE);
        fatal("-b %d: %d sequences of %d tokens take %.0f MiB, more than is free; lower -b or --context", B, B, T,
              (double)(host > gpu ? host : gpu) / (1 << 20));
    }
}

#endif
