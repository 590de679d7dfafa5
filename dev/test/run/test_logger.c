// llmc/run/logger.h: what stands in main.log after a run, and after one that was stopped and resumed; and what becomes of lines
// that cannot be written.
#include "llmc/run/logger.h"

#include <signal.h>
#include <sys/resource.h>

#include "dev/test/fixtures/unit.h"

static const char* folder(void) {
    unit_path("main.log"); // makes the directory
    return unit_folder;
}

// What the trainer writes for steps first..last: a validation every other step, before the step; an evaluation at step 4.
static void run(Logger* logger, int first, int last) {
    for (int step = first; step <= last; step++) {
        if (step % 2 == 0) { logger_val(logger, step, 5.0f - 0.25f * (float)step); }
        if (step == 4) { logger_eval(logger, step, 0.2875f); }
        logger_train(logger, step, 6.0f - 0.5f * (float)step, 3e-4f / (float)(step + 1), 1.5f + (float)step);
    }
}

static const char* uninterrupted = "s:0 tel:5.000000\n"
                                   "s:0 trl:6.000000 lr:3.000000e-04 norm:1.5000\n"
                                   "s:1 trl:5.500000 lr:1.500000e-04 norm:2.5000\n"
                                   "s:2 tel:4.500000\n"
                                   "s:2 trl:5.000000 lr:1.000000e-04 norm:3.5000\n"
                                   "s:3 trl:4.500000 lr:7.500000e-05 norm:4.5000\n"
                                   "s:4 tel:4.000000\n"
                                   "s:4 eval:0.2875\n"
                                   "s:4 trl:4.000000 lr:6.000000e-05 norm:5.5000\n";

static void a_new_run_starts_an_empty_log(void) {
    Logger logger;
    unit_write(unit_path("main.log"), "s:7 trl:1.0\n", 12);
    logger_open(&logger, folder(), -1, 0);
    run(&logger, 0, 4);
    CHECK(unit_file_is(unit_path("main.log"), uninterrupted));
}

// The run stopped after step `stopped`; its last checkpoint was made at step `checkpoint`, before that step's training.
static void a_resumed_log_equals_the_uninterrupted_one(int stopped, int checkpoint) {
    Logger logger;
    logger_open(&logger, folder(), -1, 0);
    run(&logger, 0, stopped);
    logger_open(&logger, folder(), checkpoint, 0);
    run(&logger, checkpoint, 4);
    CHECK(unit_file_is(unit_path("main.log"), uninterrupted));
    CHECK(!file_exists(unit_path("main.log.tmp")));
}

static void a_line_that_was_cut_short_goes(void) {
    static const char* cut = "s:0 tel:5.000000\ns:1 trl:5.5";
    Logger logger;
    unit_write(unit_path("main.log"), cut, strlen(cut));
    logger_open(&logger, folder(), 9, 0);
    CHECK(unit_file_is(unit_path("main.log"), "s:0 tel:5.000000\n"));
}

static void other_lines_stay(void) {
    static const char* notes = "# lr was halved by hand\ns:3 tel:4.0000\ns:12 tel:2.0000\n\n";
    Logger logger;
    unit_write(unit_path("main.log"), notes, strlen(notes));
    logger_open(&logger, folder(), 12, 0);
    CHECK(unit_file_is(unit_path("main.log"), "# lr was halved by hand\ns:3 tel:4.0000\n\n"));
    logger_open(&logger, folder(), 0, 0);
    CHECK(unit_file_is(unit_path("main.log"), "# lr was halved by hand\n\n"));
}

// The end of a schedule, which six decimals would round to 0.000000, and a rate whose last digits they would lose
static void small_learning_rates_keep_their_digits(void) {
    Logger logger;
    logger_open(&logger, folder(), -1, 0);
    logger_train(&logger, 0, 1.0f, 1.234567e-8f, 1.0f);
    logger_train(&logger, 1, 1.0f, 0.0f, 1.0f);
    logger_train(&logger, 2, 1.0f, 6.012345e-4f, 1.0f);
    CHECK(unit_file_is(unit_path("main.log"), "s:0 trl:1.000000 lr:1.234567e-08 norm:1.0000\n"
                                              "s:1 trl:1.000000 lr:0.000000e+00 norm:1.0000\n"
                                              "s:2 trl:1.000000 lr:6.012345e-04 norm:1.0000\n"));
}

static void the_first_line_is_the_run(void) {
    static const char* notes = "s:0 run:7\ns:3 tel:4.0000\ns:12 tel:2.0000\n";
    Logger logger;
    remove(unit_path("main.log"));
    CHECK(logger_read_run(folder()) == 0);
    logger_open(&logger, folder(), -1, UINT64_MAX);
    logger_val(&logger, 0, 1.0f);
    CHECK(unit_file_is(unit_path("main.log"), "s:0 run:18446744073709551615\ns:0 tel:1.000000\n"));
    CHECK(logger_read_run(folder()) == UINT64_MAX);
    unit_write(unit_path("main.log"), notes, strlen(notes));
    CHECK(logger_read_run(folder()) == 7);
    logger_open(&logger, folder(), 12, 7); // it stays, once, and at the top
    CHECK(unit_file_is(unit_path("main.log"), "s:0 run:7\ns:3 tel:4.0000\n"));
    logger_open(&logger, folder(), 12, 8);
    CHECK(unit_file_is(unit_path("main.log"), "s:0 run:8\ns:3 tel:4.0000\n"));
    logger_open(&logger, folder(), 2, 8);
    CHECK(unit_file_is(unit_path("main.log"), "s:0 run:8\n"));
    unit_write(unit_path("main.log"), "s:3 tel:4.0000\n", 15); // of an older version
    CHECK(logger_read_run(folder()) == 0);
    logger_open(&logger, folder(), 4, 9);
    CHECK(unit_file_is(unit_path("main.log"), "s:0 run:9\ns:3 tel:4.0000\n"));
    remove(unit_path("main.log"));
    CHECK(symlink("/dev/full", unit_path("main.log")) == 0); // which has no end
    CHECK(logger_read_run(folder()) == 0);
    alarm(20); // which ends the test where it waits
    CHECK_FATAL("main.log|it is a pipe or a device", logger_open(&logger, folder(), 3, 7));
    remove(unit_path("main.log"));
    CHECK(mkfifo(unit_path("main.log"), 0644) == 0 && logger_read_run(folder()) == 0);
    CHECK_FATAL("main.log|it is a pipe or a device", logger_open(&logger, folder(), 3, 7));
    CHECK_FATAL("main.log|it is a pipe or a device", logger_open(&logger, folder(), -1, 7));
    alarm(0);
    remove(unit_path("main.log"));
}

// ----------------------------------------------------------------------------
// A log that cannot be written

static char said[4096]; // on stderr, since say_to_file()
static int stderr_before;

static void say_to_file(void) {
    fflush(stderr);
    stderr_before = dup(STDERR_FILENO);
    int fd = open(unit_path("stderr"), O_WRONLY | O_CREAT | O_TRUNC, 0644);
    if (fd < 0 || dup2(fd, STDERR_FILENO) < 0) { fatal("cannot write to a file"); }
    close(fd);
}

static void read_what_was_said(void) {
    size_t bytes;
    fflush(stderr);
    dup2(stderr_before, STDERR_FILENO);
    close(stderr_before);
    char* text = unit_read(unit_path("stderr"), &bytes);
    snprintf(said, sizeof(said), "%s", text);
    free(text);
}

static int count(const char* word) {
    int n = 0;
    for (const char* c = said; (c = strstr(c, word)) != NULL; c++) { n++; }
    return n;
}

static void fill_the_disk(void) {
    if (rename(unit_path("main.log"), unit_path("kept.log")) != 0 || symlink("/dev/full", unit_path("main.log")) != 0) {
        fatal("cannot replace main.log");
    }
}

static void empty_the_disk(void) {
    if (rename(unit_path("kept.log"), unit_path("main.log")) != 0) { fatal("cannot bring main.log back"); }
}

static void lines_wait_until_there_is_room(void) {
    Logger logger;
    logger_open(&logger, folder(), -1, 0);
    run(&logger, 0, 1);
    say_to_file();
    fill_the_disk();
    run(&logger, 2, 3);
    empty_the_disk();
    run(&logger, 4, 4);
    fill_the_disk(); // a second time
    empty_the_disk();
    logger_close(&logger);
    read_what_was_said();
    CHECK(unit_file_is(unit_path("main.log"), uninterrupted));
    CHECK(count("warning: cannot write") == 1 && count("main.log: No space left on device; the run continues") == 1);
    CHECK(count("can be written again") == 1);
}

static void what_never_found_room_is_said_at_the_end(void) {
    Logger logger;
    logger_open(&logger, folder(), -1, 0);
    say_to_file();
    fill_the_disk();
    run(&logger, 0, 4); // 9 lines
    logger_close(&logger);
    logger_close(&logger); // says nothing more
    empty_the_disk();
    read_what_was_said();
    CHECK(count("warning: ") == 2 && count("its last 9 lines are missing") == 1);
    CHECK(unit_file_is(unit_path("main.log"), ""));
}

// A log of a folder that is the run's no longer waits; one that was deleted begins anew, and that is said.
static void a_deleted_log_begins_anew(void) {
    Logger logger;
    RunFolder held;
    check(run_folder_lock(&held, folder()));
    held.flags = "", held.flags_bytes = 0;
    logger_open(&logger, folder(), -1, 0);
    logger.folder = &held;
    logger_val(&logger, 0, 1.0f);
    say_to_file();
    remove(unit_path("main.lock"));
    logger_val(&logger, 1, 1.0f);
    CHECK(unit_file_is(unit_path("main.log"), "s:0 tel:1.000000\n"));
    remove(unit_path("main.log"));
    check(run_folder_hold(&held));
    logger_val(&logger, 2, 1.0f);
    remove(unit_path("main.log")); // between two lines
    logger_val(&logger, 3, 1.0f);
    logger_val(&logger, 4, 1.0f);
    read_what_was_said();
    CHECK(unit_file_is(unit_path("main.log"), "s:3 tel:1.000000\ns:4 tel:1.000000\n"));
    CHECK(count("main.log: its folder is gone, or another run's; the run continues") == 1);
    CHECK(count("main.log was deleted and begins anew; its earlier lines are missing") == 2 && count(" 0 lines") == 0);
    logger_close(&logger);
    run_folder_unlock(&held);
    unit_clean();
}

// More lines than memory is kept for: those that wait are whole, and how many are lost is said.
static void memory_stays_bounded(void) {
    Logger logger;
    logger_open(&logger, folder(), -1, 0);
    say_to_file();
    fill_the_disk();
    for (int i = 0; i < 100000; i++) { logger_val(&logger, i, 1.0f); }
    CHECK(logger.pending_bytes <= LOGGER_PENDING && logger.lost > 0);
    size_t lost = logger.lost;
    empty_the_disk();
    logger_val(&logger, 100000, 1.0f);
    logger_val(&logger, 100001, 1.0f);
    CHECK(logger.pending_bytes == 0 && logger.lost == 0);
    read_what_was_said();
    char lacks[64];
    snprintf(lacks, sizeof(lacks), "%zu lines from the meantime are missing", lost);
    CHECK(count(lacks) == 1);
    size_t bytes;
    char* text = unit_read(unit_path("main.log"), &bytes);
    CHECK(strncmp(text, "s:0 tel:1.000000\n", 17) == 0);
    CHECK(strcmp(text + bytes - 22, "s:100001 tel:1.000000\n") == 0);
    free(text);
    logger_close(&logger);
}

// The file may grow to `bytes` and no further: a line is there as a whole or not at all.
static void a_line_is_never_cut(void) {
    for (rlim_t bytes = 1; bytes < 60; bytes += 7) {
        if (unit_fork()) {
            Logger logger;
            struct rlimit limit = {bytes, bytes};
            signal(SIGXFSZ, SIG_IGN);
            logger_open(&logger, folder(), -1, 0);
            setrlimit(RLIMIT_FSIZE, &limit);
            for (int i = 0; i < 9; i++) { logger_val(&logger, i, 1.0f); } // 17 bytes each
            struct stat st;
            _exit(stat(logger.path, &st) == 0 && (size_t)st.st_size == bytes / 17 * 17 ? 0 : 1);
        }
        CHECK(unit_wait().exit_code == 0);
    }
}

static void stdout_that_is_full_is_said_once(void) {
    for (int full = 0; full <= 1; full++) {
        if (unit_fork()) {
            int failed = 0, told = 0;
            if (freopen(full ? "/dev/full" : "/dev/null", "w", stdout) == NULL) { _exit(9); }
            for (int i = 0; i < 5; i++) {
                printf("a line\n");
                told += stdout_flush(&failed);
            }
            _exit(told == (full ? 5 : 0) ? 0 : 1);
        }
        UnitChild child = unit_wait();
        snprintf(said, sizeof(said), "%s", child.text);
        CHECK(child.exit_code == 0 && count("warning: cannot write stdout: No space left") == full);
        CHECK(full || child.length == 0);
    }
}

static void without_a_directory_nothing_is_written(void) {
    Logger logger;
    remove(unit_path("main.log"));
    logger_open(&logger, NULL, -1, 0);
    run(&logger, 0, 4);
    CHECK(!logger.active);
    CHECK(!file_exists(unit_path("main.log")));
}

int main(void) {
    Logger logger;
    a_new_run_starts_an_empty_log();
    for (int checkpoint = 0; checkpoint <= 5; checkpoint++) {
        for (int stopped = checkpoint - 1; stopped <= 4; stopped++) {
            a_resumed_log_equals_the_uninterrupted_one(stopped, checkpoint);
        }
    }
    a_line_that_was_cut_short_goes();
    other_lines_stay();
    small_learning_rates_keep_their_digits();
    the_first_line_is_the_run();
    lines_wait_until_there_is_room();
    what_never_found_room_is_said_at_the_end();
    a_deleted_log_begins_anew();
    memory_stays_bounded();
    a_line_is_never_cut();
    stdout_that_is_full_is_said_once();
    remove(unit_path("main.log"));
    logger_open(&logger, folder(), 3, 0); // a resumed run whose log was deleted
    CHECK(unit_file_is(unit_path("main.log"), ""));
    without_a_directory_nothing_is_written();
    struct rlimit limit = {5, 5};
    signal(SIGXFSZ, SIG_IGN);
    CHECK_FATAL("main.log|File too large", setrlimit(RLIMIT_FSIZE, &limit), logger_open(&logger, folder(), -1, 7));
    CHECK_FATAL("no/such/place/main.log|No such file", logger_open(&logger, "no/such/place", -1, 0));
    char long_name[2000];
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    CHECK_FATAL("too long|xxxx", logger_open(&logger, long_name, -1, 0));
    return unit_end();
}
