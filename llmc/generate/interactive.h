/*
--interactive: lines from stdin, each of which the model continues. All is one text, whose keys and values stay in the cache: a
line with its newline, then the model's answer, including a stop text, then the next line. When the context is full, --overflow
slide continues from its last half, and stop starts a new text; both print a note. Ctrl-C stops an answer, Ctrl-D ends.
*/
#ifndef LLMC_GENERATE_INTERACTIVE_H
#define LLMC_GENERATE_INTERACTIVE_H

#include <poll.h>

#include "model.h"
#include "samples.h"

typedef struct {
    const Options* options;
    Tokenizer* tokenizer;
    GPT2Decoder* decoder;
    int T;
    ContextRemark remark; // on T
    int terminal;         // 1: stdout is a terminal
    TokenList history;    // of the text so far
    int cached;           // tokens in the cache; 0: the text has not begun
    int slides;
    size_t new_tokens;
    double seconds;
} Interactive;

static inline void interactive_note_(const Interactive* t, const char* what) {
    if (t->options->quiet) { return; }
    fprintf(stderr, "[the context of %d tokens%s is full: %s]\n", t->T, t->remark.text, what);
}

// The last `count` tokens of the text go into the cache anew.
static inline void interactive_prefill_(Interactive* t, int count) {
    uint64_t id = sampler_sample_id(NULL, 0, 0, (uint64_t)t->slides);
    DecoderPrompt p = generate_decoder_prompt(t->options, &t->history, count, 0, id);
    check(gpt2_decoder_prefill(t->decoder, &p, 1));
    t->cached = count;
}

static inline void interactive_slide_(Interactive* t) {
    interactive_note_(t, "continuing from its last half");
    t->slides++;
    interactive_prefill_(t, generate_kept(t->T));
}

// 1 if an answer has ended because nothing more fits.
static inline int interactive_is_full_(const Interactive* t) {
    return t->history.count > (size_t)t->T && t->cached == t->T && strcmp(t->options->overflow, "stop") == 0;
}

// 1 if the text so far, also what the screen does not show of it, is whole lines.
static inline int interactive_ends_line_(const Interactive* t) {
    size_t n = 0;
    const unsigned char* text = NULL;
    if (t->history.count == 0) { return 1; }
    text = tokenizer_decode(t->tokenizer, t->history.ids[t->history.count - 1], &n);
    return n > 0 && text[n - 1] == '\n';
}

// Appends a line to the text; returns 0 if it does not fit and is left out. In a text that goes on, it is a line of its own, as
// on the screen; a new text begins with it.
static inline int interactive_give(Interactive* t, const TokenList* line) {
    TokenList given = {NULL, 0, 0};
    int slide = strcmp(t->options->overflow, "slide") == 0;
    if (!slide && line->count > (size_t)t->T) {
        print_warning("a line of %zu tokens does not fit the context of %d%s and is left out", line->count, t->T,
                      t->remark.text);
        return 0;
    }
    if (!interactive_ends_line_(t)) { check(tokenizer_encode(t->tokenizer, "\n", 1, &given)); }
    token_list_add(&given, line->ids, line->count);
    int room = t->T - t->cached - (t->cached > 0); // a continued text keeps room for an answer of one token
    int fits = room >= 0 && given.count <= (size_t)room;
    if (!fits && !slide) {
        if (!interactive_is_full_(t)) { interactive_note_(t, "a new text begins"); }
        t->history.count = 0, t->cached = 0, given.count = 0;
        token_list_add(&given, line->ids, line->count);
    }
    token_list_add(&t->history, given.ids, given.count);
    if (!fits && slide) {
        interactive_slide_(t);
    } else if (t->cached == 0) {
        interactive_prefill_(t, (int)given.count);
    } else {
        check(gpt2_decoder_append(t->decoder, 0, given.ids, (int)given.count));
        gpt2_decoder_resume(t->decoder, 0);
        t->cached += (int)given.count;
    }
    token_list_free(&given);
    return 1;
}

// One token more; returns 0 if the answer is complete with it.
static inline int interactive_step_(Interactive* t, TextStream* stream) {
    int token, full = t->cached == t->T;
    check(gpt2_decoder_next(t->decoder, &token));
    token_list_add(&t->history, &token, 1);
    t->cached += !full;
    t->new_tokens++;
    if (generate_ends(t->options, t->tokenizer, token) || generate_push_token(stream, t->tokenizer, token)) {
        return 0;
    }
    if (!full) { return 1; }
    if (strcmp(t->options->overflow, "stop") == 0) { return 0; }
    interactive_slide_(t);
    return 1;
}

// Prints what the model makes of the text so far. Returns 1 if that ends a line.
static inline int interactive_answer(Interactive* t, FILE* out) {
    const Options* o = t->options;
    TextStream stream = text_stream_begin(o->stop.items, o->stop.count, t->terminal);
    double begin = wall_seconds();
    int line_end = 0;
    for (int n = 0, ends = t->cached == 0; !ends; n++) {
        ends = !interactive_step_(t, &stream) || n + 1 == o->tokens || generate_interrupted || ferror(out);
        if (ends) { text_stream_end(&stream); }
        if (stream.out.count > 0) { line_end = stream.out.bytes[stream.out.count - 1] == '\n'; }
        text_write(&stream.out, out);
        fflush(out);
    }
    gpt2_decoder_stop(t->decoder, 0);
    t->seconds += wall_seconds() - begin;
    text_stream_free(&stream);
    return line_end;
}

// Waits for a line, or the end; returns 0 if Ctrl-C comes first. The signal may be another thread's, and interrupt nothing
// here: it is looked for ten times a second.
static inline int interactive_wait_(FILE* in) {
    struct pollfd line = {fileno(in), POLLIN, 0};
    while (!generate_interrupted) {
        if (poll(&line, 1, 100) > 0) { return 1; }
    }
    return 0;
}

// Reads lines and answers them, up to the end of `in`, or up to where nothing can be printed any more.
static inline void interactive_run(Interactive* t, FILE* in, FILE* out) {
    char* line = NULL;
    size_t room = 0;
    int shown = t->terminal && isatty(fileno(in));
    setvbuf(in, NULL, _IONBF, 0); // a line that was read ahead could not be waited for
    for (;;) {
        generate_interrupted = 0; // before the prompt is seen, so that it may be answered with Ctrl-C
        if (shown) { fputs("> ", out), fflush(out); }
        if (!interactive_wait_(in)) { // Ctrl-C before a line
            fputs("\n", out);
            continue;
        }
        ssize_t n = getline(&line, &room, in);
        if (n < 0 && ferror(in)) { fatal("cannot read stdin: %s", strerror(errno)); }
        if (n < 0) { break; }
        TokenList given = {NULL, 0, 0};
        check(tokenizer_encode_prompt(t->tokenizer, line, (size_t)n, &given));
        int goes_on = interactive_give(t, &given);
        token_list_free(&given);
        if (!goes_on) { continue; }
        if (!interactive_answer(t, out)) { fputs("\n", out), fflush(out); }
        if (ferror(out)) { break; }
        if (interactive_is_full_(t)) { interactive_note_(t, "the answer ends, and the next line begins a new text"); }
    }
    if (shown) { fputs("\n", out); }
    free(line);
}

#endif
