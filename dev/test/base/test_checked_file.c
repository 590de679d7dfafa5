// llmc/base/checked_file.h: what is written is read back; any damage is refused, with the file and the range that is wrong.
#include "dev/test/fixtures/file_calls.h" // before the header whose calls it records

#include "llmc/base/checked_file.h"

#include "dev/test/fixtures/unit.h"

enum { MAGIC = 20990101, BLOCK = 64 << 10 };
static unsigned char body[129 * BLOCK];

static int says(Status status, const char* words) {
    int ok = status == STATUS_ERROR && strstr(status_message(), words) != NULL;
    if (!ok) { printf("    expected %s in: %s\n", words, status_message()); }
    return ok;
}

static const char* write_file(size_t bytes, size_t piece) {
    const char* path = unit_path("checked.bin");
    const int32_t header[HEADER_INTS] = {MAGIC, 1, 7};
    CheckedWriter w;
    check(checked_create(&w, path, header, bytes));
    for (size_t i = 0; i < bytes; i += piece) {
        check(checked_write(&w, body + i, bytes - i < piece ? bytes - i : piece));
    }
    w.header[3] = 9; // known at the end only
    check(checked_commit(&w));
    return path;
}

// STATUS_OK where the file is whole
static Status read_file(const char* path) {
    CheckedReader r;
    TRY(checked_open(&r, path, MAGIC, "checked file"));
    Status status = checked_verify(&r);
    if (status == STATUS_OK) { status = checked_end(&r); }
    checked_close(&r);
    return status;
}

static void sizes_come_back(void) {
    static const size_t sizes[] = {0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 128 * BLOCK - 1, 128 * BLOCK, 128 * BLOCK + 1};
    static unsigned char read[sizeof(body)];
    for (int i = 0; i < 8; i++) {
        CheckedReader r;
        size_t n = sizes[i];
        const char* path = write_file(n, 100001);
        CHECK(checked_open(&r, path, MAGIC, "checked file") == STATUS_OK && r.has_checksums && r.body_bytes == n);
        CHECK(r.header[0] == MAGIC && r.header[2] == 7 && r.header[3] == 9);
        CHECK(checked_read(&r, read, n / 3) == STATUS_OK && checked_skip(&r, n / 3) == STATUS_OK);
        CHECK(checked_read(&r, read + 2 * (n / 3), n - 2 * (n / 3)) == STATUS_OK);
        CHECK(memcmp(read, body, n / 3) == 0 && memcmp(read + 2 * (n / 3), body + 2 * (n / 3), n - 2 * (n / 3)) == 0);
        CHECK(checked_end(&r) == STATUS_OK);
        CHECK(says(checked_read(&r, read, 1), "ends too early: 1 bytes wanted, 0 left"));
        checked_close(&r);
    }
}

// The layout that other programs write and read: dev/data/data_common.py
static void the_layout_is_the_documented_one(void) {
    size_t bytes;
    int32_t header[HEADER_INTS];
    uint32_t sum;
    for (int k = 0; k < 2; k++) {
        size_t n = k == 0 ? 3 * BLOCK + 5 : 128 * BLOCK + 1, block = k == 0 ? BLOCK : 2 * BLOCK;
        char* data = unit_read(write_file(n, n), &bytes);
        memcpy(header, data, sizeof(header));
        CHECK(header[124] == 0x43524343 && header[125] == (k == 0 ? 16 : 17) && header[126] == (k == 0 ? 4 : 65));
        for (size_t i = 0; i * block < n; i++) {
            sum = crc32c(0, data + 1024 + i * block, n - i * block < block ? n - i * block : block);
            CHECK((uint32_t)header[128 + i] == sum);
        }
        CHECK(header[128 + header[126]] == 0);
        sum = (uint32_t)header[127];
        memset(data + 4 * 127, 0, 4);
        CHECK(sum == crc32c(0, data, 1024));
        free(data);
    }
    CHECK(checked_block_log2((size_t)128 << 20) == 20 && checked_block_log2(((size_t)128 << 20) + 1) == 21);
    CHECK(checked_block_log2(SIZE_MAX) == 56); // ends
}

static void the_same_bytes_give_the_same_file(void) {
    size_t n, m;
    char* one = unit_read(write_file(5 * BLOCK + 3, 7777), &n);
    char* two = unit_read(write_file(5 * BLOCK + 3, 5 * BLOCK + 3), &m);
    CHECK(n == m && memcmp(one, two, n) == 0);
    int32_t header[HEADER_INTS];
    memcpy(header, one, sizeof(header));
    uint64_t contents = checked_contents(header, n - HEADER_BYTES);
    CHECK(contents != 0 && contents != checked_contents(header, n - HEADER_BYTES + 1));
    header[128] ^= 1;
    CHECK(contents != checked_contents(header, n - HEADER_BYTES));
    free(one), free(two);
}

static void every_flipped_bit_of_the_header_is_refused(void) {
    const char* path = write_file(1000, 1000);
    int refused = 0;
    for (size_t bit = 0; bit < 8 * HEADER_BYTES; bit++) {
        unit_flip(path, bit);
        refused += read_file(path) == STATUS_ERROR;
        if (bit == 8 * 4 * 7) { CHECK(says(STATUS_ERROR, "checked.bin: its header (bytes 0 to 1023)")); }
        if (bit == 8 * 4 * CHECKED_AT) { CHECK(says(STATUS_ERROR, "checked.bin: its header (bytes 0 to 1023)")); }
        unit_flip(path, bit);
    }
    CHECK(refused == 8 * HEADER_BYTES);
    CHECK(read_file(path) == STATUS_OK);
}

static void a_flipped_bit_of_the_body_names_its_block(void) {
    const char* path = write_file(2 * BLOCK + 100, 2 * BLOCK + 100);
    static const struct {
        size_t byte;
        const char* words;
    } places[] = {{0, "checked.bin: bytes 1024 to 66559 do not have their checksum"},
                  {BLOCK - 1, "bytes 1024 to 66559"},
                  {BLOCK, "bytes 66560 to 132095"},
                  {2 * BLOCK, "bytes 132096 to 132195"},
                  {2 * BLOCK + 99, "bytes 132096 to 132195"}};
    for (int i = 0; i < 5; i++) {
        unit_flip(path, 8 * (HEADER_BYTES + places[i].byte) + 3);
        CHECK(says(read_file(path), places[i].words));
        unit_flip(path, 8 * (HEADER_BYTES + places[i].byte) + 3);
    }
    CHECK(read_file(path) == STATUS_OK);
}

static void other_lengths_are_refused(void) {
    char* path = strdup(write_file(2 * BLOCK + 100, 4096));
    unit_truncate(path, HEADER_BYTES + 2 * BLOCK + 99);
    CHECK(says(read_file(path), "bytes 132096 to 132194 do not have their checksum"));
    unit_truncate(path, HEADER_BYTES + 2 * BLOCK + 101); // a zero more
    CHECK(says(read_file(path), "bytes 132096 to 132196 do not have their checksum"));
    unit_truncate(path, HEADER_BYTES + 2 * BLOCK);
    CHECK(says(read_file(path), "truncated"));
    unit_truncate(path, HEADER_BYTES + 4 * BLOCK);
    CHECK(says(read_file(path), "trailing bytes"));
    unit_truncate(path, HEADER_BYTES - 1);
    CHECK(says(read_file(path), "checked.bin has 1023 bytes") && strstr(status_message(), "no checked file"));
    free(path);
}

static void files_without_checksums_are_read_and_told(void) {
    const char* path = unit_path("plain.bin");
    CheckedReader r;
    char text[8];
    unit_write_format(path, MAGIC, 1, 0, 0, "1234567", 7);
    CHECK(checked_open(&r, path, MAGIC, "checked file") == STATUS_OK && !r.has_checksums && r.body_bytes == 7);
    CHECK(checked_read(&r, text, 6) == STATUS_OK && memcmp(text, "123456", 6) == 0);
    CHECK(says(checked_end(&r), "plain.bin has trailing bytes: 1"));
    checked_close(&r);
    CHECK(says(checked_open(&r, path, 1, "model"), "plain.bin is not a model: magic number 20990101, expected 1"));
    int refused = 0; // no flip in words 124 to 255 makes it another kind that is accepted
    for (size_t bit = 32 * CHECKED_AT; bit < 32 * HEADER_INTS; bit++) {
        unit_flip(path, bit);
        refused += read_file(path) == STATUS_ERROR;
        unit_flip(path, bit);
    }
    CHECK(refused == 32 * (HEADER_INTS - CHECKED_AT));
}

static void writing_and_reading_fail_without_ending(void) {
    const char* path = unit_path("other.bin");
    const int32_t header[HEADER_INTS] = {MAGIC};
    CheckedWriter w;
    CheckedReader r;
    CHECK(says(checked_create(&w, "no/such/folder/x", header, 1), "no/such/folder/x.tmp: No such file"));
    CHECK(says(checked_open(&r, "no/such/file", MAGIC, "x"), "cannot open no/such/file: No such file"));
    CHECK(says(checked_open(&r, "/", MAGIC, "x"), "/")); // a directory
    check(checked_create(&w, path, header, 3));
    CHECK(says(checked_write(&w, "1234", 4), "more bytes"));
    check(checked_create(&w, path, header, 3));
    CHECK(checked_write(&w, "12", 2) == STATUS_OK && says(checked_commit(&w), "2 bytes were written of the 3"));
    CHECK(!file_exists(path) && !file_exists(unit_path("other.bin.tmp")));
    if (symlink("/dev/full", unit_path("other.bin.tmp")) != 0) { fatal("cannot make a link"); }
    check(checked_create(&w, path, header, 2 * BLOCK));
    (void)checked_write(&w, body, 2 * BLOCK);
    CHECK(says(checked_commit(&w), "other.bin.tmp: No space left on device"));
    CHECK(!file_exists(path) && !file_exists(unit_path("other.bin.tmp")));
}

// Its header, which is complete last, is on the disk with the rest before the file has its name.
static void all_of_a_file_reaches_the_disk_before_its_name(void) {
    file_calls_begin();
    const char* path = write_file(3 * BLOCK + 5, 4096);
    CHECK(file_calls_are("fsync checked.bin.tmp, close checked.bin.tmp, rename checked.bin.tmp to checked.bin, "
                         "fsync its folder"));
    CHECK(file_calls.synced == file_digest(path));
}

int main(void) {
    for (size_t i = 0; i < sizeof(body); i++) { body[i] = (unsigned char)(i * i >> 3 ^ i >> 9); }
    sizes_come_back();
    the_layout_is_the_documented_one();
    the_same_bytes_give_the_same_file();
    every_flipped_bit_of_the_header_is_refused();
    a_flipped_bit_of_the_body_names_its_block();
    other_lengths_are_refused();
    files_without_checksums_are_read_and_told();
    writing_and_reading_fail_without_ending();
    all_of_a_file_reaches_the_disk_before_its_name();
    return unit_end();
}
