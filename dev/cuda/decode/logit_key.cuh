/*
Logits as unsigned integers in the order in which sample_argmax prefers them: the largest of a row can be found in parts, in any
order.
*/
#ifndef LLMC_LOGIT_KEY_CUH
#define LLMC_LOGIT_KEY_CUH

#include "llmc/model/sampler.h"

// The largest key of a row is that of the token which sample_argmax returns; 0 is below all keys. token_of_key(): that token,
// of V.
__host__ __device__ inline unsigned long long logit_key(float y, int token) {
    y += 0.0f; // -0 becomes 0
    return (unsigned long long)(y == y ? sample_key(y) : 0) << 32 | (0xffffffffu - (unsigned)token);
}
__host__ __device__ inline int token_of_key(unsigned long long key, int V) {
    return key >> 32 == 0 ? V - 1 : (int)(0xffffffffu - (unsigned)key);
}

#endif
