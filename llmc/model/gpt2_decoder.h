/*
Generation of sequences with a KV cache. Declared once; generate_gpt2.c and generate_gpt2.cu implement it. generate.h and the
tests are built on this file and gpt2_model.h alone. Both implementations read the trainer's model through gpt2_info and
gpt2_layer_parameters, on the GPU also gpt2_wait_weights and gpt2_stream.

    check(gpt2_decoder_create(&decoder, model, B, T));
    check(gpt2_decoder_prefill(decoder, prompts, num_prompts));
    while (any slot is active) { check(gpt2_decoder_next(decoder, tokens)); }
    gpt2_decoder_free(decoder);

A sequence's tokens and the bits of its logits depend on its own tokens, sampler and sample number alone, not on B or the other
slots; on the CPU, nor on how many tokens were processed at a time. (On the GPU a prompt uses the training's attention, sampled
tokens use decode attention.) Errors as in gpt2_model.h.
*/
#ifndef LLMC_MODEL_GPT2_DECODER_H
#define LLMC_MODEL_GPT2_DECODER_H

#include "gpt2_model.h"
#include "sampler.h"

typedef struct GPT2Decoder GPT2Decoder;

// One prompt of a batch: sequence `slot` is restarted with these tokens. The coin of the token at position p of the sequence is
// sampler_coin(sampler.seed, sample, p); the sampler's penalty applies to all tokens of the sequence so far.
typedef struct {
    int slot;          // 0 to B-1; one prompt of a batch has it
    const int* tokens; // (count)
    int count;         // 1 to T
    SamplerSettings sampler;
    uint64_t sample; // any number: sequences with the same one, and the same seed, have the same coins
} DecoderPrompt;

// Adds the caches and scratch of a decoder for B sequences of up to T tokens to a plan: the rows KV_CACHE, DECODER and
// HOST_DECODER. gpt2_model.h says how to read it.
Status gpt2_decoder_plan(GPT2Plan* plan, GPT2Config config, int B, int T);

// A decoder for B sequences of up to T tokens each, T <= max_seq_len, with a model whose weights are set, and stay as they are
// until gpt2_decoder_free. gpt2_allocate is not needed. On an error *decoder is NULL.
Status gpt2_decoder_create(GPT2Decoder** decoder, GPT2* model, int B, int T);

// Called before gpt2_free; NULL is allowed.
void gpt2_decoder_free(GPT2Decoder* d);

// Starts sequences, all in one batch. They are active afterwards.
Status gpt2_decoder_prefill(GPT2Decoder* d, const DecoderPrompt* prompts, int num_prompts);

// The next token of every active sequence: sampled from its logits, appended, and the logits after it computed. tokens (B): -1
// for slots that are not active. A sequence that has T tokens still gets a token, which is not appended, and is inactive
// afterwards.
Status gpt2_decoder_next(GPT2Decoder* d, int* tokens);

// Makes the sequence inactive: gpt2_decoder_next skips it.
void gpt2_decoder_stop(GPT2Decoder* d, int slot);

// ----------------------------------------------------------------------------
// What every implementation has beside its cache: buffers in one block of memory, by a table DECODER_BUFFERS(X, ctx) of
// X(ctx, type, name, count)

// The buffer's pointer, a member of GPT2Decoder
#define DECODER_POINTER(ctx, type, name, count) type* name;

// Points it into `memory`, unless the decoder d is NULL, and adds its bytes to `total`, which becomes SIZE_MAX on overflow.
#define DECODER_PLACE(ctx, type, name, count)                                                                          \
    if (d != NULL) { d->name = (type*)(void*)(memory + total); }                                                       \
    total = size_add(total, size_round_up(size_mul((count), sizeof(type)), 256));

// ----------------------------------------------------------------------------
// What every implementation checks

// Refuses prompts with tokens that the model does not have.
static inline Status gpt2_decoder_check_prompts(const GPT2Info* info, const DecoderPrompt* prompts, int num_prompts) {
    for (int i = 0; i < num_prompts; i++) { TRY(gpt2_check_tokens(info, prompts[i].tokens, (size_t)prompts[i].count)); }
    return STATUS_OK;
}

#endif
