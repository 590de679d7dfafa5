// decode.cuh as a program generates with it: a CUDA graph, captured once, is replayed while the sequences of a batch grow, one
// token a replay, from lengths on both sides of every chunk's end; one sequence takes no part, one stops on the way. After each
// replay every row is held against fp64 on the host, and against the bits of the same sequence decoded alone with another
// max_length. Needs a GPU.
//
// The bound is decode/reference.h's: ||out - ref||^2 <= 4 (c^2 (sum_j P_j^2 |v_j|^2 + |ref|^2) + u^2 |ref|^2).
#include "dev/cuda/decode/decode.cuh"
#include "dev/test/fixtures/unit.h"

#include <vector>

static const double ROUNDOFF = sizeof(floatX) == 4 ? 0x1p-24 : 0x1p-9, SUM_ROUNDOFF = 0x1p-23;

// Numbers in [-2,2), exact in the training precision
static unsigned seed = 1;
static floatX number() {
    seed = seed * 1664525u + 1013904223u;
    return (floatX)((float)(seed >> 8) / 4194304.0f - 2.0f);
}
static double value(floatX x) { return (double)(float)x; }

template <class T> static T* device_copy(const std::vector<T>& x) {
    T* p;
    cuda_check(cudaMalloc(&p, x.size() * sizeof(T)));
    cuda_check(cudaMemcpy(p, x.data(), x.size() * sizeof(T), cudaMemcpyHostToDevice));
    return p;
}
template <class T> static std::vector<T> host_copy(const T* p, size_t n) {
    std::vector<T> x(n);
    cuda_check(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return x;
}

__global__ void grow(int* lengths, int B) {
    const int b = threadIdx.x;
    if (b < B && lengths[b] >= 0) { lengths[b]++; }
}

// A batch on the GPU, and the same on the host
struct Batch {
    int B, T, NH, HS;
    std::vector<int> lengths;
    std::vector<floatX> k, v, qkv; // (B,NH,T,HS) twice, (B,3,NH,HS)
    floatX *gpu_out, *gpu_k, *gpu_v, *gpu_qkv, *alone_out;
    int* gpu_lengths;
    void *scratch, *alone_scratch;

    Batch(int T, int NH, int HS, std::vector<int> lengths)
        : B((int)lengths.size()), T(T), NH(NH), HS(HS), lengths(lengths) {
        const size_t cache = (size_t)B * NH * T * HS, rows = (size_t)B * NH * HS;
        k.resize(cache), v.resize(cache), qkv.resize(3 * rows);
        for (std::vector<floatX>* x : {&k, &v}) { // NaN behind what stands there
            memset((void*)x->data(), 0xff, cache * sizeof(floatX));
            for (size_t n = 0; n < cache; n++) {
                if ((int)(n / HS % T) < lengths[n / HS / T / NH]) { (*x)[n] = number(); }
            }
        }
        gpu_k = device_copy(k), gpu_v = device_copy(v), gpu_qkv = device_copy(qkv), gpu_lengths = device_copy(lengths);
        gpu_out = device_copy(std::vector<floatX>(rows)), alone_out = device_copy(std::vector<floatX>(NH * HS));
        scratch = device_copy(std::vector<char>(attention_decode_scratch_bytes(B, T, NH, HS)));
        alone_scratch = device_copy(std::vector<char>(attention_decode_scratch_bytes(1, T, NH, HS)));
    }
    ~Batch() {
        for (void* p : {(void*)gpu_out, (void*)gpu_k, (void*)gpu_v, (void*)gpu_qkv, (void*)alone_out,
                        (void*)gpu_lengths, scratch, alone_scratch}) {
            cudaFree(p);
        }
    }
    Batch(const Batch&) = delete;

    // New tokens, in the host's caches too; outputs of NaN
    void next_tokens() {
        for (floatX& x : qkv) { x = number(); }
        for (int b = 0; b < B; b++) {
            for (int h = 0; h < NH && lengths[b] >= 0; h++) {
                const size_t row = cache_offset(b, h, T, NH, HS) + (size_t)lengths[b] * HS;
                memcpy(&k[row], &qkv[new_token_offset(b, 1, h, NH, HS)], HS * sizeof(floatX));
                memcpy(&v[row], &qkv[new_token_offset(b, 2, h, NH, HS)], HS * sizeof(floatX));
            }
        }
        cuda_check(cudaMemcpy(gpu_qkv, qkv.data(), qkv.size() * sizeof(floatX), cudaMemcpyHostToDevice));
        cuda_check(cudaMemset(gpu_out, 0xff, (size_t)B * NH * HS * sizeof(floatX)));
    }
    // Whether row (b,h) of out is right, or NaN where the sequence takes no part
    bool row_is_right(const floatX* out, int b, int h) const {
        if (lengths[b] < 0) {
            for (int d = 0; d < HS; d++) {
                if (!isnan(value(out[d]))) { return false; }
            }
            return true;
        }
        const floatX *q = &qkv[new_token_offset(b, 0, h, NH, HS)], *K = &k[cache_offset(b, h, T, NH, HS)],
                     *V = &v[cache_offset(b, h, T, NH, HS)];
        const int keys = lengths[b] + 1;
        std::vector<double> s(keys), reference(HS);
        double maximum = -INFINITY, magnitude = 0, l = 0, P2v2 = 0, error2 = 0, reference2 = 0;
        for (int j = 0; j < keys; j++) {
            double terms = 0;
            for (int d = 0; d < HS; d++) {
                const double term = value(q[d]) * value(K[j * HS + d]) / sqrt(HS);
                s[j] += term, terms += fabs(term);
            }
            maximum = fmax(maximum, s[j]), magnitude = fmax(magnitude, terms);
        }
        for (int j = 0; j < keys; j++) { l += exp(s[j] - maximum); }
        for (int j = 0; j < keys; j++) {
            const double P = exp(s[j] - maximum) / l;
            for (int d = 0; d < HS; d++) {
                reference[d] += P * value(V[j * HS + d]);
                P2v2 += P * P * value(V[j * HS + d]) * value(V[j * HS + d]);
            }
        }
        for (int d = 0; d < HS; d++) {
            error2 += (value(out[d]) - reference[d]) * (value(out[d]) - reference[d]);
            reference2 += reference[d] * reference[d];
        }
        const double score = SUM_ROUNDOFF * (sqrt(HS) + 4) * magnitude;
        const double c2 = SUM_ROUNDOFF * SUM_ROUNDOFF * (keys + HS) + score * score;
        return error2 <= 4 * (c2 * (P2v2 + reference2) + ROUNDOFF * ROUNDOFF * reference2);
    }
    // Sequence b alone: B = 1, the least max_length, on its own part of the caches as they are now
    std::vector<floatX> alone(int b) {
        const int64_t cache = cache_offset(b, 0, T, NH, HS);
        cuda_check(cudaMemset(alone_out, 0xff, NH * HS * sizeof(floatX)));
        attention_decode(alone_out, gpu_k + cache, gpu_v + cache, gpu_qkv + new_token_offset(b, 0, 0, NH, HS),
                         gpu_lengths + b, alone_scratch, 1, T, NH, HS, lengths[b] + 1, 0);
        cuda_check(cudaDeviceSynchronize());
        return host_copy(alone_out, (size_t)NH * HS);
    }
};

static bool same_bits(const std::vector<floatX>& a, const std::vector<floatX>& b) {
    return a.size() == b.size() && memcmp(a.data(), b.data(), a.size() * sizeof(floatX)) == 0;
}

static void test_growing(int HS, int chunk) {
    const int NH = 2, steps = 5, stop_at = 3;
    Batch batch(4 * chunk + 8, NH, HS, {0, chunk - 3, -1, 2 * chunk - 2, 4 * chunk, chunk - 1});
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replayed;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    // relaxed: a kernel's first launch may load it
    cuda_check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed));
    attention_decode(batch.gpu_out, batch.gpu_k, batch.gpu_v, batch.gpu_qkv, batch.gpu_lengths, batch.scratch, batch.B,
                     batch.T, NH, HS, batch.T, stream);
    cuda_check(cudaStreamEndCapture(stream, &graph));
    cuda_check(cudaGraphInstantiate(&replayed, graph, 0));
    CHECK(status_now() == STATUS_OK);
    for (int step = 0; step < steps; step++) {
        if (step == stop_at) { // sequence 3 stops
            batch.lengths[3] = -1;
            cuda_check(cudaMemcpy(batch.gpu_lengths + 3, &batch.lengths[3], sizeof(int), cudaMemcpyHostToDevice));
        }
        batch.next_tokens();
        cuda_check(cudaDeviceSynchronize());
        cuda_check(cudaGraphLaunch(replayed, stream));
        cuda_check(cudaStreamSynchronize(stream));
        const std::vector<floatX> out = host_copy(batch.gpu_out, (size_t)batch.B * NH * HS);
        for (int b = 0; b < batch.B; b++) {
            const std::vector<floatX> rows(out.begin() + b * NH * HS, out.begin() + (b + 1) * NH * HS);
            bool right = true;
            for (int h = 0; h < NH; h++) { right &= batch.row_is_right(&rows[h * HS], b, h); }
            if (!CHECK(right)) { printf("    HS %d, step %d, sequence %d of %d\n", HS, step, b, batch.lengths[b]); }
            if (batch.lengths[b] >= 0 && !CHECK(same_bits(rows, batch.alone(b)))) {
                printf("    HS %d, step %d, sequence %d of %d, alone\n", HS, step, b, batch.lengths[b]);
            }
        }
        CHECK(same_bits(host_copy(batch.gpu_k, batch.k.size()), batch.k));
        CHECK(same_bits(host_copy(batch.gpu_v, batch.v.size()), batch.v));
        grow<<<1, 32>>>(batch.gpu_lengths, batch.B);
        for (int& length : batch.lengths) { length += length >= 0; }
        cuda_check(cudaDeviceSynchronize());
    }
    CHECK(host_copy(batch.gpu_lengths, batch.B) == batch.lengths);
    cuda_check(cudaGraphExecDestroy(replayed));
    cuda_check(cudaGraphDestroy(graph));
    cuda_check(cudaStreamDestroy(stream));
}

int main(void) {
    for (int HS : {32, 64, 96, 128}) {
        for (int chunk : {64, 256, 512}) {
            test_growing(HS, chunk);
        } // of every head size and precision, one of them or a part
    }
    return unit_end();
}
