/*
Data parallelism with sharded updates, bucket by bucket (parameter_layout.h): gradients are summed over all processes while the
backward pass still runs, and new weights are gathered while the next forward pass already runs.

    compute  backward layer i | layer i-1     | .. embedding |      norm | AdamW .. | forward: embedding | layer 0 | ..
    comm              wait -> | exchange, sum of layer i | .. wte | merge |  gather wte ..  gather layer 1 | layer 2 ..

In an exchange each process sends every other its part of the bucket, and receives the others' pieces of its own part, which
tree_sum adds up in the order of gradient_tree.h. The two streams wait for each other by events; the host waits for neither.
Copy engines move the data within a machine (peer_copies.cuh), else NCCL. After an error nothing more is exchanged.

An active NVLink draws 28 W of an H200 and goes idle only 50 ms after the last byte (dev/LOG.md): at the power limit that is
2.5% of a step. So with copy engines the exchanges of the last layers, which backward finishes first, are deferred and start
together, as late as they can still be hidden.
*/
#ifndef LLMC_EXCHANGE_BUCKETS_CUH
#define LLMC_EXCHANGE_BUCKETS_CUH

#include <math.h>

#include "peer_copies.cuh"
#include "tree_sum.cuh"
#include "llmc/comm/comm.h"
#include "llmc/cuda/nvtx.cuh"
#include "llmc/model/parameter_layout.h"

// The blocks of memory that processes share for copy engines (peer_copies.cuh)
enum { PEER_GRADIENTS, PEER_WEIGHTS };

struct BucketExchange {
    Comm* comm;
    const ParameterLayout* layout;
    int rank, size;
    int sum_any;                     // 1: the library sums, in an order of its own
    cudaStream_t compute, stream;    // the model's, and that of the exchanges
    cudaEvent_t computed, summed;    // recorded in `compute` and waited for in `stream`; and the other way round
    cudaEvent_t* gathered;           // (1 + layers): the embeddings with the final LayerNorm, and each layer
    int gathering;                   // 1: the forward pass has to wait for `gathered`
    int hold, held;                  // layers above `hold` are exchanged together with it; how many of them are pending
    float* received;                 // (size - 1, received_stride) the others' pieces
    size_t received_stride;          // elements of the largest part
    CommBlock *to_send, *to_receive; // (size - 1, buckets at most)
    size_t* from;                    // the same shape: byte offset of a received block in its owner's memory
    PeerCopies peers;
};

// Bytes of the buffer that receives the others' pieces
static inline size_t exchange_received_bytes(const ParameterLayout* l, int sum_any) {
    return sum_any ? 0 : size_mul((size_t)(l->size - 1), layout_largest_part(l) * sizeof(float));
}

static inline void exchange_free(BucketExchange* x) {
    int layers = x->gathered != NULL ? x->layout->config.num_layers : -1;
    for (int i = 0; i <= layers; i++) {
        if (x->gathered[i] != NULL) { cudaEventDestroy(x->gathered[i]); }
    }
    if (x->computed != NULL) { cudaEventDestroy(x->computed); }
    if (x->summed != NULL) { cudaEventDestroy(x->summed); }
    if (x->stream != NULL) { cudaStreamDestroy(x->stream); }
    free(x->gathered);
    free(x->to_send);
    free(x->to_receive);
    free(x->from);
    *x = {};
}

// For several processes. exchange_free must be called after an error, too.
static inline Status exchange_create(BucketExchange* x, Comm* comm, const ParameterLayout* l, cudaStream_t compute,
                                     int sum_any) {
    int least = 0, greatest = 0, layers = l->config.num_layers;
    x->comm = comm, x->layout = l, x->rank = comm_rank(comm), x->size = l->size;
    x->compute = compute, x->sum_any = sum_any, x->received_stride = layout_largest_part(l);
    x->hold = layers;
    size_t blocks = (size_t)(x->size - 1) * (size_t)l->num_buckets;
    x->gathered = (cudaEvent_t*)calloc_check((size_t)layers + 1, sizeof(cudaEvent_t));
    x->to_send = (CommBlock*)calloc_check(blocks, sizeof(CommBlock));
    x->to_receive = (CommBlock*)calloc_check(blocks, sizeof(CommBlock));
    x->from = (size_t*)calloc_check(blocks, sizeof(size_t));
    // highest priority: the exchange has few thread blocks, and compute kernels wait for what they move
    TRY(cuda_try(cudaDeviceGetStreamPriorityRange(&least, &greatest)));
    TRY(cuda_try(cudaStreamCreateWithPriority(&x->stream, cudaStreamNonBlocking, greatest)));
    TRY(cuda_try(cudaEventCreateWithFlags(&x->computed, cudaEventDisableTiming)));
    TRY(cuda_try(cudaEventCreateWithFlags(&x->summed, cudaEventDisableTiming)));
    for (int i = 0; i <= layers; i++) {
        TRY(cuda_try(cudaEventCreateWithFlags(&x->gathered[i], cudaEventDisableTiming)));
    }
    return STATUS_OK;
}

// The layer up to which exchanges are deferred. exchange, backward: seconds that a layer takes for either. The backward passes
// of the layers below it are long enough to hide all exchanges.
static inline int exchange_hold(int layers, double exchange, double backward) {
    double hidden = ceil(layers * exchange / backward);
    return hidden < layers ? (hidden > 1.0 ? (int)hidden : 1) : layers;
}

// *seconds: what a byte takes to be copied from the next process while all copy, in the slowest process
static inline Status exchange_measure_(BucketExchange* x, double* seconds) {
    const size_t most = (size_t)32 << 20, all = x->received_stride * sizeof(float), bytes = all < most ? all : most;
    int next = (x->rank + 1) % x->size;
    cudaEvent_t begin = NULL, end = NULL;
    float ms = 0.0f;
    cuda_try(cudaEventCreate(&begin));
    cuda_try(cudaEventCreate(&end));
    for (int i = 0; i < 2; i++) { // the first copy wakes the link
        cuda_try(cudaEventRecord(begin, x->stream));
        cuda_try(cudaMemcpyAsync(x->received, x->peers.peers[next].blocks[PEER_GRADIENTS], bytes,
                                 cudaMemcpyDeviceToDevice, x->stream));
        cuda_try(cudaEventRecord(end, x->stream));
    }
    cuda_try(cudaStreamSynchronize(x->stream));
    cuda_try(cudaEventElapsedTime(&ms, begin, end));
    int nanoseconds = -(int)(1e6f * ms); // negative: the least is of the slowest
    Status status = comm_min(x->comm, &nanoseconds);
    *seconds = -1e-9 * nanoseconds / (double)bytes;
    if (begin != NULL) { cudaEventDestroy(begin); }
    if (end != NULL) { cudaEventDestroy(end); }
    return status == STATUS_OK ? status_now() : status;
}

// Switches to copy engines where every process can read every other's memory. layer_seconds: a lower bound of the time of a
// layer's backward pass.
static inline Status exchange_open_peers(BucketExchange* x, float* grads, void* weights, double layer_seconds) {
    void* blocks[PEER_BLOCKS];
    double byte_seconds = 0.0;
    blocks[PEER_GRADIENTS] = grads, blocks[PEER_WEIGHTS] = weights;
    TRY(peer_open(&x->peers, x->comm, blocks));
    if (!x->peers.open) { return STATUS_OK; }
    TRY(exchange_measure_(x, &byte_seconds));
    // the others' pieces of this process's part, and half as long again for their sum
    double received = (double)(x->layout->layer_stride * sizeof(float)) * (x->size - 1) / x->size;
    x->hold = exchange_hold(x->layout->config.num_layers, 1.5 * received * byte_seconds, layer_seconds);
    return STATUS_OK;
}

// Later work in the exchange stream waits for all work so far in the model's stream; and the other way round.
static inline void exchange_after_compute(BucketExchange* x) {
    cuda_try(cudaEventRecord(x->computed, x->compute));
    cuda_try(cudaStreamWaitEvent(x->stream, x->computed, 0));
}
static inline void compute_after_exchange_(BucketExchange* x) {
    cuda_try(cudaEventRecord(x->summed, x->stream));
    cuda_try(cudaStreamWaitEvent(x->compute, x->summed, 0));
}

// ----------------------------------------------------------------------------
// Gradients

// Moves the first n blocks of to_send, to_receive and from. All processes list theirs in the same order of buckets.
static inline void exchange_run_(BucketExchange* x, int n, int peer_block) {
    if (!x->peers.open) {
        comm_tensor_exchange(x->comm, x->to_send, n, x->to_receive, n, x->stream);
        return;
    }
    if (comm_health(x->comm) != STATUS_OK || peer_announce(&x->peers, x->stream) != STATUS_OK) { return; }
    for (int i = 0; i < n && status_now() == STATUS_OK; i++) {
        const CommBlock* to = &x->to_receive[i];
        peer_copy(&x->peers, to->data, to->rank, peer_block, x->from[i], to->bytes, x->stream);
    }
}

// Reduce-scatter of a bucket: each process receives the others' pieces of its own part and adds them up.
static inline void exchange_pieces_(BucketExchange* x, float* memory, int bucket) {
    size_t begin, count, mine_begin, mine;
    layout_shard_part(x->layout, bucket, x->rank, &mine_begin, &mine);
    for (int k = 1; k < x->size; k++) { // each process begins with a different peer
        int r = (x->rank + k) % x->size, slot = r < x->rank ? r : r - 1;
        layout_shard_part(x->layout, bucket, r, &begin, &count);
        x->to_send[k - 1] = {r, memory + begin, count * sizeof(float)};
        x->to_receive[k - 1] = {r, x->received + (size_t)slot * x->received_stride, mine * sizeof(float)};
        x->from[k - 1] = mine_begin * sizeof(float);
    }
    exchange_run_(x, x->size - 1, PEER_GRADIENTS);
    if (status_now() != STATUS_OK) { return; }
    tree_sum(memory + mine_begin, memory + mine_begin, x->received, x->received_stride, x->rank, x->size, mine,
             x->stream);
}

// Appends the blocks of an all-gather of a group's buckets, in memory of `element` bytes per element, to the n blocks listed so
// far. Returns the new number of blocks.
static inline int exchange_add_parts_(BucketExchange* x, int n, char* memory, size_t element, int group) {
    size_t begin, count, mine_begin, mine;
    int buckets, first = layout_buckets_of(x->layout, group, &buckets);
    for (int b = first; b < first + buckets; b++) {
        layout_shard_part(x->layout, b, x->rank, &mine_begin, &mine);
        for (int k = 1; k < x->size; k++) {
            int r = (x->rank + k) % x->size;
            layout_shard_part(x->layout, b, r, &begin, &count);
            x->to_send[n] = {r, memory + mine_begin * element, mine * element};
            x->to_receive[n] = {r, memory + begin * element, count * element};
            x->from[n++] = begin * element;
        }
    }
    return n;
}

static inline void exchange_group_(BucketExchange* x, float* grads, int group, int all) {
    NvtxRange range(group == LAYOUT_WTE    ? "exchange gradients of wte"
                    : group == LAYOUT_REST ? "exchange gradients of wpe, lnf"
                                           : "exchange gradients of layer",
                    group);
    int buckets, first = layout_buckets_of(x->layout, group, &buckets);
    for (int b = first; b < first + buckets && status_now() == STATUS_OK; b++) {
        const LayoutBucket* bucket = &x->layout->buckets[b];
        if (x->sum_any) {
            comm_tensor_merge(x->comm, grads + bucket->begin, bucket->count, COMM_FLOAT, x->stream);
        } else {
            exchange_pieces_(x, grads, b);
        }
    }
    if (!all || x->sum_any || status_now() != STATUS_OK) { return; }
    exchange_run_(x, exchange_add_parts_(x, 0, (char*)grads, sizeof(float), group), PEER_GRADIENTS);
}

// A group's gradients, final in the model's stream, become sums over all processes: in this process's part of each bucket or,
// with `all`, everywhere. Called in the order of the backward pass: the last layer first, then the embeddings.
static inline void exchange_gradients(BucketExchange* x, float* grads, int group, int all) {
    if (group > x->hold) {
        x->held++;
        return;
    }
    int above = group >= 0 ? x->held : 0;
    x->held -= above;
    exchange_after_compute(x);
    for (int i = group + above; i >= group; i--) { exchange_group_(x, grads, i, all); }
}

// Makes the model's stream wait until all gradients are summed.
static inline void exchange_gradients_end(BucketExchange* x) { compute_after_exchange_(x); }

// ----------------------------------------------------------------------------
// Weights

// All-gathers the weights of layers first .. end-1, of which each process has updated its part, in one exchange; first = -1:
// those of the embeddings and the final LayerNorm, too.
static inline void exchange_weights(BucketExchange* x, void* weights, size_t element, int first, int end) {
    NvtxRange range(first < 0 ? "gather embeddings" : "gather weights of layer", first);
    if (status_now() != STATUS_OK) { return; }
    exchange_after_compute(x);
    int n = 0;
    for (int i = first; i < end; i++) {
        if (i < 0) { n = exchange_add_parts_(x, n, (char*)weights, element, LAYOUT_WTE); }
        n = exchange_add_parts_(x, n, (char*)weights, element, i < 0 ? LAYOUT_REST : i);
    }
    exchange_run_(x, n, PEER_WEIGHTS);
    for (int i = first; i < end; i++) { cuda_try(cudaEventRecord(x->gathered[i + 1], x->stream)); }
    x->gathering = 1;
}

// Makes the model's stream wait for the new weights of a layer or, with -1, of the embeddings and the final LayerNorm. Called
// in the order of the forward pass.
static inline void exchange_wait_weights(BucketExchange* x, int layer) {
    if (!x->gathering) { return; }
    cuda_try(cudaStreamWaitEvent(x->compute, x->gathered[layer + 1], 0));
    if (layer == x->layout->config.num_layers - 1) { x->gathering = 0; }
}

// ----------------------------------------------------------------------------

// All-reduce: numbers (count), on the device, become sums over all processes, in the order of the model's stream. The order of
// additions does not matter: at most one process has a number other than 0 at each index, or the numbers are integers.
static inline void exchange_merge(BucketExchange* x, void* numbers, size_t count, CommNumber type) {
    if (status_now() != STATUS_OK) { return; }
    exchange_after_compute(x);
    comm_tensor_merge(x->comm, numbers, count, type, x->stream);
    compute_after_exchange_(x);
}

#endif
