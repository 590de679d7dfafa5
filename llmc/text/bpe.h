/*
Byte pair encoding: text to token ids (Sennrich et al. 2016, https://arxiv.org/abs/1508.07909; on bytes, Radford et al. 2019).
A token's rank is the place of its merge in the order in which they were learned; in GPT-2 it is the id. The tokens' bytes
and ranks are all that is needed: among the adjacent pairs whose bytes together are a token, the one with the lowest rank is
merged (the first of equal ones), until there is none.

The text is split into pieces. Short ones are cached with their ids, in a direct-mapped hash table; long ones
are merged by a priority queue in O(n log n) for n bytes. A Bpe encodes for one thread at a time.
*/
#ifndef LLMC_TEXT_BPE_H
#define LLMC_TEXT_BPE_H

#include <limits.h>

#include "unicode_classes.h"
#include "llmc/base/checksum.h"
#include "llmc/base/utf8.h"
#include "llmc/base/utils.h"

// ----------------------------------------------------------------------------
// Pieces: GPT-2's pattern, by which a text is split, as bytes of two pieces are never joined.
//
//     's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
//
// The first alternative that matches is taken: an English ending; a run of letters, of numbers or of other signs, each with the
// space before it; white space, which leaves its last character to the visible one that follows. A byte that is no part of a
// UTF-8 character is a sign, as U+FFFD is, with which others replace it.

// The class of the character that begins `left` bytes, and its bytes
static inline int piece_class_(const unsigned char* s, size_t left, int* length) {
    *length = 1;
    if (s[0] < 0x80) { return unicode_class(s[0]); }
    int32_t c = utf8_decode(s, left, length);
    return c < 0 ? UNICODE_OTHER : unicode_class((uint32_t)c);
}

// The end of the run of characters of a class from `at` on
static inline size_t piece_run_(const unsigned char* text, size_t at, size_t bytes, int kind) {
    int length;
    for (; at < bytes; at += (size_t)length) {
        if (piece_class_(text + at, bytes - at, &length) != kind) { break; }
    }
    return at;
}

// The bytes of the English ending that begins with the apostrophe at s[0]; 0: none does
static inline int piece_ending_(const unsigned char* s, size_t left) {
    if (left < 2) { return 0; }
    if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') { return 2; }
    if (left < 3) { return 0; }
    return (s[1] == 'r' && s[2] == 'e') || (s[1] == 'v' && s[2] == 'e') || (s[1] == 'l' && s[2] == 'l') ? 3 : 0;
}

// The end of the piece of text[0 .. bytes - 1] that begins at `at`, which is below `bytes`
static inline size_t gpt2_piece_end(const unsigned char* text, size_t at, size_t bytes) {
    int length;
    if (text[at] == '\'') {
        int ending = piece_ending_(text + at, bytes - at);
        if (ending > 0) { return at + (size_t)ending; }
    }
    size_t start = at + (text[at] == ' ' && at + 1 < bytes); // the space goes with what is visible
    int kind = piece_class_(text + start, bytes - start, &length);
    if (kind != UNICODE_SPACE) { return piece_run_(text, start + (size_t)length, bytes, kind); }
    size_t end = piece_run_(text, at, bytes, UNICODE_SPACE), last = end - 1;
    while ((text[last] & 0xc0) == 0x80) { last--; } // the first byte of the last character
    return end == bytes || last == at ? end : last;
}

// ----------------------------------------------------------------------------
// Tokens

typedef struct {
    int* ids;
    size_t count, capacity;
} TokenList;

static inline void token_list_free(TokenList* list) {
    free(list->ids);
    memset(list, 0, sizeof(*list));
}

// Makes room for so many more ids.
static inline void token_list_reserve(TokenList* list, size_t more) {
    if (list->capacity - list->count >= more) { return; }
    size_t capacity = size_add(list->count, more) + list->capacity / 2 + 1024;
    int* ids = (int*)realloc(list->ids, size_mul(capacity, sizeof(int)));
    if (ids == NULL) { fatal("out of memory: %zu tokens", capacity); }
    list->ids = ids, list->capacity = capacity;
}

static inline void token_list_add(TokenList* list, const int* ids, size_t count) {
    token_list_reserve(list, count);
    memcpy(list->ids + list->count, ids, count * sizeof(int));
    list->count += count;
}

// 1 if a list holds an id.
static inline int token_list_has(const TokenList* list, int id) {
    for (size_t i = 0; i < list->count; i++) {
        if (list->ids[i] == id) { return 1; }
    }
    return 0;
}

enum { BPE_NONE = -1, BPE_CACHE_LOG2 = 14, BPE_CACHED_BYTES = 15, BPE_CACHED_IDS = 3 };

// A token in the hash table
typedef struct {
    uint32_t hash; // of its bytes
    int32_t id;    // BPE_NONE: the slot is free
} BpeSlot;

// A piece in the cache
typedef struct {
    uint64_t key[2]; // its bytes, then zeros; the last byte is their number; 0: the slot is free
    int32_t ids[BPE_CACHED_IDS];
    int32_t count;
} BpeCached;

// A neighbour pair in the queue: the rank of the token that it would be in the upper half, where it begins in the lower
typedef uint64_t BpeMerge;

typedef struct {
    const unsigned char* bytes; // the tokens', which the caller keeps
    const size_t* offsets;
    const int* ranks; // of each token, -1 for those that no merge makes, which the caller keeps; NULL: ids
    size_t longest;   // bytes of the longest token
    BpeSlot* slots;   // (mask + 1) open addressing, half full at most
    uint32_t mask;
    BpeCached* cache; // (1 << BPE_CACHE_LOG2)
    // for the piece at hand, by the byte that a part begins with: the part after it and before it, and what it and the
    // part after it merge to, or BPE_NONE
    uint32_t *next, *previous;
    int32_t* merged;
    BpeMerge* queue; // (2 * room) a binary heap, the least first
    size_t room, queued;
} Bpe;

// The bytes as a number, of n <= 8 of them
static inline uint64_t bpe_load_(const unsigned char* s, size_t n) {
    uint64_t word = 0;
    memcpy(&word, s, n);
    return word;
}

static inline uint32_t bpe_hash_(const unsigned char* s, size_t n) {
    uint64_t hash = n;
    for (; n > 8; n -= 8, s += 8) { hash = digest_word_(hash, bpe_load_(s, 8)); }
    return (uint32_t)digest_word_(hash, bpe_load_(s, n));
}

// The slot of these bytes in the hash table: their own, or a free one for them
static inline BpeSlot* bpe_slot_(const Bpe* b, const unsigned char* s, size_t n) {
    uint32_t hash = bpe_hash_(s, n), i = hash & b->mask;
    for (;; i = (i + 1) & b->mask) {
        BpeSlot* slot = &b->slots[i];
        if (slot->id == BPE_NONE) { return slot; }
        const size_t* at = &b->offsets[slot->id];
        if (slot->hash == hash && at[1] - at[0] == n && memcmp(b->bytes + at[0], s, n) == 0) { return slot; }
    }
}

// The token that has these bytes, or BPE_NONE
static inline int32_t bpe_find(const Bpe* b, const unsigned char* s, size_t n) {
    return n > b->longest ? (int32_t)BPE_NONE : bpe_slot_(b, s, n)->id;
}

static inline void bpe_free(Bpe* b) {
    free(b->slots);
    free(b->cache);
    free(b->next);
    free(b->previous);
    free(b->merged);
    free(b->queue);
    memset(b, 0, sizeof(*b));
}

static inline int bpe_rank_(const Bpe* b, int id) { return b->ranks != NULL ? b->ranks[id] : id; }

// Builds the table of tokens 0 to vocab_size - 1, token i being bytes[offsets[i]] to bytes[offsets[i + 1] - 1]. In it are those
// that text is made of: no special ones, none without bytes, none that no merge makes.
static inline void bpe_index(Bpe* b, const unsigned char* bytes, const size_t* offsets, const int* ranks,
                             int vocab_size, const TokenList* special) {
    uint32_t slots = 512;
    while (slots < 2 * (uint32_t)vocab_size) { slots *= 2; }
    memset(b, 0, sizeof(*b));
    b->bytes = bytes, b->offsets = offsets, b->ranks = ranks, b->mask = slots - 1;
    b->slots = (BpeSlot*)malloc_check(slots * sizeof(BpeSlot));
    for (uint32_t i = 0; i < slots; i++) { b->slots[i].id = BPE_NONE; }
    for (int id = 0; id < vocab_size; id++) {
        size_t n = offsets[id + 1] - offsets[id];
        if (n == 0 || (n > 1 && bpe_rank_(b, id) < 0) || token_list_has(special, id)) { continue; }
        BpeSlot* slot = bpe_slot_(b, bytes + offsets[id], n);
        if (slot->id != BPE_NONE) { continue; } // of tokens with the same bytes the first
        slot->hash = bpe_hash_(bytes + offsets[id], n), slot->id = id;
        if (n > b->longest) { b->longest = n; }
    }
}

// Builds the tables as bpe_index does. Fails if a byte is no token: not every text could be encoded.
static inline Status bpe_prepare(Bpe* b, const unsigned char* bytes, const size_t* offsets, const int* ranks,
                                 int vocab_size, const TokenList* special) {
    unicode_classes_fill();
    bpe_index(b, bytes, offsets, ranks, vocab_size, special);
    for (int i = 0; i < 256; i++) {
        unsigned char byte = (unsigned char)i;
        if (bpe_find(b, &byte, 1) != BPE_NONE) { continue; }
        bpe_free(b);
        return status_fail("no token is the byte 0x%02x, so not every text can be encoded", (unsigned)i);
    }
    b->cache = (BpeCached*)calloc_check((size_t)1 << BPE_CACHE_LOG2, sizeof(BpeCached));
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// One piece

// Makes room for a piece of n bytes.
static inline void bpe_reserve_(Bpe* b, size_t n) {
    if (n <= b->room) { return; }
    size_t room = n + n / 2 + 64;
    free(b->next), free(b->previous), free(b->merged), free(b->queue);
    b->next = (uint32_t*)malloc_check(room * sizeof(uint32_t));
    b->previous = (uint32_t*)malloc_check(room * sizeof(uint32_t));
    b->merged = (int32_t*)malloc_check(room * sizeof(int32_t));
    b->queue = (BpeMerge*)malloc_check(2 * room * sizeof(BpeMerge));
    b->room = room;
}

static inline void bpe_push_(Bpe* b, BpeMerge merge) {
    size_t i = b->queued++;
    for (; i > 0 && b->queue[(i - 1) / 2] > merge; i = (i - 1) / 2) { b->queue[i] = b->queue[(i - 1) / 2]; }
    b->queue[i] = merge;
}

static inline BpeMerge bpe_pop_(Bpe* b) {
    BpeMerge least = b->queue[0], last = b->queue[--b->queued];
    size_t i = 0;
    for (size_t child = 1; child < b->queued; child = 2 * i + 1) {
        child += child + 1 < b->queued && b->queue[child + 1] < b->queue[child];
        if (b->queue[child] >= last) { break; }
        b->queue[i] = b->queue[child];
        i = child;
    }
    b->queue[i] = last;
    return least;
}

// Looks up what the part at `at` and the one after it merge to, by a rank below `limit`.
static inline void bpe_look_(Bpe* b, const unsigned char* s, uint32_t at, uint32_t n, int limit) {
    uint32_t middle = b->next[at];
    int32_t id = middle < n ? bpe_find(b, s + at, b->next[middle] - at) : (int32_t)BPE_NONE;
    b->merged[at] = id != BPE_NONE && bpe_rank_(b, id) < limit ? id : (int32_t)BPE_NONE;
    if (b->merged[at] != BPE_NONE) { bpe_push_(b, (uint64_t)(uint32_t)bpe_rank_(b, id) << 32 | at); }
}

// Merges the parts of a piece of n bytes by the ranks below `limit`: b->next leads from one that is left to the next.
static inline void bpe_merge_(Bpe* b, const unsigned char* s, uint32_t n, int limit) {
    bpe_reserve_(b, n);
    b->queued = 0;
    for (uint32_t i = 0; i < n; i++) { b->next[i] = i + 1, b->previous[i] = i - 1; }
    for (uint32_t i = 0; i < n; i++) { bpe_look_(b, s, i, n, limit); }
    while (b->queued > 0) {
        BpeMerge merge = bpe_pop_(b);
        uint32_t at = (uint32_t)merge, middle = b->next[at];
        int32_t id = b->merged[at]; // its parts may have been merged with others since
        if (id == BPE_NONE || bpe_rank_(b, id) != (int)(merge >> 32)) { continue; }
        b->merged[middle] = BPE_NONE;
        b->next[at] = b->next[middle];
        if (b->next[at] < n) { b->previous[b->next[at]] = at; }
        bpe_look_(b, s, at, n, limit);
        if (at > 0) { bpe_look_(b, s, b->previous[at], n, limit); }
    }
}

// The parts of a token's bytes that the merges of lower ranks leave: their ends in end[]. Returns how many.
static inline int bpe_parts(Bpe* b, int id, int* end) {
    uint32_t n = (uint32_t)(b->offsets[id + 1] - b->offsets[id]);
    int parts = 0;
    bpe_merge_(b, b->bytes + b->offsets[id], n, bpe_rank_(b, id));
    for (uint32_t at = 0; at < n; at = b->next[at]) { end[parts++] = (int)b->next[at]; }
    return parts;
}

// Appends the ids of a piece, of which there is room for n.
static inline void bpe_piece_(Bpe* b, const unsigned char* s, size_t n, TokenList* out) {
    int32_t id = bpe_find(b, s, n);
    if (id != BPE_NONE) {
        out->ids[out->count++] = id;
        return;
    }
    bpe_merge_(b, s, (uint32_t)n, INT_MAX);
    for (size_t at = 0; at < n; at = b->next[at]) { out->ids[out->count++] = bpe_find(b, s + at, b->next[at] - at); }
}

// The same for a short piece, by the cache; room for BPE_CACHED_IDS
static inline void bpe_short_piece_(Bpe* b, const unsigned char* s, size_t n, TokenList* out) {
    unsigned char bytes[16] = {0};
    uint64_t low, high;
    memcpy(bytes, s, n);
    bytes[15] = (unsigned char)n;
    memcpy(&low, bytes, 8), memcpy(&high, bytes + 8, 8);
    uint64_t hash = (low ^ (high * 0xff51afd7ed558ccdu)) * 0x9e3779b97f4a7c15u;
    BpeCached* slot = &b->cache[hash >> (64 - BPE_CACHE_LOG2)];
    if (slot->key[0] == low && slot->key[1] == high) {
        memcpy(out->ids + out->count, slot->ids, sizeof(slot->ids));
        out->count += (size_t)slot->count;
        return;
    }
    size_t before = out->count;
    bpe_piece_(b, s, n, out);
    if (out->count - before > BPE_CACHED_IDS) { return; }
    slot->key[0] = low, slot->key[1] = high, slot->count = (int32_t)(out->count - before);
    memcpy(slot->ids, out->ids + before, (out->count - before) * sizeof(int));
}

// Appends the ids of a text.
static inline Status bpe_encode(Bpe* b, const void* text, size_t bytes, TokenList* out) {
    const unsigned char* s = (const unsigned char*)text;
    for (size_t at = 0, end; at < bytes; at = end) {
        end = gpt2_piece_end(s, at, bytes);
        size_t n = end - at;
        if (n > UINT32_MAX / 2) { return status_fail("%zu bytes without a point to cut at are too many", n); }
        token_list_reserve(out, n + BPE_CACHED_IDS);
        (n <= BPE_CACHED_BYTES ? bpe_short_piece_ : bpe_piece_)(b, s + at, n, out);
    }
    return STATUS_OK;
}

#endif
