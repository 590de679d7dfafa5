/*
From a checkpoint and prompts to text, on the GPU. The model is train_gpt2.cu's; the decoder, with its KV cache, is below:
llmc/model/gpt2_decoder.h documents its functions. The program is generate_main in generate/generate.h, which the CPU shares.

A step, one token of every active sequence, is a CUDA graph: the sampler, 5 kernels a layer, and the head:
    sample and embed | LN1, qkv | attention | attproj, + | LN2, fc, GELU | fcproj, + | ... | final LN, head
Kernels of their own normalise the inputs of qkv, fc and head. Each starts while its predecessor ends, and prefetches its
weights meanwhile (dependent_launch.cuh). For a few sequences all that follows the sampler is one kernel (decode/step.cuh), with
the same bits. The host reads a step's tokens from page-locked memory as soon as they are sampled, and launches the next step
while the GPU computes this one's logits. Prompts use the same kernels, with many rows at a time, or, long ones on Hopper, the
training's GEMM (prompt_linear()); their attention is the training's. decode/linear.cuh has the table of kernels.
*/
#include "train_gpt2.cu"

#include "dev/cuda/decode/decode.cuh"
#include "dev/cuda/decode/step.cuh"
#include "dev/cuda/decode/linear.cuh"
#include "dev/cuda/decode/sampler.cuh"
#include "llmc/model/gpt2_decoder.h"

enum {
    DECODER_PROMPT_ROWS = 8192, // tokens of prompts that are computed together; a longer prompt is computed alone
    DECODER_MAX_BUCKETS = 32
};

// A decoder's buffers beside its cache, in one block of memory. X(ctx, type, name, count); R: rows of prompts
// clang-format off
#define DECODER_BUFFERS(X, ctx)                                                                                        \
    X(ctx, floatX, x, B * C)                 /* (B,C) the residual stream */                                           \
    X(ctx, floatX, prompt_x, R * C)          /* (R,C) that of prompts */                                               \
    X(ctx, floatX, ln, R * C)                /* (R,C) LayerNorm's output */                                            \
    X(ctx, floatX, qkv, R * 3 * C)           /* (R,3,NH,HS) */                                                         \
    X(ctx, floatX, atty, R * C)              /* (R,NH,HS) attention output */                                          \
    X(ctx, floatX, fch, R * 4 * C)           /* (R,4C) after the GELU */                                               \
    X(ctx, float, l, R * NH)                 /* (B,NH,T) of a prompt's attention */                                    \
    X(ctx, float, m, R * NH)                 /* (B,NH,T) */                                                            \
    X(ctx, PromptRow, rows, R)               /* (R) */                                                                 \
    X(ctx, int, last, B)                     /* (B) the row in which a slot's prompt ends, or -1 */                    \
    X(ctx, float, logits, B * Vp)            /* (B,Vp) after each sequence's last token */                             \
    X(ctx, float, scratch, B * Vp)           /* (B,Vp) the sampler's */                                                \
    X(ctx, unsigned, seen, B * CEIL_DIV(V, 32)) /* (B,words) a bit for each token that the sequence has */             \
    X(ctx, DecodeSlot, slots, B)             /* (B) */                                                                 \
    X(ctx, int, positions, B)                /* (B) of the token that a step computes, or -1 */                        \
    X(ctx, unsigned, step, B)                /* (B) steps so far */                                                    \
    X(ctx, unsigned long long, row_keys, B)  /* (B) logit_key of the largest logit, or 0: it must be looked for */     \
    X(ctx, decode_step::Layer, layers, L + 1)                                                                          \
    X(ctx, unsigned, epochs, decode_step::MAX_CTAS)                                                                    \
    X(ctx, decode_step::Word, exchange, exchange_words)                                                                \
    X(ctx, char, attention_scratch, attention_bytes)
// clang-format on

// The host's view of a sequence
typedef struct {
    int length, active;
    int greedy; // the sampler takes the largest logit unmodified
    int keyed;  // what computed its last logits has left the key of the largest
} DecoderSequence;

// How a step begins: with the sampler's kernel or, if all sequences are greedy and have keys, with a kernel of few threads
enum DecoderBegin { BEGIN_SAMPLE, BEGIN_GREEDY, DECODER_BEGINS };

struct GPT2Decoder {
    GPT2* model;
    GPT2Config config;
    cudaStream_t stream; // the model's
    GPT2Plan plan;
    DeviceCode gpu;
    const decode_step::Kernel* step_kernel; // NULL: a step is several kernels
    decode_step::Step one_step;
    bool keyed; // the head of several kernels leaves the keys of the largest logits
    int B, T, R;
    floatX* cache; // (L,2,B,NH,T,HS) keys and values
    void* memory;
    DECODER_BUFFERS(DECODER_POINTER, )
    DecoderSequence* sequences;                                  // (B)
    unsigned steps;                                              // launched so far
    unsigned long long* words;                                   // (B) page-locked: sampled_word
    PromptRow* rows_host;                                        // (R)
    int* last_host;                                              // (B)
    DecodeSlot* slots_host;                                      // (B) page-locked: what a prompt's slot begins with
    DecoderPrompt* prompts;                                      // (B) in the order of their passes
    cudaGraphExec_t graphs[DECODER_BEGINS][DECODER_MAX_BUCKETS]; // caches of up to 2^i tokens
};

// ----------------------------------------------------------------------------
// Building and freeing

static int decoder_prompt_rows(int B, int T) {
    size_t all = (size_t)B * (size_t)T, most = T > DECODER_PROMPT_ROWS ? (size_t)T : (size_t)DECODER_PROMPT_ROWS;
    most = most > (size_t)B ? most : (size_t)B;
    return (int)(all < most ? all : most);
}

// Bytes of attention's scratch
static Status decoder_attention_bytes(size_t* bytes, GPT2Config config, int B, int T) {
    int NH = config.num_heads, HS = config.channels / NH;
    const char* fault = attention_unsupported(1, T, NH, HS); // of prompts
    if (fault != NULL) { return status_fail("attention: %s", fault); }
    *bytes = attention_decode_scratch_bytes(B, T, NH, HS);
    return status_now();
}

// Points a decoder's buffers into `memory`, unless d is NULL; returns their bytes, SIZE_MAX on overflow.
static size_t decoder_place(GPT2Decoder* d, char* memory, GPT2Config config, int B_, int T_, size_t attention_bytes) {
    size_t B = (size_t)B_, C = (size_t)config.channels, NH = (size_t)config.num_heads, total = 0;
    size_t R = (size_t)decoder_prompt_rows(B_, T_), V = (size_t)config.vocab_size,
           Vp = (size_t)config.padded_vocab_size, L = (size_t)config.num_layers;
    const decode_step::Kernel* step = decode_step::choice(B_, config.channels / config.num_heads);
    size_t exchange_words = step == NULL ? 0 : step->exchange_words(B_, config.channels, config.num_heads, T_);
    DECODER_BUFFERS(DECODER_PLACE, )
    return total;
}

// Elements of a layer's keys, or values, of all sequences
static size_t decoder_cache_size(GPT2Config config, int B, int T) {
    return size_mul(size_mul((size_t)B, (size_t)T), (size_t)config.channels);
}

Status gpt2_decoder_plan(GPT2Plan* plan, GPT2Config config, int B, int T) {
    size_t attention_bytes;
    status_clear();
    TRY(gpt2_config_status(config, "the model"));
    TRY(gpt2_check_sizes(config, B, T));
    TRY(decoder_attention_bytes(&attention_bytes, config, B, T));
    size_t cache = size_mul(decoder_cache_size(config, B, T), 2 * (size_t)config.num_layers * sizeof(floatX));
    size_t host = (size_t)B * (sizeof(unsigned long long) + sizeof(DecoderSequence) + sizeof(int));
    host += (size_t)B * (sizeof(DecodeSlot) + sizeof(DecoderPrompt));
    host += (size_t)decoder_prompt_rows(B, T) * sizeof(PromptRow);
    plan_set(plan, PLAN_KV_CACHE, PLAN_DEVICE, cache);
    plan_set(plan, PLAN_DECODER, PLAN_DEVICE, decoder_place(NULL, NULL, config, B, T, attention_bytes));
    plan_set(plan, PLAN_HOST_DECODER, PLAN_HOST, host);
    return STATUS_OK;
}

static DecodeBegin decoder_begin(const GPT2Decoder* d) {
    GPT2Config c = d->config;
    ParameterTensors all = gpt2_layer_parameters(d->model, 0);
    DecodeBegin p = {};
    p.slots = d->slots, p.positions = d->positions, p.seen = d->seen, p.logits = d->logits, p.scratch = d->scratch;
    p.row_keys = d->row_keys;
    p.x = d->x, p.wte = all.wte, p.wpe = all.wpe;
    p.step = d->step, p.word = d->words;
    p.T = d->T, p.V = c.vocab_size, p.Vp = c.padded_vocab_size, p.C = c.channels;
    p.words = (int)CEIL_DIV((size_t)c.vocab_size, 32);
    return p;
}

// Chooses between one kernel and several for a step, and copies the addresses of the weights, which are final, to the GPU.
static void decoder_plan_step(GPT2Decoder* d) {
    GPT2Config c = d->config;
    ParameterTensors all = gpt2_layer_parameters(d->model, 0);
    int L = c.num_layers;
    decode_step::Step p = {};
    if (!d->gpu.sm_90a) { return; }
    p.layers = d->layers, p.cache = d->cache, p.x = d->x, p.logits = d->logits, p.positions = d->positions;
    p.epochs = d->epochs, p.words = d->exchange, p.row_keys = d->row_keys;
    p.L = L, p.B = d->B, p.T = d->T, p.C = c.channels, p.NH = c.num_heads;
    p.V = c.vocab_size, p.Vp = c.padded_vocab_size;
    const decode_step::Kernel* kernel = decode_step::choice(d->B, c.channels / c.num_heads);
    if (kernel == NULL || !kernel->plan(&p, d->gpu.sms, d->gpu.shared_limit)) { return; }
    d->step_kernel = kernel, d->one_step = p;
    for (int i = 0; i <= L; i++) {
        decode_step::Layer layer = {{all.lnfw, NULL}, {all.lnfb, NULL}, {all.wte}, {}};
        if (i < L) {
            ParameterTensors w = gpt2_layer_parameters(d->model, i);
            layer = {{w.ln1w, w.ln2w},
                     {w.ln1b, w.ln2b},
                     {w.qkvw, w.attprojw, w.fcw, w.fcprojw},
                     {w.qkvb, w.attprojb, w.fcb, w.fcprojb}};
        }
        cuda_try(cudaMemcpyAsync(d->layers + i, &layer, sizeof(layer), cudaMemcpyHostToDevice, d->stream));
    }
}

// The head: logits (B,Vp) of the slots that have a position, from x (B,C)
static DecodeLinear decoder_head_layer(const GPT2Decoder* d) {
    GPT2Config c = d->config;
    ParameterTensors p = gpt2_layer_parameters(d->model, 0);
    DecodeLinear head = {};
    head.logits = d->logits, head.inp = d->x, head.weight = p.wte, head.positions = d->positions;
    head.norm_weight = p.lnfw, head.norm_bias = p.lnfb, head.row_keys = d->row_keys;
    head.M = d->B, head.C = c.channels, head.OC = c.vocab_size, head.stride = c.padded_vocab_size;
    return head;
}

static Status decoder_build(GPT2Decoder* d) {
    GPT2Config c = d->config;
    size_t attention_bytes, B = (size_t)d->B;
    TRY(gpt2_decoder_plan(&d->plan, c, d->B, d->T));
    TRY(decoder_attention_bytes(&attention_bytes, c, d->B, d->T));
    TRY(device_code(&d->gpu));
    const PlanRow *cache = &d->plan.rows[PLAN_KV_CACHE], *rest = &d->plan.rows[PLAN_DECODER];
    d->cache = (floatX*)tensor_alloc(cache->bytes, cache->name, PLAN_LESS_TO_DECODE);
    d->memory = tensor_alloc(rest->bytes, rest->name, PLAN_LESS_TO_DECODE);
    d->words = (unsigned long long*)pinned_alloc(B * sizeof(unsigned long long));
    d->slots_host = (DecodeSlot*)pinned_alloc(B * sizeof(DecodeSlot));
    TRY(status_now());
    d->R = decoder_prompt_rows(d->B, d->T);
    d->sequences = (DecoderSequence*)calloc(B, sizeof(DecoderSequence));
    d->rows_host = (PromptRow*)malloc((size_t)d->R * sizeof(PromptRow));
    d->last_host = (int*)malloc(B * sizeof(int));
    d->prompts = (DecoderPrompt*)malloc(B * sizeof(DecoderPrompt));
    if (d->sequences == NULL || d->rows_host == NULL || d->last_host == NULL || d->prompts == NULL) {
        return status_fail("no memory for a decoder");
    }
    decoder_place(d, (char*)d->memory, c, d->B, d->T, attention_bytes);
    memset(d->words, 0, B * sizeof(unsigned long long));
    // the cache, too: numbers read must be finite even if they are multiplied by 0
    cuda_try(cudaMemsetAsync(d->cache, 0, d->plan.rows[PLAN_KV_CACHE].bytes, d->stream));
    cuda_try(cudaMemsetAsync(d->memory, 0, d->plan.rows[PLAN_DECODER].bytes, d->stream));
    gpt2_wait_weights(d->model);
    decoder_plan_step(d);
    d->keyed = decode_keeps_keys(d->gpu, decoder_head_layer(d));
    return cuda_try(cudaStreamSynchronize(d->stream));
}

Status gpt2_decoder_create(GPT2Decoder** result, GPT2* model, int B, int T) {
    status_clear();
    *result = NULL;
    GPT2Decoder* d = (GPT2Decoder*)calloc(1, sizeof(GPT2Decoder));
    if (d == NULL) { return status_fail("no memory for a decoder"); }
    plan_clear(&d->plan);
    d->model = model, d->config = gpt2_info(model)->config, d->stream = gpt2_stream(model), d->B = B, d->T = T;
    if (decoder_build(d) != STATUS_OK) {
        gpt2_decoder_free(d);
        return STATUS_ERROR;
    }
    *result = d;
    return STATUS_OK;
}

void gpt2_decoder_free(GPT2Decoder* d) {
    if (d == NULL) { return; }
    cudaStreamSynchronize(d->stream);
    for (int i = 0; i < DECODER_MAX_BUCKETS; i++) {
        for (int begin = 0; begin < DECODER_BEGINS; begin++) {
            if (d->graphs[begin][i] != NULL) { cudaGraphExecDestroy(d->graphs[begin][i]); }
        }
    }
    if (d->cache != NULL) { cudaFree(d->cache); }
    if (d->memory != NULL) { cudaFree(d->memory); }
    if (d->words != NULL) { cudaFreeHost(d->words); }
    if (d->slots_host != NULL) { cudaFreeHost(d->slots_host); }
    (void)cudaGetLastError(); // or this thread's next decoder would report it
    free(d->sequences);
    free(d->rows_host);
    free(d->last_host);
    free(d->prompts);
    free(d);
}

// ----------------------------------------------------------------------------
// The layers

static floatX* decoder_keys(const GPT2Decoder* d, int layer) {
    return d->cache + (size_t)layer * 2 * decoder_cache_size(d->config, d->B, d->T);
}
static floatX* decoder_values(const GPT2Decoder* d, int layer) {
    return decoder_keys(d, layer) + decoder_cache_size(d->config, d->B, d->T);
}

// The rows that linear layers are applied to: M rows of the residual stream x (M,C); positions as in DecodeLinear
typedef struct {
    GPT2Decoder* d;
    floatX* x;
    const int* positions;
    int M, long_prompts;
} DecoderRows;

// p: what differs between layers
static void decoder_linear(DecoderRows r, DecodeLinear p) {
    p.positions = r.positions, p.M = r.M, p.stride = p.OC;
    if (r.long_prompts) {
        prompt_linear(r.d->gpu, p, r.d->ln, r.d->stream);
    } else {
        decode_linear(r.d->gpu, p, r.d->ln, r.d->stream);
    }
}
static void decoder_qkv(DecoderRows r, ParameterTensors w, int C) {
    DecodeLinear p = {};
    p.out = r.d->qkv, p.inp = r.x, p.weight = w.qkvw, p.bias = w.qkvb, p.norm_weight = w.ln1w, p.norm_bias = w.ln1b;
    p.C = C, p.OC = 3 * C, p.epilogue = DECODE_STORE, p.next_reads_early = 1;
    decoder_linear(r, p);
}
// x += attproj(atty);  x += fcproj(gelu(fc(ln2(x))))
static void decoder_after_attention(DecoderRows r, ParameterTensors w, int C) {
    DecodeLinear attproj = {}, fc = {}, fcproj = {};
    attproj.out = r.x, attproj.inp = r.d->atty, attproj.weight = w.attprojw, attproj.bias = w.attprojb;
    attproj.C = C, attproj.OC = C, attproj.epilogue = DECODE_RESIDUAL;
    decoder_linear(r, attproj);
    fc.out = r.d->fch, fc.inp = r.x, fc.weight = w.fcw, fc.bias = w.fcb, fc.norm_weight = w.ln2w, fc.norm_bias = w.ln2b;
    fc.C = C, fc.OC = 4 * C, fc.epilogue = DECODE_GELU;
    decoder_linear(r, fc);
    fcproj.out = r.x, fcproj.inp = r.d->fch, fcproj.weight = w.fcprojw, fcproj.bias = w.fcprojb;
    fcproj.C = 4 * C, fcproj.OC = C, fcproj.epilogue = DECODE_RESIDUAL;
    decoder_linear(r, fcproj);
}

static void decoder_head(GPT2Decoder* d) { decode_linear(d->gpu, decoder_head_layer(d), d->ln, d->stream); }

// One token of every slot that has a position
static void decoder_layers(GPT2Decoder* d, int max_length) {
    GPT2Config c = d->config;
    int C = c.channels, NH = c.num_heads;
    const DecoderRows rows = {d, d->x, d->positions, d->B, 0};
    for (int i = 0; i < c.num_layers; i++) {
        ParameterTensors w = gpt2_layer_parameters(d->model, i);
        decoder_qkv(rows, w, C);
        attention_decode(d->atty, decoder_keys(d, i), decoder_values(d, i), d->qkv, d->positions, d->attention_scratch,
                         d->B, d->T, NH, C / NH, max_length, d->stream);
        decoder_after_attention(rows, w, C);
    }
    decoder_head(d);
}

// ----------------------------------------------------------------------------
// A step as a CUDA graph

// The first kernel is no dependent launch: all work before the graph has completed.
static void decoder_launch_step(GPT2Decoder* d, DecoderBegin begin, int max_length) {
    if (begin == BEGIN_SAMPLE) {
        decode_sample_kernel<<<(unsigned)d->B, SAMPLE_THREADS, 0, d->stream>>>(decoder_begin(d));
    } else {
        decode_greedy_kernel<<<(unsigned)d->B, GREEDY_THREADS, 0, d->stream>>>(decoder_begin(d));
    }
    cuda_try(cudaGetLastError());
    if (d->step_kernel != NULL) {
        d->step_kernel->launch(d->gpu, d->one_step, max_length, d->stream);
    } else {
        decoder_layers(d, max_length);
    }
}

// The graph of a step, captured at its first use. max_length: tokens of the longest sequence after the step; a graph serves up
// to the next power of two.
static Status decoder_graph(GPT2Decoder* d, cudaGraphExec_t* result, DecoderBegin begin, int max_length) {
    int bucket = 6; // 64
    while (1 << bucket < max_length) { bucket++; }
    cudaGraphExec_t* exec = &d->graphs[begin][bucket];
    if (*exec == NULL) {
        int bound = d->T < 1 << bucket ? d->T : 1 << bucket;
        TRY(pass_graph_capture(exec, d->stream, [&] { decoder_launch_step(d, begin, bound); }));
    }
    *result = *exec;
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Prompts

// Caches k and v of a layer's N rows, and computes their attention: consecutive prompts of equal length as one batch, with the
// configuration that each would have alone, for the same bits.
static void decoder_prompt_attention(GPT2Decoder* d, int layer, const DecoderPrompt* prompts, int num_prompts, int N) {
    int C = d->config.channels, NH = d->config.num_heads, HS = C / NH;
    cudaStream_t stream = d->stream;
    launch_dependent(d->gpu, prompt_cache_kernel, (unsigned)N, 128, 0, 1, stream, decoder_keys(d, layer),
                     decoder_values(d, layer), d->qkv, d->rows, d->T, NH, HS);
    size_t row = 0;
    for (int i = 0, end; i < num_prompts; i = end) {
        int T = prompts[i].count;
        for (end = i + 1; end < num_prompts && prompts[end].count == T;) { end++; }
        const AttentionForwardConfig* config = attention_forward_choice(1, T, NH, HS).config;
        if (config == nullptr) { return; }
        config->launch(d->atty + row * (size_t)C, d->l, d->m, d->qkv + row * 3 * (size_t)C, end - i, T, NH, HS, stream);
        row += (size_t)(end - i) * (size_t)T;
    }
}

static int decoder_prompt_is_long(const GPT2Decoder* d, const DecoderPrompt* p) {
    return prompt_gemm_serves(d->gpu) && p->count >= PROMPT_GEMM_TOKENS;
}

// Processes prompts of at most R tokens in all, either all long or none: fills the caches, computes the logits after each, and
// sets their slots
static Status decoder_prompts(GPT2Decoder* d, const DecoderPrompt* prompts, int num_prompts) {
    ParameterTensors p = gpt2_layer_parameters(d->model, 0);
    int C = d->config.channels, N = 0, words = (int)CEIL_DIV((size_t)d->config.vocab_size, 32);
    cudaStream_t stream = d->stream;
    for (int b = 0; b < d->B; b++) { d->last_host[b] = -1; }
    for (int i = 0; i < num_prompts; i++) {
        for (int t = 0; t < prompts[i].count; t++) { d->rows_host[N++] = {prompts[i].tokens[t], prompts[i].slot, t}; }
        d->last_host[prompts[i].slot] = N - 1;
        d->slots_host[prompts[i].slot] = {prompts[i].sampler, prompts[i].sample, prompts[i].count, 1};
    }
    cuda_try(cudaMemcpyAsync(d->rows, d->rows_host, (size_t)N * sizeof(PromptRow), cudaMemcpyHostToDevice, stream));
    cuda_try(cudaMemcpyAsync(d->last, d->last_host, (size_t)d->B * sizeof(int), cudaMemcpyHostToDevice, stream));
    int is_long = decoder_prompt_is_long(d, prompts);
    launch_dependent(d->gpu, prompt_embed_kernel, (unsigned)N, 128, 0, 1, stream, d->prompt_x, d->rows, p.wte, p.wpe,
                     C);
    const DecoderRows rows = {d, d->prompt_x, NULL, N, is_long};
    for (int i = 0; i < d->config.num_layers; i++) {
        ParameterTensors w = gpt2_layer_parameters(d->model, i);
        decoder_qkv(rows, w, C);
        decoder_prompt_attention(d, i, prompts, num_prompts, N);
        decoder_after_attention(rows, w, C);
    }
    launch_dependent(d->gpu, prompt_last_kernel, (unsigned)d->B, 128, 0, 1, stream, d->x, d->positions, d->row_keys,
                     d->prompt_x, d->last, d->rows, C);
    decoder_head(d);
    decode_begin_slots_kernel<<<(unsigned)d->B, 256, 0, stream>>>(d->slots, d->seen, d->slots_host, d->last, d->rows,
                                                                  words);
    cuda_try(cudaGetLastError());
    TRY(cuda_try(cudaStreamSynchronize(stream))); // the host's rows and slots are free again
    return status_now();
}

Status gpt2_decoder_prefill(GPT2Decoder* d, const DecoderPrompt* prompts, int num_prompts) {
    status_clear();
    TRY(gpt2_decoder_check_prompts(gpt2_info(d->model), prompts, num_prompts));
    NvtxRange range("prompts");
    gpt2_wait_weights(d->model);
    int sorted = 0;
    for (int is_long = 1; is_long >= 0; is_long--) {
        for (int i = 0; i < num_prompts; i++) {
            if (decoder_prompt_is_long(d, &prompts[i]) == is_long) { d->prompts[sorted++] = prompts[i]; }
        }
    }
    for (int i = 0, end; i < num_prompts; i = end) {
        int N = 0, is_long = decoder_prompt_is_long(d, &d->prompts[i]);
        for (end = i; end < num_prompts && N + d->prompts[end].count <= d->R; end++) {
            if (decoder_prompt_is_long(d, &d->prompts[end]) != is_long) { break; }
            N += d->prompts[end].count;
        }
        TRY(decoder_prompts(d, d->prompts + i, end - i));
    }
    for (int i = 0; i < num_prompts; i++) {
        const DecoderPrompt* p = &prompts[i];
        d->sequences[p->slot] = {p->count, 1, sampler_is_greedy(&p->sampler), d->keyed};
    }
    return status_now();
}

// ----------------------------------------------------------------------------
// Steps

static int decoder_keys_steps(const GPT2Decoder* d) { return d->keyed || d->step_kernel != NULL; }
// Waits for the step's tokens, which the GPU writes before it computes the layers.
static Status decoder_wait(GPT2Decoder* d, int* tokens) {
    const volatile unsigned long long* words = d->words;
    for (int b = 0; b < d->B; b++) {
        for (unsigned spins = 1; (unsigned)(words[b] >> 32) != d->steps; spins++) {
            if (spins % 4096 != 0) { continue; }
            cudaError_t error = cudaStreamQuery(d->stream);
            if (error == cudaErrorNotReady) { continue; }
            TRY(cuda_try(error));
            if ((unsigned)(words[b] >> 32) != d->steps) { return status_fail("decode: a step ended without a token"); }
        }
        tokens[b] = (int)(unsigned)words[b];
    }
    return STATUS_OK;
}

Status gpt2_decoder_next(GPT2Decoder* d, int* tokens) {
    int active = 0, sampled = 0, max_length = 1; // sampled: that need the sampler
    status_clear();
    for (int b = 0; b < d->B; b++) {
        const DecoderSequence* s = &d->sequences[b];
        tokens[b] = -1;
        active += s->active;
        sampled += s->active && !(s->greedy && s->keyed);
        if (s->active && s->length < d->T && s->length + 1 > max_length) { max_length = s->length + 1; }
    }
    if (active == 0) { return STATUS_OK; }
    NvtxRange range("step");
    cudaGraphExec_t graph;
    TRY(decoder_graph(d, &graph, sampled ? BEGIN_SAMPLE : BEGIN_GREEDY, max_length));
    TRY(cuda_try(cudaGraphLaunch(graph, d->stream)));
    d->steps++;
    TRY(decoder_wait(d, tokens));
    for (int b = 0; b < d->B; b++) {
        DecoderSequence* s = &d->sequences[b];
        if (!s->active) { continue; }
        if (s->length < d->T) {
            s->length++, s->keyed = decoder_keys_steps(d);
        } else {
            s->active = 0;
        }
    }
    return STATUS_OK;
}

void gpt2_decoder_stop(GPT2Decoder* d, int slot) {
    if (!d->sequences[slot].active) { return; }
    decode_stop_kernel<<<1, 1, 0, d->stream>>>(d->slots, slot);
    cuda_try(cudaGetLastError());
    d->sequences[slot].active = 0;
}

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "llmc/generate/generate.h"

int main(int argc, char** argv) { return generate_main(argc, argv); }
#endif
