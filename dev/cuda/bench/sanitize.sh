#!/usr/bin/env bash
# compute-sanitizer's four tools over the variants as built, on small shapes: two heads of 130 rows, and for mma and wgmma
# two of 400, in which every stage of their pipelines comes again, with heads of 64, 96 and 128. Prints a line for each
# program and shape and ends with exit code 1 if a tool found something. racecheck sees a build of wgmma of its own, which
# make builds here: hopper.cuh says why. Decode takes three sequences of up to 600 tokens, several chunks; split also 400.
# flash1, whose GEMMs read every operand from shared memory, takes 66 rows of 32 channels: racecheck had not ended after
# 330 s with 130 of 64.
# A variant of matmul takes all its groups at one shape, and wgmma at one in which its pipeline's stages come again.
#
#     make variants && dev/cuda/bench/sanitize.sh            all of them
#     dev/cuda/bench/sanitize.sh mma wgmma                   these variants, of attention and of matmul
#     QUICK=1 dev/cuda/bench/sanitize.sh wgmma               one precision; of these shapes those of 400 rows, as in make test
#
# memcheck, racecheck and synccheck watch the variant's own kernels (of cublaslt those of llmc), initcheck the bench's too,
# for it must see who writes the inputs. The four tools run side by side. A tool that is not done after LIMIT seconds (300)
# counts as failed.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
limit=${LIMIT:-300}
cd "$(dirname "$0")/../../.."
PATH=$PATH:/usr/local/cuda/bin

command -v compute-sanitizer >/dev/null || {
    echo "error: no compute-sanitizer found: it comes with the CUDA Toolkit" >&2
    exit 1
}
variants=("$@")
if [ ${#variants[@]} -eq 0 ]; then
    mapfile -t variants < <(find dev/cuda -name 'attention_*_*.cu' -o -name 'matmul_*.cu' |
        sed 's/.*\(ward\|decode\|matmul\)_//; s/\.cu$//' | sort -u)
fi
tools=(memcheck racecheck initcheck synccheck)
logs=$(mktemp -d)
jobs=()
# shellcheck disable=SC2317 # the trap calls it
stop() { # a tool would outlive this script
    if [ ${#jobs[@]} -gt 0 ]; then kill "${jobs[@]}" 2>/dev/null || true; fi
    rm -rf "$logs"
}
trap stop EXIT
trap 'exit 1' INT TERM
failed=0

check() { # program, shape
    local tool n code line sizes checked watched kernels=$variant
    case $variant in cublaslt*) kernels=_kernel ;; *_wgmma) kernels=wgmma ;; esac # llmc's, and the GEMM's namespace
    jobs=()
    read -ra sizes <<<"$2"
    for tool in "${tools[@]}"; do
        checked=$1
        if [ "$tool" = racecheck ] && [ -x "build/racecheck_$(basename "$1")" ]; then
            checked=build/racecheck_$(basename "$1")
        fi
        watched=(--kernel-name "kns=$kernels")
        if [ "$tool" = initcheck ]; then watched=(); fi
        timeout "$limit" compute-sanitizer --tool "$tool" "${watched[@]}" --error-exitcode 1 \
            "$checked" --check-only "${sizes[@]}" >"$logs/$tool" 2>&1 &
        jobs+=($!)
    done
    line="$(basename "$1") $2:"
    for n in "${!tools[@]}"; do
        code=0
        wait "${jobs[n]}" || code=$?
        case $code in
        0) line+=" ${tools[n]} clean," ;;
        124) line+=" ${tools[n]} NOT DONE in $limit s,"; failed=1 ;;
        *) line+=" ${tools[n]} FAILED,"; failed=1; tail -n 20 "$logs/${tools[n]}" >&2 ;;
        esac
    done
    jobs=()
    echo "${line%,}"
}

for variant in "${variants[@]}"; do
    found=0
    precisions=(bf16 fp32)
    if [ -n "${QUICK:-}" ] && [ "$variant" = flash2 ]; then precisions=(fp32); fi # what trains in it
    for program in $(printf "build/attention_*_${variant}_%s " "${precisions[@]}") \
        $(printf "build/matmul_${variant}_%s " "${precisions[@]}"); do
        [ -x "$program" ] || continue
        found=1
        shapes=("-b 1 -h 2 -t 130 -d 64")
        case $program in
        */attention_decode_*)
            shapes=("-b 3 -h 2 -t 600 -d 64" "-b 3 -h 2 -t 600 -d 96")
            # three chunks a CTA of 132 SMs, of which the second may be of a sequence that takes no part
            if [ "$variant" = split ]; then shapes+=("-b 400 -h 1 -t 600 -d 64"); fi
            ;;
        */matmul_*wgmma_*) shapes=("-r 400 -i 392 -o 456") ;;
        */matmul_*) shapes=("-r 130 -i 64 -o 136") ;;
        */attention_*_flash1_*) shapes=("-b 1 -h 2 -t 66 -d 32") ;;
        */attention_*_mma_* | */attention_*_wgmma_*)
            shapes+=("-b 1 -h 2 -t 400 -d 64" "-b 1 -h 2 -t 400 -d 96" "-b 1 -h 2 -t 400 -d 128")
            if [ -n "${QUICK:-}" ]; then shapes=("${shapes[@]:1}"); fi
            ;;
        esac
        case $variant in *wgmma) make -s "build/racecheck_$(basename "$program")" ;; esac
        for shape in "${shapes[@]}"; do check "$program" "$shape"; done
    done
    [ $found -eq 1 ] || { echo "error: no program of $variant in build/: run make variants" >&2; exit 1; }
done
exit $failed
