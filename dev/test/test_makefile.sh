#!/usr/bin/env bash
# The Makefile with an nvcc that only writes down what it was called for: every CUDA program is compiled once, in a precision
# that exists, again when its source or its flags change, and not otherwise; what is installed can be removed. 10 s, no GPU.
set -uo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
python=$(command -v python3 || command -v python) || { echo "error: no python3 found" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0
unset MAKEFLAGS MFLAGS MAKELEVEL PRECISION GPU_ARCH ATTENTION_FORWARD ATTENTION_BACKWARD DESTDIR PREFIX

mkdir -p "$dir/tree/dev"
cp -r "$root"/Makefile "$root"/*.c "$root"/*.cu "$dir/tree"
cp -r "$root"/dev/cuda "$root"/dev/test "$root"/dev/bench "$dir/tree/dev"
cd "$dir/tree" || exit 1
calls=$dir/calls
cat >"$dir/nvcc" <<'EOF'
#!/usr/bin/env bash
[ "${1:-}" = --version ] && { echo "Cuda compilation tools, release ${FAKE_RELEASE:-13.0}, V13.0.88"; exit 0; }
echo "$*" >>"$CALLS"
[ -n "${FAKE_MESSAGE:-}" ] && echo "$FAKE_MESSAGE" >&2
while [ $# -gt 0 ]; do
    case $1 in
    -o) output=$2 ;;
    -MF) dependencies=$2 ;;
    -MT) target=$2 ;;
    *.cu) source=$1 ;;
    esac
    shift
done
echo "$CALLS $output" >"$output"
[ -z "${dependencies:-}" ] || echo "$target: $source" >"$dependencies"
EOF
chmod +x "$dir/nvcc"
export CALLS=$calls
run_make() { : >"$calls"; make -s NVCC="$dir/nvcc" GPU_ARCH=90 gpu= "$@" >"$dir/out" 2>"$dir/err"; }
precisions() { grep -o 'PRECISION_[^ ]*' "$calls" | sort -u | tr '\n' ' '; }
number_of_calls() { wc -l <"$calls"; }

# check NAME COMMAND...: the command must succeed
check() {
    local name=$1
    shift
    if "$@"; then
        passed=$((passed + 1))
    else
        failed=$((failed + 1))
        echo "FAILED: $name"
        tail -n 3 "$dir/err" "$calls"
    fi
}
is() { [ "$1" = "$2" ] || { echo "'$1', expected '$2'"; return 1; }; }
# refuses TEXT ARGUMENT...: make ends with an error that has TEXT in it
refuses() {
    local text=$1
    shift
    ! run_make "$@" && grep -qF -- "$text" "$dir/err"
}

check "make cuda builds" run_make cuda
check "in precisions that exist" is "$(precisions)" "PRECISION_BF16 PRECISION_FP16 PRECISION_FP32 "
# the same program under another name would differ in its -o, -MF and -MT only
same_program() { sed -E 's/ -(o|MF|MT) [^ ]*//g' "$calls" | sort | uniq -d; }
check "and none twice" is "$(same_program)" ""
check "dependencies let go of headers that are removed" is "$(grep -e -MMD "$calls" | grep -vc -e -MP)" 0
check "a second make cuda has nothing to do" run_make cuda
check "and compiles nothing" is "$(number_of_calls)" 0

touch test_gpt2.cu
check "build/test_gpt2cu_bf16 is built again after its source" run_make build/test_gpt2cu_bf16
check "by one compilation and a link, in bf16" is "$(number_of_calls) $(precisions)" "2 PRECISION_BF16 "
# as an earlier Makefile wrote them, when a program was compiled and linked by one call
echo "build/test_gpt2cu_bf16: test_gpt2.cu" >build/test_gpt2cu_bf16.d
touch test_gpt2.cu
linked() { run_make build/test_gpt2cu_bf16 && tail -n 1 "$calls" | grep -oE '[^ ]+\.(cu|o)\b' | tr '\n' ' '; }
check "dependencies of an earlier build are not linked" is "$(linked)" \
    "build/test_gpt2cu_bf16.o build/attention_bf16.o build/matmul_bf16.o "
rm build/test_gpt2cu_bf16.d
check "test_gpt2cu follows" run_make test_gpt2cu
check "without compiling again" is "$(number_of_calls)" 0

run_make train_gpt2cu PRECISION=FP32
check "train_gpt2cu is that of PRECISION=FP32" cmp train_gpt2cu build/train_gpt2cu_fp32
run_make train_gpt2cu
check "and that of bf16 again" cmp train_gpt2cu build/train_gpt2cu_bf16
check "a forced variant compiles the trainer again" run_make train_gpt2cu ATTENTION_FORWARD=flash2
check "with it" grep -q -e -DATTENTION_FORWARD=flash2 "$calls"
check "PRECISION=FP64 is refused" refuses "must be BF16, FP32" train_gpt2cu PRECISION=FP64
check "PRECISION=FP16 is refused for the trainer" refuses "take BF16 or FP32" train_gpt2cu PRECISION=FP16
check "a precision that a variant lacks is refused" refuses "No rule to make target" build/attention_forward_mma_fp32

# ptxas says so in a message of no severity
rm -f build/attention_forward_wgmma_bf16
FAKE_MESSAGE="ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized" \
    run_make build/attention_forward_wgmma_bf16
check "a serialised wgmma ends the build" is "$?" 2
check "and leaves no program" [ ! -e build/attention_forward_wgmma_bf16 ]
spills_are_errors() { run_make build/attention_forward_mma_bf16 -B && grep -q -e --warn-on-spills "$calls"; }
check "spills are errors with CUDA 13" spills_are_errors
export FAKE_RELEASE=12.6
check "and are none with CUDA 12" eval "! spills_are_errors"
unset FAKE_RELEASE

target="$dir/the root"
installed() { (cd "$target" && find . ! -type d | sort | tr '\n' ' '); }
check "make install" run_make install DESTDIR="$target" PREFIX=/opt/attention
check "installs library, header and pkg-config file" is "$(installed)" \
    "./opt/attention/include/libattention.h ./opt/attention/lib/libattention.so ./opt/attention/lib/pkgconfig/libattention.pc "
check "the pkg-config file names PREFIX" grep -qx prefix=/opt/attention "$target/opt/attention/lib/pkgconfig/libattention.pc"
check "make uninstall" run_make uninstall DESTDIR="$target" PREFIX=/opt/attention
check "removes them" is "$(installed)" ""

check "make compile_commands.json" run_make compile_commands.json
all_programs() { # JSON, with an entry for each program
    "$python" -c 'import json, glob; names = {entry["file"] for entry in json.load(open("compile_commands.json"))}
assert names >= {*glob.glob("*.c"), *glob.glob("*.cu"), *glob.glob("dev/*/*.c"), *glob.glob("dev/*/*.cu")}, names'
}
check "names every program" all_programs
check "make profile says that it needs a GPU" refuses "no GPU here" profile
check "make compete says it before it builds" refuses "no GPU here" compete
check "and builds nothing" is "$(number_of_calls)" 0
says_what_is_skipped() { run_make -n gpu-tests gpu=yes "sanitizer=$1" && grep -q "sanitizer checks: skipped" "$dir/out"; }
check "without compute-sanitizer, its checks are said to be skipped" says_what_is_skipped ""
check "and with it they are not" eval "! says_what_is_skipped found && grep -q 'check.sh sanitizer_mma' '$dir/out'"
check "a variant that does not exist is named" refuses "ATTENTION_FORWARD=none: no such variant" train_gpt2cu ATTENTION_FORWARD=none
check "backward too" refuses "ATTENTION_BACKWARD=flash3: no such variant" train_gpt2cu ATTENTION_BACKWARD=flash3
# what make clean removes is in neither a commit nor an image
built() { run_make -n clean && tr ' ' '\n' <"$dir/out" | grep '[a-z]' | grep -vx -e rm -e -rf | sort; }
ignored() { sed 's|^/||; s|/$||' "$root/$1" | sort; }
for file in .gitignore .dockerignore; do
    check "$file has what is built" is "$(comm -23 <(built) <(ignored $file) | tr '\n' ' ')" ""
done
# its warnings are errors, too; gcc's are seen by whatever is built
if command -v clang >/dev/null; then
    ln -s "$root/llmc" llmc
    check "clang compiles the CPU programs" run_make CC=clang train_gpt2 tokenize_gpt2
fi
check "make help" run_make help
check "lists the targets" grep -q "^make compete" "$dir/out"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
