/*
The main() of a variant of the matmul groups, defined in matmul_bench.cu. That file is compiled once for each precision,
into build/matmul_bench_<precision>.o, and linked to every variant, so that a variant compiles its own kernels alone.
*/
#ifndef MATMUL_BENCH_H
#define MATMUL_BENCH_H

#include "matmul.h"

// compute_capability: the least that the variant runs on, such as 90; 0 if any will do.
int matmul_main(int argc, char** argv, const char* variant, const MatmulConfig* table, size_t num_configs,
                int compute_capability);
template <size_t N> static inline int matmul_main(int argc, char** argv, const char* variant,
                                                  const MatmulConfig (&table)[N], int compute_capability = 0) {
    return matmul_main(argc, argv, variant, table, N, compute_capability);
}

#endif
