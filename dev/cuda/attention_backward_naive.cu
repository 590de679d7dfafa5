/*
The gradients by their definition: one thread for each element, with P and dS materialised as T×T tensors.

    P_ij  = exp(s_ij - m_i) / l_i         dv_j = sum_i P_ij dO_i
    dP_ij = dO_i.v_j                      dq_i = sum_j dS_ij k_j / sqrt(HS)
    dS_ij = P_ij (dP_ij - D_i)            dk_j = sum_i dS_ij q_i / sqrt(HS)         D_i = sum_j P_ij dP_ij

Slow, obvious, correct, deterministic; 8 B NH T^2 bytes of scratch.
*/
#include "attention/attention.h"

namespace naive {

// The first key that query i of batch row b sees. starts (B,T), or nullptr
__device__ inline int first_key(const int* starts, int b, int i, int T) {
    return starts ? starts[(int64_t)b * T + i] : 0;
}

// One thread for each (b,h,i,j) where query i sees key j: P_ij and dP_ij. P and dP are (B,NH,T,T).
__global__ void backward_weights(float* P, float* dP, const floatX* dout, const floatX* qkv, const float* l,
                                 const float* m, const int* starts, int B, int T, int NH, int HS) {
    const int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int j = (int)(n % T), i = (int)(n / T % T), h = (int)(n / T / T % NH);
    const int64_t row = n / T; // of (B,NH,T)
    const int b = (int)(row / T / NH);
    if (b >= B || j > i || j < first_key(starts, b, i, T)) { return; }
    const int64_t token = (int64_t)3 * NH * HS;
    const floatX* q = qkv + qkv_offset(b, 0, h, T, NH, HS) + i * token;
    const floatX* k = qkv + qkv_offset(b, 1, h, T, NH, HS) + j * token;
    const floatX* v = qkv + qkv_offset(b, 2, h, T, NH, HS) + j * token;
    const floatX* dO = dout + out_offset(b, h, T, NH, HS) + (int64_t)i * NH * HS;
    float score = 0, dot = 0;
    for (int d = 0; d < HS; d++) {
        score += (float)q[d] * (float)k[d];
        dot += (float)dO[d] * (float)v[d];
    }
    P[n] = expf(score * rsqrtf((float)HS) - m[row]) / l[row];
    dP[n] = dot;
}

// One thread for each row (b,h,i): dP becomes dS.
__global__ void backward_softmax(float* dP, const float* P, const int* starts, int64_t rows, int T, int NH) {
    const int64_t row = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (row >= rows) { return; }
    const int i = (int)(row % T), first = first_key(starts, (int)(row / T / NH), i, T);
    float D = 0;
    for (int j = first; j <= i; j++) { D += P[row * T + j] * dP[row * T + j]; }
    for (int j = first; j <= i; j++) { dP[row * T + j] = P[row * T + j] * (dP[row * T + j] - D); }
}

// One thread for each (b,t,h,d): dq, dk and dv.
__global__ void backward_gradients(floatX* dqkv, const floatX* dout, const floatX* qkv, const float* P, const float* dS,
                                   const int* starts, int B, int T, int NH, int HS) {
    const int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    const int d = (int)(n % HS), h = (int)(n / HS % NH);
    const int64_t bt = n / HS / NH;
    const int t = (int)(bt % T), b = (int)(bt / T);
    if (b >= B) { return; }
    const int64_t token = (int64_t)3 * NH * HS;
    const int64_t q = qkv_offset(b, 0, h, T, NH, HS) + d, k = q + NH * HS, v = k + NH * HS;
    const floatX* dO = dout + out_offset(b, h, T, NH, HS) + d;
    const float* P_head = P + ((int64_t)b * NH + h) * T * T;
    const float* dS_head = dS + ((int64_t)b * NH + h) * T * T;
    const float scale = rsqrtf((float)HS);
    float dq = 0, dk = 0, dv = 0;
    for (int j = first_key(starts, b, t, T); j <= t; j++) {
        dq += dS_head[(int64_t)t * T + j] * (float)qkv[k + j * token];
    }
    for (int i = t; i < T && first_key(starts, b, i, T) <= t; i++) {
        dk += dS_head[(int64_t)i * T + t] * (float)qkv[q + i * token];
        dv += P_head[(int64_t)i * T + t] * (float)dO[(int64_t)i * NH * HS];
    }
    dqkv[q + t * token] = (floatX)(dq * scale);
    dqkv[k + t * token] = (floatX)(dk * scale);
    dqkv[v + t * token] = (floatX)dv;
}

// P and dS
static inline size_t backward_scratch_bytes(int B, int T, int NH, int) {
    return size_mul(size_mul((size_t)B * NH * T, T), 2 * sizeof(float));
}

inline void launch_backward_documents(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX*,
                                      const float* l, const float* m, const int* starts, void* scratch, int B, int T,
                                      int NH, int HS, cudaStream_t stream) {
    const int64_t rows = (int64_t)B * NH * T;
    float *P = (float*)scratch, *dS = P + rows * T;
    auto blocks = [](int64_t threads) { return (unsigned)CEIL_DIV(threads, (int64_t)256); };
    backward_weights<<<blocks(rows * T), 256, 0, stream>>>(P, dS, dout, qkv, l, m, starts, B, T, NH, HS);
    cuda_try(cudaGetLastError());
    backward_softmax<<<blocks(rows), 256, 0, stream>>>(dS, P, starts, rows, T, NH);
    cuda_try(cudaGetLastError());
    backward_gradients<<<blocks(rows * HS), 256, 0, stream>>>(dqkv, dout, qkv, P, dS, starts, B, T, NH, HS);
    cuda_try(cudaGetLastError());
}
inline void launch_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out, const float* l,
                            const float* m, void* scratch, int B, int T, int NH, int HS, cudaStream_t stream) {
    launch_backward_documents(dqkv, dout, qkv, out, l, m, nullptr, scratch, B, T, NH, HS, stream);
}

static constexpr AttentionBackwardConfig backward_configs[] = {
    {"256 threads", 0, 0, launch_backward, backward_scratch_bytes, nullptr, nullptr, launch_backward_documents}};

} // namespace naive

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, naive::backward_configs); }
#endif
