"""The lines of a run's logs: main.log's (llmc/run/logger.h), those that a trainer prints, and those of --log-json.

A step N is main.log's: the state after N updates. So `step 1/400` of stdout is step 0. Where the steps go back, the run
was resumed there: the later lines count, and what stood there before is dropped.
"""

import json
import math
import re
from array import array
from bisect import bisect_left

LARGEST_STEP = 2**31 - 1
LARGEST_COUNT = 2**62  # of tokens, parameters, steps
LARGEST_NUMBER = 1e100  # a larger one is infinite: no run has it, and sums of it are no numbers
MOST_EVENTS = 10000
KINDS = ("error", "nan", "skip", "warning", "resume", "stop", "checkpoint", "note")  # by how much they matter

NUMBER = r"([-+]?(?:nan(?:\([^)]*\))?|inf|[\d.]+(?:e[-+]?\d+)?))"
MAIN = re.compile(rf"s:(\d+) (trl|tel|eval):{NUMBER}(?: lr:{NUMBER})?(?: norm:{NUMBER})?\s*")
MAIN_RUN = re.compile(r"s:0 run:(\d+)\s*")
STEP = re.compile(
    rf"step +(\d+)/(\d+) \| loss +{NUMBER}(?: \([^)]*\))? \| norm +{NUMBER}(?: \([^)]*\))? "
    rf"\| lr +{NUMBER} \| +{NUMBER} ms(?: \| +{NUMBER}% MFU)? \| +{NUMBER} tok/s.*"
)
ROW = re.compile(r"\| (.{21,}?) +\| (.*?) *\|")
VAL = re.compile(rf"val loss {NUMBER}")
HELLASWAG = re.compile(rf"HellaSwag: \d+/\d+ = {NUMBER}")
CHECKPOINT = re.compile(r"wrote checkpoint (\d{8}) to .*")
RESUMED = re.compile(r".*model_(\d{8})\.bin")
SAID = re.compile(r"(warning|error|note|skipping the update|stopped by|checkpoint \d{8} is given up|gpu|SIG\w+)\b(.*)")
AFTER = re.compile(r"total average iteration time: .*|(?:GPU|host) memory: \d+ MiB planned, \d+ MiB used")
PROGRESS = re.compile(r".* +[\d.]+%, .* left")
TERMINAL = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[()][A-Z0-9]|[=>])")  # escape sequences
KIND = {"error": "error", "warning": "warning", "note": "note", "gpu": "note", "skipping the update": "skip"}
MAIN_KEYS = {"trl": "loss", "tel": "val_loss", "eval": "hellaswag"}
JSON_KEYS = {  # llmc/run/logger.h
    **{key: key for key in ("loss", "norm", "lr", "ms", "tokens_per_second", "mfu", "hellaswag")},
    "memory": "memory_bytes",
    "validation": "val_loss",
}


def to_int(text):
    """A count of a log; None where it is none, or larger than any."""
    try:
        count = int(text)
    except (TypeError, ValueError):
        return None
    return count if abs(count) <= LARGEST_COUNT else None


def to_number(text):
    """A number of a log; None where it is none. NaN may carry a sign and bits."""
    try:
        return float(text)
    except ValueError:
        return math.nan if "nan" in text else None


def json_number(value):
    """A number of JSON, which has no NaN; None where it is none."""
    if value is None:
        return math.nan
    try:
        return float(value) if type(value) in (int, float) else None
    except OverflowError:
        return None


class Series:
    """Values by step, in ascending order."""

    def __init__(self):
        self.steps, self.values = array("q"), array("d")

    def __len__(self):
        return len(self.steps)

    def add(self, step, value):
        if self.steps and step <= self.steps[-1]:
            self.drop_from(step)
        self.steps.append(step)
        self.values.append(value)

    def drop_from(self, step):
        first = bisect_left(self.steps, step)
        del self.steps[first:]
        del self.values[first:]

    def limit(self):
        """Makes numbers infinite that are larger than any of a run."""
        if self.values and not -LARGEST_NUMBER < min(self.values) <= max(self.values) < LARGEST_NUMBER:
            large = (math.copysign(math.inf, v) if abs(v) >= LARGEST_NUMBER else v for v in self.values)
            self.values = array("d", large)

    def finite(self):
        """Its (step, value) without what is not finite."""
        if math.isfinite(sum(self.values)):
            return list(zip(self.steps, self.values))
        return [(s, v) for s, v in zip(self.steps, self.values) if math.isfinite(v)]


class LineReader:
    """Takes a log's lines, of any of the kinds, into a run."""

    def __init__(self, run):
        self.run = run
        self.last = -1  # the last step with a training loss
        self.next_step = None  # of the next training loss, where that is known
        self.known = 0  # lines that are a run's
        self.measured = []  # (key, value) that stdout told before the step is known
        self.sample = None  # lines of the sample that is being read
        self.in_flags = False  # inside the table of flags
        self.rules = 0  # of the table that is being read

    def feed(self, line):
        if self.sample is not None and self.feed_sample(line):
            return
        if line.startswith("s:"):
            known = self.feed_main(line)
        elif line.startswith("{"):
            known = self.feed_json(line)
        else:
            known = self.feed_stdout(line)
        self.known += known
        self.run.unread_lines += not known and line.strip() != ""

    def add(self, key, step, value):
        self.add_all(step, (key,), (value,))

    def add_all(self, step, keys, values):
        all_series = self.run.series
        for key, value in zip(keys, values):
            if value is None:
                continue
            series = all_series.get(key)
            if series is None:
                series = all_series[key] = Series()
            if series.steps and step <= series.steps[-1]:
                series.drop_from(step)
            series.steps.append(step)
            series.values.append(value)

    def event(self, step, kind, text):
        self.run.failed |= kind == "error"
        if len(self.run.events) < MOST_EVENTS:
            self.run.events.append((step, kind, text))

    def rewind(self, step, text):
        """The run continues at this step: what stood there before no longer counts."""
        for series in self.run.series.values():
            series.drop_from(step)
        self.run.samples = [sample for sample in self.run.samples if sample[0] < step or step == 0]
        self.last, self.next_step = step - 1, step
        self.event(step, "resume", text)

    def begin_step(self, step, key):
        """A line of this step begins; where it goes back, the run was resumed."""
        back = step <= self.last if key == "loss" else step < self.last
        if back:
            self.rewind(step, f"resumed at step {step}, after step {self.last}")
        if key == "loss":
            self.last, self.next_step = step, step + 1

    # -- main.log

    def feed_main(self, line):
        words = line.split(" ")
        if len(words) == 4 and words[1][:4] == "trl:" and words[2][:3] == "lr:" and words[3][:5] == "norm:":
            try:  # the line that there are a million of
                step = int(words[0][2:])
                values = float(words[1][4:]), float(words[2][3:]), float(words[3][5:])
            except ValueError:
                step = -1
            if self.last < step <= LARGEST_STEP:
                self.last, self.next_step = step, step + 1
                self.add_all(step, ("loss", "lr", "norm"), values)
                return True
        match = MAIN_RUN.fullmatch(line)
        if match:
            self.run.run_id = match[1]
            return True
        match = MAIN.fullmatch(line)
        step = to_int(match[1]) if match else None
        if step is None or step > LARGEST_STEP:
            return False
        key = MAIN_KEYS[match[2]]
        self.begin_step(step, key)
        self.add(key, step, to_number(match[3]))
        if key == "loss" and match[4]:
            self.add("lr", step, to_number(match[4]))
        if key == "loss" and match[5]:
            self.add("norm", step, to_number(match[5]))
        return True

    # -- --log-json

    def feed_json(self, line):
        try:
            fields = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(fields, dict):
            return False
        step = fields.get("step")
        if type(step) is not int or not 0 <= step <= LARGEST_STEP:
            step = None
        event = fields.get("event")
        if isinstance(event, str):
            self.feed_json_event(event, step, fields)
            return True
        if step is None:
            return False
        keys = [key for key in JSON_KEYS if key in fields]
        if keys:
            self.begin_step(step, "loss" if "loss" in keys else "val_loss")
        self.add_all(step, [JSON_KEYS[key] for key in keys], [json_number(fields[key]) for key in keys])
        if fields.get("skipped") is True:
            self.event(step, "skip", "the update of this step was skipped")
        return bool(keys)

    def feed_json_event(self, event, step, fields):
        message = str(fields.get("message", ""))[:2000]
        if event in ("start", "resume"):
            self.feed_json_begin(step or 0, event == "resume", fields)
        elif event == "checkpoint" and fields.get("saved") is True:
            self.event(step, "checkpoint", f"wrote {fields.get('path', 'it')}"[:2000])
        elif event == "checkpoint":
            self.event(step, "warning", f"the checkpoint was not written: {message}")
        elif event == "end":
            self.run.ended = True
            if fields.get("exit_code") != 0:
                self.event(step, "error", message or f"ended with exit code {fields.get('exit_code')}")
        elif event == "sample":
            self.run.samples.append((step or 0, str(fields.get("text", ""))))
        else:
            self.event(step, "note", f"{event}: {message}"[:2000])

    def feed_json_begin(self, step, resumed, fields):
        """A run begins, or continues from a checkpoint."""
        run = self.run
        if resumed or self.last >= 0:
            self.rewind(step, f"resumed at step {step}" if resumed else "began anew")
        run.ended = run.failed = False
        run.run_id, run.joins = fields.get("run") or run.run_id, True
        steps = fields.get("steps")
        run.total_steps = to_int(steps) if type(steps) is int else run.total_steps
        settings = fields.get("settings")
        if isinstance(settings, dict):
            run.state = {str(name).removeprefix("--"): str(value) for name, value in settings.items()}
        for name, place, key in (
            ("tokens_per_step", run.flags, "total-batch"),
            ("parameters", run.facts, "parameters"),
        ):
            if type(fields.get(name)) is int and to_int(fields[name]) is not None:
                place[key] = str(fields[name])

    # -- stdout

    def feed_stdout(self, line):
        match = STEP.fullmatch(line) if line.startswith("step ") else None
        if match:
            return self.feed_step(match)
        if line.startswith("+-"):
            self.rules += 1
            return True
        match = ROW.fullmatch(line)
        if match:
            return self.feed_row(match[1].strip(), match[2])
        self.rules = 0
        for pattern, key in ((VAL, "val_loss"), (HELLASWAG, "hellaswag")):
            match = pattern.fullmatch(line)
            if match:
                self.feed_measured(key, to_number(match[1]))
                return True
        if line == "generating:":
            self.sample = []
            return True
        return self.feed_said(line)

    def feed_step(self, match):
        step = (to_int(match[1]) or 0) - 1
        if not 0 <= step <= LARGEST_STEP:
            return False
        self.begin_step(step, "loss")
        self.run.total_steps = to_int(match[2])
        for key, value in self.measured:
            self.add(key, step, value)
        self.measured = []
        loss, norm, lr, ms, mfu, rate = (to_number(number) if number else None for number in match.groups()[2:])
        keys = ("loss", "norm", "lr", "ms", "mfu", "tokens_per_second")
        self.add_all(step, keys, (loss, norm, lr, ms, mfu and mfu / 100.0, rate))
        return True

    def feed_measured(self, key, value):
        """A validation is printed after the step that it follows; the first one of a resumed run before its first."""
        if self.next_step is None:
            self.measured.append((key, value))
        else:
            self.add(key, self.next_step, value)

    def feed_row(self, name, value):
        if (name, value) == ("flag", "value"):  # the table that a run begins with
            self.in_flags, self.rules = True, 1
            self.run.ended = self.run.failed = False
            self.next_step = 0 if self.last < 0 else None
            return True
        self.in_flags = self.in_flags and self.rules < 3
        if self.in_flags and name == "other flags":  # N at their defaults
            self.run.short_table = True
            return True
        (self.run.flags if self.in_flags else self.run.facts)[name] = value
        if name == "run":
            self.run.run_id, self.run.joins = value, True
        if name == "steps":
            self.run.total_steps = to_int(value)
        if name == "weights from":
            step = self.resumed_step(value)
            if step > 0 or self.last >= 0:
                self.rewind(step, f"resumed at step {step}" if step > 0 else "began anew")
        return True

    def resumed_step(self, source):
        """The step of the checkpoint that a run continues from; 0 where it begins."""
        match = RESUMED.fullmatch(source)
        return int(match[1]) if match and self.run.flags.get("resume") == "1" else 0

    def feed_said(self, line):
        match = CHECKPOINT.fullmatch(line)
        if match:
            self.event(int(match[1]), "checkpoint", line)
            return True
        match = SAID.match(line)
        if match:
            kind = "stop" if match[1].startswith(("stopped", "SIG")) else KIND.get(match[1], "note")
            self.event(self.last + 1 if self.last >= 0 else None, kind, line[:2000])
            return True
        if AFTER.fullmatch(line):
            self.run.ended = True
            name, _, value = line.partition(": ")
            self.run.facts[f"{name} at the end"] = value
            return True
        return PROGRESS.fullmatch(line) is not None

    # -- samples: "generating:", "---", the text, which may hold anything, "---"

    def feed_sample(self, line):
        """1 where the line belongs to the sample. It ends with the last '---' before a line that is the trainer's."""
        if self.sample and self.sample[-1] == "---" and len(self.sample) > 1 and self.is_trainers(line):
            self.end_sample()
            return False
        self.sample.append(line)
        if len(self.sample) > 100000:
            self.end_sample()
        return True

    def is_trainers(self, line):
        patterns = (STEP, VAL, HELLASWAG, CHECKPOINT, AFTER)
        return (
            any(p.fullmatch(line) for p in patterns) or bool(SAID.match(line)) or line.startswith(("+-", "generating:"))
        )

    def end_sample(self):
        lines, self.sample = self.sample, None
        if lines and lines[0] == "---":
            del lines[0]
        if lines and lines[-1] == "---":
            del lines[-1]
        self.run.samples.append((self.next_step or 0, "\n".join(lines)))
