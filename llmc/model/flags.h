/*
The common part of the command lines of the trainers and generate_gpt2: the programs' names on the CPU and on the GPU, the
default of -e, and flags that mean the same in both.
*/
#ifndef LLMC_MODEL_FLAGS_H
#define LLMC_MODEL_FLAGS_H

#include "llmc/base/cli.h"

#ifdef __CUDACC__
#define CLI_PROGRAM_NAME(name) name "cu"
#define CLI_MODEL "gpt2_124M_bf16.bin"
#else
#define CLI_PROGRAM_NAME(name) name
#define CLI_MODEL "gpt2_124M.bin"
#endif

// Rows for a table of flags, whose columns are those of CLI_DECLARE, with these defaults
// clang-format off
#define SAMPLING_FLAGS(X, temperature_, top_k_)                                                                        \
    X(temperature, NULL, "--temperature", number, temperature_, 0, 100, NULL, FOR_BOTH, FREE,                          \
      "of sampling; 0: always the likeliest token")                                                                    \
    X(top_k, NULL, "--top-k", whole, top_k_, 0, INT_MAX, NULL, FOR_BOTH, FREE,                                         \
      "sample among the k likeliest tokens; 0: all")
// clang-format on

#endif
