/*
The fusions that cuBLASLt itself offers, each a configuration named after what it uses:

    residual       beta=1 BIAS    D = AB + C, with the skip connection as C; then LayerNorm alone
    fc             GELU_AUX_BIAS  both pre and act from the GEMM
    dgelu          DGELU          gelu' in the GEMM; column sums and act in kernels of their own, as train_gpt2cu -ge 2

qkv's BIAS is the baseline's (matmul_cublaslt.cu); LayerNorm and cross entropy have no epilogue. The library's column sums,
DGELU_BGRAD and BGRADB, are not used: it overwrites a bias gradient, which is added to.
*/
#ifndef MATMUL_CUBLASLT_EPILOGUE_CU
#define MATMUL_CUBLASLT_EPILOGUE_CU

#include "matmul.h"

#include "llmc/cuda/column_sum.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/layernorm_kernels.cuh"
#include "llmc/cuda/matmul.cuh"

namespace cublaslt_epilogue {

static inline Matmul* library_on(MatmulContext* context, cudaStream_t stream) {
    context->library->stream = stream;
    return context->library;
}

inline void residual(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_residual_forward(library_on(context, stream), t->residual, t->skip, t->inp, t->weight, t->bias, s.R, s.IN,
                            s.OUT);
    layernorm_forward(t->ln, t->mean, t->rstd, t->residual, t->ln_weight, t->ln_bias, s.R, s.OUT, stream);
}

inline void fc(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_gelu_forward(library_on(context, stream), t->act, t->pre, t->inp, t->weight, t->bias, s.R, s.IN, s.OUT);
}

inline size_t dgelu_scratch(MatmulSizes s) { return column_sum_scratch_bytes(s.IN); }
inline void dgelu(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_backward_input(library_on(context, stream), t->dpre, t->dout, t->weight, t->pre, s.R, s.IN, s.OUT);
    column_sum(t->dbias, t->dpre, (float*)context->scratch, s.R, s.IN, stream);
    if (t->act != NULL) { gelu_forward(t->act, t->pre, (size_t)s.R * s.IN, stream); }
}

static constexpr MatmulConfig matmul_configs[] = {
    {"beta=1 BIAS", MATMUL_RESIDUAL, matmul_serves_all, matmul_no_scratch, residual},
    {"GELU_AUX_BIAS", MATMUL_FC, matmul_serves_all, matmul_no_scratch, fc},
    {"DGELU", MATMUL_DGELU, matmul_serves_all, dgelu_scratch, dgelu},
};

} // namespace cublaslt_epilogue

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, cublaslt_epilogue::matmul_configs); }
#endif

#endif
