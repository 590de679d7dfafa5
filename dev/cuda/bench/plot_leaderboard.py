"""
Turns dev/cuda/leaderboard/<gpu>.csv, which `make compete` writes, into tables in the README.md beside it and two plots:
TFLOP/s against T, forward and backward, in each mode. Files beside it are shown as well: <gpu>_libraries.csv, from
compare_libraries.py, as tables and a curve for each library in steady mode; <gpu>_decode.csv as tables and a plot of
GB/s against T; <gpu>_matmul.csv as tables and a plot of times relative to cublaslt's.

    python3 dev/cuda/bench/plot_leaderboard.py dev/cuda/leaderboard/nvidia-h200.csv

Replaces the part of the page between the two marker lines of that GPU; appends it if there is none yet.
"""

import csv
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "data"))

from data_common import Parser

OVERVIEW_SHAPE = (8, 1024, 12, 64)
CURVE_TOKENS = 32768  # the plots' shapes: this many tokens in rows of T, 12 heads of 64
DIRECTIONS = ("forward", "backward")
SIZES = (("B", "T", "NH", "HS"), ("R", "IN", "OUT"))  # of a shape: attention's, and matmul's
BASELINE = "cublaslt"  # of matmul
MODES = {"steady": "Steady", "rested": "Rested"}
STYLES = {"steady": "-", "rested": "--"}
NUMBERS = ("ms", "tflops", "mj", "pj_per_flop", "sm_mhz", "of_gemm", "gb_per_s", "of_read", "pj_per_byte")
# columns that a file must have
BOARD = (
    *("variant", "precision", "config", "trains", "mode", "ms", "mj", "deterministic"),
    *("driver", "cuda", "date", "commit"),
)
LEADERBOARD = (*BOARD, "gpu", "direction", *SIZES[0], "tflops", "pj_per_flop")
BOARDS = {
    "decode": (*BOARD, "direction", *SIZES[0], "gb_per_s", "of_read"),
    "matmul": (*BOARD, "group", *SIZES[1], "tflops", "of_gemm", "gb_per_s"),
}
LIBRARIES = (*SIZES[0], "direction", "mode", "provider", "tflops", "best_peer_over_ours", "torch", "cudnn", "commit")
OURS = "ours"  # among the providers of compare_libraries.py
LENGTHS = {"up to 1024": 1024, "up to 4096": 4096, "above 4096": float("inf")}  # of rows, in summaries
ERRORS = ("out", "out_from_64", "dq", "dk", "dv")  # columns of compare_libraries.py
PEERS = {"cuDNN": "cuDNN", "FA2": "FlashAttention-2", "FA3": "FlashAttention-3", "FA4": "FlashAttention-4"}


def read_csv(path, columns):
    """The rows of a CSV file with at least these columns, as strings; anything else ends in one line."""
    try:
        with open(path, newline="", encoding="utf-8") as f:
            rows = list(csv.DictReader(f))
    except (OSError, UnicodeDecodeError) as error:
        sys.exit(f"error: cannot read {path}: {getattr(error, 'strerror', None) or 'it is not text'}")
    if not rows:
        sys.exit(f"error: {path} has no rows")
    for number, row in enumerate(rows, 2):
        missing = [column for column in columns if row.get(column) is None]
        if missing:
            sys.exit(f"error: {path}, line {number}: no column {missing[0]}; make compete writes leaderboards")
    return rows


def number_of(path, number, row, column):
    """A row's number, None if it was not measured; anything else ends in one line."""
    try:
        return float(row[column]) if row[column] else None
    except ValueError:
        sys.exit(f"error: {path}, line {number}: {column} is '{row[column]}', not a number")


def read(path, columns=LEADERBOARD):
    """All rows, shape and measurements as numbers, None where not measured. A matmul's direction is its group."""
    rows = read_csv(path, columns)
    for number, row in enumerate(rows, 2):
        row["sizes"] = next((sizes for sizes in SIZES if sizes[0] in row), SIZES[0])
        row["shape"] = tuple(int(number_of(path, number, row, size) or 0) for size in row["sizes"])
        row.setdefault("direction", row.get("group"))
        for name in set(NUMBERS) & set(row):
            row[name] = number_of(path, number, row, name)
        if row["mode"] not in MODES:
            sys.exit(f"error: {path}: mode {row['mode']}: must be one of {', '.join(MODES)}")
    return rows


def read_libraries(path):
    """compare_libraries.py's rows, shape, TFLOP/s and ratio as numbers."""
    rows = read_csv(path, LIBRARIES)
    if not any(row["provider"] == OURS for row in rows):
        sys.exit(f"error: {path} has no row of provider {OURS}; compare_libraries.py writes one for each shape")
    for number, row in enumerate(rows, 2):
        row["shape"] = tuple(int(number_of(path, number, row, size) or 0) for size in SIZES[0])
        row["tflops"] = number_of(path, number, row, "tflops")
        row["ratio"] = number_of(path, number, row, "best_peer_over_ours") or float("nan")
    return rows


def peers_of(libraries):
    """{(peer, direction): {shape: TFLOP/s}} in steady mode, of the peers that are drawn."""
    peers = {}
    for row in libraries:
        if row["mode"] == "steady" and row["provider"] in PEERS:
            peers.setdefault((row["provider"], row["direction"]), {})[row["shape"]] = row["tflops"]
    return peers


def spread(values):
    """The smallest and the largest number, as a string; only one if they look the same."""
    ends = [f"{value:.2f}" for value in (min(values), max(values))] if values else ["–"]
    return " to ".join(dict.fromkeys(ends))


def libraries_summary(rows):
    """How far ahead ours is, for each head size and length of rows, and how accurate it is: lines of the page."""
    ours = [r for r in rows if r["provider"] == OURS]
    columns = [(d, m) for d in DIRECTIONS for m in MODES if any((r["direction"], r["mode"]) == (d, m) for r in ours)]
    lines = []
    for HS in sorted({r["shape"][3] for r in ours}):
        shorter = 0
        for name, longest in LENGTHS.items():
            here = [r for r in ours if r["shape"][3] == HS and shorter < r["shape"][1] <= longest]
            cells = [[r["ratio"] for r in here if (r["direction"], r["mode"]) == column] for column in columns]
            shorter = longest
            if here:
                lines.append([f"{HS}, {name}", *map(spread, cells)])
    told = []
    for error in ERRORS:
        theirs, ratios = {}, []
        for r in rows:
            if r[error] and r["provider"] != OURS:
                theirs.setdefault((r["direction"], r["mode"], r["shape"]), []).append(float(r[error]))
        for r in ours:
            peers = theirs.get((r["direction"], r["mode"], r["shape"]))
            ratios += [float(r[error]) / min(peers)] if r[error] and peers else []
        told += [f"`{error}` {spread(ratios)}"] if ratios else []
    header = ["HS, T", *(f"{direction}, {mode}" for direction, mode in columns)]
    errors = ["", f"Errors against fp64, ours over the smallest of theirs: {', '.join(told)}."] if told else []
    return [table(header, lines), *errors]


def libraries_section(rows):
    """The lines on other libraries: in each mode and direction TFLOP/s at every shape, and the ratio."""
    found = sorted({(r["driver"], r["cuda"], r["torch"], r["cudnn"], r["date"], r["commit"]) for r in rows})
    told = "; ".join(
        f"Driver {d}, CUDA {c}, torch {t}, cuDNN {n}, {date}, commit {commit}" for d, c, t, n, date, commit in found
    )
    lines = ["", "### Beside other libraries", "", f"{told}. Ratio: the best peer's time / ours; of all shapes:", ""]
    lines += libraries_summary(rows)
    for mode, title in MODES.items():
        for direction in DIRECTIONS:
            here = [r for r in rows if (r["mode"], r["direction"]) == (mode, direction)]
            if not here:
                continue
            providers = list(dict.fromkeys(r["provider"] for r in here))
            cells = {(r["shape"], r["provider"]): f"{r['tflops']:.1f}" for r in here}
            ratios = {r["shape"]: f"{r['ratio']:.3f}" for r in here}
            table_rows = [
                [shape_text(shape), *(cells.get((shape, provider), "–") for provider in providers), ratio]
                for shape, ratio in ratios.items()
            ]
            lines += ["", f"{title}, {direction}, bf16, TFLOP/s:", ""]
            lines.append(table(["B,T,NH,HS", *providers, "ratio"], table_rows))
    return lines


def peer_curve(points):
    """Among shapes with 12 heads of 64, for each T the one with tokens nearest to the plot's: [(T, B, TFLOP/s)]."""
    nearest = {}
    for (B, T, NH, HS), tflops in points.items():
        distance = abs(B * T - CURVE_TOKENS)
        if (NH, HS) == (12, 64) and (T not in nearest or distance < nearest[T][0]):
            nearest[T] = distance, B, tflops
    return [(T, B, tflops) for T, (_, B, tflops) in sorted(nearest.items())]


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
    precisions = [p for p in ("fp32", "bf16") if any(r["precision"] == p for r in rows)]
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


def differences(rows, does="trains"):
    """Where the configuration that trains is not the fastest of its variant: a table, or a sentence if nowhere."""
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
        return f"At every shape and in both modes the configuration that {does} is the fastest of its variant."
    of = "group" if "group" in rows[0] else "direction"
    header = [",".join(rows[0]["sizes"]), of, "precision", "mode", "fastest", does, "slower by"]
    return f"Where the configuration that {does} is not the fastest of its variant:\n\n" + table(header, lines)


def share(value):
    """A share of the GEMM or of the read; a dash if bench.h rejected it."""
    return "–" if value is None else f"{100 * value:.0f}%"


def decode_table(rows):
    """GB/s of every variant at every shape; of the fastest, bold, microseconds, the share of what a kernel that only
    reads reaches, and energy."""
    variants = sorted({r["variant"] for r in rows}, key=lambda v: max(r["gb_per_s"] for r in rows if r["variant"] == v))
    lines = []
    for shape in sorted({r["shape"] for r in rows}, key=lambda s: (s[3], s[2], s[0], s[1])):
        here = {r["variant"]: r for r in rows if r["shape"] == shape}
        best = min(here.values(), key=lambda r: r["ms"])
        cells = [f"{here[v]['gb_per_s']:,.0f}" if v in here else "–" for v in variants]
        cells = [f"**{c}**" if v == best["variant"] else c for v, c in zip(variants, cells)]
        energy = "–" if best["mj"] is None else f"{best['mj']:.4g}"
        lines.append([shape_text(shape), *cells, f"{1000 * best['ms']:,.1f}", share(best["of_read"]), energy])
    return table(["B,T,NH,HS", *variants, "best, us", "of read", "mJ"], lines)


def decode_section(rows, plot):
    """The lines on decode: in each mode and precision a table, then the plot."""
    lines = ["", "### Decode", "", f"{environments(rows)} GB/s count K and V of all tokens once."]
    for mode, title in MODES.items():
        for precision in sorted({r["precision"] for r in rows}):
            here = [r for r in fastest(rows) if (r["mode"], r["precision"]) == (mode, precision)]
            if here:
                lines += ["", f"{title}, decode, {precision}, GB/s:", "", decode_table(here)]
    return [*lines, "", differences(rows, "generates"), "", f"![decode]({plot})"]


def matmul_order(rows):
    """The groups and shapes of the rows: by the number of rows R, then by group as first raced, then by channels."""
    groups = list(dict.fromkeys(r["direction"] for r in rows))
    return sorted(
        {(r["direction"], r["shape"]) for r in rows},
        key=lambda key: (-key[1][0], groups.index(key[0]), key[1]),
    )


def matmul_table(rows):
    """Milliseconds of every variant for each group and shape; of the fastest, bold, its configuration and what else was
    measured."""
    variants = sorted({r["variant"] for r in rows}, key=lambda v: (v != BASELINE, v))
    lines = []
    for group, shape in matmul_order(rows):
        here = {r["variant"]: r for r in rows if (r["direction"], r["shape"]) == (group, shape)}
        best = min(here.values(), key=lambda r: r["ms"])
        cells = [f"{here[v]['ms']:.4g}" if v in here else "–" for v in variants]
        cells = [f"**{c}**" if v == best["variant"] else c for v, c in zip(variants, cells)]
        energy = "–" if best["mj"] is None else f"{best['mj']:,.4g}"
        measured = [f"{best['tflops']:.0f}", share(best["of_gemm"]), energy, f"{best['gb_per_s']:,.0f}"]
        lines.append([group, shape_text(shape), *cells, best["config"], *measured])
    header = ["group", "R,IN,OUT", *variants, "best", "TFLOP/s", "of GEMM", "mJ", "GB/s at least"]
    return table(header, lines)


def matmul_section(rows, plot):
    """The lines on matmul: in each mode and precision a table, then the plot."""
    lines = ["", "### Matmul", "", f"{environments(rows)} TFLOP/s count the GEMM alone."]
    for mode, title in MODES.items():
        for precision in sorted({r["precision"] for r in rows}):
            here = [r for r in fastest(rows) if (r["mode"], r["precision"]) == (mode, precision)]
            if here:
                lines += ["", f"{title}, matmul, {precision}, ms:", "", matmul_table(here)]
    return [*lines, "", differences(rows), "", f"![matmul]({plot})"]


def environments(rows):
    """Two sentences: driver, CUDA, date and commit of the rows, and which variants are not deterministic."""
    unsure = sorted({r["variant"] for r in rows if r["deterministic"] != "yes"})
    found = sorted({(r["driver"], r["cuda"], r["date"], r["commit"]) for r in rows})
    return (
        "; ".join(f"Driver {d}, CUDA {c}, {date}, commit {commit}" for d, c, date, commit in found)
        + f". {'Not deterministic: ' + ', '.join(unsure) if unsure else 'All are deterministic'}."
    )


def write_page(page, rows, libraries, decode, matmul, name, plots):
    """Writes the tables of GPU `name` into the page, between its markers; plots: {direction: the SVG's name}."""
    begin, end = f"<!-- leaderboard {name} -->", f"<!-- end of leaderboard {name} -->"
    best = fastest(rows)
    lines = [begin, f"## {rows[0]['gpu']}", "", environments(rows), "", differences(rows)]
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
    if libraries:
        lines += libraries_section(libraries)
    if decode:
        lines += decode_section(decode, plots["decode"])
    if matmul:
        lines += matmul_section(matmul, plots["matmul"])
    text = "\n".join([*lines, "", end])
    old = page.read_text() if page.exists() else "# Leaderboard\n"
    if begin in old and end in old:
        before, rest = old.split(begin, 1)
        text = before + text + rest.split(end, 1)[1]
    else:
        text = old.rstrip("\n") + "\n\n" + text + "\n"
    page.write_text(text)


def pyplot():
    try:
        import matplotlib
    except ImportError:
        sys.exit("error: a plot needs the Python package matplotlib: pip install matplotlib")

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams["svg.hashsalt"] = "leaderboard"  # the same rows, the same bytes
    return plt


def finish(plt, figure, axes, lengths, path):
    """T in powers of two, from 0 up; written as SVG."""
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(lengths), [str(T) for T in sorted(lengths)])
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def plot(rows, peers, direction, path):
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 4.2))
    curves = {}
    for r in fastest(rows):
        B, T, NH, HS = r["shape"]
        if r["direction"] == direction and r["precision"] == "bf16" and (B * T, NH, HS) == (CURVE_TOKENS, 12, 64):
            curves.setdefault(r["variant"], {}).setdefault(r["mode"], {})[T] = r["tflops"]
    lengths = set()
    for color, variant in enumerate(sorted(curves, key=lambda v: -max(max(p.values()) for p in curves[v].values()))):
        for mode, points in sorted(curves[variant].items()):
            lengths |= set(points)
            label = f"{variant}, {MODES[mode].lower()}"
            axes.plot(*zip(*sorted(points.items())), STYLES[mode], color=f"C{color}", marker="o", ms=4, label=label)
    for name, color, marker in zip(PEERS, ("black", "dimgray", "darkgray", "silver"), "sD^v"):
        curve = peer_curve(peers.get((name, direction), {}))
        if not curve:
            continue
        label = f"{PEERS[name]}, steady"
        axes.plot(*zip(*((T, y) for T, _, y in curve)), ":", color=color, marker=marker, ms=4, label=label)
        for T, B, tflops in curve:
            if B * T != CURVE_TOKENS:
                axes.annotate(f"B {B}", (T, tflops), (0, -10), textcoords="offset points", fontsize=6, ha="center")
    axes.set_xlabel(f"T, with {CURVE_TOKENS} tokens or the batch that is written at the point, 12 heads of 64")
    axes.set_ylabel("TFLOP/s, causal half counted")
    axes.set_title(f"Attention {direction}, bf16, {rows[0]['gpu']}")
    finish(plt, figure, axes, lengths, path)


def plot_decode(rows, path):
    """GB/s of the fastest against T, 12 heads of 64, a color for each batch, under that of a kernel that only reads."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(7, 4.2))
    curves, ceilings = {}, {}
    for r in fastest([r for r in rows if r["precision"] == "bf16" and r["shape"][2:] == (12, 64)]):
        B, T = r["shape"][:2]
        points = curves.setdefault(B, {}).setdefault(r["mode"], {})
        points[T] = max(r["gb_per_s"], points.get(T, 0))
        if r["of_read"]:
            ceilings[r["mode"]] = r["gb_per_s"] / r["of_read"]
    lengths = set()
    for color, B in enumerate(sorted(curves)):
        for mode, points in sorted(curves[B].items()):
            lengths |= set(points)
            label = f"B {B}, {MODES[mode].lower()}"
            axes.plot(*zip(*sorted(points.items())), STYLES[mode], color=f"C{color}", marker="o", ms=4, label=label)
    for mode, ceiling in sorted(ceilings.items()):
        axes.axhline(ceiling, ls=STYLES[mode], lw=1, color="gray", label=f"a kernel that only reads, {mode}")
    axes.set_xlabel("T, tokens of each sequence, 12 heads of 64")
    axes.set_ylabel("GB/s of K and V")
    axes.set_title(f"Attention decode, bf16, {rows[0]['gpu']}")
    finish(plt, figure, axes, lengths, path)


def plot_matmul(rows, path):
    """A bar for each variant, group and shape, bf16, steady: its time over the baseline's."""
    plt = pyplot()
    rows = fastest([r for r in rows if r["precision"] == "bf16" and r["mode"] == "steady"])
    ms = {(r["direction"], r["shape"], r["variant"]): r["ms"] for r in rows}
    keys = [key for key in matmul_order(rows) if (*key, BASELINE) in ms]
    variants = sorted({r["variant"] for r in rows} - {BASELINE})
    figure, axes = plt.subplots(figsize=(7, 1 + 0.14 * len(keys) * max(1, len(variants))))
    height = 0.8 / max(1, len(variants))
    for n, variant in enumerate(variants):
        bars = [
            (y + n * height, ms[(*key, variant)] / ms[(*key, BASELINE)])
            for y, key in enumerate(keys)
            if (*key, variant) in ms
        ]
        axes.barh(*zip(*bars), height=height, color=f"C{n}", label=variant)
    axes.axvline(1, color="black", lw=1, label=BASELINE)
    axes.set_yticks(range(len(keys)), [f"{group} {shape_text(shape)}" for group, shape in keys], fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel(f"time of {BASELINE}'s")
    axes.set_title(f"Matmul, bf16, steady, {rows[0]['gpu'] if rows else ''}")
    axes.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main():
    parser = Parser(__doc__)
    parser.add_argument("leaderboard", type=Path, help="dev/cuda/leaderboard/<gpu>.csv")
    path = parser.parse_args().leaderboard
    if not path.exists():
        sys.exit(f"error: {path} is missing: make compete writes it")
    rows = read(path)
    beside = path.with_name(f"{path.stem}_libraries.csv")
    boards = {board: path.with_name(f"{path.stem}_{board}.csv") for board in BOARDS}
    libraries = read_libraries(beside) if beside.exists() else []
    peers = peers_of(libraries)
    decode, matmul = (read(file, BOARDS[board]) if file.exists() else [] for board, file in boards.items())
    svgs = {d: path.with_name(f"{path.stem}_{d}.svg") for d in (*DIRECTIONS, *boards)}
    for direction in DIRECTIONS:
        plot(rows, peers, direction, svgs[direction])
    if decode:
        plot_decode(decode, svgs["decode"])
    if matmul:
        plot_matmul(matmul, svgs["matmul"])
    page = path.with_name("README.md")
    write_page(page, rows, libraries, decode, matmul, path.stem, {d: svg.name for d, svg in svgs.items()})
    print(f"{page}: {len(rows)} rows of {path}")


if __name__ == "__main__":
    main()
