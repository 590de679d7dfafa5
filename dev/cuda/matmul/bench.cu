/*
The program that every variant of the matmul competition becomes: check every configuration over a sweep of small ragged
shapes, then check and time each at the shapes asked for and print a row for it. A wrong kernel ends the program with exit
code 1 before anything is timed.

The check    outputs and scratch filled with NaN, guard bytes around all, sums that are added to begin with other numbers.
             Each output against fp64 (matmul/reference.h). Bit for bit: run again, on two streams at once; accumulating
             against overwriting and adding; and that the inputs are as they were.
fp8          operands are drawn in 16 bit and quantised here, each by its largest magnitude: no part of what is timed.
The timing   bench.h's: a whole group, its tensors rotated through more than the L2 cache.
The row      TFLOP/s count the GEMM's 2 R IN OUT alone; GB/s what must move at least: every input and every output once.
             `trains` is yes for what matmul/choice.h names.
*/
#include <stddef.h>

#include "reference.h"
#include "dev/cuda/bench/bench.h"
#include "llmc/cuda/device_code.cuh"
#include "llmc/cuda/matmul.cuh"

static const std::vector<BenchSize> matmul_sizes = {
    {"-r", "R, rows, of tokens", 4096}, {"-i", "IN, channels in", 768}, {"-o", "OUT, channels out", 3072}};
static const std::vector<BenchText> matmul_texts = {
    {"--group", "only this group; may be given more than once"},
    {"--model", "R,C: time every group at its shapes in a model of C channels; may be given more than once"}};

// The shapes of each group in a model: input and output channels in units of C, 0 for the padded vocabulary
static const struct {
    MatmulGroup group;
    int in, out;
} model_shapes[] = {{MATMUL_QKV, 1, 3},        {MATMUL_RESIDUAL, 1, 1}, {MATMUL_RESIDUAL, 4, 1}, {MATMUL_FC, 1, 4},
                    {MATMUL_CLASSIFIER, 1, 0}, {MATMUL_DGELU, 4, 1},    {MATMUL_INPUT, 1, 4},    {MATMUL_INPUT, 1, 3},
                    {MATMUL_INPUT, 1, 1},      {MATMUL_INPUT, 1, 0},    {MATMUL_WEIGHT, 1, 3},   {MATMUL_WEIGHT, 1, 1},
                    {MATMUL_WEIGHT, 1, 4},     {MATMUL_WEIGHT, 4, 1},   {MATMUL_WEIGHT, 1, 0}};
constexpr int PADDED_VOCABULARY = 50304;

// What the optional tensors of a group are: all; without dgelu's act; with the derivative in pre's place
enum Form { ALL_TENSORS, FEWER_TENSORS, WITH_DERIVATIVE };
static const char* const form_names[] = {"", ", optional tensors left out", ", the derivative in pre's place"};
static std::vector<Form> forms_of(const MatmulConfig& config) {
    std::vector<Form> forms = {ALL_TENSORS};
    if (config.group == MATMUL_DGELU) { forms.push_back(FEWER_TENSORS); }
    if (config.has_derivative) { forms.push_back(WITH_DERIVATIVE); }
    return forms;
}

// One case to check or time
struct Case {
    MatmulGroup group;
    MatmulSizes s;
    Pattern pattern;
    Form form;
    bool fp8; // the configuration's
};
static const char* precision_of(const MatmulConfig& config) { return config.fp8 ? "fp8" : PRECISION_NAME; }

// The sizes of a group at a shape R,IN,OUT. The classifier's last columns are padding, as 47 of GPT-2's 50304 are. Ends the
// program if the contract excludes the shape.
static MatmulSizes sizes_of(MatmulGroup group, int R, int IN, int OUT) {
    MatmulSizes s = {R, IN, OUT, 0};
    if (group == MATMUL_CLASSIFIER) { s.vocab_size = OUT > 64 ? OUT - 47 : OUT - OUT / 8; }
    const char* why = matmul_unsupported(group, s);
    if (why) { fatal("%s at R %d IN %d OUT %d: %s", matmul_group_names[group], R, IN, OUT, why); }
    return s;
}

// ----------------------------------------------------------------------------
// The tensors of each group, listed once: allocation, filling, checking and the bytes in a table's row follow from it.

enum Role { INPUT, OUTPUT, ADDED }; // read; written; read and written
enum Type { TYPE_X, TYPE_FLOAT, TYPE_INT, TYPE_E4M3 };

struct TensorOf {
    const char* name;
    size_t at; // offset of the pointer in MatmulTensors
    Role role;
    Type type;
    int64_t rows, columns;
    Fill fill = NORMAL;
    float scale = 1;
    bool transposed = false; // of TYPE_E4M3: stored as (columns,rows)
    int64_t elements() const { return rows * columns; }
    size_t bytes() const { return elements() * (type == TYPE_E4M3 ? 1 : type == TYPE_X ? sizeof(floatX) : 4); }
};
#define TENSOR(member) #member, offsetof(MatmulTensors, member)

static std::vector<TensorOf> tensors_in_x(const Case& c) {
    const int R = c.s.R, IN = c.s.IN, OUT = c.s.OUT,
              inner = c.group == MATMUL_DGELU || c.group == MATMUL_INPUT ? OUT : IN;
    const bool derivative = c.form == WITH_DERIVATIVE;
    const TensorOf inp = {TENSOR(inp), INPUT, TYPE_X, R, IN, WITH_OUTLIERS},
                   dout = {TENSOR(dout), INPUT, TYPE_X, R, OUT, WITH_OUTLIERS},
                   weight = {TENSOR(weight), INPUT, TYPE_X, OUT, IN, SCALED, 1 / sqrtf((float)inner)},
                   bias = {TENSOR(bias), INPUT, TYPE_X, 1, OUT};
    std::vector<TensorOf> list;
    switch (c.group) {
    case MATMUL_QKV:
        return {inp, weight, bias, {TENSOR(out), OUTPUT, TYPE_X, R, OUT}};
    case MATMUL_RESIDUAL:
        return {inp,
                weight,
                bias,
                {TENSOR(skip), INPUT, TYPE_X, R, OUT, WITH_OUTLIERS},
                {TENSOR(ln_weight), INPUT, TYPE_X, 1, OUT},
                {TENSOR(ln_bias), INPUT, TYPE_X, 1, OUT},
                {TENSOR(residual), OUTPUT, TYPE_X, R, OUT},
                {TENSOR(ln), OUTPUT, TYPE_X, R, OUT},
                {TENSOR(mean), OUTPUT, TYPE_FLOAT, R, 1},
                {TENSOR(rstd), OUTPUT, TYPE_FLOAT, R, 1}};
    case MATMUL_FC:
        list = {inp, weight, bias, {TENSOR(pre), OUTPUT, TYPE_X, R, OUT}, {TENSOR(act), OUTPUT, TYPE_X, R, OUT}};
        if (derivative) { list[3] = {TENSOR(derivative), OUTPUT, TYPE_X, R, OUT}; }
        return list;
    case MATMUL_CLASSIFIER:
        return {inp,
                weight,
                {TENSOR(targets), INPUT, TYPE_INT, R, 1, TARGETS},
                {TENSOR(logits), OUTPUT, TYPE_X, R, OUT},
                {TENSOR(logits_scale), OUTPUT, TYPE_FLOAT, R, 1},
                {TENSOR(losses), ADDED, TYPE_FLOAT, R, 1}};
    case MATMUL_DGELU:
        list = {dout,
                weight,
                {TENSOR(pre), INPUT, TYPE_X, R, IN, WIDE},
                {TENSOR(dpre), OUTPUT, TYPE_X, R, IN},
                {TENSOR(dbias), ADDED, TYPE_FLOAT, 1, IN}};
        if (derivative) { list[2] = {TENSOR(derivative), INPUT, TYPE_X, R, IN}; }
        if (c.form == ALL_TENSORS) { list.push_back({TENSOR(act), OUTPUT, TYPE_X, R, IN}); }
        return list;
    case MATMUL_INPUT:
        return {dout, weight, {TENSOR(dinp), OUTPUT, TYPE_X, R, IN}};
    default: // MATMUL_WEIGHT
        return {dout, inp, {TENSOR(dweight), OUTPUT, TYPE_FLOAT, OUT, IN}};
    }
}
// A GEMM's operand x in e4m3, stored as x or as x^T
static TensorOf in_e4m3(const char* name, size_t at, TensorOf x, bool transposed) {
    x.name = name, x.at = at, x.type = TYPE_E4M3, x.transposed = transposed;
    return x;
}
// Of fp8 with a, b and their scales instead of the GEMM's operands, which are the first two tensors of every group
static std::vector<TensorOf> tensors_of(const Case& c) {
    std::vector<TensorOf> list = tensors_in_x(c);
    if (!c.fp8) { return list; }
    const bool weight = c.group == MATMUL_WEIGHT, backward = c.group == MATMUL_DGELU || c.group == MATMUL_INPUT;
    list[0] = in_e4m3(TENSOR(a), list[0], weight);
    list[1] = in_e4m3(TENSOR(b), list[1], weight || backward);
    list.insert(list.begin(), {{TENSOR(a_scale), INPUT, TYPE_FLOAT, 1, 1}, {TENSOR(b_scale), INPUT, TYPE_FLOAT, 1, 1}});
    return list;
}

static double flops_of(const Case& c) { return 2.0 * c.s.R * c.s.IN * c.s.OUT; }
// Compulsory memory traffic in bytes: every input and output once, tensors that are added to twice
static double least_bytes_of(const Case& c) {
    double sum = 0;
    for (const TensorOf& tensor : tensors_of(c)) { sum += (tensor.role == ADDED ? 2.0 : 1.0) * tensor.bytes(); }
    return sum;
}

// ----------------------------------------------------------------------------
// Sets of tensors

struct Set {
    std::vector<TensorOf> tensors;
    std::vector<Buffer> buffers; // one a tensor
    MatmulTensors t = {};
    Buffer scratch;
};

// If `shared` is not nullptr, uses that set's inputs.
static Set set_allocate(const Case& c, const Set* shared) {
    Set set;
    set.tensors = tensors_of(c);
    for (size_t n = 0; n < set.tensors.size(); n++) {
        const TensorOf& tensor = set.tensors[n];
        const bool borrow = shared && tensor.role == INPUT;
        set.buffers.push_back(borrow ? shared->buffers[n] : buffer_allocate(tensor.bytes()));
        memcpy((char*)&set.t + tensor.at, &set.buffers[n].data, sizeof(char*));
    }
    set.t.gradient_scale = 0.5f;
    return set;
}

// Draws a tensor and quantises it, with the scale of its largest magnitude.
static void fill_e4m3(const TensorOf& tensor, uint8_t* codes, float* scale, const FillOf& fill) {
    const Buffer x = buffer_allocate(tensor.elements() * sizeof(floatX)), largest = buffer_allocate(sizeof(unsigned));
    fill_tensor<<<4096, 256>>>(x.as<floatX>(), tensor.elements(), fill);
    cuda_check(cudaMemset(largest.data, 0, largest.bytes));
    largest_magnitude<<<4096, 256>>>(largest.as<unsigned>(), x.as<floatX>(), tensor.elements());
    quantise<<<4096, 256>>>(codes, scale, largest.as<unsigned>(), x.as<floatX>(), tensor.rows, tensor.columns,
                            tensor.transposed);
    cuda_check(cudaGetLastError());
}

// Fills inputs, tensors that are added to, and outputs, to which accumulating kernels add
static void set_fill(const Set& set, const Case& c, uint64_t seed) {
    for (size_t n = 0; n < set.tensors.size(); n++) {
        const TensorOf& tensor = set.tensors[n];
        const Buffer b = set.buffers[n];
        const FillOf fill = {tensor.fill, c.pattern, tensor.columns, tensor.scale, c.s.vocab_size, seed * 64 + n};
        const auto launch = [&](auto* x) { fill_tensor<<<4096, 256>>>(x, tensor.elements(), fill); };
        buffer_poison(b);
        if (tensor.type == TYPE_E4M3) {
            fill_e4m3(tensor, b.as<uint8_t>(), set.buffers[n - 2].as<float>(), fill);
        } else if (tensor.type == TYPE_X) {
            launch(b.as<floatX>());
        } else if (tensor.type == TYPE_FLOAT) {
            launch(b.as<float>());
        } else {
            launch(b.as<int>());
        }
        cuda_check(cudaGetLastError());
    }
}
// Copies inputs that are the set's own, and tensors that are added to, from `before`; sets outputs to NaN or, if accumulating,
// copies them, too
static void set_restart(Set* set, const Set& before, bool accumulate) {
    set->t.accumulate = accumulate;
    for (size_t n = 0; n < set->tensors.size(); n++) {
        const Buffer to = set->buffers[n], from = before.buffers[n];
        if (to.data == from.data) { continue; }
        buffer_poison(to);
        if (set->tensors[n].role != OUTPUT || accumulate) {
            cuda_check(cudaMemcpy(to.data, from.data, from.bytes, cudaMemcpyDeviceToDevice));
        }
    }
    buffer_poison(set->scratch);
}

// ----------------------------------------------------------------------------
// The reference: GEMMs of sampled rows

// One GEMM's result (., N): the sampled rows, and their z (rows.count, N)
struct GemmReference {
    Sample rows;
    int N;
    Buffer memory;
    const Bounded* z() const { return memory.as<Bounded>(); }
};

// A B^T, A (M,K) at its sampled rows and B (N,K); interval: of fp8
static GemmReference gemm_compute(Operand A, Operand B, int K, int interval = 0) {
    const int M = A.rows.count, N = B.rows.count;
    GemmReference g = {A.rows, N, buffer_allocate((size_t)M * N * sizeof(Bounded))};
    reference_gemm<<<dim3(CEIL_DIV(M, 64), CEIL_DIV(N, 64)), REFERENCE_THREADS>>>(g.memory.as<Bounded>(), A, B, K,
                                                                                  interval);
    cuda_check(cudaGetLastError());
    return g;
}

static GemmReference reference_compute(const Case& c, const MatmulTensors& t) {
    const int R = c.s.R, IN = c.s.IN, OUT = c.s.OUT;
    const auto sampled = [](int n) { return Sample(n, CEIL_DIV(n, REFERENCE_ROWS)); };
    if (c.fp8) { // a b^T
        const int M = t.dweight ? OUT : R, N = t.dweight || t.dinp || t.dpre ? IN : OUT,
                  K = t.dweight          ? R
                      : t.dinp || t.dpre ? OUT
                                         : IN;
        const int interval = e4m3_accumulates_fast(t.dweight != NULL, K) ? K : (int)E4M3_INTERVAL;
        return gemm_compute({nullptr, K, 1, sampled(M), t.a, t.a_scale}, {nullptr, K, 1, Sample(N), t.b, t.b_scale}, K,
                            interval);
    }
    if (t.dweight) { // (OUT,IN) = dout^T inp
        return gemm_compute({t.dout, 1, OUT, sampled(OUT)}, {t.inp, 1, IN, Sample(IN)}, R);
    }
    if (t.inp) { // inp W^T
        return gemm_compute({t.inp, IN, 1, sampled(R)}, {t.weight, IN, 1, Sample(OUT)}, IN);
    }
    return gemm_compute({t.dout, OUT, 1, sampled(R)}, {t.weight, 1, IN, Sample(IN)}, OUT); // dout W
}

// ----------------------------------------------------------------------------
// The check

// Compares the outputs of a launch with the reference, and ends the program on a mismatch.
struct Judge {
    std::string what;    // the configuration and the case
    Expected e = {};     // what the outputs must be
    double worst = 0;    // largest error / tolerance: at most 1 passes
    double rel_err = -1; // ||x - ref|| / ||ref|| of the first output; -1: none yet

    // An output (., columns) at the sampled rows, each times its factor if there are factors
    template <class T> void output(Want want, const std::string& name, const T* got, int columns, Sample rows,
                                   const float* factors = nullptr) {
        const Output<T> of = {got, columns, rows, factors};
        const auto d = from_device<Difference>(
            [&](Difference* difference) { compare_elements<<<1024, REFERENCE_THREADS>>>(difference, of, e, want); });
        const unsigned n = (unsigned)d.worst, bits = (unsigned)(d.worst >> 32);
        float most;
        memcpy(&most, &bits, sizeof(most));
        if (d.not_finite || !(most <= 1)) {
            fatal(
                "%s: %s[%d,%d] is off by %.3g times what is allowed; %llu elements are not finite, or were not written",
                what.c_str(), name.c_str(), (int)rows[n / columns], (int)(n % columns), most, d.not_finite);
        }
        worst = fmax(worst, most);
        if (rel_err < 0) { rel_err = d.reference2 > 0 ? sqrt(d.error2 / d.reference2) : 0; }
    }

    // Sums over the rows of x (rows, n), added to `before`: got (n)
    void columns(const float* got, const float* before, const floatX* x, int n) {
        const Buffer sums = buffer_allocate(n * sizeof(Column));
        e.sums = sums.as<Column>(), e.before = before;
        reference_columns<<<CEIL_DIV(n, 32), REFERENCE_THREADS>>>(sums.as<Column>(), x, e.rows, n);
        cuda_check(cudaGetLastError());
        output(Want::COLUMN_SUM, "dbias", got, 1, Sample(n));
    }
    void residual(Sample rows) {
        const Sample all(e.rows);
        const Buffer norms = buffer_allocate(e.rows * sizeof(Norm));
        e.norms = norms.as<Norm>();
        output(Want::RESIDUAL, "residual", e.t.residual, e.N, rows);
        reference_norms<<<e.rows, REFERENCE_THREADS>>>(norms.as<Norm>(), e.t.residual, e.N);
        cuda_check(cudaGetLastError());
        output(Want::MEAN, "mean", e.t.mean, 1, all);
        output(Want::RSTD, "rstd", e.t.rstd, 1, all);
        output(Want::LN, "ln", e.t.ln, e.N, all);
    }
    void classifier(Sample rows, const float* losses_before, bool scaled) {
        const Buffer softmax = buffer_allocate(rows.count * sizeof(Softmax));
        e.softmax = softmax.as<Softmax>(), e.before = losses_before;
        reference_softmax<<<rows.count, REFERENCE_THREADS>>>(softmax.as<Softmax>(), e.z, e.vocab_size, e.N);
        cuda_check(cudaGetLastError());
        output(Want::DLOGIT, "logits", e.t.logits, e.N, rows, scaled ? e.t.logits_scale : nullptr);
        output(Want::LOSS, "losses", e.t.losses, 1, rows);
    }

    // All outputs of a group. scaled: the configuration's
    void outputs(MatmulGroup group, const GemmReference& r, const MatmulTensors& before, bool scaled) {
        const MatmulTensors& t = e.t;
        const Sample rows = r.rows, all(e.rows);
        const int N = e.N = r.N;
        e.z = r.z();
        switch (group) {
        case MATMUL_QKV:
            return output(Want::LINEAR, "out", t.out, N, rows);
        case MATMUL_RESIDUAL:
            return residual(rows);
        case MATMUL_FC:
            if (t.derivative) {
                output(Want::DERIVATIVE, "derivative", t.derivative, N, rows);
                return output(Want::GELU_OF_LINEAR, "act", t.act, N, rows);
            }
            output(Want::LINEAR, "pre", t.pre, N, rows);
            return output(Want::GELU, "act", t.act, N, all);
        case MATMUL_CLASSIFIER:
            return classifier(rows, before.losses, scaled);
        case MATMUL_DGELU:
            output(Want::DPRE, "dpre", t.dpre, N, rows);
            columns(t.dbias, before.dbias, t.dpre, N);
            if (t.act) { output(Want::GELU, "act", t.act, N, all); }
            return;
        case MATMUL_INPUT:
            return output(Want::LINEAR, "dinp", t.dinp, N, rows);
        default: // MATMUL_WEIGHT
            return output(Want::FP32, "dweight", t.dweight, N, rows);
        }
    }
};

// cuBLASLt for two streams at once: a handle, a workspace and plans for each
struct Libraries {
    Matmul of[2] = {};
    Libraries() {
        status_clear();
        for (Matmul& mm : of) { check(matmul_create(&mm, 0, 0)); }
    }
    ~Libraries() {
        for (Matmul& mm : of) { matmul_destroy(&mm); }
    }
};

static void launch(const MatmulConfig& config, const Set& set, MatmulSizes s, Matmul* library, cudaStream_t stream) {
    MatmulContext context = {library, set.scratch.data};
    config.launch(&context, &set.t, s, stream);
}

// Runs the configuration on each set, concurrently if there are two. Ends the program if it fails or writes out of bounds.
static void run(const MatmulConfig& config, const std::vector<Set*>& sets, MatmulSizes s, Libraries* libraries,
                const std::string& what) {
    std::vector<Buffer> written;
    for (Set* set : sets) {
        for (const Buffer& b : set->buffers) { written.push_back(b); }
        written.push_back(set->scratch);
    }
    run_at_once(sets.size(), written, what,
                [&](size_t n, cudaStream_t stream) { launch(config, *sets[n], s, &libraries->of[n], stream); });
}

// Ends the program unless accumulating gives the bits of before + overwritten. Restarts and runs `sums`.
static void check_accumulation(const MatmulConfig& config, const Case& c, const Set& before, const Set& overwritten,
                               Set* sums, Libraries* libraries, const std::string& what) {
    set_restart(sums, before, true);
    run(config, {sums}, c.s, libraries, what + ", accumulating");
    const unsigned long long different = counted([&](unsigned long long* d) {
        count_other_sums<<<4096, 256>>>(d, sums->t.dweight, before.t.dweight, overwritten.t.dweight,
                                        (int64_t)c.s.OUT * c.s.IN);
    });
    if (different) {
        fatal("%s: %llu elements of dweight have other bits when accumulated than when added afterwards", what.c_str(),
              different);
    }
}

// Ends the program if the configuration is wrong or not deterministic. `before` is filled.
static Judge check_config(const MatmulConfig& config, const Case& c, const Set& before, Libraries* libraries,
                          const std::string& what) {
    const GemmReference r = reference_compute(c, before.t);
    Set sets[3]; // the first with inputs of its own
    for (Set& set : sets) {
        set = set_allocate(c, &set == &sets[0] ? nullptr : &before);
        set.scratch = buffer_allocate(config.scratch_bytes(c.s));
        set_restart(&set, before, false);
    }
    run(config, {&sets[0]}, c.s, libraries, what);
    for (size_t n = 0; n < before.tensors.size(); n++) {
        const Buffer input = before.buffers[n];
        if (before.tensors[n].role != INPUT) { continue; }
        if (words_different(sets[0].buffers[n].data, input.data, input.bytes)) {
            fatal("%s: wrote to its input %s", what.c_str(), before.tensors[n].name);
        }
    }
    Judge judge = {what};
    judge.e.t = sets[0].t, judge.e.rows = c.s.R, judge.e.vocab_size = c.s.vocab_size;
    judge.outputs(c.group, r, before.t, config.scaled);
    run(config, {&sets[1], &sets[2]}, c.s, libraries, what + ", repeated");
    for (size_t n = 0; n < before.tensors.size(); n++) {
        const Buffer first = sets[0].buffers[n];
        for (int again = 1; again < 3; again++) {
            if (words_different(first.data, sets[again].buffers[n].data, first.bytes)) {
                fatal("%s: %s has other bits when it is run again", what.c_str(), before.tensors[n].name);
            }
        }
    }
    if (c.group == MATMUL_WEIGHT) { check_accumulation(config, c, before, sets[0], &sets[1], libraries, what); }
    return judge;
}

static std::string describe(const char* variant, const char* config, const Case& c) {
    char text[256];
    snprintf(text, sizeof(text), "matmul_%s %s %s at R %d IN %d OUT %d, %s%s", variant, matmul_group_names[c.group],
             config, c.s.R, c.s.IN, c.s.OUT, pattern_names[c.pattern], form_names[c.form]);
    return text;
}

// R,IN,OUT at, below and above the tile sizes in every dimension, odd multiples of 16 for e4m3, and many tiles of one k-block
// or three, cut to one block of 64 columns or to three, whose stores follow each other closely; with --check-only, the sizes
// given, if any.
static std::vector<std::vector<int>> sweep_shapes(const BenchOptions& o) {
    const std::vector<BenchSize>& size = o.sizes;
    if (o.check_only && (size[0].given || size[1].given || size[2].given)) {
        return {{size[0].value, size[1].value, size[2].value}};
    }
    return {{1, 8, 8},        {2, 64, 128},     {7, 72, 136},     {33, 128, 64},   {64, 64, 64},
            {127, 136, 264},  {128, 128, 128},  {129, 256, 192},  {200, 384, 384}, {257, 264, 776},
            {500, 320, 1288}, {1030, 192, 384}, {3, 2056, 8},     {5, 8, 2056},    {300, 768, 768},
            {2100, 40, 104},  {336, 1040, 48},  {4112, 208, 272}, {40000, 64, 192}};
}

// What a program races: a variant, and those of its configurations that are asked for
struct Contest {
    MatmulVariant variant;
    std::vector<const MatmulConfig*> configs;
    BenchOptions o;
    Libraries libraries;
};

// Checks every configuration at all shapes of the sweep, patterns and forms; prints a line for each.
static void check_sweep(Contest& contest) {
    const char* variant = contest.variant.name;
    std::string why = "no size asked for";
    int all_checks = 0;
    for (const MatmulConfig* config : contest.configs) {
        double worst = 0;
        int checks = 0;
        for (const std::vector<int>& shape : sweep_shapes(contest.o)) {
            const MatmulSizes s = sizes_of(config->group, shape[0], shape[1], shape[2]);
            if (const char* unsupported = config->unsupported(s)) {
                why = unsupported;
                continue;
            }
            for (Pattern pattern : {ORDINARY, OUTLIERS}) {
                for (Form form : forms_of(*config)) {
                    const Case c = {config->group, s, pattern, form, config->fp8};
                    const Set before = set_allocate(c, nullptr);
                    set_fill(before, c, 1000 + pattern);
                    const std::string what = describe(variant, config->name, c);
                    worst = fmax(worst, check_config(*config, c, before, &contest.libraries, what).worst);
                    checks++;
                }
            }
        }
        printf("matmul_%s %s, %s %s: %d checks passed, largest error %.0f%% of what is allowed%s%s\n", variant,
               precision_of(*config), matmul_group_names[config->group], config->name, checks, 100 * worst,
               checks ? "" : "; not served: ", checks ? "" : why.c_str());
        all_checks += checks;
    }
    if (all_checks == 0) { printf("skipped: matmul_%s in %s: %s\n", variant, PRECISION_NAME, why.c_str()); }
}

// ----------------------------------------------------------------------------
// Timing

// The column `trains`: whether the trainer chooses this configuration for these sizes on this GPU
static const char* trains(const MatmulVariant& variant, const MatmulConfig* config, MatmulSizes s) {
    DeviceCode code;
    check(device_code(&code));
    const MatmulRule* rule = matmul_rule(config->group, sizeof(floatX) == 4, code.capability, s);
    if (strcmp(rule->variant, variant.name) != 0) { return "no"; }
    return matmul_config(variant, config->group, s) == config ? "yes" : "no";
}

// Checks a configuration at the sizes, times it and prints a row.
static void bench(Contest& contest, const BenchGpu& gpu, const MatmulConfig& config, MatmulSizes s) {
    const Case c = {config.group, s, ORDINARY, ALL_TENSORS, config.fp8};
    const char *variant = contest.variant.name, *group = matmul_group_names[c.group];
    const double bytes = least_bytes_of(c);
    printf("\nmatmul_%s, %s, %s, %s, R %d IN %d OUT %d: %s\n%.1f GFLOP in the GEMM, %.3f GB at least\n", variant, group,
           precision_of(config), gpu.properties.name, s.R, s.IN, s.OUT, matmul_group_formulas[c.group],
           1e-9 * flops_of(c), 1e-9 * bytes);
    if (const char* why = config.unsupported(s)) {
        printf("skipped %s: %s\n", config.name, why);
        return;
    }
    std::vector<Set> sets(bench_sets(gpu, bytes));
    sets[0] = set_allocate(c, nullptr);
    set_fill(sets[0], c, 42);
    const Judge v = check_config(config, c, sets[0], &contest.libraries, describe(variant, config.name, c));
    const Buffer scratch = buffer_allocate(config.scratch_bytes(s));
    for (Set& set : sets) {
        if (&set != &sets[0]) {
            set = set_allocate(c, nullptr);
            set_fill(set, c, 42);
        }
        set.scratch = scratch;
    }
    const auto run = [&](int n, cudaStream_t stream) { launch(config, sets[n], s, &contest.libraries.of[0], stream); };

    Race race;
    race.columns = "group,variant,precision,R,IN,OUT";
    race.values = std::string(group) + "," + variant + "," + precision_of(config);
    for (int size : {s.R, s.IN, s.OUT}) { race.values += "," + std::to_string(size); }
    race.work = flops_of(c);
    race.sets = (int)sets.size();
    race.least_bytes = bytes;
    // check_config() passed: deterministic
    run_race(contest.o, gpu, race, {{config.name, trains(contest.variant, &config, s), v.rel_err, true, run}});
}

// Sets the ceiling to the rate of the variant's own GEMM of 8192^3, where it has one, as measure_gemm() does for 16 bit.
static void measure_fp8_gemm(Contest& contest, BenchGpu* gpu) {
    const MatmulSizes s = {8192, 8192, 8192, 0};
    const Case c = {MATMUL_INPUT, s, ORDINARY, ALL_TENSORS, true};
    const MatmulConfig* config = matmul_config(contest.variant, c.group, s);
    gpu->ceiling[RESTED] = gpu->ceiling[STEADY] = NAN;
    if (!config) { return; }
    Set set = set_allocate(c, nullptr);
    set_fill(set, c, 7);
    measure_ceiling(gpu, contest.o, FLOPS, "GEMM 8192^3, fp8", flops_of(c),
                    [&](int, cudaStream_t stream) { launch(*config, set, s, &contest.libraries.of[0], stream); });
}

// ----------------------------------------------------------------------------
// Main

// The shapes to time of a group
static std::vector<MatmulSizes> shapes_to_time(const BenchOptions& o, MatmulGroup group) {
    std::vector<MatmulSizes> list;
    const cli_texts models = o.texts[1].values;
    for (int n = 0; n < models.count; n++) {
        const char* text = models.items[n];
        const std::vector<int> model = bench_shape("--model", 2, text);
        if (model[1] > 1 << 22) { fatal("--model %s: the channels must be at most 2^22", text); }
        for (const auto& m : model_shapes) {
            const int OUT = m.out ? m.out * model[1] : PADDED_VOCABULARY;
            if (m.group == group) { list.push_back(sizes_of(group, model[0], m.in * model[1], OUT)); }
        }
    }
    if (models.count > 0 && !o.shapes_given) { return list; }
    for (const std::vector<int>& shape : o.shapes) { list.push_back(sizes_of(group, shape[0], shape[1], shape[2])); }
    return list;
}

// The groups of --group, or all
static std::vector<bool> wanted_groups(const BenchOptions& o) {
    const cli_texts given = o.texts[0].values;
    std::vector<bool> wanted(NUM_MATMUL_GROUPS, given.count == 0);
    std::string names;
    for (const char* name : matmul_group_names) { names += (names.empty() ? "" : ", ") + std::string(name); }
    for (int n = 0; n < given.count; n++) {
        const char* value = given.items[n];
        int group = 0;
        while (group < NUM_MATMUL_GROUPS && strcmp(matmul_group_names[group], value) != 0) { group++; }
        if (group == NUM_MATMUL_GROUPS) { fatal("--group %s: no such group; there are: %s", value, names.c_str()); }
        wanted[group] = true;
    }
    return wanted;
}

template <> int variant_main(int argc, char** argv, const MatmulVariant& variant, int compute_capability) {
    const std::string program = std::string("matmul_") + variant.name + "_" + PRECISION_NAME;
    const BenchOptions o = bench_options(argc, argv, program.c_str(), matmul_sizes, matmul_texts);
    const std::vector<bool> wanted = wanted_groups(o);
    std::string names;
    std::vector<const MatmulConfig*> configs;
    std::vector<std::pair<const MatmulConfig*, MatmulSizes>> timed;
    for (const MatmulConfig& c : variant) {
        names += (names.empty() ? "" : ", ") + std::string(matmul_group_names[c.group]) + " " + c.name;
        if (!wanted[c.group] || (o.config && strcmp(o.config, c.name) != 0)) { continue; }
        configs.push_back(&c);
        for (MatmulSizes s : shapes_to_time(o, c.group)) { timed.push_back({&c, s}); }
    }
    if (configs.empty()) {
        fatal("%s %s: %s has no such configuration, but %s", o.config ? "--config" : "--group",
              o.config ? o.config : o.texts[0].values.items[0], program.c_str(), names.c_str());
    }

    BenchGpu gpu;
    bench_needs(gpu, program, compute_capability);
    const std::unique_ptr<Contest> contest(new Contest{variant, configs, o, {}}); // too large for a stack
    if (!o.no_sweep || o.check_only) { check_sweep(*contest); }
    if (o.check_only) { return EXIT_SUCCESS; }
    measure_gemm(&gpu, o);
    if (configs[0]->fp8) { measure_fp8_gemm(*contest, &gpu); } // of GEMM: of that in the same precision
    for (const auto& [config, s] : timed) { bench(*contest, gpu, *config, s); }
    return EXIT_SUCCESS;
}
