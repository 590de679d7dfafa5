"""The metrics of a run, and what a plot needs of their curves: few points for many, smoothing, ranges, ticks."""

import math
from bisect import bisect_left

from run_lines import Series

# key: title, unit, whether it is smoothed, format of a value (printf's), whether its axis is logarithmic
METRICS = {
    "loss": ("Loss", "nats", True, "%.4f", False),
    "difference": ("Difference of the training losses", "nats", True, "%+.5f", False),
    "hellaswag": ("HellaSwag", "accuracy", False, "%.4f", False),
    "lr": ("Learning rate", "", False, "%.3g", False),
    "norm": ("Gradient norm", "", True, "%.4g", True),
    "tokens_per_second": ("Speed", "tokens/s", True, "%.0f", False),
    "mfu": ("MFU", "model FLOP/s over the GPU's peak", True, "%.3f", False),
    "memory_bytes": ("Memory", "bytes", False, "%.4g", False),
}
LAST_STEPS = 20  # a table's training loss is their mean: a longer one lags behind a falling loss
VALIDATION = "val_loss"  # it stands in the panel of the loss
PANELS = {key: (key, VALIDATION) if key == "loss" else (key,) for key in METRICS}

# Okabe and Ito (2008), told apart by the colour-blind too; the second is for a dark page
COLORS = [
    ("#0072b2", "#56a8e0"),
    ("#d55e00", "#f0813a"),
    ("#009e73", "#2fc79a"),
    ("#b5568f", "#e08bbd"),
    ("#8a6d00", "#e0b93a"),
    ("#3b7a9e", "#8cc8ea"),
    ("#555555", "#bbbbbb"),
    ("#7048c8", "#ab8ff0"),
]


def buckets(series, most):
    """[(step, mean, low, high)] of the finite values, at most `most`, each of an equal part of the steps."""
    steps, values = series.steps, series.values
    if len(steps) <= most:
        return [(s, v, v, v) for s, v in zip(steps, values) if math.isfinite(v)]
    first, span = steps[0], steps[-1] - steps[0] + 1
    bounds = [bisect_left(steps, first + span * i // most) for i in range(most)] + [len(steps)]
    result = []
    for begin, end in zip(bounds, bounds[1:]):
        part = values[begin:end]
        if part and not math.isfinite(sum(part)):
            part = [v for v in part if math.isfinite(v)]
        if part:
            middle = steps[(begin + end - 1) // 2]
            result.append((middle, math.fsum(part) / len(part), min(part), max(part)))
    return result


def smooth(points, window):
    """[(step, value)]: the exponential moving average of a time constant of `window` steps, unbiased at its beginning.

    Each point weighs as the steps since the one before: y += (1 - e^(-steps/window)) (v - y).
    """
    if window <= 1:
        return [(point[0], point[1]) for point in points]
    result, total, weight, before = [], 0.0, 0.0, None
    for step, value, *_ in points:
        keep = math.exp(-(step - before if before is not None else 1) / window)
        total, weight, before = keep * total + (1.0 - keep) * value, keep * weight + (1.0 - keep), step
        result.append((step, total / weight))
    return result


def default_window(runs):
    """A fiftieth of the longest run's steps, rounded to 1, 2 or 5 times a power of ten."""
    steps = max((run.last_step() for run in runs), default=0) / 50
    if steps < 2:
        return 1
    power = 10 ** math.floor(math.log10(steps))
    return int(max(n * power for n in (1, 2, 5) if n * power <= steps))


def shown_range(points, curve, log=False):
    """(low, high) of what a panel shows: all, but for a hundredth of outliers that would halve the rest's height."""
    lows, highs = sorted(p[2] for p in points), sorted(p[3] for p in points)
    ys = sorted(v for _, v in curve)
    if log:
        lows, highs, ys = ([v for v in values if v > 0.0] for values in (lows, highs, ys))
    if not ys:
        return None
    low, high = min(lows[0], ys[0]), max(highs[-1], ys[-1])
    outer = len(ys) // 100
    if log or outer == 0:
        return low, high
    inner_low, inner_high = min(lows[outer], ys[outer]), max(highs[-1 - outer], ys[-1 - outer])
    span = inner_high - inner_low
    return (inner_low if inner_low - low > span else low), (inner_high if high - inner_high > span else high)


def widened(low, high, log=False):
    """A range with a margin on both sides; room also where all values are the same, but for rounding."""
    size = max(abs(low), abs(high))
    if log:
        margin = (high / low) ** 0.04 if high > low * (1.0 + 1e-6) else 2.0
        return low / margin, high * margin
    margin = 0.05 * (high - low) if high - low > max(1e-6 * size, 1e-200) else 0.05 * size or 1.0
    return low - margin, high + margin


def linear_ticks(low, high, most):
    """Round numbers from low to high, about `most` of them."""
    if not high - low > 1e-9 * max(abs(low), abs(high)):
        return [low]
    raw = (high - low) / max(most, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(n * power for n in (1, 2, 5, 10) if n * power >= raw)
    first = math.ceil(low / step - 1e-9)
    return [i * step for i in range(first, math.floor(high / step + 1e-9) + 1)]


def time_ticks(low, high, most):
    """Round times, in seconds."""
    raw = (high - low) / most
    minutes = (60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
    step = next((n for n in (1, 2, 5, 10, 20, 30, *minutes) if n >= raw), None)
    if raw < 1 or step is None:
        unit = 86400 if step is None else 1
        return [t * unit for t in linear_ticks(low / unit, high / unit, most)]
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def log_ticks(low, high, most):
    """Powers of ten, with 2 and 5 times them where there is room; on an axis that has one of these, round numbers."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, math.ceil((last - first) / most))
    mantissas = (1, 2, 5) if last - first <= most / 2 else (1,)
    ticks = [m * 10.0**e for e in range(first, last + 1, every) for m in mantissas]
    inside = [t for t in ticks if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
    return inside if len(inside) > 1 else [t for t in linear_ticks(low, high, most) if t > 0.0]


def short_number(value):
    """1.2M, 350k, 0.0003"""
    size = abs(value)
    for limit, suffix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.4g}{suffix}"
    return f"{value:.4g}"


def duration(seconds):
    """12s, 3m20s, 1h02m, 2d03h, as llmc/base/terminal.h has it"""
    s = int(seconds + 0.5)
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02d}s"
    if s < 86400:
        return f"{s // 3600}h{s // 60 % 60:02d}m"
    return f"{s // 86400}d{s // 3600 % 24:02d}h"


class TimeOfStep:
    """The seconds that a run had trained when it came to a step, between what its log holds."""

    def __init__(self, series):
        self.steps, self.values = series.steps, series.values

    def __call__(self, step):
        i = bisect_left(self.steps, step)
        if i == len(self.steps):
            return self.values[-1]
        s1, t1 = self.steps[i], self.values[i]
        s0, t0 = (self.steps[i - 1], self.values[i - 1]) if i else (0, 0.0)
        return t0 + (t1 - t0) * (step - s0) / (s1 - s0) if s1 > s0 else t1


def x_of(run, kind):
    """A function from a run's step to its x; None where the run does not tell."""
    if kind == "step":
        return lambda step: step
    if kind == "tokens":
        tokens = run.tokens_per_step()
        return tokens and (lambda step: step * tokens)
    return TimeOfStep(run.series["time"]) if "time" in run.series else None


def summary(run):
    """What stands in a run's row and cards: {key: number}; what is not known is not there."""
    result = {"steps": run.last_step()}
    points = run.get("loss")
    if points:
        last = [value for _, value in points[-LAST_STEPS:]]
        result["loss"], result["loss_steps"] = math.fsum(last) / len(last), len(last)
    if run.get(VALIDATION):
        result["best_step"], result["best"] = min(run.get(VALIDATION), key=lambda point: point[1])
    if run.get("hellaswag"):
        result["hellaswag"] = max(value for _, value in run.get("hellaswag"))
    for key in ("tokens_per_second", "mfu"):
        points = run.get(key)
        values = sorted(v for _, v in points[1:] or points)  # the first step warms up
        if values:
            result[key] = values[len(values) // 2]
    if "time" in run.series:
        result["time"] = run.series["time"].values[-1]
        times = sorted(ms for _, ms in (run.get("ms")[1:] or run.get("ms")))
        if times and run.total_steps:
            result["time_left"] = 1e-3 * times[len(times) // 2] * max(run.total_steps - run.last_step(), 0)
    if run.tokens_per_step() and run.last_step():
        result["tokens"] = run.last_step() * run.tokens_per_step()
    if run.get("memory_bytes"):
        result["memory_bytes"] = max(value for _, value in run.get("memory_bytes"))
    return result


def difference(first, second):
    """The differences of two runs' training losses over the steps that both have: (Series, its text in lines)."""
    series, lines = Series(), []
    for key, name in (("loss", "training"), (VALIDATION, "validation")):
        if key not in first.series or key not in second.series:
            continue
        other = dict(zip(second.series[key].steps, second.series[key].values))
        pairs = [(s, v, other[s]) for s, v in zip(first.series[key].steps, first.series[key].values) if s in other]
        bad = [s for s, a, b in pairs if not math.isfinite(a - b)]
        if bad:
            lines.append(f"{name} loss: not finite in one of the runs from step {bad[0]} on, at {len(bad)} steps")
            pairs = [(s, a, b) for s, a, b in pairs if math.isfinite(a - b)]
        if not pairs:
            continue
        step, a, b = max(pairs, key=lambda pair: abs(pair[1] - pair[2]))
        mean = math.fsum(abs(x - y) for _, x, y in pairs) / len(pairs)
        where = f"step {step}: {a:.6f}, {b:.6f}"
        lines.append(f"{name} loss, {len(pairs)} steps: largest difference {abs(a - b):.6f} ({where}), mean {mean:.6f}")
        if key == "loss":
            for s, x, y in pairs:
                series.add(s, x - y)
    return series, lines
