/*
How a run becomes several processes, and how they meet: launch_environment.h says which process this is, by torchrun, mpirun,
srun or llm.c's flags; --gpus and --processes start them on this machine. A process alone starts nothing, opens no socket and
prints nothing more.

The process that starts others waits for them and computes nothing:
    signals    those of signals.h are forwarded to all of them
    stderr     is the same for all: each writes its own lines, which begin with its rank
    ends       if this process ends before them for any reason, they get SIGKILL; so do those that have not ended soon after one
               has failed. None is left behind
    exit code  the worst of theirs; 1 if a signal killed one
*/
#ifndef LLMC_RUN_LAUNCH_H
#define LLMC_RUN_LAUNCH_H

#include <sched.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "launch_environment.h"
#include "llmc/base/host.h"
#include "llmc/base/signals.h"
#include "llmc/comm/comm.h"

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

// ----------------------------------------------------------------------------
// All ways

// Divides the machine's cores among its processes, unless OMP_NUM_THREADS is set or the launcher has bound each to its own
// cores.
static inline void launch_share_cores_(const Launch* l) {
#if defined(_OPENMP)
    int cores = omp_get_num_procs(), per_task = launch_number_("SLURM_CPUS_PER_TASK", 1, INT_MAX, 0);
    int is_srun = strcmp(l->how, "srun") == 0, bound = is_srun || strcmp(l->how, "mpirun") == 0;
    if (launch_text_("OMP_NUM_THREADS") != NULL) { return; }
    int threads = cpu_cores() / l->local_size;
    if (bound && (long)cores * l->local_size <= sysconf(_SC_NPROCESSORS_ONLN)) { threads = cores; }
    if (is_srun && per_task > 0 && per_task < cores) { threads = per_task; }
    omp_set_num_threads(threads > 0 ? threads : 1);
#else
    (void)l;
#endif
}

// To be called before any thread and any CUDA call. If the options request processes on this machine, it starts them and
// returns in each of them; the parent waits for them and exits with their worst exit code. Contradictions end the program with
// one line. In ranks other than 0, stdout is /dev/null from here on.
static inline Launch launch_processes(const Options* o) {
    Launch l = launch_by_launcher();
    launch_check_flags(&l, o);
    int count = launch_local_count(o);
    l = launch_place(l, o, count);
    if (count > 1) { l = launch_local(l, o, count); }
    if (l.size > 1) { launch_share_cores_(&l); }
    int nowhere = l.rank > 0 ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
    if (nowhere >= 0) {
        fflush(stdout);
        dup2(nowhere, STDOUT_FILENO);
        close(nowhere);
    }
    return l;
}

// ----------------------------------------------------------------------------
// Meeting

// "<bytes> bytes, digest <hex>" of this program's file
static inline void launch_program_(char* text, size_t size) {
    static char data[1 << 16];
    Digest digest = digest_begin();
    FILE* file = fopen("/proc/self/exe", "rb");
    for (size_t n = sizeof(data); file != NULL && n == sizeof(data);) {
        n = fread(data, 1, sizeof(data), file);
        digest_update(&digest, data, n);
    }
    if (file != NULL) { fclose(file); }
    snprintf(text, size, "of %llu bytes with digest %016llx", (unsigned long long)digest.bytes,
             (unsigned long long)digest_end(digest));
}

// The lines that must be equal in all processes, which the caller frees: the program and the flags, but for those that say how
// a process is started and meets the others. Rank 0 alone writes to its folder.
static inline char* launch_settings(const Options* o) {
    char *settings = NULL, program[96], number[64];
    size_t size;
    FILE* lines = open_memstream(&settings, &size);
    if (lines == NULL) { fatal("out of memory for the settings"); }
    launch_program_(program, sizeof(program));
    fprintf(lines, "the program %s\n", program);
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        int is_start = f->effect == CLI_COMMAND && i >= CLI_INDEX_gpus && i != CLI_INDEX_fault_timeout;
        if (!(f->who & CLI_TRAINER) || is_start) { continue; }
        const char* value = i == CLI_INDEX_output_dir && o->output_dir ? "given" : cli_value(o, f, number);
        fprintf(lines, "%s %s\n", f->long_name, value[0] != '\0' ? value : "-");
    }
    if (fclose(lines) != 0) { fatal("out of memory for the settings"); }
    return settings;
}

// Connects to the other processes, with the options as given; NULL for a single process. Ends the program with one line if that
// fails, or if a process was started with different options.
static inline Comm* comm_start(const Launch* l, const Options* o) {
    Comm* comm = NULL;
    const char* reason = launch_reason(l);
    if (l->size == 1) { return NULL; }
    if (o->plan && reason != NULL) { // waits for nobody
        print_note("--plan: this is rank %d of %d, and rank 0 prints the plan: %s", l->rank, l->size, reason);
        return comm_imagine(l->size);
    }
    char* settings = launch_settings(o);
    CommSettings s;
    memset(&s, 0, sizeof(s));
    s.rank = l->rank, s.size = l->size;
    s.address = l->address, s.origin = l->origin, s.port = l->port, s.file = l->file, s.listener = l->listener;
    s.token = l->token, s.settings = settings, s.reason = reason;
    s.connect_timeout = o->connect_timeout, s.fault_timeout = o->fault_timeout;
    Status status = comm_open(&comm, s);
    free(settings);
    check(status);
    return comm;
}

#endif
