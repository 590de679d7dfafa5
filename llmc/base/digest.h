/*
A 64-bit digest of the bytes of a file: it identifies a file's contents and detects damage (any change within one word of 8
bytes, and all other changes but one in 2^64). It is not cryptographic. It is part of the formats of model and state files:
model_file.h, checkpoint.h.
*/
#ifndef LLMC_BASE_DIGEST_H
#define LLMC_BASE_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct {
    uint64_t hash, bytes;
} Digest;

static inline Digest digest_begin(void) {
    Digest d = {0xcbf29ce484222325u, 0};
    return d;
}

// Both steps can be undone, so that no two words lead from one hash to the same.
static inline uint64_t digest_word_(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
    return hash ^ hash >> 32;
}

// Takes the next bytes of the stream. Every call but the last takes a multiple of 8; the last word is filled with zeros.
static inline void digest_update(Digest* d, const void* data, size_t bytes) {
    const char* p = (const char*)data;
    uint64_t word, hash = d->hash;
    size_t whole = bytes - bytes % 8;
    for (size_t i = 0; i < whole; i += 8) {
        memcpy(&word, p + i, 8);
        hash = digest_word_(hash, word);
    }
    if (whole < bytes) {
        word = 0;
        memcpy(&word, p + whole, bytes - whole);
        hash = digest_word_(hash, word);
    }
    d->hash = hash;
    d->bytes += bytes;
}

// The digest of all bytes and their number; never 0, which stands for a file without a digest.
static inline uint64_t digest_end(Digest d) {
    digest_update(&d, &d.bytes, sizeof(d.bytes));
    return d.hash ? d.hash : 1;
}

#endif
