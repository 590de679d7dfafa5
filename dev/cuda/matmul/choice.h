/*
The matmul groups, each a GEMM of the training step with the operations around it, and which variant serves which GPU,
precision, group and sizes: the one table that the trainer and the bench's column `trains` consult. Names only, in plain C, so
that a query compiles no kernel. matmul.h is the contract.
*/
#ifndef MATMUL_CHOICE_H
#define MATMUL_CHOICE_H

#include <stdint.h>
#include <string.h>

// X(identifier, name, formula); matmul.h says what the tensors are
#define MATMUL_GROUPS(X)                                                                                               \
    X(QKV, "qkv", "out = inp W^T + bias")                                                                              \
    X(RESIDUAL, "residual", "residual = skip + inp W^T + bias; ln = LayerNorm(residual)")                              \
    X(FC, "fc", "pre = inp W^T + bias, or gelu'(pre) in its place; act = gelu(pre)")                                   \
    X(CLASSIFIER, "classifier", "logits = inp W^T; losses += cross entropy; logits = its gradient")                    \
    X(DGELU, "dgelu", "dpre = (dout W) * gelu'(pre); act = gelu(pre); dbias += column sums of dpre")                   \
    X(INPUT, "input", "dinp = dout W")                                                                                 \
    X(WEIGHT, "weight", "dweight = or += dout^T inp")

#define MATMUL_GROUP_ID_(id, name, formula) MATMUL_##id,
typedef enum { MATMUL_GROUPS(MATMUL_GROUP_ID_) NUM_MATMUL_GROUPS } MatmulGroup;

#define MATMUL_GROUP_NAME_(id, name, formula) name,
static const char* const matmul_group_names[NUM_MATMUL_GROUPS] = {MATMUL_GROUPS(MATMUL_GROUP_NAME_)};
#define MATMUL_GROUP_FORMULA_(id, name, formula) formula,
static const char* const matmul_group_formulas[NUM_MATMUL_GROUPS] = {MATMUL_GROUPS(MATMUL_GROUP_FORMULA_)};

#ifdef __cplusplus
#define MATMUL_CONSTEXPR constexpr // matmul.cuh checks at compile time that the configurations exist
#else
#define MATMUL_CONSTEXPR
#endif

typedef struct {
    int R;          // rows: B*T tokens
    int IN, OUT;    // channels: W is (OUT,IN)
    int vocab_size; // classifier: the real columns of OUT, the padded vocabulary; 0 for every other group
} MatmulSizes;

// Why the contract does not serve these sizes, for the end of an error message; NULL if it does. Any ints are valid
// arguments.
static inline const char* matmul_unsupported(MatmulGroup group, MatmulSizes s) {
    if (s.R < 1 || s.IN < 1 || s.OUT < 1) { return "rows and channels must be at least 1"; }
    if (s.IN % 8 != 0 || s.OUT % 8 != 0) { return "channels in and out must be multiples of 8"; } // 16 bytes of 16 bit
    // Kernels index rows and channels by an int, and round them up to whole tiles; fc has four times C channels.
    if (s.R > 1 << 30 || s.IN > 1 << 24 || s.OUT > 1 << 24) { return "rows must be at most 2^30, channels 2^24"; }
    if (group == MATMUL_CLASSIFIER && (s.vocab_size < 1 || s.vocab_size > s.OUT)) {
        return "the vocabulary must be at least 1 and at most the channels out";
    }
    return NULL;
}

// Why a GEMM of K-major e4m3 operands a (M,K) and b (N,K) is not served, or NULL: rows of K codes are aligned to 16 bytes, and
// cuBLASLt takes no N, which is the leading dimension of its column-major D, that is not a multiple of 16.
static inline const char* e4m3_unsupported(int N, int K) {
    return N % 16 != 0 || K % 16 != 0 ? "N and K of an e4m3 GEMM must be multiples of 16" : NULL;
}
// Of the groups whose result has IN or OUT columns, and of the weight gradient (OUT,IN), which sums over R
static inline const char* e4m3_channels_unsupported(MatmulSizes s) { return e4m3_unsupported(s.IN, s.OUT); }
static inline const char* e4m3_weight_unsupported(MatmulSizes s) { return e4m3_unsupported(s.IN, s.R); }
// Whether all K products may be added in the tensor cores' accumulator, which has 14 bits (PROTOCOL.md). A weight gradient's
// sum over the tokens, where outlier channels give all products one sign, needs more.
static inline int e4m3_accumulates_fast(int is_weight, int K) { return !is_weight && K <= 8192; }

typedef struct {
    const char* variant;          // its first configuration of the group that serves the sizes
    int group;                    // a MatmulGroup; -1: every one
    int (*serves)(MatmulSizes s); // which sizes; NULL: every one
} MatmulRule;

// The sizes of the training steps that were measured, 124M's and 1558M's, and those between them.
static inline int matmul_measured(MatmulSizes s) {
    const int C = s.IN < s.OUT ? s.IN : s.OUT;
    return s.R >= 8192 && C >= 768 && C <= 1600;
}

// 124M's size alone: for larger models cuBLASLt's tuned algorithms are as fast or faster.
static inline int matmul_measured_residual(MatmulSizes s) { return s.R >= 8192 && s.OUT == 768; }

// The first row that fits serves; on other GPUs than Hopper, in builds without code for it and in fp32 the last one alone. gelu
// and gelu' have the same bits in fc and in dgelu (llmc/cuda/gelu.cuh): with -r 0 fc computes both, with -r 1 dgelu recomputes
// gelu, and computes gelu'.
static const MATMUL_CONSTEXPR MatmulRule matmul_rules[] = {
    {"wgmma", MATMUL_FC, matmul_measured},
    {"wgmma", MATMUL_DGELU, matmul_measured},
    {"softmax_wgmma", MATMUL_CLASSIFIER, matmul_measured},
    {"wgmma", MATMUL_RESIDUAL, matmul_measured_residual},
    {"cublaslt_epilogue", MATMUL_RESIDUAL, matmul_measured},
    {"cublaslt", -1, NULL},
};

// The row that serves a group at these sizes. capability: DeviceCode's
static inline const MatmulRule* matmul_rule(MatmulGroup group, int fp32, int capability, MatmulSizes s) {
    const MatmulRule* r = matmul_rules;
    const int hopper = capability == 90 && !fp32;
    while (r->group != -1 && !(hopper && r->group == (int)group && r->serves(s))) { r++; }
    return r;
}

#endif
