#!/usr/bin/env bash
# The learning rate, batch, warm-up, schedule, decay and moments of AdamW and of Muon, as many points of each: 124M on 50 M
# tokens of C sources (dev/data/linux_source.py), one seed. By dev/bench/loss.py: on all GPUs, and the same command goes on.
#
#     dev/bench/tune.sh 'linux_source/*_train_*.bin' linux_source/linux_source_val.bin tuning.csv    # an hour on one H100
#     dev/bench/tune.sh ... tuning.csv adamw                                                         # AdamW's points alone
#
# A point's name is its optimizer, tokens of a step in thousands, learning rate and what differs from cosine to 0 with 10% of
# warm-up and a decay of .1. Its steps have as many rows as a GPU takes at once.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
fail() { echo "error: tune.sh: $*" >&2; exit 1; }
[[ $# -ge 3 && $# -le 4 ]] || fail "it takes training tokens, validation tokens, a CSV and perhaps an optimizer; --help explains them"
train=$1 val=$2 output=$3 only=${4:-}
[[ $only =~ ^(adamw|muon)?$ ]] || fail "$only: adamw or muon"
tokens=50331648 arms=()

# point OPTIMIZER THOUSANDS RATE [NAME FLAG...]: flags replace those before them
point() {
    local optimizer=$1 thousands=$2 rate=$3 name=$1-$2k-$3
    shift 3
    [ -z "$only" ] || [ "$only" = "$optimizer" ] || return 0
    if [ $# -gt 0 ]; then name=$name-$1; shift; fi
    arms+=(--arm "$name=--optimizer $optimizer -b $thousands -d $((thousands * 1024)) -u $((tokens / thousands / 10240)) -l $rate $*")
}
# warm SHARE: the flag of another share of warm-up, in percent of the steps of a point of so many thousands
warm() { echo "-u $((tokens * $1 / 100 / $2 / 1024))"; }

for rate in 6e-4 1e-3 1.5e-3; do point adamw 64 $rate; done
for rate in 6e-4 1e-3 1.5e-3 2e-3; do point adamw 32 $rate; done
for rate in 4e-4 6e-4 1e-3 1.5e-3; do point adamw 16 $rate; done
point adamw 64 1e-3 warm30 "$(warm 30 64)"
point adamw 32 1.5e-3 warm30 "$(warm 30 32)"
point adamw 16 1e-3 warm30 "$(warm 30 16)"
point adamw 16 1e-3 linear -k linear
point adamw 16 1e-3 wsd -k wsd
point adamw 16 1e-3 beta2-99 --beta2 0.99
point adamw 16 1e-3 beta2-999 --beta2 0.999
point adamw 16 1e-3 decay0 -c 0
point adamw 16 1e-3 decay3 -c 0.3

for rate in 1e-3 2e-3 3.6e-3 6e-3; do point muon 64 $rate; done
for rate in 1.3e-3 2.5e-3 5e-3; do point muon 32 $rate; done
for rate in 1e-3 1.8e-3 3.6e-3; do point muon 16 $rate; done
point muon 64 3.6e-3 warm30 "$(warm 30 64)"
point muon 32 2.5e-3 warm1 "$(warm 1 32)"
point muon 32 2.5e-3 linear -k linear
point muon 32 2.5e-3 wsd -k wsd
point muon 32 2.5e-3 beta2-99 --beta2 0.99
point muon 32 2.5e-3 momentum9 --momentum 0.9
point muon 32 2.5e-3 momentum98 --momentum 0.98
point muon 32 2.5e-3 decay0 -c 0
point muon 32 2.5e-3 decay3 -c 0.3
point muon 16 1.8e-3 decay0 -c 0

exec python3 "$(dirname "$0")/loss.py" --tokens $tokens --seeds 1 --val-tokens 5242880 --output "$output" "${arms[@]}" \
    --common "-e d12 -i ${train@Q} -j ${val@Q} -t 1024 -q 0 -c 0.1"
