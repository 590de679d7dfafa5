// How a step in one kernel (dev/cuda/decode_step.cuh) is cut: every tile of every matrix has one CTA, that of the residual
// stream the same one twice; a warp's segments are decode_matmul.cuh's; a group's sums have a thread each; all of it fits the
// shared memory; and every pair of elements has a word of its own. Needs no GPU.
#include "dev/cuda/decode_step.cuh"

#include "unit.h"

#include <vector>

using namespace decode_step;

constexpr int SHARED_LIMIT = 227 * 1024, V = 50257;

static void words_are_places(void) {
    std::vector<int> uses(4 * WORD_GROUP);
    for (int e = 0; e < 8 * WORD_GROUP; e += 2) { uses[word_of(e)]++; }
    bool once = true, halves = true;
    for (int n : uses) { once &= n == 1; }
    for (int e = 0; e < 8 * WORD_GROUP; e += 8) { // a vector is two loads of two words
        halves &= word_of(e) % 2 == 0 && word_of(e + 2) == word_of(e) + 1 && word_of(e + 6) == word_of(e + 4) + 1;
        halves &= word_of(e + 4) == word_of(e) + WORD_GROUP / 2;
    }
    CHECK(once && halves);
    // the last word of B rows of k C elements is one of k times those of B rows of C
    for (int B = 1; B <= MAX_ROWS; B++) {
        for (int k : {1, 3, 4}) {
            CHECK((size_t)word_of(B * k * 1600 - 2) < k * exchange_words_of_rows(B, 1600));
            CHECK((size_t)word_of(B * k * 416 - 2) < k * exchange_words_of_rows(B, 416));
        }
    }
}

static bool tiles_have_one_cta(const Step& p) {
    for (int stage = 0; stage < STAGES; stage++) {
        std::vector<int> owner(p.stages[stage].tiles, -1);
        for (int cta = 0; cta < p.CTAs; cta++) {
            int first = first_tile(stage, cta, p.CTAs), count = num_tiles(p.stages[stage].tiles, first, p.CTAs);
            for (int i = 0; i < count; i++) {
                if (owner[first + i * p.CTAs] != -1) { return false; }
                owner[first + i * p.CTAs] = cta;
                bool same = first_tile(ATTPROJ, cta, p.CTAs) == first_tile(FCPROJ, cta, p.CTAs);
                if (!same || (stage != HEAD && p.vectors < 4 * p.C + 8 * count)) { return false; }
            }
        }
        for (int cta : owner) {
            if (cta < 0) { return false; }
        }
        if (8 * p.stages[stage].tiles < p.stages[stage].OC) { return false; }
    }
    return true;
}

// What the kernel relies on: S segments of a slot are a warp's, of at most MAX_CHUNKS chunks, and those of a part of 4C are C's
static bool segments_are_those_of_the_matmul(const Step& p) {
    int S = p.stages[QKV].splits, chunks = p.C / DECODE_CHUNK;
    if (S != decode_splits(p.C) || p.stages[FCPROJ].splits != decode_splits(4 * p.C) || S > 2) { return false; }
    for (int part = 0; part < 4; part++) {
        for (int s = 0; s <= WARPS * S; s++) {
            int begin = decode_segment(p.C, S, s);
            if (decode_segment(4 * p.C, 4 * S, part * WARPS * S + s) != part * chunks + begin) { return false; }
            if (s > 0 && begin - decode_segment(p.C, S, s - 1) > MAX_CHUNKS) { return false; }
        }
    }
    return true;
}

static bool groups_fit(const Step& p) {
    for (const StageSizes& s : p.stages) {
        int sums = s.group * WARPS * s.splits * p.B * 8 * (int)sizeof(float);
        if (s.group < 1 || sums > p.sums_bytes || s.group * p.B * 4 * s.splits > CONSUMERS) { return false; }
    }
    int residual = CEIL_DIV(p.stages[ATTPROJ].tiles, p.CTAs) * p.B * 8 * (int)sizeof(float);
    return p.residual % 16 == 0 && p.row_sums - p.residual >= residual && p.input - p.sums == 2 * p.sums_bytes &&
           p.input % 16 == 0 && p.parameters - p.input == 4 * p.C * p.B * (int)sizeof(floatX) && p.ring % 128 == 0 &&
           p.ring >= p.parameters + 2 * p.vectors * (int)sizeof(floatX) && p.slots >= MIN_SLOTS &&
           p.slots <= MAX_SLOTS && p.shared <= SHARED_LIMIT && p.shared == p.ring + p.slots * p.slot_bytes &&
           p.row_bytes % 128 == 64 && p.row_bytes >= p.C * (int)sizeof(floatX);
}

static Step sizes(int B, int C, int NH) {
    Step p = {};
    p.L = 2, p.B = B, p.T = 1024, p.C = C, p.NH = NH, p.V = V, p.Vp = 50304, p.max_length = 1024;
    return p;
}

static void test_plan(int C, int NH) {
    for (int B = 1; B <= MAX_ROWS; B++) {
        for (int CTAs : {78, 114, 132}) {
            Step p = sizes(B, C, NH);
            const Kernel* kernel = choice(B, C / NH);
            bool planned = kernel != nullptr && kernel->plan(&p, CTAs, SHARED_LIMIT);
            if (!CHECK(planned && tiles_have_one_cta(p) && segments_are_those_of_the_matmul(p) && groups_fit(p))) {
                printf("    B %d C %d NH %d, %d CTAs: planned %d\n", B, C, NH, CTAs, planned);
            }
            CHECK(kernel->exchange_words(B, C, NH, p.T) == COPIES * p.copy_words);
        }
    }
}

// What the kernel does not serve has no plan: the several kernels take it.
static void test_refusals(void) {
    CHECK(choice(MAX_ROWS + 1, 64) == nullptr && choice(1, 48) == nullptr && choice(1, 64) != nullptr);
    for (int C : {128, 384, 2048, 12288}) { // one split of 4C, and four of C
        Step p = sizes(1, C, C / 64);
        CHECK(!choice(1, 64)->plan(&p, 132, SHARED_LIMIT));
    }
    Step p = sizes(MAX_ROWS, 1600, 25);
    CHECK(!choice(MAX_ROWS, 64)->plan(&p, 132, 99 * 1024)); // no room for the ring
}

int main(void) {
    words_are_places();
    for (int C : {416, 768, 832, 1024, 1280, 1600}) { test_plan(C, C / 32); }
    test_plan(768, 12), test_plan(1600, 25), test_plan(1280, 20), test_plan(1024, 16);
    test_plan(576, 6), test_plan(768, 6);
    test_refusals();
    return unit_end();
}
