#!/usr/bin/env bash
# --plan, -b auto and -r auto of the given trainer (./train_gpt2 or ./train_gpt2cu), and that a run which cannot fit never
# begins. Takes seconds; writes to a temporary folder only.
#
#     dev/test/whole/test_plan.sh ./train_gpt2
#     dev/test/whole/test_plan.sh ./train_gpt2cu memory     that a run takes what was planned of the GPU's memory, and no more
. dev/test/fixtures/unit.sh
trainer=${1:?usage: $0 ./train_gpt2 or ./train_gpt2cu}
# trains CODE FLAG...: the trainer ends with the exit code; $dir/out and $dir/err are what it prints
trains() {
    local code
    "$trainer" "${common[@]}" "${@:2}" >"$dir/out" 2>"$dir/err"
    code=$?
    [ $code -eq "$1" ] && return 0
    echo "exit code $code:"
    tail -n 20 "$dir/out"
    cat "$dir/err"
    return 1
}
# row NAME TEXT: the table has a row of this name with TEXT in its value
row() {
    grep -E "^\| $1 +\|" "$dir/out" | cut -d '|' -f 3 | grep -qE -- "$2" && return 0
    grep -E "^\| $1 +\|" "$dir/out"
    return 1
}
refused() {
    [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -qF -- "$1" "$dir/err" && return 0
    cat "$dir/err"
    return 1
}
# what a run holds on the GPU, or on the CPU in all, is what was planned, within 3% or, below 512 MiB, within 16 MiB
within() {
    awk -v kind="$1" '$0 ~ "^" kind " memory: " {
            d = $3 - $6; most = $6 < 512 ? 16 : 0.03 * $6; found = 1; exit d * d > most * most }
        END { if (!found) { exit 1 } }' "$dir/out" && return 0
    grep ' memory: ' "$dir/out"
    return 1
}

"$python" dev/data/text.py --tokenizer bytes --output "$dir/text" train_gpt2.c llmc/*/*.h >"$dir/data.log" 2>&1 ||
    { cat "$dir/data.log"; exit 1; }
model=gpt2:l2c64h2t64
common=(-i "$dir/text_train.bin" -j "$dir/text_val.bin" -t 64 -v 0 -m 2 -s 0)
gpu=0
if nvidia-smi -L >/dev/null 2>&1 && [[ $trainer == *cu* ]]; then gpu=1; fi

# A GPU tells how much of its memory is used, not by whom: run_checks.sh runs this behind all other checks.
alone() { [ "$(nvidia-smi --query-gpu=memory.used --format=csv,noheader,nounits | head -n 1)" -lt 100 ]; }
takes_what_was_planned() {
    for try in 1 2 3; do
        trains 0 -e gpt2:l6c384h6t64 --vocab-size 50257 -b 64 -d 4096 -x 3 || return 1
        within GPU && return 0
        alone || echo "attempt $try: other programs use this GPU"
        sleep 1
    done
    return 1
}
if [ "${2-}" = memory ]; then
    for try in 1 2 3 4 5; do if ! alone; then sleep 1; fi; done # others may be about to end
    alone || { echo "skipped: other programs use this GPU"; exit 0; }
    check "a run takes what was planned on the GPU" takes_what_was_planned
    finish
    exit
fi

# --plan
check "a plan is printed" trains 0 -e $model -b 4 -d 512 -x 40 -o "$dir/new" -n 10 -nk 2 --plan
check "it has the weights" row weights '0\.[0-9] MiB'
check "it has activations by name" row "  fch_gelu" MiB
check "it has the snapshot" row snapshot MiB
check "it has the tokens of a step" row "tokens of a step" "512: B 4 x T 64 x 2 micro-steps"
check "it has the steps" row steps "0 to 40: 20480 tokens"
check "it has the checkpoints that stand on the disk at a time" row checkpoints "3 at a time"
check "it does not train" test -z "$(grep '^step ' "$dir/out")"
check "it writes nothing" test ! -e "$dir/new"
check "a run of 15 steps ends" trains 0 -e $model -b 4 -k constant -x 15 -n 10 -s 0 -m 1 -o "$dir/on"
check "its next checkpoints are planned" trains 0 -o "$dir/on" -y 1 -x 25 --plan
check "those of the steps 20 and 25" row checkpoints "2 at a time"
check "options are checked as for a run" trains 1 -e $model -b 4 -d 500 -x 40 --plan
check "a run too long is planned, and refused by its exit code" trains 1 -e gpt2:l9000c2560h40t64 -b 4 -x 40 --plan
check "the plan says why" grep -q '^note: the run does not fit' "$dir/out"

# what a recipe sets, of an epoch, whose steps the data say
recipe_of_an_epoch() { # -b auto without -d has rows of 64 x 64 tokens
    local rate=$1 tenths=$2 steps
    steps=$(sed -nE 's/^\| steps +\| 0 to ([0-9]+):.*/\1/p' "$dir/out")
    [ "$steps" -gt 100 ] && row learning-rate "^ $rate " && row warmup "^ $((steps * tenths / 10)) " && row final-fraction "^ 0 "
}
for flags in "-b auto" "-b 16 -d 4096"; do
    # shellcheck disable=SC2086 # flags and their values
    check "Muon's recipe, $flags" trains 0 -e $model $flags -x -1 --recipe muon --plan
    check "its schedule" recipe_of_an_epoch 0.000884 1
    check "Muon" row optimizer "^ muon "
    check "its momentum" row momentum "^ 0\.9 "
    check "the decay" row weight-decay "^ 0\.1 "
done
check "AdamW's" trains 0 -e $model -b auto -x -1 --recipe adamw --plan
check "its schedule, too" recipe_of_an_epoch 0.0005 3
check "without one the plan has no row" trains 0 -e $model -b 4 -x 40 --plan
no_row() { ! grep -E "^\| (recipe|optimizer|learning-rate|warmup) " "$dir/out"; }
check "of the optimizer" no_row

# -b auto and -r auto
check "-b auto without -d" trains 0 -e $model -b auto -x 2
check "is a power of two, 64 at most" row batch '^ 64 '
check "-b auto divides -d" trains 0 -e $model -b auto -d 2880 -x 2
check "it is the largest that does" row batch '^ 45 '
check "-r auto keeps all where there is room" row recompute '^ 0 '
check "-d that no B divides" trains 1 -e $model -b auto -d 100 -x 2
check "is refused, with one that a B divides" refused "-d 100 is not a multiple of -t 64 = 64 tokens; -d 128 is"
check "more rows than a file of tokens has" trains 0 -e $model -b auto -d 6400000 -x 1 --plan
check "are not taken" row "batch -b, row -t" '^ [1-9][0-9]{2,3}, 64'
for flags in "-b auto -d 512" "-b 8 -d 512 -r 0" "-b 8 -d 512 -r 2"; do
    # shellcheck disable=SC2086 # two flags and their values
    check "a run with $flags ends" trains 0 -e $model $flags -x 6 -n 6 -o "$dir/${flags// /}"
done
check "-r auto has the bits of -r 2" cmp "$dir/-bauto-d512/model_00000006.bin" "$dir/-b8-d512-r2/model_00000006.bin"
check "and of -r 0" cmp "$dir/-bauto-d512/model_00000006.bin" "$dir/-b8-d512-r0/model_00000006.bin"
check "a run with -b 2 ends" trains 0 -e $model -b 2 -d 512 -x 6 -n 3 -o "$dir/two"
rm "$dir"/two/*6*
check "resumed with -b auto" trains 0 -e $model -b auto -d 512 -x 6 -n 3 -o "$dir/two" -y 1
check "it has the checkpoint's B" row batch '^ 2 '

# the order of shuffled rows is in checkpoints, four bytes a row
takes_disk() { # FOLDER STEP: the files of a checkpoint have the size that the table says, within .1 MiB
    local bytes
    bytes=$(cat "$1/model_$2.bin" "$1/state_$2_00000.bin" | wc -c)
    awk -F'|' -v bytes="$bytes" '$2 ~ /a checkpoint/ { d = $3 - bytes / 1048576; bad = d * d > .01; found = 1 }
        END { exit bad || !found }' "$dir/out" && return 0
    echo "$bytes bytes"
    row "a checkpoint" nothing
}
# 10^9 checkpoints; the run is stopped once it says so
noted_disk() {
    local said
    "$trainer" "${common[@]}" -e $model -b 4 -x 1000000000 -n 1 -s 0 -v 0 -m 1 -o "$dir/full" >"$dir/out" 2>"$dir/err" &
    for _ in $(seq 200); do grep -q '^| steps' "$dir/out" && break; sleep 0.1; done
    grep -q '^note: the checkpoints, 1000000000 at a time, take ' "$dir/out"
    said=$?
    kill $! && wait $!
    return $said
}
check "without a plan, a note says that the disk is too small" noted_disk
no_note() { trains 0 -e $model -b 4 -x 1 -n 1 -s 0 -m 1 -o "$dir/fits" && ! grep -q "at a time" "$dir/out"; }
check "and none where it has room" no_note
rows=(-e "$model" -t 4 -b 8 -d 64 -x 2 -n 2 -o "$dir/rows")
check "rows of four tokens" trains 0 "${rows[@]}"
check "and their plan" trains 0 "${rows[@]}" --overwrite --plan
check "take the disk space that was planned" takes_disk "$dir/rows" 00000002

# what does not fit
begin=$(date +%s)
check "a model of 1.2 TB is refused" trains 1 -e gpt2:l1000c5120h40t64 -b 1 -x 1 -o "$dir/large" -n 1
check "before it is allocated" test $(($(date +%s) - begin)) -le 60
check "in one line that says what is needed and what there is" refused "GiB are available"
check "which names the flags that help" refused "take a smaller model (-e) or a shorter -t"
check "and nothing is written" test ! -e "$dir/large"
check "-b 1000000 is refused" trains 1 -e d12 -b 1000000 -x 1
check "in one line" refused "GiB are available"

# planned and used; on a GPU in a check of its own
if [ $gpu -eq 0 ]; then
    export OMP_NUM_THREADS=4 # each has buffers, which are planned but not used where there are more threads than work
    check "a larger run ends" trains 0 -e gpt2:l6c256h4t64 --vocab-size 20000 -b 16 -d 1024 -x 3
    check "it took what was planned" within host
    check "one that saves too" trains 0 -e gpt2:l4c256h4t64 --vocab-size 50257 -b 4 -d 256 -x 3 -n 1 -o "$dir/saves"
    check "with its snapshot" within host
    check "and one that resumes" trains 0 -e gpt2:l4c256h4t64 --vocab-size 50257 -b 4 -d 256 -x 4 -n 1 -o "$dir/saves" -y 1
    check "with its snapshot again" within host
fi

finish
