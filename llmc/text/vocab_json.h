/*
A Hugging Face folder's tokenizer, of byte-level BPE, as GPT-2's: tokenizer.json or, where there is none, vocab.json, an object
of token to id, and merges.txt, the merges in the order in which they were learned. Each character of a token encodes a byte:
the printable ones of ASCII and Latin-1 encode themselves, U+0100, U+0101, ... the other 68 bytes in order. Added tokens, such
as <|endoftext|>, are special: their names are text as it is, and no text is made of them.

Whatever else these files can ask for, and would give other tokens, is refused by its name: also a space before each text, and
added tokens beside vocab.json.
*/
#ifndef LLMC_TEXT_VOCAB_JSON_H
#define LLMC_TEXT_VOCAB_JSON_H

#include "bpe.h"
#include "llmc/base/json.h"
#include "llmc/base/regular_file.h"
#include "llmc/base/utf8.h"
#include "llmc/base/utils.h"

enum { VOCAB_JSON_MOST_BYTES = 1 << 26, VOCAB_TOKEN_BYTES = 1 << 10 }; // of the file, and of a token

// A folder's files of a tokenizer. The first two hold its tokens.
static const char* const vocab_files[] = {"tokenizer.json",        "vocab.json",        "merges.txt",
                                          "tokenizer_config.json", "added_tokens.json", "special_tokens_map.json"};
enum { NUM_VOCAB_FILES = sizeof(vocab_files) / sizeof(vocab_files[0]) };

typedef struct {
    unsigned char* bytes; // all tokens', one after the other
    size_t* offsets;      // (num_tokens + 1) of token i: bytes[offsets[i]] to bytes[offsets[i + 1] - 1]
    int num_tokens;
    int eot_token;     // eos_token of tokenizer_config.json, or <|endoftext|>, or </s>
    TokenList special; // added tokens
    int* ranks;        // (num_tokens) the place of the merge that makes a token, -1: none does
    int* firsts;       // (num_tokens) the bytes of such a merge's first half
} Vocab;

static inline void vocab_free(Vocab* v) {
    free(v->bytes);
    free(v->offsets);
    free(v->ranks);
    free(v->firsts);
    token_list_free(&v->special);
    memset(v, 0, sizeof(*v));
}

// 1 if a folder has a tokenizer.
static inline int vocab_in_folder(const char* folder) {
    char path[1024 + 32];
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%.1023s/%s", folder, vocab_files[i]);
        if (file_exists(path)) { return 1; }
    }
    return 0;
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

// ----------------------------------------------------------------------------
// Tokens

// A token while a file is read: its name, and 1 if it is an added one
typedef struct {
    const JsonNode* name;
    int is_added;
} VocabEntry;

// Enters a token under its id, of which there are `count`.
static inline Status vocab_enter_(VocabEntry* entries, size_t count, const Json* json, const JsonNode* name,
                                  const JsonNode* value, int is_added, const char* path) {
    size_t id;
    const char* text = name != NULL && name->type == (unsigned)JSON_STRING ? json_string(json, name) : NULL;
    if (text == NULL || value == NULL || !json_whole(json, value, count - 1, &id)) {
        return status_fail("%s: the id of \"%.200s\" is not a whole number below %zu, the number of tokens", path,
                           text != NULL ? text : "", count);
    }
    VocabEntry* e = &entries[id];
    const char* other = e->name != NULL ? json_string(json, e->name) : text;
    if (e->name != NULL && (!is_added || e->name->bytes != name->bytes || memcmp(other, text, name->bytes) != 0)) {
        return status_fail("%s: \"%.200s\" and \"%.200s\" have the same id %zu", path, other, text, id);
    }
    e->name = name, e->is_added |= is_added;
    return STATUS_OK;
}

// Fills in the tokens.
static inline Status vocab_fill_(Vocab* v, const Json* json, const VocabEntry* entries, const char* path) {
    unsigned char token[VOCAB_TOKEN_BYTES];
    for (int id = 0; id < v->num_tokens; id++) {
        const VocabEntry* e = &entries[id];
        if (e->name == NULL) { return status_fail("%s: no token has the id %d", path, id); }
        const char* name = json_string(json, e->name);
        size_t n = e->is_added ? e->name->bytes : vocab_bytes_(name, e->name->bytes, token);
        if (n == 0) {
            return status_fail("%s: token %d, \"%.200s\", is not made of the characters that stand for bytes; only "
                               "byte-level BPE, as GPT-2's, is supported",
                               path, id, name);
        }
        memcpy(v->bytes + v->offsets[id], e->is_added ? (const void*)name : token, n);
        v->offsets[id + 1] = v->offsets[id] + n;
        if (e->is_added) { token_list_add(&v->special, &id, 1); }
    }
    return STATUS_OK;
}

// The token of that name; -1: none
static inline int vocab_find_(const Vocab* v, const char* name, size_t bytes) {
    for (int id = 0; id < v->num_tokens; id++) {
        size_t n = v->offsets[id + 1] - v->offsets[id];
        if (n == bytes && memcmp(v->bytes + v->offsets[id], name, n) == 0) { return id; }
    }
    return -1;
}

static inline int vocab_is_true_(const Json* json, const JsonNode* object, const char* name, int otherwise) {
    const JsonNode* value = json_given(json, object, name);
    return value == NULL ? otherwise : value->type == (unsigned)JSON_TRUE;
}

static inline Status vocab_unread_(const char* path, const char* part, const char* what) {
    return status_fail("%s: %s %.100s is not read: only byte-level BPE, as GPT-2's; --tokenizer names another", path,
                       part, what);
}

// Checks an added token, an object with its content and its id.
static inline Status vocab_check_added_(const Json* json, const JsonNode* one, const char* path) {
    static const char* const names[] = {"lstrip", "rstrip", "single_word"};
    const JsonNode* name = json_given(json, one, "content");
    if (name == NULL || name->type != (unsigned)JSON_STRING) {
        return status_fail("%s: an added token has no name", path);
    }
    for (int i = 0; i < 3; i++) {
        if (vocab_is_true_(json, one, names[i], 0)) { return vocab_unread_(path, "an added token's", names[i]); }
    }
    return STATUS_OK;
}

// Reads the tokens of an object of token to id and, where `added` is not NULL, of an array of added ones.
static inline Status vocab_read_tokens_(Vocab* v, const Json* json, const JsonNode* vocab, const JsonNode* added,
                                        const char* path) {
    size_t text_bytes = 1, count = 0;
    const JsonNode *key, *one, *first = added != NULL ? json_first(json, added) : NULL;
    if (vocab == NULL || vocab->type != (unsigned)JSON_OBJECT) {
        return status_fail("%s is not an object of token to id, and has none", path);
    }
    for (key = json_first(json, vocab); key != NULL; key = json_next(json, vocab, key)) {
        count++, text_bytes += key->bytes; // a byte takes one of UTF-8 at least
    }
    for (one = first; one != NULL; one = json_next(json, added, one)) {
        TRY(vocab_check_added_(json, one, path));
        const JsonNode* name = json_member(json, one, "content");
        count += json_member(json, vocab, json_string(json, name)) == NULL, text_bytes += name->bytes;
    }
    if (count > MAX_VOCAB_SIZE) { return status_fail("%s has more than %d tokens", path, (int)MAX_VOCAB_SIZE); }
    VocabEntry* entries = (VocabEntry*)calloc_check(count + 1, sizeof(VocabEntry));
    v->num_tokens = (int)count;
    v->bytes = (unsigned char*)malloc_check(text_bytes);
    v->offsets = (size_t*)calloc_check(count + 1, sizeof(size_t));
    Status status = STATUS_OK;
    for (key = json_first(json, vocab); key != NULL && status == STATUS_OK; key = json_next(json, vocab, key)) {
        status = vocab_enter_(entries, count, json, key, json_value(key), 0, path);
    }
    for (one = first; one != NULL && status == STATUS_OK; one = json_next(json, added, one)) {
        status = vocab_enter_(entries, count, json, json_member(json, one, "content"), json_member(json, one, "id"), 1,
                              path);
    }
    if (status == STATUS_OK) { status = vocab_fill_(v, json, entries, path); }
    free(entries);
    return status;
}

// ----------------------------------------------------------------------------
// Merges

// Enters merge `number`, from 0 on, of two names.
static inline Status vocab_add_merge_(Vocab* v, const Bpe* bpe, int number, const char* left, size_t left_bytes,
                                      const char* right, size_t right_bytes, const char* path) {
    unsigned char merged[VOCAB_TOKEN_BYTES], half[VOCAB_TOKEN_BYTES];
    size_t n = vocab_bytes_(left, left_bytes, merged), m = vocab_bytes_(right, right_bytes, half);
    if (n == 0 || m == 0 || n + m > VOCAB_TOKEN_BYTES) {
        return status_fail("%s: merge %d is not two tokens and a space between them", path, number + 1);
    }
    memcpy(merged + n, half, m);
    int id = bpe_find(bpe, merged, n + m);
    if (id == BPE_NONE || v->ranks[id] >= 0) {
        return status_fail("%s: merge %d makes %s", path, number + 1,
                           id == BPE_NONE ? "no token of the vocabulary" : "a token that another has made");
    }
    v->ranks[id] = number, v->firsts[id] = (int)n;
    return STATUS_OK;
}

// Begins a list of merges, with the tokens of the vocabulary in `bpe`, which the caller frees.
static inline void vocab_begin_merges_(Vocab* v, Bpe* bpe) {
    v->ranks = (int*)malloc_check(((size_t)v->num_tokens + 1) * sizeof(int));
    v->firsts = (int*)calloc_check((size_t)v->num_tokens + 1, sizeof(int));
    for (int i = 0; i < v->num_tokens; i++) { v->ranks[i] = -1; }
    bpe_index(bpe, v->bytes, v->offsets, NULL, v->num_tokens, &v->special);
}

// merges.txt
static inline Status vocab_read_merges_(Vocab* v, FILE* file, const char* path) {
    char text[8 * VOCAB_TOKEN_BYTES];
    Status status = STATUS_OK;
    Bpe bpe;
    int number = 0;
    vocab_begin_merges_(v, &bpe);
    for (int first = 1; status == STATUS_OK && fgets(text, sizeof(text), file) != NULL; first = 0) {
        const char* line = text + (first ? utf8_mark(text, strlen(text)) : 0);
        size_t bytes = strcspn(line, "\r\n");
        const char* space = (const char*)memchr(line, ' ', bytes);
        if (bytes == 0 || (first && strncmp(line, "#version", 8) == 0)) { continue; }
        size_t left = space != NULL ? (size_t)(space - line) : 0;
        status = vocab_add_merge_(v, &bpe, number++, line, left, line + left + 1, bytes - left - (bytes > left), path);
    }
    bpe_free(&bpe);
    if (status != STATUS_OK) { return status; }
    return ferror(file) ? status_fail("cannot read %s: %s", path, strerror(errno)) : STATUS_OK;
}

// tokenizer.json's merges: texts "a b", or pairs ["a", "b"]
static inline Status vocab_read_merge_list_(Vocab* v, const Json* json, const JsonNode* list, const char* path) {
    Status status = STATUS_OK;
    Bpe bpe;
    int number = 0;
    vocab_begin_merges_(v, &bpe);
    const JsonNode* one = json_first(json, list);
    for (; one != NULL && status == STATUS_OK; one = json_next(json, list, one), number++) {
        const JsonNode* left = one->type == (unsigned)JSON_ARRAY ? json_first(json, one) : NULL;
        const JsonNode* right = left != NULL ? json_next(json, one, left) : NULL;
        const char* text = json_string(json, one);
        const char* space = one->type == (unsigned)JSON_STRING ? (const char*)memchr(text, ' ', one->bytes) : NULL;
        if (space != NULL) {
            size_t n = (size_t)(space - text);
            status = vocab_add_merge_(v, &bpe, number, text, n, space + 1, one->bytes - n - 1, path);
        } else if (right != NULL && left->type == (unsigned)JSON_STRING && right->type == (unsigned)JSON_STRING) {
            status = vocab_add_merge_(v, &bpe, number, json_string(json, left), left->bytes, json_string(json, right),
                                      right->bytes, path);
        } else {
            status = vocab_add_merge_(v, &bpe, number, "", 0, "", 0, path);
        }
    }
    bpe_free(&bpe);
    return status;
}

// ----------------------------------------------------------------------------
// tokenizer.json

// The type that an object names
static inline const char* vocab_type_(const Json* json, const JsonNode* object) {
    const JsonNode* type = json_given(json, object, "type");
    return type != NULL && type->type == (unsigned)JSON_STRING ? json_string(json, type) : "without a type";
}

// Refuses what would give other tokens than ours.
static inline Status vocab_check_parts_(const Json* json, const char* path) {
    static const char* const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const JsonNode *root = json_root(json), *model = json_given(json, root, "model");
    const JsonNode* normalizer = json_given(json, root, "normalizer");
    const JsonNode* split = json_given(json, root, "pre_tokenizer");
    const JsonNode *post = json_given(json, root, "post_processor"), *dropout = json_given(json, model, "dropout");
    double rate = 0.0;
    if (model == NULL) { return status_fail("%s is no tokenizer of Hugging Face: it has no model", path); }
    const char* type = json_given(json, model, "type") != NULL ? vocab_type_(json, model) : "BPE"; // older ones
    if (strcmp(type, "BPE") != 0) { return vocab_unread_(path, "model", type); }
    if (normalizer != NULL) { return vocab_unread_(path, "normalizer", vocab_type_(json, normalizer)); }
    if (split == NULL || strcmp(vocab_type_(json, split), "ByteLevel") != 0) {
        return vocab_unread_(path, "pre_tokenizer", split != NULL ? vocab_type_(json, split) : "null");
    }
    for (int i = 0; i < 2; i++) {
        const JsonNode* affix = json_given(json, model, affixes[i]);
        if (affix != NULL && !json_is(json, affix, "")) { return vocab_unread_(path, "model's", affixes[i]); }
    }
    if (dropout != NULL && (!json_number(json, dropout, &rate) || rate != 0.0)) {
        return vocab_unread_(path, "model's", "dropout");
    }
    if (vocab_is_true_(json, model, "ignore_merges", 0)) { return vocab_unread_(path, "model's", "ignore_merges"); }
    if (!vocab_is_true_(json, split, "use_regex", 1)) { return vocab_unread_(path, "pre_tokenizer's", "use_regex"); }
    if (post != NULL && strcmp(vocab_type_(json, post), "ByteLevel") != 0) {
        print_warning("%s: post_processor %.100s is not read: a prompt gets no tokens beside those of its text", path,
                      vocab_type_(json, post));
    }
    return STATUS_OK;
}

static inline Status vocab_read_tokenizer_json_(Vocab* v, const char* path, int* prefix_space) {
    Json json;
    TRY(json_read_file(&json, path, VOCAB_JSON_MOST_BYTES));
    const JsonNode *root = json_root(&json), *model = json_given(&json, root, "model");
    const JsonNode* added = json_given(&json, root, "added_tokens");
    Status status = vocab_check_parts_(&json, path);
    if (status == STATUS_OK && added != NULL && added->type != (unsigned)JSON_ARRAY) {
        status = status_fail("%s: added_tokens is no array", path);
    }
    if (status == STATUS_OK) { status = vocab_read_tokens_(v, &json, json_given(&json, model, "vocab"), added, path); }
    const JsonNode* merges = json_given(&json, model, "merges");
    if (status == STATUS_OK && (merges == NULL || merges->type != (unsigned)JSON_ARRAY)) {
        status = status_fail("%s has no array of merges", path);
    }
    if (status == STATUS_OK) { status = vocab_read_merge_list_(v, &json, merges, path); }
    const JsonNode* split = json_given(&json, root, "pre_tokenizer");
    *prefix_space = vocab_is_true_(&json, split, "add_prefix_space", 1); // the tokenizers library's default
    json_free(&json);
    return status;
}

// ----------------------------------------------------------------------------
// vocab.json and merges.txt

static inline Status vocab_read_pair_(Vocab* v, const char* folder) {
    char path[1024 + 32];
    struct stat st;
    Json json;
    FILE* file;
    snprintf(path, sizeof(path), "%s/added_tokens.json", folder);
    if (file_exists(path)) { return vocab_unread_(path, "beside vocab.json,", "this file"); }
    snprintf(path, sizeof(path), "%s/vocab.json", folder);
    if (!file_exists(path)) {
        return status_fail("%s is a folder without vocab.json or tokenizer.json; --tokenizer names another, or a file",
                           folder);
    }
    TRY(json_read_file(&json, path, VOCAB_JSON_MOST_BYTES));
    Status status = vocab_read_tokens_(v, &json, json_root(&json), NULL, path);
    json_free(&json);
    TRY(status);
    snprintf(path, sizeof(path), "%s/merges.txt", folder);
    TRY(fopen_regular(&file, &st, path));
    status = vocab_read_merges_(v, file, path);
    fclose(file);
    return status;
}

// ----------------------------------------------------------------------------
// The folder

// The name of a token of tokenizer_config.json, a text or an object with its content; NULL: it is not there
static inline const JsonNode* vocab_named_(const Json* json, const char* key) {
    const JsonNode* value = json_given(json, json_root(json), key);
    if (value != NULL && value->type == (unsigned)JSON_OBJECT) { value = json_given(json, value, "content"); }
    return value != NULL && value->type == (unsigned)JSON_STRING ? value : NULL;
}

// tokenizer_config.json: the end of a text, and add_prefix_space, which transformers takes from here.
static inline Status vocab_read_config_(Vocab* v, const char* folder, int* prefix_space) {
    char path[1024 + 32];
    Json json;
    snprintf(path, sizeof(path), "%s/tokenizer_config.json", folder);
    if (!file_exists(path)) { return STATUS_OK; }
    TRY(json_read_file(&json, path, VOCAB_JSON_MOST_BYTES));
    const JsonNode* eos = vocab_named_(&json, "eos_token");
    if (eos != NULL) { v->eot_token = vocab_find_(v, json_string(&json, eos), eos->bytes); }
    *prefix_space = vocab_is_true_(&json, json_root(&json), "add_prefix_space", *prefix_space);
    json_free(&json);
    return STATUS_OK;
}

static inline Status vocab_read_folder_(Vocab* v, const char* folder) {
    char path[1024 + 32];
    int prefix_space = 0;
    snprintf(path, sizeof(path), "%s/tokenizer.json", folder);
    TRY(file_exists(path) ? vocab_read_tokenizer_json_(v, path, &prefix_space) : vocab_read_pair_(v, folder));
    v->eot_token = -1;
    TRY(vocab_read_config_(v, folder, &prefix_space));
    if (prefix_space) { return vocab_unread_(folder, "the tokenizer's", "add_prefix_space"); }
    if (v->eot_token < 0) { v->eot_token = vocab_find_(v, "<|endoftext|>", 13); }
    if (v->eot_token < 0) { v->eot_token = vocab_find_(v, "</s>", 4); }
    if (v->eot_token < 0) {
        return status_fail("%s has neither the token <|endoftext|> nor </s>: where a text begins is not known", folder);
    }
    if (!token_list_has(&v->special, v->eot_token)) { token_list_add(&v->special, &v->eot_token, 1); }
    return STATUS_OK;
}

// Reads the tokenizer of a folder. After an error there is nothing to free.
static inline Status vocab_read_folder(Vocab* v, const char* folder) {
    memset(v, 0, sizeof(*v));
    if (strlen(folder) >= 1024) { return status_fail("path is longer than 1023 bytes: %s", folder); }
    Status status = vocab_read_folder_(v, folder);
    if (status != STATUS_OK) { vocab_free(v); }
    return status;
}

#endif
