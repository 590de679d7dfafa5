"""What tests of the tools that measure have in common: calls of a tool's main()."""

import contextlib
import csv
import io
import os
import sys

from unit import program

SMI = "#!/bin/sh\ncase $* in *name*) echo NVIDIA H200 ;; *) echo 580.1 ;; esac\n"
NVCC = '#!/bin/sh\n[ "$*" = --version ] && echo "Cuda compilation tools, release 13.0, V13.0.48"\n'


def called(tool, folder, path, *flags, commit="abcdef0"):
    """What a tool, a module, writes to the CSV at path, as rows, and to stdout; the folder leads PATH."""
    program(folder, "nvidia-smi", SMI)
    program(folder, "nvcc", NVCC)
    environment, argv, out = dict(os.environ), sys.argv, io.StringIO()
    os.environ.update(PATH=f"{folder}:{environment['PATH']}", COMMIT=commit)
    sys.argv = [f"{tool.__name__}.py", "--output", path, *flags]
    try:
        with contextlib.redirect_stdout(out):
            tool.main()
    finally:
        os.environ.clear()
        os.environ.update(environment)
        sys.argv = argv
    with open(path, newline="", encoding="utf-8") as f:
        return list(csv.DictReader(f)), out.getvalue()
