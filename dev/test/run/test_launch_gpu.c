// The claims of test_launch.c about the GPU trainer, which llmc/base/cli.h tells by the compiler's macro.
#include <float.h>
#include <limits.h>
#include <math.h>

#include "llmc/comm/comm.h"

#define __CUDACC__ 1
#include "test_launch.c"
