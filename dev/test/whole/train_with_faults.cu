// The GPU trainer with the faults that the environment's FAULT names; see train_with_faults.h.
#include "train_gpt2.cu"

#include "train_with_faults.h"

int main(int argc, char** argv) {
    faults_read();
    return train_main(argc, argv);
}
