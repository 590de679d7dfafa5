/*
The matmul groups that a program trains with: the variants that it holds, and the launchers of those that matmul/choice.h names
for a GPU, a precision, a group and its sizes. The contract is matmul.h's; what is raced in dev/cuda is what trains here.

A program is linked with matmul.cu's object, where their kernels are compiled once for all programs of a precision.
matmul_force() names the variant to take for every group that it serves, whatever the sizes are:
dev/test/whole/test_gpu_pairs.cu tests them so.

Launchers record errors and return (llmc/base/utils.h).
*/
#ifndef MATMUL_CUH
#define MATMUL_CUH

#include "fp8.cuh"
#include "matmul.h"

extern const Variants<MatmulVariant> matmul_variants;

// ----------------------------------------------------------------------------
// The choice

static const char* matmul_forced = nullptr;
// Selects this variant from the next launch on, where it supports the GEMM; nullptr: matmul/choice.h's. Scratch differs.
static inline void matmul_force(const char* variant) { matmul_forced = variant; }

// The first configuration of a variant that serves the sizes; nullptr if none does.
static inline const MatmulConfig* matmul_config_of(const char* variant, MatmulGroup group, MatmulSizes s) {
    for (const MatmulVariant& v : matmul_variants) {
        if (strcmp(v.name, variant) == 0) { return matmul_config(v, group, s); }
    }
    return nullptr;
}

// The configuration that serves on a GPU of this compute capability: of `variant`, unless that is nullptr. An error and nullptr
// where none does.
static inline const MatmulConfig* matmul_choice_on(int capability, const char* variant, MatmulGroup group,
                                                   MatmulSizes s) {
    const char* fault = matmul_unsupported(group, s);
    const MatmulConfig* config = nullptr;
    if (!fault && matmul_forced) { config = matmul_config_of(matmul_forced, group, s); }
    if (!fault && !config) {
        const MatmulRule* rule = matmul_rule(group, sizeof(floatX) == sizeof(float), capability, s);
        config = matmul_config_of(variant ? variant : rule->variant, group, s);
    }
    if (!config) {
        status_fail("matmul: %s of %d rows, %d channels in and %d out: %s", matmul_group_names[group], s.R, s.IN, s.OUT,
                    fault ? fault : "no configuration serves them");
    }
    return config;
}

// The name of the variant that serves on a GPU of this compute capability; "none" and an error if nothing does.
static inline const char* matmul_choice_name_on(int capability, const char* variant, MatmulGroup group, MatmulSizes s) {
    const MatmulConfig* config = matmul_choice_on(capability, variant, group, s);
    for (const MatmulVariant& v : matmul_variants) {
        if (config >= v.begin() && config < v.end()) { return v.name; }
    }
    return "none";
}

// Bytes of scratch on a GPU of this compute capability; 0 and an error if nothing serves.
static inline size_t matmul_scratch_bytes_on(int capability, const char* variant, MatmulGroup group, MatmulSizes s) {
    const MatmulConfig* config = matmul_choice_on(capability, variant, group, s);
    return config ? config->scratch_bytes(s) : 0;
}

// ----------------------------------------------------------------------------
// The launchers, in the words of matmul.h

// The context of a model's groups. Scratch as large as the function above says for each group that is launched; alignment as in
// matmul.h.
struct MatmulGroups {
    MatmulContext context;
    int capability; // DeviceCode's
    cudaStream_t stream;
    Fp8* fp8;       // the groups' operands have 8 bits; NULL: they are floatX
    int layer, row; // of 8 bits: the groups' block, and the first row of what they are launched for
};

// Returns what was launched, nullptr after an error or for what is in no variant (fp8_launch_fused).
static inline const MatmulConfig* matmul_launch(MatmulGroups* g, const char* variant, MatmulGroup group,
                                                MatmulTensors t, MatmulSizes s) {
    const MatmulGroup wanted = group;
    if (g->fp8) {
        variant = g->fp8->cold ? "cublaslt" : "cublaslt_fp8";
        group = fp8_before(g->fp8, g->layer, g->row, wanted, &t, s, g->stream);
        if (fp8_launch_fused(g->fp8, g->layer, wanted, &t, s, g->context.scratch, g->stream)) { return nullptr; }
    }
    const MatmulConfig* config = matmul_choice_on(g->capability, variant, group, s);
    if (config) { config->launch(&g->context, &t, s, g->stream); }
    if (config && g->fp8) { fp8_after(g->fp8, g->layer, wanted, &t, s, g->context.scratch, g->stream); }
    return config;
}

static inline void matmul_qkv(MatmulGroups* g, floatX* out, const floatX* inp, const floatX* weight, const floatX* bias,
                              int R, int C) {
    MatmulTensors t = {};
    t.out = out, t.inp = inp, t.weight = weight, t.bias = bias;
    matmul_launch(g, nullptr, MATMUL_QKV, t, {R, C, 3 * C, 0});
}

static inline void matmul_residual(MatmulGroups* g, floatX* residual, floatX* ln, float* mean, float* rstd,
                                   const floatX* skip, const floatX* inp, const floatX* weight, const floatX* bias,
                                   const floatX* ln_weight, const floatX* ln_bias, int R, int IN, int OUT) {
    MatmulTensors t = {};
    t.residual = residual, t.ln = ln, t.mean = mean, t.rstd = rstd;
    t.skip = skip, t.inp = inp, t.weight = weight, t.bias = bias, t.ln_weight = ln_weight, t.ln_bias = ln_bias;
    matmul_launch(g, nullptr, MATMUL_RESIDUAL, t, {R, IN, OUT, 0});
}

// Whether fc may keep the derivative of GELU for dgelu, instead of pre.
static inline bool matmul_has_derivative(const MatmulGroups* g, const char* fc_variant, const char* dgelu_variant,
                                         int R, int C) {
    const MatmulConfig* fc = matmul_choice_on(g->capability, fc_variant, MATMUL_FC, {R, C, 4 * C, 0});
    const MatmulConfig* dgelu = matmul_choice_on(g->capability, dgelu_variant, MATMUL_DGELU, {R, 4 * C, C, 0});
    return fc && fc->has_derivative && dgelu && dgelu->has_derivative;
}

static inline void matmul_fc(MatmulGroups* g, const char* variant, floatX* pre, floatX* derivative, floatX* act,
                             const floatX* inp, const floatX* weight, const floatX* bias, int R, int C) {
    MatmulTensors t = {};
    t.pre = pre, t.derivative = derivative, t.act = act, t.inp = inp, t.weight = weight, t.bias = bias;
    matmul_launch(g, variant, MATMUL_FC, t, {R, C, 4 * C, 0});
}

// Returns whether a row's gradient is logits_scale (R) times the row of logits; else logits hold the gradient itself.
static inline bool matmul_classifier(MatmulGroups* g, floatX* logits, float* logits_scale, float* losses,
                                     const floatX* inp, const floatX* weight, const int* targets, float gradient_scale,
                                     int R, int C, int V, int Vp) {
    MatmulTensors t = {};
    t.logits = logits, t.logits_scale = logits_scale, t.losses = losses;
    t.inp = inp, t.weight = weight, t.targets = targets, t.gradient_scale = gradient_scale;
    const MatmulConfig* config = matmul_launch(g, nullptr, MATMUL_CLASSIFIER, t, {R, C, Vp, V});
    return config && config->scaled;
}

static inline void matmul_dgelu(MatmulGroups* g, const char* variant, floatX* dpre, floatX* act, float* dbias,
                                const floatX* dout, const floatX* weight, floatX* pre, floatX* derivative, int R,
                                int C) {
    MatmulTensors t = {};
    t.dpre = dpre, t.act = act, t.dbias = dbias, t.dout = dout, t.weight = weight;
    t.pre = pre, t.derivative = derivative;
    matmul_launch(g, variant, MATMUL_DGELU, t, {R, 4 * C, C, 0});
}

static inline void matmul_input(MatmulGroups* g, floatX* dinp, const floatX* dout, const floatX* weight, int R, int IN,
                                int OUT) {
    MatmulTensors t = {};
    t.dinp = dinp, t.dout = dout, t.weight = weight;
    matmul_launch(g, nullptr, MATMUL_INPUT, t, {R, IN, OUT, 0});
}

static inline void matmul_weight(MatmulGroups* g, float* dweight, const floatX* dout, const floatX* inp, int accumulate,
                                 int R, int IN, int OUT) {
    MatmulTensors t = {};
    t.dweight = dweight, t.dout = dout, t.inp = inp, t.accumulate = accumulate;
    matmul_launch(g, nullptr, MATMUL_WEIGHT, t, {R, IN, OUT, 0});
}

#endif
