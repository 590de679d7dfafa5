// llmc/base/checksum.h: CRC32C as RFC 3720 publishes it, by every implementation that this machine has.
#include "llmc/base/checksum.h"

#include "dev/test/fixtures/unit.h"

static Crc32c implementations[2] = {crc32c_portable_};
static int num_implementations = 1;

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
                right += ~implementations[k](0xffffffffu, data + from, n) == by_bits(data + from, n);
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
#if defined(CRC32C_INSTRUCTIONS)
    if (crc32c_has_instruction_()) { implementations[num_implementations++] = crc32c_instructions_; }
#endif
    if (argc == 2 && strcmp(argv[1], "--speed") == 0) { return print_speeds(); }
    published_values();
    implementations_agree_at_every_length_and_alignment();
    a_stream_may_be_split_anywhere();
    every_flipped_bit_is_noticed();
    return unit_end();
}
