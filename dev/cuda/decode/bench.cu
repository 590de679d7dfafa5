/*
The program that every variant of decode becomes: check every configuration over a sweep of shapes, then time each at the shapes
asked for and print a row for it. A wrong kernel ends the program with exit code 1 before anything is timed.

The check    sequences of many lengths, some without a part; what stands behind the new token, outputs and scratch filled with
             NaN, guard bytes around all. Every row against fp64 (decode/reference.h). The caches bit for bit: the new token and
             nothing else. The counters 0 again. Bit for bit, too: run again on the same scratch, on two streams at once. That a
             sequence alone has the same bits, with another max_length, is test_gpu_decode's.
The timing   bench.h's: all B sequences have T tokens, the new one included; caches rotate through more than the L2 cache.
The row      GB/s count K and V of all tokens, once. `trains` is yes for what decode.cuh takes.
*/
#include "reference.h"
#include "dev/cuda/attention/attention_bench.h"

// ----------------------------------------------------------------------------
// The tensors

struct DecodeSet {
    Buffer out, k, v, qkv, lengths, scratch;
};
static inline DecodeSet set_allocate(Shape s, const std::vector<int>& lengths) {
    DecodeSet t;
    t.out = buffer_allocate(out_elements(s) * sizeof(floatX));
    t.k = buffer_allocate(s.elements() * sizeof(floatX));
    t.v = buffer_allocate(s.elements() * sizeof(floatX));
    t.qkv = buffer_allocate(3 * out_elements(s) * sizeof(floatX));
    t.lengths = buffer_allocate(s.B * sizeof(int));
    cuda_check(cudaMemcpy(t.lengths.data, lengths.data(), s.B * sizeof(int), cudaMemcpyHostToDevice));
    return t;
}
// Fills with NaN, then writes qkv and the caches up to the new token; if `store`, the new token's rows of the caches, too
static inline void set_fill(const DecodeSet& t, Shape s, Pattern pattern, uint64_t seed, bool store) {
    for (Buffer b : {t.k, t.v, t.qkv}) { buffer_poison(b); }
    fill_caches<<<4096, 256>>>(t.k.as<floatX>(), t.v.as<floatX>(), t.lengths.as<int>(), s, pattern, seed);
    fill_new_tokens<<<(unsigned)CEIL_DIV(3 * out_elements(s), (int64_t)256), 256>>>(
        t.qkv.as<floatX>(), t.k.as<floatX>(), t.v.as<floatX>(), t.lengths.as<int>(), s, pattern, seed, store);
    cuda_check(cudaGetLastError());
}
// Allocates scratch with counters of 0, followed by NaN
static inline Buffer scratch_allocate(const AttentionDecodeConfig& c, Shape s) {
    Buffer scratch = buffer_allocate(c.scratch_bytes(s.B, s.T, s.NH, s.HS));
    buffer_poison(scratch);
    cuda_check(cudaMemset(scratch.data, 0, decode_counter_bytes(s.B, s.NH)));
    return scratch;
}

// The expected result of a launch: the caches in `after`, and the rows of out in fp64
struct DecodeReference {
    DecodeSet after;
    Buffer out, noise; // double
};
static inline DecodeReference reference_allocate(Shape s, const std::vector<int>& lengths) {
    DecodeReference r;
    r.after = set_allocate(s, lengths);
    r.out = buffer_allocate(out_elements(s) * sizeof(double));
    r.noise = buffer_allocate(s.heads() * sizeof(double));
    return r;
}
static inline void reference_compute(const DecodeReference& r, Shape s, Pattern pattern, uint64_t seed) {
    set_fill(r.after, s, pattern, seed, true);
    decode_reference<<<dim3(s.NH, s.B), REFERENCE_THREADS>>>(r.out.as<double>(), r.noise.as<double>(),
                                                             r.after.k.as<floatX>(), r.after.v.as<floatX>(),
                                                             r.after.qkv.as<floatX>(), r.after.lengths.as<int>(), s);
    cuda_check(cudaGetLastError());
}

// ----------------------------------------------------------------------------
// The check

static inline void launch(const AttentionDecodeConfig& c, const DecodeSet& t, Shape s, cudaStream_t stream) {
    c.launch(t.out.as<floatX>(), t.k.as<floatX>(), t.v.as<floatX>(), t.qkv.as<floatX>(), t.lengths.as<int>(),
             t.scratch.data, s.B, s.T, s.NH, s.HS, s.T, stream);
}

// Runs the configuration on each set, concurrently if there are several, into outputs of NaN. Ends the program if it fails or
// writes out of bounds.
static void run_poisoned(const AttentionDecodeConfig& c, const std::vector<DecodeSet>& sets, Shape s,
                         const std::string& what) {
    for (const DecodeSet& t : sets) { buffer_poison(t.out); }
    std::vector<Buffer> written;
    for (const DecodeSet& t : sets) { written.insert(written.end(), {t.out, t.k, t.v, t.scratch}); }
    run_at_once(sets.size(), written, what, [&](size_t n, cudaStream_t stream) { launch(c, sets[n], s, stream); });
    for (const DecodeSet& t : sets) {
        std::vector<char> counters(decode_counter_bytes(s.B, s.NH));
        cuda_check(cudaMemcpy(counters.data(), t.scratch.data, counters.size(), cudaMemcpyDeviceToHost));
        if (std::any_of(counters.begin(), counters.end(), [](char x) { return x != 0; })) {
            fatal("%s: counters of the scratch are not 0 afterwards", what.c_str());
        }
    }
}

// Ends the program if out or the caches in t are wrong, else returns out's errors.
static Verdict judge(const DecodeSet& t, const DecodeReference& r, Shape s, const std::string& what) {
    const auto d = from_device<DecodeDifference>([&](DecodeDifference* on_gpu) {
        compare_decode<<<(unsigned)CEIL_DIV((int64_t)32 * s.heads(), (int64_t)256), 256>>>(
            on_gpu, t.out.as<floatX>(), r.out.as<double>(), r.noise.as<double>(), t.lengths.as<int>(), s);
    });
    double worst;
    memcpy(&worst, &d.worst, sizeof(worst));
    if (d.not_finite) { fatal("%s: %llu elements are not finite, or were not written", what.c_str(), d.not_finite); }
    if (d.touched) { fatal("%s: %llu elements of sequences without a part were written", what.c_str(), d.touched); }
    if (!(worst <= 1)) { fatal("%s: a row of out is off by %.3g times what is allowed", what.c_str(), worst); }
    if (words_different(t.k.data, r.after.k.data, t.k.bytes) || words_different(t.v.data, r.after.v.data, t.v.bytes)) {
        fatal("%s: the caches are not what they were, with the new token in its place", what.c_str());
    }
    return {worst, d.reference2 > 0 ? sqrt(d.error2 / d.reference2) : 0, true};
}

// Ends the program if the configuration is wrong at this shape, or has other bits when run again.
static Verdict check(const AttentionDecodeConfig& c, const DecodeReference& r, Shape s, const std::vector<int>& lengths,
                     Pattern pattern, uint64_t seed, const std::string& what) {
    DecodeSet t = set_allocate(s, lengths), again = set_allocate(s, lengths), beside = set_allocate(s, lengths);
    for (DecodeSet* set : {&t, &again, &beside}) { set_fill(*set, s, pattern, seed, false); }
    t.scratch = scratch_allocate(c, s);
    beside.scratch = scratch_allocate(c, s);
    run_poisoned(c, {t}, s, what);
    Verdict verdict = judge(t, r, s, what);
    again.scratch = t.scratch; // as the first launch left it
    run_poisoned(c, {again, beside}, s, what + ", repeated");
    for (const DecodeSet& set : {again, beside}) {
        verdict.worst = fmax(verdict.worst, judge(set, r, s, what + ", repeated").worst);
        if (words_different(t.out.data, set.out.data, t.out.bytes)) {
            fatal("%s: other bits when it is run again", what.c_str());
        }
    }
    return verdict;
}

// ----------------------------------------------------------------------------
// Timing

// Reads n vectors of 16 bytes, eight in flight a thread. The sum is stored only if it equals an arbitrary value, so that the
// compiler cannot remove the loads.
__global__ void __launch_bounds__(512) read_memory(int* sink, const int4* x, size_t n) {
    int sum = 0;
    const size_t step = (size_t)gridDim.x * blockDim.x;
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    for (; i + 7 * step < n; i += 8 * step) {
        int4 v[8];
#pragma unroll
        for (int k = 0; k < 8; k++) { v[k] = __ldcs(x + i + k * step); }
#pragma unroll
        for (int k = 0; k < 8; k++) { sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w; }
    }
    if (sum == 0x5eed5eed) { *sink = sum; }
}
// Prints the GB/s of a kernel that only reads 2 GB, in the modes chosen
static void measure_read(BenchGpu* gpu, const BenchOptions& o) {
    const size_t threads = (size_t)gpu->properties.multiProcessorCount * 4 * 512, per_thread = 2e9 / 16 / threads;
    const size_t vectors = threads * (per_thread / 8 * 8);
    Buffer memory = buffer_allocate(vectors * 16), sink = buffer_allocate(4);
    buffer_poison(memory);
    auto read = [&](int, cudaStream_t stream) {
        read_memory<<<(unsigned)(threads / 512), 512, 0, stream>>>(sink.as<int>(), memory.as<int4>(), vectors);
    };
    char what[32];
    snprintf(what, sizeof(what), "reading %.1f GB", 16e-9 * vectors);
    measure_ceiling(gpu, o, BYTES, what, 16.0 * vectors, read);
}

// ----------------------------------------------------------------------------
// What attention_bench.h asks for

struct DecodeTrial {
    typedef AttentionDecodeConfig Config;
    typedef ::Variant<Config> Variant;
    static constexpr const char* name = "decode";
    static constexpr const RaceUnit* unit = &BYTES;
    Shape s;
    std::vector<int> lengths;
    DecodeReference r;
    Pattern pattern = ORDINARY; // of fill()
    uint64_t seed = 0;
    std::vector<DecodeSet> sets;

    static const char* unsupported(Shape s) { return attention_decode_unsupported(s.B, s.T, s.NH, s.HS, s.T); }
    // Every T at which chunks end or begin; one head, and more heads than resident thread blocks
    static Sweep sweep() {
        return {7,
                3,
                {1, 2, 33, 63, 64, 65, 128, 129, 255, 256, 257, 512, 513, 1025, 4500},
                {{1, 700, 1, 0}, {61, 333, 13, 0}}};
    }
    static bool serves(const Config& c, Shape s) { return c.HS == 0 || c.HS == s.HS; }
    // Whether programs generate with this configuration
    static const char* trains(const Variant& variant, const Config& c, const cudaDeviceProp&, Shape s) {
        const char* serves = sizeof(floatX) == sizeof(float) ? "naive" : "split";
        return attention_config(variant, nullptr, s.HS, SIZE_MAX) == &c && strcmp(variant.name, serves) == 0 ? "yes"
                                                                                                             : "no";
    }
    static void measure(BenchGpu* gpu, const BenchOptions& o) { measure_read(gpu, o); }

    DecodeTrial(Shape s, bool timed) : s(s), lengths(s.B) {
        for (int b = 0; b < s.B; b++) { lengths[b] = timed ? s.T - 1 : decode_length(s, b); }
        r = reference_allocate(s, lengths);
    }
    void fill(Pattern pattern_of_all, uint64_t seed_of_all) {
        pattern = pattern_of_all, seed = seed_of_all;
        reference_compute(r, s, pattern, seed);
    }
    Verdict check(const Config& c, const std::string& what, int) const {
        return ::check(c, r, s, lengths, pattern, seed, what);
    }
    size_t scratch_bytes(const Config& c) const { return c.scratch_bytes(s.B, s.T, s.NH, s.HS); }
    size_t set_bytes() const { return 2 * s.elements() * sizeof(floatX); }
    double work() const { return (double)set_bytes(); }
    void rotate(int count, size_t scratch_bytes) {
        const Buffer scratch = buffer_allocate(scratch_bytes);
        cuda_check(cudaMemset(scratch.data, 0, scratch.bytes));
        for (int n = 0; n < count; n++) {
            sets.push_back(set_allocate(s, lengths));
            set_fill(sets[n], s, pattern, seed, false);
            sets[n].scratch = scratch;
        }
    }
    void launch(const Config& c, int set, cudaStream_t stream) const { ::launch(c, sets[set], s, stream); }
};

template <>
int variant_main(int argc, char** argv, const Variant<AttentionDecodeConfig>& variant, int compute_capability) {
    return run_variant<DecodeTrial>(argc, argv, variant,
                                    {{"-b", "B, batch", 1},
                                     {"-t", "T, tokens of a sequence, the new one included", 1024},
                                     {"-h", "NH, number of heads", 12},
                                     {"-d", "HS, head size: 32, 64, 96 or 128", 64}},
                                    compute_capability);
}
