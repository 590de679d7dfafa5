#!/usr/bin/env bash
# The GPU's tests beside each other: all test programs at once, each again and again, with a training run of 124M whose weights
# must have the bits of one that ran alone, and generated text that must be that of a run alone. make load
#
#     dev/test/whole/gpu_load.sh SECONDS TRAINER GENERATOR TEST_PROGRAM...
#
# Runs that have begun after SECONDS are waited for; each may take LOAD_TIMEOUT seconds (900). Takes 20 GB of GPU memory or
# more, 3 GB of disk. What failed runs printed is in build/load. Ends in 'N passed, N failed', of runs; exit
# code 1 where one failed. RECORD=1 appends a row to dev/test/gpu_runs.csv.
. dev/test/fixtures/unit.sh
[ $# -ge 4 ] || { echo "usage: $0 SECONDS TRAINER GENERATOR TEST_PROGRAM..." >&2; exit 1; }
seconds=$1 trainer=$2 generator=$3
shift 3
[[ $seconds =~ ^[1-9][0-9]*$ ]] || { echo "error: $seconds is no number of seconds" >&2; exit 1; }
if [ -n "${RECORD:-}" ]; then dev/test/record_run.sh ready load || exit 1; fi
kept=build/load
rm -rf $kept
mkdir -p $kept

write_text
# a vocabulary as large as GPT-2's, so that the classifier is: all bytes, and pairs of them
"$python" - "$dir/tokenizer.bin" <<'END'
import struct, sys
with open(sys.argv[1], "wb") as f:
    f.write(struct.pack("<256i", 20240328, 2, 50257, 50256, *[0] * 252))
    for i in range(50257):
        token = bytes([i]) if i < 256 else bytes(divmod(i - 256, 256))
        f.write(bytes([len(token)]) + token)
END
limited() { timeout -k 10 "${LOAD_TIMEOUT:-900}" "$@" </dev/null; }
# train FOLDER
train() {
    limited "$trainer" -i "$dir/text_train.bin" -j "$dir/text_val.bin" -e d12 --vocab-size 50257 -b 4 -t 1024 \
        -x 20 -n 20 -v 0 -m 0 -s 0 -o "$1"
}
train_again() {
    local folder=$dir/train.$BASHPID code=0
    train "$folder" && same_weights "$folder" || code=1
    rm -rf "$folder"
    return $code
}
same_weights() { cmp "$dir/alone/model_00000020.bin" "$1/model_00000020.bin"; }
# generate BATCH: sampled and greedy, in JSON, whose times are removed
generate() {
    local flags=(-q -e "$dir/alone" --tokenizer "$dir/tokenizer.bin" -p "int main" -p "// The" -n 40 --json -b "$1")
    limited "$generator" "${flags[@]}" --num-samples 8 >"$2" && limited "$generator" "${flags[@]}" --temperature 0 >>"$2" &&
        sed -i -E 's/"[a-z_]*seconds": ?[^,}]*//g' "$2"
}
generate_again() {
    local file=$dir/text.$BASHPID code=0
    generate "$1" "$file" && cmp "$dir/text.$1" "$file" || code=1
    rm -f "$file"
    return $code
}
# loop NAME COMMAND...: until the time is up; a line of $dir/runs for each run
loop() {
    local name=$1 run=0 begin verdict
    shift
    while [ $SECONDS -lt $end ]; do
        run=$((run + 1)) begin=$SECONDS verdict=passed
        if ! "$@" >"$dir/out.$name" 2>&1; then verdict=failed && cp "$dir/out.$name" "$kept/$name.$run.log"; fi
        echo "$name $verdict $((SECONDS - begin))" >>"$dir/runs"
    done
}

batches="1 2 8 16"
train "$dir/alone" >"$dir/out" 2>&1 || { cat "$dir/out"; echo "error: the training run failed alone" >&2; exit 1; }
for batch in $batches; do
    generate "$batch" "$dir/text.$batch" 2>"$dir/out" || { cat "$dir/out"; echo "error: generating failed alone" >&2; exit 1; }
done
rm -f "$dir"/alone/state_*
end=$((SECONDS + seconds))
for program in "$@"; do
    loop "${program##*/}" limited "$program" &
    if [[ $program == *test_gpu_generate_bf16 ]]; then # the decoder's head, which failed beside others in one of 400 launches
        for n in 1 2 3; do loop "head-$n" limited "$program" head 20 & done
    fi
done
loop train train_again &
for batch in $batches; do loop "generate-b$batch" generate_again "$batch" & done
wait

awk '{ runs[$1]++; failed[$1] += $2 == "failed"; seconds[$1] += $3 }
    END { for (name in runs) printf "%-32s %4d runs of %5.1f s, %d failed\n", name, runs[name], seconds[name] / runs[name], failed[name] }' \
    "$dir/runs" | sort
find $kept -type f | sort | head -n 20 | while read -r file; do
    echo "FAILED: $file:"
    grep -aE 'not so|differ|error|failed' "$file" | head -n 4
done
passed=$(grep -c ' passed ' "$dir/runs")
failed=$(grep -c ' failed ' "$dir/runs")
if [ -n "${RECORD:-}" ]; then dev/test/record_run.sh add "$passed" "$failed" 0 "$SECONDS" "$seconds" || exit 1; fi
finish
