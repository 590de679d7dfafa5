/*
NCCL as the CommDevice of comm.h: exchange is one group of sends and receives in stream order, merge is an all-reduce.

    main thread      calls all of NCCL but the abort. The communicator is non-blocking: each call returns at once, and the
                     thread polls until its kernels are enqueued, or another process has failed
    watcher          polls for asynchronous errors of NCCL, and aborts the communicator when comm.h requests it: then its
                     kernels end, and a main thread that waits for them in cudaStreamSynchronize returns and finds the error
The mutex is held during each call, never during a wait. comm.h's own thread only sets a flag, so it can end the process even
where NCCL hangs.
*/
#ifndef LLMC_EXCHANGE_COMM_NCCL_CUH
#define LLMC_EXCHANGE_COMM_NCCL_CUH

#include <dlfcn.h>
#include <limits.h>
#include <sched.h>

#include <vector>

#include "llmc/comm/comm.h"
#include "llmc/cuda/common.cuh"

// ----------------------------------------------------------------------------
// The library, loaded at run time: only runs on several GPUs need it, and builds do not. Declared here is the part of its C
// interface that these runs use, unchanged since 2.17. It is the one that the environment variable NCCL_LIBRARY names, else
// libnccl.so.2 where the system finds it, else that of the Python package nvidia-nccl, which comes with PyTorch, for the
// python3 in PATH.

// From nccl.h; dev/test/exchange/test_nccl.cu compares them with it where there is one.
enum { NCCL_SUCCESS = 0, NCCL_INVALID_USAGE = 5, NCCL_REMOTE_ERROR = 6, NCCL_IN_PROGRESS = 7 }; // ncclResult_t
enum { NCCL_CHAR = 0, NCCL_UINT64 = 5, NCCL_FLOAT = 7, NCCL_DOUBLE = 8 };                       // ncclDataType_t
enum { NCCL_SUM = 0 };                                                                          // ncclRedOp_t
typedef struct ncclComm* NcclComm;
typedef struct {
    char internal[128];
} NcclId;

// ncclConfig_t of 2.17: a newer library uses defaults for the members that were added later.
enum { NCCL_OLDEST = 21700, NCCL_UNDEFINED = INT_MIN };
constexpr unsigned NCCL_MAGIC = 0xcafebeef;
typedef struct {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, min_ctas, max_ctas;
    const char* net_name;
} NcclConfig;

static inline NcclConfig nccl_config(void) {
    NcclConfig c = {sizeof(NcclConfig), NCCL_MAGIC,     NCCL_OLDEST,    NCCL_UNDEFINED,
                    NCCL_UNDEFINED,     NCCL_UNDEFINED, NCCL_UNDEFINED, NULL};
    return c;
}

// Functions, by name, with what they take; all return an ncclResult_t.
#define NCCL_FUNCTIONS(X)                                                                                              \
    X(GetVersion, int* version)                                                                                        \
    X(GetUniqueId, NcclId* id)                                                                                         \
    X(CommInitRankConfig, NcclComm* comm, int size, NcclId id, int rank, NcclConfig* config)                           \
    X(CommFinalize, NcclComm comm)                                                                                     \
    X(CommDestroy, NcclComm comm)                                                                                      \
    X(CommAbort, NcclComm comm)                                                                                        \
    X(CommGetAsyncError, NcclComm comm, int* error)                                                                    \
    X(GroupStart, void)                                                                                                \
    X(GroupEnd, void)                                                                                                  \
    X(Send, const void* sent, size_t count, int type, int rank, NcclComm comm, cudaStream_t stream)                    \
    X(Recv, void* received, size_t count, int type, int rank, NcclComm comm, cudaStream_t stream)                      \
    X(AllReduce, const void* sent, void* received, size_t count, int type, int op, NcclComm comm, cudaStream_t stream) \
    X(AllGather, const void* sent, void* received, size_t count, int type, NcclComm comm, cudaStream_t stream)         \
    X(ReduceScatter, const void* sent, void* received, size_t count, int type, int op, NcclComm comm,                  \
      cudaStream_t stream)

#define NCCL_MEMBER_(name, ...) int (*name)(__VA_ARGS__);
typedef struct {
    NCCL_FUNCTIONS(NCCL_MEMBER_)
    const char* (*GetErrorString)(int result);
    const char* (*GetLastError)(NcclComm comm);
    void* handle;
    int version;         // as 22703 for 2.27.3
    char path[PATH_MAX]; // of the file
} Nccl;
#undef NCCL_MEMBER_

// "2.27.3"
static inline const char* nccl_version_text(char* text, size_t size, int version) {
    snprintf(text, size, "%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return text;
}

// The path of the library in the Python package; "" if there is none. Starts a Python interpreter.
static inline void nccl_python_path_(char* path, size_t size) {
    FILE* pipe = popen("python3 -c \"import importlib.util as u; s = u.find_spec('nvidia.nccl'); "
                       "print(list(s.submodule_search_locations)[0] if s else '', end='')\" 2>/dev/null",
                       "r");
    size_t n = pipe != NULL ? fread(path, 1, size - 32, pipe) : 0;
    if (pipe != NULL) { pclose(pipe); }
    if (n > 0) { n += (size_t)snprintf(path + n, 32, "/lib/libnccl.so.2"); }
    path[n] = '\0';
}

static inline Status nccl_open_library_(Nccl* n) {
    const char* named = getenv("NCCL_LIBRARY");
    snprintf(n->path, sizeof(n->path), "%s", named != NULL && named[0] != '\0' ? named : "libnccl.so.2");
    if (named != NULL && named[0] != '\0') {
        n->handle = dlopen(named, RTLD_NOW | RTLD_LOCAL);
        return n->handle != NULL ? STATUS_OK : status_fail("NCCL_LIBRARY=%s cannot be loaded: %s", named, dlerror());
    }
    n->handle = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    if (n->handle != NULL) { return STATUS_OK; }
    nccl_python_path_(n->path, sizeof(n->path));
    if (n->path[0] != '\0') { n->handle = dlopen(n->path, RTLD_NOW | RTLD_LOCAL); }
    if (n->handle != NULL) { return STATUS_OK; }
    return status_fail(
        "several GPUs need NCCL, and there is no libnccl.so.2 here: install Debian's package libnccl2, or "
        "pip install nvidia-nccl-cu%d, or name the file with NCCL_LIBRARY=",
        CUDART_VERSION / 1000);
}

// Finds the library, its functions and its version. The handle stays open, also after an error.
static inline Status nccl_load(Nccl* n) {
    char version[32];
    const char* missing = NULL;
    Dl_info file;
    memset(n, 0, sizeof(*n));
    TRY(nccl_open_library_(n));
#define NCCL_FIND_(name, ...)                                                                                          \
    n->name = (int (*)(__VA_ARGS__))dlsym(n->handle, "nccl" #name);                                                    \
    missing = missing == NULL && n->name == NULL ? "nccl" #name : missing;
    NCCL_FUNCTIONS(NCCL_FIND_)
#undef NCCL_FIND_
    n->GetErrorString = (const char* (*)(int))dlsym(n->handle, "ncclGetErrorString");
    n->GetLastError = (const char* (*)(NcclComm))dlsym(n->handle, "ncclGetLastError"); // may be NULL
    if (n->GetErrorString == NULL) { missing = "ncclGetErrorString"; }
    if (n->GetVersion != NULL && dladdr((void*)n->GetVersion, &file) != 0 && file.dli_fname != NULL) {
        snprintf(n->path, sizeof(n->path), "%s", file.dli_fname);
    }
    if (n->GetVersion != NULL && n->GetVersion(&n->version) == NCCL_SUCCESS && n->version < NCCL_OLDEST) {
        return status_fail("NCCL %s in %s is too old: 2.17 or newer is needed; NCCL_LIBRARY= names another",
                           nccl_version_text(version, sizeof(version), n->version), n->path);
    }
    return missing == NULL ? STATUS_OK : status_fail("%s has no function %s: it is no NCCL", n->path, missing);
}

// For --doctor: version and file; an error if there is none.
static inline Status nccl_find_version(char* text, size_t size) {
    static Nccl n; // large
    char version[32];
    TRY(nccl_load(&n));
    snprintf(text, size, "%s, %s", nccl_version_text(version, sizeof(version), n.version), n.path);
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// The transport

// The maximum of CTAs of NCCL's kernels, each of which takes an SM from the compute kernels that run at the same time. On two
// H200s 12 and more saturate NVLink with large buckets; with 32, steps are slightly shorter than with 16, for 400 MiB more of
// buffers (dev/LOG.md). The environment variable NCCL_MAX_CTAS overrides it; dev/bench/nccl_exchange.cu measures.
constexpr int NCCL_CTAS = 16;

constexpr double NCCL_OPEN_TIMEOUT = 300.0, NCCL_CLOSE_TIMEOUT = 10.0; // seconds

typedef struct {
    Nccl library;
    Comm* processes;
    int device; // index of the GPU
    int has_watcher;
    pthread_t watcher;
    pthread_mutex_t mutex; // guards what follows
    NcclComm comm;         // NULL before it is opened, and once it is aborted or closed
    int stop;              // 1: the watcher shall end
    int asked;             // atomic; 1: the communicator shall be aborted
} NcclTransport;

// ----------------------------------------------------------------------------
// Errors

// Records an error of one line: what `call` returned, and NCCL's own message where there is one.
static inline Status nccl_fail(NcclTransport* t, const char* call, int result) {
    const char* words = t->library.GetLastError != NULL && t->comm != NULL ? t->library.GetLastError(t->comm) : NULL;
    char line[512] = "";
    if (words != NULL && words[0] != '\0') {
        snprintf(line, sizeof(line), ": %s", words);
        for (char* c = line; *c != '\0'; c++) { *c = *c == '\n' ? ' ' : *c; }
    }
    return status_fail("NCCL: %s returned %d: %s%s", call, result, t->library.GetErrorString(result), line);
}

// Whether a call has begun or done what it was asked: a non-blocking communicator returns NCCL_IN_PROGRESS, too.
static inline bool nccl_accepted_(int result) { return result == NCCL_SUCCESS || result == NCCL_IN_PROGRESS; }

// Locks the mutex and returns the communicator; NULL, without the lock, once it is aborted.
static inline NcclComm nccl_lock_(NcclTransport* t) {
    pthread_mutex_lock(&t->mutex);
    if (t->comm != NULL && !__atomic_load_n(&t->asked, __ATOMIC_ACQUIRE)) { return t->comm; }
    pthread_mutex_unlock(&t->mutex);
    return NULL;
}

static inline Status nccl_aborted_(NcclTransport* t) {
    TRY(comm_health(t->processes));
    return status_fail("NCCL's communicator was aborted");
}

// Polls until the last call is complete: a non-blocking communicator accepts the next call only then. timeout in seconds, 0 for
// none.
static inline Status nccl_wait(NcclTransport* t, const char* call, double timeout) {
    double begin = wall_seconds();
    for (;;) {
        int state = NCCL_SUCCESS;
        NcclComm comm = nccl_lock_(t);
        if (comm == NULL) { return nccl_aborted_(t); }
        int result = t->library.CommGetAsyncError(comm, &state);
        if (result == NCCL_SUCCESS) { result = state; }
        Status status = nccl_accepted_(result) ? STATUS_OK : nccl_fail(t, call, result);
        pthread_mutex_unlock(&t->mutex);
        if (status != STATUS_OK || result == NCCL_SUCCESS) { return status; }
        TRY(comm_health(t->processes));
        double waited = wall_seconds() - begin;
        waited < 0.002 ? (void)sched_yield() : (void)poll(NULL, 0, 1);
        if (timeout > 0.0 && waited > timeout) {
            return status_fail("NCCL: %s was not done within %g s", call, timeout);
        }
    }
}

// ----------------------------------------------------------------------------
// The watcher

// Whether NCCL has an asynchronous error in this process; `text` describes it.
static inline bool nccl_noticed_(NcclTransport* t, char* text, size_t size) {
    int state = NCCL_SUCCESS;
    NcclComm comm = nccl_lock_(t);
    if (comm == NULL) { return false; }
    bool failed = t->library.CommGetAsyncError(comm, &state) == NCCL_SUCCESS && !nccl_accepted_(state);
    if (failed) {
        status_clear();
        nccl_fail(t, "a transfer", state);
        snprintf(text, size, "rank %d: %.900s", comm_rank(t->processes), status_message());
        status_clear();
    }
    pthread_mutex_unlock(&t->mutex);
    return failed;
}

static inline void* nccl_watch_(void* context) {
    NcclTransport* t = (NcclTransport*)context;
    char text[1024];
    int told = 0;
    cudaSetDevice(t->device);
    for (;; poll(NULL, 0, 20)) {
        pthread_mutex_lock(&t->mutex);
        int asked = __atomic_load_n(&t->asked, __ATOMIC_ACQUIRE), stop = t->stop;
        NcclComm comm = t->comm;
        if (asked) { t->comm = NULL; }
        pthread_mutex_unlock(&t->mutex);
        if (asked && comm != NULL) { t->library.CommAbort(comm); }
        if (asked || stop) { return NULL; }
        if (!told && nccl_noticed_(t, text, sizeof(text))) {
            told = 1;
            comm_judge(t->processes, text); // if a process has ended, that is the cause, not this process's error
            status_clear();
        }
    }
}

// ----------------------------------------------------------------------------
// The CommDevice

// The sends and receives of an exchange as one NCCL group. The first error is kept; the group is closed in any case.
static inline Status nccl_group_(NcclTransport* t, const CommBlock* sent, int num_sent, const CommBlock* received,
                                 int num_received, cudaStream_t stream) {
    const Nccl* n = &t->library;
    const char* call = "ncclGroupEnd";
    NcclComm comm = nccl_lock_(t);
    if (comm == NULL) { return nccl_aborted_(t); }
    int worst = n->GroupStart();
    auto add = [&](const CommBlock& b, bool send) {
        if (worst != NCCL_SUCCESS || b.rank == comm_rank(t->processes) || b.bytes == 0) { return; }
        int result = send ? n->Send(b.data, b.bytes, NCCL_CHAR, b.rank, comm, stream)
                          : n->Recv(b.data, b.bytes, NCCL_CHAR, b.rank, comm, stream);
        if (!nccl_accepted_(result)) { worst = result, call = send ? "ncclSend" : "ncclRecv"; }
    };
    for (int i = 0; i < num_sent; i++) { add(sent[i], true); }
    for (int i = 0; i < num_received; i++) { add(received[i], false); }
    int ended = n->GroupEnd();
    if (worst == NCCL_SUCCESS) { worst = ended; }
    Status status = nccl_accepted_(worst) ? STATUS_OK : nccl_fail(t, call, worst);
    pthread_mutex_unlock(&t->mutex);
    return status;
}

static inline Status nccl_exchange_(void* context, const CommBlock* sent, int num_sent, const CommBlock* received,
                                    int num_received, void* stream) {
    NcclTransport* t = (NcclTransport*)context;
    TRY(comm_health(t->processes));
    TRY(nccl_group_(t, sent, num_sent, received, num_received, (cudaStream_t)stream));
    return nccl_wait(t, "an exchange", 0.0);
}

static inline Status nccl_merge_(void* context, void* numbers, size_t count, CommNumber type, void* stream) {
    NcclTransport* t = (NcclTransport*)context;
    int kind = type == COMM_FLOAT ? NCCL_FLOAT : type == COMM_DOUBLE ? NCCL_DOUBLE : NCCL_UINT64;
    TRY(comm_health(t->processes));
    if (count == 0) { return STATUS_OK; }
    NcclComm comm = nccl_lock_(t);
    if (comm == NULL) { return nccl_aborted_(t); }
    int result = t->library.AllReduce(numbers, numbers, count, kind, NCCL_SUM, comm, (cudaStream_t)stream);
    Status status = nccl_accepted_(result) ? STATUS_OK : nccl_fail(t, "ncclAllReduce", result);
    pthread_mutex_unlock(&t->mutex);
    TRY(status);
    return nccl_wait(t, "ncclAllReduce", 0.0);
}

// Called by comm.h's thread
static inline void nccl_abort_(void* context) {
    NcclTransport* t = (NcclTransport*)context;
    __atomic_store_n(&t->asked, 1, __ATOMIC_RELEASE); // without the mutex, which a call that hangs may hold
}

// Closes a healthy communicator after all of its work is done; aborts any other.
static inline void nccl_close_(void* context) {
    NcclTransport* t = (NcclTransport*)context;
    NcclComm comm = comm_health(t->processes) == STATUS_OK ? nccl_lock_(t) : NULL;
    if (comm != NULL) {
        int result = t->library.CommFinalize(comm);
        pthread_mutex_unlock(&t->mutex);
        int well = nccl_accepted_(result) && nccl_wait(t, "ncclCommFinalize", NCCL_CLOSE_TIMEOUT) == STATUS_OK;
        comm = well ? nccl_lock_(t) : NULL;
        if (comm != NULL) {
            t->comm = NULL;
            t->library.CommDestroy(comm);
            pthread_mutex_unlock(&t->mutex);
        }
    }
    pthread_mutex_lock(&t->mutex);
    if (t->comm != NULL) { nccl_abort_(t); }
    t->stop = 1;
    pthread_mutex_unlock(&t->mutex);
    if (t->has_watcher) { pthread_join(t->watcher, NULL); }
    pthread_mutex_destroy(&t->mutex);
    free(t);
}

// ----------------------------------------------------------------------------
// Opening

// Waits for the stream; an error as soon as a process has failed.
static inline Status nccl_synchronize_(NcclTransport* t, cudaStream_t stream) {
    for (cudaError_t error; (error = cudaStreamQuery(stream)) != cudaSuccess; poll(NULL, 0, 1)) {
        if (error != cudaErrorNotReady) { return cuda_try(error); }
        TRY(comm_health(t->processes));
    }
    return STATUS_OK;
}

// A first transfer between each pair and a first all-reduce, in which NCCL connects the pairs and allocates its memory. Each
// process sends its rank to every other, and all add 1; the results are checked. After an error nothing is freed: the process
// is about to end, perhaps with kernels in flight.
static inline Status nccl_greet_(NcclTransport* t) {
    const size_t size = (size_t)comm_size(t->processes), rank = (size_t)comm_rank(t->processes);
    std::vector<uint64_t> numbers(size + 1); // of each rank, and the sum
    std::vector<CommBlock> sent, received;
    cudaStream_t stream;
    uint64_t* device;
    const size_t bytes = numbers.size() * sizeof(uint64_t);
    TRY(cuda_try(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)));
    TRY(cuda_try(cudaMalloc(&device, bytes)));
    numbers[rank] = rank, numbers[size] = 1;
    for (size_t i = 0; i < size; i++) {
        sent.push_back({(int)i, device + rank, sizeof(uint64_t)});
        received.push_back({(int)i, device + i, sizeof(uint64_t)});
    }
    TRY(cuda_try(cudaMemcpyAsync(device, numbers.data(), bytes, cudaMemcpyHostToDevice, stream)));
    TRY(nccl_exchange_(t, sent.data(), (int)size, received.data(), (int)size, stream));
    TRY(nccl_merge_(t, device + size, 1, COMM_UINT64, stream));
    TRY(nccl_synchronize_(t, stream));
    TRY(cuda_try(cudaMemcpy(numbers.data(), device, bytes, cudaMemcpyDeviceToHost)));
    for (size_t i = 0; i <= size; i++) {
        if (numbers[i] == i) { continue; }
        return status_fail("NCCL moved a wrong number: %llu instead of %zu", (unsigned long long)numbers[i], i);
    }
    cudaFree(device);
    cudaStreamDestroy(stream);
    return STATUS_OK;
}

static inline Status nccl_start_(NcclTransport* t, int ctas) {
    NcclId id;
    NcclConfig config = nccl_config();
    NcclComm comm = NULL;
    int size = comm_size(t->processes), rank = comm_rank(t->processes);
    TRY(cuda_try(cudaSetDevice(t->device)));
    TRY(nccl_load(&t->library));
    memset(&id, 0, sizeof(id));
    int result = rank == 0 ? t->library.GetUniqueId(&id) : NCCL_SUCCESS;
    if (result != NCCL_SUCCESS) { return nccl_fail(t, "ncclGetUniqueId", result); }
    TRY(comm_broadcast(t->processes, &id, sizeof(id), 0));
    config.blocking = 0;
    config.max_ctas = ctas;
    result = t->library.CommInitRankConfig(&comm, size, id, rank, &config);
    pthread_mutex_lock(&t->mutex);
    t->comm = comm;
    pthread_mutex_unlock(&t->mutex);
    if (!nccl_accepted_(result)) { return nccl_fail(t, "ncclCommInitRankConfig", result); }
    if (!thread_start(&t->watcher, nccl_watch_, t)) { return status_fail("no thread to watch NCCL"); }
    t->has_watcher = 1;
    TRY(nccl_wait(t, "ncclCommInitRankConfig", NCCL_OPEN_TIMEOUT));
    return nccl_greet_(t);
}

// For comm_use_device, in a run of several processes: all of them call it, each with the index of its GPU.
static inline Status nccl_open(CommDevice* device, Comm* processes, int index, int ctas = NCCL_CTAS) {
    *device = {};
    NcclTransport* t = (NcclTransport*)calloc_check(1, sizeof(NcclTransport));
    t->processes = processes;
    t->device = index;
    pthread_mutex_init(&t->mutex, NULL);
    if (nccl_start_(t, ctas) != STATUS_OK) {
        struct timespec end;
        clock_gettime(CLOCK_REALTIME, &end);
        end.tv_sec += 3; // the process is about to end; NCCL's own threads should end before it
        nccl_abort_(t);
        if (t->has_watcher && pthread_timedjoin_np(t->watcher, NULL, &end) != 0) { return STATUS_ERROR; }
        pthread_mutex_destroy(&t->mutex);
        free(t);
        return STATUS_ERROR;
    }
    *device = {nccl_exchange_, nccl_merge_, nccl_abort_, nccl_close_, t, NULL};
    return STATUS_OK;
}

#endif
