// llmc/json.h: what is JSON by RFC 8259 and what is not, values as they were written, and strings that every reader takes.
#include "llmc/json.h"

#include "unit.h"

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
        {"\"\\x\"", "an escape that stands for no character"},
        {"\"\\u12\"", "an escape that stands for no character"},
        {"\"\\ud800\"", "an escape that stands for no character"}, // half of a pair
        {"\"\\ud800\\u0041\"", "an escape that stands for no character"},
        {"\"\\udc00\"", "an escape that stands for no character"},
        {"\"\\", "an escape that stands for no character"},
        {"\"\xff\"", "no UTF-8"},
        {"\"\xc0\x80\"", "no UTF-8"},               // a longer form
        {"\"\xed\xa0\x80\"", "no UTF-8"},           // a surrogate
        {"\"\xf4\x90\x80\x80\"", "no UTF-8"},       // beyond U+10FFFF
        {"\"\xe2\x82\"", "no UTF-8"},               // cut off
        {"\xef\xbb\xbf{}", "a value was expected"}, // a byte order mark
        {"[1] // comment", "more text"},
        {"{\"a\":1,\"b\":2,\"a\":3}", "the key \"a\" stands twice"},
        {"{\"a\":1,\"\\u0061\":3}", "the key \"a\" stands twice"},
        {"[{\"x\":{\"b\":[],\"b\":[]}}]", "the key \"b\" stands twice"},
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

// 30,000 keys: a look at each pair of them would take seconds.
static void many_keys_are_held_apart_quickly(void) {
    char* text = (char*)malloc_check(30000 * 16 + 32);
    size_t at = 0;
    for (int i = 0; i < 30000; i++) {
        at += (size_t)sprintf(text + at, "%c\"k%d\":0", i == 0 ? '{' : ',', i * 7919 % 30000);
    }
    sprintf(text + at, "}");
    clock_t start = clock(); // of this process: other work on the machine is not in it
    CHECK(parse(text) == STATUS_OK);
    json_free(&json);
    sprintf(text + at, ",\"k17\":0}");
    CHECK(refuses(text, "\"k17\" stands twice"));
    CHECK((double)(clock() - start) / CLOCKS_PER_SEC < 5.0);
    free(text);
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

int main(void) {
    values_are_found();
    strings_are_what_they_say();
    whole_numbers_are_written_with_digits_alone();
    what_is_no_json_is_refused();
    depth_has_a_limit();
    many_keys_are_held_apart_quickly();
    files_are_read();
    strings_are_written_so_that_they_are_read();
    return unit_end();
}
