/*
Passes as CUDA graphs (llmc/cuda/pass_graph.cuh) against the same passes launch by launch, bit by bit: weights, moments, losses
and norms after some steps of so many micro-steps, whose gradients are overwritten, added in place or added as a tree, with
logits before and after the backward pass, and with validation and batches of other sizes between steps. Every pass but the
first of its kind must have been a graph, and memory is planned for the nodes of all graphs. Needs a GPU.

    build/test_gpu_graphs_bf16
*/
#include <cuda_runtime.h>

// How much of the GPU's memory is free depends on other processes too; how many nodes are instantiated does not.
static size_t graph_nodes;
static cudaError_t count_and_instantiate(cudaGraphExec_t* executable, cudaGraph_t graph, unsigned long long flags) {
    size_t nodes = 0;
    cudaError_t error = cudaGraphGetNodes(graph, NULL, &nodes);
    graph_nodes += nodes;
    return error != cudaSuccess ? error : cudaGraphInstantiate(executable, graph, flags);
}
#define cudaGraphInstantiate count_and_instantiate
#include "train_gpt2.cu"
#include "dev/test/fixtures/unit.h"

#include <set>
#include <tuple>
#include <vector>

enum { STEPS = 4 };
// of the GPU's memory a node takes at least: the deepest model's were measured to take 26 MiB in fp32
constexpr size_t NODE_BYTES = 2 << 10;
// Of a step; the last one's gradients have another scale.
static int micro_steps_of(int step, int micro_steps) { return step == STEPS - 1 ? 1 : micro_steps; }

struct Outcome {
    std::vector<std::vector<char>> blocks; // weights, moments, master weights
    std::vector<float> numbers;            // losses, norms
    std::vector<float> logits;             // of a row, before each backward pass
    size_t passes = 0, launches, graphs;   // over full batches; of graphs; how many there are
    size_t nodes, planned;                 // of all graphs; bytes of the GPU's memory for them
};

// Token i of batch number n; its target is that of i + 1.
static int token(int n, size_t i, int V) { return (int)((12345u + 2654435761u * n + 40503u * (uint32_t)i) >> 8) % V; }

static std::vector<int> tokens(int n, size_t first, size_t count, int V) {
    std::vector<int> x(count);
    for (size_t i = 0; i < count; i++) { x[i] = token(n, first + i, V); }
    return x;
}

static void add_logits(Outcome* outcome, GPT2* model) {
    const size_t V = gpt2_info(model)->config.vocab_size, n = outcome->logits.size();
    outcome->logits.resize(n + V);
    check(gpt2_get_logits(model, outcome->logits.data() + n, 1));
}

static void validate(GPT2* model, Outcome* outcome, int n, int B, int T) {
    const int V = gpt2_info(model)->config.vocab_size;
    const std::vector<int> inputs = tokens(n, 0, (size_t)B * T, V), targets = tokens(n, 1, (size_t)B * T, V);
    float loss;
    check(gpt2_validate(model, &loss, inputs.data(), targets.data(), B, T));
    outcome->numbers.push_back(loss);
}

static Outcome train(GPT2Config config, int B, int T, int micro_steps, int recompute, int graphs) {
    GPT2* model;
    Outcome outcome;
    GPT2Settings settings = gpt2_default_settings();
    settings.micro_steps = micro_steps, settings.recompute = recompute, settings.graphs = graphs;
    check(gpt2_create(&model, config, settings));
    check(gpt2_allocate(model, B, T, 1));
    std::vector<float> params(gpt2_info(model)->num_parameters);
    gpt2_init_parameters(params.data(), config, 42);
    check(gpt2_set_parameters(model, params.data()));
    graph_nodes = 0;
    for (int step = 0; step < STEPS; step++) {
        const int steps = micro_steps_of(step, micro_steps);
        for (int k = 0; k < steps; k++) {
            const int n = step * micro_steps + k, V = config.vocab_size;
            const std::vector<int> inputs = tokens(n, 0, (size_t)B * T, V), targets = tokens(n, 1, (size_t)B * T, V);
            check(gpt2_forward(model, inputs.data(), B, T));
            add_logits(&outcome, model);
            check(gpt2_backward(model, inputs.data(), targets.data(), steps, k));
            check(gpt2_synchronize(model)); // before the tokens go
            outcome.passes += 2;
        }
        float norm;
        check(gpt2_grad_norm(model, &norm));
        check(gpt2_update(model, 1e-3f, 0.9f, 0.95f, 1e-8f, 0.1f, 1.0f, step + 1));
        check(gpt2_wait_update(model));
        outcome.numbers.push_back(norm);
        outcome.numbers.push_back(gpt2_info(model)->mean_loss);
        validate(model, &outcome, 1000, B, T), outcome.passes++;
        validate(model, &outcome, 1001, 1, T / 2);
    }
    for (GPT2Block block : {GPT2_WEIGHTS, GPT2_MOMENTS1, GPT2_MOMENTS2, GPT2_MASTER_WEIGHTS}) {
        outcome.blocks.emplace_back(gpt2_block_bytes(model, block));
        if (outcome.blocks.back().empty()) { continue; }
        check(gpt2_copy_out(model, outcome.blocks.back().data(), block, 0, outcome.blocks.back().size()));
    }
    outcome.launches = model->graphs.launches, outcome.graphs = model->graphs.count;
    outcome.nodes = graph_nodes, outcome.planned = model->plan.rows[PLAN_GRAPHS].bytes;
    gpt2_free(model);
    return outcome;
}

static void test_graphs(GPT2Config config, int B, int T, int micro_steps, int recompute) {
    const Outcome single = train(config, B, T, micro_steps, recompute, 0);
    const Outcome graphs = train(config, B, T, micro_steps, recompute, 1);
    std::set<std::tuple<int, int, int, int>> kinds; // of backward passes
    for (int step = 0; step < STEPS; step++) {
        const int steps = micro_steps_of(step, micro_steps);
        for (int k = 0; k < steps; k++) {
            const GradientLeaf leaf = gradient_leaf(steps, 1, k);
            kinds.insert(std::make_tuple(steps, leaf.buffer, leaf.accumulate, leaf.first));
        }
    }
    bool ok = CHECK(single.blocks == graphs.blocks);
    ok &= CHECK(single.numbers.size() == graphs.numbers.size() &&
                memcmp(single.numbers.data(), graphs.numbers.data(), single.numbers.size() * sizeof(float)) == 0);
    ok &= CHECK(isfinite(single.numbers.back()) && single.numbers[1] != single.numbers[5]); // it trains
    ok &= CHECK(single.logits == graphs.logits);
    ok &= CHECK(single.graphs == 0 && single.launches == 0);
    ok &= CHECK(graphs.graphs == 1 + kinds.size());
    ok &= CHECK(graphs.launches == graphs.passes - graphs.graphs);
    ok &= CHECK(single.planned == 0 && single.nodes == 0);
    ok &= CHECK(graphs.nodes > 0 && graphs.nodes * NODE_BYTES <= graphs.planned);
    printf("%d layers, %zu graphs of %zu nodes: %zu MiB planned\n", config.num_layers, graphs.graphs, graphs.nodes,
           graphs.planned >> 20);
    if (!ok) { printf("    C %d, %d x %d, %d micro-steps, -r %d\n", config.channels, B, T, micro_steps, recompute); }
}

int main(void) {
    const GPT2Config small = {64, 1000, 1024, 3, 2, 128, 0}, wide = {1024, 50257, 50304, 2, 12, 768, 0},
                     deep = {64, 1000, 1024, 48, 2, 64, 0};
    for (int micro_steps : {1, 2, 3, 4, 8, 12}) { test_graphs(small, 4, 64, micro_steps, 0); }
    for (int recompute : {1, 2}) { test_graphs(small, 4, 64, 2, recompute); }
    test_graphs(deep, 2, 64, 12, 0);  // whose graphs take some MB
    test_graphs(wide, 8, 1024, 2, 0); // as large as what the rules of matmul/choice.h and the table of algorithms serve
    return unit_end();
}
