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

template <class T, class F> using ForwardTiles16 = MatmulTiles<T, false, false, Elementwise<F>>;
template <class T, class F> using InputTiles = MatmulTiles<T, false, true, Elementwise<F>>;
template <class T> using WeightTiles = MatmulTiles<T, true, true, Gradient>;

// out (R,OUT) = inp W^T, through F.
template <class T, class F> Status forward_gemm(floatX* out, floatX* second, const floatX* aux, const MatmulTensors* t,
                                                MatmulSizes s, cudaStream_t stream) {
    typedef ForwardTiles16<T, F> C;
    const Gemm<C> gemm = {{s.R, s.OUT, s.IN}, t->inp, t->weight, out, second, aux};
    EpilogueInput in = {};
    in.bias = t->bias;
    return launch_gemms<C>(&gemm, 1, in, nullptr, stream);
}
// out (R,IN) = dout W, through F.
template <class T, class F> Status input_gemm(floatX* out, floatX* second, const floatX* aux, float* column_partials,
                                              const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    typedef InputTiles<T, F> C;
    const Gemm<C> gemm = {{s.R, s.IN, s.OUT}, t->dout, t->weight, out, second, aux};
    EpilogueInput in = {};
    in.column_partials = column_partials;
    return launch_gemms<C>(&gemm, 1, in, nullptr, stream);
}

template <class T> void qkv(MatmulContext*, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    forward_gemm<T, AddBias>(t->out, nullptr, nullptr, t, s, stream);
}

template <class T> void residual(MatmulContext*, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    if (forward_gemm<T, AddBiasAndSkip>(t->residual, nullptr, t->skip, t, s, stream) != STATUS_OK) { return; }
    layernorm_forward(t->ln, t->mean, t->rstd, t->residual, t->ln_weight, t->ln_bias, s.R, s.OUT, stream);
}

template <class T> void fc(MatmulContext*, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    if (t->derivative) {
        forward_gemm<T, BiasGeluDerivative>(t->derivative, t->act, nullptr, t, s, stream);
    } else {
        forward_gemm<T, BiasGelu>(t->pre, t->act, nullptr, t, s, stream);
    }
}

template <class T> void input(MatmulContext*, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    input_gemm<T, Plain>(t->dinp, nullptr, nullptr, nullptr, t, s, stream);
}

// Scratch of dgelu: the column sums over each consumer's rows of a tile.
template <class T> int dgelu_partials(MatmulSizes s) { return CEIL_DIV(s.R, T::row_blocks * BLOCK_ROWS); }
template <class T> size_t dgelu_scratch_bytes(MatmulSizes s) { return sizeof(float) * dgelu_partials<T>(s) * s.IN; }

// The tile where dgelu recomputes act: a second output leaves too few registers and too little shared memory for 192 columns.
template <class T> struct AgainTile { typedef T Tile; };
template <> struct AgainTile<PingPong128x192x2> { typedef PingPong128x128x2 Tile; };

template <class T> void dgelu(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    float* const partials = (float*)context->scratch;
    typedef typename AgainTile<T>::Tile Again;
    static_assert(Again::row_blocks == T::row_blocks, "as many rows for each partial sum");
    const Status launched =
        t->derivative ? input_gemm<T, TimesDerivative>(t->dpre, nullptr, t->derivative, partials, t, s, stream)
        : t->act      ? input_gemm<Again, GeluBackward<true>>(t->dpre, t->act, t->pre, partials, t, s, stream)
                      : input_gemm<T, GeluBackward<false>>(t->dpre, nullptr, t->pre, partials, t, s, stream);
    if (launched != STATUS_OK) { return; }
    column_sum_partials(t->dbias, partials, dgelu_partials<T>(s), s.IN, s.IN, stream);
}

// Weight gradients: scratch is the partial tiles, then for each GEMM the column sums of dout over every part of R. Without a
// GPU: the size for 132 SMs.
template <class T> static TileOrder weights_order(const GemmSize* sizes, int gemms) {
    int clusters;
    if (num_clusters<WeightTiles<T>>(&clusters) != STATUS_OK) {
        status_clear();
        clusters = 132 / T::cluster;
    }
    return order_of<WeightTiles<T>>(sizes, gemms, clusters);
}
template <class T> static size_t weights_scratch_bytes(const MatmulSizes* sizes, int gemms) {
    GemmSize size[MAX_GEMMS];
    size_t columns = 0;
    for (int n = 0; n < gemms; n++) { size[n] = {sizes[n].OUT, sizes[n].IN, sizes[n].R}, columns += sizes[n].OUT; }
    return partial_tile_bytes<WeightTiles<T>>(weights_order<T>(size, gemms)) + sizeof(float) * MAX_SPLITS * columns;
}
template <class T> void weight_gemms(MatmulContext* context, const MatmulLayerWeight* layer, const MatmulSizes* sizes,
                                     int gemms, int accumulate, cudaStream_t stream) {
    typedef WeightTiles<T> C;
    Gemm<C> g[MAX_GEMMS] = {};
    GemmSize size[MAX_GEMMS];
    EpilogueInput in = {};
    in.accumulate = accumulate;
    for (int n = 0; n < gemms; n++) { size[n] = {sizes[n].OUT, sizes[n].IN, sizes[n].R}; }
    const TileOrder order = weights_order<T>(size, gemms);
    float* const partials = (float*)context->scratch;
    float* sums = partials + partial_tile_bytes<C>(order) / sizeof(float);
    for (int n = 0; n < gemms; n++) {
        g[n] = {size[n], layer[n].dout, layer[n].inp, layer[n].dweight, nullptr, nullptr};
        in.operand_sums[n] = layer[n].dbias ? sums : nullptr;
        sums += (size_t)MAX_SPLITS * sizes[n].OUT;
    }
    if (launch_gemms<C>(g, gemms, in, partials, stream) != STATUS_OK) { return; }
    for (int n = 0; n < gemms; n++) {
        if (layer[n].dbias == nullptr) { continue; }
        column_sum_partials(layer[n].dbias, in.operand_sums[n], order.splits, sizes[n].OUT, sizes[n].OUT, stream);
    }
}

template <class T> void weight(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    const MatmulLayerWeight one = {t->dweight, t->dbias, t->dout, t->inp};
    weight_gemms<T>(context, &one, &s, 1, t->accumulate, stream);
}
template <class T> size_t weight_scratch_bytes(MatmulSizes s) { return weights_scratch_bytes<T>(&s, 1); }

template <class T>
void mlp_weights(MatmulContext* context, const MatmulTensors* t, MatmulSizes s, cudaStream_t stream) {
    const MatmulSizes sizes[] = {matmul_mlp_sizes(0, s), matmul_mlp_sizes(1, s)};
    weight_gemms<T>(context, t->mlp, sizes, 2, t->accumulate, stream);
}
template <class T> size_t mlp_weights_scratch_bytes(MatmulSizes s) {
    const MatmulSizes sizes[] = {matmul_mlp_sizes(0, s), matmul_mlp_sizes(1, s)};
    return weights_scratch_bytes<T>(sizes, 2);
}

// Tiles are counted by an int, of 64 by 128 the smallest; mlp_weights has 8 C of them by C.
static const char* too_many_tiles(MatmulSizes s) {
    const double rows = s.R > s.OUT ? s.R : s.OUT, columns = s.IN > s.OUT ? s.IN : s.OUT;
    return (rows / 64 + 1) * (columns / 128 + 1) * 8 > 1e9 ? "its tensors have too many tiles for an int" : nullptr;
}

// A row of the table: a group's launcher and scratch for one tile
#define WGMMA_CONFIG(name, id, tile, group, scratch)                                                                   \
    {                                                                                                                  \
        name, MATMUL_##id, too_many_tiles, scratch, group<tile>, false,                                                \
            MATMUL_##id == MATMUL_FC || MATMUL_##id == MATMUL_DGELU                                                    \
    }
static constexpr MatmulConfig matmul_configs[] = {
    WGMMA_CONFIG("128x192 ping-pong cluster 2", RESIDUAL, PingPong128x192x2, residual, matmul_no_scratch),
    WGMMA_CONFIG("128x192 ping-pong cluster 2", FC, PingPong128x192x2, fc, matmul_no_scratch),
    WGMMA_CONFIG("128x192 ping-pong cluster 2", DGELU, PingPong128x192x2, dgelu,
                 dgelu_scratch_bytes<PingPong128x192x2>),
    WGMMA_CONFIG("128x256 cluster 2", WEIGHT, Tile128x256x2, weight, weight_scratch_bytes<Tile128x256x2>),
    WGMMA_CONFIG("128x256 cluster 2", MLP_WEIGHTS, Tile128x256x2, mlp_weights,
                 mlp_weights_scratch_bytes<Tile128x256x2>),
#if __INCLUDE_LEVEL__ == 0 // raced but not used in training: a minute of compile time
    WGMMA_CONFIG("128x256 cluster 2", QKV, Tile128x256x2, qkv, matmul_no_scratch),
    WGMMA_CONFIG("128x128 ping-pong cluster 2", QKV, PingPong128x128x2, qkv, matmul_no_scratch),
    WGMMA_CONFIG("128x192 ping-pong cluster 2", QKV, PingPong128x192x2, qkv, matmul_no_scratch),
    WGMMA_CONFIG("128x256 cluster 2", RESIDUAL, Tile128x256x2, residual, matmul_no_scratch),
    WGMMA_CONFIG("128x128 ping-pong cluster 2", RESIDUAL, PingPong128x128x2, residual, matmul_no_scratch),
    WGMMA_CONFIG("128x256 cluster 2", FC, Tile128x256x2, fc, matmul_no_scratch),
    WGMMA_CONFIG("128x128 ping-pong cluster 2", FC, PingPong128x128x2, fc, matmul_no_scratch),
    WGMMA_CONFIG("128x256 cluster 2", DGELU, Tile128x256x2, dgelu, dgelu_scratch_bytes<Tile128x256x2>),
    WGMMA_CONFIG("128x128 ping-pong cluster 2", DGELU, PingPong128x128x2, dgelu,
                 dgelu_scratch_bytes<PingPong128x128x2>),
    WGMMA_CONFIG("128x256 cluster 2", INPUT, Tile128x256x2, input, matmul_no_scratch),
    WGMMA_CONFIG("128x128 ping-pong cluster 2", INPUT, PingPong128x128x2, input, matmul_no_scratch),
    WGMMA_CONFIG("128x192 ping-pong cluster 2", INPUT, PingPong128x192x2, input, matmul_no_scratch),
    WGMMA_CONFIG("128x128 ping-pong cluster 2", WEIGHT, PingPong128x128x2, weight,
                 weight_scratch_bytes<PingPong128x128x2>),
#endif
};
#undef WGMMA_CONFIG

} // namespace wgmma

#if __INCLUDE_LEVEL__ == 0 // the program, not an include
#include "bench.h"
int main(int argc, char** argv) { return matmul_main(argc, argv, wgmma::matmul_configs, 90); }
#endif

#endif
