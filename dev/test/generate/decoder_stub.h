/*
A decoder without a model, for tests of the program: the logits after a sequence are random numbers that all of its tokens
decide over, or say which token follows (`script`, where the test has one). It counts what it is asked for.
*/
#ifndef DECODER_STUB_H
#define DECODER_STUB_H

#include "llmc/model/gpt2_decoder.h"

typedef struct {
    int length, active;
    int* tokens; // (T)
    SamplerSettings sampler;
    uint64_t sample;
} StubSlot;

struct GPT2Decoder {
    int B, T, V;
    StubSlot* slots; // (B)
    float* logits;   // (3 * V), of which two thirds are scratch
    // the test's: the token after a sequence whose prompt begins with `first` and that has `length` tokens
    int (*script)(int first, int length);
    int forgets; // 1: the logits are the same after every sequence
    int prefills, prefilled, longest_prompt;
};

static inline GPT2Decoder* stub_create(int B, int T, int V) {
    GPT2Decoder* d = (GPT2Decoder*)calloc_check(1, sizeof(GPT2Decoder));
    d->B = B, d->T = T, d->V = V;
    d->slots = (StubSlot*)calloc_check((size_t)B, sizeof(StubSlot));
    d->logits = (float*)malloc_check(3 * (size_t)V * sizeof(float));
    for (int i = 0; i < B; i++) { d->slots[i].tokens = (int*)malloc_check((size_t)T * sizeof(int)); }
    return d;
}

void gpt2_decoder_free(GPT2Decoder* d) {
    for (int i = 0; i < d->B; i++) { free(d->slots[i].tokens); }
    free(d->slots);
    free(d->logits);
    free(d);
}

Status gpt2_decoder_prefill(GPT2Decoder* d, const DecoderPrompt* prompts, int num_prompts) {
    d->prefills++;
    d->prefilled += num_prompts;
    for (int i = 0; i < num_prompts; i++) {
        const DecoderPrompt* p = &prompts[i];
        if (p->slot < 0 || p->slot >= d->B || p->count < 1 || p->count > d->T) {
            return status_fail("a prompt of %d tokens for slot %d", p->count, p->slot);
        }
        StubSlot* s = &d->slots[p->slot];
        d->longest_prompt = p->count > d->longest_prompt ? p->count : d->longest_prompt;
        s->length = p->count, s->active = 1, s->sampler = p->sampler, s->sample = p->sample;
        memcpy(s->tokens, p->tokens, (size_t)p->count * sizeof(int));
    }
    return STATUS_OK;
}

static int stub_next(GPT2Decoder* d, StubSlot* s) {
    if (d->script != NULL) { return d->script(s->tokens[0], s->length); }
    uint64_t hash = 0;
    for (int i = 0; i < s->length && !d->forgets; i++) { hash = mix64(hash + (uint64_t)s->tokens[i] + 1); }
    for (int v = 0; v < d->V; v++) { d->logits[v] = 4.0f * sampler_coin(hash, (uint64_t)v, 0); }
    float coin = sampler_coin(s->sampler.seed, s->sample, (uint64_t)s->length);
    return sample_token(d->logits, d->V, &s->sampler, s->tokens, s->length, coin, d->logits + d->V);
}

Status gpt2_decoder_next(GPT2Decoder* d, int* tokens) {
    for (int i = 0; i < d->B; i++) {
        StubSlot* s = &d->slots[i];
        tokens[i] = -1;
        if (!s->active) { continue; }
        tokens[i] = stub_next(d, s);
        s->active = s->length < d->T;
        if (s->active) { s->tokens[s->length++] = tokens[i]; }
    }
    return STATUS_OK;
}

void gpt2_decoder_stop(GPT2Decoder* d, int slot) { d->slots[slot].active = 0; }

#endif
