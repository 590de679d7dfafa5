#!/usr/bin/env python3
"""Tests of the table of planted faults, dev/test/planted_faults.txt: every row, of those that need a GPU too, still
changes its file, and names a place and a check that there are.

    python3 dev/test/scripts/test_planted_table.py          # ends in 'N passed, N failed'; seconds

Needs sed and make.
"""

import os
import subprocess
import sys

import unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
PLACES = {"cpu", "bf16", "fp32"}


def rows():
    """name, places, check, file and sed expression of each fault"""
    with open(os.path.join(ROOT, "dev", "test", "planted_faults.txt"), encoding="utf-8") as f:
        lines = [line.rstrip("\n") for line in f if line.strip() and not line.startswith("#")]
    for line in lines:
        name, where, check, path, expression = line.split(None, 4)
        yield name, where.split(","), check, path, expression


def faults_of(row, checks):
    """What is wrong with a row, as a list of texts."""
    name, places, check, path, expression = row
    found = [f"{name}: {place} is none of {sorted(PLACES)}" for place in places if place not in PLACES]
    for place in set(places) & PLACES:
        if "check-" + check.replace("%", place) not in checks:
            found.append(f"{name}: no check {check} in {place}")
    source = os.path.join(ROOT, path)
    if not os.path.exists(source):
        return [*found, f"{name}: no file {path}"]
    before = unit.read(source)
    done = subprocess.run(["sed", expression, source], check=False, capture_output=True, text=True)
    if done.returncode or done.stdout == before:
        found.append(f"{name}: no longer applies to {path}: {done.stderr.strip()}")
    return found


def known_checks():
    command = ["make", "-s", "checks", "NVCC=true"]  # those of the GPU, too, where there is no nvcc
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return set(done.stdout.split())


def test_every_fault_still_applies(_):
    checks = known_checks()
    found = [fault for row in rows() for fault in faults_of(row, checks)]
    assert not found, "\n".join(found)


def test_names_are_there_once(_):
    names = [name for name, *_ in rows()]
    twice = sorted({name for name in names if names.count(name) > 1})
    assert names and not twice, twice


def test_a_row_that_is_wrong_is_named(_):
    checks = known_checks()
    good = ("x", ["cpu"], "test_gpt2", "train_gpt2.c", "1s/.*/x/")
    assert faults_of(good, checks) == []
    wrong = ((1, ["both"]), (2, "test_of_nothing"), (3, "nothing.c"), (4, "s/no such text//"), (4, "s/(/"))
    for column, value in wrong:
        bad = tuple(value if i == column else x for i, x in enumerate(good))
        assert len(faults_of(bad, checks)) == 1, (bad, faults_of(bad, checks))


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
