/*
How a run becomes several processes, and how they meet.

    launch_environment.h   which process this is, by torchrun, mpirun, srun or llm.c's flags
    launch_local.h         --gpus N (CPU trainer: --processes N) starts them on this machine

A process alone starts nothing, opens no socket and prints nothing more.
*/
#ifndef LLMC_RUN_LAUNCH_H
#define LLMC_RUN_LAUNCH_H

#include <sched.h>
#if defined(_OPENMP)
#include <omp.h>
#endif

#include "flags.h"
#include "launch_local.h"
#include "llmc/base/host.h"
#include "llmc/comm/comm.h"

// Divides the machine's cores among its processes, unless OMP_NUM_THREADS is set or the launcher has bound each to its own
// cores.
static inline void launch_share_cores_(const Launch* l) {
#if defined(_OPENMP)
    int cores = omp_get_num_procs(), per_task = launch_number_("SLURM_CPUS_PER_TASK", 1, INT_MAX, 0);
    int is_srun = strcmp(l->how, "srun") == 0, bound = is_srun || strcmp(l->how, "mpirun") == 0;
    if (launch_text_("OMP_NUM_THREADS") != NULL) { return; }
    int threads = cpu_cores() / l->local_size;
    if (bound && (long)cores * l->local_size <= sysconf(_SC_NPROCESSORS_ONLN)) { threads = cores; }
    if (is_srun && per_task > 0 && per_task < cores) { threads = per_task; }
    omp_set_num_threads(threads > 0 ? threads : 1);
#else
    (void)l;
#endif
}

// To be called before any thread and any CUDA call. If the options request processes on this machine, it starts them and
// returns in each of them; the parent waits for them and exits with their worst exit code. Contradictions end the program with
// one line. In ranks other than 0, stdout is /dev/null from here on.
static inline Launch launch_processes(const Options* o) {
    Launch l = launch_by_launcher();
    launch_check_flags(&l, o);
    int count = launch_local_count(o);
    l = launch_place(l, o, count);
    if (count > 1) { l = launch_local(l, o, count); }
    if (l.size > 1) { launch_share_cores_(&l); }
    int nowhere = l.rank > 0 ? open("/dev/null", O_WRONLY | O_CLOEXEC) : -1;
    if (nowhere >= 0) {
        fflush(stdout);
        dup2(nowhere, STDOUT_FILENO);
        close(nowhere);
    }
    return l;
}

// ----------------------------------------------------------------------------
// Meeting

// "<bytes> bytes, digest <hex>" of this program's file
static inline void launch_program_(char* text, size_t size) {
    static char data[1 << 16];
    Digest digest = digest_begin();
    FILE* file = fopen("/proc/self/exe", "rb");
    for (size_t n = sizeof(data); file != NULL && n == sizeof(data);) {
        n = fread(data, 1, sizeof(data), file);
        digest_update(&digest, data, n);
    }
    if (file != NULL) { fclose(file); }
    snprintf(text, size, "of %llu bytes with digest %016llx", (unsigned long long)digest.bytes,
             (unsigned long long)digest_end(digest));
}

// The lines that must be equal in all processes, which the caller frees: the program and the flags, but for those that say how
// a process is started and meets the others. Rank 0 alone writes to its folder.
static inline char* launch_settings(const Options* o) {
    char *settings = NULL, program[96], number[64];
    size_t size;
    FILE* lines = open_memstream(&settings, &size);
    if (lines == NULL) { fatal("out of memory for the settings"); }
    launch_program_(program, sizeof(program));
    fprintf(lines, "the program %s\n", program);
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        int is_start = f->effect == CLI_COMMAND && i >= CLI_INDEX_gpus && i != CLI_INDEX_fault_timeout;
        if (!(f->who & CLI_TRAINER) || is_start) { continue; }
        const char* value = i == CLI_INDEX_output_dir && o->output_dir ? "given" : cli_value(o, f, number);
        fprintf(lines, "%s %s\n", f->long_name, value[0] != '\0' ? value : "-");
    }
    if (fclose(lines) != 0) { fatal("out of memory for the settings"); }
    return settings;
}

// Connects to the other processes, with the options as given; NULL for a single process. Ends the program with one line if that
// fails, or if a process was started with different options.
static inline Comm* comm_start(const Launch* l, const Options* o) {
    Comm* comm = NULL;
    const char* reason = launch_reason(l);
    if (l->size == 1) { return NULL; }
    if (o->plan && reason != NULL) { // waits for nobody
        print_note("--plan: this is rank %d of %d, and rank 0 prints the plan: %s", l->rank, l->size, reason);
        return comm_imagine(l->size);
    }
    char* settings = launch_settings(o);
    CommSettings s;
    memset(&s, 0, sizeof(s));
    s.rank = l->rank, s.size = l->size;
    s.address = l->address, s.port = l->port, s.file = l->file, s.listener = l->listener;
    s.token = l->token, s.settings = settings, s.reason = reason;
    s.connect_timeout = o->connect_timeout, s.fault_timeout = o->fault_timeout;
    Status status = comm_open(&comm, s);
    free(settings);
    check(status);
    return comm;
}

#endif
