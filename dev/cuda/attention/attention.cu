// The variants of attention that train, with their kernels: an object of the programs that train or generate, and of
// libattention.so.
#include "attention.cuh"
#include "build/attention_variants.h" // those of attention/choice.h's rules, or of ATTENTION_FORWARD and _BACKWARD: X(variant)

#define ATTENTION_VARIANT(v) {#v, v::forward_configs},
static constexpr AttentionForwardVariant attention_forward_table[] = {ATTENTION_FORWARD_VARIANTS(ATTENTION_VARIANT)};
#undef ATTENTION_VARIANT
#define ATTENTION_VARIANT(v) {#v, v::backward_configs},
static constexpr AttentionBackwardVariant attention_backward_table[] = {ATTENTION_BACKWARD_VARIANTS(ATTENTION_VARIANT)};
#undef ATTENTION_VARIANT
constexpr Variants<AttentionForwardVariant> attention_forward_variants(attention_forward_table);
constexpr Variants<AttentionBackwardVariant> attention_backward_variants(attention_backward_table);

// ----------------------------------------------------------------------------
// Compile-time checks: every variant can train, and has the configurations that the rules name, which serve documents.

template <class Variant, size_t N, size_t M>
constexpr bool attention_rules_hold(const AttentionRule (&rules)[N], const Variant (&variants)[M]) {
    for (const AttentionRule& r : rules) {
        for (const Variant& v : variants) {
            if (!same_text(r.variant, v.name)) { continue; }
            const typename Variant::Config* c = attention_config(v, r.config, r.HS, SIZE_MAX);
            if (r.config && !c) { return false; }
            if (c && !c->launch_documents) { return false; }
        }
    }
    return true;
}
template <class Variant, size_t M> constexpr bool attention_all_launch(const Variant (&variants)[M]) {
    for (const Variant& v : variants) {
        for (const typename Variant::Config& c : v) {
            if (c.launch == nullptr) { return false; }
        }
    }
    return true;
}

static_assert(attention_all_launch(attention_forward_table),
              "this ATTENTION_FORWARD needs a scratch in forward, in this precision: it races, but it cannot train");
static_assert(attention_rules_hold(attention_forward_rules, attention_forward_table),
              "attention/choice.h names a configuration that forward_configs do not have, or that serves no documents");
static_assert(
    attention_rules_hold(attention_backward_rules, attention_backward_table),
    "attention/choice.h names a configuration that backward_configs do not have, or that serves no documents");
