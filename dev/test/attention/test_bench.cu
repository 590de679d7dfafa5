// What dev/cuda/bench/bench.h does beside the GPU: command line, energy from a counter that ticks seldom, rows of the
// leaderboard. And that a variant's name is that of its file.
// Needs no GPU.
#include "dev/cuda/bench/bench.h"
#include "dev/cuda/decode/attention_decode.h"
#include "dev/cuda/matmul/matmul.h"
#include "dev/test/fixtures/unit.h"

static const std::vector<BenchSize> sizes = {{"-m", "M, rows", 8}, {"-n", "N, columns", 64}};

static const std::vector<BenchText> texts = {{"--group", "only this group"}};

static BenchOptions parse(std::vector<const char*> flags) {
    flags.insert(flags.begin(), "race");
    flags.push_back(nullptr);
    return bench_options((int)flags.size() - 1, (char**)flags.data(), "race", sizes, texts);
}

static void test_options() {
    BenchOptions o = parse({});
    CHECK(o.shapes.size() == 1 && o.shapes[0] == std::vector<int>({8, 64}));
    CHECK(!o.no_sweep && !o.check_only && o.modes[RESTED] && o.modes[STEADY]);
    o = parse({"-n", "32", "--mode", "steady", "--no-sweep"});
    CHECK(o.shapes[0] == std::vector<int>({8, 32}) && o.sizes[1].given && !o.sizes[0].given);
    CHECK(!o.modes[RESTED] && o.modes[STEADY] && o.no_sweep);
    o = parse({"--shape", "1,2", "--shape", "3,4", "-m", "5"});
    CHECK(o.shapes.size() == 2 && o.shapes[0][1] == 2 && o.shapes[1][0] == 3 && o.shapes_given);
    o = parse({"--group", "qkv", "-m", "5", "--group", "fc"}); // an operation's own flag, more than once
    CHECK(o.texts[0].values.count == 2 && strcmp(o.texts[0].values.items[1], "fc") == 0 && !o.shapes_given);
    CHECK_FATAL("--group|needs a value", parse({"--group"}));
    CHECK_FATAL("--shape 1|2 whole numbers", parse({"--shape", "1"}));
    CHECK_FATAL("--shape 1,2,3|2 whole numbers", parse({"--shape", "1,2,3"}));
    CHECK_FATAL("--shape 1,|2 whole numbers", parse({"--shape", "1,"}));
    CHECK_FATAL("-m 0|at least 1", parse({"-m", "0"}));
    CHECK_FATAL("-m 9999999999|at most 2147483647", parse({"-m", "9999999999"}));
    CHECK_FATAL("--mode idle|rested|steady|both", parse({"--mode", "idle"}));
    CHECK_FATAL("-m|needs a value", parse({"-m"}));
    CHECK_FATAL("unknown flag -k|--help", parse({"-k", "1"}));
}

// 500 W from 1000 J on, in a counter that ticks every 50 ms, read every 3 ms for .45 s; 600 W in the first .1 s
static void test_energy() {
    std::vector<MeterReading> readings;
    for (double t = 0; t < 0.45; t += 0.003) {
        const double tick = 0.05 * floor(t / 0.05);
        const double joules = 1000 + (tick < 0.1 ? 600 * tick : 60 + 500 * (tick - 0.1));
        readings.push_back({t, joules, t < 0.2 ? 1900.0 : 1500.0});
    }
    MeterSum sum;
    sum.add(readings, 0.1);
    CHECK_NEAR(sum.watts(), 500, 10); // ticks are seen up to 3 ms late
    CHECK(sum.mean_mhz() > 1500 && sum.mean_mhz() < 1900);
    MeterSum none; // one tick is no interval
    none.add({{0.0, 5, 0}, {0.1, 5, 0}, {0.2, 6, 0}, {0.3, 6, 0}}, 0.0);
    none.add({}, 0.0);
    CHECK(isnan(none.watts()) && isnan(none.mean_mhz()));
}

static void test_rows() {
    Race race = {"direction,B", "forward,8", 2e9, 1};
    Racer racer = {"64x64", "yes", 2e-3, true, nullptr};
    const std::string header = csv_header(race);
    const std::string row = csv_row(race, racer, STEADY, {0.5, 10, 1700}, "gpu,1,13.0,today,abc", 8);
    CHECK(row == "gpu,1,13.0,today,abc,forward,8,64x64,yes,steady,0.50000,4.00,10,5.000,1700,0.5000,2.000e-03,yes");
    CHECK(std::count(row.begin(), row.end(), ',') == std::count(header.begin(), header.end(), ','));
    const std::string rested = csv_row(race, racer, RESTED, {0.5}, "gpu,1,13.0,today,abc", 8);
    CHECK(rested.find(",rested,0.50000,4.00,,,,0.5000,") != std::string::npos); // not measured: empty

    CHECK(share_of(4.0, 8.0) == 0.5 && share_of(8.4, 8.0) > 1 && isnan(share_of(87.0, 8.0)) &&
          isnan(share_of(4.0, NAN)));
    const std::string busy = csv_row(race, racer, RESTED, {0.5}, "gpu,1,13.0,today,abc", 0.4); // 1000%
    CHECK(busy.find(",rested,0.50000,4.00,,,,,2.000e-03") != std::string::npos);

    race.least_bytes = 1e9; // another column, before the last two
    const std::string wide = csv_row(race, racer, STEADY, {0.5, 10, 1700}, "gpu,1,13.0,today,abc", 8);
    CHECK(csv_header(race).find(",of_gemm,gb_per_s,rel_err,deterministic") != std::string::npos);
    CHECK(wide.find(",0.5000,2000.0,2.000e-03,yes") != std::string::npos);

    const char* path = unit_path("board.csv");
    append_csv(path, header, row);
    append_csv(path, header, rested);
    CHECK_FATAL("board.csv|other columns", append_csv(path, "a,b", row));
    char text[4096] = "";
    FILE* f = fopen_check(path, "r");
    const size_t length = fread(text, 1, sizeof(text) - 1, f);
    fclose(f);
    CHECK(std::string(text, length) == header + "\n" + row + "\n" + rested + "\n");
}

static void test_order() {
    CHECK(median<double>({3, 1, 2}) == 2);
    RandomOrder random;
    std::vector<size_t> order = random.of(5);
    std::sort(order.begin(), order.end());
    CHECK(order == std::vector<size_t>({0, 1, 2, 3, 4}));
}

// The mains of the benches, which only note the name that they get
static std::string named;
template <class Config> int variant_main(int, char**, const Variant<Config>& variant, int) {
    named = variant.name;
    return 0;
}
// The name of a main's variant
template <class Config> static std::string name_of() {
    static const Config table[1] = {};
    named = "none";
    variant_main(0, nullptr, table);
    return named;
}

// A copy of a variant is another variant: the name is that of the file with main, whatever the table's namespace is.
static void test_names() {
    CHECK(variant_of("dev/cuda/attention_forward_flash2.cu", "attention_forward_") == "flash2");
    CHECK(variant_of("/a.cu/b/matmul_softmax_wgmma.cu", "matmul_") == "softmax_wgmma");
    CHECK(variant_of("mine.cu", "attention_decode_") == "mine");
    CHECK(name_of<AttentionForwardConfig>() == "test_bench" && name_of<AttentionBackwardConfig>() == "test_bench");
    CHECK(name_of<AttentionDecodeConfig>() == "test_bench" && name_of<MatmulConfig>() == "test_bench");
    CHECK(strcmp(AttentionForwardConfig::operation, "attention_forward_") == 0);
    CHECK(strcmp(AttentionBackwardConfig::operation, "attention_backward_") == 0);
    CHECK(strcmp(AttentionDecodeConfig::operation, "attention_decode_") == 0);
    CHECK(strcmp(MatmulConfig::operation, "matmul_") == 0);
}

int main() {
    test_options();
    test_names();
    test_energy();
    test_rows();
    test_order();
    return unit_end();
}
