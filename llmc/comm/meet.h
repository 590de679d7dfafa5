/*
The rendezvous of the processes of comm.h. Rank 0 listens; each of the others retries until it can connect, and sends a hello:
the job's token, its rank, the number of processes. When all have connected, or something is wrong, rank 0 sends each a welcome:
the error, or the addresses of all. Then each process connects to those of lower ranks.

A visitor without the token is disconnected, and a silent one when slots run out; neither delays the others.
*/
#ifndef LLMC_COMM_MEET_H
#define LLMC_COMM_MEET_H

#include <sys/random.h>

#include "socket.h"
#include "state.h"

// ----------------------------------------------------------------------------
// The rendezvous file, by which the others find rank 0 where no address is known beforehand. Rank 0 listens, then writes
// address, port and a random secret into it, the token of the rendezvous; it removes the file when all have connected. It
// refuses a file that is there already, and the others one of another program, or at whose address nobody listens.

enum { COMM_FILE_BYTES = 512, COMM_SECRET_BYTES = 33 };

static const char comm_file_head_[] = "flashgpt rendezvous 2\n";

// A random token, as COMM_SECRET_BYTES of hexadecimal digits
static inline Status comm_secret(char* secret) {
    unsigned char bytes[(COMM_SECRET_BYTES - 1) / 2];
    if (getrandom(bytes, sizeof(bytes), 0) != (ssize_t)sizeof(bytes)) {
        return status_fail("no random numbers: %s", strerror(errno));
    }
    for (size_t i = 0; i < sizeof(bytes); i++) { snprintf(secret + 2 * i, 3, "%02x", bytes[i]); }
    return STATUS_OK;
}

// Rank 0, once all have met: removes the file, which `slot` of the temporary files holds.
static inline void comm_file_remove(const char* path, int slot) {
    unlink(path);
    temporary_remove(slot);
}

// Rank 0, which listens: creates the file, for this user alone. `slot` is for comm_file_remove, `secret` for those who come.
static inline Status comm_file_write(const char* path, int listener, int* slot, char* secret) {
    char text[COMM_FILE_BYTES];
    TRY(comm_secret(secret));
    int length = snprintf(text, sizeof(text), "%saddress %s\nport %d\nsecret %s\nend\n", comm_file_head_,
                          comm_host(listener), comm_port(listener), secret);
    sigset_t mask;
    int fd = temporary_begin(&mask) ? open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600) : -1;
    *slot = fd >= 0 ? temporary_add(path) : -1;
    temporary_end(&mask);
    if (fd < 0 && errno == EEXIST) {
        return status_fail("the rendezvous file %s is there already, of another run or of one that was killed; remove "
                           "it, or name another folder (-pf)",
                           path);
    }
    int well = fd >= 0 && write(fd, text, (size_t)length) == length, error = errno;
    if (fd >= 0 && close(fd) != 0 && well) { well = 0, error = errno; }
    if (!well && fd >= 0) { comm_file_remove(path, *slot); }
    if (!well) { return status_fail("cannot write the rendezvous file %s: %s", path, strerror(error)); }
    return STATUS_OK;
}

// Reads a rendezvous file. 1: it is one; 0: there is none, or not all of it yet; -1: it is refused, with an error
static inline int comm_file_read_(const char* path, char address[64], int* port, char* secret) {
    char text[COMM_FILE_BYTES], end[4] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0 && errno == ENOENT) { return 0; }
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    int error = errno;
    if (fd >= 0) { close(fd); }
    if (n < 0) {
        status_fail("cannot read the rendezvous file %s: %s", path, strerror(error));
        return -1;
    }
    text[n] = '\0';
    size_t head = strlen(comm_file_head_), same = (size_t)n < head ? (size_t)n : head;
    if (strncmp(text, comm_file_head_, same) != 0) {
        status_fail("%s is no rendezvous file of this program; remove it, or name another folder (-pf)", path);
        return -1;
    }
    return sscanf(text + same, "address %63s port %d secret %32s %3s", address, port, secret, end) == 4 &&
           strcmp(end, "end") == 0;
}

// The others: wait for the file until the deadline, and learn from it where rank 0 listens.
static inline Status comm_file_wait(const char* path, double deadline, struct sockaddr_in* root, char* secret,
                                    CommWait* wait) {
    char address[64];
    int found, port;
    while ((found = comm_file_read_(path, address, &port, secret)) == 0) {
        if (wall_seconds() > deadline && !file_missing(path)) {
            return status_fail("the rendezvous file %s is incomplete; remove it, or name another folder (-pf)", path);
        }
        if (wall_seconds() > deadline) {
            return status_fail("rank 0 has not written the rendezvous file %s until --connect-timeout; was it started, "
                               "and does it see the same folder?",
                               path);
        }
        comm_pause(wait, NULL, 0, 50);
    }
    return found < 0 ? STATUS_ERROR : comm_resolve(root, address, port, deadline, wait);
}

// ----------------------------------------------------------------------------
// The meeting

enum { COMM_MAGIC = 0x666c6770, COMM_VERSION = 2, COMM_TOKEN_BYTES = 64 };

// What a process says first on each connection. Zeros fill the token.
typedef struct {
    uint32_t magic, version;
    char token[COMM_TOKEN_BYTES];
    int32_t kind, rank, size;
    uint32_t port; // where it listens for other processes
} CommHello;

// Rank 0's answer on the control connection; where text is empty, the addresses (size) follow.
typedef struct {
    uint32_t magic, version;
    char text[COMM_TEXT_BYTES];
} CommWelcome;

typedef struct {
    Comm* c;
    CommSettings settings;
    char token[COMM_TOKEN_BYTES];
    double deadline;
    CommWait wait;
    char where[512]; // rank 0 is, for messages
    char fault[COMM_TEXT_BYTES];
    int missing;        // connections that have not come yet
    int num_visitors;   // slots for those who have not said their hello
    int visits;         // of which they have taken so many, in turn
    struct pollfd* fds; // (num_visitors + 1 + size) visitors, the listener, connected processes
} CommMeeting;

// ----------------------------------------------------------------------------
// Receiving visitors

// Tells a visitor what is wrong and closes its connection.
static inline void comm_refuse_(int fd, const char* text) {
    CommWelcome welcome;
    memset(&welcome, 0, sizeof(welcome));
    welcome.magic = COMM_MAGIC, welcome.version = COMM_VERSION;
    snprintf(welcome.text, sizeof(welcome.text), "%s", text);
    (void)!send(fd, &welcome, sizeof(welcome), MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
}

// Takes in a visitor whose hello is there. What is wrong with it becomes the fault of the meeting, if there is none yet.
static inline void comm_admit_(CommMeeting* m, int fd, CommKind first_kind, CommKind last_kind) {
    Comm* c = m->c;
    CommHello h;
    if (recv(fd, &h, sizeof(h), MSG_DONTWAIT) != (ssize_t)sizeof(h) || h.magic != COMM_MAGIC ||
        h.kind < (int)first_kind || h.kind > (int)last_kind) {
        close(fd);
        return;
    }
    if (h.version != COMM_VERSION || memcmp(h.token, m->token, sizeof(h.token)) != 0) {
        comm_refuse_(fd, "rank 0 belongs to another job, or to another version of the program");
        return;
    }
    int *peer_fd = h.rank > 0 && h.rank < c->size && h.rank != c->rank ? &c->peers[h.rank].fd[h.kind] : NULL, one = 1;
    int is_there = peer_fd == NULL || *peer_fd >= 0;
    if (m->fault[0] == '\0' && h.size != c->size) {
        snprintf(m->fault, sizeof(m->fault),
                 "rank %d was started as one of %d processes, rank %d as one of %d; start all alike", h.rank, h.size,
                 c->rank, c->size);
    } else if (m->fault[0] == '\0' && is_there) {
        snprintf(m->fault, sizeof(m->fault), "two processes were started as rank %d", h.rank);
    }
    m->missing--;
    if (is_there) { // it has no slot where the others are told
        comm_refuse_(fd, m->fault);
        return;
    }
    *peer_fd = fd;
    setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof(one));
    comm_tune(fd);
    if (h.kind == COMM_CONTROL) {
        socklen_t length = sizeof(c->peers[h.rank].address);
        getpeername(fd, (struct sockaddr*)&c->peers[h.rank].address, &length);
        c->peers[h.rank].address.sin_port = htons((uint16_t)h.port);
    }
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

// Accepts one connection, which is ready when its hello is there. It takes the slot of the one that came first of those that
// have all of them.
static inline void comm_answer_(CommMeeting* m) {
    struct pollfd* slot = &m->fds[m->visits % m->num_visitors];
    int hello = sizeof(CommHello), fd = accept4(m->c->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0 && errno != EMFILE && errno != ENFILE) { return; }
    if (slot->fd >= 0) { close(slot->fd); }
    slot->fd = fd; // the next time it can be had
    m->visits++;
    if (fd >= 0) { setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &hello, sizeof(hello)); }
}

// One round: waits for up to 0.1 s for what comes, and handles it.
static inline void comm_receive_visitors_(CommMeeting* m, CommKind first_kind, CommKind last_kind) {
    int n = m->num_visitors, size = m->c->size;
    struct pollfd* here = m->fds + n + 1; // for the end of those who are here
    m->fds[n].fd = m->c->listener;
    for (int i = 0; i < size && first_kind == COMM_CONTROL; i++) { here[i].fd = m->c->peers[i].fd[COMM_CONTROL]; }
    for (int i = 0; i < n + 1 + size; i++) { m->fds[i].events = POLLIN, m->fds[i].revents = 0; }
    comm_pause(&m->wait, m->fds, (nfds_t)(n + 1 + size), 100);
    for (int i = 0; i < n; i++) {
        int fd = m->fds[i].fd;
        if (m->fds[i].revents == 0) { continue; }
        m->fds[i].fd = -1;
        comm_admit_(m, fd, first_kind, last_kind);
    }
    for (int i = 0; i < size; i++) {
        if (here[i].revents == 0) { continue; }
        if (m->fault[0] == '\0') {
            snprintf(m->fault, sizeof(m->fault), "rank %d ended while the others were connecting", i);
        }
        close(here[i].fd);
        m->c->peers[i].fd[COMM_CONTROL] = -1;
    }
    if (m->fds[n].revents != 0) { comm_answer_(m); }
}

// Waits for `missing` connections of these kinds.
static inline Status comm_accept_(CommMeeting* m, int missing, CommKind first_kind, CommKind last_kind) {
    Comm* c = m->c;
    double deadline = m->deadline;
    char absent[300], own[64];
    snprintf(own, sizeof(own), "%s port %d", comm_host(c->listener), comm_port(c->listener));
    const char* where = c->rank == 0 && m->where[0] != '\0' ? m->where : own;
    m->missing = missing, m->num_visitors = c->size + 64;
    int count = m->num_visitors + 1 + c->size;
    m->fds = (struct pollfd*)calloc_check((size_t)count, sizeof(struct pollfd));
    for (int i = 0; i < count; i++) { m->fds[i].fd = -1; }
    while (m->missing > 0 && wall_seconds() < deadline && comm_health(c) == STATUS_OK) {
        comm_list_missing_(m, first_kind, absent, sizeof(absent));
        comm_wait_for(&m->wait, "%s of %d to connect to %s", absent, c->size, where);
        comm_receive_visitors_(m, first_kind, last_kind);
        double soon = wall_seconds() + 5.0; // for all to be told
        if (m->fault[0] != '\0' && deadline > soon) { deadline = soon; }
    }
    if (m->fault[0] == '\0' && m->missing > 0) {
        int processes = comm_list_missing_(m, first_kind, absent, sizeof(absent));
        snprintf(
            m->fault, sizeof(m->fault),
            "%d of %d processes did not connect within %g s (--connect-timeout), %s: were all started, and can all "
            "connect to %s?",
            processes, c->size, m->settings.connect_timeout, absent, where);
    }
    for (int i = 0; i < m->num_visitors; i++) {
        if (m->fds[i].fd >= 0) { close(m->fds[i].fd); }
    }
    free(m->fds);
    if (m->missing > 0) { TRY(comm_health(c)); } // else who has failed came first
    return m->fault[0] == '\0' ? STATUS_OK : status_fail("%s", m->fault);
}

// ----------------------------------------------------------------------------
// Rank 0 and the others

static inline CommHello comm_hello_(const CommMeeting* m, CommKind kind) {
    CommHello h;
    memset(&h, 0, sizeof(h));
    h.magic = COMM_MAGIC, h.version = COMM_VERSION;
    memcpy(h.token, m->token, sizeof(h.token));
    h.kind = (int32_t)kind, h.rank = m->c->rank, h.size = m->c->size, h.port = (uint32_t)comm_port(m->c->listener);
    return h;
}

// Rank 0: waits for all, and tells each where the others listen, or what is wrong.
static inline Status comm_meet_at_root_(CommMeeting* m) {
    Comm* c = m->c;
    CommWelcome welcome;
    size_t table = (size_t)c->size * sizeof(struct sockaddr_in);
    Status met = comm_accept_(m, c->size - 1, COMM_CONTROL, COMM_CONTROL);
    struct sockaddr_in* addresses = (struct sockaddr_in*)malloc_check(table);
    memset(&welcome, 0, sizeof(welcome));
    welcome.magic = COMM_MAGIC, welcome.version = COMM_VERSION;
    memcpy(welcome.text, m->fault, sizeof(welcome.text));
    for (int i = 0; i < c->size; i++) { addresses[i] = c->peers[i].address; }
    for (int i = 1; i < c->size; i++) {
        int fd = c->peers[i].fd[COMM_CONTROL];
        double soon = wall_seconds() + 5.0;
        int told = fd >= 0 && comm_write(fd, &welcome, sizeof(welcome), soon) &&
                   (met != STATUS_OK || comm_write(fd, addresses, table, soon));
        if (!told && met == STATUS_OK) { met = status_fail("rank %d ended while the others were connecting", i); }
    }
    free(addresses);
    return met;
}

// The others: say hello to rank 0, and wait for its welcome. 1: it is here; 0: the connection closed before; -1: what
// listens there is another program
static inline int comm_say_hello_(CommMeeting* m, int fd, CommWelcome* welcome) {
    CommHello hello = comm_hello_(m, COMM_CONTROL);
    double last = wall_seconds() + m->settings.connect_timeout + 10.0; // rank 0 gives up before
    size_t head = sizeof(welcome->magic) + sizeof(welcome->version);
    struct pollfd answer = {fd, POLLIN, 0};
    if (!comm_write(fd, &hello, sizeof(hello), last)) { return 0; }
    while (answer.revents == 0 && wall_seconds() < last) { comm_pause(&m->wait, &answer, 1, 100); }
    if (!comm_read(fd, welcome, head, last)) { return 0; }
    if (welcome->magic != COMM_MAGIC || welcome->version != COMM_VERSION) { return -1; }
    if (!comm_read(fd, (char*)welcome + head, sizeof(*welcome) - head, last)) { return 0; }
    welcome->text[sizeof(welcome->text) - 1] = '\0';
    return 1;
}

// Puts what named rank 0's address in front of an error on the way there.
static inline Status comm_name_origin_(const CommMeeting* m, Status status) {
    char text[STATUS_BYTES];
    if (status == STATUS_OK || m->settings.origin == NULL) { return status; }
    snprintf(text, sizeof(text), "%s", status_message());
    status_clear();
    return status_fail("%s: %s", m->settings.origin, text);
}

// Connects to rank 0 until its welcome is here: where its slots ran out, it closed the connection.
static inline Status comm_find_root_(CommMeeting* m, struct sockaddr_in root, CommWelcome* welcome) {
    Comm* c = m->c;
    int* fd = &c->peers[0].fd[COMM_CONTROL];
    const char *gone = NULL, *name = m->settings.file == NULL ? m->settings.address : "";
    char stale[2 * COMM_TEXT_BYTES], at[64];
    snprintf(at, sizeof(at), "%s port %d", inet_ntoa(root.sin_addr), ntohs(root.sin_port));
    if (strcmp(name, inet_ntoa(root.sin_addr)) == 0) { name = ""; }
    snprintf(m->where, sizeof(m->where), "%.255s%s%s", name, name[0] ? ", " : "", at);
    if (m->settings.file != NULL) {
        snprintf(stale, sizeof(stale),
                 "nobody listens on %s, which the rendezvous file %s names: it is stale; remove it", at,
                 m->settings.file);
        gone = stale;
    }
    for (;;) {
        comm_wait_for(&m->wait, "rank 0, which does not answer at %s", m->where);
        TRY(comm_connect(fd, root, m->deadline, gone, &m->wait));
        struct sockaddr_in own = comm_own_end(*fd);
        own.sin_port = 0;
        if (comm_is_loopback(own) && m->settings.file == NULL && !comm_is_digits(m->settings.address)) {
            own.sin_addr.s_addr = htonl(INADDR_ANY); // what is localhost here has another name elsewhere
        }
        if (c->listener < 0) { TRY(comm_listen(&c->listener, own, c->size)); }
        comm_wait_for(&m->wait, "rank 0 at %s, which was reached and waits for others", m->where);
        int said = comm_say_hello_(m, *fd, welcome);
        if (said == 1) { return STATUS_OK; }
        if (said < 0) { return status_fail("what listens on %s is not rank 0 of this program", at); }
        close(*fd);
        *fd = -1;
        gone = "rank 0 ended while the others were connecting";
        if (wall_seconds() > m->deadline) {
            return status_fail("what listens on %s has not answered within %g s (--connect-timeout)", at,
                               m->settings.connect_timeout);
        }
        poll(NULL, 0, 100);
    }
}

static inline Status comm_meet_root_(CommMeeting* m, struct sockaddr_in root) {
    Comm* c = m->c;
    CommWelcome welcome;
    size_t table = (size_t)c->size * sizeof(struct sockaddr_in);
    TRY(comm_name_origin_(m, comm_find_root_(m, root, &welcome)));
    if (welcome.text[0] != '\0') { return status_fail("%s", welcome.text); }
    struct sockaddr_in* addresses = (struct sockaddr_in*)malloc_check(table);
    int came = comm_read(c->peers[0].fd[COMM_CONTROL], addresses, table, wall_seconds() + 10.0);
    for (int i = 1; i < c->size && came; i++) {
        c->peers[i].address = addresses[i];
        if (comm_is_loopback(addresses[i])) { c->peers[i].address.sin_addr = root.sin_addr; } // beside rank 0
    }
    c->peers[0].address = root;
    free(addresses);
    return came ? STATUS_OK : status_fail("rank 0 ended while the others were connecting");
}

// Connects to the lower ranks, and takes the connections of the higher ones.
static inline Status comm_connect_all_(CommMeeting* m) {
    Comm* c = m->c;
    for (int i = 0; i < c->rank; i++) {
        for (int kind = COMM_DATA; kind <= (i == 0 ? COMM_BACKGROUND : COMM_DATA); kind++) {
            CommHello hello = comm_hello_(m, (CommKind)kind);
            int* fd = &c->peers[i].fd[kind];
            TRY(comm_health(c));
            comm_wait_for(&m->wait, "rank %d, which does not answer at %s port %d", i,
                          inet_ntoa(c->peers[i].address.sin_addr), ntohs(c->peers[i].address.sin_port));
            TRY(comm_connect(fd, c->peers[i].address, m->deadline, NULL, &m->wait));
            if (!comm_write(*fd, &hello, sizeof(hello), m->deadline)) {
                return status_fail("rank %d ended while the others were connecting", i);
            }
        }
    }
    int missing = (c->size - 1 - c->rank) * (c->rank == 0 ? 2 : 1);
    return comm_accept_(m, missing, COMM_DATA, COMM_BACKGROUND);
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
    TRY(comm_look_up_until(&root, s->address, s->port, m->deadline, &m->wait));
    int is_local_name = comm_is_loopback(root) && !comm_is_digits(s->address);
    if (s->file == NULL && is_local_name) { root.sin_addr.s_addr = htonl(INADDR_ANY); }
    TRY(comm_listen(&m->c->listener, root, m->c->size));
    int here = comm_own_end(m->c->listener).sin_addr.s_addr == root.sin_addr.s_addr;
    const char* origin = s->origin != NULL ? s->origin : "";
    snprintf(m->where, sizeof(m->where), "%.100s port %d%s%.200s%s%s", s->address, s->port, origin[0] ? " (" : "",
             origin, origin[0] ? ")" : "", here ? "" : ", an address that no interface of this machine has");
    return STATUS_OK;
}

// Rank 0 listens; the others learn where. With a file the token of the meeting is the file's secret.
static inline Status comm_find_address_(CommMeeting* m, struct sockaddr_in* root, int* slot) {
    CommSettings* s = &m->settings;
    Comm* c = m->c;
    memset(root, 0, sizeof(*root));
    if (s->address != NULL) { comm_wait_for(&m->wait, "the address of %.255s, where rank 0 is", s->address); }
    if (s->file != NULL) { comm_wait_for(&m->wait, "rank 0 to write the rendezvous file %.512s", s->file); }
    if (c->rank == 0 && c->listener < 0) { TRY(comm_listen_as_root_(m)); }
    if (s->file == NULL && c->rank == 0) { return STATUS_OK; }
    if (s->file == NULL) { return comm_resolve(root, s->address, s->port, m->deadline, &m->wait); }
    memset(m->token, 0, sizeof(m->token));
    if (c->rank == 0) { return comm_file_write(s->file, c->listener, slot, m->token); }
    return comm_file_wait(s->file, m->deadline, root, m->token, &m->wait);
}

static inline Status comm_meet_all_(CommMeeting* m) {
    Comm* c = m->c;
    struct sockaddr_in root;
    int slot = -1;
    TRY(comm_allow_connections(c->size));
    TRY(comm_name_origin_(m, comm_find_address_(m, &root, &slot)));
    Status status = c->rank == 0 ? comm_meet_at_root_(m) : comm_meet_root_(m, root);
    if (c->rank == 0 && m->settings.file != NULL) { comm_file_remove(m->settings.file, slot); }
    TRY(status);
    TRY(comm_watch_begin_(c, m->settings.fault_timeout));
    return comm_connect_all_(m);
}

// Returns when this process is connected with all.
static inline Status comm_meet(Comm* c, const CommSettings* settings) {
    CommMeeting m;
    memset(&m, 0, sizeof(m));
    m.c = c, m.settings = *settings, m.deadline = wall_seconds() + settings->connect_timeout;
    m.wait = comm_wait_begin(settings->reason, settings->connect_timeout);
    snprintf(m.token, sizeof(m.token), "%s", settings->token);
    if (c->rank == 0) { c->listener = settings->listener; }
    if (c->listener >= 0) { fcntl(c->listener, F_SETFL, fcntl(c->listener, F_GETFL) | O_NONBLOCK); }
    Status status = comm_meet_all_(&m);
    if (status != STATUS_OK && c->has_thread) { comm_fail(c, status_message()); }
    if (c->listener >= 0) { close(c->listener); }
    c->listener = -1;
    return status;
}

#endif
