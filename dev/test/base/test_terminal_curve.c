// llmc/base/terminal_curve.h: the curve's dots, its means, and its width.
#include "llmc/base/terminal_curve.h"

#include "dev/test/fixtures/unit.h"

static char* printed(const LossCurve* c, int columns, int utf8) {
    size_t bytes;
    const char* path = unit_path("curve.txt");
    FILE* out = fopen_check(path, "w");
    curve_print(out, c, 10, columns, utf8);
    fclose(out);
    return unit_read(path, &bytes);
}

static void a_falling_loss_is_a_falling_line(void) {
    LossCurve c;
    memset(&c, 0, sizeof(c));
    for (int i = 0; i < 8; i++) { curve_add(&c, 8.0f - (float)i); }
    char* text = printed(&c, 20, 0);
    CHECK(strcmp(text, "   8.0000 |'.      \n"
                       "          |  '.    \n"
                       "          |    '.  \n"
                       "   1.0000 |      '.\n"
                       "           loss of steps 11 to 18\n") == 0);
    free(text);
    text = printed(&c, 20, 1); // two dots for each loss, which lies 15 / 7 dots below the one before
    CHECK(strncmp(text,
                  "   8.0000 "
                  "|\xe2\xa0\x89\xe2\xa0\xa6\xe2\xa1\x80\xe2\xa0\x80\xe2\xa0\x80\xe2\xa0\x80\xe2\xa0\x80\xe2\xa0\x80\n",
                  36) == 0);
    free(text);
}

static void what_is_not_finite_is_a_gap(void) {
    LossCurve c;
    memset(&c, 0, sizeof(c));
    for (int i = 0; i < 8; i++) { curve_add(&c, i == 3 ? NAN : i == 4 ? INFINITY : 1.0f + (float)(i & 1)); }
    char* text = printed(&c, 20, 0);
    CHECK(text[11 + 3] == ' ' && text[11 + 4] == ' ' && strstr(text, "2.0000") != NULL);
    free(text);
    memset(&c, 0, sizeof(c));
    for (int i = 0; i < 8; i++) { curve_add(&c, NAN); }
    text = printed(&c, 80, 0);
    CHECK(text[0] == '\0');
    free(text);
}

static void a_long_run_is_its_means(void) {
    LossCurve c;
    memset(&c, 0, sizeof(c));
    for (int i = 0; i < 100000; i++) { curve_add(&c, i < 50000 ? 4.0f : 2.0f); }
    CHECK(c.span == 256 && c.steps == 100000);
    CHECK_NEAR(curve_part_(&c, 0, 64), 4.0, 0.0);
    CHECK_NEAR(curve_part_(&c, 63, 64), 2.0, 0.0);
    int count = 0;
    for (int i = 0; i < CURVE_SPANS; i++) { count += c.counts[i]; }
    CHECK(count == 100000);
}

static void narrow_terminals_and_short_runs_have_none(void) {
    LossCurve c;
    memset(&c, 0, sizeof(c));
    curve_add(&c, 1.0f);
    char* text = printed(&c, 80, 1);
    CHECK(text[0] == '\0');
    free(text);
    curve_add(&c, 1.0f);
    text = printed(&c, 19, 1);
    CHECK(text[0] == '\0');
    free(text);
    text = printed(&c, 1000, 0);
    CHECK(strchr(text, '\n') - text == 11 + CURVE_MOST_COLUMNS);
    free(text);
}

int main(void) {
    a_falling_loss_is_a_falling_line();
    what_is_not_finite_is_a_gap();
    a_long_run_is_its_means();
    narrow_terminals_and_short_runs_have_none();
    return unit_end();
}
