#!/usr/bin/env bash
# Several GPUs of this machine, through NCCL: the tests of test_processes.sh and process_faults.py, and the same bits of 124M
# after 20 steps on 1, 2, 4 and 8. Five minutes on two H200s, 30 GB of GPU memory on each, 6 GB of disk. Skipped where there
# are fewer than two GPUs.
#
#     make build/train_gpt2cu_bf16 build/train_gpt2cu_faults_bf16
#     dev/test/whole/test_several_gpus.sh [small] [124M] [faults]       # all three, or these; killed: a rank of 124M
gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU')
[ "$gpus" -ge 2 ] || { echo "skipped: several GPUs are tested where there are two or more, here are $gpus"; exit 0; }
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/fixtures/unit.sh
trainer=build/train_gpt2cu_bf16
faulty=build/train_gpt2cu_faults_bf16
[ $# -gt 0 ] || set -- small 124M faults
wanted() { [[ " $sections " == *" $1 "* ]]; }
sections="$*"
log() { printf '== %3d s: %s\n' $SECONDS "$*"; }

# counted COMMAND...: a test program; what it counts is added to what is counted here
counted() {
    local result
    "$@" | tee "$dir/counted"
    result=$(tail -n 1 "$dir/counted")
    [[ $result =~ ^([0-9]+)\ passed,\ ([0-9]+)\ failed ]] || { echo "FAILED: $*: $result"; failed=$((failed + 1)); return; }
    passed=$((passed + BASH_REMATCH[1]))
    failed=$((failed + BASH_REMATCH[2]))
}

if wanted small; then
    log "a small model"
    counted dev/test/whole/test_processes.sh $trainer $faulty "$gpus"
fi

# run124M NAME GPUS B FLAG...: 20 steps of eight micro-batches of B rows into $dir/NAME
run124M() {
    local name=$1 n=$2 B=$3
    shift 3
    "$trainer" -i "$dir/tokens.bin" -j "$dir/tokens.bin" -e d12 -b "$B" -t 1024 -d $((8 * B * 1024)) -x 20 -l 3e-4 -u 5 -c 0.1 -v 0 \
        -m 0 -s 0 --async-save 0 -n 20 --gpus "$n" -o "$dir/$name" "$@" >"$dir/$name.log" 2>&1 && return 0
    tail -n 3 "$dir/$name.log"
    return 1
}
if wanted 124M; then
    "$python" - "$dir/tokens.bin" <<'END'
import sys
sys.path[:0] = ["dev/bench", "dev/data"]
from step_cost import write_tokens
write_tokens(sys.argv[1], 50257, 2 << 20)
END
    for B in 4 16; do
        log "124M, eight micro-batches of $B rows"
        check "124M on one GPU" run124M one 1 $B
        for how in "2 -z 1" "4 -z 1" "8 -z 1" "2 -z 0" "4 -z 0" "8 -z 0"; do
            n=${how%% *} z=${how##* }
            if [ "$n" -gt "$gpus" ] || { [ "$z" = 0 ] && [ $((2 * n)) -le "$gpus" ]; }; then continue; fi # -z 0: on the most
            check "124M on $n GPUs, -z $z" run124M several "$n" $B -z "$z"
            for file in model_00000020.bin state_00000020_00000.bin main.log; do
                check "124M, B=$B, on $n GPUs, -z $z: the same $file" cmp "$dir/one/$file" "$dir/several/$file"
            done
            grep -E '^\| (memory|masters|moments|shard)' "$dir/one.log" "$dir/several.log" | sed "s|$dir/||"
            rm -rf "$dir/several"
        done
        rm -rf "$dir/one"
    done
fi

if wanted killed; then
    log "124M, a rank is killed"
    counted "$python" dev/test/whole/process_faults.py $trainer $faulty --count "$gpus" --model 124M --only "then all"
fi

if wanted faults; then
    log "faults"
    counted "$python" dev/test/whole/process_faults.py $trainer $faulty --count 2 --short --jobs 2
fi
log "done"
finish
