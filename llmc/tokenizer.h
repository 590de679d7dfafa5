/*
From token ids back to text. Two vocabularies: the 256 bytes, which need no file, and GPT-2's, from a file that
dev/data/tokenizer.py writes: the header ([2] vocabulary size, [3] the id of <|endoftext|> from version 2 on), then each
token as one byte of length and its bytes. A token is bytes, not text: one character may take several tokens. Checksums, where
the file has them, are verified (checked_file.h).
*/
#ifndef LLMC_TOKENIZER_H
#define LLMC_TOKENIZER_H

#include "checked_file.h"
#include "utils.h"

enum { TOKENIZER_MAGIC = 20240328, BYTE_VOCAB_SIZE = 256 };

typedef struct {
    int vocab_size;
    int eot_token;          // what a sample begins with: <|endoftext|>, or a newline where tokens are bytes
    int ready;              // 0: there is no file; tokens print as numbers
    int unchecked;          // 1: it came from a file without checksums
    unsigned char* bytes;   // all tokens' bytes, one after the other
    size_t* offsets;        // (vocab_size + 1) token i is bytes[offsets[i]] .. bytes[offsets[i+1] - 1]
    unsigned char begun[4]; // the first bytes of a UTF-8 character whose rest is still to be printed
    int begun_length;
} Tokenizer;

static inline void tokenizer_allocate_(Tokenizer* t, int vocab_size, size_t bytes) {
    t->vocab_size = vocab_size;
    t->bytes = (unsigned char*)malloc_check(bytes);
    t->offsets = (size_t*)malloc_check(((size_t)vocab_size + 1) * sizeof(size_t));
    t->offsets[0] = 0;
    t->ready = 1;
}

// Reads the tokens of an open file, whose header has been read.
static inline void tokenizer_read_tokens_(Tokenizer* t, CheckedReader* file, const char* path, int vocab_size) {
    size_t left = file->body_bytes, at = 0;
    if (left > (size_t)vocab_size * 256) { // a byte of length and up to 255 bytes
        fatal("%s has trailing bytes: %zu for %d tokens; it is corrupt", path, left, vocab_size);
    }
    unsigned char* body = (unsigned char*)malloc_check(left); // (length byte, bytes) of each token
    check(checked_read(file, body, left));
    tokenizer_allocate_(t, vocab_size, left);
    for (int i = 0; i < vocab_size; i++) {
        size_t length = at < left ? body[at] : 1; // beyond the end: caught by the next line
        if (at + 1 + length > left) { fatal("%s ends inside token %d of %d; it is truncated", path, i, vocab_size); }
        if (length == 0) { fatal("%s: token %d is empty; the file is corrupt", path, i); }
        memcpy(t->bytes + t->offsets[i], body + at + 1, length);
        t->offsets[i + 1] = t->offsets[i] + length;
        at += 1 + length;
    }
    if (at != left) {
        fatal("%s has %zu trailing bytes after its %d tokens; it is corrupt", path, left - at, vocab_size);
    }
    free(body);
}

// Loads the tokenizer of a model with this vocabulary. A file that does not exist is not an error: it is said once on
// stderr, and samples print as numbers. A file that is not sound, or is another vocabulary's, ends with one line.
static inline void tokenizer_load(Tokenizer* t, const char* path, int vocab_size) {
    memset(t, 0, sizeof(*t));
    if (vocab_size == BYTE_VOCAB_SIZE) {
        tokenizer_allocate_(t, BYTE_VOCAB_SIZE, BYTE_VOCAB_SIZE);
        for (int i = 0; i < BYTE_VOCAB_SIZE; i++) {
            t->bytes[i] = (unsigned char)i;
            t->offsets[i + 1] = (size_t)i + 1;
        }
        t->eot_token = '\n';
        return;
    }
    t->vocab_size = vocab_size;
    t->eot_token = vocab_size - 1; // <|endoftext|> is GPT-2's last
    if (!file_exists(path)) {
        fprintf(stderr, "no tokenizer file %s: samples print as numbers; python3 dev/data/tokenizer.py writes it\n",
                path);
        return;
    }
    CheckedReader file;
    check(checked_open(&file, path, TOKENIZER_MAGIC, "tokenizer file"));
    const int32_t* header = file.header;
    if (header[1] != 1 && header[1] != 2) {
        fatal("%s: tokenizer version %d is not supported: 1 and 2 are", path, (int)header[1]);
    }
    if (header[2] != vocab_size) {
        fatal("%s holds %d tokens, the model's vocabulary has %d; --tokenizer names another file", path, (int)header[2],
              vocab_size);
    }
    if (header[1] == 2) { t->eot_token = header[3]; }
    if (t->eot_token < 0 || t->eot_token >= vocab_size) {
        fatal("%s: end-of-text token %d is not below the vocabulary of %d", path, t->eot_token, vocab_size);
    }
    tokenizer_read_tokens_(t, &file, path, vocab_size);
    t->unchecked = !file.has_checksums;
    checked_close(&file);
}

static inline void tokenizer_free(Tokenizer* t) {
    free(t->bytes);
    free(t->offsets);
    memset(t, 0, sizeof(*t));
}

// Returns the bytes of a token and their number; NULL and 0 where the token or the tokenizer does not exist. The bytes
// may hold a NUL, and none follows them.
static inline const unsigned char* tokenizer_decode(const Tokenizer* t, int id, size_t* length) {
    *length = 0;
    if (!t->ready || id < 0 || id >= t->vocab_size) { return NULL; }
    *length = t->offsets[id + 1] - t->offsets[id];
    return t->bytes + t->offsets[id];
}

// How many bytes a UTF-8 character has that begins with these `n` bytes (1 <= n <= 4), if each is what RFC 3629 allows
// there; 0 where one is not.
static inline int utf8_length(const unsigned char* s, int n) {
    int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < n && i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) { return 0; }
    }
    if (n < 2) { return length; }
    if (s[0] == 0xe0 && s[1] < 0xa0) { return 0; }  // longer than need be
    if (s[0] == 0xed && s[1] >= 0xa0) { return 0; } // surrogates
    if (s[0] == 0xf0 && s[1] < 0x90) { return 0; }  // longer than need be
    if (s[0] == 0xf4 && s[1] >= 0x90) { return 0; } // beyond U+10FFFF
    return length;
}

// 1 for the characters that would steer a terminal: U+0000-001F but white space, U+007F-009F
static inline int is_control_character(const unsigned char* s) {
    if (s[0] >= '\t' && s[0] <= '\r') { return 0; }
    return s[0] < 0x20 || s[0] == 0x7f || (s[0] == 0xc2 && s[1] < 0xa0);
}

// Prints a token so that a terminal can show it: whole UTF-8 characters, also those that several tokens make together,
// without control characters other than white space; the number where the tokenizer does not know the token.
static inline void tokenizer_print(FILE* out, Tokenizer* t, int id) {
    size_t length;
    const unsigned char* bytes = tokenizer_decode(t, id, &length);
    if (bytes == NULL) {
        fprintf(out, "%d ", id);
        return;
    }
    for (size_t i = 0; i < length; i++) {
        t->begun[t->begun_length++] = bytes[i];
        int whole = utf8_length(t->begun, t->begun_length);
        if (whole == 0) { // what was begun does not go on like this: drop it; this byte may begin another
            t->begun[0] = bytes[i];
            t->begun_length = 1;
            whole = utf8_length(t->begun, 1);
        }
        if (whole == t->begun_length && !is_control_character(t->begun)) { fwrite(t->begun, 1, (size_t)whole, out); }
        if (whole == 0 || whole == t->begun_length) { t->begun_length = 0; }
    }
}

#endif
