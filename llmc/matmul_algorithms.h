/*
cuBLASLt's algorithms for GEMMs of training that are faster than the library's first choice at the power limit, by
build/gemm_algorithms (dev/bench/gemm_algorithms.cu) on an H200. D (m,n), column-major, with n rows of tokens; 16-bit operands
and output; no split of K, and then any tile gives the bits of the first choice. A library or GPU that cannot run what is named
here keeps its first choice.
*/
#ifndef LLMC_MATMUL_ALGORITHMS_H
#define LLMC_MATMUL_ALGORITHMS_H

#include <stddef.h>

typedef struct {
    int m, k, transpose_a;
    int tile, cluster, custom; // CUBLASLT_ALGO_CONFIG_TILE_ID, _CLUSTER_SHAPE_ID, _CUSTOM_OPTION
} MatmulAlgorithm;

enum { MATMUL_ALGORITHM_ID = 66, MATMUL_ALGORITHM_ROWS = 8192 }; // CUBLASLT_ALGO_CONFIG_ID on Hopper; the fewest rows

static const MatmulAlgorithm matmul_algorithms[] = {
    // 124M: qkv, attention projection, fcproj; input gradients of attention projection, qkv, fc
    {2304, 768, 1, 29, 5, 1}, {768, 768, 1, 29, 5, 1},  {768, 3072, 1, 20, 3, 1},
    {768, 768, 0, 29, 3, 1},  {768, 2304, 0, 29, 3, 1}, {768, 3072, 0, 29, 3, 1},
};

// That of a GEMM of these sizes; NULL: the library's first choice
static inline const MatmulAlgorithm* matmul_algorithm(int m, int n, int k, int transpose_a, int transpose_b) {
    for (size_t i = 0; i < sizeof(matmul_algorithms) / sizeof(matmul_algorithms[0]); i++) {
        const MatmulAlgorithm* a = &matmul_algorithms[i];
        if (n >= MATMUL_ALGORITHM_ROWS && !transpose_b && a->m == m && a->k == k && a->transpose_a == transpose_a) {
            return a;
        }
    }
    return NULL;
}

#endif
