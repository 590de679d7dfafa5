#!/usr/bin/env python3
"""Final losses of arms beside a baseline's: equal within a margin or not, and tokens, time and energy to equal loss.

    dev/bench/loss.py --arm 'adamw=-l 6e-4' --arm 'decay=-l 6e-4 -c 0.1' --seeds 8 --steps 250 200 --output loss.csv \\
        --common '-e d12 -i train*.bin -j val.bin -b 64 -t 1024 -d 524288 -u 20 -q 0' --plot loss.svg

An arm is a name and the flags that it adds to --common; the first arm is the baseline. Each is trained with every seed,
for every number of --steps, or of --tokens, a whole schedule; a seed decides the initial weights and the order of rows
of all arms. Flags that begin with a program's path replace the trainer by it: {seed} in them is the seed,
and all arms then start from weights that the trainer writes (-e). 'tail=fp8@0.9 --fp8 0' continues the runs of arm fp8
from their checkpoints after nine tenths of the steps, with other flags. Each run appends a row to --output when it
ends. The same command continues where an earlier one ended, and reports; without --arm it reports what the file has.
Runs on all GPUs, one on each at a time; the runs of a seed are all on one kind of GPU, so that pairs and times compare.

The report has mean differences of paired seeds with 90% intervals (Student's t). Two arms are equal if the interval is
within the margin: two one-sided tests at 5%, for a number of seeds that is fixed beforehand. The CSV holds the margin.
Tokens, time and energy to equal loss are where an arm reaches the baseline's final loss of the same seed, on the curve
of its whole schedules if it has several, else of its validations (--val-every).
"""

import argparse
import contextlib
import glob
import importlib.util
import itertools
import math
import os
import pathlib
import queue
import re
import shlex
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor, as_completed

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "data"))

from measured import gpu_provenance, output_of, processor, read_rows, write_rows
from scaling import Energy, gpus_here, visible

from data_common import ROOT, Parser, fail, positive_int, run

COLUMNS = [
    *["arm", "flags", "steps", "seed", "tokens", "loss", "step_ms", "joules", "val_tokens", "margin", "curve"],
    *["gpu", "driver", "cuda", "date", "commit"],
]
KEY = ("arm", "steps", "seed")
OF_AN_ARM, OF_ALL = ("flags", "val_tokens"), ("margin",)  # what the rows of an arm, and all, have in common
SET_BY = {  # flags of the trainer that this script sets
    **dict.fromkeys(("-x", "--max-steps"), "--steps or --tokens"),
    **dict.fromkeys(("-m", "--val-steps"), "--val-tokens"),
    **dict.fromkeys(("-v", "--val-every"), "--val-every"),
    **dict.fromkeys(("-o", "--output-dir"), "this script"),
    "--seed": "--seeds",
}
NOT_FINITE = 3  # the trainers' exit code
LEAST_VAL_TOKENS = 10_000_000


# ----------------------------------------------------------------------------
# Statistics


def t_quantile(df):
    """The 95% quantile of Student's t: exact up to 3 degrees of freedom, then to .002 (Abramowitz, Stegun 26.7.5)."""
    if df <= 3:
        return (6.3138, 2.9200, 2.3534)[df - 1]
    z = 1.644854
    terms = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96, (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + sum(term / df ** (i + 1) for i, term in enumerate(terms))


def interval(values):
    """(mean, lower and upper end of its 90% interval); one value has no interval."""
    mean = statistics.mean(values)
    if len(values) < 2:
        return mean, -math.inf, math.inf
    half = t_quantile(len(values) - 1) * statistics.stdev(values) / math.sqrt(len(values))
    return mean, mean - half, mean + half


def verdict(low, high, margin):
    """What a 90% interval of a difference of losses says."""
    if -margin <= low and high <= margin:
        return f"equal within {margin:g}"
    if low > 0 or high < 0:
        side, least = ("higher", low) if low > 0 else ("lower", -high)
        return f"{side} by more than {margin:g}" if least > margin else f"{side}, perhaps by less than {margin:g}"
    return "undecided"


def curve_of(rows):
    """[(tokens, seconds, joules, loss)] of the runs of an arm with one seed: the ends of its whole schedules if it has
    several, else the validations of the one. Joules are NaN where the row has none."""
    points = []
    for row in rows:
        steps, seconds, joules = int(row["steps"]), float(row["step_ms"]) / 1000, float(row["joules"] or 0) or math.nan
        losses = [(steps, float(row["loss"]))]
        if len(rows) == 1:
            losses += [(int(s), float(x)) for s, x in (point.split(":") for point in row["curve"].split())]
        at = [(step, step * int(row["tokens"]) // steps, loss) for step, loss in losses if step]
        points += [(tokens, step * seconds, step / steps * joules, loss) for step, tokens, loss in at]
    return sorted(point for point in points if math.isfinite(point[-1]))


def reach(curve, loss):
    """Logarithms of the tokens, seconds and joules at which a curve reaches a loss, linear in between; None if it does
    not. The last value: whether it may have been earlier, as the curve begins there."""
    before = None
    for point in curve:
        if point[-1] <= loss:
            share = (before[-1] - loss) / (before[-1] - point[-1]) if before else 1
            start = before or point
            return *(math.log(a) + share * (math.log(b) - math.log(a)) for a, b in zip(start, point[:-1])), not before
        before = point
    return None


# ----------------------------------------------------------------------------
# The report


def by_seed(rows, arm):
    """{seed: [rows, by steps]} of an arm"""
    seeds = {}
    for row in sorted((row for row in rows if row["arm"] == arm), key=lambda row: int(row["steps"])):
        seeds.setdefault(int(row["seed"]), []).append(row)
    return seeds


def difference_line(arm, pairs, margin):
    """`pairs`: the final losses (baseline, arm) of each seed."""
    diverged = sum(not math.isfinite(loss) for _, loss in pairs)
    if diverged:
        return f"{arm}: diverged with {diverged} of {len(pairs)} seeds"
    mean, low, high = interval([loss - base for base, loss in pairs])
    if len(pairs) < 2:
        return f"{arm}: {mean:+.5f} with one seed; an interval needs two"
    return f"{arm}: {mean:+.5f} ({low:+.5f} to {high:+.5f}) in {len(pairs)} pairs: {verdict(low, high, margin)}"


def ratio_line(pairs):
    """`pairs`: (the baseline's last row, the rows of the arm) of each seed."""
    if all(len(curve_of(rows)) < 2 for _, rows in pairs):
        return "    when it reaches the baseline's final loss: that needs --val-every, or several --steps"
    logs, early = [], False
    for base, rows in pairs:
        *spent, loss = curve_of([base])[-1]
        reached = reach(curve_of(rows), loss)
        if reached is None:
            continue
        logs.append([math.log(own) - log for own, log in zip(spent, reached)])
        early |= reached[-1]
    if len(logs) < len(pairs):
        return f"    reaches the baseline's final loss with {len(logs)} of {len(pairs)} seeds"
    parts = []
    for less, what, values in zip(("fewer", "less", "less"), ("tokens", "time", "energy"), zip(*logs)):
        if any(map(math.isnan, values)):
            continue
        sign = 1 if statistics.mean(values) >= 0 else -1
        mean, low, high = (math.exp(sign * x) if math.isfinite(x) else x for x in interval(values))
        between = f" ({min(low, high):.3f} to {max(low, high):.3f})" if len(values) > 1 else ""
        parts.append(f"{mean:.3f} times {less if sign > 0 else 'the'} {what}{between}")
    return f"    reaches the baseline's final loss with {'at least ' if early else ''}{', '.join(parts)}"


def report(rows, arms=()):
    """The lines of the report: the first arm is the baseline. Without `arms`, those of the rows"""
    arms = arms or list(dict.fromkeys(row["arm"] for row in rows))
    if not by_seed(rows, arms[0]):
        why = "all its seeds have runs on another kind of GPU; continue there, or with more --seeds here"
        fail(f"{arms[0]}, the baseline, has no rows: {why}")
    margin = float(rows[0]["margin"])
    longest = max(int(row["steps"]) for row in rows if row["arm"] == arms[0])
    base = {seed: last for seed, (*_, last) in by_seed(rows, arms[0]).items() if int(last["steps"]) == longest}
    losses, tokens = [float(row["loss"]) for row in base.values()], next(iter(base.values()))["tokens"]
    finite = [loss for loss in losses if math.isfinite(loss)]
    if not finite:
        fail(f"{arms[0]}, the baseline, diverged with all {len(losses)} seeds")
    spread = f", standard deviation {statistics.stdev(finite):.5f}" if len(finite) > 1 else ""
    lines = [f"{arms[0]}, the baseline: loss {statistics.mean(finite):.5f} at {int(tokens):,} tokens{spread}"]
    if len(finite) < len(losses):
        lines[0] += f"; diverged with {len(losses) - len(finite)} of {len(losses)} seeds, which have no pairs"
    for arm in arms[1:]:
        runs = [(base[s], found) for s, found in by_seed(rows, arm).items() if s in base]
        runs = [(own, found) for own, found in runs if math.isfinite(float(own["loss"]))]
        pairs = [
            (float(own["loss"]), float(row["loss"]))
            for own, found in runs
            for row in found
            if row["tokens"] == own["tokens"]
        ]
        lines.append(difference_line(arm, pairs, margin) if pairs else f"{arm}: no run as long as the baseline's")
        most = max((len(found) for _, found in runs), default=0)
        whole = [(own, found) for own, found in runs if len(found) == most]
        missing = [own["seed"] for own, found in runs if len(found) < most]
        if missing:
            lines.append(f"    not all lengths are measured, so not in the ratio: seed {', '.join(missing)}")
        if runs and all(math.isfinite(loss) for _, loss in pairs):
            lines.append(ratio_line(whole))
    if len({row["commit"] for row in rows}) > 1:
        lines.append(f"note: commits {', '.join(sorted({row['commit'] for row in rows}))}")
    least, most = (f(int(row["val_tokens"]) for row in rows) for f in (min, max))
    if least < most:
        lines.append(f"note: validated on {least} to {most} tokens; --val-tokens {least} makes it the same for all")
    if least < 0.99 * LEAST_VAL_TOKENS:  # whole batches may be a little less
        lines.append(f"note: validated on {least} tokens; a result should have {LEAST_VAL_TOKENS:,}")
    return lines


def plot(rows, path):
    """Loss over tokens and over minutes: the mean of the seeds, and the range of them."""
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "loss"  # equal runs, equal files
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, 2, figsize=(10, 4), layout="constrained", sharey=True)
    for arm in dict.fromkeys(row["arm"] for row in rows):
        at = {}  # tokens: [(minutes, loss)]
        for found in by_seed(rows, arm).values():
            for tokens, seconds, _, loss in curve_of(found):
                at.setdefault(tokens, []).append((seconds / 60, loss))
        at = dict(sorted(at.items()))
        losses = [[loss for _, loss in points] for points in at.values()]
        for axes, xs in zip(panels, ([x / 1e6 for x in at], [statistics.mean(x for x, _ in p) for p in at.values()])):
            axes.plot(xs, list(map(statistics.mean, losses)), marker="o", markersize=3, label=arm)
            axes.fill_between(xs, list(map(min, losses)), list(map(max, losses)), alpha=0.2)
    for axes, name in zip(panels, ("million tokens", "minutes of training steps")):
        axes.set_xscale("log")
        axes.set_xlabel(name)
    panels[0].set_ylabel("validation loss")
    panels[0].legend()
    try:
        figure.savefig(path, metadata={"Date": None} if path.endswith(".svg") else None)
    except OSError as error:
        fail(f"--plot: cannot write {path}: {error.strerror}")
    print(path)


# ----------------------------------------------------------------------------
# The runs


def flag_of(flags, *names):
    """The last value of a flag, or None"""
    return next((flags[i + 1] for i in reversed(range(len(flags) - 1)) if flags[i] in names), None)


class Arm:
    def __init__(self, text):
        self.name, _, flags = text.partition("=")
        if not re.fullmatch(r"[\w.+-]+", self.name):
            raise argparse.ArgumentTypeError(f"'{text}' is not a name and flags, as 'high=-l 1e-3'")
        try:
            self.flags = shlex.split(flags)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"'{text}': {error}") from error
        self.program, self.continues, self.share = [], None, 0
        if self.flags and (found := re.fullmatch(r"([\w.+-]+)@(0?\.\d+)", self.flags[0])):
            self.continues, self.share = found[1], float(found[2])
        elif self.flags and not self.flags[0].startswith("-"):
            path = self.flags.pop(0)
            if os.sep not in path:  # else it would be looked up in PATH
                path = os.path.join(os.curdir, path)
            self.program = [sys.executable, path] if path.endswith(".py") else [path]
            if not (os.path.isfile(path) and (path.endswith(".py") or os.access(path, os.X_OK))):
                raise argparse.ArgumentTypeError(f"'{text}' names a program, {path}, that is not there")


def tokens_of(pattern):
    """How many tokens the files have"""
    total = 0
    for path in glob.glob(pattern or ""):
        try:
            with open(path, "rb") as f:
                total += struct.unpack("<3i", f.read(12).ljust(12, b"\0"))[2]
        except OSError as error:
            fail(f"-j {pattern} in --common: cannot read {path}: {error.strerror}")
    return total or fail(f"-j {pattern} in --common: no token files" if pattern else "--common has no -j")


class Runs:
    """What --common, --steps and the other options make of a run"""

    def __init__(self, args):
        try:
            self.args, self.common = args, shlex.split(args.common)
        except ValueError as error:
            fail(f"--common {args.common}: {error}")
        for arm in args.arm:
            for where, flags in (("--common", self.common), (f"--arm {arm.name}", arm.flags)):
                for flag in () if arm.program else flags:
                    name = flag.partition("=")[0]
                    if name in SET_BY:
                        fail(f"{flag} in {where}: leave it out; {SET_BY[name]} sets it")
                    if flags is arm.flags and name in ("-j", "--val-data"):
                        fail(f"{flag} in {where}: all arms are validated on the same tokens; name them in --common")
        self.continued = {}  # by arm, those that continue it
        for arm in (arm for arm in args.arm if arm.continues):
            self.continued.setdefault(arm.continues, []).append(arm)
            if arm.continues not in (other.name for other in args.arm if not (other.program or other.continues)):
                fail(f"--arm {arm.name}: there is no arm {arm.continues} of the trainer that begins anew")
        self.val_tokens = min(args.val_tokens, tokens_of(flag_of(self.common, "-j", "--val-data")))
        self.weights = ["-e", "{weights}"] if any(arm.program for arm in args.arm) else []
        self.running, self.stop = set(), threading.Event()

    def flags(self, arm):
        before = next((other.flags for other in self.args.arm if other.name == arm.continues), [])
        return [*self.common, *before, *arm.flags, *self.weights]

    def batch(self, arm):
        """Tokens of a micro-batch, and of a step"""
        flags = self.flags(arm)
        found = []
        for names in (("-b", "--batch"), ("-t", "--time"), ("-d", "--total-batch")):
            text = flag_of(flags, *names)
            if not (text and text.isdigit() and int(text)):
                fail(f"--arm {arm.name}: its flags or --common must have {names[0]}, as a number above 0")
            found.append(int(text))
        B, T, total = found
        return B * T, total

    def steps(self, arm):
        """The lengths of the arm's schedules"""
        if not self.args.tokens:
            return self.args.steps
        each = self.batch(arm)[1]
        for tokens in self.args.tokens:
            if tokens % each:
                fail(f"--tokens {tokens}: no multiple of {each}, the tokens of a step of arm {arm.name}")
        return [tokens // each for tokens in self.args.tokens]

    def begin(self, arm, steps):
        """The step that an arm continues from"""
        step = round(arm.share * steps)
        if arm.continues and (abs(step - arm.share * steps) > 1e-6 * steps or not 0 < step < steps):
            fail(f"--arm {arm.name}: {arm.share} of {steps} steps is not a whole number of them")
        return step

    def settings(self, arm):
        """The columns that all runs of an arm have in common"""
        flags = shlex.join([*arm.program[-1:], *self.flags(arm)])
        BT = self.batch(arm)[0]
        val_tokens = max(1, self.val_tokens // BT) * BT
        return {"arm": arm.name, "flags": flags, "val_tokens": val_tokens, "margin": self.args.margin}

    def execute(self, command, gpu):
        """What a command prints on a GPU, and whether its numbers were finite."""
        environment = os.environ if gpu is None else visible([gpu])
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment) as process:
            self.running.add(process)
            out, errors = process.communicate()
            self.running.discard(process)
        if process.returncode not in (0, NOT_FINITE):
            said = (errors.strip() or out.strip() or "no output").splitlines()[-1]
            fail(f"{shlex.join(command)}: exit code {process.returncode}: {said.removeprefix('error: ')}")
        return out, process.returncode == 0

    def write_weights(self, seed, folder):
        """Writes initial weights: those after a step whose learning rate is 0."""
        command = [self.args.trainer, *self.common, "--seed", str(seed), "-x", "1", "-l", "0", "-c", "0", "-u", "0"]
        command += ["-n", "1", "-v", "0", "-m", "1", "-s", "0", "-o", folder]
        self.execute(command, self.args.gpus[0])
        for path in glob.glob(os.path.join(folder, "state_*")):
            os.remove(path)

    def command(self, arm, seed, steps, weights, folder):
        BT, _ = self.batch(arm)
        flags = [flag.replace("{seed}", str(seed)).replace("{weights}", weights) for flag in self.flags(arm)]
        flags += ["-x", steps, "-m", max(1, self.val_tokens // BT), "-o", folder]
        flags += ["-v", self.args.val_every or (steps if arm.program else 0)]  # llm.c divides by it
        if not arm.program:
            flags += ["--seed", seed, "-s", 0]
        return list(map(str, [*(arm.program or [self.args.trainer]), *flags]))

    def train(self, arm, seed, steps, command, folder, gpu):
        """Runs the trainer up to step `steps`. Returns the mean ms of a step, joules or None, and [(step, loss)], the
        last one NaN if the run's numbers were not finite."""
        energy = Energy([] if gpu is None else [gpu])
        before = energy.joules()
        out, finite = self.execute(command, gpu)
        joules = None if before is None else energy.joules() - before
        log = pathlib.Path(folder, "main.log")
        log = log.read_text(encoding="utf-8") if log.exists() else ""
        points = [(int(step), float(loss)) for step, loss in re.findall(r"^s:(\d+) tel:(\S+)", log, re.M)]
        ms = [float(text) for text in re.findall(r"^step .*?([\d.]+) ms", out, re.M)]
        expected = steps - self.begin(arm, steps)
        if finite and (len(ms) != expected or not points or points[-1][0] != steps):
            fail(f"arm {arm.name}, seed {seed}: {len(ms)} steps and {len(points)} validations, not {expected} steps")
        timed = ms[min(len(ms) // 10 + 1, len(ms) - 1) :] or [math.nan]  # the first warm up
        return statistics.mean(timed), joules, points if finite else [*points, (steps, math.nan)]

    def continue_from(self, step, arm, seed, steps, folder, gpu):
        """As train(), from the checkpoint of a step in the folder of the arm that it continues"""
        own = os.path.join(folder, arm.name)
        os.mkdir(own)
        for path in (*glob.glob(os.path.join(folder, f"*_{step:08d}*")), os.path.join(folder, "main.flags")):
            os.link(path, os.path.join(own, os.path.basename(path)))
        flags = ["-y", "1", "--resume-anyway", "1", "-n", "0", "-o", own]
        return self.train(arm, seed, steps, [self.args.trainer, *arm.flags[1:], *flags], own, gpu)

    def row(self, arm, seed, steps, trained):
        """A row, without its provenance, of what train() returns"""
        ms, joules, points = trained
        row = {**self.settings(arm), "steps": steps, "seed": seed, "tokens": steps * self.batch(arm)[1]}
        row["loss"] = points[-1][1]
        if math.isnan(row["loss"]):
            return {**row, "step_ms": "nan", "joules": "", "curve": ""}
        curve = " ".join(f"{step}:{loss:.6f}" for step, loss in points[:-1])
        return {**row, "step_ms": f"{ms:.3f}", "joules": "" if joules is None else f"{joules:.0f}", "curve": curve}

    def rows(self, arm, seed, steps, weights, gpu):
        """Trains; yields the rows of the arm and of those that continue it. Joules of these are a share of the arm's
        and all of their own, with a second start and validation."""
        with tempfile.TemporaryDirectory() as folder:
            command, others = self.command(arm, seed, steps, weights, folder), self.continued.get(arm.name, [])
            begins = [self.begin(other, steps) for other in others]
            if others:
                every = math.gcd(*begins)  # the last one is kept, too
                command += ["-n", str(every), "-nk", str(2 + (steps - min(begins)) // every)]
            trained = ms, joules, points = self.train(arm, seed, steps, command, folder, gpu)
            yield self.row(arm, seed, steps, trained)
            for other, begin in zip(others, begins):
                if self.stop.is_set():
                    return
                last = trained  # which diverged before
                if os.path.exists(os.path.join(folder, f"DONE_{begin:08d}")):
                    own_ms, own_joules, own = self.continue_from(begin, other, seed, steps, folder, gpu)
                    own_ms = (ms * begin + own_ms * (steps - begin)) / steps
                    own_joules = None if joules is None else joules * begin / steps + own_joules
                    own = [p for p in points if p[0] <= begin] + [p for p in own if p[0] > begin]
                    last = own_ms, own_joules, own
                yield self.row(other, seed, steps, last)

    def all(self, task, jobs):
        """Calls task(*job, gpu) for each job, one at a time on each GPU. After a failure, waits for those that run."""
        free = queue.Queue()
        for gpu in self.args.gpus:
            free.put(gpu)

        def on_a_gpu(job):
            gpu = free.get()
            try:
                if not self.stop.is_set():
                    task(*job, gpu)
            except BaseException:
                self.stop.set()
                raise
            finally:
                free.put(gpu)

        with ThreadPoolExecutor(len(self.args.gpus)) as pool:
            futures = [pool.submit(on_a_gpu, job) for job in jobs]
            try:
                failures = [future.exception() for future in as_completed(futures)]
            except KeyboardInterrupt:
                self.stop.set()
                for process in list(self.running):
                    process.terminate()
                raise
        for failure in filter(None, failures):
            raise failure


def other_settings(rows, settings):
    """In what rows of a file are not as these settings; None if they are alike"""
    for row in rows:
        for name in (*OF_ALL, *(OF_AN_ARM if row["arm"] == settings["arm"] else ())):
            if row[name] != str(settings[name]):
                was = f"has arm {row['arm']} with {name} {row[name]}, not {settings[name]}"
                return f"{was}: another name, another --output, or the same {name}"
    return None


def rows_of(path):
    """The rows of a file of this script"""
    rows = read_rows(path)
    if not rows or set(rows[0]) != set(COLUMNS):
        fail(f"{path} has no rows of this script")
    for number, row in enumerate(rows, 2):
        try:
            above_0 = [int(row[name]) for name in ("steps", "seed", "tokens", "val_tokens")]
            above_0 += [float(row["margin"]), *(point[0] for point in curve_of([row]))]
            ms, loss = float(row["step_ms"]), float(row["loss"])
            above_0 += [] if math.isnan(ms) and math.isnan(loss) else [ms]  # both are nan where a run diverged
            damaged = None in (*row, *row.values()) or not all(x > 0 for x in above_0) or float(row["joules"] or 0) < 0
        except (ValueError, TypeError, AttributeError, ZeroDivisionError):
            damaged = True
        if damaged:
            fail(f"{path}: line {number} is damaged; remove it, and the same command measures it again")
    return rows


def measure(args, provenance):
    """Runs what the file has no row of."""
    runs = Runs(args)
    rows = rows_of(args.output) if os.path.exists(args.output) else []
    for arm in args.arm:
        unlike = other_settings(rows, runs.settings(arm))
        if unlike:
            fail(f"{args.output} {unlike}")
    done = {tuple(row[name] for name in KEY) for row in rows}
    lengths = {arm.name: runs.steps(arm) for arm in args.arm}
    for arm in args.arm:
        for steps in lengths[arm.name]:
            runs.begin(arm, steps)
    begun = [arm for arm in args.arm if not arm.continues]
    order = itertools.product(range(1, args.seeds + 1), range(len(args.steps or args.tokens)), begun)
    jobs = [(arm, seed, lengths[arm.name][i]) for seed, i, arm in order]

    def is_done(arm, seed, steps):
        return (arm.name, str(steps), str(seed)) in done

    jobs = [
        job for job in jobs if not all(is_done(a, *job[1:]) for a in (job[0], *runs.continued.get(job[0].name, [])))
    ]
    elsewhere = {int(row["seed"]): row["gpu"] for row in rows if row["gpu"] != provenance["gpu"]}
    for seed in sorted(elsewhere.keys() & {job[1] for job in jobs}):
        print(f"note: seed {seed} has runs on an {elsewhere[seed]}; the others of it wait for one")
    jobs = [job for job in jobs if job[1] not in elsewhere]
    print(f"{len(jobs)} runs, {len(args.gpus)} at a time; {args.output} has {len(rows)} rows", flush=True)
    lock, names = threading.Lock(), [arm.name for arm in args.arm]

    def add(arm, seed, steps, gpu):
        for row in runs.rows(arm, seed, steps, os.path.join(folder, str(seed), "model_00000001.bin"), gpu):
            if tuple(map(str, (row[name] for name in KEY))) in done:
                continue
            with lock, contextlib.redirect_stdout(None):
                write_rows(
                    args.output,
                    COLUMNS,
                    KEY,
                    [{**row, **provenance}],
                    refuses=lambda there, row=row: other_settings(there, row),  # of another process that writes to it
                    order=lambda row: names.index(row["arm"]) if row["arm"] in names else len(names),
                )
            with lock:
                print(
                    f"{row['arm']}, seed {seed}, {steps} steps: loss {row['loss']:.5f}, {row['step_ms']} ms", flush=True
                )

    with tempfile.TemporaryDirectory() as folder:
        for seed in sorted({job[1] for job in jobs}) if runs.weights else ():
            runs.write_weights(seed, os.path.join(folder, str(seed)))
        runs.all(add, jobs)


def check_plot(path):
    """Ends with one line where no plot can be written, before anything is measured."""
    if path and not path.endswith((".svg", ".png")):
        fail(f"--plot {path}: must end in .svg or .png")
    if path and not os.path.isdir(os.path.dirname(os.path.abspath(path))):
        fail(f"--plot {path}: there is no such folder")
    if path and importlib.util.find_spec("matplotlib") is None:
        fail("--plot needs the Python package matplotlib: pip install matplotlib")


def main():
    parser = Parser(__doc__)
    here = gpus_here()
    parser.add_argument(
        "--arm", type=Arm, action="append", default=[], metavar="NAME=FLAGS", help="the first: baseline"
    )
    parser.add_argument("--common", default="", metavar="FLAGS", help="of all arms; with -e, -i, -j, -b, -t, -d")
    parser.add_argument("--seeds", type=positive_int, default=8, metavar="N", help="1 to N (default: %(default)s)")
    parser.add_argument("--steps", type=positive_int, nargs="+", metavar="N", help="of whole schedules")
    parser.add_argument("--tokens", type=positive_int, nargs="+", metavar="N", help="the same, of arms with other -d")
    parser.add_argument("--margin", type=float, default=0.004, metavar="NATS", help="default: %(default)s")
    parser.add_argument(
        "--val-tokens", type=positive_int, default=LEAST_VAL_TOKENS, metavar="N", help="default: 10,000,000"
    )
    parser.add_argument(
        "--val-every", type=int, default=0, metavar="N", help="steps between validations; 0: at the end"
    )
    parser.add_argument(
        "--gpus", type=int, default=len(here), metavar="N", help="0: the CPU (default: all; here %(default)s)"
    )
    parser.add_argument("--trainer", metavar="FILE", help="default: ./train_gpt2cu, on the CPU ./train_gpt2")
    parser.add_argument("--output", required=True, metavar="FILE", help="the CSV")
    parser.add_argument("--plot", metavar="FILE", help="loss over tokens and minutes, .svg or .png")
    args = parser.parse_args()
    if not 0 <= args.gpus <= len(here):
        fail(f"--gpus {args.gpus}: nvidia-smi shows {len(here)} here")
    check_plot(args.plot)
    if args.val_every < 0:
        fail(f"--val-every {args.val_every}: must be 0 or more")
    if not 0 < args.margin < math.inf:
        fail(f"--margin {args.margin:g}: a number of nats above 0")
    if args.steps and args.tokens:
        fail("--steps and --tokens: leave one of them out")
    lengths = args.steps or args.tokens or []
    if len(set(lengths)) < len(lengths):
        fail(f"{'--steps' if args.steps else '--tokens'} has a number twice")
    if len({arm.name for arm in args.arm}) < len(args.arm):
        fail("two arms have the same name")
    if args.arm and not lengths:
        fail("--steps says how many steps a run has, or --tokens how many tokens")
    default = os.path.join(ROOT, "train_gpt2cu" if args.gpus else "train_gpt2")
    args.gpus = here[: args.gpus] or [None]
    names = output_of("nvidia-smi", "--query-gpu=name", "--format=csv,noheader").split("\n")
    kinds = sorted({processor() if gpu is None else names[gpu] for gpu in args.gpus})
    if len(kinds) > 1:
        fail(f"GPUs of several kinds are here: {', '.join(kinds)}; CUDA_VISIBLE_DEVICES leaves those of one")
    provenance = gpu_provenance(kinds[0])
    if args.arm and not (args.trainer or os.path.exists(default)):
        fail(f"{default} is not there: make {os.path.basename(default)}")
    args.trainer = args.trainer or default
    if args.arm and not (os.path.isfile(args.trainer) and os.access(args.trainer, os.X_OK)):
        why = "not a program" if os.path.exists(args.trainer) else "there is no such file"
        fail(f"--trainer {args.trainer}: {why}")
    args.trainer = args.trainer if os.sep in args.trainer else os.path.join(os.curdir, args.trainer)
    folder, name = os.path.split(args.output)
    while not os.path.lexists(folder or os.curdir):
        folder = os.path.dirname(folder)
    if args.arm and not name:
        fail(f"--output {args.output}: names no file")
    if args.arm and not (os.path.isdir(folder or os.curdir) and os.access(folder or os.curdir, os.W_OK | os.X_OK)):
        fail(f"--output {args.output}: {folder or os.curdir} is not a folder that can be written to")
    if args.arm:
        measure(args, provenance)
    rows = rows_of(args.output)
    names = [arm.name for arm in args.arm] or list(dict.fromkeys(row["arm"] for row in rows))
    rows = [row for name in names for row in rows if row["arm"] == name]
    print("\n".join(report(rows, names)))
    if args.plot:
        plot(rows, args.plot)


if __name__ == "__main__":
    run(main)
