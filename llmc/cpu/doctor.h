/*
The CPU's rows of --doctor: its threads, and a GEMM and attention against fp64.
*/
#ifndef LLMC_CPU_DOCTOR_H
#define LLMC_CPU_DOCTOR_H

#include "attention.h"
#include "matmul.h"
#include "llmc/base/terminal.h"
#include "llmc/base/utils.h"
#include "llmc/model/fp64_reference.h"

// The errors against fp64 of a GEMM and, over a batch of tokens, of attention and its gradient, on random inputs
static inline void cpu_errors_(double errors[3]) {
    enum { N = 128, C = 192, OC = 256, B = 2, T = 160, NH = 2, HS = 64, ALL = B * T * NH * HS, ROWS = B * NH * T };
    float* x = (float*)malloc_check((8 * ALL + 2 * ROWS) * sizeof(float)); // more than the GEMM takes
    double* reference = (double*)malloc_check(4 * ALL * sizeof(double));
    float *weight = x + N * C, *product = weight + OC * C;
    doctor_numbers(x, N * C + OC * C, 1);
    fp64_gemm(reference, x, weight, N, C, OC);
    matmul_forward(product, NULL, x, weight, NULL, N, C, OC);
    errors[0] = fp64_error(product, reference, N * OC);
    float *dout = x + 3 * ALL, *out = dout + ALL, *dqkv = out + ALL, *l = dqkv + 3 * ALL, *m = l + ROWS;
    doctor_numbers(x, 4 * ALL, 2);
    fp64_attention(reference, reference + ALL, x, dout, B, T, NH, HS);
    attention_forward(out, l, m, x, NULL, B, T, NH, HS);
    attention_backward(dqkv, dout, x, out, l, m, NULL, B, T, NH, HS);
    errors[1] = fp64_error(out, reference, ALL);
    errors[2] = fp64_error(dqkv, reference + ALL, 3 * ALL);
    free(reference);
    free(x);
}

// Adds the processor's rows of --doctor. `threads` is the status of preparing its threads.
static inline void cpu_doctor(Doctor* doctor, Status threads) {
    static const char fix[] = "this processor or compiler computes wrongly: run make test, try another compiler";
    static const char* const names[] = {"GEMM against fp64", "attention", "its gradient"};
    const double tolerance = 1e-5; // sums of up to 200 products in fp32; a wrong kernel is off by a tenth and more
    if (threads != STATUS_OK) {
        doctor_row(doctor, DOCTOR_FAULT, "threads", "end other programs, or set OMP_NUM_THREADS", "%s",
                   status_message());
        return;
    }
    double errors[3];
    cpu_errors_(errors);
    doctor_row(doctor, DOCTOR_OK, "processor", NULL, "CPU, %d threads, vectors of %d floats", cpu_threads(), LANES);
    for (int i = 0; i < 3; i++) {
        doctor_row(doctor, errors[i] <= tolerance ? DOCTOR_OK : DOCTOR_FAULT, names[i], fix,
                   "off by %.1e of the result, %.0e allowed", errors[i], tolerance);
    }
}

#endif
