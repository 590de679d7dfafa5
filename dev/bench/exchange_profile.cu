/*
What a step on several GPUs waits for: the GPU trainer with timing events around all that exchange/buckets.cuh does. Its flags
are the trainer's; PROFILE=60:20 says the first step that counts and how many. Rank 0 ends with a line for each span,

    profile NAME MS        milliseconds of a step, a mean: step, of one update to the next;
                           wait-gradients, wait-weights, wait-sums: what the model's stream waits for the others, exposed;
                           exchange-gradients, exchange-weights: what the other stream is busy with, exposed or not
    part NAME MS           of the model's stream: forward, backward, norm, update, each from its first kernel on

On one GPU too: what differs between the parts of one and of several is not exposed. PROFILE_WITHOUT=gradients or =weights
leaves that exchange out: the run's numbers are wrong then, its times say what the exchange costs. The events cost some
microseconds of a step. dev/bench/scaling.py --profile writes scaling_profile.csv from the lines `profile`.
*/
#include "llmc/exchange/buckets.cuh"

enum SpanKind { STEP, WAIT_GRADIENTS, WAIT_WEIGHTS, WAIT_SUMS, EXCHANGE_GRADIENTS, EXCHANGE_WEIGHTS, PARTS };
enum PartKind { FORWARD = PARTS, BACKWARD, NORM, UPDATE, NUM_SPAN_KINDS };
static const char* const span_names[NUM_SPAN_KINDS] = {
    "step",    "wait-gradients", "wait-weights", "wait-sums", "exchange-gradients", "exchange-weights",
    "forward", "backward",       "norm",         "update"};
enum { MAX_SPANS = 1 << 16 };

static struct {
    struct {
        cudaEvent_t begin, end;
        int kind; // SpanKind, PartKind
    } spans[MAX_SPANS];
    int count;
    int step, first, steps; // the step under way; those that are measured
    int rank;
    const char* without; // "", gradients, weights: what is not exchanged
} profile;

// Begins a span in a stream; returns its index, or -1 outside of the steps that are measured.
static int span_begin(int kind, cudaStream_t stream) {
    int inside = profile.step >= profile.first && profile.step < profile.first + profile.steps;
    if (!inside || profile.count == MAX_SPANS) { return -1; }
    int span = profile.count++;
    profile.spans[span].kind = kind;
    check(cuda_try(cudaEventCreate(&profile.spans[span].begin)));
    check(cuda_try(cudaEventCreate(&profile.spans[span].end)));
    check(cuda_try(cudaEventRecord(profile.spans[span].begin, stream)));
    return span;
}
static void span_end(int span, cudaStream_t stream) {
    if (span >= 0) { cuda_try(cudaEventRecord(profile.spans[span].end, stream)); }
}

static void profiled_gradients(BucketExchange* x, float* grads, int group, int all) {
    exchange_after_compute(x); // so that the span begins when the gradients are ready
    int span = span_begin(EXCHANGE_GRADIENTS, x->stream);
    if (strcmp(profile.without, "gradients") != 0) { exchange_gradients(x, grads, group, all); }
    span_end(span, x->stream);
}
static void profiled_gradients_end(BucketExchange* x) {
    int span = span_begin(WAIT_GRADIENTS, x->compute);
    exchange_gradients_end(x);
    span_end(span, x->compute);
}
static void profiled_weights(BucketExchange* x, void* weights, size_t element, int first, int end) {
    exchange_after_compute(x);
    int span = span_begin(EXCHANGE_WEIGHTS, x->stream);
    if (strcmp(profile.without, "weights") != 0) { exchange_weights(x, weights, element, first, end); }
    span_end(span, x->stream);
}
static void profiled_wait_weights(BucketExchange* x, int layer) {
    int span = x->gathering ? span_begin(WAIT_WEIGHTS, x->compute) : -1;
    exchange_wait_weights(x, layer);
    span_end(span, x->compute);
}
static void profiled_merge(BucketExchange* x, void* numbers, size_t count, CommNumber type) {
    profile.rank = x->rank;
    int span = span_begin(WAIT_SUMS, x->compute);
    exchange_merge(x, numbers, count, type);
    span_end(span, x->compute);
}

#define exchange_gradients profiled_gradients
#define exchange_gradients_end profiled_gradients_end
#define exchange_weights profiled_weights
#define exchange_wait_weights profiled_wait_weights
#define exchange_merge profiled_merge
#include "train_gpt2.cu"

// A step is from the end of one update to that of the next.
static Status profiled_update(GPT2* model, float learning_rate, float beta1, float beta2, float epsilon,
                              float weight_decay, float grad_clip, int step) {
    static int open = -1;
    int part = span_begin(UPDATE, model->stream);
    Status status = gpt2_update(model, learning_rate, beta1, beta2, epsilon, weight_decay, grad_clip, step);
    span_end(part, model->stream);
    span_end(open, model->stream);
    profile.step = step;
    open = step + 1 < profile.first + profile.steps ? span_begin(STEP, model->stream) : -1;
    return status;
}
static Status profiled_forward(GPT2* model, const int* inputs, int B, int T) {
    int part = span_begin(FORWARD, model->stream);
    Status status = gpt2_forward(model, inputs, B, T);
    span_end(part, model->stream);
    return status;
}
static Status profiled_backward(GPT2* model, const int* inputs, const int* targets, int steps, int micro_step) {
    int part = span_begin(BACKWARD, model->stream);
    Status status = gpt2_backward(model, inputs, targets, steps, micro_step);
    span_end(part, model->stream);
    return status;
}
static Status profiled_norm(GPT2* model, float* norm) {
    int part = span_begin(NORM, model->stream);
    Status status = gpt2_grad_norm(model, norm);
    span_end(part, model->stream);
    return status;
}

#define gpt2_update profiled_update
#define gpt2_forward profiled_forward
#define gpt2_backward profiled_backward
#define gpt2_grad_norm profiled_norm
#include "llmc/run/trainer.h"

#include "dev/test/fixtures/train_main.h"

static void print_profile(void) {
    double sum[NUM_SPAN_KINDS] = {0.0};
    int steps = 0;
    for (int i = 0; i < profile.count; i++) {
        float ms = 0.0f;
        check(cuda_try(cudaEventElapsedTime(&ms, profile.spans[i].begin, profile.spans[i].end)));
        sum[profile.spans[i].kind] += ms;
        steps += profile.spans[i].kind == STEP;
    }
    if (steps == 0) { fatal("PROFILE: none of its steps was trained; a run of more steps (-x) is wanted"); }
    if (profile.count == MAX_SPANS) { fatal("PROFILE: too many steps to measure"); }
    printf("profile step %.4f\n", sum[STEP] / steps);
    for (int kind = STEP + 1; kind < NUM_SPAN_KINDS; kind++) {
        printf("%s %s %.4f\n", kind < PARTS ? "profile" : "part", span_names[kind], sum[kind] / profile.steps);
    }
}

int main(int argc, char** argv) {
    const char* text = getenv("PROFILE");
    if (text == NULL || sscanf(text, "%d:%d", &profile.first, &profile.steps) != 2 || profile.steps < 2) {
        fatal("PROFILE=%s: FIRST:STEPS is wanted, such as PROFILE=60:20", text ? text : "");
    }
    profile.without = getenv("PROFILE_WITHOUT") ? getenv("PROFILE_WITHOUT") : "";
    if (strcmp(profile.without, "") != 0 && strcmp(profile.without, "gradients") != 0 &&
        strcmp(profile.without, "weights") != 0) {
        fatal("PROFILE_WITHOUT=%s: gradients or weights is wanted", profile.without);
    }
    int exit_code = train_main(argc, argv);
    if (exit_code == EXIT_SUCCESS && profile.rank == 0) { print_profile(); }
    return exit_code;
}
