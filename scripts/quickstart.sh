#!/usr/bin/env bash
# From a fresh clone to a GPT-2 that has learned to write: builds, gets text, trains a small model on its bytes, and
# prints what the model writes.
#
# Costs: with a GPU half a minute, most of it compilation; on two CPU cores a minute and a half. 300 MB of memory, 20 MB of disk.
# Needs: a C compiler, make and python3, all without packages; for a GPU, the CUDA Toolkit.
# Text: TinyShakespeare, from the folder that DATA_MIRROR names or by download; with neither, this project's own sources.
set -euo pipefail
cd "$(dirname "$0")/.."

missing=()
command -v cc >/dev/null || missing+=(gcc)
command -v make >/dev/null || missing+=(make)
command -v python3 >/dev/null || missing+=(python3)
if [ ${#missing[@]} -gt 0 ]; then
    echo "error: missing: ${missing[*]}; on Debian and Ubuntu: sudo apt-get install ${missing[*]}" >&2
    exit 1
fi

# 1. Build
if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then gpu=1; else gpu=0; fi
if [ $gpu = 1 ] && ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "There is a GPU but no nvcc: training on the CPU. With the CUDA Toolkit installed, the GPU would be used."
    gpu=0
fi
if [ $gpu = 1 ]; then trainer=train_gpt2cu; else trainer=train_gpt2; fi
echo "== make $trainer"
make $trainer

# 2. Text
data=dev/data/tinyshakespeare/tiny_shakespeare_bytes
echo "== text"
if [ ! -e ${data}_train.bin ] && ! python3 dev/data/tinyshakespeare.py --tokenizer bytes; then
    echo "TinyShakespeare cannot be had here: training on this project's own sources instead."
    mkdir -p build/quickstart
    data=build/quickstart/sources
    python3 dev/data/text.py --tokenizer bytes --output $data README.md Makefile llmc dev ./*.c ./*.cu
fi

# 3. Train
echo "== ./$trainer"
export OMP_WAIT_POLICY=passive # threads that spin while they wait slow a busy machine down
if [ $gpu = 1 ]; then
    ./$trainer -i ${data}_train.bin -j ${data}_val.bin -e gpt2:l6c384h6t256 -b 64 -t 256 -x 900 -l 1e-3 -u 100 -q 0.1 \
        -c 0.1 -v 150 -m 1 -s 900 -g 256 --top-k 40 --temperature 0.9
else
    ./$trainer -i ${data}_train.bin -j ${data}_val.bin -e gpt2:l4c128h4t64 -b 16 -t 64 -x 1500 -l 2e-3 -u 100 -q 0.1 \
        -c 0.1 -v 250 -m 16 -s 1500 -g 64 --top-k 40 --temperature 0.9
fi
