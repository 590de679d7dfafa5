#!/usr/bin/env bash
# Builds what the checks need, runs all of them, and sums up: make test and make test-long. None of them is held up by one that
# fails, hangs or does not build.
#
#     dev/test/run_checks.sh TARGET CHECK...     TARGET is what make is asked for, for the messages; CHECK its check-NAME
#
# Ends with the slowest checks, what was skipped and why, what failed and how to run it again, and a line of sums: of the
# 'N passed, N failed' of the checks, where one without such a line counts as one test. Exit code 1 where anything failed.
# From the Makefile: BUILD_JOBS and CHECK_JOBS at a time; ON_GPU, checks of which only GPU_JOBS run at a time, because processes
# that share a GPU wait for each other's time slices; ALONE, checks that run behind the others, one by one; NOT_HERE, lines
# about checks that this machine cannot run. With RECORD=1, a row of dev/test/gpu_runs.csv.
set -uo pipefail
target=$1
shift
make=${MAKE:-make}
slowest=15
export PYTHONDONTWRITEBYTECODE=1 # checks that copy folders would meet files that come and go
if [ -n "${RECORD:-}" ]; then dev/test/record_run.sh ready "$target" || exit 1; fi

checks=("$@")
mkdir -p build/checks
for check in "${checks[@]}"; do rm -f "build/checks/${check#check-}".{result,log}; done
build_failed=0
"$make" -s -k --no-print-directory -j"${BUILD_JOBS:-2}" test-programs CHECKS="${checks[*]}" || build_failed=1
echo "built in $SECONDS s"
beside=() on_gpu=() alone=()
for check in "${checks[@]}"; do
    name=${check#check-}
    if [[ " ${ALONE:-} " == *" $name "* ]]; then
        alone+=("$check")
    elif [[ " ${ON_GPU:-} " == *" $name "* ]]; then
        on_gpu+=("$check")
    else
        beside+=("$check")
    fi
done
run() { # JOBS CHECK...
    [ $# -gt 1 ] || return 0
    "$make" -s -k --no-print-directory -j"$1" --output-sync=target "${@:2}" 2>&1 |
        grep --line-buffered -vE '^make(\[[0-9]+\])?: (\*\*\* .*check-|Target .check-.* not remade)' # check.sh has said it
}
run "${GPU_JOBS:-3}" "${on_gpu[@]}" &
run "${CHECK_JOBS:-2}" "${beside[@]}"
wait
run 1 "${alone[@]}"

passed=0 failed=0 skipped=0
failures=() skips=() times=()
if [ -n "${NOT_HERE:-}" ]; then mapfile -t skips <<<"$NOT_HERE"; fi
skipped=${#skips[@]}
for check in "${checks[@]}"; do
    name=${check#check-}
    if ! read -r verdict seconds last 2>/dev/null <"build/checks/$name.result"; then
        failures+=("$name: what it needs did not build")
        failed=$((failed + 1))
        continue
    fi
    times+=("$seconds $name")
    here=0 # failures that its last line counts
    if [[ $last =~ ([0-9]+)\ passed,\ ([0-9]+)\ failed(,\ ([0-9]+)\ skipped)? ]]; then
        passed=$((passed + BASH_REMATCH[1])) here=${BASH_REMATCH[2]} skipped=$((skipped + ${BASH_REMATCH[4]:-0}))
    elif [ "$verdict" = passed ]; then
        passed=$((passed + 1))
    fi
    case $verdict in
    failed) failures+=("$name: $last") && failed=$((failed + (here > 0 ? here : 1))) ;;
    skipped) skipped=$((skipped + 1)) ;;
    esac
    while read -r line; do skips+=("$name: ${line#skipped: }"); done < <(
        grep -E '(^|[:,] )skipped\b|[0-9] skipped$' "build/checks/$name.log"
    )
done

echo
echo "the slowest of ${#times[@]} checks, in seconds:"
printf '%s\n' "${times[@]}" | sort -rn | head -n $slowest | awk '{ printf "    %-40s %6.1f\n", $2, $1 }'
if [ ${#skips[@]} -gt 0 ]; then
    echo "skipped:"
    printf '    %s\n' "${skips[@]}"
fi
if [ $build_failed -eq 1 ] && [ $failed -eq 0 ]; then
    failures+=("a program that make test-programs builds")
    failed=1
fi
if [ ${#failures[@]} -gt 0 ]; then
    echo "failed, their output is above and in build/checks/NAME.log:"
    printf '    %s\n' "${failures[@]}"
    echo "again: make test CHECKS='$(printf '%s\n' "${failures[@]%%:*}" | tr '\n' ' ' | sed 's/ $//')'"
fi
echo "make $target: $passed passed, $failed failed, $skipped skipped in $SECONDS s"
if [ -n "${RECORD:-}" ]; then dev/test/record_run.sh add "$passed" "$failed" "$skipped" "$SECONDS" none || exit 1; fi
[ $failed -eq 0 ]
