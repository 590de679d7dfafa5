/*
Our side of test_transformers.py: weights that are exported, logits, and token ids.

    build/transformers_side export WEIGHTS TARGET DTYPE [TOKENIZER]    with 'bytes' for a vocabulary of bytes
    build/transformers_side logits WEIGHTS T LOGITS                    of the int32 tokens on stdin, (B,T); fp32 (B,T,V)
    build/transformers_side encode TOKENIZER V                         stdin as int32 ids
    build/transformers_side prompt TOKENIZER V                         the same, special tokens where their names are
*/
#include "llmc/files/export_weights.h"
#include "llmc/text/tokenizer.h"
#include "train_gpt2.c"

// All of stdin; the caller frees it.
static char* read_all(size_t* bytes) {
    size_t room = 1 << 20;
    char* text = (char*)malloc_check(room);
    *bytes = fread(text, 1, room, stdin);
    if (*bytes == room) { fatal("stdin has more than %zu bytes", room - 1); }
    return text;
}

static void export(const char* weights, const char* target, const char* dtype, const char* tokens) {
    GPT2Config config;
    Tokenizer tokenizer;
    float* params;
    int unchecked;
    check(weights_load(&params, weights, &config, &unchecked));
    memset(&tokenizer, 0, sizeof(tokenizer));
    if (tokens != NULL) { tokenizer_load(&tokenizer, tokens, config.vocab_size); }
    check(export_weights(target, params, config, dtype, &tokenizer));
    tokenizer_free(&tokenizer);
    free(params);
}

static void write_logits(const char* weights, int T, const char* path) {
    GPT2* model;
    GPT2Config config;
    float* params;
    int unchecked;
    size_t bytes = 0;
    int* tokens = (int*)(void*)read_all(&bytes);
    int rows = (int)(bytes / sizeof(int));
    check(weights_load(&params, weights, &config, &unchecked));
    check(gpt2_create(&model, config, gpt2_default_settings()));
    check(gpt2_allocate(model, rows / T, T, 0));
    check(gpt2_set_parameters(model, params));
    check(gpt2_forward(model, tokens, rows / T, T));
    FILE* out = fopen_check(path, "wb");
    float* logits = (float*)malloc_check((size_t)config.vocab_size * sizeof(float));
    for (int t = 0; t < rows; t++) {
        check(gpt2_get_logits(model, logits, t));
        fwrite_check(logits, sizeof(float), (size_t)config.vocab_size, out, path);
    }
    fclose(out);
    free(logits);
    free(tokens);
    free(params);
    gpt2_free(model);
}

static void encode(const char* path, int vocab_size, int is_prompt) {
    Tokenizer tokenizer;
    TokenList ids = {NULL, 0, 0};
    size_t bytes = 0;
    char* text = read_all(&bytes);
    tokenizer_load(&tokenizer, path, vocab_size);
    check((is_prompt ? tokenizer_encode_prompt : tokenizer_encode)(&tokenizer, text, bytes, &ids));
    fwrite_check(ids.ids, sizeof(int), ids.count, stdout, "stdout");
    token_list_free(&ids);
    tokenizer_free(&tokenizer);
    free(text);
}

int main(int argc, char** argv) {
    const char* what = argc > 1 ? argv[1] : "";
    if (argc >= 5 && strcmp(what, "export") == 0) {
        export(argv[2], argv[3], argv[4], argc > 5 ? argv[5] : NULL);
    } else if (argc == 5 && strcmp(what, "logits") == 0) {
        write_logits(argv[2], atoi(argv[3]), argv[4]);
    } else if (argc == 4 && (strcmp(what, "encode") == 0 || strcmp(what, "prompt") == 0)) {
        encode(argv[2], atoi(argv[3]), strcmp(what, "prompt") == 0);
    } else {
        fatal("transformers_side export|logits|encode|prompt ...; see the head of dev/test/whole/transformers_side.c");
    }
    return 0;
}
