/*
Signals that ask a run to end or to save. SIGTERM, SIGINT, SIGHUP (the terminal is gone), SIGXCPU (a limit on processor time)
and SIGXFSZ: the run finishes its step, saves, and ends with exit code 0. SIGUSR1: it saves at the end of the step and
continues. A SIGTERM or SIGINT after one of them ends the program at once, with 128 plus the signal as exit code, and leaves
nothing half written (atomic_file.h). The others never do: SIGXCPU comes every second, SIGHUP from the terminal and from its
shell. Before the first step there is nothing to save, and the first signal ends the program at once.

The SIGXFSZ of a write of ours beyond the limit on files does not count: the write fails with EFBIG, as on a full disk.

A signal repeated within half a second counts once: timeout(1) sends each to the process and to its group, and Ctrl-C reaches a
process from the terminal and from the parent that forwards it (launch.h). A signal that was ignored when the program
began (SIGINT of a job in the background, SIGHUP under nohup) stays ignored.
*/
#ifndef LLMC_BASE_SIGNALS_H
#define LLMC_BASE_SIGNALS_H

#include <signal.h>

#include "atomic_file.h"
#include "utils.h"

enum { SIGNALS_SAME_MS = 500 };

// Read and written by atomic operations alone: a handler may run in any thread.
static struct {
    int stop;     // the signal that asks the run to end, or 0
    int save;     // 1: SIGUSR1 was received
    int running;  // 1: there are steps to finish and to save
    long long ms; // when the first signal came that sets `stop`, or 0
} signals_;

// SIGUSR1 is the last.
static const struct {
    int number;
    const char* name;
} signals_ending[] = {{SIGTERM, "SIGTERM"}, {SIGINT, "SIGINT"},   {SIGHUP, "SIGHUP"},
                      {SIGXCPU, "SIGXCPU"}, {SIGXFSZ, "SIGXFSZ"}, {SIGUSR1, "SIGUSR1"}};
enum { NUM_SIGNALS_ENDING = sizeof(signals_ending) / sizeof(signals_ending[0]) - 1 };

static inline const char* signals_name(int number) {
    int i = 0;
    while (i < NUM_SIGNALS_ENDING && signals_ending[i].number != number) { i++; }
    return signals_ending[i].name;
}

static inline int signals_is_ignored_(int number) {
    struct sigaction before;
    return sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_IGN;
}

// Returns all of these signals and SIGUSR1, but those that were ignored when the program began.
static inline sigset_t signals_all(void) {
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i <= NUM_SIGNALS_ENDING; i++) {
        if (!signals_is_ignored_(signals_ending[i].number)) { sigaddset(&set, signals_ending[i].number); }
    }
    return set;
}

// 1 for a signal that ends the program at once where another came before
static inline int signals_is_urgent_(int number) { return number == SIGTERM || number == SIGINT; }

// 1 for the signal of a write of this process, which has failed
static inline int signals_of_own_write(int number, const siginfo_t* info) {
    return number == SIGXFSZ && info->si_code == SI_USER && info->si_pid == getpid();
}

// Writes a line to stderr, which begins with the rank of one of several processes; async-signal-safe.
static inline void signals_say_(int number, const char* text) {
    char line[256];
    const char* parts[] = {error_line.process, error_line.process[0] ? ": " : "", signals_name(number), text};
    size_t n = 0;
    for (int i = 0; i < 4; i++) {
        memcpy(line + n, parts[i], strlen(parts[i]));
        n += strlen(parts[i]);
    }
    terminal_line_clear();
    if (write(STDERR_FILENO, line, n) < 0) { return; } // stderr is closed
}

static inline void signals_end_(int number, int exit_code) {
    temporary_unlink_all();
    signals_say_(number, exit_code == 0 ? ": ending before the first step, nothing to save\n" : ": ending at once\n");
    _exit(exit_code);
}

static inline void signals_handler_(int number, siginfo_t* info, void* context) {
    int error = errno;
    long long first = 0, ms = (long long)(wall_seconds() * 1e3); // when the first one came, and this one
    (void)context;
    if (signals_of_own_write(number, info)) { return; }
    if (number == SIGUSR1) {
        __atomic_store_n(&signals_.save, 1, __ATOMIC_RELAXED);
        return;
    }
    if (!__atomic_load_n(&signals_.running, __ATOMIC_RELAXED)) { signals_end_(number, 0); }
    if (__atomic_compare_exchange_n(&signals_.ms, &first, ms, 0, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        __atomic_store_n(&signals_.stop, number, __ATOMIC_RELAXED);
        signals_say_(number, ": ending after this step; another SIGTERM or SIGINT ends at once, without saving\n");
    } else if (signals_is_urgent_(number) && ms - first > SIGNALS_SAME_MS) {
        signals_end_(number, 128 + number);
    }
    errno = error;
}

static inline void signals_handle_(int number, void (*handler)(int, siginfo_t*, void*)) {
    struct sigaction action;
    memset(&action, 0, sizeof(action));
    action.sa_mask = signals_all();
    action.sa_flags = SA_RESTART | SA_SIGINFO;
    action.sa_sigaction = handler;
    if (!signals_is_ignored_(number)) { sigaction(number, &action, NULL); }
}

// Installs the handlers, which block these signals while they run. Interrupted system calls are restarted.
static inline void signals_install(void) {
    for (int i = 0; i <= NUM_SIGNALS_ENDING; i++) { signals_handle_(signals_ending[i].number, signals_handler_); }
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
    for (int i = 0; i < NUM_SIGNALS_ENDING; i++) { signals_handle_(signals_ending[i].number, signals_quit_handler_); }
}

// To be called before the first step: from here on a signal takes effect at the end of a step.
static inline void signals_begin_steps(void) { __atomic_store_n(&signals_.running, 1, __ATOMIC_RELAXED); }

// The signal that requests the end of the run, or 0.
static inline int signals_stop(void) { return __atomic_load_n(&signals_.stop, __ATOMIC_RELAXED); }

// 1 if a SIGUSR1 was received since the last call.
static inline int signals_take_save(void) { return __atomic_exchange_n(&signals_.save, 0, __ATOMIC_RELAXED); }

#endif
