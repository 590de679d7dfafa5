/*
FlashAttention as first published (Dao et al. 2022, algorithm 1): no T×T matrix in memory. Keys and values in the outer loop,
queries in the inner one; O, l and m of every row are read, rescaled and written again for each block of keys.

Against naive: scores live in shared memory, a tile at a time; each key is read once for a whole tile of queries, and the
softmax is computed online. What flash2 improves: one CTA serves a whole head, so that queries do not run in parallel; O goes
to global memory and back T / Bc times; every multiply-add reads both of its operands from shared memory.

Bc is the largest number of keys, with Br = min(Bc, HS) queries, whose tiles fit the shared memory of a CTA on this GPU: the
paper's M / 4d, less the tile of scores.
*/
#include "attention/attention.h"
#include "attention/flash1_rows.cuh"

namespace flash1 {

struct ForwardSizes {
    int Br, Bc;
    size_t shared_bytes;
};
// Rows of the tiles in shared memory are HS + 1 and Bc + 1 floats long, so that reads down a column have no bank conflicts.
static inline Status forward_sizes(ForwardSizes* sizes, int HS) {
    int device, limit;
    TRY(cuda_try(cudaGetDevice(&device)));
    TRY(cuda_try(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)));
    for (int Bc = 16;; Bc += 16) {
        int Br = Bc < HS ? Bc : HS; // Q is Br×HS, K and V are Bc×HS, S is Br×Bc, and a factor for each row
        size_t bytes = ((size_t)(Br + 2 * Bc) * (HS + 1) + (size_t)Br * (Bc + 1) + Br) * sizeof(float);
        if (bytes > (size_t)limit) { return STATUS_OK; }
        *sizes = {Br, Bc, bytes};
    }
}

// O is `out` in fp32, and (B,T,NH,HS) floats of scratch in 16 bit: a running sum must not be rounded to 16 bit T / Bc
// times.
template <int HS> __global__ void forward_head(floatX* out, float* O, float* l, float* m, const floatX* qkv, int T,
                                               int NH, int Br, int Bc) {
    extern __shared__ float shared_memory[];
    float *Q = shared_memory, *K = Q + Br * (HS + 1), *V = K + Bc * (HS + 1), *S = V + Bc * (HS + 1);
    float* rescale = S + Br * (Bc + 1);
    const int b = blockIdx.x / NH, h = blockIdx.x % NH, lane = threadIdx.x % WARP_SIZE;
    const int64_t token = (int64_t)3 * NH * HS, out_token = (int64_t)NH * HS;
    const floatX* q = qkv + qkv_offset(b, 0, h, T, NH, HS);
    const int64_t o = out_offset(b, h, T, NH, HS);
    const float scale = rsqrtf((float)HS);
    l += (int64_t)blockIdx.x * T, m += (int64_t)blockIdx.x * T;

    for (int j0 = 0; j0 < T; j0 += Bc) { // blocks of keys
        load_rows(K, q + NH * HS + j0 * token, token, Bc, T - j0, HS);
        load_rows(V, q + 2 * NH * HS + j0 * token, token, Bc, T - j0, HS);
        for (int i0 = j0; i0 < T; i0 += Br) { // blocks of queries from the diagonal on
            __syncthreads();                  // the previous Q, S and factors have been read
            load_rows(Q, q + i0 * token, token, Br, T - i0, HS);
            __syncthreads();
            for (int n = threadIdx.x; n < Br * Bc; n += blockDim.x) { // S = Q K^T
                const int r = n / Bc, c = n % Bc;
                float sum = 0;
                for (int d = 0; d < HS; d++) { sum += Q[r * (HS + 1) + d] * K[c * (HS + 1) + d]; }
                S[r * (Bc + 1) + c] = j0 + c <= i0 + r ? sum * scale : -INFINITY;
            }
            __syncthreads();
            // A warp for each row: m_new = max(m, row's maximum), P = exp(S - m_new), l_new = exp(m - m_new) l + sum P.
            // Every row has a key in this block: i >= j0.
            for (int r = threadIdx.x / WARP_SIZE; r < min(Br, T - i0); r += blockDim.x / WARP_SIZE) {
                const float m_old = j0 == 0 ? -INFINITY : m[i0 + r];
                float m_new = m_old, sum = 0;
                for (int c = lane; c < Bc; c += WARP_SIZE) { m_new = fmaxf(m_new, S[r * (Bc + 1) + c]); }
                m_new = warp_max(m_new);
                for (int c = lane; c < Bc; c += WARP_SIZE) {
                    const float p = expf(S[r * (Bc + 1) + c] - m_new);
                    S[r * (Bc + 1) + c] = p;
                    sum += p;
                }
                sum = warp_sum(sum);
                __syncwarp();
                if (lane == 0) {
                    rescale[r] = expf(m_old - m_new);
                    m[i0 + r] = m_new;
                    l[i0 + r] = j0 == 0 ? sum : rescale[r] * l[i0 + r] + sum;
                }
            }
            __syncthreads();
            // O = exp(m - m_new) O + P V, and divided by l after the diagonal
            for (int n = threadIdx.x; n < min(Br, T - i0) * HS; n += blockDim.x) {
                const int r = n / HS, d = n % HS, i = i0 + r;
                float sum = 0;
                for (int c = 0; c < Bc; c++) { sum += S[r * (Bc + 1) + c] * V[c * (HS + 1) + d]; }
                float* O_id = O + o + i * out_token + d;
                if (j0 > 0) { sum += rescale[r] * *O_id; }
                if (i < j0 + Bc) {
                    out[o + i * out_token + d] = (floatX)(sum / l[i]);
                } else {
                    *O_id = sum;
                }
            }
        }
        __syncthreads(); // K and V have been read
    }
}

// O in fp32
inline size_t forward_scratch_bytes(int B, int T, int NH, int HS) { return (size_t)B * T * NH * HS * sizeof(float); }

inline void launch_forward(floatX* out, float* l, float* m, const floatX* qkv, void* scratch, int B, int T, int NH,
                           int HS, cudaStream_t stream) {
    ForwardSizes sizes = {};
    if (forward_sizes(&sizes, HS) != STATUS_OK) { return; }
    auto kernel = HS == 32   ? forward_head<32>
                  : HS == 64 ? forward_head<64>
                  : HS == 96 ? forward_head<96>
                             : forward_head<128>;
    float* O = sizeof(floatX) == sizeof(float) ? (float*)out : (float*)scratch;
    attention_launch(kernel, B * NH, 1024, sizes.shared_bytes, stream, out, O, l, m, qkv, T, NH, sizes.Br, sizes.Bc);
}
// In fp32, where out itself holds O
inline void launch_forward_in_place(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                                    cudaStream_t stream) {
    launch_forward(out, l, m, qkv, nullptr, B, T, NH, HS, stream);
}

static constexpr AttentionForwardConfig forward_configs[] = {
#if defined(PRECISION_FP32)
    {"1024 threads", 0, 0, launch_forward_in_place},
#else
    {"1024 threads", 0, 0, nullptr, launch_forward, forward_scratch_bytes},
#endif
};

} // namespace flash1

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, flash1::forward_configs); }
#endif
