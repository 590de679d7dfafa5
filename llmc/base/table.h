/*
The table of two columns that a run prints first: flags and their values, the machine, the model, the data.
*/
#ifndef LLMC_BASE_TABLE_H
#define LLMC_BASE_TABLE_H

#include <stdarg.h>
#include <stdio.h>

// A rule between groups of rows.
static inline void print_table_line(void) {
    printf("+-----------------------+----------------------------------------------------+\n");
}

// A row: a name, and a value by a format of printf.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static inline void
print_table_row(const char* name, const char* format, ...) {
    char value[512];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    printf("| %-21s | %-50s |\n", name, value);
}

#endif
