// The variant that decodes, the step in one kernel, and the linear layers: an object that programs with -DKERNELS_APART are
// linked with.
#include "decode_step.cuh"
#include "decode/linear.cuh"
#include "prompt_matmul.cuh"
