// The GEMM and the attention of --doctor, dev/cuda/doctor.cuh, on a GPU that computes rightly, and with results that are wrong
// only beyond their first tile: kernels compute up to 128 rows or columns in one tile, and a fault may be in any. Needs a GPU.
#include "dev/cuda/attention/attention.cuh"
#include "llmc/cuda/matmul.cuh"

static enum Wrong { NOTHING, ROWS, COLUMNS, OUT, GRADIENT } wrong;

// Zeroes x (rows, columns) from this row and this column on.
static void zero_from(int row, int column, floatX* x, int rows, int columns) {
    if (row >= rows || column >= columns) { return; }
    cuda_check(cudaMemset2D(x + (size_t)row * columns + column, columns * sizeof(floatX), 0,
                            (columns - column) * sizeof(floatX), rows - row));
}

static void wrong_matmul(Matmul* mm, floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int N,
                         int C, int OC) {
    matmul_forward(mm, out, inp, weight, bias, N, C, OC);
    if (wrong == ROWS) { zero_from(64, 0, out, N, OC); }
    if (wrong == COLUMNS) { zero_from(0, 128, out, N, OC); }
}
static void wrong_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, floatX* out, const float* l,
                           const float* m, void* scratch, int B, int T, int NH, int HS, cudaStream_t stream) {
    attention_backward(dqkv, dout, qkv, out, l, m, scratch, B, T, NH, HS, stream);
    for (int b = 0; b < B; b++) {
        if (wrong == OUT) { zero_from(128, 0, out + (size_t)b * T * NH * HS, T, NH * HS); }
        if (wrong == GRADIENT) { zero_from(128, 0, dqkv + (size_t)b * T * 3 * NH * HS, T, 3 * NH * HS); }
    }
}
#define matmul_forward wrong_matmul
#define attention_backward wrong_backward
#include "dev/cuda/doctor.cuh"
#include "dev/test/fixtures/unit.h"

int main(void) {
    for (Wrong now : {NOTHING, ROWS, COLUMNS, OUT, GRADIENT}) {
        Doctor gemm = {}, attention = {};
        wrong = now;
        doctor_gemm(&gemm);
        doctor_attention(&attention);
        CHECK(gemm.rows == 1 && gemm.faults == (now == ROWS || now == COLUMNS));
        CHECK(attention.rows == 2 && attention.faults == (now == OUT || now == GRADIENT));
    }
    return unit_end();
}
