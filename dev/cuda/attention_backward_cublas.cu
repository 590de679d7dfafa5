/*
Unfused attention, backward: five batched GEMMs, with P and dS kept as T×T tensors between them.

Against naive: the library's speed for the GEMMs. Against the fused variants: 12 to 16 bytes of scratch for each of B NH T^2
scores, all of them written and read, and twice the FLOPs, because the library has no causal mask.

    P = exp(Q K^T / sqrt(HS) - m) / l        dP = dO V^T        dS = P (dP - D)        D = rowsum(dO O)
    dV = P^T dO        dQ = dS K / sqrt(HS)        dK = dS^T Q / sqrt(HS)
*/
#include "attention/attention.h"
#include "attention/cublas_batches.cuh"

namespace cublas {

// P = exp(S - m) / l and dS = P (dP - D), zero after the diagonal; a warp for each row. All are (B,NH,T,ld).
__global__ void causal_softmax_backward(floatX* P, floatX* dS, const float* S, const float* dP, const floatX* dout,
                                        const floatX* out, const float* l, const float* m, int B, int T, int NH, int HS,
                                        int ld) {
    const int64_t n = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE; // over (B,NH,T)
    if (n >= (int64_t)B * NH * T) { return; }
    const int i = (int)(n % T), h = (int)(n / T % NH), b = (int)(n / T / NH), lane = threadIdx.x % WARP_SIZE;
    const int64_t o = out_offset(b, h, T, NH, HS) + (int64_t)i * NH * HS;
    float D = 0;
    for (int d = lane; d < HS; d += WARP_SIZE) { D += (float)dout[o + d] * (float)out[o + d]; }
    D = warp_sum(D);
    S += n * ld, dP += n * ld, P += n * ld, dS += n * ld;
    for (int j = lane; j < T; j += WARP_SIZE) {
        const float p = j <= i ? expf(S[j] - m[n]) / l[n] : 0.0f;
        P[j] = (floatX)p;
        dS[j] = (floatX)(j <= i ? p * (dP[j] - D) : 0.0f);
    }
}

// The library's workspace, S, dP, P and dS
static inline size_t backward_scratch_bytes(int B, int T, int NH, int) {
    const size_t scores = size_mul((size_t)B * NH * T, padded(T));
    return size_add(WORKSPACE, size_mul(scores, 2 * (sizeof(float) + sizeof(floatX))));
}

inline void launch_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out, const float* l,
                            const float* m, void* scratch, int B, int T, int NH, int HS, cudaStream_t stream) {
    const int64_t ld = padded(T), head = T * ld, rows = (int64_t)B * NH * T;
    const int token = 3 * NH * HS, out_token = NH * HS;
    const float scale = 1 / sqrtf((float)HS);
    float *S = (float*)((char*)scratch + WORKSPACE), *dP = S + rows * ld;
    floatX *P = (floatX*)(dP + rows * ld), *dS = P + rows * ld;
    cublasHandle_t handle = handle_on(stream, scratch);
    for (int b = 0; b < B; b++) {
        const floatX *q = qkv + qkv_offset(b, 0, 0, T, NH, HS), *k = q + NH * HS, *v = k + NH * HS;
        const floatX* dO = dout + out_offset(b, 0, T, NH, HS);
        multiply_abt(handle, {S + b * NH * head, ld, head}, {q, token, HS}, {k, token, HS}, scale, T, NH, HS);
        multiply_abt(handle, {dP + b * NH * head, ld, head}, {dO, out_token, HS}, {v, token, HS}, 1, T, NH, HS);
    }
    causal_softmax_backward<<<(unsigned)CEIL_DIV(rows, (int64_t)8), 8 * WARP_SIZE, 0, stream>>>(
        P, dS, S, dP, dout, out, l, m, B, T, NH, HS, (int)ld);
    cuda_try(cudaGetLastError());
    for (int b = 0; b < B; b++) {
        const floatX *q = qkv + qkv_offset(b, 0, 0, T, NH, HS), *k = q + NH * HS;
        const floatX* dO = dout + out_offset(b, 0, T, NH, HS);
        floatX *dq = dqkv + qkv_offset(b, 0, 0, T, NH, HS), *dk = dq + NH * HS, *dv = dk + NH * HS;
        const Matrices<const floatX> P_b = {P + b * NH * head, ld, head}, dS_b = {dS + b * NH * head, ld, head};
        multiply_ab(handle, {dv, token, HS}, P_b, true, {dO, out_token, HS}, 1, T, NH, HS);
        multiply_ab(handle, {dq, token, HS}, dS_b, false, {k, token, HS}, scale, T, NH, HS);
        multiply_ab(handle, {dk, token, HS}, dS_b, true, {q, token, HS}, scale, T, NH, HS);
    }
}

static constexpr AttentionBackwardConfig backward_configs[] = {
    {"library", 0, 0, launch_backward, backward_scratch_bytes}};

} // namespace cublas

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, cublas::backward_configs); }
#endif
