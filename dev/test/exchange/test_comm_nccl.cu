// llmc/exchange/comm_nccl.cuh with a library that is played here: what is asked of NCCL and in which order, and that a process
// whose peer has failed, or whose NCCL has, leaves every wait and ends with one line. And a machine's name for peer copies.
// No GPU is used.
#include "llmc/exchange/comm_nccl.cuh"
#include "llmc/exchange/peer_copies.cuh"
#include "dev/test/fixtures/unit.h"

#include <string>
#include <vector>

// ----------------------------------------------------------------------------
// The library that is played

static std::string asked;     // the functions that were called, in order, with ranks and sizes
static int steps_in_progress; // so many questions are answered with "in progress"
static int state = NCCL_SUCCESS, send_result = NCCL_SUCCESS;
static bool aborted;

static void ask(const std::string& text) { asked += text + " "; }
static int play_group_start() { return ask("start"), NCCL_SUCCESS; }
static int play_group_end() { return ask("end"), NCCL_IN_PROGRESS; }
static int play_send(const void*, size_t n, int, int rank, NcclComm, cudaStream_t) {
    ask("send" + std::to_string(rank) + ":" + std::to_string(n));
    return send_result;
}
static int play_recv(void*, size_t n, int, int rank, NcclComm, cudaStream_t) {
    ask("recv" + std::to_string(rank) + ":" + std::to_string(n));
    return NCCL_SUCCESS;
}
static int play_all_reduce(const void*, void*, size_t n, int type, int op, NcclComm, cudaStream_t) {
    ask("reduce" + std::to_string(type) + "," + std::to_string(op) + ":" + std::to_string(n));
    return NCCL_IN_PROGRESS;
}
static int play_async_error(NcclComm, int* result) {
    *result = steps_in_progress > 0 ? NCCL_IN_PROGRESS : state;
    if (steps_in_progress > 0 && steps_in_progress < INT_MAX) { steps_in_progress--; }
    return NCCL_SUCCESS;
}
static int play_finalize(NcclComm) { return ask("finalize"), NCCL_IN_PROGRESS; }
static int play_destroy(NcclComm) { return ask("destroy"), NCCL_SUCCESS; }
static int play_abort(NcclComm) { return aborted = true, NCCL_SUCCESS; }
static const char* play_text(int) { return "a remote error"; }
static const char* play_last_error(NcclComm) { return "the link\nis down"; }

// A transport as nccl_open makes it, with its watcher
static CommDevice open_played(Comm* c) {
    NcclTransport* t = (NcclTransport*)calloc_check(1, sizeof(NcclTransport));
    Nccl* n = &t->library;
    n->GroupStart = play_group_start, n->GroupEnd = play_group_end, n->Send = play_send, n->Recv = play_recv;
    n->AllReduce = play_all_reduce, n->CommGetAsyncError = play_async_error, n->CommFinalize = play_finalize;
    n->CommDestroy = play_destroy, n->CommAbort = play_abort;
    n->GetErrorString = play_text, n->GetLastError = play_last_error;
    t->processes = c;
    t->comm = (NcclComm)(uintptr_t)16;
    pthread_mutex_init(&t->mutex, NULL);
    if (!thread_start(&t->watcher, nccl_watch_, t)) { fatal("no thread"); }
    t->has_watcher = 1;
    return {nccl_exchange_, nccl_merge_, nccl_abort_, nccl_close_, t, NULL};
}

// ----------------------------------------------------------------------------
// One process

static bool is_asked(const char* text) {
    bool same = asked == text;
    if (!same) { printf("    asked: %s\n", asked.c_str()); }
    asked.clear();
    return same;
}

static void test_calls() {
    char x[64];
    CommDevice d = open_played(NULL); // rank 0
    std::vector<CommBlock> out = {{1, x, 5}, {2, x, 0}, {0, x, 8}, {2, x, 7}, {1, x, 6}},
                           in = {{2, x, 3}, {0, x, 8}, {1, x, 0}};
    steps_in_progress = 3000; // past the quick questions
    CHECK(d.exchange(d.context, out.data(), 5, in.data(), 3, NULL) == STATUS_OK && steps_in_progress == 0);
    CHECK(is_asked("start send1:5 send2:7 send1:6 recv2:3 end "));
    CHECK(d.exchange(d.context, out.data() + 1, 2, in.data() + 1, 2, NULL) == STATUS_OK); // its own, and nothing
    CHECK(is_asked("start end "));
    CHECK(d.merge(d.context, x, 9, COMM_FLOAT, NULL) == STATUS_OK && is_asked("reduce7,0:9 "));
    CHECK(d.merge(d.context, x, 9, COMM_DOUBLE, NULL) == STATUS_OK && is_asked("reduce8,0:9 "));
    CHECK(d.merge(d.context, x, 9, COMM_UINT64, NULL) == STATUS_OK && is_asked("reduce5,0:9 "));
    CHECK(d.merge(d.context, x, 0, COMM_UINT64, NULL) == STATUS_OK && is_asked(""));
    d.close(d.context);
    CHECK(is_asked("finalize destroy ") && !aborted);

    d = open_played(NULL); // a call that fails: the group is ended all the same
    send_result = 4;
    status_clear();
    CHECK(d.exchange(d.context, out.data(), 5, in.data(), 3, NULL) == STATUS_ERROR && is_asked("start send1:5 end "));
    CHECK(strcmp(status_message(), "NCCL: ncclSend returned 4: a remote error: the link is down") == 0);
    send_result = NCCL_SUCCESS;
    d.abort(d.context); // then the communicator is gone, and nothing is asked of it
    for (int i = 0; i < 500 && !__atomic_load_n(&aborted, __ATOMIC_ACQUIRE); i++) { poll(NULL, 0, 10); }
    CHECK(aborted);
    status_clear();
    CHECK(d.exchange(d.context, out.data(), 5, in.data(), 3, NULL) == STATUS_ERROR && is_asked(""));
    CHECK(d.merge(d.context, x, 9, COMM_FLOAT, NULL) == STATUS_ERROR && is_asked(""));
    d.close(d.context);
    CHECK(is_asked(""));
    status_clear();
}

// ----------------------------------------------------------------------------
// Two processes

static int port;
static int listen_somewhere() {
    struct sockaddr_in a = {};
    socklen_t length = sizeof(a);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    a.sin_family = AF_INET;
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (bind(fd, (struct sockaddr*)&a, sizeof(a)) != 0 || listen(fd, 8) != 0 ||
        getsockname(fd, (struct sockaddr*)&a, &length) != 0) {
        fatal("no socket: %s", strerror(errno));
    }
    port = ntohs(a.sin_port);
    return fd;
}

static Comm* meet(int rank, int listener) {
    Comm* c = NULL;
    CommSettings s = {};
    alarm(30); // a process that waits for ever ends by a signal
    s.rank = rank, s.size = 2, s.address = "127.0.0.1", s.port = port, s.token = "test", s.settings = "";
    s.listener = listener, s.connect_timeout = 20, s.fault_timeout = 10;
    check(comm_open(&c, s));
    comm_use_device(c, open_played(c));
    return c;
}

// Rank 0 runs `first` and rank 1 `second`; what rank 0 says, and when it has ended.
static UnitChild run(void (*first)(Comm*), void (*second)(Comm*), double* seconds) {
    int listener = listen_somewhere();
    double begin = wall_seconds();
    fflush(NULL);
    pid_t other = fork();
    if (other == 0) {
        if (freopen("/dev/null", "w", stderr) == NULL) { _exit(98); }
        close(listener);
        second(meet(1, -1));
        _exit(0);
    }
    if (unit_fork()) {
        first(meet(0, listener));
        _exit(0);
    }
    close(listener);
    UnitChild child = unit_wait();
    *seconds = wall_seconds() - begin;
    waitpid(other, NULL, 0);
    return child;
}

static void exchange(Comm* c) { // with the other rank
    char x[8];
    CommBlock block = {1 - comm_rank(c), x, 8};
    check(comm_tensor_exchange(c, &block, 1, &block, 1, NULL));
}
static void exchange_without_end(Comm* c) {
    steps_in_progress = INT_MAX;
    exchange(c);
    fatal("the exchange is done");
}
static void end_without_a_word(Comm*) {
    poll(NULL, 0, 300);
    _exit(0);
}
static void fail(Comm*) {
    poll(NULL, 0, 300);
    fatal("the disk is full");
}
static void wait_without_end(Comm* c) { // as in cudaStreamSynchronize, which an abort ends
    while (!__atomic_load_n(&aborted, __ATOMIC_ACQUIRE)) { poll(NULL, 0, 1); }
    check(comm_health(c));
    fatal("no error after the abort");
}
static void notice_an_error(Comm* c) { // which no call returns
    __atomic_store_n(&state, NCCL_REMOTE_ERROR, __ATOMIC_RELEASE);
    wait_without_end(c);
}
static void hang_in_a_call(Comm* c) { // which holds the mutex; comm.h's thread ends the process
    NcclTransport* t = (NcclTransport*)c->device.context;
    pthread_mutex_lock(&t->mutex);
    pause();
}
static void work_and_close(Comm* c) {
    for (int i = 0; i < 50; i++) { exchange(c); }
    comm_close(c);
}

static void check_end(const char* words, void (*first)(Comm*), void (*second)(Comm*), double limit) {
    double seconds = 0;
    UnitChild child = run(first, second, &seconds);
    if (!CHECK(unit_is_user_error(&child) && strstr(child.text, words) != NULL && seconds < limit)) {
        printf("    expected '%s' within %g s; after %.1f s, exit code %d and: %s\n", words, limit, seconds,
               child.exit_code, child.text);
    }
}

static void test_ends() {
    double seconds = 0;
    UnitChild child = run(work_and_close, work_and_close, &seconds);
    CHECK(child.exit_code == 0 && child.text[0] == '\0');
    check_end("rank 1", exchange_without_end, end_without_a_word, 5);
    check_end("rank 1: the disk is full", exchange_without_end, fail, 5);
    check_end("rank 1", wait_without_end, end_without_a_word, 5);
    check_end("rank 1: the disk is full", wait_without_end, fail, 5);
    check_end("rank 0: NCCL: a transfer returned 6: a remote error: the link is down", notice_an_error,
              wait_without_end, 10);
    check_end("rank 1: NCCL: a transfer returned 6", wait_without_end, notice_an_error, 10);
    check_end("rank 1: the disk is full", hang_in_a_call, fail, 10);
}

// Processes copy from each other only where their machines have one name; without a name they would not even on one machine.
static void test_machine() {
    char machine[PEER_MACHINE_BYTES] = "";
    peer_machine_(machine);
    CHECK(strlen(machine) >= 36 || !file_exists("/proc/sys/kernel/random/boot_id")); // a UUID
}

int main() {
    test_calls();
    test_machine();
    aborted = false;
    test_ends();
    return unit_end();
}
