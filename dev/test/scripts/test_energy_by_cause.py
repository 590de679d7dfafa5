#!/usr/bin/env python3
"""Tests of dev/bench/energy_by_cause.py: every cause of its table still changes the sources, and, with stand-ins for
nvidia-smi, make and the program that measures, what it builds and writes.

python3 dev/test/scripts/test_energy_by_cause.py          # needs sed
"""

import os
import shutil
import sys
from pathlib import Path
from unittest import mock

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))

import energy_by_cause
from energy_by_cause import NOTHING, Cause

import unit
from measuring_tools import called
from unit import program, refused

# make's library says what was left out of which sources, after the real make has read their Makefile; the program's
# energy is 100 mJ less 10 for each library before
MAKE = f"""#!/bin/sh
while [ "$1" != -C ]; do shift; done
{shutil.which("make")} -n -C "$2" NVCC=nvcc libattention.so >/dev/null || exit 1
cat "$2"/dev/cuda/attention/online_softmax.cuh >"$2"/libattention.so
"""
MEASURE = """#!/bin/sh
shift 2
mj=100
for file; do echo "$file,0.5000,$mj.0000,1500"; mj=$((mj - 10)); done
"""


def measured(folder, make, measure, *flags):
    program(folder, "make", make)
    flags = ["--program", program(folder, "measure", measure), "--folder", os.path.join(folder, "built"), *flags]
    return called(energy_by_cause, folder, os.path.join(folder, "causes.csv"), *flags)


def test_every_cause_still_applies(folder):
    causes = energy_by_cause.read_causes()
    assert [cause.left_out for cause in causes].count(NOTHING) == 2 and len(causes) > 10, causes
    names = [energy_by_cause.library(folder, cause) for cause in causes]
    assert len(set(names)) == len(names), names
    for cause in causes:
        if cause.left_out == NOTHING:
            continue
        for part in ("", *cause.expression.split(";s/")):  # all edits of it, and each of them
            one = cause.expression if not part else part if part.startswith("s/") else "s/" + part
            for name in cause.path.split(","):
                target = Path(folder, name)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(Path(energy_by_cause.ROOT, name), target)
            energy_by_cause.edit(folder, cause._replace(expression=one))


def test_a_cause_that_no_longer_applies_is_named(folder):
    Path(folder, "x.cu").write_text("one\n")
    refused("no longer applies to x.cu", energy_by_cause.edit, folder, Cause("forward", "x.cu", "s/two//", "two"))
    table = Path(folder, "table.txt")
    for line in ("sideways x.cu s/a/b/   # a", "forward x.cu s/a/b/", "forward"):
        table.write_text(f"# comment\n\n{line}\n")
        refused("line 3", energy_by_cause.read_causes, table)


def test_rows_say_what_was_left_out(folder):
    rows, said = measured(folder, MAKE, MEASURE, "--shapes", "2,64,3,64", "--jobs", "1")
    causes = energy_by_cause.read_causes()
    assert [(row["direction"], row["left_out"]) for row in rows] == [
        (cause.direction, cause.left_out) for way in energy_by_cause.FLOPS for cause in causes if cause.direction == way
    ], rows
    assert list(rows[0]) == energy_by_cause.COLUMNS and None not in rows[0].values(), rows[0]
    first, second = rows[0], rows[1]
    assert (first["mj"], first["watts"], first["energy_percent"]) == ("100.000", "200", "+0.0"), first
    assert (second["mj"], second["energy_percent"], second["sm_mhz"]) == ("90.000", "-10.0", "1500"), second
    assert first["pj_per_flop"] == f"{100e9 / (2 * 2 * 3 * 64 * 64 * 64):.3f}", first
    assert (first["gpu"], first["driver"], first["commit"]) == ("NVIDIA H200", "580.1", "abcdef0"), first
    assert "| exponentials | 0.5000 | 90.000 | -10.0% | 180 | 1500 |" in said, said
    built = {path.name: path.read_text() for path in Path(folder, "built").iterdir()}
    assert len(built) == len(causes), built.keys()  # no sources are left behind
    assert "ex2_approx_ftz(fmaf" in built["forward_nothing.so"], built.keys()
    assert "ex2_approx_ftz(fmaf" not in built["forward_exponentials.so"], built.keys()
    rows, _ = measured(folder, "#!/bin/sh\nexit 1\n", MEASURE, "--shapes", "2,64,3,64", "--built")
    assert len(rows) == len(causes), rows  # instead of the first call's


def test_joules_may_be_missing(folder):
    measured = {NOTHING: (0.5, None, ""), "exponentials": (0.4, None, "")}
    rows = list(energy_by_cause.rows_of("forward", "2,64,3,64", measured))
    assert (rows[1]["ms"], rows[1]["mj"], rows[1]["energy_percent"]) == ("0.4000", "", ""), rows
    assert "| exponentials | 0.4000 |  |  |  |  |" in energy_by_cause.table_of("forward", "2,64,3,64", rows)


def test_what_fails_ends_it_in_one_line(folder):
    shape = ("--shapes", "2,64,3,64", "--jobs", "1")
    refused("it is not to be", measured, folder, "#!/bin/sh\necho it is not to be\nexit 2\n", MEASURE, *shape)
    serialised = MAKE + "echo 'ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async is serialized'\n"
    refused("C7510", measured, folder, serialised, MEASURE, *shape)
    refused("no GPU here", measured, folder, MAKE, "#!/bin/sh\necho 'error: no GPU here' >&2\nexit 1\n", *shape)
    refused("exit code 0", measured, folder, MAKE, "#!/bin/sh\necho one line\n", *shape)
    refused("--shapes 2,64,3: not", measured, folder, MAKE, MEASURE, "--shapes", "2,64,3")


def test_nothing_is_built_where_it_cannot_be_measured(folder):
    broken = "#!/bin/sh\necho a build\nexit 2\n"
    with mock.patch("measuring_tools.SMI", "#!/bin/sh\nexit 9\n"):
        refused("nvidia-smi shows no GPU here", measured, folder, broken, MEASURE)
    refused("none is not there: make", measured, folder, broken, MEASURE, "--program", os.path.join(folder, "none"))
    assert not os.path.exists(os.path.join(folder, "built"))


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
