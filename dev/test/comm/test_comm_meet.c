/*
How the processes of llmc/comm/comm.h meet: by an address, by a file, or at a socket that listens already; that they were
started alike; and what does not hold them up or lead them astray: strangers, other programs, and files that others left.
*/
#include <arpa/inet.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

// The network as a process of a test sees it
static int connect_here_(int fd, const struct sockaddr* to, socklen_t length);
static int look_up(const char* name, const char* service, const struct addrinfo* hints, struct addrinfo** found);
#define connect connect_here_
#define getaddrinfo look_up
#include "dev/test/fixtures/comm_processes.h"
#undef connect
#undef getaddrinfo

static int elsewhere;     // 1: it is on another machine, where 127.0.0.1 is not rank 0's; 127.0.0.2 is
static int loopback_down; // 1: the interface lo is down
static int only_rank_0;   // 1: no other process can be reached
static int is_behind;     // 1: the machine's own name is the address of a router, which no interface has

static int connect_here_(int fd, const struct sockaddr* to, socklen_t length) {
    struct sockaddr_in address;
    memcpy(&address, to, sizeof(address));
    if (loopback_down) {
        errno = ENETUNREACH;
        return -1;
    }
    if ((is_behind && address.sin_addr.s_addr == htonl(INADDR_ANY)) || // which is no address to others
        (elsewhere && address.sin_addr.s_addr == htonl(INADDR_LOOPBACK)) ||
        (only_rank_0 && ntohs(address.sin_port) != port)) {
        errno = ECONNREFUSED;
        return -1;
    }
    return connect(fd, to, length);
}

// Asks no name server: "late" is known after 0.7 s, "own" is 127.0.1.1, as Debian has a machine's own name.
static int look_up(const char* name, const char* service, const struct addrinfo* hints, struct addrinfo** found) {
    int is_late = strcmp(name, "late") == 0;
    char host[256] = "";
    if (is_behind && gethostname(host, sizeof(host) - 1) == 0 && strcmp(name, host) == 0) { name = "203.0.113.1"; }
    if (strcmp(name, "own") == 0) { name = "127.0.1.1"; }
    if (strcmp(name, "localhost") == 0 || (is_late && wall_seconds() > started + 0.7)) { name = "127.0.0.1"; }
    int is_digits = name[strspn(name, "0123456789.:")] == '\0';
    return is_digits ? getaddrinfo(name, service, hints, found) : EAI_NONAME;
}

static void barrier(Comm* c) { check(comm_barrier(c)); }

// ----------------------------------------------------------------------------
// Started alike

static void other_flag(CommSettings* s) { s->settings = s->rank == 2 ? "-b 4\n-d 2048\n" : s->settings; }
static void one_flag_less(CommSettings* s) { s->settings = s->rank == 1 ? "-b 4\n" : s->settings; }
static void other_size(CommSettings* s) { s->size += s->rank == 1; }
static void same_rank(CommSettings* s) { s->rank = s->rank == 2 ? 1 : s->rank; }
static void other_job(CommSettings* s) {
    s->connect_timeout = 2.0;
    s->token = s->rank == 1 ? "another" : s->token;
}
// 400 KB of settings, which differ in the last line.
static void many_flags(CommSettings* s) {
    char* text = (char*)malloc_check(400100);
    for (size_t i = 0; i < 40000; i++) { memcpy(text + 10 * i, "-flag 123\n", 10); }
    snprintf(text + 400000, 100, "-last %d\n", s->rank == 1 ? 7 : 8);
    s->settings = text;
}

static void started_alike_or_not_at_all(void) {
    run(3, barrier, other_flag);
    for (int i = 0; i < 3; i++) { CHECK(ended_with(i, "rank 2 was started with -d 2048, rank 0 with -d 1024; ")); }
    run(2, barrier, one_flag_less);
    for (int i = 0; i < 2; i++) { CHECK(ended_with(i, "rank 1 was started with nothing more, rank 0 with -d 1024; ")); }
    run(2, barrier, many_flags);
    for (int i = 0; i < 2; i++) { CHECK(ended_with(i, "rank 1 was started with -last 7, rank 0 with -last 8; ")); }
    run(2, barrier, other_size);
    for (int i = 0; i < 2; i++) {
        CHECK(ended_with(i, "rank 1 was started as one of 3 processes, rank 0 as one of 2; start all alike"));
    }
    run(3, barrier, same_rank);
    CHECK(ended_with(0, "two processes were started as rank 1") &&
          ended_with(1, "two processes were started as rank 1"));
    CHECK(processes[2].exit_code == 1 && strstr(processes[2].text, "two processes were started as rank 1"));
    run(2, barrier, other_job);
    CHECK(ended_with(0, "1 of 2 processes did not connect within 2 s"));
    CHECK(ended_with(1, "rank 0 belongs to another job") && processes[1].ended < processes[0].ended);
    run(1, barrier, NULL);
    CHECK(all_ended_well(1));
}

// ----------------------------------------------------------------------------
// Where rank 0 is

static void by_address(CommSettings* s) {
    if (s->rank == 0) { poll(NULL, 0, 300); } // the others are there before
}
static void by_name(CommSettings* s) {
    by_address(s);
    s->address = "localhost";
}
static void by_wrong_name(CommSettings* s) { s->address = "no-such-host", s->connect_timeout = 1.0; }
static void by_late_name(CommSettings* s) { s->address = "late"; }
static void without_rank_0(CommSettings* s) {
    s->connect_timeout = 0.5;
    if (s->rank == 0) { _exit(0); }
}
static void without_rank_1(CommSettings* s) {
    s->connect_timeout = 1.0;
    if (s->rank == 1) { _exit(0); }
}
static void rank_0_ends(CommSettings* s) {
    if (s->rank == 0) { // it has accepted the others, and is killed
        poll(NULL, 0, 1000);
        raise(SIGKILL);
    }
}
static void rank_1_ends(CommSettings* s) {
    if (s->rank == 1) { alarm(1); }
    if (s->rank == 2) { poll(NULL, 0, 2000); }
}

static void no_rank_0_is_said(void) {
    unlistened = 1;
    run(2, barrier, by_address);
    CHECK(all_ended_well(2));
    run(3, barrier, by_name);
    CHECK(all_ended_well(3));
    run(2, barrier, by_wrong_name);
    for (int i = 0; i < 2; i++) {
        CHECK(ended_with(i, "no IPv4 address of no-such-host, where rank 0 is, until --connect-timeout: "));
        CHECK(processes[i].ended > 0.9 && processes[i].ended < 15.0);
    }
    run(2, barrier, by_late_name);
    CHECK(all_ended_well(2) && processes[1].ended > 0.6);
    run(2, barrier, without_rank_0); // nobody listens there
    unlistened = 0;
    CHECK(ended_with(1, "no connection to 127.0.0.1 port ") && strstr(processes[1].text, "--connect-timeout"));
    CHECK(processes[1].ended < 15.0);
    run(3, barrier, rank_0_ends);
    for (int i = 1; i < 3; i++) {
        CHECK(ended_with(i, "rank 0 ended while the others were connecting") && processes[i].ended < 15.0);
    }
    run(3, barrier, rank_1_ends);
    CHECK(ended_with(0, "rank 1 ended while the others were connecting") && processes[1].exit_code == -SIGALRM);
    CHECK(ended_with(2, "rank 1 ended while the others were connecting"));
}

// Rank 0 is known to others by an address that it does not have itself: rank 1 is beside it, rank 2 elsewhere.
static void as_localhost(CommSettings* s) {
    elsewhere = s->rank == 2;
    s->address = elsewhere ? "127.0.0.2" : "localhost";
}
static void as_own_name(CommSettings* s) { s->address = s->rank == 0 ? "own" : "127.0.0.2"; }
static void as_foreign_address(CommSettings* s) { s->address = s->rank == 0 ? "203.0.113.1" : "127.0.0.1"; }
static void as_foreign_address_alone(CommSettings* s) {
    as_foreign_address(s);
    without_rank_1(s);
}
static void as_localhost_of_two_jobs(CommSettings* s) {
    as_localhost(s);
    other_job(s);
}
static void as_loopback(CommSettings* s) {
    s->connect_timeout = 1.0;
    s->address = s->rank == 0 ? "127.0.0.1" : "127.0.0.2";
}

static void rank_0_is_found_by_other_addresses(void) {
    unlistened = 1;
    run(3, barrier, as_localhost);
    CHECK(all_ended_well(3));
    run(2, barrier, as_own_name);
    CHECK(all_ended_well(2));
    run(3, barrier, as_foreign_address);
    CHECK(all_ended_well(3));
    run(2, barrier, as_foreign_address_alone);
    CHECK(ended_with(0, "1 of 2 processes did not connect within 1 s (--connect-timeout), rank 1: ") &&
          strstr(processes[0].text, "203.0.113.1 port ") &&
          strstr(processes[0].text, ", an address that no interface of this machine has?"));
    run(2, barrier, as_localhost_of_two_jobs); // strangers are not let in there, either
    CHECK(ended_with(0, "1 of 2 processes did not connect") && ended_with(1, "rank 0 belongs to another job"));
    run(2, barrier, as_loopback); // which nobody else can have meant
    CHECK(ended_with(0, "1 of 2 processes did not connect") && ended_with(1, "no connection to 127.0.0.2 port "));
    unlistened = 0;
}

static void without_loopback(CommSettings* s) { loopback_down = s->rank == 1, s->connect_timeout = 2.0; }
static void a_loopback_that_is_down_is_said_at_once(void) {
    run(2, barrier, without_loopback);
    CHECK(ended_with(1, "the loopback interface is down; bring it up: ip link set lo up"));
    CHECK(processes[1].ended < processes[0].ended);
}

// ----------------------------------------------------------------------------
// What is waited for is said

static void patient(CommSettings* s) { s->reason = "the reason", s->connect_timeout = 2.6; }
static void only_rank_3(CommSettings* s) {
    patient(s);
    if (s->rank != 0 && s->rank != 3) { _exit(0); }
}
static void no_rank_0(CommSettings* s) {
    patient(s);
    if (s->rank == 0) { _exit(0); }
}
static void no_name(CommSettings* s) {
    patient(s);
    s->address = "no-such-host", s->listener = -1;
}
static void quick(CommSettings* s) { s->reason = "the reason"; }

// A process's notes, some of them, name what it waits for and why; then its line says what came of it.
static int noted(int rank, const char* what) {
    const Process* p = &processes[rank];
    char words[600], why[100];
    int notes = 0;
    const char* text = p->text;
    snprintf(words, sizeof(words), "note: rank %d: waiting for %s", rank, what);
    snprintf(why, sizeof(why), " (--connect-timeout 2.6): the reason\n");
    for (; strncmp(text, words, strlen(words)) == 0; notes++) {
        const char* reason = strstr(text, why);
        if (reason == NULL || reason != strchr(text, '\n') + 1 - strlen(why)) { break; }
        text = reason + strlen(why);
    }
    if (notes >= 2 && p->exit_code == 1 && strncmp(text, "error: ", 7) == 0) { return 1; }
    printf("    rank %d: exit code %d, %d notes of %s, and: %s\n", rank, p->exit_code, notes, what, p->text);
    return 0;
}

// When a process has first written something, in seconds after the run began
static double first_word(int rank) {
    struct pollfd p = {processes[rank].out, POLLIN, 0};
    poll(&p, 1, 60000);
    return wall_seconds() - started;
}

static void a_wait_is_said(void) {
    char words[600];
    CHECK(comm_wait_every == 10.0);
    comm_wait_every = 0.2;
    begin(5, barrier, only_rank_3);
    double first = first_word(0); // 1.5, and a busy machine may be late
    finish(5);
    CHECK_NEAR(first, 3.0, 2.0);
    snprintf(words, sizeof(words), "ranks 1 to 2, 4 of 5 to connect to 127.0.0.1 port %d", port);
    CHECK(noted(0, words));
    snprintf(words, sizeof(words), "rank 0 at 127.0.0.1 port %d, which was reached and waits for", port);
    CHECK(noted(3, words));
    unlistened = 1;
    run(2, barrier, no_rank_0);
    snprintf(words, sizeof(words), "rank 0, which does not answer at 127.0.0.1 port %d", port);
    CHECK(noted(1, words));
    run(2, barrier, no_name);
    for (int i = 0; i < 2; i++) { CHECK(noted(i, "the address of no-such-host, where rank 0 is")); }
    unlistened = 0;
    comm_wait_every = 10.0;
    run(2, barrier, quick);
    CHECK(all_ended_well(2)); // without a word
}

// Another run listens on the port.
static void a_port_in_use_is_said(void) {
    CommSettings s = settings_of(0, 2);
    int taken = -1;
    struct sockaddr_in address;
    check(comm_resolve(&address, "127.0.0.1", 0, 0.0, NULL));
    check(comm_listen(&taken, address, 1));
    s.address = "127.0.0.1", s.file = NULL, s.port = comm_port(taken), s.listener = -1;
    CHECK_FATAL("Address already in use|name another --rendezvous-port", {
        Comm* c;
        check(comm_open(&c, s));
    });
    close(taken);
}

static void a_port_behind_the_address_is_said(void) {
    struct sockaddr_in address;
    CHECK_FATAL("no IPv4 address of 127.0.0.1:5000|--rendezvous-port",
                check(comm_resolve(&address, "127.0.0.1:5000", 1, 0.0, NULL)));
    CHECK_FATAL("no IPv4 address of ::1|takes a name or an IPv4 address",
                check(comm_resolve(&address, "::1", 1, 0.0, NULL)));
}

// Rank 0 would wait for connections that it cannot take.
static void too_few_open_files_are_said(void) {
    CommSettings s = settings_of(0, 8);
    s.connect_timeout = 2.0;
    CHECK_FATAL("8 processes need 104 open files, 60 are allowed|ulimit -n", {
        struct rlimit r = {60, 60};
        Comm* c;
        setrlimit(RLIMIT_NOFILE, &r);
        check(comm_open(&c, s));
    });
}

// ----------------------------------------------------------------------------
// No wait outlasts its deadline, and what goes wrong in one process ends the others' waits

static void other_size_and_nobody(CommSettings* s) {
    if (s->rank == 2) { _exit(0); }
    other_size(s);
}
static void rank_2_gives_up(CommSettings* s) {
    only_rank_0 = s->rank == 2;
    s->connect_timeout = s->rank == 2 ? 1.5 : 60.0;
}
static void a_fault_ends_the_others_waits(void) {
    run(3, barrier, other_size_and_nobody); // rank 0 gives rank 2 five seconds to hear of it
    for (int i = 0; i < 2; i++) {
        CHECK(ended_with(i, "rank 1 was started as one of 4 processes, rank 0 as one of 3; ") &&
              processes[i].ended < 15.0);
    }
    run(3, barrier, rank_2_gives_up);
    CHECK(ended_with(2, "no connection to 127.0.0.1 port ") && processes[2].ended > 1.4);
    for (int i = 0; i < 2; i++) { // by themselves: the watching thread would end them five seconds later
        CHECK(ended_with(i, "rank 2: no connection to 127.0.0.1 port ") &&
              processes[i].ended < processes[2].ended + 4.0);
    }
}

static void soon(CommSettings* s) { s->connect_timeout = 1.5; }

// What listens there takes no connection.
static void a_connection_that_is_not_taken_is_said(void) {
    struct sockaddr_in here;
    int fds[8];
    memset(processes, 0, sizeof(processes));
    listen_here();
    listen(listener, 0);
    here = comm_own_end(listener);
    for (int i = 0; i < 8; i++) {
        fds[i] = comm_socket_();
        CHECK(connect(fds[i], (const struct sockaddr*)&here, sizeof(here)) == 0 || errno == EINPROGRESS);
    }
    started = wall_seconds();
    start(1, 2, barrier, soon);
    processes[0] = processes[1];
    finish(1);
    processes[1] = processes[0];
    CHECK(ended_with(1, "no connection to 127.0.0.1 port ") && strstr(processes[1].text, "Connection timed out"));
    CHECK(processes[1].ended > 1.4 && processes[1].ended < 9.0); // one attempt may take ten seconds
    for (int i = 0; i < 8; i++) { close(fds[i]); }
    close(listener);
}

// What listens there closes each connection.
static void a_connection_that_is_closed_is_said(void) {
    memset(processes, 0, sizeof(processes));
    listen_here();
    started = wall_seconds();
    start(1, 2, barrier, soon);
    for (struct pollfd p = {listener, POLLIN, 0}; wall_seconds() < started + 3.0;) {
        if (poll(&p, 1, 100) == 1) { close(accept(listener, NULL, NULL)); }
    }
    close(listener);
    processes[0] = processes[1];
    finish(1);
    processes[1] = processes[0];
    CHECK(ended_with(1, "what listens on 127.0.0.1 port ") &&
          strstr(processes[1].text, "has not answered within 1.5 s (--connect-timeout)"));
}

// What listens there says nothing at all, or welcome and no more. Both take ten seconds, beside what else is tested.
static Process unanswered[2];
static void wait_for_answers(void) {
    CommWelcome welcome;
    memset(&welcome, 0, sizeof(welcome));
    welcome.magic = COMM_MAGIC, welcome.version = COMM_VERSION;
    for (int i = 0; i < 2; i++) {
        memset(processes, 0, sizeof(processes));
        listen_here();
        start(1, 2, barrier, soon);
        unanswered[i] = processes[1];
        struct pollfd p = {listener, POLLIN, 0};
        int fd = poll(&p, 1, 15000) == 1 ? accept(listener, NULL, NULL) : -1;
        CHECK(fd >= 0 && (i == 0 || send(fd, &welcome, sizeof(welcome), MSG_NOSIGNAL) == sizeof(welcome)));
        close(listener);
    }
}
static void silence_is_said(void) {
    memset(processes, 0, sizeof(processes));
    memcpy(&processes[0], unanswered, sizeof(unanswered));
    finish(2);
    memmove(&processes[1], &processes[0], sizeof(unanswered));
    CHECK(ended_with(1, "what listens on 127.0.0.1 port ") &&
          strstr(processes[1].text, "has not answered within 1.5 s (--connect-timeout)"));
    processes[1] = processes[2];
    CHECK(ended_with(1, "rank 0 ended while the others were connecting"));
}

// ----------------------------------------------------------------------------
// Strangers

static int connect_here(void) {
    int fd = -1;
    struct sockaddr_in to;
    CommWait wait = comm_wait_begin(NULL, 15.0);
    check(comm_resolve(&to, "127.0.0.1", port, 0.0, NULL));
    check(comm_connect(&fd, to, wall_seconds() + 15.0, NULL, &wait));
    return fd;
}
static void rank_0_late(CommSettings* s) {
    if (s->rank == 0) { poll(NULL, 0, 300); }
}

// More connections than there are places that say nothing; others that write and write, of another program or another job.
static void strangers_hold_up_nobody(void) {
    enum { SILENT = 100, LOUD = 8 };
    static char garbage[1 << 16];
    int fds[SILENT + LOUD];
    memset(processes, 0, sizeof(processes));
    listen_here();
    int fd = listener;
    for (int i = 0; i < SILENT + LOUD; i++) { fds[i] = connect_here(); }
    started = wall_seconds();
    for (int i = 2; i >= 0; i--) { start(i, 3, barrier, rank_0_late); }
    memset(garbage, 'G', sizeof(garbage));
    for (int i = 0; i < LOUD; i++) {
        CommHello hello;
        memset(&hello, 0, sizeof(hello));
        hello.magic = i % 2 ? COMM_MAGIC : 0, hello.version = COMM_VERSION, hello.kind = i - 4;
        memcpy(garbage, &hello, sizeof(hello));
        if (send(fds[SILENT + i], garbage, sizeof(garbage), MSG_NOSIGNAL) < 0) { continue; }
    }
    close(fd);
    finish(3);
    CHECK(all_ended_well(3) && processes[0].ended < 15.0);
    for (int i = 0; i < SILENT + LOUD; i++) { close(fds[i]); }
}

// What listens there is another program, which says something or nothing.
static void other_programs_are_said(void) {
    memset(processes, 0, sizeof(processes));
    listen_here();
    started = wall_seconds();
    start(1, 2, barrier, NULL);
    struct pollfd p = {listener, POLLIN, 0};
    poll(&p, 1, 15000);
    int fd = accept(listener, NULL, NULL);
    CHECK(send(fd, "SSH-2.0-Server\r\n", 16, MSG_NOSIGNAL) == 16);
    processes[0] = processes[1];
    finish(1);
    processes[1] = processes[0];
    CHECK(ended_with(1, "what listens on 127.0.0.1 port ") &&
          strstr(processes[1].text, "is not rank 0 of this program"));
    close(fd);
    close(listener);
}

// ----------------------------------------------------------------------------
// By a file

static const char* rendezvous;
static void by_file(CommSettings* s) {
    s->address = NULL, s->port = 0, s->listener = -1, s->file = rendezvous;
    if (s->rank == 0) { poll(NULL, 0, 200); }
}
static void by_file_here(CommSettings* s) {
    by_file(s);
    s->address = "127.0.0.1";
}
static void by_file_behind_a_router(CommSettings* s) {
    by_file(s);
    is_behind = 1;
}
static void by_file_alone(CommSettings* s) {
    by_file_here(s);
    without_rank_1(s);
}
static void by_file_other_flag(CommSettings* s) {
    by_file_here(s);
    other_flag(s);
}

static void files_of_others_are_refused(void) {
    char text[COMM_FILE_BYTES];
    rendezvous = unit_path("rendezvous");
    unit_write(rendezvous, "not ours\n", 9);
    size_t bytes;
    char* before = unit_read(rendezvous, &bytes);
    run(2, barrier, by_file_here);
    CHECK(ended_with(0, "the rendezvous file ") && strstr(processes[0].text, " is there already, of another run or "));
    CHECK(ended_with(1, rendezvous) && strstr(processes[1].text, " is no rendezvous file of this program; remove it"));
    CHECK(unit_file_is(rendezvous, before)); // it is not ours to take away
    free(before);
    listen_here();
    close(listener);
    snprintf(text, sizeof(text), "%saddress 127.0.0.1\nport %d\nsecret 0123456789abcdef0123456789abcdef\nend\n",
             comm_file_head_, port);
    unit_write(rendezvous, text, strlen(text)); // of a process that was killed
    CommSettings s = settings_of(1, 2);
    by_file_here(&s);
    CHECK_FATAL("rank 1|nobody listens on 127.0.0.1 port|rendezvous|it is stale; remove it", {
        Comm* c;
        check(comm_open(&c, s));
    });
    s.connect_timeout = 0.2;
    for (int part = 0; part < 2; part++) { // it is not there, or only a part of it
        if (part) { unit_write(rendezvous, text, strlen(text) - 4); }
        if (!part) { unlink(rendezvous); }
        CHECK_FATAL(part ? "rank 1|the rendezvous file|rendezvous is incomplete; remove it"
                         : "rank 1|rank 0 has not written the rendezvous file|rendezvous|--connect-timeout",
                    {
                        alarm(60); // a wait without an end
                        Comm* c;
                        check(comm_open(&c, s));
                    });
    }
    s.rank = 0, s.file = unit_path("no folder/rendezvous");
    CHECK_FATAL("rank 0: cannot write the rendezvous file|no folder|No such file", {
        Comm* c;
        check(comm_open(&c, s));
    });
}

static void processes_meet_by_a_file(void) {
    rendezvous = unit_path("meeting");
    run(3, barrier, by_file);
    CHECK(all_ended_well(3) && !file_exists(rendezvous));
    run(3, barrier, by_file_here);
    CHECK(all_ended_well(3) && !file_exists(rendezvous));
    run(2, barrier, by_file_behind_a_router);
    CHECK(all_ended_well(2));
    run(3, barrier, by_file_other_flag);
    for (int i = 0; i < 3; i++) { CHECK(ended_with(i, "rank 2 was started with -d 2048, rank 0 with -d 1024; ")); }
    CHECK(!file_exists(rendezvous));
    begin(2, barrier, by_file_alone);
    struct stat st;
    for (int i = 0; i < 1500 && stat(rendezvous, &st) != 0; i++) { poll(NULL, 0, 10); }
    CHECK((st.st_mode & 0777) == 0600);
    finish(2);
    CHECK(ended_with(0, "1 of 2 processes did not connect") && !file_exists(rendezvous));
}

int main(void) {
    wait_for_answers();
    started_alike_or_not_at_all();
    no_rank_0_is_said();
    rank_0_is_found_by_other_addresses();
    a_loopback_that_is_down_is_said_at_once();
    a_wait_is_said();
    a_port_in_use_is_said();
    a_port_behind_the_address_is_said();
    too_few_open_files_are_said();
    a_fault_ends_the_others_waits();
    a_connection_that_is_not_taken_is_said();
    a_connection_that_is_closed_is_said();
    strangers_hold_up_nobody();
    other_programs_are_said();
    processes_meet_by_a_file();
    files_of_others_are_refused();
    silence_is_said();
    return unit_end();
}
