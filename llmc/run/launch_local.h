/*
--gpus and --processes: a process that starts the others on this machine and waits for them. It computes nothing.

    signals    those of signals.h are passed on once each, with signals_pass_on()
    stderr     of the processes comes by pipes, and is filtered by launch_lines.h
    ends       if this process ends before them for any reason, they get SIGKILL. If one fails before all are connected, or a
               signal kills one and the others have not ended within --fault-timeout, it kills them. None is left behind
    exit code  the worst of theirs; 1 if a signal killed one
*/
#ifndef LLMC_RUN_LAUNCH_LOCAL_H
#define LLMC_RUN_LAUNCH_LOCAL_H

#include <dlfcn.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "launch_environment.h"
#include "launch_lines.h"
#include "llmc/base/signals.h"
#include "llmc/comm/socket.h"

#define LAUNCH_FLAG (CLI_TRAINER & FOR_GPU ? "--gpus" : "--processes")

typedef struct {
    pid_t pid; // 0: it has ended
    int pipe;  // its stderr, or -1
    size_t length;
    char line[LAUNCH_LINE_BYTES]; // (length) its unfinished line
} LaunchChild;

typedef struct {
    int count, left;       // processes started, and still running
    LaunchChild* children; // (count)
    LaunchLines* lines;    //
    unsigned char* met;    // (count) in shared memory: 1 for a process that has met all others
    struct pollfd* fds;    // (count)
    double fault_timeout;  //
    double kill_at;        // when the remaining processes are killed, or 0
    int stopped_only;      // 1: kill only stopped processes then
    int exit_code;         //
    int passed_on[2];      // the last stop signal that was passed on, and its value; zeros: none
    int before_met;        // 1: a stop signal came before all had met; noticing the end of another is no failure then
} LaunchParent;

static unsigned char* launch_met_; // this process's entry of LaunchParent.met, or NULL

// All processes of the run have met.
static inline void launch_has_met(void) {
    if (launch_met_ != NULL) { __atomic_store_n(launch_met_, 1, __ATOMIC_RELAXED); }
}

// ----------------------------------------------------------------------------
// The number of processes

// The number of GPUs by the driver, -1 without a driver. Queried in a child process: after using the driver a process must not
// fork.
static inline int launch_count_gpus(void) {
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        int count = 0;
        void* driver = dlopen("libcuda.so.1", RTLD_NOW);
        void *init = driver ? dlsym(driver, "cuInit") : NULL, *get = driver ? dlsym(driver, "cuDeviceGetCount") : NULL;
        int (*cu_init)(unsigned) = NULL;
        int (*cu_device_get_count)(int*) = NULL;
        memcpy(&cu_init, &init, sizeof(init));
        memcpy(&cu_device_get_count, &get, sizeof(get));
        if (init == NULL || get == NULL || cu_init(0) != 0 || cu_device_get_count(&count) != 0) { _exit(255); }
        _exit(count < 254 ? count : 254);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return pid > 0 && WIFEXITED(status) && WEXITSTATUS(status) != 255 ? WEXITSTATUS(status) : -1;
}

// The number of processes that the flags request on this machine; 1 by default.
static inline int launch_local_count(const Options* o) {
    int asked = CLI_TRAINER & FOR_GPU ? o->gpus : o->processes;
    if (!(CLI_TRAINER & FOR_GPU) || (asked != CLI_ALL && asked < 2)) { return asked > 0 ? asked : 1; }
    int gpus = launch_count_gpus();
    const char* list = launch_text_("CUDA_VISIBLE_DEVICES");
    char number[16];
    snprintf(number, sizeof(number), "%d", asked);
    if (gpus < 1) {
        fatal("--gpus %s: the driver finds no GPU here%s%s; nvidia-smi lists them, and ./train_gpt2 trains on the CPU",
              asked == CLI_ALL ? "all" : number, list ? "; CUDA_VISIBLE_DEVICES=" : "", list ? list : "");
    }
    if (asked == CLI_ALL) { return gpus; }
    if (asked > gpus) {
        fatal("--gpus %d: this machine has %d GPU%s%s%s; ask for as many, or for all", asked, gpus,
              gpus == 1 ? "" : "s", list ? " by CUDA_VISIBLE_DEVICES=" : "", list ? list : "");
    }
    return asked;
}

// ----------------------------------------------------------------------------
// Starting

// Processes on this machine only: rank 0's socket already listens on a free port, and the token is random.
static inline void launch_open_meeting_(Launch* l) {
    static char token[33];
    unsigned char random[16];
    struct sockaddr_in address;
    l->address = "127.0.0.1";
    check(comm_resolve_(&address, l->address, 0, 0.0));
    check(comm_listen_(&l->listener, address, l->size));
    if (getrandom(random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        fatal("no random numbers: %s", strerror(errno));
    }
    for (int i = 0; i < 16; i++) { snprintf(token + 2 * i, 3, "%02x", random[i]); }
    l->token = token;
    l->port = comm_port_(l->listener);
}

// Runs in a new process: sets its place in the run.
static inline Launch launch_child_(LaunchParent* p, Launch l, int index, int error, pid_t parent,
                                   const sigset_t* mask) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) { _exit(1); } // it has ended before
    dup2(error, STDERR_FILENO);
    close(error);
    for (int i = 0; i < index; i++) { close(p->children[i].pipe); }
    launch_met_ = &p->met[index];
    if (index > 0 && l.listener >= 0) { close(l.listener); }
    l.listener = index > 0 ? -1 : l.listener;
    l.rank += index;
    l.local_rank = index;
    free(p->children);
    sigprocmask(SIG_SETMASK, mask, NULL);
    return l;
}

// Kills the running processes; with stopped_only, only stopped ones.
static inline void launch_kill_(const LaunchParent* p, int stopped_only) {
    for (int i = 0; i < p->count; i++) {
        char path[64], state = 'T';
        snprintf(path, sizeof(path), "/proc/%ld/stat", (long)p->children[i].pid);
        FILE* file = stopped_only && p->children[i].pid > 0 ? fopen(path, "r") : NULL;
        if (file != NULL && fscanf(file, "%*d %*s %c", &state) != 1) { state = 'T'; }
        if (file != NULL) { fclose(file); }
        if (p->children[i].pid > 0 && state == 'T') { kill(p->children[i].pid, SIGKILL); }
    }
}

// Starts the processes. Returns 1 in each of them, with its place in *l, and 0 in the parent.
static inline int launch_start_(LaunchParent* p, Launch* l, const sigset_t* mask) {
    pid_t parent = getpid();
    for (int i = 0; i < p->count; i++) {
        int ends[2] = {-1, -1};
        LaunchChild* child = &p->children[i];
        child->pid = pipe(ends) == 0 ? fork() : -1;
        if (child->pid == 0) {
            close(ends[0]);
            *l = launch_child_(p, *l, i, ends[1], parent, mask);
            return 1;
        }
        if (child->pid < 0) {
            int cause = errno;
            child->pid = 0;
            launch_kill_(p, 0);
            fatal("%s %d: process %d cannot be started: %s; end other programs, or raise the limit (ulimit -u, -n)",
                  LAUNCH_FLAG, p->count, i, strerror(cause));
        }
        close(ends[1]);
        child->pipe = ends[0];
        fcntl(child->pipe, F_SETFL, O_NONBLOCK);
        p->left++;
    }
    return 0;
}

// ----------------------------------------------------------------------------
// Signals: the handlers record them, and run only during ppoll.

static struct {
    volatile sig_atomic_t stop, stops, save; // the last stop signal, 1 or 2 of them; the last SIGUSR1's time
    volatile long long ms;                   // when the first stop signal came
} launch_signals_;

static inline void launch_signal_(int number, siginfo_t* info, void* context) {
    long long ms = signals_now_();
    (void)context;
    if (number == SIGUSR1) { launch_signals_.save = signals_save_time(ms); }
    if (number == SIGUSR1 || number == SIGCHLD || signals_of_own_write(number, info)) { return; }
    int first = launch_signals_.stops == 0;
    if (first) { launch_signals_.ms = ms; }
    if (first || (signals_is_urgent(number) && ms - launch_signals_.ms > SIGNALS_SAME_MS)) {
        launch_signals_.stop = number;
        launch_signals_.stops = first ? 1 : 2;
    }
}

static inline void launch_install_(void) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    sigfillset(&action.sa_mask);
    action.sa_flags = SA_SIGINFO;
    action.sa_sigaction = launch_signal_;
    for (int i = 0; i < NUM_SIGNALS_ENDING; i++) { signals_handle(signals_ending[i].number, &action); }
    signals_handle(SIGUSR1, &action);
    sigaction(SIGCHLD, &action, NULL);
    signal(SIGPIPE, SIG_IGN); // stderr may be a closed pipe
}

static inline int launch_all_met_(const LaunchParent* p) {
    int met = 1;
    for (int i = 0; i < p->count; i++) { met = met && __atomic_load_n(&p->met[i], __ATOMIC_RELAXED); }
    return met;
}

static inline void launch_pass_on_(LaunchParent* p) {
    int save = launch_signals_.save, stop = launch_signals_.stop, stops = launch_signals_.stops;
    launch_signals_.save = 0;
    int new_stop = stops > p->passed_on[1];
    if (new_stop) { p->passed_on[0] = stop, p->passed_on[1] = stops; }
    if (new_stop && !launch_all_met_(p)) { p->before_met = 1; }
    for (int i = 0; i < p->count; i++) {
        if (p->children[i].pid <= 0) { continue; }
        if (save != 0) { signals_pass_on(p->children[i].pid, SIGUSR1, save); }
        if (new_stop) { signals_pass_on(p->children[i].pid, stop, stops); }
    }
}

// ----------------------------------------------------------------------------
// Waiting

// Takes a line that a process has written.
static inline void launch_say_(LaunchParent* p, int index) {
    const char* line = p->children[index].line;
    if (p->before_met && strncmp(line, "error: ", 7) == 0) { return; }
    launch_lines_add(p->lines, index, line, wall_seconds());
}

// Reads a process's stderr; at its end also a line without a newline.
static inline void launch_read_(LaunchParent* p, int index) {
    LaunchChild* child = &p->children[index];
    char data[4096];
    ssize_t n = 0;
    while (child->pipe >= 0 && ((n = read(child->pipe, data, sizeof(data))) > 0 || (n < 0 && errno == EINTR))) {
        for (ssize_t i = 0; i < n; i++) {
            int full = child->length + 1 == sizeof(child->line);
            if (data[i] != '\n' && !full) { child->line[child->length++] = data[i]; }
            if (data[i] != '\n' && !full) { continue; }
            child->line[child->length] = '\0';
            launch_say_(p, index);
            child->length = 0;
            if (full && data[i] != '\n') { child->line[child->length++] = data[i]; }
        }
    }
    if (child->pipe < 0 || (n < 0 && child->pid > 0)) { return; } // more may follow
    if (child->length > 0) {
        child->line[child->length] = '\0';
        launch_say_(p, index);
    }
    close(child->pipe);
    child->pipe = -1;
}

// Schedules killing the remaining processes (stopped_only: the stopped ones) in so many seconds, unless that is sooner.
static inline void launch_hurry_(LaunchParent* p, double seconds, int stopped_only) {
    double at = wall_seconds() + seconds;
    if (p->kill_at > 0.0 && p->kill_at < at && !(p->stopped_only && !stopped_only)) { return; }
    p->kill_at = at;
    p->stopped_only = stopped_only;
}

// Handles the end of a process.
static inline void launch_ended_(LaunchParent* p, int index, int status, const Options* o) {
    LaunchChild* child = &p->children[index];
    int by = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    int code = by == 0 ? WEXITSTATUS(status) : by == p->passed_on[0] ? 128 + by : 1;
    int killed_here = by == SIGKILL && p->kill_at > 0.0 && wall_seconds() >= p->kill_at;
    child->pid = 0;
    p->left--;
    launch_read_(p, index);
    if (p->before_met) { launch_hurry_(p, LAUNCH_HOLD_SECONDS, 0); }
    if (killed_here || p->before_met) { return; }
    if (by != 0 && by != p->passed_on[0]) { launch_lines_killed(p->lines, index, by); }
    if (code > p->exit_code) { p->exit_code = code; }
    if (!launch_all_met_(p) && (code != 0 || !(o->plan || o->doctor))) {
        launch_hurry_(p, LAUNCH_HOLD_SECONDS, 0); // the others would wait for it
    } else if (by != 0) {
        launch_hurry_(p, p->fault_timeout, 0);
    } else if (code != 0) { // others may still be saving; only stopped ones cannot end
        launch_hurry_(p, LAUNCH_HOLD_SECONDS, 1);
    }
}

// Waits for all processes, then exits.
static inline void launch_wait_(LaunchParent* p, const Options* o, const sigset_t* mask) {
    while (p->left > 0) {
        struct timespec most = {0, 200000000};
        for (int i = 0; i < p->count; i++) {
            p->fds[i].fd = p->children[i].pipe;
            p->fds[i].events = POLLIN;
        }
        ppoll(p->fds, (nfds_t)p->count, &most, mask);
        launch_pass_on_(p);
        for (int i = 0; i < p->count; i++) {
            int status;
            launch_read_(p, i);
            if (p->children[i].pid > 0 && waitpid(p->children[i].pid, &status, WNOHANG) == p->children[i].pid) {
                launch_ended_(p, i, status, o);
            }
        }
        if (p->kill_at > 0.0 && wall_seconds() >= p->kill_at) { launch_kill_(p, p->stopped_only); }
        launch_lines_tick(p->lines, wall_seconds(), 0);
    }
    launch_lines_close(p->lines);
    int exit_code = p->exit_code;
    free(p->children);
    free(p->fds);
    exit(exit_code);
}

// Starts `count` processes and returns in each of them, not in the parent. `l`: the place of the first.
static inline Launch launch_local(Launch l, const Options* o, int count) {
    LaunchParent p;
    sigset_t signals, mask;
    memset(&p, 0, sizeof(p));
    p.count = count;
    p.fault_timeout = o->fault_timeout;
    p.children = (LaunchChild*)calloc_check((size_t)count, sizeof(LaunchChild));
    p.met = (unsigned char*)mmap(NULL, (size_t)count, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p.met == MAP_FAILED) { fatal("%s %d: no memory to share: %s", LAUNCH_FLAG, count, strerror(errno)); }
    if (l.size == count) { launch_open_meeting_(&l); }
    sigemptyset(&signals);
    signals_add_ending(&signals);
    sigaddset(&signals, SIGUSR1);
    sigaddset(&signals, SIGCHLD);
    sigprocmask(SIG_BLOCK, &signals, &mask);
    fflush(NULL);
    if (launch_start_(&p, &l, &mask)) { return l; }
    if (l.listener >= 0) { close(l.listener); }
    p.fds = (struct pollfd*)calloc_check((size_t)count, sizeof(struct pollfd));
    p.lines = launch_lines_open(l.rank, count, STDERR_FILENO);
    launch_install_();
    launch_wait_(&p, o, &mask);
    return l; // not reached
}

#endif
