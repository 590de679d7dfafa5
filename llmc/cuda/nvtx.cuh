/*
Ranges on a profiler's timeline (NVTX 3), each from an object's construction to its destruction. The header is the toolkit's and
nothing is linked; without a profiler a range costs its name and two calls through a pointer.
*/
#ifndef LLMC_CUDA_NVTX_CUH
#define LLMC_CUDA_NVTX_CUH

#include "common.cuh"

#if __has_include(<nvtx3/nvToolsExt.h>) // else a toolkit without the header: last_range only
#include <nvtx3/nvToolsExt.h>
#define NVTX_HEADER
#endif

// number: such as a layer's; -1 for none
static inline void nvtx_begin(const char* name, int number = -1) {
    char digits[16] = "";
    if (number >= 0) { snprintf(digits, sizeof(digits), " %d", number); }
    snprintf(last_range, sizeof(last_range), "%s%s", name, digits);
#ifdef NVTX_HEADER
    nvtxRangePushA(last_range);
#endif
}
static inline void nvtx_end(void) {
#ifdef NVTX_HEADER
    nvtxRangePop();
#endif
}

struct NvtxRange {
    explicit NvtxRange(const char* name, int number = -1) { nvtx_begin(name, number); }
    ~NvtxRange() { nvtx_end(); }
    NvtxRange(const NvtxRange&) = delete;
    NvtxRange& operator=(const NvtxRange&) = delete;
};

#endif
