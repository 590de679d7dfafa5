/*
One thread for each query row. Slow, obvious, correct: everything else is measured against it.

A first pass over the keys finds the row's maximum, a second one sums exp(s_j - m) and exp(s_j - m) v_j. Each thread holds its
output row; keys and values are read from global memory, one row at a time, the same row in all lanes of a warp.
*/
#include "attention/attention.h"

namespace naive {

template <int HS> __global__ void forward_rows(floatX* out, float* l, float* m, const floatX* qkv, const int* starts,
                                               int B, int T, int NH) {
    const int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; // over (B,NH,T)
    if (n >= (int64_t)B * NH * T) { return; }
    const int t = (int)(n % T), h = (int)(n / T % NH), b = (int)(n / T / NH);
    const int first = starts ? starts[(int64_t)b * T + t] : 0;
    const int64_t token = (int64_t)3 * NH * HS; // elements from a token to the next
    const floatX* q = qkv + qkv_offset(b, 0, h, T, NH, HS) + t * token;
    const floatX* k = qkv + qkv_offset(b, 1, h, T, NH, HS);
    const floatX* v = qkv + qkv_offset(b, 2, h, T, NH, HS);

    auto score = [&](int j) { // q.k_j / sqrt(HS)
        float sum = 0;
        for (int d = 0; d < HS; d++) { sum += (float)q[d] * (float)k[j * token + d]; }
        return sum * rsqrtf((float)HS);
    };
    float maximum = -INFINITY;
    for (int j = first; j <= t; j++) { maximum = fmaxf(maximum, score(j)); }
    float sum = 0, o[HS] = {};
    for (int j = first; j <= t; j++) {
        float weight = expf(score(j) - maximum);
        sum += weight;
        for (int d = 0; d < HS; d++) { o[d] += weight * (float)v[j * token + d]; }
    }
    floatX* out_row = out + out_offset(b, h, T, NH, HS) + (int64_t)t * NH * HS;
    for (int d = 0; d < HS; d++) { out_row[d] = (floatX)(o[d] / sum); }
    m[n] = maximum;
    l[n] = sum;
}

inline void launch_forward_documents(floatX* out, float* l, float* m, const floatX* qkv, const int* starts, int B,
                                     int T, int NH, int HS, cudaStream_t stream) {
    auto kernel = HS == 32   ? forward_rows<32>
                  : HS == 64 ? forward_rows<64>
                  : HS == 96 ? forward_rows<96>
                             : forward_rows<128>;
    const unsigned blocks = (unsigned)CEIL_DIV((int64_t)B * NH * T, (int64_t)128);
    kernel<<<blocks, 128, 0, stream>>>(out, l, m, qkv, starts, B, T, NH);
    cuda_try(cudaGetLastError());
}
inline void launch_forward(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                           cudaStream_t stream) {
    launch_forward_documents(out, l, m, qkv, nullptr, B, T, NH, HS, stream);
}

static constexpr AttentionForwardConfig forward_configs[] = {
    {"128 threads", 0, 0, launch_forward, nullptr, nullptr, launch_forward_documents}};

} // namespace naive

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, naive::forward_configs); }
#endif
