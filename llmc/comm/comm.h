/*
Communication between the processes of one run, over TCP. They meet at rank 0, their settings are compared, and then they
exchange blocks of host memory or, through a CommDevice, of device memory. Collective functions are called by all processes in
the same order, by the main thread; they return when this process's part is done, or with an error as soon as any process has
failed. With one process Comm is NULL, which every function accepts.

    comm/state.h   the structs; comm_health(), comm_fail(); the thread that detects faults, and ends a process that does not
                   end by itself
    comm/meet.h    (comm/socket.h) every process connects to rank 0, sends the job's token and its rank, and receives the
                   addresses of the others; then each pair connects
*/
#ifndef LLMC_COMM_COMM_H
#define LLMC_COMM_COMM_H

#include <limits.h>
#include <sys/uio.h>

#include "meet.h"
#include "state.h"
#include "llmc/base/signals.h"

// ----------------------------------------------------------------------------
// Transfers of blocks of host memory: all of a call's blocks at the same time, those between two processes in order. Each block
// follows a header with the function that sends it, its number on the connection and its bytes, so that processes that are not
// at the same point of the program end with an error, not with wrong numbers.

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

// ----------------------------------------------------------------------------
// Host memory

// Part `rank` of `size` parts of data, which are equal where `size` divides the bytes
static inline CommBlock comm_part_(void* data, size_t bytes, int rank, int size) {
    size_t most = CEIL_DIV(bytes, (size_t)size), begin = (size_t)rank * most < bytes ? (size_t)rank * most : bytes;
    CommBlock part = {rank, (char*)data + begin, bytes - begin < most ? bytes - begin : most};
    return part;
}

// All-gather: of data (bytes) this process has part `rank`; part i becomes rank i's.
static inline Status comm_gather_(Comm* c, uint32_t call, void* data, size_t bytes) {
    CommMove m;
    if (c == NULL) { return STATUS_OK; }
    CommBlock own = comm_part_(data, bytes, c->rank, c->size);
    for (int i = 1; c->imagined && i < c->size; i++) { memcpy((char*)data + (size_t)i * own.bytes, data, own.bytes); }
    if (c->imagined) { return STATUS_OK; }
    comm_move_open(&m, c, COMM_DATA, call, 2 * (size_t)c->size);
    for (int k = 1; k < c->size; k++) {
        CommBlock part = comm_part_(data, bytes, (c->rank + c->size - k) % c->size, c->size);
        comm_move_add(&m, c, COMM_SEND, (c->rank + k) % c->size, own.data, own.bytes);
        comm_move_add(&m, c, COMM_RECEIVE, part.rank, part.data, part.bytes);
    }
    return comm_move_run(&m, c);
}

// All-gather: all has size blocks of `bytes`, of which this process has filled its own; block i becomes rank i's.
static inline Status comm_gather(Comm* c, void* all, size_t bytes) {
    return comm_gather_(c, COMM_CALL_GATHER, all, bytes * (size_t)comm_size(c));
}

static inline Status comm_reduce_(Comm* c, int* number, int is_sum) {
    int32_t *all = (int32_t*)calloc_check((size_t)comm_size(c), sizeof(int32_t)), result;
    all[comm_rank(c)] = *number;
    Status status = comm_gather(c, all, sizeof(int32_t));
    result = all[0];
    for (int i = 1; i < comm_size(c); i++) {
        int least = all[i] < result ? all[i] : result;
        result = is_sum ? result + all[i] : least;
    }
    free(all);
    if (status == STATUS_OK) { *number = result; }
    return status;
}

// Reduce *number over all processes, to the minimum or to the sum. Every process gets the result.
static inline Status comm_min(Comm* c, int* number) { return comm_reduce_(c, number, 0); }
static inline Status comm_sum(Comm* c, int* number) { return comm_reduce_(c, number, 1); }

// Returns when all processes have called it.
static inline Status comm_barrier_(Comm* c, uint32_t call) {
    char* bytes = (char*)calloc_check((size_t)comm_size(c), 1);
    Status status = comm_gather_(c, call, bytes, (size_t)comm_size(c));
    free(bytes);
    return status;
}

static inline Status comm_barrier(Comm* c) { return comm_barrier_(c, COMM_CALL_BARRIER); }

// Broadcast: data (bytes) becomes the root's in every process. The root sends each of the others a part, which these send on to
// all: so the root sends at most twice the bytes, whatever the number of processes.
static inline Status comm_broadcast(Comm* c, void* data, size_t bytes, int root) {
    CommMove m;
    if (c == NULL || c->imagined) { return STATUS_OK; }
    CommBlock own = comm_part_(data, bytes, c->rank, c->size);
    comm_move_open(&m, c, COMM_DATA, COMM_CALL_BROADCAST, (size_t)c->size);
    for (int i = 0; i < c->size && c->rank == root; i++) {
        CommBlock part = comm_part_(data, bytes, i, c->size);
        if (i != root) { comm_move_add(&m, c, COMM_SEND, i, part.data, part.bytes); }
    }
    if (c->rank != root) { comm_move_add(&m, c, COMM_RECEIVE, root, own.data, own.bytes); }
    TRY(comm_move_run(&m, c));
    return comm_gather_(c, COMM_CALL_BROADCAST, data, bytes);
}

// *lowest becomes the lowest rank in which `mine` is not 0, or -1. The text (size bytes) of that rank is copied to all.
static inline Status comm_lowest(Comm* c, int* lowest, int mine, char* text, size_t size) {
    int rank = mine ? comm_rank(c) : INT_MAX;
    TRY(comm_min(c, &rank));
    *lowest = rank == INT_MAX ? -1 : rank;
    return rank == INT_MAX ? STATUS_OK : comm_broadcast(c, text, size, rank);
}

// Writes into `text` (COMM_TEXT_BYTES) how the settings of a rank differ from rank 0's; "" if they do not.
static inline void comm_difference_(char* text, int rank, const char* theirs, const char* ours) {
    text[0] = '\0';
    while (strcmp(ours, theirs) != 0) { // line by line
        size_t a = strcspn(ours, "\n"), b = strcspn(theirs, "\n");
        if (a != b || strncmp(ours, theirs, a) != 0) {
            const char *x = a == 0 ? "nothing more" : ours, *y = b == 0 ? "nothing more" : theirs;
            int m = (int)strcspn(x, "\n"), n = (int)strcspn(y, "\n");
            snprintf(text, COMM_TEXT_BYTES, "rank %d was started with %.*s%s, rank 0 with %.*s%s; start all alike",
                     rank, n < 300 ? n : 300, y, n < 300 ? "" : "...", m < 300 ? m : 300, x, m < 300 ? "" : "...");
            return;
        }
        ours += a + (ours[a] == '\n'), theirs += b + (theirs[b] == '\n');
    }
}

// The lines "name value" must be equal in every process; an error in every process names the rank, the name, both values.
static inline Status comm_compare(Comm* c, const char* settings) {
    char text[COMM_TEXT_BYTES];
    uint64_t length = strlen(settings);
    int rank;
    if (c == NULL) { return STATUS_OK; }
    TRY(comm_broadcast(c, &length, sizeof(length), 0));
    char* first = (char*)calloc_check(length + 1, 1);
    if (c->rank == 0) { memcpy(first, settings, length); }
    Status status = comm_broadcast(c, first, length, 0);
    comm_difference_(text, c->rank, settings, first);
    free(first);
    TRY(status);
    TRY(comm_lowest(c, &rank, text[0] != '\0', text, sizeof(text)));
    if (rank < 0) { return STATUS_OK; }
    if (comm_barrier(c) != STATUS_OK) { status_clear(); } // no process ends before all have the text
    return status_fail("%s", text);
}

// ----------------------------------------------------------------------------
// Tensors: in host memory or, with a device, in its memory, in stream order (a cudaStream_t, which sockets ignore)

// Waits, with the mutex, until no thread aborts the device.
static inline void comm_wait_for_abort_(Comm* c) {
    while (c->aborting) {
        pthread_mutex_unlock(&c->mutex);
        poll(NULL, 0, 10);
        pthread_mutex_lock(&c->mutex);
    }
}

// From here on tensors are in the device's memory; comm_close closes it. The previous device is not called any more.
static inline void comm_use_device(Comm* c, CommDevice device) {
    if (c == NULL) { return; }
    pthread_mutex_lock(&c->mutex);
    comm_wait_for_abort_(c);
    c->device = device;
    pthread_mutex_unlock(&c->mutex);
}

// A device's function has failed, perhaps because another process has ended.
static inline Status comm_device_status_(Comm* c, Status status) {
    char text[COMM_TEXT_BYTES];
    if (status == STATUS_OK) { return STATUS_OK; }
    snprintf(text, sizeof(text), "rank %d: %.900s", c->rank, status_message());
    status_clear();
    return comm_judge(c, text);
}

// Sends and receives any number of blocks to and from each rank: between two ranks the k-th sent is the k-th received. Empty
// blocks are skipped, and so are a process's own, which lie where they should.
static inline Status comm_tensor_exchange(Comm* c, const CommBlock* sent, int num_sent, const CommBlock* received,
                                          int num_received, void* stream) {
    CommMove m;
    if (c != NULL && c->device.exchange != NULL) {
        TRY(comm_health(c));
        return comm_device_status_(
            c, c->device.exchange(c->device.context, sent, num_sent, received, num_received, stream));
    }
    if (c == NULL) { return STATUS_OK; }
    comm_move_open(&m, c, COMM_DATA, COMM_CALL_EXCHANGE, (size_t)num_sent + (size_t)num_received);
    for (int i = 0; i < num_sent; i++) {
        if (sent[i].rank != c->rank) { comm_move_add(&m, c, COMM_SEND, sent[i].rank, sent[i].data, sent[i].bytes); }
    }
    for (int i = 0; i < num_received; i++) {
        if (received[i].rank == c->rank) { continue; }
        comm_move_add(&m, c, COMM_RECEIVE, received[i].rank, received[i].data, received[i].bytes);
    }
    return comm_move_run(&m, c);
}

static inline void comm_add_(void* sum, const void* numbers, size_t count, CommNumber type) {
    for (size_t i = 0; i < count; i++) {
        if (type == COMM_FLOAT) { ((float*)sum)[i] += ((const float*)numbers)[i]; }
        if (type == COMM_DOUBLE) { ((double*)sum)[i] += ((const double*)numbers)[i]; }
        if (type == COMM_UINT64) { ((uint64_t*)sum)[i] += ((const uint64_t*)numbers)[i]; }
    }
}

// All-reduce: numbers (count) become their sums over all ranks, the same bits in each. Where at most one rank has a number
// other than zero at an index, the sum is exact in any order, and NaN and infinities are preserved.
static inline Status comm_tensor_merge(Comm* c, void* numbers, size_t count, CommNumber type, void* stream) {
    if (c == NULL) { return STATUS_OK; }
    if (c->device.merge != NULL) {
        TRY(comm_health(c));
        return comm_device_status_(c, c->device.merge(c->device.context, numbers, count, type, stream));
    }
    size_t bytes = count * (type == COMM_FLOAT ? sizeof(float) : sizeof(double));
    char* theirs = (char*)calloc_check(bytes, (size_t)c->size);
    if (bytes > 0) { memcpy(theirs + (size_t)c->rank * bytes, numbers, bytes); }
    Status status = comm_gather_(c, COMM_CALL_MERGE, theirs, bytes * (size_t)c->size);
    if (status == STATUS_OK && bytes > 0) { memcpy(numbers, theirs, bytes); }
    for (int i = 1; i < c->size && status == STATUS_OK; i++) { // in the order of ranks, in each of them
        comm_add_(numbers, theirs + (size_t)i * bytes, count, type);
    }
    free(theirs);
    return status;
}

// ----------------------------------------------------------------------------
// A second connection between each process and rank 0, for one background thread. rank: 0 or, in rank 0, the other process.

static inline Status comm_background_(Comm* c, int direction, int rank, const void* data, size_t bytes) {
    CommMove m;
    if (c == NULL || bytes == 0) { return STATUS_OK; }
    comm_move_open(&m, c, COMM_BACKGROUND, COMM_CALL_BACKGROUND, 1);
    comm_move_add(&m, c, direction, rank, data, bytes);
    return comm_move_run(&m, c);
}

static inline Status comm_background_send(Comm* c, int rank, const void* data, size_t bytes) {
    return comm_background_(c, COMM_SEND, rank, data, bytes);
}

static inline Status comm_background_receive(Comm* c, int rank, void* data, size_t bytes) {
    return comm_background_(c, COMM_RECEIVE, rank, data, bytes);
}

// ----------------------------------------------------------------------------

// fatal() in a run of several processes: notifies the others; if one of them has failed before, its error is reported instead.
static inline void comm_fatal_hook_(void* comm, char* text, size_t size) {
    Comm* c = (Comm*)comm;
    char cause[COMM_TEXT_BYTES];
    comm_fail(c, text);
    if (comm_cause(c, cause, sizeof(cause))) { snprintf(text, size, "%s", cause); }
    temporary_unlink_all();
}

// The end of the run, or of what is left of it after a failure; all processes call it.
static inline void comm_close(Comm* c) {
    if (c == NULL) { return; }
    if (c->has_thread) {
        int well = comm_barrier_(c, COMM_CALL_CLOSE) == STATUS_OK;
        pthread_mutex_lock(&c->mutex);
        c->device_closing = 1;
        comm_wait_for_abort_(c);
        pthread_mutex_unlock(&c->mutex);
        if (c->device.close != NULL) { c->device.close(c->device.context); }
        pthread_mutex_lock(&c->mutex);
        c->closing = 1;
        if (well) { comm_notify_all(c, COMM_END, ""); }
        pthread_mutex_unlock(&c->mutex);
        pthread_join(c->thread, NULL);
        set_fatal_hook(NULL, NULL);
        comm_drain(c);
    }
    comm_disconnect(c);
    pthread_mutex_destroy(&c->mutex);
    free(c->peers);
    free(c);
}

static inline Comm* comm_create_(int rank, int size) {
    Comm* c = (Comm*)calloc_check(1, sizeof(Comm));
    c->rank = rank, c->size = size, c->listener = -1;
    c->peers = (CommPeer*)calloc_check((size_t)size, sizeof(CommPeer));
    for (int i = 0; i < size; i++) {
        for (int k = 0; k < COMM_KINDS; k++) { c->peers[i].fd[k] = -1; }
    }
    pthread_mutex_init(&c->mutex, NULL);
    return c;
}

// A Comm of so many processes, of which there is none but this: for --plan, which waits for nobody. As rank 0, it broadcasts to
// nobody, and gathers from each what it has itself.
static inline Comm* comm_imagine(int size) {
    Comm* c = comm_create_(0, size);
    c->imagined = 1;
    return c;
}

// All processes of the run call it; it returns when they have met and found their settings equal, and error lines begin with
// the rank from then on. *comm is NULL on an error, and with one process.
static inline Status comm_open(Comm** comm, CommSettings settings) {
    char name[32];
    *comm = NULL;
    status_clear();
    if (settings.size == 1) { return STATUS_OK; }
    snprintf(name, sizeof(name), "rank %d", settings.rank);
    set_process_name(name);
    Comm* c = comm_create_(settings.rank, settings.size);
    Status status = comm_meet(c, &settings);
    if (status == STATUS_OK) { status = comm_compare(c, settings.settings); }
    if (status != STATUS_OK) {
        comm_close(c);
        return STATUS_ERROR;
    }
    set_fatal_hook(comm_fatal_hook_, c);
    *comm = c;
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Agreement between the processes of a run, so that all do the same at the same step: on a signal to end or to save, whichever
// process received it, and on an error of any of them that ends the run in an orderly way, such as unreadable data. Loss and
// norm of a step are sums over all processes and must have the same bits in all of them: a process sends its own with its next
// message.
//
//     agree(&a, STATUS_OK)          once a step, and at the end of each evaluation; a few bytes from each process to all
//     agreement_stop(&a)            the signal that asks the run to end, or 0
//
// With one process nothing is sent, and a signal takes effect at once.

typedef struct {
    Comm* comm;
    int stop;             // the signal of the lowest rank that has one, or 0
    int save;             // 1: SIGUSR1 has come to one of them
    float result[2];      // this process's loss and gradient norm of the last step
    char difference[160]; // "" or which process has others
} Agreement;

// The message of a process
typedef struct {
    int32_t stop, save, error;
    float result[2];
} AgreementWord;

static inline void agreement_compare_(Agreement* a, const AgreementWord* all, int n) {
    for (int i = 1; i < n && a->difference[0] == '\0'; i++) {
        if (memcmp(all[i].result, all[0].result, sizeof(all[0].result)) == 0) { continue; }
        snprintf(a->difference, sizeof(a->difference),
                 "rank %d has loss %.9g and gradient norm %.9g, rank 0 %.9g and %.9g", i, (double)all[i].result[0],
                 (double)all[i].result[1], (double)all[0].result[0], (double)all[0].result[1]);
    }
}

// Exchanges messages with all processes. `own`: the status of this process, with this thread's message. The error of the lowest
// rank that has one becomes the error of all, and names that rank.
static inline Status agree(Agreement* a, Status own) {
    char text[STATUS_BYTES] = "";
    int n = comm_size(a->comm), rank = comm_rank(a->comm), error = 0;
    if (n == 1) { return own; }
    AgreementWord* all = (AgreementWord*)calloc_check((size_t)n, sizeof(AgreementWord));
    AgreementWord mine = {signals_stop(), signals_take_save(), own != STATUS_OK, {a->result[0], a->result[1]}};
    all[rank] = mine;
    if (own != STATUS_OK) { snprintf(text, sizeof(text), "rank %d: %.1900s", rank, status_message()); }
    status_clear();
    check(comm_gather(a->comm, all, sizeof(AgreementWord)));
    for (int i = 0; i < n; i++) {
        a->stop = a->stop ? a->stop : all[i].stop;
        a->save |= all[i].save;
        error |= all[i].error;
    }
    agreement_compare_(a, all, n);
    free(all);
    if (!error) { return STATUS_OK; }
    check(comm_lowest(a->comm, &rank, own != STATUS_OK, text, sizeof(text)));
    return status_fail("%s", text);
}

// The signal that asks the run to end, or 0; the same in all processes.
static inline int agreement_stop(const Agreement* a) { return comm_size(a->comm) == 1 ? signals_stop() : a->stop; }

// 1 if a SIGUSR1 has come since this was asked last; the same in all processes.
static inline int agreement_take_save(Agreement* a) {
    int save = comm_size(a->comm) == 1 ? signals_take_save() : a->save;
    a->save = 0;
    return save;
}

#endif
