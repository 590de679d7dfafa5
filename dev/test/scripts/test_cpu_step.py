#!/usr/bin/env python3
"""Tests of dev/bench/cpu_step.sh and busy_step.sh, with stand-ins for what they build, and of build/cpu_decode.

make build/cpu_decode && python3 dev/test/scripts/test_cpu_step.py
"""

import csv
import os
import shutil
import subprocess
import sys

import unit
from unit import program

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

# a trainer whose first step is slow, and whose others take the milliseconds of MS, in turn
STEPS = """#!/bin/bash
[ "$1" != new ] || exit 0
echo "step 1 loss 5 ms 900.0"
n=1; for ms in MS; do n=$((n + 1)); echo "step $n loss 5 ms $ms"; done
echo "peak_mib PEAK"
"""


def bench(folder, script, *arguments):
    """The rows of dev/bench/<script>.csv that a copy of a script writes with the stand-ins, and its output."""
    os.makedirs(f"{folder}/dev/bench")
    os.makedirs(f"{folder}/build")
    os.makedirs(f"{folder}/llm.c/llmc")
    open(f"{folder}/llm.c/train_gpt2.c", "w").close()
    shutil.copy(os.path.join(ROOT, "dev", "bench", f"{script}.sh"), f"{folder}/dev/bench")
    program(folder, "ours", STEPS.replace("MS", "20.0 12.0 16.0").replace("PEAK", "70"))
    program(folder, "theirs", STEPS.replace("MS", "90.0 80.0 85.0").replace("PEAK", "90"))
    program(folder, "make", f"#!/bin/sh\ncp {folder}/ours build/cpu_step\n")
    program(folder, "cc", f'#!/bin/sh\nwhile [ "$1" != -o ]; do shift; done\ncp {folder}/theirs "$2"\n')
    program(folder, "git", "#!/bin/sh\necho abc1234\n")
    done = subprocess.run(
        [f"dev/bench/{script}.sh", *arguments],
        cwd=folder,
        env={**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    with open(f"{folder}/dev/bench/{script}.csv", newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f)), done.stdout


def test_a_row_has_medians_minima_and_memory_of_both(folder):
    rows, said = bench(folder, "cpu_step", "llm.c", "2")
    assert "B=4 T=64 round 1: ours 16.0 ms, llm.c 85.0 ms\n" in said, said
    columns = ["commit", "B", "T", "ms", "ms_llmc", "ratio", "ms_min", "ms_min_llmc", "peak_mib", "peak_mib_llmc"]
    found = [[row[name] for name in columns] for row in rows]
    figures = ["16", "85", "5.31", "12.0", "80.0", "70", "90"]
    assert found == [["abc1234", B, T, *figures] for B, T in (("4", "64"), ("1", "1024"))], found


def test_a_busy_step_is_held_against_its_fair_share(folder):
    rows, said = bench(folder, "busy_step", "1", "2")
    (row,) = rows
    assert (row["commit"], row["load"], row["ms_alone"], row["ms"]) == ("abc1234", "1", "16", "16"), row
    cores = int(row["cores"])
    assert row["times_fair_share"] == f"{cores / (cores + 1):.2f}" and row["times_fair_share"] in said, row


def test_the_decoder_that_is_timed_decodes(_):
    """All sequences have the same prompt, so the tokens of two are twice those of one; more tokens are a larger sum."""
    sums = []
    for batch, new in ((1, 4), (2, 4), (1, 8)):
        command = [os.path.join(ROOT, "build", "cpu_decode"), "gpt2:l1c64h1t64", str(batch), "4", str(new), "1"]
        words = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
        sums.append(int(words[words.index("token_sum") + 1]))
    assert 0 < sums[0] < sums[2] and sums[1] == 2 * sums[0], sums


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
