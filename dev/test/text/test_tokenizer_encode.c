// From text to tokens: llmc/text/bpe.h, vocab_json.h and tokenizer_encode(). The vocabulary is made here;
// GPT-2's own is compared by dev/test/text/compare_tokenizer.py.
#include "llmc/text/tokenizer.h"

#include "dev/test/fixtures/unit.h"

enum { V = 700, LONGEST = 24 };

static uint64_t random_state = 88172645463325252u;

static unsigned below(unsigned n) {
    random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
    return (unsigned)((random_state >> 33) % n);
}

// ----------------------------------------------------------------------------
// A vocabulary: the 256 bytes, in an order that is not theirs, then ee to sixteen e, pairs of earlier tokens that byte pair
// encoding by these would leave, <|endoftext|>

static unsigned char vocab_text[LONGEST * V];
static size_t vocab_offsets[V + 1];
static int vocab_lefts[V]; // of each pair

// The token among the first `count` that has these bytes; -1: none
static int find_token(const unsigned char* s, size_t n, int count) {
    for (int i = 0; i < count; i++) {
        if (vocab_offsets[i + 1] - vocab_offsets[i] == n && memcmp(vocab_text + vocab_offsets[i], s, n) == 0) {
            return i;
        }
    }
    return -1;
}

// A byte that texts have, or half the time one of the tokens before i
static int some_token(int i) {
    static const char letters[] = "etaoin shrdlu'\n.1\xc3\xa9\xe2\x82\xac";
    if (i > 256 && below(2) == 0) { return 256 + (int)below((unsigned)i - 256); }
    return find_token((const unsigned char*)&letters[below(sizeof(letters) - 1)], 1, 256);
}

// The definition, word for word, of the first `count` tokens: a piece that is a token is it; else the pair of neighbours with
// the lowest id, the first of equal ones, becomes one, until no pair is a token. Returns the number of ids.
static size_t merge_slowly(const unsigned char* s, size_t n, int count, int* ids) {
    static size_t begin[4096];
    size_t parts = n;
    int whole = find_token(s, n, count);
    if (whole >= 0) {
        ids[0] = whole;
        return 1;
    }
    for (size_t i = 0; i <= n; i++) { begin[i] = i; }
    for (;;) {
        int best = count;
        size_t where = 0;
        for (size_t i = 0; i + 2 <= parts; i++) {
            int id = find_token(s + begin[i], begin[i + 2] - begin[i], count);
            if (id >= 0 && id < best) { best = id, where = i; }
        }
        if (best == count) { break; }
        memmove(begin + where + 1, begin + where + 2, (parts - where - 1) * sizeof(size_t));
        parts--;
    }
    for (size_t i = 0; i < parts; i++) { ids[i] = find_token(s + begin[i], begin[i + 1] - begin[i], count); }
    return parts;
}

static void make_vocabulary(void) {
    for (int i = 0; i < V; i++) {
        unsigned char* token = vocab_text + vocab_offsets[i];
        size_t n = 0;
        if (i < 256) { token[n++] = (unsigned char)(i * 7 + 33); }
        if (i >= 256 && i < 260) {
            memset(token, 'e', n = (size_t)2 << (i - 256));
            vocab_lefts[i] = i == 256 ? find_token(token, 1, 256) : i - 1;
        }
        if (i == V - 1) { memcpy(token, "<|endoftext|>", n = 13); }
        while (n == 0) {
            int left = some_token(i), right = some_token(i);
            size_t a = vocab_offsets[left + 1] - vocab_offsets[left],
                   b = vocab_offsets[right + 1] - vocab_offsets[right];
            memcpy(token, vocab_text + vocab_offsets[left], a);
            if (a + b > LONGEST) { continue; }
            memcpy(token + a, vocab_text + vocab_offsets[right], b);
            int ids[LONGEST];
            if (merge_slowly(token, a + b, i, ids) != 2 || ids[0] != left) { continue; }
            n = a + b, vocab_lefts[i] = left;
        }
        vocab_offsets[i + 1] = vocab_offsets[i] + n;
    }
}

static const char* write_vocabulary(int eot) {
    static unsigned char body[(LONGEST + 1) * V];
    size_t at = 0;
    for (int i = 0; i < V; i++) {
        size_t n = vocab_offsets[i + 1] - vocab_offsets[i];
        body[at++] = (unsigned char)n;
        memcpy(body + at, vocab_text + vocab_offsets[i], n);
        at += n;
    }
    const char* path = unit_path("tokenizer.bin");
    unit_write_format(path, TOKENIZER_MAGIC, 2, V, eot, body, at);
    return path;
}

static Tokenizer load_with_eot(int eot) {
    Tokenizer t;
    tokenizer_load(&t, write_vocabulary(eot), V);
    check(tokenizer_prepare_encode(&t));
    return t;
}

static Tokenizer load_vocabulary(void) { return load_with_eot(V - 1); }

// A text of about n bytes in which the vocabulary's tokens are frequent
static size_t make_text(unsigned char* text, size_t n, int some_bytes) {
    size_t at = 0;
    while (at < n) {
        int id = some_bytes && below(8) == 0 ? (int)below(256) : some_token(256 + (int)below(V - 257));
        memcpy(text + at, vocab_text + vocab_offsets[id], vocab_offsets[id + 1] - vocab_offsets[id]);
        at += vocab_offsets[id + 1] - vocab_offsets[id];
    }
    return at;
}

static int decodes_to(const Tokenizer* t, const TokenList* list, const unsigned char* text, size_t n) {
    size_t at = 0, length;
    for (size_t i = 0; i < list->count; i++) {
        const unsigned char* bytes = tokenizer_decode(t, list->ids[i], &length);
        if (bytes == NULL || at + length > n || memcmp(bytes, text + at, length) != 0) { return 0; }
        at += length;
    }
    return at == n;
}

// ----------------------------------------------------------------------------

// A line of gpt2_pieces.txt: its text without escapes. Returns the bytes; *lengths is where the pieces' lengths begin.
static size_t read_case(char* line, unsigned char* text, char** lengths) {
    size_t n = 0;
    char* c = line;
    for (; *c != '\t' && *c != '\0'; n++) {
        char digits[3] = {c[0], '\0', '\0'};
        int escaped = c[0] == '\\' && c[1] == 'x';
        if (escaped) { memcpy(digits, c + 2, 2); }
        text[n] = escaped ? (unsigned char)strtoul(digits, NULL, 16) : (unsigned char)c[0];
        c += escaped ? 4 : 1;
    }
    *lengths = c;
    return n;
}

static void pieces_are_tiktoken_s(void) {
    const char* path = "dev/test/text/gpt2_pieces.txt";
    FILE* file = fopen_check(path, "rb");
    char line[2048], *lengths;
    unsigned char text[2048];
    int cases = 0;
    while (fgets(line, sizeof(line), file) != NULL) {
        if (line[0] == '#') { continue; }
        size_t n = read_case(line, text, &lengths), at = 0;
        int same = n > 0;
        while (same && at < n) {
            size_t end = gpt2_piece_end(text, at, n);
            same = end == at + strtoul(lengths, &lengths, 10);
            at = end;
        }
        same = same && strtoul(lengths, NULL, 10) == 0;
        if (!CHECK(same)) { printf("    byte %zu of %s", at, line); }
        cases++;
    }
    fclose(file);
    CHECK(cases > 80);
}

// As U+FFFD would be, with which others replace them, bytes that are no UTF-8 are signs.
static void broken_utf8_is_a_sign(void) {
    static const struct {
        const char* text;
        size_t ends[6];
    } cases[] = {{"a\xff\xffz", {1, 3, 4}},      {"a \xe2\x82 b", {1, 4, 6}}, {"\xc3\xa9\xc3", {2, 3}},
                 {"1\xed\xa0\x80!x", {1, 5, 6}}, {"a\xf0\x9f\x98", {1, 4}},   {" \x80\x80\n", {3, 4}},
                 {"\xc0\xaf\xc3\xa9", {2, 4}},   {"\xf4\x90\x80\x80", {4}},   {"\xe0\x9f\xbf\xe0\xa4\x85", {3, 6}}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const unsigned char* text = (const unsigned char*)cases[i].text;
        size_t n = strlen(cases[i].text), at = 0;
        for (int k = 0; at < n; k++) {
            at = gpt2_piece_end(text, at, n);
            CHECK(k < 6 && at == cases[i].ends[k]);
        }
    }
}

// Words of the cache, of its size and longer, words without an end, any bytes; twice, so that the cache is used.
static void pairs_merge_by_lowest_id_first(void) {
    Tokenizer t = load_vocabulary();
    static unsigned char text[4096];
    static int ids[4096];
    TokenList list = {0};
    int same = 1, back = 1;
    for (int k = 0; k < 400; k++) {
        size_t n = make_text(text, 1 + below(k % 20 == 0 ? 1000 : 60), k % 3 == 0), expected = 0;
        for (size_t at = 0, end; at < n; at = end) {
            end = gpt2_piece_end(text, at, n);
            expected += merge_slowly(text + at, end - at, V - 1, ids + expected);
        }
        for (int again = 0; again < 2; again++) {
            list.count = 0;
            check(tokenizer_encode(&t, (const char*)text, n, &list));
            same = same && list.count == expected && memcmp(list.ids, ids, expected * sizeof(int)) == 0;
            back = back && decodes_to(&t, &list, text, n);
        }
    }
    CHECK(same);
    CHECK(back);
    token_list_free(&list);
    tokenizer_free(&t);
}

// 1 where the text has these ids, twice, so that those of the cache are, too.
static int encodes_to(Tokenizer* t, const char* text, size_t n, const int* ids, size_t count) {
    TokenList list = {0};
    int same = 1;
    for (int again = 0; again < 2; again++) {
        list.count = 0;
        check(tokenizer_encode(t, text, n, &list));
        same = same && list.count == count && memcmp(list.ids, ids, count * sizeof(int)) == 0;
    }
    token_list_free(&list);
    return same;
}

static int byte_token(unsigned char byte) { return find_token(&byte, 1, 256); }

static void long_tokens_and_zero_bytes(void) {
    Tokenizer t = load_vocabulary();
    int zero = byte_token(0), x = byte_token('!');
    CHECK(encodes_to(&t, "eeeeeeeeeeeeeeee", 16, (int[]){259}, 1));
    CHECK(encodes_to(&t, "eeeeeeeeeeeeeeeee!", 18, (int[]){259, byte_token('e'), x}, 3));
    CHECK(encodes_to(&t, "\0", 1, (int[]){zero}, 1)); // short pieces that differ in their zeros alone
    CHECK(encodes_to(&t, "!", 1, (int[]){x}, 1));
    CHECK(encodes_to(&t, "!\0", 2, (int[]){x, zero}, 2));
    CHECK(encodes_to(&t, "!\0\0", 3, (int[]){x, zero, zero}, 3));
    CHECK(encodes_to(&t, "e\0e", 3, (int[]){byte_token('e'), zero, byte_token('e')}, 3));
    tokenizer_free(&t);
}

static void the_end_of_text_is_no_text(void) {
    Tokenizer t = load_vocabulary();
    TokenList list = {0};
    check(tokenizer_encode(&t, "<|endoftext|>", 13, &list));
    CHECK(list.count > 1 && decodes_to(&t, &list, (const unsigned char*)"<|endoftext|>", 13));
    check(tokenizer_encode(&t, "", 0, &list));
    size_t before = list.count;
    check(tokenizer_encode(&t, "e", 1, &list)); // appends
    CHECK(list.count == before + 1 && list.ids[before] == byte_token('e'));
    token_list_free(&list);
    tokenizer_free(&t);
    t = load_with_eot(257); // eeee, in a text, is not the end of text
    CHECK(encodes_to(&t, "eeee", 4, (int[]){256, 256}, 2));
    tokenizer_free(&t);
}

// In a prompt its name is the token, as in transformers, and what is between two of them is encoded by itself.
static void its_name_in_a_prompt_is_the_token(void) {
    Tokenizer t = load_vocabulary();
    TokenList list = {0};
    check(tokenizer_encode_prompt(&t, "<|endoftext|>ee<|endoftext|><|endoftext|e", 41, &list));
    CHECK(list.count > 4 && list.ids[0] == V - 1 && list.ids[1] == 256 && list.ids[2] == V - 1);
    for (size_t i = 3; i < list.count; i++) { CHECK(list.ids[i] != V - 1); }
    list.count = 0;
    check(tokenizer_encode_prompt(&t, "e ", 2, &list));
    CHECK(list.count >= 1 && !token_list_has(&list, V - 1));
    token_list_free(&list);
    tokenizer_free(&t);
    tokenizer_load(&t, "", BYTE_VOCAB_SIZE); // where tokens are bytes, a newline is one
    check(tokenizer_encode_prompt(&t, "\n<", 2, &list));
    CHECK(list.count == 2 && list.ids[0] == '\n' && list.ids[1] == '<');
    token_list_free(&list);
    tokenizer_free(&t);
}

// Processor seconds for a word of n letters
static double seconds_for(Tokenizer* t, size_t n) {
    char* word = (char*)malloc_check(n);
    TokenList list = {0};
    for (size_t i = 0; i < n; i++) { word[i] = "etaoinshrdlu"[below(12)]; }
    clock_t begin = clock();
    check(tokenizer_encode(t, word, n, &list));
    double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
    CHECK(decodes_to(t, &list, (unsigned char*)word, n));
    token_list_free(&list);
    free(word);
    return seconds;
}

// 16 times the letters: 16 times the time, and not 256 times; caches and noise are given a factor of 4.
static void a_word_without_end_takes_linear_time(void) {
    Tokenizer t = load_vocabulary();
    double small = 1e-3 + seconds_for(&t, 1 << 15), large = seconds_for(&t, 1 << 19);
    CHECK(large <= 64.0 * small);
    tokenizer_free(&t);
}

static void bytes_are_their_own_tokens(void) {
    Tokenizer t;
    TokenList list = {0};
    tokenizer_load(&t, "", BYTE_VOCAB_SIZE);
    check(tokenizer_encode(&t, "a\0\xff", 3, &list));
    CHECK(list.count == 3 && list.ids[0] == 'a' && list.ids[1] == 0 && list.ids[2] == 255);
    token_list_free(&list);
    tokenizer_free(&t);
}

static void encode_without(const char* path, int vocab_size) {
    Tokenizer t;
    TokenList list = {0};
    tokenizer_load(&t, path, vocab_size);
    check(tokenizer_encode(&t, "text", 4, &list));
}

static void vocabularies_that_cannot_encode_are_refused(void) {
    static const char few[] = "\1a\2ab\1b";
    const char* path = unit_path("few.bin");
    unit_write_format(path, TOKENIZER_MAGIC, 2, 3, 2, few, sizeof(few) - 1);
    CHECK_FATAL("no token is the byte 0x00", encode_without(path, 3));
    if (unit_fork()) { // no file: said when it is opened, and refused when it is needed
        encode_without(unit_path("none.bin"), 50257);
        _exit(0);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 1 && strstr(child.text, "error: text needs a tokenizer") != NULL);
}

// ----------------------------------------------------------------------------
// Hugging Face's folder

static void put_token(FILE* file, int id) {
    for (size_t i = vocab_offsets[id]; i < vocab_offsets[id + 1]; i++) {
        char c[4] = {0};
        size_t n = utf8_encode(c, vocab_character(vocab_text[i]));
        fwrite(c, 1, n, file);
    }
}

// vocab.json and merges.txt of our vocabulary; `swapped`: two lines of the merges are exchanged.
static void write_folder(int swapped) {
    FILE* file = fopen_check(unit_path("vocab.json"), "wb");
    for (int i = V - 1; i >= 0; i--) { // in no order
        fprintf(file, "%s\n\"", i == V - 1 ? "{" : ",");
        if (vocab_text[vocab_offsets[i]] == '"' || vocab_text[vocab_offsets[i]] == '\\') { fputc('\\', file); }
        put_token(file, i);
        fprintf(file, "\": %d", i);
    }
    fprintf(file, "}\n");
    fclose(file);
    file = fopen_check(unit_path("merges.txt"), "wb");
    fprintf(file, "#version: 0.2\n");
    for (int i = 256; i < V - 1; i++) {
        int id = swapped && i < 258 ? 256 + 257 - i : i, left = vocab_lefts[id];
        size_t at = vocab_offsets[id] + vocab_offsets[left + 1] - vocab_offsets[left];
        int right = find_token(vocab_text + at, vocab_offsets[id + 1] - at, V);
        put_token(file, left);
        fputc(' ', file);
        put_token(file, right);
        fputc('\n', file);
    }
    fclose(file);
}

// GPT-2's table, as its definition counts it: what is not printable is U+0100 and on, in its order.
static void characters_stand_for_bytes(void) {
    uint32_t others = 0x100;
    int same = 1;
    for (int byte = 0; byte < 256; byte++) {
        int printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        uint32_t c = printable ? (uint32_t)byte : others++;
        same = same && vocab_character((unsigned char)byte) == c && vocab_byte_((int32_t)c) == byte;
    }
    CHECK(same && others == 0x144);
    CHECK(vocab_byte_(0x144) == -1 && vocab_byte_(' ') == -1 && vocab_byte_(0xad) == -1 && vocab_byte_(-1) == -1);
}

static void a_folder_gives_the_same_tokens(void) {
    static unsigned char text[4096];
    Tokenizer file = load_vocabulary(), folder;
    TokenList a = {0}, b = {0};
    write_folder(0);
    tokenizer_load(&folder, unit_folder, V);
    CHECK(folder.vocab_size == V && folder.eot_token == V - 1 && folder.ready);
    CHECK(memcmp(folder.offsets, file.offsets, (V + 1) * sizeof(size_t)) == 0);
    CHECK(memcmp(folder.bytes, file.bytes, file.offsets[V]) == 0);
    size_t n = make_text(text, 3000, 1);
    check(tokenizer_encode(&file, (const char*)text, n, &a));
    check(tokenizer_encode(&folder, (const char*)text, n, &b));
    CHECK(a.count == b.count && memcmp(a.ids, b.ids, a.count * sizeof(int)) == 0);
    token_list_free(&a);
    token_list_free(&b);
    tokenizer_free(&folder);
    tokenizer_load(&folder, unit_folder, V + 4); // a model's vocabulary may be padded: such ids have no text
    CHECK(folder.vocab_size == V + 4 && tokenizer_decode(&folder, V + 1, &n) == NULL);
    tokenizer_free(&folder);
    tokenizer_load(&folder, unit_folder, 0);
    CHECK(folder.vocab_size == V);
    tokenizer_free(&folder);
    tokenizer_free(&file);
}

static void load_folder(int vocab_size) {
    Tokenizer t;
    tokenizer_load(&t, unit_folder, vocab_size);
    tokenizer_free(&t);
}

// The same vocabulary as tokenizer.json, with other ids, <|endoftext|> and another added token behind the others. `more` is put
// before the model; pairs: merges are arrays, else texts.
enum { ADDED = V };
static int left_out; // the token of which the merge is left out; 0: none
static int other_id(int id) { return id == V - 1 ? id : (id * 5 + 100) % (V - 1); }

static void write_tokenizer_json(int pairs, const char* added, const char* more) {
    FILE* file = fopen_check(unit_path("tokenizer.json"), "wb");
    fprintf(file, "{\"added_tokens\": [{\"id\": %d, \"content\": \"<|endoftext|>\", \"special\": true},\n", V - 1);
    fprintf(file, "{\"id\": %d, \"content\": \"%s\"}],\n%s, \"model\": {\"type\": \"BPE\", \"vocab\": ", ADDED, added,
            more);
    for (int i = 0; i < V - 1; i++) {
        fprintf(file, i == 0 ? "{\"" : ", \"");
        if (vocab_text[vocab_offsets[i]] == '"' || vocab_text[vocab_offsets[i]] == '\\') { fputc('\\', file); }
        put_token(file, i);
        fprintf(file, "\": %d", other_id(i));
    }
    fprintf(file, "}, \"merges\": [");
    for (int i = 256; i < V - 1; i++) {
        if (i == left_out) { continue; }
        size_t at = vocab_offsets[i] + vocab_offsets[vocab_lefts[i] + 1] - vocab_offsets[vocab_lefts[i]];
        fprintf(file, "%s%s", i == 256 ? "" : ", ", pairs ? "[\"" : "\"");
        put_token(file, vocab_lefts[i]);
        fprintf(file, pairs ? "\", \"" : " ");
        put_token(file, find_token(vocab_text + at, vocab_offsets[i + 1] - at, V));
        fprintf(file, pairs ? "\"]" : "\"");
    }
    fprintf(file, "]}}");
    fclose(file);
}

#define BYTE_LEVEL "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": false}"

static void ids_need_not_be_the_order_of_merges(void) {
    static unsigned char text[4096];
    Tokenizer file = load_vocabulary(), folder;
    TokenList a = {0}, b = {0};
    for (int pairs = 0; pairs < 2; pairs++) {
        unit_clean();
        write_tokenizer_json(pairs, "<x y>", BYTE_LEVEL);
        tokenizer_load(&folder, unit_folder, V + 7);
        CHECK(folder.eot_token == V - 1 && folder.special.count == 2);
        for (int k = 0, same = 1; k < 20; k++) {
            size_t n = make_text(text, k < 2 ? 3000 : 40, k % 2);
            a.count = b.count = 0;
            check(tokenizer_encode(&file, (const char*)text, n, &a));
            check(tokenizer_encode(&folder, (const char*)text, n, &b));
            for (size_t i = 0; i < a.count; i++) { same = same && i < b.count && b.ids[i] == other_id(a.ids[i]); }
            CHECK(same && a.count == b.count && decodes_to(&folder, &b, text, n));
        }
        b.count = 0;
        check(tokenizer_encode_prompt(&folder, "<x y><|endoftext|>", 18, &b));
        CHECK(b.count == 2 && b.ids[0] == ADDED && b.ids[1] == V - 1);
        tokenizer_free(&folder);
    }
    token_list_free(&a);
    token_list_free(&b);
    tokenizer_free(&file);
}

// A token of vocab.json that no merge makes is in no text.
static void tokens_need_a_merge(void) {
    const unsigned char* s = NULL;
    size_t n = 0;
    Tokenizer t;
    int id = V - 1, is_part = 1;
    while (is_part) { // one that is a piece, and no part of others
        s = vocab_text + vocab_offsets[--id], n = vocab_offsets[id + 1] - vocab_offsets[id];
        is_part = gpt2_piece_end(s, 0, n) < n;
        for (int i = id + 1; i < V - 1; i++) {
            size_t bytes = vocab_offsets[i + 1] - vocab_offsets[i];
            is_part = is_part || memmem(vocab_text + vocab_offsets[i], bytes, s, n) != NULL;
        }
    }
    unit_clean();
    write_tokenizer_json(1, "<x>", BYTE_LEVEL);
    tokenizer_load(&t, unit_folder, 0);
    CHECK(encodes_to(&t, (const char*)s, n, (int[]){other_id(id)}, 1));
    tokenizer_free(&t);
    left_out = id;
    write_tokenizer_json(1, "<x>", BYTE_LEVEL);
    left_out = 0;
    tokenizer_load(&t, unit_folder, 0);
    TokenList list = {0};
    check(tokenizer_encode(&t, (const char*)s, n, &list));
    CHECK(list.count > 1 && decodes_to(&t, &list, s, n) && list.ids[0] != other_id(id));
    token_list_free(&list);
    tokenizer_free(&t);
}

// transformers takes both from tokenizer_config.json.
static void the_configuration_of_a_tokenizer_is_read(void) {
    Tokenizer t;
    unit_clean();
    write_tokenizer_json(0, "<x>", "\"pre_tokenizer\": {\"type\": \"ByteLevel\"}"); // the library's default: a space
    CHECK_FATAL("add_prefix_space is not read", load_folder(0));
    const char* config = "{\"add_prefix_space\": false, \"eos_token\": {\"content\": \"<x>\"}}";
    unit_write(unit_path("tokenizer_config.json"), config, strlen(config));
    tokenizer_load(&t, unit_folder, 0);
    CHECK(t.eot_token == ADDED);
    tokenizer_free(&t);
    config = "{\"add_prefix_space\": true}";
    unit_write(unit_path("tokenizer_config.json"), config, strlen(config));
    write_tokenizer_json(0, "<x>", BYTE_LEVEL);
    CHECK_FATAL("add_prefix_space is not read", load_folder(0));
    unit_clean();
}

static void refuse_tokenizer(const char* words, const char* json) {
    unit_write(unit_path("tokenizer.json"), json, strlen(json));
    CHECK_FATAL(words, load_folder(0));
}

#define MODEL(more) "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"</s>\": 3}" more "}"
#define MERGES(list) ", \"merges\": [" list "]"

static void other_tokenizers_are_refused_by_name(void) {
    unit_clean();
    refuse_tokenizer("tokenizer.json|has no model", "{}");
    refuse_tokenizer("tokenizer.json|model Unigram is not read", "{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}");
    refuse_tokenizer("normalizer NFC is not read",
                     "{\"normalizer\": {\"type\": \"NFC\"}, " BYTE_LEVEL ", " MODEL(MERGES()) "}");
    refuse_tokenizer("pre_tokenizer Sequence is not read",
                     "{\"pre_tokenizer\": {\"type\": \"Sequence\"}, " MODEL(MERGES()) "}");
    refuse_tokenizer("pre_tokenizer null is not read", "{" MODEL(MERGES()) "}");
    refuse_tokenizer("end_of_word_suffix is not",
                     "{" BYTE_LEVEL ", " MODEL(MERGES() ", \"end_of_word_suffix\": \"</w>\"") "}");
    refuse_tokenizer("continuing_subword_prefix",
                     "{" BYTE_LEVEL ", " MODEL(", \"continuing_subword_prefix\": \"##\"") "}");
    refuse_tokenizer("dropout is not read", "{" BYTE_LEVEL ", " MODEL(MERGES() ", \"dropout\": 0.1") "}");
    refuse_tokenizer("ignore_merges is not", // a dropout of 0 is none
                     "{" BYTE_LEVEL ", " MODEL(MERGES() ", \"dropout\": 0.0, \"ignore_merges\": true") "}");
    refuse_tokenizer("has no array of merges", "{" BYTE_LEVEL ", " MODEL("") "}");
    refuse_tokenizer("merge 1 is not two tokens", "{" BYTE_LEVEL ", " MODEL(MERGES("\"ab\"")) "}");
    refuse_tokenizer("merge 1 is not two tokens", "{" BYTE_LEVEL ", " MODEL(MERGES("[\"a\"]")) "}");
    refuse_tokenizer("merge 2 makes no token", "{" BYTE_LEVEL ", " MODEL(MERGES("\"a b\", \"b a\"")) "}");
    refuse_tokenizer("merge 2 makes a token that another",
                     "{" BYTE_LEVEL ", " MODEL(MERGES("\"a b\", [\"a\", \"b\"]")) "}");
    refuse_tokenizer("the id of \"<x>\"|below 5",
                     "{\"added_tokens\": [{\"id\": 5, \"content\": \"<x>\"}], " BYTE_LEVEL ", " MODEL(MERGES()) "}");
    refuse_tokenizer("\"b\" and \"<x>\" have the same id 1",
                     "{\"added_tokens\": [{\"id\": 1, \"content\": \"<x>\"}], " BYTE_LEVEL ", " MODEL(MERGES()) "}");
    refuse_tokenizer("an added token has no name",
                     "{\"added_tokens\": [{\"id\": 4}], " BYTE_LEVEL ", " MODEL(MERGES()) "}");
    refuse_tokenizer("added_tokens is no array", "{\"added_tokens\": {}, " BYTE_LEVEL ", " MODEL(MERGES()) "}");
    refuse_tokenizer("is not an object of token to id", "{" BYTE_LEVEL ", \"model\": {\"merges\": []}}");
    refuse_tokenizer("pre_tokenizer's use_regex is not read",
                     "{\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"use_regex\": false}, " MODEL(MERGES()) "}");
    write_tokenizer_json(0, "<x>\", \"lstrip\": true, \"rstrip\": false, \"y\": \"", BYTE_LEVEL);
    CHECK_FATAL("an added token's lstrip is not read", load_folder(0));
    if (unit_fork()) { // what may be missed is said
        write_tokenizer_json(0, "<x>\", \"lstrip\": false, \"y\": \"",
                             BYTE_LEVEL ", \"post_processor\": {\"type\": \"TemplateProcessing\"}");
        load_folder(0);
        _exit(0);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0 && strstr(child.text, "warning: ") &&
          strstr(child.text, "TemplateProcessing is not read"));
    unit_clean();
}

static void refuse_vocab(const char* words, const char* json) {
    unit_write(unit_path("vocab.json"), json, strlen(json));
    CHECK_FATAL(words, load_folder(0));
}

static void bad_folders_are_refused(void) {
    write_folder(1);
    CHECK_FATAL("token 257 of|no merge of two tokens before it", encode_without(unit_folder, V));
    write_folder(0);
    CHECK_FATAL("holds 700 tokens, the model's vocabulary has 699", load_folder(V - 1));
    unit_write(unit_path("merges.txt"), "#version: 0.2\nabc\n", 18);
    CHECK_FATAL("merges.txt: merge 1 is not two tokens", load_folder(V));
    unlink(unit_path("merges.txt"));
    CHECK_FATAL("cannot open|merges.txt", load_folder(V));
    unit_write(unit_path("merges.txt"), "", 0);
    unit_write(unit_path("added_tokens.json"), "{}", 2);
    CHECK_FATAL("added_tokens.json: beside vocab.json, this file is not read", load_folder(V));
    unlink(unit_path("added_tokens.json"));
    refuse_vocab("vocab.json|not an object", "[1, 2]");
    refuse_vocab("vocab.json|the id of \"b\"|below 2", "{\"a\": 0, \"b\": 2}");
    refuse_vocab("vocab.json|the id of \"b\"", "{\"a\": 0, \"b\": -1}");
    refuse_vocab("vocab.json|the id of \"b\"", "{\"a\": 0, \"b\": \"1\"}");
    refuse_vocab("vocab.json|\"a\" and \"b\" have the same id 1", "{\"a\": 1, \"b\": 1}");
    refuse_vocab("vocab.json|token 1|byte-level", "{\"a\": 0, \"\xe4\xbd\xa0\": 1}");
    refuse_vocab("vocab.json|token 1|byte-level", "{\"a\": 0, \"\": 1}");
    refuse_vocab("neither the token|endoftext", "{\"a\": 0, \"b\": 1}");
    refuse_vocab("neither the token", "{}");
    refuse_vocab("vocab.json", "{\"a\": 0,");
    unlink(unit_path("vocab.json"));
    CHECK_FATAL("is a folder without vocab.json or tokenizer.json", load_folder(0));
}

int main(void) {
    make_vocabulary();
    pairs_merge_by_lowest_id_first();
    pieces_are_tiktoken_s(); // by the classes that preparing a tokenizer has filled in
    broken_utf8_is_a_sign();
    long_tokens_and_zero_bytes();
    the_end_of_text_is_no_text();
    its_name_in_a_prompt_is_the_token();
    a_word_without_end_takes_linear_time();
    bytes_are_their_own_tokens();
    vocabularies_that_cannot_encode_are_refused();
    characters_stand_for_bytes();
    a_folder_gives_the_same_tokens();
    ids_need_not_be_the_order_of_merges();
    tokens_need_a_merge();
    the_configuration_of_a_tokenizer_is_read();
    other_tokenizers_are_refused_by_name();
    bad_folders_are_refused();
    return unit_end();
}
