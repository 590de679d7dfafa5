/*
llmc/run/launch.h: which process of a run this is, by the environment and by flags; and what becomes of processes that are
started here: their ends and their signals. test_launch_gpu.c makes it the GPU trainer's.
*/
#include "llmc/run/launch.h"

#include <sys/mman.h>

#include "dev/test/fixtures/unit.h"

// Eight GPUs, or those that CUDA hides
int gpt2_num_devices(void) { return getenv("CUDA_VISIBLE_DEVICES") != NULL ? 0 : 8; }

#define MAX_WORDS 32
#define START_FLAG (CLI_TRAINER & FOR_GPU ? "--gpus" : "--processes")

static Options options(int n, const char** words) {
    char* argv[MAX_WORDS + 2] = {(char*)(uintptr_t)CLI_PROGRAM};
    for (int i = 0; i < n; i++) { argv[i + 1] = (char*)(uintptr_t)words[i]; }
    return cli_parse(n + 1, argv);
}
#define OPTIONS(...) options((int)(sizeof((const char*[]){__VA_ARGS__}) / sizeof(char*)), (const char*[]){__VA_ARGS__})
#define NO_OPTIONS options(0, NULL)

// The environment holds these variables of launchers, "NAME=value" with spaces between, and no others.
static void environment(const char* variables) {
    static const char* const names[] = {"MASTER_ADDR",
                                        "MASTER_PORT",
                                        "TORCHELASTIC_RUN_ID",
                                        "TORCHELASTIC_RESTART_COUNT",
                                        "TORCHELASTIC_USE_AGENT_STORE",
                                        "OMPI_MCA_orte_hnp_uri",
                                        "OMPI_MCA_ess_base_jobid",
                                        "PMIX_RANK",
                                        "PMIX_NAMESPACE",
                                        "PMI_JOBID",
                                        "SLURM_JOB_ID",
                                        "SLURM_STEP_ID",
                                        "SLURM_RESTART_COUNT",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "SLURM_NODEID",
                                        "SLURM_NTASKS",
                                        "SLURM_CPUS_PER_TASK",
                                        "CUDA_VISIBLE_DEVICES"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) { unsetenv(names[i]); }
    for (int i = 0; i < NUM_LAUNCHERS; i++) {
        const Launcher* l = &launch_launchers[i];
        const char* of_it[] = {l->rank, l->size, l->local_rank, l->local_size};
        for (int k = 0; k < 4; k++) {
            if (of_it[k] != NULL) { unsetenv(of_it[k]); }
        }
    }
    char list[1024];
    snprintf(list, sizeof(list), "%s", variables);
    for (char* word = strtok(list, " "); word != NULL; word = strtok(NULL, " ")) {
        char* equals = strchr(word, '=');
        *equals = '\0';
        setenv(word, equals + 1, 1);
    }
}

// The place of a process that starts no others.
static Launch place(const Options* o) {
    Launch l = launch_by_launcher();
    launch_check_flags(&l, o);
    return launch_place(l, o, 1);
}

static int is_at(const Launch* l, int rank, int size, int local_rank, int local_size) {
    if (l->rank == rank && l->size == size && l->local_rank == local_rank && l->local_size == local_size) { return 1; }
    printf("    rank %d of %d, %d of %d on its machine\n", l->rank, l->size, l->local_rank, l->local_size);
    return 0;
}

static int meets_at(const Launch* l, const char* address, int port) {
    if (l->address != NULL && strcmp(l->address, address) == 0 && l->port == port && l->file == NULL) { return 1; }
    printf("    %s port %d\n", l->address ? l->address : "no address", l->port);
    return 0;
}

#define TORCHRUN                                                                                                       \
    "RANK=5 WORLD_SIZE=8 LOCAL_RANK=1 LOCAL_WORLD_SIZE=4 MASTER_ADDR=10.0.0.3 MASTER_PORT=29500 "                      \
    "TORCHELASTIC_RUN_ID=none "
#define MPIRUN                                                                                                         \
    "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=2 OMPI_COMM_WORLD_LOCAL_SIZE=4 "         \
    "PMIX_RANK=2 PMIX_NAMESPACE=17 "
#define SRUN                                                                                                           \
    "SLURM_PROCID=9 SLURM_STEP_NUM_TASKS=11 SLURM_LOCALID=1 SLURM_NODEID=2 SLURM_STEP_TASKS_PER_NODE=4(x2),3 "         \
    "SLURM_JOB_ID=77 SLURM_STEP_ID=0 SLURM_STEP_NODELIST=node[01-03,7] "

// ----------------------------------------------------------------------------
// Environment and flags

static void alone_where_nothing_says_otherwise(void) {
    Options o = NO_OPTIONS;
    environment("");
    Launch l = place(&o);
    CHECK(is_at(&l, 0, 1, 0, 1) && l.address == NULL && l.file == NULL && l.listener == -1);
    environment("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1");
    l = place(&o);
    CHECK(is_at(&l, 0, 1, 0, 1));
    environment("SLURM_PROCID=0 SLURM_NTASKS=16 SLURM_LOCALID=0 SLURM_JOB_ID=9"); // a batch script
    l = place(&o);
    CHECK(is_at(&l, 0, 1, 0, 1));
    environment("");
    o = OPTIONS("-pn", "1", "-pr", "0", "-pg", "8", "-pi", "mpi", "-pf", "/nowhere", "-ps", "somewhere");
    l = place(&o);
    CHECK(is_at(&l, 0, 1, 0, 1));
}

static void launchers_are_understood(void) {
    Options o = NO_OPTIONS;
    environment(TORCHRUN);
    Launch l = place(&o);
    CHECK(is_at(&l, 5, 8, 1, 4) && meets_at(&l, "10.0.0.3", 29500) && strcmp(l.how, "torchrun") == 0);
    char token[64];
    snprintf(token, sizeof(token), "%s", l.token);
    environment(TORCHRUN "TORCHELASTIC_RESTART_COUNT=1");
    l = place(&o);
    CHECK(strlen(token) == 16 && strcmp(token, l.token) != 0);
    environment(MPIRUN);
    l = place(&o);
    CHECK(is_at(&l, 2, 4, 2, 4) && strcmp(l.address, "127.0.0.1") == 0 && strcmp(l.how, "mpirun") == 0);
    CHECK(l.port >= LAUNCH_FIRST_PORT && l.port < LAUNCH_FIRST_PORT + LAUNCH_PORTS);
    environment("PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2");
    l = place(&o);
    CHECK(is_at(&l, 1, 2, 1, 2) && meets_at(&l, "127.0.0.1", LAUNCH_PORT));
    environment(SRUN);
    l = place(&o);
    CHECK(is_at(&l, 9, 11, 1, 4) && strcmp(l.address, "node01") == 0);
    int port = l.port;
    CHECK(port >= LAUNCH_FIRST_PORT && port < LAUNCH_FIRST_PORT + LAUNCH_PORTS);
    environment(SRUN "SLURM_STEP_ID=1");
    l = place(&o);
    CHECK(l.port != port);
    environment(SRUN "MASTER_ADDR=head MASTER_PORT=4000");
    l = place(&o);
    CHECK(meets_at(&l, "head", 4000));
}

// What named rank 0's address, for errors
static void an_address_has_an_origin(void) {
    static const char one_machine[] = "RANK=1 WORLD_SIZE=2 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2";
    Options o = NO_OPTIONS;
    environment(TORCHRUN);
    CHECK(strcmp(place(&o).origin, "MASTER_ADDR=10.0.0.3") == 0);
    environment(one_machine);
    CHECK(strcmp(place(&o).origin, "MASTER_ADDR is not set") == 0);
    environment(SRUN);
    CHECK(place(&o).origin == NULL); // a node of SLURM_STEP_NODELIST
    o = OPTIONS("-ps", "10.0.0.9");
    environment(TORCHRUN);
    CHECK(strcmp(place(&o).origin, "-ps 10.0.0.9") == 0);
}

// Who was started with another -pn has the same token: it finds the others, which say so.
static void other_numbers_of_processes_meet(void) {
    char token[64];
    environment("");
    Options o = OPTIONS("-pn", "2", "-pr", "0", "-ps", "127.0.0.1");
    Launch l = place(&o);
    snprintf(token, sizeof(token), "%s", l.token);
    o = OPTIONS("-pn", "4", "-pr", "1", "-ps", "127.0.0.1");
    l = place(&o);
    CHECK(is_at(&l, 1, 4, 1, 4) && strcmp(token, l.token) == 0);
}

// All processes of a job agree on port and token, and an agent of torchrun that listens on MASTER_PORT is left alone.
static void the_place_to_meet_follows_from_the_job(void) {
    Options o = NO_OPTIONS;
    char token[64];
    environment(SRUN);
    Launch l = place(&o);
    int port = l.port;
    snprintf(token, sizeof(token), "%s", l.token);
    environment(SRUN "SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0");
    l = place(&o);
    CHECK(is_at(&l, 0, 11, 0, 4) && meets_at(&l, "node01", port) && strcmp(token, l.token) == 0);
    environment(TORCHRUN "TORCHELASTIC_USE_AGENT_STORE=True");
    l = place(&o);
    CHECK(l.port != 29500 && l.port >= LAUNCH_FIRST_PORT && l.port < LAUNCH_FIRST_PORT + LAUNCH_PORTS);
    environment(TORCHRUN "TORCHELASTIC_USE_AGENT_STORE=False");
    l = place(&o);
    CHECK(l.port == 29500);
    o = OPTIONS("--rendezvous-port", "5000", "-ps", "10.0.0.9");
    l = place(&o);
    CHECK(meets_at(&l, "10.0.0.9", 5000));
    environment("OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 "
                "OMPI_COMM_WORLD_LOCAL_SIZE=2 OMPI_MCA_orte_hnp_uri=1.0;tcp://10.0.0.1,10.1.0.1:4711");
    o = NO_OPTIONS;
    l = place(&o);
    CHECK(strcmp(l.address, "10.0.0.1") == 0);
    unsetenv("OMPI_MCA_orte_hnp_uri");
    setenv("PMIX_NAMESPACE", "prterun-node-7-1234@1", 1);
    l = place(&o);
    CHECK(strcmp(l.address, "node-7") == 0);
    setenv("PMIX_NAMESPACE", "123", 1);
    CHECK_FATAL("mpirun|-ps|-pf", place(&o));
    environment("PMI_RANK=1 PMI_SIZE=4");
    CHECK_FATAL("mpiexec|-ps|-pf", place(&o));
}

static void slurm_s_lists_are_read(void) {
    static const char* const lists[][2] = {{"node[01-03,7]", "node01"},  {"a,b", "a"},          {"host", "host"},
                                           {"n[2-3]-ib[1-2]", "n2-ib1"}, {"x[7,9-11],y", "x7"}, {"g[08]", "g08"}};
    char host[64];
    for (size_t i = 0; i < sizeof(lists) / sizeof(lists[0]); i++) {
        launch_first_host(host, sizeof(host), lists[i][0]);
        if (!CHECK(strcmp(host, lists[i][1]) == 0)) { printf("    %s: %s\n", lists[i][0], host); }
    }
    launch_first_host(host, 4, "node");
    CHECK(strcmp(host, "nod") == 0);
}

static void flags_of_llmc_are_understood(void) {
    Options o = OPTIONS("-pn", "16", "-pr", "11", "-pg", "4", "-pi", "tcp", "-ps", "10.0.0.1");
    environment("");
    Launch l = place(&o);
    CHECK(is_at(&l, 11, 16, 3, 4) && meets_at(&l, "10.0.0.1", LAUNCH_PORT) && strcmp(l.how, "-pn") == 0);
    o = OPTIONS("-pn", "11", "-pr", "10", "-ps", "10.0.0.1");
    l = place(&o);
    CHECK(is_at(&l, 10, 11, 2, 3)); // eight a machine, as llm.c has it
    o = OPTIONS("-pn", "2", "-pr", "1", "-pi", "fs", "-pf", "/tmp");
    l = place(&o);
    CHECK(is_at(&l, 1, 2, 1, 2) && l.address == NULL && strncmp(l.file, "/tmp/", 5) == 0);
    environment(SRUN); // llm.c's scripts for Slurm
    o = OPTIONS("-pn", "11", "-pr", "9", "-pg", "4", "-pi", "tcp", "-ps", "head");
    l = place(&o);
    CHECK(is_at(&l, 9, 11, 1, 4) && strcmp(l.address, "head") == 0);
    environment(MPIRUN);
    o = OPTIONS("-pi", "mpi", "-pn", "4");
    l = place(&o);
    CHECK(is_at(&l, 2, 4, 2, 4));
}

#define REFUSED(variables, words, ...)                                                                                 \
    do {                                                                                                               \
        environment(variables);                                                                                        \
        CHECK_FATAL(words, Options o = OPTIONS(__VA_ARGS__); launch_processes(&o));                                    \
    } while (0)

static void contradictions_end_with_one_line(void) {
    REFUSED(TORCHRUN, "torchrun's RANK 5|8 processes already|unset RANK WORLD_SIZE;|leave out --", START_FLAG, "4");
    REFUSED(TORCHRUN, "-pn 4|torchrun|8 processes already|unset RANK WORLD_SIZE;|leave out -pn", "-pn", "4");
    REFUSED(TORCHRUN, "-pr 4|RANK 5|unset RANK WORLD_SIZE;|leave out -pr", "-pr", "4");
    REFUSED("RANK=2 WORLD_SIZE=2", "RANK 2|WORLD_SIZE 2", "-b", "1");
    REFUSED("RANK=-1 WORLD_SIZE=2", "RANK|'-1'", "-b", "1");
    REFUSED("RANK=0 WORLD_SIZE=two", "WORLD_SIZE|'two'", "-b", "1");
    REFUSED("RANK=0 WORLD_SIZE=2",
            "MASTER_ADDR is not set, and torchrun does not say where rank 0 is|-ps|unset RANK WORLD_SIZE", "-b", "1");
    REFUSED("RANK=0", "RANK|WORLD_SIZE", "-b", "1");
    REFUSED("WORLD_SIZE=2", "RANK|WORLD_SIZE", "-b", "1");
    REFUSED("OMPI_COMM_WORLD_SIZE=2", "OMPI_COMM_WORLD_RANK", "-b", "1");
    REFUSED("", "-pn 2 needs -pr", "-pn", "2");
    REFUSED("", "-pr 1 needs -pn", "-pr", "1");
    REFUSED("", "-ps says where processes meet, and this is the only one: it needs -pn", "-ps", "10.0.0.1");
    REFUSED("", "-pf says where", "-pf", "shared");
    REFUSED("", "--rendezvous-port says where", "--rendezvous-port", "1234");
    REFUSED("", "-pr 2|-pn 2", "-pn", "2", "-pr", "2", "-ps", "a");
    REFUSED("", "-pr 1|-pn 1", "-pn", "1", "-pr", "1");
    REFUSED("", "-pn 2 needs -ps", "-pn", "2", "-pr", "0");
    REFUSED("", "-pn 2 needs -ps|-pi tcp|-pf", "-pn", "2", "-pr", "0", "-pi", "tcp", "-pf", "/tmp");
    REFUSED("", "-pi fs needs -pf", "-pn", "2", "-pr", "0", "-pi", "fs");
    REFUSED("", "-pf /no/such/folder|no such folder", "-pn", "2", "-pr", "0", "-pf", "/no/such/folder");
    REFUSED("", "-pf /tmp|-ps a|-pi", "-pn", "2", "-pr", "0", "-pf", "/tmp", "-ps", "a");
}

// Of launchers that were started under one another the innermost counts.
static void the_innermost_launcher_counts(void) {
    Options o = NO_OPTIONS;
    environment(TORCHRUN "SLURM_PROCID=1 SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0"); // torchrun under srun
    Launch l = place(&o);
    CHECK(is_at(&l, 5, 8, 1, 4));
    environment(MPIRUN "SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=3 SLURM_LOCALID=0"); // mpirun's daemons under srun
    l = place(&o);
    CHECK(is_at(&l, 2, 4, 2, 4));
    environment(MPIRUN "RANK=2 WORLD_SIZE=4 LOCAL_RANK=2 MASTER_ADDR=a"); // set by a script from mpirun's
    l = place(&o);
    CHECK(is_at(&l, 2, 4, 2, 4) && strcmp(l.how, "torchrun") == 0);
}

// Variables of a shell that a launcher has started (srun --pty bash) are named, with all that are to be unset.
static void what_says_that_there_are_others_is_named(void) {
    Options o = NO_OPTIONS;
    environment(SRUN);
    Launch l = place(&o);
    CHECK(
        strcmp(launch_reason(&l),
               "srun's SLURM_PROCID 9 and SLURM_STEP_NUM_TASKS 11 say that it has started 11 processes already; if it "
               "did not start this one: unset SLURM_PROCID SLURM_STEP_NUM_TASKS") == 0);
    environment("RANK=0 WORLD_SIZE=1 LOCAL_RANK=0");
    l = place(&o);
    CHECK(launch_reason(&l) == NULL);
    environment("");
    o = OPTIONS("-pn", "16", "-pr", "11", "-ps", "10.0.0.1");
    l = place(&o);
    CHECK(strcmp(launch_reason(&l), "-pn 16 says how many there are") == 0);
    o = OPTIONS("-pn", "2");
    l = launch_by_hand(&o, 2);
    CHECK(launch_reason(&l) == NULL); // this program starts them all
}

// A plan of several processes is one process's: the others need not be there.
static void a_plan_waits_for_nobody(void) {
    Options o = OPTIONS("--plan");
    environment(SRUN);
    if (unit_fork()) {
        alarm(20);
        Launch l = launch_processes(&o);
        Comm* comm = comm_start(&l, &o);
        int numbers[11] = {7}, number = 5;
        check(comm_gather(comm, numbers, sizeof(int)));
        check(comm_broadcast(comm, &number, sizeof(int), 0));
        check(comm_barrier(comm));
        int alike = comm_size(comm) == 11 && comm_rank(comm) == 0 && number == 5;
        for (int i = 0; i < 11; i++) { alike = alike && numbers[i] == 7; }
        comm_close(comm);
        exit(alike ? 0 : 9);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0 &&
          strncmp(child.text, "note: --plan: this is rank 9 of 11, and rank 0 prints", 53) == 0);
    CHECK(strstr(child.text, launch_launchers[LAUNCH_SRUN].rank) &&
          strchr(child.text, '\n') == child.text + child.length - 1);
}

static void a_process_takes_the_gpu_of_its_number(void) {
    Launch l = launch_alone();
    environment("");
    CHECK(launch_device(&l, 1) == 0 && launch_device(&l, 8) == 0 && launch_device(&l, 0) == 0);
    l.rank = 7, l.size = 8, l.local_rank = 3, l.local_size = 4;
    CHECK(launch_device(&l, 4) == 3 && launch_device(&l, 8) == 3);
    CHECK_FATAL("rank 7|number 3|2 GPUs", launch_device(&l, 2));
    CHECK_FATAL("rank 7|1 GPU;", launch_device(&l, 1));
    setenv("CUDA_VISIBLE_DEVICES", "5", 1); // Slurm's --gpus-per-task=1
    CHECK(launch_device(&l, 1) == 0);
    setenv("CUDA_VISIBLE_DEVICES", "4,5", 1);
    CHECK_FATAL("rank 7|2 GPUs", launch_device(&l, 2));
}

static void settings_name_the_flags(void) {
    Options o = OPTIONS("-l", "0.002", "-o", "here", "-pn", "2", "-pr", "1", "-ps", "a", "-b", "auto");
    char* text = launch_settings(&o);
    CHECK(strstr(text, "\n--learning-rate 0.002\n") != NULL && strstr(text, "\n--batch auto\n") != NULL);
    CHECK(strstr(text, "\n--output-dir given\n") != NULL && strstr(text, "\n--zero 1\n") != NULL);
    CHECK(strstr(text, "\n--fault-timeout 30\n") != NULL); // within which all end
    CHECK(strstr(text, "--process-rank") == NULL && strstr(text, "--server-ip") == NULL);
    CHECK(strncmp(text, "the program of ", 15) == 0 && strstr(text, "digest 0000000000000000") == NULL);
    Options other = OPTIONS("-l", "0.002", "-o", "there", "-pn", "2", "-pr", "0", "-ps", "b", "-b", "auto");
    char* text_of_other = launch_settings(&other);
    CHECK(strcmp(text, text_of_other) == 0);
    free(text);
    free(text_of_other);
}

// ----------------------------------------------------------------------------
// Processes on this machine. `act` is what each of them does; the UnitChild is how their parent ended.

static void sleep_ms(int ms) {
    struct timespec t = {ms / 1000, ms % 1000 * 1000000L};
    while (nanosleep(&t, &t) != 0) {}
}

static int count_lines(const char* text) {
    int n = 0;
    for (; *text != '\0'; text++) { n += *text == '\n'; }
    return n;
}

// Starts a run whose processes do `act`. Returns in the parent of this test.
static void begin(int processes, void (*act)(const Launch*)) {
    environment("");
    if (!unit_fork()) { return; }
    signal(SIGCHLD, SIG_IGN); // as some programs leave it to those that they start
    alarm(60);                // a parent that waits for ever fails, and takes its processes with it
    Options o = NO_OPTIONS;
    o.fault_timeout = 1.0;
    Launch l = launch_local(launch_by_hand(&o, processes), &o, processes);
    act(&l);
    exit(0);
}

static UnitChild run(int processes, void (*act)(const Launch*)) {
    begin(processes, act);
    return unit_wait();
}

static int ended(const UnitChild* child, int exit_code, const char* text) {
    if (child->exit_code == exit_code && strcmp(child->text, text) == 0) { return 1; }
    printf("    exit code %d and: %s\n", child->exit_code, child->text);
    return 0;
}

static void name_process(const Launch* l) {
    char name[32];
    snprintf(name, sizeof(name), "rank %d", l->rank);
    set_process_name(name);
}

// In memory that all share
static struct {
    int ready, stops, ends, saves;
    pid_t pid[4];
} * shared;

static void act_place(const Launch* l) {
    int right = l->size == 3 && l->local_size == 3 && l->local_rank == l->rank && strlen(l->token) == 32 &&
                strcmp(l->address, "127.0.0.1") == 0 && l->port > 0 && (l->listener >= 0) == (l->rank == 0);
    fprintf(stderr, "%d: %d\n", l->rank, right);
}
static void act_worst(const Launch* l) { exit(l->rank == 1 ? 5 : l->rank); }
static void act_error(const Launch* l) {
    name_process(l);
    fatal("-i nothing.bin: no such file");
}
static void act_one_error(const Launch* l) {
    if (l->rank == 1) { fatal("the disk is full"); }
    raise(SIGSTOP);
}
static void act_killed(const Launch* l) {
    if (l->rank == 1) { raise(SIGKILL); }
    pause();
}

static void processes_are_started_and_waited_for(void) {
    UnitChild child = run(3, act_place);
    CHECK(child.exit_code == 0 && strstr(child.text, "0: 1\n") && strstr(child.text, "1: 1\n") &&
          strstr(child.text, "2: 1\n") && count_lines(child.text) == 3);
    child = run(4, act_worst);
    CHECK(ended(&child, 5, ""));
}

// Each has its own line; those that do not end after one has failed are killed.
static void a_failure_ends_all(void) {
    UnitChild child = run(4, act_error);
    CHECK(child.exit_code == 1 && count_lines(child.text) == 4);
    for (int i = 0; i < 4; i++) {
        char line[64];
        snprintf(line, sizeof(line), "error: rank %d: -i nothing.bin: no such file\n", i);
        CHECK(strstr(child.text, line) != NULL);
    }
    double start = wall_seconds();
    child = run(3, act_one_error);
    CHECK(ended(&child, 1, "error: the disk is full\n"));
    child = run(3, act_killed);
    CHECK(ended(&child, 1, "error: rank 1 was killed by signal 9 (Killed)\n"));
    CHECK(wall_seconds() - start < 30.0);
}

// ----------------------------------------------------------------------------
// Signals. The processes count what they get, in memory that all share.

static void act_steps(const Launch* l) {
    name_process(l);
    signals_begin_steps();
    shared->pid[l->rank] = getpid();
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
    for (int i = 0; i < 4000 && !signals_stop(); i++) {
        sleep_ms(5);
        if (signals_take_save()) { __atomic_add_fetch(&shared->saves, 1, __ATOMIC_SEQ_CST); }
    }
    if (signals_stop()) { __atomic_add_fetch(&shared->stops, 1, __ATOMIC_SEQ_CST); }
    sleep_ms(l->size == 3 ? 3 * SIGNALS_SAME_MS : 0); // a save, in which a second signal ends it
}

static void begin_steps(int processes) {
    memset(shared, 0, sizeof(*shared));
    begin(processes, act_steps);
    for (int i = 0; i < 4000 && shared->ready < processes; i++) { sleep_ms(5); }
    CHECK(shared->ready == processes);
}

// The line of each process says its rank and this.
static int each_says(const UnitChild* child, int processes, const char* text) {
    int said = 0;
    for (int i = 0; i < processes; i++) {
        char line[128];
        snprintf(line, sizeof(line), "rank %d: %s", i, text);
        said += strstr(child->text, line) != NULL;
    }
    if (said == processes && count_lines(child->text) == processes) { return 1; }
    printf("    exit code %d and: %s\n", child->exit_code, child->text);
    return 0;
}

static void signals_are_forwarded(void) {
    begin_steps(2);
    kill(unit_pid, SIGTERM);
    kill(unit_pid, SIGTERM); // timeout(1)
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0 && shared->stops == 2 && each_says(&child, 2, "SIGTERM: ending after this step"));
    begin_steps(2);
    kill(unit_pid, SIGUSR1);
    sleep_ms(300);
    kill(unit_pid, SIGUSR1);
    sleep_ms(300);
    kill(unit_pid, SIGINT);
    child = unit_wait();
    CHECK(child.exit_code == 0 && shared->stops == 2 && shared->saves == 4);
    begin_steps(3);
    kill(unit_pid, SIGTERM);
    sleep_ms(SIGNALS_SAME_MS + 100);
    kill(unit_pid, SIGTERM);
    child = unit_wait();
    CHECK(child.exit_code == 128 + SIGTERM && shared->stops == 3 && strstr(child.text, "ending at once") != NULL);
}

// What a terminal, its shell, or a limit says never ends a save; nohup is respected.
static void other_signals_are_forwarded(void) {
    static const int numbers[] = {SIGHUP, SIGXCPU, SIGXFSZ};
    char text[64];
    for (int i = 0; i < 3; i++) {
        begin_steps(3);
        kill(unit_pid, numbers[i]);
        sleep_ms(SIGNALS_SAME_MS + 100);
        kill(unit_pid, numbers[i]);
        UnitChild child = unit_wait();
        snprintf(text, sizeof(text), "%s: ending after this step", signals_name(numbers[i]));
        CHECK(child.exit_code == 0 && shared->stops == 3 && each_says(&child, 3, text));
    }
    signal(SIGHUP, SIG_IGN);
    begin_steps(2);
    signal(SIGHUP, SIG_DFL);
    kill(unit_pid, SIGHUP);
    for (int i = 0; i < 2; i++) { kill(shared->pid[i], SIGHUP); }
    sleep_ms(100);
    CHECK(shared->stops == 0);
    kill(unit_pid, SIGTERM);
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0 && shared->stops == 2 && strstr(child.text, "SIGTERM: ending") != NULL);
}

static void act_not_yet(const Launch* l) {
    name_process(l);
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
    pause();
    sleep_ms(1000);
}

static void a_signal_before_the_first_step_ends_the_run(void) {
    memset(shared, 0, sizeof(*shared));
    begin(3, act_not_yet);
    for (int i = 0; i < 4000 && shared->ready < 3; i++) { sleep_ms(5); }
    kill(unit_pid, SIGINT);
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0 && each_says(&child, 3, "SIGINT: ending before the first step"));
}

// A terminal's Ctrl-C goes to all, and the parent forwards it.
static void ctrl_c_counts_once(void) {
    begin_steps(3);
    for (int i = 0; i < 3; i++) { kill(shared->pid[i], SIGINT); }
    sleep_ms(50);
    kill(unit_pid, SIGINT);
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0 && shared->stops == 3 && each_says(&child, 3, "SIGINT: ending after this step"));
}

static void no_process_is_left_behind(void) {
    begin_steps(3);
    kill(shared->pid[1], SIGSTOP);
    kill(unit_pid, SIGKILL);
    UnitChild child = unit_wait();
    CHECK(child.exit_code == -1);
    int left = 3;
    for (int i = 0; i < 4000 && left > 0; i++) {
        left = 0;
        for (int k = 0; k < 3; k++) {
            char path[64], state = 'X';
            snprintf(path, sizeof(path), "/proc/%ld/stat", (long)shared->pid[k]);
            FILE* file = fopen(path, "r");
            if (file != NULL && fscanf(file, "%*d %*s %c", &state) != 1) { state = 'X'; }
            if (file != NULL) { fclose(file); }
            left += state != 'X' && state != 'Z';
        }
        sleep_ms(5);
    }
    CHECK(left == 0);
}

// ----------------------------------------------------------------------------
// The whole way: processes that meet

static void processes_meet(void) {
    for (int way = 0; way < 2 && !(CLI_TRAINER & FOR_GPU); way++) {
        environment("");
        if (unit_fork()) {
            Options o = way == 0 ? OPTIONS("--processes", "3") : OPTIONS("--processes", "3", "-pn", "3");
            Launch l = launch_processes(&o);
            Comm* comm = comm_start(&l, &o);
            int ranks[3] = {-1, -1, -1};
            ranks[l.rank] = l.rank;
            check(comm_gather(comm, ranks, sizeof(int)));
            if (ranks[0] != 0 || ranks[1] != 1 || ranks[2] != 2) { fatal("others were met"); }
            comm_close(comm);
            exit(0);
        }
        UnitChild child = unit_wait();
        CHECK(ended(&child, 0, ""));
    }
}

static void too_many_gpus_are_refused(void) {
    if (!(CLI_TRAINER & FOR_GPU)) { return; }
    REFUSED("", "--gpus 9|8 GPUs", "--gpus", "9");
    REFUSED("CUDA_VISIBLE_DEVICES=-1", "--gpus all|no GPU|CUDA_VISIBLE_DEVICES=-1", "--gpus", "all");
    REFUSED("CUDA_VISIBLE_DEVICES=-1", "--gpus 2|no GPU|CUDA_VISIBLE_DEVICES=-1", "--gpus", "2");
}

// Threads: the machine's cores by its processes; under srun those of the task, if they are fewer.
static void cores_are_shared(void) {
#if defined(_OPENMP)
    Launch l = {.how = "torchrun", .local_size = 1};
    char* given = getenv("OMP_NUM_THREADS");
    given = given != NULL ? strdup(given) : NULL;
    environment("SLURM_CPUS_PER_TASK=1");
    unsetenv("OMP_NUM_THREADS");
    launch_share_cores_(&l);
    CHECK(omp_get_max_threads() == cpu_cores());
    l.local_size = 2 * cpu_cores();
    launch_share_cores_(&l);
    CHECK(omp_get_max_threads() == 1);
    l.local_size = 1, l.how = "srun";
    omp_set_num_threads(2);
    launch_share_cores_(&l);
    CHECK(omp_get_max_threads() == 1);
    omp_set_num_threads(2);
    setenv("OMP_NUM_THREADS", "2", 1);
    launch_share_cores_(&l);
    CHECK(omp_get_max_threads() == 2);
    given != NULL ? setenv("OMP_NUM_THREADS", given, 1) : unsetenv("OMP_NUM_THREADS");
    free(given);
#endif
}

// As a trainer that says what it would start, with eight GPUs; for test_launch.sh. Its micro-batches must be whole.
static int say_place(int argc, char** argv) {
    Options o = cli_parse(argc, argv);
    int start = launch_start(&o), started = start == CLI_ALL ? 8 : start > 0 ? start : 1;
    Launch l = launch_place(launch_by_launcher(), &o, started);
    printf("%d process%s from rank %d of %d", started, started > 1 ? "es" : "", l.rank, l.size);
    l.address ? printf(", at %s port %d\n", l.address, l.port) : printf("\n");
    return o.total_batch % (o.batch * o.time * l.size) == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char** argv) {
    if (argc > 1) { return say_place(argc, argv); }
    signal(SIGINT, SIG_DFL); // a shell's background job begins with SIGINT ignored, which would stay so
    shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    alone_where_nothing_says_otherwise();
    launchers_are_understood();
    an_address_has_an_origin();
    other_numbers_of_processes_meet();
    the_place_to_meet_follows_from_the_job();
    slurm_s_lists_are_read();
    flags_of_llmc_are_understood();
    contradictions_end_with_one_line();
    the_innermost_launcher_counts();
    what_says_that_there_are_others_is_named();
    a_plan_waits_for_nobody();
    a_process_takes_the_gpu_of_its_number();
    settings_name_the_flags();
    cores_are_shared();
    too_many_gpus_are_refused();
    processes_are_started_and_waited_for();
    a_failure_ends_all();
    signals_are_forwarded();
    other_signals_are_forwarded();
    a_signal_before_the_first_step_ends_the_run();
    ctrl_c_counts_once();
    no_process_is_left_behind();
    processes_meet();
    return unit_end();
}
