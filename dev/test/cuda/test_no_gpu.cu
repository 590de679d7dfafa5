// What the GPU code of llmc does where CUDA calls fail: each failure is told anew, with its reason, and nothing goes on with
// what a failed call has not written. No GPU is used, also where there is one.
#include "dev/cuda/doctor.cuh"
#include "llmc/cuda/hopper.cuh"
#include "llmc/cuda/layernorm.cuh"
#include "llmc/cuda/nvtx.cuh"
#include "dev/test/fixtures/unit.h"

#include <string>

// Without a GPU there is no tensor map. Every call says why, and none takes the failure of an earlier one for an old driver.
static void every_failure_has_its_reason() {
    const floatX* misaligned = (const floatX*)8; // a driver that encodes without a GPU refuses it
    CUtensorMap map;
    std::string first;
    for (int call = 0; call < 2; call++) {
        status_clear();
        CHECK(hopper::tensor_map_of_heads(&map, misaligned, 1, 64, 1, 64) == STATUS_ERROR);
        if (call == 0) { first = status_message(); }
    }
    CHECK(first == status_message() && first.find("too old") == std::string::npos);
}

// The message of an error that a call returns with this value of CUDA_LAUNCH_BLOCKING, NULL for none
static std::string told(cudaError_t error, const char* blocking) {
    blocking ? setenv("CUDA_LAUNCH_BLOCKING", blocking, 1) : unsetenv("CUDA_LAUNCH_BLOCKING");
    status_clear();
    CHECK(cuda_try(error) == STATUS_ERROR);
    return status_message();
}
static bool holds(const std::string& text, const char* words) { return text.find(words) != std::string::npos; }

// A kernel that fails is noticed later, by a call that is not at fault: the message names where, the range that was begun last,
// and what names the launch. An error of the call itself names the range it was made in.
static void errors_name_the_range() {
    CHECK(holds(told(cudaErrorIllegalAddress, NULL), "in or before: this line"));
    CHECK(!holds(told(cudaErrorInvalidConfiguration, NULL), "in:"));
    NvtxRange backward("backward");
    CHECK(holds(told(cudaErrorInvalidConfiguration, NULL), "; in: backward"));
    {
        NvtxRange layer("backward layer", 3);
        std::string text = told(cudaErrorIllegalAddress, NULL);
        CHECK(holds(text, "test_no_gpu.cu:") && holds(text, ": error returned "));
        CHECK(holds(text, "cudaErrorIllegalAddress") && holds(text, "in or before: backward layer 3;"));
        CHECK(holds(text, "CUDA_LAUNCH_BLOCKING=1"));
        CHECK(holds(told(cudaErrorLaunchFailure, "0"), "CUDA_LAUNCH_BLOCKING=1"));
        CHECK(!holds(told(cudaErrorLaunchFailure, "1"), "CUDA_LAUNCH_BLOCKING"));
        CHECK(holds(told(cudaErrorInvalidConfiguration, NULL), "; in: backward layer 3"));
        CHECK(!holds(told(cudaErrorInvalidConfiguration, NULL), "CUDA_LAUNCH_BLOCKING"));
    }
    CHECK(holds(told(cudaErrorAssert, NULL), "in or before: backward layer 3")); // it was begun last
    status_clear();
}

// nvidia-smi is not asked about a GPU that has no name: here it is a script that leaves a file when it is called.
static void no_gpu_is_asked_about() {
    const char *called = unit_path("called"), *fake = unit_path("nvidia-smi"), *path = getenv("PATH");
    const std::string script = std::string("#!/bin/sh\necho \"$@\" >") + called + "\n";
    unit_write(fake, script.data(), script.size());
    CHECK(chmod(fake, 0755) == 0 &&
          setenv("PATH", (unit_folder + std::string(":") + (path ? path : "")).c_str(), 1) == 0);
    gpu_info_print();
    CHECK(!file_exists(called));
}

// CUDA's and cuBLAS's checks end the program, with the call and its error; a success does not.
static void failures_end_the_program() {
    CHECK_FATAL("test_no_gpu.cu|failed returned CUBLAS_STATUS_NOT_SUPPORTED", {
        const cublasStatus_t well = CUBLAS_STATUS_SUCCESS, failed = CUBLAS_STATUS_NOT_SUPPORTED;
        cublas_check(well);
        cublas_check(failed);
    });
    CHECK_FATAL("test_no_gpu.cu|failed returned cudaErrorInvalidValue", {
        const cudaError_t well = cudaSuccess, failed = cudaErrorInvalidValue;
        cuda_check(well);
        cuda_check(failed);
    });
}

// A driver of an older major version does not run this program; of an older minor one it does.
static void old_drivers_are_a_fault() {
    static const int drivers[][2] = {{13000, 0}, {13010, 0}, {14000, 0}, {12080, 1}, {11040, 1}};
    for (const int(&driver)[2] : drivers) {
        Doctor d = {};
        doctor_driver(&d, driver[0], 13000);
        CHECK(d.rows == 1 && d.faults == driver[1]);
    }
    Doctor d = {};
    doctor_driver(&d, 13000, 13020);
    CHECK(d.faults == 0);
}

// A model's plan asks for LayerNorm's scratch: more channels than its kernels serve end with one line.
static void wide_layernorms_are_refused() {
    status_clear();
    CHECK(layernorm_backward_scratch_bytes(640 * x128::size) > 0 && status_now() == STATUS_OK);
    layernorm_backward_scratch_bytes(641 * x128::size);
    CHECK(status_now() == STATUS_ERROR &&
          holds(status_message(), "LayerNorm of 5128 channels: a GPU trains at most 5120"));
    status_clear();
}

int main() {
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1); // before the first CUDA call
    every_failure_has_its_reason();
    errors_name_the_range();
    no_gpu_is_asked_about();
    failures_end_the_program();
    old_drivers_are_a_fault();
    wide_layernorms_are_refused();
    return unit_end();
}
