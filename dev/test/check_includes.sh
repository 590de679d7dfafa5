#!/usr/bin/env bash
# Checks that includes only go down, programs -> dev/cuda -> llmc and between the rooms of llmc, and that each header of llmc
# compiles alone: .h with the C compiler, .cuh with nvcc where there is one. 30 s on two cores.
#
#     dev/test/check_includes.sh            checks; exit code 1 and a line for each fault
#     dev/test/check_includes.sh --graph    prints who includes whom, a line for each include, and the sums by room
#
# CC and NVCC name other compilers; NVCC= (empty) skips the .cuh files.
set -euo pipefail
case ${1-} in --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac
cd "$(dirname "$0")/../.."

nvcc=${NVCC-$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The sources: what git tracks, and what is new and not ignored. Outside of a checkout, what lies here.
sources() {
    { git ls-files -co --exclude-standard 2>/dev/null || find . -type f -not -path './build/*' | sed 's|^\./||'; } |
        grep -E '\.(c|h|cu|cuh)$' | sort -u | while read -r file; do [ ! -f "$file" ] || echo "$file"; done
}

# "file included" for each quoted include, by their paths from the root: next to the file, or from the root.
edges() {
    # shellcheck disable=SC2016 # awk's own
    sources | xargs awk '
        FNR == 1 { folder = FILENAME; if (!sub(/\/[^\/]*$/, "/", folder)) { folder = "" } }
        match($0, /^[ \t]*#[ \t]*include[ \t]*"[^"]+"/) {
            name = substr($0, RSTART, RLENGTH); sub(/^[^"]*"/, "", name); sub(/"$/, "", name)
            near = folder name
            while (sub(/[^\/]+\/\.\.\//, "", near)) { }
            if ((getline line < near) >= 0) { close(near); print FILENAME, near } else { print FILENAME, name }
        }'
}

# The rooms, each with those that it may include: itself, those named here, and llmc/base. The floor of dev/cuda, where the
# variants of attention lie and what holds all of them, may include every room; so may programs, tests and benches.
arrows='dev/cuda/decode: dev/cuda/attention dev/cuda/matmul dev/cuda/bench llmc/cuda llmc/model
dev/cuda/attention: dev/cuda/bench llmc/cuda llmc/model
dev/cuda/matmul: dev/cuda/bench llmc/cuda llmc/model
dev/cuda/bench: llmc/cuda
llmc/run: llmc/checkpoint llmc/files llmc/comm llmc/text llmc/model
llmc/checkpoint: llmc/files llmc/comm llmc/model
llmc/generate: llmc/files llmc/text llmc/model
llmc/exchange: llmc/cuda llmc/comm llmc/model
llmc/cpu: llmc/model
llmc/cuda: llmc/model
llmc/files: llmc/text llmc/model
llmc/comm:
llmc/model:
llmc/text:
llmc/base:'

# Adds to each edge both rooms, and whether the first may include the second.
rooms() {
    awk -v arrows="$arrows" '
        BEGIN { for (n = split(arrows, line, "\n"); n > 0; n--) {
                    split(line[n], part, ":"); known[part[1]] = 1; allowed[part[1], "llmc/base"] = 1
                    for (k = split(part[2], names, " "); k > 0; k--) { allowed[part[1], names[k]] = 1 } } }
        function room(f) {
            if (f ~ /^build\/.*_variants\.h$/) { sub(/^build/, "dev/cuda", f); sub(/_variants\.h$/, "", f); return f }
            if (f !~ /^(llmc|dev\/cuda)\//) { return "programs" }
            sub(/\/[^\/]*$/, "", f)
            return f
        }
        { a = room($1); b = room($2)
          down = a == "programs" || (a == "dev/cuda" && b != "programs") || (a in known && a == b) || ((a, b) in allowed)
          print $1, $2, a, b, down ? "down" : "up" }'
}

if [ "${1:-}" = --graph ]; then
    edges | rooms | awk '
        { printf "%-40s -> %s%s\n", $1, $2, $5 == "up" ? "   (UP)" : ""; sum[$3 " -> " $4 ($5 == "up" ? "   (must be 0)" : "")]++ }
        END { for (pair in sum) { printf "%4d  %s\n", sum[pair], pair | "sort -k2" } }'
    exit
fi
[ $# -eq 0 ] || { echo "error: $1: the only argument is --graph" >&2; exit 1; }

faults=$(edges | rooms | awk '$5 == "up" { print $1 " includes " $2 ": " $3 " is not above " $4 }')
printf '%s' "${faults:+$faults
}" >&2

# The header of "$1" alone in a file; prints what the compiler says.
export work nvcc CC=${CC:-cc}
# shellcheck disable=SC2016 # expanded by the inner shell
alone='header=$1
stub=$work/$(echo "$header" | tr / _).${header##*.}
case $header in
*.cuh)
    echo "#include \"$header\"" >"$stub.cu"
    "$nvcc" -std=c++17 -I. -arch=sm_90a -ptx $syntax_only -Werror all-warnings "$stub.cu" -o "$stub.ptx" ;;
*)
    echo "#include \"$header\"" >"$stub.c"
    $CC -std=c11 -D_GNU_SOURCE -fopenmp-simd -fsyntax-only -Wall -Wextra -Werror -I. "$stub.c" ;;
esac >"$stub.log" 2>&1 || { echo "$header does not compile alone:"; head -n 5 "$stub.log"; }'
syntax_only=
if [ -n "$nvcc" ] && "$nvcc" --help | grep -q fdevice-syntax-only; then syntax_only=--fdevice-syntax-only; fi
export syntax_only
headers=$(sources | grep -E "^llmc/.*\.(h${nvcc:+|cuh})$")
broken=$(echo "$headers" | xargs -P 2 -I{} bash -c "$alone" _ {})
[ -z "$broken" ] || echo "$broken" >&2
[ -n "$nvcc" ] || echo "check_includes.sh: no nvcc, the .cuh headers were not compiled"

[ -z "$faults$broken" ] || exit 1
echo "check_includes.sh: $(edges | wc -l) includes go down; $(echo "$headers" | wc -l) headers of llmc compile alone"
