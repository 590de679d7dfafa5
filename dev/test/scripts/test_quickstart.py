#!/usr/bin/env python3
"""Tests of scripts/quickstart.sh on machines that lack something: the programs that it runs are stand-ins.

    python3 dev/test/scripts/test_quickstart.py          # ends in 'N passed, N failed'

Needs a shell and the standard library. Each test has a copy of the script, with a PATH of its own.
"""

import os
import pty
import shutil
import signal
import subprocess
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "bench"))

import quickstart as bench

import unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
TOOLS = [
    "sh",
    "bash",
    "cat",
    "chmod",
    "cp",
    "dirname",
    "env",
    "flock",
    "grep",
    "head",
    "ls",
    "mkdir",
    "mv",
    "rm",
    "sed",
    "sleep",
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
            'mkdir build/quickstart/model && echo "$2 $RUN" >build/quickstart/model/model_00001500.bin' \
            'echo "total average iteration time: 2 ms"; echo "run $RUN"' >train_gpt2
        printf '%s\n' '#!/bin/sh' 'echo "To be, of $2, prompted $4"' >generate_gpt2
        chmod +x train_gpt2 generate_gpt2""",
    # the text cannot be downloaded; this project's own sources are there, and text.py locks its folder
    "python3": r"""
        case $1 in
        *tinyshakespeare.py)
            echo "downloading it, or mirror $DATA_MIRROR"; echo "attempt 1 failed (URLError); trying again" >&2
            echo "error: cannot download https://there: no route to host; --mirror DIR (or DATA_MIRROR) takes it" >&2
            exit 1;;
        *text.py) flock -n build/quickstart touch build/quickstart/sources_train.bin;;
        esac""",
}


def write_program(folder, name, text):
    unit.program(folder, name, f"#!/bin/sh\n{text}\n")


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
    assert said.count("\n") <= 60 and said.splitlines()[-1].endswith("-o log_mine"), said
    assert (
        "val loss 1.9" in said
        and "To be, of build/quickstart/model" in said
        and "build/quickstart/model/model_00001500.bin" in said
        and "plot_run.py build/quickstart/model build/quickstart/train.log --html build/quickstart/report.html" in said
    )
    assert sorted(os.listdir(folder)) == ["bin", "build", "generate_gpt2", "scripts", "train_gpt2"]


def test_a_relative_mirror_is_the_users(folder):
    os.mkdir(os.path.join(folder, "texts"))
    quickstart(folder, shell="bash", DATA_MIRROR="texts")
    assert f"mirror {os.path.realpath(folder)}/texts\n" in text_of(folder, "text.log")


def test_without_a_network_it_says_what_it_trains_on(folder):
    said = quickstart(folder)
    assert "rror" not in said and "attempt" not in said and "--mirror" not in said, said
    (note,) = [line for line in said.splitlines() if line.startswith("note: ")]
    assert note.startswith("note: cannot download https://there: no route to host. The model learns this project's own")
    assert "with a network, or with DATA_MIRROR=FOLDER where FOLDER holds input.txt.\n" in said, said
    assert "prompted static inline \n" in said and text_of(folder, "model/model_00001500.bin").split()[0].endswith(
        "quickstart/sources_train.bin"
    )


def test_with_a_text_it_is_prompted_as_the_text_reads(folder):
    writes = "case $1 in *.py) echo wrote it; touch build/quickstart/tiny_shakespeare_bytes_train.bin;; esac"
    said = quickstart(folder, programs={"python3": writes})
    assert "wrote it\n" in said and "prompted The king\n" in said and "note: " not in said, said
    said = quickstart(folder, programs={"python3": "case $1 in *.py) exit 1;; esac"})
    assert "tiny_shakespeare_bytes_train.bin is there already" in said and "prompted The king\n" in said, said


def test_a_second_run_keeps_the_first_model(folder):
    for run in ("1st", "2nd", "3rd"):
        said = quickstart(folder, RUN=run)
        kept = [line for line in said.splitlines() if "the model of the run before" in line]
        assert len(kept) == (run != "1st"), said
    assert kept[0].endswith("build/quickstart/model.2")
    for place, run in (("model.1", "1st"), ("model.2", "2nd"), ("model", "3rd")):
        assert text_of(folder, f"{place}/model_00001500.bin").endswith(f" {run}\n"), place
        assert f"run {run}\n" in text_of(folder, f"{place}/train.log" if place != "model" else "train.log")
    assert sorted(name for name in os.listdir(f"{folder}/build/quickstart") if name.startswith("model")) == [
        "model",
        "model.1",
        "model.2",
    ]


def test_a_second_run_at_once_is_refused(folder):
    again = '[ -n "${AGAIN:-}" ] || AGAIN=1 sh scripts/quickstart.sh >second 2>&1\n'
    quickstart(folder, programs={"make": again + STAND_INS["make"]})
    said = unit.read(f"{folder}/second")
    assert said.startswith(f"error: another quickstart.sh runs in {folder}: ") and said.count("\n") == 1, said


def test_what_a_run_without_a_model_left_is_not_kept(folder):
    os.makedirs(f"{folder}/build/quickstart/model")
    assert "the run before" not in quickstart(folder)


def test_compiling_says_how_long_it_has_been(folder):
    slow = "command -p sleep 1.5\n" + STAND_INS["make"]
    said = quickstart(folder, programs={"make": slow})
    assert "generate_gpt2: compiles the trainer and what prompts its model, about half a minute\n" in said, said
    assert "compiling for" not in said, "in a file every 15 seconds"
    master, slave = pty.openpty()
    path = os.path.join(folder, "bin")
    command = [os.path.join(path, "sh"), "scripts/quickstart.sh"]
    done = subprocess.run(command, cwd=folder, env={"PATH": path}, stdout=slave, stderr=slave, check=False)
    os.close(slave)
    said = os.read(master, 65536).decode()
    os.close(master)
    assert done.returncode == 0 and "\r   compiling for 1 s" in said and "\r\033[K" in said, said


def test_a_signal_reaches_the_trainer_and_is_waited_for(folder):
    quickstart(folder)
    saves = 'trap "sleep 1; echo saved; exit" TERM; echo step 100/1500; for i in 1 2 3 4 5 6 7 8 9; do sleep 1; done'
    write_program(f"{folder}/bin", "make", f"printf '%s\\n' '#!/bin/sh' '{saves}' >train_gpt2")
    path = os.path.join(folder, "bin")
    command = [os.path.join(path, "sh"), "scripts/quickstart.sh"]
    for number, to_all in ((signal.SIGTERM, False), (signal.SIGHUP, False), (signal.SIGTERM, True)):
        pipes = {"stdout": -1, "stderr": -1, "text": True, "start_new_session": to_all}
        with subprocess.Popen(command, cwd=folder, env={"PATH": path}, **pipes) as script:
            for line in script.stdout:
                if line.startswith("step"):
                    (os.killpg if to_all else os.kill)(script.pid, number)
            said = script.stderr.read()
        assert script.returncode == 1 and said == "error: stopped by a signal; see build/quickstart/train.log\n", said
        assert text_of(folder, "train.log").endswith("saved\n")


def text_of(folder, name):
    return unit.read(os.path.join(folder, "build", "quickstart", name))


def test_a_wrong_mirror_is_named(folder):
    assert "DATA_MIRROR=/no/such/folder" in quickstart(folder, code=1, DATA_MIRROR="/no/such/folder")


def test_a_gpu_without_nvcc_trains_on_the_cpu(folder):
    said = quickstart(folder, programs={"nvidia-smi": "echo 'GPU 0: NVIDIA H200'"}, NVCC="")
    assert "There is a GPU but no nvcc: training on the CPU." in said and "== ./train_gpt2, " in said, said


def test_without_git_the_bench_copies_what_is_source(folder):
    root, copy = os.path.join(folder, "root"), os.path.join(folder, "copy")
    sources = ["Makefile", "dev/data/text.py", "dev/cuda/decode/bench.cu", "docs/a.md", ".gitignore"]
    left = [
        "build/train.o",
        "train_gpt2",
        "gpt2_124M.bin",
        "dev/data/tinyshakespeare/train.bin",
        "dev/bench/__pycache__/a.pyc",
    ]
    for name in (*sources, *left):
        os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
        unit.write(os.path.join(root, name), "/build/\n/train_gpt2\n")
    kept = bench.ROOT, bench.output_of
    bench.ROOT, bench.output_of = root, lambda *command: ""
    try:
        bench.copy_sources(copy)
    finally:
        bench.ROOT, bench.output_of = kept
    found = [os.path.relpath(os.path.join(place, name), copy) for place, _, names in os.walk(copy) for name in names]
    assert sorted(found) == sorted(sources), found


def test_arguments_are_refused(folder):
    assert "-x: quickstart.sh takes no arguments but --help" in quickstart(folder, "-x", code=1)


def test_what_is_missing_is_named(folder):
    said = quickstart(folder, code=1, without=("cc", "make", "python3"))
    assert "missing: gcc libc6-dev make python3" in said, said


def test_a_compiler_without_headers_is_named(folder):
    assert "missing: libc6-dev." in quickstart(folder, code=1, programs={"cc": "exit 1"})


def test_a_compiler_with_an_argument_is_there(folder):
    programs = {"ccache": 'exec "$@"', "cc": '[ "$1" = -m64 ]'}
    assert "val loss 1.9" in quickstart(folder, programs=programs, CC="ccache cc -m64")


def test_an_old_python_is_named(folder):
    old = 'case "$*" in *version_info*) exit 1;; --version) echo Python 3.8.18;; esac'
    assert "Python 3.8.18 is too old: put 3.9" in quickstart(folder, code=1, programs={"python3": old})


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
