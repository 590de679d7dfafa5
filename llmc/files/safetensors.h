/*
Reads safetensors files: 8 bytes of length N (little endian), N bytes of JSON, then the tensors' bytes.

    {"__metadata__": {"format": "pt"}, "wte.weight": {"dtype": "F32", "shape": [50257, 768], "data_offsets": [0, 154389504]}}

All rules of the format are enforced on opening: N is at most 100 MB and inside the file; the header is UTF-8 that begins with
'{', and may end in spaces; keys are unique; metadata is text; a tensor has a known dtype, whole numbers for a shape, and the
number of bytes that follows from them (without overflow); the tensors fill the data without a hole or an overlap.

    SafetensorsFile file;
    TRY(safetensors_open(&file, path));
    TRY(safetensors_read(&file, &file.tensors[i], offset, dst, bytes)); // 0 <= i < file.count; any thread may
    safetensors_close(&file);
*/
#ifndef LLMC_FILES_SAFETENSORS_H
#define LLMC_FILES_SAFETENSORS_H

#include <fcntl.h>
#include <inttypes.h>
#include <unistd.h>

#include "llmc/base/json.h"
#include "llmc/base/regular_file.h"
#include "llmc/base/status.h"
#include "llmc/base/utils.h"

enum { SAFETENSORS_MOST_HEADER = 100000000, SAFETENSORS_MOST_DIMS = 8 };

// X(ctx, dtype, bits of an element)
#define SAFETENSORS_DTYPES(X, ctx)                                                                                     \
    X(ctx, F32, 32)                                                                                                    \
    X(ctx, F16, 16)                                                                                                    \
    X(ctx, BF16, 16)                                                                                                   \
    X(ctx, F64, 64)                                                                                                    \
    X(ctx, I64, 64)                                                                                                    \
    X(ctx, I32, 32)                                                                                                    \
    X(ctx, I16, 16)                                                                                                    \
    X(ctx, I8, 8)                                                                                                      \
    X(ctx, U64, 64)                                                                                                    \
    X(ctx, U32, 32)                                                                                                    \
    X(ctx, U16, 16)                                                                                                    \
    X(ctx, U8, 8)                                                                                                      \
    X(ctx, BOOL, 8)                                                                                                    \
    X(ctx, C64, 64)                                                                                                    \
    X(ctx, F8_E5M2, 8)                                                                                                 \
    X(ctx, F8_E4M3, 8)                                                                                                 \
    X(ctx, F8_E8M0, 8)                                                                                                 \
    X(ctx, F6_E2M3, 6)                                                                                                 \
    X(ctx, F6_E3M2, 6)                                                                                                 \
    X(ctx, F4, 4)

#define SAFETENSORS_ID_(ctx, name, bits) SAFETENSORS_##name,
typedef enum { SAFETENSORS_DTYPES(SAFETENSORS_ID_, ) SAFETENSORS_NUM_DTYPES } SafetensorsDtype;
#undef SAFETENSORS_ID_

static const struct {
    const char* name;
    size_t bits;
} safetensors_dtypes[] = {
#define SAFETENSORS_ROW_(ctx, name, bits) {#name, bits},
    SAFETENSORS_DTYPES(SAFETENSORS_ROW_, )
#undef SAFETENSORS_ROW_
};

typedef struct {
    const char* name; // in the file's header; without NULs
    SafetensorsDtype dtype;
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

// Text -> text
static inline Status safetensors_check_metadata_(const SafetensorsFile* f, const JsonNode* metadata) {
    const Json* json = &f->header;
    if (metadata->type != (unsigned)JSON_OBJECT) {
        return status_fail("%s: __metadata__ is no object; the file is corrupt", f->path);
    }
    for (const JsonNode* key = json_first(json, metadata); key != NULL; key = json_next(json, metadata, key)) {
        if (json_value(key)->type == (unsigned)JSON_STRING) { continue; }
        return status_fail("%s: __metadata__: the value of \"%.200s\" is no text; the file is corrupt", f->path,
                           json_string(json, key));
    }
    return STATUS_OK;
}

static inline Status safetensors_parse_dtype_(const SafetensorsFile* f, SafeTensor* t, const JsonNode* dtype) {
    for (int i = 0; i < (int)SAFETENSORS_NUM_DTYPES; i++) {
        if (!json_is(&f->header, dtype, safetensors_dtypes[i].name)) { continue; }
        t->dtype = (SafetensorsDtype)i;
        return STATUS_OK;
    }
    if (dtype->type != (unsigned)JSON_STRING) {
        return status_fail("%s: %.200s: its dtype is no text", f->path, t->name);
    }
    return status_fail("%s: %.200s has the dtype \"%.40s\", which the format does not know", f->path, t->name,
                       json_string(&f->header, dtype));
}

// The shape, and how many elements it makes
static inline Status safetensors_parse_shape_(const SafetensorsFile* f, SafeTensor* t, const JsonNode* shape) {
    const Json* json = &f->header;
    if (shape->type != (unsigned)JSON_ARRAY) {
        return status_fail("%s: %.200s: its shape is no list", f->path, t->name);
    }
    t->elements = 1;
    for (const JsonNode* n = json_first(json, shape); n != NULL; n = json_next(json, shape, n)) {
        size_t size;
        if (!json_whole(json, n, SIZE_MAX - 1, &size)) {
            return status_fail("%s: %.200s: shape has a non-integer or out-of-range dimension", f->path, t->name);
        }
        if (t->dims == SAFETENSORS_MOST_DIMS) {
            return status_fail("%s: %.200s has more than %d dimensions", f->path, t->name, (int)SAFETENSORS_MOST_DIMS);
        }
        t->shape[t->dims++] = size;
        if (size != 0 && t->elements > (SIZE_MAX - 1) / size) {
            return status_fail("%s: %.200s: its shape makes more elements than can be counted", f->path, t->name);
        }
        t->elements *= size;
    }
    return STATUS_OK;
}

// [begin, end], which must be what dtype and shape make
static inline Status safetensors_parse_offsets_(const SafetensorsFile* f, SafeTensor* t, const JsonNode* offsets) {
    const Json* json = &f->header;
    const JsonNode* first = offsets->type == (unsigned)JSON_ARRAY ? json_first(json, offsets) : NULL;
    const JsonNode* second = first != NULL ? json_next(json, offsets, first) : NULL;
    size_t bits = safetensors_dtypes[t->dtype].bits;
    if (second == NULL || json_next(json, offsets, second) != NULL ||
        !json_whole(json, first, SIZE_MAX - 1, &t->begin) || !json_whole(json, second, SIZE_MAX - 1, &t->end)) {
        return status_fail("%s: %.200s: data_offsets must be two whole numbers", f->path, t->name);
    }
    if (t->begin > t->end) {
        return status_fail("%s: %.200s: its data_offsets end (%zu) before they begin (%zu)", f->path, t->name, t->end,
                           t->begin);
    }
    if (t->end > f->data_bytes) {
        return status_fail(
            "%s: %.200s ends at byte %zu of the data, of which the file has %zu; it is truncated or corrupt", f->path,
            t->name, t->end, f->data_bytes);
    }
    if (t->elements > (SIZE_MAX - 1) / bits || t->elements * bits % 8 != 0 ||
        t->elements * bits / 8 != t->end - t->begin) {
        return status_fail("%s: %.200s has %zu bytes, but its shape and its dtype %s make %zu elements of %zu bits",
                           f->path, t->name, t->end - t->begin, safetensors_dtypes[t->dtype].name, t->elements, bits);
    }
    return STATUS_OK;
}

static inline Status safetensors_parse_tensor_(const SafetensorsFile* f, SafeTensor* t, const JsonNode* key) {
    static const char* const names[] = {"dtype", "shape", "data_offsets"};
    const Json* json = &f->header;
    const JsonNode *value = json_value(key), *members[3] = {NULL, NULL, NULL};
    memset(t, 0, sizeof(*t));
    t->name = json_string(json, key);
    if (strlen(t->name) != key->bytes) { return status_fail("%s: the name %.200s holds a NUL", f->path, t->name); }
    if (value->type != (unsigned)JSON_OBJECT) { return status_fail("%s: %.200s is no object", f->path, t->name); }
    for (const JsonNode* k = json_first(json, value); k != NULL; k = json_next(json, value, k)) {
        int i = 0;
        while (i < 3 && !json_is(json, k, names[i])) { i++; }
        if (i == 3) {
            return status_fail("%s: %.200s has a key \"%.40s\", which the format does not know", f->path, t->name,
                               json_string(json, k));
        }
        members[i] = json_value(k);
    }
    for (int i = 0; i < 3; i++) {
        if (members[i] == NULL) { return status_fail("%s: %.200s has no %s", f->path, t->name, names[i]); }
    }
    TRY(safetensors_parse_dtype_(f, t, members[0]));
    TRY(safetensors_parse_shape_(f, t, members[1]));
    return safetensors_parse_offsets_(f, t, members[2]);
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
    for (size_t i = 0; i < f->count; i++) {
        const SafeTensor* t = &f->tensors[i];
        if (t->begin > at) {
            return status_fail("%s: bytes %zu to %zu of the data belong to no tensor (before %.200s)", f->path, at,
                               t->begin - 1, t->name);
        }
        if (t->begin < at) {
            return status_fail("%s: %.200s and %.200s overlap in the data", f->path, f->tensors[i - 1].name, t->name);
        }
        at = t->end;
    }
    if (at == f->data_bytes) { return STATUS_OK; }
    return status_fail("%s has %zu trailing bytes after its last tensor; it is corrupt", f->path, f->data_bytes - at);
}

// Takes the header apart: twice, first to check it and to count its tensors.
static inline Status safetensors_parse_(SafetensorsFile* f) {
    const Json* json = &f->header;
    const JsonNode* root = json_root(json);
    for (int pass = 0; pass < 2; pass++) {
        SafeTensor checked;
        f->count = 0;
        for (const JsonNode* key = json_first(json, root); key != NULL; key = json_next(json, root, key)) {
            if (json_is(json, key, "__metadata__")) {
                TRY(safetensors_check_metadata_(f, json_value(key)));
                continue;
            }
            TRY(safetensors_parse_tensor_(f, pass == 0 ? &checked : &f->tensors[f->count], key));
            f->count++;
        }
        if (pass == 0) { f->tensors = (SafeTensor*)malloc((f->count + 1) * sizeof(SafeTensor)); }
        if (f->tensors == NULL) { return status_fail("out of memory: cannot read %s", f->path); }
    }
    if (f->count > 0) { qsort(f->tensors, f->count, sizeof(SafeTensor), safetensors_compare_); }
    return safetensors_check_cover_(f);
}

// Reads and parses the header, of which the file says `length`.
static inline Status safetensors_read_header_(SafetensorsFile* f, size_t length) {
    char name[1024];
    char* text = (char*)malloc(length);
    snprintf(name, sizeof(name), "%.1000s: its header", f->path);
    if (text == NULL) { return status_fail("out of memory: cannot read %s", f->path); }
    Status status = read_at(f->fd, f->path, 8, text, length);
    if (status == STATUS_OK && text[0] != '{') {
        status = status_fail("%s is no safetensors file: its header does not begin with '{'", f->path);
    }
    while (length > 1 && text[length - 1] == ' ') { length--; }
    if (status == STATUS_OK && text[length - 1] != '}') {
        status = status_fail("%s: its header does not end with '}' and spaces; the file is corrupt", f->path);
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
    f->path = (char*)malloc(strlen(path) + 1);
    if (f->path == NULL) { return status_fail("out of memory: cannot read %s", path); }
    strcpy(f->path, path);
    if (safetensors_open_(f) == STATUS_OK) { return STATUS_OK; }
    safetensors_close(f);
    return STATUS_ERROR;
}

// ----------------------------------------------------------------------------

// Bytes `offset` and following of a tensor. Any thread may read.
static inline Status safetensors_read(const SafetensorsFile* f, const SafeTensor* t, size_t offset, void* dst,
                                      size_t bytes) {
    size_t all = t->end - t->begin;
    if (offset > all || bytes > all - offset) {
        return status_fail("%s: more bytes of %s than it has", f->path, t->name);
    }
    return read_at(f->fd, f->path, f->data_at + t->begin + offset, dst, bytes);
}

// "(50257, 768)"
static inline const char* safetensors_shape_text(char* text, size_t size, const size_t* shape, int dims) {
    size_t at = (size_t)snprintf(text, size, "(");
    for (int i = 0; i < dims && at < size; i++) {
        at += (size_t)snprintf(text + at, size - at, "%s%zu", i > 0 ? ", " : "", shape[i]);
    }
    if (at < size) { snprintf(text + at, size - at, ")"); }
    return text;
}

#endif
