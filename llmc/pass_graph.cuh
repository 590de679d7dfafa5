/*
Passes as CUDA graphs: what a pass puts into a stream is captured once and launched as a whole from then on, which takes the
host one call and leaves shorter gaps between kernels. A graph keeps the arguments of its launches, so a pass with others has
another key.

    pass_graph_run(&graphs, key, stream, [&] { layernorm_forward(...); ... });

The first pass of a key runs as it is: kernels are loaded and cuBLASLt is asked outside of a capture. The second is captured.
From the third on nothing of launch() runs on the host: neither assignments nor ranges (nvtx.cuh), so that an error names the
range around the pass. With CUDA_LAUNCH_BLOCKING=1, which asks for the launch that failed, no pass is a graph. What waits for
other streams, or for the host, cannot be in a graph.
*/
#ifndef LLMC_PASS_GRAPH_CUH
#define LLMC_PASS_GRAPH_CUH

#include "cuda_common.cuh"
#include "gradient_tree.h"

// All that may differ between two runs of the passes of a model's full batches
struct PassKey {
    int pass; // the caller's number
    GradientLeaf leaf;
    float scale;
};
static inline bool operator==(PassKey a, PassKey b) {
    return a.pass == b.pass && a.leaf.buffer == b.leaf.buffer && a.leaf.accumulate == b.leaf.accumulate &&
           a.leaf.first == b.leaf.first && a.scale == b.scale;
}

struct PassGraph {
    PassKey key;
    cudaGraphExec_t executable; // NULL until the second pass
};

constexpr int MAX_PASS_GRAPHS = 64; // a step of 1024 micro-steps has 56 kinds of leaves; passes beyond it are no graphs

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

// The graph of a key; a new one where there is none, and NULL where there is no room for it.
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

// Captures what launch() puts into the stream, without running it.
template <class Launch>
static inline Status pass_graph_capture_(cudaGraphExec_t* executable, cudaStream_t stream, const Launch& launch) {
    cudaGraph_t graph = NULL;
    TRY(cuda_try(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)));
    launch();
    cuda_try(cudaStreamEndCapture(stream, &graph)); // after an error, too: it ends the capture
    if (status_now() == STATUS_OK) { cuda_try(cudaGraphInstantiate(executable, graph, 0)); }
    if (graph != NULL) { cudaGraphDestroy(graph); }
    return status_now();
}

// Runs what launch() puts into the stream, as a graph from the second time on that `key` is given. After an error in a capture
// the key has no graph, and its next pass is captured anew.
template <class Launch>
static inline Status pass_graph_run(PassGraphs* g, PassKey key, cudaStream_t stream, const Launch& launch) {
    bool is_new = false;
    PassGraph* pass = cuda_launches_block() ? NULL : pass_graph_find_(g, key, &is_new);
    if (pass == NULL || is_new) {
        launch();
        return status_now();
    }
    if (pass->executable == NULL) { TRY(pass_graph_capture_(&pass->executable, stream, launch)); }
    g->launches++;
    cuda_try(cudaGraphLaunch(pass->executable, stream));
    return status_now();
}

#endif
