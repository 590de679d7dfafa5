/*
A copy of some blocks of device memory at one point of a stream, which another thread reads while the GPU computes: on the GPU,
where there is room for it, or in page-locked memory on the host.

    stream of the model   ... step | copy blocks -> snapshot | step ...       on the GPU: the host does not wait
    stream of the reader               taken ------------> | snapshot -> staging | ...

Only the reader waits, for its own stream. It copies through two page-locked staging buffers: the GPU fills one while the other
is copied to its destination, which need not be page-locked.
*/
#ifndef LLMC_CUDA_SNAPSHOT_CUH
#define LLMC_CUDA_SNAPSHOT_CUH

#include "common.cuh"

constexpr int SNAPSHOT_BLOCKS = 8;
constexpr size_t SNAPSHOT_STAGING = (size_t)8 << 20; // bytes of each half

struct Snapshot {
    char* memory;
    int on_gpu;                          // where memory is
    int device;                          // whose memory the blocks are
    int taken;                           // 1: memory holds a snapshot
    size_t bytes;                        // of memory
    size_t begin[SNAPSHOT_BLOCKS];       // of each block, in memory
    size_t block_bytes[SNAPSHOT_BLOCKS]; // 0 if there is no such block
    const void* blocks[SNAPSHOT_BLOCKS]; // the sources
    char* staging[2];                    // page-locked
    cudaEvent_t copied, staged[2];       // of the model's stream; of the reader's
    cudaStream_t reader;
};

static inline void snapshot_free(Snapshot* s) {
    if (s->memory != NULL && s->on_gpu) { cudaFree(s->memory); }
    if (s->memory != NULL && !s->on_gpu) { cudaFreeHost(s->memory); }
    for (int i = 0; i < 2; i++) {
        if (s->staging[i] != NULL) { cudaFreeHost(s->staging[i]); }
        if (s->staged[i] != NULL) { cudaEventDestroy(s->staged[i]); }
    }
    if (s->copied != NULL) { cudaEventDestroy(s->copied); }
    if (s->reader != NULL) { cudaStreamDestroy(s->reader); }
    *s = {};
}

static inline Status snapshot_allocate_(Snapshot* s) {
    TRY(cuda_try(cudaGetDevice(&s->device)));
    if (!s->on_gpu) { return cuda_try(cudaMallocHost(&s->memory, s->bytes)); }
    for (int i = 0; i < 2; i++) {
        TRY(cuda_try(cudaMallocHost(&s->staging[i], SNAPSHOT_STAGING)));
        TRY(cuda_try(cudaEventCreateWithFlags(&s->staged[i], cudaEventDisableTiming)));
    }
    TRY(cuda_try(cudaEventCreateWithFlags(&s->copied, cudaEventDisableTiming)));
    TRY(cuda_try(cudaStreamCreateWithFlags(&s->reader, cudaStreamNonBlocking)));
    return cuda_try(cudaMalloc(&s->memory, s->bytes));
}

// Memory for the blocks, on the GPU or not; an empty snapshot after an error.
static inline Status snapshot_allocate(Snapshot* s, const void* const* blocks, const size_t* block_bytes, int count,
                                       int on_gpu) {
    *s = {};
    s->on_gpu = on_gpu;
    for (int i = 0; i < count; i++) {
        s->blocks[i] = blocks[i], s->block_bytes[i] = block_bytes[i], s->begin[i] = s->bytes;
        s->bytes += size_round_up(block_bytes[i], 256);
    }
    if (snapshot_allocate_(s) != STATUS_OK) { snapshot_free(s); }
    return status_now();
}

// Copies the blocks in the order of the stream: on the GPU without waiting, to the host until it is done.
static inline Status snapshot_take(Snapshot* s, cudaStream_t stream) {
    cudaMemcpyKind direction = s->on_gpu ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost;
    s->taken = 0;
    for (int i = 0; i < SNAPSHOT_BLOCKS; i++) {
        if (s->block_bytes[i] == 0) { continue; }
        cuda_try(cudaMemcpyAsync(s->memory + s->begin[i], s->blocks[i], s->block_bytes[i], direction, stream));
    }
    cuda_try(s->on_gpu ? cudaEventRecord(s->copied, stream) : cudaStreamSynchronize(stream));
    s->taken = status_now() == STATUS_OK;
    return status_now();
}

// Copies `bytes` bytes at `from`, in the snapshot on the GPU, to the host. Double-buffered: while one staging buffer is copied
// out, the GPU fills the other.
static inline Status snapshot_read_gpu_(Snapshot* s, char* host, const char* from, size_t bytes) {
    size_t pieces = CEIL_DIV(bytes, SNAPSHOT_STAGING);
    auto size = [&](size_t i) { return i + 1 < pieces ? SNAPSHOT_STAGING : bytes - i * SNAPSHOT_STAGING; };
    TRY(cuda_try(cudaSetDevice(s->device))); // a new thread's current device is 0
    TRY(cuda_try(cudaStreamWaitEvent(s->reader, s->copied, 0)));
    for (size_t i = 0; i <= pieces; i++) {
        if (i < pieces) {
            cuda_try(cudaMemcpyAsync(s->staging[i % 2], from + i * SNAPSHOT_STAGING, size(i), cudaMemcpyDeviceToHost,
                                     s->reader));
            TRY(cuda_try(cudaEventRecord(s->staged[i % 2], s->reader)));
        }
        if (i > 0) {
            TRY(cuda_try(cudaEventSynchronize(s->staged[(i - 1) % 2])));
            memcpy(host + (i - 1) * SNAPSHOT_STAGING, s->staging[(i - 1) % 2], size(i - 1));
        }
    }
    return status_now();
}

// Bytes offset .. offset+bytes-1 of a block of the snapshot, to the host.
static inline Status snapshot_read(Snapshot* s, void* host, int block, size_t offset, size_t bytes) {
    const char* from = s->memory + s->begin[block] + offset;
    if (bytes == 0) { return STATUS_OK; }
    if (s->on_gpu) { return snapshot_read_gpu_(s, (char*)host, from, bytes); }
    memcpy(host, from, bytes);
    return STATUS_OK;
}

#endif
