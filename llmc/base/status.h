/*
How a library reports an error. The model (gpt2_model.h) and libattention never end the process: their functions return a
Status, and status_message() says what went wrong, in one line. Programs end, through check().

The first error of a thread stays until status_clear(), as with cudaGetLastError: so a sequence of launches can run to its
end and be judged once.

    Status gpt2_forward(...) {
        status_clear();
        TRY(gpt2_check_batch(...));        // returns where this failed
        layernorm_forward(...);            // a launcher; records a failed launch by cuda_try()
        return status_now();
    }
    check(gpt2_forward(...));              // in a program: ends with the message and exit code 1
*/
#ifndef LLMC_BASE_STATUS_H
#define LLMC_BASE_STATUS_H

#include "utils.h"

typedef enum { STATUS_OK = 0, STATUS_ERROR = 1 } Status;

enum { STATUS_BYTES = 2048 }; // of a message: room for two paths

#ifdef __cplusplus
// One for all objects of a program: a variant and its bench are two.
inline thread_local char status_text_[STATUS_BYTES];
#else
static _Thread_local char status_text_[STATUS_BYTES];
#endif

// Forgets this thread's error.
static inline void status_clear(void) { status_text_[0] = '\0'; }

// STATUS_ERROR where an error has been recorded since status_clear().
static inline Status status_now(void) { return status_text_[0] ? STATUS_ERROR : STATUS_OK; }

// The error message, or "" without an error. Valid until this thread's next status_clear().
static inline const char* status_message(void) { return status_text_; }

// Records an error, unless one is recorded already; returns STATUS_ERROR.
PRINTF_LIKE(1, 2) static Status status_fail(const char* format, ...) {
    if (status_text_[0] == '\0') {
        va_list args;
        va_start(args, format);
        vsnprintf(status_text_, sizeof(status_text_), format, args);
        va_end(args);
    }
    return STATUS_ERROR;
}

// Returns from the calling function where `call` failed.
#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != STATUS_OK) { return STATUS_ERROR; }                                                              \
    } while (0)

// For programs: ends with the message and exit code 1 if a library's function failed.
static inline void check(Status status) {
    if (status != STATUS_OK) { fatal("%s", status_message()); }
}

#endif
