#!/usr/bin/env bash
# Plants faults: applies each of dev/test/planted_faults.txt to a copy of the sources, runs the check that must refuse it, and
# fails where it passes. So each check of `make test` is known to catch what it is there for.
#
#     dev/test/planted_faults.sh              those of the CPU and, where there is a GPU, those of the GPU
#     dev/test/planted_faults.sh --cpu        these alone; --gpu likewise
#     dev/test/planted_faults.sh -j 16        so many at a time; default: one for each core
#     dev/test/planted_faults.sh mask_ gelu_  whose names begin so
#
# First every check runs on the sources as they are: one that fails there refuses nothing. Prints a row for each fault and ends
# in 'N passed, N failed': a fault that is not refused, no longer applies or does not compile has failed.
#
# Takes over an hour on two cores for the CPU, 8 minutes on 16 cores and an H200 for the GPU; 0.5 GB of disk for each job.
set -uo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.." || exit 1
table=$PWD/dev/test/planted_faults.txt

# plant NAME WHERE CHECK FILE EXPRESSION, in a copy of the tree of this job's own; prints a row
plant() {
    local name=$1 where=$2 check=$3 file=$4 expression=$5 tree=$PLANTED/job$PLANTED_JOB verdict code
    if grep -q "^FAILED: $check " "$PLANTED/baseline"; then
        printf '%-34s %-5s %-32s %s\n' "$name" "$where" "$check" "ITS CHECK FAILS WITHOUT IT"
        return
    fi
    [ -d "$tree" ] || cp -a "$PLANTED/sources" "$tree"
    cp "$tree/$file" "$tree/unplanted"
    sed -i "$expression" "$tree/$file" 2>"$tree/log"
    if cmp -s "$tree/$file" "$tree/unplanted"; then
        verdict="NO LONGER APPLIES"
    else
        make -s -C "$tree" "check-$check" WERROR= >"$tree/log" 2>&1
        code=$?
        if grep -q "^FAILED: $check " "$tree/log"; then
            verdict=refused
        elif [ $code -eq 0 ]; then
            verdict="NOT REFUSED"
        else
            verdict="DOES NOT COMPILE"
        fi
    fi
    cp "$tree/unplanted" "$tree/$file" # newer than what was built with the fault
    printf '%-34s %-5s %-32s %s\n' "$name" "$where" "$check" "$verdict"
    [ "$verdict" != refused ] || return 0
    tail -n 5 "$tree/log" | sed 's/^/    /'
    return 0
}

if [ "${1-}" = --plant ]; then # a job of xargs
    shift
    plant "$@"
    exit
fi

jobs=$(nproc)
places=
names=()
while [ $# -gt 0 ]; do
    case $1 in
    --cpu) places+=" cpu" ;;
    --gpu) places+=" bf16 fp32" ;;
    -j) jobs=${2:?-j needs a number}; shift ;;
    -*) echo "error: $1: no such option; $0 --help lists them" >&2; exit 1 ;;
    *) names+=("$1") ;;
    esac
    shift
done
if [ -z "$places" ]; then
    places=cpu
    if nvidia-smi -L 2>/dev/null | grep -q '^GPU'; then
        places+=" bf16 fp32"
    else
        echo "no GPU: its faults are not planted"
    fi
fi

# The faults asked for, as five arguments each, ended by NUL
chosen() { # name
    [ ${#names[@]} -eq 0 ] && return 0
    local prefix
    for prefix in "${names[@]}"; do [[ $1 == "$prefix"* ]] && return 0; done
    return 1
}
PLANTED=$(mktemp -d)
export PLANTED
trap 'rm -rf "$PLANTED"' EXIT
checks=()
while read -r name where check file expression; do
    case $name in '' | \#*) continue ;; esac
    chosen "$name" || continue
    for place in ${where//,/ }; do
        case " $places " in *" $place "*) ;; *) continue ;; esac
        printf '%s\0' "$name" "$place" "${check//%/$place}" "$file" "$expression" >>"$PLANTED/faults"
        checks+=("check-${check//%/$place}")
    done
done <"$table"
[ ${#checks[@]} -gt 0 ] || { echo "error: no such faults in $table" >&2; exit 1; }

mkdir "$PLANTED/sources"
tar c --exclude=./.git --exclude=./build --exclude='*.so' . | tar x -C "$PLANTED/sources"
mapfile -t unique < <(printf '%s\n' "${checks[@]}" | sort -u)
echo "the checks on the sources as they are:"
make -s -k -C "$PLANTED/sources" WERROR= -j "$jobs" --output-sync=target "${unique[@]}" 2>&1 | tee "$PLANTED/baseline"

export OMP_NUM_THREADS=2 OMP_WAIT_POLICY=passive
xargs -0 -n 5 -P "$jobs" --process-slot-var=PLANTED_JOB "$0" --plant <"$PLANTED/faults" | tee "$PLANTED/rows"
passed=$(grep -c ' refused$' "$PLANTED/rows")
echo "$passed passed, $((${#checks[@]} - passed)) failed"
[ "$passed" -eq ${#checks[@]} ]
