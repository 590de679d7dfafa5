/*
Text that is printed while it is generated, byte by byte: always valid UTF-8, and without the stop text.

    text_stream_push(&s, bytes, n);       for each token; returns 1 if a stop text has been completed
    text_stream_end(&s);                  flushes what was held back
    text_write(&s.out, stdout);           at any time

Held back are incomplete characters, and what may be the beginning of a stop text. Invalid UTF-8 becomes U+FFFD, one for each
maximal invalid part (Unicode 15, section 3.9, as Python's errors="replace"). The output does not depend on how the bytes are
divided into calls: the stop text that is complete first ends the stream; of several, the longest.
*/
#ifndef LLMC_TEXT_STREAM_H
#define LLMC_TEXT_STREAM_H

#include "llmc/base/utf8.h"
#include "llmc/base/utils.h"

typedef struct {
    unsigned char* bytes;
    size_t count, capacity;
} TextBuffer;

static inline void text_append(TextBuffer* b, const void* bytes, size_t n) {
    if (n > b->capacity - b->count) {
        b->capacity = 2 * b->capacity + n + 64;
        b->bytes = (unsigned char*)realloc(b->bytes, b->capacity);
        if (b->bytes == NULL) { fatal("out of memory: %zu bytes of text", b->capacity); }
    }
    if (n > 0) { memcpy(b->bytes + b->count, bytes, n); }
    b->count += n;
}

// Writes it, and empties it.
static inline void text_write(TextBuffer* b, FILE* out) {
    if (b->count > 0) { fwrite(b->bytes, 1, b->count, out); }
    b->count = 0;
}

// Appends the rest of a file, but for a byte order mark at its beginning, which is noted.
NOINLINE void text_read(TextBuffer* b, FILE* file, const char* name) {
    char piece[1 << 13];
    for (size_t n, mark; (n = fread(piece, 1, sizeof(piece), file)) > 0;) {
        mark = b->count == 0 ? utf8_mark(piece, n) : 0;
        if (mark > 0) { note_mark_dropped(name); }
        text_append(b, piece + mark, n - mark);
    }
    if (ferror(file)) { fatal("cannot read %s: %s", name, strerror(errno)); }
}

static inline void text_free(TextBuffer* b) {
    free(b->bytes);
    memset(b, 0, sizeof(*b));
}

typedef struct {
    const char* const* stops; // (num_stops) none of them empty
    int num_stops;
    int terminal;    // 1: characters that would steer a terminal are dropped
    int stopped;     // 1: a stop text is complete; what follows is dropped
    TextBuffer held; // what may be the beginning of a stop text
    unsigned char begun[4];
    int begun_length; // bytes of a character whose rest is still to come
    TextBuffer out;   // valid UTF-8, for the caller to take
} TextStream;

static inline TextStream text_stream_begin(const char* const* stops, int num_stops, int terminal) {
    TextStream s;
    memset(&s, 0, sizeof(s));
    s.stops = stops, s.num_stops = num_stops, s.terminal = terminal;
    return s;
}

static inline void text_stream_free(TextStream* s) {
    text_free(&s->held);
    text_free(&s->out);
}

// Ends the character that was begun: it is whole, or U+FFFD stands for it.
static inline void text_stream_character_(TextStream* s, int whole) {
    if (!whole) {
        text_append(&s->out, "\xef\xbf\xbd", 3);
    } else if (!s->terminal || !is_control_character(s->begun)) {
        text_append(&s->out, s->begun, (size_t)s->begun_length);
    }
    s->begun_length = 0;
}

// Bytes in which no stop text is looked for, such as a prompt's
static inline void text_stream_show(TextStream* s, const void* bytes, size_t n) {
    for (size_t i = 0; i < n; i++) {
        unsigned char byte = ((const unsigned char*)bytes)[i];
        s->begun[s->begun_length++] = byte;
        if (s->begun_length > 1 && utf8_length(s->begun, s->begun_length) == 0) { // invalid continuation
            text_stream_character_(s, 0);
            s->begun[s->begun_length++] = byte; // it may begin another
        }
        int length = utf8_length(s->begun, s->begun_length);
        if (length == 0 || length == s->begun_length) { text_stream_character_(s, length > 0); }
    }
}

// The first `n` bytes that are held go on.
static inline void text_stream_release_(TextStream* s, size_t n) {
    if (n == 0) { return; }
    text_stream_show(s, s->held.bytes, n);
    memmove(s->held.bytes, s->held.bytes + n, s->held.count - n);
    s->held.count -= n;
}

// The length of the longest of the stop texts that the held bytes end in; 0 if they end in none.
static inline size_t text_stream_stop_(const TextStream* s) {
    size_t longest = 0;
    for (int i = 0; i < s->num_stops; i++) {
        size_t n = strlen(s->stops[i]);
        if (n > longest && n <= s->held.count && memcmp(s->held.bytes + s->held.count - n, s->stops[i], n) == 0) {
            longest = n;
        }
    }
    return longest;
}

// How many of the held bytes, from the end, may be the beginning of a stop text.
static inline size_t text_stream_begun_stop_(const TextStream* s) {
    for (size_t n = s->held.count; n > 0; n--) {
        for (int i = 0; i < s->num_stops; i++) {
            if (strncmp(s->stops[i], (const char*)s->held.bytes + s->held.count - n, n) == 0) { return n; }
        }
    }
    return 0;
}

// Takes bytes; returns 1 if a stop text is complete, with these or before.
static inline int text_stream_push(TextStream* s, const void* bytes, size_t n) {
    for (size_t i = 0; i < n && !s->stopped; i++) {
        text_append(&s->held, (const char*)bytes + i, 1);
        size_t stop = text_stream_stop_(s);
        s->stopped = stop > 0;
        s->held.count -= stop;
        text_stream_release_(s, stop > 0 ? s->held.count : s->held.count - text_stream_begun_stop_(s));
    }
    return s->stopped;
}

// No more bytes come: what is held back goes out, and a character that has begun becomes U+FFFD.
static inline void text_stream_end(TextStream* s) {
    text_stream_release_(s, s->held.count);
    if (s->begun_length > 0) { text_stream_character_(s, 0); }
}

#endif
