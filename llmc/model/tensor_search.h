/*
Finds the first number that is not finite: goes through all tensors of a model in the order in which a step computes them, until
the trainer's function, a loop or a kernel, finds one.

    TensorSearch s = ...;                  // the model's tensors, and scan()
    tensor_search(&s, text, size);         // "forward: fch of layer 3"
*/
#ifndef LLMC_MODEL_TENSOR_SEARCH_H
#define LLMC_MODEL_TENSOR_SEARCH_H

#include "gpt2_model.h"

// 1 if one of `count` numbers of `element` bytes each is not finite, or after an error: then the search ends.
typedef int TensorScan(void* context, const void* data, size_t count, size_t element);

typedef struct {
    const GPT2Info* info;
    const ParameterLayout* layout;
    const GPT2Activation* acts_table;
    const void* acts_memory;
    const void* blocks[GPT2_MASTER_WEIGHTS + 1]; // by GPT2Block, in the layout; NULL if there is none
    const float *loss, *norm;                    // of the step, each one number
    TensorScan* scan;
    void* context;
    char* text; // (size) the name of the tensor
    size_t size;
} TensorSearch;

// Scans a tensor, or a layer of one (layer < 0: it has none). Each function here returns 1 once a number was found.
static inline int tensor_search_scan_(TensorSearch* s, const char* before, const char* name, const char* link,
                                      int layer, const void* data, size_t count, size_t element) {
    if (data == NULL || count == 0 || !s->scan(s->context, data, count, element)) { return 0; }
    int length = snprintf(s->text, s->size, "%s%s", before, name);
    if (layer >= 0) { snprintf(s->text + length, s->size - (size_t)length, "%s %d", link, layer); }
    return 1;
}

// One layer of row i of a block; a tensor without layers is its layer 0. Of a sharded block, what this process has of it.
static inline int tensor_search_parameter_(TensorSearch* s, const char* before, GPT2Block block, int i, size_t layer) {
    const GPT2Parameter* p = &s->info->table[i];
    size_t element = block == GPT2_WEIGHTS ? s->info->weight_bytes : sizeof(float), count = p->rows * p->cols;
    size_t offset = layout_offset(s->layout, i, layer), end = offset + count;
    int whole = !s->info->sharded || block == GPT2_WEIGHTS || block == GPT2_GRADIENTS, found = 0;
    const char* data = (const char*)s->blocks[block];
    if (data == NULL || layer >= p->layers) { return 0; }
    for (LayoutRun run; offset < end && !found; offset += run.count) {
        run = layout_run_at(s->layout, offset, end - offset);
        if (!whole && run.rank != s->info->rank) { continue; }
        found = tensor_search_scan_(s, before, p->name, ", layer", p->layers > 1 ? (int)layer : -1,
                                    data + (whole ? run.offset : run.shard_offset) * element, run.count, element);
    }
    return found;
}

// A whole block, the tensors of all layers one after the other
static inline int tensor_search_block_(TensorSearch* s, const char* before, GPT2Block block) {
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        for (size_t layer = 0; layer < s->info->table[i].layers; layer++) {
            if (tensor_search_parameter_(s, before, block, i, layer)) { return 1; }
        }
    }
    return 0;
}

// The gradients in the order of the backward pass: what has no layers but the embeddings, the layers from the last to the
// first, and the embeddings. The table is gone through backwards, as the pass does.
static inline int tensor_search_gradients_(TensorSearch* s) {
    enum { EMBEDDINGS = 2, FINAL = NUM_PARAMETER_TENSORS - 2 }; // wte and wpe; lnfw and lnfb
    const struct {
        int from, to;
        size_t layers;
    } groups[] = {
        {NUM_PARAMETER_TENSORS, FINAL, 1}, {FINAL, EMBEDDINGS, s->info->table[EMBEDDINGS].layers}, {EMBEDDINGS, 0, 1}};
    for (int group = 0; group < 3; group++) {
        for (size_t layer = groups[group].layers; layer-- > 0;) {
            for (int i = groups[group].from; i-- > groups[group].to;) {
                if (tensor_search_parameter_(s, "backward: gradient of ", GPT2_GRADIENTS, i, layer)) { return 1; }
            }
        }
    }
    return tensor_search_scan_(s, "backward: ", "norm of the gradients, each of which is finite", "", -1, s->norm, 1,
                               sizeof(float));
}

// One layer of row i of the activations, as far as the last batch filled it
static inline int tensor_search_activation_(TensorSearch* s, int i, size_t layer, int named) {
    const GPT2Activation* row = &s->acts_table[i];
    size_t element = row->type == ACTIVATION_real ? s->info->weight_bytes : sizeof(float), offset = 0;
    size_t allocated = (size_t)s->info->B * (size_t)s->info->T;
    size_t tokens = (size_t)s->info->last_B * (size_t)s->info->last_T;
    for (int k = 0; k < i; k++) { offset += s->acts_table[k].bytes; }
    return tensor_search_scan_(s, "forward: ", row->name, " of layer", named ? (int)layer : -1,
                               (const char*)s->acts_memory + offset + layer * row->count * element,
                               row->count / allocated * tokens, element);
}

// The activations in the order of the forward pass. Those that are computed again instead of kept hold another layer's
// numbers: whatever is wrong in them is wrong in what they are computed from, or in the next tensor.
static inline int tensor_search_activations_(TensorSearch* s) {
    size_t L = (size_t)s->info->config.num_layers;
    int final = 0, found = 0; // rows of the table: encoded, the layers', the final ones, losses, output
    if (s->info->last_pass == PASS_NONE) { return 0; }
    while (strcmp(s->acts_table[final].name, "lnf") != 0) { final++; }
    int losses = final;
    while (strcmp(s->acts_table[losses].name, "losses") != 0) { losses++; }
    found = tensor_search_activation_(s, 0, 0, 0);
    for (size_t layer = 0; layer < L; layer++) {
        for (int i = 1; i < final && !found; i++) {
            found = s->acts_table[i].layers == L && tensor_search_activation_(s, i, layer, 1);
        }
    }
    for (int i = final; i < losses && !found; i++) { found = tensor_search_activation_(s, i, 0, 0); }
    return found || (s->info->last_pass != PASS_BACKWARD && tensor_search_activation_(s, losses + 1, 0, 0)) ||
           (s->info->last_pass != PASS_FORWARD && tensor_search_activation_(s, losses, 0, 0));
}

// text, of `size` bytes, becomes the name of the first tensor, in the order of computation, with a number that is not finite;
// "" if every number is finite.
static inline void tensor_search(TensorSearch* s, char* text, size_t size) {
    text[0] = '\0', s->text = text, s->size = size;
    (void)(tensor_search_block_(s, "weights: ", GPT2_WEIGHTS) ||
           tensor_search_block_(s, "weights: master of ", GPT2_MASTER_WEIGHTS) || tensor_search_activations_(s) ||
           tensor_search_scan_(s, "forward: ", "loss of the step", "", -1, s->loss, 1, sizeof(float)) ||
           tensor_search_gradients_(s) || tensor_search_block_(s, "update: first moment of ", GPT2_MOMENTS1) ||
           tensor_search_block_(s, "update: second moment of ", GPT2_MOMENTS2));
}

#endif
