// The claims of test_cli.c about the command line of the GPU trainer, which llmc/base/cli.h tells by the compiler's macro.
#include <float.h>
#include <limits.h>
#include <math.h>

#include "llmc/base/utils.h"

#define __CUDACC__ 1
#include "test_cli.c"
