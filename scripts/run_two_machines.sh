#!/usr/bin/env bash
# Trains GPT-2 124M on two machines, without a launcher: start it on both, in any order, within five minutes. Ctrl-C on either:
# both save and end. Started again on both, it goes on.
#
#     scripts/run_two_machines.sh 0 10.0.0.1            on the first machine, whose address this is
#     scripts/run_two_machines.sh 1 10.0.0.1            on the second; GPUS=4 before both: so many of each, not eight
#
# Before: as in run_one_machine.sh, on both; the first machine writes log124M, and the second must reach its port 20240, or
# that of --rendezvous-port. Further flags go to the trainer, and are the same on both.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
machine=${1-} address=${2-} gpus=${GPUS:-8}
if [[ ! $machine =~ ^[01]$ || -z $address || ! $gpus =~ ^[1-9][0-9]*$ ]]; then
    echo "error: $0 needs 0|1 ADDRESS: which of the two machines this is, and the address of machine 0; GPUS=8 of each" >&2
    exit 1
fi
shift 2
cd "$(dirname "$0")/.."
trainer=${TRAINER:-./train_gpt2cu}
if [ ! -x "$trainer" ]; then
    echo "error: $trainer is not there: make train_gpt2cu" >&2
    exit 1
fi
exec "$trainer" --gpus "$gpus" -pn $((2 * gpus)) -pr $((machine * gpus)) -pi tcp -ps "$address" \
    -o log124M -y 1 -n 1000 -nk 2 \
    -i 'dev/data/fineweb10B/fineweb_train_*.bin' -j 'dev/data/fineweb10B/fineweb_val_*.bin' -e d12 \
    -b 32 -t 1024 -d 524288 -l 6e-4 -u 700 -q 0 -c 0.1 -v 250 -s 0 "$@"
