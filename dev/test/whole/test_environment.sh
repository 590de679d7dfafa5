#!/usr/bin/env bash
# A run's environment never makes it silently wrong: with small stacks it computes the same bits.
#
#     dev/test/whole/test_environment.sh ./train_gpt2
#
# Takes some seconds; writes in $TMPDIR.
cd "$(dirname "$0")/../../.." || exit 1
. dev/test/fixtures/unit.sh
trainer=$1
write_text
export OMP_NUM_THREADS=2

# Three steps and a checkpoint; $dir/losses has the losses and the weights
run() {
    rm -rf "$dir/run"
    "$trainer" -i "$dir/text_train.bin" -j "$dir/text_val.bin" -e gpt2:l2c64h2t64 -b 2 -t 64 -x 3 -n 2 -v 3 -m 1 -s 0 -o "$dir/run" \
        >"$dir/log" 2>&1
    code=$?
    { grep "^s:" "$dir/run/main.log" && cat "$dir/run/model_00000003.bin"; } >"$dir/losses" 2>/dev/null
    return $code
}
same_bits() { run && cmp -s "$dir/losses" "$dir/expected"; }
stack() { (ulimit -s "$1" && "${@:2}"); } # KiB; in a shell of its own, which could not raise it again

check "a run with the default stacks" run
cp "$dir/losses" "$dir/expected"
for kib in 200 300 512 900 unlimited; do
    if ! (ulimit -s $kib) 2>/dev/null; then
        echo "ulimit -s $kib: skipped, the hard limit is $(ulimit -Hs)"
        skipped=$((skipped + 1))
        continue
    fi
    check "ulimit -s $kib: the same bits" stack $kib same_bits
done
for size in 16k 32k 64k 200k 1M; do OMP_STACKSIZE=$size check "OMP_STACKSIZE=$size: the same bits" same_bits; done

# Built for a processor that this one is not: XOP is in AMD's of 2011 to 2017 alone, AVX-512 in many
if [ "$(uname -m)" = x86_64 ]; then
    lacks() { # FLAG NAME
        grep -qw "$2" /proc/cpuinfo && return 0
        ${CC:-cc} -std=c11 -D_GNU_SOURCE -O2 -march=native "$1" -I. tokenize_gpt2.c -o "$dir/foreign" -lm -lpthread || return 1
        "$dir/foreign" encode <README.md >"$dir/out" 2>"$dir/log"
        [ $? -eq 1 ] && [ ! -s "$dir/out" ] && [ "$(wc -l <"$dir/log")" -eq 1 ] && grep -q "^error: this processor lacks $2" "$dir/log"
    }
    check "a program built for XOP" lacks -mxop "fma4\|xop"
    check "a program built for AVX-512" lacks -mavx512f avx512f
else
    skipped=$((skipped + 2))
fi

# Threads that wait sleep soon, unless the user has chosen: what OpenMP says of its settings (GNU's alone knows the second)
last_setting() { env -u GOMP_SPINCOUNT OMP_DISPLAY_ENV=verbose "${@:2}" "$trainer" --help 2>&1 | grep " $1 = " | tail -n 1; }
if last_setting GOMP_SPINCOUNT env | grep -q .; then
    brief() { last_setting GOMP_SPINCOUNT env -u OMP_WAIT_POLICY | grep -q "'1000'"; }
    check "threads spin briefly" brief
    chosen() { last_setting OMP_WAIT_POLICY env OMP_WAIT_POLICY=active | grep -q "'ACTIVE'"; }
    check "OMP_WAIT_POLICY of the user stays" chosen
else
    skipped=$((skipped + 2))
fi
finish
