/*
The CPU's rows of --doctor: its threads, and a GEMM and attention against fp64.
*/
#ifndef LLMC_CPU_DOCTOR_H
#define LLMC_CPU_DOCTOR_H

#include "attention.h"
#include "matmul.h"
#include "llmc/base/doctor.h"
#include "llmc/base/status.h"
#include "llmc/model/fp64_reference.h"

// The errors against fp64 of a GEMM of (N,C) by (OC,C), and of attention over (B,T) tokens, on random inputs
static inline double cpu_gemm_error_(size_t N, size_t C, size_t OC) {
    float* inp = (float*)malloc_check((N * C + OC * C + N * OC) * sizeof(float));
    double* reference = (double*)malloc_check(N * OC * sizeof(double));
    float *weight = inp + N * C, *out = weight + OC * C;
    doctor_numbers(inp, N * C + OC * C, 1);
    fp64_gemm(reference, inp, weight, N, C, OC);
    matmul_forward(out, NULL, inp, weight, NULL, N, C, OC);
    double error = fp64_error(out, reference, N * OC);
    free(reference);
    free(inp);
    return error;
}
static inline void cpu_attention_errors_(double errors[2], size_t B, size_t T, size_t NH, size_t HS) {
    size_t n = B * T * NH * HS, rows = B * NH * T;
    float* qkv = (float*)malloc_check((8 * n + 2 * rows) * sizeof(float));
    double* reference = (double*)malloc_check(4 * n * sizeof(double));
    float *dout = qkv + 3 * n, *out = dout + n, *dqkv = out + n, *l = dqkv + 3 * n, *m = l + rows;
    doctor_numbers(qkv, 4 * n, 2);
    fp64_attention(reference, reference + n, qkv, dout, B, T, NH, HS);
    attention_forward(out, l, m, qkv, B, T, NH, HS);
    attention_backward(dqkv, dout, qkv, out, l, m, B, T, NH, HS);
    errors[0] = fp64_error(out, reference, n);
    errors[1] = fp64_error(dqkv, reference + n, 3 * n);
    free(reference);
    free(qkv);
}

// Adds the processor's rows of --doctor. `threads` is the status of preparing its threads.
static inline void cpu_doctor(Doctor* doctor, Status threads) {
    static const char fix[] = "this processor or compiler computes wrongly: run make test, try another compiler";
    static const char* const names[] = {"GEMM against fp64", "attention", "its gradient"};
    const double tolerance = 1e-5; // sums of up to 200 products in fp32; a wrong kernel is off by a tenth and more
    if (threads != STATUS_OK) {
        doctor_row(doctor, DOCTOR_FAULT, "threads", "let OpenMP's threads have stacks of 1M, or end other programs",
                   "%s", status_message());
        return;
    }
    double errors[3] = {cpu_gemm_error_(128, 192, 256), 0.0, 0.0};
    cpu_attention_errors_(errors + 1, 2, 160, 2, 64);
    doctor_row(doctor, DOCTOR_OK, "processor", NULL, "CPU, %d threads, vectors of %d floats", cpu_threads(), LANES);
    for (int i = 0; i < 3; i++) {
        doctor_row(doctor, errors[i] <= tolerance ? DOCTOR_OK : DOCTOR_FAULT, names[i], fix,
                   "off by %.1e of the result, %.0e allowed", errors[i], tolerance);
    }
}

#endif
