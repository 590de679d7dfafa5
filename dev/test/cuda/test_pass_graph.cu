// Which passes are CUDA graphs (llmc/cuda/pass_graph.cuh), and what a capture that fails leaves behind. No GPU is used, also
// where there is one: so every capture fails. Graphs that run: test_gpu_graphs.cu.
#include "llmc/cuda/pass_graph.cuh"
#include "dev/test/fixtures/unit.h"

static PassGraphs graphs;
static int launches; // of passes that are no graphs

static Status run(PassKey key) {
    status_clear();
    return pass_graph_run(&graphs, key, NULL, [] { launches++; });
}

// Whether a pass of this key, after one of the key {1, {2, 0, 1}, 0.5}, is to be a graph
static bool is_captured_after_another(PassKey key) {
    graphs = {}, launches = 0;
    CHECK(run({1, {2, 0, 1}, 0.5f}) == STATUS_OK && launches == 1);
    const bool captured = run(key) == STATUS_ERROR;
    CHECK(launches == (captured ? 1 : 2) && graphs.count == (captured ? 1 : 2));
    return captured;
}

// Each number of a key makes another graph.
static void test_keys() {
    CHECK(is_captured_after_another({1, {2, 0, 1}, 0.5f}));
    CHECK(!is_captured_after_another({2, {2, 0, 1}, 0.5f}));
    CHECK(!is_captured_after_another({1, {3, 0, 1}, 0.5f}));
    CHECK(!is_captured_after_another({1, {2, 1, 1}, 0.5f}));
    CHECK(!is_captured_after_another({1, {2, 0, 2}, 0.5f}));
    CHECK(!is_captured_after_another({1, {2, 0, 1}, 0.25f}));
}

// The error of a capture is one line that names the call; the key is captured anew, and nothing is launched.
static void test_failed_capture() {
    graphs = {}, launches = 0;
    run({});
    for (int pass = 0; pass < 2; pass++) {
        CHECK(run({}) == STATUS_ERROR && launches == 1 && graphs.launches == 0);
        CHECK(graphs.graphs[0].executable == NULL);
        CHECK(strstr(status_message(), "cudaStreamBeginCapture") && !strchr(status_message(), '\n'));
    }
    pass_graphs_free(&graphs);
}

// Passes of more keys than there is room for run as they are, each time.
static void test_too_many_keys() {
    graphs = {}, launches = 0;
    for (int i = 0; i <= MAX_PASS_GRAPHS; i++) { CHECK(run({i, {0, 0, 0}, 0}) == STATUS_OK); }
    CHECK(graphs.count == MAX_PASS_GRAPHS);
    CHECK(run({MAX_PASS_GRAPHS, {0, 0, 0}, 0}) == STATUS_OK && launches == MAX_PASS_GRAPHS + 2);
    CHECK(run({0, {0, 0, 0}, 0}) == STATUS_ERROR);
}

// CUDA_LAUNCH_BLOCKING=1 asks which launch failed: every pass runs as it is.
static void test_blocking_launches() {
    graphs = {}, launches = 0;
    setenv("CUDA_LAUNCH_BLOCKING", "1", 1);
    for (int pass = 1; pass <= 3; pass++) { CHECK(run({}) == STATUS_OK && launches == pass); }
    setenv("CUDA_LAUNCH_BLOCKING", "0", 1);
    CHECK(run({}) == STATUS_OK && run({}) == STATUS_ERROR);
}

// Room for the leaves of a step of up to 1024 micro-steps, and for the forward pass
static void test_room() {
    for (int micro_steps = 1; micro_steps <= 1024; micro_steps++) {
        graphs = {};
        bool room = true, is_new;
        for (int k = 0; k < micro_steps; k++) {
            room &= pass_graph_find_(&graphs, {0, gradient_leaf(micro_steps, 1, k), 0}, &is_new) != NULL;
        }
        CHECK(room && graphs.count < MAX_PASS_GRAPHS);
    }
}

int main(void) {
    setenv("CUDA_VISIBLE_DEVICES", "-1", 1); // before the first CUDA call
    unsetenv("CUDA_LAUNCH_BLOCKING");
    test_keys();
    test_failed_capture();
    test_too_many_keys();
    test_blocking_launches();
    test_room();
    return unit_end();
}
