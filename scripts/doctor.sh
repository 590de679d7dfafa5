#!/usr/bin/env bash
# Whether this machine can build and run everything here: a table of what is ok and what is not, with the fix for each. First
# the tools, then what the trainer itself finds out (--doctor): memory, disk, data files, a GEMM and attention against fp64;
# where there are several GPUs, NCCL.
# Takes a few seconds, and 15 s to build the CPU trainer where there is none; writes in build/ and a test file that it removes.
#
#     scripts/doctor.sh                      or: make doctor
#     scripts/doctor.sh -o log124M -i 'data/train_*.bin' -j data/val.bin      the trainer's flags; make doctor ARGS='...'
#
# Exit code 0 where nothing essential is missing, else 1.
set -uo pipefail
case " $* " in *" --help "*) sed -n '2,/^set/{s/^# \{0,1\}//p}' "$0"; exit 0 ;; esac
root=$(realpath "$(dirname "${BASH_SOURCE[0]}")/..")
faults=0

# row RESULT NAME VALUE [MEND]
row() {
    printf '| %-21s | %-50s |\n' "$2" "$(printf '%-6s  %s' "$1" "$3")"
    [ "$1" = ok ] || [ -z "${4:-}" ] || printf '| %-21s | %-50s |\n' "" "        -> $4"
    [ "$1" != "NOT OK" ] || faults=$((faults + 1))
}
line() { echo "+-----------------------+----------------------------------------------------+"; }
first_line() { # of what a command prints; all of it is read, so that no pipe breaks
    local text
    text=$("$@" 2>/dev/null)
    echo "${text%%$'\n'*}"
}

# tool RESULT NAME MEND COMMAND...: a row with the first line that the command prints; RESULT where there is no such command
tool() {
    local missing=$1 name=$2 fix=$3 text
    shift 3
    if command -v "$1" >/dev/null 2>&1 && text=$(first_line "$@") && [ -n "$text" ]; then
        row ok "$name" "$text"
    else
        row "$missing" "$name" "$1 is not here, or does not run" "$fix"
    fi
}

read -ra cc <<<"${CC:-cc}" # with its arguments
nvcc=${NVCC:-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)}
gpu=$(nvidia-smi --query-gpu=name,driver_version,compute_cap --format=csv,noheader 2>/dev/null | head -n 1)
gpu_result=-
[ -z "$gpu" ] || gpu_result="NOT OK"

line
tool "NOT OK" "C compiler" "install gcc or clang: apt-get install build-essential" "${cc[@]}" --version
"${cc[@]}" -std=c11 -fopenmp -include omp.h -x c -o /dev/null - 2>/dev/null <<<'int main(void){return 0;}' ||
    row - OpenMP "${cc[*]} has none: the CPU programs use one core" "apt-get install libgomp1, or libomp-dev for clang"
tool "NOT OK" make "apt-get install make" make --version
tool "NOT OK" bash "apt-get install bash" bash --version
tool "NOT OK" python3 "apt-get install python3, 3.9 or newer" python3 --version
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' 2>/dev/null || [ ! -x "$(command -v python3)" ] ||
    row "NOT OK" python3 "is too old" "put 3.9 or newer on the PATH as python3"

# CUDA: the toolkit 12.6 or newer, which matters only where there is a GPU
# shellcheck disable=SC2086 # it may have arguments, too
release=$([ -z "$nvcc" ] || $nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9]*\.[0-9]*\).*/\1/p')
if [ -z "$release" ]; then
    row "$gpu_result" "CUDA Toolkit" "no nvcc" "install the CUDA Toolkit, 12.6 or newer, or name its compiler with NVCC="
elif [ "$(printf '%s\n' 12.6 "$release" | sort -V | head -n 1)" != 12.6 ]; then
    row "$gpu_result" "CUDA Toolkit" "$release in $nvcc" "install 12.6 or newer"
else
    row ok "CUDA Toolkit" "$release in $nvcc"
fi
if [ -n "$gpu" ]; then
    row ok "GPU, driver" "$gpu"
elif command -v nvidia-smi >/dev/null 2>&1; then
    row "NOT OK" "GPU, driver" "nvidia-smi finds no GPU" "load the driver: nvidia-smi says what is wrong"
else
    row - "GPU, driver" "no GPU here: the CPU trainer is checked" "with a GPU: install NVIDIA's driver"
fi

# The trainer, which does the rest
trainer=$root/train_gpt2
if [ -n "$gpu" ] && [ -n "$release" ]; then trainer=$root/train_gpt2cu; fi
fix="make $(basename "$trainer"); its errors: build/doctor.log"
if [ "$trainer" = "$root/train_gpt2" ] && [ ! -x "$trainer" ]; then
    { mkdir -p "$root/build" && make -s -C "$root" train_gpt2 >"$root/build/doctor.log" 2>&1; } 2>/dev/null
    [ -w "$root" ] && [ -w "$root/build/doctor.log" ] || fix="cannot write in $root: copy the project to a folder that you may write in"
fi
if [ -x "$trainer" ]; then
    row ok trainer "$trainer"
    "$trainer" --doctor "$@" || faults=$((faults + 1))
else
    row "NOT OK" trainer "$trainer is not built" "$fix"
    line
fi
[ $faults -eq 0 ] && echo "doctor: nothing essential is missing" || echo "doctor: something is not ok; see '->' above"
[ $faults -eq 0 ]
