/*
The order in which gradients are added, such that the number of processes does not change their bits.

The micro-batches of a step are the leaves of a tree. With N processes, N = 2^a o (o odd), the leaves form o parts of
consecutive ones. A part of 2^k q leaves (q odd) is 2^k groups of q consecutive leaves: a group is summed sequentially,
((l0 + l1) + l2) + .., the groups by a perfect binary tree, and the parts sequentially again. Process r has the r-th of N equal
ranges of leaves, which is a subtree: so the sum depends on the leaves and on o alone, and o is 1 for every power of two.
A process adds up its K leaves as they are computed, in few buffers: one for each subtree whose sibling is not complete yet.

    for (int i = 0; i < K; i++) {
        GradientLeaf leaf = gradient_leaf(K, in_place, i);
        // buffer[leaf.buffer] = or, with leaf.accumulate, += leaf i; then
        // buffer[leaf.first] = buffer[leaf.first] + (buffer[leaf.first + 1] + (.. + buffer[leaf.buffer]))
    }   // buffer[0] is the sum
*/
#ifndef LLMC_MODEL_GRADIENT_TREE_H
#define LLMC_MODEL_GRADIENT_TREE_H

#include "host_device.h"

enum { GRADIENT_TREE_DEPTH = 32 }; // maximum of pending subtrees: fewer than the bits of an int

// The largest power of two that divides n > 0
HOST_DEVICE static inline int gradient_tree_power_(int n) { return n & -n; }

// ----------------------------------------------------------------------------
// The leaves of a process

typedef struct {
    int buffer;     // the buffer of the leaf
    int accumulate; // 1: the leaf is added to the buffer; 0: it overwrites it
    int first;      // then buffers first .. buffer are added up into `first`; first == buffer: nothing to add
} GradientLeaf;

// The number of buffers for K leaves. in_place 1: a leaf can be accumulated into a buffer with the same bits as if it had been
// computed separately and then added.
static inline int gradient_buffers(int K, int in_place) {
    int groups = gradient_tree_power_(K), chain = K > groups, levels = 0;
    while (groups >> levels > 1) { levels++; }
    if (!in_place) { return levels + 1 + chain; }
    return levels + chain > 1 ? levels + chain : 1;
}

// The buffers of leaf `leaf` of K.
static inline GradientLeaf gradient_leaf(int K, int in_place, int leaf) {
    int chain = K / gradient_tree_power_(K), group = leaf / chain, position = leaf % chain;
    int waiting = 0, complete = 0; // pending subtrees before this group; how many of them it completes
    for (int bits = group; bits > 0; bits >>= 1) { waiting += bits & 1; }
    for (int bits = group; bits & 1; bits >>= 1) { complete++; }
    GradientLeaf result;
    result.buffer = waiting; // the group's
    result.accumulate = 0;
    result.first = position < chain - 1 ? waiting : waiting - complete;
    if (position > 0) { // a later leaf of the chain
        result.buffer += in_place ? 0 : 1;
        result.accumulate = in_place;
    } else if (in_place && chain == 1 && complete > 0) { // the second of a pair
        result.buffer -= 1;
        result.accumulate = 1;
    }
    return result;
}

// ----------------------------------------------------------------------------
// The sums of N processes

// out[i] = the sum of N arrays, those of processes 0 to N-1, for i from begin to end-1; out may be one of them. In tiles, so
// that the loops vectorise.
static inline void gradient_tree_sum_range(float* out, const float* const* pieces, int N, size_t begin, size_t end) {
    enum { TILE = 64 };
    float waiting[GRADIENT_TREE_DEPTH][TILE], total[TILE];
    int group = gradient_tree_power_(N);
    for (size_t at = begin; at < end; at += TILE) {
        size_t n = end - at < (size_t)TILE ? end - at : (size_t)TILE;
        for (int first = 0; first < N; first += group) {
            int depth = 0;
            for (int k = 0; k < group; k++, depth++) {
                const float* piece = pieces[first + k] + at;
                for (size_t i = 0; i < n; i++) { waiting[depth][i] = piece[i]; }
                for (int bits = k; bits & 1; bits >>= 1, depth--) {
                    for (size_t i = 0; i < n; i++) { waiting[depth - 1][i] += waiting[depth][i]; }
                }
            }
            for (size_t i = 0; i < n; i++) { total[i] = first == 0 ? waiting[0][i] : total[i] + waiting[0][i]; }
        }
        for (size_t i = 0; i < n; i++) { out[at + i] = total[i]; }
    }
}

#endif
