/*
cuBLASLt's algorithms for GEMMs of training that are faster than the library's first choice at the power limit, as measured by
build/gemm_algorithms (dev/bench/gemm_algorithms.cu) on an H200; dev/bench/nvidia-h200/gemm_algorithms.csv has the results for
the three larger models. D (m,n), column-major; 16-bit operands; no split-K, so that every tile gives the bits of the first
choice. A library or GPU that cannot run an algorithm keeps its first choice.
*/
#ifndef LLMC_CUDA_MATMUL_ALGORITHMS_H
#define LLMC_CUDA_MATMUL_ALGORITHMS_H

#include <stddef.h>

typedef struct {
    int m, n, k; // 0: rows of tokens, which are n or, of weight gradients, k
    int transpose_a, transpose_b;
    int tile, cluster, custom; // CUBLASLT_ALGO_CONFIG_TILE_ID, _CLUSTER_SHAPE_ID, _CUSTOM_OPTION
} MatmulAlgorithm;

enum { MATMUL_ALGORITHM_ID = 66, MATMUL_ALGORITHM_ROWS = 8192 }; // CUBLASLT_ALGO_CONFIG_ID on Hopper; the fewest rows

// Of each model: qkv, attention projection, fcproj; input gradients of attention projection, qkv, fc, classifier; weight
// gradients
static const MatmulAlgorithm matmul_algorithms[] = {
    // 124M
    {2304, 0, 768, 1, 0, 29, 5, 1},
    {768, 0, 768, 1, 0, 29, 5, 1},
    {768, 0, 3072, 1, 0, 20, 3, 1},
    {768, 0, 768, 0, 0, 29, 3, 1},
    {768, 0, 2304, 0, 0, 29, 3, 1},
    {768, 0, 3072, 0, 0, 29, 3, 1},
    // 355M
    {3072, 0, 1024, 1, 0, 20, 3, 1},
    {1024, 0, 1024, 1, 0, 29, 3, 1},
    {1024, 0, 4096, 1, 0, 426, 3, 7},
    {1024, 0, 1024, 0, 0, 29, 3, 3},
    {1024, 3072, 0, 0, 1, 32, 3, 5},
    {1024, 4096, 0, 0, 1, 24, 2, 6},
    {4096, 1024, 0, 0, 1, 23, 2, 5},
    // 774M
    {3840, 0, 1280, 1, 0, 20, 3, 1},
    {1280, 0, 1280, 1, 0, 29, 3, 1},
    {1280, 0, 1280, 0, 0, 29, 3, 1},
    {1280, 0, 3840, 0, 0, 24, 5, 7},
    {1280, 0, 5120, 0, 0, 24, 5, 7},
    {1280, 0, 50304, 0, 0, 248, 5, 6},
    {1280, 5120, 0, 0, 1, 411, 3, 5},
    {5120, 1280, 0, 0, 1, 212, 5, 6},
    {1280, 50304, 0, 0, 1, 24, 5, 7},
    // 1558M
    {4800, 0, 1600, 1, 0, 29, 5, 3},
    {1600, 0, 1600, 1, 0, 247, 5, 1},
    {1600, 0, 6400, 1, 0, 181, 3, 4},
    {1600, 0, 1600, 0, 0, 30, 5, 2},
    {1600, 0, 4800, 0, 0, 247, 5, 2},
    {1600, 0, 6400, 0, 0, 247, 5, 2},
    {1600, 0, 50304, 0, 0, 30, 3, 2},
    {1600, 4800, 0, 0, 1, 194, 2, 6},
};

// Whether a size is the table's
static inline int matmul_algorithm_has_(int table, int size) {
    return table == 0 ? size >= MATMUL_ALGORITHM_ROWS : size == table;
}

// That of a GEMM of these sizes; NULL: the library's first choice
static inline const MatmulAlgorithm* matmul_algorithm(int m, int n, int k, int transpose_a, int transpose_b) {
    for (size_t i = 0; i < sizeof(matmul_algorithms) / sizeof(matmul_algorithms[0]); i++) {
        const MatmulAlgorithm* a = &matmul_algorithms[i];
        if (a->transpose_a == transpose_a && a->transpose_b == transpose_b && matmul_algorithm_has_(a->m, m) &&
            matmul_algorithm_has_(a->n, n) && matmul_algorithm_has_(a->k, k)) {
            return a;
        }
    }
    return NULL;
}

#endif
