// The variant that decodes, and the step in one kernel: an object that programs with -DKERNELS_APART are linked with.
#include "decode_step.cuh"
