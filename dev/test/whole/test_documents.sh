#!/usr/bin/env bash
# --documents and --positions: what they change and what not, the bits of several processes (on a GPU: without graphs) and of a
# resumed run, PyTorch on the same batches (in fp32), and what is refused. In the tests' text tokens are bytes, and a document
# is a line.
#
#     dev/test/whole/test_documents.sh ./train_gpt2
#     dev/test/whole/test_documents.sh build/train_gpt2cu_fp32
#
# Takes some seconds; writes in $TMPDIR.
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/fixtures/unit.sh
trainer=$1
write_text
other=(--processes 2) # another way to the same bits
exact=()              # GEMMs in fp32 itself
[[ $trainer == *cu_* ]] && other=(--cuda-graphs 0) exact=(-f 0)
data=(-i "$dir/text_train.bin" -j "$dir/text_val.bin" -b 2 -t 64 -d 256 -l 1e-3 -v 4 -m 2)
# train NAME FLAG...: eight steps, in the folder $dir/NAME
train() { "$trainer" "${data[@]}" "${exact[@]}" -e gpt2:l2c64h2t64 -s 0 -x 8 -n 4 -o "$dir/$1" "${@:2}" >"$dir/$1.log" 2>&1 || { cat "$dir/$1.log"; return 1; }; }
# losses KIND NAME: training (trl) or validation (tel)
losses() { grep -o "^s:[0-9]* $1:[0-9.]*" "$dir/$2/main.log"; }
same() { cmp "$dir/$1/model_00000008.bin" "$dir/$2/model_00000008.bin"; }
differ() { ! cmp -s "$dir/$1/model_00000008.bin" "$dir/$2/model_00000008.bin"; }

check "rows" train rows
check "documents" train documents --documents 1
check "positions in documents" train positions --documents 1 --positions document
check "documents in validation" train validation --documents 2
check "documents change training" differ rows documents
check "so do positions" differ documents positions
check "validation changes nothing in training" test "$(losses trl documents)" = "$(losses trl validation)"
first() { losses tel "$1" | head -n 1; }
check "validation is of rows" test "$(first documents)" = "$(first rows)"
check "or of documents" test "$(first validation)" != "$(first rows)"

check "the other way" train two --documents 2 --positions document "${other[@]}"
check "one" train one --documents 2 --positions document
check "has the same bits" same one two
check "and the same losses" cmp "$dir/one/main.log" "$dir/two/main.log"
rm -f "$dir"/one/*_00000008*
check "a resumed run" train one --documents 2 --positions document -y 1
check "has the same bits, too" same one two
if [[ $trainer == *cu_* ]] && serves_fp8 "$trainer"; then
    check "documents in fp8" train fp8 --documents 2 --fp8 1
    check "lose little" awk -v a="$(losses tel validation | tail -n 1 | cut -d : -f 3)" -v b="$(losses tel fp8 | tail -n 1 | cut -d : -f 3)" \
        'BEGIN { exit !(b != "" && b < a + .05) }'
    check "documents in fp8 the other way" train fp8_two --documents 2 --fp8 1 "${other[@]}"
    check "has the same bits" same fp8 fp8_two
fi
refuses() { ! "$trainer" "${data[@]}" "${exact[@]}" -e gpt2:l2c64h2t64 -s 0 "${@:2}" >"$dir/out" 2>&1 && grep -q -- "$1" "$dir/out"; }
check "a run of documents does not go on without" refuses "^note: --documents: the checkpoint has 2, this run 0 (changes the result)" \
    -x 12 -n 4 -o "$dir/two" -y 1 --documents 0
check "--documents 3 is refused" refuses "^error: .*documents" --documents 3
check "a vocabulary without a tokenizer is refused" refuses "^error: --documents 1: the token that begins a document is unknown without a tokenizer of 300 tokens" \
    --vocab-size 300 --documents 1
# a tokenizer of 300 tokens, of which TOKEN begins a document
tokenizer() { # TOKEN
    "$python" -c "
import struct, sys
sys.stdout.buffer.write(struct.pack('<256i', 20240328, 2, 300, $1, *[0] * 252) + b'\1x' * 300)" >"$dir/begin_$1.bin"
    echo "$dir/begin_$1.bin"
}
of_300=(--vocab-size 300 --documents 1)
check "a tokenizer's token" train token10 "${of_300[@]}" --tokenizer "$(tokenizer 10)"
check "another one's" train token32 "${of_300[@]}" --tokenizer "$(tokenizer 32)"
check "begins other documents" differ token10 token32
check "a run does not go on with it" refuses "^note: documents-begin-with: the checkpoint has token 10, this run token 32 (changes the result)" \
    -x 12 -n 4 -o "$dir/token10" -y 1 --tokenizer "$dir/begin_32.bin"
check "a tokenizer that is not there is no other" refuses "^error: --tokenizer .*none.bin: No such file" \
    --vocab-size 50257 --documents 1 --tokenizer "$dir/none.bin"
check "nor is a token that the data cannot have" refuses "^error: --documents 1: token 50256 begins a document, and -i .*text_train.bin has tokens of a vocabulary of 256" \
    --vocab-size 50257 --documents 1
noted() { "$trainer" "${data[@]}" -e gpt2:l2c64h2t64 -s 0 -x 1 --positions document 2>&1 | grep -q "positions.*without --documents"; }
check "--positions alone is noted" noted

# PyTorch: from the weights of before the first step
if [[ $trainer == *cu_bf16 ]]; then
    echo "bf16: documents are not compared with PyTorch"
elif "$python" -c "import torch, numpy" 2>/dev/null; then
    check "the initial weights" train start -l 0 -x 1 -n 1
    torch() {
        "$python" dev/reference/train_reference.py -e "$dir/start/model_00000001.bin" "${data[@]}" -x 8 --dtype float32 -f 0 --separator 10 \
            -o "$dir/torch" "$@" >"$dir/torch.log" 2>&1 || { cat "$dir/torch.log"; return 1; }
    }
    near() { # NAME: losses and norms, of which a log has four digits
        "$python" - "$dir/torch/main.log" "$dir/$1/main.log" <<'END'
import re, sys
logs = [re.findall(r"(trl|tel|norm):(\S+)", open(path).read()) for path in sys.argv[1:]]
same = len(logs[0]) > 16 and [kind for kind, _ in logs[0]] == [kind for kind, _ in logs[1]]
unit = {"norm": 1e-4, "trl": 1e-6, "tel": 1e-6}
apart = [max(abs(float(a) - float(b)) - unit[kind], 0) / float(b) for (kind, a), (_, b) in zip(*logs)]
worst = max(apart) if same else 1
if worst > 1e-4:
    sys.exit(f"{sys.argv[2]} differs from PyTorch's by {worst:.1e}")
END
    }
    check "PyTorch, documents" torch --documents 1
    check "has these losses and norms" near documents
    check "PyTorch, positions in documents" torch --documents 2 --positions document
    check "has these, too" near two
else
    echo "no PyTorch here: documents are not compared with it"
fi
finish
