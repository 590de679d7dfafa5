/*
CRC32C (Castagnoli: iSCSI's, RFC 3720), the checksum of our files: it detects every change of up to 32 bits in a row, and all
other changes but one in 2^32. Computed by the processor's instruction where there is one (SSE4.2, ARMv8's CRC), detected at run
time, so that a program built for an older processor uses it, too; otherwise byte by byte, by a table. Both give the same
values. Speeds: dev/bench/checksum_speed.csv.
*/
#ifndef LLMC_BASE_CHECKSUM_H
#define LLMC_BASE_CHECKSUM_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

typedef uint32_t (*Crc32c)(uint32_t crc, const unsigned char* p, size_t bytes); // without the inversions at both ends

// ----------------------------------------------------------------------------
// Portable

static uint32_t crc32c_table_[256]; // what each byte contributes

static inline void crc32c_make_table_(void) {
    for (uint32_t b = 0; b < 256; b++) {
        uint32_t crc = b;
        for (int bit = 0; bit < 8; bit++) { crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0); } // reflected
        crc32c_table_[b] = crc;
    }
}

static inline uint32_t crc32c_portable_(uint32_t crc, const unsigned char* p, size_t bytes) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, crc32c_make_table_);
    for (; bytes > 0; p++, bytes--) { crc = crc >> 8 ^ crc32c_table_[(crc ^ *p) & 255]; }
    return crc;
}

// ----------------------------------------------------------------------------
// By the processor's instruction. As assembly: intrinsics would ask for flags of the compiler.

#if defined(__x86_64__)
#define CRC32C_INSTRUCTIONS
static inline int crc32c_has_instruction_(void) { return __builtin_cpu_supports("sse4.2") != 0; }
static inline uint64_t crc32c_word_(uint64_t crc, uint64_t word) {
    __asm__("crc32q %1, %0" : "+r"(crc) : "r"(word));
    return crc;
}
static inline uint32_t crc32c_byte_(uint32_t crc, unsigned char byte) {
    __asm__("crc32b %1, %0" : "+r"(crc) : "q"(byte));
    return crc;
}
#elif defined(__aarch64__) && (defined(__linux__) || defined(__ARM_FEATURE_CRC32)) && !defined(__AARCH64EB__)
#define CRC32C_INSTRUCTIONS
static inline int crc32c_has_instruction_(void) {
#if defined(__ARM_FEATURE_CRC32)
    return 1;
#else
    return (getauxval(AT_HWCAP) & 1 << 7) != 0; // HWCAP_CRC32
#endif
}
static inline uint64_t crc32c_word_(uint64_t crc, uint64_t word) {
    __asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(crc) : "r"(word));
    return crc;
}
static inline uint32_t crc32c_byte_(uint32_t crc, unsigned char byte) {
    __asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(crc) : "r"((uint32_t)byte));
    return crc;
}
#endif

#if defined(CRC32C_INSTRUCTIONS)
static inline uint32_t crc32c_instructions_(uint32_t crc, const unsigned char* p, size_t bytes) {
    uint64_t crc64 = crc, word;
    for (; bytes >= 8; p += 8, bytes -= 8) {
        memcpy(&word, p, 8);
        crc64 = crc32c_word_(crc64, word);
    }
    crc = (uint32_t)crc64;
    for (; bytes > 0; p++, bytes--) { crc = crc32c_byte_(crc, *p); }
    return crc;
}
#endif

// ----------------------------------------------------------------------------

// Goes on with the checksum of what came before, 0 at the beginning: crc32c(crc32c(0, a), b) is that of a followed by b.
static inline uint32_t crc32c(uint32_t crc, const void* data, size_t bytes) {
    Crc32c update = crc32c_portable_;
#if defined(CRC32C_INSTRUCTIONS)
    if (crc32c_has_instruction_()) { update = crc32c_instructions_; }
#endif
    return ~update(~crc, (const unsigned char*)data, bytes);
}

#endif
