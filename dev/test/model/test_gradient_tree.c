// llmc/model/gradient_tree.h: the order of a sum of leaves, whoever adds them.
#include "llmc/model/gradient_tree.h"

#include "llmc/base/rand.h"
#include "dev/test/fixtures/unit.h"

enum { MOST_LEAVES = 64, ELEMENTS = 70 };
static float leaves[MOST_LEAVES][ELEMENTS];

// Numbers of many sizes and both signs: a sum of them in another order has other bits.
static void draw_leaves(void) {
    mt19937_state rng;
    manual_seed(&rng, 42);
    for (int i = 0; i < MOST_LEAVES; i++) {
        for (int e = 0; e < ELEMENTS; e++) {
            leaves[i][e] = ldexpf(randfloat32(&rng) - 0.5f, (int)(randint32(&rng) % 12));
        }
    }
}

static int same(float a, float b) { return memcmp(&a, &b, sizeof(a)) == 0; }

// ----------------------------------------------------------------------------
// The definition: the sum of leaves first .. first+count-1 as the head of gradient_tree.h has it, in its own words

static float chain(int first, int count, int e) { // ((l0 + l1) + l2) + ..
    float sum = leaves[first][e];
    for (int i = 1; i < count; i++) { sum += leaves[first + i][e]; }
    return sum;
}
static float tree(int first, int count, int e) { // halves, down to an odd number of leaves
    if (count % 2 == 1) { return chain(first, count, e); }
    float left = tree(first, count / 2, e);
    return left + tree(first + count / 2, count / 2, e);
}
static float defined_sum(int M, int parts, int e) { // a chain of `parts` equal parts
    float sum = tree(0, M / parts, e);
    for (int p = 1; p < parts; p++) { sum += tree(p * (M / parts), M / parts, e); }
    return sum;
}

// ----------------------------------------------------------------------------
// What N processes do

// The K leaves from `first` on, by the protocol of gradient_leaf; returns 0 where it uses a buffer that it has not.
static int local_sum(float* out, int first, int K, int in_place) {
    static float buffers[GRADIENT_TREE_DEPTH][ELEMENTS];
    int count = gradient_buffers(K, in_place), used = 0;
    memset(buffers, 0xff, sizeof(buffers)); // NaN, as of an earlier step
    for (int i = 0; i < K; i++) {
        GradientLeaf leaf = gradient_leaf(K, in_place, i);
        if (leaf.buffer < 0 || leaf.buffer >= count || leaf.first < 0 || leaf.first > leaf.buffer) { return 0; }
        if (leaf.accumulate && !in_place) { return 0; }
        used = leaf.buffer >= used ? leaf.buffer + 1 : used;
        for (int e = 0; e < ELEMENTS; e++) {
            float* to = &buffers[leaf.buffer][e];
            *to = leaf.accumulate ? *to + leaves[first + i][e] : leaves[first + i][e];
            float sum = *to;
            for (int b = leaf.buffer - 1; b >= leaf.first; b--) { sum = buffers[b][e] + sum; }
            buffers[leaf.first][e] = sum;
        }
    }
    memcpy(out, buffers[0], ELEMENTS * sizeof(float));
    return used == count; // and no buffer is for nothing
}

// M leaves on N processes: 1 where every element has the bits of the definition.
static int processes_agree(int M, int N, int in_place) {
    static float sums[MOST_LEAVES][ELEMENTS], out[ELEMENTS];
    const float* pieces[MOST_LEAVES];
    int K = M / N, ok = 1;
    for (int r = 0; r < N; r++) {
        ok = ok && local_sum(sums[r], r * K, K, in_place);
        pieces[r] = sums[r];
    }
    gradient_tree_sum_range(out, pieces, N, 0, ELEMENTS);
    for (int e = 0; e < ELEMENTS; e++) { ok = ok && same(out[e], defined_sum(M, N / gradient_tree_power_(N), e)); }
    return ok;
}

static void every_number_of_processes_follows_the_tree(void) {
    for (int M = 1; M <= MOST_LEAVES; M++) {
        for (int N = 1; N <= M; N++) {
            if (M % N != 0) { continue; }
            for (int in_place = 0; in_place < 2; in_place++) {
                if (!CHECK(processes_agree(M, N, in_place))) {
                    printf("    %d leaves, %d processes, in_place %d\n", M, N, in_place);
                }
            }
        }
    }
}

// Only o decides: another o has other bits, or these leaves could not tell.
static void only_the_odd_part_matters(void) {
    CHECK(gradient_tree_power_(1) == 1 && gradient_tree_power_(2) == 2 && gradient_tree_power_(64) == 64);
    CHECK(gradient_tree_power_(3) == 1 && gradient_tree_power_(6) == 2 && gradient_tree_power_(12) == 4);
    CHECK(gradient_tree_power_(5) == 1 && gradient_tree_power_(7) == 1 && gradient_tree_power_(40) == 8);
    int differ = 0;
    for (int e = 0; e < ELEMENTS; e++) {
        differ += !same(defined_sum(48, 1, e), defined_sum(48, 3, e));
        differ += !same(defined_sum(60, 3, e), defined_sum(60, 5, e));
        differ += !same(defined_sum(64, 1, e), chain(0, 64, e));
    }
    CHECK(differ > ELEMENTS);
}

static void buffers_are_few(void) {
    static const int expected[][3] = {{1, 1, 1},  {2, 2, 1},  {3, 2, 1},  {4, 3, 2},  {5, 2, 1},
                                      {6, 3, 2},  {8, 4, 3},  {12, 4, 3}, {16, 5, 4}, {24, 5, 4},
                                      {32, 6, 5}, {48, 6, 5}, {63, 2, 1}, {64, 7, 6}, {1 << 30, 31, 30}};
    for (size_t i = 0; i < sizeof(expected) / sizeof(expected[0]); i++) {
        CHECK(gradient_buffers(expected[i][0], 0) == expected[i][1]);
        CHECK(gradient_buffers(expected[i][0], 1) == expected[i][2]);
    }
    GradientLeaf only = gradient_leaf(1, 0, 0); // one micro-step: nothing is added
    CHECK(only.buffer == 0 && !only.accumulate && only.first == 0);
}

// Ranges of any length, also in the middle; the sum may take the place of a piece.
static void sums_in_place_and_in_ranges(void) {
    static float sums[3][ELEMENTS], out[ELEMENTS];
    for (int r = 0; r < 3; r++) { memcpy(sums[r], leaves[r], sizeof(sums[r])); }
    for (int in = 0; in < 3; in++) {
        const float* pieces[3] = {sums[0], sums[1], sums[2]};
        for (int e = 0; e < ELEMENTS; e++) { out[e] = NAN; }
        gradient_tree_sum_range(out, pieces, 3, 5, 69);
        int ok = isnan(out[4]) && isnan(out[69]);
        for (int e = 5; e < 69; e++) { ok = ok && same(out[e], chain(0, 3, e)); }
        gradient_tree_sum_range(sums[in], pieces, 3, 0, ELEMENTS);
        for (int e = 0; e < ELEMENTS; e++) { ok = ok && same(sums[in][e], chain(0, 3, e)); }
        CHECK(ok);
        memcpy(sums[in], leaves[in], sizeof(sums[in]));
    }
}

int main(void) {
    draw_leaves();
    every_number_of_processes_follows_the_tree();
    only_the_odd_part_matters();
    buffers_are_few();
    sums_in_place_and_in_ranges();
    return unit_end();
}
