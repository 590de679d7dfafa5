"""
Turns dev/cuda/leaderboard/<gpu>.csv, which `make compete` writes, into the tables of dev/cuda/README.md and two plots
beside the CSV: TFLOP/s against T, forward and backward.

    python3 dev/cuda/plot_leaderboard.py dev/cuda/leaderboard/nvidia-h200.csv

The README's part between the two marker lines of that GPU is replaced; where there is none yet, it is appended.
"""

import argparse
import csv
import sys
from pathlib import Path

README = Path(__file__).parent / "README.md"
LADDER_SHAPE = (8, 1024, 12, 64)
CURVE_TOKENS = 32768  # the plots' shapes: this many tokens in rows of T, 12 heads of 64
DIRECTIONS = ("forward", "backward")


def read(path):
    """The fastest row of each variant, precision and shape, with shape, ms and tflops as numbers."""
    best = {}
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            row["shape"] = tuple(int(row[size]) for size in ("B", "T", "NH", "HS"))
            row["ms"], row["tflops"] = float(row["ms"]), float(row["tflops"])
            key = (row["direction"], row["variant"], row["precision"], row["shape"])
            if key not in best or row["ms"] < best[key]["ms"]:
                best[key] = row
    if not best:
        sys.exit(f"error: {path} has no rows")
    return list(best.values())


def table(header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def ladder(rows):
    """Every variant at one shape, slowest first: milliseconds and TFLOP/s, forward and backward, in each precision."""
    precisions = [p for p in ("fp32", "bf16", "fp16") if any(r["precision"] == p for r in rows)]
    cells = {(r["variant"], r["precision"], r["direction"]): r for r in rows if r["shape"] == LADDER_SHAPE}
    variants = {variant for variant, _, _ in cells}

    def slowness(variant):
        return -min(r["ms"] for (name, _, _), r in cells.items() if name == variant), variant

    def cell(row):
        return f"{row['ms']:.4g} ms, {row['tflops']:.1f}" if row else "–"

    columns = [(p, d) for p in precisions for d in DIRECTIONS]
    lines = [
        [variant] + [cell(cells.get((variant, p, d))) for p, d in columns] for variant in sorted(variants, key=slowness)
    ]
    return table(["variant"] + [f"{d}, {p}" for p, d in columns], lines)


def shapes_table(rows, direction):
    """TFLOP/s of every variant in bf16 at every shape; the fastest is bold, with its milliseconds."""
    rows = [r for r in rows if r["direction"] == direction and r["precision"] == "bf16"]
    variants = sorted(
        {r["variant"] for r in rows}, key=lambda variant: max(r["tflops"] for r in rows if r["variant"] == variant)
    )
    lines = []
    for shape in dict.fromkeys(r["shape"] for r in rows):
        here = {r["variant"]: r for r in rows if r["shape"] == shape}
        best = min(here.values(), key=lambda r: r["ms"])
        cells = [f"{here[i]['tflops']:.1f}" if i in here else "–" for i in variants]
        cells = [f"**{c}**" if i == best["variant"] else c for i, c in zip(variants, cells)]
        lines.append([",".join(map(str, shape)), *cells, f"{best['ms']:.4g}"])
    return table(["B,T,NH,HS", *variants, "best, ms"], lines)


def write_readme(rows, name, plots):
    gpu = rows[0]
    begin, end = f"<!-- leaderboard {name} -->", f"<!-- end of leaderboard {name} -->"
    moody = sorted({f"{r['variant']} {r['direction']}" for r in rows if r["deterministic"] != "yes"})
    lines = [
        begin,
        f"### {gpu['gpu']}",
        "",
        f"Driver {gpu['driver']}, CUDA {gpu['cuda']}, {max(r['date'] for r in rows)}. "
        + (f"Not deterministic: {', '.join(moody)}." if moody else "All are deterministic."),
        "",
        f"The ladder at {','.join(map(str, LADDER_SHAPE))}: ms and TFLOP/s.",
        "",
        ladder(rows),
    ]
    for d in DIRECTIONS:
        lines += ["", f"{d.capitalize()}, bf16, TFLOP/s:", "", shapes_table(rows, d), "", f"![{d}]({plots[d]})"]
    text = "\n".join([*lines, "", end])
    readme = README.read_text()
    if begin in readme and end in readme:
        before, rest = readme.split(begin, 1)
        text = before + text + rest.split(end, 1)[1]
    else:
        text = readme.rstrip("\n") + "\n\n" + text + "\n"
    README.write_text(text)


def plot(rows, direction, path):
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "leaderboard"  # the same rows, the same bytes

    figure, axes = plt.subplots(figsize=(7, 4.2))
    curves = {}
    for r in rows:
        B, T, NH, HS = r["shape"]
        if r["direction"] == direction and r["precision"] == "bf16" and (B * T, NH, HS) == (CURVE_TOKENS, 12, 64):
            curves.setdefault(r["variant"], {})[T] = r["tflops"]
    for variant, points in sorted(curves.items(), key=lambda item: -max(item[1].values())):
        axes.plot(*zip(*sorted(points.items())), marker="o", label=variant)
    lengths = sorted({T for points in curves.values() for T in points})
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(T) for T in lengths])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"T, with {CURVE_TOKENS} tokens, 12 heads of 64")
    axes.set_ylabel("TFLOP/s, causal half counted")
    axes.set_title(f"Attention {direction}, bf16, {rows[0]['gpu']}")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("leaderboard", type=Path, help="dev/cuda/leaderboard/<gpu>.csv")
    path = parser.parse_args().leaderboard
    if not path.exists():
        sys.exit(f"error: {path} is missing: make compete writes it")
    rows = read(path)
    plots = {}
    for direction in DIRECTIONS:
        svg = path.with_name(f"{path.stem}_{direction}.svg")
        plot(rows, direction, svg)
        plots[direction] = f"leaderboard/{svg.name}"
    write_readme(rows, path.stem, plots)
    print(f"{README}: {len(rows)} rows of {path}")


if __name__ == "__main__":
    main()
