#!/usr/bin/env python3
"""Tests of dev/test/mutants.py: which mutants are drawn, which are none, and the table.

    python3 dev/test/scripts/test_mutants.py          # ends in 'N passed, N failed'

Needs universalmutator, of .ci/requirements.txt.
"""

import os
import sys
from itertools import islice

import unit

unit.need("universalmutator")

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir))
import mutants  # noqa: E402

SOURCE = "// a comment\nstatic inline int twice(int x) {\n    int y = x + x; // 2 x\n    return y;\n}\n"


def write(folder, name, text):
    unit.write(os.path.join(folder, name), text)


def drawn(folder, seed=1):
    mutants.CLEAN = folder
    return {(m.original, m.mutant) for m in mutants.draw(["a.h"], seed)}


def test_a_line_keeps_its_mutant_whatever_stands_around_it(folder):
    write(folder, "a.h", SOURCE)
    before = drawn(folder)
    assert len(before) >= 3 and all(a != b and "comment" not in a for a, b in before), before
    assert before == drawn(folder) and before != drawn(folder, seed=2)
    write(folder, "a.h", "int other = 1;\n\n" + SOURCE)
    assert before < drawn(folder)


def test_a_mutant_has_as_many_lines(folder):
    write(folder, "a.h", SOURCE)
    mutants.CLEAN = folder
    for m in islice(mutants.draw(["a.h"], 1), 10):
        m.write(folder)
        lines = mutants.read(folder, "a.h").decode().split("\n")
        assert lines[m.line - 1] == m.mutant and len(lines) == SOURCE.count("\n") + 1, m.mutant
        write(folder, "a.h", SOURCE)


def same(folder, name, before, after):
    """True if both texts mean the same, None if the second one means nothing"""
    write(folder, name, before)
    meant = mutants.meaning(folder, name)
    write(folder, name, after)
    try:
        return mutants.meaning(folder, name) == meant
    except SyntaxError:
        return None


def test_what_means_the_same_is_no_mutant(folder):
    cases = (
        ("a.h", SOURCE, SOURCE.replace("2 x", "two"), True),
        ("a.h", SOURCE, SOURCE.replace("x + x", "x * 2"), True),
        ("a.h", SOURCE, SOURCE.replace("x + x", "x - x"), False),
        ("a.h", SOURCE, SOURCE.replace("return y;", "return z;"), None),
        ("a.h", "enum { N = 3 };\n", "enum { N = 4 };\n", False),  # used by nothing here
        ("a.h", "#define N 3\n", "#define N 4\n", False),
        ("a.py", '"""Text."""\nx = 1  # one\n', '"""Other."""\nx = 1\n', True),
        ("a.py", "x = 1\n", "x = 2\n", False),
        ("a.py", "x = 1\n", "x = (1\n", None),
        ("a.sh", "echo $#  # all\n", "echo $#\n", True),
        ("a.sh", "echo $#\n", "echo $?\n", False),
        ("a.sh", "if true; then echo; fi\n", "if true; echo; fi\n", None),
    )
    for name, before, after, expected in cases:
        assert same(folder, name, before, after) is expected, (name, after)


def test_the_table_keeps_verdicts_and_counts(folder):
    mutants.TABLE = os.path.join(folder, "mutants.csv")
    some = [mutants.Mutant("llmc/comm/meet.h", n, f"  a{n};", f"  b{n};") for n in range(10)]
    counted = [(m, "survived" if m.line < 4 else "refused: test_comm") for m in some]
    mutants.enter("cpu", counted)
    mutants.enter("gpu", counted[:1])
    summaries, rows = mutants.read_table()
    assert "10 drawn; 6 refused; 4 survived" in summaries["cpu"] and "60.0%" in summaries["cpu"], summaries
    assert [row["room"] for row in rows] == ["llmc/comm"] * 5
    rows[0].update(verdict="equivalent", reason="a is b")
    mutants.write_table("cpu", 10, rows, summaries)
    mutants.enter_refused("cpu", [(some[1], "refused: test_cli"), (some[2], "survived")])
    mutants.enter("cpu", counted)  # the same sample again
    summaries, rows = mutants.read_table()
    verdicts = [row["verdict"] for row in rows if row["side"] == "cpu"]
    assert verdicts == ["equivalent", "refused", "", ""] and rows[1]["reason"] == "test_cli", rows
    assert "1 equivalent, 1 refused by tests added since, 0 gone, 2 gaps; 77.8%" in summaries["cpu"]  # 7 of 9
    rows[-1].update(verdict="gone")
    mutants.write_table("gpu", 10, rows, summaries)
    assert "1 gone, 0 gaps; 100.0%" in mutants.read_table()[0]["gpu"], summaries
    write(folder, "other.h", "x\n")
    mutants.CLEAN = folder
    os.makedirs(os.path.join(folder, "llmc/comm"))
    write(folder, "llmc/comm/meet.h", "new\n  a2;\nnew\n  a3;\n")
    assert [(m.line, m.mutant) for m in mutants.gaps("cpu")] == [(2, "b2;"), (4, "b3;")]


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
