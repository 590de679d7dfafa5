#!/usr/bin/env bash
# Trains a tiny model with one process and with several, and checks what a user of several relies on: the same bits for every
# number of processes, in the log, the weights and the state, also where a run stops on one number and goes on on another;
# and mistakes end in one line. What becomes of processes that die is process_faults.py's.
#
#     dev/test/whole/test_processes.sh ./train_gpt2 build/train_gpt2_faults           # half a minute on two cores
#     dev/test/whole/test_processes.sh build/train_gpt2cu_bf16 build/train_gpt2cu_faults_bf16 2   # NCCL, on up to two GPUs
. dev/test/fixtures/unit.sh
usage="usage: $0 ./train_gpt2 build/train_gpt2_faults, or the GPU's two and the number of GPUs"
trainer=${1:?$usage}
faulty=${2:?$usage}
most=${3:-8}
flag=--processes
case $trainer in *cu*) flag=--gpus ;; esac
if [ $flag = --processes ]; then several=(2 4); else several=(2); [ "$most" -lt 4 ] || several=(2 4); fi
last=${several[-1]}

write_text
model=gpt2:l2c64h2t64
rows=64 # tokens of a micro-batch, 4 rows of 16: -d is so many times that
common=(-i "$dir/text_train.bin" -j "$dir/text_val.bin" -e "$model" -b 4 -t 16 -l 2e-3 -u 3 -q 0.1 -c 0.1 -x 12 -v 4 -m 5 -s 0
    -n 4 --connect-timeout 60)

# Five questions of bytes, so that no number of processes has as many each
write_hellaswag 'endings = [b"0;", b"void ", b"(x)", b" = 1"]
examples = [question(i, i % 4, text, endings) for i, text in enumerate([b"return ", b"static ", b"if ", b"int a", b"for "])]'

# run NAME PROCESSES MICRO-BATCHES FLAG...: trains into $dir/NAME; it ends with 0 and says nothing on stderr
run() {
    local name=$1 processes=$2 micro=$3 program=${program:-$trainer}
    shift 3
    "$program" "${common[@]}" $flag "$processes" -d $((micro * rows)) -o "$dir/$name" "$@" >"$dir/$name.log" 2>"$dir/$name.stderr" &&
        [ ! -s "$dir/$name.stderr" ] && return 0
    tail -n 3 "$dir/$name.log"
    cat "$dir/$name.stderr"
    return 1
}
# same A B [FILE...]: the two runs have written the same files; those of the last step where none are named
same() {
    local a=$1 b=$2 file
    shift 2
    [ $# -gt 0 ] || set -- main.log model_00000012.bin state_00000012_00000.bin
    for file; do cmp "$dir/$a/$file" "$dir/$b/$file" || return 1; done
}
not() { ! "$@"; }
copy() { # copy FROM TO STEP: the run as it was some steps after this checkpoint
    rm -rf "${dir:?}/$2"
    mkdir "$dir/$2"
    cp "$dir/$1/main.log" "$dir/$1"/*"$3"* "$dir/$2"
}
checkpoints() { find "$dir/$1" -name 'DONE_*' -printf '%f ' | tr ' ' '\n' | sort | tr '\n' ' '; }
has_checkpoints() { [ "$(checkpoints "$1")" = "$2" ] || { checkpoints "$1"; return 1; }; }
nothing_left() { ! pgrep -f -- "$dir/" && [ -z "$(find "$dir" -name '*.tmp')" ]; }

# The same bits. Of 4, 8 and 12 micro-batches, four processes have 1, 2 and 3 each.
leaves=(4 8 12)
[ $flag = --processes ] || leaves=(2 12)
for micro in "${leaves[@]}"; do
    check "one process, $micro micro-batches" run "one$micro" 1 "$micro" -h 1 --hellaswag-data "$dir/hellaswag.bin"
    for n in "${several[@]}"; do
        check "$n processes, $micro micro-batches" run "p${n}_$micro" "$n" "$micro" -h 1 --hellaswag-data "$dir/hellaswag.bin"
        check "they write the same files" same "one$micro" "p${n}_$micro"
        check "and did at step 4" same "one$micro" "p${n}_$micro" model_00000004.bin state_00000004_00000.bin
    done
    grep -q '^s:12 eval:' "$dir/one$micro/main.log" || check "HellaSwag was evaluated" false
done
check "other micro-batches are another run" not same "one${leaves[0]}" one12 model_00000012.bin
if [ "$most" -ge 8 ]; then
    check "8 processes, 8 micro-batches" run eight 8 8 -h 1 --hellaswag-data "$dir/hellaswag.bin"
    check "write the same files" same one8 eight
fi
check "-z 0, one process" run one_z0 1 12 -z 0 -h 1 --hellaswag-data "$dir/hellaswag.bin"
check "writes the same files" same one12 one_z0
for n in "${several[@]}"; do
    check "-z 0, $n processes" run "z0_$n" "$n" 12 -z 0 -h 1 --hellaswag-data "$dir/hellaswag.bin"
    check "writes the same files" same one12 "z0_$n"
done

if [ $flag = --gpus ]; then
    check "--exchange nccl" run nccl "$last" 12 --exchange nccl -h 1 --hellaswag-data "$dir/hellaswag.bin"
    check "writes the same files" same one12 nccl
fi

# fp8: the scales of a step are those of all processes, and a checkpoint has them. Five layers, whose weights are gathered and
# quantised in groups of 1, 1, 2 and 1
if [ $flag = --gpus ] && serves_fp8 "$trainer"; then
    fp8=(-e gpt2:l5c64h2t64 --fp8 1)
    check "fp8, one process" run fp8 1 12 "${fp8[@]}"
    check "in 16 bits" run bf16 1 12 "${fp8[@]}" --fp8 0
    check "the weights are others" not cmp -s "$dir"/{bf16,fp8}/model_00000012.bin
    check "fp8 and Muon, one process" run fp8_muon 1 12 "${fp8[@]}" --optimizer muon
    for n in "${several[@]}"; do
        check "fp8, $n processes" run "fp8_$n" "$n" 12 "${fp8[@]}"
        check "write the same files" same fp8 "fp8_$n"
        check "fp8, -z 0, $n processes" run "fp8_z0_$n" "$n" 12 "${fp8[@]}" -z 0
        check "write the same files, too" same fp8 "fp8_z0_$n"
    done
    for optimizer in adamw muon; do
        [ $optimizer = adamw ] && name=fp8 || name=fp8_muon
        copy "$name" "${name}_on" 00000004
        check "$last processes go on in fp8, $optimizer" run "${name}_on" "$last" 12 "${fp8[@]}" --optimizer $optimizer -y 1
        check "to the same files" same "$name" "${name}_on"
    done
fi

# Muon: a process computes whole matrices, with the same bits, and the state is smaller
check "Muon, one process" run muon 1 12 --optimizer muon
check "its weights are not AdamW's" not cmp -s "$dir"/{one12,muon}/model_00000012.bin
for n in "${several[@]}"; do
    check "Muon, $n processes" run "muon$n" "$n" 12 --optimizer muon
    check "write the same files" same muon "muon$n"
done
check "Muon, -z 0, $last processes" run muon_z0 "$last" 12 --optimizer muon -z 0
check "writes the same files" same muon muon_z0
size() { stat -c %s "$dir/$1/state_00000012_00000.bin"; }
check "no second moments of 2 layers of 12 C^2 weights" test $((($(size one12) - $(size muon)) / 1024)) -eq $((2 * 12 * 64 * 64 * 4 / 1024))
copy muon muon_on 00000004
check "$last processes go on with Muon" run muon_on "$last" 12 --optimizer muon -y 1
check "to the same files" same muon muon_on
copy muon muon_adamw 00000004
for flags in "" --resume-anyway; do
    "$trainer" "${common[@]}" -d $((12 * rows)) -o "$dir/muon_adamw" -y 1 --optimizer adamw $flags >"$dir/stdout" 2>"$dir/stderr"
    check "AdamW does not go on from there${flags:+, $flags}" grep -q "with --optimizer muon, and a resumed run cannot change to adamw" "$dir/stderr"
done

# What else a run may do beside its steps, or otherwise. A GPU's start takes seconds: not all of it there.
echoes() { sed -n '/^generating:/,/^---/p' "$dir/$1.log"; }
if [ $flag = --processes ]; then
    check "one process with samples" run one_sample 1 8 -s 5 -g 16 -n 0 -r 0
    check "$last with samples" run sample "$last" 8 -s 5 -g 16 -n 0 -r 2 --verify-every 5 --async-save 0
    check "has the same log" same one_sample sample main.log
    check "and says the same, once" test "$(echoes one_sample)" = "$(echoes sample)"
    check "which is something" test -n "$(echoes sample)"
    check "one process goes on from weights" run one_bin 1 8 -e "$dir/one8/model_00000012.bin" -sl 5 -sg 2 -n 12
    check "$last go on from them" run bin "$last" 8 -e "$dir/one8/model_00000012.bin" -sl 5 -sg 2 -n 12
    check "to the same files" same one_bin bin
    check "one process overfits" run one_overfit 1 8 -a 1 -n 12 --grad-clip 0
    check "$last overfit" run overfit "$last" 8 -a 1 -n 12 --grad-clip 0
    check "to the same files" same one_overfit overfit
    check "-m -1 takes every validation batch" run one_all 1 8 -m -1 -n 0 -b 16 -t 64 -d 8192 -x 1
    check "of $last processes too" run all "$last" 8 -m -1 -n 0 -b 16 -t 64 -d 8192 -x 1
    check "they have the same validation loss" same one_all all main.log
fi

# Three processes: their order is that of six; and of three leaves in a chain, which one process adds in the same order
if [ "$most" -ge 6 ]; then
    check "3 processes, 12 micro-batches" run three 3 12
    check "6 processes" run six 6 12
    check "write the same files" same three six
    check "one process, 3 micro-batches" run one_chain 1 3
    check "3 processes" run three_chain 3 3
    check "write the same weights" cmp -i 1024 -n 400000 "$dir"/{one_chain,three_chain}/model_00000012.bin
    copy three three_on_one 00000004
    "$trainer" "${common[@]}" -d $((12 * rows)) -o "$dir/three_on_one" -y 1 >"$dir/stdout" 2>"$dir/stderr"
    check "one process does not go on from there unasked" grep -q "1 of these settings" "$dir/stderr"
    check "the order is named" grep -q "^note: .*sum-order.*(changes the result)" "$dir/stdout"
    check "asked, it does" run three_on_one 1 12 -y 1 --resume-anyway
fi

# Other data: a run begins an epoch of them, with any number of processes to the same files
mkdir "$dir/parts.data"
"$python" dev/data/text.py --tokenizer bytes --shard-tokens 1500 --output "$dir/parts.data/text" llmc/base/utils.h >"$dir/data.log" 2>&1
rm "$dir"/parts.data/*_val* "$dir"/parts.data/*_00000[4-9]*
check "a run on four files" run parts 1 8 -i "$dir/parts.data/*.bin"
changed() { # changed NAME: the data in $dir/NAME.data were changed; the run of $dir/parts goes on with them from step 4
    local name=$1 n
    for n in 1 "${several[@]}"; do
        copy parts "$name$n" 00000004
        check "$name: $n go on" run "$name$n" "$n" 8 -i "$dir/$name.data/*.bin" -y 1 --resume-anyway
        check "$name: it is said where, once" test "$(grep -cE "^note: the token files have changed: starting a new epoch, in $dir/$name.data/" "$dir/$name$n.log")" -eq 1
        check "$name: to the files of one process" same "${name}1" "$name$n"
    done
    check "$name: it is another run" not same parts "${name}1" model_00000012.bin
}
for name in added gone shorter; do cp -r "$dir/parts.data" "$dir/$name.data"; done
cp "$dir/added.data/text_train_000003.bin" "$dir/added.data/text_train_+.bin"
changed added
mv "$dir/added.data" "$dir/gone1.data"
copy parts unasked 00000004
check "unasked it does not go on" not run unasked "$last" 8 -i "$dir/gone1.data/*.bin" -y 1 >"$dir/unasked.out"
check "but says how" grep -q "1 of these settings .* or say --resume-anyway" "$dir/unasked.stderr"
rm "$dir/gone.data/text_train_000001.bin"
changed gone
"$python" - "$dir/shorter.data" <<'END'
import glob, struct, sys
for path in glob.glob(sys.argv[1] + "/*"):
    with open(path, "rb") as f:
        data = f.read(1024 + 2 * 1000)
    with open(path, "wb") as f:
        f.write(struct.pack("<256i", *struct.unpack("<4i", data[:16])[:2], 1000, 256, *[0] * 252) + data[1024:])
END
changed shorter

# NCCL's or the sockets' own order: no reproducible sums, but a good run
losses() { sed -n 's/^s:\([0-9]*\) t[re]l:\([0-9.]*\).*/\2/p' "$dir/$1/main.log"; }
near() { paste <(losses "$1") <(losses "$2") | awk '!(($1 - $2) ^ 2 <= 1e-4) { bad = 1 } END { exit bad || NR < 12 }'; }
check "--sum-order any" run any 2 12 --sum-order any
check "has the losses of the tree, nearly" near one12 any

# A run that stops on one number of processes and goes on on another
stops() { # stops NAME PROCESSES FAULT: SIGTERM, as the faulty trainer raises it: saved, exit code 0
    local name=$1 n=$2
    FAULT=$3 "$faulty" "${common[@]}" -n 0 $flag "$n" -d $((12 * rows)) -o "$dir/$name" >"$dir/$name.log" 2>"$dir/$name.stderr" &&
        [ "$(grep -c . "$dir/$name.stderr")" -eq 1 ] && return 0
    tail -n 3 "$dir/$name.log"
    cat "$dir/$name.stderr"
    return 1
}
check "a run without HellaSwag" run whole 1 12
check "SIGTERM to the last of $last" stops stopped "$last" "term@5#$((last - 1))"
check "saves its end" has_checkpoints stopped "DONE_00000006 "
check "SIGTERM to rank 0 in a validation" stops stopped0 "$last" "term-validation@8#0"
check "saves what it validates" has_checkpoints stopped0 "DONE_00000008 "
check "SIGUSR1 to the last" env FAULT="usr1@5#$((last - 1))" "$faulty" "${common[@]}" -n 0 $flag "$last" -d $((12 * rows)) -x 12 \
    -o "$dir/usr1" >"$dir/usr1.log"
check "saves its step" cmp "$dir/usr1/model_00000006.bin" "$dir/stopped/model_00000006.bin"
copy stopped stopped_one 00000006
copy stopped stopped_two 00000006
check "what stopped on $last goes on on one" run stopped_one 1 12 -y 1
check "and on two" run stopped_two 2 12 -y 1
check "and on as many" run stopped "$last" 12 -y 1
check "what stopped in its validation goes on on two" run stopped0 2 12 -y 1
for name in stopped stopped_one stopped_two stopped0; do check "$name: the same files" same whole $name; done
copy whole one_to_all 00000004
check "what stopped on one goes on on $last" run one_to_all "$last" 12 -y 1
check "to the same files" same whole one_to_all
copy z0_2 z0_to_z1 00000008
check "what stopped with -z 0 goes on with -z 1" run z0_to_z1 "$last" 12 -y 1 -h 1 --hellaswag-data "$dir/hellaswag.bin"
check "to the same files" same one12 z0_to_z1
check "two that keep one checkpoint" run keep 2 12 -nk 1
check "have deleted the older" has_checkpoints keep "DONE_00000012 "

# Two that killed -9 ends: the others end, and another number goes on
for n in "${several[@]}"; do
    FAULT=kill@6#$((n - 1)) "$faulty" "${common[@]}" $flag "$n" -d $((12 * rows)) -o "$dir/killed$n" >"$dir/killed.log" 2>"$dir/killed.stderr"
    check "a rank of $n that is killed fails the run" test $? -eq 1
    check "it is named" grep -q "rank $((n - 1))\b" "$dir/killed.stderr"
    copy "killed$n" "killed${n}_one" 00000004
    check "another number goes on" run "killed$n" $((last + 2 - n)) 12 -y 1
    check "to the same files" same whole "killed$n"
    check "and so does one" run "killed${n}_one" 1 12 -y 1
    check "to the same files" same whole "killed${n}_one"
done

# Mistakes. Each process has at most a line, all with the same text; exit code 1.
fails_with() { # fails_with TEXT COMMAND...
    local text=$1 code lines
    shift
    "$@" >"$dir/stdout" 2>"$dir/stderr"
    code=$?
    without_waits "$dir/stderr"
    lines=$(wc -l <"$dir/stderr")
    [ $code -eq 1 ] && [ "$(grep -c '^error: ' "$dir/stderr")" -eq "$lines" ] && [ "$lines" -le 2 ] &&
        [ "$(grep -cF -- "$text" "$dir/stderr")" -eq "$lines" ] && [ "$lines" -gt 0 ] && return 0
    echo "exit code $code, expected 1; stderr, expected a line or two with '$text':"
    cat "$dir/stderr"
    return 1
}
short=("$trainer" "${common[@]}" -n 0 -v 0 -m 0 -x 2)
two=("${short[@]}" "$flag" 2 -d $((4 * rows)))
check "processes that do not divide the micro-batches" fails_with "$((4 * rows))" "${two[@]}" -d $((3 * rows)) # the next -d
cp "$dir/stderr" "$dir/divide"
for word in -d -b -t " 2 "; do check "they are named: $word" grep -qF -- "$word" "$dir/divide"; done
check "a file that is missing" fails_with "nothing.bin" "${two[@]}" -i "$dir/nothing.bin"
check "a model that is missing" fails_with "nothing.bin" "${two[@]}" -e "$dir/nothing.bin"
check "a flag that is wrong" fails_with "-b" "${two[@]}" -b x
check "fewer than no process" fails_with "$flag" "${two[@]}" $flag -1
if [ $flag = --gpus ]; then check "more than there are" fails_with "--gpus 99" "${two[@]}" --gpus 99; fi
: >"$dir/damaged.bin"
check "a damaged file" fails_with "damaged.bin" "${two[@]}" -i "$dir/damaged.bin"
check "a new run in the folder of a run" fails_with "--overwrite" "${two[@]}" -o "$dir/whole"
check "in which nothing has changed" same whole stopped

environment() { env "${environment[@]}" "$@"; } # with these variables
environment=(RANK=0)
check "half of torchrun's environment" fails_with "WORLD_SIZE" environment "${short[@]}"
environment=(RANK=2 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1)
check "a rank beyond the processes" fails_with "RANK" environment "${short[@]}"
environment=(RANK=x WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1)
check "a rank that is no number" fails_with "RANK" environment "${short[@]}"
environment=(RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1)
check "an environment and a flag" fails_with "$flag" environment "${two[@]}"
check "an environment and other flags" fails_with "-pn" environment "${short[@]}" -pn 3 -pr 0
environment=(RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=no-such-host.invalid)
check "rank 0's address, if it has none" fails_with "MASTER_ADDR=no-such-host.invalid: no IPv4 address of no-such-host.invalid, where rank 0 is" \
    environment "${short[@]}" --connect-timeout 1
environment=(RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=1)
check "or nobody answers there" fails_with "MASTER_ADDR=127.0.0.1: no connection to 127.0.0.1 port 1 until --connect-timeout" \
    environment "${short[@]}" --connect-timeout 1
environment=(RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost)
check "or nobody comes there" fails_with "can all connect to localhost port 20" environment "${short[@]}" --connect-timeout 1
check "with what has named it" grep -qF " (MASTER_ADDR=localhost)" "$dir/stderr"
environment=(OMPI_COMM_WORLD_SIZE=2)
check "half of mpirun's" fails_with "OMPI_COMM_WORLD_RANK" environment "${short[@]}"
check "-pn without -pr" fails_with "-pr" "${short[@]}" -pn 2
check "-pr beyond -pn" fails_with "-pr" "${short[@]}" -pn 2 -pr 2 -pi tcp -ps 127.0.0.1
check "-pi of another word" fails_with "-pi" "${short[@]}" -pn 2 -pr 0 -pi udp

# By hand: two processes, a rank each, that meet at a port or over a file
port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }
per_node=()
[ $flag = --processes ] || per_node=(-pg 2)
meet=() # how they meet
# pair NAME [FLAG... ] -- [FLAG...]: rank 0 with the first flags, rank 1 with the others; $code0, $code1
pair() {
    local name=$1 zero=() one=() other=${other:-$trainer}
    shift
    while [ "$1" != -- ]; do zero+=("$1"); shift; done
    shift
    one=("$@")
    "$trainer" "${common[@]}" -d $((12 * rows)) -pn 2 -pr 0 "${per_node[@]}" "${meet[@]}" -o "$dir/$name" "${zero[@]}" >"$dir/$name.0" 2>"$dir/$name.err0" &
    local first=$!
    "$other" "${common[@]}" -d $((12 * rows)) -pn 2 -pr 1 "${per_node[@]}" "${meet[@]}" -o "$dir/$name" "${one[@]}" >"$dir/$name.1" 2>"$dir/$name.err1"
    code1=$?
    wait $first
    code0=$?
    without_waits "$dir/$name".err?
}
well() { # the pair has ended well, rank 1 without a word
    [ "$code0$code1" = 00 ] && [ ! -s "$dir/$1.err0" ] && [ ! -s "$dir/$1.err1" ] && [ ! -s "$dir/$1.1" ] && return 0
    echo "exit codes $code0 and $code1"
    cat "$dir/$1".err? "$dir/$1.1"
    return 1
}
refused() { # refused NAME TEXT...: both have ended with 1 and one line, with these texts in it
    local name=$1 rank text
    shift
    [ "$code0$code1" = 11 ] || { echo "exit codes $code0 and $code1"; cat "$dir/$name".err?; return 1; }
    for rank in 0 1; do
        [ "$(wc -l <"$dir/$name.err$rank")" -eq 1 ] || { echo "rank $rank:"; cat "$dir/$name.err$rank"; return 1; }
        for text; do
            grep -qF -- "$text" "$dir/$name.err$rank" || { echo "'$text' is not in:"; cat "$dir/$name.err$rank"; return 1; }
        done
    done
}
tcp() { meet=(-pi tcp -ps 127.0.0.1 --rendezvous-port "$(port)"); }
tcp
pair hand --
check "two by hand" well hand
check "write the same files" same whole hand
mkdir "$dir/meet"
meet=(-pi fs -pf "$dir/meet")
pair hand_file --
check "two over a file" well hand_file
check "write the same files" same whole hand_file
check "and leave no file" test -z "$(ls "$dir/meet")"
tcp
pair rate -- -l 1e-3
check "a rank with another rate is refused" refused rate "rank 1" learning-rate 0.002 0.001
check "and nothing is written" test ! -e "$dir/rate/main.log"
tcp
pair seed -x 12 -- --seed 43
check "another seed" refused seed "rank 1" seed 42 43
tcp
pair data -- -i "$dir/text_val.bin"
check "other data" refused data "rank 1"
tcp
pair zero -- -z 0
check "another -z" refused zero "rank 1" zero
cp "$trainer" "$dir/other_trainer"
echo >>"$dir/other_trainer"
tcp
other=$dir/other_trainer pair binary --
check "another binary" refused binary "rank 1"
copy whole step 00000004
tcp
pair step -y 1 --
check "one that does not resume" refused step "rank 1" resume
tcp
meet+=(--connect-timeout 1)
check "rank 0 alone" fails_with "1 of 2 processes did not connect within 1 s (--connect-timeout)" "${short[@]}" -d $((4 * rows)) -pn 2 -pr 0 "${per_node[@]}" "${meet[@]}"
check "rank 1 alone" fails_with "127.0.0.1" "${short[@]}" -d $((4 * rows)) -pn 2 -pr 1 "${per_node[@]}" "${meet[@]}"
echo "somebody else's" >"$dir/meet/other"
meet=(-pi fs -pf "$dir/meet" --connect-timeout 2)
pair hand_foreign --
check "a foreign file in the folder does no harm" well hand_foreign
check "and stays" test "$(ls "$dir/meet")" = other
check "rank 1 alone with a folder" fails_with "$dir/meet" "${short[@]}" -d $((4 * rows)) -pn 2 -pr 1 "${per_node[@]}" "${meet[@]}"

check "no process and no temporary file is left" nothing_left
finish
