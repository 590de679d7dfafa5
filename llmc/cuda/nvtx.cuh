/*
Ranges on a profiler's timeline (NVTX 3), each from an object's construction to its destruction. The header is the toolkit's and
nothing is linked; without a profiler a range costs two calls through a pointer.
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
    last_range = {name, number};
#ifdef NVTX_HEADER
    nvtxEventAttributes_t attributes = {};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    attributes.payloadType = number < 0 ? NVTX_PAYLOAD_UNKNOWN : NVTX_PAYLOAD_TYPE_INT32;
    attributes.payload.iValue = number;
    nvtxRangePushEx(&attributes);
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
