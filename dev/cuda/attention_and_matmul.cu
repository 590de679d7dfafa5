// The variants of attention and of matmul that train: an object that programs with -DKERNELS_APART are linked with.
#include "attention.cuh"
#include "matmul.cuh"
