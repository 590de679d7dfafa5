/*
A line of a terminal that is overwritten repeatedly and erased before anything else is printed. Code that prints meanwhile calls
terminal_line_clear() first; utils.h's warnings and errors do, and so do signal handlers. No colours are used, and the
terminal's settings are not changed.
*/
#ifndef LLMC_BASE_TERMINAL_LINE_H
#define LLMC_BASE_TERMINAL_LINE_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int terminal_line_open_; // 1: it is shown; read and written by atomic operations

// Takes the line away. Async-signal-safe.
static inline void terminal_line_clear(void) {
    if (!__atomic_load_n(&terminal_line_open_, __ATOMIC_RELAXED)) { return; }
    if (__atomic_exchange_n(&terminal_line_open_, 0, __ATOMIC_RELAXED) && write(STDOUT_FILENO, "\r\033[K", 4) < 0) {
        return; // nobody looks on
    }
}

// Shows the line in place of what it was. It must be shorter than the terminal is wide.
static inline void terminal_line_show(const char* text) {
    printf("\r%s\033[K", text);
    fflush(stdout);
    __atomic_store_n(&terminal_line_open_, 1, __ATOMIC_RELAXED);
}

// 1 if a file descriptor is a terminal that can write over a line.
static inline int terminal_is_able(int fd) {
    const char* term = getenv("TERM");
    return term != NULL && term[0] != '\0' && strcmp(term, "dumb") != 0 && isatty(fd);
}

// 1 if stdout is one.
static inline int terminal_can_rewrite(void) { return terminal_is_able(STDOUT_FILENO); }

// Its columns, 80 where it does not say
static inline int terminal_columns(void) {
    struct winsize size;
    memset(&size, 0, sizeof(size));
    return ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

// 1 if the user's locale is UTF-8.
static inline int terminal_is_utf8(void) {
    static const char* const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    for (int i = 0; i < 3; i++) {
        const char* locale = getenv(names[i]);
        if (locale == NULL || locale[0] == '\0') { continue; }
        return strcasestr(locale, "utf-8") != NULL || strcasestr(locale, "utf8") != NULL;
    }
    return 0;
}

#endif
