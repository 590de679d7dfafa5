// llmc/base/json.h: what is JSON by RFC 8259 and what is not, values as they were written, and strings that every reader takes.
#include "llmc/base/json.h"

#include "dev/test/fixtures/unit.h"

static Json json;

static Status parse(const char* text) {
    status_clear();
    return json_parse(&json, "a.json", text, strlen(text));
}

// 1 where the text is refused with these words, which name the file.
static int refuses(const char* text, const char* words) {
    Status status = parse(text);
    int good = status != STATUS_OK && strstr(status_message(), words) != NULL &&
               strncmp(status_message(), "a.json", 6) == 0 && json.text == NULL && json.nodes == NULL;
    if (!good) { printf("    %.60s: %s\n", text, status == STATUS_OK ? "accepted" : status_message()); }
    json_free(&json);
    return good;
}

static const JsonNode* member(const char* name) { return json_member(&json, json_root(&json), name); }

static void values_are_found(void) {
    size_t whole;
    double number;
    check(parse(
        " {\"a\" : 12, \"b\":[1,[2,3],{\"c\":4}],\t\"d\":{\"a\":\"inner\"} ,\n\"e\":-1.5e-3, \"f\":true,\"g\":false,"
        "\"h\":null,\"\":\"\",\"last\":0}\r\n"));
    CHECK(json_root(&json)->type == JSON_OBJECT);
    CHECK(json_whole(&json, member("a"), 12, &whole) && whole == 12);
    CHECK(!json_whole(&json, member("a"), 11, &whole));
    CHECK(member("b")->type == JSON_ARRAY && member("f")->type == JSON_TRUE && member("g")->type == JSON_FALSE);
    CHECK(member("h")->type == JSON_NULL && member("none") == NULL && member("c") == NULL);
    CHECK(json_is(&json, json_member(&json, member("d"), "a"), "inner"));
    CHECK(json_number(&json, member("e"), &number) && number == -1.5e-3 && !json_whole(&json, member("e"), 9, &whole));
    CHECK(json_is(&json, member(""), "") && json_whole(&json, member("last"), 0, &whole) && whole == 0);
    int elements = 0, keys = 0;
    for (const JsonNode* n = json_first(&json, member("b")); n != NULL; n = json_next(&json, member("b"), n)) {
        static const JsonType types[] = {JSON_NUMBER, JSON_ARRAY, JSON_OBJECT};
        CHECK(n->type == (unsigned)types[elements++]);
    }
    const JsonNode* root = json_root(&json);
    for (const JsonNode* key = json_first(&json, root); key != NULL; key = json_next(&json, root, key)) { keys++; }
    CHECK(elements == 3 && keys == 9);
    CHECK(json_member(&json, member("a"), "a") == NULL); // no object
    json_free(&json);
    check(parse("[]"));
    CHECK(json_first(&json, json_root(&json)) == NULL);
    json_free(&json);
    check(parse("{}"));
    CHECK(json_first(&json, json_root(&json)) == NULL);
    json_free(&json);
}

static void strings_are_what_they_say(void) {
    check(
        parse("[\"\\\"\\\\\\/\\b\\f\\n\\r\\t\", \"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\", \"\xc3\xa9\xf0\x9f\x98\x80\","
              " \"a\\u0000b\", \"\\u00E9\"]"));
    const JsonNode* n = json_first(&json, json_root(&json));
    CHECK(json_is(&json, n, "\"\\/\b\f\n\r\t"));
    n = json_next(&json, json_root(&json), n);
    CHECK(json_is(&json, n, "A\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"));
    n = json_next(&json, json_root(&json), n);
    CHECK(json_is(&json, n, "\xc3\xa9\xf0\x9f\x98\x80"));
    n = json_next(&json, json_root(&json), n);
    CHECK(n->bytes == 3 && memcmp(json_string(&json, n), "a\0b", 4) == 0 && !json_is(&json, n, "a"));
    n = json_next(&json, json_root(&json), n);
    CHECK(json_is(&json, n, "\xc3\xa9") && json_next(&json, json_root(&json), n) == NULL);
    json_free(&json);
}

static void whole_numbers_are_written_with_digits_alone(void) {
    static const char* const not_whole[] = {
        "-1", "1.0", "1e3", "1E0", "-0", "18446744073709551616", "99999999999999999999999999999999"};
    size_t whole;
    double number;
    check(parse("18446744073709551614"));
    CHECK(json_whole(&json, json_root(&json), SIZE_MAX, &whole) && whole == SIZE_MAX - 1);
    json_free(&json);
    for (size_t i = 0; i < sizeof(not_whole) / sizeof(not_whole[0]); i++) {
        check(parse(not_whole[i]));
        CHECK(!json_whole(&json, json_root(&json), SIZE_MAX, &whole));
        json_free(&json);
    }
    check(parse("1e400"));
    CHECK(!json_number(&json, json_root(&json), &number));
    json_free(&json);
    check(parse("\"5\""));
    CHECK(!json_number(&json, json_root(&json), &number) && !json_whole(&json, json_root(&json), 9, &whole));
    json_free(&json);
}

static void what_is_no_json_is_refused(void) {
    static const struct {
        const char *text, *words;
    } bad[] = {
        {"", "the text ends where a value was expected"},
        {"{", "a key was expected"},
        {"[1,2", "',' or ']' was expected"},
        {"[1,]", "a value was expected"},
        {"[,1]", "a value was expected"},
        {"[1 2]", "',' or ']' was expected"},
        {"{\"a\":1,}", "a key was expected"},
        {"{\"a\" 1}", "':' was expected"},
        {"{a:1}", "a key was expected"},
        {"{'a':1}", "a key was expected"},
        {"{\"a\":1 \"b\":2}", "',' or '}' was expected"},
        {"{1:2}", "a key was expected"},
        {"{}}", "byte 2: more text"},
        {"1 2", "more text after the value"},
        {"nul", "a value was expected"},
        {"nulll", "more text"},
        {"True", "a value was expected"},
        {"NaN", "a value was expected"},
        {"Infinity", "a value was expected"},
        {"-", "a value was expected"},
        {"+1", "a value was expected"},
        {".5", "a value was expected"},
        {"01", "a value was expected"},
        {"-01", "a value was expected"},
        {"1.", "a digit was expected"},
        {"1.e3", "a digit was expected"},
        {"1e", "a digit was expected"},
        {"1e+", "a digit was expected"},
        {"0x10", "more text"},
        {"\"a", "the text ends in a string"},
        {"\"\n\"", "a control character in a string"},
        {"\"\x1f\"", "a control character in a string"},
        {"\"\\x\"", "an escape that encodes no character"},
        {"\"\\u12\"", "an escape that encodes no character"},
        {"\"\\ud800\"", "an escape that encodes no character"}, // half of a pair
        {"\"\\ud800\\u0041\"", "an escape that encodes no character"},
        {"\"\\udc00\"", "an escape that encodes no character"},
        {"\"\\", "an escape that encodes no character"},
        {"\"\xff\"", "no UTF-8"},
        {"\"\xc0\x80\"", "no UTF-8"},               // a longer form
        {"\"\xed\xa0\x80\"", "no UTF-8"},           // a surrogate
        {"\"\xf4\x90\x80\x80\"", "no UTF-8"},       // beyond U+10FFFF
        {"\"\xe2\x82\"", "no UTF-8"},               // cut off
        {"\xef\xbb\xbf{}", "a value was expected"}, // a byte order mark
        {"[1] // comment", "more text"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) { CHECK(refuses(bad[i].text, bad[i].words)); }
    CHECK(json_parse(&json, "a.json", "1\0", 2) != STATUS_OK); // a NUL ends nothing
    CHECK(json_parse(&json, "a.json", "{\"a\":1}\0", 8) != STATUS_OK);
}

static void depth_has_a_limit(void) {
    char text[4096];
    for (int depth = 60; depth <= 68; depth++) {
        memset(text, '[', (size_t)depth);
        memset(text + depth, ']', (size_t)depth);
        text[2 * depth] = '\0';
        CHECK((parse(text) == STATUS_OK) == (depth <= JSON_DEPTH));
        json_free(&json);
    }
    memset(text, '[', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    CHECK(refuses(text, "too deep"));
    CHECK(parse("[[],[],[[]],[],{},{\"a\":[]}]") == STATUS_OK); // beside one another they are no depth
    json_free(&json);
}

static void of_equal_keys_the_last_counts(void) {
    CHECK(parse("{\"a\":1,\"b\":2,\"\\u0061\":3}") == STATUS_OK);
    CHECK(strncmp(json_string(&json, member("a")), "3", 1) == 0);
    json_free(&json);
}

static void files_are_read(void) {
    const char* path = unit_path("a.json");
    status_clear();
    unit_write(path, "{\"a\":1}", 7);
    CHECK(json_read_file(&json, path, 7) == STATUS_OK && member("a") != NULL);
    json_free(&json);
    CHECK(json_read_file(&json, path, 6) != STATUS_OK && strstr(status_message(), "at most 6 bytes"));
    status_clear();
    CHECK(json_read_file(&json, unit_path("none.json"), 6) != STATUS_OK && strstr(status_message(), "none.json"));
    status_clear();
    CHECK(json_read_file(&json, unit_folder, 1 << 20) != STATUS_OK);
    status_clear();
}

// The text as json_write_text writes it; the caller frees it.
static char* quote(const char* text, size_t bytes) {
    char* quoted = NULL;
    size_t size;
    FILE* out = open_memstream(&quoted, &size);
    json_write_text(out, text, bytes);
    fclose(out);
    return quoted;
}

// Whatever a text is, what is written parses, and is the text again where that was UTF-8.
static void strings_are_written_so_that_they_are_read(void) {
    static const struct {
        const char *text, *quoted;
    } cases[] = {
        {"plain", "\"plain\""},
        {"a\"b\\c/d", "\"a\\\"b\\\\c/d\""},
        {"\b\f\n\r\t", "\"\\b\\f\\n\\r\\t\""},
        {"\x01\x1b[2J\x7f", "\"\\u0001\\u001b[2J\\u007f\""},
        {"\xc3\xa9\xf0\x9f\x98\x80", "\"\xc3\xa9\xf0\x9f\x98\x80\""},
        {"\xff"
         "a\xe2\x82",
         "\"\xef\xbf\xbd"
         "a\xef\xbf\xbd\xef\xbf\xbd\""},
        {"", "\"\""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char* quoted = quote(cases[i].text, strlen(cases[i].text));
        CHECK(strcmp(quoted, cases[i].quoted) == 0);
        free(quoted);
    }
    char* quoted = quote("a\0b", 3);
    CHECK(strcmp(quoted, "\"a\\u0000b\"") == 0);
    free(quoted);
    uint32_t state = 1;
    for (int i = 0; i < 2000; i++) {
        char text[16];
        size_t n = (size_t)i % sizeof(text);
        for (size_t k = 0; k < n; k++) { text[k] = (char)((state = state * 1664525u + 1013904223u) >> 24); }
        quoted = quote(text, n);
        int good = parse(quoted) == STATUS_OK && json_root(&json)->type == JSON_STRING;
        size_t sound = 0;
        while (sound < n && utf8_character(text + sound, n - sound) > 0) {
            sound += utf8_character(text + sound, n - sound);
        }
        good = good && memcmp(json_string(&json, json_root(&json)), text, sound) == 0;
        if (!good || i == 0) { CHECK(good); }
        json_free(&json);
        free(quoted);
    }
}

// ----------------------------------------------------------------------------
// Every byte where one of its kind is tried above

// The code point as UTF-8, from the definition
static size_t utf8_of(char* out, uint32_t c) {
    if (c < 0x800) {
        return (size_t)sprintf(out, c < 0x80 ? "%c" : "%c%c", c < 0x80 ? (int)c : (int)(0xc0 | c >> 6),
                               (int)(0x80 | (c & 63)));
    }
    if (c < 0x10000) {
        return (size_t)sprintf(out, "%c%c%c", (int)(0xe0 | c >> 12), (int)(0x80 | (c >> 6 & 63)),
                               (int)(0x80 | (c & 63)));
    }
    return (size_t)sprintf(out, "%c%c%c%c", (int)(0xf0 | c >> 18), (int)(0x80 | (c >> 12 & 63)),
                           (int)(0x80 | (c >> 6 & 63)), (int)(0x80 | (c & 63)));
}

static void surrogate_pairs_are_the_code_points_they_say(void) {
    for (uint32_t c = 0x10000; c <= 0x10ffff; c += c % 0x400 == 0 ? 0x3ff : 1) { // both ends of each block
        char text[32], expected[8];
        snprintf(text, sizeof(text), "\"\\u%04x\\u%04X\"", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + (c & 0x3ff));
        utf8_of(expected, c);
        int good = parse(text) == STATUS_OK && json_is(&json, json_root(&json), expected);
        if (!CHECK(good)) { printf("    %s\n", text); }
        json_free(&json);
    }
    for (uint32_t c = 1; c < 0x10000; c += c < 0x100 || (c > 0xd700 && c < 0xe100) ? 1 : 97) {
        char text[32], expected[8];
        snprintf(text, sizeof(text), "\"\\u%04x\"", c);
        if (c >= 0xd800 && c <= 0xdfff) { // half of a pair, alone, and before what is no second half
            CHECK(refuses(text, "an escape that encodes no character"));
            snprintf(text, sizeof(text), "\"\\u%04x\\u%04x\"", c, c % 2 ? 0xdbff : 0xe000);
            CHECK(refuses(text, "an escape that encodes no character"));
            continue;
        }
        utf8_of(expected, c);
        int good = parse(text) == STATUS_OK && json_is(&json, json_root(&json), expected);
        if (!CHECK(good)) { printf("    %s\n", text); }
        json_free(&json);
    }
}

static void only_hexadecimal_digits_make_an_escape(void) {
    for (int at = 3; at < 7; at++) {
        for (int c = 1; c < 256; c++) {
            char text[16] = "\"\\u0041\"";
            text[at] = (char)c;
            int digit = strchr("0123456789abcdefABCDEF", c) != NULL;
            if (!CHECK(digit ? parse(text) == STATUS_OK : parse(text) != STATUS_OK)) { printf("    %s\n", text); }
            if (digit) { json_free(&json); }
            status_clear();
        }
    }
}

static void every_control_character_is_refused_raw_and_written_as_an_escape(void) {
    for (int c = 0; c < 0x80; c++) {
        char text[] = "\"a?b\"", raw[] = "a?b";
        text[2] = raw[1] = (char)c;
        if (c == '"' || c == '\\') { continue; }
        int good = (json_parse(&json, "a.json", text, 5) == STATUS_OK) == (c >= 0x20);
        if (!good) { printf("    byte %d: %s\n", c, status_message()); }
        CHECK(good);
        if (c >= 0x20) { json_free(&json); }
        status_clear();
        char* quoted = quote(raw, 3);
        int controls = 0;
        for (char* p = quoted; *p != '\0'; p++) { controls += (unsigned char)*p < 0x20 || *p == 0x7f; }
        good = controls == 0 && parse(quoted) == STATUS_OK && json_root(&json)->bytes == 3 &&
               memcmp(json_string(&json, json_root(&json)), raw, 3) == 0;
        if (!CHECK(good)) { printf("    byte %d: %s\n", c, quoted); }
        json_free(&json);
        free(quoted);
    }
}

// Space is four characters, and nothing else may stand around a value.
static void every_other_byte_is_no_space(void) {
    for (int c = 1; c < 256; c++) {
        char before[] = "? 1", behind[] = "1 ?";
        before[0] = behind[2] = (char)c;
        int space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
        int good = (parse(behind) == STATUS_OK) == space;
        json_free(&json);
        status_clear();
        good = good && (parse(before) == STATUS_OK) == space;
        json_free(&json);
        status_clear();
        if (!CHECK(good)) { printf("    byte %d\n", c); }
    }
}

// A key is found by all of its bytes: not by a beginning of it, nor by one that it is the beginning of.
static void keys_are_found_by_all_of_their_bytes(void) {
    static const char name[] = "data_offsets";
    check(parse("{\"data_offsets\":1}"));
    CHECK(member(name) != NULL);
    for (size_t i = 0; i < sizeof(name); i++) {
        char other[sizeof(name) + 1] = "data_offsets";
        other[i] = i + 1 < sizeof(name) ? (char)(other[i] ^ 1) : 'x'; // the last: one byte more
        CHECK(member(other) == NULL);
        other[i] = '\0';
        CHECK((member(other) == NULL) == (i + 1 < sizeof(name)));
    }
    json_free(&json);
    check(parse("{\"a\":1,\"ab\":2,\"\":3,\"b\":4}")); // all different
    json_free(&json);
}

int main(void) {
    surrogate_pairs_are_the_code_points_they_say();
    only_hexadecimal_digits_make_an_escape();
    every_control_character_is_refused_raw_and_written_as_an_escape();
    every_other_byte_is_no_space();
    keys_are_found_by_all_of_their_bytes();
    values_are_found();
    strings_are_what_they_say();
    whole_numbers_are_written_with_digits_alone();
    what_is_no_json_is_refused();
    depth_has_a_limit();
    of_equal_keys_the_last_counts();
    files_are_read();
    strings_are_written_so_that_they_are_read();
    return unit_end();
}
