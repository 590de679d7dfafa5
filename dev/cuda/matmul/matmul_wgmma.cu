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
    typedef PingPong128x128x2
        Narrow; // a second output leaves too few registers and too little shared memory for 192 columns
    const Status launched =
        t->derivative ? input_gemm<T, TimesDerivative>(t->dpre, nullptr, t->derivative, partials, t, s, stream)
        : t->act      ? input_gemm<Narrow, GeluBackward<true>>(t->dpre, t->act, t->pre, partials, t, s, stream)
                      : input_gemm<T, GeluBackward<false>>(t->dpre, nullptr, t->pre, partials, t, s, stream);
    if (launched != STATUS_OK) { return; }
    column_sum_partials(t->dbias, partials, dgelu_partials(s), s.IN, s.IN, stream);
}

// Weight gradients: scratch is the partial tiles, then for each GEMM the column sums of dout over every part of R. Without a
// GPU: the size for 132 SMs.
static TileOrder weights_order(const GemmSize* sizes, int gemms) {
    int clusters;
    if (num_clusters<WeightTiles>(&clusters) != STATUS_OK) {
        status_clear();
        clusters = 132 / WeightTiles::T::cluster;
    }
    return order_of<WeightTiles>(sizes, gemms, clusters);
}
static size_t weights_scratch_bytes(const MatmulSizes* sizes, int gemms) {
    GemmSize size[MAX_GEMMS];
    size_t columns = 0;
    for (int n = 0; n < gemms; n++) { size[n] = {sizes[n].OUT, sizes[n].IN, sizes[n].R}, columns += sizes[n].OUT; }
    return partial_tile_bytes<WeightTiles>(weights_order(size, gemms)) + sizeof(float) * MAX_SPLITS * columns;
}
static void weight_gemms(MatmulContext* context, const MatmulLayerWeight* layer, const MatmulSizes* sizes, int gemms,
                         int accumulate, cudaStream_t stream) {
    Gemm<WeightTiles> g[MAX_GEMMS] = {};
    GemmSize size[MAX_GEMMS];
    EpilogueInput in = {};
    in.accumulate = accumulate;
    for (int n = 0; n < gemms; n++) { size[n] = {sizes[n].OUT, sizes[n].IN, sizes[n].R}; }
    const TileOrder order = weights_order(size, gemms);
    float* const partials = (float*)context->scratch;
    float* sums = partials + partial_tile_bytes<WeightTiles>(order) / sizeof(float);
    for (int n = 0; n < gemms; n++) {
        g[n] = {size[n], layer[n].dout, layer[n].inp, layer[n].dweight, nullptr, nullptr};
        in.operand_sums[n] = layer[n].dbias ? sums : nullptr;
        sums += (size_t)MAX_SPLITS * sizes[n].OUT;
    }
    if (launch_gemms<WeightTiles>(g, gemms, in, partials, stream) != STATUS_OK) { return; }
    for (int n = 0; n < gemms; n++) {
        if (layer[n].dbias == nullptr) { continue; }
        column_sum_partials(layer[n].dbias, in.operand_sums[n], order.splits, sizes[n].OUT, sizes[n].OUT, stream);
    }
}

static void weight(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    const MatmulLayerWeight one = {t->dweight, t->dbias, t->dout, t->inp};
    weight_gemms(context, &one, &s, 1, t->accumulate, stream);
}
static size_t weight_scratch_bytes(MatmulSizes s) { return weights_scratch_bytes(&s, 1); }

static void mlp_weights(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    const MatmulSizes sizes[] = {matmul_mlp_sizes(0, s), matmul_mlp_sizes(1, s)};
    weight_gemms(context, t->mlp, sizes, 2, t->accumulate, stream);
}
static size_t mlp_weights_scratch_bytes(MatmulSizes s) {
    const MatmulSizes sizes[] = {matmul_mlp_sizes(0, s), matmul_mlp_sizes(1, s)};
    return weights_scratch_bytes(sizes, 2);
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
    {"128x256 cluster 2", MATMUL_WEIGHT, too_many_tiles, weight_scratch_bytes, weight},
    {"128x256 cluster 2", MATMUL_MLP_WEIGHTS, too_many_tiles, mlp_weights_scratch_bytes, mlp_weights},
};

} // namespace wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "bench.h"
int main(int argc, char** argv) { return matmul_main(argc, argv, wgmma::matmul_configs, 90); }
#endif

#endif
