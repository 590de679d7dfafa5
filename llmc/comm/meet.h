/*
The rendezvous of the processes of comm.h. Rank 0 listens; each of the others retries until it can connect, and sends a hello:
the job's token, its rank, its settings. When all have connected, or something is wrong, rank 0 sends each a welcome: the error,
or the addresses of all. Then each process connects to those of lower ranks, and reports to rank 0 when it is connected with
all. Rank 0 continues last, so that whatever it sends later finds every process past its start.

A visitor without the token is disconnected, and a silent one when slots run out; neither delays the others.
*/
#ifndef LLMC_COMM_MEET_H
#define LLMC_COMM_MEET_H

#include "file.h"
#include "socket.h"
#include "wait.h"
#include "watch.h"

enum { COMM_MAGIC = 0x666c6770, COMM_VERSION = 1, COMM_TOKEN_BYTES = 256, COMM_SETTINGS_BYTES = 1 << 20 };

// What a process says first on each connection; with the control connection its settings follow. Zeros fill the token.
typedef struct {
    uint32_t magic, version;
    char token[COMM_TOKEN_BYTES];
    int32_t kind, rank, size;
    uint32_t port; // where it listens for other processes
    uint32_t settings_bytes;
} CommHello;

// Rank 0's answer on the control connection; where text is empty, the addresses (size) follow.
typedef struct {
    uint32_t magic, version;
    double fault_timeout;
    char text[COMM_TEXT_BYTES];
} CommWelcome;

// Somebody who has connected
typedef struct {
    int fd; // -1: free
    double since;
    size_t got; // bytes of hello and settings
    struct sockaddr_in from;
    CommHello hello;
    char* settings; // NULL until the hello is here
} CommVisitor;

typedef struct {
    Comm* c;
    CommSettings settings;
    char token[COMM_TOKEN_BYTES];
    double deadline;
    int missing; // connections that have not come yet
    CommWait wait;
    char where[512]; // rank 0 is, for messages
    char fault[COMM_TEXT_BYTES];
    CommVisitor* visitors; // (num_visitors)
    struct pollfd* fds;    // (num_visitors + 1 + size) visitors, the listener, who is here
    int num_visitors;
} CommMeeting;

// ----------------------------------------------------------------------------
// Were they started alike?

// Writes into `text` (COMM_TEXT_BYTES) how the settings of a rank differ from rank 0's; "" if they do not.
static inline void comm_difference(char* text, int rank, const char* theirs, const char* ours) {
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

// ----------------------------------------------------------------------------
// Receiving visitors

static inline CommHello comm_hello_(const CommMeeting* m, CommKind kind, int port) {
    CommHello h;
    memset(&h, 0, sizeof(h));
    h.magic = COMM_MAGIC, h.version = COMM_VERSION;
    memcpy(h.token, m->token, sizeof(h.token));
    h.kind = (int32_t)kind, h.rank = m->c->rank, h.size = m->c->size, h.port = (uint32_t)port;
    h.settings_bytes = kind == COMM_CONTROL ? (uint32_t)strlen(m->settings.settings) : 0;
    return h;
}

static inline void comm_leave_(CommVisitor* v, int with_connection) {
    if (with_connection && v->fd >= 0) { close(v->fd); }
    free(v->settings);
    memset(v, 0, sizeof(*v));
    v->fd = -1;
}

// Tells a visitor what is wrong and closes its connection.
static inline void comm_refuse_(CommVisitor* v, const char* text) {
    CommWelcome welcome;
    memset(&welcome, 0, sizeof(welcome));
    welcome.magic = COMM_MAGIC, welcome.version = COMM_VERSION;
    snprintf(welcome.text, sizeof(welcome.text), "%s", text);
    if (v->hello.kind == COMM_CONTROL) { (void)!send(v->fd, &welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT); }
    comm_leave_(v, 1);
}

// 1: all of its hello is here; 0: not yet; -1: it is a stranger, or gone
static inline int comm_listen_to_(const CommMeeting* m, CommVisitor* v) {
    for (;;) {
        size_t head = sizeof(v->hello), all = head + (v->settings != NULL ? v->hello.settings_bytes : 0);
        if (v->got == all && v->settings != NULL) { return 1; }
        char* to = v->settings == NULL ? (char*)&v->hello + v->got : v->settings + (v->got - head);
        ssize_t n = recv(v->fd, to, all - v->got, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) { return 0; }
        if (n <= 0) { return -1; }
        v->got += (size_t)n;
        uint32_t magic = COMM_MAGIC;
        size_t said = v->got < sizeof(magic) ? v->got : sizeof(magic);
        if (memcmp(&v->hello.magic, &magic, said) != 0) { return -1; }
        if (v->got < head || v->settings != NULL) { continue; }
        const CommHello* h = &v->hello;
        if (h->version != COMM_VERSION || memcmp(h->token, m->token, sizeof(h->token)) != 0) {
            comm_refuse_(v, "rank 0 belongs to another job, or to another version of the program");
            return -1;
        }
        if (h->settings_bytes > COMM_SETTINGS_BYTES || h->rank < 0 || h->kind < 0 || h->kind >= COMM_KINDS) {
            return -1;
        }
        v->settings = (char*)calloc_check((size_t)h->settings_bytes + 1, 1);
    }
}

// Takes in a process that has said its hello. What is wrong with it becomes the fault of the meeting, if there is none yet.
static inline void comm_admit_(CommMeeting* m, CommVisitor* v) {
    Comm* c = m->c;
    const CommHello* h = &v->hello;
    int rank = h->rank, known = rank < c->size && rank != c->rank;
    int* peer_fd = known ? &c->peers[rank].fd[h->kind] : NULL;
    char text[COMM_TEXT_BYTES] = "";
    if (h->size != c->size) {
        snprintf(text, sizeof(text),
                 "rank %d was started as one of %d processes, rank %d as one of %d; start all alike", rank, h->size,
                 c->rank, c->size);
    } else if (!known || *peer_fd >= 0) {
        snprintf(text, sizeof(text), "two processes were started as rank %d", rank);
    } else if (h->kind == COMM_CONTROL) {
        comm_difference(text, rank, v->settings, m->settings.settings);
    }
    if (text[0] != '\0' && m->fault[0] == '\0') { memcpy(m->fault, text, sizeof(text)); }
    m->missing--;
    if (!known || *peer_fd >= 0) { // it has no slot where the others are told
        comm_refuse_(v, m->fault);
        return;
    }
    *peer_fd = v->fd;
    comm_tune(v->fd);
    if (h->kind == COMM_CONTROL) {
        c->peers[rank].address = v->from;
        c->peers[rank].address.sin_port = htons((uint16_t)h->port);
    }
    comm_leave_(v, 0);
}

// Writes the ranks above this one that have not come, such as "rank 1" or "ranks 1 to 3, 7"; returns their number.
static inline int comm_list_missing_(const CommMeeting* m, CommKind kind, char* text, size_t size) {
    const Comm* c = m->c;
    char list[256] = "";
    int missing = 0;
    for (int i = c->rank + 1, end; i < c->size; i = end + 1) {
        for (end = i; end < c->size && c->peers[end].fd[kind] < 0; end++) {}
        size_t n = strlen(list);
        if (end == i) { continue; }
        snprintf(list + n, sizeof(list) - n, end - i > 1 ? "%s%d to %d" : "%s%d", missing > 0 ? ", " : "", i, end - 1);
        missing += end - i;
    }
    snprintf(text, size, "rank%s %s%s", missing == 1 ? "" : "s", list, strlen(list) + 1 == sizeof(list) ? "..." : "");
    return missing;
}

// Accepts one connection. Where there is no slot for it, the one that has been silent for longest gives up its own.
static inline void comm_answer_(CommMeeting* m) {
    CommVisitor* slot = &m->visitors[0];
    for (int i = 0; i < m->num_visitors && slot->fd >= 0; i++) {
        CommVisitor* v = &m->visitors[i];
        if (v->fd < 0 || v->since < slot->since) { slot = v; }
    }
    struct sockaddr_in from;
    socklen_t length = sizeof(from);
    int fd = accept4(m->c->listener, (struct sockaddr*)&from, &length, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && errno != EMFILE && errno != ENFILE) { return; }
    comm_leave_(slot, 1);
    if (fd < 0) { return; } // the next time it can be had
    slot->fd = fd, slot->from = from, slot->since = wall_seconds();
}

// One round: waits for up to 0.1 s for what comes, and handles it.
static inline void comm_receive_visitors_(CommMeeting* m, CommKind first_kind, CommKind last_kind) {
    int n = m->num_visitors, size = m->c->size;
    for (int i = 0; i < n + 1 + size; i++) {
        int gone = i > n && first_kind == COMM_CONTROL; // watches for the end of those who are here
        m->fds[i].fd = i < n ? m->visitors[i].fd : i == n ? m->c->listener : gone ? m->c->peers[i - n - 1].fd[0] : -1;
        m->fds[i].events = POLLIN, m->fds[i].revents = 0;
    }
    poll(m->fds, (nfds_t)(n + 1 + size), 100);
    for (int i = 0; i < n; i++) {
        CommVisitor* v = &m->visitors[i];
        int said = v->fd >= 0 && m->fds[i].revents != 0 ? comm_listen_to_(m, v) : 0;
        if (said == 1 && v->hello.kind >= (int)first_kind && v->hello.kind <= (int)last_kind) {
            comm_admit_(m, v);
        } else if (said != 0) {
            comm_leave_(v, 1);
        }
    }
    for (int i = 0; i < size; i++) {
        if (m->fds[n + 1 + i].revents == 0) { continue; }
        if (m->fault[0] == '\0') { snprintf(m->fault, sizeof(m->fault), "rank %d has ended while the others came", i); }
        close(m->c->peers[i].fd[0]);
        m->c->peers[i].fd[0] = -1;
    }
    if (m->fds[n].revents != 0) { comm_answer_(m); }
}

// Waits for `missing` connections of these kinds.
static inline Status comm_accept_(CommMeeting* m, int missing, CommKind first_kind, CommKind last_kind) {
    Comm* c = m->c;
    double deadline = m->deadline;
    int n = c->size + 64;
    char absent[300], own[64];
    snprintf(own, sizeof(own), "%s port %d", comm_host(c->listener), comm_port(c->listener));
    const char* where = c->rank == 0 && m->where[0] != '\0' ? m->where : own;
    m->missing = missing;
    m->num_visitors = n;
    m->visitors = (CommVisitor*)calloc_check((size_t)n, sizeof(CommVisitor));
    m->fds = (struct pollfd*)calloc_check((size_t)(n + 1 + c->size), sizeof(struct pollfd));
    for (int i = 0; i < n; i++) { m->visitors[i].fd = -1; }
    while (m->missing > 0 && wall_seconds() < deadline && comm_health(c) == STATUS_OK) {
        comm_list_missing_(m, first_kind, absent, sizeof(absent));
        comm_wait_for_(&m->wait, "%s of %d to connect to %s", absent, c->size, where);
        comm_receive_visitors_(m, first_kind, last_kind);
        double soon = wall_seconds() + 5.0; // for all to be told
        if (m->fault[0] != '\0' && deadline > soon) { deadline = soon; }
    }
    if (m->fault[0] == '\0' && m->missing > 0) {
        int processes = comm_list_missing_(m, first_kind, absent, sizeof(absent));
        snprintf(m->fault, sizeof(m->fault),
                 "%d of %d processes have not come within %g s (--connect-timeout), %s: were all started, and can all "
                 "connect to %s?",
                 processes, c->size, m->settings.connect_timeout, absent, where);
    }
    for (int i = 0; i < n; i++) { comm_leave_(&m->visitors[i], 1); }
    free(m->visitors);
    free(m->fds);
    if (m->missing > 0) { TRY(comm_health(c)); } // else who has failed came first
    return m->fault[0] == '\0' ? STATUS_OK : status_fail("%s", m->fault);
}

// ----------------------------------------------------------------------------
// Meeting

// Rank 0: waits for all, and tells each where the others listen, or what is wrong.
static inline Status comm_meet_at_root_(CommMeeting* m) {
    Comm* c = m->c;
    CommWelcome welcome;
    size_t table = (size_t)c->size * sizeof(struct sockaddr_in);
    Status met = comm_accept_(m, c->size - 1, COMM_CONTROL, COMM_CONTROL);
    struct sockaddr_in* addresses = (struct sockaddr_in*)malloc_check(table);
    memset(&welcome, 0, sizeof(welcome));
    welcome.magic = COMM_MAGIC, welcome.version = COMM_VERSION, welcome.fault_timeout = m->settings.fault_timeout;
    memcpy(welcome.text, m->fault, sizeof(welcome.text));
    for (int i = 0; i < c->size; i++) { addresses[i] = c->peers[i].address; }
    for (int i = 1; i < c->size; i++) {
        int fd = c->peers[i].fd[COMM_CONTROL];
        double soon = wall_seconds() + 5.0;
        int told = fd >= 0 && comm_write(fd, &welcome, sizeof(welcome), soon) &&
                   (met != STATUS_OK || comm_write(fd, addresses, table, soon));
        if (!told && met == STATUS_OK) { met = status_fail("rank %d has ended while the others came", i); }
    }
    free(addresses);
    return met;
}

// The others: say hello to rank 0, and wait for its welcome. 1: it is here; 0: the connection closed before; -1: what
// listens there is another program
static inline int comm_say_hello_(CommMeeting* m, int fd, CommWelcome* welcome) {
    CommHello hello = comm_hello_(m, COMM_CONTROL, comm_port(m->c->listener));
    double last = wall_seconds() + m->settings.connect_timeout + 10.0; // rank 0 gives up before
    size_t head = sizeof(welcome->magic) + sizeof(welcome->version);
    if (!comm_write(fd, &hello, sizeof(hello), last) ||
        !comm_write(fd, m->settings.settings, strlen(m->settings.settings), last) ||
        !comm_read(fd, welcome, head, last)) {
        return 0;
    }
    if (welcome->magic != COMM_MAGIC || welcome->version != COMM_VERSION) { return -1; }
    if (!comm_read(fd, (char*)welcome + head, sizeof(*welcome) - head, last)) { return 0; }
    welcome->text[sizeof(welcome->text) - 1] = '\0';
    return 1;
}

// Connects to rank 0 until its welcome is here: where its slots ran out, it closed the connection.
static inline Status comm_find_root_(CommMeeting* m, struct sockaddr_in root, CommWelcome* welcome) {
    Comm* c = m->c;
    int* fd = &c->peers[0].fd[COMM_CONTROL];
    const char *gone = NULL, *name = m->settings.file == NULL ? m->settings.address : "",
               *ip = inet_ntoa(root.sin_addr);
    char stale[2 * COMM_TEXT_BYTES];
    if (strcmp(name, ip) == 0) { name = ""; }
    snprintf(m->where, sizeof(m->where), "%.255s%s%s port %d", name, name[0] ? ", " : "", ip, ntohs(root.sin_port));
    if (m->settings.file != NULL) {
        snprintf(stale, sizeof(stale),
                 "nobody listens on %s port %d, which the rendezvous file %s names: it is stale; remove it",
                 inet_ntoa(root.sin_addr), ntohs(root.sin_port), m->settings.file);
        gone = stale;
    }
    for (;;) {
        comm_wait_for_(&m->wait, "rank 0, which does not answer at %s", m->where);
        TRY(comm_connect(fd, root, m->deadline, gone));
        struct sockaddr_in own = comm_own_end(*fd);
        own.sin_port = 0;
        if (comm_is_loopback(own) && m->settings.file == NULL && !comm_is_digits(m->settings.address)) {
            own.sin_addr.s_addr = htonl(INADDR_ANY); // what is localhost here has another name elsewhere
        }
        if (c->listener < 0) { TRY(comm_listen(&c->listener, own, c->size)); }
        comm_wait_for_(&m->wait, "rank 0 at %s, which was reached and waits for others", m->where);
        int said = comm_say_hello_(m, *fd, welcome);
        if (said == 1) { return STATUS_OK; }
        if (said < 0) {
            return status_fail("what listens on %s port %d is not rank 0 of this program", inet_ntoa(root.sin_addr),
                               ntohs(root.sin_port));
        }
        close(*fd);
        *fd = -1;
        gone = "rank 0 has ended while the others came";
        if (wall_seconds() > m->deadline) {
            return status_fail("what listens on %s port %d has not answered within %g s (--connect-timeout)",
                               inet_ntoa(root.sin_addr), ntohs(root.sin_port), m->settings.connect_timeout);
        }
        poll(NULL, 0, 100);
    }
}

static inline Status comm_meet_root_(CommMeeting* m, struct sockaddr_in root) {
    Comm* c = m->c;
    CommWelcome welcome;
    size_t table = (size_t)c->size * sizeof(struct sockaddr_in);
    TRY(comm_find_root_(m, root, &welcome));
    if (welcome.text[0] != '\0') { return status_fail("%s", welcome.text); }
    m->settings.fault_timeout = welcome.fault_timeout;
    struct sockaddr_in* addresses = (struct sockaddr_in*)malloc_check(table);
    int came = comm_read(c->peers[0].fd[COMM_CONTROL], addresses, table, wall_seconds() + 10.0);
    for (int i = 1; i < c->size && came; i++) {
        c->peers[i].address = addresses[i];
        if (comm_is_loopback(addresses[i])) { c->peers[i].address.sin_addr = root.sin_addr; } // beside rank 0
    }
    c->peers[0].address = root;
    free(addresses);
    return came ? STATUS_OK : status_fail("rank 0 has ended while the others came");
}

// Connects to the lower ranks, and takes the connections of the higher ones.
static inline Status comm_connect_all_(CommMeeting* m) {
    Comm* c = m->c;
    for (int i = 0; i < c->rank; i++) {
        for (int kind = COMM_DATA; kind <= (i == 0 ? COMM_BACKGROUND : COMM_DATA); kind++) {
            CommHello hello = comm_hello_(m, (CommKind)kind, 0);
            int* fd = &c->peers[i].fd[kind];
            TRY(comm_health(c));
            comm_wait_for_(&m->wait, "rank %d, which does not answer at %s port %d", i,
                           inet_ntoa(c->peers[i].address.sin_addr), ntohs(c->peers[i].address.sin_port));
            TRY(comm_connect(fd, c->peers[i].address, m->deadline, NULL));
            if (!comm_write(*fd, &hello, sizeof(hello), m->deadline)) {
                return status_fail("rank %d has ended while the others came", i);
            }
        }
    }
    int missing = (c->size - 1 - c->rank) * (c->rank == 0 ? 2 : 1);
    return comm_accept_(m, missing, COMM_DATA, COMM_BACKGROUND);
}

// Tells rank 0 that this process is connected with all; rank 0 waits until all are.
static inline Status comm_connected_(CommMeeting* m) {
    Comm* c = m->c;
    if (c->rank != 0) {
        pthread_mutex_lock(&c->mutex);
        comm_notify(c->peers[0].fd[COMM_CONTROL], COMM_READY, "");
        pthread_mutex_unlock(&c->mutex);
        return STATUS_OK;
    }
    for (int i = 1; i < c->size; i++) {
        comm_wait_for_(&m->wait, "rank %d to connect to all others", i);
        while (!__atomic_load_n(&c->peers[i].ready, __ATOMIC_ACQUIRE)) {
            int failed = __atomic_load_n(&c->failed, __ATOMIC_ACQUIRE); // by itself only after it was ready
            if (failed && !__atomic_load_n(&c->peers[i].ready, __ATOMIC_ACQUIRE)) { return comm_health(c); }
            if (wall_seconds() > m->deadline) {
                return status_fail("rank %d is not connected with all others within %g s (--connect-timeout)", i,
                                   m->settings.connect_timeout);
            }
            poll(NULL, 0, 1);
        }
    }
    return STATUS_OK;
}

// Closes all connections to the other processes.
static inline void comm_disconnect(Comm* c) {
    for (int i = 0; i < c->size; i++) {
        for (int k = 0; k < COMM_KINDS; k++) {
            if (c->peers[i].fd[k] >= 0) { close(c->peers[i].fd[k]); }
        }
    }
    if (c->listener >= 0) { close(c->listener); }
    c->listener = -1;
}

// From here on the control connections are watched.
static inline Status comm_watch_begin_(Comm* c, double fault_timeout) {
    c->grace = comm_grace(fault_timeout);
    c->silence = fault_timeout - c->grace - 0.5 > 1.0 ? fault_timeout - c->grace - 0.5 : 1.0;
    for (int i = 0; i < c->size; i++) { c->peers[i].heard = wall_seconds(); }
    if (!thread_start(&c->thread, comm_watch, c)) { return status_fail("no thread to watch the other processes"); }
    c->has_thread = 1;
    return STATUS_OK;
}

// Listens at rank 0's address; at all addresses of this machine where the others may know it by another one: its name is a
// loopback address here (MASTER_ADDR=localhost of a PyTorchJob), or no interface has the address (a service's, a router's). The
// token keeps strangers out.
static inline Status comm_listen_as_root_(CommMeeting* m) {
    const CommSettings* s = &m->settings;
    struct sockaddr_in root;
    if (s->address == NULL) {
        root = comm_own_address();
        root.sin_port = htons((uint16_t)s->port);
        return comm_listen(&m->c->listener, root, m->c->size);
    }
    TRY(comm_look_up_until(&root, s->address, s->port, m->deadline));
    int here = comm_is_here(root), is_name = !comm_is_digits(s->address);
    if (s->file == NULL && (!here || (comm_is_loopback(root) && is_name))) { root.sin_addr.s_addr = htonl(INADDR_ANY); }
    snprintf(m->where, sizeof(m->where), "%.255s port %d%s", s->address, s->port,
             here ? "" : ", an address that no interface of this machine has");
    return comm_listen(&m->c->listener, root, m->c->size);
}

// Rank 0 listens; the others learn where.
static inline Status comm_find_address_(CommMeeting* m, struct sockaddr_in* root, int* slot) {
    CommSettings* s = &m->settings;
    Comm* c = m->c;
    char token[COMM_TOKEN_BYTES];
    memcpy(token, m->token, sizeof(token)); // with a file the token of the meeting is the file's secret
    memset(root, 0, sizeof(*root));
    if (s->address != NULL) { comm_wait_for_(&m->wait, "the address of %.255s, where rank 0 is", s->address); }
    if (s->file != NULL) { comm_wait_for_(&m->wait, "rank 0 to write the rendezvous file %.512s", s->file); }
    if (c->rank == 0 && s->file != NULL) { TRY(comm_file_refuse(s->file, token)); }
    if (c->rank == 0 && c->listener < 0) { TRY(comm_listen_as_root_(m)); }
    if (s->file == NULL) { return c->rank == 0 ? STATUS_OK : comm_resolve(root, s->address, s->port, m->deadline); }
    memset(m->token, 0, sizeof(m->token));
    if (c->rank == 0) { return comm_file_write(s->file, token, c->listener, slot, m->token); }
    return comm_file_wait(s->file, token, m->deadline, root, m->token);
}

static inline Status comm_check_settings_(const CommSettings* s) {
    if (strlen(s->token) >= COMM_TOKEN_BYTES) {
        return status_fail("the token of the job has %zu bytes; there may be %d", strlen(s->token),
                           COMM_TOKEN_BYTES - 1);
    }
    if (strlen(s->settings) > COMM_SETTINGS_BYTES) {
        return status_fail("settings of %zu bytes; there may be %d", strlen(s->settings), COMM_SETTINGS_BYTES);
    }
    if (s->file == NULL && s->address == NULL && (s->rank != 0 || s->listener < 0)) {
        return status_fail("nothing says where rank 0 is: no address and no rendezvous file");
    }
    return STATUS_OK;
}

static inline Status comm_meet_all_(CommMeeting* m) {
    Comm* c = m->c;
    struct sockaddr_in root;
    int slot = -1;
    TRY(comm_allow_connections(c->size));
    TRY(comm_find_address_(m, &root, &slot));
    Status status = c->rank == 0 ? comm_meet_at_root_(m) : comm_meet_root_(m, root);
    if (c->rank == 0 && m->settings.file != NULL) { comm_file_remove(m->settings.file, slot); }
    if (status == STATUS_OK) { status = comm_watch_begin_(c, m->settings.fault_timeout); }
    if (status == STATUS_OK) {
        status = comm_connect_all_(m);
        if (status == STATUS_OK) { status = comm_connected_(m); }
        if (status != STATUS_OK) { comm_fail(c, status_message()); }
    }
    return status;
}

// Returns when all processes have met and are connected.
static inline Status comm_meet(Comm* c, const CommSettings* settings) {
    CommMeeting m;
    memset(&m, 0, sizeof(m));
    m.c = c, m.settings = *settings, m.deadline = wall_seconds() + settings->connect_timeout;
    if (m.settings.settings == NULL) { m.settings.settings = ""; }
    if (m.settings.token == NULL) { m.settings.token = ""; }
    if (c->rank == 0) { c->listener = settings->listener; }
    if (c->listener >= 0) { fcntl(c->listener, F_SETFL, fcntl(c->listener, F_GETFL) | O_NONBLOCK); }
    TRY(comm_check_settings_(&m.settings));
    strcpy(m.token, m.settings.token);
    comm_wait_begin(&m.wait, settings->reason, settings->connect_timeout);
    Status status = comm_meet_all_(&m);
    comm_wait_end(&m.wait);
    if (c->listener >= 0) { close(c->listener); }
    c->listener = -1;
    return status;
}

#endif
