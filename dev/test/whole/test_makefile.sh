#!/usr/bin/env bash
# The Makefile with an nvcc that only writes down what it was called for: every CUDA program is compiled once, in a precision
# that exists, again when its source or its flags change, and not otherwise; what is installed can be removed. And what make
# test, make load and RECORD=1 do, on checks, a trainer and an nvidia-smi that are scripts. 40 s, no GPU.
# shellcheck disable=SC2016 # check evaluates what it gets
set -uo pipefail
root=$(realpath "$(dirname "$0")/../../..")
python=$(command -v python3 || command -v python) || { echo "error: no python3 found" >&2; exit 1; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
passed=0
failed=0
unset MAKEFLAGS MFLAGS MAKELEVEL RECORD COMMIT CHECKS CHECK_JOBS GPU_JOBS WERROR PRECISION GPU_ARCH ATTENTION_FORWARD ATTENTION_BACKWARD DESTDIR PREFIX

mkdir -p "$dir/tree/dev"
cp -r "$root"/Makefile "$root"/*.c "$root"/*.cu "$root"/scripts "$dir/tree"
ln -s "$root/llmc" "$dir/tree/llmc"
cp -r "$root"/dev/cuda "$root"/dev/test "$root"/dev/bench "$dir/tree/dev"
cd "$dir/tree" || exit 1
calls=$dir/calls
cat >"$dir/nvcc" <<'EOF'
#!/usr/bin/env bash
[ "${1:-}" = --list-gpu-code ] && { echo "${FAKE_CODES:-sm_80 sm_90 sm_120}"; exit 0; }
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

mkdir "$dir/no_gpu"
printf '#!/usr/bin/env bash\nexit 9\n' >"$dir/no_gpu/nvidia-smi"
chmod +x "$dir/no_gpu/nvidia-smi"
# shellcheck disable=SC2317 # check calls it
without_gpu() { PATH="$dir/no_gpu:$PATH" "$@"; }

check "make cuda builds" run_make cuda
check "in precisions that exist" is "$(precisions)" "PRECISION_BF16 PRECISION_FP32 "
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
check "PRECISION=FP16 is refused" refuses "must be BF16 or FP32" train_gpt2cu PRECISION=FP16
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

# compiles TEXT GPU_ARCH: nvcc is told TEXT
compiles() { run_make -B build/attention_forward_naive_bf16 GPU_ARCH="$2" && grep -q -e "$1" "$calls"; }
check "a build for 9.0 has sm_90a's instructions" compiles "-gencode arch=compute_90a,code=sm_90a " 90
check "and so has one for 9.0a" compiles "-gencode arch=compute_90a,code=sm_90a " 90a
check "a GPU that nvcc knows gets code of its own" compiles "-gencode arch=compute_120,code=sm_120 " 120
export FAKE_CODES="sm_80 sm_90"
check "one that it does not know gets PTX" compiles "-gencode arch=compute_80,code=compute_80 " 120
check "and is not named to nvcc" eval "! grep -q 120 '$calls'"
check "which make says" grep -q "does not know compute capability 120" "$dir/out"
unset FAKE_CODES

for wrong in 9.0 75 sm_90 '9 0'; do check "GPU_ARCH=$wrong is refused" refuses "GPU_ARCH=$wrong: name a compute" tokenize_gpt2 GPU_ARCH="$wrong"; done
flags_of_c() { run_make CFLAGS=-O1 tokenize_gpt2 && run_make -n -B tokenize_gpt2 LDLIBS=-lmine MARCH=x86-64 && grep -q -e '-march=x86-64 .* -lm .*-lmine' "$dir/out"; }
check "CFLAGS and LDLIBS are further flags, MARCH another one" flags_of_c
check "the same CFLAGS compile nothing again" eval 'run_make CFLAGS=-O1 tokenize_gpt2 && [ tokenize_gpt2 -ot "$dir/err" ]'
check "others do" eval 'run_make CFLAGS=-Og tokenize_gpt2 && [ tokenize_gpt2 -nt "$dir/err" ]'
flags_of_cuda() { run_make -B test_gpt2cu NVCCFLAGS=-lineinfo CUDA_LDLIBS=-lmine && grep -q -e '-std=.* -lineinfo .*-lcublas .*-lmine' "$calls"; }
check "so are those for nvcc" flags_of_cuda

target="$dir/the root"
installed() { (cd "$target" && find . ! -type d | sort | tr '\n' ' '); }
check "make install" run_make install DESTDIR="$target" PREFIX=/opt/attention
check "installs library, header and pkg-config file" is "$(installed)" \
    "./opt/attention/include/libattention.h ./opt/attention/lib/libattention.so ./opt/attention/lib/pkgconfig/libattention.pc "
check "the pkg-config file names PREFIX" grep -qx prefix=/opt/attention "$target/opt/attention/lib/pkgconfig/libattention.pc"
check "and the version of the programs" grep -qx "Version: $(sed -n 's/^version: //p' "$root/CITATION.cff")" "$target/opt/attention/lib/pkgconfig/libattention.pc"
check "make uninstall" run_make uninstall DESTDIR="$target" PREFIX=/opt/attention
check "removes them" is "$(installed)" ""
check "make install elsewhere" run_make install DESTDIR="$target" PREFIX=/opt libdir=/usr/lib64
check "takes libdir" grep -qx libdir=/usr/lib64 "$target/usr/lib64/pkgconfig/libattention.pc"
check "beside what follows PREFIX" grep -qx 'includedir=${prefix}/include' "$target/usr/lib64/pkgconfig/libattention.pc"
check "and removes it from there" run_make uninstall DESTDIR="$target" PREFIX=/opt libdir=/usr/lib64
check "all of it" is "$(installed)" ""
# fails TEXT COMMAND...: exit code 1, and one line that says TEXT
fails() { ! "${@:2}" >"$dir/out" 2>"$dir/err" && [ "$(wc -l <"$dir/err")" -eq 1 ] && grep -q -- "^error: .*$1" "$dir/err"; }
check "another argument" fails "--foo: " env DESTDIR="$target" scripts/install.sh --foo
check "installs nothing" is "$(installed)" ""
check "a folder that cannot be made is named" fails /proc/x env PREFIX=/proc/x scripts/install.sh

check "a PREFIX that is no path from / is refused" fails "PREFIX=rel" env PREFIX=rel DESTDIR="$target/" scripts/install.sh
check "as is such a libdir" fails "libdir=lib" env libdir=lib DESTDIR="$target/" scripts/install.sh
check "both install nothing" is "$(installed)" ""
if command -v pkg-config >/dev/null; then
    run_make install PREFIX="$target/my own"
    export PKG_CONFIG_PATH="$target/my own/lib/pkgconfig"
    check "pkg-config gives PREFIX with its space" is "$(eval "printf '<%s>' $(pkg-config --cflags --libs libattention)")" \
        "<-I$target/my own/include><-L$target/my own/lib><-lattention>"
fi
check "profile.sh refuses an argument" fails "--foo: " scripts/profile.sh --foo

check "make compile_commands.json" run_make compile_commands.json
all_programs() { # JSON, with an entry for each program
    "$python" -c 'import json, glob; names = {entry["file"] for entry in json.load(open("compile_commands.json"))}
assert names >= {*glob.glob("*.c"), *glob.glob("*.cu"), *glob.glob("dev/*/*.c"), *glob.glob("dev/*/*.cu")}, names'
}
check "names every program" all_programs
check "make profile says that it needs a GPU" without_gpu refuses "no GPU here" profile
check "make compete says it before it builds" without_gpu refuses "no GPU here" compete
check "and builds nothing" is "$(number_of_calls)" 0

# A new variant is in the lists by its file, and trains by its rule.
variants_of() { run_make build/other_variants.h build/attention_variants.h && grep -h -c "$1" build/other_variants.h build/attention_variants.h | tr '\n' ' '; }
held_alone() { run_make build/attention_variants.h "ATTENTION_FORWARD=$1" && grep -c '#include.*forward_' build/attention_variants.h; }
check "programs hold a forced variant alone, in both precisions" is "$(held_alone flash1)" 2
cp dev/cuda/attention_forward_naive.cu dev/cuda/attention_forward_mine.cu
check "the file of a new variant enters it in test_gpu_pairs, in both precisions" is "$(variants_of 'forward_mine.cu')" "2 0 "
check "by name, too" is "$(variants_of 'FORWARD_VARIANTS(X).* X(mine)')" "2 0 "
sed -i 's/^    {"mma", NULL, 0/    {"mine", NULL, 0, 80, INT_MAX, 0, 0, INT64_MAX},\n&/' dev/cuda/attention/choice.h
check "with a rule for 16 bit programs hold it there" is "$(variants_of 'forward_mine.cu')" "1 1 "
check "and make test sanitizes it" eval 'run_make checks sanitizer=found && grep -qx check-sanitizer_mine "$dir/out"'
check "a variant on tensor cores is in no list of fp32" is "$(grep -B3 -e else build/*_variants.h | grep -c 'mma')" 0
cp "$root/dev/cuda/attention/choice.h" dev/cuda/attention && rm dev/cuda/attention_forward_mine.cu
check "without them all is as before" is "$(variants_of mine)" "0 0 "

# Files that have moved or gone since a program was built
mkdir -p dev/test/base dev/test/run
moves() { # FILE: a test of this name is built, moved to another room and built again, without a header that it had
    local built=build/${1%.*} main='int main(void) { return 0; }'
    touch dev/test/base/gone.h
    printf '#include "dev/test/base/gone.h"\n%s\n' "$main" >"dev/test/base/$1"
    run_make "$built" || return 1
    rm dev/test/base/gone.h "dev/test/base/$1"
    echo "$main" >"dev/test/run/$1"
    touch -r "$built" "dev/test/run/$1" # as git mv leaves it
    run_make "$built" && grep -q "dev/test/run/$1" "$built.d" && rm "dev/test/run/$1"
}
check "a test in C that was moved is built again" moves test_moves.c
check "one in CUDA, too" moves test_moved.cu

# what make test would run: says TARGET ARGUMENT...
says() { run_make -n "$@" && tr ' ' '\n' <"$dir/out" | grep '^check-' | sort >"$dir/says"; }
says_what_is_skipped() { says test gpu=yes "sanitizer=$1" && grep -q "sanitizer checks: no compute-sanitizer here" "$dir/out"; }
check "without compute-sanitizer, its checks are said to be skipped" says_what_is_skipped ""
check "and with it they are not" eval '! says_what_is_skipped found && says test-long gpu=yes sanitizer=found && grep -q check-sanitizer_split "$dir/says"'
every_check_once() {
    says test gpu=yes sanitizer=found && cp "$dir/says" "$dir/both" && says test-long gpu=yes sanitizer=found &&
        cat "$dir/says" >>"$dir/both" && run_make checks sanitizer=found && sort "$dir/both" | diff - <(sort "$dir/out")
}
check "make test and make test-long run every check once" every_check_once
without_gpu() { says test && ! grep bf16 "$dir/says" && grep -q " checks on a GPU: no GPU here" "$dir/out"; }
check "without a GPU those that need one are skipped, and it is said" without_gpu

# One that fails, hangs, does not build or cannot run holds up no other, and the end says what became of it.
stand_in() { cat >"$1.sh" && printf '$(call check,%s,cpu,%s,bash %s.sh)\n' "$1" "${2-}" "$1" >>Makefile; }
stand_in good <<<'echo 3 passed, 0 failed'
stand_in bad <<<'echo it is broken; echo 4 passed, 2 failed; exit 1'
stand_in hangs <<<"sleep 1000.$$ & sleep 1000.$$" # by a number that no other run of this test has
stand_in crashes <<<'echo 1 passed, 0 failed; kill -SEGV $$'
stand_in unbuilt build/none <<<'echo 1 passed, 0 failed'
stand_in cannot <<<'echo "skipped: no such library"'
stand_in partly <<<'echo "one case: skipped, no terminal"; echo 5 passed, 0 failed, 1 skipped'
stand_in empty <<<'echo 0 passed, 0 failed'
printf 'build/none:\n\t@echo does not compile >&2; exit 1\n' >>Makefile
run_stand_ins() { CHECK_TIMEOUT=2 run_make "${@:2}" test CHECKS="$1" CHECK_JOBS=4; }
has() { grep -qxF -- "$1" "$dir/out" || { cat "$dir/out"; return 1; }; }
begin=$SECONDS
check "make test fails" eval '! run_stand_ins "hangs bad check-unbuilt crashes cannot empty partly good"'
check "it ends what hangs" test $((SECONDS - begin)) -lt 500
check "with all that it started" eval '! pgrep -f "sleep 1000.$$"'
check "those behind one that failed ran" grep -q "^good  *[0-9.]* s   3 passed, 0 failed$" "$dir/out"
check "a failed one shows its output" has "it is broken"
for line in "bad: 4 passed, 2 failed" "unbuilt: what it needs did not build" "crashes: 1 passed, 0 failed" \
    "hangs: still running after 2 s, and ended; CHECK_TIMEOUT=SECONDS allows more" "empty: 0 passed, 0 failed" \
    "cannot: no such library" "partly: one case: skipped, no terminal"; do
    check "the end lists $line" has "    $line"
done
check "and how to run the failed ones again" has "again: make test CHECKS='hangs bad unbuilt crashes empty'"
check "and sums" grep -q "^make test CHECKS=...: 13 passed, 6 failed, 3 skipped in [0-9]* s$" "$dir/out"
check "the slowest come first" eval 'grep -A 1 "^the slowest of" "$dir/out" | grep -q " hangs  *[0-9]"'
check "where none fails, make test succeeds" run_stand_ins "good partly"
no_such() { # NAMES TEXT: make test ends with this one line, and has run nothing
    ! run_stand_ins "$1" && [ "$(grep -v '^make: ' "$dir/err")" = "error: there is no check $2" ] && [ ! -s "$dir/out" ]
}
check "a check that does not exist is refused, before any runs" no_such "good nonsense" "nonsense; make checks lists them all"
check "with the one that may be meant" no_such "check-test_com" "test_com; did you mean test_comm? make checks lists them all"
check "as check-NAME, too" eval '! run_make check-godo && grep -qx "error: there is no check godo; did you mean good? make checks lists them all" "$dir/err"'

# RECORD=1: a row for a run on a GPU of all that make test has
cat >"$dir/nvidia-smi" <<'EOF'
#!/usr/bin/env bash
case "$*" in
*name*) printf 'NVIDIA H100\nNVIDIA H100\n' ;;
*driver_version*) echo 580.1 ;;
esac
EOF
chmod +x "$dir/nvidia-smi"
record=dev/test/gpu_runs.csv
cp $record "$dir/header"
recorded() { CHECK_TIMEOUT=2 RECORD=1 PATH="$dir:$PATH" run_make checks_of_test="$1" CHECK_JOBS=4 test "${@:2}"; }
refuses_record() { local text=$1; shift; ! recorded "$@" && grep -qF -- "$text" "$dir/err" && cmp $record "$dir/header"; }
check "without git and COMMIT there is no row" refuses_record "name the commit: COMMIT=" check-good
check "nor for some of the checks" refuses_record "make test CHECKS=... has no row" check-good CHECKS=good COMMIT=1234567
check "nor without a GPU" eval '! PATH="$dir/no_gpu:$PATH" RECORD=1 run_make checks_of_test=check-good test COMMIT=1 && grep -q "lists no GPU" "$dir/err"'
check "a run that fails" eval '! COMMIT=1234567 recorded "check-good check-bad check-cannot"'
row() { tail -n 1 $record | grep -qE -- "^$(date +%F),$1,NVIDIA H100,2,580.1,13.0,[^,]+,[^,]+,$2,[0-9]+,none$" || { cat $record; return 1; }; }
check "has its row" row 1234567 "7,2,2"
git_() { git -c user.name=a -c user.email=a@b.c -c init.defaultBranch=main "$@" >/dev/null; }
cp "$root/.gitignore" .
git_ init -q && git_ add . && git_ commit -m all
hash=$(git rev-parse --short HEAD)
check "a run of a commit" recorded check-good
check "has its hash" row "$hash" "3,0,1"
check "another" recorded check-good
check "has it too, for the record itself is no change" row "$hash" "3,0,1"
stale() { dev/test/record_run.sh stale 2>&1; }
check "make lint is content with that row" is "$(stale)" ""
echo '#include "program.c"' >new_test.c
mkdir -p build && touch new.c new.cu new.sh new.py build/ignored.c
mv dev/test/scripts/unit.py "$dir" # still tracked
lints() { run_make -n lint && tr ' ' '\n' <"$dir/out" | grep -x -e 'new.*' -e 'build/.*' -e '.*/unit.py' | sort | uniq -c | tr -s ' \n' ' '; }
check "make lint takes new files too, each once by every tool" is "$(lints)" " 2 new.c 1 new.cu 2 new.py 1 new.sh 2 new_test.c "
check "and one that includes a program without its main" eval 'grep -q -e "-D__INCLUDE_LEVEL__=1 .*new_test.c" "$dir/out"'
mv "$dir/unit.py" dev/test && rm new.c new.cu new.sh new.py new_test.c build/ignored.c
echo >>dev/cuda/attention_forward_naive.cu
check "a run with changes" recorded check-good
check "is marked" row "${hash}[+]" "3,0,1"
check "make lint warns, for the GPU's code has changed since" eval 'stale | grep -q "changed since $hash"'

# make load: what runs beside other work must do what it does alone
cat >trainer.sh <<'EOF'
while [ $# -gt 1 ]; do [ "$1" != -o ] || out=$2; shift; done
mkdir "$out" && echo "${WRONG_TRAINER:+$out}" >"$out/model_00000020.bin"
EOF
cat >generator.sh <<'EOF'
echo "{\"tokens\": [1, 2], \"seconds\": 0.$RANDOM, \"text\": \"${WRONG_GENERATOR:+$RANDOM}\"}"
EOF
echo 'sleep 0.2; echo 3 passed, 0 failed; exit ${WRONG_TEST:-0}' >load_test.sh
chmod +x trainer.sh generator.sh load_test.sh
sed -i '1i #!/usr/bin/env bash' trainer.sh generator.sh load_test.sh
cp -r "$root/dev/data" dev
load() { env "$@" dev/test/whole/gpu_load.sh 1 ./trainer.sh ./generator.sh ./load_test.sh >"$dir/out" 2>"$dir/err"; }
check "under load all is as alone" load A=b
check "which is counted" eval 'tail -n 1 "$dir/out" | grep -qE "^[1-9][0-9]* passed, 0 failed$"'
for wrong in WRONG_TRAINER WRONG_GENERATOR WRONG_TEST; do
    check "$wrong fails" eval "! load $wrong=1 && tail -n 1 '$dir/out' | grep -qE ' passed, [1-9][0-9]* failed$'"
done
check "RECORD=1 writes the seconds under load" env RECORD=1 PATH="$dir:$PATH" dev/test/whole/gpu_load.sh 1 ./trainer.sh ./generator.sh ./load_test.sh
check "in its row" eval 'tail -n 1 $record | grep -qE "^[^,]*,$hash\+,NVIDIA H100,2,.*,[1-9][0-9]*,0,0,[0-9]+,1$"'
check "make load says that it needs a GPU" without_gpu refuses "no GPU here" load
check "a variant that does not exist is named" refuses "ATTENTION_FORWARD=none: no such variant" train_gpt2cu ATTENTION_FORWARD=none
check "backward too" refuses "ATTENTION_BACKWARD=flash3: no such variant" train_gpt2cu ATTENTION_BACKWARD=flash3
# what make clean removes is in neither a commit nor an image
built() { run_make -n clean && { echo build; sed -n 's/^rm -rf //p' "$dir/out" | tr ' ' '\n'; } | sort; }
ignored() { sed 's|^/||; s|/$||' "$root/$1" | sort; }
for file in .gitignore .dockerignore; do
    check "$file has what is built" is "$(comm -23 <(built) <(ignored $file) | tr '\n' ' ')" ""
done
mkdir -p build/quickstart/model
check "make clean" run_make clean
check "leaves the quickstart's models" is "$(ls build)" quickstart
# its warnings are errors, too; gcc's are seen by whatever is built
if command -v clang >/dev/null; then
    check "clang compiles the CPU programs" run_make CC=clang train_gpt2 tokenize_gpt2
fi
check "make help" run_make help
check "lists the targets" grep -q "^make compete" "$dir/out"

echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
