// What the references of all competitions share: random numbers for inputs on the GPU, a function of seed and index, the same
// in every order of threads; and reductions over a thread block.
#ifndef RANDOM_CUH
#define RANDOM_CUH

#include <stdint.h>

// splitmix64, a bijection that mixes all bits (Steele, Lea, Flood 2014).
__host__ __device__ inline uint64_t mix(uint64_t x) {
    x += 0x9e3779b97f4a7c15ull;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}
__host__ __device__ inline float uniform_at(uint64_t seed, uint64_t index) { // in (0,1)
    return ((mix(seed ^ mix(index)) >> 40) + 0.5f) * 0x1p-24f;
}
__host__ __device__ inline float normal_at(uint64_t seed, uint64_t index) { // Box-Muller
    return sqrtf(-2.0f * logf(uniform_at(seed, 2 * index))) * cospif(2.0f * uniform_at(seed, 2 * index + 1));
}

// A sum or a maximum over a block of at most 256 threads, in every thread
template <class Operation> __device__ inline double reference_reduce(double x, Operation operation) {
    __shared__ double partial[256];
    __syncthreads();
    partial[threadIdx.x] = x;
    __syncthreads();
    double result = partial[0];
    for (unsigned n = 1; n < blockDim.x; n++) { result = operation(result, partial[n]); }
    return result;
}
__device__ inline double reference_sum(double x) {
    return reference_reduce(x, [](double a, double b) { return a + b; });
}
__device__ inline double reference_max(double x) {
    return reference_reduce(x, [](double a, double b) { return fmax(a, b); });
}

#endif
