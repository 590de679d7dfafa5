// llmc/text/stream.h: what comes out is valid UTF-8 at every moment, ends before a stop text, and does not depend on how the
// bytes are divided.
#include "llmc/text/stream.h"

#include "llmc/model/sampler.h"
#include "dev/test/fixtures/unit.h"

enum { MOST = 400 };

// Unicode 15, table 3-7: the bytes of well-formed characters, the least and the largest at each place
static const unsigned char forms[9][4][2] = {{{0x00, 0x7f}},
                                             {{0xc2, 0xdf}, {0x80, 0xbf}},
                                             {{0xe0, 0xe0}, {0xa0, 0xbf}, {0x80, 0xbf}},
                                             {{0xe1, 0xec}, {0x80, 0xbf}, {0x80, 0xbf}},
                                             {{0xed, 0xed}, {0x80, 0x9f}, {0x80, 0xbf}},
                                             {{0xee, 0xef}, {0x80, 0xbf}, {0x80, 0xbf}},
                                             {{0xf0, 0xf0}, {0x90, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
                                             {{0xf1, 0xf3}, {0x80, 0xbf}, {0x80, 0xbf}, {0x80, 0xbf}},
                                             {{0xf4, 0xf4}, {0x80, 0x8f}, {0x80, 0xbf}, {0x80, 0xbf}}};

// How many of these bytes begin a character; *whole is 1 where they are all of it.
static size_t character(const unsigned char* s, size_t n, int* whole) {
    *whole = 0;
    for (int i = 0; i < 9; i++) {
        size_t k = 0, length = i == 0 ? 1 : i == 1 ? 2 : i < 6 ? 3 : 4;
        while (k < n && k < length && s[k] >= forms[i][k][0] && s[k] <= forms[i][k][1]) { k++; }
        *whole = k == length;
        if (k > 0) { return k; } // no two forms have a first byte in common
    }
    return 0;
}

// U+FFFD for the longest beginning of a character that is there, or for one byte where none begins (Unicode 15, table 3-8).
static size_t replaced(unsigned char* out, const unsigned char* s, size_t n) {
    size_t to = 0;
    for (size_t i = 0; i < n;) {
        int whole;
        size_t length = character(s + i, n - i, &whole), copied = whole ? length : 3;
        memcpy(out + to, whole ? (const char*)s + i : "\xef\xbf\xbd", copied);
        to += copied, i += length > 0 ? length : 1;
    }
    return to;
}

// 1 where the bytes are whole characters.
static int is_valid(const unsigned char* s, size_t n) {
    int whole = 1;
    for (size_t i = 0; i < n && whole;) { i += character(s + i, n - i, &whole); }
    return whole;
}

// Pushes pieces that end at cuts (num_cuts, ascending); 1 where what comes out is `expected`, valid at every moment, and where
// a stop text is said to be complete when it is.
static int streams(const unsigned char* s, size_t n, const size_t* cuts, int num_cuts, const char* const* stops,
                   int num_stops, const unsigned char* expected, size_t length, int stops_it) {
    TextStream stream = text_stream_begin(stops, num_stops, 0);
    int good = 1, said = 0;
    size_t at = 0;
    for (int i = 0; i <= num_cuts; i++) {
        size_t end = i < num_cuts ? cuts[i] : n;
        said = text_stream_push(&stream, s + at, end - at);
        good = good && is_valid(stream.out.bytes, stream.out.count) && stream.out.count <= length &&
               (stream.out.count == 0 || memcmp(stream.out.bytes, expected, stream.out.count) == 0);
        at = end;
    }
    text_stream_end(&stream);
    good = good && said == stops_it && stream.out.count == length;
    good = good && (length == 0 || memcmp(stream.out.bytes, expected, length) == 0);
    text_stream_free(&stream);
    return good;
}

// In one piece, in two at every place, in three at every two places, byte by byte.
static int streams_in_all_splits(const unsigned char* s, size_t n, const char* const* stops, int num_stops,
                                 const unsigned char* expected, size_t length, int stops_it) {
    size_t cuts[MOST];
    int good = 1;
    for (size_t a = 0; a <= n; a++) {
        for (size_t b = a; b <= n && (a <= 12 || b == n); b++) {
            size_t two[2] = {a, b};
            good = good && streams(s, n, two, 2, stops, num_stops, expected, length, stops_it);
        }
    }
    for (size_t i = 0; i < n; i++) { cuts[i] = i; }
    return good && streams(s, n, cuts, (int)n, stops, num_stops, expected, length, stops_it);
}

static void broken_utf8_becomes_unicode_s_choice(void) {
    static const unsigned char in[] = "\x61\xf1\x80\x80\xe1\x80\xc2\x62\x80\x63\x80\xbf\x64";
    static const char out[] = "a\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"
                              "b\xef\xbf\xbd"
                              "c\xef\xbf\xbd\xef\xbf\xbd"
                              "d";
    CHECK(streams_in_all_splits(in, sizeof(in) - 1, NULL, 0, (const unsigned char*)out, sizeof(out) - 1, 0));
    static const unsigned char surrogate[] = "\xed\xa0\x80", end[] = "ok\xf0\x9f\x98";
    static const char three[] = "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", one[] = "ok\xef\xbf\xbd";
    CHECK(streams_in_all_splits(surrogate, 3, NULL, 0, (const unsigned char*)three, 9, 0));
    CHECK(streams_in_all_splits(end, 5, NULL, 0, (const unsigned char*)one, 5, 0));
}

// Characters of every length, bytes at the edges of what is allowed, and bytes at random
static size_t random_bytes(unsigned char* s, unsigned long long* state) {
    static const char* const parts[] = {"a",        "\n",       "\xc3\xa9",    "\xe2\x82\xac", "\xf0\x9f\x98\x80",
                                        "\xe0\x9f", "\xed\xa0", "\xf4\x90",    "\xc0",         "\xf5",
                                        "\x80",     "\xf0\x9f", "\xef\xbf\xbd"};
    size_t n = 0, target = random_u32(state) % 40;
    while (n < target) {
        const char* part = parts[random_u32(state) % 13];
        if (random_u32(state) % 8 == 0) {
            s[n++] = (unsigned char)random_u32(state);
            continue;
        }
        memcpy(s + n, part, strlen(part));
        n += strlen(part);
    }
    return n;
}

static void random_bytes_in_all_splits(void) {
    unsigned long long state = 7;
    unsigned char s[64], expected[MOST];
    int good = 1;
    for (int round = 0; round < 300; round++) {
        size_t n = random_bytes(s, &state), length = replaced(expected, s, n);
        good = good && is_valid(expected, length);
        good = good && streams_in_all_splits(s, n, NULL, 0, expected, length, 0);
    }
    CHECK(good);
}

// Every first byte with bytes behind it that are just allowed somewhere, and just not
static void bytes_at_the_edges_of_the_forms(void) {
    static const unsigned char edges[] = {0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xff};
    static const size_t middle[1] = {2};
    int good = 1;
    for (int i = 0; i < 256 * 10 * 10; i++) {
        unsigned char s[4] = {(unsigned char)(i / 100), edges[i / 10 % 10], edges[i % 10], 0x80}, expected[12] = "";
        size_t length = replaced(expected, s, 4);
        good = good && streams(s, 4, middle, 1, NULL, 0, expected, length, 0);
        s[2] = 0x80, s[3] = edges[i % 10];
        length = replaced(expected, s, 4);
        good = good && streams(s, 4, middle, 1, NULL, 0, expected, length, 0);
    }
    CHECK(good);
}

// The bytes before the stop text that is complete first, of several the longest.
static size_t before_stop(const unsigned char* s, size_t n, const char* const* stops, int num_stops, int* stops_it) {
    for (size_t end = 1; end <= n; end++) {
        size_t longest = 0;
        for (int i = 0; i < num_stops; i++) {
            size_t k = strlen(stops[i]);
            if (k <= end && k > longest && memcmp(s + end - k, stops[i], k) == 0) { longest = k; }
        }
        *stops_it = longest > 0;
        if (longest > 0) { return end - longest; }
    }
    return n;
}

static void stop_texts_end_a_stream(void) {
    static const char* const sets[][3] = {{"aab", "b", "\xc3\xa9"}, {"abab", "ba", "a\n"}, {"\n\n", "aaaa", "bab"}};
    unsigned long long state = 3;
    unsigned char s[64], expected[MOST];
    int good = 1, stopped = 0;
    for (int round = 0; round < 3000; round++) {
        size_t n = random_u32(&state) % 24;
        int num_stops = 1 + (int)(random_u32(&state) % 3), stops_it = 0;
        const char* const* stops = sets[round % 3];
        for (size_t i = 0; i < n; i++) { s[i] = (unsigned char)"aaab\n\xc3\xa9"[random_u32(&state) % 7]; }
        size_t length = replaced(expected, s, before_stop(s, n, stops, num_stops, &stops_it));
        stopped += stops_it;
        good = good && streams_in_all_splits(s, n, stops, num_stops, expected, length, stops_it);
    }
    CHECK(good);
    CHECK(stopped > 300 && stopped < 2900);
}

static void only_what_may_be_a_stop_text_is_held(void) {
    const char* stops[] = {"\nQ:"};
    TextStream s = text_stream_begin(stops, 1, 0);
    text_stream_push(&s, "yes\n", 4);
    CHECK(s.out.count == 3);
    text_stream_push(&s, "\nQ", 2);
    CHECK(s.out.count == 4);
    text_stream_push(&s, "u", 1);
    CHECK(s.out.count == 7 && memcmp(s.out.bytes, "yes\n\nQu", 7) == 0);
    CHECK(text_stream_push(&s, "\nQ: no", 6) == 1 && text_stream_push(&s, "more", 4) == 1);
    text_stream_end(&s);
    CHECK(s.out.count == 7);
    text_stream_free(&s);
}

static void terminals_are_not_steered(void) {
    static const char text[] = "a\x1b[2Jb\tc\n\x7f\xc2\x9b\xc3\xa9\r";
    for (int terminal = 0; terminal < 2; terminal++) {
        TextStream s = text_stream_begin(NULL, 0, terminal);
        text_stream_push(&s, text, sizeof(text) - 1);
        text_stream_end(&s);
        const char* expected = terminal ? "a[2Jb\tc\n\xc3\xa9\r" : text;
        CHECK(s.out.count == strlen(expected) && memcmp(s.out.bytes, expected, s.out.count) == 0);
        text_stream_free(&s);
    }
}

// Each code point up to U+017F between two letters: those that steer a terminal go from what is printed there, white space
// stays; in a line of an error message each of their bytes is '?'.
static void every_control_character_goes(void) {
    for (int c = 1; c < 0x180; c++) {
        char text[5] = {'a', (char)c, 'b'}, line[5];
        if (c >= 0x80) { snprintf(text, sizeof(text), "a%c%cb", 0xc0 | c >> 6, 0x80 | (c & 63)); }
        size_t n = strlen(text);
        int space = c >= '\t' && c <= '\r', control = c < 0x20 || (c >= 0x7f && c < 0xa0);
        const char* expected = control && !space ? "ab" : text;
        TextStream s = text_stream_begin(NULL, 0, 1);
        text_stream_push(&s, text, n);
        text_stream_end(&s);
        int good = s.out.count == strlen(expected) && memcmp(s.out.bytes, expected, s.out.count) == 0;
        text_stream_free(&s);
        memcpy(line, text, n + 1);
        mask_controls(line, n);
        good = good && strcmp(line, !control ? text : c < 0x80 ? "a?b" : "a??b") == 0;
        if (!CHECK(good)) { printf("    U+%04X\n", (unsigned)c); }
    }
}

int main(void) {
    every_control_character_goes();
    broken_utf8_becomes_unicode_s_choice();
    bytes_at_the_edges_of_the_forms();
    random_bytes_in_all_splits();
    stop_texts_end_a_stream();
    only_what_may_be_a_stop_text_is_held();
    terminals_are_not_steered();
    return unit_end();
}
