// llmc/base/checksum.h: CRC32C as RFC 3720 publishes it, by every implementation that this machine has; and digests: the same
// bytes give the same one, in whatever pieces they come, other bytes give another.
#include "llmc/base/checksum.h"

#include "llmc/base/rand.h"
#include "dev/test/fixtures/unit.h"

static uint32_t by_table(uint32_t crc, const void* data, size_t bytes) {
    return ~crc32c_portable_(~crc, (const unsigned char*)data, bytes);
}
static uint32_t (*const implementations[])(uint32_t crc, const void* data, size_t bytes) = {by_table, crc32c};
static int num_implementations; // 2 where the processor has the instruction

// What the definition says: polynomial division, bit by bit
static uint32_t by_bits(const unsigned char* p, size_t bytes) {
    uint32_t crc = 0xffffffffu;
    for (size_t i = 0; i < bytes; i++) {
        crc ^= p[i];
        for (int bit = 0; bit < 8; bit++) { crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0); }
    }
    return ~crc;
}

// RFC 3720, appendix B.4, and the check value of the catalogue of CRCs ("123456789")
static void published_values(void) {
    unsigned char zeros[32] = {0}, ones[32], up[32], down[32];
    static const unsigned char iscsi[48] = {0x01, 0xc0, 0, 0, 0, 0, 0, 0, 0,    0, 0, 0,    0, 0, 0, 0,
                                            0x14, 0,    0, 0, 0, 0, 4, 0, 0,    0, 0, 0x14, 0, 0, 0, 0x18,
                                            0x28, 0,    0, 0, 0, 0, 0, 0, 0x02, 0, 0, 0,    0, 0, 0, 0};
    memset(ones, 0xff, sizeof(ones));
    for (int i = 0; i < 32; i++) { up[i] = (unsigned char)i, down[i] = (unsigned char)(31 - i); }
    CHECK(crc32c(0, zeros, 32) == 0x8a9136aau);
    CHECK(crc32c(0, ones, 32) == 0x62a8ab43u);
    CHECK(crc32c(0, up, 32) == 0x46dd794eu);
    CHECK(crc32c(0, down, 32) == 0x113fdb5cu);
    CHECK(crc32c(0, iscsi, 48) == 0xd9963a56u);
    CHECK(crc32c(0, "123456789", 9) == 0xe3069283u);
    CHECK(crc32c(0, "", 0) == 0);
}

static void implementations_agree_at_every_length_and_alignment(void) {
    unsigned char data[320];
    uint32_t x = 12345;
    for (size_t i = 0; i < sizeof(data); i++) { data[i] = (unsigned char)((x = x * 1664525u + 1013904223u) >> 24); }
    for (int k = 0; k < num_implementations; k++) {
        int right = 0, all = 0;
        for (size_t from = 0; from < 17; from++) {
            for (size_t n = 0; n <= 300; n++, all++) {
                right += implementations[k](0, data + from, n) == by_bits(data + from, n);
            }
        }
        CHECK(right == all);
    }
}

static void a_stream_may_be_split_anywhere(void) {
    unsigned char data[97];
    for (size_t i = 0; i < sizeof(data); i++) { data[i] = (unsigned char)(i * 7 + 1); }
    uint32_t whole = crc32c(0, data, sizeof(data));
    int right = 0;
    for (size_t at = 0; at <= sizeof(data); at++) {
        right += crc32c(crc32c(0, data, at), data + at, sizeof(data) - at) == whole;
    }
    CHECK(right == 98);
}

static void every_flipped_bit_is_noticed(void) {
    unsigned char data[64] = {1, 2, 3};
    uint32_t whole = crc32c(0, data, sizeof(data));
    int noticed = 0;
    for (int bit = 0; bit < 512; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        noticed += crc32c(0, data, sizeof(data)) != whole;
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    CHECK(noticed == 512);
    CHECK(crc32c(0, data, 63) != whole && crc32c(0, data, 0) != whole); // zeros at the end count too
}

// ----------------------------------------------------------------------------
// The digest

static uint64_t digest_of(const void* data, size_t bytes) {
    Digest d = digest_begin();
    digest_update(&d, data, bytes);
    return digest_end(d);
}

// The digest is part of the file formats: these values stay.
static void values_are_the_format_s(void) {
    CHECK(digest_of("", 0) == 0xf8bb92c91b3f5cc0u);
    CHECK(digest_of("flashgpt", 8) == 0x6b42dd9b45b7642bu);
    CHECK(digest_of("flashgpt writes checkpoints", 27) == 0x9f863572f1607b54u);
}

static void pieces_do_not_matter(void) {
    unsigned char data[1000];
    mt19937_state rng;
    manual_seed(&rng, 3);
    for (int i = 0; i < 1000; i++) { data[i] = (unsigned char)randint32(&rng); }
    int same = 1;
    for (size_t piece = 8; piece < 1000; piece += 8) {
        Digest d = digest_begin();
        for (size_t i = 0; i < 1000; i += piece) { digest_update(&d, data + i, 1000 - i < piece ? 1000 - i : piece); }
        same = same && digest_end(d) == digest_of(data, 1000);
    }
    CHECK(same);
}

static void every_bit_and_the_length_matter(void) {
    unsigned char data[64] = {0};
    uint64_t seen[8 * 64 + 65], n = 0;
    for (size_t bytes = 0; bytes <= 64; bytes++) { seen[n++] = digest_of(data, bytes); } // zeros of every length
    for (int bit = 0; bit < 8 * 64; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        seen[n++] = digest_of(data, 64);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    int apart = 1;
    for (uint64_t i = 0; i < n; i++) {
        for (uint64_t k = 0; k < i; k++) { apart = apart && seen[i] != seen[k]; }
        apart = apart && seen[i] != 0;
    }
    CHECK(apart);
    data[7] = 0x80, data[15] = 0x80; // the highest bits of two words do not cancel
    CHECK(digest_of(data, 64) != seen[64]);
}

// ----------------------------------------------------------------------------

// test_checksum --speed: a line of CSV for each implementation. A piece lies in the cache, as where files are read.
static int print_speeds(void) {
    static unsigned char piece[128 << 10];
    printf("implementation,piece_bytes,GB/s\n");
    for (int k = 0; k < num_implementations; k++) {
        double best = 0.0, start;
        uint32_t crc = 0;
        for (int round = 0; round < 20; round++) {
            start = wall_seconds();
            for (int i = 0; i < 400; i++) { crc = implementations[k](crc, piece, sizeof(piece)); }
            double speed = 400.0 * (double)sizeof(piece) / (wall_seconds() - start) * 1e-9;
            best = speed > best ? speed : best;
        }
        printf("%s,%zu,%.2f\n", k == 0 ? "table" : "instruction", sizeof(piece) + 0 * crc, best);
    }
    return EXIT_SUCCESS;
}

int main(int argc, char** argv) {
    num_implementations = 1 + crc32c_has_instruction_();
    if (argc == 2 && strcmp(argv[1], "--speed") == 0) { return print_speeds(); }
    published_values();
    implementations_agree_at_every_length_and_alignment();
    a_stream_may_be_split_anywhere();
    every_flipped_bit_is_noticed();
    values_are_the_format_s();
    pieces_do_not_matter();
    every_bit_and_the_length_matter();
    return unit_end();
}
