#!/usr/bin/env bash
# The record of tests on GPUs, dev/test/gpu_runs.csv: a row for each make test and make load that RECORD=1 asks for.
#
#     dev/test/record_run.sh ready TARGET                             can a row be written? If not, one line and exit code 1
#     dev/test/record_run.sh add PASSED FAILED SKIPPED SECONDS LOAD   appends it; LOAD is none, or seconds under load
#     dev/test/record_run.sh stale                                    warns where the GPU's code changed since the last row
#
# A commit with changes that are not committed is named with a +. Where there is no git, or a copy without its newest commits,
# name the commit: COMMIT=abc1234.
set -uo pipefail
cd "$(dirname "$0")/../.." || exit 1
record=dev/test/gpu_runs.csv
gpus() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null; }
commit() {
    local hash
    if [ -n "${COMMIT:-}" ]; then echo "$COMMIT"; return; fi
    hash=$(git rev-parse --short HEAD 2>/dev/null) || return
    [ -z "$(git status --porcelain --untracked-files=no -- . ":!$record")" ] || hash+=+
    echo "$hash"
}
# of an installed Python package, or none
version() {
    local python
    for python in python3 /usr/bin/python3; do
        "$python" -c 'import importlib.metadata as m, sys; print(m.version(sys.argv[1]))' "$1" 2>/dev/null && return
    done
    echo none
}

case ${1-} in
ready)
    case $2 in
    test | load) ;;
    *) echo "error: RECORD=1: make $2 has no row in $record, only make test and make load, of all their checks, have" >&2; exit 1 ;;
    esac
    [ -n "$(gpus name)" ] || { echo "error: RECORD=1: nvidia-smi lists no GPU here, and $record is of GPUs" >&2; exit 1; }
    [ -n "$(commit)" ] || { echo "error: RECORD=1: there is no git here; name the commit: COMMIT=abc1234" >&2; exit 1; }
    ;;
add)
    cuda=$(PATH=$PATH:/usr/local/cuda/bin nvcc --version 2>/dev/null | sed -n 's/.*release \([0-9.]*\).*/\1/p')
    echo "$(date +%F),$(commit),$(gpus name | head -n 1),$(gpus name | wc -l),$(gpus driver_version | head -n 1),${cuda:-none},$(
        version torch),$(version transformers),$2,$3,$4,$5,$6" >>$record
    echo "recorded: $(tail -n 1 $record)"
    ;;
stale)
    last=$(tail -n 1 $record | cut -d , -f 2)
    if [ "$last" = commit ]; then
        echo "warning: $record has no row: RECORD=1 make test, on a GPU" >&2
    elif ! git rev-parse -q --verify "${last%+}^{commit}" >/dev/null 2>&1; then
        echo "warning: $record: no commit $last here, so it is not known whether its last row is of this code" >&2
    elif ! git diff --quiet "${last%+}" -- '*.cu' '*.cuh' llmc dev/cuda ':!*.md' ':!*.csv'; then
        echo "warning: the GPU's code has changed since $last, the last row of $record: RECORD=1 make test, on a GPU" >&2
    fi
    ;;
*) echo "usage: see the head of $0" >&2; exit 1 ;;
esac
