/*
What every user of cuBLAS and cuBLASLt shares: error checks, and the library's name of a type.

Programs link with -lcublasLt.
*/
#ifndef LLMC_CUDA_CUBLAS_COMMON_CUH
#define LLMC_CUDA_CUBLAS_COMMON_CUH

#include <cublasLt.h>

#include "common.cuh"

// Ends the program if a call fails, with file, line, call and error.
#define cublas_check(call) cublas_check_(call, #call, __FILE__, __LINE__)
static inline void cublas_check_(cublasStatus_t status, const char* call, const char* file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) { return; }
    fatal("%s:%d: %s returned %s", file, line, call, cublasLtGetStatusName(status));
}

// The same for libraries: records the failure (status.h) and returns the Status.
#define cublas_try(call) cublas_try_(call, #call, __FILE__, __LINE__)
static inline Status cublas_try_(cublasStatus_t status, const char* call, const char* file, int line) {
    char range[96];
    if (status == CUBLAS_STATUS_SUCCESS) { return STATUS_OK; }
    last_range_name(range, sizeof(range));
    return status_fail("%s:%d: %s returned %s%s%s", file, line, call, cublasLtGetStatusName(status),
                       range[0] ? "; in: " : "", range);
}

template <class T> struct CudaType;
template <> struct CudaType<float> { static constexpr cudaDataType_t value = CUDA_R_32F; };
template <> struct CudaType<half> { static constexpr cudaDataType_t value = CUDA_R_16F; };
template <> struct CudaType<__nv_bfloat16> { static constexpr cudaDataType_t value = CUDA_R_16BF; };

#endif
