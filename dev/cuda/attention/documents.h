/*
Rows of documents for attention's checks and benchmarks: where the document of each token begins, `starts` of attention.h.
*/
#ifndef ATTENTION_DOCUMENTS_H
#define ATTENTION_DOCUMENTS_H

#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dev/cuda/bench/random.cuh"

// How long documents are. A positive number: all are so long, and a row begins with a new one
enum DocumentLengths {
    NO_DOCUMENTS = 0,        // the launchers without starts
    ONE_DOCUMENT = -1,       // a row is one: the bits of the launchers without starts
    SHORT_DOCUMENTS = -2,    // 1 to 9 tokens: hundreds in a row
    LOG_NORMAL = -3,         // median 403, mean 690; the first one is cut at its front, as in rows of a training set
    ENDS_AT_EVERY_TOKEN = -4 // row b has two documents, of T - b tokens and of the rest; row 0 is one
};

// Of --documents: a length, or log-normal; NO_DOCUMENTS if it is neither
inline int document_lengths_of(const char* text) {
    if (strcmp(text, "log-normal") == 0) { return LOG_NORMAL; }
    char* end;
    const long length = strtol(text, &end, 10);
    return *text != '\0' && *end == '\0' && length > 0 && length <= INT_MAX ? (int)length : NO_DOCUMENTS;
}

// For messages: "" without documents
inline std::string document_lengths_text(int lengths) {
    static const char* const names[] = {"", ", one document", ", short documents", ", log-normal documents",
                                        ", documents that end at every token"};
    return lengths > 0 ? ", documents of " + std::to_string(lengths) : names[-lengths];
}

// The length of document n of row b
inline int document_length(int lengths, int b, int T, int n) {
    const uint64_t at = (uint64_t)b * T + n;
    switch (lengths) {
    case NO_DOCUMENTS:
    case ONE_DOCUMENT:
        return T;
    case SHORT_DOCUMENTS:
        return 1 + (int)(9 * uniform_at(5, at));
    case ENDS_AT_EVERY_TOKEN:
        return n == 0 ? T - b % T : T;
    case LOG_NORMAL: { // exp(mu + sigma^2 / 2) is the mean, exp(mu) the median
        const double sigma = sqrt(2 * log(690.0 / 403)), length = 403 * exp(sigma * normal_at(6, at));
        const double whole = n == 0 ? length * uniform_at(7, at) : length;
        return (int)fmin(fmax(whole, 1), T);
    }
    default:
        return lengths;
    }
}

// starts (B,T)
inline std::vector<int> document_starts(int lengths, int B, int T) {
    std::vector<int> starts((size_t)B * T);
    for (int b = 0; b < B; b++) {
        for (int t = 0, n = 0; t < T; n++) {
            const int start = t, end = (int)std::min<int64_t>(T, (int64_t)t + document_length(lengths, b, T, n));
            for (; t < end; t++) { starts[(size_t)b * T + t] = start; }
        }
    }
    return starts;
}

#endif
