"""What the scripts that measure share: on which machine and of which commit a figure is, and rows of CSV files."""

import contextlib
import csv
import datetime
import fcntl
import io
import os
import re
import subprocess
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from data_common import ROOT, fail, make_directory, write_atomically

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


def read_rows(path):
    """The rows of a CSV file as dictionaries; ends with one line where it cannot be read."""
    try:
        with open(path, newline="", encoding="utf-8") as f:
            return list(csv.DictReader(f))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        fail(f"cannot read {path}: {getattr(error, 'strerror', None) or 'it is no text'}")


def write_csv(path, columns, rows):
    """Writes the rows, whole or not at all."""
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    make_directory(os.path.dirname(path))
    write_atomically(path, text.getvalue().encode("utf-8"))


def write_rows(path, columns, key, rows, refuses=None, order=None):
    """Adds rows to a CSV file; those there that are equal to a new one in the columns of `key` go. A file with other
    columns, or one of whose rows refuses(rows) says why they do not go with the new ones, stays as it is: the new rows
    join those in <path>.new, and the program ends with one line. order(row): what all are sorted by. Several processes
    may add rows to one file."""
    folder = os.path.dirname(path) or "."
    make_directory(folder)
    lock = os.open(folder, os.O_RDONLY)  # the folder itself: no file of a lock is left
    try:
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(lock, fcntl.LOCK_EX)
        old = read_rows(path) if os.path.exists(path) else []
        other = any(not set(row) <= set(columns) or None in (row.get(column) for column in key) for row in old)
        why = "has other columns than what is measured here" if other else refuses and refuses(old)
        if not why:
            new = {tuple(str(row.get(column, "")) for column in key) for row in rows}
            old = [row for row in old if tuple(row[column] for column in key) not in new]
            write_csv(path, columns, sorted(old + rows, key=order) if order else old + rows)
    finally:
        os.close(lock)
    if why:
        write_rows(f"{path}.new", columns, columns, rows)
        fail(f"{path} {why}; the new rows are in {path}.new")
    print(f"{path}: {len(rows)} rows")
