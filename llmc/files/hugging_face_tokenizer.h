/*
Writes a tokenizer in the format of Hugging Face's transformers: vocab.json, merges.txt and tokenizer_config.json, from the
tokens of tokenizer.h, in id order.

Text in these files has one printable character for each byte, GPT-2's alphabet: printable bytes of Latin-1 are themselves, the
others, in their order, U+0100 and up. A token's merge is the last step of byte pair encoding its bytes with the tokens before
it (bpe.h), when two parts are left. A vocabulary with tokens for which this fails is no byte pair encoding and is not written.
Where tokens are bytes, there are 256 tokens and no merges: transformers then splits text into bytes, as we do. The files of
a tokenizer that came from a Hugging Face folder are copied.
*/
#ifndef LLMC_FILES_HUGGING_FACE_TOKENIZER_H
#define LLMC_FILES_HUGGING_FACE_TOKENIZER_H

#include "llmc/base/atomic_file.h"
#include "llmc/base/json.h"
#include "llmc/text/tokenizer.h"

enum { HUGGING_FACE_TOKEN = 255 }; // bytes of the longest token

// ----------------------------------------------------------------------------
// Files of a folder

static inline Status export_file_path(char path[1024], const char* folder, const char* name) {
    int n = snprintf(path, 1024, "%s/%s", folder, name);
    return n < 1024 ? STATUS_OK : status_fail("path is longer than 1023 bytes: %s/%s", folder, name);
}

// Opens a file that is printed to; atomic_commit ends it.
static inline Status export_open(AtomicFile* file, const char* folder, const char* name) {
    char path[1024];
    TRY(export_file_path(path, folder, name));
    return atomic_open(file, path);
}

static inline void hugging_face_remove_tokenizer(const char* folder) {
    char path[1024];
    for (int i = NUM_VOCAB_FILES - 1; i >= 0; i--) { // those by which vocab_in_folder knows it are the last
        if (export_file_path(path, folder, vocab_files[i]) == STATUS_OK) { remove(path); }
    }
}

// Copies the tokenizer's files of a folder into another: those that are there, and not in the other already.
NOINLINE Status hugging_face_copy_tokenizer(const char* to, const char* from) {
    char path[1024];
    for (int i = 0; i < NUM_VOCAB_FILES; i++) {
        AtomicFile file;
        struct stat st;
        int fd;
        TRY(export_file_path(path, to, vocab_files[i]));
        int is_there = file_exists(path);
        TRY(export_file_path(path, from, vocab_files[i]));
        if (is_there || !file_exists(path)) { continue; }
        TRY(open_regular(&fd, &st, path));
        char* bytes = (char*)malloc_check((size_t)st.st_size);
        Status status = read_at(fd, path, 0, bytes, (size_t)st.st_size);
        if (status == STATUS_OK) { status = export_open(&file, to, vocab_files[i]); }
        if (status == STATUS_OK) { status = atomic_write(&file, bytes, (size_t)st.st_size); }
        if (status == STATUS_OK) { status = atomic_commit(&file); }
        free(bytes);
        close(fd);
        TRY(status);
    }
    return STATUS_OK;
}

// ----------------------------------------------------------------------------
// Writing

// Bytes in the alphabet, as UTF-8: up to 2 for each. Returns their number.
static inline size_t export_text_(char* text, const unsigned char* s, size_t n) {
    size_t at = 0;
    for (size_t i = 0; i < n; i++) { at += utf8_encode(text + at, vocab_character(s[i])); }
    return at;
}

static inline Status export_write_vocab_(const char* folder, const Tokenizer* t) {
    AtomicFile file;
    char text[2 * HUGGING_FACE_TOKEN];
    size_t n;
    TRY(export_open(&file, folder, "vocab.json"));
    for (int id = 0; id < t->vocab_size; id++) {
        const unsigned char* s = tokenizer_decode(t, id, &n);
        if (n == 0) { continue; }
        fputs(id > 0 ? ", " : "{", file.file);
        if (token_list_has(&t->special, id)) { // written as in tokenizer_config.json
            json_write_text(file.file, (const char*)s, n);
        } else {
            json_write_text(file.file, text, export_text_(text, s, n));
        }
        fprintf(file.file, ": %d", id);
    }
    fputs("}\n", file.file);
    return atomic_commit(&file);
}

// An error: the tokenizer is no byte pair encoding.
static inline Status export_write_merges_(const char* folder, const Tokenizer* t) {
    AtomicFile file;
    Bpe bpe;
    char text[2 * HUGGING_FACE_TOKEN + 2];
    size_t n;
    TRY(bpe_prepare(&bpe, t->bytes, t->offsets, NULL, t->vocab_size, &t->special));
    int* first = (int*)calloc_check((size_t)t->vocab_size, sizeof(int));
    Status status = tokenizer_merges(first, t, &bpe);
    bpe_free(&bpe);
    if (status == STATUS_OK) { status = export_open(&file, folder, "merges.txt"); }
    if (status == STATUS_OK) { fputs("#version: 0.2\n", file.file); }
    for (int id = 0; id < t->vocab_size && status == STATUS_OK; id++) {
        const unsigned char* s = tokenizer_decode(t, id, &n);
        size_t part = (size_t)first[id];
        if (part == 0) { continue; }
        size_t bytes = export_text_(text, s, part);
        text[bytes++] = ' ';
        bytes += export_text_(text + bytes, s + part, n - part);
        text[bytes++] = '\n';
        fwrite(text, 1, bytes, file.file);
    }
    free(first);
    return status == STATUS_OK ? atomic_commit(&file) : status;
}

// Writes the tokenizer's files.
static inline Status hugging_face_write_tokenizer(const char* folder, const Tokenizer* t, int trained_len) {
    static const char* const special[] = {"bos_token", "eos_token", "unk_token"};
    AtomicFile file;
    size_t n;
    const unsigned char* s = tokenizer_decode(t, t->eot_token, &n);
    TRY(export_write_merges_(folder, t));
    TRY(export_write_vocab_(folder, t));
    TRY(export_open(&file, folder, "tokenizer_config.json"));
    fputs("{\n  \"tokenizer_class\": \"GPT2Tokenizer\",\n  \"add_prefix_space\": false,\n", file.file);
    fprintf(file.file, "  \"clean_up_tokenization_spaces\": false,\n  \"errors\": \"replace\",\n");
    fprintf(file.file, "  \"model_max_length\": %d", trained_len);
    for (int i = 0; i < 3; i++) { // one token, or none
        fprintf(file.file, ",\n  \"%s\": ", special[i]);
        if (token_list_has(&t->special, t->eot_token)) {
            json_write_text(file.file, (const char*)s, n);
        } else {
            fputs("null", file.file);
        }
    }
    fputs("\n}\n", file.file);
    return atomic_commit(&file);
}

#endif
