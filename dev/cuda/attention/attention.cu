// The variants of attention that train: an object that programs with -DKERNELS_APART are linked with, and libattention.so.
#include "attention.cuh"
