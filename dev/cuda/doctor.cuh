/*
The GPU's rows of --doctor: device, driver, memory, ECC, and a GEMM and the attention that trains against fp64; NCCL where
there are several GPUs. A fault of one row leaves the others to be checked.
*/
#ifndef DOCTOR_CUH
#define DOCTOR_CUH

#include "attention/attention.cuh"
#include "llmc/base/terminal.h"
#include "llmc/cuda/matmul.cuh"
#include "llmc/exchange/comm_nccl.cuh"
#include "llmc/model/fp64_reference.h"

#include <vector>

// The answer of nvidia-smi, which comes with every driver, to a query about the current device, such as "ecc.mode.current", in
// one line. Returns 0, and why, where there is none. Takes tens of milliseconds.
static inline int gpu_info(char* line, size_t size, const char* query) {
    char bus[32], command[256];
    int device;
    if (cudaGetDevice(&device) != cudaSuccess || cudaDeviceGetPCIBusId(bus, sizeof(bus), device) != cudaSuccess) {
        snprintf(line, size, "%s", cudaGetErrorString(cudaGetLastError()));
        return 0;
    }
    snprintf(command, sizeof(command), "nvidia-smi -i %s --format=csv,noheader --query-gpu=%s 2>/dev/null", bus, query);
    FILE* pipe = popen(command, "r");
    const int answers = pipe != NULL && fgets(line, (int)size, pipe) != NULL;
    if (pipe != NULL) { pclose(pipe); }
    if (!answers) { snprintf(line, size, "nvidia-smi does not answer"); }
    line[strcspn(line, "\n")] = '\0';
    return answers;
}

// Prints one line about the current device, or one that says why there are no numbers.
static inline void gpu_info_print(void) {
    char line[256];
    const int answers = gpu_info(
        line, sizeof(line), "utilization.gpu,utilization.memory,clocks.sm,clocks.max.sm,power.draw,temperature.gpu");
    printf("gpu: %s%s\n", answers ? "compute, memory busy; SM clock, its maximum; power; degrees C: " : "", line);
}

// The largest error of a correct result, relative to its norm. bf16 rounds each element of the result by at most 2^-9 of
// itself, and so P and dS within attention, whose errors add up to no more than a few of these; tf32 rounds operands by 2^-11.
// A wrong kernel has an error of a tenth and more.
constexpr double DOCTOR_TOLERANCE = sizeof(floatX) == 2 ? 0.02 : 1e-5, DOCTOR_TF32_TOLERANCE = 2e-3;

// Device memory of so many bytes; none after an error, which is recorded
struct DoctorMemory {
    void* data = nullptr;
    explicit DoctorMemory(size_t bytes) {
        if (status_now() == STATUS_OK) { cuda_try(cudaMalloc(&data, bytes)); }
    }
    ~DoctorMemory() { cudaFree(data); }
    DoctorMemory(const DoctorMemory&) = delete;
};
// Numbers on the device, from the host
struct DoctorTensor : DoctorMemory {
    std::vector<floatX> host;
    explicit DoctorTensor(const std::vector<float>& x) : DoctorMemory(x.size() * sizeof(floatX)), host(x.size()) {
        for (size_t i = 0; i < x.size(); i++) { host[i] = (floatX)x[i]; }
        if (data != nullptr) { cuda_try(cudaMemcpy(data, host.data(), bytes(), cudaMemcpyHostToDevice)); }
    }
    explicit DoctorTensor(size_t n) : DoctorTensor(std::vector<float>(n, NAN)) {}
    size_t bytes() const { return host.size() * sizeof(floatX); }
    operator floatX*() const { return (floatX*)data; }
    // The error of what was computed, relative to the reference; NaN after an error
    double error(const std::vector<double>& reference) {
        std::vector<float> x(host.size());
        if (status_now() != STATUS_OK || cuda_try(cudaDeviceSynchronize()) != STATUS_OK) { return NAN; }
        cuda_try(cudaMemcpy(host.data(), data, bytes(), cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < x.size(); i++) { x[i] = (float)host[i]; }
        return fp64_error(x.data(), reference.data(), x.size());
    }
};

static inline void doctor_compared(Doctor* d, const char* name, double error, double tolerance) {
    if (status_now() != STATUS_OK) {
        doctor_row(d, DOCTOR_FAULT, name, "run the tests: make test", "%s", status_message());
    } else {
        doctor_row(d, error <= tolerance ? DOCTOR_OK : DOCTOR_FAULT, name,
                   "this GPU or its software computes wrongly: run make test, try another driver or GPU",
                   "off by %.1e of the result, %.0e allowed", error, tolerance);
    }
    status_clear();
}

static inline void doctor_gemm(Doctor* d) {
    const size_t N = 128, C = 192, OC = 256;
    std::vector<float> inp(N * C), weight(OC * C);
    std::vector<double> reference(N * OC);
    std::vector<Matmul> mm(1); // large
    doctor_numbers(inp.data(), N * C, 1);
    doctor_numbers(weight.data(), OC * C, 2);
    fp64_gemm(reference.data(), inp.data(), weight.data(), N, C, OC);
    status_clear();
    matmul_create(&mm[0], 1, nullptr);
    DoctorTensor a(inp), b(weight), out(N * OC);
    if (status_now() == STATUS_OK) { matmul_forward(&mm[0], out, a, b, nullptr, (int)N, (int)C, (int)OC); }
    doctor_compared(d, "GEMM against fp64", out.error(reference),
                    sizeof(floatX) == 4 ? DOCTOR_TF32_TOLERANCE : DOCTOR_TOLERANCE);
    matmul_destroy(&mm[0]);
}

// Forward and backward of the variants that train
static inline void doctor_attention(Doctor* d) {
    const int B = 2, T = 160, NH = 2, HS = 64;
    const size_t n = (size_t)B * T * NH * HS, rows = (size_t)B * NH * T;
    std::vector<float> qkv(3 * n), dout(n);
    std::vector<double> out_reference(n), dqkv_reference(3 * n);
    doctor_numbers(qkv.data(), 3 * n, 3);
    doctor_numbers(dout.data(), n, 4);
    fp64_attention(out_reference.data(), dqkv_reference.data(), qkv.data(), dout.data(), B, T, NH, HS);
    status_clear();
    DoctorTensor device_qkv(qkv), device_dout(dout), out(n), dqkv(3 * n);
    DoctorMemory statistics(2 * rows * sizeof(float)), scratch(attention_backward_scratch_bytes(B, T, NH, HS) + 256);
    float *l = (float*)statistics.data, *m = l + rows;
    floatX *x = device_qkv, *dx = dqkv, *y = out, *dy = device_dout; // which step_kernels.cu keeps for later
    if (status_now() == STATUS_OK) {
        attention_forward(y, l, m, x, B, T, NH, HS, nullptr);
        attention_backward(dx, dy, x, y, l, m, scratch.data, B, T, NH, HS, nullptr);
    }
    const double error = out.error(out_reference), backward_error = dqkv.error(dqkv_reference);
    char name[64];
    snprintf(name, sizeof(name), "attention, %s", attention_forward_name(B, T, NH, HS));
    doctor_compared(d, name, error, DOCTOR_TOLERANCE);
    snprintf(name, sizeof(name), "its gradient, %s", attention_backward_name(B, T, NH, HS));
    doctor_compared(d, name, backward_error, DOCTOR_TOLERANCE);
}

// Memory errors that ECC could not correct, since the driver was loaded
static inline void doctor_ecc(Doctor* d) {
    char line[128], *end = line;
    long errors = gpu_info(line, sizeof(line), "ecc.errors.uncorrected.volatile.total") ? strtol(line, &end, 10) : 0;
    if (end == line) {
        doctor_row(d, DOCTOR_ABSENT, "ECC", NULL, "not known: %s", line);
    } else {
        doctor_row(d, errors == 0 ? DOCTOR_OK : DOCTOR_FAULT, "ECC", "take another GPU, and have this one looked at",
                   "%ld errors that could not be corrected", errors);
    }
}

// Only runs on several GPUs need NCCL.
static inline void doctor_nccl(Doctor* d) {
    int count = 0;
    char version[PATH_MAX + 64];
    if (cudaGetDeviceCount(&count) != cudaSuccess || count < 2) { return; }
    status_clear();
    if (nccl_find_version(version, sizeof(version)) == STATUS_OK) {
        doctor_row(d, DOCTOR_OK, "NCCL", NULL, "%s", version);
    } else {
        doctor_row(d, DOCTOR_ABSENT, "NCCL", status_message(), "not usable: a run on one GPU at a time");
    }
    status_clear();
}

// Versions as CUDA gives them, 1000 * major + 10 * minor. A driver of an older minor version runs this program's code, too.
static inline void doctor_driver(Doctor* d, int driver, int runtime) {
    doctor_row(d, driver / 1000 >= runtime / 1000 ? DOCTOR_OK : DOCTOR_FAULT, "CUDA driver", "install a newer driver",
               "up to CUDA %d.%d; this program is of %d.%d", driver / 1000, driver % 1000 / 10, runtime / 1000,
               runtime % 1000 / 10);
}

static inline void gpu_doctor(Doctor* d, const cudaDeviceProp* device) {
    int driver = 0, runtime = 0;
    size_t available = 0, total = 0;
    cudaDriverGetVersion(&driver);
    cudaRuntimeGetVersion(&runtime);
    doctor_row(d, DOCTOR_OK, "GPU", NULL, "%s, compute capability %d.%d, %d SMs", device->name, device->major,
               device->minor, device->multiProcessorCount);
    DeviceCode code;
    if (device_code(&code) == STATUS_OK && code.capability < 10 * device->major + device->minor) {
        doctor_row(d, DOCTOR_ABSENT, "device code", "run make clean and make train_gpt2cu here",
                   "none for sm_90a: the variants of older GPUs serve");
    }
    status_clear();
    doctor_driver(d, driver, runtime);
    status_clear();
    cuda_try(cudaMemGetInfo(&available, &total));
    doctor_row(d, available >= (size_t)2 << 30 ? DOCTOR_OK : DOCTOR_FAULT, "GPU memory",
               "end what else runs there: nvidia-smi lists it", "%.1f of %.1f GiB free", (double)available / (1 << 30),
               (double)total / (1 << 30));
    doctor_ecc(d);
    doctor_gemm(d);
    doctor_attention(d);
    doctor_nccl(d);
}

#endif
