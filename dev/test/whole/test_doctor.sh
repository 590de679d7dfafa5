#!/usr/bin/env bash
# --doctor of the given trainer (./train_gpt2 or ./train_gpt2cu) and scripts/doctor.sh: what is fit is ok, each thing that is
# not is named with its fix and sets the exit code. Takes seconds; writes to a temporary folder only.
. dev/test/fixtures/unit.sh
trainer=${1:?usage: $0 ./train_gpt2 or ./train_gpt2cu}
# doctor CODE FLAG...: --doctor ends with the exit code; its table is in $dir/table
doctor() {
    local code
    "$trainer" --doctor "${@:2}" >"$dir/table" 2>"$dir/stderr"
    code=$?
    [ $code -eq "$1" ] && [ ! -s "$dir/stderr" ] && return 0
    echo "exit code $code:"
    cat "$dir/table" "$dir/stderr"
    return 1
}
# is RESULT NAME [TEXT]: the table has a row with this result, this name and, in its value, TEXT
is() {
    grep -E "^\| $2 +\| $1  " "$dir/table" | grep -qF -- "${3:-}" && return 0
    cat "$dir/table"
    return 1
}
no_row() { ! grep -E "^\| $1 +\|" "$dir/table"; }
rows_not_ok() { [ "$(grep -c '| NOT OK  ' "$dir/table")" -eq "$1" ]; }

"$python" dev/data/text.py --tokenizer bytes --output "$dir/text" train_gpt2.c llmc/*/*.h >"$dir/data.log" 2>&1 ||
    { cat "$dir/data.log"; exit 1; }
data=(-i "$dir/text_train.bin" -j "$dir/text_val.bin")

check "all is well here" doctor 0 "${data[@]}" -o "$dir/new/folder" -e d12
hardware=("GEMM against fp64" attention "its gradient")
on_gpu=0
if [[ $trainer == *cu* ]]; then
    on_gpu=1
    hardware=(GPU "CUDA driver" "GPU memory" "GEMM against fp64" "attention, [a-z0-9]+" "its gradient, [a-z0-9]+")
fi
for row in "${hardware[@]}" "host memory" "write, fsync, rename" disk "training data" "validation data"; do
    check "$row is ok" is ok "$row"
done
check "nothing is not ok" rows_not_ok 0
check "all rows are counted" grep -qx "$(grep -cE '^\| [a-zA-Z].* \| (ok|-|NOT OK)  ' "$dir/table") checked, 0 not ok" "$dir/table"
check "the files are verified by their checksums" is ok "training data" "intact, by their checksums"
check "nothing is left behind" test ! -e "$dir/new"

if [ $on_gpu = 1 ]; then # the files and the script are looked at by code that the CPU trainer shares
    check "a build on this machine has the GPU's own code" no_row "device code"
    check "its memory errors are a row" grep -qE '^\| ECC +\| (ok|-) ' "$dir/table"
    check "a fault sets the exit code" doctor 1 -i "$dir/nothing.bin" -j "$dir/text_val.bin"
    check "it alone is not ok" rows_not_ok 1
    finish
    exit
fi

# a flipped bit in the middle of a data file, and a data file that is not there
cp "$dir/text_train.bin" "$dir/damaged.bin"
"$python" - "$dir/damaged.bin" <<'EOF'
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(70000)
    byte = f.read(1)[0]
    f.seek(70000)
    f.write(bytes([byte ^ 4]))
EOF
check "damaged data are found" doctor 1 -i "$dir/*d*.bin" -j "$dir/text_val.bin"
check "the damaged file is named" is "NOT OK" "training data" "damaged.bin: bytes 66560 to"
check "the fix is told" grep -q -- "-> a script in dev/data writes it" "$dir/table"
check "files beside it are ok" is ok "validation data"
check "only one row is not ok" rows_not_ok 1
check "a data file that is named must be there" doctor 1 -i "$dir/nothing.bin" -j "$dir/text_val.bin"
check "it is named" is "NOT OK" "training data" "nothing.bin"
truncate -s 5000 "$dir/damaged.bin"
check "a truncated file is found" doctor 1 -i "$dir/damaged.bin" -j "$dir/text_val.bin"

# folders that cannot be written to
check "a read-only folder is found" doctor 1 "${data[@]}" -o /proc
check "it is named" is "NOT OK" "write, fsync, rename" "/proc"
check "what was not written has no speed" no_row "writing speed"
full() { (ulimit -f 1024; doctor "$@"); }
check "a full disk is found" full 1 "${data[@]}" -o "$dir"
check "the row says so" is "NOT OK" "write, fsync, rename" "File too large"
check "its fix is told" grep -q -- "-> make room" "$dir/table"
check "no file is left" test -z "$(find "$dir" -name 'probe_*')"

# the script
# script CODE FLAG...: scripts/doctor.sh ends with the exit code; its table is in $dir/table
script() {
    scripts/doctor.sh "${@:2}" >"$dir/table" 2>&1
    local code=$?
    [ $code -eq "$1" ] && return 0
    echo "exit code $code:"
    cat "$dir/table"
    return 1
}
check "scripts/doctor.sh finds all that is needed" script 0 "${data[@]}" -o "$dir"
check "the compiler is ok" is ok "C compiler"
check "the trainer is ok" is ok trainer
without_compiler() { CC=/nowhere/cc script "$@"; }
check "scripts/doctor.sh fails without a compiler" without_compiler 1 "${data[@]}"
check "the compiler is named" is "NOT OK" "C compiler" /nowhere/cc
mkdir -p "$dir/old"
printf '#!/bin/sh\ncase $* in -c*) exit 1 ;; esac\necho "Python 3.8.18"\n' >"$dir/old/python3"
chmod +x "$dir/old/python3"
old_python() { PATH="$dir/old:$PATH" script "$@"; }
check "scripts/doctor.sh fails with an old Python" old_python 1 "${data[@]}" -o "$dir"
check "the Python is too old" is "NOT OK" python3 "too old"
printf '#!/bin/sh\nexec "$@"\n' >"$dir/ccache"
printf '#!/bin/sh\necho "release 13.0, V13.0.88"\n' >"$dir/nvcc"
chmod +x "$dir/ccache" "$dir/nvcc"
with_arguments() { CC="$dir/ccache $dir/nvcc" NVCC="$dir/ccache $dir/nvcc" script "$@"; }
check "compilers may have arguments" with_arguments 0 "${data[@]}" -o "$dir"
check "the C compiler is ok" is ok "C compiler"
check "so is its OpenMP" no_row OpenMP
check "nvcc is ok" is ok "CUDA Toolkit" 13.0
mkdir -p "$dir/tree/scripts"
cp scripts/doctor.sh "$dir/tree/scripts"
printf 'train_gpt2:\n\t@echo "an error of the compiler" >&2; exit 1\n' >"$dir/tree/Makefile"
unbuilt() { ! NVCC=/nowhere/nvcc "$dir/tree/scripts/doctor.sh" >"$dir/table" 2>&1; }
check "scripts/doctor.sh fails where the trainer does not compile" unbuilt
check "the trainer is named" is "NOT OK" trainer "is not built"
check "the compiler's errors are kept" grep -q "an error of the compiler" "$dir/tree/build/doctor.log"
rm -r "$dir/tree/build"
touch "$dir/tree/build" # a file where the folder should be: root may write everywhere else
check "scripts/doctor.sh fails in a folder that cannot be written to" unbuilt
check "it is named" grep -q -- "-> cannot write in $dir/tree: copy the project" "$dir/table"
table_alone() { ! grep -v -e "^[+|]" -e ^doctor: "$dir/table"; }
check "in a table alone" table_alone
check "scripts/doctor.sh fails where the trainer finds a fault" script 1 -i "$dir/damaged.bin" -o "$dir"

finish
