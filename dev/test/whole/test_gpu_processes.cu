/*
The GPU model of several processes against that of one, bit by bit: weights, moments, master weights, losses and norms after
20 steps. Needs a GPU. On one GPU all processes share it, and a CommDevice of this file moves tensors through host memory
and sockets, or only the sums, where copy engines move the rest (peer_copies.cuh). Where there are more GPUs and NCCL, each
process has its own, and the same runs go through NCCL too.

    build/test_gpu_processes_bf16
*/
#include "llmc/comm/comm.h"
static Status open_device(CommDevice* device, Comm* comm, int index);
#define GPT2_OPEN_DEVICE open_device
#include "train_gpt2.cu"
#include "dev/test/fixtures/parameters.h"
#include "dev/test/fixtures/unit.h"

#include <sys/mman.h>
#include <vector>

enum { STEPS = 20, B = 2, T = 64, MOST = 4, SECONDS = 300 };    // MOST processes; after SECONDS a process has hung
static const GPT2Config SMALL = {T, 1000, 1024, 3, 2, 128, 0};  // its buckets are no multiples of shards
static const GPT2Config WIDE = {T, 50257, 50304, 1, 3, 192, 0}; // two buckets of wte

typedef struct {
    const char* name;
    const GPT2Config* config;
    int M, zero, sum_any, masters; // M micro-batches a step, of all processes
    int holds = 0, hold = 0;       // 1: exchanges of the layers above `hold` are held (exchange/buckets.cuh)
} Scenario;
static const Scenario SCENARIOS[] = {
    {"4 micro-batches", &SMALL, 4, 1, 0, 1},
    {"8 micro-batches, one layer held", &SMALL, 8, 1, 0, 1, 1, 1},
    {"12 micro-batches", &SMALL, 12, 1, 0, 1},
    {"4 micro-batches, -z 0, two layers held", &SMALL, 4, 0, 0, 1, 1, 0},
    {"12 micro-batches, -z 0", &SMALL, 12, 0, 0, 1},
    {"4 micro-batches, no masters", &SMALL, 4, 1, 0, 0},
    {"4 micro-batches, a large vocabulary", &WIDE, 4, 1, 0, 1},
    {"4 micro-batches, any order", &SMALL, 4, 1, 1, 1},
    {"4 micro-batches, any order, -z 0", &SMALL, 4, 0, 1, 1},
};
enum { NUM_SCENARIOS = sizeof(SCENARIOS) / sizeof(SCENARIOS[0]), TREE_12 = 2, TREE_12_ZERO_0 = 4 };

typedef enum {
    STAGED,
    COPIES,
    NCCL,
    NCCL_COPIES,
    NUM_TRANSPORTS
} Transport; // copies by copy engines, the rest otherwise

// What a run leaves: hashes of all blocks but the gradients, and the numbers of its steps
typedef struct {
    int done;
    uint64_t blocks[GPT2_MASTER_WEIGHTS + 1];
    float losses[STEPS], norms[STEPS];
} Outcome;

// Of all processes
static struct Shared {
    int passed, failed, skipped;
    Outcome outcomes[NUM_TRANSPORTS][MOST + 1][NUM_SCENARIOS];
} * shared;

// ----------------------------------------------------------------------------
// A CommDevice that moves tensors through host memory and the sockets of the Comm

// What comm.h does without a device
template <class Call> static Status through_sockets(Comm* comm, const Call& call) {
    CommDevice device = comm->device;
    comm->device = {};
    Status status = call();
    comm->device = device;
    return status;
}

static Status staged_exchange(void* context, const CommBlock* sent, int num_sent, const CommBlock* received,
                              int num_received, void* stream) {
    Comm* comm = (Comm*)context;
    std::vector<CommBlock> out(sent, sent + num_sent), in(received, received + num_received);
    std::vector<std::vector<char>> memory;
    TRY(cuda_try(cudaStreamSynchronize((cudaStream_t)stream)));
    for (CommBlock& b : out) {
        memory.emplace_back(b.bytes + 1);
        TRY(cuda_try(cudaMemcpy(memory.back().data(), b.data, b.bytes, cudaMemcpyDeviceToHost)));
        b.data = memory.back().data();
    }
    for (CommBlock& b : in) {
        memory.emplace_back(b.bytes + 1);
        b.data = memory.back().data();
    }
    TRY(through_sockets(
        comm, [&] { return comm_tensor_exchange(comm, out.data(), num_sent, in.data(), num_received, NULL); }));
    for (int i = 0; i < num_received; i++) {
        cuda_try(
            cudaMemcpyAsync(received[i].data, in[i].data, in[i].bytes, cudaMemcpyHostToDevice, (cudaStream_t)stream));
    }
    return cuda_try(cudaStreamSynchronize((cudaStream_t)stream));
}

static Status staged_merge(void* context, void* numbers, size_t count, CommNumber type, void* stream) {
    Comm* comm = (Comm*)context;
    std::vector<char> host(count * (type == COMM_FLOAT ? 4 : 8));
    TRY(cuda_try(cudaStreamSynchronize((cudaStream_t)stream)));
    TRY(cuda_try(cudaMemcpy(host.data(), numbers, host.size(), cudaMemcpyDeviceToHost)));
    TRY(through_sockets(comm, [&] { return comm_tensor_merge(comm, host.data(), count, type, NULL); }));
    TRY(cuda_try(cudaMemcpyAsync(numbers, host.data(), host.size(), cudaMemcpyHostToDevice, (cudaStream_t)stream)));
    return cuda_try(cudaStreamSynchronize((cudaStream_t)stream));
}

static Transport transport; // of this process
static CommDevice nccl;     // once for all of its models

static Status open_device(CommDevice* device, Comm* comm, int index) {
    if (transport >= NCCL) {
        if (nccl.exchange == NULL) { TRY(nccl_open(&nccl, comm, index)); }
        *device = nccl;
        return STATUS_OK;
    }
    *device = {staged_exchange, staged_merge, NULL, NULL, comm, NULL};
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Runs

// Micro-batch number `leaf` of a run, of few tokens, each with its own successor: a model learns that soon.
static void batch(std::vector<int>* inputs, std::vector<int>* targets, int leaf, size_t BT, int V) {
    uint32_t x = 12345u + 2654435761u * (uint32_t)leaf;
    inputs->resize(BT), targets->resize(BT);
    for (size_t i = 0; i < BT; i++) {
        x = x * 1664525u + 1013904223u;
        (*inputs)[i] = (int)(x >> 8) % 50 * (V / 50);
        (*targets)[i] = ((*inputs)[i] * 7 + 3) % V;
    }
}

static GPT2Settings settings_of(const Scenario* s, Comm* comm) {
    GPT2Settings settings = gpt2_default_settings();
    settings.comm = comm, settings.zero = s->zero, settings.sum_any = s->sum_any, settings.master_weights = s->masters;
    settings.micro_steps = s->M / comm_size(comm);
    settings.tf32 = 0;
    settings.copy_engines = transport == COPIES || transport == NCCL_COPIES;
    return settings;
}

static GPT2* small_model(const Scenario* s, Comm* comm) {
    GPT2* model;
    GPT2Settings settings = settings_of(s, comm);
    check(gpt2_create(&model, *s->config, settings));
    check(gpt2_allocate(model, B, T, 1));
    CHECK(gpt2_info(model)->copy_engines == (settings.copy_engines && !s->sum_any && comm_size(comm) > 1));
    if (s->holds) { model->exchange.hold = s->hold; }
    std::vector<float> params(gpt2_info(model)->num_parameters);
    gpt2_init_parameters(params.data(), *s->config, 42);
    check(gpt2_set_parameters(model, params.data()));
    return model;
}

// This process's part of a step's gradients; its micro-batches are those of rank `rank` of `size`.
static void gradients(GPT2* model, int M, int rank, int size, int step) {
    static std::vector<int> inputs[4], targets[4]; // the GPU may still read the last two
    for (int k = 0; k < M / size; k++) {
        int i = k % 4, leaf = step * M + rank * (M / size) + k;
        batch(&inputs[i], &targets[i], leaf, B * T, gpt2_info(model)->config.vocab_size);
        check(gpt2_forward(model, inputs[i].data(), B, T));
        check(gpt2_backward(model, inputs[i].data(), targets[i].data(), M / size, k));
    }
    check(gpt2_synchronize(model)); // before the vectors are written again
}

static float update(GPT2* model, int step) {
    float norm;
    check(gpt2_grad_norm(model, &norm));
    check(gpt2_update(model, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, step + 1));
    check(gpt2_synchronize(model));
    CHECK(gpt2_info(model)->non_finite_weights == 0);
    return norm;
}

static uint64_t hash(const std::vector<char>& bytes) { // FNV-1a
    uint64_t h = 0xcbf29ce484222325u;
    for (char c : bytes) { h = (h ^ (unsigned char)c) * 0x100000001b3u; }
    return h;
}

// A whole block, of all shards. Blocks that every process has are the same in all.
static std::vector<char> whole_block(GPT2* model, GPT2Block block, Comm* comm) {
    size_t bytes = gpt2_block_bytes(model, block), size = (size_t)comm_size(comm);
    std::vector<char> all(bytes * size), whole(bytes);
    char* own = all.data() + (size_t)comm_rank(comm) * bytes;
    check(gpt2_copy_out(model, own, block, 0, bytes));
    check(comm_gather(comm, all.data(), bytes));
    if (!gpt2_info(model)->sharded || block == GPT2_WEIGHTS) {
        CHECK(memcmp(all.data(), own, bytes) == 0 && memcmp(all.data() + (size - 1) * bytes, own, bytes) == 0);
        return std::vector<char>(own, own + bytes);
    }
    for (size_t i = 0; i < bytes; i++) {
        for (size_t r = 0; r < size; r++) { whole[i] = (char)(whole[i] | all[r * bytes + i]); }
    }
    return whole;
}

// What gpt2_copy_out says, the snapshot says too.
static void check_snapshot(GPT2* model) {
    check(gpt2_allocate_snapshot(model));
    check(gpt2_take_snapshot(model));
    for (int b = 0; b <= GPT2_MASTER_WEIGHTS; b++) {
        size_t bytes = gpt2_block_bytes(model, (GPT2Block)b), third = bytes / 12 * 4 + 4;
        if (b == GPT2_GRADIENTS || bytes == 0) { continue; }
        std::vector<char> now(bytes), then(bytes);
        check(gpt2_copy_out(model, now.data(), (GPT2Block)b, 0, bytes));
        for (size_t at = 0; at < bytes; at += third) { // pieces of whole numbers, of which the last is shorter
            size_t n = bytes - at < third ? bytes - at : third;
            check(gpt2_read_snapshot(model, then.data() + at, (GPT2Block)b, at, n));
        }
        CHECK(now == then);
    }
}

static void run_scenario(const Scenario* s, Comm* comm, Outcome* outcome) {
    int rank = comm_rank(comm), size = comm_size(comm);
    GPT2* model = small_model(s, comm);
    const GPT2Info* info = gpt2_info(model);
    Outcome o = {};
    for (int step = 0; step < STEPS; step++) {
        gradients(model, s->M, rank, size, step);
        o.norms[step] = update(model, step);
        o.losses[step] = info->mean_loss;
    }
    CHECK(o.losses[STEPS - 1] < o.losses[0] - 0.1f);
    for (int b = 0; b <= GPT2_MASTER_WEIGHTS; b++) {
        if (b == GPT2_GRADIENTS || gpt2_block_bytes(model, (GPT2Block)b) == 0) { continue; }
        o.blocks[b] = hash(whole_block(model, (GPT2Block)b, comm));
    }
    CHECK(info->sharded == (s->zero && size > 1));
    CHECK(!info->sharded || info->shard_elements < info->elements / (size_t)size + info->elements / 4);
    check_snapshot(model);
    gpt2_free(model);
    o.done = 1;
    if (rank == 0) { *outcome = o; }
}

// ----------------------------------------------------------------------------
// What processes tell each other, and what they do not

// A weight that one process updates to a number that is not finite is counted in all; the search finds it where it is.
static void check_bad_weight(Comm* comm, int zero) {
    Scenario s = {"", &SMALL, 4, zero, 0, 1};
    GPT2* model = small_model(&s, comm);
    float bad = INFINITY;
    char text[256];
    size_t last = gpt2_info(model)->num_parameters - 1; // of lnfb
    check(gpt2_copy_in(model, GPT2_MOMENTS2, &bad, last * sizeof(float), sizeof(float)));
    check(gpt2_find_non_finite(model, text, sizeof(text)));
    int named = strcmp(text, "update: second moment of lnfb") == 0, owners[MOST] = {};
    owners[comm_rank(comm)] = named;
    check(comm_gather(comm, owners, sizeof(int)));
    CHECK(named || text[0] == '\0');
    CHECK(owners[0] + owners[1] + owners[2] + owners[3] == (gpt2_info(model)->sharded ? 1 : comm_size(comm)));
    gradients(model, s.M, comm_rank(comm), comm_size(comm), 0);
    float norm;
    check(gpt2_grad_norm(model, &norm));
    check(gpt2_update(model, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.0f, 1));
    check(gpt2_synchronize(model));
    CHECK(gpt2_info(model)->non_finite_weights == 1);
    gpt2_free(model);
}

// One process alone looks at its own gradients, twice with the same result, while the others do not even know.
static void check_local(Comm* comm) {
    Scenario s = {"", &SMALL, 4, 1, 0, 1};
    int size = comm_size(comm);
    GPT2* model = small_model(&s, comm);
    if (comm_rank(comm) == size - 1) {
        uint64_t digests[2];
        float norms[2];
        gpt2_set_local(model, 1);
        for (int i = 0; i < 2; i++) {
            gradients(model, s.M, size - 1, size, 0);
            check(gpt2_gradient_digest(model, &digests[i]));
            check(gpt2_grad_norm(model, &norms[i]));
        }
        CHECK(digests[0] == digests[1] && norms[0] == norms[1] && norms[0] > 0.0f);
        CHECK(fabs((double)gpt2_info(model)->mean_loss - log(SMALL.vocab_size)) < 0.5);
        gpt2_set_local(model, 0);
    }
    check(comm_barrier(comm));
    gradients(model, s.M, comm_rank(comm), size, 0);
    update(model, 0);
    gpt2_free(model);
}

// What hides the exchanges is never less than a layer, and never more than there are.
static void check_hold(void) {
    CHECK(exchange_hold(12, 75e-6, 1.7e-3) == 1);
    CHECK(exchange_hold(48, 330e-6, 0.94e-3) == 17);
    CHECK(exchange_hold(12, 0.0, 1.0) == 1 && exchange_hold(1, 0.0, 1.0) == 1);
    CHECK(exchange_hold(12, 1.0, 1.0) == 12 && exchange_hold(12, 1.0, 0.0) == 12);
}

// ----------------------------------------------------------------------------
// One process alone: gradients of K micro-batches are those of each, added in tree order.

// The sum of leaves [first, first + count), in the order that gradient_tree.h says: chains of q, then halves.
static std::vector<float> tree(const std::vector<std::vector<float>>& leaves, size_t first, size_t count) {
    std::vector<float> sum = leaves[first];
    if (count % 2 == 0) {
        std::vector<float> other = tree(leaves, first + count / 2, count / 2);
        sum = tree(leaves, first, count / 2);
        for (size_t i = 0; i < sum.size(); i++) { sum[i] += other[i]; }
        return sum;
    }
    for (size_t leaf = 1; leaf < count; leaf++) {
        for (size_t i = 0; i < sum.size(); i++) { sum[i] += leaves[first + leaf][i]; }
    }
    return sum;
}

static void check_leaves(GPT2Config config, int rows, int K) {
    GPT2Settings settings = gpt2_default_settings();
    settings.micro_steps = K, settings.tf32 = 0;
    GPT2* model;
    int tokens = config.max_seq_len;
    check(gpt2_create(&model, config, settings));
    check(gpt2_allocate(model, rows, tokens, 1));
    std::vector<float> params(gpt2_info(model)->num_parameters), sum(params.size());
    gpt2_init_parameters(params.data(), config, 7);
    check(gpt2_set_parameters(model, params.data()));
    std::vector<std::vector<float>> leaves((size_t)K, std::vector<float>(params.size()));
    std::vector<int> inputs, targets;
    for (int pass = 0; pass < 2; pass++) { // each by itself, as a first micro-step; then all of them
        for (int k = 0; k < K; k++) {
            batch(&inputs, &targets, k, (size_t)rows * tokens, config.vocab_size);
            check(gpt2_forward(model, inputs.data(), rows, tokens));
            check(gpt2_backward(model, inputs.data(), targets.data(), K, pass == 0 ? 0 : k));
            check(gpt2_synchronize(model));
            if (pass == 0) { check(gpt2_get_gradients(model, leaves[(size_t)k].data())); }
        }
    }
    check(gpt2_get_gradients(model, sum.data()));
    std::vector<float> expected = tree(leaves, 0, (size_t)K);
    size_t wrong = 0, first = 0;
    for (size_t i = 0; i < sum.size(); i++) {
        if (memcmp(&sum[i], &expected[i], sizeof(float)) != 0 && wrong++ == 0) { first = i; }
    }
    if (!CHECK(wrong == 0)) {
        printf("    %d channels, %d micro-batches: %zu of %zu gradients, the first %zu: %.9g, expected %.9g\n",
               config.channels, K, wrong, sum.size(), first, sum[first], expected[first]);
    }
    gpt2_free(model);
}

// ----------------------------------------------------------------------------
// Processes

static void child(int rank, int size, const char* file) {
    char token[32];
    Comm* comm = NULL;
    alarm(SECONDS);
    if (transport >= NCCL) {
        Nccl library;
        if (gpt2_num_devices() < size || nccl_load(&library) != STATUS_OK) {
            __atomic_fetch_add(&shared->skipped, 1, __ATOMIC_RELAXED);
            return;
        }
    }
    snprintf(token, sizeof(token), "%d", (int)getppid());
    CommSettings settings = {rank, size, "127.0.0.1", NULL, 0, file, -1, token, "", NULL, 60.0, 60.0};
    check(comm_open(&comm, settings));
    gpt2_use_device(rank % (gpt2_num_devices() > 0 ? gpt2_num_devices() : 1));
    for (int i = 0; i < NUM_SCENARIOS; i++) {
        if (SCENARIOS[i].M % size != 0) { continue; }
        run_scenario(&SCENARIOS[i], comm, &shared->outcomes[transport][size][i]);
    }
    if (size != 3) {
        check_bad_weight(comm, 0);
        check_bad_weight(comm, 1);
        check_local(comm);
    }
    if (size == 1) { check_hold(); }
    for (int K = 1; K <= 13 && size == 1; K++) { check_leaves(SMALL, B, K); }
    if (size == 1) { // GEMMs as in training, some of which cuBLASLt splits
        GPT2Config large = {1024, 50257, 50304, 1, 12, 768, 0};
        check_leaves(large, 4, 2);
        check_leaves(large, 4, 3);
    }
    comm_close(comm);
}

static void run_processes(Transport how, int size) {
    char name[32];
    transport = how;
    snprintf(name, sizeof(name), "meeting_%d_%d", (int)how, size);
    const char* file = unit_path(name);
    fflush(NULL);
    for (int rank = 0; rank < size; rank++) {
        pid_t pid = fork();
        if (pid < 0) { fatal("cannot start a process: %s", strerror(errno)); }
        if (pid > 0) { continue; }
        unit_passed = unit_failed = 0;
        child(rank, size, file);
        __atomic_fetch_add(&shared->passed, unit_passed, __ATOMIC_RELAXED);
        __atomic_fetch_add(&shared->failed, unit_failed, __ATOMIC_RELAXED);
        fflush(NULL);
        _exit(0);
    }
    for (int i = 0, status; i < size; i++) {
        wait(&status);
        if (!CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0)) { printf("    one of %d processes\n", size); }
    }
}

// ----------------------------------------------------------------------------

static void compare(Transport how, int size) {
    static const char* const transports[] = {"sockets", "copy engines and sockets", "NCCL", "copy engines and NCCL"};
    for (int i = 0; i < NUM_SCENARIOS; i++) {
        const Outcome *o = &shared->outcomes[how][size][i], *alone = &shared->outcomes[STAGED][1][i];
        if (SCENARIOS[i].M % size != 0) { continue; }
        int same_losses = memcmp(o->losses, alone->losses, sizeof(o->losses)) == 0;
        int same_norms = memcmp(o->norms, alone->norms, sizeof(o->norms)) == 0;
        int same_blocks = memcmp(o->blocks, alone->blocks, sizeof(o->blocks)) == 0;
        int ok = CHECK(o->done && alone->done);
        if (SCENARIOS[i].sum_any ||
            size == 3) { // the same numbers in another order: of the first step, the losses' bits
            ok = CHECK(o->losses[0] == alone->losses[0]) && ok;
            ok = CHECK(fabsf(o->norms[0] / alone->norms[0] - 1.0f) <= 1e-5f) && ok;
            ok = CHECK(fabsf(o->losses[STEPS - 1] - alone->losses[STEPS - 1]) <= 0.02f) && ok;
        } else {
            ok = CHECK(same_losses) && CHECK(same_norms) && CHECK(same_blocks) && ok;
        }
        printf("%d processes, %s, %s: loss %.6f, norm %.6f, weights %016llx%s\n", size, transports[how],
               SCENARIOS[i].name, o->losses[STEPS - 1], o->norms[STEPS - 1],
               (unsigned long long)o->blocks[GPT2_WEIGHTS], ok ? "" : ": NOT AS ALONE");
    }
}

int main(void) {
    shared = (struct Shared*)mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) { fatal("no shared memory"); }
    for (int how = STAGED; how < NUM_TRANSPORTS; how++) {
        for (int size = how == STAGED ? 1 : 2; size <= MOST; size++) {
            int skipped = shared->skipped;
            run_processes((Transport)how, size);
            if (shared->skipped == skipped) {
                compare((Transport)how, size);
            } else {
                printf("%d processes, with NCCL: skipped, there are fewer GPUs, or there is no NCCL\n", size);
            }
        }
        // with three processes the order of additions is another one, and it is the same for all settings
        const Outcome* three = shared->outcomes[how][3];
        CHECK(memcmp(three[TREE_12].blocks, three[TREE_12_ZERO_0].blocks, sizeof(three->blocks)) == 0);
    }
    unit_passed += shared->passed, unit_failed += shared->failed;
    return unit_end();
}
