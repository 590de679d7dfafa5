/*
Which variant of dev/cuda serves which GPU, precision and head size: one table for each direction. The contract is
dev/cuda/attention.h's; what is raced there is what trains here.

    make train_gpt2cu ATTENTION_FORWARD=flash2 ATTENTION_BACKWARD=mma      forces variants by name
*/
#ifndef ATTENTION_CUH
#define ATTENTION_CUH

#include <limits.h>
#include <type_traits>

#include "attention.h"

#define ATTENTION_TEXT_(x) #x
#define ATTENTION_TEXT(x) ATTENTION_TEXT_(x)

#ifdef ATTENTION_FORWARD
// clang-format off
#define ATTENTION_FORWARD_FILE_(variant) ATTENTION_TEXT(attention_forward_##variant.cu)
// clang-format on
#define ATTENTION_FORWARD_FILE(variant) ATTENTION_FORWARD_FILE_(variant)
#include ATTENTION_FORWARD_FILE(ATTENTION_FORWARD)
static_assert(std::is_same<decltype(&ATTENTION_FORWARD::attention_forward), AttentionForward>::value,
              "this ATTENTION_FORWARD needs a scratch in forward, in this precision: it races, but it cannot train");
#elif defined(PRECISION_FP32)
#include "attention_forward_flash2.cu"
#else
#include "attention_forward_mma.cu"
#include "attention_forward_wgmma.cu"
#endif

#ifdef ATTENTION_BACKWARD
// clang-format off
#define ATTENTION_BACKWARD_FILE_(variant) ATTENTION_TEXT(attention_backward_##variant.cu)
// clang-format on
#define ATTENTION_BACKWARD_FILE(variant) ATTENTION_BACKWARD_FILE_(variant)
#include ATTENTION_BACKWARD_FILE(ATTENTION_BACKWARD)
#elif defined(PRECISION_FP32)
#include "attention_backward_flash2.cu"
#else
#include "attention_backward_mma.cu"
#include "attention_backward_wgmma.cu"
#endif

// A variant, from one compute capability to another (90 is 9.0) and from one head size to another
struct AttentionForwardChoice {
    const char* variant;
    int capability_from, capability_to, HS_from, HS_to;
    AttentionForward launch;
};
struct AttentionBackwardChoice {
    const char* variant;
    int capability_from, capability_to, HS_from, HS_to;
    AttentionBackward launch;
    AttentionScratchBytes scratch_bytes;
};

// The first row that fits serves.
static const AttentionForwardChoice attention_forward_choices[] = {
#ifdef ATTENTION_FORWARD
    {ATTENTION_TEXT(ATTENTION_FORWARD), 0, INT_MAX, 0, INT_MAX, ATTENTION_FORWARD::attention_forward},
#elif defined(PRECISION_FP32)
    {"flash2", 0, INT_MAX, 0, INT_MAX, flash2::attention_forward},
#else
    {"wgmma", 90, 90, 64, 64, wgmma::attention_forward},
    {"wgmma", 90, 90, 128, 128, wgmma::attention_forward},
    {"mma", 80, INT_MAX, 0, INT_MAX, mma::attention_forward},
#endif
};
static const AttentionBackwardChoice attention_backward_choices[] = {
#ifdef ATTENTION_BACKWARD
    {ATTENTION_TEXT(ATTENTION_BACKWARD), 0, INT_MAX, 0, INT_MAX, ATTENTION_BACKWARD::attention_backward,
     ATTENTION_BACKWARD::attention_backward_scratch_bytes},
#elif defined(PRECISION_FP32)
    {"flash2", 0, INT_MAX, 0, INT_MAX, flash2::attention_backward, flash2::attention_backward_scratch_bytes},
#else
    {"wgmma", 90, 90, 64, 64, wgmma::attention_backward, wgmma::attention_backward_scratch_bytes},
    {"wgmma", 90, 90, 128, 128, wgmma::attention_backward, wgmma::attention_backward_scratch_bytes},
    {"mma", 80, INT_MAX, 0, INT_MAX, mma::attention_backward, mma::attention_backward_scratch_bytes},
#endif
};

template <class Choice, size_t N> static inline const Choice& attention_choice(const Choice (&choices)[N], int HS) {
    int device, major, minor;
    cuda_check(cudaGetDevice(&device));
    cuda_check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
    cuda_check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
    const int capability = 10 * major + minor;
    for (const Choice& c : choices) {
        if (c.capability_from <= capability && capability <= c.capability_to && c.HS_from <= HS && HS <= c.HS_to) {
            return c;
        }
    }
    fatal("attention: no variant serves head size %d on compute capability %d.%d", HS, major, minor);
}

// The names of the variants that serve the current GPU
static inline const char* attention_forward_name(int HS = 64) {
    return attention_choice(attention_forward_choices, HS).variant;
}
static inline const char* attention_backward_name(int HS = 64) {
    return attention_choice(attention_backward_choices, HS).variant;
}

// out (B,T,NH,HS), l and m (B,NH,T) from qkv (B,T,3,NH,HS)
static inline void attention_forward(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                                     cudaStream_t stream) {
    attention_choice(attention_forward_choices, HS).launch(out, l, m, qkv, B, T, NH, HS, stream);
}

static inline size_t attention_backward_scratch_bytes(int B, int T, int NH, int HS) {
    return attention_choice(attention_backward_choices, HS).scratch_bytes(B, T, NH, HS);
}

// dqkv (B,T,3,NH,HS) from dout and what forward read and wrote; scratch as large as the function above says
static inline void attention_backward(floatX* dqkv, const floatX* dout, const floatX* qkv, const floatX* out,
                                      const float* l, const float* m, void* scratch, int B, int T, int NH, int HS,
                                      cudaStream_t stream) {
    attention_choice(attention_backward_choices, HS).launch(dqkv, dout, qkv, out, l, m, scratch, B, T, NH, HS, stream);
}

#endif
