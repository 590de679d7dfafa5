/*
Which variant and configuration of dev/cuda serves which GPU, precision and shape: the one table that the trainer,
libattention.so and the bench's column `trains` consult. Names only, in plain C, so that a query compiles no kernel.
attention.cuh turns the names into a launcher.
*/
#ifndef ATTENTION_CHOICE_H
#define ATTENTION_CHOICE_H

#include <limits.h>
#include <stdint.h>
#include <string.h>

#include "llmc/base/utils.h"

typedef enum { ATTENTION_FORWARD_PASS, ATTENTION_BACKWARD_PASS } AttentionDirection;

// Why the contract does not serve these sizes, for the end of an error message; NULL if it does. Any ints are valid
// arguments.
static inline const char* attention_unsupported(int B, int T, int NH, int HS) {
    if (B < 1 || T < 1 || NH < 1) { return "batch, sequence length and number of heads must be at least 1"; }
    if (HS != 32 && HS != 64 && HS != 96 && HS != 128) { return "the head size must be 32, 64, 96 or 128"; }
    // Kernels index rows by an int, and round T up to whole tiles.
    if (T > 1 << 30) { return "the sequence length must be at most 2^30"; }
    // The stride of a token in qkv is an int.
    if ((int64_t)3 * NH * HS > INT32_MAX) { return "number of heads x head size is too large"; }
    // Thread blocks are one grid dimension; the smallest tile in use is 16 rows of one head.
    if ((int64_t)B * NH > INT32_MAX / CEIL_DIV(T, 16)) { return "batch x heads x sequence length is too large"; }
    return NULL;
}

typedef struct {
    const char* variant;
    const char* config; // of the variant's table; NULL: its first that serves the head size and fits the GPU
    int fp32;           // 1: serves fp32; 0: bf16
    int capability_from, capability_to; // compute capability; 90 is 9.0 with code for sm_90a
    int HS;                             // the head size that it serves; 0: every one
    int longer_than;                    // serves sequences of more tokens than so many
    int64_t most_rows;                  // and at most so many rows, B NH T
} AttentionRule;

#ifdef __cplusplus
#define ATTENTION_TABLE constexpr // attention.cuh checks at compile time that the configurations exist
#else
#define ATTENTION_TABLE static const
#endif

// The first row that fits serves.
// clang-format off
ATTENTION_TABLE AttentionRule attention_forward_rules[] = {
    {"wgmma", NULL, 0, 90, 90, 32, 0, INT64_MAX},
    // few long rows, with at most 32 MB of K and V in 16 bit: smaller tiles leave fewer SMs idle at the end
    {"wgmma", "192x128", 0, 90, 90, 64, 4096, (32 << 20) / (64 * 4)},
    {"wgmma", NULL, 0, 90, 90, 64, 0, INT64_MAX},
    // more consumers and smaller key blocks pay off where most key blocks are off the diagonal
    {"wgmma", "192x64", 0, 90, 90, 96, 2048, INT64_MAX},
    {"wgmma", NULL, 0, 90, 90, 96, 0, INT64_MAX},
    {"wgmma", NULL, 0, 90, 90, 128, 0, INT64_MAX},
    {"mma", NULL, 0, 80, INT_MAX, 0, 0, INT64_MAX},
    {"flash2", NULL, 1, 0, INT_MAX, 0, 0, INT64_MAX},
};
ATTENTION_TABLE AttentionRule attention_backward_rules[] = {
    // larger key blocks pay off where most of them are off the diagonal; they compute no column sums of dQ
    {"wgmma", "64x192", 0, 90, 90, 64, 1024, INT64_MAX},
    {"wgmma", NULL, 0, 90, 90, 64, 0, INT64_MAX},
    {"wgmma", NULL, 0, 90, 90, 96, 0, INT64_MAX},
    {"wgmma", NULL, 0, 90, 90, 128, 0, INT64_MAX},
    {"mma", NULL, 0, 80, INT_MAX, 0, 0, INT64_MAX},
    {"flash2", NULL, 1, 0, INT_MAX, 0, 0, INT64_MAX},
};
// clang-format on

// The row that serves B sequences of T tokens with NH heads of HS channels; NULL if none does. With `variant` not NULL
// only rows of that variant are considered; where none of them fits, the first configuration of its table serves.
static inline const AttentionRule* attention_rule(AttentionDirection direction, const char* variant, int fp32,
                                                  int capability, int B, int T, int NH, int HS) {
    const int forward = direction == ATTENTION_FORWARD_PASS;
    const AttentionRule* rules = forward ? attention_forward_rules : attention_backward_rules;
    const size_t num_rules = forward ? sizeof(attention_forward_rules) / sizeof(AttentionRule)
                                     : sizeof(attention_backward_rules) / sizeof(AttentionRule);
    for (size_t n = 0; n < num_rules; n++) {
        const AttentionRule* r = &rules[n];
        if (variant != NULL && strcmp(r->variant, variant) != 0) { continue; }
        if (r->fp32 != fp32 || capability < r->capability_from || capability > r->capability_to) { continue; }
        if (r->HS != 0 && r->HS != HS) { continue; }
        if (T > r->longer_than && (int64_t)B * NH * T <= r->most_rows) { return r; }
    }
    return NULL;
}

#endif
