// llmc/run/step_times.h: a run's time is found again under its key, whatever else stands in the file.
#include "llmc/run/step_times.h"

#include "dev/test/fixtures/unit.h"

static void write_run(const char* key, double seconds) {
    static StepTimes times;
    memset(&times, 0, sizeof(times));
    for (int i = 0; i < STEP_TIMES_LEAST; i++) { step_times_add(&times, seconds); }
    step_times_write(key, &times);
}

static int time_is(const char* key, double expected) {
    double milliseconds = 0.0;
    int steps = 0;
    return step_times_read(key, &milliseconds, &steps) && fabs(milliseconds - expected) <= 1e-3 &&
           steps == STEP_TIMES_LEAST;
}

static void each_key_has_its_time(void) {
    double milliseconds;
    int steps;
    write_run("a key", 0.25);
    write_run("another", 0.5);
    CHECK(time_is("a key", 250.0) && time_is("another", 500.0));
    write_run("a key", 0.125);
    CHECK(time_is("a key", 125.0) && time_is("another", 500.0));
    CHECK(!step_times_read("a", &milliseconds, &steps));
}

// Lines that no run has written, as a crash of the machine leaves them, are dropped, and no byte beside a line is touched.
static void damage_is_dropped(const char* path) {
    static const char damage[] = "\0\0\0\nx\n\n1.5\n7.0000 20 kept\n\0";
    unit_write(path, damage, sizeof(damage) - 1);
    write_run("a key", 0.25);
    CHECK(unit_file_is(path, "250.0000 20 a key\n7.0000 20 kept\n"));
}

int main(void) {
    char path[512];
    snprintf(path, sizeof(path), "%s/flashgpt/step_times", unit_path("cache"));
    setenv("XDG_CACHE_HOME", unit_path("cache"), 1);
    each_key_has_its_time();
    damage_is_dropped(path);
    remove(path);
    *strrchr(path, '/') = '\0';
    rmdir(path);
    rmdir(unit_path("cache"));
    return unit_end();
}
