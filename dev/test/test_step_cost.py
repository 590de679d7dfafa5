#!/usr/bin/env python3
"""Tests of dev/bench/step_cost.py with programs that only sleep; seconds.

python3 dev/test/test_step_cost.py
"""

import contextlib
import csv
import io
import os
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "bench"))

import step_cost

import unit

SHAPE = ("d12", 256, 4, 32)


def program(folder, name, first, then, steps=7, code=0):
    """A stand-in for a trainer: its first two steps take `first` seconds each, the others `then`."""
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(f'#!/bin/sh\necho "$@" >>{folder}/said\nfor i in $(seq {steps}); do\n')
        f.write(
            f"if [ $i -le 2 ]; then sleep {first}; else sleep {then}; fi\necho step $i/{steps}\ndone\nexit {code}\n"
        )
    os.chmod(path, 0o755)
    return path


def quietly(function, *arguments):
    with contextlib.redirect_stdout(io.StringIO()):
        return function(*arguments)


def test_the_first_steps_do_not_count(folder):
    before, now = program(folder, "before", 1, 0.02), program(folder, "now", 0.01, 0.06)
    row = quietly(step_cost.compare, {"before": before, "now": now}, SHAPE, folder, 2)
    assert 20 <= float(row["before_ms"]) < 200 and float(row["now_ms"]) >= 60, row  # the first two would make it 300
    assert row["rounds"] == 2 and row["steps"] == 5, row
    with open(os.path.join(folder, "said"), encoding="utf-8") as f:
        said = f.read().splitlines()
    assert len(said) == 4 and len(set(said)) == 1 and "-b 4 -t 32 -x 7" in said[0], said


def test_a_trainer_that_fails_ends_in_one_line(folder):
    for steps, code in ((7, 1), (6, 0)):
        path = program(folder, "bad", 0, 0, steps, code)
        try:
            step_cost.milliseconds(path, SHAPE, folder)
        except SystemExit as error:
            assert f"exit code {code}, {steps} steps: step {steps}" in str(error.code), error.code
            continue
        raise AssertionError("it was timed")


def test_a_row_replaces_that_of_its_machine_and_shape(folder):
    path = os.path.join(folder, "new", "a.csv")
    row = {**dict.fromkeys(step_cost.COLUMNS, "x"), "B": 4}
    for machine, percent in (("one", "1"), ("two", "2"), ("one", "3")):
        key = ("machine", "model", "B", "T")
        quietly(step_cost.write_rows, path, step_cost.COLUMNS, key, [{**row, "machine": machine, "percent": percent}])
    with open(path, newline="", encoding="utf-8") as f:
        assert [(r["machine"], r["percent"]) for r in csv.DictReader(f)] == [("two", "2"), ("one", "3")]


if __name__ == "__main__":
    step_cost.WARM_UP, step_cost.STEPS = 2, 5
    sys.exit(unit.run(globals()))
