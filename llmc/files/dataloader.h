/*
The batches of a training run, from token files ("shards"). A shard is the header ([2] number of tokens, [3] vocabulary,
0 if the writer did not say) and its tokens, as uint16 (magic 20240520, version 1) or uint32 (20240801, version 7).

A sample is a micro-batch: B rows of T tokens, each with one more, the last target. Rows come in the order of the file, or
shuffled, the shards for each epoch and the rows for each shard, by the Mersenne Twister: a batch has rows of all of the shard,
as one of B rows that follow each other would be of few documents. The order does not depend on B: it is llm.c's for B = 1,
one process and the same seed. Each rank gets a contiguous run of the micro-batches of a step (dataloader_share).

Checksums (checked_file.h), where shards have them, are verified before a shard's first batch, once in a run: when the loader
is opened if the shards have up to 1 GiB in all; else a thread verifies the next shard while one is in use.
An error while the loader opens ends the program; later errors are returned as a Status, so that a run can still be saved.
*/
#ifndef LLMC_FILES_DATALOADER_H
#define LLMC_FILES_DATALOADER_H

#include <glob.h>
#include <sys/stat.h>

#include "llmc/base/atomic_file.h"
#include "llmc/base/checked_file.h"
#include "llmc/base/rand.h"
#include "llmc/base/regular_file.h"
#include "llmc/base/utils.h"

enum { TOKENS_MAGIC_16 = 20240520, TOKENS_VERSION_16 = 1, TOKENS_MAGIC_32 = 20240801, TOKENS_VERSION_32 = 7 };

// The allocator of batches: the GPU trainer passes page-locked memory. alloc returns NULL on failure. {NULL, NULL}: malloc and
// free.
typedef struct {
    void* (*alloc)(size_t bytes);
    void (*release)(void* memory);
} HostAlloc;

typedef struct {
    FILE* file;
    const char* path;
    size_t num_tokens;
    size_t token_bytes; // 2 or 4
    int vocab_size;     // 0: not known
    int has_checksums;
} TokenFile;

// A file of the pattern
typedef struct {
    const char* path;
    int verified; // 1: its bytes have their checksums, or it has none
    int warned;   // 1: the thread has said that they do not
} TokenShard;

// A batch stays in place while the next two are read and used.
enum { DATALOADER_BATCHES = 3 };

typedef struct {
    size_t B, T;
    int vocab_size;
    HostAlloc memory;
    // which micro-batches are this process's: of each step rank * micro_steps and those that follow it
    size_t rank, size;
    size_t micro_steps; // micro-batches of a step that one process has
    size_t micro_step;  // how many of them this step has given; 0: the position is where a step begins
    glob_t paths;
    TokenShard* shards;   // (num_shards) in alphabetical order
    size_t num_tokens;    // of all shards
    size_t num_batches;   // of an epoch: what is less than a batch at the end of a shard is dropped
    size_t num_unchecked; // shards without checksums
    // position and order; what a state file holds
    size_t num_shards;
    size_t current_shard_idx;  // in the order of shard_indices
    size_t current_sample_idx; // the next sample, in the order of intra_shard_indices
    size_t shard_num_samples;
    int should_shuffle;
    int* shard_indices;       // (num_shards), NULL if not shuffled
    int* intra_shard_indices; // (order_length), NULL if not shuffled
    size_t order_length;      // all rows of the shard, also the last ones that fill no batch; / order_rows
    size_t order_rows;        // that follow each other, of an index; 1, but B in states of llm.c and of version 0.2
    mt19937_state shuffle_rng;
    // reading
    TokenFile shard;                  // the current one
    int* batches[DATALOADER_BATCHES]; // (2,B,T) each: inputs and targets
    int batch;                        // the current one
    void* raw;                        // (T + 1) tokens of a row as the file has them
    int* row;                         // (T + 1), the same
    int verifies;                     // 1: the thread is at work, or waits to be joined
    pthread_t verifier;
    int other_data; // 1: a state may be of other files (--resume-anyway)
} DataLoader;

// ----------------------------------------------------------------------------
// Token files

// Parses the header of an open file, and checks it and the file's length.
static inline Status token_file_parse_(TokenFile* t, const CheckedReader* r) {
    const int32_t* header = r->header;
    int expected_version = header[0] == TOKENS_MAGIC_32 ? TOKENS_VERSION_32 : TOKENS_VERSION_16;
    if (header[1] != expected_version) {
        return status_fail("%s: version %d of the token format with magic number %d, expected %d", t->path,
                           (int)header[1], (int)header[0], expected_version);
    }
    if (header[2] < 0 || header[3] < 0 || header[3] > MAX_VOCAB_SIZE) {
        return status_fail("%s: its header says %d tokens of a vocabulary of %d, %d at most; the file is corrupt",
                           t->path, (int)header[2], (int)header[3], (int)MAX_VOCAB_SIZE);
    }
    t->file = r->file;
    t->num_tokens = (size_t)header[2];
    t->vocab_size = header[3];
    t->token_bytes = header[0] == TOKENS_MAGIC_32 ? 4 : 2;
    t->has_checksums = r->has_checksums;
    size_t size = HEADER_BYTES + r->body_bytes;
    size_t expected = size_add(HEADER_BYTES, size_mul(t->num_tokens, t->token_bytes));
    if (size == expected) { return STATUS_OK; }
    return status_fail("%s has %zu bytes, but its header says %zu tokens, which take %zu; the file is truncated or "
                       "corrupt",
                       t->path, size, t->num_tokens, expected);
}

// Opens a token file and checks its header, with its checksum, and its length. After an error nothing is open.
static inline Status token_file_begin(TokenFile* t, CheckedReader* r, const char* path) {
    memset(t, 0, sizeof(*t));
    t->path = path;
    TRY(checked_open_either(r, path, TOKENS_MAGIC_16, TOKENS_MAGIC_32, "token file (dev/data writes them)"));
    if (token_file_parse_(t, r) == STATUS_OK) { return STATUS_OK; }
    checked_close(r);
    t->file = NULL;
    return STATUS_ERROR;
}

static inline Status token_file_open(TokenFile* t, const char* path) {
    CheckedReader r;
    return token_file_begin(t, &r, path);
}

// Casts tokens as a file has them, up to the first that is not below `limit`, which is cast too; returns how many are below.
static inline size_t token_file_cast(int* tokens, const void* raw, const TokenFile* t, size_t count, uint32_t limit) {
    for (size_t i = 0; i < count; i++) {
        uint32_t token = t->token_bytes == 2 ? ((const uint16_t*)raw)[i] : ((const uint32_t*)raw)[i];
        tokens[i] = (int)token;
        if (token >= limit) { return i; }
    }
    return count;
}

// All tokens of a file, each below vocab_size; the caller frees them. After an error there are none.
static inline Status token_file_load(int** tokens, size_t* count, const char* path, int vocab_size) {
    CheckedReader r;
    TokenFile t;
    *tokens = NULL, *count = 0;
    TRY(token_file_begin(&t, &r, path));
    void* raw = malloc_check(r.body_bytes);
    int* all = (int*)malloc_check(size_mul(t.num_tokens, sizeof(int)));
    Status status = checked_read(&r, raw, r.body_bytes);
    size_t good = status == STATUS_OK ? token_file_cast(all, raw, &t, t.num_tokens, (uint32_t)vocab_size) : 0;
    if (status == STATUS_OK && good < t.num_tokens) {
        status = status_fail("%s: token %u at position %zu is not below the model's vocabulary of %d", path,
                             (unsigned)all[good], good, vocab_size);
    }
    free(raw);
    checked_close(&r);
    if (status == STATUS_OK) { *tokens = all, *count = t.num_tokens; }
    if (status != STATUS_OK) { free(all); }
    return status;
}

// Finds the file whose name is the pattern itself or, if there is none, all that match it, in alphabetical order. Returns 0, or
// glob()'s error.
static inline int token_file_glob(glob_t* paths, const char* pattern) {
    int is_name = file_exists(pattern);
    char *literal = (char*)malloc_check(2 * strlen(pattern) + 1), *end = literal;
    for (const char* c = pattern; *c != '\0'; c++) {
        if (is_name && strchr("*?[\\", *c) != NULL) { *end++ = '\\'; }
        *end++ = *c;
    }
    *end = '\0';
    int status = glob(literal, 0, NULL, paths);
    free(literal);
    return status;
}

// The same, but ends the program with one line if there are none.
static inline glob_t token_file_paths(const char* pattern) {
    glob_t paths;
    int status = token_file_glob(&paths, pattern);
    if (status != 0) {
        fatal("no token file matches %s; a script in dev/data writes them, for example python3 "
              "dev/data/tinyshakespeare.py",
              pattern);
    }
    if (folder_exists(pattern)) { fatal("%s is a folder; name its files, as '%s/*.bin'", pattern, pattern); }
    return paths;
}

// The vocabulary size in the header of a pattern's first file; 0 if it has none.
static inline int dataloader_vocab_size(const char* pattern) {
    glob_t paths = token_file_paths(pattern);
    TokenFile t;
    check(token_file_open(&t, paths.gl_pathv[0]));
    fclose(t.file);
    globfree(&paths);
    return t.vocab_size;
}

// ----------------------------------------------------------------------------
// Verifying shards

static const size_t TOKENS_VERIFIED_AT_ONCE = (size_t)1 << 30; // bytes of shards; more are verified one by one

// Verifies a shard, unless that is done.
static inline Status token_shard_verify_(TokenShard* shard) {
    CheckedReader r;
    TokenFile t;
    if (shard->verified) { return STATUS_OK; }
    TRY(token_file_begin(&t, &r, shard->path));
    Status status = r.has_checksums ? checked_verify(&r) : STATUS_OK;
    checked_close(&r);
    shard->verified = status == STATUS_OK;
    return status;
}

// The thread. A damaged shard is read again when its turn comes, and may be replaced until then.
static inline void* token_shard_thread_(void* context) {
    TokenShard* shard = (TokenShard*)context;
    if (token_shard_verify_(shard) == STATUS_OK || shard->warned) { return NULL; }
    shard->warned = 1;
    print_warning("%s; the run ends when it gets there, unless the file is replaced by an intact one",
                  status_message());
    return NULL;
}

static inline void dataloader_join_(DataLoader* d) {
    if (d->verifies) { pthread_join(d->verifier, NULL); }
    d->verifies = 0;
}

// ----------------------------------------------------------------------------
// Shards

static inline size_t dataloader_rows_in_(const DataLoader* d, TokenFile shard) {
    return shard.num_tokens == 0 ? 0 : (shard.num_tokens - 1) / d->T;
}

static inline size_t dataloader_samples_(const DataLoader* d, TokenFile shard) {
    return dataloader_rows_in_(d, shard) / d->B;
}

// The shard, in alphabetical order, that is at this place of the epoch
static inline size_t dataloader_shard_at_(const DataLoader* d, size_t place) {
    return d->should_shuffle ? (size_t)d->shard_indices[place] : place;
}

// Starts the thread that verifies the next shard while this one is in use.
static inline void dataloader_verify_ahead_(DataLoader* d) {
    if (d->current_shard_idx + 1 >= d->num_shards) { return; }
    TokenShard* next = &d->shards[dataloader_shard_at_(d, d->current_shard_idx + 1)];
    if (!next->verified) { d->verifies = thread_start(&d->verifier, token_shard_thread_, next); }
}

static inline void dataloader_close_shard_(DataLoader* d) {
    if (d->shard.file != NULL) { fclose(d->shard.file); }
    d->shard.file = NULL;
}

// Opens the shard at current_shard_idx, verified. After an error the loader is as it was.
static inline Status dataloader_open_shard_(DataLoader* d) {
    TokenShard* next = &d->shards[dataloader_shard_at_(d, d->current_shard_idx)];
    TokenFile shard;
    status_clear();
    dataloader_join_(d);
    TRY(token_shard_verify_(next));
    TRY(token_file_open(&shard, next->path));
    if (dataloader_samples_(d, shard) == 0) { // it was checked once: the file has changed
        fclose(shard.file);
        return status_fail("%s has become too short for a batch since the run began", shard.path);
    }
    dataloader_close_shard_(d);
    d->shard = shard;
    d->shard_num_samples = dataloader_samples_(d, shard);
    dataloader_verify_ahead_(d);
    return STATUS_OK;
}

static inline void dataloader_allocate_order_(DataLoader* d, size_t length) {
    free(d->intra_shard_indices);
    d->intra_shard_indices = (int*)malloc_check(length * sizeof(int));
    d->order_length = length;
}

// Begins the shard at current_shard_idx.
static inline Status dataloader_begin_shard_(DataLoader* d) {
    TRY(dataloader_open_shard_(d));
    d->current_sample_idx = 0;
    if (!d->should_shuffle) { return STATUS_OK; }
    d->order_rows = 1;
    dataloader_allocate_order_(d, dataloader_rows_in_(d, d->shard));
    init_identity_permutation(d->intra_shard_indices, (int)d->order_length);
    random_permutation(d->intra_shard_indices, (int)d->order_length, &d->shuffle_rng);
    return STATUS_OK;
}

static inline Status dataloader_begin_epoch_(DataLoader* d) {
    d->current_shard_idx = 0;
    if (d->should_shuffle) { random_permutation(d->shard_indices, (int)d->num_shards, &d->shuffle_rng); }
    return dataloader_begin_shard_(d);
}

// Starts an epoch, and a step. Not shuffled, every epoch is the same; shuffled, each differs. After an error the position must
// be set again (dataloader_set_position).
static inline Status dataloader_reset(DataLoader* d) {
    d->micro_step = 0;
    return dataloader_begin_epoch_(d);
}

// Opens the shard again whose position was set without it (dataloader_set_position).
static inline Status dataloader_open_again_(DataLoader* d) {
    size_t samples = d->shard_num_samples;
    if (d->shard.file != NULL) { return STATUS_OK; }
    TRY(dataloader_open_shard_(d));
    if (d->shard_num_samples == samples) { return STATUS_OK; }
    dataloader_close_shard_(d);
    d->shard_num_samples = samples;
    return status_fail("%s has changed since the run began: it has another number of batches", d->shard.path);
}

// Checks every shard at the start, so that an invalid one does not end the run later; the tokens only if they are few, see
// above.
static inline void dataloader_check_shards_(DataLoader* d) {
    size_t needed = size_add(size_mul(d->B, d->T), 1), bytes = 0;
    int vocab_size = 0; // the first that a shard names
    for (size_t i = 0; i < d->num_shards; i++) {
        TokenFile t;
        check(token_file_open(&t, d->shards[i].path));
        if (t.num_tokens < needed) {
            fatal(
                "%s holds %zu tokens, a batch needs %zu (B %zu x T %zu, and one); choose a smaller -b or -t, or larger "
                "files",
                t.path, t.num_tokens, needed, d->B, d->T);
        }
        if (d->vocab_size > 0 && t.vocab_size > d->vocab_size) {
            fatal(
                "%s holds tokens of a vocabulary of %d, the model's is %d; use the model's tokenizer, or another model",
                t.path, t.vocab_size, d->vocab_size);
        }
        if (vocab_size == 0) { vocab_size = t.vocab_size; }
        if (t.vocab_size != 0 && t.vocab_size != vocab_size) {
            fatal("%s holds tokens of a vocabulary of %d, other files of the pattern of %d; train on one kind", t.path,
                  t.vocab_size, vocab_size);
        }
        d->num_tokens += t.num_tokens;
        d->num_batches += dataloader_samples_(d, t);
        d->num_unchecked += !t.has_checksums;
        bytes += t.num_tokens * t.token_bytes;
        fclose(t.file);
    }
    for (size_t i = 0; i < d->num_shards && bytes <= TOKENS_VERIFIED_AT_ONCE; i++) {
        check(token_shard_verify_(&d->shards[i]));
    }
}

// ----------------------------------------------------------------------------
// The loader

// Opens all files that match `pattern` for batches of B rows of T tokens. Tokens must be below vocab_size; 0 skips that
// check. Ends with one line that names the file and its fault.
static inline void dataloader_open(DataLoader* d, const char* pattern, int B, int T, int shuffle, unsigned seed,
                                   int vocab_size, HostAlloc alloc) {
    memset(d, 0, sizeof(*d));
    d->B = (size_t)B, d->T = (size_t)T;
    d->size = d->micro_steps = d->order_rows = 1;
    d->vocab_size = vocab_size;
    d->memory = alloc;
    d->paths = token_file_paths(pattern);
    d->num_shards = d->paths.gl_pathc;
    d->shards = (TokenShard*)calloc_check(d->num_shards, sizeof(TokenShard));
    for (size_t i = 0; i < d->num_shards; i++) { d->shards[i].path = d->paths.gl_pathv[i]; }
    dataloader_check_shards_(d);

    d->should_shuffle = shuffle;
    if (shuffle) {
        manual_seed(&d->shuffle_rng, seed);
        d->shard_indices = (int*)malloc_check(d->num_shards * sizeof(int));
        init_identity_permutation(d->shard_indices, (int)d->num_shards);
    }
    for (int i = 0; i < DATALOADER_BATCHES; i++) {
        size_t bytes = 2 * d->B * d->T * sizeof(int);
        d->batches[i] = (int*)(alloc.alloc ? alloc.alloc(bytes) : malloc_check(bytes));
        if (d->batches[i] == NULL) { fatal("a batch of %zu tokens: no host memory for it", d->B * d->T); }
    }
    d->raw = malloc_check((d->T + 1) * sizeof(uint32_t));
    d->row = (int*)malloc_check((d->T + 1) * sizeof(int));
    check(dataloader_reset(d));
}

// Gives this process, one of `size`, its share of each step of micro_batches, which size divides: dataloader_next gives the
// micro-batches rank * K .. rank * K + K - 1, K = micro_batches / size, and skips the others'. At the end of a step all
// processes are at the position of a run with one process. Called after dataloader_open.
static inline void dataloader_share(DataLoader* d, int rank, int size, int micro_batches) {
    if (micro_batches % size != 0) { fatal("%d processes cannot share %d micro-batches", size, micro_batches); }
    d->rank = (size_t)rank, d->size = (size_t)size;
    d->micro_steps = (size_t)(micro_batches / size);
    d->micro_step = 0;
}

// At the end of a shard, starts the next one, or the next epoch.
static inline Status dataloader_pass_end_(DataLoader* d) {
    if (d->current_sample_idx < d->shard_num_samples) { return STATUS_OK; }
    return ++d->current_shard_idx < d->num_shards ? dataloader_begin_shard_(d) : dataloader_begin_epoch_(d);
}

// Skips batches of other processes: the position becomes that after reading them.
static inline Status dataloader_skip_(DataLoader* d, size_t count) {
    while (count > 0) {
        TRY(dataloader_pass_end_(d));
        size_t left = d->shard_num_samples - d->current_sample_idx, n = count < left ? count : left;
        d->current_sample_idx += n;
        count -= n;
    }
    return STATUS_OK;
}

// Advances after a batch. After the last one of a step the position is the end of the step, as in all processes.
static inline Status dataloader_advance_(DataLoader* d) {
    d->current_sample_idx++;
    d->micro_step = (d->micro_step + 1) % d->micro_steps;
    return d->micro_step > 0 ? STATUS_OK : dataloader_skip_(d, (d->size - 1 - d->rank) * d->micro_steps);
}

// The row of the shard that is row b of the next sample
static inline size_t dataloader_row_(const DataLoader* d, size_t b) {
    size_t place = d->current_sample_idx * d->B + b;
    if (!d->should_shuffle) { return place; }
    return (size_t)d->intra_shard_indices[place / d->order_rows] * d->order_rows + place % d->order_rows;
}

// Reads row b of the next sample into d->row.
static inline Status dataloader_read_row_(const DataLoader* d, size_t b) {
    const TokenFile* shard = &d->shard;
    size_t first = dataloader_row_(d, b) * d->T, count = d->T + 1;
    size_t at = HEADER_BYTES + first * shard->token_bytes;
    TRY(read_at(fileno(shard->file), shard->path, at, d->raw, count * shard->token_bytes));
    uint32_t limit = d->vocab_size > 0 ? (uint32_t)d->vocab_size : (uint32_t)INT32_MAX + 1;
    size_t good = token_file_cast(d->row, d->raw, shard, count, limit);
    if (good == count) { return STATUS_OK; }
    at += good * shard->token_bytes;
    return status_fail(
        "%s: token %u at position %zu (bytes %zu to %zu) is not below the model's vocabulary of %d; train "
        "a model with another --vocab-size, or make the file again with its tokenizer",
        shard->path, (unsigned)d->row[good], first + good, at, at + shard->token_bytes - 1, d->vocab_size);
}

// Returns this process's next batch: inputs (B,T) and targets (B,T), the tokens that follow them. Both remain valid until the
// second next call, so that a copy to the GPU may still be in flight during the next call. Begins with status_clear(). An error
// names the file and its bytes; then there is no batch, and the position must be set again (dataloader_set_position).
static inline Status dataloader_next(DataLoader* d, const int** inputs, const int** targets) {
    status_clear();
    *inputs = NULL, *targets = NULL;
    TRY(dataloader_open_again_(d));
    if (d->micro_step == 0) { TRY(dataloader_skip_(d, d->rank * d->micro_steps)); } // those of lower ranks
    TRY(dataloader_pass_end_(d));
    d->batch = (d->batch + 1) % DATALOADER_BATCHES;
    int *x = d->batches[d->batch], *y = x + d->B * d->T;
    for (size_t b = 0; b < d->B; b++) {
        TRY(dataloader_read_row_(d, b));
        memcpy(x + b * d->T, d->row, d->T * sizeof(int));
        memcpy(y + b * d->T, d->row + 1, d->T * sizeof(int));
    }
    TRY(dataloader_advance_(d));
    *inputs = x;
    *targets = y;
    return STATUS_OK;
}

// The number of files that a and b share, under any name; *first is the first of them.
static inline size_t dataloader_shared_files(const DataLoader* a, const DataLoader* b, const char** first) {
    size_t shared = 0;
    for (size_t i = 0; i < a->num_shards; i++) {
        for (size_t j = 0; j < b->num_shards; j++) {
            if (!same_file(a->shards[i].path, b->shards[j].path)) { continue; }
            if (shared++ == 0) { *first = a->shards[i].path; }
            break;
        }
    }
    return shared;
}

static inline void dataloader_close(DataLoader* d) {
    dataloader_join_(d);
    for (int i = 0; i < DATALOADER_BATCHES; i++) {
        d->memory.release ? d->memory.release(d->batches[i]) : free(d->batches[i]);
    }
    free(d->raw);
    free(d->row);
    free(d->shards);
    free(d->shard_indices);
    free(d->intra_shard_indices);
    dataloader_close_shard_(d);
    globfree(&d->paths);
    memset(d, 0, sizeof(*d));
}

// ----------------------------------------------------------------------------
// The position of a loader, as a state file (checkpoint.h) holds it: the position in its header and, for a loader that
// shuffles, the tail  num_shards (size_t), shard_order, num_samples (size_t), sample_order, rng. It is a copy: a thread may
// write it while the loader is used. Values from a file are checked before a loader uses them. Where several processes share
// the steps (dataloader_share), a state is taken at the end of a step: it is the same as with one process.

typedef struct {
    int shuffled;         // 0: there is only the position
    size_t shard, sample; // the next sample, in the orders below
    size_t num_shards;    // of all files
    size_t num_samples;   // of this shard; shuffled, the length of its order
    size_t order_rows;    // the loader's; 0: of a state file, it follows from the shard
    int* shard_order;     // (num_shards), NULL if not shuffled
    int* sample_order;    // (num_samples), NULL if not shuffled
    mt19937_state rng;
} DataLoaderState;

static inline void dataloader_state_free(DataLoaderState* s) {
    free(s->shard_order);
    free(s->sample_order);
    memset(s, 0, sizeof(*s));
}

// A permutation of n in memory of its own
static inline int* dataloader_state_copy_(const int* order, size_t n) {
    int* copy = (int*)malloc_check(size_mul(n, sizeof(int)));
    if (order != NULL) { memcpy(copy, order, n * sizeof(int)); }
    return copy;
}

// Copies where the loader stands; dataloader_state_free frees the copy.
static inline void dataloader_get_state(const DataLoader* d, DataLoaderState* s) {
    memset(s, 0, sizeof(*s));
    s->shuffled = d->should_shuffle;
    s->shard = d->current_shard_idx, s->sample = d->current_sample_idx;
    s->num_shards = d->num_shards, s->num_samples = d->shard_num_samples;
    if (!s->shuffled) { return; }
    s->num_samples = d->order_length, s->order_rows = d->order_rows;
    s->shard_order = dataloader_state_copy_(d->shard_indices, s->num_shards);
    s->sample_order = dataloader_state_copy_(d->intra_shard_indices, s->num_samples);
    s->rng = d->shuffle_rng;
}

// The bytes of the tail
static inline size_t dataloader_state_bytes(const DataLoaderState* s) {
    if (!s->shuffled) { return 0; }
    return 2 * sizeof(size_t) + (s->num_shards + s->num_samples) * sizeof(int) + sizeof(s->rng);
}

static inline Status dataloader_state_write(const DataLoaderState* s, CheckedWriter* file) {
    if (!s->shuffled) { return STATUS_OK; }
    TRY(checked_write(file, &s->num_shards, sizeof(size_t)));
    TRY(checked_write(file, s->shard_order, s->num_shards * sizeof(int)));
    TRY(checked_write(file, &s->num_samples, sizeof(size_t)));
    TRY(checked_write(file, s->sample_order, s->num_samples * sizeof(int)));
    return checked_write(file, &s->rng, sizeof(s->rng));
}

// Reads a count and a permutation of 0..count-1, into memory of its own.
static inline Status dataloader_state_read_order_(int** order, size_t* count, CheckedReader* file) {
    size_t n;
    TRY(checked_read(file, count, sizeof(*count)));
    n = *count;
    if (n > file->body_bytes / sizeof(int)) {
        return status_fail("%s: an order of %zu entries does not fit its %zu bytes; the file is truncated or corrupt",
                           file->path, n, file->body_bytes);
    }
    *order = dataloader_state_copy_(NULL, n);
    char* seen = (char*)calloc_check(n, 1);
    Status result = checked_read(file, *order, n * sizeof(int));
    for (size_t i = 0; result == STATUS_OK && i < n; i++) {
        int entry = (*order)[i];
        if (entry < 0 || (size_t)entry >= n || seen[entry]++) {
            result =
                status_fail("%s: entry %zu, %d, is not one of an order of %zu, or there twice; the file is corrupt",
                            file->path, i, entry, n);
        }
    }
    free(seen);
    return result;
}

// Reads the tail of a state file. `shuffled`, `shard`, `sample` and `has_names` are those of its header. Also after an error
// dataloader_state_free frees what it took.
static inline Status dataloader_state_read(DataLoaderState* s, CheckedReader* file, int shuffled, size_t shard,
                                           size_t sample, int has_names) {
    memset(s, 0, sizeof(*s));
    s->shuffled = shuffled, s->shard = shard, s->sample = sample;
    if (!shuffled) { return STATUS_OK; }
    TRY(dataloader_state_read_order_(&s->shard_order, &s->num_shards, file));
    TRY(dataloader_state_read_order_(&s->sample_order, &s->num_samples, file));
    TRY(checked_read(file, &s->rng, sizeof(s->rng)));
    if (!mt19937_valid(&s->rng)) { return status_fail("%s: its random number generator is corrupt", file->path); }
    return has_names ? checked_skip(file, s->num_shards * sizeof(uint64_t)) : STATUS_OK;
}

// Puts a loader back to where it stood when dataloader_get_state copied it, without its files: it may be one of them that
// cannot be read. The next dataloader_next opens the shard; that it stands there can be saved without.
static inline void dataloader_set_position(DataLoader* d, const DataLoaderState* s) {
    d->micro_step = 0;
    dataloader_close_shard_(d);
    d->current_shard_idx = s->shard, d->current_sample_idx = s->sample;
    d->shard_num_samples = s->num_samples;
    if (!s->shuffled) { return; }
    d->order_rows = s->order_rows ? s->order_rows : d->B;
    d->shard_num_samples = s->num_samples * d->order_rows / d->B;
    memcpy(d->shard_indices, s->shard_order, s->num_shards * sizeof(int));
    dataloader_allocate_order_(d, s->num_samples);
    memcpy(d->intra_shard_indices, s->sample_order, s->num_samples * sizeof(int));
    d->shuffle_rng = s->rng;
}

// Puts a loader that was opened with the same files and settings back to where it stood: the next batch is the one that would
// have followed. `path` is the state file, for messages.
static inline Status dataloader_set_state(DataLoader* d, const DataLoaderState* s, const char* path) {
    if (s->shuffled != d->should_shuffle) {
        return status_fail("%s was written with -a %d; resume with the same", path, !s->shuffled);
    }
    if (s->shard >= d->num_shards || (s->shuffled && s->num_shards != d->num_shards)) {
        return status_fail("%s was saved in token file %zu, counted from 0, of other data; now there are %zu", path,
                           s->shard, d->num_shards);
    }
    dataloader_set_position(d, s);
    TRY(dataloader_open_shard_(d));
    size_t now = d->shard_num_samples, rows = dataloader_rows_in_(d, d->shard);
    d->order_rows = s->num_samples == rows ? 1 : d->B;
    size_t length = d->order_rows == 1 ? rows : now;
    if (s->sample <= now && (!s->shuffled || s->num_samples == length)) { return STATUS_OK; }
    return status_fail("%s was saved at sample %zu of %s, which now has %zu: the data or the batch is another", path,
                       s->sample, d->shard.path, now);
}

// Replaces a shuffled state of other files (--resume-anyway) by the beginning of an epoch of the loader's, whose order follows
// from the state's generator.
static inline Status dataloader_begin_other_data(DataLoader* d, DataLoaderState* s) {
    if (!d->other_data || !s->shuffled || !d->should_shuffle) { return STATUS_OK; }
    d->shuffle_rng = s->rng;
    init_identity_permutation(d->shard_indices, (int)d->num_shards);
    TRY(dataloader_reset(d));
    printf("note: the token files have changed: starting a new epoch, in %s\n", d->shard.path);
    dataloader_state_free(s);
    dataloader_get_state(d, s);
    return STATUS_OK;
}

#endif
