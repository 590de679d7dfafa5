/*
The program that every variant of decode becomes: check every configuration over a sweep of shapes, then time each at the shapes
asked for and print a row for it. A wrong kernel ends the program with exit code 1 before anything is timed.

The check    sequences of many lengths, some without a part; what stands behind the new token, outputs and scratch filled with
             NaN, guard bytes around all. Every row against fp64 (decode/reference.h). The caches bit for bit: the new token and
             nothing else. The counters 0 again. Bit for bit, too: run again on the same scratch, on two streams at once, and
             each of several sequences alone, in a cache and with a max_length of its own length.
The timing   bench.h's: all B sequences have T tokens, the new one included; caches rotate through more than the L2 cache.
The row      GB/s count K and V of all tokens, once. `expected` is launch and latency, 2.5 us for one chunk and 4 for more, and
             those bytes at 90% of the nominal bandwidth. `trains` is yes for what decode.cuh takes.
*/
#include "bench.h"
#include "reference.h"
#include "dev/cuda/bench/bench.h"

static const std::vector<BenchSize> decode_sizes = {{"-b", "B", "batch", 1},
                                                    {"-t", "T", "tokens of a sequence, the new one included", 1024},
                                                    {"-h", "NH", "number of heads", 12},
                                                    {"-d", "HS", "head size: 32, 64, 96 or 128", 64}};

static inline DecodeShape decode_shape(const std::vector<int>& sizes) {
    const DecodeShape s = {sizes[0], sizes[1], sizes[2], sizes[3]};
    const char* why = attention_decode_unsupported(s.B, s.T, s.NH, s.HS, s.T);
    if (why) { fatal("B %d T %d NH %d HS %d: %s", s.B, s.T, s.NH, s.HS, why); }
    return s;
}

// ----------------------------------------------------------------------------
// The tensors

struct DecodeSet {
    Buffer out, k, v, qkv, lengths, scratch;
};
static inline DecodeSet set_allocate(DecodeShape s, const std::vector<int>& lengths) {
    DecodeSet t;
    t.out = buffer_allocate(s.out() * sizeof(floatX));
    t.k = buffer_allocate(s.cache() * sizeof(floatX));
    t.v = buffer_allocate(s.cache() * sizeof(floatX));
    t.qkv = buffer_allocate(3 * s.out() * sizeof(floatX));
    t.lengths = buffer_allocate(s.B * sizeof(int));
    cuda_check(cudaMemcpy(t.lengths.data, lengths.data(), s.B * sizeof(int), cudaMemcpyHostToDevice));
    return t;
}
static inline void set_free(DecodeSet* t) {
    for (Buffer* b : {&t->out, &t->k, &t->v, &t->qkv, &t->lengths, &t->scratch}) { buffer_free(b); }
}
// Fills with NaN, then writes qkv and the caches up to the new token; if `store`, the new token's rows of the caches, too
static inline void set_fill(const DecodeSet& t, DecodeShape s, Pattern pattern, uint64_t seed, bool store) {
    for (Buffer b : {t.k, t.v, t.qkv}) { buffer_poison(b); }
    fill_caches<<<4096, 256>>>(t.k.as<floatX>(), t.v.as<floatX>(), t.lengths.as<int>(), s, pattern, seed);
    fill_new_tokens<<<(unsigned)CEIL_DIV(3 * s.out(), (int64_t)256), 256>>>(
        t.qkv.as<floatX>(), t.k.as<floatX>(), t.v.as<floatX>(), t.lengths.as<int>(), s, pattern, seed, store);
    cuda_check(cudaGetLastError());
}
// Allocates scratch with counters of 0, followed by NaN
static inline Buffer scratch_allocate(const AttentionDecodeConfig& c, DecodeShape s) {
    Buffer scratch = buffer_allocate(c.scratch_bytes(s.B, s.T, s.NH, s.HS));
    buffer_poison(scratch);
    cuda_check(cudaMemset(scratch.data, 0, decode_counter_bytes(s.B, s.NH)));
    return scratch;
}

// The expected result of a launch: the caches in `after`, and the rows of out in fp64
struct DecodeReference {
    DecodeSet after;
    double *out, *noise;
};
static inline DecodeReference reference_allocate(DecodeShape s, const std::vector<int>& lengths) {
    DecodeReference r;
    r.after = set_allocate(s, lengths);
    cuda_check(cudaMalloc(&r.out, s.out() * sizeof(double)));
    cuda_check(cudaMalloc(&r.noise, s.heads() * sizeof(double)));
    return r;
}
static inline void reference_compute(const DecodeReference& r, DecodeShape s, Pattern pattern, uint64_t seed) {
    set_fill(r.after, s, pattern, seed, true);
    decode_reference<<<dim3(s.NH, s.B), REFERENCE_THREADS>>>(r.out, r.noise, r.after.k.as<floatX>(),
                                                             r.after.v.as<floatX>(), r.after.qkv.as<floatX>(),
                                                             r.after.lengths.as<int>(), s);
    cuda_check(cudaGetLastError());
}
static inline void reference_free(DecodeReference* r) {
    set_free(&r->after);
    cuda_check(cudaFree(r->out));
    cuda_check(cudaFree(r->noise));
}

// ----------------------------------------------------------------------------
// The check

struct Verdict {
    double worst = 0;   // largest error / tolerance of a row: at most 1 passes
    double rel_err = 0; // ||out - ref|| / ||ref|| of all rows
    bool deterministic = true;
};

static inline void launch(const AttentionDecodeConfig& c, const DecodeSet& t, DecodeShape s, int max_length,
                          cudaStream_t stream) {
    c.launch(t.out.as<floatX>(), t.k.as<floatX>(), t.v.as<floatX>(), t.qkv.as<floatX>(), t.lengths.as<int>(),
             t.scratch.data, s.B, s.T, s.NH, s.HS, max_length, stream);
}

// Runs the configuration on each set, concurrently if there are several, into outputs of NaN. Ends the program if it fails or
// writes out of bounds.
static void run_poisoned(const AttentionDecodeConfig& c, const std::vector<DecodeSet>& sets, DecodeShape s,
                         int max_length, const std::string& what) {
    for (const DecodeSet& t : sets) { buffer_poison(t.out); }
    cuda_check(cudaDeviceSynchronize());
    std::vector<cudaStream_t> streams(sets.size());
    for (cudaStream_t& stream : streams) { cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    status_clear();
    for (size_t n = 0; n < sets.size(); n++) { launch(c, sets[n], s, max_length, streams[n]); }
    if (status_now() != STATUS_OK) { fatal("%s: %s", what.c_str(), status_message()); }
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) { fatal("%s: the kernel failed: %s", what.c_str(), cudaGetErrorString(error)); }
    for (cudaStream_t stream : streams) { cuda_check(cudaStreamDestroy(stream)); }
    for (const DecodeSet& t : sets) {
        for (Buffer b : {t.out, t.k, t.v, t.scratch}) {
            if (!buffer_intact(b)) { fatal("%s: wrote outside of its tensors", what.c_str()); }
        }
        std::vector<char> counters(decode_counter_bytes(s.B, s.NH));
        cuda_check(cudaMemcpy(counters.data(), t.scratch.data, counters.size(), cudaMemcpyDeviceToHost));
        if (std::any_of(counters.begin(), counters.end(), [](char x) { return x != 0; })) {
            fatal("%s: counters of the scratch are not 0 afterwards", what.c_str());
        }
    }
}

// Ends the program if out or the caches in t are wrong, else returns out's errors.
static Verdict judge(const DecodeSet& t, const DecodeReference& r, DecodeShape s, const std::string& what) {
    DecodeDifference *on_gpu, d;
    cuda_check(cudaMalloc(&on_gpu, sizeof(d)));
    cuda_check(cudaMemset(on_gpu, 0, sizeof(d)));
    compare_decode<<<(unsigned)CEIL_DIV(32 * s.heads(), (int64_t)256), 256>>>(on_gpu, t.out.as<floatX>(), r.out,
                                                                              r.noise, t.lengths.as<int>(), s);
    cuda_check(cudaGetLastError());
    cuda_check(cudaMemcpy(&d, on_gpu, sizeof(d), cudaMemcpyDeviceToHost));
    cuda_check(cudaFree(on_gpu));
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

// Whether sequence b gives the same bits alone: B = 1, with a cache and a max_length of just its tokens. The inputs are copied
// from `after`, with NaN in the last row, which the kernel must write.
static bool same_alone(const AttentionDecodeConfig& c, const DecodeSet& t, const DecodeReference& r, DecodeShape s,
                       int b, int length, const std::string& what) {
    const DecodeShape alone = {1, length + 1, s.NH, s.HS};
    DecodeSet one = set_allocate(alone, {length});
    one.scratch = scratch_allocate(c, alone);
    const size_t row = s.HS * sizeof(floatX), from = cache_offset(b, 0, s.T, s.NH, s.HS) * sizeof(floatX);
    for (const auto& [to, source] : {std::make_pair(one.k, r.after.k), std::make_pair(one.v, r.after.v)}) {
        buffer_poison(to);
        if (length == 0) { continue; }
        cuda_check(cudaMemcpy2D(to.data, (length + 1) * row, source.data + from, s.T * row, length * row, s.NH,
                                cudaMemcpyDeviceToDevice));
    }
    const size_t out_bytes = s.NH * row;
    cuda_check(cudaMemcpy(one.qkv.data, r.after.qkv.data + 3 * b * out_bytes, 3 * out_bytes, cudaMemcpyDeviceToDevice));
    run_poisoned(c, {one}, alone, length + 1, what);
    const bool same = words_different(one.out.data, t.out.data + b * out_bytes, out_bytes) == 0;
    set_free(&one);
    return same;
}

// Ends the program if the configuration is wrong at this shape, or a sequence alone gives other bits than in the batch.
static Verdict check(const AttentionDecodeConfig& c, const DecodeReference& r, DecodeShape s,
                     const std::vector<int>& lengths, Pattern pattern, uint64_t seed, const std::string& what) {
    DecodeSet t = set_allocate(s, lengths), again = set_allocate(s, lengths), beside = set_allocate(s, lengths);
    for (DecodeSet* set : {&t, &again, &beside}) { set_fill(*set, s, pattern, seed, false); }
    t.scratch = scratch_allocate(c, s);
    beside.scratch = scratch_allocate(c, s);
    run_poisoned(c, {t}, s, s.T, what);
    Verdict verdict = judge(t, r, s, what);
    again.scratch = t.scratch; // as the first launch left it
    run_poisoned(c, {again, beside}, s, s.T, what + ", repeated");
    for (const DecodeSet& set : {again, beside}) {
        verdict.worst = fmax(verdict.worst, judge(set, r, s, what + ", repeated").worst);
        verdict.deterministic &= words_different(t.out.data, set.out.data, t.out.bytes) == 0;
    }
    for (int b = 0; b < std::min(s.B, 7); b++) {
        if (lengths[b] >= 0 && !same_alone(c, t, r, s, b, lengths[b], what + ", alone")) {
            fatal("%s: sequence %d of %d tokens has other bits when it is alone", what.c_str(), b, lengths[b] + 1);
        }
    }
    again.scratch = Buffer();
    for (DecodeSet* set : {&t, &again, &beside}) { set_free(set); }
    return verdict;
}

static std::string describe(const char* variant, const char* config, DecodeShape s, Pattern pattern) {
    char text[256];
    snprintf(text, sizeof(text), "attention_decode_%s %s at B %d T %d NH %d HS %d, %s", variant, config, s.B, s.T, s.NH,
             s.HS, pattern_names[pattern]);
    return text;
}

// Every T at which chunks end or begin, at every head size; with --check-only, the sizes given, if any.
static std::vector<DecodeShape> sweep_shapes(const BenchOptions& o) {
    std::vector<int> Ts = {1, 2, 33, 63, 64, 65, 128, 129, 255, 256, 257, 512, 513, 1025, 4500},
                     HSs = {32, 64, 96, 128};
    auto given = [&](int size) { return o.check_only && o.sizes[size].given; };
    const int B = given(0) ? o.sizes[0].value : 7, NH = given(2) ? o.sizes[2].value : 3;
    const bool whole = !given(0) && !given(1) && !given(2);
    if (given(1)) { Ts = {o.sizes[1].value}; }
    if (given(3)) { HSs = {o.sizes[3].value}; }
    std::vector<DecodeShape> shapes;
    for (int HS : HSs) {
        for (int T : Ts) { shapes.push_back(decode_shape({B, T, NH, HS})); }
        // one head, and more heads than resident thread blocks
        if (whole) { shapes.insert(shapes.end(), {{1, 700, 1, HS}, {61, 333, 13, HS}}); }
    }
    return shapes;
}

static std::vector<int> sweep_lengths(DecodeShape s) {
    std::vector<int> lengths(s.B);
    for (int b = 0; b < s.B; b++) { lengths[b] = decode_length(s, b); }
    return lengths;
}

// Checks every configuration at all shapes of the sweep and all patterns; prints a line for each.
static void check_sweep(const char* variant, const std::vector<const AttentionDecodeConfig*>& configs,
                        const BenchOptions& o) {
    int all_checks = 0;
    std::vector<Verdict> verdicts(configs.size());
    std::vector<int> checks(configs.size());
    for (DecodeShape s : sweep_shapes(o)) {
        const std::vector<int> lengths = sweep_lengths(s);
        DecodeReference r = reference_allocate(s, lengths);
        for (int pattern = 0; pattern < NUM_PATTERNS; pattern++) {
            reference_compute(r, s, (Pattern)pattern, 1000 + pattern);
            for (size_t n = 0; n < configs.size(); n++) {
                if (configs[n]->HS != 0 && configs[n]->HS != s.HS) { continue; }
                const std::string what = describe(variant, configs[n]->name, s, (Pattern)pattern);
                const Verdict v = check(*configs[n], r, s, lengths, (Pattern)pattern, 1000 + pattern, what);
                verdicts[n].worst = fmax(verdicts[n].worst, v.worst);
                verdicts[n].deterministic &= v.deterministic;
                checks[n]++, all_checks++;
            }
        }
        reference_free(&r);
    }
    if (all_checks == 0) {
        fatal("attention_decode_%s: no configuration serves head size %d", variant, o.sizes[3].value);
    }
    for (size_t n = 0; n < configs.size(); n++) {
        if (checks[n] == 0) { continue; }
        const std::string head_size = configs[n]->HS ? "HS " + std::to_string(configs[n]->HS) : "every HS";
        printf("attention_decode_%s %s %s, %s: %d checks passed, largest error %.0f%% of what is allowed, %s\n",
               variant, PRECISION_NAME, configs[n]->name, head_size.c_str(), checks[n], 100 * verdicts[n].worst,
               verdicts[n].deterministic ? "deterministic" : "not deterministic");
        if (!verdicts[n].deterministic) { fatal("attention_decode_%s must give the same bits each time", variant); }
    }
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
static double nominal_gb_per_s() { // double data rate: two transfers a clock
    int device, khz, bits;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&khz, cudaDevAttrMemoryClockRate, device));
    cuda_check(cudaDeviceGetAttribute(&bits, cudaDevAttrGlobalMemoryBusWidth, device));
    return 1e-6 * 2 * khz * (bits / 8);
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
    Stopwatch watch;
    std::vector<TimedGraph> graphs = {capture_launches(watch, 1, read)};
    printf("reading %.1f GB, %s (nominal %.0f GB/s):", 16e-9 * vectors, gpu->properties.name, nominal_gb_per_s());
    for (int mode = 0; mode < NUM_MODES; mode++) {
        if (!o.modes[mode]) { continue; }
        gpu->ceiling[mode] = 16e-6 * vectors / time_graphs((BenchMode)mode, watch, gpu->meter, graphs)[0].ms;
        printf(" %s %.0f GB/s", mode_names[mode], gpu->ceiling[mode]);
    }
    printf("\n");
    cuda_check(cudaGraphExecDestroy(graphs[0].executable));
    for (Buffer* b : {&memory, &sink}) { buffer_free(b); }
}

// The column `trains`: whether programs generate with this configuration
static const char* trains(const char* variant, const AttentionDecodeConfig* table, size_t num_configs,
                          const AttentionDecodeConfig* config, int HS) {
    const bool first = attention_config(table, num_configs, nullptr, HS, SIZE_MAX) == config;
    return first && strcmp(variant, "split") == 0 ? "yes" : "no";
}

// Checks the configurations at the shape, times them and prints a row for each.
static void bench(const char* variant, const AttentionDecodeConfig* table, size_t num_configs,
                  const std::vector<const AttentionDecodeConfig*>& configs, const BenchOptions& o, const BenchGpu& gpu,
                  DecodeShape s) {
    const double bytes = 2.0 * s.cache() * sizeof(floatX);
    const double expected = (s.T <= 256 ? 2.5 : 4) + 1e-3 * bytes / (0.9 * nominal_gb_per_s());
    printf("\nattention_decode_%s, %s, %s, B %d T %d NH %d HS %d, expected: %.1f us\n", variant, PRECISION_NAME,
           gpu.properties.name, s.B, s.T, s.NH, s.HS, expected);
    const std::vector<int> lengths(s.B, s.T - 1);
    DecodeReference r = reference_allocate(s, lengths);
    reference_compute(r, s, ORDINARY, 42);

    size_t scratch_bytes = 0;
    std::vector<DecodeSet> sets;
    std::vector<Racer> racers;
    for (const AttentionDecodeConfig* c : configs) {
        if (c->HS != 0 && c->HS != s.HS) { continue; }
        const Verdict v = check(*c, r, s, lengths, ORDINARY, 42, describe(variant, c->name, s, ORDINARY));
        auto run = [c, s, &sets](int n, cudaStream_t stream) { launch(*c, sets[n], s, s.T, stream); };
        racers.push_back({c->name, trains(variant, table, num_configs, c, s.HS), v.rel_err, v.deterministic, run});
        scratch_bytes = std::max(scratch_bytes, c->scratch_bytes(s.B, s.T, s.NH, s.HS));
    }
    reference_free(&r);
    if (racers.empty()) { fatal("no configuration of %s serves head size %d", variant, s.HS); }

    // Rotate through enough sets of tensors that a set is reused only after traffic of twice the L2 cache
    const int num_sets = 1 + (int)(2 * (size_t)gpu.properties.l2CacheSize / bytes);
    Buffer scratch = buffer_allocate(scratch_bytes);
    cuda_check(cudaMemset(scratch.data, 0, scratch.bytes));
    for (int n = 0; n < num_sets; n++) {
        sets.push_back(set_allocate(s, lengths));
        set_fill(sets[n], s, ORDINARY, 42, false);
        sets[n].scratch = scratch;
    }
    Race race;
    race.columns = "direction,variant,precision,B,T,NH,HS";
    race.values = std::string("decode,") + variant + "," + PRECISION_NAME;
    for (int size : {s.B, s.T, s.NH, s.HS}) { race.values += "," + std::to_string(size); }
    race.work = bytes;
    race.sets = num_sets;
    race.unit = &BYTES;
    run_race(o, gpu, race, racers);

    for (DecodeSet& t : sets) {
        t.scratch = Buffer();
        set_free(&t);
    }
    buffer_free(&scratch);
}

int attention_decode_main(int argc, char** argv, const char* variant, const AttentionDecodeConfig* table,
                          size_t num_configs) {
    const std::string program = std::string("attention_decode_") + variant + "_" + PRECISION_NAME;
    const BenchOptions o = bench_options(argc, argv, program.c_str(), decode_sizes);
    std::string names;
    std::vector<const AttentionDecodeConfig*> configs;
    for (const AttentionDecodeConfig* c = table; c < table + num_configs; c++) {
        if (names.find(c->name) == std::string::npos) { names += (names.empty() ? "" : ", ") + std::string(c->name); }
        if (!o.config || strcmp(o.config, c->name) == 0) { configs.push_back(c); }
    }
    if (configs.empty()) { fatal("--config %s: no such configuration; there are: %s", o.config, names.c_str()); }
    for (const std::vector<int>& shape : o.shapes) { decode_shape(shape); }

    BenchGpu gpu;
    if (o.sweep || o.check_only) { check_sweep(variant, configs, o); }
    if (o.check_only) { return EXIT_SUCCESS; }
    measure_read(&gpu, o);
    for (const std::vector<int>& shape : o.shapes) {
        bench(variant, table, num_configs, configs, o, gpu, decode_shape(shape));
    }
    return EXIT_SUCCESS;
}
