// The program generate_gpt2 (llmc/generate*.h) on a decoder without a model: prompts, slots that are refilled, how samples end,
// what is printed, interactive use, the windows of --perplexity.
#include "llmc/generate/generate.h"

#include "decoder_stub.h"
#include "dev/test/fixtures/unit.h"

enum { MAX_WORDS = 32 };

static Options parse(int n, const char** words) {
    char* argv[MAX_WORDS + 2] = {(char*)(uintptr_t)CLI_PROGRAM};
    for (int i = 0; i < n; i++) { argv[i + 1] = (char*)(uintptr_t)words[i]; }
    return cli_parse(n + 1, argv);
}
#define PARSE(...) parse((int)(sizeof((const char*[]){__VA_ARGS__}) / sizeof(char*)), (const char*[]){__VA_ARGS__})

static char output[1 << 16]; // of the last run

static void read_output(FILE* file) {
    rewind(file);
    size_t n = fread(output, 1, sizeof(output) - 1, file);
    output[n] = '\0';
    fclose(file);
}

typedef struct {
    int B, T;
    int (*script)(int first, int length);
    int forgets; // as the decoder's
    Tokenizer* tokenizer;
    int prefilled, longest_prompt; // what the decoder was asked for
} Setup;

// Generates all samples of the prompts of these options in B slots of T tokens.
static void run(Setup* setup, Options o) {
    Tokenizer bytes;
    tokenizer_load(&bytes, "", BYTE_VOCAB_SIZE);
    Tokenizer* tokenizer = setup->tokenizer ? setup->tokenizer : &bytes;
    Prompts prompts = prompts_read(&o);
    prompts_encode(&prompts, tokenizer);
    GPT2Decoder* decoder = stub_create(setup->B, setup->T, tokenizer->vocab_size);
    decoder->script = setup->script, decoder->forgets = setup->forgets;
    FILE* out = tmpfile();
    Generation g = generation_create(&o, tokenizer, &prompts, decoder, setup->B, setup->T, out);
    generate_interrupted = 0;
    generation_run(&g);
    setup->prefilled = decoder->prefilled, setup->longest_prompt = decoder->longest_prompt;
    generation_free(&g);
    gpt2_decoder_free(decoder);
    prompts_free(&prompts);
    tokenizer_free(&bytes);
    free((void*)(uintptr_t)o.prompt.items);
    free((void*)(uintptr_t)o.stop.items);
    read_output(out);
}

static int count(const char* text, const char* what) {
    int n = 0;
    for (const char* c = text; (c = strstr(c, what)) != NULL; c++) { n++; }
    return n;
}

// ----------------------------------------------------------------------------
// Slots

// The lines of JSON without their times
static char* untimed(void) {
    char *copy = (char*)malloc_check(strlen(output) + 1), *to = copy;
    for (char* line = strtok(output, "\n"); line != NULL; line = strtok(NULL, "\n")) {
        size_t n = (size_t)(strstr(line, ", \"first_token_seconds\"") - line);
        memcpy(to, line, n);
        to[n] = '\n', to += n + 1;
    }
    *to = '\0';
    return copy;
}

static void samples_do_not_depend_on_the_slots(void) {
    for (int slide = 0; slide < 2; slide++) {
        char* first = NULL;
        for (int B = 1; B <= 9; B++) {
            Setup setup = {.B = B, .T = 24};
            run(&setup, PARSE("-p", "ab", "-p", "a longer prompt", "-p", "", "-p", "ab", "-n", "40", "--num-samples",
                              "3", "--json", "--stop", "e", "--stop", "i", "--stop", "o", "--stop", "\x81z",
                              "--overflow", slide ? "slide" : "stop"));
            char* lines = untimed();
            if (first == NULL) { first = strdup(lines); }
            CHECK(strcmp(lines, first) == 0 && count(lines, "\n") == 12);
            CHECK(setup.prefilled >= 12 && setup.longest_prompt <= 24);
            free(lines);
        }
        CHECK(count(first, "\"finish\": \"stop\"") > 0);
        CHECK(count(first, slide ? "\"finish\": \"length\"" : "\"finish\": \"context\"") > 0);
        free(first);
    }
}

// The tokens of a line of JSON
static void copy_tokens(char tokens[512], const char* line) {
    snprintf(tokens, 512, "%.*s", (int)strcspn(strstr(line, "\"tokens\""), "]"), strstr(line, "\"tokens\""));
}

// The prompt, the seed and the sample's number decide, not what else is in the run.
static void a_sample_is_its_prompt_s_seed_s_and_number_s(void) {
    Setup setup = {.B = 3, .T = 64};
    char all[9][512], tokens[512];
    run(&setup, PARSE("-p", "same", "-p", "other", "-p", "same", "-n", "20", "--json", "--num-samples", "3", "-q"));
    const char* line = output;
    for (int i = 0; i < 9; i++, line = strchr(line, '\n') + 1) {
        char number[16];
        snprintf(number, sizeof(number), "\"sample\": %d", i % 3);
        CHECK(strstr(line, number) != NULL && strstr(line, number) < strchr(line, '\n'));
        copy_tokens(all[i], line);
        for (int k = 0; k < i; k++) { CHECK((strcmp(all[i], all[k]) == 0) == (k == i - 6)); } // the same prompt again
    }
    run(&setup, PARSE("-p", "other", "-n", "20", "--json"));
    copy_tokens(tokens, output);
    CHECK(strcmp(tokens, all[3]) == 0);
    for (int seed = 0; seed < 2; seed++) {
        run(&setup, PARSE("-p", "same", "-n", "20", "--json", "--seed", seed == 0 ? "1337" : "5"));
        copy_tokens(tokens, output);
        CHECK((strcmp(tokens, all[0]) == 0) == (seed == 0));
    }
}

// Prompts of one length draw different random numbers at the same positions: also where the model says the same after each.
static void prompts_have_random_numbers_of_their_own(void) {
    Setup setup = {.B = 2, .T = 64, .forgets = 1};
    char tokens[2][512];
    run(&setup, PARSE("-p", "ab", "-p", "ba", "-n", "20", "--json"));
    copy_tokens(tokens[0], output);
    copy_tokens(tokens[1], strchr(output, '\n') + 1);
    CHECK(strcmp(tokens[0], tokens[1]) != 0);
}

// ----------------------------------------------------------------------------
// How samples end

// 'a', 'b', 'c' ... by the length of what the model sees
static int alphabet(int first, int length) {
    (void)first;
    return 'a' + length % 26;
}

// The letter that follows the text, if it is the alphabet from its first token on
static int alphabet_from_first(int first, int length) { return first + length; }

static void samples_end_where_they_should(void) {
    Setup setup = {.B = 2, .T = 10, .script = alphabet};
    run(&setup, PARSE("-p", "abc", "-n", "4"));
    CHECK(strcmp(output, "abcdefg\n") == 0);
    run(&setup, PARSE("-p", "abc", "-n", "4", "--echo", "0", "--num-samples", "2"));
    CHECK(strcmp(output, "defg\n---\ndefg\n") == 0);
    run(&setup, PARSE("-p", "abc", "-n", "7", "--stop", "fgh")); // over three tokens
    CHECK(strcmp(output, "abcde\n") == 0);
    run(&setup, PARSE("-p", "abc", "-n", "5", "--stop", "hij")); // begun, and never complete
    CHECK(strcmp(output, "abcdefgh\n") == 0);
    run(&setup, PARSE("-p", "abc", "-n", "5", "--stop", "bcd")); // what the prompt has begun does not count
    CHECK(strcmp(output, "abcdefgh\n") == 0);
    // 10 tokens fit the context; one more comes from its last logits
    run(&setup, PARSE("-p", "abc", "-n", "100", "--json"));
    CHECK(strstr(output, "\"text\": \"defghijk\"") && strstr(output, "\"finish\": \"context\", \"slides\": 0"));
    // then the last half, 5 tokens, goes on: the script tells a length of 5 again
    run(&setup, PARSE("-p", "abc", "-n", "16", "--json", "--overflow", "slide"));
    CHECK(strstr(output, "\"text\": \"defghijkfghijkfg\"") && strstr(output, "\"slides\": 2"));
    CHECK(setup.prefilled == 3);
    run(&setup,
        PARSE("-p", "abcdefghijkl", "-n", "3", "--json", "--overflow", "slide")); // so does a prompt that is too long
    CHECK(strstr(output, "\"text\": \"fgh\"") && setup.longest_prompt == 5);
    setup.script = alphabet_from_first; // it is the last half, not the first
    run(&setup, PARSE("-p", "abc", "-n", "16", "--json", "--overflow", "slide"));
    CHECK(strstr(output, "\"text\": \"defghijklmnopqrs\""));
}

// Newline after newline: the printed text has no other
static int newlines(int first, int length) {
    (void)first, (void)length;
    return '\n';
}

static void plain_text_has_one_end_of_line(void) {
    Setup setup = {.B = 1, .T = 10, .script = newlines};
    run(&setup, PARSE("-p", "x", "-n", "2"));
    CHECK(strcmp(output, "x\n\n") == 0);
}

// Euro signs, a byte a token
static int euros(int first, int length) {
    (void)first;
    return (unsigned char)"\xe2\x82\xac"[(length + 2) % 3];
}

static void text_is_utf8_in_text_and_in_json(void) {
    Setup setup = {.B = 1, .T = 20, .script = euros};
    run(&setup, PARSE("-p", "x", "-n", "5"));
    CHECK(strcmp(output, "x\xe2\x82\xac\xef\xbf\xbd\n") == 0);
    run(&setup, PARSE("-p", "x", "-n", "5", "--json"));
    CHECK(strstr(output, "\"text\": \"\xe2\x82\xac\xef\xbf\xbd\", \"tokens\": [226, 130, 172, 226, 130]") != NULL);
    run(&setup, PARSE("-p", "xx\xe2", "-n", "2")); // a character that the prompt has begun
    CHECK(strncmp(output, "xx\xe2\xef", 3) != 0);
}

// Token 299, <|endoftext|>, after two others
static int ends_soon(int first, int length) { return length < 3 ? first : 299; }

static void end_of_text_ends_a_sample(void) {
    Tokenizer numbers;
    memset(&numbers, 0, sizeof(numbers));
    numbers.vocab_size = 300, numbers.eot_token = 299; // without texts
    Setup setup = {.B = 1, .T = 20, .script = ends_soon, .tokenizer = &numbers};
    run(&setup, PARSE("-p", "", "-n", "10", "--json"));
    CHECK(strstr(output, "\"text\": \"\"") && strstr(output, "\"tokens\": [299]") &&
          strstr(output, "\"finish\": \"end\""));
    run(&setup, PARSE("-p", "", "-n", "4", "--ignore-end"));
    CHECK(strcmp(output, "299 299 299 299 \n") == 0);
}

// A padded vocabulary has tokens behind the tokenizer's last
static int beyond(int first, int length) { return length % 2 == 0 ? 259 : first; }

static void tokens_beyond_the_tokenizer_have_no_text(void) {
    Tokenizer padded;
    tokenizer_load(&padded, "", BYTE_VOCAB_SIZE);
    padded.offsets = (size_t*)realloc(padded.offsets, 261 * sizeof(size_t));
    for (int i = 256; i <= 260; i++) { padded.offsets[i] = 256; }
    padded.vocab_size = 260, padded.eot_token = 'x';
    Setup setup = {.B = 1, .T = 20, .script = beyond, .tokenizer = &padded};
    run(&setup, PARSE("-p", "", "-n", "4", "--ignore-end", "--json"));
    CHECK(strstr(output, "\"text\": \"xx\"") && strstr(output, "\"tokens\": [120, 259, 120, 259]"));
    padded.vocab_size = BYTE_VOCAB_SIZE;
    tokenizer_free(&padded);
}

static int interrupts(int first, int length) {
    generate_interrupted = length == 6;
    return first;
}

static void an_interrupted_run_prints_what_there_is(void) {
    Setup setup = {.B = 1, .T = 20, .script = interrupts};
    run(&setup, PARSE("-p", "a", "-p", "b", "-n", "10", "--json"));
    CHECK(count(output, "\n") == 1 && strstr(output, "\"text\": \"aaaaaa\"") && strstr(output, "\"interrupted\""));
    setup.B = 2;
    run(&setup, PARSE("-p", "a", "-p", "b", "-n", "10"));
    CHECK(strcmp(output, "aaaaaaa\n---\nbbbbbbb\n") == 0);
    generate_interrupted = 0;
}

// ----------------------------------------------------------------------------
// Prompts

static Prompts prompts_of(const char* text, size_t bytes) {
    const char* path = unit_path("prompts");
    unit_write(path, text, bytes);
    Options o = PARSE("--prompt-file", path);
    return prompts_read(&o);
}

static void prompts_are_lines(void) {
    static const char text[] = "one\r\n\ntwo \0 three\nlast";
    Prompts p = prompts_of(text, sizeof(text) - 1);
    Tokenizer bytes;
    tokenizer_load(&bytes, "", BYTE_VOCAB_SIZE);
    prompts_encode(&p, &bytes);
    CHECK(p.count == 4);
    CHECK(strcmp(p.items[0].text, "one") == 0 && p.items[1].bytes == 0 && p.items[2].bytes == 11);
    CHECK(strcmp(p.items[3].text, "last") == 0 && p.items[3].tokens.count == 4 && p.items[3].tokens.ids[0] == 'l');
    CHECK(p.items[1].tokens.count == 1 && p.items[1].tokens.ids[0] == bytes.eot_token); // the beginning of a text
    prompts_free(&p);
    p = prompts_of("a\n", 2);
    CHECK(p.count == 1);
    prompts_free(&p);
    tokenizer_free(&bytes);
    p = prompts_of("\xef\xbb\xbf"
                   "a\n\xef\xbb\xbf"
                   "b\n",
                   10); // a byte order mark is no part of the first
    CHECK(p.count == 2 && strcmp(p.items[0].text, "a") == 0 && p.items[1].bytes == 4);
    prompts_free(&p);
    CHECK_FATAL("--prompt-file|empty", prompts_of("", 0));
    Options o = PARSE("--prompt-file", "/nonexistent/prompts");
    CHECK_FATAL("/nonexistent/prompts|No such file", prompts_read(&o));
    Options folder = PARSE("--prompt-file", "/");
    CHECK_FATAL("cannot read /", prompts_read(&folder));
    o = PARSE("-p", "-a", "--prompt=-b", "--prompt", "", "--prompt=c");
    p = prompts_read(&o); // any text, also one like a flag
    CHECK(p.count == 4 && strcmp(p.items[0].text, "-a") == 0 && p.items[2].bytes == 0 && p.items[3].text[0] == 'c');
    prompts_free(&p);
    free((void*)(uintptr_t)o.prompt.items);
}

static void the_end_of_text_in_a_prompt_is_the_token(void) {
    Tokenizer t;
    tokenizer_load(&t, "", BYTE_VOCAB_SIZE);
    t.bytes = (unsigned char*)realloc(t.bytes, 256 + 3);
    t.offsets = (size_t*)realloc(t.offsets, 258 * sizeof(size_t));
    memcpy(t.bytes + 256, "<e>", 3);
    t.offsets[257] = 259, t.vocab_size = 257, t.eot_token = 256;
    token_list_add(&t.special, (int[]){256}, 1);
    Prompts p = prompts_of("a<e>\n<e<e>\n", 11);
    prompts_encode(&p, &t);
    CHECK(p.items[0].tokens.count == 2 && p.items[0].tokens.ids[1] == 256);
    CHECK(p.items[1].tokens.count == 3 && p.items[1].tokens.ids[2] == 256);
    prompts_free(&p);
    tokenizer_free(&t);
}

// ----------------------------------------------------------------------------
// Interactive use

static int seen[256], num_seen; // what the decoder has in its slot at the end

static void converse(const char* lines, int T, Options o, int (*script)(int, int)) {
    Tokenizer bytes;
    tokenizer_load(&bytes, "", BYTE_VOCAB_SIZE);
    Prompt nothing = {NULL, 0, {NULL, 0, 0}};
    Prompts text = {&nothing, 1};
    GPT2Decoder* decoder = stub_create(1, T, BYTE_VOCAB_SIZE);
    decoder->script = script;
    FILE *in = tmpfile(), *out = tmpfile();
    Generation g = generation_create(&o, &bytes, &text, decoder, 1, T, out);
    g.remark = "";
    fputs(lines, in);
    rewind(in);
    interactive_run(&g, in);
    num_seen = decoder->slots[0].length;
    memcpy(seen, decoder->slots[0].tokens, (size_t)num_seen * sizeof(int));
    fclose(in);
    generation_free(&g);
    gpt2_decoder_free(decoder);
    tokenizer_free(&bytes);
    free((void*)(uintptr_t)o.stop.items);
    read_output(out);
}

static int saw(const char* text) {
    int same = num_seen == (int)strlen(text);
    for (int i = 0; i < num_seen && same; i++) { same = seen[i] == (unsigned char)text[i]; }
    return same;
}

static void a_line_goes_on_from_all_before_it(void) {
    converse("xy\nz\n", 64, PARSE("--interactive", "-n", "4", "-q"), alphabet);
    CHECK(strcmp(output, "defg\nklmn\n") == 0);
    CHECK(saw("xy\ndefg\nz\nklmn")); // as it stands on the screen
    converse("xy\n", 64, PARSE("--interactive", "-n", "9", "-q", "--stop", "gh"), alphabet);
    CHECK(strcmp(output, "def\n") == 0 && saw("xy\ndefgh"));
    converse("x\n", 64, PARSE("--interactive", "-n", "3", "-q"), newlines);
    CHECK(strcmp(output, "\n\n\n") == 0);
}

static int lines_of_two(int first, int length) { return length == 4 || length == 9 ? '\n' : alphabet(first, length); }

static void a_stop_text_that_ends_a_line_ends_it(void) {
    converse("x\nz\n", 64, PARSE("--interactive", "-n", "9", "-q", "--stop", "\n"), lines_of_two);
    CHECK(strcmp(output, "cd\nhi\n") == 0);
    CHECK(saw("x\ncd\nz\nhi\n"));
}

static int alphabet_up_to_ctrl_c(int first, int length) {
    generate_interrupted = length == 7;
    return alphabet(first, length);
}

static void ctrl_c_shows_what_an_answer_has(void) {
    converse("xy\nz\n", 64, PARSE("--interactive", "-n", "20", "-q", "--stop", "ghijk!"), alphabet_up_to_ctrl_c);
    CHECK(strncmp(output, "defgh\n", 6) == 0); // the last two may have been the beginning of the stop text
}

static void a_full_context_goes_on_from_its_last_half(void) {
    converse("xy\nz\n", 8, PARSE("--interactive", "-n", "4", "-q"), alphabet);
    CHECK(strcmp(output, "defg\nefgh\n") == 0 && saw("g\nz\nefgh"));         // the last 4 of xy.defg.z., and the answer
    converse("xy\n", 8, PARSE("--interactive", "-n", "20", "-q"), alphabet); // in an answer: it ends
    CHECK(strcmp(output, "defghi\n") == 0);
    converse("xy\n", 8, PARSE("--interactive", "-n", "10", "-q", "--overflow", "slide"), alphabet);
    CHECK(strcmp(output, "defghiefgh\n") == 0);
    converse("xy\nz\n", 8, PARSE("--interactive", "-n", "2", "-q"),
             alphabet); // a line that leaves no room for an answer
    CHECK(strcmp(output, "de\nef\n") == 0 && saw("e\nz\nef"));
    converse("xy\nz\n", 8, PARSE("--interactive", "-n", "9", "-q"), alphabet); // where an answer has filled it
    CHECK(strcmp(output, "defghi\nefghi\n") == 0 && saw("i\nz\nefgh"));
    converse("sixth.\n", 8, PARSE("--interactive", "-n", "2", "-q"), alphabet); // there is room for one token
    CHECK(strcmp(output, "hi\n") == 0 && saw("sixth.\nh"));
    converse("too long for it\nx\n", 8, PARSE("--interactive", "-n", "4", "-q"), alphabet);
    CHECK(strcmp(output, "efgh\nefgh\n") == 0 && saw("h\nx\nefgh"));
}

// ----------------------------------------------------------------------------
// The windows of --perplexity

// A machine on which every plan fits
Status gpt2_plan(GPT2Plan* plan, GPT2Config config, GPT2Settings settings, int B, int T, int training, int snapshot) {
    (void)config, (void)settings, (void)B, (void)T, (void)training, (void)snapshot;
    plan_clear(plan);
    return STATUS_OK;
}
Status gpt2_decoder_plan(GPT2Plan* plan, GPT2Config config, int B, int T) {
    return gpt2_plan(plan, config, gpt2_default_settings(), B, T, 0, 0);
}
Status gpt2_available_memory(GPT2Memory* memory) {
    memset(memory, 0x7f, sizeof(*memory));
    return STATUS_OK;
}

// As many windows at a time as fill the machine, of long ones one; not as many as there are.
static void windows_at_a_time(void) {
    static const int shapes[][2] = {{64, 16}, {1024, 1}, {1025, 1}, {4096, 1}}; // T, B
    static int tokens[100000];
    for (int i = 0; i < 4; i++) {
        Options o = PARSE("--perplexity", "x", "--quiet");
        GenerateModel m = {.options = &o, .context = shapes[i][0]};
        TokenList list = {.ids = tokens, .count = 100000};
        int B = 0;
        ScoreWindows w = score_shape_(&m, &list, &B);
        CHECK(w.T == shapes[i][0] && w.windows > 16 && B == shapes[i][1]);
    }
}

static void every_token_is_scored_once_with_the_context_it_can_have(void) {
    enum { N = 97 };
    int tokens[N], inputs[N], targets[N], first, good = 1;
    for (int i = 0; i < N; i++) { tokens[i] = 1000 + i; }
    for (int n = 2; n <= N; n += n < 20 ? 1 : 7) {
        for (int T = 1; T <= 40; T += T < 12 ? 1 : 9) {
            for (int stride = 1; stride <= T; stride++) {
                ScoreWindows w = score_windows(tokens, (size_t)n, T, stride);
                int scored[N] = {0};
                for (size_t k = 0; k < w.windows; k++) {
                    int c = score_window_fill(&w, k, inputs, targets, &first);
                    good = good && c >= 1 && c <= w.T && first < c;
                    for (int t = 0; t < c; t++) { good = good && targets[t] == inputs[t] + 1; }
                    for (int t = first; t < c; t++) {
                        scored[targets[t] - 1000]++;
                        good = good && (k == 0 ? inputs[0] == 1000 : t >= T - stride);
                    }
                    for (int t = c; t < w.T; t++) { good = good && inputs[t] == 0 && targets[t] == 0; }
                }
                for (int i = 0; i < n; i++) { good = good && scored[i] == (i > 0); }
            }
        }
    }
    CHECK(good);
}

// ----------------------------------------------------------------------------
// The command line

static void check_options(Options o) { generate_check_options(&o); }

static GenerateModel with_context(const Options* o, GPT2Config config) {
    GenerateModel m = {.options = o, .config = config};
    generate_set_context(&m);
    return m;
}
static int length_of(Options o, GPT2Config config, const Prompts* prompts) {
    GenerateModel m = with_context(&o, config);
    return generate_length(&m, prompts);
}

static void what_can_only_be_a_mistake_is_refused(void) {
    CHECK_FATAL("--interactive and --perplexity", check_options(PARSE("--interactive", "--perplexity", "a")));
    CHECK_FATAL("--perplexity|--export", check_options(PARSE("--export", "x.bin", "--perplexity", "a")));
    CHECK_FATAL("--prompt and --hellaswag", check_options(PARSE("--hellaswag", "a", "-p", "b")));
    CHECK_FATAL("--prompt-file|--interactive", check_options(PARSE("--interactive", "--prompt-file", "b")));
    CHECK_FATAL("--json|--interactive", check_options(PARSE("--interactive", "--json")));
    CHECK_FATAL("--num-samples|--interactive", check_options(PARSE("--interactive", "--num-samples", "2")));
    CHECK_FATAL("--stride 3|--perplexity", check_options(PARSE("--stride", "3")));
    CHECK_FATAL("--stop ''", check_options(PARSE("--stop", "")));
    GPT2Config config = {.max_seq_len = 64};
    Options o = PARSE("--context", "65");
    CHECK_FATAL("--context 65|64", with_context(&o, config));
    config.trained_len = 16;
    CHECK_FATAL("--context 65|64", with_context(&o, config));
    config.trained_len = 0;
    Prompts prompts = {NULL, 0};
    prompts_add(&prompts, "abcdef", 6);
    prompts.items[0].tokens.count = 6;
    CHECK_FATAL("prompt 1 has 6 tokens|5|--overflow slide",
                length_of(PARSE("--context", "5", "-n", "3"), config, &prompts));
    CHECK(length_of(PARSE("-n", "3"), config, &prompts) == 8); // the third new token is never read
    CHECK(length_of(PARSE("-n", "300", "--overflow", "slide"), config, &prompts) == 64);
    prompts_free(&prompts);
}

// --context alone takes more than the model was trained on.
static void the_context_is_what_the_model_was_trained_on(void) {
    GPT2Config config = {.max_seq_len = 64, .trained_len = 16};
    Prompts prompts = {NULL, 0};
    prompts_add(&prompts, "", 0);
    prompts.items[0].tokens.count = 17;
    CHECK_FATAL("17 tokens|the context is 16 (the model's trained length; --context allows up to 64); shorten it",
                length_of(PARSE("-n", "3"), config, &prompts));
    CHECK(length_of(PARSE("-n", "3", "--overflow", "slide"), config, &prompts) == 16);
    CHECK(length_of(PARSE("-n", "300", "--context", "64"), config, &prompts) == 64);
    CHECK_FATAL("the context is 16; shorten it", length_of(PARSE("-n", "3", "--context", "16"), config, &prompts));
    prompts_free(&prompts);
}

int main(void) {
    samples_do_not_depend_on_the_slots();
    a_sample_is_its_prompt_s_seed_s_and_number_s();
    prompts_have_random_numbers_of_their_own();
    samples_end_where_they_should();
    plain_text_has_one_end_of_line();
    text_is_utf8_in_text_and_in_json();
    end_of_text_ends_a_sample();
    tokens_beyond_the_tokenizer_have_no_text();
    an_interrupted_run_prints_what_there_is();
    prompts_are_lines();
    the_end_of_text_in_a_prompt_is_the_token();
    a_line_goes_on_from_all_before_it();
    a_stop_text_that_ends_a_line_ends_it();
    ctrl_c_shows_what_an_answer_has();
    a_full_context_goes_on_from_its_last_half();
    the_context_is_what_the_model_was_trained_on();
    every_token_is_scored_once_with_the_context_it_can_have();
    windows_at_a_time();
    what_can_only_be_a_mistake_is_refused();
    return unit_end();
}
