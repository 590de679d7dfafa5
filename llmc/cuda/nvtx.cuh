/*
Ranges on a profiler's timeline (NVTX 3), each from an object's construction to its destruction. The header is the toolkit's and
nothing is linked; without a profiler a range costs two calls through a pointer.
*/
#ifndef LLMC_CUDA_NVTX_CUH
#define LLMC_CUDA_NVTX_CUH

#include "common.cuh"

#if __has_include(<nvtx3/nvToolsExt.h>)
#include <nvtx3/nvToolsExt.h>

static inline void nvtx_begin(const char* name) {
    last_range = {name, -1};
    nvtxRangePushA(name);
}
static inline void nvtx_end(void) { nvtxRangePop(); }

// A name and a number, such as a layer's
static inline void nvtx_begin(const char* name, int number) {
    last_range = {name, number};
    nvtxEventAttributes_t attributes = {};
    attributes.version = NVTX_VERSION;
    attributes.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    attributes.messageType = NVTX_MESSAGE_TYPE_ASCII;
    attributes.message.ascii = name;
    attributes.payloadType = NVTX_PAYLOAD_TYPE_INT32;
    attributes.payload.iValue = number;
    nvtxRangePushEx(&attributes);
}
#else // a toolkit without the header: last_range only
static inline void nvtx_begin(const char* name) { last_range = {name, -1}; }
static inline void nvtx_begin(const char* name, int number) { last_range = {name, number}; }
static inline void nvtx_end(void) {}
#endif

struct NvtxRange {
    explicit NvtxRange(const char* name) { nvtx_begin(name); }
    NvtxRange(const char* name, int number) { nvtx_begin(name, number); }
    ~NvtxRange() { nvtx_end(); }
    NvtxRange(const NvtxRange&) = delete;
    NvtxRange& operator=(const NvtxRange&) = delete;
};

#endif
