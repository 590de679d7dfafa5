#!/usr/bin/env python3
"""Two runs in one plot, and how far their losses differ, from their main.log files.

    python3 dev/reference/plot_curves.py log_ours/main.log log_torch/main.log --labels ours PyTorch --output curves.png

The plot shows both training losses, both validation losses, and below them the difference of the training losses.
"""

import math
import os
import re

from common import Parser, fail, run

LINE = re.compile(r"s:(\d+) (trl|tel):(\S+)")
KINDS = {"trl": "training", "tel": "validation"}


def read_log(path):
    """{kind: {step: loss}} of a main.log; a step that a resumed run wrote again counts once, as last written."""
    curves = {kind: {} for kind in KINDS}
    try:
        with open(path, encoding="utf-8") as f:
            for line in f:
                match = LINE.match(line)
                if match:
                    curves[match[2]][int(match[1])] = float(match[3])
    except OSError as error:
        fail(f"cannot read {path}: {error.strerror}")
    except ValueError as error:
        fail(f"{path} is not a main.log: {error}")
    if not curves["trl"]:
        fail(f"{path} holds no training losses (lines s:<step> trl:<loss>)")
    return curves


def state_differences(first, second):
    """Prints the largest and the mean difference for each kind of loss, over the steps that both runs have."""
    for kind, name in KINDS.items():
        steps = sorted(first[kind].keys() & second[kind].keys())
        if not steps:
            continue
        differences = [abs(first[kind][step] - second[kind][step]) for step in steps]
        bad = [step for step, difference in zip(steps, differences) if not math.isfinite(difference)]
        if bad:
            fail(f"the {name} loss of step {bad[0]} is not finite in one of the runs")
        largest = max(differences)
        where = steps[differences.index(largest)]
        mean = sum(differences) / len(steps)
        values = f"step {where}: {first[kind][where]:.6f}, {second[kind][where]:.6f}"
        print(f"{name} loss, {len(steps)} steps: largest difference {largest:.6f} ({values}), mean {mean:.6f}")


def plot(first, second, labels, path):
    try:
        import matplotlib
    except ImportError:
        fail("a plot needs the Python package matplotlib: pip install matplotlib")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(
        2, 1, sharex=True, figsize=(8, 6), height_ratios=[3, 1], layout="constrained"
    )
    for curves, label, color, dashes in zip((first, second), labels, ("C0", "C1"), ("-", "--")):
        above.plot(*zip(*sorted(curves["trl"].items())), dashes, color=color, label=label)
        if curves["tel"]:
            above.plot(*zip(*sorted(curves["tel"].items())), "o", color=color, ms=4, label=f"{label}, validation")
    steps = sorted(first["trl"].keys() & second["trl"].keys())
    below.plot(steps, [first["trl"][step] - second["trl"][step] for step in steps], color="0.3")
    below.axhline(0, color="0.7", linewidth=0.8)
    above.set_ylabel("loss (nats)")
    above.legend()
    below.set_ylabel(f"{labels[0]} - {labels[1]}")
    below.set_xlabel("step")
    try:
        figure.savefig(path, dpi=150)
    except (OSError, ValueError) as error:
        fail(f"cannot write {path}: {error}")
    print(path)


def main():
    parser = Parser(__doc__)
    parser.add_argument("logs", nargs=2, metavar="LOG", help="a main.log")
    parser.add_argument("--labels", nargs=2, metavar="NAME", help="default: the names of the logs' folders")
    parser.add_argument("--output", metavar="FILE", help="the plot (.png, .svg, .pdf); without it only the numbers")
    args = parser.parse_args()
    first, second = (read_log(path) for path in args.logs)
    state_differences(first, second)
    if args.output:
        labels = args.labels or [os.path.basename(os.path.dirname(os.path.abspath(path))) for path in args.logs]
        plot(first, second, labels, args.output)


if __name__ == "__main__":
    run(main)
