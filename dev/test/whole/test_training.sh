#!/usr/bin/env bash
# Trains a tiny model with the given trainer (./train_gpt2 or ./train_gpt2cu) and checks what a user relies on: the loss
# falls, a run is reproducible bit for bit, also across recompute settings and after a resume, and mistakes end in one
# line. Writes to a temporary folder only. `short` skips host code that the CPU trainer's run already tests, since each start on
# a GPU takes two seconds.
. dev/test/fixtures/unit.sh
trainer=${1:?usage: $0 ./train_gpt2 or ./train_gpt2cu [short]}

# fails_with TEXT FLAG...: the trainer must exit with 1 and print exactly one line on stderr, with TEXT in it
fails_with() {
    local text=$1 code lines
    shift
    "$trainer" "$@" >"$dir/stdout" 2>"$dir/stderr"
    code=$?
    lines=$(wc -l <"$dir/stderr")
    [ "$code" -eq 1 ] && [ "$lines" -eq 1 ] && grep -qF -- "$text" "$dir/stderr" && return 0
    echo "exit code $code, stderr:"
    cat "$dir/stderr"
    return 1
}

# The notes in a trainer's stdout but the one that most tests without -o have
noted() { grep '^note: ' "$1" | grep -v '^note: without -o '; }

# notes TEXT FLAG...: the trainer must exit with 0, say nothing on stderr, and print one note on stdout, with TEXT in it
notes() {
    local text=$1 code
    shift
    "$trainer" "$@" >"$dir/stdout" 2>"$dir/stderr"
    code=$?
    [ "$code" -eq 0 ] && [ ! -s "$dir/stderr" ] && [ "$(noted "$dir/stdout" | wc -l)" -eq 1 ] &&
        noted "$dir/stdout" | grep -qF -- "$text" && return 0
    echo "exit code $code, notes and stderr:"
    grep '^note: ' "$dir/stdout"
    cat "$dir/stderr"
    return 1
}

# without_words TEXT FLAG...: the trainer must exit with 0 and not print TEXT
without_words() { "$trainer" "${@:2}" >"$dir/stdout" && ! grep -F -- "$1" "$dir/stdout"; }

write_text
model=gpt2:l2c64h2t64
common=(-i "$dir/text_train.bin" -j "$dir/text_val.bin" -b 4 -t 64 -d 512 -l 2e-3 -u 5 -q 0.1 -c 0.1 -x 40
    -v 20 -m 4 -g 32 -n 20)

short=("${common[@]}" -e "$model" -n 0 -s 0 -x 0 -m 1)

# run NAME FLAG...: trains into $dir/NAME
run() {
    local name=$1
    shift
    "$trainer" "${common[@]}" -o "$dir/$name" "$@" >"$dir/$name.log" 2>&1 || { cat "$dir/$name.log"; return 1; }
}
same() { cmp "$dir/$1/$3" "$dir/$2/$3"; }
val_loss() { sed -n "s/^s:$2 tel:\(.*\)/\1/p" "$dir/$1/main.log"; }
without_removal() { ! grep '^note: removed ' "$1"; }
without_note() { ! noted "$1"; }
loss_falls() { awk -v a="$(val_loss whole 0)" -v b="$(val_loss whole 40)" 'BEGIN { exit !(b != "" && b < a - 1.5) }'; }

check "a run of 40 steps ends" run whole -e $model -s 20
check "the validation loss falls by more than 1.5 nats" loss_falls
check "a usual run has no note" without_note "$dir/whole.log"
check "samples are printed" grep -q '^generating:' "$dir/whole.log"

# its arithmetic, computed again: the schedule, initial weights, the order of the data, clipping and AdamW
check_run() { "$python" dev/test/whole/check_run.py "$@"; }
check "the learning rates are the schedule's" check_run schedule "$dir/whole/main.log" 40 5 2e-3 0.1
check "a run at a rate of 0 ends" run still -e $model -l 0 -c 0 -x 3 -n 3 -s 0 -v 1
check "initial weights are GPT-2's" check_run initial "$dir/still/model_00000003.bin"
check "samples come in the order of the seed" check_run order "$dir/still/state_00000003_00000.bin" "$dir/still/model_00000003.bin" 42
check "each validation sees the same batches" check_run validation "$dir/still/main.log" 256
check "two clipped steps from a checkpoint end" run clipped -e "$dir/whole/model_00000040.bin" --grad-clip 0.1 -x 2 -n 1 -s 0
check "they are AdamW's" check_run adamw "$dir/clipped" "$dir/whole/model_00000040.bin" 5 2e-3 0.1 0.1

check "a second run ends" run again -e $model -s 0
for file in model_00000040.bin state_00000040_00000.bin main.log; do
    check "two runs write the same $file" same whole again $file
done
for r in 0 2; do
    check "a run with -r $r ends" run "recompute$r" -e $model -s 0 -r $r
    check "-r $r writes the same weights" same whole "recompute$r" model_00000040.bin
done

# a run that stopped between steps 20 and 40: its log has gone on, its last checkpoint is step 20's
mkdir "$dir/resumed"
cp "$dir"/whole/{main.log,{model,state}_00000020*,DONE_00000020} "$dir/resumed"
check "a resumed run ends" run resumed -e $model -y 1 -s 20
samples() { sed -n '/^generating:/,/^\(step\|val\|wrote\|total\) /p' "$dir/$1.log" | grep -v '^\(step\|val\|wrote\|total\) '; }
check "there are two samples" test "$(samples whole | grep -c '^generating:')" -eq 2
check "the resumed run prints both, that of its first step too" test "$(samples resumed)" = "$(samples whole)"
for file in model_00000040.bin state_00000040_00000.bin main.log; do
    check "the resumed run writes the same $file" same whole resumed $file
done

# llm.c's files, which have zeros where ours say more, and nothing after the order of the data
mkdir "$dir/llmc"
cp "$dir"/whole/{main.log,{model,state}_00000020*,DONE_00000020} "$dir/llmc"
"$python" - "$dir/llmc/model_00000020.bin" 8 0 "$dir/llmc/state_00000020_00000.bin" 34 2064 <<'END'
import sys
for path, word, cut in (sys.argv[1:4], sys.argv[4:7]): # first word that llm.c leaves 0; bytes of the outlier detectors
    with open(path, "rb") as f:
        data = bytearray(f.read())
    settings = int.from_bytes(data[168:172], "little") if int(cut) else 0 # and of the settings behind them
    data[4 * int(word) : 1024] = bytes(1024 - 4 * int(word))
    with open(path, "wb") as f:
        f.write(data[: len(data) - int(cut) - settings])
END
check "a run resumes from llm.c's files" run llmc -e $model -y 1 -s 0
for file in model_00000040.bin main.log; do
    check "resumed from llm.c's files, it writes the same $file" same whole llmc $file
done

"$trainer" "${common[@]}" -n 0 -e "$dir/whole/model_00000040.bin" -x 0 >"$dir/continued.log" 2>&1
check "a checkpoint serves as a model" grep -q "val loss $(val_loss whole 40 | cut -c1-5)" "$dir/continued.log"

# the same weights as Hugging Face has them: transposed, in two files, with the names of transformers
hugging_face() {
    "$python" - "$1" "$2" <<'END'
import json, os, struct, sys
with open(sys.argv[1], "rb") as f:
    data = f.read()
_, version, T, V, L, NH, C, Vp = struct.unpack("<8i", data[:32])
size, dtype, at = (4, "F32", 1024) if version == 3 else (2, "BF16", 1024)
rows = [("wte.weight", Vp, C), ("wpe.weight", T, C), ("ln_1.weight", C, 1), ("ln_1.bias", C, 1), ("attn.c_attn.weight", 3 * C, C),
        ("attn.c_attn.bias", 3 * C, 1), ("attn.c_proj.weight", C, C), ("attn.c_proj.bias", C, 1), ("ln_2.weight", C, 1),
        ("ln_2.bias", C, 1), ("mlp.c_fc.weight", 4 * C, C), ("mlp.c_fc.bias", 4 * C, 1), ("mlp.c_proj.weight", C, 4 * C),
        ("mlp.c_proj.bias", C, 1), ("ln_f.weight", C, 1), ("ln_f.bias", C, 1)]
tensors = {}
for name, R, K in rows:
    inner = name.startswith(("ln_1", "ln_2", "attn", "mlp"))
    for layer in range(L if inner else 1):
        x, shape = data[at : at + R * K * size], [V if R == Vp else R] + [K] * (K > 1)
        at += R * K * size
        if inner and K > 1: # Conv1D
            x, shape = b"".join(x[(r * K + k) * size : (r * K + k + 1) * size] for k in range(K) for r in range(R)), [K, R]
        tensors[f"transformer.h.{layer}.{name}" if inner else f"transformer.{name}"] = (shape, x[: V * C * size] if R == Vp else x)
os.makedirs(sys.argv[2])
names, index = list(tensors), {}
for i, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
    header, body, path = {}, b"", f"model-{i:05d}-of-00002.safetensors"
    for name in part:
        shape, x = tensors[name]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(body), len(body) + len(x)]}
        body, index[name] = body + x, path
    text = json.dumps(header).encode()
    with open(f"{sys.argv[2]}/{path}", "wb") as f:
        f.write(struct.pack("<Q", len(text)) + text + body)
with open(f"{sys.argv[2]}/model.safetensors.index.json", "w") as f:
    json.dump({"weight_map": index}, f)
with open(f"{sys.argv[2]}/config.json", "w") as f:
    json.dump({"model_type": "gpt2", "n_head": NH, "n_layer": L}, f)
END
}
same_weights() { cmp -i 1024 "$dir/$1/model_00000006.bin" "$dir/$2/model_00000006.bin"; } # the header names the run
short_run=(-x 6 -n 3 -s 0 -u 0 -q 1 -k constant)
check "weights become a folder of Hugging Face" hugging_face "$dir/whole/model_00000040.bin" "$dir/gpt2"
check "a run begins from a .bin" run from_bin -e "$dir/whole/model_00000040.bin" "${short_run[@]}"
check "a run begins from a run's folder" run from_run -e "$dir/whole" "${short_run[@]}"
check "it is the same run" same from_bin from_run model_00000006.bin
check "a run begins from the folder" run from_folder -e "$dir/gpt2" "${short_run[@]}"
check "it writes the same weights" same_weights from_bin from_folder
rm "$dir"/from_folder/*_00000006*
check "it resumes" run from_folder -e "$dir/gpt2" "${short_run[@]}" -y 1
check "to the same weights" same_weights from_bin from_folder
printf '{"n_head":4}' >"$dir/gpt2/config.json"
check "another number of heads is another model" fails_with "head size 16" "${common[@]}" -e "$dir/gpt2" "${short_run[@]}"
printf '{"n_head":1}' >"$dir/gpt2/config.json"
check "other files are other weights" fails_with "change the result" "${common[@]}" -e "$dir/gpt2" "${short_run[@]}" \
    -o "$dir/from_folder" -x 7 -y 1
mv "$dir/gpt2" "$dir/gone"
check "files that are gone are what they were" run from_folder -e "$dir/gpt2" "${short_run[@]}" -y 1
check "which a note says" grep -q "note: -e $dir/gpt2: no such file" "$dir/from_folder.log"
check "a folder without weights" fails_with "holds no weights, or no complete checkpoint; name a .bin or .safetensors file" "${common[@]}" -e "$dir/"

check "keeping one checkpoint deletes the older" run keep -e $model -s 0 -n 10 -nk 1
check "the newest is there" test -e "$dir/keep/DONE_00000040"
check "the older is not" test ! -e "$dir/keep/DONE_00000030"

# Two questions of bytes: in the first the right ending is the likelier text by far
write_hellaswag 'examples = [question(0, 1, b"static inline ", [b"\x01\x02\x03", b"void ", b"\x7f\x7f\x7f", b"\xff\xfe\xfd"]),
            question(1, 3, b"return ", [b"\x01", b"\x02", b"\x03", b"0;"])]'
check "a run with HellaSwag ends" run hellaswag -e $model -s 0 -n 0 -h 1 --hellaswag-data "$dir/hellaswag.bin"
check "a trained model answers right" grep -q "s:40 eval:1.0000" "$dir/hellaswag/main.log"
if [[ $trainer != *cu* ]]; then # a GPU is done before a terminal shows how far it is
    write_hellaswag 'examples = [question(i, i % 4, b"return ", [b"\x01", b"\x02", b"\x03", b"0;"]) for i in range(1500)]'
    shows_progress() {
        "$python" - "$trainer" "${common[@]}" -e $model -x 1 -v 1 -n 0 -s 0 -h 1 --hellaswag-data "$dir/hellaswag.bin" <<'END'
import os, pty, re, sys
pid, terminal = pty.fork()
if pid == 0:
    os.execve(sys.argv[1], sys.argv[1:], {**os.environ, "TERM": "xterm"})
seen = b""
try:
    while piece := os.read(terminal, 4096):
        seen += piece
except OSError:  # it has ended
    pass
shown = [float(x) for x in re.findall(rb"HellaSwag +(\d+\.\d)%, \d", seen)]
assert shown and shown == sorted(shown) and shown[-1] <= 100, seen[-1000:]
END
    }
    check "a terminal shows how far HellaSwag is" shows_progress
fi

check "overfitting one batch" run overfit -e $model -a 1 -s 0 -n 0 -d 256
check "accumulating four micro-steps with a constant rate, top-k and no clipping" run plain -e $model -k constant -d 1024 \
    --grad-clip 0 --top-k 5 --temperature 0.8 --sample-seed 7 -s 40 -n 0 -sl 5 -sg 5
if [[ $trainer == *cu* ]]; then
    check "no master weights: the run ends" run bf16 -e $model -s 0 -w 0 -lg 20
    check "no master weights: the loss falls" awk -v a="$(val_loss bf16 0)" -v b="$(val_loss bf16 40)" \
        'BEGIN { exit !(b != "" && b < a - 1.5) }'
    check "GELU in the epilogues" run fused -e $model -s 0 -n 0 -ge 2
fi

# signals: the run saves, also without -n, and goes on with the same bits
long=("${common[@]}" -e "$model" -n 0 -s 0 -x 300 -v 150)
# signalled NAME CODE TEXT SIGNALS FLAG...: the trainer, sent the signals once its log has TEXT, must exit with the code
signalled() {
    local name=$1 code=$2 text=$3 signals=$4 got
    shift 4
    "$python" dev/test/whole/send_signal.py "$dir/$name/main.log" "$text" "$signals" "$trainer" "$@" -o "$dir/$name" \
        >"$dir/$name.log"
    got=$?
    [ $got -eq "$code" ] && return 0
    echo "exit code $got, output:"
    cat "$dir/$name.log"
    return 1
}
no_tmp() { ! find "$1" -name '*.tmp' | grep .; }
check "a run of 300 steps ends" run steady "${long[@]}" -x 300 -n 300
for name in TERM INT HUP; do
    check "SIG$name ends a run with exit code 0" signalled "$name" 0 "s:20 trl" "SIG$name" "${long[@]}"
    check "it says so" grep -q "^stopped by SIG$name after step [0-9]*/300; .*-y 1" "$dir/$name.log"
    check "what SIG$name stopped goes on" run "$name" "${long[@]}" -y 1 -n 300
    for file in model_00000300.bin state_00000300_00000.bin main.log; do
        check "after SIG$name it writes the same $file" same steady "$name" $file
    done
done
for name in XCPU XFSZ; do check "SIG$name ends a run with exit code 0" signalled "$name" 0 "s:20 trl" "SIG$name,SIG$name" "${long[@]}"; done
check "SIGHUP under nohup ends none" "$python" dev/test/whole/send_signal.py "$dir/nohup/main.log" "s:20 trl" SIGHUP nohup "$trainer" "${long[@]}" \
    -x 100 -o "$dir/nohup" >"$dir/nohup.log"
check "it goes on to its end" grep -q '^s:99 trl' "$dir/nohup/main.log"
check "SIGUSR1 saves" signalled usr1 0 "s:20 trl" SIGUSR1 "${long[@]}" -x 200
check "and goes on" grep -q '^s:199 trl' "$dir/usr1/main.log"
check "SIGUSR1's checkpoint is whole" test "$(find "$dir/usr1" -name 'DONE_*' | wc -l)" -eq 1
# in the first step, behind the validation: it has 32,768 micro-steps, which take any GPU longer than the second signal waits
check "a second SIGTERM ends at once" signalled second 143 "s:0 tel" SIGTERM,SIGTERM "${long[@]}" -d 8388608
check "and leaves no .tmp" no_tmp "$dir/second"
check "a signal without -o" "$python" dev/test/whole/send_signal.py none "" SIGTERM "$trainer" "${long[@]}" >"$dir/nowhere.log"
check "nothing is saved without -o" grep -q "nothing to save\|there is no -o" "$dir/nowhere.log"

# 8-bit GEMMs
if [[ $trainer == *cu* ]]; then
    if serves_fp8 "$trainer"; then
        check "fp8" run fp8 -e $model -s 0 --fp8 1 -r 1
        check "which keeps its codes" grep -qx "note: -r 1 has no effect with --fp8 1" "$dir/fp8.log"
        gemms="GEMMs | cublaslt_fp8"
        [[ $(nvidia-smi --query-gpu=compute_cap --format=csv,noheader) != 9.0* ]] || gemms+="; qkv, fc, input of fcproj, classifier: wgmma_fp8"
        for row in "precision | fp8" "$gemms" "recompute | 2"; do
            check "which says so: $row" grep -qE "^\| ${row/ |/ *\\|} " "$dir/fp8.log"
        done
        check "loses little" awk -v a="$(val_loss whole 40)" -v b="$(val_loss fp8 40)" 'BEGIN { exit !(b != "" && b < a + .05) }'
        for flags in "-r 0" "-r 2 --cuda-graphs 0" "-s 3 -v 7 --verify-every 4"; do
            # shellcheck disable=SC2086 # several words
            check "fp8 with $flags" run fp8_other -e $model -s 0 --fp8 1 $flags
            check "has the same weights" same fp8 fp8_other model_00000040.bin
            rm -rf "$dir/fp8_other"
        done
        check "a batch that fp8 does not serve" fails_with "--fp8 needs micro-batches" "${short[@]}" --fp8 1 -b 1 -t 24 -d 24
        cp -r "$dir/fp8" "$dir/fp8_to_bf16"
        check "a run in fp8 does not go on without" fails_with "--resume-anyway" "${common[@]}" -o "$dir/fp8_to_bf16" -y 1 --fp8 0 -x 41
    else
        check "--fp8 where there is none" fails_with "--fp8 " "${short[@]}" --fp8 1
    fi
fi

# what the flags of samples and evaluations do: one step at a rate of 0 from trained weights
trained=("${common[@]}" -e "$dir/whole/model_00000040.bin" -n 0 -l 0 -c 0 -x 1 -m 0)
sample() { # FLAG...: the text of the sample after the step
    "$trainer" "${trained[@]}" -s 1 -g 48 "$@" 2>&1 | sed -n '/^generating:/,/^\(total average\|GPU memory\|host memory\)/p' | sed '$d'
}
differ() { [ "$1" != "$2" ]; }
greedy=$(sample --temperature 0)
drawn=$(sample --sample-seed 7)
wild=$(sample --sample-seed 7 --temperature 100)
check "a sample has text" test ${#greedy} -gt 48
check "--sample-seed chooses the text" differ "$drawn" "$(sample --sample-seed 8)"
check "the same seed chooses the same" test "$drawn" = "$(sample --sample-seed 7)"
check "--temperature 0 takes the likeliest token, whatever the seed" test "$greedy" = "$(sample --temperature 0 --sample-seed 7)"
check "--top-k 1 does, too" test "$greedy" = "$(sample --top-k 1 --temperature 100 --sample-seed 7)"
check "a high temperature draws others" differ "$wild" "$drawn"
check "--top-k 2 leaves out most of them" differ "$wild" "$(sample --top-k 2 --sample-seed 7 --temperature 100)"
check "but not the second" differ "$greedy" "$(sample --top-k 2 --sample-seed 7 --temperature 100)"
check "a run without validation ends" run no_validation "${trained[@]}" -x 2 -s 0 -v 1
check "-m 0 validates nothing" test "$(grep -c "tel:" "$dir/no_validation/main.log")" -eq 0
check "the others validate at each -v, and at the beginning" run validation "${trained[@]}" -x 2 -s 0 -v 1 -m 1
check "which is logged" test "$(grep -o "^s:[0-9]* tel" "$dir/validation/main.log" | tr '\n' ' ')" = "s:0 tel s:1 tel s:2 tel "
check "--vocab-size is a new model's" "$trainer" "${common[@]}" -e $model --vocab-size 300 -n 0 -s 0 -m 0 -x 0 -o "$dir/vocabulary" >"$dir/stdout"
check "which is printed" grep -qE "^\| vocabulary V \(Vp\) +\| 300 \(384\) +\|" "$dir/stdout"

# six questions, of which the model answers the last five: in batches of one, and of two, whose second labels differ
write_hellaswag 'endings = [b"\x01\x02\x03", b"\x7f\x7f\x7f", b"\xff\xfe\xfd"]
examples = [question(0, 0, b"return ", [b"\x01", b"\x02", b"\x03", b"0;"])]
for label in (1, 2, 0, 1, 3):
    examples.append(question(len(examples), label, b"static inline ", [*endings[:label], b"void ", *endings[label:]]))'
for B in 4 8; do
    check "HellaSwag in batches of $B rows" run hellaswag$B "${trained[@]}" -b $B -x 2 -s 0 -v 1 -h 1 --hellaswag-data "$dir/hellaswag.bin"
    check "five of six are answered right" test "$(grep -c "^HellaSwag: 5/6 = " "$dir/hellaswag$B.log")" -eq 2
    check "after each step, not before the first" test "$(grep eval "$dir/hellaswag$B/main.log" | tr '\n' ' ')" = "s:1 eval:0.8333 s:2 eval:0.8333 "
done

# Host code, which both trainers share
if [ "${2-}" = short ]; then finish; exit; fi

# the trained length: a size that names no context has -t; a file's word says what was trained, over resumes and runs that go on
word() { # word NAME STEP WORD [VALUE]: this word of a checkpoint's weights; with a value, puts it there
    "$python" - "$dir/$1/model_$2.bin" "${@:3}" <<'END'
import struct, sys
sys.path.insert(0, "dev/data")
from checksum import HEADER_CRC, crc32c
path, word, *value = sys.argv[1], *map(int, sys.argv[2:])
with open(path, "r+b") as f:
    header = list(struct.unpack("<256I", f.read(1024)))
    print(header[word])
    if value: # its checksum too
        header[word], header[HEADER_CRC] = value[0], 0
        header[HEADER_CRC] = crc32c(struct.pack("<256I", *header))
        f.seek(0)
        f.write(struct.pack("<256I", *header))
END
}
sizes_are() { [ "$(word "$1" "$2" 2), $(word "$1" "$2" 14)" = "$3" ] || { word "$1" "$2" 2; word "$1" "$2" 14; return 1; }; }
size=gpt2:l2c64h2
steps=(-k constant -q 1 -u 0 -s 0 -v 0 -g 1 -n 1)
check "a size without a context ends" run sized -e $size -t 32 "${steps[@]}" -x 1
check "it has that of -t" sizes_are sized 00000001 "32, 32"
check "and no note" without_note "$dir/sized.log"
check "it goes on with its context named" run sized -e ${size}t32 -t 32 "${steps[@]}" -x 2 -y 1
check "as the same model" sizes_are sized 00000002 "32, 32"
check "a longer -t needs no longer name" run longer -e $size -t 128 "${steps[@]}" -x 1
check "which has its length" sizes_are longer 00000001 "128, 128"
check "rows shorter than the context" run older -e ${size}t128 "${steps[@]}" -x 1
check "are what is trained" sizes_are older 00000001 "128, 64"
check "which a note says" grep -q "^note: -t 64 is shorter than the model's context of 128: position embeddings beyond stay as they are" "$dir/older.log"
word older 00000001 14 0 >"$dir/stdout" # as a run of before, whose size had a context of its own, and whose file does not say
check "such a run goes on" run older -e $size "${steps[@]}" -x 2 -y 1
check "with its context, and says what it trained" sizes_are older 00000002 "128, 64"
check "another context is another model" fails_with "cannot be resumed" "${common[@]}" -e $model "${steps[@]}" -x 3 -y 1 -o "$dir/older"
for case in "32 64" "128 128"; do
    read -r rows trained <<<"$case"
    check "rows of $rows go on from those of 64" run "tuned$rows" -e "$dir/older/model_00000002.bin" -t "$rows" "${steps[@]}" -x 1
    check "the longer are what is trained" sizes_are "tuned$rows" 00000001 "128, $trained"
done
check "shorter rows are noted" grep -q "^note: -t 32 is shorter than the model's context of 128" "$dir/tuned32.log"
check "longer ones are not" without_note "$dir/tuned128.log"
check "a run from weights goes on" run tuned32 -e "$dir/older/model_00000002.bin" -t 32 "${steps[@]}" -x 2 -y 1
check "with their trained length" sizes_are tuned32 00000002 "128, 64"
check "weights that do not say" run llmc_tuned -e "$dir/older/model_00000001.bin" -t 32 "${steps[@]}" -x 1
check "were trained on all of their context" sizes_are llmc_tuned 00000001 "128, 128"

# files that do not belong together: step 20 under the name of step 40, and the weights of another run
mkdir "$dir/renamed"
for kind in model state; do cp "$dir"/whole/${kind}_00000020*.bin "$dir/renamed/"; done
(cd "$dir/renamed" && mv model_00000020.bin model_00000040.bin && mv state_00000020_00000.bin state_00000040_00000.bin &&
    touch DONE_00000040)
check "renamed files are refused" fails_with "holds step 20, its name says step 40" "${common[@]}" -e $model -y 1 \
    -o "$dir/renamed" -x 60
"$trainer" "${common[@]}" -e $model -o "$dir/foreign" --seed 7 -s 0 -x 40 -n 40 >"$dir/foreign.log" 2>&1
cp "$dir/whole/state_00000040_00000.bin" "$dir/foreign"
check "a state with another run's weights is refused" fails_with "was not written together with" "${common[@]}" -e $model \
    -y 1 -o "$dir/foreign" -x 60

# the folder of a run: whose it is, what it holds, and which checkpoint a resumed run takes
copy() { # copy NAME STEP...: a copy of the run in "whole", with these checkpoints
    local step to=$1
    shift
    rm -rf "${dir:?}/$to"
    mkdir "$dir/$to"
    cp "$dir/whole/main.log" "$dir/$to"
    for step in "$@"; do cp "$dir"/whole/*"$step"* "$dir/$to"; done
}
again=("${common[@]}" -e "$model" -s 0 -y 1)
says() { grep -qF -- "$1" "$dir/stdout" && return 0; cat "$dir/stdout"; return 1; }
id=$(sed -n '1s/^s:0 run://p' "$dir/whole/main.log")
check "main.log begins with the run's id" test -n "$id"
check "it is the one that the run prints" grep -qE "^\| run +\| $id +\|" "$dir/whole.log"
copy used 00000040
check "a new run in the folder of a run" fails_with "holds a run (checkpoint 40, main.log): -y 1 continues it; --overwrite" \
    "${common[@]}" -e $model -o "$dir/used"
check "nothing of it has gone" same whole used state_00000040_00000.bin
touch "$dir/used/notes.txt"
check "a mistake is found before --overwrite removes anything" fails_with "nothing.bin" "${common[@]}" -e nothing.bin \
    --overwrite -o "$dir/used"
check "so are weights that it would remove" fails_with "--overwrite removes $dir/./used/model_00000040.bin; name another -o, or -y 1" \
    "${common[@]}" -e "$dir/used" --overwrite -o "$dir/./used"
check "the run is still there" same whole used state_00000040_00000.bin
check "--overwrite takes it" run used -e $model -s 0 -n 0 --overwrite -x 1
check "the old run's files have gone, others have not" test "$(cd "$dir/used" && echo *)" = \
    "main.flags main.jsonl main.log notes.txt"

copy other 00000040
check "another seed is refused" fails_with "1 of these settings (see the notes above) change the result" "${again[@]}" \
    -o "$dir/other" --seed 43
check "both values are said" says "note: --seed: the checkpoint has 42, this run 43 (changes the result)"
check "each difference counts" fails_with "4 of these settings" "${again[@]}" -o "$dir/other" --seed 43 -l 1e-3 -k linear -x 60
check "the rate's values are said" says "--learning-rate: the checkpoint has 0.002, this run 0.001"
check "the steps are said" says "--max-steps: the checkpoint has 40, this run 60"
check "other data is refused" fails_with "1 of these settings" "${again[@]}" -o "$dir/other" -i "$dir/text_val.bin" -m 0
check "the data is said" says "note: training-data: the checkpoint has 1 file, "
check "another batch is refused, whatever is said" fails_with "was trained with -b 4, and a resumed run cannot change to 8" \
    "${again[@]}" -o "$dir/other" -b 8 --resume-anyway
check "another model is refused" fails_with "cannot be resumed" "${again[@]}" -o "$dir/other" -e gpt2:l4c64h2t64 --resume-anyway
check "its sizes are said" says "note: model: the checkpoint has V 256, Vp 256, L 2, NH 2, C 64, maxT 64, this run V 256, Vp 256, L 4"
if [[ $trainer == *cu_fp32 ]]; then
    without_tf32() { NVIDIA_TF32_OVERRIDE=0 fails_with "1 of these settings" "${again[@]}" -o "$dir/other"; }
    check "an environment that forbids TF32 is refused" without_tf32
    check "both precisions are said" says "note: precision: the checkpoint has tf32, this run fp32"
fi
check "--resume-anyway goes on" run other "${again[@]}" --seed 43 -x 41 --resume-anyway
check "the run keeps its id" test "$(sed -n '1s/^s:0 run://p' "$dir/other/main.log")" = "$id"
for split in train val; do cp "$dir/text_$split.bin" "$dir/moved_$split.bin"; done
copy same 00000040
cp "$dir/whole/main.flags" "$dir/same"
check "moved data is the same, and what changes no result is not asked" "$trainer" "${again[@]}" -i "$dir/moved_train.bin" \
    -j "$dir/moved_val.bin" -n 7 -v 1 -m 2 -s 40 -r 0 -o "$dir/same" >"$dir/stdout"
check "there is no note" without_note "$dir/stdout"

copy damaged 00000020 00000040
"$python" - "$dir/damaged/state_00000040_00000.bin" <<'END'
import sys
with open(sys.argv[1], "r+b") as f: # one bit of a moment
    f.seek(500_000)
    byte = f.read(1)[0]
    f.seek(500_000)
    f.write(bytes([byte ^ 16]))
END
touch "$dir/damaged/"{DONE_00000030,model_00000060.bin.tmp,my.tmp} # what a kill leaves, and somebody's own
head -c 2000 "$dir/whole/state_00000020_00000.bin" >"$dir/damaged/state_00000050_00000.bin"
check "a run resumes from the newest whole checkpoint" run damaged "${again[@]}"
cp "$dir/damaged.log" "$dir/stdout"
check "the damaged one is said" says "note: skipped checkpoint 40: $dir/damaged/state_00000040_00000.bin: "
check "leftovers are said" test "$(grep -c '^note: removed ' "$dir/stdout")" = 3
touch "$dir/whole/my.tmp"
check "they have gone, others have not" test "$(cd "$dir/damaged" && echo *)" = "$(cd "$dir/whole" && echo *)"
for file in model_00000040.bin state_00000040_00000.bin main.log; do
    check "resumed beside a damaged checkpoint, it writes the same $file" same whole damaged $file
done

copy apart 00000020 00000040
mv "$dir/apart/model_00000040.bin" "$dir/my_model.bin"
check "a checkpoint whose model was moved is passed over" run apart "${again[@]}"
check "that is said" grep -qF "note: skipped checkpoint 40: $dir/apart/model_00000040.bin is not there" "$dir/apart.log"
check "nothing of it is removed" without_removal "$dir/apart.log"
copy only 00000040
mv "$dir/only/model_00000040.bin" "$dir/my_model.bin"
check "where it is the only one, the run does not begin anew" fails_with \
    "holds a run (parts of a checkpoint, main.log): files of checkpoint 40 are missing; put them back" "${again[@]}" -o "$dir/only"

rm "$dir/only/"*.bin
check "nor where DONE is all that is left" fails_with "files of checkpoint 40 are missing; put them back" "${again[@]}" -o "$dir/only"
copy undone 00000020 00000040
rm "$dir"/undone/DONE_*
check "a run whose checkpoints have lost DONE goes on" run undone "${again[@]}"
check "from the newest whole one" grep -qF "note: checkpoint 40 is whole, though there is no DONE_00000040" "$dir/undone.log"
for file in DONE_00000040 model_00000040.bin main.log; do check "and has the same $file" same whole undone $file; done

copy begun
check "a run that was killed before its first checkpoint begins anew" run begun "${again[@]}"
check "it is the same run" same whole begun main.log
copy begun
check "another run's log is refused" fails_with "holds a run (main.log): its settings or data are others" "${again[@]}" \
    --seed 43 -o "$dir/begun"
copy models 00000020 00000040
rm "$dir"/models/{state,DONE}_*
cp "$dir/models/model_00000040.bin" "$dir/models/model_00000050.bin"
check "a run of which somebody kept the models begins anew" run models "${again[@]}"
check "they are not removed" without_removal "$dir/models.log"
check "nor is one of a later step" test -e "$dir/models/model_00000050.bin"
copy begun 00000040
: >"$dir/begun/model_00000040.bin"
check "a folder without a whole checkpoint is refused" fails_with "no checkpoint is complete: $dir/begun/model_00000040.bin" \
    "${again[@]}" -o "$dir/begun"
check "-y 1 and --overwrite contradict" fails_with "-y 1 continues the run in -o $dir/begun, and --overwrite removes it; leave one" \
    "${again[@]}" -o "$dir/begun" --overwrite
check "--overwrite alone begins anew there" run begun "${again[@]}" -y 0 --overwrite
check "it is the same run too" same whole begun model_00000040.bin

copy kept 00000020
for step in 00000005 00000010 00000015; do
    for file in DONE_$step model_$step.bin state_${step}_00000.bin; do : >"$dir/kept/$file"; done
done
check "a run that keeps three checkpoints ends" run kept "${again[@]}" -n 13 -nk 3 -nm 10
check "-nk counts what is there, whatever -n was; multiples of -nm stay" test "$(cd "$dir/kept" && echo DONE*)" = \
    "DONE_00000010 DONE_00000020 DONE_00000026 DONE_00000039 DONE_00000040"
copy finished 00000020 00000040
check "a run that was killed after its last checkpoint ends" run finished "${again[@]}" -nk 1
check "-nk deletes the one too many" test "$(cd "$dir/finished" && echo DONE*)" = "DONE_00000040"

check "a folder in folders that are not there" "$trainer" "${common[@]}" -e $model -s 0 -x 1 -n 1 -u 0 -o "$dir/deep/er/est" \
    >/dev/null
check "is created" test -e "$dir/deep/er/est/DONE_00000001"
check "a file is no folder" fails_with "-o $dir/text_val.bin: $dir/text_val.bin is not a directory; name another" \
    "${common[@]}" -e $model -o "$dir/text_val.bin"
check "nor holds one" fails_with "$dir/text_val.bin" "${common[@]}" -e $model -o "$dir/text_val.bin/x"
if [ "$(id -u)" -ne 0 ]; then # root may write anywhere
    mkdir -m 555 "$dir/closed"
    check "a folder without permission" fails_with "cannot open $dir/closed/probe_" "${common[@]}" -e $model \
        -o "$dir/closed/new"
fi

# one run at a time
copy locked 00000040
"$trainer" "${again[@]}" -o "$dir/locked" -n 0 -x 100000 --resume-anyway >"$dir/locked.log" 2>&1 &
first=$!
for _ in {1..100}; do grep -q ' 50/100000 ' "$dir/locked.log" && break; sleep .1; done
check "a second run is refused" fails_with "process $first " "${again[@]}" -o "$dir/locked"
kill -9 $first
{ wait $first; } 2>/dev/null
check "a killed run's lock is nobody's" run locked "${again[@]}"
check "the lock's file has gone" test ! -e "$dir/locked/main.lock"

# checkpoints that cannot be written: the run continues, and its end says so
(ulimit -f 100; exec "$trainer" "${common[@]}" -e $model -s 0 -n 20 -o "$dir/limited") >/dev/null 2>"$dir/stderr"
check "a run whose last checkpoint cannot be written ends with exit code 4" test $? -eq 4
check "each failed save is said" test "$(grep -c '^warning: checkpoint 000000[24]0 was not written: ' "$dir/stderr")" -eq 2
check "the last line says what is left" test "$(tail -n 1 "$dir/stderr")" = \
    "error: the last checkpoint was not written; there is no checkpoint"
check "its log is whole" same whole limited main.log

# a stdout that cannot be written
"$trainer" "${common[@]}" -e $model -s 0 -n 0 -x 3 -o "$dir/full" >/dev/full 2>"$dir/stderr"
check "a full disk under stdout does not end a run" test $? -eq 0
check "it is said once" test "$(cat "$dir/stderr")" = \
    "warning: cannot write stdout: No space left on device; the run continues without it"
head -c 1M /dev/zero >"$dir/1M"
(ulimit -f 1024; "$trainer" "${common[@]}" -e $model -s 0 -n 0 -x 3 >>"$dir/1M" 2>"$dir/stderr")
check "nor does a limit on the size of files" test $? -eq 0
check "it is said once" test "$(cat "$dir/stderr")" = \
    "warning: cannot write stdout: File too large; the run continues without it"
{ "$trainer" "${common[@]}" -e $model -s 0 -n 0 -x 3 -o "$dir/pipe" 2>"$dir/stderr"; echo $? >"$dir/code"; } | true
check "nor does a pipe that nobody reads" test "$(cat "$dir/code")" = 0
check "its log is whole" same full pipe main.log
"$trainer" "${common[@]}" -e $model -s 0 -n 0 -x 3 -o "$dir/full" --overwrite >&- 2>"$dir/stderr"
check "nor a stdout that is closed, and nothing is printed into another file" test $? -eq 0
check "it is said at once" test "$(cat "$dir/stderr")" = \
    "warning: cannot write stdout: Bad file descriptor; the run continues without it"

check "an unknown flag" fails_with "--frobnicate" --frobnicate 1
check "a missing value" fails_with "-b needs a value; ./train_gpt2" -b
check "a missing file" fails_with "$dir/none.bin" -e $model -i "$dir/none.bin"
check "a missing model" fails_with "nothing.bin" "${common[@]}" -e nothing.bin
check "a bad descriptor" fails_with "d13" "${common[@]}" -e d13
check "a context that is too short" fails_with "-t 64 is longer than the model's context of 32; lower it, or" "${common[@]}" \
    -e gpt2:l2c64h2t32
check "the way out is a model" grep -q "or begin a new model: -e gpt2:l2c64h2t64$" "$dir/stderr"
check "a context that weights have fixed" fails_with "-t 128 is longer than the model's context of 64; lower it, or begin a new model: -e gpt2:l2c64h2t128" \
    "${common[@]}" -e "$dir/whole/model_00000040.bin" -t 128
check "a batch that does not divide" fails_with "-d 500" "${common[@]}" -d 500 -e $model
check "a head size that is not supported" fails_with "head size" "${common[@]}" -e gpt2:l2c64h4

# options that make no sense together: refused, or noted where the run still says something
mkdir "$dir/glob"
for split in train val; do cp "$dir/text_$split.bin" "$dir/glob"; done
everything="$dir/glob/*.bin" # a pattern, for the trainer to expand
check "a flag for a value" fails_with "-o -n: the value looks like a flag" "${short[@]}" -o -n 20
check "an empty value" fails_with "-i '': the value is empty" "${short[@]}" -i ''
check "an epsilon of 0 in fp32" fails_with "--epsilon 1e-50" "${short[@]}" --epsilon 1e-50
check "a model that is not there" fails_with "-e $dir/none.bin: no such file; name a .bin or" "${short[@]}" -e "$dir/none.bin"
check "whose line says how to begin one" fails_with "start a new model, such as -e d12" "${short[@]}" -e "$dir/none.bin"
check "weights of another vocabulary" fails_with "--vocab-size 300: the model in $dir/whole has a vocabulary of 256; leave the flag out, or begin a new" \
    "${short[@]}" -e "$dir/whole" --vocab-size 300
check "of that vocabulary" "$trainer" "${short[@]}" -x 1 -u 1 -e "$dir/whole" --vocab-size 256 >"$dir/stdout"
check "it has no note, either" without_note "$dir/stdout"
check "a rate of 0 in fp32" fails_with "-l 1e-50" "${short[@]}" -l 1e-50
check "a clip of 0 in fp32" fails_with "--grad-clip 1e-50" "${short[@]}" --grad-clip 1e-50
check "an epoch without a step" fails_with "-d 16777216 is more than" "${short[@]}" -d 16777216 -x -1
check "decay that takes every weight" fails_with "-l 2 times -c 0.5" "${short[@]}" -l 2 -c 0.5
check "-i takes in the validation file" fails_with "both match $dir/glob/text_val.bin" "${short[@]}" \
    -i "$everything" -j "$dir/glob/text_val.bin"
check "-j takes in the training file" fails_with "both match $dir/glob/text_train.bin" "${short[@]}" \
    -i "$dir/glob/text_train.bin" -j "$everything"
check "without a validation it may" "$trainer" "${short[@]}" -i "$everything" -j "$dir/glob/text_val.bin" -m 0 >/dev/null
check "overfitting may" "$trainer" "${short[@]}" -i "$everything" -j "$dir/glob/text_val.bin" -a 1 >/dev/null
"$python" -c 'import struct, sys
sys.stdout.buffer.write(struct.pack("<256i", 20240520, 1, 5000, 300, *[0] * 252) + bytes(10000))' >"$dir/of_300.bin"
check "-j of another vocabulary than -i" fails_with "-j $dir/text_val.bin holds tokens of a vocabulary of 256, -i $dir/of_300.bin of 300" \
    "${short[@]}" -i "$dir/of_300.bin"
check "-j of a larger vocabulary than the model's" fails_with "-j $dir/of_300.bin holds tokens of a vocabulary of 300, -i $dir/text_train.bin of 256" \
    "${short[@]}" -j "$dir/of_300.bin"
check "without a validation it may be" "$trainer" "${short[@]}" -i "$dir/of_300.bin" -m 0 >/dev/null
check "without a validation -j is not read" "$trainer" "${short[@]}" -j "$dir/none.bin" -m 0 -x 1 -u 1 -o "$dir/without_j" >/dev/null
check "the same file for both" notes "are the same data" "${short[@]}" -i "$dir/text_val.bin"
check "the same pattern for both" notes "are the same data" "${short[@]}" -i "$everything" -j "$everything"
check "-m beyond the data" "$trainer" "${short[@]}" -b 16 -d 1024 -m 999 -o "$dir/beyond" >/dev/null
check "the whole validation data" "$trainer" "${short[@]}" -b 16 -d 1024 -m -1 -o "$dir/all" >/dev/null
check "-m beyond the data takes each batch once" same beyond all main.log
check "-u above -x" notes "-u 5 is above the run's 1 steps: the learning rate ends at 0.0004" "${short[@]}" -x 1
check "-u as long as the run" "$trainer" "${short[@]}" -x 1 -u 1 >"$dir/stdout"
check "it has no note" without_note "$dir/stdout"
check "-nk without -n" notes "-nk 3 has no effect without -n" "${short[@]}" -nk 3
check "-nm without -n" notes "-nm 3 has no effect without -n" "${short[@]}" -nm 3
check "-n without -o" notes "-n 5 has no effect without -o" "${short[@]}" -n 5 -nk 3
check "-n without a step" notes "-n 5 has no effect with -x 0" "${short[@]}" -n 5 -o "$dir/no_step"
check "--overwrite without -o" notes "--overwrite 1 has no effect without -o" "${short[@]}" --overwrite
check "a run without -o ends" "$trainer" "${short[@]}" -x 1 -u 1 >"$dir/stdout"
check "it says once that nothing is kept" test "$(grep -c '^note: without -o FOLDER: nothing of this run is kept' "$dir/stdout")" -eq 1
check "at the start" grep -q '^note: without -o' <(sed '/^val loss\|^step /,$d' "$dir/stdout")
check "with -o it does not" without_words "without -o" "${short[@]}" -o "$dir/keeps"
check "nor does a plan" without_words "without -o" "${short[@]}" --plan
check "a flag that has no effect" "$trainer" "${short[@]}" --momentum 0.5 --tokenizer "$dir/glob" -o "$dir/unused" >/dev/null
check "is not kept" test "$(grep -cE "momentum 0.95|tokenizer gpt2_tokenizer.bin" "$dir/unused/main.flags")" -eq 2
check "--tokenizer where tokens are bytes" notes "--tokenizer $dir/text_val.bin has no effect on a model whose 256 tokens are bytes" \
    "${short[@]}" --tokenizer "$dir/text_val.bin"
check "--resume-anyway without -y 1" notes "--resume-anyway 1 has no effect without -y 1" "${short[@]}" --resume-anyway
check "--max-skips without skip" notes "--max-skips 3 has no effect" "${short[@]}" --max-skips 3
check "warm-up to a constant rate" notes "-u 5 has no effect" "${short[@]}" -k constant -q 1
check "decay of a constant rate" notes "-q 0.1 has no effect" "${short[@]}" -k constant -u 0
check "--help explains every flag" explained "$trainer"

# llm.c's command lines: followed where nothing is lost, which a note says
mkdir -p "$dir/elsewhere/$(dirname "$trainer")"
ln -s "$PWD/$trainer" "$dir/elsewhere/$trainer"
elsewhere() { (cd "$dir/elsewhere" && notes "$@"); } # in a folder where HellaSwag's file is not
check "-h 1 without its file" elsewhere "-h 1 has no effect: there is no dev/data/hellaswag/hellaswag_val.bin" "${short[@]}" -h 1 -x 1 -u 1
check "has a validation" grep -q '^val loss' "$dir/stdout"
check "and no HellaSwag" test "$(grep -c '^HellaSwag: ' "$dir/stdout")" -eq 0
check "-h 1 without a file that is named" fails_with "--hellaswag-data $dir/none.bin: No such file or directory; python3 dev/data/hellaswag.py" "${short[@]}" -h 1 --hellaswag-data "$dir/none.bin"
check "-z 3 is -z 1" notes "-z 3: ZeRO stage 3 is not implemented; using -z 1" "${short[@]}" -z 3
if [[ $trainer == *cu* ]]; then
    check "--processes is the CPU trainer's" fails_with "--processes is the CPU trainer's" "${short[@]}" --processes 2
else
    for flag in "-f 0" "-w 0" "-ge 2" "-lg 10" "--cuda-graphs 0" "--exchange nccl"; do
        # shellcheck disable=SC2086 # a flag and its value
        check "$flag on the CPU" notes "$flag has no effect on the CPU" "${short[@]}" $flag
    done
    check "GPU flags at their defaults" "$trainer" "${short[@]}" -f 1 -w 1 -ge 0 -lg -1 >"$dir/stdout"
    check "have no note" without_note "$dir/stdout"
    check "they change nothing" run gpu_flags -e $model -s 0 -f 0 -w 0 -ge 2
    check "not a bit" same whole gpu_flags state_00000040_00000.bin
    check "--gpus is the GPU trainer's" fails_with "--gpus is the GPU trainer's" "${short[@]}" --gpus 2
fi

# the table that a run begins with
table() { sed -n '/^| flag /,/^| device /p' "$1" | sed -n 's/^| \([a-z0-9][-a-z0-9 ]*[a-z0-9]\) *| \(.*[^ ]\) *|$/\1=\2/p'; }
check "a run of few flags" "$trainer" "${short[@]}" -x 1 -u 1 --beta1 0.9 >"$dir/stdout"
check "prints those that differ, data, model and batch" test "$(table "$dir/stdout" | sed 's/=.*//' | tr '\n' ' ')" = \
    "flag train-data val-data model batch time total-batch max-steps learning-rate warmup final-fraction weight-decay val-steps sample-every sample-tokens recompute other flags device "
check "and says how many do not" grep -qE "^\| other flags +\| [1-9][0-9] at their defaults; --all-flags lists them +\|" "$dir/stdout"
check "all of them" "$trainer" "${short[@]}" -x 1 -u 1 --all-flags >"$dir/stdout"
check "are as many as --help's" test "$(grep -cE '^  [-a-z ]{3} --[a-z]' <("$trainer" --help))" -eq "$(($(table "$dir/stdout" | wc -l) - 1))"
check "defaults too" grep -qE "^\| beta2 +\| 0.95 +\|" "$dir/stdout"
check "--plan 0 trains" without_words "host peak" "${short[@]}" -x 1 -u 1 --plan 0
check "--plan 1 does not" without_words "step    1/1" "${short[@]}" -x 1 -u 1 --plan 1
check "nor does --plan" without_words "step    1/1" "${short[@]}" -x 1 -u 1 --plan

copy stranger 00000040
sed -i '1s/.*/s:0 run:7/' "$dir/stranger/main.log"
check "another run's log beside a checkpoint is refused" fails_with "1 of these settings" "${again[@]}" -o "$dir/stranger"
check "both runs are said" says "note: main.log: the checkpoint's run is $id, the log's 7"
check "--resume-anyway takes it" run stranger "${again[@]}" --resume-anyway
check "with the checkpoint's id" same whole stranger main.log

finish
