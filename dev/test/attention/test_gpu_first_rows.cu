// The forward variants that train in 16 bit, in every configuration that this GPU runs: how exact out is in a head's first
// rows, where it is largest and P is multiplied in two parts, and in the next 64, where the newest maximum is always taken.
// Needs a GPU.
//
// In units of the last place of 1, relative to the root of the sum of their squares: normally distributed numbers rounded to
// nearest are off by .212 (1 / sqrt(32 ln 2), where their logarithms are spread evenly), out of the first 64 rows by less, as
// it is exact in the first. P in one part adds its own error: .236 to .241 together in the first 64 rows; behind them, by an
// emulation, .268 to .281 against the newest maximum, and .288 to .299 against that of the diagonal block.
#include "dev/cuda/attention/attention.cuh"
#include "dev/cuda/attention/reference.h"
#include "dev/test/fixtures/unit.h"

#include <vector>

static const double LAST_PLACE = 0x1p-7;

// Rows from .. to - 1 of every head, and by how many last places out may be off there
struct Rows {
    int from, to;
    double bound;
};

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

// ||out - ref|| / ||ref|| over these rows of all heads; out (B,T,NH,HS), ref (heads,T,HS)
static double error_of_rows(const std::vector<floatX>& out, const std::vector<double>& ref, Shape s, Rows rows) {
    double error2 = 0, ref2 = 0;
    for (int head = 0; head < s.heads(); head++) {
        const int64_t base = out_offset(head / s.NH, head % s.NH, s.T, s.NH, s.HS);
        for (int t = rows.from; t < rows.to; t++) {
            for (int d = 0; d < s.HS; d++) {
                const double want = ref[((int64_t)head * s.T + t) * s.HS + d];
                const double off = (double)(float)out[base + (int64_t)t * s.NH * s.HS + d] - want;
                error2 += off * off, ref2 += want * want;
            }
        }
    }
    return sqrt(error2 / ref2);
}

// two_parts: so many rows of a head multiply P in two parts.
static void check_configs(const AttentionForwardVariant& v, Shape s, const floatX* qkv, const std::vector<double>& ref,
                          int two_parts, size_t shared_limit) {
    const Rows ranges[] = {{0, 64, 0.215}, {64, two_parts, 0.24}, {two_parts, two_parts + 64, 0.2825}};
    floatX* out = device_array<floatX>(s.elements());
    float *l = device_array<float>(s.rows()), *m = device_array<float>(s.rows());
    for (const AttentionForwardConfig& c : v) {
        if (c.HS != s.HS || c.shared_bytes > shared_limit) { continue; }
        cuda_check(cudaMemset(out, 0xff, s.elements() * sizeof(floatX)));
        c.launch(out, l, m, qkv, s.B, s.T, s.NH, s.HS, 0);
        check(status_now());
        const std::vector<floatX> found = host_copy(out, s.elements());
        for (Rows rows : ranges) {
            const double error = error_of_rows(found, ref, s, rows) / LAST_PLACE;
            if (!CHECK(error <= rows.bound)) {
                printf("%s %s, HS %d, T %d, rows %d to %d: %.3f last places\n", v.name, c.name, s.HS, s.T, rows.from,
                       rows.to - 1, error);
            }
        }
    }
    for (void* p : {(void*)out, (void*)l, (void*)m}) { cuda_check(cudaFree(p)); }
}

static void check_shape(Shape s, int two_parts, const DeviceCode& gpu) {
    floatX *qkv = device_array<floatX>(3 * s.elements()), *dout = device_array<floatX>(s.elements());
    const unsigned blocks = (unsigned)CEIL_DIV(4 * s.elements(), (int64_t)256);
    fill_inputs<<<blocks, 256>>>(qkv, dout, s, s.heads(), ORDINARY, 7);
    Reference r = reference_allocate(s);
    reference_compute(&r, qkv, dout, false);
    const std::vector<double> ref = host_copy(r.x[OUT], s.elements());
    for (const AttentionForwardVariant& v : attention_forward_variants) {
        if (strcmp(v.name, "wgmma") != 0 || gpu.capability == 90) {
            check_configs(v, s, qkv, ref, two_parts, gpu.shared_limit);
        }
    }
    reference_free(&r);
    cuda_check(cudaFree(qkv)), cuda_check(cudaFree(dout));
}

int main(void) {
    DeviceCode gpu;
    check(device_code(&gpu));
    for (int HS : {32, 64, 96, 128}) { // the shortest rows for each number of rows in two parts
        check_shape({3, 192, 5, HS}, 128, gpu);
        check_shape({2, 1025, 5, HS}, 192, gpu);
        check_shape({2, 4097, 3, HS}, 256, gpu);
    }
    return unit_end();
}
