#!/usr/bin/env bash
# What the benches print of a GPU before a race: what it reaches in both modes and, where its energy is known, pJ/FLOP. Takes
# half a minute on a GPU; writes to a temporary folder only.
#
#     dev/test/whole/test_bench_run.sh build/attention_forward_mma_bf16 build/attention_decode_split_bf16
[ $# -eq 2 ] || { echo "usage: $0 ATTENTION DECODE" >&2; exit 1; }
. dev/test/fixtures/unit.sh
# race PROGRAM FLAG...: a race of every configuration ends; $dir/out is what it prints
race() {
    "$@" --no-sweep >"$dir/out" 2>"$dir/err" && return 0
    cat "$dir/err"
    return 1
}
# says REGULAR_EXPRESSION: it prints such a line
says() {
    grep -qE -- "^$1\$" "$dir/out" && return 0
    head -n 3 "$dir/out"
    return 1
}
number='[0-9]+\.[0-9]+'
energy_of_rows() { awk -F, '{ if (NR == 1) { while (++i <= NF) { at[$i] = i } } else if ($at["mj"] > 0) { n++ } } END { exit n == 0 }' "$1"; }

check "attention races" race "$1" -b 2 -t 512 --csv "$dir/board.csv"
energy=" at $number pJ/FLOP"
energy_of_rows "$dir/board.csv" || { energy='' skipped=1; echo "this GPU's energy is not known"; }
check "a GEMM is timed in both modes" says "GEMM 8192\^3, bf16, .+: rested $number TFLOP/s steady $number TFLOP/s$energy"
check "in one mode where one is asked for" race "$1" -b 2 -t 512 --mode steady
check "which alone it prints" says "GEMM 8192\^3, bf16, .+: steady $number TFLOP/s$energy"
check "decoding races" race "$2" -b 2 -t 512
energy=${energy:+" at $number pJ/byte"}
check "memory is read in both modes" says "reading (1\.9|2\.0) GB, .+: rested $number GB/s steady $number GB/s$energy"
finish
