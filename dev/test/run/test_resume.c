/*
llmc/run/resume.h in several processes: rank 0 alone sees the folder and the files of weights, all begin at the same step, and
where one of them was started otherwise, or fails, nothing on the disk has changed and one line says why.
*/
#include "llmc/run/resume.h"

#include "dev/test/checkpoint/checkpoint_fixture.h"
#include "dev/test/fixtures/comm_processes.h"

static const char *const NOT_THERE = "/dev/null/run", *const NO_MODEL = "/dev/null/first.bin"; // beside rank 0

static Options options;
static const GPT2Config config = {8, V, 128, 1, 1, 32, 0};
static GPT2Numerics numerics = {"fp32", "own", "flash", "cuBLASLt 13.0.2", "nvcc 13.0.88", "NVIDIA H200", "9.0",
                                "132",  "",    ""};
static const char* data_name = "tokens.bin";
static void (*change)(Comm* c); // of what a process is started with, or NULL
static int fails = -1;          // the rank that fails before the run begins
static int num_steps = 100;
static const char* lacks; // the beginning of a line that the checkpoint lacks, as an older version's does, or NULL

static const char* run_path(void) { return unit_path("run"); }
static const char* model_path(void) { return unit_path("run/model_00000010.bin"); }
static const char* done_path(void) { return unit_path("run/DONE_00000010"); }

static void write_tokens(const char* name, int step) {
    uint16_t tokens[101];
    for (int i = 0; i <= 100; i++) { tokens[i] = (uint16_t)(i * step % V); }
    unit_write_format(unit_path(name), TOKENS_MAGIC_16, TOKENS_VERSION_16, 101, V, tokens, sizeof(tokens));
}

// Up to the first change on the disk
static void open_start(Comm* c, RunStart* s, DataLoader* data) {
    if (comm_rank(c) != 0) { options.output_dir = NOT_THERE, options.model = NO_MODEL; }
    if (change != NULL) { change(c); }
    const HostAlloc host_memory = {NULL, NULL};
    dataloader_open(data, unit_path(data_name), 2, 4, 1, 42, V, host_memory);
    run_start_open(s, &options, c);
    run_start_keep_flags(s, &options);
    run_start_describe(s, &options, config, &numerics, data, data, num_steps, 50256);
    run_start_compare(s, &options);
}

static void take_out(RunIdentity* id, const char* beginning) {
    char* line = strstr(id->text, beginning);
    CLAIM(line != NULL);
    char* next = strchr(line, '\n') + 1;
    memmove(line, next, strlen(next) + 1);
    id->text_bytes = strlen(id->text);
}

// A run of ten steps: what it leaves is checkpoint 10.
static void begins(Comm* c) {
    RunStart s;
    DataLoader data;
    RunState run;
    static char buffer[CHECKPOINT_BUFFER];
    open_start(c, &s, &data);
    CLAIM(s.step == -1 && s.before.text == NULL);
    GPT2 model = make_model_of(config, 1, 1.0f);
    model.info.settings.comm = c;
    if (comm_rank(c) == fails) { fatal("out of memory"); }
    run_start_begin(&s, &options);
    if (comm_rank(c) == 0) {
        CheckpointSource from = checkpoint_source(&model, buffer);
        memset(&run, 0, sizeof(run));
        if (lacks != NULL) { take_out(&s.identity, lacks); }
        dataloader_get_state(&data, &run.loader);
        run.step = 10, run.outliers = make_outliers(), run.identity = s.identity;
        check(checkpoint_write(&from, &run, s.folder.path));
    }
    run_start_close(&s);
}

static void resumes(Comm* c) {
    RunStart s;
    DataLoader data;
    options.resume = 1;
    open_start(c, &s, &data);
    CLAIM(s.step == 10 && s.before.run == s.identity.run);
    CLAIM(strstr(s.before.text, "fixed --batch 2\n") != NULL);
    run_start_begin(&s, &options);
    run_start_close(&s);
}

// They repeat what rank 0 has said.
static int others_say(int size, const char* words) {
    int ok = 1;
    for (int rank = 1; rank < size; rank++) { ok = ended_saying(rank, 1, words) && ok; }
    return ok;
}

static void rank_0_alone_sees_the_folder(void) {
    run(4, begins, NULL);
    CHECK(all_ended_well(4) && file_exists(done_path()));
    for (int size = 1; size <= 4; size *= 2) { // all have the tree of one process
        run(size, resumes, NULL);
        CHECK(all_ended_well(size));
    }
    CHECK(!file_exists(NOT_THERE) && !file_exists(unit_path("run/main.lock")));
}

static char* of_machine; // what `begins` and `resumes` find otherwise, and how
static const char* otherwise;
static void other_machine(Comm* c) {
    (void)c;
    strcpy(of_machine, otherwise);
    if (freopen(unit_path("notes.txt"), "w", stdout) == NULL) { fatal("no notes.txt"); }
    setvbuf(stdout, NULL, _IONBF, 0); // a process that ends well leaves its buffers
}
// As run(1, body, NULL); the notes that it prints are in text.
static void run_otherwise(Body body, char* field, const char* value, char* text, size_t size) {
    of_machine = field, otherwise = value, change = other_machine;
    run(1, body, NULL);
    change = NULL;
    FILE* file = fopen_check(unit_path("notes.txt"), "r");
    text[fread(text, 1, size - 1, file)] = '\0';
    fclose(file);
}

// A resume on what computes other bits is refused, with both values; a checkpoint of before that does not say goes on.
static void another_machine_is_refused(void) {
    static const struct {
        char* field;
        const char *other, *note;
    } changes[] = {
        {numerics.gemm_library, "cuBLASLt 13.1.0",
         "gemm-library: the checkpoint has cuBLASLt 13.0.2, this run cuBLASLt 13.1.0 (changes the result)"},
        {numerics.compiler, "nvcc 12.6.85",
         "compiler: the checkpoint has nvcc 13.0.88, this run nvcc 12.6.85 (changes the result)"},
        {numerics.device, "NVIDIA H100 80GB HBM3",
         "device: the checkpoint has NVIDIA H200, this run NVIDIA H100 80GB HBM3 (changes the result)"},
        {numerics.compute_capability, "8.0",
         "compute-capability: the checkpoint has 9.0, this run 8.0 (changes the result)"},
        {numerics.sms, "114", "SMs: the checkpoint has 132, this run 114 (changes the result)"},
    };
    char notes[4096];
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        run_otherwise(resumes, changes[i].field, changes[i].other, notes, sizeof(notes));
        int ok = ended_saying(0, 1, "1 of these settings") && ended_saying(0, 1, "--resume-anyway") &&
                 strstr(notes, changes[i].note) != NULL;
        if (!CHECK(ok)) { printf("    %s\n%s", changes[i].note, notes); }
        options.resume_anyway = 1;
        run_otherwise(resumes, changes[i].field, changes[i].other, notes, sizeof(notes));
        CHECK(all_ended_well(1) && strstr(notes, changes[i].note) != NULL);
        options.resume_anyway = 0;
    }
    options.overwrite = 1;
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        run_otherwise(begins, changes[i].field, "", notes, sizeof(notes));
        CHECK(all_ended_well(1));
        options.overwrite = 0;
        run_otherwise(resumes, numerics.precision, "fp32", notes, sizeof(notes));
        CHECK(all_ended_well(1) && strstr(notes, ": the checkpoint has none, this run "));
        options.overwrite = 1;
    }
    run(4, begins, NULL);
    options.overwrite = 0;
    CHECK(all_ended_well(4));
}

// What is not typed is the run's; which flags are typed, rank 0 says, whose folder it is.
static void takes_flags(Comm* c) {
    RunStart s;
    Options o = cli_defaults();
    int rank = comm_rank(c);
    o.resume = 1, o.output_dir = rank == 0 ? run_path() : NOT_THERE;
    o.typed[CLI_INDEX_resume] = o.typed[CLI_INDEX_output_dir] = 1;
    o.typed[rank == 0 ? CLI_INDEX_val_every : CLI_INDEX_seed] = 1; // of the default's value
    run_start_open(&s, &o, c);
    run_start_keep_flags(&s, &o);
    CLAIM(o.batch == 2 && o.time == 4 && o.max_steps == 100 && o.weight_decay == 0.125);
    CLAIM(strcmp(o.model, unit_path("first.bin")) == 0 && o.checkpoint_every == 7 && o.seed == 43);
    CLAIM(o.val_every == cli_defaults().val_every && o.typed[CLI_INDEX_val_every] && !o.typed[CLI_INDEX_seed]);
    CLAIM(o.resume && !o.overwrite && strcmp(o.output_dir, rank == 0 ? run_path() : NOT_THERE) == 0);
    run_start_close(&s);
}

static void what_is_not_typed_is_the_run_s(void) {
    options.overwrite = 1;
    options.seed = 43, options.val_every = 3, options.checkpoint_every = 7, options.weight_decay = 0.125;
    run(2, begins, NULL);
    CHECK(all_ended_well(2));
    for (int size = 1; size <= 3; size++) {
        run(size, takes_flags, NULL);
        CHECK(all_ended_well(size));
    }
    unit_write(unit_path("run/main.flags"), "free --val-steps x\n", 19);
    run(3, takes_flags, NULL);
    CHECK(ended_saying(0, 1, "main.flags: --val-steps x") && others_say(3, "main.flags: --val-steps x"));
    Options defaults = cli_defaults();
    options.seed = defaults.seed, options.val_every = defaults.val_every;
    options.checkpoint_every = 0, options.weight_decay = 0.0;
    run(4, begins, NULL);
    CHECK(all_ended_well(4));
    options.overwrite = 0;
}

// A run of 100 steps that stands at its tenth goes on to another number of steps where that changes none of the ten rates.
static void other_steps_are_refused_where_they_matter(void) {
    static const struct {
        const char* scheduler;
        double fraction;
        int warmup, steps;
        const char* note; // of a run that is refused, or NULL
    } runs[] = {
        {"constant", 0.0, 0, 200, NULL},
        {"cosine", 1.0, 0, 200, NULL},
        {"cosine", 0.0, 10, 200, NULL}, // the ten are its warm-up
        {"linear", 0.0, 10, 50, NULL},
        {"cosine", 0.0, 9, 200, NULL}, // the tenth is the largest in both
        {"linear", 0.0, 0, 200, "step 10 had the learning rate 0.000273, and has 0.0002865 in a run of 200 steps"},
        {"cosine", 0.0, 8, 200, "step 10 had the learning rate 0.0002999, and has 0.0003 in a run of 200 steps"},
        {"wsd", 0.0, 0, 200, NULL},
        {"wsd", 0.0, 0, 12, NULL}, // the tenth is the last before the decay
        {"wsd", 0.0, 0, 11, "step 10 had the learning rate 0.0003, and has 0.0001268 in a run of 11 steps"}};
    char notes[4096], begin[200];
    for (size_t i = 0; i < sizeof(runs) / sizeof(runs[0]); i++) {
        options.scheduler = runs[i].scheduler, options.final_fraction = runs[i].fraction;
        options.warmup = runs[i].warmup, options.overwrite = 1;
        run(1, begins, NULL);
        CHECK(all_ended_well(1));
        options.overwrite = 0, num_steps = runs[i].steps;
        run_otherwise(resumes, numerics.precision, "fp32", notes, sizeof(notes));
        snprintf(begin, sizeof(begin), "note: --max-steps: the checkpoint has 100, this run %d (%s%s)\n", num_steps,
                 runs[i].note ? "changes the result: "
                              : "the run continues: the learning rates of its steps so far are the same",
                 runs[i].note ? runs[i].note : "");
        int ok = runs[i].note ? ended_saying(0, 1, "1 of these settings") : all_ended_well(1);
        if (!CHECK(ok && strcmp(notes, begin) == 0)) { printf("    -k %s\n%s%s", runs[i].scheduler, notes, begin); }
        options.resume_anyway = 1;
        run_otherwise(resumes, numerics.precision, "fp32", notes, sizeof(notes));
        CHECK(all_ended_well(1));
        options.resume_anyway = 0, num_steps = 100;
    }
    Options defaults = cli_defaults();
    options.scheduler = defaults.scheduler, options.final_fraction = defaults.final_fraction, options.warmup = 0;
    options.overwrite = 1;
    run(4, begins, NULL);
    CHECK(all_ended_well(4));
    options.overwrite = 0;
}

// A checkpoint that is older than a flag was trained with its default.
static void a_flag_newer_than_the_checkpoint_has_its_default(void) {
    static const char note[] =
        "note: --skip-grad-z: the checkpoint has 0 by default, this run 3 (changes the result)\n";
    char notes[4096];
    options.overwrite = 1, lacks = "result --skip-grad-z ";
    run(1, begins, NULL);
    CHECK(all_ended_well(1));
    options.overwrite = 0, lacks = NULL;
    run_otherwise(resumes, numerics.precision, "fp32", notes, sizeof(notes));
    CHECK(all_ended_well(1) && notes[0] == '\0');
    options.skip_grad_z = 3.0;
    run_otherwise(resumes, numerics.precision, "fp32", notes, sizeof(notes));
    CHECK(ended_saying(0, 1, "1 of these settings") && strcmp(notes, note) == 0);
    CHECK(ended_saying(0, 1,
                       "leave their flags out to take the run's own, put changed files back, or say --resume-anyway"));
    options.skip_grad_z = 0.0, options.overwrite = 1;
    run(4, begins, NULL);
    CHECK(all_ended_well(4));
    options.overwrite = 0;
}

// Their trees of sums are others, which changes the result.
static void another_tree_is_refused(void) {
    run(3, resumes, NULL);
    CHECK(ended_saying(0, 1, "1 of these settings") && others_say(3, "rank 0: -y 1: 1 of these settings"));
    options.resume_anyway = 1;
    run(3, resumes, NULL);
    CHECK(all_ended_well(3));
    options.resume_anyway = 0;
}

static void other_seed(Comm* c) { options.seed += comm_rank(c) == 2; }
static void other_device(Comm* c) { snprintf(numerics.device, sizeof(numerics.device), "GPU %d", comm_rank(c) / 2); }
static void other_data(Comm* c) {
    if (comm_rank(c) == 1) { data_name = "other.bin"; }
}

static void processes_that_differ_are_refused(void) {
    change = other_seed;
    run(4, resumes, NULL);
    CHECK(ended_saying(0, 1, "rank 2 ") && ended_saying(0, 1, "--seed") && others_say(4, "--seed"));
    change = other_device;
    run(3, resumes, NULL);
    CHECK(ended_saying(0, 1, "rank 2 ") && ended_saying(0, 1, "GPU 1") && ended_saying(0, 1, "GPU 0"));
    CHECK(others_say(3, "rank 2 was started with result device GPU 1"));
    change = other_data;
    run(3, resumes, NULL);
    CHECK(ended_saying(0, 1, "rank 1 ") && ended_saying(0, 1, "training-data") && others_say(3, "training-data"));
    change = NULL;
}

static void a_folder_in_use_is_said(void) {
    RunFolder held;
    check(run_folder_lock(&held, run_path()));
    run(3, resumes, NULL);
    char words[300], host[200] = "";
    gethostname(host, sizeof(host) - 1);
    snprintf(words, sizeof(words), "process %d on %s is using it", (int)getpid(), host);
    CHECK(ended_saying(0, 1, words) && others_say(3, "rank 0: -o"));
    run_folder_unlock(&held);
    run(2, begins, NULL); // without -y 1
    CHECK(ended_saying(0, 1, "holds a run (checkpoint 10)") && others_say(2, "rank 0: -o"));
}

// Rank 0 has its model, and waits: what its folder holds is not its to change yet.
static void nothing_changes_before_all_are_ready(void) {
    const char* left = unit_path("run/model_00000011.bin.tmp");
    unit_write(left, "", 0);
    options.overwrite = 1;
    for (fails = 0; fails < 3; fails++) {
        char words[64];
        snprintf(words, sizeof(words), "rank %d: out of memory", fails);
        run(3, begins, NULL);
        CHECK(ended_saying(fails, 1, words) && ended_saying(2 - fails / 2, 1, words));
        CHECK(file_exists(left) && file_exists(done_path()) && file_exists(model_path()));
        CHECK(!file_exists(unit_path("run/main.lock")));
    }
    fails = -1;
    run(3, begins, NULL);
    CHECK(all_ended_well(3) && !file_exists(left) && file_exists(done_path()));
    options.overwrite = 0;
}

// ----------------------------------------------------------------------------
// Weights

static void loads(Comm* c) {
    RunStart s;
    memset(&s, 0, sizeof(s));
    s.comm = c;
    const char* path = comm_rank(c) == 0 ? model_path() : NOT_THERE;
    GPT2 saved = make_model_of(config, 0, 1.0f);
    GPT2Config found = run_start_config(&s, path);
    CLAIM(memcmp(&found, &config, sizeof(config)) == 0);
    int unchecked = -1;
    float* params = run_start_load(&s, path, found, &unchecked);
    CLAIM(unchecked == 0 && memcmp(params, saved.blocks[GPT2_WEIGHTS], saved.info.num_parameters * sizeof(float)) == 0);
    free(params);
}

static void all_have_the_weights_that_rank_0_reads(void) {
    run(3, loads, NULL);
    CHECK(all_ended_well(3));
    unit_patch(model_path(), 5000, 1);
    run(3, loads, NULL);
    CHECK(ended_saying(0, 1, "checksum") && others_say(3, "rank 0: "));
}

// The number of steps belongs to the result where the rate of a step that both runs have depends on it.
static void steps_matter_where_the_rates_do(void) {
    static const char* types[4] = {"cosine", "linear", "constant", "wsd"};
    static const double fractions[3] = {0.0, 0.5, 1.0};
    for (int i = 0; i < 12; i++) {
        Options o = cli_defaults();
        o.scheduler = types[i / 3], o.final_fraction = fractions[i % 3];
        int differ = 0;
        for (int step = 0; step < 60; step++) {
            LearningRateScheduler run = {o.scheduler, 1.0f, 5, 60, (float)o.final_fraction}, longer = run;
            longer.num_steps = 80;
            differ += get_learning_rate(&run, step) != get_learning_rate(&longer, step);
        }
        if (!CHECK(run_start_steps_matter_(&o) == (differ > 0))) {
            printf("    -k %s -q %g: %d rates differ\n", o.scheduler, o.final_fraction, differ);
        }
    }
}

int main(void) {
    steps_matter_where_the_rates_do();
    options = cli_defaults();
    memset(options.typed, 1, sizeof(options.typed));
    options.output_dir = run_path();
    options.batch = 2, options.time = 4;
    options.model = unit_path("first.bin");
    GPT2 first = make_model_of(config, 0, 0.0f);
    check(model_file_write(options.model, config, MODEL_VERSION_FP32, 0, first.blocks[GPT2_WEIGHTS]));
    free_model(&first);
    write_tokens("tokens.bin", 1);
    write_tokens("other.bin", 2);
    rank_0_alone_sees_the_folder();
    another_tree_is_refused();
    another_machine_is_refused();
    what_is_not_typed_is_the_run_s();
    other_steps_are_refused_where_they_matter();
    a_flag_newer_than_the_checkpoint_has_its_default();
    processes_that_differ_are_refused();
    a_folder_in_use_is_said();
    nothing_changes_before_all_are_ready();
    all_have_the_weights_that_rank_0_reads();
    RunFolderScan scan;
    check(run_folder_scan(&scan, run_path()));
    check(run_folder_clear(&scan));
    run_folder_scan_free(&scan);
    remove(unit_path("run/main.lock"));
    rmdir(run_path());
    return unit_end();
}
