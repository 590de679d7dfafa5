/*
Which of this build's device code runs on the current GPU. wgmma and setmaxnreg exist only in code compiled for sm_90a: in code
for sm_90, and in PTX that the driver compiles, kernels that need them have no body, and a launch would succeed and leave
the outputs untouched. So launchers and the tables of variants ask here first.
*/
#ifndef LLMC_CUDA_DEVICE_CODE_CUH
#define LLMC_CUDA_DEVICE_CODE_CUH

#include <atomic>

#include "common.cuh"

// Kernels that need sm_90a's instructions have a body only where this is defined: in the compiler's pass for sm_90a.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_DEVICE_CODE
#endif

// The build's code for a GPU, and the sizes of that GPU: what decides which kernels serve and how they are launched
struct DeviceCode {
    int capability = 0; // compute capability by which the tables of variants choose: 90 for 9.0 with code for sm_90a
    int sm_90 = 0;      // 1: code for sm_90 or newer, which has dependent launches and clusters
    int sm_90a = 0;     // 1: code for sm_90a
    int sms = 0;        // how many
    size_t shared_limit = 0; // bytes of shared memory of a thread block
};

// The compute capability by which the tables of variants choose: the GPU's, but without code for sm_90a a GPU of 9.0 is served
// like the older ones.
static inline int served_capability(int capability, int sm_90a) {
    return capability == 90 && !sm_90a ? 89 : capability;
}

// Never launched. Its thread limit tells the host, without a launch, for which architecture the loaded code was compiled.
enum { DEVICE_CODE_THREADS = 32, DEVICE_CODE_THREADS_SM_90A = 64 };
#if defined(HOPPER_DEVICE_CODE)
static __global__ void __launch_bounds__(DEVICE_CODE_THREADS_SM_90A) device_code_probe_kernel() {}
#else
static __global__ void __launch_bounds__(DEVICE_CODE_THREADS) device_code_probe_kernel() {}
#endif

// The code for the current GPU of the object that calls this, probed once for each GPU, which may create its context. Records
// an error (utils.h) if there is no GPU, or no code for it.
static inline Status device_code(DeviceCode* code) {
    static std::atomic<int> known[64]; // by device: capability * 4 + sm_90 * 2 + sm_90a; 0: not known
    int device, major, minor, sms, shared_limit;
    TRY(cuda_try(cudaGetDevice(&device)));
    int packed = device < 64 ? known[device].load() : 0;
    if (packed == 0) {
        TRY(cuda_try(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)));
        TRY(cuda_try(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device)));
        cudaFuncAttributes probe;
        const cudaError_t error = cudaFuncGetAttributes(&probe, device_code_probe_kernel);
        if (error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction) {
            (void)cudaGetLastError();
            return status_fail("this build has no code for this GPU, of compute capability %d.%d; build it here, or "
                               "with GPU_ARCH=%d%d",
                               major, minor, major, minor);
        }
        TRY(cuda_try(error));
        const int sm_90a = probe.maxThreadsPerBlock == DEVICE_CODE_THREADS_SM_90A, sm_90 = probe.ptxVersion >= 90;
        packed = served_capability(10 * major + minor, sm_90a) * 4 + sm_90 * 2 + sm_90a;
        if (device < 64) { known[device] = packed; }
    }
    TRY(cuda_try(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device)));
    TRY(cuda_try(cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)));
    *code = {packed / 4, packed / 2 % 2, packed % 2, sms, (size_t)shared_limit};
    return STATUS_OK;
}

#endif
