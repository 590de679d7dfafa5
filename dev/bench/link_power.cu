// What NVLink takes while it is awake: watts of two GPUs that rest, and GEMMs a second of two at their power limit, while each
// copies from the other every so many milliseconds; the reason why llmc/exchange/buckets.cuh holds exchanges. A row a case:
//
//     state      resting, or busy with the fc GEMM of 124M
//     bytes, ms  of a copy from the other GPU, and from one to the next; 0: no copies
//     GEMMs/s, watts, MHz of the SMs: of the first GPU and of the second
//
//     make build/link_power && build/link_power         half a minute on two GPUs, 1 GB on each
#include <atomic>
#include <thread>

#include "dev/cuda/bench/bench.h"
#include "llmc/cuda/matmul.cuh"

struct Case {
    int busy;
    size_t bytes;
    double interval; // milliseconds between copies
};
static const size_t WORD = 4096, LAYER = (size_t)14 << 20; // of a layer of 124M one GPU takes 14 MB from the other
static const Case CASES[] = {{0, 0, 0},    {0, WORD, 8}, {0, WORD, 50}, {0, WORD, 100}, {0, WORD, 200}, {1, 0, 0},
                             {1, WORD, 8}, {1, 0, 0},    {1, LAYER, 8}, {1, WORD, 100}, {1, 0, 0}};
static const int ROWS = 65536, C = 768, OC = 3072, BATCH = 8; // GEMMs between two looks at the clock: 4 ms
static const double WARM_UP = 1.0, TIMED = 1.5, LOOK = 0.05;  // seconds; LOOK: between two readings of the meter

struct Gpu {
    int index;
    floatX *inp, *weight, *out;
    char *shared, *received; // (LAYER); the other GPU reads `shared`
    const char* other;
    double rate, watts, mhz;
};

// Numbers whose bits toggle, as those of training do
__global__ void fill(floatX* x, size_t n) {
    for (size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x; i < n; i += (size_t)gridDim.x * blockDim.x) {
        x[i] = (floatX)((float)((uint32_t)i * 2654435761u >> 8) / (1 << 23) - 1.0f);
    }
}

static void create(Gpu* g, int index) {
    g->index = index;
    cuda_check(cudaSetDevice(index));
    cuda_check(cudaDeviceEnablePeerAccess(1 - index, 0));
    size_t inp = (size_t)ROWS * C, weight = (size_t)C * OC;
    cuda_check(cudaMalloc(&g->inp, inp * sizeof(floatX)));
    cuda_check(cudaMalloc(&g->weight, weight * sizeof(floatX)));
    cuda_check(cudaMalloc(&g->out, (size_t)ROWS * OC * sizeof(floatX)));
    fill<<<1024, 256>>>(g->inp, inp);
    fill<<<1024, 256>>>(g->weight, weight);
    for (char** p : {&g->shared, &g->received}) {
        cuda_check(cudaMalloc(p, LAYER));
        cuda_check(cudaMemset(*p, 0x3c, LAYER));
    }
    cuda_check(cudaDeviceSynchronize());
}

// One case on one GPU, while another thread does the same on the other
static void run_case(Gpu* g, const Case* c, std::atomic<int>* warm) {
    cuda_check(cudaSetDevice(g->index));
    const Meter meter;
    static Matmul mm; // too large for a stack
    cudaStream_t compute, transfer;
    cudaEvent_t done[2];
    cuda_check(cudaStreamCreateWithFlags(&compute, cudaStreamNonBlocking));
    cuda_check(cudaStreamCreateWithFlags(&transfer, cudaStreamNonBlocking));
    for (cudaEvent_t& event : done) { cuda_check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming)); }
    check(matmul_create(&mm, 0, compute));
    std::vector<MeterReading> readings;
    double copied = 0, begin = wall_seconds(), from = 0, looked = 0;
    long gemms = 0, before = 0;
    for (int batch = 0;; batch++) {
        double now = wall_seconds();
        if (from == 0 && now - begin > WARM_UP) {
            warm->fetch_add(1);
            while (warm->load() < 2) {}
            from = wall_seconds(), before = gemms;
        }
        if (from > 0 && now - from > TIMED) { break; }
        if (c->bytes > 0 && 1e3 * (now - copied) >= c->interval) {
            cuda_check(cudaMemcpyAsync(g->received, g->other, c->bytes, cudaMemcpyDeviceToDevice, transfer));
            copied = now;
        }
        if (c->busy) {
            for (int i = 0; i < BATCH; i++) {
                matmul_forward(&mm, g->out, g->inp, g->weight, (const floatX*)NULL, ROWS, C, OC);
            }
            gemms += BATCH;
            cuda_check(cudaEventRecord(done[batch % 2], compute));
            if (batch > 0) { cuda_check(cudaEventSynchronize(done[(batch + 1) % 2])); }
        } else {
            std::this_thread::sleep_for(std::chrono::milliseconds(2));
        }
        MeterReading r;
        if (from > 0 && now - looked > LOOK && meter.read(&r, wall_seconds() - from)) {
            readings.push_back(r);
            looked = now;
        }
    }
    double seconds = wall_seconds() - from;
    MeterSum sum;
    sum.add(readings, 0);
    g->rate = (double)(gemms - before) / seconds, g->watts = sum.watts(), g->mhz = sum.mean_mhz();
    check(status_now());
    cuda_check(cudaDeviceSynchronize());
    matmul_destroy(&mm);
    for (cudaEvent_t event : done) { cudaEventDestroy(event); }
    cudaStreamDestroy(compute);
    cudaStreamDestroy(transfer);
}

int main() {
    int gpus = 0, peers = 0;
    if (cudaGetDeviceCount(&gpus) != cudaSuccess || gpus < 2) {
        fatal("link_power: needs two GPUs, here are %d", gpus);
    }
    cuda_check(cudaDeviceCanAccessPeer(&peers, 0, 1));
    if (!peers) { fatal("link_power: GPU 0 cannot read the memory of GPU 1"); }
    Gpu g[2];
    for (int i = 0; i < 2; i++) { create(&g[i], i); }
    g[0].other = g[1].shared, g[1].other = g[0].shared;
    printf("%-8s %9s %5s %18s %16s %12s\n", "state", "bytes", "ms", "GEMMs/s", "watts", "MHz");
    for (const Case& c : CASES) {
        std::atomic<int> warm(0);
        std::thread first(run_case, &g[0], &c, &warm), second(run_case, &g[1], &c, &warm);
        first.join();
        second.join();
        printf("%-8s %9zu %5.0f %9.1f %8.1f %8.1f %7.1f %6.0f %5.0f\n", c.busy ? "busy" : "resting", c.bytes,
               c.interval, g[0].rate, g[1].rate, g[0].watts, g[1].watts, g[0].mhz, g[1].mhz);
        fflush(stdout);
    }
    return 0;
}
