/*
Unfused attention: a batched GEMM for all scores, a causal softmax over them, a batched GEMM with the values.

Against naive: both GEMMs run at the library's speed, on tensor cores in 16 bit, straight from the packed tensor. The cost is
T×T scores in memory, written and read in fp32 and again in the training precision, and twice the FLOPs: the library has no
causal mask.
*/
#include "attention/attention.h"
#include "attention/cublas_batches.cuh"

namespace cublas {

// A warp for each row: P = exp(S - m) / l up to the diagonal, zero after it; l and m. S and P are (B,NH,T,ld).
__global__ void causal_softmax(floatX* P, float* l, float* m, const float* S, int64_t rows, int T, int ld) {
    const int64_t n = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / WARP_SIZE; // over (B,NH,T)
    if (n >= rows) { return; }
    const int i = (int)(n % T), lane = threadIdx.x % WARP_SIZE;
    S += n * ld, P += n * ld;
    float maximum = -INFINITY, sum = 0; // of this lane's keys; lanes above i have none
    for (int j = lane; j <= i; j += WARP_SIZE) {
        const float larger = fmaxf(maximum, S[j]);
        sum = sum * expf(maximum - larger) + expf(S[j] - larger);
        maximum = larger;
    }
    const float row_maximum = warp_max(maximum);
    sum = warp_sum(lane <= i ? sum * expf(maximum - row_maximum) : 0.0f);
    for (int j = lane; j < T; j += WARP_SIZE) { P[j] = (floatX)(j <= i ? expf(S[j] - row_maximum) / sum : 0.0f); }
    if (lane == 0) {
        l[n] = sum;
        m[n] = row_maximum;
    }
}

// The library's workspace, S and P
static inline size_t forward_scratch_bytes(int B, int T, int NH, int) {
    const size_t scores = size_mul((size_t)B * NH * T, padded(T));
    return size_add(WORKSPACE, size_mul(scores, sizeof(float) + sizeof(floatX)));
}

inline void launch_forward(floatX* out, float* l, float* m, const floatX* qkv, void* scratch, int B, int T, int NH,
                           int HS, cudaStream_t stream) {
    const int64_t ld = padded(T), head = T * ld, rows = (int64_t)B * NH * T;
    const int token = 3 * NH * HS;
    float* S = (float*)((char*)scratch + WORKSPACE);
    floatX* P = (floatX*)(S + rows * ld);
    cublasHandle_t handle = handle_on(stream, scratch);
    for (int b = 0; b < B; b++) { // S = Q K^T / sqrt(HS)
        const floatX *q = qkv + qkv_offset(b, 0, 0, T, NH, HS), *k = q + NH * HS;
        multiply_abt(handle, {S + b * NH * head, ld, head}, {q, token, HS}, {k, token, HS}, 1 / sqrtf((float)HS), T, NH,
                     HS);
    }
    causal_softmax<<<(unsigned)CEIL_DIV(rows, (int64_t)8), 8 * WARP_SIZE, 0, stream>>>(P, l, m, S, rows, T, (int)ld);
    cuda_try(cudaGetLastError());
    for (int b = 0; b < B; b++) { // out = P V
        const floatX* v = qkv + qkv_offset(b, 2, 0, T, NH, HS);
        multiply_ab(handle, {out + out_offset(b, 0, T, NH, HS), NH * HS, HS}, {P + b * NH * head, ld, head}, false,
                    {v, token, HS}, 1, T, NH, HS);
    }
}

static constexpr AttentionForwardConfig forward_configs[] = {
    {"library", 0, 0, nullptr, launch_forward, forward_scratch_bytes}};

} // namespace cublas

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, cublas::forward_configs); }
#endif
