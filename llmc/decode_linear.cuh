/*
The launcher of decoding's linear layers, for any number of rows. All kernels add in decode_matmul.cuh's order, so they give the
same bits. With -DKERNELS_APART the program is linked with decode.cu's object.
*/
#ifndef LLMC_DECODE_LINEAR_CUH
#define LLMC_DECODE_LINEAR_CUH

#include "decode_matmul.cuh"
#ifndef KERNELS_APART
#include "decode_cluster_matmul.cuh"
#include "decode_exact_matmul.cuh"
#include "decode_head_matmul.cuh"
#endif

// inp, and out where it is a residual stream, as DecodeLinear says. normed (M,C): where the normalised input goes if a CTA does
// not normalise it by itself.
void decode_linear(LaunchGpu gpu, DecodeLinear p, floatX* normed, cudaStream_t stream);

#ifndef KERNELS_APART
void decode_linear(LaunchGpu gpu, DecodeLinear p, floatX* normed, cudaStream_t stream) {
    bool cluster = false, head = false, batch = false;
#if !defined(PRECISION_FP32)
    cluster = decode_cluster_serves(gpu, p), batch = decode_batch_serves(gpu, p);
    const HeadTiling head_tiles = head_tiling(gpu, p);
    head = head_tiles.kernel != NULL;
#endif
    if (p.norm_weight != NULL && (cluster || head || batch || p.M > DECODE_NORM_ROWS)) {
        decode_layernorm(gpu, normed, p.inp, p.norm_weight, p.norm_bias, p.M, p.C, stream);
        p.inp = normed, p.norm_weight = p.norm_bias = NULL;
    }
#if !defined(PRECISION_FP32)
    if (ExactTiling t = exact_tiling(gpu, p); t.kernel != NULL) {
        launch_dependent(gpu, t.kernel, t.blocks, DECODE_THREADS, t.shared, EXACT_SPLITS, stream, p);
        return;
    }
    if (cluster) {
        BatchTiling t = cluster_tiling(gpu, p);
        launch_dependent(gpu, cluster_kernel(p.C), t.blocks, t.threads, t.shared, CLUSTER_CTAS, stream, p, t.tiles);
        return;
    }
    if (head) {
        launch_dependent(gpu, head_tiles.kernel, head_tiles.blocks, head_tiles.threads, head_tiles.shared, 1, stream,
                         p);
        return;
    }
    if (batch) {
        BatchTiling t = batch_tiling(gpu, p);
        launch_dependent(gpu, batch_kernel(t.MT, p.C), t.blocks, t.threads, t.shared, t.splits, stream, p, t.tiles);
        return;
    }
#endif
    decode_linear_tiled(gpu, p, decode_tiling(gpu, p.M, p.C, p.OC, p.norm_weight != NULL), stream);
}
#endif

#endif
