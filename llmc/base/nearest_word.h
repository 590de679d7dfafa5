/*
The name that a mistyped word was meant to be: that with the fewest edits (a character inserted, deleted or replaced), or that
the word begins. None where more than a third of the word would have to change.
*/
#ifndef LLMC_BASE_NEAREST_WORD_H
#define LLMC_BASE_NEAREST_WORD_H

#include <string.h>

typedef struct {
    const char* word;
    size_t length;
    const char* name; // the nearest so far; NULL: none is near
    size_t edits;     // fewer are nearer
} NearestWord;

static inline NearestWord nearest_word_begin(const char* word, size_t length) {
    NearestWord n = {word, length, NULL, length / 3 + 1};
    return n;
}

// Levenshtein's distance of the word and a name, by rows of the usual table; the largest number where one of them is long.
static inline size_t nearest_word_edits_(const NearestWord* n, const char* name) {
    size_t row[64], length = strlen(name);
    if (length >= 64 || n->length >= 64) { return (size_t)-1; }
    for (size_t j = 0; j <= length; j++) { row[j] = j; }
    for (size_t i = 1; i <= n->length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length; j++) {
            size_t replaced = diagonal + (n->word[i - 1] != name[j - 1]);
            size_t other = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1; // deleted or inserted
            diagonal = row[j];
            row[j] = replaced < other ? replaced : other;
        }
    }
    return row[length];
}

// Offers a name, which must last as long as the search.
static inline void nearest_word_try(NearestWord* n, const char* name) {
    int begins = n->length > 3 && strncmp(n->word, name, n->length) == 0; // beyond dashes and one letter
    size_t edits = begins ? 1 : nearest_word_edits_(n, name);
    if (edits >= n->edits) { return; }
    n->name = name, n->edits = edits;
}

#endif
