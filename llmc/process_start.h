/*
What each program does first, before it starts a thread or opens a file.
*/
#ifndef LLMC_PROCESS_START_H
#define LLMC_PROCESS_START_H

#include <sys/resource.h>

#include "thread.h"
#include "utils.h"

enum { MAIN_STACK = 256 << 10 }; // bytes that the main thread needs; no function's frame is larger than 16 KiB

// Ends the program if the main thread's stack is too small. Threads of libraries (OpenMP, CUDA, NCCL), whose stacks would have the
// size of the main thread's, get those of THREAD_STACK bytes.
static inline void start_check_stack_(void) {
    struct rlimit limit;
    pthread_attr_t attributes;
    size_t size;
    if (getrlimit(RLIMIT_STACK, &limit) == 0 && limit.rlim_cur < MAIN_STACK) {
        fatal("the stack is limited to %zu KiB, and %d are needed; raise it: ulimit -s 8192",
              (size_t)limit.rlim_cur >> 10, MAIN_STACK >> 10);
    }
    if (pthread_getattr_default_np(&attributes) != 0) { return; }
    if (pthread_attr_getstacksize(&attributes, &size) == 0 && size < THREAD_STACK) {
        pthread_attr_setstacksize(&attributes, THREAD_STACK);
        pthread_setattr_default_np(&attributes);
    }
    pthread_attr_destroy(&attributes);
}

static inline void process_start(void) {
    keep_standard_files();
    start_check_stack_();
}

#endif
