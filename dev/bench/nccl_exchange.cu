// What exchanges of gradients cost between the GPUs of this machine, one process a GPU, for each number of CTAs that NCCL may
// take: the choice of NCCL_CTAS in llmc/exchange/comm_nccl.cuh. For each size of a bucket, in MB of all its elements:
//
//     exchange   every process sends each other one its part, as comm.h's exchange does; and NCCL's own reduce-scatter
//     gather     every process sends its part to all others, as comm.h's exchange does; and NCCL's own all-gather
//     host       microseconds of the host for one exchange
//     GEMMs      the fc GEMMs of 124M on another stream while exchanges run: what 1 GB of bucket makes them longer, in ms
//
//     make build/nccl_exchange && build/nccl_exchange         half a minute on two GPUs, 6 GB on each
#include <math.h>
#include <sys/wait.h>

#include <algorithm>
#include <vector>

#include "llmc/exchange/comm_nccl.cuh"
#include "llmc/cuda/matmul.cuh"

static const double SIZES_MB[] = {28, 125, 250, 500};
static const int CTAS[] = {1, 2, 4, 8, 12, 16, 24, 32};
static const int GEMM_ROWS = 65536, GEMM_C = 768, GEMM_OC = 3072, GEMMS = 80;
static const size_t MOST = (size_t)500 << 20;

struct Bench {
    Comm* c;
    int rank, size;
    CommDevice device;
    cudaStream_t compute, transfer; // transfers go first where there is room
    cudaEvent_t start, end;
    char *memory, *received; // (MOST) each
    Matmul mm;
    floatX *inp, *weight, *out;
};

static void create(Bench* b, Comm* c) {
    int least, greatest;
    b->c = c, b->rank = comm_rank(c), b->size = comm_size(c);
    cuda_check(cudaSetDevice(b->rank));
    cuda_check(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    cuda_check(cudaStreamCreateWithPriority(&b->compute, cudaStreamNonBlocking, least));
    cuda_check(cudaStreamCreateWithPriority(&b->transfer, cudaStreamNonBlocking, greatest));
    cuda_check(cudaEventCreate(&b->start));
    cuda_check(cudaEventCreate(&b->end));
    for (char** p : {&b->memory, &b->received}) {
        cuda_check(cudaMalloc(p, MOST));
        cuda_check(cudaMemset(*p, 0, MOST));
    }
    memset(&b->mm, 0, sizeof(b->mm));
    check(matmul_create(&b->mm, 0, b->compute));
    size_t inp = (size_t)GEMM_ROWS * GEMM_C, weight = (size_t)GEMM_C * GEMM_OC, out = (size_t)GEMM_ROWS * GEMM_OC;
    cuda_check(cudaMalloc(&b->inp, inp * sizeof(floatX)));
    cuda_check(cudaMalloc(&b->weight, weight * sizeof(floatX)));
    cuda_check(cudaMalloc(&b->out, out * sizeof(floatX)));
    cuda_check(cudaMemset(b->inp, 0x3c, inp * sizeof(floatX)));
    cuda_check(cudaMemset(b->weight, 0x3c, weight * sizeof(floatX)));
}

typedef enum { EXCHANGE, REDUCE_SCATTER, GATHER, ALL_GATHER, KINDS } Kind;

// One transfer of a bucket of so many bytes
static void transfer(Bench* b, Kind kind, size_t bytes) {
    NcclTransport* t = (NcclTransport*)b->device.context;
    size_t part = bytes / (size_t)b->size / 256 * 256;
    std::vector<CommBlock> out, in;
    int result = NCCL_SUCCESS;
    char* own = b->memory + (size_t)b->rank * part;
    for (int r = 0; r < b->size; r++) {
        if (r == b->rank) { continue; }
        out.push_back({r, kind == EXCHANGE ? b->memory + (size_t)r * part : own, part});
        in.push_back({r, (kind == EXCHANGE ? b->received : b->memory) + (size_t)r * part, part});
    }
    if (kind == EXCHANGE || kind == GATHER) {
        check(comm_tensor_exchange(b->c, out.data(), (int)out.size(), in.data(), (int)in.size(), b->transfer));
    } else if (kind == REDUCE_SCATTER) {
        result = t->library.ReduceScatter(b->memory, b->received, part / 4, NCCL_FLOAT, NCCL_SUM, t->comm, b->transfer);
    } else {
        result = t->library.AllGather(own, b->memory, part, NCCL_CHAR, t->comm, b->transfer);
    }
    if (result != NCCL_SUCCESS && result != NCCL_IN_PROGRESS) { check(nccl_fail(t, "a transfer", result)); }
    check(nccl_wait(t, "a transfer", 0.0));
}

// Milliseconds of one transfer, the median of 5 times 4; *host: microseconds of the host
static double time_transfer(Bench* b, Kind kind, size_t bytes, double* host) {
    std::vector<float> times;
    transfer(b, kind, bytes);
    for (int round = 0; round < 5; round++) {
        float ms = 0;
        cuda_check(cudaStreamSynchronize(b->transfer));
        check(comm_barrier(b->c));
        double begin = wall_seconds();
        cuda_check(cudaEventRecord(b->start, b->transfer));
        for (int i = 0; i < 4; i++) { transfer(b, kind, bytes); }
        cuda_check(cudaEventRecord(b->end, b->transfer));
        *host = (wall_seconds() - begin) * 1e6 / 4;
        cuda_check(cudaEventSynchronize(b->end));
        cuda_check(cudaEventElapsedTime(&ms, b->start, b->end));
        times.push_back(ms / 4);
    }
    std::sort(times.begin(), times.end());
    return times[2];
}

// Milliseconds of the GEMMs, with `exchanges` exchanges of 125 MB on the other stream; the median of 5
static double time_gemms(Bench* b, int exchanges) {
    std::vector<float> times;
    for (int round = 0; round < 6; round++) {
        float ms = 0;
        cuda_check(cudaDeviceSynchronize());
        check(comm_barrier(b->c));
        cuda_check(cudaEventRecord(b->start, b->compute));
        for (int i = 0; i < GEMMS; i++) {
            matmul_forward(&b->mm, b->out, b->inp, b->weight, NULL, GEMM_ROWS, GEMM_C, GEMM_OC);
            if (i < exchanges) { transfer(b, EXCHANGE, (size_t)125 << 20); }
        }
        cuda_check(cudaEventRecord(b->end, b->compute));
        check(status_now());
        cuda_check(cudaDeviceSynchronize());
        cuda_check(cudaEventElapsedTime(&ms, b->start, b->end));
        if (round > 0) { times.push_back(ms); }
    }
    std::sort(times.begin(), times.end());
    return times[2];
}

static void rows(Bench* b, int ctas) {
    size_t before, after, total;
    double host, alone = time_gemms(b, 0);
    cuda_check(cudaMemGetInfo(&before, &total));
    check(nccl_open(&b->device, b->c, b->rank, ctas));
    cuda_check(cudaMemGetInfo(&after, &total));
    comm_use_device(b->c, b->device);
    double loaded = time_gemms(b, 20), per_gb = (loaded - alone) / (20 * 0.125);
    for (double mb : SIZES_MB) {
        size_t bytes = (size_t)(mb * (1 << 20));
        double ms[KINDS], sent = (double)bytes * (b->size - 1) / b->size, host_us = 0;
        for (int k = 0; k < KINDS; k++) {
            ms[k] = time_transfer(b, (Kind)k, bytes, &host);
            if (k == EXCHANGE) { host_us = host; }
        }
        if (b->rank != 0) { continue; }
        printf("%4d %5.0f | %7.3f %5.0f | %7.3f | %7.3f %5.0f | %7.3f | %5.0f | %6.2f | %5.0f\n", ctas, mb,
               ms[EXCHANGE], sent / ms[EXCHANGE] * 1e-6, ms[REDUCE_SCATTER], ms[GATHER], sent / ms[GATHER] * 1e-6,
               ms[ALL_GATHER], host_us, per_gb, (double)(before - after) / (1 << 20));
        fflush(stdout);
    }
    CommDevice none = {};
    check(comm_barrier(b->c));
    comm_use_device(b->c, none);
    b->device.close(b->device.context);
}

static void process(int rank, int size, int port, int listener) {
    Comm* c = NULL;
    CommSettings s = {};
    static Bench b; // too large for a stack
    s.rank = rank, s.size = size, s.address = "127.0.0.1", s.port = port, s.token = "bench", s.settings = "";
    s.listener = rank == 0 ? listener : -1, s.connect_timeout = 30, s.fault_timeout = 30;
    check(comm_open(&c, s));
    create(&b, c);
    if (rank == 0) {
        printf("%d GPUs; MB are MiB of a bucket, GB/s what each GPU sends\n", size);
        printf("CTAs    MB | exchange GB/s | reduce- |  gather  GB/s |    all- |  host | GEMMs  | NCCL's\n");
        printf("           |      ms       | scatter |      ms       |  gather |    us | +ms/GB | MiB\n");
    }
    for (int ctas : CTAS) { rows(&b, ctas); }
    comm_close(c);
    exit(0);
}

int main(int argc, char** argv) {
    int size = argc > 1 ? atoi(argv[1]) : 2, failed = 0; // GPUs
    struct sockaddr_in a = {};
    socklen_t length = sizeof(a);
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(listener, (struct sockaddr*)&a, sizeof(a)) != 0 || listen(listener, 64) != 0 ||
        getsockname(listener, (struct sockaddr*)&a, &length) != 0) {
        fatal("no socket: %s", strerror(errno));
    }
    for (int r = 0; r < size; r++) {
        if (fork() == 0) { process(r, size, ntohs(a.sin_port), listener); }
    }
    close(listener);
    for (int r = 0; r < size; r++) {
        int status = 0;
        wait(&status);
        failed |= status != 0;
    }
    return failed;
}
