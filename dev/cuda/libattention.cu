/*
The winning variants as a shared library with a C interface, for whoever holds raw device pointers: PyTorch through
ctypes (compare_torch.py), Julia, Rust. bf16 tensors, in the shapes of attention.h. Functions return 0 when the kernels
were launched on the stream, else 1, and attention_error() then says why.

make libattention.so builds it; nothing but the four functions below is exported.
*/
#include "attention.cuh"

#if !defined(PRECISION_BF16)
#error "libattention is bf16: build it with -DPRECISION_BF16"
#endif

#define EXPORT extern "C" __attribute__((visibility("default")))

static thread_local char error_text[256] = "";

static int failed(const char* what) {
    snprintf(error_text, sizeof(error_text), "%s", what);
    return 1;
}

// What speaks against a launch on the current GPU, or nullptr
static const char* refusal(int B, int T, int NH, int HS) {
    int device, major;
    cudaError_t error = cudaGetDevice(&device);
    if (error == cudaSuccess) { error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device); }
    if (error != cudaSuccess) { return cudaGetErrorString(error); }
    return attention_unsupported(B, T, NH, HS);
}

static int launched() {
    cudaError_t error = cudaGetLastError();
    return error == cudaSuccess ? 0 : failed(cudaGetErrorString(error));
}

// What went wrong in this thread's last call that failed
EXPORT const char* attention_error(void) { return error_text; }

// Bytes of scratch of attention_backward, aligned to 256; 0 where the sizes are not supported.
EXPORT size_t attention_scratch_bytes(int B, int T, int NH, int HS) {
    const char* why = refusal(B, T, NH, HS);
    if (why) { return failed(why), 0; }
    return attention_backward_scratch_bytes(B, T, NH, HS);
}

EXPORT int attention_forward(void* out, float* l, float* m, const void* qkv, int B, int T, int NH, int HS,
                             void* stream) {
    const char* why = refusal(B, T, NH, HS);
    if (why) { return failed(why); }
    attention_forward((floatX*)out, l, m, (const floatX*)qkv, B, T, NH, HS, (cudaStream_t)stream);
    return launched();
}

EXPORT int attention_backward(void* dqkv, const void* dout, const void* qkv, const void* out, const float* l,
                              const float* m, void* scratch, int B, int T, int NH, int HS, void* stream) {
    const char* why = refusal(B, T, NH, HS);
    if (why) { return failed(why); }
    attention_backward((floatX*)dqkv, (const floatX*)dout, (const floatX*)qkv, (const floatX*)out, l, m, scratch, B, T,
                       NH, HS, (cudaStream_t)stream);
    return launched();
}
