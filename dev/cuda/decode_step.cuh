/*
A step of the decoder in one kernel, for a few sequences: all layers of one token each, and the head. sm_90a, 16 bit.

One CTA on each SM, all at once. A producer warp copies the CTA's rows of every matrix, in the order of use, by TMA into a ring
of slots (full, empty): it waits for no activation, so the memory does not rest between layers. Eight warps multiply as
decode_matmul.cuh says and attend with the functions of attention_decode_split.cu: the same sums in the same order, the same
bits.

CTAs exchange vectors as words of 8 bytes, two elements and the tag of the layer and step, which their readers poll: no barrier,
no fence, no flag beside the data (as NCCL's LL protocol). Each of these begins when all of the one before it is there:
    x -> qkv -> attention output -> x + attproj -> gelu(fc) -> x of the next layer
A word is overwritten a layer later. By then all have read it, as whoever reads a vector publishes a part of a later one after
that, and whoever publishes has waited for the vector before it, also where it has nothing to add.
*/
#ifndef DECODE_STEP_CUH
#define DECODE_STEP_CUH

#include "decode.cuh"
#include "llmc/decode_matmul.cuh"
#if !defined(PRECISION_FP32)
#include "attention_decode_split.cu"
#include "llmc/hopper.cuh"
#endif

namespace decode_step {

typedef unsigned long long Word;

constexpr int MAX_ROWS = 3;   // sequences; more are faster in several kernels, up to 8 would fit an MMA's operand
constexpr int MAX_CTAS = 512; // more than any GPU has SMs

enum Stage { QKV, ATTPROJ, FC, FCPROJ, HEAD, STAGES };

// The weights of a layer; the one behind the last has the head as QKV.
struct Layer {
    const floatX *norm_weight[2], *norm_bias[2]; // of QKV and FC
    const floatX *weight[HEAD], *bias[HEAD];
};

// How a stage's (OC, parts * C) matrix is cut: tiles of 8 rows, a slot has C columns of one.
struct StageSizes {
    int OC, tiles, parts, splits, group; // group: tiles whose sums fit at once
};

struct Step {
    const Layer* layers;  // (L+1)
    floatX* cache;        // (L,2,B,NH,T,HS)
    const floatX* x;      // (B,C) the embedded tokens
    floatX* logits;       // (B,Vp)
    const int* positions; // (B)
    unsigned* epochs;     // (CTAs) launches so far; 0 before the first
    Word* words;          // exchange_words of them, 0 before the first
    int L, B, T, C, NH, V, Vp, max_length;

    // set by plan(): bytes of shared memory, and where its parts begin
    StageSizes stages[STAGES];
    int CTAs, slots, slot_bytes, row_bytes, sums_bytes, vectors;
    int residual, row_sums, sums, input, parameters, ring, shared;
    size_t copy_words; // from a copy of the words to the next
};

// How a head size is served: plan() completes a Step for so many CTAs with so much shared memory, or says that it is not served
struct Kernel {
    int HS;
    bool (*plan)(Step* p, int CTAs, size_t shared_limit);
    void (*launch)(LaunchGpu gpu, const Step& p, cudaStream_t stream);
    size_t (*exchange_words)(int B, int C, int NH, int T);
};

#if !defined(PRECISION_FP32)
using hopper::Mbarrier;
using hopper::shared_address;

constexpr int WARPS = DECODE_WARPS, CONSUMERS = 32 * WARPS, THREADS = CONSUMERS + hopper::WARPGROUP_SIZE;
constexpr int CONSUMER_REGISTERS = 232, PRODUCER_REGISTERS = 40;
constexpr int MAX_SLOTS = 32; // of the ring
constexpr int MIN_SLOTS = 4;
constexpr int CONSUMER_BARRIER = 1;
constexpr int SUMS_BYTES = 8192; // of a group of tiles: 128 pairs of outputs; or those of one tile
constexpr int MAX_CHUNKS = 4;    // of a segment
constexpr int WORD_GROUP = 128;  // words of 32 vectors
constexpr int COPIES = 4;        // of every word

// What is exchanged: x, qkv, attention output, x + attproj, gelu(fc), and (m, l, O) of chunks
__host__ __device__ inline size_t exchange_words_of_rows(int B, int C) {
    return CEIL_DIV((size_t)B * C, (size_t)2 * WORD_GROUP) * WORD_GROUP;
}
template <class Tiles> inline size_t words_of_a_copy(int B, int C, int NH, int T) {
    size_t partials = (size_t)B * NH * Tiles::num_chunks(T) * (Tiles::HS + 2);
    return 10 * exchange_words_of_rows(B, C) + CEIL_DIV(partials, (size_t)WORD_GROUP) * WORD_GROUP;
}
template <class Tiles> inline size_t exchange_words(int B, int C, int NH, int T) {
    return COPIES * words_of_a_copy<Tiles>(B, C, NH, T);
}
// Where the word of elements e and e + 1 is: in a group of 32 vectors the first halves of the vectors, then the second ones, so
// that a warp's loads of 16 bytes are of neighbours.
__host__ __device__ inline int word_of(int e) {
    return e / (2 * WORD_GROUP) * WORD_GROUP + e / 4 % 2 * (WORD_GROUP / 2) + e / 8 % 32 * 2 + e / 2 % 2;
}

template <class Tiles> struct Front { // of the shared memory
    Mbarrier full[MAX_SLOTS], empty[MAX_SLOTS];
    split::Shared<Tiles> attention;
    alignas(16) floatX qkv[3][Tiles::HS];
    int positions[MAX_ROWS];
    float statistics[2][MAX_ROWS]; // mean and rstd of a row
};

// Tiles of a CTA: first, first + CTAs, ... The two projections of the residual stream give a tile to the same CTA, the others
// begin at the other end.
__host__ __device__ inline int first_tile(int stage, int cta, int CTAs) {
    return stage == ATTPROJ || stage == FCPROJ ? cta : CTAs - 1 - cta;
}
__host__ __device__ inline int num_tiles(int tiles, int first, int CTAs) {
    return first < tiles ? (tiles - 1 - first) / CTAs + 1 : 0;
}

// ----------------------------------------------------------------------------
// The kernel. S: splits of a sum over C (decode_matmul.cuh); one over 4C has 4 S, so that a slot always has 8 S segments.

#if defined(HOPPER_DEVICE_CODE)

template <class T> __device__ inline T* shared_at(int offset) {
    extern __shared__ int4 step_shared[];
    return reinterpret_cast<T*>(reinterpret_cast<char*>(step_shared) + offset);
}
template <class Tiles> __device__ inline Front<Tiles>& front() { return *shared_at<Front<Tiles>>(0); }

__device__ inline uint32_t low_half(Word x) { return (uint32_t)x; }
__device__ inline Word tagged(uint32_t bits, unsigned tag) { return (Word)tag << 32 | bits; }
// Every word has copies, and a CTA reads one of them: too many readers of a line hold up its writer.
__device__ inline void send(const Step& p, Word* to, uint32_t bits, unsigned tag) {
#pragma unroll
    for (int copy = 0; copy < COPIES; copy++) { st_relaxed_gpu(to + copy * p.copy_words, tagged(bits, tag)); }
}
__device__ inline const Word* words_to_read(const Step& p) { return p.words + blockIdx.x % COPIES * p.copy_words; }

// Vectors of 8 elements that begin at first, first + step, ... < end, as soon as all of them have the tag
template <int N>
__device__ inline void receive(x128 (&v)[N], const Word* words, unsigned tag, int first, int step, int end) {
    bool missing = first < end;
    while (missing) {
        ulonglong2 low[N], high[N];
#pragma unroll
        for (int i = 0; i < N; i++) {
            const Word* from = words + word_of(first + i * step < end ? first + i * step : first);
            low[i] = ld_relaxed_gpu_v2(from), high[i] = ld_relaxed_gpu_v2(from + WORD_GROUP / 2);
        }
        missing = false;
#pragma unroll
        for (int i = 0; i < N; i++) {
            missing |=
                low[i].x >> 32 != tag || low[i].y >> 32 != tag || high[i].x >> 32 != tag || high[i].y >> 32 != tag;
            uint4 bits = make_uint4(low_half(low[i].x), low_half(low[i].y), low_half(high[i].x), low_half(high[i].y));
            v[i] = *reinterpret_cast<x128*>(&bits);
        }
    }
}

// A consumer, or a producer: its place in the ring, and the tag of the layer
struct Place {
    int slot, layer;
    uint32_t parity;
    unsigned tag;

    __device__ void advance(const Step& p) {
        if (++slot == p.slots) { slot = 0, parity ^= 1; }
    }
};

__device__ inline void consumers_sync() { hopper::bar_sync(CONSUMER_BARRIER, CONSUMERS); }

template <class Tiles> __device__ inline void produce(const Step& p, int lane) {
    Place at = {};
    for (int l = 0; l <= p.L; l++) {
        for (int stage = l < p.L ? QKV : HEAD; stage < (l < p.L ? HEAD : STAGES); stage++) {
            const StageSizes s = p.stages[stage];
            const floatX* weight = p.layers[l].weight[stage % HEAD];
            for (int tile = first_tile(stage, blockIdx.x, p.CTAs); tile < s.tiles; tile += p.CTAs) {
                const floatX* row = weight + (size_t)min(tile * 8 + lane % 8, s.OC - 1) * s.parts * p.C;
                for (int part = 0; part < s.parts; part++, at.advance(p)) {
                    Mbarrier& full = front<Tiles>().full[at.slot];
                    front<Tiles>().empty[at.slot].wait(at.parity ^ 1);
                    if (lane == 0) { full.expect_tx(8 * p.C * (int)sizeof(floatX)); }
                    __syncwarp();
                    if (lane < 8) {
                        char* to = shared_at<char>(p.ring + at.slot * p.slot_bytes + lane * p.row_bytes);
                        hopper::cp_async_bulk(shared_address(to), row + part * p.C, p.C * (int)sizeof(floatX), full);
                    }
                }
            }
        }
    }
}

// Biases and LayerNorm's weights of a layer that the CTA needs: 2 (weight, bias) of C, then 8 biases for each of its tiles
__device__ inline void load_parameters(floatX* to, const Step& p, int l, int thread) {
    const Layer& layer = p.layers[l];
    int row = p.C / 8, norms = l < p.L ? 4 : 2, at = 4 * row;
#pragma unroll 1
    for (int norm = 0; norm < norms; norm++) {
        const floatX* from = (norm % 2 ? layer.norm_bias : layer.norm_weight)[norm / 2];
        if (thread < row) { mma::cp_async_16(shared_address(to + (norm * row + thread) * 8), from + thread * 8, 16); }
    }
#pragma unroll 1
    for (int stage = QKV; stage < HEAD && l < p.L; stage++) {
        int first = first_tile(stage, blockIdx.x, p.CTAs), count = num_tiles(p.stages[stage].tiles, first, p.CTAs);
        if (thread < count) {
            const floatX* from = layer.bias[stage] + (size_t)(first + thread * p.CTAs) * 8;
            mma::cp_async_16(shared_address(to + (at + thread) * 8), from, 16);
        }
        at += count;
    }
    mma::cp_async_commit_group();
}

// Rows of x, normalised, to input (chunks, B, 32): a thread has a vector of each row, and a warp the statistics of one. The
// sums are those of normalise_row. embedded: the rows are the embedded tokens.
template <class Tiles> __device__ inline void receive_normalised(const Step& p, const Place& at, const Word* words,
                                                                 bool embedded, const floatX* norm, int thread) {
    int vectors = p.C / 8, warp = thread / 32, lane = thread % 32, c = thread * 8;
    floatX* input = shared_at<floatX>(p.input) + c / DECODE_CHUNK * p.B * DECODE_CHUNK + c % DECODE_CHUNK;
    float* sums = shared_at<float>(p.row_sums); // (B, CONSUMERS)
    bool mine = thread < vectors;
    x128 weight, bias, v[1];
    if (mine) { weight = load128(norm + c), bias = load128(norm + p.C + c); }
#pragma unroll 1
    for (int row = 0; row < p.B && mine; row++) {
        if (embedded) {
            v[0] = load128(p.x + row * p.C + c);
        } else {
            receive(v, words, at.tag, row * p.C + c, 8, p.B * p.C);
        }
        sums[row * CONSUMERS + thread] = decode_row_sum(v[0]);
        store128(input + row * DECODE_CHUNK, v[0]);
    }
#pragma unroll 1
    for (int pass = 0; pass < 2; pass++) {
        consumers_sync();
        if (warp < p.B) {
            float sum = 0.0f;
#pragma unroll 4
            for (int i = lane; i < vectors; i += 32) { sum += sums[warp * CONSUMERS + i]; }
            sum = warp_sum(sum);
            if (lane == 0) {
                front<Tiles>().statistics[pass][warp] =
                    pass == 0 ? __fdiv_rn(sum, (float)p.C) : decode_row_rstd(sum, p.C);
            }
        }
        consumers_sync();
#pragma unroll 1
        for (int row = 0; row < p.B && mine; row++) {
            if (p.B > 1 || pass == 0) { v[0] = load128(input + row * DECODE_CHUNK); }
            float mean = front<Tiles>().statistics[0][row];
            if (pass == 0) {
                sums[row * CONSUMERS + thread] = decode_row_squares(v[0], mean);
            } else {
                float rstd = front<Tiles>().statistics[1][row];
                store128(input + row * DECODE_CHUNK, decode_row_normalised(v[0], mean, rstd, weight, bias));
            }
        }
    }
}

// Rows as they are, to input (chunks, B, 32)
template <int N>
__device__ inline void receive_rows(const Step& p, const Place& at, const Word* words, int columns, int thread) {
    int end = p.B * columns, step = CONSUMERS * 8;
#pragma unroll 1
    for (int first = thread * 8; first < end; first += N * step) {
        x128 v[N];
        receive(v, words, at.tag, first, step, end);
#pragma unroll
        for (int i = 0; i < N; i++) {
            int e = first + i * step, row = p.B == 1 ? 0 : e / columns, c = e - row * columns;
            floatX* to = shared_at<floatX>(p.input) + (c / DECODE_CHUNK * p.B + row) * DECODE_CHUNK + c % DECODE_CHUNK;
            if (e < end) { store128(to, v[i]); }
        }
    }
}

// A warp's segments of every slot: segments warp * S + k, of at most MAX_CHUNKS chunks
template <int S> struct Segments {
    int begin[S], count[S];
    __device__ Segments(int C, int warp) {
#pragma unroll
        for (int k = 0; k < S; k++) {
            begin[k] = decode_segment(C, S, warp * S + k);
            count[k] = decode_segment(C, S, warp * S + k + 1) - begin[k];
        }
    }
    // 16 bytes of each chunk, `stride` bytes from one to the next
    __device__ void load(uint4 (&x)[S][MAX_CHUNKS], const char* from, int stride) const {
#pragma unroll
        for (int k = 0; k < S; k++) {
#pragma unroll
            for (int u = 0; u < MAX_CHUNKS; u++) {
                if (u < count[k]) { x[k][u] = *reinterpret_cast<const uint4*>(from + (begin[k] + u) * stride); }
            }
        }
    }
};

// The tiles of a group, to sums (tiles, segments, B, 8). Lane (r, q) has row r of a tile, and of the input where it has so many.
template <class Tiles, int S> __device__ inline void
multiply(const Step& p, Place& at, float* sums, const Segments<S>& segments, int slots, int parts, int warp, int lane) {
    int r = lane / 4, q = lane % 4, slot_sums = WARPS * S * p.B * 8;
    const char* x_row = shared_at<const char>(p.input) + (min(r, p.B - 1) * DECODE_CHUNK + q * 8) * (int)sizeof(floatX);
    int x_stride = p.B * DECODE_CHUNK * (int)sizeof(floatX), part = 0;
    sums += (warp * S * p.B + r) * 8 + 2 * q;
    uint4 x[S][MAX_CHUNKS], w[S][MAX_CHUNKS];
#pragma unroll 1
    for (int i = 0; i < slots; i++, at.advance(p), sums += slot_sums) {
        if (i == 0 || parts > 1) { segments.load(x, x_row + part * (p.C / DECODE_CHUNK) * x_stride, x_stride); }
        part = part + 1 == parts ? 0 : part + 1;
        front<Tiles>().full[at.slot].wait(at.parity);
        segments.load(w, shared_at<const char>(p.ring + at.slot * p.slot_bytes + r * p.row_bytes + q * 16),
                      DECODE_CHUNK * (int)sizeof(floatX));
        float d[S][4] = {};
#pragma unroll
        for (int u = 0; u < MAX_CHUNKS; u++) {
#pragma unroll
            for (int k = 0; k < S; k++) {
                if (u >= segments.count[k]) { continue; }
                const uint4 a = x[k][u], b = w[k][u];
                const uint32_t first[4] = {a.x, a.x, a.y, a.y},
                               second[4] = {a.z, a.z, a.w, a.w}; // rows 8 to 15: unused
                mma::mma_m16n8k16(d[k], first, b.x, b.y);
                mma::mma_m16n8k16(d[k], second, b.z, b.w);
            }
        }
        front<Tiles>().empty[at.slot].arrive_warp(lane);
#pragma unroll
        for (int k = 0; k < S; k++) {
            if (r < p.B) { *reinterpret_cast<float2*>(sums + k * p.B * 8) = make_float2(d[k][0], d[k][1]); }
        }
    }
}

// Two neighbouring sums that a thread finishes: of a split, the first of which adds the others
struct Pair {
    bool valid, first;
    int sums, row, o; // where its segments begin; row and column
    float *residual, bias[2];
    Word* to;
};
template <int S> __device__ inline Pair pair_of(const Step& p, int stage, int tiles, int first, const floatX* bias,
                                                float* residual, int thread) {
    const StageSizes s = p.stages[stage];
    int split = thread & (s.splits - 1), j = thread / s.splits, column = j % 4 * 2, tile = j / 4 / p.B;
    Pair x;
    x.row = j / 4 - tile * p.B;
    x.valid = tile < tiles, x.first = x.valid && split == 0;
    x.sums = ((tile * WARPS * s.splits + split * WARPS) * p.B + x.row) * 8 + column;
    x.o = (first + tile * p.CTAs) * 8 + column;
    x.residual = residual + (tile * p.B + x.row) * 8 + column;
    x.bias[0] = x.bias[1] = 0.0f;
    if (x.valid && stage != HEAD) {
        x.bias[0] = (float)bias[tile * 8 + column], x.bias[1] = (float)bias[tile * 8 + column + 1];
    }
    size_t words = exchange_words_of_rows(p.B, p.C);
    int columns = stage == QKV ? 3 * p.C : stage == FC ? 4 * p.C : p.C;
    x.to = p.words +
           (stage == QKV       ? 1
            : stage == ATTPROJ ? 5
            : stage == FC      ? 6
                               : 0) *
               words +
           word_of(x.row * columns + x.o);
    return x;
}

template <class Tiles>
__device__ inline void publish(const Step& p, const Place& at, int stage, const Pair& x, float2 sum) {
    float y[2] = {sum.x + x.bias[0], sum.y + x.bias[1]};
    floatX z[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        z[k] = (floatX)y[k];
        if (stage == FC) { z[k] = (floatX)gelu((float)z[k], gelu_sigma((float)z[k])); }
        if (stage == ATTPROJ || stage == FCPROJ) {
            z[k] = (floatX)(x.residual[k] + (float)z[k]);
            x.residual[k] = (float)z[k];
        }
    }
    if (stage == HEAD) {
        floatX* out = p.logits + (size_t)x.row * p.Vp + x.o;
        if (front<Tiles>().positions[x.row] < 0) { return; }
        if (x.o < p.V) { out[0] = z[0]; }
        if (x.o + 1 < p.V) { out[1] = z[1]; }
        return;
    }
    uint32_t bits = (uint32_t)__bfloat16_as_ushort(z[0]) | (uint32_t)__bfloat16_as_ushort(z[1]) << 16;
    send(p, x.to, bits, at.tag + (stage == FCPROJ));
}

// The CTA's tiles of a stage. norm, bias: LayerNorm's weights, and 8 biases for each tile
template <class Tiles, int S> __device__ inline void linear(const Step& p, Place& at, int stage, const floatX* norm,
                                                            const floatX* bias, const Segments<S>& segments,
                                                            int thread) {
    const StageSizes s = p.stages[stage];
    int first = first_tile(stage, blockIdx.x, p.CTAs), count = num_tiles(s.tiles, first, p.CTAs), buffer = 0;
    size_t words = exchange_words_of_rows(p.B, p.C);
#pragma unroll 1
    for (int begin = 0; begin < count; begin += s.group, buffer ^= 1) {
        int tiles = min(s.group, count - begin);
        float* sums = shared_at<float>(p.sums + buffer * p.sums_bytes);
        const Pair pair = pair_of<S>(p, stage, tiles, first + begin * p.CTAs, bias + begin * 8,
                                     shared_at<float>(p.residual) + begin * p.B * 8, thread);
        if (begin == 0) {
            if (stage == ATTPROJ) { receive_rows<1>(p, at, words_to_read(p) + 4 * words, p.C, thread); }
            if (stage == FCPROJ) { receive_rows<4>(p, at, words_to_read(p) + 6 * words, 4 * p.C, thread); }
            if (stage != ATTPROJ && stage != FCPROJ) {
                receive_normalised<Tiles>(p, at, words_to_read(p) + (stage == FC ? 5 : 0) * words,
                                          at.layer == 0 && stage == QKV, norm, thread);
            }
            consumers_sync();
        }
        multiply<Tiles, S>(p, at, sums, segments, tiles * s.parts, s.parts, thread / 32, thread % 32);
        consumers_sync();
        float2 sum = make_float2(0.0f, 0.0f);
        if (pair.valid) {
            float2 x[WARPS];
#pragma unroll
            for (int w = 0; w < WARPS; w++) { x[w] = *reinterpret_cast<const float2*>(sums + pair.sums + w * p.B * 8); }
            sum = x[0];
#pragma unroll
            for (int w = 1; w < WARPS; w++) { sum.x += x[w].x, sum.y += x[w].y; }
        }
        float2 total = sum;
#pragma unroll
        for (int k = 1; k < 4 * S; k++) {
            if (k >= s.splits) { break; }
            total.x += __shfl_down_sync(0xffffffffu, sum.x, k), total.y += __shfl_down_sync(0xffffffffu, sum.y, k);
        }
        if (pair.first) { publish<Tiles>(p, at, stage, pair, total); }
    }
}

// (m, l, O) of a chunk, as its words have them
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

// One chunk of a head of a sequence. The CTA of a head's last chunk merges them: it waits for chunks before its own alone,
// which every CTA takes first.
template <class Tiles>
__device__ inline void attend_chunk(const Step& p, const Place& at, int b, int h, int c, int thread) {
    constexpr int HS = Tiles::HS;
    split::Shared<Tiles>& shared = front<Tiles>().attention;
    const int length = front<Tiles>().positions[b], warp = thread / 32, lane = thread % 32, d = thread;
    const int chunks = Tiles::num_chunks(length + 1), max_chunks = Tiles::num_chunks(p.T);
    const bool last = c == chunks - 1;
    const size_t words = exchange_words_of_rows(p.B, p.C);
    const float exponent = rsqrtf((float)HS) * LOG2_E;
    Word* out = p.words + 4 * words;
    const int channel = b * p.C + h * HS + d; // of the output
    const Word* qkv = words_to_read(p) + words;
    // A sequence that takes no part: the words of the layer before must have been read all the same.
    if (length < 0 && c == 0 && d < HS && d % 2 == 0) {
        x128 vector[1];
        receive(vector, qkv, at.tag, b * 3 * p.C + h * HS + d / 8 * 8, 8, p.B * 3 * p.C);
        send(p, out + word_of(channel), 0, at.tag);
    }
    if (length < c * Tiles::chunk) { return; }

    const size_t layer = (size_t)p.B * p.NH * p.T * HS, head = (size_t)b * p.NH + h;
    floatX *k = p.cache + 2 * at.layer * layer + head * p.T * HS, *v = k + layer;
    split::Words K[Tiles::steps][Tiles::vectors], V[Tiles::steps][Tiles::vectors];
    split::load_rows<Tiles>(K, k, c, warp, lane, length);
    split::load_rows<Tiles>(V, v, c, warp, lane, length);
    if (d < 3 * HS / 8) { // q, k and v of the new token
        x128 vector[1];
        int tensor = d / (HS / 8), e = d % (HS / 8) * 8;
        receive(vector, qkv, at.tag, (b * 3 + tensor) * p.C + h * HS + e, 8, p.B * 3 * p.C);
        store128(&front<Tiles>().qkv[tensor][e], vector[0]);
    }
    consumers_sync();
    const floatX *q = front<Tiles>().qkv[0], *new_k = front<Tiles>().qkv[1], *new_v = front<Tiles>().qkv[2];
    if (last && warp == Tiles::warps - 1) {
        const int64_t row = (int64_t)length * HS;
        split::attend_new_token<Tiles>(shared, k + row, v + row, q, new_k, new_v, lane);
    }
    split::attend<Tiles>(shared, K, V, q, c, warp, lane, length, exponent);
    consumers_sync();
    split::Merged x = {};
    if (d < HS) { x = split::merge_rows<Tiles>(shared, Tiles::warps + last, d, exponent); }
    if (chunks > 1) {
        Word* partials = p.words + 10 * words + head * max_chunks * (HS + 2);
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
    if (d < HS && d % 2 == 0) { send(p, out + word_of(channel), low | high << 16, at.tag); }
    consumers_sync(); // the shared memory is free again
}

// The CTA's chunks of all heads: of every head the first ones first
template <class Tiles> __device__ inline void attention(const Step& p, const Place& at, int thread) {
    int first = ((int)blockIdx.x + p.CTAs - p.stages[ATTPROJ].tiles % p.CTAs) % p.CTAs; // where there is no attproj
    int heads = p.B * p.NH, count = heads * Tiles::num_chunks(p.max_length);
#pragma unroll 1
    for (int i = first; i < count; i += p.CTAs) {
        int head = i % heads;
        attend_chunk<Tiles>(p, at, head / p.NH, head % p.NH, i / heads, thread);
    }
}

template <class Tiles, int S> __device__ inline void consume(const Step& p, int thread) {
    floatX* parameters = shared_at<floatX>(p.parameters);
    int first = first_tile(ATTPROJ, blockIdx.x, p.CTAs);
    const Segments<S> segments(p.C, thread / 32);
    load_parameters(parameters, p, 0, thread);
    wait_for_previous();
    unsigned epoch = p.epochs[blockIdx.x];
    Place at = {0, 0, 0, epoch * (unsigned)(p.L + 1) + 1};
    if (thread < p.B) { front<Tiles>().positions[thread] = p.positions[thread]; }
    for (int i = thread; i < num_tiles(p.stages[ATTPROJ].tiles, first, p.CTAs) * p.B * 8; i += CONSUMERS) {
        int tile = first + i / 8 / p.B * p.CTAs, row = i / 8 % p.B;
        shared_at<float>(p.residual)[i] = (float)p.x[(size_t)row * p.C + tile * 8 + i % 8];
    }
#pragma unroll 1
    for (; at.layer <= p.L; at.layer++, at.tag++) {
        const floatX *vectors = parameters + at.layer % 2 * p.vectors, *bias = vectors + 4 * p.C;
        bool last = at.layer == p.L;
        mma::cp_async_wait_group<0>();
        consumers_sync(); // this layer's vectors are there, and those of the one before it have been read
        if (!last) { load_parameters(parameters + (at.layer + 1) % 2 * p.vectors, p, at.layer + 1, thread); }
#pragma unroll 1
        for (int stage = last ? HEAD : QKV; stage < (last ? STAGES : HEAD); stage++) {
            linear<Tiles, S>(p, at, stage, vectors + stage % HEAD * p.C, bias, segments, thread);
            bias += 8 * num_tiles(p.stages[stage].tiles, first_tile(stage, blockIdx.x, p.CTAs), p.CTAs);
            if (stage == QKV) { attention<Tiles>(p, at, thread); }
        }
    }
    if (thread == 0) { p.epochs[blockIdx.x] = epoch + 1; }
}

#endif // HOPPER_DEVICE_CODE

template <class Tiles, int S> __global__ void __launch_bounds__(THREADS, 1)
    decode_step_kernel(const __grid_constant__ Step p) {
#if defined(HOPPER_DEVICE_CODE)
    int thread = threadIdx.x;
    if (thread == 0) {
        for (int i = 0; i < p.slots; i++) {
            front<Tiles>().full[i].init(1);
            front<Tiles>().empty[i].init(WARPS * hopper::WARP_ARRIVALS);
        }
        hopper::fence_mbarrier_init();
    }
    __syncthreads();
    if (thread < CONSUMERS) {
        hopper::setmaxnreg_inc<CONSUMER_REGISTERS>();
        consume<Tiles, S>(p, thread);
    } else {
        hopper::setmaxnreg_dec<PRODUCER_REGISTERS>();
        if (thread < CONSUMERS + 32) { produce<Tiles>(p, thread - CONSUMERS); }
    }
#endif
}

// ----------------------------------------------------------------------------
// The launcher

// Completes p's sizes for so many CTAs with so much shared memory. False where they are not served.
template <class Tiles> static inline bool plan(Step* p, int CTAs, size_t shared_limit) {
    const int OC[STAGES] = {3 * p->C, p->C, 4 * p->C, p->C, p->V};
    int S = decode_splits(p->C);
    if (p->B > MAX_ROWS || p->C % DECODE_CHUNK != 0 || p->C > 8 * CONSUMERS) { return false; }
    if (S > 2 || decode_splits(4 * p->C) != 4 * S) { return false; } // C is 416 to 1600
    p->CTAs = CTAs, p->sums_bytes = 0, p->vectors = 4 * p->C;
    p->copy_words = words_of_a_copy<Tiles>(p->B, p->C, p->NH, p->T);
    for (int stage = 0; stage < STAGES; stage++) {
        int parts = stage == FCPROJ ? 4 : 1, splits = parts * S, tiles = CEIL_DIV(OC[stage], 8);
        int tile_bytes = WARPS * splits * p->B * 8 * (int)sizeof(float), group = CEIL_DIV(tiles, CTAs);
        p->vectors += stage == HEAD ? 0 : 8 * group;
        group = group * tile_bytes > SUMS_BYTES ? SUMS_BYTES / tile_bytes : group;
        group = group < 1 ? 1 : group;
        p->stages[stage] = {OC[stage], tiles, parts, splits, group};
        p->sums_bytes = group * tile_bytes > p->sums_bytes ? group * tile_bytes : p->sums_bytes;
    }
    p->row_bytes = p->C * (int)sizeof(floatX) + (p->C / DECODE_CHUNK % 2 == 0 ? 64 : 0); // rows on different banks
    p->slot_bytes = 8 * p->row_bytes;
    p->residual = CEIL_DIV((int)sizeof(Front<Tiles>), 16) * 16;
    p->row_sums = p->residual + CEIL_DIV(p->stages[ATTPROJ].tiles, CTAs) * p->B * 8 * (int)sizeof(float);
    p->sums = p->row_sums + p->B * CONSUMERS * (int)sizeof(float);
    p->input = p->sums + 2 * p->sums_bytes;
    p->parameters = p->input + 4 * p->C * p->B * (int)sizeof(floatX);
    p->ring = CEIL_DIV(p->parameters + 2 * p->vectors * (int)sizeof(floatX), 128) * 128;
    p->slots = ((int)shared_limit - p->ring) / p->slot_bytes;
    p->slots = p->slots < MAX_SLOTS ? p->slots : MAX_SLOTS;
    p->shared = p->ring + p->slots * p->slot_bytes;
    return p->slots >= MIN_SLOTS;
}

template <class Tiles> static inline void launch(LaunchGpu gpu, const Step& p, cudaStream_t stream) {
    auto kernel = decode_splits(p.C) == 1 ? decode_step_kernel<Tiles, 1> : decode_step_kernel<Tiles, 2>;
    launch_dependent(gpu, kernel, (unsigned)p.CTAs, THREADS, (size_t)p.shared, 1, stream, p);
}

template <int HS> constexpr Kernel kernel_of() {
    typedef typename split::Serving<HS>::Tiles Tiles;
    static_assert(Tiles::warps == WARPS, "the consumers attend, too");
    return {HS, plan<Tiles>, launch<Tiles>, exchange_words<Tiles>};
}
static constexpr Kernel kernels[] = {kernel_of<32>(), kernel_of<64>(), kernel_of<96>(), kernel_of<128>()};
#endif

// The kernel for B sequences, or nullptr where a step is several ones
static inline const Kernel* choice(int B, int HS) {
#if !defined(PRECISION_FP32)
    if (B > MAX_ROWS || strcmp(attention_decode_name(), "split") != 0) { return nullptr; }
    for (const Kernel& kernel : kernels) {
        if (kernel.HS == HS) { return &kernel; }
    }
#endif
    (void)B, (void)HS;
    return nullptr;
}

} // namespace decode_step

#endif
