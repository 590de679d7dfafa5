/*
Passes as CUDA graphs: the work of a pass is captured once and then launched as a whole, with one call of the host and shorter
gaps between kernels. A graph keeps the arguments of its launches, so a pass with other arguments needs another key.

    pass_graph_run(&graphs, key, stream, [&] { layernorm_forward(...); ... });

The first pass of a key is launched directly, because kernels must be loaded, and cuBLASLt's heuristic queried, outside of a
capture. The second is captured. From the third on launch() does not run on the host at all: neither assignments nor ranges
(nvtx.cuh), so an error names the range around the pass. With CUDA_LAUNCH_BLOCKING=1, which is for finding a failed launch, no
pass is a graph. Waits for other streams or for the host cannot be in a graph.
*/
#ifndef LLMC_CUDA_PASS_GRAPH_CUH
#define LLMC_CUDA_PASS_GRAPH_CUH

#include "common.cuh"
#include "llmc/model/gradient_tree.h"

// The arguments that differ between the passes of a model's full batches
struct PassKey {
    int pass; // the caller's number
    GradientLeaf leaf;
    float scale;
};
static inline bool operator==(GradientLeaf a, GradientLeaf b) {
    return a.buffer == b.buffer && a.accumulate == b.accumulate && a.first == b.first;
}
static inline bool operator==(PassKey a, PassKey b) {
    return a.pass == b.pass && a.leaf == b.leaf && a.scale == b.scale;
}

struct PassGraph {
    PassKey key;
    cudaGraphExec_t executable; // NULL until the second pass
};

constexpr int MAX_PASS_GRAPHS = 64; // a step of 1024 micro-steps has 56 kinds of leaves; further keys get no graph

// All zeros before the first pass
struct PassGraphs {
    PassGraph graphs[MAX_PASS_GRAPHS];
    int count;
    size_t launches; // of graphs
};

static inline void pass_graphs_free(PassGraphs* g) {
    for (int i = 0; i < g->count; i++) {
        if (g->graphs[i].executable != NULL) { cudaGraphExecDestroy(g->graphs[i].executable); }
    }
}

// The entry of a key, added if there is none; NULL if all entries are taken.
static inline PassGraph* pass_graph_find_(PassGraphs* g, PassKey key, bool* is_new) {
    *is_new = false;
    for (int i = 0; i < g->count; i++) {
        if (g->graphs[i].key == key) { return &g->graphs[i]; }
    }
    if (g->count == MAX_PASS_GRAPHS) { return NULL; }
    *is_new = true;
    g->graphs[g->count] = {key, NULL};
    return &g->graphs[g->count++];
}

// Captures the work that launch() enqueues, without running it. Relaxed: a kernel's first launch may load it.
template <class Launch>
static inline Status pass_graph_capture(cudaGraphExec_t* executable, cudaStream_t stream, const Launch& launch) {
    cudaGraph_t graph = NULL;
    TRY(cuda_try(cudaStreamBeginCapture(stream, cudaStreamCaptureModeRelaxed)));
    launch();
    cuda_try(cudaStreamEndCapture(stream, &graph)); // after an error, too, to end the capture
    if (status_now() == STATUS_OK) { cuda_try(cudaGraphInstantiate(executable, graph, 0)); }
    if (graph != NULL) { cudaGraphDestroy(graph); }
    return status_now();
}

// Runs launch() on the stream, as a graph from the second pass of `key` on. After an error in a capture the key has no graph,
// and its next pass is captured again.
template <class Launch>
static inline Status pass_graph_run(PassGraphs* g, PassKey key, cudaStream_t stream, const Launch& launch) {
    bool is_new = false;
    PassGraph* pass = cuda_launches_block() ? NULL : pass_graph_find_(g, key, &is_new);
    if (pass == NULL || is_new) {
        launch();
        return status_now();
    }
    if (pass->executable == NULL) { TRY(pass_graph_capture(&pass->executable, stream, launch)); }
    g->launches++;
    cuda_try(cudaGraphLaunch(pass->executable, stream));
    return status_now();
}

#endif
