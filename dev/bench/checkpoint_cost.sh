#!/usr/bin/env bash
# What a checkpoint costs a training step on this GPU: saves that training waits for (--async-save 0) beside saves from a
# snapshot, for 124M and 1558M. Writes dev/bench/<gpu>/checkpoint_cost.csv:
#
#     ms               a step without a save: the median
#     blocking_s       the time that training waits for a save without a snapshot
#     stall_s          the time that training waits for the snapshot
#     extra_ms         all that a save costs the steps: the wait, and the sum over the steps beside which it is written of what
#                      they take more than the median
#     percent          extra_ms of blocking_s
#     write_s, gb_s    the time that the thread writes, and model and state over that
#
#     dev/bench/checkpoint_cost.sh [MODEL...]     of d12 and d48; default: both; rows of the other stay
#
# Costs: about three minutes on an H200; 60 GB of GPU memory, 50 GB of disk in build/checkpoint_cost. COMMIT=<hash> says what is
# measured where there is no git. Build train_gpt2cu first.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."

[ $# -gt 0 ] || set -- d12 d48
for model in "$@"; do
    case $model in d12 | d48) ;; *) echo "error: $model: no such model; choose of: d12 d48" >&2; exit 1 ;; esac
done
gpu=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null) || gpu= # a failure says why on stdout
gpu=${gpu%%$'\n'*}
[ -n "$gpu" ] || { echo "error: nvidia-smi shows no GPU here" >&2; exit 1; }
[ -x train_gpt2cu ] || { echo "error: no train_gpt2cu here: make train_gpt2cu" >&2; exit 1; }
driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader | head -n 1)
cuda=$(PATH=$PATH:/usr/local/cuda/bin nvcc --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
commit=${COMMIT:-$(git rev-parse --short HEAD)}
python=$(command -v python3)
work=build/checkpoint_cost
rm -rf "$work"
mkdir -p "$work"
trap 'rm -rf "$work"/*/' EXIT
"$python" dev/data/text.py --tokenizer bytes --output "$work/text" README.md Makefile llmc dev >"$work/data.log" 2>&1

# train NAME STEPS EVERY FLAG...
train() {
    local name=$1 steps=$2 every=$3
    shift 3
    ./train_gpt2cu -i "$work/text_train.bin" -j "$work/text_val.bin" --vocab-size 50257 -t 1024 -v 0 -m 0 -s 0 -l 1e-5 \
        -o "$work/$name" -x "$steps" -n "$every" -nk 1 "$@" >"$work/$name.log" 2>&1 || { tail -n 5 "$work/$name.log" >&2; exit 1; }
}

# Blocking first: its last weights are those that the other run begins with, which saves drawing new ones. The first save of
# the other has to end before the next one, at the last step, begins.
measure() { # model B steps_blocking every_blocking steps every
    train "$1_blocking" "$3" "$4" -b "$2" -e "$1" --async-save 0
    local last
    last=$(printf '%s/%s_blocking/model_%08d.bin' "$work" "$1" "$3")
    rm -f "$work/$1_blocking"/state_*
    train "$1_async" "$5" "$6" -b "$2" -e "$last"
    "$python" - "$1" "$2" "$work/$1_blocking.log" "$work/$1_async.log" "$work/$1_async" "$gpu" "$driver" "$cuda" "$commit" <<'END'
import datetime
import glob
import os
import re
import statistics
import sys

model, B, blocking_log, async_log, folder, gpu, driver, cuda, commit = sys.argv[1:]
saved = re.compile(r"wrote checkpoint (\d+) to .* \(([\d.]+) s, and ([\d.]+) s beside training\)")
step = re.compile(r"step +(\d+)/(\d+) .*\| ([\d.]+) ms \|")
blocking = [float(m.group(2)) for m in map(saved.match, open(blocking_log)) if m]

times, saves = {}, []  # ms of step N; (step, stall, write, steps done when it was told)
for line in open(async_log):
    if m := step.match(line):
        times[int(m.group(1))] = float(m.group(3))
        last = int(m.group(2))
    elif m := saved.match(line):
        saves.append((int(m.group(1)), float(m.group(2)), float(m.group(3)), max(times)))
place = next((m.group(1) for m in (re.match(r"\| snapshot +\| (\w+)", line) for line in open(async_log)) if m), "?")
first, stall, write, told = saves[0]
if told >= last:
    sys.exit(f"{model}: the save took longer than the run: more steps are needed")
ms = statistics.median(t for n, t in times.items() if 5 < n <= first)
extra = 1000 * stall + sum(times[n] - ms for n in range(first + 1, told + 1))
size = sum(os.path.getsize(f) for f in glob.glob(folder + "/*.bin"))
row = [model, B, 1024, f"{ms:.2f}", f"{statistics.median(blocking):.3f}", f"{stall:.3f}", f"{extra:.1f}"]
row += [f"{extra / 10 / statistics.median(blocking):.1f}", f"{write:.3f}", f"{size / write * 1e-9:.2f}", f"{size * 1e-9:.2f}"]
print(",".join(map(str, [*row, told - first, place, gpu, driver, cuda, datetime.date.today(), commit])))
END
    rm -rf "$work/$1_blocking" "$work/$1_async"
}

folder=dev/bench/$(echo "$gpu" | tr 'A-Z ' 'a-z-')
mkdir -p "$folder"
{
    echo "model,B,T,ms,blocking_s,stall_s,extra_ms,percent,write_s,gb_s,gb,steps_beside,snapshot,gpu,driver,cuda,date,commit"
    for model in "$@"; do
        case $model in
        d12) measure d12 32 40 20 159 80 ;;
        d48) measure d48 8 16 8 199 100 ;;
        esac
    done
} | tee "$work/checkpoint_cost.csv"
csv=$folder/checkpoint_cost.csv
if [ -s "$csv" ]; then # rows of models that were not measured stay
    if [ "$(head -n 1 "$csv")" != "$(head -n 1 "$work/checkpoint_cost.csv")" ]; then
        mv "$work/checkpoint_cost.csv" "$csv.new"
        echo "error: $csv has other columns than what is measured here, whose rows are in $csv.new" >&2
        exit 1
    fi
    awk -F, 'NR == FNR { measured[$1] = 1; next } !($1 in measured)' "$work/checkpoint_cost.csv" "$csv" >"$work/others.csv"
    cat "$work/others.csv" >>"$work/checkpoint_cost.csv"
fi
mv "$work/checkpoint_cost.csv" "$csv"
