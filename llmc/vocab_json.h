/*
A Hugging Face folder's tokens: vocab.json, an object of token to id, and merges.txt, the merges in the order in which they
were learned. Each character of a token encodes a byte: the printable ones of ASCII and Latin-1 encode themselves, U+0100,
U+0101, ... the other 68 bytes in order.

bpe.h takes the ids as the order of merges. That holds for GPT-2 and for vocabularies trained by the tokenizers library. If
there is a merges.txt, its order is compared, and a vocabulary in another order is refused.
*/
#ifndef LLMC_VOCAB_JSON_H
#define LLMC_VOCAB_JSON_H

#include "json.h"
#include "regular_file.h"
#include "status.h"
#include "utf8.h"
#include "utils.h"

enum { VOCAB_JSON_MOST_BYTES = 1 << 26, VOCAB_TOKEN_BYTES = 1 << 10 }; // of the file, and of a token

typedef struct {
    unsigned char* bytes; // all tokens', one after the other
    size_t* offsets;      // (num_tokens + 1) of token i: bytes[offsets[i]] to bytes[offsets[i + 1] - 1]
    int num_tokens;
    int eot_token; // <|endoftext|>, or </s>
} Vocab;

static inline void vocab_free(Vocab* v) {
    free(v->bytes);
    free(v->offsets);
    memset(v, 0, sizeof(*v));
}

static inline int vocab_is_printable_(int32_t c) {
    return (c >= '!' && c <= '~') || (c >= 0xa1 && c <= 0xff && c != 0xad);
}

// The character that stands for a byte. 0x00 to 0x20, 0x7f to 0xa0 and 0xad are not printable.
static inline uint32_t vocab_character(unsigned char byte) {
    if (vocab_is_printable_(byte)) { return byte; }
    return 0x100u + (byte <= 0x20 ? byte : byte <= 0xa0 ? byte - 0x7fu + 0x21u : 0x43u);
}

// The byte that a character stands for; -1: none.
static inline int vocab_byte_(int32_t c) {
    if (c < 0x100) { return vocab_is_printable_(c) ? (int)c : -1; }
    int other = (int)c - 0x100;
    return other <= 0x20 ? other : other <= 0x42 ? other - 0x21 + 0x7f : other == 0x43 ? 0xad : -1;
}

// The bytes that the characters of `text` stand for, in `out` (VOCAB_TOKEN_BYTES); 0 if it is empty, too long, or no such
// text.
static inline size_t vocab_bytes_(const char* text, size_t bytes, unsigned char* out) {
    size_t n = 0;
    int length;
    for (size_t at = 0; at < bytes; at += (size_t)length) {
        int byte = vocab_byte_(utf8_decode((const unsigned char*)text + at, bytes - at, &length));
        if (byte < 0 || n == VOCAB_TOKEN_BYTES) { return 0; }
        out[n++] = (unsigned char)byte;
    }
    return n;
}

// Fills in the tokens of an object that has been parsed. keys: (num_tokens), all NULL
static inline Status vocab_fill_(Vocab* v, const Json* json, const JsonNode** keys, const char* path) {
    const JsonNode* root = json_root(json);
    unsigned char token[VOCAB_TOKEN_BYTES];
    for (const JsonNode* key = json_first(json, root); key != NULL; key = json_next(json, root, key)) {
        size_t id;
        if (!json_whole(json, json_value(key), (size_t)v->num_tokens - 1, &id)) {
            return status_fail("%s: the id of \"%s\" is not a whole number below %d, the number of tokens", path,
                               json_string(json, key), v->num_tokens);
        }
        if (keys[id] != NULL) {
            return status_fail("%s: \"%s\" and \"%s\" have the same id %zu", path, json_string(json, keys[id]),
                               json_string(json, key), id);
        }
        keys[id] = key;
    }
    for (int id = 0; id < v->num_tokens; id++) {
        size_t n = vocab_bytes_(json_string(json, keys[id]), keys[id]->bytes, token);
        if (n == 0) {
            return status_fail("%s: token %d, \"%s\", is not made of the characters that stand for bytes; only "
                               "byte-level BPE, as GPT-2's, is supported",
                               path, id, json_string(json, keys[id]));
        }
        memcpy(v->bytes + v->offsets[id], token, n);
        v->offsets[id + 1] = v->offsets[id] + n;
        if (json_is(json, keys[id], "<|endoftext|>")) { v->eot_token = id; }
        if (json_is(json, keys[id], "</s>") && v->eot_token < 0) { v->eot_token = id; }
    }
    return v->eot_token >= 0 ? STATUS_OK
                             : status_fail("%s has neither the token <|endoftext|> nor </s>: where a text begins is "
                                           "not known",
                                           path);
}

// vocab.json
static inline Status vocab_read_json_(Vocab* v, const char* path) {
    Json json;
    TRY(json_read_file(&json, path, VOCAB_JSON_MOST_BYTES));
    const JsonNode* root = json_root(&json);
    size_t text_bytes = 1;
    if (root->type != JSON_OBJECT) {
        json_free(&json);
        return status_fail("%s is not an object of token to id", path);
    }
    for (const JsonNode* key = json_first(&json, root); key != NULL; key = json_next(&json, root, key)) {
        v->num_tokens++;
        text_bytes += key->bytes; // a byte takes one of UTF-8 at least
    }
    v->eot_token = -1;
    v->bytes = (unsigned char*)malloc_check(text_bytes);
    v->offsets = (size_t*)calloc_check((size_t)v->num_tokens + 1, sizeof(size_t));
    const JsonNode** keys = (const JsonNode**)calloc_check((size_t)v->num_tokens, sizeof(JsonNode*));
    Status status = v->num_tokens > MAX_VOCAB_SIZE
                        ? status_fail("%s has more than %d tokens", path, (int)MAX_VOCAB_SIZE)
                        : vocab_fill_(v, &json, keys, path);
    free((void*)keys);
    json_free(&json);
    return status;
}

// One line of merges.txt: the bytes of its two halves together, in `out`; 0 if it is no merge.
static inline size_t vocab_merge_(const char* line, size_t bytes, unsigned char* out) {
    const char* space = (const char*)memchr(line, ' ', bytes);
    unsigned char right[VOCAB_TOKEN_BYTES];
    if (space == NULL) { return 0; }
    size_t n = vocab_bytes_(line, (size_t)(space - line), out);
    size_t m = vocab_bytes_(space + 1, bytes - (size_t)(space - line) - 1, right);
    if (n == 0 || m == 0 || n + m > VOCAB_TOKEN_BYTES) { return 0; }
    memcpy(out + n, right, m);
    return n + m;
}

// merges.txt: what its lines merge to must be tokens in the order of their ids; those between are special ones.
static inline Status vocab_check_merges_(const Vocab* v, FILE* file, const char* path) {
    char line[8 * VOCAB_TOKEN_BYTES];
    unsigned char merged[VOCAB_TOKEN_BYTES];
    int id = 0;
    for (int number = 1; fgets(line, sizeof(line), file) != NULL; number++) {
        size_t bytes = strcspn(line, "\r\n");
        if (bytes == 0 || (number == 1 && strncmp(line, "#version", 8) == 0)) { continue; }
        size_t n = vocab_merge_(line, bytes, merged);
        if (n == 0) { return status_fail("%s: line %d is not two tokens and a space between them", path, number); }
        while (id < v->num_tokens &&
               (v->offsets[id + 1] - v->offsets[id] != n || memcmp(v->bytes + v->offsets[id], merged, n) != 0)) {
            id++;
        }
        if (id == v->num_tokens) {
            return status_fail("%s: line %d merges to no token of vocab.json, or not in the order of the ids, which "
                               "must be that of the merges",
                               path, number);
        }
    }
    return ferror(file) ? status_fail("cannot read %s: %s", path, strerror(errno)) : STATUS_OK;
}

// Reads the tokens of a folder. After an error there is nothing to free.
static inline Status vocab_read_folder(Vocab* v, const char* folder) {
    char path[1024 + 16];
    memset(v, 0, sizeof(*v));
    if (strlen(folder) >= 1024) { return status_fail("path is longer than 1023 bytes: %s", folder); }
    snprintf(path, sizeof(path), "%s/vocab.json", folder);
    if (!file_exists(path)) {
        return status_fail("%s is a folder without vocab.json; --tokenizer is a file, or a folder with vocab.json and "
                           "merges.txt",
                           folder);
    }
    Status status = vocab_read_json_(v, path);
    snprintf(path, sizeof(path), "%s/merges.txt", folder);
    FILE* file = NULL;
    struct stat st;
    if (status == STATUS_OK && file_exists(path)) { status = fopen_regular(&file, &st, path); }
    if (file != NULL) {
        status = vocab_check_merges_(v, file, path);
        fclose(file);
    }
    if (status != STATUS_OK) { vocab_free(v); }
    return status;
}

#endif
