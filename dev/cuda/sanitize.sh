#!/usr/bin/env bash
# compute-sanitizer's four tools over the contestants as built, on a small shape: two heads of 130 rows. Prints a line for
# each program and ends with exit code 1 if a tool found something.
#
#     make contestants && dev/cuda/sanitize.sh            all of them
#     dev/cuda/sanitize.sh mma wgmma                      these ideas
#
# About five seconds for each program and tool on an H200.
set -euo pipefail
cd "$(dirname "$0")/../.."

command -v compute-sanitizer >/dev/null || {
    echo "error: no compute-sanitizer found: it comes with the CUDA Toolkit" >&2
    exit 1
}
ideas=("$@")
if [ ${#ideas[@]} -eq 0 ]; then
    mapfile -t ideas < <(find dev/cuda -name 'attention_*.cu' | sed 's/.*ward_//; s/\.cu$//' | sort -u)
fi
log=$(mktemp)
trap 'rm -f "$log"' EXIT
failed=0
for idea in "${ideas[@]}"; do
    found=0
    for program in build/attention_*ward_"${idea}"_{bf16,fp32}; do
        [ -x "$program" ] || continue
        found=1
        line="$(basename "$program"):"
        for tool in memcheck racecheck initcheck synccheck; do
            if compute-sanitizer --tool $tool --error-exitcode 1 "$program" --check-only -b 1 -t 130 -h 2 -d 64 \
                >"$log" 2>&1; then
                line+=" $tool clean,"
            else
                line+=" $tool FAILED,"
                failed=1
                tail -n 20 "$log" >&2
            fi
        done
        echo "${line%,}"
    done
    [ $found -eq 1 ] || { echo "error: no program of $idea in build/: run make contestants" >&2; exit 1; }
done
exit $failed
