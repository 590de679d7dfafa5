#!/usr/bin/env bash
# From text to a GPT-2 of 124M in a quarter of an hour on one GPU: makes tokens, says what the run will take, trains,
# exports the model for transformers, and shows what it writes. After Ctrl-C, a kill or a crash the same command goes on.
#
#     scripts/run_124M.sh                                     # FineWeb: fetches 3 GB
#     scripts/run_124M.sh --text book.txt papers/ --minutes 5 -o book
#     scripts/run_124M.sh --tokens dev/data/linux_source/linux_source     # token files: <...>_train*.bin, <...>_val*.bin
#     scripts/run_124M.sh --cost                              # says what it would take, once there are tokens
#     scripts/run_124M.sh --minutes 60 -- --fp8 1 -b 32       # flags of the trainer, instead of the script's
#
# Everything is kept in the folder -o (default: log_run_124M), FineWeb as links. The length is --minutes (default: 15) at the
# speed that some steps are measured to have. Needs a GPU, or TRAINER=./train_gpt2, which trains on the CPU; FineWeb also needs
# the Python package pyarrow. DATA_MIRROR as in dev/data; TOKENIZER=bytes takes the bytes of --text for tokens.
set -euo pipefail
for word; do case $word in --) break ;; -h | --help) sed -n '2,/^set/{s/^#$//p; s/^# //p; }' "$0"; exit ;; esac; done
fail() { echo "error: $*" >&2; exit 1; }
has() { [ -n "$(ls "$@" 2>/dev/null)" ]; }
stopped=0
ended_with_us() { # COMMAND...: passes the signals that end this script on to the command, and waits for it
    "$@" &
    local pid=$!
    trap 'stopped=1; kill -TERM $pid 2>/dev/null' INT TERM # a job in the background ignores Ctrl-C
    trap 'stopped=1; kill -HUP $pid 2>/dev/null' HUP
    while kill -0 $pid 2>/dev/null; do wait $pid || :; done
    trap - INT TERM HUP
    wait $pid
}
error_in() { sed -n 's/^error: //p' "$1" | head -n 1; } # what the trainer said

folder=log_run_124M minutes='' only_cost=0 text=() tokens=''
while [ $# -gt 0 ]; do
    case $1 in
    --text)
        shift
        while [ $# -gt 0 ] && [[ $1 != -* ]]; do
            [ -e "$1" ] || fail "--text $1: no such file or folder"
            text+=("$(realpath "$1")")
            shift
        done
        [ ${#text[@]} -gt 0 ] || fail "--text names no file or folder"
        ;;
    --minutes | -o | --tokens)
        [ -n "${2-}" ] || fail "$1 needs a value"
        case $1 in -o) folder=$2 ;; --tokens) tokens=$(realpath -m "$2") ;; *) minutes=$2 ;; esac
        shift 2
        ;;
    --cost) only_cost=1 && shift ;;
    --) shift && break ;;
    *) fail "$1: no such argument; --help lists them, and flags of the trainer follow --" ;;
    esac
done
before=
for flag; do
    [[ ! ${flag%%=*} =~ ^(-x|--max-steps|-o|--output-dir|-y|--resume)$ ]] || fail "$flag: --minutes and -o before -- decide that"
    [[ ! ${flag%%=*} =~ ^(--plan|--doctor|--help|--all-flags)$ ]] || fail "$flag: --cost before -- says what the run takes"
    [[ ! $before=$flag =~ ^(-n|.*--checkpoint-every)=[-+]?0+$ ]] ||
        fail "-n 0: the model would be lost at the end; name the steps between checkpoints, or leave -n out"
    before=$flag
done
asked=$minutes
minutes=${minutes:-15}
number='^[0-9]+(\.[0-9]+)?$'
[[ $minutes =~ $number && $minutes =~ [1-9] ]] || fail "--minutes $minutes: how long to train, as 15 or 0.5"
awk -v n="$minutes" 'BEGIN { exit n > 10080 }' || fail "--minutes $minutes: at most 10080, a week"
[ ! -f "$folder" ] || fail "-o $folder is a file; name a folder"
[[ $folder = /* ]] || folder=$PWD/$folder
[[ ${DATA_MIRROR:-/} = /* ]] || DATA_MIRROR=$PWD/$DATA_MIRROR
[[ ${TRAINER:-/} = /* ]] || TRAINER=$PWD/$TRAINER
cd "$(dirname "$0")/.."
[[ ${TOKENIZER:-} =~ ^(bytes)?$ ]] || fail "TOKENIZER=$TOKENIZER: bytes, or nothing for GPT-2's tokens"
[ -z "$tokens" ] || [ ${#text[@]} = 0 ] || fail "--tokens and --text: one of them"
[ -z "$tokens" ] || { has "${tokens}"_train*.bin && has "${tokens}"_val*.bin; } ||
    fail "--tokens $tokens: no ${tokens}_train*.bin, or no ${tokens}_val*.bin"
[ -z "${TOKENIZER:-}" ] || [ ${#text[@]} -gt 0 ] || fail "TOKENIZER=bytes: of --text alone"
[ -z "${TRAINER:-}" ] || { [ -x "$TRAINER" ] && [ -x generate_gpt2 ]; } ||
    fail "TRAINER=$TRAINER needs that program and $PWD/generate_gpt2; make train_gpt2 generate_gpt2 makes the CPU's"
trainer=${TRAINER:-./train_gpt2cu} generator=${TRAINER:+./generate_gpt2}
generator=${generator:-./generate_gpt2cu}
if [ -z "${TRAINER:-}" ]; then
    nvidia-smi -L >/dev/null 2>&1 || fail "no GPU here: nvidia-smi finds none. scripts/quickstart.sh trains a small model on a CPU"
    echo "== make: the trainer, what prompts its model, the tokenizer"
    make -s -j "$(nproc)" train_gpt2cu generate_gpt2cu tokenize_gpt2 || fail "make failed; make doctor says what is missing"
fi

source="${text[*]:-${tokens:+the tokens }${tokens:-FineWeb}}${TOKENIZER:+ as bytes}"
had=$(cat "$folder/source" 2>/dev/null || echo "another program")
# A call that made no tokens leaves `source` empty, and the folder to any other.
[ "$had" = "$source" ] || [ -z "$(ls -A "$folder" 2>/dev/null)" ] || { [ -e "$folder/source" ] && [ ! -s "$folder/source" ]; } ||
    fail "-o $folder is of $had, not of $source: name another folder"
mkdir -p "$folder" 2>/dev/null || fail "-o $folder: cannot make that folder"
{ exec 9>>"$folder/source"; } 2>/dev/null || fail "-o $folder: cannot write $folder/source"
# The trainer inherits the lock. A file system without locks (an exit code other than 1) does not stop the run.
flock -n 9 2>/dev/null || [ $? != 1 ] || fail "-o $folder: another call is using it; wait for it, or name another folder"
[ -s "$folder/source" ] || echo "$source" >&9

# The trainer takes the last one of a flag that is there twice.
recipe=(-e d12 -b 64 -t 1024 -d 65536 --recipe muon -s 0 -m 40)

run=$folder/run
without_tokens() { has "${tokens}"_*.bin "$run" || : >"$folder/source"; exit 1; }

# ----------------------------------------------------------------------------
# Tokens

table=()
if [ ${#text[@]} -gt 0 ]; then
    tokens=$folder/text
    val=("${tokens}"_val*.bin)
    # again of a text that has changed, but for a run that has begun with its tokens
    if ! has "${tokens}"_train*.bin || ! has "${val[@]}" ||
        { ! has "$run"/model_*.bin && [ -n "$(find "${text[@]}" -newer "${val[0]}" -print -quit)" ]; }; then
        echo "== tokens of $source"
        special=(--allow-special)
        [ "${TOKENIZER:-}" != bytes ] || special=(--tokenizer bytes)
        python3 dev/data/text.py "${text[@]}" --output "$tokens" "${special[@]}" || without_tokens
    fi
elif [ -z "$tokens" ]; then
    tokens=$folder/fineweb
    if ! has "$run"/model_*.bin; then
        shards=$(awk -v minutes="$minutes" 'BEGIN { n = int(minutes * 7 / 15 + .99); print n < 1 ? 1 : n }') # enough for 780 K tokens/s
        echo "== FineWeb: $shards shards of 100 M tokens to train on, and one to validate"
        python3 dev/data/fineweb.py --max-shards $((shards + 1)) || without_tokens
        # links to the run's own shards: other calls fetch more of them. Symbolic ones only on another file system.
        links=("$PWD"/dev/data/fineweb10B/fineweb_train_*.bin)
        links=("${links[@]:0:shards}" "$PWD"/dev/data/fineweb10B/fineweb_val_*.bin)
        rm -f "${tokens}"_*.bin
        ln -L "${links[@]}" "$folder" 2>/dev/null || ln -sf "${links[@]}" "$folder"
    fi
fi
[ ! -e "${tokens%/*}/gpt2_tokenizer.bin" ] || table=(--tokenizer "${tokens%/*}/gpt2_tokenizer.bin")
literal=$(printf '%s' "$tokens" | sed 's/[][*?\\]/\\&/g') # of a name that the trainer would take for a pattern
data=(-i "${literal}_train*.bin" -j "${literal}_val*.bin" ${table[@]+"${table[@]}"})

# ----------------------------------------------------------------------------
# What it takes

measured() { sed -n 's/^total average iteration time: \([0-9.]*\) ms/\1/p' "$folder/speed.log" 2>/dev/null; } # ms
plan() { # says what the run takes
    "$trainer" "${settings[@]}" --plan >"$folder/plan.log" 2>&1 || fail "$(error_in "$folder/plan.log")"
    echo "a step takes $ms ms: $steps steps in $minutes minutes"
    grep -E '^\| (GPU peak|host peak|training tokens|steps|checkpoints|disk available)' "$folder/plan.log"
}
recorded() { # FILE PATTERN: prints what the run's first call recorded
    [ -s "$folder/$1" ] && [[ $(<"$folder/$1") =~ $2 ]] && cat "$folder/$1" && return
    fail "$folder/$1 is missing or damaged: write the $1 of the run's first call into it, or name another folder"
}
if has "$run"/model_*.bin; then
    minutes=$(recorded minutes "$number")
    [ -z "$asked" ] || [ "$asked" = "$minutes" ] || fail "--minutes $asked: the run in $folder has $minutes; name another folder"
    had=$(recorded flags "")
    [ $# = 0 ] || [ "$*" = "$had" ] || fail "-- $*: the run in $folder has ${had:-no flags}; name another folder"
    echo "== goes on from the newest checkpoint of $run"
    settings=(-o "$run" -y 1)
    [[ $had =~ (^| )(-[ij]|--(train-data|val-data|tokenizer))[\ =] ]] || settings+=("${data[@]}") # the folder may have been moved
    steps=$(sed -n 's/^result --max-steps //p' "$run/main.flags" 2>/dev/null || :)
    [ -n "$steps" ] || fail "$run/main.flags does not say how many steps the run has; name another folder"
    ms=$(measured || echo "?")
    [ $only_cost = 0 ] || plan
else
    echo "== the speed of a step"
    ended_with_us "$trainer" "${recipe[@]}" "${data[@]}" "$@" -v 0 -m 1 -n 0 -x 12 >"$folder/speed.log" 2>&1 || [ $stopped = 1 ] ||
        fail "the trainer failed: $(error_in "$folder/speed.log"); all it said is in $folder/speed.log"
    [ $stopped = 0 ] || fail "stopped by a signal before the first step: the same command begins again"
    ms=$(measured)
    [ -n "$ms" ] || fail "the trainer timed no step; what it said is in $folder/speed.log"
    steps=$(awk -v ms="$ms" -v minutes="$minutes" 'BEGIN { n = int(minutes * 60000 / ms); print n < 20 ? 20 : n }')
    between() { awk -v ms="$ms" -v minutes="$1" 'BEGIN { n = int(minutes * 60000 / ms); print n < 1 ? 1 : n }'; }
    settings=("${recipe[@]}" "${data[@]}" -o "$run" -x "$steps" -v "$(between 1)" -n "$(between 2)" -nk 2 "$@")
    [ ! -e "$run" ] || settings+=(--overwrite 1) # it has no checkpoint yet
    plan
    echo "$minutes" >"$folder/minutes"
    echo "$*" >"$folder/flags"
fi
[ $only_cost = 0 ] || exit 0

# ----------------------------------------------------------------------------
# Train, and see

if [ ! -e "$(printf '%s/DONE_%08d' "$run" "$steps")" ]; then
    ended_with_us "$trainer" "${settings[@]}" || {
        code=$?
        [[ $code != [13] ]] || exit $code # the trainer has said why, and the same command may end the same way
        fail "the trainer ended with exit code $code; the same command goes on from its newest checkpoint, if there is one"
    }
fi
if [ ! -e "$(printf '%s/DONE_%08d' "$run" "$steps")" ]; then
    echo "stopped before step $steps: the same command goes on"
    exit 0
fi
prompt=("$generator" -e "$run" ${table[@]+"${table[@]}"})
[ -e "$folder/hugging_face" ] || "${prompt[@]}" --export "$folder/hugging_face"
echo "== what it writes"
"${prompt[@]}" --prompt "The " --tokens 100 --top-k 40 --quiet || echo "note: the model and its export are complete; only the sample is missing"
echo
echo "The model is in $run, and for transformers in $folder/hugging_face. Next:"
printf -v typed '%q ' "${prompt[@]}"
echo "  $typed--interactive"
echo "  $typed--perplexity YOUR_TEXT"
printf '  scripts/plot_run.py %q --html %q\n' "$run" "$folder/report.html"
