/*
Passes as CUDA graphs: the work of a pass is captured once and then launched as a whole, with one call of the host and shorter
gaps between kernels. A graph keeps the arguments of its launches, so a pass with other arguments needs another key.

    pass_graph_run(&graphs, key, stream, [&] { layernorm_forward(...); ... });

The first pass of a key is launched directly, because kernels must be loaded, and cuBLASLt's heuristic queried, outside of a
capture. The second is captured. From the third on launch() does not run on the host at all: neither assignments nor ranges
(nvtx.cuh), so an error names the range around the pass. Memsets to 0 within `cleared`, whose bytes only the next node uses, are
replaced by one at the beginning of the graph, except those of bytes that are cleared twice. With CUDA_LAUNCH_BLOCKING=1, which
is for finding a failed launch, no pass is a graph. Waits for other streams or for the host cannot be in a graph.
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
    char* cleared;   // or NULL
    size_t cleared_bytes;
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

// The node before or behind a node of a chain; NULL if there is none.
static inline Status pass_graph_neighbour_(cudaGraphNode_t* neighbour, cudaGraphNode_t node, int behind) {
    size_t room = 1;
    *neighbour = NULL;
#if CUDART_VERSION >= 13000
    return cuda_try(behind ? cudaGraphNodeGetDependentNodes(node, neighbour, NULL, &room)
                           : cudaGraphNodeGetDependencies(node, neighbour, NULL, &room));
#else
    return cuda_try(behind ? cudaGraphNodeGetDependentNodes(node, neighbour, &room)
                           : cudaGraphNodeGetDependencies(node, neighbour, &room));
#endif
}
static inline Status pass_graph_connect_(cudaGraph_t graph, cudaGraphNode_t from, cudaGraphNode_t to) {
    if (from == NULL || to == NULL) { return STATUS_OK; }
#if CUDART_VERSION >= 13000
    return cuda_try(cudaGraphAddDependencies(graph, &from, &to, NULL, 1));
#else
    return cuda_try(cudaGraphAddDependencies(graph, &from, &to, 1));
#endif
}

// *begin = the first byte that a node sets to 0 within `cleared`; NULL for all other nodes.
static inline Status pass_graph_clears_(const PassGraphs* g, cudaGraphNode_t node, char** begin) {
    cudaGraphNodeType type;
    cudaMemsetParams memset;
    *begin = NULL;
    TRY(cuda_try(cudaGraphNodeGetType(node, &type)));
    if (type != cudaGraphNodeTypeMemset) { return STATUS_OK; }
    TRY(cuda_try(cudaGraphMemsetNodeGetParams(node, &memset)));
    const size_t offset = (size_t)((char*)memset.dst - g->cleared); // huge where dst lies before it
    if (memset.value == 0 && memset.height == 1 && offset < g->cleared_bytes) { *begin = (char*)memset.dst; }
    return STATUS_OK;
}

// Takes a node out of a chain.
static inline Status pass_graph_take_out_(cudaGraph_t graph, cudaGraphNode_t node) {
    cudaGraphNode_t before, behind;
    TRY(pass_graph_neighbour_(&before, node, 0));
    TRY(pass_graph_neighbour_(&behind, node, 1));
    TRY(cuda_try(cudaGraphDestroyNode(node)));
    return pass_graph_connect_(graph, before, behind);
}

// Removes from the chain the memset nodes whose bytes of `cleared` no other node clears. begins: scratch for `count` pointers.
static inline Status pass_graph_take_memsets_out_(const PassGraphs* g, cudaGraph_t graph, cudaGraphNode_t* nodes,
                                                  char** begins, size_t count) {
    TRY(cuda_try(cudaGraphGetNodes(graph, nodes, &count)));
    for (size_t i = 0; i < count; i++) { TRY(pass_graph_clears_(g, nodes[i], &begins[i])); }
    for (size_t i = 0; i < count; i++) {
        int times = 0;
        for (size_t k = 0; k < count && begins[i] != NULL; k++) { times += begins[k] == begins[i]; }
        if (times == 1) { TRY(pass_graph_take_out_(graph, nodes[i])); }
    }
    return STATUS_OK;
}

// Replaces the memsets within a graph, which is a chain of nodes, by one memset of all of `cleared` at its beginning.
static inline Status pass_graph_clear_first_(const PassGraphs* g, cudaGraph_t graph) {
    size_t count = 0, room = 1;
    cudaGraphNode_t root = NULL, clear;
    cudaMemsetParams all = {};
    if (g->cleared == NULL) { return STATUS_OK; }
    TRY(cuda_try(cudaGraphGetNodes(graph, NULL, &count)));
    cudaGraphNode_t* nodes = (cudaGraphNode_t*)malloc(count * sizeof(cudaGraphNode_t));
    char** begins = (char**)malloc(count * sizeof(char*));
    if (nodes == NULL || begins == NULL) {
        status_fail("no memory for the nodes of a graph");
    } else {
        pass_graph_take_memsets_out_(g, graph, nodes, begins, count);
    }
    free(nodes);
    free(begins);
    TRY(status_now());
    TRY(cuda_try(cudaGraphGetRootNodes(graph, &root, &room)));
    all.dst = g->cleared, all.elementSize = 1, all.width = g->cleared_bytes, all.height = 1, all.pitch = all.width;
    TRY(cuda_try(cudaGraphAddMemsetNode(&clear, graph, NULL, 0, &all)));
    return pass_graph_connect_(graph, clear, root);
}

// Captures the work that launch() enqueues, without running it.
template <class Launch> static inline Status pass_graph_capture(const PassGraphs* g, cudaGraphExec_t* executable,
                                                                cudaStream_t stream, const Launch& launch) {
    cudaGraph_t graph = NULL;
    TRY(cuda_try(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal)));
    launch();
    cuda_try(cudaStreamEndCapture(stream, &graph)); // after an error, too, to end the capture
    if (status_now() == STATUS_OK && pass_graph_clear_first_(g, graph) == STATUS_OK) {
        cuda_try(cudaGraphInstantiate(executable, graph, 0));
    }
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
    if (pass->executable == NULL) { TRY(pass_graph_capture(g, &pass->executable, stream, launch)); }
    g->launches++;
    cuda_try(cudaGraphLaunch(pass->executable, stream));
    return status_now();
}

#endif
