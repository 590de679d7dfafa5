// The variants of matmul that train, and LayerNorm: an object that programs with -DKERNELS_APART are linked with.
#include "matmul.cuh"
