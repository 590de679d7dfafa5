#!/usr/bin/env bash
# Two processes of the given trainer meet by the variables of each launcher, and by mpirun where there is one; and the scripts
# that start several processes give a trainer flags that it accepts: build/test_launch_gpu says what it makes of them.
# Takes ten seconds; writes to a temporary folder only.
#
#     dev/test/whole/test_launch.sh ./train_gpt2 build/test_launch_gpu
. dev/test/fixtures/unit.sh
trainer=${1:?usage: $0 ./train_gpt2 build/test_launch_gpu}
parser=$PWD/${2:?usage: $0 ./train_gpt2 build/test_launch_gpu}
unset "${!SLURM_@}" "${!OMPI_@}" "${!PMI_@}" "${!PMIX_@}"

write_text
flags=(-i "$dir/text_train.bin" -j "$dir/text_val.bin" -e gpt2:l2c64h2t64 -b 2 -t 32 -d 256 -x 2 -v 0 -m 1 -s 0
    --connect-timeout 60)
port() { "$python" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

# pair NAME VARIABLE...: two processes with these variables, in which @ is the rank; the second says nothing
pair() {
    local name=$1 code0 code1 first
    shift
    env "${@//@/0}" "$trainer" "${flags[@]}" "${meet[@]}" -o "$dir/$name" >"$dir/$name.0" 2>"$dir/$name.stderr" &
    first=$!
    env "${@//@/1}" "$trainer" "${flags[@]}" "${meet[@]}" "${second[@]}" -o "$dir/$name" >"$dir/$name.1" 2>>"$dir/$name.stderr"
    code1=$?
    wait $first
    code0=$?
    without_waits "$dir/$name.stderr"
    [ $code0$code1 = 00 ] && [ ! -s "$dir/$name.stderr" ] && [ ! -s "$dir/$name.1" ] && cmp "$dir/alone/main.log" "$dir/$name/main.log" && return 0
    echo "exit codes $code0 and $code1"
    cat "$dir/$name.stderr"
    head -n 5 "$dir/$name.1"
    return 1
}
check "a process alone" "$trainer" "${flags[@]}" -o "$dir/alone" >"$dir/alone.out"
meet=()
second=()
check "torchrun's variables" pair torchrun RANK=@ WORLD_SIZE=2 LOCAL_RANK=@ LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 "MASTER_PORT=$(port)"
second=(-ps 127.0.0.2) # what others call the machine that calls itself localhost
check "PyTorchJob's" pair pytorchjob RANK=@ WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost "MASTER_PORT=$(port)"
second=()
meet=(--rendezvous-port "$(port)")
check "Open MPI's" pair openmpi OMPI_COMM_WORLD_RANK=@ OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=@ \
    OMPI_COMM_WORLD_LOCAL_SIZE=2 PMIX_RANK=@ PMIX_NAMESPACE=7
meet=(--rendezvous-port "$(port)")
check "MPICH's" pair mpich PMI_RANK=@ PMI_SIZE=2 MPI_LOCALRANKID=@ MPI_LOCALNRANKS=2
meet=(--rendezvous-port "$(port)")
check "Slurm's" pair slurm SLURM_PROCID=@ SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 SLURM_NODEID=@ SLURM_STEP_TASKS_PER_NODE='1(x2)' \
    "SLURM_JOB_ID=$$" SLURM_STEP_ID=0 SLURM_STEP_NODELIST='localhos[t,u]'
for mpirun in mpirun.openmpi mpirun.mpich; do
    oversubscribe=()
    [ $mpirun = mpirun.mpich ] || oversubscribe=(--allow-run-as-root --oversubscribe)
    # absent, or it starts nothing here: Open MPI demands ssh, also on one machine
    $mpirun "${oversubscribe[@]}" -n 2 true >/dev/null 2>&1 || { skipped=$((skipped + 1)); continue; }
    check "$mpirun" $mpirun "${oversubscribe[@]}" -n 2 "$trainer" "${flags[@]}" --rendezvous-port "$(port)" -o "$dir/$mpirun" >"$dir/$mpirun.0"
    check "$mpirun: the same log" cmp "$dir/alone/main.log" "$dir/$mpirun/main.log"
done

# Variables that did not start this process: those of a shell of srun --pty
shell=(env SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=8 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_STEP_TASKS_PER_NODE=8
    "SLURM_JOB_ID=$$" SLURM_STEP_ID=0 SLURM_STEP_NODELIST=localhost timeout 60 "$trainer" "${flags[@]}")
unset_them="unset SLURM_PROCID SLURM_STEP_NUM_TASKS"
# tells LINES TEXT COMMAND...: on stderr are so many lines, of which the first has this text
tells() {
    local lines=$1 text=$2
    shift 2
    "$@" >"$dir/stdout" 2>"$dir/stderr"
    code=$?
    [ "$(wc -l <"$dir/stderr")" -eq "$lines" ] && [[ "$(head -n 1 "$dir/stderr")" = *"$text"* ]] && return 0
    echo "expected $lines lines, the first with '$text':"
    cat "$dir/stderr"
    return 1
}
check "a wait is told" tells 2 "$unset_them" "${shell[@]}" --connect-timeout 3
check "with who is missing" grep -q "^note: rank 0: waiting for ranks 1 to 7 of 8 to connect to 127.0.0.1 port " "$dir/stderr"
check "and fails" test "$code" -eq 1
check "--processes says what to unset" tells 1 "$unset_them" "${shell[@]}" --processes 2
check "and fails" test "$code" -eq 1
check "a plan waits for nobody" tells 1 "$unset_them" "${shell[@]}" --plan -d 512 --connect-timeout 300
check "and is one of eight processes" grep -q "x 8 processes" "$dir/stdout"
check "and ends well" test "$code" -eq 0
check "--doctor waits for nobody" tells 0 "" "${shell[@]}" --doctor --connect-timeout 300
check "and does its work" grep -q " checked, " "$dir/stdout"
check "nor does --help" tells 0 "" "${shell[@]}" --help
check "which helps" grep -q -- --connect-timeout "$dir/stdout"

# A machine whose loopback interface is down
if unshare -rn true 2>/dev/null; then
    check "no loopback is told at once" tells 1 "the loopback interface is down" timeout 60 unshare -rn "$trainer" "${flags[@]}" --processes 2
    check "to a rank that connects, too" tells 1 "the loopback interface is down" timeout 60 unshare -rn \
        env RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost "$trainer" "${flags[@]}" --connect-timeout 300
    check "and it fails" test "$code" -eq 1
    check "to rank 0 alone, too" tells 1 "the loopback interface is down" timeout 60 unshare -rn \
        env RANK=0 WORLD_SIZE=2 LOCAL_RANK=0 MASTER_ADDR=localhost "$trainer" "${flags[@]}" --connect-timeout 300
    check "at once" test "$code" -eq 1
else
    echo "skipped: a machine without a loopback interface (unshare -rn is not allowed here)"
    skipped=$((skipped + 1))
fi

# says TEXT COMMAND...: the command ends well and prints this
says() {
    local text=$1 code
    shift
    "$@" >"$dir/stdout" 2>"$dir/stderr"
    code=$?
    [ $code -eq 0 ] && grep -qxF -- "$text" "$dir/stdout" && return 0
    echo "exit code $code, expected 0 and '$text':"
    cat "$dir/stdout" "$dir/stderr"
    return 1
}
export TRAINER=$parser
check "one machine" says "8 processes from rank 0 of 8" scripts/run_one_machine.sh
check "four of its GPUs" says "4 processes from rank 0 of 4" env GPUS=4 scripts/run_one_machine.sh -x 2000
check "the first of two" says "8 processes from rank 0 of 16, at 10.0.0.1 port 20240" scripts/run_two_machines.sh 0 10.0.0.1
check "the second" says "4 processes from rank 4 of 8, at head port 20241" env GPUS=4 scripts/run_two_machines.sh 1 head --rendezvous-port 20241
usage() { "$@" >"$dir/stdout" 2>"$dir/stderr"; [ $? -eq 1 ] && [ "$(wc -l <"$dir/stderr")" -eq 1 ] && grep -q "^error: " "$dir/stderr"; }
check "one machine without a trainer" usage env TRAINER="$dir/none" scripts/run_one_machine.sh
check "two machines without a trainer" usage env TRAINER="$dir/none" scripts/run_two_machines.sh 0 10.0.0.1
check "a third machine is refused" usage scripts/run_two_machines.sh 2 10.0.0.1
check "and one without an address" usage scripts/run_two_machines.sh 0
check "Slurm without a trainer" usage env SLURM_SUBMIT_DIR="$PWD" TRAINER="$dir/none" scripts/run_slurm.sh
check "Slurm's script without Slurm" usage env -u SLURM_SUBMIT_DIR scripts/run_slurm.sh
mkdir "$dir/bin"
cat >"$dir/bin/srun" <<'END'
#!/usr/bin/env bash
[ "$1 $2" = "--kill-on-bad-exit=1 --cpus-per-task=6" ] || exit 9 # which Slurm 22.05 and newer do not inherit
shift 2
SLURM_PROCID=11 SLURM_STEP_NUM_TASKS=16 SLURM_LOCALID=3 SLURM_NODEID=1 SLURM_STEP_TASKS_PER_NODE='8(x2)' \
    SLURM_JOB_ID=11 SLURM_STEP_ID=0 SLURM_STEP_NODELIST='gpu[07-08]' exec "$@"
END
chmod +x "$dir/bin/srun"
check "Slurm's script" says "1 process from rank 11 of 16, at gpu07 port 28000" env PATH="$dir/bin:$PATH" SLURM_SUBMIT_DIR="$PWD" SLURM_CPUS_PER_TASK=6 \
    scripts/run_slurm.sh --rendezvous-port 28000
finish
