// gpt2_plan, llmc/model/gpt2_model.h and llmc/base/host.h: what is planned is what a model allocates and what a process takes,
// and what there is on the host is what /proc and the cgroups say.
#include "train_gpt2.c"

#include "dev/test/fixtures/unit.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
// Not under AddressSanitizer, which takes memory of its own, and only where /proc says what a process takes
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer) || !defined(__linux__)
enum { CAN_MEASURE = 0 };
#else
enum { CAN_MEASURE = 1 };
#endif

typedef struct {
    const char* descriptor;
    int vocab_size, B, T, recompute, training;
} Shape;

static GPT2Settings settings_of(Shape s) {
    GPT2Settings settings = gpt2_default_settings();
    settings.recompute = s.recompute;
    return settings;
}

static GPT2Plan plan_of(Shape s, int snapshot) {
    GPT2Plan plan;
    GPT2Config config = gpt2_config_from_descriptor(s.descriptor, s.vocab_size);
    check(gpt2_plan(&plan, config, settings_of(s), s.B, s.T, s.training, snapshot));
    return plan;
}

// The tensors' rows, as a model says of itself
static void a_plan_is_what_a_model_allocates(void) {
    static const Shape shapes[] = {
        {"gpt2:l2c64h2t64", 100, 1, 1, 0, 1},   {"gpt2:l2c64h2t64", 100, 3, 64, 0, 1},
        {"gpt2:l3c96h3t64", 1000, 3, 33, 1, 1}, {"gpt2:l4c64h1t128", 50257, 2, 128, 2, 1},
        {"gpt2:l2c64h2t64", 300, 4, 64, 1, 0},
    };
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        Shape s = shapes[i];
        GPT2* model;
        GPT2Plan plan = plan_of(s, 0), created = plan_of((Shape){s.descriptor, s.vocab_size, 0, 0, 0, 0}, 0);
        check(gpt2_create(&model, gpt2_config_from_descriptor(s.descriptor, s.vocab_size), settings_of(s)));
        CHECK(gpt2_info(model)->memory_bytes == created.rows[PLAN_WEIGHTS].bytes);
        check(gpt2_allocate(model, s.B, s.T, s.training));
        size_t tensors = plan_bytes(&plan, PLAN_HOST) - plan.rows[PLAN_HOST_PROCESS].bytes;
        CHECK(gpt2_info(model)->memory_bytes == tensors);
        size_t activations = 0;
        for (int a = 0; a < NUM_ACTIVATION_TENSORS; a++) { activations += plan.activations[a].bytes; }
        CHECK(plan.rows[PLAN_ACTIVATIONS].bytes == activations);
        for (int block = GPT2_WEIGHTS; block <= GPT2_MASTER_WEIGHTS; block++) { // the rows are in the blocks' order
            size_t bytes = gpt2_block_bytes(model, (GPT2Block)block), row = plan.rows[PLAN_WEIGHTS + block].bytes;
            CHECK(bytes == 0 ? row == 0 : row == gpt2_info(model)->elements * sizeof(float) && row >= bytes);
        }
        size_t snapshot = s.training ? 3 * gpt2_info(model)->elements * sizeof(float) : 0;
        CHECK(plan_of(s, 1).rows[PLAN_SNAPSHOT].bytes == snapshot);
        CHECK(plan.checkpoint_bytes == 3 * gpt2_block_bytes(model, GPT2_WEIGHTS));
        gpt2_free(model);
    }
}

static void every_row_has_a_name(void) {
    GPT2Plan plan = plan_of((Shape){"gpt2:l2c64h2t64", 100, 1, 1, 0, 1}, 0);
    for (int r = 0; r < NUM_PLAN_ROWS; r++) {
        if (!CHECK(plan.rows[r].name[0] != '\0')) { printf("    row %d\n", r); }
    }
}

// Four processes: a quarter of the moments each, but for blocks; and what tree and exchange take
static void a_plan_of_several_processes(void) {
    Comm four = {.rank = 1, .size = 4};
    GPT2Plan plan, whole, alone;
    GPT2Config config = gpt2_config_from_descriptor("d12", 50257);
    GPT2Settings settings = gpt2_default_settings();
    check(gpt2_plan(&alone, config, settings, 1, 64, 1, 1));
    settings.comm = &four, settings.micro_steps = 12;
    check(gpt2_plan(&plan, config, settings, 1, 64, 1, 1));
    settings.zero = 0;
    check(gpt2_plan(&whole, config, settings, 1, 64, 1, 1));
    size_t weights = alone.rows[PLAN_WEIGHTS].bytes, blocks = 18 * LAYOUT_BLOCK * sizeof(float); // 18 buckets
    CHECK(plan.rows[PLAN_WEIGHTS].bytes == weights && plan.rows[PLAN_GRADIENTS].bytes == weights);
    CHECK(alone.rows[PLAN_MOMENTS1].bytes == weights && alone.rows[PLAN_RECEIVED].bytes == 0);
    CHECK(alone.rows[PLAN_GRADIENT_TREE].bytes == 0);
    CHECK(plan.rows[PLAN_GRADIENT_TREE].bytes == 3 * weights); // 12 = 4 groups of 3: four buffers
    for (int row = PLAN_MOMENTS1; row <= PLAN_MOMENTS2; row++) {
        size_t bytes = plan.rows[row].bytes;
        CHECK(bytes >= weights / 4 && bytes <= weights / 4 + blocks && whole.rows[row].bytes == weights);
    }
    CHECK(plan.rows[PLAN_RECEIVED].bytes == 3 * 236 * LAYOUT_BLOCK * sizeof(float)); // of a bucket of wte: 944 blocks
    size_t snapshot = weights + plan.rows[PLAN_MOMENTS1].bytes + plan.rows[PLAN_MOMENTS2].bytes;
    CHECK(plan.rows[PLAN_SNAPSHOT].bytes == snapshot && whole.rows[PLAN_SNAPSHOT].bytes == 3 * weights);
    CHECK(plan.checkpoint_bytes == alone.checkpoint_bytes); // of all shards
    settings.sum_any = 1;
    check(gpt2_plan(&plan, config, settings, 1, 64, 1, 1));
    CHECK(plan.rows[PLAN_GRADIENT_TREE].bytes == 0);
    settings.micro_steps = 0;
    CHECK(gpt2_plan(&plan, config, settings, 1, 64, 1, 1) == STATUS_ERROR);
}

// A step of training, and one's memory before it
static void train_a_step(Shape s) {
    GPT2* model;
    GPT2Config config = gpt2_config_from_descriptor(s.descriptor, s.vocab_size);
    check(gpt2_create(&model, config, settings_of(s)));
    check(gpt2_allocate(model, s.B, s.T, 1));
    size_t n = gpt2_info(model)->num_parameters;
    float* params = (float*)malloc_check(n * sizeof(float));
    gpt2_init_parameters(params, config, 1);
    check(gpt2_set_parameters(model, params));
    free(params);
    int* tokens = (int*)calloc_check((size_t)s.B * (size_t)s.T, sizeof(int));
    float norm;
    check(gpt2_forward(model, tokens, s.B, s.T));
    check(gpt2_backward(model, tokens, tokens, 1, 0));
    check(gpt2_grad_norm(model, &norm));
    check(gpt2_update(model, 1e-4f, 0.9f, 0.95f, 1e-8f, 0.1f, 0.0f, 1));
    free(tokens);
    gpt2_free(model);
}

// In a process of its own: a child of this one would begin with this one's memory.
static void a_plan_is_what_a_process_takes(const char* program) {
    static const char* const shapes[] = {"0", "1", "2", "3"};
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        char command[600];
        snprintf(command, sizeof(command), "%s measure %s", program, shapes[i]);
        CHECK(system(command) == 0);
    }
}

static int measure(const char* number) {
    static const Shape shapes[] = {
        {"gpt2:l4c256h4t256", 20000, 2, 256, 0, 1}, // as much for activations as for parameters
        {"gpt2:l2c512h8t64", 50257, 1, 32, 1, 1},   // parameters
        {"gpt2:l8c128h2t512", 512, 8, 256, 0, 1},   // activations
        {"gpt2:l8c128h2t512", 512, 8, 256, 2, 1},   // the same, recomputed
    };
    Shape s = shapes[number[0] - '0'];
    GPT2Plan plan = plan_of(s, 0);
    train_a_step(s);
    double planned = (double)plan_bytes(&plan, PLAN_HOST), used = (double)host_memory_peak();
    printf("%s, B %d, T %d, recompute %d: %.1f MiB planned, %.1f MiB used\n", s.descriptor, s.B, s.T, s.recompute,
           planned / (1 << 20), used / (1 << 20));
    double allowed = used < 512 << 20 ? 16 << 20 : 0.03 * used;
    allowed = fmax(allowed, (double)(1 << 20) * cpu_threads()); // a thread touches up to 1 MiB of scratch, as planned
    return fabs(planned - used) <= allowed ? 0 : 1;
}

static void sizes_without_a_model_are_refused(void) {
    GPT2Plan plan;
    GPT2Config config = gpt2_config_from_descriptor("gpt2:l2c64h2t64", 100);
    GPT2Settings settings = gpt2_default_settings();
    CHECK(gpt2_plan(&plan, config, settings, 1, 65, 1, 0) == STATUS_ERROR && strstr(status_message(), "context"));
    CHECK(gpt2_plan(&plan, config, settings, 0, 8, 1, 0) == STATUS_ERROR);
    CHECK(gpt2_plan(&plan, config, settings, INT_MAX, 64, 1, 0) == STATUS_ERROR);
    config.num_heads = 3;
    CHECK(gpt2_plan(&plan, config, settings, 1, 8, 1, 0) == STATUS_ERROR);
    // what cannot be counted does not wrap around, and fits nowhere
    config = gpt2_config_from_descriptor("gpt2:l1000000c128h1t1000000", 1 << 24);
    check(gpt2_plan(&plan, config, settings, 2000, 1000000, 1, 1));
    GPT2Memory memory = {0, 0, SIZE_MAX, ""};
    CHECK(plan_bytes(&plan, PLAN_HOST) >= (size_t)1 << 60 &&
          (plan_bytes(&plan, PLAN_HOST) < SIZE_MAX) == plan_fits(&plan, &memory));
}

static void a_plan_fits_to_the_byte(void) {
    GPT2Plan plan;
    plan_clear(&plan);
    plan_set(&plan, PLAN_WEIGHTS, PLAN_DEVICE, 300);
    plan_set(&plan, PLAN_LIBRARIES, PLAN_DEVICE, 50);
    plan_set(&plan, PLAN_HOST_WEIGHTS, PLAN_HOST, 600);
    plan_set(&plan, PLAN_SNAPSHOT, PLAN_HOST, 700);
    CHECK(plan_bytes(&plan, PLAN_DEVICE) == 350);
    CHECK(plan_bytes(&plan, PLAN_HOST) == 700); // first one, then the other
    plan_set(&plan, PLAN_SNAPSHOT, PLAN_HOST, 500);
    CHECK(plan_bytes(&plan, PLAN_HOST) == 600);
    plan_set(&plan, PLAN_SNAPSHOT, PLAN_HOST, 700);
    GPT2Memory memory = {1, 350, 700, ""};
    CHECK(plan_fits(&plan, &memory));
    memory.device_free = 349;
    CHECK(!plan_fits(&plan, &memory) && plan_fits_host(&plan, &memory));
    memory.device_free = 350, memory.host_free = 699;
    CHECK(!plan_fits(&plan, &memory) && plan_fits_device(&plan, &memory));
    memory.has_device = 0, memory.device_free = 0, memory.host_free = 700; // no GPU to ask
    CHECK(plan_fits(&plan, &memory));
    plan_set(&plan, PLAN_HOST_FILES, PLAN_HOST, SIZE_MAX);
    CHECK(plan_bytes(&plan, PLAN_HOST) == SIZE_MAX && !plan_fits(&plan, &memory));
    memory.host_free = SIZE_MAX;
    CHECK(!plan_fits(&plan, &memory));
}

static void shell(const char* format, ...) {
    char command[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(command, sizeof(command), format, args);
    va_end(args);
    if (system(command) != 0) { fatal("this failed: %s", command); }
}

static void put(const char* root, const char* path, const char* text) {
    shell("mkdir -p \"$(dirname '%s/%s')\" && printf -- '%s' >'%s/%s'", root, path, text, root, path);
}

static int host_is(const char* root, size_t available, size_t total) {
    HostMemory m = host_memory(root);
    if (m.available != available || m.total != total) { printf("    %zu of %zu\n", m.available, m.total); }
    return m.available == available && m.total == total;
}

static void what_there_is_on_the_host(void) {
    const char* root = unit_path("host");
    const size_t K = 1024;
    put(root, "proc/meminfo", "MemTotal: 1000 kB\\nMemFree: 10 kB\\nMemAvailable: 800 kB\\n");
    CHECK(host_is(root, 800 * K, 1000 * K));
    // version 2: a limit on the group, and a lower one on the group that it is in
    put(root, "proc/self/cgroup", "0::/job/task\\n");
    put(root, "sys/fs/cgroup/job/task/memory.max", "900000\\n");
    put(root, "sys/fs/cgroup/job/task/memory.current", "500000\\n");
    put(root, "sys/fs/cgroup/job/task/memory.stat", "anon 1\\ninactive_file 200000\\nactive_file 5\\n");
    CHECK(host_is(root, 600000, 900000) && strstr(host_memory(root).limit, "cgroup"));
    put(root, "sys/fs/cgroup/job/memory.max", "400000\\n");
    put(root, "sys/fs/cgroup/job/memory.current", "350000\\n");
    CHECK(host_is(root, 50000, 400000));
    put(root, "sys/fs/cgroup/job/memory.current", "450000\\n"); // above its limit
    CHECK(host_is(root, 0, 400000));
    put(root, "sys/fs/cgroup/job/memory.max", "max\\n");
    put(root, "sys/fs/cgroup/job/task/memory.max", "max\\n");
    CHECK(host_is(root, 800 * K, 1000 * K));
    // in a container, whose group has another name outside
    put(root, "proc/self/cgroup", "0::/outside/name\\n");
    put(root, "sys/fs/cgroup/memory.max", "300000\\n");
    put(root, "sys/fs/cgroup/memory.current", "100000\\n");
    CHECK(host_is(root, 200000, 300000));
    // version 1, with its way to say "no limit"
    put(root, "proc/self/cgroup", "5:cpu:/x\\n4:memory:/slurm/job\\n1:name=systemd:/\\n");
    put(root, "sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "9223372036854771712\\n");
    CHECK(host_is(root, 800 * K, 1000 * K));
    put(root, "sys/fs/cgroup/memory/slurm/job/memory.limit_in_bytes", "700000\\n");
    put(root, "sys/fs/cgroup/memory/slurm/job/memory.usage_in_bytes", "650000\\n");
    put(root, "sys/fs/cgroup/memory/slurm/job/memory.stat", "inactive_file 7\\ntotal_inactive_file 100000\\n");
    CHECK(host_is(root, 150000, 700000));
    put(root, "proc/meminfo", "MemTotal: 1000 kB\\nMemAvailable: 100 kB\\n"); // the machine has less than the limit
    CHECK(host_is(root, 100 * K, 700000));
    shell("rm -r '%s'", root);
    // and on this machine
    HostMemory here = host_memory("");
    CHECK(here.available > 0 && here.available <= here.total);
}

static int quota_is(const char* root, double expected) {
    double quota = cpu_quota(root);
    if (!(fabs(quota - expected) < 1e-9)) { printf("    %g cores\n", quota); }
    return fabs(quota - expected) < 1e-9;
}

// A container's limit on processor time, and the threads that it leaves
static void cores_within_a_quota(void) {
    const char* root = unit_path("cores");
    put(root, "proc/self/cgroup", "0::/pod/container\\n");
    CHECK(isinf(cpu_quota(root)));
    put(root, "sys/fs/cgroup/pod/container/cpu.max", "max 100000\\n");
    CHECK(isinf(cpu_quota(root)));
    put(root, "sys/fs/cgroup/pod/container/cpu.max", "250000 100000\\n");
    CHECK(quota_is(root, 2.5));
    put(root, "sys/fs/cgroup/pod/cpu.max", "75000 50000\\n"); // the lowest of all groups counts
    CHECK(quota_is(root, 1.5));
    put(root, "sys/fs/cgroup/cpu.max", "400000 100000\\n");
    CHECK(quota_is(root, 1.5));
    put(root, "proc/self/cgroup", "0::/outside/name\\n"); // in a container, whose group has another name outside
    CHECK(quota_is(root, 4.0));
    // version 1, with its way to say "no limit"
    put(root, "proc/self/cgroup", "6:cpuset:/x\\n5:cpu,cpuacct:/job\\n4:memory:/job\\n");
    put(root, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "-1\\n");
    put(root, "sys/fs/cgroup/cpu/job/cpu.cfs_period_us", "100000\\n");
    CHECK(isinf(cpu_quota(root)));
    put(root, "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us", "50000\\n");
    CHECK(quota_is(root, 0.5));
    put(root, "proc/self/cgroup", "5:cpuset,cpuacct:/job\\n"); // not the controller cpu
    CHECK(isinf(cpu_quota(root)));
    shell("rm -r '%s'", root);
    CHECK(cpu_cores_within(8, HUGE_VAL) == 8 && cpu_cores_within(8, 8.0) == 8 && cpu_cores_within(8, 7.5) == 8);
    CHECK(cpu_cores_within(8, 2.0) == 2 && cpu_cores_within(8, 1.5) == 2 && cpu_cores_within(8, 0.3) == 1);
    CHECK(cpu_cores() >= 1 && cpu_cores() <= cpu_affinity());
}

int main(int argc, char** argv) {
    if (argc == 3 && strcmp(argv[1], "measure") == 0) { return measure(argv[2]); }
    a_plan_is_what_a_model_allocates();
    every_row_has_a_name();
    a_plan_of_several_processes();
    sizes_without_a_model_are_refused();
    a_plan_fits_to_the_byte();
    what_there_is_on_the_host();
    cores_within_a_quota();
    if (CAN_MEASURE) {
        a_plan_is_what_a_process_takes(argv[0]);
    } else {
        printf("test_plan: no process is measured here\n");
    }
    return unit_end();
}
