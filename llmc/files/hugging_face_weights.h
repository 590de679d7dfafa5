/*
Reads GPT-2 in Hugging Face's format: model.safetensors, or the shards that model.safetensors.index.json lists, in fp32, fp16
or bf16, with config.json.

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

#include "hugging_face_names.h"
#include "model_file.h"
#include "safetensors.h"
#include "weight_types.h"

enum {
    HUGGING_FACE_MOST_FILES = 256,
    HUGGING_FACE_ROWS = 64,          // of a tensor that are read and transposed at a time
    HUGGING_FACE_MOST_JSON = 1 << 26 // bytes of config.json or of the index
};

// What a tensor of the files is: a parameter of gpt2.h's table, or one of these
enum { HUGGING_FACE_UNKNOWN = -1, HUGGING_FACE_IS_HEAD = -2, HUGGING_FACE_IS_MASK = -3 };

typedef struct {
    const char* name; // without the prefix
    int file;
    const SafeTensor* tensor;
    int parameter, layer;
} HuggingFaceEntry;

typedef struct {
    char path[1024];        // as it was named
    char config_path[1024]; // config.json; "": there is none
    char index_path[1024];  // "": one file
    int heads_guessed;      // 1: there is no config.json
    GPT2Config config;
    SafetensorsFile* files; // (num_files) opened, with their paths
    int num_files;
    HuggingFaceEntry* entries; // (count) by name
    size_t count;
} HuggingFaceWeights;

static inline void hugging_face_close(HuggingFaceWeights* w) {
    for (int i = 0; i < w->num_files; i++) { safetensors_close(&w->files[i]); }
    free(w->files);
    free(w->entries);
    w->files = NULL, w->entries = NULL, w->num_files = 0, w->count = 0;
}

// ----------------------------------------------------------------------------
// The files

static inline int hugging_face_compare_(const void* a, const void* b) {
    return strcmp(((const HuggingFaceEntry*)a)->name, ((const HuggingFaceEntry*)b)->name);
}

static inline HuggingFaceEntry* hugging_face_find_(const HuggingFaceWeights* w, const char* name) {
    HuggingFaceEntry key;
    memset(&key, 0, sizeof(key));
    key.name = name;
    if (w->count == 0) { return NULL; }
    return (HuggingFaceEntry*)bsearch(&key, w->entries, w->count, sizeof(key), hugging_face_compare_);
}

// Opens num_files files, and lists their tensors by name.
static inline Status hugging_face_open_files_(HuggingFaceWeights* w, char** paths, int num_files) {
    w->files = (SafetensorsFile*)calloc((size_t)num_files + 1, sizeof(SafetensorsFile));
    if (w->files == NULL) { return status_fail("out of memory: cannot read %s", w->path); }
    for (w->num_files = 0; w->num_files < num_files; w->num_files++) {
        TRY(safetensors_open(&w->files[w->num_files], paths[w->num_files]));
        w->count += w->files[w->num_files].count;
    }
    w->entries = (HuggingFaceEntry*)calloc(w->count + 1, sizeof(HuggingFaceEntry));
    if (w->entries == NULL) { return status_fail("out of memory: cannot read %s", w->path); }
    HuggingFaceEntry* e = w->entries;
    for (int i = 0; i < num_files; i++) {
        for (size_t k = 0; k < w->files[i].count; k++, e++) {
            e->file = i, e->tensor = &w->files[i].tensors[k], e->name = e->tensor->name;
            e->parameter = HUGGING_FACE_UNKNOWN;
        }
    }
    if (w->count > 0) { qsort(w->entries, w->count, sizeof(HuggingFaceEntry), hugging_face_compare_); }
    for (size_t i = 1; i < w->count; i++) {
        const HuggingFaceEntry *a = &w->entries[i - 1], *b = &w->entries[i];
        if (strcmp(a->name, b->name) != 0) { continue; }
        return status_fail("%s: %.200s is in two files", w->path, a->name);
    }
    return STATUS_OK;
}

// 1 if a name of the index is a file of its folder, and no path that leads elsewhere.
static inline int hugging_face_is_plain_(const char* name, size_t bytes) {
    size_t n = strlen(name);
    return n == bytes && n > 0 && n < 256 && name[0] != '.' && strchr(name, '/') == NULL && strchr(name, '\\') == NULL;
}

typedef struct {
    char* paths[HUGGING_FACE_MOST_FILES]; // (count) each of them once
    int count;
} HuggingFacePaths;

// Adds the file of an entry of a weight_map, unless it is there.
static inline Status hugging_face_add_path_(const HuggingFaceWeights* w, HuggingFacePaths* p, const char* folder,
                                            const Json* json, const JsonNode* key) {
    const JsonNode* file = json_value(key);
    const char* name = file->type == (unsigned)JSON_STRING ? json_string(json, file) : "";
    if (!hugging_face_is_plain_(name, file->bytes)) {
        return status_fail("%s: the file of %.200s, \"%.200s\", is no plain name of a file in its folder",
                           w->index_path, json_string(json, key), name);
    }
    for (int i = p->count - 1; i >= 0; i--) {
        if (strcmp(p->paths[i] + strlen(folder) + 1, name) == 0) { return STATUS_OK; }
    }
    if (p->count == HUGGING_FACE_MOST_FILES) {
        return status_fail("%s lists more than %d files", w->index_path, (int)HUGGING_FACE_MOST_FILES);
    }
    size_t bytes = strlen(folder) + strlen(name) + 2;
    char* path = (char*)malloc(bytes);
    if (path == NULL) { return status_fail("out of memory: cannot read %s", w->path); }
    snprintf(path, bytes, "%s/%s", folder, name);
    p->paths[p->count++] = path;
    return STATUS_OK;
}

// Checks a weight_map against the files: each tensor is in the file that it is said to be in, and no file holds another.
static inline Status hugging_face_check_map_(const HuggingFaceWeights* w, const char* folder, const Json* json,
                                             const JsonNode* map) {
    size_t listed = 0;
    for (const JsonNode* key = json_first(json, map); key != NULL; key = json_next(json, map, key), listed++) {
        const char *name = json_string(json, key), *file = json_string(json, json_value(key));
        const HuggingFaceEntry* e = strlen(name) == key->bytes ? hugging_face_find_(w, name) : NULL;
        if (e == NULL || strcmp(w->files[e->file].path + strlen(folder) + 1, file) != 0) {
            return status_fail("%s: %.200s is not in %s", w->index_path, name, file);
        }
    }
    if (listed == w->count) { return STATUS_OK; }
    return status_fail("%s lists %zu tensors, its files hold %zu", w->index_path, listed, w->count);
}

// Opens the files of a weight_map.
static inline Status hugging_face_open_map_(HuggingFaceWeights* w, const char* folder, const Json* json,
                                            const JsonNode* map) {
    HuggingFacePaths p = {{NULL}, 0};
    Status status = STATUS_OK;
    const JsonNode* key = json_first(json, map);
    for (; key != NULL && status == STATUS_OK; key = json_next(json, map, key)) {
        status = hugging_face_add_path_(w, &p, folder, json, key);
    }
    if (status == STATUS_OK) { status = hugging_face_open_files_(w, p.paths, p.count); }
    if (status == STATUS_OK) { status = hugging_face_check_map_(w, folder, json, map); }
    while (p.count > 0) { free(p.paths[--p.count]); }
    return status;
}

static inline Status hugging_face_open_index_(HuggingFaceWeights* w, const char* folder) {
    Json json;
    TRY(json_read_file(&json, w->index_path, HUGGING_FACE_MOST_JSON));
    const JsonNode* map = json_member(&json, json_root(&json), "weight_map");
    Status status = map != NULL && map->type == (unsigned)JSON_OBJECT
                        ? hugging_face_open_map_(w, folder, &json, map)
                        : status_fail("%s has no weight_map", w->index_path);
    json_free(&json);
    return status;
}

// 1 for a name such as model-00001-of-00003.safetensors: one of several files, of which none is a model alone.
static inline int hugging_face_is_shard_(const char* path) {
    const size_t length = sizeof("-00001-of-00003.safetensors") - 1, n = strlen(path);
    int index, count = 0, end = 0;
    const char* tail = n < length ? path : path + n - length;
    return sscanf(tail, "-%5d-of-%5d.safetensors%n", &index, &count, &end) == 2 && end == (int)length && count > 1;
}

// Finds and opens the files of a folder, or the one that is named, and config.json beside them.
static inline Status hugging_face_find_files_(HuggingFaceWeights* w) {
    char folder[1024], path[1024], *only = path;
    int is_folder = folder_exists(w->path);
    const char* slash = strrchr(w->path, '/');
    snprintf(folder, sizeof(folder), "%.700s", is_folder ? w->path : slash == NULL ? "." : w->path);
    if (!is_folder && slash != NULL) { folder[slash == w->path ? 1 : slash - w->path] = '\0'; }
    snprintf(w->config_path, sizeof(w->config_path), "%.700s/config.json", folder);
    if (!name_exists(w->config_path)) { w->config_path[0] = '\0'; }
    if (!is_folder && hugging_face_is_shard_(w->path)) {
        return status_fail("%s is one of several files of a model; name the folder that holds them", w->path);
    }
    snprintf(path, sizeof(path), is_folder ? "%.700s/model.safetensors" : "%.700s", w->path);
    if (!is_folder || name_exists(path)) { return hugging_face_open_files_(w, &only, 1); }
    snprintf(w->index_path, sizeof(w->index_path), "%.700s/model.safetensors.index.json", folder);
    return hugging_face_open_index_(w, folder);
}

// ----------------------------------------------------------------------------
// config.json

// The value of a key, by either of its names; NULL if it is not there, or null.
static inline const JsonNode* hugging_face_key_(const Json* json, const char* name, const char* other) {
    const JsonNode* value = json_member(json, json_root(json), name);
    if (value == NULL && other != NULL) { value = json_member(json, json_root(json), other); }
    return value == NULL || value->type == (unsigned)JSON_NULL ? NULL : value;
}

// Checks a size of config.json, where it says it, against that of the tensors.
static inline Status hugging_face_check_size_(const HuggingFaceWeights* w, const Json* json, const char* name,
                                              const char* other, int* size) {
    size_t said;
    const JsonNode* value = hugging_face_key_(json, name, other);
    if (value == NULL && *size == 0) { return status_fail("%s has no %s", w->config_path, name); }
    if (value == NULL) { return STATUS_OK; }
    if (!json_whole(json, value, INT_MAX, &said) || said == 0) {
        return status_fail("%s: %s must be a whole number above 0", w->config_path, name);
    }
    if (*size == 0) { *size = (int)said; }
    if (*size == (int)said) { return STATUS_OK; }
    return status_fail("%s: %s is %zu, but the tensors of %s make it %d", w->config_path, name, said, w->path, *size);
}

// A toggle that must be `wanted`, where it is there
static inline Status hugging_face_check_toggle_(const HuggingFaceWeights* w, const Json* json, const char* name,
                                                int wanted) {
    const JsonNode* value = hugging_face_key_(json, name, NULL);
    if (value == NULL || value->type == (wanted ? (unsigned)JSON_TRUE : (unsigned)JSON_FALSE)) { return STATUS_OK; }
    return status_fail("%s: %s is not %s; this model is not the GPT-2 that is computed here", w->config_path, name,
                       wanted ? "true" : "false");
}

// Checks that config.json describes GPT-2's computation. reorder_and_upcast_attn only changes rounding, and may be anything.
static inline Status hugging_face_check_model_(const HuggingFaceWeights* w, const Json* json) {
    const JsonNode* type = hugging_face_key_(json, "model_type", NULL);
    const JsonNode* activation = hugging_face_key_(json, "activation_function", "hidden_act");
    const JsonNode* epsilon = hugging_face_key_(json, "layer_norm_epsilon", NULL);
    const JsonNode* inner = hugging_face_key_(json, "n_inner", NULL);
    double number = 0.0;
    size_t width;
    if (type != NULL && !json_is(json, type, "gpt2")) {
        return status_fail("%s: model_type is not \"gpt2\"; other models are not read", w->config_path);
    }
    if (activation != NULL && !json_is(json, activation, "gelu_new") &&
        !json_is(json, activation, "gelu_pytorch_tanh")) {
        return status_fail("%s: activation_function is not \"gelu_new\"; others are not computed here", w->config_path);
    }
    if (epsilon != NULL && (!json_number(json, epsilon, &number) || !(fabs(number - 1e-5) <= 1e-12))) {
        return status_fail("%s: layer_norm_epsilon is not 1e-5; others are not computed here", w->config_path);
    }
    if (inner != NULL && (!json_whole(json, inner, INT_MAX, &width) || width != 4 * (size_t)w->config.channels)) {
        return status_fail("%s: n_inner is not 4 times n_embd; others are not computed here", w->config_path);
    }
    TRY(hugging_face_check_toggle_(w, json, "scale_attn_weights", 1));
    if (w->config.num_layers > 1) { TRY(hugging_face_check_toggle_(w, json, "scale_attn_by_inverse_layer_idx", 0)); }
    TRY(hugging_face_check_toggle_(w, json, "add_cross_attention", 0));
    int has_head = hugging_face_find_(w, HUGGING_FACE_HEAD) != NULL; // hugging_face_read compares it with wte
    return has_head ? STATUS_OK : hugging_face_check_toggle_(w, json, "tie_word_embeddings", 1);
}

// Reads config.json: the number of heads, and whether the rest is as the tensors say.
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
    Status status = json_root(&json)->type == (unsigned)JSON_OBJECT
                        ? STATUS_OK
                        : status_fail("%s is no JSON object", w->config_path);
#define HUGGING_FACE_CHECK_(ctx, member, name, other)                                                                  \
    if (status == STATUS_OK) { status = hugging_face_check_size_(w, &json, name, other, &c->member); }
    HUGGING_FACE_SIZES(HUGGING_FACE_CHECK_, )
#undef HUGGING_FACE_CHECK_
    if (status == STATUS_OK && hugging_face_key_(&json, HUGGING_FACE_TRAINED_LEN, NULL) != NULL) {
        status = hugging_face_check_size_(w, &json, HUGGING_FACE_TRAINED_LEN, NULL, &c->trained_len);
    }
    if (status == STATUS_OK) { status = hugging_face_check_model_(w, &json); }
    json_free(&json);
    return status;
}

// ----------------------------------------------------------------------------
// Which tensor is which

static inline int hugging_face_int_(size_t size) { return size > INT_MAX ? INT_MAX : (int)size; }

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

// Takes off what wraps a model when its state_dict() is saved: torch.compile, DataParallel, or both.
static inline const char* hugging_face_unwrapped_(const char* name) {
    static const char* const wraps[] = {"_orig_mod.", "module."};
    for (int i = 0; i < 2; i++) {
        size_t n = strlen(wraps[i]);
        if (strncmp(name, wraps[i], n) == 0) { name += n, i = -1; }
    }
    return name;
}

static inline void hugging_face_sort_(HuggingFaceWeights* w) {
    if (w->count > 0) { qsort(w->entries, w->count, sizeof(HuggingFaceEntry), hugging_face_compare_); }
}

// Takes the prefixes off the names, where they have some, and the model's sizes from the shapes.
static inline Status hugging_face_find_sizes_(HuggingFaceWeights* w) {
    const size_t prefix = sizeof(HUGGING_FACE_PREFIX) - 1;
    int layer = 0;
    GPT2Config* c = &w->config;
    for (size_t i = 0; i < w->count; i++) { w->entries[i].name = hugging_face_unwrapped_(w->entries[i].name); }
    hugging_face_sort_(w);
    int has_prefix = hugging_face_find_(w, HUGGING_FACE_PREFIX "wte.weight") != NULL;
    for (size_t i = 0; has_prefix && i < w->count; i++) {
        if (strncmp(w->entries[i].name, HUGGING_FACE_PREFIX, prefix) == 0) { w->entries[i].name += prefix; }
    }
    hugging_face_sort_(w);
    for (size_t i = 0; i < w->count; i++) {
        const char* name = w->entries[i].name;
        if (i > 0 && strcmp(name, w->entries[i - 1].name) == 0) {
            return status_fail("%s holds %.200s twice, with other prefixes", w->path, name);
        }
        if (hugging_face_layer_(name, &layer) != NULL && layer >= c->num_layers) { c->num_layers = layer + 1; }
    }
    const HuggingFaceEntry *wte = hugging_face_find_(w, "wte.weight"), *wpe = hugging_face_find_(w, "wpe.weight");
    const char* missing = !hugging_face_is_matrix_(wte)   ? "wte.weight (V, C)"
                          : !hugging_face_is_matrix_(wpe) ? "wpe.weight (maxT, C)"
                          : c->num_layers == 0            ? "tensors of layers, h.0.ln_1.weight and others"
                                                          : NULL;
    if (missing != NULL) { return status_fail("%s is no GPT-2 of Hugging Face: it has no %s", w->path, missing); }
    c->vocab_size = hugging_face_int_(wte->tensor->shape[0]), c->channels = hugging_face_int_(wte->tensor->shape[1]);
    c->max_seq_len = hugging_face_int_(wpe->tensor->shape[0]);
    c->padded_vocab_size = gpt2_pad_vocab(c->vocab_size);
    return STATUS_OK;
}

// Refuses a tensor of another shape, or of numbers that are not read.
static inline Status hugging_face_check_tensor_(const HuggingFaceWeights* w, const HuggingFaceEntry* e,
                                                const HuggingFaceTensor* expected) {
    const SafeTensor* t = e->tensor;
    char is[256], should_be[256];
    int same = t->dims == expected->dims;
    for (int i = 0; i < t->dims && same; i++) { same = t->shape[i] == expected->shape[i]; }
    if (!same) {
        return status_fail("%s: %s has the shape %s, not %s as in a GPT-2 of these sizes", w->files[e->file].path,
                           t->name, safetensors_shape_text(is, sizeof(is), t->shape, t->dims),
                           safetensors_shape_text(should_be, sizeof(should_be), expected->shape, expected->dims));
    }
    if (t->dtype == SAFETENSORS_F32 || t->dtype == SAFETENSORS_F16 || t->dtype == SAFETENSORS_BF16) {
        return STATUS_OK;
    }
    return status_fail("%s: %s is in %s; F32, F16 and BF16 are read", w->files[e->file].path, t->name,
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
            TRY(hugging_face_check_tensor_(w, e, &expected));
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
            TRY(hugging_face_check_tensor_(w, e, &head));
        } else if (rest != NULL && (strcmp(rest, "attn.bias") == 0 || strcmp(rest, "attn.masked_bias") == 0)) {
            e->parameter = HUGGING_FACE_IS_MASK;
        } else {
            return status_fail("%s holds %.200s, which is no tensor of a GPT-2 with %d layers", w->files[e->file].path,
                               e->tensor->name, w->config.num_layers);
        }
    }
    return STATUS_OK;
}

static inline Status hugging_face_open_(HuggingFaceWeights* w) {
    TRY(hugging_face_find_files_(w));
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

// Casts n numbers of the file to fp32. raw may be x itself where it is fp32.
static inline void hugging_face_cast_(float* x, const void* raw, SafetensorsDtype dtype, size_t n) {
    const uint16_t* half = (const uint16_t*)raw;
    if (dtype == SAFETENSORS_F16) {
        for (size_t i = 0; i < n; i++) { x[i] = fp16_to_float(half[i]); }
    } else if (dtype == SAFETENSORS_BF16) {
        for (size_t i = 0; i < n; i++) { x[i] = bf16_to_float(half[i]); }
    }
}

// out (cols, R) gets rows first .. first+rows-1 of a matrix (R, cols), of which x is these rows: out[c][first + r] = x[r][c].
// A block is 16 columns: a cache line of each row.
static inline void hugging_face_transpose_(float* RESTRICT out, const float* RESTRICT x, size_t first, size_t rows,
                                           size_t cols, size_t R) {
    const size_t BLOCK = 16;
    for (size_t c0 = 0; c0 < cols; c0 += BLOCK) {
        size_t end = cols - c0 < BLOCK ? cols : c0 + BLOCK;
        for (size_t c = c0; c < end; c++) {
            for (size_t r = 0; r < rows; r++) { out[c * R + first + r] = x[r * cols + c]; }
        }
    }
}

// What is read, and where it goes
typedef struct {
    const HuggingFaceWeights* w;
    float* params;
    size_t offsets[NUM_PARAMETER_TENSORS], slices[NUM_PARAMETER_TENSORS]; // of a parameter and its layers, in params
    uint16_t* raw;                                                        // rows of a tensor as the file has them
    float* floats;                                                        // and cast
} HuggingFaceReading;

// A tensor as a matrix: a vector is one row.
static inline size_t hugging_face_rows_(const SafeTensor* t) { return t->dims == 2 ? t->shape[0] : 1; }
static inline size_t hugging_face_cols_(const SafeTensor* t) { return t->shape[t->dims - 1]; }

// Refuses the first number that is not finite of n, which begin at element `first` of a tensor.
static inline Status hugging_face_check_finite_(const HuggingFaceReading* r, const HuggingFaceEntry* e, size_t first,
                                                const float* x, size_t n) {
    size_t i = 0;
    if (!finite_check_any_32_((const char*)x, n)) { return STATUS_OK; }
    while (isfinite(x[i])) { i++; }
    return status_fail("%s: %s, element %zu is %s; no run can continue from it", r->w->files[e->file].path,
                       e->tensor->name, first + i,
                       isnan(x[i]) ? "nan"
                       : x[i] < 0  ? "-inf"
                                   : "inf");
}

// Reads rows of a tensor, casts, checks, and puts them where they belong; of the head, compares them with wte.
static inline Status hugging_face_read_rows_(const HuggingFaceReading* r, const HuggingFaceEntry* e, size_t first,
                                             size_t rows) {
    const SafeTensor* t = e->tensor;
    int is_head = e->parameter == HUGGING_FACE_IS_HEAD, parameter = is_head ? (int)PARAMETER_wte : e->parameter;
    int transposed = hugging_face_tensor(r->w->config, parameter, 0).transposed;
    size_t cols = hugging_face_cols_(t), n = rows * cols, element = safetensors_dtypes[t->dtype].bits / 8;
    float* out = r->params + r->offsets[parameter] + (is_head ? 0 : (size_t)e->layer * r->slices[parameter]);
    float* x = transposed || is_head ? r->floats : out + first * cols;
    void* from = t->dtype == SAFETENSORS_F32 ? (void*)x : (void*)r->raw;
    TRY(safetensors_read(&r->w->files[e->file], t, first * cols * element, from, n * element));
    hugging_face_cast_(x, from, t->dtype, n);
    TRY(hugging_face_check_finite_(r, e, first * cols, x, n));
    if (is_head && memcmp(x, out + first * cols, n * sizeof(float)) != 0) {
        return status_fail("%s: " HUGGING_FACE_HEAD " is not wte.weight; a head of its own is not computed here",
                           r->w->files[e->file].path);
    }
    if (transposed) { hugging_face_transpose_(out, x, first, rows, cols, hugging_face_rows_(t)); }
    return STATUS_OK;
}

// Reads all tensors: the head last, which is compared.
static inline Status hugging_face_read_all_(const HuggingFaceReading* r) {
    for (int of_head = 0; of_head < 2; of_head++) {
        for (size_t i = 0; i < r->w->count; i++) {
            const HuggingFaceEntry* e = &r->w->entries[i];
            size_t rows = hugging_face_rows_(e->tensor), step = HUGGING_FACE_ROWS;
            if (of_head ? e->parameter != HUGGING_FACE_IS_HEAD : e->parameter < 0) { continue; }
            for (size_t first = 0; first < rows; first += step) {
                TRY(hugging_face_read_rows_(r, e, first, rows - first < step ? rows - first : step));
            }
        }
    }
    return STATUS_OK;
}

// Reads all weights into params, whose rows of padding become 0.
static inline Status hugging_face_read(const HuggingFaceWeights* w, float* params) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    HuggingFaceReading r;
    size_t at = 0, C = (size_t)w->config.channels, V = (size_t)w->config.vocab_size;
    size_t most = HUGGING_FACE_ROWS * 4 * C; // no row is longer than the MLP's
    memset(&r, 0, sizeof(r));
    r.w = w, r.params = params;
    gpt2_parameters(table, w->config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; at += table[i++].count) {
        r.offsets[i] = at, r.slices[i] = table[i].rows * table[i].cols;
    }
    memset(params + V * C, 0, (table[PARAMETER_wte].rows - V) * C * sizeof(float));
    r.raw = (uint16_t*)malloc(most * sizeof(uint16_t));
    r.floats = (float*)malloc(most * sizeof(float));
    Status status = r.raw != NULL && r.floats != NULL ? hugging_face_read_all_(&r)
                                                      : status_fail("out of memory: cannot read %s", w->path);
    free(r.raw);
    free(r.floats);
    return status;
}

#endif
