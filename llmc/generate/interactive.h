/*
--interactive: lines from stdin, each of which the model continues. All is one text: a line with its newline, then the model's
answer, including a stop text, then the next line. When the context is full, it continues from its last half, with a note; an
answer does so with --overflow slide, and ends there with stop. Ctrl-C stops an answer; before a line it ends the program, as
Ctrl-D does.
*/
#ifndef LLMC_GENERATE_INTERACTIVE_H
#define LLMC_GENERATE_INTERACTIVE_H

#include "samples.h"

static inline void interactive_note_(const Generation* g, const char* what) {
    if (g->options->quiet) { return; }
    fprintf(stderr, "[the context of %d tokens%s is full: %s]\n", g->T, g->remark, what);
}

// 1 if the text so far, also what the screen does not show of it, is whole lines.
static inline int interactive_ends_line_(const Generation* g) {
    const TokenList* history = &g->samples[0].history;
    size_t n = 0;
    if (history->count == 0) { return 1; }
    const unsigned char* text = tokenizer_decode(g->tokenizer, history->ids[history->count - 1], &n);
    return n > 0 && text[n - 1] == '\n';
}

// Appends a line to the text, as a line of its own, as on the screen. A text that leaves no room for an answer is cut.
static inline void interactive_give(Generation* g, const TokenList* line) {
    TokenList* text = &g->samples[0].history;
    size_t kept = (size_t)generate_kept(g->T);
    if (!interactive_ends_line_(g)) { check(tokenizer_encode(g->tokenizer, "\n", 1, text)); }
    token_list_add(text, line->ids, line->count);
    g->samples[0].cached = 0;
    if (text->count < (size_t)g->T) { return; }
    interactive_note_(g, "continuing from its last half");
    memmove(text->ids, text->ids + text->count - kept, kept * sizeof(int));
    text->count = kept;
    g->samples[0].slides++; // for other coins
}

// Prints what the model makes of the text so far, and ends the line.
static inline void interactive_answer(Generation* g) {
    Sample* s = &g->samples[0];
    s->stream = text_stream_begin(g->options->stop.items, g->options->stop.count, g->terminal);
    s->generated = 0, s->finish = FINISH_NOT, s->ends_line = 0;
    g->slots[0] = 0;
    while (s->finish == FINISH_NOT) {
        if (s->generated > 0 && s->cached == 0) { interactive_note_(g, "continuing from its last half"); }
        generation_fill_(g);
        generation_step_(g);
        if (generate_interrupted || ferror(g->out)) {
            s->finish = FINISH_INTERRUPTED;
            text_stream_end(&s->stream);
        }
        sample_print_text_(g, s);
        fflush(g->out);
    }
    if (!s->ends_line) { fputs("\n", g->out), fflush(g->out); }
    gpt2_decoder_stop(g->decoder, 0);
    text_stream_free(&s->stream);
}

// Reads lines and answers them, up to the end of `in`, or up to where nothing can be printed any more. All is the one sample of
// g, whose prompt is empty.
static inline void interactive_run(Generation* g, FILE* in) {
    char* line = NULL;
    size_t room = 0;
    int shown = g->terminal && isatty(fileno(in));
    g->begun = 1;
    for (;;) {
        generate_interrupted = 1; // before a line, another one ends the program
        if (shown) { fputs("> ", g->out), fflush(g->out); }
        ssize_t n = getline(&line, &room, in);
        if (n < 0 && ferror(in)) { fatal("cannot read stdin: %s", strerror(errno)); }
        if (n < 0) { break; }
        generate_interrupted = 0;
        TokenList given = {NULL, 0, 0};
        check(tokenizer_encode_prompt(g->tokenizer, line, (size_t)n, &given));
        interactive_give(g, &given);
        token_list_free(&given);
        interactive_answer(g);
        if (ferror(g->out)) { break; }
        if (g->samples[0].finish == FINISH_CONTEXT) { interactive_note_(g, "the answer ends"); }
    }
    if (shown) { fputs("\n", g->out); }
    free(line);
}

#endif
