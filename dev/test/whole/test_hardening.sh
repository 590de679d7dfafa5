#!/usr/bin/env bash
# Checks how programs and libraries were linked: position-independent, relocations read-only after start (full RELRO), a
# stack that is not executable, guarded stacks and checked libc calls. First it builds small programs that lack one of
# these each, to see that they are told. Takes two seconds.
#
#     dev/test/whole/test_hardening.sh train_gpt2 test_gpt2 libattention.so
set -uo pipefail
[ $# -gt 0 ] || { echo "usage: $0 program..." >&2; exit 1; }
command -v readelf >/dev/null || { echo "test_hardening.sh: skipped, there is no readelf (Debian: binutils)"; exit 0; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0

# faults_of FILE: what is missing, one word each
faults_of() {
    local header segments dynamic symbols
    header=$(LC_ALL=C readelf -hW "$1") || { echo unreadable; return; }
    segments=$(LC_ALL=C readelf -lW "$1")
    dynamic=$(LC_ALL=C readelf -dW "$1")
    symbols=$(LC_ALL=C readelf -W --dyn-syms "$1")
    grep -q 'Type: *DYN' <<<"$header" || echo PIE
    grep -q 'GNU_RELRO' <<<"$segments" || echo RELRO
    grep -qE 'BIND_NOW|FLAGS_1.*NOW' <<<"$dynamic" || echo BIND_NOW
    grep 'GNU_STACK' <<<"$segments" | grep -q ' RW ' || echo NX
    grep -q '__stack_chk_fail' <<<"$symbols" || echo STACK_PROTECTOR
    grep -qE '__[a-z]+_chk@' <<<"$symbols" || echo FORTIFY
}

# check NAME EXPECTED FILE
check() {
    local faults
    faults=$(faults_of "$3" | tr '\n' ' ')
    if [ "$faults" = "$2" ]; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $1: lacks '$faults', expected '$2'"
    fi
}

cat >"$dir/small.c" <<'END'
#include <stdio.h>
#include <string.h>
int main(int argc, char** argv) {
    char text[64];
    snprintf(text, (size_t)argc + 8, "%s", argv[0]);
    return puts(text) < 0;
}
END
flags=(-O2 -fPIE -pie -fstack-protector-strong -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2 "-Wl,-z,relro,-z,now"
    "-Wl,-z,noexecstack")
read -ra cc <<<"${CC:-cc}" # with its arguments
# planted EXPECTED FLAG...: a program whose flags take one thing away lacks just that
planted() {
    local expected=$1
    shift
    if "${cc[@]}" "${flags[@]}" "$@" "$dir/small.c" -o "$dir/small" 2>"$dir/errors"; then
        check "a program built with ${*:-all flags}" "$expected" "$dir/small"
    else
        failed=$((failed + 1))
        cat "$dir/errors"
    fi
}
planted ""
planted "PIE " -fno-pie -no-pie
planted "RELRO " -Wl,-z,norelro
planted "BIND_NOW " -Wl,-z,lazy
planted "NX " -Wl,-z,execstack
planted "STACK_PROTECTOR " -fno-stack-protector
planted "FORTIFY " -U_FORTIFY_SOURCE

for file in "$@"; do check "$file" "" "$file"; done
echo "$passed passed, $failed failed"
[ "$failed" -eq 0 ]
