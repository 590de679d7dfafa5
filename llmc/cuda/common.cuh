/*
The training precision floatX, error checks, 16-byte vectors, warp reductions and division that all CUDA files share.

Precision is a matter of the build: -DPRECISION_FP32 or -DPRECISION_BF16 (the default).
*/
#ifndef LLMC_CUDA_COMMON_CUH
#define LLMC_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ptx.cuh"
#include "llmc/base/utils.h"

#if defined(PRECISION_FP32)
typedef float floatX;
#define PRECISION_NAME "fp32"
#else
#ifndef PRECISION_BF16
#define PRECISION_BF16
#endif
typedef __nv_bfloat16 floatX;
#define PRECISION_NAME "bf16"
#endif

// 1 if the error is an asynchronous one, of a kernel launched earlier, and not of the call that returned it.
static inline int cuda_is_kernel_error(cudaError_t error) {
    for (cudaError_t e : {cudaErrorIllegalAddress, cudaErrorIllegalInstruction, cudaErrorInvalidAddressSpace,
                          cudaErrorInvalidPc, cudaErrorMisalignedAddress, cudaErrorHardwareStackError,
                          cudaErrorLaunchFailure, cudaErrorLaunchTimeout, cudaErrorAssert, cudaErrorECCUncorrectable}) {
        if (error == e) { return 1; }
    }
    return 0;
}

// 1 if every launch waits for its kernel, so that an error is reported in the range that launched it.
static inline int cuda_launches_block(void) {
    const char* blocking = getenv("CUDA_LAUNCH_BLOCKING");
    return blocking != NULL && strcmp(blocking, "1") == 0;
}

// The NVTX range (nvtx.cuh) that this thread began last, such as "backward layer 3"; "" before the first. Kernels run
// asynchronously, so their errors are reported by a later, unrelated call: the range says in which part of the step that was.
inline thread_local char last_range[64] = "";

// Records a failure (utils.h), with file, line, call and error, and returns the Status. A kernel's error says where in the step
// it was noticed, and how to find the launch; any other names the range that it happened in.
#define cuda_try(call) cuda_try_(call, #call, __FILE__, __LINE__)
static inline Status cuda_try_(cudaError_t error, const char* call, const char* file, int line) {
    if (error == cudaSuccess) { return STATUS_OK; }
    (void)cudaGetLastError(); // or the check after the next launch would report it again
    const char *name = cudaGetErrorName(error), *text = cudaGetErrorString(error);
    if (cuda_is_kernel_error(error)) {
        return status_fail("%s:%d: %s returned %s: %s; a kernel failed, in or before: %s%s", file, line, call, name,
                           text, last_range[0] ? last_range : "this line",
                           cuda_launches_block() ? "" : "; run again with CUDA_LAUNCH_BLOCKING=1 to see which launch");
    }
    return status_fail("%s:%d: %s returned %s: %s%s%s", file, line, call, name, text, last_range[0] ? "; in: " : "",
                       last_range);
}

// For programs: ends with that line if the call fails.
#define cuda_check(call) ::check(cuda_try_(call, #call, __FILE__, __LINE__))

// The number of thread blocks of the kernel, with so many bytes of dynamic shared memory each, that are resident on the current
// GPU at once: one full wave. At least 1, also where an error is recorded.
template <class Kernel> static inline int resident_blocks(Kernel* kernel, int threads, size_t shared = 0) {
    int device = 0, num_sms = 0, blocks = 0;
    cuda_try(cudaGetDevice(&device));
    cuda_try(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, device));
    cuda_try(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, threads, shared));
    return num_sms * blocks > 1 ? num_sms * blocks : 1;
}

// ----------------------------------------------------------------------------
// 16 bytes of T, moved by one load or store. Those called _stream mark the line as used once (.cs): L1 and L2 evict it first.

template <class T> struct alignas(16) Vec128 {
    static constexpr int size = 16 / sizeof(T);
    T data[size];
    __device__ T& operator[](int i) { return data[i]; }
    __device__ const T& operator[](int i) const { return data[i]; }
};
typedef Vec128<floatX> x128;
typedef Vec128<float> f128;

template <class T> __device__ inline Vec128<T> load128(const T* p) { return *reinterpret_cast<const Vec128<T>*>(p); }
template <class T> __device__ inline Vec128<T> load128_stream(const T* p) {
    int4 bits = __ldcs(reinterpret_cast<const int4*>(p));
    return *reinterpret_cast<Vec128<T>*>(&bits);
}
template <class T> __device__ inline void store128(T* p, Vec128<T> v) { *reinterpret_cast<Vec128<T>*>(p) = v; }
template <class T> __device__ inline void store128_stream(T* p, Vec128<T> v) {
    __stcs(reinterpret_cast<int4*>(p), *reinterpret_cast<int4*>(&v));
}

// Casts a vector to floats, and floats to a vector, rounded to nearest. In bf16 two elements at a time: half the instructions.
__device__ inline void unpack(float (&x)[x128::size], const x128& v) {
#pragma unroll
    for (int k = 0; k < x128::size; k++) {
#if defined(PRECISION_BF16)
        const uint32_t two = reinterpret_cast<const uint32_t*>(&v)[k / 2];
        x[k] = __uint_as_float(k % 2 == 0 ? two << 16 : two & 0xffff0000u);
#else
        x[k] = (float)v[k];
#endif
    }
}
__device__ inline x128 pack(const float (&x)[x128::size]) {
    x128 v;
#pragma unroll
    for (int k = 0; k < x128::size; k++) {
#if defined(PRECISION_BF16)
        if (k % 2 == 0) { reinterpret_cast<__nv_bfloat162*>(&v)[k / 2] = __floats2bfloat162_rn(x[k], x[k + 1]); }
#else
        v[k] = (floatX)x[k];
#endif
    }
    return v;
}

// ----------------------------------------------------------------------------
// Reductions, in an order that does not depend on timing

constexpr int WARP_SIZE = 32;

__device__ inline float warp_sum(float x) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { x += __shfl_xor_sync(0xffffffffu, x, offset); }
    return x;
}
__device__ inline float warp_max(float x) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, offset)); }
    return x;
}

// The sum of x over all threads of the block, in every thread. blockDim.x is a multiple of 32, at most 1024.
__device__ inline float block_sum(float x) {
    __shared__ float partial[WARP_SIZE];
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, warps = blockDim.x / WARP_SIZE;
    x = warp_sum(x);
    __syncthreads(); // partial may still be read by an earlier call
    if (lane == 0) { partial[warp] = x; }
    __syncthreads();
    return warp_sum(lane < warps ? partial[lane] : 0.0f);
}

// ----------------------------------------------------------------------------
// Division by a number that is known when a kernel is launched, not when it is compiled: a multiplication and a shift, where
// the compiler's division takes some 25 dependent instructions.
//
// With 2^(shift-1) < d <= 2^shift and factor = floor(2^32 (2^shift - d) / d) + 1, the multiplier 2^32 + factor is
// 2^(32+shift) / d, rounded up so little that n / d = floor(n (2^32 + factor) / 2^(32+shift)) for every n below 2^32.
// Granlund and Montgomery, Division by Invariant Integers using Multiplication (1994), theorem 4.2.

struct Divisor {
    int d; // at least 1
    uint32_t factor;
    int shift;

    __host__ __device__ Divisor(int d = 1) : d(d), shift(0) {
        while (1ll << shift < d) { shift++; }
        factor = (uint32_t)((((1ull << shift) - (uint32_t)d) << 32) / (uint32_t)d + 1);
    }
    // n / d and n % d, for n >= 0. n and `high` are below 2^31, so that their sum does not overflow.
    __host__ __device__ int quotient(int n) const {
        uint32_t high = (uint32_t)((uint64_t)(uint32_t)n * factor >> 32);
        return (int)((high + (uint32_t)n) >> shift);
    }
    __host__ __device__ int remainder(int n) const { return n - quotient(n) * d; }
};

#endif
