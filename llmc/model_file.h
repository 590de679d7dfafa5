/*
A model in a file: llm.c's checkpoint of weights. A header of 256 int32 (magic, version, sizes), then all parameters in
the order of gpt2.h's table, in fp32 (version 3) or bf16 (version 5).
*/
#ifndef LLMC_MODEL_FILE_H
#define LLMC_MODEL_FILE_H

#include "gpt2.h"

enum { MODEL_MAGIC = 20240326, MODEL_VERSION_FP32 = 3, MODEL_VERSION_BF16 = 5 };

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
    atomic_write(file, header, sizeof(header));
}

// Reads the header of an open model file, checks it and the file's length, and leaves the file at the first parameter.
// *version is 3 (fp32) or 5 (bf16).
static inline GPT2Config gpt2_read_model_header(FILE* file, const char* path, int* version) {
    int32_t header[HEADER_INTS];
    read_header(header, file, path, MODEL_MAGIC, "GPT-2 model");
    *version = header[1];
    if (*version != MODEL_VERSION_FP32 && *version != MODEL_VERSION_BF16) {
        fatal("%s: model file version %d is not supported: 3 (fp32) and 5 (bf16) are", path, *version);
    }
    GPT2Config config;
    config.max_seq_len = header[2];
    config.vocab_size = header[3];
    config.num_layers = header[4];
    config.num_heads = header[5];
    config.channels = header[6];
    config.padded_vocab_size = header[7];
    gpt2_check_config(config, path);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t expected = gpt2_parameters(table, config) * (*version == MODEL_VERSION_FP32 ? 4 : 2) + HEADER_BYTES;
    int64_t size = file_size(file, path);
    if ((uint64_t)size != (uint64_t)expected) {
        fatal("%s: %lld bytes, but its header describes a model of %zu bytes; the file is truncated or corrupt", path,
              (long long)size, expected);
    }
    return config;
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
// version serves: bf16 weights are cast.
static inline float* gpt2_load_parameters(const char* path, GPT2Config* config) {
    FILE* file = fopen_check(path, "rb");
    int version;
    *config = gpt2_read_model_header(file, path, &version);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t n = gpt2_parameters(table, *config);
    float* params = (float*)malloc_check(n * sizeof(float));
    if (version == MODEL_VERSION_FP32) {
        fread_check(params, sizeof(float), n, file, path);
    } else {
        uint16_t words[4096];
        for (size_t i = 0; i < n; i += 4096) {
            size_t k = n - i < 4096 ? n - i : 4096;
            fread_check(words, sizeof(uint16_t), k, file, path);
            for (size_t j = 0; j < k; j++) { params[i + j] = bf16_to_float(words[j]); }
        }
    }
    fclose(file);
    return params;
}

#endif
