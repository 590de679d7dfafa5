/*
The main() of a variant of decode, whose name is its file's. decode/bench.cu, which defines it, is compiled once for each
precision, into build/decode_bench_<precision>.o, and linked to every variant, so that a variant compiles its own kernels
alone.
*/
#ifndef DECODE_BENCH_H
#define DECODE_BENCH_H

#include "attention_decode.h"

typedef AttentionVariant<AttentionDecodeConfig> AttentionDecodeVariant;

int attention_decode_main(int argc, char** argv, const AttentionDecodeVariant& variant);
template <size_t N>
static inline int attention_decode_main(int argc, char** argv, const AttentionDecodeConfig (&table)[N]) {
    const std::string name = variant_of(__BASE_FILE__, "attention_decode_");
    return attention_decode_main(argc, argv, AttentionDecodeVariant(name.c_str(), table));
}

#endif
