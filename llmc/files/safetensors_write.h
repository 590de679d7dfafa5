/*
Writes safetensors files: 8 bytes with the length of the header (little-endian), the header in JSON, then the tensors without
padding. The header has each tensor's type, shape and range in the bytes that follow, in the order of the file; spaces at its
end align the tensors to a multiple of 8. The same weights give the same bytes.

    SafetensorsWriter w;
    TRY(safetensors_create(&w, path));
    TRY(safetensors_declare(&w, "wte.weight", "F32", 2, shape, bytes)); // each tensor
    TRY(safetensors_begin(&w));
    TRY(atomic_write(&w.file, data, bytes));                            // their bytes, in the same order
    TRY(atomic_commit(&w.file));

A failure leaves nothing behind, as with atomic_file.h.
*/
#ifndef LLMC_FILES_SAFETENSORS_WRITE_H
#define LLMC_FILES_SAFETENSORS_WRITE_H

#include "llmc/base/atomic_file.h"

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
