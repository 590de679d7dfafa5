/*
The CPU trainer against PyTorch: logits, loss, every gradient, ten steps, determinism. See dev/test/whole/reference_test.h.

    ./test_gpt2 [MODEL debug_state.bin]      MODEL as -e of the trainer; default: the dumps in dev/reference
*/
#include "train_gpt2.c"
#include "dev/test/whole/reference_test.h"

int main(int argc, char** argv) {
    ReferencePrecision fp32 = {ldexp(1.0, -24), 1, 0};
    return reference_main(argc, argv, gpt2_default_settings(), fp32);
}
