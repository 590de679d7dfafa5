/*
A check of streamed numbers, so that no number that is not finite gets into a checkpoint or out of one, in the order of gpt2.h's
table of parameters (weights, moments and master weights). Exponents are compared as integers, which vectorises: it
runs at about memory speed.

    FiniteCheck check;
    finite_check_begin(&check, config, 2, path);     // 4: fp32, 2: bf16; `path` names the file or block, for the error
    TRY(finite_check_update(&check, data, bytes));   // the next numbers: whole ones, from the first parameter on
                                                     // "model.bin: fcw, layer 3, element 17 is nan; ..."
*/
#ifndef LLMC_MODEL_FINITE_CHECK_H
#define LLMC_MODEL_FINITE_CHECK_H

#include "gpt2.h"

typedef struct {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t element; // bytes of a number
    size_t at;      // numbers that have passed
    const char* path;
} FiniteCheck;

static inline void finite_check_begin(FiniteCheck* c, GPT2Config config, size_t element_bytes, const char* path) {
    gpt2_parameters(c->table, config);
    c->element = element_bytes;
    c->at = 0;
    c->path = path;
}

// 1 if one of `count` numbers has all bits of the exponent set: it is infinite or no number.
static inline int finite_check_any_32_(const char* data, size_t count) {
    uint32_t bits, any = 0;
    for (size_t i = 0; i < count; i++) {
        memcpy(&bits, data + 4 * i, 4);
        any |= (bits & 0x7f800000u) == 0x7f800000u;
    }
    return any != 0;
}
static inline int finite_check_any_(const FiniteCheck* c, const char* data, size_t count) {
    uint16_t bits, any = 0;
    if (c->element == 4) { return finite_check_any_32_(data, count); }
    for (size_t i = 0; i < count; i++) {
        memcpy(&bits, data + 2 * i, 2);
        any = (uint16_t)(any | ((bits & 0x7f80u) == 0x7f80u));
    }
    return any != 0;
}

// Names parameter number `index` of the table, whose bytes are `number`.
static inline Status finite_check_fail_(const FiniteCheck* c, size_t index, const char* number) {
    uint32_t bits = 0;
    char layer[32] = "";
    int i = 0;
    memcpy((char*)&bits + 4 - c->element, number, c->element); // a 16-bit number is the upper half of an fp32 one
    while (i < NUM_PARAMETER_TENSORS - 1 && index >= c->table[i].count) { index -= c->table[i++].count; }
    const GPT2Parameter* p = &c->table[i];
    size_t layer_count = p->rows * p->cols;
    if (p->layers > 1) { snprintf(layer, sizeof(layer), ", layer %zu", index / layer_count); }
    return status_fail("%s: %s%s, element %zu is %s; no run can continue from it", c->path, p->name, layer,
                       index % layer_count,
                       (bits & 0x007fffffu) != 0 ? "nan"
                       : bits >> 31              ? "-inf"
                                                 : "inf");
}

// Takes the next numbers; fails, and names the tensor, its layer and the element, at the first that is not finite.
static inline Status finite_check_update(FiniteCheck* c, const void* data, size_t bytes) {
    const size_t PIECE = 4096;
    const char* p = (const char*)data;
    size_t count = bytes / c->element;
    for (size_t i = 0; i < count; i += PIECE) {
        size_t n = count - i < PIECE ? count - i : PIECE;
        if (!finite_check_any_(c, p + i * c->element, n)) { continue; }
        while (!finite_check_any_(c, p + i * c->element, 1)) { i++; }
        return finite_check_fail_(c, c->at + i, p + i * c->element);
    }
    c->at += count;
    return STATUS_OK;
}

#endif
