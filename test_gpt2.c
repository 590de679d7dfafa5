/*
The CPU trainer against PyTorch: logits, loss, every gradient, ten steps, determinism. See dev/test/reference_test.h.

    ./test_gpt2 [model.bin debug_state.bin]      default: the dumps in dev/reference
*/
#define TESTING
#include "train_gpt2.c"
#include "dev/test/reference_test.h"

int main(int argc, char** argv) {
    ReferencePrecision fp32 = {ldexp(1.0, -24), 1, 0};
    return reference_main(argc, argv, gpt2_default_settings(), fp32);
}
