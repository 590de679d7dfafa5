/*
Attention's energy by cause: an ablation. Times libraries, each with one operation removed from the kernels, in one process.

    build/energy_by_cause forward 64,1024,12,64 FIRST.so OTHER.so ...

The libraries are builds of libattention.so from sources that energy_by_cause.py has edited. The first is unedited, and computes
out, l and m for the backward pass. Results are not checked. The inputs are random and rotate through more memory than the L2
cache. Timed as dev/cuda/bench/bench.h says, in random order, three rounds; then prints a line for each library:

    FILE,MS,MJ,SM_MHZ
*/
#include "dev/cuda/bench/bench.h"
#include "dev/cuda/libattention.h"

struct Library {
    const char* path;
    decltype(&attention_scratch_bytes) scratch_bytes;
    decltype(&attention_forward) forward;
    decltype(&attention_backward) backward;
    decltype(&attention_error) error;

    explicit Library(const char* path) : path(path) {
        void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        if (!library) { fatal("%s", dlerror()); }
        find(library, "attention_scratch_bytes", &scratch_bytes);
        find(library, "attention_forward", &forward);
        find(library, "attention_backward", &backward);
        find(library, "attention_error", &error);
    }
    template <class Function> void find(void* library, const char* name, Function* function) const {
        *function = (Function)dlsym(library, name);
        if (!*function) { fatal("%s: no %s: not a libattention.so", path, name); }
    }
    void check_call(int failed) const {
        if (failed) { fatal("%s: %s", path, error()); }
    }
};

struct Tensors {
    Buffer qkv, dout, out, dqkv, l, m;
};

static Buffer random_tensor(size_t elements, uint64_t seed) {
    Buffer b = buffer_allocate(elements * sizeof(floatX));
    fill_normal<<<(unsigned)CEIL_DIV(elements, (size_t)256), 256>>>(b.as<floatX>(), elements, seed);
    cuda_check(cudaGetLastError());
    return b;
}

int main(int argc, char** argv) {
    const bool backward = argc > 1 && strcmp(argv[1], "backward") == 0;
    if (argc < 4 || (!backward && strcmp(argv[1], "forward") != 0)) {
        fatal("usage: build/energy_by_cause forward|backward B,T,NH,HS FIRST.so OTHER.so ...");
    }
    const std::vector<int> shape = bench_shape("B,T,NH,HS", 4, argv[2]);
    const int B = shape[0], T = shape[1], NH = shape[2], HS = shape[3];
    const cudaDeviceProp gpu = bench_gpu();
    std::vector<Library> libraries;
    for (int i = 3; i < argc; i++) { libraries.emplace_back(argv[i]); }

    const size_t rows = (size_t)B * NH * T, elements = rows * HS;
    const int sets = 1 + (int)(2 * (size_t)gpu.l2CacheSize / (4 * elements * sizeof(floatX)));
    size_t scratch_bytes = 0;
    for (const Library& lib : libraries) {
        const size_t bytes = lib.scratch_bytes(B, T, NH, HS);
        lib.check_call(bytes == 0);
        scratch_bytes = std::max(scratch_bytes, bytes);
    }
    Buffer scratch = buffer_allocate(scratch_bytes);
    std::vector<Tensors> tensors;
    for (int n = 0; n < sets; n++) {
        Tensors t;
        t.qkv = random_tensor(3 * elements, 2 * n), t.dout = random_tensor(elements, 2 * n + 1);
        t.out = buffer_allocate(elements * sizeof(floatX)), t.dqkv = buffer_allocate(3 * elements * sizeof(floatX));
        t.l = buffer_allocate(rows * sizeof(float)), t.m = buffer_allocate(rows * sizeof(float));
        libraries[0].check_call(
            libraries[0].forward(t.out.data, t.l.as<float>(), t.m.as<float>(), t.qkv.data, B, T, NH, HS, NULL));
        tensors.push_back(t);
    }
    cuda_check(cudaDeviceSynchronize());

    Stopwatch watch;
    Meter meter;
    std::vector<TimedGraph> graphs;
    for (const Library& lib : libraries) {
        graphs.push_back(capture_launches(watch, sets, [&](int n, cudaStream_t stream) {
            const Tensors& t = tensors[n];
            float *l = t.l.as<float>(), *m = t.m.as<float>();
            lib.check_call(backward ? lib.backward(t.dqkv.data, t.dout.data, t.qkv.data, t.out.data, l, m, scratch.data,
                                                   B, T, NH, HS, stream)
                                    : lib.forward(t.dqkv.data, l, m, t.qkv.data, B, T, NH, HS, stream));
        }));
    }
    const std::vector<Timing> timings = time_steady(watch, meter, graphs);
    for (size_t n = 0; n < libraries.size(); n++) {
        const Timing& t = timings[n];
        printf("%s,%.5f,%s,%s\n", libraries[n].path, t.ms, csv_number("%.4f", t.mj).c_str(),
               csv_number("%.0f", t.mhz).c_str());
    }
    return EXIT_SUCCESS;
}
