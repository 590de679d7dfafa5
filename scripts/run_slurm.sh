#!/usr/bin/env bash
# Trains GPT-2 124M on two machines of eight GPUs each under Slurm. Two minutes before its time ends, the run is told to save
# and end; the same command goes on from there, also with another number of machines that is a power of two.
#
#     sbatch scripts/run_slurm.sh                       from the project's folder
#     sbatch --nodes=1 scripts/run_slurm.sh -x 2000     one machine; further flags go to the trainer
#
# Before: as in run_one_machine.sh. The folder must be shared by the machines; rank 0 alone writes log124M. The processes meet
# at the first machine, on a port from 20480 to 28671 that follows from the job's number; --rendezvous-port names another.
#SBATCH --job-name=gpt2
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=8
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=4
#SBATCH --time=12:00:00
#SBATCH --signal=TERM@120
#SBATCH --output=gpt2-%j.out
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
if [ -z "${SLURM_SUBMIT_DIR-}" ]; then
    echo "error: SLURM_SUBMIT_DIR is not set: start it with sbatch, or scripts/run_one_machine.sh where there is no Slurm" >&2
    exit 1
fi
cd "$SLURM_SUBMIT_DIR"
trainer=${TRAINER:-./train_gpt2cu}
if [ ! -x "$trainer" ]; then
    echo "error: $trainer is not there: make train_gpt2cu" >&2
    exit 1
fi
exec srun --kill-on-bad-exit=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-4}" "$trainer" -o log124M -y 1 -n 1000 -nk 2 \
    -i 'dev/data/fineweb10B/fineweb_train_*.bin' -j 'dev/data/fineweb10B/fineweb_val_*.bin' -e d12 \
    -b 32 -t 1024 -d 524288 -l 6e-4 -u 700 -q 0 -c 0.1 -v 250 -s 0 "$@"
