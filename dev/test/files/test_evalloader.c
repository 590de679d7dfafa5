/*
llmc/files/evalloader.h: how multiple-choice examples lie in a batch, how endings are scored, and which files are refused.

The test file has 5 examples. Example i: a context of i + 1 tokens, four endings of 1, 2, 3 and i + 1 tokens; its token
number k is 100 i + k; its label is i modulo 4.
*/
#include "llmc/files/evalloader.h"

#include "dev/test/fixtures/unit.h"

enum { NUM_EXAMPLES = 5, T = 16 };

static int ending_length(int example, int ending) { return ending < 3 ? ending + 1 : example + 1; }

// Writes `count` examples as words (uint16); returns how many words.
static size_t make_examples(uint16_t* words, int count) {
    size_t at = 0;
    for (int i = 0; i < count; i++) {
        size_t begin = at;
        int token = 100 * i;
        words[at] = 65535, words[at + 2] = (uint16_t)i, words[at + 3] = (uint16_t)(i % 4), words[at + 4] = 4;
        at += 5;
        for (int part = -1; part < 4; part++) {
            int n = part < 0 ? i + 1 : ending_length(i, part);
            words[at++] = (uint16_t)n;
            for (int k = 0; k < n; k++) { words[at++] = (uint16_t)token++; }
        }
        words[begin + 1] = (uint16_t)(2 * (at - begin));
    }
    return at;
}

static const char* write_examples(const char* name) {
    uint16_t words[512];
    size_t n = make_examples(words, NUM_EXAMPLES);
    const char* path = unit_path(name);
    unit_write_format(path, EVAL_MAGIC, 1, NUM_EXAMPLES, 100, words, 2 * n);
    return path;
}

// 1 where the rows of batch place `place` hold this example and nothing else.
static int holds_example(const EvalLoader* e, int place, int example) {
    int token = 100 * example + example + 1, same = e->label[place] == example % 4; // the first ending's first token
    for (int ending = 0; ending < 4; ending++) {
        const size_t row = ((size_t)place * 4 + (size_t)ending) * e->T;
        const int *inputs = e->inputs + row, *targets = e->targets + row;
        const unsigned char* mask = e->mask + row;
        int context = example + 1, n = ending_length(example, ending);
        for (int t = 0; t < (int)e->T; t++) {
            int input = t < context ? 100 * example + t : t < context + n ? token + t - context : 0;
            int scored = t >= context - 1 && t < context - 1 + n; // from the last token of the context on
            same = same && inputs[t] == input && mask[t] == scored;
            same = same && targets[t] == (scored ? token + t - (context - 1) : 0);
        }
        token += n;
    }
    return same;
}

static void examples_lie_in_rows_of_four(void) {
    EvalLoader e;
    evalloader_open(&e, write_examples("eval.bin"), 9, T); // two examples a batch; a row stays empty
    CHECK(e.num_examples == 5 && e.num_batches == 3 && e.largest_token == 400 + 5 + 1 + 2 + 3 + 5 - 1);
    for (int round = 0; round < 2; round++) {
        for (int batch = 0; batch < 3; batch++) {
            evalloader_fill(&e, batch);
            CHECK(e.examples == (batch < 2 ? 2 : 1));
            for (int i = 0; i < e.examples; i++) { CHECK(holds_example(&e, i, 2 * batch + i)); }
        }
        int masked = 0;
        for (size_t i = 4 * T; i < 9 * T; i++) { masked += e.mask[i]; }
        CHECK(masked == 0); // nothing is left of the batch before
        evalloader_fill(&e, 3);
        CHECK(e.examples == 0);
    }
    evalloader_close(&e);
}

// Batches are shared out in turn: whatever the number of processes, each example is in one batch, the same one.
static void batches_come_in_any_order(void) {
    static const int order[] = {2, 0, 1, 0, 2};
    EvalLoader e;
    evalloader_open(&e, write_examples("eval.bin"), 8, T);
    for (size_t i = 0; i < sizeof(order) / sizeof(order[0]); i++) {
        evalloader_fill(&e, order[i]);
        CHECK(e.examples == (order[i] < 2 ? 2 : 1));
        for (int k = 0; k < e.examples; k++) { CHECK(holds_example(&e, k, 2 * order[i] + k)); }
    }
    evalloader_close(&e);
}

// Losses of a whole batch: `wrong` everywhere, and `right` on the tokens of the ending that `choice` names.
static void set_losses(const EvalLoader* e, float* losses, const int* choice, float right, float wrong) {
    for (size_t i = 0; i < e->B * e->T; i++) { losses[i] = e->mask[i] ? wrong : -100.0f; } // -100 must not count
    for (int i = 0; i < e->examples; i++) {
        for (size_t t = 0; t < e->T; t++) {
            size_t at = ((size_t)i * 4 + (size_t)choice[i]) * e->T + t;
            if (e->mask[at]) { losses[at] = right; }
        }
    }
}

static void the_lowest_mean_loss_is_the_choice(void) {
    float losses[8 * T];
    EvalLoader e;
    evalloader_open(&e, write_examples("eval.bin"), 8, T);
    evalloader_fill(&e, 0); // labels 0 and 1
    set_losses(&e, losses, (int[]){0, 1}, 1.0f, 2.0f);
    CHECK(evalloader_score(&e, losses) == 2);
    set_losses(&e, losses, (int[]){0, 3}, 1.0f, 2.0f);
    CHECK(evalloader_score(&e, losses) == 1);
    set_losses(&e, losses, (int[]){2, 3}, 1.0f, 2.0f);
    CHECK(evalloader_score(&e, losses) == 0);
    set_losses(&e, losses, (int[]){0, 1}, NAN, 2.0f); // what is not a number is never the lowest
    CHECK(evalloader_score(&e, losses) == 0);
    set_losses(&e, losses, (int[]){3, 3}, 2.0f, NAN);
    CHECK(evalloader_score(&e, losses) == 0);
    set_losses(&e, losses, (int[]){0, 1}, 3.0f, INFINITY);
    CHECK(evalloader_score(&e, losses) == 2);
    for (size_t i = 0; i < 8 * T; i++) { losses[i] = e.mask[i] ? 1.0f : 0.0f; }
    CHECK(evalloader_score(&e, losses) == 1); // means tie, though sums do not: the first ending

    // one bad token among three weighs less than one among two: ending 2 (3 tokens) beats ending 1 (2 tokens)
    evalloader_fill(&e, 1); // labels 2 and 3
    set_losses(&e, losses, (int[]){0, 0}, 9.0f, 9.0f);
    size_t first = (size_t)e.offsets[2];
    int context = e.words[first + 5];
    for (int ending = 1; ending <= 2; ending++) {
        for (int k = 1; k <= ending; k++) { losses[ending * T + context - 1 + k] = 0.0f; } // all but the first
    }
    CHECK(evalloader_score(&e, losses) == 1);
    evalloader_fill(&e, 3); // beyond the end
    CHECK(e.examples == 0 && evalloader_score(&e, losses) == 0);
    evalloader_close(&e);
}

static void open_and_walk(const char* path, int B, int length) {
    EvalLoader e;
    evalloader_open(&e, path, B, length);
    for (int i = 0; i < e.num_batches; i++) { evalloader_fill(&e, i); }
    evalloader_close(&e);
}

static void rows_must_be_long_and_many_enough(void) {
    const char* path = write_examples("eval.bin");
    CHECK_NO_CRASH(open_and_walk(path, 4, 10)); // the longest takes 5 + 5
    CHECK_FATAL("eval.bin|example 4|10 tokens|T = 9|-t", open_and_walk(path, 4, 9));
    CHECK_FATAL("eval.bin|4 rows|has 3|-b 4", open_and_walk(path, 3, T));
    EvalLoader e;
    evalloader_open(&e, path, 4, T);
    CHECK_NO_CRASH(evalloader_check_vocab(&e, 416));
    CHECK_FATAL("eval.bin|token 415|415", evalloader_check_vocab(&e, 415));
    evalloader_close(&e);
}

static void bad_files_are_refused(void) {
    uint16_t words[512];
    size_t n = make_examples(words, NUM_EXAMPLES), bytes = 2 * n;
    const char* bad = unit_path("bad.bin");
    CHECK_FATAL("missing.bin|No such file", open_and_walk(unit_path("missing.bin"), 4, T));
    unit_write_format(bad, 20240520, 1, NUM_EXAMPLES, 0, words, bytes);
    CHECK_FATAL("bad.bin|20240520|20240522", open_and_walk(bad, 4, T));
    unit_write_format(bad, EVAL_MAGIC, 2, NUM_EXAMPLES, 0, words, bytes);
    CHECK_FATAL("bad.bin|version 2", open_and_walk(bad, 4, T));
    unit_write_format(bad, EVAL_MAGIC, 1, 0, 0, words, bytes);
    CHECK_FATAL("bad.bin|0 examples", open_and_walk(bad, 4, T));
    unit_write_format(bad, EVAL_MAGIC, 1, INT32_MAX, 0, words, bytes);
    CHECK_FATAL("bad.bin|2147483647 examples", open_and_walk(bad, 4, T));
    unit_write_format(bad, EVAL_MAGIC, 1, -1, 0, words, bytes);
    CHECK_FATAL("bad.bin|-1 examples", open_and_walk(bad, 4, T));
    unit_write_format(bad, EVAL_MAGIC, 1, 65537, 0, "", 0); // their numbers have 16 bits
    unit_truncate(bad, HEADER_BYTES + 2 * EVAL_SMALLEST * 65537);
    CHECK_FATAL("bad.bin|65537 examples", open_and_walk(bad, 4, T));
    unit_write_format(bad, EVAL_MAGIC, 1, NUM_EXAMPLES + 1, 0, words, bytes);
    CHECK_FATAL("bad.bin|no example 5", open_and_walk(bad, 4, T));
    unit_write_format(bad, EVAL_MAGIC, 1, NUM_EXAMPLES - 1, 0, words, bytes);
    CHECK_FATAL("bad.bin|trailing bytes after its 4 examples", open_and_walk(bad, 4, T));
    words[3] = 4; // the first example's label
    unit_write_format(bad, EVAL_MAGIC, 1, NUM_EXAMPLES, 0, words, bytes);
    CHECK_FATAL("bad.bin|no example 0 of 4 endings", open_and_walk(bad, 4, T));
    n = make_examples(words, 1);
    words[1] += 2; // a word after the last ending
    unit_write_format(bad, EVAL_MAGIC, 1, 1, 0, words, 2 * (n + 1));
    CHECK_FATAL("bad.bin|example 0|does not fit", open_and_walk(bad, 4, T));
    words[1] = 65534; // longer than the file
    unit_write_format(bad, EVAL_MAGIC, 1, 1, 0, words, 2 * n);
    CHECK_FATAL("bad.bin|no example 0 of 4 endings", open_and_walk(bad, 4, T));
    words[1] = (uint16_t)(2 * (n - 1)); // a word too few for it
    unit_write_format(bad, EVAL_MAGIC, 1, 1, 0, words, 2 * (n - 1));
    CHECK_FATAL("bad.bin|example 0|does not fit", open_and_walk(bad, 4, T));
    for (size_t cut = 0; cut < HEADER_BYTES + bytes; cut += cut < HEADER_BYTES ? 256 : 9) {
        write_examples("bad.bin");
        unit_truncate(bad, cut);
        CHECK_FATAL("bad.bin", open_and_walk(bad, 4, T));
    }
}

// Whatever stands in one word of the file: it is refused, or it is a token and fits.
static void no_corruption_crashes(void) {
    static const uint16_t values[4] = {0, 1, 300, 65535};
    uint16_t words[512];
    size_t n = make_examples(words, 2);
    const char* bad = unit_path("bad.bin");
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < 4; k++) {
            uint16_t saved = words[i];
            words[i] = values[k];
            unit_write_format(bad, EVAL_MAGIC, 1, 2, 0, words, 2 * n);
            CHECK_NO_CRASH(open_and_walk(bad, 4, T));
            words[i] = saved;
        }
    }
}

static void damage_is_noticed_where_the_file_has_checksums(void) {
    EvalLoader e;
    const char* path = write_examples("sealed.bin");
    evalloader_open(&e, path, 8, T);
    CHECK(e.unchecked);
    evalloader_close(&e);
    unit_seal(path);
    evalloader_open(&e, path, 8, T);
    CHECK(!e.unchecked && e.num_examples == NUM_EXAMPLES);
    evalloader_close(&e);
    unit_flip(path, 8 * (HEADER_BYTES + 12)); // a token of a context
    CHECK_FATAL("sealed.bin: bytes 1024 to", evalloader_open(&e, path, 8, T));
    unit_flip(path, 8 * (HEADER_BYTES + 12));
    unit_flip(path, 8 * 4 * 2); // one example less or more
    CHECK_FATAL("sealed.bin: its header (bytes 0 to 1023)", evalloader_open(&e, path, 8, T));
}

int main(void) {
    damage_is_noticed_where_the_file_has_checksums();
    examples_lie_in_rows_of_four();
    batches_come_in_any_order();
    the_lowest_mean_loss_is_the_choice();
    rows_must_be_long_and_many_enough();
    bad_files_are_refused();
    no_corruption_crashes();
    return unit_end();
}
