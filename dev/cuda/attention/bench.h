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

template <size_t N> static inline int
attention_forward_main(int argc, char** argv, const AttentionForwardConfig (&table)[N], int compute_capability = 0) {
    const std::string name = variant_of(__BASE_FILE__, "attention_forward_");
    return attention_main(argc, argv, AttentionForwardVariant(name.c_str(), table), compute_capability);
}
template <size_t N> static inline int
attention_backward_main(int argc, char** argv, const AttentionBackwardConfig (&table)[N], int compute_capability = 0) {
    const std::string name = variant_of(__BASE_FILE__, "attention_backward_");
    return attention_main(argc, argv, AttentionBackwardVariant(name.c_str(), table), compute_capability);
}

#endif
