/*
The contract of the matmul groups: the GEMMs of the training step, each with the operations around it as one group.

A variant matmul_<variant>.cu is, inside `namespace <variant>`, its kernels, a launcher for each configuration, and the
table `matmul_configs`, of any of the groups, best first for each. matmul/choice.h chooses among them. The file ends with

    #if __INCLUDE_LEVEL__ == 0 // the program, not an include
    int main(int argc, char** argv) { return variant_main(argc, argv, <variant>::matmul_configs); }
    #endif
*/
#ifndef MATMUL_H
#define MATMUL_H

#include "choice.h"
#include "dev/cuda/bench/variants.cuh"
#include "llmc/cuda/common.cuh"

// The contract.
//
//     group          what it computes, from W (OUT,IN)
//     qkv            out (R,OUT) = inp (R,IN) W^T + bias
//     residual       residual (R,OUT) = skip (R,OUT) + inp W^T + bias
//                    ln (R,OUT) = (residual - mean) rstd ln_weight + ln_bias, with mean and rstd (R) of residual
//     fc             act (R,OUT) = gelu(pre) of pre = inp W^T + bias;  pre (R,OUT) or, where that is NULL and the
//                    configuration `has_derivative`, derivative (R,OUT) = gelu'(pre)
//     classifier     losses (R) += cross entropy of logits = inp W^T over their first vocab_size columns, in nats;
//                    logits (R,OUT), times logits_scale (R) where the configuration is `scaled`, = gradient_scale * its
//                    gradient there, 0 in the other columns
//     dgelu          dpre (R,IN) = (dout (R,OUT) W) * gelu'(pre), which is derivative (R,IN) where pre is NULL;
//                    act (R,IN) = gelu(pre), or not where act is NULL, as it is without pre;  dbias (IN) += column sums of dpre
//     input          dinp (R,IN) = dout (R,OUT) W
//     weight         dweight (OUT,IN) = dout^T (OUT,R) inp (R,IN), or += where `accumulate`
//
// gelu is llmc/cuda/gelu.cuh's, LayerNorm llmc/cuda/layernorm.cuh's, cross entropy llmc/cuda/classifier.cuh's. GEMMs accumulate
// in fp32. What is computed from an output (gelu, LayerNorm, column sums) may take it as stored or as the fp32 number that was
// rounded to it; an intermediate that is no output (logits, inp W^T + bias of residual) may be rounded to floatX or not.
// But a configuration that has_derivative computes gelu'(pre) of pre rounded to floatX, and rounds it too, in fc as in dgelu:
// dpre has the same bits whether fc kept pre or the derivative.
//
// A configuration that is `fp8` reads a and b, in e4m3 (llmc/cuda/e4m3.cuh), in place of inp, weight and dout. Both are
// K-major, that is TN to BLAS, and have one scale each, a power of two on the device; the GEMM is a_scale b_scale a b^T,
// accumulated in fp32.
//
//     forward          a = inp (R,IN)        b = weight (OUT,IN)
//     dgelu, input     a = dout (R,OUT)      b = weight^T (IN,OUT)
//     weight           a = dout^T (OUT,R)    b = inp^T (IN,R)
//
// All sizes that matmul_unsupported() accepts, with 64-bit offsets; a configuration that serves fewer says so by `unsupported`.
// Every element of the outputs is written; nothing else is. Tensors do not overlap and are aligned to 16 bytes, scratch to 256;
// but residual needs at most (R,OUT) of scratch, and ln may overlap it.
//
// Same inputs, same bits. `accumulate` gives the bits of overwriting and then adding, in fp32, to what was there. A launcher
// allocates nothing on the device, synchronises nothing and keeps no state but what `context` holds; it is safe inside a CUDA
// graph once the same sizes have been launched outside, and on several streams at once with a context for each. The initial
// contents of scratch do not matter. A launcher that cannot launch records why by status_fail() or cuda_try()
// (llmc/base/utils.h) and returns.

struct Matmul; // llmc/cuda/matmul.cuh: cuBLASLt's handle, its workspace, the plans made so far

struct MatmulContext {
    Matmul* library; // NULL for variants that do without
    void* scratch;
};

// Pointers that a group does not use are NULL.
struct MatmulTensors {
    const floatX* inp;    // (R,IN)
    const floatX* weight; // (OUT,IN)
    const floatX* bias;   // (OUT)
    const floatX* dout;   // (R,OUT)
    // of configurations that are `fp8`, instead of inp, weight and dout
    const uint8_t *a, *b;            // (M,K) and (N,K), e4m3 or int8
    const float *a_scale, *b_scale;  // (1), aligned to 16 bytes, of e4m3
    const float* a_row_scales;       // (M), of int8
    const nv_bfloat16* b_row_scales; // (N), of int8
    // forward
    floatX* out;                       // (R,OUT)
    const floatX* skip;                // (R,OUT)
    floatX* residual;                  // (R,OUT)
    floatX* ln;                        // (R,OUT)
    float *mean, *rstd;                // (R)
    float* ln_row_scales;              // (R) or NULL: the scales of ln's rows in int8
    const floatX *ln_weight, *ln_bias; // (OUT)
    floatX* pre;                       // (R,OUT); an input of dgelu, (R,IN)
    floatX* derivative;                // as pre, and NULL if pre is not
    floatX* act;                       // (R,OUT); of dgelu (R,IN) or NULL
    floatX* logits;                    // (R,OUT)
    float* logits_scale;               // (R), of configurations that are `scaled`
    float* losses;                     // (R)
    const int* targets;                // (R), each below vocab_size
    float gradient_scale;
    // backward
    floatX* dpre;   // (R,IN)
    floatX* dinp;   // (R,IN)
    float* dweight; // (OUT,IN)
    int accumulate; // dweight +=
    float* dbias;   // (IN)
};

typedef void (*MatmulLaunch)(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream);

// One way to launch a group
struct MatmulConfig {
    static constexpr const char* operation = "matmul_"; // with which the variants' files begin
    const char* name; // as the bench prints it and --config names it; no comma: a CSV field
    MatmulGroup group;
    const char* (*unsupported)(MatmulSizes s); // of what the contract serves: half a sentence, or NULL if it is served
    size_t (*scratch_bytes)(MatmulSizes s);    // may be 0
    MatmulLaunch launch;
    bool scaled = false;         // of classifier: a row's gradient is logits_scale times its logits
    bool has_derivative = false; // of fc, dgelu: derivative instead of pre is served, too
    bool fp8 = false;            // the GEMM's operands are a and b
};

// For configurations that serve all that the contract does, and for those without scratch
static inline const char* matmul_serves_all(MatmulSizes) { return nullptr; }
static inline size_t matmul_no_scratch(MatmulSizes) { return 0; }

typedef Variant<MatmulConfig> MatmulVariant;

// The variant's first configuration of the group that serves the sizes; nullptr where there is none.
static inline const MatmulConfig* matmul_config(const MatmulVariant& variant, MatmulGroup group, MatmulSizes s) {
    for (const MatmulConfig& c : variant) {
        if (c.group == group && !c.unsupported(s)) { return &c; }
    }
    return nullptr;
}

#endif
