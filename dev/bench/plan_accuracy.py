#!/usr/bin/env python3
"""How near the plan of a run comes to the memory that it takes: what a trainer says of both at its end.

    dev/bench/plan_accuracy.py          # 3 minutes on an H200, 45 GB of its memory: dev/bench/<gpu>/plan_accuracy.csv
    dev/bench/plan_accuracy.py --cpu    # 1 minute, 3 GB: dev/bench/cpu_plan_accuracy.csv

Each shape trains for three steps on random tokens. `percent` is used over planned, minus one: above 0, the run took
more than it was said to need. A row replaces that of the same machine and shape.
"""

import os
import re
import subprocess
import tempfile

from measured import provenance, this_commit, write_rows
from step_cost import build, machine_and_file, write_tokens

from data_common import ROOT, Parser, fail, run

SHAPES = {  # model, vocabulary, B, T, flags
    "train_gpt2cu": [
        ("d12", 50257, 64, 1024, "-r 0"),
        ("d12", 50257, 64, 1024, "-r 2"),
        ("d12", 50257, 4, 1024, "-r 0 -w 0"),
        ("d12t8192", 50257, 2, 8192, "-r 0"),
        ("d24", 50257, 16, 1024, "-r 1"),
        ("d48", 50257, 4, 1024, "-r 2"),
        ("gpt2:l4c128h4t64", 256, 16, 64, "-r 0"),
    ],
    "train_gpt2": [
        ("gpt2:l4c128h4t64", 256, 16, 64, "-r 0"),
        ("d12", 50257, 1, 1024, "-r 0"),
        ("d12", 50257, 1, 1024, "-r 2"),
    ],
}
COLUMNS = [
    *["model", "B", "T", "flags", "memory", "planned_mib", "used_mib", "percent"],
    *["machine", "driver", "cuda", "date", "commit"],
]
SAID = re.compile(r"^(GPU|host) memory: (\d+) MiB planned, (\d+) MiB used$", re.MULTILINE)


def measure(program, shape, folder):
    """[(kind of memory, MiB planned, MiB used)] of a run."""
    model, vocab_size, B, T, flags = shape
    tokens = os.path.join(folder, f"tokens_{vocab_size}.bin")
    if not os.path.exists(tokens):
        write_tokens(tokens, vocab_size)
    command = [program, "-e", model, "-i", tokens, "-j", tokens, "-b", str(B), "-t", str(T), "-x", "3", "-m", "1"]
    command += ["-s", "0", *flags.split()]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    said = SAID.findall(done.stdout)
    if done.returncode or not said:
        last = (done.stderr.strip() or "it says nothing of planned and used memory").splitlines()[-1]
        fail(f"{' '.join(command)}: exit code {done.returncode}: {last}")
    return [(kind, int(planned), int(used)) for kind, planned, used in said]


def main():
    parser = Parser(__doc__)
    parser.add_argument("--cpu", action="store_true", help="measure ./train_gpt2")
    parser.add_argument("--output", metavar="FILE", help="default: dev/bench/<gpu>/plan_accuracy.csv")
    args = parser.parse_args()
    machine, path = machine_and_file(args.cpu, "plan_accuracy")
    name = "train_gpt2" if args.cpu else "train_gpt2cu"
    program = build(ROOT, name)
    common = {**provenance(machine, args.cpu), "commit": this_commit()}
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for shape in SHAPES[name]:
            model, _, B, T, flags = shape
            for kind, planned, used in measure(program, shape, folder):
                percent = f"{100 * (used / planned - 1):.2f}" if planned else ""
                print(
                    f"{model}, B={B}, T={T}, {flags}, {kind}: {planned} MiB planned, {used} used: {percent}%",
                    flush=True,
                )
                values = {"model": model, "B": B, "T": T, "flags": flags, "memory": kind}
                rows.append({**values, "planned_mib": planned, "used_mib": used, "percent": percent, **common})
    write_rows(args.output or path, COLUMNS, ("machine", "model", "B", "T", "flags", "memory"), rows)


if __name__ == "__main__":
    run(main)
