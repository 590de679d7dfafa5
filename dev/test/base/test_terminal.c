// llmc/base/terminal.h: how often long work says how far it has come, and what.
#include "llmc/base/terminal.h"

#include <fcntl.h>

#include "dev/test/fixtures/unit.h"

static int duration_is(double seconds, const char* text) {
    char buf[32];
    return strcmp(format_duration(buf, sizeof(buf), seconds), text) == 0;
}

static void durations_read_as_people_say_them(void) {
    CHECK(duration_is(0.0, "0s"));
    CHECK(duration_is(12.4, "12s"));
    CHECK(duration_is(59.6, "1m00s"));
    CHECK(duration_is(200.0, "3m20s"));
    CHECK(duration_is(3599.7, "1h00m"));
    CHECK(duration_is(3720.0, "1h02m"));
    CHECK(duration_is(86400.0 * 2 + 3600.0 * 3, "2d03h"));
    CHECK(duration_is(-1.0, "?"));
    CHECK(duration_is(NAN, "?"));
    CHECK(duration_is(INFINITY, "?"));
}

// Work of `seconds`, reported every millisecond with a clock of our own; returns what was written.
static char* report(int terminal, double seconds, size_t* bytes) {
    const char* path = unit_path("progress.txt");
    FILE* out = fopen_check(path, "w");
    Progress p;
    memset(&p, 0, sizeof(p));
    size_t total = (size_t)(seconds * 1000.0);
    for (size_t i = 0; i <= total; i++) {
        progress_show(&p, out, terminal, 50.0 + 0.001 * (double)i, "reading", i, total);
    }
    progress_finish(&p);
    fclose(out);
    return unit_read(path, bytes);
}

static int count(const char* text, char c) {
    int n = 0;
    for (; *text; text++) { n += *text == c; }
    return n;
}

static void a_file_gets_a_plain_line_every_half_minute(void) {
    size_t bytes;
    char* text = report(0, 20.0, &bytes);
    CHECK(bytes == 0);
    free(text);
    text = report(0, 125.0, &bytes); // lines at 30, 60, 90, 120 seconds
    CHECK(count(text, '\n') == 4);
    CHECK(count(text, '\r') == 0 && count(text, '\033') == 0);
    CHECK(strncmp(text, "reading  24.0%, 1m35s left\n", 27) == 0);
    free(text);
}

static void a_terminal_gets_one_line_ten_times_a_second(void) {
    size_t bytes;
    char* text = report(1, 2.0, &bytes);
    int lines = count(text, '\r') - 1; // the last one takes the line away
    CHECK(lines >= 18 && lines <= 20);
    CHECK(count(text, '\n') == 0);
    CHECK(strncmp(text, "\rreading   5.", 13) == 0 && strncmp(text + 14, "%, 2s left\033[K\r", 14) == 0);
    CHECK(strcmp(text + bytes - 4, "\r\033[K") == 0);
    free(text);
    text = report(1, 0.05, &bytes); // over before there is anything to show
    CHECK(bytes == 0);
    free(text);
}

// Work that begins in its middle is timed from there; a new name is timed anew; nothing to do is no division by zero.
static void time_left_counts_what_was_done_since_the_beginning(void) {
    const char* path = unit_path("progress.txt");
    FILE* out = fopen_check(path, "w");
    Progress p;
    memset(&p, 0, sizeof(p));
    progress_show(&p, out, 0, 0.0, "steps", 500, 1000);
    progress_show(&p, out, 0, 40.0, "steps", 600, 1000);
    progress_show(&p, out, 0, 41.0, "tokens", 0, 10);
    progress_show(&p, out, 0, 75.0, "tokens", 0, 10);
    progress_show(&p, out, 0, 200.0, "tokens", 0, 0);
    fclose(out);
    CHECK(unit_file_is(path, "steps  60.0%, 2m40s left\ntokens   0.0%, ? left\n"));
}

// What the program's own line writes in a file, on a real terminal, and on one that cannot write over a line
static void stdout_is_recognised(void) {
    static const char* const terms[] = {NULL, "xterm", "dumb"}; // NULL: a file
    for (int i = 0; i < 3; i++) {
        int master = terms[i] ? posix_openpt(O_RDWR | O_NOCTTY) : -1;
        const char* name = terms[i] ? NULL : unit_path("stdout.txt");
        if (master >= 0 && grantpt(master) == 0 && unlockpt(master) == 0) { name = ptsname(master); }
        int out = name ? open(name, O_RDWR | O_CREAT | O_NOCTTY, 0600) : -1;
        if (out < 0) { // a chroot without /dev/pts
            printf("the line on a terminal: skipped, no pseudo terminal can be had here\n");
            if (master >= 0) { close(master); }
            continue;
        }
        if (unit_fork()) {
            dup2(out, STDOUT_FILENO);
            setenv("TERM", terms[i] ? terms[i] : "xterm", 1);
            double start = wall_seconds();
            for (size_t n = 0; wall_seconds() - start < 0.35; n++) {
                progress_update(stdout, "waiting", n, 1 << 30);
                usleep(5000);
            }
            progress_end();
            fflush(stdout);
            _exit(0);
        }
        CHECK(unit_wait().exit_code == 0);
        char text[4096] = "";
        if (master >= 0) { fcntl(master, F_SETFL, O_NONBLOCK); } // where nothing was written, reading would wait
        ssize_t n = master >= 0 ? read(master, text, sizeof(text) - 1) : pread(out, text, sizeof(text) - 1, 0);
        if (i == 1) {
            CHECK(n > 0 && strncmp(text, "\rwaiting   0.0%, ", 17) == 0);
            CHECK(count(text, '\r') >= 2 && count(text, '\r') <= 4);
        } else {
            CHECK(n <= 0);
        }
        close(out);
        if (master >= 0) { close(master); }
    }
}

int main(void) {
    durations_read_as_people_say_them();
    a_file_gets_a_plain_line_every_half_minute();
    a_terminal_gets_one_line_ten_times_a_second();
    time_left_counts_what_was_done_since_the_beginning();
    stdout_is_recognised();
    return unit_end();
}
