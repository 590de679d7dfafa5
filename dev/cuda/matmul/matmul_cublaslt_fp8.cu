/*
cuBLASLt's GEMMs of e4m3 operands, each with one scale, and the separate kernels of matmul_cublaslt.cu: the least that fp8
gains. It serves from sm_89 on. Both operands are K-major, the only layout that cuBLASLt takes on Ada and Hopper; outputs are
16-bit or, of weight gradients, fp32. Tensor cores add e4m3 products to 14 bits. Fast accumulation leaves it at that; it is off
where K is long, and for weight gradients, which over 65536 rows would lose all that is small (choice.h). Each algorithm is the
library's first choice.

Quantising the operands is not part of it: in training, the kernels that produce them do that.
*/
#ifndef MATMUL_CUBLASLT_FP8_CU
#define MATMUL_CUBLASLT_FP8_CU

#include "matmul.h"

#include "llmc/cuda/classifier.cuh"
#include "llmc/cuda/column_sum.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/layernorm_kernels.cuh"
#include "llmc/cuda/matmul.cuh"

namespace cublaslt_fp8 {

// A GEMM's result d (M,N) in row-major, which is the library's D (N,M) of its A = b and B = a
struct Gemm {
    const MatmulTensors* t;
    void* d;
    int M, N, K;
    cudaDataType_t type;       // of d
    const floatX* bias = NULL; // (N): if given, added
    floatX* pre = NULL;        // (M,N): if given, d = gelu(pre)
    const void* added = NULL;  // (M,N) of the same type: if given, added to d
};

// The plan's key. 2: transposed, as 1, but never the key of a plan with other operands.
static inline MatmulShape shape_of(const Gemm& g) {
    const cublasLtEpilogue_t epilogue = g.pre    ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                        : g.bias ? CUBLASLT_EPILOGUE_BIAS
                                                 : CUBLASLT_EPILOGUE_DEFAULT;
    return matmul_shape(g.N, g.M, g.K, 2, 0, epilogue, g.type);
}

static Status set_pointers(const MatmulPlan* p, const Gemm& g) {
    TRY(matmul_set(p->desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, (const void*)g.t->b_scale));
    TRY(matmul_set(p->desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, (const void*)g.t->a_scale));
    if (g.bias) { TRY(matmul_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void*)g.bias)); }
    return g.pre ? matmul_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (void*)g.pre) : STATUS_OK;
}

// As matmul_plan_, for 8-bit operands; a plan that cannot be made leaves no trace
static MatmulPlan* plan_of(Matmul* mm, const Gemm& g) {
    MatmulPlan* p = matmul_find_(mm, shape_of(g));
    if (p == NULL || p->desc != NULL) { return p; }
    if (matmul_describe(mm, p) != STATUS_OK ||
        matmul_set(p->a, CUBLASLT_MATRIX_LAYOUT_TYPE, (uint32_t)CUDA_R_8F_E4M3) != STATUS_OK ||
        matmul_set(p->b, CUBLASLT_MATRIX_LAYOUT_TYPE, (uint32_t)CUDA_R_8F_E4M3) != STATUS_OK ||
        matmul_set(p->desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM,
                   (int8_t)e4m3_accumulates_fast(g.type == CUDA_R_32F, g.K)) != STATUS_OK ||
        set_pointers(p, g) != STATUS_OK || matmul_choose(mm, p) != STATUS_OK) {
        matmul_destroy_plan(p);
        return NULL;
    }
    mm->num_plans++;
    return p;
}

static void gemm(MatmulContext* context, const Gemm& g, cudaStream_t stream) {
    Matmul* mm = context->library;
    mm->stream = stream;
    const MatmulPlan* p = plan_of(mm, g);
    if (p == NULL || set_pointers(p, g) != STATUS_OK) { return; }
    matmul_launch_(mm, p, g.d, (const floatX*)g.t->b, (const floatX*)g.t->a, 1.0f, g.added, g.added ? 1.0f : 0.0f);
}

constexpr cudaDataType_t TYPE_X = CudaType<floatX>::value;
// out (R,OUT) = inp W^T + bias
static void forward(MatmulContext* context, const MatmulTensors* t, floatX* out, const floatX* bias, MatmulSizes s,
                    cudaStream_t stream, floatX* pre = NULL, const floatX* added = NULL) {
    gemm(context, {t, out, s.R, s.OUT, s.IN, TYPE_X, bias, pre, added}, stream);
}

inline void qkv(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    forward(context, t, t->out, t->bias, s, stream);
}

inline void residual(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    forward(context, t, t->residual, t->bias, s, stream, NULL, t->skip);
    layernorm_forward(t->ln, t->mean, t->rstd, t->residual, t->ln_weight, t->ln_bias, s.R, s.OUT, stream,
                      t->ln_row_scales);
}

inline void fc(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    forward(context, t, t->pre, t->bias, s, stream);
    gelu_forward(t->act, t->pre, (size_t)s.R * s.OUT, stream);
}

inline void fc_gelu(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    forward(context, t, t->act, t->bias, s, stream, t->pre);
}
// Whether the library has this epilogue with e4m3 operands is not documented for all outputs: it is asked, which needs a GPU.
static const char* fc_gelu_unsupported(MatmulSizes s) {
    if (const char* why = e4m3_channels_unsupported(s)) { return why; }
    static Matmul library; // its handle and one plan
    if (library.handle == NULL) {
        library.compute = CUBLAS_COMPUTE_32F;
        cublas_check(cublasLtCreate(&library.handle));
    }
    float* some = (float*)&library; // no pointer is read before a launch
    MatmulTensors t = {};
    t.a_scale = t.b_scale = some;
    MatmulPlan* plan = plan_of(&library, {&t, some, s.R, s.OUT, s.IN, TYPE_X, (floatX*)some, (floatX*)some});
    const bool offered = plan != NULL;
    if (plan) { matmul_destroy_plan(plan); }
    library.num_plans = 0;
    status_clear();
    return offered ? nullptr : "cuBLASLt does not offer GELU_AUX_BIAS for e4m3 operands here";
}

inline void classifier(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    forward(context, t, t->logits, NULL, s, stream);
    fused_classifier(t->logits, t->losses, t->targets, t->gradient_scale, s.R, s.vocab_size, s.OUT, stream);
}

inline size_t dgelu_scratch(MatmulSizes s) { return column_sum_scratch_bytes(s.IN); }
inline void dgelu(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    gemm(context, {t, t->dpre, s.R, s.IN, s.OUT, TYPE_X}, stream);
    gelu_backward(t->dpre, t->dbias, t->act, t->pre, (float*)context->scratch, s.R, s.IN, stream);
}

inline void input(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    gemm(context, {t, t->dinp, s.R, s.IN, s.OUT, TYPE_X}, stream);
}

inline void weight(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    const float* added = t->accumulate ? t->dweight : NULL;
    gemm(context, {t, t->dweight, s.OUT, s.IN, s.R, CUDA_R_32F, NULL, NULL, added}, stream);
}

constexpr auto channels = e4m3_channels_unsupported, rows = e4m3_weight_unsupported;
static constexpr MatmulConfig matmul_configs[] = {
    {"e4m3", MATMUL_QKV, channels, matmul_no_scratch, qkv, false, false, true},
    {"e4m3", MATMUL_RESIDUAL, channels, matmul_no_scratch, residual, false, false, true},
    {"e4m3", MATMUL_CLASSIFIER, channels, matmul_no_scratch, classifier, false, false, true},
    {"e4m3", MATMUL_DGELU, channels, dgelu_scratch, dgelu, false, false, true},
    {"e4m3", MATMUL_INPUT, channels, matmul_no_scratch, input, false, false, true},
    {"e4m3", MATMUL_WEIGHT, rows, matmul_no_scratch, weight, false, false, true},
    {"e4m3", MATMUL_FC, channels, matmul_no_scratch, fc, false, false, true},
    {"e4m3 GELU_AUX_BIAS", MATMUL_FC, fc_gelu_unsupported, matmul_no_scratch, fc_gelu, false, false, true},
};

} // namespace cublaslt_fp8

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, cublaslt_fp8::matmul_configs, 89); }
#endif

#endif
