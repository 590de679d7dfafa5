/*
FlashAttention-2 backward on CUDA cores (Dao 2023, algorithm 2): key blocks in parallel for dK and dV; P is recomputed from the
scores, l and m; nothing of size T×T is kept.

Against flash1: CTAs run in parallel within a head and share no gradient. FlashAttention-2 as published adds dQ by atomics from
every key block, in an order, and so to bits, that change from run to run; here a second kernel owns query blocks and recomputes
P for dQ: 7 matrix multiplications instead of 5, on scores that are in registers, and the same bits every time.

    L_i = m_i + log(l_i)        P_ij = exp(s_ij - L_i)        dS_ij = P_ij (dO_i.v_j - D_i)        D_i = dO_i.O_i
    dq_i = sum_j dS_ij k_j / sqrt(HS)        dk_j = sum_i dS_ij q_i / sqrt(HS)        dv_j = sum_i P_ij dO_i
*/
#include "attention/attention.h"
#include "attention/register_tiles.cuh"

namespace flash2 {

// What backward needs of a row: {L_i log2(e), D_i}. (B,NH,T) of them are the scratch.
typedef float2 RowTerms;

// A CTA owns `own` rows (queries for dQ, keys for dK and dV) and iterates over the others, `step` rows at a time.
template <int HS_, int TM_, int TN_, bool DOCUMENTS = false> struct BackwardTiles {
    typedef BackwardTiles<HS_, TM_, TN_, true> WithDocuments;
    static constexpr bool documents = DOCUMENTS; // rows have `starts`
    static constexpr int HS = HS_, TM = TM_, TN = TN_, own = 4 * TM * WARPS, step = 8 * TN;
    static constexpr int stride = operand_stride(HS);
    struct Shared {
        // A, B: of the owned rows, Q and dO or K and V; X, Y: of the step's rows, K and V or Q and dO
        float A[own * stride], B[own * stride], X
        [step * stride], Y[step * stride];
        float E[own * exchange_stride(step)]; // P or dS
        RowTerms terms[step];                 // of the step's queries
    };
};

// S <- P and G <- dS, elementwise, from scores S = q.k and G = dP = dO.v; both become zero where the query does not see
// the key.
__device__ inline void weight_and_gradient(float& S, float& G, RowTerms row, float exponent, bool sees) {
    S = !sees ? 0.0f : ex2_approx_ftz(fmaf(S, exponent, -row.x));
    G = S * (G - row.y);
}

// Row terms of the CTA's own queries, into scratch: the warps take the rows round-robin.
template <int HS, int ROWS> __device__ inline void compute_row_terms(RowTerms* terms, const floatX* dO, const floatX* O,
                                                                     const float* l, const float* m, int64_t stride,
                                                                     int limit) {
    const int lane = threadIdx.x % WARP_SIZE;
    for (int row = threadIdx.x / WARP_SIZE; row < min(ROWS, limit); row += WARPS) {
        float D = 0;
        for (int d = lane; d < HS; d += WARP_SIZE) { D += (float)dO[row * stride + d] * (float)O[row * stride + d]; }
        D = warp_sum(D);
        if (lane == 0) { terms[row] = {fmaf(m[row], (float)M_LOG2E, log2f(l[row])), D}; }
    }
}

// dQ of a query block, summed over its key blocks, and the row terms for the kernel that follows.
template <class C> __global__ void __launch_bounds__(THREADS, 2)
    backward_queries(floatX* dqkv, RowTerms* terms, const floatX* dout, const floatX* qkv, const floatX* out,
                     const float* l, const float* m, const int* starts, int B, int T, int NH) {
    constexpr int HS = C::HS, TM = C::TM, TN = C::TN, Br = C::own, Bc = C::step;
    extern __shared__ __align__(16) char shared_memory[];
    typename C::Shared& tile = *reinterpret_cast<typename C::Shared*>(shared_memory);

    const int heads = B * NH, head = blockIdx.x % heads, b = head / NH, h = head % NH;
    const int i0 = (gridDim.x / heads - 1 - blockIdx.x / heads) * Br; // the longest rows first
    const int token = 3 * NH * HS, out_token = NH * HS;               // elements from a token to the next
    const int64_t row0 = (int64_t)head * T + i0;
    const int64_t q = qkv_offset(b, 0, h, T, NH, HS) + (int64_t)i0 * token,
                  o = out_offset(b, h, T, NH, HS) + (int64_t)i0 * out_token;
    const floatX* k = qkv + qkv_offset(b, 1, h, T, NH, HS);
    const floatX* v = qkv + qkv_offset(b, 2, h, T, NH, HS);
    const float scale = rsqrtf((float)HS), exponent = scale * (float)M_LOG2E;

    const ThreadPosition at;
    const int warp_row = at.warp * 4 * TM, first = i0 + warp_row, last = first + 4 * TM - 1; // the warp's queries
    float* dS = tile.E + warp_row * exchange_stride(Bc);
    int begin = 0, first_start = 0; // the CTA's first key tile; where the document of the warp's first query begins
    int start[TM] = {};             // those of the thread's queries
    if constexpr (C::documents) {
        starts += (int64_t)b * T;
        begin = starts[i0] / Bc * Bc, first_start = starts[min(first, T - 1)];
#pragma unroll
        for (int r = 0; r < TM; r++) { start[r] = starts[min(first + at.row + 4 * r, T - 1)]; }
    }

    load_tile<Br, HS>(tile.A, qkv + q, token, T - i0);
    load_tile<Br, HS>(tile.B, dout + o, out_token, T - i0);
    load_tile<Bc, HS>(tile.X, k + (int64_t)begin * token, token, T - begin);
    compute_row_terms<HS, Br>(terms + row0, dout + o, out + o, l + row0, m + row0, out_token, T - i0);
    __syncthreads();
    RowTerms row[TM]; // rows from T on repeat row T - 1 and are not stored
#pragma unroll
    for (int r = 0; r < TM; r++) { row[r] = terms[row0 + min(warp_row + at.row + 4 * r, T - 1 - i0)]; }

    float dQ[TM][HS / 8] = {};
    for (int j0 = begin; j0 < min(i0 + Br, T); j0 += Bc) {
        load_tile<Bc, HS>(tile.Y, v + (int64_t)j0 * token, token, T - j0);
        finish_loads();
        __syncthreads(); // K and V have arrived
        if (j0 <= last && j0 + Bc > first_start) {
            float S[TM][TN] = {}, G[TM][TN] = {};
            multiply_abt<HS>(S, tile.A + warp_row * C::stride, tile.X, at); // S = Q K^T
            multiply_abt<HS>(G, tile.B + warp_row * C::stride, tile.Y, at); // G = dO V^T
#pragma unroll
            for (int r = 0; r < TM; r++) {
#pragma unroll
                for (int c = 0; c < TN; c++) {
                    const int j = j0 + at.col + 8 * c;
                    const bool sees = first + at.row + 4 * r - j >= 0 && (!C::documents || j >= start[r]);
                    weight_and_gradient(S[r][c], G[r][c], row[r], exponent, sees);
                }
            }
            exchange(dS, G, at);
            __syncwarp();
            multiply_ab<Bc>(dQ, dS, tile.X, at); // dQ += dS K
        }
        __syncthreads(); // K and V have been read
        if (j0 + Bc < min(i0 + Br, T)) {
            load_tile<Bc, HS>(tile.X, k + (int64_t)(j0 + Bc) * token, token, T - j0 - Bc);
        }
    }
    store_tile(
        dqkv + q + warp_row * token, token, dQ, [=](int) { return scale; }, at, T - first);
}

// dK and dV of a key block, summed over the query blocks from its diagonal on. Scores are transposed: rows are keys.
template <class C> __global__ void __launch_bounds__(THREADS, 2)
    backward_keys(floatX* dqkv, const RowTerms* terms, const floatX* dout, const floatX* qkv, const int* starts, int B,
                  int T, int NH) {
    constexpr int HS = C::HS, TM = C::TM, TN = C::TN, Bc = C::own, Br = C::step;
    extern __shared__ __align__(16) char shared_memory[];
    typename C::Shared& tile = *reinterpret_cast<typename C::Shared*>(shared_memory);

    const int heads = B * NH, head = blockIdx.x % heads, b = head / NH, h = head % NH;
    const int j0 = blockIdx.x / heads * Bc;             // the first keys have the most queries
    const int token = 3 * NH * HS, out_token = NH * HS; // elements from a token to the next
    const int64_t k = qkv_offset(b, 1, h, T, NH, HS) + (int64_t)j0 * token, v = k + NH * HS;
    const floatX* q = qkv + qkv_offset(b, 0, h, T, NH, HS);
    const floatX* dO = dout + out_offset(b, h, T, NH, HS);
    terms += (int64_t)head * T;
    const float scale = rsqrtf((float)HS), exponent = scale * (float)M_LOG2E;

    const ThreadPosition at;
    const int warp_row = at.warp * 4 * TM, first = j0 + warp_row; // the warp's keys
    float* E = tile.E + warp_row * exchange_stride(Br);

    int end = T; // of the queries
    if constexpr (C::documents) {
        starts += (int64_t)b * T;
        end = document_end(starts, T, min(j0 + Bc, T) - 1);
    }
    float dK[TM][HS / 8] = {}, dV[TM][HS / 8] = {};
    load_tile<Bc, HS>(tile.A, qkv + k, token, T - j0);
    load_tile<Bc, HS>(tile.B, qkv + v, token, T - j0);
    for (int i0 = j0 / Br * Br; i0 < end; i0 += Br) {
        load_tile<Br, HS>(tile.X, q + (int64_t)i0 * token, token, T - i0);
        load_tile<Br, HS>(tile.Y, dO + (int64_t)i0 * out_token, out_token, T - i0);
        for (int n = threadIdx.x; n < Br; n += THREADS) { // queries from T on have P = exp(-inf) = 0
            tile.terms[n] = i0 + n < T ? terms[i0 + n] : RowTerms{INFINITY, 0};
        }
        finish_loads();
        __syncthreads(); // Q, dO and the row terms have arrived
        if (first <= i0 + Br - 1) {
            float S[TM][TN] = {}, G[TM][TN] = {};
            multiply_abt<HS>(S, tile.A + warp_row * C::stride, tile.X, at); // S^T = K Q^T
            multiply_abt<HS>(G, tile.B + warp_row * C::stride, tile.Y, at); // G^T = V dO^T
#pragma unroll
            for (int c = 0; c < TN; c++) {
                const RowTerms row = tile.terms[at.col + 8 * c];
                const int i = i0 + at.col + 8 * c, start = C::documents ? starts[min(i, T - 1)] : 0;
#pragma unroll
                for (int r = 0; r < TM; r++) {
                    const int j = first + at.row + 4 * r;
                    const bool sees = i - j >= 0 && (!C::documents || j >= start);
                    weight_and_gradient(S[r][c], G[r][c], row, exponent, sees);
                }
            }
            exchange(E, S, at);
            __syncwarp();
            multiply_ab<Br>(dV, E, tile.Y, at); // dV += P^T dO
            __syncwarp();
            exchange(E, G, at);
            __syncwarp();
            multiply_ab<Br>(dK, E, tile.X, at); // dK += dS^T Q
        }
        __syncthreads(); // Q and dO have been read
    }
    store_tile(
        dqkv + k + warp_row * token, token, dK, [=](int) { return scale; }, at, T - first);
    store_tile(
        dqkv + v + warp_row * token, token, dV, [](int) { return 1.0f; }, at, T - first);
}

static inline size_t backward_scratch_bytes(int B, int T, int NH, int) { return (size_t)B * NH * T * sizeof(RowTerms); }

template <class Q, class K> void launch_backward_kernels(floatX* dqkv, const floatX* dout, const floatX* qkv,
                                                         const floatX* out, const float* l, const float* m,
                                                         const int* starts, void* scratch, int B, int T, int NH, int,
                                                         cudaStream_t stream) {
    RowTerms* terms = (RowTerms*)scratch;
    attention_launch(backward_queries<Q>, B * NH * CEIL_DIV(T, Q::own), THREADS, sizeof(typename Q::Shared), stream,
                     dqkv, terms, dout, qkv, out, l, m, starts, B, T, NH);
    attention_launch(backward_keys<K>, B * NH * CEIL_DIV(T, K::own), THREADS, sizeof(typename K::Shared), stream, dqkv,
                     terms, dout, qkv, starts, B, T, NH);
}
template <class Q, class K> void launch_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                                 const float* l, const float* m, void* scratch, int B, int T, int NH,
                                                 int HS, cudaStream_t stream) {
    launch_backward_kernels<Q, K>(dqkv, dout, qkv, out, l, m, nullptr, scratch, B, T, NH, HS, stream);
}

template <class Q, class K> constexpr AttentionBackwardConfig backward_config(const char* name) {
    return {name,
            Q::HS,
            std::max(sizeof(typename Q::Shared), sizeof(typename K::Shared)),
            launch_backward<Q, K>,
            backward_scratch_bytes,
            nullptr,
            nullptr,
            launch_backward_kernels<typename Q::WithDocuments, typename K::WithDocuments>};
}
// Names are warps, scores of a thread in the kernel of the queries and in that of the keys.
static constexpr AttentionBackwardConfig backward_configs[] = {
    backward_config<BackwardTiles<32, 4, 8>, BackwardTiles<32, 4, 8>>("4 warps 4x8 4x8"),
    backward_config<BackwardTiles<64, 8, 4>, BackwardTiles<64, 4, 8>>("4 warps 8x4 4x8"),
    backward_config<BackwardTiles<96, 4, 4>, BackwardTiles<96, 4, 4>>("4 warps 4x4 4x4"),
    backward_config<BackwardTiles<128, 4, 4>, BackwardTiles<128, 4, 4>>("4 warps 4x4 4x4"),
};

} // namespace flash2

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, flash2::backward_configs); }
#endif
