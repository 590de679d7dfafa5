#!/usr/bin/env bash
# dev/test/gpu_rows.sh with a make and an nvidia-smi that are scripts: each row sees its own GPUs and none of the others', rows
# come together in the record, one that fails holds up no other, and wrong machines are refused. No GPU.
. dev/test/fixtures/unit.sh
unset ROWS # set where this test runs as part of a recorded row
mkdir -p "$dir/tree/dev/test" "$dir/bin" "$dir/tmp"
cp dev/test/gpu_rows.sh "$dir/tree/dev/test"
cat >"$dir/bin/nvidia-smi" <<'EOF'
#!/usr/bin/env bash
case $1 in
-L) for ((i = 0; i < ${FAKE_GPUS:-4}; i++)); do echo "GPU $i: NVIDIA H100 (UUID: GPU-$i)"; done ;;
-i) echo "$2" ;;
esac
EOF
cat >"$dir/bin/make" <<'EOF'
#!/usr/bin/env bash
case " $* " in
*" -n test "*) echo "    dev/test/run_checks.sh 'test' check-a check-b"; exit ;;
*" test-programs "*) echo "$*" >>"$CALLS"; mkdir -p build; touch build/program; exit ;;
*" test "*) target=test folder=checks ;;
*" load "*) target=load folder=load ;;
*) exit 0 ;;
esac
[ -f build/program ] || { echo "not built"; exit 1; }
mkdir -p build/$folder
shown=$(nvidia-smi --query-gpu=name) visible=$(nvidia-smi -L | sed 's/:.*//' | tr '\n' ' ')
touch "$TMPDIR/left" "build/$folder/of_$shown"
echo "$COMMIT,$target,$shown,$visible,$CUDA_VISIBLE_DEVICES,$RECORD,$*" >>dev/test/gpu_runs.csv
[ "${FAKE_FAILURE:-}" != "$shown" ] || { echo "make $target: 4 passed, 1 failed, 0 skipped in 3 s"; exit 2; }
echo "make $target: 5 passed, 0 failed, 0 skipped in 3 s"
EOF
chmod +x "$dir/bin/make" "$dir/bin/nvidia-smi"
record=$dir/tree/dev/test/gpu_runs.csv
rows() { # [LOAD_SECONDS]: with the environment that is given before it
    echo commit >"$record"
    CALLS=$dir/calls COMMIT=1234567 ROWS=${ROWS-two one load} TMPDIR=$dir/tmp PATH=$dir/bin:$PATH "$dir/tree/dev/test/gpu_rows.sh" "$@" >"$dir/out" 2>"$dir/err"
}
has() { grep -q -- "$1" "$record" || { cat "$record" "$dir/out" "$dir/err"; return 1; }; }
fails_with() { # TEXT [ARGUMENT...]
    local text=$1
    shift
    ! rows "$@" && grep -qF -- "$text" "$dir/err" && [ "$(wc -l <"$record")" -eq 1 ]
}

check "three rows" rows 77
check "are in the record" test "$(wc -l <"$record")" -eq 4
check "of two GPUs" has "^1234567,test,0,1,GPU 0 GPU 1 ,0,1,1,.*-k test"
check "of one" has "^1234567,test,2,GPU 2 ,2,1,.*-k test"
check "under load" has "^1234567,load,3,GPU 3 ,3,1,.*LOAD_SECONDS=77"
check "programs were built once" test "$(wc -l <"$dir/calls")" -eq 1
check "for the checks of make test" grep -q "CHECKS=check-a check-b" "$dir/calls"
check "what each printed is kept" grep -q "5 passed, 0 failed" "$dir/tree/build/rows/one.log"
check "and its checks' logs" test -f "$dir/tree/build/rows/load.logs/of_3"
check "nothing is left elsewhere" test -z "$(ls "$dir/tmp")"
FAKE_FAILURE=2 check "one that fails" eval '! rows'
check "is said" grep -q "one: make test on GPU 2, exit code 2: make test: 4 passed, 1 failed" "$dir/out"
check "and holds up no other" test "$(wc -l <"$record")" -eq 4
ROWS=load check "the load alone" rows
check "is one row" test "$(wc -l <"$record")" -eq 2
ROWS=none check "none" rows
check "only builds" test "$(wc -l <"$record")" -eq 1
check "what is built once for each call" test "$(wc -l <"$dir/calls")" -eq 4
FAKE_GPUS=2 check "three rows on two GPUs" rows 77
check "two GPUs, then one of them" eval 'has "^1234567,test,0,1,GPU 0 GPU 1 ,0,1,1," && has "^1234567,test,0,GPU 0 ,0,1,"'
check "beside the load" has "^1234567,load,1,GPU 1 ,1,1,.*LOAD_SECONDS=77"
FAKE_GPUS=1 check "one GPU is too few" fails_with "1 GPU here, it takes two"
check "seconds that are none" fails_with "LOAD_SECONDS" soon
mkdir "$dir/few"
for tool in bash dirname env; do ln -s "$(command -v $tool)" "$dir/few"; done
without_nvidia_smi() { ! PATH=$dir/few "$dir/tree/dev/test/gpu_rows.sh" 2>"$dir/err" && grep -q "no nvidia-smi here" "$dir/err"; }
check "no nvidia-smi" without_nvidia_smi
finish
