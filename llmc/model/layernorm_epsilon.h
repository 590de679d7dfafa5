// What GPT-2 adds to the variance of a row in LayerNorm.
#ifndef LLMC_MODEL_LAYERNORM_EPSILON_H
#define LLMC_MODEL_LAYERNORM_EPSILON_H

#define LAYERNORM_EPSILON 1e-5f

#endif
