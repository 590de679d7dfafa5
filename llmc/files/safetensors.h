/*
Safetensors files: 8 bytes of length N (little endian), N bytes of JSON, then the tensors' bytes.

    {"__metadata__": {"format": "pt"}, "wte.weight": {"dtype": "F32", "shape": [50257, 768], "data_offsets": [0, 154389504]}}

Opening a file checks all of its header: N is at most 100 MB and inside the file; the header is JSON in UTF-8 that begins with
'{'; a tensor has a known dtype, whole numbers for a shape, and the number of bytes that follows from them (without overflow);
the tensors fill the data without a hole or an overlap.

    TRY(safetensors_open(&file, path));
    TRY(safetensors_read(&file, &file.tensors[i], offset, dst, bytes)); // 0 <= i < file.count; any thread may
    safetensors_close(&file);
*/
#ifndef LLMC_FILES_SAFETENSORS_H
#define LLMC_FILES_SAFETENSORS_H

#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "llmc/base/atomic_file.h"
#include "llmc/base/json.h"
#include "llmc/base/regular_file.h"
#include "llmc/base/utils.h"

enum { SAFETENSORS_MOST_HEADER = 100000000, SAFETENSORS_MOST_DIMS = 8 };

// The types of the format, and their bits. Weights are read from the first three.
static const struct {
    const char* name;
    size_t bits;
} safetensors_dtypes[] = {
    {"F32", 32}, {"F16", 16},    {"BF16", 16},   {"U16", 16},    {"F64", 64},    {"I64", 64},    {"I32", 32},
    {"I16", 16}, {"I8", 8},      {"U64", 64},    {"U32", 32},    {"U8", 8},      {"BOOL", 8},    {"C64", 64},
    {"F4", 4},   {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6},
};
enum { NUM_SAFETENSORS_DTYPES = sizeof(safetensors_dtypes) / sizeof(safetensors_dtypes[0]) };
enum { SAFETENSORS_F32, SAFETENSORS_F16, SAFETENSORS_BF16 };

typedef struct {
    const char* name; // in the file's header; without NULs
    int dtype;        // in safetensors_dtypes
    int dims;
    size_t shape[SAFETENSORS_MOST_DIMS];
    size_t elements;
    size_t begin, end; // bytes, from the first byte after the header
} SafeTensor;

typedef struct {
    int fd;
    char* path;
    size_t data_at, data_bytes; // where the tensors' bytes begin in the file, and how many they are
    Json header;
    SafeTensor* tensors; // (count), in the order of their bytes
    size_t count;
} SafetensorsFile;

static inline void safetensors_close(SafetensorsFile* f) {
    if (f->fd >= 0) { close(f->fd); }
    json_free(&f->header);
    free(f->tensors);
    free(f->path);
    f->fd = -1, f->tensors = NULL, f->path = NULL, f->count = 0;
}

// ----------------------------------------------------------------------------
// The header

// Reads a list of whole numbers, `most` at most; returns how many, or -1 if it is no such list.
static inline int safetensors_numbers_(const Json* json, const JsonNode* list, size_t* numbers, int most) {
    int n = 0;
    if (list->type != (unsigned)JSON_ARRAY) { return -1; }
    for (const JsonNode* one = json_first(json, list); one != NULL; one = json_next(json, list, one), n++) {
        if (n == most || !json_whole(json, one, SIZE_MAX - 1, &numbers[n])) { return -1; }
    }
    return n;
}

static inline Status safetensors_parse_tensor_(const SafetensorsFile* f, SafeTensor* t, const JsonNode* key) {
    const Json* json = &f->header;
    const JsonNode *value = json_value(key), *dtype = json_member(json, value, "dtype");
    const JsonNode *shape = json_member(json, value, "shape"), *range = json_member(json, value, "data_offsets");
    size_t offsets[2];
    memset(t, 0, sizeof(*t));
    t->name = json_string(json, key);
    if (strlen(t->name) != key->bytes) { return status_fail("%s: the name %.200s holds a NUL", f->path, t->name); }
    if (dtype == NULL || shape == NULL || range == NULL) {
        return status_fail("%s: %.200s has not all of dtype, shape and data_offsets", f->path, t->name);
    }
    while (t->dtype < NUM_SAFETENSORS_DTYPES && !json_is(json, dtype, safetensors_dtypes[t->dtype].name)) {
        t->dtype++;
    }
    if (t->dtype == NUM_SAFETENSORS_DTYPES) {
        return status_fail("%s: %.200s has a dtype that the format does not know", f->path, t->name);
    }
    t->dims = safetensors_numbers_(json, shape, t->shape, SAFETENSORS_MOST_DIMS);
    if (t->dims < 0 || safetensors_numbers_(json, range, offsets, 2) != 2) {
        return status_fail("%s: %.200s: its shape must be up to %d whole numbers, its data_offsets two", f->path,
                           t->name, (int)SAFETENSORS_MOST_DIMS);
    }
    size_t bits = safetensors_dtypes[t->dtype].bits;
    t->begin = offsets[0], t->end = offsets[1], t->elements = 1;
    for (int i = 0; i < t->dims; i++) { t->elements = size_mul(t->elements, t->shape[i]); }
    size_t all_bits = size_mul(t->elements, bits);
    if (all_bits != SIZE_MAX && all_bits % 8 == 0 && t->begin <= t->end && t->end - t->begin == all_bits / 8) {
        return STATUS_OK;
    }
    return status_fail(
        "%s: %.200s has the bytes %zu to %zu, but its shape and its dtype %s make %zu elements of %zu bits", f->path,
        t->name, t->begin, t->end, safetensors_dtypes[t->dtype].name, t->elements, bits);
}

static inline int safetensors_compare_(const void* a, const void* b) {
    const SafeTensor *x = (const SafeTensor*)a, *y = (const SafeTensor*)b;
    if (x->begin != y->begin) { return x->begin < y->begin ? -1 : 1; }
    if (x->end != y->end) { return x->end < y->end ? -1 : 1; } // one without elements comes first
    return strcmp(x->name, y->name);
}

// The tensors lie one after the other, and fill the data.
static inline Status safetensors_check_cover_(const SafetensorsFile* f) {
    size_t at = 0;
    for (size_t i = 0; i < f->count; at = f->tensors[i++].end) {
        if (f->tensors[i].begin != at) {
            return status_fail("%s: %.200s does not begin at byte %zu of the data, where the tensor before it ends",
                               f->path, f->tensors[i].name, at);
        }
    }
    if (at == f->data_bytes) { return STATUS_OK; }
    return status_fail("%s: its tensors end at byte %zu of the data, of which it has %zu; it is truncated or corrupt",
                       f->path, at, f->data_bytes);
}

static inline Status safetensors_parse_(SafetensorsFile* f) {
    const Json* json = &f->header;
    const JsonNode* root = json_root(json);
    f->tensors = (SafeTensor*)malloc_check((root->next / 10u + 1) * sizeof(SafeTensor)); // each has ten nodes, or more
    for (const JsonNode* key = json_first(json, root); key != NULL; key = json_next(json, root, key)) {
        if (json_is(json, key, "__metadata__")) { continue; }
        TRY(safetensors_parse_tensor_(f, &f->tensors[f->count], key));
        f->count++;
    }
    if (f->count > 0) { qsort(f->tensors, f->count, sizeof(SafeTensor), safetensors_compare_); }
    return safetensors_check_cover_(f);
}

// Reads and parses the header, of which the file says `length`.
static inline Status safetensors_read_header_(SafetensorsFile* f, size_t length) {
    char name[1024];
    char* text = (char*)malloc_check(length);
    snprintf(name, sizeof(name), "%.1000s: its header", f->path);
    Status status = read_at(f->fd, f->path, 8, text, length);
    if (status == STATUS_OK && text[0] != '{') {
        status = status_fail("%s is no safetensors file: its header does not begin with '{'", f->path);
    }
    if (status == STATUS_OK) { status = json_parse(&f->header, name, text, length); }
    free(text);
    return status;
}

static inline Status safetensors_open_(SafetensorsFile* f) {
    unsigned char bytes[8];
    struct stat st;
    uint64_t length = 0;
    TRY(open_regular(&f->fd, &st, f->path));
    TRY(refuse_foreign_file(f->fd, f->path));
    size_t size = (size_t)st.st_size;
    if (size < 10) {
        return status_fail("%s has %zu bytes, less than any safetensors file; it is truncated, or no such file",
                           f->path, size);
    }
    TRY(read_at(f->fd, f->path, 0, bytes, 8));
    for (int i = 7; i >= 0; i--) { length = length << 8 | bytes[i]; }
    if (length > SAFETENSORS_MOST_HEADER) {
        return status_fail("%s is no safetensors file: it says that its header has %" PRIu64 " bytes, %d are the most",
                           f->path, length, (int)SAFETENSORS_MOST_HEADER);
    }
    if (length > size - 8 || length < 2) {
        return status_fail("%s says that its header has %" PRIu64 " bytes, and has %zu; it is truncated or corrupt",
                           f->path, length, size - 8);
    }
    f->data_at = 8 + (size_t)length;
    f->data_bytes = size - f->data_at;
    TRY(safetensors_read_header_(f, (size_t)length));
    return safetensors_parse_(f);
}

// Opens a file and checks all of its header. After an error there is nothing to close.
static inline Status safetensors_open(SafetensorsFile* f, const char* path) {
    memset(f, 0, sizeof(*f));
    f->fd = -1;
    f->path = (char*)malloc_check(strlen(path) + 1);
    strcpy(f->path, path);
    if (safetensors_open_(f) == STATUS_OK) { return STATUS_OK; }
    safetensors_close(f);
    return STATUS_ERROR;
}

// ----------------------------------------------------------------------------

// Bytes `offset` and following of a tensor, which has them. Any thread may read.
static inline Status safetensors_read(const SafetensorsFile* f, const SafeTensor* t, size_t offset, void* dst,
                                      size_t bytes) {
    return read_at(f->fd, f->path, f->data_at + t->begin + offset, dst, bytes);
}

// ----------------------------------------------------------------------------
// Writing. The header has the tensors in the order of their bytes; spaces at its end align them to a multiple of 8. The same
// weights give the same bytes. A failure leaves nothing behind, as with atomic_file.h.
//
//     TRY(safetensors_create(&w, path));
//     TRY(safetensors_declare(&w, "wte.weight", "F32", 2, shape, bytes)); // each tensor
//     TRY(safetensors_begin(&w));
//     TRY(atomic_write(&w.file, data, bytes));                            // their bytes, in the same order
//     TRY(atomic_commit(&w.file));

typedef struct {
    AtomicFile file;
    size_t data_bytes; // of the tensors that are declared
} SafetensorsWriter;

static inline Status safetensors_create(SafetensorsWriter* w, const char* path) {
    static const char header[] =
        "\0\0\0\0\0\0\0\0{\"__metadata__\":{\"format\":\"pt\"}"; // transformers asks for the format
    w->data_bytes = 0;
    TRY(atomic_open(&w->file, path));
    return atomic_write(&w->file, header, sizeof(header) - 1);
}

// The next tensor. Its name has no character that JSON escapes; `type` is F32, BF16 or F16.
static inline Status safetensors_declare(SafetensorsWriter* w, const char* name, const char* type, int dimensions,
                                         const size_t* shape, size_t bytes) {
    char text[512];
    int n = snprintf(text, sizeof(text), ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", name, type);
    for (int i = 0; i < dimensions; i++) {
        n += snprintf(text + n, sizeof(text) - (size_t)n, "%s%zu", i > 0 ? "," : "", shape[i]);
    }
    n += snprintf(text + n, sizeof(text) - (size_t)n, "],\"data_offsets\":[%zu,%zu]}", w->data_bytes,
                  w->data_bytes + bytes);
    w->data_bytes += bytes;
    return atomic_write(&w->file, text, (size_t)n);
}

// Ends the header, when all tensors are declared.
static inline Status safetensors_begin(SafetensorsWriter* w) {
    unsigned char length[8];
    TRY(atomic_write(&w->file, "}", 1));
    off_t end = ftello(w->file.file);
    size_t bytes = size_round_up((size_t)end, 8) - 8, blanks = bytes + 8 - (size_t)end;
    TRY(atomic_write(&w->file, "       ", blanks));
    for (int i = 0; i < 8; i++) { length[i] = (unsigned char)(bytes >> 8 * i); }
    return atomic_overwrite(&w->file, 0, length, sizeof(length));
}

#endif
