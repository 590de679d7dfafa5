/*
Transfers of blocks of host memory over the connections of comm.h: all of a call's blocks at the same time, those between two
processes in order. Each block follows a header with the function that sends it, its number on the connection and its bytes, so
that processes that are not at the same point of the program end with an error, not with wrong numbers.
*/
#ifndef LLMC_COMM_MOVE_H
#define LLMC_COMM_MOVE_H

#include <sys/uio.h>

#include "state.h"

enum { COMM_RECEIVE = 0, COMM_SEND = 1 };

// The functions that send blocks
enum {
    COMM_CALL_BARRIER = 1,
    COMM_CALL_BROADCAST,
    COMM_CALL_GATHER,
    COMM_CALL_EXCHANGE,
    COMM_CALL_MERGE,
    COMM_CALL_CLOSE,
    COMM_CALL_BACKGROUND
};

// The header of a block: little-endian, like all supported machines.
typedef struct {
    uint32_t magic;  // of the function that sends it
    uint32_t number; // of the block on this connection
    uint64_t bytes;
} CommHeader;

typedef struct {
    int rank, direction;
    char* data;
    size_t bytes;
    CommHeader header;
    size_t done; // bytes of header and block
    int next;    // transfer of the same process and direction, or -1
} CommTransfer;

// Transfers of a process in one direction: the first that is left, and the last; -1: none
typedef struct {
    int first, last;
} CommQueue;

// All transfers of one call
typedef struct {
    CommKind kind;
    uint32_t magic;
    CommTransfer* transfers; // (capacity)
    int count, left;
    CommQueue (*queues)[2]; // (size) of each process and direction
    struct pollfd* fds;     // (size)
} CommMove;

// Begins a move of up to `capacity` blocks over connections of this kind.
static inline void comm_move_open(CommMove* m, const Comm* c, CommKind kind, uint32_t magic, size_t capacity) {
    memset(m, 0, sizeof(*m));
    m->kind = kind, m->magic = magic;
    m->transfers = (CommTransfer*)calloc_check(capacity, sizeof(CommTransfer));
    m->queues = (CommQueue(*)[2])malloc_check((size_t)c->size * sizeof(CommQueue[2]));
    m->fds = (struct pollfd*)calloc_check((size_t)c->size, sizeof(struct pollfd));
    memset(m->queues, -1, (size_t)c->size * sizeof(CommQueue[2]));
}

// Adds a block to send to a rank (direction 1), or to receive from it (0), after those added before.
static inline void comm_move_add(CommMove* m, Comm* c, int direction, int rank, const void* data, size_t bytes) {
    if (bytes == 0) { return; }
    CommTransfer* t = &m->transfers[m->count];
    memset(t, 0, sizeof(*t));
    t->rank = rank, t->direction = direction, t->bytes = bytes, t->next = -1;
    t->data = (char*)(uintptr_t)data;
    if (direction == COMM_SEND) {
        t->header.magic = m->magic, t->header.bytes = bytes;
        t->header.number = c->peers[rank].moved[m->kind][COMM_SEND]++;
    }
    CommQueue* queue = &m->queues[rank][direction];
    *(queue->last >= 0 ? &m->transfers[queue->last].next : &queue->first) = m->count;
    queue->last = m->count++;
    m->left++;
}

// The connection to a process is closed. The reason, if there is one, comes over the control connections.
static inline Status comm_lost_(Comm* c, int rank) {
    char text[COMM_TEXT_BYTES];
    snprintf(text, sizeof(text), "rank %d: its connection with rank %d broke", rank, c->rank);
    return comm_judge(c, text);
}

// The received header is not that of the expected block.
static inline Status comm_check_header_(Comm* c, const CommMove* m, const CommTransfer* t) {
    char text[COMM_TEXT_BYTES];
    uint32_t number = c->peers[t->rank].moved[m->kind][COMM_RECEIVE]++;
    if (t->header.magic == m->magic && t->header.number == number && t->header.bytes == t->bytes) { return STATUS_OK; }
    snprintf(text, sizeof(text),
             "rank %d is at another point of the program than rank %d: block %u of %llu bytes in call %u, "
             "awaited was block %u of %zu bytes in call %u",
             t->rank, c->rank, t->header.number, (unsigned long long)t->header.bytes, t->header.magic, number, t->bytes,
             m->magic);
    comm_record(c, 0, text);
    return comm_health(c);
}

// Transfers what a connection can take now in one direction. Returns the bytes, 0 if it would block, -1 if it is closed.
static inline ssize_t comm_advance_(int fd, CommTransfer* t) {
    size_t head = sizeof(t->header), most = (size_t)1 << 22; // so that no connection waits long for another
    struct iovec parts[2];
    struct msghdr message;
    memset(&message, 0, sizeof(message));
    message.msg_iov = parts;
    if (t->done < head) {
        parts[0].iov_base = (char*)&t->header + t->done;
        parts[0].iov_len = head - t->done;
        message.msg_iovlen = 1;
    }
    if (t->done >= head || t->direction == COMM_SEND) { // what is received is looked at first
        size_t at = t->done < head ? 0 : t->done - head;
        struct iovec* part = &parts[message.msg_iovlen++];
        part->iov_base = t->data + at;
        part->iov_len = t->bytes - at < most ? t->bytes - at : most;
    }
    ssize_t n = t->direction == COMM_SEND ? sendmsg(fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT)
                                          : recvmsg(fd, &message, MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) { return 0; }
    if (n > 0) { t->done += (size_t)n; }
    return n > 0 ? n : -1;
}

// Continues the transfers of a process in one direction.
static inline Status comm_serve_(Comm* c, CommMove* m, int rank, int direction) {
    CommQueue* queue = &m->queues[rank][direction];
    for (ssize_t moved = 0; moved < 1 << 20 && queue->first >= 0;) {
        CommTransfer* t = &m->transfers[queue->first];
        size_t head = sizeof(t->header), before = t->done;
        ssize_t n = comm_advance_(c->peers[rank].fd[m->kind], t);
        if (n == 0) { break; }
        if (n < 0) { return comm_lost_(c, rank); }
        moved += n;
        if (direction == COMM_RECEIVE && before < head && t->done >= head) { TRY(comm_check_header_(c, m, t)); }
        if (t->done < head + t->bytes) { continue; }
        queue->first = t->next;
        m->left--;
    }
    return STATUS_OK;
}

// Runs all transfers to their end and frees them.
static inline Status comm_move_run(CommMove* m, Comm* c) {
    struct pollfd* fds = m->fds;
    Status status = comm_health(c);
    while (m->left > 0 && status == STATUS_OK) {
        for (int i = 0; i < c->size; i++) {
            int in = m->queues[i][COMM_RECEIVE].first >= 0, out = m->queues[i][COMM_SEND].first >= 0;
            fds[i].fd = in || out ? c->peers[i].fd[m->kind] : -1;
            fds[i].events = (short)((in ? POLLIN : 0) | (out ? POLLOUT : 0));
            fds[i].revents = 0;
        }
        if (poll(fds, (nfds_t)c->size, 100) < 0 && errno != EINTR) {
            status = status_fail("poll: %s", strerror(errno));
        }
        for (int k = 0; k < 2 * c->size && status == STATUS_OK; k++) {
            int rank = k / 2, direction = k % 2, ready = direction == COMM_SEND ? POLLOUT : POLLIN;
            if ((fds[rank].revents & (ready | POLLERR | POLLHUP | POLLNVAL)) != 0) {
                status = comm_serve_(c, m, rank, direction);
            }
        }
        if (status == STATUS_OK) { status = comm_health(c); }
    }
    free(fds);
    free(m->transfers);
    free(m->queues);
    return status;
}

#endif
