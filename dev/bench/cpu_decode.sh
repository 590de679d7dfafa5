#!/usr/bin/env bash
# The CPU decoder against the memory's bandwidth, PyTorch and, where its sources are given, llama2.c: greedy, 124M weights in
# fp32, 64 tokens of prompt and 192 new ones, 1 and 8 sequences. Programs alternate, round by round; the best round of each
# counts. Appends rows to dev/bench/cpu_decode.csv.
#
#     dev/bench/cpu_decode.sh [-r ROUNDS] [-l path/to/llama2.c] [-p PYTHON]        (5 rounds; python3)
#
# Costs 2 minutes a round on two cores, most of it PyTorch's, 2.5 GB of memory and, with -l, 0.5 GB of disk in $TMPDIR. The
# machine should be quiet: the load before the start is a column. A PYTHON without PyTorch leaves PyTorch out.
# llama2.c has no prefill: its prompt is the first token, and its rate that of 255 tokens from there on.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac

rounds=5
llama=
python=python3
while getopts r:l:p: flag; do
    case $flag in
    r) rounds=$OPTARG ;;
    l) llama=$(realpath -m -- "$OPTARG") ;;
    p) python=$OPTARG ;;
    *) echo "usage: $0 [-r ROUNDS] [-l path/to/llama2.c] [-p PYTHON]" >&2; exit 1 ;;
    esac
done
[[ $rounds =~ ^[1-9][0-9]{0,5}$ ]] || { echo "error: -r $rounds: not a number of rounds" >&2; exit 1; }
if [ -n "$llama" ] && [ ! -f "$llama/run.c" ]; then
    echo "error: -l $llama: no run.c there; give the folder of llama2.c's sources" >&2
    exit 1
fi
cd "$(dirname "$0")/../.."
load=$(cut -d' ' -f1 /proc/loadavg)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT

make -s build/cpu_decode
if [ -n "$llama" ]; then # as its target runomp does
    cc -Ofast -fopenmp -march=native -w "$llama/run.c" -lm -o "$folder/llama2"
    build/cpu_decode llama2 "$folder/llama2.bin" "$folder/llama2_tokenizer.bin"
fi
torch=
"$python" -c 'import torch' 2> /dev/null && torch=yes

# Lines of 'name value ...' go to a file of each program and batch.
run() { # file command ...
    local file=$folder/$1
    shift
    "$@" | tee -a "$file" | sed "s|^|$(basename "$file"): |"
}
llama2() {
    "$folder/llama2" "$folder/llama2.bin" -z "$folder/llama2_tokenizer.bin" -t 0 -n 256 2>&1 > /dev/null |
        awk '/tok\/s/ { print "tokens_per_s", $3 }'
}
for ((round = 1; round <= rounds; round++)); do
    run bandwidth build/cpu_decode bandwidth
    for B in 1 8; do
        run "flashgpt $B" build/cpu_decode d12 "$B" 64 192 1
        [ -z "$torch" ] || run "pytorch $B" "$python" dev/reference/time_decode.py d12 "$B" 64 192 1
    done
    [ -z "$llama" ] || run "llama2.c 1" llama2
done

# best FILE NAME SIGN: the largest value of a name, with SIGN -1 the smallest
best() {
    awk -v name="$2" -v sign="$3" '{ for (i = 1; i < NF; i += 2) if ($i == name && (!n++ || sign * $(i + 1) > sign * x)) x = $(i + 1) }
        END { print n ? x : "" }' "$folder/$1"
}
csv=dev/bench/cpu_decode.csv
[ -f "$csv" ] || echo date,commit,cpu,cores,load,program,model,B,prompt,new,first_ms,tokens_per_s,gb_per_s,bandwidth_gb_per_s,share > "$csv"
cpu=$(awk -F': *' '/^model name/ { print $2; exit }' /proc/cpuinfo)
bandwidth=$(best bandwidth gb_per_s 1)
for program in flashgpt pytorch llama2.c; do
    for B in 1 8; do
        [ -f "$folder/$program $B" ] || continue
        first=$(best "$program $B" first_ms -1)
        rate=$(best "$program $B" tokens_per_s 1)
        read_rate=$(best "$program $B" gb_per_s 1)
        share=$(awk -v x="$read_rate" -v y="$bandwidth" 'BEGIN { if (x != "") printf "%.2f", x / y }')
        echo "$program, B=$B: ${first:+first token after $first ms, }$rate tok/s${share:+, $read_rate of $bandwidth GB/s: $share}"
        echo "$(date +%F),$(git rev-parse --short HEAD),$cpu,$(nproc),$load,$program,d12,$B,64,192,$first,$rate,$read_rate,$bandwidth,$share" >> "$csv"
    done
done
