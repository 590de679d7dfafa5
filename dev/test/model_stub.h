/*
A model that is only its blocks of memory, which is all that checkpoints see of one: for tests of the files, without a
trainer. It stands in for train_gpt2.c. The blocks lie in table order, and where info.sharded is set, only the numbers of
this process's shard are ever copied.
*/
#ifndef MODEL_STUB_H
#define MODEL_STUB_H

#include "llmc/comm/comm.h"
#include "llmc/model/gpt2_model.h"

struct GPT2 {
    GPT2Info info;
    ParameterLayout layout;                 // where info.sharded is set
    float* blocks[GPT2_MASTER_WEIGHTS + 1]; // (num_parameters) each, or NULL
    float* snapshot[GPT2_MASTER_WEIGHTS + 1];
    int has_snapshot;
    int no_snapshot;   // 1: as where there is no memory for one
    void (*reading)(); // called by gpt2_read_snapshot, so that a test can hold up the thread; or NULL
    int reads_fail;    // 1: copies to the host fail
};

const GPT2Info* gpt2_info(const GPT2* model) { return &model->info; }
const ParameterLayout* gpt2_layout(const GPT2* model) { return &model->layout; }
size_t gpt2_block_bytes(const GPT2* model, GPT2Block block) {
    return model->blocks[block] ? model->info.num_parameters * sizeof(float) : 0;
}

// Copies what this process has of a block's bytes, `offset` of which is the first.
static void copy_own_(const GPT2* model, GPT2Block block, char* to, const char* from, size_t offset, size_t bytes) {
    size_t first = offset / sizeof(float), count = bytes / sizeof(float);
    if (!model->info.sharded || block < GPT2_MOMENTS1) {
        memcpy(to, from, bytes);
        return;
    }
    LayoutRun run;
    for (size_t i = 0; i < count; i += run.count) {
        run = layout_run(&model->layout, first + i, count - i);
        if (run.rank != comm_rank(model->info.settings.comm)) { continue; }
        memcpy(to + i * sizeof(float), from + i * sizeof(float), run.count * sizeof(float));
    }
}
Status gpt2_copy_out(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes) {
    TRY(gpt2_check_block(gpt2_block_bytes(model, block), offset, bytes));
    if (model->reads_fail) { return status_fail("the GPU is gone"); }
    copy_own_(model, block, (char*)host, (char*)model->blocks[block] + offset, offset, bytes);
    return STATUS_OK;
}
Status gpt2_copy_in(GPT2* model, GPT2Block block, const void* host, size_t offset, size_t bytes) {
    TRY(gpt2_check_block(gpt2_block_bytes(model, block), offset, bytes));
    copy_own_(model, block, (char*)model->blocks[block] + offset, (const char*)host, offset, bytes);
    return STATUS_OK;
}

void* gpt2_host_alloc(size_t bytes) { return malloc(bytes); }
void gpt2_host_free(void* memory) { free(memory); }

Status gpt2_allocate_snapshot(GPT2* model) {
    if (model->no_snapshot) { return status_fail("out of memory: no room for a snapshot"); }
    for (int i = 0; i <= GPT2_MASTER_WEIGHTS; i++) {
        model->snapshot[i] = (float*)malloc_check(gpt2_block_bytes(model, (GPT2Block)i));
    }
    model->has_snapshot = 1;
    return STATUS_OK;
}
Status gpt2_take_snapshot(GPT2* model) {
    if (!model->has_snapshot) { return status_fail("no memory for a snapshot"); }
    for (int i = 0; i <= GPT2_MASTER_WEIGHTS; i++) {
        size_t bytes = gpt2_block_bytes(model, (GPT2Block)i);
        if (bytes > 0) { memcpy(model->snapshot[i], model->blocks[i], bytes); }
    }
    return STATUS_OK;
}
Status gpt2_read_snapshot(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes) {
    TRY(gpt2_check_block(gpt2_block_bytes(model, block), offset, bytes));
    if (model->reading != NULL) { model->reading(); }
    if (model->reads_fail) { return status_fail("the GPU is gone"); }
    copy_own_(model, block, (char*)host, (char*)model->snapshot[block] + offset, offset, bytes);
    return STATUS_OK;
}
const char* gpt2_snapshot_place(const GPT2* model) { return model->has_snapshot ? "host" : "none"; }

#endif
