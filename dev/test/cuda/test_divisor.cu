// Divisor (llmc/cuda/common.cuh) against the processor's division: every divisor up to 4096 and those around powers of two, at
// numbers on both sides of multiples, where a multiplier that is off by one shows first. Needs no GPU.
#include "llmc/cuda/common.cuh"

#include "dev/test/fixtures/unit.h"

static int64_t wrong, compared;

static void compare(const Divisor& by, int64_t n) {
    if (n < 0 || n > INT32_MAX) { return; }
    compared++;
    wrong += by.quotient((int)n) != (int)n / by.d || by.remainder((int)n) != (int)n % by.d;
}

static void divides(int d) {
    const Divisor by(d);
    for (int64_t n = 0; n < 64; n++) { compare(by, n); }
    for (int bit = 5; bit < 32; bit++) {
        const int64_t near = (1ll << bit) / d * d; // the multiple of d below a power of two
        for (int64_t n : {near - 1, near, near + 1, near + d - 1, near + d}) { compare(by, n); }
    }
    for (int64_t n = INT32_MAX - 64; n <= INT32_MAX; n++) { compare(by, n); }
}

int main(void) {
    for (int d = 1; d <= 4096; d++) { divides(d); }
    for (int bit = 12; bit < 31; bit++) {
        for (int d : {(1 << bit) - 1, 1 << bit, (1 << bit) + 1, (1 << bit) / 3 * 2}) { divides(d); }
    }
    divides(INT32_MAX);
    CHECK(wrong == 0);
    CHECK(compared > 1000000);
    return unit_end();
}
