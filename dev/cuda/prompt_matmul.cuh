/*
The linear layers of long prompts in 16 bit on Hopper: the GEMM of the matmul competition (wgmma_matmul.cuh) behind the words of
decode_matmul.cuh, for the many rows of a prompt's pass. A step's kernels, which read W once for a few rows, are bound by L2
there.

An element is added up in the order of C whatever tile it lies in, so a row's bits do not depend on what other rows there are.
They are not those of a step: which of the two serves a prompt is decided by its own length alone.
*/
#ifndef PROMPT_MATMUL_CUH
#define PROMPT_MATMUL_CUH

#include "llmc/decode_matmul.cuh"
#if !defined(PRECISION_FP32)
#include "wgmma_matmul.cuh"
#endif

constexpr int PROMPT_GEMM_TOKENS = 17; // a prompt of fewer is one tile of rows for a step's kernels

// Whether this GPU and this build have the GEMM
static inline int prompt_gemm_serves(LaunchGpu gpu) { return sizeof(floatX) == 2 && gpu.hopper; }

// As decode_linear, with a bias, of all rows, in an out without padding: stride is OC, a multiple of 8 as C is.
Status prompt_linear(LaunchGpu gpu, DecodeLinear p, floatX* normed, cudaStream_t stream);

#ifndef KERNELS_APART
#if !defined(PRECISION_FP32)
// out (M,OC) = inp W^T through F, which may take what stands in out
template <class F> static inline Status prompt_gemm(const DecodeLinear& p, cudaStream_t stream) {
    typedef wgmma::MatmulTiles<wgmma::PingPong128x128x2, false, false, wgmma::Elementwise<F>> C;
    const wgmma::Gemm<C> gemm = {{p.M, p.OC, p.C}, p.inp, p.weight, p.out, nullptr, F::aux ? p.out : nullptr};
    wgmma::EpilogueInput in = {};
    in.bias = p.bias;
    return wgmma::launch_gemms<C>(&gemm, 1, in, nullptr, stream);
}

Status prompt_linear(LaunchGpu gpu, DecodeLinear p, floatX* normed, cudaStream_t stream) {
    if (p.norm_weight != NULL) {
        decode_layernorm(gpu, normed, p.inp, p.norm_weight, p.norm_bias, p.M, p.C, stream);
        p.inp = normed;
    }
    switch (p.epilogue) {
    case DECODE_GELU:
        return prompt_gemm<wgmma::GeluOfBias>(p, stream);
    case DECODE_RESIDUAL:
        return prompt_gemm<wgmma::AddBiasAndSkip>(p, stream);
    default:
        return prompt_gemm<wgmma::AddBias>(p, stream);
    }
}
#else
Status prompt_linear(LaunchGpu, DecodeLinear, floatX*, cudaStream_t) {
    return status_fail("prompt_linear: not in fp32");
}
#endif
#endif // KERNELS_APART

#endif
