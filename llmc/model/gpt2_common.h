/*
What is the same in both trainers, written once: creating and planning a model, its layers' slices, its blocks, the search for a
number that is not finite. train_gpt2.c and train_gpt2.cu include it after their struct GPT2, whose members it names. They
define the functions that are declared first, and

    floatX           the training precision
    GPT2_MEMORY      where tensors are: PLAN_HOST or PLAN_DEVICE
    GPT2_IN_PLACE    1: a leaf's gradients are added to a buffer in place (gradient_tree.h)
*/
#ifndef LLMC_MODEL_GPT2_COMMON_H
#define LLMC_MODEL_GPT2_COMMON_H

#include "gpt2_model.h"

#ifdef GPT2_MEMORY

// The rest of gpt2_create, for a model with its info, its plan and its layout
static Status gpt2_build(GPT2* model);

// Memory of a row of the plan, and the same with all zeros; NULL if it has no bytes, and after an error.
static void* row_alloc(GPT2* model, PlanRowId row);
static float* zeros_alloc(GPT2* model, PlanRowId row);

// The rest of gpt2_allocate
static Status gpt2_allocate_rest(GPT2* model, int B, int T, int training);

// The rows of a plan that gpt2_plan does not set. training: settings, B and T are those of a model for it.
static Status gpt2_plan_rows(GPT2Plan* plan, GPT2Config config, GPT2Settings settings, const ParameterLayout* layout,
                             int B, int T, int training);

// to = from, of device memory after all work so far in the model's stream, which gpt2_synchronize waits for
static void snapshot_copy(GPT2* model, void* to, const void* from, size_t bytes);

// 1 if one of `count` numbers of `element` bytes each is not finite, or after an error: then the search ends.
static int gpt2_scan(GPT2* model, const void* data, size_t count, size_t element);

const GPT2Info* gpt2_info(const GPT2* model) { return &model->info; }
const ParameterLayout* gpt2_layout(const GPT2* model) { return &model->layout; }
void gpt2_set_local(GPT2* model, int local) { model->local = local; }

// 1 if gradients, losses and updates are shared with other processes.
static inline int gpt2_shares(const GPT2* model) { return model->info.size > 1 && !model->local; }

// ----------------------------------------------------------------------------
// One layer's slice of the tables

// Buffer `i` of the gradient tree
static inline float* gpt2_gradients(const GPT2* model, int i) {
    return i == 0 ? model->grads_memory : model->tree_memory + (size_t)(i - 1) * model->layout.elements;
}

// The leaf of micro-step i of micro_steps: the buffer of its gradients
static inline GradientLeaf gpt2_leaf(GPT2Settings settings, int micro_steps, int i) {
    GradientLeaf leaf = gradient_leaf(settings.sum_any ? 1 : micro_steps, GPT2_IN_PLACE, settings.sum_any ? 0 : i);
    if (settings.sum_any) { leaf.accumulate = i > 0; }
    return leaf;
}

// Pointers to a layer's parameters; tensors without layers are the same for every layer.
static inline ParameterTensors gpt2_layer_parameters(const GPT2* model, int layer) {
    ParameterTensors w;
    layout_point(&w, &model->layout, model->params_memory, sizeof(floatX), (size_t)layer);
    return w;
}

// Pointers into the gradient buffer of the micro-step
static inline GradientTensors gpt2_layer_gradients(const GPT2* model, int layer) {
    GradientTensors g;
    layout_point(&g, &model->layout, gpt2_gradients(model, model->leaf.buffer), sizeof(float), (size_t)layer);
    return g;
}

static inline ActivationTensors gpt2_layer_activations(const GPT2* model, int layer) {
    ActivationTensors y;
    gpt2_slice_activations(&y, &model->acts, model->plan.activations, (size_t)layer, sizeof(floatX));
    return y;
}

// (B,T,C) the residual stream that enters a layer; with the number of layers, what the last one returns
static inline floatX* gpt2_layer_input(const GPT2* model, int layer) {
    return layer == 0 ? model->acts.encoded : gpt2_layer_activations(model, layer - 1).residual3;
}

// ----------------------------------------------------------------------------
// Planning and creating

// 1 if updates act on fp32 copies of the weights: fp32 weights are their own masters.
static inline int gpt2_has_masters(GPT2Settings settings) {
    return settings.master_weights && sizeof(floatX) < sizeof(float);
}

// The rows of what has an element for each parameter
static inline void gpt2_plan_blocks(GPT2Plan* plan, GPT2Settings settings, const ParameterLayout* layout, int training,
                                    int snapshot) {
    size_t n = layout->elements, shard = settings.zero ? layout->shard_elements : n;
    size_t second = settings.zero ? layout->shard_second_elements : layout->second_elements;
    size_t masters = gpt2_has_masters(settings) ? size_mul(shard, sizeof(float)) : 0;
    plan_set(plan, PLAN_WEIGHTS, GPT2_MEMORY, n * sizeof(floatX));
    if (!training) { return; }
    plan_set(plan, PLAN_GRADIENTS, GPT2_MEMORY, n * sizeof(float));
    plan_set(plan, PLAN_MOMENTS1, GPT2_MEMORY, shard * sizeof(float));
    plan_set(plan, PLAN_MOMENTS2, GPT2_MEMORY, second * sizeof(float));
    plan_set(plan, PLAN_MASTER_WEIGHTS, GPT2_MEMORY, masters);
    if (snapshot) {
        plan_set(plan, PLAN_SNAPSHOT, PLAN_HOST, n * sizeof(floatX) + (shard + second) * sizeof(float) + masters);
    }
}

Status gpt2_plan(GPT2Plan* plan, GPT2Config config, GPT2Settings settings, int B, int T, int training, int snapshot) {
    ParameterLayout layout;
    plan_clear(plan);
    status_clear();
    TRY(gpt2_config_status(config, "the model"));
    if (settings.fp8) { settings.recompute = 2; } // as gpt2_create does
    if (settings.micro_steps < 1) { return status_fail("a model for %d micro-steps", settings.micro_steps); }
    if (B != 0 || T != 0) { TRY(gpt2_check_sizes(config, B, T)); }
    TRY(layout_create(&layout, config, comm_size(settings.comm), settings.muon));
    size_t masters = gpt2_has_masters(settings) ? sizeof(float) : 0;
    plan->checkpoint_bytes = gpt2_parameters(layout.table, config) * (sizeof(floatX) + sizeof(float) + masters);
    plan->checkpoint_bytes += layout_second_moments(layout.table, config, settings.muon) * sizeof(float);
    gpt2_plan_blocks(plan, settings, &layout, training && B != 0, snapshot);
    Status status = gpt2_plan_rows(plan, config, settings, &layout, B, T, training);
    layout_free(&layout);
    return status;
}

Status gpt2_create(GPT2** result, GPT2Config config, GPT2Settings settings) {
    status_clear();
    *result = NULL;
    GPT2* model = (GPT2*)calloc_check(1, sizeof(GPT2));
    GPT2Info* info = &model->info;
    info->config = config;
    info->settings = settings;
    if (settings.fp8) { info->settings.recompute = 2; } // the codes of these inputs are kept in their place
    info->num_parameters = gpt2_parameters(info->table, config);
    info->weight_bytes = sizeof(floatX);
    info->rank = comm_rank(settings.comm), info->size = comm_size(settings.comm);
    info->sharded = settings.zero && info->size > 1;
    if (gpt2_plan(&model->plan, config, settings, 0, 0, 0, 0) == STATUS_OK &&
        layout_create(&model->layout, config, info->size, settings.muon) == STATUS_OK) {
        info->elements = model->layout.elements;
        info->shard_elements = info->sharded ? model->layout.shard_elements : model->layout.elements;
        info->second_elements = info->sharded ? model->layout.shard_second_elements : model->layout.second_elements;
        gpt2_build(model);
    }
    if (status_now() != STATUS_OK) {
        gpt2_free(model);
        return STATUS_ERROR;
    }
    *result = model;
    return STATUS_OK;
}

// The padding between tensors stays zero.
Status gpt2_allocate(GPT2* model, int B, int T, int training) {
    GPT2Info* info = &model->info;
    status_clear();
    if (info->B != 0) { return status_fail("gpt2_allocate: this model has its activations already"); }
    TRY(gpt2_plan(&model->plan, info->config, info->settings, B, T, training, 1));
    model->acts_memory = row_alloc(model, PLAN_ACTIVATIONS);
    model->grads_memory = zeros_alloc(model, PLAN_GRADIENTS);
    model->tree_memory = zeros_alloc(model, PLAN_GRADIENT_TREE);
    model->m_memory = zeros_alloc(model, PLAN_MOMENTS1);
    model->v_memory = zeros_alloc(model, PLAN_MOMENTS2);
    model->master_weights = zeros_alloc(model, PLAN_MASTER_WEIGHTS);
    TRY(status_now());
    gpt2_point_activations(&model->acts, model->plan.activations, model->acts_memory);
    TRY(gpt2_allocate_rest(model, B, T, training));
    info->B = B;
    info->T = T;
    info->training = training;
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Blocks

// A block's memory; NULL if the model has none. The gradients are those of the subtree of the last micro-step.
static inline char* gpt2_block(const GPT2* model, GPT2Block block) {
    void* const blocks[] = {model->params_memory, gpt2_gradients(model, model->leaf.first), model->m_memory,
                            model->v_memory, model->master_weights};
    return (char*)blocks[block];
}

size_t gpt2_block_bytes(const GPT2* model, GPT2Block block) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    int muon = block == GPT2_MOMENTS2 && model->info.settings.muon;
    size_t count = layout_second_moments(table, model->info.config, muon);
    return gpt2_block(model, block) != NULL ? count * gpt2_element(&model->info, block) : 0;
}

// Copies a piece of a block between the model's memory and the host's
typedef Status (*GPT2Copy)(char* memory, char* host, size_t bytes);

static inline Status copy_host_out(char* memory, char* host, size_t bytes) {
    memcpy(host, memory, bytes);
    return STATUS_OK;
}

// Calls copy() for each contiguous piece of bytes offset .. offset+bytes-1 of a block, which are in table order in `host` and
// in that of the layout in `memory`. Skips other processes' shards; stops at an error.
static Status gpt2_copy_runs(const GPT2* model, GPT2Block block, char* memory, char* host, size_t offset, size_t bytes,
                             GPT2Copy copy) {
    size_t all = gpt2_block_bytes(model, block), size = gpt2_element(&model->info, block), count = bytes / size;
    int sharded = gpt2_is_sharded(&model->info, block);
    LayoutRun run;
    if (offset % size != 0 || bytes % size != 0 || offset > all || bytes > all - offset) {
        return status_fail("bytes %zu to %zu of a block of %zu, whose numbers have %zu", offset,
                           size_add(offset, bytes), all, size);
    }
    for (size_t i = 0; i < count; i += run.count) {
        run = layout_run(&model->layout, block == GPT2_MOMENTS2, offset / size + i, count - i);
        size_t at = gpt2_run_offset(&model->info, block, run) * size;
        if (sharded && run.rank != model->info.rank) { continue; }
        TRY(copy(memory + at, host + i * size, run.count * size));
    }
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Snapshot: the memory of all blocks but the gradients, one after the other, on the host

// Bytes of it in the snapshot
static size_t gpt2_snapshot_part(const GPT2* model, GPT2Block block) {
    size_t elements = block == GPT2_WEIGHTS    ? model->info.elements
                      : block == GPT2_MOMENTS2 ? model->info.second_elements
                                               : model->info.shard_elements;
    int in = block != GPT2_GRADIENTS && gpt2_block(model, block) != NULL;
    return in ? elements * gpt2_element(&model->info, block) : 0;
}

static char* gpt2_snapshot_block(const GPT2* model, GPT2Block block) {
    char* memory = (char*)model->snapshot;
    for (int b = 0; b < (int)block; b++) { memory += gpt2_snapshot_part(model, (GPT2Block)b); }
    return memory;
}

// A first copy touches the pages, so that the first snapshot does not wait for page faults.
Status gpt2_allocate_snapshot(GPT2* model) {
    status_clear();
    TRY(gpt2_check_training(&model->info));
    if (model->snapshot != NULL) { return status_fail("gpt2_allocate_snapshot: this model has its snapshot already"); }
    model->snapshot = row_alloc(model, PLAN_SNAPSHOT);
    TRY(status_now());
    TRY(gpt2_take_snapshot(model));
    model->snapshot_taken = 0;
    return STATUS_OK;
}

// A step waits for this copy alone.
Status gpt2_take_snapshot(GPT2* model) {
    status_clear();
    if (model->snapshot == NULL) { return status_fail("gpt2_take_snapshot before gpt2_allocate_snapshot"); }
    for (int b = 0; b <= (int)GPT2_MASTER_WEIGHTS; b++) {
        GPT2Block block = (GPT2Block)b;
        size_t bytes = gpt2_snapshot_part(model, block);
        if (bytes > 0) { snapshot_copy(model, gpt2_snapshot_block(model, block), gpt2_block(model, block), bytes); }
    }
    TRY(status_now());
    model->snapshot_taken = 1;
    return gpt2_synchronize(model);
}

Status gpt2_read_snapshot(GPT2* model, void* host, GPT2Block block, size_t offset, size_t bytes) {
    status_clear();
    if (!model->snapshot_taken || block == GPT2_GRADIENTS) { return status_fail("no snapshot of it has been taken"); }
    return gpt2_copy_runs(model, block, gpt2_snapshot_block(model, block), (char*)host, offset, bytes, copy_host_out);
}

// ----------------------------------------------------------------------------
// The search for the first number that is not finite, through all tensors in the order in which a step computes them. Each
// function returns 1 once it is found.

typedef struct {
    GPT2* model;
    const float *loss, *norm; // of the step, where gpt2_scan reads them
    char* text;               // (size) the name of the tensor: "forward: fch of layer 3"
    size_t size;
} FaultSearch;

// Scans a tensor, or a layer of one (layer < 0: it has none).
static inline int fault_search_scan_(FaultSearch* s, const char* before, const char* name, const char* link, int layer,
                                     const void* data, size_t count, size_t element) {
    if (data == NULL || count == 0 || !gpt2_scan(s->model, data, count, element)) { return 0; }
    int length = snprintf(s->text, s->size, "%s%s", before, name);
    if (layer >= 0) { snprintf(s->text + length, s->size - (size_t)length, "%s %d", link, layer); }
    return 1;
}

// One layer of row i of a block; a tensor without layers is its layer 0. Of a sharded block, what this process has of it.
static inline int fault_search_parameter_(FaultSearch* s, const char* before, GPT2Block block, int i, size_t layer) {
    const GPT2Parameter* p = &s->model->info.table[i];
    size_t element = gpt2_element(&s->model->info, block);
    size_t offset = layout_offset(&s->model->layout, i, layer), end = offset + p->rows * p->cols;
    int whole = !gpt2_is_sharded(&s->model->info, block), found = 0;
    const char* data = gpt2_block(s->model, block);
    if (data == NULL || layer >= p->layers) { return 0; }
    if (block == GPT2_MOMENTS2 && layout_is_muon(&s->model->layout, i)) { return 0; }
    for (LayoutRun run; offset < end && !found; offset += run.count) {
        run = layout_run_at(&s->model->layout, offset, end - offset);
        if (!whole && run.rank != s->model->info.rank) { continue; }
        found = fault_search_scan_(s, before, p->name, ", layer", p->layers > 1 ? (int)layer : -1,
                                   data + gpt2_run_offset(&s->model->info, block, run) * element, run.count, element);
    }
    return found;
}

// A whole block, the tensors of all layers one after the other
static inline int fault_search_block_(FaultSearch* s, const char* before, GPT2Block block) {
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        for (size_t layer = 0; layer < s->model->info.table[i].layers; layer++) {
            if (fault_search_parameter_(s, before, block, i, layer)) { return 1; }
        }
    }
    return 0;
}

// Gradients of rows `first` to end-1 of the table in a layer, the last one first, as the backward pass computes them
static inline int fault_search_gradients_of_(FaultSearch* s, int first, int end, size_t layer) {
    int found = 0;
    while (end-- > first && !found) {
        found = fault_search_parameter_(s, "backward: gradient of ", GPT2_GRADIENTS, end, layer);
    }
    return found;
}

// All gradients in the order of the backward pass: the final LayerNorm, the layers from the last to the first, the embeddings.
static inline int fault_search_gradients_(FaultSearch* s) {
    enum { LAYERS = PARAMETER_ln1w, FINAL = PARAMETER_lnfw };
    int found = fault_search_gradients_of_(s, FINAL, NUM_PARAMETER_TENSORS, 0);
    for (size_t layer = s->model->info.table[LAYERS].layers; layer-- > 0 && !found;) {
        found = fault_search_gradients_of_(s, LAYERS, FINAL, layer);
    }
    return found || fault_search_gradients_of_(s, 0, LAYERS, 0) ||
           fault_search_scan_(s, "backward: ", "norm of the gradients, each of which is finite", "", -1, s->norm, 1,
                              sizeof(float));
}

// Whether the last pass trained in fp8, which quantises these where they are computed, and has scratch in their place
static inline int fault_search_quantised_(const FaultSearch* s, int i) {
    const GPT2Info* info = &s->model->info;
    const int training = info->last_pass == PASS_FORWARD || info->last_pass == PASS_BACKWARD;
    return info->settings.fp8 && training &&
           (i == ACTIVATION_ln1 || i == ACTIVATION_ln2 || i == ACTIVATION_fch_gelu || i == ACTIVATION_lnf ||
            i == ACTIVATION_output);
}

// One layer of row i of the activations, as far as the last batch filled it
static inline int fault_search_activation_(FaultSearch* s, int i, size_t layer, int named) {
    if (fault_search_quantised_(s, i)) { return 0; }
    const GPT2Activation* row = &s->model->plan.activations[i];
    size_t element = row->type == ACTIVATION_real ? s->model->info.weight_bytes : sizeof(float), offset = 0;
    size_t allocated = (size_t)s->model->info.B * (size_t)s->model->info.T;
    size_t tokens = (size_t)s->model->info.last_B * (size_t)s->model->info.last_T;
    for (int k = 0; k < i; k++) { offset += s->model->plan.activations[k].bytes; }
    return fault_search_scan_(s, "forward: ", row->name, " of layer", named ? (int)layer : -1,
                              (const char*)s->model->acts_memory + offset + layer * row->count * element,
                              row->count / allocated * tokens, element);
}

// The activations in the order of the forward pass. Those that are computed again instead of kept hold another layer's
// numbers: whatever is wrong in them is wrong in what they are computed from, or in the next tensor.
static inline int fault_search_activations_(FaultSearch* s) {
    size_t L = (size_t)s->model->info.config.num_layers;
    LastPass last = s->model->info.last_pass;
    if (last == PASS_NONE) { return 0; }
    int found = fault_search_activation_(s, ACTIVATION_encoded, 0, 0);
    for (size_t layer = 0; layer < L; layer++) {
        for (int i = ACTIVATION_encoded + 1; i < ACTIVATION_lnf && !found; i++) {
            found = s->model->plan.activations[i].layers == L && fault_search_activation_(s, i, layer, 1);
        }
    }
    for (int i = ACTIVATION_lnf; i < ACTIVATION_losses && !found; i++) { found = fault_search_activation_(s, i, 0, 0); }
    return found || (last != PASS_BACKWARD && fault_search_activation_(s, ACTIVATION_output, 0, 0)) ||
           ((last == PASS_VALIDATE || last == PASS_BACKWARD) && fault_search_activation_(s, ACTIVATION_losses, 0, 0));
}

// gpt2_find_non_finite
static inline void gpt2_search(GPT2* model, const float* loss, const float* norm, char* text, size_t size) {
    FaultSearch search = {model, loss, norm, text, size}, *s = &search;
    text[0] = '\0';
    (void)(fault_search_block_(s, "weights: ", GPT2_WEIGHTS) ||
           fault_search_block_(s, "weights: master of ", GPT2_MASTER_WEIGHTS) || fault_search_activations_(s) ||
           fault_search_scan_(s, "forward: ", "loss of the step", "", -1, s->loss, 1, sizeof(float)) ||
           fault_search_gradients_(s) || fault_search_block_(s, "update: first moment of ", GPT2_MOMENTS1) ||
           fault_search_block_(s, "update: second moment of ", GPT2_MOMENTS2));
}

#endif
#endif
