/*
NCCL, loaded at run time: only runs on several GPUs need it, and builds do not. Declared here is the part of its C interface
that these runs use, unchanged since 2.17.

The library is the one that the environment variable NCCL_LIBRARY names, else libnccl.so.2 where the system finds it, else that
of the Python package nvidia-nccl, which comes with PyTorch, for the python3 in PATH.
*/
#ifndef LLMC_EXCHANGE_NCCL_CUH
#define LLMC_EXCHANGE_NCCL_CUH

#include <dlfcn.h>
#include <limits.h>

#include "llmc/cuda/common.cuh"

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

// "2.27.3"; up to 2.8 the number was shorter.
static inline const char* nccl_version_text(char* text, size_t size, int version) {
    int major = version < 10000 ? version / 1000 : version / 10000,
        minor = version / 100 % (version < 10000 ? 10 : 100);
    snprintf(text, size, "%d.%d.%d", major, minor, version % 100);
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

#endif
