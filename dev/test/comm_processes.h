/*
Runs of several processes for the tests of comm.h: each is forked, meets the others on the loopback, does what the test
says, and is looked at afterwards: its exit code, what it wrote on stderr, and when it ended.

    run(4, body, NULL);                          // check(comm_open()); body(c); comm_close(c); exit code 0
    CHECK(!all_ended_well(3) && ended_with(0, "rank 1 has ended without a word"));
*/
#ifndef COMM_PROCESSES_H
#define COMM_PROCESSES_H

#include "llmc/comm/comm.h"

#include <signal.h>

#include "unit.h"

#if defined(__SANITIZE_THREAD__)
// Else each exit takes a second; and a process that fails ends without its threads (fatal), which is no leak.
const char* __tsan_default_options(void) { return "atexit_sleep_ms=0:report_thread_leaks=0"; }
#endif

#if defined(__SANITIZE_ADDRESS__)
static int is_process;
int __lsan_is_turned_off(void) { return is_process; } // they end while threads run, which is no leak
#endif

enum { MOST = 5 };

typedef void (*Body)(Comm* c);           // what each process does, once they have met
typedef void (*Change)(CommSettings* s); // to the settings, before

typedef struct {
    pid_t pid;
    int out; // its stderr
    int exit_code;
    char text[4096];
    double ended; // seconds after the run began
} Process;

static Process processes[MOST];
static double started;
static int port, listener = -1; // of the run, on the loopback
static int unlistened;          // 1: rank 0 is to listen on the port itself

static CommSettings settings_of(int rank, int size) {
    CommSettings s;
    memset(&s, 0, sizeof(s));
    s.rank = rank, s.size = size;
    s.address = "127.0.0.1", s.port = port;
    s.listener = rank == 0 ? listener : -1;
    s.token = "a token";
    s.settings = "-b 4\n-d 1024\n";
    s.connect_timeout = 60.0, s.fault_timeout = 20.0;
    return s;
}

static void start(int rank, int size, Body body, Change change) {
    int ends[2];
    fflush(NULL);
    if (pipe(ends) != 0 || (processes[rank].pid = fork()) < 0) { fatal("cannot start a process"); }
    processes[rank].out = ends[0];
    if (processes[rank].pid != 0) {
        close(ends[1]);
        return;
    }
#if defined(__SANITIZE_ADDRESS__)
    is_process = 1;
#endif
    dup2(ends[1], STDERR_FILENO);
    close(ends[0]), close(ends[1]);
    for (int i = 0; i < MOST; i++) {
        if (processes[i].out > 0) { close(processes[i].out); }
    }
    alarm(120); // none waits for ever
    CommSettings s = settings_of(rank, size);
    if (change) { change(&s); }
    if (s.listener < 0 && listener >= 0) { close(listener); }
    Comm* c;
    check(comm_open(&c, s));
    body(c);
    comm_close(c);
    _exit(0);
}

// A socket that listens on a free port of the loopback.
static void listen_here(void) {
    struct sockaddr_in any;
    memset(&any, 0, sizeof(any));
    any.sin_family = AF_INET, any.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    check(comm_listen_(&listener, any, 100));
    port = comm_port_(listener);
}

static void begin(int size, Body body, Change change) {
    memset(processes, 0, sizeof(processes));
    listen_here();
    if (unlistened) { close(listener); }
    listener = unlistened ? -1 : listener;
    started = wall_seconds();
    for (int i = size - 1; i >= 0; i--) { start(i, size, body, change); } // rank 0 comes last
    if (listener >= 0) { close(listener); }
}

// Takes what the processes write until all have ended.
static void finish(int size) {
    struct pollfd fds[MOST];
    for (int left = size; left > 0;) {
        for (int i = 0; i < size; i++) { fds[i].fd = processes[i].out, fds[i].events = POLLIN, fds[i].revents = 0; }
        poll(fds, (nfds_t)size, 1000);
        for (int i = 0; i < size; i++) {
            Process* p = &processes[i];
            size_t length = strlen(p->text);
            ssize_t n = fds[i].revents ? read(p->out, p->text + length, sizeof(p->text) - 1 - length) : 1;
            if (n > 0) { continue; }
            int status = 0;
            close(p->out);
            p->out = -1, left--;
            waitpid(p->pid, &status, 0);
            p->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
            p->ended = wall_seconds() - started;
        }
    }
}

static void run(int size, Body body, Change change) {
    begin(size, body, change);
    finish(size);
}

static inline int all_ended_well(int size) {
    int ok = 1;
    for (int i = 0; i < size; i++) {
        ok = ok && processes[i].exit_code == 0 && processes[i].text[0] == '\0';
        if (processes[i].exit_code != 0) {
            printf("    rank %d: %d, %s", i, processes[i].exit_code, processes[i].text);
        }
    }
    return ok;
}

// Rank `rank` ended with exit code 1 and one line, "error: rank N: " and then `words`.
static inline int ended_with(int rank, const char* words) {
    const Process* p = &processes[rank];
    const char* end = strchr(p->text, '\n');
    char first[32];
    int head = snprintf(first, sizeof(first), "error: rank %d: ", rank);
    int ok =
        p->exit_code == 1 && strncmp(p->text, first, (size_t)head) == 0 && strstr(p->text, words) == p->text + head;
    ok = ok && end == p->text + strlen(p->text) - 1;
    if (!ok) { printf("    rank %d: exit code %d and: %s\n", rank, p->exit_code, p->text); }
    return ok;
}

// The same with any exit code, and a line that is no error's, perhaps; "": it wrote nothing.
static inline int ended_saying(int rank, int exit_code, const char* words) {
    const Process* p = &processes[rank];
    const char* end = strchr(p->text, '\n');
    int line = words[0] == '\0' ? p->text[0] == '\0' : end != NULL && end[1] == '\0' && strstr(p->text, words) != NULL;
    if (p->exit_code == exit_code && line) { return 1; }
    printf("    rank %d: exit code %d and: %s\n", rank, p->exit_code, p->text);
    return 0;
}

static inline void claim(int ok, const char* what) {
    if (!ok) { fatal("not so: %s", what); }
}
#define CLAIM(...) claim((__VA_ARGS__) != 0, #__VA_ARGS__)

static inline void nothing(Comm* c) { (void)c; }

#endif
