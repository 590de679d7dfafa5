#!/usr/bin/env python3
"""Processes of one run that die, stop or are told to end: all others end in time, and what was saved resumes.

    dev/test/whole/process_faults.py ./train_gpt2 build/train_gpt2_faults                    half a minute on two cores
    dev/test/whole/process_faults.py build/train_gpt2cu_bf16 build/train_gpt2cu_faults_bf16 --count 2      with NCCL
    dev/test/whole/process_faults.py TRAINER FAULTY --only "killed" --jobs 1             cases whose name has that in it
    dev/test/whole/process_faults.py TRAINER FAULTY --model 124M --only "then all" --count 8   12 GB of disk

In each case a run of --count processes meets a fault (train_with_faults.h, or a signal from here). Then, within
--fault-timeout: every process has ended, with few lines, of which one names the rank and the cause; no
temporary file is left; and another number of processes goes on from the last checkpoint to the bits of a run without
faults. Ends with 'N passed, N failed'.
"""

import concurrent.futures
import os
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), os.pardir, os.pardir, "data"))

from data_common import Parser
from soak_trial import (
    ROOT,
    Failure,
    await_nobody,
    claim,
    files_of,
    newest_step,
    processes_with,
    read_log,
    same_files,
    steps_done,
)

STEPS = 12
TIMEOUT = 12  # --fault-timeout: 6.5 s of silence, which a busy machine may come near, and 5 s to end
MARGIN = 15  # seconds that a busy machine may take longer
MICRO_BATCHES = 8
MODELS = {"small": ("gpt2:l2c64h2t64", 2, 32), "124M": ("d12", 1, 1024)}  # -e, -b, -t


def flags_of(model):
    descriptor, B, T = MODELS[model]
    text = f"-e {descriptor} -b {B} -t {T} -d {B * T * MICRO_BATCHES} -x {STEPS} -l 2e-3 -u 3 -q 0.1 -c 0.1 -v 4 -m 5"
    return [*text.split(), *f"-s 0 -n 4 --connect-timeout 30 --fault-timeout {TIMEOUT}".split()]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def without_warnings(text):
    """Lines but for those of the watchdog and of waits for other processes, which a busy machine hears too."""
    pattern = r"warning: .*: step \d+ has taken |note: rank \d+: waiting for "
    return [line for line in text.splitlines() if not re.match(pattern, line)]


class Trial:
    """One run that meets a fault: its folder, its processes, and what they said."""

    def __init__(self, suite, name):
        self.suite, self.name = suite, name
        self.home = os.path.join(suite.home, re.sub(r"\W+", "_", name))
        self.folder, self.mark = os.path.join(self.home, "run"), os.path.join(self.home, "mark")
        os.makedirs(self.folder)
        self.count = suite.count
        self.started = []  # [(Popen, path of its stderr)]
        self.commands = []

    def begin(self, *flags, fault="", by_hand=False, limit=None):
        """Starts the run: by its own launcher, or every rank by hand. `limit`: KiB that rank 0's files may have."""
        faulty = [*self.command(self.suite.faulty), *map(str, flags)]
        if not by_hand:
            self.start([*faulty, self.suite.flag, str(self.count)], fault, limit)
            return
        here = ["-pi", "tcp", "-ps", "127.0.0.1", "--rendezvous-port", str(free_port())]
        if self.suite.gpu:
            here += ["-pg", str(self.count)]
        for rank in range(self.count):
            self.start([*faulty, "-pn", str(self.count), "-pr", str(rank), *here], fault, limit)

    def command(self, program):
        return [program, *self.suite.data, *self.suite.flags, "-o", self.folder]

    def start(self, command, fault="", limit=None):
        environment = {**os.environ, "OMP_WAIT_POLICY": "passive", "FAULT": fault, "FAULT_MARK": self.mark}
        environment["XDG_CACHE_HOME"] = self.suite.home
        self.commands.append(" ".join([f"FAULT={fault}" if fault else "", *command]).strip())
        if limit is not None:
            command = ["bash", "-c", 'ulimit -S -f "$1"; shift; exec "$@"', "bash", str(limit), *command]
        path = os.path.join(self.home, f"output{len(self.started)}")
        with open(path + ".stdout", "wb") as out, open(path, "wb") as err:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
            )
        self.started.append((process, path))
        return process

    def await_step(self, step):
        """Waits until main.log has this step."""
        end = time.monotonic() + 60
        while steps_done(self.folder) <= step and time.monotonic() < end:
            claim(self.started[-1][0].poll() is None, f"it ended before step {step}: {self.said()}")
            time.sleep(0.002)
        claim(steps_done(self.folder) > step, f"step {step} took more than a minute")
        with open(self.mark, "w", encoding="utf-8"):
            pass

    def children(self):
        """The ranks' processes, which the launcher has started in order."""
        pid = self.started[0][0].pid
        with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as f:
            pids = sorted(map(int, f.read().split()))
        claim(len(pids) == self.count, f"the launcher has {len(pids)} processes, not {self.count}")
        return pids

    def said(self):
        """All lines on stderr, of all processes."""
        text = ""
        for _, path in self.started:
            with open(path, encoding="utf-8", errors="replace") as f:
                text += f.read()
        return text

    def since_fault(self):
        claim(os.path.exists(self.mark), f"the fault did not happen: {self.said()}")
        return time.time() - os.path.getmtime(self.mark)

    def end(self, codes=(0,), within=None):
        """Waits until all have ended, `within` seconds of the fault, with one of these exit codes (None: any)."""
        deadline = time.monotonic() + 90
        for process, _ in self.started:
            try:
                process.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                raise Failure(f"it had not ended after 90 s: {self.said()}") from None
        await_nobody(self.folder, 0 if within is None else within + MARGIN - self.since_fault())
        if within is not None:
            seconds = self.since_fault()
            claim(seconds <= within + MARGIN, f"{seconds:.1f} s from the fault to the end, not {within}")
        got = [process.returncode for process, _ in self.started]
        claim(codes is None or set(got) <= set(codes), f"exit codes {got}, not {codes}: {self.said()}")

    def names(self, rank, *causes, lines=None):
        """stderr has few lines, each an error of its own, and one that names the rank and one of the causes."""
        said = without_warnings(self.said())
        claim(said, "nothing is said")
        odd = [line for line in said if not line.startswith("error: ")]
        claim(not odd, f"a line that is no error: {odd[:1]}")
        most = self.count + 1 if lines is None else lines
        claim(len(said) <= most, f"{len(said)} lines, not {most}: {said}")
        claim(
            any(re.search(f"rank {rank}\\b", line) and re.search("|".join(causes), line) for line in said),
            f"not named: {said}",
        )

    def clean(self):
        names = [name for name in os.listdir(self.folder) if name.endswith(".tmp")]
        claim(not names, f"{' '.join(names)} is left")

    def resume(self, newest, log=True, processes=None):
        """The newest checkpoint is this one (None: any); other processes go on to the reference's bits.

        `log` False: main.log has the line of a step that was not finite, which the resumed run takes back.
        """
        now = newest_step(self.folder)
        claim(newest is None or now == newest, f"checkpoint {now} is the newest, not {newest}")
        claim(
            not log or self.suite.log.startswith(read_log(self.folder)),
            "main.log is not the beginning of the reference's",
        )
        for step in (4, 8, STEPS):
            if step <= now and os.path.exists(os.path.join(self.folder, f"DONE_{step:08d}")):
                same_files(self.folder, self.suite.reference, files_of(step))
        processes = processes or self.suite.other_count()
        process = self.start([*self.command(self.suite.trainer), "-y", "1", self.suite.flag, str(processes)])
        claim(process.wait(120) == 0, f"{processes} processes did not go on: {self.said().splitlines()[-1:]}")
        same_files(self.folder, self.suite.reference, [*files_of(STEPS), "main.log"])


# ----------------------------------------------------------------------------
# Cases: name, function of a trial


def dies(fault, rank, causes, newest=4, by_hand=False, tidy=True, named=None):
    """A rank that ends or stops by a fault of its own; `named`: a pattern of the ranks that may be named."""

    def case(trial):
        # step 6 waits for checkpoint 4, which is written beside the steps
        trial.begin(fault=f"slow@6:1,{fault}#{rank % trial.count}", by_hand=by_hand)
        ended = trial.started[rank % trial.count][0] if by_hand else None
        if by_hand and fault.startswith("stop"):  # nobody but us can end it
            for process, _ in trial.started:
                if process is not ended:
                    process.wait(60)
            seconds = trial.since_fault()
            claim(seconds <= TIMEOUT + MARGIN, f"{seconds:.1f} s from the fault to the end, not {TIMEOUT}")
            ended.kill()
        trial.end(codes=(1, -signal.SIGKILL) if by_hand else (1,), within=None if by_hand else TIMEOUT)
        trial.names(rank % trial.count if named is None else named, *causes)
        if by_hand:
            for process, path in trial.started:
                with open(path, encoding="utf-8") as f:
                    said = without_warnings(f.read())
                claim(process is ended or len(said) == 1, f"{path}: {said}")
        if tidy:
            trial.clean()
        trial.resume(newest)

    return case


def told(number, whom, newest=None):
    """A signal that ends a run, from outside, to the launcher, a rank or all: saved once, and all end with 0."""

    def case(trial):
        trial.begin(fault="slow@7:1")  # a moment to strike in
        trial.await_step(6)
        launcher = trial.started[0][0].pid
        if whom == "all":
            os.killpg(launcher, number)  # as a terminal does
        else:
            os.kill(launcher if whom == "launcher" else trial.children()[whom], number)
        trial.end(codes=(0,), within=TIMEOUT)
        said = without_warnings(trial.said())
        claim(1 <= len(said) <= trial.count + 1, f"{len(said)} lines: {said}")
        claim(all(re.search(r"SIG\w+: ending after this step", line) for line in said), f"other lines: {said}")
        claim(newest_step(trial.folder) == steps_done(trial.folder), "what was trained is not saved")
        trial.clean()
        trial.resume(newest)

    return case


def twice(trial):
    """A second SIGTERM to the launcher ends all at once."""
    trial.begin(fault="slow@6:1,slow@7:30")
    trial.await_step(6)
    os.kill(trial.started[0][0].pid, signal.SIGTERM)
    end = time.monotonic() + TIMEOUT
    while "ending after this step" not in trial.said() and time.monotonic() < end:
        time.sleep(0.01)
    time.sleep(0.8)  # sooner, the second would count as the first
    os.kill(trial.started[0][0].pid, signal.SIGTERM)
    start = time.monotonic()
    trial.end(codes=(128 + signal.SIGTERM, 1), within=TIMEOUT)
    claim(time.monotonic() - start < 10, "it took more than 10 s")
    trial.clean()
    trial.resume(4)


def saves(trial):
    """SIGUSR1 to the launcher: a checkpoint, and the run continues."""
    trial.begin(fault="slow@5:1")
    trial.await_step(4)
    os.kill(trial.started[0][0].pid, signal.SIGUSR1)
    trial.end(codes=(0,))
    claim(os.path.exists(os.path.join(trial.folder, "DONE_00000006")), "step 6 was not saved")
    same_files(trial.folder, trial.suite.reference, [*files_of(STEPS), "main.log"])


def launcher_killed(trial):
    """kill -9 of the launcher: its processes end, too."""
    trial.begin(fault="slow@6:1,slow@7:1")
    trial.await_step(6)
    trial.started[0][0].kill()
    trial.end(codes=None, within=TIMEOUT)
    trial.resume(4)


def killed_from_outside(trial):
    """kill -9 of a rank at some moment of a run that saves each step"""
    trial.begin("-n", 1, "-nk", 2)
    trial.await_step(3)
    rank = trial.count - 1
    os.kill(trial.children()[rank], signal.SIGKILL)
    trial.end(codes=(1,), within=TIMEOUT)
    trial.names(rank, "signal 9")
    trial.clean()
    claim(newest_step(trial.folder) >= 1, "nothing was saved")
    trial.resume(None)


def then_half_then_all(trial):
    """kill -9 of any rank at any moment; half as many processes go on until they are told to end, and then all do"""
    rank, step, part = random.randrange(trial.count), random.randrange(1, 6), random.random()
    trial.begin("-n", 1, "-nk", 2, fault=f"slow@{step + 1}:1")  # a second, of which the blow takes `part`
    trial.await_step(step)
    time.sleep(part)
    ranks = trial.children()
    with open(trial.mark, "w", encoding="utf-8"):
        os.kill(ranks[rank], signal.SIGKILL)
    trial.end(codes=(1,), within=TIMEOUT)
    seconds = trial.since_fault()
    trial.names(rank, "signal 9")
    saved, half = newest_step(trial.folder), max(1, trial.count // 2)
    command = [*trial.command(trial.suite.faulty), "-y", "1", trial.suite.flag, str(half)]
    launcher = trial.start(command, fault="slow@9:2")
    trial.await_step(8)
    launcher.terminate()
    claim(launcher.wait(60) == 0, f"{half} processes did not end well: {trial.said().splitlines()[-1:]}")
    await_nobody(trial.folder, 0)
    middle = newest_step(trial.folder)
    claim(max(8, saved) < middle < STEPS, f"{half} processes went from step {saved} to {middle}")
    trial.resume(None, processes=trial.count)
    killed = f"rank {rank} of {trial.count} killed {part:.2f} s behind step {step}: all ended {seconds:.1f} s later"
    print(f"{killed}; {half} went on from {saved} to {middle}, {trial.count} to {STEPS}: the same bits", flush=True)


def unsound(fault, code, cause, newest, *flags, named=None):
    """A number in one rank that is not finite, or comes out otherwise when it is computed again: all end alike."""

    def case(trial):
        rank = trial.count - 1
        trial.begin(*flags, fault=f"slow@6:1,{fault}#{rank}")
        trial.end(codes=(code,))
        trial.names(rank if named is None else named, cause, lines=1)
        trial.clean()
        trial.resume(newest, log=False)

    return case


def full_disk(trial):
    """A disk that is full at rank 0: the run continues, and says in the end that its last state was not saved"""
    size = os.path.getsize(os.path.join(trial.suite.reference, files_of(4)[1])) >> 10
    trial.begin(limit=size // 2)
    trial.end(codes=(4,))
    claim("was not written" in trial.said(), f"that is not said: {trial.said()}")
    claim("another process" not in trial.said() and "rank 1" not in trial.said(), f"others failed: {trial.said()}")
    claim(steps_done(trial.folder) == STEPS, f"the run ended at step {steps_done(trial.folder)}")
    trial.clean()
    trial.resume(-1)


ENDED = r"was killed by signal 9|died without an error message"
SILENT = r"has been silent for \d+ s"
CASES = {
    "the last rank is killed": dies("kill@6", -1, [ENDED]),
    "rank 0 is killed": dies("kill@6", 0, [ENDED], newest=4, tidy=False),
    "the last rank is killed, started by hand": dies("kill@6", -1, [ENDED], by_hand=True),
    "rank 0 is killed, started by hand": dies("kill@6", 0, [ENDED], by_hand=True, tidy=False),
    "killed before the first step": dies("kill-open@0", -1, [ENDED], newest=-1),
    "killed in a validation": dies("kill-validation@8", -1, [ENDED], newest=None),
    "killed while a checkpoint is written": killed_from_outside,
    "any rank is killed; half go on, then all": then_half_then_all,
    "the last rank is stopped": dies("stop@6", -1, [SILENT]),
    "rank 0 is stopped": dies("stop@6", 0, [SILENT]),
    "the last rank is stopped, started by hand": dies("stop@6", -1, [SILENT], by_hand=True),
    "stopped before the first step": dies("stop-open@0", -1, [SILENT], newest=-1),
    "the last rank fails": dies("fail@6", -1, ["the forward pass fails, as FAULT asks for"]),
    "rank 0 fails": dies("fail@6", 0, ["the forward pass fails, as FAULT asks for"]),
    "the last rank fails, started by hand": dies("fail@6", -1, ["the forward pass fails"], by_hand=True),
    "a rank has no memory": dies("memory@6", -1, ["out of memory"]),
    "the connections of a rank are closed": dies("close@6", -1, ["its connection closed"], named=r"\d"),
    "the connections of rank 0 are closed": dies("close@6", 0, ["its connection closed"], named=r"\d"),
    "a gradient of a rank is NaN": unsound(
        "nan-gradient@6:0", 3, r"the gradient norm is nan; first not finite: rank \d: backward", 6
    ),
    "a gradient that is NaN once": unsound("nan-once@6", 5, "silent data corruption", 4, named=0),
    "a gradient whose bit flips": unsound("flip@6", 5, "silent data corruption", 4, "--verify-every", 7),
    "a full disk": full_disk,
    "the launcher is killed": launcher_killed,
    "SIGTERM to the launcher": told(signal.SIGTERM, "launcher"),
    "SIGTERM to rank 0": told(signal.SIGTERM, 0),
    "SIGTERM to the last rank": told(signal.SIGTERM, -1),
    "SIGINT to all": told(signal.SIGINT, "all"),
    "SIGHUP to all": told(signal.SIGHUP, "all"),
    "two SIGTERM to the launcher": twice,
    "SIGUSR1 to the launcher": saves,
}
GPU_CASES = {"a kernel traps": dies("trap@6", -1, ["CUDA|cuda|trap|launch failure"])}
SHORT = [  # with NCCL, where each start takes seconds
    "the last rank is killed",
    "rank 0 is killed",
    "the last rank is stopped",
    "a rank has no memory",
    "a kernel traps",
    "the connections of a rank are closed",
    "the launcher is killed",
    "SIGTERM to the last rank",
    "any rank is killed; half go on, then all",
]


class Suite:
    """What the cases share: the programs, the data, and a run without faults."""

    def __init__(self, arguments, home):
        self.trainer, self.faulty, self.count = arguments.trainer, arguments.faulty, arguments.count
        self.home, self.flags = home, flags_of(arguments.model)
        self.gpu = "cu" in os.path.basename(arguments.trainer)
        self.flag = "--gpus" if self.gpu else "--processes"
        self.reference = os.path.join(home, "reference", "run")
        text = os.path.join(home, "text")
        sources = ["train_gpt2.c", "train_gpt2.cu", "llmc/model/gpt2.h", "llmc/base/utils.h"]
        data = [sys.executable, "dev/data/text.py", "--tokenizer", "bytes", "--output", text, *sources]
        subprocess.run(data, check=True, cwd=ROOT, stdout=subprocess.DEVNULL)
        self.data = ["-i", text + "_train.bin", "-j", text + "_val.bin"]
        self.counts, self.resumed = [n for n in (1, 2, 4, 8) if n <= self.count], 0
        trial = Trial(self, "reference")
        trial.begin()
        trial.end()
        self.log = read_log(self.reference)
        claim(steps_done(self.reference) == STEPS, "the run without faults did not end")

    def other_count(self):
        """How many processes go on: each of the counts, one after the other"""
        self.resumed += 1
        return self.counts[self.resumed % len(self.counts)]

    def case(self, name, function):
        trial, start = Trial(self, name), time.monotonic()
        try:
            function(trial)
        except (Failure, OSError, subprocess.SubprocessError) as failure:
            for pid in processes_with(trial.folder):
                os.kill(pid, signal.SIGKILL)
            print(f"FAILED: {name}: {failure}\n    " + "\n    ".join(trial.commands), flush=True)
            return False
        print(f"{time.monotonic() - start:6.1f} s  {name}", flush=True)
        shutil.rmtree(trial.home)
        return True


def main():
    parser = Parser(__doc__)
    parser.add_argument("trainer")
    parser.add_argument("faulty", help="the same with faults")
    parser.add_argument("--count", type=int, default=4, help="processes of a run (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=4, help="cases at a time; most wait (default: %(default)s)")
    parser.add_argument("--only", default="", help="cases with this in their name")
    parser.add_argument("--model", choices=MODELS, default="small", help="default: %(default)s")
    parser.add_argument("--short", action="store_true", help="a few cases")
    arguments = parser.parse_args()
    # in the background of a shell it is ignored, and by the trainers then, too
    signal.signal(signal.SIGINT, signal.default_int_handler)
    home = tempfile.mkdtemp(prefix="process-faults-")
    suite = Suite(arguments, home)
    cases = {**CASES, **(GPU_CASES if suite.gpu else {})}
    names = [name for name in cases if arguments.only in name and (name in SHORT or not arguments.short)]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        results = list(pool.map(lambda name: suite.case(name, cases[name]), names))
    if all(results):
        shutil.rmtree(home)
    print(f"{sum(results)} passed, {len(results) - sum(results)} failed")
    return 0 if all(results) else 1


if __name__ == "__main__":
    sys.exit(main())
