// llmc/logger.h: what stands in main.log after a run, and after one that was stopped and resumed.
#include "llmc/logger.h"

#include "unit.h"

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
    remove(unit_path("main.log"));
    logger_open(&logger, folder(), 3, 0); // a resumed run whose log was deleted
    CHECK(unit_file_is(unit_path("main.log"), ""));
    without_a_directory_nothing_is_written();
    CHECK_FATAL("no/such/place/main.log|No such file", logger_open(&logger, "no/such/place", -1, 0));
    char long_name[2000];
    memset(long_name, 'x', sizeof(long_name) - 1);
    long_name[sizeof(long_name) - 1] = '\0';
    CHECK_FATAL("too long|xxxx", logger_open(&logger, long_name, -1, 0));
    return unit_end();
}
