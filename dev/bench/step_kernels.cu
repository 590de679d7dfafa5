/*
What a training step consists of: its operations by group, each group timed with its energy, and the GEMMs alone.

    build/step_kernels d12 64 [T]          one micro-step of 64 rows of T=1024 random tokens, -r 0; d12+fp8 with --fp8 1

The operations of train_gpt2.cu are wrapped below: while one step runs, each is kept with its arguments. So a group can run
again by itself, over all layers, as can the step and, instead of it, plain GEMMs of its sizes. All are CUDA graphs, steady as
in dev/cuda/bench/bench.h. A group, the line `step` and the line `GEMMs alone` are each

    GROUP,OPERATIONS,MS,ALONE_MS,JOULES,GB,TFLOP

ms within the step, by events between its operations; ms and joules of the group (of the step, of the GEMMs) alone, where
fp8's input and weight also quantise what others have in the step; the bytes, every operand once, and FLOPs it needs, counted.
The step lacks train_gpt2.cu's copies and clears, and the host: speed.csv has a whole one. step_kernels.py writes the csv.
*/
#include "dev/cuda/attention/attention.cuh"
#include "dev/cuda/matmul/matmul.cuh"
#include "dev/cuda/bench/bench.h"
#include "llmc/cuda/adamw.cuh"
#include "llmc/cuda/classifier.cuh"
#include "llmc/cuda/encoder.cuh"
#include "llmc/cuda/global_norm.cuh"
#include "llmc/cuda/layernorm.cuh"
#include "llmc/cuda/matmul.cuh"
#include "llmc/cuda/qkv_bias.cuh"

// X(id, name), in the order of a step
#define STEP_GROUPS(X)                                                                                                 \
    X(EMBEDDING, "embedding")                                                                                          \
    X(LAYERNORM, "first LayerNorm")                                                                                    \
    X(QKV, "qkv")                                                                                                      \
    X(ATTENTION, "attention")                                                                                          \
    X(RESIDUAL, "residual")                                                                                            \
    X(FC, "fc")                                                                                                        \
    X(CLASSIFIER, "classifier")                                                                                        \
    X(DGELU, "dgelu")                                                                                                  \
    X(INPUT, "input")                                                                                                  \
    X(WEIGHT, "weight")                                                                                                \
    X(LAYERNORM_BACKWARD, "LayerNorm backward")                                                                        \
    X(ATTENTION_BACKWARD, "attention backward")                                                                        \
    X(QKV_BIAS, "qkv bias")                                                                                            \
    X(EMBEDDING_BACKWARD, "embedding backward")                                                                        \
    X(NORM, "norm and loss")                                                                                           \
    X(ADAMW, "AdamW")
#define STEP_GROUP_ID(id, name) GROUP_##id,
#define STEP_GROUP_NAME(id, name) name,
enum Group { STEP_GROUPS(STEP_GROUP_ID) NUM_STEP_GROUPS };
static const char* const group_names[NUM_STEP_GROUPS] = {STEP_GROUPS(STEP_GROUP_NAME)};

struct Operation {
    Group group;
    std::function<void()> launch;
};
static std::vector<Operation> step_operations;
static bool recording;

template <class Launch> static auto operation(Group group, Launch launch) {
    if (recording) {
        step_operations.push_back({group, [=]() mutable { launch(); }});
    }
    return launch();
}
#define OPERATION(id, call) operation(GROUP_##id, [=]() mutable { return call; })

#define document_starts(...) OPERATION(EMBEDDING, (document_starts)(__VA_ARGS__))
#define encoder_forward(...) OPERATION(EMBEDDING, (encoder_forward)(__VA_ARGS__))
#define layernorm_forward(...) OPERATION(LAYERNORM, (layernorm_forward)(__VA_ARGS__))
#define matmul_qkv(...) OPERATION(QKV, (matmul_qkv)(__VA_ARGS__))
#define attention_forward_documents(...) OPERATION(ATTENTION, (attention_forward_documents)(__VA_ARGS__))
#define matmul_residual(...) OPERATION(RESIDUAL, (matmul_residual)(__VA_ARGS__))
#define matmul_fc(...) OPERATION(FC, (matmul_fc)(__VA_ARGS__))
#define matmul_classifier(...) OPERATION(CLASSIFIER, (matmul_classifier)(__VA_ARGS__))
#define scale_rows(...) OPERATION(CLASSIFIER, (scale_rows)(__VA_ARGS__))
#define matmul_backward_weight(...) OPERATION(CLASSIFIER, (matmul_backward_weight)(__VA_ARGS__))
#define matmul_backward_input(...) OPERATION(CLASSIFIER, (matmul_backward_input)(__VA_ARGS__))
#define matmul_dgelu(...) OPERATION(DGELU, (matmul_dgelu)(__VA_ARGS__))
#define matmul_input(...) OPERATION(INPUT, (matmul_input)(__VA_ARGS__))
#define matmul_weight(...) OPERATION(WEIGHT, (matmul_weight)(__VA_ARGS__))
#define layernorm_backward(...) OPERATION(LAYERNORM_BACKWARD, (layernorm_backward)(__VA_ARGS__))
#define attention_backward_documents_with_sums(...)                                                                    \
    OPERATION(ATTENTION_BACKWARD, (attention_backward_documents_with_sums)(__VA_ARGS__))
#define qkv_bias_backward(...) OPERATION(QKV_BIAS, (qkv_bias_backward)(__VA_ARGS__))
#define encoder_backward(...) OPERATION(EMBEDDING_BACKWARD, (encoder_backward)(__VA_ARGS__))
#define sum_losses(...) OPERATION(NORM, (sum_losses)(__VA_ARGS__))
#define losses_mean(...) OPERATION(NORM, (losses_mean)(__VA_ARGS__))
#define block_squares(...) OPERATION(NORM, (block_squares)(__VA_ARGS__))
#define norm_of_blocks(...) OPERATION(NORM, (norm_of_blocks)(__VA_ARGS__))
#define adamw_update(...) OPERATION(ADAMW, (adamw_update)(__VA_ARGS__))
// in fp8 the weights are quantised once an update
#define fp8_weights(...) OPERATION(ADAMW, (fp8_weights)(__VA_ARGS__))
#define scales_of(...) OPERATION(ADAMW, (scales_of)(__VA_ARGS__))
#define fp8_next_scales(...) OPERATION(ADAMW, (fp8_next_scales)(__VA_ARGS__))
#define fp8_clear(...) OPERATION(ADAMW, (fp8_clear)(__VA_ARGS__))
#include "train_gpt2.cu"
#undef matmul_backward_weight
#undef matmul_backward_input

// ----------------------------------------------------------------------------
// A model that trains on random tokens

__global__ void draw_kernel(floatX* weights, float* masters, size_t n, float mean, float deviation, uint64_t seed) {
    const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i >= n) { return; }
    const float x = mean + deviation * normal_at(seed, i);
    weights[i] = (floatX)x;
    if (masters) { masters[i] = x; }
}

// As gpt2_init_parameters draws them, but on the GPU: 1558M take the host a minute.
static void draw_weights(GPT2* model) {
    const GPT2Info* info = &model->info;
    const GPT2Config c = info->config;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        const GPT2Parameter& tensor = info->table[i];
        const size_t n = i == PARAMETER_wte ? (size_t)c.vocab_size * c.channels : tensor.count / tensor.layers;
        const float normal = tensor.init == INIT_RESIDUAL ? 0.02f / sqrtf(2.0f * c.num_layers) : 0.02f;
        const bool drawn = tensor.init == INIT_NORMAL || tensor.init == INIT_RESIDUAL;
        for (size_t layer = 0; layer < tensor.layers; layer++) {
            const size_t at = layout_offset(&model->layout, i, layer);
            float* masters = model->master_weights ? model->master_weights + at : nullptr;
            draw_kernel<<<(unsigned)CEIL_DIV(n, (size_t)256), 256, 0, model->stream>>>(
                model->params_memory + at, masters, n, tensor.init == INIT_ONE ? 1.0f : 0.0f, drawn ? normal : 0.0f,
                at);
            cuda_check(cudaGetLastError());
        }
    }
}

struct StepModel {
    GPT2* model;
    int B, T;
    std::vector<int> inputs, targets;

    // descriptor: d12, or d12+fp8
    StepModel(const std::string& descriptor, int B, int T) : B(B), T(T), inputs((size_t)B * T), targets(inputs) {
        GPT2Settings settings = gpt2_default_settings();
        const size_t plus = descriptor.find("+fp8");
        GPT2Config config = gpt2_config_from_descriptor(descriptor.substr(0, plus).c_str(), 50257);
        settings.recompute = 0, settings.graphs = 0; // operations are recorded where they are launched
        settings.fp8 = plus != std::string::npos;
        check(gpt2_create(&model, config, settings));
        check(gpt2_allocate(model, B, T, 1));
        draw_weights(model);
        std::mt19937 random(1);
        for (int& token : inputs) { token = random() % config.vocab_size; }
        for (int& token : targets) { token = random() % config.vocab_size; }
    }
    // At a learning rate of 0: the weights stay as drawn, however often the update runs.
    void step() {
        check(gpt2_forward(model, inputs.data(), B, T));
        check(gpt2_backward(model, inputs.data(), targets.data(), 1, 0));
        check(gpt2_grad_norm(model, NULL));
        check(gpt2_update(model, 0.0f, 0.9f, 0.95f, 1e-8f, 0.0f, 1.0f, 1));
        check(gpt2_wait_update(model));
    }
};

// The GEMMs of a step without their neighbours, by cuBLASLt
static void launch_plain_gemms(GPT2* model, int R) {
    const GPT2Config c = model->info.config;
    const int C = c.channels, Vp = c.padded_vocab_size;
    const ActivationTensors a = model->acts;
    Matmul* mm = &model->matmul;
    for (int i = 0; i < c.num_layers; i++) {
        const ActivationTensors y = gpt2_layer_activations(model, i);
        const ParameterTensors w = gpt2_layer_parameters(model, i);
        const GradientTensors g = gpt2_layer_gradients(model, i);
        matmul_forward(mm, y.qkv, y.ln1, w.qkvw, w.qkvb, R, C, 3 * C);
        matmul_forward(mm, y.dbtc, y.atty, w.attprojw, w.attprojb, R, C, C);
        matmul_forward(mm, y.fch, y.ln2, w.fcw, w.fcb, R, C, 4 * C);
        matmul_forward(mm, y.dbtc, y.fch_gelu, w.fcprojw, w.fcprojb, R, 4 * C, C);
        matmul_backward_input(mm, y.dbt4c, y.dresidual, w.fcprojw, NULL, R, 4 * C, C);
        matmul_backward_weight(mm, g.fcprojw, y.dresidual, y.fch_gelu, 0, R, 4 * C, C);
        matmul_backward_input(mm, y.dbtc, y.dbt4c, w.fcw, NULL, R, C, 4 * C);
        matmul_backward_weight(mm, g.fcw, y.dbt4c, y.ln2, 0, R, C, 4 * C);
        matmul_backward_input(mm, y.dbtc, y.dresidual, w.attprojw, NULL, R, C, C);
        matmul_backward_weight(mm, g.attprojw, y.dresidual, y.atty, 0, R, C, C);
        matmul_backward_input(mm, y.dbtc, y.dbt4c, w.qkvw, NULL, R, C, 3 * C);
        matmul_backward_weight(mm, g.qkvw, y.dbt4c, y.ln1, 0, R, C, 3 * C);
    }
    matmul_forward(mm, a.output, a.lnf, model->params.wte, NULL, R, C, Vp);
    matmul_backward_weight(mm, model->grads.wte, a.output, a.lnf, 0, R, C, Vp);
    matmul_backward_input(mm, a.dbtc, a.output, model->params.wte, NULL, R, C, Vp);
}
static int plain_gemms(const GPT2* model, int R) {
    return 12 * model->info.config.num_layers + 3 * (model->info.settings.fp8 ? R / fp8_classifier_rows(R) : 1);
}

// The same of e4m3 operands that are there already: of weights, the columns, as rows may be int8
static void launch_plain_gemms_fp8(GPT2* model, int R) {
    const GPT2Config c = model->info.config;
    const int C = c.channels, rows = fp8_classifier_rows(R),
              linears[4][2] = {{C, 3 * C}, {C, C}, {C, 4 * C}, {4 * C, C}};
    const Fp8* f = &model->fp8;
    const ActivationTensors a = model->acts;
    MatmulGroups groups = gpt2_groups(model, a.scratch, 0, 0);
    auto gemms = [&](int R, int IN, int OUT, floatX* out, float* dweight) {
        MatmulTensors t = {};
        t.a_scale = t.b_scale = &f->scales->value;
        t.out = out, t.dinp = a.dbt4c, t.dweight = dweight;
        t.a = f->dout, t.b = f->weight_columns;
        matmul_launch(&groups, "cublaslt_fp8", MATMUL_QKV, t, {R, IN, OUT, 0});
        matmul_launch(&groups, "cublaslt_fp8", MATMUL_INPUT, t, {R, IN, OUT, 0});
        t.a = f->dout_columns, t.b = f->inp;
        matmul_launch(&groups, "cublaslt_fp8", MATMUL_WEIGHT, t, {R, IN, OUT, 0});
    };
    for (int i = 0; i < c.num_layers; i++) {
        for (const auto& s : linears) { gemms(R, s[0], s[1], a.dbt4c, gpt2_layer_gradients(model, i).fcw); }
    }
    for (int row = 0; row < R; row += rows) { gemms(rows, C, c.padded_vocab_size, a.output, model->grads.wte); }
}

// ----------------------------------------------------------------------------
// Counting

struct Work {
    double bytes = 0, flops = 0;
};
struct StepWork {
    Work groups[NUM_STEP_GROUPS], step, gemms;
};

// Every operand of an operation is read or written once, as if only registers and shared memory were inside of it.
static StepWork count_work(const GPT2* model) {
    const GPT2Config c = model->info.config;
    const double B = model->info.B, T = model->info.T, L = c.num_layers, C = c.channels, Vp = c.padded_vocab_size;
    const double R = B * T, P = model->info.num_parameters, size = sizeof(floatX), fp32 = sizeof(float);
    const double x = size * R * C;                                 // bytes of a tensor (R, C)
    const double w = size * C * C, dw = fp32 * C * C;              // of C^2 weights, of their gradients
    const double z = size * R * Vp;                                // of the logits
    const double statistics = 2 * fp32 * R * c.num_heads;          // l and m
    const double f = 2 * R * C * C, attention = 2 * B * T * T * C; // FLOPs by C^2 weights; of causal attention
    const double masters = gpt2_has_masters(model->info.settings) ? size : 0; // weights beside their masters
    StepWork work = {};
    Work* of = work.groups;
    of[GROUP_EMBEDDING] = {2 * x, 0};
    of[GROUP_LAYERNORM] = {2 * x, 0};
    of[GROUP_QKV] = {L * (4 * x + 3 * w), L * 3 * f};
    of[GROUP_ATTENTION] = {L * (4 * x + statistics), L * attention};
    // attproj: atty, skip, residual and ln; fcproj: four for its input, and the other three
    of[GROUP_RESIDUAL] = {L * (11 * x + 5 * w), L * 5 * f};
    of[GROUP_FC] = {L * (9 * x + 4 * w), L * 4 * f};
    of[GROUP_CLASSIFIER] = {3 * z + 3 * x + Vp * C * (2 * size + fp32), 3 * 2 * R * C * Vp};
    of[GROUP_DGELU] = {L * (9 * x + 4 * w), L * 4 * f};
    of[GROUP_INPUT] = {L * (11 * x + 8 * w), L * 8 * f};
    of[GROUP_WEIGHT] = {L * (16 * x + 12 * dw), L * 12 * f};
    of[GROUP_LAYERNORM_BACKWARD] = {L * 8 * x + 3 * x, 0};
    of[GROUP_ATTENTION_BACKWARD] = {L * (8 * x + statistics), L * 2.5 * attention};
    of[GROUP_QKV_BIAS] = {L * w, 0};
    of[GROUP_EMBEDDING_BACKWARD] = {x + 2 * fp32 * C * (T + model->sorted.unique), 0};
    of[GROUP_NORM] = {fp32 * P, 0};
    of[GROUP_ADAMW] = {P * (7 * fp32 + masters), 0};
    for (const Work& g : work.groups) { work.step.bytes += g.bytes, work.step.flops += g.flops; }
    work.gemms = {L * ((4 + 2 + 5 + 5) * x + 12 * w + (11 + 5 + 16) * x + 12 * w + 12 * dw) +
                      of[GROUP_CLASSIFIER].bytes,
                  L * 36 * f + of[GROUP_CLASSIFIER].flops};
    return work;
}

// ----------------------------------------------------------------------------
// Timing

// What launch() puts into the model's stream, so often that it takes 2 ms or more; captured as a pass of the trainer is
template <class Launch> static TimedGraph capture(GPT2* model, const Launch& launch, double estimate_ms) {
    TimedGraph timed;
    timed.launches = std::max(1, (int)ceil(2.0 / estimate_ms));
    check(pass_graph_capture(&timed.executable, model->stream, [&] {
        for (int n = 0; n < timed.launches; n++) { launch(); }
    }));
    timed.replay_ms = timed.launches * estimate_ms;
    return timed;
}

// One round each: .15 s and .35 s timed for a group; .25 s and 1 s for the step and for what it is compared with
static const Steady STEADY_GROUP = {1, 150, 350}, STEADY_STEP = {1, 250, 1000};
template <class Launch> static Timing time_alone(Stopwatch& watch, const Meter& meter, GPT2* model,
                                                 const Launch& launch, double estimate_ms, Steady steady) {
    TimedGraph graph = capture(model, launch, estimate_ms);
    graph.replay_ms = watch.time([&] { graph.replay(watch.stream); });
    const Timing timing = time_steady(watch, meter, {graph}, steady)[0];
    cuda_check(cudaGraphExecDestroy(graph.executable));
    return timing;
}

// Milliseconds of each group in the step, by events between its operations: means of five replays behind .25 s of them
static std::vector<double> time_within_step(Stopwatch& watch, GPT2* model) {
    const size_t n = step_operations.size();
    std::vector<cudaEvent_t> events(n + 1);
    for (cudaEvent_t& event : events) { cuda_check(cudaEventCreate(&event)); }
    auto record = [&](size_t i) {
        cuda_check(cudaEventRecordWithFlags(events[i], model->stream, cudaEventRecordExternal));
    };
    TimedGraph graph = capture(
        model,
        [&] {
            record(0);
            for (size_t i = 0; i < n; i++) {
                step_operations[i].launch();
                record(i + 1);
            }
        },
        2.0);
    graph.replay_ms = watch.time([&] { graph.replay(watch.stream); });
    watch.time([&] { graph.replay(watch.stream, graph.replays(250)); });
    constexpr int ROUNDS = 5;
    std::vector<double> ms(NUM_STEP_GROUPS);
    for (int round = 0; round < ROUNDS; round++) {
        watch.time([&] { graph.replay(watch.stream); });
        for (size_t i = 0; i < n; i++) {
            float operation_ms;
            cuda_check(cudaEventElapsedTime(&operation_ms, events[i], events[i + 1]));
            ms[step_operations[i].group] += operation_ms / ROUNDS;
        }
    }
    for (cudaEvent_t event : events) { cuda_check(cudaEventDestroy(event)); }
    cuda_check(cudaGraphExecDestroy(graph.executable));
    return ms;
}

static void print_line(const char* name, int operations, double ms, Timing alone, Work work) {
    printf("%s,%d,%.4f,%.4f,%s,%.3f,%.4f\n", name, operations, ms, alone.ms,
           csv_number("%.4f", 1e-3 * alone.mj).c_str(), 1e-9 * work.bytes, 1e-12 * work.flops);
    fflush(stdout);
}

int main(int argc, char** argv) {
    if (argc != 3 && argc != 4) { fatal("usage: build/step_kernels MODEL B [T], such as d12 64, or d12+fp8 64"); }
    const int T = argc == 4 ? bench_shape("T", 1, argv[3])[0] : 1024;
    StepModel training(argv[1], bench_shape("B", 1, argv[2])[0], T);
    GPT2* model = training.model;
    training.step(); // in fp8 the first is one of 16 bits
    training.step();
    recording = true;
    training.step();
    recording = false;

    Stopwatch watch;
    Meter meter;
    const StepWork work = count_work(model);
    auto launch_step = [] {
        for (Operation& o : step_operations) { o.launch(); }
    };
    const Timing step = time_alone(watch, meter, model, launch_step, 2.0, STEADY_STEP);
    const std::vector<double> within = time_within_step(watch, model);
    double sum = 0;
    for (int g = 0; g < NUM_STEP_GROUPS; g++) {
        int operations = 0;
        for (const Operation& o : step_operations) { operations += o.group == g; }
        if (operations == 0) { fatal("no operation of a step is in the group `%s`", group_names[g]); }
        auto launch = [&] {
            for (Operation& o : step_operations) {
                if (o.group == g) { o.launch(); }
            }
        };
        training.step(); // so that a group finds what a step has left, whatever ran before
        print_line(group_names[g], operations, within[g],
                   time_alone(watch, meter, model, launch, within[g], STEADY_GROUP), work.groups[g]);
        sum += within[g];
    }
    print_line("step", (int)step_operations.size(), sum, step, work.step);
    const int R = training.B * training.T;
    const auto launch_gemms = model->info.settings.fp8 ? launch_plain_gemms_fp8 : launch_plain_gemms;
    launch_gemms(model, R); // cuBLASLt is asked outside of a capture
    check(status_now());
    const Timing gemms = time_alone(
        watch, meter, model, [&] { launch_gemms(model, R); }, 2.0, STEADY_STEP);
    print_line("GEMMs alone", plain_gemms(model, R), gemms.ms, gemms, work.gemms);
    gpt2_free(model);
    return EXIT_SUCCESS;
}
