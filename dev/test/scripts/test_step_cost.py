#!/usr/bin/env python3
"""Tests of dev/bench/step_cost.py and plan_accuracy.py with programs that only sleep or speak; seconds.

python3 dev/test/scripts/test_step_cost.py
"""

import contextlib
import csv
import io
import multiprocessing
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))

import measured
import plan_accuracy
import step_cost

import unit
from measuring_tools import called
from unit import refused

SHAPE = ("d12", 256, 4, 32)


def program(folder, name, first, then, steps=7, code=0):
    """A stand-in for a trainer: its first two steps take `first` seconds each, the others `then`."""
    text = f'#!/bin/sh\necho "$@" >>{folder}/said\nfor i in $(seq {steps}); do\n'
    text += f"if [ $i -le 2 ]; then sleep {first}; else sleep {then}; fi\necho step $i/{steps}\ndone\nexit {code}\n"
    return unit.program(folder, name, text)


def quietly(function, *arguments):
    with contextlib.redirect_stdout(io.StringIO()):
        return function(*arguments)


def test_the_first_steps_do_not_count(folder):
    before, now = program(folder, "before", 1, 0.02), program(folder, "now", 0.01, 0.06)
    row = quietly(step_cost.compare, {"before": before, "now": now}, SHAPE, folder, 2)
    assert 20 <= float(row["before_ms"]) < 200 and float(row["now_ms"]) >= 60, row  # the first two would make it 300
    assert row["rounds"] == 2 and row["steps"] == 5, row
    said = unit.read(os.path.join(folder, "said")).splitlines()
    assert len(said) == 4 and len(set(said)) == 1 and "-b 4 -t 32 -x 7" in said[0], said


def test_a_trainer_that_fails_ends_in_one_line(folder):
    for steps, code in ((7, 1), (6, 0)):
        path = program(folder, "bad", 0, 0, steps, code)
        refused(f"exit code {code}, {steps} steps: step {steps}", step_cost.milliseconds, path, SHAPE, folder)


def test_the_plan_and_what_was_used_are_read(folder):
    text = "#!/bin/sh\necho GPU memory: 90 MiB planned, 91 MiB used\necho host memory: 7 MiB planned, 6 MiB used\n"
    path = unit.program(folder, "trainer", text)
    said = plan_accuracy.measure(path, ("d12", 256, 4, 32, "-r 2"), folder)
    assert said == [("GPU", 90, 91), ("host", 7, 6)], said
    other = program(folder, "other", 0, 0)
    refused(
        "says nothing of planned and used memory", plan_accuracy.measure, other, ("d12", 256, 4, 32, "-r 2"), folder
    )
    lines = re.findall(
        r'printf\("((?:GPU|host) memory: [^"]*)\\n"',
        unit.read(os.path.join(plan_accuracy.ROOT, "llmc", "run", "plan.h")),
    )
    assert sorted(lines) == [f"{kind} memory: %.0f MiB planned, %.0f MiB used" for kind in ("GPU", "host")], lines


def test_rows_say_which_trainer_was_measured_and_where(folder):
    """Of main(), with stand-ins for what it builds: the CPU's trainer, and that of a GPU."""
    kept = step_cost.build, plan_accuracy.build, plan_accuracy.measure, step_cost.SHAPES
    built, before = [], os.path.join(folder, "before")
    os.mkdir(before)
    for name, text in (("COMMIT", "1234567\n"), ("Makefile", "")):
        unit.write(os.path.join(before, name), text)

    def build(sources, name):
        built.append((os.path.basename(sources), name))
        return program(folder, name, 0, 0)

    step_cost.build = plan_accuracy.build = build
    plan_accuracy.measure = lambda program, shape, folder: [("host", 50, 60), ("GPU", 0, 7)]
    step_cost.SHAPES = {name: [SHAPE] for name in step_cost.SHAPES}
    try:
        for tool, flags in ((step_cost, [before, "--rounds", "1"]), (plan_accuracy, [])):
            path = os.path.join(folder, f"{tool.__name__}.csv")
            for name, machine, driver in (
                ("train_gpt2", measured.processor(), ""),
                ("train_gpt2cu", "NVIDIA H200", "580.1"),
            ):
                built.clear()
                rows, _ = called(tool, folder, path, *flags, *([] if driver else ["--cpu"]))
                row = rows[-1]
                assert (row["machine"], row["driver"], row["commit"]) == (machine, driver, "abcdef0"), row
                assert {trainer for _, trainer in built} == {name} and None not in row.values(), (built, row)
                if tool is step_cost:
                    assert built[0] == ("before", name) and row["before"] == "1234567" and row["B"] == "4", (built, row)
                else:
                    found = [r for r in rows if r["machine"] == machine]
                    assert len(found) == 2 * len(plan_accuracy.SHAPES[name]), found
                    assert [r["percent"] for r in found[:2]] == ["20.00", ""] and found[0]["planned_mib"] == "50", found
    finally:
        step_cost.build, plan_accuracy.build, plan_accuracy.measure, step_cost.SHAPES = kept


def test_a_row_replaces_that_of_its_machine_and_shape(folder):
    path = os.path.join(folder, "new", "a.csv")
    row = {**dict.fromkeys(step_cost.COLUMNS, "x"), "B": 4}
    for machine, percent in (("one", "1"), ("two", "2"), ("one", "3")):
        key = ("machine", "model", "B", "T")
        quietly(measured.write_rows, path, step_cost.COLUMNS, key, [{**row, "machine": machine, "percent": percent}])
    with open(path, newline="", encoding="utf-8") as f:
        assert [(r["machine"], r["percent"]) for r in csv.DictReader(f)] == [("two", "2"), ("one", "3")]


def test_processes_may_write_rows_at_once(folder):
    path = os.path.join(folder, "a.csv")

    def write(machine):
        for B in range(40):
            quietly(measured.write_rows, path, ("machine", "B"), ("machine", "B"), [{"machine": machine, "B": B}])

    writers = [multiprocessing.get_context("fork").Process(target=write, args=(n,)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    with open(path, newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) == 160 and os.listdir(folder) == ["a.csv"], (len(rows), os.listdir(folder))


def test_rows_that_do_not_fit_a_file_replace_nothing(folder):
    path = os.path.join(folder, "a.csv")
    row = {**dict.fromkeys(step_cost.COLUMNS, "x"), "B": 4}

    def write():
        quietly(measured.write_rows, path, step_cost.COLUMNS, ("machine", "B"), [row])

    for there in (b"machine,B,unknown\none,4,5\n", b"machine,ms\none,5\n", b"machine,B\none,4,5\n"):
        with open(path, "wb") as f:
            f.write(there)
        refused(f"{path} has other columns", write)
        with open(path, "rb") as f:
            assert f.read() == there
        with open(f"{path}.new", newline="", encoding="utf-8") as f:
            assert [r["B"] for r in csv.DictReader(f)] == ["4"]
    for row["B"], row["percent"] in ((4, "y"), (5, "x")):  # the first is the same measurement, with another result
        refused(f"{path} has other columns", write)
    with open(f"{path}.new", newline="", encoding="utf-8") as f:
        assert [(r["B"], r["percent"]) for r in csv.DictReader(f)] == [("4", "x"), ("4", "y"), ("5", "x")]
    with open(path, "wb") as f:
        f.write(b"\xff\xfe")
    refused(f"cannot read {path}", write)
    os.remove(path)
    os.mkdir(path)
    refused(f"cannot read {path}", write)


if __name__ == "__main__":
    step_cost.WARM_UP, step_cost.STEPS = 2, 5
    sys.exit(unit.run(globals()))
