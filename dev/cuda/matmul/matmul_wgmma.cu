/*
The matmul groups on Hopper: each is one GEMM (wgmma_matmul.cuh), whose epilogue does all that a tile allows, and a small kernel
for what needs a whole row or column. Against cublaslt:
- Bias, residual addition, GELU, its gradient and the column sums of dpre cost no pass over the activations: a tile's epilogue
  runs while the other consumer warpgroup multiplies. pre is read once by dgelu, LayerNorm reads one tensor instead of two.
  Where act is kept, fc's epilogue stores the derivative of GELU, three more instructions an element; dgelu's only multiplies.
- Weight gradients: split-K over R for the tiles that do not fill a wave, added in a fixed order. The first column of tiles
  multiplies dout by ones as well: its column sums without a pass of their own. mlp_weights is two GEMMs in one launch, with one
  such last wave instead of two.

    group          A (M,K)           B (N,K)          D (M,N)
    forward        inp               W                (R,OUT)
    gradients      dout              W, MN-major      (R,IN)
    weights        dout, MN-major    inp, MN-major    (OUT,IN)
*/
#ifndef MATMUL_WGMMA_CU
#define MATMUL_WGMMA_CU

#include "matmul.h"
#include "wgmma_matmul.cuh"

#include "llmc/cuda/layernorm_kernels.cuh"

namespace wgmma {

typedef MatmulTiles<Tile128x256x2, true, true, Gradient> WeightTiles;

// out (R,OUT) = inp W^T, through F.
template <class F> static Status forward_gemm(floatX* out, floatX* second, const floatX* aux, const MatmulTensors* t,
                                              MatmulSizes s, cudaStream_t stream) {
    typedef MatmulTiles<PingPong128x192x2, false, false, Elementwise<F>> C;
    const Gemm<C> gemm = {{s.R, s.OUT, s.IN}, t->inp, t->weight, out, second, aux};
    EpilogueInput in = {};
    in.bias = t->bias;
    return launch_gemms<C>(&gemm, 1, in, nullptr, stream);
}
// out (R,IN) = dout W, through F.
template <class T, class F> static Status input_gemm(floatX* out, floatX* second, const floatX* aux,
                                                     float* column_partials, const MatmulTensors* t, MatmulSizes s,
                                                     cudaStream_t stream) {
    typedef MatmulTiles<T, false, true, Elementwise<F>> C;
    const Gemm<C> gemm = {{s.R, s.IN, s.OUT}, t->dout, t->weight, out, second, aux};
    EpilogueInput in = {};
    in.column_partials = column_partials;
    return launch_gemms<C>(&gemm, 1, in, nullptr, stream);
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

// The GEMMs of `count` weight gradients, in one launch
template <int count> struct WeightGemms {
    GemmSize size[count];
    TileOrder order;

    explicit WeightGemms(MatmulSizes s) {
        int clusters;
        for (int n = 0; n < count; n++) {
            const MatmulSizes of = matmul_weight_sizes(count, n, s);
            size[n] = {of.OUT, of.IN, of.R};
        }
        if (num_clusters<WeightTiles>(&clusters) != STATUS_OK) { // without a GPU: as for 132 SMs
            status_clear();
            clusters = 132 / WeightTiles::T::cluster;
        }
        order = order_of<WeightTiles>(size, count, clusters);
    }
};
// Scratch: the partial tiles, then for each GEMM the column sums of dout over every part of R
template <int count> static size_t weights_scratch_bytes(MatmulSizes s) {
    const WeightGemms<count> gemms(s);
    size_t bytes = partial_tile_bytes<WeightTiles>(gemms.order);
    for (const GemmSize& size : gemms.size) { bytes += sizeof(float) * MAX_SPLITS * size.M; }
    return bytes;
}
template <int count>
static void weights(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    const WeightGemms<count> gemms(s);
    Gemm<WeightTiles> g[count];
    EpilogueInput in = {};
    float *const partials = (float*)context->scratch,
                 *sums = partials + partial_tile_bytes<WeightTiles>(gemms.order) / sizeof(float);
    in.accumulate = t->accumulate;
    for (int n = 0; n < count; n++) {
        const MatmulLayerWeight& w = t->weights[n];
        g[n] = {gemms.size[n], w.dout, w.inp, w.dweight, nullptr, nullptr};
        in.operand_sums[n] = w.dbias ? sums : nullptr;
        sums += (size_t)MAX_SPLITS * gemms.size[n].M;
    }
    if (launch_gemms<WeightTiles>(g, count, in, partials, stream) != STATUS_OK) { return; }
    for (int n = 0; n < count; n++) {
        const int OUT = gemms.size[n].M;
        if (t->weights[n].dbias == nullptr) { continue; }
        column_sum_partials(t->weights[n].dbias, in.operand_sums[n], gemms.order.splits, OUT, OUT, stream);
    }
}

// Tiles are counted by an int, of 64 by 128 the smallest; mlp_weights has 8 C of them by C.
static const char* too_many_tiles(MatmulSizes s) {
    const double rows = s.R > s.OUT ? s.R : s.OUT, columns = s.IN > s.OUT ? s.IN : s.OUT;
    return (rows / 64 + 1) * (columns / 128 + 1) * 8 > 1e9 ? "its tensors have too many tiles for an int" : nullptr;
}

static constexpr MatmulConfig matmul_configs[] = {
    {"128x192 ping-pong cluster 2", MATMUL_RESIDUAL, too_many_tiles, matmul_no_scratch, residual},
    {"128x192 ping-pong cluster 2", MATMUL_FC, too_many_tiles, matmul_no_scratch, fc, false, true},
    {"128x192 ping-pong cluster 2", MATMUL_DGELU, too_many_tiles, dgelu_scratch_bytes, dgelu, false, true},
    {"128x256 cluster 2", MATMUL_WEIGHT, too_many_tiles, weights_scratch_bytes<1>, weights<1>},
    {"128x256 cluster 2", MATMUL_MLP_WEIGHTS, too_many_tiles, weights_scratch_bytes<2>, weights<2>},
};

} // namespace wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
int main(int argc, char** argv) { return variant_main(argc, argv, wgmma::matmul_configs, 90); }
#endif

#endif
