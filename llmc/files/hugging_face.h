/*
Writes a model in the format of Hugging Face's transformers: model.safetensors, and a folder with it, config.json,
generation_config.json and the tokenizer's files. Names, transpositions and keys are hugging_face_names.h's; reading is in
weights_file.h.

    TRY(hugging_face_write_model("model.safetensors", params, config, WEIGHTS_BF16));
    TRY(export_hugging_face("folder", params, config, "bf16", &tokenizer));

Each file is written atomically; export_weights.h makes that of the folder. Tensors have the names that GPT2LMHeadModel's
save_pretrained gives them, and stand layer by layer. transformers takes what config.json does not say from its GPT2Config.
*/
#ifndef LLMC_FILES_HUGGING_FACE_H
#define LLMC_FILES_HUGGING_FACE_H

#include "hugging_face_names.h"
#include "hugging_face_tokenizer.h"
#include "safetensors_write.h"
#include "weight_types.h"

// ----------------------------------------------------------------------------
// model.safetensors

static const size_t EXPORT_ROWS = 64; // of a tensor, in the file's shape, that are transposed and cast at a time

// A file of weights that is being written.
typedef struct {
    SafetensorsWriter out;
    GPT2Config config;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    const float* first[NUM_PARAMETER_TENSORS]; // of each parameter's weights
    WeightType type;
    float* block; // (EXPORT_ROWS, 4C) transposed
    char* bytes;  // the same, cast
} ExportWriter;

// What is done with each tensor of the file, in its order.
typedef Status (*ExportVisit)(ExportWriter* w, const HuggingFaceTensor* t, const float* weights);

// Visits what stands before the layers, then layer by layer, then what follows them: the table's order but for the layers.
static inline Status export_visit_(ExportWriter* w, ExportVisit visit) {
    int layers = w->config.num_layers;
    for (int layer = -1; layer <= layers; layer++) { // -1 and `layers`: before and after them
        for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
            int inside = layer >= 0 && layer < layers, has_layers = layout_has_layers_(i);
            if (has_layers != inside || (!inside && (i < (int)PARAMETER_ln1w) != (layer < 0))) { continue; }
            HuggingFaceTensor t = hugging_face_tensor(w->config, i, layer);
            size_t before = inside ? (size_t)layer * w->table[i].rows * w->table[i].cols : 0;
            TRY(visit(w, &t, w->first[i] + before));
        }
    }
    return STATUS_OK;
}

static inline Status export_declare_(ExportWriter* w, const HuggingFaceTensor* t, const float* weights) {
    char name[sizeof(HUGGING_FACE_PREFIX) + HUGGING_FACE_NAME_BYTES];
    (void)weights;
    snprintf(name, sizeof(name), "%s%s", HUGGING_FACE_PREFIX, t->name);
    size_t bytes = t->shape[0] * t->shape[1] * weight_types[w->type].bytes;
    return safetensors_declare(&w->out, name, weight_types[w->type].safetensors, t->dims, t->shape, bytes);
}

// Rows `first` to `first + n` of a tensor, in the file's shape: block[i][j] = weights[j][first + i] where it is transposed.
static inline const float* export_rows_(ExportWriter* w, const HuggingFaceTensor* t, const float* weights, size_t first,
                                        size_t n) {
    size_t rows = t->shape[0], cols = t->shape[1];
    if (!t->transposed) { return weights + first * cols; }
    for (size_t j = 0; j < cols; j++) {
        for (size_t i = 0; i < n; i++) { w->block[i * cols + j] = weights[j * rows + first + i]; }
    }
    return w->block;
}

static inline Status export_tensor_(ExportWriter* w, const HuggingFaceTensor* t, const float* weights) {
    const char* type = weight_types[w->type].name;
    for (size_t i = 0, n; i < t->shape[0]; i += n) {
        n = t->shape[0] - i < EXPORT_ROWS ? t->shape[0] - i : EXPORT_ROWS;
        size_t count = n * t->shape[1];
        const float* rows = export_rows_(w, t, weights, i, n);
        if (cast_weights(w->bytes, w->type, rows, count) > 0) {
            return status_fail("%s has a weight that is too large for --export-dtype %s; fp32 keeps it", t->name, type);
        }
        TRY(atomic_write(&w->out.file, w->bytes, count * weight_types[w->type].bytes));
    }
    return STATUS_OK;
}

static inline Status export_write_all_(ExportWriter* w) {
    TRY(export_visit_(w, export_declare_));
    TRY(safetensors_begin(&w->out));
    TRY(export_visit_(w, export_tensor_));
    return atomic_commit(&w->out.file);
}

// Writes a model.safetensors, whatever its name. params: fp32 in table order; the padding rows of wte are left out.
static inline Status hugging_face_write_model(const char* path, const float* params, GPT2Config config,
                                              WeightType type) {
    ExportWriter w;
    size_t most = EXPORT_ROWS * 4 * (size_t)config.channels;
    w.config = config, w.type = type;
    gpt2_parameters(w.table, config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; params += w.table[i++].count) { w.first[i] = params; }
    TRY(safetensors_create(&w.out, path));
    w.block = (float*)malloc(most * sizeof(float));
    w.bytes = (char*)malloc(most * sizeof(float));
    Status status = w.block != NULL && w.bytes != NULL ? export_write_all_(&w)
                                                       : status_fail("out of memory: cannot write %s", path);
    if (status != STATUS_OK) { atomic_abandon(&w.out.file); }
    free(w.block);
    free(w.bytes);
    return status;
}

// ----------------------------------------------------------------------------
// The folder's other files

// The tokens that transformers begins and ends a text with; -1: none
typedef struct {
    int bos, eos;
} HuggingFaceEnds;

// <|endoftext|> is both; where tokens are bytes, a text begins with a newline, as in training, and nothing ends it.
static inline HuggingFaceEnds hugging_face_ends(GPT2Config config, const Tokenizer* tokenizer) {
    int known = tokenizer != NULL && tokenizer->ready;
    HuggingFaceEnds ends = {config.vocab_size - 1, config.vocab_size - 1};
    if (known) { ends.bos = ends.eos = tokenizer->eot_token; }
    if (config.vocab_size == BYTE_VOCAB_SIZE) { ends.bos = '\n', ends.eos = -1; }
    return ends;
}

static inline void export_print_ends_(FILE* f, HuggingFaceEnds ends) {
    fprintf(f, "  \"bos_token_id\": %d,\n  \"eos_token_id\": ", ends.bos);
    ends.eos >= 0 ? fprintf(f, "%d", ends.eos) : fprintf(f, "null");
}

static inline Status export_write_config_(const char* folder, GPT2Config config, WeightType type,
                                          HuggingFaceEnds ends) {
    AtomicFile file;
    TRY(export_open(&file, folder, "config.json"));
    FILE* f = file.file;
    fprintf(f, "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n");
#define EXPORT_PRINT_(f, member, key, other) fprintf(f, "  \"%s\": %d,\n", key, config.member);
    HUGGING_FACE_SIZES(EXPORT_PRINT_, f)
#undef EXPORT_PRINT_
    fprintf(f, "  \"n_ctx\": %d,\n  \"n_inner\": null,\n", config.max_seq_len);
    if (gpt2_trained_length(config) < config.max_seq_len) {
        fprintf(f, "  \"" HUGGING_FACE_TRAINED_LEN "\": %d,\n", config.trained_len);
    }
    fprintf(f, "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n");
    fprintf(f, "  \"initializer_range\": 0.02,\n  \"scale_attn_weights\": true,\n  \"tie_word_embeddings\": true,\n");
    fprintf(f, "  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n  \"use_cache\": true,\n");
    export_print_ends_(f, ends);
    fprintf(f, ",\n  \"torch_dtype\": \"%s\"\n}\n", weight_types[type].torch);
    return atomic_commit(&file);
}

static inline Status export_write_generation_(const char* folder, HuggingFaceEnds ends) {
    AtomicFile file;
    TRY(export_open(&file, folder, "generation_config.json"));
    fprintf(file.file, "{\n  \"_from_model_config\": true,\n");
    export_print_ends_(file.file, ends);
    fprintf(file.file, "\n}\n");
    return atomic_commit(&file);
}

// The tokenizer's files, where it can have them; where it cannot, a warning says why, and the model goes without.
static inline Status export_try_tokenizer_(const char* folder, const Tokenizer* tokenizer, int trained_len) {
    int* merges;
    if (tokenizer->folder != NULL) { return hugging_face_copy_tokenizer(folder, tokenizer->folder); }
    if (hugging_face_merges(&merges, tokenizer) != STATUS_OK) {
        print_warning("no tokenizer is exported: %s", status_message());
        status_clear();
        return STATUS_OK;
    }
    Status status = hugging_face_write_tokenizer(folder, tokenizer, merges, trained_len);
    free(merges);
    return status;
}

// Writes all files into a folder that exists. dtype: fp32, bf16, fp16, or auto (weight_types.h). tokenizer NULL, or not ready:
// without its files.
static inline Status export_hugging_face(const char* folder, const float* params, GPT2Config config, const char* dtype,
                                         const Tokenizer* tokenizer) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    char path[1024];
    WeightType type;
    HuggingFaceEnds ends = hugging_face_ends(config, tokenizer);
    status_clear();
    TRY(weight_type_of(&type, dtype, params, gpt2_parameters(table, config)));
    TRY(export_file_path(path, folder, "model.safetensors"));
    TRY(hugging_face_write_model(path, params, config, type));
    TRY(export_write_generation_(folder, ends));
    if (tokenizer != NULL && tokenizer->ready) {
        TRY(export_try_tokenizer_(folder, tokenizer, gpt2_trained_length(config)));
    }
    return export_write_config_(folder, config, type, ends);
}

#endif
