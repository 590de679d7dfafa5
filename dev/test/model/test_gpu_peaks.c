// llmc/model/gpu_peaks.h: a GPU's peak is found by the name that its driver gives, and by no other's; MFU is the model's FLOP/s
// over it.
#include "llmc/model/gpu_peaks.h"

#include "dev/test/fixtures/unit.h"

static int peak_is(const char* name, const char* precision, double tflops) {
    double found = gpu_peak_flops(name, precision);
    if (found == 1e12 * tflops) { return 1; }
    printf("    %s in %s: %g\n", name, precision, found);
    return 0;
}

static void names_of_drivers(void) {
    CHECK(peak_is("NVIDIA H200", "bf16", 989.4) && peak_is("NVIDIA H200", "tf32", 494.7));
    CHECK(peak_is("NVIDIA H200", "fp8", 1978.8) && peak_is("NVIDIA L4", "fp8", 242));
    CHECK(peak_is("NVIDIA H200", "fp32", 66.9) && peak_is("NVIDIA H200 NVL", "bf16", 835.5));
    CHECK(peak_is("NVIDIA H100 80GB HBM3", "bf16", 989.4) && peak_is("NVIDIA H100 PCIe", "bf16", 756));
    CHECK(peak_is("NVIDIA H100 NVL", "bf16", 835.5) && peak_is("NVIDIA GH200 480GB", "bf16", 989.4));
    CHECK(peak_is("NVIDIA B200", "bf16", 2250) && peak_is("NVIDIA GB200", "bf16", 2500));
    CHECK(peak_is("NVIDIA A100-SXM4-80GB", "bf16", 312) && peak_is("NVIDIA A100 80GB PCIe", "tf32", 156));
    CHECK(peak_is("A100-PCIE-40GB", "fp32", 19.5) && peak_is("NVIDIA A10", "bf16", 125));
    CHECK(peak_is("NVIDIA A10G", "bf16", 70) && peak_is("NVIDIA L4", "bf16", 121) &&
          peak_is("NVIDIA L40S", "bf16", 362));
    CHECK(peak_is("NVIDIA L40", "bf16", 181) && peak_is("NVIDIA RTX A6000", "bf16", 154.8));
    CHECK(peak_is("NVIDIA RTX 6000 Ada Generation", "bf16", 364.2));
    CHECK(peak_is("NVIDIA GeForce RTX 4090", "bf16", 165.2) && peak_is("NVIDIA GeForce RTX 4090 D", "bf16", 147.1));
    CHECK(peak_is("NVIDIA GeForce RTX 3090 Ti", "bf16", 80) && peak_is("NVIDIA GeForce RTX 3090", "bf16", 71));
}

static void what_is_not_known(void) {
    CHECK(peak_is("NVIDIA GeForce RTX 4090 Laptop GPU", "bf16", 0) && peak_is("NVIDIA A1000", "bf16", 0));
    CHECK(peak_is("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "bf16", 0) && peak_is("Tesla V100-SXM2-16GB", "bf16", 0));
    CHECK(peak_is("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "bf16", 0));
    CHECK(peak_is("NVIDIA H2000", "bf16", 0) && peak_is("XH200", "bf16", 0) && peak_is("", "bf16", 0));
    CHECK(peak_is("NVIDIA H200", "fp16", 0));
}

// No row is hidden by one before it, and a precision with fewer bits is faster.
static void every_row_is_found(void) {
    for (size_t i = 0; i < sizeof(gpu_peaks) / sizeof(gpu_peaks[0]); i++) {
        const GpuPeak* p = &gpu_peaks[i];
        if (!CHECK(gpu_peak(p->name) == p && p->bf16 > p->tf32 && p->tf32 >= p->fp32)) { printf("    %s\n", p->name); }
    }
}

// 124M in bf16 on an H200, at the rate of dev/bench/nvidia-h200/speed.csv
static void mfu_of_a_step(void) {
    char text[32];
    double flops = 6.0 * (124475904.0 - 1024.0 * 768.0) + 6.0 * 12.0 * 1024.0 * 768.0; // of a token
    CHECK(strcmp(format_mfu(text, sizeof(text), mfu_of(flops * 702678.0, 989.4e12, 1)), " | 56.7% MFU") == 0);
    CHECK(strcmp(format_mfu(text, sizeof(text), mfu_of(2 * flops * 702678.0, 989.4e12, 2)), " | 56.7% MFU") == 0);
    CHECK(isnan(mfu_of(1e12, 0.0, 1)) && format_mfu(text, sizeof(text), mfu_of(1e12, 0.0, 1))[0] == '\0');
    CHECK(isnan(mfu_of(1.01e12, 1e12, 1)) && mfu_of(1e12, 1e12, 1) == 1.0); // a peak that is passed is not the GPU's
}

int main(void) {
    names_of_drivers();
    what_is_not_known();
    every_row_is_found();
    mfu_of_a_step();
    return unit_end();
}
