/*
The launcher of decoding's linear layers, for any number of rows. All kernels add in decode/matmul.cuh's order, so they give the
same bits. The program is linked with decode.cu's object, which defines them.
*/
#ifndef LLMC_DECODE_LINEAR_CUH
#define LLMC_DECODE_LINEAR_CUH

#include "matmul.cuh"
#ifdef DECODE_KERNELS
#include "cluster_matmul.cuh"
#include "head_matmul.cuh"
#include "warpgroup_matmul.cuh"
#endif

// inp, and out where it is a residual stream, as DecodeLinear says. normed (M,C): where the normalised input goes if
// a CTA does not normalise it by itself. Returns whether out_moments were written.
bool decode_linear(LaunchGpu gpu, DecodeLinear p, floatX* normed, cudaStream_t stream);
// Whether it raises p.row_keys, which are not NULL, to those of all rows that it writes
bool decode_keeps_keys(LaunchGpu gpu, const DecodeLinear& p);

#ifdef DECODE_KERNELS
bool decode_keeps_keys(LaunchGpu gpu, const DecodeLinear& p) {
#if !defined(PRECISION_FP32)
    if (head_tiling(gpu, p).kernel != NULL) { return true; }
    if (decode_cluster_serves(gpu, p) || !decode_batch_serves(gpu, p)) { return false; }
    const BatchTiling t = batch_tiling(gpu, p);
    return t.MT == 4 && t.splits == 1;
#else
    (void)gpu, (void)p;
    return false;
#endif
}

bool decode_linear(LaunchGpu gpu, DecodeLinear p, floatX* normed, cudaStream_t stream) {
    bool cluster = false, batch = false;
#if !defined(PRECISION_FP32)
    const bool folded = p.norm_sums != NULL;
    cluster = decode_cluster_serves(gpu, p), batch = decode_batch_serves(gpu, p);
    if (HeadTiling t = head_tiling(gpu, p); t.kernel != NULL) {
        head_launch(gpu, t, p, normed, stream);
        return false;
    }
    const WarpgroupTiling warpgroup = warpgroup_tiling(gpu, p);
    if (folded && !cluster && warpgroup.kernel == NULL) {
        decode_rows_statistics(gpu, p.statistics, p.inp, p.M, p.C, stream);
    }
#endif
    if (p.norm_weight != NULL && (cluster || batch || p.M > DECODE_NORM_ROWS)) {
        decode_layernorm(gpu, normed, p.inp, p.norm_weight, p.norm_bias, p.M, p.C, stream);
        p.inp = normed, p.norm_weight = p.norm_bias = NULL;
    }
#if !defined(PRECISION_FP32)
    if (warpgroup.kernel != NULL) {
        warpgroup_launch(gpu, warpgroup, p, stream);
        return p.out_moments != NULL;
    }
    if (cluster) {
        BatchTiling t = cluster_tiling(gpu, p);
        launch_dependent(gpu, cluster_kernel(p.C, folded), t.blocks, t.threads, t.shared, CLUSTER_CTAS, stream, p,
                         t.tiles);
        return p.out_moments != NULL;
    }
    if (batch) {
        BatchTiling t = batch_tiling(gpu, p);
        launch_dependent(gpu, batch_kernel(t.MT, p.C, folded), t.blocks, t.threads, t.shared, t.splits, stream, p,
                         t.tiles);
        return p.out_moments != NULL && t.MT == 2; // with 4 there are no registers left
    }
#endif
    decode_linear_tiled(gpu, p, decode_tiling(gpu, p.M, p.C, p.OC, p.norm_weight != NULL), stream);
    return false;
}
#endif

#endif
