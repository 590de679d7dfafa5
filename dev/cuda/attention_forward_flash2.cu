/*
FlashAttention-2 on CUDA cores (Dao 2023, algorithm 1): a CTA owns a block of queries and iterates over the key blocks, so that
queries run in parallel, O, l and m live in registers, and the output is written once.

Against flash1: the loops are swapped, nothing goes back and forth to global memory, and each thread computes a tile of
TM×TN scores from registers instead of one score, so that a 16-byte read from shared memory feeds 10 or more multiply-adds.
Tiles above the diagonal are skipped, by CTA and again by warp; CTAs with the most keys start first.
*/
#include "attention/attention.h"
#include "attention/register_tiles.cuh"

namespace flash2 {

// Br queries by Bc keys; a warp has 4 TM queries, a thread TM×TN scores.
template <int HS_, int TM_, int TN_, bool DOCUMENTS = false> struct ForwardTiles {
    typedef ForwardTiles<HS_, TM_, TN_, true> WithDocuments;
    static constexpr bool documents = DOCUMENTS; // rows have `starts`
    static constexpr int HS = HS_, TM = TM_, TN = TN_, Br = 4 * TM * WARPS, Bc = 8 * TN;
    static constexpr int stride = operand_stride(HS);
    struct Shared {
        float Q[Br * stride], K[Bc * stride], V[Bc * stride], P[Br * exchange_stride(Bc)];
    };
};

// Row statistics of the online softmax, in units of the raw score q.k. With documents a row may see no key of its first tiles:
// m then begins finite, as -inf - -inf is no number, and below all scores of the contract.
template <int TM, bool documents> struct OnlineSoftmax {
    float m[TM], l[TM]; // l: of this thread's columns, summed over the row at the end

    __device__ OnlineSoftmax() {
        for (int r = 0; r < TM; r++) { m[r] = documents ? -1e30f : -INFINITY, l[r] = 0; }
    }
    // S <- exp(scale (S - m)), with exponent = scale log2(e); rescale: the factor by which O must be multiplied.
    // Without documents the first tile of a row holds key 0, so m is finite from then on.
    template <int TN> __device__ void update(float (&S)[TM][TN], float (&rescale)[TM], float exponent) {
#pragma unroll
        for (int r = 0; r < TM; r++) {
            float maximum = S[r][0];
#pragma unroll
            for (int c = 1; c < TN; c++) { maximum = fmaxf(maximum, S[r][c]); }
            maximum = fmaxf(m[r], row_max(maximum));
            const float zero_at = -maximum * exponent;
            rescale[r] = ex2_approx_ftz((m[r] - maximum) * exponent); // exactly 1 if the maximum stays
            m[r] = maximum;
            l[r] *= rescale[r];
#pragma unroll
            for (int c = 0; c < TN; c++) {
                S[r][c] = ex2_approx_ftz(fmaf(S[r][c], exponent, zero_at));
                l[r] += S[r][c];
            }
        }
    }
};

template <class C> __global__ void __launch_bounds__(THREADS, 2)
    forward_blocks(floatX* out, float* l, float* m, const floatX* qkv, const int* starts, int B, int T, int NH) {
    constexpr int HS = C::HS, TM = C::TM, TN = C::TN, Br = C::Br, Bc = C::Bc;
    extern __shared__ __align__(16) char shared_memory[];
    typename C::Shared& tile = *reinterpret_cast<typename C::Shared*>(shared_memory);

    const int heads = B * NH, head = blockIdx.x % heads, b = head / NH, h = head % NH;
    const int i0 = (gridDim.x / heads - 1 - blockIdx.x / heads) * Br; // the longest rows first
    const int token = 3 * NH * HS;                                    // elements from a token to the next
    const floatX* q = qkv + qkv_offset(b, 0, h, T, NH, HS) + (int64_t)i0 * token;
    const floatX* k = qkv + qkv_offset(b, 1, h, T, NH, HS);
    const floatX* v = qkv + qkv_offset(b, 2, h, T, NH, HS);
    const float scale = rsqrtf((float)HS);

    const ThreadPosition at;
    const int warp_row = at.warp * 4 * TM, first = i0 + warp_row, last = first + 4 * TM - 1; // the warp's queries
    float* P = tile.P + warp_row * exchange_stride(Bc);
    // With documents: the CTA's first key tile, and where the documents of the warp's first and last query begin
    int begin = 0, first_start = 0, last_start = 0;
    if constexpr (C::documents) {
        starts += (int64_t)b * T;
        begin = starts[i0] / Bc * Bc, first_start = starts[min(first, T - 1)], last_start = starts[min(last, T - 1)];
    }

    float O[TM][HS / 8] = {};
    OnlineSoftmax<TM, C::documents> softmax;
    load_tile<Br, HS>(tile.Q, q, token, T - i0);
    load_tile<Bc, HS>(tile.K, k + (int64_t)begin * token, token, T - begin);
    for (int j0 = begin; j0 < min(i0 + Br, T); j0 += Bc) {
        finish_loads();
        __syncthreads(); // K has arrived, and V of the previous tile has been read
        load_tile<Bc, HS>(tile.V, v + (int64_t)j0 * token, token, T - j0);
        const bool needed = j0 <= last && j0 + Bc > first_start; // by the warp
        if (needed) {
            float S[TM][TN] = {}, rescale[TM];
            multiply_abt<HS>(S, tile.Q + warp_row * C::stride, tile.K, at); // S = Q K^T
            if (j0 + Bc - 1 > first) {                                      // the diagonal crosses this tile
#pragma unroll
                for (int r = 0; r < TM; r++) {
#pragma unroll
                    for (int c = 0; c < TN; c++) {
                        if (j0 + at.col + 8 * c > first + at.row + 4 * r) { S[r][c] = -INFINITY; }
                    }
                }
            }
            if (C::documents && j0 < last_start) {
#pragma unroll
                for (int r = 0; r < TM; r++) {
                    const int start = starts[min(first + at.row + 4 * r, T - 1)];
#pragma unroll
                    for (int c = 0; c < TN; c++) {
                        if (j0 + at.col + 8 * c < start) { S[r][c] = -INFINITY; }
                    }
                }
            }
            softmax.update(S, rescale, scale * (float)M_LOG2E); // S <- exp(S - m)
#pragma unroll
            for (int r = 0; r < TM; r++) {
#pragma unroll
                for (int d = 0; d < HS / 8; d++) { O[r][d] *= rescale[r]; }
            }
            exchange(P, S, at);
        }
        finish_loads();
        __syncthreads(); // V has arrived, and K has been read
        if (j0 + Bc < min(i0 + Br, T)) {
            load_tile<Bc, HS>(tile.K, k + (int64_t)(j0 + Bc) * token, token, T - j0 - Bc);
        }
        if (needed) { multiply_ab<Bc>(O, P, tile.V, at); } // O += P V
    }

    float inverse[TM];
#pragma unroll
    for (int r = 0; r < TM; r++) {
        const float sum = row_sum(softmax.l[r]);
        const int i = first + at.row + 4 * r;
        inverse[r] = 1.0f / sum;
        if (at.col == 0 && i < T) {
            l[(int64_t)head * T + i] = sum;
            m[(int64_t)head * T + i] = softmax.m[r] * scale;
        }
    }
    floatX* out_rows = out + out_offset(b, h, T, NH, HS) + (int64_t)first * NH * HS;
    store_tile(
        out_rows, (int64_t)NH * HS, O, [&](int r) { return inverse[r]; }, at, T - first);
}

template <class C> void launch_forward_kernel(floatX* out, float* l, float* m, const floatX* qkv, const int* starts,
                                              int B, int T, int NH, int, cudaStream_t stream) {
    attention_launch(forward_blocks<C>, B * NH * CEIL_DIV(T, C::Br), THREADS, sizeof(typename C::Shared), stream, out,
                     l, m, qkv, starts, B, T, NH);
}
template <class C> void launch_forward(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                                       cudaStream_t stream) {
    launch_forward_kernel<C>(out, l, m, qkv, nullptr, B, T, NH, HS, stream);
}

template <class C> constexpr AttentionForwardConfig forward_config(const char* name) {
    return {name,
            C::HS,
            sizeof(typename C::Shared),
            launch_forward<C>,
            nullptr,
            nullptr,
            launch_forward_kernel<typename C::WithDocuments>};
}
// Names are Br x Bc, scores of a thread.
static constexpr AttentionForwardConfig forward_configs[] = {
    forward_config<ForwardTiles<32, 4, 8>>("64x64 4x8"),
    forward_config<ForwardTiles<64, 4, 8>>("64x64 4x8"),
    forward_config<ForwardTiles<96, 8, 4>>("128x32 8x4"),
    forward_config<ForwardTiles<128, 4, 4>>("64x32 4x4"),
};

} // namespace flash2

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, flash2::forward_configs); }
#endif
