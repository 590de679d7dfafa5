// llmc/files/export_weights.h, hugging_face_tokenizer.h, safetensors.h: the files of an export, byte for byte.
#include "llmc/files/export_weights.h"

#include "dev/test/fixtures/unit.h"

static const GPT2Config CONFIG = {5, 3, 128, 2, 1, 32, 0}; // context, V, Vp, layers, heads, channels, trained length

// Weights that say where they are: parameter, then element
static float* numbered_weights(GPT2Config config) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    float* params = (float*)malloc_check(gpt2_parameters(table, config) * sizeof(float));
    float* p = params;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        for (size_t j = 0; j < table[i].count; j++) { *p++ = (float)(i * 100000) + (float)j; }
    }
    return params;
}

// ----------------------------------------------------------------------------
// model.safetensors

typedef struct {
    char* data;
    size_t bytes, header; // of the file; of its header with the 8 bytes of length
    Json json;
} Safetensors;

static Safetensors read_file(const char* path) {
    Safetensors f;
    f.data = unit_read(path, &f.bytes);
    uint64_t length = 0;
    memcpy(&length, f.data, 8);
    f.header = (size_t)length + 8;
    check(json_parse(&f.json, path, f.data + 8, f.header - 8));
    return f;
}

static void close_file(Safetensors* f) {
    json_free(&f->json);
    free(f->data);
}

// The element at `at` of a tensor of this type and shape, and the end of its bytes; NAN where the file has no such tensor.
static double element(const Safetensors* f, const char* name, const char* type, size_t rows, size_t cols, size_t at) {
    const JsonNode* tensor = json_member(&f->json, json_root(&f->json), name);
    if (tensor == NULL || !json_is(&f->json, json_member(&f->json, tensor, "dtype"), type)) { return NAN; }
    const JsonNode* shape = json_member(&f->json, tensor, "shape");
    const JsonNode* offsets = json_member(&f->json, tensor, "data_offsets");
    const JsonNode* first = json_first(&f->json, shape);
    const JsonNode* second = json_next(&f->json, shape, first);
    const JsonNode* begin = json_first(&f->json, offsets);
    size_t value[4] = {0, 1, 0, 0}, size = strcmp(type, "F32") == 0 ? 4 : 2;
    json_whole(&f->json, first, SIZE_MAX, &value[0]);
    if (second != NULL) { json_whole(&f->json, second, SIZE_MAX, &value[1]); }
    json_whole(&f->json, begin, SIZE_MAX, &value[2]);
    json_whole(&f->json, json_next(&f->json, offsets, begin), SIZE_MAX, &value[3]);
    if (value[0] != rows || value[1] != cols || value[3] - value[2] != rows * cols * size) { return NAN; }
    float number = NAN;
    uint16_t word;
    memcpy(&word, f->data + f->header + value[2] + at * size, sizeof(word));
    if (size == 4) { memcpy(&number, f->data + f->header + value[2] + at * size, sizeof(number)); }
    return (double)(strcmp(type, "BF16") == 0 ? bf16_to_float(word) : size == 2 ? fp16_to_float(word) : number);
}

static void the_header_is_as_the_format_says(const float* params) {
    const char* path = unit_path("model.safetensors");
    check(hugging_face_write_model(path, params, CONFIG, WEIGHTS_FP32));
    Safetensors f = read_file(path);
    static const char begin[] = "{\"__metadata__\":{\"format\":\"pt\"},\"transformer.wte.weight\":{\"dtype\":\"F32\","
                                "\"shape\":[3,32],\"data_offsets\":[0,384]},\"transformer.wpe.weight\":{";
    CHECK(f.header % 8 == 0 && strncmp(f.data + 8, begin, sizeof(begin) - 1) == 0);
    // every weight but the padding rows of wte
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    CHECK(f.bytes == f.header + 4 * (gpt2_parameters(table, CONFIG) - (128 - 3) * 32));
    int tensors = 0;
    size_t end = 0, from;
    const JsonNode* root = json_root(&f.json);
    for (const JsonNode* key = json_first(&f.json, root); key != NULL; key = json_next(&f.json, root, key)) {
        const JsonNode* offsets = json_member(&f.json, json_value(key), "data_offsets");
        if (offsets == NULL) { continue; } // metadata
        const JsonNode* first = json_first(&f.json, offsets);
        CHECK(json_whole(&f.json, first, SIZE_MAX, &from) && from == end); // no holes
        CHECK(json_whole(&f.json, json_next(&f.json, offsets, first), SIZE_MAX, &end));
        tensors++;
    }
    CHECK(tensors == 4 + 12 * 2 && f.header + end == f.bytes);
    close_file(&f);
}

// Whatever the header's length: here contexts of one to four digits
static void tensors_begin_at_a_multiple_of_8(void) {
    const char* path = unit_path("model.safetensors");
    for (int T = 5; T < 5000; T *= 10) {
        GPT2Config config = {T, 3, 128, 1, 1, 32, 0};
        float* params = numbered_weights(config);
        check(hugging_face_write_model(path, params, config, WEIGHTS_BF16));
        Safetensors f = read_file(path);
        CHECK(f.header % 8 == 0);
        close_file(&f);
        free(params);
    }
}

static void weights_are_in_their_places(const float* params) {
    static const struct {
        const char* name;
        WeightType type;
    } types[] = {{"F32", WEIGHTS_FP32}, {"BF16", WEIGHTS_BF16}};
    const char* path = unit_path("model.safetensors");
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    size_t count = gpt2_parameters(table, CONFIG);
    float* small = (float*)malloc_check(count * sizeof(float));
    for (size_t i = 0; i < count; i++) { small[i] = params[i] / 64.0f; }
    for (int i = 0; i < 2; i++) {
        const char* type = types[i].name;
        double unit = i == 0 ? 0.0 : ldexp(1.0, -8); // of the rounding
        check(hugging_face_write_model(path, small, CONFIG, types[i].type));
        Safetensors f = read_file(path);
        double wte = (0 + 2 * 32 + 31) / 64.0, wpe = (100000 + 4 * 32 + 1) / 64.0;
        CHECK_NEAR(element(&f, "transformer.wte.weight", type, 3, 32, 2 * 32 + 31), wte, unit * wte);
        CHECK_NEAR(element(&f, "transformer.wpe.weight", type, 5, 32, 4 * 32 + 1), wpe, unit * wpe);
        // qkvw (2, 96, 32): of layer 1, row 70, column 5 is at row 5, column 70 there; fcprojw (2, 32, 128) of layer 0
        double qkvw = (400000 + 1 * 96 * 32 + 70 * 32 + 5) / 64.0, fcprojw = (1200000 + 30 * 128 + 77) / 64.0;
        double ln2b = (900000 + 32 + 7) / 64.0, lnfb = (1500000 + 31) / 64.0;
        CHECK_NEAR(element(&f, "transformer.h.1.attn.c_attn.weight", type, 32, 96, 5 * 96 + 70), qkvw, unit * qkvw);
        CHECK_NEAR(element(&f, "transformer.h.0.mlp.c_proj.weight", type, 128, 32, 77 * 32 + 30), fcprojw,
                   unit * fcprojw);
        CHECK_NEAR(element(&f, "transformer.h.1.ln_2.bias", type, 32, 1, 7), ln2b, unit * ln2b);
        CHECK_NEAR(element(&f, "transformer.ln_f.bias", type, 32, 1, 31), lnfb, unit * lnfb);
        close_file(&f);
    }
    free(small);
}

static void the_same_weights_are_the_same_bytes(const float* params) {
    size_t n, m;
    check(hugging_face_write_model(unit_path("a.safetensors"), params, CONFIG, WEIGHTS_BF16));
    check(hugging_face_write_model(unit_path("b.safetensors"), params, CONFIG, WEIGHTS_BF16));
    char *a = unit_read(unit_path("a.safetensors"), &n), *b = unit_read(unit_path("b.safetensors"), &m);
    CHECK(n == m && memcmp(a, b, n) == 0);
    free(a);
    free(b);
}

// ----------------------------------------------------------------------------
// The configuration

static long whole(const Json* json, const char* key) {
    size_t value;
    const JsonNode* node = json_member(json, json_root(json), key);
    return node != NULL && json_whole(json, node, INT_MAX, &value) ? (long)value : -1;
}

static int is_null(const Json* json, const char* key) {
    const JsonNode* node = json_member(json, json_root(json), key);
    return node != NULL && node->type == (unsigned)JSON_NULL;
}

// n_positions is what the tensors have; a key of ours says where fewer were trained.
static void config_json_has_the_trained_length(const float* params, const char* folder) {
    const int lengths[] = {0, 4, 5};
    Json json;
    for (int i = 0; i < 3; i++) {
        GPT2Config config = CONFIG;
        config.trained_len = lengths[i];
        CHECK(export_hugging_face(folder, params, config, WEIGHTS_FP32, NULL) == STATUS_OK);
        check(json_read_file(&json, unit_path("config.json"), 10000));
        CHECK(whole(&json, "flashgpt_trained_length") == (lengths[i] == 4 ? 4 : -1) &&
              whole(&json, "n_positions") == 5);
        json_free(&json);
    }
}

static void config_json_describes_the_model(const float* params) {
    char path[1024];
    Json json;
    const char* folder = unit_path("model.safetensors");
    snprintf(path, sizeof(path), "%.*s", (int)(strrchr(folder, '/') - folder), folder);
    config_json_has_the_trained_length(params, path);
    CHECK(export_hugging_face(path, params, CONFIG, WEIGHTS_FP32, NULL) == STATUS_OK);
    check(json_read_file(&json, unit_path("config.json"), 10000));
    CHECK(whole(&json, "vocab_size") == 3 && whole(&json, "n_positions") == 5 && whole(&json, "n_ctx") == 5);
    CHECK(whole(&json, "n_layer") == 2 && whole(&json, "n_head") == 1 && whole(&json, "n_embd") == 32);
    CHECK(whole(&json, "bos_token_id") == 2 && whole(&json, "eos_token_id") == 2 && is_null(&json, "n_inner"));
    CHECK(json_is(&json, json_member(&json, json_root(&json), "activation_function"), "gelu_new"));
    CHECK(json_is(&json, json_member(&json, json_root(&json), "torch_dtype"), "float32"));
    json_free(&json);
    CHECK(!file_exists(unit_path("vocab.json")) && !file_exists(unit_path("merges.txt")));
}

// ----------------------------------------------------------------------------
// The tokenizer: all bytes in GPT-2's order need no file here; a few merges follow

// Bytes 0 to 255, then these tokens, then <|endoftext|>
static void make_tokenizer(Tokenizer* t, const char* const* merged, int count) {
    memset(t, 0, sizeof(*t));
    t->vocab_size = 256 + count + 1, t->eot_token = 256 + count, t->ready = 1;
    t->bytes = (unsigned char*)malloc_check(1024);
    t->offsets = (size_t*)malloc_check((size_t)(t->vocab_size + 1) * sizeof(size_t));
    size_t at = 0;
    for (int i = 0; i < t->vocab_size; i++) {
        const char byte[2] = {(char)i, 0}, *token = i < 256           ? byte
                                                    : i < 256 + count ? merged[i - 256]
                                                                      : "<|endoftext|>";
        size_t n = i < 256 ? 1 : strlen(token);
        t->offsets[i] = at;
        memcpy(t->bytes + at, token, n);
        at += n;
    }
    t->offsets[t->vocab_size] = at;
    token_list_add(&t->special, &t->eot_token, 1);
}

static void merges_are_derived_in_the_order_of_ids(const char* folder) {
    // " abc" is " ab" "c", though "bc" is a token: " ab" is one before it. "\n\n" and "é" have characters of the alphabet.
    static const char* const tokens[] = {" a", "ab", " ab", "bc", " abc", "\n\n", "\xc3\xa9", "abab", "ababab"};
    Tokenizer t;
    make_tokenizer(&t, tokens, 9);
    check(hugging_face_write_tokenizer(folder, &t, 64));
    const char* space = "\xc4\xa0"; // of the alphabet
    char merges[256];
    snprintf(merges, sizeof(merges), "#version: 0.2\n%s a\na b\n%sa b\nb c\n%sab c\n%s\nab ab\nabab ab\n", space, space,
             space, "\xc4\x8a \xc4\x8a\n\xc3\x83 \xc2\xa9");
    CHECK(unit_file_is(unit_path("merges.txt"), merges));
    Json json;
    check(json_read_file(&json, unit_path("vocab.json"), 100000));
    CHECK(whole(&json, "!") == 33 && whole(&json, "\xc4\x80") == 0 && whole(&json, "\xc5\x83") == 0xad);
    CHECK(whole(&json, "\xc4\xa0") == 32 && whole(&json, "\"") == 34 && whole(&json, "\\") == 92);
    CHECK(whole(&json, "\xc4\xa1") == 127 && whole(&json, "\xc3\xbf") == 255 && whole(&json, "ab") == 257);
    CHECK(whole(&json, "\xc3\x83\xc2\xa9") == 262 && whole(&json, "<|endoftext|>") == 265);
    json_free(&json);
    check(json_read_file(&json, unit_path("tokenizer_config.json"), 10000));
    CHECK(json_is(&json, json_member(&json, json_root(&json), "eos_token"), "<|endoftext|>"));
    CHECK(whole(&json, "model_max_length") == 64);
    json_free(&json);
    tokenizer_free(&t);
}

// A padded vocabulary has ids behind the tokenizer's last: they have no text, and are in no file.
static void tokens_without_text_are_left_out(const char* folder) {
    static const char* const tokens[] = {"ab"};
    Tokenizer t;
    Vocab v;
    make_tokenizer(&t, tokens, 1);
    t.vocab_size += 2;
    t.offsets = (size_t*)realloc(t.offsets, (size_t)(t.vocab_size + 1) * sizeof(size_t));
    for (int i = t.vocab_size - 1; i <= t.vocab_size; i++) { t.offsets[i] = t.offsets[t.vocab_size - 2]; }
    check(hugging_face_write_tokenizer(folder, &t, 64));
    check(vocab_read_folder(&v, folder));
    CHECK(v.num_tokens == 258 && v.eot_token == 257);
    vocab_free(&v);
    tokenizer_free(&t);
}

static int refused(const char* const* tokens, int count, const char* words) {
    Tokenizer t;
    status_clear();
    make_tokenizer(&t, tokens, count);
    int found =
        hugging_face_write_tokenizer(unit_folder, &t, 64) == STATUS_ERROR && strstr(status_message(), words) != NULL;
    if (!found) { printf("    %s\n", status_message()); }
    tokenizer_free(&t);
    status_clear();
    return found;
}

static void what_is_no_byte_pair_encoding_has_no_files(void) {
    CHECK(refused((const char* const[]){"ab", "abcd"}, 2, "token 257"));
    CHECK(refused((const char* const[]){"abc", "ab"}, 2, "token 256"));
    CHECK(refused((const char* const[]){"ab", "ab"}, 2, "token 257"));
}

static void bytes_have_no_merges(const char* folder) {
    Tokenizer t;
    tokenizer_load(&t, "", BYTE_VOCAB_SIZE);
    check(hugging_face_write_tokenizer(folder, &t, 64));
    CHECK(unit_file_is(unit_path("merges.txt"), "#version: 0.2\n"));
    Json json;
    check(json_read_file(&json, unit_path("tokenizer_config.json"), 10000));
    CHECK(is_null(&json, "bos_token") && is_null(&json, "eos_token") && is_null(&json, "unk_token"));
    json_free(&json);
    check(export_write_config_(folder, (GPT2Config){8, 256, 256, 1, 1, 32, 0}, WEIGHTS_FP32, &t));
    check(json_read_file(&json, unit_path("config.json"), 10000));
    CHECK(whole(&json, "bos_token_id") == '\n' && is_null(&json, "eos_token_id"));
    json_free(&json);
    tokenizer_free(&t);
}

int main(void) {
    char folder[512];
    float* params = numbered_weights(CONFIG);
    snprintf(folder, sizeof(folder), "%s", unit_path("x"));
    *strrchr(folder, '/') = '\0';
    the_header_is_as_the_format_says(params);
    tensors_begin_at_a_multiple_of_8();
    weights_are_in_their_places(params);
    the_same_weights_are_the_same_bytes(params);
    config_json_describes_the_model(params);
    merges_are_derived_in_the_order_of_ids(folder);
    what_is_no_byte_pair_encoding_has_no_files();
    tokens_without_text_are_left_out(folder);
    bytes_have_no_merges(folder);
    free(params);
    return unit_end();
}
