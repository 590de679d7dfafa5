/*
TCP sockets for comm.h: addresses, listening, connecting, and reading and writing with a deadline. Whoever waits for another
process says for whom, after 1.5 s and then every 10 s:

    note: rank 0: waiting for ranks 1 to 7 of 8 to connect to ... (--connect-timeout 300): <reason>
*/
#ifndef LLMC_COMM_SOCKET_H
#define LLMC_COMM_SOCKET_H

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include "llmc/base/utils.h"

// ----------------------------------------------------------------------------
// Waiting

typedef struct {
    const char* reason; // why there should be other processes; NULL: nothing is said
    double timeout;     // seconds of --connect-timeout
    double next;        // when the next note is due
    char text[1024];    // what is waited for
} CommWait;

static double comm_wait_every = 10.0; // seconds from note to note

static inline CommWait comm_wait_begin(const char* reason, double timeout) {
    CommWait w = {reason, timeout, wall_seconds() + 1.5, "the other processes"};
    return w;
}

// What is waited for from now on
PRINTF_LIKE(2, 3) static inline void comm_wait_for(CommWait* w, const char* format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(w->text, sizeof(w->text), format, args);
    va_end(args);
}

// Waits some milliseconds, or until one of `fds` (count) is ready; then says what for, where that is due.
static inline void comm_pause(CommWait* w, struct pollfd* fds, nfds_t count, int ms) {
    poll(fds, count, ms);
    if (w->reason == NULL || wall_seconds() < w->next) { return; }
    print_note("waiting for %s (--connect-timeout %g): %s", w->text, w->timeout, w->reason);
    w->next = wall_seconds() + comm_wait_every;
}

// ----------------------------------------------------------------------------
// Addresses

// This end of a connection, or what a socket listens on.
static inline struct sockaddr_in comm_own_end(int fd) {
    struct sockaddr_in address;
    socklen_t length = sizeof(address);
    memset(&address, 0, sizeof(address));
    getsockname(fd, (struct sockaddr*)&address, &length);
    return address;
}

// The port of a socket's own end
static inline int comm_port(int fd) { return ntohs(comm_own_end(fd).sin_port); }

// As text, which is valid until the next call.
static inline const char* comm_host(int fd) { return inet_ntoa(comm_own_end(fd).sin_addr); }

// Small blocks go at once, and programs that this one starts do not get the connection.
static inline void comm_tune(int fd) {
    int yes = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

static inline int comm_socket_(void) { return socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0); }

// 0, or what getaddrinfo returns
static inline int comm_look_up_(struct sockaddr_in* address, const char* name) {
    struct addrinfo hints, *found = NULL;
    memset(&hints, 0, sizeof(hints));
    hints.ai_family = AF_INET, hints.ai_socktype = SOCK_STREAM;
    int error = getaddrinfo(name, NULL, &hints, &found);
    if (error != 0) { return error; }
    memcpy(address, found->ai_addr, sizeof(*address));
    freeaddrinfo(found);
    return 0;
}

// 1 for 127.0.0.0/8
static inline int comm_is_loopback(struct sockaddr_in a) { return ntohl(a.sin_addr.s_addr) >> 24 == 127; }

// The address that other machines know this one by: that of its name, if an interface has it, or else of its first network;
// loopback where it has none.
static inline struct sockaddr_in comm_own_address(void) {
    struct sockaddr_in address, named, own;
    struct ifaddrs* interfaces = NULL;
    char name[256] = "";
    memset(&address, 0, sizeof(address));
    memset(&named, 0, sizeof(named));
    address.sin_family = AF_INET, address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int has_name = gethostname(name, sizeof(name) - 1) == 0 && comm_look_up_(&named, name) == 0;
    if (getifaddrs(&interfaces) != 0) { return address; }
    for (const struct ifaddrs* i = interfaces; i != NULL; i = i->ifa_next) {
        if (i->ifa_addr == NULL || i->ifa_addr->sa_family != AF_INET || !(i->ifa_flags & IFF_UP)) { continue; }
        memcpy(&own, i->ifa_addr, sizeof(own));
        int is_named = has_name && !comm_is_loopback(own) && own.sin_addr.s_addr == named.sin_addr.s_addr;
        if (is_named || comm_is_loopback(address)) { address = own; }
        if (is_named) { break; }
    }
    freeifaddrs(interfaces);
    return address;
}

// 1 for 10.0.0.1, 0 for a name
static inline int comm_is_digits(const char* name) {
    struct in_addr digits;
    return inet_aton(name, &digits) != 0;
}

// Fails for a loopback address while that interface is down: nobody can listen on it, nor connect.
static inline Status comm_check_loopback_(struct sockaddr_in address) {
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0); // its connect sends nothing
    int is_down = comm_is_loopback(address) && fd >= 0 &&
                  connect(fd, (struct sockaddr*)&address, sizeof(address)) != 0 && errno == ENETUNREACH;
    if (fd >= 0) { close(fd); }
    return is_down ? status_fail("the loopback interface is down; bring it up: ip link set lo up") : STATUS_OK;
}

// The IPv4 address that this machine has for a name or digits. A name that is not known yet (of a pod that is about to start)
// is looked up again until the deadline.
static inline Status comm_look_up_until(struct sockaddr_in* address, const char* name, int port, double deadline,
                                        CommWait* wait) {
    int error;
    while ((error = comm_look_up_(address, name)) != 0) {
        if (strchr(name, ':') != NULL) {
            return status_fail("no IPv4 address of %s, where rank 0 is: %s; -ps takes a name or an IPv4 address, "
                               "--rendezvous-port the port",
                               name, gai_strerror(error));
        }
        if (wall_seconds() > deadline) {
            return status_fail("no IPv4 address of %s, where rank 0 is, until --connect-timeout: %s; name its machine "
                               "with -ps",
                               name, gai_strerror(error));
        }
        comm_pause(wait, NULL, 0, 500);
    }
    address->sin_port = htons((uint16_t)port);
    return comm_check_loopback_(*address);
}

// The IPv4 address of rank 0, from a name or digits. Many systems give their own name a loopback address (127.0.1.1 of
// Debian), by which no other machine finds them: there it is the one that the others know.
static inline Status comm_resolve(struct sockaddr_in* address, const char* name, int port, double deadline,
                                  CommWait* wait) {
    TRY(comm_look_up_until(address, name, port, deadline, wait));
    if (comm_is_loopback(*address) && strcmp(name, "localhost") != 0 && !comm_is_digits(name)) {
        *address = comm_own_address();
        address->sin_port = htons((uint16_t)port);
    }
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Connections

// Listens on that address only, or on all of this machine's where it does not have that one; port 0 takes any.
static inline Status comm_listen(int* listener, struct sockaddr_in address, int size) {
    int yes = 1;
    *listener = comm_socket_();
    if (*listener < 0) { return status_fail("no socket: %s", strerror(errno)); }
    setsockopt(*listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
    int bound = bind(*listener, (struct sockaddr*)&address, sizeof(address)) == 0;
    if (!bound && errno == EADDRNOTAVAIL) {
        address.sin_addr.s_addr = htonl(INADDR_ANY);
        bound = bind(*listener, (struct sockaddr*)&address, sizeof(address)) == 0;
    }
    if (!bound || listen(*listener, size + 64) != 0) {
        const char* way_out = errno == EADDRINUSE ? "; another run may be there: name another --rendezvous-port" : "";
        return status_fail("cannot listen on %s port %d: %s%s", inet_ntoa(address.sin_addr), ntohs(address.sin_port),
                           strerror(errno), way_out);
    }
    return STATUS_OK;
}

// 0: connected; else errno. An attempt takes up to two seconds.
static inline int comm_try_connect_(int fd, struct sockaddr_in to, double deadline) {
    int error = 0;
    socklen_t length = sizeof(error);
    if (connect(fd, (struct sockaddr*)&to, sizeof(to)) == 0) { return 0; }
    if (errno != EINPROGRESS) { return errno; }
    struct pollfd p = {fd, POLLOUT, 0};
    double left = deadline - wall_seconds();
    int ready = poll(&p, 1, left <= 0.0 ? 0 : left < 2.0 ? (int)(left * 1e3) : 2000);
    if (ready <= 0) { return ETIMEDOUT; }
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) == 0 ? error : errno;
}

// Connects, again and again until the deadline: the other side may not have started yet. `gone`: what it means where nobody
// listens there, or NULL: not yet.
static inline Status comm_connect(int* fd, struct sockaddr_in to, double deadline, const char* gone, CommWait* wait) {
    for (;;) {
        *fd = comm_socket_();
        if (*fd < 0) { return status_fail("no socket: %s", strerror(errno)); }
        int error = comm_try_connect_(*fd, to, deadline);
        if (error == 0) {
            comm_tune(*fd);
            return STATUS_OK;
        }
        close(*fd);
        *fd = -1;
        if (error == ECONNREFUSED && gone != NULL) { return status_fail("%s", gone); }
        if (wall_seconds() > deadline) {
            return status_fail("no connection to %s port %d until --connect-timeout: %s; was rank 0 started there?",
                               inet_ntoa(to.sin_addr), ntohs(to.sin_port), strerror(error));
        }
        comm_pause(wait, NULL, 0, 100);
    }
}

// Room for the connections of so many processes, three with each, and for who visits and what else is open: poll() takes no
// more entries than files may be open.
static inline Status comm_allow_connections(int processes) {
    struct rlimit limit;
    rlim_t least = 3 * (rlim_t)processes + 80, wanted = least + 256;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) { return STATUS_OK; }
    limit.rlim_cur = wanted < limit.rlim_max ? wanted : limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur >= least) { return STATUS_OK; }
    return status_fail("%d processes need %llu open files, %llu are allowed; raise the limit (ulimit -n)", processes,
                       (unsigned long long)least, (unsigned long long)limit.rlim_cur);
}

// Moves all bytes; returns 0 if the connection closes or the deadline passes before.
static inline int comm_transfer_(int fd, int writing, char* data, size_t bytes, double deadline) {
    while (bytes > 0) {
        ssize_t n = writing ? send(fd, data, bytes, MSG_NOSIGNAL) : recv(fd, data, bytes, 0);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR)) { return 0; }
        if (n > 0) {
            data += n, bytes -= (size_t)n;
            continue;
        }
        if (wall_seconds() > deadline) { return 0; }
        struct pollfd p = {fd, (short)(writing ? POLLOUT : POLLIN), 0};
        poll(&p, 1, 100);
    }
    return 1;
}

// Write, or read, all bytes until the deadline, in seconds of wall_seconds(); return 0 if that fails.
static inline int comm_write(int fd, const void* data, size_t bytes, double deadline) {
    return comm_transfer_(fd, 1, (char*)(uintptr_t)data, bytes, deadline);
}

static inline int comm_read(int fd, void* data, size_t bytes, double deadline) {
    return comm_transfer_(fd, 0, (char*)data, bytes, deadline);
}

#endif
