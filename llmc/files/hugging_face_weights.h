/*
GPT-2 as Hugging Face's transformers has it: the names of the tensors, which of them are transposed, the keys of config.json;
and a reader of model.safetensors, or the files that model.safetensors.index.json lists, in fp32, fp16 or bf16, and config.json.

    HuggingFaceWeights w;
    TRY(hugging_face_open(&w, "gpt2"));         a folder, or one .safetensors file; everything but the numbers is checked
    ... w.config ...
    TRY(hugging_face_read(&w, params));         fp32, in the order of gpt2.h's table, rows of padding zero
    hugging_face_close(&w);

Sizes are the tensors'; config.json must agree, and has the number of heads. A file without a config.json beside it is assumed
to have heads of 64 channels, with a warning. Refused is whatever this model does not compute: another activation, epsilon or
scaling of the scores, a head that is not wte, missing tensors and additional ones, except the masks that older versions of
transformers saved. Weights that are not finite are refused as everywhere.
*/
#ifndef LLMC_FILES_HUGGING_FACE_WEIGHTS_H
#define LLMC_FILES_HUGGING_FACE_WEIGHTS_H

#include <limits.h>

#include "model_file.h"
#include "safetensors.h"
#include "llmc/model/parameter_layout.h"

enum {
    HUGGING_FACE_MOST_FILES = 256,
    HUGGING_FACE_ROWS = 64,          // of a tensor that are read and transposed at a time
    HUGGING_FACE_MOST_JSON = 1 << 26 // bytes of config.json or of the index
};

// ----------------------------------------------------------------------------
// Names. A weight of ours is (rows, cols), out = inp W^T + b. Transformers' Conv1D keeps attention's and the MLP's weights as
// (cols, rows). wte has V rows there: no padding. Names may have "transformer." before them; the head, lm_head.weight, is wte.

// In the order of gpt2.h's table
static const struct {
    const char* name;
    int transposed;
} hugging_face_tensors[NUM_PARAMETER_TENSORS] = {
    {"wte.weight", 0},
    {"wpe.weight", 0},
    {"h.%d.ln_1.weight", 0},
    {"h.%d.ln_1.bias", 0},
    {"h.%d.attn.c_attn.weight", 1},
    {"h.%d.attn.c_attn.bias", 0},
    {"h.%d.attn.c_proj.weight", 1},
    {"h.%d.attn.c_proj.bias", 0},
    {"h.%d.ln_2.weight", 0},
    {"h.%d.ln_2.bias", 0},
    {"h.%d.mlp.c_fc.weight", 1},
    {"h.%d.mlp.c_fc.bias", 0},
    {"h.%d.mlp.c_proj.weight", 1},
    {"h.%d.mlp.c_proj.bias", 0},
    {"ln_f.weight", 0},
    {"ln_f.bias", 0},
};

#define HUGGING_FACE_PREFIX "transformer."
#define HUGGING_FACE_HEAD "lm_head.weight"
#define HUGGING_FACE_FILE "model.safetensors"
#define HUGGING_FACE_INDEX "model.safetensors.index.json"

static const struct {
    const char* key; // of config.json
    size_t member;   // of GPT2Config
} hugging_face_sizes[] = {
    {"n_positions", offsetof(GPT2Config, max_seq_len)}, {"vocab_size", offsetof(GPT2Config, vocab_size)},
    {"n_layer", offsetof(GPT2Config, num_layers)},      {"n_head", offsetof(GPT2Config, num_heads)},
    {"n_embd", offsetof(GPT2Config, channels)},
};
enum { NUM_HUGGING_FACE_SIZES = sizeof(hugging_face_sizes) / sizeof(hugging_face_sizes[0]) };

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
    gpt2_parameters(table, config);
    const char* format = hugging_face_tensors[parameter].name;
    if (strstr(format, "%d") == NULL) {
        snprintf(t.name, sizeof(t.name), "%s", format);
    } else {
        snprintf(t.name, sizeof(t.name), "h.%d%s", layer, format + sizeof("h.%d") - 1);
    }
    const GPT2Parameter* p = &table[parameter];
    size_t rows = parameter == (int)PARAMETER_wte ? (size_t)config.vocab_size : p->rows;
    t.transposed = hugging_face_tensors[parameter].transposed;
    t.dims = p->cols > 1 ? 2 : 1;
    t.shape[0] = t.transposed ? p->cols : rows;
    t.shape[1] = t.transposed ? rows : p->cols;
    return t;
}

// ----------------------------------------------------------------------------
// The files

// What a tensor of the files is: a parameter of gpt2.h's table, or one of these
enum { HUGGING_FACE_UNKNOWN = -1, HUGGING_FACE_IS_HEAD = -2, HUGGING_FACE_IS_MASK = -3 };

typedef struct {
    const char* name; // without the prefixes
    const SafetensorsFile* file;
    const SafeTensor* tensor;
    int parameter, layer;
} HuggingFaceEntry;

typedef struct {
    char path[1024];        // as it was named
    char config_path[1024]; // config.json; "": there is none
    int heads_guessed;      // 1: there is no config.json
    GPT2Config config;
    SafetensorsFile* files; // (num_files) opened, with their paths
    int num_files;
    HuggingFaceEntry* entries; // (count)
    size_t count;
} HuggingFaceWeights;

static inline void hugging_face_close(HuggingFaceWeights* w) {
    for (int i = 0; i < w->num_files; i++) { safetensors_close(&w->files[i]); }
    free(w->files);
    free(w->entries);
    w->files = NULL, w->entries = NULL, w->num_files = 0, w->count = 0;
}

static inline HuggingFaceEntry* hugging_face_find_(const HuggingFaceWeights* w, const char* name) {
    for (size_t i = 0; i < w->count; i++) {
        if (strcmp(w->entries[i].name, name) == 0) { return &w->entries[i]; }
    }
    return NULL;
}

// Takes off what wraps a model when its state_dict() is saved: torch.compile, DataParallel, transformers' own model.
static inline const char* hugging_face_unwrapped_(const char* name) {
    static const char* const wraps[] = {"_orig_mod.", "module.", HUGGING_FACE_PREFIX};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(wraps[i]);
        if (strncmp(name, wraps[i], n) == 0) { name += n, i = -1; }
    }
    return name;
}

// Opens a file, and adds its tensors to those of the model.
static inline Status hugging_face_open_file_(HuggingFaceWeights* w, const char* path) {
    SafetensorsFile* file = &w->files[w->num_files];
    TRY(safetensors_open(file, path));
    w->num_files++;
    HuggingFaceEntry* more =
        (HuggingFaceEntry*)realloc(w->entries, (w->count + file->count + 1) * sizeof(HuggingFaceEntry));
    if (more == NULL) { return status_fail("out of memory: cannot read %s", path); }
    w->entries = more;
    for (size_t i = 0; i < file->count; i++) {
        HuggingFaceEntry e = {hugging_face_unwrapped_(file->tensors[i].name), file, &file->tensors[i],
                              HUGGING_FACE_UNKNOWN, 0};
        w->entries[w->count++] = e;
    }
    return STATUS_OK;
}

static inline void hugging_face_path_(char path[1024], const char* folder, const char* name) {
    snprintf(path, 1024, "%.700s/%.255s", folder, name);
}

// 1 if a folder holds a model: one file, or the index of several.
static inline int hugging_face_is_folder(const char* folder) {
    char file[1024], index[1024];
    hugging_face_path_(file, folder, HUGGING_FACE_FILE);
    hugging_face_path_(index, folder, HUGGING_FACE_INDEX);
    return name_exists(file) || name_exists(index);
}

// Opens each file of a weight_map once. The tensors that they must hold are the model's, not those that the map lists.
static inline Status hugging_face_open_map_(HuggingFaceWeights* w, const char* folder, const Json* json,
                                            const JsonNode* map) {
    char path[1024];
    for (const JsonNode* key = json_first(json, map); key != NULL; key = json_next(json, map, key)) {
        const JsonNode* file = json_value(key);
        const char* name = file->type == (unsigned)JSON_STRING ? json_string(json, file) : "";
        if (strlen(name) != file->bytes || name[0] == '\0' || name[0] == '.' || strchr(name, '/') != NULL) {
            return status_fail("%s/" HUGGING_FACE_INDEX ": \"%.200s\" is no name of a file in its folder", folder,
                               name);
        }
        hugging_face_path_(path, folder, name);
        int i = 0;
        while (i < w->num_files && strcmp(w->files[i].path, path) != 0) { i++; }
        if (i < w->num_files) { continue; }
        if (i == HUGGING_FACE_MOST_FILES) {
            return status_fail("%s/" HUGGING_FACE_INDEX " lists more than %d files", folder, i);
        }
        TRY(hugging_face_open_file_(w, path));
    }
    return STATUS_OK;
}

static inline Status hugging_face_open_index_(HuggingFaceWeights* w, const char* folder) {
    Json json;
    char path[1024];
    hugging_face_path_(path, folder, HUGGING_FACE_INDEX);
    TRY(json_read_file(&json, path, HUGGING_FACE_MOST_JSON));
    const JsonNode* map = json_member(&json, json_root(&json), "weight_map");
    Status status = map != NULL && map->type == (unsigned)JSON_OBJECT ? hugging_face_open_map_(w, folder, &json, map)
                                                                      : status_fail("%s has no weight_map", path);
    json_free(&json);
    return status;
}

// Finds and opens the files of a folder, or the one that is named, and config.json beside them.
static inline Status hugging_face_open_files_(HuggingFaceWeights* w) {
    char folder[1024], path[1024];
    int is_folder = folder_exists(w->path);
    const char* slash = strrchr(w->path, '/');
    snprintf(folder, sizeof(folder), "%.700s", is_folder ? w->path : slash == NULL ? "." : w->path);
    if (!is_folder && slash != NULL) { folder[slash == w->path ? 1 : slash - w->path] = '\0'; }
    hugging_face_path_(w->config_path, folder, "config.json");
    if (!name_exists(w->config_path)) { w->config_path[0] = '\0'; }
    w->files = (SafetensorsFile*)calloc_check(HUGGING_FACE_MOST_FILES, sizeof(SafetensorsFile));
    hugging_face_path_(path, folder, HUGGING_FACE_FILE);
    if (is_folder && !name_exists(path)) { return hugging_face_open_index_(w, folder); }
    return hugging_face_open_file_(w, is_folder ? path : w->path);
}

// ----------------------------------------------------------------------------
// config.json

// Checks a size of config.json, where it says it, against that of the tensors.
static inline Status hugging_face_check_size_(const HuggingFaceWeights* w, const Json* json, const char* name,
                                              int* size) {
    size_t said;
    const JsonNode* value = json_given(json, json_root(json), name);
    if (value == NULL && *size == 0) { return status_fail("%s has no %s", w->config_path, name); }
    if (value == NULL) { return STATUS_OK; }
    if (!json_whole(json, value, INT_MAX, &said) || said == 0) {
        return status_fail("%s: %s must be a whole number above 0", w->config_path, name);
    }
    if (*size == 0) { *size = (int)said; }
    if (*size == (int)said) { return STATUS_OK; }
    return status_fail("%s: %s is %zu, but the tensors of %s make it %d", w->config_path, name, said, w->path, *size);
}

// Takes the number of heads from config.json, and checks that its sizes are the tensors' and that it describes GPT-2's
// computation. reorder_and_upcast_attn only changes rounding, and may be anything.
static inline Status hugging_face_check_config_(HuggingFaceWeights* w, const Json* json) {
    static const struct {
        const char *key, *value, *other; // as the text has them
    } keys[] = {
        {"model_type", "gpt2", ""},           {"activation_function", "gelu_new", "gelu_pytorch_tanh"},
        {"scale_attn_weights", "true", ""},   {"scale_attn_by_inverse_layer_idx", "false", ""},
        {"add_cross_attention", "false", ""}, {"tie_word_embeddings", "true", ""},
    };
    GPT2Config* c = &w->config;
    if (json_root(json)->type != (unsigned)JSON_OBJECT) { return status_fail("%s is no JSON object", w->config_path); }
    for (int i = 0; i < NUM_HUGGING_FACE_SIZES; i++) {
        int* size = (int*)(void*)((char*)c + hugging_face_sizes[i].member);
        TRY(hugging_face_check_size_(w, json, hugging_face_sizes[i].key, size));
    }
    if (json_given(json, json_root(json), HUGGING_FACE_TRAINED_LEN) != NULL) {
        TRY(hugging_face_check_size_(w, json, HUGGING_FACE_TRAINED_LEN, &c->trained_len));
    }
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        const JsonNode* n = json_given(json, json_root(json), keys[i].key);
        char text[64] = "";
        if (n != NULL) { snprintf(text, sizeof(text), "%.*s", (int)n->bytes, json_string(json, n)); }
        if (n == NULL || strcmp(text, keys[i].value) == 0 || strcmp(text, keys[i].other) == 0) { continue; }
        return status_fail("%s: %s is not %s; this model is not the GPT-2 that is computed here", w->config_path,
                           keys[i].key, keys[i].value);
    }
    const JsonNode *epsilon = json_given(json, json_root(json), "layer_norm_epsilon"),
                   *inner = json_given(json, json_root(json), "n_inner");
    double number = 0.0;
    size_t width;
    if (epsilon != NULL && (!json_number(json, epsilon, &number) || !(fabs(number - 1e-5) <= 1e-12))) {
        return status_fail("%s: layer_norm_epsilon is not 1e-5; others are not computed here", w->config_path);
    }
    if (inner != NULL && (!json_whole(json, inner, INT_MAX, &width) || width != 4 * (size_t)c->channels)) {
        return status_fail("%s: n_inner is not 4 times n_embd; others are not computed here", w->config_path);
    }
    return STATUS_OK;
}

// Reads config.json. Without one, heads have 64 channels.
static inline Status hugging_face_read_config_(HuggingFaceWeights* w) {
    Json json;
    GPT2Config* c = &w->config;
    if (w->config_path[0] == '\0') {
        w->heads_guessed = 1;
        c->num_heads = c->channels % 64 == 0 ? c->channels / 64 : 0;
        if (c->num_heads > 0) { return STATUS_OK; }
        return status_fail("%s: no config.json beside it says how many heads its %d channels are; put it there",
                           w->path, c->channels);
    }
    TRY(json_read_file(&json, w->config_path, HUGGING_FACE_MOST_JSON));
    Status status = hugging_face_check_config_(w, &json);
    json_free(&json);
    return status;
}

// ----------------------------------------------------------------------------
// Which tensor is which

// Reads "h.<layer>." at the beginning of a name; NULL if it is not there.
static inline const char* hugging_face_layer_(const char* name, int* layer) {
    const char* p = name + 2;
    if (strncmp(name, "h.", 2) != 0 || !isdigit((unsigned char)*p) || (p[0] == '0' && p[1] != '.')) { return NULL; }
    for (*layer = 0; isdigit((unsigned char)*p) && p - name < 10; p++) { *layer = *layer * 10 + (*p - '0'); }
    return *p == '.' ? p + 1 : NULL;
}

static inline int hugging_face_is_matrix_(const HuggingFaceEntry* e) {
    return e != NULL && e->tensor->dims == 2 && e->tensor->elements > 0;
}

// Takes the model's sizes from the shapes and names.
static inline Status hugging_face_find_sizes_(HuggingFaceWeights* w) {
    int layer = 0;
    GPT2Config* c = &w->config;
    for (size_t i = 0; i < w->count; i++) {
        int is_layer = hugging_face_layer_(w->entries[i].name, &layer) != NULL;
        if (is_layer && layer >= c->num_layers) { c->num_layers = layer + 1; }
    }
    const HuggingFaceEntry *wte = hugging_face_find_(w, "wte.weight"), *wpe = hugging_face_find_(w, "wpe.weight");
    const char* missing = !hugging_face_is_matrix_(wte)   ? "wte.weight (V, C)"
                          : !hugging_face_is_matrix_(wpe) ? "wpe.weight (maxT, C)"
                          : c->num_layers == 0            ? "tensors of layers, h.0.ln_1.weight and others"
                                                          : NULL;
    if (missing != NULL) { return status_fail("%s is no GPT-2 of Hugging Face: it has no %s", w->path, missing); }
    c->vocab_size = (int)wte->tensor->shape[0],
    c->channels = (int)wte->tensor->shape[1]; // too large: the shape is another
    c->max_seq_len = (int)wpe->tensor->shape[0];
    c->padded_vocab_size = gpt2_pad_vocab(c->vocab_size);
    return STATUS_OK;
}

// Refuses a tensor of another shape, or of numbers that are not read.
static inline Status hugging_face_check_tensor_(const HuggingFaceEntry* e, const HuggingFaceTensor* expected) {
    const SafeTensor* t = e->tensor;
    const size_t* shape = expected->shape;
    if (t->dims != expected->dims || memcmp(t->shape, shape, (size_t)t->dims * sizeof(size_t)) != 0) {
        return status_fail(expected->dims == 2 ? "%s: %s has not the shape (%zu, %zu) as in a GPT-2 of these sizes"
                                               : "%s: %s has not the shape (%zu) as in a GPT-2 of these sizes",
                           e->file->path, t->name, shape[0], shape[1]);
    }
    if (t->dtype <= SAFETENSORS_BF16) { return STATUS_OK; }
    return status_fail("%s: %s is in %s; F32, F16 and BF16 are read", e->file->path, t->name,
                       safetensors_dtypes[t->dtype].name);
}

// Finds every tensor of the model among those of the files.
static inline Status hugging_face_match_(HuggingFaceWeights* w) {
    for (int parameter = 0; parameter < NUM_PARAMETER_TENSORS; parameter++) {
        int layers = layout_has_layers_(parameter) ? w->config.num_layers : 1;
        for (int layer = 0; layer < layers; layer++) {
            HuggingFaceTensor expected = hugging_face_tensor(w->config, parameter, layer);
            HuggingFaceEntry* e = hugging_face_find_(w, expected.name);
            if (e == NULL) { return status_fail("%s has no %s", w->path, expected.name); }
            TRY(hugging_face_check_tensor_(e, &expected));
            e->parameter = parameter, e->layer = layer;
        }
    }
    return STATUS_OK;
}

// Refuses tensors that no GPT-2 has. The head must have wte's shape; masks may have any.
static inline Status hugging_face_check_others_(HuggingFaceWeights* w) {
    int layer;
    HuggingFaceTensor head = hugging_face_tensor(w->config, PARAMETER_wte, 0);
    for (size_t i = 0; i < w->count; i++) {
        HuggingFaceEntry* e = &w->entries[i];
        const char* rest = hugging_face_layer_(e->name, &layer);
        if (e->parameter != HUGGING_FACE_UNKNOWN) { continue; }
        if (strcmp(e->name, HUGGING_FACE_HEAD) == 0) {
            e->parameter = HUGGING_FACE_IS_HEAD;
            TRY(hugging_face_check_tensor_(e, &head));
        } else if (rest != NULL && (strcmp(rest, "attn.bias") == 0 || strcmp(rest, "attn.masked_bias") == 0)) {
            e->parameter = HUGGING_FACE_IS_MASK;
        } else {
            return status_fail("%s holds %.200s, which is a duplicate, or no tensor of a GPT-2 with %d layers",
                               e->file->path, e->tensor->name, w->config.num_layers);
        }
    }
    return STATUS_OK;
}

static inline Status hugging_face_open_(HuggingFaceWeights* w) {
    TRY(hugging_face_open_files_(w));
    TRY(hugging_face_find_sizes_(w));
    TRY(hugging_face_read_config_(w));
    TRY(gpt2_config_status(w->config, w->path));
    TRY(hugging_face_match_(w));
    return hugging_face_check_others_(w);
}

// Opens the files of a model and checks all but their numbers. After an error there is nothing to close.
static inline Status hugging_face_open(HuggingFaceWeights* w, const char* path) {
    memset(w, 0, sizeof(*w));
    if (strlen(path) > 700) { return status_fail("path is longer than 700 bytes: %s", path); }
    strcpy(w->path, path);
    if (hugging_face_open_(w) == STATUS_OK) { return STATUS_OK; }
    hugging_face_close(w);
    return STATUS_ERROR;
}

// ----------------------------------------------------------------------------
// Numbers

// Casts n numbers of a file to fp32.
static inline void hugging_face_cast_(float* x, const void* raw, int dtype, size_t n) {
    const uint16_t* half = (const uint16_t*)raw;
    if (dtype == SAFETENSORS_F32) { memcpy(x, raw, n * sizeof(float)); }
    for (size_t i = 0; i < n && dtype != SAFETENSORS_F32; i++) {
        x[i] = dtype == SAFETENSORS_F16 ? fp16_to_float(half[i]) : bf16_to_float(half[i]);
    }
}

// Reads a tensor, casts it, and puts it to `out`, where its weights belong; compares the head with them.
static inline Status hugging_face_read_tensor_(const HuggingFaceEntry* e, float* out, int transposed, void* raw,
                                               float* x) {
    const SafeTensor* t = e->tensor; // as a matrix: a vector is one row
    size_t rows = t->dims == 2 ? t->shape[0] : 1, cols = t->shape[t->dims - 1];
    size_t element = safetensors_dtypes[t->dtype].bits / 8;
    for (size_t first = 0, n; first < rows; first += n) {
        n = rows - first < HUGGING_FACE_ROWS ? rows - first : (size_t)HUGGING_FACE_ROWS;
        TRY(safetensors_read(e->file, t, first * cols * element, raw, n * cols * element));
        hugging_face_cast_(x, raw, t->dtype, n * cols);
        if (transposed) { // out is (cols, rows)
            for (size_t c = 0; c < cols; c++) {
                for (size_t r = 0; r < n; r++) { out[c * rows + first + r] = x[r * cols + c]; }
            }
        } else if (e->parameter != HUGGING_FACE_IS_HEAD) {
            memcpy(out + first * cols, x, n * cols * sizeof(float));
        } else if (memcmp(out + first * cols, x, n * cols * sizeof(float)) != 0) {
            return status_fail("%s: " HUGGING_FACE_HEAD " is not wte.weight; a head of its own is not computed here",
                               e->file->path);
        }
    }
    return STATUS_OK;
}

// Reads all tensors, the head last; raw and x have room for HUGGING_FACE_ROWS rows.
static inline Status hugging_face_read_all_(const HuggingFaceWeights* w, float* params, const GPT2Parameter* table,
                                            void* raw, float* x) {
    for (int of_head = 0; of_head < 2; of_head++) {
        for (size_t i = 0; i < w->count; i++) {
            const HuggingFaceEntry* e = &w->entries[i];
            if (of_head ? e->parameter != HUGGING_FACE_IS_HEAD : e->parameter < 0) { continue; }
            int parameter = of_head ? (int)PARAMETER_wte : e->parameter;
            float* out = params + (size_t)e->layer * table[parameter].rows * table[parameter].cols;
            for (int k = 0; k < parameter; k++) { out += table[k].count; }
            TRY(hugging_face_read_tensor_(e, out, hugging_face_tensors[parameter].transposed, raw, x));
        }
    }
    return STATUS_OK;
}

// Reads all weights into params, whose rows of padding become 0.
static inline Status hugging_face_read(const HuggingFaceWeights* w, float* params) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    FiniteCheck finite;
    size_t n = gpt2_parameters(table, w->config), C = (size_t)w->config.channels, V = (size_t)w->config.vocab_size;
    size_t most = HUGGING_FACE_ROWS * 4 * C * sizeof(float); // no row is longer than the MLP's
    memset(params + V * C, 0, (table[PARAMETER_wte].rows - V) * C * sizeof(float));
    void* raw = malloc_check(most);
    float* x = (float*)malloc_check(most);
    Status status = hugging_face_read_all_(w, params, table, raw, x);
    free(raw);
    free(x);
    finite_check_begin(&finite, w->config, sizeof(float), w->path);
    return status == STATUS_OK ? finite_check_update(&finite, params, n * sizeof(float)) : status;
}

#endif
