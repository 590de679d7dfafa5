/*
Exchange between processes of one machine by peer-to-peer copies: copy engines read the other processes' GPU memory over NVLink
or PCIe. NCCL's kernels occupy SMs while they move data, which makes steps longer even where all communication is hidden
(dev/LOG.md); copy engines need no SM.

Each process shares the same blocks of device memory, of the same sizes, and has a flag for each other one. In stream order:

    peer_announce   sets this process's flag in the memory of all others: what it has computed is ready for the exchange
    peer_copy       waits for the flag of one other process, once an exchange, and copies from its memory

There is no flag for having read. What others read may be overwritten after the next sum over all processes (comm.h's merge) in
the same stream, which each process joins after its copies. When a process fails, flags are set to a value beyond all exchanges,
so that no stream waits for ever and the error is found.
*/
#ifndef LLMC_EXCHANGE_PEER_COPIES_CUH
#define LLMC_EXCHANGE_PEER_COPIES_CUH

#include <cuda.h>

#include "llmc/comm/comm.h"
#include "llmc/cuda/common.cuh"

enum { PEER_BLOCKS = 2, PEER_MACHINE_BYTES = 64 };

typedef CUresult (*PeerStreamValue)(CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned flags);

// Another process's memory; NULL for the own rank
struct Peer {
    char* blocks[PEER_BLOCKS];
    unsigned* flags;
    unsigned waited_for; // the last exchange of this process that the stream has waited for
};

struct PeerCopies {
    int open;
    Comm* comm;
    int rank, size;
    Peer* peers;       // (size)
    unsigned* flags;   // (size) on the device: the last exchange that each process has announced
    unsigned exchange; // number of the current exchange, from 1
    PeerStreamValue wait, write;
    cudaStream_t rescue; // for peer_abort_
    int device;
    CommDevice inner; // the Comm's original device, NCCL, which computes the sums
};

// What a process sends to all others, so that they can map its memory
struct PeerExport {
    int32_t ok; // 0: it cannot be shared
    char machine[PEER_MACHINE_BYTES];
    cudaIpcMemHandle_t handles[PEER_BLOCKS + 1]; // of the blocks and the flags
};

// ----------------------------------------------------------------------------
// Opening and closing

// An identifier that differs between machines, and between boots of one
static inline void peer_machine_(char machine[PEER_MACHINE_BYTES]) {
    FILE* file = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (file == NULL) { return; }
    if (fgets(machine, PEER_MACHINE_BYTES, file) == NULL) { machine[0] = '\0'; }
    fclose(file);
}

static inline int peer_entry_(PeerStreamValue* function, const char* name) {
    cudaDriverEntryPointQueryResult found;
    void* entry = NULL;
    cudaError_t error = cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
    *function = (PeerStreamValue)entry;
    return error == cudaSuccess && found == cudaDriverEntryPointSuccess && entry != NULL;
}

static inline PeerExport peer_export_(PeerCopies* p, void* const blocks[PEER_BLOCKS]) {
    PeerExport e;
    memset(&e, 0, sizeof(e));
    peer_machine_(e.machine);
    e.ok = e.machine[0] != '\0' && peer_entry_(&p->wait, "cuStreamWaitValue32") &&
           peer_entry_(&p->write, "cuStreamWriteValue32");
    e.ok = e.ok && cudaGetDevice(&p->device) == cudaSuccess &&
           cudaStreamCreateWithFlags(&p->rescue, cudaStreamNonBlocking) == cudaSuccess;
    e.ok = e.ok && cudaMalloc(&p->flags, (size_t)p->size * sizeof(unsigned)) == cudaSuccess &&
           cudaMemset(p->flags, 0, (size_t)p->size * sizeof(unsigned)) == cudaSuccess &&
           cudaDeviceSynchronize() == cudaSuccess;
    for (int i = 0; i < PEER_BLOCKS && e.ok; i++) {
        e.ok = cudaIpcGetMemHandle(&e.handles[i], blocks[i]) == cudaSuccess;
    }
    e.ok = e.ok && cudaIpcGetMemHandle(&e.handles[PEER_BLOCKS], p->flags) == cudaSuccess;
    return e;
}

template <class T> static inline int peer_map_(T** memory, cudaIpcMemHandle_t handle) {
    if (cudaIpcOpenMemHandle((void**)memory, handle, cudaIpcMemLazyEnablePeerAccess) == cudaSuccess) { return 1; }
    *memory = NULL;
    return 0;
}

// Maps the others' memory. Returns 0 if a process is on another machine, or its memory cannot be mapped.
static inline int peer_map_all_(PeerCopies* p, const PeerExport* exports) {
    int ok = 1;
    for (int r = 0; r < p->size && ok; r++) {
        ok = exports[r].ok && memcmp(exports[r].machine, exports[p->rank].machine, PEER_MACHINE_BYTES) == 0;
    }
    for (int r = 0; r < p->size && ok; r++) {
        if (r == p->rank) { continue; }
        for (int i = 0; i < PEER_BLOCKS && ok; i++) { ok = peer_map_(&p->peers[r].blocks[i], exports[r].handles[i]); }
        ok = ok && peer_map_(&p->peers[r].flags, exports[r].handles[PEER_BLOCKS]);
    }
    return ok;
}

// The abort of the CommDevice from now on, so that it reaches these copies, too
static inline void peer_abort_(void* peers) {
    PeerCopies* p = (PeerCopies*)peers;
    const cuuint32_t for_good = 1u << 30; // beyond the number of any exchange
    cudaSetDevice(p->device);
    for (int r = 0; r < p->size; r++) {
        p->write((CUstream)p->rescue, (CUdeviceptr)(p->flags + r), for_good, CU_STREAM_WRITE_VALUE_DEFAULT);
    }
    if (p->inner.abort != NULL) { p->inner.abort(p->inner.context); }
}
// Unmaps the others' memory and frees the flags; all processes call it. Freeing memory that others have mapped is undefined
// behaviour in CUDA: so each waits until all have unmapped. After an error the flags are not freed: the process ends.
static inline void peer_release_(PeerCopies* p) {
    for (int r = 0; r < p->size; r++) {
        for (char* block : p->peers[r].blocks) {
            if (block != NULL) { cudaIpcCloseMemHandle(block); }
        }
        if (p->peers[r].flags != NULL) { cudaIpcCloseMemHandle(p->peers[r].flags); }
    }
    if (comm_barrier(p->comm) == STATUS_OK && p->flags != NULL) { cudaFree(p->flags); }
    if (p->rescue != NULL) { cudaStreamDestroy(p->rescue); }
    (void)cudaGetLastError();
    free(p->peers);
    *p = {};
}

// All processes call it, with blocks that cudaMalloc returned. Sets p->open, in all of them, to 1 if each can read the memory
// of all others; 0 is no error.
static inline Status peer_open(PeerCopies* p, Comm* comm, void* const blocks[PEER_BLOCKS]) {
    *p = {};
    p->comm = comm, p->rank = comm_rank(comm), p->size = comm_size(comm);
    p->peers = (Peer*)calloc_check((size_t)p->size, sizeof(Peer));
    PeerExport* exports = (PeerExport*)calloc_check((size_t)p->size, sizeof(PeerExport));
    int mapped = 0;
    exports[p->rank] = peer_export_(p, blocks);
    Status status = comm_gather(comm, exports, sizeof(PeerExport));
    if (status == STATUS_OK) {
        mapped = peer_map_all_(p, exports);
        status = comm_min(comm, &mapped);
    }
    p->open = status == STATUS_OK && mapped;
    free(exports);
    (void)cudaGetLastError(); // from memory that could not be shared
    if (!p->open) {
        peer_release_(p);
        return status_now();
    }
    p->inner = comm->device;
    CommDevice outer = p->inner;
    outer.abort = peer_abort_, outer.abort_context = p;
    comm_use_device(comm, outer);
    return status_now();
}

// All processes call it before they free the shared blocks, which nobody reads afterwards.
static inline void peer_close(PeerCopies* p) {
    if (!p->open) { return; }
    cudaDeviceSynchronize();
    comm_use_device(p->comm, p->inner);
    peer_release_(p);
}

// ----------------------------------------------------------------------------
// Exchanges. All processes begin the same ones in the same order.

static inline Status peer_driver_(CUresult result, const char* call) {
    return result == CUDA_SUCCESS ? STATUS_OK : status_fail("%s returned %d", call, (int)result);
}

// Begins an exchange, in stream order: the others may read what the stream has computed so far.
static inline Status peer_announce(PeerCopies* p, cudaStream_t stream) {
    p->exchange++;
    for (int k = 1; k < p->size; k++) {
        unsigned* flag = p->peers[(p->rank + k) % p->size].flags + p->rank;
        TRY(peer_driver_(p->write((CUstream)stream, (CUdeviceptr)flag, p->exchange, CU_STREAM_WRITE_VALUE_DEFAULT),
                         "cuStreamWriteValue32"));
    }
    return STATUS_OK;
}

// to (bytes) = the bytes from `offset` on of a block of process r, after that process has announced this exchange.
static inline Status peer_copy(PeerCopies* p, void* to, int r, int block, size_t offset, size_t bytes,
                               cudaStream_t stream) {
    Peer* peer = &p->peers[r];
    if (peer->waited_for != p->exchange) {
        TRY(peer_driver_(p->wait((CUstream)stream, (CUdeviceptr)(p->flags + r), p->exchange, CU_STREAM_WAIT_VALUE_GEQ),
                         "cuStreamWaitValue32"));
        peer->waited_for = p->exchange;
    }
    const char* from = peer->blocks[block] + offset;
    return bytes == 0 ? STATUS_OK : cuda_try(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream));
}

#endif
