// llmc/base/watchdog.h: which steps are said to hang, when, and how often. Times are given, but for the thread's own.
#include "llmc/base/watchdog.h"

#include "dev/test/fixtures/unit.h"

static double now; // what the steps take for the time

static void step(Watchdog* w, int number, double seconds) {
    watchdog_begin(w, number, now);
    now += seconds;
    watchdog_end(w, now);
    now += 1.0; // what is between steps does not count
}

// The lines that the steps of `run` write on stderr, in a process of its own, without the thread. They stay until the
// next call.
static const UnitChild* lines(void (*run)(Watchdog*)) {
    static UnitChild child;
    if (unit_fork()) {
        Watchdog w;
        watchdog_start(&w);
        watchdog_stop(&w);
        run(&w);
        _exit(50);
    }
    child = unit_wait();
    CHECK(child.exit_code == 50);
    return &child;
}

static void usual(Watchdog* w) {
    step(w, 1, 100.0); // warms up
    for (int i = 2; i < 100; i++) { step(w, i, 0.3 + 0.05 * (i % 5)); }
    step(w, 100, 4.9); // 12 times the median, below 5 s
}
static void slow_but_short(Watchdog* w) {
    for (int i = 1; i < 20; i++) { step(w, i, 0.001); }
    step(w, 20, 4.99); // 4990 times the median
}
static void hangs(Watchdog* w) {
    for (int i = 1; i < 20; i++) { step(w, i, 1.0); }
    step(w, 20, 20.0); // not more than 20 times
    step(w, 21, 20.1);
    step(w, 22, 1.0);
}
static void too_early(Watchdog* w) {
    step(w, 1, 1.0);
    for (int i = 2; i < 2 + WATCHDOG_LEAST_STEPS; i++) { step(w, i, i == 1 + WATCHDOG_LEAST_STEPS ? 1e3 : 1.0); }
}
static void median_of_the_last(Watchdog* w) {
    for (int i = 0; i < 1000; i++) { step(w, i, 1e-3); }
    for (int i = 0; i < WATCHDOG_WINDOW / 2 + 1; i++) { step(w, 1000 + i, 4.0); } // most of the window now
    step(w, 2000, 79.0);
    step(w, 2001, 81.0);
}

static void hangs_again(Watchdog* w) {
    for (int i = 1; i < 20; i++) { step(w, i, 1.0); }
    step(w, 20, 21.0);
    step(w, 21, 1.0);
    step(w, 22, 22.0);
    step(w, 23, 23.0);
}

static void every_hang_is_said(void) {
    const UnitChild* child = lines(hangs_again);
    CHECK(strcmp(child->text, "warning: step 20 took 21.0 s, 21 times the usual 1 s\n"
                              "warning: step 22 took 22.0 s, 22 times the usual 1 s\n"
                              "warning: step 23 took 23.0 s, 23 times the usual 1 s\n") == 0);
}

// The thread looks at a second step that hangs as at the first: once each.
static void looks_at_two(Watchdog* w) {
    for (int i = 1; i < 20; i++) { step(w, i, 1.0); }
    for (int i = 20; i < 22; i++) {
        watchdog_begin(w, i, now);
        for (int k = 0; k < 3; k++) { watchdog_look_(w, now + 20.0 + k); } // once it is not yet too long
        now += 1.0;
        watchdog_end(w, now);
    }
}

static void the_second_hang_is_said_while_it_lasts(void) {
    const UnitChild* child = lines(looks_at_two);
    CHECK(strcmp(child->text, "warning: step 20 has taken 21.0 s so far, 21 times the usual 1 s; waiting\n"
                              "warning: step 21 has taken 21.0 s so far, 21 times the usual 1 s; waiting\n") == 0);
}

static void what_is_said_when_a_step_ends(void) {
    CHECK(lines(usual)->length == 0);
    CHECK(lines(slow_but_short)->length == 0);
    CHECK(lines(too_early)->length == 0);
    const UnitChild* child = lines(hangs);
    CHECK(strcmp(child->text, "warning: step 21 took 20.1 s, 20 times the usual 1 s\n") == 0);
    child = lines(median_of_the_last);
    CHECK(strcmp(child->text, "warning: step 2001 took 81.0 s, 20 times the usual 4 s\n") == 0);
}

// With real times, and limits that a test can wait for: the thread says it once, while the step hangs.
static void the_thread_says_it_while_it_hangs(void) {
    if (unit_fork()) {
        Watchdog w;
        struct timespec nap = {1, 0};
        watchdog_start(&w);
        w.least_seconds = 0.5;
        for (int i = 1; i < 10; i++) {
            watchdog_begin(&w, i, wall_seconds());
            watchdog_end(&w, wall_seconds());
        }
        watchdog_begin(&w, 10, wall_seconds());
        nanosleep(&nap, NULL);
        fprintf(stderr, "ends\n");
        watchdog_end(&w, wall_seconds());
        nanosleep(&nap, NULL); // between steps nothing hangs
        watchdog_stop(&w);
        _exit(50);
    }
    UnitChild child = unit_wait();
    const char* so_far = "warning: step 10 has taken ";
    const char* end = strstr(child.text, "ends\nwarning: step 10 took ");
    CHECK(child.exit_code == 50 && strncmp(child.text, so_far, strlen(so_far)) == 0 && end != NULL);
    int count = 0;
    for (size_t i = 0; i < child.length; i++) { count += child.text[i] == '\n'; }
    CHECK(count == 3);
}

int main(void) {
    double start = wall_seconds();
    what_is_said_when_a_step_ends();
    every_hang_is_said();
    the_second_hang_is_said_while_it_lasts();
    the_thread_says_it_while_it_hangs();
    CHECK(wall_seconds() - start < 30.0);
    return unit_end();
}
