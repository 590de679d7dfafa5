/*
The program that every variant becomes: read the command line, check every configuration over a sweep of shapes, then
time each at one shape and print a row for it. A wrong kernel ends the program with exit code 1 before anything is timed.

The check    outputs and scratch filled with NaN, guard bytes around them, errors held against the fp64 reference and
             its model of rounding (attention_reference.h), more runs compared bit for bit: in the sweep two at once.
The timing   CUDA graphs of launches that walk through more memory than the L2 cache holds, replayed by turns with rests
             between; the median of the replays.
The row      TFLOP/s count the causal half: 2 B NH T^2 HS forward, 2.5 times that backward. "of GEMM" is the share of
             what cuBLAS reaches on 8192^3 in the same precision, "x naive" the speed-up over the naive variant.

Programs link with -lcublas, for the GEMM.
*/
#ifndef ATTENTION_BENCH_H
#define ATTENTION_BENCH_H

#include "attention.h"
#include "attention_backward_naive.cu"
#include "attention_forward_naive.cu"
#include "attention_reference.h"

#include <algorithm>
#include <chrono>
#include <cublas_v2.h>
#include <string>
#include <thread>
#include <vector>

// ----------------------------------------------------------------------------
// The command line

struct BenchOptions {
    Shape shape = {8, 1024, 12, 64};
    bool given[4] = {}; // -b, -t, -h, -d
    bool check_only = false, sweep = true;
    const char* config = nullptr;
    const char* csv = nullptr;
};

static inline void bench_help(const char* direction, const char* variant) {
    printf("Usage: attention_%s_%s_%s [flag value]...\n\n"
           "  -b <int>         B, batch (default 8)\n"
           "  -t <int>         T, sequence length (default 1024)\n"
           "  -h <int>         NH, number of heads (default 12)\n"
           "  -d <int>         HS, head size: 32, 64, 96 or 128 (default 64)\n"
           "  --config <name>  only this configuration\n"
           "  --csv <file>     append the fastest configuration's row to this leaderboard\n"
           "  --check-only     check and do not time; a size that is given replaces its list in the sweep\n"
           "  --no-sweep       check only the shape that is timed\n"
           "  --help           this text\n",
           direction, variant, PRECISION_NAME);
}

static inline BenchOptions bench_options(int argc, char** argv, const char* direction, const char* variant) {
    BenchOptions o;
    const char* const size_flags[4] = {"-b", "-t", "-h", "-d"};
    int* const sizes[4] = {&o.shape.B, &o.shape.T, &o.shape.NH, &o.shape.HS};
    for (int i = 1; i < argc; i++) {
        std::string flag = argv[i];
        if (flag == "--help") {
            bench_help(direction, variant);
            exit(EXIT_SUCCESS);
        }
        if (flag == "--check-only") {
            o.check_only = true;
            continue;
        }
        if (flag == "--no-sweep") {
            o.sweep = false;
            continue;
        }
        int size = (int)(std::find(size_flags, size_flags + 4, flag) - size_flags);
        if (size == 4 && flag != "--config" && flag != "--csv") { fatal("unknown flag %s; --help lists all", argv[i]); }
        if (++i == argc) { fatal("flag %s needs a value", flag.c_str()); }
        if (flag == "--config") {
            o.config = argv[i];
        } else if (flag == "--csv") {
            o.csv = argv[i];
        } else {
            char* end;
            long value = strtol(argv[i], &end, 10);
            if (*end != '\0' || end == argv[i] || value < 1 || value > INT32_MAX) {
                fatal("%s %s: must be a whole number of at least 1", flag.c_str(), argv[i]);
            }
            *sizes[size] = (int)value;
            o.given[size] = true;
        }
    }
    const char* why = attention_unsupported(o.shape.B, o.shape.T, o.shape.NH, o.shape.HS);
    if (why) { fatal("-b %d -t %d -h %d -d %d: %s", o.shape.B, o.shape.T, o.shape.NH, o.shape.HS, why); }
    return o;
}

static inline cudaDeviceProp bench_gpu() {
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        fatal("this program needs an NVIDIA GPU and found none (%s)", cudaGetErrorString(error));
    }
    cudaDeviceProp gpu;
    cuda_check(cudaGetDeviceProperties(&gpu, 0));
    return gpu;
}

// ----------------------------------------------------------------------------
// Device memory with guards: GUARD bytes before and after, filled with the same 0xff (a NaN in every precision) as the
// outputs themselves, so that a write outside is seen.

constexpr size_t GUARD = 1024;

struct Buffer {
    char* data = nullptr;
    size_t bytes = 0;
    template <class T> T* as() const { return reinterpret_cast<T*>(data); }
};
static inline Buffer buffer_allocate(size_t bytes) {
    Buffer b;
    b.bytes = CEIL_DIV(bytes, (size_t)4) * 4;
    cudaError_t error = cudaMalloc(&b.data, b.bytes + 2 * GUARD);
    if (error == cudaErrorMemoryAllocation) {
        fatal("this GPU has no memory left for a tensor of %.1f GB; take a smaller shape", 1e-9 * b.bytes);
    }
    cuda_check(error);
    b.data += GUARD;
    return b;
}
static inline void buffer_free(Buffer* b) {
    if (b->data) { cuda_check(cudaFree(b->data - GUARD)); }
    *b = Buffer();
}
static inline void buffer_poison(Buffer b) {
    if (b.data) { cuda_check(cudaMemset(b.data - GUARD, 0xff, b.bytes + 2 * GUARD)); }
}

__global__ void count_different(unsigned long long* count, const uint32_t* a, const uint32_t* b, size_t words) {
    for (size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x; n < words; n += gridDim.x * (size_t)blockDim.x) {
        if (a[n] != (b ? b[n] : 0xffffffffu)) { atomicAdd(count, 1ull); }
    }
}

// All tensors of the contract: those that a direction reads, writes or needs as scratch.
struct TensorSet {
    Buffer qkv, dout, out, dqkv, l, m, scratch;
};

// ----------------------------------------------------------------------------
// The two directions: how to launch, which tensors are outputs, how they are compared

struct Forward {
    typedef AttentionForwardConfig Config;
    static constexpr const char* name = "forward";
    static constexpr Tensor first_tensor = OUT, last_tensor = OUT;
    static constexpr double flops = 2; // times B NH T^2 HS
    static const Config& naive() { return naive::forward_configs[0]; }
    static size_t scratch_bytes(const Config& c, Shape s) {
        return c.scratch_bytes ? c.scratch_bytes(s.B, s.T, s.NH, s.HS) : 0;
    }
    static std::vector<Buffer*> outputs(TensorSet& t) { return {&t.out, &t.l, &t.m}; }
    static void launch(const Config& c, const TensorSet& t, Shape s, cudaStream_t stream) {
        floatX *out = t.out.as<floatX>(), *qkv = t.qkv.as<floatX>();
        float *l = t.l.as<float>(), *m = t.m.as<float>();
        if (c.launch) {
            c.launch(out, l, m, qkv, s.B, s.T, s.NH, s.HS, stream);
        } else {
            c.launch_with_scratch(out, l, m, qkv, t.scratch.data, s.B, s.T, s.NH, s.HS, stream);
        }
    }
    static void prepare(const TensorSet&, const Reference&) {}
    static void compare(Difference* d, const TensorSet& t, const Reference& r) {
        compare_tensor<<<1024, REFERENCE_THREADS>>>(d, OUT, t.out.as<floatX>(), 1, 0, r);
        unsigned blocks = (unsigned)CEIL_DIV(r.shape.rows(), (int64_t)256);
        compare_statistics<<<blocks, 256>>>(d, t.l.as<float>(), t.m.as<float>(), r);
    }
};

struct Backward {
    typedef AttentionBackwardConfig Config;
    static constexpr const char* name = "backward";
    static constexpr Tensor first_tensor = DQ, last_tensor = DV;
    static constexpr double flops = 5;
    static const Config& naive() { return naive::backward_configs[0]; }
    static size_t scratch_bytes(const Config& c, Shape s) { return c.scratch_bytes(s.B, s.T, s.NH, s.HS); }
    static std::vector<Buffer*> outputs(TensorSet& t) { return {&t.dqkv}; }
    static void launch(const Config& c, const TensorSet& t, Shape s, cudaStream_t stream) {
        c.launch(t.dqkv.as<floatX>(), t.dout.as<floatX>(), t.qkv.as<floatX>(), t.out.as<floatX>(), t.l.as<float>(),
                 t.m.as<float>(), t.scratch.data, s.B, s.T, s.NH, s.HS, stream);
    }
    static void prepare(const TensorSet& t, const Reference& r) {
        unsigned blocks = (unsigned)CEIL_DIV(r.shape.elements(), (int64_t)256);
        reference_forward_outputs<<<blocks, 256>>>(t.out.as<floatX>(), t.l.as<float>(), t.m.as<float>(), r, 4);
    }
    static void compare(Difference* d, const TensorSet& t, const Reference& r) {
        for (int slot = 0; slot < 3; slot++) {
            compare_tensor<<<1024, REFERENCE_THREADS>>>(d, (Tensor)(DQ + slot), t.dqkv.as<floatX>(), 3, slot, r);
        }
    }
};

static inline TensorSet tensors_allocate(Shape s, bool backward) {
    TensorSet t;
    size_t tensor = s.elements() * sizeof(floatX), statistics = s.rows() * sizeof(float);
    t.qkv = buffer_allocate(3 * tensor);
    t.dout = buffer_allocate(tensor);
    t.out = buffer_allocate(tensor);
    t.l = buffer_allocate(statistics);
    t.m = buffer_allocate(statistics);
    if (backward) { t.dqkv = buffer_allocate(3 * tensor); }
    return t;
}
static inline void tensors_free(TensorSet* t) {
    for (Buffer* b : {&t->qkv, &t->dout, &t->out, &t->dqkv, &t->l, &t->m, &t->scratch}) { buffer_free(b); }
}
static inline void tensors_fill(const TensorSet& t, Shape s, int distinct, Pattern pattern, uint64_t seed) {
    unsigned blocks = (unsigned)CEIL_DIV(4 * s.elements(), (int64_t)256);
    fill_inputs<<<blocks, 256>>>(t.qkv.as<floatX>(), t.dout.as<floatX>(), s, distinct, pattern, seed);
    cuda_check(cudaGetLastError());
}

// ----------------------------------------------------------------------------
// The check

struct Verdict {
    double worst = 0;   // error over what is allowed: at most 1 is right
    double rel_err = 0; // the largest ||x - ref|| / ||ref|| of the output tensors
    bool deterministic = true;
};

static inline unsigned long long words_different(const void* a, const void* b, size_t bytes) {
    unsigned long long *count, different;
    cuda_check(cudaMalloc(&count, sizeof(*count)));
    cuda_check(cudaMemset(count, 0, sizeof(*count)));
    count_different<<<256, 256>>>(count, (const uint32_t*)a, (const uint32_t*)b, bytes / 4);
    cuda_check(cudaMemcpy(&different, count, sizeof(different), cudaMemcpyDeviceToHost));
    cuda_check(cudaFree(count));
    return different;
}

// Runs the configuration on each set of tensors, all at once where there are several: each has a stream of its own.
template <class Direction> static void run_poisoned(const typename Direction::Config& c, std::vector<TensorSet*> sets,
                                                    Shape s, const std::string& what) {
    std::vector<Buffer*> written;
    for (TensorSet* t : sets) {
        for (Buffer* b : Direction::outputs(*t)) { written.push_back(b); }
        written.push_back(&t->scratch);
    }
    for (Buffer* b : written) { buffer_poison(*b); }
    cuda_check(cudaDeviceSynchronize());
    std::vector<cudaStream_t> streams(sets.size());
    for (cudaStream_t& stream : streams) { cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    for (size_t n = 0; n < sets.size(); n++) { Direction::launch(c, *sets[n], s, streams[n]); }
    cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess) { error = cudaDeviceSynchronize(); }
    if (error != cudaSuccess) { fatal("%s: the kernel failed: %s", what.c_str(), cudaGetErrorString(error)); }
    for (cudaStream_t stream : streams) { cuda_check(cudaStreamDestroy(stream)); }
    for (Buffer* b : written) {
        if (b->data &&
            (words_different(b->data - GUARD, nullptr, GUARD) || words_different(b->data + b->bytes, nullptr, GUARD))) {
            fatal("%s: wrote outside of its tensors", what.c_str());
        }
    }
}

// Ends the program when the outputs in t are wrong, else says how far off they are.
template <class Direction> static Verdict judge(const TensorSet& t, const Reference& r, const std::string& what) {
    Difference *on_gpu, d;
    double noise[NUM_TENSORS];
    cuda_check(cudaMalloc(&on_gpu, sizeof(d)));
    cuda_check(cudaMemset(on_gpu, 0, sizeof(d)));
    Direction::compare(on_gpu, t, r);
    cuda_check(cudaGetLastError());
    cuda_check(cudaMemcpy(&d, on_gpu, sizeof(d), cudaMemcpyDeviceToHost));
    cuda_check(cudaFree(on_gpu));
    cuda_check(cudaMemcpy(noise, r.noise, sizeof(noise), cudaMemcpyDeviceToHost));
    if (d.not_finite) { fatal("%s: %llu elements are not finite, or were not written", what.c_str(), d.not_finite); }
    Verdict verdict;
    for (int n = Direction::first_tensor; n <= Direction::last_tensor; n++) {
        // the model is of the distinct heads, the error of all
        double model2 = noise[n] * r.shape.heads() / r.distinct + UNIT_ROUNDOFF * UNIT_ROUNDOFF * d.reference2[n];
        double allowed = 2 * sqrt(model2), error = sqrt(d.error2[n]);
        if (!(error <= allowed)) {
            fatal("%s: %s is wrong: ||x - ref|| is %.3g, at most %.3g is rounding (||ref|| is %.3g)", what.c_str(),
                  tensor_names[n], error, allowed, sqrt(d.reference2[n]));
        }
        verdict.worst = fmax(verdict.worst, error / allowed);
        if (d.reference2[n] > 0) { verdict.rel_err = fmax(verdict.rel_err, error / sqrt(d.reference2[n])); }
    }
    float worst_lse; // zero backward
    memcpy(&worst_lse, &d.worst_lse, sizeof(worst_lse));
    if (!(worst_lse <= 1)) {
        fatal("%s: m + log(l) is off by %.3g times what is rounding, or m is more than 8 from the row's maximum",
              what.c_str(), worst_lse);
    }
    verdict.worst = fmax(verdict.worst, worst_lse);
    return verdict;
}

// Runs the configuration once, then so many times at once, and ends the program when it is wrong at this shape.
template <class Direction> static Verdict check(const typename Direction::Config& c, TensorSet& t, const Reference& r,
                                                const std::string& what, int at_once) {
    const size_t scratch = Direction::scratch_bytes(c, r.shape);
    if (scratch) { t.scratch = buffer_allocate(scratch); }
    run_poisoned<Direction>(c, {&t}, r.shape, what);
    Verdict verdict = judge<Direction>(t, r, what);

    std::vector<TensorSet> repeats(at_once, t); // the same inputs; the first has the same scratch, too
    std::vector<TensorSet*> sets;
    for (TensorSet& again : repeats) {
        for (Buffer* b : Direction::outputs(again)) { *b = buffer_allocate(b->bytes); }
        if (scratch && &again != &repeats[0]) { again.scratch = buffer_allocate(scratch); }
        sets.push_back(&again);
    }
    run_poisoned<Direction>(c, sets, r.shape, what);
    std::vector<Buffer*> first = Direction::outputs(t);
    for (TensorSet& again : repeats) {
        verdict.worst = fmax(verdict.worst, judge<Direction>(again, r, what + ", repeated").worst);
        std::vector<Buffer*> outputs = Direction::outputs(again);
        for (size_t n = 0; n < first.size(); n++) {
            if (words_different(first[n]->data, outputs[n]->data, first[n]->bytes)) { verdict.deterministic = false; }
            buffer_free(outputs[n]);
        }
        buffer_free(&again.scratch);
    }
    t.scratch = Buffer();
    return verdict;
}

template <class Direction>
static std::string describe(const char* variant, const char* config, Shape s, Pattern pattern) {
    char text[256];
    snprintf(text, sizeof(text), "attention_%s_%s %s at B %d T %d NH %d HS %d, %s", Direction::name, variant, config,
             s.B, s.T, s.NH, s.HS, pattern_names[pattern]);
    return text;
}

// Every T at which tiles end or overlap, at every head size; with --check-only, sizes that were given instead.
static inline std::vector<Shape> sweep_shapes(const BenchOptions& o) {
    std::vector<int> Ts = {1, 2, 31, 63, 64, 65, 127, 128, 129, 1000, 1024, 1025}, HSs = {32, 64, 96, 128};
    bool whole = !o.check_only || !(o.given[0] || o.given[1] || o.given[2]);
    int B = o.check_only && o.given[0] ? o.shape.B : 2, NH = o.check_only && o.given[2] ? o.shape.NH : 3;
    if (o.check_only && o.given[1]) { Ts = {o.shape.T}; }
    if (o.check_only && o.given[3]) { HSs = {o.shape.HS}; }
    std::vector<Shape> shapes;
    for (int HS : HSs) {
        for (int T : Ts) { shapes.push_back({B, T, NH, HS}); }
        // the last has more heads than a GPU has SMs
        if (whole) { shapes.insert(shapes.end(), {{1, 200, 1, HS}, {3, 77, 1, HS}, {12, 333, 13, HS}}); }
    }
    return shapes;
}

// Checks every configuration over all shapes of the sweep and all patterns, and prints a line for each.
template <class Direction> static void
check_sweep(const char* variant, const std::vector<const typename Direction::Config*>& configs, const BenchOptions& o) {
    int all_checks = 0;
    std::vector<Verdict> verdicts(configs.size());
    std::vector<int> checks(configs.size());
    for (Shape s : sweep_shapes(o)) {
        TensorSet t = tensors_allocate(s, Direction::first_tensor == DQ);
        Reference r = reference_allocate(s);
        for (int pattern = 0; pattern < NUM_PATTERNS; pattern++) {
            tensors_fill(t, s, r.distinct, (Pattern)pattern, 1000 + pattern);
            reference_compute(&r, t.qkv.as<floatX>(), t.dout.as<floatX>());
            Direction::prepare(t, r);
            for (size_t n = 0; n < configs.size(); n++) {
                if (configs[n]->HS != 0 && configs[n]->HS != s.HS) { continue; }
                std::string what = describe<Direction>(variant, configs[n]->name, s, (Pattern)pattern);
                Verdict v = check<Direction>(*configs[n], t, r, what, 2);
                verdicts[n].worst = fmax(verdicts[n].worst, v.worst);
                verdicts[n].deterministic &= v.deterministic;
                checks[n]++, all_checks++;
            }
        }
        reference_free(&r);
        tensors_free(&t);
    }
    if (all_checks == 0) {
        fatal("attention_%s_%s: no configuration serves head size %d", Direction::name, variant, o.shape.HS);
    }
    for (size_t n = 0; n < configs.size(); n++) {
        if (checks[n] == 0) { continue; }
        std::string head_size = configs[n]->HS ? "HS " + std::to_string(configs[n]->HS) : "every HS";
        printf("attention_%s_%s %s %s, %s: %d checks passed, largest error %.0f%% of what is allowed, %s\n",
               Direction::name, variant, PRECISION_NAME, configs[n]->name, head_size.c_str(), checks[n],
               100 * verdicts[n].worst, verdicts[n].deterministic ? "deterministic" : "not deterministic");
    }
}

// ----------------------------------------------------------------------------
// The timing

static inline float median(std::vector<float> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

// Launches captured in a graph that takes about 2 ms or more.
struct TimedGraph {
    cudaGraphExec_t executable;
    int launches;
};

struct Stopwatch {
    cudaStream_t stream;
    cudaEvent_t begin, end;
    Stopwatch() {
        cuda_check(cudaStreamCreate(&stream));
        cuda_check(cudaEventCreate(&begin));
        cuda_check(cudaEventCreate(&end));
    }
    ~Stopwatch() {
        cudaEventDestroy(begin);
        cudaEventDestroy(end);
        cudaStreamDestroy(stream);
    }
    // Milliseconds of what work() puts into the stream
    template <class Work> float time(Work work) {
        float ms;
        cuda_check(cudaEventRecord(begin, stream));
        work();
        cuda_check(cudaEventRecord(end, stream));
        cuda_check(cudaEventSynchronize(end));
        cuda_check(cudaEventElapsedTime(&ms, begin, end));
        return ms;
    }
};

// A graph of launch(n, stream), n walking through 0 .. sets-1; replayed once.
template <class Launch> static TimedGraph capture_launches(Stopwatch& watch, int sets, Launch launch) {
    launch(0, watch.stream); // warm-up
    float estimate = watch.time([&] { launch(0, watch.stream); });
    TimedGraph timed;
    timed.launches = sets * std::max(1, std::min(100, (int)(2.0f / (estimate * sets))));
    cudaGraph_t graph;
    cuda_check(cudaStreamBeginCapture(watch.stream, cudaStreamCaptureModeThreadLocal));
    for (int n = 0; n < timed.launches; n++) { launch(n % sets, watch.stream); }
    cuda_check(cudaStreamEndCapture(watch.stream, &graph));
    cuda_check(cudaGraphInstantiate(&timed.executable, graph, 0));
    cuda_check(cudaGraphDestroy(graph));
    cuda_check(cudaGraphLaunch(timed.executable, watch.stream));
    cuda_check(cudaStreamSynchronize(watch.stream));
    return timed;
}

// Median milliseconds of a launch of each graph. The graphs are replayed by turns, 3 to 31 times each. After each replay
// the GPU rests for as long as it worked: a kernel that reaches the power limit would otherwise be slower the longer it
// is timed, and so would whatever comes after it.
static inline std::vector<float> time_graphs(Stopwatch& watch, const std::vector<TimedGraph>& graphs) {
    std::vector<std::vector<float>> times(graphs.size());
    float spent = 0;
    for (int round = 0; round < 3 || (round < 31 && spent < 300.0f * graphs.size()); round++) {
        for (size_t n = 0; n < graphs.size(); n++) {
            float ms = watch.time([&] { cuda_check(cudaGraphLaunch(graphs[n].executable, watch.stream)); });
            times[n].push_back(ms / graphs[n].launches);
            spent += ms;
            std::this_thread::sleep_for(std::chrono::microseconds((int64_t)(1000 * ms)));
        }
    }
    std::vector<float> medians;
    for (size_t n = 0; n < graphs.size(); n++) {
        medians.push_back(median(times[n]));
        cuda_check(cudaGraphExecDestroy(graphs[n].executable));
    }
    return medians;
}

static inline void cublas_check(cublasStatus_t status) {
    if (status != CUBLAS_STATUS_SUCCESS) { fatal("cuBLAS: %s", cublasGetStatusString(status)); }
}

// TFLOP/s of an 8192^3 product in the training precision (fp32: true fp32, not tf32), on random data.
static inline double gemm_ceiling() {
    const int n = 8192;
    const cudaDataType_t type = sizeof(floatX) == 4                   ? CUDA_R_32F
                                : strcmp(PRECISION_NAME, "fp16") == 0 ? CUDA_R_16F
                                                                      : CUDA_R_16BF;
    const Shape s = {1, n, n / 64, 64}; // 4 n^2 elements in qkv and dout: A and B, and more
    TensorSet t = tensors_allocate(s, false);
    tensors_fill(t, s, s.heads(), ORDINARY, 7);
    cublasHandle_t handle;
    cublas_check(cublasCreate(&handle));
    Buffer workspace = buffer_allocate(32 << 20);
    const float one = 1, zero = 0;
    const floatX* A = t.qkv.as<floatX>();
    Stopwatch watch;
    auto launch = [&](int, cudaStream_t stream) {
        cublas_check(cublasSetStream(handle, stream));
        cublas_check(cublasSetWorkspace(handle, workspace.data, workspace.bytes));
        cublas_check(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, A, type, n, A + (size_t)n * n, type,
                                  n, &zero, t.out.data, type, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    };
    const float ms = time_graphs(watch, {capture_launches(watch, 1, launch)})[0];
    cublas_check(cublasDestroy(handle));
    buffer_free(&workspace);
    tensors_free(&t);
    return 2e-9 * n * n * n / ms;
}

// ----------------------------------------------------------------------------
// The rows

// First line of a command's output, or "unknown".
static inline std::string output_of(const char* command) {
    char line[128] = "";
    FILE* f = popen(command, "r");
    if (f && !fgets(line, sizeof(line), f)) { line[0] = '\0'; }
    if (f) { pclose(f); }
    line[strcspn(line, "\n")] = '\0';
    return line[0] ? line : "unknown";
}

// Appends one row to the leaderboard; the first row of a file brings the line of column names.
static inline void append_csv(const char* path, const std::string& row) {
    FILE* f = fopen_check(path, "a");
    fseek(f, 0, SEEK_END);
    if (ftell(f) == 0) {
        fputs("gpu,driver,cuda,date,commit,direction,variant,precision,B,T,NH,HS,config,ms,tflops,rel_err,"
              "deterministic\n",
              f);
    }
    fprintf(f, "%s\n", row.c_str());
    if (fclose(f) != 0) { fatal("cannot write %s: %s", path, strerror(errno)); }
}

static inline std::string csv_environment(const cudaDeviceProp& gpu) {
    char date[16], text[512];
    time_t now = time(nullptr);
    int cuda;
    cuda_check(cudaRuntimeGetVersion(&cuda));
    strftime(date, sizeof(date), "%Y-%m-%d", gmtime(&now));
    const char* commit = getenv("COMMIT"); // where the sources were built away from their repository
    snprintf(text, sizeof(text), "%s,%s,%d.%d,%s,%s", gpu.name,
             output_of("nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null").c_str(), cuda / 1000,
             cuda % 1000 / 10, date, commit ? commit : output_of("git rev-parse --short HEAD 2>/dev/null").c_str());
    return text;
}

// Median milliseconds of each configuration at the shape.
template <class Direction> static std::vector<float>
time_configs(const std::vector<const typename Direction::Config*>& configs, std::vector<TensorSet>& tensors, Shape s) {
    size_t scratch_bytes = 0;
    for (const typename Direction::Config* c : configs) {
        scratch_bytes = std::max(scratch_bytes, Direction::scratch_bytes(*c, s));
    }
    Buffer scratch = buffer_allocate(scratch_bytes);
    for (TensorSet& t : tensors) { t.scratch = scratch; }
    Stopwatch watch;
    std::vector<TimedGraph> graphs;
    for (const typename Direction::Config* c : configs) {
        auto launch = [&](int n, cudaStream_t stream) { Direction::launch(*c, tensors[n], s, stream); };
        graphs.push_back(capture_launches(watch, (int)tensors.size(), launch));
    }
    std::vector<float> ms = time_graphs(watch, graphs);
    for (TensorSet& t : tensors) { t.scratch = Buffer(); }
    buffer_free(&scratch);
    return ms;
}

// Checks the configurations at the shape, times them and prints a row for each.
template <class Direction> static void bench(const char* variant,
                                             const std::vector<const typename Direction::Config*>& configs,
                                             const BenchOptions& o, const cudaDeviceProp& gpu) {
    const Shape s = o.shape;
    const double tflop = 1e-12 * Direction::flops * s.B * s.NH * s.T * s.T * s.HS;
    const double ceiling = gemm_ceiling();
    printf("\nattention_%s_%s, %s, %s, B %d T %d NH %d HS %d; GEMM %.1f TFLOP/s\n", Direction::name, variant,
           PRECISION_NAME, gpu.name, s.B, s.T, s.NH, s.HS, ceiling);
    printf("%-16s %10s %9s %8s %9s %9s  %s\n", "config", "ms", "TFLOP/s", "of GEMM", "x naive", "rel_err",
           "deterministic");

    // As many sets of tensors as it takes to read past the L2 cache twice before a set comes again
    size_t set_bytes = 4 * s.elements() * sizeof(floatX);
    int sets = 1 + (int)(2 * (size_t)gpu.l2CacheSize / set_bytes);
    std::vector<TensorSet> tensors;
    Reference r = reference_allocate(s);
    for (int n = 0; n < sets; n++) {
        tensors.push_back(tensors_allocate(s, Direction::first_tensor == DQ));
        tensors_fill(tensors[n], s, r.distinct, ORDINARY, 42);
        if (n == 0) { reference_compute(&r, tensors[0].qkv.as<floatX>(), tensors[0].dout.as<floatX>()); }
        Direction::prepare(tensors[n], r);
    }

    std::vector<const typename Direction::Config*> racers;
    std::vector<Verdict> verdicts;
    for (const typename Direction::Config* c : configs) {
        if (c->HS != 0 && c->HS != s.HS) { continue; }
        verdicts.push_back(check<Direction>(*c, tensors[0], r, describe<Direction>(variant, c->name, s, ORDINARY), 1));
        racers.push_back(c);
    }
    if (racers.empty()) { fatal("no configuration of %s serves head size %d on this GPU", variant, s.HS); }
    std::vector<float> times = time_configs<Direction>(racers, tensors, s);
    // The naive kernels take seconds at large shapes, where a speed-up over them says little.
    float naive_ms = tflop <= 0.1 ? time_configs<Direction>({&Direction::naive()}, tensors, s)[0] : NAN;

    std::string best_row;
    float best_ms = INFINITY;
    for (size_t n = 0; n < racers.size(); n++) {
        const float ms = times[n];
        const char* deterministic = verdicts[n].deterministic ? "yes" : "no";
        char times_naive[16] = "-", row[256];
        if (isfinite(naive_ms)) { snprintf(times_naive, sizeof(times_naive), "%.2f", naive_ms / ms); }
        printf("%-16s %10.4f %9.1f %7.1f%% %9s %9.2e  %s\n", racers[n]->name, ms, 1e3 * tflop / ms,
               100 * 1e3 * tflop / ms / ceiling, times_naive, verdicts[n].rel_err, deterministic);
        if (ms < best_ms) {
            best_ms = ms;
            snprintf(row, sizeof(row), "%s,%s,%s,%d,%d,%d,%d,%s,%.5f,%.2f,%.3e,%s", Direction::name, variant,
                     PRECISION_NAME, s.B, s.T, s.NH, s.HS, racers[n]->name, ms, 1e3 * tflop / ms, verdicts[n].rel_err,
                     deterministic);
            best_row = csv_environment(gpu) + "," + row;
        }
    }
    if (o.csv) { append_csv(o.csv, best_row); }
    reference_free(&r);
    for (TensorSet& t : tensors) { tensors_free(&t); }
}

// ----------------------------------------------------------------------------
// The mains

template <class Direction, size_t N> static int attention_main(int argc, char** argv, const char* variant,
                                                               const typename Direction::Config (&table)[N],
                                                               int compute_capability) {
    BenchOptions o = bench_options(argc, argv, Direction::name, variant);
    std::string names;
    std::vector<const typename Direction::Config*> configs;
    for (const typename Direction::Config& c : table) {
        if (names.find(c.name) == std::string::npos) { names += (names.empty() ? "" : ", ") + std::string(c.name); }
        if (!o.config || strcmp(o.config, c.name) == 0) { configs.push_back(&c); }
    }
    if (configs.empty()) { fatal("--config %s: no such configuration; there are: %s", o.config, names.c_str()); }

    cudaDeviceProp gpu = bench_gpu();
    if (gpu.major * 10 + gpu.minor < compute_capability) {
        fatal("attention_%s_%s needs compute capability %d.%d; the %s has %d.%d", Direction::name, variant,
              compute_capability / 10, compute_capability % 10, gpu.name, gpu.major, gpu.minor);
    }
    for (size_t n = configs.size(); n-- > 0;) {
        if (configs[n]->shared_bytes <= gpu.sharedMemPerBlockOptin) { continue; }
        printf("skipped %s for HS %d: it needs %zu KB of shared memory a block, the %s has %zu\n", configs[n]->name,
               configs[n]->HS, configs[n]->shared_bytes / 1024, gpu.name, gpu.sharedMemPerBlockOptin / 1024);
        configs.erase(configs.begin() + n);
    }
    if (o.sweep || o.check_only) { check_sweep<Direction>(variant, configs, o); }
    if (!o.check_only) { bench<Direction>(variant, configs, o, gpu); }
    return EXIT_SUCCESS;
}

// compute_capability: the least that the variant runs on, such as 80; 0 where any will do.
template <size_t N> static inline int attention_forward_main(int argc, char** argv, const char* variant,
                                                             const AttentionForwardConfig (&table)[N],
                                                             int compute_capability = 0) {
    return attention_main<Forward>(argc, argv, variant, table, compute_capability);
}
template <size_t N> static inline int attention_backward_main(int argc, char** argv, const char* variant,
                                                              const AttentionBackwardConfig (&table)[N],
                                                              int compute_capability = 0) {
    return attention_main<Backward>(argc, argv, variant, table, compute_capability);
}

#endif
