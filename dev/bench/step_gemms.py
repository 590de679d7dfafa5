#!/usr/bin/env python3
"""The GEMMs of a training step, in bf16 and in fp8, by cuBLASLt: ms and joules of each and of all of them.

    make matmul_cublaslt matmul_cublaslt_fp8 && dev/bench/step_gemms.py    # 4 minutes on an H200, 40 GB of its memory
    dev/bench/step_gemms.py --cases d12:64                                 # one model and batch

Each GEMM is checked and then timed alone, steady, over inputs that rotate through more than the L2 cache
(dev/cuda/matmul/bench.cu), the two precisions of a model one after the other. The line `step` is their sum, each as
often as a step has it. Quantising is not counted, nor is what stands beside the GEMMs, which is the same in both. Rows
of dev/bench/<gpu>/step_gemms.csv replace those of the same model, batch, GPU and commit. COMMIT=<hash> says what is
measured where there is no git.
"""

import math
import os
import subprocess
import sys
import tempfile

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from measured import BENCH, file_name, gpu_name, gpu_provenance, read_rows, write_rows
from step_kernels import CASES, case

from data_common import ROOT, Parser, fail, run

MODELS = {"d12": (12, 768), "d24": (24, 1024), "d36": (36, 1280), "d48": (48, 1600)}  # layers, channels
PROGRAMS = {"bf16": "matmul_cublaslt_bf16", "fp8": "matmul_cublaslt_fp8_bf16"}
# channels in and out in units of C; 0: the padded vocabulary, whose GEMMs a step has once
SHAPES = [(1, 3), (1, 1), (1, 4), (4, 1), (1, 0)]
# bench.cu's groups with nothing beside the GEMM, or a bias in it
GROUPS = {"qkv": "forward", "input": "input gradient", "weight": "weight gradient"}
T, PADDED_VOCABULARY = 1024, 50304
KEY = ["model", "B", "gemm", "IN", "OUT", "precision", "gpu", "commit"]
COLUMNS = [*KEY[:5], "times", "precision", "ms", "mj", "tflop", "gpu", "driver", "cuda", "date", "commit"]


def measure(program, R, C):
    """{(group, IN, OUT): (ms, mJ or NaN)} of a launch. Prints what the program says of a GEMM of 8192^3."""
    wanted = [(group, i * C, o * C or PADDED_VOCABULARY) for group in GROUPS for i, o in SHAPES]
    command = [program, "--mode", "steady", "--no-sweep"]
    command += [word for group in GROUPS for word in ("--group", group)]
    command += [word for _, IN, OUT in wanted[: len(SHAPES)] for word in ("--shape", f"{R},{IN},{OUT}")]
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "rows.csv")
        done = subprocess.run([*command, "--csv", path], check=False, capture_output=True, text=True)
        rows = read_rows(path) if os.path.exists(path) else []
    measured = {(r["group"], int(r["IN"]), int(r["OUT"])): (float(r["ms"]), float(r["mj"] or "nan")) for r in rows}
    if done.returncode or set(measured) != set(wanted):
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        fail(f"{' '.join(command)}: {len(measured)} GEMMs were timed, exit code {done.returncode}: {said}")
    print("\n".join(line for line in done.stdout.splitlines() if line.startswith("GEMM 8192^3")), flush=True)
    return {key: measured[key] for key in wanted}


def rows_of(measured, R, layers):
    """The rows of one precision: of a launch of every GEMM, and of a step."""
    rows = []
    for (group, IN, OUT), (ms, mj) in measured.items():
        times, tflop = 1 if OUT == PADDED_VOCABULARY else layers, 2e-12 * R * IN * OUT
        rows.append({"gemm": GROUPS[group], "IN": IN, "OUT": OUT, "times": times, "ms": ms, "mj": mj, "tflop": tflop})
    step = {name: sum(r["times"] * r[name] for r in rows) for name in ("ms", "mj", "tflop")}
    return [*rows, {"gemm": "step", "IN": "", "OUT": "", "times": 1, **step}]


def number(x, digits):
    return "-" if math.isnan(x) else f"{x:.{digits}f}"


def table(of):
    """Lines of Markdown, of all launches of a step; `of` is {precision: rows}."""
    header = ["GEMM", "IN,OUT", "times", *(f"{p}: {what}" for p in of for what in ("ms", "J", "pJ a FLOP"))]
    lines = [[*header, "ms, bf16 / fp8", "J"], ["---"] * 2 + ["---:"] * (len(header))]
    for pair in zip(*of.values()):
        line = [pair[0]["gemm"], f"{pair[0]['IN']},{pair[0]['OUT']}".strip(","), str(pair[0]["times"])]
        for r in pair:
            line += [number(r["times"] * r["ms"], 3), number(1e-3 * r["times"] * r["mj"], 3)]
            line += [number(1e-3 * r["mj"] / r["tflop"], 2)]
        lines.append([*line, *(number(pair[0][name] / pair[1][name], 2) for name in ("ms", "mj"))])
    return ["| " + " | ".join(line) + " |" for line in lines]


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "--cases", nargs="+", type=case, default=CASES, metavar="MODEL:BATCH", help="models, and rows a GPU"
    )
    parser.add_argument("--programs", default=os.path.join(ROOT, "build"), metavar="FOLDER", help="default: build")
    parser.add_argument("--output", metavar="FILE", help="the CSV; default: dev/bench/<gpu>/step_gemms.csv")
    args = parser.parse_args()
    for model, _ in args.cases:
        if model not in MODELS:
            fail(f"--cases {model}: no such model; choose of: {', '.join(MODELS)}")
    programs = {precision: os.path.join(args.programs, name) for precision, name in PROGRAMS.items()}
    for path in programs.values():
        if not os.path.exists(path):
            fail(f"{path} is not there: make matmul_cublaslt matmul_cublaslt_fp8")
    about = gpu_provenance(gpu_name())
    output = args.output or os.path.join(BENCH, file_name(about["gpu"]), "step_gemms.csv")
    for model, B in args.cases:
        layers, C = MODELS[model]
        of = {p: rows_of(measure(path, B * T, C), B * T, layers) for p, path in programs.items()}
        print("\n".join(["", f"{model}, B={B}, T={T}, {about['gpu']}", "", *table(of)]), flush=True)
        rows = [{"model": model, "B": B, **row, "precision": p, **about} for p in of for row in of[p]]
        for row in rows:
            row.update(ms=f"{row['ms']:.5f}", mj=number(row["mj"], 4).strip("-"), tflop=f"{row['tflop']:.6f}")
        write_rows(output, COLUMNS, KEY, rows)


if __name__ == "__main__":
    run(main)
