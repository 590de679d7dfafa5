#!/usr/bin/env python3
"""The curves of one run or several, as a picture or as a page, and what the runs' settings differ in.

    scripts/plot_run.py log124M                                        # the numbers, on the terminal
    scripts/plot_run.py log124M --html report.html                     # a page: curves, settings, samples, events
    scripts/plot_run.py log_a log_b stdout_c.txt --output curves.png   # a picture: .png, .svg or .pdf
    scripts/plot_run.py log124M --html report.html --follow            # written again while the run continues

A run is the folder of the trainer's -o, or a main.log, or what the trainer printed, or what --log-json wrote. What was
printed joins the folder of its run where that is named too, or where it lies in there. main.log alone has losses,
learning rate and gradient norm; speed, memory, time and samples are in main.jsonl beside it, what was printed has the
warnings. The run may still be going on.

The page needs nothing but Python; pictures need matplotlib.
"""

import contextlib
import io
import os
import sys
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "dev", "data"))

import run_curves
import run_log
from data_common import Parser, fail, positive_int, run, write_atomically

MOST_TABLE_ROWS = 14  # of differences in a picture
LONGEST_VALUE = 44  # characters of a setting on the terminal and in a picture
MOST_SMOOTH, MOST_EVERY = 10**9, 86400  # steps; seconds
PICTURES = (".png", ".svg", ".pdf")
PAGES = (".html", ".htm")


def shown(text, most=LONGEST_VALUE):
    """A text of a file, of one line, that does not steer a terminal."""
    text = "".join(c if c.isprintable() else "?" for c in text)
    return text if len(text) <= most else f"{text[: most - 1]}…"


# ----------------------------------------------------------------------------
# The terminal


def table(rows):
    """Prints rows of texts in columns; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [cell.ljust(width) if i == 0 else cell.rjust(width) for i, (cell, width) in enumerate(zip(row, widths))]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("  ".join("-" * width for width in widths))


def say_runs(runs):
    columns = (
        ("steps", lambda s: f"{s['steps']}"),
        (f"loss, last {run_curves.LAST_STEPS}", lambda s: f"{s['loss']:.4f}"),
        ("best validation", lambda s: f"{s['best']:.4f} at {s['best_step']}"),
        ("HellaSwag", lambda s: f"{s['hellaswag']:.4f}"),
        ("tokens", lambda s: run_curves.short_number(s["tokens"])),
        ("tok/s", lambda s: run_curves.short_number(s["tokens_per_second"])),
        ("time", lambda s: run_curves.duration(s["time"])),
    )
    summaries = [run_curves.summary(r) for r in runs]

    def cell(write, s):
        with contextlib.suppress(KeyError):
            return write(s)
        return "-"

    rows = [["run", *(title for title, _ in columns)]]
    rows += [[shown(r.name), *(cell(write, s) for _, write in columns)] for r, s in zip(runs, summaries)]
    kept = [i for i in range(len(rows[0])) if i < 2 or any(row[i] != "-" for row in rows[1:])]
    table([[row[i] for i in kept] for row in rows])


def say_events(runs):
    for r in runs:
        if r.last_step() == 0:
            print(f"note: {shown(r.name)} has no steps yet")
        if r.unread_lines:
            print(f"note: {shown(r.name)}: {r.unread_lines} lines that are not the trainer's were passed over")
        wrong = [event for event in r.events if event[1] in ("error", "nan", "skip", "warning")]
        for step, kind, text in wrong[:5]:
            where = "" if step is None else f" at step {step}"
            print(f"{shown(r.name)}: {kind}{where}: {shown(text, 300)}")
        if len(wrong) > 5:
            print(f"{shown(r.name)}: and {len(wrong) - 5} more")


def say(runs):
    say_runs(runs)
    say_events(runs)
    rows = run_log.differences(runs) if len(runs) > 1 else []
    if rows:
        print("\nsettings that differ:")
        head = ["setting", *(shown(r.name) for r in runs)]
        table([head, *([shown(name), *map(shown, values)] for name, values in rows)])


# ----------------------------------------------------------------------------
# The picture


def draw_curve(axes, run_, key, color, args, label):
    """The smoothed curve, and faint behind it what it is of."""
    x_of = run_curves.x_of(run_, args.x)
    points = run_curves.buckets(run_.series[key], 2000) if key in run_.series and x_of else []
    if not points:
        return False
    xs = [x_of(p[0]) for p in points]
    if key == run_curves.VALIDATION or key == "hellaswag":
        axes.plot(xs, [p[1] for p in points], "o-", color=color, ms=3.5, lw=1, mec="white", mew=0.5, label=label)
        return True
    window = args.smooth if run_curves.METRICS[key][2] else 1
    if window > 1:
        axes.fill_between(xs, [p[2] for p in points], [p[3] for p in points], color=color, alpha=0.15, lw=0)
        axes.plot(xs, [p[1] for p in points], color=color, alpha=0.3, lw=0.6)
    axes.plot(xs, [v for _, v in run_curves.smooth(points, window)], color=color, lw=1.6, label=label)
    return True


def set_log_ticks(axis):
    """The numbers of the page on a logarithmic axis; matplotlib's own are markup, which is not parsed here."""
    from matplotlib import ticker

    axis.set_major_locator(ticker.FixedLocator(run_curves.log_ticks(*axis.get_view_interval(), 5)))
    axis.set_major_formatter(ticker.FuncFormatter(lambda value, _: run_curves.short_number(value)))
    axis.set_minor_locator(ticker.NullLocator())


def set_range(axes, runs, keys, args):
    """Leaves outliers of a linear panel outside, where they would flatten the rest."""
    log = args.log_y or run_curves.METRICS[keys[0]][4]
    if log:
        if axes.dataLim.y1 > 0:  # else nothing has a logarithm
            axes.set_yscale("log")
            set_log_ticks(axes.yaxis)
        return
    ranges = []
    for r in runs:
        for key in keys:
            points = run_curves.buckets(r.series[key], 2000) if key in r.series else []
            if points:
                ranges.append(run_curves.shown_range(points, run_curves.smooth(points, args.smooth), log))
    low, high = min(r[0] for r in ranges), max(r[1] for r in ranges)
    axes.set_ylim(run_curves.widened(low, high))


def draw_panel(axes, runs, panel, args):
    title, unit, *_ = run_curves.METRICS[panel]
    for i, r in enumerate(runs):
        color = run_curves.COLORS[i % len(run_curves.COLORS)][0]
        for key in run_curves.PANELS[panel]:
            label = f"{shown(r.name)}, validation" if key == run_curves.VALIDATION else shown(r.name)
            draw_curve(axes, r, key, color, args, label)
        for step, kind, _ in r.events:
            x_of = run_curves.x_of(r, args.x)
            if kind == "resume" and x_of and step is not None:
                axes.axvline(x_of(step), color=color, lw=0.8, ls=":", zorder=0)
    if panel == "difference":
        axes.axhline(0, color="0.7", lw=0.8, zorder=0)
    axes.set_title(f"{title} ({unit})" if unit else title, fontsize=10, loc="left")
    axes.grid(color="0.92")
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    if args.log_x and axes.dataLim.x1 > 0:
        axes.set_xscale("log")
        set_log_ticks(axes.xaxis)
    set_range(axes, runs, run_curves.PANELS[panel], args)


def panels_of(runs, x):
    """The panels of which a run has a curve over this x."""
    plotted = [r for r in runs if run_curves.x_of(r, x)]
    return [p for p, keys in run_curves.PANELS.items() if any(r.has(key) for r in plotted for key in keys)]


def draw(runs, args):
    try:
        import matplotlib
    except ImportError:
        fail("a picture needs the Python package matplotlib: pip install matplotlib; --html needs none")
    matplotlib.use("Agg")
    matplotlib.rcParams.update({"svg.hashsalt": "run", "figure.facecolor": "white", "text.parse_math": False})
    from matplotlib import pyplot

    panels = panels_of(runs, args.x) or ["loss"]
    rows = run_log.differences(runs)[:MOST_TABLE_ROWS] if len(runs) > 1 else []
    lines = -(-len(panels) // 2)
    heights = [2.6] * lines + ([0.22 * (len(rows) + 2)] if rows else [])
    figure = pyplot.figure(figsize=(11, sum(heights) + 0.3), layout="constrained")
    grid = figure.add_gridspec(len(heights), 2, height_ratios=heights)
    for i, panel in enumerate(panels):
        wide = i == len(panels) - 1 and len(panels) % 2
        axes = figure.add_subplot(grid[i // 2, :] if wide else grid[i // 2, i % 2])
        if panels_of(runs, args.x):
            draw_panel(axes, runs, panel, args)
        else:
            axes.text(0.5, 0.5, "no steps yet", ha="center", va="center", transform=axes.transAxes)
        axes.set_xlabel({"step": "step", "tokens": "tokens", "time": "seconds of training"}[args.x], fontsize=8)
        if i == 0 and axes.get_legend_handles_labels()[0]:
            axes.legend(fontsize=8, frameon=False)
    if rows:
        draw_differences(figure.add_subplot(grid[-1, :]), runs, rows)
    save(figure, args.output)


def draw_differences(axes, runs, rows):
    axes.axis("off")
    cells = [[shown(name), *(shown(value, 120 // (len(runs) + 1)) for value in values)] for name, values in rows]
    grid = axes.table(cells, colLabels=["setting", *(shown(r.name) for r in runs)], loc="center", cellLoc="left")
    grid.auto_set_font_size(False)
    grid.set_fontsize(8)
    for (row, _), cell in grid.get_celld().items():
        cell.set_edgecolor("0.9")
        cell.set_text_props(weight="bold" if row == 0 else "normal")


def save(figure, path):
    from matplotlib import pyplot

    kind, picture = os.path.splitext(path)[1][1:].lower(), io.BytesIO()
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    figure.savefig(picture, dpi=150, format=kind, metadata=metadata)
    pyplot.close(figure)
    write_atomically(path, picture.getbuffer())


# ----------------------------------------------------------------------------


def read(args):
    """The runs, under the names that they are given. Raises BadInput."""
    runs = run_log.read_runs(args.runs)
    if args.labels:
        if len(args.labels) != len(runs):
            fail(f"--labels: {len(args.labels)} names for {len(runs)} runs; give one for each")
        for r, label in zip(runs, args.labels):
            r.name = os.fsencode(label).decode("utf-8", "replace")
    for r in runs:
        if args.x != "step" and r.last_step() and not run_curves.x_of(r, args.x):
            need = (
                "the captured stdout, or --log-json's file"
                if args.x == "time"
                else "a checkpoint, or the captured stdout"
            )
            fail(f"--x {args.x}: {shown(r.name)} does not tell it; give {need} of this run too")
    return runs


def add_difference(runs):
    if len(runs) != 2:
        fail(f"--difference is of two runs, not of {len(runs)}")
    series, lines = run_curves.difference(*runs)
    if not lines:
        fail(f"--difference: {shown(runs[0].name)} and {shown(runs[1].name)} have no step in common")
    if runs[0].vocabulary() != runs[1].vocabulary():
        print(
            f"note: vocabularies of {runs[0].vocabulary()} and {runs[1].vocabulary()}: their losses cannot be compared"
        )
    for line in lines:
        print(line)
    if len(series):
        runs[0].series["difference"] = series


def check_targets(args, runs):
    """Refuses to write over what was read."""
    files = [file for r in runs for file in r.files]
    for flag, path in (("--html", args.html), ("--output", args.output)):
        if path and os.path.exists(path) and any(os.path.exists(f) and os.path.samefile(f, path) for f in files):
            fail(f"{flag} {shown(path, 1000)}: it is a file of the run, which stays as it is; name another")


def write(args, following):
    runs = read(args)
    check_targets(args, runs)
    if args.difference:
        add_difference(runs)
    elif not following:
        say(runs)
    if args.smooth is None:
        args = type(args)(**{**vars(args), "smooth": run_curves.default_window(runs)})
    if args.html:
        import run_report

        write_atomically(args.html, run_report.page(runs, args).encode())
    if args.output:
        draw(runs, args)
    if not following:
        for path in filter(None, (args.html, args.output)):
            print(path)


def stamp(paths, written=()):
    """What changes when an input does, but for what is written here."""
    files, written = [], [os.path.realpath(path) for path in written if path]
    for path in paths:
        with contextlib.suppress(OSError):
            files += [e.path for e in os.scandir(path) if e.is_file()] if os.path.isdir(path) else [path]
    stats = []
    for file in files:
        with contextlib.suppress(OSError):
            s = os.stat(file)
            if os.path.realpath(file) not in written:
                stats.append((file, s.st_size, s.st_mtime_ns))
    return sorted(stats)


def follow(args):
    """Writes again when an input has changed, for a tenth of the time at most; Ctrl-C ends it, and the reloads."""
    print(f"following, every {args.every} s; Ctrl-C ends it", flush=True)
    before, wait = None, args.every
    try:
        while True:
            now = stamp(args.runs, (args.html, args.output))
            if now != before:
                start = time.monotonic()
                try:
                    write(args, following=before is not None)
                except run_log.BadInput as error:  # a log may be replaced while this reads
                    if before is None:
                        raise
                    print(f"note: {shown(str(error), 1000)}; waiting for it")
                sys.stdout.flush()
                wait = max(args.every, 9 * (time.monotonic() - start))
                before = now
            time.sleep(wait)
    except KeyboardInterrupt:
        args.follow = False
        write(args, following=True)


def main():
    parser = Parser(__doc__)
    parser.add_argument(
        "runs", nargs="+", metavar="RUN", help="a folder of -o, a main.log, a captured stdout, or a --log-json file"
    )
    parser.add_argument("--output", metavar="FILE", help="the picture: .png, .svg or .pdf")
    parser.add_argument("--html", metavar="FILE", help="the page: .html or .htm")
    parser.add_argument("--labels", nargs="+", metavar="NAME", help="the runs' names (default: those of their folders)")
    parser.add_argument(
        "--x", choices=("step", "tokens", "time"), default="step", help="what the curves run over (default: step)"
    )
    parser.add_argument(
        "--smooth",
        type=positive_int,
        metavar="N",
        help="steps of the moving average; 1: none (default: a fiftieth of the run)",
    )
    parser.add_argument("--log-x", action="store_true", help="a logarithmic x axis")
    parser.add_argument("--log-y", action="store_true", help="logarithmic y axes")
    parser.add_argument(
        "--difference", action="store_true", help="of two runs: how far their losses differ, in numbers and as a curve"
    )
    parser.add_argument("--follow", action="store_true", help="write again when a run has gone on, until Ctrl-C")
    parser.add_argument(
        "--every", type=positive_int, default=5, metavar="S", help="seconds between looks at the runs (default: 5)"
    )
    args = parser.parse_args()
    if args.html == "":
        fail("--html '': the value is empty; name a file, or leave the flag out")
    for flag, path, endings in (("--output", args.output, PICTURES), ("--html", args.html, PAGES)):
        if path and os.path.splitext(path)[1].lower() not in endings:
            fail(f"{flag} {shown(path, 1000)}: the name must end in {', '.join(endings)}")
    if args.smooth and args.smooth > MOST_SMOOTH:
        fail(f"--smooth {args.smooth}: at most {MOST_SMOOTH} steps")
    if args.every > MOST_EVERY:
        fail(f"--every {args.every}: at most {MOST_EVERY} s")
    if args.follow and not (args.html or args.output):
        fail("--follow writes --html or --output again; name one")
    try:
        follow(args) if args.follow else write(args, following=False)
    except run_log.BadInput as error:
        fail(shown(str(error), 1000))


if __name__ == "__main__":
    run(main)
