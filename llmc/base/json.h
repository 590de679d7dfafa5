/*
A strict JSON reader (RFC 8259): UTF-8 is checked, nothing follows the value, and arrays and objects nest up to JSON_DEPTH deep.
Of equal keys of an object the last counts, as in Python. Numbers stay text until they are read. Memory is at most seven times
the text. Also writes strings as JSON.

    Json json;
    TRY(json_parse(&json, "config.json", text, bytes));              // the name is for messages
    const JsonNode* n = json_member(&json, json_root(&json), "n_layer");
    size_t layers;
    if (n == NULL || !json_whole(&json, n, 1000, &layers)) { ... }   // 1 if it is a whole number up to 1000
    for (const JsonNode* key = json_first(&json, object); key != NULL; key = json_next(&json, object, key)) {
        ... json_string(&json, key), json_value(key) ...             // of an object; of an array, `key` is the element
    }
    json_free(&json);
*/
#ifndef LLMC_BASE_JSON_H
#define LLMC_BASE_JSON_H

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "regular_file.h"
#include "utils.h"
#include "utf8.h"

enum { JSON_DEPTH = 64, JSON_MOST_BYTES = 1 << 28 };

typedef enum { JSON_NULL, JSON_FALSE, JSON_TRUE, JSON_NUMBER, JSON_STRING, JSON_ARRAY, JSON_OBJECT } JsonType;

// A value or a key. Nodes stand in the text's order: an array's elements follow it, an object's keys, each with its value.
typedef struct {
    uint32_t begin, bytes; // of a number or a string in Json.text, the string without escapes and with a NUL after it
    uint32_t next : 29, type : 3; // the first node after this one and what lies in it; JsonType
} JsonNode;

typedef struct {
    char* text;
    JsonNode* nodes;
} Json;

static inline void json_free(Json* json) {
    free(json->text);
    free(json->nodes);
    json->text = NULL, json->nodes = NULL;
}

// ----------------------------------------------------------------------------
// Parsing. The text ends in a NUL, at which every search ends.

typedef struct {
    const char* name;
    char* text; // (bytes), and a NUL
    size_t bytes, at;
    JsonNode* nodes;
    uint32_t count;
    int depth;
} JsonParser;

static inline Status json_fail_(const JsonParser* p, size_t at, const char* what) {
    return status_fail("%s is no JSON: byte %zu: %s", p->name, at, what);
}

// Passes the characters that `set` has; returns how many they were.
static inline size_t json_skip_(JsonParser* p, const char* set) {
    size_t n = strspn(p->text + p->at, set);
    p->at += n;
    return n;
}

static inline void json_skip_space_(JsonParser* p) { json_skip_(p, " \t\n\r"); }

// The next node, with itself as the whole of it; returns its number.
static inline uint32_t json_add_(JsonParser* p, JsonType type, size_t begin, size_t bytes) {
    JsonNode* n = &p->nodes[p->count];
    n->begin = (uint32_t)begin, n->bytes = (uint32_t)bytes;
    n->next = (p->count + 1) & 0x1fffffffu, n->type = (unsigned)type & 7u;
    return p->count++;
}

// Four hexadecimal digits; -1 if there are none.
static inline int json_hex_(const char* text) {
    static const char digits[] = "0123456789abcdefABCDEF";
    int value = 0;
    for (int i = 0; i < 4; i++) {
        const char* digit = text[i] == '\0' ? NULL : strchr(digits, text[i]);
        if (digit == NULL) { return -1; }
        value = value * 16 + (int)(digit - digits) - (digit - digits < 16 ? 0 : 6);
    }
    return value;
}

// \uXXXX, or two of them for a character beyond U+FFFF; p->at is at the first 'u'. Returns the bytes written to `out`, or 0.
static inline size_t json_unicode_(JsonParser* p, char out[4]) {
    int c = json_hex_(p->text + p->at + 1), low;
    if (c < 0) { return 0; }
    p->at += 5;
    if (c < 0xd800 || c > 0xdfff) { return utf8_encode(out, (unsigned)c); }
    if (c >= 0xdc00 || strncmp(p->text + p->at, "\\u", 2) != 0) { return 0; }
    low = json_hex_(p->text + p->at + 2);
    if (low < 0xdc00 || low > 0xdfff) { return 0; }
    p->at += 6;
    return utf8_encode(out, 0x10000u + (((unsigned)c & 0x3ffu) << 10 | ((unsigned)low & 0x3ffu)));
}

// The character that an escape stands for, in `out`; p->at is behind the backslash. Returns its bytes, or 0.
static inline size_t json_escape_(JsonParser* p, char out[4]) {
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    char c = p->text[p->at];
    if (c == 'u') { return json_unicode_(p, out); }
    const char* name = c == '\0' ? NULL : strchr(names, c);
    if (name == NULL) { return 0; }
    p->at++;
    out[0] = values[name - names];
    return 1;
}

// A string. Its characters replace its text, which is never shorter than they are.
static inline Status json_parse_string_(JsonParser* p) {
    size_t begin = ++p->at, to = begin;
    for (;;) {
        char out[4];
        size_t here = p->at, n;
        if (here >= p->bytes) { return json_fail_(p, here, "the text ends in a string"); }
        const char* c = &p->text[here];
        if (*c == '"') { break; }
        if ((unsigned char)*c < 0x20) { return json_fail_(p, here, "a control character in a string"); }
        if (*c == '\\') {
            p->at++;
            n = json_escape_(p, out);
            if (n == 0) { return json_fail_(p, here, "an escape that encodes no character"); }
        } else {
            n = utf8_character(c, p->bytes - here);
            if (n == 0) { return json_fail_(p, here, "no UTF-8"); }
            memcpy(out, c, n);
            p->at += n;
        }
        memcpy(p->text + to, out, n);
        to += n;
    }
    p->text[to] = '\0';
    p->at++;
    json_add_(p, JSON_STRING, begin, to - begin);
    return STATUS_OK;
}

static inline size_t json_digits_(JsonParser* p) { return json_skip_(p, "0123456789"); }

static inline Status json_parse_number_(JsonParser* p) {
    const char* text = p->text;
    size_t begin = p->at;
    p->at += text[p->at] == '-';
    int zero = text[p->at] == '0';
    size_t digits = json_digits_(p);
    if (digits == 0 || (zero && digits > 1)) { return json_fail_(p, begin, "a value was expected"); }
    if (text[p->at] == '.') {
        p->at++;
        if (json_digits_(p) == 0) { return json_fail_(p, p->at, "a digit was expected"); }
    }
    if (text[p->at] == 'e' || text[p->at] == 'E') {
        p->at++;
        p->at += text[p->at] == '+' || text[p->at] == '-';
        if (json_digits_(p) == 0) { return json_fail_(p, p->at, "a digit was expected"); }
    }
    json_add_(p, JSON_NUMBER, begin, p->at - begin);
    return STATUS_OK;
}

static inline Status json_parse_word_(JsonParser* p) {
    static const char* const words[] = {"null", "false", "true"};
    for (int i = 0; i < 3; i++) {
        size_t n = strlen(words[i]);
        if (strncmp(p->text + p->at, words[i], n) != 0) { continue; }
        json_add_(p, (JsonType)((int)JSON_NULL + i), p->at, n);
        p->at += n;
        return STATUS_OK;
    }
    return json_fail_(p, p->at, p->at < p->bytes ? "a value was expected" : "the text ends where a value was expected");
}

static inline Status json_parse_value_(JsonParser* p);

// An array, or an object where `close` is '}'.
static inline Status json_parse_list_(JsonParser* p, char close) {
    uint32_t list = json_add_(p, close == '}' ? JSON_OBJECT : JSON_ARRAY, p->at, 0);
    if (++p->depth > JSON_DEPTH) {
        return json_fail_(p, p->at, "too deep: 64 arrays and objects in one another are the most");
    }
    p->at++;
    json_skip_space_(p);
    for (int more = p->text[p->at] != close; more;) {
        if (close == '}') {
            if (p->text[p->at] != '"') { return json_fail_(p, p->at, "a key was expected"); }
            TRY(json_parse_string_(p));
            json_skip_space_(p);
            if (p->text[p->at] != ':') { return json_fail_(p, p->at, "':' was expected"); }
            p->at++;
        }
        TRY(json_parse_value_(p));
        json_skip_space_(p);
        more = p->text[p->at] == ',';
        p->at += (size_t)more;
        if (more) { json_skip_space_(p); }
    }
    if (p->text[p->at] != close) {
        return json_fail_(p, p->at, close == '}' ? "',' or '}' was expected" : "',' or ']' was expected");
    }
    p->at++;
    p->depth--;
    p->nodes[list].next = p->count & 0x1fffffffu;
    return STATUS_OK;
}

static inline Status json_parse_value_(JsonParser* p) {
    json_skip_space_(p);
    char c = p->text[p->at];
    if (c == '{') { return json_parse_list_(p, '}'); }
    if (c == '[') { return json_parse_list_(p, ']'); }
    if (c == '"') { return json_parse_string_(p); }
    return c == '-' || (c >= '0' && c <= '9') ? json_parse_number_(p) : json_parse_word_(p);
}

// Parses a text, of which it makes a copy. `name` is what messages call it. After an error there is nothing to free.
static inline Status json_parse(Json* json, const char* name, const char* text, size_t bytes) {
    memset(json, 0, sizeof(*json));
    if (bytes > JSON_MOST_BYTES) {
        return status_fail("%s: %zu bytes of JSON are more than %d", name, bytes, (int)JSON_MOST_BYTES);
    }
    json->text = (char*)malloc(bytes + 1);
    json->nodes =
        (JsonNode*)malloc((bytes / 2 + JSON_DEPTH + 2) * sizeof(JsonNode)); // a value and its comma: two bytes
    if (json->text == NULL || json->nodes == NULL) {
        json_free(json);
        return status_fail("out of memory: cannot read %s", name);
    }
    memcpy(json->text, text, bytes);
    json->text[bytes] = '\0';
    JsonParser p = {name, json->text, bytes, 0, json->nodes, 0, 0};
    Status status = json_parse_value_(&p);
    json_skip_space_(&p);
    if (status == STATUS_OK && p.at < bytes) { status = json_fail_(&p, p.at, "more text after the value"); }
    if (status != STATUS_OK) { json_free(json); }
    return status;
}

// Parses a file of at most `most` bytes.
static inline Status json_read_file(Json* json, const char* path, size_t most) {
    int fd;
    struct stat st;
    memset(json, 0, sizeof(*json));
    TRY(open_regular(&fd, &st, path));
    size_t bytes = (size_t)st.st_size, mark = 0;
    char* text = bytes <= most ? (char*)malloc(bytes + 1) : NULL;
    Status status = bytes > most   ? status_fail("%s is no file of at most %zu bytes", path, most)
                    : text == NULL ? status_fail("out of memory: cannot read %s", path)
                                   : read_at(fd, path, 0, text, bytes);
    close(fd);
    const char* foreign = status == STATUS_OK ? foreign_file(text, bytes) : NULL;
    if (foreign != NULL) { status = status_fail("%s is %s", path, foreign); }
    if (status == STATUS_OK) { mark = utf8_mark(text, bytes); }
    if (mark > 0) { note_mark_dropped(path); }
    if (status == STATUS_OK) { status = json_parse(json, path, text + mark, bytes - mark); }
    free(text);
    return status;
}

// ----------------------------------------------------------------------------
// Looking

static inline const JsonNode* json_root(const Json* json) { return json->nodes; }

// The string without its escapes. It may hold NULs: then strlen() is less than node->bytes.
static inline const char* json_string(const Json* json, const JsonNode* node) { return json->text + node->begin; }

// 1 if the node is this string.
static inline int json_is(const Json* json, const JsonNode* node, const char* text) {
    return node->type == (unsigned)JSON_STRING && node->bytes == strlen(text) &&
           memcmp(json_string(json, node), text, node->bytes) == 0;
}

// The value of a key
static inline const JsonNode* json_value(const JsonNode* key) { return key + 1; }

// The first element of an array, or key of an object; NULL if it is empty.
static inline const JsonNode* json_first(const Json* json, const JsonNode* list) {
    return list + 1 < json->nodes + list->next ? list + 1 : NULL;
}

// The element or key after one; NULL after the last.
static inline const JsonNode* json_next(const Json* json, const JsonNode* list, const JsonNode* one) {
    const JsonNode* last = list->type == (unsigned)JSON_OBJECT ? json_value(one) : one;
    const JsonNode* next = json->nodes + last->next;
    return next < json->nodes + list->next ? next : NULL;
}

// The value of a member; NULL if the node is no object, or has no such key.
static inline const JsonNode* json_member(const Json* json, const JsonNode* object, const char* name) {
    if (object->type != (unsigned)JSON_OBJECT) { return NULL; }
    const JsonNode* value = NULL;
    for (const JsonNode* key = json_first(json, object); key != NULL; key = json_next(json, object, key)) {
        if (json_is(json, key, name)) { value = json_value(key); }
    }
    return value;
}

// The same of a node that may be NULL; NULL also if the value is null.
static inline const JsonNode* json_given(const Json* json, const JsonNode* object, const char* name) {
    const JsonNode* value = object != NULL ? json_member(json, object, name) : NULL;
    return value == NULL || value->type == (unsigned)JSON_NULL ? NULL : value;
}

// 1 if the node is a whole number from 0 to `most`, written with digits alone.
static inline int json_whole(const Json* json, const JsonNode* node, size_t most, size_t* value) {
    const char* text = json_string(json, node);
    *value = 0;
    if (node->type != (unsigned)JSON_NUMBER || strspn(text, "0123456789") != node->bytes) { return 0; }
    errno = 0;
    unsigned long long number = strtoull(text, NULL, 10);
    if (errno != 0 || number > most) { return 0; }
    *value = number;
    return 1;
}

// 1 if the node is a number that a double can hold.
static inline int json_number(const Json* json, const JsonNode* node, double* value) {
    *value = node->type == (unsigned)JSON_NUMBER ? strtod(json_string(json, node), NULL) : (double)INFINITY;
    return isfinite(*value);
}

// ----------------------------------------------------------------------------
// Writing

// Writes a text as a JSON string, with its quotes. What is no UTF-8 becomes U+FFFD.
static inline void json_write_text(FILE* out, const char* text, size_t bytes) {
    static const char values[] = "\"\\\b\f\n\r\t", names[] = "\"\\bfnrt";
    fputc('"', out);
    for (size_t i = 0, n; i < bytes; i += n) {
        unsigned char c = (unsigned char)text[i];
        const char* value = c == '\0' ? NULL : strchr(values, c);
        n = utf8_character(text + i, bytes - i);
        if (n == 0) {
            n = 1;
            fputs("\xef\xbf\xbd", out);
        } else if (value != NULL) {
            fprintf(out, "\\%c", names[value - values]);
        } else if (c < 0x20 || c == 0x7f) {
            fprintf(out, "\\u%04x", c);
        } else {
            fwrite(text + i, 1, n, out);
        }
    }
    fputc('"', out);
}

// Writes a number; JSON has none that is not finite: null then.
static inline void json_write_number(FILE* out, double value) {
    fprintf(out, isfinite(value) ? "%.9g" : "null", value);
}

#endif
