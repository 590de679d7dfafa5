/*
Clipping by the global norm (Pascanu et al. 2013): gradients whose norm exceeds a limit are scaled down to it. One function for
the host and for the kernels, so that both get the same bits.
*/
#ifndef LLMC_MODEL_GRAD_CLIP_H
#define LLMC_MODEL_GRAD_CLIP_H

#ifdef __CUDACC__
#define GRAD_CLIP_HD __host__ __device__
#else
#define GRAD_CLIP_HD
#endif

// What the gradients are multiplied by; 1 if `clip` is 0.
GRAD_CLIP_HD static inline float grad_clip_scale(float norm, float clip) {
    return clip > 0.0f && norm > clip ? clip / norm : 1.0f;
}

#endif
