/*
--gpus and --processes: a process that starts the others on this machine and waits for them. It computes nothing.

    signals    those of signals.h are forwarded to all of them
    stderr     is the same for all: each writes its own lines, which begin with its rank
    ends       if this process ends before them for any reason, they get SIGKILL; so do those that have not ended soon after one
               has failed. None is left behind
    exit code  the worst of theirs; 1 if a signal killed one
*/
#ifndef LLMC_RUN_LAUNCH_LOCAL_H
#define LLMC_RUN_LAUNCH_LOCAL_H

#include <sys/prctl.h>
#include <sys/wait.h>

#include "launch_environment.h"
#include "llmc/base/signals.h"
#include "llmc/comm/meet.h"

typedef struct {
    int first_rank, count, left; // processes started, and still running
    pid_t* pids;                 // (count) 0: it has ended
    double grace;                // seconds from a failure to SIGKILL
    double kill_at;              // when the remaining processes get it, or 0
    int killed;                  // 1: they have got it
    int exit_code;
} LaunchParent;

// ----------------------------------------------------------------------------
// The number of processes

int gpt2_num_devices(void); // gpt2_model.h

// The number of GPUs. Counted in a child process: one that has used the driver must not fork.
static inline int launch_count_gpus(void) {
    int status = 0;
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) { _exit(gpt2_num_devices()); }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return pid > 0 && WIFEXITED(status) ? WEXITSTATUS(status) : 0;
}

// The number of processes that the flags request on this machine; 1 by default.
static inline int launch_local_count(const Options* o) {
    int start = launch_start(o), all = start == CLI_ALL;
    if (!all && (!(CLI_TRAINER & FOR_GPU) || start < 2)) { return start > 0 ? start : 1; }
    int gpus = launch_count_gpus();
    const char* list = launch_text_("CUDA_VISIBLE_DEVICES");
    char number[16];
    snprintf(number, sizeof(number), "%d", start);
    if (gpus < 1) {
        fatal("--gpus %s: the driver finds no GPU here%s%s; nvidia-smi lists them, and ./train_gpt2 trains on the CPU",
              all ? "all" : number, list ? "; CUDA_VISIBLE_DEVICES=" : "", list ? list : "");
    }
    if (start > gpus) {
        fatal("--gpus %d: this machine has %d GPU%s%s%s; ask for as many, or for all", start, gpus,
              gpus == 1 ? "" : "s", list ? " by CUDA_VISIBLE_DEVICES=" : "", list ? list : "");
    }
    return all ? gpus : start;
}

// ----------------------------------------------------------------------------
// Starting

// Processes on this machine only: rank 0's socket already listens on a free port, and the token is random.
static inline void launch_open_meeting_(Launch* l) {
    static char token[COMM_SECRET_BYTES];
    struct sockaddr_in address;
    l->address = "127.0.0.1";
    check(comm_resolve(&address, l->address, 0, 0.0, NULL));
    check(comm_listen(&l->listener, address, l->size));
    check(comm_secret(token));
    l->token = token;
    l->port = comm_port(l->listener);
}

// Runs in a new process: sets its place in the run.
static inline Launch launch_child_(Launch l, int index, pid_t parent, const sigset_t* mask) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) { _exit(1); } // it has ended before
    if (index > 0 && l.listener >= 0) { close(l.listener); }
    l.listener = index > 0 ? -1 : l.listener;
    l.rank += index;
    l.local_rank = index;
    signals_install(); // for what has come since the parent blocks signals
    sigprocmask(SIG_SETMASK, mask, NULL);
    return l;
}

// ----------------------------------------------------------------------------
// Waiting

static inline void launch_signal_all_(const LaunchParent* p, int number) {
    for (int i = 0; i < p->count; i++) {
        if (p->pids[i] > 0) { kill(p->pids[i], number); }
    }
}

// Handles the end of a process. After a failure the others end by themselves, but for one that is stopped or waits for what
// does not come.
static inline void launch_ended_(LaunchParent* p, int index, int status) {
    int by = WIFSIGNALED(status) ? WTERMSIG(status) : 0, code = by != 0 ? EXIT_FAILURE : WEXITSTATUS(status);
    p->pids[index] = 0;
    p->left--;
    if (by != 0 && !p->killed) {
        print_error("rank %d was killed by signal %d (%s)", p->first_rank + index, by, strsignal(by));
    }
    if (code > p->exit_code) { p->exit_code = code; }
    if (code != 0 && p->kill_at == 0.0) { p->kill_at = wall_seconds() + p->grace; }
}

// Forwards signals, which are blocked, until all processes have ended; returns the exit code.
static inline int launch_wait_(LaunchParent* p, const sigset_t* signals) {
    const struct timespec most = {0, 200000000};
    while (p->left > 0) {
        siginfo_t info;
        int number = sigtimedwait(signals, &info, &most), status;
        if (number > 0 && number != SIGCHLD && !signals_of_own_write(number, &info)) { launch_signal_all_(p, number); }
        for (int i = 0; i < p->count; i++) {
            if (p->pids[i] > 0 && waitpid(p->pids[i], &status, WNOHANG) == p->pids[i]) { launch_ended_(p, i, status); }
        }
        if (p->kill_at > 0.0 && wall_seconds() >= p->kill_at) {
            p->killed = 1;
            launch_signal_all_(p, SIGKILL);
        }
    }
    return p->exit_code;
}

// Starts `count` processes and returns in each of them, not in the parent. `l`: the place of the first.
static inline Launch launch_local(Launch l, const Options* o, int count) {
    LaunchParent p = {l.rank, count, 0, NULL, comm_grace(o->fault_timeout) + 1.0, 0.0, 0, 0};
    sigset_t signals = signals_all(), mask;
    pid_t parent = getpid();
    p.pids = (pid_t*)calloc_check((size_t)count, sizeof(pid_t));
    if (l.size == count) { launch_open_meeting_(&l); }
    sigaddset(&signals, SIGCHLD);
    signal(SIGCHLD, SIG_DFL); // ignored, as it may be inherited, it would hide how they end
    sigprocmask(SIG_BLOCK, &signals, &mask);
    fflush(NULL);
    for (; p.left < count; p.left++) {
        pid_t pid = fork();
        if (pid < 0) { // those that run get SIGKILL when this process ends
            fatal("%s %d: process %d cannot be started: %s; end other programs, or raise the limit (ulimit -u)",
                  launch_start_flag(), count, p.left, strerror(errno));
        }
        if (pid == 0) {
            free(p.pids);
            return launch_child_(l, p.left, parent, &mask);
        }
        p.pids[p.left] = pid;
    }
    if (l.listener >= 0) { close(l.listener); }
    int exit_code = launch_wait_(&p, &signals);
    free(p.pids);
    exit(exit_code);
}

#endif
