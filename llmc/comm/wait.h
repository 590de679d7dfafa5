/*
Says what a process waits for while it meets the others. A thread does it, because what holds the process up may not return for
long (a name server that does not answer): after 1.5 s, and then every 10 s.

    note: rank 0: waiting for ranks 1 to 7 of 8 to connect to ... (--connect-timeout 300): <reason>
*/
#ifndef LLMC_COMM_WAIT_H
#define LLMC_COMM_WAIT_H

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>

#include "llmc/base/utils.h"

enum { COMM_WAIT_FIRST_MS = 1500, COMM_WAIT_MS = 10000, COMM_WAIT_BYTES = 1024 };

typedef struct {
    const char* reason;         // why there should be other processes; NULL: nothing is said
    double timeout;             // seconds of --connect-timeout
    int ends[2];                // of a pipe, which is closed where the wait is over
    pthread_t thread;           //
    int has_thread;             //
    pthread_mutex_t mutex;      // guards `text`
    char text[COMM_WAIT_BYTES]; // what is waited for
} CommWait;

static inline void* comm_wait_say_(void* wait) {
    CommWait* w = (CommWait*)wait;
    struct pollfd over = {w->ends[0], POLLIN, 0};
    int ms = COMM_WAIT_FIRST_MS;
    while (poll(&over, 1, ms) == 0) { // signals are blocked
        char text[COMM_WAIT_BYTES];
        pthread_mutex_lock(&w->mutex);
        memcpy(text, w->text, sizeof(text));
        pthread_mutex_unlock(&w->mutex);
        print_note("waiting for %s (--connect-timeout %g): %s", text, w->timeout, w->reason);
        ms = COMM_WAIT_MS;
    }
    return NULL;
}

// What is waited for from now on
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void
comm_wait_for_(CommWait* w, const char* format, ...) {
    va_list args;
    if (!w->has_thread) { return; }
    va_start(args, format);
    pthread_mutex_lock(&w->mutex);
    vsnprintf(w->text, sizeof(w->text), format, args);
    pthread_mutex_unlock(&w->mutex);
    va_end(args);
}

// `reason` stays until comm_wait_end. Prints nothing if no thread can be started.
static inline void comm_wait_begin(CommWait* w, const char* reason, double timeout) {
    sigset_t all, before;
    memset(w, 0, sizeof(*w));
    w->reason = reason, w->timeout = timeout;
    if (reason == NULL || pipe2(w->ends, O_CLOEXEC) != 0) { return; }
    strcpy(w->text, "the other processes");
    pthread_mutex_init(&w->mutex, NULL);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    w->has_thread = pthread_create(&w->thread, NULL, comm_wait_say_, w) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!w->has_thread) { close(w->ends[0]), close(w->ends[1]); }
}

// Ends the notes of comm_wait_begin.
static inline void comm_wait_end(CommWait* w) {
    if (!w->has_thread) { return; }
    close(w->ends[1]);
    pthread_join(w->thread, NULL);
    close(w->ends[0]);
    pthread_mutex_destroy(&w->mutex);
}

#endif
