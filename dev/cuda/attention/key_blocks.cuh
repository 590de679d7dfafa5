/*
The order in which CTAs of a backward kernel take key blocks from the work counter. A CTA that adds its part of dQ behind
those taken before it then sums in a fixed order, waits only for CTAs that run, and finds them ahead of it.

Heads come in groups of group_heads, whose key blocks are interleaved: for every j all heads of the group. j descends and each
key block begins at its own diagonal: so key block j + 1, which is taken before j, reaches every query block a step or more
earlier, and its dQ has been added when j needs it. In a reversed group j ascends, longest first, and query blocks descend from
the last. The last group, from first_reversed_head on, is reversed, so that all CTAs end at about the same time. Alternating
groups are a wave each, every other one reversed: a CTA that had a short key block takes a long one next.
*/
#ifndef KEY_BLOCKS_CUH
#define KEY_BLOCKS_CUH

#include "llmc/cuda/common.cuh"
#include "llmc/cuda/divisor.cuh"

// The sizes of a launch on a GPU with num_sms SMs, and the order that follows from them. A work item is a key block of a head.
struct KeyBlockOrder {
    int heads, key_blocks, query_blocks, work_items; // key blocks and query blocks of a head, key blocks of all heads
    bool alternating;                                // groups are a wave each; those with odd numbers are reversed
    int first_reversed_head, first_reversed_item;    // of the last group, which is reversed
    // Heads whose key blocks are interleaved: of a group, of the last but one, of the last.
    Divisor group_heads, last_heads, reversed_heads;
    Divisor group_items, NH; // key blocks of a group

    // Groups alternate if they may, if there are heads for at least two waves, and if a wave of whole heads leaves at most 1/32
    // of the SMs idle. A group then has the heads of a wave; else it has group_heads.
    KeyBlockOrder(int B, int NH, int key_blocks, int query_blocks, int group_heads, int num_sms,
                  bool may_alternate = false)
        : heads(B * NH), key_blocks(key_blocks), query_blocks(query_blocks), work_items(heads * key_blocks), NH(NH) {
        const int wave = num_sms / key_blocks;
        alternating = may_alternate && heads >= 2 * wave && num_sms % key_blocks <= num_sms / 32;
        int last = CEIL_DIV(2 * num_sms, key_blocks);
        if (alternating) { // the last group is one wave if the number of waves is even, else the rest and up to three waves
            const int rest = heads % (2 * wave);
            group_heads = wave;
            last = rest == 0 ? wave : min(3 * wave + rest, heads - wave);
        }
        first_reversed_head = heads - min(heads, last);
        first_reversed_item = first_reversed_head * key_blocks;
        this->group_heads = Divisor(group_heads);
        last_heads = Divisor(max(1, first_reversed_head % group_heads));
        reversed_heads = Divisor(heads - first_reversed_head);
        group_items = Divisor(group_heads * key_blocks);
    }
};

// A work item's head and key block.
struct KeyBlock {
    int head, j;
    bool reversed; // j ascends from item to item, and query blocks are visited from the last to the diagonal
    __host__ __device__ KeyBlock(int work_item, const KeyBlockOrder& p) {
        head = -1, j = 0, reversed = false;
        if (work_item >= p.work_items) { return; }
        const bool last = work_item >= p.first_reversed_item;
        const int group = p.group_items.quotient(work_item),
                  first = last ? p.first_reversed_head : group * p.group_heads.d;
        const bool whole = first + p.group_heads.d <= p.first_reversed_head;
        const Divisor& heads = last ? p.reversed_heads : whole ? p.group_heads : p.last_heads;
        reversed = last || (p.alternating && group % 2 == 1);
        int n = work_item - first * p.key_blocks, k = heads.quotient(n);
        j = reversed ? k : p.key_blocks - 1 - k;
        head = first + n - k * heads.d;
    }
    // Head and j as one thread of a CTA has found them, for the others.
    __host__ __device__ explicit KeyBlock(int2 packed)
        : head(packed.x), j(packed.y < 0 ? ~packed.y : packed.y), reversed(packed.y < 0) {}
    __host__ __device__ int2 packed() const { return make_int2(head, reversed ? ~j : j); }
    __host__ __device__ bool none() const { return head < 0; } // no work item is left
    __host__ __device__ int b(const KeyBlockOrder& p) const { return p.NH.quotient(head); }
    __host__ __device__ int h(const KeyBlockOrder& p) const { return p.NH.remainder(head); }
    // The number of steps: query blocks from the diagonal to the last row. A key block has C::steps_per_block of its own.
    template <class C> __host__ __device__ int steps(const KeyBlockOrder& p) const {
        return p.query_blocks - j * C::steps_per_block;
    }
    // The query block of step i, counted from the one that holds the key block's first key.
    template <class C> __host__ __device__ int query_offset(int i, const KeyBlockOrder& p) const {
        return reversed ? steps<C>(p) - 1 - i : i;
    }
    // How many key blocks add their part of dQ of a query block before this one, and after it; the diagonal of these queries
    // is in key block j + behind.
    __host__ __device__ int before(int behind) const { return reversed ? j : behind; }
    __host__ __device__ int after(int behind) const { return reversed ? behind : j; }
};

#endif
