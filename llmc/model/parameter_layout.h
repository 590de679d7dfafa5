/*
The layout of a model's parameters in memory: the weights, their gradients and, in shards, the optimizer's moments and master
weights.

The memory is a sequence of buckets in the order of the forward pass: wte, then wpe with the final LayerNorm, then the layers,
each with its matrices first. A bucket is a whole number of blocks of LAYOUT_BLOCK elements; large groups have several. Each
tensor of a layer begins at a multiple of 64 elements, and the padding between them is always zero. Offsets do not depend on the
number of processes.

Process r of N owns part r of each bucket: `per_rank` elements, fewer at the bucket's end, perhaps none. A shard's memory is
a process's parts, one after the other, `per_rank` elements each: the same offsets in all processes. Files, and the functions
of gpt2_model.h, use the order of gpt2.h's table; layout_run() translates it.
With Muon each matrix of a layer is a bucket of its own, which one process owns: in turn, the one whose matrices cost least so
far. In a shard's memory they come last. They have no second moments.
*/
#ifndef LLMC_MODEL_PARAMETER_LAYOUT_H
#define LLMC_MODEL_PARAMETER_LAYOUT_H

#include "gpt2.h"
#include "llmc/base/utils.h"

enum {
    LAYOUT_BLOCK = 8192,                                // elements; the gradient norm sums the squares block by block
    LAYOUT_ALIGNMENT = 64,                              // elements
    LAYOUT_BUCKET_BLOCKS = (1 << 25) / LAYOUT_BLOCK,    // maximum of a bucket
    LAYOUT_EMBEDDING_BLOCKS = (1 << 23) / LAYOUT_BLOCK, // of a bucket of wte: smaller, as its exchange is exposed
    LAYOUT_WTE = -1,                                    // a bucket's `layer`: wte
    LAYOUT_REST = -2                                    // wpe, lnfw, lnfb
};

// The rows of gpt2.h's table: PARAMETER_wte, ...
#define LAYOUT_ID_(ctx, name, ...) PARAMETER_##name,
typedef enum { GPT2_PARAMETERS(LAYOUT_ID_, ) } GPT2ParameterId;
#undef LAYOUT_ID_

typedef struct {
    size_t begin, count; // in the whole memory; multiples of LAYOUT_BLOCK
    size_t decay_end;    // weight decay acts on this many elements from `begin` on, and on none after them
    int layer;           // or LAYOUT_WTE, LAYOUT_REST
    int tensor;          // of the matrix that Muon updates, whose owner has all of the bucket; -1: parts, and AdamW
    int owner;           // rank
    size_t per_rank;     // multiple of LAYOUT_BLOCK
    size_t shard_begin;  // of the process's part in its shard's memory
    size_t without;      // elements before `begin` that have no second moments
} LayoutBucket;

typedef struct {
    GPT2Config config;
    int size; // number of processes
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    int muon;                                     // 1: Muon updates the matrices of the layers
    int wte_buckets, rest_buckets, layer_buckets; // of wte, of wpe with the final LayerNorm, and of each layer
    int num_buckets;
    LayoutBucket* buckets;
    size_t elements;                      // of the whole memory
    size_t shard_elements;                // of a shard's memory
    size_t second_elements;               // of the whole memory of second moments
    size_t shard_second_elements;         // of a shard's: those with which its memory begins
    size_t offset[NUM_PARAMETER_TENSORS]; // of the tensor, or of its first layer
    size_t layer_stride;                  // from a layer to the next
} ParameterLayout;

// 1 if a tensor of the table belongs to the layers, also where there is only one of them.
static inline int layout_has_layers_(int tensor) {
    return tensor >= (int)PARAMETER_ln1w && tensor <= (int)PARAMETER_fcprojb;
}
static inline int layout_group_(int tensor) { // LAYOUT_WTE, LAYOUT_REST, or 0 for the layers
    return tensor == (int)PARAMETER_wte ? LAYOUT_WTE : layout_has_layers_(tensor) ? 0 : LAYOUT_REST;
}

// 1 if Muon updates the tensor: a matrix of the layers.
static inline int layout_is_muon(const ParameterLayout* l, int tensor) {
    return l->muon && layout_has_layers_(tensor) && l->table[tensor].decay;
}

// The table of a model's second moments: gpt2_parameters' or, with Muon, no elements of what it updates. Returns their number.
static inline size_t layout_second_moments(GPT2Parameter table[NUM_PARAMETER_TENSORS], GPT2Config config, int muon) {
    size_t all = gpt2_parameters(table, config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        if (!muon || !layout_has_layers_(i) || !table[i].decay) { continue; }
        all -= table[i].count;
        table[i].count = 0;
    }
    return all;
}

// Matrices of a tensor that are orthogonalised separately: those of queries, keys and values are three.
static inline int layout_matrices(int tensor) { return tensor == (int)PARAMETER_qkvw ? 3 : 1; }

// ----------------------------------------------------------------------------
// Building

// Places a group's tensors from `begin` on, matrices first. Returns the group's elements; *decayed are those of its matrices.
static inline size_t layout_place_(ParameterLayout* l, int group, size_t begin, size_t* decayed) {
    size_t at = 0;
    *decayed = 0;
    for (int decay = 1; decay >= 0; decay--) {
        for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
            if (layout_group_(i) != group || l->table[i].decay != decay) { continue; }
            l->offset[i] = begin + at;
            at += l->table[i].rows * l->table[i].cols;
            if (decay) { *decayed = at; }
            at = size_round_up(at, layout_is_muon(l, i) ? LAYOUT_BLOCK : LAYOUT_ALIGNMENT);
        }
    }
    return size_round_up(at, LAYOUT_BLOCK);
}

// The number of buckets of a group of so many elements
static inline int layout_pieces_(size_t elements, size_t most_blocks) {
    return (int)CEIL_DIV(elements / LAYOUT_BLOCK, most_blocks);
}

// Adds a bucket of `blocks` blocks, in parts.
static inline LayoutBucket* layout_bucket_(ParameterLayout* l, int layer, size_t blocks) {
    LayoutBucket* b = &l->buckets[l->num_buckets++];
    memset(b, 0, sizeof(*b));
    b->begin = l->elements;
    b->count = blocks * LAYOUT_BLOCK;
    b->layer = layer, b->tensor = -1;
    b->per_rank = CEIL_DIV(blocks, (size_t)l->size) * LAYOUT_BLOCK;
    b->shard_begin = l->shard_elements;
    b->without = l->elements - l->second_elements;
    l->elements += b->count;
    return b;
}

// Adds a group's buckets for `elements` elements, as equal in size as whole blocks allow. The first `decayed` are of matrices.
static inline void layout_add_(ParameterLayout* l, int layer, size_t elements, size_t decayed, int pieces) {
    size_t blocks = elements / LAYOUT_BLOCK, n = (size_t)pieces;
    for (size_t i = 0; i < n; i++) {
        size_t first = blocks * i / n, end = blocks * (i + 1) / n, from = first * LAYOUT_BLOCK;
        LayoutBucket* b = layout_bucket_(l, layer, end - first);
        b->decay_end = decayed < from ? 0 : decayed - from < b->count ? decayed - from : b->count;
        l->second_elements += b->count;
        l->shard_elements += b->per_rank;
    }
}

// Adds the buckets of a layer's matrices, for Muon. Their owners, and their places in shards, are found later.
static inline void layout_add_matrices_(ParameterLayout* l, int layer) {
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        if (!layout_is_muon(l, i)) { continue; }
        size_t count = l->table[i].rows * l->table[i].cols;
        LayoutBucket* b = layout_bucket_(l, layer, CEIL_DIV(count, LAYOUT_BLOCK));
        b->decay_end = count, b->tensor = i, b->per_rank = b->count;
    }
}

// What the orthogonalisation of a tensor's matrices costs: multiply-adds of a Newton-Schulz step
static inline double layout_cost_(const GPT2Parameter* p, int matrices) {
    double rows = (double)(p->rows / (size_t)matrices), cols = (double)p->cols;
    double m = rows < cols ? rows : cols, n = rows < cols ? cols : rows;
    return matrices * (2.0 * m * m * n + m * m * m);
}

// Gives each matrix to the process whose matrices cost least so far.
static inline void layout_find_owners_(ParameterLayout* l) {
    double* cost = (double*)calloc_check((size_t)l->size, sizeof(double));
    size_t* end = (size_t*)calloc_check((size_t)l->size, sizeof(size_t)); // elements of the process's matrices
    size_t most = 0;
    for (int i = 0; i < l->num_buckets; i++) {
        LayoutBucket* b = &l->buckets[i];
        if (b->tensor < 0) { continue; }
        for (int r = 1; r < l->size; r++) { b->owner = cost[r] < cost[b->owner] ? r : b->owner; }
        cost[b->owner] += layout_cost_(&l->table[b->tensor], layout_matrices(b->tensor));
        b->shard_begin = l->shard_second_elements + end[b->owner];
        end[b->owner] += b->count;
        most = end[b->owner] > most ? end[b->owner] : most;
    }
    l->shard_elements += most;
    free(cost);
    free(end);
}

// The layout of a model for `size` processes; muon: Muon updates the matrices of its layers. Nothing is allocated after an
// error.
static inline Status layout_create(ParameterLayout* l, GPT2Config config, int size, int muon) {
    size_t wte_decayed, rest_decayed, layer_decayed, layers = (size_t)config.num_layers;
    memset(l, 0, sizeof(*l));
    l->config = config, l->size = size, l->muon = muon;
    if (size < 1) { return status_fail("a layout for %d processes", size); }
    if (gpt2_parameters(l->table, config) > SIZE_MAX / 64) { return status_fail("more parameters than memory has"); }
    size_t wte = layout_place_(l, LAYOUT_WTE, 0, &wte_decayed);
    size_t rest = layout_place_(l, LAYOUT_REST, wte, &rest_decayed);
    l->layer_stride = layout_place_(l, 0, wte + rest, &layer_decayed);
    size_t matrices = muon ? size_round_up(layer_decayed, LAYOUT_BLOCK) : 0, parts = l->layer_stride - matrices;
    l->wte_buckets = layout_pieces_(wte, LAYOUT_EMBEDDING_BLOCKS);
    l->rest_buckets = layout_pieces_(rest, LAYOUT_BUCKET_BLOCKS);
    int pieces = layout_pieces_(parts, LAYOUT_BUCKET_BLOCKS);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { l->layer_buckets += layout_is_muon(l, i); }
    l->layer_buckets += pieces;
    size_t buckets = (size_t)(l->wte_buckets + l->rest_buckets) + layers * (size_t)l->layer_buckets;
    l->buckets = (LayoutBucket*)malloc_check(buckets * sizeof(LayoutBucket));
    layout_add_(l, LAYOUT_WTE, wte, wte_decayed, l->wte_buckets);
    layout_add_(l, LAYOUT_REST, rest, rest_decayed, l->rest_buckets);
    for (size_t i = 0; i < layers; i++) {
        layout_add_matrices_(l, (int)i);
        layout_add_(l, (int)i, parts, muon ? 0 : layer_decayed, pieces);
    }
    l->shard_second_elements = l->shard_elements;
    layout_find_owners_(l);
    return STATUS_OK;
}

static inline void layout_free(ParameterLayout* l) {
    free(l->buckets);
    l->buckets = NULL;
}

// ----------------------------------------------------------------------------
// Offsets

// The offset of a tensor of the table, in a layer; `layer` is ignored where the tensor has no layers.
static inline size_t layout_offset(const ParameterLayout* l, int tensor, size_t layer) {
    return l->offset[tensor] + (layout_has_layers_(tensor) ? layer * l->layer_stride : 0);
}

// Points every member of a struct made by GPT2_DECLARE_PARAMETERS at its tensor of a layer, in memory of `element` bytes per
// element; a tensor without layers is the same for all.
static inline void layout_point(void* members, const ParameterLayout* l, void* memory, size_t element, size_t layer) {
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        gpt2_set_pointer_(members, i, (char*)memory + layout_offset(l, i, layer) * element);
    }
}

// The first bucket of a layer, or of LAYOUT_WTE or LAYOUT_REST; *count becomes their number.
static inline int layout_buckets_of(const ParameterLayout* l, int layer, int* count) {
    *count = layer == LAYOUT_WTE ? l->wte_buckets : layer == LAYOUT_REST ? l->rest_buckets : l->layer_buckets;
    if (layer == LAYOUT_WTE) { return 0; }
    return layer == LAYOUT_REST ? l->wte_buckets : l->wte_buckets + l->rest_buckets + layer * l->layer_buckets;
}

// The range *begin .. *begin+*count-1 of the whole memory of a layer, or of LAYOUT_WTE or LAYOUT_REST.
static inline void layout_group_range(const ParameterLayout* l, int group, size_t* begin, size_t* count) {
    int buckets, first = layout_buckets_of(l, group, &buckets);
    const LayoutBucket* last = &l->buckets[first + buckets - 1];
    *begin = l->buckets[first].begin;
    *count = last->begin + last->count - *begin;
}

// The range *begin .. *begin+*count-1 of the whole memory of the process's part of the bucket; *count may be 0.
static inline void layout_shard_part(const ParameterLayout* l, int bucket, int rank, size_t* begin, size_t* count) {
    const LayoutBucket* b = &l->buckets[bucket];
    size_t from = b->tensor < 0 ? (size_t)rank * b->per_rank : rank == b->owner ? 0 : b->count;
    from = from < b->count ? from : b->count;
    *begin = b->begin + from;
    *count = b->count - from < b->per_rank ? b->count - from : b->per_rank;
}

// Elements of the largest part of a bucket
static inline size_t layout_largest_part(const ParameterLayout* l) {
    size_t largest = 0;
    for (int b = 0; b < l->num_buckets; b++) {
        if (l->buckets[b].per_rank > largest) { largest = l->buckets[b].per_rank; }
    }
    return largest;
}

// The bucket that holds an element of the whole memory.
static inline int layout_bucket_of(const ParameterLayout* l, size_t offset) {
    int bucket = l->num_buckets - 1;
    while (l->buckets[bucket].begin > offset) { bucket--; }
    return bucket;
}

// Elements that are contiguous in the table, in memory, and in one process's shard
typedef struct {
    size_t count;
    size_t offset;       // in the whole memory
    size_t second;       // in the whole memory of second moments
    int rank;            // whose shard they are in
    size_t shard_offset; // in that shard's memory
} LayoutRun;

// The run from `offset` on, of at most `count` elements.
static inline LayoutRun layout_run_at(const ParameterLayout* l, size_t offset, size_t count) {
    const LayoutBucket* b = &l->buckets[layout_bucket_of(l, offset)];
    size_t in_bucket = offset - b->begin, rank = in_bucket / b->per_rank, in_part = in_bucket % b->per_rank;
    size_t left = b->per_rank - in_part < b->count - in_bucket ? b->per_rank - in_part : b->count - in_bucket;
    LayoutRun run;
    run.count = count < left ? count : left;
    run.offset = offset, run.second = offset - b->without;
    run.rank = b->tensor < 0 ? (int)rank : b->owner;
    run.shard_offset = b->shard_begin + in_part;
    return run;
}

// The run from element `first` of the table's order on, of at most `count` elements; second: of second moments, which some
// tensors do not have.
//     for (size_t i = first, end = first + count; i < end; i += run.count) { run = layout_run(l, 0, i, end - i); ... }
static inline LayoutRun layout_run(const ParameterLayout* l, int second, size_t first, size_t count) {
    int tensor = 0;
    for (; tensor < NUM_PARAMETER_TENSORS - 1; tensor++) {
        size_t elements = second && layout_is_muon(l, tensor) ? 0 : l->table[tensor].count;
        if (first < elements) { break; }
        first -= elements;
    }
    size_t slice = l->table[tensor].rows * l->table[tensor].cols; // of a layer
    size_t left = slice - first % slice;
    return layout_run_at(l, layout_offset(l, tensor, first / slice) + first % slice, count < left ? count : left);
}

#endif
