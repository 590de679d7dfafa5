/*
What the benchmarks of attention's three directions share: command line, sweep, race, main. Each direction gives a type Trial,
the tensors of a shape and their reference:

    Config, Variant, name, unit             of the direction; what its race counts
    unsupported(s), sweep()                 why the contract excludes a shape, or nullptr; what is checked
    serves(config, s)                       whether the configuration is for shapes such as this one
    trains(variant, config, gpu, s)         the column of this name
    measure(&gpu, options)                  measures the ceiling of the race
    Trial(s, timed)                         allocates; timed: for a race, not for the sweep
    fill(pattern, seed)                     inputs, and what must come of them
    check(config, what, at_once)            a Verdict; ends the program if the configuration is wrong
    scratch_bytes(config), set_bytes()
    rotate(sets, scratch_bytes), work(), launch(config, set, stream)    after check(): a race's sets of tensors, and its work
*/
#ifndef ATTENTION_ATTENTION_BENCH_H
#define ATTENTION_ATTENTION_BENCH_H

#include "reference.h"
#include "dev/cuda/bench/bench.h"

// The shapes of the sweep, at every head size: every T, with B sequences of NH heads; and more, whose HS is 0, also with
// documents
struct Sweep {
    int B, NH;
    std::vector<int> Ts;
    std::vector<Shape> more;
};

// The shape from sizes B, T, NH, HS; ends the program if the contract excludes it.
template <class Trial> static Shape bench_shape_of(const std::vector<int>& sizes, int documents = NO_DOCUMENTS) {
    const Shape s = {sizes[0], sizes[1], sizes[2], sizes[3], documents};
    const char* why = Trial::unsupported(s);
    if (why) { fatal("B %d T %d NH %d HS %d: %s", s.B, s.T, s.NH, s.HS, why); }
    return s;
}

// Those of --documents, or none
static inline std::vector<int> bench_documents(const BenchOptions& o) {
    std::vector<int> documents;
    for (int n = 0; !o.texts.empty() && n < o.texts[0].values.count; n++) {
        documents.push_back(document_lengths_of(o.texts[0].values.items[n]));
        if (documents[n] == NO_DOCUMENTS) {
            fatal("--documents %s: must be a number of tokens, or log-normal", o.texts[0].values.items[n]);
        }
    }
    return documents.empty() ? std::vector<int>{NO_DOCUMENTS} : documents;
}

// With --check-only, the sizes and documents given, if any.
template <class Trial> static std::vector<Shape> sweep_shapes(const BenchOptions& o) {
    Sweep sweep = Trial::sweep();
    std::vector<int> HSs = {32, 64, 96, 128};
    auto given = [&](int size) { return o.check_only && o.sizes[size].given; };
    const int B = given(0) ? o.sizes[0].value : sweep.B, NH = given(2) ? o.sizes[2].value : sweep.NH;
    if (given(1)) { sweep.Ts = {o.sizes[1].value}; }
    if (given(3)) { HSs = {o.sizes[3].value}; }
    const std::vector<int> documents = bench_documents(o);
    if (given(0) || given(1) || given(2) || documents[0] != NO_DOCUMENTS) { sweep.more.clear(); }
    std::vector<Shape> shapes;
    for (int HS : HSs) {
        for (int T : sweep.Ts) {
            for (int lengths : documents) { shapes.push_back(bench_shape_of<Trial>({B, T, NH, HS}, lengths)); }
        }
        for (Shape s : sweep.more) { shapes.push_back({s.B, s.T, s.NH, HS, s.documents}); }
    }
    return shapes;
}

template <class Trial> static std::string describe(const char* variant, const char* config, Shape s, Pattern pattern) {
    char text[256];
    snprintf(text, sizeof(text), "attention_%s_%s %s at B %d T %d NH %d HS %d%s, %s", Trial::name, variant, config, s.B,
             s.T, s.NH, s.HS, document_lengths_text(s.documents).c_str(), pattern_names[pattern]);
    return text;
}

// Those of a variant's configurations that are checked and timed
template <class Trial> using Configs = std::vector<const typename Trial::Config*>;

// Checks every configuration at all shapes of the sweep and all patterns; prints a line for each.
template <class Trial>
static void check_sweep(const char* variant, const Configs<Trial>& configs, const BenchOptions& o) {
    int all_checks = 0;
    std::vector<Verdict> verdicts(configs.size());
    std::vector<int> checks(configs.size());
    for (Shape s : sweep_shapes<Trial>(o)) {
        if (std::none_of(configs.begin(), configs.end(), [&](const auto* c) { return Trial::serves(*c, s); })) {
            continue;
        }
        Trial trial(s, false);
        for (int pattern = 0; pattern < NUM_PATTERNS; pattern++) {
            trial.fill((Pattern)pattern, 1000 + pattern);
            for (size_t n = 0; n < configs.size(); n++) {
                if (!Trial::serves(*configs[n], s)) { continue; }
                std::string what = describe<Trial>(variant, configs[n]->name, s, (Pattern)pattern);
                Verdict v = trial.check(*configs[n], what, 2);
                verdicts[n].worst = fmax(verdicts[n].worst, v.worst);
                verdicts[n].deterministic &= v.deterministic;
                checks[n]++, all_checks++;
            }
        }
    }
    if (all_checks == 0) {
        fatal("attention_%s_%s: no configuration serves head size %d%s", Trial::name, variant, o.sizes[3].value,
              document_lengths_text(bench_documents(o)[0]).c_str());
    }
    for (size_t n = 0; n < configs.size(); n++) {
        if (checks[n] == 0) { continue; }
        std::string head_size = configs[n]->HS ? "HS " + std::to_string(configs[n]->HS) : "every HS";
        printf("attention_%s_%s %s %s, %s: %d checks passed, largest error %.0f%% of what is allowed, %s\n",
               Trial::name, variant, PRECISION_NAME, configs[n]->name, head_size.c_str(), checks[n],
               100 * verdicts[n].worst, verdicts[n].deterministic ? "deterministic" : "not deterministic");
    }
}

// Checks the configurations at the shape, times them and prints a row for each.
template <class Trial> static void bench(const typename Trial::Variant& v, const Configs<Trial>& configs,
                                         const BenchOptions& o, const BenchGpu& gpu, Shape s) {
    const std::string documents = document_lengths_text(s.documents);
    printf("\nattention_%s_%s, %s, %s, B %d T %d NH %d HS %d%s\n", Trial::name, v.name, PRECISION_NAME,
           gpu.properties.name, s.B, s.T, s.NH, s.HS, documents.c_str());
    Trial trial(s, true);
    trial.fill(ORDINARY, 42);
    size_t scratch_bytes = 0;
    std::vector<Racer> racers;
    for (const typename Trial::Config* c : configs) {
        if (!Trial::serves(*c, s)) { continue; }
        const Verdict verdict = trial.check(*c, describe<Trial>(v.name, c->name, s, ORDINARY), 1);
        auto launch = [c, &trial](int set, cudaStream_t stream) { trial.launch(*c, set, stream); };
        racers.push_back(
            {c->name, Trial::trains(v, *c, gpu.properties, s), verdict.rel_err, verdict.deterministic, launch});
        scratch_bytes = std::max(scratch_bytes, trial.scratch_bytes(*c));
    }
    if (racers.empty()) {
        fatal("no configuration of %s serves head size %d%s on this GPU", v.name, s.HS, documents.c_str());
    }
    Race race;
    race.columns = "direction,variant,precision,B,T,NH,HS";
    race.values = std::string(Trial::name) + "," + v.name + "," + PRECISION_NAME;
    for (int size : {s.B, s.T, s.NH, s.HS}) { race.values += "," + std::to_string(size); }
    race.sets = bench_sets(gpu, (double)trial.set_bytes());
    race.unit = Trial::unit;
    trial.rotate(race.sets, scratch_bytes);
    race.work = trial.work();
    run_race(o, gpu, race, racers);
}

template <class Trial> static int run_variant(int argc, char** argv, const typename Trial::Variant& v,
                                              std::vector<BenchSize> sizes, int compute_capability,
                                              std::vector<BenchText> texts = {}) {
    const std::string program = std::string("attention_") + Trial::name + "_" + v.name + "_" + PRECISION_NAME;
    const BenchOptions o = bench_options(argc, argv, program.c_str(), sizes, texts);
    std::string names;
    Configs<Trial> configs;
    for (const typename Trial::Config& c : v) {
        if (names.find(c.name) == std::string::npos) { names += (names.empty() ? "" : ", ") + std::string(c.name); }
        if (!o.config || strcmp(o.config, c.name) == 0) { configs.push_back(&c); }
    }
    if (configs.empty()) { fatal("--config %s: no such configuration; there are: %s", o.config, names.c_str()); }
    std::vector<Shape> shapes; // to time
    for (const std::vector<int>& shape : o.shapes) {
        for (int lengths : bench_documents(o)) { shapes.push_back(bench_shape_of<Trial>(shape, lengths)); }
    }
    if (o.csv && shapes[0].documents != NO_DOCUMENTS) { fatal("--documents: the leaderboard has no column for it"); }

    BenchGpu gpu;
    const cudaDeviceProp& p = gpu.properties;
    bench_needs(gpu, program, compute_capability);
    for (size_t n = configs.size(); n-- > 0;) {
        if (configs[n]->shared_bytes <= p.sharedMemPerBlockOptin) { continue; }
        printf("skipped %s for HS %d: it needs %zu KB of shared memory a thread block, the %s has %zu\n",
               configs[n]->name, configs[n]->HS, configs[n]->shared_bytes / 1024, p.name,
               p.sharedMemPerBlockOptin / 1024);
        configs.erase(configs.begin() + n);
    }
    if (!o.no_sweep || o.check_only) { check_sweep<Trial>(v.name, configs, o); }
    if (o.check_only) { return EXIT_SUCCESS; }
    Trial::measure(&gpu, o);
    for (Shape s : shapes) { bench<Trial>(v, configs, o, gpu, s); }
    return EXIT_SUCCESS;
}

#endif
