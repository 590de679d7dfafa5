#!/usr/bin/env bash
# The rows of dev/test/gpu_runs.csv that a change of GPU code needs, in one go on a machine with four GPUs: make test on GPUs 0
# and 1, make test on GPU 2, and make load on GPU 3, side by side, each in a copy of this checkout and on cores of its own. With
# two GPUs: make test on both, then make test on the first beside make load on the second.
#
#     dev/test/gpu_rows.sh [LOAD_SECONDS]         default: 300. Ten minutes with 64 cores. COMMIT=abc1234 where there is no git
#
# Programs are built once, before the copies. Appends the rows, and leaves what was printed in build/rows. Exit code 1 where a
# test failed. ROWS="two load" runs these alone, ROWS=none builds the programs and runs nothing.
set -uo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.." || exit 1
load_seconds=${1:-300}
[[ $load_seconds =~ ^[1-9][0-9]*$ ]] || { echo "error: gpu_rows.sh: LOAD_SECONDS is a number of seconds, not $load_seconds" >&2; exit 1; }
real=$(command -v nvidia-smi) || { echo "error: gpu_rows.sh: no nvidia-smi here, and the rows are of GPUs" >&2; exit 1; }
count=$("$real" -L | grep -c '^GPU')
[ "$count" -ge 2 ] || { echo "error: gpu_rows.sh: $count GPU here, it takes two; RECORD=1 make test serves any number" >&2; exit 1; }
COMMIT=${COMMIT:-$(git rev-parse --short HEAD)} || exit 1
export COMMIT RECORD=1
kept=$PWD/build/rows cores=$(nproc)
rm -rf "$kept"
mkdir -p "$kept"
copies=$(mktemp -d)
trap 'rm -rf "$copies"' EXIT

# An nvidia-smi that shows these GPUs alone: it does not heed CUDA_VISIBLE_DEVICES
show() { # FOLDER GPUS
    mkdir -p "$1"
    cat >"$1/nvidia-smi" <<END
#!/bin/bash
if [ "\${1-}" = -L ]; then "$real" -L | grep -E '^GPU [$2]:'; else exec "$real" -i $2 "\$@"; fi
END
    chmod +x "$1/nvidia-smi"
}
# row NAME GPUS FIRST_CORE LAST_CORE TARGET: cores in 64ths
row() {
    local name=$1 gpus=$2 first=$(($3 * cores / 64)) last=$((($4 + 1) * cores / 64 - 1)) target=$5 code
    [ "$last" -ge "$first" ] || last=$first
    show "$copies/$name.bin" "$gpus"
    mkdir "$copies/$name.tmp"
    (cd "$copies/$name" && PATH=$copies/$name.bin:$PATH TMPDIR=$copies/$name.tmp CUDA_VISIBLE_DEVICES=$gpus \
        taskset -c "$first-$last" make -k "$target" LOAD_SECONDS="$load_seconds") >"$kept/$name.log" 2>&1
    code=$?
    tail -n 1 "$copies/$name/dev/test/gpu_runs.csv" >"$kept/$name.csv"
    (cd "$copies/$name/build" && cp -r "$([ "$target" = load ] && echo load || echo checks)" "$kept/$name.logs")
    echo "$name: make $target on GPU $gpus, exit code $code: $(grep -E '^make .*passed|^[0-9]+ passed' "$kept/$name.log" | tail -n 1)"
    return $code
}

checks=$(make -n test | grep -o 'check-[^ ]*' | tr '\n' ' ')
make -s -k -j"$cores" test-programs CHECKS="$checks" >"$kept/build.log" 2>&1
make -s -k -j"$cores" build/train_gpt2cu_bf16 build/generate_gpt2cu_bf16 >>"$kept/build.log" 2>&1
[ "${ROWS:-}" != none ] || { grep -E ' error |Error [0-9]' "$kept/build.log" && exit 1; exit 0; }
pids=() failed=0
start() { # NAME ...: as row
    [[ " ${ROWS:-two one load} " == *" $1 "* ]] || return 0
    mkdir "$copies/$1"
    cp -a . "$copies/$1"
    row "$@" &
    pids+=($!)
}
wait_rows() {
    local pid
    for pid in ${pids[@]+"${pids[@]}"}; do wait "$pid" || failed=1; done
    pids=()
}
if [ "$count" -ge 4 ]; then
    start two 0,1 0 25 test
    start one 2 26 41 test
    start load 3 42 63 load
else
    start two 0,1 0 63 test
    wait_rows
    start one 0 0 41 test
    start load 1 42 63 load
fi
wait_rows
cat "$kept"/*.csv | tee -a dev/test/gpu_runs.csv
exit $failed
