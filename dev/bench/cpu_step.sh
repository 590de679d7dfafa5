#!/usr/bin/env bash
# The CPU trainer against llm.c's: the same model from the same weights, steps interleaved round by round.
# Appends the medians to dev/bench/cpu_step.csv.
#
#     dev/bench/cpu_step.sh path/to/llm.c [rounds]        (rounds: 5)
#
# Costs about 4 minutes a round on two cores, nearly all of it llm.c's, 7 GB of memory, and 0.5 GB of disk in $TMPDIR.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac

if [ $# -lt 1 ] || [ ! -f "$1/train_gpt2.c" ] || [ ! -d "$1/llmc" ]; then
    echo "error: usage: $0 path/to/llm.c [rounds]; the path must hold llm.c's train_gpt2.c and llmc/" >&2
    exit 1
fi
theirs=$(realpath "$1")
rounds=${2:-5}
[[ $rounds =~ ^[1-9][0-9]{0,5}$ ]] || { echo "error: $rounds: not a number of rounds" >&2; exit 1; }
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

make -s build/cpu_step
cp build/cpu_step "$folder/ours"
# as llm.c's Makefile does where it finds OpenMP
cc -Ofast -march=native -fopenmp -DOMP -w -DLLMC -DTRAINER="\"$theirs/train_gpt2.c\"" dev/bench/cpu_step.c \
    -o "$folder/theirs" -lm
commit=$(git rev-parse --short HEAD)
"$folder/ours" new d12 "$folder/model.bin"

median() { sort -g | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'; }
# The first step of a run touches fresh memory; it is not counted.
milliseconds() { awk '$1 == "step" && $2 > 1 { print $6 }' "$1"; }
peak() { awk '$1 == "peak_mib" { print $2 }' "$1"; }

csv=dev/bench/cpu_step.csv
columns=date,commit,cpu,cores,model,B,T,ms,ms_llmc,ratio,ms_min,ms_min_llmc,peak_mib,peak_mib_llmc
[ -f "$csv" ] || echo "$columns" > "$csv"
cpu=$(awk -F': *' '/^model name/ { print $2; exit }' /proc/cpuinfo)

for shape in "4 64 5" "1 1024 2"; do # B, T, steps of a run
    read -r B T steps <<< "$shape"
    : > "$folder/ours.all"
    : > "$folder/theirs.all"
    for ((round = 1; round <= rounds; round++)); do
        for program in ours theirs; do
            "$folder/$program" "$folder/model.bin" "$B" "$T" "$steps" > "$folder/$program.run"
            milliseconds "$folder/$program.run" >> "$folder/$program.all"
        done
        echo "B=$B T=$T round $round: ours $(milliseconds "$folder/ours.run" | median) ms," \
            "llm.c $(milliseconds "$folder/theirs.run" | median) ms"
    done
    ms=$(median < "$folder/ours.all")
    ms_theirs=$(median < "$folder/theirs.all")
    least=$(sort -g "$folder/ours.all" | head -n 1)
    least_theirs=$(sort -g "$folder/theirs.all" | head -n 1)
    ratio=$(awk -v a="$ms_theirs" -v b="$ms" 'BEGIN { printf "%.2f", a / b }')
    memory=$(peak "$folder/ours.run")
    memory_theirs=$(peak "$folder/theirs.run")
    echo "B=$B T=$T: median step $ms ms, llm.c $ms_theirs ms: $ratio x (fastest: $least and $least_theirs ms);" \
        "peak memory $memory MiB, llm.c $memory_theirs MiB"
    row="$(date +%F),$commit,$cpu,$(nproc),d12,$B,$T,$ms,$ms_theirs,$ratio,$least,$least_theirs"
    echo "$row,$memory,$memory_theirs" >> "$csv"
done
