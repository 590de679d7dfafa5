/*
CRC32C (Castagnoli: iSCSI's, RFC 3720), the checksum of our files: it detects every change of up to 32 bits in a row, and all
other changes but one in 2^32. Computed by the processor's instruction where there is one (SSE4.2, ARMv8's CRC), detected at run
time, so that a program built for an older processor uses it, too; otherwise byte by byte, by a table. Both give the same
values. Speeds: dev/bench/checksum_speed.csv.

And a digest of 64 bits, which identifies the contents of files and of settings.
*/
#ifndef LLMC_BASE_CHECKSUM_H
#define LLMC_BASE_CHECKSUM_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/auxv.h>

// ----------------------------------------------------------------------------
// By a table

static uint32_t crc32c_table_[256]; // what each byte contributes

static inline void crc32c_make_table_(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) { crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0); } // reflected
        crc32c_table_[b] = crc;
    }
}

// Without the inversions at both ends
static inline uint32_t crc32c_portable_(uint32_t crc, const unsigned char* p, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, crc32c_make_table_);
    for (; bytes > 0; p++, bytes--) { crc = crc >> 8 ^ crc32c_table_[(crc ^ *p) & 255]; }
    return crc;
}

// ----------------------------------------------------------------------------
// By the processor's instruction. As assembly: intrinsics would ask for flags of the compiler.

#if defined(__x86_64__)
static inline int crc32c_has_instruction_(void) { return __builtin_cpu_supports("sse4.2") != 0; }
static inline uint64_t crc32c_word_(uint64_t crc, uint64_t word) {
    __asm__("crc32q %1, %0" : "+r"(crc) : "r"(word));
    return crc;
}
#elif defined(__aarch64__)
static inline int crc32c_has_instruction_(void) { return (getauxval(AT_HWCAP) & 1 << 7) != 0; } // HWCAP_CRC32
static inline uint64_t crc32c_word_(uint64_t crc, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}
#else
static inline int crc32c_has_instruction_(void) { return 0; }
static inline uint64_t crc32c_word_(uint64_t crc, uint64_t word) { return crc ^ word; } // not called
#endif

// ----------------------------------------------------------------------------

// Goes on with the checksum of what came before, 0 at the beginning: crc32c(crc32c(0, a), b) is that of a followed by b.
static inline uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
    const unsigned char* p = (const unsigned char*)data;
    size_t words = crc32c_has_instruction_() ? bytes / 8 : 0;
    uint64_t crc64 = ~crc, word;
    for (size_t i = 0; i < words; i++, p += 8) {
        memcpy(&word, p, 8);
        crc64 = crc32c_word_(crc64, word);
    }
    return ~crc32c_portable_((uint32_t)crc64, p, bytes - 8 * words);
}

// ----------------------------------------------------------------------------
// The digest detects any change within one word of 8 bytes, and all other changes but one in 2^64. It is not cryptographic. It
// identifies programs, flags and weights: launch.h, identity.h.

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

// The digest of all bytes and their number; never 0, which stands for no digest.
static inline uint64_t digest_end(Digest d) {
    digest_update(&d, &d.bytes, sizeof(d.bytes));
    return d.hash ? d.hash : 1;
}

#endif
