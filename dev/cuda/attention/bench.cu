/*
The program that every variant of attention becomes: check every configuration over a sweep of shapes, then time each at
the shapes asked for and print a row for it. A wrong kernel ends the program with exit code 1 before anything is timed.

The check    outputs and scratch filled with NaN, guard bytes around them, errors held against the fp64 reference and
             its model of rounding (attention/reference.h), more runs compared bit for bit: in the sweep two at once.
The timing   bench.h's, rested and steady.
The row      TFLOP/s count the causal half: 2 B NH T^2 HS forward, 2.5 times that backward. `trains` is what
             attention/choice.h says, which is what the trainer and libattention.so ask.
*/
#include "bench.h"
#include "reference.h"
#include "dev/cuda/bench/bench.h"

// ----------------------------------------------------------------------------
// The shapes

static const std::vector<BenchSize> attention_sizes = {{"-b", "B", "batch", 8},
                                                       {"-t", "T", "sequence length", 1024},
                                                       {"-h", "NH", "number of heads", 12},
                                                       {"-d", "HS", "head size: 32, 64, 96 or 128", 64}};

// The shape from sizes in attention_sizes' order; ends the program if the contract excludes it.
static inline Shape attention_shape(const std::vector<int>& sizes) {
    const Shape s = {sizes[0], sizes[1], sizes[2], sizes[3]};
    const char* why = attention_unsupported(s.B, s.T, s.NH, s.HS);
    if (why) { fatal("B %d T %d NH %d HS %d: %s", s.B, s.T, s.NH, s.HS, why); }
    return s;
}

// ----------------------------------------------------------------------------
// All tensors of the contract: a direction's inputs, outputs and scratch
struct TensorSet {
    Buffer qkv, dout, out, dqkv, l, m, scratch;
};

// ----------------------------------------------------------------------------
// The two directions: how to launch, which tensors are outputs, how they are compared

struct Forward {
    typedef AttentionForwardConfig Config;
    typedef AttentionForwardVariant Variant;
    static constexpr const char* name = "forward";
    static constexpr AttentionDirection direction = ATTENTION_FORWARD_PASS;
    static constexpr Tensor first_tensor = OUT, last_tensor = OUT;
    static constexpr double flops = 2; // in units of B NH T^2 HS
    static size_t scratch_bytes(const Config& c, Shape s) {
        return c.scratch_bytes ? c.scratch_bytes(s.B, s.T, s.NH, s.HS) : 0;
    }
    static std::vector<Buffer*> outputs(TensorSet& t) { return {&t.out, &t.l, &t.m}; }
    static void launch(const Config& c, const TensorSet& t, Shape s, cudaStream_t stream) {
        floatX *out = t.out.as<floatX>(), *qkv = t.qkv.as<floatX>();
        float *l = t.l.as<float>(), *m = t.m.as<float>();
        if (c.launch) {
            c.launch(out, l, m, qkv, s.B, s.T, s.NH, s.HS, stream);
        } else {
            c.launch_with_scratch(out, l, m, qkv, t.scratch.data, s.B, s.T, s.NH, s.HS, stream);
        }
    }
    static void prepare(const TensorSet&, const Reference&) {}
    static void compare(Difference* d, const TensorSet& t, const Reference& r) {
        compare_tensor<<<1024, REFERENCE_THREADS>>>(d, OUT, t.out.as<floatX>(), 1, 0, r);
        unsigned blocks = (unsigned)CEIL_DIV(r.shape.rows(), (int64_t)256);
        compare_statistics<<<blocks, 256>>>(d, t.l.as<float>(), t.m.as<float>(), r);
    }
};

struct Backward {
    typedef AttentionBackwardConfig Config;
    typedef AttentionBackwardVariant Variant;
    static constexpr const char* name = "backward";
    static constexpr AttentionDirection direction = ATTENTION_BACKWARD_PASS;
    static constexpr Tensor first_tensor = DQ, last_tensor = DV;
    static constexpr double flops = 5;
    static size_t scratch_bytes(const Config& c, Shape s) { return c.scratch_bytes(s.B, s.T, s.NH, s.HS); }
    static std::vector<Buffer*> outputs(TensorSet& t) { return {&t.dqkv}; }
    static void launch(const Config& c, const TensorSet& t, Shape s, cudaStream_t stream) {
        c.launch(t.dqkv.as<floatX>(), t.dout.as<floatX>(), t.qkv.as<floatX>(), t.out.as<floatX>(), t.l.as<float>(),
                 t.m.as<float>(), t.scratch.data, s.B, s.T, s.NH, s.HS, stream);
    }
    static void prepare(const TensorSet& t, const Reference& r) {
        unsigned blocks = (unsigned)CEIL_DIV(r.shape.elements(), (int64_t)256);
        reference_forward_outputs<<<blocks, 256>>>(t.out.as<floatX>(), t.l.as<float>(), t.m.as<float>(), r, 4);
    }
    static void compare(Difference* d, const TensorSet& t, const Reference& r) {
        for (int slot = 0; slot < 3; slot++) {
            compare_tensor<<<1024, REFERENCE_THREADS>>>(d, (Tensor)(DQ + slot), t.dqkv.as<floatX>(), 3, slot, r);
        }
    }
};

static inline TensorSet tensors_allocate(Shape s, bool backward) {
    TensorSet t;
    size_t tensor = s.elements() * sizeof(floatX), statistics = s.rows() * sizeof(float);
    t.qkv = buffer_allocate(3 * tensor);
    t.dout = buffer_allocate(tensor);
    t.out = buffer_allocate(tensor);
    t.l = buffer_allocate(statistics);
    t.m = buffer_allocate(statistics);
    if (backward) { t.dqkv = buffer_allocate(3 * tensor); }
    return t;
}
static inline void tensors_free(TensorSet* t) {
    for (Buffer* b : {&t->qkv, &t->dout, &t->out, &t->dqkv, &t->l, &t->m, &t->scratch}) { buffer_free(b); }
}
static inline void tensors_fill(const TensorSet& t, Shape s, int distinct, Pattern pattern, uint64_t seed) {
    unsigned blocks = (unsigned)CEIL_DIV(4 * s.elements(), (int64_t)256);
    fill_inputs<<<blocks, 256>>>(t.qkv.as<floatX>(), t.dout.as<floatX>(), s, distinct, pattern, seed);
    cuda_check(cudaGetLastError());
}

// ----------------------------------------------------------------------------
// The check

struct Verdict {
    double worst = 0;   // largest error / tolerance: at most 1 passes
    double rel_err = 0; // the largest ||x - ref|| / ||ref|| of the output tensors
    bool deterministic = true;
};

// Runs the configuration on each set of tensors, concurrently if there are several: each has its own stream.
template <class Direction> static void run_poisoned(const typename Direction::Config& c, std::vector<TensorSet*> sets,
                                                    Shape s, const std::string& what) {
    std::vector<Buffer*> written;
    for (TensorSet* t : sets) {
        for (Buffer* b : Direction::outputs(*t)) { written.push_back(b); }
        written.push_back(&t->scratch);
    }
    for (Buffer* b : written) { buffer_poison(*b); }
    cuda_check(cudaDeviceSynchronize());
    std::vector<cudaStream_t> streams(sets.size());
    for (cudaStream_t& stream : streams) { cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    status_clear();
    for (size_t n = 0; n < sets.size(); n++) { Direction::launch(c, *sets[n], s, streams[n]); }
    if (status_now() != STATUS_OK) { fatal("%s: %s", what.c_str(), status_message()); }
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) { fatal("%s: the kernel failed: %s", what.c_str(), cudaGetErrorString(error)); }
    for (cudaStream_t stream : streams) { cuda_check(cudaStreamDestroy(stream)); }
    for (Buffer* b : written) {
        if (!buffer_intact(*b)) { fatal("%s: wrote outside of its tensors", what.c_str()); }
    }
}

// Ends the program if the outputs in t are wrong, else returns the errors.
template <class Direction> static Verdict judge(const TensorSet& t, const Reference& r, const std::string& what) {
    Difference *on_gpu, d;
    double noise[NUM_TENSORS];
    cuda_check(cudaMalloc(&on_gpu, sizeof(d)));
    cuda_check(cudaMemset(on_gpu, 0, sizeof(d)));
    Direction::compare(on_gpu, t, r);
    cuda_check(cudaGetLastError());
    cuda_check(cudaMemcpy(&d, on_gpu, sizeof(d), cudaMemcpyDeviceToHost));
    cuda_check(cudaFree(on_gpu));
    cuda_check(cudaMemcpy(noise, r.noise, sizeof(noise), cudaMemcpyDeviceToHost));
    if (d.not_finite) { fatal("%s: %llu elements are not finite, or were not written", what.c_str(), d.not_finite); }
    Verdict verdict;
    for (int n = Direction::first_tensor; n <= Direction::last_tensor; n++) {
        // the error model covers the distinct heads, the error all heads
        double model2 = noise[n] * r.shape.heads() / r.distinct + UNIT_ROUNDOFF * UNIT_ROUNDOFF * d.reference2[n];
        double allowed = 2 * sqrt(model2), error = sqrt(d.error2[n]);
        if (!(error <= allowed)) {
            fatal("%s: %s is wrong: ||x - ref|| is %.3g, at most %.3g is rounding (||ref|| is %.3g)", what.c_str(),
                  tensor_names[n], error, allowed, sqrt(d.reference2[n]));
        }
        verdict.worst = fmax(verdict.worst, error / allowed);
        if (d.reference2[n] > 0) { verdict.rel_err = fmax(verdict.rel_err, error / sqrt(d.reference2[n])); }
    }
    float worst_lse; // 0 in the backward
    memcpy(&worst_lse, &d.worst_lse, sizeof(worst_lse));
    if (!(worst_lse <= 1)) {
        fatal("%s: m + log(l) is off by %.3g times what is rounding, or m is more than 8 from the row's maximum",
              what.c_str(), worst_lse);
    }
    verdict.worst = fmax(verdict.worst, worst_lse);
    return verdict;
}

// Runs the configuration once, then `at_once` times concurrently; ends the program if it is wrong at this shape.
template <class Direction> static Verdict check(const typename Direction::Config& c, TensorSet& t, const Reference& r,
                                                const std::string& what, int at_once) {
    const size_t scratch = Direction::scratch_bytes(c, r.shape);
    if (scratch) { t.scratch = buffer_allocate(scratch); }
    run_poisoned<Direction>(c, {&t}, r.shape, what);
    Verdict verdict = judge<Direction>(t, r, what);

    std::vector<TensorSet> repeats(at_once, t); // share the inputs; the first shares the scratch, too
    std::vector<TensorSet*> sets;
    for (TensorSet& again : repeats) {
        for (Buffer* b : Direction::outputs(again)) { *b = buffer_allocate(b->bytes); }
        if (scratch && &again != &repeats[0]) { again.scratch = buffer_allocate(scratch); }
        sets.push_back(&again);
    }
    run_poisoned<Direction>(c, sets, r.shape, what);
    std::vector<Buffer*> first = Direction::outputs(t);
    for (TensorSet& again : repeats) {
        verdict.worst = fmax(verdict.worst, judge<Direction>(again, r, what + ", repeated").worst);
        std::vector<Buffer*> outputs = Direction::outputs(again);
        for (size_t n = 0; n < first.size(); n++) {
            if (words_different(first[n]->data, outputs[n]->data, first[n]->bytes)) { verdict.deterministic = false; }
            buffer_free(outputs[n]);
        }
        buffer_free(&again.scratch);
    }
    t.scratch = Buffer();
    return verdict;
}

template <class Direction>
static std::string describe(const char* variant, const char* config, Shape s, Pattern pattern) {
    char text[256];
    snprintf(text, sizeof(text), "attention_%s_%s %s at B %d T %d NH %d HS %d, %s", Direction::name, variant, config,
             s.B, s.T, s.NH, s.HS, pattern_names[pattern]);
    return text;
}

// Every T at which tiles end or overlap, at every head size; with --check-only, the sizes given, if any.
static inline std::vector<Shape> sweep_shapes(const BenchOptions& o) {
    std::vector<int> Ts = {1, 2, 31, 63, 64, 65, 127, 128, 129, 1000, 1024, 1025}, HSs = {32, 64, 96, 128};
    auto given = [&](int size) { return o.check_only && o.sizes[size].given; };
    const bool whole = !given(0) && !given(1) && !given(2);
    const int B = given(0) ? o.sizes[0].value : 2, NH = given(2) ? o.sizes[2].value : 3;
    if (given(1)) { Ts = {o.sizes[1].value}; }
    if (given(3)) { HSs = {o.sizes[3].value}; }
    std::vector<Shape> shapes;
    for (int HS : HSs) {
        for (int T : Ts) { shapes.push_back(attention_shape({B, T, NH, HS})); }
        // the last has more tiles than three waves of SMs
        if (whole) { shapes.insert(shapes.end(), {{1, 200, 1, HS}, {3, 77, 1, HS}, {20, 600, 13, HS}}); }
    }
    return shapes;
}

// Those of a variant's configurations that are checked and timed
template <class Direction> using Configs = std::vector<const typename Direction::Config*>;

// Checks every configuration at all shapes of the sweep and all patterns; prints a line for each.
template <class Direction>
static void check_sweep(const char* variant, const Configs<Direction>& configs, const BenchOptions& o) {
    int all_checks = 0;
    std::vector<Verdict> verdicts(configs.size());
    std::vector<int> checks(configs.size());
    for (Shape s : sweep_shapes(o)) {
        TensorSet t = tensors_allocate(s, Direction::first_tensor == DQ);
        Reference r = reference_allocate(s);
        for (int pattern = 0; pattern < NUM_PATTERNS; pattern++) {
            tensors_fill(t, s, r.distinct, (Pattern)pattern, 1000 + pattern);
            reference_compute(&r, t.qkv.as<floatX>(), t.dout.as<floatX>());
            Direction::prepare(t, r);
            for (size_t n = 0; n < configs.size(); n++) {
                if (configs[n]->HS != 0 && configs[n]->HS != s.HS) { continue; }
                std::string what = describe<Direction>(variant, configs[n]->name, s, (Pattern)pattern);
                Verdict v = check<Direction>(*configs[n], t, r, what, 2);
                verdicts[n].worst = fmax(verdicts[n].worst, v.worst);
                verdicts[n].deterministic &= v.deterministic;
                checks[n]++, all_checks++;
            }
        }
        reference_free(&r);
        tensors_free(&t);
    }
    if (all_checks == 0) {
        fatal("attention_%s_%s: no configuration serves head size %d", Direction::name, variant, o.sizes[3].value);
    }
    for (size_t n = 0; n < configs.size(); n++) {
        if (checks[n] == 0) { continue; }
        std::string head_size = configs[n]->HS ? "HS " + std::to_string(configs[n]->HS) : "every HS";
        printf("attention_%s_%s %s %s, %s: %d checks passed, largest error %.0f%% of what is allowed, %s\n",
               Direction::name, variant, PRECISION_NAME, configs[n]->name, head_size.c_str(), checks[n],
               100 * verdicts[n].worst, verdicts[n].deterministic ? "deterministic" : "not deterministic");
    }
}

// ----------------------------------------------------------------------------
// Timing

// The column `trains`: whether the trainer chooses the configuration at the shape
template <class Direction> static const char* trains(const typename Direction::Variant& variant,
                                                     const typename Direction::Config& config,
                                                     const cudaDeviceProp& gpu, Shape s) {
    DeviceCode code;
    check(device_code(&code));
    auto rule = [&](const char* name) {
        return attention_rule(Direction::direction, name, sizeof(floatX) == sizeof(float), code.capability, s.B, s.T,
                              s.NH, s.HS);
    };
    const AttentionRule *forced = rule(variant.name), *free_choice = rule(nullptr);
    if (variant.config(forced ? forced->config : nullptr, s.HS, gpu.sharedMemPerBlockOptin) != &config ||
        config.launch == nullptr) {
        return "no";
    }
    return free_choice && strcmp(free_choice->variant, variant.name) == 0 ? "yes" : "forced";
}

// Checks the configurations at the shape, times them and prints a row for each.
template <class Direction> static void bench(const typename Direction::Variant& v, const Configs<Direction>& configs,
                                             const BenchOptions& o, const BenchGpu& gpu, Shape s) {
    const char* variant = v.name;
    printf("\nattention_%s_%s, %s, %s, B %d T %d NH %d HS %d\n", Direction::name, variant, PRECISION_NAME,
           gpu.properties.name, s.B, s.T, s.NH, s.HS);

    // Rotate through enough sets of tensors that a set is reused only after traffic of twice the L2 cache
    const size_t set_bytes = 4 * s.elements() * sizeof(floatX);
    const int sets = 1 + (int)(2 * (size_t)gpu.properties.l2CacheSize / set_bytes);
    std::vector<TensorSet> tensors;
    Reference r = reference_allocate(s);
    for (int n = 0; n < sets; n++) {
        tensors.push_back(tensors_allocate(s, Direction::first_tensor == DQ));
        tensors_fill(tensors[n], s, r.distinct, ORDINARY, 42);
        if (n == 0) { reference_compute(&r, tensors[0].qkv.as<floatX>(), tensors[0].dout.as<floatX>()); }
        Direction::prepare(tensors[n], r);
    }

    size_t scratch_bytes = 0;
    std::vector<Racer> racers;
    for (const typename Direction::Config* c : configs) {
        if (c->HS != 0 && c->HS != s.HS) { continue; }
        const std::string what = describe<Direction>(variant, c->name, s, ORDINARY);
        const Verdict verdict = check<Direction>(*c, tensors[0], r, what, 1);
        auto launch = [c, s, &tensors](int n, cudaStream_t stream) { Direction::launch(*c, tensors[n], s, stream); };
        racers.push_back(
            {c->name, trains<Direction>(v, *c, gpu.properties, s), verdict.rel_err, verdict.deterministic, launch});
        scratch_bytes = std::max(scratch_bytes, Direction::scratch_bytes(*c, s));
    }
    if (racers.empty()) { fatal("no configuration of %s serves head size %d on this GPU", variant, s.HS); }
    Buffer scratch = buffer_allocate(scratch_bytes);
    for (TensorSet& t : tensors) { t.scratch = scratch; }

    Race race;
    race.columns = "direction,variant,precision,B,T,NH,HS";
    race.values = std::string(Direction::name) + "," + variant + "," + PRECISION_NAME;
    for (int size : {s.B, s.T, s.NH, s.HS}) { race.values += "," + std::to_string(size); }
    race.work = Direction::flops * s.B * s.NH * s.T * s.T * s.HS;
    race.sets = sets;
    run_race(o, gpu, race, racers);

    for (TensorSet& t : tensors) { t.scratch = Buffer(); }
    buffer_free(&scratch);
    reference_free(&r);
    for (TensorSet& t : tensors) { tensors_free(&t); }
}

// ----------------------------------------------------------------------------
// Mains

template <class Direction>
static int run_variant(int argc, char** argv, const typename Direction::Variant& v, int compute_capability) {
    const std::string program = std::string("attention_") + Direction::name + "_" + v.name + "_" + PRECISION_NAME;
    const BenchOptions o = bench_options(argc, argv, program.c_str(), attention_sizes);
    std::string names;
    Configs<Direction> configs;
    for (const typename Direction::Config& c : v) {
        if (names.find(c.name) == std::string::npos) { names += (names.empty() ? "" : ", ") + std::string(c.name); }
        if (!o.config || strcmp(o.config, c.name) == 0) { configs.push_back(&c); }
    }
    if (configs.empty()) { fatal("--config %s: no such configuration; there are: %s", o.config, names.c_str()); }
    for (const std::vector<int>& shape : o.shapes) { attention_shape(shape); }

    BenchGpu gpu;
    const cudaDeviceProp& p = gpu.properties;
    if (p.major * 10 + p.minor < compute_capability) {
        fatal("%s needs compute capability %d.%d; the %s has %d.%d", program.c_str(), compute_capability / 10,
              compute_capability % 10, p.name, p.major, p.minor);
    }
    for (size_t n = configs.size(); n-- > 0;) {
        if (configs[n]->shared_bytes <= p.sharedMemPerBlockOptin) { continue; }
        printf("skipped %s for HS %d: it needs %zu KB of shared memory a thread block, the %s has %zu\n",
               configs[n]->name, configs[n]->HS, configs[n]->shared_bytes / 1024, p.name,
               p.sharedMemPerBlockOptin / 1024);
        configs.erase(configs.begin() + n);
    }
    if (o.sweep || o.check_only) { check_sweep<Direction>(v.name, configs, o); }
    if (o.check_only) { return EXIT_SUCCESS; }
    measure_gemm(&gpu, o);
    for (const std::vector<int>& shape : o.shapes) { bench<Direction>(v, configs, o, gpu, attention_shape(shape)); }
    return EXIT_SUCCESS;
}

int attention_main(int argc, char** argv, const AttentionForwardVariant& variant, int compute_capability) {
    return run_variant<Forward>(argc, argv, variant, compute_capability);
}
int attention_main(int argc, char** argv, const AttentionBackwardVariant& variant, int compute_capability) {
    return run_variant<Backward>(argc, argv, variant, compute_capability);
}
