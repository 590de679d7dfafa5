# shellcheck shell=bash
# What the tests of the trainers in bash are written with, as unit.h has it for those in C. From the project's root:
#
#     . dev/test/unit.sh                              # $dir: an empty folder, removed at the end; $python
#     check "a run of 40 steps ends" ./train_gpt2 -x 40 -o "$dir/run"
#     finish                                          # 'N passed, N failed'; the exit code
set -uo pipefail
export OMP_WAIT_POLICY=passive # threads that spin hold up a machine that has other work
python=$(command -v python3 || command -v python) || { echo "error: no python3 found" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0
skipped=0

# check NAME COMMAND...: the command must succeed
check() {
    local name=$1
    shift
    if "$@"; then passed=$((passed + 1)); else failed=$((failed + 1)); echo "FAILED: $name"; fi
}

# without_waits FILE...: takes out what processes say of a long wait for each other; on a busy machine one may start late
without_waits() { sed -i '/^note: rank [0-9]*: waiting for /d' "$@"; }

# Bytes of the project's own sources as tokens: $dir/text_train.bin and $dir/text_val.bin
write_text() {
    "$python" dev/data/text.py --tokenizer bytes --output "$dir/text" train_gpt2.c train_gpt2.cu llmc/*/*.h >"$dir/data.log" 2>&1 &&
        return 0
    cat "$dir/data.log"
    exit 1
}

# write_hellaswag PYTHON: $dir/hellaswag.bin, of the questions in `examples`: question(index, label, context, endings)
write_hellaswag() {
    "$python" - "$dir/hellaswag.bin" "$1" <<'END'
import struct, sys
def question(index, label, context, endings):
    words = [label, len(endings), len(context), *context]
    for ending in endings:
        words += [len(ending), *ending]
    return [65535, 2 * (len(words) + 3), index, *words]
exec(sys.argv[2])
with open(sys.argv[1], "wb") as f:
    header = [20240522, 1, len(examples), max(2 * len(e) for e in examples)]
    f.write(struct.pack("<256i", *header, *[0] * 252))
    for example in examples:
        f.write(struct.pack(f"<{len(example)}H", *example))
END
}

finish() {
    local also=
    [ $skipped -eq 0 ] || also=", $skipped skipped"
    echo "$passed passed, $failed failed$also"
    [ $failed -eq 0 ]
}
