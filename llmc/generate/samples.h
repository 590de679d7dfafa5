/*
Samples of prompts: they are distributed over the decoder's slots; where one ends the next begins. They are printed in order, as
text while it is generated, or as a line of JSON each. A sample depends on its prompt, the settings and its number alone: not on
the number of slots, nor on the other samples.
*/
#ifndef LLMC_GENERATE_SAMPLES_H
#define LLMC_GENERATE_SAMPLES_H

#include <signal.h>

#include "flags.h"
#include "llmc/base/json.h"
#include "llmc/model/gpt2_decoder.h"
#include "llmc/text/stream.h"
#include "llmc/text/tokenizer.h"

// ----------------------------------------------------------------------------
// The prompts of a run: --prompt, the lines of --prompt-file, or those of stdin where it is no terminal; as text and as tokens.
// An empty one is <|endoftext|> (a newline, where tokens are bytes): the beginning of any text.

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

// ----------------------------------------------------------------------------
// The samples of a run

// Why a sample ended: it has --tokens tokens, a --stop text came, <|endoftext|> came, the context is full, Ctrl-C came
typedef enum { FINISH_NOT, FINISH_LENGTH, FINISH_STOP, FINISH_END, FINISH_CONTEXT, FINISH_INTERRUPTED } Finish;
static const char* const finish_texts[] = {"", "length", "stop", "end", "context", "interrupted"}; // in JSON

typedef struct {
    Prompt* prompt;
    uint64_t number;   // of this prompt's samples
    TokenList history; // the prompt's tokens, and those generated
    size_t generated;
    int cached; // tokens in the decoder's slot; 0: it must be prefilled
    int slides; // how often the context was full, and the sample went on from its last half
    Finish finish;
    TextStream stream;
    int ends_line;                                    // 1: what was printed last is the end of a line
    double begin_seconds, first_seconds, end_seconds; // of the clock: its prefill, its first token, its last
} Sample;

typedef struct {
    const Options* options;
    Tokenizer* tokenizer;
    GPT2Decoder* decoder;
    FILE* out;
    int B, T;
    const char* remark; // on T, for interactive use
    int terminal;       // 1: out is a terminal
    int failed;         // 1: out cannot be written to
    Sample* samples;    // (num_samples), in the order in which they are printed
    int num_samples, begun, shown;
    int* slots;             // (B) the sample in each; -1: none
    int* tokens;            // (B)
    DecoderPrompt* prompts; // (B)
    // what it took
    size_t prompt_tokens, new_tokens;
    double prefill_seconds, decode_seconds, first_seconds;
} Generation;

static volatile sig_atomic_t generate_interrupted; // Ctrl-C has come

static inline SamplerSettings generate_sampler(const Options* o) {
    SamplerSettings s = {(float)o->temperature, o->top_k, (float)o->top_p, (float)o->repetition_penalty,
                         (uint64_t)o->seed};
    return s;
}

// The tokens that a sequence goes on from which is longer than its context: its last half.
static inline int generate_kept(int T) { return T > 1 ? T / 2 : 1; }

// ----------------------------------------------------------------------------
// A sample

static inline void sample_begin(Generation* g, Sample* s) {
    const Options* o = g->options;
    s->stream = text_stream_begin(o->stop.items, o->stop.count, g->terminal);
    if (o->echo && !o->json) { text_stream_show(&s->stream, s->prompt->text, s->prompt->bytes); }
    token_list_add(&s->history, s->prompt->tokens.ids, s->prompt->tokens.count);
}

// Appends a token's text, or its number without a tokenizer, to its stream; returns 1 if a stop text is complete.
static inline int generate_push_token(TextStream* stream, const Tokenizer* tokenizer, int token) {
    size_t bytes;
    char number[16];
    const unsigned char* text = tokenizer_decode(tokenizer, token, &bytes);
    if (tokenizer->ready) { return text_stream_push(stream, text, bytes); } // a token beyond its last has no text
    int n = snprintf(number, sizeof(number), "%d ", token);
    return text_stream_push(stream, number, (size_t)n);
}

// 1 if this token ends a text. Bytes have none that does.
static inline int generate_ends(const Options* o, const Tokenizer* tokenizer, int token) {
    return !o->ignore_end && tokenizer->vocab_size != BYTE_VOCAB_SIZE && token == tokenizer->eot_token;
}

// The next token of a sample, which may be its last.
static inline void sample_take(Generation* g, Sample* s, int token) {
    const Options* o = g->options;
    int full = s->cached == g->T; // then the decoder has not appended it
    s->end_seconds = wall_seconds();
    if (s->generated++ == 0) { s->first_seconds = s->end_seconds; }
    token_list_add(&s->history, &token, 1);
    s->cached += !full;
    if (generate_ends(o, g->tokenizer, token)) {
        s->finish = FINISH_END;
    } else if (generate_push_token(&s->stream, g->tokenizer, token)) {
        s->finish = FINISH_STOP;
    } else if (s->generated == (size_t)o->tokens) {
        s->finish = FINISH_LENGTH;
    } else if (full && strcmp(o->overflow, "stop") == 0) {
        s->finish = FINISH_CONTEXT;
    } else if (full) {
        s->cached = 0;
        s->slides++;
    }
    if (s->finish != FINISH_NOT) { text_stream_end(&s->stream); }
}

static inline void sample_free(Sample* s) {
    token_list_free(&s->history);
    text_stream_free(&s->stream);
}

// ----------------------------------------------------------------------------
// Printing

static inline void sample_print_json_(const Generation* g, const Sample* s) {
    FILE* out = g->out;
    TextStream prompt = text_stream_begin(NULL, 0, 0);
    text_stream_show(&prompt, s->prompt->text, s->prompt->bytes);
    text_stream_end(&prompt);
    fprintf(out, "{\"prompt\": ");
    json_write_text(out, (const char*)prompt.out.bytes, prompt.out.count);
    fprintf(out, ", \"sample\": %llu, \"text\": ", (unsigned long long)s->number);
    json_write_text(out, (const char*)s->stream.out.bytes, s->stream.out.count);
    fprintf(out, ", \"tokens\": [");
    const int* tokens = s->history.ids + s->history.count - s->generated;
    for (size_t i = 0; i < s->generated; i++) { fprintf(out, "%s%d", i > 0 ? ", " : "", tokens[i]); }
    fprintf(out, "], \"prompt_tokens\": %zu, \"finish\": \"%s\", \"slides\": %d", s->prompt->tokens.count,
            finish_texts[s->finish], s->slides);
    double first = s->generated > 0 ? s->first_seconds - s->begin_seconds : 0.0;
    double all = s->generated > 0 ? s->end_seconds - s->begin_seconds : 0.0;
    fprintf(out, ", \"first_token_seconds\": %.6f, \"seconds\": %.6f}\n", first, all);
    text_stream_free(&prompt);
}

// Prints what its stream has.
static inline void sample_print_text_(Generation* g, Sample* s) {
    TextBuffer* text = &s->stream.out;
    if (text->count > 0) { s->ends_line = text->bytes[text->count - 1] == '\n'; }
    text_write(text, g->out);
}

// Prints the next sample as far as it is generated, and the complete ones that follow it.
static inline void generation_print_(Generation* g) {
    while (g->shown < g->begun) {
        Sample* s = &g->samples[g->shown];
        if (!g->options->json) { sample_print_text_(g, s); }
        if (s->finish == FINISH_NOT) { break; }
        if (g->options->json) {
            sample_print_json_(g, s);
        } else {
            fprintf(g->out, "%s%s", s->ends_line ? "" : "\n", g->shown + 1 < g->num_samples ? "---\n" : "");
        }
        sample_free(s);
        g->shown++;
    }
    g->failed = fflush(g->out) != 0;
}

// ----------------------------------------------------------------------------
// All of them

// Samples 0 .. num_samples-1 of each prompt, in the prompts' order
static inline Generation generation_create(const Options* o, Tokenizer* tokenizer, Prompts* prompts,
                                           GPT2Decoder* decoder, int B, int T, FILE* out) {
    Generation g;
    size_t each = (size_t)o->num_samples, all = size_mul((size_t)prompts->count, each);
    if (all > (size_t)1 << 24) {
        fatal("%d prompts with %d samples each: the limit is 16,777,216 samples", prompts->count, o->num_samples);
    }
    memset(&g, 0, sizeof(g));
    g.options = o, g.tokenizer = tokenizer, g.decoder = decoder, g.B = B, g.T = T;
    g.out = out, g.terminal = isatty(fileno(out));
    g.slots = (int*)malloc_check((size_t)B * sizeof(int));
    g.tokens = (int*)malloc_check((size_t)B * sizeof(int));
    g.prompts = (DecoderPrompt*)malloc_check((size_t)B * sizeof(DecoderPrompt));
    for (int i = 0; i < B; i++) { g.slots[i] = -1; }
    g.num_samples = (int)all;
    g.samples = (Sample*)calloc_check(all, sizeof(Sample));
    for (size_t i = 0; i < all; i++) {
        g.samples[i].prompt = &prompts->items[i / each];
        g.samples[i].number = i % each;
    }
    return g;
}

static inline void generation_free(Generation* g) {
    for (int i = g->shown; i < g->num_samples; i++) { sample_free(&g->samples[i]); }
    free(g->samples);
    free(g->slots);
    free(g->tokens);
    free(g->prompts);
}

// Assigns free slots to waiting samples, and prefills these and sliding ones in one batch. Returns the number of active
// sequences.
static inline int generation_fill_(Generation* g) {
    int num_prompts = 0, active = 0;
    double begin = wall_seconds();
    for (int slot = 0; slot < g->B; slot++) {
        if (g->slots[slot] < 0 && g->begun < g->num_samples) {
            g->slots[slot] = g->begun++;
            sample_begin(g, &g->samples[g->slots[slot]]);
        }
        if (g->slots[slot] < 0) { continue; }
        Sample* s = &g->samples[g->slots[slot]];
        active++;
        if (s->cached > 0) { continue; }
        int all = (int)s->history.count, kept = all > g->T ? generate_kept(g->T) : all;
        if (s->generated == 0) { s->begin_seconds = begin; }
        const TokenList* prompt = &s->prompt->tokens;
        uint64_t id = sampler_sample_id(prompt->ids, prompt->count, s->number, (uint64_t)s->slides);
        const int* last = s->history.ids + all - kept;
        DecoderPrompt begun = {slot, last, kept, generate_sampler(g->options), id};
        g->prompts[num_prompts++] = begun;
        g->prompt_tokens += (size_t)kept;
        s->cached = kept;
    }
    if (num_prompts == 0) { return active; }
    check(gpt2_decoder_prefill(g->decoder, g->prompts, num_prompts));
    g->prefill_seconds += wall_seconds() - begin;
    return active;
}

// A token for every sequence under way.
static inline void generation_step_(Generation* g) {
    double begin = wall_seconds();
    check(gpt2_decoder_next(g->decoder, g->tokens));
    for (int slot = 0; slot < g->B; slot++) {
        if (g->slots[slot] < 0) { continue; }
        Sample* s = &g->samples[g->slots[slot]];
        sample_take(g, s, g->tokens[slot]);
        g->new_tokens++;
        if (s->finish == FINISH_NOT) { continue; }
        gpt2_decoder_stop(g->decoder, slot);
        g->slots[slot] = -1;
    }
    double end = wall_seconds();
    if (g->first_seconds == 0.0) { g->first_seconds = g->prefill_seconds + end - begin; }
    g->decode_seconds += end - begin;
}

// After Ctrl-C: samples in progress end with the text so far; samples that had not begun are dropped.
static inline void generation_interrupt_(Generation* g) {
    for (int i = g->shown; i < g->begun; i++) {
        if (g->samples[i].finish != FINISH_NOT) { continue; }
        g->samples[i].finish = FINISH_INTERRUPTED;
        text_stream_end(&g->samples[i].stream);
    }
    g->num_samples = g->begun;
    generation_print_(g);
}

// Generates and prints all samples, until Ctrl-C or an error of stdout.
static inline void generation_run(Generation* g) {
    while (!generate_interrupted && !g->failed && generation_fill_(g) > 0) {
        generation_print_(g);
        generation_step_(g);
        generation_print_(g);
    }
    if (generate_interrupted) { generation_interrupt_(g); }
}

#endif
