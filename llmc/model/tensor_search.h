/*
Finds the first number that is not finite: visits all tensors of a model in the order in which a step computes them, each with a
name for the user. There are two passes: one scans each tensor by the trainer's function (a loop, or a kernel), the other finds
the name of the first tensor that was reported.

    TensorSearch s = ...;                                    // the model's tensors, and scan()
    tensor_search(&s);                                       // scan(index) for each, from index 0
    if (found) { tensor_search_name(&s, index, text, size); }
*/
#ifndef LLMC_MODEL_TENSOR_SEARCH_H
#define LLMC_MODEL_TENSOR_SEARCH_H

#include "gpt2_model.h"

// What the tensors of the last batch hold.
typedef enum {
    PASS_NONE,     // nothing
    PASS_FORWARD,  // activations and logits
    PASS_VALIDATE, // and losses
    PASS_BACKWARD  // activations, losses, and gradients in place of the logits
} LastPass;

// Looks through `count` numbers of `element` bytes each and keeps the least index of those calls that find one not finite.
typedef void TensorScan(void* context, const void* data, size_t count, size_t element, unsigned index);

typedef struct {
    const GPT2Info* info;
    const ParameterLayout* layout;
    const GPT2Activation* acts_table;
    const void* acts_memory;
    size_t tokens; // of the last batch
    LastPass last_pass;
    const void* blocks[GPT2_MASTER_WEIGHTS + 1]; // by GPT2Block, in the layout; NULL if there is none
    const float *loss, *norm;                    // of the step, each one number
    TensorScan* scan;
    void* context;
    // the search's own
    unsigned index, wanted; // of the next tensor, and of the one to name
    char* text;             // NULL while scanning
    size_t size;
} TensorSearch;

// The next tensor, or layer of one. Its name is made of what stands before it, its own, and the layer, which is < 0 for
// none. Returns 1 if it is to be scanned.
static inline int tensor_search_next_(TensorSearch* s, const char* before, const char* name, const char* link,
                                      int layer) {
    unsigned index = s->index++;
    if (s->text == NULL) { return 1; }
    if (index == s->wanted && layer >= 0) {
        snprintf(s->text, s->size, "%s%s%s %d", before, name, link, layer);
    } else if (index == s->wanted) {
        snprintf(s->text, s->size, "%s%s", before, name);
    }
    return 0;
}

// Scans numbers of the tensor that tensor_search_next_ has begun.
static inline void tensor_search_scan_(TensorSearch* s, const void* data, size_t count, size_t element) {
    if (data != NULL && count > 0) { s->scan(s->context, data, count, element, s->index - 1); }
}

static inline void tensor_search_visit_(TensorSearch* s, const char* before, const char* name, const char* link,
                                        int layer, const void* data, size_t count, size_t element) {
    if (tensor_search_next_(s, before, name, link, layer)) { tensor_search_scan_(s, data, count, element); }
}

// One layer of row i of a block; a tensor without layers is its layer 0. Of a sharded block, what this process has of it.
static inline void tensor_search_parameter_(TensorSearch* s, const char* before, GPT2Block block, int i, size_t layer) {
    const GPT2Parameter* p = &s->info->table[i];
    size_t element = block == GPT2_WEIGHTS ? s->info->weight_bytes : sizeof(float), count = p->rows * p->cols;
    size_t offset = layout_offset(s->layout, i, layer), end = offset + count;
    const char* data = (const char*)s->blocks[block];
    if (data == NULL || layer >= p->layers) { return; }
    if (!tensor_search_next_(s, before, p->name, ", layer", p->layers > 1 ? (int)layer : -1)) { return; }
    if (!s->info->sharded || block == GPT2_WEIGHTS || block == GPT2_GRADIENTS) {
        tensor_search_scan_(s, data + offset * element, count, element);
        return;
    }
    for (LayoutRun run; offset < end; offset += run.count) {
        run = layout_run_at(s->layout, offset, end - offset);
        if (run.rank == s->info->rank) {
            tensor_search_scan_(s, data + run.shard_offset * element, run.count, element);
        }
    }
}

// A whole block, the tensors of all layers one after the other
static inline void tensor_search_block_(TensorSearch* s, const char* before, GPT2Block block) {
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        for (size_t layer = 0; layer < s->info->table[i].layers; layer++) {
            tensor_search_parameter_(s, before, block, i, layer);
        }
    }
}

// The gradients in the order of the backward pass: what has no layers but the embeddings, the layers from the last to the
// first, and the embeddings. The table is gone through backwards, as the pass does.
static inline void tensor_search_gradients_(TensorSearch* s) {
    static const char before[] = "backward: gradient of ";
    enum { EMBEDDINGS = 2, FINAL = NUM_PARAMETER_TENSORS - 2 }; // wte and wpe; lnfw and lnfb
    for (int i = NUM_PARAMETER_TENSORS - 1; i >= FINAL; i--) {
        tensor_search_parameter_(s, before, GPT2_GRADIENTS, i, 0);
    }
    for (size_t layer = (size_t)s->info->config.num_layers; layer-- > 0;) {
        for (int i = FINAL - 1; i >= EMBEDDINGS; i--) { tensor_search_parameter_(s, before, GPT2_GRADIENTS, i, layer); }
    }
    for (int i = EMBEDDINGS - 1; i >= 0; i--) { tensor_search_parameter_(s, before, GPT2_GRADIENTS, i, 0); }
    tensor_search_visit_(s, "backward: ", "norm of the gradients, each of which is finite", "", -1, s->norm, 1,
                         sizeof(float));
}

// One layer of row i of the activations, as far as the last batch filled it
static inline void tensor_search_activation_(TensorSearch* s, int i, size_t layer, int named) {
    const GPT2Activation* row = &s->acts_table[i];
    size_t element = row->type == ACTIVATION_real ? s->info->weight_bytes : sizeof(float), offset = 0;
    size_t allocated = (size_t)s->info->B * (size_t)s->info->T; // tokens
    for (int k = 0; k < i; k++) { offset += s->acts_table[k].bytes; }
    tensor_search_visit_(s, "forward: ", row->name, " of layer", named ? (int)layer : -1,
                         (const char*)s->acts_memory + offset + layer * row->count * element,
                         row->count / allocated * s->tokens, element);
}

// The activations in the order of the forward pass. Those that are computed again instead of kept hold another layer's
// numbers: whatever is wrong in them is wrong in what they are computed from, or in the next tensor.
static inline void tensor_search_activations_(TensorSearch* s) {
    size_t L = (size_t)s->info->config.num_layers;
    int final = 0; // rows of the table: encoded, the layers', the final ones, losses, output
    if (s->last_pass == PASS_NONE) { return; }
    while (strcmp(s->acts_table[final].name, "lnf") != 0) { final++; }
    int losses = final;
    while (strcmp(s->acts_table[losses].name, "losses") != 0) { losses++; }
    tensor_search_activation_(s, 0, 0, 0);
    for (size_t layer = 0; layer < L; layer++) {
        for (int i = 1; i < final; i++) {
            if (s->acts_table[i].layers == L) { tensor_search_activation_(s, i, layer, 1); }
        }
    }
    for (int i = final; i < losses; i++) { tensor_search_activation_(s, i, 0, 0); }
    if (s->last_pass != PASS_BACKWARD) { tensor_search_activation_(s, losses + 1, 0, 0); }
    if (s->last_pass != PASS_FORWARD) { tensor_search_activation_(s, losses, 0, 0); }
}

// Calls scan() for every tensor, indices ascending in the order of computation.
static inline void tensor_search(TensorSearch* s) {
    s->index = 0;
    tensor_search_block_(s, "weights: ", GPT2_WEIGHTS);
    tensor_search_block_(s, "weights: master of ", GPT2_MASTER_WEIGHTS);
    tensor_search_activations_(s);
    tensor_search_visit_(s, "forward: ", "loss of the step", "", -1, s->loss, 1, sizeof(float));
    tensor_search_gradients_(s);
    tensor_search_block_(s, "update: first moment of ", GPT2_MOMENTS1);
    tensor_search_block_(s, "update: second moment of ", GPT2_MOMENTS2);
}

// text, of `size` bytes, becomes the name of the tensor of this index.
static inline void tensor_search_name(TensorSearch* s, unsigned index, char* text, size_t size) {
    s->text = text, s->size = size, s->wanted = index;
    tensor_search(s);
    s->text = NULL;
}

#endif
