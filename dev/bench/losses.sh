#!/usr/bin/env bash
# Long runs by dev/bench/loss.py, for docs/measured.md: on all GPUs, and the same command goes on. tune.sh has the tuning before
# them.
#
#     dev/bench/losses.sh NAME 'linux_source/*_train_*.bin' linux_source/linux_source_val.bin losses.csv [FLAGS of loss.py]
#
#     fp8         124M, --recipe muon, 131 M tokens: fp8 beside bf16; 8 seeds
#     fp8-adamw   the same of --recipe adamw, one seed
#     fp8-355m    the same of 355M, --recipe muon, 66 M tokens, two seeds
#     adamw       AdamW's three best of tune.sh, 131 M tokens, 5 seeds
#     muon        AdamW's best with 131 M tokens, Muon's with 66, 87 and 98 M. 6 seeds. The CSV of adamw has five of
#                 AdamW's runs already, and can be continued
#     muon-english, muon-355m     the same with half of the tokens, of english, of 355M. 3 seeds
#     documents   --documents 2 beside rows without, T = 1024 and 4096, 16 M tokens, two seeds
#     quarter     about a quarter of an hour each on an H200: the recipe in fp8, two seeds; PyTorch, compiled, with AdamW's best
#                 of larger steps; LLMC=path/to/llm.c/train_gpt2cu with its published recipe, warm-up as a share of the steps.
#                 One of them: quarter-ours, quarter-pytorch, quarter-llmc
#
# docs/recipe.md shows these files of dev/bench/nvidia-h200: optimizers_loss.csv (adamw and muon), english_loss.csv
# (muon-english), 355m_loss.csv (muon-355m), quarter_loss.csv.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
fail() { echo "error: losses.sh: $*" >&2; exit 1; }
[ $# -ge 4 ] || fail "it takes a name, training tokens, validation tokens and a CSV; --help explains them"
name=$1 train=$2 val=$3 output=$4 here=$(realpath "$(dirname "$0")")
shift 4
extra=("$@")

# measure TOKENS SEEDS FLAGS ARM...: flags of all arms. $every: steps between validations, which are on the same tokens whatever
# the batch
every=0 val_tokens=9961472
measure() {
    local tokens=$1 seeds=$2 flags=$3 arm arms=()
    shift 3
    for arm; do arms+=(--arm "$arm"); done
    # shellcheck disable=SC2086 # several lengths
    python3 "$here/loss.py" --tokens $tokens --seeds "$seeds" --output "$output" --val-every $every --val-tokens $val_tokens \
        "${arms[@]}" --common "-i ${train@Q} -j ${val@Q} -t 1024 $flags" ${extra[@]+"${extra[@]}"}
}
long=131072000
adamw='adamw-16k=-b 16 -d 16384 --recipe adamw'
[[ ! $name =~ ^quarter(-llmc)?$ || -x ${LLMC:-} ]] || fail "LLMC=${LLMC:-}: $name takes the path of llm.c's train_gpt2cu"
case $name in
fp8 | fp8-adamw)
    optimizer=muon seeds=8
    [ "$name" = fp8 ] || optimizer=adamw seeds=1
    measure $long $seeds '-e d12 -b 64 -d 65536' "$optimizer=--recipe $optimizer" "$optimizer-fp8=--recipe $optimizer --fp8 1"
    ;;
fp8-355m) measure 65536000 2 '-e d24 -b 32 -d 65536' '355m=--recipe muon' '355m-fp8=--recipe muon --fp8 1' ;;
adamw)
    measure $long 5 '-e d12' "$adamw" 'adamw-32k=-b 32 -d 32768 --recipe adamw -l 1.5e-3' \
        'adamw-16k-wsd=-b 16 -d 16384 --recipe adamw -u 800 -k wsd'
    ;;
muon | muon-english | muon-355m)
    model=d12 tokens=$long seeds=6
    [ "$name" = muon ] || tokens=$((long / 2)) seeds=3
    [ "$name" != muon-355m ] || model=d24
    [ "$name" != muon-english ] || val_tokens=1998848 # there are no more
    steps=$((tokens / 32768))
    half=$((steps / 2)) two_thirds=$((steps * 2 / 3)) three_quarters=$((steps * 3 / 4))
    measure "$((half * 32768)) $((two_thirds * 32768)) $((three_quarters * 32768))" $seeds "-e $model" 'muon-32k=-b 32 -d 32768 --recipe muon'
    measure "$tokens" $seeds "-e $model" "$adamw" # last: the arm of the last call is the baseline
    python3 "$here/loss.py" --output "$output"
    ;;
documents)
    for T in 1024 4096; do
        rows="-e d12t$T -t $T -b $((16384 / T)) -d 16384 --recipe muon"
        measure 16384000 2 '' "$T=$rows" "$T-masked=$rows --documents 2"
    done
    ;;
quarter)
    for part in ours pytorch llmc; do "$0" "quarter-$part" "$train" "$val" "$output" ${extra[@]+"${extra[@]}"}; done
    python3 "$here/loss.py" --output "$output"
    ;;
quarter-ours)
    every=960
    measure 629145600 2 '-e d12' 'flashgpt=-b 64 -d 65536 --recipe muon --fp8 1'
    ;;
quarter-pytorch)
    every=1157
    measure 379125760 1 '-e d12' \
        "pytorch=${here@Q}/../reference/train_reference.py"' --seed {seed} --compile 1 -b 32 -d 32768 -l 1.5e-3 -u 3471 -q 0 -c 0.1'
    ;;
quarter-llmc) # last: the arm of the last call is the baseline
    every=100
    measure 419430400 1 '-e d12' "llm.c=${LLMC@Q} -b 64 -d 524288 -l 6e-4 -u 29 -q 0 -c 0.1 -s 0"
    ;;
*) fail "$name: fp8, fp8-adamw, fp8-355m, adamw, muon, muon-english, muon-355m, documents, quarter or one of its parts" ;;
esac
