// The table of llmc/cuda/matmul_algorithms.h: which GEMMs it speaks of, and that no row hides another.
#include "llmc/cuda/matmul_algorithms.h"
#include "dev/test/fixtures/unit.h"

// The table's answer for a GEMM of a row's sizes, with so many rows of tokens, and `more` in its other sizes
static const MatmulAlgorithm* answer(const MatmulAlgorithm* a, int rows, int more) {
    return matmul_algorithm(a->m + more, a->n ? a->n + more : rows, a->k ? a->k + more : rows, a->transpose_a,
                            a->transpose_b);
}

int main(void) {
    const size_t rows = sizeof(matmul_algorithms) / sizeof(matmul_algorithms[0]);
    for (size_t i = 0; i < rows; i++) {
        const MatmulAlgorithm* a = &matmul_algorithms[i];
        CHECK(a->m > 0 && (a->n == 0) != (a->k == 0)); // rows of tokens: n or, of weight gradients, k
        CHECK(a->transpose_b == (a->k == 0) && !(a->transpose_a && a->transpose_b));
        CHECK(answer(a, MATMUL_ALGORITHM_ROWS, 0) == a);
        CHECK(answer(a, MATMUL_ALGORITHM_ROWS - 1, 0) == NULL); // decoding
        CHECK(answer(a, MATMUL_ALGORITHM_ROWS, 8) == NULL);
        CHECK(matmul_algorithm(a->m, MATMUL_ALGORITHM_ROWS, MATMUL_ALGORITHM_ROWS, a->transpose_a, !a->transpose_b) ==
              NULL);
        CHECK(a->tile > 0 && a->cluster > 0 && a->custom >= 0);
    }
    return unit_end();
}
