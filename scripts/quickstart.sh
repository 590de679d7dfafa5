#!/bin/sh
# From a fresh clone to a GPT-2 that has learned to write: builds, gets text, trains a small model on its bytes, and
# prompts it. The model, its text and the whole log are kept in build/quickstart; a model of an earlier run there stays, too.
#
# Costs: with a GPU about 40 seconds, most of them compilation, 0.5 GB of memory and 161 MiB of disk; on two CPU cores about 41
# seconds, 288 MiB of memory and 14 MiB of disk.
# Needs: a C compiler, make, bash and python3, all without packages; for a GPU, the CUDA Toolkit. On Debian and Ubuntu what
# is missing is installed, as root or by a sudo that asks no password; NO_INSTALL=1 only names it.
# Text: TinyShakespeare, from the folder that DATA_MIRROR names or by download; with neither, this project's own sources.
set -eu
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac

fail() {
    echo "error: $*" >&2
    exit 1
}

[ $# = 0 ] || fail "$1: quickstart.sh takes no arguments but --help, which says what DATA_MIRROR and NO_INSTALL do"
if [ -n "${DATA_MIRROR:-}" ]; then # relative to where the user is
    [ -d "$DATA_MIRROR" ] || fail "DATA_MIRROR=$DATA_MIRROR: no such folder; name one that holds input.txt, or leave it out"
    DATA_MIRROR=$(CDPATH='' cd "$DATA_MIRROR" && pwd)
    export DATA_MIRROR
fi
cd "$(dirname "$0")/.."
dir=build/quickstart
if ! { mkdir -p $dir && touch $dir/install.log train_gpt2.tmp && rm train_gpt2.tmp; } 2>/dev/null; then
    fail "cannot write in $PWD: copy the project to a folder that you may write in"
fi
exec 9<$dir/install.log # what this script starts inherits the lock; without locks on this file system it goes on
flock -n 9 2>/dev/null || [ $? != 1 ] || fail "another quickstart.sh runs in $PWD: wait for it, or copy the project"
rm -f $dir/failed

# ----------------------------------------------------------------------------
# 0. What is missing

# A C compiler without the headers of libc, or a python3 without its library, does not serve.
compiles() { printf '#include <math.h>\n#include <stdio.h>\n#include <pthread.h>\nint main(void) { return 0; }\n' |
    "$@" -x c -o $dir/compiles - -lm -lpthread >/dev/null 2>&1; }
find_missing() { # as Debian's packages
    missing=
    # shellcheck disable=SC2086 # a command and its arguments, as in the Makefile
    set -- ${CC:-cc}
    if ! command -v "$1" >/dev/null; then missing="gcc libc6-dev"; elif ! compiles "$@"; then missing=libc6-dev; fi
    command -v make >/dev/null || missing="$missing make"
    command -v bash >/dev/null || missing="$missing bash"
    python3 -c 'import argparse, hashlib, json, multiprocessing, ssl, urllib.request' >/dev/null 2>&1 || missing="$missing python3"
    missing=${missing# }
}
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
may_install() {
    [ "${NO_INSTALL:-0}" = 0 ] && command -v apt-get >/dev/null || return 1
    [ "$(id -u)" = 0 ] || { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }
}
install_missing() {
    echo "== apt-get install $missing"
    # ca-certificates: for the download of the text
    # shellcheck disable=SC2086 # a list of words
    { as_root apt-get update && as_root env DEBIAN_FRONTEND=noninteractive \
        apt-get install -y --no-install-recommends $missing ca-certificates; } </dev/null >$dir/install.log 2>&1 ||
        fail "apt-get could not install $missing: $(grep '^E:' $dir/install.log | head -n 1); all of it is in $dir/install.log"
}
find_missing
if [ -n "$missing" ]; then
    if ! may_install; then
        if command -v apt-get >/dev/null; then way="sudo apt-get install $missing"; else way="install them with your system's package manager"; fi
        fail "missing: $missing. To get it: $way"
    fi
    install_missing
    find_missing
    [ -z "$missing" ] || fail "still missing: $missing. apt-get installed what it could; see $dir/install.log"
fi
python3 -c 'import sys; sys.exit(sys.version_info < (3, 9))' || fail "$(python3 --version) is too old: put 3.9 or newer on the PATH as python3"

# ----------------------------------------------------------------------------
# 1. Build

if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then gpu=1; else gpu=0; fi
nvcc=${NVCC-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)} # as in the Makefile
if [ $gpu = 1 ] && [ -z "$nvcc" ]; then
    echo "There is a GPU but no nvcc: training on the CPU. With the CUDA Toolkit installed, the GPU would be used."
    gpu=0
fi
if [ $gpu = 1 ]; then trainer=train_gpt2cu; else trainer=train_gpt2; fi
jobs=$(getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
tick() { # says how long it has been, until the script ends: in a line that is overwritten, elsewhere every 15 seconds
    seconds=0
    while kill -0 $$ 2>/dev/null && sleep 1 >/dev/null 9>&-; do
        seconds=$((seconds + 1))
        if [ -t 1 ]; then
            printf '\r   compiling for %d s' $seconds
        elif [ $((seconds % 15)) = 0 ]; then
            echo "   compiling for $seconds s"
        fi
    done
}
echo "== make $trainer generate_gpt2: compiles the trainer and what prompts its model, about half a minute"
tick &
ticker=$!
make -s -j "$jobs" $trainer generate_gpt2 >$dir/make.log 2>&1 || touch $dir/failed
kill $ticker
wait $ticker 2>/dev/null || :
[ ! -t 1 ] || printf '\r\033[K'
if [ -e $dir/failed ]; then
    tail -n 20 $dir/make.log >&2
    fail "make $trainer generate_gpt2 failed; all it said is in $dir/make.log"
fi

# ----------------------------------------------------------------------------
# 2. Text

data=$dir/tiny_shakespeare_bytes
prompt="The king"
echo "== text: TinyShakespeare"
if [ -e ${data}_train.bin ]; then
    echo "${data}_train.bin is there already"
elif python3 dev/data/tinyshakespeare.py --tokenizer bytes --output $dir >$dir/text.log 2>&1; then
    cat $dir/text.log
else
    why=$(sed -n 's/; --mirror .*//; s/^error: //p' $dir/text.log)
    echo "note: ${why:-it cannot be had here}. The model learns this project's own sources instead, and writes code."
    echo "For Shakespeare, run this again with a network, or with DATA_MIRROR=FOLDER where FOLDER holds input.txt."
    data=$dir/sources
    prompt="static inline "
    python3 dev/data/text.py --tokenizer bytes --output $data README.md Makefile llmc dev ./*.c ./*.cu
fi

# ----------------------------------------------------------------------------
# 3. Train; every hundredth step is shown

if [ -n "$(ls $dir/model/model_*.bin 2>/dev/null)" ]; then # of an earlier run
    n=1
    while [ -e $dir/model.$n ]; do n=$((n + 1)); done
    mv $dir/model $dir/model.$n
    if [ -e $dir/train.log ]; then mv $dir/train.log $dir/model.$n; fi
    echo "note: the model of the run before stays, with its log, in $dir/model.$n"
fi
echo "== ./$trainer, in full in $dir/train.log"
export OMP_WAIT_POLICY=passive # threads that spin while they wait slow a busy machine down
rm -rf $dir/model $dir/trainer
set -- -i ${data}_train.bin -j ${data}_val.bin -o $dir/model -u 100 -q 0.1 -c 0.1 -s 0
if [ $gpu = 1 ]; then
    set -- "$@" -e gpt2:l6c384h6t256 -b 64 -t 256 -x 900 -l 1e-3 -v 150 -m 1 -n 900
    checkpoint=$dir/model/model_00000900.bin
else
    set -- "$@" -e gpt2:l4c128h4t64 -b 16 -t 64 -x 1500 -l 2e-3 -v 250 -m 16 -n 1500
    checkpoint=$dir/model/model_00001500.bin
fi
{
    trap : INT TERM HUP # where the whole process group gets a signal, the trainer is waited for below
    ./$trainer "$@" &
    echo $! >$dir/trainer
    wait $! || : >$dir/failed
} 2>&1 | { # reads until the trainer has ended, whatever the signal
    trap '' INT TERM HUP
    tee $dir/train.log | grep --line-buffered -E '^(val loss|step +([0-9]*00)/|error:)'
} &
# A signal to this script is passed on to the trainer, which then saves its model.
trap 'kill "$(cat $dir/trainer)" 2>/dev/null; wait; fail "stopped by a signal; see $dir/train.log"' INT TERM HUP
wait $! || :
trap - INT TERM HUP
[ ! -e $dir/failed ] || fail "./$trainer failed; see $dir/train.log"
sed -n '/^total average/p' $dir/train.log

# ----------------------------------------------------------------------------
# 4. Prompt it

echo "== ./generate_gpt2 -e $dir/model --prompt \"$prompt\" --overflow slide"
./generate_gpt2 -e $dir/model --prompt "$prompt" --overflow slide --tokens 400 --top-k 40 --quiet ||
    fail "./generate_gpt2 failed on $checkpoint"

echo
echo "The model is $checkpoint. Prompt it yourself, line by line:"
echo "  ./generate_gpt2 -e $dir/model --interactive"
echo "See how it went, in a browser:"
echo "  scripts/plot_run.py $dir/model $dir/train.log --html $dir/report.html"
echo "Next, on text of your own:"
echo "  python3 dev/data/text.py --tokenizer bytes --output log_mine/text FILES && ./$trainer -e $checkpoint \\"
echo "      -i log_mine/text_train.bin -j log_mine/text_val.bin -b 16 -t 64 -x 500 -l 5e-4 -n 500 -o log_mine"
