#!/usr/bin/env python3
"""Attention's energy by cause: an ablation of the kernels, one operation removed at a time.

    dev/bench/energy_by_cause.py                        # compiles 15 libraries, then 50 s on an H200
    dev/bench/energy_by_cause.py --shapes 4,4096,48,64  # B,T,NH,HS; forward and backward
    dev/bench/energy_by_cause.py --build-only           # without a GPU, with GPU_ARCH=90; then --built elsewhere

energy_by_cause.txt lists a sed expression for each cause. Each is applied to a copy of the sources in build/causes,
from which libattention.so is built; energy_by_cause.cu times all builds in one process, in steady mode. Each gives
a row of leaderboard/<gpu>_causes.csv: ms, mJ, W, and the energy relative to `nothing` left out, in percent.
Causes do not add up: a removed operation may have overlapped with others, or delayed them. COMMIT=<hash> names the
commit measured where there is no git.
"""

import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from measured import file_name, gpu_name, gpu_provenance, write_rows

from data_common import ROOT, Parser, fail, run

TABLE = Path(__file__).with_suffix(".txt")
SHAPES = ["64,1024,12,64", "4,4096,16,128"]
FLOPS = {"forward": 2, "backward": 5}  # times B NH T^2 HS: the causal half
NOTHING = "nothing"
KEY = ["direction", "B", "T", "NH", "HS", "left_out", "gpu", "commit"]
COLUMNS = [*KEY[:-2], "ms", "mj", "watts", "sm_mhz", "pj_per_flop", "energy_percent", "gpu", "driver", "cuda", "date"]
COLUMNS.append("commit")
Cause = namedtuple("Cause", ["direction", "path", "expression", "left_out"])


def read_causes(table=TABLE):
    """Returns `nothing` of each direction, followed by the table's causes."""
    causes = [Cause(direction, None, None, NOTHING) for direction in FLOPS]
    for number, line in enumerate(table.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        row = re.fullmatch(r"(\w+)\s+(\S+)\s+(.*\S)\s+# (.*)", line)
        if not row or row[1] not in FLOPS:
            fail(f"{table}, line {number}: not 'forward or backward, file, sed expression, # what is left out'")
        causes.append(Cause(*row.groups()))
    return causes


def library(folder, cause):
    return Path(folder, f"{cause.direction} {cause.left_out}.so".replace(" ", "_"))


def edit(tree, cause):
    """Applies a cause to a copy of the sources."""
    changed = False
    for path in (Path(tree, name) for name in cause.path.split(",")):
        before = path.read_text(encoding="utf-8")
        done = subprocess.run(["sed", cause.expression, path], check=True, capture_output=True, text=True)
        path.write_text(done.stdout, encoding="utf-8")
        changed |= done.stdout != before
    if not changed:
        fail(f"{TABLE.name}: `{cause.left_out}` no longer applies to {cause.path}")


def build(folder, cause):
    """Builds library(folder, cause). The direction that is not timed uses the variant that compiles fastest."""
    tree = library(folder, cause).with_suffix("")
    shutil.rmtree(tree, ignore_errors=True)
    for part in ("dev/cuda", "llmc"):
        shutil.copytree(Path(ROOT, part), Path(tree, part))
    Path(tree, "dev/test").mkdir()
    for part in ("Makefile", "dev/test/checks.mk"):  # the first includes the second
        shutil.copy(Path(ROOT, part), Path(tree, part))
    if cause.expression:
        edit(tree, cause)
    variants = {"forward": "flash2", "backward": "flash2", cause.direction: "wgmma"}
    chosen = [f"ATTENTION_{direction.upper()}={variant}" for direction, variant in variants.items()]
    command = ["make", "-s", "-C", str(tree), "libattention.so", "WERROR=", *chosen]
    done = subprocess.run(command, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    # serialised GEMMs or spills would add a cost that is not the cause's
    fault = re.search(r"C75[01]\d.*|[1-9]\d* bytes spill.*", done.stdout)
    if done.returncode or fault:
        said = fault[0] if fault else (done.stdout.strip() or "make failed").splitlines()[-1]
        fail(f"without {cause.left_out}, {cause.direction}: {said}")
    shutil.copy(Path(tree, "libattention.so"), library(folder, cause))
    shutil.rmtree(tree)
    print(f"built: {cause.direction}, {cause.left_out} left out", flush=True)


def measure(program, folder, direction, shape, causes):
    """Returns {what is left out: (ms, mJ, MHz as text)}; mJ is None without an energy counter."""
    files = {str(library(folder, cause)): cause.left_out for cause in causes if cause.direction == direction}
    command = [program, direction, shape, *files]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    lines = [line.split(",") for line in done.stdout.splitlines()]
    if done.returncode or [line[0] for line in lines] != list(files):
        said = (done.stderr.strip() or done.stdout.strip() or "it said nothing").splitlines()[-1]
        fail(f"{program} {direction} {shape}: exit code {done.returncode}: {said}")
    return {files[path]: (float(ms), float(mj) if mj else None, mhz) for path, ms, mj, mhz in lines}


def rows_of(direction, shape, measured):
    B, T, NH, HS = (int(size) for size in shape.split(","))
    flops = FLOPS[direction] * B * NH * T * T * HS
    whole = measured[NOTHING][1]
    for left_out, (ms, mj, mhz) in measured.items():
        row = {"direction": direction, "B": B, "T": T, "NH": NH, "HS": HS, "left_out": left_out, "ms": f"{ms:.4f}"}
        joules = {"mj": "", "watts": "", "pj_per_flop": "", "energy_percent": ""}
        if mj is not None:
            joules = {"mj": f"{mj:.3f}", "watts": f"{mj / ms:.0f}", "pj_per_flop": f"{1e9 * mj / flops:.3f}"}
            joules["energy_percent"] = f"{100 * (mj / whole - 1):+.1f}"
        yield {**row, **joules, "sm_mhz": mhz}


def table_of(direction, shape, rows):
    lines = [
        f"\n{direction}, {shape}\n",
        "| left out | ms | mJ | | W | MHz |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        percent = "" if row["left_out"] == NOTHING or not row["mj"] else f"{row['energy_percent']}%"
        lines.append(
            f"| {row['left_out']} | {row['ms']} | {row['mj']} | {percent} | {row['watts']} | {row['sm_mhz']} |"
        )
    return "\n".join(lines)


def main():
    parser = Parser(__doc__)
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="B,T,NH,HS", help="default: %(default)s")
    parser.add_argument("--folder", default=os.path.join(ROOT, "build", "causes"), help="where the libraries are built")
    parser.add_argument("--build-only", action="store_true", help="build the libraries, and measure nothing")
    parser.add_argument("--built", action="store_true", help="measure the libraries that are there")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), metavar="N", help="so many builds at a time")
    parser.add_argument(
        "--program",
        default=os.path.join(ROOT, "build", "energy_by_cause"),
        metavar="FILE",
        help="what is timed (default: %(default)s)",
    )
    parser.add_argument("--output", metavar="FILE", help="the CSV; default: dev/cuda/leaderboard/<gpu>_causes.csv")
    args = parser.parse_args()
    causes = read_causes()
    for shape in args.shapes:
        if not re.fullmatch(r"\d+,\d+,\d+,\d+", shape):
            fail(f"--shapes {shape}: not B,T,NH,HS")
    if not args.build_only:
        about = gpu_provenance(gpu_name())
        if not os.path.exists(args.program):
            fail(f"{args.program} is not there: make build/energy_by_cause")
    if not args.built:
        os.makedirs(args.folder, exist_ok=True)
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(lambda cause: build(args.folder, cause), causes))
    if args.build_only:
        return
    output = args.output or Path(ROOT, "dev/cuda/leaderboard") / f"{file_name(about['gpu'])}_causes.csv"
    for direction in FLOPS:
        for shape in args.shapes:
            rows = list(rows_of(direction, shape, measure(args.program, args.folder, direction, shape, causes)))
            print(table_of(direction, shape, rows), flush=True)
            write_rows(output, COLUMNS, KEY, [{**row, **about} for row in rows])


if __name__ == "__main__":
    run(main)
