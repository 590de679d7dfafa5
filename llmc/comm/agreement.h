/*
Agreement between the processes of a run, so that all do the same at the same step: on a signal to end or to save, whichever
process received it, and on an error of any of them that ends the run in an orderly way, such as unreadable data. Loss and norm
of a step are sums over all processes and must have the same bits in all of them: a process sends its own with its next message.

    agree(&a, STATUS_OK)          once a step, and at the end of each evaluation; a few bytes from each process to all
    agreement_stop(&a)            the signal that asks the run to end, or 0

With one process nothing is sent, and a signal takes effect at once.
*/
#ifndef LLMC_COMM_AGREEMENT_H
#define LLMC_COMM_AGREEMENT_H

#include "comm.h"
#include "llmc/base/signals.h"

typedef struct {
    Comm* comm;
    int stop;             // the signal of the lowest rank that has one, or 0
    int save;             // 1: SIGUSR1 has come to one of them
    float result[2];      // this process's loss and gradient norm of the last step
    char difference[160]; // "" or which process has others
} Agreement;

// The message of a process
typedef struct {
    int32_t stop, save, error;
    float result[2];
} AgreementWord;

static inline void agreement_compare_(Agreement* a, const AgreementWord* all, int n) {
    for (int i = 1; i < n && a->difference[0] == '\0'; i++) {
        if (memcmp(all[i].result, all[0].result, sizeof(all[0].result)) == 0) { continue; }
        snprintf(a->difference, sizeof(a->difference),
                 "rank %d has loss %.9g and gradient norm %.9g, rank 0 %.9g and %.9g", i, (double)all[i].result[0],
                 (double)all[i].result[1], (double)all[0].result[0], (double)all[0].result[1]);
    }
}

// Exchanges messages with all processes. `own`: the status of this process, with this thread's message. The error of the lowest
// rank that has one becomes the error of all, and names that rank.
static inline Status agree(Agreement* a, Status own) {
    char text[STATUS_BYTES] = "";
    int n = comm_size(a->comm), rank = comm_rank(a->comm), error = 0;
    if (n == 1) { return own; }
    AgreementWord* all = (AgreementWord*)calloc_check((size_t)n, sizeof(AgreementWord));
    AgreementWord mine = {signals_stop(), signals_take_save(), own != STATUS_OK, {a->result[0], a->result[1]}};
    all[rank] = mine;
    if (own != STATUS_OK) { snprintf(text, sizeof(text), "rank %d: %.1900s", rank, status_message()); }
    status_clear();
    check(comm_gather(a->comm, all, sizeof(AgreementWord)));
    for (int i = 0; i < n; i++) {
        a->stop = a->stop ? a->stop : all[i].stop;
        a->save |= all[i].save;
        error |= all[i].error;
    }
    agreement_compare_(a, all, n);
    free(all);
    if (!error) { return STATUS_OK; }
    check(comm_lowest(a->comm, &rank, own != STATUS_OK, text, sizeof(text)));
    return status_fail("%s", text);
}

// The signal that asks the run to end, or 0; the same in all processes.
static inline int agreement_stop(const Agreement* a) { return comm_size(a->comm) == 1 ? signals_stop() : a->stop; }

// 1 if a SIGUSR1 has come since this was asked last; the same in all processes.
static inline int agreement_take_save(Agreement* a) {
    int save = comm_size(a->comm) == 1 ? signals_take_save() : a->save;
    a->save = 0;
    return save;
}

#endif
