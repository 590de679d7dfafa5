// llmc/base/signals.h and atomic_file.h: what a first and a second signal do, and that no .tmp file outlives them.
#include "llmc/base/signals.h"

#include <sys/resource.h>

#include "llmc/base/atomic_file.h"
#include "dev/test/fixtures/unit.h"

static void sleep_ms(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&t, &t) != 0) {}
}

static void first_signal_waits_for_the_step(int number) {
    if (unit_fork()) {
        signals_install();
        signals_begin_steps();
        int before = signals_stop();
        raise(number);
        raise(number); // timeout(1) sends it twice at once
        _exit(before == 0 && signals_stop() == number ? 50 : 51);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 50);
    CHECK(strncmp(child.text, signals_name(number), strlen(signals_name(number))) == 0);
    CHECK(strstr(child.text, "ending after this step") != NULL &&
          strchr(child.text, '\n') == child.text + child.length - 1);
}

// The second signal ends at once; the file under way has no name any more, what was there before is whole.
static void second_signal_leaves_nothing_half_written(int first, int second) {
    const char* path = unit_path("file");
    unit_write(path, "whole", 5);
    if (unit_fork()) {
        AtomicFile file, other;
        signals_install();
        signals_begin_steps();
        check(atomic_open(&file, path));
        check(atomic_write(&file, "half", 4));
        check(atomic_open(&other, unit_path("done")));
        check(atomic_commit(&other));
        raise(first);
        sleep_ms(SIGNALS_SAME_MS + 50);
        raise(second);
        _exit(50);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 128 + second);
    CHECK(strstr(child.text, "ending at once") != NULL);
    CHECK(unit_file_is(path, "whole") && !file_exists(unit_path("file.tmp")));
    CHECK(file_exists(unit_path("done")) && !file_exists(unit_path("done.tmp")));
    unit_clean();
}

// SIGXCPU comes every second, SIGHUP from the terminal and from its shell: they never end a run that is saving.
static void only_sigterm_and_sigint_end_at_once(int number) {
    if (unit_fork()) {
        signals_install();
        signals_begin_steps();
        raise(SIGTERM);
        sleep_ms(SIGNALS_SAME_MS + 50);
        raise(number);
        _exit(signals_stop() == SIGTERM ? 50 : 51);
    }
    CHECK(unit_wait().exit_code == 50);
}

// The limit on processor time is told again each second: the run has until the hard limit.
static void the_limit_on_time_ends_the_run_once(void) {
    if (unit_fork()) {
        const struct rlimit limit = {1, 30};
        struct timespec used = {0, 0};
        signals_install();
        signals_begin_steps();
        if (setrlimit(RLIMIT_CPU, &limit) != 0) { _exit(52); }
        while (used.tv_sec * 10 + used.tv_nsec / 100000000 < 23) { clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used); }
        _exit(signals_stop() == SIGXCPU ? 50 : 51);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 50 && strstr(child.text, "SIGXCPU: ending after this step") != NULL);
}

// A write beyond the limit on files fails as on a full disk; it does not end the run, nor a program without steps.
static void a_write_beyond_the_limit_is_a_failed_one(void (*install)(void)) {
    const char* path = unit_path("limited");
    if (unit_fork()) {
        const struct rlimit limit = {100, RLIM_INFINITY};
        AtomicFile file;
        static char data[200];
        install();
        if (setrlimit(RLIMIT_FSIZE, &limit) != 0) { _exit(52); }
        for (int running = 0; running < 2; running++) {
            check(atomic_open(&file, path));
            (void)atomic_write(&file, data, sizeof(data));
            if (atomic_commit(&file) == STATUS_OK || strstr(status_message(), strerror(EFBIG)) == NULL) { _exit(51); }
            signals_begin_steps();
        }
        _exit(signals_stop() == 0 ? 50 : 53);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 50 && child.length == 0 && !file_exists(unit_path("limited.tmp")));
}

// Programs without steps end by the signal, and leave nothing half written.
static void a_program_without_steps_quits(int number) {
    if (unit_fork()) {
        const struct rlimit no_core = {0, 0};
        AtomicFile file;
        setrlimit(RLIMIT_CORE, &no_core);
        signals_install_quit();
        check(atomic_open(&file, unit_path("half")));
        raise(number);
        _exit(50);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == -1 && child.length == 0 && !file_exists(unit_path("half.tmp")));
}

static void before_the_first_step_a_signal_ends_at_once(void) {
    if (unit_fork()) {
        AtomicFile file;
        signals_install();
        check(atomic_open(&file, unit_path("main.log")));
        raise(SIGTERM);
        _exit(50);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0 && strstr(child.text, "nothing to save") != NULL);
    CHECK(!file_exists(unit_path("main.log.tmp")) && !file_exists(unit_path("main.log")));
}

// timeout(1)'s two signals may run the handler in two threads at a time: the one that comes second, before the first has
// written down when it came, does not end the program.
static void two_threads_take_one_signal(void) {
    if (unit_fork()) {
        signals_install();
        signals_begin_steps();
        signals_.stop = SIGTERM;
        raise(SIGTERM);
        _exit(signals_stop() == SIGTERM ? 50 : 51);
    }
    CHECK(unit_wait().exit_code == 50);
}

static void sigusr1_is_taken_once(void) {
    if (unit_fork()) {
        signals_install();
        signals_begin_steps();
        int before = signals_take_save();
        raise(SIGUSR1);
        int taken = signals_take_save(), again = signals_take_save();
        _exit(!before && taken && !again && signals_stop() == 0 ? 50 : 51);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 50 && child.length == 0);
}

static void ignored_signals_stay_ignored(int number) {
    if (unit_fork()) {
        signal(number, SIG_IGN);
        signals_install();
        signals_install_quit();
        signals_begin_steps();
        raise(number);
        _exit(signals_stop() == 0 ? 50 : 51);
    }
    CHECK(unit_wait().exit_code == 50);
}

// Every file that is under way is known, and a slot is free again when its file is done, also where it failed.
static void slots_are_given_back(void) {
    static AtomicFile files[TEMPORARY_FILES];
    char name[32];
    for (int round = 0; round < 3; round++) {
        int named = 0, distinct = 1;
        for (int i = 0; i < TEMPORARY_FILES; i++) {
            snprintf(name, sizeof(name), "slot%d", i);
            check(atomic_open(&files[i], unit_path(name)));
            named += temporary_files[i].state == TEMPORARY_NAMED;
            for (int j = 0; j < i; j++) { distinct = distinct && files[i].slot != files[j].slot; }
        }
        AtomicFile more;
        CHECK(named == TEMPORARY_FILES && distinct);
        CHECK(atomic_open(&more, unit_path("more")) == STATUS_OK && more.slot == -1); // works, but is not known
        atomic_abandon(&more);
        CHECK(atomic_open(&more, "/nowhere/at/all") == STATUS_ERROR);
        for (int i = 0; i < TEMPORARY_FILES; i++) {
            if (i % 2 == round % 2) {
                atomic_abandon(&files[i]);
            } else {
                check(atomic_commit(&files[i]));
            }
        }
        int free_slots = 0;
        for (int i = 0; i < TEMPORARY_FILES; i++) { free_slots += temporary_files[i].state == TEMPORARY_FREE; }
        CHECK(free_slots == TEMPORARY_FILES);
        CHECK(atomic_open(&more, "/nowhere/at/all") == STATUS_ERROR);
    }
    CHECK(temporary_files[0].state == TEMPORARY_FREE);
    unit_clean();
}

int main(void) {
    signal(SIGINT, SIG_DFL); // a shell's background job begins with SIGINT ignored, which would stay so
    for (int i = 0; i < NUM_SIGNALS_ENDING; i++) {
        int number = signals_ending[i].number;
        first_signal_waits_for_the_step(number);
        second_signal_leaves_nothing_half_written(number, SIGTERM);
        a_program_without_steps_quits(number);
        ignored_signals_stay_ignored(number);
        if (number != SIGTERM && number != SIGINT) { only_sigterm_and_sigint_end_at_once(number); }
    }
    the_limit_on_time_ends_the_run_once();
    a_write_beyond_the_limit_is_a_failed_one(signals_install);
    a_write_beyond_the_limit_is_a_failed_one(signals_install_quit);
    second_signal_leaves_nothing_half_written(SIGTERM, SIGINT);
    before_the_first_step_a_signal_ends_at_once();
    two_threads_take_one_signal();
    sigusr1_is_taken_once();
    slots_are_given_back();
    return unit_end();
}
