/*
What each program does first, before it starts a thread or opens a file.
*/
#ifndef LLMC_BASE_PROCESS_START_H
#define LLMC_BASE_PROCESS_START_H

#ifdef _OPENMP
#include <omp.h>
#endif

#include "host.h"
#include "utils.h"

// ----------------------------------------------------------------------------
// A program built with -march=native, on a processor that lacks some of the instructions: it ends in one line, where it would
// end by SIGILL. Before main, in code for every x86-64, and without stdio, whose inline parts are compiled for the processor of
// the build.

#if defined(__x86_64__) && !defined(__CUDACC__)
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

// ----------------------------------------------------------------------------

// A container's quota bounds the number of OpenMP threads, unless OMP_NUM_THREADS says it.
static inline void start_bound_threads_(void) {
#ifdef _OPENMP
    const char* asked = getenv("OMP_NUM_THREADS");
    int cores = cpu_cores();
    if ((asked == NULL || asked[0] == '\0') && cores < omp_get_max_threads()) { omp_set_num_threads(cores); }
#endif
}

// OpenMP's threads spin at the end of a loop for some microseconds only, about as long as it takes to wake one that sleeps: by
// default it is milliseconds, which other programs on the same cores could use, and the thread that is waited for. The library
// reads this from the environment when it is loaded, so the program starts itself again. What the user has set stays.
NOINLINE void start_wait_briefly_(char** argv) {
#ifdef _OPENMP
    char path[4096];
    if (getenv("OMP_WAIT_POLICY") != NULL || getenv("GOMP_SPINCOUNT") != NULL) { return; }
    ssize_t length = readlink("/proc/self/exe", path, sizeof(path) - 1);
    if (length < 0) { return; }
    path[length] = '\0';
    setenv("OMP_WAIT_POLICY", "passive", 1);
    setenv("GOMP_SPINCOUNT", "1000", 1);
    execv(path, argv);
#else
    (void)argv;
#endif
}

static inline void process_start(char** argv) {
    keep_standard_files();
    start_wait_briefly_(argv);
    start_bound_threads_();
}

#endif
