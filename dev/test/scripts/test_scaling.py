#!/usr/bin/env python3
"""Tests of dev/bench/scaling.py and what docs/measured.md shows of it, with programs that only sleep and speak.

python3 dev/test/scripts/test_scaling.py
"""

import contextlib
import csv
import functools
import importlib.util
import io
import os
import re
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))

from unittest import mock

import plot_scaling
import readme_tables
import scaling

import unit

TRAINER = """#!/bin/bash
echo "$CUDA_VISIBLE_DEVICES: $*" >>FOLDER/said
case "$*" in *"${FAILS_WITH:-no such flag}"*) echo "error: it fails"; exit 1 ;; esac
while [ $# -gt 0 ]; do
    case $1 in --gpus) gpus=$2 ;; -x) steps=$2 ;; esac
    shift
done
echo "| memory                | $((100 / gpus)) MiB  |"
for i in $(seq "$steps"); do
    if [ "$i" -le 5 ]; then sleep 0.2; else sleep 0.0$((1 + gpus)); fi
    echo "$EPOCHREALTIME" >>FOLDER/times
    echo "step $i/$steps"
done
"""


# One that sleeps in its last step alone: all lines at once would be steps of 0.000 ms.
HASTY = TRAINER.replace("sleep", ": sleep").replace(
    '    echo "$E', '    [ "$i" -lt "$steps" ] || sleep 0.1\n    echo "$E'
)
assert HASTY.count("|| sleep 0.1") == 1


def program(folder, name, text):
    return unit.program(folder, name, text.replace("FOLDER", folder))


PROFILE = """#!/bin/bash
echo "$PROFILE: $*" >>FOLDER/said
for span in step wait-gradients wait-weights wait-sums exchange-gradients exchange-weights; do
    echo "profile $span 1.5"
done
"""


os.environ.pop("CUDA_VISIBLE_DEVICES", None)  # the stand-ins for nvidia-smi know no other


def gpus(folder, n):
    """A stand-in for nvidia-smi that shows so many"""
    cases = f"-L) seq -f 'GPU %g: a' {n} ;; *name*) echo NVIDIA H200 ;; *) echo 580 ;;"
    program(folder, "nvidia-smi", f"#!/bin/sh\ncase $1 in {cases} esac\n")


def measured(folder, *flags, trainer=HASTY, here=2):
    """The rows that a run of scaling.py writes with stand-ins for nvidia-smi and the trainer, and what it printed."""
    gpus(folder, here)
    trainer, path = program(folder, "trainer", trainer), os.path.join(folder, "scaling.csv")
    profile = program(folder, "profile", PROFILE)
    before, argv = os.environ["PATH"], sys.argv
    os.environ["PATH"] = f"{folder}:{before}"
    sys.argv = ["scaling.py", "--trainer", trainer, "--output", folder, "--warm-up", "0", "--seconds", "0.5"]
    sys.argv += ["--peers", "0", "--profile", profile]
    sys.argv += flags
    out = io.StringIO()
    try:
        with contextlib.redirect_stdout(out):
            scaling.main()
    finally:
        os.environ["PATH"], sys.argv = before, argv
    with open(path, newline="", encoding="utf-8") as f:
        return path, list(csv.DictReader(f)), out.getvalue()


def test_rounds_alternate_and_take_another_gpu_each_time(folder):
    _, rows, said = measured(folder, "--models", "d12", "--others", trainer=TRAINER)
    assert [(row["gpus"], row["first_gpu"], row["round"]) for row in rows] == [
        ("1", "0", "0"),
        ("2", "0", "0"),
        ("1", "1", "1"),
        ("2", "0", "1"),
    ], rows
    times = list(map(float, unit.read(os.path.join(folder, "times")).split()))
    for i, row in enumerate(rows):
        n, run = int(row["gpus"]), times[15 * i : 15 * (i + 1)]
        ms = 1000 * (run[14] - run[4]) / 10  # with the first five steps it would be 60 more
        assert abs(float(row["ms"]) - ms) < 40, (row, ms)
        assert int(row["mib"]) == 100 // n and (row["zero"], row["sum_order"]) == (
            ("1", "tree") if n == 2 else ("", "")
        )
        assert abs(float(row["tok_s"]) - n * 65536 / float(row["ms"]) * 1000) < 1e-4 * float(row["tok_s"]), row
    commands = unit.read(os.path.join(folder, "said")).splitlines()
    assert [c.split(": ")[0] for c in commands] == ["0", "0,1", "1", "0,1", "5:20"], commands
    assert "-x 26" in commands[4] and "--gpus 2" in commands[4], commands
    with open(os.path.join(folder, "scaling_profile.csv"), newline="", encoding="utf-8") as f:
        profile = list(csv.DictReader(f))
    assert len(profile) == 1 and profile[0]["wait_weights_ms"] == "1.5" and profile[0]["gpus"] == "2", profile
    assert "-d 131072" in commands[1] and "-d 65536" in commands[0] and "-b 64" in commands[1], commands
    table = [line.split() for line in said.splitlines()[-3:]]
    assert table[0] == ["model", "GPUs", "ms", "tokens/s", "MiB", "of", "N", "x", "1", "predicted"], table
    assert table[1][:3] == ["124M", "flashgpt", "1"] and table[2][:3] == ["124M", "flashgpt", "2"], table
    of_one, predicted = (float(text.rstrip("%")) for text in table[2][-2:])
    assert abs(of_one - 100 * float(table[1][3]) / float(table[2][3])) < 0.2 and 90 < predicted < 100, table


def test_fp8_has_a_file_of_its_own(folder):
    measured(folder, "--models", "d12", "--others", "--rounds", "1")
    bf16 = unit.read(os.path.join(folder, "scaling.csv"))
    os.remove(os.path.join(folder, "said"))
    measured(folder, "--models", "d12", "--others", "--rounds", "1", "--fp8", "1")
    commands = unit.read(os.path.join(folder, "said")).splitlines()
    assert all("--fp8 1" in c and "-r 1" not in c for c in commands) and len(commands) == 3, commands
    assert unit.read(os.path.join(folder, "scaling.csv")) == bf16
    for name in "scaling_fp8.csv", "scaling_fp8_profile.csv":
        assert "d12,64,1024" in unit.read(os.path.join(folder, name)), name
    with mock.patch.object(readme_tables, "H200", os.path.relpath(folder, readme_tables.ROOT)):
        shown = readme_tables.scaling()
    assert re.search(r"steps in bf16 \(.*/scaling.csv\)\) and fp8 \(.*/scaling_fp8.csv\)\) without", shown), shown
    assert shown.count("| 2 | `--fp8 1` |") == 1 and shown.count("| 2 |  |") == 1, shown
    assert "124M in bf16 on 2 waits 1.50 ms" in shown and "124M in fp8 on 2 waits 1.50 ms" in shown, shown


def test_readme_shows_the_means_of_the_rounds(folder):
    path, rows, _ = measured(folder, "--models", "d48", "--rounds", "1")
    how = [(row["zero"], row["sum_order"], row["exchange"]) for row in rows]
    assert how[:2] == [("", "", ""), ("1", "tree", "auto")] and len(how) == 5, rows
    for i, ms in enumerate((100, 110, 105, 106, 120)):
        rows[i]["ms"] = str(ms)
    second = [{**rows[0], "ms": "104", "round": "1"}, {**rows[1], "ms": "100", "round": "1"}]
    with open(path, "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, scaling.COLUMNS)
        writer.writeheader()
        writer.writerows(rows + second)
    runs = readme_tables.scaling_runs(os.path.relpath(path, readme_tables.ROOT))
    found = {run["setting"]: (run["ms_one"], run["ms"], round(run["percent"], 1)) for run in runs}
    expected = {"": (102, 105, 97.1), "--exchange nccl": (102, 105, 97.1), "-z 0": (102, 120, 85.0)}
    expected["--sum-order any --exchange nccl"] = (102, 106, 96.2)
    assert found == expected, found
    assert runs[0]["rounds"] == 2


def test_without_measurements_readme_has_no_table(folder):
    assert readme_tables.scaling_runs(os.path.join(folder, "none.csv")) == []


def test_the_rows_of_an_earlier_call_go(folder):
    measured(folder, "--models", "d12", "--others")
    _, rows, _ = measured(folder, "--models", "d12", "--others", "--rounds", "1")
    assert len(rows) == 2, rows
    for row in rows:  # nearly all of HASTY's time is that of its last step
        assert float(row["ms"]) * int(row["steps"]) > 90, row


def test_what_was_measured_before_a_run_failed_is_kept(folder):
    os.environ["FAILS_WITH"] = "--exchange nccl"
    try:
        unit.refused("it fails", measured, folder, "--models", "d12", "--rounds", "1")
    finally:
        del os.environ["FAILS_WITH"]
    with open(os.path.join(folder, "scaling.csv"), newline="", encoding="utf-8") as f:
        assert [row["gpus"] for row in csv.DictReader(f)] == ["1", "2"]


def test_what_is_profiled_is_what_make_builds(folder):
    rules = unit.read(os.path.join(scaling.ROOT, "dev", "test", "checks.mk"))
    assert f"\n{os.path.relpath(scaling.PROFILE, scaling.ROOT)}: " in rules, scaling.PROFILE


def test_too_few_gpus_are_refused(folder):
    for n, flags, text in (
        (2, ["--gpus", "4"], "nvidia-smi shows 2 GPUs here; --gpus is 4"),
        (0, [], "shows no GPUs here"),
    ):
        unit.refused(text, functools.partial(measured, folder, *flags, here=n))


def test_without_pytorch_its_rows_are_left_out(folder):
    has_torch, scaling.has_torch = scaling.has_torch, lambda: False
    try:
        _, rows, said = measured(folder, "--models", "d12", "--rounds", "1", "--others", "--peers", "1")
    finally:
        scaling.has_torch = has_torch
    assert [row["program"] for row in rows] == ["flashgpt", "flashgpt"] and "PyTorch: skipped" in said, (rows, said)


def test_pytorch_is_measured_on_one_gpu_and_on_all(folder):
    text = 'echo "$CUDA_VISIBLE_DEVICES: $*" >>FOLDER/torch\necho "d12, PyTorch 2.11.0+cu130, NVIDIA H200"\n'
    text += 'echo "mean 100.000 ms of 10 steps (median 99.00, fastest 98.00), 9 tok/s, 31000 MiB"\n'
    kept = sys.executable, scaling.importlib.util.find_spec
    sys.executable = program(folder, "python", "#!/bin/sh\n" + text)
    scaling.importlib.util.find_spec = lambda name: name == "torch" or None
    try:
        _, rows, _ = measured(folder, "--models", "d12", "--rounds", "1", "--others", "--peers", "1")
    finally:
        sys.executable, scaling.importlib.util.find_spec = kept
    peers = [[row[c] for c in ("program", "gpus", "ms", "tok_s", "joules", "mib", "zero")] for row in rows[2:]]
    assert peers == [
        ["PyTorch 2.11", n, "100.000", tok_s, "", "31000", ""] for n, tok_s in (("1", "655360"), ("2", "1310720"))
    ]
    one, two = unit.read(os.path.join(folder, "torch")).splitlines()
    assert (
        one.startswith("0: ") and "torch.distributed.run" not in one and "--model d12 --batch 64 --time 1024" in one
    ), one
    assert two.startswith("0,1: -m torch.distributed.run") and "--nproc-per-node=2" in two, two


def test_the_bars_of_a_group_stand_side_by_side(folder):
    if importlib.util.find_spec("matplotlib") is None:
        raise unit.Skipped("no matplotlib")
    from matplotlib.axes import Axes

    path, _, _ = measured(folder, "--models", "d12", "d48", "--rounds", "1")
    drawn, kept, argv = [], Axes.bar, sys.argv
    Axes.bar = lambda axes, x, height, width, **how: drawn.append((x, width)) or kept(axes, x, height, width, **how)
    sys.argv = ["plot_scaling.py", path]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            plot_scaling.main()
    finally:
        Axes.bar, sys.argv = kept, argv
    at = sorted(x for x, _ in drawn)
    expected = [group + place for group in (0, 1) for place in (-0.3, -0.1, 0.1, 0.3)]
    assert all(abs(x - y) < 1e-9 for x, y in zip(at, expected)) and len(at) == 8, at
    assert all(0.15 < width < 0.2 for _, width in drawn) and os.path.exists(f"{folder}/scaling.svg"), drawn


def eight_gpus(folder, n, *sections):
    """What dev/bench/eight_gpus.sh says at the end on n GPUs that are not there, with a Python that has no PyTorch."""
    gpus(folder, n)
    program(folder, "trainer", HASTY)
    text = f'#!/bin/sh\ncase "$1" in *scaling.py) exec {sys.executable} "$@" --peers 0 ;; *) exit 1 ;; esac\n'
    program(folder, "python3", text)
    names = {"PATH": f"{folder}:{os.environ['PATH']}", "TRAINER": f"{folder}/trainer", "OUTPUT": folder, "COMMIT": "a"}
    command = [os.path.join(scaling.ROOT, "dev", "bench", "eight_gpus.sh"), *sections]
    done = subprocess.run(command, env={**os.environ, **names}, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.rpartition("s: of ")[2].splitlines(), done.stderr


def test_eight_gpus_in_one_call(folder):
    code, lines, _ = eight_gpus(folder, 8, "124M")
    assert code == 0 and lines[0] == "8 GPUs" and len(lines) == 9, lines
    rows = [line.split() for line in lines[2:7]]
    assert [row[:-5] for row in rows[1:]] == [
        ["124M", "flashgpt", *how] for how in (["2"], ["4"], ["8"], ["-z", "0", "8"])
    ], rows
    assert rows[0][:3] == ["124M", "flashgpt", "1"] and [row[-3] for row in rows[1:]] == ["50", "25", "12", "12"], rows
    assert lines[7].startswith("124M: ok") and lines[8].startswith("skipped: PyTorch"), lines
    commands = unit.read(os.path.join(folder, "said")).splitlines()
    assert len(commands) == 5 and all("-x 174 " in command for command in commands), commands
    assert "-d 524288" in commands[3] and commands[4].endswith("-z 0 --sum-order tree --exchange auto"), commands


def test_what_fewer_gpus_cannot_do_is_said(folder):
    code, lines, _ = eight_gpus(folder, 1, "bits", "killed")
    skipped = ["bits: one GPU here", "killed: one GPU here", "PyTorch: this Python has none"]
    expected = [*skipped[:2], *(f"{n} GPUs: 1 here" for n in (2, 4, 8)), skipped[2]]
    assert code == 0 and lines == ["1 GPUs", *(f"skipped: {text}" for text in expected)], lines


def test_a_section_that_is_not_there_is_named(folder):
    code, _, said = eight_gpus(folder, 8, "124")
    assert code == 1 and said == "error: 124: no such section; choose of: 124M 1558M bits killed\n", said


def test_a_run_that_fails_fails_the_call(folder):
    os.environ["FAILS_WITH"] = "-z 0"
    try:
        code, lines, _ = eight_gpus(folder, 2, "124M")
    finally:
        del os.environ["FAILS_WITH"]
    assert code == 1 and any(line.startswith("124M: FAILED") for line in lines), lines


if __name__ == "__main__":
    scaling.SLOWEST = dict.fromkeys(scaling.SLOWEST, 0.05)
    sys.exit(unit.run(globals()))
