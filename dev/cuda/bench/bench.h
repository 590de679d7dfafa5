/*
What the benchmarks share: command line, guarded device memory, timing, energy, rows of the leaderboard. The operations are in
attention/bench.cu, decode/bench.cu and matmul/bench.cu. Programs link with -lcublas and -lcublasLt.

Modes     rested: two replays' worth of sleep before each timed replay, configurations in random order, median of nine (of
          three where a replay takes more than .1 s). steady, the state of a GPU that trains: each configuration runs .25 s
          untimed, then .2 s timed, back to back; random order, three rounds, median. A replay is a CUDA graph of 2 ms or more
          whose inputs rotate through more memory than the L2 cache.
Energy    in steady mode, by NVML's counter of the whole board, loaded at run time: mean power between the counter's first tick
          after .1 s and its last tick in each window, times the time of a launch. Empty where there is no NVML, as is the mean
          SM clock.
of GEMM   the share of what cuBLAS reaches on 8192^3 in the same precision, in the same mode. Where memory is the limit, of
          read: the share of what a kernel that reads 2 GB reaches.
trains    yes: the trainer takes it at this shape on this GPU. forced: it does when built with this variant by name. no.
*/
#ifndef BENCH_H
#define BENCH_H

#include <algorithm>
#include <chrono>
#include <cublas_v2.h>
#include <dlfcn.h>
#include <functional>
#include <math.h>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "random.cuh"
#include "llmc/base/cli.h"
#include "llmc/cuda/matmul.cuh"
#include "llmc/cuda/pass_graph.cuh"

// ----------------------------------------------------------------------------
// The command line

enum BenchMode { RESTED, STEADY, NUM_MODES };
static const char* const mode_names[NUM_MODES] = {"rested", "steady"};

// One size of a shape, such as {"-b", "B, batch", 8}
struct BenchSize {
    const char *flag, *text;
    int value; // the default, or what was given
    bool given = false;
};
// A flag of one operation, which may be given more than once, such as {"--group", "only this group"}
struct BenchText {
    const char *flag, *text;
    cli_texts values = {}; // as given
};
struct BenchOptions {
    std::vector<BenchSize> sizes;
    std::vector<BenchText> texts;
    std::vector<std::vector<int>> shapes; // to time: those of --shape, or the one of the sizes' flags
    bool shapes_given = false;            // by --shape
    cli_toggle check_only = 0, no_sweep = 0;
    bool modes[NUM_MODES] = {true, true};
    cli_text config = nullptr, csv = nullptr;
};

// `count` numbers separated by commas; ends the program where they are not
static inline std::vector<int> bench_shape(const char* flag, size_t count, const char* text) {
    std::vector<int> shape;
    for (const char* next = text; shape.size() <= count;) {
        char* end;
        const long value = strtol(next, &end, 10);
        if (end == next || value < 1 || value > INT32_MAX || !strchr(",", *end)) { break; }
        shape.push_back((int)value);
        if (*end == '\0' && shape.size() == count) { return shape; }
        next = end + 1;
    }
    fatal("%s %s: must be %zu whole numbers of at least 1 with commas", flag, text, count);
}

// The options of the program `program`, whose shapes have these sizes. Ends the program if they are wrong.
static inline BenchOptions bench_options(int argc, char** argv, const char* program, std::vector<BenchSize> sizes,
                                         std::vector<BenchText> texts = {}) {
    struct Values { // as llmc/base/cli.h sets them
        cli_whole sizes[4];
        cli_texts texts[2], shapes;
        cli_toggle check_only, no_sweep;
        cli_text mode, config, csv;
    } values = {};
    std::vector<CliFlag> flags;
    std::string defaults[4];
    const auto flag = [&](const char* short_name, const char* long_name, CliType type, const void* member,
                          const char* text, const char* otherwise, const char* choices = nullptr) {
        flags.push_back({short_name, long_name, type, 1, INT32_MAX, choices, FOR_BOTH, CLI_FREE, text, otherwise,
                         (size_t)((const char*)member - (const char*)&values), 0});
    };
    for (size_t n = 0; n < sizes.size(); n++) {
        values.sizes[n] = sizes[n].value, defaults[n] = std::to_string(sizes[n].value);
        flag(sizes[n].flag, "", CLI_whole, &values.sizes[n], sizes[n].text, defaults[n].c_str());
    }
    for (size_t n = 0; n < texts.size(); n++) {
        flag(nullptr, texts[n].flag, CLI_texts, &values.texts[n], texts[n].text, "NULL");
    }
    values.mode = "both";
    flag(nullptr, "--shape", CLI_texts, &values.shapes, "time this shape: its sizes, with commas", "NULL");
    flag(nullptr, "--config", CLI_text, &values.config, "only this configuration", "NULL");
    flag(nullptr, "--mode", CLI_text, &values.mode, "what is timed", values.mode, "rested|steady|both");
    flag(nullptr, "--csv", CLI_text, &values.csv, "append to this leaderboard", "NULL");
    flag(nullptr, "--check-only", CLI_toggle, &values.check_only,
         "check and do not time; a size that is given replaces its list in the sweep", "0");
    flag(nullptr, "--no-sweep", CLI_toggle, &values.no_sweep, "check only the shapes that are timed", "0");
    const CliProgram cli = {program, "", "", "", "--mode steady", flags.data(), (int)flags.size(), nullptr, 0, &values};
    std::vector<unsigned char> typed(flags.size());
    cli_parse_(&values, typed.data(), &cli, argc, argv);

    BenchOptions o;
    o.sizes = sizes, o.texts = texts;
    for (size_t n = 0; n < sizes.size(); n++) { o.sizes[n].value = values.sizes[n], o.sizes[n].given = typed[n]; }
    for (size_t n = 0; n < texts.size(); n++) { o.texts[n].values = values.texts[n]; }
    for (int n = 0; n < values.shapes.count; n++) {
        o.shapes.push_back(bench_shape("--shape", sizes.size(), values.shapes.items[n]));
    }
    o.shapes_given = !o.shapes.empty();
    if (!o.shapes_given) {
        o.shapes.resize(1);
        for (const BenchSize& s : o.sizes) { o.shapes[0].push_back(s.value); }
    }
    o.check_only = values.check_only, o.no_sweep = values.no_sweep, o.config = values.config, o.csv = values.csv;
    o.modes[RESTED] = strcmp(values.mode, "steady") != 0, o.modes[STEADY] = strcmp(values.mode, "rested") != 0;
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
// Device memory with guards: GUARD bytes before and after, filled with 0xff (a NaN in every precision) like the outputs
// themselves, so that a write out of bounds is detected. The last copy of a Buffer frees its memory.

constexpr size_t GUARD = 1024;

struct Buffer {
    char* data = nullptr;
    size_t bytes = 0;
    std::shared_ptr<char> owner;
    template <class T> T* as() const { return reinterpret_cast<T*>(data); }
};
static inline Buffer buffer_allocate(size_t bytes) {
    Buffer b;
    if (bytes > SIZE_MAX / 2) {
        fatal("a tensor of this shape has more bytes than can be counted; take a smaller shape");
    }
    b.bytes = CEIL_DIV(bytes, (size_t)4) * 4;
    cudaError_t error = cudaMalloc(&b.data, b.bytes + 2 * GUARD);
    if (error == cudaErrorMemoryAllocation) {
        fatal("this GPU has no memory left for a tensor of %.1f GB; take a smaller shape", 1e-9 * b.bytes);
    }
    cuda_check(error);
    b.owner = std::shared_ptr<char>(b.data, [](char* data) { cuda_check(cudaFree(data)); });
    b.data += GUARD;
    return b;
}
static inline void buffer_poison(Buffer b) {
    if (b.data) { cuda_check(cudaMemset(b.data - GUARD, 0xff, b.bytes + 2 * GUARD)); }
}

// How many 32-bit words of a differ from b's, or from the poison where b is nullptr
__global__ void count_different(unsigned long long* count, const uint32_t* a, const uint32_t* b, size_t words) {
    for (size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x; n < words; n += gridDim.x * (size_t)blockDim.x) {
        if (a[n] != (b ? b[n] : 0xffffffffu)) { atomicAdd(count, 1ull); }
    }
}
// What the kernels that launch(x) starts make of *x, a T on the device that begins with zeros
template <class T, class Launch> static inline T from_device(const Launch& launch) {
    T *on_gpu, x;
    cuda_check(cudaMalloc(&on_gpu, sizeof(x)));
    cuda_check(cudaMemset(on_gpu, 0, sizeof(x)));
    launch(on_gpu);
    cuda_check(cudaGetLastError());
    cuda_check(cudaMemcpy(&x, on_gpu, sizeof(x), cudaMemcpyDeviceToHost));
    cuda_check(cudaFree(on_gpu));
    return x;
}
template <class Launch> static inline unsigned long long counted(const Launch& launch) {
    return from_device<unsigned long long>(launch);
}
static inline unsigned long long words_different(const void* a, const void* b, size_t bytes) {
    return counted([&](unsigned long long* count) {
        count_different<<<256, 256>>>(count, (const uint32_t*)a, (const uint32_t*)b, bytes / 4);
    });
}
// Whether the guards of a poisoned buffer are as they were
static inline bool buffer_intact(Buffer b) {
    return !b.data || (words_different(b.data - GUARD, nullptr, GUARD) == 0 &&
                       words_different(b.data + b.bytes, nullptr, GUARD) == 0);
}

// ----------------------------------------------------------------------------
// Checks

struct Verdict {
    double worst = 0;   // largest error / tolerance: at most 1 passes
    double rel_err = 0; // ||x - ref|| / ||ref||
    bool deterministic = true;
};

// Runs launch(n, stream) for n = 0 .. count-1 concurrently, each on its own stream. Ends the program if one fails, or writes
// outside of `written`, which have been poisoned.
static inline void run_at_once(size_t count, const std::vector<Buffer>& written, const std::string& what,
                               const std::function<void(size_t n, cudaStream_t stream)>& launch) {
    cuda_check(cudaDeviceSynchronize());
    std::vector<cudaStream_t> streams(count);
    for (cudaStream_t& stream : streams) { cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    status_clear();
    for (size_t n = 0; n < count; n++) { launch(n, streams[n]); }
    if (status_now() != STATUS_OK) { fatal("%s: %s", what.c_str(), status_message()); }
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) { fatal("%s: the kernel failed: %s", what.c_str(), cudaGetErrorString(error)); }
    for (cudaStream_t stream : streams) { cuda_check(cudaStreamDestroy(stream)); }
    for (Buffer b : written) {
        if (!buffer_intact(b)) { fatal("%s: wrote outside of its tensors", what.c_str()); }
    }
}

// ----------------------------------------------------------------------------
// Energy and clock, by NVML. The few declarations are repeated here, so that no build needs nvml.h.

struct MeterReading {
    double seconds, joules, mhz; // since the window began; of the board since the driver was loaded; of the SMs
};
struct Meter {
    typedef void* Device;
    Device device = nullptr; // nullptr: there is no NVML here, or not for this GPU
    int (*total_energy)(Device, unsigned long long* millijoules) = nullptr;
    int (*clock_info)(Device, int type, unsigned* mhz) = nullptr;

    Meter() {
        void* nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
        if (!nvml) { return; }
        auto init = (int (*)())dlsym(nvml, "nvmlInit_v2");
        auto find = (int (*)(const char*, Device*))dlsym(nvml, "nvmlDeviceGetHandleByPciBusId_v2");
        total_energy = (decltype(total_energy))dlsym(nvml, "nvmlDeviceGetTotalEnergyConsumption");
        clock_info = (decltype(clock_info))dlsym(nvml, "nvmlDeviceGetClockInfo");
        int current;
        char bus[32]; // NVML numbers GPUs in an order of its own
        cuda_check(cudaGetDevice(&current));
        cuda_check(cudaDeviceGetPCIBusId(bus, sizeof(bus), current));
        if (!init || !find || !total_energy || !clock_info || init() != 0 || find(bus, &device) != 0) {
            device = nullptr;
        }
    }
    bool read(MeterReading* r, double seconds) const {
        constexpr int SM_CLOCK = 1;
        unsigned mhz = 0;
        unsigned long long millijoules = 0;
        if (!device || total_energy(device, &millijoules) != 0) { return false; }
        if (clock_info(device, SM_CLOCK, &mhz) != 0) { mhz = 0; }
        *r = {seconds, 1e-3 * millijoules, (double)mhz};
        return true;
    }
};

// The sum of the readings of several windows
struct MeterSum {
    double joules = 0, seconds = 0; // between ticks of the counter
    double mhz = 0;
    int clocks = 0;

    // One window: the counter ticks a few times only, so energy is counted from its first tick to its last. Readings
    // before `from` are of a GPU that is still warming up.
    void add(const std::vector<MeterReading>& readings, double from) {
        const MeterReading *before = nullptr, *first = nullptr, *last = nullptr;
        for (const MeterReading& r : readings) {
            if (r.seconds < from) { continue; }
            if (before && r.joules != before->joules) { last = &r, first = first ? first : &r; }
            before = &r;
            if (r.mhz > 0) { mhz += r.mhz, clocks++; }
        }
        if (first != last) { joules += last->joules - first->joules, seconds += last->seconds - first->seconds; }
    }
    double watts() const { return seconds > 0 ? joules / seconds : NAN; }
    double mean_mhz() const { return clocks > 0 ? mhz / clocks : NAN; }
};

// ----------------------------------------------------------------------------
// Timing

typedef std::function<void(int set, cudaStream_t stream)> Launch;

struct Timing { // of one launch; NAN: not measured
    double ms = NAN, mj = NAN, mhz = NAN;
};

template <class T> static inline T median(std::vector<T> x) {
    std::sort(x.begin(), x.end());
    return x[x.size() / 2];
}

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
    // Milliseconds of what work() puts into the stream; idle() is called until that is done
    template <class Work, class Idle> float time(Work work, Idle idle) {
        float ms;
        cuda_check(cudaEventRecord(begin, stream));
        work();
        cuda_check(cudaEventRecord(end, stream));
        cudaError_t ready;
        while ((ready = cudaEventQuery(end)) == cudaErrorNotReady) { idle(); }
        cuda_check(ready);
        cuda_check(cudaEventElapsedTime(&ms, begin, end));
        return ms;
    }
    template <class Work> float time(Work work) {
        return time(work, [] {});
    }
};

// Launches captured in a graph that takes about 2 ms or more
struct TimedGraph {
    cudaGraphExec_t executable;
    int launches;
    double replay_ms; // estimate

    void replay(cudaStream_t stream, int times = 1) const {
        for (int n = 0; n < times; n++) { cuda_check(cudaGraphLaunch(executable, stream)); }
    }
    // Replays that take so many milliseconds
    int replays(double ms) const { return std::max(1, (int)ceil(ms / replay_ms)); }
};

// A graph of launch(n, stream), with n cycling through 0 .. sets-1; replayed twice.
static inline TimedGraph capture_launches(Stopwatch& watch, int sets, const Launch& launch) {
    status_clear();
    launch(0, watch.stream); // warm-up
    float estimate = watch.time([&] { launch(0, watch.stream); });
    check(status_now());
    TimedGraph timed;
    timed.launches = sets * std::max(1, std::min(100, (int)(2.0f / (estimate * sets))));
    check(pass_graph_capture(&timed.executable, watch.stream, [&] {
        for (int n = 0; n < timed.launches; n++) { launch(n % sets, watch.stream); }
    }));
    timed.replay(watch.stream);
    timed.replay_ms = watch.time([&] { timed.replay(watch.stream); });
    return timed;
}

// The graphs in an order that is random, and the same in every run
struct RandomOrder {
    std::mt19937 generator{42};
    std::vector<size_t> of(size_t n) {
        std::vector<size_t> order(n);
        for (size_t i = 0; i < n; i++) { order[i] = i; }
        std::shuffle(order.begin(), order.end(), generator);
        return order;
    }
};

static inline std::vector<Timing> time_rested(Stopwatch& watch, std::vector<TimedGraph>& graphs) {
    std::vector<std::vector<double>> times(graphs.size());
    std::vector<Timing> timings(graphs.size());
    RandomOrder random;
    for (int round = 0; round < 9; round++) {
        for (size_t n : random.of(graphs.size())) {
            TimedGraph& g = graphs[n];
            if (round >= 3 && g.replay_ms > 100) { continue; }
            std::this_thread::sleep_for(std::chrono::microseconds((int64_t)(2000 * g.replay_ms)));
            g.replay_ms = watch.time([&] { g.replay(watch.stream); });
            times[n].push_back(g.replay_ms / g.launches);
        }
    }
    for (size_t n = 0; n < graphs.size(); n++) { timings[n].ms = median(times[n]); }
    return timings;
}

// How long each configuration runs in steady mode. The counter of energy ticks about ten times a second.
struct Steady {
    int rounds = 3;
    double warm_up_ms = 250, timed_ms = 200;
};
static inline std::vector<Timing> time_steady(Stopwatch& watch, const Meter& meter,
                                              const std::vector<TimedGraph>& graphs, Steady steady = {}) {
    constexpr double POWER_FROM_S = 0.1;
    std::vector<std::vector<double>> times(graphs.size());
    std::vector<MeterSum> sums(graphs.size());
    RandomOrder random;
    for (int round = 0; round < steady.rounds; round++) {
        for (size_t n : random.of(graphs.size())) {
            const TimedGraph& g = graphs[n];
            std::vector<MeterReading> readings;
            const double start = wall_seconds();
            g.replay(watch.stream, g.replays(steady.warm_up_ms));
            const int replays = g.replays(steady.timed_ms);
            auto idle = [&] {
                MeterReading r;
                if (meter.read(&r, wall_seconds() - start)) { readings.push_back(r); }
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            };
            const float ms = watch.time([&] { g.replay(watch.stream, replays); }, idle);
            times[n].push_back(ms / replays / g.launches);
            sums[n].add(readings, POWER_FROM_S);
        }
    }
    std::vector<Timing> timings(graphs.size());
    for (size_t n = 0; n < graphs.size(); n++) {
        const double ms = median(times[n]);
        timings[n] = {ms, sums[n].watts() * ms, sums[n].mean_mhz()};
    }
    return timings;
}

static inline std::vector<Timing> time_graphs(BenchMode mode, Stopwatch& watch, const Meter& meter,
                                              std::vector<TimedGraph>& graphs) {
    return mode == RESTED ? time_rested(watch, graphs) : time_steady(watch, meter, graphs);
}

__global__ void fill_normal(floatX* x, size_t elements, uint64_t seed) {
    const size_t n = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (n < elements) { x[n] = (floatX)normal_at(seed, n); }
}

// What a race counts: FLOPs, or bytes where memory is the limit
struct RaceUnit {
    const char *rate, *share, *energy;                      // headings of what is printed
    const char *rate_column, *share_column, *energy_column; // of the leaderboard
    double rate_scale;                                      // rate = rate_scale work / ms
};
inline constexpr RaceUnit FLOPS = {"TFLOP/s", "of GEMM", "pJ/FLOP", "tflops", "of_gemm", "pj_per_flop", 1e-9};
inline constexpr RaceUnit BYTES = {"GB/s", "of read", "pJ/byte", "gb_per_s", "of_read", "pj_per_byte", 1e-6};

// The GPU that a program races on, and what cuBLAS, or a kernel that only reads, reaches on it
struct BenchGpu {
    cudaDeviceProp properties = bench_gpu();
    Meter meter;
    double ceiling[NUM_MODES] = {NAN, NAN}; // TFLOP/s or GB/s
};

// Ends the program on a GPU of less than this compute capability.
static inline void bench_needs(const BenchGpu& gpu, const std::string& program, int compute_capability) {
    const cudaDeviceProp& p = gpu.properties;
    if (p.major * 10 + p.minor < compute_capability) {
        fatal("%s needs compute capability %d.%d; the %s has %d.%d", program.c_str(), compute_capability / 10,
              compute_capability % 10, p.name, p.major, p.minor);
    }
}
// How many sets of tensors are rotated through, so that one is reused only after traffic of twice the L2 cache
static inline int bench_sets(const BenchGpu& gpu, double set_bytes) {
    return 1 + (int)(2 * (size_t)gpu.properties.l2CacheSize / set_bytes);
}

// Sets the ceiling to the rate of a launch of so much work, in the modes asked for, and prints it.
static inline void measure_ceiling(BenchGpu* gpu, const BenchOptions& o, const RaceUnit& unit, const char* what,
                                   double work, const Launch& launch) {
    Stopwatch watch;
    std::vector<TimedGraph> graphs = {capture_launches(watch, 1, launch)};
    printf("%s, %s:", what, gpu->properties.name);
    for (int mode = 0; mode < NUM_MODES; mode++) {
        if (!o.modes[mode]) { continue; }
        const Timing t = time_graphs((BenchMode)mode, watch, gpu->meter, graphs)[0];
        gpu->ceiling[mode] = unit.rate_scale * work / t.ms;
        printf(" %s %.1f %s", mode_names[mode], gpu->ceiling[mode], unit.rate);
        if (isfinite(t.mj)) { printf(" at %.2f %s", 1e9 * t.mj / work, unit.energy); }
    }
    printf("\n");
    cuda_check(cudaGraphExecDestroy(graphs[0].executable));
}

// TFLOP/s of an 8192^3 GEMM in the training precision (fp32: true fp32, not tf32), on random data, in the modes asked for
static inline void measure_gemm(BenchGpu* gpu, const BenchOptions& o) {
    const int n = 8192;
    const cudaDataType_t type = CudaType<floatX>::value;
    const size_t elements = (size_t)n * n;
    Buffer A = buffer_allocate(elements * sizeof(floatX)), B = buffer_allocate(elements * sizeof(floatX));
    Buffer C = buffer_allocate(elements * sizeof(floatX)), workspace = buffer_allocate(32 << 20);
    fill_normal<<<(unsigned)(elements / 256), 256>>>(A.as<floatX>(), elements, 7);
    fill_normal<<<(unsigned)(elements / 256), 256>>>(B.as<floatX>(), elements, 8);
    cuda_check(cudaGetLastError());
    cuda_check(cudaDeviceSynchronize());
    cublasHandle_t handle;
    cublas_check(cublasCreate(&handle));
    const float one = 1, zero = 0;
    auto launch = [&](int, cudaStream_t stream) {
        cublas_check(cublasSetStream(handle, stream));
        cublas_check(cublasSetWorkspace(handle, workspace.data, workspace.bytes));
        cublas_check(cublasGemmEx(handle, CUBLAS_OP_T, CUBLAS_OP_N, n, n, n, &one, A.data, type, n, B.data, type, n,
                                  &zero, C.data, type, n, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT));
    };
    measure_ceiling(gpu, o, FLOPS, "GEMM 8192^3, " PRECISION_NAME, 2.0 * n * n * n, launch);
    cublas_check(cublasDestroy(handle));
}

// ----------------------------------------------------------------------------
// Rows of the leaderboard

// First line of a command's output, or "unknown".
static inline std::string output_of(const char* command) {
    char line[128] = "";
    FILE* f = popen(command, "r");
    if (f && !fgets(line, sizeof(line), f)) { line[0] = '\0'; }
    if (f) { pclose(f); }
    line[strcspn(line, "\n")] = '\0';
    return line[0] ? line : "unknown";
}

// gpu, driver, cuda, date, commit
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

// A configuration in a race: the results of its check, and how to launch it on one of several sets of tensors
struct Racer {
    std::string config;
    const char* trains; // yes, forced or no
    double rel_err;
    bool deterministic;
    Launch launch;
};
// A race: the operation's own columns of a row, and the work of a launch
struct Race {
    std::string columns, values; // such as "direction,variant,precision,B,T,NH,HS"
    double work;                 // of a launch, in FLOPs or bytes
    int sets;
    const RaceUnit* unit = &FLOPS;
    double least_bytes = 0; // that a launch must move; where it is not 0, a row says GB/s of them, too
};

static inline std::string csv_header(const Race& race) {
    return "gpu,driver,cuda,date,commit," + race.columns + ",config,trains,mode,ms," + race.unit->rate_column + ",mj," +
           race.unit->energy_column + ",sm_mhz," + race.unit->share_column + (race.least_bytes ? ",gb_per_s" : "") +
           ",rel_err,deterministic";
}
// A number, or nothing where it was not measured
static inline std::string csv_number(const char* format, double x) {
    char text[32] = "";
    if (isfinite(x)) { snprintf(text, sizeof(text), format, x); }
    return text;
}
// The share of the ceiling. NaN where that is not known, or is passed by more than 25%: then it was measured beside other work.
// True shares reach 105% in the leaderboard.
static inline double share_of(double rate, double ceiling) { return rate <= 1.25 * ceiling ? rate / ceiling : NAN; }
static inline std::string csv_row(const Race& race, const Racer& r, BenchMode mode, const Timing& t,
                                  const std::string& environment, double ceiling) {
    const double rate = race.unit->rate_scale * race.work / t.ms;
    std::string row = environment + "," + race.values + "," + r.config + "," + r.trains + "," + mode_names[mode];
    for (const std::string& field : {csv_number("%.5f", t.ms), csv_number("%.2f", rate), csv_number("%.4g", t.mj),
                                     csv_number("%.3f", 1e9 * t.mj / race.work), csv_number("%.0f", t.mhz),
                                     csv_number("%.4f", share_of(rate, ceiling))}) {
        row += "," + field;
    }
    if (race.least_bytes) { row += "," + csv_number("%.1f", 1e-6 * race.least_bytes / t.ms); }
    return row + "," + csv_number("%.3e", r.rel_err) + (r.deterministic ? ",yes" : ",no");
}

// Appends a row to the leaderboard, and before the first row of a file the line of column names.
static inline void append_csv(const char* path, const std::string& header, const std::string& row) {
    FILE* f = fopen_check(path, "a+");
    char first[1024] = "";
    rewind(f);
    if (fgets(first, sizeof(first), f)) {
        first[strcspn(first, "\r\n")] = '\0';
        if (header != first) { fatal("%s has other columns than this program writes: take another file", path); }
    } else {
        fprintf(f, "%s\n", header.c_str());
    }
    fseek(f, 0, SEEK_END);
    fprintf(f, "%s\n", row.c_str());
    if (fclose(f) != 0) { fatal("cannot write %s: %s", path, strerror(errno)); }
}

// Times the racers in the modes asked for, prints a row for each, and appends it to the leaderboard.
static inline void run_race(const BenchOptions& o, const BenchGpu& gpu, const Race& race,
                            const std::vector<Racer>& racers) {
    static const std::string environment = o.csv ? csv_environment(gpu.properties) : "";
    printf("%-20s %-6s %10s %8s %8s %9s %8s %6s %9s  %-13s %s%s\n", "config", "mode", "ms", race.unit->rate,
           race.unit->share, "mJ", race.unit->energy, "MHz", "rel_err", "deterministic", "trains",
           race.least_bytes ? "  GB/s at least" : "");
    Stopwatch watch;
    std::vector<TimedGraph> graphs;
    for (const Racer& r : racers) { graphs.push_back(capture_launches(watch, race.sets, r.launch)); }
    for (int mode = 0; mode < NUM_MODES; mode++) {
        if (!o.modes[mode]) { continue; }
        const std::vector<Timing> timings = time_graphs((BenchMode)mode, watch, gpu.meter, graphs);
        for (size_t n = 0; n < racers.size(); n++) {
            const Racer& r = racers[n];
            const Timing& t = timings[n];
            const double rate = race.unit->rate_scale * race.work / t.ms;
            printf("%-20s %-6s %10.4f %8.1f %8s %9s %8s %6s %9.2e  %-13s %-6s", r.config.c_str(), mode_names[mode],
                   t.ms, rate, csv_number("%.1f%%", 100 * share_of(rate, gpu.ceiling[mode])).c_str(),
                   csv_number("%.3f", t.mj).c_str(), csv_number("%.2f", 1e9 * t.mj / race.work).c_str(),
                   csv_number("%.0f", t.mhz).c_str(), r.rel_err, r.deterministic ? "yes" : "no", r.trains);
            if (race.least_bytes) { printf("  %.0f", 1e-6 * race.least_bytes / t.ms); }
            printf("\n");
            if (!o.csv) { continue; }
            append_csv(o.csv, csv_header(race), csv_row(race, r, (BenchMode)mode, t, environment, gpu.ceiling[mode]));
        }
    }
    for (TimedGraph& g : graphs) { cuda_check(cudaGraphExecDestroy(g.executable)); }
}

#endif
