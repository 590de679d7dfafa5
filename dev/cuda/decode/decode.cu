// The variant that decodes, the step in one kernel, and the linear layers, with their kernels: an object of the programs that
// generate.
#define DECODE_KERNELS
#include "step.cuh"
#include "linear.cuh"
