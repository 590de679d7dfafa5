/*
GPT-2's sizes and tables: a model's configuration, its parameters, its activations, the descriptors that name a model on
the command line, and the initial weights. Structs, allocation, saving and tests of both trainers follow from these
tables. The file format is in model_file.h.

The model (Radford et al. 2019): learned positions, pre-LayerNorm blocks, tanh-GELU, tied token embedding.
Names: B batch, T time, C channels, L layers, NH heads, HS = C/NH head size, V vocabulary, Vp vocabulary padded to a
multiple of 128, maxT the context length.
*/
#ifndef LLMC_MODEL_GPT2_H
#define LLMC_MODEL_GPT2_H

#include <ctype.h>
#include <limits.h>
#include <math.h>

#include "llmc/base/rand.h"
#include "llmc/base/utils.h"

typedef struct {
    int max_seq_len;       // maxT
    int vocab_size;        // V
    int padded_vocab_size; // Vp
    int num_layers;        // L
    int num_heads;         // NH
    int channels;          // C
    int trained_len;       // tokens of the longest row that the weights were trained on; 0: maxT
} GPT2Config;

// The default context of whatever uses a model: its position embeddings beyond were not trained.
static inline int gpt2_trained_length(GPT2Config c) { return c.trained_len > 0 ? c.trained_len : c.max_seq_len; }

// ----------------------------------------------------------------------------
// Parameters, in the order of the checkpoint file.
// X(ctx, name, layers, rows, cols, init). Each tensor is (layers, rows, cols); cols = 1 marks a vector. Weight decay
// acts on matrices only. A weight W (rows, cols) and its bias compute out (BT, rows) = inp (BT, cols) W^T + b.

// clang-format off
#define GPT2_PARAMETERS(X, ctx)                                                                                        \
    X(ctx, wte, 1, Vp, C, INIT_NORMAL)          /* token embedding and output projection; rows V..Vp-1 are zero */    \
    X(ctx, wpe, 1, maxT, C, INIT_NORMAL)        /* position embedding */                                              \
    X(ctx, ln1w, L, C, 1, INIT_ONE)             /* LayerNorm before attention */                                      \
    X(ctx, ln1b, L, C, 1, INIT_ZERO)                                                                                  \
    X(ctx, qkvw, L, 3 * C, C, INIT_NORMAL)      /* queries, keys, values */                                           \
    X(ctx, qkvb, L, 3 * C, 1, INIT_ZERO)                                                                              \
    X(ctx, attprojw, L, C, C, INIT_RESIDUAL)    /* attention output back into the residual stream */                  \
    X(ctx, attprojb, L, C, 1, INIT_ZERO)                                                                              \
    X(ctx, ln2w, L, C, 1, INIT_ONE)             /* LayerNorm before the MLP */                                        \
    X(ctx, ln2b, L, C, 1, INIT_ZERO)                                                                                  \
    X(ctx, fcw, L, 4 * C, C, INIT_NORMAL)       /* MLP up */                                                          \
    X(ctx, fcb, L, 4 * C, 1, INIT_ZERO)                                                                               \
    X(ctx, fcprojw, L, C, 4 * C, INIT_RESIDUAL) /* MLP down, back into the residual stream */                         \
    X(ctx, fcprojb, L, C, 1, INIT_ZERO)                                                                               \
    X(ctx, lnfw, 1, C, 1, INIT_ONE)             /* final LayerNorm */                                                 \
    X(ctx, lnfb, 1, C, 1, INIT_ZERO)
// clang-format on

typedef enum {
    INIT_ZERO,
    INIT_ONE,
    INIT_NORMAL,  // N(0, 0.02)
    INIT_RESIDUAL // N(0, 0.02 / sqrt(2L)): the residual stream sums 2L of these
} GPT2Init;

#define GPT2_COUNT_(ctx, ...) +1
enum { NUM_PARAMETER_TENSORS = 0 GPT2_PARAMETERS(GPT2_COUNT_, ) };

typedef struct {
    const char* name;
    size_t layers, rows, cols;
    size_t count; // layers * rows * cols
    GPT2Init init;
    int decay; // 1 if weight decay acts
} GPT2Parameter;

// Fills the table of parameters for a model; returns the number of parameters, SIZE_MAX if it does not fit.
static inline size_t gpt2_parameters(GPT2Parameter table[NUM_PARAMETER_TENSORS], GPT2Config config) {
    size_t Vp = (size_t)config.padded_vocab_size, maxT = (size_t)config.max_seq_len;
    size_t C = (size_t)config.channels, L = (size_t)config.num_layers;
    size_t total = 0;
    int i = 0;
#define GPT2_ROW_(ctx, name_, layers_, rows_, cols_, init_)                                                            \
    table[i].name = #name_;                                                                                            \
    table[i].layers = (layers_);                                                                                       \
    table[i].rows = (rows_);                                                                                           \
    table[i].cols = (cols_);                                                                                           \
    table[i].count = size_mul(table[i].layers, size_mul(table[i].rows, table[i].cols));                                \
    table[i].init = init_;                                                                                             \
    table[i].decay = table[i].cols > 1;                                                                                \
    total = size_add(total, table[i++].count);
    GPT2_PARAMETERS(GPT2_ROW_, )
#undef GPT2_ROW_
    return total;
}

// GPT2_DECLARE_PARAMETERS(ParameterTensors, float) declares a struct of one `float*` per row of the table.
#define GPT2_POINTER_(type, name, ...) type* name;
#define GPT2_DECLARE_PARAMETERS(Name, type)                                                                            \
    typedef struct {                                                                                                   \
        GPT2_PARAMETERS(GPT2_POINTER_, type)                                                                           \
    } Name

// Sets member number i of a struct of pointers. The copy, rather than a store through a cast, is what C allows.
static inline void gpt2_set_pointer_(void* members, int i, void* pointer) {
    memcpy((char*)members + (size_t)i * sizeof(void*), &pointer, sizeof(void*));
}
static inline char* gpt2_get_pointer_(const void* members, int i) {
    char* pointer;
    memcpy(&pointer, (const char*)members + (size_t)i * sizeof(void*), sizeof(void*));
    return pointer;
}

// ----------------------------------------------------------------------------
// Activations. X(ctx, name, type, layers, count): `layers` slices of `count` elements each, of type real (the training
// precision) or stat (fp32 always). Lg and Ln are L, or 1 if a tensor is recomputed in the backward pass instead of
// kept: recompute >= 1 recomputes fch_gelu, recompute >= 2 also ln1 and ln2. `training` is 0 or 1: a model that is only
// evaluated has no backward buffers.

// clang-format off
#define GPT2_ACTIVATIONS(X, ctx)                                                                                       \
    X(ctx, encoded, real, 1, BT * C)             /* (B,T,C) token plus position embedding */                            \
    X(ctx, ln1, real, Ln, BT * C)                /* (Ln,B,T,C) */                                                       \
    X(ctx, ln1_mean, stat, L, BT)               /* (L,B,T) */                                                          \
    X(ctx, ln1_rstd, stat, L, BT)               /* (L,B,T) */                                                          \
    X(ctx, qkv, real, L, BT * 3 * C)            /* (L,B,T,3,NH,HS) */                                                  \
    X(ctx, atty, real, L, BT * C)                /* (L,B,T,NH,HS) attention output */                                   \
    X(ctx, l, stat, L, BT * NH)                  /* (L,B,NH,T) softmax denominator: sum_j exp(s_ij - m_i) */            \
    X(ctx, m, stat, L, BT * NH)                  /* (L,B,NH,T) softmax maximum */                                       \
    X(ctx, residual2, real, L, BT * C)           /* (L,B,T,C) after attention */                                        \
    X(ctx, ln2, real, Ln, BT * C)                /* (Ln,B,T,C) */                                                       \
    X(ctx, ln2_mean, stat, L, BT)               /* (L,B,T) */                                                          \
    X(ctx, ln2_rstd, stat, L, BT)               /* (L,B,T) */                                                          \
    X(ctx, fch, real, L, BT * 4 * C)            /* (L,B,T,4C) before the GELU, or GELU's derivative at it */           \
    X(ctx, fch_gelu, real, Lg, BT * 4 * C)      /* (Lg,B,T,4C) after the GELU */                                       \
    X(ctx, residual3, real, L, BT * C)           /* (L,B,T,C) after the MLP */                                          \
    X(ctx, lnf, real, 1, BT * C)                 /* (B,T,C) */                                                          \
    X(ctx, lnf_mean, stat, 1, BT)               /* (B,T) */                                                            \
    X(ctx, lnf_rstd, stat, 1, BT)               /* (B,T) */                                                            \
    X(ctx, losses, stat, 1, BT)                 /* (B,T) cross entropy of each token, in nats */                       \
    X(ctx, output, real, 1, BT * Vp)             /* (B,T,Vp) logits; in the backward pass their gradients */            \
    X(ctx, dresidual, real, training, BT * C)    /* (B,T,C) gradient of the residual stream */                          \
    X(ctx, dbtc, real, training, BT * C)         /* (B,T,C) gradient of a LayerNorm's or the attention's output */      \
    X(ctx, dbt4c, real, training, BT * 4 * C)   /* (B,T,4C) gradient inside the MLP; (B,T,3,NH,HS) of qkv */           \
    X(ctx, scratch, stat, training, SCRATCH)    /* scratch of the backward kernels, sized for the largest */
// clang-format on

// The rows of the table: ACTIVATION_encoded, ...
#define GPT2_ACTIVATION_ID_(ctx, name, ...) ACTIVATION_##name,
enum { GPT2_ACTIVATIONS(GPT2_ACTIVATION_ID_, ) NUM_ACTIVATION_TENSORS };

typedef enum { ACTIVATION_real, ACTIVATION_stat } GPT2ActivationType;

typedef struct {
    const char* name;
    GPT2ActivationType type;
    size_t layers, count; // elements: layers * count
    size_t bytes;         // layers * count elements, rounded up to 256 so that every tensor is aligned
} GPT2Activation;

// Fills the table of activations for a batch of B rows of T tokens; returns their bytes in all, SIZE_MAX on overflow.
// real_size is sizeof(real); scratch_bytes is the scratch of the backward kernels.
static inline size_t gpt2_activations(GPT2Activation table[NUM_ACTIVATION_TENSORS], GPT2Config config, int B, int T_,
                                      int recompute, size_t training, size_t real_size, size_t scratch_bytes) {
    size_t BT = (size_t)B * (size_t)T_, C = (size_t)config.channels, NH = (size_t)config.num_heads;
    size_t Vp = (size_t)config.padded_vocab_size, L = (size_t)config.num_layers;
    size_t Lg = recompute >= 1 ? 1 : L, Ln = recompute >= 2 ? 1 : L;
    size_t SCRATCH = size_round_up(scratch_bytes, sizeof(float)) / sizeof(float);
    size_t total = 0;
    int i = 0;
#define GPT2_ROW_(ctx, name_, type_, layers_, count_)                                                                  \
    table[i].name = #name_;                                                                                            \
    table[i].type = ACTIVATION_##type_;                                                                                \
    table[i].layers = (layers_);                                                                                       \
    table[i].count = (count_);                                                                                         \
    table[i].bytes = size_mul(table[i].count, ACTIVATION_##type_ == ACTIVATION_real ? real_size : 4);                  \
    table[i].bytes = size_round_up(size_mul(table[i].layers, table[i].bytes), 256);                                    \
    total = size_add(total, table[i++].bytes);
    GPT2_ACTIVATIONS(GPT2_ROW_, )
#undef GPT2_ROW_
    return total;
}

// GPT2_DECLARE_ACTIVATIONS(ActivationTensors, floatX) declares a struct of one pointer per row of the table: floatX*
// where its type is real, float* where it is stat.
#define GPT2_TYPE_real(training_precision) training_precision
#define GPT2_TYPE_stat(training_precision) float
#define GPT2_TYPED_POINTER_(training_precision, name, type, ...) GPT2_TYPE_##type(training_precision) * name;
#define GPT2_DECLARE_ACTIVATIONS(Name, training_precision)                                                             \
    typedef struct {                                                                                                   \
        GPT2_ACTIVATIONS(GPT2_TYPED_POINTER_, training_precision)                                                      \
    } Name

// Points every member of a struct made by GPT2_DECLARE_ACTIVATIONS into one block of memory; NULL if there is nothing.
static inline void gpt2_point_activations(void* members, const GPT2Activation* table, void* memory) {
    char* p = (char*)memory;
    for (int i = 0; i < NUM_ACTIVATION_TENSORS; i++) {
        gpt2_set_pointer_(members, i, table[i].bytes ? p : NULL);
        p += table[i].bytes;
    }
}

// Points every member of `slice` at layer i of the tensor that the same member of `whole` points to. A tensor that is
// recomputed instead of kept has one slice, which all layers share.
static inline void gpt2_slice_activations(void* slice, const void* whole, const GPT2Activation* table, size_t layer,
                                          size_t real_size) {
    for (int i = 0; i < NUM_ACTIVATION_TENSORS; i++) {
        size_t index = table[i].layers > 1 ? layer : 0, element = table[i].type == ACTIVATION_real ? real_size : 4;
        char* p = gpt2_get_pointer_(whole, i);
        gpt2_set_pointer_(slice, i, p == NULL ? NULL : p + index * table[i].count * element);
    }
}

// ----------------------------------------------------------------------------
// Model descriptors
//
//   d12, gpt2:d12        GPT-2 by depth, context 1024
//   gpt3:c768            GPT-3 by channels, context 2048
//   gpt2:l4c128h4        any other size: layers, channels, heads
//   d12t4096, gpt2:l4c128h4t64   the same with another context length
//   model.bin            weights, as are other files and folders: weights_file.h

typedef struct {
    int key, layers, channels, heads;
} GPT2Size;

static const GPT2Size gpt2_by_depth[] = {
    {6, 6, 384, 6},     // 30M
    {12, 12, 768, 12},  // GPT-2, 124M
    {24, 24, 1024, 16}, // GPT-2 medium, 355M
    {36, 36, 1280, 20}, // GPT-2 large, 774M
    {48, 48, 1600, 25}, // GPT-2 XL, 1558M
    {60, 60, 1920, 30}, // 2.7B
    {72, 72, 2880, 30}, // 7.2B
    {84, 84, 3456, 36}, // 12.2B
};
static const GPT2Size gpt3_by_channels[] = {
    {384, 6, 384, 6},       // 31M
    {768, 12, 768, 12},     // GPT-3 small, 125M
    {1024, 24, 1024, 16},   // GPT-3 medium, 350M
    {1536, 24, 1536, 16},   // GPT-3 large, 760M
    {2048, 24, 2048, 16},   // GPT-3 XL, 1.3B
    {2560, 32, 2560, 32},   // GPT-3 2.7B: refused for its head size of 80
    {4096, 32, 4096, 32},   // GPT-3 6.7B
    {5120, 40, 5120, 40},   // GPT-3 13B
    {12288, 96, 12288, 96}, // GPT-3 175B
};

#define GPT2_DESCRIPTOR_HELP                                                                                           \
    "use d6, d12, d24, d36, d48, gpt3:c768 and the like, gpt2:l<layers>c<channels>h<heads>, each with t<context> "     \
    "appended if wanted, or the name of weights: a .bin or .safetensors file, or a folder"

// The vocabulary rounded up to a multiple of 128. One that would overflow is returned unchanged, and refused below.
static inline int gpt2_pad_vocab(int vocab_size) {
    return vocab_size > MAX_VOCAB_SIZE ? vocab_size : CEIL_DIV(vocab_size, 128) * 128;
}

// An error if the sizes are not those of a valid model; the message names `source` (a file or a descriptor).
static inline Status gpt2_config_status(GPT2Config c, const char* source) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    if (c.max_seq_len < 1 || c.vocab_size < 1 || c.num_layers < 1 || c.num_heads < 1 || c.channels < 1) {
        return status_fail("%s: sizes must be positive: context %d, vocabulary %d, layers %d, heads %d, channels %d",
                           source, c.max_seq_len, c.vocab_size, c.num_layers, c.num_heads, c.channels);
    }
    if (c.trained_len < 0 || c.trained_len > c.max_seq_len) {
        return status_fail("%s: a trained length of %d tokens is not between 1 and the context of %d", source,
                           c.trained_len, c.max_seq_len);
    }
    if (c.vocab_size > MAX_VOCAB_SIZE) {
        return status_fail("%s: vocabulary %d is larger than %d", source, c.vocab_size, MAX_VOCAB_SIZE);
    }
    if (c.padded_vocab_size < c.vocab_size || c.padded_vocab_size > 2 * MAX_VOCAB_SIZE ||
        c.padded_vocab_size % 128 != 0) {
        return status_fail(
            "%s: padded vocabulary %d must be a multiple of 128, at least the vocabulary %d and at most %d", source,
            c.padded_vocab_size, c.vocab_size, 2 * MAX_VOCAB_SIZE);
    }
    if (c.channels % c.num_heads != 0) {
        return status_fail("%s: %d channels do not divide by %d heads", source, c.channels, c.num_heads);
    }
    int HS = c.channels / c.num_heads;
    if (HS != 32 && HS != 64 && HS != 96 && HS != 128) {
        int best = c.channels % 128 == 0 ? 128 : c.channels % 64 == 0 ? 64 : c.channels % 96 == 0 ? 96 : 32;
        char example[64] = "";
        if (c.channels % best == 0) {
            snprintf(example, sizeof(example), ", as in gpt2:l%dc%dh%d", c.num_layers, c.channels, c.channels / best);
        }
        return status_fail("%s: head size %d (channels %d / heads %d) is not supported: choose 32, 64, 96 or 128%s",
                           source, HS, c.channels, c.num_heads, example);
    }
    // training takes at least 16 bytes per parameter: weights, gradients, two moments, each fp32
    if (size_mul(gpt2_parameters(table, c), 16) == SIZE_MAX) {
        return status_fail("%s: more parameters than can be counted: context %d, vocabulary %d, layers %d, channels %d",
                           source, c.max_seq_len, c.vocab_size, c.num_layers, c.channels);
    }
    return STATUS_OK;
}

// Reads a model descriptor. The vocabulary is the data's, not the descriptor's, and so is the context T of one that names none.
// Ends with one line on a bad descriptor.
static inline GPT2Config gpt2_config_for_rows(const char* descriptor, int vocab_size, int T) {
    enum { DEPTH, LAYERS, CHANNELS, HEADS, CONTEXT };
    static const char letters[] = "dlcht";
    int value[5] = {0}, gpt3 = strncmp(descriptor, "gpt3:", 5) == 0;
    const char* p = gpt3 || strncmp(descriptor, "gpt2:", 5) == 0 ? strchr(descriptor, ':') + 1 : descriptor;
    while (*p != '\0') { // pairs of a letter and a number
        const char* letter = strchr(letters, *p++);
        char* end;
        long number = isdigit((unsigned char)*p) ? strtol(p, &end, 10) : 0;
        if (letter == NULL || number < 1 || number > 1000000 || value[letter - letters] != 0) {
            fatal("%s is no file or folder of weights, and no model descriptor; %s", descriptor, GPT2_DESCRIPTOR_HELP);
        }
        value[letter - letters] = (int)number;
        p = end;
    }
    GPT2Size size = {0, value[LAYERS], value[CHANNELS], value[HEADS]};
    int depth = value[DEPTH], key = gpt3 ? size.channels : depth;
    int given = (size.layers > 0) + (size.channels > 0) + (size.heads > 0);
    int by_depth = !gpt3 && depth > 0 && given == 0,
        by_channels = gpt3 && depth == 0 && size.channels > 0 && given == 1;
    if (by_depth || by_channels) {
        const GPT2Size* table = gpt3 ? gpt3_by_channels : gpt2_by_depth;
        size_t rows = (gpt3 ? sizeof(gpt3_by_channels) : sizeof(gpt2_by_depth)) / sizeof(GPT2Size);
        for (size_t i = 0; i < rows; i++) { size = table[i].key == key ? table[i] : size; }
        if (size.key == 0) {
            fatal("model descriptor %s: no model of size %d; %s", descriptor, key, GPT2_DESCRIPTOR_HELP);
        }
    } else if (given < 3 || depth > 0) {
        fatal("%s is no file or folder of weights, and no model descriptor; %s", descriptor, GPT2_DESCRIPTOR_HELP);
    }
    int context = value[CONTEXT] > 0 ? value[CONTEXT] : T, Vp = gpt2_pad_vocab(vocab_size);
    GPT2Config config = {context, vocab_size, Vp, size.layers, size.heads, size.channels, 0};
    status_clear();
    check(gpt2_config_status(config, descriptor));
    return config;
}

// The same, with the context that its family was published with.
static inline GPT2Config gpt2_config_from_descriptor(const char* descriptor, int vocab_size) {
    return gpt2_config_for_rows(descriptor, vocab_size, strncmp(descriptor, "gpt3:", 5) == 0 ? 2048 : 1024);
}

// ----------------------------------------------------------------------------
// Initialisation, fp32, on the host

// Fills params (all of them, in table order) with GPT-2's initial weights. Random numbers are drawn layer by layer in
// PyTorch's order, so that the same seed gives the same weights as llm.c.
static inline void gpt2_init_parameters(float* params, GPT2Config config, unsigned int seed) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    gpt2_parameters(table, config);
    mt19937_state rng;
    manual_seed(&rng, seed);
    float residual = 0.02f * (1.0f / sqrtf(2.0f * (float)config.num_layers));
    for (size_t layer = 0; layer < (size_t)config.num_layers; layer++) {
        float* tensor = params;
        for (int i = 0; i < NUM_PARAMETER_TENSORS; tensor += table[i++].count) {
            if (layer >= table[i].layers) { continue; }
            size_t slice = table[i].count / table[i].layers; // this layer's elements
            float* p = tensor + layer * slice;
            memset(p, 0, slice * sizeof(float));
            if (table[i].init == INIT_ONE) {
                for (size_t j = 0; j < slice; j++) { p[j] = 1.0f; }
            } else if (table[i].init != INIT_ZERO) {
                // the padding rows of wte stay zero
                size_t drawn = i == 0 ? (size_t)config.vocab_size * (size_t)config.channels : slice;
                normal_(p, drawn, 0.0f, table[i].init == INIT_RESIDUAL ? residual : 0.02f, &rng);
            }
        }
    }
}

#endif
