#!/usr/bin/env python3
"""The kernels of a training step by group, with ms, joules and bytes, and the share that its GEMMs alone would take.

    make build/step_kernels && dev/bench/step_kernels.py    # 60 s on an H200: dev/bench/<gpu>/step_kernels.csv
    dev/bench/step_kernels.py --cases d12:64 d12+fp8:64     # one model and batch, and with --fp8; 15 s each
    dev/bench/step_kernels.py --table 486611c 5c70e26       # before and after, out of the file: measures nothing

dev/bench/step_kernels.cu says what is measured and what the columns are: of each group of operations, of the step, and
of its GEMMs alone, the least that a step could take with all the rest for nothing. `share of the limit` is their time
over the step's. In fp8 the classifier's gradients are in the groups weight and input, quantising the weights is in
AdamW's, and GB are those of bf16. Rows replace those of the same model, batch, GPU and commit, so those of an earlier
commit stay beside them. COMMIT=<hash> says what is measured where there is no git.
"""

import argparse
import csv
import glob
import os
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from measured import BENCH, file_name, gpu_name, gpu_provenance, write_rows

from data_common import ROOT, Parser, fail, positive_int, run

CASES = [("d12", 64), ("d24", 32), ("d36", 16), ("d48", 8)]
MEASURED = ["group", "operations", "ms", "alone_ms", "joules", "gb", "tflop"]
KEY = ["model", "B", "T", "group", "gpu", "commit"]
COLUMNS = ["model", "B", "T", *MEASURED, "gpu", "driver", "cuda", "date", "commit"]
STEP, LIMIT = "step", "GEMMs alone"  # the last two lines of the program


def case(text):
    """d12:64 -> ("d12", 64)"""
    model, colon, batch = text.partition(":")
    if not model or not colon:
        raise argparse.ArgumentTypeError(f"'{text}' is not a model and a batch, as d12:64")
    return model, positive_int(batch)


def measure(program, model, B, T):
    """The lines of the program as dictionaries of text."""
    command = [program, model, str(B), str(T)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    rows = [dict(zip(MEASURED, line.split(","))) for line in done.stdout.splitlines()]
    if done.returncode or [row.get("group") for row in rows[-2:]] != [STEP, LIMIT] or any(len(r) != 7 for r in rows):
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        fail(f"{' '.join(command)}: exit code {done.returncode}: {said}")
    return rows


def number(text, digits=2):
    return f"{float(text):.{digits}f}" if text else "-"


def share_of_limit(rows):
    """Of the rows of a model: the time of the GEMMs alone over the step's, both running alone."""
    alone = {row["group"]: float(row["alone_ms"]) for row in rows}
    return alone[LIMIT] / alone[STEP]


def tables(rows, commits):
    """Lines of Markdown: for each model, B and T a table with a row for each group, of each commit ms, joules, GB."""
    lines = []
    shapes = list(dict.fromkeys((row["model"], row["B"], row["T"]) for row in rows))
    for shape in shapes:
        of = {c: [r for r in rows if (r["model"], r["B"], r["T"]) == shape and r["commit"] == c] for c in commits}
        missing = [commit for commit in commits if not of[commit]]
        if missing:
            continue
        groups = list(dict.fromkeys(row["group"] for commit in commits for row in of[commit]))
        lines += ["", f"{shape[0]}, B={shape[1]}, T={shape[2]}", ""]
        lines += ["| |" + "".join(f" {c}: ms | J | GB | pJ a byte or FLOP |" for c in commits)]
        lines += ["| --- |" + " ---: | ---: | ---: | ---: |" * len(commits)]
        for group in groups:
            line = f"| {group} |"
            for commit in commits:
                row = next((row for row in of[commit] if row["group"] == group), None)
                if row is None:
                    line += " | | | |"
                    continue
                line += f" {number(row['ms'])} | {number(row['joules'])} | {number(row['gb'], 1)} | {price(row)} |"
            lines.append(line)
        said = ", ".join(f"{100 * share_of_limit(of[commit]):.1f}%" for commit in commits)
        lines += ["", f"share of the limit: {said}"]
    return lines


def price(row):
    """pJ a FLOP where there are FLOPs, else pJ a byte."""
    if not row["joules"]:
        return "-"
    joules, tflop, gb = (float(row[name]) for name in ("joules", "tflop", "gb"))
    return f"{joules / tflop:.2f}" if tflop > 0 else f"{1e3 * joules / gb:.0f}"


def read_rows(path, commits):
    """The rows of a CSV, or of those of all GPUs; an error where a commit has none."""
    paths = [path] if path else sorted(glob.glob(os.path.join(ROOT, "dev", "bench", "*", "step_kernels.csv")))
    rows = []
    for name in paths:
        if not os.path.exists(name):
            fail(f"{name} is not there: without --table it is measured")
        with open(name, newline="", encoding="utf-8") as f:
            rows += csv.DictReader(f)
    for commit in commits:
        if all(row.get("commit") != commit for row in rows):
            fail(f"--table {commit}: {path or 'dev/bench/*/step_kernels.csv'} has no rows of this commit")
    return rows


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "--cases", nargs="+", type=case, default=CASES, metavar="MODEL:BATCH", help="models, and rows a GPU"
    )
    parser.add_argument(
        "-t", type=positive_int, default=1024, metavar="T", help="tokens of a row; default: %(default)s"
    )
    parser.add_argument(
        "--program",
        default=os.path.join(ROOT, "build", "step_kernels"),
        metavar="FILE",
        help="what is timed (default: %(default)s)",
    )
    parser.add_argument("--output", metavar="FILE", help="the CSV; default: dev/bench/<gpu>/step_kernels.csv")
    parser.add_argument("--table", nargs="+", metavar="COMMIT", help="print these commits' tables, side by side")
    args = parser.parse_args()
    if args.table:
        print("\n".join(tables(read_rows(args.output, args.table), args.table)))
        return
    if not os.path.exists(args.program):
        fail(f"{args.program} is not there: make build/step_kernels")
    about = gpu_provenance(gpu_name())
    output = args.output or os.path.join(BENCH, file_name(about["gpu"]), "step_kernels.csv")
    for model, B in args.cases:
        shape = {"model": model, "B": str(B), "T": str(args.t)}
        rows = [{**shape, **row, **about} for row in measure(args.program, model, B, args.t)]
        print("\n".join(tables(rows, [about["commit"]])), flush=True)
        write_rows(output, COLUMNS, KEY, rows)


if __name__ == "__main__":
    run(main)
