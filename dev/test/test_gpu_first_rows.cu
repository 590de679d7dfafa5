// The forward variants that train in 16 bit, in every configuration that this GPU runs: out of the first 64 rows of a head,
// where it is largest, is off by its own rounding alone, because P is multiplied in two parts there. Needs a GPU.
//
// Rounded to nearest, numbers whose logarithms are spread evenly from a power of two to the next are off by
// sqrt(ln 2 / 18) = .196 of the last place of 1, relative to the root of the sum of their squares. With P in one part out is
// off by .236 to .241; the bound lies between.
#include "dev/cuda/attention.cuh"
#include "dev/cuda/attention_reference.h"
#include "unit.h"

#include <vector>

static const double LAST_PLACE = sizeof(floatX) == 2 && UNIT_ROUNDOFF == 0x1p-11 ? 0x1p-10 : 0x1p-7, BOUND = 0.215;
static const int ROWS = 64;

template <class T> static T* device_array(size_t n) {
    T* p;
    cuda_check(cudaMalloc(&p, n * sizeof(T)));
    return p;
}
template <class T> static std::vector<T> host_copy(const T* p, size_t n) {
    std::vector<T> x(n);
    cuda_check(cudaMemcpy(x.data(), p, n * sizeof(T), cudaMemcpyDeviceToHost));
    return x;
}

// ||out - ref|| / ||ref|| over the first rows of all heads; out (B,T,NH,HS), ref (heads,T,HS)
static double error_of_first_rows(const std::vector<floatX>& out, const std::vector<double>& ref, Shape s) {
    double error2 = 0, ref2 = 0;
    for (int head = 0; head < s.heads(); head++) {
        const int64_t base = out_offset(head / s.NH, head % s.NH, s.T, s.NH, s.HS);
        for (int t = 0; t < ROWS; t++) {
            for (int d = 0; d < s.HS; d++) {
                const double want = ref[((int64_t)head * s.T + t) * s.HS + d];
                const double off = (double)(float)out[base + (int64_t)t * s.NH * s.HS + d] - want;
                error2 += off * off, ref2 += want * want;
            }
        }
    }
    return sqrt(error2 / ref2);
}

static void check_configs(const AttentionForwardVariant& v, Shape s, const floatX* qkv, const std::vector<double>& ref,
                          size_t shared_limit) {
    floatX* out = device_array<floatX>(s.elements());
    float *l = device_array<float>(s.rows()), *m = device_array<float>(s.rows());
    for (size_t n = 0; n < v.num_configs; n++) {
        const AttentionForwardConfig& c = v.configs[n];
        if (c.HS != s.HS || c.shared_bytes > shared_limit) { continue; }
        cuda_check(cudaMemset(out, 0xff, s.elements() * sizeof(floatX)));
        c.launch(out, l, m, qkv, s.B, s.T, s.NH, s.HS, 0);
        check(status_now());
        const double error = error_of_first_rows(host_copy(out, s.elements()), ref, s) / LAST_PLACE;
        if (!CHECK(error <= BOUND)) { printf("%s %s, HS %d: %.3f last places\n", v.name, c.name, s.HS, error); }
    }
    for (void* p : {(void*)out, (void*)l, (void*)m}) { cuda_check(cudaFree(p)); }
}

int main(void) {
    AttentionGpu gpu;
    check(attention_gpu(&gpu));
    for (int HS : {32, 64, 96, 128}) {
        const Shape s = {3, 192, 5, HS};
        floatX *qkv = device_array<floatX>(3 * s.elements()), *dout = device_array<floatX>(s.elements());
        const unsigned blocks = (unsigned)CEIL_DIV(4 * s.elements(), (int64_t)256);
        fill_inputs<<<blocks, 256>>>(qkv, dout, s, s.heads(), ORDINARY, 7);
        Reference r = reference_allocate(s);
        reference_compute(&r, qkv, dout);
        const std::vector<double> ref = host_copy(r.x[OUT], s.elements());
        for (const AttentionForwardVariant& v : attention_forward_variants) {
            if (strcmp(v.name, "wgmma") != 0 || gpu.capability == 90) {
                check_configs(v, s, qkv, ref, gpu.shared_limit);
            }
        }
        reference_free(&r);
        cuda_check(cudaFree(qkv)), cuda_check(cudaFree(dout));
    }
    return unit_end();
}
