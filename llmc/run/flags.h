/*
The command line of the trainers: the table of their flags, of which cli.h makes the rest. Short names are llm.c's, so that
its command lines work unchanged.
*/
#ifndef LLMC_RUN_FLAGS_H
#define LLMC_RUN_FLAGS_H

#include <float.h>

#include "llmc/model/flags.h"

#define CLI_PROGRAM CLI_PROGRAM_NAME("train_gpt2")

#ifdef __CUDACC__
#define TRAINER_EXAMPLE                                                                                                \
    "-e d12 -b 16 -t 1024 -d 65536 -x 500 -l 6e-4 -u 50 -q 0.1 -c 0.1 -v 50 -s 100 -n 250 -o log124M"
#else
#define TRAINER_EXAMPLE "-e d6 -b 4 -t 256 -x 500 -l 6e-4 -u 50 -q 0.1 -v 50 -s 100 -n 250 -o log6"
#endif

// The columns are those of CLI_DECLARE.
// clang-format off
#define CLI_FLAGS(X, G)                                                                                                \
    G(train_data, "Data and model")                                                                                    \
    X(train_data, "-i", "--train-data", text, "dev/data/tinyshakespeare/tiny_shakespeare_train.bin", 0, 0, NULL, FOR_BOTH, RESULT, \
      "training tokens: a file or a quoted glob pattern")                                                              \
    X(val_data, "-j", "--val-data", text, "dev/data/tinyshakespeare/tiny_shakespeare_val.bin", 0, 0, NULL, FOR_BOTH, FREE, \
      "validation tokens: a file or a quoted glob pattern")                                                            \
    X(model, "-e", "--model", text, CLI_MODEL, 0, 0, NULL, FOR_BOTH, RESULT,                                           \
      "weights: a .bin or .safetensors file, a folder of Hugging Face (config.json, model.safetensors) or of a run (its newest checkpoint); or a new model: d12, gpt3:c768, gpt2:l4c128h4, each with t<context> appended if wanted") \
    X(tokenizer, NULL, "--tokenizer", text, "gpt2_tokenizer.bin", 0, 0, NULL, FOR_BOTH, FREE,                          \
      "token texts for samples; models with a vocabulary of 256 are bytes and need none")                              \
    X(vocab_size, NULL, "--vocab-size", whole, 0, 0, 1 << 24, NULL, FOR_BOTH, RESULT,                                  \
      "vocabulary of a new model; 0: what the token files say, else 50257")                                            \
    G(output_dir, "What a run keeps")                                                                                  \
    X(output_dir, "-o", "--output-dir", text, NULL, 0, 0, NULL, FOR_BOTH, COMMAND,                                     \
      "directory of main.log, main.jsonl, main.flags and checkpoints")                                                 \
    X(checkpoint_every, "-n", "--checkpoint-every", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, FREE,                        \
      "steps between checkpoints; 0: none")                                                                            \
    X(checkpoints_keep, "-nk", "--checkpoints-keep", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, FREE,                       \
      "how many checkpoints to keep; 0: all")                                                                          \
    X(checkpoint_major, "-nm", "--checkpoint-major", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, FREE,                       \
      "checkpoints at multiples of this step are never deleted; 0: no such")                                           \
    X(async_save, NULL, "--async-save", toggle, 1, 0, 1, NULL, FOR_BOTH, FREE,                                         \
      "1: training continues while a checkpoint is written, from a snapshot in memory; 0: it waits")                     \
    X(log_json, NULL, "--log-json", text, NULL, 0, 0, "-",  FOR_BOTH, COMMAND,                                         \
      "for other programs: a file to which each step, validation and checkpoint is appended as one line of JSON; - for stdout, and what is printed goes to stderr") \
    X(resume, "-y", "--resume", toggle, 0, 0, 1, NULL, FOR_BOTH, COMMAND,                                              \
      "1: continue from the newest checkpoint in the output directory, if there is one. A flag that is not given is the run's, but for those of this command: -o, --log-json, --plan, --doctor, --all-flags, --overwrite, --resume-anyway, and how processes are started and meet") \
    G(batch, "Batch and length")                                                                                       \
    X(batch, "-b", "--batch", whole, 4, 1, 1 << 20, "auto", FOR_BOTH, RESULT,                                          \
      "B, rows of a micro-batch; auto: the largest that fits in memory and divides -d, without -d a power of two up to 64") \
    X(time, "-t", "--time", whole, 1024, 1, 1 << 20, NULL, FOR_BOTH, RESULT,                                           \
      "T, tokens of a row")                                                                                            \
    X(total_batch, "-d", "--total-batch", whole, -1, -1, INT_MAX, NULL, FOR_BOTH, RESULT,                              \
      "tokens of a step, a multiple of B*T: the micro-batches' gradients are accumulated; -1: B*T of each process")    \
    X(max_steps, "-x", "--max-steps", whole, -1, -1, INT_MAX, NULL, FOR_BOTH, RESULT,                                  \
      "steps to train; -1: one epoch")                                                                                 \
    X(documents, NULL, "--documents", whole, 0, 0, 2, NULL, FOR_BOTH, RESULT,                                          \
      "1: attention stays within documents, which begin with <|endoftext|>, or with a newline where tokens are bytes; 2: in validation, too") \
    X(positions, NULL, "--positions", text, "row", 0, 0, "row|document", FOR_BOTH, RESULT,                             \
      "with --documents: where positions are counted from")                                                            \
    G(recipe, "Learning rate and optimizer")                                                                           \
    X(recipe, NULL, "--recipe", text, NULL, 0, 0, "adamw|muon", FOR_BOTH, COMMAND,                                     \
      "tuned settings (docs/recipe.md) for those of --optimizer, --momentum, -l, -u, -q and -c that are not given; a resumed run keeps its own") \
    X(scheduler, "-k", "--scheduler", text, "cosine", 0, 0, "cosine|linear|constant|wsd", FOR_BOTH, RESULT,            \
      "learning rate schedule")                                                                                        \
    X(optimizer, NULL, "--optimizer", text, "adamw", 0, 0, "adamw|muon", FOR_BOTH, RESULT,                             \
      "muon: Muon for the matrices of the layers, AdamW for the rest")                                                 \
    X(momentum, NULL, "--momentum", number, 0.95, 0, 0.999999, NULL, FOR_BOTH, RESULT,                                 \
      "with --optimizer muon: decay of the momentum")                                                                  \
    X(learning_rate, "-l", "--learning-rate", number, 3e-4, 0, 1e3, NULL, FOR_BOTH, RESULT,                            \
      "largest learning rate")                                                                                         \
    X(warmup, "-u", "--warmup", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, RESULT,                                          \
      "steps of linear warm-up")                                                                                       \
    X(final_fraction, "-q", "--final-fraction", number, 1.0, 0, 1, NULL, FOR_BOTH, RESULT,                             \
      "learning rate at the end, as a fraction of the largest")                                                        \
    X(weight_decay, "-c", "--weight-decay", number, 0.0, 0, 1e3, NULL, FOR_BOTH, RESULT,                               \
      "of matrices only")                                                                                     \
    X(grad_clip, NULL, "--grad-clip", number, 1.0, 0, 1e9, NULL, FOR_BOTH, RESULT,                                     \
      "largest gradient norm; 0: no clipping")                                                                         \
    X(beta1, NULL, "--beta1", number, 0.9, 0, 0.999999, NULL, FOR_BOTH, RESULT,                                        \
      "AdamW's decay of the first moment")                                                                             \
    X(beta2, NULL, "--beta2", number, 0.95, 0, 0.999999, NULL, FOR_BOTH, RESULT,                                       \
      "AdamW's decay of the second moment")                                                                            \
    X(epsilon, NULL, "--epsilon", number, 1e-8, FLT_MIN, 1, NULL, FOR_BOTH, RESULT,                                    \
      "AdamW's term in the denominator; with 0, weights without a gradient would become NaN")                          \
    X(seed, NULL, "--seed", whole, 42, 0, INT_MAX, NULL, FOR_BOTH, RESULT,                                             \
      "of the initial weights and the shuffling")                                                                      \
    G(skip_loss_z, "Outliers, faults, debugging")                                                                      \
    X(skip_loss_z, "-sl", "--skip-loss-z", number, 0.0, 0, 1e9, NULL, FOR_BOTH, RESULT,                                \
      "skip the update where the loss is an outlier of more than this z-score; 0: never")                              \
    X(skip_grad_z, "-sg", "--skip-grad-z", number, 0.0, 0, 1e9, NULL, FOR_BOTH, RESULT,                                \
      "the same for the gradient norm")                                                                                \
    X(non_finite, NULL, "--non-finite", text, "stop", 0, 0, "stop|skip", FOR_BOTH, FREE,                               \
      "what a step does whose loss or gradient norm is not finite: end the run with exit code 3, or skip the update")  \
    X(max_skips, NULL, "--max-skips", whole, 10, 0, INT_MAX, NULL, FOR_BOTH, FREE,                                     \
      "updates that --non-finite skip may skip one after the other")                                                   \
    X(verify_every, NULL, "--verify-every", whole, 0, 0, INT_MAX, NULL, FOR_BOTH, FREE,                                \
      "steps between those that are computed twice and compared bit for bit; 0: never")                                \
    X(overfit, "-a", "--overfit", toggle, 0, 0, 1, NULL, FOR_BOTH, RESULT,                                             \
      "1: train on one batch of the validation data again and again, for debugging")                                   \
    G(val_every, "Validation and samples")                                                                             \
    X(val_every, "-v", "--val-every", whole, 20, 0, INT_MAX, NULL, FOR_BOTH, FREE,                                     \
      "steps between validations; 0: only at the end")                                                                 \
    X(val_steps, "-m", "--val-steps", whole, 20, -1, INT_MAX, NULL, FOR_BOTH, FREE,                                    \
      "batches of a validation; -1: the whole set")                                                                    \
    X(sample_every, "-s", "--sample-every", whole, 20, 0, INT_MAX, NULL, FOR_BOTH, FREE,                               \
      "steps between samples; 0: none")                                                                                \
    X(sample_tokens, "-g", "--sample-tokens", whole, 64, 1, 1 << 20, NULL, FOR_BOTH, FREE,                             \
      "tokens of a sample")                                                                                            \
    SAMPLING_FLAGS(X, 1.0, 0)                                                                                          \
    X(sample_seed, NULL, "--sample-seed", whole, 1337, 1, INT_MAX, NULL, FOR_BOTH, FREE,                               \
      "of sampling")                                                                                                   \
    X(hellaswag, "-h", "--hellaswag", whole, 0, 0, 1, NULL, FOR_BOTH, FREE,                                            \
      "1: HellaSwag accuracy with every validation")                                                                   \
    X(hellaswag_data, NULL, "--hellaswag-data", text, "dev/data/hellaswag/hellaswag_val.bin", 0, 0, NULL, FOR_BOTH, FREE, \
      "HellaSwag's questions, as dev/data/hellaswag.py writes them")                                                   \
    G(recompute, "Memory and speed")                                                                                   \
    X(recompute, "-r", "--recompute", whole, CLI_AUTO, 0, 2, "auto", FOR_BOTH, FREE,                                   \
      "what the backward pass computes again instead of keeping: 0 nothing, 1 GELU, 2 GELU and LayerNorm; auto: the least that memory allows, where -b auto has taken the B that fits -r 1") \
    X(tf32, "-f", "--tf32", toggle, 1, 0, 1, NULL, FOR_GPU_NOTED, RESULT,                                              \
      "1: tf32 GEMMs in an fp32 build")                                                                                \
    X(fp8, NULL, "--fp8", toggle, 0, 0, 1, NULL, FOR_GPU, RESULT,                                                      \
      "1: the GEMMs of training have 8-bit operands (e4m3, on Hopper int8 too), after the first update; validation and samples do not") \
    X(master_weights, "-w", "--master-weights", toggle, 1, 0, 1, NULL, FOR_GPU_NOTED, RESULT,                          \
      "1: updates act on an fp32 copy of the weights; 0: on the weights, with stochastic rounding")                    \
    X(gelu_fusion, "-ge", "--gelu-fusion", whole, 0, 0, 2, NULL, FOR_GPU_NOTED, RESULT,                                \
      "GELU in cuBLASLt's epilogues: 0 none, 1 forward, 2 forward and backward. With 1 and 2, -r changes bits")        \
    X(cuda_graphs, NULL, "--cuda-graphs", toggle, 1, 0, 1, NULL, FOR_GPU_NOTED, FREE,                                  \
      "1: on one GPU, passes are CUDA graphs; 0: single launches, which a profiler shows by layer. The same bits")     \
    X(log_gpu_every, "-lg", "--log-gpu-every", whole, -1, -1, INT_MAX, NULL, FOR_GPU_NOTED, FREE,                      \
      "steps between lines on the GPU's clocks, power and temperature; -1: none")                                      \
    G(resume_anyway, "Before the first step")                                                                          \
    X(resume_anyway, NULL, "--resume-anyway", toggle, 0, 0, 1, NULL, FOR_BOTH, COMMAND,                                \
      "continue although settings or data differ from those of the checkpoint")                                           \
    X(overwrite, NULL, "--overwrite", toggle, 0, 0, 1, NULL, FOR_BOTH, COMMAND,                                        \
      "a new run may replace the checkpoints and the log of another one")                                              \
    X(plan, NULL, "--plan", toggle, 0, 0, 1, NULL, FOR_BOTH, COMMAND,                                                  \
      "print the memory, steps and tokens that the run needs, and do not train")                                       \
    X(doctor, NULL, "--doctor", toggle, 0, 0, 1, NULL, FOR_BOTH, COMMAND,                                              \
      "print whether this machine has what a run needs, and do not train")                                             \
    X(all_flags, NULL, "--all-flags", toggle, 0, 0, 1, NULL, FOR_BOTH, COMMAND,                                        \
      "print all flags at the start, not only those that differ from their defaults")                                  \
    G(gpus, "Several processes")                                                                                       \
    X(gpus, NULL, "--gpus", whole, 0, 0, 4096, "all", FOR_GPU, COMMAND,                                                \
      "start one process for each of so many GPUs of this machine, or for all; 0: one process, unless a launcher (torchrun, mpirun, srun) started several") \
    X(processes, NULL, "--processes", whole, 0, 0, 4096, NULL, FOR_CPU, COMMAND,                                       \
      "start so many processes on this machine; 0: one, unless a launcher (torchrun, mpirun, srun) started several")   \
    X(zero, "-z", "--zero", whole, 1, 0, 3, NULL, FOR_BOTH, FREE,                                                      \
      "1: of several processes each keeps its part of moments and master weights (ZeRO-1), as with 2 and 3; 0: each keeps all") \
    X(sum_order, NULL, "--sum-order", text, "tree", 0, 0, "tree|any", FOR_BOTH, FREE,                                  \
      "how gradients are summed; tree: the same bits on 1, 2, 4, 8... processes; any: as the library likes")           \
    X(exchange, NULL, "--exchange", text, "auto", 0, 0, "auto|nccl", FOR_GPU_NOTED, FREE,                              \
      "what moves gradients and weights between GPUs; auto: copy engines where all are in one machine and reach each other; nccl: NCCL's kernels") \
    X(num_processes, "-pn", "--num-processes", whole, 0, 0, 4096, NULL, FOR_BOTH, COMMAND,                             \
      "by hand: processes of the run on all machines; 0: as the launcher says")                                        \
    X(process_rank, "-pr", "--process-rank", whole, -1, -1, 4095, NULL, FOR_BOTH, COMMAND,                             \
      "by hand: the rank of this process, or of the first that this machine starts; -1: as the launcher says")         \
    X(gpus_per_node, "-pg", "--gpus-per-node", whole, 0, 0, 4096, NULL, FOR_BOTH, COMMAND,                             \
      "by hand: processes of each machine; 0: as the launcher says, else 8")                                           \
    X(init_method, "-pi", "--init-method", text, NULL, 0, 0, "tcp|fs|mpi", FOR_BOTH, COMMAND,                          \
      "how the processes meet: at -ps, by a file in -pf, or as mpirun says")                                           \
    X(server_ip, "-ps", "--server-ip", text, NULL, 0, 0, NULL, FOR_BOTH, COMMAND,                                      \
      "address or name of the machine of rank 0")                                                                      \
    X(fs_path, "-pf", "--fs-path", text, NULL, 0, 0, NULL, FOR_BOTH, COMMAND,                                          \
      "a folder that all machines share, to meet by a file in it")                                                     \
    X(rendezvous_port, NULL, "--rendezvous-port", whole, 0, 0, 65535, NULL, FOR_BOTH, COMMAND,                         \
      "port at which rank 0 waits for the others; 0: the launcher's, else 20240")                                      \
    X(connect_timeout, NULL, "--connect-timeout", number, 300.0, 1, 86400, NULL, FOR_BOTH, COMMAND,                    \
      "seconds within which all processes must have met")                                                              \
    X(fault_timeout, NULL, "--fault-timeout", number, 30.0, 2, 86400, NULL, FOR_BOTH, COMMAND,                         \
      "seconds within which all processes end after one of them has failed")
// clang-format on

CLI_DECLARE(CLI_FLAGS, CLI_PROGRAM, "CPU trainer's; the GPU trainer has --gpus",
            "GPU trainer's; leave it out, or run ./train_gpt2cu", TRAINER_EXAMPLE)

// Refuses a recipe of another optimizer than the one that is typed.
static inline void recipe_check(const Options* o) {
    if (o->recipe == NULL || !o->typed[CLI_INDEX_optimizer] || strcmp(o->recipe, o->optimizer) == 0) { return; }
    fatal("--recipe %s contradicts --optimizer %s; say --recipe %s, or leave one of them out", o->recipe, o->optimizer,
          o->optimizer);
}

// Sets the flags of a recipe that are not typed: those of docs/recipe.md. -l and -u follow from the tokens of a step and the
// number of steps; < 0: they are not known yet. -l is rounded to three digits, so that typing it gives the same run.
static inline void recipe_set(Options* o, int num_steps) {
    if (o->recipe == NULL) { return; }
    int muon = strcmp(o->recipe, "muon") == 0, constant = strcmp(o->scheduler, "constant") == 0;
    char rate[32];
    o->optimizer = o->recipe;
    if (!o->typed[CLI_INDEX_momentum] && muon) { o->momentum = 0.9; }
    if (!o->typed[CLI_INDEX_weight_decay]) { o->weight_decay = 0.1; }
    if (!o->typed[CLI_INDEX_final_fraction] && !constant) { o->final_fraction = 0.0; }
    if (num_steps < 0) { return; }
    const double tokens = o->total_batch < 65536 ? o->total_batch : 65536; // the largest step that was tuned
    snprintf(rate, sizeof(rate), "%.3g", (muon ? 2.5e-3 : 1e-3) * sqrt(tokens / (muon ? 32768 : 16384)));
    if (!o->typed[CLI_INDEX_learning_rate]) { o->learning_rate = strtod(rate, NULL); }
    if (!o->typed[CLI_INDEX_warmup] && !constant) { o->warmup = (int)((muon ? 1LL : 3LL) * num_steps / 10); }
}

#endif
