/*
One thread block for each head of each sequence, a thread for each channel. Obvious and correct: split is measured against it,
and it serves fp32.

The warps take the keys round-robin, and each sums q.k_j over its lanes. The scores of a block of keys are in shared memory,
from which every thread updates the online softmax of its own channel. The new token is stored first, then read like all others.
*/
#ifndef ATTENTION_DECODE_NAIVE_CU
#define ATTENTION_DECODE_NAIVE_CU

#include "attention_decode.h"

namespace naive {

constexpr int warps = 8;

template <int HS> __global__ void __launch_bounds__(warps* WARP_SIZE)
    decode_head(floatX* out, floatX* k_cache, floatX* v_cache, const floatX* qkv, const int* lengths, int T, int NH,
                int max_length) {
    constexpr int block_keys = 128;
    __shared__ float scores[block_keys];
    const int h = blockIdx.x, b = blockIdx.y, length = lengths[b];
    if (length < 0) { return; }
    assert(length < max_length);
    const int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE;
    const int d = threadIdx.x % HS; // threads from HS on compute what others do
    const floatX* q = qkv + new_token_offset(b, 0, h, NH, HS);
    floatX* k = k_cache + cache_offset(b, h, T, NH, HS);
    floatX* v = v_cache + cache_offset(b, h, T, NH, HS);
    if (threadIdx.x < HS) {
        k[(int64_t)length * HS + d] = qkv[new_token_offset(b, 1, h, NH, HS) + d];
        v[(int64_t)length * HS + d] = qkv[new_token_offset(b, 2, h, NH, HS) + d];
    }
    __syncthreads(); // the block's threads now see the new token

    float m = -INFINITY, l = 0, o = 0;
    for (int j0 = 0; j0 <= length; j0 += block_keys) {
        const int keys = min(block_keys, length + 1 - j0);
        for (int j = warp; j < keys; j += warps) { // s_j = q.k_j / sqrt(HS)
            float sum = 0;
            for (int c = lane; c < HS; c += WARP_SIZE) { sum += (float)q[c] * (float)k[(int64_t)(j0 + j) * HS + c]; }
            sum = warp_sum(sum) * rsqrtf((float)HS);
            if (lane == 0) { scores[j] = sum; }
        }
        __syncthreads();
        float maximum = m;
        for (int j = 0; j < keys; j++) { maximum = fmaxf(maximum, scores[j]); }
        const float rescale = expf(m - maximum);
        m = maximum, l *= rescale, o *= rescale;
        for (int j = 0; j < keys; j++) {
            const float weight = expf(scores[j] - m);
            l += weight;
            o += weight * (float)v[(int64_t)(j0 + j) * HS + d];
        }
        __syncthreads(); // the scores have been read
    }
    if (threadIdx.x < HS) { out[out_offset(b, h, 1, NH, HS) + d] = (floatX)(o / l); }
}

template <int HS> void decode(floatX* out, floatX* k_cache, floatX* v_cache, const floatX* qkv, const int* lengths,
                              void*, int B, int T, int NH, int, int max_length, cudaStream_t stream) {
    decode_head<HS>
        <<<dim3(NH, B), warps * WARP_SIZE, 0, stream>>>(out, k_cache, v_cache, qkv, lengths, T, NH, max_length);
    cuda_try(cudaGetLastError());
}

inline size_t decode_scratch_bytes(int B, int, int NH, int) { return decode_counter_bytes(B, NH); }

template <int HS> constexpr AttentionDecodeConfig decode_config() {
    return {"a block a head", HS, 0, decode<HS>, decode_scratch_bytes};
}
static constexpr AttentionDecodeConfig decode_configs[] = {decode_config<32>(), decode_config<64>(),
                                                           decode_config<96>(), decode_config<128>()};

} // namespace naive

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, naive::decode_configs); }
#endif

#endif
