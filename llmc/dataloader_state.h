/*
The position of a loader, as a state file (checkpoint.h) holds it: the position in its header and, for a loader that shuffles,
the tail  num_shards (size_t), shard_order, num_samples (size_t), sample_order, rng.  It is a copy: a thread may write it
while the loader is used. Values from a file are checked before a loader uses them. Where several processes share the steps
(dataloader_share), a state is taken at the end of a step: it is the same in all of them, and the same as with one process.
*/
#ifndef LLMC_DATALOADER_STATE_H
#define LLMC_DATALOADER_STATE_H

#include "checked_file.h"
#include "dataloader.h"
#include "status.h"

typedef struct {
    int shuffled;         // 0: there is only the position
    size_t shard, sample; // the next sample, in the orders below
    size_t num_shards;    // of all files
    size_t num_samples;   // of this shard
    int* shard_order;     // (num_shards), NULL if not shuffled
    int* sample_order;    // (num_samples), NULL if not shuffled
    mt19937_state rng;
} DataLoaderState;

static inline void dataloader_state_free(DataLoaderState* s) {
    free(s->shard_order);
    free(s->sample_order);
    memset(s, 0, sizeof(*s));
}

// A permutation of n in memory of its own; NULL if there is none.
static inline int* dataloader_state_copy_(const int* order, size_t n) {
    int* copy = (int*)malloc(size_mul(n ? n : 1, sizeof(int)));
    if (copy != NULL && order != NULL) { memcpy(copy, order, n * sizeof(int)); }
    return copy;
}

// Copies where the loader stands; dataloader_state_free frees the copy.
static inline Status dataloader_get_state(const DataLoader* d, DataLoaderState* s) {
    memset(s, 0, sizeof(*s));
    s->shuffled = d->should_shuffle;
    s->shard = d->current_shard_idx, s->sample = d->current_sample_idx;
    s->num_shards = d->num_shards, s->num_samples = d->shard_num_samples;
    if (!s->shuffled) { return STATUS_OK; }
    s->shard_order = dataloader_state_copy_(d->shard_indices, s->num_shards);
    s->sample_order = dataloader_state_copy_(d->intra_shard_indices, s->num_samples);
    s->rng = d->shuffle_rng;
    if (s->shard_order != NULL && s->sample_order != NULL) { return STATUS_OK; }
    dataloader_state_free(s);
    return status_fail("out of memory: no copy of the order of the data");
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
    char* seen = (char*)calloc(n ? n : 1, 1);
    Status result = *order != NULL && seen != NULL
                        ? checked_read(file, *order, n * sizeof(int))
                        : status_fail("out of memory: an order of %zu entries of the data", n);
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

// Reads the tail of a state file. `shuffled`, `shard` and `sample` are those of its header. Also after an error
// dataloader_state_free frees what it took.
static inline Status dataloader_state_read(DataLoaderState* s, CheckedReader* file, int shuffled, size_t shard,
                                           size_t sample) {
    memset(s, 0, sizeof(*s));
    s->shuffled = shuffled, s->shard = shard, s->sample = sample;
    if (!shuffled) { return STATUS_OK; }
    TRY(dataloader_state_read_order_(&s->shard_order, &s->num_shards, file));
    TRY(dataloader_state_read_order_(&s->sample_order, &s->num_samples, file));
    TRY(checked_read(file, &s->rng, sizeof(s->rng)));
    if (!mt19937_valid(&s->rng)) { return status_fail("%s: its random number generator is corrupt", file->path); }
    return STATUS_OK;
}

static inline Status dataloader_state_count_(size_t saved, size_t now, const char* what, const char* path) {
    if (saved == now) { return STATUS_OK; }
    return status_fail("%s was saved with %zu %s, now there are %zu: the data or the batch is another", path, saved,
                       what, now);
}

// Puts a loader that was opened with the same files and settings back to where it stood: the next batch is the one that would
// have followed. `path` is the state file, for messages.
static inline Status dataloader_set_state(DataLoader* d, const DataLoaderState* s, const char* path) {
    token_fetcher_wait_(d->fetcher); // whatever was fetched is not the next batch
    d->micro_step = 0;
    if (s->shuffled != d->should_shuffle) {
        return status_fail("%s was written with -a %d; resume with the same", path, !s->shuffled);
    }
    if (s->shuffled) {
        TRY(dataloader_state_count_(s->num_shards, d->num_shards, "token files", path));
        memcpy(d->shard_indices, s->shard_order, s->num_shards * sizeof(int));
    }
    if (s->shard >= d->num_shards) {
        return status_fail("%s was saved in token file %zu, counted from 0; now there are %zu", path, s->shard,
                           d->num_shards);
    }
    d->current_shard_idx = s->shard;
    TRY(dataloader_open_shard_(d));
    if (s->sample > d->shard_num_samples) {
        return status_fail("%s was saved at sample %zu of %s, which now has %zu: the data or the batch is another",
                           path, s->sample, d->shard.path, d->shard_num_samples);
    }
    d->current_sample_idx = s->sample;
    if (s->shuffled) {
        TRY(dataloader_state_count_(s->num_samples, d->shard_num_samples, "samples in its token file", path));
        dataloader_allocate_order_(d);
        memcpy(d->intra_shard_indices, s->sample_order, s->num_samples * sizeof(int));
        d->shuffle_rng = s->rng;
    }
    return STATUS_OK;
}

// Puts a loader back to where it stood when dataloader_get_state copied it, without its files: it may be one of them that
// cannot be read. The next dataloader_next opens the shard; that it stands there can be saved without.
static inline void dataloader_set_position(DataLoader* d, const DataLoaderState* s) {
    token_fetcher_wait_(d->fetcher); // whatever was fetched is not the next batch
    d->micro_step = 0;
    dataloader_close_shard_(d);
    d->current_shard_idx = s->shard, d->current_sample_idx = s->sample;
    d->shard_num_samples = s->num_samples;
    if (!s->shuffled) { return; }
    memcpy(d->shard_indices, s->shard_order, s->num_shards * sizeof(int));
    dataloader_allocate_order_(d);
    memcpy(d->intra_shard_indices, s->sample_order, s->num_samples * sizeof(int));
    d->shuffle_rng = s->rng;
}

#endif
