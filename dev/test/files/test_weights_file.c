/*
llmc/files/weights_file.h and hugging_face_weights.h: the same weights as a .bin, as one safetensors file of Hugging Face, as
shards, in every type and with all that its versions have written give the same bits; a run's folder gives its newest
checkpoint; and what is no GPT-2, or is damaged, is refused with one line.
*/
#include "llmc/files/weights_file.h"

#include "dev/test/fixtures/unit.h"

enum { V = 100, T = 8, L = 2, NH = 2, C = 64, MOST_TENSORS = 128 };
static const GPT2Config config = {T, V, 128, L, NH, C, 0};
static float* params; // (table order)
static size_t num_params;

// ----------------------------------------------------------------------------
// Writing as Hugging Face does. The names and shapes stand here once more: what is read is held against them.

static const struct {
    const char* name;
    int transposed;
    size_t rows, cols; // of ours, per layer; cols 0: a vector
} shapes[] = {
    {"wte.weight", 0, V, C},
    {"wpe.weight", 0, T, C},
    {"ln_1.weight", 0, C, 0},
    {"ln_1.bias", 0, C, 0},
    {"attn.c_attn.weight", 1, 3 * C, C},
    {"attn.c_attn.bias", 0, 3 * C, 0},
    {"attn.c_proj.weight", 1, C, C},
    {"attn.c_proj.bias", 0, C, 0},
    {"ln_2.weight", 0, C, 0},
    {"ln_2.bias", 0, C, 0},
    {"mlp.c_fc.weight", 1, 4 * C, C},
    {"mlp.c_fc.bias", 0, 4 * C, 0},
    {"mlp.c_proj.weight", 1, C, 4 * C},
    {"mlp.c_proj.bias", 0, C, 0},
    {"ln_f.weight", 0, C, 0},
    {"ln_f.bias", 0, C, 0},
};

typedef struct {
    char name[96];
    const char* dtype;
    int dims;
    size_t shape[4], bytes;
    char* data;
} Tensor;

static Tensor tensors[MOST_TENSORS];
static int num_tensors;

static void clear_tensors(void) {
    while (num_tensors > 0) { free(tensors[--num_tensors].data); }
}

enum { WEIGHTS_FP16 = NUM_WEIGHT_TYPES, NUM_READ_TYPES }; // which is read, and not written

// A number that fp16 holds
static uint16_t fp16_of(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    uint32_t sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    if (magnitude >= 0x38800000u) { return (uint16_t)(sign | ((magnitude >> 13) - (112u << 10))); }
    return (uint16_t)(sign | (uint32_t)(fabsf(x) * 0x1p24f)); // a multiple of 2^-24
}

static Tensor* add_tensor(const char* name, int type, int dims, size_t d0, size_t d1, const float* x) {
    Tensor* t = &tensors[num_tensors++];
    size_t n = dims == 0 ? 1 : d0 * (dims == 2 ? d1 : 1);
    snprintf(t->name, sizeof(t->name), "%s", name);
    t->dtype = type == WEIGHTS_FP16 ? "F16" : weight_types[type].safetensors;
    t->dims = dims, t->shape[0] = d0, t->shape[1] = d1, t->bytes = n * (type == (int)WEIGHTS_FP32 ? 4 : 2);
    t->data = (char*)malloc_check(t->bytes);
    if (type != WEIGHTS_FP16) { cast_weights(t->data, (WeightType)type, x, n); }
    for (size_t i = 0; i < n && type == WEIGHTS_FP16; i++) { ((uint16_t*)(void*)t->data)[i] = fp16_of(x[i]); }
    return t;
}

// All tensors of the model, as transformers names and transposes them
static void make_tensors(int type, const char* prefix) {
    const float* p = params;
    clear_tensors();
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++) {
        int layers = i < 2 || i > 13 ? 1 : L;
        size_t rows = shapes[i].rows, cols = shapes[i].cols ? shapes[i].cols : 1, n = rows * cols;
        for (int layer = 0; layer < layers; layer++, p += n) {
            char name[96];
            float* x = (float*)malloc_check(n * sizeof(float));
            for (size_t k = 0; k < n; k++) { x[shapes[i].transposed ? k % cols * rows + k / cols : k] = p[k]; }
            i<2 || i> 13 ? snprintf(name, sizeof(name), "%s%s", prefix, shapes[i].name)
                         : snprintf(name, sizeof(name), "%sh.%d.%s", prefix, layer, shapes[i].name);
            add_tensor(name, type, shapes[i].cols ? 2 : 1, shapes[i].transposed ? cols : rows,
                       shapes[i].transposed ? rows : cols, x);
            free(x);
        }
        if (i == 0) { p += (128 - V) * C; }
    }
}

static Tensor* find(const char* name) {
    for (int i = 0; i < num_tensors; i++) {
        if (strcmp(tensors[i].name, name) == 0) { return &tensors[i]; }
    }
    fatal("no tensor %s", name);
}

// Writes tensors first .. first+count-1; step -1: in the opposite order.
static void write_tensors(const char* path, int first, int count, int step) {
    static char header[1 << 16];
    size_t at = 0, data = 0;
    int from = step > 0 ? first : first + count - 1;
    at += (size_t)sprintf(header, "{\"__metadata__\":{\"format\":\"pt\"}");
    for (int i = 0, k = from; i < count; i++, k += step) {
        Tensor* t = &tensors[k];
        at += (size_t)sprintf(header + at, ",\"%s\":{\"dtype\":\"%s\",\"shape\":[", t->name, t->dtype);
        for (int d = 0; d < t->dims; d++) { at += (size_t)sprintf(header + at, "%s%zu", d ? "," : "", t->shape[d]); }
        at += (size_t)sprintf(header + at, "],\"data_offsets\":[%zu,%zu]}", data, data + t->bytes);
        data += t->bytes;
    }
    at += (size_t)sprintf(header + at, "} ");
    FILE* file = fopen_check(path, "wb");
    uint64_t length = at;
    fwrite_check(&length, 8, 1, file, path);
    fwrite_check(header, 1, at, file, path);
    for (int i = 0, k = from; i < count; i++, k += step) {
        fwrite_check(tensors[k].data, 1, tensors[k].bytes, file, path);
    }
    fclose(file);
}

static const char* folder(void) {
    unit_path("x");
    return unit_folder;
}
static const char* model(void) { return unit_path("model.safetensors"); }

static void write_text(const char* name, const char* text) { unit_write(unit_path(name), text, strlen(text)); }

#define CONFIG "\"model_type\":\"gpt2\",\"n_embd\":64,\"n_layer\":2,\"n_head\":2,\"n_positions\":8,\"vocab_size\":100"

// A folder with this model and nothing else
static void write_model(int type, const char* prefix) {
    unit_clean();
    make_tensors(type, prefix);
    write_tensors(model(), 0, num_tensors, 1);
    write_text("config.json", "{" CONFIG "}");
}

// ----------------------------------------------------------------------------
// Reading

static int same_config(GPT2Config c) { return memcmp(&c, &config, sizeof(c)) == 0; }

// 1 where the name gives this model, bit for bit, with checksums or without.
static int loads_as(const char* name, int expected_unchecked) {
    GPT2Config sizes, found;
    float* loaded;
    int unchecked = -1;
    if (weights_read_config(name, &sizes) != STATUS_OK ||
        weights_load(&loaded, name, &found, &unchecked) != STATUS_OK) {
        printf("    %s\n", status_message());
        return 0;
    }
    int same = same_config(sizes) && same_config(found) && memcmp(loaded, params, num_params * sizeof(float)) == 0;
    free(loaded);
    return same && unchecked == expected_unchecked;
}
static int loads(const char* name) { return loads_as(name, 1); }

// 1 where the name is refused with one line that has these words, and nothing is returned.
static int refuses(const char* name, const char* words) {
    GPT2Config found;
    float* loaded = params;
    int unchecked;
    int good = weights_load(&loaded, name, &found, &unchecked) != STATUS_OK && loaded == NULL &&
               strstr(status_message(), words) != NULL && strchr(status_message(), '\n') == NULL;
    if (!good) { printf("    %s\n", loaded != NULL ? "accepted" : status_message()); }
    free(loaded);
    return good;
}

// Numbers that the type holds exactly: normal ones, subnormals of fp16, and both zeros
static void make_params(int type) {
    GPT2Parameter table[NUM_PARAMETER_TENSORS];
    uint32_t state = 7;
    free(params);
    num_params = gpt2_parameters(table, config);
    params = (float*)calloc_check(num_params, sizeof(float));
    for (size_t i = 0; i < num_params; i++) {
        state = state * 1664525u + 1013904223u;
        float x = (float)(int32_t)state * (i % 50 == 0 ? 0x1p-50f : 0x1p-31f);
        if (i % 200 == 1) { x = i % 400 == 1 ? 0.0f : -0.0f; }
        if (type == (int)WEIGHTS_BF16) { x = bf16_to_float(float_to_bf16(x)); }
        if (type == WEIGHTS_FP16 && x != 0.0f) { // 10 bits after the first, or a multiple of 2^-24
            float digits = (float)(state >> 22), sign = i % 3 ? 1.0f : -1.0f;
            x = sign * (i % 50 == 0 ? digits * 0x1p-24f : ldexpf(1024.0f + digits, -10 - (int)(state >> 8) % 14));
        }
        if (i < V * C || i >= 128 * C) { params[i] = x; } // rows of padding are 0
    }
}

static void masks_and_a_head(int type, const char* prefix) {
    char name[96];
    const float mask[T * T] = {1.0f};
    for (int layer = 0; layer < L; layer++) {
        snprintf(name, sizeof(name), "%sh.%d.attn.bias", prefix, layer);
        Tensor* t = add_tensor(name, WEIGHTS_FP32, 2, T, T, mask);
        t->dims = 4, t->shape[0] = t->shape[1] = 1, t->shape[2] = t->shape[3] = T; // (1, 1, T, T)
        snprintf(name, sizeof(name), "%sh.%d.attn.masked_bias", prefix, layer);
        add_tensor(name, WEIGHTS_FP32, 0, 0, 0, mask);
    }
    add_tensor("lm_head.weight", type, 2, V, C, params);
}

static void every_form_gives_the_same_bits(void) {
    for (int type = 0; type < NUM_READ_TYPES; type++) {
        make_params(type);
        for (int prefixed = 0; prefixed < 2; prefixed++) {
            const char* prefix = prefixed ? "transformer." : "";
            write_model(type, prefix);
            CHECK(loads(folder()) && loads(model()));
            masks_and_a_head(type, prefix);
            write_tensors(model(), 0, num_tensors, -1);
            CHECK(loads(folder()));
        }
    }
    make_params(WEIGHTS_BF16); // types may differ from tensor to tensor
    write_model(WEIGHTS_FP32, "");
    for (int i = 0; i < num_tensors; i += 2) {
        Tensor* t = &tensors[i];
        size_t n = t->bytes / sizeof(float);
        float* x = (float*)(void*)t->data;
        t->data = (char*)malloc_check(n * 2);
        cast_weights(t->data, WEIGHTS_BF16, x, n);
        t->bytes = n * 2, t->dtype = "BF16";
        free(x);
    }
    write_tensors(model(), 0, num_tensors, 1);
    CHECK(loads(folder()));
    unit_clean();
    check(model_file_write(unit_path("model.bin"), config, MODEL_VERSION_FP32, 0, params));
    CHECK(loads_as(unit_path("model.bin"), 0));
}

static void names_of_wrapped_models_are_understood(void) {
    static const char* const prefixes[] = {"_orig_mod.", "module.transformer.", "module._orig_mod.transformer.",
                                           "_orig_mod.module."};
    make_params(WEIGHTS_FP32);
    for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
        write_model(WEIGHTS_FP32, prefixes[i]);
        CHECK(loads(folder()));
        add_tensor("wte.weight", WEIGHTS_FP32, 2, V, C, params);
        write_tensors(model(), 0, num_tensors, 1);
        CHECK(refuses(folder(), "holds wte.weight, which is a duplicate, or no tensor of a GPT-2 with 2 layers"));
    }
    write_model(WEIGHTS_FP32, "module_");
    CHECK(refuses(folder(), "is no GPT-2"));
}

// What lies in the place of a file is named as what it is.
static void other_files_are_named(void) {
    static const struct {
        const char *text, *words;
        size_t bytes; // 0: strlen
    } cases[] = {
        {"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 548105171\n", "is a Git LFS pointer", 0},
        {"\n<!DOCTYPE html>\n<html><title>404</title></html>", "is a web page", 0},
        {"<HTML><HEAD>", "is a web page", 0},
        {"<?xml version=\"1.0\"?><Error><Code>AccessDenied</Code></Error>", "is a web page", 0},
        {"PK\3\4\0\0\10\10\0\0\0\0\0\0archive/data.pkl", "is a pickle, as torch.save writes", 30},
        {"\x80\2\x8a\nl\xfc\x9c"
         "F\xf9 j\xa8P\x19.",
         "is a pickle, as torch.save writes", 15},
        {"\x80\4\x95\x0a\0\0\0\0\0\0\0}\x94", "is a pickle, as torch.save writes", 13},
    };
    make_params(WEIGHTS_FP32);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t n = cases[i].bytes > 0 ? cases[i].bytes : strlen(cases[i].text);
        const char* names[] = {"model.safetensors", "model.bin", "config.json"};
        for (int k = 0; k < 3; k++) {
            write_model(WEIGHTS_FP32, "");
            unit_write(unit_path(names[k]), cases[i].text, n);
            CHECK(refuses(k == 1 ? unit_path(names[k]) : folder(), cases[i].words));
            CHECK(strstr(status_message(), names[k]) != NULL);
        }
    }
    // a header of 0x950280 bytes begins as a pickle does
    static char header[9 + 0x950280];
    memset(header, ' ', sizeof(header));
    memcpy(header, "\x80\2\x95\0\0\0\0\0{\"wte.weight\":{}", 25);
    unit_write(model(), header, sizeof(header));
    CHECK(!refuses(folder(), "pickle"));
}

static void a_byte_order_mark_is_dropped(void) {
    make_params(WEIGHTS_FP32);
    write_model(WEIGHTS_FP32, "");
    write_text("config.json", "\xef\xbb\xbf{" CONFIG "}");
    if (unit_fork()) { _exit(!loads(folder())); }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0 && strstr(child.text, "config.json: its byte order mark is dropped"));
    write_text("config.json", "\xef\xbb\xbf\xef\xbb\xbf{" CONFIG "}");
    if (unit_fork()) { _exit(!refuses(folder(), "is no JSON")); }
    CHECK(unit_wait().exit_code == 0);
}

// Writes the model in three files, and an index whose entry for `moved` names `file`.
static void write_shards(const char* moved, const char* file) {
    static char index[1 << 16];
    size_t at = (size_t)sprintf(index, "{\"metadata\":{\"total_size\":1},\"weight_map\":{");
    unit_clean();
    make_tensors(WEIGHTS_FP32, "transformer.");
    for (int s = 0; s < 3; s++) {
        char name[64];
        int first = num_tensors * s / 3, end = num_tensors * (s + 1) / 3;
        snprintf(name, sizeof(name), "model-%05d-of-00003.safetensors", s + 1);
        write_tensors(unit_path(name), first, end - first, s == 1 ? -1 : 1);
        for (int i = first; i < end; i++) {
            int is = moved != NULL && strcmp(tensors[i].name, moved) == 0;
            at += (size_t)sprintf(index + at, "%s\"%s\":\"%s\"", i > 0 ? "," : "", tensors[i].name, is ? file : name);
        }
    }
    sprintf(index + at, "}}");
    write_text("model.safetensors.index.json", index);
    write_text("config.json", "{" CONFIG "}");
}

static void shards_are_read(void) {
    static const char* const outside[] = {"../model.safetensors", "/etc/passwd", "a/b", "", ".", "..", "a\\u0000b"};
    static const char moved[] = "transformer.h.1.ln_2.bias", first[] = "model-00001-of-00003.safetensors";
    make_params(WEIGHTS_FP32);
    write_shards(NULL, NULL);
    CHECK(loads(folder()));
    CHECK(refuses(unit_path(first), " has no ")); // one of several
    for (size_t i = 0; i < sizeof(outside) / sizeof(outside[0]); i++) {
        write_shards(moved, outside[i]);
        CHECK(refuses(folder(), "is no name of a file in its folder"));
    }
    write_shards(moved, "model-00004-of-00003.safetensors");
    CHECK(refuses(folder(), "model-00004-of-00003.safetensors: No such file"));
    write_shards(NULL, NULL);
    write_tensors(unit_path("model-00001-of-00002.safetensors"), 0, num_tensors / 2, 1); // of another model
    CHECK(loads(folder()));
    write_tensors(unit_path(first), 0, num_tensors / 3 + 1, 1); // a tensor of the next too
    CHECK(refuses(folder(), "which is a duplicate"));
    write_tensors(unit_path(first), 0, num_tensors / 3 - 1, 1);
    CHECK(refuses(folder(), " has no "));
    unit_clean();
    write_tensors(unit_path("mine.safetensors"), 0, num_tensors, 1); // one file, of any name
    write_text("config.json", "{" CONFIG "}");
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"wte.weight\":\"mine.safetensors\"}}");
    CHECK(loads(folder()));
    write_text("model.safetensors.index.json", "{\"weight_map\":[]}");
    CHECK(refuses(folder(), "has no weight_map"));
    write_text("model.safetensors.index.json", "[]");
    CHECK(refuses(folder(), "has no weight_map"));
    write_text("model.safetensors.index.json", "{\"weight_map\":{\"a\":1}}");
    CHECK(refuses(folder(), "is no name of a file"));
    write_text("model.safetensors.index.json", "{\"weight_map\":{}}");
    CHECK(refuses(folder(), " has no "));
}

// ----------------------------------------------------------------------------
// What is refused

static void config_json_must_agree(void) {
    static const struct {
        const char *text, *words; // NULL: it is accepted
    } cases[] = {
        {"{" CONFIG "}", NULL},
        {"{\"n_head\":2}", NULL},
        {"{\"num_attention_heads\":2,\"hidden_size\":64}", "config.json has no n_head"},
        {"{" CONFIG ",\"activation_function\":\"gelu_new\",\"layer_norm_epsilon\":1e-05,\"n_inner\":null,\"torch_"
         "dtype\":\"float32\"}",
         NULL},
        {"{" CONFIG ",\"activation_function\":\"gelu_pytorch_tanh\",\"layer_norm_epsilon\":0.00001,\"n_inner\":256}",
         NULL},
        {"{" CONFIG
         ",\"scale_attn_weights\":true,\"scale_attn_by_inverse_layer_idx\":false,\"reorder_and_upcast_attn\":true}",
         NULL},
        {"{" CONFIG
         ",\"tie_word_embeddings\":true,\"architectures\":[\"GPT2LMHeadModel\"],\"task_specific_params\":{\"a\":{}}}",
         NULL},
        {"{}", "config.json has no n_head"},
        {"[]", "config.json is no JSON object"},
        {"{\"n_head\":2", "config.json is no JSON"},
        {"{\"n_head\":\"2\"}", "n_head must be a whole number above 0"},
        {"{\"n_head\":0}", "n_head must be a whole number above 0"},
        {"{\"n_head\":-2}", "n_head must be a whole number above 0"},
        {"{\"n_head\":2.5}", "n_head must be a whole number above 0"},
        {"{\"n_head\":4294967298}", "n_head must be a whole number above 0"},
        {"{\"n_head\":3}", "64 channels do not divide by 3 heads"},
        {"{\"n_head\":4}", "head size 16"},
        {"{\"n_head\":2,\"n_layer\":3}", "n_layer is 3, but the tensors of"},
        {"{\"n_head\":2,\"n_layer\":1}", "n_layer is 1, but the tensors of"},
        {"{\"n_head\":2,\"n_embd\":128}", "n_embd is 128, but"},
        {"{\"n_head\":2,\"vocab_size\":128}", "vocab_size is 128, but"},
        {"{\"n_head\":2,\"n_positions\":1024}", "n_positions is 1024, but"},
        {"{\"n_head\":2,\"flashgpt_trained_length\":0}", "flashgpt_trained_length must be a whole number above 0"},
        {"{\"n_head\":2,\"flashgpt_trained_length\":\"4\"}", "flashgpt_trained_length must be a whole number above 0"},
        {"{\"n_head\":2,\"flashgpt_trained_length\":9}",
         "a trained length of 9 tokens is not between 1 and the context of 8"},
        {"{" CONFIG ",\"flashgpt_trained_length\":null}", NULL},
        {"{\"n_head\":2,\"model_type\":\"llama\"}", "model_type is not gpt2"},
        {"{\"n_head\":2,\"activation_function\":\"gelu\"}", "activation_function is not gelu_new"},
        {"{\"n_head\":2,\"activation_function\":\"relu\"}", "activation_function is not"},
        {"{\"n_head\":2,\"layer_norm_epsilon\":1e-6}", "layer_norm_epsilon is not 1e-5"},
        {"{\"n_head\":2,\"layer_norm_epsilon\":\"1e-5\"}", "layer_norm_epsilon is not 1e-5"},
        {"{\"n_head\":2,\"n_inner\":128}", "n_inner is not 4 times n_embd"},
        {"{\"n_head\":2,\"scale_attn_weights\":false}", "scale_attn_weights is not true"},
        {"{\"n_head\":2,\"scale_attn_by_inverse_layer_idx\":true}", "scale_attn_by_inverse_layer_idx is not false"},
        {"{\"n_head\":2,\"add_cross_attention\":true}", "add_cross_attention is not false"},
        {"{\"n_head\":2,\"tie_word_embeddings\":false}", "tie_word_embeddings is not true"},
    };
    make_params(WEIGHTS_FP32);
    write_model(WEIGHTS_FP32, "");
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        write_text("config.json", cases[i].text);
        CHECK(cases[i].words == NULL ? loads(folder()) : refuses(folder(), cases[i].words));
    }
    write_text("config.json", "{" CONFIG "}");
    add_tensor("lm_head.weight", WEIGHTS_FP32, 2, V, C, params); // the head is there, and is wte
    write_tensors(model(), 0, num_tensors, 1);
    CHECK(loads(folder()));
}

// Changes a tensor, and writes the file.
static int refuses_tensor(const char* name, const char* new_name, const char* dtype, int dims, size_t d0, size_t d1,
                          const char* words) {
    make_tensors(WEIGHTS_FP32, "");
    Tensor* t = find(name);
    strcpy(t->name, new_name);
    if (dtype != NULL) {
        size_t bytes = d0 * (dims == 2 ? d1 : 1) * (strcmp(dtype, "F64") == 0 ? 8 : 4);
        t->dtype = dtype, t->dims = dims, t->shape[0] = d0, t->shape[1] = d1, t->bytes = bytes;
        free(t->data);
        t->data = (char*)calloc_check(bytes + 1, 1);
    }
    write_tensors(model(), 0, num_tensors, 1);
    return refuses(folder(), words);
}

static void tensors_must_be_those_of_a_gpt2(void) {
    write_model(WEIGHTS_FP32, "");
    CHECK(refuses_tensor("h.1.mlp.c_fc.bias", "h.1.mlp.c_fc.bia", NULL, 0, 0, 0, " has no h.1.mlp.c_fc.bias"));
    CHECK(refuses_tensor("ln_f.weight", "ln_g.weight", NULL, 0, 0, 0, " has no ln_f.weight"));
    CHECK(refuses_tensor("wte.weight", "score.weight", NULL, 0, 0, 0,
                         "is no GPT-2 of Hugging Face: it has no wte.weight"));
    CHECK(
        refuses_tensor("wpe.weight", "wpf.weight", NULL, 0, 0, 0, "is no GPT-2 of Hugging Face: it has no wpe.weight"));
    CHECK(refuses_tensor("wpe.weight", "wpe.weight", "F32", 1, 10, 0, "it has no wpe.weight (maxT, C)"));
    CHECK(refuses_tensor("h.0.ln_1.bias", "h.0.ln_1.bias", "F32", 1, C + 1, 0, "h.0.ln_1.bias has not the shape (64)"));
    CHECK(refuses_tensor("h.0.ln_1.bias", "h.0.ln_1.bias", "F32", 2, 1, C, "has not the shape (64)"));
    CHECK(refuses_tensor("h.1.mlp.c_fc.weight", "h.1.mlp.c_fc.weight", "F32", 2, 4 * C, C,
                         "has not the shape (64, 256)")); // not transposed
    CHECK(refuses_tensor("h.0.ln_1.bias", "h.0.ln_1.bias", "F64", 1, C, 0,
                         "h.0.ln_1.bias is in F64; F32, F16 and BF16 are read"));
    CHECK(refuses_tensor("h.0.ln_1.bias", "h.0.ln_1.bias", "I32", 1, C, 0, "is in I32"));
    CHECK(refuses_tensor("h.0.ln_1.bias", "h.7.ln_1.bias", NULL, 0, 0, 0, "n_layer is 2, but the tensors of"));
    CHECK(refuses_tensor("h.0.ln_1.bias", "h.0.ln_1.bias", "F32", 1, 0, 0, "has not the shape (64)"));
    CHECK(refuses_tensor("wte.weight", "wte.weight", "F32", 2, 0, C, "it has no wte.weight (V, C)"));
    CHECK(refuses_tensor("wte.weight", "wte.weight", "F32", 2, V, 0, "it has no wte.weight (V, C)"));
    CHECK(refuses_tensor("wpe.weight", "wpe.weight", "F32", 2, 0, C, "it has no wpe.weight (maxT, C)"));
    write_text("config.json", "{\"n_head\":2}");
    CHECK(refuses_tensor("h.0.ln_1.bias", "h.999999999.ln_1.bias", NULL, 0, 0, 0, "has no h.0.ln_1.bias"));
    CHECK(refuses_tensor("h.0.ln_1.bias", "h.99999999999999999999.ln_1.bias", NULL, 0, 0, 0, "has no h.0.ln_1.bias"));
    CHECK(refuses_tensor("h.0.ln_1.bias", "h.00.ln_1.bias", NULL, 0, 0, 0, "has no h.0.ln_1.bias"));
    static const char* const others[] = {
        "score.weight", "h.0.crossattention.bias", "h.00.ln_1.bias", "h.1.attn.bia", "h.0.attn.bias.x", "wte.bias", ""};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        char words[128];
        make_tensors(WEIGHTS_FP32, "");
        add_tensor(others[i], WEIGHTS_FP32, 1, 3, 0, params);
        write_tensors(model(), 0, num_tensors, 1);
        snprintf(words, sizeof(words), "holds %s, which is a duplicate, or no tensor of a GPT-2 with", others[i]);
        CHECK(refuses(folder(), words));
    }
    make_tensors(WEIGHTS_FP32, "transformer.");
    add_tensor("wte.weight", WEIGHTS_FP32, 2, V, C, params);
    write_tensors(model(), 0, num_tensors, 1);
    CHECK(refuses(folder(), "which is a duplicate, or"));
}

// Each tensor by each of its dimensions, one more and one less; its name by each byte, a byte shorter and a byte longer.
static void every_tensor_has_its_name_and_shape(void) {
    make_params(WEIGHTS_FP32);
    write_model(WEIGHTS_FP32, "");
    for (int i = 0; i < num_tensors; i++) {
        char name[96], words[128], other[100];
        snprintf(name, sizeof(name), "%s", tensors[i].name);
        if (strncmp(name, "h.0.", 4) == 0) { continue; } // of layer 0 as of layer 1
        int dims = tensors[i].dims, gives_sizes = i < 2; // wte and wpe do: others or config.json disagree
        const size_t rows = tensors[i].shape[0], cols = dims == 2 ? tensors[i].shape[1] : 0;
        for (int k = 0; k < 2 * dims; k++) {
            size_t shape[2] = {rows, cols};
            shape[k / 2] += k % 2 ? 1 : (size_t)-1;
            snprintf(words, sizeof(words), "%s has not the shape ", name);
            CHECK(refuses_tensor(name, name, "F32", dims, shape[0], shape[1], gives_sizes ? "" : words));
        }
        size_t n = strlen(name);
        snprintf(words, sizeof(words), " has no %s", name);
        for (size_t k = 0; k <= n + 1; k++) {
            snprintf(other, sizeof(other), "%s%s", name, k == n ? "x" : "");
            if (k < n) { other[k] = (char)(other[k] ^ 2); }
            if (k > n) { other[n - 1] = '\0'; }
            int is_layer = i >= 2 && k == 2; // h.3 in place of h.1: then config.json disagrees
            if (!CHECK(refuses_tensor(name, other, NULL, 0, 0, 0, is_layer ? "" : words))) {
                printf("    %s\n", other);
            }
        }
    }
}

static void every_other_dtype_is_refused(void) {
    static const struct {
        const char* name;
        size_t bits;
    } others[] = {{"F64", 64},    {"I64", 64},    {"I32", 32},    {"I16", 16},    {"I8", 8},   {"U64", 64},
                  {"U32", 32},    {"U16", 16},    {"U8", 8},      {"BOOL", 8},    {"C64", 64}, {"F8_E5M2", 8},
                  {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
    write_model(WEIGHTS_FP32, "");
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        char words[128];
        make_tensors(WEIGHTS_FP32, "");
        Tensor* t = find("h.1.ln_2.weight");
        t->dtype = others[i].name, t->bytes = C * others[i].bits / 8;
        free(t->data);
        t->data = (char*)calloc_check(t->bytes, 1);
        write_tensors(model(), 0, num_tensors, 1);
        snprintf(words, sizeof(words), "h.1.ln_2.weight is in %s; F32, F16 and BF16 are read", others[i].name);
        CHECK(refuses(folder(), words));
    }
}

static void a_head_of_its_own_is_refused(void) {
    write_model(WEIGHTS_FP32, "");
    add_tensor("lm_head.weight", WEIGHTS_FP32, 2, V, C, params)->data[4 * (V * C - 1)] ^= 1;
    write_tensors(model(), 0, num_tensors, 1);
    CHECK(refuses(folder(), "lm_head.weight is not wte.weight"));
    make_tensors(WEIGHTS_FP32, "");
    add_tensor("lm_head.weight", WEIGHTS_FP32, 2, V - 1, C, params);
    write_tensors(model(), 0, num_tensors, 1);
    CHECK(refuses(folder(), "lm_head.weight has not the shape (100, 64)"));
}

static void numbers_that_are_not_finite_are_refused(void) {
    static const struct {
        int type;
        uint32_t word;
        const char* name;
    } cases[] = {
        {WEIGHTS_FP32, 0x7fc00000, "nan"}, {WEIGHTS_FP32, 0x7f800000, "inf"}, {WEIGHTS_FP32, 0xff800000, "-inf"},
        {WEIGHTS_FP16, 0x7c00, "inf"},     {WEIGHTS_FP16, 0xfc00, "-inf"},    {WEIGHTS_FP16, 0x7e01, "nan"},
        {WEIGHTS_BF16, 0x7f80, "inf"},     {WEIGHTS_BF16, 0xff80, "-inf"},    {WEIGHTS_BF16, 0x7fc0, "nan"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char words[128];
        size_t bytes = cases[i].type == (int)WEIGHTS_FP32 ? 4 : 2, element = i % 2 ? 64 * 256 - 1 : 257;
        write_model(cases[i].type, "transformer.");
        memcpy(find("transformer.h.1.mlp.c_fc.weight")->data + element * bytes, &cases[i].word, bytes);
        write_tensors(model(), 0, num_tensors, 1);
        size_t ours = element % 256 * 64 + element / 256; // not transposed
        snprintf(words, sizeof(words), "fcw, layer 1, element %zu is %s;", ours, cases[i].name);
        CHECK(refuses(folder(), words));
    }
}

// ----------------------------------------------------------------------------
// Names

static void one_file_without_config_json_is_said_to_have_heads_of_64(void) {
    make_params(WEIGHTS_FP32);
    write_model(WEIGHTS_FP32, "");
    remove(unit_path("config.json"));
    if (unit_fork()) {
        GPT2Config found;
        float* loaded;
        int unchecked;
        check(weights_load(&loaded, model(), &found, &unchecked));
        int good = found.num_heads == 1 && memcmp(loaded, params, num_params * sizeof(float)) == 0;
        free(loaded);
        _exit(good ? 0 : 2);
    }
    UnitChild child = unit_wait();
    CHECK(child.exit_code == 0 && strstr(child.text, "warning: ") == child.text &&
          strstr(child.text, "64 channels, 1 heads"));
    unit_write(unit_path("model.bin"), "", 0);
    CHECK(refuses(unit_path("model.bin"), "0 bytes, less than its header"));
}

static void descriptors_are_no_files(void) {
    static const char* const descriptors[] = {"d12",      "d12t64", "gpt2:d48", "gpt3:c768", "gpt2:l4c128h4t64",
                                              "nonsense", "",       "d1x"};
    static const char* const files[] = {"a.bin", "none.safetensors", "./d12", "a/b", "/", ".", "dev", "llmc"};
    for (size_t i = 0; i < sizeof(descriptors) / sizeof(descriptors[0]); i++) {
        CHECK(!weights_is_file(descriptors[i]));
    }
    for (size_t i = 0; i < sizeof(files) / sizeof(files[0]); i++) { CHECK(weights_is_file(files[i])); }
    char here[1024];
    CHECK(getcwd(here, sizeof(here)) != NULL && chdir(folder()) == 0);
    CHECK(mkdir("d12", 0755) == 0 && mkdir("gpt2", 0755) == 0);
    CHECK(!weights_is_file("d12") && weights_is_file("./d12") && weights_is_file("gpt2"));
    CHECK(rmdir("d12") == 0 && rmdir("gpt2") == 0 && chdir(here) == 0);
    CHECK(refuses(unit_path("none.bin"), "no such file; name a .bin or .safetensors file"));
    CHECK(refuses(unit_path("none/x"), "no such file"));
    CHECK(symlink("itself.bin", unit_path("itself.bin")) == 0); // as what this user may not look at, also for root
    CHECK(refuses(unit_path("itself.bin"), strerror(ELOOP)));
}

// A pipe that nobody writes to is not waited for, wherever a file is read.
static void pipes_are_refused(void) {
    static const char* const names[] = {"pipe.bin", "pipe.safetensors", "pipe"};
    alarm(60); // which ends the test where it waits
    for (int i = 0; i < 3; i++) {
        CHECK(mkfifo(unit_path(names[i]), 0644) == 0 && refuses(unit_path(names[i]), names[i]));
        CHECK(strstr(status_message(), "it is a pipe or a device, not a file") != NULL);
    }
    CHECK(refuses("/dev/zero", "cannot open /dev/zero: it is a pipe or a device"));
    make_params(WEIGHTS_FP32);
    write_model(WEIGHTS_FP32, "");
    CHECK(remove(unit_path("config.json")) == 0 && mkfifo(unit_path("config.json"), 0644) == 0);
    CHECK(refuses(folder(), "config.json: it is a pipe or a device"));
    remove(unit_path("config.json"));
    alarm(0);
}

// A folder of Hugging Face's cache is of links, and what they lead to may have been deleted.
static void links_to_nothing_are_named(void) {
    make_params(WEIGHTS_FP32);
    write_model(WEIGHTS_FP32, "");
    CHECK(remove(unit_path("config.json")) == 0 && symlink("../blobs/1", unit_path("config.json")) == 0);
    CHECK(refuses(folder(), "config.json: No such file"));
    CHECK(refuses(model(), "config.json: No such file")); // no guess at its heads
    CHECK(remove(model()) == 0 && symlink("../blobs/2", model()) == 0);
    CHECK(refuses(folder(), "model.safetensors: No such file"));
    unit_clean();
}

// The folder of a run gives the newest checkpoint with its DONE.
static void a_run_s_folder_gives_its_newest_checkpoint(void) {
    float* older = params;
    unit_clean();
    CHECK(refuses(folder(), "the folder holds no weights"));
    params = NULL;
    make_params(WEIGHTS_BF16);
    older[0] = 3.0f;
    check(model_file_write(unit_path("model_00000010.bin"), config, MODEL_VERSION_FP32, 10, older));
    CHECK(refuses(folder(), "no complete checkpoint"));
    write_text("DONE_00000010", "");
    check(model_file_write(unit_path("model_00000020.bin"), config, MODEL_VERSION_FP32, 20, params));
    check(model_file_write(unit_path("model_00000030.bin"), config, MODEL_VERSION_FP32, 30, older));
    write_text("DONE_00000020", "");
    write_text("DONE_00000040", "");
    float* loaded;
    GPT2Config found;
    int unchecked;
    CHECK(weights_load(&loaded, folder(), &found, &unchecked) == STATUS_OK && same_config(found) && unchecked == 0);
    CHECK(memcmp(loaded, params, num_params * sizeof(float)) == 0);
    free(loaded);
    unit_flip(unit_path("model_00000020.bin"), 8 * 5000);
    CHECK(refuses(folder(), "model_00000020.bin: bytes"));
    float* intact = NULL;
    CHECK(weights_load_intact(&intact, folder(), &found, &unchecked) == STATUS_OK && same_config(found));
    CHECK(memcmp(intact, older, num_params * sizeof(float)) == 0 && unchecked == 0);
    free(intact);
    CHECK(weights_load_intact(&intact, unit_path("model_00000020.bin"), &found, &unchecked) == STATUS_ERROR);
    unit_flip(unit_path("model_00000010.bin"), 8 * 6000);
    CHECK(weights_load_intact(&intact, folder(), &found, &unchecked) == STATUS_ERROR && intact == NULL);
    CHECK(strstr(status_message(), "model_00000010.bin: bytes") != NULL);
    make_tensors(WEIGHTS_FP32, "");
    write_tensors(model(), 0, num_tensors, 1);
    CHECK(refuses(folder(), "holds a model of Hugging Face and checkpoints of a run"));
    unit_clean();
    write_text("pytorch_model.bin", "");
    CHECK(refuses(folder(), "holds pytorch_model.bin, which is not read here, and no model.safetensors: load it with "
                            "transformers and save it anew"));
    free(older);
}

static uint64_t identity(const char* name) {
    Digest d = digest_begin();
    check(weights_identity(&d, name));
    return digest_end(d);
}

// Any file of the folder that is another makes the weights others.
static void identity_covers_all_files(void) {
    make_params(WEIGHTS_FP32);
    write_shards(NULL, NULL);
    uint64_t first = identity(folder());
    CHECK(first == identity(folder()));
    for (int s = 0; s < 3; s++) {
        char name[64];
        size_t bytes;
        snprintf(name, sizeof(name), "model-%05d-of-00003.safetensors", s + 1);
        free(unit_read(unit_path(name), &bytes));
        unit_flip(unit_path(name), 8 * (bytes - 4));
        CHECK(identity(folder()) != first);
        unit_flip(unit_path(name), 8 * (bytes - 4));
    }
    CHECK(identity(folder()) == first);
    write_text("config.json", "{" CONFIG ",\"x\":1}");
    CHECK(identity(folder()) != first);
    check(model_file_write(unit_path("model.bin"), config, MODEL_VERSION_FP32, 0, params));
    Digest d = digest_begin();
    check(identity_file(&d, unit_path("model.bin")));
    CHECK(identity(unit_path("model.bin")) == digest_end(d)); // as checkpoints of before have it
}

int main(void) {
    every_form_gives_the_same_bits();
    names_of_wrapped_models_are_understood();
    other_files_are_named();
    a_byte_order_mark_is_dropped();
    shards_are_read();
    config_json_must_agree();
    tensors_must_be_those_of_a_gpt2();
    every_tensor_has_its_name_and_shape();
    every_other_dtype_is_refused();
    a_head_of_its_own_is_refused();
    numbers_that_are_not_finite_are_refused();
    one_file_without_config_json_is_said_to_have_heads_of_64();
    descriptors_are_no_files();
    pipes_are_refused();
    links_to_nothing_are_named();
    a_run_s_folder_gives_its_newest_checkpoint();
    identity_covers_all_files();
    clear_tensors();
    free(params);
    return unit_end();
}
