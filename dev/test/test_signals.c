// llmc/signals.h and llmc/temporary_files.h: what a first and a second signal do, and that no .tmp file outlives them.
#include "llmc/signals.h"

#include "llmc/atomic_file.h"
#include "unit.h"

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

static void ignored_signals_stay_ignored(void) {
    if (unit_fork()) {
        signal(SIGINT, SIG_IGN);
        signals_install();
        signals_begin_steps();
        raise(SIGINT);
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
    first_signal_waits_for_the_step(SIGTERM);
    first_signal_waits_for_the_step(SIGINT);
    second_signal_leaves_nothing_half_written(SIGTERM, SIGTERM);
    second_signal_leaves_nothing_half_written(SIGTERM, SIGINT);
    before_the_first_step_a_signal_ends_at_once();
    two_threads_take_one_signal();
    sigusr1_is_taken_once();
    ignored_signals_stay_ignored();
    slots_are_given_back();
    return unit_end();
}
