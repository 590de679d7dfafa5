/*
The state that the parts of comm.h share: the processes of a run, the connections between them, and the cause of a failure.

Each process has a control connection with rank 0, which a thread watches. Rank 0 decides on the cause of a failure: the first
fault that it receives, which it sends to all before it acts on it itself, so that no process is blamed that only ended because
of another.
*/
#ifndef LLMC_COMM_STATE_H
#define LLMC_COMM_STATE_H

#include <arpa/inet.h>
#include <linux/sockios.h>
#include <math.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "llmc/base/atomic_file.h"
#include "llmc/base/utils.h"

enum { COMM_TEXT_BYTES = 1024 };

// How a process finds the others. All but `rank` and `listener` is the same in every process.
typedef struct {
    int rank, size;
    const char* address;    // of rank 0: a name or an IPv4 address; NULL: one of its machine, which is in `file`
    const char* origin;     // of the address, for errors, such as "MASTER_ADDR=node-1", or NULL
    int port;               // that rank 0 listens on
    const char* file;       // or NULL: rank 0 writes address, port and a secret into this file
    int listener;           // rank 0: a socket that is listening already, or -1
    const char* token;      // of the job, up to 63 bytes; connections without it are closed
    const char* settings;   // lines "name value" that must be equal in every process
    const char* reason;     // why there are other processes, for notes on a long wait for them; NULL: no notes
    double connect_timeout; // seconds until all must have met
    double fault_timeout;   // seconds until all have ended after a fault
} CommSettings;

// A block of host memory or, with a device, of its memory.
typedef struct {
    int rank; // that it goes to or comes from
    void* data;
    size_t bytes;
} CommBlock;

typedef enum { COMM_FLOAT, COMM_DOUBLE, COMM_UINT64 } CommNumber;

// Moves tensors in place of the sockets: NCCL. Functions as comm_tensor_exchange and comm_tensor_merge.
typedef struct {
    Status (*exchange)(void* context, const CommBlock* sent, int num_sent, const CommBlock* received, int num_received,
                       void* stream);
    Status (*merge)(void* context, void* numbers, size_t count, CommNumber type, void* stream);
    void (*abort)(void* context); // another process has failed: by the watching thread, whatever the others do; once
    void (*close)(void* context);
    void* context;
    void* abort_context; // of `abort`, or NULL: the same
} CommDevice;

// The kinds of connections between two processes
typedef enum { COMM_CONTROL, COMM_DATA, COMM_BACKGROUND, COMM_KINDS } CommKind;

typedef struct {
    int fd[COMM_KINDS];            // -1: none. Control and background: rank 0 with each other
    uint32_t moved[COMM_KINDS][2]; // blocks received, sent: each has its number
    struct sockaddr_in address;    // where it listens for the others
    // the watching thread's
    unsigned char notice[4 + COMM_TEXT_BYTES]; // the one that is being received
    size_t got;                                // bytes of it
    double heard;                              // when, in seconds
    int ended;                                 // 1: it has said that the run is over
} CommPeer;

typedef struct Comm {
    int rank, size;
    double silence, grace; // seconds without a word that are a fault; that a process has to end after one
    CommPeer* peers;       // (size)
    int listener;          // while they meet, or -1
    int imagined;          // 1: there are no other processes; see comm_imagine()
    CommDevice device;     // device.exchange NULL: none
    int failed;            // atomic: 1 if there is a cause
    // the watching thread
    int has_thread;
    pthread_t thread;
    pthread_mutex_t mutex;       // guards what follows, and sending notices
    int closing;                 // 1: connections may close from now on
    int aborting;                // 1: a thread aborts the device
    int device_closing;          // 1: it is aborted no more
    int own;                     // 1: the cause is of this process
    char cause[COMM_TEXT_BYTES]; // "" or why this run of several processes is over
} Comm;

// ----------------------------------------------------------------------------
// Notices, on the control connections: kind, a reserved byte, bytes of the text (2, little-endian), the text

enum { COMM_HEARTBEAT = 'h', COMM_FAILURE = 'f', COMM_END = 'e' };

// Best effort: who does not take it has a full connection, and does not live.
static inline void comm_notify(int fd, int kind, const char* text) {
    unsigned char notice[4 + COMM_TEXT_BYTES] = {(unsigned char)kind};
    size_t n = strlen(text);
    if (n > COMM_TEXT_BYTES - 1) { n = COMM_TEXT_BYTES - 1; }
    notice[2] = (unsigned char)n, notice[3] = (unsigned char)(n >> 8);
    memcpy(notice + 4, text, n);
    if (fd >= 0 && send(fd, notice, 4 + n, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) { return; }
}

// Sends a notice to all processes that this one has a control connection with.
static inline void comm_notify_all(Comm* c, int kind, const char* text) {
    for (int i = 0; i < c->size; i++) { comm_notify(c->peers[i].fd[COMM_CONTROL], kind, text); }
}

// Seconds that a process gets to end by itself after another one has failed; they are part of --fault-timeout.
static inline double comm_grace(double fault_timeout) { return fault_timeout / 2.0 < 5.0 ? fault_timeout / 2.0 : 5.0; }

// Waits, at most a second, until the notices are on the other machines, where the end of this process cannot lose them.
static inline void comm_drain(const Comm* c) {
    for (int tries = 0, waiting = 1; waiting && tries < 100; tries++) {
        waiting = 0;
        for (int i = 0; i < c->size; i++) {
            struct pollfd p = {c->peers[i].fd[COMM_CONTROL], 0, 0}; // says where the connection is gone
            int bytes = 0;
            waiting |= p.fd >= 0 && ioctl(p.fd, SIOCOUTQ, &bytes) == 0 && bytes > 0 && poll(&p, 1, 0) == 0;
        }
        if (waiting) { poll(NULL, 0, 10); }
    }
}

// ----------------------------------------------------------------------------
// Failure

// The run has failed. The first cause stays, and goes to all before anybody here sees it.
static inline void comm_record(Comm* c, int own, const char* cause) {
    pthread_mutex_lock(&c->mutex);
    if (c->cause[0] == '\0' && !c->closing) {
        comm_notify_all(c, COMM_FAILURE, cause);
        snprintf(c->cause, sizeof(c->cause), "%s", cause);
        c->own = own;
        __atomic_store_n(&c->failed, 1, __ATOMIC_RELEASE);
    }
    pthread_mutex_unlock(&c->mutex);
}

// Copies why the run has failed, as this process says it: without its own rank, which its lines begin with anyway. Returns
// 1 if the cause is another process's.
static inline int comm_cause(Comm* c, char* text, size_t size) {
    char own[32];
    pthread_mutex_lock(&c->mutex);
    snprintf(own, sizeof(own), "rank %d: ", c->rank);
    size_t skipped = c->own && strncmp(c->cause, own, strlen(own)) == 0 ? strlen(own) : 0;
    int another = c->cause[0] != '\0' && !c->own;
    snprintf(text, size, "%s", c->cause + skipped);
    pthread_mutex_unlock(&c->mutex);
    return another;
}

// STATUS_ERROR, with rank and cause, once any process has failed; cheap.
static inline Status comm_health(Comm* c) {
    char text[COMM_TEXT_BYTES];
    if (c == NULL || !__atomic_load_n(&c->failed, __ATOMIC_ACQUIRE)) { return STATUS_OK; }
    comm_cause(c, text, sizeof(text));
    return status_fail("%s", text);
}

// Ends this process's part in the run for good: all others end with "rank R: cause".
static inline void comm_fail(Comm* c, const char* cause) {
    char text[COMM_TEXT_BYTES];
    if (c == NULL) { return; }
    int length = snprintf(text, sizeof(text), "rank %d: %s", c->rank, cause);
    if (length >= (int)sizeof(text)) { strcpy(text + sizeof(text) - 4, "..."); }
    comm_record(c, 1, text);
    comm_drain(c);
}

// Something failed here, perhaps because another process has ended: what rank 0 says of that within some seconds counts,
// and after them `cause`.
static inline Status comm_judge(Comm* c, const char* cause) {
    for (int i = 0; i < 60 && comm_health(c) == STATUS_OK; i++) { poll(NULL, 0, 50); }
    comm_record(c, 1, cause);
    return comm_health(c);
}

static inline int comm_rank(const Comm* c) { return c == NULL ? 0 : c->rank; }
static inline int comm_size(const Comm* c) { return c == NULL ? 1 : c->size; }

// ----------------------------------------------------------------------------
// The thread that watches the control connections: a heartbeat each way, and the cause where a process fails. Silence (SIGSTOP,
// a dead machine) and a connection that closes are faults of that process.
//
//     a fault                 comm_health() is an error, the device is aborted, and the functions of comm.h return the error
//     grace seconds later     if the process has not ended by itself, the thread ends it, with the one line if none was printed

// Takes what a process has sent; returns 0 if its connection is closed.
static inline int comm_hear_(Comm* c, CommPeer* peer) {
    for (;;) {
        size_t wanted = peer->got < 4 ? 4 : 4 + (size_t)peer->notice[2] + ((size_t)peer->notice[3] << 8);
        if (wanted > sizeof(peer->notice) - 1) { return 0; }
        if (peer->got >= 4 && peer->got == wanted) {
            peer->notice[wanted] = '\0';
            peer->got = 0;
            if (peer->notice[0] == COMM_FAILURE) { comm_record(c, 0, (const char*)peer->notice + 4); }
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
        snprintf(text, sizeof(text), "rank %d died without an error message: its connection closed", rank);
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
    c->device.abort(c->device.abort_context ? c->device.abort_context : c->device.context);
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

// Once the run has failed: ends the process if it does not exit on its own.
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
    if (__atomic_exchange_n(&error_line.state, ERROR_ENDING, __ATOMIC_ACQ_REL) == 0) { say_line("error", text); }
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
