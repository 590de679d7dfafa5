/*
Scratch memory of the CPU kernels: one block a thread, from the heap. Large arrays on the stack, or in static thread-local
memory, which is taken from the stack, overflow where stacks are small (ulimit -s, OMP_STACKSIZE), and a frame that is larger
than the guard page may then write to other memory without a crash.

A kernel's scratch holds nothing from one call to the next, and kernels that use it do not call each other.
*/
#ifndef LLMC_CPU_SCRATCH_H
#define LLMC_CPU_SCRATCH_H

#include <pthread.h>

#include "llmc/base/status.h"

enum { CPU_SCRATCH_FLOATS = 1 << 18 }; // 1 MiB, of which only what a kernel touches takes memory

static _Thread_local float* cpu_scratch_;
static pthread_key_t cpu_scratch_key_; // frees a thread's block when the thread ends
static pthread_once_t cpu_scratch_once_ = PTHREAD_ONCE_INIT;

static inline void cpu_scratch_create_key_(void) {
    if (pthread_key_create(&cpu_scratch_key_, free) != 0) { fatal("no key for thread-local memory"); }
}

// This thread's block, aligned to 64 bytes; NULL if there is no memory.
static inline float* cpu_scratch_get_(void) {
    if (cpu_scratch_ == NULL) {
        pthread_once(&cpu_scratch_once_, cpu_scratch_create_key_);
        cpu_scratch_ = (float*)aligned_alloc(64, CPU_SCRATCH_FLOATS * sizeof(float));
        pthread_setspecific(cpu_scratch_key_, cpu_scratch_);
    }
    return cpu_scratch_;
}

// The same, for kernels: ends the program where cpu_threads_prepare was not called and there is no memory.
static inline float* cpu_scratch(void) {
    float* scratch = cpu_scratch_get_();
    if (scratch == NULL) { fatal("no memory for a thread's scratch, %zu bytes", CPU_SCRATCH_FLOATS * sizeof(float)); }
    return scratch;
}

enum { KERNEL_STACK = 64 << 10 }; // bytes that a thread of a kernel needs

// Bytes of this thread's stack; SIZE_MAX if the system does not say.
static inline size_t thread_stack_(void) {
    pthread_attr_t attributes;
    size_t size = SIZE_MAX;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0) { return SIZE_MAX; }
    pthread_attr_getstacksize(&attributes, &size);
    pthread_attr_destroy(&attributes);
    return size;
}

// Allocates the scratch of all threads that will run kernels. An error if there is no memory, or if a stack is too small, as
// with OMP_STACKSIZE=16k.
static inline Status cpu_threads_prepare(void) {
    int missing = 0;
    size_t least = SIZE_MAX;
#pragma omp parallel reduction(| : missing) reduction(min : least)
    {
        missing = cpu_scratch_get_() == NULL;
        least = thread_stack_();
    }
    if (missing) { return status_fail("no memory for scratch of %d KiB a thread", CPU_SCRATCH_FLOATS / 256); }
    if (least >= KERNEL_STACK) { return STATUS_OK; }
    return status_fail("a thread's stack has %zu KiB, and %d are needed; unset OMP_STACKSIZE and GOMP_STACKSIZE",
                       least >> 10, KERNEL_STACK >> 10);
}

#endif
