/*
Tensor cores through mma.sync, for sm_80 and up: one function per PTX instruction, named after its mnemonic. The tiles
that the mma variants multiply with them are in dev/cuda/attention/mma_tiles.cuh.

Everything is in bf16, with fp32 accumulation. The PTX ISA describes each
instruction under its name, and the layouts under "Matrix fragments for mma.m16n8k16 with floating point type".
*/
#ifndef LLMC_CUDA_MMA_CUH
#define LLMC_CUDA_MMA_CUH

#include "common.cuh"

#if defined(PRECISION_FP32)
#error "mma.cuh multiplies 16-bit numbers: build with PRECISION=BF16"
#endif

namespace mma {

using ::cp_async_16, ::cp_async_commit_group, ::cp_async_wait_group; // ptx.cuh

// ----------------------------------------------------------------------------
// Instructions

// d (16,8) += a (16,16) b (16,8). Lane t holds, with r = t/4 and c = 2(t%4):
//   a: {(r,c),(r,c+1)}, {(r+8,c),..}, {(r,c+8),..}, {(r+8,c+8),..}   b: {(c,r),(c+1,r)}, {(c+8,r),(c+9,r)}
//   d: (r,c), (r,c+1), (r+8,c), (r+8,c+1)
__device__ inline void mma_m16n8k16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Four 8x8 matrices of 16-bit elements from shared memory. Lanes 8i..8i+7 give the addresses of the rows of matrix i;
// lane t receives elements (t/4, 2(t%4)) and the next of every matrix, transposed first with _trans.
__device__ inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}
__device__ inline void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

// The transpose of an 8x8 matrix of 16-bit elements; lane t holds (t/4, 2(t%4)) and the next, of both.
__device__ inline uint32_t movmatrix_trans(uint32_t a) {
    uint32_t d;
    asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(d) : "r"(a));
    return d;
}

// The inverse of ldmatrix_x4. Only sm_90 and up have it.
__device__ inline void stmatrix_x4(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r0), "r"(r1),
                 "r"(r2), "r"(r3)
                 : "memory");
}

__device__ inline void stmatrix_x4_trans(uint32_t address, uint32_t r0, uint32_t r1, uint32_t r2, uint32_t r3) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r0), "r"(r1),
                 "r"(r2), "r"(r3)
                 : "memory");
}

// threadIdx.x and blockIdx, read by a volatile instruction each time: the compiler recomputes what depends on them instead of
// keeping it in registers, or spilling it, from one use to the next.
__device__ inline int mov_tid_x() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x;
}
__device__ inline int2 mov_ctaid() {
    int2 v;
    asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(v.x));
    asm volatile("mov.u32 %0, %%ctaid.y;" : "=r"(v.y));
    return v;
}

// log2(x): the absolute error is at most 2^-22 for x in (0.5, 2), the relative one elsewhere. (PTX ISA, "lg2")
__device__ inline float lg2_approx(float x) {
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// 1/sqrt(n) at compile time, by Newton's method.
constexpr float inverse_sqrt(int n) {
    double root = n;
    for (int i = 0; i < 32; i++) { root = (root + n / root) / 2; }
    return (float)(1 / root);
}

// Casts two floats to 16 bit, rounded to nearest, in one register: x in the lower half.
__device__ inline uint32_t cvt_rn_x2(float x, float y) {
    __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<uint32_t*>(&v);
}
// The two halves of v as floats, the lower one first: one instruction each; __bfloat1622float2() extracts the halves first
__device__ inline float2 float2_of(uint32_t v) { return {__uint_as_float(v << 16), __uint_as_float(v & 0xffff0000u)}; }
// x rounded to 16 bit and cast back: one instruction, since bf16 is the upper half of a float.
__device__ inline float rounded_to_16_bit(float x) { return __uint_as_float(cvt_rn_x2(0.0f, x)); }
// sum + x.lo y.lo + x.hi y.hi, in fp32.
__device__ inline float dot_x2(uint32_t x, uint32_t y, float sum) {
    float2 u = float2_of(x), v = float2_of(y);
    return fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
}

} // namespace mma

#endif
