#!/bin/bash
# Races the attention variants on this GPU and writes dev/cuda/leaderboard/<gpu>.csv, a row for each variant,
# precision and shape: its fastest configuration. A wrong kernel ends the race.
#
#     make compete                    builds all variants and races them
#     dev/cuda/compete.sh mma wgmma   races these variants alone, as built; the rows of the others stay
#
# About 8 minutes on an H200, and at most 40 GB of GPU memory. COMMIT=<hash> says what was built, where the repository is
# elsewhere.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v nvidia-smi > /dev/null || { echo "error: compete.sh needs an NVIDIA GPU: there is no nvidia-smi here" >&2; exit 1; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
board=dev/cuda/leaderboard/$(echo "$gpu" | tr 'A-Z ' 'a-z-').csv
race=$(mktemp)
trap 'rm -f "$race"' EXIT

# B T NH HS: GPT-2 124M at three batch sizes, longer rows, more and larger heads; then 32768 tokens cut into rows of 512
# to 16384 for the plots.
shapes=(
    "8 1024 12 64" "32 1024 12 64" "64 1024 12 64" "6 4096 12 64" "1 8192 12 64" "4 4096 48 64" "4 16384 48 64"
    "16 1024 16 128" "4 4096 16 128"
    "64 512 12 64" "16 2048 12 64" "8 4096 12 64" "4 8192 12 64" "2 16384 12 64"
)

# The longest rows an variant races over, for its time (naive, flash1) or its T x T tensors (cublas); fp32 is for the ladder.
longest() {
    case "$1 $2" in
    naive* | flash1*) echo 1024 ;;
    cublas*) echo 4096 ;;
    *fp32) echo 4096 ;;
    *) echo 16384 ;;
    esac
}

variants=("$@")
if [ ${#variants[@]} -eq 0 ]; then
    mapfile -t variants < <(find dev/cuda -name 'attention_forward_*.cu' | sed 's/.*attention_forward_//; s/\.cu$//' | sort)
fi
for variant in "${variants[@]}"; do
    for direction in forward backward; do
        for precision in bf16 fp32; do
            program=build/attention_${direction}_${variant}_${precision}
            if [ ! -x "$program" ]; then continue; fi # such as mma in fp32
            "$program" --check-only
            for shape in "${shapes[@]}"; do
                read -r B T NH HS <<< "$shape"
                if [ "$T" -gt "$(longest "$variant" "$precision")" ]; then continue; fi
                "$program" -b "$B" -t "$T" -h "$NH" -d "$HS" --no-sweep --csv "$race"
            done
        done
    done
done
[ -s "$race" ] || { echo "error: nothing raced: build variants first, with make variants" >&2; exit 1; }

# New rows take the place of the old ones of the same variants.
mkdir -p "$(dirname "$board")"
merged=$board.tmp
head -n 1 "$race" > "$merged"
if [ -f "$board" ]; then
    raced=$(printf ',%s,|' "${variants[@]}")
    tail -n +2 "$board" | grep -vE "${raced%|}" >> "$merged" || true # all of them may have raced
fi
tail -n +2 "$race" >> "$merged"
mv "$merged" "$board"
echo "$board: $(($(wc -l < "$board") - 1)) rows"
