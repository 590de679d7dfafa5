/*
Sampling on the GPU: sample_token of sampler.h, one thread block per sequence, so that a step of the decoder is one CUDA graph.
Penalty, temperature and weights are computed by the same operations; thresholds are found by bisection on the bits of the
floats, which have the floats' order. Counts are exact, and sums are in fp64, in a fixed order.

decode_sample_kernel begins a step: it samples the token of every active sequence, writes it to page-locked memory for the host,
and embeds it for the layers that follow. If all sequences are greedy, decode_greedy_kernel takes the token from the largest
logit's key (logit_key()), which the head has left.
*/
#ifndef LLMC_DECODE_SAMPLER_CUH
#define LLMC_DECODE_SAMPLER_CUH

#include "rows.cuh"

constexpr int SAMPLE_THREADS = 1024, SAMPLE_WARPS = SAMPLE_THREADS / WARP_SIZE;

// A sequence, on the device
struct DecodeSlot {
    SamplerSettings sampler;
    uint64_t sample;
    int length; // tokens in the cache
    int active;
};

// The word that the host reads: the step and the token; the token is -1 if the slot was not active
__host__ __device__ inline unsigned long long sampled_word(unsigned step, int token) {
    return (unsigned long long)step << 32 | (unsigned)token;
}

// ----------------------------------------------------------------------------
// Reductions over the block, in a fixed order; every thread gets the result.

struct SampleShared {
    double sums[SAMPLE_WARPS];
    unsigned long long keys[SAMPLE_WARPS];
    int counts[SAMPLE_WARPS];
    int token;
};

__device__ inline double sample_warp_sum(double x) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { x += __shfl_xor_sync(0xffffffffu, x, offset); }
    return x;
}
__device__ inline unsigned long long sample_warp_max(unsigned long long x) {
    for (int offset = WARP_SIZE / 2; offset > 0; offset /= 2) { x = max(x, __shfl_xor_sync(0xffffffffu, x, offset)); }
    return x;
}
// of_warps: of SampleShared. of_warp: a warp's reduction
template <class T, class OfWarp>
__device__ inline T sample_block_reduce(T (&of_warps)[SAMPLE_WARPS], T x, const OfWarp& of_warp) {
    x = of_warp(x);
    __syncthreads(); // what the previous call left has been read
    if (threadIdx.x % WARP_SIZE == 0) { of_warps[threadIdx.x / WARP_SIZE] = x; }
    __syncthreads();
    return of_warp(of_warps[threadIdx.x % WARP_SIZE]);
}
__device__ inline double sample_block_sum(SampleShared& s, double x) {
    return sample_block_reduce(s.sums, x, sample_warp_sum);
}
__device__ inline int sample_block_count(SampleShared& s, int x) {
    return sample_block_reduce(s.counts, x, [](int y) { return __reduce_add_sync(0xffffffffu, y); });
}
__device__ inline unsigned long long sample_block_max(SampleShared& s, unsigned long long x) {
    return sample_block_reduce(s.keys, x, sample_warp_max);
}

// ----------------------------------------------------------------------------

// The largest threshold in [low, high) for which `reached` holds; it is monotonic, true for `low` and false for `high`. All
// threads of the block call it: `reached` may synchronise.
template <class Reached> __device__ inline unsigned sample_bisect(unsigned low, unsigned high, const Reached& reached) {
    while (high - low > 1) {
        unsigned middle = low + (high - low) / 2;
        if (reached(middle)) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

// The number of elements i of x (V) for which wanted(i, x[i]) holds; and the sum of those for which wanted(x[i]) holds
template <class Wanted>
__device__ inline int sample_count(SampleShared& s, const float* x, int V, const Wanted& wanted) {
    int count = 0;
    for (int i = threadIdx.x; i < V; i += SAMPLE_THREADS) { count += wanted(i, x[i]); }
    return sample_block_count(s, count);
}
template <class Wanted>
__device__ inline double sample_sum(SampleShared& s, const float* x, int V, const Wanted& wanted) {
    double sum = 0.0;
    for (int i = threadIdx.x; i < V; i += SAMPLE_THREADS) { sum += wanted(x[i]) ? (double)x[i] : 0.0; }
    return sample_block_sum(s, sum);
}
// The index of the ties-th element whose key is `key`, counted in ascending order of indices; V where there are no more than
// `ties` of them.
template <class Key> __device__ inline int sample_last_tie(SampleShared& s, const float* x, int V, unsigned key,
                                                           int ties, const Key& key_of) {
    auto equal_up_to = [&](unsigned end) {
        return sample_count(s, x, V, [&](int i, float y) { return i < (int)end && key_of(y) == key; });
    };
    if (equal_up_to((unsigned)V) <= ties) { return V; }
    return (int)sample_bisect(0, (unsigned)V, [&](unsigned end) { return equal_up_to(end) < ties; });
}

// x (V) <- logits after the penalty; returns the index of the largest, as sample_argmax does.
__device__ inline int sample_load(SampleShared& s, float* x, const float* logits, const unsigned* seen, int V,
                                  SamplerSettings settings) {
    unsigned long long best = 0;
    bool keep = settings.temperature > 0.0f, penalty = settings.repetition_penalty != 1.0f;
    constexpr int STEP = SAMPLE_THREADS * f128::size, LOADS = 8; // in flight
    for (int base = (int)threadIdx.x * f128::size; base < V; base += LOADS * STEP) {
        f128 v[LOADS];
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
            if (base + n * STEP < V) { v[n] = load128(logits + base + n * STEP); }
        }
#pragma unroll
        for (int n = 0; n < LOADS; n++) {
#pragma unroll
            for (int k = 0; k < f128::size; k++) {
                int i = base + n * STEP + k;
                if (i >= V) { continue; }
                float y = v[n][k];
                if (penalty && (seen[i / 32] >> i % 32 & 1)) { y = sampler_penalise(y, settings.repetition_penalty); }
                if (keep) { x[i] = y + 0.0f; } // -0 becomes 0
                unsigned long long key = logit_key(y, i);
                best = key > best ? key : best;
            }
        }
    }
    best = sample_block_max(s, best);
    return token_of_key(best, V);
}

// x (V): logits become weights exp((x - top) / temperature), or 0 outside of the top_k. Returns their sum.
__device__ inline double sample_weights(SampleShared& s, float* x, int V, float top, SamplerSettings settings) {
    unsigned threshold = 0;
    int last = V; // of the elements equal to the threshold, those up to this index are in the top_k
    if (settings.top_k > 0 && settings.top_k < V) {
        unsigned k = (unsigned)settings.top_k;
        threshold = sample_bisect(0, 0xffffffffu, [&](unsigned key) {
            return (unsigned)sample_count(s, x, V, [&](int, float y) { return sample_key(y) >= key; }) >= k;
        });
        int above = sample_count(s, x, V, [&](int, float y) { return sample_key(y) > threshold; });
        last = sample_last_tie(s, x, V, threshold, (int)k - above, [](float y) { return sample_key(y); });
    }
    double sum = 0.0;
    for (int i = threadIdx.x; i < V; i += SAMPLE_THREADS) {
        unsigned key = sample_key(x[i]);
        bool in = x[i] == x[i] && (key > threshold || (key == threshold && i <= last));
        x[i] = in ? sampler_exp((x[i] - top) / settings.temperature) : 0.0f;
        sum += (double)x[i];
    }
    return sample_block_sum(s, sum);
}

// Top-p: keeps the fewest of the largest weights x (V) whose sum reaches `target`, and sets the others to 0. Returns the sum of
// those kept.
__device__ inline double sample_nucleus(SampleShared& s, float* x, int V, double target) {
    unsigned threshold = sample_bisect(1, 0x3f800001u, [&](unsigned bits) { // 1 is the largest weight
        return sample_sum(s, x, V, [&](float w) { return __float_as_uint(w) >= bits; }) >= target;
    });
    double above = sample_sum(s, x, V, [&](float w) { return __float_as_uint(w) > threshold; });
    int ties = 1;
    while (ties < V && above + ties * (double)__uint_as_float(threshold) < target) { ties++; }
    int last = sample_last_tie(s, x, V, threshold, ties, [](float w) { return __float_as_uint(w); });
    double sum = 0.0;
    for (int i = threadIdx.x; i < V; i += SAMPLE_THREADS) {
        unsigned bits = __float_as_uint(x[i]);
        if (bits < threshold || (bits == threshold && i > last)) { x[i] = 0.0f; }
        sum += (double)x[i];
    }
    return sample_block_sum(s, sum);
}

// The first index at which the cumulative sum of the weights x (V) exceeds `point`. Each warp sums a contiguous range of
// indices; the warp whose range contains the point searches it.
__device__ inline int sample_draw(SampleShared& s, const float* x, int V, double point) {
    int lane = threadIdx.x % WARP_SIZE, warp = threadIdx.x / WARP_SIZE, found = -1;
    int range = CEIL_DIV(CEIL_DIV(V, SAMPLE_WARPS), WARP_SIZE) * WARP_SIZE, begin = warp * range;
    double sum = 0.0, before = 0.0, at = 0.0;
    __syncthreads(); // the weights are written, and s.sums of the last call has been read
    for (int i = begin + lane; i < min(begin + range, V); i += WARP_SIZE) { sum += (double)x[i]; }
    sum = sample_warp_sum(sum);
    if (lane == 0) { s.sums[warp] = sum; }
    __syncthreads();
    for (int w = 0; w < SAMPLE_WARPS; w++) { // the point beyond all sums, by rounding: the last range with a weight
        if (s.sums[w] > 0.0) { found = w, at = before; }
        before += s.sums[w];
        if (found == w && point < before) { break; }
    }
    if (warp == found) {
        int token = -1;
        for (int i = begin + lane; i - lane < min(begin + range, V); i += WARP_SIZE) {
            double w = i < V ? (double)x[i] : 0.0, up_to = w;
            for (int offset = 1; offset < WARP_SIZE; offset *= 2) {
                double y = __shfl_up_sync(0xffffffffu, up_to, offset);
                up_to += lane >= offset ? y : 0.0;
            }
            unsigned some = __ballot_sync(0xffffffffu, w > 0.0);
            unsigned hit = __ballot_sync(0xffffffffu, w > 0.0 && point < at + up_to);
            if (some) { token = i - lane + 31 - __clz((int)some); }
            if (hit) {
                token = i - lane + __ffs((int)hit) - 1;
                break;
            }
            at += __shfl_sync(0xffffffffu, up_to, WARP_SIZE - 1);
        }
        if (lane == 0) { s.token = token; }
    }
    __syncthreads();
    return s.token;
}

// sample_token of sampler.h, by a thread block. x (V) is scratch; seen: a bit for each token.
__device__ inline int decode_sample(SampleShared& s, float* x, const float* logits, const unsigned* seen, int V,
                                    SamplerSettings settings, float coin) {
    int largest = sample_load(s, x, logits, seen, V, settings);
    if (!(settings.temperature > 0.0f)) { return largest; }
    __syncthreads(); // all of x has been written
    float top = x[largest];
    if (!isfinite(top)) { return largest; }
    __syncthreads(); // x[largest] has been read
    double norm = sample_weights(s, x, V, top, settings);
    if (settings.top_p < 1.0f) { norm = sample_nucleus(s, x, V, (double)settings.top_p * norm); }
    return sample_draw(s, x, V, (double)coin * norm);
}

// ----------------------------------------------------------------------------

// The arguments of the kernels that begin a step, for B sequences of up to T tokens
struct DecodeBegin {
    DecodeSlot* slots;            // (B)
    int* positions;               // (B): of the token that the layers compute, -1 for none
    unsigned* seen;               // (B,words)
    const float* logits;          // (B,Vp)
    unsigned long long* row_keys; // (B): logit_key of the largest logit; or 0, where the logits must be searched
    float* scratch;               // (B,Vp)
    floatX* x;                    // (B,C)
    const floatX *wte, *wpe;
    unsigned* step;           // (B): of each slot
    unsigned long long* word; // (B): sampled_word, page-locked on the host
    int T, V, Vp, C, words;
};

// Appends a token to the sequence, unless it is full, and embeds it. By all threads of a block, which have read the slot.
__device__ inline void decode_append(const DecodeBegin& p, int b, DecodeSlot slot, int token) {
    bool room = slot.length < p.T;
    if (threadIdx.x == 0) {
        p.positions[b] = room ? slot.length : -1;
        p.row_keys[b] = 0; // of the logits before
        if (room) {
            p.slots[b].length = slot.length + 1;
        } else {
            p.slots[b].active = 0;
        }
        p.seen[(size_t)b * p.words + token / 32] |= 1u << token % 32;
    }
    if (room) { embed_row(p.x + (size_t)b * p.C, p.wte, p.wpe, token, slot.length, p.C); }
}

// While a token is sampled, the row of wpe that it is embedded with, into L2. By all threads of a block
__device__ inline void decode_prefetch_position(const DecodeBegin& p, const DecodeSlot& slot) {
    for (int c = (int)(threadIdx.x * x128::size); slot.length < p.T && c < p.C; c += (int)(blockDim.x * x128::size)) {
        prefetch_global_l2(p.wpe + (size_t)slot.length * p.C + c);
    }
}
// Tells the host the token, or that there is none (-1), appends and embeds it. By all threads of a block
__device__ inline void decode_begin_step(const DecodeBegin& p, int b, DecodeSlot slot, int token) {
    __syncthreads(); // the slot and the key have been read
    if (threadIdx.x == 0) {
        unsigned step = ++p.step[b];
        *(volatile unsigned long long*)&p.word[b] = sampled_word(step, token);
        if (token < 0) { p.positions[b] = -1; }
    }
    if (token >= 0) { decode_append(p, b, slot, token); }
}

static __global__ void __launch_bounds__(SAMPLE_THREADS, 1) decode_sample_kernel(DecodeBegin p) {
    __shared__ SampleShared shared;
    int b = blockIdx.x, token = -1;
    launch_dependents();
    wait_for_previous();
    DecodeSlot slot = p.slots[b];
    if (slot.active) {
        decode_prefetch_position(p, slot);
        unsigned long long key = sampler_is_greedy(&slot.sampler) ? p.row_keys[b] : 0;
        if (key != 0) {
            token = token_of_key(key, p.V);
        } else {
            float coin = sampler_coin(slot.sampler.seed, slot.sample, (uint64_t)slot.length);
            token = decode_sample(shared, p.scratch + (size_t)b * p.Vp, p.logits + (size_t)b * p.Vp,
                                  p.seen + (size_t)b * p.words, p.V, slot.sampler, coin);
        }
    }
    decode_begin_step(p, b, slot, token);
}

// The same if all active sequences are greedy and have keys. With few threads and registers, so that thread blocks of the next
// kernel find room beside it, and load their weights meanwhile
constexpr int GREEDY_THREADS = 128;
static __global__ void __launch_bounds__(GREEDY_THREADS) decode_greedy_kernel(DecodeBegin p) {
    int b = blockIdx.x, token = -1;
    launch_dependents();
    wait_for_previous();
    DecodeSlot slot = p.slots[b];
    if (slot.active) {
        decode_prefetch_position(p, slot);
        token = token_of_key(p.row_keys[b], p.V);
    }
    decode_begin_step(p, b, slot, token);
}

// Slot b, in which a prompt ends in row last[b] of `rows`, is set to begin[b], and its seen bits to the prompt's tokens. One
// thread block per slot.
static __global__ void decode_begin_slots_kernel(DecodeSlot* slots, unsigned* seen, const DecodeSlot* begin,
                                                 const int* last, const PromptRow* rows, int words) {
    int b = blockIdx.x, row = last[b];
    if (row < 0) { return; }
    seen += (size_t)b * words;
    for (int i = threadIdx.x; i < words; i += blockDim.x) { seen[i] = 0; }
    __syncthreads();
    for (int i = rows[row].position - (int)threadIdx.x; i >= 0; i -= (int)blockDim.x) {
        int token = rows[row - i].token;
        atomicOr(&seen[token / 32], 1u << token % 32);
    }
    if (threadIdx.x == 0) { slots[b] = begin[b]; }
}

// Called in stream order.
static __global__ void decode_stop_kernel(DecodeSlot* slots, int b) { slots[b].active = 0; }

#endif
