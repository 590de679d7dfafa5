/*
The main() of a variant of attention, whose name is its file's. attention/bench.cu, which defines it, is compiled once for
each precision, into build/attention_bench_<precision>.o, and linked to every variant, so that a variant compiles its own
kernels alone.
*/
#ifndef ATTENTION_BENCH_H
#define ATTENTION_BENCH_H

#include "attention.h"

// compute_capability: the least that the variant runs on, such as 80; 0 if any will do.
int attention_main(int argc, char** argv, const AttentionForwardVariant& variant, int compute_capability);
int attention_main(int argc, char** argv, const AttentionBackwardVariant& variant, int compute_capability);

template <class Config, size_t N>
static inline int attention_main(int argc, char** argv, const Config (&table)[N], int compute_capability = 0) {
    constexpr bool forward = std::is_same<Config, AttentionForwardConfig>::value;
    const std::string name = variant_of(__BASE_FILE__, forward ? "attention_forward_" : "attention_backward_");
    return attention_main(argc, argv, AttentionVariant<Config>(name.c_str(), table), compute_capability);
}

#endif
