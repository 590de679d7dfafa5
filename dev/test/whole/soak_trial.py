"""What the cases of soak.py are made of: a trainer that runs, the moments to strike at, and what must hold then."""

import contextlib
import ctypes
import fcntl
import filecmp
import os
import random
import re
import select
import struct
import subprocess
import sys
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
MINUTES = 2  # after which a trainer hangs

# Runs by name: their flags but for -o, their steps, and the steps between the reference's checkpoints. A checkpoint of
# `large` takes ten times as long to write.
COMMON = "-b 4 -t 64 -l 2e-3 -u 5 -q 0.1 -c 0.1 -v 5 -m 2 -s 0"
RUNS = {
    "small": ("-e gpt2:l2c64h2t64 -d 512 " + COMMON, 24, 1),
    "large": ("-e gpt2:l3c256h4t64 -d 256 " + COMMON, 8, 1),
    "slow": ("-e gpt2:l3c256h4t64 -d 8192 " + COMMON, 2, 1),
    "several": ("-e gpt2:l2c64h2t64 -b 2 -t 32 -d 256 -l 2e-3 -u 5 -q 0.1 -c 0.1 -v 5 -m 3 -s 0", 24, 1),
    "long": ("-e gpt2:l1c32h1t64 -d 256 -b 4 -t 64 -l 1e-3 -u 50 -q 0.1 -v 500 -m 2 -s 500", 10000, 1250),
}


class Failure(Exception):
    """What a trial found, in one line."""


class Skipped(Exception):
    """Why a trial cannot be made here."""


def claim(truth, text):
    if not truth:
        raise Failure(text)


def processes_with(text):
    """{pid: command line} of the processes that have this text in their command line, this one apart."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as f:
                line = f.read().replace(b"\0", b" ").decode(errors="replace")
            with open(f"/proc/{name}/stat", encoding="utf-8") as f:
                state = f.read().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if text in line and state not in "ZX" and int(name) != os.getpid():
            found[int(name)] = line
    return found


def await_nobody(folder, seconds):
    """Waits so long until no process of a run is left: those of a launcher that was killed end after it.

    Nor does anybody hold the run's lock then: a process that ends loses its command line before its files are closed.
    """
    end = time.monotonic() + seconds
    while left := processes_with(folder):
        claim(time.monotonic() < end, f"{len(left)} processes are left: {' '.join(map(str, left))}")
        time.sleep(0.01)
    path = os.path.join(folder, "main.lock")
    if not os.path.exists(path):
        return
    end = time.monotonic() + 10
    with open(path, encoding="utf-8") as f:
        while True:
            try:
                fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except OSError:
                claim(time.monotonic() < end, f"{path} is still held, by nobody that is seen")
                time.sleep(0.01)


# ----------------------------------------------------------------------------
# A folder of a run


def files_of(step):
    return f"model_{step:08d}.bin", f"state_{step:08d}_00000.bin"


def checkpoints(folder):
    """The steps of the checkpoints that say they are whole, in order."""
    return sorted(int(name[5:]) for name in os.listdir(folder) if re.fullmatch(r"DONE_\d{8}", name))


def newest_step(folder):
    """The step of the newest checkpoint; -1 where there is none."""
    return max(checkpoints(folder), default=-1)


def read_log(folder):
    with contextlib.suppress(FileNotFoundError), open(os.path.join(folder, "main.log"), "rb") as f:
        return f.read()
    return b""


def steps_done(folder):
    """How many steps main.log says were trained."""
    return 1 + max((int(step) for step in re.findall(rb"^s:(\d+) trl:.*\n", read_log(folder), re.M)), default=-1)


def same_files(a, b, names):
    for name in names:
        for folder in (a, b):
            claim(os.path.exists(os.path.join(folder, name)), f"{name} is not there")
        claim(filecmp.cmp(os.path.join(a, name), os.path.join(b, name), shallow=False), f"{name} has other bits")


def check_files(folder, reference):
    """Every checkpoint that says it is whole has the reference's bits."""
    for step in checkpoints(folder):
        same_files(folder, reference.folder, files_of(step))


def check_moment(folder, reference, newest=-1):
    """What holds at any moment: every checkpoint is whole, none is lost, main.log is the reference's as far as it goes.

    Returns the newest checkpoint's step, which must not be below `newest`.
    """
    check_files(folder, reference)
    now = newest_step(folder)
    claim(now >= newest, f"checkpoint {newest} was there, and now the newest is {now}")
    claim(reference.log.startswith(read_log(folder)), "main.log is not the beginning of the reference's")
    return now


def check_end(folder, reference, most=None):
    """What holds at the end: the bits of a run without faults, whole checkpoints (`most` of them), no other file."""
    same_files(folder, reference.folder, [*files_of(reference.steps), "main.log"])
    check_moment(folder, reference, reference.steps)
    steps = checkpoints(folder)
    expected = set(reference.others)
    for step in steps:
        expected.update((f"DONE_{step:08d}", *files_of(step)))
    odd = sorted(set(os.listdir(folder)) ^ expected)
    claim(not odd, f"these files are there and should not, or the other way round: {' '.join(odd)}")
    claim(most is None or len(steps) <= most, f"{len(steps)} checkpoints are kept, not {most}")


class Watch:
    """Counts the events in a folder (files created, written, closed, renamed, deleted): moments to strike at."""

    EVENTS = 0x2 | 0x8 | 0x40 | 0x80 | 0x100 | 0x200  # IN_MODIFY, CLOSE_WRITE, MOVED_FROM, MOVED_TO, CREATE, DELETE

    def __init__(self, folder):
        libc = ctypes.CDLL(None, use_errno=True)
        self.count = 0
        self.fd = libc.inotify_init1(os.O_CLOEXEC)
        if self.fd < 0 or libc.inotify_add_watch(self.fd, os.fsencode(folder), self.EVENTS) < 0:
            raise OSError(ctypes.get_errno(), f"inotify: {os.strerror(ctypes.get_errno())}", folder)

    def wait(self, process, events):
        """Returns after so many events, or when the process has ended."""
        end = time.monotonic() + 60 * MINUTES
        while self.count < events and process.poll() is None and time.monotonic() < end:
            if select.select([self.fd], [], [], 0.02)[0]:
                data, at = os.read(self.fd, 1 << 16), 0
                while at < len(data):
                    at += 16 + struct.unpack_from("=iIII", data, at)[3]  # a header, and the file's name
                    self.count += 1

    def __enter__(self):
        return self

    def __exit__(self, *_):
        os.close(self.fd)


# ----------------------------------------------------------------------------
# A trial, and the run that it is compared with


class Trial:
    """One trial of a case: its folder, its generator, and the commands that it ran."""

    def __init__(self, soak, case, index):
        self.soak = soak
        self.name = f"{case}-{index}"
        self.index = index
        self.random = random.Random(f"{soak.seed} {case} {index}")
        self.home = os.path.join(soak.home, self.name)
        self.folder = os.path.join(self.home, "run")
        self.output = os.path.join(self.home, "output")  # stdout and stderr of every start, one after another
        self.commands = []
        self.seen = {}  # how often things happened that the table shows
        os.makedirs(self.folder)

    def note(self, what):
        self.seen[what] = self.seen.get(what, 0) + 1

    def empty_folder(self):
        for name in os.listdir(self.folder):
            os.remove(os.path.join(self.folder, name))

    def command(self, run, *flags, folder=None):
        text, steps, _ = RUNS[run]
        data = self.soak.data
        flags = [*text.split(), "-x", steps, "-o", folder or self.folder, *flags]
        return [self.soak.trainer, "-i", data + "_train.bin", "-j", data + "_val.bin", *map(str, flags)]

    def start(self, command, limit=None, user=None, stdout=None, threads=1, **environment):
        """Starts the trainer; `limit`: KiB that a file may have, beyond which the disk is full to it."""
        if limit is not None:
            command = ["bash", "-c", 'ulimit -S -f "$1"; shift; exec "$@"', "bash", str(limit), *command]
        settings = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "passive", **environment}
        settings["XDG_CACHE_HOME"] = self.soak.home  # not the user's: runs remember how long their steps took
        self.commands.append(" ".join([*(f"{k}={v}" for k, v in settings.items()), *command]))
        with open(self.output, "ab") as out:
            return subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout or out,
                stderr=out,
                cwd=ROOT,
                env={**os.environ, **settings},
                **({} if user is None else {"user": user}),
            )

    def finish(self, process, code=0):
        """Waits for the end, which must have this exit code (None: any); returns it."""
        try:
            got = process.wait(60 * MINUTES)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise Failure(f"did not end in {MINUTES} minutes") from None
        claim(code is None or got == code, f"exit code {got}, not {code}: {self.last_line()}")
        return got

    def go(self, command, code=0, **settings):
        return self.finish(self.start(command, **settings), code)

    def text(self):
        """All that the trainer has said in this trial."""
        with open(self.output, encoding="utf-8", errors="replace") as f:
            return f.read()

    def last_line(self):
        return (self.text().splitlines() or ["no output"])[-1]


class Reference:
    """A run without faults: its checkpoints, log and other files, how long it takes, how many events it makes."""

    def __init__(self, soak, run):
        self.steps = RUNS[run][1]
        trial = Trial(soak, "reference", run)
        self.folder = trial.folder
        start = time.monotonic()
        with Watch(self.folder) as watch:
            process = trial.start(trial.command(run, "-n", RUNS[run][2]))
            watch.wait(process, sys.maxsize)
            trial.finish(process)
            self.events = watch.count
        self.seconds = time.monotonic() - start
        self.log = read_log(self.folder)
        self.others = {name for name in os.listdir(self.folder) if not re.search(r"\d{8}", name)}
        claim(self.others == {"main.flags", "main.jsonl", "main.log"}, f"{run} leaves {' '.join(sorted(self.others))}")
        claim(steps_done(self.folder) == self.steps, f"{run}: {steps_done(self.folder)} steps, not {self.steps}")


class References:
    """The reference of each run, made when it is first asked for."""

    def __init__(self, soak):
        self.soak = soak
        self.known = {}
        self.lock = threading.Lock()

    def __getitem__(self, run):
        with self.lock:
            if run not in self.known:
                self.known[run] = Reference(self.soak, run)
            return self.known[run]
