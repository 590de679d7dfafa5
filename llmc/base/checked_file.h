/*
Files whose every bit is under a checksum, written atomically and read as streams. A file is the project's header of 256
int32 and a body. Its checksums (CRC32C) are in the header's last words, which llm.c leaves 0 and does not read:

    [124] mark 0x43524343    [125] log2 of a block's bytes    [126] number of blocks    [127] of the header, this word 0
    [128..255] of each block of the body; 0 if there are fewer than 128

The block size is the smallest power of two, at least 64 KiB, for which 128 blocks cover the body. If words 124 to 255 are all
0, the file has no checksums, like llm.c's. Anything else is refused, so that no single bit flip disables checking.

Every function returns a Status; messages name the file and the range of bytes that is wrong. checked_create and checked_open
begin with status_clear(). No globals: each thread may have its own files.
*/
#ifndef LLMC_BASE_CHECKED_FILE_H
#define LLMC_BASE_CHECKED_FILE_H

#include "atomic_file.h"
#include "checksum.h"
#include "regular_file.h"
#include "utils.h"

enum { CHECKED_MARK = 0x43524343, CHECKED_MAX_BLOCKS = 128, CHECKED_SMALLEST_BLOCK_LOG2 = 16 };
enum { CHECKED_AT = 124, CHECKED_BLOCK_LOG2 = 125, CHECKED_BLOCKS = 126, CHECKED_HEADER = 127, CHECKED_SUMS = 128 };
static const size_t CHECKED_PIECE = 128 << 10; // bytes that are summed and copied while they are in the cache

// log2 of the bytes of a block
static inline int checked_block_log2(size_t body_bytes) {
    int log2 = CHECKED_SMALLEST_BLOCK_LOG2;
    while (log2 < 56 && body_bytes > (size_t)CHECKED_MAX_BLOCKS << log2) { log2++; }
    return log2;
}

static inline int checked_num_blocks(size_t body_bytes) {
    int log2 = checked_block_log2(body_bytes);
    return (int)((body_bytes >> log2) + ((body_bytes & (((size_t)1 << log2) - 1)) != 0));
}

// The checksum of a header, word 127 taken as 0
static inline uint32_t checked_header_sum(const int32_t* header) {
    int32_t copy[HEADER_INTS];
    memcpy(copy, header, sizeof(copy));
    copy[CHECKED_HEADER] = 0;
    return crc32c(0, copy, sizeof(copy));
}

// A body under way: the checksum of the block that it is in
typedef struct {
    size_t body_bytes, at; // of the body: its size, and how many have passed
    int block_log2;
    uint32_t sum;
} CheckedBody;

static inline CheckedBody checked_body_(size_t body_bytes) {
    CheckedBody b = {body_bytes, 0, checked_block_log2(body_bytes), 0};
    return b;
}

// How many of the next n bytes lie in this block and make one piece
static inline size_t checked_piece_(const CheckedBody* b, size_t n) {
    size_t block = (size_t)1 << b->block_log2, left = block - (b->at & (block - 1));
    size_t piece = left < CHECKED_PIECE ? left : CHECKED_PIECE;
    return n < piece ? n : piece;
}

// Takes a piece. Returns the number of the block that it ends, whose checksum is *sum, or -1.
static inline int checked_pass_(CheckedBody* b, const void* data, size_t n, uint32_t* sum) {
    size_t block = (size_t)1 << b->block_log2;
    b->sum = crc32c(b->sum, data, n);
    b->at += n;
    if (n == 0 || ((b->at & (block - 1)) != 0 && b->at != b->body_bytes)) { return -1; }
    *sum = b->sum;
    b->sum = 0;
    return (int)((b->at - 1) >> b->block_log2);
}

// ----------------------------------------------------------------------------
// Writing. A failure leaves nothing behind, as with atomic_file.h; checked_abandon() is for callers that stop halfway.

typedef struct {
    AtomicFile file;
    int32_t header[HEADER_INTS]; // words 0 to 123 may still be changed before checked_commit
    CheckedBody body;
} CheckedWriter;

// Begins a file with this header, whose words from 124 on are ours, and a body of so many bytes.
static inline Status checked_create(CheckedWriter* w, const char* path, const int32_t* header, size_t body_bytes) {
    static const int32_t nothing[HEADER_INTS] = {0}; // until the header is complete
    memcpy(w->header, header, sizeof(w->header));
    memset(w->header + CHECKED_AT, 0, sizeof(int32_t) * (HEADER_INTS - CHECKED_AT));
    w->body = checked_body_(body_bytes);
    TRY(atomic_open(&w->file, path));
    return atomic_write(&w->file, nothing, sizeof(nothing));
}

static inline void checked_abandon(CheckedWriter* w) { atomic_abandon(&w->file); }

// The next n bytes of the body
static inline Status checked_write(CheckedWriter* w, const void* src, size_t n) {
    const char* p = (const char*)src;
    if (n > w->body.body_bytes - w->body.at) {
        checked_abandon(w);
        return status_fail("%s: more bytes to write than the %zu that were said", w->file.path, w->body.body_bytes);
    }
    while (n > 0) {
        size_t piece = checked_piece_(&w->body, n);
        uint32_t sum = 0;
        TRY(atomic_write(&w->file, p, piece));
        int block = checked_pass_(&w->body, p, piece, &sum);
        if (block >= 0) { memcpy(&w->header[CHECKED_SUMS + block], &sum, sizeof(sum)); }
        p += piece, n -= piece;
    }
    return STATUS_OK;
}

// Identifies the body by its checksums and its size: 64 bits, never 0. Of a writer when the whole body is written.
static inline uint64_t checked_contents(const int32_t* header, size_t body_bytes) {
    uint64_t hash = 0xcbf29ce484222325u ^ (uint64_t)body_bytes;
    for (int i = CHECKED_SUMS; i < HEADER_INTS; i++) { hash = digest_word_(hash, (uint32_t)header[i]); }
    return hash ? hash : 1;
}

// Completes the header and brings the file onto the disk and under its name.
static inline Status checked_commit(CheckedWriter* w) {
    if (w->file.file != NULL && w->body.at != w->body.body_bytes) {
        checked_abandon(w);
        return status_fail("%s: %zu bytes were written of the %zu that were said", w->file.path, w->body.at,
                           w->body.body_bytes);
    }
    w->header[CHECKED_AT] = CHECKED_MARK;
    w->header[CHECKED_BLOCK_LOG2] = w->body.block_log2;
    w->header[CHECKED_BLOCKS] = checked_num_blocks(w->body.body_bytes);
    uint32_t sum = checked_header_sum(w->header);
    memcpy(&w->header[CHECKED_HEADER], &sum, sizeof(sum));
    TRY(atomic_overwrite(&w->file, 0, w->header, sizeof(w->header)));
    return atomic_commit(&w->file);
}

// ----------------------------------------------------------------------------
// Reading

typedef struct {
    FILE* file;
    char path[1024];
    int32_t header[HEADER_INTS];
    size_t body_bytes; // of the file, after its header
    int has_checksums; // 0: nothing is verified
    CheckedBody body;
} CheckedReader;

static inline void checked_close(CheckedReader* r) {
    if (r->file != NULL) { fclose(r->file); }
    r->file = NULL;
}

// Takes the next n bytes of the file.
static inline Status checked_take_(CheckedReader* r, void* dst, size_t n) {
    if (fread(dst, 1, n, r->file) == n) { return STATUS_OK; }
    return status_fail("cannot read %s: %s", r->path,
                       ferror(r->file) ? strerror(errno) : "it has become shorter since it was opened");
}

// Fails if the words from 124 on are neither all 0 nor right for this header and a body of so many bytes.
static inline Status checked_header(const int32_t* header, size_t body_bytes, const char* path, int* has_checksums) {
    int any = 0;
    for (int i = CHECKED_AT; i < HEADER_INTS; i++) { any = any || header[i] != 0; }
    *has_checksums = any;
    if (!any) { return STATUS_OK; }
    if (header[CHECKED_AT] != CHECKED_MARK || checked_header_sum(header) != (uint32_t)header[CHECKED_HEADER]) {
        return status_fail("%s: its header (bytes 0 to %d) does not have its checksum; the file is corrupt", path,
                           HEADER_BYTES - 1);
    }
    if (header[CHECKED_BLOCK_LOG2] != checked_block_log2(body_bytes) ||
        header[CHECKED_BLOCKS] != checked_num_blocks(body_bytes)) {
        return status_fail("%s has %zu bytes, for which its header has not as many checksums; it is truncated or has "
                           "trailing bytes",
                           path, size_add(body_bytes, HEADER_BYTES));
    }
    return STATUS_OK;
}

static inline Status checked_open_(CheckedReader* r, int32_t magic, int32_t other, const char* what) {
    struct stat st;
    char or_other[32] = "";
    TRY(fopen_regular(&r->file, &st, r->path));
    TRY(refuse_foreign_file(fileno(r->file), r->path));
    if (st.st_size < HEADER_BYTES) {
        return status_fail("%s has %lld bytes, less than its header of %d; it is truncated, or no %s", r->path,
                           (long long)st.st_size, (int)HEADER_BYTES, what);
    }
    TRY(checked_take_(r, r->header, HEADER_BYTES));
    if (other != magic) { snprintf(or_other, sizeof(or_other), " or %d", (int)other); }
    if (r->header[0] != magic && r->header[0] != other) {
        return status_fail("%s is not a %s: magic number %d, expected %d%s", r->path, what, (int)r->header[0],
                           (int)magic, or_other);
    }
    r->body_bytes = (size_t)st.st_size - HEADER_BYTES;
    r->body = checked_body_(r->body_bytes);
    return checked_header(r->header, r->body_bytes, r->path, &r->has_checksums);
}

// Opens a file of either magic, reads its header and verifies that. `what` is the kind of file, for messages.
static inline Status checked_open_either(CheckedReader* r, const char* path, int32_t magic, int32_t other,
                                         const char* what) {
    status_clear();
    memset(r, 0, sizeof(*r));
    if (strlen(path) >= sizeof(r->path)) {
        return status_fail("path is longer than %zu bytes: %s", sizeof(r->path) - 1, path);
    }
    strcpy(r->path, path);
    if (checked_open_(r, magic, other, what) == STATUS_OK) { return STATUS_OK; }
    checked_close(r);
    return STATUS_ERROR;
}

static inline Status checked_open(CheckedReader* r, const char* path, int32_t magic, const char* what) {
    return checked_open_either(r, path, magic, magic, what);
}

// Says which block is wrong.
static inline Status checked_wrong_block(const char* path, size_t body_bytes, int block) {
    size_t from = (size_t)block << checked_block_log2(body_bytes);
    size_t to = (size_t)(block + 1) << checked_block_log2(body_bytes);
    if (to > body_bytes) { to = body_bytes; }
    return status_fail("%s: bytes %zu to %zu do not have their checksum; the file is corrupt", path,
                       HEADER_BYTES + from, HEADER_BYTES + to - 1);
}

// The next n bytes of the body, into dst. Each block is verified when its last byte is read.
static inline Status checked_read(CheckedReader* r, void* dst, size_t n) {
    char* p = (char*)dst;
    size_t left = r->body_bytes - r->body.at;
    if (r->file == NULL) { return status_fail("%s is not open", r->path); }
    if (n > left) {
        return status_fail("%s ends too early: %zu bytes wanted, %zu left; the file is truncated", r->path, n, left);
    }
    while (n > 0) {
        size_t piece = checked_piece_(&r->body, n);
        uint32_t sum = 0;
        TRY(checked_take_(r, p, piece));
        if (r->has_checksums) {
            int block = checked_pass_(&r->body, p, piece, &sum);
            if (block >= 0 && sum != (uint32_t)r->header[CHECKED_SUMS + block]) {
                return checked_wrong_block(r->path, r->body_bytes, block);
            }
        } else {
            r->body.at += piece;
        }
        p += piece, n -= piece;
    }
    return STATUS_OK;
}

// Reads n bytes for their checksums alone.
NOINLINE Status checked_skip(CheckedReader* r, size_t n) {
    char buffer[1 << 13];
    while (n > 0) {
        size_t piece = n < sizeof(buffer) ? n : sizeof(buffer);
        TRY(checked_read(r, buffer, piece));
        n -= piece;
    }
    return STATUS_OK;
}

// After the last byte that is wanted: fails if more follow. The last block has been verified then.
static inline Status checked_end(CheckedReader* r) {
    if (r->body.at == r->body_bytes) { return STATUS_OK; }
    return status_fail("%s has trailing bytes: %zu; it is corrupt", r->path, r->body_bytes - r->body.at);
}

// Reads what is left and verifies it.
static inline Status checked_verify(CheckedReader* r) { return checked_skip(r, r->body_bytes - r->body.at); }

// ----------------------------------------------------------------------------
// Files told from others by their contents: a file may be moved, or get another name

enum { IDENTITY_SAMPLES = 16, IDENTITY_SAMPLE_BYTES = 4096 };

// Adds a file to a digest: its size and its header, which holds the checksums of all the rest. Of a file without
// checksums, 16 samples of 4 KiB are added, from its first byte to its last.
NOINLINE Status identity_file(Digest* digest, const char* path) {
    int32_t header[HEADER_INTS] = {0};
    char sample[IDENTITY_SAMPLE_BYTES];
    struct stat st;
    int fd;
    TRY(open_regular(&fd, &st, path));
    int ok = pread(fd, header, sizeof(header), 0) >= 0;
    uint64_t size = (uint64_t)st.st_size;
    digest_update(digest, &size, sizeof(size));
    digest_update(digest, header, sizeof(header));
    int samples = header[CHECKED_AT] == CHECKED_MARK ? 0 : IDENTITY_SAMPLES;
    uint64_t last = size > sizeof(sample) ? size - sizeof(sample) : 0;
    for (int i = 0; i < samples && ok; i++) {
        memset(sample, 0, sizeof(sample));
        uint64_t at = last / (IDENTITY_SAMPLES - 1) * (uint64_t)i;
        ok = pread(fd, sample, sizeof(sample), (off_t)(i == IDENTITY_SAMPLES - 1 ? last : at)) >= 0;
        digest_update(digest, sample, sizeof(sample));
    }
    if (!ok) { status_fail("cannot read %s: %s", path, strerror(errno)); }
    close(fd);
    return ok ? STATUS_OK : STATUS_ERROR;
}

#endif
