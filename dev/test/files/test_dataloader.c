/*
llmc/files/dataloader.h: which tokens come in which order, through shards, epochs, shuffling, several processes and resume,
and which files are refused.

Most tests read three shards of 5, 3 and 7 samples for B = 1, T = 4. Token p of shard f is 100 f + p / 4, so the first
token of a batch tells its shard and its sample.
*/
#include <stdlib.h>

static size_t most_asked; // bytes of the largest allocation
static void* counted_malloc(size_t bytes) {
    if (bytes > most_asked) { most_asked = bytes; }
    return malloc(bytes);
}
#define malloc counted_malloc
#include "llmc/files/dataloader.h"
#undef malloc

#include "dev/test/fixtures/unit.h"

enum { V = 50257, NUM_SHARDS = 3, NUM_SAMPLES = 15 };
static const int shard_tokens[NUM_SHARDS] = {4 * 5 + 1, 4 * 3 + 2, 4 * 7 + 1};
static const HostAlloc host_memory = {NULL, NULL};

static void write_tokens(const char* path, const uint16_t* tokens, int n, int vocab_size) {
    unit_write_format(path, TOKENS_MAGIC_16, TOKENS_VERSION_16, n, vocab_size, tokens, 2 * (size_t)n);
}

// Writes the shards, if they are not there; returns the pattern that matches them.
static const char* write_shards(void) {
    const char* pattern = unit_path("shard_*.bin");
    if (file_exists(unit_path("shard_0.bin"))) { return pattern; }
    for (int f = 0; f < NUM_SHARDS; f++) {
        uint16_t tokens[64];
        char name[32];
        for (int p = 0; p < shard_tokens[f]; p++) { tokens[p] = (uint16_t)(100 * f + p / 4); }
        snprintf(name, sizeof(name), "shard_%d.bin", f);
        write_tokens(unit_path(name), tokens, shard_tokens[f], V);
    }
    return pattern;
}

static void open_shards(DataLoader* d, int B, int shuffle) {
    dataloader_open(d, write_shards(), B, 4, shuffle, 42, V, host_memory);
}

// The first token of the next batch
static int next_sample(DataLoader* d) {
    const int *inputs, *targets;
    check(dataloader_next(d, &inputs, &targets));
    return inputs[0];
}

static int next_samples_are(DataLoader* d, const int* expected, int n) {
    int same = 1;
    for (int i = 0; i < n; i++) {
        int sample = next_sample(d);
        if (sample != expected[i]) { printf("    batch %d begins with %d, expected %d\n", i, sample, expected[i]); }
        same = same && sample == expected[i];
    }
    return same;
}

// ----------------------------------------------------------------------------
// Order

static void unshuffled_batches_follow_the_files(void) {
    static const int epoch[NUM_SAMPLES] = {0, 1, 2, 3, 4, 100, 101, 102, 200, 201, 202, 203, 204, 205, 206};
    DataLoader d;
    open_shards(&d, 1, 0);
    CHECK(d.num_tokens == 21 + 14 + 29 && d.num_batches == NUM_SAMPLES);
    for (int i = 0; i < 3; i++) { CHECK(next_samples_are(&d, epoch, NUM_SAMPLES)); } // and around again
    CHECK(next_samples_are(&d, epoch, 7));
    check(dataloader_reset(&d)); // in the middle of a shard
    CHECK(next_samples_are(&d, epoch, NUM_SAMPLES));
    dataloader_close(&d);
}

// B = 1: the order of llm.c's loader on the same files, printed by it
static void shuffled_batches_come_in_llmc_s_order(void) {
    static const int alone[30] = {202, 200, 205, 203, 201, 206, 204, 100, 102, 101, 1,   0,   4,   2,   3,
                                  100, 101, 102, 3,   0,   1,   4,   2,   206, 203, 202, 201, 204, 205, 200};
    DataLoader d;
    open_shards(&d, 1, 1);
    CHECK(next_samples_are(&d, alone, 30));
    dataloader_close(&d);
}

static void every_epoch_visits_every_sample_once(void) {
    DataLoader d;
    open_shards(&d, 1, 1);
    int last_order[NUM_SAMPLES] = {0}, changed = 0;
    for (int epoch = 0; epoch < 5; epoch++) {
        int visits[300] = {0}, order[NUM_SAMPLES], once = 1;
        for (int i = 0; i < NUM_SAMPLES; i++) { visits[order[i] = next_sample(&d)]++; }
        for (int f = 0; f < NUM_SHARDS; f++) {
            for (int s = 0; s < (shard_tokens[f] - 1) / 4; s++) { once = once && visits[100 * f + s] == 1; }
        }
        CHECK(once);
        changed += memcmp(order, last_order, sizeof(order)) != 0;
        memcpy(last_order, order, sizeof(order));
    }
    CHECK(changed == 5);
    dataloader_close(&d);
}

// B = 2: of the shards' 5, 3 and 7 rows one is left out each epoch, not always the same. A row has its own targets, and comes
// beside any other.
static void shuffled_batches_have_rows_from_everywhere(void) {
    DataLoader d;
    open_shards(&d, 2, 1);
    CHECK(d.num_batches == 2 + 1 + 3);
    int together[7] = {0}; // batches whose two rows lie so far apart
    int visits[300] = {0};
    for (int epoch = 0; epoch < 50; epoch++) {
        int before[300], targets_follow = 1, once = 1;
        memcpy(before, visits, sizeof(before));
        for (int i = 0; i < 6; i++) {
            const int *x, *y;
            check(dataloader_next(&d, &x, &y));
            visits[x[0]]++, visits[x[4]]++;
            for (int t = 0; t < 8; t++) { targets_follow = targets_follow && y[t] == x[t] + (t % 4 == 3); }
            if (x[0] >= 200) { together[abs(x[4] - x[0])]++; }
        }
        for (int f = 0; f < NUM_SHARDS; f++) {
            int rows = (shard_tokens[f] - 1) / 4, come = 0;
            for (int row = 0; row < rows; row++) {
                int times = visits[100 * f + row] - before[100 * f + row];
                once = once && times <= 1;
                come += times;
            }
            once = once && come == rows / 2 * 2;
        }
        CHECK(once && targets_follow);
    }
    for (int f = 0; f < NUM_SHARDS; f++) {
        for (int row = 0; row < (shard_tokens[f] - 1) / 4; row++) {
            CHECK(visits[100 * f + row] > 20 && visits[100 * f + row] < 50);
        }
    }
    dataloader_close(&d);
    uint16_t tokens[4 * 11 + 1]; // eleven rows: with any B they come in the same order, but for the last ones
    for (int p = 0; p < 45; p++) { tokens[p] = (uint16_t)(p / 4); }
    write_tokens(unit_path("eleven.bin"), tokens, 45, V);
    DataLoader rows;
    dataloader_open(&rows, unit_path("eleven.bin"), 1, 4, 1, 42, V, host_memory);
    dataloader_open(&d, unit_path("eleven.bin"), 2, 4, 1, 42, V, host_memory);
    for (int i = 0; i < 15; i++) {
        const int *x, *y;
        check(dataloader_next(&d, &x, &y));
        CHECK(x[0] == next_sample(&rows) && x[4] == next_sample(&rows));
        if (i % 5 == 4) { next_sample(&rows); }
    }
    dataloader_close(&rows);
    CHECK(together[1] < 100); // 50 of 150 where rows are independent
    for (int apart = 1; apart <= 5; apart++) { CHECK(together[apart] > 0); }
    dataloader_close(&d);
}

// Batches (B,T) of random tokens: they follow each other, and targets are the tokens after the inputs.
static void batches_hold_the_files_tokens(int B, int T, int wide) {
    enum { N = 1000 };
    static uint32_t tokens[N];
    static uint16_t tokens16[N];
    mt19937_state rng;
    manual_seed(&rng, 9);
    for (int i = 0; i < N; i++) {
        tokens[i] = randint32(&rng) % (wide ? 128256u : 65536u);
        tokens16[i] = (uint16_t)tokens[i];
    }
    const char* path = unit_path("random.bin");
    if (wide) {
        unit_write_format(path, TOKENS_MAGIC_32, TOKENS_VERSION_32, N, 128256, tokens, sizeof(tokens));
    } else {
        write_tokens(path, tokens16, N, 0);
    }
    CHECK(dataloader_vocab_size(path) == (wide ? 128256 : 0));
    int samples = (N - 1) / (B * T), same = 1;
    DataLoader d;
    dataloader_open(&d, path, B, T, 0, 42, 0, host_memory);
    for (int batch = 0; batch < 2 * samples; batch++) {
        const int *inputs, *targets;
        const uint32_t* expected = tokens + batch % samples * B * T;
        check(dataloader_next(&d, &inputs, &targets));
        for (int i = 0; i < B * T; i++) {
            same = same && inputs[i] == (int)expected[i] && targets[i] == (int)expected[i + 1];
        }
    }
    CHECK(same);
    dataloader_close(&d);
}

static void a_batch_stays_until_the_second_next_call(void) {
    DataLoader d;
    open_shards(&d, 1, 1);
    const int *before = NULL, *inputs, *targets;
    int copy[5], stays = 1;
    for (int i = 0; i < 4 * NUM_SAMPLES; i++) {
        check(dataloader_next(&d, &inputs, &targets));
        stays = stays && (before == NULL || memcmp(before, copy, sizeof(copy)) == 0);
        memcpy(copy, inputs, sizeof(copy)); // (T) and the last target
        before = inputs;
    }
    CHECK(stays);
    dataloader_close(&d);
}

// ----------------------------------------------------------------------------
// Memory, sizes

static int allocated, released;
static void* count_alloc(size_t bytes) {
    allocated++;
    return malloc_check(bytes);
}
static void count_release(void* memory) {
    released++;
    free(memory);
}

static void batches_live_in_the_memory_of_the_caller(void) {
    HostAlloc counted = {count_alloc, count_release};
    DataLoader d;
    dataloader_open(&d, write_shards(), 1, 4, 0, 42, V, counted);
    next_sample(&d);
    CHECK(allocated == DATALOADER_BATCHES && released == 0);
    dataloader_close(&d);
    CHECK(released == allocated);
}

// A sparse file of 1.2e9 tokens, the last of which lie beyond 2^31 bytes
static void offsets_have_64_bits(void) {
    const char* path = unit_path("large.bin");
    const int n = 1200000001, T = 1000;
    uint16_t last[3] = {7, 8, 9};
    unit_write_format(path, TOKENS_MAGIC_16, TOKENS_VERSION_16, n, 0, "", 0);
    unit_truncate(path, HEADER_BYTES + 2 * (size_t)n);
    FILE* file = fopen_check(path, "r+b");
    unit_seek(file, HEADER_BYTES + 2 * ((int64_t)n - 3), path);
    fwrite_check(last, 2, 3, file, path);
    fclose(file);
    DataLoader d;
    const int *inputs, *targets;
    dataloader_open(&d, path, 1, T, 0, 42, 10, host_memory);
    d.current_sample_idx = d.shard_num_samples - 1;
    check(dataloader_next(&d, &inputs, &targets));
    CHECK(inputs[T - 3] == 0 && inputs[T - 2] == 7 && inputs[T - 1] == 8 && targets[T - 1] == 9);
    dataloader_close(&d);
    remove(path);
}

// ----------------------------------------------------------------------------
// Resume

// Writes the tail as the body of a file; returns its bytes.
static size_t save_state(const DataLoader* d, const char* path) {
    const int32_t header[HEADER_INTS] = {0};
    DataLoaderState state;
    CheckedWriter file;
    dataloader_get_state(d, &state);
    check(checked_create(&file, path, header, dataloader_state_bytes(&state)));
    check(dataloader_state_write(&state, &file));
    size_t bytes = file.body.at;
    CHECK(bytes == file.body.body_bytes);
    fclose(file.file.file); // a checked_commit without its flush to the disk, which takes long, and without checksums
    temporary_remove(file.file.slot);
    rename(file.file.temporary, path);
    dataloader_state_free(&state);
    return bytes;
}

static void load_state(DataLoader* d, const char* path, size_t shard_idx, size_t sample_idx) {
    DataLoaderState state;
    CheckedReader file;
    check(checked_open(&file, path, 0, "state"));
    check(dataloader_state_read(&state, &file, d->should_shuffle, shard_idx, sample_idx, 0));
    check(checked_end(&file)); // the whole tail was read
    check(dataloader_set_state(d, &state, path));
    dataloader_state_free(&state);
    checked_close(&file);
}

// Stops after each number of batches, through two epochs, and goes on with a fresh loader from the state file.
static void a_resumed_loader_goes_on_as_if_nothing_had_happened(int B, int shuffle) {
    const char* path = unit_path("state.bin");
    int all = 1;
    for (int stop = 0; stop <= 2 * NUM_SAMPLES; stop++) {
        DataLoader whole, resumed;
        open_shards(&whole, B, shuffle);
        for (int i = 0; i < stop; i++) { next_sample(&whole); }
        save_state(&whole, path);
        open_shards(&resumed, B, shuffle);
        for (int i = 0; i < stop % 3; i++) { next_sample(&resumed); } // wherever it was before
        load_state(&resumed, path, whole.current_shard_idx, whole.current_sample_idx);
        for (int i = 0; i < 3 * NUM_SAMPLES; i++) {
            const int *x[2], *y[2];
            check(dataloader_next(&whole, &x[0], &y[0]));
            check(dataloader_next(&resumed, &x[1], &y[1]));
            all = all && memcmp(x[0], x[1], 4 * (size_t)B * sizeof(int)) == 0 &&
                  memcmp(y[0], y[1], 4 * (size_t)B * sizeof(int)) == 0;
        }
        dataloader_close(&whole);
        dataloader_close(&resumed);
    }
    CHECK(all);
}

// The order that llm.c and version 0.2 saved, of batches: it is kept to the end of the shard.
static void an_order_of_batches_is_kept_to_the_end_of_its_shard(void) {
    const char* path = unit_path("state.bin");
    DataLoader d;
    open_shards(&d, 2, 1);
    const int order[3] = {2, 0, 1}; // of the shard that is first, which has three batches
    CHECK(d.shard_num_samples == 3 && d.order_rows == 1);
    d.order_rows = 2, d.order_length = 3;
    memcpy(d.intra_shard_indices, order, sizeof(order));
    save_state(&d, path);
    dataloader_close(&d);
    open_shards(&d, 2, 1);
    load_state(&d, path, 0, 1);
    for (int i = 1; i < 3; i++) {
        DataLoaderState state; // and as a copy in memory, as after a failed step
        dataloader_get_state(&d, &state);
        dataloader_set_position(&d, &state);
        dataloader_state_free(&state);
        const int *x, *y;
        check(dataloader_next(&d, &x, &y));
        CHECK(x[0] == 200 + 2 * order[i] && x[4] == x[0] + 1);
    }
    next_sample(&d);
    CHECK(d.order_rows == 1 && d.current_shard_idx == 1);
    dataloader_close(&d);
}

// The tail of llm.c's state files: number of shards, their order, number of samples, their order, the generator
static void the_state_has_llmc_s_layout(void) {
    DataLoader d;
    const char* path = unit_path("state.bin");
    open_shards(&d, 1, 0);
    CHECK(save_state(&d, path) == 0);
    dataloader_close(&d);
    open_shards(&d, 1, 1); // begins with shard 2, of 7 samples
    CHECK(save_state(&d, path) == 8 + 3 * 4 + 8 + 7 * 4 + sizeof(mt19937_state));
    size_t bytes, num_shards, num_samples;
    char *file = unit_read(path, &bytes), *state = file + HEADER_BYTES;
    memcpy(&num_shards, state, 8);
    memcpy(&num_samples, state + 20, 8);
    CHECK(num_shards == 3 && num_samples == 7);
    CHECK(memcmp(state + 8, d.shard_indices, 12) == 0);
    CHECK(memcmp(state + 28, d.intra_shard_indices, 28) == 0);
    CHECK(memcmp(state + 56, &d.shuffle_rng, sizeof(mt19937_state)) == 0);
    free(file);
    dataloader_close(&d);
}

static void a_state_that_does_not_fit_is_refused(void) {
    DataLoader d, other;
    const char* path = unit_path("state.bin");
    open_shards(&d, 1, 1);
    size_t bytes = save_state(&d, path);
    CHECK_FATAL("state.bin|token file 3|are 3", load_state(&d, path, 3, 0));
    CHECK_FATAL("state.bin|sample 8|7", load_state(&d, path, 0, 8));
    CHECK_FATAL("state.bin|sample 0|has 3", load_state(&d, path, 1, 0));               // the order is the first shard's
    dataloader_open(&other, unit_path("shard_[01].bin"), 1, 4, 1, 42, V, host_memory); // other data
    CHECK_FATAL("state.bin|other data|are 2", load_state(&other, path, 0, 0));
    dataloader_close(&other);
    for (size_t cut = 0; cut < bytes; cut += cut < 64 ? 4 : 491) {
        save_state(&d, path);
        unit_truncate(path, HEADER_BYTES + cut);
        CHECK_FATAL("state.bin|truncated", load_state(&d, path, 0, 0));
    }
    static const struct {
        size_t offset;
        uint16_t value;
        const char* words;
    } patches[] = {
        {8, 3, "state.bin|order of 3|corrupt"},                         // a shard that does not exist
        {10, 0xffff, "state.bin|order of 3|corrupt"},                   // a negative one
        {4, 1, "state.bin|order of 4294967299|corrupt"},                // 2^32 more of them than there are
        {28, 7, "state.bin|order of 7|corrupt"},                        // a sample that does not exist
        {56 + 8, 5000, "state.bin|random number generator is corrupt"}, // a generator that never was
    };
    for (size_t i = 0; i < sizeof(patches) / sizeof(patches[0]); i++) {
        save_state(&d, path);
        unit_patch(path, HEADER_BYTES + patches[i].offset, patches[i].value);
        CHECK_FATAL(patches[i].words, load_state(&d, path, 0, 0));
    }
    save_state(&d, path);
    unit_patch(path, HEADER_BYTES + 8, (uint16_t)d.shard_indices[1]); // a shard twice
    CHECK_FATAL("state.bin|entry 1|corrupt", load_state(&d, path, 0, 0));
    dataloader_close(&d);
    open_shards(&d, 1, 0);
    save_state(&d, path);
    CHECK_FATAL("token file 3|are 3", load_state(&d, path, 3, 0));
    CHECK_FATAL("sample 6|shard_0.bin|5", load_state(&d, path, 0, 6));
    dataloader_close(&d);
}

// ----------------------------------------------------------------------------
// Bad files

static void open_pattern(const char* pattern) {
    DataLoader d;
    dataloader_open(&d, pattern, 1, 4, 0, 42, 256, host_memory);
    for (int i = 0; i < 3; i++) { next_sample(&d); }
    dataloader_close(&d);
}

// How many files of the first pattern the second matches too, and the first of them
static size_t shared(const char* a_pattern, const char* b_pattern, const char* expected) {
    DataLoader a, b;
    const char* first = NULL;
    dataloader_open(&a, a_pattern, 1, 4, 1, 42, V, host_memory);
    dataloader_open(&b, b_pattern, 1, 4, 0, 42, V, host_memory);
    size_t n = dataloader_shared_files(&a, &b, &first);
    CHECK(expected == NULL ? first == NULL : first != NULL && strcmp(first, expected) == 0);
    dataloader_close(&a);
    dataloader_close(&b);
    return n;
}

static void shared_files_are_counted(void) {
    const char *all = write_shards(), *one = unit_path("shard_1.bin"), *two = unit_path("shard_[12].bin");
    const char *link = unit_path("another_name.bin"), *zero = unit_path("shard_0.bin");
    CHECK(shared(all, one, one) == 1);
    CHECK(shared(one, all, one) == 1);
    CHECK(shared(all, two, one) == 2);
    CHECK(shared(all, all, zero) == 3);
    CHECK(shared(zero, two, NULL) == 0);
    CHECK(symlink("shard_1.bin", link) == 0);
    CHECK(shared(link, two, link) == 1); // a file under two names
    CHECK(shared(link, zero, NULL) == 0);
    remove(link);
}

// A file whose name reads as a pattern is that file, also beside one that the pattern matches.
static void a_name_that_is_there_is_no_pattern(void) {
    const char* const names[] = {"odd[5].bin", "odd*.bin", "odd?.bin", "odd\\5.bin"};
    uint16_t tokens[5] = {1, 2, 3, 4, 5};
    write_tokens(unit_path("odd5.bin"), tokens, 5, 50257);
    CHECK(dataloader_vocab_size(unit_path("odd[5].bin")) == 50257);
    for (int i = 0; i < 4; i++) {
        const char* path = unit_path(names[i]);
        write_tokens(path, tokens, 5, 256 + i);
        CHECK(dataloader_vocab_size(path) == 256 + i);
        glob_t paths = token_file_paths(path);
        CHECK(paths.gl_pathc == 1 && strcmp(paths.gl_pathv[0], path) == 0);
        globfree(&paths);
        remove(path);
    }
    remove(unit_path("odd5.bin"));
}

static void bad_files_are_refused(void) {
    uint16_t tokens[13] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}; // three samples
    const char *pattern = unit_path("bad*.bin"), *bad = unit_path("bad.bin");
    CHECK_FATAL("bad*.bin|dev/data", open_pattern(pattern));
    CHECK_FATAL("bad*.bin|dev/data", dataloader_vocab_size(pattern));
    CHECK_FATAL("is a folder; name its files, as", open_pattern(unit_folder));
    unit_write_format(bad, 20240326, 1, 13, 0, tokens, sizeof(tokens));
    CHECK_FATAL("bad.bin|20240326|20240520|20240801", open_pattern(pattern));
    CHECK_FATAL("bad.bin|20240326", dataloader_vocab_size(pattern));
    unit_write_format(bad, TOKENS_MAGIC_16, 7, 13, 0, tokens, sizeof(tokens));
    CHECK_FATAL("bad.bin|version 7|expected 1", open_pattern(pattern));
    unit_write_format(bad, TOKENS_MAGIC_32, 1, 13, 0, tokens, sizeof(tokens));
    CHECK_FATAL("bad.bin|version 1|expected 7", open_pattern(pattern));
    unit_write_format(bad, TOKENS_MAGIC_16, 1, -13, 0, tokens, sizeof(tokens));
    CHECK_FATAL("bad.bin|-13|corrupt", open_pattern(pattern));
    unit_write_format(bad, TOKENS_MAGIC_16, 1, 14, 0, tokens, sizeof(tokens)); // a token too few
    CHECK_FATAL("bad.bin|1050 bytes|14 tokens|1052", open_pattern(pattern));
    unit_write_format(bad, TOKENS_MAGIC_16, 1, 12, 0, tokens, sizeof(tokens)); // a token too many
    CHECK_FATAL("bad.bin|1050 bytes|12 tokens|1048", open_pattern(pattern));
    write_tokens(bad, tokens, 4, 0);
    CHECK_FATAL("bad.bin|4 tokens|a batch needs 5|-b|-t", open_pattern(pattern));
    write_tokens(bad, tokens, 13, 50257);
    CHECK_FATAL("bad.bin|50257|256", open_pattern(pattern));
    write_tokens(bad, tokens, 13, INT32_MAX); // the padded vocabulary would not be an int
    CHECK_FATAL("bad.bin|vocabulary of 2147483647|16777216", dataloader_vocab_size(pattern));
    CHECK_FATAL("bad.bin|vocabulary of 2147483647|16777216", open_pattern(pattern));
    write_tokens(bad, tokens, 13, MAX_VOCAB_SIZE + 1);
    CHECK_FATAL("bad.bin|vocabulary of 16777217|16777216", dataloader_vocab_size(pattern));
    write_tokens(bad, tokens, 13, MAX_VOCAB_SIZE);
    CHECK(dataloader_vocab_size(pattern) == MAX_VOCAB_SIZE);
    write_tokens(bad, tokens, 13, -1);
    CHECK_FATAL("bad.bin|vocabulary of -1", dataloader_vocab_size(pattern));
    write_tokens(bad, tokens, 13, 256);
    write_tokens(unit_path("bad2.bin"), tokens, 13, 128);
    CHECK_FATAL("bad2.bin|128|256", open_pattern(pattern));
    remove(unit_path("bad2.bin"));
    for (size_t cut = 0; cut < HEADER_BYTES + sizeof(tokens); cut += 151) {
        write_tokens(bad, tokens, 13, 0);
        unit_truncate(bad, cut);
        CHECK_FATAL("bad.bin|truncated", open_pattern(pattern));
    }
}

static void open_batches(const char* path, int B, int T) {
    DataLoader d;
    dataloader_open(&d, path, B, T, 0, 42, 256, host_memory);
    dataloader_close(&d);
}

// B * T may be beyond 32 bits: 2^60 tokens are not zero tokens.
static void batches_that_no_size_can_hold_are_refused(void) {
    uint16_t tokens[13] = {0};
    const char* path = unit_path("bad.bin");
    write_tokens(path, tokens, 13, 256);
    CHECK_FATAL("bad.bin|13 tokens|-b|-t", open_batches(path, 1 << 30, 1 << 30));
    CHECK_FATAL("bad.bin|13 tokens|-b|-t", open_batches(path, INT32_MAX, INT32_MAX));
}

// The first batch, one that the thread reads, and the last target of all
static void tokens_beyond_the_vocabulary_are_refused(void) {
    static const int positions[3] = {0, 6, 12};
    const char* bad = unit_path("bad.bin");
    for (int i = 0; i < 3; i++) {
        uint16_t tokens[13] = {0};
        char words[96];
        tokens[positions[i]] = 255;
        write_tokens(bad, tokens, 13, 0);
        CHECK_NO_CRASH(open_pattern(bad));
        tokens[positions[i]] = 256;
        write_tokens(bad, tokens, 13, 0);
        snprintf(words, sizeof(words), "bad.bin|token 256 at position %d (bytes %d to %d)|256", positions[i],
                 1024 + 2 * positions[i], 1025 + 2 * positions[i]);
        CHECK_FATAL(words, open_pattern(bad));
    }
    uint32_t wide[13] = {0};
    wide[2] = 0x80000000u; // no int
    unit_write_format(bad, TOKENS_MAGIC_32, TOKENS_VERSION_32, 13, 0, wide, sizeof(wide));
    DataLoader d;
    dataloader_open(&d, bad, 1, 4, 0, 42, 0, host_memory);
    CHECK_FATAL("bad.bin|token 2147483648 at position 2", next_sample(&d));
    dataloader_close(&d);
}

static void shrink_and_go_on(DataLoader* d, size_t bytes) {
    unit_truncate(d->shard.path, bytes);
    for (int i = 0; i < NUM_SAMPLES; i++) { next_sample(d); }
}

static void a_file_that_shrinks_during_the_run_is_noticed(void) {
    DataLoader d;
    open_shards(&d, 1, 0);
    next_sample(&d);
    CHECK_FATAL("shard_0.bin|bytes 1040 to 1049|shorter", shrink_and_go_on(&d, HEADER_BYTES + 20));
    dataloader_close(&d);
}

// Fails, with a message that has these words in it, and does not end the program.
static int next_fails(DataLoader* d, const char* words) {
    const int *inputs, *targets;
    Status status = dataloader_next(d, &inputs, &targets);
    int right = status == STATUS_ERROR && strstr(status_message(), words) != NULL;
    if (!right) { printf("    expected '%s', is '%s'\n", words, status_message()); }
    status_clear();
    return right;
}

// In the middle of an epoch: what goes wrong with a file is an error, after which the loader can be put back without its
// files, and goes on when they are whole again.
static void errors_do_not_end_a_run(int shuffle) {
    static const char* words[] = {"cannot open", "is truncated", "token 50257 at position 0 (bytes 1024 to 1025)",
                                  "has changed since the run began"};
    const char *shard = unit_path("shard_1.bin"), *away = unit_path("away.bin");
    for (int fault = 0; fault < 4; fault++) {
        uint16_t tokens[14] = {V, V, V, V, V, V, V, V, V, V, V, V, V, V};
        DataLoader whole, d;
        DataLoaderState state;
        int batches = shuffle ? 7 : 5, inside = fault == 3; // shuffled, the order begins with shards 2 and 1
        open_shards(&whole, 1, shuffle);
        open_shards(&d, 1, shuffle);
        for (int i = 0; i < batches + inside; i++) { CHECK(next_sample(&whole) == next_sample(&d)); }
        dataloader_get_state(&d, &state);
        rename(shard, away);
        if (fault == 1) { unit_write(shard, tokens, 10); }
        if (fault == 2) { write_tokens(shard, tokens, 14, 0); }
        if (fault == 3) { write_tokens(shard, tokens, 10, 0); }
        if (inside) { dataloader_set_position(&d, &state); } // else the file that is open is still the old one
        for (int attempt = 0; attempt < 2; attempt++) {
            CHECK(next_fails(&d, words[fault]));
            dataloader_set_position(&d, &state);
            CHECK(d.current_shard_idx == whole.current_shard_idx && d.current_sample_idx == whole.current_sample_idx);
            CHECK(d.shard_num_samples == whole.shard_num_samples);
        }
        rename(away, shard);
        for (int i = 0; i < 2 * NUM_SAMPLES; i++) { CHECK(next_sample(&whole) == next_sample(&d)); }
        dataloader_state_free(&state);
        dataloader_close(&whole);
        dataloader_close(&d);
    }
}

// ----------------------------------------------------------------------------
// Several processes

enum { MOST_PROCESSES = 4 };

// A loader of one process, and those of `size` that share the same steps of M micro-batches
typedef struct {
    int size, M;
    DataLoader alone, of[MOST_PROCESSES];
} SharedSteps;

static void open_shared(SharedSteps* s, int size, int micro_steps, int shuffle) {
    s->size = size, s->M = size * micro_steps;
    open_shards(&s->alone, 1, shuffle);
    for (int rank = 0; rank < size; rank++) {
        open_shards(&s->of[rank], 1, shuffle);
        dataloader_share(&s->of[rank], rank, size, s->M);
    }
}

static void close_shared(SharedSteps* s) {
    dataloader_close(&s->alone);
    for (int rank = 0; rank < s->size; rank++) { dataloader_close(&s->of[rank]); }
}

// 1 where both stand at the same place of the same orders.
static int states_are_equal(const DataLoader* a, const DataLoader* b) {
    DataLoaderState x, y;
    dataloader_get_state(a, &x);
    dataloader_get_state(b, &y);
    int same = x.shard == y.shard && x.sample == y.sample && x.num_samples == y.num_samples;
    if (same && x.shuffled) {
        same = memcmp(x.shard_order, y.shard_order, x.num_shards * sizeof(int)) == 0 &&
               memcmp(x.sample_order, y.sample_order, x.num_samples * sizeof(int)) == 0 &&
               memcmp(&x.rng, &y.rng, sizeof(x.rng)) == 0;
    }
    dataloader_state_free(&x);
    dataloader_state_free(&y);
    return same;
}

// One step: rank r's micro-batches are those of the one process from r * K on, and all end at the same place.
static int step_is_shared(SharedSteps* s) {
    int same = 1, K = s->M / s->size;
    for (int i = 0; i < s->M; i++) { same = same && next_sample(&s->of[i / K]) == next_sample(&s->alone); }
    for (int rank = 0; rank < s->size; rank++) { same = same && states_are_equal(&s->alone, &s->of[rank]); }
    return same;
}

static void for_all_sizes(void (*test)(SharedSteps* s, int shuffle)) {
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        for (int size = 1; size <= MOST_PROCESSES; size++) {
            for (int micro_steps = 1; micro_steps <= 5; micro_steps++) { // steps of up to 20 of an epoch's 15 samples
                SharedSteps s;
                open_shared(&s, size, micro_steps, shuffle);
                test(&s, shuffle);
                close_shared(&s);
            }
        }
    }
}

// Through shards and epochs
static void processes_get_what_one_process_gets(SharedSteps* s, int shuffle) {
    int same = 1;
    (void)shuffle;
    for (int step = 0; step < 60; step++) { same = same && step_is_shared(s); }
    CHECK(same);
}

// A process that computes a step again, from wherever in it, puts its loader back.
static void a_step_is_repeated(SharedSteps* s, int shuffle) {
    int same = 1, K = s->M / s->size;
    (void)shuffle;
    for (int step = 0; step < 30; step++) {
        for (int rank = 0; rank < s->size; rank++) {
            DataLoader* d = &s->of[rank];
            DataLoaderState begin;
            int first[5] = {0};
            dataloader_get_state(d, &begin);
            for (int k = 0; k < K; k++) { first[k] = next_sample(d); }
            dataloader_set_position(d, &begin);
            for (int k = 0; k <= step % K; k++) { same = same && next_sample(d) == first[k]; }
            dataloader_set_position(d, &begin);
            dataloader_state_free(&begin);
        }
        same = same && step_is_shared(s);
    }
    CHECK(same);
}

// At the end of any step another number of processes goes on, from one state file. Each has been somewhere before.
static void others_go_on(SharedSteps* s, int shuffle) {
    const char* path = unit_path("state.bin");
    int same = 1, size = s->size % MOST_PROCESSES + 1;
    for (int steps = 0; steps < 8; steps++) {
        SharedSteps next;
        save_state(&s->of[s->size - 1], path);
        open_shared(&next, size, s->M / s->size, shuffle);
        for (int i = 0; i < steps % 3; i++) { next_sample(&next.of[0]); }
        load_state(&next.alone, path, s->alone.current_shard_idx, s->alone.current_sample_idx);
        for (int rank = 0; rank < size; rank++) {
            load_state(&next.of[rank], path, s->alone.current_shard_idx, s->alone.current_sample_idx);
        }
        for (int i = 0; i < 5; i++) { same = same && step_is_shared(&next); }
        close_shared(&next);
        same = same && step_is_shared(s);
    }
    CHECK(same);
}

// -a 1 begins an epoch for each step, a validation for each of its own.
static void an_epoch_begins_anew(SharedSteps* s, int shuffle) {
    int same = 1;
    for (int round = 0; round < 5; round++) {
        same = same && step_is_shared(s);
        if (!shuffle) { next_sample(&s->of[s->size - 1]); } // also in the middle of a step
        for (int rank = 0; rank < s->size; rank++) { check(dataloader_reset(&s->of[rank])); }
        check(dataloader_reset(&s->alone));
    }
    CHECK(same);
}

// Batches of a validation: number i is that of rank i % size.
static void processes_take_turns(void) {
    enum { SIZE = 3 };
    DataLoader alone, of[SIZE];
    int same = 1;
    open_shards(&alone, 1, 0);
    for (int rank = 0; rank < SIZE; rank++) {
        open_shards(&of[rank], 1, 0);
        dataloader_share(&of[rank], rank, SIZE, SIZE);
    }
    for (int round = 0; round < 3; round++) {
        int batches = NUM_SAMPLES - round; // the last round is not everybody's
        for (int i = 0; i < batches; i++) { same = same && next_sample(&of[i % SIZE]) == next_sample(&alone); }
        for (int rank = 0; rank < SIZE; rank++) { check(dataloader_reset(&of[rank])); }
        check(dataloader_reset(&alone));
    }
    CHECK(same);
    for (int rank = 0; rank < SIZE; rank++) { dataloader_close(&of[rank]); }
    dataloader_close(&alone);
}

static void micro_batches_that_cannot_be_shared_are_refused(void) {
    DataLoader d;
    open_shards(&d, 1, 0);
    CHECK_FATAL("3 processes cannot share 4", dataloader_share(&d, 0, 3, 4));
    dataloader_close(&d);
}

// A file that only others read is needed, too: it ends the step for all.
static void a_file_of_others_fails_too(void) {
    const char *shard = unit_path("shard_1.bin"), *away = unit_path("away.bin");
    for (int rank = 0; rank < 2; rank++) {
        DataLoader d;
        DataLoaderState state;
        open_shards(&d, 1, 0);
        dataloader_share(&d, rank, 2, 2);
        CHECK(next_sample(&d) == rank && next_sample(&d) == 2 + rank);
        dataloader_get_state(&d, &state);
        rename(shard, away); // the next step has sample 4 of shard 0 and sample 0 of shard 1
        CHECK(next_fails(&d, "cannot open"));
        dataloader_set_position(&d, &state);
        CHECK(next_fails(&d, "cannot open"));
        rename(away, shard);
        dataloader_set_position(&d, &state);
        CHECK(next_sample(&d) == (rank ? 100 : 4) && next_sample(&d) == (rank ? 102 : 101));
        dataloader_state_free(&state);
        dataloader_close(&d);
    }
}

// ----------------------------------------------------------------------------
// Checksums

// Writes three shards as write_shards does, with checksums; returns their pattern.
static const char* write_sealed(void) {
    for (int f = 0; f < NUM_SHARDS; f++) {
        uint16_t tokens[64];
        char name[32];
        for (int p = 0; p < shard_tokens[f]; p++) { tokens[p] = (uint16_t)(100 * f + p / 4); }
        snprintf(name, sizeof(name), "sealed_%d.bin", f);
        write_tokens(unit_path(name), tokens, shard_tokens[f], V);
        unit_seal(unit_path(name));
    }
    return unit_path("sealed_*.bin");
}

static void read_all(const char* pattern) {
    DataLoader d;
    dataloader_open(&d, pattern, 1, 4, 0, 42, V, host_memory);
    for (int i = 0; i < NUM_SAMPLES; i++) { next_sample(&d); }
    dataloader_close(&d);
}

static void shards_without_checksums_are_counted(void) {
    static const char* names[] = {"sealed_0.bin", "sealed_1.bin", "sealed_2.bin"};
    DataLoader d;
    const char* pattern = write_sealed();
    for (size_t unchecked = 0; unchecked <= NUM_SHARDS; unchecked++) {
        if (unchecked > 0) { unit_unseal(unit_path(names[unchecked - 1])); }
        dataloader_open(&d, pattern, 1, 4, 0, 42, V, host_memory);
        CHECK(d.num_unchecked == unchecked);
        CHECK(next_sample(&d) == 0 && next_sample(&d) == 1);
        dataloader_close(&d);
    }
}

// Few tokens: all are verified before the first step.
static void damaged_shards_are_refused_when_the_loader_opens(void) {
    const char *pattern = write_sealed(), *last = unit_path("sealed_2.bin");
    DataLoader d;
    CHECK_ENDS_WELL(read_all(pattern));
    for (size_t at = 0; at < HEADER_BYTES + 58; at += at < HEADER_BYTES ? 37 : 1) {
        unit_flip(last, 8 * at + at % 8);
        CHECK_FATAL(at < HEADER_BYTES ? "sealed_2.bin" : "sealed_2.bin: bytes 1024 to 1081 do not have their checksum",
                    dataloader_open(&d, pattern, 1, 4, 0, 42, V, host_memory));
        unit_flip(last, 8 * at + at % 8);
    }
    CHECK_ENDS_WELL(read_all(pattern));
}

// Makes the shards more than are verified at once: a last one of 1.2 GB that is a hole in the file, without checksums.
static void add_large_shard(const char* name) {
    int32_t header[HEADER_INTS] = {TOKENS_MAGIC_16, TOKENS_VERSION_16, 600000000, V};
    unit_write(unit_path(name), header, sizeof(header));
    unit_truncate(unit_path(name), HEADER_BYTES + (size_t)1200000000);
}

static void many_shards_are_verified_one_ahead(void) {
    const char *pattern = write_sealed(), *first = unit_path("sealed_0.bin"), *second = unit_path("sealed_1.bin");
    const char* found = "sealed_1.bin: bytes 1024 to 1051 do not have their checksum; the file is corrupt";
    DataLoader d;
    add_large_shard("sealed_3.bin");
    CHECK_ENDS_WELL(read_all(pattern));
    unit_flip(first, 8 * 1030); // the first shard is verified before the first batch
    CHECK_FATAL("sealed_0.bin: bytes 1024 to 1065", dataloader_open(&d, pattern, 1, 4, 0, 42, V, host_memory));
    unit_flip(first, 8 * 1030);
    for (int damaged = 0; damaged < 2; damaged++) { // the second while the first is in use
        if (damaged) { unit_flip(second, 8 * 1030); }
        if (unit_fork()) {
            dataloader_open(&d, pattern, 1, 4, 0, 42, V, host_memory);
            dataloader_join_(&d);
            int right = d.shards[0].verified && d.shards[1].verified == !damaged && !d.shards[2].verified;
            for (int i = 0; i < 5; i++) { right = right && next_sample(&d) == i; }
            if (damaged) {
                DataLoaderState state;
                dataloader_get_state(&d, &state);
                right = right && next_fails(&d, found);
                unit_flip(second, 8 * 1030); // in time for its turn
                dataloader_set_position(&d, &state);
            }
            _exit(right && next_sample(&d) == 100 ? 0 : 7);
        }
        UnitChild child = unit_wait();
        CHECK(child.exit_code == 0);
        CHECK(!damaged ? child.text[0] == '\0' : strncmp(child.text, "warning: ", 9) == 0 && strstr(child.text, found));
    }
    remove(unit_path("sealed_3.bin"));
}

// ----------------------------------------------------------------------------
// Resume with other files

// Reads k batches of two shards and goes on with three or with one: with an epoch of those, whose order follows from the state.
static void other_data_begin_an_epoch(void) {
    const char* patterns[] = {"shard_?.bin", "shard_0.bin"};
    remove(unit_path("shard_0.bin")); // which a test has truncated
    write_shards();
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < 8; k++) {
            DataLoader before, d[2];
            DataLoaderState state[2];
            int seen[256] = {0}, samples = 0, ok = 1;
            dataloader_open(&before, unit_path("shard_[01].bin"), 1, 4, 1, 42, V, host_memory);
            for (int n = 0; n < k; n++) { next_sample(&before); }
            for (int n = 0; n < 2; n++) {
                dataloader_get_state(&before, &state[n]);
                dataloader_open(&d[n], unit_path(patterns[i]), 1, 4, 1, 43 + (unsigned)n, V, host_memory);
                d[n].other_data = 1;
                check(dataloader_begin_other_data(&d[n], &state[n]));
                check(dataloader_set_state(&d[n], &state[n], "state"));
                dataloader_state_free(&state[n]);
            }
            for (size_t n = 0; n < d[0].num_batches; n++, samples++) {
                int sample = next_sample(&d[0]);
                ok = ok && !seen[sample]++ && next_sample(&d[1]) == sample;
            }
            CHECK(ok && samples == (i == 0 ? NUM_SAMPLES : 5));
            dataloader_close(&before);
            dataloader_close(&d[0]);
            dataloader_close(&d[1]);
        }
    }
}

// States of an older version end with names of the files.
static void names_of_the_files_are_passed_over(void) {
    const char* path = unit_path("state.bin");
    const int32_t header[HEADER_INTS] = {0};
    const uint64_t names[3] = {1, 2, 3};
    DataLoader d;
    DataLoaderState state;
    CheckedWriter out;
    CheckedReader in;
    open_shards(&d, 1, 1);
    dataloader_get_state(&d, &state);
    check(checked_create(&out, path, header, dataloader_state_bytes(&state) + sizeof(names)));
    check(dataloader_state_write(&state, &out));
    check(checked_write(&out, names, sizeof(names)));
    check(checked_commit(&out));
    dataloader_state_free(&state);
    check(checked_open(&in, path, 0, "state"));
    CHECK(dataloader_state_read(&state, &in, 1, 0, 0, 1) == STATUS_OK && checked_end(&in) == STATUS_OK);
    CHECK(dataloader_set_state(&d, &state, path) == STATUS_OK);
    dataloader_state_free(&state);
    checked_close(&in);
    dataloader_close(&d);
}

// What a refused header says is not allocated.
static void a_refused_file_takes_no_memory(void) {
    const char* path = unit_path("refused.bin");
    uint16_t tokens[5] = {1, 2, 3, 4, 5};
    int* loaded;
    size_t count;
    status_clear();
    write_tokens(path, tokens, 5, V);
    CHECK(token_file_load(&loaded, &count, path, V) == STATUS_OK && count == 5 && loaded[4] == 5);
    free(loaded);
    CHECK(token_file_load(&loaded, &count, path, 5) == STATUS_ERROR && loaded == NULL);
    CHECK(strstr(status_message(), "refused.bin: token 5 at position 4 is not below the model's vocabulary of 5") !=
          NULL);
    unit_write_format(path, TOKENS_MAGIC_32, TOKENS_VERSION_32, INT32_MAX, V, tokens, sizeof(tokens));
    most_asked = 0;
    CHECK(token_file_load(&loaded, &count, path, V) == STATUS_ERROR && loaded == NULL && count == 0);
    CHECK(strstr(status_message(), "its header says 2147483647 tokens") != NULL && most_asked < 1 << 20);
    status_clear();
}

int main(void) {
    unshuffled_batches_follow_the_files();
    shuffled_batches_come_in_llmc_s_order();
    shuffled_batches_have_rows_from_everywhere();
    every_epoch_visits_every_sample_once();
    batches_hold_the_files_tokens(1, 1, 0);
    batches_hold_the_files_tokens(3, 16, 0);
    batches_hold_the_files_tokens(8, 8, 0);
    batches_hold_the_files_tokens(6, 5, 1);
    batches_hold_the_files_tokens(9, 111, 0); // the whole file is one sample
    a_batch_stays_until_the_second_next_call();
    batches_live_in_the_memory_of_the_caller();
    offsets_have_64_bits();
    for (int B = 1; B <= 2; B++) {
        a_resumed_loader_goes_on_as_if_nothing_had_happened(B, 0);
        a_resumed_loader_goes_on_as_if_nothing_had_happened(B, 1);
    }
    an_order_of_batches_is_kept_to_the_end_of_its_shard();
    the_state_has_llmc_s_layout();
    a_state_that_does_not_fit_is_refused();
    shared_files_are_counted();
    a_name_that_is_there_is_no_pattern();
    bad_files_are_refused();
    batches_that_no_size_can_hold_are_refused();
    tokens_beyond_the_vocabulary_are_refused();
    errors_do_not_end_a_run(0);
    errors_do_not_end_a_run(1);
    for_all_sizes(processes_get_what_one_process_gets);
    for_all_sizes(a_step_is_repeated);
    for_all_sizes(others_go_on);
    for_all_sizes(an_epoch_begins_anew);
    processes_take_turns();
    micro_batches_that_cannot_be_shared_are_refused();
    a_file_of_others_fails_too();
    a_file_that_shrinks_during_the_run_is_noticed();
    shards_without_checksums_are_counted();
    damaged_shards_are_refused_when_the_loader_opens();
    many_shards_are_verified_one_ahead();
    other_data_begin_an_epoch();
    names_of_the_files_are_passed_over();
    a_refused_file_takes_no_memory();
    return unit_end();
}
