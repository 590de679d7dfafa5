/*
The winning variants as a shared library with the C interface of libattention.h, for callers with raw device pointers:
PyTorch through ctypes (compare_libraries.py), Julia, Rust. make libattention.so builds it; nothing but its functions is
exported. Whatever the arguments, a function returns, and the CUDA context stays whole.
*/
#include <initializer_list>
#include <utility>

#include "attention/attention.cuh"
#include "libattention.h"

#if !defined(PRECISION_BF16)
#error "libattention is bf16: build it with -DPRECISION_BF16"
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

// Clears this thread's last error and checks what would prevent any launch. An error that the caller's earlier CUDA calls left
// pending is neither cleared nor reported as this call's.
static Status begin(int B, int T, int NH, int HS) {
    status_clear();
    const char* why = attention_unsupported(B, T, NH, HS);
    if (why) { return status_fail("B %d, T %d, NH %d, HS %d: %s", B, T, NH, HS, why); }
    int device;
    const cudaError_t pending = cudaPeekAtLastError();
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) { error = cudaSetDevice(device); } // all pointers are unknown to a thread's first call
    if (error != cudaSuccess) { return status_fail("no GPU can be used: %s", cudaGetErrorString(error)); }
    if (pending != cudaSuccess) {
        return status_fail("a CUDA call before this one failed, and its error is pending: %s",
                           cudaGetErrorString(pending));
    }
    return STATUS_OK;
}

// The return value of a call that began with begin(). On failure clears CUDA's last error, so that it is reported once.
static int finish() {
    if (status_now() == STATUS_OK) { return 0; }
    cudaGetLastError();
    return 1;
}

// Fails if a kernel could not use p: null, misaligned, pageable host memory, memory of another GPU or, of scratch, to which
// kernels add by TMA and atomics, any but device memory
static Status check_pointer(const char* name, const void* p, size_t alignment, bool is_scratch = false) {
    if (p == nullptr) { return status_fail("%s is a null pointer", name); }
    if ((uintptr_t)p % alignment != 0) {
        return status_fail("%s (%p) is not aligned to %zu bytes", name, p, alignment);
    }
    int device;
    cudaPointerAttributes memory;
    TRY(cuda_try(cudaGetDevice(&device)));
    TRY(cuda_try(cudaPointerGetAttributes(&memory, p)));
    if (memory.type == cudaMemoryTypeUnregistered || memory.devicePointer == nullptr) {
        return status_fail("%s (%p) is not memory that the GPU can reach", name, p);
    }
    if (memory.type == cudaMemoryTypeDevice && memory.device != device) {
        return status_fail("%s (%p) is memory of device %d; the current device is %d", name, p, memory.device, device);
    }
    if (is_scratch && memory.type != cudaMemoryTypeDevice) {
        return status_fail("%s (%p) is %s memory; allocate it by cudaMalloc", name, p,
                           memory.type == cudaMemoryTypeManaged ? "managed" : "pinned host");
    }
    return STATUS_OK;
}
static Status check_pointers(std::initializer_list<std::pair<const char*, const void*>> tensors,
                             std::initializer_list<std::pair<const char*, const void*>> statistics) {
    for (const auto& t : tensors) { TRY(check_pointer(t.first, t.second, 16)); }
    for (const auto& s : statistics) { TRY(check_pointer(s.first, s.second, sizeof(float))); }
    return STATUS_OK;
}

EXPORT const char* attention_error(void) { return status_message(); }

EXPORT size_t attention_scratch_bytes(int B, int T, int NH, int HS) {
    if (begin(B, T, NH, HS) != STATUS_OK) { return 0; }
    const size_t bytes = attention_backward_scratch_bytes(B, T, NH, HS);
    return finish() == 0 ? bytes : 0;
}

EXPORT int attention_forward(void* out, float* l, float* m, const void* qkv, int B, int T, int NH, int HS,
                             void* stream) {
    TRY(begin(B, T, NH, HS));
    if (check_pointers({{"out", out}, {"qkv", qkv}}, {{"l", l}, {"m", m}}) == STATUS_OK) {
        attention_forward((floatX*)out, l, m, (const floatX*)qkv, B, T, NH, HS, (cudaStream_t)stream);
    }
    return finish();
}

EXPORT int attention_forward_documents(void* out, float* l, float* m, const void* qkv, const int* starts, int B, int T,
                                       int NH, int HS, void* stream) {
    TRY(begin(B, T, NH, HS));
    if (check_pointers({{"out", out}, {"qkv", qkv}}, {{"l", l}, {"m", m}, {"starts", starts}}) == STATUS_OK) {
        attention_forward_documents((floatX*)out, l, m, (const floatX*)qkv, starts, B, T, NH, HS, (cudaStream_t)stream);
    }
    return finish();
}

EXPORT int attention_backward(void* dqkv, const void* dout, const void* qkv, const void* out, const float* l,
                              const float* m, void* scratch, int B, int T, int NH, int HS, void* stream) {
    TRY(begin(B, T, NH, HS));
    if (check_pointers({{"dqkv", dqkv}, {"dout", dout}, {"qkv", qkv}, {"out", out}}, {{"l", l}, {"m", m}}) ==
            STATUS_OK &&
        check_pointer("scratch", scratch, 256, true) == STATUS_OK) {
        attention_backward((floatX*)dqkv, (const floatX*)dout, (const floatX*)qkv, (const floatX*)out, l, m, scratch, B,
                           T, NH, HS, (cudaStream_t)stream);
    }
    return finish();
}

EXPORT int attention_backward_documents(void* dqkv, const void* dout, const void* qkv, const void* out, const float* l,
                                        const float* m, const int* starts, void* scratch, int B, int T, int NH, int HS,
                                        void* stream) {
    TRY(begin(B, T, NH, HS));
    if (check_pointers({{"dqkv", dqkv}, {"dout", dout}, {"qkv", qkv}, {"out", out}},
                       {{"l", l}, {"m", m}, {"starts", starts}}) == STATUS_OK &&
        check_pointer("scratch", scratch, 256, true) == STATUS_OK) {
        attention_backward_documents((floatX*)dqkv, (const floatX*)dout, (const floatX*)qkv, (const floatX*)out, l, m,
                                     starts, scratch, B, T, NH, HS, (cudaStream_t)stream);
    }
    return finish();
}
