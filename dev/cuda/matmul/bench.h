/*
The main() of a variant of the matmul groups, whose name is its file's. matmul/bench.cu, which defines it, is compiled once
for each precision, into build/matmul_bench_<precision>.o, and linked to every variant, so that a variant compiles its own
kernels alone.
*/
#ifndef MATMUL_BENCH_H
#define MATMUL_BENCH_H

#include "matmul.h"
#include "dev/cuda/bench/variants.cuh"

// compute_capability: the least that the variant runs on, such as 90; 0 if any will do.
int matmul_main(int argc, char** argv, const MatmulVariant& variant, int compute_capability);
template <size_t N>
static inline int matmul_main(int argc, char** argv, const MatmulConfig (&table)[N], int compute_capability = 0) {
    const std::string name = variant_of(__BASE_FILE__, "matmul_");
    return matmul_main(argc, argv, MatmulVariant(name.c_str(), table), compute_capability);
}

#endif
