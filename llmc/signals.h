/*
Signals that ask a run to end or to save. SIGTERM and SIGINT: the run finishes its step, saves, and ends with exit code 0.
SIGUSR1: it saves at the end of the step and continues. A second SIGTERM or SIGINT ends the program at once, with 128 plus the
signal as exit code, and leaves nothing half written (temporary_files.h). Before the first step there is nothing to save, and
the first signal ends the program at once.

A signal repeated within 0.2 s counts once: timeout(1) sends each twice, to the process and to its group. A
signal that was ignored when the program began (SIGINT of a job in the background) stays ignored.

The process that started this one (launch_local.h) forwards its signals by signals_pass_on(), which marks them: a terminal sends
Ctrl-C to both processes, and however late the forwarded one arrives, it counts as the same signal.
*/
#ifndef LLMC_SIGNALS_H
#define LLMC_SIGNALS_H

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

static inline const char* signals_name(int number) {
    return number == SIGTERM ? "SIGTERM" : number == SIGINT ? "SIGINT" : "SIGUSR1";
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

// The value of a forwarded signal: for SIGTERM and SIGINT 1 for the first and 2 for the second one, for SIGUSR1 its time. 0 if
// the signal was not forwarded.
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
    if (!__atomic_load_n(&signals_.running, __ATOMIC_RELAXED)) { signals_end_(number, 0); }
    if (__atomic_compare_exchange_n(&signals_.ms, &first, ms, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        __atomic_store_n(&signals_.stop, number, __ATOMIC_RELAXED);
        signals_say_(number, ": ending after this step; a second one ends at once, without saving\n");
    } else if (passed_on ? passed_on > 1 : ms - first > SIGNALS_SAME_MS) {
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

// Installs the handlers, which block SIGTERM and SIGINT while they run. Interrupted system calls are restarted.
static inline void signals_install(void) {
    struct sigaction action, old;
    memset(&action, 0, sizeof(action));
    sigemptyset(&action.sa_mask);
    sigaddset(&action.sa_mask, SIGTERM);
    sigaddset(&action.sa_mask, SIGINT);
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    static const int numbers[] = {SIGTERM, SIGINT, SIGUSR1};
    for (int i = 0; i < 3; i++) {
        action.sa_sigaction = numbers[i] == SIGUSR1 ? signals_save_handler_ : signals_stop_handler_;
        if (sigaction(numbers[i], NULL, &old) == 0 && old.sa_handler == SIG_IGN) { continue; }
        sigaction(numbers[i], &action, NULL);
    }
}

// To be called before the first step: from here on a signal takes effect at the end of a step.
static inline void signals_begin_steps(void) { __atomic_store_n(&signals_.running, 1, __ATOMIC_RELAXED); }

// The signal that requests the end of the run, or 0.
static inline int signals_stop(void) { return __atomic_load_n(&signals_.stop, __ATOMIC_RELAXED); }

// 1 if a SIGUSR1 was received since the last call.
static inline int signals_take_save(void) { return __atomic_exchange_n(&signals_.save, 0, __ATOMIC_RELAXED); }

#endif
