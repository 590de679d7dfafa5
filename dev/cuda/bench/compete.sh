#!/bin/bash
# Races the variants of attention and of matmul on this GPU and writes dev/cuda/leaderboard/<gpu>.csv, of decode
# <gpu>_decode.csv and of matmul <gpu>_matmul.csv: a row for each configuration, precision, shape and mode. A wrong kernel
# ends the race.
#
#     make compete                               builds all variants and races them
#     dev/cuda/bench/compete.sh mma wgmma              races these variants alone, as built
#     MODE=steady DIRECTIONS=backward PRECISIONS=bf16 dev/cuda/bench/compete.sh wgmma      a slice of it
#     SHAPES="8,1024,12,64" dev/cuda/bench/compete.sh flash2               at these shapes alone
#     DIRECTIONS=decode dev/cuda/bench/compete.sh          decode alone; likewise matmul
#     DIRECTIONS=matmul GROUPS_OF="fc residual" MODELS="65536,768" dev/cuda/bench/compete.sh wgmma     two groups in one model
#
# New rows replace those of the same direction or group, variant, precision, shape and mode; all others stay, so a race may be
# run in slices. CHECK=0 leaves out the sweep of checks before each race; the shapes that are timed are always checked first.
# SHAPES of four numbers are attention's, of three matmul's. COMMIT=<hash> says what was built, where the repository is
# elsewhere.
#
# Time on an H200, about: wgmma 3 minutes, mma 3, flash2 3, naive, flash1 and cublas 4, decode 5; at most 60 GB of GPU memory.
# Of matmul in bf16, a model of 65536,768: cublaslt 30 s, cublaslt_epilogue 20, wgmma 100; at most 40 GB.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
cd "$(dirname "$0")/../../.."

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2> /dev/null) || gpu= # a failure says why on stdout
gpu=${gpu%%$'\n'*}
[ -n "$gpu" ] || { echo "error: nvidia-smi shows no GPU here" >&2; exit 1; }
board=${BOARD:-dev/cuda/leaderboard/$(echo "$gpu" | tr 'A-Z ' 'a-z-').csv}
read -ra directions <<< "${DIRECTIONS:-forward backward decode matmul}"
read -ra precisions <<< "${PRECISIONS:-bf16 fp32}"
races=$(mktemp -d) # training.csv, decode.csv, matmul.csv
trap 'rm -rf "$races"' EXIT

# B,T,NH,HS: GPT-2 124M at three batch sizes, longer rows, more and larger heads; then 32768 tokens cut into rows of 512
# to 16384 for the plots.
shapes=(
    "8,1024,12,64" "32,1024,12,64" "64,1024,12,64" "6,4096,12,64" "1,8192,12,64" "4,4096,48,64" "4,16384,48,64"
    "16,1024,16,128" "4,4096,16,128"
    "64,512,12,64" "16,2048,12,64" "8,4096,12,64" "4,8192,12,64" "2,16384,12,64"
)
# Of decode, T tokens in each of B sequences: from one to 256 of them, in caches of 0.8 MB to 12.9 GB at 16 bit.
decode_shapes=(
    "1,256,12,64" "1,1024,12,64" "1,4096,12,64" "1,16384,12,64" "8,256,12,64" "8,1024,12,64" "8,4096,12,64" "8,16384,12,64"
    "64,256,12,64" "64,1024,12,64" "64,4096,12,64" "64,16384,12,64" "256,256,12,64" "256,1024,12,64" "256,4096,12,64"
    "256,16384,12,64" "1,1024,25,64" "64,1024,25,64" "16,4096,16,128"
)
# Of matmul, R,C: the rows of a batch of 64 and of 4 in GPT-2 124M, of 32 in 355M, 16 in 774M, 8 in 1558M. matmul/bench.cu has
# each group's shapes in a model.
read -ra models <<< "${MODELS:-65536,768 4096,768 32768,1024 16384,1280 8192,1600}"
read -ra groups <<< "${GROUPS_OF:-}"
matmul_shapes=()
if [ -n "${SHAPES:-}" ]; then
    shapes=() decode_shapes=() models=()
    for shape in $SHAPES; do
        case $shape in
        *,*,*,*) shapes+=("$shape") decode_shapes+=("$shape") ;;
        *) matmul_shapes+=("$shape") ;;
        esac
    done
fi

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

# What a direction's program is asked to time, in `timed`, and the race it is of, in `race`
choose() { # direction, variant, precision
    local shape T
    timed=() race=training
    case $1 in
    matmul)
        race=matmul
        for shape in "${matmul_shapes[@]}"; do timed+=(--shape "$shape"); done
        for shape in "${models[@]}"; do # fp32 in the smallest of them alone
            if [ "$3" != fp32 ] || [ "$shape" = 4096,768 ]; then timed+=(--model "$shape"); fi
        done
        if [ ${#timed[@]} -eq 0 ]; then return; fi
        for shape in "${groups[@]}"; do timed+=(--group "$shape"); done
        return
        ;;
    decode) race=decode raced=("${decode_shapes[@]}") ;;
    *) raced=("${shapes[@]}") ;;
    esac
    for shape in "${raced[@]}"; do
        IFS=, read -r _ T _ _ <<< "$shape"
        if [ "$T" -le "$(longest "$2" "$3")" ]; then timed+=(--shape "$shape"); fi
    done
}

variants=("$@")
if [ ${#variants[@]} -eq 0 ]; then
    mapfile -t variants < <(find dev/cuda -name 'attention_*_*.cu' -o -name 'matmul_*.cu' |
        sed -n 's/.*\(attention_forward\|attention_decode\|matmul\)_\(.*\)\.cu$/\2/p' | sort -u)
fi
for variant in "${variants[@]}"; do
    for direction in "${directions[@]}"; do
        for precision in "${precisions[@]}"; do
            program=build/attention_${direction}_${variant}_${precision}
            if [ "$direction" = matmul ]; then program=build/matmul_${variant}_${precision}; fi
            if [ ! -x "$program" ]; then continue; fi # such as mma in fp32
            choose "$direction" "$variant" "$precision"
            if [ ${#timed[@]} -eq 0 ]; then continue; fi
            flags=(--mode "${MODE:-both}" --csv "$races/$race.csv")
            if [ "${CHECK:-1}" = 0 ]; then flags+=(--no-sweep); fi
            "$program" "${flags[@]}" "${timed[@]}"
        done
    done
done

# Adds the rows of a race to a board. What a row is of: the columns between commit and config, and the mode.
enter() { # race, board
    mkdir -p "$(dirname "$2")"
    [ -s "$2" ] || head -n 1 "$1" > "$2"
    [ "$(head -n 1 "$2")" = "$(head -n 1 "$1")" ] || {
        cp "$1" "$2.new"
        echo "error: $2 has other columns than this race, whose rows are in $2.new" >&2
        return 1
    }
    awk -F, '
        FNR == 1 { for (n = 1; n <= NF; n++) column[$n] = n }
        function key(   text, n) {
            text = $column["mode"]
            for (n = column["commit"] + 1; n < column["config"]; n++) text = text "," $n
            return text
        }
        NR == FNR { raced[key()] = 1; next }
        FNR == 1 || !(key() in raced)' "$1" "$2" > "$2.tmp"
    tail -n +2 "$1" >> "$2.tmp"
    mv "$2.tmp" "$2"
    echo "$2: $(($(wc -l < "$2") - 1)) rows"
}
entered=0
for file in training decode matmul; do
    [ -s "$races/$file.csv" ] || continue
    to=$board
    if [ "$file" != training ]; then to=${board%.csv}_$file.csv; fi
    enter "$races/$file.csv" "$to"
    entered=1
done
[ $entered -eq 1 ] || { echo "error: nothing raced: build variants first, with make variants" >&2; exit 1; }
