#!/bin/bash
# Compares the machine code (SASS) of two builds, kernel by kernel, so that a change of words can be shown to be one.
#
#     dev/test/compare_sass.sh before after [sm_90a]
#
# before and after are programs, cubins or shared libraries, or folders of them, of which those with the same names are
# compared. A kernel is found by its instructions, not by its name: so classes and kernels may have been renamed. Exit
# code 1 where a kernel of `before` is missing in `after`, or the other way round. KERNELS=wgmma limits the comparison
# to kernels whose mangled names match. Programs of another commit:
#
#     git worktree add ../before <commit> && make -C ../before GPU_ARCH=90 build/attention_backward_wgmma_bf16
#
# Needs cuobjdump and nvdisasm (CUDA Toolkit; from PyPI: nvidia-cuda-cuobjdump, nvidia-cuda-nvdisasm). Takes seconds.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac

[ $# -ge 2 ] || { sed -n '2,/^set/{/^#/p}' "$0" >&2; exit 1; }
before=$1 after=$2 arch=${3:-}
command -v cuobjdump > /dev/null || { echo "error: no cuobjdump on PATH: it comes with the CUDA Toolkit" >&2; exit 1; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# A line for each kernel of a file: architecture and hash of the instructions, mangled name.
kernels() {
    rm -rf "$work/bodies" && mkdir "$work/bodies"
    cuobjdump -sass ${arch:+-arch "$arch"} "$1" | awk -v folder="$work/bodies" -v wanted="${KERNELS:-}" '
        /^\tcode for/ { target = $3 }
        /Function :/ { if (file) close(file); file = ""; if ($3 ~ wanted) { file = folder "/" ++n; print target, $3 > (folder "/names") }; next }
        file && /\/\*/ { gsub(/[ \t]+/, " "); print > file } # columns depend on the longest line of the file'
    [ -f "$work/bodies/names" ] || return 0
    for n in $(seq "$(wc -l < "$work/bodies/names")"); do md5sum < "$work/bodies/$n" | cut -d ' ' -f 1; done |
        paste -d ' ' - "$work/bodies/names" | awk '{ print $2 "-" $1, $3 }' | sort
}

# Compares two files; prints one line, and one for each kernel without a counterpart.
compare() {
    kernels "$1" > "$work/1" || return 1
    kernels "$2" > "$work/2" || return 1
    # multisets: the nth kernel with a body is matched by the nth with the same body
    for side in 1 2; do awk '{ print $1 "-" ++seen[$1], $2 }' "$work/$side" | sort > "$work/$side.keys"; done
    local equal only1 only2
    equal=$(join "$work/1.keys" "$work/2.keys" | wc -l)
    only1=$(join -v 1 "$work/1.keys" "$work/2.keys" | awk '{ print "    only before: " $2 }')
    only2=$(join -v 2 "$work/1.keys" "$work/2.keys" | awk '{ print "    only after:  " $2 }')
    echo "$(basename "$2"): $equal kernels equal$([ -z "$only1$only2" ] || echo ', others differ')"
    if [ "$equal" = 0 ] && [ -z "$only1$only2" ]; then echo "    no kernel was found"; return 1; fi
    if [ -n "$only1" ]; then echo "$only1"; fi
    if [ -n "$only2" ]; then echo "$only2"; fi
    [ -z "$only1$only2" ]
}

status=0 compared=0
if [ -d "$before" ]; then
    for file in "$before"/*; do
        other=$after/$(basename "$file")
        if [ ! -f "$file" ] || [ ! -f "$other" ]; then continue; fi
        case $file in *.d | *.flags | *.txt) continue ;; esac
        compared=$((compared + 1))
        compare "$file" "$other" || status=1
    done
    [ "$compared" -gt 0 ] || { echo "error: $before and $after have no file in common" >&2; exit 1; }
else
    compare "$before" "$after" || status=1
fi
exit $status
