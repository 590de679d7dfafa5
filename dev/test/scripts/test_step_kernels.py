#!/usr/bin/env python3
"""Tests of dev/bench/step_kernels.py, with stand-ins for nvidia-smi and for the program that measures.

python3 dev/test/scripts/test_step_kernels.py
"""

import argparse
import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))

import step_kernels

import unit
from measuring_tools import called
from unit import program, refused

LINES = [
    "fc,12,9.5000,9.0000,6.0000,12.000,12.0000",
    "AdamW,1,0.9000,0.8000,0.5000,4.000,0.0000",
    "step,13,10.4000,10.0000,7.0000,16.000,12.0000",
    "GEMMs alone,12,8.0000,8.0000,5.0000,11.000,12.0000",
]


def printing(lines, code=0):
    """A stand-in that prints these lines, and its arguments on stderr."""
    return '#!/bin/sh\necho "$@" >&2\n' + "".join(f"echo '{line}'\n" for line in lines) + f"exit {code}\n"


def measured(folder, text, commit, *flags):
    path = os.path.join(folder, "out", "step_kernels.csv")
    return called(step_kernels, folder, path, "--program", program(folder, "kernels", text), *flags, commit=commit)


def test_rows_say_what_was_measured_and_where(folder):
    for _ in range(2):  # a second call's rows take the place of the first's
        rows, said = measured(folder, printing(LINES), "abcdef0", "--cases", "d12:64", "d48:8")
    assert len(rows) == 2 * len(LINES), rows
    assert list(rows[0]) == step_kernels.COLUMNS and None not in rows[0].values(), rows[0]
    assert [rows[4][name] for name in ("model", "B", "T", "group", "ms", "joules")] == [
        *("d48", "8", "1024", "fc", "9.5000", "6.0000")
    ], rows[4]
    assert (rows[0]["gpu"], rows[0]["driver"], rows[0]["commit"]) == ("NVIDIA H200", "580.1", "abcdef0"), rows[0]
    assert "share of the limit: 80.0%" in said, said  # 8 ms of 10, both alone
    assert "| fc | 9.50 | 6.00 | 12.0 | 0.50 |" in said, said  # pJ a FLOP
    assert "| AdamW | 0.90 | 0.50 | 4.0 | 125 |" in said, said  # pJ a byte


def test_an_earlier_commit_stays_beside_a_later_one(folder):
    measured(folder, printing(LINES), "before0", "--cases", "d12:64")
    later = [line.replace("9.5000", "9.1000") for line in LINES if not line.startswith("AdamW")]
    rows, _ = measured(folder, printing(later), "after00", "--cases", "d12:64")
    assert len(rows) == 7, rows
    _, said = measured(folder, "#!/bin/sh\nexit 1\n", "none", "--table", "before0", "after00")
    assert "| | before0: ms | J | GB | pJ a byte or FLOP | after00: ms | J | GB |" in said, said
    assert "| fc | 9.50 | 6.00 | 12.0 | 0.50 | 9.10 | 6.00 | 12.0 | 0.50 |" in said, said
    assert "| AdamW | 0.90 | 0.50 | 4.0 | 125 | | | | |" in said, said
    refused("no rows of this commit", measured, folder, "", "none", "--table", "before0", "elsewhere")


def test_joules_may_be_missing(folder):
    lines = [re.sub(r"^(([^,]*,){4})[^,]*", r"\1", line) for line in LINES]
    rows, said = measured(folder, printing(lines), "abcdef0", "--cases", "d12:64")
    assert rows[0]["joules"] == "" and "| fc | 9.50 | - | 12.0 | - |" in said, said


def test_a_program_that_fails_ends_it_with_what_it_said(folder):
    flags = ("--cases", "d12:64")
    refused("exit code 1: d12 64 1024", measured, folder, printing([], 1), "abcdef0", *flags)
    refused("exit code 0", measured, folder, printing(LINES[:-1]), "abcdef0", *flags)  # it stopped before the GEMMs
    refused("exit code 0", measured, folder, printing(["fc,12", *LINES[1:]]), "abcdef0", *flags)
    for text in ("d12", ":4", "d12:0", "d12:x"):
        refused("", step_kernels.case, text, error=argparse.ArgumentTypeError)


def test_the_program_has_the_lines_that_end_its_output(_folder):
    source = unit.read(os.path.join(step_kernels.ROOT, "dev", "bench", "step_kernels.cu"))
    printed = re.findall(r'print_line\("([^"]+)"', source)
    assert printed == [step_kernels.STEP, step_kernels.LIMIT], printed


def test_every_launch_of_a_pass_is_in_a_group(_folder):
    """Functions that train_gpt2.cu gives its stream, in forward, backward and update, are those that are wrapped."""
    folder = step_kernels.ROOT
    wrapped = set(
        re.findall(
            r"^#define (\w+)\(\.\.\.\)",
            unit.read(os.path.join(folder, "dev", "bench", "step_kernels.cu")),
            re.MULTILINE,
        )
    )
    passes = re.search(
        r"\n// Forward\n.*\n// The program\n", unit.read(os.path.join(folder, "train_gpt2.cu")), re.DOTALL
    ).group()
    calls = re.findall(r"(?<![\w.>])([a-z]\w+)\(((?:[^()]|\([^()]*\)|\((?:[^()]|\([^()]*\))*\))*)\)", passes)
    launches = {name for name, arguments in calls if re.search(r"\bstream\b|&groups|&model->matmul", arguments)}
    own = {name for name in launches if name.startswith(("gpt2_", "cuda", "pass_graph_"))}
    # not of a step with AdamW: validation, sums of several micro-steps, logits that are asked for, Muon
    others = {"classifier_losses", "carry_add", "matmul_logits", "muon_update"}
    assert launches - own - wrapped == others, launches - own - wrapped
    assert wrapped <= launches, wrapped - launches


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
