// llmc/base/utils.h: errors in one line, sizes, and reading.
#include <pthread.h>
#include <time.h>

#include "llmc/base/utils.h"

#include "dev/test/fixtures/unit.h"

static void errors_are_one_line_and_exit_code_1(void) {
    if (unit_fork()) { fatal("%s: %d is not %s", "-b", 3, "even"); }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 1);
    CHECK(strcmp(child.text, "error: -b: 3 is not even\n") == 0);
}

static void say_another(void* context, char* text, size_t size) { snprintf(text, size, "%s", (const char*)context); }

// In a run of several processes lines begin with the rank, and a hook may put another cause in place of a consequence.
static void lines_name_the_process(void) {
    if (unit_fork()) {
        set_process_name("rank 3");
        print_warning("%d", 1);
        fatal("no memory");
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 1 && strcmp(child.text, "warning: rank 3: 1\nerror: rank 3: no memory\n") == 0);
    if (unit_fork()) {
        set_fatal_hook(say_another, (void*)(uintptr_t) "rank 1 has ended");
        fatal("no answer");
    }
    child = unit_wait();
    CHECK(child.exit_code == 1 && strcmp(child.text, "error: rank 1 has ended\n") == 0);
}

static void* end_with_an_error(void* unused) {
    (void)unused;
    fatal("a second reason");
}

// A thread that meets an error while another ends the process adds no line of its own.
static void only_one_thread_tells_why(void) {
    if (unit_fork()) {
        pthread_t thread;
        struct timespec moment = {0, 100000000};
        __atomic_store_n(&error_line.state, ERROR_ENDING, __ATOMIC_RELEASE);
        if (pthread_create(&thread, NULL, end_with_an_error, NULL) != 0) { _exit(2); }
        nanosleep(&moment, NULL);
        _exit(3);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 3 && child.length == 0);
}

// Whatever a file name or a flag holds, a message stays one line and steers no terminal; UTF-8 passes.
static void errors_stay_one_line(void) {
    static char long_name[9000];
    CHECK_FATAL("a?b?[2J? \xc3\xa9", fatal("cannot open %s", "a\nb\x1b[2J\x7f \xc3\xa9"));
    CHECK_FATAL("a??2J \xc2\xa0 \xc2", fatal("cannot open %s", "a\xc2\x9b\x32J \xc2\xa0 \xc2")); // U+009B: as ESC [
    memset(long_name, 'x', sizeof(long_name) - 1);
    if (unit_fork()) { fatal("%s: no such file", long_name); }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 1 && child.length > 2000 && strcmp(child.text + child.length - 4, "...\n") == 0);
}

static void sizes_that_do_not_fit_stay_size_max(void) {
    CHECK(size_mul(3, 5) == 15 && size_mul(0, SIZE_MAX) == 0 && size_mul(SIZE_MAX, 0) == 0 &&
          size_mul(SIZE_MAX, 1) == SIZE_MAX);
    CHECK(size_mul((size_t)1 << 32, (size_t)1 << 31) == (size_t)1 << 63);
    CHECK(size_mul((size_t)1 << 32, (size_t)1 << 32) == SIZE_MAX && size_mul(SIZE_MAX, SIZE_MAX) == SIZE_MAX);
    CHECK(size_mul(SIZE_MAX / 4, 4) == SIZE_MAX - 3 && size_mul(SIZE_MAX / 4 + 1, 4) == SIZE_MAX);
    CHECK(size_add(3, 5) == 8 && size_add(SIZE_MAX - 1, 1) == SIZE_MAX && size_add(SIZE_MAX, 0) == SIZE_MAX);
    CHECK(size_add(SIZE_MAX, 1) == SIZE_MAX && size_add(1, SIZE_MAX) == SIZE_MAX);
    CHECK(size_round_up(0, 256) == 0 && size_round_up(1, 256) == 256 && size_round_up(512, 256) == 512);
    CHECK(size_round_up(SIZE_MAX, 256) == SIZE_MAX && size_round_up(SIZE_MAX - 1, 256) == SIZE_MAX);
}

static void files_and_their_faults_are_named(void) {
    const char* path = unit_path("short.bin");
    unit_write(path, "12345", 5);
    FILE* file = fopen_check(path, "rb");
    CHECK_FATAL("short.bin|cannot write", fwrite_check("x", 1, 1, file, path)); // it was opened for reading
    fclose(file);
    CHECK_FATAL("missing.bin|No such file", fclose(fopen_check(unit_path("missing.bin"), "rb")));
}

// AddressSanitizer has its own word on such sizes.
static void memory_that_is_not_there_is_said(void) {
#if !defined(__SANITIZE_ADDRESS__)
    volatile size_t huge = SIZE_MAX / 4;
    CHECK_FATAL("out of memory|4611686018427387903 bytes", free(malloc_check(huge)));
    CHECK_FATAL("out of memory", free(calloc_check(huge, 8)));
#endif
    void* nothing = malloc_check(0);
    CHECK(nothing != NULL);
    free(nothing);
}

// A file of the program's never gets the number of a closed stdout, which would print into it; writing there stays an error.
static void closed_standard_files_stay_closed_to_others(void) {
    if (unit_fork()) {
        close(STDIN_FILENO), close(STDOUT_FILENO), close(STDERR_FILENO);
        keep_standard_files();
        int fd = open(unit_path("new"), O_WRONLY | O_CREAT, 0644);
        int refused = write(STDOUT_FILENO, "x", 1) < 0 && write(STDERR_FILENO, "x", 1) < 0;
        _exit(fd == 3 && refused ? 50 : 51);
    }
    CHECK(unit_wait().exit_code == 50);
    if (unit_fork()) {
        keep_standard_files(); // those that are open stay as they are
        _exit(write(STDERR_FILENO, "x", 1) == 1 ? 50 : 51);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 50 && strcmp(child.text, "x") == 0);
    unit_clean();
}

static void directories_are_made_once(void) {
    const char* path = unit_path("folder");
    create_directory(path);
    create_directory(path); // it is there: fine
    CHECK(file_exists(path));
    create_directory(unit_path("folder/in/it")); // and those above it
    CHECK(rmdir(unit_path("folder/in/it")) == 0 && rmdir(unit_path("folder/in")) == 0 && rmdir(path) == 0);
    unit_write(path, "x", 1);
    CHECK_FATAL("folder|File exists", create_directory(path)); // a file is in the way
    CHECK_FATAL("folder|Not a directory", create_directory(unit_path("folder/in/it")));
}

static void time_does_not_run_backwards(void) {
    double start = wall_seconds();
    usleep(20000);
    double passed = wall_seconds() - start;
    CHECK(passed >= 0.02 && passed < 60.0);
}

static void the_worst_error_is_nan_where_one_is(void) {
    CHECK(worse(1.0, 2.0) == 2.0 && worse(2.0, 1.0) == 2.0);
    CHECK(isnan(worse(worse(0.0, NAN), 1.0)) && isnan(worse(worse(NAN, 1.0), 0.0)));
    CHECK(isinf(worse(worse(0.0, INFINITY), 1.0)));
}

int main(void) {
    errors_are_one_line_and_exit_code_1();
    lines_name_the_process();
    only_one_thread_tells_why();
    errors_stay_one_line();
    sizes_that_do_not_fit_stay_size_max();
    files_and_their_faults_are_named();
    memory_that_is_not_there_is_said();
    closed_standard_files_stay_closed_to_others();
    directories_are_made_once();
    time_does_not_run_backwards();
    the_worst_error_is_nan_where_one_is();
    return unit_end();
}
