#!/usr/bin/env bash
# A short run of the GPU trainer under Nsight Systems or, where only that is installed, Nsight Compute: make profile. Steps,
# layers and kernels are NVTX ranges. It trains a small model on this project's own sources; takes a minute, writes
# build/profile*.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
cd "$(dirname "$0")/.."

fail() { echo "error: make profile $1" >&2; exit 1; }
[ $# = 0 ] || { echo "error: $1: profile.sh takes no arguments but --help" >&2; exit 1; }
nvidia-smi -L 2>/dev/null | grep -q '^GPU' || fail "runs the GPU trainer, and there is no GPU here"
nsys=$(command -v nsys || true) ncu=$(command -v ncu || true)
[ -n "$nsys$ncu" ] || fail "needs nsys (Nsight Systems) or ncu (Nsight Compute) in PATH; the CUDA Toolkit has both"

make train_gpt2cu
python3 dev/data/text.py --tokenizer bytes --output build/profile README.md Makefile llmc dev
run=(./train_gpt2cu -i build/profile_train.bin -j build/profile_val.bin -b 16 -t 1024 -d 16384 -v 0 -s 0 --cuda-graphs 0)
if [ -n "$nsys" ]; then
    "$nsys" profile --force-overwrite true --trace cuda,nvtx,cublas -o build/profile "${run[@]}" -e d12 -x 10
    "$nsys" stats --force-export true --report nvtx_sum,cuda_gpu_kern_sum build/profile.nsys-rep
else
    "$ncu" --set basic --launch-skip 400 --launch-count 100 "${run[@]}" -e gpt2:l2c768h12 -x 20 | tee build/profile.txt
fi
