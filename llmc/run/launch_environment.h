/*
The rank of this process and the address of rank 0, from the environment variables of torchrun, mpirun, mpiexec or srun, or from
llm.c's flags. Contradictions end with one line that names both sides.

    which      the innermost launcher, in the order of launch_launchers: torchrun under srun counts, not srun. A launcher of
               one process is none. Slurm's variables count in a step (srun) alone, not in a batch script
    where      -ps, else MASTER_ADDR, else this machine where all processes are on it, the first host of
               SLURM_STEP_NODELIST, or the machine of Open MPI's mpirun
    port       --rendezvous-port, else MASTER_PORT unless torchrun's agent listens there, else one of 20480 to 28671 that
               follows from the job's ids; without a job 20240
*/
#ifndef LLMC_RUN_LAUNCH_ENVIRONMENT_H
#define LLMC_RUN_LAUNCH_ENVIRONMENT_H

#include <limits.h>

#include "flags.h"
#include "llmc/base/checksum.h"
#include "llmc/base/utils.h"

// The flag that starts processes on this machine, and what it says: so many, or CLI_ALL
static inline const char* launch_start_flag(void) { return CLI_TRAINER & FOR_GPU ? "--gpus" : "--processes"; }
static inline int launch_start(const Options* o) { return CLI_TRAINER & FOR_GPU ? o->gpus : o->processes; }

// The variables of a launcher; `ids` tell one of its jobs from another and are the same in all processes of a job.
typedef struct {
    const char *name, *rank, *size, *local_rank, *local_size;
    const char* ids[3];
} Launcher;

// Which process of the run this is, and where it finds rank 0. The texts stay as long as the process.
typedef struct {
    int rank, size;             // of all processes of the run
    int local_rank, local_size; // of those on this machine; local_rank is the index of the GPU
    const Launcher* launcher;   // that has started it, or NULL
    const char* how;            // the same as text: "alone", "--gpus", "torchrun", "mpirun", "mpiexec", "srun", "-pn"
    const char* address;        // of rank 0's machine, or NULL
    const char* origin;         // of the address, for errors, such as "MASTER_ADDR=node-1", or NULL
    const char* file;           // to meet by, or NULL
    const char* token;          // that the processes of this run share
    int port;                   // that rank 0 listens on
    int listener;               // rank 0: a socket that listens already, or -1
} Launch;

enum { LAUNCH_MOST = 4096, LAUNCH_PORT = 20240, LAUNCH_FIRST_PORT = 20480, LAUNCH_PORTS = 8192, LAUNCH_PER_NODE = 8 };

// clang-format off
static const Launcher launch_launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_PORT"}},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", NULL}},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {"PMI_JOBID", "SLURM_JOB_ID", NULL}},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", NULL, // see launch_slurm_tasks_
     {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT"}}};
// clang-format on
enum { NUM_LAUNCHERS = sizeof(launch_launchers) / sizeof(launch_launchers[0]), LAUNCH_SRUN = 3 };

static inline Launch launch_alone(void) {
    Launch l = {0, 1, 0, 1, NULL, "alone", NULL, NULL, NULL, "", 0, -1};
    return l;
}

// ----------------------------------------------------------------------------
// Variables

// The value, or NULL if it is not set or empty
static inline const char* launch_text_(const char* name) {
    const char* value = name ? getenv(name) : NULL;
    return value != NULL && value[0] != '\0' ? value : NULL;
}

// A whole number from `smallest` to `largest`; `missing` where the variable is not set.
static inline int launch_number_(const char* name, int smallest, int largest, int missing) {
    const char* text = launch_text_(name);
    char* end = NULL;
    if (text == NULL) { return missing; }
    errno = 0;
    long number = strtol(text, &end, 10);
    if (*end != '\0' || errno != 0 || number < smallest || number > largest) {
        fatal("the environment variable %s is '%s': must be a whole number from %d to %d; unset it where no launcher "
              "has set it",
              name, text, smallest, largest);
    }
    return (int)number;
}

// Processes on this machine: the first number of Slurm's list of all machines, 4 of "4(x2),3". 0: not known. Only the number of
// threads follows from it, so a machine with fewer processes may have a wrong one.
static inline int launch_slurm_tasks_(void) {
    const char* text = launch_text_("SLURM_STEP_TASKS_PER_NODE");
    long tasks = text ? strtol(text, NULL, 10) : 0;
    return tasks > 0 && tasks <= LAUNCH_MOST ? (int)tasks : 0;
}

// The first host of a list such as "node[01-03,7],gpu5" or "n[2-3]-ib[1-2]": node01, n2-ib1.
static inline void launch_first_host(char* host, size_t size, const char* list) {
    size_t n = 0;
    int skipping = 0; // in brackets, behind the first number
    for (int inside = 0; *list != '\0' && (inside || *list != ','); list++) {
        if (*list == '[' || *list == ']') {
            inside = *list == '[';
            skipping = 0;
            continue;
        }
        skipping = skipping || (inside && (*list == '-' || *list == ','));
        if (!skipping && n + 1 < size) { host[n++] = *list; }
    }
    host[n] = '\0';
}

// ----------------------------------------------------------------------------
// Which process this is

// 1 if the launcher's rank and size are set. Only one of them is an error, except for Slurm, which sets SLURM_PROCID in a
// batch script, too.
static inline int launch_is_set_(const Launcher* launcher) {
    int rank = launch_text_(launcher->rank) != NULL, size = launch_text_(launcher->size) != NULL;
    if (rank != size && launcher != &launch_launchers[LAUNCH_SRUN]) {
        fatal("the environment has %s but no %s; let %s set both, or unset it", rank ? launcher->rank : launcher->size,
              rank ? launcher->size : launcher->rank, launcher->name);
    }
    return rank && size;
}

// The place of this process by the innermost launcher that has started several; alone if there is none.
static inline Launch launch_by_launcher(void) {
    Launch l = launch_alone();
    const Launcher *a = launch_launchers, *end = a + NUM_LAUNCHERS;
    while (a < end && (!launch_is_set_(a) || launch_number_(a->size, 1, LAUNCH_MOST, 1) == 1)) { a++; }
    if (a == end) { return l; }
    l.launcher = a;
    l.how = a->name;
    l.size = launch_number_(a->size, 1, LAUNCH_MOST, 1);
    l.rank = launch_number_(a->rank, 0, INT_MAX, 0);
    if (l.rank >= l.size) {
        fatal("%s %d is not below %s %d; let %s set both, or unset them", a->rank, l.rank, a->size, l.size, a->name);
    }
    l.local_rank = launch_number_(a->local_rank, 0, INT_MAX, -1);
    l.local_size = a->local_size ? launch_number_(a->local_size, 1, l.size, 0) : launch_slurm_tasks_();
    return l;
}

// Computes local rank and size from -pg, as llm.c does, if the launcher has not set them.
static inline void launch_local_place_(Launch* l, const Options* o) {
    int per_node = o->gpus_per_node > 0 ? o->gpus_per_node : LAUNCH_PER_NODE;
    if (l->local_rank < 0) { l->local_rank = l->rank % per_node; }
    int rest = l->size - (l->rank - l->local_rank);
    if (l->local_size == 0) { l->local_size = rest < per_node ? rest : per_node; }
}

// What says that there are other processes, and how to be without them: variables may be those of a shell that a launcher has
// started (srun --pty bash). It stays until the next call. NULL where this program has started them all.
static inline const char* launch_reason(const Launch* l) {
    static char reason[1024];
    const Launcher* a = l->launcher;
    if (a == NULL && strcmp(l->how, "-pn") != 0) { return NULL; }
    if (a == NULL) {
        snprintf(reason, sizeof(reason), "-pn %d says how many there are", l->size);
    } else {
        snprintf(reason, sizeof(reason),
                 "%s's %s %d and %s %d say that it has started %d processes already; if it did not start this one: "
                 "unset %s %s",
                 a->name, a->rank, l->rank, a->size, l->size, l->size, a->rank, a->size);
    }
    return reason;
}

static inline void launch_refuse_(const Launch* l, const char* flag, int value) {
    char number[16];
    snprintf(number, sizeof(number), "%d", value);
    fatal("%s %s, but %s; else leave out %s", flag, value == CLI_ALL ? "all" : number, launch_reason(l), flag);
}

// Ends the program if a flag contradicts the launcher.
static inline void launch_check_flags(const Launch* l, const Options* o) {
    if (l->launcher == NULL) { return; }
    if (launch_start(o) != 0) { launch_refuse_(l, launch_start_flag(), launch_start(o)); }
    if (o->num_processes > 0 && o->num_processes != l->size) { launch_refuse_(l, "-pn", o->num_processes); }
    if (o->process_rank >= 0 && o->process_rank != l->rank) { launch_refuse_(l, "-pr", o->process_rank); }
}

// The place by -pn and -pr: of this process, or of the first of `started` processes on this machine.
static inline Launch launch_by_hand(const Options* o, int started) {
    Launch l = launch_alone();
    int size = o->num_processes > 0 ? o->num_processes : started;
    int rank = o->process_rank >= 0 ? o->process_rank : size == started ? 0 : -1;
    if (o->process_rank >= 0 && o->num_processes == 0) {
        fatal("-pr %d needs -pn, the number of processes", o->process_rank);
    }
    if (rank < 0) {
        fatal("-pn %d needs -pr, the rank of this process; or let torchrun, mpirun or srun start them", size);
    }
    if (rank >= size) { fatal("-pr %d is not below -pn %d; ranks are counted from 0", rank, size); }
    if (started > size - rank) {
        fatal("-pn %d with %d processes on this machine, from -pr %d on: those are too many; lower %s, or raise -pn",
              size, started, rank, launch_start_flag());
    }
    const char* address = o->server_ip != NULL ? "-ps" : o->fs_path != NULL ? "-pf" : "--rendezvous-port";
    if (started <= 1 && o->num_processes == 0 && (o->server_ip || o->fs_path || o->rendezvous_port > 0)) {
        fatal("%s says where processes meet, and this is the only one: it needs -pn, the number of processes", address);
    }
    if (size == 1) { return l; }
    l.how = size > started ? "-pn" : launch_start_flag();
    l.rank = rank;
    l.size = size;
    l.local_rank = started > 1 ? 0 : -1;
    l.local_size = started > 1 ? started : 0;
    return l;
}

// ----------------------------------------------------------------------------
// The address of rank 0

// The machine of Open MPI's mpirun, where rank 0 usually is: "1.0;tcp://10.0.0.1,10.1.0.1:4711", or in release 5 the
// namespace "prterun-HOST-PID@1". 0 if neither says it.
static inline int launch_mpirun_host(char* host, size_t size) {
    const char *uri = launch_text_("OMPI_MCA_orte_hnp_uri"), *space = launch_text_("PMIX_NAMESPACE");
    const char* begin = uri ? strstr(uri, "tcp://") : NULL;
    size_t length = 0;
    if (begin != NULL) {
        begin += strlen("tcp://");
        length = strcspn(begin, ",:");
    } else if (space != NULL && strncmp(space, "prterun-", 8) == 0 && strrchr(space, '-') > space + 8) {
        begin = space + 8;
        length = (size_t)(strrchr(space, '-') - begin);
    }
    if (length == 0 || length >= size) { return 0; }
    snprintf(host, size, "%.*s", (int)length, begin);
    return 1;
}

// The host of rank 0; ends the program with one line if it is not known.
static inline const char* launch_address_(const Launch* l, const Options* o) {
    static char host[512];
    const char *master = launch_text_("MASTER_ADDR"), *nodes = launch_text_("SLURM_STEP_NODELIST");
    if (o->server_ip != NULL) { return o->server_ip; }
    if (l->launcher == NULL) {
        fatal("-pn %d needs -ps, the address of the machine of rank 0 (-pi tcp), or -pf, a folder that all machines "
              "share (-pi fs)",
              l->size);
    }
    if (master != NULL) { return master; }
    if (l->local_size == l->size) { return "127.0.0.1"; }
    if (strcmp(l->how, "srun") == 0 && nodes != NULL) {
        launch_first_host(host, sizeof(host), nodes);
        if (host[0] != '\0') { return host; }
    }
    if (strcmp(l->how, "mpirun") == 0 && launch_mpirun_host(host, sizeof(host))) { return host; }
    fatal("MASTER_ADDR is not set, and %s does not say where rank 0 is; set it to the name of that machine, or name it "
          "with -ps, or a folder that all machines share with -pf; %s",
          l->how, launch_reason(l));
}

// The digest of the ids that the launcher gave the job, the same in all its processes; *known: there are ids. It excludes the
// number of processes, so that processes started with different numbers meet and report that.
static inline uint64_t launch_job_digest_(const Launch* l, int* known) {
    char text[1024];
    int n = snprintf(text, sizeof(text), "%s", l->how);
    *known = 0;
    for (int i = 0; i < 3 && l->launcher != NULL; i++) {
        const char* value = launch_text_(l->launcher->ids[i]);
        *known = *known || value != NULL;
        n += snprintf(text + n, sizeof(text) - (size_t)n, " %.256s", value ? value : "");
    }
    Digest digest = digest_begin();
    digest_update(&digest, text, (size_t)n);
    return digest_end(digest);
}

// Sets the rendezvous file.
static inline void launch_meeting_file_(Launch* l, const Options* o) {
    static char file[1024];
    struct stat st;
    if (o->fs_path == NULL) { fatal("-pi fs needs -pf, a folder that all machines share"); }
    if (stat(o->fs_path, &st) != 0 || !S_ISDIR(st.st_mode)) {
        fatal("-pf %s: no such folder; create it, on a file system that all machines share", o->fs_path);
    }
    if (snprintf(file, sizeof(file), "%s/rendezvous-%s", o->fs_path, l->token) >= (int)sizeof(file)) {
        fatal("-pf %.64s...: the path is too long", o->fs_path);
    }
    l->file = file;
    l->port = o->rendezvous_port;
}

// Sets address, port, file and token.
static inline void launch_meeting_(Launch* l, const Options* o) {
    static char token[32], origin[600];
    int known;
    uint64_t job = launch_job_digest_(l, &known);
    snprintf(token, sizeof(token), "%016llx", (unsigned long long)job);
    l->token = token;
    if (o->init_method == NULL && o->fs_path != NULL && o->server_ip != NULL) {
        fatal("-pf %s and -ps %s: processes meet by one of them; drop the other, or choose with -pi fs or -pi tcp",
              o->fs_path, o->server_ip);
    }
    if (o->init_method ? strcmp(o->init_method, "fs") == 0 : o->fs_path != NULL) {
        launch_meeting_file_(l, o);
        return;
    }
    const char* master = launch_text_("MASTER_ADDR");
    l->address = launch_address_(l, o);
    snprintf(origin, sizeof(origin), "%s%.512s",
             o->server_ip ? "-ps "
             : master     ? "MASTER_ADDR="
                          : "MASTER_ADDR is not set",
             o->server_ip ? o->server_ip
             : master     ? master
                          : "");
    int named = o->server_ip != NULL || master != NULL || l->launcher == launch_launchers; // torchrun sets it
    l->origin = named ? origin : NULL;
    // torchrun's agent itself listens on MASTER_PORT if it shares its store with the processes
    const char* agent = launch_text_("TORCHELASTIC_USE_AGENT_STORE");
    int taken = agent != NULL && strchr("Tt1", agent[0]) != NULL;
    int master_port = l->launcher == NULL || taken ? 0 : launch_number_("MASTER_PORT", 1, 65535, 0);
    l->port = o->rendezvous_port ? o->rendezvous_port
              : master_port      ? master_port
              : known            ? LAUNCH_FIRST_PORT + (int)(job % LAUNCH_PORTS)
                                 : LAUNCH_PORT;
}

// The place of this process, which `l` has from a launcher, or else from flags: with `started` above 1 that of the first of
// so many processes, which this one starts.
static inline Launch launch_place(Launch l, const Options* o, int started) {
    if (l.launcher == NULL) { l = launch_by_hand(o, started); }
    if (l.size == started) { return l; } // they meet at the one that started them, or it is alone
    launch_meeting_(&l, o);
    launch_local_place_(&l, o);
    return l;
}

// The GPU of a process, of `visible` ones: that of its local rank, or the only one if CUDA_VISIBLE_DEVICES gives each process a
// different one.
static inline int launch_device(const Launch* l, int visible) {
    const char* list = launch_text_("CUDA_VISIBLE_DEVICES");
    if (l->local_rank < visible || visible == 0) { return l->local_rank; } // without GPUs the model reports the error
    if (visible == 1 && list != NULL && strchr(list, ',') == NULL) { return 0; }
    fatal("rank %d is number %d of its machine, counted from 0, and sees %d GPU%s; start fewer processes, or say with "
          "-pg how many a machine has",
          l->rank, l->local_rank, visible, visible == 1 ? "" : "s");
}

#endif
