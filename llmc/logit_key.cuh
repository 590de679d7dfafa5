/*
Logits as unsigned numbers in the order in which sample_argmax prefers them, so that the largest of a row can be found in
parts, in any order.
*/
#ifndef LLMC_LOGIT_KEY_CUH
#define LLMC_LOGIT_KEY_CUH

#include <cuda_runtime.h>
#include <string.h>

// Unsigned numbers in the order of the floats; NaN as -inf. x is not -0.
__host__ __device__ inline unsigned sample_key(float x) {
    unsigned bits;
    if (x != x) { return 0x007fffffu; }
    memcpy(&bits, &x, sizeof(bits));
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

// Keys of which the largest is that of the token that sample_argmax finds, among V of them; 0 is below all keys.
__host__ __device__ inline unsigned long long logit_key(float y, int token) {
    y += 0.0f; // -0 becomes 0
    return (unsigned long long)(y == y ? sample_key(y) : 0) << 32 | (0xffffffffu - (unsigned)token);
}
__host__ __device__ inline int token_of_key(unsigned long long key, int V) {
    return key >> 32 == 0 ? V - 1 : (int)(0xffffffffu - (unsigned)key);
}

#endif
