/*
The CPU trainer's model where memory runs out: whichever tensor has no room, gpt2_create or gpt2_allocate returns an error
that says so, the half-built model can be freed, and the process goes on.
*/
#include "train_gpt2.c"

#include <sys/resource.h>

#include "dev/test/fixtures/unit.h"

#ifndef __has_feature
#define __has_feature(x) 0
#endif
// Not under AddressSanitizer, whose own memory is limited too, and only where /proc says what is in use
#if defined(__SANITIZE_ADDRESS__) || __has_feature(address_sanitizer) || !defined(__linux__)
enum { CAN_LIMIT = 0 };
#else
enum { CAN_LIMIT = 1 };
#endif

// Address space that this process has now, in bytes
static size_t address_space(void) {
    unsigned long pages = 0;
    FILE* file = fopen_check("/proc/self/statm", "r");
    if (fscanf(file, "%lu", &pages) != 1) { fatal("/proc/self/statm: no number"); }
    fclose(file);
    return (size_t)pages * (size_t)sysconf(_SC_PAGESIZE);
}

// Builds a model with `room` bytes of address space left. Returns which of its calls failed, 0 where none did; 9 where an
// error is not as it should be.
static int build_with(size_t room, GPT2Config config) {
    struct rlimit limit;
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = address_space() + room;
    if (setrlimit(RLIMIT_AS, &limit) != 0) { return 9; }
    GPT2* model;
    int failed = gpt2_create(&model, config, gpt2_default_settings()) != STATUS_OK ? 1 : 0;
    if (failed && (model != NULL || strncmp(status_message(), "weights:", 8) != 0)) { return 9; }
    if (!failed && gpt2_allocate(model, 2, 64, 1) != STATUS_OK) { failed = 2; }
    if (failed && strstr(status_message(), "MiB of memory asked for") == NULL) { return 9; }
    gpt2_free(model);
    limit.rlim_cur = limit.rlim_max; // there is room again: the same process can have its model
    setrlimit(RLIMIT_AS, &limit);
    if (gpt2_create(&model, config, gpt2_default_settings()) != STATUS_OK) { return 9; }
    if (gpt2_allocate(model, 2, 64, 1) != STATUS_OK) { return 9; }
    gpt2_free(model);
    return failed;
}

static void memory_runs_out_at_every_tensor(void) {
    GPT2Config config = gpt2_config_from_descriptor("gpt2:l2c64h2t64", 30000);
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t block = gpt2_parameters(table, config) * sizeof(float);
    int seen[10] = {0};
    for (size_t room = 1 << 16; room < 12 * block; room += block / 2) { // the stack may have to grow
        if (unit_fork()) { _exit(build_with(room, config)); }
        int failed = unit_wait().exit_code;
        seen[failed < 0 || failed > 9 ? 9 : failed]++;
    }
    CHECK(seen[9] == 0);
    CHECK(seen[1] >= 2); // no room for the parameters
    CHECK(seen[2] >= 8); // none for the activations, the gradients, the first moments, or the second
    CHECK(seen[0] >= 2); // room for all
}

// A model whose snapshot has no room goes on without one, and has one where there is room again. Returns 0 where that is so.
static int snapshot_without_room(GPT2Config config) {
    struct rlimit limit;
    GPT2* model;
    check(gpt2_create(&model, config, gpt2_default_settings()));
    check(gpt2_allocate(model, 2, 64, 1));
    size_t memory = gpt2_info(model)->memory_bytes, bytes = 3 * gpt2_info(model)->elements * sizeof(float);
    getrlimit(RLIMIT_AS, &limit);
    limit.rlim_cur = address_space() + bytes / 2;
    if (setrlimit(RLIMIT_AS, &limit) != 0) { return 1; }
    if (gpt2_allocate_snapshot(model) == STATUS_OK || strncmp(status_message(), "snapshot:", 9) != 0) { return 2; }
    if (gpt2_info(model)->memory_bytes != memory) { return 3; }
    if (gpt2_take_snapshot(model) == STATUS_OK || gpt2_synchronize(model) != STATUS_OK) { return 4; }
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_AS, &limit);
    check(gpt2_allocate_snapshot(model));
    check(gpt2_take_snapshot(model));
    if (gpt2_info(model)->memory_bytes != memory + bytes) { return 5; }
    gpt2_free(model);
    return 0;
}

static void memory_runs_out_at_a_snapshot(void) {
    if (unit_fork()) { _exit(snapshot_without_room(gpt2_config_from_descriptor("gpt2:l2c64h2t64", 30000))); }
    int fault = unit_wait().exit_code;
    CHECK(fault == 0);
    if (fault != 0) { printf("    fault %d\n", fault); }
}

int main(void) {
    if (CAN_LIMIT) {
        memory_runs_out_at_every_tensor();
        memory_runs_out_at_a_snapshot();
    } else {
        CHECK(!CAN_LIMIT);
        printf("test_gpt2_memory: skipped: the address space cannot be limited here\n");
    }
    return unit_end();
}
