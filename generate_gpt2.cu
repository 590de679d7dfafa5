/*
From a checkpoint and prompts to text, on the GPU. The model is train_gpt2.cu's; the decoder, with its KV cache, is below:
llmc/model/gpt2_decoder.h documents its functions. The program is generate_main in generate/generate.h, which the CPU shares.

A step, one token of every active sequence, is a CUDA graph: the sampler, 5 kernels a layer, and the head:
    sample and embed | LN1, qkv | attention | attproj, + | LN2, fc, GELU | fcproj, + | ... | final LN, head
Two more prepare the inputs of qkv and fc where these do not: they normalise them (from four sequences on; in fp32, and before
Hopper, from 17), or, where LayerNorm is folded (decode/folded_norm.cuh) and no moments are there, compute the statistics.
Each starts while its predecessor ends, and prefetches its weights meanwhile (dependent_launch.cuh). For a few sequences all
that follows the sampler is one kernel (decode/step.cuh), with the same bits; where all active sequences are greedy it samples,
too. The host reads a step's tokens from page-locked memory as soon as they are sampled, and launches the next step while the
GPU computes this one's logits. Prompts use the same kernels, with many rows at a time, or, long ones on Hopper, the training's
GEMM (prompt_matmul.cuh); their attention is the training's.
*/
#ifndef ATTENTION_BACKWARD
#define ATTENTION_BACKWARD naive // never launched: the one that compiles fastest
#endif
#include "train_gpt2.cu"

#include "dev/cuda/decode/decode.cuh"
#include "dev/cuda/decode/step.cuh"
#include "dev/cuda/decode/prompt_matmul.cuh"
#include "dev/cuda/decode/linear.cuh"
#include "dev/cuda/decode/sampler.cuh"
#include "llmc/model/gpt2_decoder.h"

enum {
    DECODER_PROMPT_ROWS = 8192, // tokens of prompts that are computed together; a longer prompt is computed alone
    DECODER_MAX_BUCKETS = 32,
    DECODER_MOMENT_ROWS = 64 // of the residual stream, with folded LayerNorms: decode/cluster_matmul.cuh serves no more
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
    X(ctx, int, feed, 2)                     /* (2) slot and token of an appended one */                               \
    X(ctx, unsigned long long, row_keys, B)  /* (B) logit_key of the largest logit, or 0: it must be looked for */     \
    X(ctx, floatX, folded_weights, folded * L * 7 * C * C) /* (L,7C,C) of qkv (3C) and fc (4C): decode/folded_norm.cuh */ \
    X(ctx, float2, norm_sums, folded * L * 7 * C)          /* (L,7C) */                                                \
    X(ctx, RowStatistics, statistics, folded * R)                                                                      \
    X(ctx, float2, moments, folded * DECODER_MOMENT_ROWS * C / x128::size) /* (rows,C/8) of x's vectors */            \
    X(ctx, decode_step::Layer, layers, L + 1)                                                                          \
    X(ctx, unsigned, epochs, decode_step::MAX_CTAS)                                                                    \
    X(ctx, decode_step::Word, exchange, exchange_words)                                                                \
    X(ctx, decode_step::Word, keys, exchange_words == 0 ? 0 : B * decode_step::MAX_CTAS)                               \
    X(ctx, char, attention_scratch, attention_bytes)
// clang-format on

// The host's view of a sequence
typedef struct {
    int length, active;
    int greedy; // the sampler takes the largest logit unmodified
    int keyed;  // its last logits were computed by the one-kernel step, which has stored the key of the largest
} DecoderSequence;

// How a step begins: with the sampler's kernel; with a given token; or, if all sequences are greedy and have keys, with a
// kernel of few threads, or with none where the step is one kernel, which samples
enum DecoderBegin { BEGIN_SAMPLE, BEGIN_FEED, BEGIN_GREEDY, DECODER_BEGINS };

struct GPT2Decoder {
    GPT2* model;
    GPT2Config config;
    cudaStream_t stream; // the model's
    GPT2Plan plan;
    LaunchGpu gpu;
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
    float* logits_host;                                          // (V) page-locked
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

// Bytes of attention's scratch; without a GPU: for one whose shared memory fits every configuration
static Status decoder_attention_bytes(size_t* bytes, GPT2Config config, int B, int T) {
    int NH = config.num_heads, HS = config.channels / NH;
    const char* fault = attention_decode_unsupported(B, T, NH, HS, T);
    if (fault == NULL) { fault = attention_unsupported(1, T, NH, HS); }
    if (fault != NULL) { return status_fail("attention: %s", fault); }
    AttentionGpu gpu;
    if (attention_gpu(&gpu) != STATUS_OK) {
        status_clear();
        gpu = {90, SIZE_MAX};
    }
    const Variants<AttentionDecodeConfig>& all = attention_decode_configs;
    const AttentionDecodeConfig* c = attention_config(all.first, all.count, nullptr, HS, gpu.shared_limit);
    if (c == nullptr) { return status_fail("decode: no configuration for head size %d fits this GPU", HS); }
    *bytes = c->scratch_bytes(B, T, NH, HS);
    return STATUS_OK;
}

// Points a decoder's buffers into `memory`, unless d is NULL; returns their bytes, SIZE_MAX on overflow.
static size_t decoder_place(GPT2Decoder* d, char* memory, GPT2Config config, int B_, int T_, size_t attention_bytes) {
    size_t B = (size_t)B_, C = (size_t)config.channels, NH = (size_t)config.num_heads, total = 0;
    size_t R = (size_t)decoder_prompt_rows(B_, T_), V = (size_t)config.vocab_size,
           Vp = (size_t)config.padded_vocab_size, L = (size_t)config.num_layers;
    size_t folded = (size_t)decode_norm_foldable(config.channels);
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
    TRY(gpt2_decoder_check_sizes(config, B, T));
    TRY(decoder_attention_bytes(&attention_bytes, config, B, T));
    size_t cache = size_mul(decoder_cache_size(config, B, T), 2 * (size_t)config.num_layers * sizeof(floatX));
    size_t host = (size_t)B * (sizeof(unsigned long long) + sizeof(DecoderSequence) + sizeof(int));
    host += (size_t)B * (sizeof(DecodeSlot) + sizeof(DecoderPrompt));
    host += (size_t)decoder_prompt_rows(B, T) * sizeof(PromptRow);
    host += (size_t)config.padded_vocab_size * sizeof(float);
    plan_set(plan, PLAN_KV_CACHE, PLAN_DEVICE, cache);
    plan_set(plan, PLAN_DECODER, PLAN_DEVICE, decoder_place(NULL, NULL, config, B, T, attention_bytes));
    plan_set(plan, PLAN_HOST_DECODER, PLAN_HOST, host);
    return STATUS_OK;
}

// Where so many rows of the residual stream have their vectors' moments, or NULL
static float2* decoder_moments(const GPT2Decoder* d, int rows) {
    bool folded = decode_folds_norm(d->gpu, d->config.channels);
    return folded && rows <= DECODER_MOMENT_ROWS ? d->moments : NULL;
}

static DecodeBegin decoder_begin(const GPT2Decoder* d) {
    GPT2Config c = d->config;
    ParameterTensors all = gpt2_layer_parameters(d->model, 0);
    DecodeBegin p = {};
    p.slots = d->slots, p.positions = d->positions, p.seen = d->seen, p.logits = d->logits, p.scratch = d->scratch;
    p.row_keys = d->row_keys;
    p.x = d->x, p.moments = decoder_moments(d, d->B), p.wte = all.wte, p.wpe = all.wpe;
    p.step = d->step, p.word = d->words, p.feed = d->feed;
    p.T = d->T, p.V = c.vocab_size, p.Vp = c.padded_vocab_size, p.C = c.channels;
    p.words = (int)CEIL_DIV((size_t)c.vocab_size, 32);
    return p;
}

// Where a layer's LayerNorm is folded: F (OC,C), s and t (OC) of qkv (OC = 3C), or with half 1 of fc (4C); else NULL
typedef struct {
    floatX* weight;
    float2* sums;
} FoldedNorm;
static FoldedNorm decoder_folded_norm(const GPT2Decoder* d, int layer, int half) {
    size_t C = (size_t)d->config.channels, row = ((size_t)layer * 7 + (half == 0 ? 0 : 3)) * C;
    if (!decode_folds_norm(d->gpu, (int)C)) { return {}; }
    return {d->folded_weights + row * C, d->norm_sums + row};
}
static void decoder_fold_norms(GPT2Decoder* d) {
    int C = d->config.channels;
    for (int i = 0; i < d->config.num_layers && decode_folds_norm(d->gpu, C); i++) {
        ParameterTensors w = gpt2_layer_parameters(d->model, i);
        FoldedNorm qkv = decoder_folded_norm(d, i, 0), fc = decoder_folded_norm(d, i, 1);
        cudaStream_t stream = d->stream;
        decode_fold_norm(qkv.weight, qkv.sums, w.qkvw, w.qkvb, w.ln1w, w.ln1b, C, 3 * C, stream);
        decode_fold_norm(fc.weight, fc.sums, w.fcw, w.fcb, w.ln2w, w.ln2b, C, 4 * C, stream);
    }
}

// Chooses between one kernel and several for a step, and copies the addresses of the weights, which are final, to the GPU.
static void decoder_plan_step(GPT2Decoder* d) {
    GPT2Config c = d->config;
    ParameterTensors all = gpt2_layer_parameters(d->model, 0);
    int CTAs = d->gpu.sms, L = c.num_layers;
    decode_step::Step p = {};
    if (!d->gpu.hopper) { return; }
    p.layers = d->layers, p.cache = d->cache, p.x = d->x, p.logits = d->logits, p.positions = d->positions;
    p.epochs = d->epochs, p.words = d->exchange, p.keys = d->keys, p.begin = decoder_begin(d);
    p.L = L, p.B = d->B, p.T = d->T, p.C = c.channels, p.NH = c.num_heads;
    p.V = c.vocab_size, p.Vp = c.padded_vocab_size;
    d->step_kernel = decode_step::choice(d->B, c.channels / c.num_heads);
    if (d->step_kernel == NULL) { return; }
    if (CTAs > decode_step::MAX_CTAS || !d->step_kernel->plan(&p, CTAs, d->gpu.shared_limit)) {
        d->step_kernel = NULL;
        return;
    }
    d->one_step = p;
    for (int i = 0; i <= L; i++) {
        decode_step::Layer layer = {{all.lnfw, NULL}, {all.lnfb, NULL}, {all.wte}, {}, {}};
        if (i < L) {
            ParameterTensors w = gpt2_layer_parameters(d->model, i);
            layer = {{w.ln1w, w.ln2w},
                     {w.ln1b, w.ln2b},
                     {w.qkvw, w.attprojw, w.fcw, w.fcprojw},
                     {w.qkvb, w.attprojb, w.fcb, w.fcprojb},
                     {}};
            for (int half = 0; half < 2; half++) {
                FoldedNorm folded = decoder_folded_norm(d, i, half);
                layer.norm_sums[half] = folded.sums;
                if (folded.weight != NULL) {
                    layer.weight[half == 0 ? decode_step::QKV : decode_step::FC] = folded.weight;
                }
            }
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
    TRY(launch_gpu(&d->gpu));
    const PlanRow *cache = &d->plan.rows[PLAN_KV_CACHE], *rest = &d->plan.rows[PLAN_DECODER];
    d->cache = (floatX*)tensor_alloc(cache->bytes, cache->name, PLAN_LESS_TO_DECODE);
    d->memory = tensor_alloc(rest->bytes, rest->name, PLAN_LESS_TO_DECODE);
    d->words = (unsigned long long*)pinned_alloc(B * sizeof(unsigned long long));
    d->logits_host = (float*)pinned_alloc((size_t)c.padded_vocab_size * sizeof(float));
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
    decoder_fold_norms(d);
    decoder_plan_step(d);
    d->keyed = d->step_kernel == NULL && decode_keeps_keys(d->gpu, decoder_head_layer(d));
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
    if (d->logits_host != NULL) { cudaFreeHost(d->logits_host); }
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

// The rows that linear layers are applied to: M rows of the residual stream x (M,C); positions as in DecodeLinear. moments
// (M,C/8): of x's vectors, or NULL; moments_written: whether the last kernel that wrote x has written them, too
typedef struct {
    GPT2Decoder* d;
    floatX* x;
    float2* moments;
    bool* moments_written;
    const int* positions;
    int M, long_prompts;
} DecoderRows;

static void decoder_linear(DecoderRows r, floatX* out, const floatX* inp, const floatX* weight, const floatX* bias,
                           const floatX* norm_weight, const floatX* norm_bias, FoldedNorm folded, int C, int OC,
                           DecodeEpilogue epilogue, int before_attention = 0) {
    DecodeLinear p = {};
    p.out = out, p.inp = inp, p.weight = weight, p.bias = bias, p.norm_weight = norm_weight, p.norm_bias = norm_bias;
    if (folded.sums != NULL && !r.long_prompts) {
        p.weight = folded.weight, p.norm_sums = folded.sums, p.statistics = r.d->statistics;
        p.norm_weight = p.norm_bias = NULL;
        if (*r.moments_written) { p.moments = r.moments; }
    }
    if (epilogue == DECODE_RESIDUAL) { p.out_moments = r.moments; }
    p.positions = r.positions, p.M = r.M, p.C = C, p.OC = OC, p.stride = OC, p.epilogue = epilogue;
    p.next_reads_early = before_attention;
    if (r.long_prompts) {
        prompt_linear(r.d->gpu, p, r.d->ln, r.d->stream);
        return;
    }
    bool written = decode_linear(r.d->gpu, p, r.d->ln, r.d->stream);
    if (epilogue == DECODE_RESIDUAL) { *r.moments_written = written; }
}
static void decoder_qkv(DecoderRows r, int layer, ParameterTensors w, int C) {
    FoldedNorm folded = decoder_folded_norm(r.d, layer, 0);
    decoder_linear(r, r.d->qkv, r.x, w.qkvw, w.qkvb, w.ln1w, w.ln1b, folded, C, 3 * C, DECODE_STORE, 1);
}
// x += attproj(atty);  x += fcproj(gelu(fc(ln2(x))))
static void decoder_after_attention(DecoderRows r, int layer, ParameterTensors w, int C) {
    FoldedNorm folded = decoder_folded_norm(r.d, layer, 1);
    decoder_linear(r, r.x, r.d->atty, w.attprojw, w.attprojb, NULL, NULL, {}, C, C, DECODE_RESIDUAL);
    decoder_linear(r, r.d->fch, r.x, w.fcw, w.fcb, w.ln2w, w.ln2b, folded, C, 4 * C, DECODE_GELU);
    decoder_linear(r, r.x, r.d->fch, w.fcprojw, w.fcprojb, NULL, NULL, {}, 4 * C, C, DECODE_RESIDUAL);
}

static void decoder_head(GPT2Decoder* d) { decode_linear(d->gpu, decoder_head_layer(d), d->ln, d->stream); }

// One token of every slot that has a position
static void decoder_layers(GPT2Decoder* d, int max_length) {
    GPT2Config c = d->config;
    int C = c.channels, NH = c.num_heads;
    float2* moments = decoder_moments(d, d->B);
    bool written = moments != NULL; // by the kernel that has embedded the tokens
    DecoderRows rows = {d, d->x, moments, &written, d->positions, d->B, 0};
    for (int i = 0; i < c.num_layers; i++) {
        ParameterTensors w = gpt2_layer_parameters(d->model, i);
        decoder_qkv(rows, i, w, C);
        attention_decode(d->atty, decoder_keys(d, i), decoder_values(d, i), d->qkv, d->positions, d->attention_scratch,
                         d->B, d->T, NH, C / NH, max_length, d->stream);
        decoder_after_attention(rows, i, w, C);
    }
    decoder_head(d);
}

// ----------------------------------------------------------------------------
// A step as a CUDA graph

// The first kernel is no dependent launch: all work before the graph has completed.
static void decoder_launch_step(GPT2Decoder* d, DecoderBegin begin, int max_length) {
    if (begin == BEGIN_FEED) { decode_feed_kernel<<<(unsigned)d->B, 256, 0, d->stream>>>(decoder_begin(d)); }
    if (begin == BEGIN_SAMPLE) {
        decode_sample_kernel<<<(unsigned)d->B, SAMPLE_THREADS, 0, d->stream>>>(decoder_begin(d));
    }
    if (begin == BEGIN_GREEDY && d->step_kernel == NULL) {
        decode_greedy_kernel<<<(unsigned)d->B, GREEDY_THREADS, 0, d->stream>>>(decoder_begin(d));
    }
    cuda_try(cudaGetLastError());
    if (d->step_kernel != NULL) {
        d->step_kernel->launch(d->gpu, d->one_step, begin == BEGIN_GREEDY, max_length, d->stream);
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
    cudaGraph_t graph = NULL;
    if (*exec == NULL) {
        int bound = d->T < 1 << bucket ? d->T : 1 << bucket;
        // relaxed: a kernel's first launch may load it
        TRY(cuda_try(cudaStreamBeginCapture(d->stream, cudaStreamCaptureModeRelaxed)));
        decoder_launch_step(d, begin, bound);
        cuda_try(cudaStreamEndCapture(d->stream, &graph));
        if (status_now() == STATUS_OK) { cuda_try(cudaGraphInstantiate(exec, graph, 0)); }
        if (graph != NULL) { cudaGraphDestroy(graph); }
        TRY(status_now());
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
    prompt_cache(d->gpu, decoder_keys(d, layer), decoder_values(d, layer), d->qkv, d->rows, N, d->T, NH, HS, stream);
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
    float2* moments = is_long ? NULL : decoder_moments(d, N);
    bool written = moments != NULL;
    prompt_embed(d->gpu, d->prompt_x, moments, d->rows, p.wte, p.wpe, N, C, stream);
    DecoderRows rows = {d, d->prompt_x, moments, &written, NULL, N, is_long};
    for (int i = 0; i < d->config.num_layers; i++) {
        ParameterTensors w = gpt2_layer_parameters(d->model, i);
        decoder_qkv(rows, i, w, C);
        decoder_prompt_attention(d, i, prompts, num_prompts, N);
        decoder_after_attention(rows, i, w, C);
    }
    prompt_last(d->gpu, d->x, d->positions, d->row_keys, d->prompt_x, d->last, d->rows, d->B, C, stream);
    decoder_head(d);
    decode_begin_slots_kernel<<<(unsigned)d->B, 256, 0, stream>>>(d->slots, d->seen, d->slots_host, d->last, d->rows,
                                                                  words);
    cuda_try(cudaGetLastError());
    TRY(cuda_try(cudaStreamSynchronize(stream))); // the host's rows and slots are free again
    return status_now();
}

Status gpt2_decoder_prefill(GPT2Decoder* d, const DecoderPrompt* prompts, int num_prompts) {
    status_clear();
    TRY(gpt2_decoder_check_prompts(gpt2_info(d->model), prompts, num_prompts, d->B, d->T));
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
        d->sequences[p->slot] = {p->count, 1, sampler_is_greedy(&p->sampler), 0};
    }
    return status_now();
}

// ----------------------------------------------------------------------------
// Steps

static int decoder_has(const GPT2Decoder* d, int slot) { return slot >= 0 && slot < d->B; }

int gpt2_decoder_length(const GPT2Decoder* d, int slot) { return decoder_has(d, slot) ? d->sequences[slot].length : 0; }

Status gpt2_decoder_append(GPT2Decoder* d, int slot, const int* tokens, int count) {
    status_clear();
    TRY(gpt2_decoder_check_append(gpt2_info(d->model), slot, gpt2_decoder_length(d, slot), tokens, count, d->B, d->T));
    NvtxRange range("append");
    for (int i = 0; i < count; i++) {
        cudaGraphExec_t graph;
        TRY(decoder_graph(d, &graph, BEGIN_FEED, d->sequences[slot].length + 1));
        decode_set_feed_kernel<<<1, 1, 0, d->stream>>>(d->feed, slot, tokens[i]);
        TRY(cuda_try(cudaGetLastError()));
        TRY(cuda_try(cudaGraphLaunch(graph, d->stream)));
        d->sequences[slot].length++;
        d->sequences[slot].keyed = d->step_kernel != NULL;
    }
    return STATUS_OK;
}

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
        sampled += s->active && !(s->greedy && (s->keyed || d->keyed));
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
            s->length++;
            s->keyed = d->step_kernel != NULL;
        } else {
            s->active = 0;
        }
    }
    return STATUS_OK;
}

static void decoder_set_active(GPT2Decoder* d, int slot, int active) {
    if (d->sequences[slot].active == active) { return; }
    decode_set_active_kernel<<<1, 1, 0, d->stream>>>(d->slots, slot, active);
    cuda_try(cudaGetLastError());
    d->sequences[slot].active = active;
}

void gpt2_decoder_stop(GPT2Decoder* d, int slot) {
    if (decoder_has(d, slot)) { decoder_set_active(d, slot, 0); }
}

void gpt2_decoder_resume(GPT2Decoder* d, int slot) {
    int length = gpt2_decoder_length(d, slot);
    if (length > 0 && length < d->T) { decoder_set_active(d, slot, 1); }
}

Status gpt2_decoder_logits(GPT2Decoder* d, float* logits, int slot) {
    size_t V = (size_t)d->config.vocab_size, Vp = (size_t)d->config.padded_vocab_size;
    status_clear();
    if (gpt2_decoder_length(d, slot) < 1) {
        return status_fail("logits of sequence %d of %d, which has no token", slot, d->B);
    }
    TRY(cuda_try(cudaMemcpyAsync(d->logits_host, d->logits + (size_t)slot * Vp, V * sizeof(float),
                                 cudaMemcpyDeviceToHost, d->stream)));
    TRY(cuda_try(cudaStreamSynchronize(d->stream)));
    memcpy(logits, d->logits_host, V * sizeof(float));
    return STATUS_OK;
}

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "llmc/generate/generate.h"

int main(int argc, char** argv) { return generate_main(argc, argv); }
#endif
