/*
A program built with -march=native, on a processor that lacks some of the instructions: it ends in one line, where it would
end by SIGILL. To be included by programs; the check runs before main, in code for every x86-64, and without stdio, whose
inline parts are compiled for the processor of the build.
*/
#ifndef LLMC_BASE_CPU_CHECK_H
#define LLMC_BASE_CPU_CHECK_H

#if defined(__x86_64__)
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The compiler defines the macro as 1 where it may use the instructions.
#define CPU_TEXT_(text) #text
#define CPU_NEEDS_(macro, name)                                                                                        \
    if (missing == NULL && CPU_TEXT_(macro)[0] == '1' && !__builtin_cpu_supports(name)) { missing = name; }

__attribute__((constructor(101), target("arch=x86-64"))) static void cpu_check_(void) {
    const char* missing = NULL;
    __builtin_cpu_init();
    CPU_NEEDS_(__SSE4_2__, "sse4.2")
    CPU_NEEDS_(__POPCNT__, "popcnt")
    CPU_NEEDS_(__AVX__, "avx")
    CPU_NEEDS_(__AVX2__, "avx2")
    CPU_NEEDS_(__FMA__, "fma")
    CPU_NEEDS_(__FMA4__, "fma4")
    CPU_NEEDS_(__XOP__, "xop")
    CPU_NEEDS_(__BMI__, "bmi")
    CPU_NEEDS_(__BMI2__, "bmi2")
    CPU_NEEDS_(__AVX512F__, "avx512f")
    CPU_NEEDS_(__AVX512VL__, "avx512vl")
    CPU_NEEDS_(__AVX512BW__, "avx512bw")
    CPU_NEEDS_(__AVX512DQ__, "avx512dq")
    if (missing == NULL) { return; }
    const char* parts[] = {"error: this processor lacks ", missing,
                           ", with which this program was built; build it here: make clean && make\n"};
    for (int i = 0; i < 3; i++) {
        if (write(STDERR_FILENO, parts[i], strlen(parts[i])) < 0) { break; }
    }
    _exit(EXIT_FAILURE);
}
#endif

#endif
