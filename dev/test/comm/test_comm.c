/*
llmc/comm/comm.h: processes exchange blocks, and end together, whatever happens to one of them: each ends in time, with one line
that names the rank and the cause. Also built with -fsanitize=thread (make check-tsan-test_comm).
*/
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>

// recv(), behind which the watching thread stops its process once, where a test has asked for it
static int stop_behind_recv;
static ssize_t recv_and_stop(int fd, void* data, size_t bytes, int flags) {
    ssize_t n = recv(fd, data, bytes, flags);
    int code = errno;
    if (flags == MSG_DONTWAIT && __atomic_exchange_n(&stop_behind_recv, 0, __ATOMIC_ACQ_REL)) { raise(SIGSTOP); }
    errno = code;
    return n;
}
// poll(), which counts the looks at what rank 0 may say of a connection that broke
static int judging;
static int poll_and_count(struct pollfd* fds, nfds_t count, int ms) {
    if (fds == NULL && ms == 50) { __atomic_add_fetch(&judging, 1, __ATOMIC_RELAXED); }
    return poll(fds, count, ms);
}
#define recv recv_and_stop
#define poll poll_and_count
#include "dev/test/fixtures/comm_processes.h"
#undef poll

#include "llmc/base/atomic_file.h"

static unsigned char byte_of(int from, int to, int block, size_t i) {
    return (unsigned char)(from * 31 + to * 7 + block * 3 + (int)(i % 251));
}

// To each rank three blocks, one of them of no bytes, whose sizes depend on both; its own are not moved.
static void exchanges_blocks(Comm* c) {
    static const size_t sizes[] = {1, 7, 4096, 300000};
    int rank = comm_rank(c), size = comm_size(c);
    for (size_t k = 0; k < 4; k++) {
        CommBlock sent[3 * MOST], received[3 * MOST];
        for (int i = 0; i < 3 * size; i++) {
            size_t to = (size_t)(i % size + 2 * rank + i / size), from = (size_t)(rank + 2 * (i % size) + i / size);
            sent[i].rank = received[i].rank = i % size;
            sent[i].bytes = i / size == 1 ? 0 : sizes[k] + to, received[i].bytes = i / size == 1 ? 0 : sizes[k] + from;
            sent[i].data = malloc_check(sent[i].bytes), received[i].data = calloc_check(received[i].bytes, 1);
            for (size_t j = 0; j < sent[i].bytes; j++) {
                ((unsigned char*)sent[i].data)[j] = byte_of(rank, i % size, i / size, j);
            }
        }
        check(comm_tensor_exchange(c, sent, 3 * size, received, 3 * size, NULL));
        for (int i = 0; i < 3 * size; i++) {
            const unsigned char* data = (const unsigned char*)received[i].data;
            for (size_t j = 0; j < received[i].bytes; j++) {
                CLAIM(data[j] == (i % size == rank ? 0 : byte_of(i % size, rank, i / size, j)));
            }
            free(sent[i].data);
            free(received[i].data);
        }
    }
}

static void gathers_and_broadcasts(Comm* c) {
    static const size_t sizes[] = {0, 1, 2, 7, 100000};
    int rank = comm_rank(c), size = comm_size(c);
    for (size_t k = 0; k < 5; k++) {
        size_t n = sizes[k];
        unsigned char* all = (unsigned char*)calloc_check(n * (size_t)size, 1);
        for (size_t i = 0; i < n; i++) { all[(size_t)rank * n + i] = byte_of(rank, 0, 0, i); }
        check(comm_gather(c, all, n));
        for (size_t i = 0; i < n * (size_t)size; i++) { CLAIM(all[i] == byte_of((int)(i / n), 0, 0, i % n)); }
        for (int root = 0; root < size; root++) {
            for (size_t i = 0; i < n; i++) { all[i] = byte_of(rank, 1, 2, i); }
            check(comm_broadcast(c, all, n, root));
            for (size_t i = 0; i < n; i++) { CLAIM(all[i] == byte_of(root, 1, 2, i)); }
        }
        free(all);
    }
    CommBlock shared[MOST]; // an all-gather in place: own blocks lie where they should
    int numbers[MOST] = {0}, count = 0;
    CommBlock own[MOST];
    numbers[rank] = rank + 1;
    for (int i = 0; i < size; i++) {
        own[count].rank = i, own[count].data = &numbers[rank], own[count].bytes = sizeof(int);
        shared[count].rank = i, shared[count].data = &numbers[i], shared[count++].bytes = sizeof(int);
    }
    check(comm_tensor_exchange(c, own, count, shared, count, NULL));
    for (int i = 0; i < size; i++) { CLAIM(numbers[i] == i + 1); }
    for (int least = 0; least < size; least++) { // of rank `least`
        int number = rank == least ? -3 - size : rank, sum = number, all_but_one = size * (size - 1) / 2 - least;
        check(comm_min(c, &number));
        check(comm_sum(c, &sum));
        CLAIM(number == -3 - size && sum == all_but_one - 3 - size);
    }
}

// Number i is rank i % size's.
static void merges(Comm* c) {
    enum { N = 700 };
    float floats[N] = {0};
    double doubles[N] = {0};
    uint64_t integers[N] = {0};
    int rank = comm_rank(c), size = comm_size(c);
    for (int i = rank; i < N; i += size) {
        floats[i] = i == 5 ? NAN : i == 6 ? -INFINITY : 1.0f / (float)(i + 1);
        doubles[i] = i == 7 ? INFINITY : -1.0 / (i + 1);
        integers[i] = UINT64_MAX - (uint64_t)i;
    }
    check(comm_tensor_merge(c, floats, N, COMM_FLOAT, NULL));
    check(comm_tensor_merge(c, doubles, N, COMM_DOUBLE, NULL));
    check(comm_tensor_merge(c, integers, N, COMM_UINT64, NULL));
    check(comm_tensor_merge(c, integers, 0, COMM_UINT64, NULL));
    CLAIM(isnan(floats[5]) && floats[6] == -INFINITY && doubles[7] == INFINITY);
    for (int i = 8; i < N; i++) {
        CLAIM(floats[i] == 1.0f / (float)(i + 1) && doubles[i] == -1.0 / (i + 1));
        CLAIM(integers[i] == UINT64_MAX - (uint64_t)i);
    }
}

// Sums of numbers that several ranks have are rounded alike in all of them.
static void sums_are_the_same_everywhere(Comm* c) {
    enum { N = 100 };
    float sums[MOST][N];
    int rank = comm_rank(c), size = comm_size(c);
    for (int i = 0; i < N; i++) { sums[rank][i] = 1.0f / (float)(1 + i + 7 * rank * rank); }
    check(comm_tensor_merge(c, sums[rank], N, COMM_FLOAT, NULL));
    check(comm_gather(c, sums, sizeof(sums[0])));
    for (int r = 0; r < size; r++) { CLAIM(memcmp(sums[r], sums[rank], sizeof(sums[0])) == 0); }
}

static void all_functions(Comm* c) {
    CLAIM((c == NULL) == (comm_size(c) == 1));
    exchanges_blocks(c);
    gathers_and_broadcasts(c);
    merges(c);
    sums_are_the_same_everywhere(c);
    for (int i = 0; i < 50; i++) { check(comm_barrier(c)); }
    check(comm_health(c));
    check(comm_compare(c, "precision fp32\ndata 17\n"));
}

// While the main threads gather, another thread of each process sends to rank 0 and waits for its answer.
static void* background(void* comm) {
    Comm* c = (Comm*)comm;
    char* block = (char*)malloc_check(1000000);
    for (int i = 0; i < 10; i++) {
        for (int r = 1; r < comm_size(c) && comm_rank(c) == 0; r++) {
            check(comm_background_receive(c, r, block, 1000000));
            CLAIM(block[0] == r && block[999999] == i);
            check(comm_background_send(c, r, &i, sizeof(i)));
        }
        if (comm_rank(c) != 0) {
            int answer = -1;
            memset(block, i, 1000000);
            block[0] = (char)comm_rank(c);
            check(comm_background_send(c, 0, block, 1000000));
            check(comm_background_receive(c, 0, &answer, sizeof(answer)));
            CLAIM(answer == i);
        }
    }
    free(block);
    return NULL;
}
static void background_beside(Comm* c) {
    pthread_t thread;
    CLAIM(thread_start(&thread, background, c));
    for (int i = 0; i < 20; i++) { gathers_and_broadcasts(c); }
    pthread_join(thread, NULL);
}

// A process that waits for the others takes no time of its core; blocks larger than what the system holds go both ways at once.
static void waits_without_spinning(Comm* c) {
    enum { N = 16 << 20 };
    char *out = (char*)malloc_check(N), *in = (char*)malloc_check(N);
    struct timespec before, after;
    memset(out, comm_rank(c) + 1, N);
    check(comm_barrier(c));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    if (comm_rank(c) == 1) { poll(NULL, 0, 500); }
    char byte[2] = {0};
    check(comm_gather(c, byte, 1));
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    CLAIM((double)(after.tv_sec - before.tv_sec) + 1e-9 * (double)(after.tv_nsec - before.tv_nsec) < 0.2);
    CommBlock sent = {1 - comm_rank(c), out, N}, received = {1 - comm_rank(c), in, N};
    check(comm_tensor_exchange(c, &sent, 1, &received, 1, NULL));
    CLAIM(in[0] == 2 - comm_rank(c) && in[N - 1] == 2 - comm_rank(c));
    free(out);
    free(in);
}

static void other_identity(Comm* c) {
    check(comm_compare(c, comm_rank(c) == 2 ? "precision fp32\ndata 18\n" : "precision fp32\ndata 17\n"));
}

// ----------------------------------------------------------------------------
// A device in place of the sockets: functions are called with its context.

static struct { int exchanges, merges, aborts, closes; } device_calls;

static double device_numbers[3];

static Status device_exchange(void* context, const CommBlock* sent, int num_sent, const CommBlock* received,
                              int num_received, void* stream) {
    CLAIM(context == &device_calls && sent[0].bytes == 4 && num_sent == 1 && num_received == 1 && stream == context);
    CLAIM(received[0].rank == 0);
    device_calls.exchanges++;
    return STATUS_OK;
}
static Status device_merge(void* context, void* numbers, size_t count, CommNumber type, void* stream) {
    CLAIM(context == &device_calls && numbers == device_numbers && count == 3 && type == COMM_DOUBLE && stream == NULL);
    device_calls.merges++;
    return STATUS_OK;
}
static void device_abort(void* context) {
    CLAIM(context == &device_calls);
    __atomic_add_fetch(&device_calls.aborts, 1, __ATOMIC_SEQ_CST);
}
static void device_close(void* context) {
    CLAIM(context == &device_calls);
    device_calls.closes++;
}
static void use_device(Comm* c) {
    CommDevice device = {device_exchange, device_merge, device_abort, device_close, &device_calls, NULL};
    comm_use_device(c, device);
}
static void device_is_used(Comm* c) {
    CommBlock block = {0, NULL, 4};
    use_device(c);
    check(comm_tensor_exchange(c, &block, 1, &block, 1, &device_calls));
    check(comm_tensor_merge(c, device_numbers, 3, COMM_DOUBLE, NULL));
    comm_close(c);
    CLAIM(device_calls.exchanges == 1 && device_calls.merges == 1 && device_calls.closes == 1);
    CLAIM(device_calls.aborts == 0);
    _exit(0);
}
static void device_is_aborted(Comm* c) {
    use_device(c);
    Status met = comm_barrier(c); // rank 0 may hear in it what rank 1 says after it
    if (comm_rank(c) == 1 && met == STATUS_OK) { fatal("the device is broken"); }
    while (comm_health(c) == STATUS_OK) { poll(NULL, 0, 10); }
    for (int i = 0; i < 999 && __atomic_load_n(&device_calls.aborts, __ATOMIC_SEQ_CST) == 0; i++) { poll(NULL, 0, 10); }
    CLAIM(device_calls.aborts == 1);
    comm_close(c);
    CLAIM(device_calls.closes == 1);
    _exit(strstr(status_message(), "rank 1: the device is broken") != NULL ? 0 : 7);
}
static Status device_notices(void* context, void* numbers, size_t count, CommNumber type, void* stream) {
    (void)context, (void)numbers, (void)count, (void)type, (void)stream;
    return status_fail("remote process exited"); // as NCCL would say of a rank that was killed
}
static void device_fails(Comm* c) {
    CommDevice device = {device_exchange, device_notices, device_abort, device_close, &device_calls, NULL};
    comm_use_device(c, device);
    check(comm_barrier(c));
    if (comm_rank(c) == 1) {
        poll(NULL, 0, 300);
        raise(SIGKILL);
    }
    check(comm_tensor_merge(c, device_numbers, 3, COMM_DOUBLE, NULL));
}

// An abort that never returns: the watching thread ends the process.
static void device_hangs(void* context) {
    device_abort(context);
    for (;;) { poll(NULL, 0, 60000); }
}
static void device_abort_hangs(Comm* c) {
    CommDevice device = {device_exchange, device_merge, device_hangs, device_close, &device_calls, NULL};
    comm_use_device(c, device);
    Status met = comm_barrier(c);
    if (comm_rank(c) == 1 && met == STATUS_OK) { fatal("the device is broken"); }
    while (__atomic_load_n(&device_calls.aborts, __ATOMIC_SEQ_CST) == 0) { poll(NULL, 0, 10); }
    comm_close(c);
    _exit(7);
}

// ----------------------------------------------------------------------------
// Faults

static void goes_on(Comm* c) {
    for (;;) { check(comm_barrier(c)); }
}
static void dies(Comm* c) {
    check(comm_barrier(c));
    if (comm_rank(c) == 1) { raise(SIGKILL); }
    goes_on(c);
}
static void root_dies(Comm* c) {
    check(comm_barrier(c));
    if (comm_rank(c) == 0) { raise(SIGKILL); }
    goes_on(c);
}
static void stops(Comm* c) {
    check(comm_barrier(c));
    if (comm_rank(c) == 2) { raise(SIGSTOP); }
    goes_on(c);
}
static void root_stops(Comm* c) {
    check(comm_barrier(c));
    if (comm_rank(c) == 0) { raise(SIGSTOP); }
    goes_on(c);
}
static void gives_up(Comm* c) {
    check(comm_barrier(c));
    if (comm_rank(c) == 2) { fatal("no space left on %s", "device"); }
    goes_on(c);
}
static void root_gives_up(Comm* c) {
    check(comm_barrier(c));
    if (comm_rank(c) == 0) { fatal("no space left on %s", "device"); }
    goes_on(c);
}
static void ends_too_early(Comm* c) {
    check(comm_barrier(c));
    if (comm_rank(c) == 1) { _exit(0); }
    goes_on(c);
}
static void closes_too_early(Comm* c) {
    check(comm_barrier(c));
    if (comm_rank(c) == 1) {
        comm_close(c);
        _exit(0);
    }
    goes_on(c);
}
static void does_something_else(Comm* c) {
    int number = 0;
    check(comm_barrier(c));
    if (comm_rank(c) == 1) { check(comm_broadcast(c, &number, sizeof(number), 0)); }
    goes_on(c);
}

// What rank 0 says of a connection that broke is not waited for longer than it takes to come.
static void dies_and_is_judged(Comm* c) {
    Status status = comm_barrier(c); // an error where another has left it earlier, and has died
    if (comm_rank(c) == 1) { raise(SIGKILL); }
    while (status == STATUS_OK) { status = comm_barrier(c); }
    _exit(judging < 60 && strstr(status_message(), "rank 1 died without an error message") ? 0 : 7);
}
// One connection breaks, and rank 0 knows of no fault.
static void only_a_connection_breaks(Comm* c) {
    check(comm_barrier(c));
    if (comm_rank(c) == 1) {
        shutdown(c->peers[0].fd[COMM_DATA], SHUT_RDWR);
        while (comm_health(c) == STATUS_OK) { poll(NULL, 0, 10); }
        check(comm_health(c));
    }
    goes_on(c);
}
// Rank 2 says that it has failed, and its connections stay: its word alone ends what the others wait for.
static void fails_and_stays(Comm* c) {
    Status status = comm_barrier(c);
    if (comm_rank(c) == 2) {
        comm_fail(c, "no space left");
        if (fork() == 0) { poll(NULL, 0, 4000); } // has them, too, for longer than the watching threads wait
        _exit(0);
    }
    while (status == STATUS_OK) { status = comm_barrier(c); }
    _exit(strcmp(status_message(), "rank 2: no space left") == 0 ? 7 : 8);
}

// Rank 1 is killed, and rank 2 ends because it has noticed: rank 1 is the cause.
static void one_dies_one_notices(Comm* c) {
    char byte;
    check(comm_barrier(c));
    if (comm_rank(c) == 1) { raise(SIGKILL); }
    struct pollfd p = {comm_rank(c) == 2 ? c->peers[1].fd[COMM_DATA] : -1, POLLIN, 0};
    if (comm_rank(c) == 2) {
        while (poll(&p, 1, 1000) != 1 || recv(p.fd, &byte, 1, MSG_PEEK) > 0) {}
        if (comm_background_receive(c, 0, &byte, 1) != STATUS_OK) { fatal("rank 1 is gone, says rank 2"); }
    }
    goes_on(c);
}
// Two fail at once: the others name the same one.
static void two_give_up(Comm* c) {
    check(comm_barrier(c));
    if (comm_rank(c) == 1 || comm_rank(c) == 3) { fatal("fault of %d", comm_rank(c)); }
    goes_on(c);
}

// Rank 0 waits for something that is not of comm.h, and rank 1 hangs behind its line: both are ended, with one line each.
static const char* half_path;
static void hang(void) { poll(NULL, 0, 60000); }
static void hangs(Comm* c) {
    AtomicFile file;
    check(comm_barrier(c));
    if (comm_rank(c) == 0) {
        check(atomic_open(&file, half_path));
        check(atomic_write(&file, "half", 4));
    }
    (void)comm_barrier(c); // an error where rank 2 has left it earlier, and has died
    if (comm_rank(c) == 2) { raise(SIGKILL); }
    if (comm_rank(c) == 1) {
        while (comm_health(c) == STATUS_OK) { poll(NULL, 0, 10); }
        print_error("%s", status_message());
    }
    hang();
}

// Its other thread waits for rank 1, which is killed.
static void background_dies(Comm* c) {
    char byte;
    check(comm_barrier(c));
    if (comm_rank(c) == 1) { raise(SIGKILL); }
    if (comm_rank(c) == 0) { check(comm_background_receive(c, 1, &byte, 1)); }
    goes_on(c);
}

static void soon(CommSettings* s) { s->fault_timeout = 3.2; }
static const double SOON = 30.0; // a slow machine may end them later than fault_timeout, who hangs does so for a minute

static void processes_exchange(void) {
    for (int size = 1; size <= MOST; size++) {
        run(size, all_functions, NULL);
        CHECK(all_ended_well(size));
    }
    run(3, background_beside, NULL);
    CHECK(all_ended_well(3));
    run(2, waits_without_spinning, NULL);
    CHECK(all_ended_well(2));
    run(4, other_identity, NULL);
    for (int i = 0; i < 4; i++) { // what it finds itself, or hears of another that was first
        CHECK(ended_saying(i, 1, "rank 2 was started with data 18, rank 0 with data 17"));
    }
}

static void a_device_takes_the_place_of_the_sockets(void) {
    run(2, device_is_used, NULL);
    CHECK(all_ended_well(2));
    run(2, device_is_aborted, NULL);
    CHECK(ended_saying(0, 0, "") && ended_with(1, "the device is broken"));
    run(3, device_fails, NULL);
    CHECK(ended_with(0, "rank 1 died without an error message") &&
          ended_with(2, "rank 1 died without an error message"));
    run(2, device_abort_hangs, soon);
    CHECK(ended_with(0, "rank 1: the device is broken") && processes[0].ended < SOON);
}

static void all_end_where_one_does(void) {
    run(4, dies, NULL);
    CHECK(processes[1].exit_code == -SIGKILL);
    for (int i = 0; i < 4; i++) { CHECK(i == 1 || ended_with(i, "rank 1 died without an error message")); }
    run(3, root_dies, NULL);
    for (int i = 1; i < 3; i++) { CHECK(ended_with(i, "rank 0 died without an error message")); }
    run(3, gives_up, NULL);
    for (int i = 0; i < 3; i++) { CHECK(ended_with(i, &"rank 2: no space left on device"[i == 2 ? 8 : 0])); }
    run(3, root_gives_up, NULL);
    for (int i = 0; i < 3; i++) { CHECK(ended_with(i, &"rank 0: no space left on device"[i == 0 ? 8 : 0])); }
    run(3, ends_too_early, NULL);
    CHECK(ended_with(0, "rank 1 died without an error message") &&
          ended_with(2, "rank 1 died without an error message"));
    run(3, closes_too_early, NULL);
    for (int i = 0; i < 3; i += 2) {
        CHECK(processes[i].exit_code == 1 &&
              strstr(processes[i].text, " is at another point of the program than rank "));
    }
    run(2, does_something_else, NULL);
    CHECK(strstr(processes[0].text, " is at another point of the program than rank ") && processes[0].exit_code == 1);
    CHECK(strstr(processes[1].text, " is at another point of the program than rank ") && processes[1].exit_code == 1);
    run(3, background_dies, NULL);
    CHECK(ended_with(0, "rank 1 died without an error message") &&
          ended_with(2, "rank 1 died without an error message"));
}

static void waits_end_with_what_is_known(void) {
    run(3, dies_and_is_judged, NULL);
    CHECK(ended_saying(0, 0, "") && ended_saying(2, 0, ""));
    run(2, only_a_connection_breaks, NULL);
    for (int i = 0; i < 2; i++) {
        CHECK(ended_saying(i, 1, "rank 1: its connection with rank 0 broke") && processes[i].ended < SOON);
    }
    run(3, fails_and_stays, soon);
    for (int i = 0; i < 2; i++) { CHECK(ended_saying(i, 7, "")); }
}

// What the other side does not take is not waited for longer than a second, nor where it is gone.
static void notices_are_waited_for_a_second(void) {
    struct sockaddr_in here;
    CommPeer peer;
    CommWait wait = comm_wait_begin(NULL, 15.0);
    Comm c;
    memset(&c, 0, sizeof(c));
    memset(&peer, 0, sizeof(peer));
    listen_here();
    here = comm_own_end(listener);
    check(comm_connect(&peer.fd[COMM_CONTROL], here, wall_seconds() + 15.0, NULL, &wait));
    int other = accept(listener, NULL, NULL);
    c.size = 1, c.peers = &peer;
    static const char full[1 << 16];
    while (send(peer.fd[COMM_CONTROL], full, sizeof(full), MSG_DONTWAIT) > 0) {}
    double start = wall_seconds();
    comm_drain(&c);
    CHECK_NEAR(wall_seconds() - start, 8.0, 7.2);
    close(other);
    start = wall_seconds();
    comm_drain(&c);
    CHECK(wall_seconds() - start < 0.8);
    close(peer.fd[COMM_CONTROL]);
    close(listener);
    listener = -1;
}

// Silence, and the time to end after it, fit into --fault-timeout.
static void the_fault_timeout_holds_both(void) {
    static const double timeouts[] = {2.0, 3.2, 12.0, 1000.0};
    for (int i = 0; i < 4; i++) {
        Comm c;
        memset(&c, 0, sizeof(c));
        pthread_mutex_init(&c.mutex, NULL);
        c.closing = 1;
        check(comm_watch_begin_(&c, timeouts[i]));
        pthread_join(c.thread, NULL);
        CHECK(c.silence >= 1.0 && c.grace >= 1.0 && c.grace <= 5.0 && c.silence + c.grace <= timeouts[i]);
    }
}

static void the_first_cause_is_named(void) {
    run(4, one_dies_one_notices, NULL);
    for (int i = 0; i < 4; i++) { CHECK(i == 1 || ended_with(i, "rank 1 died without an error message")); }
    run(5, two_give_up, NULL);
    int named = strstr(processes[0].text, "rank 1: ") != NULL ? 1 : 3;
    char cause[32];
    snprintf(cause, sizeof(cause), "rank %d: fault of %d", named, named);
    for (int i = 0; i < 5; i += 2) { CHECK(ended_with(i, cause)); }
}

// Within fault_timeout, the machine of the tests being slow.
static void silence_is_a_fault(void) {
    begin(3, stops, soon);
    while (waitpid(processes[2].pid, NULL, WUNTRACED | WNOHANG) == 0) { poll(NULL, 0, 10); }
    started = wall_seconds();
    poll(NULL, 0, 1800);
    kill(processes[2].pid, SIGCONT); // it finds that it was given up, and ends too
    finish(3);
    for (int i = 0; i < 3; i++) { CHECK(ended_with(i, "rank 2 has been silent for")); }
    CHECK(processes[0].ended < SOON && processes[1].ended < SOON);
    begin(3, root_stops, soon);
    while (waitpid(processes[0].pid, NULL, WUNTRACED | WNOHANG) == 0) { poll(NULL, 0, 10); }
    poll(NULL, 0, 1600);
    kill(processes[0].pid, SIGKILL);
    finish(3);
    for (int i = 1; i < 3; i++) { CHECK(ended_with(i, "rank 0 has been silent for")); }
}

static void who_hangs_is_ended(void) {
    half_path = unit_path("half.bin");
    run(3, hangs, soon);
    for (int i = 0; i < 2; i++) { CHECK(ended_with(i, "rank 2 died without an error message")); }
    CHECK(processes[0].ended > 1.5 && processes[0].ended < SOON && processes[1].ended < SOON);
    CHECK(!file_exists(unit_path("half.bin.tmp")) && !file_exists(half_path));
}

// All are stopped together, as by Ctrl-Z, for longer than silence may last, and go on.
static void pauses(Comm* c) {
    for (int i = 0; i < 40; i++) {
        check(comm_barrier(c));
        poll(NULL, 0, 20);
    }
}
static void later(CommSettings* s) { s->fault_timeout = 6.0; } // 2.5 s of silence
static void stopped_together_is_no_fault(void) {
    begin(3, pauses, later);
    poll(NULL, 0, 300);
    for (int i = 0; i < 3; i++) { kill(processes[i].pid, SIGSTOP); }
    poll(NULL, 0, 3000);
    for (int i = 0; i < 3; i++) { kill(processes[i].pid, SIGCONT); }
    finish(3);
    CHECK(all_ended_well(3));
}

// The same where the watching thread is between a look at its clock and one at what has been heard.
static void pauses_at_once(Comm* c) {
    for (int i = 0; i < 40; i++) {
        check(comm_barrier(c));
        if (i == 10) { __atomic_store_n(&stop_behind_recv, 1, __ATOMIC_RELEASE); }
        poll(NULL, 0, 20);
    }
}
static void stopped_while_listening_is_no_fault(void) {
    begin(3, pauses_at_once, later);
    for (int i = 0; i < 3; i++) { waitpid(processes[i].pid, NULL, WUNTRACED); }
    poll(NULL, 0, 3000);
    for (int i = 0; i < 3; i++) { kill(processes[i].pid, SIGCONT); }
    finish(3);
    CHECK(all_ended_well(3));
}

static void a_process_alone_needs_none_of_it(void) {
    Comm* c = (Comm*)(void*)&started;
    CommSettings s = settings_of(0, 1);
    s.address = NULL, s.token = s.settings = NULL;
    CHECK(comm_open(&c, s) == STATUS_OK && c == NULL);
    CHECK(comm_rank(c) == 0 && comm_size(c) == 1 && comm_health(c) == STATUS_OK && comm_barrier(c) == STATUS_OK);
    CommDevice device = {NULL, NULL, NULL, NULL, NULL, NULL};
    comm_use_device(c, device);
    comm_fail(c, "nobody hears it");
    CHECK(comm_background_send(c, 0, "", 1) == STATUS_OK && comm_background_receive(c, 0, &s, 1) == STATUS_OK);
    comm_close(c);
}

int main(void) {
    a_process_alone_needs_none_of_it();
    processes_exchange();
    a_device_takes_the_place_of_the_sockets();
    all_end_where_one_does();
    waits_end_with_what_is_known();
    notices_are_waited_for_a_second();
    the_fault_timeout_holds_both();
    the_first_cause_is_named();
    silence_is_a_fault();
    who_hangs_is_ended();
    stopped_together_is_no_fault();
    stopped_while_listening_is_no_fault();
    return unit_end();
}
