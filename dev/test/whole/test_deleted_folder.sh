#!/usr/bin/env bash
# The folder of a run is deleted while the run continues: the next save brings back its lock and its flags. Where another run
# has taken the folder before, nothing of that run's is changed. The trainer is one with faults (train_with_faults.h), which
# stops in a step until it is told to continue. Takes seconds; writes to a temporary folder only.
#
#     dev/test/whole/test_deleted_folder.sh build/train_gpt2_faults
. dev/test/fixtures/unit.sh
trainer=${1:?usage: $0 build/train_gpt2_faults}
write_text
run=(-i "$dir/text_train.bin" -j "$dir/text_val.bin" -e gpt2:l2c64h2t64 -b 4 -t 64 -d 256 -l 1e-3 -x 20 -v 10 -m 4 -s 0 -n 4
    --async-save 0)
out=$dir/run

# begin NAME FAULT FLAG...: a run in the background, up to where it stops; its process is in $pid
begin() {
    local name=$1
    rm -f "$dir/mark"
    FAULT_MARK=$dir/mark FAULT=$2 "$trainer" "${@:3}" >"$dir/$name.log" 2>"$dir/$name.stderr" &
    pid=$!
    await_stop
}
# await_stop: waits until process $pid has stopped, a minute at most
await_stop() {
    local i state
    for ((i = 0; i < 600; i++)); do
        state=$(sed 's/.*) //' "/proc/$pid/stat" 2>/dev/null) || return 1
        [ "${state%% *}" != T ] || return 0
        sleep 0.1
    done
    return 1
}
goes_on() { kill -CONT "$pid" && sleep 0.3 && await_stop; }
# ends PID NAME CODE: the run continues, and ends with this code
ends() {
    local code
    kill -CONT "$1"
    wait "$1"
    code=$?
    [ $code -eq "$3" ] && return 0
    echo "exit code $code, expected $3; stderr:"
    cat "$dir/$2.stderr"
    return 1
}
# delete: at once, whatever is written meanwhile
delete() { mv "$out" "$out.away" && rm -r "$out.away"; }
said() { grep -qF -- "$2" "$dir/$1.stderr" || { cat "$dir/$1.stderr"; return 1; }; }
not() { ! "$@"; }
refused() { # TEXT FLAG...: exit code 1, with TEXT
    "$trainer" "${@:2}" >"$dir/refused.log" 2>"$dir/refused.stderr"
    [ $? -eq 1 ] && said refused "$1"
}
checkpoints() { [ "$(cd "$out" && echo DONE_*)" = "$1" ] || { ls "$out"; return 1; }; }
is_of_one_run() { # main.jsonl begins with its start, and has one end
    head -n 1 "$out/main.jsonl" | grep -q '"event":"start"' && [ "$(grep -c '"event":"end"' "$out/main.jsonl")" -eq 1 ]
}

check "a run that is left alone" "$trainer" "${run[@]}" -o "$dir/alone" >"$dir/alone.log"
check "another" "$trainer" "${run[@]}" -o "$dir/other" --seed 8 >"$dir/other.log"

# Nobody takes the folder
check "a run stops after its second save" begin first stop@9,stop@13 "${run[@]}" -o "$out"
check "its folder is deleted" delete
check "it goes on to the next save" goes_on
check "which is there" checkpoints DONE_00000012
check "with the lock" grep -q "^$pid " "$out/main.lock"
check "and the flags" cmp "$dir/alone/main.flags" "$out/main.flags"
check "a second run is refused" refused "process $pid on" "${run[@]}" -o "$out" --overwrite
check "so is one that resumes" refused "process $pid on" -o "$out" -y 1
check "the first ends well" ends "$pid" first 0
check "and unlocks the folder" not test -e "$out/main.lock"
check "its log begins with the run's id" cmp <(head -n 1 "$dir/alone/main.log") <(head -n 1 "$out/main.log")
check "and has the lines since" cmp <(grep -E '^s:(9|1.|20) ' "$dir/alone/main.log") <(tail -n +2 "$out/main.log")
check "which is said" said first "main.log was deleted and begins anew; its earlier lines are missing"
check "and nothing about 0 lines" not grep -q " 0 lines" "$dir/first.stderr"
rm -f "$out"/*20*
check "-y 1 has the flags" "$trainer" -o "$out" -y 1 >"$dir/resumed.log"
check "and ends as the run would" cmp "$dir/alone/state_00000020_00000.bin" "$out/state_00000020_00000.bin"
rm -r "$out"

# A second run takes it before the next save
check "a run stops" begin first stop@9 "${run[@]}" -o "$out"
first=$pid
check "its folder is deleted again" delete
check "a second run takes the folder" begin second stop@9 "${run[@]}" -o "$out" --seed 8
check "the first fails in the end" ends "$first" first 4
for step in 12 16 20; do
    check "save $step fails" said first "warning: checkpoint 000000$step was not written: -o $out: process $pid on "
done
check "and claims no checkpoint" said first "the last checkpoint was not written; there is no checkpoint"
check "its lines are missing" said first "main.log: its folder is gone, or another run's; its last"
check "the second's folder is as it was" checkpoints "DONE_00000004 DONE_00000008"
check "and locked" grep -q "^$pid " "$out/main.lock"
check "it ends well" ends "$pid" second 0
for file in main.log main.flags model_00000020.bin state_00000020_00000.bin; do
    check "its $file is its own" cmp "$dir/other/$file" "$out/$file"
done
check "and so is main.jsonl" is_of_one_run
rm -r "$out"

# and ends before it, with the same flags
check "a run stops" begin first stop@9 "${run[@]}" -o "$out"
check "its folder is deleted a third time" delete
check "a second run comes and goes" "$trainer" "${run[@]}" -o "$out" -x 10 >"$dir/second.log"
cp -r "$out" "$dir/kept"
check "the first does not save there" ends "$pid" first 4
check "which is said" said first "it was deleted, and has files of another run now; move them away"
check "the second's folder stays as it was" diff -r "$dir/kept" "$out"
finish
