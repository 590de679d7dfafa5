/*
--doctor: whether this machine, this folder and these data are fit for a run: the machine's part is gpt2_doctor's, the rest
is here. Nothing ends the program before the table is whole; it writes a file of 32 MB in the output folder and removes it.
*/
#ifndef LLMC_RUN_DOCTOR_H
#define LLMC_RUN_DOCTOR_H

#include <signal.h>

#include "flags.h"
#include "llmc/base/terminal.h"
#include "llmc/files/dataloader.h"
#include "llmc/model/gpt2_model.h"

enum { DOCTOR_MIB = 32 }; // of the file that is written

static inline void run_doctor_memory_(Doctor* d) {
    HostMemory m = host_memory("");
    int ok = m.available >= (size_t)1 << 30;
    doctor_row(d, ok ? DOCTOR_OK : DOCTOR_FAULT, "host memory",
               "end other programs, or raise the limit of the container or job", "%.1f of %.1f GiB available (%s)",
               (double)m.available / (1 << 30), (double)m.total / (1 << 30), m.limit);
}

static inline void run_doctor_cores_(Doctor* d) {
    int cores = cpu_affinity();
    double quota = cpu_quota("");
    char of[96] = "without a quota";
    if (quota < (double)cores) {
        snprintf(of, sizeof(of), "limited to %.3g by the cgroup's quota: %d threads", quota,
                 cpu_cores_within(cores, quota));
    }
    doctor_row(d, DOCTOR_OK, "cores", NULL, "%d, %s", cores, of);
}

// The output folder, or the one that it will be created in
static inline void run_doctor_folder_(Doctor* d, const Options* o) {
    char folder[1000];
    snprintf(folder, sizeof(folder), "%.960s", o->output_dir ? o->output_dir : ".");
    existing_folder(folder);
    double start = wall_seconds();
    Status written = atomic_probe(folder, (size_t)DOCTOR_MIB << 20);
    double seconds = wall_seconds() - start;
    doctor_row(d, written == STATUS_OK ? DOCTOR_OK : DOCTOR_FAULT, "write, fsync, rename",
               "make room, or name a folder on a disk that can be written to with -o", "%s in %s",
               written == STATUS_OK ? "done" : status_message(), folder);
    if (written == STATUS_OK) {
        doctor_row(d, DOCTOR_OK, "writing speed", NULL, "%.0f MB/s (%d MiB in %.2f s)", DOCTOR_MIB * 1.048576 / seconds,
                   (int)DOCTOR_MIB, seconds);
    }
    size_t bytes = disk_free(folder);
    if (bytes == SIZE_MAX) { return; } // some do not say
    double free_gib = (double)bytes / (1 << 30);
    doctor_row(d, free_gib >= 2.0 ? DOCTOR_OK : DOCTOR_FAULT, "disk", "make room: a checkpoint of 124M takes 1.7 GB",
               "%.1f GiB free in %s", free_gib, folder);
}

// ----------------------------------------------------------------------------
// Token files, each read to its end where it has checksums: a run reads all other files before its first step.

static inline Status run_doctor_verify_(const char* path, int* has_checksums) {
    CheckedReader r;
    TokenFile t;
    TRY(token_file_begin(&t, &r, path));
    *has_checksums = r.has_checksums;
    Status status = checked_verify(&r);
    checked_close(&r);
    return status;
}

// A row for each file of a flag that is not intact, and one for the others. A missing file is a fault unless it is
// the flag's default.
static inline void run_doctor_tokens_(Doctor* d, const char* name, const char* pattern, const char* default_pattern) {
    static const char fix[] = "a script in dev/data writes it, python3 dev/data/tinyshakespeare.py the default";
    glob_t paths;
    size_t whole = 0, unchecked = 0;
    if (token_file_glob(&paths, pattern) != 0) {
        int is_default = strcmp(pattern, default_pattern) == 0;
        doctor_row(d, is_default ? DOCTOR_ABSENT : DOCTOR_FAULT, name, fix, "%s: no such file", pattern);
        return;
    }
    for (size_t i = 0; i < paths.gl_pathc; i++) {
        int has_checksums = 0;
        status_clear();
        if (run_doctor_verify_(paths.gl_pathv[i], &has_checksums) != STATUS_OK) {
            doctor_row(d, DOCTOR_FAULT, name, fix, "%s", status_message());
            continue;
        }
        whole++;
        unchecked += !has_checksums;
    }
    if (whole > 0 && unchecked == 0) {
        doctor_row(d, DOCTOR_OK, name, NULL, "%zu of %s: intact, by their checksums", whole, pattern);
    } else if (whole > 0) {
        doctor_row(d, DOCTOR_OK, name, NULL, "%zu of %s; %zu without checksums", whole, pattern, unchecked);
    }
    globfree(&paths);
}

// Prints the table; returns the program's exit code.
static inline int run_doctor(const Options* o) {
    Doctor d = {0, 0};
    signal(SIGXFSZ, SIG_IGN); // a limit on files is a row of the table, not the end of the program
    print_table_line();
    gpt2_doctor(&d);
    run_doctor_cores_(&d);
    run_doctor_memory_(&d);
    run_doctor_folder_(&d, o);
    run_doctor_tokens_(&d, "training data", o->train_data, cli_default_options.train_data);
    run_doctor_tokens_(&d, "validation data", o->val_data, cli_default_options.val_data);
    print_table_line();
    printf("%d checked, %d not ok\n", d.rows, d.faults);
    return d.faults == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
