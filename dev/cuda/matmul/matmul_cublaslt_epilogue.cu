/*
The fusions that cuBLASLt itself offers, each a configuration named after what it uses:

    residual       beta=1 BIAS    D = AB + C, with the skip connection as C; then LayerNorm alone
    fc             GELU_AUX_BIAS  both pre and act from the GEMM
    dgelu          DGELU          gelu' in the GEMM; column sums and act in kernels of their own, as train_gpt2cu -ge 2
                   DGELU_BGRAD    and the column sums of dpre in the GEMM
    weight         BGRADB         column sums of dout, the GEMM's second operand
    layer_weights  BGRADB         four GEMMs, qkv's with its column sums

qkv's BIAS is the baseline's (matmul_cublaslt.cu); LayerNorm and cross entropy have no epilogue; BGRADA would need dweight
transposed. Bias gradients are requested in fp32, as in the contract: where the library has no algorithm for that, the
configuration serves no shape. The library overwrites them, so a kernel adds them to dbias.
*/
#ifndef MATMUL_CUBLASLT_EPILOGUE_CU
#define MATMUL_CUBLASLT_EPILOGUE_CU

#include "matmul.h"

#include "llmc/cuda/column_sum.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/layernorm.cuh"
#include "llmc/cuda/matmul.cuh"

namespace cublaslt_epilogue {

// The arguments of a GEMM beside its operands
struct Fusion {
    const void* c; // D = AB + C if it is not NULL; may be D
    void* bias;    // read by BIAS, written by BGRAD
    cudaDataType_t bias_type;
    const void* aux; // read by DGELU
};

// A plan for one launch: the heuristic is queried each time, and nothing is cached.
static inline Status fused_plan(Matmul* mm, MatmulPlan* p, MatmulShape shape, Fusion f) {
    memset(p, 0, sizeof(*p));
    p->shape = shape;
    TRY(matmul_describe_(mm, p));
    if (f.bias_type == CUDA_R_32F) { TRY(matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, f.bias_type)); }
    if (f.bias != NULL) { TRY(matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, f.bias)); }
    if (shape.epilogue == CUBLASLT_EPILOGUE_DGELU_BGRAD) {
        TRY(matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)shape.m));
        TRY(matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, f.aux));
    }
    return matmul_choose_(mm, p);
}

static inline void fused_gemm(MatmulContext* context, void* d, const floatX* a, const floatX* b, MatmulShape shape,
                              Fusion f, cudaStream_t stream) {
    Matmul* mm = context->library;
    MatmulPlan plan;
    const float alpha = 1.0f, beta = f.c != NULL ? 1.0f : 0.0f;
    if (fused_plan(mm, &plan, shape, f) == STATUS_OK) {
        cublas_try(cublasLtMatmul(mm->handle, plan.desc, &alpha, a, plan.a, b, plan.b, &beta, f.c != NULL ? f.c : d,
                                  plan.d, d, plan.d, &plan.algorithm, mm->workspace, MATMUL_WORKSPACE, stream));
    }
    matmul_destroy_plan_(&plan);
}

// Whether the library has an algorithm for the shape. The handle is created by the first call.
static inline bool library_serves(MatmulShape shape) {
    static Matmul* query = [] {
        static Matmul mm = {};
        mm.compute = CUBLAS_COMPUTE_32F;
        cublas_try(cublasLtCreate(&mm.handle));
        return &mm;
    }();
    MatmulPlan plan;
    check(status_now()); // an earlier error would be taken for the answer
    const bool serves = fused_plan(query, &plan, shape, {NULL, NULL, CUDA_R_32F, NULL}) == STATUS_OK;
    matmul_destroy_plan_(&plan);
    status_clear();
    return serves;
}

static inline Matmul* library_on(MatmulContext* context, cudaStream_t stream) {
    context->library->stream = stream;
    return context->library;
}

// ----------------------------------------------------------------------------
// residual, fc

inline void residual(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_residual_forward(library_on(context, stream), t->residual, t->skip, t->inp, t->weight, t->bias, s.R, s.IN,
                            s.OUT);
    layernorm_forward(t->ln, t->mean, t->rstd, t->residual, t->ln_weight, t->ln_bias, s.R, s.OUT, stream);
}

inline void fc(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_gelu_forward(library_on(context, stream), t->act, t->pre, t->inp, t->weight, t->bias, s.R, s.IN, s.OUT);
}

// ----------------------------------------------------------------------------
// dgelu

static inline void gelu_again(const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    if (t->act != NULL) { gelu_forward(t->act, t->pre, (size_t)s.R * s.IN, stream); }
}

inline size_t dgelu_scratch(MatmulSizes s) { return column_sum_scratch_bytes(s.IN); }
inline void dgelu(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_backward_input(library_on(context, stream), t->dpre, t->dout, t->weight, t->pre, s.R, s.IN, s.OUT);
    column_sum(t->dbias, t->dpre, (float*)context->scratch, s.R, s.IN, stream);
    gelu_again(t, s, stream);
}

static inline MatmulShape bgrad_shape(MatmulSizes s) {
    return matmul_shape_(s.IN, s.R, s.OUT, 0, 0, CUBLASLT_EPILOGUE_DGELU_BGRAD, CudaType<floatX>::value);
}
static inline const char* bgrad_unsupported(MatmulSizes s) {
    return library_serves(bgrad_shape(s)) ? NULL : "cuBLASLt has no algorithm that sums dbias in fp32";
}
inline size_t bgrad_scratch(MatmulSizes s) { return s.IN * sizeof(float); }
inline void dgelu_bgrad(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    float* sums = (float*)context->scratch; // (IN)
    fused_gemm(context, t->dpre, t->weight, t->dout, bgrad_shape(s), {NULL, sums, CUDA_R_32F, t->pre}, stream);
    column_sum_partials(t->dbias, sums, 1, s.IN, s.IN, stream);
    gelu_again(t, s, stream);
}

// ----------------------------------------------------------------------------
// weight, layer_weights

static inline MatmulShape weight_shape(MatmulSizes s) {
    return matmul_shape_(s.IN, s.OUT, s.R, 0, 1, CUBLASLT_EPILOGUE_BGRADB, CUDA_R_32F);
}
static inline const char* weight_unsupported(MatmulSizes s) {
    return library_serves(weight_shape(s)) ? NULL : "cuBLASLt has no algorithm that sums dbias in fp32";
}
static inline void weight_gradient(MatmulContext* context, MatmulLayerWeight w, int accumulate, MatmulSizes s,
                                   cudaStream_t stream) {
    if (w.dbias == NULL) {
        matmul_backward_weight(library_on(context, stream), w.dweight, w.dout, w.inp, accumulate, s.R, s.IN, s.OUT);
        return;
    }
    float* sums = (float*)context->scratch; // (OUT)
    fused_gemm(context, w.dweight, w.inp, w.dout, weight_shape(s),
               {accumulate ? w.dweight : NULL, sums, CUDA_R_32F, NULL}, stream);
    column_sum_partials(w.dbias, sums, 1, s.OUT, s.OUT, stream);
}
inline size_t weight_scratch(MatmulSizes s) { return s.OUT * sizeof(float); }
inline void weight(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    weight_gradient(context, {t->dweight, t->dbias, t->dout, t->inp}, t->accumulate, s, stream);
}

static inline const char* layer_weights_unsupported(MatmulSizes s) {
    return weight_unsupported(matmul_layer_sizes(MATMUL_LAYER_QKV, s));
}
inline size_t layer_weights_scratch(MatmulSizes s) { return weight_scratch(matmul_layer_sizes(MATMUL_LAYER_QKV, s)); }
inline void layer_weights(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    for (int n = NUM_MATMUL_LAYER - 1; n >= 0; n--) { // as the backward pass goes
        weight_gradient(context, t->layer[n], t->accumulate, matmul_layer_sizes(n, s), stream);
    }
}

static constexpr MatmulConfig matmul_configs[] = {
    {"beta=1 BIAS", MATMUL_RESIDUAL, matmul_serves_all, matmul_no_scratch, residual},
    {"GELU_AUX_BIAS", MATMUL_FC, matmul_serves_all, matmul_no_scratch, fc},
    {"DGELU", MATMUL_DGELU, matmul_serves_all, dgelu_scratch, dgelu},
    {"DGELU_BGRAD", MATMUL_DGELU, bgrad_unsupported, bgrad_scratch, dgelu_bgrad},
    {"BGRADB", MATMUL_WEIGHT, weight_unsupported, weight_scratch, weight},
    {"BGRADB", MATMUL_LAYER_WEIGHTS, layer_weights_unsupported, layer_weights_scratch, layer_weights},
};

} // namespace cublaslt_epilogue

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "bench.h"
int main(int argc, char** argv) { return matmul_main(argc, argv, cublaslt_epilogue::matmul_configs); }
#endif

#endif
