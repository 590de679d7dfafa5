#!/usr/bin/env bash
# generate_gpt2 end to end, with a byte model that is trained for a few steps here: prompts from everywhere, text and JSON,
# seeds, batches, stop texts, a full context, Ctrl-C, scores, interactive use, export, and a table of bad inputs.
#
#     dev/test/whole/test_generate.sh ./generate_gpt2 [short]      # 20 s on two cores, a temporary folder of 2 MB
#
# short: skips tokenizers and bad inputs, which are host code.
. dev/test/fixtures/unit.sh
generate=${1:?usage: $0 ./generate_gpt2 [short]}
write_text
./train_gpt2 -i "$dir/text_train.bin" -j "$dir/text_val.bin" -e gpt2:l2c64h2t64 -b 4 -t 64 -x 30 -l 3e-3 -v 0 -m 0 -s 0 -n 30 \
    -o "$dir/run" >"$dir/train.log" 2>&1 || { cat "$dir/train.log"; exit 1; }
model=$dir/run/model_00000030.bin
# of MODEL ARG...: runs with this model, without a report; stdin is empty
of() { "$generate" -q -e "$1" "${@:2}" </dev/null; }
same() { cmp -s "$1" "$2" || { head -c 600 "$1" "$2"; return 1; }; }
different() { ! cmp -s "$1" "$2"; }

# ---- Prompts and samples
printf 'int main\n// The\n\nstatic' >"$dir/prompts"
of "$model" -p "int main" -p "// The" -p "" -p static -n 40 --num-samples 2 >"$dir/flags"
of "$dir/run" --prompt-file "$dir/prompts" -n 40 --num-samples 2 >"$dir/file"
"$generate" -q -e "$model" -n 40 --num-samples 2 <"$dir/prompts" >"$dir/stdin"
check "prompts of a file are those of the flags; a run's folder is its newest checkpoint" same "$dir/flags" "$dir/file"
mkdir "$dir/damaged"
cp "$dir"/run/* "$dir/damaged"
head -c 5000 "$model" >"$dir/damaged/model_00000040.bin"
true >"$dir/damaged/DONE_00000040"
of "$dir/damaged" --prompt-file "$dir/prompts" -n 40 --num-samples 2 >"$dir/file" 2>"$dir/stderr"
check "if that is damaged, the one before" same "$dir/flags" "$dir/file"
check "which a warning says" grep -q "^warning: $dir/damaged/model_00000040.bin has 5000 bytes, .*; taking checkpoint 30 instead of 40$" "$dir/stderr"
check "prompts of stdin too" same "$dir/flags" "$dir/stdin"
check "eight samples" test "$(grep -c '^---$' "$dir/flags")" -eq 7
check "a prompt is printed before its text" grep -q '^int main' "$dir/flags"
for batch in 1 3; do
    of "$model" --prompt-file "$dir/prompts" -n 40 --num-samples 2 -b $batch >"$dir/batch"
    check "$batch at a time: the same text" same "$dir/flags" "$dir/batch"
done
of "$model" --prompt-file "$dir/prompts" -n 40 --num-samples 2 --seed 7 >"$dir/seed"
check "another seed, another text" different "$dir/flags" "$dir/seed"
of "$model" -p "int" -n 50 --temperature 0 >"$dir/greedy"
of "$model" -p "int" -n 50 --top-k 1 >"$dir/top1"
of "$model" -p "int" -n 50 --top-p 0 >"$dir/top0"
check "the likeliest token by temperature and by top-k" same "$dir/greedy" "$dir/top1"
check "by top-p too" same "$dir/greedy" "$dir/top0"
of "$model" -p "int" -n 50 --temperature 0 --repetition-penalty 5 >"$dir/penalty"
check "a penalty changes the text" different "$dir/greedy" "$dir/penalty"
# five bytes, and a newline unless they end in one
check "without a prompt, and stdin empty: one sample" test "$(of "$model" -n 5 | wc -c)" -ge 5

# ---- JSON, and text that is UTF-8
of "$model" -p $'caf\xc3\xa9 "q"' -n 60 --num-samples 3 --json --temperature 50 --top-k 0 >"$dir/json"
of "$model" -p $'caf\xc3\xa9 "q"' -n 60 --num-samples 3 --echo 0 --temperature 50 --top-k 0 >"$dir/plain"
json_is_the_text() {
    "$python" - "$dir/json" "$dir/plain" <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1], encoding="utf-8")]
assert len(lines) == 3 and [line["sample"] for line in lines] == [0, 1, 2]
for line in lines:
    assert line["prompt"] == 'café "q"' and line["prompt_tokens"] == 9 and line["finish"] == "context", line
    assert line["text"] == bytes(line["tokens"]).decode("utf-8", "replace"), line
    assert 0 < line["first_token_seconds"] <= line["seconds"] and len(line["tokens"]) == 56
plain = open(sys.argv[2], "rb").read().decode("utf-8", "strict")
expected = "---\n".join(line["text"] + ("" if line["text"].endswith("\n") else "\n") for line in lines)
assert plain == expected, (plain, expected)
END
}
check "JSON holds what is printed as text, which is UTF-8" json_is_the_text

# ---- How samples end
finish_is() { of "$model" --json "${@:2}" | grep -q "\"finish\": \"$1\""; }
letter=$(of "$model" -p "int" -n 9 --top-k 5 --echo 0 | tr -d '\n' | tail -c 1) # of the likeliest bytes: no part of a character
check "a sample ends with --tokens" finish_is length -p "int" -n 9
check "before a stop text" finish_is stop -p "int" -n 9 --top-k 5 --stop "never there" --stop "$letter"
check "where the context is full" finish_is context -p "int" -n 1000
check "or goes on from its last half" finish_is length -p "int" -n 200 --overflow slide
check "1000 tokens from a context of 20" test "$(of "$model" -p "int" -n 1000 --context 20 --overflow slide --echo 0 --json | grep -o ', [0-9]*' | wc -l)" -ge 1000
check "a prompt that is too long slides too" finish_is length -p "$(printf 'a%.0s' {1..100})" -n 3 --overflow slide

hears_sigint() { # a job in the background has SIGINT ignored
    exec "$python" -c 'import os, signal, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.execv(sys.argv[1], sys.argv[1:])' "$@"
}
interrupted() {
    hears_sigint "$generate" -q -e "$model" -p "int" -n 100000000 --overflow slide >"$dir/interrupted" </dev/null &
    local pid=$! code=0
    for _ in {1..100}; do
        sleep 0.1
        [ ! -s "$dir/interrupted" ] || break
    done
    kill -INT $pid
    for _ in {1..300}; do
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    kill -KILL $pid 2>/dev/null
    wait $pid || code=$?
    [ $code -eq 130 ] && [ "$(tail -c 1 "$dir/interrupted" | wc -l)" -eq 1 ] && [ "$(head -c 3 "$dir/interrupted")" = int ] && return 0
    echo "exit code $code, $(wc -c <"$dir/interrupted") bytes"
    return 1
}
check "Ctrl-C ends a run with what there is" interrupted
# Ctrl-C while a write waits for a reader that is slow
slow_reader() {
    timeout 60 "$python" - "$generate" "$model" <<'END'
import array, fcntl, signal, subprocess, sys, termios, time

signal.signal(signal.SIGINT, signal.default_int_handler) # a job in the background has it ignored, and what it starts, too
flags = ["-q", "-e", sys.argv[2], "-p", "int", "-n", "100000000", "--overflow", "slide"]
process = subprocess.Popen([sys.argv[1], *flags], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
fcntl.fcntl(process.stdout, getattr(fcntl, "F_SETPIPE_SZ", 1031), 4096)
waiting, before = array.array("i", [0]), -1
while waiting[0] == 0 or waiting[0] != before: # until nothing comes any more
    before = waiting[0]
    time.sleep(0.5)
    fcntl.ioctl(process.stdout, termios.FIONREAD, waiting)
process.send_signal(signal.SIGINT)
time.sleep(0.2)
text = process.stdout.read()
assert process.wait() == 130 and text.startswith(b"int") and text.endswith(b"\n"), (process.returncode, text[-20:])
END
}
check "Ctrl-C during a write that waits loses nothing" slow_reader
reader_goes() { [ "$("$generate" -q -e "$model" -p "int" -n 100000000 --overflow slide </dev/null | head -c 3)" = int ]; }
check "a reader that goes ends the run" reader_goes
"$generate" -e "$model" -p "int" -n 20 </dev/null >"$dir/out" 2>"$dir/report"
check "the report is on stderr" grep -q "^new tokens   20 in .* tokens/s" "$dir/report"
check "with the time to the first token" grep -q "^first token  after .* ms" "$dir/report"
check "and memory" grep -q "^memory .*KV cache" "$dir/report"
check "of a context that is not full it says nothing" test -z "$(grep "^context" "$dir/report")"
"$generate" -e "$model" -p int -p "int main" --num-samples 2 -n 60 >"$dir/plain" 2>"$dir/report" </dev/null
check "of one that is, how many samples ended there" \
    grep -q "^context      full at 64 tokens: 2 of 4 samples ended there; --overflow slide lets" "$dir/report"
"$generate" -e "$model" -p int -n 100 --overflow slide >"$dir/plain" 2>"$dir/report" </dev/null
check "or went on" grep -q "^context      full at 64 tokens: 1 of 1 samples continued from their last half" "$dir/report"
"$generate" -e "$model" -p int -n 3 -b 100 >"$dir/plain" 2>"$dir/report" </dev/null
check "no more sequences at a time than there are" grep -q "1 sequence at a time" "$dir/report"

without_stdin() { [ "$("$generate" -q -e "$model" -n 5 <&- | wc -c)" -ge 5 ]; }
check "without stdin: one sample" without_stdin

# ---- Interactive use
printf 'int\nvoid\n' | "$generate" -q -e "$model" --interactive -n 20 --temperature 0 >"$dir/interactive"
of "$model" -p $'int\n' -n 20 --temperature 0 --echo 0 >"$dir/continued"
check "a line is continued" same <(head -c 20 "$dir/interactive") <(head -c 20 "$dir/continued")
printf 'int\n' | "$generate" -e "$model" --interactive -n 200 --overflow slide >"$dir/interactive" 2>"$dir/report"
check "a full context is said" grep -q "the context of 64 tokens is full: continuing from its last half" "$dir/report"

printf 'int\nvoid\nint\n' | "$generate" -e "$model" --interactive -n 200 --ignore-end >"$dir/interactive" 2>"$dir/report"
notes() { grep -c "the context of 64 tokens is full: $1" "$dir/report"; }
check "an answer that a full context ends says so" test "$(notes "the answer ends")" -eq 3
check "and the next line continues from its last half" test "$(notes "continuing from its last half")" -eq 2

unwritable() { # ends, though there is no end of lines
    local code=0
    yes int | timeout 60 "$generate" -q -e "$model" --interactive -n 1 >/dev/full 2>"$dir/stderr" || code=$?
    [ $code -eq 1 ] && [ "$(cat "$dir/stderr")" = "error: cannot write to stdout: No space left on device" ] && return 0
    echo "exit code $code: $(cat "$dir/stderr")"
    return 1
}
[ ! -c /dev/full ] || check "no line is answered where nothing can be written" unwritable
unreadable() { ! "$generate" -q -e "$model" --interactive <"$dir" 2>"$dir/stderr" && grep -q "^error: cannot read stdin: Is a directory" "$dir/stderr"; }
check "a stdin that cannot be read is said" unreadable

# on a terminal: Ctrl-C stops an answer, and the next line is answered; Ctrl-D ends with exit code 0, as Ctrl-C with its own
on_a_terminal() { # LAST_BYTE STATUS
    "$python" - "$generate" "$model" "$@" <<'END'
import os, pty, select, signal, sys, time

pid, terminal = pty.fork()
if pid == 0:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.execv(sys.argv[1], [sys.argv[1], "-q", "-e", sys.argv[2], "--interactive", "-n", "100000000", "--overflow", "slide"])
seen = b""
def read_until(done, seconds=20):
    global seen
    end = time.monotonic() + seconds
    while not done(seen):
        assert time.monotonic() < end, seen[-200:]
        if select.select([terminal], [], [], 0.1)[0]:
            seen += os.read(terminal, 4096)
def read_prompt():
    read_until(lambda s: s.endswith(b"> ") and not select.select([terminal], [], [], 0.5)[0])  # not the model's "> "
def answer(line):
    global seen
    read_prompt()
    seen = b""
    os.write(terminal, line)
    read_until(lambda s: len(s) > len(line) + 300)  # far beyond the context of 64
    os.write(terminal, b"\x03")
answer(b"int main\n")
answer(b"void\n")
read_prompt()
assert all(byte >= 32 or byte in b"\t\n\v\f\r" for byte in seen.replace(b"^C", b"")), seen
os.write(terminal, bytes([int(sys.argv[3])]))
assert os.waitpid(pid, 0)[1] == int(sys.argv[4])
END
}
check "a terminal has Ctrl-C, and Ctrl-D ends" on_a_terminal 4 0
check "so does Ctrl-C before a line" on_a_terminal 3 2

# ---- Scores
head -c 700 CONTRIBUTING.md >"$dir/text.md"
"$python" dev/data/text.py --tokenizer bytes --output "$dir/tokens" "$dir/text.md" >"$dir/data.log" 2>&1
score() { of "$model" --perplexity "$@" >"$dir/score"; }
loss_of() { of "$model" --perplexity "$@" --json | sed 's/.*"loss": \([0-9.]*\).*/\1/'; }
close() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a > 0 && (a - b)^2 <= 1e-4) }' || { echo "$1, $2"; return 1; }; } # bf16 too
says() { grep -q "$1" "$dir/score" || { cat "$dir/score"; return 1; }; }
check "a text is scored" score "$dir/text.md"
check "every token once" says ": 699 tokens scored, windows of 64, stride 32"
check "an odd window" score "$dir/text.md" --context 31
check "has half of it, rounded up, for a stride" says ": 699 tokens scored, windows of 31, stride 16"
check "a text is scored" score "$dir/text.md"
of "$model" --perplexity "$dir/text.md" -n 9 --context 64 >"$dir/stdout" 2>"$dir/stderr"
check "a flag of samples is noted" test "$(cat "$dir/stderr")" = "note: -n 9 has no effect with --perplexity"
check "by three numbers" says "^loss [0-9.]* nats per token, perplexity [0-9.]*, [0-9.]* bits per byte"
check "tokens in a file are scored" score "$dir/tokens_train.bin"
check "a longer stride, another loss" test "$(loss_of "$dir/text.md")" != "$(loss_of "$dir/text.md" --stride 64)"
check "-b changes nothing" close "$(loss_of "$dir/text.md" -b 1)" "$(loss_of "$dir/text.md" -b 5)"
of "$model" --export "$dir/steep" --export-dtype fp32
"$python" - "$dir/steep/model.safetensors" <<'END'
import array, json, sys
with open(sys.argv[1], "r+b") as f: # logits 100,000 times as far apart
    n = int.from_bytes(f.read(8), "little")
    begin, end = json.loads(f.read(n))["transformer.ln_f.weight"]["data_offsets"]
    f.seek(8 + n + begin)
    gains = array.array("f", f.read(end - begin))
    f.seek(8 + n + begin)
    f.write(array.array("f", [1e5 * gain for gain in gains]).tobytes())
END
no_perplexity() {
    of "$dir/steep" --perplexity "$dir/text.md" --json | "$python" -c 'import json, sys
score = json.load(sys.stdin)
assert score["loss"] > 710 and score["perplexity"] is None, score'
}
check "a perplexity beyond all numbers is null in JSON" no_perplexity
dumb_terminal() { # its stderr is one, which cannot write over a line
    head -c 8000 Makefile >"$dir/makefile"
    "$python" - "$generate" "$model" "$dir/makefile" <<'END'
import os, pty, subprocess, sys
terminal, end = pty.openpty()
command = [sys.argv[1], "-e", sys.argv[2], "--perplexity", sys.argv[3], "--stride", "1"]
process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=end, env=os.environ | {"TERM": "dumb"})
os.close(end)
seen = b""
try:
    while piece := os.read(terminal, 4096):
        seen += piece
except OSError: # closed
    pass
assert process.wait() == 0 and b"\x1b" not in seen and b"tokens/s" in seen, seen[-200:]
END
}
check "a dumb terminal has plain lines" dumb_terminal
write_hellaswag 'examples = [question(i, i % 4, list(b"int "), [list(b"main"), list(b"x = "), [1, 2, 3], [250]]) for i in range(8)]'
of "$model" --hellaswag "$dir/hellaswag.bin" >"$dir/score"
check "questions are answered" says "^HellaSwag: 2/8 = 0.250000$"

# ---- Export
of "$model" --export "$dir/exported" --export-dtype fp32
of "$model" --export "$dir/exported.bin" --export-dtype fp32
of "$dir/exported" -p "int" -n 50 --temperature 0 >"$dir/from_folder"
of "$dir/exported.bin" -p "int" -n 50 --temperature 0 >"$dir/from_bin"
check "an exported folder says the same" same "$dir/greedy" "$dir/from_folder"
check "an exported file too" same "$dir/greedy" "$dir/from_bin"

# ---- A model with more positions than its rows had
./train_gpt2 -i "$dir/text_train.bin" -j "$dir/text_val.bin" -e gpt2:l2c64h2t64 -b 4 -t 32 -x 2 -v 0 -m 0 -s 0 -n 2 -o "$dir/rows" \
    >"$dir/train.log" 2>&1 || cat "$dir/train.log"
longer="(the model's trained length; --context allows up to 64)"
# tells WHAT TEXT ARG...: stdout and stderr have one line with TEXT, where WHAT is `once`, or none; and no error
tells() {
    "$generate" -e "$dir/rows" "${@:3}" </dev/null >"$dir/score" 2>&1 || { cat "$dir/score"; return 1; }
    [ "$(grep -cF -- "$2" "$dir/score")" = "$([ "$1" = once ] && echo 1 || echo 0)" ] || { cat "$dir/score"; return 1; }
}
check "its windows are those of its rows" tells once "tokens scored, windows of 32, stride 16" --perplexity "$dir/text.md"
check "a note says so" says "^note: windows of 32 tokens $longer$"
head -c 33 "$dir/text.md" >"$dir/32.md"
check "but not where the text needs no more" tells none "trained" --perplexity "$dir/32.md"
check "the context that is asked for" tells once "windows of 64, stride 32" --perplexity "$dir/text.md" --context 64
check "is noted" says "^note: --context 64: the model was trained on 32 tokens; its positions beyond are untrained$"
check "one that is trained is not" tells none "trained" --perplexity "$dir/text.md" --context 32
check "a sample ends there" tells once "context      full at 32 tokens $longer: 1 of 1 samples ended there" -p int -n 100
check "a shorter one says nothing" tells none "trained" -p int -n 20
check "a longer one by --context" tells none "full at" -p int -n 40 --context 64
printf 'int\n' | "$generate" -e "$dir/rows" --interactive -n 40 --overflow slide >"$dir/interactive" 2>"$dir/score"
check "so do answers" says "^\[the context of 32 tokens $longer is full: continuing from its last half\]$"
write_hellaswag 'examples = [question(0, 1, b"a" * 30, [b"main", b"x = ", b"y", b"z"])]'
check "questions are answered beyond with --context" tells once "HellaSwag: " --hellaswag "$dir/hellaswag.bin" --context 34
of "$dir/rows" --export "$dir/rows_hf" 2>"$dir/score"
check "an export notes it" says "^note: $dir/rows_hf: its model was trained on 32 tokens, and has positions for 64 (n_positions)$"
check "config.json has it" grep -q '"flashgpt_trained_length": 32' "$dir/rows_hf/config.json"
of "$dir/rows_hf" --export "$dir/rows.bin" 2>"$dir/score"
check "what is read from it has it" tells once "windows of 32, stride 16" -e "$dir/rows.bin" --perplexity "$dir/text.md"

if [ "${2-}" = short ]; then finish; exit; fi

# ---- The model's own tokenizer: bytes in another order, "th" and "the", as transformers 5 writes it; and a run from there
"$python" - "$dir/own" <<'END' || exit 1
import json, os, sys
sys.path.insert(0, "dev/data")
from data_common import TokenFile
os.mkdir(sys.argv[1])
printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
others = [i for i in range(256) if i not in printable]
character = {i: chr(i) for i in printable} | {byte: chr(0x100 + i) for i, byte in enumerate(others)}
vocab = {character[255 - i]: i + 2 for i in range(256)} | {"th": 1, "the": 0}
model = {"type": "BPE", "vocab": vocab, "merges": [["t", "h"], ["th", "e"]]}
split = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True}
added = [{"id": 258, "content": "<|endoftext|>", "special": True}]
with open(os.path.join(sys.argv[1], "tokenizer.json"), "w") as f:
    json.dump({"added_tokens": added, "pre_tokenizer": split, "model": model}, f)
with TokenFile(sys.argv[1] + ".bin", 259) as out:
    out.append([i * i % 259 for i in range(2000)])
    out.finish()
END
small() { ./train_gpt2 -i "$dir/own.bin" -j "$dir/own.bin" -b 1 -t 16 -v 0 -m 0 -s 0 "$@" >"$dir/train.log" 2>&1 || cat "$dir/train.log"; }
small -e gpt2:l1c64h1t16 -x 2 -n 2 -o "$dir/own_run" --tokenizer "$dir/own"
check "a run keeps its tokenizer" cmp "$dir/own/tokenizer.json" "$dir/own_run/tokenizer.json"
prompt_tokens() { [ "$(of "$1" -p 'the<|endoftext|>' -n 1 --json | sed 's/.*"prompt_tokens": \([0-9]*\).*/\1/')" = 2 ]; }
check "prompts are encoded with it" prompt_tokens "$dir/own_run"
of "$dir/own_run" --export "$dir/own_export" 2>"$dir/stderr"
check "an export has it" cmp "$dir/own/tokenizer.json" "$dir/own_export/tokenizer.json"
check "and no other" test ! -e "$dir/own_export/vocab.json"
check "prompts of the export are encoded with it" prompt_tokens "$dir/own_export"
small -e "$dir/own_export" -x 1 -n 1 -o "$dir/tuned"
check "a run that goes on from it keeps it" prompt_tokens "$dir/tuned"
printf '{}' >"$dir/tuned/tokenizer.json"
: >"$dir/none.bin" # which is not read: the run writes no samples
cp "$dir/tuned/model_00000001.bin" "$dir/tuned/mine.bin"
small -e "$dir/tuned/mine.bin" --tokenizer "$dir/none.bin" -x 1 -n 1 -o "$dir/tuned" --overwrite
check "of a run that is begun anew with another, it is removed" test ! -e "$dir/tuned/tokenizer.json"
check "that is said" grep -q "^note: removed the tokenizer of the run before from $dir/tuned$" "$dir/train.log"
mkdir "$dir/short" "$dir/beside"
head -n 1 "$dir/own_run/main.log" | tee "$dir/short/main.log" >"$dir/beside/main.log" # runs that ended before their first step
printf '{}' | tee "$dir/short/vocab.json" "$dir/short/tokenizer.json" >"$dir/beside/tokenizer.json"
small -e "$dir/own_export" -x 1 -n 1 -o "$dir/short"
check "nor has a run the tokenizer of one that ended before its first step" prompt_tokens "$dir/short"
check "nor any file of it" test ! -e "$dir/short/vocab.json"
cp "$dir/own_export/"{model.safetensors,config.json} "$dir/beside"
small -e gpt2:l1c64h1t16 -x 1 -n 1 -o "$dir/beside" --overwrite
check "a run beside a model of Hugging Face leaves that model's" grep -q '^{}$' "$dir/beside/tokenizer.json"
mkdir "$dir/kept"
printf mine >"$dir/kept/tokenizer.json"
small -e "$dir/own_export" -x 1 -n 1 -o "$dir/kept" --overwrite
check "nothing is written over" grep -q '^mine$' "$dir/kept/tokenizer.json"
sed 's/"BPE"/"Unigram"/' "$dir/own/tokenizer.json" >"$dir/own_export/tokenizer.json"
check "weights alone need no tokenizer that is read" test "$(of "$dir/own_export" --export "$dir/own_export.bin" 2>&1)" = ""
check "and are there" test -s "$dir/own_export.bin"
small -e "$dir/own_export" -x 1 -n 1 -o "$dir/unread"
check "a run that writes no samples warns of a tokenizer that cannot be read" grep -q '^warning: .*own_export.*Unigram.*; the run keeps it' "$dir/train.log"
check "and keeps it" cmp "$dir/own_export/tokenizer.json" "$dir/unread/tokenizer.json"

loud() { "$generate" -e "$1" --export "$2" 2>"$dir/score"; } # what an export says without --quiet
loud "$model" "$dir/spoken"
check "an export says what it has written" says "^wrote $dir/spoken: model.safetensors, config.json, tokenizer$"
loud "$model" "$dir/spoken.bin"
check "and of one file" same <(echo "wrote $dir/spoken.bin") "$dir/score"
generate=$(realpath "$generate")
tiny=$PWD/dev/reference/tiny.bin
(cd "$dir" && loud "$tiny" mute) # without a gpt2_tokenizer.bin
check "a folder without a tokenizer is warned of" says "^warning: --export mute: no tokenizer for the model's 251 tokens, so the folder has none; --tokenizer names one"
check "in no other words" test "$(wc -l <"$dir/score")" -eq 2
check "and what it has is said" says "^wrote mute: model.safetensors, config.json$"
of "$model" --export "$dir/alone.safetensors" --context 64 2>"$dir/score"
check "a flag that an export does not use is noted" says "^note: --context 64 has no effect with --export$"
check "a warning says that a file of weights alone has no number of heads" says "does not say that its model has 2 heads"
of "$model" --tokenizer "$dir/exported" -p int -n 1 >"$dir/plain" 2>"$dir/score"
check "a warning says that bytes need no tokenizer" says "^warning: --tokenizer $dir/exported is not read: the 256 tokens of this model are bytes"
of "$model" --tokenizer "$dir/exported" --export "$dir/bytes.bin" 2>"$dir/score"
check "also beside an export to one file" says "^warning: --tokenizer $dir/exported is not read: the 256 tokens of this model are bytes"
of "$tiny" --tokenizer "$dir/exported" --export "$dir/tiny.bin" 2>"$dir/score"
check "which has no tokenizer" says "^warning: --tokenizer $dir/exported is not read: an export to one file has no tokenizer"

# ---- Bad inputs: exit code 1, nothing on stdout, and one line on stderr that holds the text
refused() {
    local text=$1 code=0
    shift
    "$generate" "$@" >"$dir/stdout" 2>"$dir/stderr" </dev/null || code=$?
    [ $code -eq 1 ] && [ ! -s "$dir/stdout" ] && [ "$(wc -l <"$dir/stderr")" -eq 1 ] && grep -q '^error: ' "$dir/stderr" &&
        grep -qF -- "$text" "$dir/stderr" && return 0
    echo "exit code $code, expected one line with: $text"
    cat "$dir/stdout" "$dir/stderr"
    return 1
}
bad() { check "refused: ${*:2}" refused "$1" -e "$model" "${@:2}"; }
check "another kind of tokenizer is refused by its name" refused "model Unigram is not read: only byte-level BPE" -e "$dir/own_export" -p the
check "no model" refused "-e $dir/nothing.bin: no such file; name a .bin" -e "$dir/nothing.bin"
check "no folder" refused "-e nothing: no such file; name a .bin or .safetensors file" -e nothing
check "a descriptor" refused "-e d12: that describes a new model, without weights; name a .bin" -e d12
mkdir "$dir/empty"
check "an empty folder" refused "-e $dir/empty: the folder holds no weights" -e "$dir/empty"
head -c 5000 "$model" >"$dir/short.bin"
check "a truncated model" refused "$dir/short.bin" -e "$dir/short.bin"
echo '{"model": 1}' >"$dir/no.safetensors"
check "no safetensors" refused "$dir/no.safetensors" -e "$dir/no.safetensors"
: >"$dir/nothing.txt"
printf 'x' >"$dir/one.txt"
bad "unknown flag --nonsense" --nonsense
bad "flag --tokens needs a value" --tokens
bad "--tokens 0: must be at least 1" --tokens 0
bad "--tokens ten" --tokens ten
bad "--temperature -1: must be at least 0" --temperature -1
bad "--top-k -1" --top-k -1
bad "--top-p 1.5: must be at most 1" --top-p 1.5
bad "--repetition-penalty 0" --repetition-penalty 0
bad "--seed nan" --seed nan
bad "--num-samples 0" --num-samples 0
bad "--overflow wrap: must be one of stop|slide" --overflow wrap
bad "--stop ''" --stop ""
bad "--context 65: the model has positions for 64 tokens" --context 65
bad "prompt 1 has 100 tokens, the context is 64" -p "$(printf 'a%.0s' {1..100})"
bad "prompt 2 has 4 tokens, the context is 3" -p a -p "four" --context 3
printf 'a\n\nfour\n' >"$dir/long_prompts"
bad "$dir/long_prompts:3 has 4 tokens, the context is 3" -p a --prompt-file "$dir/long_prompts" --context 3
check "more tokens than were trained" refused "prompt 1 has 40 tokens, the context is 32 $longer; shorten it" -e "$dir/rows" \
    -p "$(printf 'a%.0s' {1..40})"
check "questions too" refused "a row has 34 tokens, the context is 32 $longer" -e "$dir/rows" --hellaswag "$dir/hellaswag.bin"
bad "--prompt-file nothing there: No such file" --prompt-file "nothing there"
bad "--prompt-file $dir/nothing.txt: the file is empty" --prompt-file "$dir/nothing.txt"
bad "--tokenizer $dir/no.bin: No such file" --tokenizer "$dir/no.bin" -p x
bad "--perplexity and --hellaswag: choose one" --perplexity "$dir/text.md" --hellaswag "$dir/hellaswag.bin"
bad "--prompt and --perplexity" --perplexity "$dir/text.md" -p x
bad "--perplexity $dir/no.txt: No such file" --perplexity "$dir/no.txt"
bad "the file has 0 tokens; at least two" --perplexity "$dir/nothing.txt"
bad "the file has 1 token; at least two" --perplexity "$dir/one.txt"
bad "model_00000030.bin" --perplexity "$model"
bad "--stride 65: windows have 64 tokens" --perplexity "$dir/text.md" --stride 65
bad "--stride 5: it is for --perplexity" --stride 5
bad "--export-dtype bf16: it is for --export" --export-dtype bf16
bad "--hellaswag $dir/no.bin: No such file or directory; python3 dev/data/hellaswag.py writes it" --hellaswag "$dir/no.bin"
bad "--json and --interactive" --json --interactive
bad "$dir/exported" --export "$dir/exported"
bad "$dir/exported.bin" --export "$dir/exported.bin"
bad "--export $dir/new.pt: unknown format" --export "$dir/new.pt"
for target in none/x none/x.bin none/x.safetensors; do # before weights are read
    check "refused: --export $target" refused "$dir/$target.tmp: No such file" -e "$dir/nothing.bin" --export "$dir/$target"
done
bad "--export-dtype int8" --export "$dir/new" --export-dtype int8
check "text for a vocabulary without a tokenizer" refused tokenizer -e dev/reference/tiny.bin -p x
# gpt2_tokenizer.bin of another vocabulary than tiny.bin's 251: there for other models
elsewhere() ( # COMMAND...: in a folder that holds one
    cd "$dir/elsewhere" && "$@"
)
mkdir "$dir/elsewhere"
"$python" - "$dir/elsewhere" <<'END'
import os, struct, sys
for name, head, body in (
    ("gpt2_tokenizer.bin", (20240328, 2, 3, 2), b"\1a\1b\1c"),
    ("tokens.bin", (20240520, 1, 40, 0), struct.pack("<40H", *range(40))),
):
    with open(os.path.join(sys.argv[1], name), "wb") as f:
        f.write(struct.pack("<256i", *head, *[0] * 252) + body)
END
check "GPT-2's tokens beside a model of another vocabulary: tokens are scored" elsewhere "$generate" -q -e "$tiny" --perplexity tokens.bin
check "and text is refused" elsewhere refused "3 tokens, the model's vocabulary has" -e "$tiny" -p x
full_disk() { "$generate" -q -e "$model" -n 100000000 --overflow slide >/dev/full 2>"$dir/stderr" </dev/null && return 1; grep -q "cannot write to stdout" "$dir/stderr"; }
[ ! -c /dev/full ] || check "a full disk under stdout is said" full_disk
check "--help explains every flag" explained "$generate"
check "and names no default where there is none" test -z "$("$generate" --help | grep NULL)"
no_help() { "$generate" --help >/dev/full 2>"$dir/stderr" && return 1; grep -q "^error: cannot write to stdout: No space left" "$dir/stderr"; }
[ ! -c /dev/full ] || check "under --help, too" no_help
small_files() (ulimit -f 40 && "$@") # at most 40 KiB each
for target in "$dir/new" "$dir/new.bin" "$dir/new.safetensors"; do
    check "a limit on the size of files: $target" small_files refused "File too large" -e "$model" --export "$target"
done
check "nothing is left behind" test -z "$(find "$dir" -name 'new*' -o -name '*.tmp')"
finish
