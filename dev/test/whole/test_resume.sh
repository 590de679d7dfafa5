#!/usr/bin/env bash
# -y 1 of the given trainer: what is not typed is the run's, what is typed may conflict, and another -x goes on where it changes
# no step that is done. Takes seconds; writes to a temporary folder only.
#
#     dev/test/whole/test_resume.sh ./train_gpt2
#     dev/test/whole/test_resume.sh build/train_gpt2cu_bf16 ./train_gpt2     and a run of one that goes on in the other
. dev/test/fixtures/unit.sh
trainer=$(realpath "${1:?usage: $0 ./train_gpt2 or ./train_gpt2cu [the other]}")
other=${2:-}
write_text
run=(-i "$dir/text_train.bin" -j "$dir/text_val.bin" -e gpt2:l2c64h2t64 -b 4 -t 64 -d 512 -l 2e-3 -u 5 -q 0.1 -c 0.1 -x 20
    -v 5 -m 4 -s 7 -g 8 -n 10 --seed 7)

# trains FLAG...: the trainer ends well; $dir/out is what it prints
trains() {
    "$trainer" "$@" >"$dir/out" 2>"$dir/err" && [ ! -s "$dir/err" ] && return 0
    grep '^note: ' "$dir/out"
    cat "$dir/err"
    return 1
}
# refused TEXT FLAG...: it ends with exit code 1 and $said lines, with TEXT in them
said=1
refused() {
    local text=$1 code
    shift
    "$trainer" "$@" >"$dir/out" 2>"$dir/err"
    code=$?
    [ $code -eq 1 ] && [ "$(wc -l <"$dir/err")" -eq "$said" ] && grep -qF -- "$text" "$dir/err" && return 0
    echo "exit code $code, stderr:"
    cat "$dir/err"
    return 1
}
says() { grep -qF -- "$1" "$dir/out" && return 0; grep '^note: ' "$dir/out"; return 1; }
silent() { ! grep '^note: ' "$dir/out"; }
# copy FROM TO FILE...: a run that stopped at step 10, with these files beside its checkpoint
copy() {
    local from=$1 to=$2
    shift 2
    rm -rf "${dir:?}/$to"
    mkdir "$dir/$to"
    cp "$dir/$from"/*00000010* "$dir/$to"
    for file in "$@"; do cp "$dir/$from/$file" "$dir/$to"; done
}
# same A B [STEP]: the two runs have written the same files
same() {
    local file files=(main.log model_000000"${3:-20}".bin state_000000"${3:-20}"_00000.bin)
    for file in "${files[@]}"; do cmp "$dir/$1/$file" "$dir/$2/$file" || return 1; done
}

check "a run ends" trains "${run[@]}" -o "$dir/whole"
check "a new run has no note" silent

# nothing is typed
copy whole bare main.log main.flags
check "-o and -y 1 alone go on" trains -o "$dir/bare" -y 1
check "what is taken is said" says "note: -y 1 takes from the run in $dir/bare: -i $dir/text_train.bin -j $dir/text_val.bin -e gpt2:l2c64h2t64 -n 10 -t 64 -d 512 -x 20 -l 0.002 -u 5 -q 0.1 -c 0.1 --seed 7 -v 5 -m 4 -s 7 -g 8"
check "to the files of a run without a stop" same whole bare
check "its flags are what they were" cmp "$dir/whole/main.flags" "$dir/bare/main.flags"
check "a run that is done is done" trains -o "$dir/bare" -y 1
check "--plan takes them too" trains -o "$dir/bare" -y 1 --plan
copy whole moved main.log
check "a folder of an older version needs the data's names" refused "tiny_shakespeare_train.bin" -o "$dir/moved" -y 1
check "which it says" says "note: -y 1: $dir/moved/main.flags is missing or empty: flags that are neither typed"
check "and no more" trains -o "$dir/moved" -y 1 -i "$dir/text_train.bin" -j "$dir/text_val.bin" -v 5 -m 4 -n 10 -s 0
check "with the settings of its checkpoint" says "note: -y 1 takes from the run in $dir/moved: -t 64 -d 512 -x 20 -l 0.002"
check "to the same files" same whole moved
copy whole moved main.log
: >"$dir/moved/main.flags"
check "an empty main.flags is said" refused "tiny_shakespeare_train.bin" -o "$dir/moved" -y 1
check "too" says "note: -y 1: $dir/moved/main.flags is missing or empty"
rm -rf "$dir/killed"
mkdir "$dir/killed"
cp "$dir/whole/main.flags" "$dir/killed"
head -n 2 "$dir/whole/main.log" >"$dir/killed/main.log"
check "a run without a checkpoint begins again" trains -o "$dir/killed" -y 1
check "as it was" same whole killed
sed -i 's/^free --val-every 5/free --val-every often/' "$dir/killed/main.flags"
check "a damaged main.flags is named" refused "$dir/killed/main.flags: --val-every often: must be a whole number" -o "$dir/killed" -y 1
head -c -2 "$dir/whole/main.flags" >"$dir/killed/main.flags"
check "one that was cut, too" refused "$dir/killed/main.flags is damaged; remove it" -o "$dir/killed" -y 1
{ cat "$dir/whole/main.flags"; echo lost; } >"$dir/killed/main.flags"
check "and a line of something else" refused "$dir/killed/main.flags is damaged; remove it" -o "$dir/killed" -y 1
check "a folder that is not there is said before what it lacks" refused "no such file" -o "$dir/mistyped" -y 1
check "as the cause" says "note: -y 1: $dir/mistyped has no checkpoint"
check "--tokenizer names a file that is there" refused "--tokenizer $dir/none.bin: No such file" "${run[@]}" --tokenizer "$dir/none.bin"

# what is typed
copy whole typed main.log main.flags
check "what changes no result is this command's" trains -o "$dir/typed" -y 1 -v 0 -s 0 -n 5 --seed 7
check "to the same weights" cmp "$dir/whole/model_00000020.bin" "$dir/typed/model_00000020.bin"
check "of which there are more" test -e "$dir/typed/DONE_00000015"
check "the next command has it" grep -qx 'free --checkpoint-every 5' "$dir/typed/main.flags"
copy whole typed main.log main.flags
check "another seed is refused" refused "1 of these settings (see the notes above) change the result" -o "$dir/typed" -y 1 --seed 42
check "though it is the default's" says "note: --seed: the checkpoint has 7, this run 42 (changes the result)"
check "without it the run goes on" trains -o "$dir/typed" -y 1
check "to the same files" same whole typed
check "another model is refused" refused "cannot be resumed with 1 of these settings" -o "$dir/bare" -y 1 -e gpt2:l3c64h2t64
wide="--vocab-size 300: the model in $dir/bare/model_00000020.bin has a vocabulary of 256"
check "another vocabulary is another model" refused "$wide" -o "$dir/bare" -y 1 --vocab-size 300
check "its own is the same" trains -o "$dir/bare" -y 1 --vocab-size 256
sed -i 's/ --vocab-size .*/ --vocab-size 300/' "$dir/bare/main.flags"
check "one that an older version ignored is ignored" trains -o "$dir/bare" -y 1
keeps() { echo "checkpoint 20 in $dir/bare was trained with $1, and a resumed run cannot change to $2; leave ${1% *} out"; }
check "another batch is refused" refused "$(keeps "-b 4" 8)" -o "$dir/bare" -y 1 -b 8 --resume-anyway
check "also one that does not divide -d" refused "$(keeps "-b 4" 16)" -o "$dir/bare" -y 1 -b 16
check "and another length" refused "$(keeps "-t 64" 32)" -o "$dir/bare" -y 1 -t 32
check "-b auto is the run's" trains -o "$dir/bare" -y 1 -b auto
cp "$dir/text_train.bin" "$dir/elsewhere.bin"
check "data elsewhere are the same data" trains -o "$dir/bare" -y 1 -i "$dir/elsewhere.bin"
check "other data are refused" refused "1 of these settings" -o "$dir/bare" -y 1 -i "$dir/text_val.bin" -m 0

# more steps
for k in wsd constant; do
    check "a run with -k $k ends" trains "${run[@]}" -k $k -o "$dir/$k"
    check "a longer one too" trains "${run[@]}" -k $k -x 40 -o "$dir/longer_$k"
    copy $k more_$k main.log main.flags
    check "-x 40 goes on before the decay of -k $k" trains -o "$dir/more_$k" -y 1 -x 40
    check "which is said" says "note: --max-steps: the checkpoint has 20, this run 40 (the run continues: the learning rates of its steps so far are the same)"
    check "to the weights of the longer run" cmp -i 1024 "$dir/longer_$k/model_00000040.bin" "$dir/more_$k/model_00000040.bin"
done
check "after it it is refused" refused "1 of these settings" -o "$dir/wsd" -y 1 -x 40
check "which says what it changes" says "note: --max-steps: the checkpoint has 20, this run 40 (changes the result: step 20 had the learning rate 0.0004412, and has 0.002 in a run of 40 steps)"
check "a cosine depends on the steps" refused "1 of these settings" -o "$dir/bare" -y 1 -x 40
check "--resume-anyway goes on" trains -o "$dir/bare" -y 1 -x 21 --resume-anyway

# token files with relative paths, and another directory
elsewhere() { (cd "$1" && "${@:2}"); }
mkdir "$dir/there"
check "a run of relative paths ends" elsewhere "$dir" trains "${run[@]}" -i text_train.bin -j text_val.bin -x 10 -o relative
check "-i of the run in another directory" elsewhere "$dir/there" refused "no token file matches text_train.bin, which is -i of \
the run in ../relative, relative to the directory where it was last started; start there, or give -i" -o ../relative -y 1
check "-j, too" elsewhere "$dir/there" refused "which is -j of the run in ../relative" -o ../relative -y 1 -i ../text_train.bin
check "where it was started it goes on" elsewhere "$dir" trains -o relative -y 1
check "and with both given" elsewhere "$dir/there" trains -o ../relative -y 1 -i ../text_train.bin -j ../text_val.bin

# a recipe, and its settings as they are typed
plain=(-i "$dir/text_train.bin" -j "$dir/text_val.bin" -e gpt2:l2c64h2t64 -b 4 -t 64 -d 2048 -x 20 -v 0 -s 0 -m 2 -n 10)
typed=(--optimizer muon --momentum 0.9 -k cosine -l 0.000625 -u 2 -q 0 -c 0.1)
check "a run with a recipe ends" trains "${plain[@]}" --recipe muon -o "$dir/recipe"
check "without a note" silent
for row in "recipe muon" "optimizer muon" "momentum 0.9" "learning-rate 0.000625" "warmup 2" "final-fraction 0" "weight-decay 0.1"; do
    check "its table has $row" says "$(printf '| %-21s | %s ' "${row% *}" "${row#* }")"
done
check "and main.jsonl" grep -q '"--learning-rate":"0.000625","--warmup":"2","--final-fraction":"0","--weight-decay":"0.1"' "$dir/recipe/main.jsonl"
check "one of its settings, too" trains "${plain[@]}" "${typed[@]}" -o "$dir/typed_out"
check "is the same run" same recipe typed_out
check "with the same flags" cmp "$dir/recipe/main.flags" "$dir/typed_out/main.flags"
keeps_its_own() { says "note: --recipe $1: the run in $dir/$2 keeps its own settings"; }
copy recipe with_typed main.log main.flags
check "the typed ones go on with a recipe's run" trains "${plain[@]}" "${typed[@]}" -o "$dir/with_typed" -y 1
check "to the same files" same recipe with_typed
copy typed_out with_recipe main.log main.flags
check "the recipe with theirs" trains "${plain[@]}" --recipe muon -o "$dir/with_recipe" -y 1
check "which is said" keeps_its_own muon with_recipe
check "to the same files" same recipe with_recipe
check "with the same flags" cmp "$dir/recipe/main.flags" "$dir/with_recipe/main.flags"
copy recipe with_none main.log main.flags
check "without a recipe the run goes on" trains -o "$dir/with_none" -y 1
check "to the same files" same recipe with_none
for recipe in adamw muon; do # neither optimizer, nor rate, nor steps of warm-up are this one's
    copy whole "other_$recipe" main.log main.flags
    check "$recipe's recipe does not change another run" trains -o "$dir/other_$recipe" -y 1 --recipe $recipe
    check "which is said" keeps_its_own $recipe "other_$recipe"
    check "to the same files" same whole "other_$recipe"
done
copy recipe other_step main.log main.flags
check "another step" trains -o "$dir/other_step" -y 1 --recipe muon -d 4096 -x 40 --resume-anyway
check "has the run's rate and warm-up" grep -q '"resume".*"--total-batch":"4096".*"--learning-rate":"0.000625","--warmup":"2"' "$dir/other_step/main.jsonl"
rm -rf "$dir/killed"
mkdir "$dir/killed"
cp "$dir/recipe/main.flags" "$dir/killed"
head -n 2 "$dir/recipe/main.log" >"$dir/killed/main.log"
check "without a checkpoint, too" trains "${plain[@]}" --recipe muon -o "$dir/killed" -y 1
check "the run is what it was" same recipe killed
check "where there is no run" trains "${plain[@]}" --recipe muon -o "$dir/first" -y 1
check "a recipe begins it" same recipe first
for flags in "-k constant" "-k wsd -u 5 -q 0.5 -c 0 --momentum 0.95" "-l 1e-3"; do
    # shellcheck disable=SC2086 # flags and their values
    check "with $flags" trains "${plain[@]}" --recipe muon $flags -x 10 -o "$dir/recipe_$flags"
    check "there is no note" silent
done
check "no warm-up, no decay of a constant rate" bash -c "grep -qx 'result --warmup 0' '$dir/recipe_-k constant/main.flags' && grep -qx 'result --final-fraction 1' '$dir/recipe_-k constant/main.flags'"
check "another optimizer" refused "--recipe muon contradicts --optimizer adamw; say --recipe adamw" "${plain[@]}" --recipe muon --optimizer adamw
check "of a run, too" refused "--recipe muon contradicts --optimizer adamw" -o "$dir/recipe" -y 1 --recipe muon --optimizer adamw
check "no such recipe" refused "--recipe sgd: must be one of adamw|muon" "${plain[@]}" --recipe sgd
check "decay that takes every weight" refused "-l 0.00125 times -c 1000 is" "${plain[@]}" --recipe muon -c 1000 -d 8192

# a checkpoint that is older than a flag
older() { # NAME LINE [RUN NEW]: the checkpoint without a line of its settings, or with a new one, and without checksums
    copy "${3:-whole}" "$1" main.log main.flags
    sed -i "/^$2 /d" "$dir/$1/main.flags"
    "$python" - "$dir/$1/state_00000010_00000.bin" "$2" "${4:+$'\n'$4}" <<'END'
import sys
sys.path.insert(0, "dev/data")
import checksum

with open(sys.argv[1], "rb") as f:
    data = bytearray(f.read())
at = data.rindex(f"\n{sys.argv[2]} ".encode())
end = data.index(b"\n", at + 1)
settings = int.from_bytes(data[168:172], "little") - (end - at) + len(sys.argv[3])
data[168:172] = settings.to_bytes(4, "little")
data[4 * checksum.MARK : checksum.HEADER_BYTES] = bytes(checksum.HEADER_BYTES - 4 * checksum.MARK)
data[at:end] = sys.argv[3].encode()
with open(sys.argv[1], "wb") as f:
    f.write(data)
END
}
older default "result --skip-loss-z"
check "a flag that it lacks has its default" trains -o "$dir/default" -y 1
check "so that the run continues" same whole default
older another "result --skip-loss-z"
check "another value is refused" refused "1 of these settings" -o "$dir/another" -y 1 -sl 3
check "both are said" says "note: --skip-loss-z: the checkpoint has 0 by default, this run 3 (changes the result)"
older unused "result --warmup" constant "result --warmup 5"
check "what has no effect does not matter" trains "${run[@]}" -k constant -o "$dir/unused" -y 1
check "though it is noted" says "note: -u 5 has no effect with -k constant"
check "so that the run continues, too" cmp "$dir/constant/model_00000020.bin" "$dir/unused/model_00000020.bin"

# several processes
if "$trainer" --help | grep -q -- '--processes'; then
    copy whole two main.log main.flags
    check "two processes take the flags, too" trains -o "$dir/two" -y 1 --processes 2
    check "to the same files" same whole two
    copy whole two main.log main.flags
    check "a recipe in two processes" trains "${plain[@]}" --recipe muon --processes 2 -o "$dir/two_recipe"
    check "to the same files" same recipe two_recipe
    check "with the same flags" cmp "$dir/recipe/main.flags" "$dir/two_recipe/main.flags"
    copy recipe two_recipe main.log main.flags
    check "which go on with one's" trains "${plain[@]}" --recipe muon --processes 2 -o "$dir/two_recipe" -y 1
    check "to the same files" same recipe two_recipe
    check "with -b auto, without -d" trains "${plain[@]}" --recipe muon --processes 2 -b auto -d -1 -x 10
    check "its rate is of the tokens of both" says "| learning-rate         | 0.00125 "
    check "another optimizer is one line" refused "--recipe muon contradicts" "${plain[@]}" --recipe muon --optimizer adamw --processes 2
    said=2 # each says what rank 0 has said
    check "a line of each says what is refused" refused "1 of these settings" -o "$dir/two" -y 1 --processes 2 --seed 3
    sed -i 's/^free --val-every 5/free --val-every often/' "$dir/two/main.flags"
    check "and what is damaged" refused "main.flags: --val-every often" -o "$dir/two" -y 1 --processes 2
    said=1
fi

# a run that begins to keep master weights
if "$trainer" --help | grep -q -- '--master-weights' && ! [[ $trainer == *fp32* ]]; then
    check "a run without master weights ends" trains "${run[@]}" -w 0 -o "$dir/plain"
    copy plain without main.log main.flags
    check "it goes on without" trains -o "$dir/without" -y 1
    check "to the same files" same plain without
    copy plain with main.log main.flags
    check "with them it is refused" refused "1 of these settings" -o "$dir/with" -y 1 -w 1
    check "--resume-anyway begins to keep them" trains -o "$dir/with" -y 1 -w 1 --resume-anyway
    check "as the weights were" awk -v a="$(sed -n 's/^s:20 tel://p' "$dir/plain/main.log")" \
        -v b="$(sed -n 's/^s:20 tel://p' "$dir/with/main.log")" 'BEGIN { exit !(b != "" && (a - b)^2 < 0.01) }'
fi

# begun by one trainer, resumed by the other
for pair in ${other:+"$trainer $other" "$other $trainer"}; do
    read -r trainer other <<<"$pair"
    check "a run of $trainer ends" trains "${run[@]}" -o "$dir/of_one"
    trainer=$other
    check "$other refuses it" refused "change the result" -o "$dir/of_one" -y 1 -x 20
    check "and says why" says "note: device: "
    check "--resume-anyway goes on" trains -o "$dir/of_one" -y 1 -x 30 --resume-anyway
    rm -rf "$dir/of_one"
done
# runs without checkpoints
check "a run that keeps no model" trains "${run[@]}" -n 0 -x 3 -o "$dir/none"
check "says so at the start" says "note: without -n STEPS: the model is lost at the end of the run"
check "-y 1 begins it again" trains "${run[@]}" -x 3 -o "$dir/none" -y 1
check "and says so" says "note: -y 1: $dir/none has no checkpoint; this run begins at step 0"
check "and what becomes of main.log" says "note: -y 1: main.log in $dir/none is replaced"
check "with a checkpoint it says neither" trains -o "$dir/none" -y 1 -x 4
check "it does not" bash -c "! grep -q 'without -n STEPS\|has no checkpoint' '$dir/out'"
check "--momentum without Muon" trains "${run[@]}" -x 1 --momentum 0.9
check "is noted" says "without --optimizer muon"
check "it is no setting of a run" trains "${run[@]}" -n 0 -x 3 --momentum 0.9 -o "$dir/momentum"
check "so that another value is the same run" trains "${run[@]}" -x 3 --momentum 0.8 -o "$dir/momentum" -y 1
check "and one of a checkpoint" trains "${run[@]}" -x 3 --momentum 0.7 -o "$dir/momentum" -y 1

# tokens of another vocabulary than the model's
check "a model of 300 tokens" trains "${run[@]}" -s 0 -x 2 -n 2 --vocab-size 300 -o "$dir/wide"
warned() { "$trainer" "${run[@]}" "$@" >"$dir/out" 2>&1; grep -q "^warning: .*text_train.bin has tokens from a vocabulary of 256, that of the model in .* has 300" "$dir/out"; }
check "trained on bytes: warned of" warned -e "$dir/wide/model_00000002.bin" -x 1
check "but not when it is resumed" trains -s 0 -o "$dir/wide" -y 1 -x 3
check "no weights of this name" refused "gpt2xl is no file or folder of weights, and no model descriptor" "${run[@]}" -e gpt2xl

finish
