"""For pip install ./python: the module, and beside it libattention.so, which takes nvcc two minutes to build."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py
from setuptools.dist import Distribution

CHECKOUT = Path(__file__).resolve().parent.parent
SOURCES = ("Makefile", "llmc", "dev/cuda", "dev/test/checks.mk")  # of libattention.so
VERSION = CHECKOUT / "llmc" / "base" / "cli.h"


def build_library(folder):
    """Writes libattention.so from a copy of the sources, so that what make has built in the checkout stays as it is."""
    name, *rest = os.environ.get("NVCC", "").split() or ["nvcc"]
    nvcc = shutil.which(name, path=f"{os.environ['PATH']}:/usr/local/cuda/bin")
    if nvcc is None:
        sys.exit(f"error: no {name} found: install the CUDA Toolkit, 12.6 or newer, or name its compiler with NVCC=")
    with tempfile.TemporaryDirectory() as copy:
        for source in SOURCES:
            there = Path(copy, source)
            there.parent.mkdir(parents=True, exist_ok=True)
            (shutil.copytree if (CHECKOUT / source).is_dir() else shutil.copy)(CHECKOUT / source, there)
        # No GPU_ARCH is sm_80, sm_90a and PTX for newer ones; no WERROR, for nvcc may be newer than the sources.
        command = ["make", "-s", "-j2", "libattention.so", f"NVCC={' '.join([nvcc, *rest])}", "GPU_ARCH=", "WERROR="]
        try:
            failed = subprocess.run(command, cwd=copy, check=False).returncode
        except OSError as error:
            sys.exit(f"error: cannot run make: {error.strerror}")
        if failed:
            sys.exit(f"error: {' '.join(command)} failed, see above")
        shutil.copy(Path(copy, "libattention.so"), folder)


class BuildWithLibrary(build_py):
    def run(self):
        super().run()
        if not self.editable_mode:  # an editable installation uses the checkout's
            build_library(self.build_lib)


class WheelOfAnyPython(bdist_wheel):
    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


class WithBinaries(Distribution):
    def has_ext_modules(self):
        return True


if not VERSION.exists():
    sys.exit(f"error: {CHECKOUT} is not a checkout of flashgpt, from which libattention.so is built")
setup(
    version=re.search(r'^#define FLASHGPT_VERSION "(.*)"', VERSION.read_text(encoding="utf-8"), re.MULTILINE)[1],
    py_modules=["flashgpt_attention"],
    cmdclass={"build_py": BuildWithLibrary, "bdist_wheel": WheelOfAnyPython},
    distclass=WithBinaries,
)
