// The variant that decodes, the step in one kernel, and the linear layers: an object that programs with -DKERNELS_APART are
// linked with.
#include "step.cuh"
#include "linear.cuh"
#include "prompt_matmul.cuh"
