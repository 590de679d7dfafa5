#!/usr/bin/env bash
# A CPU training step of 124M, B=4, T=64, beside other work: against its fair share of the cores, which is the time alone times
# (threads + load) / cores. Appends to dev/bench/busy_step.csv.
#
#     dev/bench/busy_step.sh [load] [rounds]        (load: 6 programs that never wait, rounds: 3)
#
# On a quiet machine. Costs about two minutes on two cores, 2.5 GB of memory, and 0.5 GB of disk in $TMPDIR.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac

load=${1:-6}
rounds=${2:-3}
for number in "$load" "$rounds"; do
    [[ $number =~ ^[1-9][0-9]{0,3}$ ]] || { echo "error: $number: not a number of programs or rounds" >&2; exit 1; }
done
cd "$(dirname "$0")/../.."
folder=$(mktemp -d)
others=()
end() {
    [ ${#others[@]} -eq 0 ] || kill "${others[@]}" 2>/dev/null || true
    rm -rf "$folder"
}
trap end EXIT
make -s build/cpu_step
build/cpu_step new d12 "$folder/model.bin"

# The median step; the first of a run touches fresh memory, and is not counted.
median() { sort -g | awk '{ x[NR] = $1 } END { print NR % 2 ? x[(NR + 1) / 2] : (x[NR / 2] + x[NR / 2 + 1]) / 2 }'; }
steps() { build/cpu_step "$folder/model.bin" 4 64 4 | awk '$1 == "step" && $2 > 1 { print $6 }'; }
busy() {
    others=()
    for ((i = 0; i < load; i++)); do
        (while :; do :; done) &
        others+=($!)
    done
    steps
    kill "${others[@]}"
    wait "${others[@]}" 2>/dev/null || true
    others=()
}
for ((round = 1; round <= rounds; round++)); do
    steps >>"$folder/alone"
    busy >>"$folder/busy"
done
cores=$(nproc)
alone=$(median <"$folder/alone")
beside=$(median <"$folder/busy")
ratio=$(awk -v a="$alone" -v b="$beside" -v n="$cores" -v l="$load" 'BEGIN { printf "%.2f", b / (a * (n + l) / n) }')
echo "alone $alone ms, beside $load programs $beside ms: $ratio times its fair share of $cores cores"
csv=dev/bench/busy_step.csv
[ -f "$csv" ] || echo "date,commit,cpu,cores,model,B,T,load,ms_alone,ms,times_fair_share" >"$csv"
cpu=$(awk -F': *' '/^model name/ { print $2; exit }' /proc/cpuinfo)
echo "$(date -u +%F),$(git rev-parse --short HEAD),$cpu,$cores,d12,4,64,$load,$alone,$beside,$ratio" >>"$csv"
