/*
A trainer with faults, for tests: the real one, whose calls of the model go through wrappers. The environment's FAULT names
them, separated by commas, each  kind@step  or  kind@step:number,  step as in main.log's s:N, counted from 0; with #rank
behind it, in that process only. Where FAULT_MARK names a file, what ends or stops a process writes it first: its time is
that of the fault. With FAULT_AHEAD the CPU's trainer begins steps ahead of the last one's result, as the GPU's does.
*/
#ifndef TRAIN_WITH_FAULTS_H
#define TRAIN_WITH_FAULTS_H

#include <math.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "llmc/model/gpt2_model.h"
#include "llmc/run/launch.h"
#include "llmc/run/schedulers.h"

/* The kinds:
    nan-gradient@12:1  a gradient of micro-step 1 becomes NaN      inf-gradient  or Inf      (without :number, micro-step 0)
    huge-gradient@12   it becomes 3e20, too much for its square    nan-once@12      NaN, but not when it is computed again
    inf-loss@5         the loss of the step becomes Inf            nan-loss      or NaN
    other-norm@5       the last bit of the gradient norm flips
    loss@130:30        the loss of the step is 30                  norm@130:30   the gradient norm is
    nan-weight@7       a weight is NaN when the step begins
    nan-validation@10  the loss of the validation's first batch after 10 steps is NaN
    flip@9             the second time that the step is computed, a bit of a gradient flips
    saturated@4:10     the model says that fp8's numbers saturate in the tenth step in a row (the CPU's trainer)
    slow@4:3           the step sleeps for 3 s; without :number, 6 s
    slow-save@3:1      the save in the background that follows the step takes 1 s longer
    term@4  usr1@4     SIGTERM or SIGUSR1 comes in the step        term-open@0      before the first step
    term-validation@10 SIGTERM in the validation after 10 steps    term-sample@10   in the sample
    cut-file@9         the file that FAULT_FILE names is cut off at the end of the step
    kill@6  stop@6     SIGKILL or SIGSTOP comes in the step        close@6  every socket of the process is shut down
    kill-open@0        SIGKILL before the first step               kill-validation@8  in the validation after 8 steps
    stop-open@0        SIGSTOP before the first step
    fail@6  memory@6   the forward pass fails; there is no memory  trap@6   a kernel traps (the GPU's trainer)
*/
typedef struct {
    char kind[32];
    int step, number; // number -1: not given
    int rank;         // that it happens in; -1: in all
    int done;         // what happens once has happened
} Fault;

static struct {
    Fault list[16];
    int count;
    int step, passes; // the step under way, and how often it has begun to be computed
    int rank;         // of this process
    int save_seconds; // that the save under way sleeps for, once
    int ahead;        // 1: the forward pass is that of the step after the one under way
} faults;

// Reads the environment's FAULT.
static inline void faults_read(void) {
    const char* text = getenv("FAULT");
    for (; text != NULL && *text != '\0'; text = strchr(text, ',') ? strchr(text, ',') + 1 : NULL) {
        Fault* f = &faults.list[faults.count];
        f->number = -1;
        int read = sscanf(text, "%31[^@]@%d:%d", f->kind, &f->step, &f->number);
        size_t length = strcspn(text, ",");
        const char* hash = (const char*)memchr(text, '#', length);
        f->rank = hash != NULL ? atoi(hash + 1) : -1;
        if (read < 2 || ++faults.count == 16) { fatal("FAULT=%s: kind@step:number#rank is wanted", text); }
    }
}

// The fault of this kind that is due now, or NULL.
static inline Fault* fault_due(const char* kind) {
    for (int i = 0; i < faults.count; i++) {
        Fault* f = &faults.list[i];
        int here = f->rank < 0 || f->rank == faults.rank;
        if (here && strcmp(f->kind, kind) == 0 && f->step == faults.step) { return f; }
    }
    return NULL;
}

// Makes the first number of a block the one with these fp32 bits; of a bf16 block, the upper half of them.
static inline void fault_poke(GPT2* model, GPT2Block block, uint32_t bits) {
    size_t bytes = block == GPT2_WEIGHTS ? gpt2_info(model)->weight_bytes : sizeof(float);
    if (bytes == 2) { bits >>= 16; }
    check(gpt2_copy_in(model, block, &bits, 0, bytes));
}

// The same, once.
static inline Fault* fault_due_once(const char* kind) {
    Fault* f = fault_due(kind);
    if (f == NULL || f->done) { return NULL; }
    f->done = 1;
    return f;
}

// The signal `kind` is due: the process gets it.
static inline void fault_raise(const char* kind, int signal) {
    if (fault_due_once(kind) == NULL) { return; }
    const char* path = getenv("FAULT_MARK");
    if (path != NULL) { fclose(fopen_check(path, "w")); }
    raise(signal);
}

// More memory than there is: of the GPU's in its trainer
static inline Status fault_allocate(void) {
#ifdef __CUDACC__
    void* p;
    return cuda_try(cudaMalloc(&p, (size_t)1 << 50));
#else
    void* volatile p = malloc_check((size_t)1 << 60); // else the compiler may leave it out
    free(p);
    return STATUS_OK;
#endif
}

#ifdef __CUDACC__
__global__ void fault_trap_kernel(void) { __trap(); }
static inline void fault_trap(void) { fault_trap_kernel<<<1, 1>>>(); }
#else
static inline void fault_trap(void) { fatal("FAULT: there is no kernel to trap in"); }
#endif

// Shuts down the sockets of this process, as where its network breaks.
static inline void fault_close_sockets(void) {
    struct stat st;
    for (int fd = 3; fd < 1024; fd++) {
        if (fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode)) { shutdown(fd, SHUT_RDWR); }
    }
}

static inline Launch fault_launch(const Options* o) {
    Launch launch = launch_processes(o);
    faults.rank = launch.rank;
    return launch;
}

static inline float fault_learning_rate(const LearningRateScheduler* s, int step) {
    faults.step = step;
    faults.passes = 0;
    return get_learning_rate(s, step);
}

// What comes in the step, with its first pass that is not ahead
static inline Status fault_pass(void) {
    Fault* slow = fault_due_once("slow");
    double awake = slow == NULL ? 0.0 : wall_seconds() + (slow->number < 0 ? 6.0 : slow->number);
    while (slow != NULL && wall_seconds() < awake) { usleep(10000); } // whatever signals come
    if (fault_due_once("term")) { raise(SIGTERM); }
    if (fault_due_once("usr1")) { raise(SIGUSR1); }
    fault_raise("kill", SIGKILL);
    fault_raise("stop", SIGSTOP);
    fault_raise("close", 0); // no signal
    if (fault_due("close")) { fault_close_sockets(); }
    fault_raise("fail", 0);
    if (fault_due("fail")) { return status_fail("the forward pass fails, as FAULT asks for"); }
    fault_raise("memory", 0);
    if (fault_due("memory")) { check(fault_allocate()); }
    fault_raise("trap", 0);
    if (fault_due("trap")) { fault_trap(); }
    return STATUS_OK;
}

static inline Status fault_forward(GPT2* model, const int* inputs, int B, int T) {
    faults.step += faults.ahead;
    if (fault_due_once("nan-weight")) { fault_poke(model, GPT2_WEIGHTS, 0x7fc00000u); }
    faults.step -= faults.ahead;
    if (!faults.ahead) { TRY(fault_pass()); }
    return gpt2_forward(model, inputs, B, T);
}

// What is between two steps comes after the first and belongs to the second.
static inline Status fault_validate(GPT2* model, float* loss, const int* inputs, const int* targets, int B, int T) {
    Status status = gpt2_validate(model, loss, inputs, targets, B, T);
    faults.step++;
    if (fault_due_once("nan-validation")) { *loss = NAN; }
    if (fault_due_once("term-validation")) { raise(SIGTERM); }
    fault_raise("kill-validation", SIGKILL);
    faults.step--;
    return status;
}

static inline Status fault_get_logits(GPT2* model, float* logits, int t) {
    faults.step++;
    if (fault_due_once("term-sample")) { raise(SIGTERM); }
    faults.step--;
    return gpt2_get_logits(model, logits, t);
}

static inline double fault_peak_flops(const GPT2* model) {
    faults.step = 0;
    if (fault_due_once("term-open")) { raise(SIGTERM); }
    fault_raise("kill-open", SIGKILL);
    fault_raise("stop-open", SIGSTOP);
    faults.step = -1; // no step yet
    if (getenv("FAULT_AHEAD") != NULL) { ((GPT2Info*)(uintptr_t)gpt2_info(model))->queues = 1; }
    return gpt2_peak_flops(model);
}

static inline Status fault_backward(GPT2* model, const int* inputs, const int* targets, int grad_accum_steps,
                                    int micro_step) {
    static const struct {
        const char* kind;
        uint32_t bits;
    } gradients[] = {{"nan-gradient", 0x7fc00000u}, {"inf-gradient", 0x7f800000u}, {"huge-gradient", 0x61821ab1u}};
    TRY(fault_pass());
    if (micro_step == 0) { faults.passes++; }
    Status status = gpt2_backward(model, inputs, targets, grad_accum_steps, micro_step);
    for (int i = 0; i < 3; i++) {
        Fault* f = fault_due(gradients[i].kind);
        if (f != NULL && micro_step == (f->number < 0 ? 0 : f->number)) {
            fault_poke(model, GPT2_GRADIENTS, gradients[i].bits);
        }
    }
    if (fault_due_once("nan-once")) { fault_poke(model, GPT2_GRADIENTS, 0x7fc00000u); }
    if (micro_step < grad_accum_steps - 1) { return status; }
    const char* file = getenv("FAULT_FILE");
    if (fault_due_once("cut-file") && (file == NULL || truncate(file, 2000) != 0)) { fatal("cannot cut %s", file); }
    if (fault_due("flip") && faults.passes == 2) {
        uint32_t bits;
        size_t at = gpt2_block_bytes(model, GPT2_GRADIENTS) / 2 & ~(size_t)3;
        check(gpt2_copy_out(model, &bits, GPT2_GRADIENTS, at, sizeof(bits)));
        bits ^= 1;
        check(gpt2_copy_in(model, GPT2_GRADIENTS, &bits, at, sizeof(bits)));
    }
    return status;
}

static inline Status fault_take_snapshot(GPT2* model) {
    Fault* slow = fault_due_once("slow-save");
    faults.save_seconds = slow == NULL ? 0 : slow->number;
    return gpt2_take_snapshot(model);
}

static inline Status fault_read_snapshot(GPT2* model, void* dst, GPT2Block block, size_t offset, size_t bytes) {
    if (faults.save_seconds > 0) { sleep((unsigned)faults.save_seconds); }
    faults.save_seconds = 0;
    return gpt2_read_snapshot(model, dst, block, offset, bytes);
}

// Another result of the step than the one that gpt2_grad_norm has computed, where gpt2_update reads it
static inline void fault_set_result(GPT2* model, float loss, float norm) {
    GPT2Info* info = (GPT2Info*)(uintptr_t)gpt2_info(model);
    info->mean_loss = loss, info->grad_norm = norm;
#ifdef __CUDACC__
    check(device_copy(&model->scalars->loss, &loss, sizeof(loss), cudaMemcpyHostToDevice));
    check(device_copy(&model->scalars->norm, &norm, sizeof(norm), cudaMemcpyHostToDevice));
#endif
}

static inline Status fault_grad_norm(GPT2* model, float* norm) {
    const GPT2Info* info = gpt2_info(model);
    Fault *loss = fault_due("loss"), *other_norm = fault_due("norm"), *saturated = fault_due("saturated");
    if (saturated) {
        GPT2Info* in_fp8 = (GPT2Info*)(uintptr_t)info;
        in_fp8->saturated_steps = saturated->number;
        in_fp8->codes = (GPT2Codes){1000, 10, 1};
    }
    int inf = fault_due("inf-loss") != NULL, nan = fault_due("nan-loss") != NULL,
        other = fault_due("other-norm") != NULL;
    if (!inf && !nan && !other && !loss && !other_norm) { return gpt2_grad_norm(model, norm); }
    float computed;
    Status status = gpt2_grad_norm(model, &computed);
    fault_set_result(model,
                     inf    ? INFINITY
                     : nan  ? NAN
                     : loss ? (float)loss->number
                            : info->mean_loss,
                     other        ? nextafterf(computed, 0.0f)
                     : other_norm ? (float)other_norm->number
                                  : computed);
    if (norm != NULL) { *norm = info->grad_norm; }
    return status;
}

#define launch_processes fault_launch
#define get_learning_rate fault_learning_rate
#define gpt2_forward fault_forward
#define gpt2_backward fault_backward
#define gpt2_grad_norm fault_grad_norm
#define gpt2_validate fault_validate
#define gpt2_get_logits fault_get_logits
#define gpt2_peak_flops fault_peak_flops
#define gpt2_take_snapshot fault_take_snapshot
#define gpt2_read_snapshot fault_read_snapshot
#include "llmc/run/gradients.h"

static inline void fault_ahead(TrainStep* s) {
    faults.ahead = 1;
    train_step_ahead(s);
    faults.ahead = 0;
}

#define train_step_ahead fault_ahead
#include "llmc/run/trainer.h"

#include "dev/test/fixtures/train_main.h"
#undef train_step_ahead
#undef launch_processes
#undef get_learning_rate
#undef gpt2_forward
#undef gpt2_backward
#undef gpt2_grad_norm
#undef gpt2_validate
#undef gpt2_get_logits
#undef gpt2_peak_flops
#undef gpt2_take_snapshot
#undef gpt2_read_snapshot

#endif
