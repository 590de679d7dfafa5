/*
GEMMs through cuBLASLt: the linear layer out = inp W^T + b and its two gradients.

cuBLASLt is column-major: a row-major (R, S) tensor is its column-major (S, R) matrix, so each GEMM below is written
transposed. Inputs are floatX; accumulation is fp32; weight gradients are fp32. The algorithm is cuBLASLt's first
heuristic for the shape or that of matmul_algorithms.h, looked up once and never timed in a run, so that every run computes the
same bits. A weight gradient that accumulates has the same algorithm as one that overwrites: D = C + AB adds the same AB that
D = AB stores.

And what every user of cuBLAS shares: error checks, and the library's name of a type. Programs link with -lcublasLt.
*/
#ifndef LLMC_CUDA_MATMUL_CUH
#define LLMC_CUDA_MATMUL_CUH

#include <cublasLt.h>

#include "common.cuh"
#include "matmul_algorithms.h"

// cuda_try and cuda_check (common.cuh) for calls of cuBLAS
#define cublas_try(call) cublas_try_(call, #call, __FILE__, __LINE__)
#define cublas_check(call) ::check(cublas_try(call))
static inline Status cublas_try_(cublasStatus_t status, const char* call, const char* file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) { return STATUS_OK; }
    return status_fail("%s:%d: %s returned %s%s%s", file, line, call, cublasLtGetStatusName(status),
                       last_range[0] ? "; in: " : "", last_range);
}

template <class T> struct CudaType;
template <> struct CudaType<float> { static constexpr cudaDataType_t value = CUDA_R_32F; };
template <> struct CudaType<__nv_bfloat16> { static constexpr cudaDataType_t value = CUDA_R_16BF; };

// A GEMM's shape and kind: what its plan depends on.
struct MatmulShape {
    int m, n, k; // D is m x n, column-major
    int transpose_a, transpose_b;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t out_type; // of D; A and B are floatX
    int batch;               // GEMMs that the algorithm is chosen for, whose matrices stand one after the other
};
static_assert(sizeof(MatmulShape) == 8 * sizeof(int), "plans are compared byte by byte");

struct MatmulPlan {
    MatmulShape shape;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
};

constexpr int MATMUL_MAX_PLANS = 256;
constexpr size_t MATMUL_WORKSPACE = 64 << 20;

// The library's handle, its workspace, and the plans made so far. One per device and stream. Zeroed before matmul_create.
struct Matmul {
    cublasLtHandle_t handle;
    cublasComputeType_t compute;
    char* workspace;
    cudaStream_t stream;
    int num_plans;
    MatmulPlan plans[MATMUL_MAX_PLANS];
};

// tf32: an fp32 build may use tf32 tensor cores (10-bit mantissas). matmul_destroy is due after an error too.
static inline Status matmul_create(Matmul* mm, int tf32, cudaStream_t stream) {
    mm->num_plans = 0;
    mm->stream = stream;
    mm->compute = sizeof(floatX) == 4 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    TRY(cublas_try(cublasLtCreate(&mm->handle)));
    return cuda_try(cudaMalloc((void**)&mm->workspace, MATMUL_WORKSPACE));
}

static inline void matmul_destroy_plan(MatmulPlan* p) {
    if (p->a != NULL) { cublasLtMatrixLayoutDestroy(p->a); }
    if (p->b != NULL) { cublasLtMatrixLayoutDestroy(p->b); }
    if (p->d != NULL) { cublasLtMatrixLayoutDestroy(p->d); }
    if (p->desc != NULL) { cublasLtMatmulDescDestroy(p->desc); }
}

static inline void matmul_destroy(Matmul* mm) {
    for (int i = 0; i < mm->num_plans; i++) { matmul_destroy_plan(&mm->plans[i]); }
    if (mm->handle != NULL) { cublasLtDestroy(mm->handle); }
    if (mm->workspace != NULL) { cudaFree(mm->workspace); }
}

template <class V>
static inline Status matmul_set(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, V v) {
    return cublas_try(cublasLtMatmulDescSetAttribute(desc, name, &v, sizeof(v)));
}
template <class V>
static inline Status matmul_set(cublasLtMatrixLayout_t layout, cublasLtMatrixLayoutAttribute_t name, V v) {
    return cublas_try(cublasLtMatrixLayoutSetAttribute(layout, name, &v, sizeof(v)));
}

// A column-major matrix, or a batch of them
static inline Status matmul_layout(cublasLtMatrixLayout_t* layout, cudaDataType_t type, int rows, int cols, int batch) {
    TRY(cublas_try(cublasLtMatrixLayoutCreate(layout, type, rows, cols, rows)));
    TRY(matmul_set(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (int32_t)batch));
    return matmul_set(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, (int64_t)rows * cols);
}

// cuBLASLt's description of the GEMM of p->shape, without an algorithm.
static inline Status matmul_describe(Matmul* mm, MatmulPlan* p) {
    const MatmulShape shape = p->shape;
    int ask_bias = shape.epilogue == CUBLASLT_EPILOGUE_BIAS || shape.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    int ask_aux = shape.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || shape.epilogue == CUBLASLT_EPILOGUE_DGELU;
    TRY(cublas_try(cublasLtMatmulDescCreate(&p->desc, mm->compute, CUDA_R_32F)));
    TRY(matmul_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N));
    TRY(matmul_set(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N));
    TRY(matmul_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, shape.epilogue));
    if (ask_bias) { TRY(matmul_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CudaType<floatX>::value)); }
    if (ask_aux) { TRY(matmul_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)shape.m)); }

    cudaDataType_t type = CudaType<floatX>::value;
    int a_rows = shape.transpose_a ? shape.k : shape.m, a_cols = shape.transpose_a ? shape.m : shape.k;
    int b_rows = shape.transpose_b ? shape.n : shape.k, b_cols = shape.transpose_b ? shape.k : shape.n;
    TRY(matmul_layout(&p->a, type, a_rows, a_cols, shape.batch));
    TRY(matmul_layout(&p->b, type, b_rows, b_cols, shape.batch));
    return matmul_layout(&p->d, shape.out_type, shape.m, shape.n, shape.batch);
}

template <class V> static inline Status matmul_prefer(cublasLtMatmulPreference_t preference,
                                                      cublasLtMatmulPreferenceAttributes_t name, V v) {
    return cublas_try(cublasLtMatmulPreferenceSetAttribute(preference, name, &v, sizeof(v)));
}

// The algorithm: cuBLASLt's first choice among those that reduce the parts of a split-K in fp32, not in D's 16 bit, and before
// C is added, not part by part to D in place.
static inline Status matmul_choose(Matmul* mm, MatmulPlan* p) {
    cublasLtMatmulPreference_t preference;
    const uint32_t in_fp32 = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, as_d = CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    TRY(cublas_try(cublasLtMatmulPreferenceCreate(&preference)));
    matmul_prefer(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, MATMUL_WORKSPACE);
    matmul_prefer(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                  p->shape.batch > 1                ? (uint32_t)CUBLASLT_REDUCTION_SCHEME_NONE
                  : p->shape.out_type == CUDA_R_32F ? in_fp32 | as_d
                                                    : in_fp32);
    cublas_try(
        cublasLtMatmulAlgoGetHeuristic(mm->handle, p->desc, p->a, p->b, p->d, p->d, preference, 1, &result, &found));
    cublas_try(cublasLtMatmulPreferenceDestroy(preference));
    TRY(status_now());
    if (found == 0) {
        return status_fail("cuBLASLt has no algorithm for a GEMM of m %d, n %d, k %d, epilogue %d in " PRECISION_NAME,
                           p->shape.m, p->shape.n, p->shape.k, (int)p->shape.epilogue);
    }
    p->algorithm = result.algo;
    return STATUS_OK;
}

template <class V = int> static inline int matmul_algorithm_setting(const cublasLtMatmulAlgo_t* algorithm,
                                                                    cublasLtMatmulAlgoConfigAttributes_t name) {
    V value = 0;
    size_t written;
    cublas_try(cublasLtMatmulAlgoConfigGetAttribute(algorithm, name, &value, sizeof(value), &written));
    return value;
}
static inline int matmul_algorithm_cluster(const cublasLtMatmulAlgo_t* algorithm) {
    return matmul_algorithm_setting<uint16_t>(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID);
}
template <class V>
static inline bool matmul_config_(cublasLtMatmulAlgo_t* algorithm, cublasLtMatmulAlgoConfigAttributes_t name, V v) {
    return cublasLtMatmulAlgoConfigSetAttribute(algorithm, name, &v, sizeof(v)) == CUBLAS_STATUS_SUCCESS;
}

// Sets an algorithm's tile, cluster and custom option. Returns whether the library accepts them for the plan and the workspace
// suffices; false is no error.
static inline bool matmul_vary(Matmul* mm, const MatmulPlan* p, cublasLtMatmulAlgo_t* algorithm, int tile, int cluster,
                               int custom) {
    cublasLtMatmulHeuristicResult_t result;
    return matmul_config_(algorithm, CUBLASLT_ALGO_CONFIG_TILE_ID, (uint32_t)tile) &&
           matmul_config_(algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, (uint16_t)cluster) &&
           matmul_config_(algorithm, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, (uint32_t)custom) &&
           cublasLtMatmulAlgoCheck(mm->handle, p->desc, p->a, p->b, p->d, p->d, algorithm, &result) ==
               CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= MATMUL_WORKSPACE;
}

// Replaces the library's first choice by that of matmul_algorithms.h, where there is one that the library can run.
static inline Status matmul_tune_(Matmul* mm, MatmulPlan* p) {
    const MatmulShape* s = &p->shape;
    const MatmulAlgorithm* tuned = matmul_algorithm(s->m, s->n, s->k, s->transpose_a, s->transpose_b);
    cublasLtMatmulAlgo_t algorithm = p->algorithm;
    const int plain = s->epilogue == CUBLASLT_EPILOGUE_DEFAULT || s->epilogue == CUBLASLT_EPILOGUE_BIAS;
    if (tuned == NULL || !plain || sizeof(floatX) == 4) { return STATUS_OK; }
    if (matmul_algorithm_setting(&algorithm, CUBLASLT_ALGO_CONFIG_ID) != MATMUL_ALGORITHM_ID ||
        matmul_algorithm_setting(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1) {
        return status_now();
    }
    if (matmul_vary(mm, p, &algorithm, tuned->tile, tuned->cluster, tuned->custom)) { p->algorithm = algorithm; }
    return STATUS_OK;
}

// The plan of a shape, or the place for one, whose desc is NULL. NULL, with the error recorded, where no place is left.
static inline MatmulPlan* matmul_find_(Matmul* mm, MatmulShape shape) {
    for (int i = 0; i < mm->num_plans; i++) {
        if (memcmp(&mm->plans[i].shape, &shape, sizeof(shape)) == 0) { return &mm->plans[i]; }
    }
    if (mm->num_plans == MATMUL_MAX_PLANS) {
        status_fail("GEMMs of more than %d shapes", MATMUL_MAX_PLANS);
        return NULL;
    }
    MatmulPlan* p = &mm->plans[mm->num_plans];
    memset(p, 0, sizeof(*p));
    p->shape = shape;
    return p;
}

// Finds the plan for a shape, or makes it. NULL, with the error recorded, where the library has no algorithm.
static inline MatmulPlan* matmul_plan_(Matmul* mm, MatmulShape shape) {
    MatmulPlan* p = matmul_find_(mm, shape);
    if (p == NULL || p->desc != NULL) { return p; }
    if (matmul_describe(mm, p) != STATUS_OK || matmul_choose(mm, p) != STATUS_OK || matmul_tune_(mm, p) != STATUS_OK) {
        matmul_destroy_plan(p);
        return NULL;
    }
    mm->num_plans++;
    return p;
}

// D = alpha A B + beta C; NULL as c: beta is 0.
static inline void matmul_launch_(Matmul* mm, const MatmulPlan* p, void* d, const floatX* a, const floatX* b,
                                  float alpha, const void* c, float beta) {
    cublas_try(cublasLtMatmul(mm->handle, p->desc, &alpha, a, p->a, b, p->b, &beta, c != NULL ? c : d, p->d, d, p->d,
                              &p->algorithm, mm->workspace, MATMUL_WORKSPACE, mm->stream));
}

// D = A B or, where c is not NULL, D = C + A B, each operand transposed or not, with an epilogue that may read a bias or read
// or write aux. c may be d.
static inline void matmul_(Matmul* mm, void* d, const floatX* a, const floatX* b, MatmulShape shape, const void* c,
                           const floatX* bias, const floatX* aux) {
    MatmulPlan* p = matmul_plan_(mm, shape);
    if (p == NULL) { return; }
    if (bias != NULL) { matmul_set(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void*)bias); }
    if (aux != NULL) { matmul_set(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (const void*)aux); }
    matmul_launch_(mm, p, d, a, b, 1.0f, c, c != NULL ? 1.0f : 0.0f);
}

// Of floatX, unless out_type says otherwise
static inline MatmulShape matmul_shape(int m, int n, int k, int transpose_a, int transpose_b,
                                       cublasLtEpilogue_t epilogue, cudaDataType_t out_type = CudaType<floatX>::value,
                                       int batch = 1) {
    return {m, n, k, transpose_a, transpose_b, epilogue, out_type, batch};
}

// D = alpha A B + beta C for `count` matrices each, at most shape.batch
static inline void matmul_batch(Matmul* mm, floatX* d, const floatX* a, const floatX* b, MatmulShape shape, int count,
                                float alpha, const floatX* c, float beta) {
    MatmulPlan* p = matmul_plan_(mm, shape);
    if (p == NULL) { return; }
    for (cublasLtMatrixLayout_t layout : {p->a, p->b, p->d}) {
        matmul_set(layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, (int32_t)count);
    }
    matmul_launch_(mm, p, d, a, b, alpha, c, beta);
}

// out (BT, OC) = inp (BT, C) W^T + bias; W is (OC, C), bias (OC) or NULL.
static inline void matmul_forward(Matmul* mm, floatX* out, const floatX* inp, const floatX* weight, const floatX* bias,
                                  int BT, int C, int OC) {
    cublasLtEpilogue_t epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    matmul_(mm, out, weight, inp, matmul_shape(OC, BT, C, 1, 0, epilogue), NULL, bias, NULL);
}

// The same in fp32, without a bias: logits, which 16 bits would round by some hundredths of a nat
static inline void matmul_logits(Matmul* mm, float* out, const floatX* inp, const floatX* weight, int BT, int C,
                                 int OC) {
    matmul_(mm, out, weight, inp, matmul_shape(OC, BT, C, 1, 0, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F), NULL, NULL,
            NULL);
}

// out (BT, OC) = skip (BT, OC) + inp (BT, C) W^T + bias
static inline void matmul_residual_forward(Matmul* mm, floatX* out, const floatX* skip, const floatX* inp,
                                           const floatX* weight, const floatX* bias, int BT, int C, int OC) {
    const MatmulShape shape = matmul_shape(OC, BT, C, 1, 0, CUBLASLT_EPILOGUE_BIAS);
    matmul_(mm, out, weight, inp, shape, skip, bias, NULL);
}

// pre (BT, OC) = inp (BT, C) W^T + bias and out = gelu(pre), in one GEMM.
static inline void matmul_gelu_forward(Matmul* mm, floatX* out, floatX* pre, const floatX* inp, const floatX* weight,
                                       const floatX* bias, int BT, int C, int OC) {
    const MatmulShape shape = matmul_shape(OC, BT, C, 1, 0, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
    matmul_(mm, out, weight, inp, shape, NULL, bias, pre);
}

// dinp (BT, C) = dout (BT, OC) W. With pre (BT, C) not NULL, dinp is multiplied by gelu'(pre).
static inline void matmul_backward_input(Matmul* mm, floatX* dinp, const floatX* dout, const floatX* weight,
                                         const floatX* pre, int BT, int C, int OC) {
    cublasLtEpilogue_t epilogue = pre ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DEFAULT;
    matmul_(mm, dinp, weight, dout, matmul_shape(C, BT, OC, 0, 0, epilogue), NULL, NULL, pre);
}

// dweight (OC, C), fp32, = dout^T inp, or += with `accumulate`; dout is (BT, OC), inp (BT, C).
static inline void matmul_backward_weight(Matmul* mm, float* dweight, const floatX* dout, const floatX* inp,
                                          int accumulate, int BT, int C, int OC) {
    const MatmulShape shape = matmul_shape(C, OC, BT, 0, 1, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F);
    matmul_(mm, dweight, inp, dout, shape, accumulate ? dweight : NULL, NULL, NULL);
}

#endif
