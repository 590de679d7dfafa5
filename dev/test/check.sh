#!/usr/bin/env bash
# Runs one check of `make test`: dev/test/check.sh NAME COMMAND... Prints one line when it passes: its name, its last line and
# its time; all of its output, which is kept in build/checks/NAME.log, when it fails. A check that cannot run here says so in
# its last line, which then begins with 'skipped'; one that claims success with nothing tested fails, and so does one that is
# not done after CHECK_TIMEOUT seconds (300): it is ended with all processes of its group. What became of it, its seconds
# and its last line are in build/checks/NAME.result, for run_checks.sh.
set -uo pipefail
set -m # the check is a process group, and has the signals that a shell's background job would ignore
name=$1
shift
export XDG_CACHE_HOME=$PWD/build/cache # not the user's: runs remember how long their steps took
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # threads that spin hold up the other checks
limit=${CHECK_TIMEOUT:-300}
log=build/checks/$name.log
mkdir -p build/checks
begin=$EPOCHREALTIME
timeout -k 10 "$limit" "$@" >"$log" 2>&1 </dev/null &
trap 'kill $!; exit 130' INT TERM HUP # timeout ends the group
wait $! 2>/dev/null # bash would name a job that was killed
code=$?
microseconds=$((${EPOCHREALTIME/./} - ${begin/./}))
seconds=$((microseconds / 1000000)).$((microseconds / 100000 % 10))
if [[ $code = 124 || ($code = 137 && ${seconds%.*} -ge $limit) ]]; then # 137: what did not end by SIGTERM was killed
    printf '\nstill running after %s s, and ended; CHECK_TIMEOUT=SECONDS allows more\n' "$limit" >>"$log"
fi
last=$(tail -n 1 "$log")
case $code$last in
"00 passed, 0 failed"*) code=1; echo "nothing was tested" >>"$log" ;;
esac
case $code$last in
0skipped* | 0*": skipped"*) verdict=skipped ;;
0*) verdict=passed ;;
*) verdict=failed ;;
esac
echo "$verdict $seconds $last" >"build/checks/$name.result"
if [ $code -ne 0 ]; then
    cat "$log"
    echo "FAILED: $name (exit code $code, $seconds s)"
    exit 1
fi
printf '%-34s %6s s   %s\n' "$name" "$seconds" "$last"
