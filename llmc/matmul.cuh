/*
Matrix products through cuBLASLt: out = inp W^T + b and its two gradients.

cuBLASLt thinks in columns: a row-major (R, S) tensor is its column-major (S, R) matrix, so each product below is
written transposed. Inputs are floatX; accumulation is fp32; weight gradients are fp32 and are added to. The algorithm is
cuBLASLt's first heuristic for the shape, looked up once: no timing, so that every run computes the same bits.
*/
#ifndef LLMC_MATMUL_CUH
#define LLMC_MATMUL_CUH

#include "cublas_common.cuh"

// One product's shape and kind: what its plan depends on.
struct MatmulShape {
    int m, n, k; // D is m x n, column-major
    int transpose_a, transpose_b;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t out_type; // of D; A and B are floatX
    int accumulate;          // D += instead of D =
};

struct MatmulPlan {
    MatmulShape shape;
    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, d;
    cublasLtMatmulAlgo_t algorithm;
};

constexpr int MATMUL_MAX_PLANS = 256;
constexpr size_t MATMUL_WORKSPACE = 64 << 20;

// The library's handle, its workspace, and the plans made so far. One per device and stream.
struct Matmul {
    cublasLtHandle_t handle;
    cublasComputeType_t compute;
    void* workspace;
    cudaStream_t stream;
    int num_plans;
    MatmulPlan plans[MATMUL_MAX_PLANS];
};

// tf32: an fp32 build may use tf32 tensor cores (10-bit mantissas).
static inline void matmul_create(Matmul* mm, int tf32, cudaStream_t stream) {
    mm->num_plans = 0;
    mm->stream = stream;
    mm->compute = sizeof(floatX) == 4 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    cublas_check(cublasLtCreate(&mm->handle));
    cuda_check(cudaMalloc(&mm->workspace, MATMUL_WORKSPACE));
}

static inline void matmul_destroy(Matmul* mm) {
    for (int i = 0; i < mm->num_plans; i++) {
        MatmulPlan* p = &mm->plans[i];
        cublas_check(cublasLtMatrixLayoutDestroy(p->a));
        cublas_check(cublasLtMatrixLayoutDestroy(p->b));
        cublas_check(cublasLtMatrixLayoutDestroy(p->d));
        cublas_check(cublasLtMatmulDescDestroy(p->desc));
    }
    cublas_check(cublasLtDestroy(mm->handle));
    cuda_check(cudaFree(mm->workspace));
}

template <class V> static inline void matmul_set_(cublasLtMatmulDesc_t desc, cublasLtMatmulDescAttributes_t name, V v) {
    cublas_check(cublasLtMatmulDescSetAttribute(desc, name, &v, sizeof(v)));
}

// Finds the plan for a shape, or makes it.
static inline MatmulPlan* matmul_plan_(Matmul* mm, MatmulShape shape) {
    for (int i = 0; i < mm->num_plans; i++) {
        if (memcmp(&mm->plans[i].shape, &shape, sizeof(shape)) == 0) { return &mm->plans[i]; }
    }
    if (mm->num_plans == MATMUL_MAX_PLANS) { fatal("more than %d shapes of matrix products", MATMUL_MAX_PLANS); }
    MatmulPlan* p = &mm->plans[mm->num_plans++];
    p->shape = shape;
    cublas_check(cublasLtMatmulDescCreate(&p->desc, mm->compute, CUDA_R_32F));
    matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_TRANSA, shape.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_TRANSB, shape.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE, shape.epilogue);
    int ask_bias = shape.epilogue == CUBLASLT_EPILOGUE_BIAS || shape.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    int ask_aux = shape.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || shape.epilogue == CUBLASLT_EPILOGUE_DGELU;
    if (ask_bias) { matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CudaType<floatX>::value); }
    if (ask_aux) { matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (int64_t)shape.m); }

    cudaDataType_t type = CudaType<floatX>::value;
    int a_rows = shape.transpose_a ? shape.k : shape.m, a_cols = shape.transpose_a ? shape.m : shape.k;
    int b_rows = shape.transpose_b ? shape.n : shape.k, b_cols = shape.transpose_b ? shape.k : shape.n;
    cublas_check(cublasLtMatrixLayoutCreate(&p->a, type, a_rows, a_cols, a_rows));
    cublas_check(cublasLtMatrixLayoutCreate(&p->b, type, b_rows, b_cols, b_rows));
    cublas_check(cublasLtMatrixLayoutCreate(&p->d, shape.out_type, shape.m, shape.n, shape.m));

    cublasLtMatmulPreference_t preference;
    size_t workspace = MATMUL_WORKSPACE;
    cublas_check(cublasLtMatmulPreferenceCreate(&preference));
    cublas_check(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                      sizeof(workspace)));
    cublasLtMatmulHeuristicResult_t result;
    int found = 0;
    cublas_check(
        cublasLtMatmulAlgoGetHeuristic(mm->handle, p->desc, p->a, p->b, p->d, p->d, preference, 1, &result, &found));
    cublas_check(cublasLtMatmulPreferenceDestroy(preference));
    if (found == 0) {
        fatal("cuBLASLt has no algorithm for a product of m %d, n %d, k %d, epilogue %d in " PRECISION_NAME, shape.m,
              shape.n, shape.k, (int)shape.epilogue);
    }
    p->algorithm = result.algo;
    return p;
}

// D = A B, or D += A B, each operand transposed or not, with an epilogue that may read a bias or read or write aux.
static inline void matmul_(Matmul* mm, void* d, const floatX* a, const floatX* b, MatmulShape shape, const floatX* bias,
                           const floatX* aux) {
    MatmulPlan* p = matmul_plan_(mm, shape);
    if (bias != NULL) { matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, (const void*)bias); }
    if (aux != NULL) { matmul_set_(p->desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, (const void*)aux); }
    float alpha = 1.0f, beta = shape.accumulate ? 1.0f : 0.0f;
    cublas_check(cublasLtMatmul(mm->handle, p->desc, &alpha, a, p->a, b, p->b, &beta, d, p->d, d, p->d, &p->algorithm,
                                mm->workspace, MATMUL_WORKSPACE, mm->stream));
}

static inline MatmulShape matmul_shape_(int m, int n, int k, int ta, int tb, cublasLtEpilogue_t epilogue,
                                        cudaDataType_t out_type, int accumulate) {
    MatmulShape shape;
    memset(&shape, 0, sizeof(shape)); // plans are compared byte by byte
    shape.m = m, shape.n = n, shape.k = k;
    shape.transpose_a = ta, shape.transpose_b = tb;
    shape.epilogue = epilogue;
    shape.out_type = out_type;
    shape.accumulate = accumulate;
    return shape;
}

// out (BT, OC) = inp (BT, C) W^T + bias; W is (OC, C), bias (OC) or NULL.
static inline void matmul_forward(Matmul* mm, floatX* out, const floatX* inp, const floatX* weight, const floatX* bias,
                                  int BT, int C, int OC) {
    cublasLtEpilogue_t epilogue = bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    MatmulShape shape = matmul_shape_(OC, BT, C, 1, 0, epilogue, CudaType<floatX>::value, 0);
    matmul_(mm, out, weight, inp, shape, bias, NULL);
}

// pre (BT, OC) = inp (BT, C) W^T + bias and out = gelu(pre), in one product.
static inline void matmul_gelu_forward(Matmul* mm, floatX* out, floatX* pre, const floatX* inp, const floatX* weight,
                                       const floatX* bias, int BT, int C, int OC) {
    MatmulShape shape = matmul_shape_(OC, BT, C, 1, 0, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CudaType<floatX>::value, 0);
    matmul_(mm, out, weight, inp, shape, bias, pre);
}

// dinp (BT, C) = dout (BT, OC) W. With pre (BT, C) not NULL, dinp is multiplied by gelu'(pre).
static inline void matmul_backward_input(Matmul* mm, floatX* dinp, const floatX* dout, const floatX* weight,
                                         const floatX* pre, int BT, int C, int OC) {
    cublasLtEpilogue_t epilogue = pre ? CUBLASLT_EPILOGUE_DGELU : CUBLASLT_EPILOGUE_DEFAULT;
    MatmulShape shape = matmul_shape_(C, BT, OC, 0, 0, epilogue, CudaType<floatX>::value, 0);
    matmul_(mm, dinp, weight, dout, shape, NULL, pre);
}

// dweight (OC, C), fp32, += dout^T inp; dout is (BT, OC), inp (BT, C).
static inline void matmul_backward_weight(Matmul* mm, float* dweight, const floatX* dout, const floatX* inp, int BT,
                                          int C, int OC) {
    MatmulShape shape = matmul_shape_(C, OC, BT, 0, 1, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F, 1);
    matmul_(mm, dweight, inp, dout, shape, NULL, NULL);
}

// The rate of a large product on this GPU in FLOP/s: the peak that a training step is measured against. 4096^3 keeps
// the GPU busy for about 0.2 ms a product on a large one; the best of ten rounds of three counts. 100 MB for a moment.
static inline double matmul_measure_peak(Matmul* mm) {
    const int n = 4096;
    floatX *a, *b, *d;
    cuda_check(cudaMalloc(&a, sizeof(floatX) * n * n));
    cuda_check(cudaMalloc(&b, sizeof(floatX) * n * n));
    cuda_check(cudaMalloc(&d, sizeof(floatX) * n * n));
    // any finite values of both signs will do: bytes 0x00 .. 0x3f as exponents keep them below 1
    uint8_t* host = (uint8_t*)malloc_check(sizeof(floatX) * n * n);
    uint32_t x = 1;
    for (size_t i = 0; i < sizeof(floatX) * n * n; i++) {
        x = x * 1664525u + 1013904223u;
        int top = i % sizeof(floatX) == sizeof(floatX) - 1;
        host[i] = (uint8_t)(top ? ((x >> 24) & 0x83u) | 0x3cu : x >> 24);
    }
    cuda_check(cudaMemcpyAsync(a, host, sizeof(floatX) * n * n, cudaMemcpyHostToDevice, mm->stream));
    cuda_check(cudaMemcpyAsync(b, host, sizeof(floatX) * n * n, cudaMemcpyHostToDevice, mm->stream));
    cuda_check(cudaStreamSynchronize(mm->stream));
    free(host);
    cudaEvent_t start, end;
    cuda_check(cudaEventCreate(&start));
    cuda_check(cudaEventCreate(&end));
    float best_ms = 1e30f;
    for (int round = 0; round < 10; round++) {
        float ms;
        cuda_check(cudaEventRecord(start, mm->stream));
        for (int i = 0; i < 3; i++) { matmul_forward(mm, d, a, b, NULL, n, n, n); }
        cuda_check(cudaEventRecord(end, mm->stream));
        cuda_check(cudaEventSynchronize(end));
        cuda_check(cudaEventElapsedTime(&ms, start, end));
        if (ms < best_ms) { best_ms = ms; }
    }
    cuda_check(cudaEventDestroy(start));
    cuda_check(cudaEventDestroy(end));
    cuda_check(cudaFree(a));
    cuda_check(cudaFree(b));
    cuda_check(cudaFree(d));
    return 3.0 * 2.0 * n * n * n / (best_ms * 1e-3);
}

#endif
