// llmc/text/tokenizer.h: from token ids to what a terminal shows, and which files are refused.
#include "llmc/text/tokenizer.h"

#include "dev/test/fixtures/unit.h"

enum { V = 12 };

// Tokens of every kind: text, white space, a NUL inside, one character alone, halves of one, control codes, 255 bytes
static size_t make_body(unsigned char* body) {
    static const struct {
        const char* bytes;
        int length;
    } tokens[V - 1] = {{"Hello", 5},    {" world", 6},    {"\n\t", 2},          {"a\0b", 3},
                       {"\xc3\xa9", 2}, {"\xe2\x82", 2},  {"\xac!", 2},         {"\x1b[2J", 4},
                       {"\xff\xfe", 2}, {"\xc2\x9bX", 3}, {"<|endoftext|>", 13}};
    size_t at = 0;
    for (int i = 0; i < V - 1; i++) {
        body[at++] = (unsigned char)tokens[i].length;
        memcpy(body + at, tokens[i].bytes, (size_t)tokens[i].length);
        at += (size_t)tokens[i].length;
    }
    body[at++] = 255;
    memset(body + at, 'z', 255);
    return at + 255;
}

static const char* write_tokenizer(const char* name, int version, int vocab_size, int eot) {
    unsigned char body[1024];
    size_t bytes = make_body(body);
    const char* path = unit_path(name);
    unit_write_format(path, TOKENIZER_MAGIC, version, vocab_size, eot, body, bytes);
    return path;
}

// 1 where the tokens print as `text` of this length.
static int prints_as(Tokenizer* t, const int* ids, int n, const char* text, size_t length) {
    const char* path = unit_path("printed.txt");
    FILE* out = fopen_check(path, "wb");
    for (int i = 0; i < n; i++) { tokenizer_print(out, t, ids[i]); }
    fclose(out);
    size_t bytes;
    char* printed = unit_read(path, &bytes);
    int same = bytes == length && memcmp(printed, text, length) == 0;
    free(printed);
    return same;
}

static void a_file_gives_its_tokens(void) {
    Tokenizer t;
    size_t length;
    tokenizer_load(&t, write_tokenizer("v2.bin", 2, V, 10), V);
    CHECK(t.ready && t.vocab_size == V && t.eot_token == 10);
    const unsigned char* bytes = tokenizer_decode(&t, 0, &length);
    CHECK(length == 5 && memcmp(bytes, "Hello", 5) == 0);
    bytes = tokenizer_decode(&t, 3, &length);
    CHECK(length == 3 && memcmp(bytes, "a\0b", 3) == 0);
    bytes = tokenizer_decode(&t, V - 1, &length);
    CHECK(length == 255 && bytes[0] == 'z' && bytes[254] == 'z');
    CHECK(tokenizer_decode(&t, V, &length) == NULL && length == 0);
    CHECK(tokenizer_decode(&t, -1, &length) == NULL && length == 0);
    tokenizer_free(&t);
    tokenizer_load(&t, write_tokenizer("v1.bin", 1, V, 0),
                   V); // version 1 does not name the end of text: the last token
    CHECK(t.ready && t.eot_token == V - 1);
    tokenizer_free(&t);
}

static void load(const char* path) {
    Tokenizer t;
    tokenizer_load(&t, path, V);
    tokenizer_free(&t);
}

static void damage_is_noticed_where_the_file_has_checksums(void) {
    Tokenizer t;
    const char* path = write_tokenizer("sealed.bin", 2, V, 10);
    tokenizer_load(&t, path, V);
    CHECK(t.unchecked);
    tokenizer_free(&t);
    unit_seal(path);
    tokenizer_load(&t, path, V);
    CHECK(t.ready && !t.unchecked);
    tokenizer_free(&t);
    unit_flip(path, 8 * (HEADER_BYTES + 3)); // a letter of a token
    CHECK_FATAL("sealed.bin: bytes 1024 to", load(path));
    unit_flip(path, 8 * (HEADER_BYTES + 3));
    unit_flip(path, 8 * 4 * 3); // the end of text is another token
    CHECK_FATAL("sealed.bin: its header (bytes 0 to 1023)", load(path));
}

#define BROKEN "\xef\xbf\xbd" // U+FFFD

static void terminals_get_only_what_they_can_show(void) {
    Tokenizer t;
    tokenizer_load(&t, write_tokenizer("v2.bin", 2, V, 10), V);
    CHECK(prints_as(&t, (int[]){0, 1, 2}, 3, "Hello world\n\t", 13));
    CHECK(prints_as(&t, (int[]){3, 4}, 2, "ab\xc3\xa9", 4));                  // NUL goes
    CHECK(prints_as(&t, (int[]){5, 6}, 2, "\xe2\x82\xac!", 4));               // a euro sign of two tokens
    CHECK(prints_as(&t, (int[]){5, 0, 6}, 3, BROKEN "Hello" BROKEN "!", 12)); // its halves apart are none
    CHECK(prints_as(&t, (int[]){5, 4, 5, 5, 6}, 5, BROKEN "\xc3\xa9" BROKEN "\xe2\x82\xac!", 12));
    CHECK(prints_as(&t, (int[]){7, 8, 9}, 3, "[2J" BROKEN BROKEN "X", 10)); // escape and C1 codes go
    CHECK(prints_as(&t, (int[]){99, -1, 0}, 3, "99 -1 Hello", 11));         // tokens that do not exist
    tokenizer_free(&t);
}

static void bytes_need_no_file(void) {
    Tokenizer t;
    size_t length;
    tokenizer_load(&t, unit_path("none.bin"), 256);
    CHECK(t.ready && t.vocab_size == 256 && t.eot_token == '\n');
    int same = 1;
    for (int i = 0; i < 256; i++) {
        const unsigned char* bytes = tokenizer_decode(&t, i, &length);
        same = same && length == 1 && bytes[0] == i;
    }
    CHECK(same);
    CHECK(prints_as(&t, (int[]){'T', 'o', ' ', 0xc3, 0xa9, 0x07, 0xf0, 0x9f, 0x98, 0x80, '\n'}, 11,
                    "To \xc3\xa9\xf0\x9f\x98\x80\n", 10));
    tokenizer_free(&t);
}

static void a_missing_file_is_said_once_and_ids_are_printed(void) {
    if (unit_fork()) {
        Tokenizer t;
        tokenizer_load(&t, "missing_tokenizer.bin", 50257);
        int good = !t.ready && t.eot_token == 50256 && prints_as(&t, (int[]){15496, 995}, 2, "15496 995 ", 10);
        tokenizer_free(&t);
        _exit(good ? 0 : 2);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0);
    CHECK(strstr(child.text, "missing_tokenizer.bin") && strstr(child.text, "python3 dev/data/tokenizer.py"));
    CHECK(strchr(child.text, '\n') == child.text + child.length - 1);
}

// Every code point, encoded as RFC 3629 says, is one character; no prefix, surrogate or longer form of one is.
static void utf8_is_rfc_3629_s(void) {
    int all = 1;
    for (unsigned c = 0; c <= 0x10ffff; c++) {
        unsigned char s[4];
        int n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const unsigned char lead[5] = {0, 0x00, 0xc0, 0xe0, 0xf0};
        for (int i = n - 1; i > 0; i--) { s[i] = (unsigned char)(0x80 | ((c >> (6 * (n - 1 - i))) & 0x3f)); }
        s[0] = (unsigned char)(lead[n] | (c >> (6 * (n - 1))));
        int surrogate = c >= 0xd800 && c <= 0xdfff;
        for (int k = 1; k <= n; k++) { all = all && utf8_length(s, k) == (surrogate && k > 1 ? 0 : n); }
    }
    CHECK(all);
    CHECK(utf8_length((const unsigned char*)"\xc0", 1) == 0); // longer forms
    CHECK(utf8_length((const unsigned char*)"\xc1\xbf", 2) == 0);
    CHECK(utf8_length((const unsigned char*)"\xe0\x9f\xbf", 3) == 0);
    CHECK(utf8_length((const unsigned char*)"\xf0\x8f\xbf\xbf", 4) == 0);
    CHECK(utf8_length((const unsigned char*)"\xf4\x90\x80\x80", 4) == 0); // beyond U+10FFFF
    CHECK(utf8_length((const unsigned char*)"\xf5", 1) == 0);
    CHECK(utf8_length((const unsigned char*)"\x80", 1) == 0);     // begins with a continuation
    CHECK(utf8_length((const unsigned char*)"\xe2\x28", 2) == 0); // no continuation
}

static void bad_files_are_refused(void) {
    Tokenizer t;
    unsigned char body[1024];
    size_t bytes = make_body(body), size = HEADER_BYTES + bytes;
    const char* bad = unit_path("bad.bin");
    unit_write_format(bad, 20240326, 2, V, 10, body, bytes);
    CHECK_FATAL("bad.bin|20240326|20240328", tokenizer_load(&t, bad, V));
    unit_write_format(bad, TOKENIZER_MAGIC, 3, V, 10, body, bytes);
    CHECK_FATAL("bad.bin|version 3", tokenizer_load(&t, bad, V));
    unit_write_format(bad, TOKENIZER_MAGIC, 2, V, V, body, bytes);
    CHECK_FATAL("bad.bin|end-of-text token 12", tokenizer_load(&t, bad, V));
    unit_write_format(bad, TOKENIZER_MAGIC, 2, V, -1, body, bytes);
    CHECK_FATAL("bad.bin|end-of-text token -1", tokenizer_load(&t, bad, V));
    CHECK_FATAL("v2.bin|12|50257|--tokenizer", tokenizer_load(&t, write_tokenizer("v2.bin", 2, V, 10), 50257));
    unit_write_format(bad, TOKENIZER_MAGIC, 2, V + 1, 10, body, bytes); // a token too few
    CHECK_FATAL("bad.bin|token 12 of 13", tokenizer_load(&t, bad, V + 1));
    unit_write_format(bad, TOKENIZER_MAGIC, 2, V - 1, 10, body, bytes); // a token too many
    CHECK_FATAL("bad.bin|256 trailing bytes", tokenizer_load(&t, bad, V - 1));
    unit_write_format(bad, TOKENIZER_MAGIC, 2, V, 10, body, bytes);
    unit_truncate(bad, (size_t)1 << 40); // a sparse file, to be refused before memory is asked for
    CHECK_FATAL("bad.bin|trailing bytes", tokenizer_load(&t, bad, V));
    body[6] = 0; // the second token's length
    unit_write_format(bad, TOKENIZER_MAGIC, 2, V, 10, body, bytes);
    CHECK_FATAL("bad.bin|token 1 of 12 is empty", tokenizer_load(&t, bad, V));
    for (size_t cut = 0; cut < size; cut = cut < HEADER_BYTES - 1 ? cut + 341 : cut + 7) {
        unit_truncate(write_tokenizer("bad.bin", 2, V, 10), cut);
        CHECK_FATAL("bad.bin|truncated", tokenizer_load(&t, bad, V));
    }
    unit_truncate(write_tokenizer("bad.bin", 2, V, 10), size - 1);
    CHECK_FATAL("bad.bin|truncated", tokenizer_load(&t, bad, V));
    CHECK_FATAL("is a folder without vocab.json", tokenizer_load(&t, unit_folder, V));
}

int main(void) {
    damage_is_noticed_where_the_file_has_checksums();
    a_file_gives_its_tokens();
    terminals_get_only_what_they_can_show();
    bytes_need_no_file();
    a_missing_file_is_said_once_and_ids_are_printed();
    utf8_is_rfc_3629_s();
    bad_files_are_refused();
    return unit_end();
}
