/*
The prompts of a run: --prompt, the lines of --prompt-file, or those of stdin where it is no terminal; as text and as tokens. An
empty one is <|endoftext|> (a newline, where tokens are bytes): the beginning of any text.
*/
#ifndef LLMC_GENERATE_PROMPTS_H
#define LLMC_GENERATE_PROMPTS_H

#include "flags.h"
#include "llmc/text/tokenizer.h"

typedef struct {
    char* text;
    size_t bytes;
    TokenList tokens; // at least one
} Prompt;

typedef struct {
    Prompt* items;
    int count;
} Prompts;

static inline void prompts_add(Prompts* p, const char* text, size_t bytes) {
    if (p->count == INT_MAX) { fatal("more than %d prompts", INT_MAX); }
    if ((p->count & (p->count - 1)) == 0) { // a power of two: room for as many again
        size_t room = p->count > 0 ? 2 * (size_t)p->count : 1;
        p->items = (Prompt*)realloc(p->items, room * sizeof(Prompt));
        if (p->items == NULL) { fatal("out of memory for %zu prompts", room); }
    }
    Prompt* added = &p->items[p->count++];
    memset(added, 0, sizeof(*added));
    added->text = (char*)malloc_check(bytes + 1);
    added->bytes = bytes;
    memcpy(added->text, text, bytes);
    added->text[bytes] = '\0';
}

// Each line of a file is a prompt, without its end, "\n" or "\r\n".
static inline void prompts_add_lines(Prompts* p, FILE* file, const char* name) {
    char* line = NULL;
    size_t room = 0;
    int is_first = 1;
    for (ssize_t n; (n = getline(&line, &room, file)) >= 0; is_first = 0) {
        if (n > 0 && line[n - 1] == '\n') { n--; }
        if (n > 0 && line[n - 1] == '\r') { n--; }
        size_t mark = is_first ? utf8_mark(line, (size_t)n) : 0;
        if (mark > 0) { note_mark_dropped(name); }
        prompts_add(p, line + mark, (size_t)n - mark);
    }
    if (ferror(file)) { fatal("cannot read %s: %s", name, strerror(errno)); }
    free(line);
}

// All prompts that the command line asks for, in their order; one that is empty where there is nothing else.
static inline Prompts prompts_read(const Options* o) {
    Prompts p = {NULL, 0};
    for (int i = 0; i < o->prompt.count; i++) { prompts_add(&p, o->prompt.items[i], strlen(o->prompt.items[i])); }
    if (o->prompt_file != NULL) {
        int before = p.count;
        FILE* file = fopen_check(o->prompt_file, "r");
        prompts_add_lines(&p, file, o->prompt_file);
        fclose(file);
        if (p.count == before) { fatal("--prompt-file %s: the file is empty; write a prompt a line", o->prompt_file); }
    }
    int mode = fcntl(STDIN_FILENO, F_GETFL); // where stdin was closed, it can only be written to: keep_standard_files
    int readable = mode >= 0 && (mode & O_ACCMODE) != O_WRONLY && !isatty(STDIN_FILENO);
    if (p.count == 0 && readable) { prompts_add_lines(&p, stdin, "stdin"); }
    if (p.count == 0) { prompts_add(&p, "", 0); }
    return p;
}

// Turns the texts into tokens. Ends the program with one line if there is no tokenizer for them.
static inline void prompts_encode(Prompts* p, Tokenizer* tokenizer) {
    for (int i = 0; i < p->count; i++) {
        Prompt* prompt = &p->items[i];
        if (prompt->bytes == 0) {
            token_list_add(&prompt->tokens, &tokenizer->eot_token, 1);
            continue;
        }
        status_clear();
        check(tokenizer_encode_prompt(tokenizer, prompt->text, prompt->bytes, &prompt->tokens));
    }
}

static inline void prompts_free(Prompts* p) {
    for (int i = 0; i < p->count; i++) {
        free(p->items[i].text);
        token_list_free(&p->items[i].tokens);
    }
    free(p->items);
    memset(p, 0, sizeof(*p));
}

#endif
