/*
The attention that a program trains with: the variants it is built with, and the launchers of those that attention/choice.h
names for a GPU, a precision and a shape. The contract is attention.h's; what is raced in dev/cuda is what trains here.

    make train_gpt2cu ATTENTION_FORWARD=flash2 ATTENTION_BACKWARD=mma      builds with these variants alone, by name

A program is linked with attention.cu's object, where their kernels are compiled once for all programs of a precision.
attention_force() gives the two variants to take, of these or of the program's own: dev/test/whole/test_gpu_pairs.cu tests all
pairs of those that can train so.

Launchers record errors and return (llmc/base/utils.h): no GPU, a head size or GPU that nothing serves, a failed launch.
*/
#ifndef ATTENTION_CUH
#define ATTENTION_CUH

#include "attention.h"
#include "llmc/cuda/column_sum.cuh"

#define ATTENTION_TEXT_(x) #x
#define ATTENTION_TEXT(x) ATTENTION_TEXT_(x)

extern const Variants<AttentionForwardVariant> attention_forward_variants;
extern const Variants<AttentionBackwardVariant> attention_backward_variants;

// ----------------------------------------------------------------------------
// The choice

template <class Variant>
static inline const Variant* attention_find(const Variants<Variant>& variants, const char* name) {
    for (const Variant& v : variants) {
        if (strcmp(v.name, name) == 0) { return &v; }
    }
    status_fail("attention: this program has no variant %s that can train in " PRECISION_NAME, name);
    return nullptr;
}

// The variants of a direction, and the one requested by name, at build time or by attention_force(); nullptr: the default of
// attention/choice.h
template <class Variant> struct AttentionHeld {
    AttentionDirection direction;
    const Variants<Variant>& variants;
    const Variant* forced = nullptr;
};
static AttentionHeld<AttentionForwardVariant> attention_forward_held = {
    ATTENTION_FORWARD_PASS, attention_forward_variants,
#ifdef ATTENTION_FORWARD
    attention_find(attention_forward_variants, ATTENTION_TEXT(ATTENTION_FORWARD))
#endif
};
static AttentionHeld<AttentionBackwardVariant> attention_backward_held = {
    ATTENTION_BACKWARD_PASS, attention_backward_variants,
#ifdef ATTENTION_BACKWARD
    attention_find(attention_backward_variants, ATTENTION_TEXT(ATTENTION_BACKWARD))
#endif
};
// Selects these variants from the next launch on; nullptr: the default of attention/choice.h. Their scratch differs: call
// attention_backward_scratch_bytes() again.
static inline void attention_force(const AttentionForwardVariant* forward, const AttentionBackwardVariant* backward) {
    attention_forward_held.forced = forward, attention_backward_held.forced = backward;
}

template <class Config> struct AttentionChoice {
    const char* variant;  // "" if nothing serves the shape; an error is recorded
    const Config* config; // nullptr in that case
};

// gpu: nullptr for the current one
template <class Variant> static inline AttentionChoice<typename Variant::Config>
attention_choice(const AttentionHeld<Variant>& held, const DeviceCode* gpu, int B, int T, int NH, int HS) {
    DeviceCode current;
    if (!gpu && device_code(&current) != STATUS_OK) { return {"", nullptr}; }
    const DeviceCode& g = gpu ? *gpu : current;
    const AttentionRule* rule = attention_rule(held.direction, held.forced ? held.forced->name : nullptr,
                                               sizeof(floatX) == sizeof(float), g.capability, B, T, NH, HS);
    if (!held.forced && !rule) {
        status_fail("attention: no variant serves head size %d in " PRECISION_NAME " on compute capability %d.%d", HS,
                    g.capability / 10, g.capability % 10);
        return {"", nullptr};
    }
    const Variant* v = held.forced ? held.forced : attention_find(held.variants, rule->variant);
    if (!v) { return {"", nullptr}; }
    const typename Variant::Config* config = attention_config(*v, rule ? rule->config : nullptr, HS, g.shared_limit);
    if (!config) {
        status_fail("attention: %s has no configuration for head size %d that fits the %zu bytes of shared memory of "
                    "this GPU",
                    v->name, HS, g.shared_limit);
        return {"", nullptr};
    }
    return {v->name, config};
}
static inline AttentionChoice<AttentionForwardConfig> attention_forward_choice(int B, int T, int NH, int HS) {
    return attention_choice(attention_forward_held, nullptr, B, T, NH, HS);
}
static inline AttentionChoice<AttentionBackwardConfig> attention_backward_choice(int B, int T, int NH, int HS,
                                                                                 const DeviceCode* gpu = nullptr) {
    return attention_choice(attention_backward_held, gpu, B, T, NH, HS);
}

// The names of the variants that serve the shape on the current GPU; "" and an error if none does
static inline const char* attention_forward_name(int B, int T, int NH, int HS) {
    return attention_forward_choice(B, T, NH, HS).variant;
}
static inline const char* attention_backward_name(int B, int T, int NH, int HS) {
    return attention_backward_choice(B, T, NH, HS).variant;
}

// ----------------------------------------------------------------------------
// The launchers

// Whether the addresses, or-ed together, are aligned as the contract wants it; an error if they are not
static inline bool attention_aligned(uintptr_t tensors, uintptr_t scratch = 0) {
    if (tensors % 16 == 0 && scratch % 256 == 0) { return true; }
    status_fail("attention: qkv, out and their gradients must be aligned to 16 bytes, scratch to 256");
    return false;
}

// Whether the configuration serves rows with these starts, or without if nullptr; an error if it does not. All that
// attention/choice.h chooses do: a variant that was asked for by name may not.
template <class Config> static inline bool attention_serves(const AttentionChoice<Config>& choice, const int* starts) {
    if (choice.config && starts && !choice.config->launch_documents) {
        status_fail("attention: %s has no kernel for rows of several documents", choice.variant);
        return false;
    }
    return choice.config != nullptr;
}

// out (B,T,NH,HS), l and m (B,NH,T) from qkv (B,T,3,NH,HS) and starts (B,T), where the document of each token begins
// (attention.h); nullptr: a row is one document
static inline void attention_forward_documents(floatX* out, float* l, float* m, const floatX* qkv, const int* starts,
                                               int B, int T, int NH, int HS, cudaStream_t stream) {
    const AttentionChoice<AttentionForwardConfig> choice = attention_forward_choice(B, T, NH, HS);
    if (!attention_serves(choice, starts) || !attention_aligned((uintptr_t)out | (uintptr_t)qkv)) { return; }
    if (starts) {
        choice.config->launch_documents(out, l, m, qkv, starts, B, T, NH, HS, stream);
    } else {
        choice.config->launch(out, l, m, qkv, B, T, NH, HS, stream);
    }
}
static inline void attention_forward(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                                     cudaStream_t stream) {
    attention_forward_documents(out, l, m, qkv, nullptr, B, T, NH, HS, stream);
}

// Bytes of scratch; SIZE_MAX if the size does not fit. 0 and an error if nothing serves. gpu: nullptr for the current one
static inline size_t attention_backward_scratch_bytes(int B, int T, int NH, int HS, const DeviceCode* gpu = nullptr) {
    const AttentionBackwardConfig* config = attention_backward_choice(B, T, NH, HS, gpu).config;
    return config ? config->scratch_bytes(B, T, NH, HS) : 0;
}
// The same for an upper bound of the rows of dq_sums that the functions below write
static inline int attention_dq_sum_rows(int B, int T, int NH, int HS, const DeviceCode* gpu = nullptr) {
    const AttentionBackwardConfig* config = attention_backward_choice(B, T, NH, HS, gpu).config;
    return !config ? 0 : config->sum_rows ? std::max(config->sum_rows(B, T), COLUMN_SUM_BLOCKS) : COLUMN_SUM_BLOCKS;
}

// dqkv (B,T,3,NH,HS) from dout and the forward's inputs and outputs; scratch of the size that the function above returns. And,
// unless it is nullptr, dq_sums (rows returned, NH*HS), fp32, aligned to 16 bytes: they add up to the column sums of dQ. A
// configuration that does not write them is followed by a pass over dQ. starts (B,T) as in forward, or nullptr.
static inline int attention_backward_documents_with_sums(floatX* dqkv, float* dq_sums, const floatX* dout,
                                                         const floatX* qkv, const floatX* out, const float* l,
                                                         const float* m, const int* starts, void* scratch, int B, int T,
                                                         int NH, int HS, cudaStream_t stream) {
    const AttentionChoice<AttentionBackwardConfig> choice = attention_backward_choice(B, T, NH, HS);
    const AttentionBackwardConfig* config = choice.config;
    const uintptr_t tensors = (uintptr_t)dqkv | (uintptr_t)dout | (uintptr_t)qkv | (uintptr_t)out | (uintptr_t)dq_sums;
    if (!attention_serves(choice, starts) || !attention_aligned(tensors, (uintptr_t)scratch)) { return 0; }
    if (dq_sums && config->launch_with_sums && !starts) {
        config->launch_with_sums(dqkv, dq_sums, dout, qkv, out, l, m, scratch, B, T, NH, HS, stream);
        return config->sum_rows(B, T);
    }
    if (starts) {
        config->launch_documents(dqkv, dout, qkv, out, l, m, starts, scratch, B, T, NH, HS, stream);
    } else {
        config->launch(dqkv, dout, qkv, out, l, m, scratch, B, T, NH, HS, stream);
    }
    return dq_sums ? column_sum_rows(dq_sums, dqkv, B * T, NH * HS, (size_t)3 * NH * HS, stream) : 0;
}
static inline int attention_backward_with_sums(floatX* dqkv, float* dq_sums, const floatX* dout, const floatX* qkv,
                                               const floatX* out, const float* l, const float* m, void* scratch, int B,
                                               int T, int NH, int HS, cudaStream_t stream) {
    return attention_backward_documents_with_sums(dqkv, dq_sums, dout, qkv, out, l, m, nullptr, scratch, B, T, NH, HS,
                                                  stream);
}
static inline void attention_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                      const float* l, const float* m, void* scratch, int B, int T, int NH, int HS,
                                      cudaStream_t stream) {
    attention_backward_with_sums(dqkv, nullptr, dout, qkv, out, l, m, scratch, B, T, NH, HS, stream);
}
static inline void attention_backward_documents(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                                const float* l, const float* m, const int* starts, void* scratch, int B,
                                                int T, int NH, int HS, cudaStream_t stream) {
    attention_backward_documents_with_sums(dqkv, nullptr, dout, qkv, out, l, m, starts, scratch, B, T, NH, HS, stream);
}

#endif
