// llmc/model/finite_check.h: the first number that is not finite is named; every finite one passes.
#include "llmc/model/finite_check.h"

#include "dev/test/fixtures/unit.h"

static const GPT2Config config = {4, 12, 128, 2, 1, 32, 0};
static float numbers[40000];
static uint16_t halves[40000];
static GPT2Parameter table[NUM_PARAMETER_TENSORS];
static size_t total;

// Puts `bits` at a place of the table and reads all, in pieces; STATUS_OK where all are finite.
static Status run(size_t at, uint32_t bits, size_t element, size_t piece) {
    FiniteCheck c;
    Status status = STATUS_OK;
    for (size_t i = 0; i < total; i++) {
        uint32_t word = i == at ? bits : 0x7f7f0000u; // the largest bf16
        uint16_t half = (uint16_t)(word >> 16);
        memcpy(&numbers[i], &word, 4);
        halves[i] = half;
    }
    status_clear();
    finite_check_begin(&c, config, element, "m.bin");
    const char* data = element == 4 ? (const char*)numbers : (const char*)halves;
    for (size_t i = 0; i < total && status == STATUS_OK; i += piece) {
        size_t n = total - i < piece ? total - i : piece;
        status = finite_check_update(&c, data + i * element, n * element);
    }
    return status;
}

static void bad(size_t at, uint32_t bits, const char* words) {
    for (int k = 0; k < 4; k++) {
        if (!CHECK(run(at, bits, k % 2 ? 2 : 4, k < 2 ? 1000 : total) == STATUS_ERROR) ||
            !CHECK(strstr(status_message(), words) != NULL)) {
            printf("    expected %s in: %s\n", words, status_message());
        }
    }
}

int main(void) {
    total = gpt2_parameters(table, config);
    if (total > 40000) { fatal("the model is larger than this test's buffer"); }
    size_t wpe = table[0].count, ln1w = wpe + table[1].count, lnfb = total - 32;
    static const uint32_t finite[] = {0, 0x80000000u, 0x00010000u, 0x7f7f0000u, 0xff7f0000u, 0x3f800000u};
    for (int i = 0; i < 6; i++) { CHECK(run(5, finite[i], 4, 1000) == STATUS_OK && run(5, finite[i], 2, 1000) == 0); }
    CHECK(run(5, 0x7f7fffffu, 4, total) == STATUS_OK); // FLT_MAX
    CHECK(run(5, 0x7f800001u, 4, total) == STATUS_ERROR && strstr(status_message(), "nan"));
    bad(0, 0x7fc00000u, "m.bin: wte, element 0 is nan");
    bad(wpe - 1, 0x7f800000u, "m.bin: wte, element 4095 is inf");
    bad(wpe, 0xff800000u, "m.bin: wpe, element 0 is -inf");
    bad(ln1w + 32 + 3, 0xffc00000u, "m.bin: ln1w, layer 1, element 3 is nan");
    bad(lnfb + 31, 0x7f800000u, "m.bin: lnfb, element 31 is inf");
    return unit_end();
}
