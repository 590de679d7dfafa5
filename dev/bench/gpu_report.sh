#!/usr/bin/env bash
# Everything that README shows about training on a GPU, in one command: the trainer against PyTorch's dump of 124M in
# fp32 and bf16, 200 steps of 124M beside PyTorch, speed and memory, determinism and resume.
#
#   dev/bench/gpu_report.sh [folder]        default: build/report; the summary goes to dev/bench/<gpu>/
#
# Costs: three minutes on an H200. Needs PyTorch, matplotlib and, unless they
# are there already, DATA_MIRROR or a network for TinyShakespeare.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=${1:-build/report}
mkdir -p "$out"

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
commit=${COMMIT:-$(git rev-parse --short HEAD)}
results=dev/bench/$(echo "$gpu" | tr 'A-Z ' 'a-z-')
mkdir -p "$results"
csv=$results/training.csv
data=dev/data/tinyshakespeare/tiny_shakespeare
[ -e ${data}_train.bin ] || python3 dev/data/tinyshakespeare.py

make build/test_gpt2cu_bf16 build/test_gpt2cu_fp32 build/train_gpt2cu_fp32 train_gpt2cu
cuda=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
echo "what,value,unit,gpu,driver,cuda,date,commit" >"$csv"
# row WHAT VALUE UNIT: a line of the summary
row() { echo "$1,$2,$3,$gpu,$driver,$cuda,$(date +%F),$commit" | tee -a "$csv"; }
average_ms() { sed -n 's/^total average iteration time: \([0-9.]*\) ms/\1/p' "$1"; }

# 1. Number by number against a 124M dump
[ -e "$out/gpt2_124M_debug_state.bin" ] ||
    python3 dev/reference/write_reference.py --model d12 --batch 4 --time 256 --learning-rate 3e-5 --data ${data}_train.bin --device cuda \
        --output "$out/gpt2_124M" >"$out/write_reference.log"
for precision in fp32 bf16; do
    "build/test_gpt2cu_$precision" "$out/gpt2_124M.bin" "$out/gpt2_124M_debug_state.bin" \
        >"$results/test_gpt2cu_124M_$precision.txt" || true
    row "test_gpt2cu $precision on 124M" "$(tail -n 1 "$results/test_gpt2cu_124M_$precision.txt" | tr , ';')" checks
done

# 2. 200 steps beside PyTorch: the same weights, batches and schedule; in fp32 on small batches first
build/train_gpt2cu_fp32 -e "$out/gpt2_124M.bin" -b 4 -t 256 -x 200 -l 1e-4 -u 20 -q 0.1 -c 0.1 -f 0 -v 0 -m 8 -s 0 \
    -o "$out/ours_fp32" >"$out/ours_fp32.log"
python3 dev/reference/train_reference.py -e "$out/gpt2_124M.bin" -b 4 -t 256 -x 200 -l 1e-4 -u 20 -q 0.1 -c 0.1 -f 0 \
    -v 0 -m 8 --dtype float32 -o "$out/pytorch_fp32" >"$out/pytorch_fp32.log"
python3 dev/reference/plot_curves.py "$out/ours_fp32/main.log" "$out/pytorch_fp32/main.log" --labels ours PyTorch \
    --output "$results/curves_fp32.svg" | tee "$out/curves_fp32.txt"
row "largest difference of the training loss in 200 steps in fp32 at B=4 T=256" \
    "$(sed -n 's/^training loss.*largest difference \([0-9.]*\) .*/\1/p' "$out/curves_fp32.txt")" nats
run=(-e "$out/gpt2_124M_bf16.bin" -i "${data}_train.bin" -j "${data}_val.bin" -b 16 -t 1024 -x 200 -l 3e-4 -u 20 -q 0.1
    -c 0.1 -v 50 -m 1)
./train_gpt2cu "${run[@]}" -s 0 -n 200 -o "$out/ours" >"$out/ours.log"
python3 dev/reference/train_reference.py "${run[@]}" --dtype bfloat16 -o "$out/pytorch" >"$out/pytorch.log"
python3 dev/reference/plot_curves.py "$out/ours/main.log" "$out/pytorch/main.log" --labels ours PyTorch \
    --output "$results/curves.svg" | tee "$out/curves.txt"
row "largest difference of the training loss in 200 steps in bf16 at B=16 T=1024" \
    "$(sed -n 's/^training loss.*largest difference \([0-9.]*\) .*/\1/p' "$out/curves.txt")" nats

# 3. Speed and memory: B=64 and 32, T=1024
for B in 64 32; do
    ./train_gpt2cu -e d12 -i ${data}_train.bin -j ${data}_train.bin -b $B -t 1024 -x 30 -v 0 -m 0 -s 0 >"$out/speed_$B.log"
    ms=$(average_ms "$out/speed_$B.log")
    row "124M step B=$B T=1024" "$ms" ms
    row "124M B=$B T=1024" "$(awk -v ms="$ms" -v b=$B 'BEGIN { printf "%.0f", b * 1024 / ms * 1000 }')" tok/s
    row "124M B=$B T=1024" "$(sed -n 's/^| memory *| \([0-9]*\) MiB.*/\1/p' "$out/speed_$B.log")" MiB
done
for sdpa in cudnn flash; do
    python3 dev/reference/time_torch.py --model d12 --batch 64 --time 1024 --sdpa $sdpa >"$out/torch_$sdpa.log"
    row "PyTorch: torch.compile with $sdpa attention: 124M B=64 T=1024" \
        "$(sed -n 's/.*, \([0-9,]*\) tok\/s.*/\1/p' "$out/torch_$sdpa.log" | head -n 1 | tr -d ,)" tok/s
done
row "attention" "$(sed -n 's/^| attention *| \(.*[^ ]\) *|$/\1/p' "$out/speed_64.log" | tr , ';')" variants

# 4. The same bits: a second run, and one resumed from step 100
./train_gpt2cu "${run[@]}" -s 0 -n 100 -o "$out/again" >"$out/again.log"
cmp "$out/ours/state_00000200_00000.bin" "$out/again/state_00000200_00000.bin" && same=yes || same=no
row "two runs of 200 steps write the same weights and moments" "$same" -
rm -f "$out"/again/*00000200*
./train_gpt2cu "${run[@]}" -s 0 -n 100 -y 1 -o "$out/again" >"$out/resumed.log"
cmp "$out/ours/state_00000200_00000.bin" "$out/again/state_00000200_00000.bin" && same=yes || same=no
row "a run resumed at step 100 writes the same weights and moments" "$same" -
