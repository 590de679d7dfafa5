#!/usr/bin/env python3
"""Tests of scripts/quickstart.sh on machines that lack something: the programs that it runs are stand-ins.

    python3 dev/test/test_quickstart.py          # ends in 'N passed, N failed'

Needs a shell and the standard library. Each test has a copy of the script, with a PATH of its own.
"""

import os
import shutil
import subprocess
import sys

import unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TOOLS = [
    "sh",
    "bash",
    "cat",
    "chmod",
    "cp",
    "dirname",
    "env",
    "grep",
    "head",
    "mkdir",
    "rm",
    "sed",
    "tail",
    "tee",
    "touch",
]
STAND_INS = {
    "cc": "exit 0",
    "id": "echo 1000",  # no root
    # a trainer of 1500 steps, and what prompts its model
    "make": r"""
        printf '%s\n' '#!/bin/sh' 'for s in 1 100 200; do echo "step $s/1500 | loss 2.5"; done; echo "val loss 1.9"' \
            'echo "total average iteration time: 2 ms"' >train_gpt2
        printf '%s\n' '#!/bin/sh' 'echo "To be, of $2"' >generate_gpt2
        chmod +x train_gpt2 generate_gpt2""",
    # the text cannot be downloaded; this project's own sources are there
    "python3": r"""
        case $1 in
        *tinyshakespeare.py) echo "mirror $DATA_MIRROR"; exit 1;;
        *text.py) touch build/quickstart/sources_train.bin;;
        esac""",
}


def write_program(folder, name, text):
    path = os.path.join(folder, name)
    with open(path, "w", encoding="utf-8") as f:
        f.write(f"#!/bin/sh\n{text}\n")
    os.chmod(path, 0o755)


def quickstart(folder, *arguments, code=0, shell="sh", without=(), programs=None, **environment):
    """Runs the script with stand-ins, less those in `without`; returns what it wrote."""
    path = os.path.join(folder, "bin")
    os.makedirs(path, exist_ok=True)
    os.makedirs(os.path.join(folder, "scripts"), exist_ok=True)
    shutil.copy(os.path.join(ROOT, "scripts", "quickstart.sh"), os.path.join(folder, "scripts"))
    for tool in TOOLS:
        if not os.path.lexists(os.path.join(path, tool)):
            os.symlink(shutil.which(tool), os.path.join(path, tool))
    for name, text in {**STAND_INS, **(programs or {})}.items():
        if name not in without:
            write_program(path, name, text)
    command = [os.path.join(path, shell), "scripts/quickstart.sh", *arguments]
    result = subprocess.run(
        command, cwd=folder, env={"PATH": path, **environment}, capture_output=True, text=True, check=False
    )
    said = result.stdout + result.stderr
    assert result.returncode == code, f"exit code {result.returncode}, not {code}: {said}"
    if code != 0:
        assert result.stderr.count("\n") == 1 and result.stderr.startswith("error: "), result.stderr
    return said


def test_it_ends_with_the_next_command(folder):
    said = quickstart(folder)
    assert said.count("\n") <= 60 and said.splitlines()[-1].endswith("-o build/mine"), said
    assert (
        "val loss 1.9" in said
        and "To be, of build/quickstart/model" in said
        and "build/quickstart/model/model_00001500.bin" in said
        and "plot_run.py build/quickstart/model build/quickstart/train.log --html build/quickstart/report.html" in said
    )
    assert sorted(os.listdir(folder)) == ["bin", "build", "generate_gpt2", "scripts", "train_gpt2"]


def test_a_relative_mirror_is_the_users(folder):
    os.mkdir(os.path.join(folder, "texts"))
    assert f"mirror {os.path.realpath(folder)}/texts\n" in quickstart(folder, shell="bash", DATA_MIRROR="texts")


def test_a_wrong_mirror_is_named(folder):
    assert "DATA_MIRROR=/no/such/folder" in quickstart(folder, code=1, DATA_MIRROR="/no/such/folder")


def test_arguments_are_refused(folder):
    assert "--help: quickstart.sh takes no arguments" in quickstart(folder, "--help", code=1)


def test_what_is_missing_is_named(folder):
    said = quickstart(folder, code=1, without=("cc", "make", "python3"))
    assert "missing: gcc libc6-dev make python3" in said, said


def test_a_compiler_without_headers_is_named(folder):
    assert "missing: libc6-dev." in quickstart(folder, code=1, programs={"cc": "exit 1"})


def test_root_installs_what_is_missing(folder):
    write_program(folder, "make", STAND_INS["make"])
    programs = {"id": "echo 0", "apt-get": 'case "$*" in *install*) cp make bin;; esac'}
    said = quickstart(folder, without=("make",), programs=programs)
    assert said.startswith("== apt-get install make\n") and "val loss 1.9" in said, said


def test_no_install_only_names_it(folder):
    programs = {"id": "echo 0", "apt-get": "touch asked"}
    said = quickstart(folder, code=1, without=("make",), programs=programs, NO_INSTALL="1")
    assert "sudo apt-get install make" in said and not os.path.exists(os.path.join(folder, "asked")), said


def test_a_folder_that_cannot_be_written_is_named(folder):
    with open(os.path.join(folder, "build"), "w", encoding="utf-8"):
        pass  # a file where the folder should be: root may write everywhere else
    assert "cannot write in" in quickstart(folder, code=1)


def test_a_build_that_fails_ends_it(folder):
    said = quickstart(folder, code=1, programs={"make": "exit 2"})
    assert "make train_gpt2 generate_gpt2 failed" in said, said


def test_a_trainer_that_fails_ends_it(folder):
    broken = "printf '#!/bin/sh\\nexit 1\\n' >train_gpt2; chmod +x train_gpt2"
    assert "./train_gpt2 failed" in quickstart(folder, code=1, programs={"make": broken})


def test_a_model_that_cannot_be_prompted_ends_it(folder):
    broken = STAND_INS["make"] + "\nprintf '#!/bin/sh\\nexit 1\\n' >generate_gpt2"
    assert "./generate_gpt2 failed" in quickstart(folder, code=1, programs={"make": broken})


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
