/*
A fragment of a linear layer's output in decoding: 16 rows and 8 columns, of which a lane has rows r and r + 8, columns c and
c + 1, with r = lane / 4, c = lane % 4 * 2, as MMA accumulators do. Of decode/warpgroup_matmul.cuh.
*/
#ifndef LLMC_DECODE_FRAGMENT_CUH
#define LLMC_DECODE_FRAGMENT_CUH

#include "matmul.cuh"

#if !defined(PRECISION_FP32)

struct DecodeFragment {
    int row, o; // of the lane's first element, in out
    uint32_t bias, old[2], positions[2];

    __device__ bool valid(const DecodeLinear& p, int h) const { return row + 8 * h < p.M && o < p.OC; }
    __device__ floatX* out(const DecodeLinear& p, int h) const { return p.out + (size_t)(row + 8 * h) * p.stride + o; }
    __device__ void load_bias(const DecodeLinear& p) {
        bias = ld_global_cg_if(p.bias != NULL && valid(p, 0), p.bias + o);
    }
    // What earlier kernels write
    __device__ void load_positions(const DecodeLinear& p) {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            positions[h] = ld_global_cg_if(p.positions != NULL && row + 8 * h < p.M, p.positions + row + 8 * h);
        }
    }
    __device__ void load_old(const DecodeLinear& p, DecodeEpilogue epilogue) {
#pragma unroll
        for (int h = 0; h < 2; h++) { old[h] = ld_global_cg_if(epilogue == DECODE_RESIDUAL && valid(p, h), out(p, h)); }
    }
    // z: the layer's output of both rows, rounded. Rounds again where the training's forward pass does; by all lanes of a warp
    __device__ void store(const DecodeLinear& p, DecodeEpilogue epilogue, uint32_t (&z)[2]) const {
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float2 y = mma::float2_of(z[h]);
            if (epilogue == DECODE_GELU) {
                z[h] = mma::cvt_rn_x2(gelu(y.x, gelu_sigma(y.x)), gelu(y.y, gelu_sigma(y.y)));
            }
            if (epilogue == DECODE_RESIDUAL) {
                const float2 before = mma::float2_of(old[h]);
                z[h] = mma::cvt_rn_x2(before.x + y.x, before.y + y.y);
            }
            const bool write = valid(p, h) && (int)positions[h] >= 0;
            if (write) { *reinterpret_cast<uint32_t*>(out(p, h)) = z[h]; }
            if (epilogue == DECODE_RESIDUAL && p.out_moments != NULL) {
                decode_store_moments(p.out_moments + ((size_t)(row + 8 * h) * p.OC + o) / x128::size, z[h], write);
            }
        }
    }
    // sum: without the bias
    __device__ void store_sum(const DecodeLinear& p, DecodeEpilogue epilogue, float4 sum) const {
        const float2 b = mma::float2_of(bias);
        uint32_t z[2] = {mma::cvt_rn_x2(sum.x + b.x, sum.y + b.y), mma::cvt_rn_x2(sum.z + b.x, sum.w + b.y)};
        store(p, epilogue, z);
    }
};

// The sum of N fragments that lie `step` bytes apart, in order; all loads come before the first addition
template <int N> __device__ inline float4 fragment_sum(const char* from, int step) {
    float4 x[N];
#pragma unroll
    for (int i = 0; i < N; i++) { x[i] = *reinterpret_cast<const float4*>(from + i * step); }
#pragma unroll
    for (int i = 1; i < N; i++) { x[0].x += x[i].x, x[0].y += x[i].y, x[0].z += x[i].z, x[0].w += x[i].w; }
    return x[0];
}
#endif

#endif
