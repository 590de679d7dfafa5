/*
Hopper (sm_90a): one function for each PTX instruction, named after its mnemonic, and what a kernel needs around them:
mbarriers, TMA descriptors, wgmma tile descriptors. A warpgroup is four warps, the first a multiple of four.

    load a tile     one thread: barrier.expect_tx(bytes), cp_async_bulk_tensor(box, map, ..., barrier);  readers: barrier.wait
    multiply        wgmma_fence, wgmma_mma_async ..., wgmma_commit_group;  later: wgmma_wait_group<0>
    store a tile    stores, fence_proxy_async, bar_sync;  one thread: cp_async_bulk_tensor(map, ..., box) and commit

16-bit operands (bf16 or fp16, the build's floatX), fp32 accumulation. Section numbers are those of the PTX ISA 9.0. Shared
memory is addressed by 32-bit addresses. Only kernels built for sm_90a may call these functions.
*/
#ifndef LLMC_CUDA_HOPPER_CUH
#define LLMC_CUDA_HOPPER_CUH

#include <cuda.h>
#include <cudaTypedefs.h>

#include <atomic>

#include "device_code.cuh"

#if defined(PRECISION_FP32)
#error "hopper.cuh multiplies 16-bit numbers: build with PRECISION=BF16"
#endif

namespace hopper {

constexpr int WARPGROUP_SIZE = 128;
constexpr size_t HOPPER_SHARED_BYTES = 227 << 10; // that a block may use

// The number of SMs of the current GPU. Records an error (utils.h) if its compute capability is not 9.0, or if this build
// has no code for sm_90a.
static inline Status hopper_num_sms(int* num_sms) {
    DeviceCode code;
    *num_sms = 0;
    TRY(device_code(&code));
    if (!code.sm_90a) {
        return status_fail(
            "wgmma needs a GPU of compute capability 9.0 and code for sm_90a; build it with GPU_ARCH=90, or "
            "give nvcc -gencode arch=compute_90a,code=sm_90a; on another GPU take another variant");
    }
    *num_sms = code.sms;
    return STATUS_OK;
}

__device__ inline uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// Returns x, which must be warp-uniform. The shuffle tells the compiler so: it then keeps descriptors in uniform registers.
__device__ inline uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

// ----------------------------------------------------------------------------
// Barriers

// Orders shared-memory accesses by this thread, and by threads that it has synchronised with at a barrier, before later ones of
// the async proxy (TMA, wgmma). It waits for the thread's own loads and stores, so it costs least after the barrier. (9.7.13.4)
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The number of lanes of a warp that arrive on a barrier. One is enough: __syncwarp orders the other lanes' accesses before
// its arrival. But ptxas removes a __syncwarp where the warp is converged, and racecheck, which then does not see the order,
// reports a race: in builds for compute-sanitizer all lanes arrive.
#if defined(EVERY_LANE_ARRIVES)
constexpr int WARP_ARRIVALS = 32;
#else
constexpr int WARP_ARRIVALS = 1;
#endif

// A barrier in shared memory, in phases 0, 1, 2, ... A phase completes when no arrivals are pending and all expected bytes
// (tx-count) have been written. wait(n % 2) returns once phase n has completed; on a new barrier wait(1) returns at once, as
// for a phase -1.                                                                                             (9.7.13.15)
struct Mbarrier {
    uint64_t state;

    // Sets the number of arrivals that end a phase. By one thread, before fence_mbarrier_init() and __syncthreads().
    __device__ void init(int arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
    }
    __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory"); }
    // Arrives for the calling warp, after the accesses of all its lanes; counts as WARP_ARRIVALS arrivals.
    __device__ void arrive_warp(int lane) {
        __syncwarp();
        if (lane < WARP_ARRIVALS) { arrive(); }
    }
    // Arrives for a warp that has read, with ordinary loads, shared memory that TMA overwrites after the arrival. An arrival by
    // itself does not order the two: TMA was seen to overwrite what a load issued before the arrival had yet to read.
    __device__ void release_warp(int lane) {
        fence_proxy_async();
        arrive_warp(lane);
    }
    // Arrives once, and adds `bytes` to what the phase expects.
    __device__ void expect_tx(int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
    }
    // Returns whether the phase of this parity has completed; may suspend the thread for a while.
    __device__ bool try_wait(uint32_t parity) {
        uint32_t ended;
        asm volatile("{\n"
                     ".reg .pred p;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                     "selp.b32 %0, 1, 0, p;\n"
                     "}"
                     : "=r"(ended)
                     : "r"(address()), "r"(parity)
                     : "memory");
        return ended;
    }
    __device__ void wait(uint32_t parity) {
        while (!try_wait(parity)) {}
    }
    // Arrives on the barrier at the same offset in the shared memory of CTA `rank` of the cluster. Relaxed: it orders only what
    // this thread has waited for, such as wgmma's reads; .release would be a fence at GPU scope.       (9.7.13.15, "mapa")
    __device__ void arrive_cluster(uint32_t rank) {
        asm volatile("{\n"
                     ".reg .b32 remote;\n"
                     "mapa.shared::cluster.u32 remote, %0, %1;\n"
                     "mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [remote];\n"
                     "}" ::"r"(address()),
                     "r"(rank)
                     : "memory");
    }
    __device__ uint32_t address() const { return shared_address(this); }
};

// Stores x at the offset of `to` in the shared memory of CTA `rank` of the cluster, and completes 8 bytes on the `barrier` of
// that CTA: threads that wait on it see x without a fence.                                  (9.7.9.12, "st.async")
__device__ inline void st_async(float2* to, float2 x, Mbarrier& barrier, uint32_t rank) {
    asm volatile("{\n"
                 ".reg .b32 place, remote;\n"
                 "mapa.shared::cluster.u32 place, %0, %4;\n"
                 "mapa.shared::cluster.u32 remote, %3, %4;\n"
                 "st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [place], {%1, %2}, [remote];\n"
                 "}" ::"r"(shared_address(to)),
                 "f"(x.x), "f"(x.y), "r"(barrier.address()), "r"(rank)
                 : "memory");
}

// Position in a ring of pipeline stages (as CUTLASS's PipelineState): the stage, and the parity of the pass over the ring. A
// consumer waits for `full` with the parity, a producer for `empty` with the opposite one, which a new barrier passes.
template <int stages> struct PipelineState {
    int stage = 0;
    uint32_t parity = 0;
    __host__ __device__ void advance() {
        stage++;
        if (stage == stages) { stage = 0, parity ^= 1; }
    }
    __host__ __device__ void advance(int n) {
        parity ^= (stage + n) / stages & 1;
        stage = (stage + n) % stages;
    }
    __host__ __device__ void go_back(int n) { // at most `stages`
        stage -= n;
        if (stage < 0) { stage += stages, parity ^= 1; }
    }
    __host__ __device__ PipelineState next() const {
        PipelineState state = *this;
        state.advance();
        return state;
    }
};

// Makes initialised barriers visible to TMA.                                                     (9.7.13.4)
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Orders accesses to global memory by this thread's ordinary instructions and by TMA, in both directions: between a flag that
// threads exchange by st_release_gpu and ld_acquire_gpu (ptx.cuh), and the data that TMA wrote or is to read.    (9.7.13.4)
__device__ inline void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// Discards the 128 bytes at x, aligned to 128: their value is lost, and L2 need not write them back. (PTX ISA, "discard")
__device__ inline void discard_l2(const void* x) {
    asm volatile("discard.global.L2 [%0], 128;" ::"l"(__cvta_generic_to_global(x)) : "memory");
}

// Arrives on named barrier `id` (1 to 15; __syncthreads is 0) of `threads` threads, a multiple of 32, and waits for the
// others.                                                                                                     (9.7.13.1)
__device__ inline void bar_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// Arrives on named barrier `id` without waiting.                                                              (9.7.13.1)
__device__ inline void bar_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The rank of this CTA in its cluster.
__device__ inline uint32_t cluster_ctarank() {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
// Arrives at the barrier of all threads of the cluster; release: after this thread's earlier accesses.      (9.7.13.3)
__device__ inline void barrier_cluster_arrive() {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
// The same without release: enough after fence_mbarrier_init(), where only initialised barriers must be visible.
__device__ inline void barrier_cluster_arrive_relaxed() {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
// Waits until all threads of the cluster have arrived.                                                      (9.7.13.3)
__device__ inline void barrier_cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Sets the register count of each thread of this warpgroup, a multiple of 8 in [24, 256]. All its warps execute it, and the
// kernel needs __launch_bounds__(threads, blocks).                                                            (9.7.19.5)
template <int registers> __device__ inline void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> __device__ inline void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// ----------------------------------------------------------------------------
// TMA

// TMA load: the box of a tensor of rank 4 whose first element is (x, y, z, w), x innermost, to shared memory. Elements outside
// of the tensor become 0; the barrier counts the bytes of the whole box.                                  (9.7.9.27.1.2)
__device__ inline void cp_async_bulk_tensor(uint32_t box, const CUtensorMap* map, int x, int y, int z, int w,
                                            Mbarrier& barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2,%3,%4,%5}], [%6];" ::"r"(box),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier.address())
                 : "memory");
}
// TMA store: a box from shared memory to the tensor; elements outside of the tensor are not written.      (9.7.9.27.1.2)
__device__ inline void cp_async_bulk_tensor(const CUtensorMap* map, int x, int y, int z, int w, uint32_t box) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1,%2,%3,%4}], [%5];" ::"l"(map), "r"(x),
                 "r"(y), "r"(z), "r"(w), "r"(box)
                 : "memory");
}
// The L2 cache policy evict-first, for TMA loads and stores. volatile: created again for each use, it occupies no registers in
// between. (PTX ISA, "createpolicy")
__device__ inline uint64_t createpolicy_evict_first() {
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
// The load and the store above with such a policy.
__device__ inline void cp_async_bulk_tensor(uint32_t box, const CUtensorMap* map, int x, int y, int z, int w,
                                            Mbarrier& barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2,%3,%4,%5}], [%6], %7;" ::"r"(box),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier.address()), "l"(policy)
                 : "memory");
}
__device__ inline void cp_async_bulk_tensor(const CUtensorMap* map, int x, int y, int z, int w, uint32_t box,
                                            uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group.L2::cache_hint "
                 "[%0, {%1,%2,%3,%4}], [%5], %6;" ::"l"(map),
                 "r"(x), "r"(y), "r"(z), "r"(w), "r"(box), "l"(policy)
                 : "memory");
}
// The load and the store of a box of a tensor of rank 2.
__device__ inline void cp_async_bulk_tensor(uint32_t box, const CUtensorMap* map, int x, int y, Mbarrier& barrier) {
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2,%3}], [%4];" ::"r"(
            box),
        "l"(map), "r"(x), "r"(y), "r"(barrier.address())
        : "memory");
}
__device__ inline void cp_async_bulk_tensor(uint32_t box, const CUtensorMap* map, int x, int y, Mbarrier& barrier,
                                            uint64_t policy) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1, {%2,%3}], [%4], %5;" ::"r"(box),
                 "l"(map), "r"(x), "r"(y), "r"(barrier.address()), "l"(policy)
                 : "memory");
}
__device__ inline void cp_async_bulk_tensor(const CUtensorMap* map, int x, int y, uint32_t box) {
    asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1,%2}], [%3];" ::"l"(map), "r"(x),
                 "r"(y), "r"(box)
                 : "memory");
}
// Multicast TMA load: to the same shared-memory offset in each CTA of the cluster whose bit is set in `ctas`; the barrier at
// the same offset in each of them counts the bytes.                                                       (9.7.9.27.1.2)
__device__ inline void cp_async_bulk_tensor_multicast(uint32_t box, const CUtensorMap* map, int x, int y,
                                                      Mbarrier& barrier, uint16_t ctas) {
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
                 "[%0], [%1, {%2,%3}], [%4], %5;" ::"r"(box),
                 "l"(map), "r"(x), "r"(y), "r"(barrier.address()), "h"(ctas)
                 : "memory");
}
// Bulk copy of `bytes` contiguous bytes from global to shared memory; bytes and addresses are multiples of 16.
__device__ inline void cp_async_bulk(uint32_t to, const void* from, int bytes, Mbarrier& barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier.address())
                 : "memory");
}
__device__ inline void cp_async_bulk(uint32_t to, const void* from, int bytes, Mbarrier& barrier, uint64_t policy) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, "
                 "[%3], %4;" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier.address()), "l"(policy)
                 : "memory");
}
// Bulk prefetch of contiguous bytes of global memory into L2, with the same alignment.
__device__ inline void cp_async_bulk_prefetch_l2(const void* from, int bytes) {
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(__cvta_generic_to_global(from)), "r"(bytes));
}
// Bulk copy from shared to global memory, with the same alignment.
__device__ inline void cp_async_bulk(void* to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
                 "r"(from), "r"(bytes)
                 : "memory");
}
// TMA reduce-add: adds `bytes` of floats in shared memory to those at `to`, with the same alignment.
__device__ inline void cp_reduce_async_bulk_add(float* to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(from), "r"(bytes)
                 : "memory");
}
// Commits this thread's TMA stores since the last commit as a group.
__device__ inline void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until all but the N latest groups of this thread have read their shared memory, which may then be overwritten.
template <int N> __device__ inline void cp_async_bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
// Waits until all but the N latest groups of this thread have written to global memory.
template <int N> __device__ inline void cp_async_bulk_wait_group() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

// libcuda's cuTensorMapEncodeTiled, looked up at run time since nothing links libcuda; nullptr, with an error recorded
// (utils.h), where there is none. Only success is cached: a failure, such as no memory for a context, may be temporary.
static inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
    static std::atomic<PFN_cuTensorMapEncodeTiled_v12000> kept{nullptr};
    if (kept != nullptr) { return kept; }
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cuda_try(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault,
                                                  &found)) != STATUS_OK) {
        return nullptr;
    }
    if (entry == nullptr) { status_fail("the NVIDIA driver is too old for tensor maps: it is older than 12.0"); }
    kept = (PFN_cuTensorMapEncodeTiled_v12000)entry;
    return kept;
}

// The descriptor of a tensor of rank 2 or 4: sizes and box in elements, innermost first; strides of the outer dimensions in
// bytes, multiples of 16. Rows of a box hold 128 bytes, 64 elements of 16 bits, whose 16-byte chunk c lies at c ^ (row % 8)
// in shared memory: the layout that tile_descriptor_* describe to wgmma. Or they hold 64 bytes: c lies at c ^ (row / 2 % 4).
// (CUDA driver API, 6.29)
// Records an error (utils.h) where the driver refuses, such as a tensor that is not aligned to 16 bytes.
template <int rank> static inline Status tensor_map(CUtensorMap* map, const floatX* tensor,
                                                    const uint64_t (&sizes)[rank], const uint64_t (&strides)[rank - 1],
                                                    const uint32_t (&box)[rank]) {
    const PFN_cuTensorMapEncodeTiled_v12000 encode = tensor_map_encoder();
    if (encode == nullptr) { return STATUS_ERROR; }
    const uint32_t steps[4] = {1, 1, 1, 1};
    const auto swizzle = box[0] * sizeof(floatX) == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_128B;
    CUresult result = encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, const_cast<floatX*>(tensor), sizes, strides,
                             box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS) { return STATUS_OK; }
    return status_fail("cuTensorMapEncodeTiled returned %d for a tensor at %p of rank %d", (int)result,
                       (const void*)tensor, rank);
}

// The descriptor of a matrix (rows, columns) in boxes of box_rows rows of 128 bytes.
static inline Status tensor_map_of_matrix(CUtensorMap* map, const floatX* x, uint64_t rows, uint64_t columns,
                                          int box_rows) {
    return tensor_map<2>(map, x, {columns, rows}, {columns * sizeof(floatX)}, {64, (uint32_t)box_rows});
}

// The descriptor of a tensor (B,T,heads,HS) in boxes of 64 tokens by box_channels, 64 or 32, of a head; coordinates are
// channel, head, token, b. Channels from HS on are loaded as 0 and not stored.
static inline Status tensor_map_of_heads(CUtensorMap* map, const floatX* x, int B, int T, int heads, int HS,
                                         int box_channels = 64) {
    const uint64_t row = HS * sizeof(floatX), token = heads * row;
    return tensor_map<4>(map, x, {(uint64_t)HS, (uint64_t)heads, (uint64_t)T, (uint64_t)B}, {row, token, T * token},
                         {(uint32_t)box_channels, 1, 64, 1});
}

// ----------------------------------------------------------------------------
// wgmma: a matrix multiplication by a warpgroup

// Matrix descriptors of tiles in shared memory, with rows of 128 or 64 bytes (64 or 32 elements) in TMA's swizzle of as many.
// A tile is aligned to 1024 bytes. Adding n to a descriptor moves it by 16 n bytes. Bits 0-13 are the address, 16-29 the
// leading and 32-45 the stride byte offset, from 8 rows to the next 8; all are divided by 16.                  (9.7.15.5.1)
template <int row_bytes> __device__ inline uint64_t tile_descriptor(uint32_t tile, int leading_bytes) {
    static_assert(row_bytes == 128 || row_bytes == 64, "");
    const uint64_t swizzle = row_bytes == 128 ? 1 : 2, eight_rows = 8 * row_bytes >> 4;
    return swizzle << 62 | eight_rows << 32 | (uint64_t)(leading_bytes >> 4) << 16 | (tile & 0x3ffff) >> 4;
}
// K-major: tile rows are rows of A, or columns of B; a row's elements go along K. The next 16 of K are 32 bytes further. The
// leading byte offset is not used here; 1 by convention.
template <int row_bytes = 128> __device__ inline uint64_t tile_descriptor_k_major(uint32_t tile) {
    return tile_descriptor<row_bytes>(tile, 16);
}
// MN-major: tile rows go along K, a row's elements along N (or M). The next 16 of K are 16 rows further, the next row_bytes
// of N columns_stride bytes further: the leading byte offset.
template <int row_bytes = 128> __device__ inline uint64_t tile_descriptor_n_major(uint32_t tile, int columns_stride) {
    return tile_descriptor<row_bytes>(tile, columns_stride);
}

// Orders this warpgroup's register accesses before the wgmma_mma_async that follow: needed before the first one, and whenever
// operands or accumulators in registers have been written since.                                            (9.7.15.7.1)
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Commits the wgmma_mma_async since the last commit as a group.
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until all but the N latest groups have completed.
template <int N> __device__ inline void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// Keeps the compiler from moving or copying accesses to the registers of x across this point; emits no instruction. Used before
// and after the interval in which wgmma owns the registers (as CUTLASS's warpgroup_fence_operand).
template <int N> __device__ inline void fence_operand(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) { asm volatile("" : "+f"(x[i])::"memory"); }
}
template <int N> __device__ inline void fence_operand(int (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) { asm volatile("" : "+r"(x[i])::"memory"); }
}

// The instructions below differ in N alone. Operands are numbered: first the N / 2 registers of d, from 0 on; then the others,
// whose numbers each shape names.
#define HOPPER_WGMMA(N) "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32.bf16.bf16 "
#define HOPPER_OUT4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define HOPPER_OUT8(d, i) HOPPER_OUT4(d, i), HOPPER_OUT4(d, i + 4)
#define HOPPER_OUT16(d, i) HOPPER_OUT8(d, i), HOPPER_OUT8(d, i + 8)
#define HOPPER_OUT32(d, i) HOPPER_OUT16(d, i), HOPPER_OUT16(d, i + 16)
#define HOPPER_INT_OUT4(d, i) "+r"(d[i]), "+r"(d[i + 1]), "+r"(d[i + 2]), "+r"(d[i + 3])
#define HOPPER_INT_OUT16(d, i)                                                                                         \
    HOPPER_INT_OUT4(d, i), HOPPER_INT_OUT4(d, i + 4), HOPPER_INT_OUT4(d, i + 8), HOPPER_INT_OUT4(d, i + 12)
#define HOPPER_INT_OUT32(d, i) HOPPER_INT_OUT16(d, i), HOPPER_INT_OUT16(d, i + 16)
#define HOPPER_D4 "%0,%1,%2,%3"
#define HOPPER_D8 HOPPER_D4 ",%4,%5,%6,%7"
#define HOPPER_D16 HOPPER_D8 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define HOPPER_D20 HOPPER_D16 ",%16,%17,%18,%19"
#define HOPPER_D24 HOPPER_D20 ",%20,%21,%22,%23"
#define HOPPER_D32 HOPPER_D24 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define HOPPER_D48 HOPPER_D32 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47"
#define HOPPER_D64 HOPPER_D48 ",%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define HOPPER_D96                                                                                                     \
    HOPPER_D64 ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88," \
               "%89,%90,%91,%92,%93,%94,%95"

// d (64,N) = A B^T, or d += A B^T if accumulate is 1. A (64,16) and B (N,16) by descriptors, K-major, or MN-major where
// a_mn_major or b_mn_major is 1.                                                                            (9.7.15.5.2)
// Thread t of the warpgroup holds in d[4 n + 2 h + e] row 16 (t/32) + 8 h + t%32/4 and column 8 n + 2 (t%4) + e.
// Behind the operands: imm-scale-a, imm-scale-b (1: not negated), then tnsp-a, tnsp-b (1: MN-major).
#define HOPPER_WGMMA_SHARED(N, registers, a_, b_, accumulate_, tnsp_a, tnsp_b, ...)                                    \
    template <int a_mn_major = 0, int b_mn_major = 0>                                                                  \
    __device__ inline void wgmma_mma_async(float(&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {                 \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate_                                                   \
                     ", 0;\n" HOPPER_WGMMA(N) "{" registers "}, " a_ ", " b_ ", p, 1, 1, " tnsp_a ", " tnsp_b ";\n}"   \
                     : __VA_ARGS__                                                                                     \
                     : "l"(a), "l"(b), "r"(accumulate), "n"(a_mn_major), "n"(b_mn_major));                             \
    }
HOPPER_WGMMA_SHARED(48, HOPPER_D24, "%24", "%25", "%26", "%27", "%28", HOPPER_OUT16(d, 0), HOPPER_OUT8(d, 16))
HOPPER_WGMMA_SHARED(64, HOPPER_D32, "%32", "%33", "%34", "%35", "%36", HOPPER_OUT32(d, 0))
HOPPER_WGMMA_SHARED(128, HOPPER_D64, "%64", "%65", "%66", "%67", "%68", HOPPER_OUT32(d, 0), HOPPER_OUT32(d, 32))
HOPPER_WGMMA_SHARED(192, HOPPER_D96, "%96", "%97", "%98", "%99", "%100", HOPPER_OUT32(d, 0), HOPPER_OUT32(d, 32),
                    HOPPER_OUT32(d, 64))
// The same of 8-bit operands: A (64,32), B (N,32). Both are K-major, which is all that these can be. int8 is added exactly.
#define HOPPER_WGMMA_8_BIT(name, type, types, scales, N, registers, a_, b_, accumulate_, ...)                          \
    __device__ inline void name(type(&d)[N / 2], uint64_t a, uint64_t b, int accumulate) {                             \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate_ ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N      \
                     "k32." types " {" registers "}, " a_ ", " b_ ", p" scales ";\n}"                                  \
                     : __VA_ARGS__                                                                                     \
                     : "l"(a), "l"(b), "r"(accumulate));                                                               \
    }
HOPPER_WGMMA_8_BIT(wgmma_mma_async_e4m3, float, "f32.e4m3.e4m3", ", 1, 1", 128, HOPPER_D64, "%64", "%65", "%66",
                   HOPPER_OUT32(d, 0), HOPPER_OUT32(d, 32))
HOPPER_WGMMA_8_BIT(wgmma_mma_async_int8, int, "s32.s8.s8", "", 128, HOPPER_D64, "%64", "%65", "%66",
                   HOPPER_INT_OUT32(d, 0), HOPPER_INT_OUT32(d, 32))
// d (64,N) = A B, or d += A B if accumulate is 1. A (64,16) and B (16,N) by MN-major descriptors.
template <int N>
__device__ inline void wgmma_mma_async_mn_major(float (&d)[N], uint64_t a, uint64_t b, int accumulate) {
    wgmma_mma_async<1, 1>(d, a, b, accumulate);
}

// d (64,N) = A B^T, or d += A B^T if accumulate is 1. A (64,16) in registers, each warp's 16 rows as in mma_m16n8k16; B (N,16)
// by a K-major descriptor.
#define HOPPER_WGMMA_REGISTERS(N, registers, a_, b_, accumulate_, ...)                                                 \
    __device__ inline void wgmma_mma_async(float(&d)[N / 2], const uint32_t(&a)[4], uint64_t b, int accumulate) {      \
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, " accumulate_                                                   \
                     ", 0;\n" HOPPER_WGMMA(N) "{" registers "}, {" a_ "}, " b_ ", p, 1, 1, 0;\n}"                      \
                     : __VA_ARGS__                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate));                           \
    }
HOPPER_WGMMA_REGISTERS(64, HOPPER_D32, "%32,%33,%34,%35", "%36", "%37", HOPPER_OUT32(d, 0))

// d (64,N) += A B. A (64,16) in registers likewise; B (16,N) by an MN-major descriptor. The first immediate is scale-d.
#define HOPPER_WGMMA_ADD(N, registers, a_, b_, ...)                                                                    \
    __device__ inline void wgmma_mma_async(float(&d)[N / 2], const uint32_t(&a)[4], uint64_t b) {                      \
        asm volatile("{\n" HOPPER_WGMMA(N) "{" registers "}, {" a_ "}, " b_ ", 1, 1, 1, 1;\n}"                         \
                     : __VA_ARGS__                                                                                     \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }
HOPPER_WGMMA_ADD(32, HOPPER_D16, "%16,%17,%18,%19", "%20", HOPPER_OUT16(d, 0))
HOPPER_WGMMA_ADD(64, HOPPER_D32, "%32,%33,%34,%35", "%36", HOPPER_OUT32(d, 0))
HOPPER_WGMMA_ADD(96, HOPPER_D48, "%48,%49,%50,%51", "%52", HOPPER_OUT32(d, 0), HOPPER_OUT16(d, 32))
HOPPER_WGMMA_ADD(128, HOPPER_D64, "%64,%65,%66,%67", "%68", HOPPER_OUT32(d, 0), HOPPER_OUT32(d, 32))
#undef HOPPER_WGMMA_SHARED
#undef HOPPER_WGMMA_8_BIT
#undef HOPPER_WGMMA_REGISTERS
#undef HOPPER_WGMMA_ADD

// ----------------------------------------------------------------------------
// Column sums of an accumulator over the 16 rows of a warp: a butterfly in which each step halves the columns that a lane
// keeps, 14 shuffles for 64 columns.

// Over the 8 lanes with the same t % 4: in a step, a lane whose bit is `high` keeps the upper half of its octets, the other
// one the lower half. After three steps it has octet t % 32 / 4, columns:
__host__ __device__ constexpr int kept_index(bool high, int half, int i) { return high ? i + half : i; }
__host__ __device__ constexpr int kept_column(int t, int e) { return t % 32 / 4 * 8 + t % 4 * 2 + e; }

// A step: of its 2 * half column sums, a lane keeps `half` and sends the others to the lane at `distance`.
template <int half> __device__ inline void halve_columns(float (&v)[16], int thread) {
    constexpr int distance = 2 * half; // lanes: 16, 8, 4
    const bool high = thread & distance;
#pragma unroll
    for (int i = 0; i < half; i++) {
        const float keep = high ? v[kept_index(true, half, i)] : v[kept_index(false, half, i)];
        const float give = high ? v[kept_index(false, half, i)] : v[kept_index(true, half, i)];
        v[i] = keep + __shfl_xor_sync(0xffffffffu, give, distance);
    }
}
// v: the sums over a lane's rows, of columns 8 n + t % 4 * 2 + e in v[2 n + e]. Returns those over the warp's 16 rows of
// kept_column(t, 0) and kept_column(t, 1).
__device__ inline float2 sum_columns(float (&v)[16], int thread) {
    halve_columns<8>(v, thread);
    halve_columns<4>(v, thread);
    halve_columns<2>(v, thread);
    return {v[0], v[1]};
}

} // namespace hopper

#endif
