/*
Multiple-choice evaluation (HellaSwag: Zellers et al. 2019). A context has four endings; the model chooses the one whose
tokens have the highest mean log-probability. Each ending is a row: context, ending, zeros. An example takes four rows, so a
batch of B rows has B/4 examples: batch i those from i * (B/4) on, in every process.

The file: the header ([2] number of examples), then each example as uint16:
  65535, its length in bytes, its index, the label, the number of endings,
  then the context and each ending, every one as its number of tokens and the tokens.
It is read and checked as a whole when it is opened, its checksums too where it has them (checked_file.h): HellaSwag's
validation set is a few megabytes.
*/
#ifndef LLMC_FILES_EVALLOADER_H
#define LLMC_FILES_EVALLOADER_H

#include <math.h>

#include "llmc/base/checked_file.h"
#include "llmc/base/utils.h"

enum { EVAL_MAGIC = 20240522, EVAL_ENDINGS = 4, EVAL_EXAMPLE_MARK = 65535 };
enum { EVAL_MAX_EXAMPLES = 65536 };                  // their index has 16 bits
enum { EVAL_SMALLEST = 5 + 2 * (1 + EVAL_ENDINGS) }; // words of an example whose parts have one token each

typedef struct {
    size_t B, T;
    const char* path;
    int num_examples;    // of the file
    int num_batches;     // that it takes to go through it once
    int batch_size;      // examples of a batch: B/4
    int examples;        // in this batch; fewer, or none, at the end
    int largest_token;   // of the file
    int unchecked;       // 1: the file has no checksums
    uint16_t* words;     // the file's body
    size_t* offsets;     // (num_examples) example i begins at words[offsets[i]]
    int* inputs;         // (B,T)
    int* targets;        // (B,T)
    unsigned char* mask; // (B,T) 1 if the target is a token of an ending
    int* label;          // (B/4) the right ending
} EvalLoader;

// ----------------------------------------------------------------------------
// The file

// Checks the example at words[0..left-1]; returns the number of words it takes.
static inline size_t evalloader_check_example_(EvalLoader* e, const uint16_t* words, size_t left, int index) {
    size_t length = left < 5 ? 0 : words[1] / 2u, at = 5, context = 0;
    if (length < 5 || length > left || words[0] != EVAL_EXAMPLE_MARK || words[1] % 2 != 0 || words[2] != index ||
        words[3] >= EVAL_ENDINGS || words[4] != EVAL_ENDINGS) {
        fatal("%s: there is no example %d of %d endings where it should begin; the file is truncated or corrupt",
              e->path, index, (int)EVAL_ENDINGS);
    }
    for (int part = 0; part <= EVAL_ENDINGS; part++) { // the context, then the endings
        size_t n = at < length ? words[at] : 0;
        size_t end = at + 1 + n;
        if (n == 0 || end > length || (part == EVAL_ENDINGS && end != length)) {
            fatal("%s: example %d does not fit its length of %zu bytes; the file is corrupt", e->path, index,
                  2 * length);
        }
        if (part == 0) {
            context = n;
        } else if (context + n > e->T) {
            fatal("%s: example %d takes %zu tokens, a row has T = %zu; choose a larger -t, or leave out -h", e->path,
                  index, context + n, e->T);
        }
        for (size_t i = at + 1; i < end; i++) {
            if (words[i] > e->largest_token) { e->largest_token = words[i]; }
        }
        at = end;
    }
    return length;
}

static inline void evalloader_read_(EvalLoader* e) {
    CheckedReader file;
    check(checked_open(&file, e->path, EVAL_MAGIC, "multiple-choice evaluation file"));
    const int32_t* header = file.header;
    if (header[1] != 1) { fatal("%s: evaluation file version %d is not supported: 1 is", e->path, (int)header[1]); }
    size_t bytes = file.body_bytes, words = bytes / 2, at = 0;
    if (header[2] < 1 || header[2] > EVAL_MAX_EXAMPLES || (size_t)header[2] > words / EVAL_SMALLEST) {
        fatal("%s: its header says %d examples, which do not fit its %zu bytes; the file is truncated or corrupt",
              e->path, (int)header[2], bytes);
    }
    e->num_examples = header[2];
    e->words = (uint16_t*)malloc_check(bytes);
    check(checked_read(&file, e->words, bytes));
    e->unchecked = !file.has_checksums;
    checked_close(&file);
    e->offsets = (size_t*)malloc_check((size_t)e->num_examples * sizeof(size_t));
    for (int i = 0; i < e->num_examples; i++) {
        e->offsets[i] = at;
        at += evalloader_check_example_(e, e->words + at, words - at, i);
    }
    if (2 * at != bytes) {
        fatal("%s has trailing bytes after its %d examples; it is corrupt", e->path, e->num_examples);
    }
}

// ----------------------------------------------------------------------------
// The loader

// Opens an evaluation file for batches of B rows of T tokens. `path` must outlive the loader. Ends with one line that names
// the file and its fault.
static inline void evalloader_open(EvalLoader* e, const char* path, int B, int T) {
    memset(e, 0, sizeof(*e));
    e->B = (size_t)B, e->T = (size_t)T;
    e->path = path;
    e->batch_size = B / EVAL_ENDINGS;
    if (e->batch_size == 0) {
        fatal("%s: an example takes %d rows, the batch has %d; choose -b %d or more, or leave out -h", path,
              (int)EVAL_ENDINGS, B, (int)EVAL_ENDINGS);
    }
    evalloader_read_(e);
    e->num_batches = CEIL_DIV(e->num_examples, e->batch_size);
    e->inputs = (int*)calloc_check(e->B * e->T, sizeof(int));
    e->targets = (int*)calloc_check(e->B * e->T, sizeof(int));
    e->mask = (unsigned char*)calloc_check(e->B * e->T, 1);
    e->label = (int*)calloc_check((size_t)e->batch_size, sizeof(int));
}

// Tokens of the longest row of the file
static inline size_t evalloader_longest(const EvalLoader* e) {
    size_t longest = 0;
    for (int i = 0; i < e->num_examples; i++) {
        const uint16_t* context = e->words + e->offsets[i] + 5;
        const uint16_t* ending = context + 1 + context[0];
        for (int k = 0; k < EVAL_ENDINGS; k++, ending += 1 + ending[0]) {
            size_t row = (size_t)context[0] + ending[0];
            longest = row > longest ? row : longest;
        }
    }
    return longest;
}

// Ends the program with one line if the file holds a token that the model does not know.
static inline void evalloader_check_vocab(const EvalLoader* e, int vocab_size) {
    if (e->largest_token < vocab_size) { return; }
    fatal("%s holds token %d, which is not below the model's vocabulary of %d; leave out -h", e->path, e->largest_token,
          vocab_size);
}

// Writes one example into its four rows: inputs, targets and mask are (4,T). Returns the label.
static inline int evalloader_unpack_(const EvalLoader* e, int example, int* inputs, int* targets, unsigned char* mask) {
    const uint16_t* context = e->words + e->offsets[example] + 5; // its length, then its tokens
    const uint16_t* ending = context + 1 + context[0];
    for (size_t row = 0; row < EVAL_ENDINGS; row++, ending += 1 + ending[0]) {
        size_t at = row * e->T;
        for (int i = 1; i <= context[0]; i++) { inputs[at++] = context[i]; }
        for (int i = 1; i <= ending[0]; i++) { // each token is the target of the one before
            targets[at - 1] = ending[i];
            mask[at - 1] = 1;
            inputs[at++] = ending[i];
        }
    }
    return e->words[e->offsets[example] + 3];
}

// Fills inputs, targets, mask and label with the examples of a batch; with none where it is beyond the end.
static inline void evalloader_fill(EvalLoader* e, int batch) {
    size_t tokens = e->B * e->T;
    memset(e->inputs, 0, tokens * sizeof(int));
    memset(e->targets, 0, tokens * sizeof(int));
    memset(e->mask, 0, tokens);
    int first = batch < e->num_batches ? batch * e->batch_size : e->num_examples;
    for (e->examples = 0; e->examples < e->batch_size && first + e->examples < e->num_examples; e->examples++) {
        size_t at = (size_t)e->examples * EVAL_ENDINGS * e->T;
        e->label[e->examples] =
            evalloader_unpack_(e, first + e->examples, e->inputs + at, e->targets + at, e->mask + at);
    }
}

// The number of examples of this batch that the model answers correctly: the ending with the lowest mean loss is the label's.
// losses is (B,T). NaN is never the lowest.
static inline int evalloader_score(const EvalLoader* e, const float* losses) {
    int correct = 0;
    for (int example = 0; example < e->examples; example++) {
        double lowest = INFINITY;
        int choice = -1;
        for (int ending = 0; ending < EVAL_ENDINGS; ending++) {
            size_t row = ((size_t)example * EVAL_ENDINGS + (size_t)ending) * e->T;
            double sum = 0.0;
            int count = 0;
            for (size_t t = row; t < row + e->T; t++) {
                if (e->mask[t]) { sum += (double)losses[t], count++; }
            }
            if (sum / count < lowest) { lowest = sum / count, choice = ending; } // an ending has a token: count > 0
        }
        correct += choice == e->label[example];
    }
    return correct;
}

static inline void evalloader_close(EvalLoader* e) {
    free(e->words);
    free(e->offsets);
    free(e->inputs);
    free(e->targets);
    free(e->mask);
    free(e->label);
    memset(e, 0, sizeof(*e));
}

#endif
