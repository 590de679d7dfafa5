#!/usr/bin/env bash
# Everything that docs/measured.md shows about training on a GPU, in one command. Each section writes its own file in
# dev/bench/<gpu>/; python3 dev/bench/readme_tables.py then brings them there.
#
#     dev/bench/gpu_report.sh [--only SECTION]... [--list]
#
# reference   test_gpt2cu_124M_{fp32,bf16}.txt   the trainer against PyTorch's dump of 124M, check by check
# curves      curves.csv, curves{,_fp32}.svg     200 steps of 124M beside PyTorch's, from the same weights and batches
# speed       speed.csv                          steady training steps: the four models, batch sizes, long rows
# variants    speed.csv                          the same with other variants of attention
# peers       speed.csv                          the same of PyTorch and llm.c; a call replaces the rows that it measures
# fp8         speed.csv                          the four models with --fp8 1 beside bf16, and the peers, PyTorch by torchao too
# documents   speed.csv                          random documents as long as FineWeb's: attention within them, and within rows
# bits        bits.csv                           a second run and a resumed one against the first
# quickstart  quickstart.csv                     scripts/quickstart.sh in a fresh copy
#
# Costs: about a quarter of an hour on an H200 with 16 cores, of them two for builds; 60 GB of GPU memory, 15 GB of disk in
# build/report. Needs PyTorch and matplotlib, and for GPT-2 tokens a network or DATA_MIRROR (dev/data).
# COMMIT=<hash> says what is measured where there is no git. SHAPES="d12,64,1024 d48,8,1024" and SDPA=cudnn say which rows
# `speed` and `peers` make. LLMC=<llm.c's train_gpt2cu, built with USE_CUDNN=1> times it too; without it llm.c is left out.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."

sections=(reference curves speed variants peers fp8 documents bits quickstart)
only=()
while [ $# -gt 0 ]; do
    case $1 in
    --list) printf '%s\n' "${sections[@]}"; exit 0 ;;
    --only) only+=("${2-}"); shift ;;
    *) echo "error: $1: unknown; usage: $0 [--only SECTION]... [--list]" >&2; exit 1 ;;
    esac
    shift || { echo "error: --only needs a section, one of: ${sections[*]}" >&2; exit 1; }
done
for section in ${only[@]+"${only[@]}"}; do
    [[ " ${sections[*]} " == *" $section "* ]] || {
        echo "error: --only $section: no such section; choose of: ${sections[*]}" >&2
        exit 1
    }
done
[ ${#only[@]} -gt 0 ] || only=("${sections[@]}")
wanted() { [[ " ${only[*]} " == *" $1 "* ]]; }

gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) || gpu= # a failure says why on stdout
gpu=${gpu%%$'\n'*}
[ -n "$gpu" ] || { echo "error: nvidia-smi shows no GPU here" >&2; exit 1; }
commit=${COMMIT:-$(git rev-parse --short HEAD 2>/dev/null || true)}
[ -n "$commit" ] || { echo "error: no git here: name what is measured with COMMIT=<hash>" >&2; exit 1; }
export COMMIT=$commit
PATH=$PATH:/usr/local/cuda/bin
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
cuda=$(nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
provenance="$gpu,$driver,$cuda,$(date +%F),$commit"
results=dev/bench/$(echo "$gpu" | tr 'A-Z ' 'a-z-')
out=build/report
mkdir -p "$results" "$out"
data=dev/data/tinyshakespeare/tiny_shakespeare
log() { printf '== %4d s: %s\n' $SECONDS "$*"; }

# row FILE VALUE...: a line of a section's CSV file; the section's head is written by head_of FILE COLUMNS
head_of() { echo "$2,gpu,driver,cuda,date,commit" >"$out/$1"; }
row() {
    local file=$1 IFS=,
    shift
    echo "$*,$provenance" | tee -a "$out/$file"
}

# ----------------------------------------------------------------------------
# What the sections stand on

# 124M with new weights, a batch, and what PyTorch computes from them: build/report/gpt2_124M*.bin
write_dump() {
    [ -e "$out/gpt2_124M_debug_state.bin" ] ||
        python3 dev/reference/write_reference.py --model d12 --batch 4 --time 256 --learning-rate 3e-5 \
            --data ${data}_train.bin --device cuda --output "$out/gpt2_124M" >"$out/write_reference.log"
}

curve_fp32=(-e "$out/gpt2_124M.bin" -b 4 -t 256 -x 200 -l 1e-4 -u 20 -q 0.1 -c 0.1 -f 0 -v 50 -m 8)
curve_bf16=(-e "$out/gpt2_124M_bf16.bin" -b 16 -t 1024 -x 200 -l 3e-4 -u 20 -q 0.1 -c 0.1 -v 50 -m 1)
torch_curves() {
    python3 dev/reference/train_reference.py "${curve_fp32[@]}" --dtype float32 -o "$out/pytorch_fp32" >"$out/pytorch_fp32.log"
    python3 dev/reference/train_reference.py "${curve_bf16[@]}" --dtype bfloat16 -o "$out/pytorch_bf16" >"$out/pytorch_bf16.log"
}

other_variants=(mma flash2) # trained with beside the one that is chosen by itself
build() {
    local v targets=()
    if wanted reference; then targets+=(build/test_gpt2cu_fp32 build/test_gpt2cu_bf16); fi
    if wanted curves; then targets+=(build/train_gpt2cu_fp32); fi
    if wanted curves || wanted speed || wanted fp8 || wanted documents || wanted bits; then targets+=(build/train_gpt2cu_bf16); fi
    if wanted variants; then
        for v in "${other_variants[@]}"; do
            make build/train_gpt2cu_bf16 "ATTENTION_FORWARD=$v" "ATTENTION_BACKWARD=$v"
            mv build/train_gpt2cu_bf16 "$out/train_$v"
        done
    fi
    [ ${#targets[@]} -eq 0 ] || make -j "$(nproc)" "${targets[@]}"
}

# ----------------------------------------------------------------------------
# The sections

reference() {
    local precision
    write_dump
    for precision in fp32 bf16; do
        {
            echo "# $gpu, driver $driver, CUDA $cuda, $(date +%F), commit $commit"
            "build/test_gpt2cu_$precision" "$out/gpt2_124M.bin" "$out/gpt2_124M_debug_state.bin" || true # it says what failed
        } >"$out/test_gpt2cu_124M_$precision.txt"
        tail -n 1 "$out/test_gpt2cu_124M_$precision.txt"
    done
    mv "$out"/test_gpt2cu_124M_*.txt "$results"
}

curves() {
    local precision svg shape kind
    head_of curves.csv precision,B,T,learning_rate,steps,loss,largest,mean
    for precision in fp32 bf16; do
        if [ $precision = fp32 ]; then
            shape=4,256,1e-4,200 svg=curves_fp32.svg
            build/train_gpt2cu_fp32 "${curve_fp32[@]}" -s 0 -o "$out/ours_fp32" --overwrite >"$out/ours_fp32.log"
        else
            shape=16,1024,3e-4,200 svg=curves.svg
            build/train_gpt2cu_bf16 "${curve_bf16[@]}" -s 0 -o "$out/ours_bf16" --overwrite >"$out/ours_bf16.log"
        fi
        python3 scripts/plot_run.py "$out/ours_$precision/main.log" "$out/pytorch_$precision/main.log" --difference \
            --labels ours PyTorch --output "$results/$svg" >"$out/curves_$precision.txt"
        for kind in training validation; do
            row curves.csv $precision $shape $kind "$(sed -n "s/^$kind loss.*largest difference \([0-9.]*\) .*mean \([0-9.]*\)$/\1,\2/p" \
                "$out/curves_$precision.txt")"
        done
    done
    mv "$out/curves.csv" "$results"
}

# Steady state: 200 steps after 50. Mean of their ms and of their MFU, from the trainer's step lines.
warm_up=50 timed=200
steady() {
    awk -v first=$warm_up -v timed=$timed '
        /^step / {
            if (++n <= first) { next }
            for (i = 2; i <= NF; i++) {
                if ($i == "ms") { ms += $(i - 1); k++ }
                if ($i == "MFU") { mfu += $(i - 1) + 0; j++ }
            }
        }
        END {
            if (k != timed) { print "error: " k + 0 " step lines with ms, not " timed > "/dev/stderr"; exit 1 }
            printf "%.3f,%s\n", ms / k, j == k ? sprintf("%.1f", mfu / j) : ""
        }' "$1"
}

# train PROGRAM MODEL B T [FLAG...]: a row of speed.csv
train() {
    local program=$1 model=$2 B=$3 T=$4 flags=("${@:5}") run mean ms attention
    run=$out/speed_$(basename "$program")_${B}x$T.log
    "$program" -e "$model" -i "${data}_train.bin" -j "${data}_train.bin" -b "$B" -t "$T" -x $((warm_up + timed)) -v 0 -m 0 \
        -s 0 ${flags[@]+"${flags[@]}"} >"$run"
    mean=$(steady "$run")
    ms=${mean%,*}
    attention=$(sed -n 's/^| attention *| \([^ ]*\) forward, \([^ ]*\) backward.*/\1,\2/p' "$run")
    row speed.csv "flashgpt${flags[*]:+ ${flags[*]}}" "${model%%t*}" "$B" "$T" "$attention" "$ms" "$(tokens_per_second "$B" "$T" "$ms")" "${mean#*,}" \
        "$(sed -n 's/^| memory *| \([0-9]*\) MiB.*/\1/p' "$run")" "$(sed -n 's/^| recompute *| \([0-9]\) .*/\1/p' "$run")" \
        $warm_up $timed
}
tokens_per_second() { awk -v n=$(($1 * $2)) -v ms="$3" 'BEGIN { printf "%.0f", n / ms * 1000 }'; }

# speed_rows COMMAND...: the rows of speed.csv that it makes; of those committed, other programs, shapes and variants stay
speed_rows() {
    head_of speed.csv program,model,B,T,attention_forward,attention_backward,ms,tok_s,mfu,mib,recompute,warm_up,steps
    "$@"
    if [ -e "$results/speed.csv" ]; then
        awk -F, '{ key = $1 FS $2 FS $3 FS $4 FS $5 FS $6 } NR == FNR { made[key] = 1; next } FNR == 1 || !(key in made)' \
            "$out/speed.csv" "$results/speed.csv" >"$out/speed_all.csv"
        tail -n +2 "$out/speed.csv" >>"$out/speed_all.csv"
        mv "$out/speed_all.csv" "$out/speed.csv"
    fi
    mv "$out/speed.csv" "$results"
}

# model, B, T; d12t8192: rows of 8192
read -ra shapes <<<"${SHAPES:-d12,64,1024 d24,32,1024 d36,16,1024 d48,8,1024 d12,32,1024 d12,4,1024 d12t4096,4,4096 d12t8192,2,8192}"
models() {
    local shape model B T
    for shape in "${shapes[@]}"; do
        IFS=, read -r model B T <<<"$shape"
        train build/train_gpt2cu_bf16 "$model" "$B" "$T"
    done
}
speed() { speed_rows models; }

with_variants() {
    local v
    for v in "${other_variants[@]}"; do train "$out/train_$v" d12 32 1024; done
}
variants() { speed_rows with_variants; }

read -ra peer_shapes <<<"${SHAPES:-d12,64,1024}"
# pytorch [FLAG...]: torchao's rows with --fp8 1
pytorch() {
    local shape model B T sdpa run ms
    for shape in "${peer_shapes[@]}"; do
        IFS=, read -r model B T <<<"$shape"
        for sdpa in ${SDPA:-cudnn flash}; do
            run=$out/torch_${model}_${B}x${T}_$sdpa.log
            python3 dev/reference/time_torch.py --model "${model%%t*}" --batch "$B" --time "$T" --sdpa "$sdpa" --warm-up $warm_up \
                --steps $timed "$@" >"$run"
            ms=$(sed -n 's/^mean \([0-9.]*\) ms.*/\1/p' "$run")
            row speed.csv "$(sed -n 's/.*\(PyTorch [0-9]*\.[0-9]*\).*/\1/p' "$run" | head -n 1)${1:+ with torchao}" "${model%%t*}" "$B" "$T" "$sdpa" \
                "$sdpa" "$ms" "$(tokens_per_second "$B" "$T" "$ms")" "" "$(sed -n 's/.*, \([0-9]*\) MiB$/\1/p' "$run")" "" \
                $warm_up $timed
        done
    done
}
# llm.c, where LLMC names its trainer: -r 0, as ours chooses where memory allows. It divides by -v; its MFU is of another peak.
llmc() {
    local shape model B T run mean ms
    [ -n "${LLMC:-}" ] || return 0
    for shape in "${peer_shapes[@]}"; do
        IFS=, read -r model B T <<<"$shape"
        run=$out/llmc_${model}_${B}x$T.log
        "$LLMC" -e "${model%%t*}" -i ${data}_train.bin -j ${data}_train.bin -b "$B" -t "$T" -x $((warm_up + timed)) -v 1000 -m 1 \
            -s 0 -h 0 -r 0 >"$run"
        mean=$(steady "$run")
        ms=${mean%,*}
        row speed.csv llm.c "${model%%t*}" "$B" "$T" cudnn cudnn "$ms" "$(tokens_per_second "$B" "$T" "$ms")" "" \
            "$(sed -n 's/^device memory usage: \([0-9]*\) MiB.*/\1/p' "$run")" 0 $warm_up $timed
    done
}
with_peers() {
    pytorch
    llmc
}
peers() { speed_rows with_peers; }

with_fp8() {
    local shape model B T
    for shape in "${shapes[@]:0:4}"; do
        IFS=, read -r model B T <<<"$shape"
        train build/train_gpt2cu_bf16 "$model" "$B" "$T"
        train build/train_gpt2cu_bf16 "$model" "$B" "$T" --fp8 1
    done
    with_peers
    if python3 -c 'import torchao' 2>/dev/null; then pytorch --fp8 1; fi
}
fp8() { speed_rows with_fp8; }

with_documents() {
    local data=$out/documents shape model B T
    python3 - "${data}_train.bin" <<'END'
import math, random, sys
sys.path.append("dev/data")
from data_common import GPT2_VOCAB_SIZE, TokenFile
draw, end = random.Random(1), GPT2_VOCAB_SIZE - 1
with TokenFile(sys.argv[1], GPT2_VOCAB_SIZE) as tokens:
    for _ in range(6000):
        length = max(1, round(draw.lognormvariate(math.log(403), math.sqrt(2 * math.log(690 / 403)))))
        tokens.append([end] + draw.choices(range(end), k=length - 1))
    tokens.finish()
END
    for shape in d12,64,1024 d12t8192,2,8192; do
        IFS=, read -r model B T <<<"$shape"
        train build/train_gpt2cu_bf16 "$model" "$B" "$T"
        train build/train_gpt2cu_bf16 "$model" "$B" "$T" --documents 1
    done
}
documents() { speed_rows with_documents; }

# same WHAT FOLDER: a row of bits.csv, whether the folder's last checkpoint is the first run's
same() {
    local verdict=yes file
    for file in model_00000200.bin state_00000200_00000.bin; do cmp "$out/first/$file" "$out/$2/$file" || verdict=no; done
    row bits.csv "$1" $verdict
}

bits() {
    local run=(-e d12 -i "${data}_train.bin" -j "${data}_val.bin" -b 16 -t 1024 -x 200 -l 3e-4 -u 20 -q 0.1 -c 0.1 -v 50 -m 1
        -s 0 -n 100)
    head_of bits.csv what,same
    rm -rf "$out/first" "$out/second" "$out/resumed"
    build/train_gpt2cu_bf16 "${run[@]}" -o "$out/first" >"$out/first.log"
    build/train_gpt2cu_bf16 "${run[@]}" -o "$out/second" >"$out/second.log"
    mkdir "$out/resumed"
    cp "$out"/first/{main.log,*00000100*} "$out/resumed"
    build/train_gpt2cu_bf16 "${run[@]}" -y 1 -o "$out/resumed" >"$out/resumed.log"
    same "a second run" second
    same "a run resumed at step 100" resumed
    rm -rf "$out/first" "$out/second" "$out/resumed"
    mv "$out/bits.csv" "$results"
}

quickstart() {
    python3 dev/bench/quickstart.py --output "$results/quickstart.csv" >"$out/quickstart.log" 2>&1 || {
        tail -n 30 "$out/quickstart.log" >&2
        return 1
    }
    tail -n 1 "$out/quickstart.log"
}

# ----------------------------------------------------------------------------

log "building; meanwhile PyTorch's part of: ${only[*]}"
build >"$out/build.log" 2>&1 &
builder=$!
[ -e ${data}_train.bin ] || [ "${only[*]}" = quickstart ] || python3 dev/data/tinyshakespeare.py
# nothing is timed while compilers run
if wanted reference || wanted curves; then write_dump; fi
if wanted curves; then torch_curves; fi
wait $builder || { tail -n 30 "$out/build.log"; echo "error: the build failed" >&2; exit 1; }

failed=()
for section in "${sections[@]}"; do
    wanted "$section" || continue
    log "$section"
    (set -euo pipefail; "$section") & # in the background, so that set -e holds inside
    wait $! || { failed+=("$section"); echo "$section FAILED; its file in $results stays as it was" >&2; }
done
log "done: $results"
[ ${#failed[@]} -eq 0 ] || { echo "error: failed: ${failed[*]}" >&2; exit 1; }
