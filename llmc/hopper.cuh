/*
Hopper (sm_90a): one function per PTX instruction, named after its mnemonic. Tensors travel between global and shared
memory in boxes (TMA), barriers in shared memory count arrivals and bytes, and a warpgroup (four warps, the first a
multiple of four) multiplies tiles of shared memory into its registers while it goes on with something else.

    wait for a box      barrier.expect_tx(bytes), cp_async_bulk_tensor(box, map, ..., barrier);  elsewhere: barrier.wait
    multiply            wgmma_fence, wgmma_mma_async ..., wgmma_commit_group;  later: wgmma_wait_group<0>
    store a box         stores, fence_proxy_async, bar_sync;  one thread: cp_async_bulk_tensor(map, ..., box) and commit

Everything is in 16 bit (bf16 or fp16, the build's floatX) with fp32 accumulation. Section numbers are those of the PTX
ISA 9.0. Addresses are 32-bit, of shared memory. Only kernels built for sm_90a may call these.
*/
#ifndef LLMC_HOPPER_CUH
#define LLMC_HOPPER_CUH

#include <cuda.h>
#include <cudaTypedefs.h>

#include "cuda_common.cuh"

#if defined(PRECISION_FP32)
#error "hopper.cuh multiplies 16-bit numbers: build with PRECISION=BF16 or PRECISION=FP16"
#endif

// Kernels that use this header have a body only where this is defined: in the pass for sm_90a.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define HOPPER_DEVICE_CODE
#endif

namespace hopper {

constexpr int WARPGROUP_SIZE = 128;

// How many SMs the current GPU has. Records an error (status.h) where it is not of compute capability 9.0.
static inline Status hopper_num_sms(int* num_sms) {
    int device, major, minor;
    TRY(cuda_try(cudaGetDevice(&device)));
    TRY(cuda_try(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device)));
    TRY(cuda_try(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device)));
    if (major != 9 || minor != 0) {
        return status_fail("wgmma runs on compute capability 9.0; this GPU has %d.%d", major, minor);
    }
    return cuda_try(cudaDeviceGetAttribute(num_sms, cudaDevAttrMultiProcessorCount, device));
}

__device__ inline uint32_t shared_address(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }

// x, which is the same in all lanes already: now the compiler knows, and keeps descriptors in uniform registers.
__device__ inline uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

// ----------------------------------------------------------------------------
// Barriers

// compute-sanitizer does not see that lane 0 arrives behind the other lanes, for ptxas makes nothing of __syncwarp where a
// warp is together, and reports their accesses as races. For its sake all lanes may arrive.
#if defined(EVERY_LANE_ARRIVES)
constexpr int WARP_ARRIVALS = 32;
#else
constexpr int WARP_ARRIVALS = 1;
#endif

// A barrier in shared memory. A phase ends when all arrivals have come and all expected bytes have been written; then
// the next begins by itself. wait(n % 2) returns once phase n has ended.                                    (9.7.13.15)
struct Mbarrier {
    uint64_t state;

    // arrivals: how many end a phase. By one thread; then fence_mbarrier_init() and a barrier of the block.
    __device__ void init(int arrivals) {
        asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
    }
    __device__ void arrive() { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(address()) : "memory"); }
    // For the warp, all of whose lanes have come this far: counts as WARP_ARRIVALS.
    __device__ void arrive_warp(int lane) {
        __syncwarp();
        if (lane < WARP_ARRIVALS) { arrive(); }
    }
    // One arrival, and so many bytes more to wait for in this phase.
    __device__ void expect_tx(int bytes) {
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(address()), "r"(bytes) : "memory");
    }
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
    __device__ uint32_t address() const { return shared_address(this); }
};

// Makes initialised barriers visible to TMA.                                                     (9.7.13.4)
__device__ inline void fence_mbarrier_init() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

// Orders this thread's accesses to shared memory before those of TMA and of wgmma that follow.   (9.7.13.4)
__device__ inline void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// The same for global memory, in both directions: between what TMA wrote or is to read there and the flags by
// which threads tell each other.                                                                            (9.7.13.4)
__device__ inline void fence_proxy_async_global() { asm volatile("fence.proxy.async.global;" ::: "memory"); }

// A flag in global memory, between blocks of threads: what this thread had seen or written is seen by who reads x.
__device__ inline void st_release(int* flag, int x) {
    asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(__cvta_generic_to_global(flag)), "r"(x) : "memory");
}
__device__ inline int ld_acquire(const int* flag) {
    int x;
    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(__cvta_generic_to_global(flag)) : "memory");
    return x;
}

// The 128 bytes at x, aligned to 128, are not needed any more: L2 may forget them instead of writing them to memory.
__device__ inline void discard_l2(const void* x) {
    asm volatile("discard.global.L2 [%0], 128;" ::"l"(__cvta_generic_to_global(x)) : "memory");
}

// Programmatic dependent launch: the next kernel of the stream may start, where it was launched so;
__device__ inline void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
// the kernel before has ended and its writes are seen.
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Barrier `id` (1 to 15; __syncthreads is 0) of `threads` threads, a multiple of 32: wait for the rest,      (9.7.13.1)
__device__ inline void bar_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
// or be counted only.
__device__ inline void bar_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

// The registers of each thread of this warpgroup from here on, a multiple of 8 in [24, 256]. To be executed by all its
// warps; the kernel needs __launch_bounds__(threads, blocks).                                                (9.7.19.5)
template <int registers> __device__ inline void setmaxnreg_inc() {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
}
template <int registers> __device__ inline void setmaxnreg_dec() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
}

// ----------------------------------------------------------------------------
// TMA

// The box of a tensor of rank 4 whose first element is (x, y, z, w), x innermost, to shared memory. What lies outside
// of the tensor becomes 0; the barrier counts the bytes of the whole box.                               (9.7.9.27.1.2)
__device__ inline void cp_async_bulk_tensor(uint32_t box, const CUtensorMap* map, int x, int y, int z, int w,
                                            Mbarrier& barrier) {
    asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2,%3,%4,%5}], [%6];" ::"r"(box),
                 "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(barrier.address())
                 : "memory");
}
// From shared memory; what lies outside of the tensor is not written.
__device__ inline void cp_async_bulk_tensor(const CUtensorMap* map, int x, int y, int z, int w, uint32_t box) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%1,%2,%3,%4}], [%5];" ::"l"(map), "r"(x),
                 "r"(y), "r"(z), "r"(w), "r"(box)
                 : "memory");
}
// Bytes that follow each other, a multiple of 16 at addresses that are: from global to shared memory,
__device__ inline void cp_async_bulk(uint32_t to, const void* from, int bytes, Mbarrier& barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
                 "l"(__cvta_generic_to_global(from)), "r"(bytes), "r"(barrier.address())
                 : "memory");
}
// back,
__device__ inline void cp_async_bulk(void* to, uint32_t from, int bytes) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(__cvta_generic_to_global(to)),
                 "r"(from), "r"(bytes)
                 : "memory");
}
// and added to floats that are there.
__device__ inline void cp_reduce_async_bulk_add(float* to, uint32_t from, int bytes) {
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(
                     __cvta_generic_to_global(to)),
                 "r"(from), "r"(bytes)
                 : "memory");
}
// Ends a group: this thread's stores since the last group.
__device__ inline void cp_async_bulk_commit_group() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most the N latest groups of this thread have still to read their shared memory.
template <int N> __device__ inline void cp_async_bulk_wait_group_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(N) : "memory");
}
// Waits until at most the N latest groups of this thread have still to write.
template <int N> __device__ inline void cp_async_bulk_wait_group() {
    asm volatile("cp.async.bulk.wait_group %0;" ::"n"(N) : "memory");
}

// The driver's cuTensorMapEncodeTiled, of libcuda, which nothing links; nullptr where the driver has none.
static inline PFN_cuTensorMapEncodeTiled_v12000 tensor_map_encoder() {
    static const PFN_cuTensorMapEncodeTiled_v12000 encode = [] {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult found;
        cuda_try(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found));
        return (PFN_cuTensorMapEncodeTiled_v12000)entry;
    }();
    return encode;
}

// The descriptor of a tensor of 16-bit elements of rank 4: sizes and box in elements, innermost first; strides of the
// three outer dimensions in bytes, multiples of 16. Rows of a box hold 64 elements, 128 bytes, whose 16-byte chunk c
// lies at c ^ (row % 8) in shared memory: the layout that tile_descriptor_* tell wgmma of.   (CUDA driver API, 6.29)
// Records an error (status.h) where the driver refuses, such as a tensor that is not aligned to 16 bytes.
static inline Status tensor_map(CUtensorMap* map, const void* tensor, const uint64_t (&sizes)[4],
                                const uint64_t (&strides)[3], const uint32_t (&box)[4]) {
    const PFN_cuTensorMapEncodeTiled_v12000 encode = tensor_map_encoder();
    if (encode == nullptr) {
        return status_fail("the NVIDIA driver is too old for tensor maps: it is older than 12.0");
    }
    const uint32_t steps[4] = {1, 1, 1, 1};
#if defined(PRECISION_FP16)
    const CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
#else
    const CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
#endif
    CUresult result =
        encode(map, type, 4, const_cast<void*>(tensor), sizes, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
               CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (result == CUDA_SUCCESS) { return STATUS_OK; }
    return status_fail("cuTensorMapEncodeTiled returned %d for a tensor at %p of %llu x %llu x %llu x %llu",
                       (int)result, tensor, (unsigned long long)sizes[3], (unsigned long long)sizes[2],
                       (unsigned long long)sizes[1], (unsigned long long)sizes[0]);
}

// A tensor (B,T,heads,HS) in boxes of 64 tokens by 64 channels of a head, whose coordinates are channel, head, token and b.
static inline Status tensor_map_of_heads(CUtensorMap* map, const floatX* x, int B, int T, int heads, int HS) {
    const uint64_t row = HS * sizeof(floatX), token = heads * row;
    return tensor_map(map, x, {(uint64_t)HS, (uint64_t)heads, (uint64_t)T, (uint64_t)B}, {row, token, T * token},
                      {64, 1, 64, 1});
}

// ----------------------------------------------------------------------------
// Products of a warpgroup

// Descriptors of tiles in shared memory whose rows are 64 elements, 128 bytes, swizzled by TMA; a tile is
// aligned to 1024 bytes. Adding n to a descriptor moves it by 16 n bytes.                                  (9.7.15.5.1)
constexpr uint64_t DESCRIPTOR_SWIZZLE_128B = 1ull << 62;
// Rows are along M or N, a row's 64 elements along K: 16 of K further are 32 bytes further.
__device__ inline uint64_t tile_descriptor_k_major(uint32_t tile) {
    uint64_t eight_rows = 1024 >> 4;
    return DESCRIPTOR_SWIZZLE_128B | eight_rows << 32 | 1ull << 16 | (tile & 0x3ffff) >> 4;
}
// Rows are along K, a row's 64 elements along N (or M): 64 of N further are columns_stride bytes further, 16 of K are
// 2048 bytes.
__device__ inline uint64_t tile_descriptor_n_major(uint32_t tile, int columns_stride) {
    uint64_t eight_rows = 1024 >> 4;
    return DESCRIPTOR_SWIZZLE_128B | eight_rows << 32 | (uint64_t)(columns_stride >> 4) << 16 | (tile & 0x3ffff) >> 4;
}

// Before the first wgmma_mma_async, and whenever its registers have been written since.                    (9.7.15.7.1)
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Ends a group: the products since the last group.
__device__ inline void wgmma_commit_group() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the N latest groups are under way.
template <int N> __device__ inline void wgmma_wait_group() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}
// No instruction: x has its value here, and the compiler neither moves its accesses across nor copies of it. To stand
// around the time in which products under way own the registers of x.
template <int N> __device__ inline void fence_operand(float (&x)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) { asm volatile("" : "+f"(x[i])::"memory"); }
}

#if defined(PRECISION_FP16)
#define HOPPER_WGMMA(shape) "wgmma.mma_async.sync.aligned." shape ".f32.f16.f16 "
#else
#define HOPPER_WGMMA(shape) "wgmma.mma_async.sync.aligned." shape ".f32.bf16.bf16 "
#endif
#define HOPPER_OUT8(d, i)                                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]),        \
        "+f"(d[i + 7])
#define HOPPER_OUT32(d, i) HOPPER_OUT8(d, i), HOPPER_OUT8(d, i + 8), HOPPER_OUT8(d, i + 16), HOPPER_OUT8(d, i + 24)
#define HOPPER_D32                                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"  \
    "%30,%31}, "
#define HOPPER_D64                                                                                                     \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,"  \
    "%30,%31,%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,"     \
    "%57,%58,%59,%60,%61,%62,%63}, "

// d (64,N) = A B^T, or += where accumulate is 1: A (64,16) and B (N,16) by descriptors, K-major both.      (9.7.15.5.2)
// Thread t of the warpgroup holds, as d[4 n + 2 h + e], row 16 (t/32) + 8 h + t%32/4 and column 8 n + 2 (t%4) + e.
__device__ inline void wgmma_mma_async(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n" HOPPER_WGMMA("m64n64k16") HOPPER_D32
                 "%32, %33, p, 1, 1, 0, 0;\n}"
                 : HOPPER_OUT32(d, 0)
                 : "l"(a), "l"(b), "r"(accumulate));
}
__device__ inline void wgmma_mma_async(float (&d)[64], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n" HOPPER_WGMMA("m64n128k16") HOPPER_D64
                 "%64, %65, p, 1, 1, 0, 0;\n}"
                 : HOPPER_OUT32(d, 0), HOPPER_OUT32(d, 32)
                 : "l"(a), "l"(b), "r"(accumulate));
}
// d (64,64) = A B or += where accumulate is 1: A (64,16) M-major, B (16,64) N-major, by descriptors.
__device__ inline void wgmma_mma_async_mn_major(float (&d)[32], uint64_t a, uint64_t b, int accumulate) {
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n" HOPPER_WGMMA("m64n64k16") HOPPER_D32
                 "%32, %33, p, 1, 1, 1, 1;\n}"
                 : HOPPER_OUT32(d, 0)
                 : "l"(a), "l"(b), "r"(accumulate));
}
// d (64,N) += A B: A (64,16) in registers, as mma_m16n8k16 has it for each warp's 16 rows; B (16,N) N-major.
__device__ inline void wgmma_mma_async(float (&d)[32], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("{\n" HOPPER_WGMMA("m64n64k16") HOPPER_D32 "{%32,%33,%34,%35}, %36, 1, 1, 1, 1;\n}"
                 : HOPPER_OUT32(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
__device__ inline void wgmma_mma_async(float (&d)[64], const uint32_t (&a)[4], uint64_t b) {
    asm volatile("{\n" HOPPER_WGMMA("m64n128k16") HOPPER_D64 "{%64,%65,%66,%67}, %68, 1, 1, 1, 1;\n}"
                 : HOPPER_OUT32(d, 0), HOPPER_OUT32(d, 32)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));
}
#undef HOPPER_WGMMA
#undef HOPPER_OUT8
#undef HOPPER_OUT32
#undef HOPPER_D32
#undef HOPPER_D64

} // namespace hopper

#endif
