#!/usr/bin/env bash
# What eight GPUs of one machine give, or as many as there are, in one command; of 1558M and of the rest in one call each, where
# a call has an end. On two H200s bits and killed took 89 s together, 124M and 1558M more than 150 and 297 s:
#
#     make train_gpt2cu build/train_gpt2cu_bf16 build/train_gpt2cu_faults_bf16
#     dev/bench/eight_gpus.sh 124M bits killed
#     dev/bench/eight_gpus.sh 1558M
#
# 124M     64 rows a GPU, 100 steps on 1, 2, 4 and 8, with -z 0 on all, and PyTorch's DDP: scaling.py,
#          dev/bench/<gpu>/scaling.csv
# 1558M    the same of 8 rows a GPU
# bits     weights and moments of 124M after 20 steps of the same batches on 1, 2, 4 and 8: test_several_gpus.sh
# killed   a rank of 124M, at any moment: all end within 30 s; half of the GPUs go on, then all: process_faults.py
#
# Ends with a table: beside each run what dev/scaling/model.py predicts for it, what held, and what was skipped. Costs: 100 GB
# of GPU memory, 12 GB of disk; logs in build/eight_gpus. TRAINER= and OUTPUT= name another trainer and folder of the CSV,
# COMMIT= what is measured where there is no git.
set -uo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.." || exit 1

sections=(124M 1558M bits killed)
for section in "$@"; do
    [[ " ${sections[*]} " == *" $section "* ]] || {
        echo "error: $section: no such section; choose of: ${sections[*]}" >&2
        exit 1
    }
done
[ $# -gt 0 ] || set -- "${sections[@]}"
wanted() { [[ " $asked " == *" $1 "* ]]; }
asked="$*"

gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -gt 0 ] || { echo "error: nvidia-smi shows no GPU here" >&2; exit 1; }
trainer=${TRAINER:-./train_gpt2cu}
[ -x "$trainer" ] || { echo "error: $trainer is not there: make train_gpt2cu" >&2; exit 1; }
python=$(command -v python3 || command -v python)
logs=build/eight_gpus
mkdir -p "$logs"
for section in "$@"; do rm -f "$logs/$section.log"; done
summary=() skipped=() failures=0

# section NAME COMMAND...: its output goes to a log, too
section() {
    local name=$1 begin=$SECONDS result
    shift
    echo "== $SECONDS s: $name"
    if "$@" 2>&1 | tee "$logs/$name.log"; then result=ok; else result=FAILED failures=$((failures + 1)); fi
    summary+=("$name: $result, $((SECONDS - begin)) s")
}

for model in 124M:d12 1558M:d48; do
    wanted "${model%:*}" || continue
    section "${model%:*}" "$python" dev/bench/scaling.py --models "${model#*:}" --steps 100 --rounds 1 --others z0 --profile "" \
        --trainer "$trainer" ${OUTPUT:+--output "$OUTPUT"}
done
for check in bits:124M killed:killed; do
    wanted "${check%:*}" || continue
    if [ "$gpus" -lt 2 ]; then skipped+=("${check%:*}: one GPU here"); continue; fi
    section "${check%:*}" dev/test/whole/test_several_gpus.sh "${check#*:}"
done
for n in 2 4 8; do [ "$n" -le "$gpus" ] || skipped+=("$n GPUs: $gpus here"); done
"$python" -c 'import torch' 2>/dev/null || skipped+=("PyTorch: this Python has none")

echo "== $SECONDS s: of $gpus GPUs"
for name in 124M 1558M; do
    if wanted $name; then sed -n '/^model .*predicted$/,$p' "$logs/$name.log"; fi
done
for name in bits killed; do
    if [ -f "$logs/$name.log" ] && wanted $name; then
        grep -hE '^(rank [0-9]+ of|FAILED|[0-9]+ passed)' "$logs/$name.log" | sed "s/^/$name: /"
    fi
done
for line in ${summary[@]+"${summary[@]}"}; do echo "$line"; done
for line in ${skipped[@]+"${skipped[@]}"}; do echo "skipped: $line"; done
exit $((failures > 0))
