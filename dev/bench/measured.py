"""What the scripts that measure share: on which machine and of which commit a figure is, and rows of CSV files."""

import csv
import datetime
import os
import re
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from data_common import ROOT, fail

BENCH = os.path.join(ROOT, "dev", "bench")


def output_of(*command):
    """The standard output of a command, or an empty text where it cannot run."""
    try:
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def processor():
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as f:
            return re.search(r"model name\s*: (.*)", f.read())[1].strip()
    except (OSError, TypeError):
        return "unknown"


def gpu_query(what):
    """What nvidia-smi says of the first GPU; an empty text where there is none."""
    return output_of("nvidia-smi", f"--query-gpu={what}", "--format=csv,noheader").split("\n")[0]


def gpu_name():
    """The first GPU's name; ends with one line where there is none."""
    return gpu_query("name") or fail("nvidia-smi shows no GPU here")


def file_name(gpu):
    """NVIDIA H200 -> nvidia-h200: what folders and files of its figures are called."""
    return gpu.lower().replace(" ", "-")


def commit_of(folder):
    """The commit of a folder of sources: what git says, or what a file COMMIT in it does."""
    try:
        with open(os.path.join(folder, "COMMIT"), encoding="utf-8") as f:
            return f.read().strip()
    except OSError:
        return output_of("git", "-C", os.path.abspath(folder), "rev-parse", "--short", "HEAD") or "unknown"


def this_commit():
    """What is measured: COMMIT=<hash>, or the commit of these sources."""
    return os.environ.get("COMMIT") or commit_of(ROOT)


def provenance(machine, cpu=False):
    """The columns machine to date of a row; no driver and no CUDA on the CPU."""
    driver = "" if cpu else gpu_query("driver_version")
    release = None if cpu else re.search(r"release ([\d.]+)", output_of("nvcc", "--version"))
    cuda = release[1] if release else ""
    return {"machine": machine, "driver": driver, "cuda": cuda, "date": datetime.date.today().isoformat()}


def gpu_provenance(gpu):
    """The columns gpu to date, and commit, of a row."""
    columns = provenance(gpu)
    return {"gpu": columns.pop("machine"), **columns, "commit": this_commit()}


def write_rows(path, columns, key, rows):
    """Adds rows to a CSV file; those there that are equal to a new one in the columns of `key` go."""
    old = []
    if os.path.exists(path):
        with open(path, newline="", encoding="utf-8") as f:
            old = list(csv.DictReader(f))
    new = {tuple(str(row[column]) for column in key) for row in rows}
    old = [row for row in old if tuple(row[column] for column in key) not in new]
    os.makedirs(os.path.dirname(os.path.abspath(path)), exist_ok=True)
    with open(path, "w", newline="", encoding="utf-8") as f:
        writer = csv.DictWriter(f, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(old + rows)
    print(f"{path}: {len(rows)} rows")
