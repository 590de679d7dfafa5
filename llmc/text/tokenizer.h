/*
From token ids to text and back. Two vocabularies: the 256 bytes, which need no file, and GPT-2's, from a file that
dev/data/tokenizer.py writes: the header ([2] vocabulary size, [3] the id of <|endoftext|> from version 2 on), then each
token as one byte of length and its bytes; or from a Hugging Face folder (vocab_json.h). A token is bytes, not text: one
character may take several tokens. Checksums, where the file has them, are verified (checked_file.h). Any bytes can be encoded
(bpe.h), and decode to themselves. Special tokens, such as <|endoftext|>, are not made of text: tokenizer_encode makes text of
their names, tokenizer_encode_prompt the tokens, as transformers does.
*/
#ifndef LLMC_TEXT_TOKENIZER_H
#define LLMC_TEXT_TOKENIZER_H

#include "bpe.h"
#include "stream.h"
#include "vocab_json.h"
#include "llmc/base/checked_file.h"
#include "llmc/base/utf8.h"
#include "llmc/base/utils.h"

#define TOKENIZER_FILE "gpt2_tokenizer.bin" // what programs take where none is named

enum { TOKENIZER_MAGIC = 20240328, BYTE_VOCAB_SIZE = 256 };

typedef struct {
    int vocab_size;
    int eot_token;        // what a sample begins with: <|endoftext|>, or a newline where tokens are bytes
    int ready;            // 0: there is no file; tokens print as numbers
    int unchecked;        // 1: it came from a file without checksums
    unsigned char* bytes; // all tokens' bytes, one after the other
    size_t* offsets;      // (vocab_size + 1) token i is bytes[offsets[i]] .. bytes[offsets[i+1] - 1]
    TextStream shown;     // what tokenizer_print has printed
    TokenList special;    // tokens that are not made of text
    Bpe bpe;              // empty until tokenizer_prepare_encode()
    char* folder;         // of Hugging Face, which it came from; NULL: none
    int *ranks, *firsts;  // from there, as in Vocab
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
        if (length == 0 || at + 1 + length > left) {
            fatal("%s: token %d of %d is empty or beyond the end; it is truncated or corrupt", path, i, vocab_size);
        }
        memcpy(t->bytes + t->offsets[i], body + at + 1, length);
        t->offsets[i + 1] = t->offsets[i] + length;
        at += 1 + length;
    }
    if (at != left) {
        fatal("%s has %zu trailing bytes after its %d tokens; it is corrupt", path, left - at, vocab_size);
    }
    free(body);
}

static inline void tokenizer_load_bytes_(Tokenizer* t) {
    tokenizer_allocate_(t, BYTE_VOCAB_SIZE, BYTE_VOCAB_SIZE);
    for (int i = 0; i < BYTE_VOCAB_SIZE; i++) {
        t->bytes[i] = (unsigned char)i;
        t->offsets[i + 1] = (size_t)i + 1;
    }
    t->eot_token = '\n';
}

// A Hugging Face folder. Ids of the model beyond its tokens have no text.
static inline void tokenizer_load_folder_(Tokenizer* t, const char* path, int vocab_size) {
    Vocab v;
    check(vocab_read_folder(&v, path));
    if (vocab_size == 0) { vocab_size = v.num_tokens; }
    if (v.num_tokens > vocab_size) {
        fatal("%s holds %d tokens, the model's vocabulary has %d; --tokenizer names another folder", path, v.num_tokens,
              vocab_size);
    }
    tokenizer_allocate_(t, vocab_size, v.offsets[v.num_tokens]);
    memcpy(t->bytes, v.bytes, v.offsets[v.num_tokens]);
    for (int i = 0; i <= vocab_size; i++) { t->offsets[i] = v.offsets[i < v.num_tokens ? i : v.num_tokens]; }
    t->eot_token = v.eot_token;
    t->special = v.special, t->ranks = v.ranks, t->firsts = v.firsts;
    memset(&v.special, 0, sizeof(v.special)), v.ranks = NULL, v.firsts = NULL;
    t->folder = (char*)malloc_check(strlen(path) + 1);
    strcpy(t->folder, path);
    t->unchecked = 1;
    vocab_free(&v);
}

// With `or_none`, a file of another vocabulary counts as missing.
static inline void tokenizer_load_file_(Tokenizer* t, const char* path, int vocab_size, int or_none) {
    CheckedReader file;
    check(checked_open(&file, path, TOKENIZER_MAGIC, "tokenizer file"));
    const int32_t* header = file.header;
    if (header[1] != 1 && header[1] != 2) {
        fatal("%s: tokenizer version %d is not supported: 1 and 2 are", path, (int)header[1]);
    }
    if (header[2] < 1 || header[2] > MAX_VOCAB_SIZE) {
        fatal("%s: %d tokens are not from 1 to %d; the file is corrupt", path, (int)header[2], (int)MAX_VOCAB_SIZE);
    }
    if (or_none && header[2] != vocab_size) {
        fprintf(stderr, "%s holds %d tokens, the model's vocabulary has %d: tokens print as numbers\n", path,
                (int)header[2], vocab_size);
        checked_close(&file);
        return;
    }
    if (vocab_size == 0) { vocab_size = header[2]; }
    if (header[2] != vocab_size) {
        fatal("%s holds %d tokens, the model's vocabulary has %d; --tokenizer names another file", path, (int)header[2],
              vocab_size);
    }
    t->eot_token = header[1] == 2 ? header[3] : vocab_size - 1; // <|endoftext|> is GPT-2's last
    if (t->eot_token < 0 || t->eot_token >= vocab_size) {
        fatal("%s: end-of-text token %d is not below the vocabulary of %d", path, t->eot_token, vocab_size);
    }
    tokenizer_read_tokens_(t, &file, path, vocab_size);
    token_list_add(&t->special, &t->eot_token, 1);
    t->unchecked = !file.has_checksums;
    checked_close(&file);
}

static inline void tokenizer_load_(Tokenizer* t, const char* path, int vocab_size, int or_none) {
    memset(t, 0, sizeof(*t));
    if (vocab_size == BYTE_VOCAB_SIZE) {
        tokenizer_load_bytes_(t);
        return;
    }
    t->vocab_size = vocab_size;
    t->eot_token = vocab_size - 1;
    if (file_missing(path)) {
        fprintf(stderr, "no tokenizer file %s: tokens print as numbers; python3 dev/data/tokenizer.py writes it\n",
                path);
    } else if (folder_exists(path)) {
        tokenizer_load_folder_(t, path, vocab_size);
    } else {
        tokenizer_load_file_(t, path, vocab_size, or_none);
    }
}

// Loads the tokenizer of a model with this vocabulary (vocab_size 0: any) from a file or a Hugging Face folder. If it does not
// exist, prints a note to stderr, and samples print as numbers. Ends the program with one line if it is invalid, or has another
// vocabulary.
static inline void tokenizer_load(Tokenizer* t, const char* path, int vocab_size) {
    tokenizer_load_(t, path, vocab_size, 0);
}

// The same for a program that encodes no text: TOKENIZER_FILE may belong to other models.
static inline void tokenizer_load_to_decode(Tokenizer* t, const char* path, int vocab_size) {
    tokenizer_load_(t, path, vocab_size, strcmp(path, TOKENIZER_FILE) == 0);
}

// The path of a model's own tokenizer: the folder of its weights, or that they are in, if it has one; else TOKENIZER_FILE.
static inline const char* tokenizer_of_model(const char* model, char* folder, size_t size) {
    const char* slash = strrchr(model, '/');
    int length = folder_exists(model) ? (int)strlen(model) : slash != NULL ? (int)(slash - model) : 0;
    snprintf(folder, size, "%.*s", length > 0 ? length : 1, length > 0 ? model : slash != NULL ? "/" : ".");
    return vocab_in_folder(folder) ? folder : TOKENIZER_FILE;
}

static inline void tokenizer_free(Tokenizer* t) {
    bpe_free(&t->bpe);
    token_list_free(&t->special);
    text_stream_free(&t->shown);
    free(t->folder);
    free(t->ranks);
    free(t->firsts);
    free(t->bytes);
    free(t->offsets);
    memset(t, 0, sizeof(*t));
}

// Returns the bytes of a token and their number; NULL and 0 if the token or the tokenizer does not exist, or the token has
// no text. The bytes may hold a NUL, and none follows them.
static inline const unsigned char* tokenizer_decode(const Tokenizer* t, int id, size_t* length) {
    *length = 0;
    if (!t->ready || id < 0 || id >= t->vocab_size) { return NULL; }
    *length = t->offsets[id + 1] - t->offsets[id];
    return *length > 0 ? t->bytes + t->offsets[id] : NULL;
}

// Fails if byte pair encoding by bytes and ranks would make a token of other halves than its merge does: the merges of a
// tokenizer that was trained never do, nor ids that are their order. With `first` (vocab_size) every token must be of merges,
// and gets the bytes of its first half there, 0 if it has one byte or none.
static inline Status tokenizer_merges(int* first, const Tokenizer* t, Bpe* bpe) {
    int end[VOCAB_TOKEN_BYTES];
    for (int id = 0; id < t->vocab_size; id++) {
        size_t n;
        const unsigned char* s = tokenizer_decode(t, id, &n);
        if (n == 0 || token_list_has(&t->special, id)) { continue; }
        int is_own = bpe_find(bpe, s, n) == id;
        if (is_own ? n == 1 : first == NULL) { continue; }
        if (!is_own || bpe_parts(bpe, id, end) != 2 || (t->firsts != NULL && end[0] != t->firsts[id])) {
            return status_fail("token %d of %s is no merge of two tokens before it, or has another's bytes", id,
                               t->folder != NULL ? t->folder : "the tokenizer");
        }
        if (first != NULL) { first[id] = end[0]; }
    }
    return STATUS_OK;
}

// Builds what tokenizer_encode needs, once: for GPT-2's vocabulary 10 ms. Fails if there is no tokenizer, or its tokens
// cannot encode every text.
static inline Status tokenizer_prepare_encode(Tokenizer* t) {
    if (t->bpe.slots != NULL || (t->ready && t->vocab_size == BYTE_VOCAB_SIZE)) { return STATUS_OK; }
    if (!t->ready) {
        return status_fail("text needs a tokenizer: --tokenizer FILE, which python3 dev/data/tokenizer.py writes");
    }
    TRY(bpe_prepare(&t->bpe, t->bytes, t->offsets, t->ranks, t->vocab_size, &t->special));
    Status status = t->folder != NULL ? tokenizer_merges(NULL, t, &t->bpe) : STATUS_OK;
    if (status != STATUS_OK) { bpe_free(&t->bpe); }
    return status;
}

// Appends the ids of a text, in which names of special tokens are text. Bytes that are not UTF-8 are encoded unchanged.
static inline Status tokenizer_encode(Tokenizer* t, const char* text, size_t bytes, TokenList* out) {
    TRY(tokenizer_prepare_encode(t));
    if (t->bpe.slots != NULL) { return bpe_encode(&t->bpe, text, bytes, out); }
    token_list_reserve(out, bytes);
    for (size_t i = 0; i < bytes; i++) { out->ids[out->count++] = (unsigned char)text[i]; }
    return STATUS_OK;
}

// Where the first name of a special token in a text begins, *id being the one with the longest name there; `bytes`: nowhere.
static inline size_t tokenizer_find_special_(const Tokenizer* t, const char* text, size_t bytes, int* id) {
    for (size_t at = 0; at < bytes; at++) {
        size_t longest = 0;
        for (size_t i = 0; i < t->special.count; i++) {
            size_t n;
            const unsigned char* name = tokenizer_decode(t, t->special.ids[i], &n);
            if (n <= longest || n > bytes - at || memcmp(text + at, name, n) != 0) { continue; }
            longest = n, *id = t->special.ids[i];
        }
        if (longest > 0) { return at; }
    }
    return bytes;
}

// The same for a prompt, in which the names of special tokens are the tokens.
static inline Status tokenizer_encode_prompt(Tokenizer* t, const char* text, size_t bytes, TokenList* out) {
    for (;;) {
        int id = 0;
        size_t n, at = tokenizer_find_special_(t, text, bytes, &id);
        TRY(tokenizer_encode(t, text, at, out));
        if (at == bytes) { return STATUS_OK; }
        tokenizer_decode(t, id, &n);
        token_list_add(out, &id, 1);
        text += at + n, bytes -= at + n;
    }
}

// Prints a token so that a terminal can show it: whole UTF-8 characters, also those that several tokens make together,
// without control characters other than white space, and U+FFFD for what is no character; prints the number of a token that
// the tokenizer does not have.
static inline void tokenizer_print(FILE* out, Tokenizer* t, int id) {
    size_t length;
    const unsigned char* bytes = tokenizer_decode(t, id, &length);
    if (bytes == NULL) {
        fprintf(out, "%d ", id);
        return;
    }
    t->shown.terminal = 1;
    text_stream_show(&t->shown, bytes, length);
    text_write(&t->shown.out, out);
}

#endif
