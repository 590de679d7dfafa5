#!/usr/bin/env python3
"""Tests of dev/bench/generate.py, with stand-ins for nvidia-smi and for the program that is timed.

python3 dev/test/scripts/test_generate_bench.py
"""

import argparse
import contextlib
import io
import os
import sys
import types
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))

import generate
import unit
from measuring_tools import called
from unit import program

SPEED = '#!/bin/sh\necho "flashgpt,$1,$2,$3,$4,100.0,110.0,2.500,900.00"\n'


def measured(folder, speed, *flags):
    flags = ["--program", program(folder, "speed", speed), "--only-ours", *flags]
    return called(generate, folder, os.path.join(folder, "out", "generate.csv"), *flags)


def test_rows_say_what_was_measured_and_where(folder):
    for _ in range(2):  # a second call's rows take the place of the first's
        rows, said = measured(folder, SPEED, "--prompt", "16", "--new", "32")
    assert [(row["model"], row["batch"]) for row in rows] == [
        ("d12", "1"),
        ("d12", "8"),
        ("d12", "16"),
        ("d12", "64"),
        ("d48", "1"),
    ], rows
    for row in rows:
        assert list(row) == generate.COLUMNS and None not in row.values(), row
        assert (row["prompt"], row["new"], row["tokens_per_s"], row["step_us"]) == ("16", "32", "100.0", "900.00"), row
        assert [row[c] for c in ("gpu", "driver", "cuda", "commit")] == ["NVIDIA H200", "580.1", "13.0", "abcdef0"], row
    assert "flashgpt,d48,1,16,32,100.0" in said, said


def test_a_program_that_fails_ends_it_with_what_it_said(folder):
    for speed in ("#!/bin/sh\necho 'error: no GPU' >&2\nexit 1\n", "#!/bin/sh\necho 'error: no GPU'\n"):
        unit.refused("no GPU", measured, folder, speed)


def test_cases_are_chosen_and_checked(folder):
    rows, _ = measured(folder, SPEED, "--cases", "d12:7", "d48:2")
    assert [(row["model"], row["batch"]) for row in rows] == [("d12", "7"), ("d48", "2")], rows
    for text in ("d13:1", "d12", "d12:0", ":1"):
        unit.refused("is not", generate.case, text, error=argparse.ArgumentTypeError)


def test_rounds_are_timed_but_for_the_first(_folder):
    clock = iter([0, 200, 203, 300, 305])  # the beginning of one that warms up, and beginnings and ends of two
    torch = types.SimpleNamespace(cuda=types.SimpleNamespace(synchronize=lambda: None))
    prompt = types.SimpleNamespace(shape=(1, 4))
    with (
        mock.patch.dict(sys.modules, torch=torch),
        mock.patch.object(generate.time, "perf_counter", lambda: next(clock)),
    ):
        seconds = generate.timed(lambda _, new: types.SimpleNamespace(shape=(1, 4 + new)), prompt, 3, 2)
    assert seconds == [3, 5], seconds


def peers(row_of):
    """The rows of peer_rows, and what it says on stderr."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        rows = list(generate.peer_rows([("d12", 1), ("d12", 64)], 64, 192, 2, row_of))
    return rows, said.getvalue().splitlines()


def test_a_peer_that_fails_is_one_line_and_the_others_go_on(_folder):
    def row_of(who, model, batch, *_):
        if who == "transformers compiled" and batch == 1:
            raise RuntimeError("accessing tensor output of CUDAGraphs\nStack trace:\n...")
        return f"{who},{model},{batch}"

    rows, said = peers(row_of)
    assert rows == ["transformers,d12,1", "transformers,d12,64", "transformers compiled,d12,64"], rows
    assert said == ["transformers compiled, d12 batch 1: failed, accessing tensor output of CUDAGraphs"], said


def test_without_transformers_the_peers_are_skipped(_folder):
    def row_of(*_):
        raise ImportError("No module named 'transformers'")

    assert peers(row_of) == ([], ["transformers: skipped, No module named 'transformers'"])


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
