/*
The weights named on the command line (-e), in any of these formats:

    model.bin             llm.c's and this project's file (model_file.h)
    model.safetensors     Hugging Face's, with config.json in the same folder (hugging_face_weights.h)
    a folder              of Hugging Face: model.safetensors, or model-00001-of-0000N.safetensors and so on, and config.json;
                          of a run (-o): its newest checkpoint that has its DONE. weights_load_intact passes over damaged ones
    d12                   none of these: a descriptor of a new model (gpt2.h)

A name without a '/' that parses as a descriptor is one, even if there is a folder of that name; ./d12 is the folder. Functions
return a Status, with a message that names the file.
*/
#ifndef LLMC_FILES_WEIGHTS_FILE_H
#define LLMC_FILES_WEIGHTS_FILE_H

#include "hugging_face_weights.h"
#include "model_file.h"
#include "run_folder.h"

#define WEIGHTS_HELP "a .bin or .safetensors file, or a folder of Hugging Face or of a run"

typedef struct {
    int is_hugging_face; // 0: `path` is a .bin
    int step;            // of the checkpoint that `path` is, where a run's folder was named; else -1
    char path[1024];     // of the file, or of Hugging Face's folder
} WeightsSource;

// ----------------------------------------------------------------------------
// What a name is

// 1 if a name has the form of a descriptor: pairs of a letter and a number.
static inline int weights_is_descriptor(const char* name) {
    const char* p = strncmp(name, "gpt2:", 5) == 0 || strncmp(name, "gpt3:", 5) == 0 ? name + 5 : name;
    if (*p == '\0') { return 0; }
    while (*p != '\0') {
        if (strchr("dlcht", *p) == NULL || !isdigit((unsigned char)p[1])) { return 0; }
        for (p++; isdigit((unsigned char)*p);) { p++; }
    }
    return 1;
}

// 1 if -e names weights: a .bin or .safetensors, a folder that exists, or any path with a '/'. 0: a descriptor such as d12.
static inline int weights_is_file(const char* name) {
    if (ends_with(name, ".bin") || ends_with(name, ".safetensors")) { return 1; }
    if (strchr(name, '/') != NULL) { return 1; }
    return !weights_is_descriptor(name) && folder_exists(name);
}

// The newest checkpoint below step `below` of a run's folder that is complete, as far as its weights go.
static inline Status weights_find_in_run_(WeightsSource* source, const char* folder, int below) {
    RunFolderScan scan;
    TRY(run_folder_scan(&scan, folder));
    source->step = run_folder_next_weights(&scan, below);
    run_folder_scan_free(&scan);
    if (source->step < 0) {
        return status_fail("-e %s: the folder holds no weights, or no complete checkpoint; name " WEIGHTS_HELP, folder);
    }
    snprintf(source->path, sizeof(source->path), "%s/model_%08d.bin", folder, source->step);
    return STATUS_OK;
}

// A folder of Hugging Face, or of a run. One that is both is refused: nobody could say which is meant.
static inline Status weights_find_in_folder_(WeightsSource* source, const char* folder) {
    char pickle[1024];
    snprintf(pickle, sizeof(pickle), "%.900s/pytorch_model.bin", folder);
    source->is_hugging_face = hugging_face_is_folder(folder);
    if (source->is_hugging_face) {
        RunFolderScan scan;
        TRY(run_folder_scan(&scan, folder));
        int has_run = run_folder_next_weights(&scan, INT_MAX) >= 0;
        run_folder_scan_free(&scan);
        if (!has_run) { return STATUS_OK; }
        return status_fail("%s holds a model of Hugging Face and checkpoints of a run: name the file that is meant",
                           folder);
    }
    if (!name_exists(pickle)) { return weights_find_in_run_(source, folder, INT_MAX); }
    return status_fail("%s holds pytorch_model.bin, which is not read here, and no model.safetensors: load it with "
                       "transformers and save it anew",
                       folder);
}

// Finds the files that a name stands for. Begins with status_clear().
static inline Status weights_find(WeightsSource* source, const char* name) {
    status_clear();
    memset(source, 0, sizeof(*source));
    source->step = -1;
    if (strlen(name) > 700) { return status_fail("path is longer than 700 bytes: %s", name); }
    if (file_missing(name)) { return status_fail("-e %s: no such file; name " WEIGHTS_HELP, name); }
    strcpy(source->path, name);
    if (folder_exists(name)) { return weights_find_in_folder_(source, name); }
    source->is_hugging_face = ends_with(name, ".safetensors");
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Reading

static inline Status weights_read_hugging_face_(float** params, const char* path, GPT2Config* config) {
    HuggingFaceWeights w;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    TRY(hugging_face_open(&w, path));
    *config = w.config;
    if (w.heads_guessed) {
        print_warning("%s: no config.json beside it: its heads are taken to have 64 channels, %d heads", path,
                      w.config.num_heads);
    }
    float* p = (float*)malloc_check(size_mul(gpt2_parameters(table, w.config), sizeof(float)));
    Status status = hugging_face_read(&w, p);
    hugging_face_close(&w);
    if (status == STATUS_OK) { *params = p; }
    if (status != STATUS_OK) { free(p); }
    return status;
}

// The sizes of the model, after all checks that need no weights.
static inline Status weights_read_config(const char* path, GPT2Config* config) {
    WeightsSource source;
    TRY(weights_find(&source, path));
    if (source.is_hugging_face) {
        HuggingFaceWeights w;
        TRY(hugging_face_open(&w, source.path));
        *config = w.config;
        hugging_face_close(&w);
        return STATUS_OK;
    }
    ModelHeader header;
    TRY(gpt2_read_model_header(source.path, &header));
    *config = header.config;
    return STATUS_OK;
}

static inline Status weights_load_(float** params, const WeightsSource* source, GPT2Config* config, int* unchecked) {
    ModelHeader header;
    *unchecked = 1;
    if (source->is_hugging_face) { return weights_read_hugging_face_(params, source->path, config); }
    TRY(gpt2_load_parameters(params, source->path, &header));
    *config = header.config;
    *unchecked = !header.has_checksums;
    return STATUS_OK;
}

// The weights in fp32, in table order, rows of padding zero; the caller frees them. *unchecked is 1 if no checksum vouches
// for them. On an error *params is NULL.
static inline Status weights_load(float** params, const char* path, GPT2Config* config, int* unchecked) {
    WeightsSource source;
    *params = NULL;
    TRY(weights_find(&source, path));
    return weights_load_(params, &source, config, unchecked);
}

// The same, but of a run's folder the newest checkpoint whose weights are not damaged, as a resumed run takes it, with a
// warning for each that is passed over. Weights that cannot be opened may be intact: they are an error.
NOINLINE Status weights_load_intact(float** params, const char* path, GPT2Config* config, int* unchecked) {
    WeightsSource source, older;
    *params = NULL;
    TRY(weights_find(&source, path));
    while (weights_load_(params, &source, config, unchecked) != STATUS_OK) {
        char damage[STATUS_BYTES];
        snprintf(damage, sizeof(damage), "%s", status_message());
        status_clear();
        older = source;
        if (access(source.path, R_OK) != 0 || weights_find_in_run_(&older, path, source.step) != STATUS_OK) {
            status_clear();
            return status_fail("%s", damage);
        }
        print_warning("%s; taking checkpoint %d instead of %d", damage, older.step, source.step);
        source = older;
    }
    return STATUS_OK;
}

// Adds what tells these weights from others to a digest: a .bin, or all files of a model of Hugging Face.
static inline Status weights_identity(Digest* digest, const char* path) {
    WeightsSource source;
    HuggingFaceWeights w;
    TRY(weights_find(&source, path));
    if (!source.is_hugging_face) { return identity_file(digest, source.path); }
    TRY(hugging_face_open(&w, source.path));
    Status status = w.config_path[0] ? identity_file(digest, w.config_path) : STATUS_OK;
    for (int i = 0; i < w.num_files && status == STATUS_OK; i++) { status = identity_file(digest, w.files[i].path); }
    hugging_face_close(&w);
    return status;
}

#endif
