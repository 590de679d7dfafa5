/*
A step of the decoder in one kernel, for a few sequences: one token of each through all layers and the head. sm_90a, bf16.

One CTA per SM, all resident (a cooperative launch). A producer warp loads the CTA's rows of every matrix, in the order of use,
by TMA into a ring of slots (full, empty), ahead of all activations; another loads biases and LayerNorm's parameters. Eight
consumer warps multiply, each its segments of all rows (decode/matmul.cuh), and compute attention (attention_decode_split.cu),
in the same order, so with the same bits.
The critical path of a step is what lies between a stage's input and its output: warps do all else before they wait for input.

CTAs exchange vectors as words of 8 bytes, two elements and the tag of the layer and step, which their readers poll: no barrier,
no fence, no flag beside the data (as NCCL's LL protocol). Each of these needs all of the one before it:
    x -> qkv -> attention output -> x + attproj -> gelu(fc) -> x of the next layer
A word is overwritten a layer later. By then all CTAs have read it: a CTA publishes its part of a later vector only after it has
read this one, and waits for each vector before it publishes the next, also where it sends zeros only.
*/
#ifndef DECODE_STEP_CUH
#define DECODE_STEP_CUH

#include "decode.cuh"
#include "matmul.cuh"
#include "sampler.cuh"
#if !defined(PRECISION_FP32)
#include "attention_decode_split.cu"
#include "llmc/cuda/hopper.cuh"
#endif

namespace decode_step {

typedef unsigned long long Word;

constexpr int MAX_ROWS = 3;   // sequences; with more, several kernels are faster; an MMA's operand would hold 4
constexpr int MAX_CTAS = 512; // more than any GPU has SMs

enum Stage { QKV, ATTPROJ, FC, FCPROJ, HEAD, STAGES };

// The weights of a layer. The entry after the last layer has the final LayerNorm and the head as QKV's.
struct Layer {
    const floatX *norm_weight[2], *norm_bias[2]; // of QKV and FC
    const floatX *weight[HEAD], *bias[HEAD];
};
// How a stage's (OC, parts * C) matrix is divided: tiles of 8 rows; a slot holds C columns of one. Every CTA has tiles_each of
// them, the first CTAs one more.
struct StageSizes {
    int OC, tiles, tiles_each, parts, splits;
    int group;                    // tiles whose sums fit shared memory at once
    int input, output, row_bytes; // offsets of its vectors in `words`; stride of a slot's rows
};

struct Step {
    const Layer* layers;  // (L+1)
    floatX* cache;        // (L,2,B,NH,T,HS)
    const floatX* x;      // (B,C) the embedded tokens
    float* logits;        // (B,Vp)
    const int* positions; // (B)
    unsigned* epochs;     // (CTAs) launches so far; 0 before the first
    Word* words;          // (exchange_words()), zeros before the first launch
    Word* row_keys;       // (B) logit_key of each row's largest logit: raised
    int L, B, T, C, NH, V, Vp;

    // set by plan(): sizes, and offsets in shared memory in bytes
    StageSizes stages[STAGES];
    int CTAs, slots, slot_bytes, sums_bytes, vectors, inverse_B, attention_first, max_chunks, input_row;
    int residual, row_sums, sums, input, parameters, ring, shared;
    size_t copy_words; // stride of the copies of the words
};

// The kernel of a head size. plan() completes a Step for so many CTAs with so much shared memory; false: it is not served
struct Kernel {
    int HS;
    bool (*plan)(Step* p, int CTAs, size_t shared_limit);
    void (*launch)(DeviceCode gpu, Step p, int max_length, cudaStream_t stream);
    size_t (*exchange_words)(int B, int C, int NH, int T);
};

#if !defined(PRECISION_FP32)
using hopper::Mbarrier;
using hopper::shared_address;

constexpr int WARPS = DECODE_WARPS, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + hopper::WARPGROUP_SIZE;
constexpr int CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40;
constexpr int MAX_SLOTS = 32; // of the ring
constexpr int CONSUMER_BARRIER = 1;
constexpr int SUMS_BYTES = 4096;         // of a group of tiles; of one tile even if it has more
constexpr int SLOTS_AT_ONCE = 4;         // that a warp holds in registers
constexpr int MIN_SLOTS = SLOTS_AT_ONCE; // of the ring
constexpr int READ_BEHIND = 256;         // bytes after the ring: a segment with fewer chunks is read past its end
constexpr int COPIES = 4;                // of every word
// Vectors of a row per lane: a row has up to 768 columns with one split, up to 1600 with two
template <int S> constexpr int ROW_SUMS = S == 1 ? 3 : 7;

// The exchanged vectors: x, qkv, attention output, x + attproj, gelu(fc), and (m, l, O) of chunks
__host__ __device__ inline size_t exchange_words_of_rows(int B, int C) { return (size_t)B * C / 2; }
template <class Tiles> inline size_t words_of_a_copy(int B, int C, int NH, int T) {
    size_t partials = (size_t)B * NH * Tiles::num_chunks(T) * (Tiles::HS + 2);
    return 10 * exchange_words_of_rows(B, C) + CEIL_DIV(partials, (size_t)16) * 16;
}
template <class Tiles> inline size_t exchange_words(int B, int C, int NH, int T) {
    return COPIES * words_of_a_copy<Tiles>(B, C, NH, T);
}
// The index of the word of elements e and e + 1 of a row: first the first halves of all vectors of 8 elements, then the second
// halves, so that a warp's 16-byte loads coalesce.
__host__ __device__ inline int word_of(int e, int columns) { return e / 4 % 2 * (columns / 4) + e / 8 * 2 + e / 2 % 2; }

// Iterates over the work of a CTA in attention: chunk c of the keys of head h of sequence b, the first chunks of all heads
// first. They are dealt to the CTAs from the first one that has one tile of attproj fewer.
struct Chunk {
    int head, b, h, c;

    __device__ Chunk(const Step& p) : head((int)blockIdx.x - p.attention_first), c(0) {
        head += head < 0 ? p.CTAs : 0;
        wrap(p);
    }
    __device__ void wrap(const Step& p) {
        for (; head >= p.B * p.NH; c++) { head -= p.B * p.NH; }
        for (b = 0, h = head; h >= p.NH; b++) { h -= p.NH; }
    }
    __device__ bool more(const Step& p) const { return c < p.max_chunks; }
    __device__ void advance(const Step& p) {
        head += p.CTAs;
        wrap(p);
    }
};

template <class Tiles> struct Front { // the beginning of shared memory
    Mbarrier full[MAX_SLOTS], empty[MAX_SLOTS], parameters_full[2], parameters_empty[2];
    split::Shared<Tiles> attention;
    alignas(16) floatX qkv[3][Tiles::HS];
    int positions[MAX_ROWS];
    Chunk first_chunk;
    Word keys[MAX_ROWS];
};

// Chunks of a warp's S segments of up to CHUNKS chunks. Two segments of 3 or 4 have 7 at most: 3 of each, and one more that
// belongs to either.
__host__ __device__ constexpr int chunks_of_each(int S, int CHUNKS) { return S == 2 && CHUNKS == 4 ? 3 : CHUNKS; }
__host__ __device__ constexpr int chunks_of_all(int S, int CHUNKS) {
    return S * chunks_of_each(S, CHUNKS) + (chunks_of_each(S, CHUNKS) < CHUNKS);
}

// Tiles of a CTA: first, first + CTAs, ... The two projections that add to the residual stream assign a tile to the same CTA;
// the other stages are assigned from the last CTA on.
__host__ __device__ inline int first_tile(int stage, int cta, int CTAs) {
    return stage == ATTPROJ || stage == FCPROJ ? cta : CTAs - 1 - cta;
}
__host__ __device__ inline int num_tiles(const StageSizes& s, int first, int CTAs) {
    return s.tiles_each + (first < s.tiles - s.tiles_each * CTAs);
}

// ----------------------------------------------------------------------------
// The kernel. S: splits of a sum over C (decode/matmul.cuh); one over 4C has 4 S, so that a slot always has 8 S segments, of up
// to CHUNKS chunks.

#if defined(HOPPER_DEVICE_CODE)

template <class T> __device__ inline T* shared_at(int offset) {
    extern __shared__ int4 step_shared[];
    return reinterpret_cast<T*>(reinterpret_cast<char*>(step_shared) + offset);
}
template <class Tiles> __device__ inline Front<Tiles>& front() { return *shared_at<Front<Tiles>>(0); }

__device__ inline uint32_t low_half(Word x) { return (uint32_t)x; }
__device__ inline unsigned tag_of(Word x) { return (unsigned)(x >> 32); }
__device__ inline Word tagged(uint32_t bits, unsigned tag) { return (Word)tag << 32 | bits; }
// Each CTA polls one of several copies of a word: too many readers that poll one cache line delay its writer.
__device__ inline void send(const Step& p, Word* to, uint32_t bits, unsigned tag) {
#pragma unroll
    for (int copy = 0; copy < COPIES; copy++) { st_relaxed_gpu(to + copy * p.copy_words, tagged(bits, tag)); }
}
__device__ inline const Word* words_to_read(const Step& p) { return p.words + blockIdx.x % COPIES * p.copy_words; }

// Polls N vectors of 8 elements, whose first halves are at from, from + step, ..., until all words have the tag. half: words
// from the first half of a vector to the second
template <int N> __device__ inline void receive(x128 (&v)[N], const Word* from, int half, int step, unsigned tag) {
    unsigned missing;
    do {
        ulonglong2 low[N], high[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            low[i] = ld_relaxed_gpu_v2(from + i * step), high[i] = ld_relaxed_gpu_v2(from + i * step + half);
        }
        missing = 0;
#pragma unroll
        for (int i = 0; i < N; i++) {
            missing |= (tag_of(low[i].x) ^ tag) | (tag_of(low[i].y) ^ tag);
            missing |= (tag_of(high[i].x) ^ tag) | (tag_of(high[i].y) ^ tag);
            uint4 bits = make_uint4(low_half(low[i].x), low_half(low[i].y), low_half(high[i].x), low_half(high[i].y));
            v[i] = *reinterpret_cast<x128*>(&bits);
        }
    } while (missing);
}

// The state of a consumer or producer: its position in the ring, and the tag of the layer
struct Place {
    int slot, layer, buffer; // buffer: which of the two of sums
    uint32_t parity;
    unsigned tag;
    Word best; // key of the largest logit so far

    __device__ void advance(const Step& p) {
        if (++slot == p.slots) { slot = 0, parity ^= 1; }
    }
};

__device__ inline void consumers_sync() { hopper::bar_sync(CONSUMER_BARRIER, CONSUMERS); }

// The slots of a CTA in the order of use
struct Cursor {
    int layer, stage, tile, part;

    __device__ Cursor(const Step& p)
        : layer(0), stage(p.L > 0 ? QKV : HEAD), tile(first_tile(stage, blockIdx.x, p.CTAs)), part(0) {
        skip(p);
    }
    __device__ bool more(const Step& p) const { return layer <= p.L; }
    __device__ void skip(const Step& p) { // skips stages of which the CTA has no tile
        while (more(p) && tile >= p.stages[stage].tiles) {
            stage = stage == FCPROJ && layer + 1 < p.L ? QKV : stage + 1;
            layer += stage == QKV || stage == HEAD || stage == STAGES;
            tile = stage < STAGES ? first_tile(stage, blockIdx.x, p.CTAs) : 0;
        }
    }
    __device__ void advance(const Step& p) {
        if (++part < p.stages[stage].parts) { return; }
        part = 0, tile += p.CTAs;
        skip(p);
    }
    // Row i of the slot
    __device__ const floatX* row(const Step& p, const floatX* weight, int i) const {
        return weight + ((size_t)(tile * 8 + i) * p.stages[stage].parts + part) * p.C;
    }
};

__device__ inline int tiles_of_cta(const Step& p, int stage) {
    return num_tiles(p.stages[stage], first_tile(stage, blockIdx.x, p.CTAs), p.CTAs);
}

// The producer warp of weights: fills the slots in the order of use. Evict-first: L2 is for the words and the KV cache.
template <class Tiles> __device__ inline void produce(const Step& p, int lane) {
    Place at = {};
    int row = p.C * (int)sizeof(floatX);
    // the matrix of stage lane % HEAD; the next layer's pointer is loaded a layer ahead
    const floatX *weights = p.layers[0].weight[lane % HEAD], *next = p.layers[min(1, p.L)].weight[lane % HEAD];
    for (Cursor cursor(p); cursor.more(p); cursor.advance(p), at.advance(p)) {
        if (cursor.layer != at.layer) {
            at.layer = cursor.layer, weights = next;
            next = p.layers[min(at.layer + 1, p.L)].weight[lane % HEAD];
        }
        const floatX* weight =
            (const floatX*)__shfl_sync(0xffffffffu, (unsigned long long)weights, cursor.stage % HEAD);
        Mbarrier& full = front<Tiles>().full[at.slot];
        uint32_t to = shared_address(shared_at<char>(p.ring + at.slot * p.slot_bytes));
        front<Tiles>().empty[at.slot].wait(at.parity ^ 1);
        if (lane == 0) { full.expect_tx(8 * row); }
        __syncwarp();
        if (cursor.stage != HEAD) {
            to += lane % 8 * p.stages[cursor.stage].row_bytes;
            const floatX* from = cursor.row(p, weight, lane % 8);
            uint64_t policy = hopper::createpolicy_evict_first();
            if (lane < 8) { hopper::cp_async_bulk(to, from, row, full, policy); }
        } else if (lane == 0) { // the rows are contiguous: one copy, because in the head this warp is the bottleneck
            hopper::cp_async_bulk(to, cursor.row(p, weight, 0), 8 * row, full);
        }
    }
}

// The distance from a head's keys to its values in the cache, in elements; and its keys
template <class Tiles> __device__ inline size_t values_after_keys(const Step& p) {
    return (size_t)p.B * p.NH * p.T * Tiles::HS;
}
template <class Tiles> __device__ inline floatX* keys_of(const Step& p, int layer, int b, int h) {
    return p.cache + 2 * layer * values_after_keys<Tiles>(p) + (size_t)(b * p.NH + h) * p.T * Tiles::HS;
}

// The producer warp of parameters: for half a layer (QKV and ATTPROJ, or FC and FCPROJ) LayerNorm's weight and bias (C each),
// then 8 biases for each of the CTA's tiles. Each half has a buffer, refilled as soon as all
// consumers have read it. It also prefetches the cached keys and values of the CTA's chunks into L2, half a layer or more
// before they are read.
template <class Tiles> __device__ inline void produce_parameters(const Step& p, int lane) {
#pragma unroll 1
    for (int i = 0; i <= 2 * p.L; i++) {
        int l = i / 2, half = i % 2, begin = half == 0 ? QKV : FC, end = l < p.L ? begin + 2 : begin;
        const Layer& layer = p.layers[l];
        Mbarrier& full = front<Tiles>().parameters_full[half];
        int row = p.C * (int)sizeof(floatX), bytes = 2 * row;
        for (int stage = begin; stage < end; stage++) { bytes += tiles_of_cta(p, stage) * 8 * (int)sizeof(floatX); }
        uint32_t to = shared_address(shared_at<floatX>(p.parameters) + half * p.vectors);
        front<Tiles>().parameters_empty[half].wait(l % 2 ^ 1);
        if (lane == 0) { full.expect_tx(bytes); }
        __syncwarp();
        if (lane < 2) {
            hopper::cp_async_bulk(to + lane * row, (lane ? layer.norm_bias : layer.norm_weight)[half], row, full);
        }
        to += 2 * row;
        for (int stage = begin; stage < end; stage++) {
            int first = first_tile(stage, blockIdx.x, p.CTAs), count = tiles_of_cta(p, stage);
            constexpr int tile = 8 * (int)sizeof(floatX);
            for (int t = lane; t < count; t += 32) {
                hopper::cp_async_bulk(to + t * tile, layer.bias[stage] + (first + t * p.CTAs) * 8, tile, full);
            }
            to += count * tile;
        }
        if (half == 1) { continue; }
        if (l == 0) { wait_for_previous(); }
        for (Chunk chunk(p); l < p.L && chunk.more(p); chunk.advance(p)) {
            int length = p.positions[chunk.b], first = chunk.c * Tiles::chunk, keys = min(length - first, Tiles::chunk);
            const floatX* k = keys_of<Tiles>(p, l, chunk.b, chunk.h) + (size_t)first * Tiles::HS;
            if (keys > 0 && lane < 2) {
                hopper::cp_async_bulk_prefetch_l2(k + lane * values_after_keys<Tiles>(p),
                                                  keys * Tiles::HS * (int)sizeof(floatX));
            }
        }
    }
}

// A warp's segments of every slot: segments warp * S + k, at most CHUNKS chunks each. A lane receives one vector of them of
// each row.
template <int S, int CHUNKS> struct Segments {
    static constexpr int EACH = chunks_of_each(S, CHUNKS), ALL = chunks_of_all(S, CHUNKS);
    int begin[S], count[S], fourth, vector; // fourth: the one more chunk of chunks_of_all()
    bool mine;                              // whether the lane has a vector
    __device__ Segments(int C, int warp, int lane) {
#pragma unroll
        for (int k = 0; k < S; k++) {
            begin[k] = decode_segment(C, S, warp * S + k);
            count[k] = decode_segment(C, S, warp * S + k + 1) - begin[k];
        }
        fourth = begin[0] + (count[0] == CHUNKS ? EACH : 2 * EACH);
        vector = begin[0] * 4 + lane;
        mine = vector < (begin[S - 1] + count[S - 1]) * 4;
    }
    // Loads 16 bytes of each chunk of a row; where a segment has fewer chunks, from what follows it
    __device__ void load(uint4 (&x)[ALL], const floatX* row) const {
#pragma unroll
        for (int i = 0; i < S * EACH; i++) {
            x[i] = *reinterpret_cast<const uint4*>(row + begin[i / EACH] * DECODE_CHUNK + i % EACH * DECODE_CHUNK);
        }
        if (EACH < CHUNKS) { x[ALL - 1] = *reinterpret_cast<const uint4*>(row + fourth * DECODE_CHUNK); }
    }
};

// The sum of a row's sums of vectors, which are padded with zeros
template <int S> __device__ inline float row_total(const float* sums, int lane) {
    float x[ROW_SUMS<S>], sum = 0.0f;
#pragma unroll
    for (int i = 0; i < ROW_SUMS<S>; i++) { x[i] = sums[lane + 32 * i]; }
#pragma unroll
    for (int i = 0; i < ROW_SUMS<S>; i++) { sum += x[i]; }
    return warp_sum(sum);
}

// LayerNorm of the rows of x into `input`: each warp receives and stores its segments. Every warp computes the full sums by
// itself, in the order of decode/rows.cuh. first: the rows are the embedded tokens.
template <class Tiles, int S, int CHUNKS>
__device__ inline void receive_normalised(const Step& p, Place& at, const Word* words, bool first, const floatX* norm,
                                          const Segments<S, CHUNKS>& segments, int lane) {
    constexpr int ROW = 32 * ROW_SUMS<S>;
    int c = segments.mine ? segments.vector * 8 : 0;
    floatX* input = shared_at<floatX>(p.input) + c;
    float *sums = shared_at<float>(p.row_sums), *squares = sums + p.B * ROW; // of a row's vectors
    float means = 0.0f;                                                      // lane i has that of row i
    const x128 weight = load128(norm + c), bias = load128(norm + p.C + c);
    x128 v[1] = {};
    words += word_of(c, p.C);
#pragma unroll 1
    for (int row = 0; row < p.B && segments.mine; row++, words += p.C / 2) {
        if (first) {
            v[0] = load128(p.x + row * p.C + c);
        } else {
            receive(v, words, p.C / 4, 0, at.tag);
        }
        sums[row * ROW + segments.vector] = decode_row_sum(v[0]);
        if (p.B > 1) { store128(input + row * p.input_row, v[0]); }
    }
    consumers_sync();
#pragma unroll 1
    for (int row = 0; row < p.B; row++) {
        float mean = __fdiv_rn(row_total<S>(sums + row * ROW, lane), (float)p.C);
        means = lane == row ? mean : means;
        if (p.B > 1 && segments.mine) { v[0] = load128(input + row * p.input_row); }
        if (segments.mine) { squares[row * ROW + segments.vector] = decode_row_squares(v[0], mean); }
    }
    consumers_sync();
#pragma unroll 1
    for (int row = 0; row < p.B; row++) {
        float rstd = decode_row_rstd(row_total<S>(squares + row * ROW, lane), p.C);
        float mean = __shfl_sync(0xffffffffu, means, row);
        if (p.B > 1 && segments.mine) { v[0] = load128(input + row * p.input_row); }
        x128 y = decode_row_normalised(v[0], mean, rstd, weight, bias);
        if (segments.mine) { store128(input + row * p.input_row, y); }
    }
    __syncwarp();
}

// Receives rows of PARTS times C elements into `input`: each warp its segments of every part
template <int PARTS, int S, int CHUNKS> __device__ inline void
receive_rows(const Step& p, const Place& at, const Word* words, const Segments<S, CHUNKS>& segments) {
    floatX* to = shared_at<floatX>(p.input) + segments.vector * 8;
    words += segments.vector * 2;
#pragma unroll 1
    for (int row = 0; row < p.B && segments.mine; row++, words += PARTS * p.C / 2, to += p.input_row) {
        x128 v[PARTS];
        receive(v, words, PARTS * p.C / 4, p.C / 4, at.tag);
#pragma unroll
        for (int part = 0; part < PARTS; part++) { store128(to + part * p.C, v[part]); }
    }
    __syncwarp();
}

// What a warp multiplies at once: its segments of `count` slots. The weights are the m16 operand of mma.sync, rows 0 to 7 from
// slot 2j and rows 8 to 15 from slot 2j + 1; columns 0 to 3 of the n8 operand are the sequences for the first slot, 4 to 7 for
// the second.
template <class Tiles, int S, int CHUNKS> struct Slots {
    static constexpr int MOST = SLOTS_AT_ONCE, PAIRS = MOST / 2;
    static constexpr int EACH = Segments<S, CHUNKS>::EACH, ALL = Segments<S, CHUNKS>::ALL;
    int count;
    uint4 w[PAIRS][ALL][2]; // the halves of a chunk

    // Waits for up to MOST slots, loads them into registers, and releases them
    __device__ void load(const Step& p, Place& at, const Segments<S, CHUNKS>& segments, int slots, int row_bytes,
                         int lane) {
        count = min(slots, MOST);
        int row = p.ring + lane / 4 * row_bytes + lane % 4 * 16;
        Place last = at;
#pragma unroll
        for (int j = 0; j < PAIRS; j++) {
            uint4 x[2][ALL];
#pragma unroll
            for (int i = 0; i < 2; i++) { // from `count` on the last slot is loaded again
                if (2 * j + i < count) { front<Tiles>().full[last.slot].wait(last.parity); }
                segments.load(x[i], shared_at<const floatX>(row + last.slot * p.slot_bytes));
                if (2 * j + i + 1 < count) { last.advance(p); }
            }
#pragma unroll
            for (int u = 0; u < ALL; u++) {
                const uint4 a = x[0][u], b = x[1][u];
                w[j][u][0] = make_uint4(a.x, b.x, a.y, b.y);
                w[j][u][1] = make_uint4(a.z, b.z, a.w, b.w);
            }
        }
        hopper::fence_proxy_async(); // then lane i arrives for slot i, as Mbarrier::release_warp does
        __syncwarp();
#pragma unroll
        for (int i = lane; i < MOST * hopper::WARP_ARRIVALS; i += 32) {
            int slot = at.slot + i / hopper::WARP_ARRIVALS;
            slot -= slot < p.slots ? 0 : p.slots;
            if (i < count * hopper::WARP_ARRIVALS) { front<Tiles>().empty[slot].arrive(); }
        }
        at.slot += count;
        if (at.slot >= p.slots) { at.slot -= p.slots, at.parity ^= 1; }
    }
    __device__ static void multiply_chunk(float (&d)[4], const uint4 (&w)[2], const uint4& x, int half) {
        const uint32_t rows[4] = {w[half].x, w[half].y, w[half].z, w[half].w};
        mma::mma_m16n8k16(d, rows, half ? x.z : x.x, half ? x.w : x.y);
    }
    // d += w x of the first P pairs. Consecutive MMAs have different accumulators, so none waits for the one before. x_row: the
    // row of `input` of the lane's column
    template <int P> __device__ void multiply_pairs(const Step& p, float (&d)[PAIRS][S][4],
                                                    const Segments<S, CHUNKS>& segments, const floatX* x_row,
                                                    int first_part, int parts) const {
        uint4 x[P][ALL];
#pragma unroll
        for (int j = 0; j < P; j++) { segments.load(x[j], x_row + ((first_part + 2 * j) & (parts - 1)) * p.C); }
#pragma unroll
        for (int u = 0; u < EACH; u++) {
#pragma unroll
            for (int i = 0; i < 2 * S * P; i++) {
                int half = i / (S * P), k = i / P % S, j = i % P, chunk = k * EACH + u;
                if (EACH == CHUNKS && u > 0 && u >= segments.count[k]) { continue; }
                multiply_chunk(d[j][k], w[j][chunk], x[j][chunk], half);
            }
        }
#pragma unroll
        for (int k = 0; EACH < CHUNKS && k < S; k++) {
            if (segments.count[k] < CHUNKS) { continue; }
#pragma unroll
            for (int i = 0; i < 2 * P; i++) {
                multiply_chunk(d[i % P][k], w[i % P][ALL - 1], x[i % P][ALL - 1], i / P);
            }
        }
    }
    // Multiplies, and stores to sums (slots, S, B, WARPS, 8). first: index of these slots in the group of tiles
    __device__ void multiply(const Step& p, Place& at, float* sums, const Segments<S, CHUNKS>& segments, int first,
                             int parts, int warp, int lane) const {
        int r = lane / 4, q = lane % 4;
        const floatX* row = shared_at<const floatX>(p.input) + min(r % 4, p.B - 1) * p.input_row + q * 8;
        float d[PAIRS][S][4] = {};
        if (count <= 2) {
            multiply_pairs<1>(p, d, segments, row, first + r / 4, parts);
        } else {
            multiply_pairs<PAIRS>(p, d, segments, row, first + r / 4, parts);
        }
        int sequence = q % 2 * 2, slot = q / 2, segment = warp * S;
        sums += ((segment / WARPS + slot * S) * p.B + sequence) * WARPS * 8 + segment % WARPS * 8 + r;
#pragma unroll
        for (int i = 0; i < PAIRS * S; i++) {
            int j = i / S, k = i % S;
            float* to = sums + 2 * j * S * p.B * WARPS * 8 + k * 8;
            bool valid = 2 * j + slot < count;
            if (valid && sequence < p.B) { to[0] = slot ? d[j][k][2] : d[j][k][0]; }
            if (valid && sequence + 1 < p.B) { to[WARPS * 8] = slot ? d[j][k][3] : d[j][k][1]; }
        }
    }
};

// Two neighbouring outputs, of which a thread sums one split; the thread of the first split adds the others' sums
struct Pair {
    bool valid, first;
    int sums, row, o; // offset of its segments' sums; row and column of the output
    float *residual, bias[2];
    Word* to;
};

// The pair of a thread, of (tiles, B, 4) pairs with a thread for each split; first: index of the first tile
__device__ inline Pair pair_of(const Step& p, int stage, const StageSizes& s, int tiles, int first,
                               const floatX* biases, float* residual, int thread) {
    int split = thread & (s.splits - 1), j = thread >> (31 - __clz(s.splits)), column = j % 4 * 2;
    int tile = (j / 4 * p.inverse_B) >> 16;
    Pair x;
    x.row = j / 4 - tile * p.B;
    x.valid = tile < tiles, x.first = x.valid && split == 0;
    x.sums = ((tile * s.splits + split) * p.B + x.row) * WARPS * 8 + column;
    x.o = (first + tile * p.CTAs) * 8 + column;
    x.residual = residual + (tile * p.B + x.row) * 8 + column;
    const bool biased = x.valid && stage != HEAD;
    for (int k = 0; k < 2; k++) { x.bias[k] = biased ? (float)biases[tile * 8 + column + k] : 0.0f; }
    x.to = p.words + s.output + x.row * (s.OC / 2) + word_of(x.o, s.OC);
    return x;
}

// Finishes a pair of outputs, rounded where the training's forward pass rounds, and sends it; or, of the head, stores the
// logits in fp32
template <class Tiles> __device__ inline void publish(const Step& p, Place& at, int stage, const Pair& x, float2 sum) {
    const float y[2] = {sum.x + x.bias[0], sum.y + x.bias[1]};
    floatX z[2];
    if (stage == HEAD) {
        float* out = p.logits + (size_t)x.row * p.Vp + x.o;
        if (front<Tiles>().positions[x.row] < 0) { return; }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (x.o + k >= p.V) { continue; }
            out[k] = y[k];
            Word key = logit_key(y[k], x.o + k);
            at.best = key > at.best ? key : at.best;
        }
        return;
    }
    z[0] = (floatX)y[0], z[1] = (floatX)y[1];
    if (stage == FC) { // both at once: their latencies overlap
#pragma unroll
        for (int k = 0; k < 2; k++) { z[k] = (floatX)gelu((float)z[k], gelu_sigma((float)z[k])); }
    }
    if (stage == ATTPROJ || stage == FCPROJ) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            z[k] = (floatX)(x.residual[k] + (float)z[k]);
            x.residual[k] = (float)z[k];
        }
    }
    uint32_t bits = (uint32_t)__bfloat16_as_ushort(z[0]) | (uint32_t)__bfloat16_as_ushort(z[1]) << 16;
    send(p, x.to, bits, at.tag + (stage == FCPROJ));
}

// The lane's sum plus those of the next SPLITS - 1 lanes
template <int SPLITS> __device__ inline float2 sum_of_splits(float2 sum) {
    float2 others[SPLITS], total = sum;
#pragma unroll
    for (int k = 1; k < SPLITS; k++) {
        others[k] = make_float2(__shfl_down_sync(0xffffffffu, sum.x, k), __shfl_down_sync(0xffffffffu, sum.y, k));
    }
#pragma unroll
    for (int k = 1; k < SPLITS; k++) { total.x += others[k].x, total.y += others[k].y; }
    return total;
}

// The linear layer of a stage: receives its input, multiplies the CTA's tiles, and publishes the outputs
template <class Tiles, int S, int CHUNKS>
__device__ inline void linear(const Step& p, Place& at, int stage, const Segments<S, CHUNKS>& segments, int thread) {
    const StageSizes& s = p.stages[stage];
    const Word* words = words_to_read(p) + s.input;
    const bool second = stage == ATTPROJ || stage == FCPROJ; // of half a layer
    const int half = stage == FC || stage == FCPROJ;
    int first = first_tile(stage, blockIdx.x, p.CTAs), count = tiles_of_cta(p, stage);
    int warp = thread / 32, lane = thread % 32;
    front<Tiles>().parameters_full[half].wait(at.layer % 2);
    const floatX* norm = shared_at<floatX>(p.parameters) + half * p.vectors;
    const floatX* biases = norm + 2 * p.C + (second ? 8 * tiles_of_cta(p, stage - 1) : 0);
#pragma unroll 1
    for (int begin = 0; begin < count; begin += s.group, at.buffer ^= 1) {
        int tiles = min(s.group, count - begin), slots = tiles * s.parts;
        float* sums = shared_at<float>(p.sums + at.buffer * p.sums_bytes);
        const Pair pair = pair_of(p, stage, s, tiles, first + begin * p.CTAs, biases + begin * 8,
                                  shared_at<float>(p.residual) + begin * p.B * 8, thread);
#pragma unroll 1
        for (int i = 0; i < slots; i += Slots<Tiles, S, CHUNKS>::MOST) {
            Slots<Tiles, S, CHUNKS> some;
            some.load(p, at, segments, slots - i, s.row_bytes, lane);
            if (begin + i == 0) {
                if (stage == ATTPROJ) {
                    receive_rows<1>(p, at, words, segments);
                } else if (stage == FCPROJ) {
                    receive_rows<4>(p, at, words, segments);
                } else {
                    receive_normalised<Tiles>(p, at, words, at.layer == 0 && stage == QKV, norm, segments, lane);
                }
            }
            some.multiply(p, at, sums + i * S * p.B * WARPS * 8, segments, i, s.parts, warp, lane);
        }
        consumers_sync();
        float2 sum = make_float2(0.0f, 0.0f);
        if (pair.valid) {
            float x[WARPS], y[WARPS];
#pragma unroll
            for (int w = 0; w < WARPS; w++) {
                const float2 of_segment = *reinterpret_cast<const float2*>(sums + pair.sums + w * 8);
                x[w] = of_segment.x, y[w] = of_segment.y;
            }
            sum = make_float2(decode_split_sum(x), decode_split_sum(y));
        }
        const float2 total = s.parts == 1 ? sum_of_splits<S>(sum) : sum_of_splits<4 * S>(sum);
        if (pair.first) { publish<Tiles>(p, at, stage, pair, total); }
    }
    if (second) { front<Tiles>().parameters_empty[half].release_warp(lane); }
}

// Reads (m, l, O) of a chunk from its words, for split::read_partials
struct PartialWords {
    const Word* words; // of the head: (chunks, HS + 2), O first
    unsigned tag;
    int HS;
    __device__ void operator()(int c, int d, float2& statistics, float4& O) const {
        const Word* from = words + (size_t)c * (HS + 2);
        ulonglong2 a, b, s;
        do {
            a = ld_relaxed_gpu_v2(from + d), b = ld_relaxed_gpu_v2(from + d + 2), s = ld_relaxed_gpu_v2(from + HS);
        } while (a.x >> 32 != tag || a.y >> 32 != tag || b.x >> 32 != tag || b.y >> 32 != tag || s.x >> 32 != tag ||
                 s.y >> 32 != tag);
        statistics = make_float2(__uint_as_float(low_half(s.x)), __uint_as_float(low_half(s.y)));
        O = make_float4(__uint_as_float(low_half(a.x)), __uint_as_float(low_half(a.y)), __uint_as_float(low_half(b.x)),
                        __uint_as_float(low_half(b.y)));
    }
};

// Attention over one chunk of a head of a sequence. The CTA of a head's last chunk merges all of them. No deadlock: it waits
// only for earlier chunks of the head, and every CTA takes its chunks in ascending order.
template <class Tiles> __device__ inline void attend_chunk(const Step& p, Place& at, int b, int h, int c, int thread) {
    constexpr int HS = Tiles::HS;
    split::Shared<Tiles>& shared = front<Tiles>().attention;
    const int length = front<Tiles>().positions[b], warp = thread / 32, lane = thread % 32, d = thread;
    const int chunks = Tiles::num_chunks(length + 1), max_chunks = Tiles::num_chunks(p.T);
    const bool last = c == chunks - 1;
    const size_t words = exchange_words_of_rows(p.B, p.C);
    const float exponent = rsqrtf((float)HS) * LOG2_E;
    Word* out = p.words + p.stages[ATTPROJ].input + b * (p.C / 2) + word_of(h * HS + d, p.C);
    const Word* qkv = words_to_read(p) + p.stages[QKV].output + b * (3 * p.C / 2);
    // An inactive sequence: its words of qkv must be waited for all the same, before the next vector is published.
    if (length < 0 && c == 0 && d < HS && d % 2 == 0) {
        x128 vector[1];
        receive(vector, qkv + word_of(h * HS + d / 8 * 8, 3 * p.C), 3 * p.C / 4, 0, at.tag);
        send(p, out, 0, at.tag);
    }
    if (length < c * Tiles::chunk) { return; }

    floatX *k = keys_of<Tiles>(p, at.layer, b, h), *v = k + values_after_keys<Tiles>(p);
    split::Words K[Tiles::steps][Tiles::vectors], V[Tiles::steps][Tiles::vectors];
    split::load_rows<Tiles>(K, k, c, warp, lane, length);
    split::load_rows<Tiles>(V, v, c, warp, lane, length);
    if (d < 3 * HS / 8) { // q, k and v of the new token
        x128 vector[1];
        int tensor = d / (HS / 8), e = d % (HS / 8) * 8;
        receive(vector, qkv + word_of(tensor * p.C + h * HS + e, 3 * p.C), 3 * p.C / 4, 0, at.tag);
        store128(&front<Tiles>().qkv[tensor][e], vector[0]);
    }
    consumers_sync();
    const floatX *q = front<Tiles>().qkv[0], *new_k = front<Tiles>().qkv[1], *new_v = front<Tiles>().qkv[2];
    if (last && warp == Tiles::warps - 1) {
        const int64_t row = (int64_t)length * HS;
        split::NewToken<Tiles> token;
        token.load(q, new_k, new_v, lane);
        token.attend(shared, k + row, v + row, lane);
    }
    split::Words Q[Tiles::vectors];
    split::load_query<Tiles>(Q, q, lane);
    split::attend_rows<Tiles>(shared, split::RegisterRows<Tiles>{K, V}, Q, c, warp, lane, length, exponent);
    consumers_sync();
    split::Merged x = {};
    if (d < HS) { x = split::merge_rows<Tiles, WARPS + 1>(shared, WARPS + last, d, exponent); }
    if (chunks > 1) {
        Word* partials = p.words + 10 * words + ((size_t)b * p.NH + h) * max_chunks * (HS + 2);
        Word* mine = partials + (size_t)c * (HS + 2);
        if (d < HS) { st_relaxed_gpu(mine + d, tagged(__float_as_uint(x.O), at.tag)); }
        if (d < 2) { st_relaxed_gpu(mine + HS + d, tagged(__float_as_uint(d == 0 ? x.m : x.l), at.tag)); }
        consumers_sync(); // the rows have been read
        if (!last) { return; }
        split::read_partials<Tiles>(shared, PartialWords{partials, at.tag, HS}, chunks, exponent);
        consumers_sync();
        if (d < HS) { x = split::merge_rows<Tiles>(shared, Tiles::parts, d, exponent); }
    }
    floatX y = (floatX)(x.O / x.l);
    uint32_t low = __bfloat16_as_ushort(y), high = __shfl_down_sync(0xffffffffu, low, 1);
    if (d < HS && d % 2 == 0) { send(p, out, low | high << 16, at.tag); }
    consumers_sync(); // the shared memory is free again
}

template <class Tiles, int S, int CHUNKS> __device__ inline void consume(const Step& p, int thread) {
    const Segments<S, CHUNKS> segments(p.C, thread / 32, thread % 32);
    int first = first_tile(ATTPROJ, blockIdx.x, p.CTAs);
    for (int i = thread; i < 2 * p.B * 32 * ROW_SUMS<S>; i += CONSUMERS) { shared_at<float>(p.row_sums)[i] = 0.0f; }
    if (thread == 0) { front<Tiles>().first_chunk = Chunk(p); }
    wait_for_previous();
    unsigned epoch = p.epochs[blockIdx.x];
    Place at = {};
    at.tag = epoch * (unsigned)(p.L + 1) + 1;
    if (thread < p.B) { front<Tiles>().positions[thread] = p.positions[thread], front<Tiles>().keys[thread] = 0; }
    for (int i = thread; i < num_tiles(p.stages[ATTPROJ], first, p.CTAs) * p.B; i += CONSUMERS) {
        x128 x = load128(p.x + i % p.B * p.C + (first + i / p.B * p.CTAs) * 8);
        for (int k = 0; k < 8; k++) { shared_at<float>(p.residual)[i * 8 + k] = (float)x[k]; }
    }
    consumers_sync();
#pragma unroll 1
    for (; at.layer <= p.L; at.layer++, at.tag++) {
        bool last = at.layer == p.L;
#pragma unroll 1
        for (int stage = last ? HEAD : QKV; stage < (last ? STAGES : HEAD); stage++) {
            linear<Tiles, S, CHUNKS>(p, at, stage, segments, thread);
            if (stage != QKV) { continue; }
#pragma unroll 1
            for (Chunk chunk = front<Tiles>().first_chunk; chunk.more(p); chunk.advance(p)) {
                attend_chunk<Tiles>(p, at, chunk.b, chunk.h, chunk.c, thread);
            }
        }
    }
    int j = thread / (4 * S), mine = j - ((j * p.inverse_B) >> 16) * p.B; // all of a thread's pairs are in this row
#pragma unroll 1
    for (int row = 0; row < p.B; row++) {
        Word key = sample_warp_max(row == mine ? at.best : 0);
        if (thread % 32 == 0) { atomicMax(&front<Tiles>().keys[row], key); }
    }
    consumers_sync();
    if (thread < p.B && front<Tiles>().keys[thread] != 0) {
        atomicMax(&p.row_keys[thread], front<Tiles>().keys[thread]);
    }
    if (thread == 0) { p.epochs[blockIdx.x] = epoch + 1; }
}

#endif // HOPPER_DEVICE_CODE

template <class Tiles, int S, int CHUNKS> __global__ void __launch_bounds__(THREADS, 1)
    decode_step_kernel(const __grid_constant__ Step p) {
#if defined(HOPPER_DEVICE_CODE)
    int thread = threadIdx.x;
    if (thread == 0) {
        for (int i = 0; i < p.slots; i++) {
            front<Tiles>().full[i].init(1);
            front<Tiles>().empty[i].init(WARPS * hopper::WARP_ARRIVALS);
        }
        for (int i = 0; i < 2; i++) {
            front<Tiles>().parameters_full[i].init(1);
            front<Tiles>().parameters_empty[i].init(WARPS * hopper::WARP_ARRIVALS);
        }
        hopper::fence_mbarrier_init();
    }
    __syncthreads();
    if (thread < CONSUMERS) {
        hopper::setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume<Tiles, S, CHUNKS>(p, thread);
    } else {
        hopper::setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (thread < CONSUMERS + 32) {
            produce<Tiles>(p, thread - CONSUMERS);
        } else if (thread < CONSUMERS + 64) {
            produce_parameters<Tiles>(p, thread - CONSUMERS - 32);
        }
    }
#endif
}

// ----------------------------------------------------------------------------
// The launcher

// Completes p's sizes for so many CTAs with so many bytes of shared memory each. False where the model is not served.
template <class Tiles> static inline bool plan(Step* p, int CTAs, size_t shared_limit) {
    const int OC[STAGES] = {3 * p->C, p->C, 4 * p->C, p->C, p->V};
    int S = decode_splits(p->C);
    if (p->B > MAX_ROWS || CTAs > MAX_CTAS || p->C % DECODE_CHUNK != 0) { return false; }
    if (S > 2 || decode_splits(4 * p->C) != 4 * S) { return false; } // C is 416 to 1600,
    if (S == 1 && p->C > 8 * 32 * ROW_SUMS<1>) { return false; }     // but not 800
    if (CEIL_DIV(p->V, 8) * 8 > p->Vp) { return false; }
    p->CTAs = CTAs, p->sums_bytes = 0, p->vectors = 0, p->inverse_B = 65536 / p->B + 1;
    const int row_words = (int)exchange_words_of_rows(p->B, p->C), inputs[STAGES] = {0, 4, 5, 6, 0},
              outputs[STAGES] = {1, 5, 6, 0, 0};
    p->copy_words = words_of_a_copy<Tiles>(p->B, p->C, p->NH, p->T);
    for (int stage = 0; stage < STAGES; stage++) {
        int parts = stage == FCPROJ ? 4 : 1, splits = parts * S, tiles = CEIL_DIV(OC[stage], 8);
        int tile_bytes = WARPS * splits * p->B * 8 * (int)sizeof(float), group = CEIL_DIV(tiles, CTAs);
        if (stage == ATTPROJ || stage == FCPROJ) { // half a layer: LayerNorm's weights, parameters of two stages
            int before = CEIL_DIV(p->stages[stage - 1].tiles, CTAs);
            int vectors = 2 * p->C + 8 * (group + before);
            p->vectors = vectors > p->vectors ? vectors : p->vectors;
        }
        group = group * tile_bytes > SUMS_BYTES ? SUMS_BYTES / tile_bytes : group;
        group = group < 1 ? 1 : group;
        p->stages[stage] = {
            OC[stage], tiles, tiles / CTAs, parts, splits, group, inputs[stage] * row_words, outputs[stage] * row_words,
            0};
        p->sums_bytes = group * tile_bytes > p->sums_bytes ? group * tile_bytes : p->sums_bytes;
    }
    const int row = p->C * (int)sizeof(floatX), padded = row + (row % 128 == 0 ? 64 : 0); // rows on different banks
    for (StageSizes& s : p->stages) { s.row_bytes = &s == &p->stages[HEAD] ? row : padded; }
    p->slot_bytes = 8 * padded;
    p->residual = CEIL_DIV((int)sizeof(Front<Tiles>), 16) * 16;
    p->row_sums = p->residual + CEIL_DIV(p->stages[ATTPROJ].tiles, CTAs) * p->B * 8 * (int)sizeof(float);
    p->sums = p->row_sums + 2 * p->B * 32 * (S == 1 ? ROW_SUMS<1> : ROW_SUMS<2>)*(int)sizeof(float);
    p->attention_first = p->stages[ATTPROJ].tiles % CTAs;
    p->input = p->sums + 2 * p->sums_bytes;
    p->input_row = 4 * p->C + 32; // rows on different banks
    p->parameters = p->input + p->B * p->input_row * (int)sizeof(floatX);
    p->ring = CEIL_DIV(p->parameters + 2 * p->vectors * (int)sizeof(floatX), 128) * 128;
    p->slots = ((int)shared_limit - p->ring - READ_BEHIND) / p->slot_bytes;
    p->slots = p->slots < MAX_SLOTS ? p->slots : MAX_SLOTS;
    p->shared = p->ring + p->slots * p->slot_bytes + READ_BEHIND;
    return p->slots >= MIN_SLOTS;
}

// Cooperative: otherwise two such kernels, on two streams or of two processes under MPS, could get half of the SMs each and
// deadlock.
template <class Tiles> static inline void launch(DeviceCode gpu, Step p, int max_length, cudaStream_t stream) {
    bool one = decode_splits(p.C) == 1, few = decode_most_chunks(p.C) <= 3;
    auto kernel = one   ? decode_step_kernel<Tiles, 1, 3>
                  : few ? decode_step_kernel<Tiles, 2, 3>
                        : decode_step_kernel<Tiles, 2, 4>;
    p.max_chunks = Tiles::num_chunks(max_length);
    launch_dependent(gpu, kernel, (unsigned)p.CTAs, THREADS, (size_t)p.shared, WHOLE_GRID, stream, p);
}

template <int HS> constexpr Kernel kernel_of() {
    typedef typename split::Serving<HS>::Tiles Tiles;
    static_assert(Tiles::warps == WARPS, "the consumers attend, too");
    return {HS, plan<Tiles>, launch<Tiles>, exchange_words<Tiles>};
}
extern const Variants<Kernel> kernels;
#ifdef DECODE_KERNELS
static constexpr Kernel kernel_table[] = {kernel_of<32>(), kernel_of<64>(), kernel_of<96>(), kernel_of<128>()};
constexpr Variants<Kernel> kernels(kernel_table);
#endif
#endif

// The kernel for B sequences, or nullptr if a step takes several kernels
static inline const Kernel* choice(int B, int HS) {
#if !defined(PRECISION_FP32)
    if (B > MAX_ROWS) { return nullptr; }
    for (const Kernel& kernel : kernels) {
        if (kernel.HS == HS) { return &kernel; }
    }
#endif
    (void)B, (void)HS;
    return nullptr;
}

} // namespace decode_step

#endif
