/*
A model that is only its blocks of memory, which is all that checkpoints see of one: for tests of the files, without a
trainer. It stands in for train_gpt2.c.
*/
#ifndef MODEL_STUB_H
#define MODEL_STUB_H

#include "llmc/gpt2_model.h"

struct GPT2 {
    GPT2Info info;
    float* blocks[GPT2_MASTER_WEIGHTS + 1]; // (num_parameters) each, or NULL
};

const GPT2Info* gpt2_info(const GPT2* model) { return &model->info; }
size_t gpt2_block_bytes(const GPT2* model, GPT2Block block) {
    return model->blocks[block] ? model->info.num_parameters * sizeof(float) : 0;
}
Status gpt2_copy_out(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes) {
    TRY(gpt2_check_block(gpt2_block_bytes(model, block), offset, bytes));
    memcpy(host, (char*)model->blocks[block] + offset, bytes);
    return STATUS_OK;
}
Status gpt2_copy_in(GPT2* model, GPT2Block block, const void* host, size_t offset, size_t bytes) {
    TRY(gpt2_check_block(gpt2_block_bytes(model, block), offset, bytes));
    memcpy((char*)model->blocks[block] + offset, host, bytes);
    return STATUS_OK;
}

#endif
