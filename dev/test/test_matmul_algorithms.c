// The table of llmc/matmul_algorithms.h: which GEMMs it speaks of, and that no row hides another.
#include "llmc/matmul_algorithms.h"
#include "unit.h"

int main(void) {
    const size_t rows = sizeof(matmul_algorithms) / sizeof(matmul_algorithms[0]);
    for (size_t i = 0; i < rows; i++) {
        const MatmulAlgorithm* a = &matmul_algorithms[i];
        CHECK(matmul_algorithm(a->m, MATMUL_ALGORITHM_ROWS, a->k, a->transpose_a, 0) == a);
        CHECK(matmul_algorithm(a->m, MATMUL_ALGORITHM_ROWS - 1, a->k, a->transpose_a, 0) == NULL); // decoding
        CHECK(matmul_algorithm(a->m, MATMUL_ALGORITHM_ROWS, a->k, a->transpose_a, 1) == NULL);     // a weight gradient
        CHECK(matmul_algorithm(a->m + 8, MATMUL_ALGORITHM_ROWS, a->k, a->transpose_a, 0) == NULL);
        CHECK(matmul_algorithm(a->m, MATMUL_ALGORITHM_ROWS, a->k + 8, a->transpose_a, 0) == NULL);
        CHECK(a->tile > 0 && a->cluster > 0 && a->custom >= 0);
    }
    return unit_end();
}
