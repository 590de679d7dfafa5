#!/usr/bin/env python3
"""Runs scripts/quickstart.sh in a fresh copy of the sources and writes what it took as a row of a CSV file.

    DATA_MIRROR=folder dev/bench/quickstart.py [--output FILE]          # without DATA_MIRROR the text is fetched

Costs what quickstart.sh costs. The copy is a temporary folder. A row replaces the earlier row of the same machine.
Columns: seconds of the whole script and of the build in it, the last validation loss (nats a byte), lines printed, the
memory of the largest process, the disk space that the copy grew by, and the load average before the start.
"""

import datetime
import fnmatch
import glob
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time

from measured import BENCH, gpu_query, output_of, processor, this_commit, write_rows

from data_common import ROOT, Parser

COLUMNS = [
    *["machine", "cores", "gpu", "text", "seconds", "build_seconds", "val_loss", "lines", "peak_mib", "disk_mib"],
    *["load", "date", "commit"],
]


def left_behind(folder, names):
    """What a build, a run or a download leaves behind, among the names in a folder."""
    here = os.path.relpath(folder, ROOT)
    if here == ".":
        with open(os.path.join(ROOT, ".gitignore"), encoding="utf-8") as f:
            patterns = [line.strip().strip("/") for line in f if line.startswith("/")]
        return {name for name in names for p in (".git", "shared", "*.bin", *patterns) if fnmatch.fnmatch(name, p)}
    if here == os.path.join("dev", "data"):
        return {name for name in names if os.path.isdir(os.path.join(folder, name))}
    return {"__pycache__"}


def copy_sources(folder):
    """Copies what git tracks or would track; where there is no git, all but what is left behind."""
    tracked = output_of("git", "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    if not tracked:
        shutil.copytree(ROOT, folder, ignore=left_behind)
        return
    for name in tracked.split("\0"):
        if name and os.path.exists(os.path.join(ROOT, name)):
            target = os.path.join(folder, name)
            os.makedirs(os.path.dirname(target), exist_ok=True)
            shutil.copy2(os.path.join(ROOT, name), target)


def bytes_of(folder):
    return sum(os.path.getsize(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names)


def run_quickstart(folder):
    """Runs the script, echoing its lines. Returns its figures as part of a row."""
    start = time.monotonic()
    build_end, lines, losses = None, 0, []
    process = subprocess.Popen(
        ["scripts/quickstart.sh"],
        cwd=folder,
        env={**os.environ, "NO_INSTALL": "1"},
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    for line in process.stdout:
        sys.stdout.write(line)
        lines += 1
        if build_end is None and line.startswith("== text"):
            build_end = time.monotonic()
        losses += re.findall(r"val loss ([0-9.]+)", line)
    if process.wait() != 0:
        sys.exit(f"error: scripts/quickstart.sh ended with exit code {process.returncode}")
    if not losses or build_end is None:
        sys.exit("error: scripts/quickstart.sh printed no 'val loss' or no '== text' line")
    return {
        "seconds": f"{time.monotonic() - start:.1f}",
        "build_seconds": f"{build_end - start:.1f}",
        "val_loss": losses[-1],
        "lines": lines,
        "peak_mib": f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f}",
    }


def main():
    parser = Parser(__doc__)
    default = os.path.join(BENCH, "quickstart.csv")
    parser.add_argument("--output", default=default, metavar="FILE", help="default: dev/bench/quickstart.csv")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as parent:
        folder = os.path.join(parent, "flashgpt")
        copy_sources(folder)
        before = bytes_of(folder)
        row = run_quickstart(folder)
        row["disk_mib"] = f"{(bytes_of(folder) - before) / 2**20:.0f}"
        plays = glob.glob(os.path.join(folder, "**", "tiny_shakespeare_bytes_train.bin"), recursive=True)
        row["text"] = "TinyShakespeare" if plays else "sources"
    row |= {
        "machine": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": gpu_query("name"),
        "load": f"{load:.1f}",
        "date": datetime.date.today().isoformat(),
        "commit": this_commit(),
    }
    write_rows(args.output, COLUMNS, ("machine", "cores", "gpu", "text"), [row])
    print(f"{args.output}: {row['seconds']} s, validation loss {row['val_loss']}")


if __name__ == "__main__":
    main()
