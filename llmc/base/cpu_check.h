/*
A program built with -march=native, on a processor that lacks some of the instructions: it ends in one line, where it would
end by SIGILL. To be included by programs; the check runs before main, in code for every x86-64, and without stdio, whose
inline parts are compiled for the processor of the build.
*/
#ifndef LLMC_BASE_CPU_CHECK_H
#define LLMC_BASE_CPU_CHECK_H

#if defined(__x86_64__) && defined(__GNUC__)
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CPU_NEEDS_(name)                                                                                               \
    if (missing == NULL && !__builtin_cpu_supports(name)) { missing = name; }

__attribute__((constructor(101), target("arch=x86-64"))) static void cpu_check_(void) {
    const char* missing = NULL;
    __builtin_cpu_init();
#ifdef __SSE4_2__
    CPU_NEEDS_("sse4.2")
#endif
#ifdef __POPCNT__
    CPU_NEEDS_("popcnt")
#endif
#ifdef __AVX__
    CPU_NEEDS_("avx")
#endif
#ifdef __AVX2__
    CPU_NEEDS_("avx2")
#endif
#ifdef __FMA__
    CPU_NEEDS_("fma")
#endif
#ifdef __FMA4__
    CPU_NEEDS_("fma4")
#endif
#ifdef __XOP__
    CPU_NEEDS_("xop")
#endif
#ifdef __BMI__
    CPU_NEEDS_("bmi")
#endif
#ifdef __BMI2__
    CPU_NEEDS_("bmi2")
#endif
#ifdef __AVX512F__
    CPU_NEEDS_("avx512f")
#endif
#ifdef __AVX512VL__
    CPU_NEEDS_("avx512vl")
#endif
#ifdef __AVX512BW__
    CPU_NEEDS_("avx512bw")
#endif
#ifdef __AVX512DQ__
    CPU_NEEDS_("avx512dq")
#endif
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
