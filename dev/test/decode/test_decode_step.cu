// How a step in one kernel (dev/cuda/decode/step.cuh) is cut: every tile of every matrix has one CTA, that of the residual
// stream the same one twice; a warp's segments are decode/matmul.cuh's; a group's sums have a thread each; all of it fits the
// shared memory; and every pair of elements has a word of its own. Needs no GPU.
#include "dev/cuda/decode/step.cuh"

#include "dev/test/fixtures/unit.h"

#include <vector>

using namespace decode_step;

constexpr int SHARED_LIMIT = 227 * 1024, V = 50257;

static void words_are_places(void) {
    for (int columns : {416, 768, 3 * 768, 1600, 4 * 1600}) {
        std::vector<int> uses(columns / 2);
        bool once = true, halves = true;
        for (int e = 0; e < columns; e += 2) {
            int word = word_of(e, columns);
            once &= word >= 0 && word < columns / 2 && uses[word]++ == 0;
        }
        for (int e = 0; e < columns; e += 8) { // a vector is two loads of two words, and vectors follow each other
            int word = word_of(e, columns);
            halves &= word == e / 4 && word_of(e + 2, columns) == word + 1;
            halves &=
                word_of(e + 4, columns) == word + columns / 4 && word_of(e + 6, columns) == word + columns / 4 + 1;
        }
        CHECK(once && halves);
    }
}

// What a stage writes is what the next one reads; no vector has the words of another.
static bool vectors_have_places(const Step& p) {
    const StageSizes* s = p.stages;
    struct Place {
        int begin, columns;
    };
    const Place places[] = {{s[QKV].input, p.C},
                            {s[QKV].output, 3 * p.C},
                            {s[ATTPROJ].input, p.C},
                            {s[ATTPROJ].output, p.C},
                            {s[FC].output, 4 * p.C}};
    bool right = s[FCPROJ].output == s[QKV].input && s[FCPROJ].output == s[HEAD].input &&
                 s[FC].input == s[ATTPROJ].output && s[FCPROJ].input == s[FC].output;
    for (const Place& x : places) {
        int end = x.begin + p.B * x.columns / 2;
        right &=
            x.begin % 16 == 0 && (size_t)end <= 10 * exchange_words_of_rows(p.B, p.C) && (size_t)end <= p.copy_words;
        for (const Place& y : places) {
            right &= &x == &y || y.begin >= end || x.begin >= y.begin + p.B * y.columns / 2;
        }
    }
    return right;
}

static bool tiles_have_one_cta(const Step& p) {
    for (int stage = 0; stage < STAGES; stage++) {
        const bool second = stage == ATTPROJ || stage == FCPROJ; // of half a layer, which has its parameters together
        std::vector<int> owner(p.stages[stage].tiles, -1);
        for (int cta = 0; cta < p.CTAs; cta++) {
            int first = first_tile(stage, cta, p.CTAs), count = num_tiles(p.stages[stage], first, p.CTAs);
            for (int i = 0; i < count; i++) {
                if (owner[first + i * p.CTAs] != -1) { return false; }
                owner[first + i * p.CTAs] = cta;
                bool same = first_tile(ATTPROJ, cta, p.CTAs) == first_tile(FCPROJ, cta, p.CTAs);
                if (!same) { return false; }
            }
            if (second) {
                int before = num_tiles(p.stages[stage - 1], first_tile(stage - 1, cta, p.CTAs), p.CTAs);
                if (p.vectors < 2 * p.C + 8 * (count + before)) { return false; }
            }
        }
        for (int cta : owner) {
            if (cta < 0) { return false; }
        }
        if (8 * p.stages[stage].tiles < p.stages[stage].OC) { return false; }
    }
    return true;
}

// What the kernel relies on: S segments of a slot are a warp's, of so many chunks as it is built for, a lane has a vector of
// them, the sums of a row's vectors fit, and segments of a part of 4C are C's.
static bool segments_are_those_of_the_matmul(const Step& p) {
    int S = p.stages[QKV].splits, chunks = p.C / DECODE_CHUNK, most = decode_most_chunks(p.C);
    if (most > 4 || S * most > 8 || p.C / 8 > 32 * (S == 1 ? ROW_SUMS<1> : ROW_SUMS<2>)) { return false; }
    if (S != decode_splits(p.C) || p.stages[FCPROJ].splits != decode_splits(4 * p.C) || S > 2) { return false; }
    for (int part = 0; part < 4; part++) {
        for (int s = 0; s <= WARPS * S; s++) {
            int begin = decode_segment(p.C, S, s);
            if (decode_segment(4 * p.C, 4 * S, part * WARPS * S + s) != part * chunks + begin) { return false; }
            if (s > 0 && begin - decode_segment(p.C, S, s - 1) > most) { return false; }
        }
    }
    int CHUNKS = most <= 3 ? 3 : 4, each = chunks_of_each(S, CHUNKS), all = chunks_of_all(S, CHUNKS);
    for (int warp = 0; warp < WARPS; warp++) { // the chunks that it holds are all of its segments'
        int begin = decode_segment(p.C, S, warp * S), end = decode_segment(p.C, S, warp * S + S);
        for (int k = 0; k < S && each < CHUNKS; k++) {
            int first = decode_segment(p.C, S, warp * S + k);
            if (decode_segment(p.C, S, warp * S + k + 1) - first < each) { return false; }
        }
        if (end - begin > all) { return false; }
    }
    return true;
}

// What is copied in bulk and read as float4 begins at multiples of 16 bytes.
static bool parameters_are_aligned(const Step& p) {
    return p.C * sizeof(floatX) % 16 == 0 && p.row_sums % 4 == 0 && p.vectors * sizeof(floatX) % 16 == 0;
}

static bool rows_fit(const Step& p) {
    int row = p.C * (int)sizeof(floatX);
    for (int stage = QKV; stage < HEAD; stage++) {
        int bytes = p.stages[stage].row_bytes; // on different banks
        if (bytes % 128 != 64 || bytes < row || 8 * bytes > p.slot_bytes) { return false; }
    }
    return p.stages[HEAD].row_bytes == row; // one copy
}

static bool groups_fit(const Step& p) {
    for (const StageSizes& s : p.stages) {
        int sums = s.group * WARPS * s.splits * p.B * 8 * (int)sizeof(float);
        if (s.group < 1 || sums > p.sums_bytes || s.group * p.B * 4 * s.splits > CONSUMERS) { return false; }
    }
    int residual = CEIL_DIV(p.stages[ATTPROJ].tiles, p.CTAs) * p.B * 8 * (int)sizeof(float);
    int row_sums = 2 * p.B * p.C / 8 * (int)sizeof(float);
    return p.residual % 16 == 0 && p.row_sums - p.residual >= residual && p.sums - p.row_sums >= row_sums &&
           p.input - p.sums == 2 * p.sums_bytes && p.input % 16 == 0 &&
           p.parameters - p.input == p.input_row * p.B * (int)sizeof(floatX) && p.input_row >= 4 * p.C &&
           p.parameters % 16 == 0 && p.vectors % 8 == 0 && p.ring % 128 == 0 &&
           p.ring >= p.parameters + 2 * p.vectors * (int)sizeof(floatX) && p.slots >= MIN_SLOTS &&
           p.slots <= MAX_SLOTS && p.shared <= SHARED_LIMIT &&
           p.shared - p.ring - p.slots * p.slot_bytes >= READ_BEHIND && rows_fit(p);
}

static Step sizes(int B, int C, int NH) {
    Step p = {};
    p.L = 2, p.B = B, p.T = 1024, p.C = C, p.NH = NH, p.V = V, p.Vp = 50304;
    return p;
}

static void test_plan(int C, int NH) {
    for (int B = 1; B <= MAX_ROWS; B++) {
        for (int CTAs : {16, 60, 78, 114, 132}) { // of a MIG instance, too
            Step p = sizes(B, C, NH);
            const Kernel* kernel = choice(B, C / NH);
            bool planned = kernel != nullptr && kernel->plan(&p, CTAs, SHARED_LIMIT);
            if (!CHECK(planned && tiles_have_one_cta(p) && segments_are_those_of_the_matmul(p) && groups_fit(p) &&
                       parameters_are_aligned(p) && vectors_have_places(p))) {
                printf("    B %d C %d NH %d, %d CTAs: planned %d\n", B, C, NH, CTAs, planned);
            }
            CHECK(kernel->exchange_words(B, C, NH, p.T) == COPIES * p.copy_words);
        }
    }
}

// What the kernel does not serve has no plan: the several kernels take it.
static void test_refusals(void) {
    CHECK(choice(MAX_ROWS + 1, 64) == nullptr && choice(1, 48) == nullptr && choice(1, 64) != nullptr);
    for (int C : {128, 384, 800, 2048, 12288}) { // one split of 4C, too long a row, and four splits of C
        Step p = sizes(1, C, C / 64);
        CHECK(!choice(1, 64)->plan(&p, 132, SHARED_LIMIT));
    }
    Step p = sizes(1, 768, 12);
    p.Vp = V; // the last tile's rows must be there
    CHECK(!choice(1, 64)->plan(&p, 132, SHARED_LIMIT));
    p = sizes(MAX_ROWS, 1600, 25);
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
