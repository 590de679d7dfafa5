/*
From a checkpoint and prompts to text, on the CPU. The model is train_gpt2.c's; the decoder, with its KV cache, is below:
llmc/model/gpt2_decoder.h documents its functions. The program is generate_main in generate/generate.h, which the GPU shares.

A pass computes up to DECODER_ROWS tokens of any sequences: of prompts, or the next token of each. All take the same code, in
which the order of a token's sums does not depend on the other tokens (llmc/cpu/decode.h): so results do not
depend on how tokens are batched. Of a pass only keys, values and the logits of last tokens are kept.
*/
#include "train_gpt2.c"

#include "llmc/cpu/decode.h"
#include "llmc/model/gpt2_decoder.h"

enum { DECODER_ROWS = 256 }; // of a pass: enough for its GEMMs to be compute-bound

typedef struct {
    int length; // tokens in the cache
    int active;
    SamplerSettings sampler;
    uint64_t sample;
} DecoderSequence;

// A token of a pass: its sequence and position
typedef struct {
    int slot, position;
    int last; // 1: its logits are computed
} DecoderRow;

// Consecutive rows of a pass in one sequence, which attention processes together
typedef struct {
    int first, count;
} DecoderGroup;

// A decoder's buffers beside its cache, in one block of memory. X(ctx, type, name, count); R: DECODER_ROWS
// clang-format off
#define DECODER_BUFFERS(X, ctx)                                                                                        \
    X(ctx, float, residual, R * C)           /* (R,C) the residual stream */                                           \
    X(ctx, float, ln, R * C)                 /* (R,C) LayerNorm's output */                                            \
    X(ctx, float, qkv, R * 3 * C)            /* (R,3,NH,HS) */                                                         \
    X(ctx, float, atty, R * C)               /* (R,NH,HS) attention output */                                          \
    X(ctx, float, fch, R * 4 * C)            /* (R,4C) after the GELU */                                               \
    X(ctx, float, logits, B * V)             /* (B,V) after each sequence's last token */                              \
    X(ctx, float, sampling, B * V)           /* (B,V) scratch */                                                      \
    X(ctx, int, tokens, B * T)               /* (B,T) */                                                               \
    X(ctx, DecoderSequence, sequences, B)    /* (B) */                                                                 \
    X(ctx, DecoderRow, rows, R)              /* (num_rows) of the pass that is being assembled */                      \
    X(ctx, DecoderGroup, groups, R)          /* (num_groups) of them */                                                \
    X(ctx, int, last_slots, R)               /* slots of the rows whose logits are wanted */
// clang-format on

struct GPT2Decoder {
    GPT2* model;
    GPT2Config config;
    GPT2Plan plan;
    int B, T;
    int num_rows, num_groups;
    float* cache; // (L,B,2,NH,blocks,HS * ATTENTION_BLOCK) keys and values: cpu/decode.h
    void* memory;
    DECODER_BUFFERS(DECODER_POINTER, )
};

// ----------------------------------------------------------------------------
// Building and freeing

// Points a decoder's buffers into `memory`, unless d is NULL; returns their bytes, SIZE_MAX on overflow.
static size_t decoder_place(GPT2Decoder* d, char* memory, GPT2Config config, int B_, int T_) {
    size_t B = (size_t)B_, T = (size_t)T_, C = (size_t)config.channels, V = (size_t)config.vocab_size;
    size_t R = DECODER_ROWS, total = 0;
    DECODER_BUFFERS(DECODER_PLACE, )
    return total;
}

// Floats of the keys, or of the values, of a sequence and layer
static size_t decoder_cache_size(GPT2Config config, int T) {
    return size_mul(size_round_up((size_t)T, ATTENTION_BLOCK), (size_t)config.channels);
}

Status gpt2_decoder_plan(GPT2Plan* plan, GPT2Config config, int B, int T) {
    status_clear();
    TRY(gpt2_config_status(config, "the model"));
    TRY(gpt2_check_sizes(config, B, T));
    size_t sequences = size_mul((size_t)B, (size_t)config.num_layers);
    size_t cache = size_mul(size_mul(sequences, 2 * sizeof(float)), decoder_cache_size(config, T));
    plan_set(plan, PLAN_KV_CACHE, PLAN_HOST, cache);
    plan_set(plan, PLAN_DECODER, PLAN_HOST, decoder_place(NULL, NULL, config, B, T));
    return STATUS_OK;
}

Status gpt2_decoder_create(GPT2Decoder** result, GPT2* model, int B, int T) {
    *result = NULL;
    GPT2Decoder* d = (GPT2Decoder*)calloc(1, sizeof(GPT2Decoder));
    status_clear();
    if (d == NULL) { return status_fail("no memory for a decoder"); }
    plan_clear(&d->plan);
    d->model = model, d->config = gpt2_info(model)->config, d->B = B, d->T = T;
    if (gpt2_decoder_plan(&d->plan, d->config, B, T) == STATUS_OK) {
        const PlanRow *cache = &d->plan.rows[PLAN_KV_CACHE], *rest = &d->plan.rows[PLAN_DECODER];
        d->cache = (float*)tensor_alloc(cache->bytes, cache->name, PLAN_LESS_TO_DECODE);
        d->memory = tensor_alloc(rest->bytes, rest->name, PLAN_LESS_TO_DECODE);
    }
    if (status_now() != STATUS_OK) {
        gpt2_decoder_free(d);
        return STATUS_ERROR;
    }
    decoder_place(d, (char*)d->memory, d->config, B, T);
    *result = d;
    return STATUS_OK;
}

void gpt2_decoder_free(GPT2Decoder* d) {
    if (d == NULL) { return; }
    tensor_free(d->cache, d->plan.rows[PLAN_KV_CACHE].bytes);
    tensor_free(d->memory, d->plan.rows[PLAN_DECODER].bytes);
    free(d);
}

// ----------------------------------------------------------------------------
// A pass

static KeyValues decoder_cache(const GPT2Decoder* d, int layer, int slot) {
    size_t size = decoder_cache_size(d->config, d->T);
    float* k = d->cache + ((size_t)layer * (size_t)d->B + (size_t)slot) * 2 * size;
    KeyValues c = {k, k + size, CEIL_DIV((size_t)d->T, (size_t)ATTENTION_BLOCK)};
    return c;
}

static void decoder_encode(GPT2Decoder* d, ParameterTensors p, size_t C) {
    for (int r = 0; r < d->num_rows; r++) {
        size_t position = (size_t)d->rows[r].position;
        int token = d->tokens[(size_t)d->rows[r].slot * (size_t)d->T + position];
        encoder_forward(d->residual + (size_t)r * C, &token, NULL, p.wte, p.wpe + position * C, 1, 1, C);
    }
}

static void decoder_layernorm(float* out, const float* inp, const float* weight, const float* bias, size_t rows,
                              size_t C) {
#pragma omp parallel for if (rows >= 16)
    for (size_t r = 0; r < rows; r++) {
        float mean, rstd; // which only the backward pass needs
        layernorm_row(out + r * C, &mean, &rstd, inp + r * C, weight, bias, C);
    }
}

// out = residual + inp weight^T + bias for the rows of the pass
static void decoder_linear(const GPT2Decoder* d, float* out, const float* residual, const float* inp,
                           const float* weight, const float* bias, int gelu, size_t C, size_t OC) {
    Linear x = {out, NULL, residual, inp, weight, bias, gelu, (size_t)d->num_rows, C, OC};
    linear_forward(x);
}

// atty = attention(qkv); the rows' keys and values go to the cache first
static void decoder_attention(GPT2Decoder* d, int layer, size_t NH, size_t HS) {
    size_t C = NH * HS, groups = (size_t)d->num_groups;
#pragma omp parallel for if (d->num_rows >= 16)
    for (int r = 0; r < d->num_rows; r++) {
        cache_store(decoder_cache(d, layer, d->rows[r].slot), d->qkv + (size_t)r * 3 * C, (size_t)d->rows[r].position,
                    NH, HS);
    }
#pragma omp parallel for collapse(2) schedule(dynamic) if (groups * C >= 256)
    for (size_t g = 0; g < groups; g++) {
        for (size_t h = 0; h < NH; h++) {
            size_t first = (size_t)d->groups[g].first;
            attention_rows(d->atty + first * C, d->qkv + first * 3 * C, decoder_cache(d, layer, d->rows[first].slot), h,
                           (size_t)d->rows[first].position, (size_t)d->groups[g].count, NH, HS);
        }
    }
}

// The logits of the rows where they are wanted
static void decoder_head(GPT2Decoder* d, ParameterTensors p, size_t C) {
    size_t count = 0;
    for (int r = 0; r < d->num_rows; r++) {
        if (!d->rows[r].last) { continue; }
        decoder_layernorm(d->ln + count * C, d->residual + (size_t)r * C, p.lnfw, p.lnfb, 1, C);
        d->last_slots[count++] = d->rows[r].slot;
    }
    Linear x = {d->logits, d->last_slots, NULL, d->ln, p.wte, NULL, 0, count, C, (size_t)d->config.vocab_size};
    linear_forward(x);
}

// Computes the rows that were put together, and begins a new pass.
static void decoder_pass(GPT2Decoder* d) {
    const GPT2Config c = d->config;
    size_t C = (size_t)c.channels, NH = (size_t)c.num_heads, rows = (size_t)d->num_rows;
    ParameterTensors p = gpt2_layer_parameters(d->model, 0);
    if (rows == 0) { return; }
    decoder_encode(d, p, C);
    for (int i = 0; i < c.num_layers; i++) {
        ParameterTensors w = gpt2_layer_parameters(d->model, i);
        // residual += attproj(attention(ln1(residual)))
        decoder_layernorm(d->ln, d->residual, w.ln1w, w.ln1b, rows, C);
        decoder_linear(d, d->qkv, NULL, d->ln, w.qkvw, w.qkvb, 0, C, 3 * C);
        decoder_attention(d, i, NH, C / NH);
        decoder_linear(d, d->residual, d->residual, d->atty, w.attprojw, w.attprojb, 0, C, C);
        // residual += fcproj(gelu(fc(ln2(residual))))
        decoder_layernorm(d->ln, d->residual, w.ln2w, w.ln2b, rows, C);
        decoder_linear(d, d->fch, NULL, d->ln, w.fcw, w.fcb, 1, C, 4 * C);
        decoder_linear(d, d->residual, d->residual, d->fch, w.fcprojw, w.fcprojb, 0, 4 * C, C);
    }
    decoder_head(d, p, C);
    d->num_rows = d->num_groups = 0;
}

// Appends a token to its sequence and to the pass, which is computed where it is full.
static void decoder_push(GPT2Decoder* d, int slot, int token, int last) {
    DecoderSequence* s = &d->sequences[slot];
    DecoderRow row = {slot, s->length++, last};
    d->tokens[(size_t)slot * (size_t)d->T + (size_t)row.position] = token;
    if (d->num_rows > 0 && d->rows[d->num_rows - 1].slot == slot && d->groups[d->num_groups - 1].count < TILE_ROWS) {
        d->groups[d->num_groups - 1].count++;
    } else {
        DecoderGroup begun = {d->num_rows, 1};
        d->groups[d->num_groups++] = begun;
    }
    d->rows[d->num_rows++] = row;
    if (d->num_rows == DECODER_ROWS) { decoder_pass(d); }
}

// ----------------------------------------------------------------------------
// Sequences

Status gpt2_decoder_prefill(GPT2Decoder* d, const DecoderPrompt* prompts, int num_prompts) {
    status_clear();
    TRY(gpt2_decoder_check_prompts(gpt2_info(d->model), prompts, num_prompts));
    for (int i = 0; i < num_prompts; i++) {
        const DecoderPrompt* p = &prompts[i];
        DecoderSequence begun = {0, 1, p->sampler, p->sample};
        d->sequences[p->slot] = begun;
        for (int k = 0; k < p->count; k++) { decoder_push(d, p->slot, p->tokens[k], k == p->count - 1); }
    }
    decoder_pass(d);
    return STATUS_OK;
}

Status gpt2_decoder_next(GPT2Decoder* d, int* tokens) {
    const int V = d->config.vocab_size;
    status_clear();
#pragma omp parallel for schedule(dynamic)
    for (int slot = 0; slot < d->B; slot++) {
        const DecoderSequence* s = &d->sequences[slot];
        const size_t at = (size_t)slot;
        tokens[slot] = -1;
        if (!s->active) { continue; }
        tokens[slot] =
            sample_token(d->logits + at * (size_t)V, V, &s->sampler, d->tokens + at * (size_t)d->T, s->length,
                         sampler_coin(s->sampler.seed, s->sample, (uint64_t)s->length), d->sampling + at * (size_t)V);
    }
    for (int slot = 0; slot < d->B; slot++) {
        if (tokens[slot] < 0) { continue; }
        if (d->sequences[slot].length < d->T) {
            decoder_push(d, slot, tokens[slot], 1);
        } else { // full
            d->sequences[slot].active = 0;
        }
    }
    decoder_pass(d);
    return STATUS_OK;
}

void gpt2_decoder_stop(GPT2Decoder* d, int slot) { d->sequences[slot].active = 0; }

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "llmc/generate/generate.h"

int main(int argc, char** argv) { return generate_main(argc, argv); }
#endif
