#!/usr/bin/env python3
"""What the guards of a run cost: steps of this trainer beside those of an earlier one, in turns.

    git worktree add build/before COMMIT            # the sources to compare with; or any folder that holds them
    dev/bench/step_cost.py build/before             # 9 minutes on an H200: builds both, then 4 rounds of each shape
    dev/bench/step_cost.py build/before --cpu       # ./train_gpt2 and a small model instead: 2 minutes on two cores

Both train on the same random tokens with the same flags, into a folder (main.log), which in this trainer means with its
checks on: numbers that are not finite, signals, the watchdog. The order is before, now, now, before, so that a GPU that
grows warm slows both alike. A step takes what passes between two of its lines, as a pipe receives them.

A row of <gpu>/step_cost.csv (or cpu_step_cost.csv) for each shape: the means of `before` and `now` over all rounds, the
mean of the rounds' ratios, and how far these stray from it at most. It replaces the row of the same machine and shape.
"""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from array import array

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from measured import BENCH, commit_of, file_name, gpu_query, processor, provenance, this_commit, write_rows

from data_common import ROOT, Parser, TokenFile, fail, positive_int, run

WARM_UP, STEPS = 50, 200
SHAPES = {  # model, vocabulary, B, T: the largest batch of docs/measured.md, one whose step is short; and quickstart's
    "train_gpt2cu": [("d12", 50257, 64, 1024), ("d12", 50257, 4, 1024)],
    "train_gpt2": [("gpt2:l4c128h4t64", 256, 16, 64)],
}
COLUMNS = [
    *["model", "B", "T", "before_ms", "now_ms", "percent", "percent_strays", "rounds", "steps"],
    *["machine", "driver", "cuda", "date", "before", "commit"],
]


def build(folder, program):
    """Builds a trainer; returns its path."""
    done = subprocess.run(["make", "-s", "-C", folder, program, "WERROR="], check=False, capture_output=True, text=True)
    if done.returncode:
        fail(f"make {program} failed in {folder}: {(done.stderr.strip() or 'no message').splitlines()[-1]}")
    return os.path.join(os.path.abspath(folder), program)


def write_tokens(path, vocab_size, count=1 << 20):
    with TokenFile(path, vocab_size) as out:
        out.append(array("H", random.Random(1).choices(range(vocab_size), k=count)))
        out.finish()


def milliseconds(program, shape, folder):
    """Mean milliseconds of a step after the first ones."""
    model, vocab_size, B, T = shape
    tokens, out = os.path.join(folder, f"tokens_{vocab_size}.bin"), os.path.join(folder, "run")
    if not os.path.exists(tokens):
        write_tokens(tokens, vocab_size)
    shutil.rmtree(out, ignore_errors=True)
    command = [program, "-e", model, "-i", tokens, "-j", tokens, "-b", str(B), "-t", str(T), "-x", str(WARM_UP + STEPS)]
    command += ["-v", "0", "-m", "0", "-s", "0", "-n", "0", "-o", out]
    command += ["-r", "1"]  # the default before there was "auto"
    ends, said = [], []
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as process:
        for line in process.stdout:
            said = [*said[-9:], line]
            if line.startswith("step "):
                ends.append(time.perf_counter())
    if process.returncode or len(ends) != WARM_UP + STEPS:
        fail(f"{' '.join(command)}: exit code {process.returncode}, {len(ends)} steps: {''.join(said[-1:]).strip()}")
    return 1000 * (ends[-1] - ends[WARM_UP - 1]) / STEPS


def compare(programs, shape, folder, rounds):
    """The columns before_ms to steps of a shape's row."""
    times = {"before": [], "now": []}
    for turn in range(rounds):
        for which in ("before", "now") if turn % 2 == 0 else ("now", "before"):
            times[which].append(milliseconds(programs[which], shape, folder))
        before, now = times["before"][-1], times["now"][-1]
        ratio = f"before {before:.3f} ms, now {now:.3f} ms: {100 * (now / before - 1):+.2f}%"
        print(f"{shape[0]}, B={shape[2]}, T={shape[3]}: {ratio}", flush=True)
    percents = [100 * (now / before - 1) for before, now in zip(times["before"], times["now"])]
    percent = sum(percents) / rounds
    return {
        "before_ms": f"{sum(times['before']) / rounds:.3f}",
        "now_ms": f"{sum(times['now']) / rounds:.3f}",
        "percent": f"{percent:.2f}",
        "percent_strays": f"{max(abs(p - percent) for p in percents):.2f}",
        "rounds": rounds,
        "steps": STEPS,
    }


def machine_and_file(cpu, name):
    """What is measured, and where its rows go: dev/bench/<gpu>/<name>.csv, or dev/bench/cpu_<name>.csv."""
    machine = processor() if cpu else gpu_query("name")
    if not machine:
        fail("nvidia-smi shows no GPU here; --cpu measures the CPU's trainer")
    place = f"cpu_{name}.csv" if cpu else os.path.join(file_name(machine), f"{name}.csv")
    return machine, os.path.join(BENCH, place)


def main():
    parser = Parser(__doc__)
    parser.add_argument("before", metavar="FOLDER", help="the sources to compare with")
    parser.add_argument("--cpu", action="store_true", help="compare ./train_gpt2")
    parser.add_argument("--rounds", type=positive_int, default=4, metavar="N", help="default: %(default)s")
    parser.add_argument("--output", metavar="FILE", help="default: dev/bench/<gpu>/step_cost.csv")
    args = parser.parse_args()
    program = "train_gpt2" if args.cpu else "train_gpt2cu"
    machine, path = machine_and_file(args.cpu, "step_cost")
    if not os.path.exists(os.path.join(args.before, "Makefile")):
        fail(f"{args.before} holds no sources of a trainer: there is no Makefile")
    programs = {"before": build(args.before, program), "now": build(ROOT, program)}
    common = {**provenance(machine, args.cpu), "before": commit_of(args.before), "commit": this_commit()}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES[program]:
            model, _, B, T = shape
            columns = compare(programs, shape, folder, args.rounds)
            rows.append({"model": model, "B": B, "T": T, **columns, **common})
    write_rows(args.output or path, COLUMNS, ("machine", "model", "B", "T"), rows)


if __name__ == "__main__":
    run(main)
