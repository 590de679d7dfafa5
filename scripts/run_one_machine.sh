#!/usr/bin/env bash
# Trains GPT-2 124M on the GPUs of this machine. The weights are the same, bit for bit, on 1, 2, 4 and 8 of them, so it may be
# stopped (Ctrl-C: it saves and ends) and go on on another number: run it again.
#
#     scripts/run_one_machine.sh                        all GPUs
#     GPUS=4 scripts/run_one_machine.sh -x 2000         so many; further flags go to the trainer
#
# Before: make train_gpt2cu; python3 dev/data/fineweb.py (20 GB; --max-shards 11: 2.2 GB); several GPUs need NCCL, which
# make doctor looks for. Writes log124M: 1.7 GB for each checkpoint, of which two are kept. Takes 30 GB of each GPU's memory.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
cd "$(dirname "$0")/.."
trainer=${TRAINER:-./train_gpt2cu}
if [ ! -x "$trainer" ]; then
    echo "error: $trainer is not there: make train_gpt2cu" >&2
    exit 1
fi
exec "$trainer" --gpus "${GPUS:-all}" -o log124M -y 1 -n 1000 -nk 2 \
    -i 'dev/data/fineweb10B/fineweb_train_*.bin' -j 'dev/data/fineweb10B/fineweb_val_*.bin' -e d12 \
    -b 64 -t 1024 -d 524288 -l 6e-4 -u 700 -q 0 -c 0.1 -v 250 -s 0 "$@"
