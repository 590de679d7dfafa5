#!/bin/bash
# Races the attention variants on this GPU and writes dev/cuda/leaderboard/<gpu>.csv: for each variant, precision, shape and
# mode its fastest configuration and the one that trains. A wrong kernel ends the race.
#
#     make compete                               builds all variants and races them
#     dev/cuda/compete.sh mma wgmma              races these variants alone, as built
#     MODE=steady DIRECTIONS=backward PRECISIONS=bf16 dev/cuda/compete.sh wgmma      a slice of it
#     SHAPES="8,1024,12,64" dev/cuda/compete.sh flash2               at these shapes alone
#     EVERY=1 BOARD=/tmp/all.csv dev/cuda/compete.sh mma wgmma      a row for every configuration, in another file
#
# New rows replace those of the same direction, variant, precision, shape and mode; all others stay, so a race may be run
# in slices. CHECK=0 leaves out the sweep of checks before each race; the shapes that are timed are always checked first.
# COMMIT=<hash> says what was built, where the repository is elsewhere.
#
# Time on an H200, about: wgmma 3 minutes, mma 3, flash2 3, naive, flash1 and cublas 4; at most 40 GB of GPU memory.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v nvidia-smi > /dev/null || { echo "error: compete.sh needs an NVIDIA GPU: there is no nvidia-smi here" >&2; exit 1; }
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -n 1)
board=${BOARD:-dev/cuda/leaderboard/$(echo "$gpu" | tr 'A-Z ' 'a-z-').csv}
read -ra directions <<< "${DIRECTIONS:-forward backward}"
read -ra precisions <<< "${PRECISIONS:-bf16 fp32}"
race=$(mktemp)
trap 'rm -f "$race"' EXIT

# B,T,NH,HS: GPT-2 124M at three batch sizes, longer rows, more and larger heads; then 32768 tokens cut into rows of 512
# to 16384 for the plots.
shapes=(
    "8,1024,12,64" "32,1024,12,64" "64,1024,12,64" "6,4096,12,64" "1,8192,12,64" "4,4096,48,64" "4,16384,48,64"
    "16,1024,16,128" "4,4096,16,128"
    "64,512,12,64" "16,2048,12,64" "8,4096,12,64" "4,8192,12,64" "2,16384,12,64"
)
[ -z "${SHAPES:-}" ] || read -ra shapes <<< "$SHAPES"

# The longest rows that a variant races over, for its time (naive, flash1) or its T x T tensors (cublas); fp32 is for the
# table of all variants.
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
    for direction in "${directions[@]}"; do
        for precision in "${precisions[@]}"; do
            program=build/attention_${direction}_${variant}_${precision}
            if [ ! -x "$program" ]; then continue; fi # such as mma in fp32
            flags=(--mode "${MODE:-both}" --csv "$race")
            if [ "${CHECK:-1}" = 0 ]; then flags+=(--no-sweep); fi
            if [ "${EVERY:-0}" != 0 ]; then flags+=(--every-config); fi
            for shape in "${shapes[@]}"; do
                IFS=, read -r _ T _ _ <<< "$shape"
                if [ "$T" -le "$(longest "$variant" "$precision")" ]; then flags+=(--shape "$shape"); fi
            done
            "$program" "${flags[@]}"
        done
    done
done
[ -s "$race" ] || { echo "error: nothing raced: build variants first, with make variants" >&2; exit 1; }

mkdir -p "$(dirname "$board")"
[ -s "$board" ] || head -n 1 "$race" > "$board"
[ "$(head -n 1 "$board")" = "$(head -n 1 "$race")" ] || {
    cp "$race" "$board.new"
    echo "error: $board has other columns than this race, whose rows are in $board.new" >&2
    exit 1
}
# Columns 6 to 12 are direction, variant, precision and shape, 15 is the mode.
awk -F, '
    function key() { return $6 "," $7 "," $8 "," $9 "," $10 "," $11 "," $12 "," $15 }
    NR == FNR { raced[key()] = 1; next }
    FNR == 1 || !(key() in raced)' "$race" "$board" > "$board.tmp"
tail -n +2 "$race" >> "$board.tmp"
mv "$board.tmp" "$board"
echo "$board: $(($(wc -l < "$board") - 1)) rows"
