// The check of dev/cuda/attention/bench.cu compares every output of repeated runs: a variant of which one output, whichever,
// has another bit from the second run on is right within rounding, but not deterministic. Needs a GPU.
#include "dev/cuda/attention/attention.cuh"
#include "dev/cuda/attention/bench.cu"
#include "dev/test/fixtures/unit.h"

static int runs, differing; // differing: 0 out, 1 l, 2 m; -1: none

__global__ void flip_last_bit(uint16_t* x) { *x ^= 1; } // of a bf16 or, at the lower half, an fp32

static void differing_forward(floatX* out, float* l, float* m, const floatX* qkv, int B, int T, int NH, int HS,
                              cudaStream_t stream) {
    void* const outputs[] = {out, l, m};
    attention_forward(out, l, m, qkv, B, T, NH, HS, stream);
    if (runs++ == 0 || differing < 0) { return; }
    flip_last_bit<<<1, 1, 0, stream>>>((uint16_t*)outputs[differing]);
    cuda_try(cudaGetLastError());
}

int main(void) {
    const AttentionForwardConfig config = {"differing", 64, 0, differing_forward};
    for (differing = -1; differing < 3; differing++) {
        AttentionTrial<Forward> trial({2, 200, 3, 64}, false);
        trial.fill(ORDINARY, 1);
        runs = 0;
        const Verdict verdict = trial.check(config, "attention with a bit of its own", 2);
        CHECK(runs == 3 && verdict.worst <= 1);
        if (!CHECK(verdict.deterministic == (differing < 0))) { printf("    output %d\n", differing); }
    }
    return unit_end();
}
