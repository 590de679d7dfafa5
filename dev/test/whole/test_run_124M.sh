#!/usr/bin/env bash
# scripts/run_124M.sh with a small model on the CPU: what it takes is said first; a run that is stopped, and one that is killed,
# goes on; the end has a sample and an export; wrong arguments are refused in one line.
#
#     dev/test/whole/test_run_124M.sh ./train_gpt2
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/fixtures/unit.sh
export TRAINER=$1 TOKENIZER=bytes
script=scripts/run_124M.sh
small=(-- -e gpt2:l2c64h2t64 -b 4 -t 64 -d 512 -l 2e-3 -n 3)
run() { # MINUTES ARGUMENT...
    "$script" --text llmc/base README.md --minutes "$1" -o "$dir/out" "${@:2}" >"$dir/log" 2>&1
}
refuses() { # TEXT ARGUMENT...
    if ! "$script" "${@:2}" >"$dir/log" 2>"$dir/err" && [ "$(wc -l <"$dir/err")" -eq 1 ]; then
        grep -q -- "^error: .*$1" "$dir/err" && return 0
    fi
    cat "$dir/err"
    return 1
}
bin=$dir/bin # stand-ins
mkdir "$bin"
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$bin/$1" && chmod +x "$bin/$1"; } # PROGRAM WHAT_IT_DOES
says() { grep -qE -- "$1" "$dir/log" || { cat "$dir/log"; return 1; }; }
wait_for() { # TEXT: until a run in the background says it
    local tries=0
    until grep -q "^$1" "$dir/log" || [ $((tries += 1)) -gt 600 ]; do sleep .1; done
}
# end_it SIGNAL [script]: the trainer of a run in the background, or the script alone, once it has written a checkpoint
end_it() {
    local script_pid
    : >"$dir/log"
    run 0.15 "${small[@]}" &
    script_pid=$!
    wait_for "wrote checkpoint"
    if [ $# = 2 ]; then pkill "-$1" -P $script_pid; else pkill "-$1" -f -- "$TRAINER .*-o $dir/out/run"; fi
    wait $script_pid
}

odd='a[1]*b \c?'
check "a folder with a pattern's name" run 0.01 -o "$dir/$odd" "${small[@]}"
pasted() { eval "$(sed -n 's/^  \(.*perplexity\) YOUR_TEXT/\1 README.md/p' "$dir/log")" >"$dir/score"; }
check "what comes next can be pasted" pasted
check "and scores" grep -q perplexity "$dir/score"
check "what it takes" run 0.02 --cost "${small[@]}"
check "steps" says "^a step takes [0-9.]+ ms: [0-9]+ steps in 0.02 minutes"
check "memory" says "host peak"
check "disk" says "disk available"
check "trains nothing" test ! -e "$dir/out/run"
check "stopped" end_it TERM
check "says so" says "^stopped before step [0-9]+: the same command goes on"
check "killed" eval '! end_it KILL'
check "says it, too" says "^error: the trainer ended with exit code 137; the same command goes on"
for signal in TERM HUP; do
    check "the script has a SIG$signal" end_it $signal script
    check "so has its trainer" says "^SIG$signal: ending after this step"
    check "it is waited for" says "^stopped before step [0-9]+: the same command goes on"
done
check "goes on" run 0.15 "${small[@]}"
check "says so" says "^== goes on from the newest checkpoint of $dir/out/run"
last() { printf "%08d" "$(sed -n 's/^result --max-steps //p' "$1/run/main.flags")"; } # step of a run's folder
check "to the last step" test -e "$dir/out/run/model_$(last "$dir/out").bin"
recorded() { for line; do grep -qx "result --$line" "$dir/out/run/main.flags" || { echo "not --$line"; return 1; }; done; }
steps=$((10#$(last "$dir/out")))
check "by Muon's recipe" recorded "optimizer muon" "momentum 0.9" "warmup $((steps / 10))" "final-fraction 0" "weight-decay 0.1"
check "but for what was typed" recorded "learning-rate 0.002" "batch 4"
check "a sample" says "^The "
check "an export" test -s "$dir/out/hugging_face/model.safetensors"
check "what it takes now" run 0.15 --cost
check "time" says "^a step takes [0-9.]+ ms: [0-9]+ steps in 0.15 minutes"
check "no step is left" says "^\| steps  *\| ([0-9]+) to \1: 0 tokens"
check "once more" run 0.15
trains_no_step() { ! grep -q "^step" "$dir/log"; }
check "trains no step" trains_no_step
same=(--text llmc/base README.md -o "$dir/out")

# A kill while the last checkpoint was written has left its model. What the trainer then ends with is passed on.
rm "$dir/out/run/DONE_$(last "$dir/out")" "$dir/out/run/state_$(last "$dir/out")"_*.bin
for code in 1 3; do
    stand_in trainer "echo 'error: a reason' >&2; exit $code"
    TRAINER=$bin/trainer check "exit code $code has the trainer's reason alone" refuses "a reason" "${same[@]}"
done
check "a model without its DONE" run 0.15
check "is not the end" test -e "$dir/out/run/DONE_$(last "$dir/out")"

check "another text" refuses "$dir/out is of .*/llmc/base .*README.md as bytes, not of .*/Makefile as bytes: name another folder" --text Makefile -o "$dir/out"
TOKENIZER='' check "no text" refuses "$dir/out is of .*README.md as bytes, not of FineWeb: name another folder" -o "$dir/out"
TOKENIZER='' check "other tokens" refuses "README.md as bytes, not of .*README.md: name another folder" "${same[@]}"
TOKENIZER=byte check "tokens that are none" refuses "TOKENIZER=byte: bytes, or nothing" "${same[@]}"
check "bytes of FineWeb" refuses "TOKENIZER=bytes: of --text alone" -o "$dir/web"
check "another time" refuses "--minutes 2: the run in $dir/out has 0.15; name another folder" "${same[@]}" --minutes 2
check "other flags" refuses "-- -l 1: the run in $dir/out has -e .* -n 3; name another folder" "${same[@]}" -- -l 1
TRAINER=./nope check "no such trainer" refuses "TRAINER=$PWD/./nope needs that program" "${same[@]}"
check "a folder that cannot be" refuses "-o /proc/run: cannot make that folder" --text README.md -o /proc/run
check "what does not train" refuses "--plan: --cost before -- says what the run takes" --text README.md -- --plan

# A second call does not touch what an active one has recorded, and is refused before it measures anything.
busy=("${small[@]}" -n 100000) # its only checkpoint is the last
during_another() {
    : >"$dir/log"
    run 0.05 -o "$dir/busy" "${busy[@]}" &
    wait_for step
    refuses "-o $dir/busy: another call is using it" "${same[@]}" -o "$dir/busy" --minutes 0.02 "${busy[@]}" -l 1
    local code=$?
    wait $!
    return $((code + $?))
}
check "a second call" during_another
check "the first one's time stays" grep -qx 0.05 "$dir/busy/minutes"
check "its flags stay" grep -qx -- "${busy[*]:1}" "$dir/busy/flags"
check "its own command goes on" run 0.05 -o "$dir/busy" "${busy[@]}"
rm "$dir/busy/minutes"
check "a missing record" refuses "$dir/busy/minutes is missing or damaged: write the minutes" "${same[@]}" -o "$dir/busy"
echo 0.05 >"$dir/busy/minutes"
sed -i /--max-steps/d "$dir/busy/run/main.flags"
check "a run without its steps" refuses "main.flags does not say how many steps" "${same[@]}" -o "$dir/busy"

# Until there is a checkpoint, tokens follow the text
grows=(--text "$dir/grows.txt" --cost -o "$dir/grows" "${small[@]}")
echo "too small" >"$dir/grows.txt"
check "a text that is too small" refuses "the trainer failed: $dir/grows/text_train.bin holds 9 tokens" "${grows[@]}"
cat README.md >>"$dir/grows.txt"
check "is enlarged" "$script" "${grows[@]}" >"$dir/log"
check "and has other tokens" says "^== tokens of"
check "which stay" "$script" "${grows[@]}" >"$dir/log"
check "where it does" eval '! says "^== tokens of"' >/dev/null
rm "$dir/grows/text_train.bin"
check "a split that is missing is made" "$script" "${grows[@]}" >"$dir/log"

# A folder is of a text once it has tokens of it
: >"$dir/empty.txt"
check "an empty text" refuses "empty.txt is empty" --text "$dir/empty.txt" -o "$dir/first"
check "leaves the folder to another" "$script" --text README.md --cost -o "$dir/first" "${small[@]}" >"$dir/log"
mkdir "$dir/not_ours"
echo mine >"$dir/not_ours/source"
check "but not one with a file of that name" refuses "$dir/not_ours is of mine, not of" --text README.md -o "$dir/not_ours"
check "the first folder then is of that text" refuses "$dir/first is of .*README.md as bytes, not of .*/empty.txt as" --text "$dir/empty.txt" -o "$dir/first"

# GPT-2's tokens, whose table is in the run's folder, where there is a mirror to take it from
if [ -n "${DATA_MIRROR:-}" ]; then
    TOKENIZER='' check "GPT-2's tokens" "$script" --text README.md --minutes 0.02 -o "$dir/bpe" "${small[@]}" >"$dir/log"
    check "their table prompts" says "^  .* --tokenizer $dir/bpe/gpt2_tokenizer.bin --interactive"
    check "and exports" test -s "$dir/bpe/hugging_face/tokenizer.json" -o -s "$dir/bpe/hugging_face/vocab.json"
fi

# Token files, of another folder that may move
mkdir "$dir/made"
cp "$dir/out/text_train.bin" "$dir/out/text_val.bin" "$dir/made"
tokens=(--tokens "$dir/made/text")
script_of_tokens() { TOKENIZER='' "$script" "${tokens[@]}" "$@" >"$dir/log" 2>&1; }
check "token files" script_of_tokens --minutes 0.01 -o "$dir/of tokens" "${small[@]}"
check "are trained on" grep -qxF "result --train-data $dir/made/text_train*.bin" "$dir/of tokens/run/main.flags"
check "where they are" test ! -e "$dir/of tokens/text_train.bin"
if [ ! -e gpt2_tokenizer.bin ]; then
    "$python" - "$dir/made/gpt2" <<'END'
import random, sys
sys.path.append("dev/data")
from data_common import GPT2_VOCAB_SIZE, TokenFile
for split in "train", "val":
    with TokenFile(f"{sys.argv[1]}_{split}.bin", GPT2_VOCAB_SIZE) as tokens:
        tokens.append(random.Random(1).choices(range(GPT2_VOCAB_SIZE), k=4000))
        tokens.finish()
END
    tokens=(--tokens "$dir/made/gpt2")
    check "without a tokenizer" script_of_tokens --minutes 0.01 -o "$dir/no_table" "${small[@]}"
    check "there is no sample" says "^error: text needs a tokenizer"
    check "which is noted" says "^note: the model and its export are complete; only the sample is missing"
    check "but there is an export" test -s "$dir/no_table/hugging_face/model.safetensors"
    tokens=(--tokens "$dir/made/text")
fi
TOKENIZER='' check "in a folder of their own" refuses "$dir/of tokens is of the tokens $dir/made/text, not of FineWeb" -o "$dir/of tokens"
check "tokens as bytes" refuses "TOKENIZER=bytes: of --text alone" "${tokens[@]}" -o "$dir/none"
rm "$dir/made/text_val.bin"
TOKENIZER='' check "a split is missing" refuses "--tokens $dir/made/text: no .*_train\*.bin, or no" "${tokens[@]}" -o "$dir/none"
TOKENIZER='' check "tokens and text" refuses "--tokens and --text: one of them" "${tokens[@]}" "${same[@]}"
check "which leaves no folder" test ! -e "$dir/none"

# FineWeb, of a fineweb.py that makes shards of bytes
mkdir -p "$dir/tree/scripts" "$dir/tree/dev/data"
cp $script "$dir/tree/scripts"
cp README.md "$dir/tree"
cat >"$dir/tree/dev/data/fineweb.py" <<END
import os, struct, sys
os.makedirs("dev/data/fineweb10B", exist_ok=True)
text = open("README.md", "rb").read()
for i in range(int(sys.argv[2])):
    with open(f"dev/data/fineweb10B/fineweb_{'train' if i else 'val'}_{i:06}.bin", "wb") as f:
        f.write(struct.pack("<256i", 20240520, 1, len(text), 256, *[0] * 252) + struct.pack(f"<{len(text)}H", *text))
print("arguments:", *sys.argv[1:])
print("mirror:", os.environ["DATA_MIRROR"])
END
fineweb() { TOKENIZER="" DATA_MIRROR=raw "$dir/tree/$script" "$@" >"$dir/log" 2>&1; } # ARGUMENT...
script=$dir/tree/$script check "no generator" refuses "TRAINER=$PWD/$TRAINER needs .*/generate_gpt2; make train_gpt2 generate_gpt2" "${same[@]}"
ln -s "$PWD/generate_gpt2" "$dir/tree"
stand_in ln "[ \$1 = -sf ] && $(command -v ln) \"\$@\"" # another file system
PATH=$bin:$PATH check "FineWeb" fineweb --cost --minutes 4 -o "$dir/web [1]" "${small[@]}"
check "so many shards" says "^arguments: --max-shards 3$"
check "and their steps" says "steps in 4 minutes"
check "of the user's mirror" says "^mirror: $PWD/raw$"
own_table() { grep "^| tokenizer " "$dir/web [1]/speed.log" || ! grep -q "^| train-data " "$dir/web [1]/speed.log"; }
check "with the table at the root" eval "! own_table"
# A run has shards of its own, and goes on wherever its folder is, whatever becomes of FineWeb's
check "its run" fineweb --minutes 0.01 -o "$dir/web [1]" "${small[@]}"
check "of one shard" test "$(echo "$dir/web [1]"/fineweb_train_*)" = "$dir/web [1]/fineweb_train_000001.bin"
rm -r "$dir/tree/dev/data/fineweb10B" "$dir/web [1]/run/"*_"$(last "$dir/web [1]")"*
mv "$dir/web [1]" "$dir/moved"
check "goes on without FineWeb's folder" fineweb -o "$dir/moved"
check "to the last step" test -e "$dir/moved/run/DONE_$(last "$dir/moved")"

check "no such text" refuses "--text nowhere: no such file or folder" --text nowhere
check "no time" refuses "--minutes 0: how long to train" --minutes 0
check "more time than there is" refuses "--minutes 99999999999999999: at most 10080, a week" --minutes 99999999999999999
check "a file for a folder" refuses "-o README.md is a file; name a folder" --text llmc -o README.md
check "an empty value" refuses "-o needs a value" -o ""
helps() { "$script" "$@" | grep -q "^From text to a GPT-2"; }
check "help behind others" helps --minutes 0 --cost --help
check "help in short" helps -h
check "another argument" refuses "--steps: no such argument" --steps 5
check "a value that is not there" refuses "-o needs a value" -o
check "another optimizer" refuses "the trainer failed: --recipe muon contradicts --optimizer adamw; say --recipe adamw" --text README.md -o "$dir/other" -- --optimizer adamw
check "what the script decides" refuses "-x: --minutes and -o before -- decide that" --text README.md -- -x 5
check "it decides it in either form" refuses "--max-steps=5: --minutes and -o" --text README.md -- --max-steps=5
for zero in "-n 0" "--checkpoint-every 00" "--checkpoint-every=0"; do
    # shellcheck disable=SC2086 # a flag and its value
    check "no checkpoint: $zero" refuses "-n 0: the model would be lost" --text README.md -o "$dir/none" -- -nk 0 -s 0 $zero
done
stand_in nvidia-smi "exit 9"
TRAINER='' PATH=$bin:$PATH check "no GPU" refuses "no GPU here" "${same[@]}"
check "a flag that is none" refuses "the trainer failed: unknown flag --nothing" --text README.md -o "$dir/other" -- --nothing 5
finish
