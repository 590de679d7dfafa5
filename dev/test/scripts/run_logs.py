"""Made-up logs of runs, for the tests of scripts/plot_run.py and of its page."""

import argparse
import contextlib
import importlib
import io
import os
import struct
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, os.pardir)
sys.path.insert(0, os.path.join(ROOT, "scripts"))
sys.path.insert(0, os.path.join(ROOT, "dev", "data"))

import plot_run  # noqa: E402 (the folder that has it is known now)
from unit import write  # noqa: E402

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=alert(1)>\"'&\u2028"


def module(name):
    """One of scripts/."""
    return importlib.import_module(name)


def loss(step):
    return 2.0 + 3.0 / (1.0 + step / 20.0)


def main_log(first=0, last=100, run=77, every=10):
    """The lines of main.log from step `first` to before `last`, a validation at every tenth."""
    lines = [f"s:0 run:{run}"] if run else []
    for step in range(first, last):
        if step % every == 0:
            lines += [f"s:{step} tel:{loss(step) + 0.1:.6f}", f"s:{step} eval:{0.25 + step / 1000:.4f}"]
        lines.append(f"s:{step} trl:{loss(step):.6f} lr:{3e-4:.6e} norm:{1.0 + step % 3:.4f}")
    return "".join(f"{line}\n" for line in lines)


def table(resume=0, source="d2", run=77, steps=100, rate="0.001", total=512, others=0):
    rule = f"+{'-' * 23}+{'-' * 52}+"
    flags = [("flag", "value"), None, ("output-dir", "run"), ("resume", resume), ("total-batch", total)]
    facts = [("device", "NVIDIA H200, 132 SMs"), ("run", run), ("weights from", source), ("memory", "23940 MiB")]
    flags += [("learning-rate", rate)] if rate else []
    flags += [("other flags", f"{others} at their defaults; --all-flags lists them")] if others else []
    rows = [None, *flags, None, *facts, ("steps", steps), None]
    return "\n".join(rule if row is None else f"| {row[0]:<21} | {row[1]!s:<50} |" for row in rows) + "\n"


def step_line(step, steps=100, value=None):
    number = loss(step) if value is None else value
    of = " (+0.53z)" if step > 50 else ""
    return (
        f"step {step + 1:4d}/{steps} | loss {number:7.6f}{of} | norm 1.2500{of} | lr 1.00e-03 | 100.00 ms "
        "| 51.5% MFU | 5000 tok/s | 10s left\n"
    )


def stdout(first=0, last=100, steps=100, **of_table):
    """What a trainer prints: a table, losses, validations, a sample in the middle."""
    text = table(steps=steps, **of_table)
    for step in range(first, last):
        if step % 10 == 0:
            text += f"val loss {loss(step) + 0.1:.6f}\n"
        if step == 50:
            text += "HellaSwag: 30/100 = 0.300000\ngenerating:\n---\nONCE\n---\nupon a time\n---\n"
        text += step_line(step, steps)
    return text


def state_file(path, **settings):
    """A state file of nothing but a header and settings."""
    names = {k: k if k == "model" else f"--{k.replace('_', '-')}" for k in settings}
    text = "free format 1\n" + "".join(f"result {names[k]} {v}\n" for k, v in settings.items())
    words = [0] * 256
    words[0], words[1], words[42] = 20240527, 1, len(text.encode())
    return write(path, struct.pack("<256i", *words) + bytes(4000) + text.encode())


def arguments(window):
    """The options of plot_run.py that a page takes, as they are by default."""
    return argparse.Namespace(x="step", smooth=window, log_x=False, log_y=False, follow=False, every=5)


def plot(*arguments, code=0):
    """What plot_run.py prints; of an error its one line."""
    out, argv = io.StringIO(), sys.argv
    sys.argv = ["plot_run.py", *map(str, arguments)]
    got, error = 0, None
    with contextlib.redirect_stdout(out):
        try:
            plot_run.main()
        except SystemExit as end:
            got, error = (1, str(end.code)) if isinstance(end.code, str) else (end.code or 0, None)
        finally:
            sys.argv = argv
    assert got == code, (got, error, out.getvalue())
    assert error is None or "\n" not in error, error
    return error if error is not None else out.getvalue()
