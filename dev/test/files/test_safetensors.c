// llmc/files/safetensors.h: sound files are read as they are, and every rule of the format refuses the files that break it.
#include "llmc/files/safetensors.h"

#include "dev/test/fixtures/unit.h"

static SafetensorsFile file;

// Writes a file: a length, a header of so many bytes, and `data` bytes 0, 1, 2, ...
static const char* write_raw(uint64_t length, const char* header, size_t header_bytes, size_t data) {
    const char* path = unit_path("a.safetensors");
    char* bytes = (char*)malloc_check(8 + header_bytes + data);
    for (int i = 0; i < 8; i++) { bytes[i] = (char)(length >> 8 * i); }
    memcpy(bytes + 8, header, header_bytes);
    for (size_t i = 0; i < data; i++) { bytes[8 + header_bytes + i] = (char)i; }
    unit_write(path, bytes, 8 + header_bytes + data);
    free(bytes);
    return path;
}

static const char* write_file(const char* header, size_t data) {
    return write_raw(strlen(header), header, strlen(header), data);
}

// 1 where the file is refused, with one line that begins with its path and has these words.
static int refused(const char* path, const char* words) {
    status_clear();
    Status status = safetensors_open(&file, path);
    int good = status != STATUS_OK && strncmp(status_message(), path, strlen(path)) == 0 &&
               strstr(status_message(), words) != NULL && file.fd == -1 && file.tensors == NULL;
    if (!good) { printf("    %s\n", status == STATUS_OK ? "accepted" : status_message()); }
    if (status == STATUS_OK) { safetensors_close(&file); }
    return good;
}

static int accepted(const char* path) {
    status_clear();
    if (safetensors_open(&file, path) == STATUS_OK) { return 1; }
    printf("    %s\n", status_message());
    return 0;
}

// The tensor of that name, or NULL
static const SafeTensor* find(const char* name) {
    for (size_t i = 0; i < file.count; i++) {
        if (strcmp(file.tensors[i].name, name) == 0) { return &file.tensors[i]; }
    }
    return NULL;
}

static void sound_files_are_read(void) {
    unsigned char bytes[8];
    const char* path =
        write_file("{\"__metadata__\":{\"format\":\"pt\",\"a\":\"\"}, \"b\":{\"shape\":[2,1,2], \"dtype\":\"BF16\","
                   "\"data_offsets\":[4,12]},\"a.x\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
                   "\"none\":{\"dtype\":\"U8\",\"shape\":[3,0],\"data_offsets\":[12,12]}}   ",
                   12);
    CHECK(accepted(path) && file.count == 3);
    const SafeTensor *a = find("a.x"), *b = find("b");
    CHECK(a == &file.tensors[0] && a->dims == 0 && a->elements == 1 && a->dtype == SAFETENSORS_F32);
    CHECK(b == &file.tensors[1] && b->dims == 3 && b->elements == 4 && b->dtype == SAFETENSORS_BF16);
    CHECK(b->shape[0] == 2 && b->shape[1] == 1 && b->shape[2] == 2);
    CHECK(find("none")->elements == 0 && find("x") == NULL);
    CHECK(safetensors_read(&file, b, 2, bytes, 6) == STATUS_OK && bytes[0] == 6 && bytes[5] == 11);
    unit_truncate(path, (size_t)(file.data_at + 8));
    CHECK(safetensors_read(&file, b, 2, bytes, 6) != STATUS_OK && strstr(status_message(), "shorter"));
    safetensors_close(&file);
    CHECK(accepted(write_file("{}", 0)) && file.count == 0);
    safetensors_close(&file);
}

static void every_dtype_has_its_size(void) {
    static const struct {
        const char* name;
        size_t bytes; // of 8 elements
    } types[] = {{"F64", 64}, {"F32", 32},    {"F16", 16},    {"BF16", 16},   {"I64", 64},
                 {"I32", 32}, {"I16", 16},    {"I8", 8},      {"U64", 64},    {"U32", 32},
                 {"U16", 16}, {"U8", 8},      {"BOOL", 8},    {"F8_E5M2", 8}, {"F8_E4M3", 8},
                 {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"C64", 64},    {"F8_E8M0", 8}};
    for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++) {
        char header[256];
        for (size_t more = 0; more < 2; more++) {
            size_t bytes = types[i].bytes + more;
            snprintf(header, sizeof(header), "{\"x\":{\"dtype\":\"%s\",\"shape\":[8],\"data_offsets\":[0,%zu]}}",
                     types[i].name, bytes);
            CHECK(more ? refused(write_file(header, bytes), "elements of") : accepted(write_file(header, bytes)));
            if (!more) { safetensors_close(&file); }
        }
    }
}

// ----------------------------------------------------------------------------
// Hostile files, each refused for its own reason

#define X(dtype, shape, offsets) "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static void the_length_of_the_header_is_checked(void) {
    const char* header = X("\"U8\"", "[4]", "[0,4]");
    size_t n = strlen(header);
    CHECK(refused(write_raw(UINT64_MAX, header, n, 4), "18446744073709551615 bytes, 100000000 are the most"));
    CHECK(refused(write_raw(100000001, header, n, 4), "100000000 are the most"));
    CHECK(refused(write_raw(100000000, header, n, 4), "truncated or corrupt"));
    CHECK(refused(write_raw(n + 5, header, n, 4), "truncated or corrupt"));
    CHECK(refused(write_raw(n + 4, header, n, 4), "more text after the value"));
    CHECK(refused(write_raw(n - 1, header, n, 4), "',' or '}' was expected"));
    CHECK(refused(write_raw(0, header, n, 4), "header has 0 bytes"));
    CHECK(refused(write_raw(1, header, n, 4), "header has 1 bytes"));
    CHECK(refused(write_raw(n, header, 0, 1), "less than any safetensors file"));
    unit_write(unit_path("a.safetensors"), "", 0);
    CHECK(refused(unit_path("a.safetensors"), "0 bytes, less than any"));
    unit_write(unit_path("a.safetensors"), "\x02\0\0\0\0\0\0", 7);
    CHECK(refused(unit_path("a.safetensors"), "7 bytes, less than any"));
    CHECK(safetensors_open(&file, unit_folder) != STATUS_OK);
    status_clear();
    CHECK(safetensors_open(&file, unit_path("none.safetensors")) != STATUS_OK &&
          strstr(status_message(), "No such file"));
}

static void the_header_is_json_in_utf_8(void) {
    char deep[2000] = "{\"x\":";
    CHECK(refused(write_file(" " X("\"U8\"", "[4]", "[0,4]"), 4), "does not begin with '{'"));
    CHECK(refused(write_file("[1, 2, 3]", 0), "does not begin with '{'"));
    CHECK(refused(write_file("\x80\x02}q\x01.", 30), "does not begin with '{'")); // a pickle
    static const char nuls[] = X("\"U8\"", "[4]", "[0,4]")
    "\0";
    CHECK(refused(write_raw(sizeof(nuls), nuls, sizeof(nuls), 4), "more text after the value"));
    CHECK(refused(write_file("{\"x\xff\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}", 4), "no UTF-8"));
    CHECK(refused(write_file("{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]}}}", 4), "more text"));
    CHECK(refused(write_file("{\"x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},}", 4),
                  "a key was expected"));
    CHECK(refused(write_file("{\"x\":{\"dtype\":\"U8\"\"shape\":[4],\"data_offsets\":[0,4]}}", 4),
                  "',' or '}' was expected"));
    memset(deep + 5, '[', 1900);
    strcat(deep, "}");
    CHECK(refused(write_file(deep, 0), "too deep"));
}

static void names_have_no_nul(void) {
    CHECK(refused(write_file("{\"x\\u0000y\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2),
                  "holds a NUL"));
}

static void members_are_what_the_format_says(void) {
    CHECK(refused(write_file("{\"x\":[]}", 0), "x has not all of dtype, shape and data_offsets"));
    CHECK(refused(write_file("{\"x\":{}}", 0), "x has not all of"));
    CHECK(refused(write_file("{\"x\":{\"dtype\":\"U8\",\"data_offsets\":[0,0]}}", 0), "x has not all of"));
    CHECK(refused(write_file("{\"x\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0), "x has not all of"));
    CHECK(refused(write_file(X("\"F31\"", "[1]", "[0,4]"), 4), "a dtype that the format does not know"));
    CHECK(refused(write_file(X("\"f32\"", "[1]", "[0,4]"), 4), "a dtype that the format does not know"));
    CHECK(refused(write_file(X("32", "[1]", "[0,4]"), 4), "a dtype that the format does not know"));
    const char* const wrong[] = {
        X("\"U8\"", "4", "[0,4]"),
        X("\"U8\"", "{}", "[0,4]"),
        X("\"U8\"", "[-4]", "[0,4]"),
        X("\"U8\"", "[4.0]", "[0,4]"),
        X("\"U8\"", "[4e0]", "[0,4]"),
        X("\"U8\"", "[\"4\"]", "[0,4]"),
        X("\"U8\"", "[null]", "[0,4]"),
        X("\"U8\"", "[1,1,1,1,1,1,1,1,4]", "[0,4]"),
        X("\"U8\"", "[4]", "[0,4,4]"),
        X("\"U8\"", "[4]", "[4]"),
        X("\"U8\"", "[4]", "[]"),
        X("\"U8\"", "[4]", "[0,-4]"),
        X("\"U8\"", "[4]", "[0,4.0]"),
        X("\"U8\"", "[4]", "{\"0\":4}"),
    };
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        CHECK(refused(write_file(wrong[i], 4), "must be up to 8 whole numbers, its data_offsets two"));
    }
}

static void sizes_do_not_wrap_around(void) {
    CHECK(refused(write_file(X("\"F32\"", "[99999999999999999999]", "[0,4]"), 4),
                  "must be up to 8 whole numbers, its data_offsets two"));
    CHECK(refused(write_file(X("\"U8\"", "[18446744073709551615]", "[0,4]"), 4),
                  "must be up to 8 whole numbers, its data_offsets two"));
    CHECK(refused(write_file(X("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0),
                  "elements of 8 bits")); // 2^64
    CHECK(refused(write_file(X("\"U8\"", "[4294967297,4294967297]", "[0,4]"), 4), "elements of 8 bits"));
    CHECK(refused(write_file(X("\"F32\"", "[4611686018427387904]", "[0,0]"), 0), "elements of 32 bits")); // 4 * 2^62
    CHECK(refused(write_file(X("\"F32\"", "[576460752303423489]", "[0,4]"), 4),
                  "elements of 32 bits")); // 32 * (2^59 + 1)
    CHECK(refused(write_file(X("\"U8\"", "[4]", "[0,18446744073709551619]"), 4),
                  "must be up to 8 whole numbers, its data_offsets two")); // 2^64 + 3
    CHECK(refused(write_file(X("\"U8\"", "[4]", "[18446744073709551612,18446744073709551614]"), 4),
                  "elements of 8 bits"));
    CHECK(refused(write_file(X("\"F4\"", "[3]", "[0,2]"), 2), "3 elements of 4 bits"));
}

static void tensors_fill_the_data_without_holes_or_overlaps(void) {
    static const char two[] = "{\"x\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]},"
                              "\"y\":{\"dtype\":\"U8\",\"shape\":[%d],\"data_offsets\":[%d,%d]}}";
    static const struct {
        int x, x_end, y, y_end;
        size_t data;
        const char* words;
    } cases[] = {
        {0, 4, 4, 8, 8, NULL},
        {4, 8, 0, 4, 8, NULL},
        {0, 8, 8, 8, 8, NULL},
        {0, 0, 0, 8, 8, NULL},
        {0, 8, 0, 0, 8, NULL},
        {0, 4, 3, 8, 8, "y does not begin at byte 4"},
        {0, 4, 0, 4, 4, "does not begin at byte"},
        {0, 8, 2, 4, 8, "does not begin at byte"},
        {2, 4, 0, 8, 8, "x does not begin at byte 8"},
        {0, 8, 4, 4, 8, "does not begin at byte"}, // without elements, but inside of another
        {0, 4, 5, 8, 8, "y does not begin at byte 4"},
        {1, 4, 4, 8, 8, "x does not begin at byte 0"},
        {0, 4, 4, 8, 9, "end at byte 8 of the data, of which it has 9"},
        {0, 4, 4, 8, 7, "end at byte 8 of the data, of which it has 7"},
        {0, 4, 8, 4, 8, "y has the bytes 8 to 4"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char header[256];
        int y = cases[i].y_end > cases[i].y ? cases[i].y_end - cases[i].y : 0;
        snprintf(header, sizeof(header), two, cases[i].x_end - cases[i].x, cases[i].x, cases[i].x_end, y, cases[i].y,
                 cases[i].y_end);
        const char* path = write_file(header, cases[i].data);
        CHECK(cases[i].words == NULL ? accepted(path) : refused(path, cases[i].words));
        if (cases[i].words == NULL) { safetensors_close(&file); }
    }
    CHECK(refused(write_file(X("\"F32\"", "[2]", "[0,4]"), 4),
                  "has the bytes 0 to 4, but its shape and its dtype F32 make 2 elements"));
    CHECK(refused(write_file(X("\"F32\"", "[1]", "[0,8]"), 8), "has the bytes 0 to 8, but its shape"));
    CHECK(refused(write_file(X("\"U8\"", "[0]", "[0,4]"), 4), "has the bytes 0 to 4, but its shape"));
    CHECK(refused(write_file("{}", 4), "end at byte 0 of the data, of which it has 4"));
}

// A file cut off at any byte is refused.
static void truncated_files_are_refused(void) {
    const char* path = write_file(X("\"F32\"", "[2,2]", "[0,16]"), 16);
    size_t bytes;
    free(unit_read(path, &bytes));
    int all = 1;
    for (size_t cut = bytes - 1; cut < bytes; cut--) {
        unit_truncate(path, cut);
        all = all && safetensors_open(&file, path) != STATUS_OK;
        status_clear();
    }
    CHECK(all);
}

int main(void) {
    sound_files_are_read();
    every_dtype_has_its_size();
    the_length_of_the_header_is_checked();
    the_header_is_json_in_utf_8();
    names_have_no_nul();
    members_are_what_the_format_says();
    sizes_do_not_wrap_around();
    tensors_fill_the_data_without_holes_or_overlaps();
    truncated_files_are_refused();
    return unit_end();
}
