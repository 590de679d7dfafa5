#!/usr/bin/env python3
"""Tests of the sources themselves: rules of CONTRIBUTING.md that no compiler sees.

    python3 dev/test/scripts/test_sources.py          # ends in 'N passed, N failed'

Needs the standard library and make. Each rule is also given a text that breaks it, which it must name.
"""

import glob
import os
import re
import shutil
import subprocess
import sys

import unit

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
C_PATTERNS = ("*.c", "*.cu", "llmc/*/*.*", "dev/**/*.c", "dev/**/*.h", "dev/**/*.cu", "dev/**/*.cuh")
CUDA_PATTERNS = ("*.cu", "llmc/*/*.cuh", "dev/**/*.cu", "dev/**/*.cuh", "dev/test/**/*.h")
PTX_HEADERS = ("llmc/cuda/ptx.cuh", "llmc/cuda/mma.cuh", "llmc/cuda/hopper.cuh")
DOCUMENTS = ("*.md", "docs/*.md", "dev/**/*.md")
TEXT_PATTERNS = (*C_PATTERNS, *DOCUMENTS, "Makefile", ".ci/run", "scripts/*.*", "dev/**/*.py", "dev/**/*.sh")
SHELL_PATTERNS = ("Makefile", ".ci/run", "scripts/*.sh", "dev/**/*.sh")
HEAD_LINES = 15
COMMENT_COLUMNS = 128  # code is clang-format's matter, Python ruff's
DUMP_BYTES = 4_000_000  # of all dumps and their measured errors together

# Words of this project's own for what has a name in the field; CONTRIBUTING.md says which to use.
OWN_WORDS = re.compile(
    r"\b([Cc]ontestants?|[Mm]ultiprocessors?|[Bb]locks? of threads|measured peak|"
    r"[Aa]rena|[Ll]adder|[Ss]lack|SLACK|[Tt]ickets?|[Mm]overs?|[Cc]limb(s|ed)?|[Dd]eliverers?|goes on behind)\b"
)
# What copies between GPUs is CUDA's copy engine; what loads tiles of attention is TMA.
TMA_WORDS = re.compile(r"\b[Cc]opy engines?\b")


def read(patterns):
    """Path and text of each file, but of what Python caches; this one left aside: it names what it forbids."""
    paths = {path for pattern in patterns for path in glob.glob(os.path.join(ROOT, pattern), recursive=True)}
    for path in sorted(paths - {os.path.abspath(__file__)}):
        if "__pycache__" not in path:
            yield os.path.relpath(path, ROOT), unit.read(path)


def unchecked_launches(text):
    """Lines with a kernel launch that no cudaGetLastError() follows before its function, `}` in column 0, ends."""
    waiting = []
    for number, line in enumerate(text.splitlines(), 1):
        if "<<<" in line:
            waiting.append(number)
        if "cudaGetLastError()" in line:
            waiting = []
        if line.startswith("}"):
            yield from waiting
            waiting = []


def head_lines(text):
    """The length of the comment that a file begins with."""
    if text.startswith("/*"):
        return text[: text.index("*/")].count("\n") + 1
    lines = text.splitlines()
    return next((n for n, line in enumerate(lines) if not line.startswith("//")), len(lines))


def long_comments(text, marker):
    """The lines with a comment alone, whole or a part of one, that are too long; `marker`: // (and /* */), or #."""
    found, block = [], False
    for number, line in enumerate(text.splitlines(), 1):
        begins = marker == "//" and line.lstrip().startswith("/*")
        if (block or begins or line.lstrip().startswith(marker)) and len(line) > COMMENT_COLUMNS:
            found.append(number)
        block = (block or begins) and "*/" not in line
    return found


def own_words(text):
    """The lines with such a word; names of CUDA's own functions have it only as a part."""
    return [n for n, line in enumerate(text.splitlines(), 1) if OWN_WORDS.search(line)]


def inline_ptx(text):
    """The lines where an instruction of PTX begins; asm volatile("" ...) is none."""
    return [text.count("\n", 0, m.start()) + 1 for m in re.finditer(r'\basm\b(\s+volatile)?\s*\((?!\s*"")', text)]


def test_every_kernel_launch_is_looked_at(_):
    assert list(unchecked_launches("void f() {\n    k<<<1, 1>>>();\n}\n")) == [2]
    assert list(unchecked_launches("void f() {\n    k<<<1, 1>>>();\n    cuda_try(cudaGetLastError());\n}\n")) == []
    launches = 0
    for path, text in read(("llmc/*/*.cuh", "dev/cuda/**/*.cuh", "dev/cuda/attention_*ward_*.cu", "*.cu")):
        launches += text.count("<<<")
        assert not (lines := list(unchecked_launches(text))), f"{path}: no cudaGetLastError() after lines {lines}"
    assert launches > 30, f"only {launches} launches found"


def test_heads_have_at_most_fifteen_lines(_):
    assert head_lines("/*\n" + "x\n" * 14 + "*/\n") == 16
    assert head_lines("// a\n// b\n#include <x.h>\n") == 2
    for path, text in read(C_PATTERNS):
        assert head_lines(text) <= HEAD_LINES, f"{path}: its head has {head_lines(text)} lines"


def test_comments_have_at_most_128_columns(_):
    long, short = 63 * "ä " + "end", 60 * "ä " + "end"
    assert long_comments(f"// {long}\n/*\n{long}\n*/\n// {short}\nf(); {long}\n", "//") == [1, 3]
    assert long_comments(f"  # {long}\n{long}\n# {short}\n", "#") == [1]
    for patterns, marker in ((C_PATTERNS, "//"), (SHELL_PATTERNS, "#")):
        for path, text in read(patterns):
            assert not (lines := long_comments(text, marker)), f"{path}: comments beyond column 128 in lines {lines}"


def test_what_python_caches_is_no_source(folder):
    os.mkdir(os.path.join(folder, "__pycache__"))
    with open(os.path.join(folder, "__pycache__", "a.pyc"), "wb") as f:
        f.write(b"\xa7")
    assert not list(read([f"{folder}/**/*.*"]))


def test_the_words_are_the_field_s(_):
    assert own_words("cudaDevAttrMultiProcessorCount\nthe multiprocessors\na Contestant\n") == [2, 3]
    for path, text in read(TEXT_PATTERNS):
        if path != os.path.join("dev", "LOG.md") and path != "CHANGELOG.md":  # they may say what a thing was called
            assert not (lines := own_words(text)), f"{path}: lines {lines}"
    for path, text in read(("dev/cuda/**/*.*", "llmc/cuda/hopper.cuh", "llmc/cuda/mma.cuh")):
        assert not TMA_WORDS.search(text), f"{path}: a copy engine is TMA there"


def test_ptx_is_in_its_headers(_):
    assert inline_ptx('asm volatile("" : "+l"(p));\nasm("trap;");\nasm volatile(\n    "exit;");\n') == [2, 3]
    for path, text in read(CUDA_PATTERNS):
        if path not in PTX_HEADERS:
            assert not (lines := inline_ptx(text)), (
                f"{path}: lines {lines}: an instruction is a function of llmc/cuda/ptx.cuh"
            )


def keeps_old_errors(text):
    """Public functions of the model and the decoder in which a Status is looked at before status_clear()."""
    functions = dict(re.findall(r"^Status (gpt2_\w+)\([^;{]*\) \{\n(.*?)^\}", text, re.DOTALL | re.MULTILINE))
    for name, body in functions.items():
        first = re.search(r"status_clear\(\)|status_fail\(|status_now\(|TRY\((\w+)", body)
        if first and first.group() != "status_clear()" and first.group(1) not in functions:
            yield name


def test_public_functions_forget_older_errors(_):
    assert list(keeps_old_errors("Status gpt2_x(int a) {\n    TRY(f());\n    status_clear();\n}\n")) == ["gpt2_x"]
    found = [
        f"{path}: {name}" for path, text in read(("*.c", "*.cu", "llmc/model/*.h")) for name in keeps_old_errors(text)
    ]
    assert not found, found


def test_every_place_names_the_same_version(_):
    """The programs' --help and libattention.pc have it from llmc/base/cli.h; dates of a release agree, too."""
    releases = {
        "llmc/base/cli.h": r'^#define FLASHGPT_VERSION "(.*)"',
        "CITATION.cff": r"^version: (.*)\ndate-released: (.*)$",
        "CHANGELOG.md": r"^## (\d.*), (\d{4}-\d\d-\d\d)$",
    }
    found = []
    for path, pattern in releases.items():
        found.append((path, *re.search(pattern, unit.read(os.path.join(ROOT, path)), re.MULTILINE).groups()))
    assert len({version for _, version, *_ in found}) == 1, found
    assert len({date for _, _, *dates in found for date in dates}) == 1, found


def test_an_include_that_runs_up_is_refused(folder):
    shutil.copytree(os.path.join(ROOT, "llmc"), os.path.join(folder, "llmc"))
    os.makedirs(os.path.join(folder, "dev/test"))
    shutil.copy(os.path.join(ROOT, "dev/test/check_includes.sh"), os.path.join(folder, "dev/test"))
    command = [os.path.join(folder, "dev/test/check_includes.sh")]
    settings = {**os.environ, "CC": "true", "NVCC": ""}  # no header is compiled
    for include, fault in (("llmc/base/utf8.h", ""), ("llmc/run/flags.h", "llmc/model is not above llmc/run\n")):
        with open(os.path.join(folder, "llmc/model/sampler.h"), "a", encoding="utf-8") as f:
            f.write(f'#include "{include}"\n')
        done = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
        assert done.returncode == (fault != "") and done.stderr.endswith(fault) and bool(done.stderr) == bool(fault), (
            done
        )


def test_the_training_loops_are_the_same(_):
    loops = set()
    for path in ("train_gpt2.c", "train_gpt2.cu", "dev/test/fixtures/train_main.h"):
        loops.add(
            re.search(r"Trainer\* t = trainer_start.*?\n}\n", unit.read(os.path.join(ROOT, path)), re.DOTALL).group()
        )
    assert len(loops) == 1, loops


def test_the_dumps_are_small(_):
    patterns = ("dev/reference/*.bin", "dev/reference/*_errors.csv")
    sizes = [os.path.getsize(path) for pattern in patterns for path in glob.glob(os.path.join(ROOT, pattern))]
    assert len(sizes) >= 12 and sum(sizes) <= DUMP_BYTES, f"{len(sizes)} files of {sum(sizes):,} bytes"


if __name__ == "__main__":
    sys.exit(unit.run(globals()))
