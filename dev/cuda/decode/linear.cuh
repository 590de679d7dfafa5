/*
The launchers of decoding's linear layers. All of a step's kernels give the same bits, whichever of them serves it.

    GPU, precision      C                 rows       kernel
    Hopper, bf16        416 to 1600 (1)   1 to 3     a step in one kernel: decode/step.cuh
    sm_90 on, 16 bit    up to 8192        4 or more  decode/batch_matmul.cuh
    any                 any               any        decode/matmul.cuh
    Hopper, 16 bit      any          17 or more (2)  prompt_linear(): the training's GEMM

(1) but 769 to 831; (2) tokens of one prompt. A GEMM sums an element in the order of C whatever tile it is in, so a row's bits
do not depend on the other rows. They differ from those of a step's kernels: which of the two serves a prompt depends on its own
length alone. The program is linked with decode.cu's object.
*/
#ifndef LLMC_DECODE_LINEAR_CUH
#define LLMC_DECODE_LINEAR_CUH

#include "batch_matmul.cuh"
#if !defined(PRECISION_FP32)
#include "dev/cuda/matmul/wgmma_matmul.cuh"
#endif

constexpr int PROMPT_GEMM_TOKENS = 17; // least number of tokens; up to 16 are one row tile of a decode step's kernels

// inp, and out where it is a residual stream, as DecodeLinear says. normed (M,C): where the normalised input goes
void decode_linear(DeviceCode gpu, DecodeLinear p, floatX* normed, cudaStream_t stream);
// Whether it raises p.row_keys, which are not NULL, to those of all rows that it writes
bool decode_keeps_keys(DeviceCode gpu, const DecodeLinear& p);

// Whether this GPU and this build have the prompts' GEMM
static inline int prompt_gemm_serves(DeviceCode gpu) { return sizeof(floatX) == 2 && gpu.sm_90a; }
// As decode_linear with a bias, for all rows; out has no padding: its stride is OC. C and OC are multiples of 8.
Status prompt_linear(DeviceCode gpu, DecodeLinear p, floatX* normed, cudaStream_t stream);

// Whether the SMs finish tiles of 192 columns no later than those of 128: a tile takes time by its columns, and an SM one at a
// time. Where both take as long, the wide ones are fewer.
static inline bool prompt_tiles_are_wide(DeviceCode gpu, int M, int OC) {
    const auto columns_of_an_sm = [&](int columns) {
        return CEIL_DIV(CEIL_DIV(M, 128) * CEIL_DIV(OC, columns), gpu.sms) * columns;
    };
    return columns_of_an_sm(192) <= columns_of_an_sm(128);
}

#ifdef DECODE_KERNELS
static inline void decode_normalise(DeviceCode gpu, DecodeLinear* p, floatX* normed, cudaStream_t stream) {
    decode_layernorm(gpu, normed, p->inp, p->norm_weight, p->norm_bias, p->M, p->C, stream);
    p->inp = normed, p->norm_weight = p->norm_bias = NULL;
}

bool decode_keeps_keys(DeviceCode gpu, const DecodeLinear& p) {
    const BatchTiling t = batch_tiling(gpu, p);
    return decode_batch_serves(gpu, p) && t.MT == 4 && t.splits == 1;
}

void decode_linear(DeviceCode gpu, DecodeLinear p, floatX* normed, cudaStream_t stream) {
    if (p.norm_weight != NULL) { decode_normalise(gpu, &p, normed, stream); }
    if (decode_batch_serves(gpu, p)) {
        const BatchTiling t = batch_tiling(gpu, p);
        launch_dependent(gpu, batch_kernel(t.MT, p.C), t.blocks, t.threads, t.shared, t.splits, stream, p, t.tiles);
    } else {
        decode_linear_tiled(gpu, p, stream);
    }
}

#if !defined(PRECISION_FP32)
// out (M,OC) = inp W^T through F, which may read out as its aux, in tiles of 128 rows
template <class Tile, class F> static inline Status prompt_gemm_of(const DecodeLinear& p, cudaStream_t stream) {
    typedef wgmma::MatmulTiles<Tile, false, wgmma::Elementwise<F>> C;
    const wgmma::Gemm gemm = {{p.M, p.OC, p.C}, p.inp, p.weight, p.out, nullptr, F::aux ? p.out : nullptr};
    wgmma::EpilogueInput in = {};
    in.bias = p.bias;
    return wgmma::launch_gemm<C>(gemm, in, stream);
}
template <class F> static inline Status prompt_gemm(DeviceCode gpu, const DecodeLinear& p, cudaStream_t stream) {
    return prompt_tiles_are_wide(gpu, p.M, p.OC) ? prompt_gemm_of<wgmma::PingPong128x192x2, F>(p, stream)
                                                 : prompt_gemm_of<wgmma::PingPong128x128x2, F>(p, stream);
}
Status prompt_linear(DeviceCode gpu, DecodeLinear p, floatX* normed, cudaStream_t stream) {
    if (p.norm_weight != NULL) { decode_normalise(gpu, &p, normed, stream); }
    switch (p.epilogue) {
    case DECODE_GELU:
        return prompt_gemm<wgmma::GeluOfBias>(gpu, p, stream);
    case DECODE_RESIDUAL:
        return prompt_gemm<wgmma::AddBiasAndSkip>(gpu, p, stream);
    default:
        return prompt_gemm<wgmma::AddBias>(gpu, p, stream);
    }
}
#else
Status prompt_linear(DeviceCode, DecodeLinear, floatX*, cudaStream_t) {
    return status_fail("prompt_linear: not in fp32");
}
#endif
#endif // DECODE_KERNELS

#endif
