"""The curves of a report as they are without JavaScript: an SVG for each panel, with the classes of run_report.css."""

import math

import run_curves

WIDTH, HEIGHT = 480, 250
MOST_POINTS = 300  # of a curve
MOST_MARKS = 60  # of a run


class Scale:
    """From numbers to pixels, linear or logarithmic."""

    def __init__(self, low, high, begin, end, log):
        self.log = log
        self.low, self.high = (math.log(low), math.log(high)) if log else (low, high)
        self.begin, self.end = begin, end

    def __call__(self, value):
        if self.log:
            value = math.log(max(value, 1e-300))
        pixel = self.begin + (self.end - self.begin) * (value - self.low) / (self.high - self.low)
        return f"{max(-1e4, min(1e4, pixel)):.1f}".removesuffix(".0")


def curves_of(runs, panel, args):
    """[(index of the run, key, [(x, mean, low, high)], [(x, smoothed)])]"""
    result = []
    for i, run in enumerate(runs):
        x_of = run_curves.x_of(run, args.x)
        for key in run_curves.PANELS[panel]:
            points = run_curves.buckets(run.series[key], MOST_POINTS) if key in run.series and x_of else []
            if not points:
                continue
            window = args.smooth if run_curves.METRICS[panel][2] and key != run_curves.VALIDATION else 1
            curve = run_curves.smooth(points, window)
            xs = [x_of(p[0]) for p in points]
            result.append((i, key, [(x, *p[1:]) for x, p in zip(xs, points)], [(x, y) for x, (_, y) in zip(xs, curve)]))
    return result


def path(points, sx, sy):
    return "M" + "L".join(f"{sx(x)} {sy(y)}" for x, y in points)


def curve_elements(key, points, curve, sx, sy):
    if key in (run_curves.VALIDATION, "hellaswag"):
        yield f'<path class="validation" d="{path(curve, sx, sy)}"/>'
        for x, y in curve if len(curve) <= 150 else ():
            yield f'<circle class="dot" cx="{sx(x)}" cy="{sy(y)}" r="2.6"/>'
        return
    if any(low != high for _, _, low, high in points):
        back = [(x, low) for x, _, low, _ in reversed(points)]
        outline = path([(x, high) for x, _, _, high in points] + back, sx, sy)
        yield f'<path class="band" d="{outline}Z"/>'
    elif any(mean != y for (_, mean, _, _), (_, y) in zip(points, curve)):
        yield f'<path class="raw" d="{path([p[:2] for p in points], sx, sy)}"/>'
    yield f'<path class="curve" d="{path(curve, sx, sy)}"/>'


def marks(run, x_of, sx, low, high, top, bottom):
    """Resumes, steps without an update, numbers that are not finite, checkpoints."""
    events = dict.fromkeys((step, kind) for step, kind, _ in run.events if kind in MARKED and step is not None)
    for step, kind in [event for event in events if low <= x_of(event[0]) <= high][:MOST_MARKS]:
        x = sx(x_of(step))
        if kind == "checkpoint":
            yield f'<path class="saved" d="M{float(x) - 3:.1f} {bottom}h6l-3 -5z"/>'
        else:
            yield f'<path class="mark {kind}" d="M{x} {top}V{bottom}"/>'


MARKED = ("nan", "error", "skip", "resume", "checkpoint")


def ticks_text(kind):
    return run_curves.duration if kind == "time" else run_curves.short_number


def axes(sx, sy, box, ticks_x, ticks_y, text):
    left, right, bottom = box
    for tick in ticks_y:
        yield f'<path class="grid" d="M{left} {sy(tick)}H{right}"/>'
        at = f'x="{left - 6}" y="{float(sy(tick)) + 4:.1f}"'
        yield f'<text {at} text-anchor="end">{run_curves.short_number(tick)}</text>'
    for tick in ticks_x:
        yield f'<path class="axis" d="M{sx(tick)} {bottom}v4"/>'
        yield f'<text x="{sx(tick)}" y="{bottom + 16}" text-anchor="middle">{text(tick)}</text>'
    yield f'<path class="axis" d="M{left} {bottom}H{right}"/>'


def panel_range(curves, log):
    ranges = [run_curves.shown_range(points, curve, log) for _, _, points, curve in curves]
    ranges = [r for r in ranges if r]
    if not ranges:
        return None
    return run_curves.widened(min(r[0] for r in ranges), max(r[1] for r in ranges), log)


def x_range(xs, log):
    """(low, high) of an x axis; a logarithmic one leaves out what is not above 0."""
    low, high = min(xs), max(xs)
    if not log:
        return (low, high) if high > low else (low - 0.5, high + 0.5)
    if not high > 0:
        return 0.1, 10
    low = max(low, 1 if high > 1 else high / 1e6)
    return (low, high) if high > low else (low / 2, high * 2)


def panel_svg(runs, panel, args, title):
    """The <svg> of a panel; `title` is safe in HTML."""
    curves = curves_of(runs, panel, args)
    log = args.log_y or run_curves.METRICS[panel][4]
    y_range = panel_range(curves, log) or ((1.0, 10.0) if log else (0.0, 1.0))
    low, high = x_range([x for _, _, points, _ in curves for x in (points[0][0], points[-1][0])] or [0, 1], args.log_x)
    ticks_y = (run_curves.log_ticks if log else run_curves.linear_ticks)(*y_range, 5)
    left = 14 + round(6.4 * max(len(run_curves.short_number(t)) for t in ticks_y))
    right, top, bottom = WIDTH - 16, 6, HEIGHT - 22
    sx, sy = Scale(low, high, left, right, args.log_x), Scale(*y_range, bottom, top, log)
    of_x = run_curves.time_ticks if args.x == "time" else run_curves.linear_ticks
    ticks_x = (run_curves.log_ticks if args.log_x else of_x)(low, high, 6)
    clip = f"clip-{panel}"
    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{title}"><title>{title}</title>']
    parts += axes(sx, sy, (left, right, bottom), ticks_x, ticks_y, ticks_text(args.x))
    size = f'width="{right - left + 8}" height="{bottom - top}"'
    parts.append(f'<clipPath id="{clip}"><rect x="{left - 4}" y="{top}" {size}/></clipPath>')
    parts.append(f'<g clip-path="url(#{clip})">')
    for i, run in enumerate(runs):
        if any(c[0] == i for c in curves):
            x_of = run_curves.x_of(run, args.x)
            parts += [f'<g class="r{i}">', *marks(run, x_of, sx, low, high, top, bottom), "</g>"]
    for i, key, points, curve in curves:
        parts += [f'<g class="r{i}">', *curve_elements(key, points, curve, sx, sy), "</g>"]
    return "".join([*parts, "</g></svg>"])
