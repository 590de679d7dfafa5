/*
The main() of a variant of decode: what decode_bench.cu offers. That file is compiled once for each precision, into
build/decode_bench_<precision>.o, and linked to every variant, so that a variant compiles its own kernels alone.
*/
#ifndef DECODE_BENCH_H
#define DECODE_BENCH_H

#include "attention_decode.h"

int attention_decode_main(int argc, char** argv, const char* variant, const AttentionDecodeConfig* table,
                          size_t num_configs);
template <size_t N> static inline int attention_decode_main(int argc, char** argv, const char* variant,
                                                            const AttentionDecodeConfig (&table)[N]) {
    return attention_decode_main(argc, argv, variant, table, N);
}

#endif
