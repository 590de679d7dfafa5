/*
The thread that watches the control connections of comm.h: a heartbeat each way, and the cause where a process fails.
Silence (SIGSTOP, a dead machine) and a connection that closes are faults of that process.

    a fault                 comm_health() is an error, the device is aborted, and the functions of comm.h return the error
    grace seconds later     if the process has not ended by itself, the thread ends it, with the one line if none was printed
*/
#ifndef LLMC_COMM_WATCH_H
#define LLMC_COMM_WATCH_H

#include <math.h>

#include "state.h"
#include "llmc/base/temporary_files.h"

// Takes what a process has sent; returns 0 if its connection is closed.
static inline int comm_hear_(Comm* c, CommPeer* peer) {
    for (;;) {
        size_t wanted = peer->got < 4 ? 4 : 4 + (size_t)peer->notice[2] + ((size_t)peer->notice[3] << 8);
        if (wanted > sizeof(peer->notice) - 1) { return 0; }
        if (peer->got >= 4 && peer->got == wanted) {
            peer->notice[wanted] = '\0';
            peer->got = 0;
            if (peer->notice[0] == COMM_FAILURE) { comm_record(c, 0, (const char*)peer->notice + 4); }
            if (peer->notice[0] == COMM_READY) { __atomic_store_n(&peer->ready, 1, __ATOMIC_RELEASE); }
            if (peer->notice[0] == COMM_END) { peer->ended = 1; }
            continue;
        }
        ssize_t n = recv(peer->fd[COMM_CONTROL], peer->notice + peer->got, wanted - peer->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) { return 1; }
        if (n <= 0) { return 0; }
        peer->heard = wall_seconds();
        peer->got += (size_t)n;
    }
}

static inline void comm_watch_peer_(Comm* c, int rank, double now) {
    CommPeer* peer = &c->peers[rank];
    char text[COMM_TEXT_BYTES];
    if (peer->fd[COMM_CONTROL] < 0 || peer->ended) { return; }
    if (!comm_hear_(c, peer) && !peer->ended) {
        snprintf(text, sizeof(text), "rank %d has ended without a word: its connection closed", rank);
        comm_record(c, 0, text);
    }
    double silence = now - peer->heard;
    if (silence > c->silence) {
        snprintf(text, sizeof(text), "rank %d has been silent for %.0f s: it was stopped, or its machine is gone", rank,
                 silence);
        comm_record(c, 0, text);
    }
}

static inline void* comm_abort_(void* comm) {
    Comm* c = (Comm*)comm;
    c->device.abort(c->device.context);
    pthread_mutex_lock(&c->mutex);
    c->aborting = 0;
    pthread_mutex_unlock(&c->mutex);
    return NULL;
}

// Aborts the device, in a thread of its own: that may take long, or for ever.
static inline void comm_abort_device_(Comm* c) {
    pthread_t thread;
    pthread_mutex_lock(&c->mutex);
    int wanted = c->device.abort != NULL && !c->device_closing;
    c->aborting = wanted;
    pthread_mutex_unlock(&c->mutex);
    if (!wanted) { return; }
    if (thread_start(&thread, comm_abort_, c)) {
        pthread_detach(thread);
    } else {
        comm_abort_(c);
    }
}

// Once the run has failed: ends the process where it does not end of itself.
static inline void comm_end_process_(Comm* c) {
    char text[COMM_TEXT_BYTES];
    double end = wall_seconds() + c->grace;
    comm_abort_device_(c);
    while (wall_seconds() < end) {
        pthread_mutex_lock(&c->mutex);
        int closing = c->closing;
        pthread_mutex_unlock(&c->mutex);
        if (closing) { return; }
        poll(NULL, 0, 20);
    }
    temporary_unlink_all();
    comm_cause(c, text, sizeof(text));
    if (__atomic_exchange_n(&error_line.state, ERROR_ENDING, __ATOMIC_ACQ_REL) == 0) { say_error(text); }
    _exit(EXIT_FAILURE);
}

// Until the end of the run.
static inline void* comm_watch(void* comm) {
    Comm* c = (Comm*)comm;
    double interval = c->silence / 4.0 < 1.0 ? c->silence / 4.0 : 1.0, last = 0.0, before = wall_seconds();
    for (;;) {
        pthread_mutex_lock(&c->mutex);
        int closing = c->closing, failed = c->cause[0] != '\0';
        double now = wall_seconds();
        if (now - last >= interval) {
            comm_notify_all(c, COMM_HEARTBEAT, "");
            last = now;
        }
        pthread_mutex_unlock(&c->mutex);
        if (closing) { return NULL; }
        if (failed) {
            comm_end_process_(c);
            return NULL;
        }
        for (int i = 0; i < c->size; i++) {
            CommPeer* peer = &c->peers[i];
            if (now - before > interval) { // this process itself was stopped
                peer->heard = fmin(peer->heard + now - before, now);
            }
            comm_watch_peer_(c, i, now);
        }
        before = now;
        poll(NULL, 0, 20);
    }
}

#endif
