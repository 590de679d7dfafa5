/*
A model in a file: llm.c's checkpoint of weights. A header of 256 int32 (magic, version, sizes), then all parameters in
the order of gpt2.h's table, in fp32 (version 3) or bf16 (version 5). What this project writes also has, in words that llm.c
leaves 0, checksums (checked_file.h), the step, the trained length, and 64 bits that identify the weights.

Writing:   TRY(model_file_create(&file, path, config, version));      a CheckedWriter
           TRY(checked_write(&file, weights, bytes));                 as often as need be
           uint64_t contents = model_file_complete(&file, step);
           TRY(checked_commit(&file));

Reading:   gpt2_read_model_header, gpt2_load_parameters, or a ModelReader for weights as a stream. Weights that are damaged or
not finite are refused.
*/
#ifndef LLMC_FILES_MODEL_FILE_H
#define LLMC_FILES_MODEL_FILE_H

#include <math.h>

#include "llmc/base/checked_file.h"
#include "llmc/model/finite_check.h"
#include "llmc/model/gpt2.h"

enum { MODEL_MAGIC = 20240326, MODEL_VERSION_FP32 = 3, MODEL_VERSION_BF16 = 5 };

// int32 positions in the header after llm.c's. 0: the file does not say.
enum { MODEL_STEP = 8, MODEL_DIGEST = 10 /* 64 bit */, MODEL_TRAINED_LEN = 14 };

// The contents of a model file's header
typedef struct {
    int version; // 3 (fp32) or 5 (bf16)
    GPT2Config config;
    int step;        // of the run that wrote it; 0: it does not say
    uint64_t digest; // identifies the weights; 0: it does not say
    int has_checksums;
} ModelHeader;

// ----------------------------------------------------------------------------
// The types in which weights are written, with their names in safetensors and PyTorch

typedef enum { WEIGHTS_FP32, WEIGHTS_BF16, NUM_WEIGHT_TYPES } WeightType;

static const struct {
    const char *safetensors, *torch;
    size_t bytes;
} weight_types[NUM_WEIGHT_TYPES] = {{"F32", "float32", 4}, {"BF16", "bfloat16", 2}};

// Casts to fp32 and from it: to nearest, ties to even; NaN stays NaN, overflow gives infinity. fp16 is only read.

static inline float bf16_to_float(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float y;
    memcpy(&y, &bits, sizeof(y));
    return y;
}

static inline uint16_t float_to_bf16(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u) { return (uint16_t)((bits >> 16) | 0x40u); }
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float fp16_to_float(uint16_t x) {
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, exponent = x >> 10 & 31u, mantissa = x & 0x3ffu;
    uint32_t bits = sign | (exponent == 31 ? 0x7f800000u : (exponent + 112) << 23) | mantissa << 13;
    float y = (float)mantissa * 0x1p-24f; // subnormal, or zero
    if (exponent == 0) { return sign ? -y : y; }
    memcpy(&y, &bits, sizeof(y));
    return y;
}

// Casts n weights into `to`, of any alignment.
static inline void cast_weights(void* to, WeightType type, const float* weights, size_t n) {
    if (type == WEIGHTS_FP32) { memcpy(to, weights, n * sizeof(float)); }
    for (size_t i = 0; i < n && type == WEIGHTS_BF16; i++) {
        uint16_t word = float_to_bf16(weights[i]);
        memcpy((char*)to + i * sizeof(word), &word, sizeof(word));
    }
}

// The type of that name. "auto": bf16 where every one of n weights is that already, so that a bf16 checkpoint stays one.
static inline WeightType weight_type_of(const char* name, const float* weights, size_t n) {
    if (strcmp(name, "auto") != 0) { return strcmp(name, "bf16") == 0 ? WEIGHTS_BF16 : WEIGHTS_FP32; }
    for (size_t i = 0; i < n; i++) {
        float back = bf16_to_float(float_to_bf16(weights[i]));
        if (memcmp(&back, &weights[i], sizeof(back)) != 0) { return WEIGHTS_FP32; }
    }
    return WEIGHTS_BF16;
}

// ----------------------------------------------------------------------------
// Writing

static inline size_t model_file_element(int version) {
    return version == MODEL_VERSION_FP32 ? sizeof(float) : sizeof(uint16_t);
}

// llm.c's words of the header, and the trained length; the others are 0.
static inline void gpt2_model_header_words(int32_t header[HEADER_INTS], GPT2Config config, int version) {
    memset(header, 0, HEADER_BYTES);
    header[0] = MODEL_MAGIC;
    header[1] = version;
    header[2] = config.max_seq_len;
    header[3] = config.vocab_size;
    header[4] = config.num_layers;
    header[5] = config.num_heads;
    header[6] = config.channels;
    header[7] = config.padded_vocab_size;
    header[MODEL_TRAINED_LEN] = config.trained_len;
}

// Begins a file; all weights follow, as the version says, by checked_write.
static inline Status model_file_create(CheckedWriter* file, const char* path, GPT2Config config, int version) {
    int32_t header[HEADER_INTS];
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    gpt2_model_header_words(header, config, version);
    return checked_create(file, path, header, size_mul(gpt2_parameters(table, config), model_file_element(version)));
}

// When all weights are written, before checked_commit: puts the step and what identifies the weights into the header, and
// returns the latter. A file without a run has step 0.
static inline uint64_t model_file_complete(CheckedWriter* file, int step) {
    uint64_t contents = checked_contents(file->header, file->body.body_bytes);
    file->header[MODEL_STEP] = step;
    memcpy(&file->header[MODEL_DIGEST], &contents, sizeof(contents));
    return contents;
}

// Writes weights that lie in memory as the version says.
static inline Status model_file_write(const char* path, GPT2Config config, int version, int step, const void* weights) {
    CheckedWriter file;
    TRY(model_file_create(&file, path, config, version));
    TRY(checked_write(&file, weights, file.body.body_bytes));
    model_file_complete(&file, step);
    return checked_commit(&file);
}

// ----------------------------------------------------------------------------
// Reading

// Takes the header of an open file apart, and checks it and the file's length.
static inline Status gpt2_parse_model_header(const CheckedReader* file, ModelHeader* h) {
    const int32_t* header = file->header;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    h->version = header[1];
    if (h->version != MODEL_VERSION_FP32 && h->version != MODEL_VERSION_BF16) {
        return status_fail("%s: model file version %d is not supported: 3 (fp32) and 5 (bf16) are", file->path,
                           h->version);
    }
    h->config.max_seq_len = header[2];
    h->config.vocab_size = header[3];
    h->config.num_layers = header[4];
    h->config.num_heads = header[5];
    h->config.channels = header[6];
    h->config.padded_vocab_size = header[7];
    h->config.trained_len = header[MODEL_TRAINED_LEN];
    h->step = header[MODEL_STEP];
    h->has_checksums = file->has_checksums;
    memcpy(&h->digest, &header[MODEL_DIGEST], sizeof(h->digest));
    TRY(gpt2_config_status(h->config, file->path));
    size_t expected = size_mul(gpt2_parameters(table, h->config), model_file_element(h->version));
    if (file->body_bytes == expected) { return STATUS_OK; }
    return status_fail("%s has %zu bytes, but its header describes a model of %zu; the file is truncated or corrupt",
                       file->path, size_add(HEADER_BYTES, file->body_bytes), size_add(HEADER_BYTES, expected));
}

// The weights of a file as a stream, in the file's precision: from the first on, each of them once.
typedef struct {
    CheckedReader file;
    ModelHeader header;
    FiniteCheck finite;
} ModelReader;

static inline void model_reader_close(ModelReader* r) { checked_close(&r->file); }

// Opens a file and checks its header and its length. Begins with status_clear(); after an error there is nothing to close.
static inline Status model_reader_open(ModelReader* r, const char* path) {
    memset(r, 0, sizeof(*r));
    TRY(checked_open(&r->file, path, MODEL_MAGIC, "GPT-2 model"));
    if (gpt2_parse_model_header(&r->file, &r->header) != STATUS_OK) {
        model_reader_close(r);
        return STATUS_ERROR;
    }
    finite_check_begin(&r->finite, r->header.config, model_file_element(r->header.version), r->file.path);
    return STATUS_OK;
}

// A number that is not finite may be damage: then that is what is wrong with the file.
static inline Status model_file_not_finite(CheckedReader* file) {
    char message[STATUS_BYTES];
    snprintf(message, sizeof(message), "%s", status_message());
    status_clear();
    TRY(checked_verify(file));
    return status_fail("%s", message);
}

// Reads the next bytes, a whole number of weights, and looks at each.
static inline Status model_reader_read(ModelReader* r, void* dst, size_t bytes) {
    const size_t PIECE = 128 << 10; // stays in the cache from one check to the next
    for (size_t i = 0; i < bytes; i += PIECE) {
        char* p = (char*)dst + i;
        size_t n = bytes - i < PIECE ? bytes - i : PIECE;
        TRY(checked_read(&r->file, p, n));
        if (finite_check_update(&r->finite, p, n) != STATUS_OK) { return model_file_not_finite(&r->file); }
    }
    return STATUS_OK;
}

// The header of a model file. The header's own checksum and the file's length are checked, the weights are not.
static inline Status gpt2_read_model_header(const char* path, ModelHeader* header) {
    ModelReader r;
    TRY(model_reader_open(&r, path));
    *header = r.header;
    model_reader_close(&r);
    return STATUS_OK;
}

// Reads all weights of a file that was just opened, for the checks alone.
NOINLINE Status model_reader_verify(ModelReader* r) {
    char buffer[1 << 13];
    for (size_t left = r->file.body_bytes, n; left > 0; left -= n) {
        n = left < sizeof(buffer) ? left : sizeof(buffer);
        TRY(model_reader_read(r, buffer, n));
    }
    return checked_end(&r->file);
}

// ----------------------------------------------------------------------------

// Reads `count` weights into fp32; bf16 weights are cast.
static inline Status model_reader_floats_(ModelReader* r, float* params, size_t count) {
    uint16_t words[1 << 11];
    const size_t PIECE = 1 << 11;
    if (r->header.version == MODEL_VERSION_FP32) { return model_reader_read(r, params, count * sizeof(float)); }
    for (size_t i = 0; i < count; i += PIECE) {
        size_t n = count - i < PIECE ? count - i : PIECE;
        TRY(model_reader_read(r, words, n * sizeof(uint16_t)));
        for (size_t j = 0; j < n; j++) { params[i + j] = bf16_to_float(words[j]); }
    }
    return STATUS_OK;
}

// Reads a whole model file into fp32 on the host: allocates the parameters, which the caller frees. Either version serves.
// On an error *params is NULL.
NOINLINE Status gpt2_load_parameters(float** params, const char* path, ModelHeader* header) {
    ModelReader r;
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    *params = NULL;
    TRY(model_reader_open(&r, path));
    *header = r.header;
    size_t n = gpt2_parameters(table, r.header.config);
    float* p = (float*)malloc_check(size_mul(n, sizeof(float)));
    Status status = model_reader_floats_(&r, p, n);
    if (status == STATUS_OK) { status = checked_end(&r.file); }
    model_reader_close(&r);
    if (status == STATUS_OK) { *params = p; }
    if (status != STATUS_OK) { free(p); }
    return status;
}

#endif
