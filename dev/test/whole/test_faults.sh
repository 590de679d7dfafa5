#!/usr/bin/env bash
# Trains a tiny model with a trainer that has faults (build/train_gpt2_faults; see train_with_faults.h) and checks what becomes
# of numbers that are not finite, of flipped bits and of steps that hang: exit codes, messages, and that no bit of a weight
# depends on them. Takes half a minute; writes to a temporary folder only.
# `short` skips most of the outlier detectors, which are host code.
. dev/test/fixtures/unit.sh
trainer=${1:?usage: $0 build/train_gpt2_faults or build/train_gpt2cu_faults_bf16 [short]}

write_text
common=(-i "$dir/text_train.bin" -j "$dir/text_val.bin" -e "gpt2:l2c64h2t64" -b 4 -t 64 -d 512 -l 1e-3 -x 20 -v 10 -m 4 -s 0)

# ends NAME FAULTS CODE LINES TEXT FLAG...: trains into $dir/NAME with these faults; the exit code must be CODE, and stderr as
# many lines, one of them with TEXT
ends() {
    local name=$1 faults=$2 code=$3 lines=$4 text=$5 got
    shift 5
    FAULT=$faults "$trainer" "${common[@]}" -o "$dir/$name" "$@" >"$dir/$name.log" 2>"$dir/$name.stderr"
    got=$?
    [ $got -eq "$code" ] && [ "$(wc -l <"$dir/$name.stderr")" -eq "$lines" ] && grep -qF -- "$text" "$dir/$name.stderr" && return 0
    echo "exit code $got, expected $code; stderr, expected $lines lines with '$text':"
    cat "$dir/$name.stderr"
    return 1
}
# well NAME FAULTS FLAG...: it ends with 0 and says nothing on stderr
well() {
    local name=$1 faults=$2
    shift 2
    FAULT=$faults "$trainer" "${common[@]}" -o "$dir/$name" "$@" >"$dir/$name.log" 2>"$dir/$name.stderr" &&
        [ ! -s "$dir/$name.stderr" ] && return 0
    tail -n 3 "$dir/$name.log"
    cat "$dir/$name.stderr"
    return 1
}
not() { ! "$@"; }
same() { cmp "$dir/$1/$3" "$dir/$2/$3"; }
checkpoints() { find "$dir/$1" -name 'DONE_*' -printf '%f ' | tr ' ' '\n' | sort | tr '\n' ' '; }
has_checkpoints() { [ "$(checkpoints "$1")" = "$2" ] || { checkpoints "$1"; return 1; }; }
logs() { grep -qE "$2" "$dir/$1/main.log"; }

check "a run without faults ends" well whole "" -n 4
check "the same run with other checkpoints ends" well ten "" -n 10
check "--verify-every ends" well verified "" -n 4 --verify-every 3
for file in model_00000020.bin state_00000020_00000.bin main.log; do
    check "--verify-every writes the same $file" same whole verified $file
done

# stop: the state before the step is saved, whatever -n is
first="first not finite: backward: gradient of wte, micro-step 2 of 2"
check "a NaN gradient stops the run" ends stopped nan-gradient@12:1 3 1 "step 13/20: the gradient norm is nan; $first"
check "it names the checkpoint" grep -qF "checkpoint 00000012 in $dir/stopped is complete" "$dir/stopped.stderr"
check "that is the only one" has_checkpoints stopped "DONE_00000012 "
for file in model_00000012.bin state_00000012_00000.bin; do
    check "the step has not touched $file" same whole stopped $file
done
check "the log has the step" logs stopped '^s:12 trl:[0-9.]+ lr:[0-9.e+-]+ norm:nan$'
check "an Inf gradient" ends inf inf-gradient@13 3 1 "the gradient norm is inf; first not finite: backward: gradient of wte, micro-step 1" -n 4
check "its step is saved beside the others" has_checkpoints inf "DONE_00000004 DONE_00000008 DONE_00000012 DONE_00000013 "
check "-nk deletes none for it" ends keep inf-gradient@13 3 1 "checkpoint 00000013" -n 4 -nk 1
check "so the last one stays" has_checkpoints keep "DONE_00000012 DONE_00000013 "
check "a step that is saved already" ends twice inf-gradient@8 3 1 "checkpoint 00000008 in $dir/twice is complete" -n 4
if [[ $trainer != *cu* ]]; then
    check "fp8's numbers saturate" well saturated saturated@4:10 -v 6
    check "which is said" grep -q "^warning: fp8: a tensor has had numbers beyond its scale in 10 steps in a row" "$dir/saturated.log"
    check "and what became 0" grep -q "^note: fp8: of the numbers of step 6, 1% became 0 and 0.1% were cut off" "$dir/saturated.log"
    check "but not of fewer steps" well fewer saturated@4:9
    check "then it is not" not grep -q "^warning: fp8" "$dir/fewer.log"
fi
check "a NaN loss in the first step" ends at_once nan-loss@0 3 1 "the loss is nan; first not finite: forward: "
check "saves nothing" has_checkpoints at_once ""
check "and says so" grep -qF "there is no checkpoint" "$dir/at_once.stderr"
check "its log" logs at_once '^s:0 trl:nan lr:[0-9.e+-]+ norm:[0-9.]+$'
check "a NaN weight" ends weight nan-weight@7 3 1 "first not finite: weights: wte, micro-step 1 of 2; checkpoint 00000004" -n 4
check "is never saved" has_checkpoints weight "DONE_00000004 "
check "nor is it skipped" ends weight_skip nan-weight@7 3 1 "first not finite: weights: wte" -n 4 --non-finite skip

if [[ $trainer != *cu* ]]; then # there the norm is not finite either
    check "an update that is not finite" ends huge huge-gradient@6 3 1 "step 7/20: the update made 1 weights or moments that are not" \
        -n 4 --grad-clip 0
    check "is not saved" has_checkpoints huge "DONE_00000004 "
fi

# skip: the step counts, its update is left out; a run that stopped goes on to the same bits
check "skip goes on" well skipped nan-gradient@12:1 -n 4 --non-finite skip
check "it says so" grep -qF "skipping the update: step 13/20: the gradient norm is nan; $first" "$dir/skipped.log"
check "what stopped goes on with skip" well stopped nan-gradient@12:1 -n 4 -y 1 --non-finite skip
for file in model_00000020.bin state_00000020_00000.bin main.log; do
    check "and writes the same $file" same skipped stopped $file
done
check "as many skips in a row as --max-skips" well row inf-loss@3,nan-loss@4,nan-gradient@5 --non-finite skip --max-skips 3
check "one more" ends row2 inf-loss@3,nan-loss@4,nan-gradient@5 3 1 "after --max-skips 2 skipped steps" \
    --non-finite skip --max-skips 2
check "the last state is saved" has_checkpoints row2 "DONE_00000005 "
check "skips that are not in a row" well apart inf-loss@3,nan-loss@5,nan-gradient@7 --non-finite skip --max-skips 1

# an evaluation: a weight may be good and a loss not, where a batch is the first of its kind
check "a NaN validation stops the run" ends validation nan-validation@10 3 1 "after step 10/20: the loss of validation is nan; first not finite: " -v 5
check "its step is saved" has_checkpoints validation "DONE_00000010 "
check "and is as it would be" cmp "$dir/ten/model_00000010.bin" "$dir/validation/model_00000010.bin"
check "its log" logs validation '^s:10 tel:nan$'
check "with skip it is said once" ends validation2 nan-validation@5,nan-validation@10 0 1 \
    "the loss of validation is nan; first not finite: forward: the mean of losses that are all finite; the run continues" -v 5 --non-finite skip
check "and logged" logs validation2 '^s:10 tel:nan$'

# signals at known moments: whatever is under way, the state after the last step is saved, and a resumed run goes on from there
stopped="ending after this step"
check "SIGTERM in a step" ends term term@5 0 1 "$stopped"
check "saves its end" has_checkpoints term "DONE_00000006 "
check "SIGTERM in a validation" ends term_validation term-validation@10 0 1 "$stopped"
check "saves what it validates" has_checkpoints term_validation "DONE_00000010 "
check "and has no result" not logs term_validation '^s:10 tel:'
check "SIGTERM in a sample" ends term_sample term-sample@10 0 1 "$stopped" -s 5
check "saves what it samples from" has_checkpoints term_sample "DONE_00000010 "
for name in term term_validation term_sample; do
    check "$name goes on" well $name "" -y 1 -n 4
    for file in model_00000020.bin state_00000020_00000.bin main.log; do
        check "after $name it writes the same $file" same whole $name $file
    done
done
check "SIGTERM in the last validation" ends term_last term-validation@20 0 1 "$stopped"
check "saves the last step" has_checkpoints term_last "DONE_00000020 "
check "which goes on to its end" well term_last "" -y 1
check "with its validation" same whole term_last main.log
check "SIGTERM before the first step" ends term_open term-open@0 0 1 "ending before the first step, nothing to save"
check "SIGTERM in the first validation" ends term_first term-validation@0 0 1 "$stopped"
check "saves nothing" has_checkpoints term_first ""
check "and the run that is started again begins in that folder" well term_first ""
check "as if it were new" same whole term_first main.log
check "SIGUSR1 in a step" well usr1 usr1@5
check "saves its end and goes on" has_checkpoints usr1 "DONE_00000006 "
for file in model state; do check "SIGUSR1's $file" cmp "$dir/term/${file}"_00000006*.bin "$dir/usr1/${file}"_00000006*.bin; done

# token files that are damaged while the run continues: the state before the step is saved, and a run that has them back goes on
cut() { # NAME SPLIT FAULTS CODE TEXT FLAG...: the split's file is cut off at the end of a step; it is back afterwards
    local name=$1 file=$dir/text_$2.bin faults=$3 code=$4 text=$5 result
    shift 5
    cp "$file" "$dir/back"
    FAULT_FILE=$file ends "$name" "$faults" "$code" 1 "$text" "$@"
    result=$?
    cp "$dir/back" "$file"
    return $result
}
unread="its batches cannot be read: "
check "training data that is cut off stops the run" cut data train cut-file@9 1 "step 11/20: ${unread}cannot read $dir/text_train.bin, bytes "
check "it names the checkpoint" grep -qF "shorter since it was opened; checkpoint 00000010 in $dir/data is complete" "$dir/data.stderr"
check "validation data" cut data_val val cut-file@7 1 "the validation after step 10/20: $unread$dir/text_val.bin has 2000 bytes" -v 5
for name in data data_val; do
    check "$name: its step is saved" has_checkpoints $name "DONE_00000010 "
    for file in model_00000010.bin state_00000010_00000.bin; do
        check "$name: and $file is as it would be" same ten $name $file
    done
done
check "training data in a step that is computed twice" cut data_verify train cut-file@11 1 "step 12/20: $unread" --verify-every 12
check "is saved at its beginning" has_checkpoints data_verify "DONE_00000011 "
check "training data in a step that is not finite" cut data_nan train nan-gradient@11,cut-file@11 3 \
    "step 12/20: the gradient norm is nan: $unread"
check "also with skip" cut data_skip train nan-gradient@11,cut-file@11 3 "step 12/20: the gradient norm is nan: $unread" --non-finite skip
for name in data data_verify data_nan data_skip; do
    check "$name goes on" well $name "" -y 1 -n 4
    for file in model_00000020.bin state_00000020_00000.bin main.log; do
        check "$name: it writes the same $file" same whole $name $file
    done
done
check "with -a 1" cut data_overfit train cut-file@9 1 "step 11/20: $unread" -a 1 -j "$dir/text_train.bin" -v 50
check "its step is saved" has_checkpoints data_overfit "DONE_00000010 "

# more than 1 GiB of shards are verified one by one: seven batches, then, inside a step, one that is damaged; the third: a hole
mkdir "$dir/pieces"
"$python" dev/data/text.py --tokenizer bytes --shard-tokens 1793 --output "$dir/pieces/text" llmc/*/*.h >"$dir/data.log" 2>&1
mv "$dir/pieces/text_train_000001.bin" "$dir/pieces/b.bin"
mv "$dir/pieces/text_train_000002.bin" "$dir/pieces/c.bin"
rm "$dir"/pieces/text*
"$python" - "$dir/pieces" <<'END'
import os, struct, sys
with open(sys.argv[1] + "/a.bin", "wb") as f:
    f.write(struct.pack("<256i", 20240520, 1, 600000000, 256, *[0] * 252))
    f.truncate(1024 + 1200000000)
END
flip() { # FILE BYTE: changes it, or back
    "$python" -c 'import sys; f = open(sys.argv[1], "r+b"); f.seek(int(sys.argv[2])); b = f.read(1)[0] ^ 1; f.seek(-1, 1); f.write(bytes([b]))' "$@"
}
shards=(-i "$dir/pieces/*.bin" -x 6)
check "a run on shards ends" well shards "" "${shards[@]}" -n 3
flip "$dir/pieces/b.bin" 2000
check "a damaged shard stops the run" ends damaged "" 1 2 \
    "error: step 4/6: $unread$dir/pieces/b.bin: bytes 1024 to 4609 do not have their checksum; the file is corrupt; checkpoint 00000003" "${shards[@]}"
check "it was said before" grep -q "^warning: $dir/pieces/b.bin: bytes 1024 to 4609" "$dir/damaged.stderr"
for file in model_00000003.bin state_00000003_00000.bin; do
    check "the step is taken back: $file" same shards damaged $file
done
check "still damaged" ends damaged "" 1 2 "step 4/6: $unread" "${shards[@]}" -y 1
check "its checkpoint stays" has_checkpoints damaged "DONE_00000003 "
mv "$dir/pieces/b.bin" "$dir/gone"
check "a shard that is gone is one of other data" ends damaged "" 1 1 "--resume-anyway" "${shards[@]}" -y 1
mv "$dir/gone" "$dir/pieces/b.bin"
flip "$dir/pieces/b.bin" 2000
check "whole again, the run continues" well damaged "" "${shards[@]}" -y 1 -n 3
for file in model_00000006.bin state_00000006_00000.bin main.log; do
    check "and writes the same $file" same shards damaged $file
done

# silent data corruption
check "a NaN that is not there again" ends once nan-once@7 5 1 "the gradient norm is nan, but finite when computed again" -n 4
check "nothing of its step is saved" has_checkpoints once "DONE_00000004 "
check "a flipped bit in the second computation" ends flip flip@9 5 1 "step 10/20: computed twice from the same batches" -n 4 --verify-every 5
check "nothing later is saved" has_checkpoints flip "DONE_00000004 DONE_00000008 "
check "steps between are not computed twice" well between flip@9 --verify-every 4
check "a step that hangs is said, and its end" ends slow slow@10:10 0 2 "step 11 has taken"
check "a slow step changes no log" same whole slow main.log

# Outliers: the detectors need 128 values, so these are long runs of a very small model. A jump in step 130 has a z-score of
# at most sqrt(127) = 11.27, and one of a value that falls is negative.
jumps() { # NAME FAULTS FLAG...: 131 steps
    local name=$1 faults=$2
    shift 2
    FAULT=$faults "$trainer" "${common[@]}" -e gpt2:l1c32h1t16 -b 8 -t 16 -d 128 -k constant -x 131 -v 0 -n 130 -o "$dir/$name" "$@" \
        >"$dir/$name.log" 2>"$dir/$name.stderr"
}
same_weights() { cmp -s -i 1024 "$dir/$1/model_00000130.bin" "$dir/$1/model_00000131.bin"; } # behind the header
skips() { # NAME TEXT FAULTS FLAG...: the last step is skipped for this reason: it changes no weight
    local name=$1 text=$2
    shift 2
    jumps "$name" "$@" && grep -q "^skipping the update: the $text has a z-score of " "$dir/$name.log" &&
        [ "$(grep -c "^skipping" "$dir/$name.log")" -eq 1 ] && same_weights "$name"
}
updates() { # NAME FAULTS FLAG...: the last step is not skipped: it changes weights
    local name=$1
    jumps "$@" && ! grep "^skipping" "$dir/$name.log" && ! same_weights "$name"
}
check "-sl skips a loss that jumps" skips sl loss loss@130:30 -sl 8
check "-sg skips a gradient norm that jumps" skips sg "gradient norm" norm@130:3000 -sg 8
if [ "${2-}" = short ]; then finish; exit; fi
check "with both, the loss is the reason" skips sl_sg loss loss@130:30,norm@130:3000 -sl 8 -sg 8
check "-sl does not look at the norm" updates sl_norm norm@130:3000 -sl 8
check "nor -sg at the loss" updates sg_loss loss@130:30 -sg 8
check "a loss that falls is not skipped" updates sl_falls loss@130:-30 -sl 8
check "nor a norm that falls" updates sg_falls norm@130:-3000 -sg 8
check "nor what is below the threshold" updates below loss@130:30,norm@130:3000 -sl 11.3 -sg 11.3
check "nor anything without a threshold" updates none loss@130:30,norm@130:3000
check "nor a jump before there are 128 values" updates early loss@127:30,norm@127:3000 -sl 8 -sg 8
check "which the step after the 128th is judged by" skips first loss loss@130:3000,norm@127:30 -sl 8

# Several processes: what happens in one of them ends all, as it would end one process alone, and says which it was. Rank 0
# speaks for them.
if [[ $trainer == *cu* ]]; then
    finish
    exit
fi

# File systems that lack a call (95: not supported, 38: not implemented, 1: not permitted, 29: illegal seek), or on which one
# fails (5: I/O error)
files() { # files FAULTS NAME CODE LINES TEXT FLAG...: as ends, with these faults of the file system
    local -x FILE_FAULTS=$1
    ends "$2" "" "${@:3}"
}
check "folders without fsync are noted, once" files sync_folder:95 nofolders 0 1 \
    "note: the file system of $dir/ has no fsync of directories" -n 10
check "a folder whose fsync is not permitted" files sync_folder:13 closed_folders 0 1 "has no fsync of directories" -n 10
check "files without fsync are noted, once" files sync_file:38 nofiles 0 1 "has no fsync of files" -n 10
for name in nofolders closed_folders nofiles; do
    check "$name: both checkpoints are there" has_checkpoints $name "DONE_00000010 DONE_00000020 "
    check "$name: they are as they would be" same ten $name state_00000020_00000.bin
done
for fault in sync_folder:5 rename:38 rename:1 seek:29; do
    check "what can never be saved is said before the first step ($fault)" files $fault never 1 1 \
        "error: -o $dir/never: no checkpoint could be saved there: cannot " -n 10
    check "no step was made, and nothing is left" test ! -e "$dir/never" -a -z "$(grep '^step' "$dir/never.log")"
done
FILE_FAULTS=no_blocks:1 check "a file system that does not know its size" well sizes "" -n 10 --plan
check "is no full one" grep -q "disk available *| not known" "$dir/sizes.log"
common+=(-d 1024) # four micro-batches
several() { # several NAME FAULTS CODE TEXT FLAG...: two processes, one line of all
    local name=$1 faults=$2 code=$3 text=$4
    shift 4
    ends "$name" "$faults" "$code" 1 "$text" --processes 2 --connect-timeout 60 --fault-timeout 60 -n 4 "$@"
}
check "a NaN gradient of rank 1" several r_nan "nan-gradient@13#1" 3 \
    "error: rank 0: step 14/20: the gradient norm is nan; first not finite: rank 1: backward: gradient of wte, micro-step 3 of 4; the step changed no weight"
check "its step is saved" has_checkpoints r_nan "DONE_00000004 DONE_00000008 DONE_00000012 DONE_00000013 "
check "one process stops there, too" ends one_nan "nan-gradient@13:2" 3 1 "micro-step 3 of 4" -n 4
for file in model_00000013.bin state_00000013_00000.bin main.log; do
    check "and writes the same $file" same one_nan r_nan $file
done
check "skipped by both" env FAULT="nan-gradient@13#1" "$trainer" "${common[@]}" -o "$dir/r_skip" --processes 2 --non-finite skip -n 4 >"$dir/r_skip.log"
check "the rank is named" grep -q "^skipping the update: step 14/20: .*first not finite: rank 1: backward" "$dir/r_skip.log"
check "one process skips it, too" well one_skip "nan-gradient@13:2" --non-finite skip -n 4
for file in model_00000020.bin state_00000020_00000.bin main.log; do
    check "and writes the same $file" same one_skip r_skip $file
done
check "a NaN that rank 1 does not find again" several r_once "nan-once@7#1" 5 "the gradient norm is nan, but finite when computed again"
check "nothing of its step is saved" has_checkpoints r_once "DONE_00000004 "
check "a NaN weight of rank 1" several r_weight "nan-weight@7#1" 3 "first not finite: rank 1: weights: wte"
check "is not saved" has_checkpoints r_weight "DONE_00000004 "
check "a bit that flips in rank 1" several r_flip "flip@9#1" 5 "differs: rank 1: loss " --verify-every 5
check "nothing later is saved" has_checkpoints r_flip "DONE_00000004 DONE_00000008 "
check "a norm that is another in rank 1" several r_norm "other-norm@9#1" 5 "error: rank 0: step 10/20: rank 1 has loss "
check "what came of it is not saved" has_checkpoints r_norm "DONE_00000004 DONE_00000008 "
check "nor where it is due" several r_norm_due "other-norm@11#1" 5 "error: rank 0: step 12/20: rank 1 has loss "
check "the one before stays" has_checkpoints r_norm_due "DONE_00000004 DONE_00000008 "
check "without -d each process has a micro-batch" well r_each "" --processes 2 -d -1 -x 2
check "of 512 tokens in all" well one_each "" -d 512 -x 2
check "which is the same run" same one_each r_each main.log
check "a NaN validation of rank 1" several r_val "nan-validation@10#1" 3 "after step 10/20: the loss of validation is nan"
check "its step is saved" has_checkpoints r_val "DONE_00000004 DONE_00000008 DONE_00000010 "
# --async-save 0: a save that is still under way on a busy disk would be given up for the last one
check "a SIGTERM in the validation of rank 1" several r_term "term-validation@10#1" 0 "SIGTERM: ending after this step" --async-save 0
check "the validation is cut short in both" not logs r_term '^s:10 tel'
check "and its step is saved" has_checkpoints r_term "DONE_00000004 DONE_00000008 DONE_00000010 "
check "a SIGTERM before the first step" several r_open "term-open@0#1" 0 "SIGTERM"
check "nothing is saved" has_checkpoints r_open ""
check "rank 0 says how it ended" grep -q "^stopped by SIGTERM before the first step" "$dir/r_open.log"

# Each with files of its own, under the same name: rank 1's are cut off
for rank in 0 1; do
    mkdir -p "$dir/rank$rank"
    cp "$dir"/text_{train,val}.bin "$dir/rank$rank"
done
apart() { # apart NAME FILE TEXT FLAG...: FILE is cut off at rank 1 in step 10; both end with 1, and rank 0 says why
    local name=$1 file=$2 text=$3 port zero program
    shift 3
    program=$(realpath "$trainer")
    port=$("$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
    for rank in 1 0; do
        (cd "$dir/rank$rank" && FAULT="cut-file@9#1" FAULT_FILE=$file exec "$program" "${common[@]}" -i text_train.bin -j text_val.bin \
            -n 4 -pn 2 -pr $rank -pi tcp -ps 127.0.0.1 --rendezvous-port "$port" -o "$dir/$name" "$@" >"$dir/$name.log" 2>"$dir/$name.$rank") &
    done
    wait $! && return 1
    zero=$?
    wait
    cp "$dir/text_train.bin" "$dir/text_val.bin" "$dir/rank1"
    without_waits "$dir/$name".[01]
    [ $zero -eq 1 ] && [ ! -s "$dir/$name.1" ] && [ "$(wc -l <"$dir/$name.0")" -eq 1 ] && grep -qF -- "$text" "$dir/$name.0" && return 0
    echo "exit code $zero"
    cat "$dir/$name.0" "$dir/$name.1"
    return 1
}
check "a run without faults ends" well ten "" -n 10 --overwrite
check "training data that rank 1 cannot read" apart a_train text_train.bin "error: rank 0: step 11/20: its batches cannot be read: rank 1: "
check "the state before is saved" has_checkpoints a_train "DONE_00000004 DONE_00000008 DONE_00000010 "
for file in model_00000010.bin state_00000010_00000.bin; do
    check "$file is as it would be" same ten a_train $file
done
check "in a step that is computed twice" apart a_verify text_train.bin "its batches cannot be read: rank 1: " --verify-every 11
check "validation data" apart a_val text_val.bin "the validation after step 10/20: its batches cannot be read: rank 1: "
check "its step is saved" has_checkpoints a_val "DONE_00000004 DONE_00000008 DONE_00000010 "

finish
