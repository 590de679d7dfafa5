/*
The dense peak of GPUs by NVIDIA's datasheets, without sparsity and with fp32 accumulation, in TFLOP/s: the denominator of MFU.
*/
#ifndef LLMC_MODEL_GPU_PEAKS_H
#define LLMC_MODEL_GPU_PEAKS_H

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

typedef struct {
    const char* name; // words of the name that the driver gives
    double bf16, tf32, fp32;
} GpuPeak;

// The first row that fits counts: a longer name stands before its beginning.
// clang-format off
static const GpuPeak gpu_peaks[] = {
    // data centre
    {"GB200", 2500, 1250, 80},
    {"B200", 2250, 1125, 75},
    {"GH200", 989.4, 494.7, 66.9},
    {"H200 NVL", 835.5, 417.5, 60},
    {"H200", 989.4, 494.7, 66.9},
    {"H100 NVL", 835.5, 417.5, 60},
    {"H100 PCIe", 756, 378, 51.2},
    {"H100", 989.4, 494.7, 66.9},
    {"H800 PCIe", 756, 378, 51.2},
    {"H800", 989.4, 494.7, 66.9},
    {"H20", 148, 74, 44},
    {"A100", 312, 156, 19.5},
    {"A800", 312, 156, 19.5},
    {"A40", 149.7, 74.8, 37.4},
    {"A30", 165, 82, 10.3},
    {"A10G", 70, 35, 35},
    {"A10", 125, 62.5, 31.2},
    {"A2", 18, 9, 4.5},
    {"L40S", 362, 183, 91.6},
    {"L40", 181, 90.5, 90.5},
    {"L4", 121, 60, 30.3},
    // workstation
    {"RTX PRO 6000 Blackwell", 503.8, 251.9, 126},
    {"RTX 6000 Ada", 364.2, 182.1, 91.1},
    {"RTX A6000", 154.8, 77.4, 38.7},
    // GeForce: with fp32 accumulation tensor cores have half their rate
    {"RTX 5090", 209.5, 104.8, 104.8},
    {"RTX 5080", 112.6, 56.3, 56.3},
    {"RTX 4090 D", 147.1, 73.5, 73.5},
    {"RTX 4090", 165.2, 82.6, 82.6},
    {"RTX 4080 SUPER", 104.4, 52.2, 52.2},
    {"RTX 4080", 97.5, 48.7, 48.7},
    {"RTX 3090 Ti", 80, 40, 40},
    {"RTX 3090", 71, 35.6, 35.6},
};
// clang-format on

// 1 if `words` stand in a name as words of their own: A10 is not in A100.
static inline int gpu_name_has_(const char* name, const char* words) {
    size_t length = strlen(words);
    for (const char* at = strstr(name, words); at != NULL; at = strstr(at + 1, words)) {
        int begins = at == name || !isalnum((unsigned char)at[-1]);
        if (begins && !isalnum((unsigned char)at[length])) { return 1; }
    }
    return 0;
}

// The row of a GPU of this name; NULL if there is none, as for a part of a GPU or one with less power.
static inline const GpuPeak* gpu_peak(const char* name) {
    static const char* const others[] = {"MIG", "Laptop", "Max-Q"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        if (gpu_name_has_(name, others[i])) { return NULL; }
    }
    for (size_t i = 0; i < sizeof(gpu_peaks) / sizeof(gpu_peaks[0]); i++) {
        if (gpu_name_has_(name, gpu_peaks[i].name)) { return &gpu_peaks[i]; }
    }
    return NULL;
}

// The peak in FLOP/s of a precision that is "bf16", "tf32", "fp32" or, of GPUs that have it, "fp8", which is twice bf16's;
// 0 where it is not known.
static inline double gpu_peak_flops(const char* name, const char* precision) {
    const GpuPeak* p = gpu_peak(name);
    if (p == NULL) { return 0.0; }
    return 1e12 * (strcmp(precision, "bf16") == 0   ? p->bf16
                   : strcmp(precision, "fp8") == 0  ? 2.0 * p->bf16
                   : strcmp(precision, "tf32") == 0 ? p->tf32
                   : strcmp(precision, "fp32") == 0 ? p->fp32
                                                    : 0.0);
}

// MFU: the FLOP/s that the model needs over the peak of all processes' GPUs. NaN where the peak is not known, or is passed.
static inline double mfu_of(double flops, double peak, int processes) {
    double mfu = flops / (peak * processes);
    return peak > 0.0 && mfu <= 1.0 ? mfu : NAN;
}

// " | 51.2% MFU", or "" where it is not known
static inline const char* format_mfu(char* text, size_t size, double mfu) {
    text[0] = '\0';
    if (isfinite(mfu)) { snprintf(text, size, " | %.1f%% MFU", 100.0 * mfu); }
    return text;
}

#endif
