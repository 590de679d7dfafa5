"""
Turns dev/cuda/leaderboard/<gpu>.csv, which `make compete` writes, into the tables of dev/cuda/README.md and two plots
beside the CSV: TFLOP/s against T, forward and backward, in each mode.

    python3 dev/cuda/plot_leaderboard.py dev/cuda/leaderboard/nvidia-h200.csv

The README's part between the two marker lines of that GPU is replaced; where there is none yet, it is appended.
"""

import argparse
import csv
import sys
from pathlib import Path

README = Path(__file__).parent / "README.md"
OVERVIEW_SHAPE = (8, 1024, 12, 64)
CURVE_TOKENS = 32768  # the plots' shapes: this many tokens in rows of T, 12 heads of 64
DIRECTIONS = ("forward", "backward")
MODES = {"steady": "Steady", "rested": "Rested"}
NUMBERS = ("ms", "tflops", "mj", "pj_per_flop", "sm_mhz")


def read(path):
    """All rows, with the shape and what was measured as numbers; None where it was not."""
    rows = []
    with open(path, newline="") as f:
        for row in csv.DictReader(f):
            row["shape"] = tuple(int(row[size]) for size in ("B", "T", "NH", "HS"))
            for name in NUMBERS:
                row[name] = float(row[name]) if row[name] else None
            if row["mode"] not in MODES:
                sys.exit(f"error: {path}: mode {row['mode']}: must be one of {', '.join(MODES)}")
            rows.append(row)
    if not rows:
        sys.exit(f"error: {path} has no rows")
    return rows


def fastest(rows):
    """The fastest row of each mode, direction, variant, precision and shape."""
    best = {}
    for row in rows:
        key = tuple(row[column] for column in ("mode", "direction", "variant", "precision", "shape"))
        if key not in best or row["ms"] < best[key]["ms"]:
            best[key] = row
    return list(best.values())


def shape_text(shape):
    return ",".join(map(str, shape))


def table(header, rows):
    lines = [header, ["---"] + ["---:"] * (len(header) - 1), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def overview(rows):
    """Every variant at one shape, slowest first: milliseconds and TFLOP/s, forward and backward, in each precision."""
    precisions = [p for p in ("fp32", "bf16", "fp16") if any(r["precision"] == p for r in rows)]
    cells = {(r["variant"], r["precision"], r["direction"]): r for r in rows if r["shape"] == OVERVIEW_SHAPE}
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
    """TFLOP/s of every variant in bf16 at every shape; the fastest is bold, with its milliseconds and its energy."""
    rows = [r for r in rows if r["direction"] == direction and r["precision"] == "bf16"]
    variants = sorted(
        {r["variant"] for r in rows}, key=lambda variant: max(r["tflops"] for r in rows if r["variant"] == variant)
    )
    energy = any(r["mj"] is not None for r in rows)
    lines = []
    for shape in dict.fromkeys(r["shape"] for r in rows):
        here = {r["variant"]: r for r in rows if r["shape"] == shape}
        best = min(here.values(), key=lambda r: r["ms"])
        cells = [f"{here[i]['tflops']:.1f}" if i in here else "–" for i in variants]
        cells = [f"**{c}**" if i == best["variant"] else c for i, c in zip(variants, cells)]
        cells.append(f"{best['ms']:.4g}")
        if energy:
            cells += (
                [f"{best['mj']:,.0f}" if best["mj"] >= 1000 else f"{best['mj']:.4g}", f"{best['pj_per_flop']:.2f}"]
                if best["mj"] is not None
                else ["–", "–"]
            )
        lines.append([shape_text(shape), *cells])
    return table(["B,T,NH,HS", *variants, "best, ms"] + (["mJ", "pJ/FLOP"] if energy else []), lines)


def differences(rows):
    """Where the fastest configuration of what trains is not the one that trains: a table, or a sentence."""
    lines = []
    for best in fastest(rows):
        key = [best[column] for column in ("mode", "direction", "variant", "precision", "shape")]
        for row in rows:
            same = [row[column] for column in ("mode", "direction", "variant", "precision", "shape")] == key
            if same and row["trains"] == "yes" and row["config"] != best["config"]:
                cells = [shape_text(best["shape"]), best["direction"], best["precision"], best["mode"], best["config"]]
                lines.append([*cells, row["config"], f"{100 * (row['ms'] / best['ms'] - 1):.1f}%"])
    if not any(row["trains"] for row in rows):
        return ""
    if not lines:
        return "At every shape and in both modes the configuration that trains is the fastest of its variant."
    header = ["B,T,NH,HS", "direction", "precision", "mode", "fastest", "trains", "slower by"]
    return "Where the configuration that trains is not the fastest of its variant:\n\n" + table(header, lines)


def write_readme(rows, name, plots):
    begin, end = f"<!-- leaderboard {name} -->", f"<!-- end of leaderboard {name} -->"
    best = fastest(rows)
    unsure = sorted({r["variant"] for r in rows if r["deterministic"] != "yes"})
    environments = sorted({(r["driver"], r["cuda"], r["date"], r["commit"]) for r in rows})
    lines = [
        begin,
        f"### {rows[0]['gpu']}",
        "",
        "; ".join(f"Driver {d}, CUDA {c}, {date}, commit {commit}" for d, c, date, commit in environments)
        + f". {'Not deterministic: ' + ', '.join(unsure) if unsure else 'All are deterministic'}.",
        "",
        differences(rows),
    ]
    for mode, title in MODES.items():
        here = [r for r in best if r["mode"] == mode]
        if not here:
            continue
        if any(r["shape"] == OVERVIEW_SHAPE for r in here):
            lines += ["", f"{title}, all variants at {shape_text(OVERVIEW_SHAPE)}: ms and TFLOP/s.", "", overview(here)]
        for d in DIRECTIONS:
            if any(r["direction"] == d and r["precision"] == "bf16" for r in here):
                lines += ["", f"{title}, {d}, bf16, TFLOP/s:", "", shapes_table(here, d)]
    for d in DIRECTIONS:
        lines += ["", f"![{d}]({plots[d]})"]
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
    for r in fastest(rows):
        B, T, NH, HS = r["shape"]
        if r["direction"] == direction and r["precision"] == "bf16" and (B * T, NH, HS) == (CURVE_TOKENS, 12, 64):
            curves.setdefault(r["variant"], {}).setdefault(r["mode"], {})[T] = r["tflops"]
    styles = {"steady": "-", "rested": "--"}
    lengths = set()
    for color, variant in enumerate(sorted(curves, key=lambda v: -max(max(p.values()) for p in curves[v].values()))):
        for mode, points in sorted(curves[variant].items()):
            lengths |= set(points)
            label = f"{variant}, {MODES[mode].lower()}"
            axes.plot(*zip(*sorted(points.items())), styles[mode], color=f"C{color}", marker="o", ms=4, label=label)
    lengths = sorted(lengths)
    axes.set_xscale("log", base=2)
    axes.set_xticks(lengths, [str(T) for T in lengths])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"T, with {CURVE_TOKENS} tokens, 12 heads of 64")
    axes.set_ylabel("TFLOP/s, causal half counted")
    axes.set_title(f"Attention {direction}, bf16, {rows[0]['gpu']}")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
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
