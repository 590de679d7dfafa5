/*
A model's weights for other programs, by what the target is called:

    model.bin            llm.c's file, fp32 or bf16 (model_file.h)
    model.safetensors    one file with Hugging Face's names (hugging_face_weights.h)
    name, name.v1/       a folder for Hugging Face's transformers: model.safetensors, config.json and the tokenizer's files;
                         transformers takes what config.json does not say from its GPT2Config. A name that ends like a file of
                         another format, such as model.pt, is refused unless a '/' says that it is a folder

    TRY(export_check(target));                                                  // before the weights are read
    TRY(export_weights(target, params, config, "auto", &tokenizer));

A target appears whole or not at all: a folder is written as <target>.tmp and then renamed. Nothing is overwritten. <target>.tmp
marks an export that is running or was killed; new ones are refused until it is gone.
*/
#ifndef LLMC_FILES_EXPORT_WEIGHTS_H
#define LLMC_FILES_EXPORT_WEIGHTS_H

#include "hugging_face_tokenizer.h"
#include "weights_file.h"

// ----------------------------------------------------------------------------
// Targets

typedef enum { EXPORT_BIN, EXPORT_SAFETENSORS, EXPORT_FOLDER } ExportKind;

static inline ExportKind export_kind_(const char* target) {
    if (ends_with(target, ".bin")) { return EXPORT_BIN; }
    return ends_with(target, ".safetensors") ? EXPORT_SAFETENSORS : EXPORT_FOLDER;
}

// 1 if a target is named like a file of a format that is not written: it ends in a dot and a word.
static inline int export_is_other_file_(const char* target) {
    const char *slash = strrchr(target, '/'), *name = slash != NULL ? slash + 1 : target, *dot = strrchr(name, '.');
    return export_kind_(target) == EXPORT_FOLDER && dot != NULL && dot > name && isalpha((unsigned char)dot[1]);
}

// 1 if a target is one file of weights, without a tokenizer.
static inline int export_is_one_file(const char* target) { return export_kind_(target) != EXPORT_FOLDER; }

// The target's path, without '/' at its end
static inline Status export_path_(char path[1024], const char* target) {
    size_t n = strlen(target);
    while (n > 1 && target[n - 1] == '/') { n--; }
    if (n > 900) { return status_fail("--export %s: the path is longer than 900 bytes", target); }
    snprintf(path, 1024, "%.*s", (int)n, target);
    return STATUS_OK;
}

static inline Status export_make_(const char* folder) {
    if (mkdir(folder, 0777) == 0) { return STATUS_OK; }
    if (errno == EEXIST) {
        return status_fail(
            "--export: %s is there: another export is running, or was killed; wait, or remove that folder", folder);
    }
    return status_fail("--export: cannot create directory %s: %s", folder, strerror(errno));
}

// Fails if the target would be refused: its name is taken or of another format, or its folder is missing or read-only.
static inline Status export_check(const char* target) {
    char path[1024], temporary[1024 + 8];
    status_clear();
    TRY(export_path_(path, target));
    if (export_is_other_file_(target)) {
        return status_fail("--export %s: unknown format; name a file .bin (llm.c) or .safetensors, or a folder (%s/)",
                           target, target);
    }
    if (name_exists(path)) {
        return status_fail("--export %s is there already, and stays as it is; remove it, or name another", target);
    }
    if (export_is_one_file(target)) { return atomic_check(path); }
    snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    TRY(export_make_(temporary));
    rmdir(temporary);
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// model.safetensors

static const size_t EXPORT_ROWS = 64; // of a tensor, in the file's shape, that are transposed and cast at a time

// A file of weights that is being written.
typedef struct {
    SafetensorsWriter out;
    GPT2Config config;
    const float* params;
    WeightType type;
    float* block; // (EXPORT_ROWS, 4C) transposed
    char* bytes;  // the same, cast
} ExportWriter;

// What is done with each tensor of the file, in its order, which is the table's.
typedef Status (*ExportVisit)(ExportWriter* w, const HuggingFaceTensor* t, const float* weights);

static inline Status export_visit_(ExportWriter* w, ExportVisit visit) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    const float* weights = w->params;
    gpt2_parameters(table, w->config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        int layers = layout_has_layers_(i) ? w->config.num_layers : 1;
        for (int layer = 0; layer < layers; layer++) {
            HuggingFaceTensor t = hugging_face_tensor(w->config, i, layer);
            TRY(visit(w, &t, weights));
            weights += table[i].rows * table[i].cols;
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
    for (size_t i = 0, n; i < t->shape[0]; i += n) {
        n = t->shape[0] - i < EXPORT_ROWS ? t->shape[0] - i : EXPORT_ROWS;
        size_t count = n * t->shape[1];
        cast_weights(w->bytes, w->type, export_rows_(w, t, weights, i, n), count);
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
    w.config = config, w.params = params, w.type = type;
    TRY(safetensors_create(&w.out, path));
    w.block = (float*)malloc_check(most * sizeof(float));
    w.bytes = (char*)malloc_check(most * sizeof(float));
    Status status = export_write_all_(&w);
    if (status != STATUS_OK) { atomic_abandon(&w.out.file); }
    free(w.block);
    free(w.bytes);
    return status;
}

// ----------------------------------------------------------------------------
// The folder's other files

// <|endoftext|> begins and ends a text; where tokens are bytes, it begins with a newline, as in training, and nothing ends it.
static inline Status export_write_config_(const char* folder, GPT2Config config, WeightType type,
                                          const Tokenizer* tokenizer) {
    AtomicFile file;
    int is_known = tokenizer != NULL && tokenizer->ready, eot = is_known ? tokenizer->eot_token : config.vocab_size - 1;
    TRY(export_open(&file, folder, "config.json"));
    FILE* f = file.file;
    fprintf(f, "{\n  \"architectures\": [\"GPT2LMHeadModel\"],\n  \"model_type\": \"gpt2\",\n");
    for (int i = 0; i < NUM_HUGGING_FACE_SIZES; i++) {
        const int* size = (const int*)(const void*)((const char*)&config + hugging_face_sizes[i].member);
        fprintf(f, "  \"%s\": %d,\n", hugging_face_sizes[i].key, *size);
    }
    fprintf(f, "  \"n_ctx\": %d,\n  \"n_inner\": null,\n", config.max_seq_len);
    if (gpt2_trained_length(config) < config.max_seq_len) {
        fprintf(f, "  \"" HUGGING_FACE_TRAINED_LEN "\": %d,\n", config.trained_len);
    }
    fprintf(f, "  \"activation_function\": \"gelu_new\",\n  \"layer_norm_epsilon\": 1e-05,\n");
    fprintf(f, "  \"initializer_range\": 0.02,\n  \"scale_attn_weights\": true,\n  \"tie_word_embeddings\": true,\n");
    fprintf(f, "  \"attn_pdrop\": 0.0,\n  \"embd_pdrop\": 0.0,\n  \"resid_pdrop\": 0.0,\n  \"use_cache\": true,\n");
    if (config.vocab_size == BYTE_VOCAB_SIZE) {
        fprintf(f, "  \"bos_token_id\": %d,\n  \"eos_token_id\": null", '\n');
    } else {
        fprintf(f, "  \"bos_token_id\": %d,\n  \"eos_token_id\": %d", eot, eot);
    }
    fprintf(f, ",\n  \"torch_dtype\": \"%s\"\n}\n", weight_types[type].torch);
    return atomic_commit(&file);
}

// Writes all files into a folder that exists. tokenizer NULL, or not ready: without its files.
static inline Status export_hugging_face(const char* folder, const float* params, GPT2Config config, WeightType type,
                                         const Tokenizer* tokenizer) {
    char path[1024];
    if (tokenizer != NULL && tokenizer->ready) {
        TRY(tokenizer->folder != NULL ? hugging_face_copy_tokenizer(folder, tokenizer->folder)
                                      : hugging_face_write_tokenizer(folder, tokenizer, gpt2_trained_length(config)));
    }
    TRY(export_file_path(path, folder, "model.safetensors"));
    TRY(hugging_face_write_model(path, params, config, type));
    return export_write_config_(folder, config, type, tokenizer);
}

// ----------------------------------------------------------------------------
// The targets

// llm.c's file
static inline Status export_bin_(const char* path, const float* params, GPT2Config config, WeightType type) {
    static const size_t PIECE = 1 << 11;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    uint16_t words[1 << 11];
    size_t count = gpt2_parameters(table, config);
    CheckedWriter file;
    if (type == WEIGHTS_FP32) { return model_file_write(path, config, MODEL_VERSION_FP32, 0, params); }
    TRY(model_file_create(&file, path, config, MODEL_VERSION_BF16));
    for (size_t i = 0, n; i < count; i += n) {
        n = count - i < PIECE ? count - i : PIECE;
        cast_weights(words, type, params + i, n);
        TRY(checked_write(&file, words, n * sizeof(uint16_t)));
    }
    model_file_complete(&file, 0);
    return checked_commit(&file);
}

// Removes a folder that an export has begun.
static inline void export_remove_(const char* folder) {
    char path[1024 + 128];
    hugging_face_remove_tokenizer(folder);
    snprintf(path, sizeof(path), "%s/model.safetensors", folder);
    remove(path);
    snprintf(path, sizeof(path), "%s/config.json", folder);
    remove(path);
    rmdir(folder);
}

static inline Status export_folder_(const char* path, const float* params, GPT2Config config, WeightType type,
                                    const Tokenizer* tokenizer) {
    char temporary[1024 + 8];
    snprintf(temporary, sizeof(temporary), "%s.tmp", path);
    TRY(export_make_(temporary));
    Status status = export_hugging_face(temporary, params, config, type, tokenizer);
    if (status == STATUS_OK && rename(temporary, path) != 0) {
        status = status_fail("--export: cannot rename %s to %s: %s", temporary, path, strerror(errno));
    }
    if (status != STATUS_OK) { export_remove_(temporary); }
    return status == STATUS_OK ? atomic_sync_directory(path) : status;
}

// A model.safetensors without a config.json beside it does not say how many heads there are.
static inline Status export_safetensors_(const char* path, const float* params, GPT2Config config, WeightType type) {
    TRY(hugging_face_write_model(path, params, config, type));
    if (config.channels != 64 * config.num_heads) {
        print_warning("%s alone does not say that its model has %d heads, of %d channels; an export to a folder does",
                      path, config.num_heads, config.channels / config.num_heads);
    }
    return STATUS_OK;
}

// Says that a model has more positions than it was trained on, which other programs do not look for.
static inline void export_note_trained_(const char* target, GPT2Config config) {
    static const char* const remarks[] = {"", ", which the file alone does not say", " (n_positions)"};
    if (gpt2_trained_length(config) == config.max_seq_len) { return; }
    print_note("%s: its model was trained on %d tokens, and has positions for %d%s", target, config.trained_len,
               config.max_seq_len, remarks[export_kind_(target)]);
}

// Writes the target. params: fp32 in table order. dtype: fp32, bf16, or auto, which takes bf16 where nothing is lost.
// tokenizer, for a folder: NULL, or not ready, where there is none.
NOINLINE Status export_weights(const char* target, const float* params, GPT2Config config, const char* dtype,
                               const Tokenizer* tokenizer) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    char path[1024];
    TRY(export_check(target));
    TRY(export_path_(path, target));
    WeightType type = weight_type_of(dtype, params, gpt2_parameters(table, config));
    switch (export_kind_(target)) {
    case EXPORT_BIN:
        TRY(export_bin_(path, params, config, type));
        break;
    case EXPORT_SAFETENSORS:
        TRY(export_safetensors_(path, params, config, type));
        break;
    case EXPORT_FOLDER:
        TRY(export_folder_(path, params, config, type, tokenizer));
        break;
    }
    export_note_trained_(target, config);
    return STATUS_OK;
}

#endif
