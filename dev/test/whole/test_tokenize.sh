#!/usr/bin/env bash
# tokenize_gpt2 from end to end, with a small vocabulary made here: files, pipes, token files, broken UTF-8, errors. Takes two
# seconds, in a temporary folder.
#
#     dev/test/whole/test_tokenize.sh ./tokenize_gpt2
program=${1:?usage: $0 tokenize_gpt2}
# shellcheck source=dev/test/fixtures/unit.sh
. dev/test/fixtures/unit.sh

# 256 bytes, "th", "the", " the", "in", "ing", U+FFFD's bytes, <|endoftext|>; and texts
"$python" - "$dir" <<'END' || exit 1
import os, random, sys
sys.path.insert(0, "dev/data")
from data_common import TOKENIZER, write_checked
tokens = [bytes([i]) for i in range(256)] + [b"th", b"the", b" the", b"in", b"ing", b"\xef\xbf", b"\xef\xbf\xbd", b"<|endoftext|>"]
write_checked(f"{sys.argv[1]}/t.bin", (*TOKENIZER, len(tokens), len(tokens) - 1), b"".join(bytes([len(t)]) + t for t in tokens))
write_eot = (b"the" * 349_524 + b"<|endo" + b"ftext|>the") * 2
r = random.Random(1)
text = "".join(r.choice(["the ", "thing ", "in", "\n\n", "é", "你好 ", "don't ", "12 "]) for _ in range(330_000)).encode()
def write(name, data):
    with open(os.path.join(sys.argv[1], name), "wb") as f:
        f.write(data)
write("text", text)
write("word", b"thing" * 250_000)
write("documents", write_eot)
write("random", r.randbytes(1_100_000))
write("broken", b"the \xff thing\xe2\x82 \xc3")
END
tok() { "$program" "$@" --tokenizer "$dir/t.bin"; }

# is TEXT COMMAND...: what the command prints
is() {
    local expected=$1 output
    shift
    output=$("$@")
    [ "$output" = "$expected" ] && return
    echo "    $*: '$output', expected '$expected'"
    return 1
}
# refused WORDS COMMAND...: exit code 1, one line on stderr, which has the words, nothing on stdout
refused() {
    local words=$1 code
    shift
    "$@" >"$dir/out" 2>"$dir/err"
    code=$?
    if [ $code -ne 1 ] || [ "$(wc -l <"$dir/err")" -ne 1 ] || ! grep -qF -- "$words" "$dir/err" || [ -s "$dir/out" ]; then
        echo "    $*: exit code $code, $(cat "$dir/err")"
        return 1
    fi
}
# round_trip FILE OUTPUT FLAG...: encoded into OUTPUT and decoded
round_trip() {
    local file=$1 output=$2
    shift 2
    tok encode "$file" --output "$output" "$@" >"$dir/said" 2>&1 && tok decode "$output" --output "$dir/back" && cmp "$file" "$dir/back"
}
numbers_of() { tok decode "$1" >/dev/null && tail -c +1025 "$1" | od -An -v -t u2 | tr -s ' \n' ' ' | sed 's/^ //; s/ $//'; }

check "a text becomes numbers" is "257 258 260 10" tok encode <<<"the theing"
check "numbers become a text" is "the theing" tok decode <<<"257 258 260"
check "a pipe with a name is read from its beginning" is "the theing" tok decode <(echo 257 258 260)
check "every text may be led by the end of text" is "263 257 263 257" \
    tok encode <(printf the) <(printf the) --endoftext 1
check "and lose it again" is "thethe" tok decode --endoftext <<<"263 257 263 257"
check "its name in a text is text" test "$(tok encode 2>"$dir/err" <<<'<|endoftext|>' | wc -w)" = 14
check "which is said" is "note: <|endoftext|> occurs, encoded as text; --allow-special makes it the token" cat "$dir/err"
check "or the token" is "257 263 10 263 263 10" tok encode --allow-special <<<$'the<|endoftext|>\n<|endoftext|><|endoftext|>'
check "only where it is whole" test "$(tok encode --allow-special <<<'<|endoftext|<|endoftext>' | wc -w)" = 25
tok encode <(printf '<|endo') <(printf 'ftext|>') -o "$dir/ids.bin" >"$dir/said" 2>"$dir/err"
check "not across files" test ! -s "$dir/err"
tok encode "$dir/documents" --allow-special -o "$dir/ids.bin" >"$dir/said" 2>"$dir/err"
check "and the token there" test "$(numbers_of "$dir/ids.bin" | tr ' ' '\n' | sort | uniq -c | tr -s ' \n' ' ')" = " 699050 257 2 263 "
check "of which nothing is said" test ! -s "$dir/err"
check "where tokens are bytes, there is none" refused "--allow-special: where tokens are bytes, <|endoftext|> is none" \
    "$program" encode --tokenizer bytes --allow-special <<<x
check "nor one to be left out" refused "--endoftext: where tokens are bytes, a newline is it" \
    "$program" decode --tokenizer bytes --endoftext <<<97
check "a byte order mark is dropped" is "257 10" tok encode 2>"$dir/err" <<<$'\xef\xbb\xbfthe'
check "with a note" is "note: standard input: its byte order mark is dropped" cat "$dir/err"
check "at the beginning alone" test "$(tok encode <<<$'the\xef\xbb\xbf' | wc -w)" = 5
for file in text word random documents; do
    check "$file comes back from numbers" round_trip "$dir/$file" "$dir/ids"
    check "$file comes back from a token file" round_trip "$dir/$file" "$dir/ids.bin"
    check "$file: the token file has the same tokens" test "$(tr '\n' ' ' <"$dir/ids" | sed 's/ $//' | cksum)" = "$(numbers_of "$dir/ids.bin" | cksum)"
done
tok encode <"$dir/text" | tok decode >"$dir/back"
check "a text comes back through pipes" cmp "$dir/text" "$dir/back"
check "the token file has its checksums" "$python" dev/data/verify.py "$dir/ids.bin" >"$dir/said"
check "broken UTF-8 is kept" round_trip "$dir/broken" "$dir/ids.bin"
check "bytes can be tokens" is "116 104 101" "$program" encode <(printf the) --tokenizer bytes
# shellcheck disable=SC2016
serve='import subprocess, sys
p = subprocess.Popen([sys.argv[1], "serve", "--tokenizer", sys.argv[2]], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
for text, tokens in (b"the", [257]), (b"", []), (b"a ing", [97, 32, 260]), (b"x" * 100_000, [120] * 100_000):
    p.stdin.write(len(text).to_bytes(4, "little") + text)
    p.stdin.flush()
    n = int.from_bytes(p.stdout.read(4), "little")
    assert list(memoryview(p.stdout.read(2 * n)).cast("H")) == tokens
p.stdin.close()
assert p.wait() == 0'
# 65,600 tokens do not fit 16 bits
"$python" - "$dir/wide.bin" <<'END' || exit 1
import sys
sys.path.insert(0, "dev/data")
from data_common import TOKENIZER, write_checked
tokens = [bytes([i]) for i in range(256)] + [b"th", *(b"\xff" + i.to_bytes(3, "big") for i in range(65_342)), b"<|endoftext|>"]
write_checked(sys.argv[1], (*TOKENIZER, len(tokens), len(tokens) - 1), b"".join(bytes([len(t)]) + t for t in tokens))
END
check "a vocabulary beyond 16 bits has a token file" "$program" encode <(printf thx) --tokenizer "$dir/wide.bin" -o "$dir/wide_ids.bin" >"$dir/said"
check "of 32 bits" test "$(tail -c +1025 "$dir/wide_ids.bin" | od -An -t u4 | tr -s ' ')" = " 256 120"
check "which is decoded" is thx "$program" decode "$dir/wide_ids.bin" --tokenizer "$dir/wide.bin"
check "a program is served" "$python" -c "$serve" "$program" "$dir/t.bin"

check "--version needs none, nor a tokenizer" is "$("$program" --help | sed -n 's/^flashgpt /&/p')" "$program" --version
check "a command is needed" refused "encode or decode was expected" "$program" --tokenizer x
check "flags are checked" refused "unknown flag --broken-utf8" tok encode --broken-utf8 x
check "a tokenizer is needed" refused "none.bin" "$program" encode --tokenizer "$dir/none.bin"
check "inputs are there" refused "cannot open $dir/nothing" tok encode "$dir/nothing"
check "inputs are no folders" refused "is a folder" tok encode "$dir"
mkdir "$dir/folder.bin"
mkfifo "$dir/waits" # nobody writes a text to it
for output in "$dir/folder.bin" "$dir/none/x.bin" "$dir/folder.bin/" "$dir/none/x"; do
    check "an output that cannot be is refused first: $output" refused "$output" timeout 10 "$program" encode "$dir/waits" \
        --tokenizer "$dir/t.bin" -o "$output"
done
cp "$dir/text" "$dir/kept"
ln "$dir/kept" "$dir/kept.bin"
check "a text is not written over" refused "kept.bin is $dir/kept, which is read" tok encode "$dir/kept" -o "$dir/kept.bin"
check "nor tokens" refused "name another file" tok decode "$dir/ids" "$dir/ids.bin" -o "$dir/ids.bin"
check "nor the tokenizer" refused "t.bin is $dir/t.bin, which is read" tok encode "$dir/text" -o "$dir/t.bin"
for file in "" -; do
    # shellcheck disable=SC2086,SC2094
    check "nor what standard input is" refused "kept is standard input, which is read" tok encode $file -o "$dir/kept" <"$dir/kept"
done
check "which stay" cmp "$dir/text" "$dir/kept"
cp "$dir/ids.bin" "$dir/ids.tokens"
check "a token file is one by its head" cmp <(tok decode "$dir/ids.tokens") <(tok decode "$dir/ids.bin")
check "tokens are numbers" refused "expected a number after 1 tokens" tok decode - -o "$dir/none" <<<"257 x"
for number in -18446744073709551551 +65 0x41; do
    check "and have digits alone: $number" refused "expected a number after" tok decode - -o "$dir/none" <<<"$number"
done
check "tokens are in the vocabulary" refused "token 264, number 1" tok decode - -o "$dir/none" <<<"257 264"
check "texts are not empty" refused "would hold no tokens" tok encode /dev/null -o "$dir/none.bin"
tok encode "$dir/text" -o "$dir/ids.bin" >"$dir/said"
printf 'x' | dd of="$dir/ids.bin" bs=1 seek=5000 conv=notrunc status=none
check "token files are verified" refused "do not have their checksum" tok decode "$dir/ids.bin" -o "$dir/none"
check "a service ends inside a text" refused "standard input ends inside a text" tok serve <"$dir/broken"
small_files() (ulimit -f 40 && "$@") # at most 40 KiB each
for output in "$dir/none.bin" "$dir/none"; do
    check "a limit on the size of files: $output" small_files refused "$output.tmp: File too large" tok encode "$dir/text" -o "$output"
done
if [ -w /dev/full ]; then
    tok encode "$dir/text" 2>"$dir/err" >/dev/full
    check "a full disk ends it" test $? = 1
    check "which it says" grep -q "cannot write standard output" "$dir/err"
fi
nothing_left() { ! compgen -G "$dir/none*" >/dev/null; }
check "what fails leaves no file" nothing_left
for signal in TERM HUP; do
    "$program" encode "$dir/text" /dev/stdin --tokenizer "$dir/t.bin" -o "$dir/none" < <(sleep 5) &
    process=$!
    for _ in $(seq 100); do [ -e "$dir/none.tmp" ] && break; sleep 0.05; done
    kill -$signal $process
    wait $process 2>/dev/null # bash says what ended it
    check "SIG$signal ends it" test $? = $((128 + $(kill -l $signal)))
    check "and leaves no file" nothing_left
done
finish
