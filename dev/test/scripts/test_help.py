#!/usr/bin/env python3
"""Every Python program of the project says what it is, and what each of its options does, when it is asked; every shell
script prints its head.

python3 dev/test/scripts/test_help.py
"""

import glob
import os
import re
import subprocess
import sys

import unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
NO_PACKAGE = r"error: no Python package [\w.]+ here: pip install [\w ]+\n"


def find(pattern):
    return [os.path.relpath(path, ROOT) for path in glob.glob(os.path.join(ROOT, pattern), recursive=True)]


def programs():
    for path in find("scripts/*.py") + find("dev/*/**/*.py"):
        with open(os.path.join(ROOT, path), encoding="utf-8") as f:
            if not path.startswith("dev/test/") and '__name__ == "__main__"' in f.read():
                yield path


def help_of(path, folder):
    """What a program answers to --help, in another folder than the project's; None without a package that it needs."""
    command = [sys.executable, os.path.join(ROOT, path), "--help"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode == 1 and re.fullmatch(NO_PACKAGE, done.stderr):
        return None
    assert done.returncode == 0 and done.stderr == "", (path, done.returncode, done.stderr[-300:])
    return done.stdout


def unexplained(text):
    """The options and arguments of a help text that stand without a word of explanation."""
    rows = re.findall(r"^  (?! )(.+(?:\n {4}.+)*)", re.split(r"\nopti.*:\n", text, maxsplit=1)[-1], re.M)
    return [row for row in rows if len(re.split(r"\s{2,}", row.strip(), maxsplit=1)) < 2]


def test_every_program_has_help(folder):
    paths = list(programs())
    assert len(paths) > 20, paths
    for path in paths:
        text = help_of(path, folder)
        if text is not None:
            assert text.startswith(f"usage: {os.path.basename(path)}"), (path, text[:200])
            assert unexplained(text) == [], (path, unexplained(text))


SCRIPTS = ["scripts/*.sh", "dev/bench/*.sh", "dev/cuda/bench/*.sh"]
TEST_SCRIPTS = [
    "dev/test/planted_faults.sh",
    "dev/test/compare_sass.sh",
    "dev/test/check_includes.sh",
    "dev/test/gpu_rows.sh",
]


def test_every_script_prints_its_head(folder):
    scripts = [path for pattern in SCRIPTS for path in find(pattern)] + TEST_SCRIPTS
    assert len(scripts) > 15, scripts
    for script in scripts:
        path = os.path.join(ROOT, script)
        with open(path, encoding="utf-8") as f:
            text = f.read()
        head = "".join(line[2:] or "\n" for line in re.match(r"#!.*\n((?:#(?: .*)?\n)+)", text)[1].splitlines(True))
        assert "--help" in text, script  # else it may do what it is for
        done = subprocess.run([path, "--help"], cwd=folder, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0 and done.stderr == "", (script, done)
        assert done.stdout == head, (script, done.stdout, head)


def test_an_option_without_words_is_found(folder):
    text = "\noptions:\n  -h, --help  show this\n  --steps N\n  --long-name WORD\n             its words\n"
    assert unexplained(text) == ["--steps N"], unexplained(text)


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
