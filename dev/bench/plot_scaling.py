#!/usr/bin/env python3
"""The plot of <gpu>/scaling.csv: tokens/s of N GPUs as a share of N times one, ours and PyTorch's, for each model.

python3 dev/bench/plot_scaling.py dev/bench/nvidia-h200/scaling.csv         # writes scaling.svg beside it
"""

import os
import sys

from readme_tables import SIZES, Fault, scaling_runs

from data_common import ROOT, Parser

LOWEST = 75  # percent, where the axis begins


def name_of(run):
    if run["program"] != "flashgpt":
        return f"{run['program']} DDP"
    return f"flashgpt {run['setting']}".strip()


def main():
    parser = Parser(__doc__)
    parser.add_argument("scaling", metavar="SCALING.csv", help="as scaling.py writes it")
    path = os.path.abspath(parser.parse_args().scaling)
    try:
        runs = scaling_runs(os.path.relpath(path, ROOT))
    except Fault as fault:
        sys.exit(f"error: {fault}")
    if not runs:
        sys.exit(f"error: {path} has no run of several GPUs beside one of one GPU")
    try:
        import matplotlib
    except ImportError:
        sys.exit("error: a plot needs the Python package matplotlib: pip install matplotlib")
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "scaling"  # equal runs, equal files
    from matplotlib import pyplot

    groups = dict.fromkeys(f"{SIZES.get(run['model'], run['model'])}, B={run['B']}, {run['gpus']} GPUs" for run in runs)
    names = list(dict.fromkeys(map(name_of, runs)))
    figure, axes = pyplot.subplots(figsize=(8, 4), layout="constrained")
    width = 0.8 / len(names)
    for i, name in enumerate(names):
        for j, group in enumerate(groups):
            for run in runs:
                here = f"{SIZES.get(run['model'], run['model'])}, B={run['B']}, {run['gpus']} GPUs"
                if name_of(run) != name or here != group:
                    continue
                label = name if name not in axes.get_legend_handles_labels()[1] else None
                bar = axes.bar(
                    j + (i - (len(names) - 1) / 2) * width, run["percent"], 0.92 * width, color=f"C{i}", label=label
                )
                axes.bar_label(bar, fmt="%.1f", fontsize=8)
    axes.axhline(100, color="0.6", linewidth=0.8)
    axes.set_ylim(LOWEST, 104)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_ylabel("tokens/s, % of N times one GPU")
    axes.legend(loc="lower left", fontsize=8)
    out = os.path.splitext(path)[0] + ".svg"
    figure.savefig(out, metadata={"Date": None})
    print(out)


if __name__ == "__main__":
    main()
