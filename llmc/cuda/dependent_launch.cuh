/*
Programmatic dependent launch (PTX ISA, "griddepcontrol"): a kernel starts while its predecessor in the stream still runs, and
waits for the predecessor's results where it needs them. Code before wait_for_previous() may read only what no kernel of the
chain writes, such as weights; or, if the predecessor calls launch_dependents() after its own wait, what was written before it.

    __global__ void kernel(...) {
        launch_dependents();       // the next kernel may start as soon as all thread blocks of this one have
        ...                        // load or prefetch weights
        wait_for_previous();       // every kernel before this one has ended, and its writes are visible
    }
    launch_dependent(gpu, kernel, grid, threads, shared, cluster, stream, arguments...);

On a GPU or in a build without it the functions do nothing, and the launch is an ordinary one.
*/
#ifndef LLMC_CUDA_DEPENDENT_LAUNCH_CUH
#define LLMC_CUDA_DEPENDENT_LAUNCH_CUH

#include "device_code.cuh"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define DEPENDENT_LAUNCH_CODE
#endif

__device__ inline void launch_dependents() {
#ifdef DEPENDENT_LAUNCH_CODE
    griddepcontrol_launch_dependents();
#endif
}
__device__ inline void wait_for_previous() {
#ifdef DEPENDENT_LAUNCH_CODE
    griddepcontrol_wait();
#endif
}

// In place of a cluster size: a cooperative launch, for kernels whose thread blocks wait for each other. All are resident at
// once, or the launch fails.
constexpr int WHOLE_GRID = 0;

// Launches a kernel, as a dependent of the one before it where the GPU can. shared: dynamic shared memory in bytes; cluster:
// thread blocks of a cluster, 1 for none, or WHOLE_GRID.
template <class... Parameters, class... Arguments>
static inline void launch_dependent(DeviceCode gpu, void (*kernel)(Parameters...), dim3 grid, int threads,
                                    size_t shared, int cluster, cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = grid, config.blockDim = dim3((unsigned)threads);
    config.dynamicSmemBytes = shared, config.stream = stream, config.attrs = attributes;
    if (gpu.sm_90) {
        attributes[config.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attributes[config.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        attributes[config.numAttrs].id = cudaLaunchAttributeClusterDimension;
        attributes[config.numAttrs].val.clusterDim.x = (unsigned)cluster;
        attributes[config.numAttrs].val.clusterDim.y = attributes[config.numAttrs].val.clusterDim.z = 1;
        config.numAttrs++;
    }
    if (cluster == WHOLE_GRID) {
        attributes[config.numAttrs].id = cudaLaunchAttributeCooperative;
        attributes[config.numAttrs++].val.cooperative = 1;
    }
    if (shared > 48 * 1024) { // needs an attribute, for all launches of the kernel, those of a graph included
        cuda_try(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)gpu.shared_limit));
    }
    cuda_try(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...));
}

#endif
