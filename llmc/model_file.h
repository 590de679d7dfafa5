/*
A model in a file: llm.c's checkpoint of weights. A header of 256 int32 (magic, version, sizes), then all parameters in
the order of gpt2.h's table, in fp32 (version 3) or bf16 (version 5). Checkpoints of a run also have, in words that llm.c
leaves 0, the step and a digest of the parameters' bytes.
*/
#ifndef LLMC_MODEL_FILE_H
#define LLMC_MODEL_FILE_H

#include "atomic_file.h"
#include "digest.h"
#include "gpt2.h"

enum { MODEL_MAGIC = 20240326, MODEL_VERSION_FP32 = 3, MODEL_VERSION_BF16 = 5 };

// int32 positions in the header after llm.c's. 0: the file does not say.
enum { MODEL_STEP = 8, MODEL_DIGEST = 10 /* 64 bit */ };

// What a model file says of itself
typedef struct {
    int version; // 3 (fp32) or 5 (bf16)
    GPT2Config config;
    int step;        // of the run that wrote it; 0: it does not say
    uint64_t digest; // of all bytes after the header; 0: it does not say
} ModelHeader;

static inline void gpt2_write_model_header(AtomicFile* file, GPT2Config config, int version) {
    int32_t header[HEADER_INTS] = {0};
    header[0] = MODEL_MAGIC;
    header[1] = version;
    header[2] = config.max_seq_len;
    header[3] = config.vocab_size;
    header[4] = config.num_layers;
    header[5] = config.num_heads;
    header[6] = config.channels;
    header[7] = config.padded_vocab_size;
    check(atomic_write(file, header, sizeof(header)));
}

// Puts the step and the digest of what was written after the header into the header; returns the digest.
static inline uint64_t gpt2_complete_model_header(AtomicFile* file, int step, Digest parameters) {
    int32_t step_word = step;
    uint64_t digest = digest_end(parameters);
    check(atomic_overwrite(file, 4 * MODEL_STEP, &step_word, sizeof(step_word)));
    check(atomic_overwrite(file, 4 * MODEL_DIGEST, &digest, sizeof(digest)));
    return digest;
}

// Reads the header of an open model file, checks it and the file's length, and leaves the file at the first parameter.
static inline ModelHeader gpt2_model_header(FILE* file, const char* path) {
    int32_t header[HEADER_INTS];
    ModelHeader h;
    read_header(header, file, path, MODEL_MAGIC, "GPT-2 model");
    h.version = header[1];
    if (h.version != MODEL_VERSION_FP32 && h.version != MODEL_VERSION_BF16) {
        fatal("%s: model file version %d is not supported: 3 (fp32) and 5 (bf16) are", path, h.version);
    }
    h.config.max_seq_len = header[2];
    h.config.vocab_size = header[3];
    h.config.num_layers = header[4];
    h.config.num_heads = header[5];
    h.config.channels = header[6];
    h.config.padded_vocab_size = header[7];
    h.step = header[MODEL_STEP];
    memcpy(&h.digest, &header[MODEL_DIGEST], sizeof(h.digest));
    gpt2_check_config(h.config, path);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t element = h.version == MODEL_VERSION_FP32 ? sizeof(float) : sizeof(uint16_t);
    size_t expected = size_add(HEADER_BYTES, size_mul(gpt2_parameters(table, h.config), element));
    int64_t size = file_size(file, path);
    if ((uint64_t)size != (uint64_t)expected) {
        fatal("%s has %lld bytes, but its header describes a model of %zu; the file is truncated or corrupt", path,
              (long long)size, expected);
    }
    return h;
}

// The same, for the sizes alone. *version is 3 (fp32) or 5 (bf16).
static inline GPT2Config gpt2_read_model_header(FILE* file, const char* path, int* version) {
    ModelHeader h = gpt2_model_header(file, path);
    *version = h.version;
    return h.config;
}

// bf16 <-> fp32 on the host; rounding to nearest even, NaN stays NaN
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

// Reads a whole model file into fp32 on the host: allocates and returns the parameters (the caller frees them). Either
// version serves: bf16 weights are cast. Ends with one line where the file's own digest does not match.
static inline float* gpt2_load_parameters(const char* path, GPT2Config* config) {
    FILE* file = fopen_check(path, "rb");
    ModelHeader header = gpt2_model_header(file, path);
    Digest digest = digest_begin();
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t n = gpt2_parameters(table, header.config);
    float* params = (float*)malloc_check(size_mul(n, sizeof(float)));
    if (header.version == MODEL_VERSION_FP32) {
        fread_check(params, sizeof(float), n, file, path);
        digest_update(&digest, params, n * sizeof(float));
    } else {
        uint16_t words[4096];
        for (size_t i = 0; i < n; i += 4096) {
            size_t k = n - i < 4096 ? n - i : 4096;
            fread_check(words, sizeof(uint16_t), k, file, path);
            digest_update(&digest, words, k * sizeof(uint16_t));
            for (size_t j = 0; j < k; j++) { params[i + j] = bf16_to_float(words[j]); }
        }
    }
    fclose(file);
    if (header.digest != 0 && header.digest != digest_end(digest)) {
        fatal("%s: the weights do not have the digest that its header says; the file is corrupt", path);
    }
    *config = header.config;
    return params;
}

#endif
