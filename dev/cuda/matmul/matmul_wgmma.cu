/*
The matmul groups on Hopper: each is one GEMM (wgmma_matmul.cuh), whose epilogue does all that a tile allows, and a small kernel
for what needs a whole row or column. Against cublaslt:
- Bias, residual addition, GELU, its gradient and the column sums of dpre cost no pass over the activations: a tile's epilogue
  runs while the other consumer warpgroup multiplies. pre is read once by dgelu, LayerNorm reads one tensor instead of two.
  Where act is kept, fc's epilogue stores the derivative of GELU, three more instructions an element; dgelu's only multiplies.

    group          A (M,K)           B (N,K)          D (M,N)
    forward        inp               W                (R,OUT)
    gradients      dout              W, MN-major      (R,IN)
*/
#ifndef MATMUL_WGMMA_CU
#define MATMUL_WGMMA_CU

#include "matmul.h"
#include "wgmma_matmul.cuh"

#include "llmc/cuda/layernorm_kernels.cuh"

namespace wgmma {

// out (R,OUT) = inp W^T, through F.
template <class F> static Status forward_gemm(floatX* out, floatX* second, const floatX* aux, const MatmulTensors* t,
                                              MatmulSizes s, cudaStream_t stream) {
    typedef MatmulTiles<PingPong128x192x2, false, Elementwise<F>> C;
    const Gemm gemm = {{s.R, s.OUT, s.IN}, t->inp, t->weight, out, second, aux};
    EpilogueInput in = {};
    in.bias = t->bias;
    return launch_gemm<C>(gemm, in, stream);
}
// out (R,IN) = dout W, through F.
template <class T, class F> static Status input_gemm(floatX* out, floatX* second, const floatX* aux,
                                                     float* column_partials, const MatmulTensors* t, MatmulSizes s,
                                                     cudaStream_t stream) {
    typedef MatmulTiles<T, true, Elementwise<F>> C;
    const Gemm gemm = {{s.R, s.IN, s.OUT}, t->dout, t->weight, out, second, aux};
    EpilogueInput in = {};
    in.column_partials = column_partials;
    return launch_gemm<C>(gemm, in, stream);
}

static void residual(MatmulContext*, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    if (forward_gemm<AddBiasAndSkip>(t->residual, nullptr, t->skip, t, s, stream) != STATUS_OK) { return; }
    layernorm_forward(t->ln, t->mean, t->rstd, t->residual, t->ln_weight, t->ln_bias, s.R, s.OUT, stream);
}

static void fc(MatmulContext*, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    if (t->derivative) {
        forward_gemm<BiasGeluDerivative>(t->derivative, t->act, nullptr, t, s, stream);
    } else {
        forward_gemm<BiasGelu>(t->pre, t->act, nullptr, t, s, stream);
    }
}

// Scratch of dgelu: the column sums over each consumer's rows of a tile, as many in the narrow tiles as in the wide ones
static int dgelu_partials(MatmulSizes s) { return CEIL_DIV(s.R, PingPong128x192x2::row_blocks * BLOCK_ROWS); }
static size_t dgelu_scratch_bytes(MatmulSizes s) { return sizeof(float) * dgelu_partials(s) * s.IN; }

static void dgelu(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    float* const partials = (float*)context->scratch;
    typedef PingPong128x192x2 T;
    typedef PingPong128x128x2 Narrow; // a second output leaves too few registers and too little shared memory for 192
    const Status launched =
        t->derivative ? input_gemm<T, TimesDerivative>(t->dpre, nullptr, t->derivative, partials, t, s, stream)
        : t->act      ? input_gemm<Narrow, GeluBackward<true>>(t->dpre, t->act, t->pre, partials, t, s, stream)
                      : input_gemm<T, GeluBackward<false>>(t->dpre, nullptr, t->pre, partials, t, s, stream);
    if (launched != STATUS_OK) { return; }
    column_sum_partials(t->dbias, partials, dgelu_partials(s), s.IN, s.IN, stream);
}

// Tiles are counted by an int, of 64 by 128 the smallest.
static const char* too_many_tiles(MatmulSizes s) {
    const double columns = s.IN > s.OUT ? s.IN : s.OUT;
    return (s.R / 64.0 + 1) * (columns / 128 + 1) > 1e9 ? "its tensors have too many tiles for an int" : nullptr;
}

static constexpr MatmulConfig matmul_configs[] = {
    {"128x192 ping-pong cluster 2", MATMUL_RESIDUAL, too_many_tiles, matmul_no_scratch, residual},
    {"128x192 ping-pong cluster 2", MATMUL_FC, too_many_tiles, matmul_no_scratch, fc, false, true},
    {"128x192 ping-pong cluster 2", MATMUL_DGELU, too_many_tiles, dgelu_scratch_bytes, dgelu, false, true},
};

} // namespace wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, wgmma::matmul_configs, 90); }
#endif

#endif
