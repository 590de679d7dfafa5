/*
The program that every variant of attention becomes: check every configuration over a sweep of shapes, then time each at
the shapes asked for and print a row for it. A wrong kernel ends the program with exit code 1 before anything is timed.

The check    outputs and scratch filled with NaN, guard bytes around them, errors held against the fp64 reference and
             its model of rounding (attention/reference.h), more runs compared bit for bit: in the sweep two at once.
The timing   bench.h's, rested and steady.
             With documents, also: those of other contents in the documents between leave every bit of a document.
The row      TFLOP/s count the causal half: 2 B NH T^2 HS forward, 2.5 times that backward; with documents the squares of their
             lengths instead of T^2. `trains` is what attention/choice.h says, which the trainer and libattention.so ask.
*/
#include "attention_bench.h"

// ----------------------------------------------------------------------------
// All tensors of the contract: a direction's inputs, outputs and scratch
struct TensorSet {
    Buffer qkv, dout, out, dqkv, l, m, scratch;
    const int* starts = nullptr; // where the shape has documents
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
        if (t.starts) {
            c.launch_documents(out, l, m, qkv, t.starts, s.B, s.T, s.NH, s.HS, stream);
        } else if (c.launch) {
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
        floatX *dqkv = t.dqkv.as<floatX>(), *dout = t.dout.as<floatX>(), *qkv = t.qkv.as<floatX>(),
               *out = t.out.as<floatX>();
        float *l = t.l.as<float>(), *m = t.m.as<float>();
        if (t.starts) {
            c.launch_documents(dqkv, dout, qkv, out, l, m, t.starts, t.scratch.data, s.B, s.T, s.NH, s.HS, stream);
        } else {
            c.launch(dqkv, dout, qkv, out, l, m, t.scratch.data, s.B, s.T, s.NH, s.HS, stream);
        }
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
static inline void tensors_fill(const TensorSet& t, Shape s, int distinct, Pattern pattern, uint64_t seed) {
    unsigned blocks = (unsigned)CEIL_DIV(4 * s.elements(), (int64_t)256);
    fill_inputs<<<blocks, 256>>>(t.qkv.as<floatX>(), t.dout.as<floatX>(), s, distinct, pattern, seed);
    cuda_check(cudaGetLastError());
}

// ----------------------------------------------------------------------------
// The check

// Runs the configuration on each set of tensors, concurrently if there are several.
template <class Direction> static void run_poisoned(const typename Direction::Config& c,
                                                    const std::vector<TensorSet*>& sets, Shape s,
                                                    const std::string& what) {
    std::vector<Buffer> written;
    for (TensorSet* t : sets) {
        for (Buffer* b : Direction::outputs(*t)) { written.push_back(*b); }
        written.push_back(t->scratch);
    }
    for (Buffer b : written) { buffer_poison(b); }
    run_at_once(sets.size(), written, what,
                [&](size_t n, cudaStream_t stream) { Direction::launch(c, *sets[n], s, stream); });
}

// Ends the program if the outputs in t are wrong, else returns the errors.
template <class Direction> static Verdict judge(const TensorSet& t, const Reference& r, const std::string& what) {
    double noise[NUM_TENSORS];
    const Difference d = from_device<Difference>([&](Difference* on_gpu) { Direction::compare(on_gpu, t, r); });
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

// Other numbers, of four times the size, in the tokens that are not kept. qkv (B,T,3,NH,HS), dout (B,T,NH,HS), kept (B,T). They
// are finite: kernels multiply what they mask by 0, where a tile holds several documents.
__global__ void replace_tokens(floatX* qkv, floatX* dout, const int* kept, Shape s, uint64_t seed) {
    const int64_t n = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, channels = (int64_t)s.NH * s.HS;
    if (n >= 4 * s.elements() || kept[n / channels / 4]) { return; }
    const int64_t token = n / channels / 4, channel = n % (4 * channels);
    const floatX x = (floatX)(4 * normal_at(seed, n));
    if (channel < 3 * channels) {
        qkv[token * 3 * channels + channel] = x;
    } else {
        dout[token * channels + channel - 3 * channels] = x;
    }
}
// How many 16-bit words of kept tokens differ. a and b (B,heads,T,words), kept (B,T)
__global__ void count_kept_different(unsigned long long* count, const uint16_t* a, const uint16_t* b, const int* kept,
                                     int64_t n, int heads, int T, int words) {
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; i < n; i += (int64_t)gridDim.x * blockDim.x) {
        const int64_t row = i / words;
        if (a[i] != b[i] && kept[row / T / heads * T + row % T]) { atomicAdd(count, 1ull); }
    }
}
// Ends the program if every other document depends on the numbers in those between, or if a row of one document has other bits
// than without starts. t holds inputs and outputs.
template <class Direction> static void check_documents(const typename Direction::Config& c, TensorSet& t,
                                                       const Reference& r, const std::string& what) {
    const Shape s = r.shape;
    TensorSet other = t;
    const std::vector<Buffer*> outputs = Direction::outputs(t), others = Direction::outputs(other);
    for (Buffer* b : others) { *b = buffer_allocate(b->bytes); }
    if (s.documents == ONE_DOCUMENT) {
        other.starts = nullptr;
        run_poisoned<Direction>(c, {&other}, s, what + ", without starts");
        for (size_t n = 0; n < outputs.size(); n++) {
            if (words_different(outputs[n]->data, others[n]->data, outputs[n]->bytes)) {
                fatal("%s: other bits than without starts", what.c_str());
            }
        }
        return;
    }
    std::vector<int> starts((size_t)s.B * s.T), kept(starts.size());
    const size_t bytes = starts.size() * sizeof(int);
    cuda_check(cudaMemcpy(starts.data(), r.starts, bytes, cudaMemcpyDeviceToHost));
    for (int b = 0; b < s.B; b++) {
        for (int64_t t = 0, row = (int64_t)b * s.T; t < s.T; t++) { // the first document of every other row is kept
            kept[row + t] = t == 0 ? b % 2 : starts[row + t] == t ? !kept[row + t - 1] : kept[row + t - 1];
        }
    }
    const Buffer kept_on_gpu = buffer_allocate(bytes);
    cuda_check(cudaMemcpy(kept_on_gpu.data, kept.data(), bytes, cudaMemcpyHostToDevice));
    for (Buffer* b : {&other.qkv, &other.dout}) {
        const Buffer from = *b;
        *b = buffer_allocate(from.bytes);
        cuda_check(cudaMemcpy(b->data, from.data, from.bytes, cudaMemcpyDeviceToDevice));
    }
    replace_tokens<<<(unsigned)CEIL_DIV(4 * s.elements(), (int64_t)256), 256>>>(
        other.qkv.as<floatX>(), other.dout.as<floatX>(), kept_on_gpu.as<int>(), s, 77);
    run_poisoned<Direction>(c, {&other}, s, what + ", other documents");
    for (size_t n = 0; n < outputs.size(); n++) {
        const bool statistics = outputs[n]->bytes == s.rows() * sizeof(float);
        const int64_t words = outputs[n]->bytes / 2;
        const unsigned long long different = counted([&](unsigned long long* count) {
            count_kept_different<<<256, 256>>>(count, outputs[n]->as<uint16_t>(), others[n]->as<uint16_t>(),
                                               kept_on_gpu.as<int>(), words, statistics ? s.NH : 1, s.T,
                                               statistics ? 2 : (int)(words / s.B / s.T));
        });
        if (different) { fatal("%s: %llu words depend on other documents", what.c_str(), different); }
    }
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
        }
    }
    if (t.starts) { check_documents<Direction>(c, t, r, what); }
    t.scratch = Buffer();
    return verdict;
}

// ----------------------------------------------------------------------------
// What attention_bench.h asks for

template <class Direction> struct AttentionTrial {
    typedef typename Direction::Config Config;
    typedef typename Direction::Variant Variant;
    static constexpr const char* name = Direction::name;
    static constexpr const RaceUnit* unit = &FLOPS;
    static constexpr bool backward = Direction::direction == ATTENTION_BACKWARD_PASS;
    Shape s;
    Reference r;
    std::vector<TensorSet> sets;

    static const char* unsupported(Shape s) { return attention_unsupported(s.B, s.T, s.NH, s.HS); }
    // Every T at which tiles end or overlap, more tiles than three waves of SMs, and documents that begin and end at every
    // offset of a tile
    static Sweep sweep() {
        return {2,
                3,
                {1, 2, 31, 63, 64, 65, 127, 128, 129, 1000, 1024, 1025},
                {{1, 200, 1, 0},
                 {3, 77, 1, 0},
                 {20, 600, 13, 0},
                 {2, 200, 2, 0, ONE_DOCUMENT},
                 {20, 600, 13, 0, ONE_DOCUMENT},
                 {2, 1025, 2, 0, ONE_DOCUMENT},
                 {2, 200, 2, 0, 1},
                 {2, 200, 2, 0, 2},
                 {2, 1025, 2, 0, 63},
                 {2, 1025, 2, 0, 64},
                 {2, 1000, 2, 0, 65},
                 {2, 1025, 3, 0, SHORT_DOCUMENTS},
                 {3, 2500, 2, 0, LOG_NORMAL},
                 {20, 600, 13, 0, LOG_NORMAL},
                 {400, 400, 1, 0, ENDS_AT_EVERY_TOKEN}}};
    }
    static bool serves(const Config& c, Shape s) {
        return (c.HS == 0 || c.HS == s.HS) && (s.documents == NO_DOCUMENTS || c.launch_documents);
    }
    static const char* trains(const Variant& variant, const Config& c, const cudaDeviceProp& gpu, Shape s) {
        DeviceCode code;
        ::check(device_code(&code));
        auto rule = [&](const char* name) {
            return attention_rule(Direction::direction, name, sizeof(floatX) == sizeof(float), code.capability, s.B,
                                  s.T, s.NH, s.HS);
        };
        const AttentionRule *forced = rule(variant.name), *free_choice = rule(nullptr);
        if (attention_config(variant, forced ? forced->config : nullptr, s.HS, gpu.sharedMemPerBlockOptin) != &c ||
            c.launch == nullptr) {
            return "no";
        }
        return free_choice && strcmp(free_choice->variant, variant.name) == 0 ? "yes" : "forced";
    }
    static void measure(BenchGpu* gpu, const BenchOptions& o) { measure_gemm(gpu, o); }

    AttentionTrial(Shape s, bool) : s(s), r(reference_allocate(s)), sets{tensors_allocate(s, backward)} {
        sets[0].starts = r.starts;
    }
    AttentionTrial(const AttentionTrial&) = delete;
    ~AttentionTrial() { reference_free(&r); }
    void fill(Pattern pattern, uint64_t seed) {
        tensors_fill(sets[0], s, r.distinct, pattern, seed);
        reference_compute(&r, sets[0].qkv.as<floatX>(), sets[0].dout.as<floatX>(), backward);
        Direction::prepare(sets[0], r);
    }
    Verdict check(const Config& c, const std::string& what, int at_once) {
        return ::check<Direction>(c, sets[0], r, what, at_once);
    }
    size_t scratch_bytes(const Config& c) const { return Direction::scratch_bytes(c, s); }
    size_t set_bytes() const { return 4 * s.elements() * sizeof(floatX); }
    double work() const {
        double squares = (double)s.B * s.T * s.T; // of the lengths
        if (r.starts) {
            std::vector<int> starts((size_t)s.B * s.T);
            cuda_check(cudaMemcpy(starts.data(), r.starts, starts.size() * sizeof(int), cudaMemcpyDeviceToHost));
            squares = 0;
            for (size_t n = 0; n < starts.size(); n++) { squares += 2 * ((int)(n % s.T) - starts[n]) + 1; }
        }
        return Direction::flops * s.NH * s.HS * squares;
    }
    // In a race each row has documents of its own: what balances the work of CTAs would not be seen otherwise.
    void rotate(int count, size_t scratch_bytes) {
        const Buffer scratch = buffer_allocate(scratch_bytes);
        if (r.starts) {
            const std::vector<int> starts = document_starts(s.documents, s.B, s.T);
            cuda_check(cudaMemcpy(r.starts, starts.data(), starts.size() * sizeof(int), cudaMemcpyHostToDevice));
        }
        for (int n = 1; n < count; n++) {
            sets.push_back(tensors_allocate(s, backward));
            sets[n].starts = r.starts;
            tensors_fill(sets[n], s, r.distinct, ORDINARY, 42);
            Direction::prepare(sets[n], r);
        }
        for (TensorSet& t : sets) { t.scratch = scratch; }
    }
    void launch(const Config& c, int set, cudaStream_t stream) const { Direction::launch(c, sets[set], s, stream); }
};

// ----------------------------------------------------------------------------
// Mains

static const std::vector<BenchSize> attention_sizes = {{"-b", "B, batch", 8},
                                                       {"-t", "T, sequence length", 1024},
                                                       {"-h", "NH, number of heads", 12},
                                                       {"-d", "HS, head size: 32, 64, 96 or 128", 64}};
static const std::vector<BenchText> attention_texts = {{"--documents", "a row's: tokens of each, or log-normal"}};

template <> int variant_main(int argc, char** argv, const AttentionForwardVariant& variant, int compute_capability) {
    return run_variant<AttentionTrial<Forward>>(argc, argv, variant, attention_sizes, compute_capability,
                                                attention_texts);
}
template <> int variant_main(int argc, char** argv, const AttentionBackwardVariant& variant, int compute_capability) {
    return run_variant<AttentionTrial<Backward>>(argc, argv, variant, attention_sizes, compute_capability,
                                                 attention_texts);
}
