"""Reads what a run has left, or leaves while active: its folder (-o), a main.log, a captured stdout, a --log-json file.

What a log's lines say is run_lines.py's.
"""

import contextlib
import math
import os
import re
import struct
import sys

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, "dev", "data"))

import checksum
from run_lines import MOST_EVENTS, TERMINAL, LineReader, Series, to_int

LONGEST_LINE = 1 << 20
STATE_MAGIC, STATE_STEP, STATE_SETTINGS = 20240527, 10, 42  # llmc/checkpoint/checkpoint.h

# Settings of which two equal runs may have different ones
NOT_COMPARED = ("output-dir", "resume", "resume-anyway", "overwrite", "log-json")

# Rows of stdout that are settings too, under the same names in a state file
DESCRIBED = ("device", "precision", "attention")

DEFAULT = "default"  # the value of a flag that a table leaves out

TWO_FORMS = (*DESCRIBED, "model")  # the state file says more


class BadInput(Exception):
    """What cannot be read as a run, in one line."""


class Run:
    """One run, of whatever files hold something of it."""

    def __init__(self, name, path):
        self.name, self.path = name, path
        self.series = {}  # key (run_curves.METRICS): Series
        self.events = []  # (step or None, kind, text): error nan skip warning resume stop checkpoint note
        self.samples = []  # (step, text)
        self.state = {}  # name: value, the settings in the newest state file
        self.flags = {}  # name: value, of the table of flags that stdout begins with
        self.short_table = False  # that table leaves out flags that have their defaults
        self.facts = {}  # name: value, of that table's other rows: device, memory...
        self.run_id = None
        self.total_steps = None
        self.ended = False  # it has printed what a run prints last
        self.failed = False  # with an error, and it was not resumed since
        self.sources = []  # names of the files
        self.files = []  # their paths
        self.joins = False  # it is a stdout or of --log-json, and belongs to the folder that has the same run
        self.unread_lines = 0
        self.changed = 0.0  # when its newest log was written, in seconds

    @property
    def settings(self):
        return {**self.flags, **self.state}

    def get(self, key):
        """Its finite (step, value), an empty list where there are none."""
        return self.series[key].finite() if key in self.series else []

    def has(self, key):
        """Whether it has a finite value."""
        return key in self.series and any(map(math.isfinite, self.series[key].values))

    def last_step(self):
        """The number of updates of which the run has told; 0 where there are none."""
        trained = self.series["loss"].steps if "loss" in self.series else ()
        measured = self.series["val_loss"].steps if "val_loss" in self.series else ()
        return max(trained[-1] + 1 if trained else 0, measured[-1] if measured else 0)

    def tokens_per_step(self):
        """Tokens of a step; None where nothing tells."""
        total, batch, time = (to_int(self.settings.get(name)) for name in ("total-batch", "batch", "time"))
        if total and total > 0:
            return total
        return batch * time if batch and time else None

    def vocabulary(self):
        """The size of its vocabulary; None where nothing tells. Losses of different ones cannot be compared."""
        texts = (self.state.get("model", ""), "V " + self.facts.get("vocabulary V (Vp)", ""))
        found = [match[1] for match in (re.match(r"V (\d+)\b", text) for text in texts) if match]
        return int(found[0]) if found else None

    def finish(self):
        """Adds what follows from the lines: tokens/s, the time at each step, events of numbers that are not finite."""
        for series in self.series.values():
            series.limit()
        if "mfu" in self.series:  # above 1 the peak is not this GPU's
            whole, self.series["mfu"] = self.series["mfu"], Series()
            for step, value in whole.finite():
                if value <= 1.0:
                    self.series["mfu"].add(step, value)
        ms, tokens = self.series.get("ms"), self.tokens_per_step()
        if ms is not None:
            speed, time, seconds = Series(), Series(), 0.0
            for step, value in zip(ms.steps, ms.values):
                if 0.0 < value < math.inf:
                    seconds += value * 1e-3
                    if tokens:
                        speed.add(step, tokens / value * 1e3)
                time.add(step + 1, seconds)
            if tokens:
                self.series["tokens_per_second"] = speed
            self.series.setdefault("time", time)
        for key, what in (("loss", "loss"), ("val_loss", "validation loss"), ("norm", "gradient norm")):
            self.events += not_finite(self.series.get(key, Series()), what)
        self.flags.update({name: self.facts[name] for name in DESCRIBED if name in self.facts})
        self.events.sort(key=lambda event: (event[0] is None, event[0] or 0))
        self.series = {key: series for key, series in self.series.items() if len(series)}
        if self.total_steps is None:
            steps = to_int(self.settings.get("max-steps"))
            self.total_steps = steps if steps and steps > 0 else None


def not_finite(series, what):
    """Events of the stretches of a series that are not finite."""
    events, before = [], True
    if math.isfinite(sum(series.values)):
        return events
    for step, value in zip(series.steps, series.values):
        finite = math.isfinite(value)
        if before and not finite:
            events.append((step, "nan", f"the {what} is {value:g}"))
        before = finite
    return events[:MOST_EVENTS]


# ----------------------------------------------------------------------------
# Files of lines


def read_lines(path):
    """The whole lines of a file, as text; what a terminal overwrote, and its colours, are left out."""
    with open(path, "rb") as f:
        rest = b""
        while piece := f.read(1 << 20):
            *lines, rest = (rest + piece).split(b"\n")
            if len(rest) > LONGEST_LINE:  # no text
                rest = b""
            for line in lines:
                text = line.decode("utf-8", "replace")
                if "\r" in text:
                    text = text.rstrip("\r").rpartition("\r")[2]
                yield TERMINAL.sub("", text) if "\x1b" in text else text


def feed_file(reader, path):
    """Reads a file; BadInput where it is not a run's."""
    known, unread = reader.known, reader.run.unread_lines
    try:
        for line in read_lines(path):
            reader.feed(line)
        if reader.sample is not None:
            reader.end_sample()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    if reader.known == known and reader.run.unread_lines > unread:
        raise BadInput(
            f"{path} is no log of a run: it has no line of main.log, of the trainer's stdout or of --log-json"
        )


# ----------------------------------------------------------------------------
# The settings, as text at the end of a state file


def read_settings(path):
    """{name: value} of a state file (llmc/checkpoint/identity.h); empty where it holds none. Raises BadInput."""
    try:
        with open(path, "rb") as f:
            header = f.read(checksum.HEADER_BYTES)
            words = struct.unpack("<256i", header)
            size = words[STATE_SETTINGS]
            f.seek(0, os.SEEK_END)
            if words[0] != STATE_MAGIC or not 0 <= size <= f.tell() - checksum.HEADER_BYTES:
                raise BadInput(f"{path} is no state file of a run, or it is damaged")
            f.seek(-size, os.SEEK_END)
            text = f.read(size).decode("utf-8", "replace")
    except struct.error:
        raise BadInput(f"{path} ends inside its header") from None
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    lines = (line.split(" ", 2) for line in text.splitlines())
    return {line[1].removeprefix("--"): line[2] for line in lines if len(line) == 3 and line[0] != "run"}


# ----------------------------------------------------------------------------
# Runs


def named_by(path):
    """The folder or file that names a run: its folder, or the one around that if it is called `model`; or its file."""
    path = os.path.abspath(path)
    for name in ("main.log", "model"):
        if os.path.basename(path) == name and os.path.basename(os.path.dirname(path)):
            path = os.path.dirname(path)
    return path


def name_of(path):
    return os.fsencode(os.path.basename(named_by(path))).decode("utf-8", "replace")


def is_log_beside(path):
    """Whether a file in a run's folder is its captured stdout or the file of --log-json."""
    if not os.path.isfile(path):  # of a pipe one would wait for a writer
        return False
    try:
        with open(path, "rb") as f:
            first = f.read(4096)
    except OSError:
        return False
    return first.startswith((b"+---", b"step ", b"note: ", b'{"'))


def read_folder(folder):
    """The run of a folder: main.log, and what else lies there."""
    run = Run(name_of(folder), folder)
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise BadInput(f"cannot read {folder}: {error.strerror}") from None
    logs = [name for name in names if name.endswith((".log", ".txt", ".out", ".jsonl", ".json")) and name != "main.log"]
    logs = [name for name in logs if is_log_beside(os.path.join(folder, name))]
    if os.path.isfile(os.path.join(folder, "main.log")):
        feed_into(run, [os.path.join(folder, "main.log")])
    for name in logs:
        beside = Run(run.name, folder)
        feed_into(beside, [os.path.join(folder, name)])
        if not run.sources or beside.run_id == run.run_id:
            merge(run, beside)
    if not run.sources:
        raise BadInput(f"{folder} holds no run: there is no main.log; name the folder of -o, or a log")
    told = {event[0] for event in run.events if event[1] == "checkpoint"}
    done = [int(name[5:]) for name in names if re.fullmatch(r"DONE_\d{8}", name)]
    run.events += [(step, "checkpoint", f"checkpoint {step:08d}") for step in done if step not in told]
    states = [name for name in names if re.fullmatch(r"state_\d{8}_00000\.bin", name)]
    if states:
        read_state_into(run, os.path.join(folder, states[-1]))
    return run


def read_state_into(run, path):
    try:
        run.state = read_settings(path)
        run.sources.append(os.path.basename(path))
        run.files.append(path)
    except BadInput as error:  # a checkpoint may be deleted while this reads
        run.events.append((None, "note", f"no settings: {error}"))


def feed_into(run, paths):
    reader = LineReader(run)
    for path in paths:
        feed_file(reader, path)
        with contextlib.suppress(OSError):  # it may be gone by now
            run.changed = max(run.changed, os.path.getmtime(path))
        run.sources.append(os.path.basename(path))
        run.files.append(path)


def merge(run, other):
    """Adds to a run what another of its logs holds. Of a metric that both have, the log with more steps counts."""
    for key, series in other.series.items():
        if key not in run.series or len(series) > len(run.series[key]):
            run.series[key] = series
    told = {(step, kind) for step, kind, _ in run.events}
    run.events += [event for event in other.events if event[1] == "note" or event[:2] not in told]
    told = {step for step, _ in run.samples}
    run.samples = sorted(run.samples + [sample for sample in other.samples if sample[0] not in told])
    run.state = run.state or other.state  # equal, where both are there
    run.flags = {**other.flags, **run.flags}
    run.short_table |= other.short_table
    run.facts = {**other.facts, **run.facts}
    run.run_id = run.run_id or other.run_id
    run.total_steps = run.total_steps or other.total_steps
    run.ended |= other.ended
    run.failed |= other.failed and not (other.flags and other.changed < run.changed)  # an older stdout: resumed since
    run.changed = max(run.changed, other.changed)
    run.sources += other.sources
    run.files += other.files
    run.unread_lines += other.unread_lines


def read_input(path):
    """(run, whether it is a log that may belong to another input's run)"""
    if os.path.isdir(path):
        return read_folder(path), False
    if os.path.basename(path) == "main.log":
        folder = os.path.dirname(os.path.abspath(path))
        run = read_folder(folder)
        run.path = path
        return run, False
    run = Run(name_of(path), path)
    feed_into(run, [path])
    return run, run.joins


def read_runs(paths):
    """The runs of all inputs. A captured stdout joins the folder of its run, known by its id, where there is one."""
    runs, logs, alone = [], [], []
    for index, path in enumerate(paths):
        run, is_log = read_input(path)
        (logs if is_log else runs).append((index, run))
    for index, log in logs:
        owners = [run for _, run in runs if run.run_id == log.run_id]
        own = [run for run in owners if run.name == name_of(log.flags.get("output-dir", ""))] or owners
        if own:
            merge(own[0], log)
        else:
            alone.append((index, log))
    runs = [run for _, run in sorted(runs + alone, key=lambda entry: entry[0])]
    for run in runs:
        run.finish()
    add_defaults(runs)
    make_names_unique(runs)
    return runs


def add_defaults(runs):
    """Gives each run the flags that only others' tables have: its own leaves out those at their defaults."""
    having = [run for run in runs if run.flags]
    if all(run.short_table for run in having):  # else the value of a default stands in one of them
        for name in dict.fromkeys(name for run in having for name in run.flags if name not in DESCRIBED):
            for run in having:
                run.flags.setdefault(name, DEFAULT)


def make_names_unique(runs):
    names = [run.name for run in runs]
    for run in runs:
        if names.count(run.name) > 1:
            parent = os.path.basename(os.path.dirname(named_by(run.path)))
            run.name = f"{os.fsencode(parent).decode('utf-8', 'replace')}/{run.name}"
    names = [run.name for run in runs]
    for i, run in enumerate(runs):
        if names.count(run.name) > 1:
            run.name = f"{run.name} ({names[: i + 1].count(run.name)})"


def differences(runs):
    """[(name, [value of each run])] of the settings that are not the same in all runs whose settings are known."""
    having, rows = [run for run in runs if run.settings], []
    for name in dict.fromkeys(name for run in having for name in run.settings):
        if name in NOT_COMPARED or not all(name in run.settings for run in having):
            continue
        value_of = value_reader(name, having)
        if value_of and len({value_of(run) for run in having}) > 1:
            rows.append((name, [value_of(run) if run in having else "-" for run in runs]))
    return rows


def value_reader(name, runs):
    """A function that reads a setting of all these runs in one form; None where they have none in common."""
    if all(name in run.state for run in runs):
        return lambda run: run.state[name]
    if all(name in run.flags for run in runs):
        return lambda run: run.flags[name]
    if name in TWO_FORMS or any(run.settings[name] == DEFAULT for run in runs):
        return None
    return lambda run: run.settings[name]
