/*
PTX instructions for kernels of every precision: one function each, named after its mnemonic. mma.cuh has those of sm_80's
tensor cores, hopper.cuh those of sm_90a. The PTX ISA describes each instruction under its name.
*/
#ifndef LLMC_CUDA_PTX_CUH
#define LLMC_CUDA_PTX_CUH

#include <cuda_runtime.h>
#include <stdint.h>

// 2^x: the relative error is at most 2^-22; 0 below the normal numbers. One instruction, where exp2f is four.
__device__ inline float ex2_approx_ftz(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// 1/x: the relative error is at most 2^-23; 0 for x above 2^126. One instruction, where 1.0f / x is ten.
__device__ inline float rcp_approx_ftz(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
// The larger of x and y; NaN, which fmaxf passes over, where one of them is NaN
__device__ inline float max_nan(float x, float y) {
    float z;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
    return z;
}
// The square root of x: the relative error is at most 2^-23; 0 for x below 2^-126. One instruction, where sqrtf is eight.
__device__ inline float sqrt_approx_ftz(float x) {
    float y;
    asm("sqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
constexpr float LOG2_E = 1.4426950408889634f; // exp(x) = 2^(x log2 e)

// Loads 16 bytes that are read once and that nobody writes while the kernel runs: not allocated in L1, L2 fetches 128 bytes.
template <class T> __device__ inline uint4 ld_global_nc_no_allocate(const T* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

// Predicated load of 4 bytes that bypasses L1; 0 if `condition` is false. In a branch the compiler would wait for the load.
__device__ inline uint32_t ld_global_cg_if(bool condition, const void* p) {
    uint32_t v;
    asm volatile("{\n"
                 ".reg .pred there;\n"
                 "setp.ne.u32 there, %2, 0;\n"
                 "mov.b32 %0, 0;\n"
                 "@there ld.global.cg.b32 %0, [%1];\n"
                 "}"
                 : "=r"(v)
                 : "l"(__cvta_generic_to_global(p)), "r"((uint32_t)condition));
    return v;
}

// Prefetches the cache line of p into L2.
__device__ inline void prefetch_global_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

// Shared memory, by 32-bit addresses
__device__ inline uint4 ld_shared_v4(uint32_t address) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}
__device__ inline void st_shared(uint32_t address, uint32_t x) {
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(x) : "memory");
}

// Asynchronous copy of 16 bytes from global to shared memory, bypassing L1. If `bytes` is 0 instead of 16, nothing is read and
// the 16 bytes become 0.
__device__ inline void cp_async_16(uint32_t address, const void* source, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address), "l"(source), "r"(bytes) : "memory");
}
// Commits this thread's copies since the last commit as a group.
__device__ inline void cp_async_commit_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until all but the N latest groups of this thread have arrived.
template <int N> __device__ inline void cp_async_wait_group() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Increments *p, wrapping from `last` to 0, and returns the old value. What a CTA has stored before its call (a barrier between
// the stores and the call) is visible to each CTA whose call comes later (a barrier between the call and the loads).
__device__ inline unsigned atom_acq_rel_inc(unsigned* p, unsigned last) {
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(before) : "l"(p), "r"(last) : "memory");
    return before;
}

// A flag between CTAs. What the releasing thread, and threads synchronised with it at a barrier, wrote before the release is
// visible to the thread that acquires the flag, and to threads that synchronise with it at a barrier afterwards.
__device__ inline int ld_acquire_gpu(const int* p) {
    int x;
    asm volatile("ld.acquire.gpu.global.b32 %0, [%1];" : "=r"(x) : "l"(p) : "memory");
    return x;
}
__device__ inline void st_release_gpu(int* p, int x) {
    asm volatile("st.release.gpu.global.b32 [%0], %1;" ::"l"(p), "r"(x) : "memory");
}

// 8-byte words that threads exchange without a barrier: each is stored and loaded atomically; no other access is ordered.
__device__ inline void st_relaxed_gpu(unsigned long long* p, unsigned long long x) {
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(p), "l"(x) : "memory");
}
__device__ inline ulonglong2 ld_relaxed_gpu_v2(const unsigned long long* p) {
    ulonglong2 x;
    asm volatile("ld.relaxed.gpu.global.v2.u64 {%0,%1}, [%2];" : "=l"(x.x), "=l"(x.y) : "l"(p) : "memory");
    return x;
}

// The GPU's global timer, in nanoseconds
__device__ inline unsigned long long mov_globaltimer() {
    unsigned long long t;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)::"memory");
    return t;
}

// Programmatic dependent launch, on sm_90 and up. launch_dependents: the next kernel may start once all CTAs of this one have
// issued it. wait: blocks until all kernels before this one have completed and their writes are visible.
__device__ inline void griddepcontrol_launch_dependents() {
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}
__device__ inline void griddepcontrol_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

#endif
