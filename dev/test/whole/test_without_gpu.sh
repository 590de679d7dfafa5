#!/usr/bin/env bash
# The GPU programs where there is no GPU, or none that they may see: one line that says what runs instead, and exit code 1; what
# needs no GPU works. And that kernels of Hopper are not empty in code for sm_90a. Takes seconds; writes to a temporary folder
# only. The CPU trainer makes the model.
#
#     dev/test/whole/test_without_gpu.sh ./train_gpt2cu ./generate_gpt2cu ./train_gpt2
[ $# -eq 3 ] || { echo "usage: $0 TRAINER GENERATOR CPU_TRAINER" >&2; exit 1; }
trainer=$1 generator=$2 cpu_trainer=$3
. dev/test/fixtures/unit.sh
export CUDA_VISIBLE_DEVICES=''

# refuses TEXT COMMAND...: exit code 1, and on stderr one line that has TEXT
refuses() {
    local text=$1 code=0
    shift
    "$@" >"$dir/out" 2>"$dir/err" </dev/null || code=$?
    if [ $code -eq 1 ] && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qF -- "$text" "$dir/err"; then return 0; fi
    echo "exit code $code:"
    cat "$dir/err"
    return 1
}
instead="on the CPU run ./train_gpt2 and ./generate_gpt2"

write_text
data=(-i "$dir/text_train.bin" -j "$dir/text_val.bin" -b 1 -t 64)
model=$dir/run
works() { "$@" >"$dir/out" 2>&1 </dev/null || { tail -n 3 "$dir/out"; return 1; }; }
check "a model of one step" works "$cpu_trainer" "${data[@]}" -e gpt2:l1c32h1t64 -x 1 -v 0 -s 0 -n 1 -o "$model"
check "the trainer says what trains" refuses "$instead" "$trainer" "${data[@]}" -e d6
check "with --gpus, too" refuses "the driver finds no GPU here" "$trainer" "${data[@]}" -e d6 --gpus 2
check "the generator says what generates" refuses "$instead" "$generator" -e "$model" --prompt a
check "so does --perplexity" refuses "$instead" "$generator" -e "$model" --perplexity LICENSE
check "a plan needs none" works "$trainer" "${data[@]}" -e d6 --plan
check "nor does an export" works "$generator" -e "$model" --export "$dir/model.safetensors"
check "--help of both" test "$("$trainer" --help | wc -l)" -gt 100 -a "$("$generator" --help | wc -l)" -gt 50

# threads ARCHITECTURE: those of the probe in its code, by which the host knows whether kernels of Hopper have a body there
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc)}
threads() {
    "$nvcc" -std=c++17 -I. -DPRECISION_BF16 -arch="$1" -ptx dev/test/cuda/test_device_code.cu -o "$dir/ptx" &&
        sed -n '/device_code_probe/,/{/ s/.maxntid \([0-9]*\).*/\1/p' "$dir/ptx"
}
check "kernels of Hopper have a body in code for sm_90a" test "$(threads compute_90a)" = 64
check "and in no other" test "$(threads compute_90)" = 32
finish
