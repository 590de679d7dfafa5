/*
The command line of generate_gpt2: the table of its flags, of which cli.h makes the rest.
*/
#ifndef LLMC_GENERATE_FLAGS_H
#define LLMC_GENERATE_FLAGS_H

#include "llmc/model/flags.h"

#define CLI_PROGRAM CLI_PROGRAM_NAME("generate_gpt2")

// The columns are those of CLI_DECLARE.
// clang-format off
#define CLI_FLAGS(X, G)                                                                                                \
    G(model, "Model and prompts")                                                                                      \
    X(model, "-e", "--model", text, CLI_MODEL, 0, 0, NULL, FOR_BOTH, FREE,                                             \
      "the weights: a .bin or .safetensors file, or a folder: Hugging Face's, or a run's (its newest checkpoint)")     \
    X(tokenizer, NULL, "--tokenizer", text, NULL, 0, 0, NULL, FOR_BOTH, FREE,                                          \
      "token texts: a file, or a folder with tokenizer.json or vocab.json; without it the model's folder, where it has them, else gpt2_tokenizer.bin") \
    X(prompt, "-p", "--prompt", texts, NULL, 0, 0, NULL, FOR_BOTH, FREE,                                               \
      "what a text begins with; may be given again and again. Empty: the beginning of any text")                       \
    X(prompt_file, NULL, "--prompt-file", text, NULL, 0, 0, NULL, FOR_BOTH, FREE,                                      \
      "a file of prompts, one a line. Without prompts they are read from stdin, where that is no terminal")            \
    X(interactive, NULL, "--interactive", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                       \
      "read lines and continue each; the model sees the whole text, stop texts too; Ctrl-C ends an answer, Ctrl-D all") \
    G(tokens, "Samples")                                                                                               \
    X(tokens, "-n", "--tokens", whole, 128, 1, 1 << 30, NULL, FOR_BOTH, FREE,                                          \
      "new tokens of a sample, at most")                                                                               \
    SAMPLING_FLAGS(X, 0.8, 200)                                                                                        \
    X(top_p, NULL, "--top-p", number, 1.0, 0, 1, NULL, FOR_BOTH, FREE,                                                 \
      "sample among the fewest of the likeliest tokens whose probabilities reach p together; 1: all")                  \
    X(repetition_penalty, NULL, "--repetition-penalty", number, 1.0, 0.01, 100, NULL, FOR_BOTH, FREE,                  \
      "tokens that were there before have their logit divided by it, or multiplied where negative; 1: none")           \
    X(seed, NULL, "--seed", whole, 1337, 0, INT_MAX, NULL, FOR_BOTH, FREE,                                             \
      "of sampling; a sample depends on the prompt, the settings, the seed and its number, and on no other sample")  \
    X(num_samples, NULL, "--num-samples", whole, 1, 1, 1 << 20, NULL, FOR_BOTH, FREE,                                  \
      "samples of each prompt")                                                                                        \
    X(stop, NULL, "--stop", texts, NULL, 0, 0, NULL, FOR_BOTH, FREE,                                                   \
      "a text before which a sample ends; may be given again and again")                                               \
    X(ignore_end, NULL, "--ignore-end", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                         \
      "a sample continues after <|endoftext|>, which else ends it")                                                      \
    X(overflow, NULL, "--overflow", text, "stop", 0, 0, "stop|slide", FOR_BOTH, FREE,                                  \
      "what a sample does that has filled the context: end, or continue from its last half")                              \
    X(context, NULL, "--context", whole, 0, 0, 1 << 24, NULL, FOR_BOTH, FREE,                                          \
      "tokens that a sequence, or a window of --perplexity, can have; 0: what is needed, at most what the model was trained on") \
    X(batch, "-b", "--batch", whole, CLI_AUTO, 1, 1 << 16, "auto", FOR_BOTH, FREE,                                     \
      "sequences that are generated, or windows that are scored, at a time; no result depends on it")                  \
    G(echo, "What is printed")                                                                                         \
    X(echo, NULL, "--echo", toggle, 1, 0, 1, NULL, FOR_BOTH, FREE,                                                     \
      "print the prompt before the text that continues it")                                                            \
    X(json, NULL, "--json", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                                     \
      "print one JSON object a line: for each sample, or for the scores")                                              \
    X(quiet, "-q", "--quiet", toggle, 0, 0, 1, NULL, FOR_BOTH, FREE,                                                   \
      "no report on stderr")                                                                                           \
    G(perplexity, "Scores instead of samples")                                                                         \
    X(perplexity, NULL, "--perplexity", text, NULL, 0, 0, NULL, FOR_BOTH, FREE,                                        \
      "score a file instead, text or token .bin: loss per token, perplexity, bits per byte")                           \
    X(stride, NULL, "--stride", whole, 0, 0, 1 << 24, NULL, FOR_BOTH, FREE,                                            \
      "tokens between the windows of --perplexity; each token is scored once, in the first window that has it; 0: half a window") \
    X(hellaswag, NULL, "--hellaswag", text, NULL, 0, 0, NULL, FOR_BOTH, FREE,                                          \
      "answer a file of questions instead, as dev/data/hellaswag.py writes it: the accuracy")                          \
    G(export_to, "Export instead of samples")                                                                          \
    X(export_to, NULL, "--export", text, NULL, 0, 0, NULL, FOR_BOTH, FREE,                                             \
      "write the model instead: to a folder for transformers, to FILE.safetensors, or to llm.c's FILE.bin; no other format")            \
    X(export_dtype, NULL, "--export-dtype", text, "auto", 0, 0, "auto|fp32|bf16", FOR_BOTH, FREE,                      \
      "precision of the exported weights; auto: bf16 where nothing is lost, else fp32")
// clang-format on

CLI_DECLARE(CLI_FLAGS, CLI_PROGRAM, "CPU program's", "GPU program's; leave it out, or run ./generate_gpt2cu",
            "-e log124M --prompt \"The king\" --tokens 200 --temperature 0.8 --top-k 40")

#endif
