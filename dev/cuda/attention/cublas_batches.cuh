/*
The batched GEMMs of the cublas variants: every head of a batch row in one call, straight on the packed tensors. A matrix is
row-major, T rows of `ld` numbers; heads are `head` numbers apart.

cuBLAS needs a handle, the only global state among the variants: it is created by the first launch, which therefore must not be
captured into a graph. Its workspace is part of the scratch, so that it allocates nothing later.
*/
#ifndef CUBLAS_BATCHES_CUH
#define CUBLAS_BATCHES_CUH

#include <cublas_v2.h>

#include "attention.h"
#include "llmc/cuda/matmul.cuh"

namespace cublas {

constexpr size_t WORKSPACE = 32 << 20;

// The handle, on a stream and with the workspace of this launch. A failure is recorded (utils.h).
static inline cublasHandle_t handle_on(cudaStream_t stream, void* workspace) {
    static cublasHandle_t handle = [] {
        cublasHandle_t h = nullptr;
        cublas_try(cublasCreate(&h));
        return h;
    }();
    cublas_try(cublasSetStream(handle, stream));
    cublas_try(cublasSetWorkspace(handle, workspace, WORKSPACE));
    return handle;
}

// The leading dimension of a T×T matrix: rows are aligned to 16 bytes.
static inline int padded(int T) { return CEIL_DIV(T, 8) * 8; }

// A matrix for each head
template <class T> struct Matrices {
    T* data;
    int64_t ld, head;
};

// scores (T×T, fp32) = scale A B^T, with A and B T×HS
static inline void multiply_abt(cublasHandle_t handle, Matrices<float> scores, Matrices<const floatX> A,
                                Matrices<const floatX> B, float scale, int T, int NH, int HS) {
    const cudaDataType_t type = CudaType<floatX>::value;
    const float zero = 0;
    cublas_try(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, T, T, HS, &scale, B.data, type, (int)B.ld,
                                          B.head, A.data, type, (int)A.ld, A.head, &zero, scores.data, CUDA_R_32F,
                                          (int)scores.ld, scores.head, NH, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
}

// C (T×HS) = scale W B, or scale W^T B where `transposed`, with W T×T and B T×HS
static inline void multiply_ab(cublasHandle_t handle, Matrices<floatX> C, Matrices<const floatX> W, bool transposed,
                               Matrices<const floatX> B, float scale, int T, int NH, int HS) {
    const cudaDataType_t type = CudaType<floatX>::value;
    const float zero = 0;
    cublas_try(cublasGemmStridedBatchedEx(handle, CUBLAS_OP_N, transposed ? CUBLAS_OP_T : CUBLAS_OP_N, HS, T, T, &scale,
                                          B.data, type, (int)B.ld, B.head, W.data, type, (int)W.ld, W.head, &zero,
                                          C.data, type, (int)C.ld, C.head, NH, CUBLAS_COMPUTE_32F,
                                          CUBLAS_GEMM_DEFAULT));
}

} // namespace cublas

#endif
