#!/usr/bin/env python3
"""Tests of dev/bench/step_gemms.py, with stand-ins for nvidia-smi and for the programs that measure.

python3 dev/test/scripts/test_step_gemms.py
"""

import os
import re
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))

import step_gemms

import unit
from measuring_tools import called
from unit import program, refused

# Of each --group and --shape, in an order of its own, a row: ms is OUT microseconds, of input gradients twice that, mj
# ten times as much, both divided by SPEED.
STAND_IN = """#!/usr/bin/env python3
import sys
of = lambda flag: [sys.argv[n + 1] for n, word in enumerate(sys.argv) if word == flag]
assert of("--mode") == ["steady"] and "--no-sweep" in sys.argv
with open(of("--csv")[0], "w") as f:
    f.write("group,R,IN,OUT,ms,mj\\n")
    for group in sorted(of("--group"), reverse=SPEED > 1):
        for shape in of("--shape")[FIRST:]:
            ms = int(shape.split(",")[2]) * (1 + (group == "input")) / 1000 / SPEED
            f.write(f"{group},{shape},{ms},{'' if NO_JOULES else 10 * ms}\\n")
print("GEMM 8192^3, at SPEED")
print("the last line")
"""


def measured(folder, *flags, fp8=2, first=0, no_joules=0, commit="abcdef0"):
    for name, speed in zip(step_gemms.PROGRAMS.values(), (1, fp8)):
        text = STAND_IN.replace("SPEED", str(speed)).replace("NO_JOULES", str(no_joules)).replace("FIRST", str(first))
        program(folder, name, text)
    path = os.path.join(folder, "out", "step_gemms.csv")
    return called(step_gemms, folder, path, "--programs", folder, *flags, commit=commit)


def test_a_step_is_the_sum_of_its_launches(folder):
    for _ in range(2):  # a second call's rows take the place of the first's
        rows, said = measured(folder, "--cases", "d12:64", "d48:8")
    assert len(rows) == 2 * 2 * 16 and list(rows[0]) == step_gemms.COLUMNS, rows
    step = next(r for r in rows if (r["model"], r["gemm"], r["precision"]) == ("d12", "step", "bf16"))
    ms = 4 * (12 * (3 + 1 + 4 + 1) * 768 + 50304) / 1000  # the channels out of 12 layers and of the classifier
    assert (step["times"], step["ms"]) == ("1", f"{ms:.5f}") and abs(float(step["mj"]) - 10 * ms) < 1, step
    flops = 3 * 2 * 65536 * (12 * 12 * 768**2 + 768 * 50304)
    assert abs(float(step["tflop"]) - 1e-12 * flops) < 1e-5, step
    pj = 1e9 * 10 * ms / flops
    assert "| input gradient | 768,2304 | 12 | 55.296 | 0.553 | 0.20 | 27.648 | 0.276 | 0.10 | 2.00 |" in said, said
    bf16, fp8 = (f"{ms / n:.3f} | {ms / n / 100:.3f} | {pj / n:.2f}" for n in (1, 2))
    assert f"| step |  | 1 | {bf16} | {fp8} | 2.00 | 2.00 |" in said, said
    assert "GEMM 8192^3, at 1\nGEMM 8192^3, at 2\n" in said and "last line" not in said, said
    assert "| weight gradient | 768,3072 | 12 | 36.864 | 0.369 |" in said, said
    assert "| forward | 1600,50304 | 1 | 50.304 | 0.503 |" in said, said


def test_joules_may_be_missing(folder):
    rows, said = measured(folder, "--cases", "d24:2", no_joules=1)
    assert {r["mj"] for r in rows} == {""} and re.search(
        r"\| step \|  \| 1 \| [\d.]+ \| - \| - \|.* 2.00 \| - \|", said
    )


def test_what_is_missing_is_said(folder):
    refused("12 GEMMs were timed, exit code 0: the last line", lambda: measured(folder, "--cases", "d12:64", first=1))
    refused("--cases d13: no such model", lambda: measured(folder, "--cases", "d13:64"))
    flags = ("--programs", os.path.join(folder, "none"))
    refused("make matmul_cublaslt matmul_cublaslt_fp8", called, step_gemms, folder, "out.csv", *flags)


def test_the_shapes_are_the_bench_s(_folder):
    """Every GEMM of the model_shapes of dev/cuda/matmul/bench.cu is in a step, and no other."""
    source = unit.read(os.path.join(step_gemms.ROOT, "dev", "cuda", "matmul", "bench.cu"))
    listed = re.findall(r"\{MATMUL_(\w+), (\d), (\d)\}", source)
    forward = {"QKV": "qkv", "RESIDUAL": "qkv", "FC": "qkv", "CLASSIFIER": "qkv", "DGELU": "input"}
    expected = {(forward.get(group, group.lower()), int(i), int(o)) for group, i, o in listed}
    assert expected == {(group, i, o) for group in step_gemms.GROUPS for i, o in step_gemms.SHAPES}, expected


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
