/*
GPT-2 as Hugging Face's transformers names it: the tensors of model.safetensors, which of them are transposed, and the keys of
config.json. Reading (weights_file.h) and writing (hugging_face.h) follow from these tables.

A weight of ours is (rows, cols), out = inp W^T + b. Transformers' Conv1D keeps attention's and the MLP's weights as
(cols, rows). wte has V rows there: no padding. Names may have "transformer." before them; the head, lm_head.weight, is wte.
*/
#ifndef LLMC_FILES_HUGGING_FACE_NAMES_H
#define LLMC_FILES_HUGGING_FACE_NAMES_H

#include "llmc/model/parameter_layout.h"

// X(ctx, parameter of gpt2.h's table, name, 1 if it is transposed)
// clang-format off
#define HUGGING_FACE_TENSORS(X, ctx)                    \
    X(ctx, wte,      "wte.weight",              0)      \
    X(ctx, wpe,      "wpe.weight",              0)      \
    X(ctx, ln1w,     "h.%d.ln_1.weight",        0)      \
    X(ctx, ln1b,     "h.%d.ln_1.bias",          0)      \
    X(ctx, qkvw,     "h.%d.attn.c_attn.weight", 1)      \
    X(ctx, qkvb,     "h.%d.attn.c_attn.bias",   0)      \
    X(ctx, attprojw, "h.%d.attn.c_proj.weight", 1)      \
    X(ctx, attprojb, "h.%d.attn.c_proj.bias",   0)      \
    X(ctx, ln2w,     "h.%d.ln_2.weight",        0)      \
    X(ctx, ln2b,     "h.%d.ln_2.bias",          0)      \
    X(ctx, fcw,      "h.%d.mlp.c_fc.weight",    1)      \
    X(ctx, fcb,      "h.%d.mlp.c_fc.bias",      0)      \
    X(ctx, fcprojw,  "h.%d.mlp.c_proj.weight",  1)      \
    X(ctx, fcprojb,  "h.%d.mlp.c_proj.bias",    0)      \
    X(ctx, lnfw,     "ln_f.weight",             0)      \
    X(ctx, lnfb,     "ln_f.bias",               0)
// clang-format on

#define HUGGING_FACE_PREFIX "transformer."
#define HUGGING_FACE_HEAD "lm_head.weight"

// X(ctx, member of GPT2Config, key of config.json, another name that transformers reads too)
// clang-format off
#define HUGGING_FACE_SIZES(X, ctx)                                      \
    X(ctx, max_seq_len, "n_positions", "max_position_embeddings")       \
    X(ctx, vocab_size,  "vocab_size",  "vocab_size")                    \
    X(ctx, num_layers,  "n_layer",     "num_hidden_layers")             \
    X(ctx, num_heads,   "n_head",      "num_attention_heads")           \
    X(ctx, channels,    "n_embd",      "hidden_size")
// clang-format on

// A key of ours, where it is less than n_positions: the longest rows, in tokens, that the weights were trained on. transformers
// keeps keys that it does not know.
#define HUGGING_FACE_TRAINED_LEN "flashgpt_trained_length"

enum { HUGGING_FACE_NAME_BYTES = 64 };

typedef struct {
    char name[HUGGING_FACE_NAME_BYTES]; // without the prefix
    int transposed;                     // 1: the file has (cols, rows)
    int dims;                           // 1 or 2
    size_t shape[2];                    // in the file
} HuggingFaceTensor;

// A parameter of gpt2.h's table in a layer; `layer` says nothing where the parameter has no layers.
static inline HuggingFaceTensor hugging_face_tensor(GPT2Config config, int parameter, int layer) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    HuggingFaceTensor t;
    const char* format = "";
    memset(&t, 0, sizeof(t));
    gpt2_parameters(table, config);
    switch ((GPT2ParameterId)parameter) {
#define HUGGING_FACE_CASE_(ctx, id, name_, transposed_)                                                                \
    case PARAMETER_##id:                                                                                               \
        format = name_, t.transposed = transposed_;                                                                    \
        break;
        HUGGING_FACE_TENSORS(HUGGING_FACE_CASE_, )
#undef HUGGING_FACE_CASE_
    }
    const char* number = strstr(format, "%d");
    int before = number == NULL ? (int)strlen(format) : (int)(number - format);
    snprintf(t.name, sizeof(t.name), "%.*s", before, format);
    if (number != NULL) { snprintf(t.name + before, sizeof(t.name) - (size_t)before, "%d%s", layer, number + 2); }
    const GPT2Parameter* p = &table[parameter];
    size_t rows = parameter == (int)PARAMETER_wte ? (size_t)config.vocab_size : p->rows;
    t.dims = p->cols > 1 ? 2 : 1;
    t.shape[0] = t.transposed ? p->cols : rows;
    t.shape[1] = t.transposed ? rows : p->cols;
    return t;
}

#endif
