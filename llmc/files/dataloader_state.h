/*
The position of a loader, as a state file (checkpoint.h) holds it: the position in its header and, for a loader that shuffles,
the tail  num_shards (size_t), shard_order, num_samples (size_t), sample_order, rng, names.  It is a copy: a thread may write it
while the loader is used. Values from a file are checked before a loader uses them. Where several processes share the steps
(dataloader_share), a state is taken at the end of a step: it is the same in all of them, and the same as with one process.
*/
#ifndef LLMC_FILES_DATALOADER_STATE_H
#define LLMC_FILES_DATALOADER_STATE_H

#include "dataloader.h"
#include "llmc/base/checked_file.h"
#include "llmc/base/status.h"

typedef struct {
    int shuffled;         // 0: there is only the position
    size_t shard, sample; // the next sample, in the orders below
    size_t num_shards;    // of all files
    size_t num_samples;   // of this shard
    int* shard_order;     // (num_shards), NULL if not shuffled
    int* sample_order;    // (num_samples), NULL if not shuffled
    mt19937_state rng;
    uint64_t*
        names; // (num_shards) digests of the files' names; NULL: the state of an older version, which does not say
} DataLoaderState;

static inline void dataloader_state_free(DataLoaderState* s) {
    free(s->shard_order);
    free(s->sample_order);
    free(s->names);
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
    s->names = (uint64_t*)malloc(s->num_shards * sizeof(uint64_t));
    if (s->names != NULL) { memcpy(s->names, d->names, s->num_shards * sizeof(uint64_t)); }
    if (s->shard_order != NULL && s->sample_order != NULL && s->names != NULL) { return STATUS_OK; }
    dataloader_state_free(s);
    return status_fail("out of memory: no copy of the order of the data");
}

// The bytes of the tail
static inline size_t dataloader_state_bytes(const DataLoaderState* s) {
    if (!s->shuffled) { return 0; }
    size_t names = s->names != NULL ? s->num_shards * sizeof(uint64_t) : 0;
    return 2 * sizeof(size_t) + (s->num_shards + s->num_samples) * sizeof(int) + sizeof(s->rng) + names;
}

static inline Status dataloader_state_write(const DataLoaderState* s, CheckedWriter* file) {
    if (!s->shuffled) { return STATUS_OK; }
    TRY(checked_write(file, &s->num_shards, sizeof(size_t)));
    TRY(checked_write(file, s->shard_order, s->num_shards * sizeof(int)));
    TRY(checked_write(file, &s->num_samples, sizeof(size_t)));
    TRY(checked_write(file, s->sample_order, s->num_samples * sizeof(int)));
    TRY(checked_write(file, &s->rng, sizeof(s->rng)));
    return s->names == NULL ? STATUS_OK : checked_write(file, s->names, s->num_shards * sizeof(uint64_t));
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
    if (!has_names) { return STATUS_OK; }
    s->names = (uint64_t*)malloc(s->num_shards * sizeof(uint64_t) + 1);
    if (s->names == NULL) { return status_fail("out of memory: the names of %zu token files", s->num_shards); }
    return checked_read(file, s->names, s->num_shards * sizeof(uint64_t));
}

// ----------------------------------------------------------------------------
// A state of other files than those of the loader

// The files of the loader that those of a state are now, -1: gone; the caller frees them. Folders may have files of one name,
// which come in the same order. A state that does not say its names is of the first files.
static inline int* dataloader_find_files_(const DataLoader* d, const DataLoaderState* s) {
    int* now = dataloader_state_copy_(NULL, s->num_shards);
    char* found = (char*)calloc(d->num_shards, 1);
    for (size_t i = 0; now != NULL && found != NULL && i < s->num_shards; i++) {
        size_t j = s->names != NULL ? 0 : i;
        while (s->names != NULL && j < d->num_shards && (found[j] || d->names[j] != s->names[i])) { j++; }
        now[i] = j < d->num_shards ? (int)j : -1;
        if (j < d->num_shards) { found[j] = 1; }
    }
    if (found == NULL) {
        free(now);
        now = NULL;
    }
    free(found);
    return now;
}

// Replaces an order of n entries, which are now now[i] (-1: gone), by one of m: the entries that are left, in their order, then
// those that are new. *at, how many were taken, goes with them.
static inline Status dataloader_fit_order_(int** order, size_t n, size_t* at, const int* now, size_t m) {
    int* fitted = dataloader_state_copy_(NULL, m);
    char* taken = (char*)calloc(m ? m : 1, 1);
    size_t count = 0, before = 0;
    for (size_t i = 0; fitted != NULL && taken != NULL && i < n; i++) {
        int entry = now[(*order)[i]];
        if (entry < 0) { continue; }
        taken[entry] = 1;
        fitted[count++] = entry;
        before += i < *at;
    }
    for (size_t e = 0; fitted != NULL && taken != NULL && e < m; e++) {
        if (!taken[e]) { fitted[count++] = (int)e; }
    }
    int ok = fitted != NULL && taken != NULL;
    free(taken);
    if (!ok) {
        free(fitted);
        return status_fail("out of memory: an order of %zu entries of the data", m);
    }
    free(*order);
    *order = fitted, *at = before;
    return STATUS_OK;
}

// Fits the samples of the file that a state is in. `begin`: the one before is gone; this is the next one, which may be the
// first of an epoch.
static inline Status dataloader_fit_samples_(const DataLoader* d, DataLoaderState* s, int begin, const char** path) {
    TokenFile file;
    if (s->shard == d->num_shards) {
        s->shard = 0;
        random_permutation(s->shard_order, (int)d->num_shards, &s->rng);
    }
    *path = d->paths.gl_pathv[s->shard_order[s->shard]];
    TRY(token_file_open(&file, *path));
    fclose(file.file);
    size_t old = s->num_samples, count = dataloader_samples_(d, file), most = old > count ? old : count;
    int* same = dataloader_state_copy_(NULL, most);
    if (same == NULL) { return status_fail("out of memory: an order of %zu entries of the data", most); }
    init_identity_permutation(same, (int)most);
    for (size_t i = count; i < most; i++) { same[i] = -1; }
    Status status = dataloader_fit_order_(&s->sample_order, begin ? 0 : old, &s->sample, same, count);
    free(same);
    s->num_samples = count;
    if (begin && status == STATUS_OK) { random_permutation(s->sample_order, (int)count, &s->rng); }
    return status;
}

// Fits the state of other files to those of a loader, and prints where the run continues: in the file that it was in, or the
// next one of the epoch that is still there, after the samples that it has had of it. What is new comes at the end of a file or
// an epoch.
static inline Status dataloader_fit_state(FILE* out, const DataLoader* d, DataLoaderState* s, const char* from) {
    const char* path;
    size_t gone = 0;
    if (!s->shuffled) { return STATUS_OK; }
    if (s->shard >= s->num_shards || s->sample > s->num_samples) {
        return status_fail("%s: its position in the data is outside of them; it is corrupt", from);
    }
    int* now = dataloader_find_files_(d, s);
    if (now == NULL) { return status_fail("out of memory: a list of %zu token files", s->num_shards); }
    for (size_t i = 0; i < s->num_shards; i++) { gone += now[i] < 0; }
    int begin = now[s->shard_order[s->shard]] < 0;
    size_t added = d->num_shards - (s->num_shards - gone);
    Status status = dataloader_fit_order_(&s->shard_order, s->num_shards, &s->shard, now, d->num_shards);
    free(now);
    TRY(status);
    free(s->names);
    s->names = NULL; // a loader has its own
    s->num_shards = d->num_shards;
    TRY(dataloader_fit_samples_(d, s, begin, &path));
    fprintf(out,
            "note: the data are others (%zu files added, %zu gone): the run continues in %s, %s sample %zu of %zu\n",
            added, gone, path, begin ? "which it begins, at" : "at", s->sample, s->num_samples);
    return STATUS_OK;
}

static inline Status dataloader_state_count_(size_t saved, size_t now, const char* what, const char* path) {
    if (saved == now) { return STATUS_OK; }
    return status_fail("%s was saved with %zu %s, now there are %zu: the data or the batch is another", path, saved,
                       what, now);
}

// Puts a loader back to where it stood when dataloader_get_state copied it, without its files: it may be one of them that
// cannot be read. The next dataloader_next opens the shard; that it stands there can be saved without.
static inline void dataloader_set_position(DataLoader* d, const DataLoaderState* s) {
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

// Puts a loader that was opened with the same files and settings back to where it stood: the next batch is the one that would
// have followed. `path` is the state file, for messages.
static inline Status dataloader_set_state(DataLoader* d, const DataLoaderState* s, const char* path) {
    if (s->shuffled != d->should_shuffle) {
        return status_fail("%s was written with -a %d; resume with the same", path, !s->shuffled);
    }
    if (s->shuffled) { TRY(dataloader_state_count_(s->num_shards, d->num_shards, "token files", path)); }
    if (s->shard >= d->num_shards) {
        return status_fail("%s was saved in token file %zu, counted from 0; now there are %zu", path, s->shard,
                           d->num_shards);
    }
    dataloader_set_position(d, s);
    TRY(dataloader_open_shard_(d));
    if (s->sample > d->shard_num_samples) {
        return status_fail("%s was saved at sample %zu of %s, which now has %zu: the data or the batch is another",
                           path, s->sample, d->shard.path, d->shard_num_samples);
    }
    if (!s->shuffled) { return STATUS_OK; }
    return dataloader_state_count_(s->num_samples, d->shard_num_samples, "samples in its token file", path);
}

#endif
