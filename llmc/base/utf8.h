// UTF-8 (RFC 3629): one character at a time, from bytes that may be broken.
#ifndef LLMC_BASE_UTF8_H
#define LLMC_BASE_UTF8_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

// How many bytes a UTF-8 character has that begins with these `n` bytes (1 <= n <= 4), if each is what RFC 3629 allows
// there; 0 if one is not.
static inline int utf8_length(const unsigned char* s, int n) {
    int length = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 : s[0] < 0xf5 ? 4 : 0;
    for (int i = 1; i < n && i < length; i++) {
        if ((s[i] & 0xc0) != 0x80) { return 0; }
    }
    if (n < 2) { return length; }
    if (s[0] == 0xe0 && s[1] < 0xa0) { return 0; }  // longer than need be
    if (s[0] == 0xed && s[1] >= 0xa0) { return 0; } // surrogates
    if (s[0] == 0xf0 && s[1] < 0x90) { return 0; }  // longer than need be
    if (s[0] == 0xf4 && s[1] >= 0x90) { return 0; } // beyond U+10FFFF
    return length;
}

// The bytes of the byte order mark that a text begins with, which is no part of it: 3, or 0.
static inline size_t utf8_mark(const void* text, size_t bytes) {
    return bytes >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

// The bytes of the whole, sound character that `left` bytes (at least 1) begin with; 0 if there is none.
static inline size_t utf8_character(const char* text, size_t left) {
    int length = utf8_length((const unsigned char*)text, left < 4 ? (int)left : 4);
    return (size_t)length <= left ? (size_t)length : 0;
}

// The code point of the character that begins `left` bytes (at least 1), and its bytes in *length; -1 and 1 if there is
// no whole character.
static inline int32_t utf8_decode(const unsigned char* s, size_t left, int* length) {
    int n = (int)utf8_character((const char*)s, left);
    *length = n > 0 ? n : 1;
    if (n == 0) { return -1; }
    int32_t c = n == 1 ? s[0] : s[0] & (0xff >> (n + 1));
    for (int i = 1; i < n; i++) { c = (c << 6) | (s[i] & 0x3f); }
    return c;
}

// Writes a code point up to U+10FFFF; returns its bytes.
static inline size_t utf8_encode(char out[4], uint32_t c) {
    static const unsigned char lead[5] = {0, 0x00, 0xc0, 0xe0, 0xf0};
    size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    for (size_t i = n - 1; i > 0; i--, c >>= 6) { out[i] = (char)(0x80 | (c & 0x3f)); }
    out[0] = (char)(lead[n] | c);
    return n;
}

// 1 for the characters that would steer a terminal: U+0000-001F but white space, U+007F-009F
static inline int is_control_character(const unsigned char* s) {
    if (s[0] >= '\t' && s[0] <= '\r') { return 0; }
    return s[0] < 0x20 || s[0] == 0x7f || (s[0] == 0xc2 && s[1] < 0xa0);
}

// Makes `n` bytes of text one line that steers no terminal: the bytes of U+0000-001F and U+007F-009F become '?'.
static inline void mask_controls(char* text, size_t n) {
    unsigned char* s = (unsigned char*)text;
    for (size_t i = 0; i < n; i++) {
        if (s[i] == 0xc2 && i + 1 < n && s[i + 1] >= 0x80 && s[i + 1] < 0xa0) { s[i] = s[i + 1] = '?'; }
        if (s[i] < 0x20 || s[i] == 0x7f) { s[i] = '?'; }
    }
}

#endif
