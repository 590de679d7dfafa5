/*
Clocks, power and temperature of the GPU from nvidia-smi, which comes with every driver: nothing is linked.
*/
#ifndef LLMC_CUDA_GPU_INFO_CUH
#define LLMC_CUDA_GPU_INFO_CUH

#include "common.cuh"

// Prints one line about the current device, or one that says why there are no numbers. Takes tens of milliseconds.
static inline void gpu_info_print(void) {
    char bus[32], command[256], line[256];
    int device;
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetPCIBusId(bus, sizeof(bus), device) != cudaSuccess) {
        printf("gpu: %s\n", cudaGetErrorString(cudaGetLastError()));
        return;
    }
    snprintf(command, sizeof(command),
             "nvidia-smi -i %s --format=csv,noheader --query-gpu="
             "utilization.gpu,utilization.memory,clocks.sm,clocks.max.sm,power.draw,temperature.gpu 2>/dev/null",
             bus);
    FILE* pipe = popen(command, "r");
    if (pipe != NULL && fgets(line, sizeof(line), pipe) != NULL) {
        printf("gpu: compute, memory busy; SM clock, its maximum; power; degrees C: %s", line);
    } else {
        printf("gpu: nvidia-smi does not answer; no clocks, power or temperature\n");
    }
    if (pipe != NULL) { pclose(pipe); }
}

#endif
