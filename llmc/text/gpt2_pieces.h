/*
GPT-2's pattern, by which a text is split into pieces before byte pair encoding, which never joins bytes of two pieces.

    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+

The first alternative that matches is taken: an English ending; a run of letters, of numbers or of other signs, each with the
space before it; white space, which leaves its last character to the visible one that follows. Alternatives look ahead by two
bytes at most, beyond the end of a run. A byte that is no part of a UTF-8 character is a sign, as U+FFFD is, with which
others replace it.
*/
#ifndef LLMC_TEXT_GPT2_PIECES_H
#define LLMC_TEXT_GPT2_PIECES_H

#include "unicode_classes.h"
#include "llmc/base/utf8.h"

// If more text may follow, a piece's end is certain only with this many bytes after it.
enum { PIECE_LOOK_AHEAD = 8 };

// The class of the character that begins `left` bytes, and its bytes
static inline int piece_class_(const unsigned char* s, size_t left, int* length) {
    *length = 1;
    if (s[0] < 0x80) { return unicode_class(s[0]); }
    int32_t c = utf8_decode(s, left, length);
    return c < 0 ? UNICODE_OTHER : unicode_class((uint32_t)c);
}

// The end of the run of characters of a class from `at` on
static inline size_t piece_run_(const unsigned char* text, size_t at, size_t bytes, int kind) {
    int length;
    for (; at < bytes; at += (size_t)length) {
        if (piece_class_(text + at, bytes - at, &length) != kind) { break; }
    }
    return at;
}

// The bytes of the English ending that begins with the apostrophe at s[0]; 0: none does
static inline int piece_ending_(const unsigned char* s, size_t left) {
    if (left < 2) { return 0; }
    if (s[1] == 's' || s[1] == 't' || s[1] == 'm' || s[1] == 'd') { return 2; }
    if (left < 3) { return 0; }
    return (s[1] == 'r' && s[2] == 'e') || (s[1] == 'v' && s[2] == 'e') || (s[1] == 'l' && s[2] == 'l') ? 3 : 0;
}

// The end of the piece of text[0 .. bytes - 1] that begins at `at`, which is below `bytes`
static inline size_t gpt2_piece_end(const unsigned char* text, size_t at, size_t bytes) {
    int length;
    if (text[at] == '\'') {
        int ending = piece_ending_(text + at, bytes - at);
        if (ending > 0) { return at + (size_t)ending; }
    }
    size_t start = at + (text[at] == ' ' && at + 1 < bytes); // the space goes with what is visible
    int kind = piece_class_(text + start, bytes - start, &length);
    if (kind != UNICODE_SPACE) { return piece_run_(text, start + (size_t)length, bytes, kind); }
    size_t end = piece_run_(text, at, bytes, UNICODE_SPACE), last = end - 1;
    while ((text[last] & 0xc0) == 0x80) { last--; } // the first byte of the last character
    return end == bytes || last == at ? end : last;
}

#endif
