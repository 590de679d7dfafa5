/*
FlashAttention backward as first published (Dao et al. 2022, algorithm 4): keys and values in the outer loop, with their
gradients beside them in shared memory; queries in the inner loop, whose dQ is read, added to and written for each block
of keys. P is recomputed from l and m.

Against naive: no T×T tensor. Against flash2: one CTA serves a whole head, which is slow but fixes the order of additions to
dQ, and so every bit. dV_j = sum_i P_ij dO_i sums over all rows of the query block, not over the thread's own row alone.

Br = Bc is the largest number of rows whose tiles fit the shared memory of a CTA on this GPU.
*/
#include "attention/attention.h"
#include "attention/flash1_rows.cuh"

namespace flash1 {

struct BackwardSizes {
    int rows; // Br and Bc
    size_t shared_bytes;
};
// K, V, dK, dV, Q and dO are rows×HS, P and dS rows×rows; rows in shared memory are one float longer.
static inline Status backward_sizes(BackwardSizes* sizes, int HS) {
    int device, limit;
    TRY(cuda_try(cudaGetDevice(&device)));
    TRY(cuda_try(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device)));
    for (int rows = 8;; rows += 8) {
        size_t bytes = (size_t)rows * (6 * (HS + 1) + 2 * (rows + 1)) * sizeof(float);
        if (bytes > (size_t)limit) { return STATUS_OK; }
        *sizes = {rows, bytes};
    }
}

// D_i = dO_i.O_i of every row, a warp for each. D is (B,NH,T).
__global__ void backward_D(float* D, const floatX* dout, const floatX* out, int B, int T, int NH, int HS) {
    const int64_t n = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE; // over (B,NH,T)
    if (n >= (int64_t)B * NH * T) { return; }
    const int t = (int)(n % T), h = (int)(n / T % NH), b = (int)(n / T / NH);
    const int64_t o = out_offset(b, h, T, NH, HS) + (int64_t)t * NH * HS;
    float sum = 0;
    for (int d = threadIdx.x % WARP_SIZE; d < HS; d += WARP_SIZE) { sum += (float)dout[o + d] * (float)out[o + d]; }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP_SIZE == 0) { D[n] = sum; }
}

// dQ is (B,NH,T,HS) in fp32: in 16 bit it would be rounded once for each block of keys.
template <int HS> __global__ void backward_head(floatX* dqkv, float* dQ, const float* D, const floatX* dout,
                                                const floatX* qkv, const float* l, const float* m, int T, int NH,
                                                int rows) {
    extern __shared__ float shared_memory[];
    const int tile = rows * (HS + 1), stride = rows + 1;
    float *K = shared_memory, *V = K + tile, *dK = V + tile, *dV = dK + tile, *Q = dV + tile, *dO = Q + tile;
    float *P = dO + tile, *dS = P + rows * stride;
    const int b = blockIdx.x / NH, h = blockIdx.x % NH;
    const int64_t token = (int64_t)3 * NH * HS, out_token = (int64_t)NH * HS, row0 = (int64_t)blockIdx.x * T;
    const int64_t q = qkv_offset(b, 0, h, T, NH, HS), k = q + NH * HS, v = k + NH * HS;
    const floatX* dO_head = dout + out_offset(b, h, T, NH, HS);
    const float scale = rsqrtf((float)HS);
    l += row0, m += row0, D += row0, dQ += row0 * HS;

    for (int j0 = 0; j0 < T; j0 += rows) { // blocks of keys
        load_rows(K, qkv + k + j0 * token, token, rows, T - j0, HS);
        load_rows(V, qkv + v + j0 * token, token, rows, T - j0, HS);
        for (int n = threadIdx.x; n < tile; n += blockDim.x) { dK[n] = dV[n] = 0; }
        for (int i0 = j0; i0 < T; i0 += rows) { // blocks of queries from the diagonal on
            __syncthreads();                    // the previous Q, dO, P and dS have been read
            load_rows(Q, qkv + q + i0 * token, token, rows, T - i0, HS);
            load_rows(dO, dO_head + i0 * out_token, out_token, rows, T - i0, HS);
            __syncthreads();
            for (int n = threadIdx.x; n < rows * rows; n += blockDim.x) {
                const int r = n / rows, c = n % rows, i = i0 + r;
                float s = 0, dP = 0, p = 0;
                for (int d = 0; d < HS; d++) {
                    s += Q[r * (HS + 1) + d] * K[c * (HS + 1) + d];
                    dP += dO[r * (HS + 1) + d] * V[c * (HS + 1) + d];
                }
                if (i < T && j0 + c <= i) { p = expf(s * scale - m[i]) / l[i]; }
                P[r * stride + c] = p;
                dS[r * stride + c] = i < T ? p * (dP - D[i]) : 0.0f;
            }
            __syncthreads();
            for (int n = threadIdx.x; n < rows * HS; n += blockDim.x) { // dV += P^T dO, dK += dS^T Q
                const int c = n / HS, d = n % HS;
                float dk = 0, dv = 0;
                for (int r = 0; r < rows; r++) {
                    dv += P[r * stride + c] * dO[r * (HS + 1) + d];
                    dk += dS[r * stride + c] * Q[r * (HS + 1) + d];
                }
                dK[c * (HS + 1) + d] += dk;
                dV[c * (HS + 1) + d] += dv;
            }
            for (int n = threadIdx.x; n < min(rows, T - i0) * HS; n += blockDim.x) { // dQ += dS K
                const int r = n / HS, d = n % HS;
                float dq = 0;
                for (int c = 0; c < rows; c++) { dq += dS[r * stride + c] * K[c * (HS + 1) + d]; }
                float* dQ_id = dQ + (int64_t)(i0 + r) * HS + d;
                if (j0 > 0) { dq += *dQ_id; }
                if (i0 == j0) { // the last keys of this row
                    dqkv[q + (i0 + r) * token + d] = (floatX)(scale * dq);
                } else {
                    *dQ_id = dq;
                }
            }
        }
        __syncthreads();
        store_rows(dqkv + k + j0 * token, dK, scale, token, rows, T - j0, HS);
        store_rows(dqkv + v + j0 * token, dV, 1, token, rows, T - j0, HS);
        __syncthreads(); // K, V, dK and dV have been read
    }
}

// dQ and D
static inline size_t backward_scratch_bytes(int B, int T, int NH, int HS) {
    return (size_t)B * NH * T * (HS + 1) * sizeof(float);
}

inline void launch_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out, const float* l,
                            const float* m, void* scratch, int B, int T, int NH, int HS, cudaStream_t stream) {
    const int64_t rows = (int64_t)B * NH * T;
    float *dQ = (float*)scratch, *D = dQ + rows * HS;
    backward_D<<<(unsigned)CEIL_DIV(rows, (int64_t)8), 8 * WARP_SIZE, 0, stream>>>(D, dout, out, B, T, NH, HS);
    cuda_try(cudaGetLastError());
    BackwardSizes sizes = {};
    if (backward_sizes(&sizes, HS) != STATUS_OK) { return; }
    auto kernel = HS == 32   ? backward_head<32>
                  : HS == 64 ? backward_head<64>
                  : HS == 96 ? backward_head<96>
                             : backward_head<128>;
    attention_launch(kernel, B * NH, 1024, sizes.shared_bytes, stream, dqkv, dQ, D, dout, qkv, l, m, T, NH, sizes.rows);
}

static constexpr AttentionBackwardConfig backward_configs[] = {
    {"1024 threads", 0, 0, launch_backward, backward_scratch_bytes}};

} // namespace flash1

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, flash1::backward_configs); }
#endif
