// llmc/exchange/comm_nccl.cuh: the library is found or said to be missing, its interface is the one
// declared, and processes on several GPUs exchange, merge and end together. Without a GPU only the first part runs, with one
// GPU only what needs one: a line says so. Takes a minute with several GPUs.
#include "llmc/exchange/comm_nccl.cuh"
#include "dev/test/fixtures/unit.h"

#include <signal.h>
#include <string>
#include <vector>

#if defined(__has_include)
#if __has_include(<nccl.h>)
#include <nccl.h>
#define HAS_NCCL_H
#endif
#endif

// ----------------------------------------------------------------------------
// The interface

#if defined(HAS_NCCL_H)
// Two types that are passed alike: pointers for pointers, numbers for numbers, structs for structs, of one size.
template <class A, class B> constexpr bool passed_alike() {
    return sizeof(A) == sizeof(B) && std::is_pointer<A>::value == std::is_pointer<B>::value &&
           std::is_class<A>::value == std::is_class<B>::value;
}
template <class F, class G> struct SameInterface;
template <class R, class... A, class S, class... B> struct SameInterface<R (*)(A...), S (*)(B...)> {
    static constexpr bool value = passed_alike<R, S>() && (passed_alike<A, B>() && ... && true);
};
#define SAME_FUNCTION(name, ...)                                                                                       \
    static_assert(SameInterface<int (*)(__VA_ARGS__), decltype(&nccl##name)>::value, "nccl" #name);
NCCL_FUNCTIONS(SAME_FUNCTION)

static_assert(sizeof(NcclId) == sizeof(ncclUniqueId), "");
static_assert(NCCL_SUCCESS == (int)ncclSuccess && NCCL_INVALID_USAGE == (int)ncclInvalidUsage, "");
static_assert(NCCL_REMOTE_ERROR == (int)ncclRemoteError && NCCL_IN_PROGRESS == (int)ncclInProgress, "");
static_assert(NCCL_CHAR == (int)ncclChar && NCCL_UINT64 == (int)ncclUint64, "");
static_assert(NCCL_FLOAT == (int)ncclFloat && NCCL_DOUBLE == (int)ncclDouble && NCCL_SUM == (int)ncclSum, "");
static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic), "");
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version), "");
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking), "");
static_assert(offsetof(NcclConfig, cluster_size) == offsetof(ncclConfig_t, cgaClusterSize), "");
static_assert(offsetof(NcclConfig, min_ctas) == offsetof(ncclConfig_t, minCTAs), "");
static_assert(offsetof(NcclConfig, max_ctas) == offsetof(ncclConfig_t, maxCTAs), "");
static_assert(offsetof(NcclConfig, net_name) == offsetof(ncclConfig_t, netName), "");

static void test_config() {
    ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
    NcclConfig ours = nccl_config();
    CHECK(ours.magic == theirs.magic && ours.version <= theirs.version && ours.size <= theirs.size);
    CHECK(ours.blocking == theirs.blocking && ours.max_ctas == theirs.maxCTAs && ours.min_ctas == theirs.minCTAs);
    CHECK(ours.cluster_size == theirs.cgaClusterSize && ours.net_name == theirs.netName);
}
#else
static void test_config() { printf("no nccl.h here: NCCL's interface is not compared\n"); }
#endif

// ----------------------------------------------------------------------------
// Finding it

static bool holds(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }

// What nccl_load says with this in the environment, "" where it finds a library
static std::string said(const char* variable, const char* value) {
    static Nccl n;
    const char* before = getenv(variable);
    std::string old = before ? before : "";
    setenv(variable, value, 1);
    status_clear();
    nccl_load(&n);
    before ? setenv(variable, old.c_str(), 1) : unsetenv(variable);
    return status_message();
}

// A library with all the names, of version 2.12.7
static void write_old_library(const char* path) {
    std::string source = "int ncclGetVersion(int* v) { *v = 21207; return 0; }\n", c = std::string(path) + ".c";
#define OTHER_FUNCTION(name, ...)                                                                                      \
    if (std::string(#name) != "GetVersion") { source += "int nccl" #name "(void) { return 0; }\n"; }
    NCCL_FUNCTIONS(OTHER_FUNCTION)
    source += "const char* ncclGetErrorString(int r) { (void)r; return \"\"; }\n";
    unit_write(c.c_str(), source.data(), source.size());
    std::string command = "cc -shared -fPIC -o " + std::string(path) + " " + c;
    CHECK(system(command.c_str()) == 0);
}

static void test_finding() {
    std::string text = said("NCCL_LIBRARY", "/nothing/libnccl.so.2");
    CHECK(holds(text, "NCCL_LIBRARY=/nothing/libnccl.so.2 cannot be loaded"));
    CHECK(holds(said("NCCL_LIBRARY", "libm.so.6"), "libm.so.6 has no function nccl"));
    write_old_library(unit_path("old.so"));
    text = said("NCCL_LIBRARY", unit_path("old.so"));
    CHECK(holds(text, "NCCL 2.12.7 in ") && holds(text, "too old: 2.17 or newer") && holds(text, "NCCL_LIBRARY="));
    char version[32], path[PATH_MAX];
    CHECK(std::string(nccl_version_text(version, sizeof(version), 22703)) == "2.27.3");

    // Python's package, as a python3 tells: here a script
    std::string script = "#!/bin/sh\nprintf /some/nccl\n", old = getenv("PATH");
    unit_write(unit_path("python3"), script.data(), script.size());
    CHECK(chmod(unit_path("python3"), 0755) == 0);
    setenv("PATH", (std::string(unit_folder) + ":" + old).c_str(), 1);
    nccl_python_path_(path, sizeof(path));
    CHECK(std::string(path) == "/some/nccl/lib/libnccl.so.2");
    setenv("PATH", "/nothing", 1);
    nccl_python_path_(path, sizeof(path));
    CHECK(path[0] == '\0');
    text = said("NCCL_LIBRARY", ""); // where the system has none either, the line says how to get one
    CHECK(text.empty() ||
          (holds(text, "libnccl2") && holds(text, "pip install nvidia-nccl-cu") && holds(text, "NCCL_LIBRARY=")));
    setenv("PATH", old.c_str(), 1);
    status_clear();
}

// ----------------------------------------------------------------------------
// Processes

typedef void (*Body)(Comm* c);
struct Ended {
    int exit_code; // minus the signal that ended it
    double seconds;
    std::string text; // stderr
};
enum { MOST = 8, LIMIT = 90 }; // processes; seconds

static int listen_somewhere(int* port) {
    struct sockaddr_in a = {};
    socklen_t length = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd < 0 || bind(fd, (struct sockaddr*)&a, sizeof(a)) != 0 || listen(fd, 64) != 0 ||
        getsockname(fd, (struct sockaddr*)&a, &length) != 0) {
        fatal("no socket: %s", strerror(errno));
    }
    *port = ntohs(a.sin_port);
    return fd;
}

static void process(int rank, int size, int listener, int port, double fault_timeout, const char* log, Body body) {
    Comm* c = NULL;
    CommSettings s = {};
    if (freopen(log, "w", stderr) == NULL) { _exit(98); }
    setvbuf(stderr, NULL, _IONBF, 0); // as it was: fatal() flushes nothing
    s.rank = rank, s.size = size, s.address = "127.0.0.1", s.port = port, s.token = "test", s.settings = "";
    s.listener = rank == 0 ? listener : -1;
    s.connect_timeout = 20, s.fault_timeout = fault_timeout;
    check(comm_open(&c, s));
    body(c);
    comm_close(c);
    fflush(NULL);
    exit(0);
}

// Runs `body` in `size` processes, and waits for all but those that are stopped, which it kills.
static std::vector<Ended> run(int size, double fault_timeout, Body body) {
    std::vector<Ended> ended((size_t)size, Ended{-SIGKILL, LIMIT, ""});
    std::vector<pid_t> pids((size_t)size);
    int port = 0, listener = listen_somewhere(&port), left = size;
    double begin = wall_seconds();
    fflush(NULL);
    for (int r = 0; r < size; r++) {
        const char* log = unit_path(("rank" + std::to_string(r)).c_str());
        pids[r] = fork();
        if (pids[r] == 0) { process(r, size, listener, port, fault_timeout, log, body); }
    }
    close(listener);
    for (int stopped = 0; left > stopped && wall_seconds() - begin < LIMIT; poll(NULL, 0, 20)) {
        for (int r = 0; r < size; r++) {
            int status = 0;
            if (pids[r] == 0 || waitpid(pids[r], &status, WNOHANG | WUNTRACED) != pids[r]) { continue; }
            stopped += WIFSTOPPED(status) ? 1 : 0;
            if (WIFSTOPPED(status)) { continue; }
            ended[r].exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
            ended[r].seconds = wall_seconds() - begin;
            pids[r] = 0;
            left--;
        }
    }
    for (int r = 0; r < size; r++) {
        size_t bytes = 0;
        if (pids[r] != 0) { kill(pids[r], SIGKILL), waitpid(pids[r], NULL, 0); }
        char* text = unit_read(unit_path(("rank" + std::to_string(r)).c_str()), &bytes);
        ended[r].text = text;
        free(text);
    }
    return ended;
}

static bool one_line(const std::string& text) { return !text.empty() && text.find('\n') == text.size() - 1; }

// Process r ended with exit code 1 and one line that holds the words, within so many seconds of the start.
static void check_error(const std::vector<Ended>& ended, int r, const char* words, double seconds) {
    const Ended& e = ended[r];
    if (!CHECK(e.exit_code == 1 && one_line(e.text) && holds(e.text, words) && e.seconds < seconds)) {
        printf("    rank %d: exit code %d after %.1f s, expected one line with '%s', and: %s\n", r, e.exit_code,
               e.seconds, words, e.text.c_str());
    }
}

static void open_nccl(Comm* c) {
    CommDevice device;
    check(nccl_open(&device, c, comm_rank(c)));
    comm_use_device(c, device);
}

static cudaStream_t new_stream() {
    cudaStream_t stream;
    cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    return stream;
}

// ----------------------------------------------------------------------------
// What they do

__device__ unsigned char byte_of(unsigned seed, size_t i) {
    return (unsigned char)((seed * 2654435761u + i * 97) >> 5);
}
__global__ void write_kernel(unsigned char* x, size_t n, unsigned seed, unsigned long long nanoseconds) {
    unsigned long long begin = mov_globaltimer();
    while (mov_globaltimer() - begin < nanoseconds) {}
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) { x[i] = byte_of(seed, i); }
}
__global__ void compare_kernel(unsigned long long* wrong, const unsigned char* x, size_t n, unsigned seed) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n && x[i] != byte_of(seed, i)) { atomicAdd(wrong, 1ull); }
}

static const size_t SIZES[] = {0, 1, 3, 4, 1000, 65537, 1 << 20};
enum { BLOCKS = 3, LARGEST = (1 << 20) + 256 };
static size_t size_of_block(unsigned seed) { return SIZES[seed * 2246822519u >> 8 & 1 ? seed % 7 : seed / 7 % 7]; }

// Rounds of several blocks to and from each rank, of all sizes, between kernels and without a synchronisation; its own stay.
static void exchanges(Comm* c) {
    int rank = comm_rank(c), size = comm_size(c), num = size * BLOCKS;
    open_nccl(c);
    cudaStream_t stream = new_stream();
    unsigned char *sent, *received;
    unsigned long long *wrong, host = 1;
    cuda_check(cudaMalloc(&sent, (size_t)num * LARGEST));
    cuda_check(cudaMalloc(&received, (size_t)num * LARGEST));
    cuda_check(cudaMalloc(&wrong, sizeof(host)));
    cuda_check(cudaMemsetAsync(wrong, 0, sizeof(host), stream));
    std::vector<CommBlock> out(num), in(num);
    for (unsigned round = 0; round < 20; round++) {
        auto seed = [&](int from, int to, int k) { return ((round * 16 + from) * 16 + to) * 16 + k + 1; };
        for (int i = 0; i < num; i++) {
            int other = i % size, k = i / size;
            out[i] = {other, sent + (size_t)i * LARGEST, size_of_block(seed(rank, other, k))};
            in[i] = {other, received + (size_t)i * LARGEST, size_of_block(seed(other, rank, k))};
            write_kernel<<<LARGEST / 256, 256, 0, stream>>>((unsigned char*)out[i].data, out[i].bytes,
                                                            seed(rank, other, k), i == 0 ? 100000 * rank : 0);
        }
        cuda_check(cudaMemsetAsync(received, 0, (size_t)num * LARGEST, stream));
        check(comm_tensor_exchange(c, out.data(), num, in.data(), num, stream));
        for (int i = 0; i < num; i++) {
            if (i % size == rank) { continue; }
            compare_kernel<<<LARGEST / 256, 256, 0, stream>>>(wrong, (unsigned char*)in[i].data, in[i].bytes,
                                                              seed(i % size, rank, i / size));
        }
    }
    cuda_check(cudaMemcpyAsync(&host, wrong, sizeof(host), cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    if (host != 0) { fatal("%llu bytes are wrong", host); }
}

template <class T> static void merge(Comm* c, CommNumber type, std::vector<T> numbers, cudaStream_t stream) {
    size_t n = numbers.size(), bytes = n * sizeof(T);
    std::vector<T> own(n), got(n);
    for (size_t i = 0; i < n; i++) { own[i] = (int)(i % comm_size(c)) == comm_rank(c) ? numbers[i] : (T)0; }
    T* device;
    cuda_check(cudaMalloc(&device, bytes));
    cuda_check(cudaMemcpyAsync(device, own.data(), bytes, cudaMemcpyHostToDevice, stream));
    check(comm_tensor_merge(c, device, n, type, stream));
    cuda_check(cudaMemcpyAsync(got.data(), device, bytes, cudaMemcpyDeviceToHost, stream));
    cuda_check(cudaStreamSynchronize(stream));
    for (size_t i = 0; i < n; i++) {
        if (got[i] != numbers[i] && !(numbers[i] != numbers[i] && got[i] != got[i])) { fatal("merge: number %zu", i); }
    }
}

static void merges(Comm* c) {
    open_nccl(c);
    cudaStream_t stream = new_stream();
    std::vector<float> floats;
    std::vector<double> doubles;
    std::vector<uint64_t> words;
    for (int i = 0; i < 190001; i++) {
        floats.push_back(i % 1000 == 7 ? NAN : i % 1000 == 8 ? INFINITY : i % 1000 == 9 ? -INFINITY : 1.1f * (float)i);
        doubles.push_back((double)i * 1.1);
        words.push_back(UINT64_MAX - (uint64_t)i);
    }
    merge(c, COMM_FLOAT, floats, stream);
    merge(c, COMM_FLOAT, std::vector<float>{1.5f}, stream);
    merge(c, COMM_DOUBLE, doubles, stream);
    merge(c, COMM_UINT64, words, stream);
    check(comm_tensor_merge(c, NULL, 0, COMM_FLOAT, stream));
}

// An exchange with all others, which one of them never joins: the wait in the stream must end, and the cause be known.
static void wait_for_all(Comm* c) {
    size_t bytes = 64 << 20;
    cudaStream_t stream = new_stream();
    std::vector<CommBlock> out, in;
    for (int r = 0; r < comm_size(c); r++) {
        char* memory;
        cuda_check(cudaMalloc(&memory, 2 * bytes));
        out.push_back({r, memory, bytes}), in.push_back({r, memory + bytes, bytes});
    }
    for (int i = 0; i < 1000; i++) { // more than the connections buffer
        check(comm_tensor_exchange(c, out.data(), (int)out.size(), in.data(), (int)in.size(), stream));
        if (i % 10 == 9) {
            cuda_check(cudaStreamSynchronize(stream));
            check(comm_health(c));
        }
    }
    fatal("all transfers were done");
}
static int last_rank(Comm* c) { return comm_rank(c) == comm_size(c) - 1; }

static void killed(Comm* c) {
    open_nccl(c);
    if (last_rank(c)) {
        poll(NULL, 0, 1000);
        raise(SIGKILL);
    }
    wait_for_all(c);
}
static void stopped(Comm* c) {
    open_nccl(c);
    if (last_rank(c)) {
        poll(NULL, 0, 1000);
        raise(SIGSTOP);
    }
    wait_for_all(c);
}
static void fails(Comm* c) {
    open_nccl(c);
    if (last_rank(c)) {
        poll(NULL, 0, 1000);
        fatal("the disk is full");
    }
    wait_for_all(c);
}
static void dies_while_opening(Comm* c) {
    if (last_rank(c)) {
        NcclId id = {}; // as nccl_open, up to here
        check(comm_broadcast(c, &id, sizeof(id), 0));
        poll(NULL, 0, 500);
        _exit(3);
    }
    open_nccl(c);
    fatal("opened without the last process");
}
static void same_gpu(Comm* c) {
    CommDevice device;
    check(nccl_open(&device, c, 0));
    fatal("two processes have one GPU");
}
static void no_such_gpu(Comm* c) {
    CommDevice device;
    check(nccl_open(&device, c, last_rank(c) ? 99 : comm_rank(c)));
    fatal("GPU 99 was opened");
}

// ----------------------------------------------------------------------------

// In a process of its own: this one must not use CUDA before it forks.
static int count_gpus() {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int count = 0;
        _exit(cudaGetDeviceCount(&count) == cudaSuccess ? count : 0);
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

static void check_all_well(const char* what, int size, Body body) {
    std::vector<Ended> ended = run(size, 20, body);
    for (int r = 0; r < size; r++) {
        if (!unit_check(ended[r].exit_code == 0 && ended[r].text.empty(), what, __FILE__, __LINE__)) {
            printf("    rank %d of %d: exit code %d, %s\n", r, size, ended[r].exit_code, ended[r].text.c_str());
        }
    }
}

static void test_faults(int size) {
    char last[32];
    int r = size - 1;
    snprintf(last, sizeof(last), "rank %d", r);
    std::vector<Ended> ended = run(size, 20, killed);
    CHECK(ended[r].exit_code == -SIGKILL);
    for (int i = 0; i < r; i++) { check_error(ended, i, last, 60); }
    ended = run(size, 8, stopped);
    for (int i = 0; i < r; i++) { check_error(ended, i, last, 60); }
    ended = run(size, 20, fails);
    for (int i = 0; i < size; i++) { check_error(ended, i, "the disk is full", 60); }
    for (int i = 0; i < size; i++) { check_error(ended, i, last, 60); }
    ended = run(size, 20, dies_while_opening);
    CHECK(ended[r].exit_code == 3);
    for (int i = 0; i < r; i++) { check_error(ended, i, last, 60); }
    ended = run(size, 20, no_such_gpu);
    for (int i = 0; i < size; i++) { check_error(ended, i, "invalid device ordinal", 60); }
}

int main() {
    test_config();
    test_finding();
    int gpus = count_gpus();
    static Nccl n;
    status_clear();
    Status found = nccl_load(&n);
    if (gpus == 0 || found != STATUS_OK) {
        printf("processes: skipped, %s\n", gpus == 0 ? "no GPU here" : status_message());
        return unit_end();
    }
    std::vector<Ended> ended = run(2, 20, same_gpu);
    for (int i = 0; i < 2; i++) { check_error(ended, i, "Duplicate GPU", 60); }
    if (gpus < 2) {
        printf("processes on several GPUs: skipped, one GPU here\n");
        return unit_end();
    }
    int size = gpus < MOST ? gpus : (int)MOST;
    check_all_well("exchanges", size, exchanges);
    check_all_well("exchanges of two", 2, exchanges);
    check_all_well("merges", size, merges);
    test_faults(size);
    return unit_end();
}
