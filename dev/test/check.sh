#!/usr/bin/env bash
# Runs one check of `make test`: dev/test/check.sh NAME COMMAND... Prints one line when it passes: its name, its last line and
# its time; all of its output, which is kept in build/checks/NAME.log, when it fails. A check that cannot run here says so in
# its last line, which then begins with 'skipped'; one that claims success with nothing tested fails.
set -uo pipefail
name=$1
shift
export XDG_CACHE_HOME=$PWD/build/cache # not the user's: runs remember how long their steps took
export OMP_WAIT_POLICY=${OMP_WAIT_POLICY:-passive} # threads that spin hold up the other checks
log=build/checks/$name.log
mkdir -p build/checks
begin=$EPOCHREALTIME
"$@" >"$log" 2>&1
code=$?
microseconds=$((${EPOCHREALTIME/./} - ${begin/./}))
last=$(tail -n 1 "$log")
case $code$last in
"00 passed, 0 failed"*) code=1; echo "nothing was tested" >>"$log" ;;
esac
seconds=$((microseconds / 1000000)).$((microseconds / 100000 % 10))
if [ $code -ne 0 ]; then
    cat "$log"
    echo "FAILED: $name (exit code $code, $seconds s)"
    exit 1
fi
printf '%-34s %6s s   %s\n' "$name" "$seconds" "$last"
