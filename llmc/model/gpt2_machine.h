/*
What a trainer's program asks of its machine beside the model: which GPU, how fast that is, how it is, and ranges for profilers.
train_gpt2.c answers for a machine without a GPU.
*/
#ifndef LLMC_MODEL_GPT2_MACHINE_H
#define LLMC_MODEL_GPT2_MACHINE_H

#include "gpt2_model.h"

// How many GPUs this process sees; 0 in the CPU trainer, which needs none.
int gpt2_num_devices(void);

// Selects this process's GPU, in all of its threads; the default is 0. Called before any other function here.
void gpt2_use_device(int device);

// The dense peak of this process's GPU in the training precision, in FLOP/s (gpu_peaks.h); 0 where it is not known, and on
// the CPU
double gpt2_peak_flops(const GPT2* model);

// Prints a line about the GPU's clocks, power and temperature; nothing on the CPU.
void gpt2_log_device(const GPT2* model);

// NVTX ranges on a profiler's timeline (Nsight Systems); an error of the GPU names the last one. They nest, and cost almost
// nothing without a profiler. A name must last as long as the program.
void gpt2_range_begin(const char* name);
void gpt2_range_end(void);

#endif
