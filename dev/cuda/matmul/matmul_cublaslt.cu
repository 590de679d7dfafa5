/*
cuBLASLt's GEMMs through llmc/cuda/matmul.cuh, which chooses their algorithms, and separate kernels of llmc: the baseline that
every other variant is measured against, and what trains where matmul/choice.h names no other. Of the library's epilogues only
the bias is used.
*/
#ifndef MATMUL_CUBLASLT_CU
#define MATMUL_CUBLASLT_CU

#include "matmul.h"

#include "llmc/cuda/classifier.cuh"
#include "llmc/cuda/column_sum.cuh"
#include "llmc/cuda/gelu.cuh"
#include "llmc/cuda/layernorm_kernels.cuh"
#include "llmc/cuda/matmul.cuh"

namespace cublaslt {

static inline Matmul* library_on(MatmulContext* context, cudaStream_t stream) {
    context->library->stream = stream;
    return context->library;
}
// Bytes of a tensor in scratch, rounded up so that what follows is aligned to 256.
static inline size_t tensor_bytes(int rows, int columns) {
    return CEIL_DIV((size_t)rows * columns * sizeof(floatX), (size_t)256) * 256;
}

inline void qkv(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_forward(library_on(context, stream), t->out, t->inp, t->weight, t->bias, s.R, s.IN, s.OUT);
}

inline size_t residual_scratch(MatmulSizes s) { return tensor_bytes(s.R, s.OUT); }
inline void residual(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    floatX* branch = (floatX*)context->scratch; // (R,OUT)
    matmul_forward(library_on(context, stream), branch, t->inp, t->weight, t->bias, s.R, s.IN, s.OUT);
    residual_layernorm_forward(t->residual, t->ln, t->mean, t->rstd, t->skip, branch, t->ln_weight, t->ln_bias, s.R,
                               s.OUT, stream);
}

inline void fc(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_forward(library_on(context, stream), t->pre, t->inp, t->weight, t->bias, s.R, s.IN, s.OUT);
    gelu_forward(t->act, t->pre, (size_t)s.R * s.OUT, stream);
}

inline void classifier(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_forward(library_on(context, stream), t->logits, t->inp, t->weight, NULL, s.R, s.IN, s.OUT);
    fused_classifier(t->logits, t->losses, t->targets, t->gradient_scale, s.R, s.vocab_size, s.OUT, stream);
}

inline size_t dgelu_scratch(MatmulSizes s) { return column_sum_scratch_bytes(s.IN); }
inline void dgelu(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_backward_input(library_on(context, stream), t->dpre, t->dout, t->weight, NULL, s.R, s.IN, s.OUT);
    gelu_backward(t->dpre, t->dbias, t->act, t->pre, (float*)context->scratch, s.R, s.IN, stream);
}

inline void input(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_backward_input(library_on(context, stream), t->dinp, t->dout, t->weight, NULL, s.R, s.IN, s.OUT);
}

inline void weight(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    matmul_backward_weight(library_on(context, stream), t->dweight, t->dout, t->inp, t->accumulate, s.R, s.IN, s.OUT);
}

static constexpr MatmulConfig matmul_configs[] = {
    {"separate", MATMUL_QKV, matmul_serves_all, matmul_no_scratch, qkv},
    {"separate", MATMUL_RESIDUAL, matmul_serves_all, residual_scratch, residual},
    {"separate", MATMUL_FC, matmul_serves_all, matmul_no_scratch, fc},
    {"separate", MATMUL_CLASSIFIER, matmul_serves_all, matmul_no_scratch, classifier},
    {"separate", MATMUL_DGELU, matmul_serves_all, dgelu_scratch, dgelu},
    {"separate", MATMUL_INPUT, matmul_serves_all, matmul_no_scratch, input},
    {"separate", MATMUL_WEIGHT, matmul_serves_all, matmul_no_scratch, weight},
};

} // namespace cublaslt

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, cublaslt::matmul_configs); }
#endif

#endif
