/*
The GPU trainer against PyTorch: logits, loss, every gradient, ten steps, determinism. See dev/test/whole/reference_test.h.

    ./test_gpt2cu [MODEL debug_state.bin]      MODEL as -e of the trainer; default: the dumps in dev/reference
*/
#include "train_gpt2.cu"
#include "dev/test/whole/reference_test.h"

int main(int argc, char** argv) {
    GPT2Settings settings = gpt2_default_settings();
    settings.tf32 = 0; // an fp32 build multiplies in fp32
    return reference_main(argc, argv, settings, gpu_precision());
}
