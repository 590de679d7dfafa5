// llmc/base/digest.h: the same bytes give the same digest, in whatever pieces they come; other bytes give another.
#include "llmc/base/digest.h"

#include "llmc/base/rand.h"
#include "dev/test/fixtures/unit.h"

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

int main(void) {
    values_are_the_format_s();
    pieces_do_not_matter();
    every_bit_and_the_length_matter();
    return unit_end();
}
