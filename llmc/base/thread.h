/*
Threads of our own. Their stacks have a size that is said here: by default it would be that of `ulimit -s`, which may be small.
*/
#ifndef LLMC_BASE_THREAD_H
#define LLMC_BASE_THREAD_H

#include <pthread.h>
#include <stddef.h>

enum { THREAD_STACK = 8 << 20 }; // bytes, of which only those that are touched take memory

// pthread_create with a stack of THREAD_STACK bytes; returns 1 if the thread was started.
static inline int thread_start(pthread_t* thread, void* (*run)(void* context), void* context) {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) { return 0; }
    pthread_attr_setstacksize(&attributes, THREAD_STACK);
    int error = pthread_create(thread, &attributes, run, context);
    pthread_attr_destroy(&attributes);
    return error == 0;
}

#endif
