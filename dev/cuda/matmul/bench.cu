/*
The program that every variant of the matmul competition becomes: check every configuration over a sweep of small ragged
shapes, then check and time each at the shapes asked for and print a row for it. A wrong kernel ends the program with exit
code 1 before anything is timed.

The check    outputs and scratch filled with NaN, guard bytes around all, sums that are added to begin with other numbers.
             Each output against fp64 (matmul/reference.h). Bit for bit: run again, on two streams at once; accumulating
             against overwriting and adding; and that the inputs are as they were.
The timing   bench.h's: a whole group, its tensors rotated through more than the L2 cache.
The row      TFLOP/s count the GEMM's 2 R IN OUT alone; GB/s what must move at least: every input and every output once.
             `trains` is yes for what matmul/choice.h names.
*/
#include <stddef.h>

#include <memory>

#include "bench.h"
#include "reference.h"
#include "dev/cuda/bench/bench.h"
#include "llmc/cuda/device_code.cuh"
#include "llmc/cuda/matmul.cuh"

static const std::vector<BenchSize> matmul_sizes = {{"-r", "R", "rows, of tokens", 4096},
                                                    {"-i", "IN", "channels in; of several weights: the model's", 768},
                                                    {"-o", "OUT", "channels out", 3072}};
static const std::vector<BenchText> matmul_texts = {
    {"--group", "name", "only this group; may be given more than once", {}},
    {"--model", "R,C", "time every group at its shapes in a model of C channels; may be given more than once", {}}};

// The shapes of each group in a model: input and output channels in units of C, 0 for the padded vocabulary
static const struct {
    MatmulGroup group;
    int in, out;
} model_shapes[] = {
    {MATMUL_QKV, 1, 3},        {MATMUL_RESIDUAL, 1, 1}, {MATMUL_RESIDUAL, 4, 1}, {MATMUL_FC, 1, 4},
    {MATMUL_CLASSIFIER, 1, 0}, {MATMUL_DGELU, 4, 1},    {MATMUL_INPUT, 1, 4},    {MATMUL_INPUT, 1, 3},
    {MATMUL_INPUT, 1, 1},      {MATMUL_INPUT, 1, 0},    {MATMUL_WEIGHT, 1, 3},   {MATMUL_WEIGHT, 1, 1},
    {MATMUL_WEIGHT, 1, 4},     {MATMUL_WEIGHT, 4, 1},   {MATMUL_WEIGHT, 1, 0},   {MATMUL_MLP_WEIGHTS, 1, 1}};
constexpr int PADDED_VOCABULARY = 50304;

// One case to check or time. Without `optional`, the group's optional tensors are nullptr; with `derivative`, fc and dgelu use
// the derivative instead of pre.
struct Case {
    MatmulGroup group;
    MatmulSizes s;
    Pattern pattern;
    bool optional, derivative = false;
};

// The sizes of a group at a shape R,IN,OUT. The classifier's last columns are padding, as 47 of GPT-2's 50304 are. Ends the
// program if the contract excludes the shape.
static MatmulSizes sizes_of(MatmulGroup group, int R, int IN, int OUT) {
    MatmulSizes s = {R, IN, group == MATMUL_MLP_WEIGHTS ? IN : OUT, 0};
    if (group == MATMUL_CLASSIFIER) { s.vocab_size = OUT > 64 ? OUT - 47 : OUT - OUT / 8; }
    const char* why = matmul_unsupported(group, s);
    if (why) { fatal("%s at R %d IN %d OUT %d: %s", matmul_group_names[group], R, IN, OUT, why); }
    return s;
}

// In training, group weight computes no bias gradient: other kernels sum the columns.
static bool trains_with_optional(MatmulGroup group) { return group != MATMUL_WEIGHT; }

// ----------------------------------------------------------------------------
// The tensors of each group, listed once: allocation, filling, checking and the bytes in a table's row follow from it.

enum Role { INPUT, OUTPUT, ADDED }; // read; written; read and written
enum Type { TYPE_X, TYPE_FLOAT, TYPE_INT };

struct TensorOf {
    const char* name;
    size_t at; // offset of the pointer in MatmulTensors
    Role role;
    Type type;
    int64_t rows, columns;
    Fill fill = NORMAL;
    float scale = 1;
    int64_t elements() const { return rows * columns; }
    size_t bytes() const { return elements() * (type == TYPE_X ? sizeof(floatX) : 4); }
};
#define TENSOR(member) #member, offsetof(MatmulTensors, member)

static std::vector<TensorOf> mlp_tensors(const Case& c) {
    std::vector<TensorOf> list;
    for (int n = 0; n < 2; n++) {
        const MatmulSizes s = matmul_mlp_sizes(n, c.s);
        const size_t at = offsetof(MatmulTensors, mlp) + n * sizeof(MatmulLayerWeight);
        list.push_back({"dweight", at + offsetof(MatmulLayerWeight, dweight), OUTPUT, TYPE_FLOAT, s.OUT, s.IN});
        list.push_back({"dout", at + offsetof(MatmulLayerWeight, dout), INPUT, TYPE_X, s.R, s.OUT, WITH_OUTLIERS});
        list.push_back({"inp", at + offsetof(MatmulLayerWeight, inp), INPUT, TYPE_X, s.R, s.IN, WITH_OUTLIERS});
    }
    return list;
}

static std::vector<TensorOf> tensors_of(const Case& c) {
    const int R = c.s.R, IN = c.s.IN, OUT = c.s.OUT;
    std::vector<TensorOf> list;
    switch (c.group) { // what the GEMM reads
    case MATMUL_MLP_WEIGHTS:
        return mlp_tensors(c);
    case MATMUL_WEIGHT:
        list = {{TENSOR(dout), INPUT, TYPE_X, R, OUT, WITH_OUTLIERS},
                {TENSOR(inp), INPUT, TYPE_X, R, IN, WITH_OUTLIERS}};
        break;
    case MATMUL_DGELU:
    case MATMUL_INPUT:
        list = {{TENSOR(dout), INPUT, TYPE_X, R, OUT, WITH_OUTLIERS},
                {TENSOR(weight), INPUT, TYPE_X, OUT, IN, SCALED, 1 / sqrtf((float)OUT)}};
        break;
    default:
        list = {{TENSOR(inp), INPUT, TYPE_X, R, IN, WITH_OUTLIERS},
                {TENSOR(weight), INPUT, TYPE_X, OUT, IN, SCALED, 1 / sqrtf((float)IN)}};
        if (c.group != MATMUL_CLASSIFIER) { list.push_back({TENSOR(bias), INPUT, TYPE_X, 1, OUT}); }
    }
    std::vector<TensorOf> rest;
    switch (c.group) {
    case MATMUL_QKV:
        rest = {{TENSOR(out), OUTPUT, TYPE_X, R, OUT}};
        break;
    case MATMUL_RESIDUAL:
        rest = {{TENSOR(skip), INPUT, TYPE_X, R, OUT, WITH_OUTLIERS},
                {TENSOR(ln_weight), INPUT, TYPE_X, 1, OUT},
                {TENSOR(ln_bias), INPUT, TYPE_X, 1, OUT},
                {TENSOR(residual), OUTPUT, TYPE_X, R, OUT},
                {TENSOR(ln), OUTPUT, TYPE_X, R, OUT},
                {TENSOR(mean), OUTPUT, TYPE_FLOAT, R, 1},
                {TENSOR(rstd), OUTPUT, TYPE_FLOAT, R, 1}};
        break;
    case MATMUL_FC:
        rest = {{TENSOR(pre), OUTPUT, TYPE_X, R, OUT}, {TENSOR(act), OUTPUT, TYPE_X, R, OUT}};
        if (c.derivative) { rest[0] = {TENSOR(derivative), OUTPUT, TYPE_X, R, OUT}; }
        break;
    case MATMUL_CLASSIFIER:
        rest = {{TENSOR(targets), INPUT, TYPE_INT, R, 1, TARGETS},
                {TENSOR(logits), OUTPUT, TYPE_X, R, OUT},
                {TENSOR(logits_scale), OUTPUT, TYPE_FLOAT, R, 1},
                {TENSOR(losses), ADDED, TYPE_FLOAT, R, 1}};
        break;
    case MATMUL_DGELU:
        rest = {{TENSOR(pre), INPUT, TYPE_X, R, IN, WIDE},
                {TENSOR(dpre), OUTPUT, TYPE_X, R, IN},
                {TENSOR(dbias), ADDED, TYPE_FLOAT, 1, IN}};
        if (c.derivative) { rest[0] = {TENSOR(derivative), INPUT, TYPE_X, R, IN}; }
        if (c.optional) { rest.push_back({TENSOR(act), OUTPUT, TYPE_X, R, IN}); }
        break;
    case MATMUL_INPUT:
        rest = {{TENSOR(dinp), OUTPUT, TYPE_X, R, IN}};
        break;
    default: // MATMUL_WEIGHT
        rest = {{TENSOR(dweight), OUTPUT, TYPE_FLOAT, OUT, IN}};
        if (c.optional) { rest.push_back({TENSOR(dbias), ADDED, TYPE_FLOAT, 1, OUT}); }
    }
    list.insert(list.end(), rest.begin(), rest.end());
    return list;
}

// The weight gradients that a group computes, and their sizes; empty for groups without any.
struct WeightOf {
    MatmulLayerWeight w;
    MatmulSizes s;
    const char* name;
};
static std::vector<WeightOf> weights_of(const Case& c, const MatmulTensors& t) {
    std::vector<WeightOf> list;
    if (c.group == MATMUL_WEIGHT) { list.push_back({{t.dweight, t.dbias, t.dout, t.inp}, c.s, ""}); }
    for (int n = 0; n < 2 && c.group == MATMUL_MLP_WEIGHTS; n++) {
        list.push_back({t.mlp[n], matmul_mlp_sizes(n, c.s), n == 0 ? "fc's " : "fcproj's "});
    }
    return list;
}

static double flops_of(const Case& c) {
    // of mlp_weights: two GEMMs of four times as many
    return (c.group == MATMUL_MLP_WEIGHTS ? 8 : 1) * 2.0 * c.s.R * c.s.IN * c.s.OUT;
}
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
    set.t.gradient_scale = 0.5f; // large enough that fp16 gradients do not underflow
    return set;
}
static void set_free(Set* set, bool shares) {
    for (size_t n = 0; n < set->tensors.size(); n++) {
        if (!shares || set->tensors[n].role != INPUT) { buffer_free(&set->buffers[n]); }
    }
    buffer_free(&set->scratch);
}

// Fills inputs, tensors that are added to, and outputs, to which accumulating kernels add
static void set_fill(const Set& set, const Case& c, uint64_t seed) {
    for (size_t n = 0; n < set.tensors.size(); n++) {
        const TensorOf& tensor = set.tensors[n];
        const Buffer b = set.buffers[n];
        const FillOf fill = {tensor.fill, c.pattern, tensor.columns, tensor.scale, c.s.vocab_size, seed * 64 + n};
        buffer_poison(b);
        if (tensor.type == TYPE_X) {
            fill_tensor<<<4096, 256>>>(b.as<floatX>(), tensor.elements(), fill);
        } else if (tensor.type == TYPE_FLOAT) {
            fill_tensor<<<4096, 256>>>(b.as<float>(), tensor.elements(), fill);
        } else {
            fill_targets<<<(unsigned)CEIL_DIV(tensor.elements(), (int64_t)256), 256>>>(b.as<int>(), tensor.elements(),
                                                                                       fill);
        }
        cuda_check(cudaGetLastError());
    }
}
// Copies the tensors that are added to from `before`; sets outputs to NaN or, if accumulating, copies them, too
static void set_restart(Set* set, const Set& before, bool accumulate) {
    set->t.accumulate = accumulate;
    for (size_t n = 0; n < set->tensors.size(); n++) {
        const Buffer to = set->buffers[n], from = before.buffers[n];
        if (set->tensors[n].role == INPUT) { continue; }
        buffer_poison(to);
        if (set->tensors[n].role == ADDED || accumulate) {
            cuda_check(cudaMemcpy(to.data, from.data, from.bytes, cudaMemcpyDeviceToDevice));
        }
    }
    buffer_poison(set->scratch);
}
static unsigned long long inputs_digest(const Set& set) {
    unsigned long long *on_gpu, digest;
    cuda_check(cudaMalloc(&on_gpu, sizeof(digest)));
    cuda_check(cudaMemset(on_gpu, 0, sizeof(digest)));
    for (size_t n = 0; n < set.tensors.size(); n++) {
        if (set.tensors[n].role != INPUT) { continue; }
        add_words<<<512, 256>>>(on_gpu, set.buffers[n].as<uint32_t>(), set.buffers[n].bytes / 4);
        cuda_check(cudaGetLastError());
    }
    cuda_check(cudaMemcpy(&digest, on_gpu, sizeof(digest), cudaMemcpyDeviceToHost));
    cuda_check(cudaFree(on_gpu));
    return digest;
}

// A device array that is freed when it goes out of scope
template <class T> struct Temporary {
    Buffer buffer;
    explicit Temporary(size_t n) : buffer(buffer_allocate(n * sizeof(T))) {}
    ~Temporary() { buffer_free(&buffer); }
    Temporary(const Temporary&) = delete;
    operator T*() const { return buffer.as<T>(); }
};

// ----------------------------------------------------------------------------
// The reference: GEMMs of sampled rows and, for sums over rows, of sampled columns

// Samples 0 .. n-1: one random number from each of `most` equal parts, or all if n <= most. *buffer holds them.
static Choice choose(Buffer* buffer, int n, int most, unsigned seed) {
    if (n <= most) { return {nullptr, n}; }
    std::mt19937 generator(seed);
    std::vector<int> index(most);
    for (int part = 0; part < most; part++) {
        const int64_t begin = (int64_t)n * part / most, end = (int64_t)n * (part + 1) / most;
        index[part] = (int)(begin + generator() % (end - begin));
    }
    *buffer = buffer_allocate(most * sizeof(int));
    cuda_check(cudaMemcpy(buffer->data, index.data(), most * sizeof(int), cudaMemcpyHostToDevice));
    return {buffer->as<int>(), most};
}

// One GEMM's result (., N): the sampled rows, and their z (rows.count, N)
struct GemmReference {
    Choice rows;
    int N;
    Buffer index, z;
};
struct Reference {
    std::vector<GemmReference> gemms; // one a weight; one for groups without weight gradients
};

static Buffer gemm_compute(const Operand& A, const Operand& B, int64_t K) {
    Buffer z = buffer_allocate((size_t)A.rows.count * B.rows.count * sizeof(MatmulBounded));
    reference_gemm<<<dim3(CEIL_DIV(A.rows.count, 64), CEIL_DIV(B.rows.count, 64)), REFERENCE_THREADS>>>(
        z.as<MatmulBounded>(), A, B, K);
    cuda_check(cudaGetLastError());
    return z;
}

static Reference reference_compute(const Case& c, const MatmulTensors& t, unsigned seed) {
    const int R = c.s.R, IN = c.s.IN, OUT = c.s.OUT;
    Reference r = {};
    for (const WeightOf& w : weights_of(c, t)) { // dweight (OUT,IN) = dout^T inp
        GemmReference g = {};
        g.rows = choose(&g.index, w.s.OUT, REFERENCE_ROWS, seed), g.N = w.s.IN;
        g.z = gemm_compute({w.w.dout, 1, w.s.OUT, g.rows}, {w.w.inp, 1, w.s.IN, {nullptr, w.s.IN}}, R);
        r.gemms.push_back(g);
    }
    if (!r.gemms.empty()) { return r; }
    GemmReference g = {};
    g.rows = choose(&g.index, R, REFERENCE_ROWS, seed);
    if (t.inp) { // inp W^T
        g.N = OUT;
        g.z = gemm_compute({t.inp, IN, 1, g.rows}, {t.weight, IN, 1, {nullptr, OUT}}, IN);
    } else { // dout W
        g.N = IN;
        g.z = gemm_compute({t.dout, OUT, 1, g.rows}, {t.weight, 1, IN, {nullptr, IN}}, OUT);
    }
    r.gemms.push_back(g);
    return r;
}
static void reference_free(Reference* r) {
    for (GemmReference& g : r->gemms) { buffer_free(&g.index), buffer_free(&g.z); }
}

// ----------------------------------------------------------------------------
// The check

struct Verdict {
    double worst = 0;    // largest error / tolerance: at most 1 passes
    double rel_err = -1; // ||x - ref|| / ||ref|| of the first output; -1: none yet
};

// Compares one output (., ld), multiplied by its row's factor if there are factors, with the reference at the sampled rows
// and columns. Ends the program on a mismatch.
template <class T, class Want> static void judge_output(Verdict* v, const std::string& what, const std::string& name,
                                                        const T* got, int64_t ld, Choice rows, Choice columns,
                                                        Want want, const float* factors = nullptr) {
    Temporary<Difference> difference(1);
    Temporary<Element> at(1);
    Difference d;
    Element e;
    cuda_check(cudaMemset(difference, 0, sizeof(d)));
    compare_elements<<<1024, REFERENCE_THREADS>>>((Difference*)difference, got, ld, factors, rows, columns, want);
    cuda_check(cudaGetLastError());
    cuda_check(cudaMemcpy(&d, difference, sizeof(d), cudaMemcpyDeviceToHost));
    const unsigned n = (unsigned)d.worst, bits = (unsigned)(d.worst >> 32);
    float worst;
    memcpy(&worst, &bits, sizeof(worst));
    if (d.not_finite || !(worst <= 1)) {
        int row = (int)(n / columns.count), column = (int)(n % columns.count);
        look_at<<<1, 1>>>((Element*)at, got, ld, factors, rows, columns, want, (int64_t)n);
        cuda_check(cudaMemcpy(&e, at, sizeof(e), cudaMemcpyDeviceToHost));
        if (rows.index) { cuda_check(cudaMemcpy(&row, rows.index + row, sizeof(row), cudaMemcpyDeviceToHost)); }
        if (columns.index) {
            cuda_check(cudaMemcpy(&column, columns.index + column, sizeof(column), cudaMemcpyDeviceToHost));
        }
        fatal("%s: %s[%d,%d] is %.7g, must be %.7g within %.2g; %llu elements are not finite, or were not written",
              what.c_str(), name.c_str(), row, column, e.got, e.want.value, e.want.error, d.not_finite);
    }
    v->worst = fmax(v->worst, worst);
    if (v->rel_err < 0) { v->rel_err = d.reference2 > 0 ? sqrt(d.error2 / d.reference2) : 0; }
}

// Sums over the rows of x (rows, n) as stored, added to `before`: got (n)
static void judge_columns(Verdict* v, const std::string& what, const std::string& name, const float* got,
                          const float* before, const floatX* x, int rows, int n, bool rounded) {
    Temporary<MatmulColumn> sums(n);
    reference_columns<<<CEIL_DIV(n, 32), REFERENCE_THREADS>>>(sums, x, rows, n, rounded);
    cuda_check(cudaGetLastError());
    judge_output(v, what, name, got, 1, {nullptr, n}, {nullptr, 1}, WantColumn{sums, before, rows});
}

static void judge_residual(Verdict* v, const std::string& what, const GemmReference& g, const MatmulBounded* z,
                           const MatmulTensors& t, int R) {
    const Choice all_rows = {nullptr, R}, columns = {nullptr, g.N}, one = {nullptr, 1};
    Temporary<MatmulNorm> norms(R);
    judge_output(v, what, "residual", t.residual, g.N, g.rows, columns, WantResidual{z, t.bias, t.skip, g.N});
    reference_norms<<<R, REFERENCE_THREADS>>>(norms, t.residual, g.N);
    cuda_check(cudaGetLastError());
    judge_output(v, what, "mean", t.mean, 1, all_rows, one, WantMean{norms});
    judge_output(v, what, "rstd", t.rstd, 1, all_rows, one, WantRstd{norms});
    judge_output(v, what, "ln", t.ln, g.N, all_rows, columns, WantNorm{norms, t.residual, t.ln_weight, t.ln_bias, g.N});
}

static void judge_classifier(Verdict* v, const std::string& what, const GemmReference& g, const MatmulBounded* z,
                             const MatmulTensors& t, const MatmulTensors& before, int V, bool scaled) {
    Temporary<MatmulSoftmax> softmax(g.rows.count);
    reference_softmax<<<g.rows.count, REFERENCE_THREADS>>>(softmax, z, V, g.N);
    cuda_check(cudaGetLastError());
    judge_output(v, what, "logits", t.logits, g.N, g.rows, {nullptr, g.N},
                 WantDlogits{z, softmax, t.targets, V, g.N, (double)t.gradient_scale},
                 scaled ? t.logits_scale : nullptr);
    judge_output(v, what, "losses", t.losses, 1, g.rows, {nullptr, 1},
                 WantLoss{z, softmax, t.targets, before.losses, g.N});
}

// Ends the program if an output is wrong, else returns the errors. scaled: the configuration's
static Verdict judge(const Case& c, const Reference& r, const MatmulTensors& t, const MatmulTensors& before,
                     bool scaled, const std::string& what) {
    Verdict v;
    const GemmReference& g = r.gemms[0];
    const MatmulBounded* z = g.z.as<MatmulBounded>();
    const Choice columns = {nullptr, g.N}, all_rows = {nullptr, c.s.R};
    const std::vector<WeightOf> weights = weights_of(c, t), weights_before = weights_of(c, before);
    for (size_t n = 0; n < weights.size(); n++) {
        const WeightOf& w = weights[n];
        judge_output(&v, what, std::string(w.name) + "dweight", w.w.dweight, w.s.IN, r.gemms[n].rows, {nullptr, w.s.IN},
                     WantFp32{r.gemms[n].z.as<MatmulBounded>(), w.s.IN});
        if (w.w.dbias) {
            judge_columns(&v, what, std::string(w.name) + "dbias", w.w.dbias, weights_before[n].w.dbias, w.w.dout,
                          w.s.R, w.s.OUT, false);
        }
    }
    switch (c.group) {
    case MATMUL_QKV:
        judge_output(&v, what, "out", t.out, g.N, g.rows, columns, WantLinear{z, t.bias, g.N});
        break;
    case MATMUL_RESIDUAL:
        judge_residual(&v, what, g, z, t, c.s.R);
        break;
    case MATMUL_FC:
        if (c.derivative) {
            const WantLinear pre = {z, t.bias, g.N};
            judge_output(&v, what, "derivative", t.derivative, g.N, g.rows, columns, WantDerivative{pre});
            judge_output(&v, what, "act", t.act, g.N, g.rows, columns, WantGeluOfLinear{pre});
            break;
        }
        judge_output(&v, what, "pre", t.pre, g.N, g.rows, columns, WantLinear{z, t.bias, g.N});
        judge_output(&v, what, "act", t.act, g.N, all_rows, columns, WantGelu{t.pre, g.N});
        break;
    case MATMUL_CLASSIFIER:
        judge_classifier(&v, what, g, z, t, before, c.s.vocab_size, scaled);
        break;
    case MATMUL_DGELU:
        if (c.derivative) {
            judge_output(&v, what, "dpre", t.dpre, g.N, g.rows, columns, WantTimes{z, t.derivative, g.N});
        } else {
            judge_output(&v, what, "dpre", t.dpre, g.N, g.rows, columns, WantDgelu{z, t.pre, g.N});
        }
        judge_columns(&v, what, "dbias", t.dbias, before.dbias, t.dpre, c.s.R, g.N, true);
        if (t.act) { judge_output(&v, what, "act", t.act, g.N, all_rows, columns, WantGelu{t.pre, g.N}); }
        break;
    case MATMUL_INPUT:
        judge_output(&v, what, "dinp", t.dinp, g.N, g.rows, columns, WantLinear{z, nullptr, g.N});
        break;
    default:
        break; // the weight gradients, above
    }
    return v;
}

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
    cuda_check(cudaDeviceSynchronize());
    std::vector<cudaStream_t> streams(sets.size());
    for (cudaStream_t& stream : streams) { cuda_check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking)); }
    status_clear();
    for (size_t n = 0; n < sets.size(); n++) { launch(config, *sets[n], s, &libraries->of[n], streams[n]); }
    if (status_now() != STATUS_OK) { fatal("%s: %s", what.c_str(), status_message()); }
    cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) { fatal("%s: the kernel failed: %s", what.c_str(), cudaGetErrorString(error)); }
    for (cudaStream_t stream : streams) { cuda_check(cudaStreamDestroy(stream)); }
    for (Set* set : sets) {
        std::vector<Buffer> buffers = set->buffers;
        buffers.push_back(set->scratch);
        for (Buffer b : buffers) {
            if (!buffer_intact(b)) { fatal("%s: wrote outside of its tensors", what.c_str()); }
        }
    }
}

// Ends the program unless accumulating gives the bits of before + overwritten. Restarts and runs `sums`.
static void check_accumulation(const MatmulConfig& config, const Case& c, const Set& before, const Set& overwritten,
                               Set* sums, Libraries* libraries, const std::string& what) {
    Temporary<unsigned long long> count(1);
    unsigned long long different;
    set_restart(sums, before, true);
    run(config, {sums}, c.s, libraries, what + ", accumulating");
    const std::vector<WeightOf> got = weights_of(c, sums->t), from = weights_of(c, before.t),
                                alone = weights_of(c, overwritten.t);
    for (size_t n = 0; n < got.size(); n++) {
        cuda_check(cudaMemset(count, 0, sizeof(different)));
        count_other_sums<<<4096, 256>>>(count, got[n].w.dweight, from[n].w.dweight, alone[n].w.dweight,
                                        (int64_t)got[n].s.OUT * got[n].s.IN);
        cuda_check(cudaGetLastError());
        cuda_check(cudaMemcpy(&different, count, sizeof(different), cudaMemcpyDeviceToHost));
        if (different) {
            fatal("%s: %llu elements of %sdweight have other bits when accumulated than when added afterwards",
                  what.c_str(), different, got[n].name);
        }
    }
}

// Ends the program if the configuration is wrong or not deterministic.
static Verdict check_config(const MatmulConfig& config, const Case& c, const Reference& r, const Set& before,
                            Libraries* libraries, const std::string& what) {
    const unsigned long long inputs = inputs_digest(before);
    Set sets[3];
    for (Set& set : sets) {
        set = set_allocate(c, &before);
        set.scratch = buffer_allocate(config.scratch_bytes(c.s));
        set_restart(&set, before, false);
    }
    run(config, {&sets[0]}, c.s, libraries, what);
    const Verdict verdict = judge(c, r, sets[0].t, before.t, config.scaled, what);
    run(config, {&sets[1], &sets[2]}, c.s, libraries, what + ", repeated");
    for (Set* set : {&sets[1], &sets[2]}) {
        for (size_t n = 0; n < set->tensors.size(); n++) {
            const Buffer first = sets[0].buffers[n], again = set->buffers[n];
            if (words_different(first.data, again.data, first.bytes)) {
                fatal("%s: %s has other bits when it is run again", what.c_str(), set->tensors[n].name);
            }
        }
    }
    if (!weights_of(c, before.t).empty()) { check_accumulation(config, c, before, sets[0], &sets[1], libraries, what); }
    if (inputs_digest(before) != inputs) { fatal("%s: wrote to its inputs", what.c_str()); }
    for (Set& set : sets) { set_free(&set, true); }
    return verdict;
}

static std::string describe(const char* variant, const char* config, const Case& c) {
    char text[256];
    snprintf(text, sizeof(text), "matmul_%s %s %s at R %d IN %d OUT %d, %s%s", variant, matmul_group_names[c.group],
             config, c.s.R, c.s.IN, c.s.OUT, pattern_names[c.pattern],
             c.derivative ? ", the derivative in pre's place"
             : c.optional ? ""
                          : ", optional tensors left out");
    return text;
}

// R,IN,OUT at, below and above the tile sizes in every dimension, and many tiles of one k-block or three, cut to one block of
// 64 columns or to three, whose stores follow each other closely; with --check-only, the sizes given, if any.
static std::vector<std::vector<int>> sweep_shapes(const BenchOptions& o) {
    const std::vector<BenchSize>& size = o.sizes;
    if (o.check_only && (size[0].given || size[1].given || size[2].given)) {
        return {{size[0].value, size[1].value, size[2].value}};
    }
    return {{1, 8, 8},       {2, 64, 128},    {7, 72, 136},    {33, 128, 64},   {64, 64, 64},     {127, 136, 264},
            {128, 128, 128}, {129, 256, 192}, {200, 384, 384}, {257, 264, 776}, {500, 320, 1288}, {1030, 192, 384},
            {3, 2056, 8},    {5, 8, 2056},    {300, 768, 768}, {2100, 40, 104}, {40000, 64, 192}};
}

// Checks every configuration at all shapes of the sweep, patterns and optional tensors; prints a line for each.
static void check_sweep(const char* variant, const std::vector<const MatmulConfig*>& configs, const BenchOptions& o,
                        Libraries* libraries) {
    std::vector<double> worst(configs.size());
    std::vector<int> checks(configs.size());
    std::string why = "no size asked for";
    auto check_case = [&](const Case& c) {
        std::vector<size_t> serving;
        for (size_t n = 0; n < configs.size(); n++) {
            if (configs[n]->group != c.group || (c.derivative && !configs[n]->has_derivative)) { continue; }
            const char* unsupported = configs[n]->unsupported(c.s);
            if (unsupported) { why = unsupported; }
            if (!unsupported) { serving.push_back(n); }
        }
        if (serving.empty()) { return; }
        Set before = set_allocate(c, nullptr);
        set_fill(before, c, 1000 + c.pattern);
        Reference r = reference_compute(c, before.t, c.s.R + 31 * c.s.OUT);
        for (size_t n : serving) {
            const std::string what = describe(variant, configs[n]->name, c);
            worst[n] = fmax(worst[n], check_config(*configs[n], c, r, before, libraries, what).worst);
            checks[n]++;
        }
        reference_free(&r);
        set_free(&before, false);
    };
    for (int group = 0; group < NUM_MATMUL_GROUPS; group++) {
        for (const std::vector<int>& shape : sweep_shapes(o)) {
            const MatmulSizes s = sizes_of((MatmulGroup)group, shape[0], shape[1], shape[2]);
            for (int pattern = 0; pattern < NUM_PATTERNS; pattern++) {
                for (bool optional : {true, false}) {
                    const Case c = {(MatmulGroup)group, s, (Pattern)pattern, optional};
                    if (optional || tensors_of(c).size() != tensors_of({c.group, s, c.pattern, true}).size()) {
                        check_case(c);
                    }
                }
                if (group == MATMUL_FC || group == MATMUL_DGELU) {
                    check_case({(MatmulGroup)group, s, (Pattern)pattern, false, true});
                }
            }
        }
    }
    int all_checks = 0;
    for (size_t n = 0; n < configs.size(); n++) {
        all_checks += checks[n];
        printf("matmul_%s %s, %s %s: %d checks passed, largest error %.0f%% of what is allowed\n", variant,
               PRECISION_NAME, matmul_group_names[configs[n]->group], configs[n]->name, checks[n], 100 * worst[n]);
    }
    if (all_checks == 0) { printf("skipped: matmul_%s in %s: %s\n", variant, PRECISION_NAME, why.c_str()); }
}

// ----------------------------------------------------------------------------
// Timing

// The column `trains`: whether the trainer chooses this configuration for these sizes on this GPU
static const char* trains(const char* variant, const MatmulConfig* table, size_t num_configs,
                          const MatmulConfig* config, MatmulSizes s) {
    DeviceCode code;
    check(device_code(&code));
    const MatmulRule* rule = matmul_rule(config->group, sizeof(floatX) == 4, code.capability, s);
    if (!rule || strcmp(rule->variant, variant) != 0) { return "no"; }
    return matmul_config(table, num_configs, rule->config, config->group, s) == config ? "yes" : "no";
}

// Checks the configurations of a group at the sizes, times them and prints a row for each.
static void bench(const char* variant, const MatmulConfig* table, size_t num_configs,
                  const std::vector<const MatmulConfig*>& configs, const BenchOptions& o, const BenchGpu& gpu,
                  Libraries* libraries, MatmulGroup group, MatmulSizes s) {
    const Case c = {group, s, ORDINARY, trains_with_optional(group)};
    const double bytes = least_bytes_of(c);
    printf("\nmatmul_%s, %s, %s, %s, R %d IN %d OUT %d: %s\n%.1f GFLOP in the GEMM, %.3f GB at least%s\n", variant,
           matmul_group_names[group], PRECISION_NAME, gpu.properties.name, s.R, s.IN, s.OUT,
           matmul_group_formulas[group], 1e-9 * flops_of(c), 1e-9 * bytes,
           c.optional ? "" : "; without column sums of dout, as this shape trains");

    // Rotate through enough sets of tensors that a set is reused only after traffic of twice the L2 cache
    const int num_sets = 1 + (int)(2 * (size_t)gpu.properties.l2CacheSize / bytes);
    std::vector<Set> sets;
    size_t scratch_bytes = 0;
    std::vector<Racer> racers;
    sets.push_back(set_allocate(c, nullptr));
    set_fill(sets[0], c, 42);
    Reference r = reference_compute(c, sets[0].t, 42);
    for (const MatmulConfig* config : configs) {
        const char* why = config->group == group ? config->unsupported(s) : "";
        if (why && *why) { printf("skipped %s: %s\n", config->name, why); }
        if (why) { continue; }
        const Verdict v = check_config(*config, c, r, sets[0], libraries, describe(variant, config->name, c));
        auto run = [config, s, &sets, libraries](int n, cudaStream_t stream) {
            launch(*config, sets[n], s, &libraries->of[0], stream);
        };
        const char* does = trains(variant, table, num_configs, config, s);
        racers.push_back({config->name, does, v.rel_err, true, run}); // check_config() passed: deterministic
        scratch_bytes = std::max(scratch_bytes, config->scratch_bytes(s));
    }
    reference_free(&r);
    for (int n = 1; n < num_sets && !racers.empty(); n++) {
        sets.push_back(set_allocate(c, nullptr));
        set_fill(sets[n], c, 42);
    }
    Buffer scratch = buffer_allocate(scratch_bytes);
    for (Set& set : sets) { set.scratch = scratch; }

    Race race;
    race.columns = "group,variant,precision,R,IN,OUT";
    race.values = std::string(matmul_group_names[group]) + "," + variant + "," + PRECISION_NAME;
    for (int size : {s.R, s.IN, s.OUT}) { race.values += "," + std::to_string(size); }
    race.work = flops_of(c);
    race.sets = num_sets;
    race.least_bytes = bytes;
    if (!racers.empty()) { run_race(o, gpu, race, racers); }

    for (Set& set : sets) {
        set.scratch = Buffer();
        set_free(&set, false);
    }
    buffer_free(&scratch);
}

// ----------------------------------------------------------------------------
// Main

// The shapes to time for the groups in `wanted`
struct Timed {
    MatmulGroup group;
    MatmulSizes s;
};
static std::vector<Timed> shapes_to_time(const BenchOptions& o, const std::vector<bool>& wanted) {
    std::vector<Timed> list;
    const std::vector<const char*>& models = o.texts[1].values;
    for (const char* text : models) {
        const std::vector<int> model = bench_shape("--model", 2, text);
        for (const auto& m : model_shapes) {
            if (!wanted[m.group]) { continue; }
            if (model[1] > 1 << 22) { fatal("--model %s: the channels must be at most 2^22", text); }
            const int OUT = m.out ? m.out * model[1] : PADDED_VOCABULARY;
            list.push_back({m.group, sizes_of(m.group, model[0], m.in * model[1], OUT)});
        }
    }
    for (const std::vector<int>& shape : o.shapes) {
        for (int group = 0; group < NUM_MATMUL_GROUPS && (models.empty() || o.shapes_given); group++) {
            const MatmulGroup g = (MatmulGroup)group;
            if (wanted[group]) { list.push_back({g, sizes_of(g, shape[0], shape[1], shape[2])}); }
        }
    }
    return list;
}

// The groups of --group, or all
static std::vector<bool> wanted_groups(const BenchOptions& o) {
    std::vector<bool> wanted(NUM_MATMUL_GROUPS, o.texts[0].values.empty());
    std::string names;
    for (const char* name : matmul_group_names) { names += (names.empty() ? "" : ", ") + std::string(name); }
    for (const char* value : o.texts[0].values) {
        const int group = (int)(std::find_if(matmul_group_names, matmul_group_names + NUM_MATMUL_GROUPS,
                                             [&](const char* name) { return strcmp(name, value) == 0; }) -
                                matmul_group_names);
        if (group == NUM_MATMUL_GROUPS) { fatal("--group %s: no such group; there are: %s", value, names.c_str()); }
        wanted[group] = true;
    }
    return wanted;
}

int matmul_main(int argc, char** argv, const char* variant, const MatmulConfig* table, size_t num_configs,
                int compute_capability) {
    const std::string program = std::string("matmul_") + variant + "_" + PRECISION_NAME;
    const BenchOptions o = bench_options(argc, argv, program.c_str(), matmul_sizes, matmul_texts);
    std::vector<bool> wanted = wanted_groups(o), served(NUM_MATMUL_GROUPS);
    std::string names;
    std::vector<const MatmulConfig*> configs;
    for (const MatmulConfig* c = table; c < table + num_configs; c++) {
        if (!wanted[c->group]) { continue; }
        if (names.find(c->name) == std::string::npos) { names += (names.empty() ? "" : ", ") + std::string(c->name); }
        if (o.config && strcmp(o.config, c->name) != 0) { continue; }
        configs.push_back(c);
        served[c->group] = true;
    }
    if (names.empty()) { fatal("--group %s: %s has no configuration of it", o.texts[0].values[0], program.c_str()); }
    if (configs.empty()) { fatal("--config %s: no such configuration; there are: %s", o.config, names.c_str()); }
    const std::vector<Timed> timed = shapes_to_time(o, served);

    BenchGpu gpu;
    const cudaDeviceProp& p = gpu.properties;
    if (p.major * 10 + p.minor < compute_capability) {
        fatal("%s needs compute capability %d.%d; the %s has %d.%d", program.c_str(), compute_capability / 10,
              compute_capability % 10, p.name, p.major, p.minor);
    }
    const std::unique_ptr<Libraries> libraries(new Libraries); // too large for a stack
    if (o.sweep || o.check_only) { check_sweep(variant, configs, o, libraries.get()); }
    if (o.check_only) { return EXIT_SUCCESS; }
    measure_gemm(&gpu, o);
    for (const Timed& t : timed) { bench(variant, table, num_configs, configs, o, gpu, libraries.get(), t.group, t.s); }
    return EXIT_SUCCESS;
}
