/*
The batched products of the cublas variants: every head of a batch row in one call, straight on the packed tensors. A
matrix is row-major, T rows of `ld` numbers; heads are `head` numbers apart.

cuBLAS needs a handle, the one piece of state among the variants: it is made at the first launch, which therefore must
not be inside a graph's capture. Its workspace is part of the scratch, so that it allocates nothing later.
*/
#ifndef CUBLAS_BATCHES_CUH
#define CUBLAS_BATCHES_CUH

#include <cublas_v2.h>

#include "attention.h"

namespace cublas {

constexpr size_t WORKSPACE = 32 << 20;

#define CUBLAS_CHECK(call)                                                                                             \
    do {                                                                                                               \
        cublasStatus_t status_ = (call);                                                                               \
        if (status_ != CUBLAS_STATUS_SUCCESS) {                                                                        \
            fatal("%s:%d: %s returned %s", __FILE__, __LINE__, #call, cublasGetStatusString(status_));                 \
        }                                                                                                              \
    } while (0)

template <class X> constexpr cudaDataType_t type_of = CUDA_R_32F;
template <> constexpr cudaDataType_t type_of<half> = CUDA_R_16F;
template <> constexpr cudaDataType_t type_of<__nv_bfloat16> = CUDA_R_16BF;

static inline cublasHandle_t handle_on(cudaStream_t stream, void* workspace) {
    static cublasHandle_t handle = [] {
        cublasHandle_t h;
        CUBLAS_CHECK(cublasCreate(&h));
        return h;
    }();
    CUBLAS_CHECK(cublasSetStream(handle, stream));
    CUBLAS_CHECK(cublasSetWorkspace(handle, workspace, WORKSPACE));
    return handle;
}

// Rows of a T×T matrix begin on 16 bytes.
static inline int padded(int T) { return CEIL_DIV(T, 8) * 8; }

template <class X> struct Matrices { // one for each head
    X
    *data;
    int64_t ld, head;
};

// scores (T×T, fp32) = scale A B^T, with A and B T×HS
template <class X> static inline void multiply_abt(cublasHandle_t handle, Matrices<float> scores, Matrices<const X> A,
                                                   Matrices<const X> B, float scale, int T, int NH, int HS) {
    const float zero = 0;
    CUBLAS_CHECK(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, T, T, HS, &scale, B.data, type_of<X>,
                                            (int)B.ld, B.head, A.data, type_of<X>, (int)A.ld, A.head, &zero,
                                            scores.data, CUDA_R_32F, (int)scores.ld, scores.head, NH,
                                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

// C (T×HS) = scale W B, or scale W^T B where `transposed`, with W T×T and B T×HS
template <class X> static inline void multiply_ab(cublasHandle_t handle, Matrices<X> C, Matrices<const X> W,
                                                  bool transposed, Matrices<const X> B, float scale, int T, int NH,
                                                  int HS) {
    const float zero = 0;
    CUBLAS_CHECK(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_N, transposed ? CUBLAS_OP_T : CUBLAS_OP_N, HS, T, T,
                                            &scale, B.data, type_of<X>, (int)B.ld, B.head, W.data, type_of<X>,
                                            (int)W.ld, W.head, &zero, C.data, type_of<X>, (int)C.ld, C.head, NH,
                                            CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

} // namespace cublas

#endif
