/*
Signals that ask a run to end or to save. SIGTERM, SIGINT, SIGHUP (the terminal is gone), SIGXCPU (a limit on processor time)
and SIGXFSZ: the run finishes its step, saves, and ends with exit code 0. SIGUSR1: it saves at the end of the step and
continues. A SIGTERM or SIGINT after one of them ends the program at once, with 128 plus the signal as exit code, and leaves
nothing half written (temporary_files.h). The others never do: SIGXCPU comes every second, SIGHUP from the terminal and from its
shell. Before the first step there is nothing to save, and the first signal ends the program at once.

The SIGXFSZ of a write of ours beyond the limit on files does not count: the write fails with EFBIG, as on a full disk.

A signal repeated within 0.2 s counts once: timeout(1) sends each twice, to the process and to its group. A signal that was
ignored when the program began (SIGINT of a job in the background, SIGHUP under nohup) stays ignored.

The process that started this one (launch_local.h) forwards its signals by signals_pass_on(), which marks them: a terminal sends
Ctrl-C to both processes, and however late the forwarded one arrives, it counts as the same signal.
*/
#ifndef LLMC_BASE_SIGNALS_H
#define LLMC_BASE_SIGNALS_H

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "temporary_files.h"
#include "terminal_line.h"

enum { SIGNALS_SAME_MS = 200 };

// Read and written by atomic operations alone: a handler may run in any thread.
static struct {
    int stop;          // the signal that asks the run to end, or 0
    int save;          // 1: SIGUSR1 was received
    int running;       // 1: there are steps to finish and to save
    long long ms;      // when the first signal came that sets `stop`, or 0
    long long save_ms; // when SIGUSR1 came last, but those passed on
} signals_;

static const struct {
    int number;
    const char* name;
} signals_ending[] = {
    {SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"}, {SIGHUP, "SIGHUP"}, {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}};
enum { NUM_SIGNALS_ENDING = sizeof(signals_ending) / sizeof(signals_ending[0]) };

static inline const char* signals_name(int number) {
    for (int i = 0; i < NUM_SIGNALS_ENDING; i++) {
        if (signals_ending[i].number == number) { return signals_ending[i].name; }
    }
    return "SIGUSR1";
}

// Adds the signals that end a run to a set.
static inline void signals_add_ending(sigset_t* set) {
    for (int i = 0; i < NUM_SIGNALS_ENDING; i++) { sigaddset(set, signals_ending[i].number); }
}

// 1 for a signal that ends the program at once where another came before
static inline int signals_is_urgent(int number) { return number == SIGTERM || number == SIGINT; }

// 1 for the signal of a write of this process, which has failed
static inline int signals_of_own_write(int number, const siginfo_t* info) {
    return number == SIGXFSZ && info->si_code == SI_USER && info->si_pid == getpid();
}

// Writes a line to stderr; async-signal-safe.
static inline void signals_say_(int number, const char* text) {
    char line[128];
    const char* name = signals_name(number);
    size_t n = strlen(name), k = strlen(text);
    memcpy(line, name, n);
    memcpy(line + n, text, k);
    terminal_line_clear();
    if (write(STDERR_FILENO, line, n + k) < 0) { return; } // stderr is closed
}

static inline void signals_end_(int number, int exit_code) {
    temporary_unlink_all();
    signals_say_(number, exit_code == 0 ? ": ending before the first step, nothing to save\n" : ": ending at once\n");
    _exit(exit_code);
}

static inline long long signals_now_(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// The value of a forwarded signal: 1 for the first that ends the run and 2 for the second one, for SIGUSR1 its time. 0 if the
// signal was not forwarded.
static inline int signals_passed_on_(const siginfo_t* info) {
    return info->si_code == SI_QUEUE && info->si_pid == getppid() ? info->si_value.sival_int : 0;
}

// Forwards a signal to a child process; `value` as above.
static inline void signals_pass_on(pid_t process, int number, int value) {
    union sigval v;
    memset(&v, 0, sizeof(v));
    v.sival_int = value;
    sigqueue(process, number, v);
}

static inline void signals_stop_handler_(int number, siginfo_t* info, void* context) {
    int error = errno, passed_on = signals_passed_on_(info);
    long long first = 0; // when the first one came
    long long ms = signals_now_();
    (void)context;
    if (signals_of_own_write(number, info)) { return; }
    if (!__atomic_load_n(&signals_.running, __ATOMIC_RELAXED)) { signals_end_(number, 0); }
    if (__atomic_compare_exchange_n(&signals_.ms, &first, ms, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        __atomic_store_n(&signals_.stop, number, __ATOMIC_RELAXED);
        signals_say_(number, ": ending after this step; another SIGTERM or SIGINT ends at once, without saving\n");
    } else if (signals_is_urgent(number) && (passed_on ? passed_on > 1 : ms - first > SIGNALS_SAME_MS)) {
        signals_end_(number, 128 + number);
    }
    errno = error;
}

// The value of a forwarded SIGUSR1: the time in ms, in 31 bits; never 0
static inline int signals_save_time(long long ms) { return (int)(ms & 0x7fffffff) | 1; }

static inline void signals_save_handler_(int number, siginfo_t* info, void* context) {
    int error = errno, passed_on = signals_passed_on_(info);
    (void)number, (void)context;
    if (passed_on != 0) { // the same signal as one received directly, if the two times are close
        long long came = __atomic_load_n(&signals_.save_ms, __ATOMIC_RELAXED);
        int apart = came ? passed_on - signals_save_time(came) : INT_MAX;
        if (apart >= -SIGNALS_SAME_MS && apart <= SIGNALS_SAME_MS) {
            errno = error;
            return;
        }
    } else {
        __atomic_store_n(&signals_.save_ms, signals_now_(), __ATOMIC_RELAXED);
    }
    __atomic_store_n(&signals_.save, 1, __ATOMIC_RELAXED);
    errno = error;
}

// Handles a signal, unless it was ignored when the program began.
static inline void signals_handle(int number, const struct sigaction* action) {
    struct sigaction before;
    if (sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN) { return; }
    sigaction(number, action, NULL);
}

// Installs the handlers, which block the signals that end a run while they run. Interrupted system calls are restarted.
static inline void signals_install(void) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    sigemptyset(&action.sa_mask);
    signals_add_ending(&action.sa_mask);
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    action.sa_sigaction = signals_stop_handler_;
    for (int i = 0; i < NUM_SIGNALS_ENDING; i++) { signals_handle(signals_ending[i].number, &action); }
    action.sa_sigaction = signals_save_handler_;
    signals_handle(SIGUSR1, &action);
}

static inline void signals_quit_handler_(int number, siginfo_t* info, void* context) {
    (void)context;
    if (signals_of_own_write(number, info)) { return; }
    temporary_unlink_all();
    signal(number, SIG_DFL);
    raise(number); // it ends the program when this handler returns
}

// For programs that have nothing to save: these signals end them at once, and leave nothing half written.
static inline void signals_install_quit(void) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    sigfillset(&action.sa_mask);
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    action.sa_sigaction = signals_quit_handler_;
    for (int i = 0; i < NUM_SIGNALS_ENDING; i++) { signals_handle(signals_ending[i].number, &action); }
}

// To be called before the first step: from here on a signal takes effect at the end of a step.
static inline void signals_begin_steps(void) { __atomic_store_n(&signals_.running, 1, __ATOMIC_RELAXED); }

// The signal that requests the end of the run, or 0.
static inline int signals_stop(void) { return __atomic_load_n(&signals_.stop, __ATOMIC_RELAXED); }

// 1 if a SIGUSR1 was received since the last call.
static inline int signals_take_save(void) { return __atomic_exchange_n(&signals_.save, 0, __ATOMIC_RELAXED); }

#endif
