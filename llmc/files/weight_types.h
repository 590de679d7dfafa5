/*
The types of weights in files: fp32, bf16 and fp16, with their names in flags, safetensors and PyTorch, and the casts from
fp32. Casts round to nearest, ties to even; NaN stays NaN; overflow gives infinity.
*/
#ifndef LLMC_FILES_WEIGHT_TYPES_H
#define LLMC_FILES_WEIGHT_TYPES_H

#include <math.h>

#include "llmc/base/status.h"

typedef enum { WEIGHTS_FP32, WEIGHTS_BF16, WEIGHTS_FP16, NUM_WEIGHT_TYPES } WeightType;

static const struct {
    const char *name, *safetensors, *torch;
    size_t bytes;
} weight_types[NUM_WEIGHT_TYPES] = {
    {"fp32", "F32", "float32", 4},
    {"bf16", "BF16", "bfloat16", 2},
    {"fp16", "F16", "float16", 2},
};

// ----------------------------------------------------------------------------
// Casts

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

static inline uint16_t float_to_fp16(float x) {
    uint32_t bits, half;
    memcpy(&bits, &x, sizeof(bits));
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) {
        half = 0x7e00u; // NaN
    } else if (magnitude >= 0x477ff000u) {
        half = 0x7c00u; // from 65,520 on: infinite
    } else if (magnitude >= 0x38800000u) {
        half = (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13;
    } else { // below 2^-14: a multiple of 2^-24, which is the last bit of a float in [0.5, 1)
        float sum = fabsf(x) + 0.5f;
        memcpy(&half, &sum, sizeof(half));
        half -= 0x3f000000u;
    }
    return (uint16_t)(sign | half);
}

// Casts n weights into `to`, of any alignment. Returns how many finite ones became infinite.
static inline size_t cast_weights(void* to, WeightType type, const float* weights, size_t n) {
    size_t lost = 0;
    if (type == WEIGHTS_FP32) {
        memcpy(to, weights, n * sizeof(float));
        return 0;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t word = type == WEIGHTS_BF16 ? float_to_bf16(weights[i]) : float_to_fp16(weights[i]);
        float back = type == WEIGHTS_BF16 ? bf16_to_float(word) : fp16_to_float(word);
        lost += isinf(back) && !isinf(weights[i]);
        memcpy((char*)to + i * sizeof(word), &word, sizeof(word));
    }
    return lost;
}

// 1 if the cast changes no bit of any of n weights that are finite.
static inline int weights_are(WeightType type, const float* weights, size_t n) {
    for (size_t i = 0; i < n && type != WEIGHTS_FP32; i++) {
        uint16_t word = type == WEIGHTS_BF16 ? float_to_bf16(weights[i]) : float_to_fp16(weights[i]);
        float back = type == WEIGHTS_BF16 ? bf16_to_float(word) : fp16_to_float(word);
        if (memcmp(&back, &weights[i], sizeof(back)) != 0) { return 0; }
    }
    return 1;
}

// The type of that name. "auto": 16 bits where every one of n weights is that already, so that a bf16 checkpoint stays one.
static inline Status weight_type_of(WeightType* type, const char* name, const float* weights, size_t n) {
    static const WeightType order[] = {WEIGHTS_BF16, WEIGHTS_FP16, WEIGHTS_FP32};
    for (int i = 0; i < NUM_WEIGHT_TYPES; i++) {
        *type = (WeightType)i;
        if (strcmp(name, weight_types[i].name) == 0) { return STATUS_OK; }
    }
    if (strcmp(name, "auto") != 0) { return status_fail("--export-dtype %s: must be auto, fp32, bf16 or fp16", name); }
    int i = 0;
    while (!weights_are(order[i], weights, n)) { i++; }
    *type = order[i];
    return STATUS_OK;
}

#endif
