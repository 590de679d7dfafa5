/*
The tables of two columns that a run prints first: flags and their values, the machine, the model, the data; and that of
--doctor, with a row for each requirement of a run.
*/
#ifndef LLMC_BASE_TABLE_H
#define LLMC_BASE_TABLE_H

#include "utils.h"

// A rule between groups of rows.
static inline void print_table_line(void) {
    printf("+-----------------------+----------------------------------------------------+\n");
}

// A row: a name, and a value by a format of printf.
PRINTF_LIKE(2, 3) static inline void print_table_row(const char* name, const char* format, ...) {
    char value[512];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    printf("| %-21s | %-50s |\n", name, value);
}

// ----------------------------------------------------------------------------
// --doctor: a row has `ok`, or `NOT OK` and below it how to fix that. What is missing but not essential is a row with `-`, also
// with its fix.

typedef enum { DOCTOR_OK, DOCTOR_ABSENT, DOCTOR_FAULT } DoctorResult;

typedef struct {
    int rows, faults; // faults: rows that are not ok
} Doctor;

// A row. `fix` is what to do where it is not ok; NULL if there is nothing to do.
PRINTF_LIKE(5, 6)
static inline void doctor_row(Doctor* d, DoctorResult result, const char* name, const char* fix, const char* format,
                              ...) {
    static const char* const words[] = {"ok    ", "-     ", "NOT OK"};
    char value[3000];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof(value), format, args);
    va_end(args);
    d->rows++;
    d->faults += result == DOCTOR_FAULT;
    print_table_row(name, "%s  %s", words[result], value);
    if (result != DOCTOR_OK && fix != NULL) { print_table_row("", "        -> %s", fix); }
    fflush(stdout);
}

// Fills x with n numbers of a fixed sequence, multiples of 1/64 in [-1, 1), which bf16 holds exactly.
static inline void doctor_numbers(float* x, size_t n, uint32_t seed) {
    for (size_t i = 0; i < n; i++) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)((int)(seed >> 25) - 64) / 64.0f;
    }
}

#endif
