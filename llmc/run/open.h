/*
Everything before the first step: the options are checked, the folder is locked, the data opened, the model built or read, in
all processes of a run at the same time.
Nothing is allocated before all that can be checked without a model has been checked, and nothing is written before the model
stands. All of it ends the program with one line if something is wrong.
*/
#ifndef LLMC_RUN_OPEN_H
#define LLMC_RUN_OPEN_H

#include "state.h"
#include "llmc/base/signals.h"
#include "llmc/base/terminal.h"
#include "llmc/files/model_file.h"
#include "llmc/files/weights_file.h"

enum { GPT2_VOCAB_SIZE = 50257 };

// ----------------------------------------------------------------------------
// The options, against each other and against what the data holds. What can only be a mistake ends with one line; what is odd
// is noted.

// Computes the tokens of a step that -d -1 stands for, and checks those that -d names.
static inline void trainer_check_batch_(Options* o, int processes) {
    long long all = (long long)o->batch * o->time * processes;
    if (o->total_batch == -1 && all <= INT_MAX) { o->total_batch = (int)all; }
    run_plan_check_total(o->total_batch, o->batch, o->time, processes);
}

// Notes a flag that changes nothing where it stands, and takes its default: its value does not make it another run.
static inline void trainer_note_unused_(Options* o, const CliFlag* f, const char* where) {
    char value[64];
    printf("note: %s %s has no effect %s\n", f->short_name ? f->short_name : f->long_name, cli_value(o, f, value),
           where);
    memcpy((char*)o + f->offset, (const char*)&cli_default_options + f->offset, f->size);
    o->typed[f - cli_flags] = 0;
}

// Follows llm.c's command lines where nothing is lost: its CPU trainer has no flags, and -z 2 and 3 are no stages of its own.
static inline void trainer_note_llmc_(Options* o) {
    const Options* defaults = &cli_default_options;
    for (int i = 0; i < NUM_CLI_FLAGS; i++) {
        const CliFlag* f = &cli_flags[i];
        if ((f->who & CLI_TRAINER) || !cli_differs(o, defaults, f)) { continue; }
        trainer_note_unused_(o, f, "on the CPU");
    }
    if (o->zero > 1) {
        printf("note: -z %d: ZeRO stage %d is not implemented; using -z 1, which gives the same bits\n", o->zero,
               o->zero);
        o->zero = 1;
    }
}

// Checks the options against each other; cli_parse has checked each flag by itself.
static inline void trainer_check_options(Options* o, int processes) {
    if (o->batch != CLI_AUTO) { trainer_check_batch_(o, processes); }
    const char *path = o->log_json ? o->log_json : "", *slash = strrchr(path, '/'), *log = slash ? slash + 1 : path;
    if (strcmp(log, "main.log") == 0 || strcmp(log, "main.jsonl") == 0) {
        fatal("--log-json %s: a run's own log has that name; choose another", o->log_json);
    }
    if (o->resume && o->output_dir == NULL) { fatal("-y 1 needs -o, the directory of the run to continue"); }
    if (o->learning_rate != 0.0 && o->learning_rate < (double)FLT_MIN) {
        fatal("-l %g is 0 in fp32; raise it, or say -l 0 to leave the weights as they are", o->learning_rate);
    }
    if (o->grad_clip != 0.0 && o->grad_clip < (double)FLT_MIN) {
        fatal("--grad-clip %g is 0 in fp32; raise it, or say --grad-clip 0 for no clipping", o->grad_clip);
    }
    int constant = strcmp(o->scheduler, "constant") == 0;
    const struct {
        int unused, index;
        const char* where;
    } flags[] = {{o->output_dir == NULL && o->checkpoint_every > 0, CLI_INDEX_checkpoint_every, "without -o"},
                 {o->output_dir == NULL && o->overwrite, CLI_INDEX_overwrite, "without -o"},
                 {o->checkpoints_keep > 0 && o->checkpoint_every == 0, CLI_INDEX_checkpoints_keep, "without -n"},
                 {o->checkpoint_major > 0 && o->checkpoint_every == 0, CLI_INDEX_checkpoint_major, "without -n"},
                 {o->resume_anyway && !o->resume, CLI_INDEX_resume_anyway, "without -y 1"},
                 {o->max_skips != cli_default_options.max_skips && strcmp(o->non_finite, "skip") != 0,
                  CLI_INDEX_max_skips, "without --non-finite skip"},
                 {o->fp8 && o->recompute != CLI_AUTO, CLI_INDEX_recompute, "with --fp8 1"},
                 {!o->documents && strcmp(o->positions, "row") != 0, CLI_INDEX_positions, "without --documents"},
                 {o->momentum != cli_default_options.momentum && strcmp(o->optimizer, "muon") != 0, CLI_INDEX_momentum,
                  "without --optimizer muon"},
                 {constant && o->warmup > 0, CLI_INDEX_warmup, "with -k constant"},
                 {constant && o->final_fraction != 1.0, CLI_INDEX_final_fraction, "with -k constant"}};
    for (size_t i = 0; i < sizeof(flags) / sizeof(flags[0]); i++) {
        if (flags[i].unused) { trainer_note_unused_(o, &cli_flags[flags[i].index], flags[i].where); }
    }
    if (o->output_dir == NULL && !o->plan) {
        printf("note: without -o FOLDER: nothing of this run is kept, no checkpoint and no main.log\n");
    }
    if (o->output_dir != NULL && o->checkpoint_every == 0 && !o->plan) {
        printf("note: without -n STEPS: the model is lost at the end of the run; only a run that a signal stops is "
               "saved\n");
    }
    if (o->max_steps == 0 && o->checkpoint_every > 0) { // it stays the run's, for -y 1
        printf("note: -n %d has no effect with -x 0: a checkpoint follows a step\n", o->checkpoint_every);
    }
    trainer_note_llmc_(o);
    if (o->overfit) { o->train_data = o->val_data; }
}

static inline void trainer_check_vocabularies_(const Options* o) {
    int train = dataloader_vocab_size(o->train_data), val = dataloader_vocab_size(o->val_data);
    if (train == 0 || val == 0 || train == val) { return; }
    fatal("-j %s holds tokens of a vocabulary of %d, -i %s of %d; make both with one tokenizer, or say -m 0 for no "
          "validation",
          o->val_data, val, o->train_data, train);
}

// Refuses patterns of which one takes in files of the other. The same files for both, which nobody names by mistake, are noted.
static inline void trainer_check_data_(const Trainer* t) {
    const Options* o = &t->options;
    const char* file = NULL;
    if (o->overfit) { return; }
    size_t shared = dataloader_shared_files(&t->train, &t->val, &file);
    if (shared == 0) { return; }
    if (shared < t->train.num_shards || shared < t->val.num_shards) {
        fatal("-i %s and -j %s both match %s; narrow one, or say -m 0 for no validation", o->train_data, o->val_data,
              file);
    }
    printf("note: -i %s and -j %s are the same data: the validation loss says nothing about other text\n",
           o->train_data, o->val_data);
}

// Checks the options against what the data holds and the number of steps that follows.
static inline void trainer_check_steps_(const Trainer* t) {
    const Options* o = &t->options;
    if (t->num_steps == 0 && o->max_steps == -1) {
        fatal("-d %d is more than the %zu tokens of -i %s: one epoch (-x -1) has no whole step; lower -d, or set the "
              "number of steps with -x",
              o->total_batch, t->train.num_tokens, o->train_data);
    }
    if (o->learning_rate * o->weight_decay >= 1.0) {
        fatal("-l %g times -c %g is 1 or more: weight decay alone would take away every weight in one step; lower one",
              o->learning_rate, o->weight_decay);
    }
    if (o->warmup > t->num_steps && t->num_steps > 0 && strcmp(o->scheduler, "constant") != 0) {
        printf("note: -u %d is above the run's %d steps: the learning rate ends at %.3g, on its way to -l %g\n",
               o->warmup, t->num_steps, (double)get_learning_rate(&t->schedule, t->num_steps - 1), o->learning_rate);
    }
}

// ----------------------------------------------------------------------------
// The model

// The sizes of the model: those of a file or folder of weights, or those that a descriptor names.
static inline GPT2Config trainer_config(const Trainer* t, const char* source) {
    const Options* o = &t->options;
    if (run_start_is_file(&t->start, source)) {
        GPT2Config config = run_start_config(&t->start, source);
        if (o->typed[CLI_INDEX_vocab_size] && o->vocab_size != 0 && o->vocab_size != config.vocab_size) {
            fatal("--vocab-size %d: the model in %s has a vocabulary of %d; leave the flag out, or begin a new model, "
                  "such as -e d12",
                  o->vocab_size, source, config.vocab_size);
        }
        return config;
    }
    int vocab_size = o->vocab_size ? o->vocab_size : dataloader_vocab_size(o->train_data);
    return gpt2_config_for_rows(source, vocab_size ? vocab_size : GPT2_VOCAB_SIZE, o->time);
}

// The model's settings, from the flags and the number of processes.
static inline GPT2Settings trainer_settings(const Trainer* t) {
    const Options* o = &t->options;
    GPT2Settings s = gpt2_default_settings();
    s.recompute = o->recompute;
    s.master_weights = o->master_weights;
    s.tf32 = o->tf32;
    s.gelu_fusion = o->gelu_fusion;
    s.micro_steps = run_plan_micro_steps(o, o->batch, comm_size(t->comm));
    s.comm = t->comm;
    s.muon = strcmp(o->optimizer, "muon") == 0, s.momentum = (float)o->momentum;
    s.zero = o->zero;
    s.sum_any = strcmp(o->sum_order, "any") == 0;
    s.copy_engines = strcmp(o->exchange, "auto") == 0;
    s.graphs = o->cuda_graphs;
    s.fp8 = o->fp8;
    s.documents = o->documents, s.positions = strcmp(o->positions, "document") == 0;
    s.separator = t->tokenizer.eot_token;
    return s;
}

// The trained length of the model in this run: -t, or more if its initial weights had more. A run that began with new weights
// has had one -t, also where its checkpoint is older than this field.
static inline int trainer_trained_length_(const Trainer* t, GPT2Config config, int is_file) {
    const RunIdentity* before = &t->start.before;
    char origin[128] = "";
    if (t->resumed) { run_identity_value(before->text, before->text_bytes, "initial-weights", origin, sizeof(origin)); }
    int length = is_file && strcmp(origin, "new") != 0 ? gpt2_trained_length(config) : 0;
    return length > t->options.time ? length : t->options.time;
}

// The model, with the weights of a file or folder or, where the source is a descriptor, new ones.
static inline void trainer_build_model(Trainer* t, GPT2Config config, const char* source) {
    Options* o = &t->options;
    GPT2Config trained = config;
    int is_file = run_start_is_file(&t->start, source);
    trained.trained_len = trainer_trained_length_(t, config, is_file);
    check(gpt2_create(&t->model, trained, trainer_settings(t)));
    t->peak_flops = gpt2_peak_flops(t->model);
    check(gpt2_allocate(t->model, o->batch, o->time, 1));
    float* params;
    if (is_file) {
        params = run_start_load(&t->start, source, config, &t->unchecked_model);
    } else {
        params = (float*)malloc_check(gpt2_info(t->model)->num_parameters * sizeof(float));
        gpt2_init_parameters(params, config, (unsigned int)o->seed);
    }
    check(gpt2_set_parameters(t->model, params));
    free(params);
}

// The rows on a run of several processes
static inline void trainer_print_processes_(const Trainer* t) {
    if (comm_size(t->comm) == 1) { return; }
    print_table_row("all processes", "%d, %d on this machine, started by %s", t->launch.size, t->launch.local_size,
                    t->launch.how);
    const char* device = gpt2_info(t->model)->copy_engines ? "copy engines; sums by NCCL" : "NCCL";
    print_table_row("tensors between them", "%s", t->comm->device.exchange != NULL ? device : "TCP");
    print_table_row("ZeRO stage", "%s", gpt2_info(t->model)->sharded ? "1: moments and master weights in shards" : "0");
    print_table_line();
}

// The rows on the machine
static inline void trainer_print_machine_(const Trainer* t, const GPT2Numerics* n) {
    const double peak = t->peak_flops;
    print_table_row("device", "%s", n->machine);
    if (n->cuda[0] != '\0') { print_table_row("CUDA", "%s", n->cuda); }
    print_table_row("precision", "%s", n->precision);
    if (peak > 0.0) {
        print_table_row("MFU", "of %.4g TFLOP/s, the dense %s peak", peak * 1e-12, n->precision);
    } else if (n->cuda[0] != '\0') {
        print_table_row("MFU", "unknown: no %s peak for %s in llmc/model/gpu_peaks.h", n->precision, n->device);
    }
    print_table_row("GEMMs", "%s", n->gemm);
    print_table_row("attention", "%s", n->attention);
    print_table_line();
}

static inline void trainer_print(const Trainer* t, const char* source, const GPT2Numerics* numerics) {
    const Options* o = &t->options;
    const GPT2Info* info = gpt2_info(t->model);
    GPT2Config c = info->config;
    cli_print(&cli_program, o, o->all_flags ? NULL : "--train-data|--val-data|--model|--batch|--time|--total-batch");
    trainer_print_machine_(t, numerics);
    trainer_print_processes_(t);
    print_table_row("run", "%" PRIu64, t->start.identity.run); // as in main.log
    print_table_row("weights from", "%s", source);
    print_table_row("context maxT", "%d", c.max_seq_len);
    print_table_row("vocabulary V (Vp)", "%d (%d)", c.vocab_size, c.padded_vocab_size);
    print_table_row("layers L", "%d", c.num_layers);
    print_table_row("heads NH", "%d", c.num_heads);
    print_table_row("channels C", "%d", c.channels);
    print_table_row("parameters", "%zu", info->num_parameters);
    print_table_row("memory", "%.0f MiB", (double)info->memory_bytes / (1 << 20));
    run_plan_print_peaks(&t->plan);
    print_table_row("snapshot", "%s", t->writer.settings.in_background ? "host" : "none");
    print_table_row("training tokens", "%zu", t->train.num_tokens);
    print_table_row("validation tokens", "%zu", t->val.num_tokens);
    print_table_row("steps", "%d", t->num_steps);
    print_table_row("validation batches", "%d", t->val_batches);
    print_table_row("micro-steps of a step", "%d%s", t->accumulation, comm_size(t->comm) > 1 ? " in each process" : "");
    print_table_line();
    if (o->time < c.max_seq_len) {
        printf("note: -t %d is shorter than the model's context of %d: position embeddings beyond stay as they are\n",
               o->time, c.max_seq_len);
    }
    fflush(stdout);
}

// Notes that files have no checksums: `unchecked` of so many.
static inline void trainer_note_unchecked_(const char* name, size_t unchecked, size_t files) {
    char of[64] = "";
    if (unchecked == 0) { return; }
    if (files > 1) { snprintf(of, sizeof(of), "%zu of %zu files of ", unchecked, files); }
    printf("note: no checksums in %s%s (made by another program or an older version): damage would go unnoticed\n", of,
           name);
}

static inline void trainer_note_all_unchecked_(const Trainer* t, const char* source) {
    const Options* o = &t->options;
    trainer_note_unchecked_(source, (size_t)t->unchecked_model, 1);
    trainer_note_unchecked_(o->train_data, t->train.num_unchecked, t->train.num_shards);
    if (!o->overfit) { trainer_note_unchecked_(o->val_data, t->val.num_unchecked, t->val.num_shards); }
    trainer_note_unchecked_(o->hellaswag_data, (size_t)t->hellaswag.unchecked, 1);
    trainer_note_unchecked_(t->tokenizer_path, (size_t)t->tokenizer.unchecked, 1);
}

// Chooses what is auto, and refuses sizes that do not fit.
static inline void trainer_plan_(Trainer* t, GPT2Config config) {
    Options* o = &t->options;
    if (o->time > config.max_seq_len) {
        fatal("-t %d is longer than the model's context of %d; lower it, or begin a new model: -e gpt2:l%dc%dh%dt%d",
              o->time, config.max_seq_len, config.num_layers, config.channels, config.num_heads, o->time);
    }
    char batch[32]; // of the checkpoint, for -b auto
    run_identity_value(t->start.before.text, t->start.before.text_bytes, "--batch", batch, sizeof(batch));
    run_plan_open(&t->plan, o, config, trainer_settings(t), t->launch.local_size, atoi(batch));
    trainer_check_batch_(o, comm_size(t->comm));
    if (!o->plan) { run_plan_check(&t->plan, o); }
}

// Opens the checkpoint writer. Without -n only signals request checkpoints, which need no snapshot.
NOINLINE void trainer_open_writer_(Trainer* t) {
    const Options* o = &t->options;
    CheckpointWriterSettings s;
    s.folder = &t->start.folder;
    s.keep = o->checkpoints_keep, s.major = o->checkpoint_major;
    s.in_background = t->plan.snapshot;
    s.newest = t->start.step;
    run_plan_note_snapshot(&t->plan, o);
    if (t->start.scan.num_files == 0) { run_plan_note_disk(&t->plan, o, t->num_steps); }
    checkpoint_writer_open(&t->writer, t->model, s);
}

// The tokenizer of the run: --tokenizer, or that of the weights, if they have one of their own.
NOINLINE void trainer_find_tokenizer_(Trainer* t, const char* source, int vocab_size) {
    Options* o = &t->options;
    char folder[1024];
    int typed = o->typed[CLI_INDEX_tokenizer];
    cli_check_file("--tokenizer", typed ? o->tokenizer : NULL, "; python3 dev/data/tokenizer.py writes GPT-2's");
    if (typed && vocab_size == BYTE_VOCAB_SIZE) {
        trainer_note_unused_(o, &cli_flags[CLI_INDEX_tokenizer], "on a model whose 256 tokens are bytes");
    }
    const char* path = o->tokenizer;
    if (strcmp(path, TOKENIZER_FILE) == 0 && weights_is_file(source)) {
        path = tokenizer_of_model(source, folder, sizeof(folder));
    }
    snprintf(t->tokenizer_path, sizeof(t->tokenizer_path), "%s", path);
}

// 1 if this process needs the tokenizer: for samples, or to know what separates documents.
static inline int trainer_has_tokenizer(const Trainer* t) {
    return t->options.documents || (t->options.sample_every > 0 && comm_rank(t->comm) == 0);
}

// Keeps a tokenizer of Hugging Face with the run: copies its files, and removes those of the run whose folder it takes. Beside
// a model of Hugging Face they are that model's.
NOINLINE void trainer_keep_tokenizer_(const Trainer* t) {
    const char *from = t->tokenizer_path, *to = t->options.output_dir;
    int has_one = folder_exists(from);
    if (t->resumed || to == NULL || comm_rank(t->comm) != 0 || same_file(from, to)) { return; }
    if (t->start.scan.num_files > 0 && vocab_in_folder(to) && !hugging_face_is_folder(to)) {
        hugging_face_remove_tokenizer(to);
        printf("note: removed the tokenizer of the run before from %s\n", to);
    }
    if (!has_one) { return; }
    check(hugging_face_copy_tokenizer(to, from));
    Vocab read;
    if (trainer_has_tokenizer(t)) { return; } // which has read it
    if (vocab_read_folder(&read, from) == STATUS_OK) {
        vocab_free(&read);
        return;
    }
    print_warning("%s; the run keeps it as it is, and generation will need --tokenizer", status_message());
    status_clear();
}

// -h 1 without the file that is its default trains without HellaSwag, as llm.c does. Rank 0's answer counts for all.
static inline void trainer_find_hellaswag_(Trainer* t) {
    Options* o = &t->options;
    int32_t missing = file_missing(o->hellaswag_data);
    if (!o->hellaswag || strcmp(o->hellaswag_data, cli_defaults().hellaswag_data) != 0) { return; }
    check(comm_broadcast(t->comm, &missing, sizeof(missing), 0));
    if (!missing) { return; }
    printf("note: -h 1 has no effect: there is no %s, which python3 dev/data/hellaswag.py writes\n", o->hellaswag_data);
    o->hellaswag = 0;
}

// Warns of tokens that another tokenizer than that of the model's initial weights may have made.
static inline void trainer_warn_of_tokens_(const Trainer* t, GPT2Config config, const char* source) {
    int V = dataloader_vocab_size(t->options.train_data), is_file = run_start_is_file(&t->start, source);
    if (t->resumed || !is_file || comm_rank(t->comm) > 0) { return; }
    if (V != 0 && V != config.vocab_size) {
        print_warning(
            "%s has tokens from a vocabulary of %d, that of the model in %s has %d; did its tokenizer make them?",
            t->options.train_data, V, source, config.vocab_size);
    }
}

// Opens the data files and computes the number of steps: all that needs the model's sizes, but no model.
static inline void trainer_open_data_(Trainer* t, GPT2Config config) {
    const Options* o = &t->options;
    HostAlloc memory = {o->plan ? NULL : gpt2_host_alloc, o->plan ? NULL : gpt2_host_free};
    int V = config.vocab_size, rank = comm_rank(t->comm), size = comm_size(t->comm);
    dataloader_open(&t->train, o->train_data, o->batch, o->time, !o->overfit, (unsigned int)o->seed, V, memory);
    dataloader_share(&t->train, rank, size, o->total_batch / (o->batch * o->time));
    if (o->val_steps != 0) {
        trainer_check_vocabularies_(o);
        dataloader_open(&t->val, o->val_data, o->batch, o->time, 0, 0, V, memory);
        dataloader_share(&t->val, rank, size, size); // batch i is process i % size's
        trainer_check_data_(t);
    }
    if (o->hellaswag) {
        cli_check_file("--hellaswag-data", o->hellaswag_data, "; python3 dev/data/hellaswag.py writes it");
        evalloader_open(&t->hellaswag, o->hellaswag_data, o->batch, o->time);
        evalloader_check_vocab(&t->hellaswag, V);
    }
    if (trainer_has_tokenizer(t)) { tokenizer_load_to_decode(&t->tokenizer, t->tokenizer_path, V); }
    if (o->documents && !t->tokenizer.ready && (V != GPT2_VOCAB_SIZE || o->typed[CLI_INDEX_tokenizer])) {
        fatal("--documents %d: the token that begins a document is unknown without a tokenizer of %d tokens; "
              "--tokenizer names one",
              o->documents, V);
    }
    int data = dataloader_vocab_size(o->train_data); // 0: not known
    if (o->documents && data != 0 && t->tokenizer.eot_token >= data) {
        fatal("--documents %d: token %d begins a document, and -i %s has tokens of a vocabulary of %d; leave "
              "--vocab-size out, or name the data's --tokenizer",
              o->documents, t->tokenizer.eot_token, o->train_data, data);
    }
    t->accumulation = o->total_batch / (o->batch * o->time) / size;
    t->num_steps = o->max_steps >= 0 ? o->max_steps : (int)(t->train.num_tokens / (size_t)o->total_batch);
    size_t val_batches = t->val.num_batches;
    t->val_batches = o->val_steps >= 0 && (size_t)o->val_steps < val_batches ? o->val_steps : (int)val_batches;
    if (t->first_step > t->num_steps) {
        fatal("-x %d: the checkpoint in %s is already at step %d", t->num_steps, o->output_dir, t->first_step);
    }
    recipe_set(&t->options, t->num_steps);
    t->schedule = run_start_schedule(o, t->num_steps);
    trainer_check_steps_(t);
}

// Prints the plan; returns the program's exit code. Of several processes rank 0 prints its own, and the code covers all.
static inline int trainer_print_plan_(const Trainer* t) {
    const Options* o = &t->options;
    const RunPlan* p = &t->plan;
    char processes[32] = "", value[64];
    if (comm_size(t->comm) > 1) { snprintf(processes, sizeof(processes), " x %d processes", comm_size(t->comm)); }
    print_table_line();
    print_table_row("model", "%s", o->model);
    print_table_row("batch -b, row -t", "%d, %d", o->batch, o->time);
    print_table_row("recompute -r", "%d", o->recompute);
    print_table_line();
    run_plan_print_memories(p);
    print_table_row("training tokens", "%zu", t->train.num_tokens);
    print_table_row("validation tokens", "%zu", t->val.num_tokens);
    print_table_row("tokens of a step", "%d: B %d x T %d x %d micro-steps%s", o->total_batch, o->batch, o->time,
                    t->accumulation, processes);
    print_table_row("steps", "%d to %d: %.0f tokens", t->first_step, t->num_steps,
                    (double)(t->num_steps - t->first_step) * o->total_batch);
    print_table_row("validation batches", "%d", t->val_batches);
    for (const CliFlag* f = &cli_flags[CLI_INDEX_scheduler]; f <= &cli_flags[CLI_INDEX_weight_decay]; f++) {
        if (cli_differs(o, &cli_default_options, f)) {
            print_table_row(f->long_name + 2, "%s", cli_value(o, f, value));
        }
    }
    int disk = run_plan_print_disk(p, o, t->first_step, t->num_steps);
    print_table_line();
    int code = run_plan_most_(t->comm, run_plan_print_notes(p, o, disk) ? EXIT_SUCCESS : EXIT_FAILURE);
    comm_close(t->comm);
    return code;
}

// At exit, also after an error: finishes a save in progress, and unlocks the folder.
static Trainer* trainer_opened_;
static inline void trainer_at_exit_(void) {
    checkpoint_writer_wait(&trainer_opened_->writer);
    run_folder_unlock(&trainer_opened_->start.folder);
}

// Selects the process's GPU and sets up the agreement with the others.
static inline void trainer_begin_(Trainer* t) {
    int devices = comm_size(t->comm) > 1 ? gpt2_num_devices() : 0;
    gpt2_use_device(devices > 0 ? launch_device(&t->launch, devices) : 0);
    t->agreement.comm = t->comm;
    if (comm_size(t->comm) > 1) { signals_begin_steps(); } // from here on, processes agree on signals
}

// Creates or clears the folder, and opens --log-json. An existing folder is changed only after the log could be opened; a new
// one is created first, as the log may be in it.
static inline void trainer_begin_folder_(Trainer* t) {
    const char* log = comm_rank(t->comm) == 0 ? t->options.log_json : NULL;
    int exists = t->start.scan.exists;
    if (exists) { step_log_open(&t->log, log); }
    run_start_begin(&t->start, &t->options);
    if (!exists) { step_log_open(&t->log, log); }
}

// Writes the first line of main.jsonl and --log-json, which identifies the run.
static inline void trainer_begin_log_(Trainer* t) {
    char run[32];
    t->logged_save = -1;
    if (!step_log_begin(&t->log, t->first_step)) { return; }
    snprintf(run, sizeof(run), "%" PRIu64,
             t->start.identity.run); // a number would lose its last digits in some readers
    step_log_text(&t->log, "event", t->resumed ? "resume" : "start");
    step_log_text(&t->log, "run", run);
    step_log_text(&t->log, "program", CLI_PROGRAM);
    step_log_number(&t->log, "steps", t->num_steps);
    step_log_number(&t->log, "tokens_per_step", t->options.total_batch);
    step_log_number(&t->log, "parameters", (double)gpt2_info(t->model)->num_parameters);
    step_log_settings(&t->log, &t->start.identity);
    step_log_end(&t->log);
}

// Everything before the first step. Ends the program with one line on an error. Checks all that needs no model before it
// allocates one, and writes nothing before the model is complete.
static inline void trainer_open(Trainer* t) {
    Options* o = &t->options;
    GPT2Numerics numerics;
    trainer_begin_(t);
    check(gpt2_prepare_threads());
    t->start.folder.lock = -1;
    trainer_opened_ = t;
    atexit(trainer_at_exit_);
    run_start_open(&t->start, o, t->comm);
    recipe_set(o, -1);
    trainer_check_options(o, comm_size(t->comm)); // with what -y 1 takes from the run
    run_start_check_data(&t->start, o);
    // Older versions recorded flags that have no effect: with the checkpoint's values they compare as equal.
    run_flags_take(o, &t->start.before, o->output_dir);
    t->resumed = t->start.step >= 0;
    t->first_step = t->resumed ? t->start.step : 0;
    CheckpointPaths paths = checkpoint_paths(o->output_dir ? o->output_dir : "", t->first_step);
    const char* source = t->resumed ? paths.model : o->model;
    GPT2Config config = trainer_config(t, source);
    trainer_find_tokenizer_(t, source, config.vocab_size);
    Options kept = *o; // for main.flags: what is auto stays auto
    trainer_find_hellaswag_(t);
    trainer_plan_(t, config);
    trainer_open_data_(t, config);
    kept.learning_rate = o->learning_rate, kept.warmup = o->warmup; // which a recipe has set by now
    run_start_keep_flags(&t->start, &kept);
    trainer_warn_of_tokens_(t, config, source);
    if (o->plan) { exit(trainer_print_plan_(t)); }
    check(gpt2_numerics(&numerics, config, trainer_settings(t), o->batch, o->time));
    run_start_describe(&t->start, o, config, &numerics, &t->train, &t->val, t->num_steps, t->tokenizer.eot_token);
    run_start_compare(&t->start, o);

    trainer_build_model(t, config, source);
    if (o->output_dir != NULL) { trainer_open_writer_(t); }
    outlier_init(&t->outliers.loss);
    outlier_init(&t->outliers.grad_norm);
    if (t->resumed) {
        t->train.other_data = o->resume_anyway && t->start.before.data != t->start.identity.data;
        check(checkpoint_read(t->model, &t->train, &t->outliers, o->output_dir, t->first_step));
    }
    trainer_begin_folder_(t);
    trainer_keep_tokenizer_(t);
    logger_open(&t->logger, comm_rank(t->comm) == 0 ? o->output_dir : NULL, t->resumed ? t->first_step : -1,
                t->start.identity.run);
    step_log_open_own(&t->log, comm_rank(t->comm) == 0 ? o->output_dir : NULL, t->resumed);
    t->logger.folder = t->log.own.folder = &t->start.folder;
    trainer_begin_log_(t);
    t->terminal = comm_rank(t->comm) == 0 && terminal_can_rewrite();
    trainer_print(t, source, &numerics);
    trainer_note_all_unchecked_(t, source);
    t->step.model = t->model, t->step.loader = &t->train, t->step.accumulation = t->accumulation;
    t->step.agreement = &t->agreement;
    t->saved_step = t->resumed ? t->first_step : -1;
    if (comm_rank(t->comm) == 0) { watchdog_start(&t->watchdog); }
    check(agree(&t->agreement, STATUS_OK)); // on signals received since
    signals_begin_steps();
}

#endif
