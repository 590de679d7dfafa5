/*
Split-K decode (Flash-Decoding, Dao et al. 2023): the cache of a head is cut into chunks of a constant number of keys, and the
last CTA of a head to finish combines their results in the order of the chunks, so that no second launch is needed.

Against naive: B*NH heads alone do not fill a GPU, chunks do; and CTAs are persistent, with K and V of the next chunk, up to 64
KB, always in flight (cp.async), the first ones before griddepcontrol.wait. A warp has its own keys, maximum m, sum l and O.
- Tensor cores multiply: S = q K^T with q in every row, O = P V with P in two terms of 16 bit, in different rows.
- The new token, which is stored on the way, is a row of its own behind those of the warps of its chunk.
- These rows (m, l, O) are merged through shared memory. A head of one chunk is done then. Of several, every chunk's (m, l, O)
  goes to scratch, and the CTA whose arrival on the head's counter is the last merges them. The counter wraps to 0 by itself.
Which keys are added in which order depends on the length alone: so the bits do not depend on B, T or the GPU's SMs.
*/
#ifndef ATTENTION_DECODE_SPLIT_CU
#define ATTENTION_DECODE_SPLIT_CU

#include "attention_decode.h"
#include "llmc/cuda/dependent_launch.cuh"
#include "llmc/cuda/mma.cuh"

#include <cuda_pipeline.h>

namespace split {

// A configuration: keys of a lane, CTAs per SM. Four lanes share a key.
template <int HS_, int STEPS, int CTAS> struct DecodeTiles {
    static constexpr int HS = HS_, lanes = 4, warps = 8, steps = STEPS, ctas = CTAS, threads = 32 * warps;
    static constexpr int vectors = HS / (x128::size * lanes); // of a key in one lane
    static constexpr int warp_keys = 32 / lanes * steps, chunk = warps * warp_keys;
    static_assert(HS % (x128::size * lanes) == 0 && steps % 2 == 0, "a step is 8 keys of an MMA, and P has 16");

    // Which keys and channels a lane has
    __host__ __device__ static int key(int c, int warp, int lane, int step) {
        return c * chunk + warp * warp_keys + step * (32 / lanes) + lane / lanes;
    }
    __host__ __device__ static int channel(int lane, int vector) {
        return lane % lanes * x128::size + vector_offset(vector);
    }
    // Elements from a lane's first key to that of a step, and from its first vector of a key to another
    __host__ __device__ static constexpr int step_offset(int step) { return step * (32 / lanes) * HS; }
    __host__ __device__ static constexpr int vector_offset(int vector) { return vector * lanes * x128::size; }
    __host__ __device__ static int num_chunks(int tokens) { return CEIL_DIV(tokens, chunk); }

    // The last CTA: HS/4 threads read a chunk's O together; so many chunks at once
    static constexpr int parts = threads * 4 / HS;
    __host__ __device__ static int part(int thread) { return thread / (HS / 4); }
    __host__ __device__ static int part_channel(int thread) { return thread % (HS / 4) * 4; }
};

// Scratch: a counter for each head, then (m, l) and then O of each chunk of each head
struct Partials {
    unsigned* counters; // (B,NH)
    float2* statistics; // (B,NH,chunks of T): m in units of the raw score q.k, and l
    float* O;           // (B,NH,chunks of T,HS), not divided by l
};
template <class C> inline Partials partials(void* scratch, int B, int T, int NH) {
    char* base = (char*)scratch;
    float2* statistics = (float2*)(base + decode_counter_bytes(B, NH));
    const size_t bytes = CEIL_DIV((size_t)B * NH * C::num_chunks(T) * sizeof(float2), (size_t)256) * 256;
    return {(unsigned*)base, statistics, (float*)((char*)statistics + bytes)};
}
template <class C> inline size_t decode_scratch_bytes(int B, int T, int NH, int) {
    const size_t chunks = (size_t)B * NH * C::num_chunks(T);
    if (chunks > SIZE_MAX / 2 / (C::HS * sizeof(float) + sizeof(float2))) { return SIZE_MAX; }
    return decode_counter_bytes(B, NH) + CEIL_DIV(chunks * sizeof(float2), (size_t)256) * 256 +
           chunks * C::HS * sizeof(float);
}

// (m, l, O) of the warps and the new token, or of the last CTA's parts, to be merged in this order
template <class C> struct alignas(16) Shared {
    static constexpr int rows = C::warps + 1 > C::parts ? C::warps + 1 : C::parts;
    float m[rows], l[rows], O[rows][C::HS];
    bool last;
};

// The factor that brings a sum with maximum `from` to the maximum `to`, which is not below it and finite.
__device__ inline float rescale_factor(float from, float to, float exponent) {
    return ex2_approx_ftz((from - to) * exponent);
}

// One channel of the merged rows
struct Merged {
    float m, l, O;
};
// Some row holds a key, so the maximum is finite; rows without keys have m = -inf, and l and O of 0. MOST: rows at most
template <class C, int MOST = Shared<C>::rows>
__device__ inline Merged merge_rows(const Shared<C>& shared, int rows, int d, float exponent) {
    float m[MOST];
    Merged x = {-INFINITY, 0, 0};
#pragma unroll
    for (int r = 0; r < MOST; r++) {
        m[r] = r < rows ? shared.m[r] : -INFINITY;
        x.m = fmaxf(x.m, m[r]);
    }
#pragma unroll
    for (int r = 0; r < MOST; r++) {
        if (r >= rows) { continue; }
        const float factor = rescale_factor(m[r], x.m, exponent);
        x.l = fmaf(factor, shared.l[r], x.l);
        x.O = fmaf(factor, shared.O[r][d], x.O);
    }
    return x;
}

// 16 bytes of a row as they were read: 32-bit words, so that 16-bit elements stay in pairs until they are multiplied
typedef uint4 Words;
// The lane's vectors of the chunk's rows (T,HS) before position `length`, to registers; zeros from there on
template <class C> __device__ inline void load_rows(Words (&words)[C::steps][C::vectors], const floatX* rows, int c,
                                                    int warp, int lane, int length) {
    rows += (int64_t)C::key(c, warp, lane, 0) * C::HS + C::channel(lane, 0);
    asm volatile("" : "+l"(rows)); // one address, to which the offsets are constants
#pragma unroll
    for (int i = 0; i < C::steps; i++) {
#pragma unroll
        for (int n = 0; n < C::vectors; n++) {
            words[i][n] = make_uint4(0, 0, 0, 0);
            if (C::key(c, warp, lane, i) < length) {
                words[i][n] = __ldcs(reinterpret_cast<const Words*>(rows + C::step_offset(i) + C::vector_offset(n)));
            }
        }
    }
}

// attend_rows' view of a warp's keys and values: here a lane's registers (decode/step.cuh), below a tile in shared memory
template <class C> struct RegisterRows {
    const Words (&K)[C::steps][C::vectors];
    const Words (&V)[C::steps][C::vectors];
    __device__ Words key(int step, int vector) const { return K[step][vector]; }
    __device__ void keys_are_read() const {}
    // Of 16 keys and octets n and n+1 of channels: a lane's words of b; and the first of its two channels in octet n of O
    __device__ void values(uint32_t (&b)[4], int sixteen, int n, int) const {
        const Words &low = V[2 * sixteen][n / 4], &high = V[2 * sixteen + 1][n / 4];
        b[0] = mma::movmatrix_trans(n % 4 == 0 ? low.x : low.z),
        b[1] = mma::movmatrix_trans(n % 4 == 0 ? high.x : high.z);
        b[2] = mma::movmatrix_trans(n % 4 == 0 ? low.y : low.w),
        b[3] = mma::movmatrix_trans(n % 4 == 0 ? high.y : high.w);
    }
    __device__ static int channel(int n, int lane) { return n / 4 * 32 + lane % 4 * 8 + n % 4 * 2; }
};

// (m, l, O) of a warp's keys, to shared memory
template <class C, class Rows> __device__ inline void attend_rows(Shared<C>& shared, const Rows& rows,
                                                                  const Words (&q)[C::vectors], int c, int warp,
                                                                  int lane, int length, float exponent) {
    if (C::key(c, warp, 0, 0) >= length) {
        rows.keys_are_read();
        if (lane == 0) { shared.m[warp] = -INFINITY, shared.l[warp] = 0; }
        for (int d = lane; d < C::HS; d += 32) { shared.O[warp][d] = 0; }
        return;
    }
    float S[C::steps][2], m = -INFINITY, l = 0;
    const int left = length - C::key(c, warp, 0, 0) - lane % 4 * 2; // a lane has keys 8 i and 8 i + 1 from its first on
#pragma unroll
    for (int i = 0; i < C::steps; i++) { // S = Q K^T, the same in all rows
        float d[4] = {};
#pragma unroll
        for (int n = 0; n < C::vectors; n++) {
            const Words k = rows.key(i, n);
            const uint32_t low[4] = {q[n].x, q[n].x, q[n].y, q[n].y}, high[4] = {q[n].z, q[n].z, q[n].w, q[n].w};
            mma::mma_m16n8k16(d, low, k.x, k.y);
            mma::mma_m16n8k16(d, high, k.z, k.w);
        }
#pragma unroll
        for (int e = 0; e < 2; e++) {
            S[i][e] = 8 * i + e < left ? d[e] : -INFINITY;
            m = fmaxf(m, S[i][e]);
        }
    }
    rows.keys_are_read();
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
    m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2)); // finite, as the warp's first key is there
    uint32_t P[C::steps], rest[C::steps];
#pragma unroll
    for (int i = 0; i < C::steps; i++) { // P = exp(S - m), and its rounding residual to 16 bit
        const float x = rescale_factor(S[i][0], m, exponent), y = rescale_factor(S[i][1], m, exponent);
        l += x + y;
        P[i] = mma::cvt_rn_x2(x, y);
        const float2 rounded = mma::float2_of(P[i]);
        rest[i] = mma::cvt_rn_x2(x - rounded.x, y - rounded.y);
    }
    l += __shfl_xor_sync(0xffffffffu, l, 1);
    l += __shfl_xor_sync(0xffffffffu, l, 2);
    if (lane == 0) { shared.m[warp] = m, shared.l[warp] = l; }
#pragma unroll
    for (int first = 0; first < C::HS / 8; first += 4) {
        float2 O[4];
#pragma unroll
        for (int n = 0; n < 4; n += 2) { // O = P V, in rows 8 .. 15 of what was cut off
            float d[2][4] = {};
#pragma unroll
            for (int i = 0; i < C::steps / 2; i++) {
                const uint32_t a[4] = {P[2 * i], rest[2 * i], P[2 * i + 1], rest[2 * i + 1]};
                uint32_t b[4];
                rows.values(b, i, first + n, lane);
                mma::mma_m16n8k16(d[0], a, b[0], b[1]);
                mma::mma_m16n8k16(d[1], a, b[2], b[3]);
            }
#pragma unroll
            for (int e = 0; e < 2; e++) { O[n + e] = make_float2(d[e][0] + d[e][2], d[e][1] + d[e][3]); }
        }
#pragma unroll
        for (int n = 0; n < 4; n++) { // all lanes of an octet of channels have the same
            if (lane / 4 != (first + n) % 8) { continue; }
            *reinterpret_cast<float2*>(&shared.O[warp][rows.channel(first + n, lane)]) = O[n];
        }
    }
}

// The lane's channels of q (HS)
template <class C> __device__ inline void load_query(Words (&q)[C::vectors], const floatX* from, int lane) {
#pragma unroll
    for (int n = 0; n < C::vectors; n++) { q[n] = *reinterpret_cast<const Words*>(from + C::channel(lane, n)); }
}

// The new token: a warp's elements of its q, k and v (HS)
template <class C> struct NewToken {
    static constexpr int N = C::HS / 32;
    floatX q[N], k[N], v[N];

    __device__ void load(const floatX* from_q, const floatX* from_k, const floatX* from_v, int lane) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            q[n] = from_q[lane + 32 * n], k[n] = from_k[lane + 32 * n], v[n] = from_v[lane + 32 * n];
        }
    }
    // k and v to their rows of the caches, (m, l, O) to shared memory
    __device__ void attend(Shared<C>& shared, floatX* k_row, floatX* v_row, int lane) const {
        float S = 0;
#pragma unroll
        for (int n = 0; n < N; n++) {
            S = fmaf((float)q[n], (float)k[n], S);
            k_row[lane + 32 * n] = k[n], v_row[lane + 32 * n] = v[n];
            shared.O[C::warps][lane + 32 * n] = (float)v[n];
        }
        S = warp_sum(S);
        if (lane == 0) { shared.m[C::warps] = S, shared.l[C::warps] = 1; }
    }
};

// (m, l) of a head's chunk c, and four channels of its O, as scratch has them
struct PartialLoad {
    const float2* statistics;
    const float* O;
    int HS;
    __device__ void operator()(int c, int d, float2& x, float4& o) const {
        x = __ldcg(statistics + c); // past L1, which does not see other SMs' stores
        o = __ldcg((const float4*)(O + (int64_t)c * HS + d));
    }
};

// The last CTA of a head: part p has chunks p, p + parts, ... one after the other, each thread four channels of them, which
// load(c, d, statistics, O) gives.
template <class C, class Load>
__device__ inline void read_partials(Shared<C>& shared, const Load& load, int chunks, float exponent) {
    const int part = C::part(threadIdx.x), d = C::part_channel(threadIdx.x);
    if (part >= C::parts) { return; } // threads left over
    float m = -INFINITY, l = 0, sum[4] = {};
#pragma unroll 4
    for (int c = part; c < chunks; c += C::parts) {
        float2 x;
        float4 o;
        load(c, d, x, o);
        const float maximum = fmaxf(m, x.x);
        const float before = rescale_factor(m, maximum, exponent), now = rescale_factor(x.x, maximum, exponent);
        m = maximum;
        l = fmaf(now, x.y, before * l);
        sum[0] = fmaf(now, o.x, before * sum[0]);
        sum[1] = fmaf(now, o.y, before * sum[1]);
        sum[2] = fmaf(now, o.z, before * sum[2]);
        sum[3] = fmaf(now, o.w, before * sum[3]);
    }
    if (d == 0) { shared.m[part] = m, shared.l[part] = l; }
    for (int e = 0; e < 4; e++) { shared.O[part][d + e] = sum[e]; }
}

// Stores a chunk's (m, l, O), and says whether all other chunks of the head have done so.
template <class C> __device__ inline bool leave_partial(Shared<C>& shared, float2* statistics, float* O,
                                                        unsigned* counter, Merged x, int c, int chunks) {
    const int d = threadIdx.x;
    if (d < C::HS) { __stcg(O + (int64_t)c * C::HS + d, x.O); }
    if (d == 0) { __stcg(statistics + c, make_float2(x.m, x.l)); }
    __syncthreads();
    if (d == 0) { shared.last = atom_acq_rel_inc(counter, chunks - 1) == (unsigned)chunks - 1; }
    __syncthreads();
    return shared.last;
}

// A chunk of a head of a sequence
template <class C> struct Item {
    int c, head, length; // head: of all, b NH + h
    __device__ static Item of(int i, int items, const Divisor& heads, const Divisor& NH, const int* lengths) {
        Item x = {0, 0, -1};
        if (i >= items) { return x; }
        x.c = heads.quotient(i), x.head = i - x.c * heads.d;
        x.length = __ldcg(lengths + NH.quotient(x.head));
        return x;
    }
    // False where the sequence ends before this chunk, or takes no part
    __device__ bool is_there() const { return length >= c * C::chunk; }
};

// A warp's keys of a chunk, or their values, in shared memory: where 16 bytes of key k stand, piece p of its channels. Keys lie
// as attend_rows' lanes read them; values in rows, XOR-swizzled so that ldmatrix reads 8 pieces without bank conflicts.
template <class C> struct Tile {
    static constexpr int pieces = C::HS / x128::size, bytes = C::warp_keys * pieces * 16;
    static constexpr int copy_lanes = pieces & -pieces, copy_keys = 32 / copy_lanes; // of an instruction
    __host__ __device__ static int key_place(int k, int p) {
        constexpr int keys = 32 / C::lanes;
        return (k / keys * C::vectors + p / C::lanes) * 512 + (k % keys * C::lanes + p % C::lanes) * 16;
    }
    __host__ __device__ static int exchange(int k) { return pieces % 8 == 0 ? k % 8 : k / 2 % 4; }
    __host__ __device__ static int value_place(int k, int p) { return (k * pieces + (p ^ exchange(k))) * 16; }
    // From rows of the cache, of which `left` are there, else zeros; no commit. A lane's first place leads to the others, as
    // their keys and pieces differ from its first ones in other bits: an address of each would take registers.
    template <bool VALUES> __device__ static void copy(char* to, const floatX* rows, int left, int lane) {
        const int key = lane / copy_lanes, piece = lane % copy_lanes;
        const uint32_t first =
            (uint32_t)__cvta_generic_to_shared(to + (VALUES ? value_place(key, piece) : key_place(key, piece)));
        rows += key * C::HS + piece * x128::size;
        asm volatile("" : "+l"(rows)); // one address, to which the offsets are constants
#pragma unroll
        for (int k = 0; k < C::warp_keys; k += copy_keys) {
            const int bytes = k + key < left ? 16 : 0;
#pragma unroll
            for (int p = 0; p < pieces; p += copy_lanes) {
                const uint32_t at =
                    VALUES ? (first ^ exchange(k) * 16) + (k * pieces + p) * 16 : first + key_place(k, p);
                cp_async_16(at, rows + k * C::HS + p * x128::size, bytes);
            }
        }
    }
};

// Copies a warp's keys of an item, or their values, to its tiles, which all lanes have read
template <class C> struct TileCopy {
    const floatX *k_cache, *v_cache;
    char* tiles;
    int T, warp, lane;

    template <bool VALUES> __device__ void ask(const Item<C>& item) const {
        const int first = C::key(item.c, warp, 0, 0), left = item.length - first;
        const floatX* rows = (VALUES ? v_cache : k_cache) + ((int64_t)item.head * T + first) * C::HS;
        __syncwarp();
        if (left > 0) { Tile<C>::template copy<VALUES>(tiles + VALUES * Tile<C>::bytes, rows, left, lane); }
        __pipeline_commit();
    }
};

// attend_rows' view of the tiles; read() where the keys are no more needed
template <class C, class Read> struct TileRows {
    const char* tiles;
    int lane;
    const Read& read;
    __device__ Words key(int step, int vector) const {
        return *reinterpret_cast<const Words*>(tiles + (step * C::vectors + vector) * 512 + lane * 16);
    }
    __device__ void keys_are_read() const { read(); }
    __device__ void values(uint32_t (&b)[4], int sixteen, int n, int) const {
        const uint32_t first =
            (uint32_t)__cvta_generic_to_shared(tiles + Tile<C>::bytes + Tile<C>::value_place(lane % 16, lane / 16));
        constexpr int low = Tile<C>::pieces % 8 == 0 ? 8 : 4; // pieces that are exchanged
        mma::ldmatrix_x4_trans(b, (first ^ n % low * 16) + (16 * sixteen * Tile<C>::pieces + n / low * low) * 16);
    }
    __device__ static int channel(int n, int lane) { return n * 8 + lane % 4 * 2; }
};

// Bytes of shared memory: two chunks' (m, l, O), and the tiles of each warp
template <class C> __host__ __device__ constexpr int shared_front() {
    return CEIL_DIV(2 * (int)sizeof(Shared<C>), 128) * 128;
}
template <class C> constexpr int shared_bytes() { return shared_front<C>() + 2 * C::warps * Tile<C>::bytes; }

// What a thread needs of qkv for a chunk
template <class C> struct Query {
    Words q[C::vectors];
    NewToken<C> token; // by the last warp, which has the fewest keys, where the chunk is the last one
    __device__ void load(const Item<C>& item, const floatX* qkv, const Divisor& NH, int warp, int lane) {
        if (!item.is_there()) { return; }
        const int b = NH.quotient(item.head), h = item.head - b * NH.d;
        const floatX* from = qkv + new_token_offset(b, 0, h, NH.d, C::HS);
        load_query<C>(q, from, lane);
        if (warp == C::warps - 1) { token.load(from, from + NH.d * C::HS, from + 2 * NH.d * C::HS, lane); }
    }
};

// Persistent CTAs: chunks blockIdx.x, + gridDim.x, ... of all heads, of every head the first ones first
template <class C> __global__ void __launch_bounds__(C::threads, C::ctas)
    decode_chunks(floatX* out, floatX* k_cache, floatX* v_cache, const floatX* qkv, const int* lengths,
                  Partials partial, Divisor heads, Divisor NH, int T, int max_length) {
    extern __shared__ __align__(128) int4 decode_shared_memory[];
    Shared<C>* both = reinterpret_cast<Shared<C>*>(decode_shared_memory); // of one chunk and the next
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, d = threadIdx.x;
    const int items = C::num_chunks(max_length) * heads.d, step = gridDim.x;
    const float exponent = rsqrtf((float)C::HS) * LOG2_E;
    char* tiles = reinterpret_cast<char*>(decode_shared_memory) + shared_front<C>() + warp * 2 * Tile<C>::bytes;
    const TileCopy<C> copy = {k_cache, v_cache, tiles, T, warp, lane};
    const auto wait = [&] { // for the older one of two
        __pipeline_wait_prior(1);
        __syncwarp();
    };
    Item<C> now = Item<C>::of(blockIdx.x, items, heads, NH, lengths);
    Item<C> next = Item<C>::of(blockIdx.x + step, items, heads, NH, lengths);
    launch_dependents();
    copy.template ask<false>(now), copy.template ask<true>(now);
    wait_for_previous(); // for qkv
    Query<C> query;
    query.load(now, qkv, NH, warp, lane);
#pragma unroll 1
    for (int i = blockIdx.x, buffer = 0; i < items; i += step) {
        if (now.is_there()) {
            Shared<C>& shared = both[buffer];
            assert(now.length < max_length);
            const int chunks = C::num_chunks(now.length + 1), c = now.c;
            const bool has_new_token = c == chunks - 1;
            if (has_new_token && warp == C::warps - 1) {
                const int64_t row = ((int64_t)now.head * T + now.length) * C::HS;
                query.token.attend(shared, k_cache + row, v_cache + row, lane);
            }
            wait();                          // for the keys
            const auto keys_are_read = [&] { // and the values
                copy.template ask<false>(next);
                wait();
            };
            const TileRows<C, decltype(keys_are_read)> rows = {tiles, lane, keys_are_read};
            attend_rows<C>(shared, rows, query.q, c, warp, lane, now.length, exponent);
            copy.template ask<true>(next);
            query.load(next, qkv, NH, warp, lane);
            __syncthreads();
            Merged x = {};
            if (d < C::HS) { x = merge_rows<C, C::warps + 1>(shared, C::warps + has_new_token, d, exponent); }
            bool done = true;
            if (chunks > 1) {
                const int64_t first = (int64_t)now.head * C::num_chunks(T);
                float2* statistics = partial.statistics + first;
                float* O = partial.O + first * C::HS;
                done = leave_partial<C>(shared, statistics, O, partial.counters + now.head, x, c, chunks);
                if (done) {
                    read_partials<C>(shared, PartialLoad{statistics, O, C::HS}, chunks, exponent);
                    __syncthreads();
                    if (d < C::HS) { x = merge_rows<C>(shared, C::parts, d, exponent); }
                }
            }
            if (done && d < C::HS) { out[(int64_t)now.head * C::HS + d] = (floatX)(x.O / x.l); }
        } else {
            copy.template ask<false>(next), copy.template ask<true>(next);
            query.load(next, qkv, NH, warp, lane);
        }
        buffer ^= now.is_there(); // slow warps may still read that of the last chunk that was there
        now = next, next = Item<C>::of(i + 2 * step, items, heads, NH, lengths);
    }
}

template <class C> void decode(floatX* out, floatX* k_cache, floatX* v_cache, const floatX* qkv, const int* lengths,
                               void* scratch, int B, int T, int NH, int, int max_length, cudaStream_t stream) {
    const int64_t items = (int64_t)C::num_chunks(max_length) * NH * B;
    DeviceCode gpu;
    if (device_code(&gpu) != STATUS_OK) { return; }
    const int64_t grid = items < (int64_t)gpu.sms * C::ctas ? items : gpu.sms * C::ctas;
    launch_dependent(gpu, decode_chunks<C>, (unsigned)grid, C::threads, shared_bytes<C>(), 1, stream, out, k_cache,
                     v_cache, qkv, lengths, partials<C>(scratch, B, T, NH), Divisor(B * NH), Divisor(NH), T,
                     max_length);
}

// What serves a head size, here and in decode/step.cuh
template <int HS> struct Serving;
template <> struct Serving<32> { typedef DecodeTiles<32, 8, 2> Tiles; };
template <> struct Serving<64> { typedef DecodeTiles<64, 4, 3> Tiles; };
template <> struct Serving<96> { typedef DecodeTiles<96, 2, 2> Tiles; };
template <> struct Serving<128> { typedef DecodeTiles<128, 2, 2> Tiles; };
#if defined(DECODE_KERNELS) || __INCLUDE_LEVEL__ == 0
template <int HS> constexpr AttentionDecodeConfig decode_config(const char* name) {
    typedef typename Serving<HS>::Tiles Tiles;
    return {name, HS, shared_bytes<Tiles>(), decode<Tiles>, decode_scratch_bytes<Tiles>};
}
// Names are keys of a chunk and warps of a CTA.
static constexpr AttentionDecodeConfig decode_configs[] = {
    decode_config<32>("512 keys 8 warps"), decode_config<64>("256 keys 8 warps"), decode_config<96>("128 keys 8 warps"),
    decode_config<128>("128 keys 8 warps")};
#endif

} // namespace split

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, split::decode_configs); }
#endif

#endif
