/*
The program generate_gpt2, on the CPU or on the GPU: from weights and a prompt to text. It is built on gpt2_model.h and
gpt2_decoder.h, which generate_gpt2.c or generate_gpt2.cu define. generate_main, at the end, selects the mode:

    samples of prompts        generate/samples.h
    --interactive             generate/interactive.h
    --perplexity, --hellaswag generate/score.h
    --export                  export_weights.h

Text goes to stdout, everything else to stderr.
*/
#ifndef LLMC_GENERATE_GENERATE_H
#define LLMC_GENERATE_GENERATE_H

#include "interactive.h"
#include "model.h"
#include "samples.h"
#include "score.h"
#include "llmc/base/host.h"
#include "llmc/base/process_start.h"
#include "llmc/base/signals.h"
#include "llmc/files/export_weights.h"

enum { EXIT_INTERRUPTED = 128 + SIGINT };

// ----------------------------------------------------------------------------
// Checks

// Notes flags of samples that are given where there are none. --context and -b are for scores, too.
static inline void generate_note_unused_(const Options* o, const char* mode) {
    for (int i = CLI_INDEX_tokens; i <= CLI_INDEX_echo; i++) {
        const CliFlag* f = &cli_flags[i];
        char value[64];
        int of_scores = i == CLI_INDEX_context || i == CLI_INDEX_batch;
        if (!o->typed[i] || (of_scores && o->export_to == NULL)) { continue; }
        print_note("%s %s has no effect with %s", f->short_name ? f->short_name : f->long_name, cli_value(o, f, value),
                   mode);
    }
}

// Flags that need another one, or that exclude each other
static inline void generate_check_modes_(const Options* o) {
    const char* modes[] = {o->interactive ? "--interactive" : NULL, o->perplexity ? "--perplexity" : NULL,
                           o->hellaswag ? "--hellaswag" : NULL, o->export_to ? "--export" : NULL};
    const char* mode = NULL;
    for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
        if (mode != NULL && modes[i] != NULL) { fatal("%s and %s: choose one of them", mode, modes[i]); }
        mode = modes[i] != NULL ? modes[i] : mode;
    }
    if (mode != NULL && o->prompt_file != NULL) { fatal("--prompt-file and %s: leave one of them out", mode); }
    if (mode != NULL && o->prompt.count > 0) { fatal("--prompt and %s: leave one of them out", mode); }
    if (o->interactive && o->json) { fatal("--json and --interactive: leave one of them out"); }
    if (o->interactive && o->num_samples > 1) { fatal("--num-samples and --interactive: leave one of them out"); }
    if (o->stride > 0 && o->perplexity == NULL) { fatal("--stride %d: it is for --perplexity", o->stride); }
    if (strcmp(o->export_dtype, "auto") != 0 && o->export_to == NULL) {
        fatal("--export-dtype %s: it is for --export", o->export_dtype);
    }
    if (mode != NULL && !o->interactive) { generate_note_unused_(o, mode); }
}

static inline void generate_check_options(const Options* o) {
    generate_check_modes_(o);
    cli_check_file("--tokenizer", o->tokenizer, "; python3 dev/data/tokenizer.py writes GPT-2's");
    cli_check_file("--prompt-file", o->prompt_file, "");
    cli_check_file("--perplexity", o->perplexity, "");
    cli_check_file("--hellaswag", o->hellaswag, "; python3 dev/data/hellaswag.py writes it");
    for (int i = 0; i < o->stop.count; i++) {
        if (o->stop.items[i][0] == '\0') { fatal("--stop '': every text ends with it at once; leave it out"); }
    }
    if (o->num_samples > 1 && o->temperature == 0.0) {
        print_warning("--num-samples %d: with --temperature 0 all samples of a prompt are the same", o->num_samples);
    }
}

// ----------------------------------------------------------------------------
// Samples

// 1 if there is text to turn into tokens.
static inline int generate_encodes(const Options* o, const Prompts* prompts) {
    int encodes = o->interactive || (o->perplexity != NULL && !ends_with(o->perplexity, ".bin"));
    for (int i = 0; i < prompts->count; i++) { encodes = encodes || prompts->items[i].bytes > 0; }
    return encodes;
}

// T: tokens that a slot must hold, at most --context. The last token of a sample is never in it.
static inline int generate_length(const GenerateModel* m, const Prompts* prompts) {
    const Options* o = m->options;
    int most = m->context;
    size_t longest = 0;
    for (int i = 0; i < prompts->count; i++) {
        size_t n = prompts->items[i].tokens.count;
        if (n > (size_t)most && strcmp(o->overflow, "stop") == 0) {
            char name[1200];
            int line = i + 1 - o->prompt.count; // of --prompt-file, whose prompts follow those of --prompt
            snprintf(name, sizeof(name), "prompt %d", i + 1);
            if (o->prompt_file != NULL && line > 0) { snprintf(name, sizeof(name), "%s:%d", o->prompt_file, line); }
            fatal("%s has %zu tokens, the context is %d%s; shorten it, or --overflow slide keeps its last %d", name, n,
                  most, m->remark, generate_kept(most));
        }
        longest = n > longest ? n : longest;
    }
    size_t all = longest + (size_t)o->tokens - 1;
    return all < (size_t)most ? (int)all : most;
}

// Prints how many samples filled the context, if any did, and whether they ended or continued.
static inline void generate_report_context_(const GenerateModel* m, const Generation* g) {
    int ended = 0, slid = 0;
    for (int i = 0; i < g->num_samples; i++) {
        ended += g->samples[i].finish == FINISH_CONTEXT;
        slid += g->samples[i].slides > 0;
    }
    if (ended + slid == 0) { return; }
    fprintf(stderr, "context      full at %d tokens%s: %d of %d samples %s\n", g->T, m->remark, ended + slid,
            g->num_samples,
            slid > 0 ? "continued from their last half" : "ended there; --overflow slide lets them continue");
}

static inline void generate_report_(const GenerateModel* m, const Generation* g, const GPT2Plan* plan) {
    const double mib = 1 << 20;
    double first = g->first_seconds, rate = g->decode_seconds > 0.0 ? (double)g->new_tokens / g->decode_seconds : 0.0;
    fprintf(stderr, "\nprompts      %zu tokens in %.3f s, %.0f tokens/s\n", g->prompt_tokens, g->prefill_seconds,
            g->prefill_seconds > 0.0 ? (double)g->prompt_tokens / g->prefill_seconds : 0.0);
    fprintf(stderr, "first token  after %.1f ms\n", 1e3 * first);
    fprintf(stderr, "new tokens   %zu in %.3f s, %.1f tokens/s, %d sequence%s at a time\n", g->new_tokens,
            g->decode_seconds, rate, g->B, g->B == 1 ? "" : "s");
    generate_report_context_(m, g);
    fprintf(
        stderr,
        "memory       model %.1f MiB, KV cache %.1f MiB for %d x %d tokens, decoder %.1f MiB, host %.1f MiB at most\n",
        (double)gpt2_info(m->model)->memory_bytes / mib, (double)plan->rows[PLAN_KV_CACHE].bytes / mib, g->B, g->T,
        (double)(plan->rows[PLAN_DECODER].bytes + plan->rows[PLAN_HOST_DECODER].bytes) / mib,
        (double)host_memory_peak() / mib);
    fprintf(stderr, "loading      %.2f s\n", m->load_seconds);
}

static inline void generate_samples(GenerateModel* m, Prompts* prompts) {
    const Options* o = m->options;
    int T = generate_length(m, prompts), most = CLI_TRAINER == (int)FOR_GPU ? 64 : 16;
    size_t all = size_mul((size_t)prompts->count, (size_t)o->num_samples);
    int B = generate_batch(m, all, most, T, 0);
    GPT2Decoder* decoder;
    GPT2Plan plan = generate_plan(m, B, T, 0);
    check(gpt2_decoder_create(&decoder, m->model, B, T));
    Generation g = generation_create(o, &m->tokenizer, prompts, decoder, B, T, stdout);
    generation_run(&g);
    if (!o->quiet) { generate_report_(m, &g, &plan); }
    generation_free(&g);
    gpt2_decoder_free(decoder);
}

static inline void generate_interactive(GenerateModel* m) {
    Prompt nothing = {NULL, 0, {NULL, 0, 0}};
    Prompts text = {&nothing, 1};
    GPT2Decoder* decoder;
    check(tokenizer_prepare_encode(&m->tokenizer));
    check(gpt2_decoder_create(&decoder, m->model, 1, m->context));
    Generation g = generation_create(m->options, &m->tokenizer, &text, decoder, 1, m->context, stdout);
    g.remark = m->remark;
    interactive_run(&g, stdin);
    if (!m->options->quiet && g.decode_seconds > 0.0) {
        fprintf(stderr, "%zu new tokens, %.1f tokens/s\n", g.new_tokens, (double)g.new_tokens / g.decode_seconds);
    }
    generation_free(&g);
    gpt2_decoder_free(decoder);
}

static inline void generate_export(const GenerateModel* m) {
    const Options* o = m->options;
    int is_file = export_is_one_file(o->export_to), has_tokenizer = m->tokenizer.ready;
    if (!is_file && !has_tokenizer) {
        print_warning(
            "--export %s: no tokenizer for the model's %d tokens, so the folder has none; --tokenizer names one, "
            "and python3 dev/data/tokenizer.py writes GPT-2's",
            o->export_to, m->config.vocab_size);
    }
    check(export_weights(o->export_to, m->params, m->config, o->export_dtype, &m->tokenizer));
    if (o->quiet) { return; }
    fprintf(stderr, "wrote %s%s%s\n", o->export_to, is_file ? "" : ": model.safetensors, config.json",
            has_tokenizer ? ", tokenizer" : "");
}

// ----------------------------------------------------------------------------
// The program

// The first Ctrl-C asks for the end, a second one ends the program.
static inline void generate_on_interrupt_(int number) {
    if (generate_interrupted) { signal(number, SIG_DFL), raise(number); }
    generate_interrupted = 1;
}

static inline void generate_install_interrupt_(void) {
    struct sigaction action, before;
    memset(&action, 0, sizeof(action));
    action.sa_handler = generate_on_interrupt_;
    action.sa_flags = SA_RESTART; // restart a blocked write: stdio would lose its data
    if (sigaction(SIGINT, NULL, &before) == 0 && before.sa_handler == SIG_IGN) { return; } // a job in the background
    sigaction(SIGINT, &action, NULL);
}

static inline int generate_main(int argc, char** argv) {
    static Options options;
    GenerateModel m;
    Prompts prompts = {NULL, 0};
    process_start(argv);
    signals_install_quit();
    options = cli_parse(argc, argv);
    generate_check_options(&options);
    if (options.export_to != NULL) { check(export_check(options.export_to)); }
    int samples = !options.interactive && !options.perplexity && !options.hellaswag && !options.export_to;
    if (samples) { prompts = prompts_read(&options); }
    generate_model_read(&m, &options, generate_encodes(&options, &prompts));
    generate_set_context(&m);
    if (samples) {
        prompts_encode(&prompts, &m.tokenizer);
        generate_length(&m, &prompts);
    }
    if (options.export_to == NULL) { generate_model_build(&m); }
    if (samples || options.interactive) { generate_install_interrupt_(); }
    if (options.export_to != NULL) {
        generate_export(&m);
    } else if (options.perplexity != NULL) {
        generate_perplexity(&m);
    } else if (options.hellaswag != NULL) {
        generate_hellaswag(&m);
    } else if (options.interactive) {
        generate_interactive(&m);
    } else {
        generate_samples(&m, &prompts);
    }
    prompts_free(&prompts);
    generate_model_free(&m);
    if (fflush(stdout) != 0 || ferror(stdout)) { fatal("cannot write to stdout: %s", strerror(errno)); }
    return generate_interrupted && samples ? EXIT_INTERRUPTED : EXIT_SUCCESS;
}

#endif
