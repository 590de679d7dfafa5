/*
The parts of a checkpoint that other processes hold. Rank 0 alone writes and reads the files, whose bits do not depend on the
number of processes; where moments and master weights are sharded (parameter_layout.h), they are sent over the
background connections of comm.h, a piece of a block at a time, in the order of the files:

    saving    rank 0   asks for a piece | reads its own numbers, puts the others' beside them | asks ... | says the end
              others   answer with their numbers of it, one after the other                   | ...      | the end
    reading   rank 0   reads a piece, sends each process its numbers of it
              others   receive them

Only processes that own elements of a piece are asked. Every save, also one that fails, ends with one message to every process:
its result.
*/
#ifndef LLMC_CHECKPOINT_SHARDS_H
#define LLMC_CHECKPOINT_SHARDS_H

#include "llmc/comm/comm.h"
#include "llmc/model/gpt2_model.h"
#include "llmc/model/parameter_layout.h"

// Blocks go through a buffer of this many bytes: few calls, and it stays in the cache from the copy to the write.
#ifndef CHECKPOINT_BUFFER // a test may have a smaller one, and so a smaller model
#define CHECKPOINT_BUFFER ((size_t)4 << 20)
#endif

enum { SHARDS_END = -1 }; // instead of a block: the save is over, and a ShardsEnd follows

// From rank 0
typedef struct {
    int32_t block;
    int32_t unused;
    uint64_t offset, bytes;
} ShardsRequest;

// The result of a save
typedef struct {
    int32_t result; // the caller's
    char message[STATUS_BYTES];
} ShardsEnd;

// The source of the blocks: gpt2_copy_out, or gpt2_read_snapshot while training continues.
typedef struct {
    GPT2* model;
    Status (*read)(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes);
    char* buffer;   // CHECKPOINT_BUFFER bytes
    int not_finite; // set where a number is not finite
    int give_up;    // set by another thread to abandon this checkpoint; atomic
    char* packed;   // rank 0 of several processes: CHECKPOINT_BUFFER bytes, an answer
} CheckpointSource;

// A source that reads from the model itself.
static inline CheckpointSource checkpoint_source(GPT2* model, char* buffer) {
    CheckpointSource from = {model, gpt2_copy_out, buffer, 0, 0, NULL};
    return from;
}

static inline Comm* shards_comm(const GPT2* model) { return gpt2_info(model)->settings.comm; }

// ----------------------------------------------------------------------------
// Numbers in their places in a piece of a block, from element `first` on, and one process's of them, one after the other

typedef enum { SHARDS_COUNT, SHARDS_PACK, SHARDS_UNPACK } ShardsMove;

// Returns how many of `count` numbers are the rank's, and copies them between the piece and `packed`, which may be the piece
// itself where they are packed.
static inline size_t shards_move(const ParameterLayout* l, GPT2Block block, int rank, size_t first, size_t count,
                                 ShardsMove how, char* packed, char* piece) {
    LayoutRun run;
    size_t n = 0;
    for (size_t i = 0; i < count; i += run.count) {
        run = layout_run(l, block == GPT2_MOMENTS2, first + i, count - i);
        if (run.rank != rank) { continue; }
        size_t bytes = run.count * sizeof(float), at = i * sizeof(float), own = n * sizeof(float);
        if (how == SHARDS_PACK) { memmove(packed + own, piece + at, bytes); }
        if (how == SHARDS_UNPACK) { memcpy(piece + at, packed + own, bytes); }
        n += run.count;
    }
    return n;
}

// How many numbers of a piece of a block, given in bytes, are the rank's.
static inline size_t shards_count(const GPT2* model, GPT2Block block, int rank, size_t offset, size_t bytes) {
    return shards_move(gpt2_layout(model), block, rank, offset / sizeof(float), bytes / sizeof(float), SHARDS_COUNT,
                       NULL, NULL);
}

// ----------------------------------------------------------------------------
// Saving: rank 0

// Receives the numbers of a process that was asked into their places in from->buffer.
static inline Status shards_receive_(CheckpointSource* from, GPT2Block block, int rank, size_t offset, size_t bytes) {
    size_t own = sizeof(float) * shards_count(from->model, block, rank, offset, bytes);
    if (own == 0) { return STATUS_OK; }
    TRY(comm_background_receive(shards_comm(from->model), rank, from->packed, own));
    shards_move(gpt2_layout(from->model), block, rank, offset / sizeof(float), bytes / sizeof(float), SHARDS_UNPACK,
                from->packed, from->buffer);
    return STATUS_OK;
}

// The bytes of the next piece of what is left
static inline size_t shards_piece(size_t left) {
    size_t most = CHECKPOINT_BUFFER;
    return left < most ? left : most;
}

// The piece at `offset` of a block, all of its numbers, into from->buffer. All answers are received, also after an error: the
// next message on each connection is the next request's.
static inline Status shards_read(CheckpointSource* from, GPT2Block block, size_t offset, size_t bytes) {
    Comm* comm = shards_comm(from->model);
    ShardsRequest request = {(int32_t)block, 0, offset, bytes};
    int size = gpt2_is_sharded(gpt2_info(from->model), block) ? comm_size(comm) : 1;
    for (int rank = 1; rank < size; rank++) {
        if (shards_count(from->model, block, rank, offset, bytes) == 0) { continue; }
        TRY(comm_background_send(comm, rank, &request, sizeof(request)));
    }
    Status own = from->read(from->model, from->buffer, block, offset, bytes);
    for (int rank = 1; rank < size; rank++) { TRY(shards_receive_(from, block, rank, offset, bytes)); }
    return own;
}

// The end of a save, for every process that answers.
static inline void shards_end(CheckpointSource* from, const ShardsEnd* end) {
    Comm* comm = shards_comm(from->model);
    ShardsRequest request = {SHARDS_END, 0, 0, 0};
    status_clear();
    for (int rank = 1; rank < comm_size(comm); rank++) {
        if (comm_background_send(comm, rank, &request, sizeof(request)) != STATUS_OK) { continue; }
        (void)comm_background_send(comm, rank, end, sizeof(*end)); // who cannot be told is gone, and the run with it
    }
    status_clear();
}

// ----------------------------------------------------------------------------
// Saving: the others

// Sends rank 0 this process's numbers of a piece. Where they cannot be read, the GPU is lost, and the run of all ends.
static inline Status shards_answer_(CheckpointSource* from, const ShardsRequest* r) {
    Comm* comm = shards_comm(from->model);
    size_t offset = (size_t)r->offset, bytes = (size_t)r->bytes;
    if (from->read(from->model, from->buffer, (GPT2Block)r->block, offset, bytes) != STATUS_OK) {
        comm_fail(comm, status_message());
        return STATUS_ERROR;
    }
    size_t own = sizeof(float) * shards_move(gpt2_layout(from->model), (GPT2Block)r->block, comm_rank(comm),
                                             offset / sizeof(float), bytes / sizeof(float), SHARDS_PACK, from->buffer,
                                             from->buffer);
    return comm_background_send(comm, 0, from->buffer, own);
}

// Answers rank 0 until the save is over; *end is its result.
static inline Status shards_serve(CheckpointSource* from, ShardsEnd* end) {
    Comm* comm = shards_comm(from->model);
    ShardsRequest request;
    status_clear();
    for (;;) {
        TRY(comm_background_receive(comm, 0, &request, sizeof(request)));
        if (request.block == SHARDS_END) { break; }
        TRY(shards_answer_(from, &request));
    }
    TRY(comm_background_receive(comm, 0, end, sizeof(*end)));
    end->message[sizeof(end->message) - 1] = '\0';
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Reading

// Rank 0's piece of a block, in every process: all of it or, of a block in shards, this process's numbers. `packed` is scratch
// for as many bytes.
static inline Status shards_spread(GPT2* model, GPT2Block block, char* piece, char* packed, size_t offset,
                                   size_t bytes) {
    Comm* comm = shards_comm(model);
    const ParameterLayout* l = gpt2_layout(model);
    size_t first = offset / sizeof(float), count = bytes / sizeof(float), n;
    if (!gpt2_is_sharded(gpt2_info(model), block)) { return comm_broadcast(comm, piece, bytes, 0); }
    if (comm_rank(comm) == 0) {
        for (int rank = 1; rank < comm_size(comm); rank++) {
            n = shards_move(l, block, rank, first, count, SHARDS_PACK, packed, piece);
            if (n > 0) { TRY(comm_background_send(comm, rank, packed, n * sizeof(float))); }
        }
        return STATUS_OK;
    }
    n = shards_count(model, block, comm_rank(comm), offset, bytes);
    if (n > 0) { TRY(comm_background_receive(comm, 0, packed, n * sizeof(float))); }
    shards_move(l, block, comm_rank(comm), first, count, SHARDS_UNPACK, packed, piece);
    return STATUS_OK;
}

#endif
